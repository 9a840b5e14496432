//! Where endpoints are, seen from a client: which are used first, and how much each place gets.

use std::collections::BTreeMap;

use pilotfish_config::networking::{
    LoadBalancerSettings, LocalityDistribute, LocalityFailover, LocalityLoadBalancerSetting,
    ZoneAwareLoadBalancerSetting,
};
use pilotfish_ir::cluster::Places;
use pilotfish_mesh::service::TrafficDistribution;
use pilotfish_mesh::{Endpoint, Locality, Reader, Service};

use crate::{EndpointScope, Text};

const NETWORK: &str = "topology.istio.io/network";
const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
const SUBZONE: &str = "topology.istio.io/subzone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const CLUSTER: &str = "topology.istio.io/cluster";

/// Settings about places that apply to a destination.
#[derive(Clone, Debug)]
pub enum Preference {
    /// By distance, or by shares the user wrote.
    Localities {
        /// Shares by place.
        distribute: Vec<LocalityDistribute>,
        /// Where a region fails over to.
        failover: Vec<LocalityFailover>,
        /// Labels of which near endpoints share more with the client.
        failover_priority: Vec<String>,
        /// Applies even without passive health checks.
        force: bool,
    },
    /// The client's zone as far as possible, within its region.
    Zones(ZoneAwareLoadBalancerSetting),
}

impl Preference {
    fn of(setting: &LocalityLoadBalancerSetting) -> Self {
        Self::Localities {
            distribute: setting.distribute.clone(),
            failover: setting.failover.clone(),
            failover_priority: setting.failover_priority.clone(),
            force: false,
        }
    }

    /// What a cluster must know of places.
    pub fn places(&self, outlier: bool) -> Places {
        match self {
            Self::Zones(setting) => Places::Zones {
                off: setting.enabled == Some(false),
                minimum: setting.min_cluster_size,
            },
            Self::Localities {
                distribute,
                failover,
                failover_priority,
                force,
            } => {
                let fails_over =
                    (outlier || *force) && (!failover.is_empty() || !failover_priority.is_empty());
                if fails_over || !distribute.is_empty() {
                    Places::Weighted
                } else {
                    Places::Ignored
                }
            }
        }
    }
}

/// The preference for a destination: of its rule, of the service itself, of the mesh.
pub fn preference(
    reader: &Reader<'_>,
    lb: Option<&LoadBalancerSettings>,
    service: &Service,
) -> Option<Preference> {
    let localities = |setting: &LocalityLoadBalancerSetting| {
        (setting.enabled != Some(false)).then(|| Preference::of(setting))
    };
    if let Some(setting) = lb.and_then(|l| l.zone_aware_lb_setting.as_ref()) {
        return Some(Preference::Zones(setting.clone()));
    }
    if let Some(setting) = lb.and_then(|l| l.locality_lb_setting.as_ref()) {
        return localities(setting);
    }
    let labels: &[&str] = match service.traffic_distribution {
        TrafficDistribution::Any => &[],
        TrafficDistribution::PreferClose | TrafficDistribution::PreferSameZone => {
            &[NETWORK, REGION, ZONE]
        }
        TrafficDistribution::PreferSameNode => &[NETWORK, REGION, ZONE, SUBZONE, HOSTNAME],
    };
    if !labels.is_empty() {
        return Some(Preference::Localities {
            distribute: Vec::new(),
            failover: Vec::new(),
            failover_priority: labels.iter().map(ToString::to_string).collect(),
            force: true,
        });
    }
    let mesh = reader.mesh();
    if let Some(setting) = &mesh.zone_aware_lb_setting {
        return Some(Preference::Zones(setting.clone()));
    }
    mesh.locality_lb_setting.as_ref().and_then(localities)
}

/// A group of endpoints in one place.
#[derive(Clone, Debug)]
pub struct Group<E> {
    /// The place.
    pub locality: Locality,
    /// 0 is used first.
    pub priority: u32,
    /// Weight of the group; 0: the group has lost its endpoints.
    pub weight: u32,
    /// Endpoints with the facts they came from.
    pub members: Vec<E>,
}

/// What the groups' members must tell.
pub trait Member {
    /// The endpoint's facts.
    fn facts(&self) -> &Endpoint;
    /// Its weight.
    fn weight(&self) -> u32;
}

/// Gives groups their priorities and weights.
pub fn apply<E: Member + Clone>(
    reader: &Reader<'_>,
    groups: Vec<Group<E>>,
    preference: &Preference,
    scope: &EndpointScope,
    outlier: bool,
) -> Vec<Group<E>> {
    match preference {
        Preference::Localities { distribute, .. } if !distribute.is_empty() => {
            shared(groups, distribute, scope.client.place(reader))
        }
        Preference::Localities { force, .. } if !(outlier || *force) => groups,
        Preference::Localities {
            failover,
            failover_priority,
            ..
        } if failover_priority.is_empty() => {
            let own = scope.client.place(reader);
            ordered(groups, |place| distance(own, place, failover))
        }
        Preference::Localities {
            failover,
            failover_priority,
            ..
        } => {
            let groups = by_labels(reader, groups, failover_priority, scope);
            if failover.is_empty() {
                groups
            } else {
                let own = scope.client.place(reader);
                ordered(groups, |place| distance(own, place, failover))
            }
        }
        Preference::Zones(setting) if setting.enabled == Some(false) => groups,
        Preference::Zones(setting) => {
            let groups = if setting.failover_priority.is_empty() {
                groups
            } else {
                by_labels(reader, groups, &setting.failover_priority, scope)
            };
            // Zones are balanced within a priority, so other regions must not be in the first.
            let own = scope.client.place(reader);
            ordered(groups, |place| {
                region_distance(own, place, &setting.failover)
            })
        }
    }
}

/// Whether a place matches a pattern `region/zone/subzone` in which `*` ends the comparison.
fn place_matches(place: &Locality, pattern: &str) -> bool {
    let mut parts = pattern.split('/');
    for have in [&place.region, &place.zone, &place.subzone] {
        match parts.next() {
            None | Some("*") => return true,
            Some(want) if want == &**have => {}
            Some(_) => return false,
        }
    }
    true
}

fn shared<E: Clone>(
    mut groups: Vec<Group<E>>,
    rules: &[LocalityDistribute],
    from: &Locality,
) -> Vec<Group<E>> {
    let Some(rule) = rules.iter().find(|r| place_matches(from, &r.from)) else {
        return groups;
    };
    let mut left: Vec<usize> = (0..groups.len()).collect();
    for (pattern, weight) in &rule.to {
        let (hit, rest): (Vec<usize>, Vec<usize>) = left
            .into_iter()
            .partition(|i| place_matches(&groups[*i].locality, pattern));
        left = rest;
        let total: u64 = hit.iter().map(|i| u64::from(groups[*i].weight)).sum();
        for i in hit {
            let share = u64::from(groups[i].weight) * u64::from(*weight);
            if total > 0 && share > 0 {
                groups[i].weight = u32::try_from(share.div_ceil(total)).unwrap_or(u32::MAX);
            }
        }
    }
    for i in left {
        groups[i].members.clear();
    }
    groups
}

/// How far a place is: 0 the same subzone, 1 the zone, 2 the region, 3 a region failed over to, 4 elsewhere.
fn distance(from: &Locality, to: &Locality, failover: &[LocalityFailover]) -> u32 {
    if from.region == to.region {
        return match (from.zone == to.zone, from.subzone == to.subzone) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => 2,
        };
    }
    region_distance(from, to, failover) + 2
}

/// How far a region is: 0 the same, 1 the one failed over to, 2 any other.
fn region_distance(from: &Locality, to: &Locality, failover: &[LocalityFailover]) -> u32 {
    let target = failover
        .iter()
        .find(|f| f.from == *from.region)
        .map(|f| f.to.as_str());
    if from.region == to.region {
        0
    } else if target == Some(&*to.region) {
        1
    } else {
        2
    }
}

/// Orders groups by distance within the order they have.
fn ordered<E>(mut groups: Vec<Group<E>>, distance: impl Fn(&Locality) -> u32) -> Vec<Group<E>> {
    for g in &mut groups {
        g.priority = g.priority * 5 + distance(&g.locality);
    }
    compact(groups)
}

/// Renumbers priorities so that none is left out.
fn compact<E>(mut groups: Vec<Group<E>>) -> Vec<Group<E>> {
    let mut used: Vec<u32> = groups.iter().map(|g| g.priority).collect();
    used.sort_unstable();
    used.dedup();
    for g in &mut groups {
        g.priority = used
            .iter()
            .position(|p| *p == g.priority)
            .map_or(0, |i| i as u32);
    }
    groups
}

/// Splits groups by how many of the leading labels an endpoint shares with the client; more is better.
fn by_labels<E: Member + Clone>(
    reader: &Reader<'_>,
    groups: Vec<Group<E>>,
    labels: &[String],
    scope: &EndpointScope,
) -> Vec<Group<E>> {
    let mut split: BTreeMap<(u32, usize), Group<E>> = BTreeMap::new();
    for (i, group) in groups.into_iter().enumerate() {
        for member in group.members {
            let priority = unmatched(reader, labels, scope, member.facts());
            split
                .entry((priority, i))
                .or_insert_with(|| Group {
                    locality: group.locality.clone(),
                    priority,
                    weight: 0,
                    members: Vec::new(),
                })
                .members
                .push(member);
        }
    }
    let mut out: Vec<Group<E>> = split.into_values().collect();
    for g in &mut out {
        g.weight = g
            .members
            .iter()
            .map(Member::weight)
            .fold(0, u32::saturating_add);
    }
    compact(out)
}

/// Labels left after the leading ones that match; 0 is the best. If the network comes first, endpoints of another one are
/// worse than all of the client's own, and ordered by the labels that follow.
fn unmatched(
    reader: &Reader<'_>,
    labels: &[String],
    scope: &EndpointScope,
    endpoint: &Endpoint,
) -> u32 {
    let matches = |spec: &String| {
        let (label, wanted) = spec
            .split_once('=')
            .map_or((spec.as_str(), None), |(l, v)| (l, Some(v)));
        let have = endpoint_value(endpoint, label);
        match wanted {
            Some(v) => &*have == v,
            None => have == client_value(reader, scope, label),
        }
    };
    let elsewhere = labels.first().is_some_and(|l| l == NETWORK && !matches(l));
    let (skipped, extra) = if elsewhere { (1, labels.len()) } else { (0, 0) };
    let matched = labels[skipped..].iter().take_while(|l| matches(l)).count();
    (labels.len() - skipped - matched + extra) as u32
}

fn client_value(reader: &Reader<'_>, scope: &EndpointScope, label: &str) -> Text {
    match label {
        NETWORK => scope.network.clone(),
        REGION => scope.client.place(reader).region.clone(),
        ZONE => scope.client.place(reader).zone.clone(),
        SUBZONE => scope.client.place(reader).subzone.clone(),
        HOSTNAME => scope.node.clone(),
        CLUSTER => scope.cluster.clone(),
        other => scope
            .client
            .label(reader, other)
            .cloned()
            .unwrap_or_default(),
    }
}

fn endpoint_value(endpoint: &Endpoint, label: &str) -> Text {
    match label {
        NETWORK => endpoint.network.clone(),
        REGION => endpoint.locality.region.clone(),
        ZONE => endpoint.locality.zone.clone(),
        SUBZONE => endpoint.locality.subzone.clone(),
        HOSTNAME => endpoint.node.clone(),
        CLUSTER => endpoint.cluster.clone(),
        other => endpoint.labels.get(other).cloned().unwrap_or_default(),
    }
}
