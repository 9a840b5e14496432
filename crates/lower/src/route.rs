//! Route tables of outbound listeners: which tables there are, and their virtual hosts one by one.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilotfish_config::networking::VirtualService;
use pilotfish_config::{Kind, Object, ObjectKey};
use pilotfish_ir::route::{
    Action, Forward, HeaderOps, Rewrite, Route, RouteMatch, WeightedCluster,
};
use pilotfish_ir::{ClusterName, Millis, RouteTable, VirtualHost};
use pilotfish_mesh::rules::Head;
use pilotfish_mesh::{ExportTo, Port, Protocol, Reader, Resolution, Service, ServiceId, host};

use crate::virtual_service::{self, Place};
use crate::visibility::{self, Egress, Elsewhere};
use crate::{Client, ProxyKind, RouteScope, Text, chain, gateway, policy, session};

/// Largest body of a direct response.
pub(crate) const LARGEST_RESPONSE: u32 = 1024 * 1024;
/// The port of HTTP.
const HTTP: u16 = 80;
/// The table of the listener that is an HTTP proxy.
pub(crate) const HTTP_PROXY: &str = "http_proxy";

/// Which requests a table is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableKey {
    /// All hosts of a port.
    Port(u16),
    /// One service whose protocol is detected.
    Service(ServiceId, u16),
    /// An egress listener bound to a Unix socket.
    Socket(Text),
    /// All hosts of all ports, for applications that use the proxy as one.
    HttpProxy,
    /// Servers of a gateway, by the table's name.
    Gateway(Text),
}

impl TableKey {
    /// Its name on the wire.
    pub fn name(&self) -> Text {
        match self {
            Self::Port(p) => Text::from(p.to_string()),
            Self::Service(id, p) => Text::from(format!("{}:{p}", id.host)),
            Self::Socket(name) | Self::Gateway(name) => name.clone(),
            Self::HttpProxy => Text::from(HTTP_PROXY),
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::Port(p) | Self::Service(_, p) => *p,
            Self::Socket(_) | Self::Gateway(_) | Self::HttpProxy => 0,
        }
    }
}

/// One virtual host of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostKey {
    /// Of a service.
    Service(ServiceId),
    /// Of a port of a service, in a table for all ports.
    Port(ServiceId, u16),
    /// Of a host that only VirtualServices know: the object's namespace and name, and the host.
    Written(Text, Text, Text),
    /// Of a gateway.
    Gateway(Arc<gateway::Plan>),
    /// For everything else.
    CatchAll,
}

/// Tables of a proxy.
pub fn tables(reader: &Reader<'_>, scope: &RouteScope) -> BTreeSet<TableKey> {
    let client = &scope.client;
    if client.kind == ProxyKind::Router {
        return gateway::tables(reader, client, &scope.instances)
            .into_iter()
            .map(TableKey::Gateway)
            .collect();
    }
    let wildcard = client.families.wildcards()[0];
    let mut out = BTreeSet::new();
    if scope.http_proxy {
        out.insert(TableKey::HttpProxy);
    }
    for e in visibility::egress(reader, client) {
        let written = e.port();
        if let Some(path) = e
            .listener
            .map(|l| l.bind.as_str())
            .filter(|b| b.starts_with("unix://"))
        {
            out.insert(TableKey::Socket(Text::from(path)));
        }
        if let Some((port, protocol, _)) = written
            && routable(protocol)
        {
            out.insert(TableKey::Port(port));
        }
        let services = visibility::services(reader, client, &e);
        for s in services
            .iter()
            .filter(|s| s.resolution != Resolution::Alias)
        {
            for p in s
                .ports
                .iter()
                .filter(|p| written.is_none_or(|(n, ..)| n == p.number))
            {
                if p.protocol.is_http() {
                    out.insert(TableKey::Port(p.number));
                } else if p.protocol.is_auto() {
                    // A listener of its own has a table of its own.
                    let own = *visibility::addresses(reader, s, client)[0] != *wildcard
                        || s.is_headless();
                    out.insert(if own {
                        TableKey::Service(s.id.clone(), p.number)
                    } else {
                        TableKey::Port(p.number)
                    });
                }
            }
        }
    }
    out
}

/// The table without its virtual hosts.
pub fn table(key: &TableKey) -> RouteTable {
    RouteTable {
        name: key.name(),
        ignore_port: true,
        max_direct_response: Some(LARGEST_RESPONSE),
    }
}

/// The egress listener a table belongs to: the one written for its port, else the first without a port.
fn egress_for<'e, 'w>(all: &'e [Egress<'w>], key: &TableKey) -> Option<&'e Egress<'w>> {
    let port = key.port();
    let written = |e: &&Egress<'_>| match key {
        TableKey::Socket(path) => e.listener.is_some_and(|l| l.bind == **path),
        _ => e.port().is_some_and(|(n, ..)| n == port),
    };
    all.iter()
        .find(written)
        .or_else(|| all.iter().find(|e| e.port().is_none()))
}

/// The virtual hosts of a table, in the order in which they own domains: hosts of VirtualServices by age, then services.
pub fn hosts(reader: &Reader<'_>, scope: &RouteScope, key: &TableKey) -> Vec<HostKey> {
    let client = &scope.client;
    match key {
        TableKey::Service(id, _) => return vec![HostKey::Service(id.clone())],
        TableKey::Gateway(name) => {
            let plans = gateway::hosts(reader, client, &scope.instances, name);
            let keys = plans.into_iter().map(|p| HostKey::Gateway(Arc::new(p)));
            return keys.collect();
        }
        TableKey::Port(_) | TableKey::Socket(_) | TableKey::HttpProxy => {}
    }
    let egress = visibility::egress(reader, client);
    let mut out = Vec::new();
    if let Some(e) = egress_for(&egress, key) {
        // An application that uses the proxy as one names all ports there.
        let proxied = e.port().is_some_and(|(_, p, _)| p == Protocol::HttpProxy);
        let port = if proxied { 0 } else { key.port() };
        let services = if port == 0 {
            visibility::services(reader, client, e)
        } else {
            visibility::services_on_port(reader, client, e, port)
        };
        // An alias has no routes of its own, but a VirtualService may write some for it.
        let own = |s: &Service| {
            s.resolution != Resolution::Alias || head_for(reader, client, &s.id.host).is_some()
        };
        let mut routable: Vec<&Arc<Service>> = services
            .into_iter()
            .filter(|s| routes_at(s, port) && own(s))
            .collect();
        routable.sort_by_cached_key(|s| claim(reader, client, &s.id.host));
        out.extend(written_hosts(reader, client, e, port, &routable));
        if port == 0 {
            out.extend(routable.iter().flat_map(|s| each_port(s)));
        } else {
            out.extend(routable.iter().map(|s| HostKey::Service(s.id.clone())));
        }
    }
    out.push(HostKey::CatchAll);
    out
}

/// Who owns a domain that several services have: one with a VirtualService before one without, the older VirtualService
/// before the younger, a host that is written before one that a wildcard covers.
fn claim(reader: &Reader<'_>, client: &Client, h: &Text) -> (bool, i64, Text, Text, bool) {
    let Some(head) = head_for(reader, client, h) else {
        return (true, 0, Text::default(), Text::default(), false);
    };
    let (name, namespace) = (&head.key.name, &head.key.namespace);
    let domain = &reader.settings().domain;
    let mut hosts = head.hosts.iter();
    let written = hosts.any(|w| host::resolve(w, namespace, domain) == *h);
    (
        false,
        head.created,
        name.clone(),
        namespace.clone(),
        !written,
    )
}

/// The virtual hosts of a service in a table for all ports.
fn each_port(service: &Service) -> impl Iterator<Item = HostKey> + '_ {
    let ports = service.ports.iter().filter(|p| routable(p.protocol));
    ports.map(|p| HostKey::Port(service.id.clone(), p.number))
}

fn routes_at(service: &Service, port: u16) -> bool {
    service
        .ports
        .iter()
        .any(|p| (port == 0 || p.number == port) && routable(p.protocol))
}

/// HTTP, or something that may turn out to be HTTP.
pub(crate) fn routable(p: Protocol) -> bool {
    p.is_http() || p.is_auto()
}

/// Hosts of VirtualServices that are no service's. They stand beside the services the same VirtualService names; if it
/// names none they stand in the table of port 80.
fn written_hosts(
    reader: &Reader<'_>,
    client: &Client,
    egress: &Egress<'_>,
    port: u16,
    services: &[&Arc<Service>],
) -> Vec<HostKey> {
    let known: BTreeSet<&str> = services.iter().map(|s| &*s.id.host).collect();
    let mut out = Vec::new();
    let mut seen = BTreeSet::new();
    let hosts: Vec<&Text> = reader.virtual_service_hosts().collect();
    for h in hosts {
        if known.contains(&**h)
            || h.starts_with('*') && services.iter().any(|s| host::covers(h, &s.id.host))
        {
            continue;
        }
        for head in reader.virtual_service_heads_of(h) {
            if !visible(reader, client, &head)
                || !head.has_http
                || !egress.imports_rule(reader, &head)
            {
                continue;
            }
            let (name, namespace) = (&head.key.name, &head.key.namespace);
            let domain = &reader.settings().domain;
            let resolved: Vec<Text> = head
                .hosts
                .iter()
                .map(|h| host::resolve(h, namespace, domain))
                .collect();
            let names_service = resolved.iter().any(|h| {
                known.contains(&**h)
                    || h.starts_with('*') && services.iter().any(|s| host::covers(h, &s.id.host))
            });
            if (names_service || port == 80) && seen.insert(h.clone()) {
                out.push((
                    head.created,
                    HostKey::Written(namespace.clone(), name.clone(), h.clone()),
                ));
            }
        }
    }
    out.sort();
    out.into_iter().map(|(_, k)| k).collect()
}

pub(crate) fn visible(reader: &Reader<'_>, client: &Client, head: &Head<'_>) -> bool {
    let namespace = &head.key.namespace;
    let default = &reader.mesh().default_virtual_service_export_to;
    let export_to = policy::export_to(head.export_to, default, namespace);
    client.sees(reader, &export_to, namespace)
}

/// The head of the VirtualService that applies to a host.
fn head_for<'w>(reader: &Reader<'w>, client: &Client, h: &Text) -> Option<Head<'w>> {
    let listeners = visibility::egress(reader, client);
    reader
        .virtual_service_heads(h)
        .into_iter()
        .find_map(|heads| {
            heads
                .into_iter()
                .filter(|head| usable(reader, client, &listeners, head))
                .min_by_key(|head| audience(reader, client, head))
        })
}

/// The VirtualService that applies to a host: the one for the most specific host; of those the one meant for the client's
/// namespace more than others, then the oldest.
pub fn virtual_service_for<'w>(
    reader: &Reader<'w>,
    client: &Client,
    h: &Text,
) -> Option<(&'w Arc<Object>, &'w VirtualService)> {
    let listeners = visibility::egress(reader, client);
    reader.virtual_services(h).into_iter().find_map(|ranked| {
        let (_, o, vs) = usable_of(reader, client, &listeners, ranked)
            .min_by_key(|(head, ..)| audience(reader, client, head))?;
        Some((o, vs))
    })
}

/// All VirtualServices whose hosts cover a host, however specific: those meant for the client's namespace more than for
/// others first, then the oldest.
pub(crate) fn virtual_services_for<'w>(
    reader: &Reader<'w>,
    client: &Client,
    h: &Text,
) -> Vec<(&'w Arc<Object>, &'w VirtualService)> {
    let listeners = visibility::egress(reader, client);
    let covering = reader.virtual_services(h).into_iter();
    let mut out: Vec<_> = covering
        .flat_map(|ranked| usable_of(reader, client, &listeners, ranked))
        .collect();
    out.sort_by_key(|(head, ..)| {
        let audience = audience(reader, client, head);
        (audience, head.created, &head.key.name, &head.key.namespace)
    });
    out.dedup_by_key(|(head, ..)| head.key);
    out.into_iter().map(|(_, o, vs)| (o, vs)).collect()
}

/// Whether the client sees and imports a VirtualService.
fn usable(reader: &Reader<'_>, client: &Client, listeners: &[Egress<'_>], head: &Head<'_>) -> bool {
    visible(reader, client, head) && listeners.iter().any(|e| e.imports_rule(reader, head))
}

/// Those of some VirtualServices that the client sees and imports.
fn usable_of<'w, 'a>(
    reader: &'a Reader<'w>,
    client: &'a Client,
    listeners: &'a [Egress<'_>],
    ranked: &'w [Arc<Object>],
) -> impl Iterator<Item = (Head<'w>, &'w Arc<Object>, &'w VirtualService)> + use<'w, 'a> {
    ranked
        .iter()
        .filter_map(|o| Some((Head::of(o)?, o, o.get::<VirtualService>()?)))
        .filter(move |(head, ..)| usable(reader, client, listeners, head))
}

/// How much a VirtualService is meant for a client: 0 only by its own namespace, 1 by name, 2 as one of all.
pub(crate) fn audience(reader: &Reader<'_>, client: &Client, head: &Head<'_>) -> u8 {
    let namespace = &head.key.namespace;
    let default = &reader.mesh().default_virtual_service_export_to;
    match policy::export_to(head.export_to, default, namespace) {
        ExportTo::Public => 2,
        _ if client.is_in(reader, namespace) => 0,
        _ => 1,
    }
}

/// A virtual host as it stands in a table, before domains that an earlier one owns are taken away.
pub fn virtual_host(
    reader: &Reader<'_>,
    scope: &RouteScope,
    table: &TableKey,
    key: &HostKey,
) -> Option<VirtualHost> {
    let client = &scope.client;
    match key {
        HostKey::Gateway(plan) => Some(gateway::virtual_host(reader, client, plan)),
        HostKey::CatchAll => Some(catch_all(reader, client)),
        HostKey::Written(namespace, name, h) => {
            let written = ObjectKey::new(Kind::VirtualService, namespace, name);
            let (o, vs) = reader.virtual_service(&written)?;
            // A table for all ports holds such a host once, for the port of HTTP.
            let port = match table.port() {
                0 => HTTP,
                port => port,
            };
            let routes = virtual_service::routes(reader, mesh_place(client, port), o, vs);
            (!routes.is_empty()).then(|| VirtualHost {
                name: Text::from(format!("{}:{port}", domain_name(h))),
                domains: vec![domain_name(h)],
                routes,
                attempt_count: client.conduct.attempt_count,
                require_tls: false,
                session: None,
            })
        }
        HostKey::Service(id) | HostKey::Port(id, _) => {
            let service = reader.service(id)?;
            let number = match key {
                HostKey::Port(_, number) => *number,
                _ => table.port(),
            };
            let port = service
                .ports
                .iter()
                .find(|p| p.number == number && routable(p.protocol))?;
            let written = virtual_service_for(reader, client, &id.host)
                .map(|(o, vs)| {
                    virtual_service::routes(reader, mesh_place(client, port.number), o, vs)
                })
                .filter(|r| !r.is_empty());
            let domains = match (table, key) {
                (TableKey::Service(..), _) => vec![Text::from("*")],
                (_, HostKey::Port(..)) => {
                    with_port(domains(reader, client, table, service), number)
                }
                _ => domains(reader, client, table, service),
            };
            Some(VirtualHost {
                name: Text::from(format!("{}:{}", id.host, port.number)),
                domains,
                routes: written
                    .unwrap_or_else(|| vec![default_route(reader, client, service, port)]),
                attempt_count: client.conduct.attempt_count,
                require_tls: false,
                session: session::of(reader, service),
            })
        }
    }
}

fn mesh_place(client: &Client, port: u16) -> Place<'_> {
    static MESH: std::sync::LazyLock<[Text; 1]> = std::sync::LazyLock::new(|| [Text::from("mesh")]);
    Place {
        client,
        port,
        gateways: MESH.as_slice(),
        tls: false,
        http3: false,
    }
}

fn default_route(reader: &Reader<'_>, client: &Client, service: &Service, port: &Port) -> Route {
    let host = service.id.host.clone();
    let hash = virtual_service::hash_of_service(reader, client, service, port.number);
    plain_route(
        "default",
        Forward {
            to: vec![to(ClusterName::Outbound {
                port: port.number,
                subset: Text::default(),
                host: host.clone(),
            })],
            split: false,
            timeout: Millis(0),
            max_grpc_timeout: Some(Millis(0)),
            stream_duration: None,
            retries: virtual_service::retries(
                reader.mesh().default_http_retry_policy.as_ref(),
                false,
            ),
            rewrite: None,
            mirrors: Vec::new(),
            hash: hash.into_iter().collect(),
        },
        Some(format!("{host}:{}/*", port.number)),
    )
}

/// A destination without weight.
pub(crate) fn to(cluster: ClusterName) -> WeightedCluster {
    WeightedCluster {
        cluster,
        weight: 0,
        headers: HeaderOps::default(),
        host_rewrite: None,
    }
}

/// A route for everything, without policy.
pub(crate) fn plain_route(name: &str, forward: Forward, operation: Option<String>) -> Route {
    Route {
        name: Text::from(name),
        matches: RouteMatch::any(),
        action: Action::Forward(Box::new(forward)),
        operation,
        origin: None,
        headers: HeaderOps::default(),
        fault: None,
        cors: None,
        stat_prefix: None,
        session: None,
        http3_port: None,
    }
}

/// The virtual host for what nobody declared.
pub(crate) fn catch_all(reader: &Reader<'_>, client: &Client) -> VirtualHost {
    let to_cluster = |name: &'static str, cluster: ClusterName| {
        let forward = Forward {
            to: vec![to(cluster)],
            max_grpc_timeout: Some(Millis(0)),
            rewrite: client.conduct.forwarded_host.then(|| Rewrite {
                forwarded_host: true,
                ..Default::default()
            }),
            ..empty_forward()
        };
        (name, plain_route(name, forward, None))
    };
    let (name, route) = match visibility::elsewhere(reader, client) {
        Elsewhere::Refused => {
            let mut r = plain_route("block_all", empty_forward(), None);
            r.action = Action::Respond {
                status: 502,
                body: None,
            };
            ("block_all", r)
        }
        Elsewhere::ByHost => to_cluster("allow_any_dynamic_dns", ClusterName::AnyHost),
        other => to_cluster("allow_any", other.cluster()),
    };
    VirtualHost {
        name: Text::from(name),
        domains: vec![Text::from("*")],
        routes: vec![route],
        attempt_count: client.conduct.attempt_count,
        require_tls: false,
        session: None,
    }
}

fn empty_forward() -> Forward {
    Forward {
        to: Vec::new(),
        split: false,
        timeout: Millis(0),
        max_grpc_timeout: None,
        stream_duration: None,
        retries: None,
        rewrite: None,
        mirrors: Vec::new(),
        hash: Vec::new(),
    }
}

/// A host or address as it may stand among domains: IPv6 needs brackets.
pub(crate) fn domain_name(host: &str) -> Text {
    if host.contains(':') && !host.starts_with('[') {
        Text::from(format!("[{host}]"))
    } else {
        Text::from(host)
    }
}

/// Domains of a service: its host, the short forms a client of its namespace or domain may use, and its addresses.
fn domains(reader: &Reader<'_>, client: &Client, table: &TableKey, service: &Service) -> Vec<Text> {
    let mut out: Vec<Text> = Vec::new();
    let egress = visibility::egress(reader, client);
    let aliases = egress_for(&egress, table)
        .map_or_else(Vec::new, |e| visibility::aliases(reader, e, service));
    for h in std::iter::once(&service.id.host).chain(&aliases) {
        out.push(domain_name(h));
        out.extend(short_names(reader, h, client));
    }
    if service.is_headless() {
        let every: Vec<Text> = out.iter().map(|d| Text::from(format!("*.{d}"))).collect();
        out.extend(every);
    }
    out.extend(
        visibility::named_addresses(reader, service, client)
            .iter()
            .map(|a| domain_name(a)),
    );
    out
}

/// Domains in a table for all ports: each with the port, and without it if that is the port of HTTP.
fn with_port(domains: Vec<Text>, port: u16) -> Vec<Text> {
    domains
        .into_iter()
        .flat_map(|d| [Text::from(format!("{d}:{port}")), d])
        .filter(|d| port == HTTP || d.contains(':'))
        .collect()
}

/// Short names that the resolver of a client completes to `host`.
pub(crate) fn short_names(reader: &Reader<'_>, h: &str, client: &Client) -> Vec<Text> {
    let mut out = Vec::new();
    let absolute = chain::feature(reader, "PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN", true);
    if absolute && h.parse::<std::net::IpAddr>().is_err() {
        out.push(Text::from(format!("{h}.")));
    }
    if let Some((full, domain)) = h.split_once(".svc.")
        && let Some((name, namespace)) = full.split_once('.')
        && let Some(alone) = client.completes(reader, namespace, domain)
    {
        if alone {
            out.push(Text::from(name));
        }
        out.push(Text::from(format!("{full}.svc")));
        out.push(Text::from(full));
    }
    // Outside Kubernetes only what the client's own domain completes.
    if let Some(domain) = client.foreign_domain().filter(|d| !d.is_empty())
        && let Some(short) = h.strip_suffix(domain).and_then(|s| s.strip_suffix('.'))
        && !short.is_empty()
    {
        out.push(Text::from(short));
    }
    out
}
