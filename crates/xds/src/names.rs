//! Sets of names that many clients subscribe to, kept once.

use crate::Text;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use imbl::OrdSet;
use xxhash_rust::xxh3::xxh3_64;

/// Smaller sets are not worth sharing.
const WORTH_SHARING: usize = 32;

/// Names in order. Cloning is O(1), a change copies O(log n), comparing costs what two sets do not share.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<Set>);

#[derive(Clone, Debug, Default)]
struct Set {
    names: OrdSet<Text>,
    /// Sum of the hashes of all names: equal sets have equal sums.
    sum: u64,
    /// Given by the pool, so that sets with the same number are equal; 0 for a set that is not in it.
    id: u64,
}

fn hash(name: &[u8]) -> u64 {
    xxh3_64(name)
}

impl Names {
    /// Whether a name is in the set.
    pub fn contains(&self, name: &str) -> bool {
        self.0.names.contains(name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.names.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.names.is_empty()
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Text> {
        self.0.names.iter()
    }

    /// The number of a set that is in the pool.
    pub(crate) fn id(&self) -> Option<u64> {
        (self.0.id > 0).then_some(self.0.id)
    }

    /// Adds a name; true if it is new.
    pub(crate) fn insert(&mut self, name: Text) -> bool {
        if self.contains(&name) {
            return false;
        }
        let set = Arc::make_mut(&mut self.0);
        set.sum = set.sum.wrapping_add(hash(name.as_bytes()));
        set.id = 0;
        set.names.insert(name);
        true
    }

    /// Removes a name; true if it was there.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        if !self.contains(name) {
            return false;
        }
        let set = Arc::make_mut(&mut self.0);
        set.sum = set.sum.wrapping_sub(hash(name.as_bytes()));
        set.id = 0;
        set.names.remove(name);
        true
    }

    /// Whether it holds exactly these names, each listed once. Clients list them as they got them, in order.
    fn is<'a>(&self, names: &(impl Iterator<Item = &'a [u8]> + Clone)) -> bool {
        let in_order = || {
            let mut pairs = self.iter().zip(names.clone());
            pairs.all(|(a, b)| a.as_bytes() == b)
        };
        let has = |name| std::str::from_utf8(name).is_ok_and(|name| self.contains(name));
        self.len() == names.clone().count() && (in_order() || names.clone().all(has))
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&*self.0, &*other.0);
        Arc::ptr_eq(&self.0, &other.0)
            || (a.sum == b.sum
                && a.names.len() == b.names.len()
                && a.names.diff(&b.names).next().is_none())
    }
}

impl Eq for Names {}

impl FromIterator<Text> for Names {
    fn from_iter<I: IntoIterator<Item = Text>>(names: I) -> Self {
        let names: OrdSet<Text> = names.into_iter().collect();
        let sum = sum(names.iter().map(Text::as_bytes));
        Self(Arc::new(Set { names, sum, id: 0 }))
    }
}

fn sum<'a>(names: impl Iterator<Item = &'a [u8]>) -> u64 {
    names.fold(0, |sum, name| sum.wrapping_add(hash(name)))
}

/// The sets in use. Proxies of one mesh ask for the same endpoints and routes, thousands of names each.
///
/// Sets are found by their sum and compared before they are shared, so that a client that makes sums collide gains nothing.
#[derive(Debug, Default)]
pub(crate) struct NamePool {
    sets: Mutex<Sets>,
    ids: AtomicU64,
}

#[derive(Debug, Default)]
struct Sets {
    by_sum: HashMap<u64, Weak<Set>>,
    /// Dead entries are swept when there are this many.
    sweep_at: usize,
}

impl NamePool {
    /// The set of these names; that of another client if one has the same.
    pub(crate) fn adopt(&self, names: Vec<String>) -> Names {
        if let Some(held) = self.held(&names.iter().map(String::as_bytes)) {
            return held;
        }
        let mut set: Names = names.into_iter().map(Text::from).collect();
        self.share(&mut set);
        set
    }

    /// The set of these names, if somebody has it and it is worth sharing.
    pub(crate) fn held<'a>(
        &self,
        names: &(impl Iterator<Item = &'a [u8]> + Clone),
    ) -> Option<Names> {
        names.clone().nth(WORTH_SHARING - 1)?;
        // A name that is listed twice makes another sum, and a set of its own.
        self.find(sum(names.clone())).filter(|held| held.is(names))
    }

    /// Replaces a set by an equal one that somebody holds, or offers it to others.
    pub(crate) fn share(&self, names: &mut Names) {
        if names.id().is_some() || names.len() < WORTH_SHARING {
            return;
        }
        if let Some(held) = self.find(names.0.sum).filter(|held| held == names) {
            *names = held;
            return;
        }
        let set = Arc::make_mut(&mut names.0);
        set.id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        let mut sets = self.sets();
        sets.by_sum.insert(names.0.sum, Arc::downgrade(&names.0));
        if sets.by_sum.len() > sets.sweep_at.max(64) {
            sets.by_sum.retain(|_, set| set.strong_count() > 0);
            sets.sweep_at = sets.by_sum.len() * 2;
        }
    }

    fn find(&self, sum: u64) -> Option<Names> {
        self.sets()
            .by_sum
            .get(&sum)
            .and_then(Weak::upgrade)
            .map(Names)
    }

    fn sets(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("name-{i}")).collect()
    }

    #[test]
    fn equal_sets_become_one_and_are_forgotten_with_their_last_holder() {
        let pool = NamePool::default();
        let (a, b, other) = (
            pool.adopt(list(100)),
            pool.adopt(list(100)),
            pool.adopt(list(101)),
        );
        assert!(a.id().is_some() && a.id() == b.id() && a.id() != other.id());
        assert!(Arc::ptr_eq(&a.0, &b.0));
        let mut sorted = list(100);
        sorted.sort();
        assert_eq!(pool.adopt(sorted).id(), a.id(), "whatever the order");
        let weak = Arc::downgrade(&a.0);
        drop((a, b));
        assert_eq!(weak.strong_count(), 0);
    }

    #[test]
    fn sets_that_grow_alike_become_one_again() {
        let pool = NamePool::default();
        let (mut a, mut b) = (pool.adopt(list(100)), pool.adopt(list(100)));
        for set in [&mut a, &mut b] {
            assert!(set.insert("more".into()) && !set.insert("more".into()));
            assert_eq!(set.id(), None);
            pool.share(set);
        }
        assert_eq!((a.id(), a.len()), (b.id(), 101));
        assert!(a.id().is_some() && b.remove("more") && !b.remove("more"));
        pool.share(&mut b);
        assert_eq!(b, list(100).into_iter().map(Text::from).collect());
    }

    #[test]
    fn a_name_listed_twice_counts_once() {
        let pool = NamePool::default();
        let mut twice = list(100);
        twice.push("name-0".into());
        assert_eq!(pool.adopt(twice), pool.adopt(list(100)));
    }
}
