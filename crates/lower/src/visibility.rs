//! What a proxy sees: which services, under which egress listener, at which addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::mesh::OutboundTrafficMode as MeshOutboundMode;
use pilotfish_config::networking::{
    CaptureMode, IstioEgressListener, OutboundTrafficMode, Sidecar,
};
use pilotfish_mesh::{
    ExportTo, Port, Protocol, Reader, Registry, Resolution, Service, ServiceId, host,
};

use crate::{Client, Families, Interception, ProxyKind, Text};

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
                s.labels.iter().all(|(k, v)| {
                    client
                        .labels
                        .get(k.as_str())
                        .is_some_and(|have| **have == **v)
                })
            })
    };
    let own = reader
        .sidecars(&client.namespace)
        .map_or(&[][..], |r| r.as_slice());
    let found = own
        .iter()
        .find(|o| selects(o) == Some(true))
        .or_else(|| own.iter().find(|o| selects(o).is_none()))
        .or_else(|| {
            let root = reader.mesh().root_namespace.as_str();
            (root != &*client.namespace)
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
}

/// Egress listeners in the order written.
pub fn egress<'w>(reader: &Reader<'w>, client: &Client) -> Vec<Egress<'w>> {
    let spec = sidecar(reader, client).and_then(|o| o.get::<Sidecar>());
    match spec.filter(|s| !s.egress.is_empty()) {
        None => vec![Egress {
            listener: None,
            hosts: vec![(Text::from("*"), Text::from("*"))],
        }],
        Some(s) => s
            .egress
            .iter()
            .map(|l| Egress {
                listener: Some(l),
                hosts: l
                    .hosts
                    .iter()
                    .filter_map(|h| {
                        let (ns, host) = h.split_once('/')?;
                        let ns = if ns == "." {
                            client.namespace.clone()
                        } else {
                            Text::from(ns)
                        };
                        Some((ns, Text::from(host)))
                    })
                    .collect(),
            })
            .collect(),
    }
}

impl Egress<'_> {
    /// The port it is written for; `None`: all ports of the services it selects.
    pub fn port(&self) -> Option<(u16, Protocol, &str)> {
        let p = self.listener?.port.as_ref()?;
        let number = u16::try_from(p.number).ok()?;
        Some((number, Protocol::parse(&p.protocol), &p.name))
    }

    /// Whether its hosts name this service.
    pub fn selects(&self, service: &ServiceId) -> bool {
        self.hosts.iter().any(|(ns, h)| {
            (&**ns == "*" || *ns == service.namespace)
                && &**ns != "~"
                && host::covers(h, &service.host)
        })
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

/// Whether a proxy may see a service at all.
pub fn exported(service: &Service, client: &Client) -> bool {
    service
        .export_to
        .visible(&client.namespace, &service.id.namespace)
}

fn rank(export_to: &ExportTo, client: &Client) -> u8 {
    match export_to {
        ExportTo::Private => 0,
        ExportTo::Namespaces(n) if n.len() == 1 && n.contains(&client.namespace) => 0,
        ExportTo::Namespaces(_) => 1,
        ExportTo::Public | ExportTo::None => 2,
    }
}

/// The service that owns a host as one egress listener sees it: of several declarations of one host a Kubernetes service
/// wins, then the oldest.
fn wins(candidate: &Service, holder: &Service) -> bool {
    holder.registry != Registry::Kubernetes && candidate.registry == Registry::Kubernetes
}

/// Ports of a service that a proxy sees: all that some egress listener without a port shows, or the one it is written for.
pub fn ports<'s>(reader: &Reader<'_>, client: &Client, service: &'s Service) -> Vec<&'s Port> {
    let shown: Vec<Option<u16>> = egress(reader, client)
        .iter()
        .filter(|e| e.selects(&service.id))
        .map(|e| e.port().map(|(n, ..)| n))
        .collect();
    service
        .ports
        .iter()
        .filter(|p| {
            p.protocol != Protocol::Udp && shown.iter().any(|s| s.is_none_or(|n| n == p.number))
        })
        .collect()
}

/// Services a proxy sees through `egress`, oldest first, one for each host.
pub fn services<'w>(
    reader: &Reader<'w>,
    client: &Client,
    egress: &Egress<'_>,
) -> Vec<&'w Arc<Service>> {
    select(reader.services().iter(), client, egress)
}

/// The same for services that have one port.
pub fn services_on_port<'w>(
    reader: &Reader<'w>,
    client: &Client,
    egress: &Egress<'_>,
    port: u16,
) -> Vec<&'w Arc<Service>> {
    let ids = reader.services_on_port(port);
    select(
        ids.iter().filter_map(|id| reader.service(id)),
        client,
        egress,
    )
}

fn select<'w>(
    all: impl Iterator<Item = &'w Arc<Service>>,
    client: &Client,
    egress: &Egress<'_>,
) -> Vec<&'w Arc<Service>> {
    // What is meant for this namespace comes before what is meant for everybody.
    let mut seen: Vec<&Arc<Service>> = all
        .filter(|s| exported(s, client) && egress.selects(&s.id))
        .collect();
    seen.sort_by_key(|s| rank(&s.export_to, client));
    let mut out: Vec<&Arc<Service>> = Vec::new();
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    for s in seen {
        match at.get(&*s.id.host) {
            Some(&i) if wins(s, out[i]) => out[i] = s,
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
        .filter(|s| exported(s, client))
        .collect();
    seen.sort_by_key(|s| rank(&s.export_to, client));
    for s in seen {
        match found {
            Some(holder) if !wins(s, holder) => {}
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

/// Addresses of a service that requests may name as their host.
pub fn named_addresses(service: &Service, client: &Client) -> Vec<Text> {
    addresses(service, client)
        .into_iter()
        .filter(|a| &**a != UNSPECIFIED && usable(a, client.families))
        .collect()
}

/// Addresses of a service as a proxy may use them; the main one first, and [`UNSPECIFIED`] alone if there is none.
pub fn addresses(service: &Service, client: &Client) -> Vec<Text> {
    let own: Vec<Text> = service
        .addresses
        .iter()
        .filter(|a| usable(a, client.families))
        .cloned()
        .collect();
    if !own.is_empty() {
        return own;
    }
    if client.dns_capture && service.addresses.is_empty() {
        let auto: Vec<Text> = service
            .auto_addresses
            .iter()
            .filter(|a| usable(a, client.families))
            .cloned()
            .collect();
        if !auto.is_empty() {
            return auto;
        }
    }
    match service.addresses.first() {
        // The family does not fit: the declared address is used all the same.
        Some(a) => vec![a.clone()],
        None => vec![Text::from(UNSPECIFIED)],
    }
}

/// Whether traffic to hosts nobody declared is let through.
pub fn allow_any(reader: &Reader<'_>, client: &Client) -> bool {
    let policy = sidecar(reader, client)
        .and_then(|o| o.get::<Sidecar>())
        .and_then(|s| s.outbound_traffic_policy.as_ref());
    match policy {
        Some(p) => p.mode == OutboundTrafficMode::AllowAny,
        None => reader
            .mesh()
            .outbound_traffic_policy
            .as_ref()
            .is_none_or(|p| p.mode == MeshOutboundMode::AllowAny),
    }
}

/// Whether a service is sent as endpoints over EDS.
pub fn uses_eds(service: &Service) -> bool {
    service.resolution == Resolution::ClientSide
}
