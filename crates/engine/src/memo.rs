//! Pieces as scopes share them: a piece serves every scope that agrees with what it asked about the proxy.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use pilotfish_config::Diagnostic;
use pilotfish_ir::Listener;
use pilotfish_lower::Client;
use pilotfish_lower::route::TableKey;
use pilotfish_mesh::reader::{Known, Record};
use pilotfish_mesh::{Fact, Text};
use pilotfish_xds::Resource;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::intern::FactIds;
use crate::key::Key;
use crate::section::{HostBytes, PieceKey};
use crate::sheet::{Places, Sheet};

/// How many generations a sheet may lag behind before it starts again.
const LOG: usize = 1024;

/// Of how many places the latest sheet is remembered.
const PLACES: usize = 16;

/// What a piece came to.
#[derive(Debug)]
pub(crate) enum Output {
    /// The keys of other pieces in order, and the objects that decided which there are.
    Keys(Box<[Key]>, Arc<[Text]>),
    /// Finished resources.
    Resources(Box<[Arc<Resource>]>),
    /// Listeners without who the proxy is: each scope stamps that on them before they are encoded. With the objects they
    /// came from.
    Listeners(Box<[Listener]>, Arc<[Text]>),
    /// An encoded virtual host, if there is one.
    Host(Option<Arc<HostBytes>>),
    /// Encoded names of a service, and the objects they came from.
    Names(Bytes, Arc<[Text]>),
}

/// One piece as it comes out for all proxies of which `known` holds.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) output: Output,
    pub(crate) diagnostics: Box<[Diagnostic]>,
    /// What was asked about the proxy, and answered.
    known: Box<[Known]>,
    /// What was read of the world, as sorted numbers of [`FactIds`].
    facts: Arc<[u32]>,
}

impl Piece {
    pub(crate) fn new(output: Output, record: Record, facts: &FactIds) -> Self {
        let mut numbers = facts.numbers(record.facts);
        numbers.sort_unstable();
        Self {
            output,
            diagnostics: record.diagnostics.into(),
            known: record.known.into_iter().collect(),
            facts: numbers.into(),
        }
    }

    /// Whether this is what the proxy gets: it answers all that was asked as it was answered.
    pub(crate) fn serves(&self, client: &Client) -> bool {
        self.known.iter().all(|k| client.agrees(k))
    }
}

/// The pieces of all scopes of one family: scopes that differ in nothing but what pieces can ask about.
///
/// Invariant: every piece that [`Memo::find`] returns is what building it anew at `generation` would give. Pieces live as
/// long as a sheet holds them.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    pub(crate) generation: u64,
    /// Sheets from before this generation start again: the log does not reach back to them.
    pub(crate) complete_since: u64,
    entries: FxHashMap<Key, Entry>,
    /// Keys of which some piece read a fact (by number).
    readers: FxHashMap<u32, SmallVec<[Key; 1]>>,
    /// Which pieces each generation made stale, newest last.
    log: VecDeque<(u64, Vec<Key>)>,
    /// Entries without pieces are swept when there are this many.
    sweep_at: usize,
    /// The sheets that were refreshed last, one for each place of clients, newest last: the next scope starts from one.
    latest: Vec<(Client, Weak<Mutex<Sheet>>)>,
    /// What was put together last for each table: the next scope most likely has the same hosts.
    places: FxHashMap<TableKey, Weak<Places>>,
}

#[derive(Debug, Default)]
struct Entry {
    pieces: SmallVec<[Weak<Piece>; 1]>,
    /// Sorted numbers of the facts that lead here from `readers`; those of its only piece, mostly.
    registered: Arc<[u32]>,
}

impl Memo {
    /// Whether nothing was built yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The one allocation of a key.
    pub(crate) fn key(&mut self, key: PieceKey) -> Key {
        let key = Key::new(key);
        if let Some((known, _)) = self.entries.get_key_value(&key) {
            return known.clone();
        }
        self.entries.insert(key.clone(), Entry::default());
        key
    }

    /// A sheet to start from: the latest of a client at the same place, else the latest of all.
    pub(crate) fn like(&self, client: &Client) -> Option<Arc<Mutex<Sheet>>> {
        let alive = || {
            self.latest
                .iter()
                .rev()
                .filter(|(_, s)| s.strong_count() > 0)
        };
        let beside = alive().find(|(other, _)| other.is_beside(client));
        beside.or_else(|| alive().next())?.1.upgrade()
    }

    /// Takes note that a sheet was refreshed.
    pub(crate) fn refreshed(&mut self, client: &Client, sheet: &Arc<Mutex<Sheet>>) {
        self.latest
            .retain(|(other, s)| s.strong_count() > 0 && !other.is_beside(client));
        if self.latest.len() == PLACES {
            self.latest.remove(0);
        }
        self.latest.push((client.clone(), Arc::downgrade(sheet)));
    }

    /// Where these hosts are in a table that has them in this order.
    pub(crate) fn places(&mut self, table: &TableKey, keys: Vec<Key>) -> Arc<Places> {
        let known = self.places.get(table).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.keys == keys) {
            return known;
        }
        let places = Arc::new(Places::new(keys));
        self.places.retain(|_, places| places.strong_count() > 0);
        self.places.insert(table.clone(), Arc::downgrade(&places));
        places
    }

    /// A piece that serves this proxy.
    pub(crate) fn find(&self, key: &Key, client: &Client) -> Option<Arc<Piece>> {
        let pieces = &self.entries.get(key)?.pieces;
        pieces
            .iter()
            .filter_map(Weak::upgrade)
            .find(|p| p.serves(client))
    }

    /// Takes note of a piece that was just built.
    pub(crate) fn insert(&mut self, key: &Key, piece: &Arc<Piece>) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.pieces.retain(|p| p.strong_count() > 0);
        entry.pieces.push(Arc::downgrade(piece));
        let known = |fact: &u32| entry.registered.binary_search(fact).is_ok();
        let new: Vec<u32> = piece.facts.iter().copied().filter(|f| !known(f)).collect();
        if entry.registered.is_empty() {
            entry.registered = piece.facts.clone();
        } else if !new.is_empty() {
            let mut all = [&*entry.registered, &new].concat();
            all.sort_unstable();
            entry.registered = all.into();
        }
        for fact in new {
            self.readers.entry(fact).or_default().push(key.clone());
        }
        if self.entries.len() > self.sweep_at.max(1024) {
            self.sweep();
            self.sweep_at = self.entries.len() * 2;
        }
    }

    /// Drops what no sheet holds.
    fn sweep(&mut self) {
        self.entries.retain(|key, entry| {
            entry.pieces.retain(|p| p.strong_count() > 0);
            !entry.pieces.is_empty() || key.holders() > 1 + entry.registered.len()
        });
        let entries = &self.entries;
        self.readers.retain(|fact, keys| {
            keys.retain(|k| {
                entries
                    .get(k)
                    .is_some_and(|e| e.registered.binary_search(fact).is_ok())
            });
            !keys.is_empty()
        });
    }

    /// Forgets pieces that read one of the facts which a generation changed.
    pub(crate) fn advance<'f>(
        &mut self,
        generation: u64,
        changed: impl IntoIterator<Item = &'f Fact>,
        facts: &FactIds,
    ) {
        let mut stale: BTreeSet<Key> = BTreeSet::new();
        for number in changed.into_iter().filter_map(|f| facts.find(f)) {
            for key in self.readers.get(&number).into_iter().flatten() {
                let Some(entry) = self.entries.get_mut(key) else {
                    continue;
                };
                let before = entry.pieces.len();
                entry.pieces.retain(|p| {
                    p.upgrade()
                        .is_some_and(|p| p.facts.binary_search(&number).is_err())
                });
                if entry.pieces.len() < before {
                    stale.insert(key.clone());
                }
            }
        }
        if !stale.is_empty() {
            self.log
                .push_back((generation, stale.into_iter().collect()));
        }
        if self.log.len() > LOG
            && let Some((dropped, _)) = self.log.pop_front()
        {
            self.complete_since = dropped;
        }
        self.generation = generation;
    }

    /// Starts again: it is not known what changed since the last generation.
    pub(crate) fn forget(&mut self, generation: u64) {
        *self = Self {
            generation,
            complete_since: generation,
            ..Self::default()
        };
    }

    /// Keys of pieces that may have become stale after `generation`.
    pub(crate) fn stale_since(&self, generation: u64) -> impl Iterator<Item = &Key> {
        self.log
            .iter()
            .rev()
            .take_while(move |(g, _)| *g > generation)
            .flat_map(|(_, keys)| keys)
    }
}
