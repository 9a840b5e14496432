//! The world as those see it who look at all of it: debug pages and analysis. Lowering reads through a
//! [`Reader`](crate::Reader), which records what it read.

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use pilotfish_config::{Kind, Object, Snapshot, Spec};

use crate::rules::Ranked;
use crate::{Labels, Service, ServiceEndpoints, ServiceId, Text, World, index};

impl World {
    /// The objects all of it was derived from.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// One service.
    pub fn service(&self, id: &ServiceId) -> Option<&Arc<Service>> {
        self.services.get(id)
    }

    /// Services of exactly this host, oldest first.
    pub fn services_of_host(&self, host: &str) -> &[ServiceId] {
        self.by_host.get(host).map_or(&[], |ids| ids.as_slice())
    }

    /// Services by host.
    pub fn hosts(&self) -> impl Iterator<Item = (&Text, &[ServiceId])> {
        self.by_host
            .iter()
            .map(|(host, ids)| (host, ids.as_slice()))
    }

    /// Endpoints of one service.
    pub fn endpoints_of(&self, id: &ServiceId) -> Option<&Arc<ServiceEndpoints>> {
        self.endpoints.get(id)
    }

    /// Destination rules by the host they are written for, which may be a wildcard; oldest first.
    pub fn destination_rules(&self) -> impl Iterator<Item = (&Text, &Ranked)> {
        self.destination_rules.iter()
    }

    /// Destination rules written for exactly this host.
    pub fn destination_rules_of(&self, host: &str) -> &[Arc<Object>] {
        let found = self.destination_rules.get(host);
        found.map_or(&[], |rules| rules.as_slice())
    }

    /// Virtual services of the mesh by the host they are written for, which may be a wildcard; oldest first.
    pub fn virtual_services(&self) -> impl Iterator<Item = (&Text, &Ranked)> {
        self.virtual_services.iter()
    }

    /// Virtual services by the gateway they are bound to, `namespace/name`; oldest first.
    pub fn gateway_virtual_services(&self) -> impl Iterator<Item = (&Text, &Ranked)> {
        self.gateway_virtual_services.iter()
    }

    /// All Gateways, oldest first.
    pub fn gateways(&self) -> &[Arc<Object>] {
        &self.gateways
    }

    /// Sidecar objects by namespace, oldest first.
    pub fn sidecars(&self) -> impl Iterator<Item = (&Text, &Ranked)> {
        self.sidecars.iter()
    }

    /// Labels of a Pod or WorkloadEntry with those of its place; `None` for other kinds.
    pub fn labels_of(&self, object: &Object) -> Option<Arc<Labels>> {
        let (labels, ..) = self.view().workload_facts(object)?;
        Some(labels)
    }

    /// Whether a Pod or WorkloadEntry has all these labels; labels of place count as well.
    pub fn carries(&self, object: &Object, selector: &Labels) -> bool {
        let placed = selector.keys().any(|k| index::ADDED.contains(&k.as_str()));
        match &object.spec {
            // Most selectors name labels that users wrote; those of place cost more to find out.
            Spec::Pod(_) if !placed => index::selects(selector, &object.meta.labels),
            _ => self
                .labels_of(object)
                .is_some_and(|labels| index::selects(selector, &labels)),
        }
    }

    /// Whether any service has a wildcard as its host.
    pub fn has_wildcard_hosts(&self) -> bool {
        starts_with_wildcard(&self.by_host)
    }

    /// Whether any destination rule is for a wildcard.
    pub fn has_wildcard_rules(&self) -> bool {
        starts_with_wildcard(&self.destination_rules)
    }

    /// Pods and WorkloadEntries of a namespace that have all these labels; labels of place count as well.
    pub fn selected<'w>(&'w self, namespace: &'w Text, selector: &Labels) -> Vec<&'w Arc<Object>> {
        let kinds = [Kind::Pod, Kind::WorkloadEntry];
        let mut found = self.view().selected(namespace, selector, &kinds);
        found.retain(|object| self.carries(object, selector));
        found
    }
}

fn starts_with_wildcard<V: Clone>(by_host: &OrdMap<Text, V>) -> bool {
    let from_wildcard = (Bound::Included("*"), Bound::Unbounded);
    let first = by_host.range::<_, str>(from_wildcard).next();
    first.is_some_and(|(host, _)| host.starts_with('*'))
}

/// The selector by which a Service or ServiceEntry chooses workloads; `None` if it has none.
pub fn selector(object: &Object) -> Option<&Labels> {
    index::selector(object)
}

/// Whether labels have every label of the selector; an empty selector selects everything.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    index::selects(selector, labels)
}

/// The service that an EndpointSlice or Endpoints says it belongs to.
pub fn fed_service(world: &World, object: &Object) -> Option<ServiceId> {
    let name = index::fed(object)?;
    Some(index::kube_id(
        &object.key.namespace,
        &name,
        &world.settings,
    ))
}
