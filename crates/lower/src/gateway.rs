//! Gateways: the listeners and routes of a proxy at the edge.
//!
//! Servers that share an address and port share a listener. HTTP servers in plain text are translated; servers with TLS
//! or TCP are reported and left out until their issue arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::networking::{Gateway, Server, VirtualService};
use pilotfish_config::{Diagnostic, Object, ObjectKey};
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{
    Chain, ChainMatch, ClientCert, Direction, Handler, Inspect, Routes, Side,
};
use pilotfish_ir::{Listener, Millis, VirtualHost};
use pilotfish_mesh::rules::Ranked;
use pilotfish_mesh::{Instance, Protocol, Reader, host};

use crate::virtual_service::{self, Place, selects};
use crate::{Client, ListenerScope, Text, chain, outbound, policy};

/// A server of a Gateway object.
struct Bound<'w> {
    object: &'w Arc<Object>,
    server: &'w Server,
    /// Port as written.
    number: u16,
    protocol: Protocol,
}

/// Address and port of a listener: the address is empty unless written.
pub type At = (Text, u16);

fn bound<'w>(
    reader: &Reader<'w>,
    client: &Client,
    instances: &[Instance],
) -> BTreeMap<At, Vec<Bound<'w>>> {
    let mut out: BTreeMap<At, Vec<Bound<'w>>> = BTreeMap::new();
    let all: &'w Ranked = reader.gateways();
    for object in all.iter() {
        let Some(spec) = object.get::<Gateway>() else {
            continue;
        };
        if !selects(&spec.selector, client) {
            continue;
        }
        reader.uses(&object.key);
        for server in &spec.servers {
            let Some(port) = server.port.as_ref() else {
                continue;
            };
            let Ok(number) = u16::try_from(port.number) else {
                continue;
            };
            let protocol = Protocol::parse(&port.protocol);
            for target in targets(instances, number) {
                out.entry((Text::from(server.bind.as_str()), target))
                    .or_default()
                    .push(Bound {
                        object,
                        server,
                        number,
                        protocol,
                    });
            }
        }
    }
    out
}

/// Ports the proxy listens on for a port of its service; the port itself if no service says otherwise.
fn targets(instances: &[Instance], number: u16) -> Vec<u16> {
    let mut out: Vec<u16> = instances
        .iter()
        .filter(|i| i.port == number)
        .map(|i| i.target)
        .collect();
    out.sort_unstable();
    out.dedup();
    if out.is_empty() { vec![number] } else { out }
}

fn plain_http(b: &Bound<'_>) -> bool {
    let redirect_only = b.server.tls.as_ref().is_none_or(|t| t.https_redirect);
    b.protocol.is_http() && redirect_only
}

/// Addresses and ports with an HTTP route table.
pub fn tables(reader: &Reader<'_>, client: &Client, instances: &[Instance]) -> Vec<At> {
    bound(reader, client, instances)
        .into_iter()
        .filter(|(_, servers)| servers.iter().any(plain_http))
        .map(|(at, _)| at)
        .collect()
}

/// The name of a route table.
pub fn table_name((bind, port): &At) -> Text {
    if bind.is_empty() {
        Text::from(format!("http.{port}"))
    } else {
        Text::from(format!("http.{port}.{bind}"))
    }
}

/// All listeners of a gateway.
pub fn listeners(reader: &Reader<'_>, scope: &ListenerScope) -> Vec<Listener> {
    let mut out = Vec::new();
    for (at, servers) in bound(reader, &scope.client, &scope.instances) {
        for b in servers.iter().filter(|b| !plain_http(b)) {
            let d = Diagnostic::warning(
                "not-translated",
                "servers with TLS or TCP are not translated yet",
                "this server is left out",
            )
            .of(b.object.key.clone())
            .at(format!("spec.servers (port {})", b.number))
            .from_origin(b.object.origin.clone());
            reader.report(d);
        }
        if servers.iter().any(plain_http) {
            out.push(http_listener(reader, scope, &at));
        }
    }
    out
}

fn http_listener(reader: &Reader<'_>, scope: &ListenerScope, at: &At) -> Listener {
    let wildcards = scope.client.families.wildcards();
    let binds: Vec<Text> = if at.0.is_empty() {
        wildcards.iter().map(|w| Text::from(*w)).collect()
    } else {
        vec![at.0.clone()]
    };
    let name = outbound::listener_name(&binds[0], at.1);
    let mut h = chain::http(reader, Side::Gateway, scope.tracing.clone(), scope.http10);
    h.routes = Routes::Discovered(table_name(at));
    h.stat_prefix = Text::from(format!("outbound_{name}"));
    h.use_remote_address = Some(true);
    h.client_cert = ClientCert::SanitizeSet;
    h.server_name = Some(Text::from("istio-envoy"));
    Listener {
        name,
        address: Address::Socket(binds[0].clone(), at.1),
        additional: binds[1..]
            .iter()
            .map(|b| Address::Socket(b.clone(), at.1))
            .collect(),
        direction: Direction::Outbound,
        bind: true,
        use_original_dst: false,
        transparent: false,
        inspect: Inspect::default(),
        continue_on_timeout: false,
        inspect_timeout: None,
        chains: vec![Chain {
            name: Text::default(),
            matches: ChainMatch::default(),
            explicit_match: false,
            tls: None,
            handler: Handler::Http(Box::new(h)),
            metadata_exchange: false,
            connect_timeout: Some(Millis::secs(15)),
            origin: None,
        }],
        default_chain: None,
        one_accept_per_event: true,
    }
}

/// Hosts of a server: namespace pattern and host pattern.
fn server_hosts(b: &Bound<'_>) -> Vec<(Text, Text)> {
    let own = &b.object.key.namespace;
    b.server
        .hosts
        .iter()
        .map(|h| match h.split_once('/') {
            Some((".", h)) => (own.clone(), Text::from(h)),
            Some((ns, h)) => (Text::from(ns), Text::from(h)),
            None => (Text::from("*"), Text::from(h.as_str())),
        })
        .collect()
}

/// Hosts a VirtualService serves through a server: the narrower of the two where they overlap.
fn served_hosts(b: &Bound<'_>, object: &Object, vs: &VirtualService, domain: &str) -> Vec<Text> {
    let hosts: Vec<Text> = vs
        .hosts
        .iter()
        .map(|h| host::resolve(h, &object.key.namespace, domain))
        .collect();
    let mut out = Vec::new();
    for (ns, pattern) in server_hosts(b) {
        if &*ns != "*" && ns != object.key.namespace {
            continue;
        }
        for h in &hosts {
            if host::covers(&pattern, h) {
                out.push(h.clone());
            } else if host::covers(h, &pattern) {
                out.push(pattern.clone());
            }
        }
    }
    out.sort();
    out.dedup();
    out
}

/// VirtualServices bound to a server, oldest first, with the hosts they serve.
fn rules<'w>(
    reader: &Reader<'w>,
    client: &Client,
    b: &Bound<'_>,
) -> Vec<(&'w Arc<Object>, &'w VirtualService, Vec<Text>)> {
    let key = Text::from(format!("{}/{}", b.object.key.namespace, b.object.key.name));
    let mesh = reader.mesh();
    let domain = &reader.settings().domain;
    let ranked = reader
        .gateway_virtual_services(&key)
        .map_or(&[][..], |r| r.as_slice());
    ranked
        .iter()
        .filter_map(|o| {
            let vs = o.get::<VirtualService>()?;
            let visible = policy::export_to(
                &vs.export_to,
                &mesh.default_virtual_service_export_to,
                &o.key.namespace,
            )
            .visible(&client.namespace, &o.key.namespace);
            // Rules for bytes alone have no place in a table; if there are no others, everything is refused.
            (visible && !vs.http.is_empty()).then(|| (o, vs, served_hosts(b, o, vs, domain)))
        })
        .collect()
}

/// The first host of each virtual host of a table; hosts with equal routes stand together. None: everything is refused.
pub fn hosts(
    reader: &Reader<'_>,
    client: &Client,
    instances: &[Instance],
    at: &At,
) -> BTreeSet<Text> {
    groups(reader, client, instances, at)
        .into_iter()
        .filter_map(|mut hosts| hosts.pop_first())
        .collect()
}

/// Hosts of a table in groups that are served by the same rules of the same servers.
fn groups(
    reader: &Reader<'_>,
    client: &Client,
    instances: &[Instance],
    at: &At,
) -> Vec<BTreeSet<Text>> {
    let all = bound(reader, client, instances);
    let servers = all.get(at).map_or(&[][..], Vec::as_slice);
    // Which rules, through which servers, make up a host: equal lists make equal routes.
    let mut made_of: BTreeMap<Text, Vec<(usize, &ObjectKey)>> = BTreeMap::new();
    for (i, b) in servers.iter().enumerate().filter(|(_, b)| plain_http(b)) {
        for (object, _, hosts) in rules(reader, client, b) {
            for h in hosts {
                made_of.entry(h).or_default().push((i, &object.key));
            }
        }
    }
    let mut by_rules: BTreeMap<Vec<(usize, &ObjectKey)>, BTreeSet<Text>> = BTreeMap::new();
    for (h, rules) in made_of {
        by_rules.entry(rules).or_default().insert(h);
    }
    by_rules.into_values().collect()
}

/// One virtual host of a gateway; `host` is empty for the one that refuses everything.
pub fn virtual_host(
    reader: &Reader<'_>,
    client: &Client,
    instances: &[Instance],
    at: &At,
    h: &str,
) -> Option<VirtualHost> {
    let all = bound(reader, client, instances);
    let servers = all.get(at)?;
    let group = groups(reader, client, instances, at)
        .into_iter()
        .find(|g| g.first().is_some_and(|f| &**f == h));
    let number = servers.iter().find(|b| plain_http(b))?.number;
    if h.is_empty() {
        return Some(VirtualHost {
            name: Text::from(format!("blackhole:{number}")),
            domains: vec![Text::from("*")],
            routes: Vec::new(),
            attempt_count: false,
            require_tls: false,
        });
    }
    let mut routes = Vec::new();
    let mut require_tls = false;
    let mut port = number;
    for b in servers.iter().filter(|b| plain_http(b)) {
        let gateway = [Text::from(format!(
            "{}/{}",
            b.object.key.namespace, b.object.key.name
        ))];
        let place = Place {
            client,
            port: b.number,
            gateways: &gateway,
            tls: false,
        };
        for (object, vs, hosts) in rules(reader, client, b) {
            if hosts.iter().any(|x| &**x == h) {
                port = b.number;
                routes.extend(virtual_service::routes(reader, place, object, vs));
                require_tls |= b.server.tls.as_ref().is_some_and(|t| t.https_redirect);
            }
        }
    }
    (!routes.is_empty()).then(|| VirtualHost {
        name: Text::from(format!("{h}:{port}")),
        domains: group
            .iter()
            .flatten()
            .map(|d| crate::route::domain_name(d))
            .collect(),
        routes,
        attempt_count: true,
        require_tls,
    })
}
