//! VirtualServices: what they name, where they apply, what they leave to others.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilotfish_config::networking::{
    Destination, DestinationRule, Gateway, HttpRoute, RouteDestination, Server, TcpRoute, TlsRoute,
    VirtualService,
};
use pilotfish_config::{Kind, Object, ObjectKey};
use pilotfish_lower::{delegate, policy};
use pilotfish_mesh::{ExportTo, Protocol, Service, Text, host, rules};

use crate::report::{Report, listed};
use crate::scene::Scene;

/// The gateway that stands for all sidecars.
pub(crate) const MESH: &str = "mesh";
/// Port whose table has the hosts that are no service's.
const HTTP: u16 = 80;

/// Whether it applies to sidecars.
pub(crate) fn of_mesh(spec: &VirtualService) -> bool {
    !spec.hosts.is_empty() && (spec.gateways.is_empty() || spec.gateways.iter().any(|g| g == MESH))
}

/// Visibility of a VirtualService.
pub(crate) fn exported(scene: &Scene<'_>, object: &Object, spec: &VirtualService) -> ExportTo {
    let default = &scene.mesh().default_virtual_service_export_to;
    policy::export_to(&spec.export_to, default, &object.key.namespace)
}

/// The Gateway of a reference `namespace/name`.
pub(crate) fn gateway<'w>(scene: &Scene<'w>, reference: &str) -> Option<&'w Gateway> {
    let (namespace, name) = reference.split_once('/')?;
    let key = ObjectKey::new(Kind::Gateway, namespace, name);
    scene.get(&key)?.get::<Gateway>()
}

/// A destination, the field it stands in and the ports that conditions limit its route to.
struct Target<'w> {
    field: String,
    destination: &'w Destination,
    ports: BTreeSet<u16>,
}

/// Ports that conditions limit a route to; none: all.
fn limits(ports: impl Iterator<Item = u32>) -> BTreeSet<u16> {
    let known: BTreeSet<u16> = ports.filter_map(|p| u16::try_from(p).ok()).collect();
    if known.contains(&0) {
        BTreeSet::new()
    } else {
        known
    }
}

fn targets(spec: &VirtualService) -> Vec<Target<'_>> {
    let mut all = Vec::new();
    for (i, route) in spec.http.iter().enumerate() {
        let ports = limits(route.r#match.iter().map(|m| m.port));
        let at = format!("spec.http[{i}]");
        let routes = route.route.iter().enumerate();
        let routes =
            routes.map(|(j, to)| (format!("{at}.route[{j}].destination"), &to.destination));
        let mirror = [(format!("{at}.mirror"), &route.mirror)];
        let mirrors = route.mirrors.iter().enumerate();
        let mirrors =
            mirrors.map(|(j, to)| (format!("{at}.mirrors[{j}].destination"), &to.destination));
        add(&mut all, routes.chain(mirror).chain(mirrors), &ports);
    }
    for (i, TlsRoute { r#match, route }) in spec.tls.iter().enumerate() {
        let ports = limits(r#match.iter().map(|m| m.port));
        add(&mut all, streams(&format!("spec.tls[{i}]"), route), &ports);
    }
    for (i, TcpRoute { r#match, route }) in spec.tcp.iter().enumerate() {
        let ports = limits(r#match.iter().map(|m| m.port));
        add(&mut all, streams(&format!("spec.tcp[{i}]"), route), &ports);
    }
    all
}

type Field<'w> = (String, &'w Option<Destination>);

fn streams<'w>(at: &str, route: &'w [RouteDestination]) -> impl Iterator<Item = Field<'w>> {
    let all = route.iter().enumerate();
    all.map(move |(j, to)| (format!("{at}.route[{j}].destination"), &to.destination))
}

fn add<'w>(
    all: &mut Vec<Target<'w>>,
    fields: impl Iterator<Item = Field<'w>>,
    ports: &BTreeSet<u16>,
) {
    all.extend(fields.filter_map(|(field, destination)| {
        Some(Target {
            field,
            destination: destination.as_ref()?,
            ports: ports.clone(),
        })
    }));
}

/// Why a host is not known, with the one that may have been meant.
pub(crate) fn unknown(scene: &Scene<'_>, name: &Text) -> String {
    let fuller = Text::from(format!("{name}.svc.{}", scene.settings().domain));
    let hint = if scene.meant(&fuller).is_empty() {
        String::new()
    } else {
        format!("; there is {fuller}")
    };
    format!("no service has host {name}{hint}")
}

/// Hosts, ports and subsets that routes go to.
pub(crate) fn references<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let Some(spec) = object.get::<VirtualService>() else {
        return;
    };
    let ports = ports(scene, object, spec);
    for target in targets(spec) {
        destination(scene, object, &target, &ports, report);
    }
}

fn destination(
    scene: &Scene<'_>,
    object: &Object,
    target: &Target<'_>,
    applies: &BTreeSet<u16>,
    report: &mut Report,
) {
    const FAIL: &str = "requests that take this route fail";
    let (at, to) = (&target.field, target.destination);
    let name = scene.resolve(&to.host, object);
    let meant = scene.meant(&name);
    if meant.is_empty() {
        let about = ("unknown-host", object, &*format!("{at}.host"));
        return report.error(about, unknown(scene, &name), FAIL);
    }
    let ports: BTreeSet<u16> = ports_of(&meant);
    match &to.port {
        Some(port) if !ports.iter().any(|p| u32::from(*p) == port.number) => report.error(
            ("unknown-port", object, &format!("{at}.port")),
            format!(
                "host {name} has no port {}, only {}",
                port.number,
                listed(&ports)
            ),
            FAIL,
        ),
        None if ports.len() > 1 => {
            let used = if target.ports.is_empty() {
                applies
            } else {
                &target.ports
            };
            let missing: Vec<&u16> = used.difference(&ports).collect();
            if !missing.is_empty() {
                report.warn(
                    ("port-required", object, &format!("{at}.port")),
                    format!(
                        "host {name} has several ports ({}) and none is chosen",
                        listed(&ports)
                    ),
                    format!("requests on port {} fail", listed(missing)),
                );
            }
        }
        _ => {}
    }
    if to.subset.is_empty() {
        return;
    }
    let known = scene
        .rules_for(&name)
        .iter()
        .filter_map(|rule| rule.get::<DestinationRule>())
        .any(|rule| rule.subsets.iter().any(|s| s.name == to.subset));
    if !known {
        report.error(
            ("unknown-subset", object, &format!("{at}.subset")),
            format!("no DestinationRule for {name} has subset {}", to.subset),
            FAIL,
        );
    }
}

fn ports_of(services: &[&Arc<Service>]) -> BTreeSet<u16> {
    let ports = services.iter().flat_map(|s| &s.ports);
    ports.map(|p| p.number).collect()
}

/// Ports on which requests may meet a VirtualService.
fn ports(scene: &Scene<'_>, object: &Object, spec: &VirtualService) -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    if of_mesh(spec) {
        for name in &spec.hosts {
            let services = scene.covered(&scene.resolve(name, object));
            if services.is_empty() {
                ports.insert(HTTP);
            }
            ports.extend(ports_of(&services));
        }
    }
    for reference in spec.gateways.iter().filter(|g| *g != MESH) {
        let reference = rules::gateway_ref(reference, &object.key.namespace);
        let servers = gateway(scene, &reference).map_or(&[][..], |g| &g.servers);
        let numbers = servers.iter().filter_map(|s| s.port.as_ref());
        ports.extend(numbers.filter_map(|p| u16::try_from(p.number).ok()));
    }
    ports
}

/// Whether a server of a Gateway in `owner` takes a host for a VirtualService in `namespace`.
fn serves(server: &Server, owner: &str, name: &str, namespace: &str) -> bool {
    server.hosts.iter().any(|written| {
        let (from, pattern) = written.split_once('/').unwrap_or(("*", written));
        let allowed = match from {
            "*" => true,
            "." => owner == namespace,
            from => from == namespace,
        };
        allowed && (host::covers(pattern, name) || host::covers(name, pattern))
    })
}

/// Gateways that are not there, do not serve the hosts, or are named by a condition only.
pub(crate) fn bindings<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let Some(spec) = object.get::<VirtualService>() else {
        return;
    };
    let own = &*object.key.namespace;
    let names: Vec<Text> = spec
        .hosts
        .iter()
        .map(|h| scene.resolve(h, object))
        .collect();
    let mut served: BTreeSet<&Text> = BTreeSet::new();
    let mut silent = false;
    for (i, written) in spec.gateways.iter().enumerate().filter(|(_, g)| *g != MESH) {
        let field = format!("spec.gateways[{i}]");
        let reference = rules::gateway_ref(written, own);
        let Some(gateway) = gateway(scene, &reference) else {
            silent = true;
            report.error(
                ("unknown-gateway", object, &field),
                format!("there is no Gateway {reference}"),
                "no proxy serves these routes for it",
            );
            continue;
        };
        let owner = reference.split_once('/').map_or("", |(owner, _)| owner);
        let here: Vec<&Text> = names
            .iter()
            .filter(|name| gateway.servers.iter().any(|s| serves(s, owner, name, own)))
            .collect();
        if here.is_empty() {
            silent = true;
            report.warn(
                ("host-not-served", object, &field),
                format!(
                    "no server of Gateway {reference} has one of the hosts {}",
                    listed(&names)
                ),
                "no proxy serves these routes for it",
            );
        }
        served.extend(here);
    }
    // Where a whole gateway was reported, its hosts need no further word.
    if !of_mesh(spec) && !silent {
        for (i, name) in names
            .iter()
            .enumerate()
            .filter(|(_, n)| !served.contains(n))
        {
            report.warn(
                ("host-not-served", object, &format!("spec.hosts[{i}]")),
                format!("no server of its gateways has host {name}"),
                "no proxy serves these routes for the host",
            );
        }
    }
    conditions(object, spec, report);
}

/// Conditions that name gateways which the VirtualService is not bound to.
fn conditions(object: &Object, spec: &VirtualService, report: &mut Report) {
    // A delegate applies where those apply that delegate to it.
    if spec.hosts.is_empty() {
        return;
    }
    let own = &object.key.namespace;
    let mut bound: BTreeSet<Text> = spec
        .gateways
        .iter()
        .map(|g| rules::gateway_ref(g, own))
        .collect();
    if bound.is_empty() {
        bound.insert(Text::from(MESH));
    }
    let mut check = |field: String, gateways: &[String]| {
        let other = |g: &String| !bound.contains(&rules::gateway_ref(g, own));
        if !gateways.is_empty() && gateways.iter().all(other) {
            report.warn(
                ("unbound-gateway", object, &field),
                format!("{} is not in spec.gateways", listed(gateways)),
                "the condition is never met",
            );
        }
    };
    for (i, route) in spec.http.iter().enumerate() {
        for (j, m) in route.r#match.iter().enumerate() {
            check(format!("spec.http[{i}].match[{j}].gateways"), &m.gateways);
        }
    }
    for (i, route) in spec.tls.iter().enumerate() {
        for (j, m) in route.r#match.iter().enumerate() {
            check(format!("spec.tls[{i}].match[{j}].gateways"), &m.gateways);
        }
    }
    for (i, route) in spec.tcp.iter().enumerate() {
        for (j, m) in route.r#match.iter().enumerate() {
            check(format!("spec.tcp[{i}].match[{j}].gateways"), &m.gateways);
        }
    }
}

/// A list of routes: its name, whether it is there, the protocols it is for, and what those are called.
type Section = (&'static str, bool, fn(Protocol) -> bool, &'static str);

/// Routes of a kind that no port of the hosts speaks.
pub(crate) fn protocols<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let Some(spec) = object.get::<VirtualService>() else {
        return;
    };
    // Gateways decide by their servers.
    if !of_mesh(spec) || spec.gateways.iter().any(|g| g != MESH) {
        return;
    }
    let mut spoken: Vec<Protocol> = Vec::new();
    let mut known = true;
    for name in &spec.hosts {
        let services = scene.covered(&scene.resolve(name, object));
        known &= !services.is_empty();
        spoken.extend(services.iter().flat_map(|s| &s.ports).map(|p| p.protocol));
    }
    if !known || spoken.is_empty() {
        return;
    }
    let sections: [Section; 3] = [
        (
            "http",
            !spec.http.is_empty(),
            |p| p.is_http() || p.is_auto(),
            "HTTP",
        ),
        (
            "tls",
            !spec.tls.is_empty(),
            |p| p.is_tcp() || p.is_auto(),
            "TLS or TCP",
        ),
        (
            "tcp",
            !spec.tcp.is_empty(),
            |p| p.is_tcp() || p.is_auto(),
            "TCP",
        ),
    ];
    for (section, present, fits, speaks) in sections {
        if present && !spoken.iter().any(|p| fits(*p)) {
            let words: BTreeSet<String> = spoken.iter().map(|p| format!("{p:?}")).collect();
            report.warn(
                ("protocol-mismatch", object, &format!("spec.{section}")),
                format!(
                    "no port of its hosts speaks {speaks}, only {}",
                    listed(words)
                ),
                "the routes are not used",
            );
        }
    }
}

/// Delegates that are not there, cannot be seen, do not fit, or that nobody delegates to.
pub(crate) fn delegates(scene: &Scene<'_>, report: &mut Report) {
    const LEFT_OUT: &str = "the route is left out";
    let mut used: BTreeSet<ObjectKey> = BTreeSet::new();
    for (object, spec) in scene.list::<VirtualService>() {
        let own = &object.key.namespace;
        for (i, route) in spec.http.iter().enumerate() {
            let Some(reference) = &route.delegate else {
                continue;
            };
            let field = format!("spec.http[{i}].delegate");
            let about = |code| (code, &**object, field.as_str());
            let namespace = match reference.namespace.as_str() {
                "" => own.clone(),
                namespace => Text::from(namespace),
            };
            let key = ObjectKey::new(Kind::VirtualService, namespace, reference.name.as_str());
            let found = scene
                .get(&key)
                .and_then(|o| Some((o, o.get::<VirtualService>()?)));
            let Some((leaf_object, leaf)) = found else {
                let reason = format!("there is no {key}");
                report.error(about("unknown-delegate"), reason, LEFT_OUT);
                continue;
            };
            used.insert(key.clone());
            if !leaf.hosts.is_empty() {
                let reason = format!("{key} has hosts, so that it is no delegate");
                report.error(about("no-delegate"), reason, LEFT_OUT);
            } else if !exported(scene, leaf_object, leaf).visible(own, &key.namespace) {
                let reason = format!("{key} is not exported to namespace {own}");
                report.error(about("hidden-delegate"), reason, LEFT_OUT);
            } else {
                fitting(route, leaf_object, leaf, object, i, report);
            }
        }
    }
    for (object, spec) in scene.list::<VirtualService>() {
        if spec.hosts.is_empty() && !used.contains(&object.key) {
            report.warn(
                ("unused-delegate", object, "spec.hosts"),
                "it has no hosts, and no VirtualService delegates to it",
                "it has no effect",
            );
        }
    }
}

fn fitting(
    route: &HttpRoute,
    leaf_object: &Object,
    leaf: &VirtualService,
    root: &Object,
    number: usize,
    report: &mut Report,
) {
    for (j, rule) in leaf.http.iter().enumerate() {
        if !delegate::fits(route, rule) {
            report.warn(
                (
                    "delegate-conflict",
                    leaf_object,
                    &format!("spec.http[{j}].match"),
                ),
                format!(
                    "not within the conditions of route {number} of {}",
                    root.key
                ),
                "the route is left out there",
            );
        }
    }
}
