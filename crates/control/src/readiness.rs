//! Whether the server may be sent traffic, and if not, what it waits for.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What is missing; ready when nothing is and the server is not stopping.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// With what is known of the reason.
    missing: BTreeMap<String, String>,
    stopping: bool,
}

impl Readiness {
    /// Ready once each of these is [`Readiness::done`].
    pub(crate) fn waiting_for(what: impl IntoIterator<Item = String>) -> Self {
        Self {
            state: Mutex::new(State {
                missing: what.into_iter().map(|what| (what, String::new())).collect(),
                stopping: false,
            }),
        }
    }

    /// One thing is there.
    pub(crate) fn done(&self, what: &str) {
        self.lock().missing.remove(what);
    }

    /// Says more about what is missing.
    pub(crate) fn explain(&self, what: &str, why: &str) {
        if let Some(known) = self.lock().missing.get_mut(what) {
            why.clone_into(known);
        }
    }

    /// Never ready again.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
    }

    /// `Err` says what is missing.
    pub(crate) fn check(&self) -> Result<(), String> {
        let state = self.lock();
        if state.stopping {
            return Err("stopping".to_owned());
        }
        if state.missing.is_empty() {
            return Ok(());
        }
        let shown = state.missing.iter().map(|(what, why)| match why.as_str() {
            "" => what.clone(),
            why => format!("{what} (still missing: {why})"),
        });
        Err(format!(
            "waiting for: {}",
            shown.collect::<Vec<_>>().join(", ")
        ))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_missing() {
        let readiness = Readiness::waiting_for(["b".to_owned(), "a".to_owned()]);
        assert_eq!(readiness.check(), Err("waiting for: a, b".to_owned()));
        readiness.explain("b", "c; d");
        readiness.explain("x", "y");
        readiness.done("a");
        assert_eq!(
            readiness.check(),
            Err("waiting for: b (still missing: c; d)".to_owned())
        );
        readiness.done("b");
        assert_eq!(readiness.check(), Ok(()));
        readiness.stop();
        assert_eq!(readiness.check(), Err("stopping".to_owned()));
    }
}
