//! Choices made by bytes. A zero always chooses the plainest, so that a failing case shrinks to a plain one.

/// A sequence of rolls; zeros once it is used up.
pub(crate) struct Dice<'a> {
    rolls: std::slice::Iter<'a, u8>,
}

impl<'a> Dice<'a> {
    pub(crate) fn new(rolls: &'a [u8]) -> Self {
        Self {
            rolls: rolls.iter(),
        }
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        usize::from(self.rolls.next().copied().unwrap_or(0)) % sides
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.roll(n) == n - 1
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())].clone()
    }

    /// Some of the values, at least one, in order.
    pub(crate) fn some<T: Copy>(&mut self, from: &[T]) -> Vec<T> {
        let mask = self.roll((1 << from.len()) - 1) + 1;
        let chosen = from.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1);
        chosen.map(|(_, value)| *value).collect()
    }
}
