//! Drives the targets in an ordinary build: inputs from a seed, mutated without knowing what they reach.
//!
//! libFuzzer finds more in an hour; this finds what a change breaks grossly, and needs no build of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{documents, mutations, requests};

/// An input may take this long: far more than any should, far less than a build waits.
const STUCK: Duration = Duration::from_mins(1);
/// As much stack as a main thread has, where libFuzzer runs its inputs.
const STACK: usize = 8 << 20;
const LOOK: Duration = Duration::from_millis(100);

/// A function that must stand any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As libFuzzer's target of the same function is called.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// Makes the next input of one before it.
    next: fn(&mut Random, &mut Vec<u8>),
}

/// All of them.
pub const TARGETS: [Target; 3] = [
    Target {
        name: "documents",
        run: documents::run,
        next: next_document,
    },
    Target {
        name: "mutations",
        run: mutations::run,
        next: next_choices,
    },
    Target {
        name: "requests",
        run: requests::run,
        next: next_choices,
    },
];

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// So many inputs were run, and all was well.
    Fine(u64),
    /// This input, the last of so many, panicked or did not end.
    Failed(u64, Vec<u8>),
}

/// A small generator (SplitMix64): the same seed gives the same inputs on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, sides: usize) -> usize {
        (self.next() % sides.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// The inputs of a target, one after the other.
#[derive(Clone, Debug)]
struct Inputs {
    target: Target,
    random: Random,
    current: Vec<u8>,
}

impl Inputs {
    fn new(target: Target, seed: u64) -> Self {
        // Targets share a seed, but not their luck.
        let salt = target.name.bytes().map(u64::from).sum::<u64>();
        Self {
            target,
            random: Random::new(seed ^ salt << 32),
            current: Vec::new(),
        }
    }

    fn advance(&mut self) -> &[u8] {
        (self.target.next)(&mut self.random, &mut self.current);
        &self.current
    }
}

/// Larger documents than this only take longer.
const MOST_TEXT: usize = 4096;
const MOST_CHOICES: usize = 400;

/// A document that becomes worse with each step, until a new one is begun.
fn next_document(random: &mut Random, input: &mut Vec<u8>) {
    if input.len() > MOST_TEXT / 2 || random.below(12) == 0 {
        input.clear();
    }
    for _ in 0..=random.below(4) {
        let size = input.len();
        let seed = random.next() as u32;
        input.resize(MOST_TEXT, 0);
        let luck = random.next();
        let size = documents::mutate(input, size, MOST_TEXT, seed, |data, size, most| {
            let mut bytes = data[..size].to_vec();
            disturb(&mut Random::new(luck), &mut bytes);
            let size = bytes.len().min(most);
            data[..size].copy_from_slice(&bytes[..size]);
            size
        });
        input.truncate(size);
    }
}

/// New choices, or some of the old ones changed.
fn next_choices(random: &mut Random, input: &mut Vec<u8>) {
    if input.is_empty() || random.below(4) == 0 {
        // Short ones are more frequent: what they do is easier to understand.
        let most = 1 + random.below(MOST_CHOICES);
        let length = random.below(most);
        *input = (0..length).map(|_| random.byte()).collect();
    } else {
        for _ in 0..=random.below(4) {
            disturb(random, input);
        }
        input.truncate(MOST_CHOICES);
    }
}

/// Changes some bytes as a fuzzer that knows nothing does.
fn disturb(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.below(bytes.len() + 1);
    match random.below(6) {
        0 => bytes.insert(at, random.byte()),
        1 if at < bytes.len() => {
            let end = bytes.len().min(at + 1 + random.below(16));
            bytes.drain(at..end);
        }
        2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        3 if at < bytes.len() => bytes[at] = random.byte(),
        4 if at < bytes.len() => {
            // A part once more, somewhere else.
            let end = bytes.len().min(at + 1 + random.below(64));
            let part = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, part);
        }
        _ => {
            let to = bytes.len().min(at + random.below(8));
            for byte in &mut bytes[at..to] {
                *byte = random.byte();
            }
        }
    }
}

/// What is being run, and since when.
struct Running {
    input: Vec<u8>,
    number: u64,
    since: Instant,
    is_over: bool,
}

/// Runs inputs of a target for some time. A panic ends it; so does an input that does not end, whose thread is left behind.
pub fn drive(target: Target, seed: u64, time: Duration) -> Outcome {
    drive_until(target, seed, time, STUCK)
}

fn drive_until(target: Target, seed: u64, time: Duration, stuck: Duration) -> Outcome {
    let running = Arc::new(Mutex::new(Running {
        input: Vec::new(),
        number: 0,
        since: Instant::now(),
        is_over: false,
    }));
    let shared = Arc::clone(&running);
    let worker = std::thread::Builder::new()
        .name(target.name.to_owned())
        .stack_size(STACK)
        .spawn(move || {
            let mut inputs = Inputs::new(target, seed);
            let mut fine = true;
            // The first input also pays for what all of them share, so that it does not count.
            let mut begin: Option<Instant> = None;
            while fine && begin.is_none_or(|begin| begin.elapsed() < time) {
                let input = inputs.advance();
                {
                    let mut running = lock(&shared);
                    running.input.clear();
                    running.input.extend_from_slice(input);
                    running.number += 1;
                    running.since = Instant::now();
                }
                fine = catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_ok();
                begin = begin.or_else(|| Some(Instant::now()));
            }
            lock(&shared).is_over = true;
            fine
        });
    let Ok(worker) = worker else {
        return Outcome::Failed(0, Vec::new());
    };
    loop {
        std::thread::sleep(LOOK.min(time));
        let running = lock(&running);
        if running.is_over {
            let (number, input) = (running.number, running.input.clone());
            drop(running);
            return match worker.join() {
                Ok(true) => Outcome::Fine(number),
                _ => Outcome::Failed(number, input),
            };
        }
        if running.since.elapsed() > stuck {
            eprintln!("{}: an input takes more than {stuck:?}", target.name);
            return Outcome::Failed(running.number, running.input.clone());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(200);

    fn target(run: fn(&[u8])) -> Target {
        Target { run, ..TARGETS[2] }
    }

    #[test]
    fn a_seed_gives_the_same_inputs_and_another_gives_others() {
        for target in TARGETS {
            let inputs = |seed| -> Vec<Vec<u8>> {
                let mut inputs = Inputs::new(target, seed);
                (0..200).map(|_| inputs.advance().to_vec()).collect()
            };
            assert_eq!(inputs(1), inputs(1), "{}", target.name);
            assert_ne!(inputs(1), inputs(2), "{}", target.name);
        }
    }

    #[test]
    fn inputs_differ_and_stay_small() {
        for target in TARGETS {
            let mut inputs = Inputs::new(target, 7);
            let all: std::collections::BTreeSet<Vec<u8>> =
                (0..1000).map(|_| inputs.advance().to_vec()).collect();
            assert!(all.len() > 800, "{}: {} differ", target.name, all.len());
            assert!(all.iter().all(|input| input.len() <= MOST_TEXT));
        }
    }

    #[test]
    fn documents_are_mostly_made_of_good_ones() {
        let mut inputs = Inputs::new(TARGETS[0], 7);
        let with_kind = |input: &[u8]| String::from_utf8_lossy(input).contains("kind:");
        let count = (0..1000).filter(|_| with_kind(inputs.advance())).count();
        assert!(count > 300, "{count} of 1000 have a kind");
    }

    #[test]
    fn a_panic_is_a_failure_with_its_input() {
        let panics = target(|input| assert!(input.len() < 100, "too long"));
        let Outcome::Failed(number, input) = drive(panics, 3, MOMENT * 50) else {
            panic!("nothing was found");
        };
        assert!(number > 1 && input.len() >= 100);
        let again = drive(panics, 3, MOMENT * 50);
        assert_eq!(again, Outcome::Failed(number, input), "a seed repeats it");
    }

    #[test]
    fn an_input_that_does_not_end_is_a_failure() {
        let hangs = target(|_| std::thread::sleep(Duration::from_secs(5)));
        let outcome = drive_until(hangs, 3, MOMENT, MOMENT);
        assert!(matches!(outcome, Outcome::Failed(1, _)), "{outcome:?}");
    }

    #[test]
    fn good_targets_are_fine() {
        let outcome = drive(target(|_| {}), 3, MOMENT);
        assert!(matches!(outcome, Outcome::Fine(number) if number > 100));
    }
}
