//! Problems that show only when objects are seen together.

use pilotfish_config::Diagnostic;

use crate::World;

/// Everything that is wrong, sorted, each once.
pub(crate) fn all(_world: &World) -> Vec<Diagnostic> {
    Vec::new()
}
