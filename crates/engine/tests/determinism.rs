//! The same objects give the same bytes, in whatever order and portions they come.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::Text;
use common::bench::{Bench, difference, parsed, settings};
use pilotfish_config::ObjectKey;
use proptest::prelude::*;

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

proptest! {
    #![proptest_config(common::cases(120))]

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
