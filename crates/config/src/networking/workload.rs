//! `WorkloadEntry` and `WorkloadGroup`: workloads outside Kubernetes.

use super::api;
use crate::Labels;
use std::collections::BTreeMap;

api! {
    pub struct WorkloadEntry {
        pub address: String,
        pub ports: BTreeMap<String, u32>,
        pub labels: Labels,
        pub network: String,
        pub locality: String,
        pub weight: u32,
        pub service_account: String,
        /// What its health check last said; from `status`, which users do not write.
        #[serde(skip_deserializing)]
        pub status_healthy: Option<bool>,
    }
}

api! {
    pub struct WorkloadGroup {
        pub metadata: Option<WorkloadGroupMeta>,
        pub template: Option<WorkloadEntry>,
        pub probe: Option<ReadinessProbe>,
    }
}

api! {
    pub struct WorkloadGroupMeta {
        pub labels: Labels,
        pub annotations: BTreeMap<String, String>,
    }
}

api! {
    pub struct ReadinessProbe {
        pub initial_delay_seconds: i32,
        pub timeout_seconds: i32,
        pub period_seconds: i32,
        pub success_threshold: i32,
        pub failure_threshold: i32,
        pub http_get: Option<HttpHealthCheckConfig>,
        pub tcp_socket: Option<TcpHealthCheckConfig>,
        pub exec: Option<ExecHealthCheckConfig>,
        pub grpc: Option<GrpcHealthCheckConfig>,
    }
}

api! {
    pub struct HttpHealthCheckConfig {
        pub path: String,
        pub port: u32,
        pub host: String,
        pub scheme: String,
        pub http_headers: Vec<HttpHeader>,
    }
}

api! {
    pub struct GrpcHealthCheckConfig {
        pub port: u32,
        pub service: String,
    }
}

api! {
    pub struct HttpHeader {
        pub name: String,
        pub value: String,
    }
}

api! {
    pub struct TcpHealthCheckConfig {
        pub host: String,
        pub port: u32,
    }
}

api! {
    pub struct ExecHealthCheckConfig {
        pub command: Vec<String>,
    }
}
