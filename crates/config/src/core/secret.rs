//! `Secret` and `ConfigMap`.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::api;
use crate::base64::Base64;

/// A secret. Neither `Debug` nor `Serialize` shows a value: both end up in logs and on debug pages.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Secret {
    pub r#type: String,
    /// Includes `stringData`, which wins over `data`.
    pub data: BTreeMap<String, Base64>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("type", &self.r#type)
            .field("keys", &self.data.keys())
            .finish_non_exhaustive()
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let redacted: BTreeMap<&str, &str> = self
            .data
            .keys()
            .map(|key| (key.as_str(), "<redacted>"))
            .collect();
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("type", &self.r#type)?;
        map.serialize_entry("data", &redacted)?;
        map.end()
    }
}

api! {
    pub struct ConfigMap {
        pub data: BTreeMap<String, String>,
        pub binary_data: BTreeMap<String, Base64>,
    }
}
