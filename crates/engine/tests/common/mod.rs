//! What the property tests share: meshes made of dice rolls, proxies of every sort, and a bench that applies changes.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests; each uses a part of this module and may read the environment"
)]

pub(crate) mod bench;
pub(crate) mod dice;
pub(crate) mod edits;
pub(crate) mod envoy;
pub(crate) mod kubernetes;
pub(crate) mod networking;
pub(crate) mod proxies;
pub(crate) mod resource;
pub(crate) mod settings;

use proptest::prelude::*;
use proptest::test_runner::Config;

use dice::Dice;

/// How many cases to try: few in CI, as many as `PROPTEST_CASES` says elsewhere. Failing cases are printed as YAML, which
/// is more use than a file of seeds.
pub(crate) fn cases(default: u32) -> Config {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    Config {
        cases: asked.unwrap_or(default),
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Config::default()
    }
}

/// One object as text. Its identity comes from a small pool, so that two of them often have the same name, and what one
/// refers to often exists.
#[derive(Clone)]
pub(crate) struct Text(pub(crate) String);

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\n---\n{}", self.0.trim_end())
    }
}

type Maker = fn(&mut Dice<'_>) -> String;

/// Kinds with how often each is made.
const KINDS: [(u8, Maker); 12] = [
    (16, kubernetes::service),
    (10, kubernetes::slice),
    (8, kubernetes::pod),
    (2, kubernetes::node),
    (2, kubernetes::namespace),
    (10, networking::service_entry),
    (5, networking::workload_entry),
    (12, networking::destination_rule),
    (14, networking::virtual_service),
    (8, networking::gateway),
    (3, kubernetes::secret),
    (6, networking::sidecar),
];

/// An object from rolled dice.
pub(crate) fn object_of(rolls: &[u8]) -> Text {
    let mut dice = Dice::new(rolls);
    let total: u8 = KINDS.iter().map(|(weight, _)| weight).sum();
    let mut at = dice.roll(usize::from(total));
    for (weight, make) in KINDS {
        match at.checked_sub(usize::from(weight)) {
            Some(rest) => at = rest,
            None => return Text(make(&mut dice)),
        }
    }
    unreachable!("the roll is below the sum of the weights")
}

/// Any object.
pub(crate) fn object() -> impl Strategy<Value = Text> {
    proptest::collection::vec(any::<u8>(), 40).prop_map(|rolls| object_of(&rolls))
}

/// A small mesh.
pub(crate) fn mesh(most: usize) -> impl Strategy<Value = Vec<Text>> {
    proptest::collection::vec(object(), 0..most)
}

/// A mesh in which everything refers to something: changes to it rarely miss.
pub(crate) const FURNISHED: &str = include_str!("furnished.yaml");
