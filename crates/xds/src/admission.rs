//! Admission of new streams, first come first served: at the pace at which they can be configured, and with a bound on
//! those that wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
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

/// Lets new streams start one after the other. They wait rather than being refused: a refused proxy comes back, at the cost
/// of another handshake and of a longer wait of its own choosing.
#[derive(Debug)]
pub(crate) struct Admission {
    pace: NewStreams,
    cores: u32,
    /// As many as may wait.
    places: Semaphore,
    /// Held by the stream that is next. Whoever leaves the queue lets those behind it move up.
    first: tokio::sync::Mutex<()>,
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
            places: Semaphore::new(limits.max_waiting_streams.clamp(1, Semaphore::MAX_PERMITS)),
            first: tokio::sync::Mutex::default(),
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

    /// Waits until a stream that comes now may start. None, and at once, if too many wait.
    pub(crate) async fn admit(&self) -> Option<()> {
        let _place = self.places.try_acquire().ok()?;
        let _first = self.first.lock().await;
        let at = self.next(Instant::now());
        sleep_until(at).await;
        // Not before it has started: it may leave while it sleeps.
        let mut state = self.state();
        state.next = at + self.interval(&state);
        Some(())
    }

    /// When the next stream may start; before `now` if there was a quiet time to be made up for.
    fn next(&self, now: Instant) -> Instant {
        let state = self.state();
        let burst = self.burst(self.interval(&state));
        state.next.max(now.checked_sub(burst).unwrap_or(now))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    /// A stream that comes: after how many milliseconds it starts, if it is not refused.
    fn come(admission: &Arc<Admission>, start: Instant) -> JoinHandle<Option<u128>> {
        let admission = Arc::clone(admission);
        tokio::spawn(async move {
            let started = admission.admit().await;
            started.map(|()| start.elapsed().as_millis())
        })
    }

    /// So many that come at once.
    async fn starts(admission: &Arc<Admission>, count: usize) -> Vec<Option<u128>> {
        let now = Instant::now();
        let all: Vec<_> = (0..count).map(|_| come(admission, now)).collect();
        let mut out = Vec::new();
        for stream in all {
            out.push(stream.await.expect("it does not panic"));
        }
        out
    }

    fn one_a_second() -> Arc<Admission> {
        Arc::new(Admission::new(&Limits {
            new_streams: NewStreams::PerSecond(1),
            max_waiting_streams: 2,
            ..Limits::default()
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_a_rate_then_refusal() {
        let admission = one_a_second();
        let all = starts(&admission, 13).await;
        assert_eq!(all[..10], [Some(0); 10]);
        assert_eq!(all[10..], [Some(1000), Some(2000), None]);
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(starts(&admission, 11).await[9..], [Some(0), Some(1000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_lets_those_behind_move_up() {
        let admission = one_a_second();
        let now = Instant::now();
        starts(&admission, 10).await;
        let (leaves, stays) = (come(&admission, now), come(&admission, now));
        yield_now().await;
        assert_eq!(starts(&admission, 1).await, [None], "two may wait");
        leaves.abort();
        assert!(leaves.await.is_err_and(|error| error.is_cancelled()));
        let comes = come(&admission, now);
        assert_eq!(stays.await.expect("it stays"), Some(1000));
        assert_eq!(comes.await.expect("it stays"), Some(2000));
    }

    #[tokio::test(start_paused = true)]
    async fn streams_come_as_fast_as_they_can_be_configured() {
        let admission = Arc::new(Admission::new(&Limits {
            cores: 2,
            ..Limits::default()
        }));
        let burst = MEMORY as usize;
        // 5 ms each, as guessed, on two cores; the clock of timers counts in milliseconds.
        let all = starts(&admission, burst + 2).await;
        assert_eq!(all[burst - 1..], [Some(0), Some(3), Some(5)]);
        for _ in 0..10_000 {
            admission.spent(Duration::from_millis(30), 0, true);
            admission.spent(Duration::ZERO, 10_000_000, false);
        }
        tokio::time::sleep(Duration::from_hours(1)).await;
        let all = starts(&admission, burst + 1000).await;
        assert_eq!(all[burst - 1], Some(0));
        let last = all[burst + 999].expect("nobody is refused");
        assert!((19_900..=20_100).contains(&last), "{last}");
    }
}
