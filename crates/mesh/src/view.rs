//! What derivations read: the configuration, found through the indices, and the few facts about pods that many need.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use ipnet::IpNet;
use pilotfish_config::core::{Container, Pod, Protocol as Transport};
use pilotfish_config::{ClusterId, Kind, Object, ObjectKey, Snapshot};

use crate::alias::Aliases;
use crate::allocation::Slots;
use crate::index::{self, Index};
use crate::local_hosts::LocalHosts;
use crate::{Backend, EndpointHealth, Labels, Locality, Settings, Text};

/// Label that says whether a workload takes mutual TLS.
pub(crate) const TLS_MODE: &str = "security.istio.io/tlsMode";
/// Label that says in which network a workload is, or those of the control plane's cluster are.
pub(crate) const NETWORK: &str = "topology.istio.io/network";
const WORKLOAD_NAME: &str = "service.istio.io/workload-name";

/// Everything a derivation may read.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) settings: &'a Settings,
    pub(crate) index: &'a Index,
    pub(crate) aliases: &'a Aliases,
    pub(crate) slots: &'a Slots,
    pub(crate) local_hosts: &'a LocalHosts,
}

/// The namespace of the control plane and of rules for the whole mesh.
pub(crate) fn system_namespace(snapshot: &Snapshot) -> &str {
    match snapshot.mesh.root_namespace.as_str() {
        "" => "istio-system",
        name => name,
    }
}

/// Where a node is, by its labels.
pub(crate) fn node_locality(node: &Object) -> Locality {
    let label = |names: &[&str]| {
        let found = names.iter().find_map(|name| node.meta.labels.get(*name));
        found.cloned().unwrap_or_default()
    };
    Locality {
        region: label(&[
            "topology.kubernetes.io/region",
            "failure-domain.beta.kubernetes.io/region",
        ]),
        zone: label(&[
            "topology.kubernetes.io/zone",
            "failure-domain.beta.kubernetes.io/zone",
        ]),
        subzone: label(&["topology.istio.io/subzone"]),
    }
}

/// The locality that labels of a workload say.
pub(crate) fn label_locality(labels: &Labels) -> Option<Locality> {
    labels
        .get("topology.istio.io/locality")
        .or_else(|| labels.get("istio-locality"))
        .filter(|value| !value.is_empty())
        .map(|value| Locality::from_label(value))
}

/// Labels that [`augment`] adds: as many copies of the keys as there are endpoints would be megabytes.
static PLACE: LazyLock<[Text; 6]> = LazyLock::new(|| {
    [
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.istio.io/subzone",
        "topology.istio.io/cluster",
        "kubernetes.io/hostname",
        NETWORK,
    ]
    .map(Text::from)
});

/// The labels of a workload with what we know of its place.
pub(crate) fn augment(
    labels: &Labels,
    cluster: &Text,
    locality: &Locality,
    node: &Text,
    network: &Text,
) -> Arc<Labels> {
    let place = [
        &locality.region,
        &locality.zone,
        &locality.subzone,
        cluster,
        node,
        network,
    ];
    // The network is the only one of which the workload knows better.
    let said =
        |key: &str| key == NETWORK && labels.get(NETWORK).is_some_and(|name| !name.is_empty());
    let known = PLACE.iter().zip(place);
    let known = known.filter(|(key, value)| !value.is_empty() && !said(key));
    // There are as many as endpoints: no room is left over.
    let mut out = Labels::with_capacity(labels.len() + known.clone().count());
    for (key, value) in labels.iter().chain(known) {
        out.insert(key.clone(), value.clone());
    }
    Arc::new(out)
}

/// Whether `name` is `prefix` and five characters of the alphabet Kubernetes generates names from.
fn generated(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('-'))
        .is_some_and(|rest| {
            rest.len() == 5
                && rest
                    .chars()
                    .all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c))
        })
}

/// The name telemetry knows a pod by: what its labels say, else the Deployment or other owner that generated its name,
/// else its own.
pub(crate) fn workload_name(pod: &Object) -> Text {
    if let Some(name) = pod.meta.labels.get(WORKLOAD_NAME) {
        return name.clone();
    }
    let owner = pod
        .meta
        .owner
        .as_ref()
        .filter(|owner| generated(&pod.key.name, &owner.name));
    let Some(owner) = owner else {
        return pod.key.name.clone();
    };
    let stripped = |label: &str| {
        let hash = pod.meta.labels.get(label).filter(|h| !h.is_empty())?;
        let name = owner.name.strip_suffix(&**hash)?;
        Some(Text::from(name.strip_suffix('-').unwrap_or(name)))
    };
    match &*owner.kind {
        "ReplicaSet" => stripped("pod-template-hash")
            .or_else(|| stripped("rollouts-pod-template-hash"))
            .unwrap_or_else(|| owner.name.clone()),
        "Job" => match owner.name.rsplit_once('-') {
            Some((name, time))
                if matches!(time.len(), 8..=10) && time.bytes().all(|b| b.is_ascii_digit()) =>
            {
                Text::from(name)
            }
            _ => owner.name.clone(),
        },
        _ => owner.name.clone(),
    }
}

fn serving(pod: &Pod) -> impl Iterator<Item = &Container> {
    let native = pod
        .init_containers
        .iter()
        .filter(|container| container.restart_policy == "Always");
    pod.containers.iter().chain(native)
}

/// The number of a port of a pod by its name.
pub(crate) fn pod_port(pod: &Pod, name: &str, transport: Transport) -> Option<u16> {
    serving(pod)
        .flat_map(|container| &container.ports)
        .find(|port| port.name == name && port.protocol == transport)
        .map(|port| port.container_port)
}

/// Whether a ServiceEntry may select a pod, and an address stands for it.
pub(crate) fn in_service(pod: &Pod) -> bool {
    index::alive(pod) && !pod.deleting && pod.is_ready() && pod.ips().next().is_some()
}

impl<'a> View<'a> {
    /// An object.
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&'a Arc<Object>> {
        self.snapshot.get(key)
    }

    /// The name of a cluster.
    pub(crate) fn cluster_name(&self, cluster: ClusterId) -> &'a Text {
        cluster.name().unwrap_or(&self.settings.cluster)
    }

    /// An object outside of namespaces.
    fn outside(&self, kind: Kind, cluster: ClusterId, name: &str) -> Option<&'a Object> {
        let object = self
            .snapshot
            .get(&ObjectKey::new(kind, "", name).of(cluster))?;
        Some(object)
    }

    /// The Namespace object in a cluster.
    pub(crate) fn namespace(&self, cluster: ClusterId, name: &str) -> Option<&'a Object> {
        self.outside(Kind::Namespace, cluster, name)
    }

    /// The trust domain of a cluster: its own, if it is known, else that of the mesh.
    fn trust_domain(&self, cluster: ClusterId) -> &'a str {
        if let Some(own) = self.snapshot.trust_domains.get(&cluster) {
            return own;
        }
        match self.snapshot.mesh.trust_domain.as_str() {
            "" => "cluster.local",
            domain => domain,
        }
    }

    /// The SPIFFE identity of a service account of a cluster.
    pub(crate) fn identity(&self, cluster: ClusterId, namespace: &str, account: &str) -> Text {
        let domain = self.trust_domain(cluster);
        let domain = domain.replace('@', ".");
        Text::from(format!("spiffe://{domain}/ns/{namespace}/sa/{account}"))
    }

    /// Where a pod is.
    pub(crate) fn pod_locality(&self, object: &Object, pod: &Pod) -> Locality {
        label_locality(&object.meta.labels).unwrap_or_else(|| {
            self.outside(Kind::Node, object.key.cluster, &pod.node_name)
                .map(node_locality)
                .unwrap_or_default()
        })
    }

    /// The network of a workload in a cluster: its label, else that of the control plane's namespace there, else what the
    /// mesh networks say of the cluster, else of its address.
    pub(crate) fn network(&self, cluster: ClusterId, labels: &Labels, address: &str) -> Text {
        if let Some(network) = labels.get(NETWORK).filter(|n| !n.is_empty()) {
            return network.clone();
        }
        let system = self.namespace(cluster, system_namespace(self.snapshot));
        if let Some(network) = system
            .and_then(|ns| ns.meta.labels.get(NETWORK))
            .filter(|n| !n.is_empty())
        {
            return network.clone();
        }
        let networks = &self.snapshot.networks.networks;
        let cluster = self.cluster_name(cluster);
        let of_registry = networks.iter().find(|(_, network)| {
            network
                .endpoints
                .iter()
                .any(|e| e.from_registry.as_deref() == Some(&**cluster))
        });
        if let Some((name, _)) = of_registry {
            return Text::from(name.as_str());
        }
        let Ok(ip) = address.parse::<IpAddr>() else {
            return Text::default();
        };
        networks
            .iter()
            .flat_map(|(name, network)| network.endpoints.iter().map(move |e| (name, e)))
            .filter_map(|(name, e)| {
                let net: IpNet = e.from_cidr.as_deref()?.parse().ok()?;
                net.contains(&ip).then_some((net.prefix_len(), name))
            })
            .min_by_key(|(length, _)| *length)
            .map_or_else(Text::default, |(_, name)| Text::from(name.as_str()))
    }

    /// A pod; healthy.
    pub(crate) fn pod_backend(&self, object: &Object, pod: &Pod, address: Text) -> Backend {
        let locality = self.pod_locality(object, pod);
        let cluster = self.cluster_name(object.key.cluster);
        let network = self.network(object.key.cluster, &object.meta.labels, &address);
        let subdomain = pod.subdomain.clone();
        let hostname = match (subdomain.is_empty(), pod.hostname.is_empty()) {
            (true, _) => Text::default(),
            (false, true) => object.key.name.clone(),
            (false, false) => pod.hostname.clone(),
        };
        let account = match pod.service_account_name.as_str() {
            "" => "default",
            account => account,
        };
        let node = pod.node_name.clone();
        Backend {
            addresses: vec![address],
            health: EndpointHealth::Healthy,
            labels: augment(&object.meta.labels, cluster, &locality, &node, &network),
            locality,
            network,
            cluster: cluster.clone(),
            weight: 1,
            mutual_tls: object
                .meta
                .labels
                .get(TLS_MODE)
                .is_some_and(|m| &**m == "istio"),
            workload: workload_name(object),
            namespace: object.key.namespace.clone(),
            node,
            hostname,
            subdomain,
            identity: self.identity(object.key.cluster, &object.key.namespace, account),
        }
    }

    /// Pods and WorkloadEntries at an address, pods first.
    pub(crate) fn at(&self, address: &str) -> impl Iterator<Item = &'a Arc<Object>> {
        let objects = self.index.at(address).filter_map(|key| self.get(key));
        objects.filter(move |object| index::addresses(object).iter().any(|a| **a == *address))
    }

    /// Pods and WorkloadEntries of a namespace, in any cluster, that a selector selects, pods first. Labels of place count as
    /// well.
    pub(crate) fn selected(
        &self,
        namespace: &'a Text,
        selector: &Labels,
        kinds: &[Kind],
    ) -> Vec<&'a Arc<Object>> {
        if let Some(keys) = self.index.selected(namespace, selector) {
            return keys
                .filter(|key| kinds.contains(&key.kind))
                .filter_map(|key| self.get(key))
                .collect();
        }
        let snapshot = self.snapshot;
        let everywhere = |kind: &Kind| {
            let kind = *kind;
            let clusters = snapshot.clusters(kind);
            clusters.flat_map(move |c| snapshot.in_namespace_of(kind, c, namespace))
        };
        kinds.iter().flat_map(everywhere).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_kubernetes_generated() {
        assert!(generated("web-6d8c0f-x2x4z", "web-6d8c0f"));
        assert!(!generated("web-6d8c0f-a1x", "web-6d8c0f"));
        assert!(!generated("web-0", "web"));
    }
}
