//! How a text is compared with what a user wrote.

use serde::{Deserialize, Serialize};

/// A comparison; `Any` (nothing set) asks only that the text is present.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize, Serialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub enum StringMatch {
    /// Nothing was set.
    #[default]
    Any,
    /// The whole text.
    Exact(String),
    /// The beginning of the text.
    Prefix(String),
    /// An RE2 expression for the whole text.
    Regex(String),
}

#[derive(Deserialize, Serialize)]
struct Wire {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exact: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    regex: Option<String>,
}

impl TryFrom<Wire> for StringMatch {
    type Error = &'static str;

    fn try_from(wire: Wire) -> Result<Self, Self::Error> {
        match (wire.exact, wire.prefix, wire.regex) {
            (None, None, None) => Ok(Self::Any),
            (Some(text), None, None) => Ok(Self::Exact(text)),
            (None, Some(text), None) => Ok(Self::Prefix(text)),
            (None, None, Some(text)) => Ok(Self::Regex(text)),
            _ => Err("only one of exact, prefix, regex may be set"),
        }
    }
}

impl From<StringMatch> for Wire {
    fn from(value: StringMatch) -> Self {
        let mut wire = Self {
            exact: None,
            prefix: None,
            regex: None,
        };
        match value {
            StringMatch::Any => {}
            StringMatch::Exact(text) => wire.exact = Some(text),
            StringMatch::Prefix(text) => wire.prefix = Some(text),
            StringMatch::Regex(text) => wire.regex = Some(text),
        }
        wire
    }
}
