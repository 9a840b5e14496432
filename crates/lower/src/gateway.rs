//! Gateways: the listeners and routes of a proxy at the edge.
//!
//! Servers that share an address and port share a listener. Plain HTTP servers of a port share a chain and a route table;
//! every other server has chains of its own that the server name of the connection chooses.

mod reach;
mod routes;
mod servers;
mod streams;

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::ServerTlsSettings;
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{Chain, ChainMatch, Direction, Handler, Inspect, Ports, Routes, Side};
use pilotfish_ir::{Listener, Text};
use pilotfish_mesh::{Instance, Protocol, Reader};

pub use reach::{Reached, reached};
pub use routes::{Plan, hosts, virtual_host};

use crate::server_tls::{self, Inside};
use crate::{Client, ListenerScope, ProxyKind, chain, outbound};
use servers::{Bound, Slot, servers};

/// Ports below this one only privileged processes may bind.
const FIRST_UNPRIVILEGED: u16 = 1024;

/// Names of the route tables.
pub fn tables(reader: &Reader<'_>, client: &Client, instances: &[Instance]) -> Vec<Text> {
    servers(reader, client, instances)
        .tables
        .into_keys()
        .collect()
}

/// TLS settings of the servers, each with its Gateway.
pub(crate) fn tls_settings<'w>(
    reader: &Reader<'w>,
    client: &Client,
    instances: &[Instance],
) -> Vec<(&'w Arc<Object>, &'w ServerTlsSettings)> {
    if client.kind != ProxyKind::Router {
        return Vec::new();
    }
    servers(reader, client, instances)
        .all
        .iter()
        .filter_map(|b| Some((b.object, b.server.tls.as_ref()?)))
        .collect()
}

/// All listeners of a gateway.
pub fn listeners(reader: &Reader<'_>, scope: &ListenerScope) -> Vec<Listener> {
    let all = servers(reader, &scope.client, &scope.instances);
    let mut by_name: BTreeMap<Text, Listener> = BTreeMap::new();
    let mut names = streams::Names::default();
    for slot in &all.slots {
        if slot.port < FIRST_UNPRIVILEGED && slot.port > 0 && !scope.client.privileged {
            for s in &slot.servers {
                all.all[*s].report(
                    reader,
                    "privileged-port",
                    format!("the proxy may not bind ports below {FIRST_UNPRIVILEGED}"),
                );
            }
            continue;
        }
        let servers = || slot.servers.iter().map(|s| &all.all[*s]);
        let tcp = empty_listener(reader, scope, slot);
        let quic = over_quic(&tcp);
        let https = |listener: &Listener, b: &Bound<'_>, inside: Inside| {
            https_chain(reader, scope, &listener.name, b, inside)
        };
        let chains = if slot.protocol.is_http() {
            let mut chain = http_chain(reader, scope, &tcp.name, &slot.table);
            if let Handler::Http(h) = &mut chain.handler {
                h.grpc_web = slot.protocol == Protocol::GrpcWeb;
            }
            vec![chain]
        } else {
            let chains = |b: &Bound<'_>| {
                if b.is_https() {
                    vec![https(&tcp, b, Inside::Http)]
                } else {
                    streams::chains(reader, scope, b, slot.port, &mut names)
                }
            };
            servers().flat_map(chains).collect()
        };
        let http3: Vec<Chain> = servers()
            .filter(|b| b.http3)
            .map(|b| https(&quic, b, Inside::Http3))
            .collect();
        for (listener, chains) in [(tcp, chains), (quic, http3)] {
            let listener = by_name.entry(listener.name.clone()).or_insert(listener);
            listener.chains.extend(chains);
        }
    }
    let mut out: Vec<Listener> = by_name.into_values().collect();
    // Envoy takes no listener without a chain.
    out.retain(|l| !l.chains.is_empty());
    for l in &mut out {
        finish(l);
    }
    out
}

fn empty_listener(reader: &Reader<'_>, scope: &ListenerScope, slot: &Slot<'_>) -> Listener {
    let binds: Vec<Text> = if slot.bind.is_empty() {
        let all = scope.client.families.entrances();
        all.iter().map(|w| Text::from(*w)).collect()
    } else {
        vec![slot.bind.clone()]
    };
    let address = |bind: &Text| match bind.strip_prefix("unix://") {
        Some(path) => Address::Unix(Text::from(path)),
        None => Address::Socket(bind.clone(), slot.port),
    };
    Listener {
        name: outbound::listener_name(&binds[0], slot.port),
        address: address(&binds[0]),
        additional: binds[1..].iter().map(address).collect(),
        direction: Direction::Outbound,
        bind: true,
        use_original_dst: false,
        transparent: false,
        inspect: Inspect {
            proxy_protocol: scope.client.conduct.proxy_protocol,
            ..Default::default()
        },
        continue_on_timeout: false,
        inspect_timeout: None,
        chains: Vec::new(),
        default_chain: None,
        accepts_per_event: chain::accepts(reader),
        exact_balance: scope.client.conduct.outbound_balance,
        buffer_limit: scope.client.conduct.buffer_limit,
        quic: false,
    }
}

/// A listener at the same addresses for HTTP/3. Nothing precedes the handshake there, nor needs to be looked into: QUIC
/// says which server is meant.
fn over_quic(tcp: &Listener) -> Listener {
    Listener {
        name: Text::from(format!("udp_{}", tcp.name)),
        inspect: Inspect::default(),
        exact_balance: false,
        quic: true,
        ..tcp.clone()
    }
}

/// Looks into connections where a chain needs it. A server for any name needs no match.
fn finish(listener: &mut Listener) {
    let needs_tls = |c: &Chain| c.tls.is_some() || !c.matches.server_names.is_empty();
    if !listener.quic && listener.chains.iter().any(needs_tls) {
        listener.inspect.tls = Some(Ports::ALL);
    }
    for c in &mut listener.chains {
        if c.matches.server_names.iter().any(|n| &**n == "*") {
            c.matches.server_names.clear();
        }
    }
}

fn http_chain(reader: &Reader<'_>, scope: &ListenerScope, listener: &str, table: &Text) -> Chain {
    let mut h = chain::http(
        reader,
        &scope.client,
        Side::Gateway,
        scope.tracing.clone(),
        scope.http10,
    );
    h.routes = Routes::Discovered(table.clone());
    h.stat_prefix = Text::from(format!("outbound_{listener}"));
    chain::chain(reader, ChainMatch::default(), Handler::Http(Box::new(h)))
}

fn https_chain(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    listener: &str,
    bound: &Bound<'_>,
    inside: Inside,
) -> Chain {
    let mut c = http_chain(reader, scope, listener, &bound.table);
    if let Handler::Http(h) = &mut c.handler {
        h.http3 = inside == Inside::Http3;
        if !bound.server.name.is_empty() {
            h.stat_prefix = Text::from(bound.server.name.as_str());
            h.stat_chosen = true;
        }
    }
    c.matches.server_names = bound.server_names();
    c.tls = bound
        .server
        .tls
        .as_ref()
        .map(|t| server_tls::terminate(reader, &scope.files, t, inside));
    c
}
