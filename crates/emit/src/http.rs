//! HTTP connection managers and the filters in them.

use std::sync::LazyLock;

use pb::http_connection_manager as manager;
use pilotfish_ir::listener::{
    ClientCert, EscapedSlashes, Http, Routes, Side, TagValue, Tracing, Underscores,
};
use pilotfish_protos::envoy::config::core::v3 as core;
use pilotfish_protos::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use pilotfish_protos::envoy::extensions::filters::http as filters;
use pilotfish_protos::envoy::extensions::filters::network::http_connection_manager::v3 as pb;
use pilotfish_protos::envoy::extensions::http::header_formatters::preserve_case::v3::PreserveCaseFormatterConfig;
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
pub(crate) const SESSION: &str = "envoy.filters.http.stateful_session";

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
    LazyLock::new(|| peer_metadata("upstream_discovery", "upstream_propagation", false));
/// Peers are told who we are upstream, if they are in the mesh.
static PEER_UPSTREAM_IN_MESH: LazyLock<pb::HttpFilter> =
    LazyLock::new(|| peer_metadata("upstream_discovery", "upstream_propagation", true));
/// Peers are told who we are downstream.
static PEER_DOWNSTREAM: LazyLock<pb::HttpFilter> =
    LazyLock::new(|| peer_metadata("downstream_discovery", "downstream_propagation", false));

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
/// Does nothing but where a route or host says how sessions are kept.
static SESSIONS: LazyLock<pb::HttpFilter> = LazyLock::new(|| {
    filter(
        SESSION,
        &filters::stateful_session::v3::StatefulSession::default(),
    )
});
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

/// The same without what Envoy says of itself in headers.
static SILENT_ROUTER: LazyLock<pb::HttpFilter> = LazyLock::new(|| {
    let config = filters::router::v3::Router {
        suppress_envoy_headers: true,
        ..Default::default()
    };
    filter("envoy.filters.http.router", &config)
});

/// HTTP/1 headers keep the case they were written in.
pub(crate) static PRESERVE_CASE: LazyLock<core::http1_protocol_options::HeaderKeyFormat> =
    LazyLock::new(|| {
        use core::http1_protocol_options::{HeaderKeyFormat, header_key_format::HeaderFormat};
        HeaderKeyFormat {
            header_format: Some(HeaderFormat::StatefulFormatter(
                core::TypedExtensionConfig {
                    name: "preserve_case".to_owned(),
                    typed_config: Some(pilotfish_protos::any(
                        &PreserveCaseFormatterConfig::default(),
                    )),
                },
            )),
        }
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
    use manager::PathWithEscapedSlashesAction as Escaped;
    let slashes = match http.escaped_slashes {
        EscapedSlashes::Keep => Escaped::KeepUnchanged,
        EscapedSlashes::Reject => Escaped::RejectRequest,
        EscapedSlashes::Redirect => Escaped::UnescapeAndRedirect,
        EscapedSlashes::Unescape => Escaped::UnescapeAndForward,
    };
    let headers = &http.headers;
    let limits = &http.limits;
    let server_header = if headers.server_of_application {
        manager::ServerHeaderTransformation::PassThrough
    } else {
        manager::ServerHeaderTransformation::Overwrite
    };
    pb::HttpConnectionManager {
        stat_prefix: if http.stat_chosen {
            value::string(&http.stat_prefix)
        } else {
            names::delimited(&http.stat_prefix)
        },
        http_filters: http_filters(http, dialect),
        tracing: http.tracing.as_ref().map(tracing),
        common_http_protocol_options: common(http),
        http_protocol_options: http1(http),
        http2_protocol_options: http2(http),
        http3_protocol_options: http.http3.then(core::Http3ProtocolOptions::default),
        codec_type: if http.http3 {
            manager::CodecType::Http3
        } else {
            manager::CodecType::Auto
        }
        .into(),
        server_name: http
            .server_name
            .as_ref()
            .map(value::string)
            .unwrap_or_default(),
        server_header_transformation: server_header.into(),
        // Streams may idle unless somebody says otherwise; routes bound what is to be bounded.
        stream_idle_timeout: Some(value::duration(
            limits.stream_idle_timeout.unwrap_or_default(),
        )),
        request_timeout: limits.request_timeout.map(value::duration),
        request_headers_timeout: limits.headers_timeout.map(value::duration),
        drain_timeout: limits.drain_timeout.map(value::duration),
        use_remote_address: http.use_remote_address.map(value::bool),
        xff_num_trusted_hops: headers.trusted_hops,
        internal_address_config: internal_addresses(http),
        forward_client_cert_details: client_certificate(http.client_cert).into(),
        set_current_client_cert_details: headers.certificate.map(|parts| {
            manager::SetCurrentClientCertDetails {
                subject: Some(value::bool(parts.subject)),
                cert: parts.certificate,
                chain: parts.chain,
                dns: parts.dns,
                uri: parts.uri,
                ..Default::default()
            }
        }),
        generate_request_id: headers.no_request_id.then(|| value::bool(false)),
        append_x_forwarded_port: headers.forwarded_port,
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

fn common(http: &Http) -> Option<core::HttpProtocolOptions> {
    use core::http_protocol_options::HeadersWithUnderscoresAction as Action;
    let limits = &http.limits;
    let underscores = match limits.underscores {
        None | Some(Underscores::Allow) => Action::Allow,
        Some(Underscores::Reject) => Action::RejectRequest,
        Some(Underscores::Drop) => Action::DropHeader,
    };
    let options = core::HttpProtocolOptions {
        idle_timeout: limits.idle_timeout.map(value::duration),
        max_connection_duration: limits.max_duration.map(value::duration),
        max_stream_duration: limits.max_stream_duration.map(value::duration),
        headers_with_underscores_action: underscores.into(),
        ..Default::default()
    };
    let said = limits.underscores.is_some() || options != core::HttpProtocolOptions::default();
    said.then_some(options)
}

fn http1(http: &Http) -> Option<core::Http1ProtocolOptions> {
    let options = core::Http1ProtocolOptions {
        accept_http_10: http.http10,
        allow_absolute_url: http.absolute_urls.then(|| value::bool(true)),
        header_key_format: http.headers.preserve_case.then(|| PRESERVE_CASE.clone()),
        ..Default::default()
    };
    let said = http.side == Side::Gateway || options != core::Http1ProtocolOptions::default();
    said.then_some(options)
}

fn http2(http: &Http) -> Option<core::Http2ProtocolOptions> {
    let asked = http.limits.http2;
    if !http.http2 && asked.is_none() {
        return None;
    }
    let asked = asked.unwrap_or_default();
    Some(core::Http2ProtocolOptions {
        max_concurrent_streams: asked.streams.map(value::u32),
        initial_stream_window_size: asked.stream_window.map(value::u32),
        initial_connection_window_size: asked.connection_window.map(value::u32),
        ..Default::default()
    })
}

fn internal_addresses(http: &Http) -> Option<manager::InternalAddressConfig> {
    let networks = &http.headers.internal_networks;
    (!networks.is_empty()).then(|| manager::InternalAddressConfig {
        cidr_ranges: networks
            .iter()
            .map(|(address, length)| core::CidrRange {
                address_prefix: value::string(address),
                prefix_len: Some(value::u32((*length).into())),
            })
            .collect(),
        ..Default::default()
    })
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
        http.peers,
        Extension::MetadataExchange,
        if server {
            &PEER_DOWNSTREAM
        } else if http.headers.metadata_in_mesh {
            &PEER_UPSTREAM_IN_MESH
        } else {
            &PEER_UPSTREAM
        },
    );
    push(http.grpc_web, Extension::GrpcWeb, &GRPC_WEB);
    push(true, Extension::GrpcStats, &GRPC_STATS);
    push(http.mesh_alpn, Extension::Alpn, &ALPN);
    push(true, Extension::Fault, &FAULTS);
    push(true, Extension::Cors, &CROSS_ORIGIN);
    let stats = if http.side == Side::Client {
        &CLIENT_STATS_FILTER
    } else {
        &SERVER_STATS_FILTER
    };
    push(true, Extension::Stats, stats);
    push(http.sessions, Extension::StatefulSession, &SESSIONS);
    if dialect.has(Extension::DynamicForwardProxy) {
        let caches = http.dns_caches.iter();
        chain.extend(caches.map(|c| forward_proxy(cluster::dns_cache(&c.host, c.family))));
        let any = http.any_host.iter();
        chain.extend(any.map(|hosts| forward_proxy(cluster::any_host_cache(hosts))));
    }
    chain.push(if http.headers.no_debug {
        SILENT_ROUTER.clone()
    } else {
        ROUTER.clone()
    });
    chain
}

fn forward_proxy(cache: DnsCacheConfig) -> pb::HttpFilter {
    use filters::dynamic_forward_proxy::v3::{
        FilterConfig, filter_config::ImplementationSpecifier,
    };
    let config = FilterConfig {
        implementation_specifier: Some(ImplementationSpecifier::DnsCacheConfig(cache)),
        ..Default::default()
    };
    filter("envoy.filters.http.dynamic_forward_proxy", &config)
}

/// What becomes of the client certificate header.
fn client_certificate(header: ClientCert) -> manager::ForwardClientCertDetails {
    use manager::ForwardClientCertDetails as Forward;
    match header {
        ClientCert::Sanitize => Forward::Sanitize,
        ClientCert::ForwardOnly => Forward::ForwardOnly,
        ClientCert::AlwaysForwardOnly => Forward::AlwaysForwardOnly,
        ClientCert::AppendForward => Forward::AppendForward,
        ClientCert::SanitizeSet => Forward::SanitizeSet,
    }
}

/// Tags are in order of their names.
fn tracing(tracing: &Tracing) -> manager::Tracing {
    let literal = |text: &str| {
        tags::custom_tag::Type::Literal(tags::custom_tag::Literal {
            value: text.to_owned(),
        })
    };
    let tag = |tag: &str, kind: tags::custom_tag::Type| tags::CustomTag {
        tag: tag.to_owned(),
        r#type: Some(kind),
    };
    let mut all = Vec::new();
    if tracing.own_tags {
        all.extend(DRY_RUN_TAGS.iter().cloned());
        all.extend([
            tag("istio.canonical_revision", literal(&tracing.revision)),
            tag("istio.canonical_service", literal(&tracing.service)),
            tag("istio.cluster_id", literal(&tracing.cluster)),
            tag("istio.mesh_id", literal(&tracing.mesh)),
            tag("istio.namespace", literal(&tracing.namespace)),
        ]);
    }
    all.extend(tracing.tags.iter().map(|(name, from)| {
        let kind = match from {
            TagValue::Literal(text) => literal(text),
            TagValue::Environment(variable, otherwise) => {
                tags::custom_tag::Type::Environment(tags::custom_tag::Environment {
                    name: value::string(variable),
                    default_value: value::string(otherwise),
                })
            }
            TagValue::Header(header, otherwise) => {
                tags::custom_tag::Type::RequestHeader(tags::custom_tag::Header {
                    name: value::string(header),
                    default_value: value::string(otherwise),
                })
            }
        };
        tag(name, kind)
    }));
    all.sort_by(|a, b| a.tag.cmp(&b.tag));
    manager::Tracing {
        client_sampling: Some(value::percent(100)),
        random_sampling: Some(value::percent(f64::from(tracing.sampling) / 100_000.0)),
        overall_sampling: Some(value::percent(100)),
        custom_tags: all,
        max_path_tag_length: tracing.longest_path.map(value::u32),
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

fn peer_metadata(discovery: &str, propagation: &str, in_mesh: bool) -> pb::HttpFilter {
    let with = |name: &str, config: g::Struct| {
        value::struct_value(value::fields([(name, value::struct_value(config))]))
    };
    let method = |name: &str| with(name, g::Struct::default());
    let told = if in_mesh {
        value::fields([("skip_external_clusters", value::bool_value(true))])
    } else {
        g::Struct::default()
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
                value::list_value(vec![with("istio_headers", told)]),
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
