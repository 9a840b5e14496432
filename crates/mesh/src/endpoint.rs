//! Endpoints of services.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Labels, Text};

/// A place.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locality {
    /// Region.
    pub region: Text,
    /// Zone.
    pub zone: Text,
    /// Subzone.
    pub subzone: Text,
}

impl Locality {
    /// From `region/zone/subzone`, or with dots between, as labels write it.
    pub fn parse(s: &str) -> Self {
        let mut parts = s.splitn(3, '/').map(Text::from);
        Self {
            region: parts.next().unwrap_or_default(),
            zone: parts.next().unwrap_or_default(),
            subzone: parts.next().unwrap_or_default(),
        }
    }
}

/// Health of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointHealth {
    /// Ready.
    Healthy,
    /// Not ready.
    Unhealthy,
    /// Going away but still serving.
    Draining,
    /// Going away.
    Terminating,
}

/// One endpoint of one port of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Addresses (IP, host name or `unix://path`), the main one first.
    pub addresses: Vec<Text>,
    /// Port it listens on; 0 for Unix sockets.
    pub port: u16,
    /// Health.
    pub health: EndpointHealth,
    /// Place.
    pub locality: Locality,
    /// Network; empty: the default.
    pub network: Text,
    /// Cluster it runs in.
    pub cluster: Text,
    /// Weight, at least 1.
    pub weight: u32,
    /// It has a sidecar that takes mutual TLS.
    pub mutual_tls: bool,
    /// Labels of the workload.
    pub labels: Arc<Labels>,
    /// Name of the workload for telemetry.
    pub workload: Text,
    /// Namespace of the workload.
    pub namespace: Text,
    /// Node it runs on.
    pub node: Text,
    /// Host name in a headless service.
    pub hostname: Text,
    /// Subdomain (the headless service's name).
    pub subdomain: Text,
    /// SPIFFE identity; empty: unknown.
    pub identity: Text,
}

/// Endpoints of a service by port name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEndpoints {
    /// Port name to endpoints in canonical order.
    pub by_port: BTreeMap<Text, Vec<Arc<Endpoint>>>,
}
