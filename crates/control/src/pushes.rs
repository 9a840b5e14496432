//! The last pushes: what caused them, what they cost and how far they got; and which objects cause the most of it.
//!
//! The writer adds pushes, the streams' tasks say what they sent because of them. Both may be first, so they meet by
//! generation, and a stream waits for no more than another stream's few additions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pilotfish_config::{ObjectKey, Snapshot};
use serde::Serialize;

use crate::fields::Touched;

/// How many pushes are remembered.
const KEPT: usize = 50;
/// Of how many generations it is known what was sent: of those pushes, and of some that are about to be added.
const DELIVERIES: usize = KEPT + 14;
/// How many objects of a push are named.
const NAMED: usize = 20;
/// How many objects are counted, in all and of one push.
const COUNTED: usize = 1000;
/// How many of those are left when the quietest are dropped.
const LEFT: usize = COUNTED / 4 * 3;

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
    /// Whether it made its generation. Otherwise nothing is sent, and the generation is that of an earlier push.
    #[serde(skip)]
    pub(crate) is_new: bool,
    #[serde(skip)]
    pub(crate) causes: Causes,
}

/// The objects behind a push.
#[derive(Debug, Clone, Default)]
pub(crate) struct Causes {
    /// Before and after, for the first of them.
    pub(crate) touched: Vec<(String, Touched)>,
    /// The keys to count by.
    counted: Arc<[ObjectKey]>,
}

impl Causes {
    /// What differs between the snapshot of the last push and that of this one.
    pub(crate) fn between(was: &Snapshot, is: &Snapshot, changed: &[ObjectKey]) -> Self {
        let settings = Touched::settings(was, is).into_iter();
        let objects = changed.iter().map(|key| {
            let touched = Touched::object(was.get(key), is.get(key));
            (key.to_string(), touched)
        });
        Self {
            touched: settings
                .map(|(name, touched)| (name.to_owned(), touched))
                .chain(objects)
                .take(NAMED)
                .collect(),
            counted: changed.iter().take(COUNTED).cloned().collect(),
        }
    }
}

impl Push {
    /// One that nobody asked for: it repairs what an audit found wrong.
    pub(crate) fn repair(time: String, generation: u64, config_version: u64) -> Self {
        Self {
            time,
            generation,
            config_version,
            events: 1,
            reasons: BTreeMap::from([("audit", 1)]),
            changed_objects: 0,
            objects: Vec::new(),
            changed_facts: 0,
            waited_ms: 0.0,
            derived_ms: 0.0,
            is_new: true,
            causes: Causes::default(),
        }
    }

    /// The names to show for these objects.
    pub(crate) fn names(changed: &[ObjectKey]) -> Vec<String> {
        changed
            .iter()
            .take(NAMED)
            .map(ToString::to_string)
            .collect()
    }
}

/// What was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Volume {
    pub(crate) responses: u64,
    pub(crate) resources: u64,
    pub(crate) removed: u64,
    pub(crate) bytes: u64,
}

impl Volume {
    fn add(&mut self, more: Self) {
        self.responses += more.responses;
        self.resources += more.resources;
        self.removed += more.removed;
        self.bytes += more.bytes;
    }
}

/// One response that brings a generation to a proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) kind: &'static str,
    /// The first to that proxy about this generation.
    pub(crate) first: bool,
    pub(crate) volume: Volume,
    /// Since the change.
    pub(crate) since: Duration,
}

/// How far a generation got.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) proxies: u64,
    pub(crate) sent: Volume,
    pub(crate) by_type: BTreeMap<&'static str, Volume>,
    pub(crate) acknowledged: u64,
    /// From the change until the last proxy was sent to, and until the last answer.
    pub(crate) last_sent: Duration,
    pub(crate) last_acknowledged: Duration,
}

/// What an object has caused, or taken part in, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Noise {
    pub(crate) pushes: u64,
    pub(crate) bytes: u64,
    pub(crate) responses: u64,
}

/// What happened since the start.
#[derive(Debug, Default)]
pub(crate) struct History {
    state: Mutex<State>,
    /// By generation, newest last. Apart from the rest, since streams wait for it.
    deliveries: Mutex<VecDeque<(u64, Delivery)>>,
}

#[derive(Debug, Default, Clone, Serialize)]
struct State {
    total: u64,
    reasons: BTreeMap<&'static str, u64>,
    #[serde(rename = "lastPushes")]
    last: VecDeque<Push>,
    /// Of pushes that are no longer remembered.
    #[serde(skip)]
    noise: BTreeMap<ObjectKey, Noise>,
}

/// Everything that is remembered.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) total: u64,
    pub(crate) reasons: BTreeMap<&'static str, u64>,
    /// Newest first, with what was sent because of it.
    pub(crate) pushes: Vec<(Push, Delivery)>,
    /// Noisiest first.
    pub(crate) noisiest: Vec<(ObjectKey, Noise)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl History {
    /// Remembers a push and forgets the oldest.
    pub(crate) fn add(&self, push: Push) {
        let mut state = lock(&self.state);
        // The first push brings everything, and is nobody's doing.
        let push = match state.total {
            0 => Push {
                causes: Causes {
                    counted: Arc::default(),
                    ..push.causes
                },
                ..push
            },
            _ => push,
        };
        state.total += 1;
        for (reason, count) in &push.reasons {
            *state.reasons.entry(reason).or_default() += count;
        }
        state.last.push_front(push);
        while state.last.len() > KEPT {
            let Some(oldest) = state.last.pop_back() else {
                break;
            };
            let delivered = self.delivered(&oldest);
            count(&mut state.noise, &oldest, &delivered);
            drop_quietest(&mut state.noise);
        }
    }

    /// A response was sent that brings this generation.
    pub(crate) fn sent(&self, generation: u64, sent: Sent) {
        self.with(generation, |delivery| {
            delivery.proxies += u64::from(sent.first);
            delivery.sent.add(sent.volume);
            delivery
                .by_type
                .entry(sent.kind)
                .or_default()
                .add(sent.volume);
            delivery.last_sent = delivery.last_sent.max(sent.since);
        });
    }

    /// A proxy accepted such a response.
    pub(crate) fn acknowledged(&self, generation: u64, since: Duration) {
        self.with(generation, |delivery| {
            delivery.acknowledged += 1;
            delivery.last_acknowledged = delivery.last_acknowledged.max(since);
        });
    }

    /// Whoever is first makes the entry. One that was forgotten is not made again.
    fn with(&self, generation: u64, change: impl FnOnce(&mut Delivery)) {
        let mut all = lock(&self.deliveries);
        let at = all.partition_point(|(of, _)| *of < generation);
        if let Some((_, delivery)) = all.get_mut(at).filter(|(of, _)| *of == generation) {
            change(delivery);
            return;
        }
        if at == 0 && all.len() >= DELIVERIES {
            return;
        }
        let mut delivery = Delivery::default();
        change(&mut delivery);
        all.insert(at, (generation, delivery));
        if all.len() > DELIVERIES {
            all.pop_front();
        }
    }

    fn delivered(&self, push: &Push) -> Delivery {
        if !push.is_new {
            return Delivery::default();
        }
        let all = lock(&self.deliveries);
        let found = all.iter().find(|(of, _)| *of == push.generation);
        found.map_or_else(Delivery::default, |(_, delivery)| delivery.clone())
    }

    /// Everything, newest first, as istiod's page has it.
    pub(crate) fn show(&self) -> impl Serialize + use<> {
        lock(&self.state).clone()
    }

    /// Everything, with what was sent.
    pub(crate) fn account(&self) -> Account {
        let State {
            total,
            reasons,
            last,
            mut noise,
        } = lock(&self.state).clone();
        let pushes: Vec<_> = last
            .into_iter()
            .map(|push| {
                let delivery = self.delivered(&push);
                (push, delivery)
            })
            .collect();
        for (push, delivery) in &pushes {
            count(&mut noise, push, delivery);
        }
        let mut noisiest: Vec<_> = noise.into_iter().collect();
        noisiest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Account {
            total,
            reasons,
            pushes,
            noisiest,
        }
    }
}

fn count(noise: &mut BTreeMap<ObjectKey, Noise>, push: &Push, delivery: &Delivery) {
    if !push.is_new {
        return;
    }
    for key in push.causes.counted.iter() {
        let of = noise.entry(key.clone()).or_default();
        of.pushes += 1;
        of.bytes += delivery.sent.bytes;
        of.responses += delivery.sent.responses;
    }
}

/// Leaves room after it has dropped, so that who is new has time to become noisy.
fn drop_quietest(noise: &mut BTreeMap<ObjectKey, Noise>) {
    if noise.len() <= COUNTED {
        return;
    }
    let mut all: Vec<_> = std::mem::take(noise).into_iter().collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    all.truncate(LEFT);
    *noise = all.into_iter().collect();
}

#[cfg(test)]
mod tests {
    use pilotfish_config::Kind;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Kind::Service, "shop", name)
    }

    fn push(generation: u64, is_new: bool, objects: &[&str]) -> Push {
        let changed: Vec<_> = objects.iter().map(|name| key(name)).collect();
        Push {
            time: String::new(),
            generation,
            config_version: generation,
            events: 1,
            reasons: BTreeMap::from([("service", 1)]),
            changed_objects: changed.len(),
            objects: Push::names(&changed),
            changed_facts: 1,
            waited_ms: 0.0,
            derived_ms: 0.0,
            is_new,
            causes: Causes {
                touched: Vec::new(),
                counted: changed.into(),
            },
        }
    }

    fn sent(kind: &'static str, first: bool, bytes: u64, millis: u64) -> Sent {
        Sent {
            kind,
            first,
            volume: Volume {
                responses: 1,
                resources: 2,
                removed: 0,
                bytes,
            },
            since: Duration::from_millis(millis),
        }
    }

    #[test]
    fn responses_count_for_their_push_whoever_was_first() {
        let history = History::default();
        history.add(push(1, true, &["a", "b"]));
        history.sent(2, sent("eds", true, 100, 3));
        history.add(push(2, true, &["a"]));
        history.sent(2, sent("rds", false, 50, 9));
        history.sent(2, sent("eds", true, 100, 5));
        history.acknowledged(2, Duration::from_millis(12));
        history.add(push(2, false, &["b"]));
        let account = history.account();
        let [(idle, nothing), (_, second), (_, first)] = &account.pushes[..] else {
            panic!("{account:?}")
        };
        assert!(!idle.is_new);
        assert_eq!(
            (nothing, first),
            (&Delivery::default(), &Delivery::default())
        );
        assert_eq!((second.proxies, second.acknowledged), (2, 1));
        assert_eq!((second.sent.responses, second.sent.bytes), (3, 250));
        assert_eq!(second.by_type["eds"].bytes, 200);
        assert_eq!(second.last_sent, Duration::from_millis(9));
        assert_eq!(second.last_acknowledged, Duration::from_millis(12));
        let noise = Noise {
            pushes: 1,
            bytes: 250,
            responses: 3,
        };
        assert_eq!(
            account.noisiest,
            [(key("a"), noise)],
            "neither the first push nor one that sent nothing counts"
        );
    }

    #[test]
    fn the_ring_is_bounded_and_nothing_that_was_counted_is_lost() {
        let history = History::default();
        history.add(push(1, true, &["first"]));
        for generation in 2..=200 {
            history.sent(generation, sent("cds", true, 10, 1));
            history.add(push(generation, true, &["busy"]));
        }
        // Too late: it is forgotten, and stays so.
        history.sent(3, sent("cds", true, 10, 1));
        assert_eq!(lock(&history.deliveries).len(), DELIVERIES);
        let account = history.account();
        assert_eq!((account.total, account.pushes.len()), (200, KEPT));
        assert!(account.pushes.iter().all(|(_, d)| d.proxies == 1));
        let noise = Noise {
            pushes: 199,
            bytes: 1990,
            responses: 199,
        };
        assert_eq!(account.noisiest, [(key("busy"), noise)]);
    }

    #[test]
    fn a_generation_that_comes_late_finds_its_place() {
        let history = History::default();
        for generation in [5, 7, 6] {
            history.sent(generation, sent("cds", true, 1, 1));
        }
        let order: Vec<_> = lock(&history.deliveries)
            .iter()
            .map(|(of, _)| *of)
            .collect();
        assert_eq!(order, [5, 6, 7]);
    }

    #[test]
    fn the_quietest_are_dropped() {
        let mut noise = BTreeMap::new();
        for index in 0..COUNTED {
            let pushes = if index % 2 == 0 { 5 } else { 1 };
            let of = Noise {
                pushes,
                ..Noise::default()
            };
            noise.insert(key(&format!("{index:04}")), of);
        }
        drop_quietest(&mut noise);
        assert_eq!(noise.len(), COUNTED);
        noise.insert(key("new"), Noise::default());
        drop_quietest(&mut noise);
        assert_eq!(noise.len(), LEFT);
        assert_eq!(
            noise.values().filter(|of| of.pushes == 5).count(),
            COUNTED / 2
        );
        assert!(!noise.contains_key(&key("new")));
    }
}
