//! From text to objects. Never fails: what cannot be read becomes a diagnostic.

use crate::diagnostic::Diagnostic;
use crate::mesh::{MeshConfig, MeshNetworks};
use crate::object::Object;

/// What a text holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parsed {
    /// The usable objects, in the order they were written.
    pub objects: Vec<Object>,
    /// What is wrong with the rest.
    pub diagnostics: Vec<Diagnostic>,
}

/// All objects of a YAML or JSON text of any number of documents.
pub fn documents(text: &str, file: &str) -> Parsed {
    let _ = (text, file);
    todo!()
}

/// A mesh configuration laid over [`MeshConfig::standard`]; `None` if the text is unusable.
pub fn mesh_config(text: &str, file: &str) -> (Option<MeshConfig>, Vec<Diagnostic>) {
    let _ = (text, file);
    todo!()
}

/// The networks of a mesh; `None` if the text is unusable.
pub fn mesh_networks(text: &str, file: &str) -> (Option<MeshNetworks>, Vec<Diagnostic>) {
    let _ = (text, file);
    todo!()
}
