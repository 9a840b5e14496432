//! Everything that was read, and what a new look at the files changes.

use pilotfish_config::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilotfish_config::{Change, Diagnostic, Object, ObjectKey, Origin, parse};
use xxhash_rust::xxh3::xxh3_128;

use super::Options;
use super::claims::{Claim, Claims};
use super::document::{DocumentState, FileState, ReadFile};
use super::walk::{self, FileKey, Found, Stat};
use crate::Batch;
use crate::share::Shared;

/// What to look at.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// All directories, for files that are new, changed or gone.
    pub(super) everything: bool,
    /// Files that were reported as changed, and whatever else came or went; true if writing has ended.
    pub(super) files: BTreeMap<PathBuf, bool>,
    /// Do not wait for files that are being written.
    pub(super) at_once: bool,
}

impl Look {
    /// The first look, which has nothing to wait for.
    pub(super) fn first() -> Self {
        Self {
            everything: true,
            files: BTreeMap::new(),
            at_once: true,
        }
    }
}

/// The definition of an object that is in the store.
#[derive(Debug)]
struct Live {
    file: Arc<FileKey>,
    hash: u128,
    line: u32,
}

/// What is found where something was reported.
enum There {
    File(Arc<FileKey>, Stat),
    /// A file that was read before and is there no more.
    Gone(Arc<FileKey>),
    /// Nothing that matters.
    Nothing,
}

/// Objects that were just read, by key and definition.
type Fresh = BTreeMap<ObjectKey, Vec<(Arc<FileKey>, u32, Object)>>;

/// The state of a set of directories.
///
/// Invariant: `live` is what the receiver of the batches holds.
#[derive(Debug)]
pub(super) struct Tree {
    roots: Vec<PathBuf>,
    options: Options,
    files: BTreeMap<Arc<FileKey>, FileState>,
    claims: Claims,
    live: BTreeMap<ObjectKey, Live>,
    /// Files that were being written at the last look, or whose content is needed once more.
    pending: BTreeSet<PathBuf>,
    /// A file may have several names: what becomes of one name may depend on another.
    linked: bool,
    unreadable_places: Vec<Diagnostic>,
    /// Strings of the objects that were handed on.
    shared: Shared,
    reported: Vec<Diagnostic>,
}

impl Tree {
    pub(super) fn new(roots: Vec<PathBuf>, options: Options) -> Self {
        Self {
            roots,
            options,
            files: BTreeMap::new(),
            claims: Claims::default(),
            live: BTreeMap::new(),
            pending: BTreeSet::new(),
            linked: false,
            unreadable_places: Vec::new(),
            shared: Shared::default(),
            reported: Vec::new(),
        }
    }

    /// How soon another look is due because of files that were being written.
    pub(super) fn look_again_after(&self) -> Option<Duration> {
        (!self.pending.is_empty()).then_some(self.options.settle)
    }

    /// Reads what changed; `None` if that makes no difference.
    pub(super) fn look(&mut self, look: &Look) -> Option<Batch> {
        let mut touched = BTreeSet::new();
        let mut fresh = Fresh::new();
        let pending = std::mem::take(&mut self.pending);
        let mut asked: BTreeMap<&Path, bool> =
            pending.iter().map(|path| (path.as_path(), false)).collect();
        asked.extend(
            look.files
                .iter()
                .map(|(path, ended)| (path.as_path(), *ended)),
        );

        // Files that have but one name can be looked at alone; then the cost is theirs, however many there are.
        let alone = !look.everything && !self.linked && self.unreadable_places.is_empty();
        let found: Option<Vec<There>> = if alone {
            asked.keys().map(|path| self.judge(path)).collect()
        } else {
            None
        };
        if let Some(found) = found {
            for there in found {
                match there {
                    There::File(file, stat) => {
                        let ended = asked.get(file.path.as_path()).copied();
                        self.refresh(&file, stat, ended, look.at_once, &mut touched, &mut fresh);
                    }
                    There::Gone(file) => self.forget(&file, &mut touched),
                    There::Nothing => {}
                }
            }
        } else {
            self.walk(&asked, look.at_once, &mut touched, &mut fresh);
        }

        let mut changes = Vec::new();
        for key in touched {
            self.resolve(&key, &mut fresh, &mut changes);
        }
        let diagnostics = self.diagnostics();
        if changes.is_empty() && diagnostics == self.reported {
            return None;
        }
        self.reported.clone_from(&diagnostics);
        Some(Batch {
            changes,
            diagnostics,
            ..Batch::default()
        })
    }

    /// What is at `path` now; `None` if that cannot be told without a look at everything.
    fn judge(&self, path: &Path) -> Option<There> {
        let root = self.roots.iter().position(|root| path.starts_with(root))?;
        let key = FileKey {
            root,
            path: path.to_owned(),
        };
        let known = self.files.get_key_value(&key).map(|(key, _)| key);
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_file() && metadata.nlink() == 1 => Some(
                if known.is_none() && !walk::is_config_below(path, &self.roots[root]) {
                    There::Nothing
                } else {
                    let key = known.map_or_else(|| Arc::new(key.clone()), Arc::clone);
                    There::File(key, Stat::of(&metadata))
                },
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Some(known) = known {
                    return Some(There::Gone(Arc::clone(known)));
                }
                // Perhaps it was a directory.
                let next = self.files.range(key..).next();
                let below = next.is_some_and(|(file, _)| file.path.starts_with(path));
                (!below).then_some(There::Nothing)
            }
            _ => None,
        }
    }

    /// A file is gone, and with it what it defined.
    fn forget(&mut self, file: &Arc<FileKey>, touched: &mut BTreeSet<ObjectKey>) {
        if let Some(state) = self.files.remove(file) {
            touched.extend(state.keys().cloned());
            self.claims.remove(file, &state);
        }
    }

    fn walk(
        &mut self,
        asked: &BTreeMap<&Path, bool>,
        at_once: bool,
        touched: &mut BTreeSet<ObjectKey>,
        fresh: &mut Fresh,
    ) {
        let found: Found = walk::walk(&self.roots);
        let gone: Vec<Arc<FileKey>> = self
            .files
            .keys()
            .filter(|file| !found.files.contains_key(*file) && !found.may_hide(file))
            .cloned()
            .collect();
        for file in gone {
            self.forget(&file, touched);
        }
        self.linked = found.linked;
        self.unreadable_places = found
            .unreadable
            .iter()
            .map(|(place, error)| unreadable(&place.path, error))
            .collect();
        for (file, stat) in found.files {
            let ended = asked.get(file.path.as_path()).copied();
            self.refresh(&file, stat, ended, at_once, touched, fresh);
        }
    }

    /// Reads one file if it changed. `ended` is set if the file was reported, and true if writing it has ended.
    fn refresh(
        &mut self,
        file: &Arc<FileKey>,
        stat: Stat,
        ended: Option<bool>,
        at_once: bool,
        touched: &mut BTreeSet<ObjectKey>,
        fresh: &mut Fresh,
    ) {
        let known = self.files.get(file);
        if ended.is_none() && known.is_some_and(|known| known.stat == Some(stat)) {
            return;
        }
        // A link that leads elsewhere now was swapped, not written.
        let replaced = known
            .and_then(|known| known.stat)
            .is_some_and(|known| !known.same_file(&stat));
        let swapped =
            replaced && std::fs::symlink_metadata(&file.path).is_ok_and(|link| link.is_symlink());
        if ended != Some(true) && !at_once && !swapped && stat.is_recent(self.options.settle) {
            self.pending.insert(file.path.clone());
            return;
        }
        let name: Text = file.path.to_string_lossy().into();
        let bytes = read(&file.path, self.options.max_file_bytes);
        if let (Ok(bytes), Some(known)) = (&bytes, self.files.get_mut(file))
            && known.stat.is_some()
            && known.hash == xxh3_128(bytes)
        {
            known.stat = Some(stat);
            return;
        }
        let old = self.files.remove(file);
        if let Some(old) = &old {
            touched.extend(old.keys().cloned());
            self.claims.remove(file, old);
        }
        let state = match bytes {
            Ok(bytes) => {
                let ReadFile {
                    state,
                    fresh: objects,
                } = FileState::read(&bytes, &name, stat, old);
                for (document, object) in objects {
                    let entry = fresh.entry(object.key.clone()).or_default();
                    entry.push((Arc::clone(file), document, object));
                }
                state
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Deleted between walk and read; the next event or look will find it gone.
                self.pending.insert(file.path.clone());
                FileState::unreadable(old, unreadable(&file.path, &error))
            }
            Err(error) => FileState::unreadable(old, unreadable(&file.path, &error)),
        };
        touched.extend(state.keys().cloned());
        self.claims.add(file, &state);
        self.files.insert(Arc::clone(file), state);
    }

    /// Brings what the receiver holds of one object in line with the definitions there are.
    fn resolve(&mut self, key: &ObjectKey, fresh: &mut Fresh, changes: &mut Vec<Change>) {
        let live = self.live.get(key);
        let mut winner: Option<Claim> = None;
        for claim in self.claims.of(key) {
            if claim.usable {
                winner = Some(claim.clone());
                break;
            }
            // Not usable now, but its last good version is in use: that stays.
            if live.is_some_and(|live| live.file == claim.file) {
                return;
            }
        }
        let Some(winner) = winner else {
            if self.live.remove(key).is_some() {
                changes.push(Change::Delete(key.clone()));
            }
            return;
        };
        let document = self
            .files
            .get(&winner.file)
            .and_then(|state| state.documents.get(winner.document as usize));
        let Some(hash) = document.map(|document| document.hash) else {
            return;
        };
        let now = Live {
            file: Arc::clone(&winner.file),
            hash,
            line: winner.line,
        };
        let just_read = fresh.remove(key).and_then(|objects| {
            objects
                .into_iter()
                .find(|(file, document, _)| *file == winner.file && *document == winner.document)
        });
        if let Some((_, _, mut object)) = just_read {
            self.shared.share(&mut object);
            changes.push(Change::upsert(object));
            self.live.insert(key.clone(), now);
            return;
        }
        match live {
            Some(live) if live.file == now.file && live.hash == hash => {
                if live.line != now.line {
                    let origin = Origin {
                        file: winner.file.path.to_string_lossy().into(),
                        line: winner.line,
                    };
                    changes.push(Change::Relocate(key.clone(), origin));
                    self.live.insert(key.clone(), now);
                }
            }
            // A definition that was hidden until now: its content was not kept.
            _ => match self.reload(key, &winner.file, hash, winner.line) {
                Some(mut object) => {
                    self.shared.share(&mut object);
                    changes.push(Change::upsert(object));
                    self.live.insert(key.clone(), now);
                }
                None => self.reread(&winner.file),
            },
        }
    }

    /// Makes the next look read all of a file that turned out to have changed; until then it keeps what it has.
    fn reread(&mut self, file: &Arc<FileKey>) {
        if let Some(old) = self.files.remove(file) {
            self.claims.remove(file, &old);
            let state = FileState {
                retained: old.keys().cloned().collect(),
                ..FileState::default()
            };
            self.claims.add(file, &state);
            self.files.insert(Arc::clone(file), state);
        }
        self.pending.insert(file.path.clone());
    }

    /// Reads one object of a file once more.
    fn reload(&self, key: &ObjectKey, file: &FileKey, hash: u128, line: u32) -> Option<Object> {
        let bytes = read(&file.path, self.options.max_file_bytes).ok()?;
        let name: Text = file.path.to_string_lossy().into();
        let text = parse::text(&bytes, &name).ok()?;
        let documents = parse::split(text);
        let same = |document: &&parse::Document<'_>| {
            document.line <= line && xxh3_128(document.text.as_bytes()) == hash
        };
        let document = documents.iter().rev().find(same)?;
        let (_, objects) = DocumentState::read(document, hash, &name);
        objects.into_iter().find(|object| object.key == *key)
    }

    fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut all = self.unreadable_places.clone();
        all.extend(
            self.files
                .values()
                .flat_map(|state| state.diagnostics().cloned()),
        );
        for (key, claims) in self.claims.contested() {
            let origin = |claim: &Claim| Origin {
                file: claim.file.path.to_string_lossy().into(),
                line: claim.line.max(1),
            };
            // Definitions that are not usable have their own finding.
            let Some((first, others)) = claims.split_first() else {
                continue;
            };
            for claim in others.iter().filter(|claim| claim.usable) {
                all.push(
                    Diagnostic::error(
                        "duplicate-object",
                        format!("already defined at {}", origin(first)),
                        "this definition is ignored",
                    )
                    .of(key.clone())
                    .from_origin(Some(origin(claim))),
                );
            }
        }
        all.sort();
        all.dedup();
        all
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::error(
        "unreadable",
        format!("cannot be read: {error}"),
        "the last good versions of its objects stay",
    )
    .from_origin(Some(Origin {
        file: path.to_string_lossy().into(),
        line: 1,
    }))
}

/// The content of a file, if it is not too large.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut bytes = Vec::with_capacity(metadata.len().min(limit) as usize);
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let reason = format!("larger than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pilotfish_config::Snapshot;
    use pilotfish_config::Store;
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    /// The content of a file: objects as (name, content), or no file.
    type Content = Option<Vec<(u8, u8)>>;

    fn text(objects: &[(u8, u8)]) -> String {
        objects.iter().fold(String::new(), |text, (name, content)| {
            text + &format!(
                "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: o{name}}}\ndata: {{x: \"{content}\"}}\n"
            )
        })
    }

    /// Everything that a store holds and its place, as text.
    fn shown(snapshot: &Snapshot) -> Vec<String> {
        let line = |object: &Arc<Object>| {
            let origin = object.origin.as_ref().expect("a place");
            format!("{} {:?} {origin}", object.key, object.spec)
        };
        snapshot.objects.values().map(line).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// However files change, what was told step by step is what reading everything afresh gives.
        #[test]
        fn steps_add_up_to_the_whole(
            steps in prop::collection::vec(
                (0_usize..4, prop::option::weighted(0.8, prop::collection::vec((0_u8..5, 0_u8..3), 0..5))),
                1..12,
            ),
            whole in any::<bool>(),
        ) {
            let dir = TempDir::new().expect("a directory");
            let roots = vec![dir.path().to_owned()];
            let mut tree = Tree::new(roots.clone(), Options::default());
            let mut store = Store::new();
            let source = store.register("files");
            for (file, content) in steps {
                let content: Content = content;
                let path = dir.path().join(format!("{file}.yaml"));
                match &content {
                    Some(objects) => fs::write(&path, text(objects)).expect("a file"),
                    None => drop(fs::remove_file(&path)),
                }
                let look = Look {
                    everything: whole,
                    files: BTreeMap::from([(path, true)]),
                    at_once: true,
                };
                let batch = tree.look(&look).unwrap_or_default();
                let stepwise = store.apply(source, batch.changes).snapshot;
                prop_assert!(tree.pending.is_empty());

                let mut afresh = Tree::new(roots.clone(), Options::default());
                let batch = afresh.look(&Look::first()).unwrap_or_default();
                let mut other = Store::new();
                let source = other.register("files");
                let whole = other.apply(source, batch.changes).snapshot;
                prop_assert_eq!(shown(&stepwise), shown(&whole));
                prop_assert_eq!(&tree.reported, &batch.diagnostics);
            }
        }
    }
}
