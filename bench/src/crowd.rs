//! Many proxies at once, each on a connection of its own, and what reached them when.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http::uri::PathAndQuery;
use pilotfish_protos::envoy::config::core::v3::Node;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::transport::Endpoint;

use crate::limit::{Recorded, Recording};
use crate::proxy::{self, Library, Session};
use crate::wire::{Mode, Raw, Type};

/// What a proxy that lost its stream waits before it tries again: Envoy's shortest and longest pause.
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(8);
/// Flow control as Envoy asks for it.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 24 << 20;
const POLL: Duration = Duration::from_millis(10);
/// So many failures are said in words.
const COMPLAINTS: u64 = 3;

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// A phase has ended when nothing arrived for this long and everybody expected was reached,
    pub settle: Duration,
    /// or when nothing arrived for this long,
    pub patience: Duration,
    /// or after this.
    pub longest: Duration,
}

/// What one proxy saw since the window began.
#[derive(Debug)]
pub struct Meter {
    /// The namespace it lives in.
    pub namespace: usize,
    /// Nanoseconds of the crowd's clock when the last message came; 0 if none.
    last: AtomicU64,
    synced: AtomicBool,
}

impl Meter {
    /// Whether something came.
    pub fn is_reached(&self) -> bool {
        self.last.load(Ordering::Relaxed) != 0
    }

    /// Whether it has all that it asked for.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }
}

/// What all proxies got, by type, since they began to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages.
    pub messages: [u64; 5],
    /// Their bytes.
    pub bytes: [u64; 5],
    /// Streams that a proxy opened after its first.
    pub reconnects: u64,
    /// Streams that ended before anything came.
    pub refused: u64,
}

impl Counts {
    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: &[u64; 5], then: &[u64; 5]| std::array::from_fn(|i| now[i] - then[i]);
        Self {
            messages: less(&self.messages, &earlier.messages),
            bytes: less(&self.bytes, &earlier.bytes),
            reconnects: self.reconnects - earlier.reconnects,
            refused: self.refused - earlier.refused,
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    messages: [AtomicU64; 5],
    bytes: [AtomicU64; 5],
    reconnects: AtomicU64,
    refused: AtomicU64,
    /// When the last message of all came.
    last: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    mode: Mode,
    address: SocketAddr,
    epoch: Instant,
    meters: Vec<Meter>,
    tally: Tally,
    library: Library,
    /// What the first proxy of each namespace got; none after somebody took it.
    recording: Mutex<Option<Recording>>,
    recorders: usize,
}

/// Connected proxies. They go when it is dropped.
#[derive(Debug)]
pub struct Crowd {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

impl Crowd {
    /// Connects all at once.
    pub fn connect(
        address: SocketAddr,
        mode: Mode,
        proxies: usize,
        namespaces: usize,
    ) -> Result<Self> {
        let nodes: Vec<Node> = (0..proxies)
            .map(|index| proxy::node(index, namespaces))
            .collect::<Result<_>>()?;
        let meter = |index| Meter {
            namespace: index % namespaces.max(1),
            last: AtomicU64::new(0),
            synced: AtomicBool::new(false),
        };
        let shared = Arc::new(Shared {
            mode,
            address,
            epoch: Instant::now(),
            meters: (0..proxies).map(meter).collect(),
            tally: Tally::default(),
            library: Library::default(),
            recording: Mutex::new(Some(Recording::default())),
            recorders: namespaces,
        });
        let mut tasks = JoinSet::new();
        for (index, node) in nodes.into_iter().enumerate() {
            tasks.spawn(live(shared.clone(), index, node));
        }
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }

    /// Begins a window: what came before is forgotten.
    pub fn begin(&self) {
        for meter in &self.shared.meters {
            meter.last.store(0, Ordering::Relaxed);
        }
    }

    /// When they began to connect.
    pub fn began(&self) -> Instant {
        self.shared.epoch
    }

    /// Waits for the end of a window: see [`Waits`]. `there` says whether a proxy has what it should.
    pub async fn settle(
        &self,
        start: Instant,
        expected: usize,
        there: impl Fn(&Meter) -> bool,
        waits: &Waits,
    ) {
        loop {
            tokio::time::sleep(POLL).await;
            let last = Duration::from_nanos(self.shared.tally.last.load(Ordering::Relaxed));
            let quiet = (self.shared.epoch + last).max(start).elapsed();
            let all = self.count(&there) >= expected;
            if (all && quiet >= waits.settle)
                || quiet >= waits.patience
                || start.elapsed() >= waits.longest
            {
                return;
            }
        }
    }

    /// How many proxies are so.
    pub fn count(&self, so: impl Fn(&Meter) -> bool) -> usize {
        self.shared.meters.iter().filter(|m| so(m)).count()
    }

    /// Milliseconds from `start` to the last message of each proxy that got one.
    pub fn delays(&self, start: Instant) -> Vec<f64> {
        let at = |meter: &Meter| {
            let last = Duration::from_nanos(meter.last.load(Ordering::Relaxed));
            (self.shared.epoch + last)
                .saturating_duration_since(start)
                .as_secs_f64()
                * 1000.0
        };
        let reached = self.shared.meters.iter().filter(|m| m.is_reached());
        reached.map(at).collect()
    }

    /// Everything so far.
    pub fn counts(&self) -> Counts {
        let tally = &self.shared.tally;
        let all = |of: &[AtomicU64; 5]| std::array::from_fn(|i| of[i].load(Ordering::Relaxed));
        Counts {
            messages: all(&tally.messages),
            bytes: all(&tally.bytes),
            reconnects: tally.reconnects.load(Ordering::Relaxed),
            refused: tally.refused.load(Ordering::Relaxed),
        }
    }

    /// What one proxy of each namespace got until now. Nothing is recorded from here on.
    pub fn take_recording(&self) -> Recording {
        let mut recording = lock(&self.shared.recording);
        recording.take().unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A proxy: connects, and connects again whenever its stream ends.
async fn live(shared: Arc<Shared>, index: usize, node: Node) {
    let mut pause = SHORTEST;
    loop {
        let mut served = false;
        if let Err(status) = stream(&shared, index, node.clone(), &mut served).await {
            let before = if served {
                shared.tally.reconnects.load(Ordering::Relaxed)
            } else {
                shared.tally.refused.fetch_add(1, Ordering::Relaxed)
            };
            if before < COMPLAINTS {
                eprintln!("proxy {index}: {:?}: {}", status.code(), status.message());
            }
        }
        pause = if served {
            SHORTEST
        } else {
            (pause * 2).min(LONGEST)
        };
        tokio::time::sleep(pause).await;
        shared.tally.reconnects.fetch_add(1, Ordering::Relaxed);
    }
}

async fn stream(
    shared: &Shared,
    index: usize,
    node: Node,
    served: &mut bool,
) -> Result<(), Status> {
    let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let channel = Endpoint::from_shared(format!("http://{}", shared.address))
        .map_err(unavailable)?
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect()
        .await
        .map_err(unavailable)?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
    client.ready().await.map_err(unavailable)?;
    let (requests, outgoing) = mpsc::unbounded_channel();
    let (mut session, first) = Session::open(shared.mode, node);
    let _ = requests.send(first);
    let path = PathAndQuery::from_static(shared.mode.path());
    let outgoing = tonic::Request::new(UnboundedReceiverStream::new(outgoing));
    let mut responses = client.streaming(outgoing, path, Raw).await?.into_inner();
    while let Some(message) = responses.message().await? {
        let now = shared.epoch.elapsed().as_nanos() as u64;
        *served = true;
        let Some((kind, answers)) = session.receive(&message, &shared.library) else {
            continue;
        };
        for answer in answers {
            let _ = requests.send(answer);
        }
        shared.take(index, kind, &message, now);
        if session.is_synced() {
            shared.meters[index].synced.store(true, Ordering::Relaxed);
        }
    }
    Ok(())
}

impl Shared {
    fn take(&self, index: usize, kind: Type, message: &Bytes, now: u64) {
        if index < self.recorders
            && let Some(recording) = &mut *lock(&self.recording)
        {
            recording.messages.push(Recorded {
                namespace: crate::mesh::namespace(self.meters[index].namespace),
                kind: kind.url().into(),
                message: Bytes::copy_from_slice(message),
            });
        }
        self.tally.messages[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.tally.bytes[kind as usize].fetch_add(message.len() as u64, Ordering::Relaxed);
        self.tally.last.fetch_max(now, Ordering::Relaxed);
        self.meters[index]
            .last
            .fetch_max(now.max(1), Ordering::Relaxed);
    }
}
