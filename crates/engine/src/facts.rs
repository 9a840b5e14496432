//! What a proxy says of itself when it connects.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilotfish_config::mesh::ProxyConfig;
use pilotfish_config::{Duration, parse};
use pilotfish_emit::Dialect;
use pilotfish_ir::tls::CertificateFiles;
use pilotfish_lower::conduct::Extras;
use pilotfish_lower::{Interception, ProxyKind};
use pilotfish_mesh::{Labels, Locality, Text};
use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_protos::google::protobuf::value::Kind;
use pilotfish_protos::google::protobuf::{Struct, Value};

/// Longest string taken from a node; longer ones are refused, so that memory for a connection is bounded.
const LONGEST: usize = 4096;
/// Most labels taken from a node.
const MOST_LABELS: usize = 256;

/// Listeners that the proxy has by itself.
const OWN_PORTS: [&str; 4] = [
    "ENVOY_STATUS_PORT",
    "ENVOY_PROMETHEUS_PORT",
    "ENVOY_SECURE_METRICS_PORT",
    "ENVOY_SECURE_MERGED_METRICS_PORT",
];

/// The facts of a proxy that do not depend on the mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct ProxyFacts {
    pub(crate) id: Text,
    pub(crate) kind: ProxyKind,
    pub(crate) addresses: Vec<Text>,
    pub(crate) namespace: Text,
    pub(crate) dns_domain: Text,
    pub(crate) labels: Labels,
    pub(crate) locality: Option<Locality>,
    pub(crate) cluster: Text,
    pub(crate) network: Text,
    pub(crate) mesh_id: Text,
    pub(crate) node: Text,
    pub(crate) interception: Interception,
    pub(crate) dns_capture: bool,
    pub(crate) privileged: bool,
    pub(crate) http10: bool,
    /// Port on which the application reaches it as an HTTP proxy, where it overrules the mesh.
    pub(crate) http_proxy: Option<u16>,
    /// Networks whose endpoints it asked for; empty: all.
    pub(crate) view: BTreeSet<Text>,
    /// Ports its own listeners have.
    pub(crate) own_ports: BTreeSet<u16>,
    /// Its own configuration; without one the mesh's default counts.
    pub(crate) config: Option<Arc<ProxyConfig>>,
    pub(crate) extras: Extras,
    /// Certificates it brings for calling others.
    pub(crate) client_files: CertificateFiles,
    /// Certificates it brings for being called.
    pub(crate) server_files: CertificateFiles,
    pub(crate) dialect: Arc<Dialect>,
    pub(crate) service_account: Text,
    /// The WorkloadGroup that its workload is to be registered by; empty if none.
    pub(crate) register_group: Text,
    /// The WorkloadEntry that is its workload's; empty if it says nothing.
    pub(crate) workload_entry: Text,
    /// It takes connections through HBONE.
    pub(crate) tunnel: bool,
    pub(crate) verified: bool,
    pub(crate) is_envoy: bool,
    pub(crate) hosts_apart: bool,
}

/// Why a node cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError(String);

impl std::fmt::Display for NodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NodeError {}

fn text(meta: Option<&Struct>, key: &str) -> Result<Option<Text>, NodeError> {
    let Some(value) = meta.and_then(|m| m.fields.get(key)) else {
        return Ok(None);
    };
    Ok(match &value.kind {
        Some(Kind::StringValue(s)) if s.len() > LONGEST => {
            return Err(NodeError(format!(
                "metadata {key} is longer than {LONGEST} bytes"
            )));
        }
        Some(Kind::StringValue(s)) => Some(Text::from(s.as_str())),
        Some(Kind::BoolValue(b)) => Some(Text::from(b.to_string())),
        _ => None,
    })
}

fn labels(value: Option<&Value>) -> Result<Labels, NodeError> {
    let Some(Kind::StructValue(s)) = value.and_then(|v| v.kind.as_ref()) else {
        return Ok(Labels::new());
    };
    if s.fields.len() > MOST_LABELS {
        return Err(NodeError(format!(
            "metadata LABELS has more than {MOST_LABELS} entries"
        )));
    }
    let pair = |(k, v): (&String, &Value)| match &v.kind {
        Some(Kind::StringValue(v)) if v.len() <= LONGEST && k.len() <= LONGEST => {
            Some((Text::from(k.as_str()), Text::from(v.as_str())))
        }
        _ => None,
    };
    Ok(s.fields.iter().filter_map(pair).collect())
}

/// A value of the metadata as JSON; `None` if it nests too deep.
fn json(value: &Value, depth: usize) -> Option<serde_json::Value> {
    const DEEPEST: usize = 32;
    if depth > DEEPEST {
        return None;
    }
    Some(match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(b)) => (*b).into(),
        Some(Kind::StringValue(s)) => s.as_str().into(),
        Some(Kind::NumberValue(n)) => number(*n),
        Some(Kind::ListValue(l)) => l
            .values
            .iter()
            .map(|v| json(v, depth + 1))
            .collect::<Option<_>>()?,
        Some(Kind::StructValue(s)) => serde_json::Value::Object(
            s.fields
                .iter()
                .map(|(k, v)| Some((k.clone(), json(v, depth + 1)?)))
                .collect::<Option<_>>()?,
        ),
    })
}

/// Metadata knows no integers.
#[allow(
    clippy::cast_possible_truncation,
    reason = "only numbers that are whole and small are cast"
)]
fn number(n: f64) -> serde_json::Value {
    const LARGEST: f64 = 9_007_199_254_740_992.0;
    if n.fract() == 0.0 && n.abs() < LARGEST {
        (n as i64).into()
    } else {
        n.into()
    }
}

fn proxy_config(meta: Option<&Struct>) -> Result<Option<Arc<ProxyConfig>>, NodeError> {
    let Some(value) = meta.and_then(|m| m.fields.get("PROXY_CONFIG")) else {
        return Ok(None);
    };
    let value =
        json(value, 0).ok_or_else(|| NodeError("metadata PROXY_CONFIG nests too deep".into()))?;
    if value.is_null() {
        return Ok(None);
    }
    parse::proxy_config(value)
        .map(|c| Some(Arc::new(c)))
        .map_err(|e| NodeError(format!("metadata PROXY_CONFIG: {e}")))
}

/// A number written as a number or as text.
fn port(meta: Option<&Struct>, key: &str) -> Option<u16> {
    match meta.and_then(|m| m.fields.get(key))?.kind.as_ref()? {
        Kind::StringValue(s) => s.parse().ok(),
        Kind::NumberValue(n) => number(*n).as_u64().and_then(|n| u16::try_from(n).ok()),
        _ => None,
    }
    .filter(|p| *p > 0)
}

/// Where the proxy's agent answers DNS questions.
fn dns_proxy(written: Option<&str>) -> (Text, u16) {
    const HOST: &str = "127.0.0.1";
    const PORT: u16 = 15053;
    let Some((host, port)) = written.and_then(|w| w.rsplit_once(':')) else {
        return (Text::from(HOST), PORT);
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host == "localhost" { HOST } else { host };
    (Text::from(host), port.parse().unwrap_or(PORT))
}

/// The SDS names of files, as the agent beside the proxy knows them.
fn files(chain: Option<Text>, key: Option<Text>, roots: Option<Text>) -> CertificateFiles {
    let named = |t: Option<Text>| t.filter(|t| !t.is_empty());
    CertificateFiles {
        certificate: named(chain)
            .zip(named(key))
            .map(|(chain, key)| Text::from(format!("file-cert:{chain}~{key}"))),
        roots: named(roots).map(|roots| Text::from(format!("file-root:{roots}"))),
    }
}

impl ProxyFacts {
    /// Reads a node. Its id is `type~address~name.namespace~domain`.
    pub fn from_node(node: &Node) -> Result<Self, NodeError> {
        if node.id.is_empty() {
            return Err(NodeError("the node has no id".to_owned()));
        }
        if node.id.len() > LONGEST {
            return Err(NodeError(format!(
                "the node id is longer than {LONGEST} bytes"
            )));
        }
        let parts: Vec<&str> = node.id.split('~').collect();
        let [kind, address, name, domain] = parts.as_slice() else {
            return Err(NodeError(format!(
                "the node id {:?} is not type~address~name.namespace~domain",
                node.id
            )));
        };
        let kind = match *kind {
            "sidecar" => ProxyKind::Sidecar,
            "router" => ProxyKind::Router,
            other => {
                return Err(NodeError(format!(
                    "proxies of type {other:?} are not served"
                )));
            }
        };
        let meta = node.metadata.as_ref();
        let get = |key: &str| text(meta, key);
        let ips = get("INSTANCE_IPS")?;
        let mut addresses: Vec<Text> = ips
            .iter()
            .flat_map(|l| l.split(','))
            .map(str::trim)
            .filter(|a| valid_ip(a))
            .map(Text::from)
            .collect();
        if addresses.is_empty() && valid_ip(address) {
            addresses.push(Text::from(*address));
        }
        if addresses.is_empty() {
            return Err(NodeError(format!(
                "the node id {:?} names no valid address",
                node.id
            )));
        }
        let from_name = || {
            name.rsplit_once('.')
                .map(|(_, ns)| Text::from(ns))
                .unwrap_or_default()
        };
        let namespace = get("NAMESPACE")?
            .filter(|n| !n.is_empty())
            .unwrap_or_else(from_name);
        let locality = node
            .locality
            .as_ref()
            .filter(|l| !l.region.is_empty() || !l.zone.is_empty());
        let listed: BTreeSet<&str> = node.extensions.iter().map(|e| e.name.as_str()).collect();
        let yes = |v: Option<Text>| v.is_some_and(|v| matches!(&*v, "true" | "1"));
        Ok(Self {
            id: Text::from(node.id.as_str()),
            kind,
            addresses,
            namespace,
            dns_domain: Text::from(*domain),
            labels: labels(meta.and_then(|m| m.fields.get("LABELS")))?,
            locality: locality.map(|l| Locality {
                region: Text::from(l.region.as_str()),
                zone: Text::from(l.zone.as_str()),
                subzone: Text::from(l.sub_zone.as_str()),
            }),
            cluster: get("CLUSTER_ID")?.unwrap_or_default(),
            network: get("NETWORK")?.unwrap_or_default(),
            mesh_id: get("MESH_ID")?.unwrap_or_default(),
            node: get("NODE_NAME")?.unwrap_or_default(),
            interception: match get("INTERCEPTION_MODE")?.as_deref() {
                Some("TPROXY") => Interception::Tproxy,
                Some("NONE") => Interception::None,
                _ => Interception::Redirect,
            },
            dns_capture: yes(get("DNS_CAPTURE")?),
            privileged: !yes(get("UNPRIVILEGED_POD")?),
            http10: get("HTTP10")?.as_deref() == Some("1"),
            http_proxy: port(meta, "HTTP_PROXY_PORT"),
            own_ports: OWN_PORTS.iter().filter_map(|key| port(meta, key)).collect(),
            view: get("REQUESTED_NETWORK_VIEW")?
                .iter()
                .flat_map(|l| l.split(','))
                .filter(|n| !n.is_empty())
                .map(Text::from)
                .collect(),
            config: proxy_config(meta)?,
            extras: Extras {
                idle_timeout: get("IDLE_TIMEOUT")?
                    .and_then(|t| t.parse::<Duration>().ok())
                    .map(|d| d.get().into()),
                inbound_balance: yes(get("INBOUND_LISTENER_EXACT_BALANCE")?),
                outbound_balance: yes(get("OUTBOUND_LISTENER_EXACT_BALANCE")?),
                dns_proxy: if yes(get("DNS_CAPTURE")?) {
                    Some(dns_proxy(get("DNS_PROXY_ADDR")?.as_deref()))
                } else {
                    None
                },
            },
            client_files: files(
                get("TLS_CLIENT_CERT_CHAIN")?,
                get("TLS_CLIENT_KEY")?,
                get("TLS_CLIENT_ROOT_CERT")?,
            ),
            server_files: files(
                get("TLS_SERVER_CERT_CHAIN")?,
                get("TLS_SERVER_KEY")?,
                get("TLS_SERVER_ROOT_CERT")?,
            ),
            dialect: Arc::new(match Dialect::from_extensions(&listed) {
                d if yes(get("LOCAL_FILES")?) => d.with_files(),
                d => d,
            }),
            service_account: get("SERVICE_ACCOUNT")?.unwrap_or_default(),
            register_group: get("AUTO_REGISTER_GROUP")?.unwrap_or_default(),
            workload_entry: get("WORKLOAD_ENTRY")?.unwrap_or_default(),
            tunnel: yes(get("ENABLE_HBONE")?),
            verified: false,
            is_envoy: get("GENERATOR")?.is_none()
                && (node.user_agent_name == "envoy" || get("ISTIO_VERSION")?.is_some()),
            hosts_apart: false,
        })
    }

    /// The same proxy, which takes virtual hosts one by one instead of whole route tables if it is an Envoy. Others that
    /// speak the protocol, gRPC's own clients above all, know whole tables only.
    #[must_use]
    pub fn with_hosts_apart(mut self) -> Self {
        self.hosts_apart = self.is_envoy;
        self
    }

    /// The same proxy in a cluster of another name.
    #[must_use]
    pub fn in_cluster(mut self, name: &str) -> Self {
        self.cluster = name.into();
        self
    }

    /// The cluster it is in; empty if it does not say.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The same proxy, whose namespace somebody has verified: it may be given secrets.
    #[must_use]
    pub fn verified(mut self) -> Self {
        self.verified = true;
        self
    }

    /// The namespace it says it is in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The service account it says it runs as; empty if it says nothing.
    pub fn service_account(&self) -> &str {
        &self.service_account
    }

    /// The WorkloadGroup that its workload is to be registered by; empty if none.
    pub fn register_group(&self) -> &str {
        &self.register_group
    }

    /// The WorkloadEntry that is its workload's; empty if it says nothing.
    pub fn workload_entry(&self) -> &str {
        &self.workload_entry
    }

    /// Whether it takes connections through HBONE.
    pub fn has_tunnel(&self) -> bool {
        self.tunnel
    }

    /// Its addresses; there is one at least.
    pub fn addresses(&self) -> &[Text] {
        &self.addresses
    }

    /// Its network; empty if it says nothing.
    pub fn network(&self) -> &str {
        &self.network
    }

    /// Its labels.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Its place, if it says any.
    pub fn locality(&self) -> Option<&Locality> {
        self.locality.as_ref()
    }

    /// Whether its agent checks the health of its workload.
    pub fn checks_health(&self) -> bool {
        let config = self.config.as_ref();
        config.is_some_and(|config| config.readiness_probe.is_some())
    }

    /// The node id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

fn valid_ip(address: &str) -> bool {
    address.parse::<std::net::IpAddr>().is_ok()
}
