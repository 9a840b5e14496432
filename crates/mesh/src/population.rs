//! The endpoints of a service: from EndpointSlices, ServiceEntries and WorkloadEntries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use pilotfish_config::core::{IntOrString, Pod, Protocol as Transport, Service as KubeService};
use pilotfish_config::networking::{ServiceEntry, ServicePort, WorkloadEntry};
use pilotfish_config::{ClusterId, Kind, Object, ObjectKey};

use crate::declare::{entry_addresses, port_number};
use crate::endpoint::Alike;
use crate::index::{self, Ref};
use crate::view::{self, TLS_MODE, View};
use crate::{
    Backend, Endpoint, EndpointHealth, Labels, Locality, Registry, Resolution, Service,
    ServiceEndpoints, Text,
};

const UNIX: &str = "unix://";

/// What a service has behind it.
#[derive(Debug, Default)]
pub(crate) struct Population {
    /// Its endpoints.
    pub(crate) endpoints: ServiceEndpoints,
    /// The identities they run as and those that users say they have, sorted.
    pub(crate) identities: Vec<Text>,
    /// What was looked up on the way beside the addresses of the endpoints: pods by name, and addresses that serve no port of
    /// the service but count as its identities.
    pub(crate) refs: BTreeSet<Ref>,
}

/// Who says which port of the service an endpoint is for.
pub(crate) enum PortKey {
    /// By name, as EndpointSlices do.
    Name(Text),
    /// By number, as ServiceEntries do.
    Number(u16),
}

/// An endpoint and the port it is for.
pub(crate) struct Found {
    pub(crate) port: PortKey,
    pub(crate) endpoint: Endpoint,
}

/// Annotation that says whether the health of a WorkloadEntry is checked.
const HEALTH_CHECKED: &str = "proxy.istio.io/health-checks-enabled";

/// A workload that may serve any port.
struct Candidate {
    backend: Backend,
    ports: BTreeMap<Text, u16>,
    /// Kubernetes services cannot use it: its address is a name or a path.
    by_name: bool,
}

impl Candidate {
    /// Nothing says where it is.
    fn unusable(&self) -> bool {
        self.backend.addresses.is_empty() && self.backend.network.is_empty()
    }
}

/// The port of a Kubernetes service behind its port `number`: a number, or the name that a workload gives it.
pub(crate) enum Target<'a> {
    /// A number, and the name of the service's port.
    Number(u16, &'a str),
    /// A name.
    Name(&'a str),
}

/// Where a port of a Kubernetes service leads.
pub(crate) fn target(port: &pilotfish_config::core::ServicePort) -> Target<'_> {
    match &port.target_port {
        Some(IntOrString::String(name)) => match name.parse::<u16>() {
            Ok(number) if number > 0 => Target::Number(number, &port.name),
            _ => Target::Name(name),
        },
        Some(IntOrString::Int(number)) => {
            let number = u16::try_from(*number).ok().filter(|n| *n > 0);
            Target::Number(number.unwrap_or(port.port), &port.name)
        }
        None => Target::Number(port.port, &port.name),
    }
}

/// The port on which a WorkloadEntry serves a port of a Kubernetes service.
pub(crate) fn entry_target(
    port: &pilotfish_config::core::ServicePort,
    ports: &BTreeMap<Text, u16>,
) -> Option<u16> {
    match target(port) {
        Target::Number(number, name) => Some(ports.get(name).copied().unwrap_or(number)),
        Target::Name(name) => ports.get(name).copied(),
    }
}

fn named_ports(entry: &WorkloadEntry) -> BTreeMap<Text, u16> {
    entry
        .ports
        .iter()
        .filter_map(|(name, number)| Some((Text::from(name.as_str()), port_number(*number)?)))
        .collect()
}

fn pod_ports(pod: &Pod) -> BTreeMap<Text, u16> {
    let mut ports = BTreeMap::new();
    let names = pod
        .containers
        .iter()
        .chain(&pod.init_containers)
        .flat_map(|c| &c.ports);
    for name in names
        .map(|port| port.name.as_str())
        .filter(|name| !name.is_empty())
    {
        if let Some(number) = view::pod_port(pod, name, Transport::Tcp) {
            ports.insert(Text::from(name), number);
        }
    }
    ports
}

impl View<'_> {
    /// Everything behind a service. `only` leaves out what the other registry contributes.
    pub(crate) fn population(&self, service: &Service, only: Option<Registry>) -> Population {
        let mut population = Population::default();
        let mut found: Vec<Found> = Vec::new();
        let declarers = self.declarers(&service.id);
        if only != Some(Registry::Kubernetes) {
            let mut served: BTreeSet<u16> = BTreeSet::new();
            for object in &declarers {
                if let Some(entry) = index::entry(object) {
                    self.of_entry(object, entry, service, &mut served, &mut found);
                }
            }
        }
        if only != Some(Registry::External) {
            let mut of_clusters = declarers;
            of_clusters.sort_by_key(|object| self.cluster_name(object.key.cluster));
            for object in of_clusters {
                if let Some(spec) = index::kube(object) {
                    self.of_slices(object, spec, service, &mut found, &mut population.refs);
                    self.of_selected_entries(object, spec, service, &mut found);
                }
            }
        }
        let mut identities: BTreeSet<Text> = service.subject_alt_names.iter().cloned().collect();
        for Found { port, endpoint } in found {
            if !endpoint.identity.is_empty() {
                identities.insert(endpoint.identity.clone());
            }
            let port = match &port {
                PortKey::Name(name) => service.ports.iter().find(|p| p.name == *name),
                PortKey::Number(number) => service.port(*number),
            };
            if let Some(port) = port {
                let endpoints = population.endpoints.by_port.entry(port.name.clone());
                endpoints.or_insert_with(Vec::new).push(endpoint);
            } else {
                let namespace = &service.id.namespace;
                let addresses = endpoint.addresses.iter();
                let refs = addresses.map(|a| Ref::Address(namespace.clone(), a.clone()));
                population.refs.extend(refs);
            }
        }
        population.identities = self.with_aliases(identities);
        population
    }

    /// The same identities in each of the trust domains the mesh also goes by.
    fn with_aliases(&self, identities: BTreeSet<Text>) -> Vec<Text> {
        let domains = &self.snapshot.mesh.trust_domain_aliases;
        let mut all = identities.clone();
        for identity in identities {
            let Some((_, path)) = identity
                .strip_prefix("spiffe://")
                .and_then(|rest| rest.split_once('/'))
            else {
                continue;
            };
            all.extend(
                domains
                    .iter()
                    .map(|domain| Text::from(format!("spiffe://{domain}/{path}"))),
            );
        }
        all.into_iter().collect()
    }

    /// A WorkloadEntry of a cluster, or an endpoint of a ServiceEntry, by the name it is known by.
    fn candidate(
        &self,
        entry: &WorkloadEntry,
        cluster: ClusterId,
        labels: &Labels,
        namespace: &Text,
        workload: Text,
    ) -> Candidate {
        let address = entry.address.as_str();
        let by_name = !address.is_empty() && address.parse::<IpAddr>().is_err();
        let locality = match entry.locality.as_str() {
            "" => view::label_locality(labels).unwrap_or_default(),
            locality => Locality::parse(locality),
        };
        let network = match entry.network.as_str() {
            "" => self.network(cluster, labels, address),
            network => Text::from(network),
        };
        let cluster = self.cluster_name(cluster);
        let account = entry.service_account.as_str();
        let mutual_tls = match labels.get(TLS_MODE) {
            Some(mode) => &**mode == "istio",
            None => !account.is_empty(),
        };
        Candidate {
            backend: Backend {
                addresses: Some(address)
                    .filter(|a| !a.is_empty())
                    .map(Text::from)
                    .into_iter()
                    .collect(),
                health: EndpointHealth::Unknown,
                labels: view::augment(labels, cluster, &locality, &Text::default(), &network),
                locality,
                network: Text::from(entry.network.as_str()),
                cluster: cluster.clone(),
                weight: entry.weight.max(1),
                mutual_tls,
                workload,
                namespace: namespace.clone(),
                node: Text::default(),
                hostname: Text::default(),
                subdomain: Text::default(),
                identity: match account {
                    "" => Text::default(),
                    // Whichever cluster names it: it is a workload of the mesh, not of that cluster.
                    account => self.identity(ClusterId::CONFIG, namespace, account),
                },
            },
            ports: named_ports(entry),
            by_name,
        }
    }

    /// Whether an object is no WorkloadEntry whose health is checked and not known to be good. Such a one is as if it were
    /// not there.
    pub(crate) fn is_healthy(&self, object: &Object) -> bool {
        let Some(entry) = object.get::<WorkloadEntry>() else {
            return true;
        };
        let checked = object.meta.annotations.get(HEALTH_CHECKED);
        let checked = checked
            .is_some_and(|value| matches!(&**value, "1" | "t" | "T" | "true" | "True" | "TRUE"));
        entry.status_healthy == Some(true)
            || !checked
            || !self
                .settings
                .on("PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS", true)
    }

    fn entry_candidate(&self, object: &Object, entry: &WorkloadEntry) -> Candidate {
        let workload = object
            .meta
            .annotations
            .get("istio.io/autoRegistrationGroup")
            .or_else(|| object.meta.labels.get("service.istio.io/workload-name"))
            .unwrap_or(&object.key.name);
        let labels = index::entry_labels(object, entry);
        let ObjectKey {
            cluster, namespace, ..
        } = &object.key;
        self.candidate(entry, *cluster, &labels, namespace, workload.clone())
    }

    /// Labels of a Pod or WorkloadEntry with those of its place.
    pub(crate) fn workload_facts(
        &self,
        object: &Object,
    ) -> Option<(Arc<Labels>, Locality, BTreeMap<Text, u16>)> {
        let candidate = if let Some(pod) = object.get::<Pod>() {
            let address = pod.ips().next().cloned().unwrap_or_default();
            let backend = self.pod_backend(object, pod, address);
            return Some((backend.labels, backend.locality, BTreeMap::new()));
        } else {
            self.entry_candidate(object, object.get::<WorkloadEntry>()?)
        };
        let Candidate { backend, ports, .. } = candidate;
        Some((backend.labels, backend.locality, ports))
    }

    fn of_selected_entries(
        &self,
        object: &Object,
        spec: &KubeService,
        service: &Service,
        found: &mut Vec<Found>,
    ) {
        let wanted = self
            .settings
            .on("PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", true);
        if !wanted || service.resolution != Resolution::ClientSide || spec.selector.is_empty() {
            return;
        }
        let ObjectKey {
            cluster, namespace, ..
        } = &object.key;
        let mut alike = Alike::default();
        let selected = self.selected(namespace, &spec.selector, &[Kind::WorkloadEntry]);
        // A Service means the workloads of its own cluster.
        for object in selected.into_iter().filter(|o| o.key.cluster == *cluster) {
            let Some(entry) = object.get::<WorkloadEntry>() else {
                continue;
            };
            let candidate = self.entry_candidate(object, entry);
            if !self.is_healthy(object)
                || candidate.unusable()
                || candidate.by_name
                || !index::selects(&spec.selector, &candidate.backend.labels)
            {
                continue;
            }
            let backend = alike.next(candidate.backend);
            for port in &spec.ports {
                let Some(target) = entry_target(port, &candidate.ports) else {
                    continue;
                };
                found.push(Found {
                    port: PortKey::Name(Text::from(port.name.as_str())),
                    endpoint: Endpoint::new(backend.clone(), target),
                });
            }
        }
    }

    fn of_entry(
        &self,
        object: &Object,
        entry: &ServiceEntry,
        service: &Service,
        served: &mut BTreeSet<u16>,
        found: &mut Vec<Found>,
    ) {
        use pilotfish_config::networking::Resolution as Wanted;
        let dns = matches!(entry.resolution, Wanted::Dns | Wanted::DnsRoundRobin);
        let one_per_port = entry.resolution == Wanted::DnsRoundRobin;
        let candidates = self.candidates(object, entry, service, dns).into_iter();
        let mut alike = Alike::default();
        let usable = candidates.filter(|candidate| !candidate.unusable());
        let usable: Vec<(Arc<Backend>, BTreeMap<Text, u16>)> = usable
            .map(|candidate| (alike.next(candidate.backend), candidate.ports))
            .collect();
        // Each address of a ServiceEntry counts as a service of its own, with all the endpoints.
        let times = entry_addresses(entry).len().max(1);
        for (backend, ports) in std::iter::repeat_n(&usable, times).flatten() {
            for port in &entry.ports {
                let Some(number) = port_number(port.number) else {
                    continue;
                };
                if !served.insert(number) && one_per_port {
                    continue;
                }
                found.push(Found {
                    port: PortKey::Number(number),
                    endpoint: serving(backend, ports, port, number),
                });
            }
        }
    }

    fn candidates(
        &self,
        object: &Object,
        entry: &ServiceEntry,
        service: &Service,
        dns: bool,
    ) -> Vec<Candidate> {
        let namespace = &object.key.namespace;
        let name = &object.key.name;
        if let Some(selector) = &entry.workload_selector {
            return self.chosen(namespace, &selector.labels, dns);
        }
        if entry.endpoints.is_empty() {
            if !dns {
                return Vec::new();
            }
            let own = WorkloadEntry {
                address: service.id.host.to_string(),
                ..WorkloadEntry::default()
            };
            let (here, none) = (ClusterId::CONFIG, Labels::new());
            let mut candidate = self.candidate(&own, here, &none, namespace, name.clone());
            candidate.backend.labels = Arc::default();
            return vec![candidate];
        }
        let inline = entry.endpoints.iter().enumerate().map(|(i, endpoint)| {
            let workload = Text::from(format!("{name}-{i}"));
            let (here, labels) = (ClusterId::CONFIG, &endpoint.labels);
            self.candidate(endpoint, here, labels, namespace, workload)
        });
        inline.collect()
    }

    /// Pods and WorkloadEntries that the selector of a ServiceEntry chooses.
    fn chosen(&self, namespace: &Text, selector: &Labels, dns: bool) -> Vec<Candidate> {
        let mut chosen = Vec::new();
        let kinds: &[Kind] = if self
            .settings
            .on("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", true)
        {
            &[Kind::Pod, Kind::WorkloadEntry]
        } else {
            &[Kind::WorkloadEntry]
        };
        for object in self.selected(namespace, selector, kinds) {
            if !self.is_healthy(object) {
                continue;
            }
            let candidate = if let Some(entry) = object.get::<WorkloadEntry>() {
                self.entry_candidate(object, entry)
            } else if let Some(pod) = object.get::<Pod>().filter(|pod| view::in_service(pod)) {
                let mut ips = pod.ips().cloned();
                let first = ips.next().unwrap_or_default();
                let mut backend = self.pod_backend(object, pod, first);
                if self.settings.dual_stack {
                    backend.addresses.extend(ips);
                }
                Candidate {
                    backend,
                    ports: pod_ports(pod),
                    by_name: false,
                }
            } else {
                continue;
            };
            // What another cluster knows by a name only, nobody here can resolve.
            let nameable = dns && object.key.cluster.is_config();
            if index::selects(selector, &candidate.backend.labels)
                && (nameable || !candidate.by_name)
            {
                chosen.push(candidate);
            }
        }
        chosen
    }
}

/// A workload serving one port of a ServiceEntry.
fn serving(
    backend: &Arc<Backend>,
    ports: &BTreeMap<Text, u16>,
    port: &ServicePort,
    number: u16,
) -> Endpoint {
    let target = if backend.addresses.iter().any(|a| a.starts_with(UNIX)) {
        0
    } else {
        ports
            .get(port.name.as_str())
            .copied()
            .or_else(|| port_number(port.target_port))
            .unwrap_or(number)
    };
    Endpoint::new(backend.clone(), target)
}
