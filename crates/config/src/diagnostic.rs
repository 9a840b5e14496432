//! What is wrong with what a user wrote, and what follows from it.

use std::fmt;

use serde::Serialize;

use crate::object::{ObjectKey, Origin};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something the user asked for is not in effect.
    Error,
    /// It is in effect, but perhaps not as meant.
    Warning,
    /// Worth knowing.
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// One finding. The order (severity, object, place, field) is that of reports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// The object, if it could be named.
    pub object: Option<ObjectKey>,
    /// The place in the file.
    pub origin: Option<Origin>,
    /// The path of the field, for instance `spec.http[0].timeout`; empty for the whole object.
    pub field: String,
    /// What is wrong with it, lowercase, without a full stop.
    pub reason: String,
    /// What the mesh does because of it.
    pub effect: String,
    /// A stable name of the kind of finding, for filters and tests.
    pub code: &'static str,
}

impl Diagnostic {
    fn new(
        severity: Severity,
        code: &'static str,
        reason: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            object: None,
            origin: None,
            field: String::new(),
            reason: reason.into(),
            effect: effect.into(),
            code,
        }
    }

    /// An error without a place yet.
    pub fn error(code: &'static str, reason: impl Into<String>, effect: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, reason, effect)
    }

    /// A warning without a place yet.
    pub fn warning(
        code: &'static str,
        reason: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Warning, code, reason, effect)
    }

    /// A remark without a place yet.
    pub fn info(code: &'static str, reason: impl Into<String>, effect: impl Into<String>) -> Self {
        Self::new(Severity::Info, code, reason, effect)
    }

    /// The same finding about `object`.
    #[must_use]
    pub fn of(mut self, object: ObjectKey) -> Self {
        self.object = Some(object);
        self
    }

    /// The same finding at `field`.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }

    /// The same finding at a place in a file.
    #[must_use]
    pub fn from_origin(mut self, origin: Option<Origin>) -> Self {
        self.origin = origin;
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.severity)?;
        if let Some(object) = &self.object {
            write!(f, " {object}")?;
        }
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        write!(f, ": {}; {}", self.reason, self.effect)?;
        if let Some(origin) = &self.origin {
            write!(f, " ({origin})")?;
        }
        Ok(())
    }
}
