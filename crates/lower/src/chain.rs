//! What an outbound listener does with a connection: chains of HTTP and byte streams, by default or as written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pilotfish_config::Object;
use pilotfish_config::networking::{
    L4MatchAttributes, RouteDestination, TlsMatchAttributes, VirtualService,
};
use pilotfish_ir::listener::{
    Chain, ChainMatch, ClientCert, DnsCache, EscapedSlashes, Handler, Http, Routes, Side, Tcp,
    TcpCodec, Tracing, Transport, Tunnel,
};
use pilotfish_ir::{ClusterName, Millis};
use pilotfish_mesh::{Port, Protocol, Reader, Resolution, Service, host};

use crate::virtual_service::{self, Place, selects};
use crate::visibility::Elsewhere;
use crate::{Client, ListenerScope, Text, cluster, policy, route, session, visibility};

/// ALPN of HTTP in plain text, as the inspector reports it.
const PLAIN_HTTP: [&str; 3] = ["http/1.0", "http/1.1", "h2c"];

/// ALPN of plain HTTP that is taken for HTTP. HTTP/1.0 would only be refused, unless all proxies accept it; as bytes it may
/// get through.
pub(crate) fn plain_http(reader: &Reader<'_>) -> &'static [&'static str] {
    if feature(reader, "PILOT_HTTP10", false) {
        &PLAIN_HTTP
    } else {
        &PLAIN_HTTP[1..]
    }
}

/// Bytes to one cluster that names its own statistics.
pub(crate) fn tcp_to(cluster: ClusterName, side: Side) -> Tcp {
    Tcp {
        stat_prefix: stat_name(&cluster),
        to: vec![(cluster, 0)],
        idle_timeout: None,
        max_duration: None,
        hash_source_ip: false,
        tunnel: None,
        codec: TcpCodec::Raw,
        side,
        forward_by_sni: None,
    }
}

/// How statistics name a cluster.
fn stat_name(cluster: &ClusterName) -> Text {
    match cluster {
        ClusterName::Passthrough => Text::from("PassthroughCluster"),
        ClusterName::BlackHole => Text::from("BlackHoleCluster"),
        ClusterName::InboundPassthrough | ClusterName::InboundPassthroughV6 => {
            Text::from("InboundPassthroughCluster")
        }
        ClusterName::Inbound { port } => Text::from(format!("inbound|{port}||")),
        ClusterName::Outbound { port, subset, host } => {
            Text::from(format!("outbound|{port}|{subset}|{host}"))
        }
        ClusterName::BySni { port, subset, host } => {
            Text::from(format!("outbound_.{port}_.{subset}_.{host}"))
        }
        ClusterName::AnyHost => Text::from("AllowAnyDynamicDNSCluster"),
    }
}

/// One service at one port, about to be added.
pub(crate) struct Offer<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) number: u16,
    pub(crate) protocol: Protocol,
    pub(crate) binds: Vec<Text>,
    pub(crate) bind_to_port: bool,
    /// Other names of the service that the listener shows.
    pub(crate) aliases: Vec<Text>,
}

pub(crate) fn same_traffic(a: &ChainMatch, b: &ChainMatch) -> bool {
    let names = |m: &ChainMatch| {
        m.server_names
            .iter()
            .filter(|n| &***n != "*")
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    let nets = |m: &ChainMatch| m.networks.iter().cloned().collect::<BTreeSet<_>>();
    a.transport == b.transport && a.alpn == b.alpn && names(a) == names(b) && nets(a) == nets(b)
}

/// Chains for one service, and what a listener made of them speaks.
pub(crate) fn chains(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    networks: &[Text],
    on_wildcard: bool,
) -> (Vec<Chain>, Protocol) {
    if offer.protocol.is_http() {
        let detect = on_wildcard && offer.protocol != Protocol::HttpProxy;
        let table = match offer.binds.first() {
            Some(socket) if socket.starts_with("unix://") => socket.clone(),
            _ => Text::from(offer.number.to_string()),
        };
        let chain = http_chain(reader, scope, offer, table, detect);
        return (
            vec![chain],
            if detect {
                Protocol::Auto
            } else {
                offer.protocol
            },
        );
    }
    let mut out = tcp_chains(reader, scope, offer, networks, on_wildcard);
    if offer.protocol.is_auto() {
        let name = if on_wildcard {
            offer.number.to_string()
        } else {
            format!("{}:{}", offer.service.id.host, offer.number)
        };
        out.push(http_chain(reader, scope, offer, Text::from(name), true));
    }
    (out, offer.protocol)
}

/// `address/length` of an address or network.
pub(crate) fn network(s: &str) -> Option<(Text, u8)> {
    if let Ok(net) = s.parse::<ipnet::IpNet>() {
        return Some((Text::from(net.addr().to_string()), net.prefix_len()));
    }
    let ip: std::net::IpAddr = s.parse().ok()?;
    Some((Text::from(s), if ip.is_ipv4() { 32 } else { 128 }))
}

fn tcp_chains(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    networks: &[Text],
    on_wildcard: bool,
) -> Vec<Chain> {
    let service = offer.service;
    let nets: Vec<(Text, u8)> = networks
        .iter()
        .filter_map(|n| network(n))
        .filter(|(a, _)| &**a != visibility::UNSPECIFIED)
        .collect();
    let mut out: Vec<Chain> = Vec::new();
    // All rules whose hosts cover the service, until one takes whatever is left.
    for (object, vs) in route::virtual_services_for(reader, &scope.client, &service.id.host) {
        reader.uses(&object.key);
        let complete = if offer.protocol.is_tls() {
            written_tls(reader, scope, offer, &nets, (object, vs), &mut out);
            false
        } else {
            written_tcp(reader, scope, offer, &nets, (object, vs), &mut out)
        };
        if complete {
            return out;
        }
    }
    let rest = default_tcp_chain(reader, scope, offer, nets, on_wildcard);
    let taken = out.iter().any(|c| same_traffic(&c.matches, &rest.matches));
    if !taken && (!offer.protocol.is_tls() || out.is_empty()) {
        out.push(rest);
    }
    out
}

fn default_tcp_chain(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    networks: Vec<(Text, u8)>,
    on_wildcard: bool,
) -> Chain {
    let service = offer.service;
    let port = if service.ports.len() == 1 {
        service.ports[0].number
    } else {
        offer.number
    };
    let cluster = ClusterName::Outbound {
        port,
        subset: Text::default(),
        host: service.id.host.clone(),
    };
    // On a shared address only the server name tells TLS services apart.
    let by_name =
        offer.protocol.is_tls() && (on_wildcard || service.resolution == Resolution::DynamicDns);
    let mut tcp = tcp_to(cluster, Side::Client);
    // The listener does not know how the service calls its port.
    let unnamed = Port {
        name: Text::default(),
        number: port,
        protocol: offer.protocol,
    };
    if let Some(said) = cluster::outbound_stat(reader, service, &unnamed, "") {
        tcp.stat_prefix = said;
    }
    tcp.codec = codec(reader, offer.protocol);
    limit(reader, &scope.client, &mut tcp, service, "");
    if service.resolution == Resolution::DynamicDns && offer.protocol.is_tls() {
        tcp.forward_by_sni = Some(DnsCache {
            host: service.id.host.clone(),
            family: cluster::dns_family(reader, scope.client.families),
            port: offer.number,
        });
    }
    let mut server_names = Vec::new();
    if by_name {
        server_names.push(service.id.host.clone());
        for alias in &offer.aliases {
            server_names.push(alias.clone());
            server_names.extend(route::short_names(reader, alias, &scope.client));
        }
    }
    chain(
        reader,
        ChainMatch {
            networks,
            server_names,
            ..Default::default()
        },
        Handler::Tcp(tcp),
    )
}

/// What the rule of a destination says about byte streams to it: the rule as a whole, and the subset's balancing and tunnel.
fn limit(reader: &Reader<'_>, client: &Client, tcp: &mut Tcp, service: &Service, subset: &str) {
    tcp.idle_timeout = client.conduct.idle_timeout;
    let Some(rule) = policy::rule(reader, client, service) else {
        return;
    };
    let level = rule.spec.traffic_policy.as_ref();
    let settings = level
        .and_then(|p| p.connection_pool.as_ref())
        .and_then(|p| p.tcp.as_ref());
    tcp.idle_timeout = settings
        .and_then(|t| t.idle_timeout)
        .map(|d| d.get().into())
        .or(tcp.idle_timeout);
    tcp.max_duration = settings
        .and_then(|t| t.max_connection_duration)
        .map(|d| d.get().into());
    tcp.hash_source_ip = policy::hashes_source(&rule, subset);
    tcp.tunnel = policy::tunnel(&rule, subset).map(|t| Tunnel {
        to: if t.target_host.contains(':') {
            Text::from(format!("[{}]:{}", t.target_host, t.target_port))
        } else {
            Text::from(format!("{}:{}", t.target_host, t.target_port))
        },
        post: t.protocol == "POST",
    });
}

/// Bytes to a service, or a subset of it, that only the server name tells from others.
pub(crate) fn by_sni(
    reader: &Reader<'_>,
    client: &Client,
    service: &Service,
    port: u16,
    subset: &str,
) -> Tcp {
    let cluster = ClusterName::BySni {
        port,
        subset: Text::from(subset),
        host: service.id.host.clone(),
    };
    let mut tcp = tcp_to(cluster, Side::Gateway);
    if let Some(said) = service
        .port(port)
        .and_then(|port| cluster::outbound_stat(reader, service, port, subset))
    {
        tcp.stat_prefix = said;
    }
    limit(reader, client, &mut tcp, service, subset);
    // What arrives here is on its way through already.
    tcp.tunnel = None;
    tcp
}

/// A rule and the object it stands in.
type Written<'w> = (&'w Object, &'w VirtualService);

fn stream<'a>(scope: &'a ListenerScope, offer: &'a Offer<'_>) -> Stream<'a> {
    Stream {
        client: &scope.client,
        port: offer.number,
        port_name: offer.service.port(offer.number).map_or("", |p| &p.name),
        protocol: offer.protocol,
        side: Side::Client,
    }
}

/// Adds the chains a VirtualService writes for TLS traffic to a host that no chain takes already.
fn written_tls(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    networks: &[(Text, u8)],
    (object, vs): Written<'_>,
    out: &mut Vec<Chain>,
) {
    let origin = Some(virtual_service::path_of(object, "virtual-service"));
    for tls in vs.tls.iter().filter(|t| !t.route.is_empty()) {
        let conditions = tls.r#match.iter();
        for m in conditions.filter(|m| tls_applies(reader, m, scope, offer.number)) {
            let own = &m.destination_subnets;
            let matches = ChainMatch {
                networks: if own.is_empty() {
                    networks.to_vec()
                } else {
                    own.iter().filter_map(|s| network(s)).collect()
                },
                server_names: m.sni_hosts.iter().map(|s| Text::from(s.as_str())).collect(),
                ..Default::default()
            };
            if out.iter().any(|c| same_traffic(&c.matches, &matches)) {
                continue;
            }
            let to = weighted(reader, stream(scope, offer), object, &tls.route);
            let mut c = chain(reader, matches, Handler::Tcp(to));
            c.origin.clone_from(&origin);
            out.push(c);
        }
    }
}

/// Adds the chains a VirtualService writes for TCP traffic to a host; true if nothing is left for others.
fn written_tcp(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    networks: &[(Text, u8)],
    (object, vs): Written<'_>,
    out: &mut Vec<Chain>,
) -> bool {
    for tcp in vs.tcp.iter().filter(|t| !t.route.is_empty()) {
        let conditions = tcp.r#match.iter();
        let hits: Vec<&L4MatchAttributes> = conditions
            .filter(|m| tcp_applies(reader, m, scope, offer.number))
            .collect();
        let everything =
            tcp.r#match.is_empty() || hits.iter().any(|m| m.destination_subnets.is_empty());
        if hits.is_empty() && !everything {
            continue;
        }
        let own = hits.iter().flat_map(|m| &m.destination_subnets);
        let matches = ChainMatch {
            networks: if everything {
                networks.to_vec()
            } else {
                own.filter_map(|s| network(s)).collect()
            },
            ..Default::default()
        };
        // Envoy takes no two chains for the same traffic.
        if out.iter().any(|c| same_traffic(&c.matches, &matches)) {
            if everything {
                return true;
            }
            continue;
        }
        let to = weighted(reader, stream(scope, offer), object, &tcp.route);
        let mut c = chain(reader, matches, Handler::Tcp(to));
        c.origin = everything.then(|| virtual_service::path_of(object, "virtual-service"));
        out.push(c);
        if everything {
            return true;
        }
    }
    false
}

fn mesh_gateway(gateways: &[String]) -> bool {
    gateways.is_empty() || gateways.iter().any(|g| g == "mesh")
}

fn tls_applies(
    reader: &Reader<'_>,
    m: &TlsMatchAttributes,
    scope: &ListenerScope,
    port: u16,
) -> bool {
    (m.port == 0 || m.port == u32::from(port))
        && mesh_gateway(&m.gateways)
        && selects(reader, &m.source_labels, &scope.client)
        && (m.source_namespace.is_empty() || scope.client.is_in(reader, &m.source_namespace))
}

fn tcp_applies(
    reader: &Reader<'_>,
    m: &L4MatchAttributes,
    scope: &ListenerScope,
    port: u16,
) -> bool {
    (m.port == 0 || m.port == u32::from(port))
        && mesh_gateway(&m.gateways)
        && selects(reader, &m.source_labels, &scope.client)
        && (m.source_namespace.is_empty() || scope.client.is_in(reader, &m.source_namespace))
}

/// Where a rule for byte streams stands.
#[derive(Clone, Copy)]
pub(crate) struct Stream<'a> {
    pub(crate) client: &'a Client,
    /// Port of destinations that name none.
    pub(crate) port: u16,
    /// Name of that port.
    pub(crate) port_name: &'a str,
    pub(crate) protocol: Protocol,
    pub(crate) side: Side,
}

/// Bytes to the destinations of a rule.
pub(crate) fn weighted(
    reader: &Reader<'_>,
    stream: Stream<'_>,
    object: &Object,
    routes: &[RouteDestination],
) -> Tcp {
    let place = Place {
        client: stream.client,
        port: stream.port,
        gateways: &[],
        tls: false,
        http3: false,
    };
    let several = routes.len() > 1;
    let to: Vec<(ClusterName, u32)> = routes
        .iter()
        .filter(|r| !several || r.weight > 0)
        .filter_map(|r| {
            let d = r.destination.as_ref()?;
            Some((
                virtual_service::cluster(reader, place, &object.key.namespace, d),
                u32::try_from(r.weight).unwrap_or(0),
            ))
        })
        .collect();
    let stat_prefix = match to.as_slice() {
        [(one, _)] if !several => said_stat(reader, stream, one).unwrap_or_else(|| stat_name(one)),
        _ => Text::from(format!("{}.{}", object.key.name, object.key.namespace)),
    };
    let mut tcp = tcp_to(ClusterName::BlackHole, stream.side);
    tcp.idle_timeout = stream.client.conduct.idle_timeout;
    tcp.stat_prefix = stat_prefix;
    tcp.codec = codec(reader, stream.protocol);
    // The rule of the first destination speaks for all.
    if let Some(first) = routes.first().and_then(|r| r.destination.as_ref()) {
        let host = host::resolve(
            &first.host,
            &object.key.namespace,
            &reader.settings().domain,
        );
        if let Some(service) = visibility::service_of_host(reader, stream.client, &host) {
            let subset = if several { "" } else { &first.subset };
            limit(reader, stream.client, &mut tcp, service, subset);
        }
    }
    if !to.is_empty() {
        tcp.to = to;
    }
    tcp
}

/// The name the mesh gives a destination in statistics, if it says how names are made.
fn said_stat(reader: &Reader<'_>, stream: Stream<'_>, to: &ClusterName) -> Option<Text> {
    let ClusterName::Outbound { subset, host, .. } = to else {
        return None;
    };
    let service = visibility::service_of_host(reader, stream.client, host)?;
    let port = Port {
        name: Text::from(stream.port_name),
        number: stream.port,
        protocol: stream.protocol,
    };
    cluster::outbound_stat(reader, service, &port, subset)
}

/// Protocols whose statistics Envoy can keep; some only if switched on.
pub(crate) fn codec(reader: &Reader<'_>, p: Protocol) -> TcpCodec {
    let on = |name: &str, default: bool| feature(reader, name, default);
    match p {
        Protocol::Mongo if on("PILOT_ENABLE_MONGO_FILTER", true) => TcpCodec::Mongo,
        Protocol::MySql if on("PILOT_ENABLE_MYSQL_FILTER", false) => TcpCodec::MySql,
        Protocol::Redis if on("PILOT_ENABLE_REDIS_FILTER", false) => TcpCodec::Redis,
        _ => TcpCodec::Raw,
    }
}

pub(crate) fn chain(reader: &Reader<'_>, matches: ChainMatch, handler: Handler) -> Chain {
    Chain {
        name: Text::default(),
        matches,
        explicit_match: false,
        tls: None,
        handler,
        metadata_exchange: false,
        connect_timeout: handshake(reader),
        origin: None,
    }
}

fn http_chain(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    table: Text,
    detect: bool,
) -> Chain {
    let mut h = http(
        reader,
        &scope.client,
        Side::Client,
        scope.tracing.clone(),
        scope.http10,
    );
    h.routes = Routes::Discovered(table);
    h.grpc_web = offer.protocol == Protocol::GrpcWeb;
    if visibility::elsewhere(reader, &scope.client) == Elsewhere::ByHost {
        h.any_host = Some(cluster::any_host_cache(reader, &scope.client));
    }
    if offer.service.resolution == Resolution::DynamicDns {
        h.dns_caches.push(DnsCache {
            host: offer.service.id.host.clone(),
            family: cluster::dns_family(reader, scope.client.families),
            port: offer.number,
        });
    }
    let matches = if detect {
        ChainMatch {
            transport: Some(Transport::Plain),
            alpn: plain_http(reader).iter().map(|s| Text::from(*s)).collect(),
            ..Default::default()
        }
    } else {
        ChainMatch::default()
    };
    chain(reader, matches, Handler::Http(Box::new(h)))
}

/// HTTP handling as the mesh and the proxy configure it; the caller says where the routes are.
pub(crate) fn http(
    reader: &Reader<'_>,
    client: &Client,
    side: Side,
    tracing: Option<Tracing>,
    http10: bool,
) -> Http {
    use pilotfish_config::mesh::NormalizationType as N;
    let normalization = reader
        .mesh()
        .path_normalization
        .as_ref()
        .map_or(N::Default, |p| p.normalization);
    let conduct = &client.conduct;
    let (mut headers, server_name, client_cert) = match side {
        Side::Client => {
            let (headers, server) = conduct.client();
            (headers, server, ClientCert::Sanitize)
        }
        Side::Server => conduct.server(),
        Side::Gateway => conduct.gateway(),
    };
    let trusts_address = match side {
        Side::Gateway => true,
        Side::Client => feature(reader, "PILOT_SIDECAR_USE_REMOTE_ADDRESS", false),
        Side::Server => false,
    };
    if trusts_address || feature(reader, "ENABLE_HCM_INTERNAL_NETWORKS", false) {
        headers.internal_networks = internal_networks(reader);
    }
    let (merge_slashes, escaped_slashes) = conduct.slashes(
        matches!(normalization, N::MergeSlashes | N::DecodeAndMergeSlashes),
        if normalization == N::DecodeAndMergeSlashes {
            EscapedSlashes::Unescape
        } else {
            EscapedSlashes::Keep
        },
    );
    Http {
        side,
        stat_prefix: Text::default(),
        stat_chosen: false,
        routes: Routes::Discovered(Text::default()),
        http2: false,
        http3: false,
        grpc_web: false,
        peers: peers(reader),
        mesh_alpn: side != Side::Server && feature(reader, "PILOT_ENABLE_ALPN_FILTER", true),
        sessions: side != Side::Server && session::kept(reader),
        dns_caches: Vec::new(),
        any_host: None,
        tracing,
        normalize_path: normalization != N::None,
        merge_slashes,
        escaped_slashes,
        use_remote_address: Some(trusts_address),
        client_cert,
        forward_continue: feature(reader, "ENABLE_100_CONTINUE_HEADERS", true),
        server_name,
        http10: http10 || feature(reader, "PILOT_HTTP10", false),
        absolute_urls: false,
        headers,
        limits: conduct.limits.clone(),
    }
}

/// Connections a listener accepts at once; `None`: all that are waiting.
pub(crate) fn accepts(reader: &Reader<'_>) -> Option<u32> {
    const NAME: &str = "MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP";
    Some(reader.settings().number(NAME, 1)).filter(|n| *n > 0)
}

/// Whether peers tell each other who they are.
pub(crate) fn peers(reader: &Reader<'_>) -> bool {
    feature(reader, "PILOT_ENABLE_METADATA_EXCHANGE", true)
}

/// Whether peers in the mesh can agree on telling each other who they are before the first byte.
pub(crate) fn peer_exchange(reader: &Reader<'_>) -> bool {
    peers(reader) && !feature(reader, "PILOT_DISABLE_MX_ALPN", false)
}

/// Time for a client's handshake; `None`: as long as it likes.
fn handshake(reader: &Reader<'_>) -> Option<Millis> {
    const NAME: &str = "PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT";
    let time = reader.settings().time(NAME, Duration::from_secs(15));
    Some(Millis::from(time)).filter(|time| time.0 > 0)
}

/// A switch of the control plane.
pub(crate) fn feature(reader: &Reader<'_>, name: &str, default: bool) -> bool {
    reader.settings().on(name, default)
}

/// The networks of the mesh that are written as address ranges, in order.
fn internal_networks(reader: &Reader<'_>) -> Vec<(Text, u8)> {
    let mut ranges: Vec<(Text, u8)> = reader
        .networks()
        .networks
        .values()
        .flat_map(|n| &n.endpoints)
        .filter_map(|e| network(e.from_cidr.as_deref()?))
        .collect();
    ranges.sort_by_key(|(address, length)| (address.parse::<std::net::IpAddr>().ok(), *length));
    ranges
}
