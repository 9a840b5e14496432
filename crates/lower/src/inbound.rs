//! The inbound side of a sidecar: what it does with connections to its application.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::mesh::{InboundTrafficMode, TlsProtocol};
use pilotfish_config::networking::{
    CaptureMode, ConnectionPoolSettings, IstioIngressListener, Sidecar,
};
use pilotfish_ir::cluster::{Discovery, Policy, ServiceRef, UpstreamHttp};
use pilotfish_ir::endpoint::{Address, EndpointGroup, EndpointSet, Health, Locality};
use pilotfish_ir::listener::{
    Chain, ChainMatch, Direction, Handler, Inspect, Ports, Routes, Side, Tcp, Transport,
};
use pilotfish_ir::route::{Forward, Retries};
use pilotfish_ir::tls::{DownstreamMutual, DownstreamTls};
use pilotfish_ir::{Cluster, ClusterName, Listener, Millis, RouteTable, VirtualHost, endpoint};
use pilotfish_mesh::{Port, Protocol, Reader, Registry, Service};

use crate::{
    Families, InboundScope, Interception, Text, chain, cluster, outbound, policy, route, visibility,
};

/// The listener that takes intercepted connections, and the chains in it for ports nobody serves.
const INTERCEPT: &str = "virtualInbound";

/// One port of the application.
struct Served<'w> {
    /// Port clients know; names the virtual host.
    number: u16,
    /// Its name, for statistics.
    name: Text,
    /// Port of the application.
    target: u16,
    protocol: Protocol,
    /// Host for traces and telemetry.
    host: Text,
    /// The Kubernetes service behind it, for statistics: name and namespace.
    kubernetes: Option<(Text, Text)>,
    /// Address the listener is bound to, if it is.
    binds: Vec<Text>,
    bind_to_port: bool,
    origin: Option<Text>,
    /// The listener as the user wrote it, if he did.
    written: Option<&'w IstioIngressListener>,
}

impl Served<'_> {
    /// What nobody serves.
    fn nothing() -> Self {
        Self {
            number: 0,
            name: Text::from(INTERCEPT),
            target: 0,
            protocol: Protocol::Auto,
            host: Text::default(),
            kubernetes: None,
            binds: Vec::new(),
            bind_to_port: false,
            origin: None,
            written: None,
        }
    }

    /// The name of its byte streams in statistics, if the mesh says how names are made.
    fn stat(&self, pattern: &str) -> Option<Text> {
        let kubernetes = self.kubernetes.as_ref().map(|(name, ns)| (&**name, &**ns));
        let port = (self.number, &*self.name);
        (!pattern.is_empty())
            .then(|| Text::from(cluster::fill(pattern, &self.host, kubernetes, "", port)))
    }
}

fn ingress<'w>(reader: &Reader<'w>, scope: &InboundScope) -> Option<(&'w Object, &'w Sidecar)> {
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

/// Whether a listener may be made: not on ports the proxy may not bind, nor on all addresses where it listens itself.
fn can_bind(
    scope: &InboundScope,
    bind_to_port: bool,
    bind: &str,
    port: u16,
    protocol: Protocol,
    taken: &[i32],
) -> bool {
    if bind_to_port && port < 1024 && !scope.client.privileged {
        return false;
    }
    let everywhere = if bind.is_empty() {
        protocol.is_http()
    } else {
        bind == scope.client.families.wildcards()[0]
    };
    !everywhere || !(scope.own_ports.contains(&port) || taken.contains(&i32::from(port)))
}

fn wildcards(scope: &InboundScope) -> Vec<Text> {
    let all = scope.client.families.wildcards();
    all.iter().map(|w| Text::from(*w)).collect()
}

/// Whether ports of services are served beside those that a Sidecar object writes.
fn merges(reader: &Reader<'_>) -> bool {
    chain::feature(
        reader,
        "PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE",
        false,
    )
}

/// Ports in order of the application's port; the oldest service decides what a port speaks.
fn served<'w>(reader: &Reader<'w>, scope: &InboundScope) -> Vec<Served<'w>> {
    let written = ingress(reader, scope);
    let mut by_port: BTreeMap<u16, Served<'w>> = BTreeMap::new();
    let of_services = match written {
        None => scope.client.interception != Interception::None,
        Some(_) => merges(reader),
    };
    if of_services {
        let written_ports: BTreeSet<u32> = written
            .iter()
            .flat_map(|(_, spec)| &spec.ingress)
            .filter_map(|i| i.port.as_ref().map(|p| p.number))
            .collect();
        of_instances(reader, scope, &written_ports, &mut by_port);
    }
    if let Some((object, spec)) = written {
        for i in &spec.ingress {
            let Some((number, port)) = i
                .port
                .as_ref()
                .and_then(|p| Some((u16::try_from(p.number).ok()?, p)))
            else {
                continue;
            };
            let bind_to_port = binds_to_port(scope, i.capture_mode);
            let protocol = Protocol::parse(&port.protocol);
            if !can_bind(scope, bind_to_port, &i.bind, number, protocol, &[]) {
                continue;
            }
            let binds = match (i.bind.as_str(), scope.addresses.first()) {
                ("", Some(own)) => vec![own.clone()],
                ("", None) => wildcards(scope),
                (written, _) => vec![Text::from(written)],
            };
            by_port.entry(number).or_insert_with(|| Served {
                number,
                name: Text::from(port.name.as_str()),
                target: number,
                protocol,
                host: Text::from(format!("{}.{}", object.key.name, object.key.namespace)),
                kubernetes: None,
                binds,
                bind_to_port,
                origin: Some(Text::from(format!(
                    "/apis/networking.istio.io/v1/namespaces/{}/sidecar/{}",
                    object.key.namespace, object.key.name
                ))),
                written: Some(i),
            });
        }
    }
    by_port.into_values().collect()
}

/// Ports of the services the workload stands behind.
fn of_instances(
    reader: &Reader<'_>,
    scope: &InboundScope,
    written: &BTreeSet<u32>,
    by_port: &mut BTreeMap<u16, Served<'_>>,
) {
    let wildcards = wildcards(scope);
    let bind_to_port = binds_to_port(scope, CaptureMode::Default);
    let mesh = reader.mesh();
    let taken = [mesh.proxy_listen_port, mesh.proxy_inbound_listen_port];
    for i in &scope.instances {
        let Some(service) = reader.service(&i.service) else {
            continue;
        };
        let Some(port) = service.port(i.port) else {
            continue;
        };
        let (bind, protocol) = (&wildcards[0], port.protocol);
        if !can_bind(scope, bind_to_port, bind, i.target, protocol, &taken)
            || written.contains(&u32::from(i.target))
        {
            continue;
        }
        let kubernetes = service.registry == Registry::Kubernetes;
        by_port.entry(i.target).or_insert_with(|| Served {
            number: i.port,
            name: port.name.clone(),
            target: i.target,
            protocol,
            host: service.id.host.clone(),
            kubernetes: kubernetes.then(|| (service.name.clone(), service.id.namespace.clone())),
            binds: wildcards.clone(),
            bind_to_port,
            origin: None,
            written: None,
        });
    }
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
    chains.extend(port_chains(reader, scope, &Served::nothing()));
    chains.extend(served);
    let name = Text::from(INTERCEPT);
    let mut l = listener(reader, scope, name, &wildcards(scope), port, chains);
    l.inspect.original_dst = true;
    if scope.client.interception == Interception::Tproxy {
        l.transparent = true;
        l.inspect.original_src = true;
    }
    l
}

fn bound(
    reader: &Reader<'_>,
    scope: &InboundScope,
    s: &Served<'_>,
    chains: Vec<Chain>,
) -> Listener {
    let name = outbound::listener_name(&s.binds[0], s.target);
    listener(reader, scope, name, &s.binds, s.target, chains)
}

fn listener(
    reader: &Reader<'_>,
    scope: &InboundScope,
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
        exact_balance: scope.client.conduct.inbound_balance,
        buffer_limit: None,
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
fn port_chains(reader: &Reader<'_>, scope: &InboundScope, s: &Served<'_>) -> Vec<Chain> {
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
    s: &Served<'_>,
    http: bool,
    mutual: bool,
    transport: Transport,
    alpn: &[&str],
) -> Chain {
    let passthrough = s.target == 0;
    let name = match (passthrough, http) {
        (true, true) => Text::from("virtualInbound-catchall-http"),
        (true, false) => Text::from(INTERCEPT),
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
        tls: mutual.then(|| DownstreamTls::Mutual(server_tls(reader, scope, http))),
        handler: if http {
            http_handler(reader, scope, s, to)
        } else {
            Handler::Tcp(tcp_handler(reader, scope, s, to))
        },
        metadata_exchange: true,
        connect_timeout: None,
        origin: s.origin.clone(),
    }
}

fn server_tls(reader: &Reader<'_>, scope: &InboundScope, http: bool) -> DownstreamMutual {
    const CIPHERS: [&str; 6] = [
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "AES256-GCM-SHA384",
        "AES128-GCM-SHA256",
    ];
    let mesh = reader.mesh();
    let exchange = !chain::feature(reader, "PILOT_DISABLE_MX_ALPN", false)
        && chain::feature(reader, "PILOT_ENABLE_METADATA_EXCHANGE", true);
    let alpn: &[&str] = if http || !exchange {
        &["h2", "http/1.1"]
    } else {
        &["istio-peer-exchange", "h2", "http/1.1"]
    };
    let limits = mesh.mesh_mtls.as_ref();
    let written = limits.map_or(&[][..], |l| l.cipher_suites.as_slice());
    let domains = std::iter::once(mesh.trust_domain.as_str())
        .chain(mesh.trust_domain_aliases.iter().map(String::as_str));
    DownstreamMutual {
        alpn: alpn.iter().map(|a| Text::from(*a)).collect(),
        identity_prefixes: domains
            .map(|d| Text::from(format!("spiffe://{d}/")))
            .collect(),
        tls13_only: limits.is_some_and(|l| l.min_protocol_version == TlsProtocol::Tlsv1_3),
        ciphers: if written.is_empty() {
            CIPHERS.iter().map(|c| Text::from(*c)).collect()
        } else {
            written.iter().map(|c| Text::from(c.as_str())).collect()
        },
        files: scope.files.clone(),
    }
}

fn tcp_handler(reader: &Reader<'_>, scope: &InboundScope, s: &Served<'_>, to: ClusterName) -> Tcp {
    let mut tcp = chain::tcp_to(to, Side::Server);
    if let Some(said) = s.stat(&reader.mesh().inbound_cluster_stat_name) {
        tcp.stat_prefix = said;
    }
    tcp.idle_timeout = scope.client.conduct.idle_timeout;
    tcp.codec = chain::codec(reader, s.protocol);
    tcp
}

fn http_handler(
    reader: &Reader<'_>,
    scope: &InboundScope,
    s: &Served<'_>,
    to: ClusterName,
) -> Handler {
    let mut h = chain::http(
        reader,
        &scope.client,
        Side::Server,
        scope.tracing.clone(),
        scope.http10,
    );
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
    let mut by_port: BTreeMap<u16, (u16, &Arc<Service>, Vec<ServiceRef>)> = BTreeMap::new();
    for i in scope
        .instances
        .iter()
        .filter(|i| !written.contains(&i.target))
    {
        let Some(service) = reader.service(&i.service) else {
            continue;
        };
        if service.port(i.port).is_none() {
            continue;
        }
        let (first, _, refs) = by_port
            .entry(i.target)
            .or_insert((i.port, service, Vec::new()));
        let r = service_ref(service);
        // Services that reach the port under another number are not named.
        if *first == i.port && !refs.contains(&r) {
            refs.push(r);
        }
    }
    let localhost = reader
        .mesh()
        .inbound_traffic_policy
        .as_ref()
        .is_some_and(|p| p.mode == InboundTrafficMode::Localhost);
    let mut out = Vec::new();
    for (target, (number, service, services)) in by_port {
        let Some(port) = service.port(number) else {
            continue;
        };
        let at = localhost.then(|| {
            let loopback = scope.client.families.loopbacks()[0];
            Address::Socket(Text::from(loopback), target)
        });
        let mut c = local(reader, scope, target, port.protocol, at);
        // Telemetry is not told of services outside the mesh.
        if !service.mesh_external {
            c.services = services;
        }
        c.stat_name = inbound_stat(reader, service, port, target);
        limit(reader, scope, &mut c, service, number);
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
        Families::V4 => (Text::from("127.0.0.6"), Vec::new()),
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
    if !service.mesh_external {
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
