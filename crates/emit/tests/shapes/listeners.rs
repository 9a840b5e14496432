//! Shapes of emitted listeners.

use pilotfish_ir::cluster::DnsFamily;
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{
    CertificateParts, ClientCert, Direction, DnsCache, EscapedSlashes, Handler, Headers,
    Http2Limits, HttpLimits, Inspect, Ports, Routes, Side, TagValue, TcpCodec, Transport, Tunnel,
    Underscores,
};
use pilotfish_ir::route::Action;
use pilotfish_ir::tls::{
    CertificateFiles, ClientCheck, DownstreamMutual, DownstreamTls, SecretSource, ServerTls,
    TlsLimits,
};
use pilotfish_ir::{ClusterName, Listener, Millis, RouteTable, VirtualHost};
use serde_json::{Value, json};

use crate::support::*;

fn emitted(listener: &Listener) -> Value {
    body(&pilotfish_emit::listener(listener, &istio()))
}

fn tcp_proxy(cluster: &str) -> Value {
    json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "cluster": cluster,
            "statPrefix": cluster,
        },
    })
}

fn client_stats() -> Value {
    json!({"name": "istio.stats", "typedConfig": {"@type": "type.googleapis.com/stats.PluginConfig"}})
}

fn server_stats() -> Value {
    json!({"name": "istio.stats", "typedConfig": {
        "@type": "type.googleapis.com/stats.PluginConfig", "disableHostHeaderFallback": true,
    }})
}

fn socket(host: &str, port: u16) -> Value {
    json!({"socketAddress": {"address": host, "portValue": port}})
}

fn filter_names(filters: &Value) -> Vec<&str> {
    filters
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["name"].as_str().unwrap())
        .collect()
}

/// Expected of a connection manager, whatever the side.
fn manager(http_filters: &Value, stat_prefix: &str) -> Value {
    let literal = |tag: &str, value: &str| json!({"tag": tag, "literal": {"value": value}});
    let dry_run = |tag: &str, key: &str| {
        json!({"tag": format!("istio.authorization.dry_run.{tag}"), "metadata": {
            "kind": {"request": {}},
            "metadataKey": {"key": "envoy.filters.http.rbac", "path": [{"key": key}]},
        }})
    };
    json!({
        "@type": "type.googleapis.com/\
            envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "statPrefix": stat_prefix,
        "httpFilters": http_filters,
        "normalizePath": true,
        "pathWithEscapedSlashesAction": "KEEP_UNCHANGED",
        "proxy100Continue": true,
        "requestIdExtension": {"typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
            "useRequestIdForTraceSampling": true,
        }},
        "streamIdleTimeout": "0s",
        "tracing": {
            "clientSampling": {"value": 100.0},
            "randomSampling": {"value": 1.0},
            "overallSampling": {"value": 100.0},
            "customTags": [
                dry_run("allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"),
                dry_run("allow_policy.result", "istio_dry_run_allow_shadow_engine_result"),
                dry_run("deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"),
                dry_run("deny_policy.result", "istio_dry_run_deny_shadow_engine_result"),
                literal("istio.canonical_revision", "v1"),
                literal("istio.canonical_service", "client"),
                literal("istio.cluster_id", "Kubernetes"),
                literal("istio.mesh_id", "cluster.local"),
                literal("istio.namespace", "shop"),
            ],
        },
        "upgradeConfigs": [{"upgradeType": "websocket"}],
        "useRemoteAddress": false,
    })
}

fn peer_metadata(direction: &str) -> Value {
    json!({
        "name": "istio.metadata_exchange",
        "typedConfig": {
            "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
            "typeUrl": "type.googleapis.com/io.istio.http.peer_metadata.Config",
            "value": {
                (format!("{direction}_discovery")): [{"istio_headers": {}}, {"workload_discovery": {}}],
                (format!("{direction}_propagation")): [{"istio_headers": {}}],
            },
        },
    })
}

fn plain_filter(name: &str, kind: &str) -> Value {
    json!({"name": name, "typedConfig": {"@type": format!("type.googleapis.com/envoy.extensions.filters.http.{kind}")}})
}

fn grpc_stats() -> Value {
    json!({"name": "envoy.filters.http.grpc_stats", "typedConfig": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
        "emitFilterState": true,
        "statsForAllMethods": false,
    }})
}

fn client_http_filters() -> Value {
    json!([
        peer_metadata("upstream"),
        grpc_stats(),
        {"name": "istio.alpn", "typedConfig": {
            "@type": "type.googleapis.com/istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig",
            "alpnOverride": [
                {"alpnOverride": ["istio-http/1.0", "istio", "http/1.0"]},
                {"alpnOverride": ["istio-http/1.1", "istio", "http/1.1"], "upstreamProtocol": "HTTP11"},
                {"alpnOverride": ["istio-h2", "istio", "h2"], "upstreamProtocol": "HTTP2"},
            ],
        }},
        plain_filter("envoy.filters.http.fault", "fault.v3.HTTPFault"),
        plain_filter("envoy.filters.http.cors", "cors.v3.Cors"),
        client_stats(),
        plain_filter("envoy.filters.http.router", "router.v3.Router"),
    ])
}

fn outbound_http() -> Listener {
    let handler = http(
        Side::Client,
        "outbound_0.0.0.0_80",
        Routes::Discovered(text("80")),
    );
    let mut http = chain("", Handler::Http(Box::new(handler)));
    http.matches.transport = Some(Transport::Plain);
    http.matches.alpn = vec![text("http/1.1"), text("h2c")];
    http.connect_timeout = Some(Millis::secs(15));
    let mut listener = listener("0.0.0.0_80", "0.0.0.0", 80, vec![http]);
    let mut rest = chain(
        "PassthroughFilterChain",
        Handler::Tcp(tcp(ClusterName::Passthrough, Side::Client)),
    );
    rest.explicit_match = true;
    listener.default_chain = Some(rest);
    listener.inspect.http = Some(Ports::ALL);
    listener
}

#[test]
fn outbound_http_port() {
    let config = with(
        manager(&client_http_filters(), "outbound_0.0.0.0_80;"),
        json!({"rds": {"configSource": over_ads(), "routeConfigName": "80"}}),
    );
    let encoded = pilotfish_emit::listener(&outbound_http(), &istio());
    assert_eq!(&*encoded.name, "0.0.0.0_80");
    assert_eq!(
        typed(&encoded),
        json!({
            "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
            "name": "0.0.0.0_80",
            "address": socket("0.0.0.0", 80),
            "bindToPort": false,
            "trafficDirection": "OUTBOUND",
            "continueOnListenerFiltersTimeout": true,
            "listenerFiltersTimeout": "0s",
            "listenerFilters": [{
                "name": "envoy.filters.listener.http_inspector",
                "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
                },
            }],
            "filterChains": [{
                "filterChainMatch": {"applicationProtocols": ["http/1.1", "h2c"], "transportProtocol": "raw_buffer"},
                "filters": [{"name": "envoy.filters.network.http_connection_manager", "typedConfig": config}],
                "transportSocketConnectTimeout": "15s",
            }],
            "defaultFilterChain": {
                "name": "PassthroughFilterChain",
                "filterChainMatch": {},
                "filters": [client_stats(), tcp_proxy("PassthroughCluster")],
            },
        })
    );
}

#[test]
fn outbound_tcp_port() {
    let mut mongo = tcp(web(27017), Side::Client);
    mongo.codec = TcpCodec::Mongo;
    mongo.idle_timeout = Some(Millis::secs(90));
    mongo.max_duration = Some(Millis::secs(600));
    mongo.hash_source_ip = true;
    mongo.tunnel = Some(Tunnel {
        to: text("far.example:443"),
        post: true,
    });
    let mut chain = chain("", Handler::Tcp(mongo));
    chain.connect_timeout = Some(Millis::secs(15));
    chain.matches.networks = vec![(text("10.96.0.0"), 16)];
    chain.origin = Some(text(
        "/apis/networking.istio.io/v1/namespaces/data/virtual-service/db",
    ));
    let name = "outbound|27017||web.shop.svc.cluster.local";
    let mut proxy = tcp_proxy(name);
    proxy["typedConfig"] = with(
        proxy["typedConfig"].take(),
        json!({"idleTimeout": "90s", "maxDownstreamConnectionDuration": "600s", "hashPolicy": [{"sourceIp": {}}],
            "tunnelingConfig": {"hostname": "far.example:443", "usePost": true}}),
    );
    assert_eq!(
        emitted(&listener(
            "10.96.20.12_27017",
            "10.96.20.12",
            27017,
            vec![chain]
        )),
        json!({
            "name": "10.96.20.12_27017",
            "address": socket("10.96.20.12", 27017),
            "bindToPort": false,
            "trafficDirection": "OUTBOUND",
            "continueOnListenerFiltersTimeout": true,
            "listenerFiltersTimeout": "0s",
            "filterChains": [{
                "filterChainMatch": {"prefixRanges": [{"addressPrefix": "10.96.0.0", "prefixLen": 16}]},
                "filters": [
                    client_stats(),
                    {"name": "envoy.filters.network.mongo_proxy", "typedConfig": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.mongo_proxy.v3.MongoProxy",
                        "statPrefix": name,
                    }},
                    proxy,
                ],
                "metadata": {"filterMetadata": {"istio": {
                    "config": "/apis/networking.istio.io/v1/namespaces/data/virtual-service/db",
                }}},
                "transportSocketConnectTimeout": "15s",
            }],
        })
    );
}

#[test]
fn weighted_tcp() {
    let mut split = tcp(web(80), Side::Client);
    split.to = vec![(subset(80, "one"), 60), (subset(80, "two"), 40)];
    let emitted = emitted(&listener(
        "l",
        "0.0.0.0",
        80,
        vec![chain("", Handler::Tcp(split))],
    ));
    assert_eq!(
        emitted["filterChains"][0]["filters"][1]["typedConfig"]["weightedClusters"],
        json!({"clusters": [
            {"name": "outbound|80|one|web.shop.svc.cluster.local", "weight": 60},
            {"name": "outbound|80|two|web.shop.svc.cluster.local", "weight": 40},
        ]})
    );
}

#[test]
fn where_intercepted_connections_leave() {
    let to = |name: &str, cluster| chain(name, Handler::Tcp(tcp(cluster, Side::Client)));
    let mut black_hole = to("virtualOutbound-blackhole", ClusterName::BlackHole);
    black_hole.matches.port = Some(15001);
    let rest = to("virtualOutbound-catchall-tcp", ClusterName::Passthrough);
    let mut listener = listener("virtualOutbound", "0.0.0.0", 15001, vec![black_hole, rest]);
    listener.bind = true;
    listener.use_original_dst = true;
    listener.transparent = true;
    listener.accepts_per_event = Some(1);
    listener.continue_on_timeout = false;
    listener.inspect_timeout = None;
    listener.additional = vec![Address::Socket(text("::"), 15001)];
    assert_eq!(
        emitted(&listener),
        json!({
            "name": "virtualOutbound",
            "address": socket("0.0.0.0", 15001),
            "additionalAddresses": [{"address": socket("::", 15001)}],
            "useOriginalDst": true,
            "transparent": true,
            "maxConnectionsToAcceptPerSocketEvent": 1,
            "trafficDirection": "OUTBOUND",
            "filterChains": [
                {
                    "name": "virtualOutbound-blackhole",
                    "filterChainMatch": {"destinationPort": 15001},
                    "filters": [client_stats(), tcp_proxy("BlackHoleCluster")],
                },
                {
                    "name": "virtualOutbound-catchall-tcp",
                    "filters": [client_stats(), tcp_proxy("PassthroughCluster")],
                },
            ],
        })
    );
}

pub(crate) fn mesh_server() -> DownstreamTls {
    DownstreamTls::Mutual(DownstreamMutual {
        alpn: vec![text("h2"), text("http/1.1")],
        identity_prefixes: vec![text("spiffe://cluster.local/")],
        tls13_only: false,
        ciphers: vec![
            text("ECDHE-RSA-AES256-GCM-SHA384"),
            text("AES128-GCM-SHA256"),
        ],
        files: CertificateFiles::default(),
    })
}

/// Where intercepted connections enter: HTTP over mutual TLS, the rest in plain text.
pub(crate) fn virtual_inbound() -> Listener {
    let mut forward = forward(vec![to(ClusterName::InboundPassthrough, 0)]);
    forward.stream_duration = Some(Millis(0));
    let mut route = route("default", Action::Forward(Box::new(forward)));
    route.operation = Some(":0/*".into());
    let host = VirtualHost {
        name: text("inbound|http|0"),
        domains: vec![text("*")],
        routes: vec![route],
        attempt_count: false,
        require_tls: false,
        session: None,
    };
    let table = RouteTable {
        name: text("InboundPassthroughCluster"),
        ignore_port: false,
        max_direct_response: None,
    };
    let mut server = http(
        Side::Server,
        "InboundPassthroughCluster",
        Routes::Inline(table, vec![host]),
    );
    server.client_cert = ClientCert::AppendForward;
    server.server_name = Some(text("istio-envoy"));
    server.headers.certificate = Some(CertificateParts {
        subject: true,
        dns: true,
        uri: true,
        ..Default::default()
    });
    let mut secure = chain(
        "virtualInbound-catchall-http",
        Handler::Http(Box::new(server)),
    );
    secure.matches.transport = Some(Transport::Tls);
    secure.matches.alpn = vec![text("istio-http/1.1"), text("istio-h2")];
    secure.tls = Some(mesh_server());
    secure.metadata_exchange = true;
    let mut plain = chain(
        "virtualInbound",
        Handler::Tcp(tcp(ClusterName::InboundPassthrough, Side::Server)),
    );
    plain.matches.transport = Some(Transport::Plain);
    plain.metadata_exchange = true;
    let mut listener = listener("virtualInbound", "0.0.0.0", 15006, vec![secure, plain]);
    listener.direction = Direction::Inbound;
    listener.bind = true;
    listener.accepts_per_event = Some(1);
    listener.inspect = Inspect {
        original_dst: true,
        original_src: true,
        proxy_protocol: true,
        tls: Some(Ports::Except(vec![15006])),
        http: Some(Ports::Except(vec![8080, 15006])),
    };
    listener
}

#[test]
fn where_intercepted_connections_enter() {
    let server_filters = json!([
        peer_metadata("downstream"),
        grpc_stats(),
        plain_filter("envoy.filters.http.fault", "fault.v3.HTTPFault"),
        plain_filter("envoy.filters.http.cors", "cors.v3.Cors"),
        server_stats(),
        plain_filter("envoy.filters.http.router", "router.v3.Router"),
    ]);
    let config = with(
        manager(&server_filters, "InboundPassthroughCluster;"),
        json!({
            "forwardClientCertDetails": "APPEND_FORWARD",
            "setCurrentClientCertDetails": {"dns": true, "subject": true, "uri": true},
            "serverName": "istio-envoy",
            "routeConfig": {
                "name": "InboundPassthroughCluster",
                "validateClusters": false,
                "virtualHosts": [{"name": "inbound|http|0", "domains": ["*"], "routes": [{
                    "name": "default",
                    "match": {"prefix": "/"},
                    "decorator": {"operation": ":0/*"},
                    "route": {
                        "cluster": "InboundPassthroughCluster",
                        "timeout": "0s",
                        "maxStreamDuration": {"grpcTimeoutHeaderMax": "0s", "maxStreamDuration": "0s"},
                    },
                }]}],
            },
        }),
    );
    let listener_filter = |name: &str, fields: Value| {
        let kind = match name {
            "proxy_protocol" => "ProxyProtocol",
            "original_dst" => "OriginalDst",
            "original_src" => "OriginalSrc",
            "tls_inspector" => "TlsInspector",
            _ => "HttpInspector",
        };
        let kind =
            format!("type.googleapis.com/envoy.extensions.filters.listener.{name}.v3.{kind}");
        json!({
            "name": format!("envoy.filters.listener.{name}"),
            "typedConfig": with(fields, json!({"@type": kind})),
        })
    };
    let port = |port: u16| json!({"destinationPortRange": {"start": port, "end": port + 1}});
    assert_eq!(
        emitted(&virtual_inbound()),
        json!({
            "name": "virtualInbound",
            "address": socket("0.0.0.0", 15006),
            "trafficDirection": "INBOUND",
            "maxConnectionsToAcceptPerSocketEvent": 1,
            "continueOnListenerFiltersTimeout": true,
            "listenerFiltersTimeout": "0s",
            "listenerFilters": [
                listener_filter("proxy_protocol", json!({})),
                listener_filter("original_dst", json!({})),
                listener_filter("original_src", json!({"mark": 1337})),
                with(
                    listener_filter("tls_inspector", json!({"initialReadBufferSize": 512})),
                    json!({"filterDisabled": port(15006)}),
                ),
                with(
                    listener_filter("http_inspector", json!({})),
                    json!({"filterDisabled": {"orMatch": {"rules": [port(8080), port(15006)]}}}),
                ),
            ],
            "filterChains": [
                {
                    "name": "virtualInbound-catchall-http",
                    "filterChainMatch": {
                        "applicationProtocols": ["istio-http/1.1", "istio-h2"], "transportProtocol": "tls",
                    },
                    "filters": [
                        metadata_exchange(),
                        {"name": "envoy.filters.network.http_connection_manager", "typedConfig": config},
                    ],
                    "transportSocket": {"name": "envoy.transport_sockets.tls", "typedConfig": {
                        "@type": "type.googleapis.com/\
                            envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                        "requireClientCertificate": true,
                        "commonTlsContext": {
                            "alpnProtocols": ["h2", "http/1.1"],
                            "combinedValidationContext": {
                                "defaultValidationContext": {
                                    "matchSubjectAltNames": [{"prefix": "spiffe://cluster.local/"}],
                                },
                                "validationContextSdsSecretConfig": agent_secret("ROOTCA"),
                            },
                            "tlsCertificateSdsSecretConfigs": [agent_secret("default")],
                            "tlsParams": {
                                "cipherSuites": ["ECDHE-RSA-AES256-GCM-SHA384", "AES128-GCM-SHA256"],
                                "tlsMaximumProtocolVersion": "TLSv1_3",
                                "tlsMinimumProtocolVersion": "TLSv1_2",
                            },
                        },
                    }},
                },
                {
                    "name": "virtualInbound",
                    "filterChainMatch": {"transportProtocol": "raw_buffer"},
                    "filters": [metadata_exchange(), server_stats(), tcp_proxy("InboundPassthroughCluster")],
                },
            ],
        })
    );
}

/// A gateway's port with a certificate of the user's.
pub(crate) fn gateway(certificate: SecretSource, client_roots: Option<SecretSource>) -> Listener {
    let mut server = http(
        Side::Gateway,
        "outbound_0.0.0.0_8443",
        Routes::Discovered(text("https.443")),
    );
    server.client_cert = ClientCert::SanitizeSet;
    server.headers.certificate = Some(CertificateParts {
        subject: true,
        certificate: true,
        dns: true,
        uri: true,
        chain: false,
    });
    server.use_remote_address = Some(true);
    server.http10 = true;
    server.grpc_web = true;
    server.dns_caches = vec![DnsCache {
        host: text("*.dyn.example"),
        family: DnsFamily::V4Only,
        port: 80,
    }];
    let mut chain = chain("", Handler::Http(Box::new(server)));
    chain.matches.server_names = vec![text("www.shop.example")];
    chain.tls = Some(DownstreamTls::Server(Box::new(ServerTls {
        certificates: vec![certificate],
        require_client: client_roots.is_some(),
        clients: client_roots.map(|roots| ClientCheck {
            roots: Some(roots),
            ..Default::default()
        }),
        alpn: vec![text("h2"), text("http/1.1")],
        limits: TlsLimits::default(),
    })));
    let mut listener = listener("0.0.0.0_8443", "0.0.0.0", 8443, vec![chain]);
    listener.bind = true;
    listener.inspect.tls = Some(Ports::ALL);
    listener
}

#[test]
fn a_chosen_prefix_of_statistics_is_not_delimited() {
    let mut server = http(Side::Gateway, "own", Routes::Discovered(text("https.443")));
    server.stat_chosen = true;
    let chain = chain("", Handler::Http(Box::new(server)));
    let listener = listener("0.0.0.0_8443", "0.0.0.0", 8443, vec![chain]);
    let body = body(&pilotfish_emit::listener(&listener, &istio()));
    let manager = &body["filterChains"][0]["filters"][0]["typedConfig"];
    assert_eq!(manager["statPrefix"], "own");
}

#[test]
fn an_unreadable_hash_closes_its_own_server_only() {
    let roots = SecretSource::Credential(text("kubernetes://a-cacert"));
    let certificate = SecretSource::Credential(text("kubernetes://a"));
    let mut listener = gateway(certificate, Some(roots));
    let good = "0123456789abcdef".repeat(4);
    if let Some(DownstreamTls::Server(tls)) = &mut listener.chains[0].tls {
        let check = tls.clients.as_mut().unwrap();
        check.certificate_hashes = vec![text(&good), text("sha0123")];
        check.key_hashes = vec![text("AAAA")];
    }
    let checked = |dialect: &pilotfish_emit::Dialect| {
        let body = body(&pilotfish_emit::listener(&listener, dialect));
        let context =
            &body["filterChains"][0]["transportSocket"]["typedConfig"]["commonTlsContext"];
        let check = &context["combinedValidationContext"]["defaultValidationContext"];
        (
            check["verifyCertificateHash"].clone(),
            check["verifyCertificateSpki"].clone(),
        )
    };
    let written = (json!([good, "sha0123"]), json!(["AAAA"]));
    assert_eq!(checked(&istio()), written);
    let nobody = format!("{}=", "A".repeat(43));
    let closed = (json!([good, "0".repeat(64)]), json!([nobody]));
    assert_eq!(checked(&stock()), closed);
}

#[test]
fn gateway_with_a_certificate() {
    let certificate = SecretSource::Credential(text("kubernetes://web-cert"));
    let emitted = emitted(&gateway(certificate, None));
    assert_eq!(emitted.get("bindToPort"), None);
    let chain = &emitted["filterChains"][0];
    assert_eq!(
        chain["filterChainMatch"],
        json!({"serverNames": ["www.shop.example"]})
    );
    assert_eq!(
        chain["transportSocket"]["typedConfig"],
        json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "commonTlsContext": {
                "alpnProtocols": ["h2", "http/1.1"],
                "tlsCertificateSdsSecretConfigs": [
                    {"name": "kubernetes://web-cert", "sdsConfig": {"ads": {}, "resourceApiVersion": "V3"}},
                ],
            },
            "requireClientCertificate": false,
        })
    );
    let manager = &chain["filters"][0]["typedConfig"];
    assert_eq!(manager["forwardClientCertDetails"], "SANITIZE_SET");
    let details = json!({"cert": true, "dns": true, "subject": true, "uri": true});
    assert_eq!(manager["setCurrentClientCertDetails"], details);
    assert_eq!(
        manager["httpProtocolOptions"],
        json!({"acceptHttp10": true})
    );
    assert_eq!(
        filter_names(&manager["httpFilters"]),
        [
            "istio.metadata_exchange",
            "envoy.filters.http.grpc_web",
            "envoy.filters.http.grpc_stats",
            "istio.alpn",
            "envoy.filters.http.fault",
            "envoy.filters.http.cors",
            "istio.stats",
            "envoy.filters.http.dynamic_forward_proxy",
            "envoy.filters.http.router",
        ]
    );
    assert_eq!(
        manager["httpFilters"][7]["typedConfig"]["dnsCacheConfig"],
        json!({"dnsLookupFamily": "V4_ONLY", "name": "*.dyn.example_dfp_dns_cache"})
    );
}

#[test]
fn forward_by_server_name() {
    let mut by_name = tcp(web(443), Side::Client);
    by_name.forward_by_sni = Some(DnsCache {
        host: text("*.dyn.example"),
        family: DnsFamily::V4Only,
        port: 443,
    });
    let emitted = emitted(&listener(
        "l",
        "0.0.0.0",
        443,
        vec![chain("", Handler::Tcp(by_name))],
    ));
    assert_eq!(
        emitted["filterChains"][0]["filters"][1],
        json!({
            "name": "envoy.extensions.filters.network.sni_dynamic_forward_proxy",
            "typedConfig": {
                "@type": "type.googleapis.com/\
                    envoy.extensions.filters.network.sni_dynamic_forward_proxy.v3.FilterConfig",
                "dnsCacheConfig": {"dnsLookupFamily": "V4_ONLY", "name": "*.dyn.example_dfp_dns_cache"},
                "portValue": 443,
            },
        })
    );
}

#[test]
fn codecs() {
    let names = |codec| {
        let mut tcp = tcp(web(3306), Side::Server);
        tcp.codec = codec;
        let emitted = emitted(&listener(
            "l",
            "0.0.0.0",
            3306,
            vec![chain("", Handler::Tcp(tcp))],
        ));
        let filters = &emitted["filterChains"][0]["filters"];
        filter_names(filters)
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let proxy = "envoy.filters.network.tcp_proxy";
    assert_eq!(
        names(TcpCodec::MySql),
        ["istio.stats", "envoy.filters.network.mysql_proxy", proxy]
    );
    assert_eq!(
        names(TcpCodec::Redis),
        ["istio.stats", "envoy.filters.network.redis_proxy"]
    );
}

/// What a proxy may be told about the headers it adds and keeps, and about connections and streams.
#[test]
fn manners_of_a_proxy() {
    let mut server = http(
        Side::Client,
        "outbound_0.0.0.0_80",
        Routes::Discovered(text("80")),
    );
    server.headers = Headers {
        server_of_application: true,
        no_request_id: true,
        no_debug: true,
        metadata_in_mesh: true,
        preserve_case: true,
        forwarded_port: true,
        trusted_hops: 2,
        certificate: None,
        internal_networks: vec![(text("10.0.0.0"), 8)],
    };
    server.limits = HttpLimits {
        idle_timeout: Some(Millis::secs(20)),
        stream_idle_timeout: Some(Millis::secs(300)),
        headers_timeout: Some(Millis::secs(60)),
        http2: Some(Http2Limits {
            streams: Some(100),
            ..Default::default()
        }),
        underscores: Some(Underscores::Reject),
        ..Default::default()
    };
    server.escaped_slashes = EscapedSlashes::Redirect;
    server.tracing = None;
    let mut listener = listener(
        "0.0.0.0_80",
        "0.0.0.0",
        80,
        vec![chain("", Handler::Http(Box::new(server)))],
    );
    listener.exact_balance = true;
    listener.buffer_limit = Some(32768);
    let emitted = emitted(&listener);
    assert_eq!(
        emitted["connectionBalanceConfig"],
        json!({"exactBalance": {}})
    );
    assert_eq!(emitted["perConnectionBufferLimitBytes"], 32768);
    let manager = &emitted["filterChains"][0]["filters"][0]["typedConfig"];
    for (field, expected) in [
        ("serverHeaderTransformation", json!("PASS_THROUGH")),
        ("generateRequestId", json!(false)),
        ("appendXForwardedPort", json!(true)),
        ("xffNumTrustedHops", json!(2)),
        ("streamIdleTimeout", json!("300s")),
        ("requestHeadersTimeout", json!("60s")),
        ("http2ProtocolOptions", json!({"maxConcurrentStreams": 100})),
        (
            "pathWithEscapedSlashesAction",
            json!("UNESCAPE_AND_REDIRECT"),
        ),
        (
            "commonHttpProtocolOptions",
            json!({"idleTimeout": "20s", "headersWithUnderscoresAction": "REJECT_REQUEST"}),
        ),
        (
            "internalAddressConfig",
            json!({"cidrRanges": [{"addressPrefix": "10.0.0.0", "prefixLen": 8}]}),
        ),
    ] {
        assert_eq!(manager[field], expected, "{field}");
    }
    assert_eq!(manager.get("tracing"), None);
    let format = &manager["httpProtocolOptions"]["headerKeyFormat"]["statefulFormatter"];
    assert_eq!(format["name"], "preserve_case");
    let filters = manager["httpFilters"].as_array().unwrap();
    let told = &filters[0]["typedConfig"]["value"]["upstream_propagation"];
    assert_eq!(
        *told,
        json!([{"istio_headers": {"skip_external_clusters": true}}])
    );
    let router = &filters.last().unwrap()["typedConfig"];
    assert_eq!(router["suppressEnvoyHeaders"], true);
}

/// Tags of the user stand among the proxy's own, in order of their names.
#[test]
fn tags_of_spans() {
    let mut server = http(Side::Client, "x", Routes::Discovered(text("80")));
    let tracing = server.tracing.as_mut().unwrap();
    tracing.sampling = 1_234_500;
    tracing.longest_path = Some(99);
    tracing.own_tags = false;
    tracing.tags = vec![
        (text("b"), TagValue::Header(text("x-b"), text("none"))),
        (text("a"), TagValue::Literal(text("one"))),
        (text("c"), TagValue::Environment(text("C"), text(""))),
    ];
    let chains = vec![chain("", Handler::Http(Box::new(server)))];
    let emitted = emitted(&listener("0.0.0.0_80", "0.0.0.0", 80, chains));
    let manager = &emitted["filterChains"][0]["filters"][0]["typedConfig"];
    assert_eq!(
        manager["tracing"],
        json!({
            "clientSampling": {"value": 100.0},
            "randomSampling": {"value": 12.345},
            "overallSampling": {"value": 100.0},
            "maxPathTagLength": 99,
            "customTags": [
                {"tag": "a", "literal": {"value": "one"}},
                {"tag": "b", "requestHeader": {"name": "x-b", "defaultValue": "none"}},
                {"tag": "c", "environment": {"name": "C"}},
            ],
        })
    );
}
