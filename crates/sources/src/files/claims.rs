//! Which of several definitions of an object counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::ObjectKey;

use super::document::FileState;
use super::walk::FileKey;

/// A definition of an object: usable, or known to be there but not usable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) file: Arc<FileKey>,
    /// The index of the document; past the last one for an object that can no longer be found.
    pub(super) document: u32,
    pub(super) line: u32,
    pub(super) usable: bool,
}

/// All definitions of all objects, in the order in which they count.
#[derive(Debug, Default)]
pub(super) struct Claims {
    by_key: BTreeMap<ObjectKey, Vec<Claim>>,
    /// Objects with more than one definition.
    contested: BTreeSet<ObjectKey>,
}

impl Claims {
    pub(super) fn of(&self, key: &ObjectKey) -> &[Claim] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    pub(super) fn contested(&self) -> impl Iterator<Item = (&ObjectKey, &[Claim])> {
        self.contested.iter().map(|key| (key, self.of(key)))
    }

    /// Forgets what `file` said about its objects.
    pub(super) fn remove(&mut self, file: &Arc<FileKey>, state: &FileState) {
        for key in state.keys() {
            let Some(claims) = self.by_key.get_mut(key) else {
                continue;
            };
            claims.retain(|claim| claim.file != *file);
            if claims.len() < 2 {
                self.contested.remove(key);
            }
            if claims.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    /// Adds what `file` says about its objects.
    pub(super) fn add(&mut self, file: &Arc<FileKey>, state: &FileState) {
        for (index, document) in state.documents.iter().enumerate() {
            let index = index as u32;
            for (key, line) in &document.objects {
                self.insert(key, file, index, *line, true);
            }
            for key in &document.refused {
                self.insert(key, file, index, document.line, false);
            }
        }
        for key in &state.retained {
            self.insert(key, file, u32::MAX, 0, false);
        }
    }

    fn insert(
        &mut self,
        key: &ObjectKey,
        file: &Arc<FileKey>,
        document: u32,
        line: u32,
        usable: bool,
    ) {
        let claims = self.by_key.entry(key.clone()).or_default();
        let claim = Claim {
            file: Arc::clone(file),
            document,
            line,
            usable,
        };
        let at = claims.partition_point(|other| *other < claim);
        claims.insert(at, claim);
        if claims.len() > 1 {
            self.contested.insert(key.clone());
        }
    }
}
