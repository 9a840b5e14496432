//! Route tables of gateways: virtual hosts made of the VirtualServices that name the gateway.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::networking::VirtualService;
use pilotfish_config::{Object, ObjectKey};
use pilotfish_ir::route::Session;
use pilotfish_ir::{Text, VirtualHost};
use pilotfish_mesh::rules::Head;
use pilotfish_mesh::{Instance, Reader, host};

use super::servers::{Bound, bare, servers};
use crate::virtual_service::{self, Place, catches_all};
use crate::{Client, chain, delegate, route, session, visibility};

/// VirtualServices bound to the Gateway of a server that the proxy may see: those for fewer namespaces first, then the oldest.
pub(super) fn bound_rules<'w>(
    reader: &Reader<'w>,
    client: &Client,
    bound: &Bound<'_>,
) -> Vec<(&'w Arc<Object>, &'w VirtualService)> {
    let ranked = reader
        .gateway_virtual_services(&bound.gateway)
        .map_or(&[][..], |r| r.as_slice());
    let mut out: Vec<_> = ranked
        .iter()
        .filter_map(|o| Some((o, o.get::<VirtualService>()?)))
        .filter(|(o, _)| Head::of(o).is_some_and(|head| route::visible(reader, client, &head)))
        .collect();
    // Stable: what is meant for the proxy's namespace more than for others goes first.
    out.sort_by_key(|(o, _)| Head::of(o).map(|head| route::audience(reader, client, &head)));
    out
}

/// Hosts a VirtualService serves through a server: the narrower of the two where they overlap.
fn served_hosts(
    b: &Bound<'_>,
    object: &Object,
    vs: &VirtualService,
    domain: &str,
) -> BTreeSet<Text> {
    let namespace = &object.key.namespace;
    let mut out = BTreeSet::new();
    for written in &vs.hosts {
        let h = host::resolve(written, namespace, domain);
        for own in b.hosts_for(namespace) {
            if host::covers(own, &h) {
                out.insert(lower_case(&h));
            } else if host::covers(&h, own) {
                out.insert(lower_case(own));
            }
        }
    }
    out
}

fn lower_case(h: &str) -> Text {
    Text::from(h.to_ascii_lowercase())
}

/// One virtual host about to be made.
struct Plan<'w, 's> {
    /// The rules that make it up, each through one server.
    rules: Vec<(&'s Bound<'w>, &'w Arc<Object>, &'w VirtualService)>,
    /// Port of the server that has it first.
    port: u16,
    redirect: bool,
}

/// The hosts of a table and what makes them up.
fn plans<'w, 's>(
    reader: &Reader<'w>,
    client: &Client,
    servers: &[&'s Bound<'w>],
) -> BTreeMap<Text, Plan<'w, 's>> {
    let domain = &reader.settings().domain;
    let mut out: BTreeMap<Text, Plan<'w, 's>> = BTreeMap::new();
    // The routes of a rule are the same at all servers of a Gateway in one table: those of the first that has any.
    let mut first: BTreeMap<(Text, &'w ObjectKey), &'s Bound<'w>> = BTreeMap::new();
    for b in servers.iter().copied() {
        let plan = || Plan {
            rules: Vec::new(),
            port: b.number,
            redirect: false,
        };
        for (object, vs) in bound_rules(reader, client, b) {
            let served = served_hosts(b, object, vs, domain);
            if served.is_empty() {
                continue;
            }
            let id = (b.gateway.clone(), &object.key);
            let gateways = [b.gateway.clone()];
            if !first.contains_key(&id)
                && !virtual_service::has_routes(reader, place(client, b, &gateways), object, vs)
            {
                continue;
            }
            let routed = *first.entry(id).or_insert(b);
            for h in served {
                let p = out.entry(h).or_insert_with(plan);
                p.rules.push((routed, object, vs));
                p.redirect |= b.redirects();
            }
        }
        // What nobody routes is redirected all the same.
        if b.redirects() {
            for h in &b.hosts {
                out.entry(lower_case(&bare(h)))
                    .or_insert_with(plan)
                    .redirect = true;
            }
        }
    }
    out
}

fn place<'a>(client: &'a Client, b: &Bound<'_>, gateways: &'a [Text]) -> Place<'a> {
    Place {
        client,
        port: b.number,
        gateways,
        tls: b.server.tls.is_some(),
        http3: b.http3,
    }
}

/// Hosts of a table that are made of the same rules of the same Gateways: they share a virtual host, which is named after
/// the first, the most specific.
type Group<'w, 's> = (Vec<Text>, Plan<'w, 's>);

/// Whether hosts are redirected, and the rules they are made of, each with its Gateway. The host, where each stands alone.
type MadeOf<'w> = (bool, Vec<(Text, &'w ObjectKey)>, Option<Text>);

fn groups<'w, 's>(
    reader: &Reader<'w>,
    client: &Client,
    servers: &[&'s Bound<'w>],
) -> Vec<Group<'w, 's>> {
    let together = chain::feature(reader, "PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION", true);
    let mut groups: BTreeMap<MadeOf<'w>, Group<'w, 's>> = BTreeMap::new();
    let mut all: Vec<_> = plans(reader, client, servers).into_iter().collect();
    all.sort_by(|(a, _), (b, _)| specificity(a).cmp(&specificity(b)));
    for (h, plan) in all {
        let rules = plan.rules.iter();
        let made_of = rules.map(|(b, o, _)| (b.gateway.clone(), &o.key)).collect();
        let alone = (!together).then(|| h.clone());
        // Hosts come in order, so the plan that is kept is the first host's.
        groups
            .entry((plan.redirect, made_of, alone))
            .or_insert_with(|| (Vec::new(), plan))
            .0
            .push(h);
    }
    groups.into_values().collect()
}

/// Sorts hosts before wildcards, then longer ones first, then by name.
fn specificity(h: &str) -> (bool, Reverse<usize>, &str) {
    (h.starts_with('*'), Reverse(h.len()), h)
}

/// The first host of each virtual host of a table; hosts with equal routes stand together. None: everything is refused.
pub fn hosts(
    reader: &Reader<'_>,
    client: &Client,
    instances: &[Instance],
    table: &str,
) -> BTreeSet<Text> {
    let all = servers(reader, client, instances);
    let servers: Vec<&Bound<'_>> = all
        .tables
        .get(table)
        .into_iter()
        .flatten()
        .map(|i| &all.all[*i])
        .collect();
    groups(reader, client, &servers)
        .into_iter()
        .filter_map(|(hosts, _)| hosts.into_iter().next())
        .collect()
}

/// One virtual host of a gateway; `h` is empty for the one that refuses everything.
pub fn virtual_host(
    reader: &Reader<'_>,
    client: &Client,
    instances: &[Instance],
    table: &str,
    h: &str,
) -> Option<VirtualHost> {
    let all = servers(reader, client, instances);
    let servers: Vec<&Bound<'_>> = all
        .tables
        .get(table)?
        .iter()
        .map(|i| &all.all[*i])
        .collect();
    if h.is_empty() {
        return Some(VirtualHost {
            name: Text::from(format!("blackhole:{}", servers.first()?.number)),
            domains: vec![Text::from("*")],
            routes: Vec::new(),
            attempt_count: false,
            require_tls: false,
            session: None,
        });
    }
    let (hosts, plan) = groups(reader, client, &servers)
        .into_iter()
        .find(|(hosts, _)| hosts.first().is_some_and(|first| &**first == h))?;
    let mut routes = Vec::new();
    for (b, object, vs) in &plan.rules {
        let gateways = [b.gateway.clone()];
        routes.extend(virtual_service::routes(
            reader,
            place(client, b, &gateways),
            object,
            vs,
        ));
    }
    // Stable: only what takes everything moves behind the rest.
    routes.sort_by_key(|r| catches_all(&r.matches));
    Some(VirtualHost {
        name: Text::from(format!("{}:{}", route::domain_name(h), plan.port)),
        domains: hosts.iter().map(|d| route::domain_name(d)).collect(),
        routes,
        attempt_count: client.conduct.attempt_count,
        require_tls: plan.redirect,
        session: session_of(reader, client, h, &plan),
    })
}

/// How sessions of a host are kept that is itself a service to which its first rule leads.
fn session_of(
    reader: &Reader<'_>,
    client: &Client,
    h: &str,
    plan: &Plan<'_, '_>,
) -> Option<Session> {
    let (_, object, vs) = plan.rules.first().filter(|_| session::kept(reader))?;
    let domain = &reader.settings().domain;
    let rules = delegate::rules(reader, object, vs);
    let leads_here = rules.iter().any(|(http, near)| {
        virtual_service::destinations(http).any(|d| *host::resolve(&d.host, near, domain) == *h)
    });
    let service = visibility::service_of_host(reader, client, h).filter(|_| leads_here)?;
    session::of(reader, service)
}
