//! What is remembered of a document and of a file: enough to tell what changed, not the objects themselves.

use pilotfish_config::Text;
use std::collections::{BTreeMap, BTreeSet};

use pilotfish_config::parse::{self, Document, Parsed};
use pilotfish_config::{Diagnostic, Object, ObjectKey};
use xxhash_rust::xxh3::xxh3_128;

use super::walk::Stat;

/// A document that was read.
#[derive(Debug)]
pub(super) struct DocumentState {
    pub(super) hash: u128,
    /// The line of the file that it begins on.
    pub(super) line: u32,
    /// Its objects, each with its line.
    pub(super) objects: Vec<(ObjectKey, u32)>,
    /// Objects in it that cannot be used.
    pub(super) refused: Vec<ObjectKey>,
    pub(super) unreadable: bool,
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl DocumentState {
    /// Reads a document; the objects are handed on, the state remembers their names.
    pub(super) fn read(document: &Document<'_>, hash: u128, file: &Text) -> (Self, Vec<Object>) {
        let Parsed {
            mut objects,
            refused,
            unreadable,
            mut diagnostics,
        } = parse::document(document, file);
        // A list may name an object twice; the first counts.
        let mut first = BTreeMap::new();
        objects.retain(|object| {
            if let Some(earlier) = first.get(&object.key) {
                diagnostics.push(parse::duplicate(object, Option::as_ref(earlier)));
                return false;
            }
            first.insert(object.key.clone(), object.origin.clone());
            true
        });
        let line_of = |object: &Object| {
            object
                .origin
                .as_ref()
                .map_or(document.line, |origin| origin.line)
        };
        let state = Self {
            hash,
            line: document.line,
            objects: objects
                .iter()
                .map(|object| (object.key.clone(), line_of(object)))
                .collect(),
            refused,
            unreadable: unreadable > 0,
            diagnostics,
        };
        (state, objects)
    }

    /// The same document on another line.
    fn moved_to(mut self, line: u32) -> Self {
        let by = i64::from(line) - i64::from(self.line);
        if by == 0 {
            return self;
        }
        let shift = |at: &mut u32| *at = u32::try_from(i64::from(*at) + by).unwrap_or(*at);
        self.line = line;
        self.objects.iter_mut().for_each(|(_, at)| shift(at));
        for diagnostic in &mut self.diagnostics {
            if let Some(origin) = &mut diagnostic.origin {
                shift(&mut origin.line);
            }
        }
        self
    }
}

/// A file that was read, or could not be.
#[derive(Debug, Default)]
pub(super) struct FileState {
    /// `None` asks for another look whatever the file system says.
    pub(super) stat: Option<Stat>,
    pub(super) hash: u128,
    pub(super) documents: Vec<DocumentState>,
    /// Objects whose definition cannot be found, because part of the file cannot be read.
    pub(super) retained: BTreeSet<ObjectKey>,
    /// What is wrong with the file as a whole.
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// A file that was just read.
pub(super) struct ReadFile {
    pub(super) state: FileState,
    /// Objects of documents that were not read before, with the index of their document.
    pub(super) fresh: Vec<(u32, Object)>,
}

impl FileState {
    /// A file with the given content. Documents of `old` that are still there are not read again.
    pub(super) fn read(bytes: &[u8], file: &Text, stat: Stat, old: Option<FileState>) -> ReadFile {
        let mut state = Self {
            stat: Some(stat),
            hash: xxh3_128(bytes),
            ..Self::default()
        };
        let mut fresh = Vec::new();
        let text = match parse::text(bytes, file) {
            Ok(text) => text,
            Err(diagnostic) => {
                state.diagnostics.push(*diagnostic);
                state.retained = old
                    .map(|old| old.keys().cloned().collect())
                    .unwrap_or_default();
                return ReadFile { state, fresh };
            }
        };
        let old = old.unwrap_or_default();
        let before: BTreeSet<ObjectKey> = old.keys().cloned().collect();
        let mut known: BTreeMap<u128, Vec<DocumentState>> = BTreeMap::new();
        for document in old.documents {
            known.entry(document.hash).or_default().push(document);
        }
        // A document that just broke may be any that is missing now. One that was broken before is not to blame.
        let mut just_broke = false;
        let documents = parse::split(text);
        for document in documents.iter().take(parse::MAX_DOCUMENTS) {
            let hash = xxh3_128(document.text.as_bytes());
            if let Some(same) = known.get_mut(&hash).and_then(Vec::pop) {
                state.documents.push(same.moved_to(document.line));
                continue;
            }
            let index = state.documents.len() as u32;
            let (read, objects) = DocumentState::read(document, hash, file);
            just_broke |= read.unreadable;
            state.documents.push(read);
            fresh.extend(objects.into_iter().map(|object| (index, object)));
        }
        let excess = documents.get(parse::MAX_DOCUMENTS);
        if let Some(excess) = excess {
            state
                .diagnostics
                .push(parse::too_many_documents(excess, file));
        }
        let still_broken = state.documents.iter().any(|document| document.unreadable);
        let missing = match (just_broke || excess.is_some(), still_broken) {
            (true, _) => before,
            (false, true) => old.retained,
            (false, false) => BTreeSet::new(),
        };
        let named: BTreeSet<&ObjectKey> = state.named().collect();
        let retained = missing.into_iter().filter(|key| !named.contains(key));
        state.retained = retained.collect();
        ReadFile { state, fresh }
    }

    /// A file that cannot be read now: it keeps what it had, and is tried again.
    pub(super) fn unreadable(old: Option<FileState>, diagnostic: Diagnostic) -> Self {
        Self {
            retained: old
                .map(|old| old.keys().cloned().collect())
                .unwrap_or_default(),
            diagnostics: vec![diagnostic],
            ..Self::default()
        }
    }

    fn named(&self) -> impl Iterator<Item = &ObjectKey> {
        self.documents.iter().flat_map(|document| {
            let objects = document.objects.iter().map(|(key, _)| key);
            objects.chain(&document.refused)
        })
    }

    /// Every object that the file says something about, or did when it could be read.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.named().chain(&self.retained)
    }

    pub(super) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        let of_documents = self
            .documents
            .iter()
            .flat_map(|document| &document.diagnostics);
        self.diagnostics.iter().chain(of_documents)
    }
}
