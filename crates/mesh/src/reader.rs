//! The only way lowering reads a world: every read is recorded.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use pilotfish_config::networking::VirtualService;
use pilotfish_config::{ClusterId, Diagnostic, Kind, Object, ObjectKey};

use crate::host;
use crate::rules::{Head, Leads, Ranked};
use crate::update::order;
use crate::{
    Fact, Locality, NetworkGateway, Service, ServiceEndpoints, ServiceId, Settings, Text, Workload,
    World,
};

/// Reads a [`World`] and remembers what was read: the facts (so that a change of one marks the reader's product as
/// stale) and the objects (its provenance). Neither can be forgotten by the code that lowers.
#[derive(Debug)]
pub struct Reader<'w> {
    world: &'w World,
    record: RefCell<Record>,
}

/// Something that was found to hold of the proxy a product is made for. The product is right for every proxy of which
/// all of it holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Known {
    /// It is in this namespace.
    In(Text),
    /// It is not in this namespace.
    NotIn(Text),
    /// It is in none of these namespaces.
    InNone(Arc<BTreeSet<Text>>),
    /// It has this label with this value.
    Labelled(Text, Text),
    /// It does not have this label with this value.
    NotLabelled(Text, Text),
    /// The value of this label, if it has it.
    Label(Text, Option<Text>),
    /// It is in this cluster.
    Cluster(Text),
    /// It is at this place.
    At(Locality),
}

/// What a [`Reader`] remembers.
#[derive(Debug, Default)]
pub struct Record {
    /// Facts read.
    pub facts: BTreeSet<Fact>,
    /// Objects read.
    pub sources: BTreeSet<ObjectKey>,
    /// What was asked about the proxy.
    pub known: BTreeSet<Known>,
    /// Problems found.
    pub diagnostics: Vec<Diagnostic>,
}

impl<'w> Reader<'w> {
    /// A reader with nothing recorded.
    pub fn new(world: &'w World) -> Self {
        Self {
            world,
            record: RefCell::default(),
        }
    }

    /// What was read.
    pub fn into_record(self) -> Record {
        self.record.into_inner()
    }

    fn note(&self, fact: Fact) {
        self.record.borrow_mut().facts.insert(fact);
    }

    /// Says what was found to hold of the proxy.
    pub fn knows(&self, known: Known) {
        self.record.borrow_mut().known.insert(known);
    }

    /// Says that the product was made from this object.
    pub fn uses(&self, object: &ObjectKey) {
        self.record.borrow_mut().sources.insert(object.clone());
    }

    /// Reports a problem with an object; the product is made without it.
    pub fn report(&self, diagnostic: Diagnostic) {
        self.record.borrow_mut().diagnostics.push(diagnostic);
    }

    /// Mesh configuration.
    pub fn mesh(&self) -> &'w MeshConfig {
        self.note(Fact::Mesh);
        &self.world.mesh
    }

    /// Networks of the mesh.
    pub fn networks(&self) -> &'w MeshNetworks {
        self.note(Fact::Mesh);
        &self.world.networks
    }

    /// Gateways between networks, by network and address.
    pub fn network_gateways(&self) -> &'w [NetworkGateway] {
        self.note(Fact::NetworkGateways);
        &self.world.network_gateways
    }

    /// Settings of the control plane.
    pub fn settings(&self) -> &'w Settings {
        self.note(Fact::Mesh);
        &self.world.settings
    }

    /// All services, oldest first. Read their list attributes (id, ports, addresses, resolution, visibility; see
    /// [`Fact::Services`]) here; anything else through [`Reader::service`], which records it.
    pub fn services(&self) -> &'w [Arc<Service>] {
        self.note(Fact::Services);
        &self.world.ordered
    }

    /// The same of some namespaces alone.
    pub fn services_in<'n>(
        &self,
        namespaces: impl IntoIterator<Item = &'n Text>,
    ) -> Vec<&'w Arc<Service>> {
        let mut out = Vec::new();
        for namespace in namespaces {
            self.note(Fact::ServicesIn(namespace.clone()));
            out.extend(
                self.world
                    .by_namespace
                    .get(namespace)
                    .into_iter()
                    .flat_map(|s| s.iter()),
            );
        }
        out.sort_by(|a, b| order(a).cmp(&order(b)));
        out
    }

    /// One service.
    pub fn service(&self, id: &ServiceId) -> Option<&'w Arc<Service>> {
        self.note(Fact::Service(id.clone()));
        let service = self.world.services.get(id)?;
        self.uses(&service.source);
        Some(service)
    }

    /// Services of a host, oldest first.
    pub fn services_of_host(&self, host: &str) -> &'w [ServiceId] {
        self.note(Fact::Host(Text::from(host)));
        self.world.by_host.get(host).map_or(&[], |v| v.as_slice())
    }

    /// Services that have a port, oldest first.
    pub fn services_on_port(&self, port: u16) -> &'w [ServiceId] {
        self.note(Fact::Port(port));
        self.world.by_port.get(&port).map_or(&[], |v| v.as_slice())
    }

    /// The same of some namespaces alone.
    pub fn services_on_port_in<'n>(
        &self,
        namespaces: impl IntoIterator<Item = &'n Text>,
        port: u16,
    ) -> Vec<&'w ServiceId> {
        let mut out = Vec::new();
        for namespace in namespaces {
            self.note(Fact::PortIn(namespace.clone(), port));
            let ids = self.world.by_port_in.get(&(namespace.clone(), port));
            out.extend(ids.into_iter().flat_map(|ids| ids.iter()));
        }
        let order = |id: &ServiceId| self.world.services.get(id).map(|s| order(s));
        out.sort_by(|a, b| order(a).cmp(&order(b)));
        out
    }

    /// Endpoints of a service.
    pub fn endpoints(&self, id: &ServiceId) -> Option<&'w Arc<ServiceEndpoints>> {
        self.note(Fact::Endpoints(id.clone()));
        self.world.endpoints.get(id)
    }

    /// Identities that endpoints of a service run as, sorted.
    pub fn identities(&self, id: &ServiceId) -> &'w [Text] {
        self.note(Fact::Identities(id.clone()));
        self.world.identities.get(id).map_or(&[], |v| v.as_slice())
    }

    /// Destination rules whose host covers `host`, the most specific host first.
    pub fn destination_rules(&self, host: &Text) -> Vec<&'w Ranked> {
        self.note(Fact::DestinationRuleWildcards);
        self.covering(&self.world.destination_rules, host, Fact::DestinationRules)
    }

    /// Virtual services of the mesh whose host covers `host`, the most specific host first.
    pub fn virtual_services(&self, host: &Text) -> Vec<&'w Ranked> {
        self.note(Fact::VirtualServiceWildcards);
        self.covering(&self.world.virtual_services, host, Fact::VirtualServices)
    }

    /// The heads of virtual services of the mesh whose host covers `host`, those of the most specific host first.
    pub fn virtual_service_heads(&self, host: &Text) -> Vec<Vec<Head<'w>>> {
        self.note(Fact::VirtualServiceWildcards);
        let index = &self.world.virtual_services;
        let covering = self.covering(index, host, Fact::VirtualServiceHeads);
        covering
            .into_iter()
            .map(|ranked| Head::all(ranked))
            .collect()
    }

    /// The heads of virtual services of the mesh written for exactly this host.
    pub fn virtual_service_heads_of(&self, host: &Text) -> Vec<Head<'w>> {
        self.note(Fact::VirtualServiceHeads(host.clone()));
        let ranked = self.world.virtual_services.get(host);
        ranked.map_or_else(Vec::new, |ranked| Head::all(ranked))
    }

    /// Where virtual services of the mesh lead that are written for exactly this host.
    pub fn virtual_service_leads_of(&self, host: &Text) -> Vec<Leads<'w>> {
        self.note(Fact::VirtualServiceLeads(host.clone()));
        let ranked = self.world.virtual_services.get(host);
        ranked.map_or_else(Vec::new, |ranked| Leads::all(ranked))
    }

    /// The exact host is always noted, a wildcard only if it has an entry: that none has is one fact for all hosts.
    fn covering(
        &self,
        index: &'w OrdMap<Text, Ranked>,
        host: &Text,
        fact: fn(Text) -> Fact,
    ) -> Vec<&'w Ranked> {
        let mut out = Vec::new();
        for key in host::candidates(host) {
            let found = index.get(&key);
            if key == *host || found.is_some() {
                self.note(fact(key));
            }
            out.extend(found);
        }
        out
    }

    /// Hosts that have virtual services of the mesh.
    pub fn virtual_service_hosts(&self) -> impl Iterator<Item = &'w Text> {
        self.note(Fact::VirtualServiceHosts);
        self.world.virtual_services.keys()
    }

    /// The heads of virtual services bound to a gateway, `namespace/name`.
    pub fn gateway_virtual_service_heads(&self, gateway: &Text) -> Vec<Head<'w>> {
        self.note(Fact::GatewayVirtualServiceHeads(gateway.clone()));
        let ranked = self.world.gateway_virtual_services.get(gateway);
        ranked.map_or_else(Vec::new, |ranked| Head::all(ranked))
    }

    /// One VirtualService.
    pub fn virtual_service(
        &self,
        key: &ObjectKey,
    ) -> Option<(&'w Arc<Object>, &'w VirtualService)> {
        self.note(Fact::VirtualService(key.clone()));
        let object = self.world.snapshot.get(key)?;
        Some((object, object.get::<VirtualService>()?))
    }

    /// A VirtualService without hosts, to which others delegate.
    pub fn delegate(&self, name: &str, namespace: &str) -> Option<&'w Arc<Object>> {
        let key = ObjectKey::new(Kind::VirtualService, namespace, name);
        let (object, service) = self.virtual_service(&key)?;
        service.hosts.is_empty().then_some(object)
    }

    /// All Gateways, oldest first.
    pub fn gateways(&self) -> &'w Ranked {
        self.note(Fact::Gateways);
        &self.world.gateways
    }

    /// Namespaces that have Sidecar objects.
    pub fn sidecar_namespaces(&self) -> &'w Arc<BTreeSet<Text>> {
        self.note(Fact::SidecarNamespaces);
        &self.world.sidecar_namespaces
    }

    /// Sidecar objects of a namespace, oldest first.
    pub fn sidecars(&self, namespace: &str) -> Option<&'w Ranked> {
        self.note(Fact::Sidecars(Text::from(namespace)));
        self.world.sidecars.get(namespace)
    }

    /// A Secret or ConfigMap for a proxy in a cluster: that of its own cluster goes before that of the config cluster.
    pub fn secret(
        &self,
        cluster: &str,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Option<&'w Arc<Object>> {
        let own = self.clusters_of(cluster, kind);
        own.into_iter().find_map(|cluster| {
            let key = ObjectKey::new(kind, namespace, name).of(cluster);
            self.note(Fact::Secret(key.clone()));
            let object = self.world.snapshot.get(&key)?;
            self.uses(&key);
            Some(object)
        })
    }

    /// The Secrets of a namespace that a proxy in a cluster may have, by name. Only which there are: read them through
    /// [`Reader::secret`].
    pub fn secrets(
        &self,
        cluster: &str,
        namespace: &'w str,
    ) -> impl Iterator<Item = &'w Arc<Object>> {
        self.note(Fact::Secrets(Text::from(namespace)));
        let snapshot = &self.world.snapshot;
        let clusters = self.clusters_of(cluster, Kind::Secret);
        clusters
            .into_iter()
            .flat_map(move |c| snapshot.in_namespace_of(Kind::Secret, c, namespace))
    }

    /// The cluster of this name, if it is another than the config cluster and has objects of a kind; then the config cluster.
    fn clusters_of(&self, name: &str, kind: Kind) -> Vec<ClusterId> {
        let mut all = self.world.snapshot.clusters(kind);
        let named = all.find(|cluster| cluster.name().is_some_and(|n| **n == *name));
        named.into_iter().chain([ClusterId::CONFIG]).collect()
    }

    /// PeerAuthentications of a namespace, oldest first.
    pub fn peer_authentications(&self, namespace: &str) -> Option<&'w Ranked> {
        self.note(Fact::PeerAuthentications(Text::from(namespace)));
        self.world.peer_authentications.get(namespace)
    }

    /// The workload at an address, for a proxy that says it is in a cluster: one of that cluster, or any WorkloadEntry. One
    /// that says nothing is taken to be in the config cluster.
    pub fn workload(&self, cluster: &str, address: &str) -> Option<Workload> {
        let address = Text::from(address);
        self.note(Fact::Workload(address.clone()));
        let own = &self.world.settings.cluster;
        let cluster = if cluster.is_empty() { own } else { cluster };
        let mut found = self.world.workloads_at(&address);
        let of_entry = |w: &Workload| w.source.kind == Kind::WorkloadEntry;
        let here = |w: &Workload| **w.source.cluster.name().unwrap_or(own) == *cluster;
        let mut all = found.iter();
        let at = all
            .position(here)
            .or_else(|| found.iter().position(of_entry))?;
        Some(found.swap_remove(at))
    }
}
