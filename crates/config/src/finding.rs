//! Findings while a document is read, before they have a file and a line.

use std::fmt::Display;

use crate::diagnostic::Severity;
use crate::parse::path::Segment;

/// What follows when an object cannot be used.
pub(crate) const OBJECT_REFUSED: &str = "the object is not used; its last good version stays";
/// What follows from a field that nobody reads.
pub(crate) const FIELD_IGNORED: &str = "the field is ignored";

/// A diagnostic in the making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) code: &'static str,
    pub(crate) path: Vec<Segment>,
    pub(crate) reason: String,
    pub(crate) effect: String,
}

/// Collects findings about one value, and knows where in it we are.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    path: Vec<Segment>,
    findings: Vec<Finding>,
}

impl Checker {
    /// Starts inside the field `root`.
    pub(crate) fn at_root(root: &str) -> Self {
        Self {
            path: vec![Segment::Key(root.to_owned())],
            findings: Vec::new(),
        }
    }

    /// Starts at the top of the document.
    pub(crate) fn at_top() -> Self {
        Self::default()
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    fn push(&mut self, severity: Severity, code: &'static str, reason: impl Display, effect: &str) {
        self.findings.push(Finding {
            severity,
            code,
            path: self.path.clone(),
            reason: reason.to_string(),
            effect: effect.to_owned(),
        });
    }

    /// The object cannot be used because of this.
    pub(crate) fn error(&mut self, reason: impl Display) {
        self.push(Severity::Error, "invalid", reason, OBJECT_REFUSED);
    }

    /// The object is used, but this is probably not what was meant.
    pub(crate) fn warn(&mut self, reason: impl Display, effect: &str) {
        self.push(Severity::Warning, "doubtful", reason, effect);
    }

    /// The same under a name of its own, for filters.
    pub(crate) fn warn_as(&mut self, code: &'static str, reason: impl Display, effect: &str) {
        self.push(Severity::Warning, code, reason, effect);
    }

    /// The object is used as it is written; somebody may have meant something else.
    pub(crate) fn note(&mut self, code: &'static str, reason: impl Display, effect: &str) {
        self.push(Severity::Info, code, reason, effect);
    }

    /// An error about the field `name`, if `wrong`.
    pub(crate) fn error_if(&mut self, wrong: bool, name: &str, reason: impl Display) {
        if wrong {
            self.field(name, |check| check.error(reason));
        }
    }

    /// The error of a check of the field `name`, if there is one.
    pub(crate) fn result(&mut self, name: &str, result: Result<(), impl Display>) {
        if let Err(reason) = result {
            self.field(name, |check| check.error(reason));
        }
    }

    /// Goes into the field `name`.
    pub(crate) fn field<R>(&mut self, name: &str, inside: impl FnOnce(&mut Self) -> R) -> R {
        self.path.push(Segment::Key(name.to_owned()));
        let result = inside(self);
        self.path.pop();
        result
    }

    /// Goes into the field `name` if it is set.
    pub(crate) fn some<T>(
        &mut self,
        name: &str,
        value: Option<&T>,
        inside: impl FnOnce(&mut Self, &T),
    ) {
        if let Some(value) = value {
            self.field(name, |check| inside(check, value));
        }
    }

    /// Goes into one element of a list.
    pub(crate) fn index<R>(&mut self, index: usize, inside: impl FnOnce(&mut Self) -> R) -> R {
        self.path.push(Segment::Index(index));
        let result = inside(self);
        self.path.pop();
        result
    }

    /// Goes into every element of the list `name`.
    pub(crate) fn each<T>(
        &mut self,
        name: &str,
        items: &[T],
        mut inside: impl FnMut(&mut Self, &T),
    ) {
        if items.is_empty() {
            return;
        }
        self.field(name, |check| {
            for (index, item) in items.iter().enumerate() {
                check.index(index, |check| inside(check, item));
            }
        });
    }

    /// Goes into every entry of the map `name`.
    pub(crate) fn entries<'m, K: Display + 'm, V: 'm>(
        &mut self,
        name: &str,
        map: impl IntoIterator<Item = (&'m K, &'m V)>,
        mut inside: impl FnMut(&mut Self, &K, &V),
    ) {
        let mut map = map.into_iter().peekable();
        if map.peek().is_none() {
            return;
        }
        self.field(name, |check| {
            for (key, value) in map {
                check.field(&key.to_string(), |check| inside(check, key, value));
            }
        });
    }
}
