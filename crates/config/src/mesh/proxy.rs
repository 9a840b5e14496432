//! `ProxyConfig` as the mesh configuration and pod annotations carry it.

use std::collections::BTreeMap;

use super::{api, api_enum};
use crate::{
    duration::Duration,
    networking::{ClientTlsSettings, ProxyImage, ReadinessProbe, TcpKeepalive},
};

api_enum! {
    AuthenticationPolicy {
        None = "NONE",
        MutualTls = "MUTUAL_TLS",
        Inherit = "INHERIT",
    }
}

api! {
    pub struct Tracing {
        pub zipkin: Option<Zipkin>,
        pub lightstep: Option<Lightstep>,
        pub datadog: Option<Datadog>,
        pub stackdriver: Option<Stackdriver>,
        pub open_census_agent: Option<OpenCensusAgent>,
        pub custom_tags: BTreeMap<String, CustomTag>,
        pub max_path_tag_length: u32,
        pub sampling: f64,
        pub tls_settings: Option<ClientTlsSettings>,
        pub enable_istio_tags: Option<bool>,
    }
}

api! {
    pub struct Zipkin {
        pub address: String,
    }
}

api! {
    pub struct Lightstep {
        pub address: String,
        pub access_token: String,
    }
}

api! {
    pub struct Datadog {
        pub address: String,
    }
}

api! {
    pub struct Stackdriver {
        pub debug: bool,
        pub max_number_of_attributes: Option<i64>,
        pub max_number_of_annotations: Option<i64>,
        pub max_number_of_message_events: Option<i64>,
    }
}

api! {
    pub struct OpenCensusAgent {
        pub address: String,
        pub context: Vec<OpenCensusTraceContext>,
    }
}

api_enum! {
    OpenCensusTraceContext {
        Unspecified = "UNSPECIFIED",
        W3cTraceContext = "W3C_TRACE_CONTEXT",
        GrpcBin = "GRPC_BIN",
        CloudTraceContext = "CLOUD_TRACE_CONTEXT",
        B3 = "B3",
    }
}

api! {
    pub struct CustomTag {
        pub literal: Option<Literal>,
        pub environment: Option<Environment>,
        pub header: Option<RequestHeader>,
    }
}

api! {
    pub struct Literal {
        pub value: String,
    }
}

api! {
    pub struct Environment {
        pub name: String,
        pub default_value: String,
    }
}

api! {
    pub struct RequestHeader {
        pub name: String,
        pub default_value: String,
    }
}

api! {
    pub struct Sds {
        pub enabled: bool,
        pub k8s_sa_jwt_path: String,
    }
}

api! {
    pub struct Topology {
        pub num_trusted_proxies: u32,
        pub forward_client_cert_details: ForwardClientCertDetails,
        pub proxy_protocol: Option<ProxyProtocolConfiguration>,
    }
}

api! {
    pub struct ProxyProtocolConfiguration {}
}

api_enum! {
    ForwardClientCertDetails {
        Undefined = "UNDEFINED",
        Sanitize = "SANITIZE",
        ForwardOnly = "FORWARD_ONLY",
        AppendForward = "APPEND_FORWARD",
        SanitizeSet = "SANITIZE_SET",
        AlwaysForwardOnly = "ALWAYS_FORWARD_ONLY",
    }
}

api! {
    pub struct PrivateKeyProvider {
        pub cryptomb: Option<CryptoMb>,
        pub qat: Option<Qat>,
    }
}

api! {
    pub struct CryptoMb {
        pub poll_delay: Option<Duration>,
        pub fallback: Option<bool>,
    }
}

api! {
    pub struct Qat {
        pub poll_delay: Option<Duration>,
        pub fallback: Option<bool>,
    }
}

api! {
    pub struct ProxyConfig {
        pub config_path: String,
        pub binary_path: String,
        pub service_cluster: Option<String>,
        pub tracing_service_name: Option<TracingServiceName>,
        pub drain_duration: Option<Duration>,
        pub discovery_address: String,
        pub discovery_refresh_delay: Option<Duration>,
        pub zipkin_address: String,
        pub statsd_udp_address: String,
        pub envoy_metrics_service_address: String,
        pub proxy_admin_port: i32,
        pub availability_zone: String,
        pub control_plane_auth_policy: AuthenticationPolicy,
        pub custom_config_file: String,
        pub stat_name_length: i32,
        pub concurrency: Option<i32>,
        pub proxy_bootstrap_template_path: String,
        pub interception_mode: InboundInterceptionMode,
        pub tracing: Option<Tracing>,
        pub sds: Option<Sds>,
        pub envoy_access_log_service: Option<RemoteService>,
        pub envoy_metrics_service: Option<RemoteService>,
        pub proxy_metadata: BTreeMap<String, String>,
        pub runtime_values: BTreeMap<String, String>,
        pub status_port: i32,
        pub extra_stat_tags: Vec<String>,
        pub gateway_topology: Option<Topology>,
        pub termination_drain_duration: Option<Duration>,
        pub mesh_id: String,
        pub readiness_probe: Option<ReadinessProbe>,
        pub proxy_stats_matcher: Option<ProxyStatsMatcher>,
        pub hold_application_until_proxy_starts: Option<bool>,
        pub ca_certificates_pem: Vec<String>,
        pub image: Option<ProxyImage>,
        pub private_key_provider: Option<PrivateKeyProvider>,
        pub proxy_headers: Option<ProxyHeaders>,
        pub file_flush_interval: Option<Duration>,
        pub file_flush_min_size_kb: u32,
        pub stats_compression: Option<bool>,
        pub connection_settings: Option<ConnectionSettings>,
    }
}

api! {
    pub struct ProxyStatsMatcher {
        pub inclusion_prefixes: Vec<String>,
        pub inclusion_suffixes: Vec<String>,
        pub inclusion_regexps: Vec<String>,
    }
}

api! {
    pub struct ProxyHeaders {
        pub forwarded_client_cert: ForwardClientCertDetails,
        pub set_current_client_cert_details: Option<SetCurrentClientCertDetails>,
        pub request_id: Option<RequestIdHeader>,
        pub server: Option<ServerHeader>,
        pub attempt_count: Option<AttemptCountHeader>,
        pub envoy_debug_headers: Option<EnvoyDebugHeaders>,
        pub metadata_exchange_headers: Option<MetadataExchangeHeaders>,
        pub preserve_http1_header_case: Option<bool>,
        pub x_forwarded_host: Option<XForwardedHost>,
        pub x_forwarded_port: Option<XForwardedPort>,
    }
}

api! {
    pub struct ServerHeader {
        pub disabled: Option<bool>,
        pub value: String,
    }
}

api! {
    pub struct RequestIdHeader {
        pub disabled: Option<bool>,
    }
}

api! {
    pub struct AttemptCountHeader {
        pub disabled: Option<bool>,
    }
}

api! {
    pub struct XForwardedHost {
        pub enabled: Option<bool>,
    }
}

api! {
    pub struct XForwardedPort {
        pub enabled: Option<bool>,
    }
}

api! {
    pub struct EnvoyDebugHeaders {
        pub disabled: Option<bool>,
    }
}

api! {
    pub struct MetadataExchangeHeaders {
        pub mode: MetadataExchangeMode,
    }
}

api! {
    pub struct SetCurrentClientCertDetails {
        pub subject: Option<bool>,
        pub cert: Option<bool>,
        pub chain: Option<bool>,
        pub dns: Option<bool>,
        pub uri: Option<bool>,
    }
}

api_enum! {
    MetadataExchangeMode {
        Undefined = "UNDEFINED",
        InMesh = "IN_MESH",
    }
}

api! {
    pub struct ConnectionSettings {
        pub profile: ConnectionProfile,
        pub listener_per_connection_buffer_limit_bytes: Option<i32>,
        pub cluster_per_connection_buffer_limit_bytes: Option<i32>,
        pub http_idle_timeout: Option<Duration>,
        pub http_max_connection_duration: Option<Duration>,
        pub http_drain_timeout: Option<Duration>,
        pub http_request_timeout: Option<Duration>,
        pub http_request_headers_timeout: Option<Duration>,
        pub http_stream_idle_timeout: Option<Duration>,
        pub http_max_stream_duration: Option<Duration>,
        pub http_max_concurrent_streams: Option<i32>,
        pub http2_initial_stream_window_size: Option<i32>,
        pub http2_initial_connection_window_size: Option<i32>,
        pub http_headers_with_underscores_action: HeadersWithUnderscoresAction,
        pub http_merge_slashes: Option<bool>,
        pub http_path_with_escaped_slashes_action: PathWithEscapedSlashesAction,
        pub listener_connection_limit: Option<i32>,
        pub global_downstream_connection_limit: Option<i32>,
    }
}

api_enum! {
    ConnectionProfile {
        Sidecar = "SIDECAR",
        Edge = "EDGE",
    }
}

api_enum! {
    HeadersWithUnderscoresAction {
        HeadersWithUnderscoresUnspecified = "HEADERS_WITH_UNDERSCORES_UNSPECIFIED",
        HeadersWithUnderscoresAllow = "HEADERS_WITH_UNDERSCORES_ALLOW",
        HeadersWithUnderscoresRejectRequest = "HEADERS_WITH_UNDERSCORES_REJECT_REQUEST",
        HeadersWithUnderscoresDropHeader = "HEADERS_WITH_UNDERSCORES_DROP_HEADER",
    }
}

api_enum! {
    PathWithEscapedSlashesAction {
        PathWithEscapedSlashesUnspecified = "PATH_WITH_ESCAPED_SLASHES_UNSPECIFIED",
        KeepUnchanged = "KEEP_UNCHANGED",
        RejectRequest = "REJECT_REQUEST",
        UnescapeAndRedirect = "UNESCAPE_AND_REDIRECT",
        UnescapeAndForward = "UNESCAPE_AND_FORWARD",
    }
}

api_enum! {
    TracingServiceName {
        AppLabelAndNamespace = "APP_LABEL_AND_NAMESPACE",
        CanonicalNameOnly = "CANONICAL_NAME_ONLY",
        CanonicalNameAndNamespace = "CANONICAL_NAME_AND_NAMESPACE",
    }
}

api_enum! {
    InboundInterceptionMode {
        Redirect = "REDIRECT",
        Tproxy = "TPROXY",
        None = "NONE",
    }
}

api! {
    pub struct RemoteService {
        pub address: String,
        pub tls_settings: Option<ClientTlsSettings>,
        pub tcp_keepalive: Option<TcpKeepalive>,
    }
}
