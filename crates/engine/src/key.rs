//! Names of pieces, hashed once: they are looked up in many maps, for each scope.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

use crate::section::PieceKey;

/// A [`PieceKey`] with its hash. Cheap to clone, to hash and, if it is the same allocation, to compare.
#[derive(Clone, Debug)]
pub(crate) struct Key(Arc<(u64, PieceKey)>);

impl Key {
    pub(crate) fn new(piece: PieceKey) -> Self {
        Self(Arc::new((FxBuildHasher.hash_one(&piece), piece)))
    }

    /// How many hold this allocation.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl Deref for Key {
    type Target = PieceKey;

    fn deref(&self) -> &PieceKey {
        &self.0.1
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.0);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Key {}

/// By namespace first: what changes together is side by side. Keys without one, among them all tables, come before others.
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            Ordering::Equal
        } else {
            let namespaces = self.namespace().cmp(other.namespace());
            namespaces.then_with(|| (**self).cmp(other))
        }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
