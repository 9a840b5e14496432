//! `EndpointSlice` and `Endpoints`.

use super::{Protocol, api, api_enum};
use crate::Text;

api! {
    pub struct EndpointSlice {
        pub address_type: AddressType,
        pub ports: Vec<EndpointPort>,
        pub endpoints: Vec<Endpoint>,
    }
}

api_enum! {
    AddressType {
        Ipv4 = "IPv4",
        Ipv6 = "IPv6",
        Fqdn = "FQDN",
    }
}

api! {
    pub struct EndpointPort {
        pub name: String,
        pub port: Option<u16>,
        pub protocol: Protocol,
        pub app_protocol: Option<String>,
    }
}

api! {
    pub struct Endpoint {
        pub addresses: Vec<Text>,
        pub conditions: EndpointConditions,
        pub hostname: Option<Text>,
        pub node_name: Option<Text>,
        pub zone: Option<Text>,
        pub target_ref: Option<TargetRef>,
        pub hints: Option<EndpointHints>,
    }
}

api! {
    /// An absent condition is unknown; Kubernetes says to take unknown `ready` for true.
    pub struct EndpointConditions {
        pub ready: Option<bool>,
        pub serving: Option<bool>,
        pub terminating: Option<bool>,
    }
}

api! {
    pub struct TargetRef {
        pub kind: Text,
        pub namespace: Text,
        pub name: Text,
        pub uid: Text,
    }
}

api! {
    pub struct EndpointHints {
        pub for_zones: Vec<ForZone>,
    }
}

api! {
    pub struct ForZone {
        pub name: String,
    }
}

api! {
    pub struct Endpoints {
        pub subsets: Vec<EndpointSubset>,
    }
}

api! {
    pub struct EndpointSubset {
        pub addresses: Vec<EndpointAddress>,
        pub not_ready_addresses: Vec<EndpointAddress>,
        pub ports: Vec<EndpointPort>,
    }
}

api! {
    pub struct EndpointAddress {
        pub ip: Text,
        pub hostname: Option<Text>,
        pub node_name: Option<Text>,
        pub target_ref: Option<TargetRef>,
    }
}
