//! Destination rules: which one applies, and what its levels say about one port and subset.

use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::{
    ConnectionPoolSettings, DestinationRule, H2UpgradePolicy, LoadBalancerSettings,
    OutlierDetection, PortTrafficPolicy, SimpleLb, Subset, TrafficPolicy,
};
use pilotfish_ir::Millis;
use pilotfish_ir::cluster::{self as ir, ConnectionPool, Keepalive, Policy, Warmup};
use pilotfish_ir::route::HashPolicy;
use pilotfish_mesh::{ExportTo, Reader, Service};

use crate::{Client, Text};

/// A destination rule with the object that holds it.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'w> {
    /// The object.
    pub object: &'w Arc<Object>,
    /// Its spec.
    pub spec: &'w DestinationRule,
}

impl<'w> Rule<'w> {
    /// The path telemetry names it by.
    pub fn path(&self) -> Text {
        let k = &self.object.key;
        Text::from(format!(
            "/apis/networking.istio.io/v1/namespaces/{}/destination-rule/{}",
            k.namespace, k.name
        ))
    }

    /// A subset by name.
    pub fn subset(&self, name: &str) -> Option<&'w Subset> {
        self.spec.subsets.iter().find(|s| s.name == name)
    }
}

/// Visibility of a rule, given what the mesh says about rules that say nothing.
pub fn export_to(own: &[String], default: &[String], namespace: &str) -> ExportTo {
    let list = if own.is_empty() { default } else { own };
    if list.is_empty() || list.iter().any(|e| e == "*") {
        return ExportTo::Public;
    }
    if list.iter().any(|e| e == "~") {
        return ExportTo::None;
    }
    ExportTo::Namespaces(
        list.iter()
            .map(|e| Text::from(if e == "." { namespace } else { e }))
            .collect(),
    )
}

/// The rule that applies to a service: the most specific host wins; for one host the client's namespace is asked first,
/// then the service's, then the root namespace.
pub fn rule<'w>(reader: &Reader<'w>, client: &Client, service: &Service) -> Option<Rule<'w>> {
    let mesh = reader.mesh();
    let root = mesh.root_namespace.as_str();
    let visible = |o: &Arc<Object>, spec: &DestinationRule| {
        export_to(
            &spec.export_to,
            &mesh.default_destination_rule_export_to,
            &o.key.namespace,
        )
        .visible(&client.namespace, &o.key.namespace)
    };
    let selected = |spec: &DestinationRule| {
        spec.workload_selector.as_ref().is_none_or(|s| {
            s.match_labels.iter().all(|(k, v)| {
                client
                    .labels
                    .get(k.as_str())
                    .is_some_and(|have| **have == **v)
            })
        })
    };
    let candidates = reader.destination_rules(&service.id.host);
    let in_namespace = |ns: &str| {
        candidates.iter().find_map(|ranked| {
            let mut plain = None;
            for o in ranked.iter().filter(|o| &*o.key.namespace == ns) {
                let Some(spec) = o.get::<DestinationRule>() else {
                    continue;
                };
                if !visible(o, spec) || !selected(spec) {
                    continue;
                }
                // A rule that selects workloads goes before one that does not.
                if spec.workload_selector.is_some() {
                    return (ns == &*client.namespace).then_some(Rule { object: o, spec });
                }
                plain = plain.or(Some(Rule { object: o, spec }));
            }
            plain
        })
    };
    // A rule of the root namespace must not be overruled by itself when the client lives there.
    let found = (&*client.namespace != root)
        .then(|| in_namespace(&client.namespace))
        .flatten()
        .or_else(|| in_namespace(&service.id.namespace))
        .or_else(|| in_namespace(root));
    if let Some(r) = &found {
        reader.uses(&r.object.key);
    }
    found
}

/// The policy for one port and subset: that of the rule at the port, with each part the subset has put over it. Settings
/// for a port replace everything their level and the levels below say about balancing, connections, outliers and TLS.
pub fn effective(rule: Option<Rule<'_>>, subset: Option<&Subset>, port: u16) -> TrafficPolicy {
    let Some(rule) = rule else {
        return TrafficPolicy::default();
    };
    let mut policy = rule.spec.traffic_policy.clone().unwrap_or_default();
    replace_at_port(&mut policy, rule.spec.traffic_policy.as_ref(), port);
    if let Some(own) = subset.and_then(|s| s.traffic_policy.as_ref()) {
        let own_parts = own.clone();
        policy = TrafficPolicy {
            load_balancer: own_parts.load_balancer.or(policy.load_balancer),
            connection_pool: own_parts.connection_pool.or(policy.connection_pool),
            outlier_detection: own_parts.outlier_detection.or(policy.outlier_detection),
            tls: own_parts.tls.or(policy.tls),
            tunnel: own_parts.tunnel.or(policy.tunnel),
            proxy_protocol: own_parts.proxy_protocol.or(policy.proxy_protocol),
            retry_budget: own_parts.retry_budget.or(policy.retry_budget),
            port_level_settings: Vec::new(),
        };
        replace_at_port(&mut policy, Some(own), port);
    }
    policy.port_level_settings.clear();
    policy
}

fn replace_at_port(policy: &mut TrafficPolicy, level: Option<&TrafficPolicy>, port: u16) {
    let at = |p: &&PortTrafficPolicy| p.port.as_ref().is_some_and(|n| n.number == u32::from(port));
    if let Some(p) = level
        .and_then(|l| l.port_level_settings.iter().find(at))
        .cloned()
    {
        policy.load_balancer = p.load_balancer;
        policy.connection_pool = p.connection_pool;
        policy.outlier_detection = p.outlier_detection;
        policy.tls = p.tls;
    }
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
            .flatten(),
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

/// Slow start of new endpoints.
#[expect(
    clippy::cast_sign_loss,
    reason = "clamped to be positive before the cast"
)]
pub fn warmup(lb: Option<&LoadBalancerSettings>) -> Option<Warmup> {
    let lb = lb?;
    if let Some(w) = &lb.warmup {
        return Some(Warmup {
            window: w.duration.map_or(Millis(0), |d| d.get().into()),
            minimum_percent: w.minimum_percent.map(|p| p.clamp(0.0, 100.0) as u32),
            aggression: w.aggression.map(|a| (a.max(0.0) * 1000.0) as u32),
        });
    }
    lb.warmup_duration_secs.map(|d| Warmup {
        window: d.get().into(),
        minimum_percent: None,
        aggression: None,
    })
}

/// What consistent hashing hashes on routes to this destination.
pub fn hash_policy(lb: Option<&LoadBalancerSettings>) -> Option<HashPolicy> {
    let h = lb?.consistent_hash.as_ref()?;
    if let Some(name) = h.http_header_name.as_deref().filter(|n| !n.is_empty()) {
        return Some(HashPolicy::Header(Text::from(name)));
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
    if h.use_source_ip == Some(true) {
        return Some(HashPolicy::SourceIp);
    }
    h.http_query_parameter_name
        .as_deref()
        .filter(|n| !n.is_empty())
        .map(|n| HashPolicy::Query(Text::from(n)))
}
