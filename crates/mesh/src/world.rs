//! The derived state of the whole mesh.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use pilotfish_config::{Diagnostic, Object, ObjectKey, Snapshot};

use crate::alias::Aliases;
use crate::allocation::{self, Slots};
use crate::index::Index;
use crate::local_hosts::LocalHosts;
use crate::rules::Ranked;
use crate::update;
use crate::view::View;
use crate::{Fact, NetworkGateway, Service, ServiceEndpoints, ServiceId, Text};

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

/// Features as variables of the environment say them. Values were checked when they were read: one that does not fit
/// counts as not said.
impl Settings {
    /// Whether a feature is on.
    pub fn on(&self, feature: &str, otherwise: bool) -> bool {
        self.features
            .get(feature)
            .map_or(otherwise, |text| &**text == "true")
    }

    /// The number of a feature.
    pub fn number(&self, feature: &str, otherwise: u32) -> u32 {
        let number = self
            .features
            .get(feature)
            .and_then(|text| text.parse().ok());
        number.unwrap_or(otherwise)
    }

    /// The duration of a feature.
    pub fn time(&self, feature: &str, otherwise: Duration) -> Duration {
        let text = self.features.get(feature);
        let time = text.and_then(|text| text.parse::<pilotfish_config::Duration>().ok());
        time.map_or(otherwise, pilotfish_config::Duration::get)
    }

    /// The text of a feature, or what it is unless somebody says otherwise.
    pub fn text<'a>(&'a self, feature: &str, otherwise: &'a str) -> &'a str {
        self.features.get(feature).map_or(otherwise, |text| &**text)
    }
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
    /// The same by namespace.
    pub(crate) by_namespace: OrdMap<Text, Arc<Vec<Arc<Service>>>>,
    pub(crate) by_host: OrdMap<Text, Arc<Vec<ServiceId>>>,
    pub(crate) by_port: OrdMap<u16, Arc<Vec<ServiceId>>>,
    pub(crate) by_port_in: OrdMap<(Text, u16), Arc<Vec<ServiceId>>>,
    pub(crate) endpoints: OrdMap<ServiceId, Arc<ServiceEndpoints>>,
    pub(crate) identities: OrdMap<ServiceId, Arc<Vec<Text>>>,
    pub(crate) destination_rules: OrdMap<Text, Ranked>,
    pub(crate) virtual_services: OrdMap<Text, Ranked>,
    pub(crate) gateway_virtual_services: OrdMap<Text, Ranked>,
    pub(crate) gateways: Ranked,
    pub(crate) sidecars: OrdMap<Text, Ranked>,
    /// The keys of `sidecars`.
    pub(crate) sidecar_namespaces: Arc<BTreeSet<Text>>,
    pub(crate) peer_authentications: OrdMap<Text, Ranked>,
    pub(crate) network_gateways: Arc<Vec<NetworkGateway>>,
    /// What all of it was derived from.
    pub(crate) snapshot: Snapshot,
    pub(crate) index: Index,
    pub(crate) aliases: Aliases,
    pub(crate) slots: Slots,
    pub(crate) local_hosts: Arc<LocalHosts>,
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
        let snapshot = Snapshot::default();
        let local_hosts = Arc::new(LocalHosts::of(&snapshot.mesh, &settings.domain));
        Self {
            settings: Arc::new(settings),
            mesh: snapshot.mesh.clone(),
            networks: snapshot.networks.clone(),
            services: OrdMap::new(),
            ordered: Arc::default(),
            by_namespace: OrdMap::new(),
            by_host: OrdMap::new(),
            by_port: OrdMap::new(),
            by_port_in: OrdMap::new(),
            endpoints: OrdMap::new(),
            identities: OrdMap::new(),
            destination_rules: OrdMap::new(),
            virtual_services: OrdMap::new(),
            gateway_virtual_services: OrdMap::new(),
            gateways: Arc::default(),
            sidecars: OrdMap::new(),
            sidecar_namespaces: Arc::default(),
            peer_authentications: OrdMap::new(),
            network_gateways: Arc::default(),
            snapshot,
            index: Index::default(),
            aliases: Aliases::default(),
            slots: Slots::default(),
            local_hosts,
        }
    }

    /// Derives the next world: `snapshot` is the new configuration, `changed` the keys of objects that differ from the
    /// configuration this world was derived from.
    pub fn update(&self, snapshot: &Snapshot, changed: &[ObjectKey]) -> Update {
        update::derive(self, snapshot, changed)
    }

    /// The same for whoever does not ask what changed, since nothing was read of this world, or is forgotten. That costs less.
    #[must_use]
    pub fn begin(&self, snapshot: &Snapshot, changed: &[ObjectKey]) -> Self {
        update::begin(self, snapshot, changed)
    }

    /// Problems with what declares services: what deriving them had to leave out or decide. Costs as much as there are
    /// services. Everything else that shows only when objects are seen together is the matter of the crate `analysis`.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        crate::diagnostics::all(self)
    }

    /// Mesh configuration.
    pub fn mesh(&self) -> &MeshConfig {
        &self.mesh
    }

    /// Networks of the mesh.
    pub fn networks(&self) -> &MeshNetworks {
        &self.networks
    }

    /// Settings of the control plane.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All services, oldest first.
    pub fn services(&self) -> impl ExactSizeIterator<Item = &Arc<Service>> {
        self.ordered.iter()
    }

    /// Endpoints by service, for services that have any.
    pub fn endpoints(&self) -> impl Iterator<Item = (&ServiceId, &Arc<ServiceEndpoints>)> {
        self.endpoints.iter()
    }

    /// What the status of a ServiceEntry should say: its hosts with the addresses that the control plane gave them. Those
    /// that it says already stay.
    pub fn allocated(&self, entry: &Object) -> Vec<(Text, Text)> {
        allocation::persistent(entry, &self.slots, &self.settings)
    }

    /// Addresses for a host of a ServiceEntry that cannot keep what its status says. `given` are the slots that were given
    /// away like this before, and not written yet.
    pub fn reallocated(&self, entry: &Object, host: &Text, given: &mut BTreeSet<u16>) -> Vec<Text> {
        let id = ServiceId {
            host: host.clone(),
            namespace: entry.key.namespace.clone(),
        };
        self.slots.vacant(&allocation::holder(entry, &id), given)
    }

    /// Gateways between networks.
    pub fn network_gateways(&self) -> &[NetworkGateway] {
        &self.network_gateways
    }

    pub(crate) fn view(&self) -> View<'_> {
        View {
            snapshot: &self.snapshot,
            settings: &self.settings,
            index: &self.index,
            aliases: &self.aliases,
            slots: &self.slots,
            local_hosts: &self.local_hosts,
        }
    }
}
