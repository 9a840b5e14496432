//! A proxy that only asks: everything that a control plane gives it, as bytes.

mod whole;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use http::uri::PathAndQuery;
use pilotfish_protos::envoy::config::cluster::v3::Cluster;
use pilotfish_protos::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use pilotfish_protos::envoy::config::core::v3::address::Address as AddressKind;
use pilotfish_protos::envoy::config::core::v3::{Locality, Node};
use pilotfish_protos::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilotfish_protos::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use pilotfish_protos::envoy::config::listener::v3::{Listener, filter};
use pilotfish_protos::envoy::config::route::v3::RouteConfiguration;
use pilotfish_protos::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier,
};
use pilotfish_protos::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use pilotfish_protos::google::protobuf::{self, Struct, value::Kind};
use pilotfish_protos::google::rpc::Status;
use prost::Message;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(10);
const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const HCM: &str = "http_connection_manager.v3.HttpConnectionManager";

pub(crate) const CLUSTERS: &str = "envoy.config.cluster.v3.Cluster";
pub(crate) const ENDPOINTS: &str = "envoy.config.endpoint.v3.ClusterLoadAssignment";
pub(crate) const LISTENERS: &str = "envoy.config.listener.v3.Listener";
pub(crate) const ROUTES: &str = "envoy.config.route.v3.RouteConfiguration";

pub use whole::{Reader, to_json};

/// Encoded resources by the last part of their type and their name.
pub type Resources = BTreeMap<(&'static str, String), Vec<u8>>;

/// A proxy that stays connected, and does nothing more, until it is dropped.
pub struct Connected {
    /// What it was given.
    pub resources: Resources,
    stream: Stream,
    runtime: tokio::runtime::Runtime,
}

impl Connected {
    /// Says how the workload beside the proxy is, as an agent does: what is wrong, or nothing.
    pub fn report(&self, problem: Option<&str>) -> Result<()> {
        let request = DiscoveryRequest {
            type_url: "type.googleapis.com/istio.v1.HealthInformation".to_owned(),
            error_detail: problem.map(|problem| Status {
                message: problem.to_owned(),
                ..Status::default()
            }),
            ..DiscoveryRequest::default()
        };
        let sent = self.runtime.block_on(self.stream.requests.send(request));
        sent.context("the stream has ended")
    }
}

/// A proxy that follows the endpoints of one cluster until it is dropped.
pub struct Follower {
    seen: Arc<Mutex<Vec<Vec<String>>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Follower {
    /// The addresses that it was given, each time it was given any, oldest first.
    pub fn seen(&self) -> Vec<Vec<String>> {
        let seen = self.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Follows the endpoints of a cluster.
pub fn follow(address: SocketAddr, node: &Value, cluster: &str) -> Result<Follower> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let seen: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
    let wanted = vec![cluster.to_owned()];
    let mut stream = runtime.block_on(Stream::open(address, node, ENDPOINTS, wanted))?;
    let history = Arc::clone(&seen);
    runtime.spawn(async move {
        while let Some(response) = stream.responses.message().await? {
            stream.acknowledge(&response).await?;
            if response.type_url != url(ENDPOINTS) {
                continue;
            }
            for any in &response.resources {
                let given = addresses(&ClusterLoadAssignment::decode(&*any.value)?);
                let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
                history.push(given);
            }
        }
        anyhow::Ok(())
    });
    Ok(Follower {
        seen,
        _runtime: runtime,
    })
}

fn addresses(assignment: &ClusterLoadAssignment) -> Vec<String> {
    let places = assignment.endpoints.iter();
    let all = places.flat_map(|place| &place.lb_endpoints);
    let address = all.filter_map(|endpoint| match &endpoint.host_identifier {
        Some(HostIdentifier::Endpoint(endpoint)) => endpoint.address.as_ref()?.address.as_ref(),
        _ => None,
    });
    address
        .filter_map(|address| match address {
            AddressKind::SocketAddress(socket) => Some(socket.address.clone()),
            _ => None,
        })
        .collect()
}

/// Everything that the proxy with this node is given: clusters, endpoints, listeners and routes.
pub fn dump(address: SocketAddr, node: &Value) -> Result<Resources> {
    Ok(connect(address, node)?.resources)
}

/// Asks one question, as istioctl does, and returns the answer or why there is none.
pub async fn ask(
    channel: tonic::transport::Channel,
    question: DiscoveryRequest,
) -> Result<DiscoveryResponse, tonic::Status> {
    ask_with(channel, question, &[]).await
}

/// The same, with headers such as the token of a service account.
pub async fn ask_with(
    channel: tonic::transport::Channel,
    question: DiscoveryRequest,
    headers: &[(&'static str, &str)],
) -> Result<DiscoveryResponse, tonic::Status> {
    let failed = |what: &str| tonic::Status::unknown(what.to_owned());
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(64 << 20);
    let ready = grpc.ready().await;
    ready.map_err(|error| failed(&error.to_string()))?;
    let (requests, received) = mpsc::channel(8);
    let sent = requests.send(question).await;
    sent.map_err(|_| failed("cannot send"))?;
    let codec = tonic_prost::ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let mut received = Request::new(ReceiverStream::new(received));
    for (name, value) in headers {
        let value = value.parse().map_err(|_| failed("not a header"))?;
        received.metadata_mut().insert(*name, value);
    }
    let path = PathAndQuery::from_static(METHOD);
    let answered = async {
        let call = grpc.streaming(received, path, codec).await?;
        call.into_inner().message().await
    };
    let answer = tokio::time::timeout(ANSWER, answered).await;
    answer
        .map_err(|_| failed("no answer in time"))??
        .ok_or_else(|| failed("the stream ended"))
}

/// The same as [`dump`], and stays connected.
pub fn connect(address: SocketAddr, node: &Value) -> Result<Connected> {
    // With a thread of its own, so that its last words go out while nobody waits for it.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let (resources, stream) = runtime.block_on(async {
        let mut stream = Stream::open(address, node, CLUSTERS, Vec::new()).await?;
        let mut all = Resources::new();
        let (mut endpoints, mut routes) = (Vec::new(), Vec::new());
        for bytes in stream.ask(CLUSTERS, Vec::new()).await? {
            let cluster = Cluster::decode(&*bytes)?;
            endpoints.extend(wants_endpoints(&cluster));
            all.insert(("Cluster", cluster.name), bytes);
        }
        if !endpoints.is_empty() {
            for bytes in stream.ask(ENDPOINTS, endpoints).await? {
                let name = ClusterLoadAssignment::decode(&*bytes)?.cluster_name;
                all.insert(("ClusterLoadAssignment", name), bytes);
            }
        }
        for bytes in stream.ask(LISTENERS, Vec::new()).await? {
            let listener = Listener::decode(&*bytes)?;
            routes.extend(wants_routes(&listener));
            all.insert(("Listener", listener.name), bytes);
        }
        routes.sort();
        routes.dedup();
        if !routes.is_empty() {
            for bytes in stream.ask(ROUTES, routes).await? {
                let name = RouteConfiguration::decode(&*bytes)?.name;
                all.insert(("RouteConfiguration", name), bytes);
            }
        }
        anyhow::Ok((all, stream))
    })?;
    Ok(Connected {
        resources,
        stream,
        runtime,
    })
}

struct Stream {
    /// What was asked for last, by type.
    asked: BTreeMap<String, Vec<String>>,
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl Stream {
    /// Opens one with its first question: the server answers the call when it has that.
    async fn open(
        address: SocketAddr,
        node: &Value,
        kind: &str,
        names: Vec<String>,
    ) -> Result<Self> {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?
            .connect()
            .await?;
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(64 << 20);
        grpc.ready().await?;
        let (requests, received) = mpsc::channel(8);
        let first = DiscoveryRequest {
            node: Some(decode_node(node)),
            type_url: url(kind),
            resource_names: names.clone(),
            ..DiscoveryRequest::default()
        };
        requests.send(first).await?;
        let codec = tonic_prost::ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
        let call = grpc.streaming(
            Request::new(ReceiverStream::new(received)),
            PathAndQuery::from_static(METHOD),
            codec,
        );
        let responses = tokio::time::timeout(ANSWER, call)
            .await
            .context("no answer")??
            .into_inner();
        Ok(Self {
            asked: BTreeMap::from([(url(kind), names)]),
            requests,
            responses,
        })
    }

    /// The answer to a question, which is asked unless it was the first one.
    async fn ask(&mut self, kind: &str, names: Vec<String>) -> Result<Vec<Vec<u8>>> {
        let type_url = url(kind);
        if !self.asked.contains_key(&type_url) {
            self.asked.insert(type_url.clone(), names);
            let asked = self.request(&type_url);
            self.requests.send(asked).await?;
        }
        loop {
            let response = tokio::time::timeout(ANSWER, self.responses.message())
                .await
                .with_context(|| format!("no {kind}"))??
                .context("the stream ended")?;
            self.acknowledge(&response).await?;
            if response.type_url == type_url {
                let resources = response.resources.into_iter();
                return Ok(resources.map(|any| any.value.to_vec()).collect());
            }
        }
    }

    async fn acknowledge(&self, response: &DiscoveryResponse) -> Result<()> {
        let mut seen = self.request(&response.type_url);
        seen.version_info.clone_from(&response.version_info);
        seen.response_nonce.clone_from(&response.nonce);
        Ok(self.requests.send(seen).await?)
    }

    fn request(&self, type_url: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names: self.asked.get(type_url).cloned().unwrap_or_default(),
            ..DiscoveryRequest::default()
        }
    }
}

pub(crate) fn url(kind: &str) -> String {
    format!("type.googleapis.com/{kind}")
}

pub(crate) fn wants_endpoints(cluster: &Cluster) -> Option<String> {
    let eds = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
    if cluster.cluster_discovery_type != Some(eds) {
        return None;
    }
    let named = cluster.eds_cluster_config.as_ref();
    let named = named.map(|config| config.service_name.clone());
    Some(
        named
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| cluster.name.clone()),
    )
}

pub(crate) fn wants_routes(listener: &Listener) -> Vec<String> {
    let chains = listener
        .filter_chains
        .iter()
        .chain(&listener.default_filter_chain);
    let mut names = Vec::new();
    for filter in chains.flat_map(|chain| &chain.filters) {
        if let Some(filter::ConfigType::TypedConfig(any)) = &filter.config_type
            && any.type_url.ends_with(HCM)
            && let Ok(manager) = HttpConnectionManager::decode(&*any.value)
            && let Some(RouteSpecifier::Rds(rds)) = manager.route_specifier
        {
            names.push(rds.route_config_name);
        }
    }
    names
}

/// The node as Envoy would send it; of its locality, what tests set.
pub(crate) fn decode_node(node: &Value) -> Node {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let locality = node.get("locality").map(|place| Locality {
        region: text(&place["region"]),
        zone: text(&place["zone"]),
        sub_zone: text(&place["sub_zone"]),
    });
    let metadata = match decode_value(&node["metadata"]).kind {
        Some(Kind::StructValue(fields)) => Some(fields),
        _ => None,
    };
    Node {
        id: text(&node["id"]),
        cluster: text(&node["cluster"]),
        metadata,
        locality,
        ..Node::default()
    }
}

fn decode_value(value: &Value) -> protobuf::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => Kind::ListValue(protobuf::ListValue {
            values: items.iter().map(decode_value).collect(),
        }),
        Value::Object(map) => Kind::StructValue(Struct {
            fields: map
                .iter()
                .map(|(key, value)| (key.clone(), decode_value(value)))
                .collect(),
        }),
    };
    protobuf::Value { kind: Some(kind) }
}
