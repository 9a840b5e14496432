//! `Telemetry`: traces, metrics and access logs.
#![expect(
    missing_docs,
    reason = "the fields are those of the public API, where they are documented"
)]

use std::collections::BTreeMap;

use crate::api::{api, api_enum};
use crate::{
    duration::Duration,
    selector::{PolicyTargetReference, WorkloadSelector},
};

api! {
    pub struct Telemetry {
        pub selector: Option<WorkloadSelector>,
        pub target_ref: Option<PolicyTargetReference>,
        pub target_refs: Vec<PolicyTargetReference>,
        pub tracing: Vec<Tracing>,
        pub metrics: Vec<Metrics>,
        pub access_logging: Vec<AccessLogging>,
    }
}

api! {
    pub struct Tracing {
        pub r#match: Option<TracingSelector>,
        pub providers: Vec<ProviderRef>,
        pub random_sampling_percentage: Option<f64>,
        pub disable_span_reporting: Option<bool>,
        pub custom_tags: BTreeMap<String, CustomTag>,
        pub use_request_id_for_trace_sampling: Option<bool>,
        pub enable_istio_tags: Option<bool>,
        pub disable_context_propagation: Option<bool>,
    }
}

api! {
    pub struct TracingSelector {
        pub mode: WorkloadMode,
    }
}

api! {
    pub struct CustomTag {
        pub literal: Option<Literal>,
        pub environment: Option<Environment>,
        pub header: Option<RequestHeader>,
        pub formatter: Option<Formatter>,
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
    pub struct Formatter {
        pub value: String,
    }
}

api! {
    pub struct ProviderRef {
        pub name: String,
    }
}

api! {
    pub struct Metrics {
        pub providers: Vec<ProviderRef>,
        pub overrides: Vec<MetricsOverrides>,
        pub reporting_interval: Option<Duration>,
    }
}

api_enum! {
    WorkloadMode {
        ClientAndServer = "CLIENT_AND_SERVER",
        Client = "CLIENT",
        Server = "SERVER",
    }
}

api! {
    pub struct MetricSelector {
        pub metric: Option<IstioMetric>,
        pub custom_metric: Option<String>,
        pub mode: WorkloadMode,
    }
}

api_enum! {
    IstioMetric {
        AllMetrics = "ALL_METRICS",
        RequestCount = "REQUEST_COUNT",
        RequestDuration = "REQUEST_DURATION",
        RequestSize = "REQUEST_SIZE",
        ResponseSize = "RESPONSE_SIZE",
        TcpOpenedConnections = "TCP_OPENED_CONNECTIONS",
        TcpClosedConnections = "TCP_CLOSED_CONNECTIONS",
        TcpSentBytes = "TCP_SENT_BYTES",
        TcpReceivedBytes = "TCP_RECEIVED_BYTES",
        GrpcRequestMessages = "GRPC_REQUEST_MESSAGES",
        GrpcResponseMessages = "GRPC_RESPONSE_MESSAGES",
    }
}

api! {
    pub struct MetricsOverrides {
        pub r#match: Option<MetricSelector>,
        pub disabled: Option<bool>,
        pub tag_overrides: BTreeMap<String, TagOverride>,
    }
}

api! {
    pub struct TagOverride {
        pub operation: TagOperation,
        pub value: String,
    }
}

api_enum! {
    TagOperation {
        Upsert = "UPSERT",
        Remove = "REMOVE",
    }
}

api! {
    pub struct AccessLogging {
        pub r#match: Option<LogSelector>,
        pub providers: Vec<ProviderRef>,
        pub disabled: Option<bool>,
        pub filter: Option<AccessLogFilter>,
    }
}

api! {
    pub struct LogSelector {
        pub mode: WorkloadMode,
    }
}

api! {
    pub struct AccessLogFilter {
        pub expression: String,
    }
}
