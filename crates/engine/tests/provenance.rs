//! Every resource names the objects it was made from.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::bench::{Bench, key, parsed, settings};
use common::{FURNISHED, Text, proxies, settings as meshes};
use pilotfish_config::networking::ServiceEntry;
use pilotfish_config::{Kind, ObjectKey};
use pilotfish_protos::envoy::config::route::v3::VirtualHost;
use pilotfish_xds::{Resource, TypeUrl};
use proptest::prelude::*;
use prost::Message as _;

/// Objects that are named. Those that endpoints are made of are not: there are too many of them, and they say where they
/// are by their addresses.
const NAMED: [Kind; 6] = [
    Kind::Service,
    Kind::ServiceEntry,
    Kind::DestinationRule,
    Kind::VirtualService,
    Kind::Gateway,
    Kind::Sidecar,
];

/// Resources that are there whatever is configured.
fn is_fixed(name: &str) -> bool {
    [
        "BlackHoleCluster",
        "PassthroughCluster",
        "InboundPassthroughCluster",
        "virtualOutbound",
        "virtualInbound",
        "NameTable",
    ]
    .contains(&name)
        || name.ends_with("/allow_any")
        || name.ends_with("/block_all")
}

/// A gateway's table to which no rule contributed although some are written for it: none of their matches is for this port
/// or gateway. Such rules are not named, but without them the table says that there is nothing.
fn is_void(kind: &str, resource: &Resource) -> bool {
    let is_rule = |s: &pilotfish_xds::Text| s.starts_with("VirtualService/");
    kind == "RDS" && resource.name.starts_with("http.") && !resource.sources.iter().any(is_rule)
}

/// A host of a gateway that shares its virtual host with more than before: what made it differ from these is gone. That is not
/// named where they differ no more.
fn is_joined(kind: &str, old: &Resource, without: &[Arc<Resource>]) -> bool {
    let domains = |r: &Resource| -> BTreeSet<String> {
        let host = VirtualHost::decode(r.body()).unwrap();
        host.domains.into_iter().collect()
    };
    let table = |r: &Resource| r.name.split_once('/').unwrap().0.to_owned();
    let alone = || domains(old);
    kind == "VHDS"
        && table(old).starts_with("http")
        && without
            .iter()
            .filter(|new| table(new) == table(old))
            .any(|new| domains(new).is_superset(&alone()) && domains(new) != alone())
}

/// Without ServiceEntries for a host that another object declares: only the first of them is named, which is a gap.
fn without_conflicts(texts: Vec<Text>, furnished: bool) -> Vec<Text> {
    let mut hosts: BTreeSet<String> = ["web.shop.svc.cluster.local".to_owned()].into();
    if furnished {
        hosts.extend(["api.example".to_owned(), "db.example".to_owned()]);
    }
    let declares = |text: &Text| {
        parsed(text)
            .get::<ServiceEntry>()
            .map(|e| e.hosts.clone())
            .unwrap_or_default()
    };
    texts
        .into_iter()
        .filter(|text| declares(text).into_iter().all(|host| hosts.insert(host)))
        .collect()
}

proptest! {
    #![proptest_config(common::cases(60))]

    #[test]
    fn sources_exist(texts in common::mesh(30), furnished in any::<bool>()) {
        let mut bench = Bench::new(settings(true));
        if furnished {
            bench.write(FURNISHED);
        }
        bench.put(&texts);
        let known: BTreeSet<String> = bench.snapshot().objects.keys().map(ToString::to_string).collect();
        for (of, resources) in bench.dump() {
            for r in &resources {
                let once: BTreeSet<&str> = r.sources.iter().map(|s| &**s).collect();
                prop_assert_eq!(once.len(), r.sources.len(), "{:?} {}: {:?}", of, r.name, r.sources);
                for s in r.sources.iter() {
                    prop_assert!(known.contains(&**s), "{of:?} {} comes from {s}, which there is not", r.name);
                }
                let port = of.1 == "RDS" || r.name.ends_with("_80");
                prop_assert!(port || is_fixed(&r.name) || !r.sources.is_empty(), "{of:?} {} comes from nothing", r.name);
            }
        }
    }

    /// If a resource is not the same without an object, then it was made from it.
    #[test]
    fn what_changes_without_an_object_names_it(texts in common::mesh(16), furnished in any::<bool>(), mesh in 0..meshes::MESHES.len()) {
        // What a proxy is, its workload says; a proxy that has none depends on the objects alone.
        let mut bench = Bench::with(settings(true), proxies::visitors());
        bench.set_mesh(meshes::MESHES[mesh]);
        if furnished {
            bench.write(FURNISHED);
        }
        bench.put(&without_conflicts(texts, furnished));
        let before = bench.dump();
        let snapshot = bench.snapshot();
        let keys: Vec<ObjectKey> = snapshot.objects.keys().filter(|k| NAMED.contains(&k.kind)).cloned().collect();
        for key in keys {
            let object = (**snapshot.get(&key).unwrap()).clone();
            bench.delete(&key);
            let without = bench.dump();
            for (of, old) in &before {
                for r in old {
                    let new = without[of].iter().find(|n| n.name == r.name);
                    // An object may have kept another out: then its place is taken by that.
                    let touched = new.is_none_or(|n| n.version != r.version && n.sources.iter().all(|s| r.sources.contains(s)));
                    let named = r.sources.iter().any(|s| **s == key.to_string());
                    prop_assert!(!touched || named || is_void(of.1, r) || is_joined(of.1, r, &without[of]), "{of:?} {} depends on {key} but names only {:?}", r.name, r.sources);
                }
            }
            bench.change(vec![pilotfish_config::Change::upsert(object)]);
        }
    }
}

fn sources(bench: &mut Bench, proxy: &str, t: &TypeUrl, name: &str) -> BTreeSet<String> {
    let at = bench.proxies.iter().position(|(n, _)| *n == proxy).unwrap();
    let all = bench.resources(at, t);
    let found = all.iter().find(|r| *r.name == *name);
    let found = found.unwrap_or_else(|| panic!("no {name} among {all:?}"));
    found.sources.iter().map(ToString::to_string).collect()
}

#[test]
fn each_kind_of_resource_names_its_objects() {
    let mut bench = Bench::new(settings(false));
    bench.write(FURNISHED);
    let web = "outbound|80||web.shop.svc.cluster.local";
    let (rule, service) = ("DestinationRule/shop/rule-a", "Service/shop/web");
    let (routes, gateway) = ("VirtualService/shop/routes-a", "Gateway/shop/gate-a");
    let objects = |names: &[&str]| {
        names
            .iter()
            .map(ToString::to_string)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        sources(&mut bench, "cart", &TypeUrl::Cluster, web),
        objects(&[rule, service])
    );
    assert_eq!(
        sources(&mut bench, "cart", &TypeUrl::Endpoints, web),
        objects(&[rule, service])
    );
    let table = sources(&mut bench, "cart", &TypeUrl::Route, "80");
    assert!(
        table.is_superset(&objects(&[
            service,
            "Service/shop/cart",
            "ServiceEntry/shop/entry-a",
            routes
        ])),
        "{table:?}"
    );
    assert!(
        table
            .iter()
            .all(|s| !s.contains("/bank/") && !s.contains("Gateway")),
        "{table:?}"
    );
    let listener = sources(&mut bench, "cart", &TypeUrl::Listener, "10.96.0.0_9000");
    assert!(listener.contains("Service/shop/cart"), "{listener:?}");
    assert_eq!(
        sources(&mut bench, "router", &TypeUrl::Listener, "0.0.0.0_80"),
        objects(&[gateway])
    );
    let at_edge = sources(&mut bench, "router", &TypeUrl::Route, "http.80");
    assert!(
        at_edge.is_superset(&objects(&[gateway, routes])),
        "{at_edge:?}"
    );
    // What a Sidecar shows is made from it, too.
    let tproxy = "labels of its pod, TPROXY";
    assert_eq!(
        sources(&mut bench, tproxy, &TypeUrl::Cluster, web),
        objects(&[rule, service, "Sidecar/bank/view-a"])
    );
}

/// Requests to a socket say where they go, so that any service opens it and none is written into it.
#[test]
fn a_socket_names_the_service_that_opens_it() {
    let mut bench = Bench::with(settings(false), proxies::visitors());
    bench.write(
        "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: view-a, namespace: shop}
spec:
  egress:
  - port: {number: 0, protocol: HTTP, name: unix}
    bind: unix:///tmp/egress.sock
    hosts: ['*/*.example']
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: entry-a, namespace: bank}
spec:
  hosts: [api.example]
  ports: [{number: 8080, name: http, protocol: HTTP}]
  resolution: DNS
",
    );
    let name = "unix:///tmp/egress.sock_0";
    assert_eq!(
        sources(&mut bench, "in shop", &TypeUrl::Listener, name),
        ["ServiceEntry/bank/entry-a", "Sidecar/shop/view-a"]
            .map(str::to_owned)
            .into()
    );
    bench.delete(&ObjectKey::new(Kind::ServiceEntry, "bank", "entry-a"));
    let left = bench.resources(0, &TypeUrl::Listener);
    assert!(left.iter().all(|r| *r.name != *name), "{left:?}");
}

/// What another object leads to is noted, and neither sent nor counted as a change as long as it is the same.
#[test]
fn other_sources_are_no_change() {
    let mut bench = Bench::with(settings(false), proxies::visitors());
    let view = |name: &str| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: {name}, namespace: shop}}
spec: {{egress: [{{hosts: ['*/*']}}]}}
"
        )
    };
    bench.write(FURNISHED);
    bench.write(&view("view-a"));
    let web = "outbound|80||web.shop.svc.cluster.local";
    let named = |bench: &mut Bench| sources(bench, "in shop", &TypeUrl::Cluster, web);
    assert!(named(&mut bench).contains("Sidecar/shop/view-a"));
    let before = bench.ask(0, &TypeUrl::Cluster);
    let counted = bench.engine.total_cost();
    bench.delete(&key(Kind::Sidecar, "shop", "view-a"));
    bench.write(&view("view-b"));
    let after = bench.ask(0, &TypeUrl::Cluster);
    let spent = bench.engine.total_cost();
    assert_eq!(before.changes(&after).count(), 0);
    assert_eq!(spent.resources, counted.resources);
    let now = named(&mut bench);
    assert!(now.contains("Sidecar/shop/view-b"), "{now:?}");
    assert!(!now.contains("Sidecar/shop/view-a"), "{now:?}");
}

/// Hosts that are made of the same share a virtual host, whichever Gateways serve them; and it takes all of them to refuse
/// everything.
#[test]
fn virtual_hosts_name_all_their_gateways() {
    let gateway = |name: &str, redirects: bool| {
        let tls = if redirects {
            ", tls: {httpsRedirect: true}"
        } else {
            ""
        };
        format!(
            "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{istio: ingress}}
  servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: [{name}.example]{tls}}}]
"
        )
    };
    let both = ["Gateway/shop/one", "Gateway/shop/two"].map(str::to_owned);
    for (redirects, name) in [
        (true, "http.80/one.example:80"),
        (false, "http.80/blackhole:80"),
    ] {
        let mut bench = Bench::with(settings(false), proxies::visitors());
        bench.write(&gateway("one", redirects));
        bench.write(&gateway("two", redirects));
        let who = "router, hosts apart";
        let named = sources(&mut bench, who, &TypeUrl::VirtualHost, name);
        assert_eq!(named, BTreeSet::from(both.clone()), "{name}");
    }
}
