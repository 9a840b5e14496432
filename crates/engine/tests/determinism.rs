//! The same objects give the same bytes, in whatever order and portions they come.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests; the inputs of others are named by the environment"
)]

mod common;

use std::collections::BTreeMap;

use common::Text;
use common::bench::{Bench, difference, parsed, settings};
use pilotfish_config::ObjectKey;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

/// One text for each key: the last.
fn distinct(texts: Vec<Text>) -> Vec<Text> {
    let by_key: BTreeMap<ObjectKey, Text> =
        texts.into_iter().map(|t| (parsed(&t).key, t)).collect();
    by_key.into_values().collect()
}

/// A mesh, and the same mesh shuffled.
fn shuffled() -> impl Strategy<Value = (Vec<Text>, Vec<Text>)> {
    common::mesh(40).prop_flat_map(|texts| {
        let texts = distinct(texts);
        (Just(texts.clone()), Just(texts).prop_shuffle())
    })
}

/// Objects of a file as one text each.
fn documents(text: &str) -> Vec<Text> {
    let all: Vec<serde_json::Value> = serde_saphyr::from_multiple(text).unwrap();
    let text = |d: &serde_json::Value| Text(format!("# an object\n{d}\n"));
    all.iter().filter(|d| !d.is_null()).map(text).collect()
}

/// The proxies of `proxies.yaml` that a mesh serves.
fn proxies_of(folder: &std::path::Path) -> Vec<(&'static str, pilotfish_engine::ProxyFacts)> {
    let text = std::fs::read_to_string(folder.join("proxies.yaml")).unwrap();
    let list: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let envoys = list["proxies"].as_array().unwrap().iter();
    envoys
        .filter(|p| p.get("ask").is_none())
        .map(|p| {
            let name: &'static str = p["name"].as_str().unwrap().to_owned().leak();
            (name, common::proxies::facts(&p["node"]).verified())
        })
        .collect()
}

/// Inputs that others wrote: `INPUTS` names a directory of folders with `input.yaml`, `proxies.yaml` and perhaps
/// `mesh.yaml`. Objects come in one batch, or shuffled and one by one, as after a restart; `scripts/test` runs it where
/// the oracle is.
#[test]
#[ignore = "needs INPUTS"]
fn order_does_not_matter_to_inputs_of_others() {
    let root = std::env::var("INPUTS").expect("INPUTS names a directory");
    let mut folders: Vec<_> = std::fs::read_dir(&root)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|f| f.join("input.yaml").is_file())
        .collect();
    folders.sort();
    assert!(!folders.is_empty(), "there are no inputs below {root}");
    let (mut inputs, mut objects) = (0, 0);
    for folder in folders {
        let texts = documents(&std::fs::read_to_string(folder.join("input.yaml")).unwrap());
        let mesh = std::fs::read_to_string(folder.join("mesh.yaml")).unwrap_or_default();
        let bench = || {
            let mut bench = Bench::with(settings(false), proxies_of(&folder));
            bench.set_mesh(if mesh.is_empty() { "{}" } else { &mesh });
            bench
        };
        let mut whole = bench();
        whole.write_all(&texts);
        let expected = whole.dump();
        let mut shuffler = proptest::test_runner::TestRunner::deterministic();
        for _ in 0..3 {
            let mixed = Just(texts.clone()).prop_shuffle();
            let mixed = mixed.new_tree(&mut shuffler).unwrap().current();
            let mut one_by_one = bench();
            for text in &mixed {
                one_by_one.write_all(std::slice::from_ref(text));
            }
            one_by_one.proxies.reverse();
            if let Some(d) = difference(&expected, &one_by_one.dump()) {
                panic!(
                    "{}: one batch (left), one by one (right): {d}",
                    folder.display()
                );
            }
        }
        inputs += 1;
        objects += texts.len();
    }
    println!("{inputs} inputs, {objects} objects, 3 orders each: equal");
}

proptest! {
    #![proptest_config(common::cases(60))]

    #[test]
    fn order_and_portions_do_not_matter(
        (sorted, shuffled) in shuffled(),
        portion in 1usize..12,
        mesh in 0..common::settings::MESHES.len(),
        dual_stack in any::<bool>(),
        mesh_first in any::<bool>(),
        backwards in any::<bool>(),
    ) {
        let mesh = common::settings::MESHES[mesh];
        let mut whole = Bench::new(settings(dual_stack));
        whole.set_mesh(mesh);
        whole.put(&sorted);
        let mut portions = Bench::new(settings(dual_stack));
        if mesh_first {
            portions.set_mesh(mesh);
        }
        for batch in shuffled.chunks(portion) {
            portions.put(batch);
        }
        if !mesh_first {
            portions.set_mesh(mesh);
        }
        let (left, right) = (whole.dump(), {
            // Who asks first must not matter either.
            if backwards {
                portions.proxies.reverse();
            }
            portions.dump()
        });
        if let Some(d) = difference(&left, &right) {
            prop_assert!(false, "one batch (left) and portions of {portion} (right): {d}");
        }
        prop_assert_eq!(whole.engine.diagnostics(), portions.engine.diagnostics());
    }
}
