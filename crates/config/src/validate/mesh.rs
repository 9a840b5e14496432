//! `MeshConfig` and `MeshNetworks`.

use std::time::Duration as StdDuration;

use super::common::{at_most_one, duration, port};
use super::{host, traffic_policy};
use crate::finding::Checker;
use crate::mesh::{MeshConfig, MeshNetworks, ProxyConfig};
use crate::names::is_host_label;

pub(super) fn check_config(check: &mut Checker, mesh: &MeshConfig) {
    check.result(
        "proxyListenPort",
        port(u32::try_from(mesh.proxy_listen_port).unwrap_or(0)),
    );
    if let Some(timeout) = mesh.connect_timeout {
        check.result("connectTimeout", duration(timeout));
        let range = StdDuration::from_millis(1)..=StdDuration::from_hours(1);
        check.error_if(
            !range.contains(&timeout.get()),
            "connectTimeout",
            "must be from 1ms to 1h",
        );
    }
    check.some("defaultConfig", mesh.default_config.as_ref(), proxy_config);
    check.some(
        "localityLbSetting",
        mesh.locality_lb_setting.as_ref(),
        |check, setting| {
            traffic_policy::locality(check, setting, true);
        },
    );
    check.some(
        "zoneAwareLbSetting",
        mesh.zone_aware_lb_setting.as_ref(),
        |check, setting| {
            traffic_policy::zone_aware(check, setting, true);
        },
    );
    check.each(
        "serviceSettings",
        &mesh.service_settings,
        |check, settings| {
            check.each("hosts", &settings.hosts, |check, name| {
                if let Err(reason) = host::wildcard_domain(name) {
                    check.error(reason);
                }
            });
        },
    );
    check.result("trustDomain", trust_domain(&mesh.trust_domain));
    check.each(
        "trustDomainAliases",
        &mesh.trust_domain_aliases,
        |check, alias| {
            if let Err(reason) = trust_domain(alias) {
                check.error(reason);
            }
        },
    );
    let curves = mesh
        .mesh_mtls
        .as_ref()
        .is_some_and(|tls| !tls.ecdh_curves.is_empty());
    check.error_if(curves, "meshMTLS", "ecdhCurves is not supported here");
    check.some(
        "defaultTrafficPolicy",
        mesh.default_traffic_policy.as_ref(),
        |check, policy| {
            check.some(
                "connectionPool",
                policy.connection_pool.as_ref(),
                traffic_policy::connection_pool,
            );
            check.some(
                "outlierDetection",
                policy.outlier_detection.as_ref(),
                traffic_policy::outlier_detection,
            );
        },
    );
    check.some(
        "defaultHttpRetryPolicy",
        mesh.default_http_retry_policy.as_ref(),
        super::http_route::retries,
    );
    check.each(
        "extensionProviders",
        &mesh.extension_providers,
        |check, provider| {
            at_most_one(
                check,
                &[
                    ("envoyExtAuthzHttp", provider.envoy_ext_authz_http.is_some()),
                    ("envoyExtAuthzGrpc", provider.envoy_ext_authz_grpc.is_some()),
                    ("zipkin", provider.zipkin.is_some()),
                    ("lightstep", provider.lightstep.is_some()),
                    ("datadog", provider.datadog.is_some()),
                    ("stackdriver", provider.stackdriver.is_some()),
                    ("opencensus", provider.opencensus.is_some()),
                    ("skywalking", provider.skywalking.is_some()),
                    ("opentelemetry", provider.opentelemetry.is_some()),
                    ("prometheus", provider.prometheus.is_some()),
                    (
                        "envoyFileAccessLog",
                        provider.envoy_file_access_log.is_some(),
                    ),
                    ("envoyHttpAls", provider.envoy_http_als.is_some()),
                    ("envoyTcpAls", provider.envoy_tcp_als.is_some()),
                    ("envoyOtelAls", provider.envoy_otel_als.is_some()),
                    ("sds", provider.sds.is_some()),
                ],
            );
            if provider.name.is_empty() {
                check.field("name", |check| {
                    check.warn("must not be empty", "the provider cannot be referred to");
                });
            }
        },
    );
}

fn trust_domain(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        Err("must not be empty")
    } else if name
        .strip_suffix('.')
        .unwrap_or(name)
        .split('.')
        .all(is_host_label)
    {
        Ok(())
    } else {
        Err("is not a domain name")
    }
}

fn proxy_config(check: &mut Checker, config: &ProxyConfig) {
    check.error_if(
        config.config_path.is_empty(),
        "configPath",
        "must not be empty",
    );
    check.error_if(
        config.binary_path.is_empty(),
        "binaryPath",
        "must not be empty",
    );
    let cluster = config.service_cluster.as_deref().unwrap_or_default();
    check.error_if(
        cluster.is_empty() && config.tracing_service_name.is_none(),
        "serviceCluster",
        "is required, or tracingServiceName",
    );
    if let Some(drain) = config.drain_duration {
        check.result("drainDuration", duration(drain));
        check.error_if(
            drain.get().subsec_nanos() > 0,
            "drainDuration",
            "must be whole seconds",
        );
    }
    check.result("discoveryAddress", address(&config.discovery_address));
    if !config.statsd_udp_address.is_empty() {
        check.result("statsdUdpAddress", address(&config.statsd_udp_address));
    }
    for (name, service) in [
        ("envoyMetricsService", &config.envoy_metrics_service),
        ("envoyAccessLogService", &config.envoy_access_log_service),
    ] {
        check.some(name, service.as_ref(), |check, service| {
            if !service.address.is_empty() {
                check.result("address", address(&service.address));
            }
        });
    }
    check.some("tracing", config.tracing.as_ref(), |check, tracing| {
        at_most_one(
            check,
            &[
                ("zipkin", tracing.zipkin.is_some()),
                ("lightstep", tracing.lightstep.is_some()),
                ("datadog", tracing.datadog.is_some()),
                ("stackdriver", tracing.stackdriver.is_some()),
                ("openCensusAgent", tracing.open_census_agent.is_some()),
            ],
        );
        check.some("zipkin", tracing.zipkin.as_ref(), |check, zipkin| {
            check.result(
                "address",
                address(&zipkin.address.replace("$(HOST_IP)", "127.0.0.1")),
            );
        });
        check.some("datadog", tracing.datadog.as_ref(), |check, datadog| {
            check.result(
                "address",
                address(&datadog.address.replace("$(HOST_IP)", "127.0.0.1")),
            );
        });
        check.some(
            "tlsSettings",
            tracing.tls_settings.as_ref(),
            traffic_policy::client_tls,
        );
    });
    for (name, number) in [
        ("proxyAdminPort", config.proxy_admin_port),
        ("statusPort", config.status_port),
    ] {
        check.result(name, port(u32::try_from(number).unwrap_or(0)));
    }
}

/// `host:port`.
fn address(text: &str) -> Result<(), String> {
    let (name, number) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("{text:?} is not of the form host:port"))?;
    let number = number
        .parse::<u32>()
        .map_err(|_| format!("{number:?} is not a port number"))?;
    port(number)?;
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    if host::is_ip(bare) {
        Ok(())
    } else {
        host::domain(name)
    }
}

pub(super) fn check_networks(check: &mut Checker, networks: &MeshNetworks) {
    check.entries("networks", &networks.networks, |check, _, network| {
        check.each("endpoints", &network.endpoints, |check, endpoint| {
            at_most_one(
                check,
                &[
                    ("fromCidr", endpoint.from_cidr.is_some()),
                    ("fromRegistry", endpoint.from_registry.is_some()),
                ],
            );
            if let Some(cidr) = &endpoint.from_cidr {
                check.result("fromCidr", host::subnet(cidr));
            }
            let bad = endpoint
                .from_registry
                .as_ref()
                .is_some_and(|name| !is_host_label(name));
            check.error_if(bad, "fromRegistry", "invalid registry name");
        });
        check.each("gateways", &network.gateways, |check, gateway| {
            at_most_one(
                check,
                &[
                    (
                        "registryServiceName",
                        gateway.registry_service_name.is_some(),
                    ),
                    ("address", gateway.address.is_some()),
                ],
            );
            if let Some(name) = &gateway.registry_service_name {
                check.result("registryServiceName", host::domain(name));
            }
            if let Some(name) = &gateway.address
                && !host::is_ip(name)
            {
                check.result("address", host::domain(name));
            }
            check.result("port", port(gateway.port));
        });
    });
}
