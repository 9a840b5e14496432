//! How an object stands at its API server: what whoever writes to it must know, and translation must not.

use crate::Text;
use std::sync::Arc;

use serde_json::{Map, Value};

/// Identity, version and status of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Tells it from another of the same name.
    pub uid: Text,
    /// The resource version: changes with every write.
    pub version: u64,
    /// Changes with every write by its author.
    pub generation: i64,
    /// The group and version it was read in, such as `networking.istio.io/v1`.
    pub api_version: Text,
    /// Its status as JSON text, if it has one.
    pub status: Option<Text>,
    /// Whether it is not in effect as it is: its last good version is, or nothing.
    pub refused: bool,
}

impl Standing {
    /// What the status says; nothing if there is none, or it is no object.
    pub fn status(&self) -> Map<String, Value> {
        let text = self.status.as_deref().unwrap_or_default();
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// How all objects stand that may be written to. Cloning shares.
pub type Standings = imbl::OrdMap<crate::ObjectKey, Arc<Standing>>;
