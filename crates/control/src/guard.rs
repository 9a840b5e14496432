//! The loss guard: a configuration that has lost most of its services at once is not pushed before the loss has lasted.
//!
//! What a person takes away stays away; what an outage takes away mostly comes back. No clock in here; callers pass the
//! time.

use std::time::Duration;

use pilotfish_config::{Diagnostic, Kind, ObjectKey, Snapshot};
use tokio::time::Instant;

/// Fewer services than this are not guarded: half of three is easily taken away on purpose.
const AT_LEAST: usize = 10;

/// The code of what is said while a push is held back.
pub(crate) const CODE: &str = "loss-guard";

/// When losses are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Losses of more than this part of all services, in percent, are held back; none are if it is 0.
    pub(crate) percent: u8,
    /// For how long.
    pub(crate) time: Duration,
}

/// How many services there were, and how many of them are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) before: usize,
    pub(crate) lost: usize,
}

/// What to do with a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Push,
    /// Not before this time, unless the services come back or somebody confirms.
    Hold(Instant),
}

impl Loss {
    /// The loss that a push of `after` would bring to proxies that have `before`; `changed` is all that differs.
    pub(crate) fn between(before: &Snapshot, after: &Snapshot, changed: &[ObjectKey]) -> Self {
        let gone = |key: &&ObjectKey| {
            declares_services(key.kind) && before.get(key).is_some() && after.get(key).is_none()
        };
        let lost = changed.iter().filter(gone).count();
        // Counting everything is worth it only if something is missing.
        let before = if lost == 0 {
            0
        } else {
            let count = |kind| before.list(kind).count();
            count(Kind::Service) + count(Kind::ServiceEntry)
        };
        Self { before, lost }
    }
}

const fn declares_services(kind: Kind) -> bool {
    matches!(kind, Kind::Service | Kind::ServiceEntry)
}

impl Guard {
    /// Whether a push that would bring this loss is made; `since` is when it was first held back.
    pub(crate) fn decide(self, loss: Loss, since: Option<Instant>, now: Instant) -> Decision {
        let most =
            loss.before >= AT_LEAST && loss.lost * 100 > loss.before * usize::from(self.percent);
        if self.percent == 0 || self.time.is_zero() || !most {
            return Decision::Push;
        }
        let until = since.unwrap_or(now) + self.time;
        if until <= now {
            Decision::Push
        } else {
            Decision::Hold(until)
        }
    }
}

/// What is said while a push is held back.
pub(crate) fn finding(loss: Loss, time: Duration) -> Diagnostic {
    Diagnostic::error(
        CODE,
        format!(
            "{} of {} services (Service and ServiceEntry objects) are gone at once",
            loss.lost, loss.before
        ),
        format!(
            "proxies keep what they have until the services are back, the loss has lasted {time:?}, or it is confirmed with \
             `pilotfish request POST /debug/loss_guard`"
        ),
    )
}

#[cfg(test)]
mod tests {
    use pilotfish_config::{Change, Store, parse};

    use super::*;

    const GUARD: Guard = Guard {
        percent: 50,
        time: Duration::from_secs(30),
    };

    fn loss(lost: usize, before: usize) -> Loss {
        Loss { before, lost }
    }

    #[test]
    fn most_of_many_is_held_back() {
        let now = Instant::now();
        let held = Decision::Hold(now + GUARD.time);
        for (lost, before, decision) in [
            (0, 100, Decision::Push),
            (50, 100, Decision::Push),
            (51, 100, held),
            (100, 100, held),
            (6, 10, held),
            (9, 9, Decision::Push),
        ] {
            assert_eq!(
                GUARD.decide(loss(lost, before), None, now),
                decision,
                "{lost} of {before}"
            );
        }
        let off = Guard {
            percent: 0,
            ..GUARD
        };
        assert_eq!(off.decide(loss(100, 100), None, now), Decision::Push);
        let off = Guard {
            time: Duration::ZERO,
            ..GUARD
        };
        assert_eq!(off.decide(loss(100, 100), None, now), Decision::Push);
        let strict = Guard {
            percent: 10,
            ..GUARD
        };
        assert_eq!(strict.decide(loss(11, 100), None, now), held);
    }

    #[test]
    fn a_loss_that_lasts_is_believed() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let decide = |seconds| GUARD.decide(loss(9, 10), Some(now), after(seconds));
        assert_eq!(decide(29), Decision::Hold(after(30)));
        assert_eq!(decide(30), Decision::Push);
    }

    #[test]
    fn only_what_is_gone_counts() {
        let mut store = Store::new();
        let source = store.register("x");
        let text: Vec<String> = (0..4)
            .map(|n| format!("{{apiVersion: v1, kind: Service, metadata: {{name: s{n}}}, spec: {{ports: [{{port: 80}}]}}}}\n"))
            .collect();
        let objects = parse::documents(&text.join("---\n"), "x").objects;
        let keys: Vec<ObjectKey> = objects.iter().map(|object| object.key.clone()).collect();
        let before = store
            .apply(source, objects.into_iter().map(Change::upsert).collect())
            .snapshot;
        let after = store
            .apply(source, vec![Change::Delete(keys[1].clone())])
            .snapshot;
        let mut changed = keys.clone();
        changed.push(ObjectKey::new(Kind::Service, "default", "never"));
        changed.push(ObjectKey::new(Kind::Pod, "default", "p"));
        assert_eq!(Loss::between(&before, &after, &changed), loss(1, 4));
        assert_eq!(Loss::between(&before, &before, &changed), loss(0, 0));
    }
}
