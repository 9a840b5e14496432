//! Who is named by whom: what an object can be found by, so that a change finds what it feeds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use pilotfish_config::core::{EndpointSlice, Pod, PodPhase, Service as KubeService};
use pilotfish_config::networking::{ServiceEntry, WorkloadEntry};
use pilotfish_config::{Object, ObjectKey, Spec};
use smallvec::{SmallVec, smallvec};

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

/// What an object can be found by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    /// A Service or ServiceEntry: a service it declares.
    Declares(ServiceId),
    /// A Service or ServiceEntry: namespace and one label of its selector; empty strings if it has none that is usual.
    Selects(Text, Text, Text),
    /// A Pod or WorkloadEntry: namespace and a label.
    Labelled(Text, Text, Text),
    /// A Pod or WorkloadEntry: an address.
    At(Text),
    /// An EndpointSlice or Endpoints: namespace and name of its service.
    Feeds(Text, Text),
}

/// What an endpoint of a service refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ref {
    /// A pod by namespace and name.
    Pod(Text, Text),
    /// An address it has, in the namespace of the service.
    Address(Text, Text),
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
pub(crate) fn selects(selector: &BTreeMap<String, String>, labels: &Labels) -> bool {
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
pub(crate) fn selector(object: &Object) -> Option<&BTreeMap<String, String>> {
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

fn usual(selector: &BTreeMap<String, String>) -> impl Iterator<Item = (Text, Text)> {
    selector
        .iter()
        .filter(|(key, _)| !ADDED.contains(&key.as_str()))
        .map(|(k, v)| (Text::from(k.as_str()), Text::from(v.as_str())))
}

/// Everything an object can be found by.
fn names(object: &Object, settings: &Settings) -> BTreeSet<Name> {
    let namespace = &object.key.namespace;
    let mut names = BTreeSet::new();
    names.extend(declared(object, settings).into_iter().map(Name::Declares));
    if let Some(selector) = selector(object) {
        let (key, value) = usual(selector).next().unwrap_or_default();
        names.insert(Name::Selects(namespace.clone(), key, value));
    }
    if let Some(service) = fed(object) {
        names.insert(Name::Feeds(namespace.clone(), service));
    }
    names.extend(addresses(object).into_iter().map(Name::At));
    let labels = match &object.spec {
        Spec::Pod(_) => object.meta.labels.clone(),
        Spec::WorkloadEntry(entry) => entry_labels(object, entry),
        _ => Labels::new(),
    };
    names.extend(
        labels
            .into_iter()
            .map(|(k, v)| Name::Labelled(namespace.clone(), k, v)),
    );
    names
}

/// The addresses of the endpoints of a service.
fn addresses_of(id: &ServiceId, endpoints: Option<&ServiceEndpoints>) -> BTreeSet<Ref> {
    let all = endpoints.into_iter().flat_map(|e| e.by_port.values());
    all.flatten()
        .flat_map(|endpoint| &endpoint.addresses)
        .map(|address| Ref::Address(id.namespace.clone(), address.clone()))
        .collect()
}

/// Finds objects by name, and services by what their endpoints refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    named: Multi<Name, ObjectKey>,
    referring: Multi<Ref, ServiceId>,
    /// What a service refers to beside the addresses of its endpoints, sorted.
    others: OrdMap<ServiceId, Arc<[Ref]>>,
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
        let old = old.map(|o| names(o, settings)).unwrap_or_default();
        let new = new.map(|o| names(o, settings)).unwrap_or_default();
        for name in old.difference(&new) {
            self.named.remove(name, key);
        }
        for name in new.difference(&old) {
            self.named.insert(name.clone(), key.clone());
        }
    }

    /// Replaces what a service refers to: the addresses of its endpoints, before and after, and some more.
    pub(crate) fn refer(
        &mut self,
        id: &ServiceId,
        endpoints: (Option<&ServiceEndpoints>, Option<&ServiceEndpoints>),
        others: &BTreeSet<Ref>,
    ) {
        let mut old = addresses_of(id, endpoints.0);
        let known = self.others.get(id);
        old.extend(known.into_iter().flat_map(|refs| refs.iter().cloned()));
        let mut new = addresses_of(id, endpoints.1);
        new.extend(others.iter().cloned());
        for reference in old.difference(&new) {
            self.referring.remove(reference, id);
        }
        for reference in new.difference(&old) {
            self.referring.insert(reference.clone(), id.clone());
        }
        if others.is_empty() {
            self.others.remove(id);
        } else if !known.is_some_and(|known| known.iter().eq(others)) {
            let others = others.iter().cloned().collect();
            self.others.insert(id.clone(), others);
        }
    }

    /// Services whose endpoints refer to this.
    pub(crate) fn referring<'a>(
        &'a self,
        reference: &Ref,
    ) -> impl Iterator<Item = &'a ServiceId> + use<'a> {
        self.referring.get(reference)
    }

    /// Objects that declare a service.
    pub(crate) fn declarers<'a>(
        &'a self,
        id: &ServiceId,
    ) -> impl Iterator<Item = &'a ObjectKey> + use<'a> {
        self.named.get(&Name::Declares(id.clone()))
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
        let first = Name::Declares(ServiceId {
            host: Text::from(host),
            namespace: Text::default(),
        });
        self.named.keys_from(first).map_while(|name| match name {
            Name::Declares(id) => Some(id),
            _ => None,
        })
    }

    /// EndpointSlices and Endpoints of a service, by kind and name.
    pub(crate) fn feeding<'a>(
        &'a self,
        namespace: &Text,
        service: &str,
    ) -> impl Iterator<Item = &'a ObjectKey> + use<'a> {
        self.named
            .get(&Name::Feeds(namespace.clone(), Text::from(service)))
    }

    /// Pods and WorkloadEntries at an address.
    pub(crate) fn at<'a>(
        &'a self,
        address: &Text,
    ) -> impl Iterator<Item = &'a ObjectKey> + use<'a> {
        self.named.get(&Name::At(address.clone()))
    }

    /// All addresses that somebody has.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = &Text> {
        self.named
            .keys_from(Name::At(Text::default()))
            .map_while(|name| match name {
                Name::At(address) => Some(address),
                _ => None,
            })
    }

    /// Services and ServiceEntries that may select a workload of these labels; more than really do.
    pub(crate) fn selecting<'a>(
        &'a self,
        namespace: &'a Text,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a ObjectKey> {
        let any = (Text::default(), Text::default());
        labels
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .chain(std::iter::once(any))
            .flat_map(|(k, v)| self.named.get(&Name::Selects(namespace.clone(), k, v)))
    }

    /// Pods and WorkloadEntries that a selector may select; `None`: any of the namespace.
    pub(crate) fn selected<'a>(
        &'a self,
        namespace: &'a Text,
        selector: &BTreeMap<String, String>,
    ) -> Option<impl Iterator<Item = &'a ObjectKey> + use<'a>> {
        let name = usual(selector)
            .map(|(k, v)| Name::Labelled(namespace.clone(), k, v))
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
