//! When a change is pushed: the first after a quiet time almost at once, more that follow when they pause, or when they
//! have waited long enough. No clock in here; callers pass the time.

use std::collections::BTreeMap;

use pilotfish_config::{Kind, ObjectKey};
use tokio::time::Instant;

use crate::settings::Debounce;

/// Why a push happens; the names are those of `pilot_push_triggers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reason {
    Endpoint,
    Config,
    Service,
    Secret,
    Namespace,
    Networks,
    Global,
    Debug,
}

impl Reason {
    /// The reason for a push after an object of this kind changed.
    pub(crate) const fn of(kind: Kind) -> Self {
        match kind {
            Kind::EndpointSlice
            | Kind::Endpoints
            | Kind::Pod
            | Kind::Node
            | Kind::WorkloadEntry => Self::Endpoint,
            Kind::Service | Kind::ServiceEntry => Self::Service,
            Kind::Secret => Self::Secret,
            Kind::Namespace => Self::Namespace,
            _ => Self::Config,
        }
    }

    /// The label.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Config => "config",
            Self::Service => "service",
            Self::Secret => "secret",
            Self::Namespace => "namespace",
            Self::Networks => "networks",
            Self::Global => "global",
            Self::Debug => "debug",
        }
    }
}

/// What is to be pushed, and why. Requests that wait merge into one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Request {
    /// Objects that changed, each once.
    pub(crate) changed: Vec<ObjectKey>,
    /// How many changes there were of each sort.
    pub(crate) reasons: BTreeMap<Reason, u64>,
}

impl Request {
    /// A request for these objects.
    pub(crate) fn of(changed: Vec<ObjectKey>) -> Self {
        let mut reasons = BTreeMap::new();
        for key in &changed {
            *reasons.entry(Reason::of(key.kind)).or_default() += 1;
        }
        Self { changed, reasons }
    }

    /// A request that no object is the reason for.
    pub(crate) fn because(reason: Reason) -> Self {
        Self {
            changed: Vec::new(),
            reasons: BTreeMap::from([(reason, 1)]),
        }
    }

    /// Whether nothing but endpoints changed.
    pub(crate) fn endpoints_only(&self) -> bool {
        self.reasons
            .keys()
            .all(|reason| *reason == Reason::Endpoint)
    }

    fn merge(&mut self, other: Self) {
        self.changed.extend(other.changed);
        self.changed.sort_unstable();
        self.changed.dedup();
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }
}

/// A request that has waited long enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) request: Request,
    /// When the first of the merged changes came.
    pub(crate) since: Instant,
    /// How many were merged.
    pub(crate) events: u64,
}

impl Due {
    /// Both, as one.
    pub(crate) fn and(mut self, later: Self) -> Self {
        self.request.merge(later.request);
        self.events += later.events;
        self.since = self.since.min(later.since);
        self
    }
}

#[derive(Debug)]
struct Waiting {
    due: Due,
    last: Instant,
    /// When it is due at the latest.
    latest: Instant,
    at_once: bool,
}

/// Merges requests until they are due. Owned by the one task that pushes.
#[derive(Debug)]
pub(crate) struct Debouncer {
    settings: Debounce,
    waiting: Option<Waiting>,
    /// When something last came or was taken.
    active: Option<Instant>,
}

impl Debouncer {
    /// A debouncer with nothing in it.
    pub(crate) const fn new(settings: Debounce) -> Self {
        Self {
            settings,
            waiting: None,
            active: None,
        }
    }

    /// Adds a request. The first after a quiet time waits only for those that come with it. With endpoints not debounced,
    /// one for endpoints alone is due at once, and takes with it whatever waits: the snapshot it is answered from holds
    /// those changes too.
    pub(crate) fn add(&mut self, request: Request, now: Instant) {
        let at_once = !self.settings.endpoints && request.endpoints_only();
        let quiet = self
            .active
            .is_none_or(|active| active + self.settings.after <= now);
        // A first wait as long as every other is no exception: quiet is waited for, as istiod does.
        let wait = if quiet && self.settings.first < self.settings.after {
            self.settings.first
        } else {
            self.settings.max
        };
        let waiting = self.waiting.get_or_insert_with(|| Waiting {
            due: Due {
                request: Request::default(),
                since: now,
                events: 0,
            },
            last: now,
            latest: now + wait,
            at_once: false,
        });
        waiting.due.request.merge(request);
        waiting.due.events += 1;
        waiting.last = now;
        self.active = Some(now);
        waiting.at_once |= at_once;
    }

    /// When what waits is due, unless more comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.as_ref()?;
        if waiting.at_once {
            return Some(waiting.due.since);
        }
        Some((waiting.last + self.settings.after).min(waiting.latest))
    }

    /// Takes what is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Due> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.active = Some(now);
        self.drain()
    }

    /// Takes what waits, due or not.
    pub(crate) fn drain(&mut self) -> Option<Due> {
        self.waiting.take().map(|waiting| waiting.due)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn debouncer(endpoints: bool) -> Debouncer {
        Debouncer::new(Debounce {
            first: Duration::from_millis(5),
            after: Duration::from_millis(100),
            max: Duration::from_secs(1),
            endpoints,
        })
    }

    fn change(kind: Kind, name: &str) -> Request {
        Request::of(vec![ObjectKey::new(kind, "ns", name)])
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A debouncer that has just let something through.
    fn busy(endpoints: bool, now: Instant) -> Debouncer {
        let mut busy = debouncer(endpoints);
        busy.add(change(Kind::Service, "z"), now - ms(5));
        assert!(busy.take(now).is_some());
        busy
    }

    #[test]
    fn the_first_change_goes_out_almost_at_once() {
        let (mut debouncer, start) = (debouncer(true), Instant::now());
        debouncer.add(change(Kind::Service, "a"), start);
        debouncer.add(change(Kind::Service, "b"), start + ms(4));
        assert_eq!(debouncer.take(start + ms(4)), None);
        assert_eq!(debouncer.take(start + ms(5)).unwrap().events, 2);
        // Those that follow are a burst.
        debouncer.add(change(Kind::Service, "a"), start + ms(50));
        assert_eq!(debouncer.deadline(), Some(start + ms(150)));
        assert!(debouncer.take(start + ms(150)).is_some());
        debouncer.add(change(Kind::Service, "a"), start + ms(250));
        assert_eq!(debouncer.deadline(), Some(start + ms(255)));
    }

    #[test]
    fn a_push_waits_for_quiet() {
        let start = Instant::now();
        let mut debouncer = busy(true, start);
        assert_eq!(debouncer.deadline(), None);
        debouncer.add(change(Kind::Service, "a"), start);
        debouncer.add(change(Kind::EndpointSlice, "a"), start + ms(60));
        assert_eq!(debouncer.take(start + ms(159)), None);
        let due = debouncer.take(start + ms(160)).unwrap();
        assert_eq!((due.since, due.events), (start, 2));
        assert_eq!(
            due.request.reasons,
            BTreeMap::from([(Reason::Endpoint, 1), (Reason::Service, 1)])
        );
        assert_eq!(debouncer.take(start + ms(9999)), None);
    }

    #[test]
    fn but_not_for_ever() {
        let start = Instant::now();
        let mut debouncer = busy(true, start);
        for i in 0..20 {
            debouncer.add(change(Kind::VirtualService, "a"), start + ms(i * 50));
        }
        assert_eq!(debouncer.deadline(), Some(start + ms(1000)));
        let due = debouncer.take(start + ms(1000)).unwrap();
        assert_eq!(due.request.changed.len(), 1, "one object is listed once");
        assert_eq!(due.request.reasons[&Reason::Config], 20);
    }

    #[test]
    fn endpoints_need_not_wait() {
        let start = Instant::now();
        let mut debouncer = busy(false, start);
        debouncer.add(change(Kind::VirtualService, "a"), start);
        assert_eq!(debouncer.take(start), None);
        debouncer.add(change(Kind::Endpoints, "b"), start + ms(1));
        assert_eq!(
            debouncer.take(start + ms(1)).unwrap().request.changed.len(),
            2
        );
        debouncer.add(Request::because(Reason::Global), start);
        assert_eq!(debouncer.take(start), None);
    }
}
