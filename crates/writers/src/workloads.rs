//! Workloads outside Kubernetes: WorkloadEntries that are made for the proxies that connect, and what is known of their health.
//!
//! A [`Registrar`] is told who connects, reports and leaves, and what the store says; it says which request to make next, and
//! is told the answer. It has no clock and no network. One request an entry is under way at a time, and each that changes
//! something names the version that it was thought out for; so whatever two replicas do, nothing is undone that was not
//! seen. What is wanted follows from who is connected now, never from the order of events: who has a connection and
//! finds its entry gone, or said to be disconnected, claims it again.

mod entry;
mod shelf;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pilotfish_config::networking::{WorkloadEntry, WorkloadGroup};
use pilotfish_config::{ClusterId, Diagnostic, Kind, ObjectKey, Snapshot};
use serde_json::Value;

pub use entry::{Applicant, Claim, Identity, Report};
use entry::{Stands, since_then};
pub use shelf::Shelf;

/// An entry, by its name.
pub type Place = ObjectKey;

/// A proxy that is back so soon has never left: most reconnections cost no write.
const SETTLE: Duration = Duration::from_secs(1);
/// How often at most an entry is looked at because of what the store says, or its health is written.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// How soon a request is tried again that failed, and how long it takes at most.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_AT_MOST: Duration = Duration::from_secs(30);
/// How soon something is tried again that the server will not have.
const RETRY_REFUSED: Duration = Duration::from_mins(1);
/// Time between two removals, for the sake of the server.
const BETWEEN_REMOVALS: Duration = Duration::from_millis(50);
/// How long the pod of a replica must be gone before its entries are, in grace periods.
const MOURNING: u32 = 3;
/// How many findings are kept about proxies that were refused, and for how long.
const MOST_REFUSALS: usize = 100;
const REFUSALS_LAST: Duration = Duration::from_mins(10);
/// Names of replicas begin so.
const REPLICA: &str = "pilotfish/";

/// The time, for decisions and for others to read.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Never goes back.
    pub instant: Instant,
    /// As on the wall.
    pub clock: Timestamp,
}

/// What holds for all entries.
#[derive(Debug, Clone)]
pub struct Rules {
    instance: String,
    pod: Option<ObjectKey>,
    grace: Duration,
    longest: Option<Duration>,
}

impl Rules {
    /// Rules of a replica that runs in this pod, if it does in any; `unique` is a name that no other process has.
    pub fn new(
        namespace: &str,
        pod: Option<&str>,
        unique: &str,
        grace: Duration,
        max_connection_age: Option<Duration>,
    ) -> Self {
        Self {
            instance: match pod {
                Some(pod) => format!("{REPLICA}{namespace}/{pod}"),
                None => format!("{REPLICA}/{unique}"),
            },
            pod: pod.map(|pod| ObjectKey::new(Kind::Pod, namespace, pod)),
            grace,
            longest: max_connection_age.map(|age| age + age / 2),
        }
    }

    /// What this replica is called in entries.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// How long a proxy may be away.
    pub fn grace(&self) -> Duration {
        self.grace
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Reads the entry.
    Read,
    /// Reads the WorkloadGroup of this name.
    ReadGroup(String),
    /// Makes the entry.
    Create(Value),
    /// Says who its proxy is connected to (a merge patch).
    Claim(Value),
    /// Says that its proxy has left (a merge patch).
    Release(Value),
    /// Says how its health is (a merge patch of the status).
    Health(Value),
    /// Says that its health is not known (a merge patch of the status).
    Clear(Value),
    /// Removes it, under these conditions.
    Delete(Value),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The object as it is now; or was, before it was removed.
    Object(Value),
    /// There is none.
    Absent,
    /// It is there already, or is not as we think.
    Conflict,
    /// It is not known what became of it; and when to come again, if the server said so.
    Failed(String, Option<Duration>),
    /// The server will not have it.
    Refused(String),
}

/// A request about an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// The entry.
    pub place: Place,
    /// The group it is, or would be, made from, if that is known.
    pub group: Option<String>,
    /// What to ask.
    pub step: Step,
}

/// Why a proxy may not stand for the workload it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// What it says makes no sense.
    Invalid(String),
    /// It is somebody else.
    Denied(String),
    /// What it names does not exist.
    Missing(String),
}

impl Unfit {
    /// Why.
    pub fn reason(&self) -> &str {
        match self {
            Self::Invalid(reason) | Self::Denied(reason) | Self::Missing(reason) => reason,
        }
    }
}

/// The entry that a proxy stands for; none if there is nothing to say about it.
pub fn admit(applicant: &Applicant, snapshot: &Snapshot) -> Result<Option<Place>, Unfit> {
    let namespace = applicant.namespace.as_str();
    if namespace.is_empty() {
        return Err(Unfit::Invalid("the node names no namespace".to_owned()));
    }
    let name = applicant.entry_name().map_err(Unfit::Invalid)?;
    let place = Place::new(Kind::WorkloadEntry, namespace, name);
    let may_be = |account: &str| {
        let may = applicant.identity.may_be(namespace, account);
        may.map_err(Unfit::Denied)
    };
    let there = snapshot
        .get(&place)
        .map(|entry| (entry, entry.get::<WorkloadEntry>()));
    if let Some((entry, Some(spec))) = there {
        if matches!(applicant.claim, Claim::Entry(_)) && !Stands::of_object(entry).is_checked {
            return Ok(None);
        }
        return may_be(&spec.service_account).map(|()| Some(place));
    }
    let Claim::Group(group) = &applicant.claim else {
        let reason =
            format!("the node says that it is the workload of {place}, which does not exist");
        return Err(Unfit::Missing(reason));
    };
    let group = ObjectKey::new(Kind::WorkloadGroup, namespace, group.as_str());
    let spec = snapshot
        .get(&group)
        .and_then(|group| group.get::<WorkloadGroup>());
    let Some(spec) = spec else {
        let reason = format!("the node wants to be registered by {group}, which does not exist");
        return Err(Unfit::Missing(reason));
    };
    let account = spec
        .template
        .as_ref()
        .map(|template| template.service_account.as_str());
    may_be(account.unwrap_or_default()).map(|()| Some(place))
}

/// An entry that there is something to do about, or whose proxy is connected to this replica.
#[derive(Debug)]
struct Ward {
    applicant: Option<Applicant>,
    /// Connections of its proxy, by number.
    streams: BTreeSet<u64>,
    /// When the newest began.
    since: Timestamp,
    /// When the last ended.
    left: Timestamp,
    /// What its health check said, as long as that is not written.
    report: Option<Report>,
    /// The replica that it is said to be connected to is no more.
    orphan_of: Option<String>,
    /// What to ask next.
    step: Step,
    /// When; never if absent.
    due: Option<Instant>,
    /// An answer is waited for.
    under_way: bool,
    /// Something was told meanwhile, which is to be looked at then.
    again: Option<Instant>,
    /// When it is, or was, looked at what its health check said.
    heard: Option<Instant>,
    failures: u32,
    looked: Option<Instant>,
    trouble: Option<String>,
    /// An object that has to be there first.
    lacks: Option<ObjectKey>,
}

/// What follows from how an entry is.
enum Next {
    Do(Step),
    Wait(Duration),
    Trouble(String),
    /// An object has to be there first.
    Lack(ObjectKey),
    /// All is as it should be.
    Rest,
    /// There is nothing to do about it any more.
    Forget,
}

/// Decides what is asked about which entry. Owns nothing but what it was told.
#[derive(Debug)]
pub struct Registrar {
    rules: Rules,
    wards: BTreeMap<Place, Ward>,
    agenda: BTreeSet<(Instant, Place)>,
    /// When the next entry may be removed.
    removal: Option<Instant>,
    /// Replicas whose pods are gone, and since when.
    missing: BTreeMap<String, Instant>,
    refusals: VecDeque<(Instant, Diagnostic)>,
    stopping: bool,
}

impl Registrar {
    /// Nobody is connected.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            wards: BTreeMap::new(),
            agenda: BTreeSet::new(),
            removal: None,
            missing: BTreeMap::new(),
            refusals: VecDeque::new(),
            stopping: false,
        }
    }

    /// What holds for all entries.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The proxy of an entry has connected; [`admit`] has said which entry that is.
    pub fn connected(&mut self, place: &Place, stream: u64, applicant: Applicant, now: Now) {
        let ward = self.ward(place, now);
        ward.streams.insert(stream);
        // Later than what it replaces, even if the clock was set back.
        let after = ward
            .since
            .checked_add(Duration::from_nanos(1))
            .unwrap_or(ward.since);
        ward.since = now.clock.max(after);
        ward.applicant = Some(applicant);
        ward.orphan_of = None;
        self.wake(place, now.instant);
    }

    /// A connection has ended.
    pub fn disconnected(&mut self, place: &Place, stream: u64, now: Now) {
        let settle = if self.stopping {
            Duration::ZERO
        } else {
            SETTLE
        };
        let Some(ward) = self.wards.get_mut(place) else {
            return;
        };
        if ward.streams.remove(&stream) && ward.streams.is_empty() {
            ward.left = now.clock;
            ward.report = None;
            self.wake(place, now.instant + settle);
        }
    }

    /// The health check of an entry's proxy has said something.
    pub fn reported(&mut self, place: &Place, stream: u64, report: Report, now: Now) {
        let Some(ward) = self.wards.get_mut(place) else {
            return;
        };
        if !ward.streams.contains(&stream) {
            return;
        }
        ward.report = Some(report);
        // Who says ever more is not put off for it.
        let soonest = match ward.heard {
            Some(heard) if heard > now.instant => heard,
            Some(heard) => heard + AT_MOST_EVERY,
            None => now.instant,
        };
        // What is to be done anyway is not put off.
        let due = ward.due.unwrap_or(soonest).min(soonest).max(now.instant);
        ward.heard = Some(due);
        self.wake(place, due);
    }

    /// A proxy was refused.
    pub fn refused(&mut self, finding: Diagnostic, now: Now) {
        self.refusals.retain(|(_, other)| *other != finding);
        self.refusals.push_back((now.instant, finding));
        if self.refusals.len() > MOST_REFUSALS {
            self.refusals.pop_front();
        }
    }

    /// Compares with what the store says. Whoever leads looks after entries that nobody comes back for, too.
    pub fn observe(&mut self, snapshot: &Snapshot, leads: bool, now: Now) {
        while self
            .refusals
            .front()
            .is_some_and(|(at, _)| *at + REFUSALS_LAST < now.instant)
        {
            self.refusals.pop_front();
        }
        let lost = |(place, ward): (&Place, &Ward)| {
            let long_ago = ward
                .looked
                .is_none_or(|looked| looked + AT_MOST_EVERY <= now.instant);
            if ward.streams.is_empty() || ward.under_way || !long_ago {
                return None;
            }
            if let Some(lacks) = &ward.lacks {
                return snapshot.get(lacks).map(|_| place.clone());
            }
            let stands = snapshot.get(place).map(|entry| Stands::of_object(entry));
            let held =
                stands.is_some_and(|stands| stands.is_connected && stands.disconnected.is_none());
            (ward.due.is_none() && !held).then(|| place.clone())
        };
        let lost: Vec<Place> = self.wards.iter().filter_map(lost).collect();
        for place in lost {
            self.wake(&place, now.instant);
        }
        if self.stopping {
            return;
        }
        let sees_pods = self
            .rules
            .pod
            .as_ref()
            .is_some_and(|pod| snapshot.get(pod).is_some());
        let mut missing = BTreeSet::new();
        // What a file declares is nobody's to change, and other clusters are not written to.
        let entries = snapshot
            .in_cluster(Kind::WorkloadEntry, ClusterId::CONFIG)
            .filter(|entry| entry.origin.is_none());
        for entry in entries {
            let stands = Stands::of_object(entry);
            if stands.controller.is_empty() || self.wards.contains_key(&entry.key) {
                continue;
            }
            if stands.controller == self.rules.instance {
                // Left behind by a process before this one, or by a request that was thought to have failed.
                if stands.is_connected {
                    self.ward(&entry.key, now);
                    self.wake(&entry.key, now.instant + SETTLE);
                }
            } else if leads && stands.is_abandoned(now.clock, self.rules.grace, self.rules.longest)
            {
                if stands.made || stands.is_checked {
                    self.ward(&entry.key, now);
                    self.wake(&entry.key, now.instant);
                }
            } else if leads
                && sees_pods
                && stands.is_connected
                && self.is_gone(&stands.controller, snapshot)
            {
                missing.insert(stands.controller.clone());
                if self.is_mourned(&stands.controller, now) {
                    self.ward(&entry.key, now).orphan_of = Some(stands.controller);
                    self.wake(&entry.key, now.instant);
                }
            }
        }
        self.missing
            .retain(|controller, _| missing.contains(controller));
        for controller in missing {
            self.missing.entry(controller).or_insert(now.instant);
        }
    }

    /// Whether the pod of a replica is not there. Of others than ours, nothing is known.
    fn is_gone(&self, controller: &str, snapshot: &Snapshot) -> bool {
        let Some((namespace, pod)) = controller
            .strip_prefix(REPLICA)
            .and_then(|name| name.split_once('/'))
        else {
            return false;
        };
        let own = self.rules.pod.as_ref();
        own.is_some_and(|own| *own.namespace == *namespace)
            && snapshot
                .get(&ObjectKey::new(Kind::Pod, namespace, pod))
                .is_none()
    }

    fn is_mourned(&self, controller: &str, now: Now) -> bool {
        let time = self.rules.grace * MOURNING;
        let since = self.missing.get(controller);
        since.is_some_and(|since| *since + time <= now.instant)
    }

    /// From now on nobody is waited for: who has left is said to have left, and others clean up.
    pub fn stop(&mut self, now: Now) {
        self.stopping = true;
        let gone: Vec<Place> = self
            .wards
            .iter()
            .filter(|(_, ward)| ward.streams.is_empty())
            .map(|(place, _)| place.clone())
            .collect();
        for place in gone {
            self.wake(&place, now.instant);
        }
    }

    /// Whether nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.wards.is_empty()
    }

    /// How many entries are looked after, and how many of them have a proxy here.
    pub fn counts(&self) -> (usize, usize) {
        let here = self.wards.values().filter(|ward| !ward.streams.is_empty());
        (self.wards.len(), here.count())
    }

    /// What cannot be done.
    pub fn findings(&self) -> Vec<Diagnostic> {
        let troubled = self.wards.iter().filter_map(|(place, ward)| {
            let reason = ward.trouble.as_ref()?;
            let effect = "what is known of the workload is not written, it may be no endpoint; it is tried again";
            Some(Diagnostic::warning("workload-registration", reason.as_str(), effect).of(place.clone()))
        });
        let odd = self.wards.iter().filter_map(|(place, ward)| {
            let odd = ward.applicant.as_ref()?.odd_labels();
            let first = odd.first()?;
            let reason = format!(
                "{} labels of the proxy are not what Kubernetes takes, {first:?} for one",
                odd.len()
            );
            Some(
                Diagnostic::warning(
                    "workload-labels",
                    reason,
                    "the WorkloadEntry is made without them",
                )
                .of(place.clone()),
            )
        });
        let refused = self.refusals.iter().map(|(_, finding)| finding.clone());
        refused
            .chain(troubled.chain(odd).take(MOST_REFUSALS))
            .collect()
    }

    /// When there is something to ask.
    pub fn deadline(&self) -> Option<Instant> {
        self.agenda.first().map(|(due, _)| *due)
    }

    /// What to ask now.
    pub fn next(&mut self, now: Instant) -> Option<Order> {
        let place = self
            .agenda
            .first()
            .filter(|(due, _)| *due <= now)?
            .1
            .clone();
        self.put_off(&place, None);
        let ward = self.wards.get_mut(&place)?;
        ward.under_way = true;
        ward.again = None;
        let claim = ward.applicant.as_ref().map(|applicant| &applicant.claim);
        Some(Order {
            group: match claim {
                Some(Claim::Group(group)) => Some(group.clone()),
                _ => None,
            },
            step: std::mem::replace(&mut ward.step, Step::Read),
            place,
        })
    }

    /// Takes in the answer.
    pub fn answered(&mut self, order: &Order, answer: Answer, now: Now) {
        let place = &order.place;
        let Some(ward) = self.wards.get_mut(place) else {
            return;
        };
        ward.under_way = false;
        ward.looked = Some(now.instant);
        if !matches!(
            answer,
            Answer::Conflict | Answer::Failed(..) | Answer::Refused(_)
        ) {
            ward.failures = 0;
            ward.trouble = None;
            ward.lacks = None;
        }
        let next = match (&order.step, answer) {
            (Step::ReadGroup(_), Answer::Object(group)) => self.made_from(place, &group),
            (Step::ReadGroup(name), Answer::Absent) => Next::Lack(ObjectKey::new(
                Kind::WorkloadGroup,
                place.namespace.clone(),
                name.as_str(),
            )),
            (Step::Delete(_), Answer::Object(_))
            | (Step::Read | Step::Delete(_), Answer::Absent) => self.decide(place, None, now),
            (Step::Create(_), Answer::Absent) => {
                Next::Trouble("there is no such namespace".to_owned())
            }
            (_, Answer::Absent) => Next::Do(Step::Read),
            (_, Answer::Object(entry)) => self.decide(place, Some(&entry), now),
            (_, Answer::Conflict) => {
                // Two who want the same are soon done; those who go on are slowed down.
                let wait = self.backoff(place);
                Next::Wait(if wait > RETRY * 4 {
                    wait
                } else {
                    Duration::ZERO
                })
            }
            (_, Answer::Failed(reason, wait)) => {
                let wait = wait.unwrap_or_default().max(self.backoff(place));
                self.trouble(place, reason);
                Next::Wait(wait)
            }
            (_, Answer::Refused(reason)) => {
                self.trouble(place, reason);
                Next::Wait(RETRY_REFUSED)
            }
        };
        self.follow(place, next, now);
    }

    fn follow(&mut self, place: &Place, next: Next, now: Now) {
        let Some(ward) = self.wards.get_mut(place) else {
            return;
        };
        let (step, mut due) = match next {
            Next::Do(step) => (step, Some(now.instant)),
            Next::Wait(time) => (Step::Read, Some(now.instant + time)),
            Next::Trouble(reason) => {
                ward.trouble = Some(reason);
                let wait = self.backoff(place).max(AT_MOST_EVERY);
                (Step::Read, Some(now.instant + wait))
            }
            Next::Lack(object) => {
                ward.trouble = Some(format!("there is no {object}"));
                ward.lacks = Some(object);
                (Step::Read, Some(now.instant + RETRY_AT_MOST))
            }
            Next::Rest => (Step::Read, None),
            Next::Forget if ward.again.is_some() => (Step::Read, None),
            Next::Forget => {
                self.wards.remove(place);
                return;
            }
        };
        if matches!(step, Step::Delete(_)) {
            let soonest = self.removal.map_or(now.instant, |at| at.max(now.instant));
            self.removal = Some(soonest + BETWEEN_REMOVALS);
            due = Some(soonest);
        }
        if let Some(ward) = self.wards.get_mut(place) {
            ward.step = step;
            if let Some(again) = ward.again.take() {
                due = Some(due.map_or(again, |due| due.min(again)));
                // A step was thought out before.
                if again <= now.instant {
                    ward.step = Step::Read;
                }
            }
        }
        self.put_off(place, due);
    }

    fn decide(&mut self, place: &Place, entry: Option<&Value>, now: Now) -> Next {
        match self.wards.get(place) {
            None => Next::Forget,
            Some(ward) if ward.streams.is_empty() => self.when_gone(ward, entry, now),
            Some(ward) => {
                let next = self.while_here(place, ward, entry, now);
                if matches!(next, Next::Rest)
                    && let (Some(ward), Some(entry)) = (self.wards.get_mut(place), entry)
                    && Stands::of_json(entry).controller == self.rules.instance
                {
                    ward.report = None;
                }
                next
            }
        }
    }

    /// What follows from how an entry is whose proxy is connected here.
    fn while_here(&self, place: &Place, ward: &Ward, entry: Option<&Value>, now: Now) -> Next {
        let Some(applicant) = &ward.applicant else {
            return Next::Rest;
        };
        let Some(entry) = entry else {
            return match &applicant.claim {
                Claim::Group(group) => Next::Do(Step::ReadGroup(group.clone())),
                Claim::Entry(_) => Next::Lack(place.clone()),
            };
        };
        let account = entry["spec"]["serviceAccount"].as_str().unwrap_or_default();
        if let Err(reason) = applicant.identity.may_be(&place.namespace, account) {
            return Next::Trouble(reason);
        }
        let stands = Stands::of_json(entry);
        let ours = stands.controller == self.rules.instance;
        if !ours && stands.is_connected && stands.connected.is_some_and(|since| since > ward.since)
        {
            // It has moved on to another replica, and this one does not know yet; or clocks differ, and the other one will
            // let go.
            return Next::Rest;
        }
        let since = stands.connected.filter(|_| stands.disconnected.is_none());
        if !ours || since.is_none_or(|since| since < ward.since) {
            return Next::Do(Step::Claim(entry::claim(
                entry,
                &self.rules.instance,
                ward.since,
            )));
        }
        let status = ward
            .report
            .as_ref()
            .and_then(|report| entry::reported(entry, report));
        let soonest = ward.heard.unwrap_or(now.instant);
        match status {
            None => Next::Rest,
            Some(_) if soonest > now.instant => Next::Wait(soonest - now.instant),
            Some(status) => Next::Do(Step::Health(status)),
        }
    }

    /// What follows from how an entry is whose proxy is not connected here.
    fn when_gone(&self, ward: &Ward, entry: Option<&Value>, now: Now) -> Next {
        let Some(entry) = entry else {
            return Next::Forget;
        };
        let stands = Stands::of_json(entry);
        let orphan = stands.is_connected && ward.orphan_of.as_ref() == Some(&stands.controller);
        if orphan || stands.is_abandoned(now.clock, self.rules.grace, self.rules.longest) {
            return if stands.made {
                Next::Do(Step::Delete(entry::removal(entry)))
            } else if !stands.controller.is_empty() && entry::has_health(entry) {
                Next::Do(Step::Clear(entry::unreported(entry)))
            } else {
                Next::Forget
            };
        }
        if stands.controller != self.rules.instance {
            return Next::Forget;
        }
        if stands.is_connected {
            return Next::Do(Step::Release(entry::release(entry, ward.left)));
        }
        match stands.disconnected {
            Some(since) if !self.stopping => {
                let left = self
                    .rules
                    .grace
                    .saturating_sub(since_then(now.clock, since));
                Next::Wait(left.max(RETRY))
            }
            _ => Next::Forget,
        }
    }

    /// The entry that is to be made, if its proxy is still here.
    fn made_from(&self, place: &Place, group: &Value) -> Next {
        let ward = self
            .wards
            .get(place)
            .filter(|ward| !ward.streams.is_empty());
        let Some((ward, applicant)) = ward.and_then(|ward| Some((ward, ward.applicant.as_ref()?)))
        else {
            return Next::Do(Step::Read);
        };
        let account = group["spec"]["template"]["serviceAccount"]
            .as_str()
            .unwrap_or_default();
        if let Err(reason) = applicant.identity.may_be(&place.namespace, account) {
            return Next::Trouble(reason);
        }
        let instance = &self.rules.instance;
        let entry = applicant.entry(group, &place.name, instance, ward.since);
        Next::Do(Step::Create(entry))
    }

    fn trouble(&mut self, place: &Place, reason: String) {
        if let Some(ward) = self.wards.get_mut(place) {
            ward.trouble = Some(reason);
        }
    }

    /// How long to wait after one more failure.
    fn backoff(&mut self, place: &Place) -> Duration {
        let Some(ward) = self.wards.get_mut(place) else {
            return RETRY;
        };
        ward.failures = ward.failures.saturating_add(1);
        let doubled = RETRY.saturating_mul(1 << ward.failures.min(16));
        doubled.min(RETRY_AT_MOST)
    }

    fn ward(&mut self, place: &Place, now: Now) -> &mut Ward {
        self.wards.entry(place.clone()).or_insert_with(|| Ward {
            applicant: None,
            streams: BTreeSet::new(),
            since: Timestamp::MIN,
            left: now.clock,
            report: None,
            orphan_of: None,
            step: Step::Read,
            due: None,
            under_way: false,
            again: None,
            heard: None,
            failures: 0,
            looked: None,
            trouble: None,
            lacks: None,
        })
    }

    /// Something has changed: what was thought out is thought over, at that time.
    fn wake(&mut self, place: &Place, due: Instant) {
        let Some(ward) = self.wards.get_mut(place) else {
            return;
        };
        if ward.under_way {
            ward.again = Some(ward.again.map_or(due, |again| again.min(due)));
            return;
        }
        ward.step = Step::Read;
        self.put_off(place, Some(due));
    }

    fn put_off(&mut self, place: &Place, due: Option<Instant>) {
        let Some(ward) = self.wards.get_mut(place) else {
            return;
        };
        if let Some(before) = ward.due {
            self.agenda.remove(&(before, place.clone()));
        }
        ward.due = due;
        if let Some(due) = due {
            self.agenda.insert((due, place.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
