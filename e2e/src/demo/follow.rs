//! Does traffic follow what was written, and how soon?

use std::time::{Duration, Instant};

use pilotfish_e2e::load::Load;

/// Answers looked at, and how far their share may be off: three standard deviations of a fair draw.
const SAMPLE: usize = 60;
const TOLERANCE: f64 = 0.2;

/// The weight that is written now, and how the ones before fared.
#[derive(Debug)]
pub(crate) struct Follow {
    weight: u32,
    since: Instant,
    after: Option<Duration>,
    delays: Vec<Duration>,
    lost: usize,
}

impl Follow {
    pub(crate) fn new(weight: u32) -> Self {
        Self {
            weight,
            since: Instant::now(),
            after: None,
            delays: Vec::new(),
            lost: 0,
        }
    }

    /// A new weight was written just now.
    pub(crate) fn change(&mut self, weight: u32) {
        match self.after {
            Some(delay) => self.delays.push(delay),
            None => self.lost += 1,
        }
        (self.weight, self.since, self.after) = (weight, Instant::now(), None);
    }

    /// No more weights come. The last one counts only if it had its time.
    pub(crate) fn finish(&mut self) {
        self.delays.extend(self.after.take());
    }

    /// Looks at the last answers.
    pub(crate) fn look(&mut self, load: &Load) {
        let wanted = f64::from(self.weight) / 100.0;
        let share = load.share("v2", SAMPLE, self.since);
        if self.after.is_none() && share.is_some_and(|share| (share - wanted).abs() <= TOLERANCE) {
            self.after = Some(self.since.elapsed());
        }
    }

    /// The share of v2 in the YAML, in percent.
    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    /// When it was written.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// How long traffic took to follow it, if it has.
    pub(crate) fn after(&self) -> Option<Duration> {
        self.after
    }

    /// Weights that were given their time.
    pub(crate) fn settled(&self) -> usize {
        self.delays.len() + self.lost
    }

    /// Those of them that traffic never showed.
    pub(crate) fn lost(&self) -> usize {
        self.lost
    }

    /// The longest time that traffic took to follow.
    pub(crate) fn slowest(&self) -> Option<Duration> {
        self.delays.iter().max().copied()
    }
}
