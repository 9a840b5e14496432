//! Whether the server may be sent traffic, and if not, what it waits for.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// What is missing; ready when nothing is and the server is not stopping.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    missing: BTreeSet<String>,
    stopping: bool,
}

impl Readiness {
    /// Ready once each of these is [`Readiness::done`].
    pub(crate) fn waiting_for(what: impl IntoIterator<Item = String>) -> Self {
        Self {
            state: Mutex::new(State {
                missing: what.into_iter().collect(),
                stopping: false,
            }),
        }
    }

    /// One thing is there.
    pub(crate) fn done(&self, what: &str) {
        self.lock().missing.remove(what);
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
        Err(format!(
            "waiting for: {}",
            state
                .missing
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
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
        readiness.done("a");
        readiness.done("b");
        assert_eq!(readiness.check(), Ok(()));
        readiness.stop();
        assert_eq!(readiness.check(), Err("stopping".to_owned()));
    }
}
