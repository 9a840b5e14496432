//! One section, kept up to date piece by piece.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use pilotfish_config::Diagnostic;
use pilotfish_lower::route::{self, TableKey};
use pilotfish_mesh::{Reader, Text, World};
use pilotfish_xds::{Resource, ResourceSet};

use crate::memo::{Memo, Output, Piece};
use crate::section::{HostBytes, Interners, PieceKey, Section};

/// The state of a section: its pieces and the resources they make.
///
/// Invariant after [`Sheet::refresh`]: `set` equals what a new sheet of the same section would compute from the world.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    generation: u64,
    pieces: HashMap<Arc<PieceKey>, Arc<Piece>>,
    set: ResourceSet,
    /// Hosts of each table, where they are resources of their own.
    apart: HashMap<TableKey, Vec<Arc<Resource>>>,
}

/// What a refresh works with.
pub(crate) struct Work<'a> {
    pub(crate) section: &'a Section,
    pub(crate) world: &'a World,
    pub(crate) memo: &'a mut Memo,
    pub(crate) shared: &'a Interners,
}

impl Work<'_> {
    /// A piece: what another scope has built, or built here.
    fn piece(&mut self, key: &Arc<PieceKey>) -> Arc<Piece> {
        if let Some(found) = self.memo.find(key, self.section.client()) {
            return found;
        }
        let reader = Reader::new(self.world);
        let output = self
            .section
            .build(reader, key, self.shared, |key| self.memo.key(key));
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

    /// The resources as of the last refresh.
    pub(crate) fn set(&self) -> &ResourceSet {
        &self.set
    }

    /// Problems found while lowering.
    pub(crate) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        self.pieces.values().flat_map(|p| &p.diagnostics)
    }

    /// Brings the sheet up to the memo's generation.
    pub(crate) fn refresh(&mut self, mut work: Work<'_>) {
        if self.generation < work.memo.complete_since {
            *self = Self::default();
        }
        let roots = work.memo.key(PieceKey::Roots);
        let mut dirty: BTreeSet<Arc<PieceKey>> = work
            .memo
            .stale_since(self.generation)
            .filter(|k| self.pieces.contains_key(*k))
            .cloned()
            .collect();
        if self.pieces.is_empty() {
            dirty.insert(roots.clone());
        }
        let mut splice: BTreeSet<TableKey> = BTreeSet::new();
        let mut names = false;
        if dirty.remove(&roots) {
            names = true;
            self.replace_keys(&roots, &mut work, &mut dirty, &mut splice);
        }
        // Tables come before hosts in key order, so the hosts a table adds are still ahead.
        while let Some(key) = dirty.pop_first() {
            match &*key {
                PieceKey::Table(t) => {
                    splice.insert(t.clone());
                    self.replace_keys(&key, &mut work, &mut dirty, &mut splice);
                }
                // A table that left took its hosts with it.
                PieceKey::Host(t, _) if !self.pieces.contains_key(&PieceKey::Table(t.clone())) => {}
                PieceKey::Host(t, _) => {
                    let new = work.piece(&key);
                    let old = self.pieces.insert(key.clone(), new.clone());
                    if !same_host(old.as_deref(), &new) {
                        splice.insert(t.clone());
                    }
                }
                _ => {
                    let new = work.piece(&key);
                    let old = self.pieces.insert(key.clone(), new.clone());
                    if old.as_ref().is_some_and(|old| Arc::ptr_eq(old, &new)) {
                        continue;
                    }
                    names |= matches!(new.output, Output::Names(..));
                    self.publish_all(old.as_deref(), &new);
                }
            }
        }
        for table in splice {
            self.splice(&table, &mut work);
        }
        if names && matches!(work.section, Section::Names(_)) {
            self.splice_names();
        }
        self.generation = work.memo.generation;
    }

    /// Replaces a piece that says which others there are: those that left go, those that came are dirty.
    fn replace_keys(
        &mut self,
        key: &Arc<PieceKey>,
        work: &mut Work<'_>,
        dirty: &mut BTreeSet<Arc<PieceKey>>,
        splice: &mut BTreeSet<TableKey>,
    ) {
        let new = work.piece(key);
        let old = self.pieces.insert(key.clone(), new.clone());
        if old.as_ref().is_some_and(|old| Arc::ptr_eq(old, &new)) {
            return;
        }
        let (before, chosen_before) = keys_of(old.as_deref());
        let (after, chosen_after) = keys_of(Some(&new));
        if chosen_before != chosen_after {
            splice.extend(after.iter().filter_map(|k| match &**k {
                PieceKey::Table(t) => Some(t.clone()),
                _ => None,
            }));
        }
        let (was, is): (BTreeSet<_>, BTreeSet<_>) =
            (before.iter().collect(), after.iter().collect());
        for gone in was.difference(&is) {
            dirty.remove(*gone);
            self.remove(gone, splice);
        }
        dirty.extend(is.difference(&was).map(|k| (*k).clone()));
    }

    /// The objects that decided which pieces there are: what is put together from pieces is made from these, too.
    fn roots_chosen_by(&self) -> Arc<[Text]> {
        let roots = self.pieces.get(&PieceKey::Roots);
        keys_of(roots.map(|p| &**p)).1.clone()
    }

    /// Removes a piece and the resources it made.
    fn remove(&mut self, key: &Arc<PieceKey>, splice: &mut BTreeSet<TableKey>) {
        let Some(old) = self.pieces.remove(key) else {
            return;
        };
        match (&old.output, &**key) {
            (Output::Resources(all), _) => self.withdraw(all, &[]),
            (Output::Keys(hosts, _), PieceKey::Table(t)) => {
                for h in hosts {
                    self.pieces.remove(h);
                }
                splice.remove(t);
                self.set.remove(&t.name());
                if let Some(hosts) = self.apart.remove(t) {
                    self.withdraw(&hosts, &[]);
                }
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

    fn publish_all(&mut self, old: Option<&Piece>, new: &Piece) {
        let resources = |p: &Piece| match &p.output {
            Output::Resources(all) => all.clone(),
            _ => Vec::new(),
        };
        let new = resources(new);
        if let Some(old) = old {
            self.withdraw(&resources(old), &new);
        }
        for n in new {
            self.publish(n);
        }
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

    /// Puts the table of names together from the entries of its services.
    fn splice_names(&mut self) {
        let named = self.pieces.iter().filter_map(|(key, p)| match &p.output {
            Output::Names(bytes, sources) => Some((key, (bytes, sources))),
            _ => None,
        });
        let parts: BTreeMap<&Arc<PieceKey>, (&Bytes, &Arc<[Text]>)> = named.collect();
        let bytes: Vec<Bytes> = parts.values().map(|(b, _)| (*b).clone()).collect();
        let chosen_by = self.roots_chosen_by();
        let mut sources: BTreeSet<&Text> = parts.values().flat_map(|(_, s)| s.iter()).collect();
        sources.extend(chosen_by.iter());
        let sources: Arc<[Text]> = sources.into_iter().cloned().collect();
        let encoded = pilotfish_emit::name_table(&bytes);
        self.publish(Resource::new(encoded.name, encoded.any, sources));
    }

    /// Puts a table together from the bytes of its virtual hosts. A domain belongs to the first host that has it; a host
    /// that loses some is lowered once more without them.
    fn splice(&mut self, table: &TableKey, work: &mut Work<'_>) {
        let Some(piece) = self.pieces.get(&PieceKey::Table(table.clone())) else {
            return;
        };
        let (hosts, chosen_by) = keys_of(Some(piece));
        let mut owned: BTreeSet<Text> = BTreeSet::new();
        let mut parts: Vec<Arc<HostBytes>> = Vec::with_capacity(hosts.len());
        for key in hosts {
            let (Some(h), PieceKey::Host(_, host)) = (self.host(key), &**key) else {
                continue;
            };
            let part = if h.domains.iter().any(|d| owned.contains(d)) {
                let taken: BTreeSet<Text> = h
                    .domains
                    .iter()
                    .filter(|d| owned.contains(*d))
                    .cloned()
                    .collect();
                let reader = Reader::new(work.world);
                work.section
                    .host(reader, table, host, &taken, work.shared)
                    .0
            } else {
                Some(h.clone())
            };
            if let Some(p) = part {
                owned.extend(p.domains.iter().cloned());
                parts.push(p);
            }
        }
        if let Section::Hosts(..) = work.section {
            let apart = parts.iter().map(|p| work.shared.host_apart(p));
            let apart: Vec<Arc<Resource>> = apart.collect();
            let before = self.apart.insert(table.clone(), apart.clone());
            self.withdraw(&before.unwrap_or_default(), &apart);
            for resource in apart {
                self.publish(resource);
            }
            return;
        }
        let roots = self.roots_chosen_by();
        let mut sources: BTreeSet<&Text> = parts.iter().flat_map(|p| p.sources.iter()).collect();
        sources.extend(chosen_by.iter().chain(roots.iter()));
        let sources: Arc<[Text]> = sources.into_iter().cloned().collect();
        let table = route::table(table);
        self.publish(if let Section::Tables(_) = work.section {
            work.shared.table_without_hosts(&table, &sources)
        } else {
            work.shared.table(&table, &parts, &sources)
        });
    }

    fn host(&self, key: &PieceKey) -> Option<&Arc<HostBytes>> {
        match &self.pieces.get(key)?.output {
            Output::Host(Some(h)) => Some(h),
            _ => None,
        }
    }
}

/// The keys a piece says there are, and who decided it.
fn keys_of(piece: Option<&Piece>) -> (&[Arc<PieceKey>], &Arc<[Text]>) {
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
