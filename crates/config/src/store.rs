//! The one place that objects are written to.

use crate::Text;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::cluster::ClusterId;
use crate::diagnostic::Diagnostic;
use crate::mesh::{MeshConfig, MeshNetworks};
use crate::object::{Object, ObjectKey, Origin};
use crate::snapshot::{Snapshot, every_second_first};

/// A source of objects, by order of registration: of two sources that claim a key, the lower wins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// One change of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The object is new, or says something else now.
    Upsert(Arc<Object>),
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
/// Invariant: the snapshot holds, for every key that any source has, the object of the lowest source that has it, and
/// `hidden` those of the others.
#[derive(Debug, Default)]
pub struct Store {
    sources: Vec<Source>,
    hidden: BTreeMap<(ObjectKey, SourceId), Arc<Object>>,
    snapshot: Arc<Snapshot>,
    last_version: u64,
}

#[derive(Debug)]
struct Source {
    name: Text,
    diagnostics: Vec<Diagnostic>,
}

impl Change {
    /// The object is new, or says something else now.
    pub fn upsert(object: Object) -> Self {
        Self::Upsert(Arc::new(object))
    }

    fn key(&self) -> &ObjectKey {
        match self {
            Self::Upsert(object) => &object.key,
            Self::Delete(key) | Self::Relocate(key, _) => key,
        }
    }
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
            diagnostics: Vec::new(),
        });
        id
    }

    /// Applies a batch of one source. A source that was never registered is ignored.
    pub fn apply(&mut self, source: SourceId, mut changes: Vec<Change>) -> Applied {
        if self.sources.get(source.0 as usize).is_none() {
            changes.clear();
        }
        // By key, and of one key in the order in which they came.
        changes.sort_by(|a, b| a.key().cmp(b.key()));
        let mut groups: Vec<Range<usize>> = Vec::new();
        for group in changes.chunk_by(|a, b| a.key() == b.key()) {
            let begin = groups.last().map_or(0, |last| last.end);
            groups.push(begin..begin + group.len());
        }
        let mut changes: Vec<Option<Change>> = changes.into_iter().map(Some).collect();
        let before = Arc::clone(&self.snapshot);
        let mut next = Snapshot::clone(&before);
        let mut changed = Vec::new();
        for group in every_second_first(&groups).cloned() {
            let Some(key) = changes[group.start].as_ref().map(|c| c.key().clone()) else {
                continue;
            };
            for change in changes[group].iter_mut().filter_map(Option::take) {
                self.take(&mut next, source, change);
            }
            let same = match (before.get(&key), next.get(&key)) {
                (Some(before), Some(now)) => before.same_content(now),
                (before, now) => before.is_none() && now.is_none(),
            };
            if !same {
                changed.push(key);
            }
        }
        if !changed.is_empty() {
            next.version += 1;
        }
        if !next.objects.ptr_eq(&before.objects) {
            self.snapshot = Arc::new(next);
        }
        changed.sort_unstable();
        Applied {
            snapshot: Arc::clone(&self.snapshot),
            changed,
        }
    }

    fn take(&mut self, next: &mut Snapshot, source: SourceId, change: Change) {
        match change {
            Change::Upsert(object) => self.put(next, source, object),
            Change::Delete(key) => {
                let shown = next.get(&key).is_some_and(|o| o.meta.source == source);
                if !shown {
                    self.hidden.remove(&(key, source));
                } else if let Some(other) = self.next_hidden(&key) {
                    self.publish(next, other);
                } else {
                    next.objects.remove(&key);
                }
            }
            Change::Relocate(key, origin) => {
                let shown = next.get(&key).filter(|o| o.meta.source == source);
                if let Some(mut object) = shown.cloned() {
                    Arc::make_mut(&mut object).origin = Some(origin);
                    next.objects.insert(key, object);
                } else if let Some(object) = self.hidden.get_mut(&(key, source)) {
                    Arc::make_mut(object).origin = Some(origin);
                }
            }
        }
    }

    /// Takes in what a source has now.
    fn put(&mut self, next: &mut Snapshot, source: SourceId, mut object: Arc<Object>) {
        Arc::make_mut(&mut object).meta.source = source;
        match next.get(&object.key) {
            Some(shown) if shown.meta.source < source => {
                let key = object.key.clone();
                self.hidden.insert((key, source), object);
                return;
            }
            Some(shown) if shown.meta.source > source => {
                let key = (object.key.clone(), shown.meta.source);
                self.hidden.insert(key, Arc::clone(shown));
            }
            // The object that is there stays, so that equal ones are not held twice.
            Some(shown) if shown.origin == object.origin && shown.same_content(&object) => return,
            _ => {}
        }
        self.publish(next, object);
    }

    /// The object of the lowest source that has one which is hidden.
    fn next_hidden(&mut self, key: &ObjectKey) -> Option<Arc<Object>> {
        let mut others = self.hidden.range((key.clone(), SourceId(0))..);
        let (first, _) = others.next().filter(|((of, _), _)| of == key)?;
        let first = first.clone();
        self.hidden.remove(&first)
    }

    /// Shows an object instead of the one that is shown. Its version is a new one only if it says something else.
    fn publish(&mut self, next: &mut Snapshot, mut object: Arc<Object>) {
        let shown = next.get(&object.key).filter(|o| o.same_content(&object));
        let version = shown.map(|shown| shown.meta.resource_version);
        let version = version.unwrap_or_else(|| {
            self.last_version += 1;
            self.last_version
        });
        Arc::make_mut(&mut object).meta.resource_version = version;
        next.objects.insert(object.key.clone(), object);
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

    /// Replaces the trust domains of other clusters; false if they are what they were.
    pub fn set_trust_domains(&mut self, domains: BTreeMap<ClusterId, Text>) -> bool {
        if *self.snapshot.trust_domains == domains {
            return false;
        }
        let next = Arc::make_mut(&mut self.snapshot);
        next.trust_domains = Arc::new(domains);
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
        for ((key, source), object) in &self.hidden {
            let winner = self.snapshot.get(key).map(|shown| shown.meta.source);
            let name = |id: SourceId| self.sources.get(id.0 as usize).map(|s| &s.name);
            if let (Some(winner), Some(loser)) = (winner.and_then(name), name(*source)) {
                all.push(
                    Diagnostic::warning(
                        "source-conflict",
                        format!("also defined by {winner}"),
                        format!("the definition of {loser} is ignored"),
                    )
                    .of(key.clone())
                    .from_origin(object.origin.clone()),
                );
            }
        }
        all.sort();
        all.dedup();
        all
    }
}
