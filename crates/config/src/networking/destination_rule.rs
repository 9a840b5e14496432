//! `DestinationRule`: what applies to traffic once its destination is known.

use std::collections::BTreeMap;

use super::virtual_service::PortSelector;
use super::{api, api_enum};
use crate::Labels;
use crate::{duration::Duration, selector::WorkloadSelector};

api! {
    pub struct DestinationRule {
        pub host: String,
        pub traffic_policy: Option<TrafficPolicy>,
        pub subsets: Vec<Subset>,
        pub export_to: Vec<String>,
        pub workload_selector: Option<WorkloadSelector>,
    }
}

api! {
    pub struct TrafficPolicy {
        pub load_balancer: Option<LoadBalancerSettings>,
        pub connection_pool: Option<ConnectionPoolSettings>,
        pub outlier_detection: Option<OutlierDetection>,
        pub tls: Option<ClientTlsSettings>,
        pub port_level_settings: Vec<PortTrafficPolicy>,
        pub tunnel: Option<TunnelSettings>,
        pub proxy_protocol: Option<ProxyProtocol>,
        pub retry_budget: Option<RetryBudget>,
    }
}

api! {
    pub struct PortTrafficPolicy {
        pub port: Option<PortSelector>,
        pub load_balancer: Option<LoadBalancerSettings>,
        pub connection_pool: Option<ConnectionPoolSettings>,
        pub outlier_detection: Option<OutlierDetection>,
        pub tls: Option<ClientTlsSettings>,
    }
}

api! {
    pub struct TunnelSettings {
        pub protocol: String,
        pub target_host: String,
        pub target_port: u32,
    }
}

api! {
    pub struct ProxyProtocol {
        pub version: ProxyProtocolVersion,
    }
}

api_enum! {
    ProxyProtocolVersion {
        V1 = "V1",
        V2 = "V2",
    }
}

api! {
    pub struct RetryBudget {
        pub percent: Option<f64>,
        pub min_retry_concurrency: u32,
        pub budget_interval: Option<Duration>,
    }
}

api! {
    pub struct Subset {
        pub name: String,
        pub labels: Labels,
        pub traffic_policy: Option<Box<TrafficPolicy>>,
    }
}

api! {
    pub struct LoadBalancerSettings {
        pub simple: Option<SimpleLb>,
        pub consistent_hash: Option<ConsistentHashLb>,
        pub locality_lb_setting: Option<LocalityLoadBalancerSetting>,
        pub zone_aware_lb_setting: Option<ZoneAwareLoadBalancerSetting>,
        pub warmup_duration_secs: Option<Duration>,
        pub warmup: Option<WarmupConfiguration>,
    }
}

api! {
    pub struct ConsistentHashLb {
        pub http_header_name: Option<String>,
        pub http_cookie: Option<HttpCookie>,
        pub use_source_ip: Option<bool>,
        pub http_query_parameter_name: Option<String>,
        pub ring_hash: Option<RingHash>,
        pub maglev: Option<Maglev>,
        pub minimum_ring_size: u64,
    }
}

api! {
    pub struct RingHash {
        pub minimum_ring_size: u64,
    }
}

api! {
    pub struct Maglev {
        pub table_size: u64,
    }
}

api! {
    pub struct HttpCookie {
        pub name: String,
        pub path: String,
        pub ttl: Option<Duration>,
        pub attributes: Vec<CookieAttribute>,
    }
}

api! {
    pub struct CookieAttribute {
        pub name: String,
        pub value: String,
    }
}

api_enum! {
    SimpleLb {
        Unspecified = "UNSPECIFIED",
        LeastConn = "LEAST_CONN",
        Random = "RANDOM",
        Passthrough = "PASSTHROUGH",
        RoundRobin = "ROUND_ROBIN",
        LeastRequest = "LEAST_REQUEST",
    }
}

api! {
    pub struct WarmupConfiguration {
        pub duration: Option<Duration>,
        pub minimum_percent: Option<f64>,
        pub aggression: Option<f64>,
    }
}

api! {
    pub struct ConnectionPoolSettings {
        pub tcp: Option<TcpSettings>,
        pub http: Option<HttpSettings>,
    }
}

api! {
    pub struct TcpSettings {
        pub max_connections: i32,
        pub connect_timeout: Option<Duration>,
        pub tcp_keepalive: Option<TcpKeepalive>,
        pub max_connection_duration: Option<Duration>,
        pub idle_timeout: Option<Duration>,
    }
}

api! {
    pub struct TcpKeepalive {
        pub probes: u32,
        pub time: Option<Duration>,
        pub interval: Option<Duration>,
    }
}

api! {
    pub struct HttpSettings {
        pub http1_max_pending_requests: i32,
        pub http2_max_requests: i32,
        pub max_requests_per_connection: i32,
        pub max_retries: i32,
        pub idle_timeout: Option<Duration>,
        pub h2_upgrade_policy: H2UpgradePolicy,
        pub use_client_protocol: bool,
        pub max_concurrent_streams: i32,
        pub http2_keep_alive: Option<ConnectionKeepalive>,
    }
}

api! {
    pub struct ConnectionKeepalive {
        pub interval: Option<Duration>,
        pub timeout: Option<Duration>,
    }
}

api_enum! {
    H2UpgradePolicy {
        Default = "DEFAULT",
        DoNotUpgrade = "DO_NOT_UPGRADE",
        Upgrade = "UPGRADE",
    }
}

api! {
    pub struct OutlierDetection {
        pub consecutive_errors: i32,
        pub split_external_local_origin_errors: bool,
        pub consecutive_local_origin_failures: Option<u32>,
        pub consecutive_gateway_errors: Option<u32>,
        pub consecutive_5xx_errors: Option<u32>,
        pub interval: Option<Duration>,
        pub base_ejection_time: Option<Duration>,
        pub max_ejection_percent: i32,
        pub min_health_percent: i32,
        pub outlier_detection_http_error_codes: Vec<u32>,
    }
}

api! {
    pub struct ClientTlsSettings {
        pub mode: ClientTlsMode,
        pub client_certificate: String,
        pub private_key: String,
        pub ca_certificates: String,
        pub credential_name: String,
        pub subject_alt_names: Vec<String>,
        pub sni: String,
        pub insecure_skip_verify: Option<bool>,
        pub ca_crl: String,
    }
}

api_enum! {
    ClientTlsMode {
        Disable = "DISABLE",
        Simple = "SIMPLE",
        Mutual = "MUTUAL",
        IstioMutual = "ISTIO_MUTUAL",
    }
}

api! {
    pub struct LocalityLoadBalancerSetting {
        pub distribute: Vec<LocalityDistribute>,
        pub failover: Vec<LocalityFailover>,
        pub failover_priority: Vec<String>,
        pub enabled: Option<bool>,
    }
}

api! {
    pub struct LocalityDistribute {
        pub from: String,
        pub to: BTreeMap<String, u32>,
    }
}

api! {
    pub struct LocalityFailover {
        pub from: String,
        pub to: String,
    }
}

api! {
    pub struct ZoneAwareLoadBalancerSetting {
        pub enabled: Option<bool>,
        pub failover: Vec<LocalityFailover>,
        pub failover_priority: Vec<String>,
        pub min_cluster_size: Option<u32>,
    }
}
