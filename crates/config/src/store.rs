//! The one place that objects are written to.

use crate::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::mesh::{MeshConfig, MeshNetworks};
use crate::object::{Object, ObjectKey, Origin};
use crate::snapshot::{Snapshot, every_second_first};

/// A source of objects, by order of registration: of two sources that claim a key, the lower wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// One change of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The object is new, or says something else now.
    Upsert(Object),
    /// The source no longer has the object.
    Delete(ObjectKey),
    /// The object says what it said, but elsewhere: in another file or on another line.
    Relocate(ObjectKey, Origin),
}

/// What a batch did.
#[derive(Debug, Clone)]
pub struct Applied {
    /// Everything after the batch.
    pub snapshot: Arc<Snapshot>,
    /// The objects that are different now, sorted, each once.
    pub changed: Vec<ObjectKey>,
}

/// All objects of all sources. One task owns it; readers hold snapshots.
///
/// Invariant: the snapshot holds, for every key that any source has, the object of the lowest source that has it.
#[derive(Debug, Default)]
pub struct Store {
    sources: Vec<Source>,
    snapshot: Arc<Snapshot>,
    last_version: u64,
}

#[derive(Debug)]
struct Source {
    name: Text,
    /// Everything the source has, including what a lower source hides.
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    diagnostics: Vec<Diagnostic>,
}

impl Store {
    /// An empty store with istiod's default mesh configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new source, which loses against those registered before it.
    pub fn register(&mut self, name: impl Into<Text>) -> SourceId {
        let id = SourceId(self.sources.len() as u32);
        self.sources.push(Source {
            name: name.into(),
            objects: BTreeMap::new(),
            diagnostics: Vec::new(),
        });
        id
    }

    /// Applies a batch of one source. A source that was never registered is ignored.
    pub fn apply(&mut self, source: SourceId, changes: Vec<Change>) -> Applied {
        let mut touched = BTreeSet::new();
        if let Some(source) = self.sources.get_mut(source.0 as usize) {
            for change in changes {
                match change {
                    Change::Upsert(object) => {
                        touched.insert(object.key.clone());
                        source.objects.insert(object.key.clone(), Arc::new(object));
                    }
                    Change::Delete(key) => {
                        source.objects.remove(&key);
                        touched.insert(key);
                    }
                    Change::Relocate(key, origin) => {
                        if let Some(object) = source.objects.get_mut(&key) {
                            Arc::make_mut(object).origin = Some(origin);
                            touched.insert(key);
                        }
                    }
                }
            }
        }
        let changed = self.publish(touched);
        Applied {
            snapshot: Arc::clone(&self.snapshot),
            changed,
        }
    }

    /// Brings the snapshot in line with the sources for the touched keys; returns those whose content changed.
    fn publish(&mut self, touched: BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        let touched: Vec<ObjectKey> = touched.into_iter().collect();
        let mut next: Option<Snapshot> = None;
        let mut changed = Vec::new();
        for key in every_second_first(&touched).cloned() {
            let winner = self
                .sources
                .iter_mut()
                .find_map(|source| source.objects.get_mut(&key));
            let current = self.snapshot.get(&key);
            match (winner, current) {
                (None, None) => {}
                (None, Some(_)) => {
                    let next = next.get_or_insert_with(|| Snapshot::clone(&self.snapshot));
                    next.objects.remove(&key);
                    changed.push(key);
                }
                (Some(winner), current) => {
                    let same = current.is_some_and(|current| current.same_content(winner));
                    let version = match current {
                        Some(current) if same => current.meta.resource_version,
                        _ => {
                            self.last_version += 1;
                            self.last_version
                        }
                    };
                    if let (true, Some(current)) = (same, current)
                        && current.origin == winner.origin
                    {
                        // Share the published value, so that equal objects are not held twice.
                        *winner = Arc::clone(current);
                        continue;
                    }
                    Arc::make_mut(winner).meta.resource_version = version;
                    let next = next.get_or_insert_with(|| Snapshot::clone(&self.snapshot));
                    next.objects.insert(key.clone(), Arc::clone(winner));
                    if !same {
                        changed.push(key);
                    }
                }
            }
        }
        if let Some(mut next) = next {
            if !changed.is_empty() {
                next.version += 1;
            }
            self.snapshot = Arc::new(next);
        }
        changed.sort_unstable();
        changed
    }

    /// Replaces the mesh configuration; false if it is what it was.
    pub fn set_mesh(&mut self, mesh: MeshConfig) -> bool {
        if *self.snapshot.mesh == mesh {
            return false;
        }
        let next = Arc::make_mut(&mut self.snapshot);
        next.mesh = Arc::new(mesh);
        next.version += 1;
        true
    }

    /// Replaces the networks; false if they are what they were.
    pub fn set_networks(&mut self, networks: MeshNetworks) -> bool {
        if *self.snapshot.networks == networks {
            return false;
        }
        let next = Arc::make_mut(&mut self.snapshot);
        next.networks = Arc::new(networks);
        next.version += 1;
        true
    }

    /// The latest state.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot)
    }

    /// Replaces what a source has to say about its input.
    pub fn set_diagnostics(&mut self, source: SourceId, diagnostics: Vec<Diagnostic>) {
        if let Some(source) = self.sources.get_mut(source.0 as usize) {
            source.diagnostics = diagnostics;
        }
    }

    /// Everything that is wrong with the input, sorted, each once; also which objects another source hides.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut all: Vec<Diagnostic> = self
            .sources
            .iter()
            .flat_map(|source| source.diagnostics.iter().cloned())
            .collect();
        for (index, source) in self.sources.iter().enumerate().skip(1) {
            if self.sources[..index].iter().all(|s| s.objects.is_empty()) {
                continue;
            }
            for (key, object) in &source.objects {
                let winner = self.sources[..index]
                    .iter()
                    .find(|lower| lower.objects.contains_key(key));
                if let Some(winner) = winner {
                    all.push(
                        Diagnostic::warning(
                            "source-conflict",
                            format!("also defined by {}", winner.name),
                            format!("the definition of {} is ignored", source.name),
                        )
                        .of(key.clone())
                        .from_origin(object.origin.clone()),
                    );
                }
            }
        }
        all.sort();
        all.dedup();
        all
    }
}
