//! Backends that say what they saw, keep count of it, and fail when they are told to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::certificates::Certificates;
use super::scenario::Behaviour;

/// The header that says which step a request belongs to. Proxies pass it on, also with retries and mirrors.
pub(super) const STEP: &str = "x-test-step";
const PROXY_V1: &[u8] = b"PROXY ";
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// All backends of a scenario. Dropping it closes their sockets.
#[derive(Debug)]
pub(super) struct Upstreams {
    shared: Arc<Shared>,
    // Its tasks are the servers.
    runtime: Runtime,
}

#[derive(Debug)]
struct Shared {
    certificates: Arc<Certificates>,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// Step, upstream, what it saw.
    seen: BTreeMap<String, BTreeMap<String, Vec<Value>>>,
    behaviour: BTreeMap<String, Behaviour>,
}

/// What is known about a connection before its first request.
#[derive(Clone, Debug)]
struct Connection {
    upstream: Arc<str>,
    port: Option<u16>,
    proxy_protocol: Option<String>,
    tls: Option<Value>,
    /// Where the client of a forward proxy wanted to go.
    tunnel: Option<String>,
}

impl Upstreams {
    /// None yet.
    pub(super) fn new(certificates: Arc<Certificates>) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("a runtime for the upstreams")?;
        let shared = Arc::new(Shared {
            certificates,
            book: Mutex::default(),
        });
        Ok(Self { shared, runtime })
    }

    /// Serves a listener under a name, in plain text or over TLS.
    pub(super) fn serve(
        &self,
        name: &str,
        listener: std::net::TcpListener,
        tls: Option<Arc<ServerConfig>>,
    ) -> Result<()> {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let _inside = self.runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        let (shared, upstream) = (Arc::clone(&self.shared), Arc::from(name));
        let acceptor = tls.map(TlsAcceptor::from);
        self.runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = Connection {
                    upstream: Arc::clone(&upstream),
                    port: Some(port),
                    proxy_protocol: None,
                    tls: None,
                    tunnel: None,
                };
                // An error on one connection is its peer's doing.
                tokio::spawn(greet(
                    stream,
                    acceptor.clone(),
                    connection,
                    Arc::clone(&shared),
                ));
            }
        });
        Ok(())
    }

    /// Serves a unix socket under a name.
    pub(super) fn serve_unix(&self, name: &str, path: &Path) -> Result<()> {
        let _inside = self.runtime.enter();
        let listener =
            UnixListener::bind(path).with_context(|| format!("bind {}", path.display()))?;
        let (shared, upstream) = (Arc::clone(&self.shared), Arc::from(name));
        self.runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = Connection {
                    upstream: Arc::clone(&upstream),
                    port: None,
                    proxy_protocol: None,
                    tls: None,
                    tunnel: None,
                };
                tokio::spawn(http(stream, connection, Arc::clone(&shared)));
            }
        });
        Ok(())
    }

    /// From now on, upstreams behave like this, and all others as usual.
    pub(super) fn behave(&self, behaviour: BTreeMap<String, Behaviour>) {
        self.shared.book().behaviour = behaviour;
    }

    /// What each upstream saw of a step.
    pub(super) fn seen(&self, step: &str) -> BTreeMap<String, Vec<Value>> {
        self.shared
            .book()
            .seen
            .get(step)
            .cloned()
            .unwrap_or_default()
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no panic while the book is open")
    }
}

/// Reads what comes before HTTP: the PROXY protocol, and the handshake.
async fn greet(
    mut stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    mut connection: Connection,
    shared: Arc<Shared>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    connection.proxy_protocol = preamble(&mut stream).await?;
    let Some(acceptor) = acceptor else {
        return http(stream, connection, shared).await;
    };
    let stream = acceptor.accept(stream).await?;
    let state = stream.get_ref().1;
    connection.tls = Some(json!({
        "sni": state.server_name(),
        "certificate": shared.certificates.name_of(state.peer_certificates()),
    }));
    http(stream, connection, shared).await
}

/// The version and the client's address of the PROXY protocol, if the connection begins with it.
async fn preamble(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut start = [0; 16];
    let mut length = 0;
    // Everything that clients send here is longer than that; a connection without a byte ends here.
    while length < PROXY_V2.len() {
        let peeked = stream.peek(&mut start).await?;
        if peeked == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if peeked == length {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        length = peeked;
    }
    if start.starts_with(PROXY_V1) {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            line.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        let source = line.split(' ').nth(2).unwrap_or_default();
        return Ok(Some(format!("v1 {source}")));
    }
    if start.starts_with(PROXY_V2) {
        let mut header = [0; 16];
        stream.read_exact(&mut header).await?;
        let mut rest = vec![0; usize::from(u16::from_be_bytes([header[14], header[15]]))];
        stream.read_exact(&mut rest).await?;
        let source: Vec<String> = rest.iter().take(4).map(u8::to_string).collect();
        return Ok(Some(format!("v2 {}", source.join("."))));
    }
    Ok(None)
}

async fn http<S>(stream: S, connection: Connection, shared: Arc<Shared>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let (connection, shared) = (connection.clone(), Arc::clone(&shared));
        async move {
            if request.method() == Method::CONNECT {
                return Ok(tunnel(request, connection, shared));
            }
            answer(request, &connection, &shared).await
        }
    });
    auto::Builder::new(TokioExecutor::new())
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

/// Plays the forward proxy and, in the tunnel, the server behind it.
fn tunnel(
    request: Request<Incoming>,
    mut connection: Connection,
    shared: Arc<Shared>,
) -> Response<Full<Bytes>> {
    connection.tunnel = Some(request.uri().to_string());
    // A future that serves may not contain itself: it is boxed.
    let served: Pin<Box<dyn Future<Output = io::Result<()>> + Send>> = Box::pin(async move {
        let stream = hyper::upgrade::on(request)
            .await
            .map_err(io::Error::other)?;
        http(TokioIo::new(stream), connection, shared).await
    });
    tokio::spawn(served);
    Response::default()
}

async fn answer(
    request: Request<Incoming>,
    connection: &Connection,
    shared: &Shared,
) -> io::Result<Response<Full<Bytes>>> {
    let report = report(&request, connection);
    let step = request
        .headers()
        .get(STEP)
        .and_then(|step| step.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    // The whole request has arrived before it counts.
    let _body = request
        .into_body()
        .collect()
        .await
        .map_err(io::Error::other)?;
    let behaviour = shared
        .book()
        .note(step, &connection.upstream, report.clone());
    if behaviour.delay > 0.0 {
        tokio::time::sleep(Duration::from_secs_f64(behaviour.delay)).await;
    }
    if behaviour.close {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let mut response = Response::new(Full::new(Bytes::from(report.to_string())));
    *response.status_mut() = behaviour
        .status
        .and_then(|status| StatusCode::from_u16(status).ok())
        .unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    for (name, value) in &behaviour.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
            headers.insert(name, value);
        }
    }
    Ok(response)
}

impl Book {
    /// Writes down a request, and says how it is to be answered.
    fn note(&mut self, step: String, upstream: &str, report: Value) -> Behaviour {
        let seen = self
            .seen
            .entry(step)
            .or_default()
            .entry(upstream.to_owned())
            .or_default();
        seen.push(report);
        let mut behaviour = self.behaviour.get(upstream).cloned().unwrap_or_default();
        if behaviour.first.is_some_and(|first| seen.len() > first) {
            let headers = std::mem::take(&mut behaviour.headers);
            behaviour = Behaviour {
                headers,
                ..Behaviour::default()
            };
        }
        behaviour
    }
}

fn report(request: &Request<Incoming>, connection: &Connection) -> Value {
    let mut headers = Map::new();
    for (name, value) in request.headers() {
        let value = String::from_utf8_lossy(value.as_bytes());
        let joined = match headers.get(name.as_str()).and_then(Value::as_str) {
            Some(first) => format!("{first},{value}"),
            None => value.into_owned(),
        };
        headers.insert(name.to_string(), joined.into());
    }
    let uri = request.uri();
    let authority = uri.authority().map(|authority| json!(authority.as_str()));
    let tls = connection.tls.as_ref();
    json!({
        "upstream": *connection.upstream,
        "port": connection.port,
        "method": request.method().as_str(),
        "path": uri.path_and_query().map(ToString::to_string),
        "host": authority.or_else(|| headers.get("host").cloned()),
        "protocol": format!("{:?}", request.version()),
        "transport": if tls.is_some() { "tls" } else { "plain" },
        "sni": tls.map(|tls| &tls["sni"]),
        "certificate": tls.map(|tls| &tls["certificate"]),
        "proxy-protocol": connection.proxy_protocol,
        "tunnel": connection.tunnel,
        "headers": headers,
    })
}
