//! Histories of a mesh: objects that come, change and go, mixed with whatever else a test does meanwhile.

use pilotfish_config::{Change, ObjectKey};
use proptest::prelude::*;
use proptest::sample::Index;

use super::bench::Bench;
use super::settings::{MESHES, NETWORKS};
use super::{Text, object_of};

/// A change of the configuration.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// An object comes or says something else.
    Put(Text),
    /// Several at once, as from one file.
    PutMany(Vec<Text>),
    /// One of those that are there goes.
    Delete(Index),
    /// One goes and comes back as it was, in one batch.
    Replace(Index),
    Mesh(usize),
    Networks(usize),
}

/// A change, or something else that happens.
#[derive(Clone, Debug)]
pub(crate) enum Step<E> {
    Edit(Edit),
    Event(E),
}

/// Rolls of the dice, before they are objects.
#[derive(Clone, Debug)]
enum Raw<E> {
    Fresh(Vec<u8>),
    /// An earlier object with one roll made again: most often the same object with one field changed.
    Tweak(Index, Index, u8),
    Several(Vec<Vec<u8>>),
    Other(Step<E>),
}

fn rolls() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 40)
}

fn raw<E: Clone + std::fmt::Debug + 'static>(
    weight: u32,
    events: impl Strategy<Value = E> + 'static,
) -> impl Strategy<Value = Raw<E>> {
    let index = any::<Index>;
    let edit = |edit| Raw::Other(Step::Edit(edit));
    prop_oneof![
        10 => rolls().prop_map(Raw::Fresh),
        10 => (index(), index(), any::<u8>()).prop_map(|(o, at, roll)| Raw::Tweak(o, at, roll)),
        2 => proptest::collection::vec(rolls(), 2..6).prop_map(Raw::Several),
        6 => index().prop_map(move |i| edit(Edit::Delete(i))),
        1 => index().prop_map(move |i| edit(Edit::Replace(i))),
        1 => (0..MESHES.len()).prop_map(move |i| edit(Edit::Mesh(i))),
        1 => (0..NETWORKS.len()).prop_map(move |i| edit(Edit::Networks(i))),
        weight => events.prop_map(|e| Raw::Other(Step::Event(e))),
    ]
}

/// The first rolls choose kind and name; tweaks leave them alone.
const IDENTITY: usize = 4;

/// Fewer than `most` steps. There are 31 changes to every `weight` events.
pub(crate) fn steps<E: Clone + std::fmt::Debug + 'static>(
    most: usize,
    weight: u32,
    events: impl Strategy<Value = E> + 'static,
) -> impl Strategy<Value = Vec<Step<E>>> {
    proptest::collection::vec(raw(weight, events), 1..most).prop_map(|raw| {
        let mut known: Vec<Vec<u8>> = Vec::new();
        let mut steps = Vec::new();
        for raw in raw {
            match raw {
                Raw::Fresh(rolls) => {
                    steps.push(Step::Edit(Edit::Put(object_of(&rolls))));
                    known.push(rolls);
                }
                Raw::Tweak(which, at, roll) if !known.is_empty() => {
                    let mut rolls = which.get(&known).clone();
                    rolls[IDENTITY + at.index(20)] = roll;
                    steps.push(Step::Edit(Edit::Put(object_of(&rolls))));
                    known.push(rolls);
                }
                Raw::Tweak(..) => {}
                Raw::Several(all) => {
                    let texts = all.iter().map(|r| object_of(r)).collect();
                    steps.push(Step::Edit(Edit::PutMany(texts)));
                    known.extend(all);
                }
                Raw::Other(step) => steps.push(step),
            }
        }
        steps
    })
}

fn pick(bench: &Bench, index: Index) -> Option<ObjectKey> {
    let snapshot = bench.snapshot();
    let keys: Vec<&ObjectKey> = snapshot.objects.keys().collect();
    (!keys.is_empty()).then(|| (*index.get(&keys)).clone())
}

/// Applies a change.
pub(crate) fn apply(bench: &mut Bench, edit: &Edit) {
    match edit {
        Edit::Put(text) => bench.put([text]),
        Edit::PutMany(texts) => bench.put(texts),
        Edit::Delete(index) => {
            if let Some(key) = pick(bench, *index) {
                bench.delete(&key);
            }
        }
        Edit::Replace(index) => {
            if let Some(key) = pick(bench, *index) {
                let object = (**bench.snapshot().get(&key).unwrap()).clone();
                bench.change(vec![Change::Delete(key), Change::upsert(object)]);
            }
        }
        Edit::Mesh(i) => bench.set_mesh(MESHES[*i]),
        Edit::Networks(i) => bench.set_networks(NETWORKS[*i]),
    }
}
