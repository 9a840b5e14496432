//! What the levels of a destination rule say about one port and subset.

use pilotfish_config::mesh::DefaultTrafficPolicy;
use pilotfish_config::networking::{
    ClientTlsMode, ConnectionPoolSettings, ConsistentHashLb, H2UpgradePolicy, LoadBalancerSettings,
    OutlierDetection, PortTrafficPolicy, RetryBudget, SimpleLb, Subset, TrafficPolicy,
    TunnelSettings,
};
use pilotfish_ir::Millis;
use pilotfish_ir::cluster::{self as ir, ConnectionPool, Keepalive, Ping, Policy, Warmup};
use pilotfish_ir::route::HashPolicy;
use pilotfish_mesh::Reader;

pub use crate::rule::{Rule, export_to, rule, rule_of_server};
use crate::{Text, chain};

/// The policy for one port and subset: that of the rule at the port, with each part the subset has put over it.
pub fn effective(rule: Option<&Rule<'_>>, subset: Option<&Subset>, port: u16) -> TrafficPolicy {
    merged(None, rule, subset, port)
}

/// The same for a cluster: where the rule says nothing of connections or outliers, the mesh's defaults stand.
pub fn of_cluster(
    reader: &Reader<'_>,
    rule: Option<&Rule<'_>>,
    subset: Option<&Subset>,
    port: u16,
) -> TrafficPolicy {
    let defaults = reader.mesh().default_traffic_policy.as_ref();
    merged(defaults, rule, subset, port)
}

fn merged(
    defaults: Option<&DefaultTrafficPolicy>,
    rule: Option<&Rule<'_>>,
    subset: Option<&Subset>,
    port: u16,
) -> TrafficPolicy {
    let (mut base, _) = rule
        .and_then(|r| r.spec.traffic_policy.as_ref())
        .map_or_else(Default::default, |level| at_port(level, port));
    if let Some(d) = defaults {
        base.connection_pool = base.connection_pool.or_else(|| d.connection_pool.clone());
        base.outlier_detection = base
            .outlier_detection
            .or_else(|| d.outlier_detection.clone());
    }
    let Some(level) = subset.and_then(|s| s.traffic_policy.as_ref()) else {
        return base;
    };
    let (own, for_port) = at_port(level, port);
    let over = |own_is_some: bool| for_port || own_is_some;
    if over(own.load_balancer.is_some()) {
        base.load_balancer = own.load_balancer;
    }
    if over(own.connection_pool.is_some()) {
        base.connection_pool = own.connection_pool;
    }
    if over(own.outlier_detection.is_some()) {
        base.outlier_detection = own.outlier_detection;
    }
    if over(own.tls.is_some()) {
        base.tls = own.tls;
    }
    base.tunnel = own.tunnel.or(base.tunnel);
    base.proxy_protocol = own.proxy_protocol.or(base.proxy_protocol);
    base.retry_budget = own.retry_budget.or(base.retry_budget);
    base
}

/// One level as it applies to a port. Settings written for the port stand for the whole level: what they leave out is
/// default, not inherited. Says whether there are such settings.
fn at_port(level: &TrafficPolicy, port: u16) -> (TrafficPolicy, bool) {
    if let Some(own) = for_port(level, port).cloned() {
        let policy = TrafficPolicy {
            load_balancer: own.load_balancer,
            connection_pool: own.connection_pool,
            outlier_detection: own.outlier_detection,
            tls: own.tls,
            ..Default::default()
        };
        return (policy, true);
    }
    let mut policy = level.clone();
    policy.port_level_settings.clear();
    (policy, false)
}

fn for_port(level: &TrafficPolicy, port: u16) -> Option<&PortTrafficPolicy> {
    level
        .port_level_settings
        .iter()
        .find(|p| p.port.as_ref().is_some_and(|n| n.number == u32::from(port)))
}

/// The TLS mode that endpoints are marked by. Unlike the rest of a policy it is inherited by ports that say nothing of it.
pub fn tls_mode(
    rule: Option<&Rule<'_>>,
    subset: Option<&Subset>,
    port: u16,
) -> Option<ClientTlsMode> {
    let mode = |level: Option<&TrafficPolicy>| {
        let level = level?;
        for_port(level, port)
            .and_then(|p| p.tls.as_ref())
            .or(level.tls.as_ref())
            .map(|t| t.mode)
    };
    subset
        .and_then(|s| mode(s.traffic_policy.as_deref()))
        .or_else(|| mode(rule?.spec.traffic_policy.as_ref()))
}

fn positive(n: i32) -> Option<u32> {
    u32::try_from(n).ok().filter(|n| *n > 0)
}

/// Connection limits of a policy over the mesh's defaults.
pub fn pool(reader: &Reader<'_>, settings: Option<&ConnectionPoolSettings>) -> ConnectionPool {
    let mesh = reader.mesh();
    let mut out = ConnectionPool {
        connect_timeout: mesh
            .connect_timeout
            .map_or(Millis::secs(10), |d| d.get().into()),
        track_remaining: !chain::feature(reader, "DISABLE_TRACK_REMAINING_CB_METRICS", true),
        ..Default::default()
    };
    let http = settings.and_then(|s| s.http.as_ref());
    let tcp = settings.and_then(|s| s.tcp.as_ref());
    if let Some(h) = http {
        out.max_requests = positive(h.http2_max_requests);
        out.max_pending = positive(h.http1_max_pending_requests);
        out.max_retries = positive(h.max_retries);
        out.max_requests_per_connection = positive(h.max_requests_per_connection);
        out.max_concurrent_streams = positive(h.max_concurrent_streams);
        out.idle_timeout = h.idle_timeout.map(|d| d.get().into());
        out.http2_keepalive = h.http2_keep_alive.as_ref().map(|k| Ping {
            interval: k.interval.map(|d| d.get().into()),
            timeout: k.timeout.map(|d| d.get().into()),
        });
    }
    let mut keepalive = mesh.tcp_keepalive.clone();
    if let Some(t) = tcp {
        if let Some(d) = t.connect_timeout {
            out.connect_timeout = d.get().into();
        }
        out.max_connections = positive(t.max_connections);
        out.max_duration = t.max_connection_duration.map(|d| d.get().into());
        out.idle_timeout = out.idle_timeout.or(t.idle_timeout.map(|d| d.get().into()));
        keepalive = t.tcp_keepalive.clone().or(keepalive);
    }
    out.keepalive = keepalive.map(|k| Keepalive {
        probes: Some(k.probes).filter(|n| *n > 0),
        time: k.time.map(|d| seconds(d.get())),
        interval: k.interval.map(|d| seconds(d.get())),
    });
    out
}

fn seconds(d: std::time::Duration) -> u32 {
    u32::try_from(d.as_secs()).unwrap_or(u32::MAX)
}

/// Retries allowed in flight, in proportion to the requests.
pub fn retry_budget(settings: &RetryBudget) -> ir::RetryBudget {
    ir::RetryBudget {
        percent: settings.percent.unwrap_or(20.0).into(),
        minimum: Some(settings.min_retry_concurrency)
            .filter(|n| *n > 0)
            .unwrap_or(3),
        interval: settings.budget_interval.map(|d| d.get().into()),
    }
}

/// Whether connections speak what the client spoke.
pub fn as_client(pool: Option<&ConnectionPoolSettings>) -> bool {
    pool.and_then(|p| p.http.as_ref())
        .is_some_and(|h| h.use_client_protocol)
}

/// Whether HTTP is upgraded to HTTP/2 upstream.
pub fn upgrades(
    reader: &Reader<'_>,
    pool: Option<&ConnectionPoolSettings>,
    http_port: bool,
) -> bool {
    if let Some(h) = pool.and_then(|p| p.http.as_ref()) {
        if h.use_client_protocol {
            return false;
        }
        match h.h2_upgrade_policy {
            H2UpgradePolicy::Upgrade => return true,
            H2UpgradePolicy::DoNotUpgrade => return false,
            H2UpgradePolicy::Default => {}
        }
    }
    http_port && reader.mesh().h2_upgrade_policy == pilotfish_config::mesh::H2UpgradePolicy::Upgrade
}

/// Passive health checks.
pub fn outlier(settings: &OutlierDetection) -> ir::OutlierDetection {
    ir::OutlierDetection {
        split_local_origin: settings.split_external_local_origin_errors,
        consecutive_local: settings
            .split_external_local_origin_errors
            .then_some(settings.consecutive_local_origin_failures)
            .flatten()
            .filter(|n| *n > 0),
        consecutive_gateway: settings.consecutive_gateway_errors,
        consecutive_5xx: settings.consecutive_5xx_errors,
        interval: settings.interval.map(|d| d.get().into()),
        base_ejection: settings.base_ejection_time.map(|d| d.get().into()),
        max_ejection_percent: positive(settings.max_ejection_percent),
    }
}

/// The balancing algorithm; `None`: the destination the application chose (PASSTHROUGH).
pub fn algorithm(lb: Option<&LoadBalancerSettings>) -> Option<Policy> {
    let Some(lb) = lb else {
        return Some(Policy::LeastRequest);
    };
    if let Some(h) = &lb.consistent_hash {
        return Some(match (&h.maglev, &h.ring_hash) {
            (Some(m), _) => Policy::Maglev {
                table: Some(m.table_size).filter(|n| *n > 0),
            },
            (None, Some(r)) => Policy::RingHash {
                minimum: Some(r.minimum_ring_size).filter(|n| *n > 0),
            },
            (None, None) => Policy::RingHash {
                minimum: Some(if h.minimum_ring_size > 0 {
                    h.minimum_ring_size
                } else {
                    1024
                }),
            },
        });
    }
    Some(match lb.simple.unwrap_or_default() {
        SimpleLb::Random => Policy::Random,
        SimpleLb::RoundRobin => Policy::RoundRobin,
        SimpleLb::Passthrough => return None,
        SimpleLb::Unspecified | SimpleLb::LeastConn | SimpleLb::LeastRequest => {
            Policy::LeastRequest
        }
    })
}

/// Slow start of new endpoints: traffic grows in a line from a tenth, if nothing else is said.
pub fn warmup(lb: Option<&LoadBalancerSettings>) -> Option<Warmup> {
    let lb = lb?;
    if let Some(w) = &lb.warmup {
        return Some(Warmup {
            window: w.duration.map(|d| d.get().into()),
            minimum_percent: Some(w.minimum_percent.unwrap_or(10.0).into()),
            aggression: Some(w.aggression.unwrap_or(1.0).into()),
        });
    }
    lb.warmup_duration_secs.map(|d| Warmup {
        window: Some(d.get().into()),
        minimum_percent: None,
        aggression: None,
    })
}

/// Consistent hashing for requests that name a service and no subset.
pub fn hash_of_service<'r>(rule: &'r Rule<'_>, port: u16) -> Option<&'r ConsistentHashLb> {
    let level = rule.spec.traffic_policy.as_ref()?;
    for_port(level, port)
        .and_then(|p| hash_of(p.load_balancer.as_ref()))
        .or_else(|| hash_of(level.load_balancer.as_ref()))
}

/// Consistent hashing for a destination as written: the subset comes before the service, and in both the settings of the
/// port, if the destination names one.
pub fn hash_of_destination<'r>(
    rule: &'r Rule<'_>,
    subset: &str,
    port: Option<u16>,
) -> Option<&'r ConsistentHashLb> {
    let in_level = |level: Option<&'r TrafficPolicy>| {
        let level = level?;
        port.and_then(|p| for_port(level, p))
            .and_then(|p| hash_of(p.load_balancer.as_ref()))
            .or_else(|| hash_of(level.load_balancer.as_ref()))
    };
    rule.subset(subset)
        .and_then(|s| in_level(s.traffic_policy.as_deref()))
        .or_else(|| in_level(rule.spec.traffic_policy.as_ref()))
}

fn hash_of(lb: Option<&LoadBalancerSettings>) -> Option<&ConsistentHashLb> {
    lb?.consistent_hash.as_ref()
}

/// Whether byte streams are hashed by their source. Settings of ports do not count; a subset that balances otherwise does.
pub fn hashes_source(rule: &Rule<'_>, subset: &str) -> bool {
    let by_source = |lb: Option<&LoadBalancerSettings>| {
        hash_of(lb).is_some_and(|h| h.use_source_ip == Some(true))
    };
    let own = rule
        .subset(subset)
        .and_then(|s| s.traffic_policy.as_ref())
        .and_then(|p| p.load_balancer.as_ref());
    let of_rule = || {
        rule.spec
            .traffic_policy
            .as_ref()
            .and_then(|p| p.load_balancer.as_ref())
    };
    by_source(own.or_else(of_rule))
}

/// The tunnel of byte streams: a subset does not inherit the service's.
pub fn tunnel<'r>(rule: &'r Rule<'_>, subset: &str) -> Option<&'r TunnelSettings> {
    let level = if subset.is_empty() {
        rule.spec.traffic_policy.as_ref()
    } else {
        rule.subset(subset)?.traffic_policy.as_deref()
    };
    level?.tunnel.as_ref()
}

/// What consistent hashing hashes on routes to a destination.
pub fn hash_policy(h: &ConsistentHashLb) -> Option<HashPolicy> {
    if let Some(name) = &h.http_header_name {
        return Some(HashPolicy::Header(Text::from(name.as_str())));
    }
    if let Some(c) = &h.http_cookie {
        return Some(HashPolicy::Cookie {
            name: Text::from(c.name.as_str()),
            path: Text::from(c.path.as_str()),
            ttl: c.ttl.map(|d| d.get().into()),
            attributes: c
                .attributes
                .iter()
                .map(|a| (Text::from(a.name.as_str()), Text::from(a.value.as_str())))
                .collect(),
        });
    }
    if let Some(source) = h.use_source_ip {
        return Some(HashPolicy::SourceIp(source));
    }
    h.http_query_parameter_name
        .as_ref()
        .map(|n| HashPolicy::Query(Text::from(n.as_str())))
}
