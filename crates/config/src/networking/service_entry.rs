//! `ServiceEntry`: services that no registry knows.

use super::{api, api_enum};
use super::{sidecar::WorkloadSelector, workload::WorkloadEntry};

api! {
    pub struct ServiceEntry {
        pub hosts: Vec<String>,
        pub addresses: Vec<String>,
        pub ports: Vec<ServicePort>,
        pub location: Location,
        pub resolution: Resolution,
        pub endpoints: Vec<WorkloadEntry>,
        pub workload_selector: Option<WorkloadSelector>,
        pub export_to: Vec<String>,
        pub subject_alt_names: Vec<String>,
        /// Addresses that a controller assigned; from `status`, which users do not write.
        #[serde(skip_deserializing)]
        pub status_addresses: Vec<ServiceEntryAddress>,
    }
}

api_enum! {
    Location {
        MeshExternal = "MESH_EXTERNAL",
        MeshInternal = "MESH_INTERNAL",
    }
}

api_enum! {
    Resolution {
        None = "NONE",
        Static = "STATIC",
        Dns = "DNS",
        DnsRoundRobin = "DNS_ROUND_ROBIN",
        DynamicDns = "DYNAMIC_DNS",
    }
}

api! {
    pub struct ServicePort {
        pub number: u32,
        pub protocol: String,
        pub name: String,
        pub target_port: u32,
    }
}

api! {
    pub struct ServiceEntryAddress {
        pub value: String,
        pub host: String,
    }
}
