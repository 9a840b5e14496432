//! Where objects come from: directories of YAML, and later Kubernetes and MCP.

pub mod files;

use pilotfish_config::{Change, Diagnostic};

/// What a source has learned since its last batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// What to apply to the store, in order.
    pub changes: Vec<Change>,
    /// Everything that is wrong with the source's input now; replaces what earlier batches said.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether the source has read everything there was when it started. True from the first batch on for directories.
    pub synced: bool,
}
