//! Chains of byte streams: TCP, TLS that ends here, and TLS that is passed on by the server name.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::{L4MatchAttributes, ServerTlsMode, VirtualService};
use pilotfish_ir::Text;
use pilotfish_ir::listener::{Chain, ChainMatch, Handler, Side};
use pilotfish_mesh::{Protocol, Reader, host, rules};

use super::routes::bound_rules;
use super::servers::Bound;
use crate::chain::{self, Stream};
use crate::server_tls::{self, Inside};
use crate::{ListenerScope, policy, visibility};

/// Protocols of the mesh's mutual TLS, as its clients offer them.
const MESH_ALPN: [&str; 5] = [
    "istio",
    "istio-peer-exchange",
    "istio-http/1.0",
    "istio-http/1.1",
    "istio-h2",
];

/// Server names that rules have claimed, by port, and the address they were claimed for.
#[derive(Default)]
pub(super) struct Names(BTreeMap<u16, BTreeMap<String, String>>);

impl Names {
    /// Claims all of them, or none if one is taken.
    fn claim(&mut self, port: u16, bind: &str, names: &[String]) -> bool {
        let known = self.0.entry(port).or_default();
        if names
            .iter()
            .any(|n| known.get(n).is_some_and(|b| b == bind))
        {
            return false;
        }
        known.extend(names.iter().map(|n| (n.clone(), bind.to_owned())));
        true
    }
}

/// The chains of a server that does not look into what it carries.
pub(super) fn chains(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    bound: &Bound<'_>,
    port: u16,
    names: &mut Names,
) -> Vec<Chain> {
    if bound.is_cross_network() {
        return cross_network(reader, scope, bound);
    }
    if bound.is_passthrough() {
        return passed_on(reader, scope, bound, port, names);
    }
    tcp(reader, scope, bound).into_iter().collect()
}

fn stream<'a>(scope: &'a ListenerScope, bound: &'a Bound<'_>) -> Stream<'a> {
    Stream {
        client: &scope.client,
        port: bound.number,
        port_name: bound.server.port.as_ref().map_or("", |p| &p.name),
        protocol: bound.protocol,
        side: Side::Gateway,
    }
}

/// VirtualServices for a server that name one of its hosts and say something about byte streams.
fn rules<'w>(
    reader: &Reader<'w>,
    scope: &ListenerScope,
    bound: &Bound<'_>,
) -> impl Iterator<Item = (&'w Arc<Object>, &'w VirtualService)> {
    let domain = &reader.settings().domain;
    bound_rules(reader, &scope.client, bound)
        .into_iter()
        .filter(|head| {
            let resolve = |h: &String| host::resolve(h, &head.key.namespace, domain);
            let hosts: Vec<Text> = head.hosts.iter().map(resolve).collect();
            head.has_streams && bound.serves(&head.key.namespace, &hosts)
        })
        .filter_map(|head| reader.virtual_service(head.key))
}

/// The first rule for byte streams that matches takes every connection.
fn tcp(reader: &Reader<'_>, scope: &ListenerScope, bound: &Bound<'_>) -> Option<Chain> {
    let (object, rule) = rules(reader, scope, bound).find_map(|(o, vs)| {
        let matches = |m: &L4MatchAttributes| applies(m.port, &m.gateways, o, bound);
        let rule = vs.tcp.iter().find(|t| {
            !t.route.is_empty() && (t.r#match.is_empty() || t.r#match.iter().any(matches))
        })?;
        Some((o, rule))
    })?;
    reader.uses(&object.key);
    let tcp = chain::weighted(reader, stream(scope, bound), object, &rule.route);
    let mut c = chain::chain(reader, ChainMatch::default(), Handler::Tcp(tcp));
    if let Some(tls) = &bound.server.tls {
        c.matches.server_names = bound.server_names();
        c.tls = Some(server_tls::terminate(
            reader,
            &scope.files,
            tls,
            if bound.protocol == Protocol::Https {
                Inside::Http
            } else {
                Inside::Bytes
            },
        ));
        c.metadata_exchange = tls.mode == ServerTlsMode::IstioMutual && chain::peers(reader);
    }
    Some(c)
}

/// A chain for each match of each TLS rule.
fn passed_on(
    reader: &Reader<'_>,
    scope: &ListenerScope,
    bound: &Bound<'_>,
    port: u16,
    names: &mut Names,
) -> Vec<Chain> {
    let mut out = Vec::new();
    for (object, vs) in rules(reader, scope, bound) {
        for tls in vs.tls.iter().filter(|t| !t.route.is_empty()) {
            for m in &tls.r#match {
                if !applies(m.port, &m.gateways, object, bound) {
                    continue;
                }
                reader.uses(&object.key);
                if !names.claim(port, &bound.server.bind, &m.sni_hosts) {
                    let d = pilotfish_config::Diagnostic::warning(
                        "gateway-conflict",
                        format!(
                            "another rule at port {port} of gateway {} has one of the server names {}",
                            bound.gateway,
                            m.sni_hosts.join(", ")
                        ),
                        "this match is left out",
                    )
                    .of(object.key.clone())
                    .at("spec.tls.match.sniHosts".to_owned())
                    .from_origin(object.origin.clone());
                    reader.report(d);
                    continue;
                }
                let mut server_names: Vec<Text> =
                    m.sni_hosts.iter().map(|s| Text::from(s.as_str())).collect();
                server_names.sort();
                let tcp = chain::weighted(reader, stream(scope, bound), object, &tls.route);
                let matches = ChainMatch {
                    server_names,
                    ..Default::default()
                };
                out.push(chain::chain(reader, matches, Handler::Tcp(tcp)));
            }
        }
    }
    out
}

/// Whether a match is meant for this server.
fn applies(port: u32, gateways: &[String], object: &Object, bound: &Bound<'_>) -> bool {
    let named = |g: &String| rules::gateway_ref(g, &object.key.namespace) == bound.gateway;
    (port == 0 || port == u32::from(bound.number))
        && (gateways.is_empty() || gateways.iter().any(named))
}

/// A chain for each service that other networks may reach: the server name says which, and only the mesh's own mutual
/// TLS gets through.
fn cross_network(reader: &Reader<'_>, scope: &ListenerScope, bound: &Bound<'_>) -> Vec<Chain> {
    let client = &scope.client;
    let allowed = bound.server_names();
    let mut out = Vec::new();
    for e in visibility::egress(reader, client) {
        for listed in visibility::services(reader, client, &e) {
            if !allowed.iter().any(|h| host::covers(h, &listed.id.host)) {
                continue;
            }
            let Some(service) = reader.service(&listed.id).filter(|s| !s.mesh_external) else {
                continue;
            };
            let rule = policy::rule(reader, client, service);
            let subsets = rule.iter().flat_map(|r| &r.spec.subsets);
            let subsets: Vec<&str> = std::iter::once("")
                .chain(subsets.map(|s| s.name.as_str()))
                .collect();
            for port in service.ports.iter().filter(|p| p.protocol != Protocol::Udp) {
                for subset in &subsets {
                    let tcp = chain::by_sni(reader, client, service, port.number, subset);
                    let matches = ChainMatch {
                        server_names: vec![tcp.stat_prefix.clone()],
                        alpn: MESH_ALPN.iter().map(|a| Text::from(*a)).collect(),
                        ..Default::default()
                    };
                    out.push(chain::chain(reader, matches, Handler::Tcp(tcp)));
                }
            }
        }
    }
    out
}
