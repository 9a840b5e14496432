//! HTTP connection managers and the filters in them.

use std::sync::LazyLock;

use pb::http_connection_manager as manager;
use pilotfish_ir::listener::{ClientCert, DnsCache, EscapedSlashes, Http, Routes, Side, Tracing};
use pilotfish_protos::envoy::config::core::v3 as core;
use pilotfish_protos::envoy::extensions::filters::http as filters;
use pilotfish_protos::envoy::extensions::filters::network::http_connection_manager::v3 as pb;
use pilotfish_protos::envoy::extensions::request_id::uuid::v3::UuidRequestIdConfig;
use pilotfish_protos::envoy::r#type::metadata::v3 as metadata;
use pilotfish_protos::envoy::r#type::tracing::v3 as tags;
use pilotfish_protos::google::protobuf as g;
use pilotfish_protos::istio::envoy::config::filter::http::alpn::v2alpha1 as alpn;
use pilotfish_protos::stats::PluginConfig;
use pilotfish_protos::udpa::r#type::v1::TypedStruct;

use crate::dialect::Extension;
use crate::{Dialect, cluster, names, route, value};

/// Routes configure these filters by name.
pub(crate) const CORS: &str = "envoy.filters.http.cors";
pub(crate) const FAULT: &str = "envoy.filters.http.fault";

/// Statistics of the caller's side.
pub(crate) static CLIENT_STATS: LazyLock<g::Any> =
    LazyLock::new(|| pilotfish_protos::any(&PluginConfig::default()));
/// Statistics of the callee's side and of gateways: a host header is no proof of which service was called.
pub(crate) static SERVER_STATS: LazyLock<g::Any> = LazyLock::new(|| {
    pilotfish_protos::any(&PluginConfig {
        disable_host_header_fallback: true,
        ..Default::default()
    })
});

/// Peers are told who we are upstream.
static PEER_UPSTREAM: LazyLock<pb::HttpFilter> =
    LazyLock::new(|| peer_metadata("upstream_discovery", "upstream_propagation"));
/// Peers are told who we are downstream.
static PEER_DOWNSTREAM: LazyLock<pb::HttpFilter> =
    LazyLock::new(|| peer_metadata("downstream_discovery", "downstream_propagation"));

static GRPC_WEB: LazyLock<pb::HttpFilter> = LazyLock::new(|| {
    filter(
        "envoy.filters.http.grpc_web",
        &filters::grpc_web::v3::GrpcWeb {},
    )
});

static GRPC_STATS: LazyLock<pb::HttpFilter> = LazyLock::new(|| {
    use filters::grpc_stats::v3::{FilterConfig, filter_config::PerMethodStatSpecifier};
    let config = FilterConfig {
        emit_filter_state: true,
        per_method_stat_specifier: Some(PerMethodStatSpecifier::StatsForAllMethods(g::BoolValue {
            value: false,
        })),
        ..Default::default()
    };
    filter("envoy.filters.http.grpc_stats", &config)
});

/// The protocol of the request picks the ALPN of the upstream connection, so that the peer knows it is in the mesh.
static ALPN: LazyLock<pb::HttpFilter> = LazyLock::new(|| {
    use alpn::filter_config::{AlpnOverride, Protocol};
    let offer = |protocol: Protocol, names: [&str; 3]| AlpnOverride {
        upstream_protocol: protocol.into(),
        alpn_override: names.map(str::to_owned).into(),
    };
    let config = alpn::FilterConfig {
        alpn_override: vec![
            offer(Protocol::Http10, ["istio-http/1.0", "istio", "http/1.0"]),
            offer(Protocol::Http11, ["istio-http/1.1", "istio", "http/1.1"]),
            offer(Protocol::Http2, ["istio-h2", "istio", "h2"]),
        ],
    };
    filter("istio.alpn", &config)
});

static FAULTS: LazyLock<pb::HttpFilter> =
    LazyLock::new(|| filter(FAULT, &filters::fault::v3::HttpFault::default()));
static CROSS_ORIGIN: LazyLock<pb::HttpFilter> =
    LazyLock::new(|| filter(CORS, &filters::cors::v3::Cors {}));
static CLIENT_STATS_FILTER: LazyLock<pb::HttpFilter> =
    LazyLock::new(|| packed("istio.stats", CLIENT_STATS.clone()));
static SERVER_STATS_FILTER: LazyLock<pb::HttpFilter> =
    LazyLock::new(|| packed("istio.stats", SERVER_STATS.clone()));
static ROUTER: LazyLock<pb::HttpFilter> = LazyLock::new(|| {
    filter(
        "envoy.filters.http.router",
        &filters::router::v3::Router::default(),
    )
});

static REQUEST_ID: LazyLock<pb::RequestIdExtension> = LazyLock::new(|| pb::RequestIdExtension {
    typed_config: Some(pilotfish_protos::any(&UuidRequestIdConfig {
        use_request_id_for_trace_sampling: Some(value::bool(true)),
        ..Default::default()
    })),
});

/// What would have happened under policies that are only tried out.
static DRY_RUN_TAGS: LazyLock<[tags::CustomTag; 4]> = LazyLock::new(|| {
    [
        (
            "allow_policy.name",
            "istio_dry_run_allow_shadow_effective_policy_id",
        ),
        (
            "allow_policy.result",
            "istio_dry_run_allow_shadow_engine_result",
        ),
        (
            "deny_policy.name",
            "istio_dry_run_deny_shadow_effective_policy_id",
        ),
        (
            "deny_policy.result",
            "istio_dry_run_deny_shadow_engine_result",
        ),
    ]
    .map(|(tag, key)| dry_run_tag(tag, key))
});

pub(crate) fn connection_manager(http: &Http, dialect: &Dialect) -> pb::HttpConnectionManager {
    let (forward, details) = client_certificate(http);
    let slashes = match http.escaped_slashes {
        EscapedSlashes::Keep => manager::PathWithEscapedSlashesAction::KeepUnchanged,
        EscapedSlashes::Unescape => manager::PathWithEscapedSlashesAction::UnescapeAndForward,
    };
    pb::HttpConnectionManager {
        stat_prefix: names::delimited(&http.stat_prefix),
        http_filters: http_filters(http, dialect),
        tracing: Some(tracing(&http.tracing)),
        http_protocol_options: (http.http10 || http.side == Side::Gateway).then(|| {
            core::Http1ProtocolOptions {
                accept_http_10: http.http10,
                ..Default::default()
            }
        }),
        http2_protocol_options: http.http2.then(core::Http2ProtocolOptions::default),
        server_name: http
            .server_name
            .as_ref()
            .map(value::string)
            .unwrap_or_default(),
        // Streams may idle; routes bound what is to be bounded.
        stream_idle_timeout: Some(g::Duration::default()),
        use_remote_address: http.use_remote_address.map(value::bool),
        forward_client_cert_details: forward.into(),
        set_current_client_cert_details: details,
        proxy_100_continue: http.forward_continue,
        upgrade_configs: vec![manager::UpgradeConfig {
            upgrade_type: "websocket".to_owned(),
            ..Default::default()
        }],
        normalize_path: Some(value::bool(http.normalize_path)),
        merge_slashes: http.merge_slashes,
        path_with_escaped_slashes_action: slashes.into(),
        request_id_extension: dialect
            .has(Extension::UuidRequestId)
            .then(|| REQUEST_ID.clone()),
        route_specifier: Some(routes(&http.routes, dialect)),
        ..Default::default()
    }
}

fn routes(routes: &Routes, dialect: &Dialect) -> manager::RouteSpecifier {
    match routes {
        Routes::Discovered(name) => manager::RouteSpecifier::Rds(pb::Rds {
            config_source: Some(value::ads()),
            route_config_name: value::string(name),
        }),
        Routes::Inline(table, hosts) => {
            let mut table = route::table(table);
            table.virtual_hosts = hosts
                .iter()
                .map(|host| route::virtual_host(host, dialect))
                .collect();
            manager::RouteSpecifier::RouteConfig(table)
        }
    }
}

/// Filters in the order they see a request.
fn http_filters(http: &Http, dialect: &Dialect) -> Vec<pb::HttpFilter> {
    let server = http.side == Side::Server;
    let mut chain = Vec::with_capacity(8 + http.dns_caches.len());
    let mut push = |wanted: bool, extension: Extension, filter: &pb::HttpFilter| {
        if wanted && dialect.has(extension) {
            chain.push(filter.clone());
        }
    };
    push(
        true,
        Extension::MetadataExchange,
        if server {
            &PEER_DOWNSTREAM
        } else {
            &PEER_UPSTREAM
        },
    );
    push(http.grpc_web, Extension::GrpcWeb, &GRPC_WEB);
    push(true, Extension::GrpcStats, &GRPC_STATS);
    push(!server, Extension::Alpn, &ALPN);
    push(true, Extension::Fault, &FAULTS);
    push(true, Extension::Cors, &CROSS_ORIGIN);
    let stats = if http.side == Side::Client {
        &CLIENT_STATS_FILTER
    } else {
        &SERVER_STATS_FILTER
    };
    push(true, Extension::Stats, stats);
    if dialect.has(Extension::DynamicForwardProxy) {
        chain.extend(http.dns_caches.iter().map(forward_proxy));
    }
    chain.push(ROUTER.clone());
    chain
}

fn forward_proxy(cache: &DnsCache) -> pb::HttpFilter {
    use filters::dynamic_forward_proxy::v3::{
        FilterConfig, filter_config::ImplementationSpecifier,
    };
    let cache = cluster::dns_cache(&cache.host, cache.family);
    let config = FilterConfig {
        implementation_specifier: Some(ImplementationSpecifier::DnsCacheConfig(cache)),
        ..Default::default()
    };
    filter("envoy.filters.http.dynamic_forward_proxy", &config)
}

/// What becomes of the client certificate header, and which parts of the certificate go into it.
fn client_certificate(
    http: &Http,
) -> (
    manager::ForwardClientCertDetails,
    Option<manager::SetCurrentClientCertDetails>,
) {
    let forward = match http.client_cert {
        ClientCert::Sanitize => manager::ForwardClientCertDetails::Sanitize,
        ClientCert::AppendForward => manager::ForwardClientCertDetails::AppendForward,
        ClientCert::SanitizeSet => manager::ForwardClientCertDetails::SanitizeSet,
    };
    let gateway = http.side == Side::Gateway;
    let details = (gateway || http.client_cert != ClientCert::Sanitize).then(|| {
        manager::SetCurrentClientCertDetails {
            subject: Some(value::bool(true)),
            cert: gateway,
            dns: true,
            uri: true,
            ..Default::default()
        }
    });
    (forward, details)
}

fn tracing(tracing: &Tracing) -> manager::Tracing {
    let tag = |tag: &str, text: &str| tags::CustomTag {
        tag: tag.to_owned(),
        r#type: Some(tags::custom_tag::Type::Literal(tags::custom_tag::Literal {
            value: text.to_owned(),
        })),
    };
    let own = [
        tag("istio.canonical_revision", &tracing.revision),
        tag("istio.canonical_service", &tracing.service),
        tag("istio.cluster_id", &tracing.cluster),
        tag("istio.mesh_id", &tracing.mesh),
        tag("istio.namespace", &tracing.namespace),
    ];
    manager::Tracing {
        client_sampling: Some(value::percent(100)),
        random_sampling: Some(value::percent(f64::from(tracing.sampling) / 100.0)),
        overall_sampling: Some(value::percent(100)),
        custom_tags: DRY_RUN_TAGS.iter().cloned().chain(own).collect(),
        ..Default::default()
    }
}

fn dry_run_tag(tag: &str, key: &str) -> tags::CustomTag {
    use metadata::metadata_key::{PathSegment, path_segment::Segment};
    use metadata::metadata_kind::{Kind, Request};
    let source = tags::custom_tag::Metadata {
        kind: Some(metadata::MetadataKind {
            kind: Some(Kind::Request(Request {})),
        }),
        metadata_key: Some(metadata::MetadataKey {
            key: "envoy.filters.http.rbac".to_owned(),
            path: vec![PathSegment {
                segment: Some(Segment::Key(key.to_owned())),
            }],
        }),
        ..Default::default()
    };
    tags::CustomTag {
        tag: format!("istio.authorization.dry_run.{tag}"),
        r#type: Some(tags::custom_tag::Type::Metadata(source)),
    }
}

fn peer_metadata(discovery: &str, propagation: &str) -> pb::HttpFilter {
    let method = |name: &str| {
        value::struct_value(value::fields([(
            name,
            value::struct_value(g::Struct::default()),
        )]))
    };
    let config = TypedStruct {
        type_url: "type.googleapis.com/io.istio.http.peer_metadata.Config".to_owned(),
        value: Some(value::fields([
            (
                discovery,
                value::list_value(vec![method("istio_headers"), method("workload_discovery")]),
            ),
            (
                propagation,
                value::list_value(vec![method("istio_headers")]),
            ),
        ])),
    };
    filter("istio.metadata_exchange", &config)
}

fn filter<C: prost::Message + prost::Name>(name: &str, config: &C) -> pb::HttpFilter {
    packed(name, pilotfish_protos::any(config))
}

fn packed(name: &str, config: g::Any) -> pb::HttpFilter {
    pb::HttpFilter {
        name: name.to_owned(),
        config_type: Some(pb::http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}
