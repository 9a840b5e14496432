//! The store against a model of it, and its rules one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::core::ConfigMap;
use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use pilotfish_config::{
    Applied, Change, Diagnostic, Kind, Meta, Object, ObjectKey, Origin, SourceId, Store, networking,
};
use proptest::prelude::*;

fn object(name: &str, content: &str) -> Object {
    Object {
        key: ObjectKey::new(Kind::ConfigMap, "ns", name),
        meta: Meta::default(),
        spec: ConfigMap {
            data: BTreeMap::from([("x".to_owned(), content.to_owned())]),
            ..ConfigMap::default()
        }
        .into(),
        origin: Some(Origin {
            file: "f".into(),
            line: 1,
        }),
    }
}

fn content(object: &Object) -> &str {
    &object.get::<ConfigMap>().expect("a config map").data["x"]
}

fn names(applied: &Applied) -> Vec<&str> {
    applied.changed.iter().map(|key| &*key.name).collect()
}

#[test]
fn equal_objects_change_nothing() {
    let mut store = Store::new();
    let source = store.register("files");
    let first = store.apply(source, vec![Change::upsert(object("a", "1"))]);
    assert_eq!(names(&first), ["a"]);
    let again = store.apply(source, vec![Change::upsert(object("a", "1"))]);
    assert!(again.changed.is_empty());
    assert!(Arc::ptr_eq(&first.snapshot, &again.snapshot));
    // Back and forth within one batch is no change either.
    let round_trip = vec![
        Change::upsert(object("a", "2")),
        Change::Delete(object("a", "").key),
        Change::upsert(object("a", "1")),
    ];
    assert!(store.apply(source, round_trip).changed.is_empty());
}

#[test]
fn a_new_place_is_not_a_new_version() {
    let mut store = Store::new();
    let source = store.register("files");
    let first = store.apply(source, vec![Change::upsert(object("a", "1"))]);
    let key = object("a", "").key;
    let place = Origin {
        file: "g".into(),
        line: 7,
    };
    let moved = store.apply(source, vec![Change::Relocate(key.clone(), place.clone())]);
    assert!(moved.changed.is_empty());
    assert_eq!(moved.snapshot.version, first.snapshot.version);
    let (before, after) = (
        first.snapshot.get(&key).unwrap(),
        moved.snapshot.get(&key).unwrap(),
    );
    assert_eq!(before.meta.resource_version, after.meta.resource_version);
    assert_eq!(after.origin.as_ref(), Some(&place));
    assert_eq!(
        before.origin.as_ref().unwrap().line,
        1,
        "an old snapshot never changes"
    );
}

#[test]
fn the_source_that_came_first_wins() {
    let mut store = Store::new();
    let (one, two) = (store.register("one"), store.register("two"));
    store.apply(two, vec![Change::upsert(object("a", "two"))]);
    let applied = store.apply(one, vec![Change::upsert(object("a", "one"))]);
    assert_eq!(names(&applied), ["a"]);
    assert_eq!(
        content(applied.snapshot.get(&applied.changed[0]).unwrap()),
        "one"
    );
    let report: Vec<String> = store
        .diagnostics()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        report,
        ["warning ConfigMap/ns/a: also defined by one; the definition of two is ignored (f:1)"]
    );
    // What is hidden may change unseen, and shows when it is uncovered.
    assert!(
        store
            .apply(two, vec![Change::upsert(object("a", "two again"))])
            .changed
            .is_empty()
    );
    let applied = store.apply(one, vec![Change::Delete(object("a", "").key)]);
    assert_eq!(
        content(applied.snapshot.get(&applied.changed[0]).unwrap()),
        "two again"
    );
    assert_eq!(store.diagnostics(), []);
    assert_eq!(
        names(&store.apply(two, vec![Change::Delete(object("a", "").key)])),
        ["a"]
    );
}

#[test]
fn deleting_what_is_not_there_is_nothing() {
    let mut store = Store::new();
    let source = store.register("files");
    let applied = store.apply(source, vec![Change::Delete(object("a", "").key)]);
    assert!(applied.changed.is_empty());
    assert_eq!(applied.snapshot.version, 0);
    assert!(
        store
            .apply(SourceId(9), vec![Change::upsert(object("a", "1"))])
            .changed
            .is_empty()
    );
}

#[test]
fn mesh_settings_count_as_a_change_once() {
    let mut store = Store::new();
    assert!(!store.set_mesh(MeshConfig::standard()));
    let mesh = MeshConfig {
        trust_domain: "example.org".into(),
        ..MeshConfig::standard()
    };
    let before = store.snapshot();
    assert!(store.set_mesh(mesh.clone()) && !store.set_mesh(mesh));
    assert!(!store.set_networks(MeshNetworks::default()));
    let after = store.snapshot();
    assert_eq!((before.version, after.version), (0, 1));
    assert_eq!(before.mesh.trust_domain, "cluster.local");
    assert_eq!(after.mesh.trust_domain, "example.org");
}

#[test]
fn lists_are_by_kind_and_namespace() {
    let mut store = Store::new();
    let source = store.register("files");
    let mut other = object("b", "1");
    other.key.namespace = "other".into();
    let mut service = object("c", "");
    service.key.kind = Kind::VirtualService;
    service.spec = networking::VirtualService::default().into();
    let changes = [object("a", "1"), other, service]
        .map(Change::upsert)
        .to_vec();
    let snapshot = store.apply(source, changes).snapshot;
    assert_eq!(snapshot.list(Kind::ConfigMap).count(), 2);
    assert_eq!(snapshot.in_namespace(Kind::ConfigMap, "ns").count(), 1);
    assert_eq!(snapshot.typed::<networking::VirtualService>().count(), 1);
    assert_eq!(snapshot.list(Kind::Pod).count(), 0);
}

#[test]
fn diagnostics_are_sorted_and_said_once() {
    let mut store = Store::new();
    let source = store.register("files");
    let finding = |field: &str| Diagnostic::warning("x", "odd", "ignored").at(field);
    store.set_diagnostics(
        source,
        vec![
            finding("b"),
            Diagnostic::error("x", "bad", "refused"),
            finding("a"),
            finding("b"),
        ],
    );
    let report: Vec<String> = store
        .diagnostics()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        report,
        [
            "error: bad; refused",
            "warning a: odd; ignored",
            "warning b: odd; ignored"
        ]
    );
    store.set_diagnostics(source, Vec::new());
    assert_eq!(store.diagnostics(), []);
}

/// A batch: which source, and changes as (name, content); no content deletes.
type Step = (usize, Vec<(u8, Option<u8>)>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (0_u8..6, prop::option::weighted(0.7, 0_u8..3));
    prop::collection::vec((0_usize..3, prop::collection::vec(change, 0..6)), 0..30)
}

proptest! {
    /// Whatever happens, the store holds what three maps in a row would, and says exactly what changed.
    #[test]
    fn the_store_is_three_maps_in_a_row(steps in steps()) {
        let mut store = Store::new();
        let sources = [store.register("0"), store.register("1"), store.register("2")];
        let mut model: [BTreeMap<u8, u8>; 3] = Default::default();
        let visible = |model: &[BTreeMap<u8, u8>; 3]| -> BTreeMap<String, String> {
            let keys = model.iter().flat_map(BTreeMap::keys);
            keys.map(|key| {
                let content = model.iter().find_map(|map| map.get(key)).expect("some map has it");
                (format!("o{key}"), content.to_string())
            })
            .collect()
        };
        let mut last_version = 0;
        for (source, changes) in steps {
            let before = visible(&model);
            let mut batch = Vec::new();
            for (name, content) in changes {
                let name_text = format!("o{name}");
                if let Some(content) = content {
                    model[source].insert(name, content);
                    batch.push(Change::upsert(object(&name_text, &content.to_string())));
                } else {
                    model[source].remove(&name);
                    batch.push(Change::Delete(object(&name_text, "").key));
                }
            }
            let after = visible(&model);
            let applied = store.apply(sources[source], batch);
            let held: BTreeMap<String, String> = applied
                .snapshot
                .objects
                .iter()
                .map(|(key, object)| (key.name.to_string(), content(object).to_owned()))
                .collect();
            prop_assert_eq!(&held, &after);
            let changed: Vec<String> = applied.changed.iter().map(|key| key.name.to_string()).collect();
            let mut expected: Vec<String> =
                before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key)).cloned().collect();
            expected.sort();
            expected.dedup();
            prop_assert_eq!(changed, expected);
            // Versions only grow, and exactly what changed has a new one.
            for key in &applied.changed {
                if let Some(object) = applied.snapshot.get(key) {
                    prop_assert!(object.meta.resource_version > last_version);
                }
            }
            let highest = applied.snapshot.objects.values().map(|object| object.meta.resource_version).max();
            last_version = last_version.max(highest.unwrap_or(0));
        }
    }
}
