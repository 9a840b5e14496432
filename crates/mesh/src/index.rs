//! Who is named by whom: what an object can be found by, so that a change finds what it feeds.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use pilotfish_config::core::{EndpointSlice, Pod, PodPhase, Service as KubeService};
use pilotfish_config::networking::{ServiceEntry, WorkloadEntry};
use pilotfish_config::{Object, ObjectKey, Spec};
use smallvec::{SmallVec, smallvec};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Labels, ServiceEndpoints, ServiceId, Settings, Text};

/// Label of an EndpointSlice that names its service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Several values by key.
#[derive(Clone, Debug)]
pub(crate) struct Multi<K: Ord + Clone, V: Ord + Clone>(OrdMap<K, Values<V>>);

/// A set takes kilobytes however few it holds, and there are nearly always few.
#[derive(Clone, Debug)]
pub(crate) enum Values<V: Ord + Clone> {
    /// At most [`FEW`], sorted.
    Few(SmallVec<[V; 1]>),
    Many(OrdSet<V>),
}

const FEW: usize = 8;

impl<V: Ord + Clone> Values<V> {
    fn iter(&self) -> impl Iterator<Item = &V> {
        let (few, many) = match self {
            Self::Few(values) => (&values[..], None),
            Self::Many(values) => (&[][..], Some(values)),
        };
        few.iter().chain(many.into_iter().flatten())
    }

    fn len(&self) -> usize {
        match self {
            Self::Few(values) => values.len(),
            Self::Many(values) => values.len(),
        }
    }

    fn insert(&mut self, value: V) {
        match self {
            Self::Few(values) => match values.binary_search(&value) {
                Ok(_) => {}
                Err(_) if values.len() == FEW => {
                    let all = values.drain(..).chain([value]);
                    *self = Self::Many(all.collect());
                }
                Err(at) => {
                    values.reserve_exact(1);
                    values.insert(at, value);
                }
            },
            Self::Many(values) => drop(values.insert(value)),
        }
    }

    /// Whether anything is left.
    fn remove(&mut self, value: &V) -> bool {
        match self {
            Self::Few(values) => {
                if let Ok(at) = values.binary_search(value) {
                    values.remove(at);
                }
                !values.is_empty()
            }
            Self::Many(values) => {
                values.remove(value);
                !values.is_empty()
            }
        }
    }
}

impl<K: Ord + Clone, V: Ord + Clone> Default for Multi<K, V> {
    fn default() -> Self {
        Self(OrdMap::new())
    }
}

impl<K: Ord + Clone, V: Ord + Clone> Multi<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.0.get_mut(&key) {
            Some(values) => values.insert(value),
            None => drop(self.0.insert(key, Values::Few(smallvec![value]))),
        }
    }

    pub(crate) fn remove(&mut self, key: &K, value: &V) {
        if let Some(values) = self.0.get_mut(key)
            && !values.remove(value)
        {
            self.0.remove(key);
        }
    }

    pub(crate) fn get<'a>(&'a self, key: &K) -> impl Iterator<Item = &'a V> + use<'a, K, V> {
        self.0.get(key).into_iter().flat_map(Values::iter)
    }

    pub(crate) fn len(&self, key: &K) -> usize {
        self.0.get(key).map_or(0, Values::len)
    }

    pub(crate) fn keys_from(&self, first: K) -> impl Iterator<Item = &K> {
        self.0.range(first..).map(|(key, _)| key)
    }
}

/// What an object can be found by, beside the services it declares.
#[derive(Clone, Copy, Debug)]
enum Name<'a> {
    /// A Service or ServiceEntry: namespace and one label of its selector; empty strings if it has none that is usual.
    Selects(&'a str, &'a str, &'a str),
    /// A Pod or WorkloadEntry: namespace and a label.
    Labelled(&'a str, &'a str, &'a str),
    /// A Pod or WorkloadEntry: an address.
    At(&'a str),
    /// An EndpointSlice or Endpoints: namespace and name of its service.
    Feeds(&'a str, &'a str),
}

/// What an endpoint of a service refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ref {
    /// A pod by namespace and name.
    Pod(Text, Text),
    /// An address it has, in the namespace of the service.
    Address(Text, Text),
}

/// Stands for a name in the index: it is shorter than the texts and sooner compared. Two names may have the same number, so
/// who looks something up finds some that were not meant, and checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number(u64);

impl Number {
    /// Each part is hashed on top of those before it, so that it matters where one ends.
    fn of(parts: &[&str]) -> Self {
        let hash = |before, part: &&str| xxh3_64_with_seed(part.as_bytes(), before);
        Self(parts.iter().fold(parts.len() as u64, hash))
    }
}

impl Name<'_> {
    fn number(self) -> Number {
        match self {
            Self::Selects(namespace, key, value) => Number::of(&["selects", namespace, key, value]),
            Self::Labelled(namespace, key, value) => {
                Number::of(&["labelled", namespace, key, value])
            }
            Self::At(address) => Number::of(&["at", address]),
            Self::Feeds(namespace, service) => Number::of(&["feeds", namespace, service]),
        }
    }
}

impl Ref {
    fn number(&self) -> Number {
        match self {
            Self::Pod(namespace, name) => Number::of(&["pod", namespace, name]),
            Self::Address(namespace, address) => Number::of(&["address", namespace, address]),
        }
    }
}

/// Labels that we add ourselves to those of a workload.
pub(crate) const ADDED: [&str; 6] = [
    "kubernetes.io/hostname",
    "topology.istio.io/cluster",
    "topology.istio.io/network",
    "topology.istio.io/subzone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Whether labels have every label of the selector; an empty selector selects everything.
pub(crate) fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key.as_str()).is_some_and(|v| **v == **value))
}

/// The host of a Kubernetes service.
pub(crate) fn kube_id(namespace: &Text, name: &str, settings: &Settings) -> ServiceId {
    ServiceId {
        host: Text::from(format!("{name}.{namespace}.svc.{}", settings.domain)),
        namespace: namespace.clone(),
    }
}

/// Identities of the services an object declares.
pub(crate) fn declared(object: &Object, settings: &Settings) -> Vec<ServiceId> {
    match &object.spec {
        Spec::Service(_) if !object.key.name.is_empty() => {
            vec![kube_id(&object.key.namespace, &object.key.name, settings)]
        }
        Spec::ServiceEntry(entry) => {
            let hosts: BTreeSet<&String> = entry.hosts.iter().filter(|h| !h.is_empty()).collect();
            hosts
                .into_iter()
                .map(|host| ServiceId {
                    host: Text::from(host.as_str()),
                    namespace: object.key.namespace.clone(),
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The selector of a Service or ServiceEntry; `None` if it has none. An empty selector of a Service is none.
pub(crate) fn selector(object: &Object) -> Option<&Labels> {
    match &object.spec {
        Spec::Service(service) => Some(&service.selector).filter(|s| !s.is_empty()),
        Spec::ServiceEntry(entry) => entry.workload_selector.as_ref().map(|s| &s.labels),
        _ => None,
    }
}

/// The service an EndpointSlice or Endpoints belongs to.
pub(crate) fn fed(object: &Object) -> Option<Text> {
    match &object.spec {
        Spec::EndpointSlice(_) => object.meta.labels.get(SERVICE_NAME).cloned(),
        Spec::Endpoints(_) => Some(object.key.name.clone()),
        _ => None,
    }
    .filter(|name| !name.is_empty())
}

/// Labels that a Pod or WorkloadEntry can be selected by, without those of its place; none for other kinds.
pub(crate) fn labels(object: &Object) -> Cow<'_, Labels> {
    match &object.spec {
        Spec::Pod(_) => Cow::Borrowed(&object.meta.labels),
        Spec::WorkloadEntry(entry) => Cow::Owned(entry_labels(object, entry)),
        _ => Cow::Owned(Labels::new()),
    }
}

/// Labels of a WorkloadEntry: those of the object win over those of the spec.
pub(crate) fn entry_labels(object: &Object, entry: &WorkloadEntry) -> Labels {
    let mut labels = entry.labels.clone();
    labels.extend(object.meta.labels.clone());
    labels
}

/// Whether a pod counts at all.
pub(crate) fn alive(pod: &Pod) -> bool {
    !matches!(pod.phase, PodPhase::Failed | PodPhase::Succeeded)
}

/// Addresses of a Pod or WorkloadEntry.
pub(crate) fn addresses(object: &Object) -> Vec<Text> {
    match &object.spec {
        Spec::Pod(pod) if alive(pod) => pod.ips().cloned().collect(),
        Spec::WorkloadEntry(entry) if !entry.address.is_empty() => {
            vec![Text::from(entry.address.as_str())]
        }
        _ => Vec::new(),
    }
}

fn usual(selector: &Labels) -> impl Iterator<Item = (&str, &str)> {
    selector
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .filter(|(key, _)| !ADDED.contains(key))
}

/// Everything an object can be found by, beside the services it declares; sorted, each once.
fn names(object: &Object) -> SmallVec<[Number; 8]> {
    let namespace = &*object.key.namespace;
    let mut names = SmallVec::new();
    let mut add = |name: Name<'_>| names.push(name.number());
    if let Some(selector) = selector(object) {
        let (key, value) = usual(selector).next().unwrap_or_default();
        add(Name::Selects(namespace, key, value));
    }
    if let Some(service) = fed(object) {
        add(Name::Feeds(namespace, &service));
    }
    for address in &addresses(object) {
        add(Name::At(address));
    }
    for (key, value) in &*labels(object) {
        add(Name::Labelled(namespace, key, value));
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// What a service refers to: the addresses of its endpoints, and more; sorted, each once.
fn references(
    id: &ServiceId,
    endpoints: Option<&ServiceEndpoints>,
    others: impl Iterator<Item = Number>,
) -> Vec<Number> {
    let all = endpoints.into_iter().flat_map(|e| e.by_port.values());
    let addresses = all.flatten().flat_map(|endpoint| &endpoint.addresses);
    let addresses = addresses.map(|address| Number::of(&["address", &id.namespace, address]));
    let mut all: Vec<Number> = addresses.chain(others).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What is in the first of two sorted lists and not in the second.
fn missing<'a>(here: &'a [Number], there: &'a [Number]) -> impl Iterator<Item = Number> + 'a {
    let missing = |number: &&Number| there.binary_search(number).is_err();
    here.iter().filter(missing).copied()
}

/// Finds objects by name, and services by what their endpoints refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    declared: Multi<ServiceId, ObjectKey>,
    named: Multi<Number, ObjectKey>,
    referring: Multi<Number, ServiceId>,
    /// What a service refers to beside the addresses of its endpoints.
    others: OrdMap<ServiceId, Arc<[Number]>>,
}

impl Index {
    /// Replaces what an object is found by.
    pub(crate) fn replace(
        &mut self,
        key: &ObjectKey,
        old: Option<&Object>,
        new: Option<&Object>,
        settings: &Settings,
    ) {
        let services = |object: Option<&Object>| {
            let mut services = object.map(|o| declared(o, settings)).unwrap_or_default();
            services.sort_unstable();
            services
        };
        let (left, joined) = (services(old), services(new));
        for id in left.iter().filter(|id| !joined.contains(id)) {
            self.declared.remove(id, key);
        }
        for id in joined.iter().filter(|id| !left.contains(id)) {
            self.declared.insert(id.clone(), key.clone());
        }
        let (old, new) = (
            old.map(names).unwrap_or_default(),
            new.map(names).unwrap_or_default(),
        );
        for name in missing(&old, &new) {
            self.named.remove(&name, key);
        }
        for name in missing(&new, &old) {
            self.named.insert(name, key.clone());
        }
    }

    /// Replaces what a service refers to: the addresses of its endpoints, before and after, and some more.
    pub(crate) fn refer(
        &mut self,
        id: &ServiceId,
        endpoints: (Option<&ServiceEndpoints>, Option<&ServiceEndpoints>),
        others: &BTreeSet<Ref>,
    ) {
        let known = self.others.get(id);
        let others: Arc<[Number]> = others.iter().map(Ref::number).collect();
        let known_numbers = known.into_iter().flat_map(|known| known.iter().copied());
        let old = references(id, endpoints.0, known_numbers);
        let new = references(id, endpoints.1, others.iter().copied());
        for reference in missing(&old, &new) {
            self.referring.remove(&reference, id);
        }
        for reference in missing(&new, &old) {
            self.referring.insert(reference, id.clone());
        }
        if others.is_empty() {
            self.others.remove(id);
        } else if known != Some(&others) {
            self.others.insert(id.clone(), others);
        }
    }

    /// Services whose endpoints refer to this, and perhaps others.
    pub(crate) fn referring<'a>(
        &'a self,
        reference: &Ref,
    ) -> impl Iterator<Item = &'a ServiceId> + use<'a> {
        self.referring.get(&reference.number())
    }

    /// Objects that declare a service.
    pub(crate) fn declarers<'a>(
        &'a self,
        id: &ServiceId,
    ) -> impl Iterator<Item = &'a ObjectKey> + use<'a> {
        self.declared.get(id)
    }

    /// All services that are declared.
    pub(crate) fn all_declared(&self) -> impl Iterator<Item = &ServiceId> {
        self.declared_from("")
    }

    /// Services of one host that are declared.
    pub(crate) fn declared_of<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a ServiceId> {
        self.declared_from(host)
            .take_while(move |id| &*id.host == host)
    }

    fn declared_from(&self, host: &str) -> impl Iterator<Item = &ServiceId> {
        self.declared.keys_from(ServiceId {
            host: Text::from(host),
            namespace: Text::default(),
        })
    }

    fn named<'a>(&'a self, name: Name<'_>) -> impl Iterator<Item = &'a ObjectKey> + use<'a> {
        self.named.get(&name.number())
    }

    /// EndpointSlices and Endpoints of a service, by kind and name; and perhaps others.
    pub(crate) fn feeding<'a>(
        &'a self,
        namespace: &str,
        service: &str,
    ) -> impl Iterator<Item = &'a ObjectKey> + use<'a> {
        self.named(Name::Feeds(namespace, service))
    }

    /// Pods and WorkloadEntries at an address; and perhaps others.
    pub(crate) fn at<'a>(&'a self, address: &str) -> impl Iterator<Item = &'a ObjectKey> + use<'a> {
        self.named(Name::At(address))
    }

    /// Services and ServiceEntries that may select a workload of these labels; more than really do.
    pub(crate) fn selecting<'a>(
        &'a self,
        namespace: &'a Text,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a ObjectKey> {
        labels
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .chain(std::iter::once(("", "")))
            .flat_map(|(key, value)| self.named(Name::Selects(namespace, key, value)))
    }

    /// Pods and WorkloadEntries that a selector may select; `None`: any of the namespace.
    pub(crate) fn selected<'a>(
        &'a self,
        namespace: &'a Text,
        selector: &Labels,
    ) -> Option<impl Iterator<Item = &'a ObjectKey> + use<'a>> {
        let name = usual(selector)
            .map(|(key, value)| Name::Labelled(namespace, key, value).number())
            .min_by_key(|name| self.named.len(name))?;
        let keys: Vec<&ObjectKey> = self.named.get(&name).collect();
        Some(keys.into_iter())
    }
}

/// The spec of a Service.
pub(crate) fn kube(object: &Object) -> Option<&KubeService> {
    object.get()
}

/// The spec of a ServiceEntry.
pub(crate) fn entry(object: &Object) -> Option<&ServiceEntry> {
    object.get()
}

/// The spec of an EndpointSlice.
pub(crate) fn slice(object: &Object) -> Option<&EndpointSlice> {
    object.get()
}
