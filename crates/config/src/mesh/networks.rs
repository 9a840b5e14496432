//! `MeshNetworks`: which endpoints share a network, and the gateways between networks.

use super::api;
use std::collections::BTreeMap;

api! {
    pub struct Network {
        pub endpoints: Vec<NetworkEndpoints>,
        pub gateways: Vec<IstioNetworkGateway>,
    }
}

api! {
    pub struct NetworkEndpoints {
        pub from_cidr: Option<String>,
        pub from_registry: Option<String>,
    }
}

api! {
    pub struct IstioNetworkGateway {
        pub registry_service_name: Option<String>,
        pub address: Option<String>,
        pub port: u32,
        pub locality: String,
    }
}

api! {
    pub struct MeshNetworks {
        pub networks: BTreeMap<String, Network>,
    }
}
