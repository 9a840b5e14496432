//! What a proxy sees: which services, under which egress listener, at which addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::mesh::OutboundTrafficMode as MeshOutboundMode;
use pilotfish_config::networking::{
    CaptureMode, IstioEgressListener, OutboundTrafficMode, Sidecar,
};
use pilotfish_config::{Object, ObjectKey};
use pilotfish_ir::ClusterName;
use pilotfish_mesh::rules::{Head, Lead, Leads};
use pilotfish_mesh::{
    ExportTo, Port, Protocol, Reader, Registry, Resolution, Service, ServiceId, host,
};

use crate::{Client, Families, Interception, ProxyKind, Text, chain, route};

/// The address of a service that has none.
pub const UNSPECIFIED: &str = "0.0.0.0";

/// The Sidecar object that applies to a proxy: of its namespace with a matching selector, then of its namespace without
/// selector, then of the root namespace without selector. Gateways have none.
pub fn sidecar<'w>(reader: &Reader<'w>, client: &Client) -> Option<&'w Arc<Object>> {
    if client.kind == ProxyKind::Router {
        return None;
    }
    let selects = |o: &Arc<Object>| {
        o.get::<Sidecar>()
            .and_then(|s| s.workload_selector.as_ref())
            .filter(|s| !s.labels.is_empty())
            .map(|s| {
                s.labels
                    .iter()
                    .all(|(k, v)| client.is_labelled(reader, k, v))
            })
    };
    let namespace = client.which_of(reader, reader.sidecar_namespaces());
    let own = namespace
        .and_then(|n| reader.sidecars(n))
        .map_or(&[][..], |r| r.as_slice());
    let found = own
        .iter()
        .find(|o| selects(o) == Some(true))
        .or_else(|| own.iter().find(|o| selects(o).is_none()))
        .or_else(|| {
            let root = reader.mesh().root_namespace.as_str();
            namespace
                .is_none_or(|n| &**n != root)
                .then(|| reader.sidecars(root))
                .flatten()
                .and_then(|r| r.iter().find(|o| selects(o).is_none()))
        });
    if let Some(o) = found {
        reader.uses(&o.key);
    }
    found
}

/// One egress listener of a Sidecar object, or the single implicit one that sees everything.
#[derive(Debug)]
pub struct Egress<'w> {
    /// As written; `None` for the implicit one.
    pub listener: Option<&'w IstioEgressListener>,
    /// Namespace (`*`: any) and host patterns.
    hosts: Vec<(Text, Text)>,
    /// The same of what is left out, whatever `hosts` says.
    without: Vec<(Text, Text)>,
}

/// Egress listeners in the order written.
pub fn egress<'w>(reader: &Reader<'w>, client: &Client) -> Vec<Egress<'w>> {
    let spec = sidecar(reader, client).and_then(|o| o.get::<Sidecar>());
    match spec.filter(|s| !s.egress.is_empty()) {
        None => vec![Egress {
            listener: None,
            hosts: vec![(Text::from("*"), Text::from("*"))],
            without: Vec::new(),
        }],
        Some(s) => s
            .egress
            .iter()
            .map(|l| written(reader, l, client))
            .collect(),
    }
}

/// A namespace that begins with `~` leaves out what it names; `~` alone stands for all namespaces.
fn written<'w>(
    reader: &Reader<'_>,
    listener: &'w IstioEgressListener,
    client: &Client,
) -> Egress<'w> {
    let mut out = Egress {
        listener: Some(listener),
        hosts: Vec::new(),
        without: Vec::new(),
    };
    for (ns, host) in listener.hosts.iter().filter_map(|h| h.split_once('/')) {
        let (list, ns) = match ns.strip_prefix('~') {
            Some("") => (&mut out.without, "*"),
            Some(ns) => (&mut out.without, ns),
            None => (&mut out.hosts, ns),
        };
        let ns = if ns == "." {
            client.namespace(reader).clone()
        } else {
            Text::from(ns)
        };
        list.push((ns, Text::from(host)));
    }
    out
}

impl Egress<'_> {
    /// The port it is written for; `None`: all ports of the services it selects.
    pub fn port(&self) -> Option<(u16, Protocol, &str)> {
        let p = self.listener?.port.as_ref()?;
        let number = u16::try_from(p.number).ok()?;
        Some((number, Protocol::parse(&p.protocol), &p.name))
    }

    /// The port a service must have to be reached through it; `None`: any, because no port is written, or the listener is
    /// a Unix socket or an HTTP proxy.
    pub fn matched_port(&self) -> Option<u16> {
        let (number, protocol, _) = self.port()?;
        (number != 0 && protocol != Protocol::HttpProxy).then_some(number)
    }

    /// Whether it shows another name of a service it selects. Only the hosts that select the service are asked, those of
    /// its namespace first, and in what namespace the other name is declared does not matter.
    pub fn shows_alias(&self, service: &ServiceId, alias: &str) -> bool {
        let of = |namespace: &str, host: &str| {
            let mut hosts = self.hosts.iter().filter(|(ns, _)| **ns == *namespace);
            hosts.any(|(_, h)| host::covers(h, host))
        };
        if of(&service.namespace, &service.host) {
            of(&service.namespace, alias)
        } else {
            of("*", alias)
        }
    }

    /// The namespaces that its hosts name; none if they name all. Services elsewhere are none of its clients' business.
    fn namespaces(&self) -> Option<BTreeSet<&Text>> {
        let each = self.hosts.iter().map(|(namespace, _)| namespace);
        let named = |namespace: &Text| **namespace != *"*";
        each.map(|ns| named(ns).then_some(ns)).collect()
    }

    /// Whether its hosts name this service.
    pub fn selects(&self, service: &ServiceId) -> bool {
        let named = |list: &[(Text, Text)]| {
            list.iter().any(|(ns, h)| {
                (&**ns == "*" || *ns == service.namespace) && host::covers(h, &service.host)
            })
        };
        named(&self.hosts) && !named(&self.without)
    }

    /// Whether its hosts name one of these hosts of a VirtualService. A wildcard of either side may cover the other.
    fn imports<'h>(&self, namespace: &str, mut hosts: impl Iterator<Item = &'h Text>) -> bool {
        let of = |list: &[(Text, Text)], matches: &dyn Fn(&str) -> bool| {
            list.iter()
                .any(|(ns, h)| (&**ns == "*" || &**ns == namespace) && matches(h))
        };
        hosts.any(|host| {
            of(&self.hosts, &|h| {
                host::covers(h, host) || host::covers(host, h)
            }) && !of(&self.without, &|h| host::covers(h, host))
        })
    }

    /// Whether it lets its clients use a VirtualService.
    pub fn imports_rule(&self, reader: &Reader<'_>, head: &Head<'_>) -> bool {
        // The implicit listener sees everything.
        if self.listener.is_none() {
            return true;
        }
        let domain = &reader.settings().domain;
        let namespace = &head.key.namespace;
        let hosts: Vec<Text> = head
            .hosts
            .iter()
            .map(|h| host::resolve(h, namespace, domain))
            .collect();
        self.imports(namespace, hosts.iter())
    }

    /// Bound to its port instead of fed by interception.
    pub fn binds(&self, client: &Client) -> bool {
        client.interception == Interception::None
            || self.listener.is_some_and(|l| {
                l.capture_mode == CaptureMode::None || l.bind.starts_with("unix://")
            })
    }

    /// The address it is bound to, if the user or the mode says so.
    pub fn bind_addresses(&self, client: &Client) -> Vec<Text> {
        match self.listener {
            Some(l) if !l.bind.is_empty() => vec![Text::from(l.bind.as_str())],
            _ if self.binds(client) => client
                .families
                .loopbacks()
                .iter()
                .map(|s| Text::from(*s))
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// Other names of a service that a listener shows, by the namespace that declares them.
pub fn aliases(reader: &Reader<'_>, egress: &Egress<'_>, service: &Service) -> Vec<Text> {
    service
        .aliases
        .iter()
        .filter(|alias| egress.shows_alias(&service.id, &alias.host))
        .filter(|alias| reader.service(alias).is_some())
        .map(|alias| alias.host.clone())
        .collect()
}

/// Whether a proxy may see a service at all.
pub fn exported(reader: &Reader<'_>, service: &Service, client: &Client) -> bool {
    client.sees(reader, &service.export_to, &service.id.namespace)
}

fn rank(reader: &Reader<'_>, export_to: &ExportTo, client: &Client) -> u8 {
    match export_to {
        ExportTo::Private => 0,
        ExportTo::Namespaces(n) if n.len() == 1 && n.iter().any(|n| client.is_in(reader, n)) => 0,
        ExportTo::Namespaces(_) => 1,
        ExportTo::Public | ExportTo::None => 2,
    }
}

/// The service that owns a host as one egress listener sees it: of several declarations of one host that of the client's
/// own namespace wins, then a Kubernetes service, then the oldest.
fn wins(reader: &Reader<'_>, candidate: &Service, holder: &Service, client: &Client) -> bool {
    let own = |s: &Service| client.is_in(reader, &s.id.namespace);
    own(candidate)
        || !own(holder)
            && holder.registry != Registry::Kubernetes
            && candidate.registry == Registry::Kubernetes
}

/// Ports of a service that a proxy sees: all that some egress listener without a port shows, or the one it is written for;
/// for services no listener shows, those that VirtualServices lead to.
pub fn ports<'s>(reader: &Reader<'_>, client: &Client, service: &'s Service) -> Vec<&'s Port> {
    let all = egress(reader, client);
    let mut shown: Vec<Option<u16>> = all
        .iter()
        .filter(|e| exported(reader, service, client) && e.selects(&service.id))
        .map(Egress::matched_port)
        .collect();
    if shown.is_empty() {
        let led_to = destinations(reader, client, &all);
        if let Some(d) = led_to.get(&service.id.host)
            && self::led_to(reader, client, &service.id.host).is_some_and(|id| id == service.id)
        {
            d.by.iter().for_each(|key| reader.uses(key));
            shown.extend(&d.ports);
        }
    }
    service
        .ports
        .iter()
        .filter(|p| {
            p.protocol != Protocol::Udp && shown.iter().any(|s| s.is_none_or(|n| n == p.number))
        })
        .collect()
}

/// Services that no egress listener shows but to which VirtualServices lead that one of them does. Those of the client's
/// own namespace are taken even if they are exported elsewhere only.
pub fn inferred(reader: &Reader<'_>, client: &Client) -> Vec<ServiceId> {
    let all = egress(reader, client);
    // Who sees everything misses nothing but what its own namespace does not mean for itself.
    let hidden = |s: &Arc<Service>| {
        s.export_to != ExportTo::Public
            && client.is_in(reader, &s.id.namespace)
            && !exported(reader, s, client)
    };
    if client.kind != ProxyKind::Sidecar
        || all.iter().all(|e| e.listener.is_none()) && !reader.services().iter().any(hidden)
    {
        return Vec::new();
    }
    destinations(reader, client, &all)
        .into_iter()
        .filter_map(|(host, d)| {
            let id = led_to(reader, client, &host)?;
            d.by.iter().for_each(|key| reader.uses(key));
            Some(id)
        })
        .collect()
}

/// The service a VirtualService means by a host: of the client's own namespace, whoever it is for, else one it may see.
fn led_to(reader: &Reader<'_>, client: &Client, host: &str) -> Option<ServiceId> {
    let own = reader
        .services_of_host(host)
        .iter()
        .find(|id| client.is_in(reader, &id.namespace))
        .cloned();
    own.or_else(|| Some(service_of_host(reader, client, host)?.id.clone()))
}

/// A host to which VirtualServices lead.
#[derive(Default)]
struct LedTo<'w> {
    /// `None` stands for all ports.
    ports: BTreeSet<Option<u16>>,
    by: Vec<&'w ObjectKey>,
}

/// Hosts to which the VirtualServices that a client may use lead, by routes that are not meant for other namespaces alone.
fn destinations<'w>(
    reader: &Reader<'w>,
    client: &Client,
    listeners: &[Egress<'_>],
) -> BTreeMap<Text, LedTo<'w>> {
    let mut out: BTreeMap<Text, LedTo<'w>> = BTreeMap::new();
    let domain = &reader.settings().domain;
    let hosts: Vec<&Text> = reader.virtual_service_hosts().collect();
    for Leads { head, to } in hosts
        .into_iter()
        .flat_map(|h| reader.virtual_service_leads_of(h))
        .filter(|leads| route::visible(reader, client, &leads.head))
    {
        let imports = |e: &&Egress<'_>| e.imports_rule(reader, &head);
        for e in listeners.iter().filter(imports) {
            let meant = |lead: &&Lead<'_>| {
                let mut sources = lead.sources.iter();
                lead.sources.is_empty() || sources.any(|n| client.is_in(reader, n))
            };
            for lead in to.iter().filter(meant) {
                let host = host::resolve(lead.host, &head.key.namespace, domain);
                let led_to = out.entry(host).or_default();
                // A listener with a port shows that port only.
                led_to.ports.insert(e.matched_port().or(lead.port));
                led_to.by.push(head.key);
            }
        }
    }
    out
}

/// Services a proxy sees through `egress`, oldest first, one for each host.
pub fn services<'w>(
    reader: &Reader<'w>,
    client: &Client,
    egress: &Egress<'_>,
) -> Vec<&'w Arc<Service>> {
    match egress.namespaces() {
        None => select(reader, reader.services().iter(), client, egress),
        Some(some) => select(reader, reader.services_in(some).into_iter(), client, egress),
    }
}

/// The same for services that have one port.
pub fn services_on_port<'w>(
    reader: &Reader<'w>,
    client: &Client,
    egress: &Egress<'_>,
    port: u16,
) -> Vec<&'w Arc<Service>> {
    let ids: Vec<&ServiceId> = match egress.namespaces() {
        None => reader.services_on_port(port).iter().collect(),
        Some(some) => reader.services_on_port_in(some, port),
    };
    let on_port = ids.into_iter().filter_map(|id| reader.service(id));
    let mut out = select(reader, on_port, client, egress);
    // A host belongs to one service, though that has not this port.
    out.retain(|s| {
        let ids = reader.services_of_host(&s.id.host);
        let of_host = ids.iter().filter_map(|id| reader.service(id));
        ids.len() < 2 || select(reader, of_host, client, egress).contains(s)
    });
    out
}

fn select<'w>(
    reader: &Reader<'_>,
    all: impl Iterator<Item = &'w Arc<Service>>,
    client: &Client,
    egress: &Egress<'_>,
) -> Vec<&'w Arc<Service>> {
    // What is meant for this namespace comes before what is meant for everybody.
    let mut seen: Vec<&Arc<Service>> = all
        .filter(|s| exported(reader, s, client) && egress.selects(&s.id))
        .collect();
    seen.sort_by_key(|s| rank(reader, &s.export_to, client));
    let mut out: Vec<&Arc<Service>> = Vec::new();
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    for s in seen {
        match at.get(&*s.id.host) {
            Some(&i) if wins(reader, s, out[i], client) => out[i] = s,
            Some(_) => {}
            None => {
                at.insert(&s.id.host, out.len());
                out.push(s);
            }
        }
    }
    out
}

/// The service a host means to a proxy, whatever its egress listeners.
pub fn service_of_host<'w>(
    reader: &Reader<'w>,
    client: &Client,
    host: &str,
) -> Option<&'w Arc<Service>> {
    let mut found: Option<&Arc<Service>> = None;
    let mut seen: Vec<&Arc<Service>> = reader
        .services_of_host(host)
        .iter()
        .filter_map(|id| reader.service(id))
        .filter(|s| exported(reader, s, client))
        .collect();
    seen.sort_by_key(|s| rank(reader, &s.export_to, client));
    for s in seen {
        match found {
            Some(holder) if !wins(reader, s, holder, client) => {}
            _ => found = Some(s),
        }
    }
    found
}

fn family_of(address: &str) -> Option<bool> {
    let ip = address.split('/').next().unwrap_or(address);
    ip.parse::<std::net::IpAddr>().ok().map(|ip| ip.is_ipv4())
}

fn usable(address: &str, families: Families) -> bool {
    match family_of(address) {
        Some(true) => families.v4(),
        Some(false) => families.v6(),
        None => false,
    }
}

/// Addresses of a service that requests may name as their host. Of several that a ServiceEntry declares only the last is
/// one, whatever its family.
pub fn named_addresses(reader: &Reader<'_>, service: &Service, client: &Client) -> Vec<Text> {
    if service.registry == Registry::External
        && let Some(last) = service.addresses.last()
    {
        return vec![last.clone()];
    }
    addresses(reader, service, client)
        .into_iter()
        .filter(|a| &**a != UNSPECIFIED && usable(a, client.families))
        .collect()
}

/// Addresses of a service as a proxy may use them; the main one first, and [`UNSPECIFIED`] alone if there is none.
pub fn addresses(reader: &Reader<'_>, service: &Service, client: &Client) -> Vec<Text> {
    let usable = |all: &[Text]| -> Vec<Text> {
        let fit = |a: &&Text| usable(a, client.families);
        let mut out: Vec<Text> = all.iter().filter(fit).cloned().collect();
        if client.families == Families::Both {
            let first = out.first().and_then(|a| family_of(a));
            out.retain(|a| family_of(a) == first);
        }
        out
    };
    let declared = client.addresses_of(reader, service);
    let own = usable(declared);
    if !own.is_empty() {
        return own;
    }
    if client.dns_capture && service.addresses.is_empty() {
        let auto = usable(&service.auto_addresses);
        if !auto.is_empty() {
            return auto;
        }
    }
    match declared.first() {
        // The family does not fit: the declared address is used all the same.
        Some(a) => vec![a.clone()],
        None => vec![Text::from(UNSPECIFIED)],
    }
}

/// Where traffic goes that is meant for nothing anybody declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// Nowhere.
    Refused,
    /// Where the application wanted it to go.
    Passthrough,
    /// HTTP by the host it names, the rest where the application wanted it to go.
    ByHost,
    /// To a proxy the user names.
    Proxy(ClusterName),
}

impl Elsewhere {
    /// The upstream of byte streams.
    pub fn cluster(self) -> ClusterName {
        match self {
            Self::Refused => ClusterName::BlackHole,
            Self::Passthrough | Self::ByHost => ClusterName::Passthrough,
            Self::Proxy(name) => name,
        }
    }
}

/// Where traffic goes that is meant for nothing anybody declared: the Sidecar object decides, else the mesh.
pub fn elsewhere(reader: &Reader<'_>, client: &Client) -> Elsewhere {
    let policy = sidecar(reader, client)
        .and_then(|o| o.get::<Sidecar>())
        .and_then(|s| s.outbound_traffic_policy.as_ref());
    if let Some(p) = policy {
        return match (p.mode, &p.egress_proxy) {
            (OutboundTrafficMode::RegistryOnly, _) => Elsewhere::Refused,
            (OutboundTrafficMode::AllowAny, None) => Elsewhere::Passthrough,
            (OutboundTrafficMode::AllowAny, Some(d)) => Elsewhere::Proxy(ClusterName::Outbound {
                port: d
                    .port
                    .as_ref()
                    .and_then(|p| u16::try_from(p.number).ok())
                    .unwrap_or(0),
                subset: Text::from(d.subset.as_str()),
                host: Text::from(d.host.as_str()),
            }),
        };
    }
    match reader.mesh().outbound_traffic_policy.as_ref() {
        None => Elsewhere::Passthrough,
        Some(p) => match p.mode {
            MeshOutboundMode::RegistryOnly => Elsewhere::Refused,
            MeshOutboundMode::AllowAnyDynamicDns if client.kind == ProxyKind::Sidecar => {
                Elsewhere::ByHost
            }
            MeshOutboundMode::AllowAny | MeshOutboundMode::AllowAnyDynamicDns => {
                Elsewhere::Passthrough
            }
        },
    }
}

/// Whether a service is sent as endpoints over EDS. Gateways have no destination the application chose, so they are told
/// the endpoints of services without address too.
pub fn uses_eds(reader: &Reader<'_>, client: &Client, service: &Service) -> bool {
    match service.resolution {
        Resolution::ClientSide => true,
        Resolution::Passthrough => {
            client.kind == ProxyKind::Router
                || service.registry == Registry::Kubernetes
                    && chain::feature(reader, "PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES", false)
        }
        _ => false,
    }
}
