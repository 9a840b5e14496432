//! `Sidecar`: what the proxy beside a workload sees and serves.

use crate::Labels;

use super::{api, api_enum};
use super::{
    destination_rule::ConnectionPoolSettings, gateway::ServerTlsSettings,
    virtual_service::Destination,
};

api! {
    pub struct Sidecar {
        pub workload_selector: Option<WorkloadSelector>,
        pub ingress: Vec<IstioIngressListener>,
        pub egress: Vec<IstioEgressListener>,
        pub inbound_connection_pool: Option<ConnectionPoolSettings>,
        pub outbound_traffic_policy: Option<OutboundTrafficPolicy>,
    }
}

api! {
    pub struct IstioIngressListener {
        pub port: Option<SidecarPort>,
        pub bind: String,
        pub capture_mode: CaptureMode,
        pub default_endpoint: String,
        pub tls: Option<ServerTlsSettings>,
        pub connection_pool: Option<ConnectionPoolSettings>,
    }
}

api! {
    pub struct IstioEgressListener {
        pub port: Option<SidecarPort>,
        pub bind: String,
        pub capture_mode: CaptureMode,
        pub hosts: Vec<String>,
    }
}

api! {
    pub struct WorkloadSelector {
        pub labels: Labels,
    }
}

api! {
    pub struct OutboundTrafficPolicy {
        pub mode: OutboundTrafficMode,
        pub egress_proxy: Option<Destination>,
    }
}

api_enum! {
    OutboundTrafficMode {
        RegistryOnly = "REGISTRY_ONLY",
        AllowAny = "ALLOW_ANY",
    }
}

api_enum! {
    CaptureMode {
        Default = "DEFAULT",
        Iptables = "IPTABLES",
        None = "NONE",
    }
}

api! {
    pub struct SidecarPort {
        pub number: u32,
        pub protocol: String,
        pub name: String,
        pub target_port: u32,
    }
}
