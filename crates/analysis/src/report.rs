//! Where findings go.

use std::collections::BTreeSet;

use pilotfish_config::{Diagnostic, Object};

/// The findings of one check.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) found: BTreeSet<Diagnostic>,
}

impl Report {
    /// Something the user asked for is not in effect.
    pub(crate) fn error(
        &mut self,
        (code, object, field): About<'_>,
        reason: impl Into<String>,
        effect: impl Into<String>,
    ) {
        self.add(Diagnostic::error(code, reason, effect), object, field);
    }

    /// It is in effect, but perhaps not as meant.
    pub(crate) fn warn(
        &mut self,
        (code, object, field): About<'_>,
        reason: impl Into<String>,
        effect: impl Into<String>,
    ) {
        self.add(Diagnostic::warning(code, reason, effect), object, field);
    }

    /// Worth knowing.
    pub(crate) fn note(
        &mut self,
        (code, object, field): About<'_>,
        reason: impl Into<String>,
        effect: impl Into<String>,
    ) {
        self.add(Diagnostic::info(code, reason, effect), object, field);
    }

    fn add(&mut self, diagnostic: Diagnostic, object: &Object, field: &str) {
        let whole = diagnostic.of(object.key.clone()).at(field);
        self.found.insert(whole.from_origin(object.origin.clone()));
    }
}

/// The name of the kind of finding, the object and the field it is about.
pub(crate) type About<'a> = (&'static str, &'a Object, &'a str);

/// Things in a sentence, at most a few.
pub(crate) fn listed(items: impl IntoIterator<Item = impl ToString>) -> String {
    const SHOWN: usize = 5;
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    let rest = items.len().saturating_sub(SHOWN);
    let shown = items[..items.len() - rest].join(", ");
    if rest == 0 {
        shown
    } else {
        format!("{shown} and {rest} more")
    }
}
