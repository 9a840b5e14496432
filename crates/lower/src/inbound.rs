//! The inbound side of a sidecar: what it does with connections to its application.

use std::collections::BTreeMap;

use pilotfish_config::networking::{CaptureMode, IstioIngressListener, Sidecar};
use pilotfish_ir::cluster::{Discovery, Policy, ServiceRef, UpstreamHttp};
use pilotfish_ir::endpoint::{Address, EndpointGroup, EndpointSet, Health, Locality};
use pilotfish_ir::listener::{
    Chain, ChainMatch, ClientCert, Direction, Handler, Inspect, Ports, Routes, Side, Tcp, Transport,
};
use pilotfish_ir::route::{Forward, Retries};
use pilotfish_ir::tls::{DownstreamMutual, DownstreamTls};
use pilotfish_ir::{Cluster, ClusterName, Listener, Millis, RouteTable, VirtualHost, endpoint};
use pilotfish_mesh::{Protocol, Reader, Service, ServiceId};

use crate::{
    Families, InboundScope, Interception, Text, chain, cluster, outbound, policy, route, visibility,
};

/// One port of the application.
struct Served {
    /// Port clients know; names the virtual host.
    number: u16,
    /// Port of the application.
    target: u16,
    protocol: Protocol,
    /// Host for traces and telemetry.
    host: Text,
    /// Address the listener is bound to, if it is.
    binds: Vec<Text>,
    bind_to_port: bool,
    origin: Option<Text>,
}

fn ingress<'w>(
    reader: &Reader<'w>,
    scope: &InboundScope,
) -> Option<(&'w pilotfish_config::Object, &'w Sidecar)> {
    let object = visibility::sidecar(reader, &scope.client)?;
    let spec = object.get::<Sidecar>()?;
    (!spec.ingress.is_empty()).then_some((object, spec))
}

fn binds_to_port(scope: &InboundScope, mode: CaptureMode) -> bool {
    match mode {
        CaptureMode::Default => scope.client.interception == Interception::None,
        CaptureMode::Iptables => false,
        CaptureMode::None => true,
    }
}

/// Ports in order of the application's port; the oldest service decides what a port speaks.
fn served(reader: &Reader<'_>, scope: &InboundScope) -> Vec<Served> {
    let mut by_port: BTreeMap<u16, Served> = BTreeMap::new();
    let wildcards: Vec<Text> = scope
        .client
        .families
        .wildcards()
        .iter()
        .map(|w| Text::from(*w))
        .collect();
    if let Some((object, spec)) = ingress(reader, scope) {
        for i in &spec.ingress {
            let Some(number) = i.port.as_ref().and_then(|p| u16::try_from(p.number).ok()) else {
                continue;
            };
            let binds = match (i.bind.as_str(), scope.addresses.first()) {
                ("", Some(own)) => vec![own.clone()],
                ("", None) => wildcards.clone(),
                (written, _) => vec![Text::from(written)],
            };
            by_port.entry(number).or_insert_with(|| Served {
                number,
                target: number,
                protocol: Protocol::parse(i.port.as_ref().map_or("", |p| &p.protocol)),
                host: Text::from(format!("{}.{}", object.key.name, object.key.namespace)),
                binds,
                bind_to_port: binds_to_port(scope, i.capture_mode),
                origin: Some(Text::from(format!(
                    "/apis/networking.istio.io/v1/namespaces/{}/sidecar/{}",
                    object.key.namespace, object.key.name
                ))),
            });
        }
    } else if scope.client.interception != Interception::None {
        for i in &scope.instances {
            let Some(service) = reader.service(&i.service) else {
                continue;
            };
            let Some(port) = service.port(i.port) else {
                continue;
            };
            by_port.entry(i.target).or_insert_with(|| Served {
                number: i.port,
                target: i.target,
                protocol: port.protocol,
                host: service.id.host.clone(),
                binds: wildcards.clone(),
                bind_to_port: false,
                origin: None,
            });
        }
    }
    by_port.into_values().collect()
}

/// Inbound listeners.
pub fn listeners(reader: &Reader<'_>, scope: &InboundScope) -> Vec<Listener> {
    let mut out = Vec::new();
    let mut chains = Vec::new();
    for s in served(reader, scope) {
        let own = port_chains(reader, scope, &s);
        if s.bind_to_port {
            out.push(bound(reader, scope, &s, own));
        } else {
            chains.extend(own);
        }
    }
    if scope.client.interception != Interception::None {
        out.insert(0, intercept(reader, scope, chains));
    }
    out
}

fn intercept(reader: &Reader<'_>, scope: &InboundScope, served: Vec<Chain>) -> Listener {
    let port = u16::try_from(reader.mesh().proxy_inbound_listen_port)
        .ok()
        .filter(|p| *p > 0)
        .unwrap_or(15006);
    let wildcards: Vec<Text> = scope
        .client
        .families
        .wildcards()
        .iter()
        .map(|w| Text::from(*w))
        .collect();
    let mut chains = vec![Chain {
        name: Text::from("virtualInbound-blackhole"),
        matches: ChainMatch {
            port: Some(port),
            ..Default::default()
        },
        explicit_match: false,
        tls: None,
        handler: Handler::Tcp(chain::tcp_to(ClusterName::BlackHole, Side::Server)),
        metadata_exchange: true,
        connect_timeout: None,
        origin: None,
    }];
    let passthrough = Served {
        number: 0,
        target: 0,
        protocol: Protocol::Auto,
        host: Text::default(),
        binds: Vec::new(),
        bind_to_port: false,
        origin: None,
    };
    chains.extend(port_chains(reader, scope, &passthrough));
    chains.extend(served);
    let mut l = listener(
        reader,
        Text::from("virtualInbound"),
        &wildcards,
        port,
        chains,
    );
    l.inspect.original_dst = true;
    if scope.client.interception == Interception::Tproxy {
        l.transparent = true;
        l.inspect.original_src = true;
    }
    l
}

fn bound(reader: &Reader<'_>, _scope: &InboundScope, s: &Served, chains: Vec<Chain>) -> Listener {
    listener(
        reader,
        outbound::listener_name(&s.binds[0], s.target),
        &s.binds,
        s.target,
        chains,
    )
}

fn listener(
    reader: &Reader<'_>,
    name: Text,
    binds: &[Text],
    port: u16,
    chains: Vec<Chain>,
) -> Listener {
    let inspect = inspectors(&chains);
    Listener {
        name,
        address: Address::Socket(binds[0].clone(), port),
        additional: binds[1..]
            .iter()
            .map(|b| Address::Socket(b.clone(), port))
            .collect(),
        direction: Direction::Inbound,
        bind: true,
        use_original_dst: false,
        transparent: false,
        inspect,
        continue_on_timeout: true,
        inspect_timeout: Some(
            reader
                .mesh()
                .protocol_detection_timeout
                .map_or(Millis(0), |d| d.get().into()),
        ),
        chains,
        default_chain: None,
        one_accept_per_event: true,
    }
}

/// Inspectors, and the ports on which they need not run because no chain asks.
fn inspectors(chains: &[Chain]) -> Inspect {
    let mut needs: BTreeMap<u16, (bool, bool)> = BTreeMap::new();
    for c in chains {
        let n = needs.entry(c.matches.port.unwrap_or(0)).or_default();
        n.0 |= c.matches.transport == Some(Transport::Tls);
        n.1 |= c
            .matches
            .alpn
            .iter()
            .any(|a| matches!(&**a, "http/1.1" | "h2c"));
    }
    let with = |pick: fn(&(bool, bool)) -> bool, want: bool| {
        needs
            .iter()
            .filter(|(_, n)| pick(n) == want)
            .map(|(p, _)| *p)
            .collect::<Vec<u16>>()
    };
    // Ports nobody serves (port 0 here) are looked into only if the chains for them ask.
    let everywhere = needs.get(&0).is_some_and(|n| n.0);
    let tls = needs.values().any(|n| n.0).then(|| {
        if everywhere {
            Ports::Except(with(|n| n.0, false))
        } else {
            Ports::Only(with(|n| n.0, true))
        }
    });
    let http = needs
        .values()
        .any(|n| n.1)
        .then(|| Ports::Except(with(|n| n.1, false)));
    Inspect {
        tls,
        http,
        ..Default::default()
    }
}

const MUTUAL_HTTP: [&str; 3] = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
const MUTUAL_TCP: [&str; 2] = ["istio-peer-exchange", "istio"];
const MUTUAL_ANY: [&str; 5] = [
    "istio",
    "istio-peer-exchange",
    "istio-http/1.0",
    "istio-http/1.1",
    "istio-h2",
];
const PLAIN_HTTP: [&str; 2] = ["http/1.1", "h2c"];

/// The chains of one port when mutual TLS is accepted but not demanded.
fn port_chains(reader: &Reader<'_>, scope: &InboundScope, s: &Served) -> Vec<Chain> {
    let chain = |http: bool, mutual: bool, transport: Transport, alpn: &[&str]| {
        permissive(reader, scope, s, http, mutual, transport, alpn)
    };
    match s.protocol {
        p if p.is_http() => vec![
            chain(true, true, Transport::Tls, &MUTUAL_ANY),
            chain(true, false, Transport::Plain, &[]),
        ],
        p if p.is_auto() => vec![
            chain(true, true, Transport::Tls, &MUTUAL_HTTP),
            chain(true, false, Transport::Plain, &PLAIN_HTTP),
            chain(false, true, Transport::Tls, &MUTUAL_TCP),
            chain(false, false, Transport::Plain, &[]),
            chain(false, false, Transport::Tls, &[]),
        ],
        _ => vec![
            chain(false, true, Transport::Tls, &MUTUAL_ANY),
            chain(false, false, Transport::Tls, &[]),
            chain(false, false, Transport::Plain, &[]),
        ],
    }
}

fn permissive(
    reader: &Reader<'_>,
    scope: &InboundScope,
    s: &Served,
    http: bool,
    mutual: bool,
    transport: Transport,
    alpn: &[&str],
) -> Chain {
    let passthrough = s.target == 0;
    let name = match (passthrough, http) {
        (true, true) => Text::from("virtualInbound-catchall-http"),
        (true, false) => Text::from("virtualInbound"),
        (false, _) => outbound::listener_name(&s.binds[0], s.target),
    };
    let to = if passthrough {
        ClusterName::InboundPassthrough
    } else {
        ClusterName::Inbound { port: s.target }
    };
    Chain {
        name,
        matches: ChainMatch {
            port: (!passthrough).then_some(s.target),
            transport: Some(transport),
            alpn: alpn.iter().map(|a| Text::from(*a)).collect(),
            ..Default::default()
        },
        explicit_match: false,
        tls: mutual.then(|| DownstreamTls::Mutual(server_tls(reader, http))),
        handler: if http {
            http_handler(reader, scope, s, to)
        } else {
            Handler::Tcp(tcp_handler(reader, s, to))
        },
        metadata_exchange: true,
        connect_timeout: None,
        origin: s.origin.clone(),
    }
}

fn server_tls(reader: &Reader<'_>, http: bool) -> DownstreamMutual {
    const CIPHERS: [&str; 6] = [
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "AES256-GCM-SHA384",
        "AES128-GCM-SHA256",
    ];
    let mesh = reader.mesh();
    let alpn: &[&str] = if http {
        &["h2", "http/1.1"]
    } else {
        &["istio-peer-exchange", "h2", "http/1.1"]
    };
    let domains = std::iter::once(mesh.trust_domain.as_str())
        .chain(mesh.trust_domain_aliases.iter().map(String::as_str));
    DownstreamMutual {
        alpn: alpn.iter().map(|a| Text::from(*a)).collect(),
        identity_prefixes: domains
            .map(|d| Text::from(format!("spiffe://{d}/")))
            .collect(),
        tls13_only: false,
        ciphers: CIPHERS.iter().map(|c| Text::from(*c)).collect(),
    }
}

fn tcp_handler(reader: &Reader<'_>, s: &Served, to: ClusterName) -> Tcp {
    let mut tcp = chain::tcp_to(to, Side::Server);
    tcp.codec = chain::codec(reader, s.protocol);
    tcp
}

fn http_handler(reader: &Reader<'_>, scope: &InboundScope, s: &Served, to: ClusterName) -> Handler {
    let mut h = chain::http(reader, Side::Server, scope.tracing.clone(), scope.http10);
    let passthrough = s.target == 0;
    let (table, stat) = if passthrough {
        (
            Text::from("InboundPassthroughCluster"),
            Text::from("InboundPassthroughCluster"),
        )
    } else {
        (
            Text::from(format!("inbound|{}||", s.target)),
            Text::from(format!(
                "inbound_{}",
                outbound::listener_name(&s.binds[0], s.target)
            )),
        )
    };
    h.stat_prefix = stat;
    h.http2 = s.protocol.is_http2();
    h.grpc_web = s.protocol == Protocol::GrpcWeb;
    h.client_cert = ClientCert::AppendForward;
    h.server_name = Some(Text::from("istio-envoy"));
    let forward = Forward {
        to: vec![route::to(to)],
        split: false,
        timeout: Millis(0),
        max_grpc_timeout: None,
        stream_duration: Some(Millis(0)),
        retries: (!s.protocol.is_grpc()).then(|| Retries {
            on: Text::from("reset-before-request"),
            statuses: Vec::new(),
            attempts: 2,
            per_try: None,
            other_hosts: false,
            other_localities: false,
            backoff: None,
        }),
        rewrite: None,
        mirrors: Vec::new(),
        hash: Vec::new(),
    };
    let operation = format!("{}:{}/*", s.host, s.number);
    let host = VirtualHost {
        name: Text::from(format!("inbound|http|{}", s.number)),
        domains: vec![Text::from("*")],
        routes: vec![route::plain_route("default", forward, Some(operation))],
        attempt_count: false,
        require_tls: false,
    };
    h.routes = Routes::Inline(
        RouteTable {
            name: table,
            ignore_port: false,
            max_direct_response: None,
        },
        vec![host],
    );
    Handler::Http(Box::new(h))
}

/// Inbound clusters.
pub fn clusters(reader: &Reader<'_>, scope: &InboundScope) -> Vec<Cluster> {
    let mut out = Vec::new();
    if scope.client.interception != Interception::None
        || !scope.instances.is_empty()
        || ingress(reader, scope).is_some()
    {
        out.extend(passthrough_clusters(reader, scope));
    }
    if let Some((_, spec)) = ingress(reader, scope) {
        let served = served(reader, scope);
        for s in served {
            let written = spec.ingress.iter().find(|i| {
                i.port
                    .as_ref()
                    .is_some_and(|p| p.number == u32::from(s.target))
            });
            out.extend(written.map(|i| ingress_cluster(reader, scope, &s, i)));
        }
        return out;
    }
    // All services of a port are named, the oldest first.
    let mut by_port: BTreeMap<u16, (u16, Protocol, Vec<ServiceRef>)> = BTreeMap::new();
    if scope.client.interception != Interception::None {
        for i in &scope.instances {
            let Some(service) = reader.service(&i.service) else {
                continue;
            };
            let Some(port) = service.port(i.port) else {
                continue;
            };
            let (first, _, refs) =
                by_port
                    .entry(i.target)
                    .or_insert((i.port, port.protocol, Vec::new()));
            let r = ServiceRef {
                host: service.id.host.clone(),
                name: service.name.clone(),
                namespace: service.id.namespace.clone(),
            };
            // Services that reach the port under another number are not named.
            if *first == i.port && !refs.contains(&r) {
                refs.push(r);
            }
        }
    }
    for (target, (number, protocol, services)) in by_port {
        let mut c = local(reader, scope, target, protocol);
        let first = services.first().map(|s| ServiceId {
            host: s.host.clone(),
            namespace: s.namespace.clone(),
        });
        c.services = services;
        if let Some(service) = first.and_then(|id| reader.service(&id)) {
            limit(reader, scope, &mut c, service, number);
        }
        out.push(c);
    }
    out
}

/// The connection limits of the service's own rule hold on this side too.
fn limit(reader: &Reader<'_>, scope: &InboundScope, c: &mut Cluster, service: &Service, port: u16) {
    let rule = policy::rule(reader, &scope.client, service);
    c.rule = rule.map(|r| r.path());
    c.pool = policy::pool(
        reader,
        policy::effective(rule, None, port).connection_pool.as_ref(),
    );
}

fn source_addresses(families: Families) -> (Text, Vec<Text>) {
    match families {
        Families::V4 => (Text::from("127.0.0.6"), Vec::new()),
        Families::V6 => (Text::from("::6"), Vec::new()),
        Families::Dual => (Text::from("127.0.0.6"), vec![Text::from("::6")]),
    }
}

fn passthrough_clusters(reader: &Reader<'_>, scope: &InboundScope) -> Vec<Cluster> {
    let discovery = Discovery::OriginalDst {
        use_http_header: false,
        port_override: None,
        keep_forever: false,
    };
    let mut c = cluster::bare(reader, ClusterName::InboundPassthrough, discovery);
    cluster::passthrough(&mut c);
    mark(&mut c, scope);
    vec![c]
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

fn local(reader: &Reader<'_>, scope: &InboundScope, target: u16, protocol: Protocol) -> Cluster {
    let discovery = Discovery::OriginalDst {
        use_http_header: false,
        port_override: None,
        keep_forever: true,
    };
    let mut c = cluster::bare(reader, ClusterName::Inbound { port: target }, discovery);
    c.balancing.policy = Policy::ClusterProvided;
    c.balancing.explicit_common = true;
    c.http = upstream_http(protocol);
    mark(&mut c, scope);
    c
}

/// The upstream of an ingress listener: the endpoint written, else the application at its own address.
fn ingress_cluster(
    reader: &Reader<'_>,
    scope: &InboundScope,
    s: &Served,
    i: &IstioIngressListener,
) -> Cluster {
    let mut c = local(reader, scope, s.target, s.protocol);
    let loopbacks = scope.client.families.loopbacks();
    let address = if let Some(path) = i.default_endpoint.strip_prefix("unix://") {
        Some(Address::Unix(Text::from(path)))
    } else {
        i.default_endpoint
            .rsplit_once(':')
            .and_then(|(host, port)| {
                let port: u16 = port.parse().ok()?;
                match host {
                    "127.0.0.1" | "[::1]" => Some(Address::Socket(Text::from(loopbacks[0]), port)),
                    // The original address, on another port.
                    "0.0.0.0" | "[::]" => {
                        c.discovery = Discovery::OriginalDst {
                            use_http_header: false,
                            port_override: (port != s.target).then_some(port),
                            keep_forever: true,
                        };
                        None
                    }
                    other => Some(Address::Socket(Text::from(other), port)),
                }
            })
    };
    if let Some(address) = address {
        let e = endpoint::Endpoint {
            address,
            additional: Vec::new(),
            health: Health::Healthy,
            weight: 0,
            mutual_tls: false,
            workload: Text::default(),
            hostname: Text::default(),
        };
        let group = EndpointGroup {
            locality: Locality::default(),
            priority: 0,
            weight: 0,
            endpoints: vec![e],
        };
        let set = EndpointSet {
            cluster: c.name.clone(),
            groups: vec![group],
            overprovisioning: None,
            with_health: false,
        };
        c.discovery = Discovery::StaticEndpoints(set);
        c.balancing.policy = Policy::RoundRobin;
        c.source_address = None;
        c.extra_source_addresses.clear();
    }
    c
}
