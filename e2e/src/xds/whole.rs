//! All that a proxy is given, whatever leads to it: also extensions, secrets, the table of names, and what a proxyless
//! client follows from the names it knows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{CLUSTERS, ENDPOINTS, LISTENERS, ROUTES, Resources, Stream, url};

const EXTENSIONS: &str = "envoy.config.core.v3.TypedExtensionConfig";
const SECRETS: &str = "envoy.extensions.transport_sockets.tls.v3.Secret";
const NAMES: &str = "istio.networking.nds.v1.NameTable";
/// A server may say nothing where there is none of these; then it has said so after this time.
const OPTIONAL: [&str; 3] = [EXTENSIONS, SECRETS, NAMES];
const SILENCE: Duration = Duration::from_secs(2);

/// Names that a resource refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct References {
    endpoints: BTreeSet<String>,
    routes: BTreeSet<String>,
    extensions: BTreeSet<String>,
    secrets: BTreeSet<String>,
    clusters: BTreeSet<String>,
}

impl References {
    fn merge(&mut self, other: &Self) {
        self.endpoints.extend(other.endpoints.iter().cloned());
        self.routes.extend(other.routes.iter().cloned());
        self.extensions.extend(other.extensions.iter().cloned());
        self.secrets.extend(other.secrets.iter().cloned());
        self.clusters.extend(other.clusters.iter().cloned());
    }

    /// What a resource, or something inside of it, names.
    fn find(&mut self, value: &Value) {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match value {
            Value::Object(fields) => {
                let name = fields.get("name").and_then(text);
                self.routes.extend(text(&value["rds"]["routeConfigName"]));
                if fields.contains_key("configDiscovery") {
                    self.extensions.extend(name.clone());
                }
                if fields.contains_key("sdsConfig") {
                    self.secrets
                        .extend(name.filter(|name| is_from_control_plane(name)));
                }
                let route = &value["route"];
                self.clusters.extend(text(&route["cluster"]));
                let weighted = route["weightedClusters"]["clusters"].as_array();
                let weighted = weighted.into_iter().flatten();
                self.clusters
                    .extend(weighted.filter_map(|cluster| text(&cluster["name"])));
                fields.values().for_each(|inner| self.find(inner));
            }
            Value::Array(items) => items.iter().for_each(|inner| self.find(inner)),
            _ => {}
        }
    }
}

/// Other secrets come from the agent beside the proxy.
fn is_from_control_plane(secret: &str) -> bool {
    secret != "default" && secret != "ROOTCA" && !secret.starts_with("file-")
}

/// A resource of [`Resources`] as JSON.
pub fn to_json(kind: &str, bytes: &[u8]) -> Result<Value> {
    let all = [
        CLUSTERS, ENDPOINTS, LISTENERS, ROUTES, EXTENSIONS, SECRETS, NAMES,
    ];
    let full = all.into_iter().find(|full| label(full) == kind);
    let full = full.with_context(|| format!("no type is called {kind}"))?;
    Ok(pilotfish_protos::json::any_to_json(&url(full), bytes)?)
}

/// The last part of a type's name.
fn label(kind: &'static str) -> &'static str {
    kind.rsplit('.').next().unwrap_or(kind)
}

/// Reads whole configurations, one after the other.
#[derive(Debug)]
pub struct Reader {
    runtime: Runtime,
    /// Name and references of resources that were read: many proxies are given the same ones.
    known: BTreeMap<(&'static str, Vec<u8>), (String, References)>,
}

impl Reader {
    /// One that has read nothing.
    pub fn new() -> Result<Self> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
            known: BTreeMap::new(),
        })
    }

    /// All that the proxy with this node is given. `ask` has the names that a proxyless client knows, by type (`lds`, …).
    pub fn dump(&mut self, address: SocketAddr, node: &Value, ask: &Value) -> Result<Resources> {
        let mut proxy = Dump {
            known: &mut self.known,
            address,
            node,
            stream: None,
            all: Resources::new(),
        };
        self.runtime.block_on(async {
            if node["metadata"]["GENERATOR"] == "grpc" {
                proxy.proxyless(ask).await?;
            } else {
                proxy.envoy().await?;
            }
            Ok(proxy.all)
        })
    }
}

struct Dump<'a> {
    known: &'a mut BTreeMap<(&'static str, Vec<u8>), (String, References)>,
    address: SocketAddr,
    node: &'a Value,
    stream: Option<Stream>,
    all: Resources,
}

impl Dump<'_> {
    /// In the order of an Envoy.
    async fn envoy(&mut self) -> Result<()> {
        let mut found = self.fetch(CLUSTERS, BTreeSet::new()).await?;
        self.named(ENDPOINTS, found.endpoints.clone()).await?;
        found.merge(&self.fetch(LISTENERS, BTreeSet::new()).await?);
        self.named(ROUTES, found.routes).await?;
        self.named(EXTENSIONS, found.extensions).await?;
        self.named(SECRETS, found.secrets).await?;
        if self.node["metadata"]["DNS_CAPTURE"] == "true" {
            self.fetch(NAMES, BTreeSet::new()).await?;
        }
        Ok(())
    }

    /// In the order of a client without proxy, which asks for everything by name.
    async fn proxyless(&mut self, ask: &Value) -> Result<()> {
        let known = |kind: &str| -> BTreeSet<String> {
            let names = ask[kind].as_array().into_iter().flatten();
            names
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect()
        };
        let mut found = References {
            routes: known("rds"),
            clusters: known("cds"),
            endpoints: known("eds"),
            ..References::default()
        };
        found.merge(&self.named(LISTENERS, known("lds")).await?);
        let routes = found.routes.clone();
        found.merge(&self.named(ROUTES, routes).await?);
        let clusters = found.clusters.clone();
        found.merge(&self.named(CLUSTERS, clusters).await?);
        self.named(ENDPOINTS, found.endpoints).await?;
        Ok(())
    }

    /// Asks for names, if there are any: no names would be all of them.
    async fn named(&mut self, kind: &'static str, names: BTreeSet<String>) -> Result<References> {
        if names.is_empty() {
            return Ok(References::default());
        }
        self.fetch(kind, names).await
    }

    async fn fetch(&mut self, kind: &'static str, names: BTreeSet<String>) -> Result<References> {
        let names: Vec<String> = names.into_iter().collect();
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(Stream::open(self.address, self.node, kind, names.clone()).await?),
        };
        let asked = stream.ask(kind, names);
        let given = if OPTIONAL.contains(&kind) {
            match tokio::time::timeout(SILENCE, asked).await {
                Ok(given) => given?,
                Err(_) => Vec::new(),
            }
        } else {
            asked.await?
        };
        let mut found = References::default();
        for bytes in given {
            let (name, references) = self.read(kind, &bytes)?;
            found.merge(&references);
            self.all.insert((label(kind), name), bytes);
        }
        Ok(found)
    }

    fn read(&mut self, kind: &'static str, bytes: &[u8]) -> Result<(String, References)> {
        let key = (kind, bytes.to_vec());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let json = pilotfish_protos::json::any_to_json(&url(kind), bytes)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut references = References::default();
        let name = match kind {
            ENDPOINTS => text(&json["clusterName"]),
            _ => text(&json["name"]),
        };
        match kind {
            CLUSTERS => {
                references.find(&json);
                if json["type"] == "EDS" {
                    let service = text(&json["edsClusterConfig"]["serviceName"]);
                    let named = if service.is_empty() { &name } else { &service };
                    references.endpoints.insert(named.clone());
                }
            }
            LISTENERS | ROUTES => references.find(&json),
            _ => {}
        }
        self.known.insert(key, (name.clone(), references.clone()));
        Ok((name, references))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_wherever_they_are() {
        let mut found = References::default();
        found.find(&json!({"name": "l", "filterChains": [
            {"filters": [{"name": "f", "configDiscovery": {}},
                {"typedConfig": {"rds": {"routeConfigName": "80"}}}],
             "transportSocket": {"tls": [{"name": "kubernetes://a", "sdsConfig": {}}, {"name": "default", "sdsConfig": {}}]}},
            {"virtualHosts": [{"routes": [{"route": {"cluster": "c"}},
                {"route": {"weightedClusters": {"clusters": [{"name": "d"}, {"name": "e"}]}}}]}]},
        ]}));
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = References {
            endpoints: set(&[]),
            routes: set(&["80"]),
            extensions: set(&["f"]),
            secrets: set(&["kubernetes://a"]),
            clusters: set(&["c", "d", "e"]),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn resources_can_be_shown() {
        assert!(to_json("Cluster", &[]).unwrap().is_object());
        assert!(to_json("Nonsense", &[]).is_err());
    }
}
