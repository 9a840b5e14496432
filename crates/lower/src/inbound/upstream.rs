//! Upstreams of the inbound side: the application on its ports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::mesh::InboundTrafficMode;
use pilotfish_config::networking::{ConnectionPoolSettings, IstioIngressListener, Sidecar};
use pilotfish_ir::cluster::{Discovery, Policy, ServiceRef, UpstreamHttp};
use pilotfish_ir::endpoint::{Address, EndpointGroup, EndpointSet, Health, Locality};
use pilotfish_ir::{Cluster, ClusterName, endpoint};
use pilotfish_mesh::{Port, Protocol, Reader, Service};

use super::{ingress, merges};
use crate::{Families, InboundScope, Interception, Text, cluster, policy, visibility};

/// Inbound clusters.
pub fn clusters(reader: &Reader<'_>, scope: &InboundScope) -> Vec<Cluster> {
    let mut out = vec![passthrough_cluster(reader, scope)];
    let written = ingress(reader, scope);
    let of_services = match written {
        None => scope.client.interception != Interception::None,
        Some(_) => merges(reader),
    };
    let mut written_ports = BTreeSet::new();
    for (object, i) in written
        .iter()
        .flat_map(|(o, spec)| spec.ingress.iter().map(move |i| (o, i)))
    {
        if let Some(c) = ingress_cluster(reader, scope, object, i)
            && let ClusterName::Inbound { port } = c.name
            && written_ports.insert(port)
        {
            out.push(c);
        }
    }
    if of_services {
        out.extend(service_clusters(reader, scope, &written_ports));
    }
    out
}

/// One cluster for each port of the application. All services of a port are named, the oldest first.
fn service_clusters(
    reader: &Reader<'_>,
    scope: &InboundScope,
    written: &BTreeSet<u16>,
) -> Vec<Cluster> {
    let mut by_port: BTreeMap<u16, (&Port, &Arc<Service>, Vec<ServiceRef>)> = BTreeMap::new();
    for i in scope
        .instances
        .iter()
        .filter(|i| !written.contains(&i.target))
    {
        let Some(service) = reader.service(&i.service) else {
            continue;
        };
        let (first, _, refs) = by_port
            .entry(i.target)
            .or_insert((&i.port, service, Vec::new()));
        let r = service_ref(service);
        // Services that reach the port under another number are not named.
        if first.number == i.port.number && !refs.contains(&r) {
            refs.push(r);
        }
    }
    let localhost = reader
        .mesh()
        .inbound_traffic_policy
        .as_ref()
        .is_some_and(|p| p.mode == InboundTrafficMode::Localhost);
    let mut out = Vec::new();
    for (target, (port, service, services)) in by_port {
        let at = localhost.then(|| {
            let loopback = scope.client.families.loopbacks()[0];
            Address::Socket(Text::from(loopback), target)
        });
        let mut c = local(reader, scope, target, port.protocol, at);
        // Telemetry is not told of services outside the mesh.
        if !service.mesh_external && cluster::tells_services(reader) {
            c.services = services;
        }
        c.stat_name = inbound_stat(reader, service, port, target);
        limit(reader, scope, &mut c, service, port.number);
        out.push(c);
    }
    out
}

fn service_ref(service: &Service) -> ServiceRef {
    ServiceRef {
        host: service.id.host.clone(),
        name: service.name.clone(),
        namespace: service.id.namespace.clone(),
    }
}

/// The name the mesh gives a port in statistics, if it says how names are made.
fn inbound_stat(reader: &Reader<'_>, service: &Service, port: &Port, target: u16) -> Option<Text> {
    let pattern = reader.mesh().inbound_cluster_stat_name.as_str();
    (!pattern.is_empty()).then(|| cluster::stat_name(pattern, service, port, "", target))
}

/// The connection limits of the service's own rule hold on this side too, unless the Sidecar object has some.
fn limit(reader: &Reader<'_>, scope: &InboundScope, c: &mut Cluster, service: &Service, port: u16) {
    let seen = !visibility::ports(reader, &scope.client, service).is_empty();
    let rule = seen
        .then(|| policy::rule_of_server(reader, &scope.client, service))
        .flatten();
    c.rule = rule
        .as_ref()
        .filter(|r| r.spec.traffic_policy.is_some() && !c.services.is_empty())
        .map(policy::Rule::path);
    let of_rule = policy::effective(rule.as_ref(), None, port);
    pool(reader, scope, c, of_rule.connection_pool);
    c.pool.retry_budget = of_rule.retry_budget.as_ref().map(policy::retry_budget);
}

/// Connection limits: of the Sidecar object for the port, else for all ports, else those of the destination rule, else
/// the mesh's.
fn pool(
    reader: &Reader<'_>,
    scope: &InboundScope,
    c: &mut Cluster,
    of_rule: Option<ConnectionPoolSettings>,
) {
    let spec = visibility::sidecar(reader, &scope.client).and_then(|o| o.get::<Sidecar>());
    let of_port = |spec: &'_ Sidecar| {
        spec.ingress
            .iter()
            .filter(|i| {
                matches!(c.name, ClusterName::Inbound { port }
                    if i.port.as_ref().is_some_and(|p| p.number == u32::from(port)))
            })
            .find_map(|i| i.connection_pool.clone())
    };
    let settings = spec
        .and_then(|s| of_port(s).or_else(|| s.inbound_connection_pool.clone()))
        .or(of_rule)
        .or_else(|| {
            let policy = reader.mesh().default_traffic_policy.as_ref();
            policy.and_then(|p| p.connection_pool.clone())
        });
    c.pool = policy::pool(reader, settings.as_ref());
    if settings
        .and_then(|s| s.http)
        .is_some_and(|h| h.use_client_protocol)
    {
        c.http = UpstreamHttp::Downstream;
    }
}

fn source_addresses(families: Families) -> (Text, Vec<Text>) {
    match families {
        Families::V4 | Families::Both => (Text::from("127.0.0.6"), Vec::new()),
        Families::V6 => (Text::from("::6"), Vec::new()),
        Families::Dual => (Text::from("127.0.0.6"), vec![Text::from("::6")]),
    }
}

fn passthrough_cluster(reader: &Reader<'_>, scope: &InboundScope) -> Cluster {
    let discovery = Discovery::OriginalDst {
        use_http_header: false,
        port_override: None,
        keep_forever: false,
    };
    let mut c = cluster::bare(reader, ClusterName::InboundPassthrough, discovery);
    cluster::passthrough(reader, &mut c, &scope.client);
    mark(&mut c, scope);
    if scope.client.families == Families::Both {
        c.extra_source_addresses = source_addresses(Families::Dual).1;
    }
    c
}

/// Connections to the application come from an address that interception leaves alone.
fn mark(c: &mut Cluster, scope: &InboundScope) {
    let (first, more) = source_addresses(scope.client.families);
    c.source_address = Some(first);
    c.extra_source_addresses = more;
}

fn upstream_http(protocol: Protocol) -> UpstreamHttp {
    if protocol.is_http2() {
        UpstreamHttp::Http2
    } else if protocol.is_auto() {
        UpstreamHttp::Downstream
    } else {
        UpstreamHttp::Default
    }
}

/// The application on one of its ports: at an address, else where the connection was meant to go.
fn local(
    reader: &Reader<'_>,
    scope: &InboundScope,
    port: u16,
    protocol: Protocol,
    at: Option<Address>,
) -> Cluster {
    let discovery = Discovery::OriginalDst {
        use_http_header: false,
        port_override: None,
        keep_forever: true,
    };
    let mut c = cluster::bare(reader, ClusterName::Inbound { port }, discovery);
    c.balancing.policy = Policy::ClusterProvided;
    c.balancing.explicit_common = true;
    c.http = upstream_http(protocol);
    c.preserve_case = scope.client.conduct.preserves_case()
        && !protocol.is_http2()
        && (protocol.is_http() || protocol.is_auto());
    // Connections to the loopback address are left alone anyway.
    let loopback =
        matches!(&at, Some(Address::Socket(a, _)) if matches!(&**a, "127.0.0.1" | "::1"));
    if !loopback {
        mark(&mut c, scope);
    }
    if let Some(address) = at {
        c.discovery = Discovery::StaticEndpoints(only(c.name.clone(), address));
        c.balancing.policy = Policy::RoundRobin;
    }
    c
}

/// A list of one endpoint.
fn only(cluster: ClusterName, address: Address) -> EndpointSet {
    let e = endpoint::Endpoint {
        address,
        additional: Vec::new(),
        health: Health::Healthy,
        weight: 0,
        mutual_tls: false,
        workload: Text::default(),
        hostname: Text::default(),
    };
    EndpointSet {
        cluster,
        groups: vec![EndpointGroup {
            locality: Locality::default(),
            priority: 0,
            weight: 0,
            endpoints: vec![e],
        }],
        overprovisioning: None,
        with_health: false,
    }
}

/// The upstream of an ingress listener: the endpoint written, else the application where the connection was meant to go.
fn ingress_cluster(
    reader: &Reader<'_>,
    scope: &InboundScope,
    object: &Object,
    i: &IstioIngressListener,
) -> Option<Cluster> {
    let written = i.port.as_ref()?;
    let number = u16::try_from(written.number).ok()?;
    let protocol = Protocol::parse(&written.protocol);
    let at = match i.default_endpoint.as_str() {
        "" => None,
        endpoint => endpoint_address(scope, endpoint)?,
    };
    let mut c = local(reader, scope, number, protocol, at);
    let instance = scope.instances.iter().find(|i| i.target == number);
    let service = instance.and_then(|i| reader.service(&i.service));
    let Some(service) = service else {
        let pattern = &reader.mesh().inbound_cluster_stat_name;
        if !pattern.is_empty() {
            let host = format!("{}.{}", object.key.name, object.key.namespace);
            let name = cluster::fill(pattern, &host, None, "", (number, &written.name));
            c.stat_name = Some(Text::from(
                name.replace("%TARGET_PORT%", &number.to_string()),
            ));
        }
        pool(reader, scope, &mut c, None);
        return Some(c);
    };
    if !service.mesh_external && cluster::tells_services(reader) {
        c.services = vec![service_ref(service)];
    }
    let port = Port {
        name: Text::from(written.name.as_str()),
        number,
        protocol,
    };
    c.stat_name = inbound_stat(reader, service, &port, number);
    limit(reader, scope, &mut c, service, number);
    Some(c)
}

/// Where a written endpoint is: `None` if it is no address, `Some(None)` if it is wherever the connection was meant to go.
#[expect(clippy::option_option, reason = "no endpoint and no address differ")]
fn endpoint_address(scope: &InboundScope, endpoint: &str) -> Option<Option<Address>> {
    if let Some(path) = endpoint.strip_prefix("unix://") {
        return Some(Some(Address::Unix(Text::from(path))));
    }
    let (host, port) = endpoint.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let own = |v4: bool| {
        scope
            .addresses
            .iter()
            .find(|a| a.contains('.') == v4)
            .cloned()
    };
    let families = scope.client.families;
    let address = match host {
        "0.0.0.0" => own(true).unwrap_or_else(|| Text::from("127.0.0.1")),
        "::" => own(false).unwrap_or_else(|| Text::from("::1")),
        "127.0.0.1" => Text::from(if families.v4() { host } else { "::1" }),
        "::1" => Text::from(if families.v6() { host } else { "127.0.0.1" }),
        _ => return Some(None),
    };
    Some(Some(Address::Socket(address, port)))
}
