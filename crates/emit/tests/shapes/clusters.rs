//! Shapes of emitted clusters.

use pilotfish_ir::cluster::{
    Discovery, DnsFamily, Keepalive, OutlierDetection, Ping, Places, Policy, ProxyProtocol,
    RetryBudget, UpstreamHttp, Warmup,
};
use pilotfish_ir::endpoint::Locality;
use pilotfish_ir::tls::{ByRequest, CustomTls, MutualTls, SecretSource, TlsLimits, UpstreamTls};
use pilotfish_ir::{Cluster, ClusterName, Millis};
use serde_json::{Value, json};

use crate::support::*;

fn emitted(cluster: &Cluster) -> Value {
    body(&pilotfish_emit::cluster(cluster, &istio()))
}

fn web_metadata() -> Value {
    json!({"filterMetadata": {"istio": {
        "services": [{"host": "web.shop.svc.cluster.local", "name": "web", "namespace": "shop"}],
    }}})
}

/// Expected of `service(web(80))`.
fn plain_service() -> Value {
    json!({
        "name": "outbound|80||web.shop.svc.cluster.local",
        "altStatName": "outbound|80||web.shop.svc.cluster.local;",
        "type": "EDS",
        "edsClusterConfig": {"edsConfig": over_ads(), "serviceName": "outbound|80||web.shop.svc.cluster.local"},
        "connectTimeout": "10s",
        "circuitBreakers": unlimited(),
        "commonLbConfig": {"healthyPanicThreshold": {}},
        "lbPolicy": "LEAST_REQUEST",
        "filters": [metadata_exchange()],
        "metadata": web_metadata(),
    })
}

fn http_options(options: Value) -> Value {
    let kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let options = with(
        options,
        json!({"@type": format!("type.googleapis.com/{kind}")}),
    );
    json!({kind: options})
}

fn mesh_client(alpn: &[&str], sni: &str, identity: &str) -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "commonTlsContext": {
                "alpnProtocols": alpn,
                "combinedValidationContext": {
                    "defaultValidationContext": {"matchSubjectAltNames": [{"exact": identity}]},
                    "validationContextSdsSecretConfig": agent_secret("ROOTCA"),
                },
                "tlsCertificateSdsSecretConfigs": [agent_secret("default")],
                "tlsParams": {"tlsMaximumProtocolVersion": "TLSv1_3", "tlsMinimumProtocolVersion": "TLSv1_2"},
            },
            "sni": sni,
        },
    })
}

fn mutual(http2: bool) -> MutualTls {
    MutualTls {
        sni: "outbound_.80_._.web.shop.svc.cluster.local".into(),
        identities: vec![text("spiffe://cluster.local/ns/shop/sa/web")],
        http2,
        peer_exchange: true,
        ..Default::default()
    }
}

#[test]
fn plain_text_service() {
    assert_eq!(emitted(&service(web(80))), plain_service());
}

#[test]
fn service_with_automatic_mutual_tls() {
    let mut cluster = service(web(80));
    cluster.tls = UpstreamTls::AutoMutual(mutual(true));
    cluster.http = UpstreamHttp::Http2;
    let socket = mesh_client(
        &["istio-peer-exchange", "istio", "h2"],
        "outbound_.80_._.web.shop.svc.cluster.local",
        "spiffe://cluster.local/ns/shop/sa/web",
    );
    let expected = with(
        plain_service(),
        json!({
            "transportSocketMatches": [
                {"name": "tlsMode-istio", "match": {"tlsMode": "istio"}, "transportSocket": socket},
                {"name": "tlsMode-disabled", "match": {}, "transportSocket": {
                    "name": "envoy.transport_sockets.raw_buffer",
                    "typedConfig": {
                        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer",
                    },
                }},
            ],
            "typedExtensionProtocolOptions": http_options(json!({"explicitHttpConfig": {"http2ProtocolOptions": {}}})),
        }),
    );
    assert_eq!(emitted(&cluster), expected);
}

#[test]
fn headless_service_goes_where_the_client_meant_to() {
    let mut cluster = service(web(80));
    cluster.discovery = Discovery::OriginalDst {
        use_http_header: false,
        port_override: None,
        keep_forever: false,
    };
    cluster.balancing.policy = Policy::ClusterProvided;
    cluster.tls = UpstreamTls::Mutual(mutual(false));
    let socket = mesh_client(
        &["istio-peer-exchange", "istio"],
        "outbound_.80_._.web.shop.svc.cluster.local",
        "spiffe://cluster.local/ns/shop/sa/web",
    );
    let expected = with(
        without(plain_service(), &["edsClusterConfig"]),
        json!({"type": "ORIGINAL_DST", "lbPolicy": "CLUSTER_PROVIDED", "transportSocket": socket}),
    );
    assert_eq!(emitted(&cluster), expected);
}

fn dns(logical: bool) -> Cluster {
    let name = ClusterName::Outbound {
        port: 443,
        subset: text(""),
        host: text("api.outside.example"),
    };
    let mut endpoint = endpoint("api.outside.example", 443);
    endpoint.workload = text("dns;shop;dns;;Kubernetes");
    let endpoints = endpoint_set(
        name.clone(),
        vec![group(1, Locality::default(), vec![endpoint])],
    );
    let discovery = Discovery::Dns {
        endpoints,
        logical,
        family: DnsFamily::V4Only,
        refresh: Millis::secs(60),
        jitter: Millis(100),
        queries: 100,
    };
    let mut cluster = cluster(name, discovery, Policy::LeastRequest);
    cluster.external = true;
    cluster.balancing.panic_threshold = Some(0);
    cluster
}

#[test]
fn names_outside_the_mesh_are_resolved() {
    let expected = json!({
        "name": "outbound|443||api.outside.example",
        "altStatName": "outbound|443||api.outside.example;",
        "type": "STRICT_DNS",
        "connectTimeout": "10s",
        "circuitBreakers": unlimited(),
        "commonLbConfig": {"healthyPanicThreshold": {}},
        "lbPolicy": "LEAST_REQUEST",
        "dnsJitter": "0.100s",
        "dnsLookupFamily": "V4_ONLY",
        "dnsRefreshRate": "60s",
        "respectDnsTtl": true,
        "typedDnsResolverConfig": {
            "name": "envoy.network.dns_resolver.cares",
            "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
                "udpMaxQueries": 100,
            },
        },
        "loadAssignment": {
            "clusterName": "outbound|443||api.outside.example",
            "endpoints": [{
                "lbEndpoints": [{
                    "endpoint": {"address": {"socketAddress": {"address": "api.outside.example", "portValue": 443}}},
                    "loadBalancingWeight": 1,
                    "metadata": {"filterMetadata": {"istio": {"workload": "dns;shop;dns;;Kubernetes"}}},
                }],
                "loadBalancingWeight": 1,
                "locality": {},
            }],
        },
        "metadata": {"filterMetadata": {"istio": {"external": true}}},
    });
    assert_eq!(emitted(&dns(false)), expected);
    assert_eq!(
        emitted(&dns(true)),
        with(expected, json!({"type": "LOGICAL_DNS"}))
    );
}

#[test]
fn names_resolved_on_demand() {
    let name = ClusterName::Outbound {
        port: 80,
        subset: text(""),
        host: text("*.dyn.example"),
    };
    let discovery = Discovery::DynamicDns {
        host: text("*.dyn.example"),
        family: DnsFamily::V4Only,
    };
    let mut cluster = cluster(name, discovery, Policy::ClusterProvided);
    cluster.external = true;
    assert_eq!(
        emitted(&cluster),
        json!({
            "name": "outbound|80||*.dyn.example",
            "altStatName": "outbound|80||*.dyn.example;",
            "clusterType": {
                "name": "envoy.clusters.dynamic_forward_proxy",
                "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig",
                    "dnsCacheConfig": {"dnsLookupFamily": "V4_ONLY", "name": "*.dyn.example_dfp_dns_cache"},
                },
            },
            "connectTimeout": "10s",
            "circuitBreakers": unlimited(),
            "lbPolicy": "CLUSTER_PROVIDED",
            "metadata": {"filterMetadata": {"istio": {"external": true}}},
        })
    );
}

#[test]
fn names_resolved_on_demand_are_taken_with_options_of_http() {
    let name = ClusterName::Outbound {
        port: 7070,
        subset: text(""),
        host: text("*.dyn.example"),
    };
    let discovery = Discovery::DynamicDns {
        host: text("*.dyn.example"),
        family: DnsFamily::V4Only,
    };
    let mut cluster = cluster(name, discovery, Policy::ClusterProvided);
    let unchecked = |c: &Cluster| {
        emitted(c)["clusterType"]["typedConfig"]["allowInsecureClusterOptions"] == true
    };
    assert!(!unchecked(&cluster));
    cluster.http = UpstreamHttp::Http2;
    assert!(unchecked(&cluster), "Envoy refuses the cluster otherwise");
}

fn original_dst(name: ClusterName, keep_forever: bool) -> Cluster {
    let discovery = Discovery::OriginalDst {
        use_http_header: false,
        port_override: None,
        keep_forever,
    };
    cluster(name, discovery, Policy::ClusterProvided)
}

#[test]
fn application_port() {
    let mut cluster = original_dst(ClusterName::Inbound { port: 8080 }, true);
    cluster.services.push(web_service());
    cluster.balancing.explicit_common = true;
    cluster.source_address = Some(text("127.0.0.6"));
    cluster.extra_source_addresses = vec![text("::6")];
    assert_eq!(
        emitted(&cluster),
        json!({
            "name": "inbound|8080||",
            "altStatName": "inbound|8080||;",
            "type": "ORIGINAL_DST",
            "cleanupInterval": "9223372035s",
            "connectTimeout": "10s",
            "circuitBreakers": unlimited(),
            "commonLbConfig": {},
            "lbPolicy": "CLUSTER_PROVIDED",
            "metadata": web_metadata(),
            "upstreamBindConfig": {
                "sourceAddress": {"address": "127.0.0.6", "portValue": 0},
                "extraSourceAddresses": [{"address": {"address": "::6", "portValue": 0}}],
            },
        })
    );
}

#[test]
fn pass_through() {
    let mut outbound = original_dst(ClusterName::Passthrough, false);
    outbound.http = UpstreamHttp::Downstream;
    outbound.pool.idle_timeout = Some(Millis::secs(300));
    let mut inbound = outbound.clone();
    outbound.metadata_exchange = true;
    let expected = json!({
        "name": "PassthroughCluster",
        "altStatName": "PassthroughCluster;",
        "type": "ORIGINAL_DST",
        "connectTimeout": "10s",
        "circuitBreakers": unlimited(),
        "lbPolicy": "CLUSTER_PROVIDED",
        "filters": [metadata_exchange()],
        "typedExtensionProtocolOptions": http_options(json!({
            "commonHttpProtocolOptions": {"idleTimeout": "300s"},
            "useDownstreamProtocolConfig": {"http2ProtocolOptions": {}, "httpProtocolOptions": {}},
        })),
    });
    assert_eq!(emitted(&outbound), expected);

    inbound.name = ClusterName::InboundPassthrough;
    inbound.source_address = Some(text("127.0.0.6"));
    let expected = with(
        without(expected, &["filters"]),
        json!({
            "name": "InboundPassthroughCluster",
            "upstreamBindConfig": {"sourceAddress": {"address": "127.0.0.6", "portValue": 0}},
        }),
    );
    assert_eq!(emitted(&inbound), expected);
}

#[test]
fn nowhere() {
    assert_eq!(
        emitted(&cluster(
            ClusterName::BlackHole,
            Discovery::Static,
            Policy::RoundRobin
        )),
        json!({
            "name": "BlackHoleCluster",
            "altStatName": "BlackHoleCluster;",
            "type": "STATIC",
            "connectTimeout": "10s",
        })
    );
}

#[test]
fn endpoints_in_the_cluster() {
    let name = ClusterName::Inbound { port: 9000 };
    let mut local = endpoint("127.0.0.1", 9001);
    local.weight = 0;
    let set = endpoint_set(
        name.clone(),
        vec![group(0, Locality::default(), vec![local])],
    );
    let cluster = cluster(name, Discovery::StaticEndpoints(set), Policy::RoundRobin);
    let address = json!({"socketAddress": {"address": "127.0.0.1", "portValue": 9001}});
    assert_eq!(
        emitted(&cluster)["loadAssignment"],
        json!({
            "clusterName": "inbound|9000||",
            "endpoints": [{"lbEndpoints": [{"endpoint": {"address": address}}]}],
        })
    );
}

#[test]
fn connection_pool_and_outlier_detection() {
    let mut cluster = service(subset(80, "v1"));
    cluster.rule = Some(text(
        "/apis/networking.istio.io/v1/namespaces/shop/destination-rule/web",
    ));
    cluster.subset = Some(text("v1"));
    cluster.balancing.panic_threshold = Some(40);
    cluster.balancing.places = Places::Weighted;
    cluster.http = UpstreamHttp::Http2;
    cluster.pool.connect_timeout = Millis(1250);
    cluster.pool.max_connections = Some(77);
    cluster.pool.max_pending = Some(11);
    cluster.pool.max_requests = Some(222);
    cluster.pool.max_retries = Some(4);
    cluster.pool.max_requests_per_connection = Some(33);
    cluster.pool.max_concurrent_streams = Some(99);
    cluster.pool.idle_timeout = Some(Millis::secs(55));
    cluster.pool.max_duration = Some(Millis::secs(600));
    cluster.pool.keepalive = Some(Keepalive {
        probes: Some(5),
        time: Some(120),
        interval: Some(15),
    });
    cluster.outlier = Some(OutlierDetection {
        split_local_origin: true,
        consecutive_local: Some(8),
        consecutive_gateway: Some(0),
        consecutive_5xx: Some(6),
        interval: Some(Millis::secs(7)),
        base_ejection: Some(Millis::secs(44)),
        max_ejection_percent: Some(60),
    });
    let emitted = emitted(&cluster);
    let expected = [
        ("connectTimeout", json!("1.250s")),
        (
            "commonLbConfig",
            json!({"healthyPanicThreshold": {"value": 40.0}, "localityWeightedLbConfig": {}}),
        ),
        (
            "circuitBreakers",
            json!({"thresholds": [
                {"maxConnections": 77, "maxPendingRequests": 11, "maxRequests": 222, "maxRetries": 4},
            ]}),
        ),
        (
            "metadata",
            json!({"filterMetadata": {"istio": {
                "config": "/apis/networking.istio.io/v1/namespaces/shop/destination-rule/web",
                "services": [{"host": "web.shop.svc.cluster.local", "name": "web", "namespace": "shop"}],
                "subset": "v1",
            }}}),
        ),
        (
            "outlierDetection",
            json!({
                "baseEjectionTime": "44s",
                "consecutive5xx": 6,
                "consecutiveGatewayFailure": 0,
                "consecutiveLocalOriginFailure": 8,
                "enforcingConsecutive5xx": 100,
                "enforcingConsecutiveGatewayFailure": 0,
                "enforcingConsecutiveLocalOriginFailure": 100,
                "enforcingLocalOriginSuccessRate": 0,
                "enforcingSuccessRate": 0,
                "interval": "7s",
                "maxEjectionPercent": 60,
                "splitExternalLocalOriginErrors": true,
            }),
        ),
        (
            "typedExtensionProtocolOptions",
            http_options(json!({
                "commonHttpProtocolOptions": {
                    "idleTimeout": "55s", "maxConnectionDuration": "600s", "maxRequestsPerConnection": 33,
                },
                "explicitHttpConfig": {"http2ProtocolOptions": {"maxConcurrentStreams": 99}},
            })),
        ),
        (
            "upstreamConnectionOptions",
            json!({
                "tcpKeepalive": {"keepaliveInterval": 15, "keepaliveProbes": 5, "keepaliveTime": 120},
            }),
        ),
    ];
    for (field, value) in expected {
        assert_eq!(emitted[field], value, "{field}");
    }
}

#[test]
fn load_balancers() {
    let with_policy = |policy| {
        let mut cluster = service(web(80));
        cluster.balancing.policy = policy;
        cluster
    };
    let ring = emitted(&with_policy(Policy::RingHash {
        minimum: Some(1024),
    }));
    assert_eq!(ring["lbPolicy"], "RING_HASH");
    assert_eq!(ring["ringHashLbConfig"], json!({"minimumRingSize": "1024"}));
    let maglev = emitted(&with_policy(Policy::Maglev { table: Some(65537) }));
    assert_eq!(maglev["maglevLbConfig"], json!({"tableSize": "65537"}));
    let mut warm = with_policy(Policy::RoundRobin);
    warm.balancing.warmup = Some(Warmup {
        window: Some(Millis::secs(60)),
        minimum_percent: Some(20.0.into()),
        aggression: Some(1.5.into()),
    });
    let warm = emitted(&warm);
    assert_eq!(warm.get("lbPolicy"), None, "round robin is the default");
    assert_eq!(
        warm["roundRobinLbConfig"],
        json!({"slowStartConfig": {
            "slowStartWindow": "60s",
            "minWeightPercent": {"value": 20.0},
            "aggression": {"defaultValue": 1.5, "runtimeKey": "("},
        }})
    );
}

#[test]
fn tls_of_the_users() {
    let mut cluster = service(web(443));
    cluster.tls = UpstreamTls::Custom(CustomTls {
        certificate: Some(SecretSource::File(text(
            "file-cert:/etc/certs/c.pem~/etc/certs/k.pem",
        ))),
        roots: Some(SecretSource::Credential(text(
            "kubernetes://upstream-ca-cacert",
        ))),
        by_request: ByRequest {
            sni: true,
            san: true,
        },
        ..Default::default()
    });
    cluster.foreign_alpn = true;
    let emitted = emitted(&cluster);
    let by_file = {
        let mut secret = agent_secret("file-cert:/etc/certs/c.pem~/etc/certs/k.pem");
        secret["sdsConfig"] = without(secret["sdsConfig"].take(), &["initialFetchTimeout"]);
        secret
    };
    assert_eq!(
        emitted["transportSocket"]["typedConfig"]["commonTlsContext"],
        json!({
            "combinedValidationContext": {
                "defaultValidationContext": {},
                "validationContextSdsSecretConfig": {
                    "name": "kubernetes://upstream-ca-cacert",
                    "sdsConfig": {"ads": {}, "resourceApiVersion": "V3"},
                },
            },
            "tlsCertificateSdsSecretConfigs": [by_file],
            "tlsParams": {"tlsMaximumProtocolVersion": "TLSv1_3", "tlsMinimumProtocolVersion": "TLSv1_2"},
        })
    );
    assert_eq!(
        emitted["typedExtensionProtocolOptions"],
        http_options(json!({
            "explicitHttpConfig": {"httpProtocolOptions": {}},
            "upstreamHttpProtocolOptions": {"autoSanValidation": true, "autoSni": true},
        }))
    );
    assert_eq!(
        emitted["metadata"]["filterMetadata"]["istio"]["alpn_override"],
        "false"
    );
}

#[test]
fn tls_without_verification() {
    let mut cluster = service(web(443));
    cluster.tls = UpstreamTls::Custom(CustomTls {
        insecure_skip_verify: true,
        by_request: ByRequest {
            sni: true,
            san: false,
        },
        ..Default::default()
    });
    let emitted = emitted(&cluster);
    assert_eq!(
        emitted["transportSocket"]["typedConfig"]["commonTlsContext"]["validationContext"],
        json!({})
    );
    assert_eq!(
        emitted["typedExtensionProtocolOptions"],
        http_options(json!({
            "explicitHttpConfig": {"httpProtocolOptions": {}},
            "upstreamHttpProtocolOptions": {"autoSni": true},
        }))
    );
}

#[test]
fn a_proxy_header_goes_before_whatever_secures_the_connection() {
    const NAME: &str = "envoy.transport_sockets.upstream_proxy_protocol";
    let mut cluster = service(web(80));
    cluster.proxy_protocol = Some(ProxyProtocol::V2);
    let plain = emitted(&cluster);
    let socket = &plain["transportSocket"];
    assert_eq!(socket["name"], NAME);
    assert_eq!(socket["typedConfig"]["config"], json!({"version": "V2"}));
    assert_eq!(
        socket["typedConfig"]["transportSocket"]["name"],
        "raw_buffer"
    );
    cluster.tls = UpstreamTls::AutoMutual(mutual(false));
    cluster.proxy_protocol = Some(ProxyProtocol::V1);
    let by_endpoint = emitted(&cluster);
    let matches = by_endpoint["transportSocketMatches"].as_array().unwrap();
    let inner: Vec<_> = matches
        .iter()
        .map(|m| {
            assert_eq!(m["transportSocket"]["name"], NAME);
            m["transportSocket"]["typedConfig"]["transportSocket"]["name"].clone()
        })
        .collect();
    assert_eq!(
        inner,
        [
            "envoy.transport_sockets.tls",
            "envoy.transport_sockets.raw_buffer"
        ]
    );
}

#[test]
fn retry_budget() {
    let mut cluster = service(web(80));
    cluster.pool.retry_budget = Some(RetryBudget {
        percent: 12.5.into(),
        minimum: 5,
        interval: Some(Millis::secs(2)),
    });
    assert_eq!(
        emitted(&cluster)["circuitBreakers"]["thresholds"][0]["retryBudget"],
        json!({"budgetPercent": {"value": 12.5}, "minRetryConcurrency": 5, "budgetInterval": "2s"})
    );
}

#[test]
fn zones_instead_of_weights() {
    let mut cluster = service(web(80));
    let mut zones = |off, minimum| {
        cluster.balancing.places = Places::Zones { off, minimum };
        emitted(&cluster)["commonLbConfig"]["zoneAwareLbConfig"].clone()
    };
    assert_eq!(zones(false, Some(4)), json!({"minClusterSize": "4"}));
    assert_eq!(zones(true, None), json!({"routingEnabled": {}}));
}

#[test]
fn settings_of_http2_write_the_common_block() {
    let mut cluster = service(web(80));
    cluster.http = UpstreamHttp::Http2;
    cluster.pool.http2_keepalive = Some(Ping {
        interval: Some(Millis::secs(30)),
        timeout: Some(Millis::secs(5)),
    });
    assert_eq!(
        emitted(&cluster)["typedExtensionProtocolOptions"],
        http_options(json!({
            "commonHttpProtocolOptions": {},
            "explicitHttpConfig": {"http2ProtocolOptions": {
                "connectionKeepalive": {"interval": "30s", "timeout": "5s"},
            }},
        }))
    );
}

#[test]
fn revoked_certificates_and_parameters_of_tls() {
    let mut cluster = service(web(443));
    cluster.tls = UpstreamTls::Custom(CustomTls {
        sni: "inner.example".into(),
        roots: Some(SecretSource::File(text("file-root:/etc/certs/ca.pem"))),
        revoked: Some(text("/etc/certs/crl.pem")),
        limits: TlsLimits {
            curves: vec![text("P-256")],
            ciphers: vec![text("AES128-GCM-SHA256")],
            ..Default::default()
        },
        ..Default::default()
    });
    let emitted = emitted(&cluster);
    let common = &emitted["transportSocket"]["typedConfig"]["commonTlsContext"];
    assert_eq!(
        common["combinedValidationContext"]["defaultValidationContext"],
        json!({"crl": {"filename": "/etc/certs/crl.pem"}})
    );
    assert_eq!(common["tlsParams"]["ecdhCurves"], json!(["P-256"]));
    assert_eq!(
        common["tlsParams"]["cipherSuites"],
        json!(["AES128-GCM-SHA256"])
    );
    assert_eq!(
        emitted["metadata"]["filterMetadata"]["istio"].get("alpn_override"),
        None
    );
}
