//! Destination rules, virtual services, gateways and sidecars, indexed by what they are written for.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use pilotfish_config::{Object, ObjectKey, Spec};

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

/// Where an object is listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    DestinationRules(Text),
    VirtualServices(Text),
    GatewayVirtualServices(Text),
    Gateways,
    Sidecars(Text),
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
        _ => BTreeSet::new(),
    }
}

/// The list with one object replaced.
fn replaced(list: Option<&Ranked>, key: &ObjectKey, new: Option<&Arc<Object>>) -> Vec<Arc<Object>> {
    let kept = list
        .into_iter()
        .flat_map(|l| l.iter())
        .filter(|o| o.key != *key);
    let mut objects: Vec<Arc<Object>> = kept.chain(new).cloned().collect();
    rank(&mut objects);
    objects
}

fn same(a: Option<&Ranked>, b: Option<&Ranked>) -> bool {
    let none = Ranked::default();
    let (a, b) = (a.unwrap_or(&none), b.unwrap_or(&none));
    a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.same_content(b))
}

fn put(map: &mut OrdMap<Text, Ranked>, key: &Text, list: Vec<Arc<Object>>) {
    if list.is_empty() {
        map.remove(key);
    } else {
        map.insert(key.clone(), Arc::new(list));
    }
}

/// Brings the lists of rules up to date with the objects that changed.
pub(crate) fn replace(
    old: &World,
    next: &mut World,
    changed: &[ObjectKey],
    facts: &mut BTreeSet<Fact>,
) {
    let mut touched = BTreeSet::new();
    for key in changed {
        let before = old.snapshot.get(key);
        let after = next.snapshot.get(key).cloned();
        let from = before.map(|o| places(o, &old.settings)).unwrap_or_default();
        let to = after
            .as_ref()
            .map(|o| places(o, &old.settings))
            .unwrap_or_default();
        for place in from.union(&to) {
            let new = after.as_ref().filter(|_| to.contains(place));
            match place {
                Place::DestinationRules(host) => {
                    let list = replaced(next.destination_rules.get(host), key, new);
                    put(&mut next.destination_rules, host, list);
                }
                Place::VirtualServices(host) => {
                    let list = replaced(next.virtual_services.get(host), key, new);
                    put(&mut next.virtual_services, host, list);
                }
                Place::GatewayVirtualServices(gateway) => {
                    let list = replaced(next.gateway_virtual_services.get(gateway), key, new);
                    put(&mut next.gateway_virtual_services, gateway, list);
                }
                Place::Gateways => {
                    next.gateways = Arc::new(replaced(Some(&next.gateways), key, new))
                }
                Place::Sidecars(namespace) => {
                    let list = replaced(next.sidecars.get(namespace), key, new);
                    put(&mut next.sidecars, namespace, list);
                }
            }
        }
        touched.extend(from);
        touched.extend(to);
    }
    for place in touched {
        let (equal, fact) = match &place {
            Place::DestinationRules(host) => (
                same(
                    old.destination_rules.get(host),
                    next.destination_rules.get(host),
                ),
                Fact::DestinationRules(host.clone()),
            ),
            Place::VirtualServices(host) => {
                let (a, b) = (
                    old.virtual_services.get(host),
                    next.virtual_services.get(host),
                );
                if a.is_some() != b.is_some() {
                    facts.insert(Fact::VirtualServiceHosts);
                }
                (same(a, b), Fact::VirtualServices(host.clone()))
            }
            Place::GatewayVirtualServices(gateway) => {
                let before = old.gateway_virtual_services.get(gateway);
                let after = next.gateway_virtual_services.get(gateway);
                (
                    same(before, after),
                    Fact::GatewayVirtualServices(gateway.clone()),
                )
            }
            Place::Gateways => (
                same(Some(&old.gateways), Some(&next.gateways)),
                Fact::Gateways,
            ),
            Place::Sidecars(namespace) => (
                same(old.sidecars.get(namespace), next.sidecars.get(namespace)),
                Fact::Sidecars(namespace.clone()),
            ),
        };
        if !equal {
            facts.insert(fact);
        }
    }
}
