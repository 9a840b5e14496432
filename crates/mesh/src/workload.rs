//! Workloads: what runs behind an address, and which services it serves.

use std::sync::Arc;

use pilotfish_config::ObjectKey;

use crate::{Labels, Locality, ServiceId, Text};

/// A service port that a workload serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// The service.
    pub service: ServiceId,
    /// Port of the service.
    pub port: u16,
    /// Port the workload listens on.
    pub target: u16,
}

/// What runs behind an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Pod or WorkloadEntry.
    pub source: ObjectKey,
    /// All its addresses.
    pub addresses: Vec<Text>,
    /// Labels.
    pub labels: Arc<Labels>,
    /// Place.
    pub locality: Locality,
    /// Services it serves, in order of the services' age, then port.
    pub instances: Vec<Instance>,
}
