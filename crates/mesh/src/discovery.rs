//! Namespaces that count. Where the mesh says which namespaces are looked at, objects of others do not exist for us.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pilotfish_config::mesh::LabelSelector;
use pilotfish_config::{ClusterId, Kind, ObjectKey, Snapshot};

use crate::declare::matches;
use crate::{Text, World};

/// Which namespaces count, as far as it was asked.
struct Selected<'a> {
    snapshot: &'a Snapshot,
    selectors: &'a [LabelSelector],
    known: BTreeMap<(ClusterId, Text), bool>,
}

impl<'a> Selected<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            selectors: &snapshot.mesh.discovery_selectors,
            known: BTreeMap::new(),
        }
    }

    /// Objects without namespace always count.
    fn counts(&mut self, key: &ObjectKey) -> bool {
        if self.selectors.is_empty() || key.namespace.is_empty() {
            return true;
        }
        let place = (key.cluster, key.namespace.clone());
        if let Some(known) = self.known.get(&place) {
            return *known;
        }
        // What a cluster says of its namespaces counts there.
        let namespace = ObjectKey::new(Kind::Namespace, "", key.namespace.clone()).of(key.cluster);
        let counts = self.snapshot.get(&namespace).is_some_and(|ns| {
            let mut selectors = self.selectors.iter();
            selectors.any(|s| matches(s, &ns.meta.labels))
        });
        self.known.insert(place, counts);
        counts
    }
}

/// The part of a configuration that counts, and the keys of objects that differ from what counted in `old`.
pub(crate) fn filter<'k>(
    old: &World,
    snapshot: &Snapshot,
    changed: &'k [ObjectKey],
) -> (Snapshot, Cow<'k, [ObjectKey]>) {
    let selectors = &snapshot.mesh.discovery_selectors;
    if selectors.is_empty() && old.mesh.discovery_selectors.is_empty() {
        return (snapshot.clone(), Cow::Borrowed(changed));
    }
    let mut selected = Selected::of(snapshot);
    let same_namespaces = *selectors == old.mesh.discovery_selectors
        && changed.iter().all(|key| key.kind != Kind::Namespace);
    let mut out = Snapshot {
        objects: old.snapshot.objects.clone(),
        ..snapshot.clone()
    };
    if same_namespaces {
        for key in changed {
            match snapshot.get(key) {
                Some(object) if selected.counts(key) => {
                    out.objects.insert(key.clone(), object.clone());
                }
                _ => {
                    out.objects.remove(key);
                }
            }
        }
        return (out, Cow::Borrowed(changed));
    }
    out.objects = snapshot
        .objects
        .iter()
        .filter(|(key, _)| selected.counts(key))
        .map(|(key, object)| (key.clone(), object.clone()))
        .collect();
    let mut keys = changed.to_vec();
    let come = out.objects.keys();
    keys.extend(come.filter(|k| old.snapshot.get(k).is_none()).cloned());
    let gone = old.snapshot.objects.keys();
    keys.extend(gone.filter(|k| out.get(k).is_none()).cloned());
    keys.sort();
    keys.dedup();
    (out, Cow::Owned(keys))
}
