//! Admission of new streams: a steady rate, first come first served, and a bound on those that wait.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::Limits;

/// Gives every new stream the time at which it may start. Streams wait rather than being refused: a refused proxy comes
/// back, at the cost of another handshake and of a longer wait of its own choosing.
#[derive(Debug)]
pub(crate) struct Admission {
    interval: Duration,
    burst: Duration,
    longest_wait: Duration,
    /// When the next stream would start if there were no burst.
    next: Mutex<Instant>,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
        let interval = Duration::from_secs(1) / limits.new_streams_per_second.max(1);
        let waiting = u32::try_from(limits.max_waiting_streams).unwrap_or(u32::MAX);
        let burst = interval.saturating_mul(limits.new_streams_burst.saturating_sub(1));
        let now = Instant::now();
        Self {
            interval,
            burst,
            longest_wait: interval.saturating_mul(waiting),
            next: Mutex::new(now.checked_sub(burst).unwrap_or(now)),
        }
    }

    /// When a stream that comes now may start; none if too many wait.
    pub(crate) fn slot(&self, now: Instant) -> Option<Instant> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(self.burst).unwrap_or(now);
        let slot = (*next).max(earliest);
        if slot > now + self.longest_wait {
            return None;
        }
        *next = slot + self.interval;
        Some(slot.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_a_rate_then_refusal() {
        let limits = Limits {
            new_streams_per_second: 10,
            new_streams_burst: 3,
            max_waiting_streams: 2,
            ..Limits::default()
        };
        let now = Instant::now() + Duration::from_secs(10);
        let admission = Admission::new(&limits);
        let waits: Vec<_> = (0..6)
            .map(|_| admission.slot(now).map(|at| at - now))
            .collect();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(waits, [ms(0), ms(0), ms(0), ms(100), ms(200), None]);
        let later = now + Duration::from_secs(5);
        assert_eq!(admission.slot(later), Some(later));
    }
}
