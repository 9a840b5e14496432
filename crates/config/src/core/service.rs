//! `Service`.

use crate::Labels;

use serde::{Deserialize, Serialize};

use super::{api, api_enum};

api! {
    pub struct Service {
        pub r#type: ServiceType,
        #[serde(rename = "clusterIP")]
        pub cluster_ip: String,
        #[serde(rename = "clusterIPs")]
        pub cluster_ips: Vec<String>,
        pub ip_families: Vec<IpFamily>,
        pub ip_family_policy: Option<String>,
        pub external_name: String,
        #[serde(rename = "externalIPs")]
        pub external_ips: Vec<String>,
        pub external_traffic_policy: TrafficPolicy,
        pub internal_traffic_policy: TrafficPolicy,
        pub traffic_distribution: Option<String>,
        pub publish_not_ready_addresses: bool,
        pub session_affinity: String,
        pub selector: Labels,
        pub ports: Vec<ServicePort>,
        #[serde(rename = "loadBalancerIP")]
        pub load_balancer_ip: String,
        /// From `status`.
        pub load_balancer: LoadBalancerStatus,
    }
}

impl Service {
    /// Every cluster IP, whether it was written as `clusterIP` or `clusterIPs`; none for a headless service.
    pub fn virtual_ips(&self) -> impl Iterator<Item = &str> {
        let only = (self.cluster_ips.is_empty() && !self.cluster_ip.is_empty())
            .then_some(&self.cluster_ip);
        self.cluster_ips
            .iter()
            .chain(only)
            .map(String::as_str)
            .filter(|ip| !ip.is_empty() && *ip != "None")
    }

    /// Whether `clusterIP: None` was asked for.
    pub fn is_headless(&self) -> bool {
        self.cluster_ip == "None" || self.cluster_ips.first().is_some_and(|ip| ip == "None")
    }
}

api_enum! {
    ServiceType {
        ClusterIp = "ClusterIP",
        NodePort = "NodePort",
        LoadBalancer = "LoadBalancer",
        ExternalName = "ExternalName",
    }
}

api_enum! {
    TrafficPolicy {
        Cluster = "Cluster",
        Local = "Local",
    }
}

api_enum! {
    IpFamily {
        V4 = "IPv4",
        V6 = "IPv6",
    }
}

api_enum! {
    /// The layer-4 protocol of a port.
    Protocol {
        Tcp = "TCP",
        Udp = "UDP",
        Sctp = "SCTP",
    }
}

api! {
    pub struct ServicePort {
        pub name: String,
        pub port: u16,
        pub target_port: Option<IntOrString>,
        pub node_port: u16,
        pub protocol: Protocol,
        pub app_protocol: Option<String>,
    }
}

/// Reads a selector of nodes as annotations write it: a JSON object of labels. What is none selects all nodes.
pub fn node_selector(text: &str) -> Labels {
    serde_json::from_str(text).unwrap_or_default()
}

/// A port by number or by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(untagged, expecting = "a number or a name")]
pub enum IntOrString {
    Int(i32),
    String(String),
}

api! {
    pub struct LoadBalancerStatus {
        pub ingress: Vec<LoadBalancerIngress>,
    }
}

api! {
    pub struct LoadBalancerIngress {
        pub ip: String,
        pub hostname: String,
    }
}
