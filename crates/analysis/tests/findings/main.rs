//! Every check: an input of ours that it must speak up about, and one that nearly is.

mod destination_rules;
mod gateways;
mod incremental;
mod services;
mod sidecars;
mod support;
mod virtual_services;

use support::{BASE, found, world};

#[test]
fn a_good_mesh_is_clean() {
    assert_eq!(found(BASE), Vec::<String>::new());
}

#[test]
fn findings_say_where_and_what_follows() {
    let text = format!(
        "{BASE}---\n{}",
        "{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: d, namespace: shop}, spec: {host: nowhere}}"
    );
    let all = pilotfish_analysis::analyze(&world(&text));
    let [finding] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(finding.origin.as_ref().unwrap().file, "test.yaml");
    assert!(finding.origin.as_ref().unwrap().line > 10);
    assert_eq!(
        finding.reason,
        "no service has host nowhere.shop.svc.cluster.local"
    );
    assert_eq!(finding.effect, "the rule has no effect");
}

/// What `testdata/broken` says shows only beside other objects.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test reads the files it checks"
)]
fn dangling_references_of_the_broken_inputs_are_found() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/broken");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("dangling-") {
            seen += 1;
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let about = found(&format!("{BASE}---\n{text}"));
            assert!(
                about.iter().any(|f| f.contains("/shop/broken")),
                "{name}: {about:?}"
            );
        }
    }
    assert!(seen >= 7, "only {seen} files");
}
