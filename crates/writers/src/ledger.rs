//! What is written next, and what follows from a failure. Owned by whoever writes, and begun anew with every lease.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pilotfish_config::{Diagnostic, Kind, ObjectKey, Standing, Standings};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Form, Part, Wanted};

/// Writes a second, and how many may come at once after a quiet time.
const RATE: f64 = 50.0;
const BURST: f64 = 50.0;
/// The same for Events, of which too many are worse than none.
const EVENT_RATE: f64 = 0.2;
const EVENT_BURST: f64 = 25.0;
/// Waits after failures.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// How long nothing is written that we may not write.
const FORBIDDEN_FOR: Duration = Duration::from_mins(5);
/// How long is waited before something is written again that somebody else undid; twice as long each time.
const OVERRULED_WAIT: Duration = Duration::from_secs(5);
/// How often somebody may undo it before that is said.
const OVERRULED_OFTEN: u32 = 3;
/// How long is remembered what was written.
const REMEMBERED_FOR: Duration = Duration::from_mins(15);
/// How many refused writes are named in findings.
const NAMED: usize = 10;

/// Why a write failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The object is not as we think; for an Event, it is there already.
    Conflict,
    /// There is no such object.
    Absent,
    /// We may not.
    Forbidden(String),
    /// It will never be taken.
    Invalid(String),
    /// Not now, but perhaps after this time.
    Failed(String, Option<Duration>),
}

/// What names a write: those of one name replace each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    part: Part,
    object: ObjectKey,
    event: String,
}

/// A write that is to be made now.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    id: Id,
    content: u64,
    /// By which writer.
    pub part: Part,
    /// About which object.
    pub object: ObjectKey,
    /// What to send.
    pub body: Value,
    /// The group and version that the object is in.
    pub api_version: String,
}

#[derive(Debug)]
struct Entry {
    form: Form,
    content: u64,
    standing: std::sync::Arc<Standing>,
    failures: u32,
    /// What the server said against it.
    refused: Option<String>,
    not_before: Instant,
}

/// Something that was written.
#[derive(Debug)]
struct Written {
    content: u64,
    /// The version that the object had afterwards; zero for Events.
    version: u64,
    at: Instant,
    /// How often the same was written.
    times: u32,
}

/// What is to be written, what was, and what may not be.
#[derive(Debug)]
pub struct Ledger {
    open: BTreeMap<Id, Entry>,
    written: BTreeMap<Id, Written>,
    /// Versions that our own writes led to and that were not seen yet.
    versions: BTreeMap<ObjectKey, u64>,
    forbidden: BTreeMap<(Part, Kind), (Instant, String)>,
    tokens: Bucket,
    event_tokens: Bucket,
}

/// Lets through so many a second.
#[derive(Debug)]
struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: f64, burst: f64, at: Instant) -> Self {
        Self {
            rate,
            burst,
            tokens: burst,
            at,
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        self.at = now;
    }

    /// When there will be one.
    fn ready(&self) -> Instant {
        let missing = (1.0 - self.tokens).max(0.0) / self.rate;
        // A hair longer, so that it is there for sure.
        self.at + Duration::from_secs_f64(missing + 1e-3)
    }
}

impl Ledger {
    /// Nothing to write, nothing written.
    pub fn new(now: Instant) -> Self {
        Self {
            open: BTreeMap::new(),
            written: BTreeMap::new(),
            versions: BTreeMap::new(),
            forbidden: BTreeMap::new(),
            tokens: Bucket::full(RATE, BURST, now),
            event_tokens: Bucket::full(EVENT_RATE, EVENT_BURST, now),
        }
    }

    /// Takes in what is wanted and not there, as objects stand now. Replaces what was wanted before.
    pub fn plan(&mut self, wanted: Vec<Wanted>, standings: &Standings, now: Instant) {
        self.written
            .retain(|_, written| now.saturating_duration_since(written.at) < REMEMBERED_FOR);
        self.versions.retain(|key, version| {
            standings
                .get(key)
                .is_some_and(|standing| standing.version < *version)
        });
        let mut before = std::mem::take(&mut self.open);
        for Wanted { part, object, form } in wanted {
            let Some(standing) = standings.get(&object).cloned() else {
                continue;
            };
            let (event, content) = match &form {
                Form::Status(fields) => (String::new(), fingerprint(fields)),
                Form::Event(name, _) => (name.clone(), 0),
            };
            let id = Id {
                part,
                object,
                event,
            };
            let mut entry = Entry {
                form,
                content,
                standing,
                failures: 0,
                refused: None,
                not_before: now,
            };
            if let Some(written) = self.written.get_mut(&id)
                && written.content == content
            {
                // An Event is made once, for as long as it holds.
                if id.part == Part::Events {
                    written.at = now;
                    continue;
                }
                // A status that was written is on its way back to us.
                if entry.standing.version < written.version {
                    continue;
                }
                let doubled = OVERRULED_WAIT.saturating_mul(1 << written.times.min(8));
                entry.not_before = written.at + doubled;
            }
            if let Some(before) = before.remove(&id)
                && before.content == content
                && before.standing.version == entry.standing.version
            {
                entry = Entry {
                    standing: entry.standing,
                    form: entry.form,
                    ..before
                };
            }
            self.open.insert(id, entry);
        }
    }

    /// How many writes are wanted and not made.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Something to write now, if there is. It stays open until [`Ledger::done`] or [`Ledger::failed`] is told of it.
    pub fn next(&mut self, now: Instant) -> Option<Order> {
        self.forbidden.retain(|_, (until, _)| *until > now);
        self.tokens.refill(now);
        self.event_tokens.refill(now);
        if self.tokens.tokens < 1.0 {
            return None;
        }
        let events = self.event_tokens.tokens >= 1.0;
        let (id, entry) = self.open.iter().find(|(id, entry)| {
            entry.not_before <= now && (events || id.part != Part::Events) && !self.is_forbidden(id)
        })?;
        self.tokens.tokens -= 1.0;
        if id.part == Part::Events {
            self.event_tokens.tokens -= 1.0;
        }
        let standing = &entry.standing;
        let body = match &entry.form {
            Form::Status(fields) => {
                // What we wrote ourselves since is as good as seen.
                let ours = self.versions.get(&id.object).copied().unwrap_or(0);
                json!({
                    "apiVersion": &*standing.api_version,
                    "kind": id.object.kind.as_str(),
                    "metadata": {
                        "name": &*id.object.name,
                        "namespace": &*id.object.namespace,
                        "uid": &*standing.uid,
                        "resourceVersion": standing.version.max(ours).to_string(),
                    },
                    "status": fields,
                })
            }
            Form::Event(_, event) => event.clone(),
        };
        Some(Order {
            part: id.part,
            object: id.object.clone(),
            body,
            api_version: standing.api_version.to_string(),
            content: entry.content,
            id: id.clone(),
        })
    }

    fn is_forbidden(&self, id: &Id) -> bool {
        self.forbidden.contains_key(&forbidden_key(id))
    }

    /// When there may be something to write next, if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        let due = |(id, entry): (&Id, &Entry)| {
            let allowed = self.forbidden.get(&forbidden_key(id));
            let bucket = match id.part {
                Part::Events => self.event_tokens.ready().max(self.tokens.ready()),
                _ => self.tokens.ready(),
            };
            let allowed = allowed.map_or(entry.not_before, |(until, _)| *until);
            allowed.max(entry.not_before).max(bucket)
        };
        self.open.iter().map(due).min()
    }

    /// It was written, and the object is of this version now.
    pub fn done(&mut self, order: &Order, version: u64, now: Instant) {
        self.close(order);
        self.forbidden.remove(&forbidden_key(&order.id));
        let is_event = order.part == Part::Events;
        if !is_event {
            self.versions.insert(order.object.clone(), version);
        }
        let before = self.written.get(&order.id);
        let times = before
            .filter(|before| before.content == order.content)
            .map_or(1, |before| before.times.saturating_add(1));
        let written = Written {
            content: order.content,
            version: if is_event { 0 } else { version },
            at: now,
            times,
        };
        self.written.insert(order.id.clone(), written);
    }

    /// It was not written.
    pub fn failed(&mut self, order: &Order, failure: &Failure, now: Instant) {
        match failure {
            Failure::Conflict if order.part == Part::Events => return self.done(order, 0, now),
            Failure::Forbidden(reason) => {
                let until = now + FORBIDDEN_FOR;
                self.forbidden
                    .insert(forbidden_key(&order.id), (until, reason.clone()));
            }
            _ => {}
        }
        let Some(entry) = self.open.get_mut(&order.id) else {
            return;
        };
        let wait = FIRST_WAIT
            .saturating_mul(1 << entry.failures.min(16))
            .min(LONGEST_WAIT);
        entry.failures = entry.failures.saturating_add(1);
        entry.not_before = now
            + match failure {
                // Whatever changed it is on its way to us, and leads to a new plan.
                Failure::Conflict | Failure::Absent | Failure::Forbidden(_) => wait,
                Failure::Invalid(reason) => {
                    entry.refused = Some(reason.clone());
                    LONGEST_WAIT
                }
                Failure::Failed(_, asked) => asked.unwrap_or_default().max(wait),
            };
    }

    fn close(&mut self, order: &Order) {
        let same = |entry: &Entry| entry.content == order.content;
        if self.open.get(&order.id).is_some_and(same) {
            self.open.remove(&order.id);
        }
    }

    /// What cannot be written, and why.
    pub fn findings(&self) -> Vec<Diagnostic> {
        let forbidden = self.forbidden.iter().map(|((part, kind), (_, reason))| {
            let what = match part {
                Part::Events => "Events".to_owned(),
                _ => format!("the status of {}", kind.plural()),
            };
            let reason = format!("{what} may not be written: {reason}");
            let effect = format!("{}; it is tried again", part.effect());
            Diagnostic::warning("write-forbidden", reason, effect)
        });
        let refused = self.open.iter().filter_map(|(id, entry)| {
            let reason = format!(
                "its {} cannot be written: {}",
                id.part,
                entry.refused.as_ref()?
            );
            let finding = Diagnostic::warning("write-refused", reason, id.part.effect());
            Some(finding.of(id.object.clone()))
        });
        let overruled = self.open.keys().filter_map(|id| {
            let written = self.written.get(id)?;
            let reason = "somebody else keeps changing what is written to its status";
            let effect = "it is written ever more seldom";
            (written.times > OVERRULED_OFTEN).then(|| {
                Diagnostic::warning("write-overruled", reason, effect).of(id.object.clone())
            })
        });
        forbidden
            .chain(refused.take(NAMED))
            .chain(overruled.take(NAMED))
            .collect()
    }
}

/// Rights are given by kind of object; Events have one of their own.
fn forbidden_key(id: &Id) -> (Part, Kind) {
    match id.part {
        Part::Events => (id.part, Kind::Namespace),
        _ => (id.part, id.object.kind),
    }
}

/// Tells contents apart. When a condition changed is no content: it is said anew until it is written.
fn fingerprint(fields: &BTreeMap<&'static str, Value>) -> u64 {
    let mut fields = json!(fields);
    let conditions = fields.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if let Some(condition) = condition.as_object_mut() {
            condition.remove("lastTransitionTime");
        }
    }
    xxh3_64(fields.to_string().as_bytes())
}

#[cfg(test)]
mod tests;
