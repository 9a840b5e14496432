//! One section, kept up to date piece by piece.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;
use pilotfish_config::Diagnostic;
use pilotfish_lower::Client;
use pilotfish_lower::route::{self, TableKey};
use pilotfish_mesh::{Reader, Text, World};
use pilotfish_xds::{Resource, ResourceSet};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::engine::Cost;
use crate::key::Key;
use crate::memo::{Memo, Output, Piece};
use crate::section::{HostBytes, Interners, PieceKey, Section};

/// The state of a section: its pieces and the resources they make.
///
/// Invariant after [`Sheet::refresh`]: `set` equals what a new sheet of the same section would compute from the world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet {
    generation: u64,
    /// Scopes that started from one another share what neither has changed since: nearly all, as what a scope has to
    /// itself is mostly of its own namespace, and keys of a namespace are side by side.
    pieces: OrdMap<Key, Arc<Piece>>,
    set: ResourceSet,
    tables: FxHashMap<TableKey, Spliced>,
    /// Resources of pieces that are stamped for this scope.
    stamped: FxHashMap<Key, Vec<Arc<Resource>>>,
    /// Resources that came, went or changed in the last refresh.
    changed: usize,
}

/// A table as it was last put together.
#[derive(Clone, Debug)]
struct Spliced {
    parts: Vec<Arc<HostBytes>>,
    places: Arc<Places>,
    /// No domain is claimed twice: a host that keeps its domains can be exchanged alone.
    distinct: bool,
    /// Objects that it was made from, where it is one resource.
    sources: Arc<[Text]>,
}

/// Which part of a table is whose. Scopes that have the same hosts share it.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The host of each part.
    pub(crate) keys: Vec<Key>,
    /// Where the part of a host is.
    at: FxHashMap<Key, usize>,
}

impl Places {
    pub(crate) fn new(keys: Vec<Key>) -> Self {
        let at = keys.iter().enumerate().map(|(at, key)| (key.clone(), at));
        Self {
            at: at.collect(),
            keys,
        }
    }
}

impl Spliced {
    /// Its hosts, where they are resources of their own.
    fn apart(&self) -> Vec<Arc<Resource>> {
        self.parts.iter().filter_map(|p| p.apart.clone()).collect()
    }
}

/// So many names are compared with a list one by one.
const FEW: usize = 4;

/// What has to be done to a table.
#[derive(Debug)]
enum Todo {
    /// All of it.
    Whole,
    /// These hosts are others now.
    Hosts(Vec<Key>),
}

type Todos = BTreeMap<TableKey, Todo>;

/// What a refresh works with.
pub(crate) struct Work<'a> {
    pub(crate) section: &'a Section,
    pub(crate) world: &'a World,
    pub(crate) memo: &'a mut Memo,
    pub(crate) shared: &'a Interners,
    /// Pieces that had to be built.
    built: usize,
}

impl<'a> Work<'a> {
    pub(crate) const fn new(
        section: &'a Section,
        world: &'a World,
        memo: &'a mut Memo,
        shared: &'a Interners,
    ) -> Self {
        Self {
            section,
            world,
            memo,
            shared,
            built: 0,
        }
    }

    /// A piece: what another scope has built, or built here.
    fn piece(&mut self, key: &Key) -> Arc<Piece> {
        if let Some(found) = self.memo.find(key, self.section.client()) {
            return found;
        }
        let reader = Reader::new(self.world);
        let output = self
            .section
            .build(reader, key, self.shared, |key| self.memo.key(key));
        self.built += 1;
        let piece = Arc::new(output);
        self.memo.insert(key, &piece);
        piece
    }
}

impl Sheet {
    /// Whether it was refreshed at this generation.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        self.generation == generation && !self.pieces.is_empty()
    }

    /// Whether it was never refreshed.
    pub(crate) fn is_blank(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The resources as of the last refresh.
    pub(crate) fn set(&self) -> &ResourceSet {
        &self.set
    }

    /// Problems found while lowering.
    pub(crate) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        self.pieces.values().flat_map(|p| &p.diagnostics)
    }

    /// Takes over what another scope of the family has, as of the memo's generation, if there is nothing in here. Most of
    /// it serves this scope as well; returns what does not.
    fn start_from(&mut self, other: &Self, client: &Client) -> BTreeSet<Key> {
        *self = other.clone();
        let others_own = self
            .pieces
            .iter()
            .filter(|(_, piece)| !piece.serves(client));
        others_own.map(|(key, _)| key.clone()).collect()
    }

    /// Brings the sheet up to the memo's generation; returns what that took. `like`: a sheet of the same family that is.
    pub(crate) fn refresh(&mut self, mut work: Work<'_>, like: Option<&Self>) -> Cost {
        if self.generation < work.memo.complete_since {
            *self = Self::default();
        }
        let roots = work.memo.key(PieceKey::Roots);
        let mut dirty: BTreeSet<Key> = work
            .memo
            .stale_since(self.generation)
            .filter(|k| self.pieces.contains_key(*k))
            .cloned()
            .collect();
        if self.pieces.is_empty() {
            match like {
                Some(like) => dirty = self.start_from(like, work.section.client()),
                None => drop(dirty.insert(roots.clone())),
            }
        }
        self.changed = 0;
        let mut splice = Todos::new();
        let mut names = false;
        if dirty.remove(&roots) {
            names = true;
            self.replace_keys(&roots, &mut work, &mut dirty, &mut splice);
        }
        // Tables come before hosts in key order, so the hosts a table adds are still ahead.
        while let Some(key) = dirty.pop_first() {
            match &*key {
                PieceKey::Table(t) => {
                    if self.replace_keys(&key, &mut work, &mut dirty, &mut splice) {
                        splice.insert(t.clone(), Todo::Whole);
                    }
                }
                // A table that left took its hosts with it.
                PieceKey::Host(t, _) if self.table(t).is_none() => {}
                PieceKey::Host(t, _) => {
                    let new = work.piece(&key);
                    let old = self.pieces.insert(key.clone(), new.clone());
                    if !same_host(old.as_deref(), &new) {
                        let todo = splice.entry(t.clone());
                        if let Todo::Hosts(hosts) = todo.or_insert_with(|| Todo::Hosts(Vec::new()))
                        {
                            hosts.push(key.clone());
                        }
                    }
                }
                _ => {
                    let new = work.piece(&key);
                    let old = self.pieces.insert(key.clone(), new.clone());
                    if old.as_ref().is_some_and(|old| Arc::ptr_eq(old, &new)) {
                        continue;
                    }
                    names |= matches!(new.output, Output::Names(..));
                    self.publish_all(&key, old.as_deref(), &new, &work);
                }
            }
        }
        for (table, todo) in splice {
            if !matches!(&todo, Todo::Hosts(hosts) if self.exchange(&table, hosts, &work)) {
                self.splice(&table, &mut work);
            }
        }
        if names && matches!(work.section, Section::Names(_)) {
            self.splice_names();
        }
        self.generation = work.memo.generation;
        Cost {
            pieces: work.built,
            resources: self.changed,
        }
    }

    /// Puts something into the set that no piece made.
    #[cfg(test)]
    pub(crate) fn tamper(&mut self, with: &Arc<Resource>) {
        self.set.insert(with.clone());
    }

    /// Replaces a piece that says which others there are: those that left go, those that came are dirty. False if they are
    /// the same, for the same reasons.
    fn replace_keys(
        &mut self,
        key: &Key,
        work: &mut Work<'_>,
        dirty: &mut BTreeSet<Key>,
        splice: &mut Todos,
    ) -> bool {
        let new = work.piece(key);
        let old = self.pieces.insert(key.clone(), new.clone());
        let (before, chosen_before) = keys_of(old.as_deref());
        let (after, chosen_after) = keys_of(Some(&new));
        if old.is_some() && before == after && chosen_before == chosen_after {
            return false;
        }
        if chosen_before != chosen_after {
            splice.extend(after.iter().filter_map(|k| match &**k {
                PieceKey::Table(t) => Some((t.clone(), Todo::Whole)),
                _ => None,
            }));
        }
        let (was, is): (FxHashSet<_>, FxHashSet<_>) =
            (before.iter().collect(), after.iter().collect());
        for gone in before.iter().filter(|k| !is.contains(k)) {
            dirty.remove(gone);
            self.remove(gone, splice);
        }
        dirty.extend(after.iter().filter(|k| !was.contains(k)).cloned());
        true
    }

    /// The piece that says which hosts a table has.
    fn table(&self, table: &TableKey) -> Option<&Arc<Piece>> {
        self.pieces.get(&Key::new(PieceKey::Table(table.clone())))
    }

    /// The objects that decided which pieces there are: what is put together from pieces is made from these, too.
    fn roots_chosen_by(&self) -> Arc<[Text]> {
        let roots = self.pieces.get(&Key::new(PieceKey::Roots));
        keys_of(roots.map(|p| &**p)).1.clone()
    }

    /// Removes a piece and the resources it made.
    fn remove(&mut self, key: &Key, splice: &mut Todos) {
        let Some(old) = self.pieces.remove(key) else {
            return;
        };
        match (&old.output, &**key) {
            (Output::Resources(all), _) => self.withdraw(all, &[]),
            (Output::Listeners(..), _) => {
                let all = self.stamped.remove(key).unwrap_or_default();
                self.withdraw(&all, &[]);
            }
            (Output::Keys(hosts, _), PieceKey::Table(t)) => {
                for h in hosts {
                    self.pieces.remove(h);
                }
                splice.remove(t);
                self.changed += usize::from(self.set.remove(&t.name()).is_some());
                if let Some(table) = self.tables.remove(t) {
                    self.withdraw(&table.apart(), &[]);
                }
            }
            _ => {}
        }
    }

    /// Takes resources out of the set unless they are still made, or another piece has taken the name.
    fn withdraw(&mut self, old: &[Arc<Resource>], new: &[Arc<Resource>]) {
        // A few are found faster than many are hashed.
        let few = old.len() <= FEW;
        let kept: FxHashSet<&Text> = new.iter().filter(|_| !few).map(|n| &n.name).collect();
        let is_kept = |o: &Resource| {
            if few {
                new.iter().any(|n| n.name == o.name)
            } else {
                kept.contains(&o.name)
            }
        };
        for o in old {
            let ours = self
                .set
                .get(&o.name)
                .is_some_and(|have| have.version == o.version && have.sources == o.sources);
            if ours && !is_kept(o) {
                self.set.remove(&o.name);
                self.changed += 1;
            }
        }
    }

    /// Publishes what a piece has made in place of what it made before.
    fn publish_all(&mut self, key: &Key, old: Option<&Piece>, new: &Piece, work: &Work<'_>) {
        let (before, after) = match &new.output {
            Output::Listeners(all, sources) => {
                let after = work.section.stamp(all, sources, work.shared);
                let before = self.stamped.insert(key.clone(), after.clone());
                (before.unwrap_or_default(), after)
            }
            Output::Resources(all) => {
                let before = match old.map(|p| &p.output) {
                    Some(Output::Resources(before)) => before.to_vec(),
                    _ => Vec::new(),
                };
                (before, all.to_vec())
            }
            _ => return,
        };
        self.withdraw(&before, &after);
        for resource in after {
            self.publish(resource);
        }
    }

    /// Puts a resource into the set. Equal content keeps the resource that proxies already hold.
    fn publish(&mut self, new: Arc<Resource>) {
        let have = self.set.get(&new.name);
        // Who made it is taken note of, and nothing is sent for it.
        let changed = have.is_none_or(|have| have.version != new.version);
        if changed || have.is_some_and(|have| have.sources != new.sources) {
            self.set.insert(new);
            self.changed += usize::from(changed);
        }
    }

    /// Puts the table of names together from the entries of its services.
    fn splice_names(&mut self) {
        let named = self.pieces.iter().filter_map(|(key, p)| match &p.output {
            Output::Names(bytes, sources) => Some((key, (bytes, sources))),
            _ => None,
        });
        let parts: BTreeMap<&Key, (&Bytes, &Arc<[Text]>)> = named.collect();
        let bytes: Vec<Bytes> = parts.values().map(|(b, _)| (*b).clone()).collect();
        let chosen_by = self.roots_chosen_by();
        let mut sources: BTreeSet<&Text> = parts.values().flat_map(|(_, s)| s.iter()).collect();
        sources.extend(chosen_by.iter());
        let sources: Arc<[Text]> = sources.into_iter().cloned().collect();
        let encoded = pilotfish_emit::name_table(&bytes);
        self.publish(Resource::new(encoded.name, &encoded.any, sources));
    }

    /// Exchanges hosts of a table that keep their domains; everything else stays as it is. False if that is not enough.
    fn exchange(&mut self, table: &TableKey, hosts: &[Key], work: &Work<'_>) -> bool {
        let Some(mut spliced) = self.tables.remove(table) else {
            return false;
        };
        // All or none: what is put together anew is compared with what was published.
        let exchanged = |key| {
            let (at, new) = (*spliced.places.at.get(key)?, self.host(key)?);
            (spliced.parts[at].domains == new.domains).then(|| (at, new.clone()))
        };
        let exchanged: Option<Vec<(usize, Arc<HostBytes>)>> = hosts.iter().map(exchanged).collect();
        let Some(exchanged) = exchanged.filter(|_| spliced.distinct) else {
            self.tables.insert(table.clone(), spliced);
            return false;
        };
        let mut same_sources = true;
        for (at, new) in exchanged {
            let old = std::mem::replace(&mut spliced.parts[at], new.clone());
            same_sources &= old.sources == new.sources;
            if let Some(resource) = &new.apart {
                self.withdraw(old.apart.as_slice(), std::slice::from_ref(resource));
                self.publish(resource.clone());
            }
        }
        if !matches!(work.section, Section::Hosts(..)) {
            if !same_sources {
                spliced.sources = self.table_sources(table, &spliced.parts);
            }
            let whole = &route::table(table);
            self.publish(work.shared.table(whole, &spliced.parts, &spliced.sources));
        }
        self.tables.insert(table.clone(), spliced);
        true
    }

    /// Publishes the hosts of a table as resources of their own. Hosts that are what they were are not looked at.
    fn publish_apart(&mut self, before: Option<&Spliced>, now: &Spliced) {
        let (mut came, mut left) = (Vec::new(), Vec::new());
        for (key, part) in now.places.keys.iter().zip(&now.parts) {
            let old = before.and_then(|b| Some(&b.parts[*b.places.at.get(key)?]));
            if !old.is_some_and(|old| Arc::ptr_eq(old, part)) {
                came.extend(part.apart.clone());
                left.extend(old.and_then(|old| old.apart.clone()));
            }
        }
        for (key, part) in before
            .iter()
            .flat_map(|b| b.places.keys.iter().zip(&b.parts))
        {
            if !now.places.at.contains_key(key) {
                left.extend(part.apart.clone());
            }
        }
        if !left.is_empty() {
            self.withdraw(&left, &now.apart());
        }
        for resource in came {
            self.publish(resource);
        }
    }

    /// The objects a table is made from: its hosts, and what decided that it exists and which hosts it has.
    fn table_sources(&self, table: &TableKey, parts: &[Arc<HostBytes>]) -> Arc<[Text]> {
        let (_, chosen_by) = keys_of(self.table(table).map(|p| &**p));
        let roots = self.roots_chosen_by();
        let mut sources: BTreeSet<&Text> = parts.iter().flat_map(|p| p.sources.iter()).collect();
        sources.extend(chosen_by.iter().chain(roots.iter()));
        sources.into_iter().cloned().collect()
    }

    /// Puts a table together from the bytes of its virtual hosts. A domain belongs to the first host that has it; a host
    /// that loses some is lowered once more without them.
    fn splice(&mut self, table: &TableKey, work: &mut Work<'_>) {
        let Some(piece) = self.table(table) else {
            return;
        };
        let (hosts, _) = keys_of(Some(piece));
        // The domains of the hosts that were put into the table so far.
        let mut owned: FxHashSet<u128> = FxHashSet::default();
        let mut keys = Vec::with_capacity(hosts.len());
        let mut spliced = Spliced {
            parts: Vec::with_capacity(hosts.len()),
            places: Arc::default(),
            distinct: true,
            sources: Arc::default(),
        };
        for key in hosts {
            let (Some(h), PieceKey::Host(_, host)) = (self.host(key), &**key) else {
                continue;
            };
            let part = if h.domains.iter().all(|d| !owned.contains(d)) {
                Some(h.clone())
            } else {
                spliced.distinct = false;
                let reader = Reader::new(work.world);
                work.section
                    .host(reader, table, host, &owned, work.shared)
                    .0
            };
            if let Some(p) = part {
                owned.extend(&p.domains);
                keys.push(key.clone());
                spliced.parts.push(p);
            }
        }
        let before = self.tables.remove(table);
        spliced.places = match &before {
            Some(before) if before.places.keys == keys => before.places.clone(),
            _ => work.memo.places(table, keys),
        };
        if let Section::Hosts(..) = work.section {
            self.publish_apart(before.as_ref(), &spliced);
        } else {
            spliced.sources = self.table_sources(table, &spliced.parts);
            let whole = route::table(table);
            self.publish(if let Section::Tables(_) = work.section {
                work.shared.table_without_hosts(&whole, &spliced.sources)
            } else {
                work.shared.table(&whole, &spliced.parts, &spliced.sources)
            });
        }
        self.tables.insert(table.clone(), spliced);
    }

    fn host(&self, key: &Key) -> Option<&Arc<HostBytes>> {
        match &self.pieces.get(key)?.output {
            Output::Host(Some(h)) => Some(h),
            _ => None,
        }
    }
}

/// The keys a piece says there are, and who decided it.
fn keys_of(piece: Option<&Piece>) -> (&[Key], &Arc<[Text]>) {
    static NOBODY: std::sync::LazyLock<Arc<[Text]>> = std::sync::LazyLock::new(Arc::default);
    match piece.map(|p| &p.output) {
        Some(Output::Keys(keys, chosen_by)) => (keys, chosen_by),
        _ => (&[], &NOBODY),
    }
}

fn same_host(old: Option<&Piece>, new: &Piece) -> bool {
    match (old.map(|p| &p.output), &new.output) {
        (Some(Output::Host(Some(a))), Output::Host(Some(b))) => Arc::ptr_eq(a, b),
        (Some(Output::Host(None)), Output::Host(None)) => true,
        _ => false,
    }
}
