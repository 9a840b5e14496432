//! What a proxy is decides what it gets, whoever asks about it: labels and nodes count as soon as somebody reads them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::bench::{Bench, settings};
use common::{FURNISHED, proxies};
use pilotfish_protos::envoy::config::core::v3::{address::Address, socket_address::PortSpecifier};
use pilotfish_protos::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilotfish_protos::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use pilotfish_xds::TypeUrl;
use prost::Message;
use serde_json::json;

/// Priority by address of the endpoints of a service on port 80.
fn priorities(bench: &mut Bench, proxy: usize) -> BTreeMap<String, u32> {
    let view = bench.ask(proxy, &TypeUrl::Endpoints);
    let resource = view.get("outbound|80||web.shop.svc.cluster.local").unwrap();
    let set = ClusterLoadAssignment::decode(resource.body()).unwrap();
    let mut all = BTreeMap::new();
    for place in &set.endpoints {
        for endpoint in &place.lb_endpoints {
            let Some(HostIdentifier::Endpoint(e)) = &endpoint.host_identifier else {
                panic!("no endpoint");
            };
            let Some(Address::SocketAddress(socket)) =
                e.address.as_ref().and_then(|a| a.address.as_ref())
            else {
                panic!("no socket");
            };
            assert_eq!(socket.port_specifier, Some(PortSpecifier::PortValue(8080)));
            all.insert(socket.address.clone(), place.priority);
        }
    }
    all
}

/// Two clients that differ in version and node. Endpoint 10.0.0.2 is version 1 on node 1, 10.0.0.5 version 2 on node 2.
fn clients() -> Bench {
    let facts = |address: &str, version: &str, node: &str| {
        let meta = json!({"LABELS": {"app": "client", "version": version}, "NODE_NAME": node});
        proxies::facts(&proxies::node("sidecar", address, "shop", &meta))
    };
    let first = facts("10.9.0.1", "v1", "n1");
    let second = facts("10.9.0.2", "v2", "n2");
    let mut bench = Bench::with(settings(false), vec![("first", first), ("second", second)]);
    bench.write(FURNISHED);
    bench
}

fn prefers(near: &str, far: &str) -> BTreeMap<String, u32> {
    [(near.to_owned(), 0), (far.to_owned(), 1)].into()
}

#[test]
fn labels_that_the_mesh_reads_count() {
    let mut bench = clients();
    let alike = priorities(&mut bench, 0);
    assert_eq!(alike, priorities(&mut bench, 1), "nobody reads the label");
    bench.set_mesh("localityLbSetting: {failoverPriority: [version]}");
    assert_eq!(priorities(&mut bench, 0), prefers("10.0.0.2", "10.0.0.5"));
    assert_eq!(priorities(&mut bench, 1), prefers("10.0.0.5", "10.0.0.2"));
    bench.set_mesh("{}");
    assert_eq!(priorities(&mut bench, 0), alike);
    assert_eq!(priorities(&mut bench, 1), alike);
}

#[test]
fn nodes_count_where_a_rule_reads_them() {
    let mut bench = clients();
    let alike = priorities(&mut bench, 0);
    bench.write(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: rule-a, namespace: shop}
spec:
  host: web
  trafficPolicy:
    outlierDetection: {consecutive5xxErrors: 3}
    loadBalancer: {localityLbSetting: {failoverPriority: [kubernetes.io/hostname]}}
",
    );
    assert_eq!(priorities(&mut bench, 0), prefers("10.0.0.2", "10.0.0.5"));
    assert_eq!(priorities(&mut bench, 1), prefers("10.0.0.5", "10.0.0.2"));
    bench.write(FURNISHED);
    assert_eq!(priorities(&mut bench, 0), alike);
    assert_eq!(priorities(&mut bench, 1), alike);
}
