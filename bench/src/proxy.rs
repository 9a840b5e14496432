//! One sidecar's side of a stream: what it asks, in which order, and how it answers. No sockets, no clock.
//!
//! ```text
//!  CDS ──▶ EDS for the clusters ──▶ LDS ──▶ RDS for the tables in the listeners ──▶ VHDS if a table says so
//! ```
//!
//! Later responses change what is asked for: a cluster that comes brings a subscription, one that goes ends it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use bytes::{BufMut, Bytes, BytesMut};
use imbl::OrdMap;
use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_protos::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use prost::Message;
use serde_json::json;
use xxhash_rust::xxh3::Xxh3;

use crate::mesh;
use crate::wire::{self, Mode, Response, Type};

/// Names that a request subscribes to: the same field in both variants.
const SUBSCRIBE: u32 = 3;
/// Names that a delta request gives up.
const UNSUBSCRIBE: u32 = 4;

/// How the `index`th proxy introduces itself. Namespaces take turns, so that the first ones are one of each.
pub fn node(index: usize, namespaces: usize) -> Result<Node> {
    let namespace = mesh::namespace(index % namespaces.max(1));
    let address = std::net::Ipv4Addr::from(0xc0a8_0000 + index as u32);
    let node = json!({
        "id": format!("sidecar~{address}~client-{index}.{namespace}~{namespace}.svc.cluster.local"),
        "cluster": format!("client.{namespace}"),
        "userAgentName": "envoy",
        "userAgentBuildVersion": {"version": {"majorNumber": 1, "minorNumber": 40}},
        "locality": {"region": "west", "zone": format!("zone-{}", index % namespaces.max(1) % 3)},
        "metadata": {
            "NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0", "MESH_ID": "cluster.local",
            "LABELS": {"app": "client"}, "INSTANCE_IPS": address.to_string(), "INTERCEPTION_MODE": "REDIRECT",
        },
    });
    let any = pilotfish_protos::json::from_json("envoy.config.core.v3.Node", &node)
        .context("the node of a played proxy")?;
    Ok(Node::decode(any.value)?)
}

/// Names that a resource refers to.
type Named = Arc<[Arc<str>]>;

/// What resources of one type name of another: clusters their endpoints, listeners their route tables.
#[derive(Clone, Debug, Default)]
struct References {
    by_resource: OrdMap<Arc<str>, Named>,
    /// How many resources name it.
    wanted: OrdMap<Arc<str>, u32>,
}

/// Names to subscribe to and to give up.
#[derive(Debug, Default)]
struct Difference {
    gained: BTreeSet<Arc<str>>,
    lost: BTreeSet<Arc<str>>,
}

impl References {
    fn set(&mut self, resource: Arc<str>, names: Named, difference: &mut Difference) {
        for name in &*names {
            let count = self.wanted.entry(name.clone()).or_insert(0);
            *count += 1;
            if *count == 1 && !difference.lost.remove(name) {
                difference.gained.insert(name.clone());
            }
        }
        if let Some(before) = self.by_resource.insert(resource, names) {
            self.release(&before, difference);
        }
    }

    fn remove(&mut self, resource: &str, difference: &mut Difference) {
        if let Some(before) = self.by_resource.remove(resource) {
            self.release(&before, difference);
        }
    }

    fn release(&mut self, names: &[Arc<str>], difference: &mut Difference) {
        for name in names {
            let Some(count) = self.wanted.get_mut(name) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.wanted.remove(name);
                if !difference.gained.remove(name) {
                    difference.lost.insert(name.clone());
                }
            }
        }
    }
}

/// What a response says, as far as a proxy acts on it.
#[derive(Debug, Default)]
struct Page {
    /// Resources and what they name.
    resources: Vec<(Arc<str>, Named)>,
    /// The references of a proxy that has this page and no other.
    alone: References,
    /// All names of the page, encoded as a subscription.
    names: Bytes,
    hosts_apart: bool,
}

/// Pages that were read already: proxies of a namespace get the same, and one of them reads it for all.
#[derive(Debug, Default)]
pub struct Library(Mutex<HashMap<u128, Arc<Page>>>);

impl Library {
    fn page(&self, response: &Response<'_>, mode: Mode) -> Arc<Page> {
        let mut hash = Xxh3::with_seed(response.kind as u64);
        for resource in &response.resources {
            hash.update(resource);
        }
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let page = pages.entry(hash.digest128());
        page.or_insert_with(|| Arc::new(Page::read(response, mode)))
            .clone()
    }
}

impl Page {
    fn read(response: &Response<'_>, mode: Mode) -> Self {
        let mut page = Self::default();
        let mut ignored = Difference::default();
        for (name, body) in response.bodies(mode) {
            let names: Named = match response.kind {
                Type::Cds => wire::endpoints_of(body).into_iter().collect(),
                Type::Lds => wire::tables_of(body).into(),
                Type::Rds => {
                    page.hosts_apart |= wire::has_hosts_apart(body);
                    continue;
                }
                Type::Eds | Type::Vhds => continue,
            };
            page.alone.set(name.clone(), names.clone(), &mut ignored);
            page.resources.push((name, names));
        }
        page.names = wire::names(SUBSCRIBE, page.alone.wanted.keys());
        page
    }
}

/// A type as one stream has it.
#[derive(Debug, Default)]
struct Watch {
    asked: bool,
    answered: bool,
    version: String,
    nonce: String,
    /// All names, which a state-of-the-world request repeats.
    names: Bytes,
    /// What names the names.
    references: References,
}

/// One stream of one proxy.
#[derive(Debug)]
pub struct Session {
    mode: Mode,
    /// Said in the first request.
    node: Option<Node>,
    watches: [Watch; 5],
}

impl Session {
    /// A stream and its first request.
    pub fn open(mode: Mode, node: Node) -> (Self, Bytes) {
        let mut session = Self {
            mode,
            node: Some(node),
            watches: Default::default(),
        };
        let first = session.ask(Type::Cds, &Difference::default());
        (session, first)
    }

    /// Whether everything that was asked for came, and nothing is left to be asked.
    pub fn is_synced(&self) -> bool {
        self.watch(Type::Lds).asked && self.watches.iter().all(|w| w.asked == w.answered)
    }

    /// Takes a response; returns its type and the requests that it causes. None: not a response we know.
    pub fn receive(&mut self, message: &[u8], library: &Library) -> Option<(Type, Vec<Bytes>)> {
        let response = Response::read(message, self.mode)?;
        let kind = response.kind;
        let watch = self.watch_mut(kind);
        watch.answered = true;
        watch.version = String::from_utf8_lossy(response.version).into_owned();
        watch.nonce = String::from_utf8_lossy(response.nonce).into_owned();
        let mut requests = vec![self.acknowledge(kind)];
        match kind {
            Type::Cds => {
                requests.extend(self.follow(&response, library, Type::Eds));
                if !self.watch(Type::Eds).asked {
                    requests.extend(self.ask_once(Type::Lds));
                }
            }
            Type::Eds => requests.extend(self.ask_once(Type::Lds)),
            Type::Lds => requests.extend(self.follow(&response, library, Type::Rds)),
            Type::Rds => {
                if self.mode == Mode::Delta && library.page(&response, self.mode).hosts_apart {
                    requests.extend(self.ask_once(Type::Vhds));
                }
            }
            Type::Vhds => {}
        }
        Some((kind, requests))
    }

    fn watch(&self, kind: Type) -> &Watch {
        &self.watches[kind as usize]
    }

    fn watch_mut(&mut self, kind: Type) -> &mut Watch {
        &mut self.watches[kind as usize]
    }

    /// Asks for what a response names, if that is other than before.
    fn follow(&mut self, response: &Response<'_>, library: &Library, to: Type) -> Option<Bytes> {
        let (mode, page) = (self.mode, library.page(response, self.mode));
        let watch = self.watch_mut(to);
        let mut difference = Difference::default();
        if mode == Mode::Sotw || watch.references.by_resource.is_empty() {
            // The page is all there is.
            let same = watch.names == page.names;
            watch.references = page.alone.clone();
            watch.names = page.names.clone();
            let fresh = !same && !page.names.is_empty();
            return fresh.then(|| self.ask(to, &difference));
        }
        for (resource, names) in &page.resources {
            let references = &mut watch.references;
            references.set(resource.clone(), names.clone(), &mut difference);
        }
        for resource in &response.removed {
            let resource = String::from_utf8_lossy(resource);
            watch.references.remove(&resource, &mut difference);
        }
        // Told once; from now on only what differs is.
        watch.names = Bytes::new();
        let differs = !difference.gained.is_empty() || !difference.lost.is_empty();
        differs.then(|| self.ask(to, &difference))
    }

    fn ask_once(&mut self, kind: Type) -> Option<Bytes> {
        (!self.watch(kind).asked).then(|| self.ask(kind, &Difference::default()))
    }

    fn ask(&mut self, kind: Type, difference: &Difference) -> Bytes {
        self.watch_mut(kind).asked = true;
        self.request(kind, false, difference)
    }

    fn acknowledge(&mut self, kind: Type) -> Bytes {
        self.request(kind, true, &Difference::default())
    }

    /// The names of a watch follow the small fields, without being encoded again.
    fn request(&mut self, kind: Type, answer: bool, difference: &Difference) -> Bytes {
        let node = self.node.take();
        let watch = &self.watches[kind as usize];
        let mut out = BytesMut::new();
        let encoded = match self.mode {
            Mode::Sotw => {
                out.put(watch.names.clone());
                DiscoveryRequest {
                    node,
                    type_url: kind.url().into(),
                    version_info: watch.version.clone(),
                    response_nonce: watch.nonce.clone(),
                    ..Default::default()
                }
                .encode(&mut out)
            }
            Mode::Delta => {
                if !answer {
                    out.put(watch.names.clone());
                    out.put(wire::names(SUBSCRIBE, &difference.gained));
                    out.put(wire::names(UNSUBSCRIBE, &difference.lost));
                }
                DeltaDiscoveryRequest {
                    node,
                    type_url: kind.url().into(),
                    response_nonce: if answer {
                        watch.nonce.clone()
                    } else {
                        String::new()
                    },
                    ..Default::default()
                }
                .encode(&mut out)
            }
        };
        debug_assert!(encoded.is_ok(), "a growing buffer takes everything");
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use pilotfish_protos::any;
    use pilotfish_protos::envoy::config::cluster::v3::Cluster;
    use pilotfish_protos::envoy::config::cluster::v3::cluster::{
        ClusterDiscoveryType, DiscoveryType,
    };
    use pilotfish_protos::envoy::config::listener::v3::Listener;
    use pilotfish_protos::envoy::service::discovery::v3::{
        DeltaDiscoveryResponse, DiscoveryResponse, Resource,
    };

    use super::*;

    fn cluster(name: &str) -> pilotfish_protos::google::protobuf::Any {
        any(&Cluster {
            name: name.into(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
            ..Default::default()
        })
    }

    fn sotw(kind: Type, nonce: &str, clusters: &[&str]) -> Vec<u8> {
        DiscoveryResponse {
            version_info: "v".into(),
            nonce: nonce.into(),
            type_url: kind.url().into(),
            resources: clusters.iter().map(|name| cluster(name)).collect(),
            ..Default::default()
        }
        .encode_to_vec()
    }

    fn delta(kind: Type, nonce: &str, clusters: &[&str], removed: &[&str]) -> Vec<u8> {
        DeltaDiscoveryResponse {
            nonce: nonce.into(),
            type_url: kind.url().into(),
            resources: clusters
                .iter()
                .map(|name| Resource {
                    name: (*name).into(),
                    resource: Some(cluster(name)),
                    ..Default::default()
                })
                .collect(),
            removed_resources: removed.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }
        .encode_to_vec()
    }

    fn session(mode: Mode) -> (Session, Bytes) {
        Session::open(mode, node(3, 2).unwrap())
    }

    #[test]
    fn a_state_of_the_world_sidecar_asks_in_order_and_repeats_its_names() {
        let library = Library::default();
        let (mut s, first) = session(Mode::Sotw);
        let first = DiscoveryRequest::decode(first).unwrap();
        assert_eq!(first.type_url, Type::Cds.url());
        assert!(first.node.unwrap().id.contains(".team-1~"));

        let mut receive = |message: Vec<u8>| -> Vec<DiscoveryRequest> {
            let (_, requests) = s.receive(&message, &library).unwrap();
            let decode = |r| DiscoveryRequest::decode(r).unwrap();
            requests.into_iter().map(decode).collect()
        };
        let asked = receive(sotw(Type::Cds, "1", &["b", "a"]));
        assert_eq!(asked[0].response_nonce, "1");
        assert!(asked[0].node.is_none());
        assert_eq!(asked[1].resource_names, ["a", "b"]);
        let asked = receive(sotw(Type::Eds, "2", &[]));
        assert_eq!(asked[0].resource_names, ["a", "b"]);
        assert_eq!(asked[0].version_info, "v");
        assert_eq!(asked[1].type_url, Type::Lds.url());
        // The same clusters again change nothing; others do.
        assert_eq!(receive(sotw(Type::Cds, "3", &["b", "a"])).len(), 1);
        let asked = receive(sotw(Type::Cds, "4", &["b", "c"]));
        assert_eq!(asked[1].resource_names, ["b", "c"]);
        assert_eq!(asked[1].response_nonce, "2");
    }

    #[test]
    fn a_delta_sidecar_asks_for_what_differs() {
        let library = Library::default();
        let (mut s, _) = session(Mode::Delta);
        let mut receive = |message: Vec<u8>| -> Vec<DeltaDiscoveryRequest> {
            let (_, requests) = s.receive(&message, &library).unwrap();
            let decode = |r| DeltaDiscoveryRequest::decode(r).unwrap();
            requests.into_iter().map(decode).collect()
        };
        let asked = receive(delta(Type::Cds, "1", &["a", "b"], &[]));
        assert_eq!(asked[1].resource_names_subscribe, ["a", "b"]);
        let asked = receive(delta(Type::Eds, "2", &[], &[]));
        assert!(asked[0].resource_names_subscribe.is_empty());
        assert_eq!(asked[1].type_url, Type::Lds.url());
        assert_eq!(receive(delta(Type::Cds, "3", &["a"], &[])).len(), 1);
        let asked = receive(delta(Type::Cds, "4", &["c"], &["a"]));
        assert_eq!(asked[1].resource_names_subscribe, ["c"]);
        assert_eq!(asked[1].resource_names_unsubscribe, ["a"]);
        assert!(asked[1].response_nonce.is_empty());
    }

    #[test]
    fn a_proxy_is_synced_when_all_that_it_asked_for_came() {
        let library = Library::default();
        let (mut s, _) = session(Mode::Sotw);
        s.receive(&sotw(Type::Cds, "1", &["a"]), &library).unwrap();
        assert!(!s.is_synced());
        s.receive(&sotw(Type::Eds, "2", &[]), &library).unwrap();
        assert!(!s.is_synced());
        let none = DiscoveryResponse {
            type_url: Type::Lds.url().into(),
            resources: vec![any(&Listener::default())],
            ..Default::default()
        };
        s.receive(&none.encode_to_vec(), &library).unwrap();
        assert!(s.is_synced());
    }
}
