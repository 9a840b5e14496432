//! The server: what all streams share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tonic::Status;
use tower::{BoxError, Service};

use crate::admission::Admission;
use crate::bundle::Pool;
use crate::configuration::{Configuration, Observer, Peer};
use crate::connection::{ConnectionInfo, Registry};
use crate::limits::Limits;
use crate::question::{Answer, Answers, Question};
use crate::resource::Resource;
use crate::service::Discovery;
use crate::session::Generation;
use crate::turns::Turns;
use crate::type_url::TypeUrl;

/// What all streams share.
pub(crate) struct Shared<C> {
    pub(crate) config: Arc<C>,
    pub(crate) limits: Limits,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) admission: Admission,
    pub(crate) permits: Semaphore,
    /// As many as may compute at once. More than cores would be no faster, and each thread keeps memory of its own.
    pub(crate) computing: Arc<Semaphore>,
    /// Whose long response goes out next.
    pub(crate) turns: Turns,
    pub(crate) registry: Registry,
    pub(crate) pool: Arc<Pool>,
    pub(crate) drain: watch::Sender<bool>,
    answers: OnceLock<Arc<dyn Answers>>,
    streams: AtomicU32,
    ids: AtomicU64,
    /// Makes nonces of this process differ from those of another.
    salt: u32,
    /// When the newest generation was first seen.
    changed: Mutex<(Generation, Instant)>,
}

/// A place among the streams; given back when dropped.
pub(crate) struct Place<C>(Arc<Shared<C>>);

impl<C> Drop for Place<C> {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<C> Shared<C> {
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Place<C>> {
        let before = self.streams.fetch_add(1, Ordering::Relaxed);
        let place = Place(self.clone());
        (before < self.limits.max_concurrent_streams).then_some(place)
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn stream_nonce(&self, id: u64) -> u32 {
        self.salt.wrapping_add(id as u32)
    }

    /// Answers a question, or says why not.
    pub(crate) async fn answer(&self, question: Question, peer: &Peer) -> Result<Answer, Status> {
        match self.answers.get() {
            Some(answers) => answers.answer(question, peer.clone()).await,
            None => Err(Status::invalid_argument(format!(
                "unknown type {}",
                question.type_url
            ))),
        }
    }

    /// When a generation was first seen by any stream; all wake at once, so that this is about when it was made.
    pub(crate) fn changed_at(&self, generation: Generation) -> Instant {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        if changed.0 < generation {
            *changed = (generation, Instant::now());
        }
        changed.1
    }
}

/// Serves a configuration to proxies. A handle: clones serve the same streams.
pub struct Server<C> {
    pub(crate) shared: Arc<Shared<C>>,
}

impl<C> Clone for Server<C> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<C> std::fmt::Debug for Server<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

impl<C: Configuration> Server<C> {
    /// A server that accepts nothing yet.
    pub fn new(config: Arc<C>, limits: Limits, observer: Arc<dyn Observer>) -> Self {
        let shared = Shared {
            admission: Admission::new(&limits),
            permits: Semaphore::new(limits.push_throttle.clamp(1, Semaphore::MAX_PERMITS)),
            computing: Arc::new(Semaphore::new(limits.cores.max(1))),
            turns: Turns::new(limits.cores),
            registry: Registry::default(),
            pool: Arc::default(),
            drain: watch::Sender::new(false),
            answers: OnceLock::new(),
            streams: AtomicU32::new(0),
            ids: AtomicU64::new(0),
            salt: rand::random(),
            changed: Mutex::new((Generation(0), Instant::now())),
            config,
            limits,
            observer,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Who answers questions from now on; without, their types are unknown. Only the first one counts.
    pub fn answer_questions(&self, answers: Arc<dyn Answers>) {
        let _ = self.shared.answers.set(answers);
    }

    /// The streams of admitted proxies.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.shared.registry.infos()
    }

    /// What the newest stream of a node was sent and still wants, per type.
    pub fn held(&self, node_id: &str) -> Option<BTreeMap<TypeUrl, Vec<Arc<Resource>>>> {
        self.shared.registry.held(node_id)
    }

    /// Whether somebody is being sent much, as who connects is.
    pub fn is_busy(&self) -> bool {
        self.shared.turns.are_taken()
    }

    /// How much is written to a connection at once.
    pub const MOST_WRITTEN: usize = crate::cork::MOST;

    /// Speaks HTTP/2 on a connection of the caller's own until its end, which comes soon once `stopped` changes. What it
    /// writes is collected, and a client that takes nothing is cut off.
    pub async fn speak<S, T, B>(
        &self,
        stream: S,
        address: Option<SocketAddr>,
        service: T,
        stopped: watch::Receiver<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: Service<http::Request<Incoming>, Response = http::Response<B>> + Clone + Send + 'static,
        T::Error: Into<BoxError>,
        T::Future: Send + 'static,
        B: http_body::Body<Error: Into<BoxError>, Data: Send> + Send + 'static,
    {
        crate::accept::speak(&self.shared.limits, stream, address, service, stopped).await;
    }

    /// The gRPC service, for a connection of the caller's own.
    pub fn service(&self) -> Discovery<C> {
        Discovery::new(self.shared.clone())
    }

    /// Ends all streams within [`Limits::drain_period`], spread over it. [`Server::serve`] does it on shutdown.
    pub fn drain(&self) {
        self.shared.drain.send_replace(true);
    }

    /// Accepts plaintext connections until `shutdown` resolves, then drains. Returns when all connections are closed.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()> + Send) {
        crate::accept::serve(self, listener, shutdown).await;
    }
}
