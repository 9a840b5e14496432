//! What a destination rule, a sidecar and the mesh settings say about connections.

use std::collections::BTreeSet;

use super::common::{AS_WRITTEN, at_most_one, duration, optional_duration, port, unique};
use super::host;
use crate::finding::Checker;
use crate::networking::{
    ClientTlsMode, ClientTlsSettings, ConnectionPoolSettings, ConsistentHashLb, H2UpgradePolicy,
    HttpSettings, LoadBalancerSettings, LocalityFailover, LocalityLoadBalancerSetting,
    OutlierDetection, TcpSettings, TrafficPolicy, ZoneAwareLoadBalancerSetting,
};

/// The largest table that Envoy accepts for Maglev.
const MAX_MAGLEV: u64 = 5_000_011;

pub(super) fn check(check: &mut Checker, policy: &TrafficPolicy) {
    if *policy == TrafficPolicy::default() {
        return check.error("must not be empty");
    }
    at_most_one(
        check,
        &[
            ("tunnel", policy.tunnel.is_some()),
            ("proxyProtocol", policy.proxy_protocol.is_some()),
        ],
    );
    check.some(
        "outlierDetection",
        policy.outlier_detection.as_ref(),
        outlier_detection,
    );
    check.some(
        "connectionPool",
        policy.connection_pool.as_ref(),
        connection_pool,
    );
    check.some(
        "loadBalancer",
        policy.load_balancer.as_ref(),
        |check, settings| {
            load_balancer(check, settings, policy.outlier_detection.is_some());
        },
    );
    check.some("tls", policy.tls.as_ref(), client_tls);
    check.each(
        "portLevelSettings",
        &policy.port_level_settings,
        |check, policy| {
            match &policy.port {
                Some(selector) => check.field("port", |check| {
                    check.result("number", port(selector.number));
                }),
                None => check.error("port is required"),
            }
            let empty = policy.outlier_detection.is_none()
                && policy.connection_pool.is_none()
                && policy.load_balancer.is_none()
                && policy.tls.is_none();
            if empty {
                check.error("must not be empty");
            }
            check.some(
                "outlierDetection",
                policy.outlier_detection.as_ref(),
                outlier_detection,
            );
            check.some(
                "connectionPool",
                policy.connection_pool.as_ref(),
                connection_pool,
            );
            check.some(
                "loadBalancer",
                policy.load_balancer.as_ref(),
                |check, settings| {
                    load_balancer(check, settings, policy.outlier_detection.is_some());
                },
            );
            check.some("tls", policy.tls.as_ref(), client_tls);
        },
    );
    check.some("tunnel", policy.tunnel.as_ref(), |check, tunnel| {
        let protocol = tunnel.protocol.as_str();
        check.error_if(
            !matches!(protocol, "" | "CONNECT" | "POST"),
            "protocol",
            "must be CONNECT or POST",
        );
        if !host::is_ip(&tunnel.target_host) {
            check.result("targetHost", host::domain(&tunnel.target_host));
        }
        check.result("targetPort", port(tunnel.target_port));
    });
    check.some(
        "retryBudget",
        policy.retry_budget.as_ref(),
        |check, budget| {
            let percent = budget.percent.unwrap_or_default();
            check.error_if(
                !(0.0..=100.0).contains(&percent),
                "percent",
                "must be from 0 to 100",
            );
            optional_duration(check, "budgetInterval", budget.budget_interval);
        },
    );
}

pub(super) fn outlier_detection(check: &mut Checker, outlier: &OutlierDetection) {
    optional_duration(check, "baseEjectionTime", outlier.base_ejection_time);
    optional_duration(check, "interval", outlier.interval);
    if outlier.consecutive_errors != 0 {
        check.field("consecutiveErrors", |check| {
            check.warn(
                "deprecated, use consecutiveGatewayErrors or consecutive5xxErrors",
                AS_WRITTEN,
            );
        });
    }
    let local = outlier
        .consecutive_local_origin_failures
        .unwrap_or_default()
        > 0;
    check.error_if(
        local && !outlier.split_external_local_origin_errors,
        "consecutiveLocalOriginFailures",
        "needs splitExternalLocalOriginErrors",
    );
    for (name, percent) in [
        ("maxEjectionPercent", outlier.max_ejection_percent),
        ("minHealthPercent", outlier.min_health_percent),
    ] {
        check.error_if(!(0..=100).contains(&percent), name, "must be from 0 to 100");
    }
}

pub(super) fn connection_pool(check: &mut Checker, pool: &ConnectionPoolSettings) {
    if pool.http.is_none() && pool.tcp.is_none() {
        check.error("one of http and tcp is required");
    }
    check.some("http", pool.http.as_ref(), http_settings);
    check.some("tcp", pool.tcp.as_ref(), tcp_settings);
}

fn http_settings(check: &mut Checker, http: &HttpSettings) {
    for (name, value) in [
        ("http1MaxPendingRequests", http.http1_max_pending_requests),
        ("http2MaxRequests", http.http2_max_requests),
        ("maxRequestsPerConnection", http.max_requests_per_connection),
        ("maxRetries", http.max_retries),
        ("maxConcurrentStreams", http.max_concurrent_streams),
    ] {
        check.error_if(value < 0, name, "must not be negative");
    }
    optional_duration(check, "idleTimeout", http.idle_timeout);
    check.error_if(
        http.h2_upgrade_policy == H2UpgradePolicy::Upgrade && http.use_client_protocol,
        "useClientProtocol",
        "is not possible with h2UpgradePolicy UPGRADE",
    );
    check.some(
        "http2KeepAlive",
        http.http2_keep_alive.as_ref(),
        |check, keepalive| {
            for (name, value) in [
                ("interval", keepalive.interval),
                ("timeout", keepalive.timeout),
            ] {
                match value {
                    Some(value) => check.result(name, duration(value)),
                    None => check.error(format!("{name} is required")),
                }
            }
        },
    );
}

fn tcp_settings(check: &mut Checker, tcp: &TcpSettings) {
    check.error_if(
        tcp.max_connections < 0,
        "maxConnections",
        "must not be negative",
    );
    optional_duration(check, "connectTimeout", tcp.connect_timeout);
    optional_duration(check, "maxConnectionDuration", tcp.max_connection_duration);
    // Zero turns the time-out off.
    optional_duration(
        check,
        "idleTimeout",
        tcp.idle_timeout.filter(|timeout| !timeout.get().is_zero()),
    );
    check.some(
        "tcpKeepalive",
        tcp.tcp_keepalive.as_ref(),
        |check, keepalive| {
            optional_duration(check, "time", keepalive.time);
            optional_duration(check, "interval", keepalive.interval);
        },
    );
}

fn load_balancer(
    check: &mut Checker,
    settings: &LoadBalancerSettings,
    has_outlier_detection: bool,
) {
    at_most_one(
        check,
        &[
            ("simple", settings.simple.is_some()),
            ("consistentHash", settings.consistent_hash.is_some()),
        ],
    );
    check.some(
        "consistentHash",
        settings.consistent_hash.as_ref(),
        consistent_hash,
    );
    at_most_one(
        check,
        &[
            ("localityLbSetting", settings.locality_lb_setting.is_some()),
            (
                "zoneAwareLbSetting",
                settings.zone_aware_lb_setting.is_some(),
            ),
        ],
    );
    check.some(
        "localityLbSetting",
        settings.locality_lb_setting.as_ref(),
        |check, setting| {
            locality(check, setting, has_outlier_detection);
        },
    );
    check.some(
        "zoneAwareLbSetting",
        settings.zone_aware_lb_setting.as_ref(),
        |check, setting| {
            zone_aware(check, setting, has_outlier_detection);
        },
    );
    check.some("warmup", settings.warmup.as_ref(), |check, warmup| {
        match warmup.duration {
            Some(value) => check.result("duration", duration(value)),
            None => check.error("duration is required"),
        }
        let percent = warmup.minimum_percent.unwrap_or_default();
        check.error_if(
            !(0.0..=100.0).contains(&percent),
            "minimumPercent",
            "must be from 0 to 100",
        );
        let aggression = warmup.aggression.unwrap_or(1.0);
        check.error_if(
            aggression <= 0.0 || aggression.is_nan(),
            "aggression",
            "must be greater than 0",
        );
    });
}

fn consistent_hash(check: &mut Checker, hash: &ConsistentHashLb) {
    at_most_one(
        check,
        &[
            ("httpHeaderName", hash.http_header_name.is_some()),
            ("httpCookie", hash.http_cookie.is_some()),
            ("useSourceIp", hash.use_source_ip.is_some()),
            (
                "httpQueryParameterName",
                hash.http_query_parameter_name.is_some(),
            ),
        ],
    );
    at_most_one(
        check,
        &[
            ("ringHash", hash.ring_hash.is_some()),
            ("maglev", hash.maglev.is_some()),
            ("minimumRingSize", hash.minimum_ring_size != 0),
        ],
    );
    if hash.minimum_ring_size != 0 {
        check.field("minimumRingSize", |check| {
            check.warn("deprecated, use ringHash", AS_WRITTEN);
        });
    }
    check.some("httpCookie", hash.http_cookie.as_ref(), |check, cookie| {
        check.error_if(cookie.name.is_empty(), "name", "must not be empty");
        let mut names = BTreeSet::new();
        check.each("attributes", &cookie.attributes, |check, attribute| {
            check.error_if(attribute.name.is_empty(), "name", "must not be empty");
            unique(check, &mut names, "name", &attribute.name);
        });
    });
    check.some("maglev", hash.maglev.as_ref(), |check, maglev| {
        let size = maglev.table_size;
        let fits = size < MAX_MAGLEV && is_prime(size);
        check.error_if(
            !fits,
            "tableSize",
            format!("must be a prime number less than {MAX_MAGLEV}"),
        );
    });
}

fn is_prime(number: u64) -> bool {
    number > 1 && (2..=number.isqrt()).all(|factor| !number.is_multiple_of(factor))
}

fn is_topology_label(label: &str) -> bool {
    matches!(
        label,
        "topology.kubernetes.io/region"
            | "topology.kubernetes.io/zone"
            | "topology.istio.io/subzone"
    )
}

fn failover(
    check: &mut Checker,
    list: &[LocalityFailover],
    priority: &[String],
    has_outlier_detection: bool,
) {
    if !has_outlier_detection && (!list.is_empty() || !priority.is_empty()) {
        check.warn(
            "failover needs outlierDetection",
            "traffic does not fail over",
        );
    }
    check.each("failover", list, |check, failover| {
        if failover.from == failover.to {
            check.error("from and to must be different regions");
        }
        if failover.from.contains(['/', '*']) || failover.to.contains(['/', '*']) {
            check.error("from and to must be regions, without zone or wildcard");
        }
    });
}

pub(super) fn locality(
    check: &mut Checker,
    setting: &LocalityLoadBalancerSetting,
    has_outlier_detection: bool,
) {
    at_most_one(
        check,
        &[
            ("distribute", !setting.distribute.is_empty()),
            ("failover", !setting.failover.is_empty()),
        ],
    );
    let topology = setting
        .failover_priority
        .iter()
        .any(|label| is_topology_label(label));
    check.error_if(
        !setting.failover.is_empty() && topology,
        "failoverPriority",
        "topology labels are not possible together with failover",
    );
    localities(
        check,
        "distribute",
        setting.distribute.iter().map(|entry| entry.from.as_str()),
    );
    check.each("distribute", &setting.distribute, |check, entry| {
        let sum: u64 = entry.to.values().map(|weight| u64::from(*weight)).sum();
        let in_range = entry.to.values().all(|weight| (1..=100).contains(weight));
        check.error_if(!in_range, "to", "each weight must be from 1 to 100");
        check.error_if(
            in_range && sum != 100,
            "to",
            format!("the weights add up to {sum}, not to 100"),
        );
        localities(check, "to", entry.to.keys().map(String::as_str));
    });
    failover(
        check,
        &setting.failover,
        &setting.failover_priority,
        has_outlier_detection,
    );
}

/// `region/zone/subzone` patterns, none of which may cover another.
fn localities<'a>(check: &mut Checker, name: &str, list: impl Iterator<Item = &'a str>) {
    let mut seen: Vec<&str> = Vec::new();
    for locality in list {
        let stars = locality.matches('*').count();
        if stars > 1 || stars == 1 && !locality.ends_with('*') {
            check.field(name, |check| {
                check.error(format!("{locality}: one * is allowed, at the end"));
            });
        }
        if locality.split('/').any(str::is_empty) {
            check.field(name, |check| {
                check.error(format!("{locality:?} has an empty part"));
            });
        }
        let covers = |a: &str, b: &str| {
            let a = a.trim_end_matches('*').trim_end_matches('/');
            a.is_empty() || b == a || b.starts_with(a) && b[a.len()..].starts_with('/')
        };
        if let Some(other) = seen
            .iter()
            .find(|other| covers(other, locality) || covers(locality, other))
        {
            check.field(name, |check| {
                check.error(format!("{locality} and {other} overlap"));
            });
        }
        seen.push(locality);
    }
}

pub(super) fn zone_aware(
    check: &mut Checker,
    setting: &ZoneAwareLoadBalancerSetting,
    has_outlier_detection: bool,
) {
    check.each(
        "failoverPriority",
        &setting.failover_priority,
        |check, label| {
            if is_topology_label(label) {
                check.error(
                    "regions and zones are taken care of, topology labels are not possible here",
                );
            }
        },
    );
    failover(
        check,
        &setting.failover,
        &setting.failover_priority,
        has_outlier_detection,
    );
}

pub(super) fn client_tls(check: &mut Checker, tls: &ClientTlsSettings) {
    let verified = !tls.ca_certificates.is_empty() || !tls.subject_alt_names.is_empty();
    if tls.insecure_skip_verify == Some(true) {
        let simple =
            tls.mode == ClientTlsMode::Simple && (verified || !tls.credential_name.is_empty());
        let mutual = tls.mode == ClientTlsMode::Mutual && verified;
        check.error_if(
            simple || mutual,
            "insecureSkipVerify",
            "is not possible together with caCertificates, subjectAltNames or credentialName",
        );
    }
    if matches!(tls.mode, ClientTlsMode::Simple | ClientTlsMode::Mutual)
        && !tls.credential_name.is_empty()
    {
        let files = !tls.client_certificate.is_empty()
            || !tls.private_key.is_empty()
            || !tls.ca_certificates.is_empty()
            || !tls.ca_crl.is_empty();
        check.error_if(
            files,
            "credentialName",
            "is not possible together with certificate files",
        );
        return;
    }
    if tls.mode == ClientTlsMode::Mutual {
        check.error_if(
            tls.client_certificate.is_empty(),
            "clientCertificate",
            "is required for mode MUTUAL",
        );
        check.error_if(
            tls.private_key.is_empty(),
            "privateKey",
            "is required for mode MUTUAL",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::is_prime;

    #[test]
    fn primes() {
        assert!(
            is_prime(2)
                && is_prime(65_537)
                && !is_prime(0)
                && !is_prime(1)
                && !is_prime(65_536)
                && !is_prime(9)
        );
    }
}
