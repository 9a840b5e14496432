//! A proxy that watches the endpoints of one cluster over an incremental stream, and remembers everything it was told.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use http::uri::PathAndQuery;
use pilotfish_protos::envoy::config::core::v3::address::Address;
use pilotfish_protos::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilotfish_protos::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use pilotfish_protos::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use prost::Message;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::xds::decode_node;

const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const TYPE: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
const CONNECT: Duration = Duration::from_secs(10);

/// Addresses with the region they are in: `address region`.
pub type Told = BTreeSet<String>;

/// Watches until it is dropped.
pub struct Watcher {
    told: Arc<Mutex<Result<Vec<Told>, String>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Watcher {
    /// Connects as the proxy with this node, and asks for the endpoints of a cluster.
    pub fn open(address: SocketAddr, node: &Value, cluster: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let told = Arc::new(Mutex::new(Ok(Vec::new())));
        let first = DeltaDiscoveryRequest {
            node: Some(decode_node(node)),
            type_url: TYPE.to_owned(),
            resource_names_subscribe: vec![cluster.to_owned()],
            ..DeltaDiscoveryRequest::default()
        };
        let heard = Arc::clone(&told);
        runtime.spawn(async move {
            let ended = match watch(address, first, &heard).await {
                Ok(()) => "the stream ended".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            *heard.lock().unwrap_or_else(PoisonError::into_inner) = Err(ended);
        });
        Ok(Self {
            told,
            _runtime: runtime,
        })
    }

    /// Everything that it was told, in order.
    pub fn all(&self) -> Result<Vec<Told>> {
        match &*self.told.lock().unwrap_or_else(PoisonError::into_inner) {
            Ok(told) => Ok(told.clone()),
            Err(error) => bail!("the stream of endpoints: {error}"),
        }
    }

    /// What it was told last.
    pub fn last(&self) -> Result<Told> {
        Ok(self.all()?.pop().unwrap_or_default())
    }
}

async fn watch(
    address: SocketAddr,
    first: DeltaDiscoveryRequest,
    told: &Mutex<Result<Vec<Told>, String>>,
) -> Result<()> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
    let channel = tokio::time::timeout(CONNECT, endpoint.connect()).await??;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let (requests, received) = mpsc::channel(8);
    requests.send(first).await?;
    let codec = tonic_prost::ProstCodec::<DeltaDiscoveryRequest, DeltaDiscoveryResponse>::default();
    let received = Request::new(ReceiverStream::new(received));
    let path = PathAndQuery::from_static(METHOD);
    let mut responses = grpc.streaming(received, path, codec).await?.into_inner();
    while let Some(response) = responses.message().await? {
        for resource in &response.resources {
            let Some(any) = &resource.resource else {
                continue;
            };
            let addresses = addresses(&ClusterLoadAssignment::decode(&*any.value)?);
            if let Ok(all) = &mut *told.lock().unwrap_or_else(PoisonError::into_inner) {
                all.push(addresses);
            }
        }
        if !response.removed_resources.is_empty() {
            bail!("{:?} were removed", response.removed_resources);
        }
        let seen = DeltaDiscoveryRequest {
            type_url: TYPE.to_owned(),
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(seen).await?;
    }
    Ok(())
}

fn addresses(assignment: &ClusterLoadAssignment) -> Told {
    let mut all = Told::new();
    for group in &assignment.endpoints {
        let region = group.locality.as_ref().map_or("", |l| l.region.as_str());
        for endpoint in &group.lb_endpoints {
            if let Some(HostIdentifier::Endpoint(endpoint)) = &endpoint.host_identifier
                && let Some(address) = &endpoint.address
                && let Some(Address::SocketAddress(socket)) = &address.address
            {
                all.insert(format!("{} {region}", socket.address));
            }
        }
    }
    all
}
