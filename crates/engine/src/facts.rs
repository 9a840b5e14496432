//! What a proxy says of itself when it connects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_emit::Dialect;
use pilotfish_lower::{Interception, ProxyKind};
use pilotfish_mesh::{Locality, Text};
use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_protos::google::protobuf::value::Kind;
use pilotfish_protos::google::protobuf::{Struct, Value};

/// Longest string taken from a node; longer ones are refused, so that memory for a connection is bounded.
const LONGEST: usize = 4096;
/// Most labels taken from a node.
const MOST_LABELS: usize = 256;

/// The facts of a proxy that do not depend on the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyFacts {
    pub(crate) id: Text,
    pub(crate) kind: ProxyKind,
    pub(crate) addresses: Vec<Text>,
    pub(crate) namespace: Text,
    pub(crate) dns_domain: Text,
    pub(crate) labels: BTreeMap<Text, Text>,
    pub(crate) locality: Option<Locality>,
    pub(crate) cluster: Text,
    pub(crate) network: Text,
    pub(crate) mesh_id: Text,
    pub(crate) node: Text,
    pub(crate) interception: Interception,
    pub(crate) dns_capture: bool,
    pub(crate) privileged: bool,
    pub(crate) http10: bool,
    pub(crate) dialect: Arc<Dialect>,
    pub(crate) verified: bool,
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

fn labels(value: Option<&Value>) -> Result<BTreeMap<Text, Text>, NodeError> {
    let Some(Kind::StructValue(s)) = value.and_then(|v| v.kind.as_ref()) else {
        return Ok(BTreeMap::new());
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
            http10: yes(get("HTTP10")?),
            dialect: Arc::new(match Dialect::from_extensions(&listed) {
                d if yes(get("LOCAL_FILES")?) => d.with_files(),
                d => d,
            }),
            verified: false,
        })
    }

    /// The same proxy, whose namespace somebody has verified: it may be given secrets.
    #[must_use]
    pub fn verified(mut self) -> Self {
        self.verified = true;
        self
    }

    /// The node id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

fn valid_ip(address: &str) -> bool {
    address.parse::<std::net::IpAddr>().is_ok()
}
