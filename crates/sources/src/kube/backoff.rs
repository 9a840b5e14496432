//! How long to wait before the next attempt.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(250);
/// The longest wait, before chance is added.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// Waits that double, and differ between those who failed together.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next wait; `chance` is between 0 and 1.
    pub(super) fn next(&mut self, chance: f64) -> Duration {
        let wait = FIRST
            .saturating_mul(1 << self.failures.min(16))
            .min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        // From half the wait to all of it, so that it never exceeds what was promised.
        wait.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// Something worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_again() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(1.0), FIRST);
        assert_eq!(backoff.next(0.0), FIRST);
        assert_eq!(backoff.next(1.0), FIRST * 4);
        for _ in 0..100 {
            assert!(backoff.next(1.0) <= LONGEST);
        }
        assert_eq!(backoff.next(1.0), LONGEST);
        backoff.reset();
        assert_eq!(backoff.next(1.0), FIRST);
    }
}
