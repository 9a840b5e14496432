//! `extensionProviders`: services that authorise, trace, count and log for the proxies.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{api, api_enum};
use crate::duration::Duration;

api! {
    pub struct ExtensionProvider {
        pub name: String,
        pub envoy_ext_authz_http: Option<EnvoyExternalAuthorizationHttpProvider>,
        pub envoy_ext_authz_grpc: Option<EnvoyExternalAuthorizationGrpcProvider>,
        pub zipkin: Option<ZipkinTracingProvider>,
        pub lightstep: Option<LightstepTracingProvider>,
        pub datadog: Option<DatadogTracingProvider>,
        pub stackdriver: Option<StackdriverProvider>,
        pub opencensus: Option<OpenCensusAgentTracingProvider>,
        pub skywalking: Option<SkyWalkingTracingProvider>,
        pub opentelemetry: Option<OpenTelemetryTracingProvider>,
        pub prometheus: Option<PrometheusMetricsProvider>,
        pub envoy_file_access_log: Option<EnvoyFileAccessLogProvider>,
        pub envoy_http_als: Option<EnvoyHttpGrpcV3LogProvider>,
        pub envoy_tcp_als: Option<EnvoyTcpGrpcV3LogProvider>,
        pub envoy_otel_als: Option<EnvoyOpenTelemetryLogProvider>,
        pub sds: Option<SdsProvider>,
    }
}

impl ExtensionProvider {
    /// The services that stand behind it, `host` or `namespace/host`, as far as proxies call them.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        [
            self.envoy_ext_authz_http.as_ref().map(|p| &p.service),
            self.envoy_ext_authz_grpc.as_ref().map(|p| &p.service),
            self.zipkin.as_ref().map(|p| &p.service),
            self.datadog.as_ref().map(|p| &p.service),
            self.skywalking.as_ref().map(|p| &p.service),
            self.opentelemetry.as_ref().map(|p| &p.service),
            self.envoy_http_als.as_ref().map(|p| &p.service),
            self.envoy_tcp_als.as_ref().map(|p| &p.service),
            self.envoy_otel_als.as_ref().map(|p| &p.service),
            self.sds.as_ref().map(|p| &p.service),
        ]
        .into_iter()
        .flatten()
        .map(String::as_str)
    }
}

api! {
    pub struct EnvoyExternalAuthorizationRequestBody {
        pub max_request_bytes: u32,
        pub allow_partial_message: bool,
        pub pack_as_bytes: bool,
    }
}

api! {
    pub struct EnvoyExternalAuthorizationHttpProvider {
        pub service: String,
        pub port: u32,
        pub timeout: Option<Duration>,
        pub path_prefix: String,
        pub fail_open: bool,
        pub clear_route_cache: bool,
        pub status_on_error: String,
        pub include_headers_in_check: Vec<String>,
        pub include_request_headers_in_check: Vec<String>,
        pub include_additional_headers_in_check: BTreeMap<String, String>,
        pub include_request_body_in_check: Option<EnvoyExternalAuthorizationRequestBody>,
        pub headers_to_upstream_on_allow: Vec<String>,
        pub headers_to_downstream_on_deny: Vec<String>,
        pub headers_to_downstream_on_allow: Vec<String>,
    }
}

api! {
    pub struct EnvoyExternalAuthorizationGrpcProvider {
        pub service: String,
        pub port: u32,
        pub timeout: Option<Duration>,
        pub fail_open: bool,
        pub clear_route_cache: bool,
        pub status_on_error: String,
        pub include_request_body_in_check: Option<EnvoyExternalAuthorizationRequestBody>,
    }
}

api! {
    pub struct ZipkinTracingProvider {
        pub service: String,
        pub port: u32,
        pub max_tag_length: u32,
        pub enable_64bit_trace_id: bool,
        pub path: String,
        pub trace_context_option: TraceContextOption,
        pub timeout: Option<Duration>,
        pub headers: Vec<HttpHeader>,
    }
}

api_enum! {
    TraceContextOption {
        UseB3 = "USE_B3",
        UseB3WithW3cPropagation = "USE_B3_WITH_W3C_PROPAGATION",
    }
}

api! {
    pub struct LightstepTracingProvider {
        pub service: String,
        pub port: u32,
        pub access_token: String,
        pub max_tag_length: u32,
    }
}

api! {
    pub struct DatadogTracingProvider {
        pub service: String,
        pub port: u32,
        pub max_tag_length: u32,
    }
}

api! {
    pub struct SkyWalkingTracingProvider {
        pub service: String,
        pub port: u32,
        pub access_token: String,
    }
}

api! {
    pub struct StackdriverProvider {
        pub debug: bool,
        pub max_number_of_attributes: Option<i64>,
        pub max_number_of_annotations: Option<i64>,
        pub max_number_of_message_events: Option<i64>,
        pub max_tag_length: u32,
        pub logging: Option<StackdriverLogging>,
    }
}

api! {
    pub struct StackdriverLogging {
        pub labels: BTreeMap<String, String>,
    }
}

api! {
    pub struct OpenCensusAgentTracingProvider {
        pub service: String,
        pub port: u32,
        pub context: Vec<OpenCensusTraceContext>,
        pub max_tag_length: u32,
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
    pub struct PrometheusMetricsProvider {}
}

api! {
    pub struct EnvoyFileAccessLogProvider {
        pub path: String,
        pub log_format: Option<FileLogFormat>,
        pub omit_empty_values: bool,
    }
}

api! {
    pub struct FileLogFormat {
        pub text: Option<String>,
        pub labels: Option<Value>,
    }
}

api! {
    pub struct EnvoyHttpGrpcV3LogProvider {
        pub service: String,
        pub port: u32,
        pub log_name: String,
        pub filter_state_objects_to_log: Vec<String>,
        pub additional_request_headers_to_log: Vec<String>,
        pub additional_response_headers_to_log: Vec<String>,
        pub additional_response_trailers_to_log: Vec<String>,
    }
}

api! {
    pub struct EnvoyTcpGrpcV3LogProvider {
        pub service: String,
        pub port: u32,
        pub log_name: String,
        pub filter_state_objects_to_log: Vec<String>,
    }
}

api! {
    pub struct EnvoyOpenTelemetryLogProvider {
        pub service: String,
        pub port: u32,
        pub log_name: String,
        pub log_format: Option<OtelLogFormat>,
    }
}

api! {
    pub struct OtelLogFormat {
        pub text: String,
        pub labels: Option<Value>,
    }
}

api! {
    pub struct OpenTelemetryTracingProvider {
        pub service: String,
        pub port: u32,
        pub max_tag_length: u32,
        pub http: Option<HttpService>,
        pub grpc: Option<GrpcService>,
        pub resource_detectors: Option<ResourceDetectors>,
        pub service_attribute_enrichment: ServiceAttributeEnrichment,
        pub dynatrace_sampler: Option<DynatraceSampler>,
    }
}

api! {
    pub struct DynatraceSampler {
        pub tenant: String,
        pub cluster_id: i32,
        pub root_spans_per_minute: u32,
        pub http_service: Option<DynatraceApi>,
    }
}

api! {
    pub struct DynatraceApi {
        pub service: String,
        pub port: u32,
        pub http: Option<HttpService>,
    }
}

api! {
    pub struct SdsProvider {
        pub name: String,
        pub service: String,
        pub port: u32,
    }
}

api! {
    pub struct HttpService {
        pub path: String,
        pub timeout: Option<Duration>,
        pub headers: Vec<HttpHeader>,
    }
}

api! {
    pub struct HttpHeader {
        pub name: String,
        pub value: Option<String>,
        pub env_name: Option<String>,
    }
}

api! {
    pub struct ResourceDetectors {
        pub environment: Option<EnvironmentResourceDetector>,
        pub dynatrace: Option<DynatraceResourceDetector>,
    }
}

api! {
    pub struct EnvironmentResourceDetector {}
}

api! {
    pub struct DynatraceResourceDetector {}
}

api! {
    pub struct GrpcService {
        pub timeout: Option<Duration>,
        pub initial_metadata: Vec<HttpHeader>,
    }
}

api_enum! {
    ServiceAttributeEnrichment {
        IstioCanonical = "ISTIO_CANONICAL",
        OtelSemanticConventions = "OTEL_SEMANTIC_CONVENTIONS",
    }
}
