//! Workloads: what runs behind an address, and which services it serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::core::{Pod, Service as KubeService};
use pilotfish_config::{ClusterId, Kind, Object, ObjectKey};

use crate::declare::ignore;
use crate::index::{self, Ref};
use crate::population::{Target, entry_target, target};
use crate::view::{in_service, pod_port};
use crate::{
    Labels, Locality, Port, Protocol, Registry, Resolution, Service, ServiceEndpoints, ServiceId,
    Text, World,
};

/// A service port that a workload serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// The service.
    pub service: ServiceId,
    /// Port of the service, as the workload's own cluster has it.
    pub port: Port,
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
    /// Labels, with those of its place (region, zone, subzone, cluster, network, node).
    pub labels: Arc<Labels>,
    /// Place.
    pub locality: Locality,
    /// Services it serves, each port once, in order of the services' age and host, then of their ports.
    pub instances: Vec<Instance>,
}

/// Ports of a service whose endpoints have an address, with the port listened on. Only those of a cluster, if one is given.
fn ports_at(
    service: &Service,
    endpoints: &ServiceEndpoints,
    address: &str,
    cluster: Option<&Text>,
) -> Vec<Instance> {
    let mut found = Vec::new();
    for port in &service.ports {
        let list = endpoints.by_port.get(&port.name).into_iter().flatten();
        let here = list.filter(|e| cluster.is_none_or(|cluster| e.cluster == *cluster));
        for endpoint in here.filter(|e| e.addresses.first().is_some_and(|a| &**a == address)) {
            found.push(Instance {
                service: service.id.clone(),
                port: port.clone(),
                target: endpoint.port,
            });
        }
    }
    found
}

impl World {
    /// What runs at an address, by cluster. Nobody keeps these: a proxy asks for one when it connects, and what a change does
    /// to them is found by comparing two worlds where it can matter.
    pub(crate) fn workloads_at(&self, address: &Text) -> Vec<Workload> {
        let running = self.running_at(address).into_iter();
        running.filter_map(|object| self.workload(object)).collect()
    }

    /// Whether what runs at an address is not what ran there in another world.
    pub(crate) fn differs_at(&self, address: &Text, other: &Self) -> bool {
        let (here, there) = (self.running_at(address), other.running_at(address));
        here.len() != there.len()
            || !here.is_empty() && self.workloads_at(address) != other.workloads_at(address)
    }

    /// Workloads that may serve several services.
    pub fn shared_workloads(&self) -> impl Iterator<Item = Workload> {
        let addresses = self.addresses().into_iter();
        let running = addresses.flat_map(|address| self.running_at(&address));
        running
            .filter(|object| self.services_of(object).len() > 1)
            .filter_map(|object| self.workload(object))
    }

    /// All addresses that somebody has.
    pub(crate) fn addresses(&self) -> BTreeSet<Text> {
        let kinds = [Kind::Pod, Kind::WorkloadEntry].into_iter();
        let objects = kinds.flat_map(|kind| self.snapshot.list(kind));
        objects
            .flat_map(|object| index::addresses(object))
            .collect()
    }

    /// Services that select a workload or have it as an endpoint, and some more.
    fn services_of(&self, object: &Object) -> BTreeSet<ServiceId> {
        let namespace = &object.key.namespace;
        let labels = index::labels(object);
        let selecting = self.index.selecting(namespace, &labels);
        let mut ids: BTreeSet<ServiceId> = selecting
            .filter_map(|key| self.snapshot.get(key))
            .flat_map(|object| index::declared(object, &self.settings))
            .collect();
        for address in index::addresses(object) {
            let reference = Ref::Address(namespace.clone(), address);
            ids.extend(self.index.referring(&reference).cloned());
        }
        ids
    }

    /// The object behind an address of each cluster; of several, WorkloadEntries first, then pods in service, then the oldest.
    fn running_at(&self, address: &Text) -> Vec<&Arc<Object>> {
        let view = self.view();
        let objects = view.at(address);
        let mut objects: Vec<_> = objects.filter(|object| view.is_healthy(object)).collect();
        objects.sort_by_cached_key(|object| {
            let pod = object.get::<Pod>();
            (
                object.key.cluster,
                pod.is_some(),
                !pod.is_some_and(in_service),
                object.meta.created.unwrap_or(0),
                object.key.clone(),
            )
        });
        objects.dedup_by_key(|object| object.key.cluster);
        objects
    }

    fn workload(&self, object: &Object) -> Option<Workload> {
        let cluster = object.key.cluster;
        let (labels, locality, ports) = self.view().workload_facts(object)?;
        let selecting: BTreeSet<&ObjectKey> = self
            .index
            .selecting(&object.key.namespace, &labels)
            .filter(|key| key.kind == Kind::Service && key.cluster == cluster)
            .collect();
        let selectable = match object.get::<Pod>() {
            Some(_) => &object.meta.labels,
            None => &*labels,
        };
        let mut instances = Vec::new();
        let mut ages: BTreeMap<ServiceId, i64> = BTreeMap::new();
        let mut selected = false;
        for key in selecting {
            let declared = self.snapshot.get(key);
            let Some((declared, spec)) = declared.and_then(|o| Some((o, index::kube(o)?))) else {
                continue;
            };
            if spec.selector.is_empty() || !index::selects(&spec.selector, selectable) {
                continue;
            }
            let id = index::kube_id(&key.namespace, &key.name, &self.settings);
            let Some(service) = self.services.get(&id) else {
                continue;
            };
            selected = true;
            // Clients know the service by what one of the clusters says; who serves it, by what its own one does.
            let own;
            let service = if service.source == *key {
                service
            } else {
                own = self.view().kubernetes(declared, spec, &id, &mut ignore);
                ages.insert(id.clone(), own.created);
                &own
            };
            match object.get::<Pod>() {
                Some(pod) => pod_instances(service, spec, pod, &mut instances),
                None if service.resolution == Resolution::ClientSide => {
                    for port in spec.ports.iter().filter(|port| port.port > 0) {
                        let known = service.port(port.port);
                        let known = known.filter(|p| p.protocol != Protocol::Udp);
                        if let (Some(known), Some(target)) = (known, entry_target(port, &ports)) {
                            instances.push(Instance {
                                service: id.clone(),
                                port: known.clone(),
                                target,
                            });
                        }
                    }
                }
                None => {}
            }
        }
        self.endpoint_instances(object, !selected, &mut instances);
        let age = |instance: &Instance| {
            let id = &instance.service;
            let joined = || self.services.get(id).map_or(0, |s| s.created);
            let created = ages.get(id).copied().unwrap_or_else(joined);
            (created, id.host.clone())
        };
        instances.sort_by_cached_key(age);
        let mut seen = BTreeSet::new();
        instances.retain(|instance| seen.insert(instance.clone()));
        Some(Workload {
            source: object.key.clone(),
            addresses: index::addresses(object),
            labels,
            locality,
            instances,
        })
    }

    /// Services of the workload's namespace that have it as an endpoint: those of ServiceEntries, and those of Kubernetes
    /// that no selector ties to it.
    fn endpoint_instances(&self, object: &Object, kubernetes: bool, instances: &mut Vec<Instance>) {
        let namespace = &object.key.namespace;
        let addresses = index::addresses(object);
        let by_address = addresses
            .iter()
            .map(|a| Ref::Address(namespace.clone(), a.clone()));
        let ids: BTreeSet<&ServiceId> = by_address
            .flat_map(|reference| self.index.referring(&reference).collect::<Vec<_>>())
            .filter(|id| id.namespace == *namespace)
            .collect();
        for id in ids {
            let Some(service) = self.services.get(id) else {
                continue;
            };
            for registry in [Registry::Kubernetes, Registry::External] {
                let wanted = match registry {
                    Registry::Kubernetes if kubernetes && object.kind() == Kind::Pod => {
                        &addresses[..addresses.len().min(1)]
                    }
                    Registry::Kubernetes => &[],
                    Registry::External => &addresses[..],
                };
                for address in wanted {
                    let cluster = object.key.cluster;
                    instances.extend(self.ports_of(service, registry, address, cluster));
                }
            }
        }
    }

    fn ports_of(
        &self,
        service: &Service,
        registry: Registry,
        address: &Text,
        cluster: ClusterId,
    ) -> Vec<Instance> {
        let declared_by = |wanted: Registry| {
            self.index
                .declarers(&service.id)
                .any(|key| (key.kind == Kind::Service) == (wanted == Registry::Kubernetes))
        };
        if !declared_by(registry) {
            return Vec::new();
        }
        let view = self.view();
        // A ServiceEntry means an address, whoever has it; a Service the pod of its own cluster.
        let cluster = (registry == Registry::Kubernetes).then(|| view.cluster_name(cluster));
        let other = match registry {
            Registry::Kubernetes => Registry::External,
            Registry::External => Registry::Kubernetes,
        };
        if declared_by(other) {
            let population = view.population(service, Some(registry));
            return ports_at(service, &population.endpoints, address, cluster);
        }
        let endpoints = self.endpoints.get(&service.id);
        endpoints.map_or_else(Vec::new, |e| ports_at(service, e, address, cluster))
    }
}

/// Ports of a Kubernetes service that a pod serves; of several that lead to one port of the pod, the first.
fn pod_instances(service: &Service, spec: &KubeService, pod: &Pod, instances: &mut Vec<Instance>) {
    let mut seen = BTreeSet::new();
    for port in spec.ports.iter().filter(|port| port.port > 0) {
        let Some(protocol) = service
            .ports
            .iter()
            .find(|p| *p.name == *port.name)
            .map(|p| p.protocol)
        else {
            continue;
        };
        let target = match target(port) {
            Target::Number(number, _) => Some(number),
            Target::Name(name) => pod_port(pod, name, port.protocol),
        };
        let Some(target) = target.filter(|target| seen.insert((*target, protocol))) else {
            continue;
        };
        if let Some(port) = service.port(port.port) {
            instances.push(Instance {
                service: service.id.clone(),
                port: port.clone(),
                target,
            });
        }
    }
}
