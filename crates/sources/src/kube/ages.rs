//! Which of two answers is newer, and when an older one is to be believed all the same.

use std::time::{Duration, Instant};

/// How long a cluster must insist on being older than it was, until it is believed to have been restored from a backup.
pub(super) const INSIST: Duration = Duration::from_mins(1);

/// What is known of the age of a kind of objects.
#[derive(Debug, Default)]
pub(super) struct Ages {
    /// The highest version that was seen.
    newest: u64,
    /// Since when every answer was older than that.
    older_since: Option<Instant>,
}

/// What to think of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As new as anything seen, or newer.
    Current,
    /// Older than what was seen: not to be used now.
    Older,
    /// Older, but it has been for so long that it is the truth.
    Restored,
}

impl Ages {
    /// The highest version that was seen.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Something of this version was applied.
    pub(super) fn saw(&mut self, version: u64) {
        self.newest = self.newest.max(version);
    }

    /// The server said that it is behind.
    pub(super) fn behind(&mut self, now: Instant) {
        self.older_since.get_or_insert(now);
    }

    /// Judges a complete list of this version. A list that is to be used becomes the new measure.
    pub(super) fn judge(&mut self, version: u64, now: Instant) -> Verdict {
        if version >= self.newest {
            self.older_since = None;
            self.newest = version;
            return Verdict::Current;
        }
        let since = *self.older_since.get_or_insert(now);
        if now.duration_since(since) < INSIST {
            return Verdict::Older;
        }
        self.older_since = None;
        self.newest = version;
        Verdict::Restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_is_believed_after_a_minute_only() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(ages.judge(100, start), Verdict::Current);
        ages.saw(120);
        assert_eq!(ages.judge(110, after(1)), Verdict::Older);
        assert_eq!(ages.judge(119, after(60)), Verdict::Older);
        assert_eq!(ages.judge(50, after(61)), Verdict::Restored);
        assert_eq!(ages.newest(), 50);
        assert_eq!(ages.judge(51, after(62)), Verdict::Current);
    }

    #[test]
    fn a_server_that_catches_up_starts_the_minute_again() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        ages.saw(100);
        ages.behind(start);
        assert_eq!(ages.judge(90, after(59)), Verdict::Older);
        assert_eq!(ages.judge(100, after(61)), Verdict::Current);
        assert_eq!(ages.judge(90, after(70)), Verdict::Older);
    }
}
