//! `MeshConfig`: settings of the whole mesh.

use std::collections::BTreeMap;

use super::{ExtensionProvider, ProxyConfig};
use super::{api, api_enum};
use crate::{
    duration::Duration,
    networking::{
        ClientTlsSettings, ConnectionPoolSettings, HttpRetry, LocalityLoadBalancerSetting,
        OutlierDetection, TcpKeepalive, ZoneAwareLoadBalancerSetting,
    },
};

api! {
    pub struct MeshConfig {
        pub proxy_listen_port: i32,
        pub proxy_inbound_listen_port: i32,
        pub proxy_http_port: i32,
        pub connect_timeout: Option<Duration>,
        pub hbone_idle_timeout: Option<Duration>,
        pub protocol_detection_timeout: Option<Duration>,
        pub tcp_keepalive: Option<TcpKeepalive>,
        pub ingress_class: String,
        pub ingress_service: String,
        pub ingress_controller_mode: IngressControllerMode,
        pub ingress_selector: String,
        pub enable_tracing: bool,
        pub access_log_file: String,
        pub access_log_format: String,
        pub access_log_encoding: AccessLogEncoding,
        pub enable_envoy_access_log_service: bool,
        pub disable_envoy_listener_log: bool,
        pub default_config: Option<ProxyConfig>,
        pub outbound_traffic_policy: Option<OutboundTrafficPolicy>,
        pub inbound_traffic_policy: Option<InboundTrafficPolicy>,
        pub config_sources: Vec<ConfigSource>,
        pub enable_auto_mtls: Option<bool>,
        pub trust_domain: String,
        pub trust_domain_aliases: Vec<String>,
        pub ca_certificates: Vec<CertificateData>,
        pub default_service_export_to: Vec<String>,
        pub default_virtual_service_export_to: Vec<String>,
        pub default_destination_rule_export_to: Vec<String>,
        pub root_namespace: String,
        pub locality_lb_setting: Option<LocalityLoadBalancerSetting>,
        pub zone_aware_lb_setting: Option<ZoneAwareLoadBalancerSetting>,
        pub dns_refresh_rate: Option<Duration>,
        pub h2_upgrade_policy: H2UpgradePolicy,
        pub inbound_cluster_stat_name: String,
        pub outbound_cluster_stat_name: String,
        pub certificates: Vec<Certificate>,
        pub service_settings: Vec<ServiceSettings>,
        pub service_scope_configs: Vec<ServiceScopeConfigs>,
        pub enable_prometheus_merge: Option<bool>,
        pub verify_certificate_at_client: Option<bool>,
        pub ca: Option<Ca>,
        pub extension_providers: Vec<ExtensionProvider>,
        pub default_providers: Option<DefaultProviders>,
        pub discovery_selectors: Vec<LabelSelector>,
        pub path_normalization: Option<ProxyPathNormalization>,
        pub default_http_retry_policy: Option<HttpRetry>,
        #[serde(rename = "meshMTLS")]
        pub mesh_mtls: Option<TlsConfig>,
        pub tls_defaults: Option<TlsConfig>,
        pub default_traffic_policy: Option<DefaultTrafficPolicy>,
        pub service_entry_visibility: Option<ServiceEntryVisibility>,
    }
}

api! {
    pub struct OutboundTrafficPolicy {
        pub mode: OutboundTrafficMode,
        pub tls: Option<ClientTlsSettings>,
    }
}

api_enum! {
    OutboundTrafficMode {
        RegistryOnly = "REGISTRY_ONLY",
        AllowAny = "ALLOW_ANY",
        AllowAnyDynamicDns = "ALLOW_ANY_DYNAMIC_DNS",
    }
}

api! {
    pub struct InboundTrafficPolicy {
        pub mode: InboundTrafficMode,
    }
}

api_enum! {
    InboundTrafficMode {
        Passthrough = "PASSTHROUGH",
        Localhost = "LOCALHOST",
    }
}

api! {
    pub struct CertificateData {
        pub pem: Option<String>,
        pub spiffe_bundle_url: Option<String>,
        pub cert_signers: Vec<String>,
        pub trust_domains: Vec<String>,
    }
}

api! {
    pub struct ServiceSettings {
        pub settings: Option<ServiceSettingsFlags>,
        pub hosts: Vec<String>,
    }
}

api! {
    pub struct ServiceSettingsFlags {
        pub cluster_local: bool,
    }
}

api! {
    pub struct ServiceScopeConfigs {
        pub namespace_selector: Option<LabelSelector>,
        pub services_selector: Option<LabelSelector>,
        pub scope: ServiceScope,
    }
}

api_enum! {
    ServiceScope {
        Local = "LOCAL",
        Global = "GLOBAL",
    }
}

api! {
    pub struct Ca {
        pub address: String,
        pub tls_settings: Option<ClientTlsSettings>,
        pub request_timeout: Option<Duration>,
        pub istiod_side: bool,
    }
}

api! {
    pub struct DefaultProviders {
        pub tracing: Vec<String>,
        pub metrics: Vec<String>,
        pub access_logging: Vec<String>,
    }
}

api! {
    pub struct ProxyPathNormalization {
        pub normalization: NormalizationType,
    }
}

api_enum! {
    NormalizationType {
        Default = "DEFAULT",
        None = "NONE",
        Base = "BASE",
        MergeSlashes = "MERGE_SLASHES",
        DecodeAndMergeSlashes = "DECODE_AND_MERGE_SLASHES",
    }
}

api! {
    pub struct TlsConfig {
        pub min_protocol_version: TlsProtocol,
        pub ecdh_curves: Vec<String>,
        pub cipher_suites: Vec<String>,
    }
}

api_enum! {
    TlsProtocol {
        TlsAuto = "TLS_AUTO",
        Tlsv1_2 = "TLSV1_2",
        Tlsv1_3 = "TLSV1_3",
    }
}

api! {
    pub struct DefaultTrafficPolicy {
        pub connection_pool: Option<ConnectionPoolSettings>,
        pub outlier_detection: Option<OutlierDetection>,
    }
}

api_enum! {
    IngressControllerMode {
        Unspecified = "UNSPECIFIED",
        Off = "OFF",
        Default = "DEFAULT",
        Strict = "STRICT",
    }
}

api_enum! {
    AuthPolicy {
        None = "NONE",
        MutualTls = "MUTUAL_TLS",
    }
}

api_enum! {
    AccessLogEncoding {
        Text = "TEXT",
        Json = "JSON",
    }
}

api_enum! {
    H2UpgradePolicy {
        DoNotUpgrade = "DO_NOT_UPGRADE",
        Upgrade = "UPGRADE",
    }
}

api_enum! {
    Resource {
        ServiceRegistry = "SERVICE_REGISTRY",
    }
}

api! {
    pub struct LabelSelector {
        pub match_labels: BTreeMap<String, String>,
        pub match_expressions: Vec<LabelSelectorRequirement>,
    }
}

api! {
    pub struct LabelSelectorRequirement {
        pub key: String,
        pub operator: String,
        pub values: Vec<String>,
    }
}

api! {
    pub struct ServiceEntryVisibility {
        pub default_visibility: Visibility,
        pub apply_to_sidecars: bool,
        pub policies: Vec<ServiceEntryVisibilityPolicy>,
    }
}

api! {
    pub struct ServiceEntryVisibilityPolicy {
        pub visibility: Visibility,
        pub matching_rules: Vec<VisibilityMatchRule>,
    }
}

api! {
    pub struct VisibilityMatchRule {
        pub namespace_selector: Option<LabelSelector>,
    }
}

api_enum! {
    Visibility {
        VisibilityUnspecified = "VISIBILITY_UNSPECIFIED",
        None = "NONE",
        Namespace = "NAMESPACE",
        Public = "PUBLIC",
    }
}

api! {
    pub struct ConfigSource {
        pub address: String,
        pub tls_settings: Option<ClientTlsSettings>,
        pub subscribed_resources: Vec<Resource>,
    }
}

api! {
    pub struct Certificate {
        pub secret_name: String,
        pub dns_names: Vec<String>,
    }
}
