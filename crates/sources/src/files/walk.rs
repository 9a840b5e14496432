//! Which files there are.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A file by its place: the order is that in which definitions count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileKey {
    /// Which of the directories it is below.
    pub(super) root: usize,
    pub(super) path: PathBuf,
}

/// What tells whether a file may have changed, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    device: u64,
    inode: u64,
    size: u64,
    modified: i128,
    changed: i128,
}

impl Stat {
    pub(super) fn of(metadata: &Metadata) -> Self {
        let nanos = |secs: i64, nanos: i64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: nanos(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanos(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether the content was changed less than `within` ago.
    pub(super) fn is_recent(&self, within: Duration) -> bool {
        #[expect(clippy::disallowed_methods, reason = "sources may read the clock")]
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanos = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
        let age = nanos(now.unwrap_or_default()) - self.modified;
        (0..nanos(within)).contains(&age)
    }

    fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Whether both are of one and the same file.
    pub(super) fn same_file(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: BTreeMap<Arc<FileKey>, Stat>,
    /// Some file has several names, or may have: links were followed.
    pub(super) linked: bool,
    /// Places that could not be looked into: what is known to be there is kept.
    pub(super) unreadable: Vec<(FileKey, io::Error)>,
}

impl Found {
    /// Whether a file that was not found may still be there.
    pub(super) fn may_hide(&self, file: &FileKey) -> bool {
        self.unreadable
            .iter()
            .any(|(place, _)| place.root == file.root && file.path.starts_with(&place.path))
    }
}

/// Whether a file of that name is configuration.
pub(super) fn is_config(path: &Path) -> bool {
    let visible = path.file_name().is_some_and(|name| !is_hidden(name));
    let extension = path.extension().and_then(|extension| extension.to_str());
    visible
        && extension.is_some_and(|extension| {
            ["yaml", "yml", "json"]
                .iter()
                .any(|known| extension.eq_ignore_ascii_case(known))
        })
}

/// Whether a walk of the root would take the file for configuration.
pub(super) fn is_config_below(path: &Path, root: &Path) -> bool {
    let below = path.strip_prefix(root).unwrap_or(path);
    is_config(path) && !below.iter().any(is_hidden)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// All configuration files below the directories.
pub(super) fn walk(roots: &[PathBuf]) -> Found {
    let mut walker = Walker::default();
    for (root, path) in roots.iter().enumerate() {
        walker.found.linked |= path.is_symlink();
        walker.directory(root, path, true);
    }
    walker.found
}

#[derive(Default)]
struct Walker {
    found: Found,
    /// Directories that were entered, so that a link back up ends the walk there.
    directories: BTreeSet<(u64, u64)>,
    /// Files that were seen, so that one with several names is read once.
    files: BTreeSet<(u64, u64)>,
}

impl Walker {
    fn directory(&mut self, root: usize, path: &Path, is_root: bool) {
        match self.try_directory(root, path) {
            Ok(()) => {}
            // Below a root, gone is gone. A root that is gone is more likely a mount in trouble than a wish.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_root => {}
            Err(error) => self.unreadable(root, path, error),
        }
    }

    fn unreadable(&mut self, root: usize, path: &Path, error: io::Error) {
        let place = FileKey {
            root,
            path: path.to_owned(),
        };
        self.found.unreadable.push((place, error));
    }

    fn try_directory(&mut self, root: usize, path: &Path) -> io::Result<()> {
        let identity = Stat::of(&std::fs::metadata(path)?).identity();
        if !self.directories.insert(identity) {
            self.found.linked = true;
            return Ok(());
        }
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            self.found.linked |= entry.file_type()?.is_symlink();
            entries.push(entry.path());
        }
        // Sorted here, so that the name that counts does not depend on the file system.
        entries.sort();
        for path in entries {
            if path.file_name().is_none_or(is_hidden) {
                continue;
            }
            let metadata = match std::fs::metadata(&path) {
                Ok(metadata) => metadata,
                // Deleted meanwhile, or a link to nowhere.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    if is_config(&path) {
                        self.unreadable(root, &path, error);
                    }
                    continue;
                }
            };
            if metadata.is_dir() {
                self.directory(root, &path, false);
            } else if metadata.is_file() && is_config(&path) {
                let stat = Stat::of(&metadata);
                self.found.linked |= metadata.nlink() > 1;
                if self.files.insert(stat.identity()) {
                    self.found
                        .files
                        .insert(Arc::new(FileKey { root, path }), stat);
                }
            }
        }
        Ok(())
    }
}
