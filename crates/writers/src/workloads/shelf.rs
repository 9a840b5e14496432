//! Entries in memory, for a mesh without an API server: answers as one would.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::entry::merge;
use super::{Answer, Place, Step};

/// WorkloadEntries that live as long as this process.
#[derive(Debug, Default)]
pub struct Shelf {
    entries: BTreeMap<Place, Value>,
    version: u64,
}

impl Shelf {
    /// An entry.
    pub fn get(&self, place: &Place) -> Option<&Value> {
        self.entries.get(place)
    }

    /// Carries a step out. `group` is the group of that name, if there is one.
    pub fn answer(&mut self, place: &Place, step: &Step, group: Option<Value>) -> Answer {
        let there = self.entries.get(place);
        match (step, there) {
            (Step::ReadGroup(_), _) => group.map_or(Answer::Absent, Answer::Object),
            (Step::Create(_), Some(_)) => Answer::Conflict,
            (Step::Create(entry), None) => {
                let mut entry = entry.clone();
                entry["metadata"]["uid"] = json!(format!("memory-{}", self.version));
                self.put(place, entry)
            }
            (_, None) => Answer::Absent,
            (Step::Read, Some(entry)) => Answer::Object(entry.clone()),
            (Step::Delete(options), Some(entry)) => {
                let wanted = &options["preconditions"]["resourceVersion"];
                if *wanted != entry["metadata"]["resourceVersion"] {
                    return Answer::Conflict;
                }
                self.entries
                    .remove(place)
                    .map_or(Answer::Absent, Answer::Object)
            }
            (
                Step::Claim(change)
                | Step::Release(change)
                | Step::Health(change)
                | Step::Clear(change),
                Some(entry),
            ) => {
                if change["metadata"]["resourceVersion"] != entry["metadata"]["resourceVersion"] {
                    return Answer::Conflict;
                }
                let mut entry = entry.clone();
                merge(&mut entry, change);
                self.put(place, entry)
            }
        }
    }

    fn put(&mut self, place: &Place, mut entry: Value) -> Answer {
        self.version += 1;
        entry["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.entries.insert(place.clone(), entry.clone());
        Answer::Object(entry)
    }
}
