//! Destination rules, virtual services, gateways and sidecars, indexed by what they are written for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use pilotfish_config::networking::{Destination, HttpMatchRequest, HttpRoute, VirtualService};
use pilotfish_config::{Kind, Object, ObjectKey, Spec};

use crate::{Fact, Settings, Text, World, host};

/// Objects in order of precedence: older first, then by name, then by namespace.
pub type Ranked = Arc<Vec<Arc<Object>>>;

/// Sorts by age, name, namespace: the order in which objects win.
pub fn rank(objects: &mut [Arc<Object>]) {
    fn key(object: &Object) -> (i64, &Text, &Text) {
        (
            object.meta.created.unwrap_or(0),
            &object.key.name,
            &object.key.namespace,
        )
    }
    objects.sort_by(|a, b| key(a).cmp(&key(b)));
}

/// Reference to a gateway from a VirtualService in `namespace`: `mesh`, or `namespace/name`.
pub fn gateway_ref(reference: &str, namespace: &str) -> Text {
    if reference == "mesh" || reference.contains('/') {
        Text::from(reference)
    } else {
        Text::from(format!("{namespace}/{reference}"))
    }
}

/// A VirtualService apart from its routes: what decides which hosts there are and whose rules count. Tables of routes are
/// made from heads, so that a changed route is a matter of its hosts alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'w> {
    /// Who it is.
    pub key: &'w ObjectKey,
    /// When it was made, in seconds; 0 if that is not known.
    pub created: i64,
    /// The hosts it is for, as written.
    pub hosts: &'w [String],
    /// Whom it is for, as written.
    pub export_to: &'w [String],
    /// It says something about HTTP.
    pub has_http: bool,
    /// It says something about byte streams.
    pub has_streams: bool,
    /// It has a route for HTTP whoever the client is and whatever the port. Where not, only its rules tell.
    pub routes_all: bool,
}

impl<'w> Head<'w> {
    /// The head of a VirtualService.
    pub fn of(object: &'w Object) -> Option<Self> {
        let service = object.get::<VirtualService>()?;
        Some(Self {
            key: &object.key,
            created: object.meta.created.unwrap_or(0),
            hosts: &service.hosts,
            export_to: &service.export_to,
            has_http: !service.http.is_empty(),
            has_streams: !service.tcp.is_empty() || !service.tls.is_empty(),
            routes_all: service.http.iter().any(is_for_all),
        })
    }

    /// The heads of a list.
    pub(crate) fn all(ranked: &'w [Arc<Object>]) -> Vec<Self> {
        ranked.iter().filter_map(|o| Self::of(o)).collect()
    }
}

/// Whether some request of every client at every port may come under a rule. What is delegated stands elsewhere.
fn is_for_all(rule: &HttpRoute) -> bool {
    let for_all = |m: &HttpMatchRequest| {
        m.port == 0
            && m.gateways.is_empty()
            && m.source_labels.is_empty()
            && m.source_namespace.is_empty()
    };
    rule.delegate.is_none() && (rule.r#match.is_empty() || rule.r#match.iter().any(for_all))
}

/// A VirtualService as far as it decides which services a client sees: its head, and where its routes lead, whatever their
/// weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leads<'w> {
    /// Everything but its routes.
    pub head: Head<'w>,
    /// The destinations of routes and copies.
    pub to: BTreeSet<Lead<'w>>,
}

/// One destination of a VirtualService.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lead<'w> {
    /// As written.
    pub host: &'w str,
    /// The port, if one is written.
    pub port: Option<u16>,
    /// Namespaces that some condition of the rule names; none: whoever asks may be led there.
    pub sources: BTreeSet<&'w str>,
}

impl<'w> Leads<'w> {
    /// Where a VirtualService leads.
    pub fn of(object: &'w Object) -> Option<Self> {
        let service = object.get::<VirtualService>()?;
        let http = service.http.iter().flat_map(|rule| {
            let named = rule.r#match.iter().map(|m| m.source_namespace.as_str());
            let sources: BTreeSet<&str> = named.filter(|n| !n.is_empty()).collect();
            let routes = rule.route.iter().filter_map(|r| r.destination.as_ref());
            let copies = rule.mirrors.iter().filter_map(|m| m.destination.as_ref());
            let all = routes.chain(copies).chain(&rule.mirror);
            all.map(move |to| (to, sources.clone()))
        });
        let tcp = service.tcp.iter().flat_map(|rule| &rule.route);
        let tls = service.tls.iter().flat_map(|rule| &rule.route);
        let streams = tcp.chain(tls).filter_map(|r| r.destination.as_ref());
        let lead = |(to, sources): (&'w Destination, _)| Lead {
            host: &to.host,
            port: to.port.as_ref().and_then(|p| p.number.try_into().ok()),
            sources,
        };
        let all = http.chain(streams.map(|to| (to, BTreeSet::new())));
        Some(Self {
            head: Head::of(object)?,
            to: all.map(lead).collect(),
        })
    }

    /// Where those of a list lead.
    pub(crate) fn all(ranked: &'w [Arc<Object>]) -> Vec<Self> {
        ranked.iter().filter_map(|o| Self::of(o)).collect()
    }
}

/// Where an object is listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    DestinationRules(Text),
    VirtualServices(Text),
    GatewayVirtualServices(Text),
    Gateways,
    Sidecars(Text),
    PeerAuthentications(Text),
}

fn places(object: &Object, settings: &Settings) -> BTreeSet<Place> {
    let namespace = &object.key.namespace;
    let qualified = |name: &str| host::resolve(name, namespace, &settings.domain);
    match &object.spec {
        Spec::DestinationRule(rule) if !rule.host.is_empty() => {
            BTreeSet::from([Place::DestinationRules(qualified(&rule.host))])
        }
        Spec::VirtualService(service) => {
            let mut places = BTreeSet::new();
            if service.hosts.is_empty() {
                return places;
            }
            let of_mesh =
                service.gateways.is_empty() || service.gateways.iter().any(|g| g == "mesh");
            if of_mesh {
                let hosts = service.hosts.iter().filter(|h| !h.is_empty());
                places.extend(hosts.map(|h| Place::VirtualServices(qualified(h))));
            }
            let gateways = service.gateways.iter().filter(|g| *g != "mesh");
            places
                .extend(gateways.map(|g| Place::GatewayVirtualServices(gateway_ref(g, namespace))));
            places
        }
        Spec::Gateway(_) => BTreeSet::from([Place::Gateways]),
        Spec::Sidecar(_) => BTreeSet::from([Place::Sidecars(namespace.clone())]),
        Spec::PeerAuthentication(_) => {
            BTreeSet::from([Place::PeerAuthentications(namespace.clone())])
        }
        _ => BTreeSet::new(),
    }
}

/// What happens to one list.
#[derive(Default)]
struct Edit<'a> {
    gone: BTreeSet<&'a ObjectKey>,
    come: Vec<&'a Arc<Object>>,
}

impl Edit<'_> {
    fn apply(&self, list: Option<&Ranked>) -> Vec<Arc<Object>> {
        let old = list.into_iter().flat_map(|list| list.iter());
        let kept = old.filter(|object| !self.gone.contains(&object.key));
        let mut objects: Vec<Arc<Object>> =
            kept.chain(self.come.iter().copied()).cloned().collect();
        rank(&mut objects);
        objects
    }
}

fn list(ranked: Option<&Ranked>) -> &[Arc<Object>] {
    ranked.map_or(&[], |ranked| ranked.as_slice())
}

fn same(a: &[Arc<Object>], b: &[Arc<Object>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same_content(b))
}

/// Applies an edit to one list of a map: whether it is another now, and whether it came or went.
fn edit(map: &mut OrdMap<Text, Ranked>, key: &Text, edit: &Edit<'_>) -> (bool, bool) {
    let old = map.get(key).cloned();
    let new = edit.apply(old.as_ref());
    let moved = old.is_none() != new.is_empty();
    if same(list(old.as_ref()), &new) {
        return (false, false);
    }
    if new.is_empty() {
        map.remove(key);
    } else {
        map.insert(key.clone(), Arc::new(new));
    }
    (true, moved)
}

/// Brings the lists of rules up to date with the objects that changed.
pub(crate) fn replace(
    old: &World,
    next: &mut World,
    changed: &[ObjectKey],
    facts: &mut BTreeSet<Fact>,
) {
    let snapshot = next.snapshot.clone();
    let mut edits: BTreeMap<Place, Edit<'_>> = BTreeMap::new();
    for key in changed {
        let (before, after) = (old.snapshot.get(key), snapshot.get(key));
        let differs = match (before, after) {
            (Some(a), Some(b)) => !a.same_content(b),
            (a, b) => a.is_some() || b.is_some(),
        };
        if differs && key.kind == Kind::VirtualService {
            facts.insert(Fact::VirtualService(key.clone()));
        }
        if let Some(before) = before {
            for place in places(before, &old.settings) {
                edits.entry(place).or_default().gone.insert(key);
            }
        }
        if let Some(after) = after {
            for place in places(after, &old.settings) {
                let edit = edits.entry(place).or_default();
                edit.gone.insert(key);
                edit.come.push(after);
            }
        }
    }
    for (place, change) in edits {
        let (differs, fact) = match place {
            Place::DestinationRules(host) => {
                let (differs, moved) = edit(&mut next.destination_rules, &host, &change);
                if moved && host.starts_with('*') {
                    facts.insert(Fact::DestinationRuleWildcards);
                }
                (differs, Fact::DestinationRules(host))
            }
            Place::VirtualServices(host) => {
                let before = next.virtual_services.get(&host).cloned();
                let (differs, moved) = edit(&mut next.virtual_services, &host, &change);
                if moved {
                    facts.insert(Fact::VirtualServiceHosts);
                }
                let before = list(before.as_ref());
                let after = list(next.virtual_services.get(&host));
                if differs && Head::all(before) != Head::all(after) {
                    facts.insert(Fact::VirtualServiceHeads(host.clone()));
                }
                if differs && Leads::all(before) != Leads::all(after) {
                    facts.insert(Fact::VirtualServiceLeads(host.clone()));
                }
                if moved && host.starts_with('*') {
                    facts.insert(Fact::VirtualServiceWildcards);
                }
                (differs, Fact::VirtualServices(host))
            }
            Place::GatewayVirtualServices(gateway) => {
                let before = next.gateway_virtual_services.get(&gateway).cloned();
                let (differs, _) = edit(&mut next.gateway_virtual_services, &gateway, &change);
                let after = list(next.gateway_virtual_services.get(&gateway));
                let differs = differs && Head::all(list(before.as_ref())) != Head::all(after);
                (differs, Fact::GatewayVirtualServiceHeads(gateway))
            }
            Place::Gateways => {
                let list = change.apply(Some(&next.gateways));
                let differs = !same(&next.gateways, &list);
                if differs {
                    next.gateways = Arc::new(list);
                }
                (differs, Fact::Gateways)
            }
            Place::Sidecars(namespace) => {
                let (differs, moved) = edit(&mut next.sidecars, &namespace, &change);
                if moved {
                    next.sidecar_namespaces = Arc::new(next.sidecars.keys().cloned().collect());
                    facts.insert(Fact::SidecarNamespaces);
                }
                (differs, Fact::Sidecars(namespace))
            }
            Place::PeerAuthentications(namespace) => {
                let (differs, _) = edit(&mut next.peer_authentications, &namespace, &change);
                (differs, Fact::PeerAuthentications(namespace))
            }
        };
        if differs {
            facts.insert(fact);
        }
    }
}
