//! Admission of new streams, first come first served: at the pace at which they can be configured, and with a bound on
//! those that wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::limits::{Limits, NewStreams};

/// What a stream is taken to cost before any was measured.
const FIRST_GUESS: Duration = Duration::from_millis(5);
/// How many measured streams the guess weighs as much as.
const GUESS_WEIGHS: u32 = 16;
/// Older measurements count half after so many new ones.
const MEMORY: u32 = 256;
/// Bytes that take about as long as they take nanoseconds to write, copy and read again.
const BYTES_A_NANOSECOND: u64 = 1;

/// Gives every new stream the time at which it may start. Streams wait rather than being refused: a refused proxy comes
/// back, at the cost of another handshake and of a longer wait of its own choosing.
#[derive(Debug)]
pub(crate) struct Admission {
    pace: NewStreams,
    cores: u32,
    most_waiting: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the next stream would start if there were no burst.
    next: Instant,
    /// What configuring new streams took, and how many there were.
    spent: Duration,
    streams: u32,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
        let now = Instant::now();
        let mut admission = Self {
            pace: limits.new_streams,
            cores: u32::try_from(limits.cores).unwrap_or(u32::MAX).max(1),
            most_waiting: u32::try_from(limits.max_waiting_streams).unwrap_or(u32::MAX),
            state: Mutex::new(State {
                next: now,
                spent: FIRST_GUESS * GUESS_WEIGHS,
                streams: GUESS_WEIGHS,
            }),
        };
        let burst = admission.burst(admission.interval(&admission.state()));
        let state = admission.state.get_mut();
        state.unwrap_or_else(PoisonError::into_inner).next = now.checked_sub(burst).unwrap_or(now);
        admission
    }

    /// When a stream that comes now may start; none if too many wait.
    pub(crate) fn slot(&self, now: Instant) -> Option<Slot<'_>> {
        let mut state = self.state();
        let interval = self.interval(&state);
        let burst = self.burst(interval);
        let at = state.next.max(now.checked_sub(burst).unwrap_or(now));
        if at > now + interval.saturating_mul(self.most_waiting) {
            return None;
        }
        state.next = at + interval;
        Some(Slot {
            admission: self,
            at: at.max(now),
            interval,
        })
    }

    /// A new stream was sent something: what that took. `first`: for the first time.
    pub(crate) fn spent(&self, took: Duration, bytes: usize, first: bool) {
        let mut state = self.state();
        state.spent += took + Duration::from_nanos(bytes as u64 / BYTES_A_NANOSECOND);
        state.streams += u32::from(first);
        if state.streams >= 2 * MEMORY {
            state.streams /= 2;
            state.spent /= 2;
        }
    }

    /// Time between two streams: what one costs, shared by the cores.
    fn interval(&self, state: &State) -> Duration {
        match self.pace {
            NewStreams::PerSecond(rate) => Duration::from_secs(1) / rate.max(1),
            NewStreams::AsTheyCost => state.spent / state.streams.max(1) / self.cores,
        }
    }

    /// How far a quiet time may be made up for.
    fn burst(&self, interval: Duration) -> Duration {
        let streams = match self.pace {
            NewStreams::PerSecond(rate) => rate.saturating_mul(10),
            NewStreams::AsTheyCost => MEMORY,
        };
        interval.saturating_mul(streams.saturating_sub(1))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time at which a stream may start. Whoever leaves before it gives it back: clients that come and go must not make
/// those wait who stay.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    admission: &'a Admission,
    at: Instant,
    /// What the next stream waits longer because of this one.
    interval: Duration,
}

impl Slot<'_> {
    /// Waits for it.
    pub(crate) async fn comes(self) {
        sleep_until(self.at).await;
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if Instant::now() < self.at {
            let mut state = self.admission.state();
            state.next = state.next.checked_sub(self.interval).unwrap_or(state.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(admission: &Admission, now: Instant, n: usize) -> Vec<Option<Slot<'_>>> {
        (0..n).map(|_| admission.slot(now)).collect()
    }

    /// How many milliseconds each waits.
    fn waits(slots: &[Option<Slot<'_>>], now: Instant) -> Vec<Option<u128>> {
        let wait = |slot: &Option<Slot<'_>>| slot.as_ref().map(|s| (s.at - now).as_millis());
        slots.iter().map(wait).collect()
    }

    #[test]
    fn a_burst_then_a_rate_then_refusal() {
        let limits = Limits {
            new_streams: NewStreams::PerSecond(1),
            max_waiting_streams: 2,
            ..Limits::default()
        };
        let now = Instant::now() + Duration::from_mins(1);
        let admission = Admission::new(&limits);
        let slots = slots(&admission, now, 13);
        let all = waits(&slots, now);
        assert_eq!(all[..10], [Some(0); 10]);
        assert_eq!(all[10..], [Some(1000), Some(2000), None]);
        let later = now + Duration::from_mins(1);
        assert_eq!(admission.slot(later).map(|s| s.at), Some(later));
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_before_its_time_gives_it_back() {
        let limits = Limits {
            new_streams: NewStreams::PerSecond(1),
            max_waiting_streams: 2,
            ..Limits::default()
        };
        let admission = Admission::new(&limits);
        let start = Instant::now();
        let burst = slots(&admission, start, 10);
        let (leaves, stays) = (admission.slot(start), admission.slot(start));
        assert!(admission.slot(start).is_none(), "two may wait");
        drop((leaves, burst));
        let next = slots(&admission, start, 2);
        assert_eq!(
            waits(&next, start),
            [Some(2000), None],
            "the burst had come"
        );
        drop(next);
        stays.expect("the second of two").comes().await;
        let next = slots(&admission, Instant::now(), 2);
        let used = [Some(2000), Some(3000)];
        assert_eq!(waits(&next, start), used, "it has used its own");
    }

    #[test]
    fn streams_come_as_fast_as_they_can_be_configured() {
        let limits = Limits {
            cores: 2,
            ..Limits::default()
        };
        let now = Instant::now() + Duration::from_mins(1);
        let admission = Admission::new(&limits);
        let burst = MEMORY as usize;
        // 5 ms each, as guessed, on two cores.
        let slots_then = slots(&admission, now, burst + 2);
        let all = waits(&slots_then, now);
        assert_eq!(all[burst - 1..], [Some(0), Some(2), Some(5)]);
        for _ in 0..10_000 {
            admission.spent(Duration::from_millis(30), 0, true);
            admission.spent(Duration::ZERO, 10_000_000, false);
        }
        let now = now + Duration::from_hours(1);
        let slots_now = slots(&admission, now, burst + 1000);
        let all = waits(&slots_now, now);
        assert_eq!(all[burst - 1], Some(0));
        let last = all[burst + 999].expect("nobody is refused");
        assert!((19_900..=20_100).contains(&last), "{last}");
    }
}
