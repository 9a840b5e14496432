//! What tells proxies apart besides what they are: labels that some selector reads, and nodes if some service is bound to
//! them. All else stays out of scopes, so replicas share.

use std::collections::BTreeMap;

use pilotfish_config::mesh::MeshConfig;
use pilotfish_config::networking::{DestinationRule, Gateway, Sidecar, VirtualService};
use pilotfish_config::security::PeerAuthentication;
use pilotfish_config::{Object, Snapshot};
use pilotfish_mesh::service::TrafficDistribution;
use pilotfish_mesh::{Labels, Service, Text, World};

/// Label keys with the number of selectors that read them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selectors(BTreeMap<Text, usize>);

/// All that tells proxies apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Distinctions {
    pub(crate) selectors: Selectors,
    /// Services that are bound to nodes.
    pub(crate) node_bound: usize,
}

/// Whether who gets which endpoints of a service depends on their nodes.
pub(crate) fn is_bound_to_node(service: &Service) -> bool {
    service.node_local || service.traffic_distribution == TrafficDistribution::PreferSameNode
}

impl Distinctions {
    /// As they follow from the objects.
    pub(crate) fn of(snapshot: &Snapshot, world: &World) -> Self {
        let mut selectors = Selectors::default();
        selectors.exchange(Vec::new(), of_mesh(&snapshot.mesh));
        for object in snapshot.objects.values() {
            selectors.exchange(Vec::new(), keys(object));
        }
        Self {
            selectors,
            node_bound: bound_to_nodes(world),
        }
    }
}

/// How many services are bound to nodes.
pub(crate) fn bound_to_nodes(world: &World) -> usize {
    world.services().filter(|s| is_bound_to_node(s)).count()
}

/// Labels that endpoints are compared with.
fn priorities(written: Option<&Vec<String>>) -> impl Iterator<Item = &str> {
    let all = written.into_iter().flatten();
    all.map(|p| p.split_once('=').map_or(p.as_str(), |(k, _)| k))
}

fn of_mesh(mesh: &MeshConfig) -> Vec<&str> {
    let localities = mesh.locality_lb_setting.as_ref();
    let zones = mesh.zone_aware_lb_setting.as_ref();
    priorities(localities.map(|l| &l.failover_priority))
        .chain(priorities(zones.map(|z| &z.failover_priority)))
        .collect()
}

fn keys(object: &Object) -> Vec<&str> {
    let mut out: Vec<&str> = Vec::new();
    if let Some(s) = object.get::<Sidecar>() {
        out.extend(
            s.workload_selector
                .iter()
                .flat_map(|w| w.labels.keys())
                .map(Text::as_str),
        );
    } else if let Some(p) = object.get::<PeerAuthentication>() {
        out.extend(
            p.selector
                .iter()
                .flat_map(|s| s.match_labels.keys())
                .map(Text::as_str),
        );
    } else if let Some(g) = object.get::<Gateway>() {
        out.extend(g.selector.keys().map(Text::as_str));
    } else if let Some(d) = object.get::<DestinationRule>() {
        out.extend(
            d.workload_selector
                .iter()
                .flat_map(|w| w.match_labels.keys())
                .map(Text::as_str),
        );
        let policies = d
            .traffic_policy
            .iter()
            .chain(d.subsets.iter().filter_map(|s| s.traffic_policy.as_deref()));
        let balancers = policies.flat_map(|p| {
            p.load_balancer.iter().chain(
                p.port_level_settings
                    .iter()
                    .filter_map(|l| l.load_balancer.as_ref()),
            )
        });
        out.extend(balancers.flat_map(|b| {
            let zones = b.zone_aware_lb_setting.as_ref();
            priorities(b.locality_lb_setting.as_ref().map(|l| &l.failover_priority))
                .chain(priorities(zones.map(|z| &z.failover_priority)))
        }));
    } else if let Some(v) = object.get::<VirtualService>() {
        out.extend(
            v.http
                .iter()
                .flat_map(|h| &h.r#match)
                .flat_map(|m| m.source_labels.keys())
                .map(Text::as_str),
        );
        out.extend(
            v.tls
                .iter()
                .flat_map(|h| &h.r#match)
                .flat_map(|m| m.source_labels.keys())
                .map(Text::as_str),
        );
        out.extend(
            v.tcp
                .iter()
                .flat_map(|h| &h.r#match)
                .flat_map(|m| m.source_labels.keys())
                .map(Text::as_str),
        );
    }
    out
}

impl Selectors {
    /// Replaces what one object reads. True if the set of labels changed.
    pub(crate) fn replace(&mut self, old: Option<&Object>, new: Option<&Object>) -> bool {
        let (old, new) = (old.map(keys), new.map(keys));
        self.exchange(
            old.into_iter().flatten().collect(),
            new.into_iter().flatten().collect(),
        )
    }

    /// Replaces what the mesh's own configuration reads. True if the set of labels changed.
    pub(crate) fn replace_mesh(&mut self, old: &MeshConfig, new: &MeshConfig) -> bool {
        self.exchange(of_mesh(old), of_mesh(new))
    }

    fn exchange(&mut self, old: Vec<&str>, new: Vec<&str>) -> bool {
        let mut changed = false;
        for k in new {
            let n = self.0.entry(Text::from(k)).or_default();
            changed |= *n == 0;
            *n += 1;
        }
        for k in old {
            if let Some(n) = self.0.get_mut(k) {
                *n -= 1;
                if *n == 0 {
                    self.0.remove(k);
                    changed = true;
                }
            }
        }
        changed
    }

    /// Whether some selector reads a label.
    pub(crate) fn reads(&self, label: &str) -> bool {
        self.0.contains_key(label)
    }

    /// The labels of a proxy that count.
    pub(crate) fn relevant(&self, labels: &Labels) -> Labels {
        labels
            .iter()
            .filter(|(k, _)| self.0.contains_key(*k))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }
}
