//! Sets of names that many clients subscribe to, kept once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use xxhash_rust::xxh3::Xxh3;

/// Names in order.
pub(crate) type Names = BTreeSet<Arc<str>>;

/// Smaller sets are not worth sharing.
const WORTH_SHARING: usize = 32;

/// The sets in use. Proxies of one mesh ask for the same endpoints and routes, thousands of names each.
#[derive(Debug, Default)]
pub struct NamePool {
    sets: Mutex<Sets>,
}

#[derive(Debug, Default)]
struct Sets {
    by_hash: HashMap<u64, Weak<Names>>,
    /// Dead entries are swept when there are this many.
    sweep_at: usize,
}

impl NamePool {
    /// Replaces a set by an equal one that somebody holds, or offers it to others.
    pub(crate) fn share(&self, names: &mut Arc<Names>) {
        if names.len() < WORTH_SHARING {
            return;
        }
        let mut hash = Xxh3::new();
        for name in names.iter() {
            hash.update(name.as_bytes());
            hash.update(&[0xff]);
        }
        let hash = hash.digest();
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        match sets.by_hash.get(&hash).and_then(Weak::upgrade) {
            Some(held) if Arc::ptr_eq(&held, names) => {}
            Some(held) if held == *names => *names = held,
            _ => {
                sets.by_hash.insert(hash, Arc::downgrade(names));
                if sets.by_hash.len() > sets.sweep_at.max(64) {
                    sets.by_hash.retain(|_, set| set.strong_count() > 0);
                    sets.sweep_at = sets.by_hash.len() * 2;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Arc<Names> {
        Arc::new((0..n).map(|i| Arc::from(format!("name-{i}"))).collect())
    }

    #[test]
    fn equal_sets_become_one_and_are_forgotten_with_their_last_holder() {
        let pool = NamePool::default();
        let (mut a, mut b, mut other) = (names(100), names(100), names(101));
        for set in [&mut a, &mut b, &mut other] {
            pool.share(set);
        }
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &other));
        let weak = Arc::downgrade(&a);
        drop((a, b));
        assert_eq!(weak.strong_count(), 0);
    }
}
