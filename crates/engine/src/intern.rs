//! One encoding for equal pieces, whoever asked for them.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, Weak};

use pilotfish_config::ObjectKey;
use pilotfish_mesh::{Fact, Text};
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_secret};

/// Values by the hash of what they are made from. Holds them weakly: a value lives as long as some sheet uses it.
#[derive(Debug)]
pub(crate) struct Interner<V> {
    table: Mutex<Table<V>>,
}

#[derive(Debug)]
struct Table<V> {
    values: HashMap<u128, Weak<V>>,
    /// Dead entries are swept when the table has grown to this size.
    sweep_at: usize,
}

impl<V> Default for Interner<V> {
    fn default() -> Self {
        Self {
            table: Mutex::new(Table {
                values: HashMap::new(),
                sweep_at: 1024,
            }),
        }
    }
}

/// What keys are hashed with. Somebody who writes configuration must not be able to make two pieces collide, one of them
/// somebody else's. Keys are compared and nothing else, so that no output depends on it.
static SECRET: LazyLock<[u8; 192]> = LazyLock::new(|| {
    let state = RandomState::new();
    let mut secret = [0; 192];
    for (at, bytes) in secret.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&state.hash_one(at).to_le_bytes());
    }
    secret
});

/// A key that no two different inputs share in practice.
pub(crate) fn key(parts: &impl Hash) -> u128 {
    let mut h = Xxh3::with_secret(*SECRET);
    parts.hash(&mut h);
    h.digest128()
}

/// A number that no two different texts share in practice.
pub(crate) fn number(text: &str) -> u128 {
    xxh3_128_with_secret(text.as_bytes(), &*SECRET)
}

impl<V> Interner<V> {
    /// The value for a key, made if nobody has it.
    pub(crate) fn get(&self, key: u128, make: impl FnOnce() -> Arc<V>) -> Arc<V> {
        if let Some(v) = self.lock().values.get(&key).and_then(Weak::upgrade) {
            return v;
        }
        // Made outside the lock: two may make the same value, and either will do.
        let made = make();
        let mut table = self.lock();
        if let Some(v) = table.values.get(&key).and_then(Weak::upgrade) {
            return v;
        }
        table.values.insert(key, Arc::downgrade(&made));
        if table.values.len() >= table.sweep_at {
            table.values.retain(|_, v| v.strong_count() > 0);
            table.sweep_at = (table.values.len() * 2).max(1024);
        }
        made
    }

    /// Forgets what there is.
    pub(crate) fn forget(&self) {
        self.lock().values.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table<V>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Objects as text, each written once: thousands of pieces name the same ones.
#[derive(Debug, Default)]
pub(crate) struct ObjectNames(Mutex<Written>);

#[derive(Debug, Default)]
struct Written {
    names: FxHashMap<ObjectKey, Text>,
    /// Names that nobody holds are swept when there are this many.
    sweep_at: usize,
}

impl ObjectNames {
    /// The names of these objects, in order.
    pub(crate) fn of(&self, objects: &BTreeSet<ObjectKey>) -> Arc<[Text]> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = objects.iter().map(|object| {
            let known = written.names.get(object).cloned();
            known.unwrap_or_else(|| {
                let name = Text::from(object.to_string());
                written.names.insert(object.clone(), name.clone());
                name
            })
        });
        let names = names.collect();
        if written.names.len() > written.sweep_at.max(1024) {
            written
                .names
                .retain(|_, name| Text::strong_count(name) != Some(1));
            written.sweep_at = written.names.len() * 2;
        }
        names
    }
}

/// Facts as numbers, the same for all sheets: an edge from a fact to a piece then takes four bytes.
#[derive(Debug, Default)]
pub(crate) struct FactIds(RwLock<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    by_fact: HashMap<Fact, u32>,
    /// Never reused, so that a number from before [`FactIds::forget`] means nothing instead of something else.
    next: u32,
}

impl FactIds {
    /// The numbers of facts, new ones if need be.
    pub(crate) fn numbers(&self, facts: BTreeSet<Fact>) -> Box<[u32]> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found: Option<Box<[u32]>> = facts
            .iter()
            .map(|f| known.by_fact.get(f).copied())
            .collect();
        drop(known);
        if let Some(all) = found {
            return all;
        }
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Numbers { by_fact, next } = &mut *table;
        let number = |f| {
            *by_fact.entry(f).or_insert_with(|| {
                *next += 1;
                *next
            })
        };
        facts.into_iter().map(number).collect()
    }

    /// The number of a fact that somebody read.
    pub(crate) fn find(&self, fact: &Fact) -> Option<u32> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.by_fact.get(fact).copied()
    }

    /// How many facts have numbers.
    pub(crate) fn len(&self) -> usize {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_fact
            .len()
    }

    /// Takes all numbers away. Every sheet must forget what it holds before it is asked again.
    pub(crate) fn forget(&self) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .by_fact = HashMap::new();
    }
}
