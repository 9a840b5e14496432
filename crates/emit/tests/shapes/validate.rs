//! Asks a real Envoy what it thinks of the stock dialect.
//!
//! `ENVOY=~/.cache/pilotfish-peers/envoy cargo test -p pilotfish-emit -- --ignored real_envoy`

use std::process::Command;

use pilotfish_emit::Encoded;
use pilotfish_ir::cluster::{
    Discovery, DnsFamily, Keepalive, OutlierDetection, Places, Policy, UpstreamHttp, Warmup,
};
use pilotfish_ir::endpoint::Locality;
use pilotfish_ir::listener::{DnsCache, Handler, Routes, Side, TcpCodec, Transport};
use pilotfish_ir::route::{
    Abort, Action, Body, Cors, Fault, HashPolicy, Mirror, PathMatch, Redirect, Retries, StringMatch,
};
use pilotfish_ir::tls::{CustomTls, MutualTls, SecretSource, UpstreamTls};
use pilotfish_ir::{
    Cluster, ClusterName, Listener, Millionths, Millis, RouteTable, Share, VirtualHost,
};
use serde_json::{Value, json};

use crate::listeners::{gateway, virtual_inbound};
use crate::support::*;

fn named(host: &str) -> ClusterName {
    ClusterName::Outbound {
        port: 80,
        subset: text(""),
        host: text(host),
    }
}

fn clusters() -> Vec<Cluster> {
    let mut all = vec![cluster(
        ClusterName::BlackHole,
        Discovery::Static,
        Policy::RoundRobin,
    )];

    let mut mesh = service(named("auto.mutual"));
    mesh.tls = UpstreamTls::AutoMutual(MutualTls::default());
    mesh.http = UpstreamHttp::Http2;
    all.push(mesh);

    let mut pooled = service(named("pooled"));
    pooled.http = UpstreamHttp::Downstream;
    pooled.balancing.policy = Policy::RoundRobin;
    pooled.balancing.places = Places::Weighted;
    pooled.balancing.warmup = Some(Warmup {
        window: Some(Millis::secs(60)),
        minimum_percent: Some(20.0.into()),
        aggression: Some(1.5.into()),
    });
    pooled.pool.max_requests_per_connection = Some(3);
    pooled.pool.idle_timeout = Some(Millis::secs(30));
    pooled.pool.keepalive = Some(Keepalive {
        probes: Some(3),
        time: Some(100),
        interval: Some(10),
    });
    pooled.outlier = Some(OutlierDetection {
        split_local_origin: true,
        consecutive_5xx: Some(3),
        consecutive_local: Some(3),
        interval: Some(Millis::secs(1)),
        ..Default::default()
    });
    all.push(pooled);

    let mut ring = service(named("ring"));
    ring.balancing.policy = Policy::RingHash {
        minimum: Some(1024),
    };
    all.push(ring);

    for (name, logical) in [("strict.example", false), ("logical.example", true)] {
        let endpoints = endpoint_set(
            named(name),
            vec![group(
                1,
                Locality::default(),
                vec![endpoint("localhost", 80)],
            )],
        );
        let discovery = Discovery::Dns {
            endpoints,
            logical,
            family: DnsFamily::V4Only,
            refresh: Millis::secs(60),
            jitter: Millis(100),
            queries: 100,
        };
        all.push(cluster(named(name), discovery, Policy::LeastRequest));
    }

    let original = Discovery::OriginalDst {
        use_http_header: false,
        port_override: None,
        keep_forever: true,
    };
    let mut inbound = cluster(
        ClusterName::InboundPassthrough,
        original.clone(),
        Policy::ClusterProvided,
    );
    inbound.source_address = Some(text("127.0.0.6"));
    inbound.extra_source_addresses = vec![text("::6")];
    all.push(inbound);
    all.push(cluster(
        ClusterName::Passthrough,
        original,
        Policy::ClusterProvided,
    ));

    let dynamic = Discovery::DynamicDns {
        host: text("*.dyn.example"),
        family: DnsFamily::V4Only,
    };
    all.push(cluster(
        named("*.dyn.example"),
        dynamic,
        Policy::ClusterProvided,
    ));

    let mut verified = service(named("verified"));
    verified.tls = UpstreamTls::Custom(CustomTls {
        subject_alt_names: vec![text("inner.example")],
        sni: "inner.example".into(),
        roots: Some(SecretSource::File(text("file-root:system"))),
        ..Default::default()
    });
    all.push(verified);
    let mut unverified = service(named("unverified"));
    unverified.tls = UpstreamTls::Custom(CustomTls {
        insecure_skip_verify: true,
        ..Default::default()
    });
    all.push(unverified);
    let mut credential = service(named("credential"));
    credential.tls = UpstreamTls::Custom(CustomTls {
        certificate: Some(SecretSource::Credential(text("kubernetes://client"))),
        roots: Some(SecretSource::Credential(text("kubernetes://client-cacert"))),
        subject_alt_names: vec![text("inner.example")],
        ..Default::default()
    });
    all.push(credential);
    all
}

fn rich_host() -> VirtualHost {
    let mut rich = forward(vec![to(named("pooled"), 70), to(named("ring"), 30)]);
    rich.retries = Some(Retries {
        per_try: Some(Millis::secs(2)),
        other_localities: true,
        backoff: Some(Millis(80)),
        ..default_retries()
    });
    rich.mirrors = vec![Mirror {
        cluster: named("ring"),
        share: Share::Millionths(Millionths(333_000)),
        disable_shadow_suffix: true,
    }];
    rich.hash = vec![
        HashPolicy::Cookie {
            name: text("sess"),
            path: text("/"),
            ttl: Some(Millis(0)),
            attributes: vec![(text("SameSite"), text("Strict"))],
        },
        HashPolicy::SourceIp(true),
    ];
    let mut first = route("rich", Action::Forward(Box::new(rich)));
    first.matches.path = PathMatch::SegmentPrefix(text("/rich"));
    first.fault = Some(Fault {
        delay: Some((Millis::secs(1), Share::Percent(10))),
        abort: Some((Abort::Http(503), Some(Share::Percent(10)))),
    });
    first.cors = Some(Cors {
        origins: vec![StringMatch::Regex(text("https://.*"))],
        ..Default::default()
    });
    let respond = route(
        "teapot",
        Action::Respond {
            status: 418,
            body: Some(Body::Text(text("short"))),
        },
    );
    let redirect = route(
        "redirect",
        Action::Redirect(Redirect {
            https: true,
            code: 301,
            ..Default::default()
        }),
    );
    VirtualHost {
        name: text("web"),
        domains: vec![text("*")],
        routes: vec![first, redirect, respond],
        attempt_count: true,
        require_tls: false,
        session: None,
    }
}

fn listeners() -> Vec<Listener> {
    let table = RouteTable {
        name: text("inline"),
        ignore_port: true,
        max_direct_response: Some(1 << 20),
    };
    let inline = http(
        Side::Client,
        "outbound_0.0.0.0_80",
        Routes::Inline(table, vec![rich_host()]),
    );
    let mut by_inspection = chain("http", Handler::Http(Box::new(inline)));
    by_inspection.matches.transport = Some(Transport::Plain);
    by_inspection.matches.alpn = vec![text("http/1.1"), text("h2c")];
    by_inspection.connect_timeout = Some(Millis::secs(15));
    let mut outbound = listener("0.0.0.0_80", "0.0.0.0", 80, vec![by_inspection]);
    outbound.inspect.http = Some(pilotfish_ir::listener::Ports::ALL);
    outbound.default_chain = Some(chain(
        "rest",
        Handler::Tcp(tcp(ClusterName::Passthrough, Side::Client)),
    ));

    let mut mongo = tcp(named("pooled"), Side::Client);
    mongo.codec = TcpCodec::Mongo;
    mongo.hash_source_ip = true;
    mongo.max_duration = Some(Millis::secs(9));
    let mut redis = tcp(named("pooled"), Side::Client);
    redis.codec = TcpCodec::Redis;
    let mut by_sni = tcp(named("*.dyn.example"), Side::Client);
    by_sni.forward_by_sni = Some(DnsCache {
        host: text("*.dyn.example"),
        family: DnsFamily::V4Only,
        port: 443,
    });
    let mut by_sni = listener(
        "sni",
        "10.0.0.3",
        443,
        vec![chain("", Handler::Tcp(by_sni))],
    );
    by_sni.inspect.tls = Some(pilotfish_ir::listener::Ports::ALL);

    let mut inbound = virtual_inbound();
    // Needs a capability the test has not.
    inbound.inspect.original_src = false;
    vec![
        outbound,
        listener(
            "mongo",
            "10.0.0.1",
            27017,
            vec![chain("", Handler::Tcp(mongo))],
        ),
        listener(
            "redis",
            "10.0.0.2",
            6379,
            vec![chain("", Handler::Tcp(redis))],
        ),
        by_sni,
        inbound,
        gateway(
            SecretSource::Credential(text("kubernetes://web-cert")),
            Some(SecretSource::File(text("file-root:system"))),
        ),
    ]
}

fn bootstrap(clusters: &[Encoded], listeners: &[Encoded]) -> Value {
    let mut clusters: Vec<_> = clusters.iter().map(body).collect();
    clusters.push(json!({
        "name": "xds",
        "type": "STATIC",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }},
        "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint": {
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
        }}]}]},
    }));
    let listeners: Vec<_> = listeners.iter().map(body).collect();
    json!({
        "node": {"id": "test", "cluster": "test"},
        "dynamic_resources": {"ads_config": {
            "api_type": "GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
        }},
        "static_resources": {"clusters": clusters, "listeners": listeners},
    })
}

#[test]
#[ignore = "needs an Envoy binary: set ENVOY to its path"]
fn real_envoy_accepts_the_stock_dialect() {
    let envoy = std::env::var_os("ENVOY").expect("ENVOY is the path of a stock Envoy");
    let clusters: Vec<_> = clusters()
        .iter()
        .map(|c| pilotfish_emit::cluster(c, &stock()))
        .collect();
    let listeners: Vec<_> = listeners()
        .iter()
        .map(|l| pilotfish_emit::listener(l, &stock()))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bootstrap.json");
    std::fs::write(&path, bootstrap(&clusters, &listeners).to_string()).unwrap();
    let output = Command::new(envoy)
        .args(["--mode", "validate", "-c"])
        .arg(&path)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    println!(
        "{} clusters, {} listeners\n{log}",
        clusters.len(),
        listeners.len()
    );
}
