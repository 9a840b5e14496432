//! `Pod`.

use super::{Protocol, api, api_enum};

api! {
    pub struct Pod {
        pub node_name: String,
        pub service_account_name: String,
        pub hostname: String,
        pub subdomain: String,
        pub host_network: bool,
        pub containers: Vec<Container>,
        pub init_containers: Vec<Container>,
        /// From `status`, like the fields below it.
        pub phase: PodPhase,
        #[serde(rename = "podIP")]
        pub pod_ip: String,
        #[serde(rename = "podIPs")]
        pub pod_ips: Vec<PodIp>,
        #[serde(rename = "hostIP")]
        pub host_ip: String,
        pub conditions: Vec<PodCondition>,
        /// Whether `metadata.deletionTimestamp` is set: the pod is on its way out.
        pub deleting: bool,
    }
}

impl Pod {
    /// Every address of the pod, the primary first.
    pub fn ips(&self) -> impl Iterator<Item = &str> {
        let primary = Some(self.pod_ip.as_str()).filter(|ip| !ip.is_empty());
        let others = self
            .pod_ips
            .iter()
            .map(|ip| ip.ip.as_str())
            .filter(move |ip| !ip.is_empty() && Some(*ip) != primary);
        primary.into_iter().chain(others)
    }

    /// Whether the `Ready` condition is true.
    pub fn is_ready(&self) -> bool {
        self.conditions
            .iter()
            .any(|condition| condition.r#type == "Ready" && condition.status == "True")
    }
}

api! {
    pub struct Container {
        pub name: String,
        pub ports: Vec<ContainerPort>,
        /// `Always` on an init container makes it a native sidecar.
        pub restart_policy: String,
    }
}

api! {
    pub struct ContainerPort {
        pub name: String,
        pub container_port: u16,
        pub protocol: Protocol,
    }
}

api_enum! {
    PodPhase {
        Unset = "",
        Pending = "Pending",
        Running = "Running",
        Succeeded = "Succeeded",
        Failed = "Failed",
        Unknown = "Unknown",
    }
}

api! {
    pub struct PodIp {
        pub ip: String,
    }
}

api! {
    pub struct PodCondition {
        pub r#type: String,
        pub status: String,
    }
}
