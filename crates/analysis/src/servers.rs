//! Servers of Gateways that meet on one workload. One that does not go with an earlier one is left out as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::{Gateway, Server};
use pilotfish_mesh::{Protocol, lookup};

use crate::gateways::{scoped, served_by};
use crate::report::{Report, listed};
use crate::scene::Scene;

type Member<'w> = (&'w Arc<Object>, &'w Gateway);

/// Sets of Gateways that one workload serves together, oldest first: those of every workload that is known, and those
/// whose selectors ask for no more than that of one of them.
fn groups(scene: &Scene<'_>, all: &[Member<'_>]) -> BTreeSet<Vec<usize>> {
    let mut groups = BTreeSet::new();
    for runs in scene.running() {
        let members = all.iter().enumerate();
        let members = members.filter(|(_, (o, g))| served_by(scene, g, &o.key.namespace, &runs));
        groups.insert(members.map(|(i, _)| i).collect());
    }
    for (object, gateway) in all {
        let labels = gateway.selector.iter();
        let labels = labels
            .map(|(k, v)| (k.as_str().into(), v.as_str().into()))
            .collect();
        let members = all.iter().enumerate().filter(|(_, (other, theirs))| {
            let near = !scoped(scene) || other.key.namespace == object.key.namespace;
            near && lookup::selects(&theirs.selector, &labels)
        });
        groups.insert(members.map(|(i, _)| i).collect());
    }
    groups
}

/// What a listener holds already.
#[derive(Default)]
struct Taken<'w> {
    /// The first server in plain text.
    plain: Option<(&'w Arc<Object>, Protocol)>,
    /// The first server with TLS.
    tls: Option<&'w Arc<Object>>,
    /// Server names that chains match on.
    names: BTreeMap<String, &'w Arc<Object>>,
}

/// Servers on one address and port that cannot be served together, and certificates that several Gateways share.
pub(crate) fn merging(scene: &Scene<'_>, report: &mut Report) {
    let all: Vec<Member<'_>> = scene
        .gateways()
        .iter()
        .filter_map(|object| Some((object, object.get::<Gateway>()?)))
        .collect();
    if all.is_empty() {
        return;
    }
    for group in groups(scene, &all) {
        let mut taken: BTreeMap<(&str, u32), Taken<'_>> = BTreeMap::new();
        let mut certificates: BTreeMap<&str, &Arc<Object>> = BTreeMap::new();
        for (object, gateway) in group.iter().filter_map(|i| all.get(*i)) {
            for (i, server) in gateway.servers.iter().enumerate() {
                let Some(port) = &server.port else {
                    continue;
                };
                let at = taken.entry((&server.bind, port.number)).or_default();
                join(at, object, server, i, report);
                let name = server.tls.as_ref().map_or("", |tls| &tls.credential_name);
                let first = *certificates.entry(name).or_insert(object);
                if !name.is_empty() && first.key != object.key {
                    report.note(
                        (
                            "shared-certificate",
                            object,
                            &format!("spec.servers[{i}].tls.credentialName"),
                        ),
                        format!(
                            "{} uses {name} for other hosts on the same workload",
                            first.key
                        ),
                        "clients that reuse an HTTP/2 connection for both may be answered with 404",
                    );
                }
            }
        }
    }
}

fn join<'w>(
    taken: &mut Taken<'w>,
    object: &'w Arc<Object>,
    server: &'w Server,
    number: usize,
    report: &mut Report,
) {
    const LEFT_OUT: &str = "the server is left out";
    let at = format!("spec.servers[{number}]");
    let Some(port) = &server.port else {
        return;
    };
    let protocol = Protocol::parse(&port.protocol);
    let is_tls = protocol.is_tls()
        || server.tls.as_ref().is_some_and(|tls| !tls.https_redirect) && !protocol.is_http();
    let clash = match (&taken.plain, taken.tls) {
        (Some((other, theirs)), _) if is_tls => Some((*other, *theirs)),
        (Some((other, theirs)), _) if !(theirs.is_http() && protocol.is_http()) => {
            Some((*other, *theirs))
        }
        (None, Some(other)) if !is_tls => Some((other, Protocol::Tls)),
        _ => None,
    };
    if let Some((other, theirs)) = clash {
        report.error(
            ("server-conflict", object, &format!("{at}.port")),
            format!(
                "{} has port {} already and speaks {theirs:?} there, this server {protocol:?}",
                other.key, port.number
            ),
            LEFT_OUT,
        );
        return;
    }
    if !is_tls {
        taken.plain.get_or_insert((object, protocol));
        return;
    }
    taken.tls.get_or_insert(object);
    let owner = &*object.key.namespace;
    let names: BTreeSet<String> = server.hosts.iter().map(|host| full(host, owner)).collect();
    let double: Vec<&String> = names
        .iter()
        .filter(|n| taken.names.contains_key(*n))
        .collect();
    if let Some(first) = double.first().and_then(|name| taken.names.get(*name)) {
        report.error(
            ("duplicate-host", object, &format!("{at}.hosts")),
            format!(
                "{} serves {} on port {} already",
                first.key,
                listed(&double),
                port.number
            ),
            format!("{LEFT_OUT}, with all its hosts"),
        );
        return;
    }
    taken
        .names
        .extend(names.into_iter().map(|name| (name, object)));
}

/// A host with the namespace it is for, if that is not any.
fn full(written: &str, owner: &str) -> String {
    match written.split_once('/') {
        Some(("*", host)) => host.to_owned(),
        Some((".", host)) => format!("{owner}/{host}"),
        _ => written.to_owned(),
    }
}
