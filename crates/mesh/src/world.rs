//! The derived state of the whole mesh.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use pilotfish_config::{Diagnostic, ObjectKey, Snapshot};

use crate::rules::Ranked;
use crate::{Fact, Service, ServiceEndpoints, ServiceId, Text, Workload};

/// Switches of the control plane that shape its output; set once at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Cluster the control plane runs in.
    pub cluster: Text,
    /// DNS domain of Kubernetes services.
    pub domain: Text,
    /// Dual-stack listeners and endpoints.
    pub dual_stack: bool,
    /// Settings of the environment that name a feature, by variable name.
    pub features: BTreeMap<Text, Text>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster: Text::from("Kubernetes"),
            domain: Text::from("cluster.local"),
            dual_stack: false,
            features: BTreeMap::new(),
        }
    }
}

/// Everything that is known of the mesh and does not depend on who asks. Immutable once built; cloning shares.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) settings: Arc<Settings>,
    pub(crate) mesh: Arc<MeshConfig>,
    pub(crate) networks: Arc<MeshNetworks>,
    pub(crate) services: OrdMap<ServiceId, Arc<Service>>,
    /// The same services, oldest first.
    pub(crate) ordered: Arc<Vec<Arc<Service>>>,
    pub(crate) by_host: OrdMap<Text, Arc<Vec<ServiceId>>>,
    pub(crate) by_port: OrdMap<u16, Arc<Vec<ServiceId>>>,
    pub(crate) endpoints: OrdMap<ServiceId, Arc<ServiceEndpoints>>,
    pub(crate) identities: OrdMap<ServiceId, Arc<Vec<Text>>>,
    pub(crate) destination_rules: OrdMap<Text, Ranked>,
    pub(crate) virtual_services: OrdMap<Text, Ranked>,
    pub(crate) gateway_virtual_services: OrdMap<Text, Ranked>,
    pub(crate) gateways: Ranked,
    pub(crate) sidecars: OrdMap<Text, Ranked>,
    pub(crate) workloads: OrdMap<Text, Arc<Workload>>,
}

/// What a change did.
#[derive(Debug)]
pub struct Update {
    /// The next world.
    pub world: World,
    /// Facts whose value changed, sorted.
    pub changed: Vec<Fact>,
}

impl World {
    /// A world without objects.
    pub fn empty(settings: Settings) -> Self {
        let _ = settings;
        todo!()
    }

    /// Derives the next world: `snapshot` is the new configuration, `changed` the keys of objects that differ from the
    /// configuration this world was derived from.
    pub fn update(&self, snapshot: &Snapshot, changed: &[ObjectKey]) -> Update {
        let _ = (snapshot, changed);
        todo!()
    }

    /// Problems that show only when objects are seen together.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        todo!()
    }
}
