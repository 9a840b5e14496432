//! The last pushes, for `/debug/push_status`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// How many pushes are remembered.
const KEPT: usize = 50;
/// How many objects of a push are named.
const NAMED: usize = 20;

/// One push.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Push {
    pub(crate) time: String,
    pub(crate) generation: u64,
    /// Version of the snapshot it was made from.
    pub(crate) config_version: u64,
    /// Changes merged into it.
    pub(crate) events: u64,
    pub(crate) reasons: BTreeMap<&'static str, u64>,
    /// Objects that differ, and the first of them by name.
    pub(crate) changed_objects: usize,
    pub(crate) objects: Vec<String>,
    /// Facts about the mesh whose value changed because of them; none: nothing had to be sent.
    pub(crate) changed_facts: usize,
    /// From the first change until the push was ready to be sent.
    pub(crate) waited_ms: f64,
    /// Of that, the time to derive the state of the mesh.
    pub(crate) derived_ms: f64,
}

impl Push {
    /// The names to show for these objects.
    pub(crate) fn names(changed: &[pilotfish_config::ObjectKey]) -> Vec<String> {
        changed
            .iter()
            .take(NAMED)
            .map(ToString::to_string)
            .collect()
    }
}

/// What happened since the start.
#[derive(Debug, Default)]
pub(crate) struct History {
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone, Serialize)]
struct State {
    total: u64,
    reasons: BTreeMap<&'static str, u64>,
    #[serde(rename = "lastPushes")]
    last: VecDeque<Push>,
}

impl History {
    /// Remembers a push and forgets the oldest.
    pub(crate) fn add(&self, push: Push) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.total += 1;
        for (reason, count) in &push.reasons {
            *state.reasons.entry(reason).or_default() += count;
        }
        state.last.push_front(push);
        state.last.truncate(KEPT);
    }

    /// Everything, newest first.
    pub(crate) fn show(&self) -> impl Serialize + use<> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
