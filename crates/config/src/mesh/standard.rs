//! What istiod assumes when the mesh configuration is silent.

use super::{
    AuthenticationPolicy, DefaultProviders, EnvoyFileAccessLogProvider, ExtensionProvider,
    InboundTrafficPolicy, IngressControllerMode, MeshConfig, OutboundTrafficMode,
    OutboundTrafficPolicy, PrometheusMetricsProvider, ProxyConfig, StackdriverProvider,
};
use crate::duration::Duration;
use crate::networking::LocalityLoadBalancerSetting;

impl MeshConfig {
    /// istiod's defaults. `MeshConfig::default()` is the empty message instead.
    pub fn standard() -> Self {
        let everywhere = vec!["*".to_owned()];
        let provider = |name: &str| ExtensionProvider {
            name: name.to_owned(),
            ..ExtensionProvider::default()
        };
        Self {
            enable_tracing: true,
            protocol_detection_timeout: Some(Duration::default()),
            ingress_service: "istio-ingressgateway".to_owned(),
            ingress_controller_mode: IngressControllerMode::Strict,
            ingress_class: "istio".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            enable_auto_mtls: Some(true),
            outbound_traffic_policy: Some(OutboundTrafficPolicy {
                mode: OutboundTrafficMode::AllowAny,
                tls: None,
            }),
            inbound_traffic_policy: Some(InboundTrafficPolicy::default()),
            locality_lb_setting: Some(LocalityLoadBalancerSetting {
                enabled: Some(true),
                ..LocalityLoadBalancerSetting::default()
            }),
            default_config: Some(ProxyConfig::standard()),
            root_namespace: "istio-system".to_owned(),
            proxy_listen_port: 15001,
            proxy_inbound_listen_port: 15006,
            connect_timeout: Some(Duration::from_secs(10)),
            default_service_export_to: everywhere.clone(),
            default_virtual_service_export_to: everywhere.clone(),
            default_destination_rule_export_to: everywhere,
            dns_refresh_rate: Some(Duration::from_secs(60)),
            enable_prometheus_merge: Some(true),
            default_providers: Some(DefaultProviders::default()),
            extension_providers: vec![
                ExtensionProvider {
                    prometheus: Some(PrometheusMetricsProvider {}),
                    ..provider("prometheus")
                },
                ExtensionProvider {
                    stackdriver: Some(StackdriverProvider::default()),
                    ..provider("stackdriver")
                },
                ExtensionProvider {
                    envoy_file_access_log: Some(EnvoyFileAccessLogProvider {
                        path: "/dev/stdout".to_owned(),
                        ..EnvoyFileAccessLogProvider::default()
                    }),
                    ..provider("envoy")
                },
            ],
            ..Self::default()
        }
    }
}

impl ProxyConfig {
    /// istiod's defaults. `ProxyConfig::default()` is the empty message instead.
    pub fn standard() -> Self {
        Self {
            config_path: "./etc/istio/proxy".to_owned(),
            binary_path: "/usr/local/bin/envoy".to_owned(),
            service_cluster: Some("istio-proxy".to_owned()),
            drain_duration: Some(Duration::from_secs(45)),
            termination_drain_duration: Some(Duration::from_secs(5)),
            proxy_admin_port: 15000,
            control_plane_auth_policy: AuthenticationPolicy::MutualTls,
            discovery_address: "istiod.istio-system.svc:15012".to_owned(),
            stat_name_length: 189,
            status_port: 15020,
            ..Self::default()
        }
    }
}
