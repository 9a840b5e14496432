//! How long emitting takes: `cargo test --release -p pilotfish-emit -- --ignored --nocapture cost`.

use std::hint::black_box;
use std::time::Duration;

use pilotfish_ir::cluster::UpstreamHttp;
use pilotfish_ir::endpoint::Locality;
use pilotfish_ir::route::Action;
use pilotfish_ir::tls::{MutualTls, UpstreamTls};
use pilotfish_ir::{RouteTable, VirtualHost};

use crate::listeners::virtual_inbound;
use crate::support::*;

#[expect(clippy::disallowed_methods, reason = "a measurement needs a clock")]
fn measure<T>(what: &str, rounds: u32, mut emit: impl FnMut() -> T) {
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        black_box(emit());
    }
    let each: Duration = start.elapsed() / rounds;
    println!("{what}: {each:?}");
}

#[test]
#[ignore = "a measurement, not a test"]
fn cost() {
    let dialect = istio();
    let mut cluster = service(web(80));
    cluster.http = UpstreamHttp::Http2;
    cluster.tls = UpstreamTls::AutoMutual(MutualTls {
        sni: "outbound_.80_._.web.shop.svc.cluster.local".into(),
        identities: vec![text("spiffe://cluster.local/ns/shop/sa/web")],
        http2: true,
        peer_exchange: true,
        ..Default::default()
    });
    measure("cluster", 100_000, || {
        pilotfish_emit::cluster(&cluster, &dialect)
    });

    let mut one = endpoint("10.244.1.11", 8080);
    one.mutual_tls = true;
    one.workload = text("web-v1-6d8c0f-a1x;shop;web;v1;Kubernetes");
    let set = endpoint_set(web(80), vec![group(1, Locality::default(), vec![one; 100])]);
    measure("100 endpoints", 10_000, || {
        pilotfish_emit::endpoints(&set, &dialect)
    });

    let inbound = virtual_inbound();
    measure("virtual inbound listener", 20_000, || {
        pilotfish_emit::listener(&inbound, &dialect)
    });

    let mut forward = forward(vec![to(web(80), 0)]);
    forward.retries = Some(default_retries());
    let host = VirtualHost {
        name: text("web.shop.svc.cluster.local:80"),
        domains: [
            "web.shop.svc.cluster.local",
            "web.shop.svc",
            "web.shop",
            "web",
            "10.96.20.11",
        ]
        .map(text)
        .into(),
        routes: vec![route("default", Action::Forward(Box::new(forward)))],
        attempt_count: true,
        require_tls: false,
        session: None,
    };
    measure("virtual host", 100_000, || {
        pilotfish_emit::virtual_host(&host, &dialect)
    });
    let hosts = vec![pilotfish_emit::virtual_host(&host, &dialect); 1000];
    let table = RouteTable {
        name: text("80"),
        ignore_port: true,
        max_direct_response: Some(1 << 20),
    };
    println!(
        "table of 1000 hosts: {} bytes",
        pilotfish_emit::route_table(&table, &hosts).any.len()
    );
    measure("splice of 1000 hosts", 10_000, || {
        pilotfish_emit::route_table(&table, &hosts)
    });
}
