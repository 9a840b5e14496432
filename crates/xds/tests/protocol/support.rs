//! An in-memory configuration, raw clients, and short hands.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_protos::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use pilotfish_protos::google::rpc::Status as RpcStatus;
use pilotfish_xds::{
    Configuration, Generation, Health, Limits, Observer, Peer, Protocol, Resource, ResourceSet,
    Server, SessionConfig, TypeUrl, View,
};
use prost::Message;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

pub(crate) const ADS_DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
pub(crate) const ADS_SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

pub(crate) fn resource(t: &TypeUrl, name: &str, content: &str) -> Arc<Resource> {
    Resource::wrap(t.as_str(), name.into(), content.as_bytes(), Arc::from([]))
}

pub(crate) fn set(t: &TypeUrl, entries: &[(&str, &str)]) -> ResourceSet {
    entries
        .iter()
        .map(|(name, content)| resource(t, name, content))
        .collect()
}

/// A view with one section.
pub(crate) fn view(t: &TypeUrl, entries: &[(&str, &str)]) -> View {
    View::new([set(t, entries)])
}

pub(crate) fn error(message: &str) -> RpcStatus {
    RpcStatus {
        code: 3,
        message: message.into(),
        ..RpcStatus::default()
    }
}

pub(crate) fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Names and contents of a state-of-the-world response.
pub(crate) fn contents(
    t: &TypeUrl,
    known: &[(&str, &str)],
    response: &DiscoveryResponse,
) -> Vec<String> {
    assert_eq!(response.type_url, t.as_str());
    let find = |any: &pilotfish_protos::google::protobuf::Any| {
        let content = String::from_utf8(any.value.to_vec()).unwrap();
        known
            .iter()
            .find(|(_, c)| *c == content)
            .map_or(content.clone(), |(n, _)| (*n).to_string())
    };
    response.resources.iter().map(find).collect()
}

/// Sessions without a server.
pub(crate) struct Delta(pub(crate) pilotfish_xds::delta::Session);

impl Delta {
    pub(crate) fn new() -> Self {
        Self(pilotfish_xds::delta::Session::new(SessionConfig::default()))
    }

    pub(crate) fn request(&mut self, request: DeltaDiscoveryRequest) -> pilotfish_xds::Verdict {
        self.0.on_request(request).unwrap().verdict
    }

    pub(crate) fn subscribe(&mut self, t: &TypeUrl, add: &[&str], remove: &[&str]) {
        self.request(delta(t, add, remove));
    }

    pub(crate) fn push(&mut self, t: &TypeUrl, view: &View) -> Option<DeltaDiscoveryResponse> {
        let response = self.0.push(t, view.clone(), Generation(1))?;
        Some(DeltaDiscoveryResponse::decode(response.frames.message()).unwrap())
    }

    pub(crate) fn withdraw(&mut self, t: &TypeUrl) -> Option<DeltaDiscoveryResponse> {
        let response = self.0.withdraw(t)?;
        Some(DeltaDiscoveryResponse::decode(response.frames.message()).unwrap())
    }

    pub(crate) fn ack(&mut self, response: &DeltaDiscoveryResponse) {
        let verdict = self.request(delta_ack(response));
        assert!(
            matches!(verdict, pilotfish_xds::Verdict::Ack(_)),
            "{verdict:?}"
        );
    }

    pub(crate) fn nack(&mut self, response: &DeltaDiscoveryResponse) {
        let request = DeltaDiscoveryRequest {
            error_detail: Some(error("bad")),
            ..delta_ack(response)
        };
        assert!(matches!(
            self.request(request),
            pilotfish_xds::Verdict::Nack(_)
        ));
    }

    /// Whether a request waits for a response.
    pub(crate) fn wants(&self, t: &TypeUrl) -> bool {
        self.0
            .watches()
            .get(t)
            .is_some_and(pilotfish_xds::Watch::wants_answer)
    }
}

pub(crate) fn delta(t: &TypeUrl, add: &[&str], remove: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: t.as_str().into(),
        resource_names_subscribe: strings(add),
        resource_names_unsubscribe: strings(remove),
        ..DeltaDiscoveryRequest::default()
    }
}

pub(crate) fn delta_ack(response: &DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..DeltaDiscoveryRequest::default()
    }
}

pub(crate) fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    response.resources.iter().map(|r| r.name.as_str()).collect()
}

/// Sessions without a server.
pub(crate) struct Sotw(pub(crate) pilotfish_xds::sotw::Session);

impl Sotw {
    pub(crate) fn new() -> Self {
        Self(pilotfish_xds::sotw::Session::new(SessionConfig::default()))
    }

    pub(crate) fn request(&mut self, request: DiscoveryRequest) -> pilotfish_xds::Verdict {
        self.0.on_request(request).unwrap().verdict
    }

    pub(crate) fn subscribe(&mut self, t: &TypeUrl, names: &[&str]) {
        self.request(sotw(t, names));
    }

    pub(crate) fn push(&mut self, t: &TypeUrl, view: &View) -> Option<DiscoveryResponse> {
        let response = self.0.push(t, view.clone(), Generation(1))?;
        Some(DiscoveryResponse::decode(response.frames.message()).unwrap())
    }

    pub(crate) fn withdraw(&mut self, t: &TypeUrl) -> Option<DiscoveryResponse> {
        let response = self.0.withdraw(t)?;
        Some(DiscoveryResponse::decode(response.frames.message()).unwrap())
    }

    pub(crate) fn ack(&mut self, response: &DiscoveryResponse, names: &[&str]) {
        let verdict = self.request(sotw_ack(response, names));
        assert!(
            matches!(verdict, pilotfish_xds::Verdict::Ack(_)),
            "{verdict:?}"
        );
    }

    pub(crate) fn nack(&mut self, response: &DiscoveryResponse, names: &[&str]) {
        let request = DiscoveryRequest {
            error_detail: Some(error("bad")),
            ..sotw_ack(response, names)
        };
        assert!(matches!(
            self.request(request),
            pilotfish_xds::Verdict::Nack(_)
        ));
    }
}

pub(crate) fn sotw(t: &TypeUrl, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: t.as_str().into(),
        resource_names: strings(names),
        ..DiscoveryRequest::default()
    }
}

pub(crate) fn sotw_ack(response: &DiscoveryResponse, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        version_info: response.version_info.clone(),
        resource_names: strings(names),
        ..DiscoveryRequest::default()
    }
}

/// A configuration that is the same for every proxy.
#[derive(Debug)]
pub(crate) struct Fake {
    sets: Mutex<BTreeMap<TypeUrl, ResourceSet>>,
    generation: watch::Sender<Generation>,
    pub(crate) ready: AtomicBool,
    pub(crate) views: AtomicUsize,
    /// How long each takes.
    pub(crate) view_takes: Mutex<Duration>,
    /// While somebody holds this, views take for ever.
    pub(crate) stopped: Mutex<()>,
    /// Making a view fails.
    pub(crate) panics: AtomicBool,
    /// What was reported: by whom, and what is wrong.
    pub(crate) reports: Mutex<Vec<(String, Option<String>)>>,
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            sets: Mutex::default(),
            generation: watch::Sender::new(Generation(1)),
            ready: AtomicBool::new(true),
            views: AtomicUsize::new(0),
            view_takes: Mutex::default(),
            stopped: Mutex::default(),
            panics: AtomicBool::new(false),
            reports: Mutex::default(),
        })
    }

    /// Changes one type without telling anyone; `None` removes.
    pub(crate) fn put(&self, t: &TypeUrl, name: &str, content: Option<&str>) {
        let mut sets = self.sets.lock().unwrap();
        let set = sets.entry(t.clone()).or_default();
        match content {
            Some(content) => set.insert(resource(t, name, content)),
            None => drop(set.remove(name)),
        }
    }

    /// Tells the streams.
    pub(crate) fn commit(&self) {
        self.generation.send_modify(|g| g.0 += 1);
    }

    pub(crate) fn change(&self, t: &TypeUrl, name: &str, content: Option<&str>) {
        self.put(t, name, content);
        self.commit();
    }
}

impl Configuration for Fake {
    type Proxy = String;

    fn connect(&self, node: &Node, _: &Peer) -> Result<String, Status> {
        if !self.ready.load(Ordering::Relaxed) {
            return Err(Status::unavailable("not ready"));
        }
        Ok(node.id.clone())
    }

    fn view(&self, _: &mut String, t: &TypeUrl) -> View {
        self.views.fetch_add(1, Ordering::Relaxed);
        let takes = *self.view_takes.lock().unwrap();
        if !takes.is_zero() {
            std::thread::sleep(takes);
        }
        drop(self.stopped.lock().unwrap());
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told");
        if !t.is_known() || *t == TypeUrl::Workload {
            return View::unknown();
        }
        View::new([self
            .sets
            .lock()
            .unwrap()
            .get(t)
            .cloned()
            .unwrap_or_default()])
    }

    fn reported(&self, proxy: &mut String, health: Health) {
        let mut reports = self.reports.lock().unwrap();
        reports.push((proxy.clone(), health.problem));
    }

    fn generation(&self) -> watch::Receiver<Generation> {
        self.generation.subscribe()
    }
}

/// A server on loopback.
pub(crate) struct Running {
    pub(crate) fake: Arc<Fake>,
    pub(crate) server: Server<Fake>,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

/// Limits that do not get into a test's way.
pub(crate) fn limits() -> Limits {
    Limits {
        new_streams: pilotfish_xds::NewStreams::PerSecond(100_000),
        ..Limits::default()
    }
}

impl Running {
    pub(crate) fn start(limits: Limits) -> Self {
        Self::start_watched(limits, Arc::new(()))
    }

    pub(crate) fn start_watched(limits: Limits, observer: Arc<dyn Observer>) -> Self {
        let fake = Fake::new();
        let server = Server::new(fake.clone(), limits, observer);
        let listener = pilotfish_xds::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn({
            let server = server.clone();
            async move {
                server
                    .serve(listener, async {
                        let _ = stopped.await;
                    })
                    .await;
            }
        });
        Self {
            fake,
            server,
            address,
            stop: Some(stop),
            task,
        }
    }

    pub(crate) async fn delta(&self) -> Client<DeltaDiscoveryRequest, DeltaDiscoveryResponse> {
        Client::open(self.address, ADS_DELTA).await.unwrap()
    }

    pub(crate) async fn sotw(&self) -> Client<DiscoveryRequest, DiscoveryResponse> {
        Client::open(self.address, ADS_SOTW).await.unwrap()
    }

    /// Shuts down and waits for the end.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(Duration::from_secs(20), &mut self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

pub(crate) async fn channel(address: SocketAddr) -> tonic::transport::Channel {
    tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// A raw client of one stream.
pub(crate) struct Client<Q, R> {
    pub(crate) requests: mpsc::Sender<Q>,
    pub(crate) responses: tonic::Streaming<R>,
}

impl<Q, R> Client<Q, R>
where
    Q: Message + Default + 'static,
    R: Message + Default + std::fmt::Debug + 'static,
{
    pub(crate) async fn open(address: SocketAddr, path: &'static str) -> Result<Self, Status> {
        Self::open_on(channel(address).await, path).await
    }

    pub(crate) async fn open_on(
        channel: tonic::transport::Channel,
        path: &'static str,
    ) -> Result<Self, Status> {
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(1 << 30);
        grpc.ready()
            .await
            .map_err(|e| Status::unavailable(e.to_string()))?;
        let (requests, stream) = mpsc::channel(64);
        let codec = tonic_prost::ProstCodec::<Q, R>::default();
        let request = tonic::Request::new(ReceiverStream::new(stream));
        let responses = grpc
            .streaming(request, http::uri::PathAndQuery::from_static(path), codec)
            .await?
            .into_inner();
        Ok(Self {
            requests,
            responses,
        })
    }

    pub(crate) async fn send(&self, request: Q) {
        self.requests.send(request).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> R {
        let response = tokio::time::timeout(Duration::from_mins(1), self.responses.message()).await;
        response
            .expect("no response in time")
            .expect("stream failed")
            .expect("stream ended")
    }

    /// Nothing comes for a while.
    pub(crate) async fn silent(&mut self) {
        let response =
            tokio::time::timeout(Duration::from_millis(100), self.responses.message()).await;
        assert!(response.is_err(), "unexpected: {response:?}");
    }

    /// How the stream ends, after what is still to come.
    pub(crate) async fn end(&mut self) -> Code {
        loop {
            match tokio::time::timeout(Duration::from_secs(10), self.responses.message())
                .await
                .expect("no end in time")
            {
                Ok(Some(_)) => {}
                Ok(None) => return Code::Ok,
                Err(status) => return status.code(),
            }
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the field is optional")]
pub(crate) fn node(id: &str) -> Option<Node> {
    Some(Node {
        id: id.into(),
        ..Node::default()
    })
}

impl Client<DeltaDiscoveryRequest, DeltaDiscoveryResponse> {
    pub(crate) async fn first(&self, t: &TypeUrl, names: &[&str]) {
        self.send(DeltaDiscoveryRequest {
            node: node("proxy"),
            ..delta(t, names, &[])
        })
        .await;
    }

    /// The next response, accepted.
    pub(crate) async fn acked(&mut self) -> DeltaDiscoveryResponse {
        let response = self.next().await;
        self.send(delta_ack(&response)).await;
        response
    }
}

impl Client<DiscoveryRequest, DiscoveryResponse> {
    pub(crate) async fn first(&self, t: &TypeUrl, names: &[&str]) {
        self.send(DiscoveryRequest {
            node: node("proxy"),
            ..sotw(t, names)
        })
        .await;
    }

    /// The next response, accepted with these names.
    pub(crate) async fn acked(&mut self, names: &[&str]) -> DiscoveryResponse {
        let response = self.next().await;
        self.send(sotw_ack(&response, names)).await;
        response
    }
}
