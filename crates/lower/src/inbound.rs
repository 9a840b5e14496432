//! The inbound side of a sidecar: what it does with connections to its application.

mod upstream;

use std::collections::{BTreeMap, BTreeSet};

use pilotfish_config::Object;
use pilotfish_config::mesh::TlsProtocol;
use pilotfish_config::networking::{CaptureMode, IstioIngressListener, ServerTlsSettings, Sidecar};
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{
    Chain, ChainMatch, Direction, Handler, Inspect, Ports, Routes, Side, Tcp, Transport,
};
use pilotfish_ir::route::{Forward, Retries};
use pilotfish_ir::tls::{DownstreamMutual, DownstreamTls};
use pilotfish_ir::{ClusterName, Listener, Millis, RouteTable, VirtualHost};
use pilotfish_mesh::{Protocol, Reader, Registry};

pub use upstream::clusters;

use crate::peer::{self, Demand, Mode};
use crate::server_tls::{self, Inside};
use crate::{InboundScope, Interception, Text, chain, cluster, outbound, route, visibility};

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
    /// TLS that the user has it terminate.
    tls: Option<&'w ServerTlsSettings>,
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
            tls: None,
        }
    }

    /// Whether it stands for ports nobody serves.
    fn is_unserved(&self) -> bool {
        self.binds.is_empty()
    }

    /// The same, on a port for which somebody demands something of its own.
    fn nothing_at(port: u16) -> Self {
        Self {
            target: port,
            ..Self::nothing()
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
    let all = scope.client.families.entrances();
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
            let mut protocol = Protocol::parse(&port.protocol);
            if !can_bind(scope, bind_to_port, &i.bind, number, protocol, &[]) {
                continue;
            }
            if own_tls(reader, i).is_some() {
                protocol = protocol.inside_tls();
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
                tls: own_tls(reader, i),
            });
        }
    }
    by_port.into_values().collect()
}

/// TLS that the user has a written listener terminate; only if the control plane is told to allow it.
fn own_tls<'w>(
    reader: &Reader<'_>,
    listener: &'w IstioIngressListener,
) -> Option<&'w ServerTlsSettings> {
    let tls = listener.tls.as_ref()?;
    chain::feature(reader, "ENABLE_TLS_ON_SIDECAR_INGRESS", false).then_some(tls)
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
        let (bind, protocol) = (&wildcards[0], i.port.protocol);
        if !can_bind(scope, bind_to_port, bind, i.target, protocol, &taken)
            || written.contains(&u32::from(i.target))
        {
            continue;
        }
        let kubernetes = service.registry == Registry::Kubernetes;
        by_port.entry(i.target).or_insert_with(|| Served {
            number: i.port.number,
            name: i.port.name.clone(),
            target: i.target,
            protocol,
            host: service.id.host.clone(),
            kubernetes: kubernetes.then(|| (service.name.clone(), service.id.namespace.clone())),
            binds: wildcards.clone(),
            bind_to_port,
            origin: None,
            tls: None,
        });
    }
}

/// Inbound listeners.
pub fn listeners(reader: &Reader<'_>, scope: &InboundScope) -> Vec<Listener> {
    let mut out = Vec::new();
    let mut chains = Vec::new();
    let demand = peer::demand(reader, scope.client.namespace(reader), &|k, v| {
        scope.client.is_labelled(reader, k, v)
    });
    let all = served(reader, scope);
    let elsewhere = unserved(reader, scope, &demand, &all);
    for s in all {
        let own = port_chains(reader, scope, &s, demand.at(s.target));
        if s.bind_to_port {
            out.push(bound(reader, scope, &s, own));
        } else {
            chains.extend(own);
        }
    }
    if scope.client.interception != Interception::None {
        chains.splice(0..0, elsewhere);
        out.insert(0, intercept(reader, scope, chains));
    }
    out
}

/// Chains for ports nobody serves: for all of them, and one more set for each for which a policy demands something.
fn unserved(
    reader: &Reader<'_>,
    scope: &InboundScope,
    demand: &Demand,
    served: &[Served<'_>],
) -> Vec<Chain> {
    let mut out = port_chains(reader, scope, &Served::nothing(), demand.at(0));
    let written = ingress(reader, scope);
    let known: BTreeSet<u16> = match written {
        Some(_) => served
            .iter()
            .filter(|s| s.origin.is_some())
            .map(|s| s.target)
            .collect(),
        None => scope.instances.iter().map(|i| i.target).collect(),
    };
    for (port, mode) in demand.ports.iter().filter(|(p, _)| !known.contains(p)) {
        out.extend(port_chains(
            reader,
            scope,
            &Served::nothing_at(*port),
            *mode,
        ));
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
        metadata_exchange: chain::peers(reader),
        connect_timeout: None,
        origin: None,
    }];
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
        accepts_per_event: chain::accepts(reader),
        exact_balance: scope.client.conduct.inbound_balance,
        buffer_limit: None,
        quic: false,
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

/// The chains of one port, by what its policy demands.
fn port_chains(
    reader: &Reader<'_>,
    scope: &InboundScope,
    s: &Served<'_>,
    mode: Mode,
) -> Vec<Chain> {
    let (tls, plain) = (Some(Transport::Tls), Some(Transport::Plain));
    let plain_http = chain::plain_http(reader);
    let chain = |http: bool, mutual: bool, transport: Option<Transport>, alpn: &[&str]| {
        let tls = mutual.then(|| DownstreamTls::Mutual(server_tls(reader, scope, http)));
        one_chain(reader, scope, s, http, tls, transport, alpn)
    };
    if let (Some(settings), Mode::Plain) = (s.tls, mode) {
        let http = s.protocol.is_http();
        let own = server_tls::terminate(reader, &scope.files, settings, Inside::Http);
        return vec![one_chain(reader, scope, s, http, Some(own), tls, &[])];
    }
    let (http, auto) = (s.protocol.is_http(), s.protocol.is_auto());
    match mode {
        Mode::Permissive if http => vec![
            chain(true, true, tls, &MUTUAL_ANY),
            chain(true, false, plain, &[]),
        ],
        Mode::Permissive if auto => vec![
            chain(true, true, tls, &MUTUAL_HTTP),
            chain(true, false, plain, plain_http),
            chain(false, true, tls, &MUTUAL_TCP),
            chain(false, false, plain, &[]),
            chain(false, false, tls, &[]),
        ],
        Mode::Permissive => vec![
            chain(false, true, tls, &MUTUAL_ANY),
            chain(false, false, tls, &[]),
            chain(false, false, plain, &[]),
        ],
        Mode::Strict if auto => vec![
            chain(true, true, tls, &MUTUAL_HTTP),
            chain(false, true, tls, &[]),
        ],
        Mode::Strict => vec![chain(http, true, tls, &[])],
        Mode::Plain if auto => vec![
            chain(true, false, plain, plain_http),
            chain(false, false, plain, &[]),
        ],
        Mode::Plain => vec![chain(http, false, plain, &[])],
    }
}

fn one_chain(
    reader: &Reader<'_>,
    scope: &InboundScope,
    s: &Served<'_>,
    http: bool,
    tls: Option<DownstreamTls>,
    transport: Option<Transport>,
    alpn: &[&str],
) -> Chain {
    let name = match (s.is_unserved(), http) {
        (true, true) => Text::from("virtualInbound-catchall-http"),
        (true, false) => Text::from(INTERCEPT),
        (false, _) => outbound::listener_name(&s.binds[0], s.target),
    };
    let to = if s.is_unserved() {
        ClusterName::InboundPassthrough
    } else {
        ClusterName::Inbound { port: s.target }
    };
    Chain {
        name,
        matches: ChainMatch {
            port: (s.target > 0).then_some(s.target),
            transport,
            alpn: alpn.iter().map(|a| Text::from(*a)).collect(),
            ..Default::default()
        },
        explicit_match: false,
        tls,
        handler: if http {
            http_handler(reader, scope, s, to)
        } else {
            Handler::Tcp(tcp_handler(reader, scope, s, to))
        },
        metadata_exchange: chain::peers(reader),
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
    let alpn: &[&str] = if http || !chain::peer_exchange(reader) {
        &["h2", "http/1.1"]
    } else {
        &["istio-peer-exchange", "h2", "http/1.1"]
    };
    let limits = mesh.mesh_mtls.as_ref();
    let written = limits.map_or(&[][..], |l| l.cipher_suites.as_slice());
    let mut domains: Vec<&str> = std::iter::once(&mesh.trust_domain)
        .chain(&mesh.trust_domain_aliases)
        .chain(mesh.ca_certificates.iter().flat_map(|c| &c.trust_domains))
        .map(String::as_str)
        .collect();
    let mut seen = BTreeSet::new();
    domains.retain(|d| !d.is_empty() && seen.insert(*d));
    if chain::feature(reader, "PILOT_SKIP_VALIDATE_TRUST_DOMAIN", false) {
        domains.clear();
    }
    DownstreamMutual {
        alpn: alpn.iter().map(|a| Text::from(*a)).collect(),
        identity_prefixes: domains
            .iter()
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
    let (table, stat) = if s.is_unserved() {
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
        session: None,
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
