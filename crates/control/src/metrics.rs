//! Metrics, with istiod's names. Labels are bounded: whatever proxies choose is cut off after a number of values.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use crate::process;
use crate::version;

/// A counter whose name is written as it is. The library's own appends `_total`, which istiod's names do not have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Count(Arc<AtomicU64>);

impl Count {
    /// Adds one.
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    /// Adds some.
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Brings it up to a count that is kept elsewhere.
    fn raise_to(&self, count: u64) {
        self.0.fetch_max(count, Ordering::Relaxed);
    }

    /// The count so far.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What became of workloads that register themselves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registrations {
    pub(crate) made: Count,
    pub(crate) updated: Count,
    pub(crate) left: Count,
    pub(crate) removed: Count,
    pub(crate) failed: Count,
}

impl EncodeMetric for Count {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
        encoder.encode_gauge(&(self.get() as f64))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl TypedMetric for Count {
    const TYPE: MetricType = MetricType::Counter;
}

/// The label of most families.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Type {
    r#type: &'static str,
}

/// The label of what depends on a version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Version {
    version: String,
}

/// Labels of the families that name a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rejection {
    node: String,
    err: String,
}

/// Labels of an event of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectEvent {
    r#type: &'static str,
    event: &'static str,
}

/// The label of clusters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterType {
    cluster_type: &'static str,
}

/// Makes histograms with given bounds.
#[derive(Debug, Clone, Copy)]
struct Bounds(&'static [f64]);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

const SECONDS: &[f64] = &[0.01, 0.1, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
const CONVERGENCE: &[f64] = &[0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
const INIT: &[f64] = &[0.01, 0.1, 0.5, 1.0, 3.0, 5.0];
const BYTES: &[f64] = &[
    1.0,
    10_000.0,
    1_000_000.0,
    4_000_000.0,
    10_000_000.0,
    40_000_000.0,
];

/// Values of a label that come from outside; after `max` different ones, the rest is `other`.
#[derive(Debug)]
struct Bounded {
    max: usize,
    seen: Mutex<BTreeSet<String>>,
}

impl Bounded {
    fn new(max: usize) -> Self {
        Self {
            max,
            seen: Mutex::default(),
        }
    }

    fn label(&self, value: &str) -> String {
        let value: String = value
            .chars()
            .filter(|c| !c.is_control())
            .take(128)
            .collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(&value) {
            return value;
        }
        if seen.len() >= self.max {
            return "other".to_owned();
        }
        seen.insert(value.clone());
        value
    }
}

type Sums = Family<Type, Count>;
type Distributions = Family<Type, Histogram, Bounds>;

/// All metrics; shared by everything that measures.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    versions: Bounded,
    nodes: Bounded,
    clients: Family<Version, Gauge>,
    pushes: Sums,
    rejects: Sums,
    rejected: [Family<Rejection, Gauge>; 4],
    expired_nonces: Sums,
    unanswered: Sums,
    triggers: Sums,
    inbound: Sums,
    events: Family<ObjectEvent, Count>,
    pub(crate) write_timeouts: Count,
    pub(crate) internal_errors: Count,
    convergence: Histogram,
    ack_time: Histogram,
    debounce_time: Histogram,
    init_time: Histogram,
    push_time: Distributions,
    config_size: Distributions,
    pieces: Count,
    resources: Count,
    reached: Count,
    audited_sheets: Count,
    audit_differences: Count,
    audit_time: Histogram,
    pub(crate) services: Gauge,
    pub(crate) virtual_services: Gauge,
    pub(crate) invalid: Gauge,
    pub(crate) held_back: Gauge,
    pub(crate) watches: Gauge,
    pub(crate) watches_down: Gauge,
    clusters: Family<ClusterType, Gauge>,
    cluster_timeouts: Count,
    pub(crate) leader: Gauge,
    pub(crate) registrations: Registrations,
    writes: Sums,
    write_failures: Sums,
}

impl Metrics {
    /// All metrics at zero.
    pub(crate) fn new(started: Instant) -> Self {
        let mut registry = Registry::default();
        let info: Family<Version, Gauge> = Family::default();
        info.get_or_create(&Version {
            version: version::line(),
        })
        .set(1);
        registry.register("pilot_info", "Version of the control plane", info);
        registry.register_collector(Box::new(Process { started }));
        let r = &mut registry;
        let metrics = Self {
            versions: Bounded::new(64),
            nodes: Bounded::new(1000),
            clients: add(
                r,
                "pilot_xds",
                "Proxies connected, by their version",
                Family::default(),
            ),
            pushes: add(
                r,
                "pilot_xds_pushes",
                "Responses sent, by type",
                Sums::default(),
            ),
            rejects: add(
                r,
                "pilot_total_xds_rejects",
                "Responses that proxies rejected, by type",
                Sums::default(),
            ),
            rejected: ["cds", "eds", "lds", "rds"].map(|kind| {
                let help = format!(
                    "{} responses rejected, by proxy and code",
                    kind.to_uppercase()
                );
                add(
                    r,
                    &format!("pilot_xds_{kind}_reject"),
                    &help,
                    Family::default(),
                )
            }),
            expired_nonces: add(
                r,
                "pilot_xds_expired_nonce",
                "Requests that answered an outdated response, by type",
                Sums::default(),
            ),
            unanswered: add(
                r,
                "pilotfish_xds_unanswered",
                "Responses that were not answered in time, by type",
                Sums::default(),
            ),
            triggers: add(
                r,
                "pilot_push_triggers",
                "Changes that led to a push, by reason",
                Sums::default(),
            ),
            inbound: add(
                r,
                "pilot_inbound_updates",
                "Changes received, by sort",
                Sums::default(),
            ),
            events: add(
                r,
                "pilot_k8s_cfg_events",
                "Changes of objects, by kind and what happened",
                Family::default(),
            ),
            write_timeouts: add(
                r,
                "pilot_xds_write_timeout",
                "Responses that could not be written in time",
                Count::default(),
            ),
            internal_errors: add(
                r,
                "pilot_total_xds_internal_errors",
                "Errors of the server while serving a proxy",
                Count::default(),
            ),
            convergence: add(
                r,
                "pilot_proxy_convergence_time",
                "Seconds from a change until a proxy was sent all of it",
                Bounds(CONVERGENCE).new_metric(),
            ),
            ack_time: add(
                r,
                "pilotfish_proxy_ack_time",
                "Seconds from a change until a proxy acknowledged it",
                Bounds(SECONDS).new_metric(),
            ),
            debounce_time: add(
                r,
                "pilot_debounce_time",
                "Seconds from the first change of a push until it was ready to be sent",
                Bounds(SECONDS).new_metric(),
            ),
            init_time: add(
                r,
                "pilot_pushcontext_init_seconds",
                "Seconds to derive the state of the mesh from a change",
                Bounds(INIT).new_metric(),
            ),
            push_time: add(
                r,
                "pilot_xds_push_time",
                "Seconds to build and send one response, by type",
                Family::new_with_constructor(Bounds(SECONDS)),
            ),
            config_size: add(
                r,
                "pilot_xds_config_size_bytes",
                "Bytes of one response, by type",
                Family::new_with_constructor(Bounds(BYTES)),
            ),
            pieces: add(
                r,
                "pilotfish_push_pieces_total",
                "Pieces of configuration that were translated",
                Count::default(),
            ),
            resources: add(
                r,
                "pilotfish_push_resources_total",
                "Resources that came, went or changed, once for each scope that shares them",
                Count::default(),
            ),
            reached: add(
                r,
                "pilotfish_push_proxies_total",
                "Proxies that were sent something because of a push, once for each push that reached them",
                Count::default(),
            ),
            audited_sheets: add(
                r,
                "pilotfish_audit_sheets_total",
                "Parts of the configuration that were built from scratch and compared",
                Count::default(),
            ),
            audit_differences: add(
                r,
                "pilotfish_audit_differences_total",
                "Resources that such a comparison found wrong; each is a bug of Pilotfish, and in the log",
                Count::default(),
            ),
            audit_time: add(
                r,
                "pilotfish_audit_seconds",
                "Seconds that one such comparison took",
                Bounds(SECONDS).new_metric(),
            ),
            services: add(r, "pilot_services", "Services known", Gauge::default()),
            virtual_services: add(
                r,
                "pilot_virt_services",
                "VirtualServices known",
                Gauge::default(),
            ),
            held_back: add(
                r,
                "pilotfish_loss_guard_holding",
                "1 while a push is held back because most services are gone; /debug/loss_guard tells more",
                Gauge::default(),
            ),
            watches: add(
                r,
                "pilotfish_kubernetes_watches",
                "Watches of the Kubernetes cluster; /debug/kubernetes lists them",
                Gauge::default(),
            ),
            watches_down: add(
                r,
                "pilotfish_kubernetes_watches_down",
                "Those of them that do not work now; what was last known stays in effect",
                Gauge::default(),
            ),
            clusters: add(
                r,
                "istiod_managed_clusters",
                "Clusters that are read: the one of the configuration, and those that Secrets name",
                Family::default(),
            ),
            cluster_timeouts: add(
                r,
                "remote_cluster_sync_timeouts_total",
                "How often a cluster took longer to be read than readiness waits",
                Count::default(),
            ),
            leader: add(
                r,
                "pilotfish_leader",
                "1 if this replica is the one that writes to the cluster; /debug/writers tells more",
                Gauge::default(),
            ),
            writes: add(
                r,
                "pilotfish_kubernetes_writes",
                "What was written to the cluster, by sort",
                Sums::default(),
            ),
            write_failures: add(
                r,
                "pilotfish_kubernetes_write_failures",
                "What could not be written to the cluster, by sort; most is tried again",
                Sums::default(),
            ),
            registrations: Registrations {
                made: add(
                    r,
                    "auto_registration_success_total",
                    "WorkloadEntries that were made for proxies",
                    Count::default(),
                ),
                updated: add(
                    r,
                    "auto_registration_updates_total",
                    "WorkloadEntries whose proxies came back",
                    Count::default(),
                ),
                left: add(
                    r,
                    "auto_registration_unregister_total",
                    "WorkloadEntries whose proxies left",
                    Count::default(),
                ),
                removed: add(
                    r,
                    "auto_registration_deletes_total",
                    "WorkloadEntries that were removed since their proxies did not come back",
                    Count::default(),
                ),
                failed: add(
                    r,
                    "auto_registration_errors_total",
                    "Registrations that were refused, and requests about them that failed; the latter are made again",
                    Count::default(),
                ),
            },
            invalid: add(
                r,
                "pilotfish_diagnostics",
                "Findings about the configuration; /debug/diagnostics lists them",
                Gauge::default(),
            ),
            registry: Registry::default(),
        };
        Self {
            registry,
            ..metrics
        }
    }

    /// How many other clusters are read besides our own, and how often one took too long.
    pub(crate) fn clusters(&self, others: usize, timeouts: u64) {
        let set = |cluster_type, count: usize| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let of_type = ClusterType { cluster_type };
            self.clusters.get_or_create(&of_type).set(count);
        };
        set("local", 1);
        set("remote", others);
        self.cluster_timeouts.raise_to(timeouts);
    }

    /// The text of `/metrics`.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            text.clear();
        }
        text
    }

    /// Something was written to the cluster.
    pub(crate) fn written(&self, part: &'static str) {
        self.writes.get_or_create(&Type { r#type: part }).inc();
    }

    /// Something could not be written to the cluster.
    pub(crate) fn not_written(&self, part: &'static str) {
        let failures = self.write_failures.get_or_create(&Type { r#type: part });
        failures.inc();
    }

    /// A proxy of a version came or went.
    pub(crate) fn clients(&self, version: &str, change: i64) {
        let version = if version.is_empty() {
            "unknown"
        } else {
            version
        };
        self.clients
            .get_or_create(&Version {
                version: self.versions.label(version),
            })
            .inc_by(change);
    }

    /// A response was handed to a connection.
    pub(crate) fn sent(&self, kind: &'static str, bytes: usize, took: Duration) {
        self.pushes.get_or_create(&Type { r#type: kind }).inc();
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        self.config_size
            .get_or_create(&Type { r#type: kind })
            .observe(bytes as f64);
        self.push_time
            .get_or_create(&Type { r#type: kind })
            .observe(took.as_secs_f64());
    }

    /// A push has reached one proxy more.
    pub(crate) fn reached(&self) {
        self.reached.inc();
    }

    /// What translation has taken since the start. What was sent is the sum of `pilot_xds_config_size_bytes`.
    pub(crate) fn translated(&self, pieces: usize, resources: usize) {
        self.pieces
            .raise_to(u64::try_from(pieces).unwrap_or(u64::MAX));
        self.resources
            .raise_to(u64::try_from(resources).unwrap_or(u64::MAX));
    }

    /// A part of the configuration was compared with what it should be.
    pub(crate) fn audited(&self, differences: usize, took: Duration) {
        self.audited_sheets.inc();
        self.audit_differences
            .add(u64::try_from(differences).unwrap_or(u64::MAX));
        self.audit_time.observe(took.as_secs_f64());
    }

    /// A proxy acknowledged a change so long after it happened.
    pub(crate) fn acknowledged(&self, took: Duration) {
        self.ack_time.observe(took.as_secs_f64());
    }

    /// A proxy was sent all of a change so long after it happened.
    pub(crate) fn converged(&self, took: Duration) {
        self.convergence.observe(took.as_secs_f64());
    }

    /// A proxy rejected a response.
    pub(crate) fn rejected(&self, kind: &'static str, node: &str, code: &str) {
        self.rejects.get_or_create(&Type { r#type: kind }).inc();
        let index = match kind {
            "cds" => 0,
            "eds" => 1,
            "lds" => 2,
            "rds" => 3,
            _ => return,
        };
        let labels = Rejection {
            node: self.nodes.label(node),
            err: code.to_owned(),
        };
        self.rejected[index].get_or_create(&labels).inc();
    }

    /// A proxy answered an outdated response.
    pub(crate) fn expired_nonce(&self, kind: &'static str) {
        self.expired_nonces
            .get_or_create(&Type { r#type: kind })
            .inc();
    }

    /// A proxy did not answer a response in time.
    pub(crate) fn unanswered(&self, kind: &'static str) {
        self.unanswered.get_or_create(&Type { r#type: kind }).inc();
    }

    /// Changes led to a push.
    pub(crate) fn triggered(&self, reason: &'static str, count: u64) {
        self.triggers
            .get_or_create(&Type { r#type: reason })
            .add(count);
    }

    /// An object changed: `event` is add, update or delete.
    pub(crate) fn object_event(&self, kind: pilotfish_config::Kind, event: &'static str) {
        use pilotfish_config::Kind;
        let sort = match (kind, event) {
            (Kind::Service | Kind::ServiceEntry, "delete") => "svcdelete",
            (Kind::Service | Kind::ServiceEntry, _) => "svc",
            (Kind::EndpointSlice | Kind::Endpoints | Kind::Pod | Kind::WorkloadEntry, _) => "eds",
            _ => "config",
        };
        self.inbound.get_or_create(&Type { r#type: sort }).inc();
        self.events
            .get_or_create(&ObjectEvent {
                r#type: kind.as_str(),
                event,
            })
            .inc();
    }

    /// A merged change was ready to be sent so long after its first part came, of which `init` went into deriving.
    pub(crate) fn debounced(&self, waited: Duration, init: Duration) {
        self.debounce_time.observe(waited.as_secs_f64());
        self.init_time.observe(init.as_secs_f64());
    }
}

fn add<M: prometheus_client::registry::Metric + Clone>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    metric: M,
) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// What is read when asked for: the process, and how long it runs.
#[derive(Debug)]
struct Process {
    started: Instant,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name: &str, help: &str, value: f64| {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        gauge(
            "istiod_uptime_seconds",
            "Seconds since the start",
            self.started.elapsed().as_secs_f64(),
        )?;
        let usage = process::usage();
        gauge(
            "process_resident_memory_bytes",
            "Resident memory",
            usage.resident_bytes,
        )?;
        gauge(
            "process_virtual_memory_bytes",
            "Virtual memory",
            usage.virtual_bytes,
        )?;
        gauge(
            "process_open_fds",
            "Open file descriptors",
            usage.open_files,
        )?;
        gauge(
            "process_start_time_seconds",
            "Unix time of the start",
            usage.start_time,
        )?;
        let cpu = Seconds(usage.cpu_seconds);
        let help = "User and system CPU time";
        cpu.encode(encoder.encode_descriptor(
            "process_cpu_seconds_total",
            help,
            None,
            cpu.metric_type(),
        )?)
    }
}

/// A counter of seconds under a name that ends in `_total` already.
struct Seconds(f64);

impl EncodeMetric for Seconds {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_gauge(&self.0)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_istiod() {
        let metrics = Metrics::new(Instant::now());
        metrics.clients("1.31.0", 1);
        metrics.sent("cds", 20_000, Duration::from_millis(5));
        metrics.rejected(
            "lds",
            "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local",
            "Internal",
        );
        metrics.triggered("service", 3);
        metrics.object_event(pilotfish_config::Kind::Service, "add");
        metrics.expired_nonce("eds");
        let text = metrics.text();
        for line in [
            "# TYPE pilot_xds_pushes counter",
            "pilot_xds_pushes{type=\"cds\"} 1",
            "pilot_xds{version=\"1.31.0\"} 1",
            "pilot_xds_lds_reject{node=\"sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local\",err=\"Internal\"} 1",
            "pilot_total_xds_rejects{type=\"lds\"} 1",
            "pilot_push_triggers{type=\"service\"} 3",
            "pilot_xds_config_size_bytes_bucket{le=\"1000000.0\",type=\"cds\"} 1",
            "pilot_inbound_updates{type=\"svc\"} 1",
            "pilot_xds_write_timeout 0",
            "# TYPE process_cpu_seconds_total counter",
        ] {
            assert!(text.lines().any(|l| l.starts_with(line)), "{line}\n{text}");
        }
        assert!(!text.contains("_total_total") && !text.contains("pushes_total"));
    }

    #[test]
    fn labels_are_bounded() {
        let bounded = Bounded::new(2);
        assert_eq!(bounded.label("a"), "a");
        assert_eq!(bounded.label("b\n"), "b");
        assert_eq!(bounded.label("c"), "other");
        assert_eq!(bounded.label("a"), "a");
    }
}
