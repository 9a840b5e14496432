//! Objects and mesh settings from files, which are watched.
//!
//! `Tree` holds what was read and decides what changed; it is plain, blocking code. [`DirectorySource::run`] is the
//! loop around it: wait for the file system to report something, let that settle, look, send.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::Batch;

mod claims;
mod document;
mod mesh;
mod tree;
mod walk;
mod watch;

pub use mesh::watch_mesh;
use tree::{Look, Tree};
use watch::Watch;

/// How files are read and watched.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long events are collected before files are read again.
    pub coalesce: Duration,
    /// How long a file that is being written may be left alone, if nobody says that writing has ended.
    pub settle: Duration,
    /// How often everything is looked at again, in case an event was lost.
    pub rescan: Duration,
    /// The same, if the file system cannot be watched.
    pub poll: Duration,
    /// Files larger than this are not read.
    pub max_file_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            coalesce: Duration::from_millis(2),
            settle: Duration::from_millis(100),
            rescan: Duration::from_secs(30),
            poll: Duration::from_secs(2),
            max_file_bytes: pilotfish_config::parse::MAX_TEXT_BYTES as u64,
        }
    }
}

/// Reads every `.yaml`, `.yml` and `.json` file below some directories.
///
/// Hidden files are skipped, links are followed, and each file is read once however many names it has. Of two objects
/// with the same key, the one in the earlier directory counts, then the one whose path sorts first.
#[derive(Debug)]
pub struct DirectorySource {
    directories: Vec<PathBuf>,
    options: Options,
}

impl DirectorySource {
    /// Fails if a directory is missing or is none.
    pub fn new(directories: Vec<PathBuf>, options: Options) -> anyhow::Result<Self> {
        for directory in &directories {
            check_directory(directory)?;
        }
        Ok(Self {
            directories,
            options,
        })
    }

    /// Everything there is now, without watching.
    pub fn read(self) -> Batch {
        let mut tree = Tree::new(self.directories, self.options);
        let mut batch = tree.look(&Look::first()).unwrap_or_default();
        batch.synced = true;
        batch
    }

    /// Reads and watches until the receiver is dropped. The first batch is everything there is.
    pub async fn run(self, batches: mpsc::Sender<Batch>) -> anyhow::Result<()> {
        let Self {
            directories,
            options,
        } = self;
        // Watching comes before reading, so that nothing falls in between.
        let watch = Watch::trees(&directories);
        let mut tree = Tree::new(directories, options.clone());
        let mut look = Look::first();
        let mut first = true;
        let mut rescan_at = Instant::now();
        loop {
            let batch;
            (tree, batch) = tokio::task::spawn_blocking(move || {
                let batch = tree.look(&look);
                (tree, batch)
            })
            .await
            .context("reading the configuration directories failed")?;
            if let Some(mut batch) = batch.or_else(|| first.then(Batch::default)) {
                batch.synced = true;
                first = false;
                let (changes, findings) = (batch.changes.len(), batch.diagnostics.len());
                tracing::debug!(changes, findings, "configuration files were read");
                if batches.send(batch).await.is_err() {
                    return Ok(());
                }
            }
            let now = Instant::now();
            if rescan_at <= now {
                let every = if watch.is_complete() {
                    options.rescan
                } else {
                    options.poll
                };
                rescan_at = now + every;
            }
            let wake_at = match tree.look_again_after() {
                Some(delay) => rescan_at.min(now + delay),
                None => rescan_at,
            };
            tokio::select! {
                () = watch.changed() => tokio::time::sleep(options.coalesce).await,
                () = tokio::time::sleep_until(wake_at) => {}
                () = batches.closed() => return Ok(()),
            }
            look = watch.take();
            if Instant::now() >= rescan_at {
                look.everything = true;
            }
            watch.rearm();
        }
    }
}

fn check_directory(directory: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    let metadata = std::fs::metadata(directory)
        .with_context(|| format!("configuration directory {shown} cannot be read"))?;
    if !metadata.is_dir() {
        bail!("configuration directory {shown} is not a directory");
    }
    std::fs::read_dir(directory)
        .with_context(|| format!("configuration directory {shown} cannot be read"))?;
    Ok(())
}
