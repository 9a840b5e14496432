//! From one world to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use pilotfish_config::{ClusterId, Kind, Object, ObjectKey, Snapshot, Spec, every_second_first};

use crate::declare::ignore;
use crate::index::Ref;
use crate::local_hosts::LocalHosts;
use crate::view::{NETWORK, node_locality, system_namespace};
use crate::world::Update;
use crate::{
    Fact, Service, ServiceEndpoints, ServiceId, Text, World, alias, allocation, discovery, index,
    network, rules,
};

/// What has to be derived again.
#[derive(Default)]
struct Dirty {
    services: BTreeSet<ServiceId>,
    addresses: BTreeSet<Text>,
    /// The gateways between networks: a Service that may be one, or a node by whose ports it is reached.
    gateways: bool,
    everything: bool,
}

/// Derives the next world.
pub(crate) fn derive(old: &World, snapshot: &Snapshot, changed: &[ObjectKey]) -> Update {
    let mut step = Step::take(old, snapshot, changed);
    step.workloads();
    Update {
        world: step.next,
        changed: step.facts.into_iter().collect(),
    }
}

/// The same without finding out which facts changed.
pub(crate) fn begin(old: &World, snapshot: &Snapshot, changed: &[ObjectKey]) -> World {
    Step::take(old, snapshot, changed).next
}

/// A service before and after.
type Change<'a> = (Option<&'a Arc<Service>>, Option<Arc<Service>>);

struct Step<'a> {
    old: &'a World,
    next: World,
    facts: BTreeSet<Fact>,
    dirty: Dirty,
}

/// What the list of services shows of a service.
fn listed(service: &Service) -> impl PartialEq + '_ {
    (
        (
            &service.id,
            &service.name,
            service.created,
            service.registry,
        ),
        (service.resolution, service.mesh_external, &service.ports),
        (
            (&service.addresses, &service.cluster_addresses),
            &service.auto_addresses,
            &service.export_to,
        ),
        (&service.alias_of, &service.external_name),
    )
}

/// The order of services: older first, then by name and namespace.
pub(crate) fn order(service: &Service) -> impl Ord + '_ {
    (
        service.created,
        &service.name,
        &service.id.namespace,
        &service.id.host,
    )
}

/// Who is reached on which port under which address of which cluster, as far as workloads can tell.
fn reached(endpoints: Option<&Arc<ServiceEndpoints>>) -> BTreeSet<(&Text, &Text, &Text, u16)> {
    let all = endpoints.into_iter().flat_map(|e| &e.by_port);
    all.flat_map(|(port, list)| {
        list.iter()
            .filter_map(move |e| Some((e.addresses.first()?, &e.cluster, port, e.port)))
    })
    .collect()
}

impl<'a> Step<'a> {
    /// All of the next world, and the facts that changed but for those about workloads.
    fn take(old: &'a World, snapshot: &Snapshot, changed: &[ObjectKey]) -> Self {
        let (counted, changed) = discovery::filter(old, snapshot, changed);
        let changed = &*changed;
        let mut step = Step {
            old,
            next: World {
                snapshot: counted,
                mesh: snapshot.mesh.clone(),
                networks: snapshot.networks.clone(),
                ..old.clone()
            },
            facts: BTreeSet::new(),
            dirty: Dirty::default(),
        };
        step.mesh();
        step.indices(changed);
        // Where there was nothing, everything is new: nobody has to be asked what he feeds.
        let first = old.snapshot.objects.is_empty();
        step.dirty.everything |= first;
        step.dirty.gateways |= first;
        for key in changed {
            if !first || matches!(key.kind, Kind::Secret | Kind::ConfigMap) {
                step.feed(key);
            }
        }
        step.trust_domains();
        step.services();
        rules::replace(old, &mut step.next, changed, &mut step.facts);
        step
    }

    fn mesh(&mut self) {
        let same = |same_pointer: bool, equal: &dyn Fn() -> bool| same_pointer || equal();
        let (old, next) = (self.old, &self.next);
        let mesh = same(Arc::ptr_eq(&old.mesh, &next.mesh), &|| {
            old.mesh == next.mesh
        });
        let networks = same(Arc::ptr_eq(&old.networks, &next.networks), &|| {
            old.networks == next.networks
        });
        if !mesh {
            let local = LocalHosts::of(&next.mesh, &next.settings.domain);
            self.next.local_hosts = Arc::new(local);
        }
        if !mesh || !networks {
            self.facts.insert(Fact::Mesh);
            self.dirty.everything = true;
        }
    }

    fn before(&self, key: &ObjectKey) -> Option<&'a Arc<Object>> {
        self.old.snapshot.get(key)
    }

    fn after(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.next.snapshot.get(key).cloned()
    }

    /// Brings the indices up to date; what moved there is dirty.
    fn indices(&mut self, changed: &[ObjectKey]) {
        let settings = self.old.settings.clone();
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for key in every_second_first(changed) {
            let (old, new) = (self.before(key), self.after(key));
            let (old, new) = (old.map(|o| &**o), new.as_deref());
            self.next.index.replace(key, old, new, &settings);
        }
        let holders = |object: Option<&Object>| {
            object
                .map(|o| allocation::holders(o, &index::declared(o, &settings), &settings))
                .unwrap_or_default()
        };
        for key in changed.iter().filter(|key| key.kind == Kind::ServiceEntry) {
            let (old, new) = (self.before(key), self.after(key));
            let (old, new) = (holders(old.map(|o| &**o)), holders(new.as_deref()));
            gone.extend(old.difference(&new).cloned());
            come.extend(new.difference(&old).cloned());
        }
        for holder in self.next.slots.change(&gone, &come) {
            if let allocation::Holder::Host(namespace, _, host) = holder {
                self.dirty.services.insert(ServiceId { host, namespace });
            }
        }
        for key in changed.iter().filter(|key| key.kind == Kind::Service) {
            let id = index::kube_id(&key.namespace, &key.name, &settings);
            let view = self.next.view();
            let first = view.declarers(&id).into_iter().next();
            let target = first.and_then(alias::external_name);
            self.next.aliases.replace(&id, target);
        }
    }

    /// Marks what an object feeds.
    fn feed(&mut self, key: &ObjectKey) {
        let settings = self.old.settings.clone();
        let versions: Vec<Arc<Object>> = self
            .before(key)
            .cloned()
            .into_iter()
            .chain(self.after(key))
            .collect();
        match key.kind {
            Kind::Service | Kind::ServiceEntry => {
                for object in &versions {
                    for id in index::declared(object, &settings) {
                        self.elsewhere(key, &id);
                        self.declared(id);
                    }
                    self.selected(object);
                    self.dirty.gateways |= network::may_be_gateway(object);
                }
            }
            Kind::EndpointSlice | Kind::Endpoints => {
                for service in versions.iter().filter_map(|o| index::fed(o)) {
                    let id = index::kube_id(&key.namespace, &service, &settings);
                    self.dirty.services.insert(id);
                }
            }
            Kind::Pod | Kind::WorkloadEntry => {
                for object in &versions {
                    self.workload(object);
                }
            }
            Kind::Node => {
                self.dirty.gateways = true;
                let localities: Vec<_> = versions.iter().map(|node| node_locality(node)).collect();
                if versions.len() == 2 && localities[0] == localities[1] {
                    return;
                }
                for object in self.pods(key.cluster) {
                    if matches!(&object.spec, Spec::Pod(pod) if *pod.node_name == *key.name) {
                        self.workload(&object);
                    }
                }
            }
            Kind::Namespace => {
                let networks: BTreeSet<_> = [self.before(key).cloned(), self.after(key)]
                    .into_iter()
                    .map(|object| object.and_then(|o| o.meta.labels.get(NETWORK).cloned()))
                    .collect();
                if &*key.name == system_namespace(&self.next.snapshot) && networks.len() > 1 {
                    self.whole_cluster(key.cluster);
                }
                let in_namespace =
                    [Kind::Service, Kind::ServiceEntry]
                        .into_iter()
                        .flat_map(|kind| {
                            let snapshot = &self.next.snapshot;
                            snapshot.in_namespace_of(kind, key.cluster, &key.name)
                        });
                let ids: Vec<ServiceId> = in_namespace
                    .flat_map(|object| index::declared(object, &settings))
                    .collect();
                self.dirty.services.extend(ids);
            }
            Kind::Secret | Kind::ConfigMap => {
                if key.kind == Kind::Secret && versions.len() != 2 {
                    self.facts.insert(Fact::Secrets(key.namespace.clone()));
                }
                self.facts.insert(Fact::Secret(key.clone()));
            }
            _ => {}
        }
    }

    /// Marks what runs in clusters whose trust domain is another one.
    fn trust_domains(&mut self) {
        let (old, next) = (
            self.old.snapshot.trust_domains.clone(),
            self.next.snapshot.trust_domains.clone(),
        );
        if Arc::ptr_eq(&old, &next) {
            return;
        }
        let clusters: BTreeSet<ClusterId> = old.keys().chain(next.keys()).copied().collect();
        for cluster in clusters {
            if old.get(&cluster) != next.get(&cluster) {
                self.whole_cluster(cluster);
            }
        }
    }

    fn pods(&self, cluster: ClusterId) -> Vec<Arc<Object>> {
        let pods = self.next.snapshot.in_cluster(Kind::Pod, cluster);
        pods.cloned().collect()
    }

    /// Marks everything in a cluster; for ServiceEntries, that is the config cluster.
    fn whole_cluster(&mut self, cluster: ClusterId) {
        if cluster.is_config() {
            self.dirty.everything = true;
            return;
        }
        let entries = self.next.snapshot.in_cluster(Kind::WorkloadEntry, cluster);
        let entries: Vec<Arc<Object>> = entries.cloned().collect();
        for object in self.pods(cluster).iter().chain(&entries) {
            self.workload(object);
        }
        let services = self.next.snapshot.in_cluster(Kind::Service, cluster);
        let ids = services.flat_map(|object| index::declared(object, &self.next.settings));
        self.dirty.services.extend(ids.collect::<Vec<_>>());
    }

    /// Marks the workloads that Services of other clusters select which are one with this one: they serve what it says.
    fn elsewhere(&mut self, key: &ObjectKey, id: &ServiceId) {
        let declarers = self.next.index.declarers(id);
        let others = declarers.filter(|other| other.cluster != key.cluster);
        let others: Vec<Arc<Object>> = others.filter_map(|other| self.after(other)).collect();
        for object in others {
            self.selected(&object);
        }
    }

    fn declared(&mut self, id: ServiceId) {
        for world in [self.old, &self.next] {
            world
                .aliases
                .around(&id.host, &self.next.index, &mut self.dirty.services);
        }
        self.dirty.services.insert(id);
    }

    /// Marks the workloads that a Service or ServiceEntry selects.
    fn selected(&mut self, object: &Object) {
        let Some(selector) = index::selector(object) else {
            return;
        };
        let found = self.next.view().selected(
            &object.key.namespace,
            selector,
            &[Kind::Pod, Kind::WorkloadEntry],
        );
        let addresses: Vec<Text> = found
            .into_iter()
            .flat_map(|o| index::addresses(o))
            .collect();
        self.dirty.addresses.extend(addresses);
    }

    /// Marks what a Pod or WorkloadEntry is, and the services that have or had it behind them.
    fn workload(&mut self, object: &Object) {
        let key = &object.key;
        let addresses = index::addresses(object);
        let refs = addresses
            .iter()
            .map(|a| Ref::Address(key.namespace.clone(), a.clone()))
            .chain([Ref::Pod(key.namespace.clone(), key.name.clone())]);
        for reference in refs {
            self.dirty
                .services
                .extend(self.next.index.referring(&reference).cloned());
        }
        let labels = index::labels(object);
        let is_pod = key.kind == Kind::Pod;
        for key in self.next.index.selecting(&key.namespace, &labels) {
            // Pods reach a Kubernetes service through its slices only.
            if is_pod && key.kind == Kind::Service {
                continue;
            }
            if let Some(object) = self.next.snapshot.get(key) {
                let ids = index::declared(object, &self.next.settings);
                self.dirty.services.extend(ids);
            }
        }
        self.dirty.addresses.extend(addresses);
    }

    fn services(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty.services);
        if self.dirty.everything {
            dirty.extend(self.next.index.all_declared().cloned());
            dirty.extend(self.old.services.keys().cloned());
        }
        let mut changes: Vec<Change<'a>> = Vec::new();
        let dirty: Vec<ServiceId> = dirty.into_iter().collect();
        for id in every_second_first(&dirty).cloned() {
            let view = self.next.view();
            let service = view.service(&id, &mut ignore);
            let population = service
                .as_ref()
                .map(|service| view.population(service, None))
                .unwrap_or_default();

            let old = self.old.services.get(&id);
            let service_changed = old.map(|o| &**o) != service.as_ref();
            let endpoints = put(
                &mut self.next.endpoints,
                &id,
                Some(population.endpoints).filter(|e| !e.by_port.is_empty()),
            );
            if endpoints {
                self.facts.insert(Fact::Endpoints(id.clone()));
            }
            let identities = Some(population.identities).filter(|i| !i.is_empty());
            if put(&mut self.next.identities, &id, identities) {
                self.facts.insert(Fact::Identities(id.clone()));
            }
            let (before, after) = (self.old.endpoints.get(&id), self.next.endpoints.get(&id));
            let both = (before.map(|e| &**e), after.map(|e| &**e));
            self.next.index.refer(&id, both, &population.refs);
            if (service_changed || endpoints) && !self.dirty.everything {
                let (old, new) = (self.old.endpoints.get(&id), self.next.endpoints.get(&id));
                let (old, new) = (reached(old), reached(new));
                // Where both registries have a part, who says it matters as well.
                let declarers = self.next.index.declarers(&id);
                let mixed = declarers.map(|key| key.kind).collect::<BTreeSet<_>>().len() > 1;
                let touched: Vec<Text> = if service_changed || mixed {
                    old.union(&new).map(|r| r.0.clone()).collect()
                } else {
                    old.symmetric_difference(&new)
                        .map(|r| r.0.clone())
                        .collect()
                };
                self.dirty.addresses.extend(touched);
            }
            if service_changed {
                self.facts.insert(Fact::Service(id.clone()));
                let new = service.map(Arc::new);
                match &new {
                    Some(new) => self.next.services.insert(id, new.clone()),
                    None => self.next.services.remove(&id),
                };
                changes.push((old, new));
            }
        }
        if !changes.is_empty() {
            self.lists(&changes);
        }
        if self.dirty.gateways || self.facts.contains(&Fact::Mesh) {
            let gateways = network::gateways(&self.next);
            if *self.next.network_gateways != gateways {
                self.next.network_gateways = Arc::new(gateways);
                self.facts.insert(Fact::NetworkGateways);
            }
        }
    }

    /// Brings the lists of services up to date with those that joined, left or changed.
    fn lists(&mut self, changes: &[Change<'a>]) {
        let mut ports: BTreeSet<u16> = BTreeSet::new();
        let mut hosts: BTreeSet<&Text> = BTreeSet::new();
        let mut namespaces: BTreeSet<&Text> = BTreeSet::new();
        let mut ports_in: BTreeSet<(&Text, u16)> = BTreeSet::new();
        let mut gone: BTreeSet<&ServiceId> = BTreeSet::new();
        let mut come: Vec<&Arc<Service>> = Vec::new();
        let mut moved = false;
        for (old, new) in changes {
            gone.extend(old.map(|old| &old.id));
            come.extend(new);
            let both = old.iter().copied().chain(new);
            namespaces.extend(both.map(|service| &service.id.namespace));
            if old.map(|o| listed(o)) == new.as_deref().map(listed) {
                continue;
            }
            moved = true;
            for service in old.iter().copied().chain(new) {
                let namespace = service.id.namespace.clone();
                self.facts.insert(Fact::ServicesIn(namespace));
                hosts.insert(&service.id.host);
                for port in &service.ports {
                    ports.insert(port.number);
                    ports_in.insert((&service.id.namespace, port.number));
                }
            }
        }
        come.sort_by(|a, b| order(a).cmp(&order(b)));
        let mut fresh: BTreeMap<&Text, Vec<&Arc<Service>>> = BTreeMap::new();
        for service in &come {
            let namespace = fresh.entry(&service.id.namespace);
            namespace.or_default().push(service);
        }
        for namespace in namespaces {
            let lists = &mut self.next.by_namespace;
            let old = lists.get(namespace).cloned().unwrap_or_default();
            let kept = old.iter().filter(|service| !gone.contains(&service.id));
            let come = fresh.get(namespace).into_iter().flatten().copied();
            let list = merged(kept, come, |a, b| order(a) < order(b));
            if list.is_empty() {
                lists.remove(namespace);
            } else {
                lists.insert(namespace.clone(), Arc::new(list));
            }
        }
        if moved {
            let kept = self
                .next
                .ordered
                .iter()
                .filter(|service| !gone.contains(&service.id));
            self.next.ordered = Arc::new(merged(kept, come.iter().copied(), |a, b| {
                order(a) < order(b)
            }));
        } else {
            let mut ordered = self.next.ordered.to_vec();
            for service in come {
                if let Ok(at) = ordered.binary_search_by(|other| order(other).cmp(&order(service)))
                {
                    ordered[at] = service.clone();
                }
            }
            self.next.ordered = Arc::new(ordered);
            return;
        }
        self.facts.insert(Fact::Services);
        let services = &self.next.services;
        let before = |a: &ServiceId, b: &ServiceId| match (services.get(a), services.get(b)) {
            (Some(a), Some(b)) => order(a) < order(b),
            _ => false,
        };
        for number in ports {
            let old = self.next.by_port.get(&number).cloned().unwrap_or_default();
            let kept = old.iter().filter(|id| !gone.contains(id));
            let fresh = come
                .iter()
                .filter(|service| service.takes(number))
                .map(|service| &service.id);
            let list = Some(merged(kept, fresh, before)).filter(|list| !list.is_empty());
            if put(&mut self.next.by_port, &number, list) {
                self.facts.insert(Fact::Port(number));
            }
        }
        for (namespace, number) in ports_in {
            let key = (namespace.clone(), number);
            let lists = &mut self.next.by_port_in;
            let old = lists.get(&key).cloned().unwrap_or_default();
            let kept = old.iter().filter(|id| !gone.contains(id));
            let come = fresh.get(namespace).into_iter().flatten();
            let come = come.filter(|s| s.takes(number)).map(|s| &s.id);
            let list = Some(merged(kept, come, before)).filter(|list| !list.is_empty());
            if put(lists, &key, list) {
                self.facts.insert(Fact::PortIn(key.0, number));
            }
        }
        for host in hosts {
            let first = ServiceId {
                host: host.clone(),
                namespace: Text::default(),
            };
            let range = self.next.services.range(first..);
            let mut list: Vec<&Arc<Service>> = range
                .map(|(_, service)| service)
                .take_while(|service| service.id.host == *host)
                .collect();
            list.sort_by(|a, b| order(a).cmp(&order(b)));
            let list: Vec<ServiceId> = list.into_iter().map(|service| service.id.clone()).collect();
            if put(
                &mut self.next.by_host,
                host,
                Some(list).filter(|list| !list.is_empty()),
            ) {
                self.facts.insert(Fact::Host(host.clone()));
            }
        }
    }

    fn workloads(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty.addresses);
        if self.dirty.everything {
            dirty = self.next.addresses();
            dirty.extend(self.old.addresses());
        } else {
            let view = self.next.view();
            let objects = dirty.iter().flat_map(|address| view.at(address));
            let others: Vec<Text> = objects.flat_map(|o| index::addresses(o)).collect();
            dirty.extend(others);
        }
        for address in dirty {
            if self.next.differs_at(&address, self.old) {
                self.facts.insert(Fact::Workload(address));
            }
        }
    }
}

/// Two sorted lists as one. The second is expected to be short: its members are placed by bisection.
fn merged<'a, T: Clone + 'a>(
    long: impl Iterator<Item = &'a T>,
    short: impl Iterator<Item = &'a T>,
    before: impl Fn(&T, &T) -> bool,
) -> Vec<T> {
    let long: Vec<&T> = long.collect();
    let mut out = Vec::with_capacity(long.len() + 8);
    let mut at = 0;
    for item in short {
        let end = at + long[at..].partition_point(|other| before(other, item));
        out.extend(long[at..end].iter().copied().cloned());
        out.push(item.clone());
        at = end;
    }
    out.extend(long[at..].iter().copied().cloned());
    out
}

/// Puts a value unless an equal one is there; whether it did.
fn put<K: Ord + Clone, V: PartialEq>(
    map: &mut OrdMap<K, Arc<V>>,
    key: &K,
    value: Option<V>,
) -> bool {
    if map.get(key).map(|v| &**v) == value.as_ref() {
        return false;
    }
    match value {
        Some(value) => map.insert(key.clone(), Arc::new(value)),
        None => map.remove(key),
    };
    true
}

#[cfg(test)]
mod tests;
