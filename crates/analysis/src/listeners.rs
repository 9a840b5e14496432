//! Services that want the same place on a proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::{Kind, ObjectKey};
use pilotfish_mesh::{Protocol, Registry, Resolution, Service, Text};

use crate::report::Report;
use crate::scene::{Scene, both_visible};

/// How a listener tells connections apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    /// By the host of each request.
    Http,
    /// By nothing: whoever comes first has them all.
    Bytes,
    /// By the server name.
    Tls,
    /// It must not be looked into, since the server speaks first.
    ServerFirst,
    Auto,
}

fn speaks(protocol: Protocol) -> Option<Speaks> {
    Some(match protocol {
        Protocol::Udp => return None,
        Protocol::Mongo | Protocol::MySql => Speaks::ServerFirst,
        p if p.is_http() => Speaks::Http,
        p if p.is_tls() => Speaks::Tls,
        p if p.is_tcp() => Speaks::Bytes,
        _ => Speaks::Auto,
    })
}

/// The address a proxy listens on for connections to a service; empty for any. `None`: it has a listener of its own for
/// each endpoint, or none.
fn listens_on(service: &Service, speaks: Speaks) -> Option<Text> {
    if service.resolution == Resolution::Alias || service.is_headless() {
        return None;
    }
    if speaks == Speaks::Http {
        return Some(Text::default());
    }
    Some(service.addresses.first().cloned().unwrap_or_default())
}

/// A service that wants a listener, and how that would tell its connections.
type Taker<'w> = (&'w Arc<Service>, Speaks);

/// Services on one address and port that no proxy can tell apart: connections go to the oldest. Services without an
/// address share that of all, unless the proxy captures DNS and so knows them by allocated addresses.
pub(crate) fn outbound(scene: &Scene<'_>, report: &mut Report) {
    let mut takers: BTreeMap<(Text, u16), Vec<Taker<'_>>> = BTreeMap::new();
    for service in scene.services() {
        for port in &service.ports {
            let Some(speaks) = speaks(port.protocol) else {
                continue;
            };
            if let Some(address) = listens_on(service, speaks) {
                let at = takers.entry((address, port.number)).or_default();
                at.push((service, speaks));
            }
        }
    }
    for ((address, port), services) in takers {
        for (i, (service, speaks)) in services.iter().enumerate() {
            let visible = |other: &Service| {
                other.id.host != service.id.host
                    && both_visible(
                        &other.export_to,
                        &other.id.namespace,
                        &service.export_to,
                        &service.id.namespace,
                    )
            };
            let clash = services[..i]
                .iter()
                .find(|(other, theirs)| loses(*speaks, *theirs) && visible(other));
            let Some((older, _)) = clash else {
                continue;
            };
            // Kubernetes gives each service an address; that two share one is reported as such.
            if !address.is_empty() && service.registry == Registry::Kubernetes {
                continue;
            }
            let Some(object) = scene.get(&service.source) else {
                continue;
            };
            let place = if address.is_empty() {
                format!("port {port} of any address")
            } else {
                format!("port {port} of {address}")
            };
            let whose = if address.is_empty() && !service.auto_addresses.is_empty() {
                "connections from proxies that do not capture DNS"
            } else {
                "connections"
            };
            let effect = format!("{whose} go to {}", older.id.host);
            report.warn(
                (
                    "listener-conflict",
                    object,
                    &port_field(object.kind(), service, port),
                ),
                format!("{} claims {place} as well", older.source),
                effect,
            );
        }
    }
}

/// Whether connections to the newer of two services on one listener cannot be told from those to the older.
fn loses(newer: Speaks, older: Speaks) -> bool {
    newer == Speaks::ServerFirst
        || older == Speaks::ServerFirst
        || newer == Speaks::Bytes && matches!(older, Speaks::Bytes | Speaks::Auto)
}

fn port_field(kind: Kind, service: &Service, number: u16) -> String {
    let at = service.ports.iter().position(|p| p.number == number);
    match (kind, at) {
        (Kind::Service | Kind::ServiceEntry, Some(i)) => format!("spec.ports[{i}]"),
        _ => "spec.ports".to_owned(),
    }
}

/// Services that reach one port of a workload with different protocols: the oldest decides what the proxy expects.
pub(crate) fn inbound(scene: &Scene<'_>, report: &mut Report) {
    let mut seen: BTreeSet<(ObjectKey, ObjectKey)> = BTreeSet::new();
    for workload in scene.shared_workloads() {
        let mut first: BTreeMap<u16, (&Arc<Service>, Protocol)> = BTreeMap::new();
        for instance in &workload.instances {
            let Some(service) = scene.service(&instance.service) else {
                continue;
            };
            let port = &instance.port;
            let (older, theirs) = *first
                .entry(instance.target)
                .or_insert((service, port.protocol));
            let same = older.id == service.id || theirs == port.protocol;
            // Which HTTP it is, the proxy finds out.
            let alike = theirs.is_http() && port.protocol.is_http();
            let pair = (service.source.clone(), older.source.clone());
            if same || alike || !seen.insert(pair) {
                continue;
            }
            let Some(object) = scene.get(&service.source) else {
                continue;
            };
            let field = port_field(object.kind(), service, port.number);
            report.warn(
                ("inbound-conflict", object, &field),
                format!(
                    "{} says that port {} of {} speaks {theirs:?}, this says {:?}",
                    older.source, instance.target, workload.source, port.protocol
                ),
                "what the older one says counts",
            );
        }
    }
}
