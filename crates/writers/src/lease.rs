//! Who writes: one candidate at a time holds a Lease.
//!
//! Clocks of machines are not compared: a candidate only notices *that* the record changes, and times that by its own
//! clock. Whoever holds it believes so from the moment before the request that took or renewed it was sent, for two thirds
//! of its duration; others wait for all of it since they last saw a change. So there is never more than one, as long
//! as clocks run about equally fast.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a lease lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    duration: Duration,
}

impl Timing {
    /// Leases are measured in seconds, and of fewer than three nothing is left to renew them in.
    pub fn new(duration: Duration) -> Self {
        Self {
            duration: Duration::from_secs(duration.as_secs().clamp(3, 3600)),
        }
    }

    /// After how long without a change others may take it.
    pub fn duration(self) -> Duration {
        self.duration
    }

    /// How long its holder relies on it after a renewal.
    pub fn hold(self) -> Duration {
        self.duration * 2 / 3
    }

    /// How often it is renewed, or looked at by those who do not hold it.
    pub fn retry(self) -> Duration {
        self.duration * 2 / 15
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::new(Duration::from_secs(15))
    }
}

/// Which Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseName {
    /// The namespace of the control plane.
    pub namespace: String,
    /// One for each revision.
    pub name: String,
}

impl LeaseName {
    /// The Lease of those who write for a revision.
    pub fn of(namespace: &str, revision: &str) -> Self {
        let name = match revision {
            "" => "pilotfish-writer".to_owned(),
            revision => format!("pilotfish-writer-{revision}"),
        };
        Self {
            namespace: namespace.to_owned(),
            name,
        }
    }

    /// Where Leases of the namespace are.
    pub fn collection(&self) -> String {
        let namespace = &self.namespace;
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    }

    /// Where it is.
    pub fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }
}

/// What to ask of the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Read the Lease.
    Read,
    /// Make it.
    Create(Value),
    /// Replace it, if it still has the version that this one names.
    Replace(Value),
}

/// What the API server said.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The Lease, as it was read or written.
    Lease(Value),
    /// There is none.
    Absent,
    /// Somebody was faster.
    Conflict,
    /// Nothing, or something else.
    Failed,
}

/// Somebody who would like to write.
#[derive(Debug)]
pub struct Candidate {
    name: LeaseName,
    identity: String,
    timing: Timing,
    known: Known,
    /// The version that was last seen, and since when.
    seen: Option<(String, Instant)>,
    /// When the request was sent that last made it ours.
    ours_from: Option<Instant>,
    due: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq)]
enum Known {
    Unknown,
    Absent,
    Record(Record),
}

#[derive(Debug, Clone, PartialEq)]
struct Record {
    version: String,
    holder: String,
    duration: Duration,
    acquired: Value,
    transitions: i64,
}

impl Record {
    fn read(lease: &Value) -> Self {
        let spec = &lease["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or(0);
        Self {
            version: text(&lease["metadata"]["resourceVersion"]),
            holder: text(&spec["holderIdentity"]),
            duration: Duration::from_secs(seconds.min(3600)),
            acquired: spec["acquireTime"].clone(),
            transitions: spec["leaseTransitions"].as_i64().unwrap_or(0),
        }
    }
}

impl Candidate {
    /// Somebody who has not looked yet. No two may ever have the same identity, not even one after the other.
    pub fn new(name: LeaseName, identity: String, timing: Timing) -> Self {
        Self {
            name,
            identity,
            timing,
            known: Known::Unknown,
            seen: None,
            ours_from: None,
            due: None,
        }
    }

    /// Which Lease it is about.
    pub fn name(&self) -> &LeaseName {
        &self.name
    }

    /// Who holds it, as far as is known; empty if nobody does.
    pub fn holder(&self) -> &str {
        match &self.known {
            Known::Record(record) => &record.holder,
            _ => "",
        }
    }

    /// Until when it is surely ours, if it is.
    pub fn held_until(&self, now: Instant) -> Option<Instant> {
        let until = self.ours_from? + self.timing.hold();
        (until > now).then_some(until)
    }

    /// When the next step is due; `None` if it is now.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What to do next. `clock` is the time for people to read.
    pub fn step(&self, now: Instant, clock: &str) -> Step {
        match &self.known {
            Known::Absent => {
                Step::Create(self.lease(None, &self.identity, clock, &json!(clock), 0))
            }
            Known::Record(record) if record.holder == self.identity => {
                let (acquired, transitions) = (&record.acquired, record.transitions);
                Step::Replace(self.lease(
                    Some(&record.version),
                    &self.identity,
                    clock,
                    acquired,
                    transitions,
                ))
            }
            Known::Record(record) if self.is_free(record, now) => Step::Replace(self.lease(
                Some(&record.version),
                &self.identity,
                clock,
                &json!(clock),
                record.transitions.saturating_add(1),
            )),
            Known::Record(_) | Known::Unknown => Step::Read,
        }
    }

    fn is_free(&self, record: &Record, now: Instant) -> bool {
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        record.holder.is_empty() || now >= since + record.duration
    }

    fn lease(
        &self,
        version: Option<&str>,
        holder: &str,
        clock: &str,
        acquired: &Value,
        transitions: i64,
    ) -> Value {
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name.name, "namespace": self.name.namespace},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self.timing.duration.as_secs(),
                "acquireTime": acquired,
                "renewTime": clock,
                "leaseTransitions": transitions,
            },
        });
        if let Some(version) = version {
            lease["metadata"]["resourceVersion"] = json!(version);
        }
        lease
    }

    /// Takes in the answer to a step. `sent` is when it was asked, `chance` is between 0 and 1.
    pub fn answered(
        &mut self,
        step: &Step,
        answer: &Answer,
        sent: Instant,
        now: Instant,
        chance: f64,
    ) {
        let later = now
            + self
                .timing
                .retry()
                .mul_f64(1.0 - chance.clamp(0.0, 1.0) / 4.0);
        self.due = Some(later);
        match (step, answer) {
            (Step::Read, Answer::Lease(lease)) => {
                let record = Record::read(lease);
                if self
                    .seen
                    .as_ref()
                    .is_none_or(|(version, _)| *version != record.version)
                {
                    self.seen = Some((record.version.clone(), now));
                }
                let ours = record.holder == self.identity;
                if !ours {
                    self.ours_from = None;
                }
                if ours || self.is_free(&record, now) {
                    self.due = None;
                }
                self.known = Known::Record(record);
            }
            (Step::Create(_) | Step::Replace(_), Answer::Lease(lease)) => {
                let record = Record::read(lease);
                self.ours_from = (record.holder == self.identity).then_some(sent);
                self.seen = Some((record.version.clone(), now));
                self.known = Known::Record(record);
            }
            (Step::Read | Step::Replace(_), Answer::Absent) => {
                self.ours_from = None;
                self.known = Known::Absent;
                self.due = None;
            }
            // Who was faster is found out at once, since writing may have to stop.
            (_, Answer::Conflict) => {
                self.known = Known::Unknown;
                self.due = None;
            }
            // It is not known what became of it. Without a namespace, no Lease can be made.
            (_, Answer::Failed | Answer::Absent) => self.known = Known::Unknown,
        }
        // Somebody who reads over and over without end is slowed down all the same.
        if matches!((step, answer), (Step::Read, Answer::Conflict)) {
            self.due = Some(later);
        }
    }

    /// Stops being a candidate; what to ask so that the next need not wait.
    pub fn give_up(&mut self, clock: &str) -> Option<Step> {
        self.ours_from = None;
        let Known::Record(record) = std::mem::replace(&mut self.known, Known::Unknown) else {
            return None;
        };
        if record.holder != self.identity {
            return None;
        }
        let mut lease = self.lease(
            Some(&record.version),
            "",
            clock,
            &record.acquired,
            record.transitions,
        );
        lease["spec"]["leaseDurationSeconds"] = json!(1);
        Some(Step::Replace(lease))
    }
}

#[cfg(test)]
mod tests;
