//! Which destination rule applies to a service, and how several for one host become one.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::{DestinationRule, Subset};
use pilotfish_mesh::rules::Ranked;
use pilotfish_mesh::{ExportTo, Reader, Service};

use crate::{Client, Text};

/// A destination rule as it applies: the oldest of its host and scope, with what the others add.
#[derive(Clone, Debug)]
pub struct Rule<'w> {
    /// The object that gives it its name.
    pub object: &'w Arc<Object>,
    /// What it says.
    pub spec: Cow<'w, DestinationRule>,
    /// Others it was made from.
    more: Vec<&'w Arc<Object>>,
}

impl<'w> Rule<'w> {
    fn new(object: &'w Arc<Object>, spec: &'w DestinationRule) -> Self {
        Self {
            object,
            spec: Cow::Borrowed(spec),
            more: Vec::new(),
        }
    }

    /// The path telemetry names it by.
    pub fn path(&self) -> Text {
        let k = &self.object.key;
        Text::from(format!(
            "/apis/networking.istio.io/v1/namespaces/{}/destination-rule/{}",
            k.namespace, k.name
        ))
    }

    /// A subset by name.
    pub fn subset(&self, name: &str) -> Option<&Subset> {
        self.spec.subsets.iter().find(|s| s.name == name)
    }

    /// Takes over subsets of a younger rule that have a name of their own, and its policy if there is none yet.
    fn absorb(&mut self, object: &'w Arc<Object>, younger: &DestinationRule) {
        let spec = self.spec.to_mut();
        for subset in &younger.subsets {
            if !spec.subsets.iter().any(|s| s.name == subset.name) {
                spec.subsets.push(subset.clone());
            }
        }
        if spec.traffic_policy.is_none() {
            spec.traffic_policy.clone_from(&younger.traffic_policy);
        }
        self.more.push(object);
    }
}

/// Visibility of a rule, given what the mesh says about rules that say nothing.
pub fn export_to(own: &[String], default: &[String], namespace: &str) -> ExportTo {
    let list = if own.is_empty() { default } else { own };
    if list.is_empty() || list.iter().any(|e| e == "*") {
        return ExportTo::Public;
    }
    if list.iter().any(|e| e == "~") {
        return ExportTo::None;
    }
    ExportTo::Namespaces(
        list.iter()
            .map(|e| Text::from(if e == "." { namespace } else { e }))
            .collect(),
    )
}

/// Whom a rule is meant for. Empty: everybody, or only the own namespace if the mesh says so of rules that say nothing.
/// The own namespace is spelled out.
type Audience = BTreeSet<Text>;

fn audience(object: &Object, spec: &DestinationRule) -> Audience {
    let own = || Text::clone(&object.key.namespace);
    if spec.workload_selector.is_some() {
        return BTreeSet::from([own()]);
    }
    spec.export_to
        .iter()
        .map(|e| match e.as_str() {
            "." => own(),
            other => Text::from(other),
        })
        .collect()
}

fn reaches(to: &Audience, namespace: &str) -> bool {
    to.is_empty() || to.contains("*") || to.contains(namespace)
}

/// Which rules of a namespace are looked through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shelf {
    /// What its own clients see.
    Local,
    /// What only its own clients see.
    Private,
    /// What others may see.
    Exported,
}

impl Shelf {
    fn holds(self, to: &Audience, namespace: &str, private_by_default: bool) -> bool {
        let private = if to.is_empty() {
            private_by_default
        } else {
            to.len() == 1 && to.contains(namespace)
        };
        match self {
            Self::Local => reaches(to, namespace),
            Self::Private => private,
            Self::Exported => !private,
        }
    }
}

/// Rules of one host and namespace that could not be made one.
type Shelved<'w> = Vec<(Audience, Rule<'w>)>;

/// The rules a namespace has for the most specific host it has any for.
fn shelved<'w>(
    candidates: &[&'w Ranked],
    namespace: &str,
    shelf: Shelf,
    private_by_default: bool,
) -> Shelved<'w> {
    candidates
        .iter()
        .map(|ranked| {
            let of_namespace = ranked.iter().filter(|o| &*o.key.namespace == namespace);
            let mut found: Vec<_> = of_namespace
                .filter_map(|o| {
                    let spec = o.get::<DestinationRule>()?;
                    Some((audience(o, spec), o, spec))
                })
                .filter(|(to, ..)| shelf.holds(to, namespace, private_by_default))
                .collect();
            // Rules that select workloads go before those that do not.
            found.sort_by_key(|(.., spec)| spec.workload_selector.is_none());
            consolidated(found)
        })
        .find(|shelved| !shelved.is_empty())
        .unwrap_or_default()
}

/// Makes one rule of those that have the same audience and selector. A rule that selects workloads also takes over what
/// the rule for all of the same audience has, which stands beside it for the others.
fn consolidated<'w>(found: Vec<(Audience, &'w Arc<Object>, &'w DestinationRule)>) -> Shelved<'w> {
    let mut out: Shelved<'w> = Vec::new();
    for (to, object, spec) in found {
        let mut alone = true;
        for (held_to, held) in &mut out {
            let joins = to == *held_to || (!held_to.is_empty() && to.is_superset(held_to));
            alone = true;
            if !joins {
                continue;
            }
            let labels =
                |s: &DestinationRule| s.workload_selector.as_ref().map(|w| w.match_labels.clone());
            let (ours, theirs) = (labels(spec), labels(&held.spec));
            if ours.is_some() && theirs.is_some() && ours != theirs {
                continue;
            }
            alone = ours != theirs;
            held.absorb(object, spec);
        }
        if alone {
            out.push((to, Rule::new(object, spec)));
        }
    }
    out
}

/// Rules for a service as a client may see them: those of its own namespace, then of the service's, then of the root
/// namespace. The first namespace that has any decides.
fn seen<'w>(reader: &Reader<'w>, client: &Client, service: &Service) -> Shelved<'w> {
    let mesh = reader.mesh();
    let root = mesh.root_namespace.as_str();
    let private = mesh
        .default_destination_rule_export_to
        .iter()
        .any(|e| e == ".");
    let candidates = reader.destination_rules(&service.id.host);
    let namespaces: BTreeSet<&str> = candidates
        .iter()
        .flat_map(|ranked| ranked.iter())
        .map(|o| &*o.key.namespace)
        .collect();
    if let Some(own) = namespaces.into_iter().find(|n| client.is_in(reader, n)) {
        // What the root namespace says to everybody must not hide what a service's own namespace says.
        let shelf = if own == root {
            Shelf::Private
        } else {
            Shelf::Local
        };
        let local = shelved(&candidates, own, shelf, private);
        if !local.is_empty() {
            return local;
        }
    }
    [&*service.id.namespace, root]
        .into_iter()
        .map(|namespace| {
            let mut found = shelved(&candidates, namespace, Shelf::Exported, private);
            found.retain(|(to, _)| {
                to.is_empty() || to.contains("*") || to.iter().any(|n| client.is_in(reader, n))
            });
            found
        })
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

fn used<'w>(reader: &Reader<'w>, rule: Option<Rule<'w>>) -> Option<Rule<'w>> {
    if let Some(r) = &rule {
        for object in std::iter::once(&r.object).chain(&r.more) {
            reader.uses(&object.key);
        }
    }
    rule
}

/// The rule that applies to requests of a client to a service: the first that selects the client, else the last that is
/// for all.
pub fn rule<'w>(reader: &Reader<'w>, client: &Client, service: &Service) -> Option<Rule<'w>> {
    let seen = seen(reader, client, service);
    let selects = |r: &Rule<'_>| {
        r.spec.workload_selector.as_ref().is_some_and(|s| {
            s.match_labels
                .iter()
                .all(|(k, v)| client.is_labelled(reader, k, v))
        })
    };
    let selected = seen
        .iter()
        .map(|(_, r)| r)
        .filter(|r| r.spec.workload_selector.is_some())
        .find(|r| client.is_in(reader, &r.object.key.namespace) && selects(r))
        .cloned();
    used(reader, selected.or_else(|| for_all(seen)))
}

/// The rule that applies to requests a workload receives for a service it serves: whom it selects does not matter, it is
/// about clients.
pub fn rule_of_server<'w>(
    reader: &Reader<'w>,
    server: &Client,
    service: &Service,
) -> Option<Rule<'w>> {
    used(reader, for_all(seen(reader, server, service)))
}

fn for_all(seen: Shelved<'_>) -> Option<Rule<'_>> {
    let plain = |(_, r): &(Audience, Rule<'_>)| r.spec.workload_selector.is_none();
    seen.into_iter().rfind(plain).map(|(_, r)| r)
}
