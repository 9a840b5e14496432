//! Outbound listeners: what a sidecar does with connections its application opens.
//!
//! The unit is a port: services that share a port may share a listener, and who came first decides what it speaks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::{
    L4MatchAttributes, RouteDestination, TlsMatchAttributes, VirtualService,
};
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{
    Chain, ChainMatch, ClientCert, Direction, DnsCache, EscapedSlashes, Handler, Http, Inspect,
    Ports, Routes, Side, Tcp, TcpCodec, Tracing, Transport,
};
use pilotfish_ir::route::HashPolicy;
use pilotfish_ir::{ClusterName, Listener, Millis};
use pilotfish_mesh::{Protocol, Reader, Registry, Resolution, Service};

use crate::virtual_service::{self, Place, selects};
use crate::visibility::{self, Egress};
use crate::{Interception, ListenerScope, Text, cluster, policy, route};

/// ALPN of HTTP in plain text, as the inspector reports it.
const PLAIN_HTTP: [&str; 2] = ["http/1.1", "h2c"];
const HANDSHAKE: Millis = Millis::secs(15);

/// Ports that have outbound listeners.
pub fn ports(reader: &Reader<'_>, scope: &ListenerScope) -> BTreeSet<u16> {
    let client = &scope.client;
    let mut out = BTreeSet::new();
    for e in visibility::egress(reader, client) {
        if let Some((port, ..)) = e.port() {
            out.insert(port);
            continue;
        }
        let services = visibility::services(reader, client, &e);
        let all = services.iter().flat_map(|s| &s.ports);
        out.extend(
            all.filter(|p| p.protocol != Protocol::Udp)
                .map(|p| p.number),
        );
    }
    out
}

/// The listener that takes intercepted connections and hands them on.
pub fn intercept(reader: &Reader<'_>, scope: &ListenerScope) -> Option<Listener> {
    if scope.client.interception == Interception::None {
        return None;
    }
    let port = u16::try_from(reader.mesh().proxy_listen_port)
        .ok()
        .filter(|p| *p > 0)?;
    let wildcards = scope.client.families.wildcards();
    let fallthrough = if visibility::allow_any(reader, &scope.client) {
        ClusterName::Passthrough
    } else {
        ClusterName::BlackHole
    };
    let chain = |name: &str, to: ClusterName, port: Option<u16>| Chain {
        name: Text::from(name),
        matches: ChainMatch {
            port,
            ..Default::default()
        },
        explicit_match: false,
        tls: None,
        handler: Handler::Tcp(tcp_to(to, Side::Client)),
        metadata_exchange: false,
        connect_timeout: None,
        origin: None,
    };
    Some(Listener {
        name: Text::from("virtualOutbound"),
        address: Address::Socket(Text::from(wildcards[0]), port),
        additional: extra(&wildcards[1..], port),
        direction: Direction::Outbound,
        bind: true,
        use_original_dst: true,
        transparent: scope.client.interception == Interception::Tproxy,
        inspect: Inspect::default(),
        continue_on_timeout: false,
        inspect_timeout: None,
        chains: vec![
            chain(
                "virtualOutbound-blackhole",
                ClusterName::BlackHole,
                Some(port),
            ),
            chain("virtualOutbound-catchall-tcp", fallthrough, None),
        ],
        default_chain: None,
        one_accept_per_event: true,
    })
}

fn extra(addresses: &[&str], port: u16) -> Vec<Address> {
    addresses
        .iter()
        .map(|a| Address::Socket(Text::from(*a), port))
        .collect()
}

/// Bytes to one cluster that names its own statistics.
pub(crate) fn tcp_to(cluster: ClusterName, side: Side) -> Tcp {
    Tcp {
        stat_prefix: stat_name(&cluster),
        to: vec![(cluster, 0)],
        idle_timeout: None,
        max_duration: None,
        hash_source_ip: false,
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
    }
}

/// A listener while services are added to it.
struct Entry {
    binds: Vec<Text>,
    bind_to_port: bool,
    chains: Vec<Chain>,
    /// What it speaks; [`Protocol::Auto`] once it must detect.
    protocol: Protocol,
    /// Made by an earlier egress listener: later ones do not add to it.
    locked: bool,
}

/// One service at one port, about to be added.
struct Offer<'a> {
    service: &'a Arc<Service>,
    number: u16,
    protocol: Protocol,
    binds: Vec<Text>,
    bind_to_port: bool,
}

/// All listeners of one port.
pub fn listeners(reader: &Reader<'_>, scope: &ListenerScope, port: u16) -> Vec<Listener> {
    let mut entries: BTreeMap<Text, Entry> = BTreeMap::new();
    for e in visibility::egress(reader, &scope.client) {
        let written = e.port();
        if written.is_some_and(|(n, ..)| n != port) {
            continue;
        }
        if written.is_none() {
            for earlier in entries.values_mut() {
                earlier.locked = true;
            }
        }
        if !can_bind(scope, &e, port) {
            continue;
        }
        for service in visibility::services_on_port(reader, &scope.client, &e, port) {
            let Some(own) = service.port(port) else {
                continue;
            };
            // Each address of a ServiceEntry has a listener of its own.
            let each = service.registry == Registry::External
                && !own.protocol.is_http()
                && e.bind_addresses(&scope.client).is_empty();
            let protocol = written.map_or(own.protocol, |(_, p, _)| p);
            let offer = |binds| Offer {
                service,
                number: port,
                protocol,
                binds,
                bind_to_port: e.binds(&scope.client),
            };
            let binds = e.bind_addresses(&scope.client);
            if written.is_none()
                && binds.is_empty()
                && listens_per_endpoint(scope, service, protocol)
            {
                for binds in endpoint_addresses(reader, scope, service, port) {
                    add(reader, scope, &mut entries, offer(binds));
                }
                if !(service.registry == Registry::External
                    && service.selector.is_none()
                    && no_endpoints(reader, service, port))
                {
                    continue;
                }
            }
            if each && service.addresses.len() > 1 {
                for address in &service.addresses {
                    add(reader, scope, &mut entries, offer(vec![address.clone()]));
                }
                continue;
            }
            add(reader, scope, &mut entries, offer(binds));
        }
    }
    entries
        .into_values()
        .map(|e| finish(reader, scope, e, port))
        .collect()
}

/// Ports the proxy itself listens on, or may not bind, are left alone.
fn can_bind(scope: &ListenerScope, e: &Egress<'_>, port: u16) -> bool {
    if !e.binds(&scope.client) {
        return true;
    }
    !(matches!(port, 15020 | 15021 | 15090) || port < 1024 && !scope.client.privileged)
}

/// Services without address of their own whose bytes we cannot route by name: one listener for each endpoint.
fn listens_per_endpoint(scope: &ListenerScope, service: &Service, protocol: Protocol) -> bool {
    service.resolution == Resolution::Passthrough
        && *visibility::addresses(service, &scope.client)[0] == *visibility::UNSPECIFIED
        && (protocol.is_tcp() || protocol.is_auto())
}

fn no_endpoints(reader: &Reader<'_>, service: &Service, port: u16) -> bool {
    let name = service
        .port(port)
        .map(|p| p.name.clone())
        .unwrap_or_default();
    reader
        .endpoints(&service.id)
        .and_then(|e| e.by_port.get(&name))
        .is_none_or(Vec::is_empty)
}

fn endpoint_addresses(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    service: &Service,
    port: u16,
) -> Vec<Vec<Text>> {
    let name = service
        .port(port)
        .map(|p| p.name.clone())
        .unwrap_or_default();
    let all = reader
        .endpoints(&service.id)
        .and_then(|e| e.by_port.get(&name))
        .map_or(&[][..], Vec::as_slice);
    all.iter()
        .filter(|e| {
            e.addresses
                .iter()
                .all(|a| a.parse::<std::net::IpAddr>().is_ok())
        })
        .filter(|e| e.addresses.first() != scope.own_address.as_ref())
        .map(|e| e.addresses.clone())
        .filter(|a| !a.is_empty())
        .collect()
}

fn add(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    entries: &mut BTreeMap<Text, Entry>,
    mut offer: Offer<'_>,
) {
    if offer.service.resolution == Resolution::Alias || offer.protocol == Protocol::Udp {
        return;
    }
    let wildcards: Vec<Text> = scope
        .client
        .families
        .wildcards()
        .iter()
        .map(|w| Text::from(*w))
        .collect();
    let mut networks: Vec<Text> = Vec::new();
    if offer.binds.is_empty() {
        offer.binds = if offer.protocol.is_http() {
            wildcards.clone()
        } else {
            visibility::addresses(offer.service, &scope.client)
        };
        if *offer.binds[0] == *visibility::UNSPECIFIED
            && offer.service.registry == Registry::External
        {
            offer.binds.clone_from(&wildcards);
        }
    }
    if offer.binds[0].contains('/') {
        networks = std::mem::replace(&mut offer.binds, wildcards.clone());
    }
    let on_wildcard = offer.binds[0] == wildcards[0];
    let Some(entry) = entries.get_mut(&offer.binds[0]) else {
        let key = offer.binds[0].clone();
        let (chains, protocol) = chains(reader, scope, &offer, &networks, on_wildcard);
        entries.insert(
            key,
            Entry {
                binds: offer.binds,
                bind_to_port: offer.bind_to_port,
                chains,
                protocol,
                locked: false,
            },
        );
        return;
    };
    if entry.locked || special(offer.protocol, entry.protocol) {
        return;
    }
    let (new_http, new_auto) = (offer.protocol.is_http(), offer.protocol.is_auto());
    let (old_http, old_tcp) = (entry.protocol.is_http(), entry.protocol.is_tcp());
    // HTTP joins HTTP through its routes, not through chains; what detects already covers more that must be detected.
    if (new_http || new_auto) && !old_tcp && !(new_auto && old_http) {
        return;
    }
    let (chains, protocol) = chains(reader, scope, &offer, &networks, on_wildcard);
    if new_auto && old_http {
        *entry = Entry {
            binds: offer.binds,
            bind_to_port: offer.bind_to_port,
            chains,
            protocol,
            locked: false,
        };
        return;
    }
    for c in chains {
        if !entry
            .chains
            .iter()
            .any(|have| same_traffic(&have.matches, &c.matches))
        {
            entry.chains.push(c);
        }
    }
    if new_http != old_http || new_auto {
        entry.protocol = Protocol::Auto;
    }
}

/// Protocols that Envoy must know from the first byte do not share a port with others.
fn special(new: Protocol, old: Protocol) -> bool {
    let known = |p| matches!(p, Protocol::Mongo | Protocol::MySql);
    (known(new) || known(old)) && new != old
}

fn same_traffic(a: &ChainMatch, b: &ChainMatch) -> bool {
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
fn chains(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    networks: &[Text],
    on_wildcard: bool,
) -> (Vec<Chain>, Protocol) {
    if offer.protocol.is_http() {
        let detect = on_wildcard && offer.protocol != Protocol::HttpProxy;
        let chain = http_chain(
            reader,
            scope,
            offer,
            Text::from(offer.number.to_string()),
            detect,
        );
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
    let written = route::virtual_service_for(reader, &scope.client, &service.id.host);
    if let Some((object, vs)) = written {
        reader.uses(&object.key);
        let mut out = written_chains(reader, scope, offer, &nets, object, vs);
        let complete = out.iter().any(|c| {
            c.matches.networks == nets
                && (!c.matches.server_names.is_empty() || !offer.protocol.is_tls())
        });
        if complete || (offer.protocol.is_tls() && !out.is_empty()) {
            return out;
        }
        out.push(default_tcp_chain(reader, scope, offer, nets, on_wildcard));
        return out;
    }
    vec![default_tcp_chain(reader, scope, offer, nets, on_wildcard)]
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
    tcp.codec = codec(reader, offer.protocol);
    limit(reader, scope, &mut tcp, service, "", port);
    if service.resolution == Resolution::DynamicDns && offer.protocol.is_tls() {
        tcp.forward_by_sni = Some(DnsCache {
            host: service.id.host.clone(),
            family: cluster::dns_family(scope.client.families),
            port: offer.number,
        });
    }
    let server_names = if by_name {
        vec![service.id.host.clone()]
    } else {
        Vec::new()
    };
    chain(
        ChainMatch {
            networks,
            server_names,
            ..Default::default()
        },
        Handler::Tcp(tcp),
    )
}

/// What the rule of a destination says about byte streams to it.
fn limit(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    tcp: &mut Tcp,
    service: &Service,
    subset: &str,
    port: u16,
) {
    let rule = policy::rule(reader, &scope.client, service);
    let subset = rule.and_then(|r| r.subset(subset));
    let effective = policy::effective(rule, subset, port);
    let settings = effective.connection_pool.and_then(|p| p.tcp);
    tcp.idle_timeout = settings
        .as_ref()
        .and_then(|t| t.idle_timeout)
        .map(|d| d.get().into());
    tcp.max_duration = settings
        .as_ref()
        .and_then(|t| t.max_connection_duration)
        .map(|d| d.get().into());
    tcp.hash_source_ip =
        policy::hash_policy(effective.load_balancer.as_ref()) == Some(HashPolicy::SourceIp);
}

/// Chains a VirtualService writes for TCP or TLS traffic to a host.
fn written_chains(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    networks: &[(Text, u8)],
    object: &Object,
    vs: &VirtualService,
) -> Vec<Chain> {
    let mut out = Vec::new();
    let subnets = |own: &[String]| {
        if own.is_empty() {
            networks.to_vec()
        } else {
            own.iter().filter_map(|s| network(s)).collect()
        }
    };
    let origin = Some(virtual_service::path_of(object, "virtual-service"));
    if offer.protocol.is_tls() {
        for tls in vs.tls.iter().filter(|t| !t.route.is_empty()) {
            for m in tls
                .r#match
                .iter()
                .filter(|m| tls_applies(m, scope, offer.number))
            {
                let server_names = m.sni_hosts.iter().map(|s| Text::from(s.as_str())).collect();
                let matches = ChainMatch {
                    networks: subnets(&m.destination_subnets),
                    server_names,
                    ..Default::default()
                };
                if out
                    .iter()
                    .any(|c: &Chain| same_traffic(&c.matches, &matches))
                {
                    continue;
                }
                let mut c = chain(
                    matches,
                    Handler::Tcp(weighted(reader, scope, offer, object, &tls.route)),
                );
                c.origin.clone_from(&origin);
                out.push(c);
            }
        }
        return out;
    }
    for tcp in vs.tcp.iter().filter(|t| !t.route.is_empty()) {
        let hit = tcp
            .r#match
            .iter()
            .find(|m| tcp_applies(m, scope, offer.number));
        if !tcp.r#match.is_empty() && hit.is_none() {
            continue;
        }
        let own: Vec<String> = tcp
            .r#match
            .iter()
            .filter(|m| tcp_applies(m, scope, offer.number))
            .flat_map(|m| m.destination_subnets.clone())
            .collect();
        let everything =
            tcp.r#match.is_empty() || hit.is_some_and(|m| m.destination_subnets.is_empty());
        let matches = ChainMatch {
            networks: subnets(if everything { &[] } else { &own }),
            ..Default::default()
        };
        let mut c = chain(
            matches,
            Handler::Tcp(weighted(reader, scope, offer, object, &tcp.route)),
        );
        c.origin = origin.clone().filter(|_| everything);
        out.push(c);
        if everything {
            break;
        }
    }
    out
}

fn mesh_gateway(gateways: &[String]) -> bool {
    gateways.is_empty() || gateways.iter().any(|g| g == "mesh")
}

fn tls_applies(m: &TlsMatchAttributes, scope: &ListenerScope, port: u16) -> bool {
    (m.port == 0 || m.port == u32::from(port))
        && mesh_gateway(&m.gateways)
        && selects(&m.source_labels, &scope.client)
        && (m.source_namespace.is_empty() || m.source_namespace == *scope.client.namespace)
}

fn tcp_applies(m: &L4MatchAttributes, scope: &ListenerScope, port: u16) -> bool {
    (m.port == 0 || m.port == u32::from(port))
        && mesh_gateway(&m.gateways)
        && selects(&m.source_labels, &scope.client)
        && (m.source_namespace.is_empty() || m.source_namespace == *scope.client.namespace)
}

fn weighted(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    offer: &Offer<'_>,
    object: &Object,
    routes: &[RouteDestination],
) -> Tcp {
    let place = Place {
        client: &scope.client,
        port: offer.number,
        gateways: &[],
        tls: false,
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
        [(one, _)] if !several => stat_name(one),
        _ => Text::from(format!("{}.{}", object.key.name, object.key.namespace)),
    };
    let mut tcp = tcp_to(ClusterName::BlackHole, Side::Client);
    tcp.stat_prefix = stat_prefix;
    tcp.codec = codec(reader, offer.protocol);
    if !to.is_empty() {
        tcp.to = to;
    }
    tcp
}

/// Protocols whose statistics Envoy can keep; some only if switched on.
pub(crate) fn codec(reader: &Reader<'_>, p: Protocol) -> TcpCodec {
    let on = |name: &str, default: bool| {
        reader
            .settings()
            .features
            .get(name)
            .map_or(default, |v| &**v == "true")
    };
    match p {
        Protocol::Mongo if on("PILOT_ENABLE_MONGO_FILTER", true) => TcpCodec::Mongo,
        Protocol::MySql if on("PILOT_ENABLE_MYSQL_FILTER", false) => TcpCodec::MySql,
        Protocol::Redis if on("PILOT_ENABLE_REDIS_FILTER", false) => TcpCodec::Redis,
        _ => TcpCodec::Raw,
    }
}

fn chain(matches: ChainMatch, handler: Handler) -> Chain {
    Chain {
        name: Text::default(),
        matches,
        explicit_match: false,
        tls: None,
        handler,
        metadata_exchange: false,
        connect_timeout: Some(HANDSHAKE),
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
    let mut h = http(reader, Side::Client, scope.tracing.clone(), scope.http10);
    h.routes = Routes::Discovered(table);
    h.grpc_web = offer.protocol == Protocol::GrpcWeb;
    h.use_remote_address = Some(false);
    if offer.service.resolution == Resolution::DynamicDns {
        h.dns_caches.push(DnsCache {
            host: offer.service.id.host.clone(),
            family: cluster::dns_family(scope.client.families),
            port: offer.number,
        });
    }
    let matches = if detect {
        ChainMatch {
            transport: Some(Transport::Plain),
            alpn: PLAIN_HTTP.iter().map(|s| Text::from(*s)).collect(),
            ..Default::default()
        }
    } else {
        ChainMatch::default()
    };
    chain(matches, Handler::Http(Box::new(h)))
}

/// HTTP handling as the mesh configures it; the caller says where the routes are.
pub(crate) fn http(reader: &Reader<'_>, side: Side, tracing: Tracing, http10: bool) -> Http {
    use pilotfish_config::mesh::NormalizationType as N;
    let normalization = reader
        .mesh()
        .path_normalization
        .as_ref()
        .map_or(N::Default, |p| p.normalization);
    Http {
        side,
        stat_prefix: Text::default(),
        routes: Routes::Discovered(Text::default()),
        http2: false,
        grpc_web: false,
        dns_caches: Vec::new(),
        tracing,
        normalize_path: normalization != N::None,
        merge_slashes: matches!(normalization, N::MergeSlashes | N::DecodeAndMergeSlashes),
        escaped_slashes: if normalization == N::DecodeAndMergeSlashes {
            EscapedSlashes::Unescape
        } else {
            EscapedSlashes::Keep
        },
        use_remote_address: Some(false),
        client_cert: ClientCert::Sanitize,
        forward_continue: true,
        server_name: None,
        http10,
        sanitize: false,
    }
}

/// The name of a listener.
pub(crate) fn listener_name(bind: &str, port: u16) -> Text {
    if bind.starts_with("unix://") {
        Text::from(bind)
    } else {
        Text::from(format!("{bind}_{port}"))
    }
}

fn finish(reader: &Reader<'_>, scope: &ListenerScope, entry: Entry, port: u16) -> Listener {
    let name = listener_name(&entry.binds[0], port);
    let needs_http = entry.chains.iter().any(|c| !c.matches.alpn.is_empty());
    let needs_tls = entry.chains.iter().any(|c| {
        !c.matches.server_names.is_empty()
            || matches!(&c.handler, Handler::Tcp(t) if t.forward_by_sni.is_some())
    });
    let (mut chains, mut default_chain) = (Vec::new(), None);
    for mut c in entry.chains {
        if let Handler::Http(h) = &mut c.handler {
            h.stat_prefix = Text::from(format!("outbound_{name}"));
        }
        let wild = c.matches.server_names.iter().any(|n| &**n == "*");
        if wild {
            c.matches.server_names.clear();
        }
        if c.matches == ChainMatch::default() && default_chain.is_none() {
            default_chain = Some(c);
        } else {
            chains.push(c);
        }
    }
    match &default_chain {
        Some(_) if chains.is_empty() => chains.extend(default_chain.take()),
        None => default_chain = Some(fallthrough(reader, scope)),
        Some(_) => {}
    }
    let address = |a: &Text| match a.strip_prefix("unix://") {
        Some(path) => Address::Unix(Text::from(path)),
        None => Address::Socket(a.clone(), port),
    };
    let detection: Millis = reader
        .mesh()
        .protocol_detection_timeout
        .map_or(Millis(0), |d| d.get().into());
    Listener {
        name,
        address: address(&entry.binds[0]),
        additional: entry.binds[1..].iter().map(address).collect(),
        direction: Direction::Outbound,
        bind: entry.bind_to_port,
        use_original_dst: false,
        transparent: false,
        inspect: Inspect {
            tls: needs_tls.then_some(Ports::ALL),
            http: needs_http.then_some(Ports::ALL),
            ..Default::default()
        },
        continue_on_timeout: true,
        inspect_timeout: Some(if needs_http { detection } else { Millis(0) }),
        chains,
        default_chain,
        one_accept_per_event: entry.bind_to_port,
    }
}

/// Where connections go that match no chain.
fn fallthrough(reader: &Reader<'_>, scope: &ListenerScope) -> Chain {
    let to = if visibility::allow_any(reader, &scope.client) {
        ClusterName::Passthrough
    } else {
        ClusterName::BlackHole
    };
    Chain {
        name: Text::from("PassthroughFilterChain"),
        matches: ChainMatch::default(),
        explicit_match: true,
        tls: None,
        handler: Handler::Tcp(tcp_to(to, Side::Client)),
        metadata_exchange: false,
        connect_timeout: None,
        origin: None,
    }
}
