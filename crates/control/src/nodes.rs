//! What connected proxies say about themselves, for pages and metrics; and the observer of the wire.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pilotfish_analysis::Proxy;
use pilotfish_mesh::Text;
use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_protos::google::protobuf::value::Kind;
use pilotfish_xds::{Generation, Observer, Peer, Push, Rejection, TypeUrl};
use serde::Serialize;

use crate::metrics::Metrics;
use crate::pushes::{History, Sent, Volume};

/// The part of a node's description that pages show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeInfo {
    pub(crate) istio_version: String,
    pub(crate) proxy_version: String,
    pub(crate) cluster_id: String,
    pub(crate) namespace: String,
    pub(crate) locality: String,
    pub(crate) labels: BTreeMap<String, String>,
}

impl NodeInfo {
    /// Takes them from the node of a first request.
    pub(crate) fn of(node: &Node) -> Self {
        let fields = node.metadata.as_ref().map(|metadata| &metadata.fields);
        let kind = |key: &str| fields.and_then(|fields| fields.get(key)?.kind.as_ref());
        let text = |key: &str| match kind(key) {
            Some(Kind::StringValue(text)) => text.clone(),
            _ => String::new(),
        };
        let labels = match kind("LABELS") {
            Some(Kind::StructValue(labels)) => labels
                .fields
                .iter()
                .filter_map(|(key, value)| match &value.kind {
                    Some(Kind::StringValue(value)) => Some((key.clone(), value.clone())),
                    _ => None,
                })
                .collect(),
            _ => BTreeMap::new(),
        };
        Self {
            istio_version: text("ISTIO_VERSION"),
            proxy_version: envoy_version(node),
            cluster_id: text("CLUSTER_ID"),
            namespace: text("NAMESPACE"),
            locality: node.locality.as_ref().map_or_else(String::new, |l| {
                format!("{}/{}/{}", l.region, l.zone, l.sub_zone)
                    .trim_matches('/')
                    .to_owned()
            }),
            labels,
        }
    }
}

fn envoy_version(node: &Node) -> String {
    use pilotfish_protos::envoy::config::core::v3::node::UserAgentVersionType::{
        UserAgentBuildVersion, UserAgentVersion,
    };
    match &node.user_agent_version_type {
        Some(UserAgentVersion(version)) => version.clone(),
        Some(UserAgentBuildVersion(build)) => {
            build.version.as_ref().map_or_else(String::new, |v| {
                format!("{}.{}.{}", v.major_number, v.minor_number, v.patch)
            })
        }
        None => String::new(),
    }
}

#[derive(Debug, Default)]
struct Entry {
    info: Arc<NodeInfo>,
    streams: usize,
}

/// The nodes that have a stream. An entry is made when a node is admitted and goes with its last stream.
#[derive(Debug)]
pub(crate) struct Nodes {
    entries: Mutex<BTreeMap<String, Entry>>,
    metrics: Arc<Metrics>,
    pushes: AtomicU64,
    pub(crate) history: Arc<History>,
}

impl Nodes {
    /// Nobody is connected.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            entries: Mutex::default(),
            metrics,
            pushes: AtomicU64::new(0),
            history: Arc::default(),
        }
    }

    /// A node is about to be admitted, as one of this cluster.
    pub(crate) fn announce(&self, node: &Node, cluster: &str) {
        let info = Arc::new(NodeInfo {
            cluster_id: cluster.to_owned(),
            ..NodeInfo::of(node)
        });
        let mut entries = self.lock();
        let entry = entries.entry(node.id.clone()).or_default();
        // The gauge of versions counts streams, so that a version cannot change under them.
        if entry.streams == 0 {
            entry.info = info;
        }
    }

    /// How many responses were sent to anybody.
    pub(crate) fn pushes(&self) -> u64 {
        self.pushes.load(Ordering::Relaxed)
    }

    /// What a node said.
    pub(crate) fn get(&self, node_id: &str) -> Arc<NodeInfo> {
        self.lock()
            .get(node_id)
            .map(|entry| Arc::clone(&entry.info))
            .unwrap_or_default()
    }

    /// The proxies that have a stream, each kind of them once.
    pub(crate) fn proxies(&self) -> Vec<Proxy> {
        let text = |(k, v): (&String, &String)| (Text::from(k.as_str()), Text::from(v.as_str()));
        let entries = self.lock();
        let proxies: BTreeSet<Proxy> = entries
            .values()
            .map(|entry| Proxy {
                namespace: Text::from(entry.info.namespace.as_str()),
                labels: entry.info.labels.iter().map(text).collect(),
            })
            .collect();
        proxies.into_iter().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The label of a type, as istiod writes it.
fn label(type_url: &TypeUrl) -> &'static str {
    match type_url {
        TypeUrl::Cluster => "cds",
        TypeUrl::Endpoints => "eds",
        TypeUrl::Listener => "lds",
        TypeUrl::ScopedRoute => "srds",
        TypeUrl::Route => "rds",
        TypeUrl::VirtualHost => "vhds",
        TypeUrl::ExtensionConfig => "ecds",
        TypeUrl::Secret => "sds",
        TypeUrl::Runtime => "rtds",
        TypeUrl::NameTable => "nds",
        TypeUrl::ProxyConfig => "pcds",
        TypeUrl::Address | TypeUrl::Workload => "wds",
        TypeUrl::Authorization => "wads",
        TypeUrl::Other(_) => "other",
    }
}

impl Observer for Nodes {
    fn connected(&self, node_id: &str, peer: &Peer) {
        let mut entries = self.lock();
        let entry = entries.entry(node_id.to_owned()).or_default();
        entry.streams += 1;
        self.metrics.clients(&entry.info.istio_version, 1);
        tracing::info!(target: "ads", node = node_id, version = entry.info.istio_version, peer = peer.address.map(tracing::field::display), "connected");
    }

    fn refused(&self, status: &tonic::Status) {
        tracing::info!(target: "ads", code = %code(status), "stream refused: {}", status.message());
        if status.code() == tonic::Code::Internal {
            self.metrics.internal_errors.inc();
        }
    }

    fn disconnected(&self, node_id: &str, status: &tonic::Status) {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(node_id) {
            self.metrics.clients(&entry.info.istio_version, -1);
            entry.streams = entry.streams.saturating_sub(1);
            if entry.streams == 0 {
                entries.remove(node_id);
            }
        }
        match status.code() {
            tonic::Code::Internal | tonic::Code::Unknown => self.metrics.internal_errors.inc(),
            tonic::Code::DeadlineExceeded => self.metrics.write_timeouts.inc(),
            _ => {}
        }
        tracing::info!(target: "ads", node = node_id, code = %code(status), "disconnected{}{}", if status.message().is_empty() { "" } else { ": " }, status.message());
    }

    fn pushed(&self, node_id: &str, push: &Push<'_>) {
        self.pushes.fetch_add(1, Ordering::Relaxed);
        self.metrics
            .sent(label(push.type_url), push.bytes, push.took);
        self.metrics.converged(push.since);
        if let Some(Generation(generation)) = push.generation {
            self.history.sent(generation, sent(push));
            if push.first {
                self.metrics.reached();
            }
        }
        tracing::debug!(
            target: "ads", node = node_id, resources = push.resources, removed = push.removed, bytes = push.bytes,
            took_ms = push.took.as_secs_f64() * 1e3, since_ms = push.since.as_secs_f64() * 1e3,
            "{}: push", push.type_url.short(),
        );
    }

    fn accepted(
        &self,
        node_id: &str,
        type_url: &TypeUrl,
        since: Duration,
        generation: Option<Generation>,
    ) {
        self.metrics.acknowledged(since);
        if let Some(Generation(generation)) = generation {
            self.history.acknowledged(generation, since);
        }
        tracing::debug!(target: "ads", node = node_id, since_ms = since.as_secs_f64() * 1e3, "{}: ACK", type_url.short());
    }

    fn rejected(&self, node_id: &str, type_url: &TypeUrl, rejection: &Rejection) {
        self.metrics.rejected(label(type_url), node_id, "Internal");
        tracing::warn!(target: "ads", node = node_id, nonce = %rejection.nonce, "{}: rejected by the proxy: {}", type_url.short(), rejection.message);
    }

    fn stale(&self, node_id: &str, type_url: &TypeUrl) {
        self.metrics.expired_nonce(label(type_url));
        tracing::debug!(target: "ads", node = node_id, "{}: answer to an outdated response", type_url.short());
    }

    fn unanswered(&self, node_id: &str, type_url: &TypeUrl) {
        self.metrics.unanswered(label(type_url));
        tracing::warn!(target: "ads", node = node_id, "{}: no answer to the last response in time", type_url.short());
    }
}

fn sent(push: &Push<'_>) -> Sent {
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    Sent {
        kind: label(push.type_url),
        first: push.first,
        volume: Volume {
            responses: 1,
            resources: count(push.resources),
            removed: count(push.removed),
            bytes: count(push.bytes),
        },
        since: push.since,
    }
}

fn code(status: &tonic::Status) -> String {
    format!("{:?}", status.code())
}

#[cfg(test)]
mod tests {
    use pilotfish_protos::google::protobuf::{Struct, Value};

    use super::*;

    fn node(version: &str) -> Node {
        let value = Value {
            kind: Some(Kind::StringValue(version.to_owned())),
        };
        let fields = [("ISTIO_VERSION".to_owned(), value)].into_iter().collect();
        Node {
            id: "sidecar~1".to_owned(),
            metadata: Some(Struct { fields }),
            ..Node::default()
        }
    }

    #[test]
    fn an_entry_lives_as_long_as_its_streams() {
        let metrics = Arc::new(Metrics::new(std::time::Instant::now()));
        let nodes = Nodes::new(Arc::clone(&metrics));
        let (peer, status) = (Peer::default(), tonic::Status::ok(""));
        nodes.announce(&node("1.31.0"), "east");
        nodes.connected("sidecar~1", &peer);
        nodes.announce(&node("1.32.0"), "east");
        nodes.connected("sidecar~1", &peer);
        assert_eq!(nodes.get("sidecar~1").istio_version, "1.31.0");
        assert!(metrics.text().contains("pilot_xds{version=\"1.31.0\"} 2"));
        nodes.disconnected("sidecar~1", &status);
        nodes.disconnected("sidecar~1", &status);
        assert!(metrics.text().contains("pilot_xds{version=\"1.31.0\"} 0"));
        assert!(nodes.lock().is_empty());
    }
}
