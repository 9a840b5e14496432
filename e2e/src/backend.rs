//! A tiny HTTP server that says who it is and what it was asked.

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::http::Message;
use crate::net::Net;

/// How often a connection without requests looks whether it should end.
const IDLE: Duration = Duration::from_millis(100);
/// How long a request may take to arrive once it has begun.
const READ: Duration = Duration::from_secs(10);

/// Who a backend says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `catalog`
    pub service: String,
    /// `v1`
    pub version: String,
    /// The pod.
    pub instance: String,
}

impl Identity {
    /// Service, version and pod.
    pub fn new(service: &str, version: &str, instance: &str) -> Self {
        Self {
            service: service.to_owned(),
            version: version.to_owned(),
            instance: instance.to_owned(),
        }
    }
}

/// Adds to the answer what a backend found out itself, for example by calling others; an error makes it a 502.
pub type Extra = dyn Fn(&Message) -> Result<Value> + Send + Sync;

/// A listener with a thread for each connection. Dropping it closes both.
pub struct Backend {
    net: Net,
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    identity: Identity,
    extra: Option<Box<Extra>>,
    stopped: AtomicBool,
    requests: AtomicU64,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend")
            .field("identity", &self.shared.identity)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Backend {
    /// A backend that echoes.
    pub fn start(net: &Net, address: impl Into<SocketAddr>, identity: Identity) -> Result<Self> {
        Self::start_with(net, address, identity, None)
    }

    /// A backend that echoes and adds `extra`.
    pub fn start_with(
        net: &Net,
        address: impl Into<SocketAddr>,
        identity: Identity,
        extra: Option<Box<Extra>>,
    ) -> Result<Self> {
        let address = address.into();
        let listener = net
            .bind(address)
            .with_context(|| format!("backend {}: bind {address}", identity.instance))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            identity,
            extra,
            stopped: AtomicBool::new(false),
            requests: AtomicU64::new(0),
        });
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Ok(Self {
            net: net.clone(),
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests it answered.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Accept has no time-out; a connection of our own wakes it.
        let _woken = self.net.connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ended = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        // An error on one connection is its peer's doing.
        std::thread::spawn(move || serve(stream, &shared));
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while !shared.stopped.load(Ordering::Relaxed) {
        // Waiting for a first byte apart from reading: the short time-out must never cut a request in two.
        if reader.buffer().is_empty() {
            reader.get_ref().set_read_timeout(Some(IDLE))?;
            match reader.get_ref().peek(&mut [0]) {
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            }
            reader.get_ref().set_read_timeout(Some(READ))?;
        }
        let Some(request) = Message::read(&mut reader)? else {
            return Ok(());
        };
        shared.requests.fetch_add(1, Ordering::Relaxed);
        answer(&request, shared).write(reader.get_mut())?;
        if request.closes() {
            return Ok(());
        }
    }
    Ok(())
}

fn answer(request: &Message, shared: &Shared) -> Message {
    let Identity {
        service,
        version,
        instance,
    } = &shared.identity;
    let mut words = request.first.split(' ');
    let mut body = json!({
        "service": service,
        "version": version,
        "instance": instance,
        "method": words.next(),
        "path": words.next(),
        "headers": request.headers,
    });
    let mut first = "HTTP/1.1 200 OK";
    match shared.extra.as_ref().map(|extra| extra(request)) {
        None => {}
        Some(Ok(extra)) => body["extra"] = extra,
        Some(Err(error)) => {
            first = "HTTP/1.1 502 Bad Gateway";
            body["error"] = format!("{error:#}").into();
        }
    }
    Message {
        first: first.to_owned(),
        headers: [("content-type".to_owned(), "application/json".to_owned())].into(),
        body: body.to_string().into_bytes(),
    }
}
