//! Objects and mesh settings from files, which are watched.

use std::path::PathBuf;
use std::time::Duration;

use pilotfish_config::Diagnostic;
use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use tokio::sync::mpsc;

use crate::Batch;

/// How directories are read and watched.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long events are collected before files are read again.
    pub coalesce: Duration,
    /// How often everything is looked at again, in case an event was lost.
    pub rescan: Duration,
    /// Files larger than this are not read.
    pub max_file_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            coalesce: Duration::from_millis(10),
            rescan: Duration::from_secs(30),
            max_file_bytes: 64 << 20,
        }
    }
}

/// Reads every `.yaml`, `.yml` and `.json` file below some directories.
#[derive(Debug)]
pub struct DirectorySource {}

impl DirectorySource {
    /// Fails if a directory is missing or is none.
    pub fn new(directories: Vec<PathBuf>, options: Options) -> anyhow::Result<Self> {
        let _ = (directories, options);
        todo!()
    }

    /// Reads and watches until the receiver is dropped. The first batch is everything there is.
    pub async fn run(self, batches: mpsc::Sender<Batch>) -> anyhow::Result<()> {
        let _ = batches;
        todo!()
    }
}

/// Mesh settings that were read again. `None`: never read well, the last good value stays in use.
#[derive(Debug, Default)]
pub struct MeshUpdate {
    /// The mesh configuration, if it changed.
    pub mesh: Option<MeshConfig>,
    /// The networks, if they changed.
    pub networks: Option<MeshNetworks>,
    /// Everything that is wrong with the two files now.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads and watches the mesh settings until the receiver is dropped. The first update is sent at once.
pub async fn watch_mesh(
    mesh: Option<PathBuf>,
    networks: Option<PathBuf>,
    options: Options,
    updates: mpsc::Sender<MeshUpdate>,
) -> anyhow::Result<()> {
    let _ = (mesh, networks, options, updates);
    todo!()
}
