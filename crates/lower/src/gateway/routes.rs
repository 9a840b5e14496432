//! Route tables of gateways: virtual hosts made of the VirtualServices that name the gateway.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use pilotfish_config::{Kind, ObjectKey};
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
) -> Vec<Head<'w>> {
    let mut out = reader.gateway_virtual_service_heads(&bound.gateway);
    out.retain(|head| route::visible(reader, client, head));
    // Stable: what is meant for the proxy's namespace more than for others goes first.
    out.sort_by_key(|head| route::audience(reader, client, head));
    out
}

/// Hosts a VirtualService serves through a server: the narrower of the two where they overlap.
fn served_hosts(b: &Bound<'_>, head: &Head<'_>, domain: &str) -> BTreeSet<Text> {
    let namespace = &head.key.namespace;
    let mut out = BTreeSet::new();
    for written in head.hosts {
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

/// One virtual host of a gateway: its hosts and what it is made of. Found out once for all hosts of a table, so that a changed
/// route is a matter of its host alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plan {
    /// Hosts that share it because they are made of the same, the most specific first. None: everything is refused.
    hosts: Vec<Text>,
    rules: Vec<Rule>,
    /// Gateways that serve it, `namespace/name`. Others that merely stand before it are not named.
    gateways: BTreeSet<Text>,
    /// Port of the server that has it first.
    port: u16,
    redirect: bool,
}

/// A VirtualService, and the server through which it is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Rule {
    key: ObjectKey,
    gateway: Text,
    port: u16,
    tls: bool,
    http3: bool,
}

impl Rule {
    fn new(head: &Head<'_>, through: &Bound<'_>) -> Self {
        Self {
            key: head.key.clone(),
            gateway: through.gateway.clone(),
            port: through.number,
            tls: through.server.tls.is_some(),
            http3: through.http3,
        }
    }

    fn place<'a>(&'a self, client: &'a Client) -> Place<'a> {
        Place {
            client,
            port: self.port,
            gateways: std::slice::from_ref(&self.gateway),
            tls: self.tls,
            http3: self.http3,
        }
    }

    /// Whether it has any route there.
    fn has_routes(&self, reader: &Reader<'_>, client: &Client, head: &Head<'_>) -> bool {
        head.routes_all
            || reader
                .virtual_service(&self.key)
                .is_some_and(|(object, vs)| {
                    virtual_service::has_routes(reader, self.place(client), object, vs)
                })
    }
}

impl Plan {
    fn new(of: &Bound<'_>) -> Self {
        Self {
            hosts: Vec::new(),
            rules: Vec::new(),
            gateways: BTreeSet::new(),
            port: of.number,
            redirect: false,
        }
    }

    fn through(&mut self, server: &Bound<'_>) {
        self.gateways.insert(server.gateway.clone());
        self.redirect |= server.redirects();
    }
}

/// What makes up each host of a table.
fn by_host(reader: &Reader<'_>, client: &Client, servers: &[&Bound<'_>]) -> BTreeMap<Text, Plan> {
    let domain = &reader.settings().domain;
    let mut out: BTreeMap<Text, Plan> = BTreeMap::new();
    // The routes of a rule are the same at all servers of a Gateway in one table: those of the first that has any.
    let mut first: BTreeMap<(&Text, &ObjectKey), Rule> = BTreeMap::new();
    for b in servers.iter().copied() {
        for head in bound_rules(reader, client, b) {
            let served = served_hosts(b, &head, domain);
            if served.is_empty() {
                continue;
            }
            let rule = match first.entry((&b.gateway, head.key)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let rule = Rule::new(&head, b);
                    if !rule.has_routes(reader, client, &head) {
                        continue;
                    }
                    new.insert(rule)
                }
            };
            for h in served {
                let plan = out.entry(h).or_insert_with(|| Plan::new(b));
                plan.rules.push(rule.clone());
                plan.through(b);
            }
        }
        // What nobody routes is redirected all the same.
        if b.redirects() {
            for h in &b.hosts {
                let plan = out.entry(lower_case(&bare(h)));
                plan.or_insert_with(|| Plan::new(b)).through(b);
            }
        }
    }
    out
}

/// Whether hosts are redirected, and the rules they are made of, each with its Gateway. The host, where each stands alone.
type MadeOf = (bool, Vec<(Text, ObjectKey)>, Option<Text>);

/// Sorts hosts before wildcards, then longer ones first, then by name.
fn specificity(h: &str) -> (bool, Reverse<usize>, &str) {
    (h.starts_with('*'), Reverse(h.len()), h)
}

/// The virtual hosts of a table, by their first host; hosts with equal routes stand together.
pub fn hosts(
    reader: &Reader<'_>,
    client: &Client,
    instances: &[Instance],
    table: &str,
) -> Vec<Plan> {
    let all = servers(reader, client, instances);
    let of_table = all.tables.get(table).into_iter().flatten();
    let servers: Vec<&Bound<'_>> = of_table.map(|i| &all.all[*i]).collect();
    let together = chain::feature(reader, "PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION", true);
    let mut plans: Vec<_> = by_host(reader, client, &servers).into_iter().collect();
    plans.sort_by(|(a, _), (b, _)| specificity(a).cmp(&specificity(b)));
    let mut groups: BTreeMap<MadeOf, Plan> = BTreeMap::new();
    for (h, plan) in plans {
        let rules = plan.rules.iter();
        let made_of = rules.map(|r| (r.gateway.clone(), r.key.clone())).collect();
        let alone = (!together).then(|| h.clone());
        // Hosts come in order, so the plan that is kept is the first host's.
        match groups.entry((plan.redirect, made_of, alone)) {
            Entry::Vacant(new) => new.insert(plan).hosts.push(h),
            Entry::Occupied(group) => {
                let group = group.into_mut();
                group.gateways.extend(plan.gateways);
                group.hosts.push(h);
            }
        }
    }
    let mut out: Vec<Plan> = groups.into_values().collect();
    out.sort();
    if let (true, Some(first)) = (out.is_empty(), servers.first()) {
        let mut nothing = Plan::new(first);
        for b in servers {
            nothing.through(b);
        }
        out.push(nothing);
    }
    out
}

/// One virtual host of a gateway.
pub fn virtual_host(reader: &Reader<'_>, client: &Client, plan: &Plan) -> VirtualHost {
    for gateway in &plan.gateways {
        if let Some((namespace, name)) = gateway.split_once('/') {
            reader.uses(&ObjectKey::new(Kind::Gateway, namespace, name));
        }
    }
    let Some(first) = plan.hosts.first() else {
        return VirtualHost {
            name: Text::from(format!("blackhole:{}", plan.port)),
            domains: vec![Text::from("*")],
            routes: Vec::new(),
            attempt_count: false,
            require_tls: false,
            session: None,
        };
    };
    let mut routes = Vec::new();
    for rule in &plan.rules {
        if let Some((object, vs)) = reader.virtual_service(&rule.key) {
            routes.extend(virtual_service::routes(
                reader,
                rule.place(client),
                object,
                vs,
            ));
        }
    }
    // Stable: only what takes everything moves behind the rest.
    routes.sort_by_key(|r| catches_all(&r.matches));
    VirtualHost {
        name: Text::from(format!("{}:{}", route::domain_name(first), plan.port)),
        domains: plan.hosts.iter().map(|d| route::domain_name(d)).collect(),
        routes,
        attempt_count: client.conduct.attempt_count,
        require_tls: plan.redirect,
        session: session_of(reader, client, first, plan),
    }
}

/// How sessions of a host are kept that is itself a service to which its first rule leads.
fn session_of(reader: &Reader<'_>, client: &Client, h: &str, plan: &Plan) -> Option<Session> {
    let rule = plan.rules.first().filter(|_| session::kept(reader))?;
    let (object, vs) = reader.virtual_service(&rule.key)?;
    let domain = &reader.settings().domain;
    let rules = delegate::rules(reader, object, vs);
    let leads_here = rules.iter().any(|(http, near)| {
        virtual_service::destinations(http).any(|d| *host::resolve(&d.host, near, domain) == *h)
    });
    let service = visibility::service_of_host(reader, client, h).filter(|_| leads_here)?;
    session::of(reader, service)
}
