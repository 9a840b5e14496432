//! A change touches what it must and nothing else: everything else is not just equal, it is the same resource.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::bench::{Bench, Dump, How, Touched, difference, key, settings, touched};
use common::{FURNISHED, proxies};
use pilotfish_config::Kind;
use pilotfish_protos::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use pilotfish_xds::TypeUrl;
use proptest::prelude::*;
use prost::Message as _;
use serde_json::json;

/// A service on a port of its own, with a rule of its own.
fn probe(weight: u32) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: probe, namespace: shop}}
spec: {{clusterIP: 10.96.9.9, selector: {{app: probe}}, ports: [{{name: http, port: 8099}}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: probe, namespace: shop}}
spec:
  hosts: [probe]
  http:
  - route:
    - {{destination: {{host: probe}}, weight: {weight}}}
    - {{destination: {{host: web}}, weight: {}}}
---
{}",
        100 - weight,
        slice("[{addresses: [10.9.0.1]}]")
    )
}

fn slice(endpoints: &str) -> String {
    format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: probe-1, namespace: shop, labels: {{kubernetes.io/service-name: probe}}}}
addressType: IPv4
ports: [{{name: http, port: 8099}}]
endpoints: {endpoints}
"
    )
}

const EXTRA: &str = "
apiVersion: v1
kind: Service
metadata: {name: extra, namespace: shop}
spec: {clusterIP: 10.96.9.8, ports: [{name: http, port: 8097}]}
";

/// All resources of a kind that name an object as their source, as if each had changed.
fn made_from(dump: &Dump, kind: &'static str, source: &str) -> Vec<Touched> {
    let mut all = Vec::new();
    for ((proxy, _), resources) in dump.iter().filter(|((_, k), _)| *k == kind) {
        for r in resources
            .iter()
            .filter(|r| r.sources.iter().any(|s| **s == *source))
        {
            let name = r.name.to_string();
            all.push(Touched {
                proxy,
                kind,
                name,
                how: How::Changed,
            });
        }
    }
    all.sort();
    all
}

/// A socket that a made-up Sidecar listens on.
const SOCKET: &str = "unix:///tmp/egress.sock";

proptest! {
    #![proptest_config(common::cases(40))]

    #[test]
    fn a_weight_touches_one_route_table(texts in common::mesh(25), furnished in any::<bool>(), first in 1u32..50, second in 50u32..99) {
        let mut bench = Bench::new(settings(false));
        if furnished {
            bench.write(FURNISHED);
        }
        bench.put(&texts);
        bench.write(&probe(first));
        let before = bench.dump();
        bench.write(&probe(second));
        let after = bench.dump();
        // A rule for a host stands in the table of its port, and in that of port 80.
        let mut expected = made_from(&before, "RDS", "VirtualService/shop/probe");
        prop_assert!(expected.iter().all(|t| matches!(&*t.name, "80" | "8099" | "0" | SOCKET)), "{expected:?}");
        // Where hosts come one by one it is the host alone.
        expected.retain(|t| !proxies::APART.contains(&t.proxy));
        expected.extend(made_from(&before, "VHDS", "VirtualService/shop/probe"));
        expected.sort();
        prop_assert_eq!(touched(&before, &after), expected);
    }

    #[test]
    fn an_endpoint_touches_the_endpoints_of_its_service(texts in common::mesh(25), furnished in any::<bool>()) {
        let mut bench = Bench::new(settings(false));
        if furnished {
            bench.write(FURNISHED);
        }
        bench.put(&texts);
        bench.write(&probe(10));
        let before = bench.dump();
        bench.write(&slice("[{addresses: [10.9.0.1]}, {addresses: [10.9.0.2]}]"));
        let after = bench.dump();
        // The endpoint says nothing of itself, so that it is of no subset.
        let mut expected = made_from(&before, "EDS", "Service/shop/probe");
        expected.retain(|t| t.name == "outbound|8099||probe.shop.svc.cluster.local");
        prop_assert_eq!(touched(&before, &after), expected);
    }

    #[test]
    fn another_service_touches_no_resource_that_was_there(texts in common::mesh(25), furnished in any::<bool>()) {
        let mut bench = Bench::new(settings(false));
        if furnished {
            bench.write(FURNISHED);
        }
        bench.put(&texts);
        let before = bench.dump();
        bench.write(EXTRA);
        let after = bench.dump();
        let crosses = texts.iter().any(|t| t.0.contains("AUTO_PASSTHROUGH"));
        for t in touched(&before, &after) {
            // All names are in one table; all services are behind a socket, and behind a port between networks.
            let between = crosses && t.kind == "LDS" && t.proxy.contains("router");
            let socket = &*t.name == "0" || t.name.starts_with(SOCKET);
            let of_all = t.kind == "NDS" || socket || between;
            prop_assert!(of_all || t.how == How::Came, "{t:?}");
            prop_assert!(of_all || t.name.contains("8097"), "{t:?}");
        }
        bench.delete(&key(Kind::Service, "shop", "extra"));
        let again = bench.dump();
        if let Some(d) = difference(&before, &again) {
            prop_assert!(false, "there (left) and back again (right): {d}");
        }
    }

    /// Pieces are shared by proxies that answer the same to what was asked. If something was read without asking, a proxy
    /// in company gets what was made for another.
    #[test]
    fn alone_is_as_in_company(texts in common::mesh(30), furnished in any::<bool>()) {
        let write = |bench: &mut Bench| {
            if furnished {
                bench.write(FURNISHED);
            }
            bench.put(&texts);
        };
        let mut company = Bench::new(settings(false));
        write(&mut company);
        let together = company.dump();
        for (name, facts) in common::proxies::all() {
            let mut alone = Bench::with(settings(false), vec![(name, facts)]);
            write(&mut alone);
            let own = alone.dump();
            let same: common::bench::Dump = together
                .iter()
                .filter(|((proxy, _), _)| *proxy == name)
                .map(|(k, v)| (*k, v.clone()))
                .collect();
            if let Some(d) = difference(&own, &same) {
                prop_assert!(false, "alone (left) and in company (right): {d}");
            }
        }
    }

    /// Virtual hosts one by one are those of the whole tables.
    #[test]
    fn hosts_apart_are_the_hosts_of_the_tables(texts in common::mesh(30), furnished in any::<bool>()) {
        let facts = |address: &str| {
            let meta = json!({"LABELS": {"app": "web"}, "ISTIO_VERSION": "1.31.0"});
            common::proxies::facts(&common::proxies::node("sidecar", address, "shop", &meta))
        };
        let two = vec![("whole", facts("10.9.9.1")), ("apart", facts("10.9.9.2").with_hosts_apart())];
        let mut bench = Bench::with(settings(false), two);
        if furnished {
            bench.write(FURNISHED);
        }
        bench.put(&texts);
        let dump = bench.dump();
        let tables = |proxy: &'static str| {
            dump[&(proxy, "RDS")].iter().map(|r| RouteConfiguration::decode(r.body()).unwrap())
        };
        let mut from_tables: Vec<(String, VirtualHost)> = Vec::new();
        for table in tables("whole") {
            from_tables.extend(table.virtual_hosts.into_iter().map(|mut h| {
                h.name = format!("{}/{}", table.name, h.name);
                (h.name.clone(), h)
            }));
        }
        let apart = dump[&("apart", "VHDS")].iter();
        let mut apart: Vec<(String, VirtualHost)> =
            apart.map(|r| (r.name.to_string(), VirtualHost::decode(r.body()).unwrap())).collect();
        from_tables.sort_by(|a, b| a.0.cmp(&b.0));
        apart.sort_by(|a, b| a.0.cmp(&b.0));
        prop_assert_eq!(from_tables, apart);
        prop_assert!(tables("apart").all(|t| t.virtual_hosts.is_empty() && t.vhds.is_some()));
        let (whole, bare) = (tables("whole").map(|t| t.name), tables("apart").map(|t| t.name));
        prop_assert!(whole.eq(bare));
    }

    /// Whoever asks, equal pieces are one piece in memory: that is what makes many proxies cheap.
    #[test]
    fn equal_resources_of_one_dialect_are_the_same(texts in common::mesh(30), furnished in any::<bool>()) {
        let mut bench = Bench::new(settings(false));
        if furnished {
            bench.write(FURNISHED);
        }
        bench.put(&texts);
        let dump = bench.dump();
        for ((a, kind), left) in &dump {
            for ((b, _), right) in dump.iter().filter(|((b, k), _)| k == kind && a < b) {
                // Route tables are put together for each scope; their virtual hosts are shared, the whole is not.
                let alike = |what: &str| a.contains(what) == b.contains(what);
                if matches!(*kind, "RDS" | "NDS") || !alike("stock") || !alike("router") {
                    continue;
                }
                for l in left {
                    let equal = right.iter().find(|r| r.name == l.name && r.any() == l.any() && r.sources == l.sources);
                    prop_assert!(equal.is_none_or(|r| Arc::ptr_eq(l, r)), "{a} and {b}: {kind} {}", l.name);
                }
            }
        }
    }
}

/// Another pod of the service, with a slice of its own.
fn replica(name: &str, address: &str, version: &str) -> String {
    format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-{name}, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}, {{name: grpc, port: 7000}}]
endpoints: [{{addresses: [{address}], targetRef: {{kind: Pod, name: {name}, namespace: shop}}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: web, version: {version}, security.istio.io/tlsMode: istio}}}}
spec: {{nodeName: n1, serviceAccountName: clerk, containers: [{{name: c}}]}}
status: {{phase: Running, podIP: {address}, conditions: [{{type: Ready, status: 'True'}}]}}
"
    )
}

/// Two replicas, and somebody with the same labels in another namespace.
fn replicas() -> Bench {
    let facts = |address: &str, namespace: &str| {
        let meta = json!({"LABELS": {"app": "web", "version": "v1"}});
        proxies::facts(&proxies::node("sidecar", address, namespace, &meta))
    };
    let proxies = vec![
        ("first", facts("10.0.0.2", "shop")),
        ("second", facts("10.0.1.3", "shop")),
        ("elsewhere", facts("10.0.1.1", "depot")),
    ];
    let mut bench = Bench::with(settings(false), proxies);
    bench.write(FURNISHED);
    bench.write(&replica("p3", "10.0.1.3", "v1"));
    bench
}

#[test]
fn replicas_share_everything() {
    let mut bench = replicas();
    let dump = bench.dump();
    for t in ["CDS", "EDS", "LDS", "RDS"] {
        let (first, second) = (&dump[&("first", t)], &dump[&("second", t)]);
        assert!(!first.is_empty(), "{t}");
        assert_eq!(first.len(), second.len(), "{t}");
        for (a, b) in first.iter().zip(second) {
            assert!(Arc::ptr_eq(a, b), "{t} {} is held twice", a.name);
        }
    }
}

#[test]
fn namespaces_share_clusters_in_which_nothing_differs() {
    let mut bench = replicas();
    let here = bench.resources(0, &TypeUrl::Cluster);
    let there = bench.resources(2, &TypeUrl::Cluster);
    let outbound: Vec<_> = here
        .iter()
        .filter(|r| r.name.starts_with("outbound|"))
        .collect();
    assert!(outbound.len() > 5);
    for r in outbound {
        let other = there.iter().find(|o| o.name == r.name);
        assert!(
            other.is_some_and(|o| Arc::ptr_eq(o, r)),
            "{} is held twice",
            r.name
        );
    }
}

#[test]
fn what_is_touched_in_a_furnished_mesh() {
    let mut bench = replicas();
    let before = bench.dump();
    bench.write(
        &FURNISHED
            .replace("weight: 90", "weight: 80")
            .replace("weight: 10", "weight: 20"),
    );
    let weight = bench.dump();
    let changed = |proxy, kind, name: &str| Touched {
        proxy,
        kind,
        name: name.to_owned(),
        how: How::Changed,
    };
    let all = ["elsewhere", "first", "second"];
    // One table for each port that the service has.
    let tables = all
        .iter()
        .flat_map(|p| [changed(*p, "RDS", "7000"), changed(*p, "RDS", "80")]);
    assert_eq!(touched(&before, &weight), tables.collect::<Vec<_>>());
    // Writing the same again is no change.
    let generation = bench.engine.generation();
    bench.write(
        &FURNISHED
            .replace("weight: 90", "weight: 80")
            .replace("weight: 10", "weight: 20"),
    );
    assert_eq!(bench.engine.generation(), generation);
    assert_eq!(touched(&weight, &bench.dump()), []);
    // A new endpoint of version 2: the ports of the service, whole and in that subset.
    bench.write(&replica("p4", "10.0.1.4", "v2"));
    let endpoint = bench.dump();
    let names = ["7000|v2|", "7000||", "80|v2|", "80||"]
        .map(|n| format!("outbound|{n}web.shop.svc.cluster.local"));
    let sets = all
        .iter()
        .flat_map(|p| names.iter().map(|n| changed(*p, "EDS", n)));
    assert_eq!(touched(&weight, &endpoint), sets.collect::<Vec<_>>());
}

/// What becomes of Pods and their nodes is a matter of endpoints; only who they run as is one of clusters, which check it.
#[test]
fn what_becomes_of_pods_touches_endpoints() {
    let mut bench = replicas();
    let pod = replica("p4", "10.0.1.4", "v2");
    bench.write(&pod);
    let (ready, not_ready) = (
        "{addresses: [10.0.1.4]",
        "{addresses: [10.0.1.4], conditions: {ready: false}",
    );
    let mut kinds = |change: &str| -> BTreeSet<&str> {
        let before = bench.dump();
        bench.write(change);
        let touched = touched(&before, &bench.dump());
        touched.iter().map(|t| t.kind).collect()
    };
    let endpoints = BTreeSet::from(["EDS"]);
    assert_eq!(
        kinds(&pod.replace(ready, not_ready)),
        endpoints,
        "not ready"
    );
    assert_eq!(kinds(&pod), endpoints, "ready again");
    let zone = "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: south, topology.kubernetes.io/zone: s-z}}
";
    assert_eq!(kinds(zone), endpoints, "its node is elsewhere");
    assert_eq!(
        kinds(&pod.replace("version: v2", "version: v1")),
        endpoints,
        "of another subset"
    );
    let identity = kinds(&pod.replace("clerk", "boss"));
    assert_eq!(identity, BTreeSet::from(["CDS", "EDS"]), "another account");
}

#[test]
fn a_rule_that_selects_nobody_here_touches_nobody() {
    let mut bench = replicas();
    let before = bench.dump();
    // A label that no selector read before now counts, so that all scopes are looked at again.
    bench.write(
        "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: other, namespace: shop}
spec: {workloadSelector: {labels: {version: v9}}, egress: [{hosts: ['./*']}]}
",
    );
    let after = bench.dump();
    assert_eq!(difference(&before, &after), None);
    let again: Vec<_> = touched(&before, &after)
        .into_iter()
        .filter(|t| t.kind != "RDS")
        .collect();
    assert_eq!(again, []);
}

/// A service with endpoints in two zones.
fn zoned(name: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP}}]
  endpoints: [{{address: 10.9.0.1, locality: north/a}}, {{address: 10.9.0.2, locality: north/b}}]
"
    )
}

/// Endpoints depend on where their client is only if their priorities do, and nothing else does.
#[test]
fn places_share_what_does_not_depend_on_them() {
    let facts = |address: &str, zone: &str| {
        let mut node = proxies::node("sidecar", address, "shop", &json!({}));
        node["locality"] = json!({"region": "north", "zone": zone});
        proxies::facts(&node)
    };
    let proxies = vec![
        ("a", facts("10.1.0.1", "a")),
        ("b", facts("10.1.0.2", "b")),
        ("also a", facts("10.1.0.3", "a")),
        ("also b", facts("10.1.0.4", "b")),
    ];
    let mut bench = Bench::with(settings(false), proxies);
    bench.write(&zoned("near"));
    for name in ["one", "two", "three"] {
        bench.write(&zoned(name));
    }
    bench.write(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: near, namespace: shop}
spec: {host: near.example, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}}
",
    );
    let mut ask = |proxy: usize, t: &TypeUrl| {
        let before = bench.engine.total_cost().pieces;
        let view = bench.ask(proxy, t);
        (view, bench.engine.total_cost().pieces - before)
    };
    // The keys, and one for each service.
    let (a, built) = ask(0, &TypeUrl::Endpoints);
    assert_eq!(built, 5);
    let (b, built) = ask(1, &TypeUrl::Endpoints);
    assert_eq!(built, 1, "only what is ordered by distance");
    let changes: Vec<_> = a.changes(&b).map(|c| c.name().to_string()).collect();
    assert_eq!(changes, ["outbound|80||near.example"]);
    for (proxy, like) in [(2, &a), (3, &b)] {
        let (view, built) = ask(proxy, &TypeUrl::Endpoints);
        assert_eq!((built, view.changes(like).count()), (0, 0));
    }
    let (_, first) = ask(0, &TypeUrl::Cluster);
    let (_, second) = ask(1, &TypeUrl::Cluster);
    // Inbound clusters are each proxy's own.
    assert!(first > 5 && second <= 1, "{first} {second}");
}
