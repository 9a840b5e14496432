//! Endpoints of one destination as a client sees them.

use pilotfish_config::networking::{ClientTlsMode, Subset, TrafficPolicy};
use pilotfish_ir::endpoint::{Address, EndpointGroup, Health};
use pilotfish_ir::{ClusterName, EndpointSet, endpoint as ir};
use pilotfish_mesh::service::TrafficDistribution;
use pilotfish_mesh::{Endpoint, EndpointHealth, Port, Reader, Service, ServiceId, endpoint};

use crate::locality::{self, Group, Member};
use crate::network::{self, Networks, Way};
use crate::policy::{self, Rule};
use crate::{EndpointScope, Text, chain, peer, visibility};

/// All endpoint sets of one service: one for each port, and one more for each port and subset.
pub fn sets(reader: &Reader<'_>, scope: &EndpointScope, id: &ServiceId) -> Vec<EndpointSet> {
    let Some(service) = reader.service(id) else {
        return Vec::new();
    };
    if !visibility::uses_eds(reader, &scope.client, service) {
        return Vec::new();
    }
    let rule = policy::rule(reader, &scope.client, service);
    let passes_on = !service.mesh_external && network::passes_on(reader, &scope.client);
    let mut out = Vec::new();
    for by_sni in [false, true].into_iter().take(1 + usize::from(passes_on)) {
        for port in visibility::ports(reader, &scope.client, service) {
            let subsets = rule.iter().flat_map(|r| &r.spec.subsets).map(Some);
            for subset in std::iter::once(None).chain(subsets) {
                let rule = rule.as_ref();
                out.push(set(reader, scope, service, port, rule, subset, by_sni));
            }
        }
    }
    out
}

fn set(
    reader: &Reader<'_>,
    scope: &EndpointScope,
    service: &Service,
    port: &Port,
    rule: Option<&Rule<'_>>,
    subset: Option<&Subset>,
    by_sni: bool,
) -> EndpointSet {
    let policy = policy::effective(rule, subset, port.number);
    let chosen = Chosen {
        policy: &policy,
        subset,
        mutual: policy::tls_mode(rule, subset, port.number),
        by_sni,
    };
    let cluster = ClusterName::Outbound {
        port: port.number,
        subset: subset
            .map(|s| Text::from(s.name.as_str()))
            .unwrap_or_default(),
        host: service.id.host.clone(),
    };
    let groups = groups(reader, scope, service, port, &chosen, false);
    EndpointSet {
        cluster: if by_sni { cluster.by_sni() } else { cluster },
        groups,
        overprovisioning: None,
        with_health: true,
    }
}

#[derive(Clone)]
struct Candidate {
    facts: Endpoint,
    built: ir::Endpoint,
}

impl Member for Candidate {
    fn facts(&self) -> &Endpoint {
        &self.facts
    }

    fn weight(&self) -> u32 {
        self.built.weight
    }
}

/// What decides which endpoints a cluster has and how they are marked.
pub(crate) struct Chosen<'a> {
    /// Policy of the cluster.
    pub(crate) policy: &'a TrafficPolicy,
    /// Labels endpoints must have.
    pub(crate) subset: Option<&'a Subset>,
    /// The mode of TLS that some rule demands.
    pub(crate) mutual: Option<ClientTlsMode>,
    /// Whether connections are passed on by their server name: to those that take mutual TLS, because nothing else is.
    pub(crate) by_sni: bool,
}

/// Endpoints of a port in canonical order, grouped by place. `dns` keeps host names and says nothing of health.
pub(crate) fn groups(
    reader: &Reader<'_>,
    scope: &EndpointScope,
    service: &Service,
    port: &Port,
    chosen: &Chosen<'_>,
    dns: bool,
) -> Vec<EndpointGroup> {
    let policy = chosen.policy;
    let all = reader
        .endpoints(&service.id)
        .and_then(|e| e.by_port.get(&port.name))
        .map_or(&[][..], Vec::as_slice);
    // Where a client falls back on all endpoints it must not know those that are not ready.
    let unhealthy_too = always_tells_unhealthy(reader, service)
        || tells_unhealthy(reader, service)
            && policy
                .outlier_detection
                .as_ref()
                .is_none_or(|o| o.min_health_percent <= 0);
    let networks = Networks::new(reader, scope);
    let networks = if dns {
        networks.of_names(all)
    } else {
        networks
    };
    let mut by_place: std::collections::BTreeMap<String, (Group<Candidate>, network::Shares<'_>)> =
        std::collections::BTreeMap::new();
    for e in all
        .iter()
        .filter(|e| takes(reader, e, scope, service, chosen.subset, unhealthy_too))
    {
        let secure = e.mutual_tls
            && match chosen.mutual {
                Some(mode) => mode == ClientTlsMode::IstioMutual,
                None => peer::lets(reader, e),
            };
        let built = build(reader, service, e, dns, secure);
        if built.is_none() && !e.addresses.is_empty() {
            continue;
        }
        let l = &e.locality;
        let (group, shares) = by_place
            .entry(format!("{}/{}/{}", l.region, l.zone, l.subzone))
            .or_insert_with(|| {
                let group = Group {
                    locality: l.clone(),
                    priority: 0,
                    weight: 0,
                    members: Vec::new(),
                };
                (group, network::Shares::new())
            });
        match (networks.way(e), built) {
            (Way::Direct, Some(mut built)) => {
                built.weight = networks.weight(built.weight);
                group.members.push(Candidate {
                    facts: e.clone(),
                    built,
                });
            }
            (Way::Through(gateways), _) if secure => {
                network::share(shares, &gateways, networks.weight(e.weight));
            }
            _ => {}
        }
    }
    let groups: Vec<_> = by_place
        .into_values()
        .map(|(mut group, shares)| {
            group.members.extend(shares.into_iter().map(|(g, weight)| {
                let (facts, built) = network::endpoint(g, weight);
                Candidate { facts, built }
            }));
            if chosen.by_sni {
                group.members.retain(|c| c.built.mutual_tls);
            }
            group.weight = group
                .members
                .iter()
                .fold(0, |sum: u32, c| sum.saturating_add(c.built.weight));
            group
        })
        .collect();
    let preference = locality::preference(reader, policy.load_balancer.as_ref(), service);
    let groups = match &preference {
        Some(p) => locality::apply(reader, groups, p, scope, policy.outlier_detection.is_some()),
        None => groups,
    };
    groups
        .into_iter()
        .map(|g| EndpointGroup {
            locality: pilotfish_ir::endpoint::Locality {
                region: g.locality.region,
                zone: g.locality.zone,
                subzone: g.locality.subzone,
            },
            priority: g.priority,
            weight: g.weight,
            endpoints: g.members.into_iter().map(|c| c.built).collect(),
        })
        .collect()
}

/// Whether clients of a service are told of endpoints that are not ready, however they balance: those that are to prefer
/// near endpoints must know how many of them can be used.
pub(crate) fn always_tells_unhealthy(reader: &Reader<'_>, service: &Service) -> bool {
    service.traffic_distribution != TrafficDistribution::Any
        || chain::feature(reader, "PILOT_SEND_UNHEALTHY_ENDPOINTS", false)
}

/// Whether clients of a service are told of endpoints that are not ready, unless they fall back on them.
pub(crate) fn tells_unhealthy(reader: &Reader<'_>, service: &Service) -> bool {
    always_tells_unhealthy(reader, service)
        || chain::feature(reader, "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", true)
}

/// Whether an endpoint goes away, by its own account or by a label.
fn drains(reader: &Reader<'_>, e: &Endpoint) -> bool {
    let label = reader
        .settings()
        .text("PILOT_DRAINING_LABEL", "istio.io/draining");
    e.health == EndpointHealth::Draining || e.labels.get(label).is_some_and(|v| !v.is_empty())
}

fn takes(
    reader: &Reader<'_>,
    e: &Endpoint,
    scope: &EndpointScope,
    service: &Service,
    subset: Option<&Subset>,
    unhealthy_too: bool,
) -> bool {
    if service.node_local && e.node != scope.node {
        return false;
    }
    // A node is one of its cluster, too.
    if (service.cluster_local || service.node_local) && e.cluster != *scope.client.cluster(reader) {
        return false;
    }
    if !network::in_view(scope, e) {
        return false;
    }
    match e.health {
        EndpointHealth::Terminating => return false,
        EndpointHealth::Unhealthy if !unhealthy_too => return false,
        _ => {}
    }
    // Nobody but a client with a session is to go there.
    if drains(reader, e) && service.session_cookie(reader.settings()).is_none() {
        return false;
    }
    subset.is_none_or(|s| {
        s.labels
            .iter()
            .all(|(k, v)| e.labels.get(k.as_str()).is_some_and(|have| **have == **v))
    })
}

/// Who the workload is, for telemetry; empty where it is not told.
fn telemetry(reader: &Reader<'_>, service: &Service, e: &Endpoint) -> Text {
    let on = |name: &str, otherwise: bool| chain::feature(reader, name, otherwise);
    if !on("PILOT_ENABLE_TELEMETRY_LABEL", true) || !on("PILOT_ENDPOINT_TELEMETRY_LABEL", true) {
        return Text::default();
    }
    // What is outside the mesh has no workloads that could say who they are; the object that declares it can.
    let by_service = service.mesh_external
        && on(
            "LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES",
            false,
        );
    let (namespace, (name, revision)) = if by_service {
        let canonical = endpoint::canonical_of(&service.labels, &service.source.name);
        (&service.id.namespace, canonical)
    } else {
        (&e.namespace, endpoint::canonical(e))
    };
    Text::from(format!(
        "{};{namespace};{name};{revision};{}",
        e.workload, e.cluster
    ))
}

fn build(
    reader: &Reader<'_>,
    service: &Service,
    e: &Endpoint,
    dns: bool,
    mutual_tls: bool,
) -> Option<ir::Endpoint> {
    let usable: Vec<Address> = e
        .addresses
        .iter()
        .filter(|a| dns || a.starts_with("unix://") || a.parse::<std::net::IpAddr>().is_ok())
        .map(|a| match a.strip_prefix("unix://") {
            Some(path) => Address::Unix(Text::from(path)),
            None => Address::Socket(a.clone(), e.port),
        })
        .collect();
    let mut addresses = usable.into_iter();
    let address = addresses.next()?;
    let workload = telemetry(reader, service, e);
    Some(ir::Endpoint {
        address,
        additional: if reader.settings().dual_stack {
            addresses.collect()
        } else {
            Vec::new()
        },
        health: match e.health {
            _ if drains(reader, e) => Health::Draining,
            EndpointHealth::Unknown => Health::Unknown,
            EndpointHealth::Healthy => Health::Healthy,
            EndpointHealth::Unhealthy => Health::Unhealthy,
            EndpointHealth::Draining | EndpointHealth::Terminating => Health::Draining,
        },
        weight: e.weight.max(1),
        mutual_tls,
        workload,
        hostname: Text::default(),
    })
}
