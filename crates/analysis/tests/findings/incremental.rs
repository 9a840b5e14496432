//! However a mesh came about, the same is wrong with it; and a change costs the checks it concerns.

use pilotfish_analysis::{Analyzer, Proxy, analyze};
use pilotfish_config::{Change, Object, Store, parse};
use pilotfish_mesh::{Settings, World};
use proptest::prelude::*;

use crate::support::{BASE, object};

fn objects() -> Vec<Object> {
    let more = [
        object(
            "VirtualService",
            "shop/x",
            1,
            "{hosts: [web], http: [{route: [{destination: {host: nowhere}}]}]}",
        ),
        object(
            "Gateway",
            "edge/x",
            9,
            "{selector: {istio: other}, servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: [shop.example], tls: {mode: SIMPLE, credentialName: none}}]}",
        ),
        object("Sidecar", "shop/a", 1, "{egress: [{hosts: [\"shop/*\"]}]}"),
        object(
            "Sidecar",
            "shop/b",
            2,
            "{egress: [{hosts: [\"nowhere/*\"]}]}",
        ),
        object(
            "ServiceEntry",
            "shop/e",
            1,
            "{hosts: [e.example], ports: [{number: 5432, name: tcp, protocol: TCP}], resolution: DNS}",
        ),
        object(
            "DestinationRule",
            "shop/d",
            1,
            "{host: web, trafficPolicy: {loadBalancer: {simple: RANDOM}}, subsets: [{name: v1}]}",
        ),
        object(
            "WorkloadEntry",
            "shop/w",
            1,
            "{address: 10.1.1.1, labels: {app: web}}",
        ),
    ];
    let parsed = parse::documents(&format!("{BASE}---\n{}", more.concat()), "test.yaml");
    assert!(parsed.objects.len() > 18, "{:?}", parsed.diagnostics);
    parsed.objects
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn steps_add_up_to_the_whole(steps in prop::collection::vec((0_usize..40, any::<bool>()), 1..40)) {
        let objects = objects();
        let mut store = Store::new();
        let source = store.register("test");
        let mut world = World::empty(Settings::default());
        let mut analyzer = Analyzer::default();
        for (at, look) in steps {
            let object = &objects[at % objects.len()];
            let there = store.snapshot().get(&object.key).is_some();
            let change = if there {
                Change::Delete(object.key.clone())
            } else {
                Change::upsert(object.clone())
            };
            let applied = store.apply(source, vec![change]);
            world = world.update(&applied.snapshot, &applied.changed).world;
            if look {
                prop_assert_eq!(analyzer.update(&world, &[]), analyze(&world));
            }
        }
        prop_assert_eq!(analyzer.update(&world, &[]), analyze(&world));
    }
}

#[test]
fn a_proxy_that_connects_serves_its_gateway() {
    let mut store = Store::new();
    let source = store.register("test");
    let changes = objects().into_iter().map(Change::upsert).collect();
    let applied = store.apply(source, changes);
    let world = World::empty(Settings::default())
        .update(&applied.snapshot, &applied.changed)
        .world;
    let mut analyzer = Analyzer::default();
    let mut unserved = |proxies: &[Proxy]| {
        let all = analyzer.update(&world, proxies);
        all.iter()
            .any(|d| d.code == "selects-nothing" && d.field == "spec.selector")
    };
    let proxy = Proxy {
        namespace: "edge".into(),
        labels: [("istio".into(), "other".into())].into_iter().collect(),
    };
    assert!(unserved(&[]));
    assert!(!unserved(&[proxy]));
    assert!(unserved(&[]));
}
