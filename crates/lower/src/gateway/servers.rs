//! Which servers of which Gateways a proxy runs, and which of them share a listener or a route table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::networking::{Gateway, Server, ServerTlsMode, ServerTlsSettings};
use pilotfish_config::{Diagnostic, Object};
use pilotfish_mesh::{Instance, Port, Protocol, Reader, host};

use crate::server_tls::demands_certificate;
use crate::virtual_service::selects;
use crate::{Client, Text, chain};

/// Services with this label are not asked which container port stands behind their port.
const NO_TRANSLATION: &str = "experimental.istio.io/disable-gateway-port-translation";

/// A server of a Gateway object at one port of the proxy.
pub(super) struct Bound<'w> {
    pub(super) object: &'w Arc<Object>,
    pub(super) server: &'w Server,
    /// `namespace/name` of the Gateway.
    pub(super) gateway: Text,
    /// `host`, or `namespace/host` where only that namespace may route to it.
    pub(super) hosts: Vec<Text>,
    /// Port as written.
    pub(super) number: u16,
    pub(super) protocol: Protocol,
    /// Name of the route table; empty for byte streams.
    pub(super) table: Text,
    /// It is served over HTTP/3 as well.
    pub(super) http3: bool,
}

/// Servers at one address and port that were written with the same protocol.
pub(super) struct Slot<'w> {
    /// Address as written; empty: all.
    pub(super) bind: Text,
    pub(super) port: u16,
    /// Protocol as written: servers that write it otherwise stand beside these, not among them.
    written: &'w str,
    pub(super) protocol: Protocol,
    /// Route table of servers in plain text.
    pub(super) table: Text,
    /// Indices into [`Servers::all`].
    pub(super) servers: Vec<usize>,
}

/// The servers of a proxy.
#[derive(Default)]
pub(super) struct Servers<'w> {
    pub(super) all: Vec<Bound<'w>>,
    /// In the order in which they were claimed.
    pub(super) slots: Vec<Slot<'w>>,
    /// Servers of each route table.
    pub(super) tables: BTreeMap<Text, Vec<usize>>,
}

impl Bound<'_> {
    pub(super) fn is_passthrough(&self) -> bool {
        self.server
            .tls
            .as_ref()
            .is_some_and(ServerTlsSettings::is_passthrough)
    }

    /// Connections between networks are passed on by the server name they carry.
    pub(super) fn is_cross_network(&self) -> bool {
        let mode = self.server.tls.as_ref().map(|t| t.mode);
        mode == Some(ServerTlsMode::AutoPassthrough)
    }

    /// HTTP inside TLS that ends here.
    pub(super) fn is_https(&self) -> bool {
        self.server.tls.is_some() && self.protocol == Protocol::Https && !self.is_passthrough()
    }

    /// HTTP, whether in plain text or inside TLS that ends here.
    fn speaks_http(&self) -> bool {
        self.protocol.is_http() || (self.protocol == Protocol::Https && !self.is_passthrough())
    }

    /// TLS, ended here or passed on. Plain HTTP that redirects has TLS settings, too, and is not meant.
    fn speaks_tls(&self) -> bool {
        self.server.tls.is_some() && !self.protocol.is_http()
    }

    pub(super) fn redirects(&self) -> bool {
        self.server.tls.as_ref().is_some_and(|t| t.https_redirect)
    }

    /// Its hosts that a VirtualService of this namespace may name.
    pub(super) fn hosts_for(&self, namespace: &str) -> impl Iterator<Item = &str> {
        self.hosts
            .iter()
            .filter_map(move |h| match h.split_once('/') {
                Some((only, h)) => (only == namespace).then_some(h),
                None => Some(&**h),
            })
    }

    /// Whether a VirtualService of this namespace with these hosts is for this server.
    pub(super) fn serves(&self, namespace: &str, hosts: &[Text]) -> bool {
        self.hosts_for(namespace).any(|own| {
            hosts
                .iter()
                .any(|h| host::covers(own, h) || host::covers(h, own))
        })
    }

    /// Server names that lead to it, sorted.
    pub(super) fn server_names(&self) -> Vec<Text> {
        let names: BTreeSet<Text> = self.hosts.iter().map(|h| bare(h)).collect();
        names.into_iter().collect()
    }

    pub(super) fn report(&self, reader: &Reader<'_>, code: &'static str, reason: String) {
        reader.report(
            Diagnostic::warning(code, reason, "this server is left out")
                .of(self.object.key.clone())
                .at(format!("spec.servers (port {})", self.number))
                .from_origin(self.object.origin.clone()),
        );
    }
}

/// A host without the namespace it is reserved for.
pub(super) fn bare(host: &str) -> Text {
    Text::from(host.split_once('/').map_or(host, |(_, h)| h))
}

/// `./h` is reserved for the Gateway's own namespace, `*/h` for nobody.
fn sanitized(hosts: &[String], namespace: &str) -> Vec<Text> {
    if hosts.iter().any(|h| h == "*/*") {
        return vec![Text::from("*")];
    }
    hosts
        .iter()
        .map(|h| match h.split_once('/') {
            Some((".", h)) => Text::from(format!("{namespace}/{h}")),
            Some(("*", h)) => Text::from(h),
            _ => Text::from(h.as_str()),
        })
        .collect()
}

/// Port the proxy listens on for a port of its service: that of the oldest service that has it, else the port itself.
fn target(reader: &Reader<'_>, instances: &[Instance], number: u16) -> u16 {
    instances
        .iter()
        .filter(|i| i.port.number == number)
        .find(|i| {
            reader
                .service(&i.service)
                .is_none_or(|s| !s.labels.contains_key(NO_TRANSLATION))
        })
        .map_or(number, |i| i.target)
}

/// HTTP/3 is offered where HTTPS ends and a service of the proxy takes datagrams at the port. QUIC cannot ask clients for
/// certificates: a server that demands them would let everybody in, so that it stays without.
fn offers_http3(reader: &Reader<'_>, instances: &[Instance], bound: &Bound<'_>) -> bool {
    let takes_datagrams = |i: &Instance| {
        let is = |p: &Port| p.number == bound.number && p.protocol == Protocol::Udp;
        i.port.number == bound.number
            && reader
                .service(&i.service)
                .is_some_and(|s| s.ports.iter().any(is))
    };
    let Some(tls) = bound.server.tls.as_ref().filter(|_| bound.is_https()) else {
        return false;
    };
    if bound.server.bind.starts_with("unix://") || !instances.iter().any(takes_datagrams) {
        return false;
    }
    if demands_certificate(tls) {
        reader.report(
            Diagnostic::warning(
                "no-http3",
                "HTTP/3 cannot ask clients for certificates",
                "the server is not offered over HTTP/3",
            )
            .of(bound.object.key.clone())
            .at(format!("spec.servers (port {})", bound.number))
            .from_origin(bound.object.origin.clone()),
        );
        return false;
    }
    true
}

/// Plain HTTP shares one table for each port; HTTPS has one for each server.
fn table_name(object: &Object, server: &Server, protocol: Protocol, port: u16) -> Text {
    let bind = if server.bind.is_empty() {
        String::new()
    } else {
        format!(".{}", server.bind)
    };
    if protocol.is_http() {
        return Text::from(format!("http.{port}{bind}"));
    }
    let ends_here = !server
        .tls
        .as_ref()
        .is_some_and(ServerTlsSettings::is_passthrough);
    match &server.port {
        Some(p) if protocol == Protocol::Https && ends_here => Text::from(format!(
            "https.{}.{}.{}.{}{bind}",
            p.number, p.name, object.key.name, object.key.namespace
        )),
        _ => Text::default(),
    }
}

/// Whether a Gateway is for a proxy.
pub(super) fn selected(
    reader: &Reader<'_>,
    client: &Client,
    object: &Object,
    spec: &Gateway,
) -> bool {
    let own_only = chain::feature(reader, "PILOT_SCOPE_GATEWAY_TO_NAMESPACE", false);
    selects(reader, &spec.selector, client)
        && (!own_only || client.is_in(reader, &object.key.namespace))
}

/// The servers of all Gateways that select a proxy, oldest Gateway first.
pub(super) fn servers<'w>(
    reader: &Reader<'w>,
    client: &Client,
    instances: &[Instance],
) -> Servers<'w> {
    let mut merge = Merge::default();
    let quic = chain::feature(reader, "PILOT_ENABLE_QUIC_LISTENERS", false);
    for object in reader.gateways().iter() {
        let Some(spec) = object.get::<Gateway>() else {
            continue;
        };
        if !selected(reader, client, object, spec) {
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
            let at = target(reader, instances, number);
            let mut bound = Bound {
                object,
                server,
                gateway: Text::from(format!("{}/{}", object.key.namespace, object.key.name)),
                hosts: sanitized(&server.hosts, &object.key.namespace),
                number,
                protocol,
                table: table_name(object, server, protocol, at),
                http3: false,
            };
            bound.http3 = quic && offers_http3(reader, instances, &bound);
            merge.add(reader, bound, at, &port.protocol);
        }
    }
    merge.out
}

/// Servers claim ports in order; one that cannot stand beside those before it is left out, which the analysis reports.
#[derive(Default)]
struct Merge<'w> {
    out: Servers<'w>,
    /// Ports that somebody has.
    taken: BTreeSet<u16>,
    /// The last slot in plain text of a port.
    plain: BTreeMap<u16, usize>,
    /// Hosts of servers with TLS settings by port, and the address that has them: what decides by server name needs
    /// each name once.
    names: BTreeMap<u16, BTreeMap<Text, Text>>,
}

impl<'w> Merge<'w> {
    fn add(&mut self, reader: &Reader<'_>, bound: Bound<'w>, port: u16, written: &'w str) {
        let bind = Text::from(bound.server.bind.as_str());
        if bound.server.tls.is_some() && !self.claim_names(&bound, port, &bind) {
            return;
        }
        let same =
            |slot: &Slot<'_>| slot.port == port && slot.bind == bind && slot.written == written;
        let slot = self.out.slots.iter().position(same);
        if !self.taken.insert(port) {
            match self.plain.get(&port).copied() {
                Some(current) if self.out.slots[current].bind == bind => {
                    let mixes =
                        bound.protocol.is_http() && self.out.slots[current].protocol.is_http();
                    if mixes {
                        self.join(current, bound);
                    }
                    return;
                }
                Some(_) => {
                    if let Some(slot) = slot {
                        return self.join(slot, bound);
                    }
                }
                None if bound.speaks_tls() => {
                    if bound.speaks_http() && self.out.tables.contains_key(&bound.table) {
                        bound.report(
                            reader,
                            "gateway-conflict",
                            format!("another server has the route table {}", bound.table),
                        );
                        return;
                    }
                    if let Some(slot) = slot {
                        return self.join(slot, bound);
                    }
                }
                None => {}
            }
        }
        self.open(bound, port, bind, written);
    }

    /// False if another server at the same address has one of the hosts.
    fn claim_names(&mut self, bound: &Bound<'w>, port: u16, bind: &Text) -> bool {
        let known = self.names.entry(port).or_default();
        if bound.hosts.iter().any(|h| known.get(h) == Some(bind)) {
            return false;
        }
        known.extend(bound.hosts.iter().map(|h| (h.clone(), bind.clone())));
        true
    }

    fn join(&mut self, slot: usize, bound: Bound<'w>) {
        let index = self.out.all.len();
        self.out.slots[slot].servers.push(index);
        if bound.speaks_http() {
            let table = self.out.tables.entry(bound.table.clone()).or_default();
            table.push(index);
        }
        self.out.all.push(bound);
    }

    fn open(&mut self, bound: Bound<'w>, port: u16, bind: Text, written: &'w str) {
        let slot = self.out.slots.len();
        if !bound.speaks_tls() {
            self.plain.insert(port, slot);
        }
        self.out.slots.push(Slot {
            bind,
            port,
            written,
            protocol: bound.protocol,
            table: bound.table.clone(),
            servers: Vec::new(),
        });
        self.join(slot, bound);
    }
}
