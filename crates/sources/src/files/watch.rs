//! What the file system reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::tree::Look;

/// How many reported files are remembered one by one; beyond that, everything is looked at.
const MAX_REPORTED: usize = 10_000;

/// A directory that is watched.
#[derive(Debug, Clone)]
struct Root {
    /// As the user wrote it, which is how files are named.
    given: PathBuf,
    /// As events name it.
    absolute: PathBuf,
}

/// Reports of the file system about some directories, merged until they are taken.
///
/// The callback of the watcher runs on the watcher's own thread; it only adds to `reports`.
pub(super) struct Watch {
    watcher: Mutex<Watching>,
    reports: Arc<Reports>,
    roots: Vec<Root>,
    mode: RecursiveMode,
}

/// Which files matter, by their path as the user would write it.
type Filter = fn(&Path) -> bool;

#[derive(Default)]
struct Watching {
    watcher: Option<RecommendedWatcher>,
    /// Which directory each root was when it was last watched.
    watched: BTreeMap<PathBuf, (u64, u64)>,
    /// Roots whose failure was logged.
    complained: BTreeSet<PathBuf>,
}

#[derive(Default)]
struct Reports {
    look: Mutex<Look>,
    /// Roots that came or went: their watch is gone, even if the next directory of that name has the same number.
    stale: Mutex<BTreeSet<PathBuf>>,
    arrived: Notify,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Starts watching the directories and all below them for configuration files.
    pub(super) fn trees(directories: &[PathBuf]) -> Self {
        Self::new(
            directories,
            RecursiveMode::Recursive,
            super::walk::is_config,
        )
    }

    /// Starts watching the directories alone, for files of any name.
    pub(super) fn directories(directories: &[PathBuf]) -> Self {
        Self::new(directories, RecursiveMode::NonRecursive, |_| true)
    }

    /// If watching is not possible, reports simply do not come.
    fn new(directories: &[PathBuf], mode: RecursiveMode, filter: Filter) -> Self {
        let roots: Vec<Root> = directories
            .iter()
            .map(|given| Root {
                given: given.clone(),
                absolute: std::path::absolute(given).unwrap_or_else(|_| given.clone()),
            })
            .collect();
        let reports = Arc::new(Reports::default());
        let watcher = {
            let (reports, roots) = (Arc::clone(&reports), roots.clone());
            notify::recommended_watcher(move |event| reports.note(event, &roots, filter))
        };
        let watcher = watcher
            .inspect_err(
                |error| tracing::warn!(%error, "files cannot be watched, they are polled instead"),
            )
            .ok();
        let watch = Self {
            watcher: Mutex::new(Watching {
                watcher,
                ..Watching::default()
            }),
            reports,
            roots,
            mode,
        };
        watch.rearm();
        watch
    }

    /// Whether every directory is watched.
    pub(super) fn is_complete(&self) -> bool {
        let watching = lock(&self.watcher);
        self.roots
            .iter()
            .all(|root| watching.watched.contains_key(&root.absolute))
    }

    /// Waits for a report.
    pub(super) async fn changed(&self) {
        self.reports.arrived.notified().await;
    }

    /// All reports since the last call.
    pub(super) fn take(&self) -> Look {
        std::mem::take(&mut *lock(&self.reports.look))
    }

    /// Watches directories that are not watched, or that were replaced since.
    pub(super) fn rearm(&self) {
        let mut watching = lock(&self.watcher);
        let Watching {
            watcher: Some(watcher),
            watched,
            complained,
        } = &mut *watching
        else {
            return;
        };
        let stale = std::mem::take(&mut *lock(&self.reports.stale));
        for root in &self.roots {
            let path = &root.absolute;
            let identity = std::fs::metadata(path)
                .ok()
                .map(|metadata| (metadata.dev(), metadata.ino()));
            if identity.is_some() && watched.get(path) == identity.as_ref() && !stale.contains(path)
            {
                continue;
            }
            if watched.remove(path).is_some() {
                // The old directory may be gone with its watch.
                let _ = watcher.unwatch(path);
            }
            // The parent tells when the directory comes back, or another takes its name.
            // One that is itself watched with all below it must not be watched for less.
            let inside = |parent: &Path| {
                self.roots
                    .iter()
                    .any(|root| parent.starts_with(&root.absolute))
            };
            if let Some(parent) = path.parent().filter(|parent| !inside(parent)) {
                let _ = watcher.watch(parent, RecursiveMode::NonRecursive);
            }
            let Some(identity) = identity else { continue };
            match watcher.watch(path, self.mode) {
                Ok(()) => {
                    watched.insert(path.clone(), identity);
                    complained.remove(path);
                    self.reports.everything();
                }
                Err(error) if complained.insert(path.clone()) => {
                    tracing::warn!(path = %path.display(), %error, "directory cannot be watched, it is polled instead");
                }
                Err(_) => {}
            }
        }
    }
}

impl Reports {
    fn everything(&self) {
        lock(&self.look).everything = true;
        self.arrived.notify_one();
    }

    fn note(&self, event: notify::Result<Event>, roots: &[Root], filter: Filter) {
        let Ok(event) = event else {
            return self.everything();
        };
        if event.need_rescan() {
            return self.everything();
        }
        // Opening and reading are reported too, ours among them. A file that takes a name or is gone was written before.
        let (structure, ended) = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => (false, true),
            EventKind::Access(_) => return,
            EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => (true, true),
            EventKind::Modify(_) => (false, false),
            _ => (true, false),
        };
        let mut look = lock(&self.look);
        let mut relevant = false;
        for path in &event.paths {
            let Some(path) = as_given(path, roots) else {
                continue;
            };
            // A directory or a link matters when it comes, goes or changes its name; a file always does.
            if structure && roots.iter().any(|root| root.given == path) {
                lock(&self.stale).extend(event.paths.iter().cloned());
                look.everything = true;
            }
            if filter(&path) || structure {
                relevant = true;
                *look.files.entry(path).or_default() = ended;
            }
        }
        if look.files.len() > MAX_REPORTED {
            look.files.clear();
            look.everything = true;
        }
        if relevant {
            self.arrived.notify_one();
        }
    }
}

/// The path as the user would write it, if it is one of the roots or below.
fn as_given(path: &Path, roots: &[Root]) -> Option<PathBuf> {
    roots.iter().find_map(|root| {
        let rest = path.strip_prefix(&root.absolute).ok()?;
        Some(if rest.as_os_str().is_empty() {
            root.given.clone()
        } else {
            root.given.join(rest)
        })
    })
}

/// Nothing here can be left half-changed, so a lock that a panic poisoned is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
