//! Where objects come from: directories of YAML, a Kubernetes cluster, and later MCP.

pub mod files;
pub mod kube;
mod share;

use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use pilotfish_config::{Change, ClusterId, Diagnostic, Text};
use std::collections::BTreeMap;

/// What a source has learned since its last batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// What to apply to the store, in order.
    pub changes: Vec<Change>,
    /// Everything that is wrong with the source's input now; replaces what earlier batches said.
    pub diagnostics: Vec<Diagnostic>,
    /// The trust domains of clusters that are not the config cluster, as far as they are known; replaces what earlier batches
    /// said.
    pub trust_domains: BTreeMap<ClusterId, Text>,
    /// Whether the source has read everything there was when it started. True from the first batch on for directories.
    pub synced: bool,
    /// What it waits for, as long as it has not.
    pub waiting_for: Vec<String>,
}

/// Mesh settings that were read again. `None`: not changed, or not usable, and the last good value stays in use.
#[derive(Debug, Default)]
pub struct MeshUpdate {
    /// The mesh configuration, if it changed.
    pub mesh: Option<MeshConfig>,
    /// The networks, if they changed.
    pub networks: Option<MeshNetworks>,
    /// Everything that is wrong with the settings of this source now.
    pub diagnostics: Vec<Diagnostic>,
    /// What is waited for, as long as the settings are not known at all.
    pub waiting_for: Vec<String>,
}
