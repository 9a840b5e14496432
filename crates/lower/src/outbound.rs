//! Outbound listeners: what a sidecar does with connections its application opens.
//!
//! The unit is a port: services that share a port may share a listener, and who came first decides what it speaks.

use std::collections::{BTreeMap, BTreeSet};

use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{
    Chain, ChainMatch, Direction, Handler, Http, Inspect, Ports, Routes, Side, Tcp,
};
use pilotfish_ir::{ClusterName, Listener, Millis, RouteTable};
use pilotfish_mesh::{Protocol, Reader, Registry, Resolution, Service};

use crate::chain::{self, Offer, chains, same_traffic, tcp_to};
use crate::visibility::{self, Egress, Elsewhere};
use crate::{Families, Interception, ListenerScope, Text, cluster, route};

/// The switch that lets proxies without IPv4 send to IPv4 addresses.
pub(crate) const V4_FOR_V6: &str = "ISTIO_ENABLE_IPV4_OUTBOUND_LISTENER_FOR_IPV6_CLUSTERS";

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
    let elsewhere = visibility::elsewhere(reader, &scope.client);
    let chain = |name: &str, port: Option<u16>, handler: Handler| Chain {
        name: Text::from(name),
        matches: ChainMatch {
            port,
            ..Default::default()
        },
        explicit_match: false,
        tls: None,
        handler,
        metadata_exchange: false,
        connect_timeout: None,
        origin: None,
    };
    let mut chains = vec![chain(
        "virtualOutbound-blackhole",
        Some(port),
        Handler::Tcp(tcp_to(ClusterName::BlackHole, Side::Client)),
    )];
    let by_host = elsewhere == Elsewhere::ByHost;
    if by_host {
        let http = undeclared_http(reader, scope);
        let mut c = chain(
            "virtualOutbound-catchall-tcp-http",
            None,
            Handler::Http(http),
        );
        c.matches.alpn = chain::plain_http(reader)
            .iter()
            .map(|s| Text::from(*s))
            .collect();
        chains.push(c);
    }
    let rest = Handler::Tcp(undeclared(scope, elsewhere));
    chains.push(chain("virtualOutbound-catchall-tcp", None, rest));
    let v4_too = scope.client.families == Families::V6 && chain::feature(reader, V4_FOR_V6, false);
    let wildcards = scope.client.families.entrances();
    let more = if v4_too {
        Families::V4.wildcards()
    } else {
        &wildcards[1..]
    };
    Some(Listener {
        name: Text::from("virtualOutbound"),
        address: Address::Socket(Text::from(wildcards[0]), port),
        additional: extra(more, port),
        direction: Direction::Outbound,
        bind: true,
        use_original_dst: true,
        transparent: scope.client.interception == Interception::Tproxy,
        inspect: Inspect {
            http: by_host.then_some(Ports::ALL),
            ..Default::default()
        },
        continue_on_timeout: false,
        inspect_timeout: None,
        chains,
        default_chain: None,
        accepts_per_event: chain::accepts(reader),
        exact_balance: false,
        buffer_limit: None,
        quic: false,
    })
}

/// HTTP to hosts nobody declared, where they are resolved on demand.
fn undeclared_http(reader: &Reader<'_>, scope: &ListenerScope) -> Box<Http> {
    let mut h = chain::http(
        reader,
        &scope.client,
        Side::Client,
        scope.tracing.clone(),
        scope.http10,
    );
    h.stat_prefix = Text::from("outbound_virtualOutbound_allow_any_dynamic_dns");
    h.any_host = Some(cluster::any_host_cache(reader, &scope.client));
    let table = RouteTable {
        name: Text::from("allow_any_dynamic_dns"),
        ignore_port: true,
        max_direct_response: Some(route::LARGEST_RESPONSE),
    };
    h.routes = Routes::Inline(table, vec![route::catch_all(reader, &scope.client)]);
    Box::new(h)
}

/// Byte streams to what nobody declared.
fn undeclared(scope: &ListenerScope, elsewhere: Elsewhere) -> Tcp {
    let mut tcp = tcp_to(elsewhere.cluster(), Side::Client);
    tcp.idle_timeout = scope.client.conduct.idle_timeout;
    tcp
}

/// The listener on which the application reaches the proxy as an HTTP proxy.
pub fn http_proxy(reader: &Reader<'_>, scope: &ListenerScope) -> Option<Listener> {
    let port = scope.http_proxy?;
    let mut h = chain::http(
        reader,
        &scope.client,
        Side::Client,
        scope.tracing.clone(),
        scope.http10,
    );
    h.routes = Routes::Discovered(Text::from(route::HTTP_PROXY));
    h.use_remote_address = Some(false);
    h.absolute_urls = true;
    h.headers.metadata_in_mesh = false;
    if visibility::elsewhere(reader, &scope.client) == Elsewhere::ByHost {
        h.any_host = Some(cluster::any_host_cache(reader, &scope.client));
    }
    let loopbacks = scope.client.families.loopbacks();
    let entry = Entry {
        binds: loopbacks.iter().map(|l| Text::from(*l)).collect(),
        bind_to_port: true,
        chains: vec![chain::chain(
            reader,
            ChainMatch::default(),
            Handler::Http(Box::new(h)),
        )],
        protocol: Protocol::HttpProxy,
        locked: true,
    };
    Some(finish(reader, scope, entry, port))
}

fn extra(addresses: &[&str], port: u16) -> Vec<Address> {
    addresses
        .iter()
        .map(|a| Address::Socket(Text::from(*a), port))
        .collect()
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
        let services = if written.is_some() && e.matched_port().is_none() {
            visibility::services(reader, &scope.client, &e)
        } else {
            visibility::services_on_port(reader, &scope.client, &e, port)
        };
        for service in services {
            let own = service.port(port);
            let Some(protocol) = written.map(|(_, p, _)| p).or(own.map(|p| p.protocol)) else {
                continue;
            };
            // Bytes need to know which port of the service is meant; requests say it.
            if own.is_none() && !protocol.is_http() {
                continue;
            }
            // Each address of a ServiceEntry has a listener of its own.
            let each = service.registry == Registry::External
                && own.is_some_and(|p| !p.protocol.is_http())
                && e.bind_addresses(&scope.client).is_empty();
            if !can_bind(reader, scope, &e, port, protocol) {
                continue;
            }
            let offer = |binds| Offer {
                service,
                number: port,
                protocol,
                binds,
                bind_to_port: e.binds(&scope.client),
                aliases: visibility::aliases(reader, &e, service),
            };
            let binds = e.bind_addresses(&scope.client);
            if written.is_none()
                && binds.is_empty()
                && listens_per_endpoint(reader, scope, service, protocol)
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

/// Ports the proxy may not bind are left alone, and those where it listens itself if it would listen on all addresses.
fn can_bind(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    e: &Egress<'_>,
    port: u16,
    protocol: Protocol,
) -> bool {
    if e.binds(&scope.client) && (1..1024).contains(&port) && !scope.client.privileged {
        return false;
    }
    let everywhere = match e.bind_addresses(&scope.client).first() {
        Some(bind) => **bind == *scope.client.families.wildcards()[0],
        None => protocol.is_http(),
    };
    let mesh = reader.mesh();
    let taken = [mesh.proxy_listen_port, mesh.proxy_inbound_listen_port];
    !everywhere || !(scope.own_ports.contains(&port) || taken.contains(&i32::from(port)))
}

/// Services without address of their own whose bytes we cannot route by name: one listener for each endpoint.
fn listens_per_endpoint(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    service: &Service,
    protocol: Protocol,
) -> bool {
    service.resolution == Resolution::Passthrough
        && *visibility::addresses(reader, service, &scope.client)[0] == *visibility::UNSPECIFIED
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
            visibility::addresses(reader, offer.service, &scope.client)
        };
        if *offer.binds[0] == *visibility::UNSPECIFIED
            && offer.service.registry == Registry::External
        {
            offer.binds.clone_from(&wildcards);
        }
    }
    if chain::network(&offer.binds[0]).is_some() && offer.binds[0].contains('/') {
        networks = std::mem::replace(&mut offer.binds, wildcards.clone());
    }
    let on_wildcard = offer.binds[0] == wildcards[0];
    let Some(entry) = entries.get_mut(&offer.binds[0]) else {
        let key = offer.binds[0].clone();
        // Without it there may be no such listener: it is one of its sources, though it says nothing about its content.
        reader.service(&offer.service.id);
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

/// The name of a listener.
pub(crate) fn listener_name(bind: &str, port: u16) -> Text {
    Text::from(format!("{bind}_{port}"))
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
        accepts_per_event: chain::accepts(reader).filter(|_| entry.bind_to_port),
        exact_balance: scope.client.conduct.outbound_balance,
        buffer_limit: None,
        quic: false,
    }
}

/// Where connections go that match no chain.
fn fallthrough(reader: &Reader<'_>, scope: &ListenerScope) -> Chain {
    let elsewhere = visibility::elsewhere(reader, &scope.client);
    Chain {
        name: Text::from("PassthroughFilterChain"),
        matches: ChainMatch::default(),
        explicit_match: true,
        tls: None,
        handler: Handler::Tcp(undeclared(scope, elsewhere)),
        metadata_exchange: false,
        connect_timeout: None,
        origin: None,
    }
}
