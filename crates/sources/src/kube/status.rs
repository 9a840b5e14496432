//! How it goes with each watch, for people and probes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

/// The state of all watches of a cluster; cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Status(Arc<Mutex<Vec<WatchStatus>>>);

/// How it goes with one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchStatus {
    /// For instance `Pod`.
    pub resource: String,
    /// How it goes.
    pub state: State,
    /// How many objects are kept.
    pub objects: usize,
    /// Since when it has been in this state.
    #[serde(skip)]
    pub since: SystemTime,
    /// Why it is in this state, if that is not as it should be.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The states of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not read yet.
    Waiting,
    /// Read and watched.
    Live,
    /// The cluster has no such resource; it will be noticed if that changes.
    Absent,
    /// We may not read it; tried again.
    Forbidden,
    /// It was read, but is not watched now; what was last known stays. Tried again.
    Down,
}

impl Status {
    /// All watches, in the order of kinds.
    pub fn watches(&self) -> Vec<WatchStatus> {
        self.lock().clone()
    }

    pub(super) fn add(&self, resource: String) -> usize {
        let mut all = self.lock();
        all.push(WatchStatus {
            resource,
            state: State::Waiting,
            objects: 0,
            since: SystemTime::now(),
            reason: String::new(),
        });
        all.len() - 1
    }

    pub(super) fn set(&self, index: usize, state: State, reason: &str, objects: usize) {
        if let Some(watch) = self.lock().get_mut(index) {
            if watch.state != state {
                watch.since = SystemTime::now();
            }
            watch.state = state;
            reason.clone_into(&mut watch.reason);
            watch.objects = objects;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<WatchStatus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
