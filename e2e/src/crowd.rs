//! Many sidecars at once that follow a control plane incrementally. One whose stream ends goes on to the next replica, and
//! says there what it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::uri::PathAndQuery;
use pilotfish_protos::envoy::config::cluster::v3::Cluster;
use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_protos::envoy::config::listener::v3::Listener;
use pilotfish_protos::envoy::config::route::v3::RouteConfiguration;
use pilotfish_protos::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource,
};
use prost::Message;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::{wait, xds};

const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// Envoy's first pause before it connects again, at most.
const PAUSE_MS: u64 = 500;

/// What is asked for, in this order.
pub const TYPES: [&str; 5] = [
    xds::CLUSTERS,
    xds::ENDPOINTS,
    xds::LISTENERS,
    xds::ROUTES,
    "envoy.config.route.v3.VirtualHost",
];
const CDS: usize = 0;
const EDS: usize = 1;
const LDS: usize = 2;
const RDS: usize = 3;
const VHDS: usize = 4;

/// What a proxy was sent on its newest stream.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Resources that came, by type.
    pub resources: [usize; 5],
    /// Resources that were taken away, by type.
    pub removed: [usize; 5],
    /// Bytes of all messages.
    pub bytes: usize,
    /// The replica that it is connected to.
    pub replica: usize,
    /// When the stream was last seen to end, or else opened.
    since: Option<Instant>,
    /// From there to the moment when everything that was asked for had been answered.
    pub configured: Option<Duration>,
}

struct Shared {
    replicas: Vec<SocketAddr>,
    /// Nobody connects while it is held.
    held: watch::Sender<bool>,
    given: Vec<Mutex<Given>>,
    /// What was read already: proxies are given the same.
    references: Mutex<BTreeMap<Bytes, Arc<[String]>>>,
}

/// Connected proxies. They go when it is dropped.
pub struct Crowd {
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl Crowd {
    /// Connects a proxy for each node, to the replicas in turn.
    pub fn connect(replicas: Vec<SocketAddr>, nodes: &[Value]) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared {
            replicas,
            held: watch::Sender::new(false),
            given: nodes.iter().map(|_| Mutex::default()).collect(),
            references: Mutex::default(),
        });
        for (index, node) in nodes.iter().enumerate() {
            let proxy = Sidecar {
                shared: Arc::clone(&shared),
                index,
                node: xds::decode_node(node),
                held: Default::default(),
                references: Default::default(),
            };
            runtime.spawn(proxy.live());
        }
        Ok(Self {
            shared,
            _runtime: runtime,
        })
    }

    /// Whether those that lose their stream wait before they connect again.
    pub fn hold(&self, held: bool) {
        self.shared.held.send_replace(held);
    }

    /// What each proxy was sent on its newest stream.
    pub fn given(&self) -> Vec<Given> {
        let all = self.shared.given.iter();
        all.map(|given| lock(given).clone()).collect()
    }

    /// Waits until every proxy is configured and none is connected to a replica that it should not be connected to.
    pub fn wait_configured(&self, replicas: &[usize], limit: Duration) -> Result<Vec<Given>> {
        wait::until("every proxy is configured", limit, || {
            let given = self.given();
            let is_done =
                |given: &&Given| given.configured.is_some() && replicas.contains(&given.replica);
            let done = given.iter().filter(is_done).count();
            if done < given.len() {
                bail!("{done} of {}", given.len());
            }
            Ok(given)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Sidecar {
    shared: Arc<Shared>,
    index: usize,
    node: Node,
    /// The versions of what it holds, by type and name. They outlive a stream.
    held: [BTreeMap<String, String>; 5],
    /// What each of these names.
    references: [BTreeMap<String, Arc<[String]>>; 5],
}

impl Sidecar {
    async fn live(mut self) {
        let mut replica = self.index % self.shared.replicas.len();
        loop {
            // An error is the end of a stream, and what comes next is the same for all of them.
            let _ended = self.stream(replica).await;
            {
                let mut given = lock(&self.shared.given[self.index]);
                if given.configured.take().is_some() || given.since.is_none() {
                    given.since = Some(Instant::now());
                }
            }
            let mut held = self.shared.held.subscribe();
            if *held.borrow() {
                drop(held.wait_for(|held| !held).await);
                lock(&self.shared.given[self.index]).since = Some(Instant::now());
            }
            let pause = (self.index as u64 * 997) % PAUSE_MS;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            replica = (replica + 1) % self.shared.replicas.len();
        }
    }

    async fn stream(&mut self, replica: usize) -> Result<()> {
        let address = self.shared.replicas[replica];
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?
            .tcp_nodelay(true)
            .connect()
            .await?;
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(64 << 20);
        grpc.ready().await?;
        {
            let mut given = lock(&self.shared.given[self.index]);
            *given = Given {
                replica,
                since: given.since.or_else(|| Some(Instant::now())),
                ..Given::default()
            };
        }
        let (requests, received) = mpsc::unbounded_channel();
        // Whoever has been connected before asks for everything at once, as Envoy does.
        let mut stream = Exchange {
            asked: [false; 5],
            answered: [false; 5],
            requests,
        };
        for kind in 0..TYPES.len() {
            if kind == CDS || !self.held[kind].is_empty() {
                self.ask(kind, &mut stream);
            }
        }
        let codec =
            tonic_prost::ProstCodec::<DeltaDiscoveryRequest, DeltaDiscoveryResponse>::default();
        let received = tonic::Request::new(UnboundedReceiverStream::new(received));
        let path = PathAndQuery::from_static(METHOD);
        let mut responses = grpc.streaming(received, path, codec).await?.into_inner();
        while let Some(response) = responses.message().await? {
            self.take(response, &mut stream)?;
        }
        Ok(())
    }

    /// The first request of a type on a stream: all that is wanted, and what is held.
    fn ask(&self, kind: usize, stream: &mut Exchange) {
        let names = match kind {
            CDS | LDS => BTreeSet::new(),
            EDS => self.wanted(CDS),
            RDS => self.wanted(LDS),
            _ => self.wanted(RDS),
        };
        stream.asked[kind] = true;
        stream.send(DeltaDiscoveryRequest {
            node: (kind == CDS).then(|| self.node.clone()),
            type_url: xds::url(TYPES[kind]),
            resource_names_subscribe: names.into_iter().collect(),
            initial_resource_versions: self.held[kind].clone().into_iter().collect(),
            ..DeltaDiscoveryRequest::default()
        });
    }

    /// All names that resources of a type have in them.
    fn wanted(&self, kind: usize) -> BTreeSet<String> {
        let all = self.references[kind].values();
        all.flat_map(|names| names.iter().cloned()).collect()
    }

    fn take(&mut self, response: DeltaDiscoveryResponse, stream: &mut Exchange) -> Result<()> {
        let kind = TYPES
            .iter()
            .position(|kind| response.type_url.ends_with(kind))
            .with_context(|| format!("nobody asked for {}", response.type_url))?;
        let bytes = response.encoded_len();
        let (resources, removed) = (response.resources.len(), response.removed_resources.len());
        stream.send(DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        });
        let before = self.wanted(kind);
        for resource in response.resources {
            self.references[kind].insert(resource.name.clone(), self.read(kind, &resource)?);
            self.held[kind].insert(resource.name, resource.version);
        }
        for name in response.removed_resources {
            self.references[kind].remove(&name);
            self.held[kind].remove(&name);
        }
        stream.answered[kind] = true;
        let after = self.wanted(kind);
        match kind {
            CDS => {
                self.follow(EDS, &before, &after, stream);
                if !stream.asked[LDS] {
                    self.ask(LDS, stream);
                }
            }
            LDS => self.follow(RDS, &before, &after, stream),
            RDS => self.follow(VHDS, &before, &after, stream),
            _ => {}
        }
        let mut given = lock(&self.shared.given[self.index]);
        given.resources[kind] += resources;
        given.removed[kind] += removed;
        given.bytes += bytes;
        if given.configured.is_none() && stream.asked == stream.answered {
            given.configured = given.since.map(|since| since.elapsed());
        }
        Ok(())
    }

    /// Asks for what has come to be named, and gives up what is named no more.
    fn follow(
        &self,
        kind: usize,
        before: &BTreeSet<String>,
        after: &BTreeSet<String>,
        stream: &mut Exchange,
    ) {
        if !stream.asked[kind] {
            if !after.is_empty() {
                self.ask(kind, stream);
            }
        } else if before != after {
            stream.send(DeltaDiscoveryRequest {
                type_url: xds::url(TYPES[kind]),
                resource_names_subscribe: after.difference(before).cloned().collect(),
                resource_names_unsubscribe: before.difference(after).cloned().collect(),
                ..DeltaDiscoveryRequest::default()
            });
        }
    }

    fn read(&self, kind: usize, resource: &Resource) -> Result<Arc<[String]>> {
        let body = resource.resource.as_ref().context("an empty resource")?;
        if !matches!(kind, CDS | LDS | RDS) {
            return Ok(Arc::default());
        }
        let mut known = lock(&self.shared.references);
        if let Some(names) = known.get(&body.value) {
            return Ok(Arc::clone(names));
        }
        let bytes = &*body.value;
        let names: Arc<[String]> = match kind {
            CDS => xds::wants_endpoints(&Cluster::decode(bytes)?)
                .into_iter()
                .collect(),
            LDS => xds::wants_routes(&Listener::decode(bytes)?).into(),
            _ => {
                let table = RouteConfiguration::decode(bytes)?;
                table.vhds.map(|_| table.name).into_iter().collect()
            }
        };
        known.insert(body.value.clone(), Arc::clone(&names));
        Ok(names)
    }
}

/// One stream's requests.
struct Exchange {
    asked: [bool; 5],
    answered: [bool; 5],
    requests: mpsc::UnboundedSender<DeltaDiscoveryRequest>,
}

impl Exchange {
    /// A stream that has ended takes nothing; its end is noticed by whoever reads it.
    fn send(&self, request: DeltaDiscoveryRequest) {
        let _ended = self.requests.send(request);
    }
}
