//! What istiod's admission webhook refuses: rules that the types alone do not express.

use crate::finding::Finding;
use crate::mesh::{MeshConfig, MeshNetworks};
use crate::object::Object;

/// What is wrong with an object whose fields have the right types.
pub(crate) fn object(object: &Object) -> Vec<Finding> {
    let _ = object;
    Vec::new()
}

/// What is wrong with a mesh configuration, defaults included.
pub(crate) fn mesh_config(mesh: &MeshConfig) -> Vec<Finding> {
    let _ = mesh;
    Vec::new()
}

/// What is wrong with the networks.
pub(crate) fn mesh_networks(networks: &MeshNetworks) -> Vec<Finding> {
    let _ = networks;
    Vec::new()
}
