//! The one place that objects are written to.

use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::mesh::{MeshConfig, MeshNetworks};
use crate::object::{Object, ObjectKey};
use crate::snapshot::Snapshot;

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
#[derive(Debug, Default)]
pub struct Store {}

impl Store {
    /// An empty store with istiod's default mesh configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new source, which loses against those registered before it.
    pub fn register(&mut self, name: impl Into<Arc<str>>) -> SourceId {
        let _ = name.into();
        todo!()
    }

    /// Applies a batch of one source.
    pub fn apply(&mut self, source: SourceId, changes: Vec<Change>) -> Applied {
        let _ = (source, changes);
        todo!()
    }

    /// Replaces the mesh configuration; false if it is what it was.
    pub fn set_mesh(&mut self, mesh: MeshConfig) -> bool {
        let _ = mesh;
        todo!()
    }

    /// Replaces the networks; false if they are what they were.
    pub fn set_networks(&mut self, networks: MeshNetworks) -> bool {
        let _ = networks;
        todo!()
    }

    /// The latest state.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        todo!()
    }

    /// Replaces what a source has to say about its input.
    pub fn set_diagnostics(&mut self, source: SourceId, diagnostics: Vec<Diagnostic>) {
        let _ = (source, diagnostics);
        todo!()
    }

    /// Everything that is wrong with the input, sorted, each once.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        todo!()
    }
}
