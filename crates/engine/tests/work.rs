//! How much is translated again because of a change does not depend on how large the mesh is.
//!
//! Equal bytes are never sent, whatever it took to make them: that too much was made is seen nowhere else.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fmt::Write as _;

use common::bench::{Bench, settings};
use common::proxies::{facts, node};
use pilotfish_xds::TypeUrl;
use serde_json::json;

const FEW: usize = 20;
const MANY: usize = 60;

fn service(n: usize, endpoints: usize) -> String {
    let mut text = format!(
        "
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: s{n}, namespace: shop}}
spec:
  hosts: [s{n}.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP}}]
  endpoints:
"
    );
    for e in 0..endpoints {
        writeln!(text, "  - address: 10.1.{n}.{e}").unwrap();
    }
    text
}

/// For the mesh and the gateway both.
fn weight(n: usize, weight: u32) -> String {
    format!(
        "
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: v{n}, namespace: shop}}
spec:
  hosts: [s{n}.example]
  gateways: [mesh, edge]
  http:
  - route:
    - {{destination: {{host: s{n}.example}}, weight: {weight}}}
    - {{destination: {{host: s{}.example}}, weight: {}}}
",
        n + 1,
        100 - weight
    )
}

const GATEWAY: &str = "
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}
  - {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ['*']}
";

const SIDECAR: &str = "
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec: {egress: [{hosts: ['./*']}]}
";

/// One proxy in a mesh of so many services, all with rules.
fn mesh(kind: &str, services: usize, more: &str) -> Bench {
    let metadata =
        json!({"LABELS": {"app": "edge"}, "CLUSTER_ID": "Kubernetes", "DNS_CAPTURE": "true"});
    let proxy = facts(&node(kind, "10.0.0.1", "shop", &metadata));
    let mut bench = Bench::with(settings(false), vec![("it", proxy)]);
    let all = (0..services).map(|n| service(n, 1) + &weight(n, 90));
    bench.write(&(all.collect::<String>() + GATEWAY + more));
    ask(&mut bench);
    bench
}

/// All that such a proxy asks for.
fn ask(bench: &mut Bench) {
    for kind in [
        TypeUrl::Cluster,
        TypeUrl::Endpoints,
        TypeUrl::Listener,
        TypeUrl::Route,
        TypeUrl::NameTable,
    ] {
        let _ = bench.ask(0, &kind);
    }
}

/// Pieces that a change makes it build again, and resources that are others then.
fn work(bench: &mut Bench, change: &str) -> (usize, usize) {
    let before = bench.engine.total_cost();
    bench.write(change);
    ask(bench);
    let after = bench.engine.total_cost();
    (
        after.pieces - before.pieces,
        after.resources - before.resources,
    )
}

#[test]
fn a_weight_is_one_virtual_host_and_an_endpoint_one_list_of_endpoints() {
    let cases = [("sidecar", ""), ("sidecar", SIDECAR), ("router", "")];
    for (kind, more) in cases {
        for services in [FEW, MANY] {
            let mut bench = mesh(kind, services, more);
            let case = format!("{kind}, {services} services{more}");
            assert_eq!(work(&mut bench, &weight(3, 50)), (1, 1), "weight: {case}");
            assert_eq!(work(&mut bench, &service(3, 2)), (1, 1), "endpoint: {case}");
        }
    }
}

/// A service in a namespace that no Sidecar here names.
#[test]
fn what_a_sidecar_does_not_show_is_no_work() {
    let elsewhere =
        |addresses| service(99, addresses).replace("namespace: shop", "namespace: depot");
    for services in [FEW, MANY] {
        let mut bench = mesh("sidecar", services, SIDECAR);
        assert_eq!(work(&mut bench, &elsewhere(1)), (0, 0), "added");
        assert_eq!(work(&mut bench, &elsewhere(2)), (0, 0), "an endpoint");
        let mut bench = mesh("sidecar", services, "");
        assert_ne!(
            work(&mut bench, &elsewhere(1)),
            (0, 0),
            "where all is shown"
        );
    }
}

/// A service on a port of its own leaves listeners and tables of other ports alone, whether or not a Sidecar shows it.
#[test]
fn a_new_port_is_work_for_that_port() {
    let added = service(99, 1).replace("number: 80", "number: 9090");
    let works = ["", SIDECAR].map(|more| work(&mut mesh("sidecar", FEW, more), &added));
    assert_eq!(works[0], works[1]);
    let many = work(&mut mesh("sidecar", MANY, SIDECAR), &added);
    assert_eq!(works[1], many, "however many there are");
}
