//! What checks read, and the record of it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use pilotfish_config::mesh::MeshConfig;
use pilotfish_config::networking::Sidecar;
use pilotfish_config::{ClusterId, Diagnostic, Kind, Object, ObjectKey, Snapshot, SpecOf};
use pilotfish_mesh::rules::Ranked;
use pilotfish_mesh::{
    ExportTo, Labels, Service, ServiceEndpoints, ServiceId, Settings, Text, Workload, World, host,
    lookup,
};

/// What is known of a connected proxy that no object describes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proxy {
    /// Its namespace.
    pub namespace: Text,
    /// Its labels.
    pub labels: Labels,
}

/// A set of kinds, and whether proxies belong to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads(u32);

const PROXIES: Reads = Reads(1 << 31);
const _: () = assert!(Kind::ALL.len() < 31, "kinds no longer fit");
/// What services are derived from.
const SERVICES: [Kind; 3] = [Kind::Service, Kind::ServiceEntry, Kind::Namespace];
/// What endpoints and workloads are derived from, besides services.
const ENDPOINTS: [Kind; 5] = [
    Kind::EndpointSlice,
    Kind::Endpoints,
    Kind::Pod,
    Kind::WorkloadEntry,
    Kind::Node,
];

impl Reads {
    pub(crate) const ALL: Self = Self(u32::MAX);

    fn of(kind: Kind) -> Self {
        Self(1 << kind as u32)
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn overlap(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What differs between two snapshots.
pub(crate) struct Changes {
    /// Kinds of which something differs.
    pub(crate) kinds: Reads,
    /// The objects that differ; of no account where everything counts as different.
    pub(crate) keys: Vec<ObjectKey>,
}

impl Changes {
    pub(crate) fn everything() -> Self {
        Self {
            kinds: Reads::ALL,
            keys: Vec::new(),
        }
    }

    /// Costs what differs. The mesh configuration counts as everything: every check may read it.
    pub(crate) fn between(before: &Snapshot, after: &Snapshot, same_proxies: bool) -> Self {
        let same_mesh = Arc::ptr_eq(&before.mesh, &after.mesh) || before.mesh == after.mesh;
        let same_networks =
            Arc::ptr_eq(&before.networks, &after.networks) || before.networks == after.networks;
        if !same_mesh || !same_networks {
            return Self::everything();
        }
        let mut kinds = Reads::default();
        if !same_proxies {
            kinds = PROXIES;
        }
        let mut keys = Vec::new();
        for item in before.objects.diff(&after.objects) {
            let (DiffItem::Add(key, _)
            | DiffItem::Remove(key, _)
            | DiffItem::Update { new: (key, _), .. }) = item;
            kinds = kinds.with(Reads::of(key.kind));
            keys.push(key.clone());
        }
        Self { kinds, keys }
    }
}

/// A world, read by one check at a time.
pub(crate) struct Scene<'w> {
    world: &'w World,
    proxies: &'w [Proxy],
    reads: Cell<Reads>,
}

/// A Pod, a WorkloadEntry or a connected proxy.
#[derive(Clone, Copy)]
pub(crate) enum Runs<'w> {
    Described(&'w World, &'w Object),
    Connected(&'w Proxy),
}

impl<'w> Runs<'w> {
    pub(crate) fn namespace(&self) -> &'w Text {
        match self {
            Self::Described(_, object) => &object.key.namespace,
            Self::Connected(proxy) => &proxy.namespace,
        }
    }

    /// Whether it has all these labels.
    pub(crate) fn has(&self, selector: &Labels) -> bool {
        match self {
            Self::Described(world, object) => world.carries(object, selector),
            Self::Connected(proxy) => lookup::selects(selector, &proxy.labels),
        }
    }
}

impl<'w> Scene<'w> {
    pub(crate) fn new(world: &'w World, proxies: &'w [Proxy]) -> Self {
        Self {
            world,
            proxies,
            reads: Cell::default(),
        }
    }

    /// What was read since this was last asked.
    pub(crate) fn take_reads(&self) -> Reads {
        self.reads.take()
    }

    /// The objects, for the one who decides which check runs for which.
    pub(crate) fn unrecorded(&self) -> &'w Snapshot {
        self.world.snapshot()
    }

    fn note(&self, kinds: &[Kind]) {
        let all = kinds.iter().map(|kind| Reads::of(*kind));
        self.reads.set(all.fold(self.reads.get(), Reads::with));
    }

    pub(crate) fn mesh(&self) -> &'w MeshConfig {
        self.world.mesh()
    }

    pub(crate) fn settings(&self) -> &'w Settings {
        self.world.settings()
    }

    /// The namespace of the control plane and of rules for the whole mesh.
    pub(crate) fn root_namespace(&self) -> &'w str {
        match self.mesh().root_namespace.as_str() {
            "" => "istio-system",
            name => name,
        }
    }
    /// Objects of a kind in the config cluster, by namespace and name. Those of other clusters have their own keepers.
    pub(crate) fn objects(&self, kind: Kind) -> impl Iterator<Item = &'w Arc<Object>> + use<'w> {
        self.note(&[kind]);
        let snapshot = self.world.snapshot();
        snapshot.in_cluster(kind, ClusterId::CONFIG)
    }

    /// Whether some cluster has a namespace. Without a list of namespaces nobody can say which are missing.
    pub(crate) fn has_namespace(&self, name: &str) -> Option<bool> {
        self.note(&[Kind::Namespace]);
        let snapshot = self.world.snapshot();
        let in_cluster = |cluster| ObjectKey::new(Kind::Namespace, "", name).of(cluster);
        let mut clusters = snapshot.clusters(Kind::Namespace).peekable();
        clusters.peek()?;
        Some(clusters.any(|cluster| snapshot.get(&in_cluster(cluster)).is_some()))
    }

    /// Namespaces that some cluster has.
    pub(crate) fn namespaces(&self) -> BTreeSet<&'w str> {
        self.note(&[Kind::Namespace]);
        let all = self.world.snapshot().list(Kind::Namespace);
        all.map(|object| &*object.key.name).collect()
    }

    /// The same with their specs.
    pub(crate) fn list<T: SpecOf + 'static>(
        &self,
    ) -> impl Iterator<Item = (&'w Arc<Object>, &'w T)> + use<'w, T> {
        self.objects(T::KIND)
            .filter_map(|object| Some((object, object.get::<T>()?)))
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&'w Arc<Object>> {
        self.note(&[key.kind]);
        self.world.snapshot().get(key)
    }

    /// A host as written in an object, in full.
    pub(crate) fn resolve(&self, written: &str, object: &Object) -> Text {
        host::resolve(written, &object.key.namespace, &self.settings().domain)
    }

    /// Problems that deriving services found.
    pub(crate) fn declarations(&self) -> Vec<Diagnostic> {
        self.note(&SERVICES);
        self.world.diagnostics()
    }

    /// All services, oldest first.
    pub(crate) fn services(&self) -> impl ExactSizeIterator<Item = &'w Arc<Service>> + use<'w> {
        self.note(&SERVICES);
        self.world.services()
    }

    pub(crate) fn service(&self, id: &ServiceId) -> Option<&'w Arc<Service>> {
        self.note(&SERVICES);
        self.world.service(id)
    }

    /// Services that a host means: those of that name, or of a wildcard that covers it.
    pub(crate) fn meant(&self, name: &Text) -> Vec<&'w Arc<Service>> {
        self.note(&SERVICES);
        let world = self.world;
        let of = |host: &str| {
            let ids = world.services_of_host(host).iter();
            ids.filter_map(|id| world.service(id))
        };
        if world.has_wildcard_hosts() {
            host::candidates(name).iter().flat_map(|c| of(c)).collect()
        } else {
            of(name).collect()
        }
    }

    /// Services that a host which may be a wildcard covers, or that cover it.
    pub(crate) fn covered(&self, name: &Text) -> Vec<&'w Arc<Service>> {
        let mut found = self.meant(name);
        if name.starts_with('*') {
            let below = self
                .world
                .hosts()
                .filter(|(h, _)| *h != name && host::covers(name, h));
            found.extend(
                below
                    .flat_map(|(_, ids)| ids)
                    .filter_map(|id| self.world.service(id)),
            );
        }
        found
    }

    pub(crate) fn endpoints(&self, id: &ServiceId) -> Option<&'w Arc<ServiceEndpoints>> {
        self.note(&SERVICES);
        self.note(&ENDPOINTS);
        self.world.endpoints_of(id)
    }

    /// Workloads that may serve several services.
    pub(crate) fn shared_workloads(&self) -> impl Iterator<Item = Workload> + use<'w> {
        self.note(&SERVICES);
        self.note(&ENDPOINTS);
        self.world.shared_workloads()
    }

    /// The service that an EndpointSlice says it belongs to.
    pub(crate) fn fed_service(&self, object: &Object) -> Option<ServiceId> {
        lookup::fed_service(self.world, object)
    }

    /// Pods and WorkloadEntries of a namespace that a selector selects.
    pub(crate) fn selected(&self, namespace: &'w Text, selector: &Labels) -> Vec<&'w Arc<Object>> {
        self.note(&[Kind::Namespace]);
        self.note(&ENDPOINTS);
        self.world.selected(namespace, selector)
    }

    /// Everything that is known to run.
    pub(crate) fn running(&self) -> Vec<Runs<'w>> {
        self.note(&[Kind::Namespace]);
        self.note(&ENDPOINTS);
        self.reads.set(self.reads.get().with(PROXIES));
        let objects = [Kind::Pod, Kind::WorkloadEntry].map(|kind| self.world.snapshot().list(kind));
        let described = objects.into_iter().flatten();
        let described = described.map(|object| Runs::Described(self.world, object));
        let connected = self.proxies.iter().map(Runs::Connected);
        described.chain(connected).collect()
    }

    /// Destination rules by host, oldest first.
    pub(crate) fn destination_rules(
        &self,
    ) -> impl Iterator<Item = (&'w Text, &'w Ranked)> + use<'w> {
        self.note(&[Kind::DestinationRule]);
        self.world.destination_rules()
    }

    /// Destination rules whose host covers this one.
    pub(crate) fn rules_for(&self, name: &Text) -> Vec<&'w Arc<Object>> {
        self.note(&[Kind::DestinationRule]);
        if self.world.has_wildcard_rules() {
            let candidates = host::candidates(name);
            let rules = candidates.iter();
            rules
                .flat_map(|c| self.world.destination_rules_of(c))
                .collect()
        } else {
            self.world.destination_rules_of(name).iter().collect()
        }
    }

    /// Virtual services of the mesh by host, oldest first.
    pub(crate) fn virtual_services(
        &self,
    ) -> impl Iterator<Item = (&'w Text, &'w Ranked)> + use<'w> {
        self.note(&[Kind::VirtualService]);
        self.world.virtual_services()
    }

    /// Virtual services by gateway, oldest first.
    pub(crate) fn gateway_virtual_services(
        &self,
    ) -> impl Iterator<Item = (&'w Text, &'w Ranked)> + use<'w> {
        self.note(&[Kind::VirtualService]);
        self.world.gateway_virtual_services()
    }

    /// All Gateways, oldest first.
    pub(crate) fn gateways(&self) -> &'w [Arc<Object>] {
        self.note(&[Kind::Gateway]);
        self.world.gateways()
    }

    /// Sidecar objects by namespace, oldest first.
    pub(crate) fn sidecars(&self) -> Vec<(&'w Text, Sidecars<'w>)> {
        self.note(&[Kind::Sidecar]);
        let of = |ranked: &'w Ranked| {
            let specs = ranked.iter().filter_map(|o| Some((o, o.get::<Sidecar>()?)));
            specs.collect()
        };
        let all = self.world.sidecars();
        all.map(|(namespace, ranked)| (namespace, of(ranked)))
            .collect()
    }
}

/// Sidecar objects with their specs.
pub(crate) type Sidecars<'w> = Vec<(&'w Arc<Object>, &'w Sidecar)>;

/// Whether some proxy may see both of two objects.
pub(crate) fn both_visible(a: &ExportTo, a_in: &str, b: &ExportTo, b_in: &str) -> bool {
    let namespaces = |export: &ExportTo, own: &str| -> Option<Vec<Text>> {
        match export {
            ExportTo::Public => None,
            ExportTo::None => Some(Vec::new()),
            ExportTo::Private => Some(vec![Text::from(own)]),
            ExportTo::Namespaces(all) => Some(all.iter().cloned().collect()),
        }
    };
    match (namespaces(a, a_in), namespaces(b, b_in)) {
        (None, None) => true,
        (Some(some), None) | (None, Some(some)) => !some.is_empty(),
        (Some(a), Some(b)) => a.iter().any(|namespace| b.contains(namespace)),
    }
}
