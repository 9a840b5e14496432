//! One section, kept up to date piece by piece.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use pilotfish_config::Diagnostic;
use pilotfish_lower::route::{self, HostKey, TableKey};
use pilotfish_mesh::reader::Record;
use pilotfish_mesh::{Fact, Reader, Text, World};
use pilotfish_xds::{Resource, ResourceSet};
use smallvec::SmallVec;

use crate::section::{HostBytes, Interners, PieceKey, Section, source_names};

/// What a piece came to.
#[derive(Debug)]
enum Output {
    /// The keys of other pieces, and the objects that decided which there are.
    Keys(Vec<PieceKey>, Arc<[Text]>),
    /// Finished resources.
    Resources(Vec<Arc<Resource>>),
    /// Virtual hosts of a table, in order of ownership, and the objects that decided which there are.
    Table(Vec<HostKey>, Arc<[Text]>),
    /// An encoded virtual host, if there is one.
    Host(Option<Arc<HostBytes>>),
    /// Encoded names of a service, and the objects they came from.
    Names(Bytes, Arc<[Text]>),
}

#[derive(Debug)]
struct Piece {
    key: Arc<PieceKey>,
    output: Output,
    /// What it read, as numbers of [`FactIds`](crate::intern::FactIds).
    facts: Box<[u32]>,
    diagnostics: Vec<Diagnostic>,
}

/// The state of a section: its pieces, who read what, and the resources they make.
///
/// Invariant after [`Sheet::refresh`]: `set` equals what a new sheet of the same section would compute from the world.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    pub(crate) generation: u64,
    pieces: Slab,
    /// Pieces (by slot) that read a fact (by number).
    readers: HashMap<u32, SmallVec<[u32; 2]>>,
    set: ResourceSet,
}

/// Pieces in numbered slots, so that the index of readers holds four bytes an edge.
#[derive(Debug, Default)]
struct Slab {
    slots: Vec<Option<Piece>>,
    free: Vec<u32>,
    by_key: HashMap<Arc<PieceKey>, u32>,
}

impl Slab {
    fn get(&self, key: &PieceKey) -> Option<&Piece> {
        self.at(*self.by_key.get(key)?)
    }

    fn at(&self, slot: u32) -> Option<&Piece> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn contains(&self, key: &PieceKey) -> bool {
        self.by_key.contains_key(key)
    }

    fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.slots.iter().flatten()
    }

    fn insert(&mut self, piece: Piece) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.by_key.insert(piece.key.clone(), slot);
        self.slots[slot as usize] = Some(piece);
        slot
    }

    fn remove(&mut self, key: &PieceKey) -> Option<(u32, Piece)> {
        let slot = self.by_key.remove(key)?;
        self.free.push(slot);
        Some((slot, self.slots[slot as usize].take()?))
    }
}

/// How much a refresh had to do, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) pieces: usize,
}

impl Sheet {
    /// The resources as of the last refresh.
    pub(crate) fn set(&self) -> &ResourceSet {
        &self.set
    }

    /// Problems found while lowering, sorted.
    pub(crate) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        self.pieces.iter().flat_map(|p| &p.diagnostics)
    }

    /// Forgets everything: used when it is not known which facts changed since the last refresh.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Brings the sheet up to `world`. `changed` are all facts that changed since the last refresh.
    pub(crate) fn refresh<'f>(
        &mut self,
        section: &Section,
        world: &World,
        changed: impl Iterator<Item = &'f Fact>,
        shared: &Interners,
    ) -> Work {
        let mut dirty: BTreeSet<PieceKey> = BTreeSet::new();
        for fact in changed {
            let number = shared.facts.find(fact);
            let slots = number
                .and_then(|n| self.readers.get(&n))
                .into_iter()
                .flatten();
            dirty.extend(
                slots
                    .filter_map(|slot| self.pieces.at(*slot))
                    .map(|p| (*p.key).clone()),
            );
        }
        let mut work = Work::default();
        if !self.pieces.contains(&PieceKey::Roots) {
            dirty.insert(PieceKey::Roots);
        }
        let mut splice: BTreeSet<TableKey> = BTreeSet::new();
        if dirty.remove(&PieceKey::Roots) {
            self.rebuild_roots(section, world, &mut dirty, &mut splice, shared);
            work.pieces += 1;
        }
        // Tables come before hosts in key order, so the hosts a table adds are still ahead.
        while let Some(key) = dirty.pop_first() {
            if !self.alive(&key) {
                continue;
            }
            work.pieces += 1;
            match &key {
                PieceKey::Table(t) => {
                    splice.insert(t.clone());
                    self.rebuild_table(section, world, t, &mut dirty, shared);
                }
                PieceKey::Host(t, h) => {
                    let old = self.host(t, h).cloned();
                    let (new, record) =
                        section.host(Reader::new(world), t, h, &BTreeSet::new(), shared);
                    if !same(old.as_ref(), new.as_ref()) {
                        splice.insert(t.clone());
                    }
                    self.keep(key, Output::Host(new), record, shared);
                }
                _ => self.rebuild_resources(section, world, key, shared),
            }
        }
        for table in splice {
            self.splice(section, world, &table, shared);
        }
        if work.pieces > 0 && matches!(section, Section::Names(_)) {
            self.splice_names();
        }
        work
    }

    /// Pieces that an earlier step removed are not rebuilt.
    fn alive(&self, key: &PieceKey) -> bool {
        self.pieces.contains(key)
            || !matches!(key, PieceKey::Host(..))
            || self.pieces.contains(&PieceKey::Table(table_of(key)))
    }

    fn host(&self, table: &TableKey, key: &HostKey) -> Option<&Arc<HostBytes>> {
        match self
            .pieces
            .get(&PieceKey::Host(table.clone(), key.clone()))?
            .output
        {
            Output::Host(Some(ref h)) => Some(h),
            _ => None,
        }
    }

    /// Replaces a piece and the record of what it read.
    fn keep(
        &mut self,
        key: PieceKey,
        output: Output,
        record: Record,
        shared: &Interners,
    ) -> Option<Output> {
        let old = self.drop_piece(&key);
        let facts = shared.facts.numbers(record.facts);
        let slot = self.pieces.insert(Piece {
            key: Arc::new(key),
            output,
            facts: facts.clone(),
            diagnostics: record.diagnostics,
        });
        for f in &facts {
            self.readers.entry(*f).or_default().push(slot);
        }
        old
    }

    fn drop_piece(&mut self, key: &PieceKey) -> Option<Output> {
        let (slot, old) = self.pieces.remove(key)?;
        for f in &old.facts {
            if let Some(readers) = self.readers.get_mut(f) {
                readers.retain(|r| *r != slot);
                if readers.is_empty() {
                    self.readers.remove(f);
                }
            }
        }
        Some(old.output)
    }

    fn rebuild_roots(
        &mut self,
        section: &Section,
        world: &World,
        dirty: &mut BTreeSet<PieceKey>,
        splice: &mut BTreeSet<TableKey>,
        shared: &Interners,
    ) {
        let reader = Reader::new(world);
        let mut keys = section.roots(&reader);
        keys.sort();
        keys.dedup();
        let record = reader.into_record();
        let chosen_by = source_names(&record.sources);
        let output = Output::Keys(keys.clone(), chosen_by.clone());
        let (old, before) = match self.keep(PieceKey::Roots, output, record, shared) {
            Some(Output::Keys(old, before)) => (old, before),
            _ => (Vec::new(), Arc::default()),
        };
        if before != chosen_by {
            splice.extend(keys.iter().filter_map(|k| match k {
                PieceKey::Table(t) => Some(t.clone()),
                _ => None,
            }));
        }
        for gone in old.iter().filter(|k| keys.binary_search(k).is_err()) {
            dirty.remove(gone);
            self.remove(gone);
        }
        dirty.extend(keys.into_iter().filter(|k| old.binary_search(k).is_err()));
    }

    /// The objects that decided which pieces there are: what is put together from pieces is made from these, too.
    fn roots_chosen_by(&self) -> &[Text] {
        match self.pieces.get(&PieceKey::Roots).map(|p| &p.output) {
            Some(Output::Keys(_, chosen_by)) => chosen_by,
            _ => &[],
        }
    }

    /// Removes a piece and the resources it made.
    fn remove(&mut self, key: &PieceKey) {
        match self.drop_piece(key) {
            Some(Output::Resources(all)) => self.withdraw(&all, &[]),
            Some(Output::Table(hosts, _)) => {
                let PieceKey::Table(t) = key else { return };
                for h in hosts {
                    self.drop_piece(&PieceKey::Host(t.clone(), h));
                }
                self.set.remove(&t.name());
            }
            _ => {}
        }
    }

    /// Takes resources out of the set unless they are still made, or another piece has taken the name.
    fn withdraw(&mut self, old: &[Arc<Resource>], new: &[Arc<Resource>]) {
        for o in old {
            let kept = new.iter().any(|n| n.name == o.name);
            let ours = self
                .set
                .get(&o.name)
                .is_some_and(|have| have.version == o.version && have.sources == o.sources);
            if !kept && ours {
                self.set.remove(&o.name);
            }
        }
    }

    fn rebuild_resources(
        &mut self,
        section: &Section,
        world: &World,
        key: PieceKey,
        shared: &Interners,
    ) {
        let reader = Reader::new(world);
        if let Some(bytes) = section.names(&reader, &key) {
            let record = reader.into_record();
            let sources = source_names(&record.sources);
            self.keep(key, Output::Names(bytes, sources), record, shared);
            return;
        }
        let drafts = section.resources(&reader, &key);
        let record = reader.into_record();
        let sources = source_names(&record.sources);
        let new: Vec<Arc<Resource>> = drafts
            .into_iter()
            .map(|d| d.finish(&sources, shared))
            .collect();
        let old = match self.keep(key, Output::Resources(new.clone()), record, shared) {
            Some(Output::Resources(old)) => old,
            _ => Vec::new(),
        };
        self.withdraw(&old, &new);
        for n in new {
            self.publish(n);
        }
    }

    /// Puts the table of names together from the entries of its services.
    fn splice_names(&mut self) {
        let named = self.pieces.iter().filter_map(|p| match &p.output {
            Output::Names(bytes, sources) => Some((&*p.key, (bytes, sources))),
            _ => None,
        });
        let parts: BTreeMap<&PieceKey, (&Bytes, &Arc<[Text]>)> = named.collect();
        let bytes: Vec<Bytes> = parts.values().map(|(b, _)| (*b).clone()).collect();
        let mut sources: BTreeSet<&Text> = parts.values().flat_map(|(_, s)| s.iter()).collect();
        sources.extend(self.roots_chosen_by());
        let sources: Arc<[Text]> = sources.into_iter().cloned().collect();
        let encoded = pilotfish_emit::name_table(&bytes);
        self.publish(Resource::new(encoded.name, encoded.any, sources));
    }

    /// Puts a resource into the set. Equal content keeps the resource that proxies already hold.
    fn publish(&mut self, new: Arc<Resource>) {
        if self
            .set
            .get(&new.name)
            .is_none_or(|have| have.version != new.version || have.sources != new.sources)
        {
            self.set.insert(new);
        }
    }

    fn rebuild_table(
        &mut self,
        section: &Section,
        world: &World,
        table: &TableKey,
        dirty: &mut BTreeSet<PieceKey>,
        shared: &Interners,
    ) {
        let reader = Reader::new(world);
        let hosts = section.hosts(&reader, table);
        let record = reader.into_record();
        let output = Output::Table(hosts.clone(), source_names(&record.sources));
        let old = match self.keep(PieceKey::Table(table.clone()), output, record, shared) {
            Some(Output::Table(old, _)) => old,
            _ => Vec::new(),
        };
        let (before, after): (BTreeSet<&HostKey>, BTreeSet<&HostKey>) =
            (old.iter().collect(), hosts.iter().collect());
        for gone in before.difference(&after) {
            let key = PieceKey::Host(table.clone(), (*gone).clone());
            dirty.remove(&key);
            self.drop_piece(&key);
        }
        dirty.extend(
            after
                .difference(&before)
                .map(|h| PieceKey::Host(table.clone(), (*h).clone())),
        );
    }

    /// Puts a table together from the bytes of its virtual hosts. A domain belongs to the first host that has it; a host
    /// that loses some is lowered once more without them.
    fn splice(&mut self, section: &Section, world: &World, table: &TableKey, shared: &Interners) {
        let Some(Output::Table(hosts, chosen_by)) = self
            .pieces
            .get(&PieceKey::Table(table.clone()))
            .map(|p| &p.output)
        else {
            return;
        };
        let mut owners: HashMap<Text, usize> = HashMap::new();
        let mut parts: Vec<Arc<HostBytes>> = Vec::with_capacity(hosts.len());
        for key in hosts {
            let Some(h) = self.host(table, key) else {
                continue;
            };
            let taken: BTreeSet<Text> = h
                .domains
                .iter()
                .filter(|d| owners.contains_key(*d))
                .cloned()
                .collect();
            let part = if taken.is_empty() {
                Some(h.clone())
            } else {
                section
                    .host(Reader::new(world), table, key, &taken, shared)
                    .0
            };
            if let Some(p) = part {
                owners.extend(p.domains.iter().map(|d| (d.clone(), parts.len())));
                parts.push(p);
            }
        }
        let bytes: Vec<Bytes> = parts.iter().map(|p| p.bytes.clone()).collect();
        let mut sources: BTreeSet<&Text> = parts.iter().flat_map(|p| p.sources.iter()).collect();
        sources.extend(chosen_by.iter().chain(self.roots_chosen_by()));
        let sources: Arc<[Text]> = sources.into_iter().cloned().collect();
        let encoded = pilotfish_emit::route_table(&route::table(table), &bytes);
        self.publish(Resource::new(encoded.name, encoded.any, sources));
    }
}

fn table_of(key: &PieceKey) -> TableKey {
    match key {
        PieceKey::Host(t, _) | PieceKey::Table(t) => t.clone(),
        _ => TableKey::Port(0),
    }
}

fn same(a: Option<&Arc<HostBytes>>, b: Option<&Arc<HostBytes>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || (a.bytes == b.bytes && a.sources == b.sources),
        (None, None) => true,
        _ => false,
    }
}
