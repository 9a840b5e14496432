//! The plaintext transport: accepts TCP connections and speaks HTTP/2 on them; and how any connection is served.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt};

use crate::configuration::Configuration;
use crate::cork::cork;
use crate::limits::Limits;
use crate::server::Server;
use crate::service::PeerAddress;

/// What HTTP/2 may take of a response before the client has. Less wakes the task that makes the response more often; more are
/// copies of what all share, times the clients that connect at once. A part in the queue takes a place in a list that never
/// shrinks: this is two of them.
const MOST_BUFFERED: usize = 128 * 1024;

/// How many connections may wait to be accepted, if the system allows as many. Those that find no room are not refused: they
/// try again after one second, then after two and four more, while nobody knows of them.
const BACKLOG: u32 = 16 * 1024;

/// Listens with room for all proxies of a mesh at once.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How connections speak HTTP/2, here and wherever else streams are served.
pub fn http2(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_concurrent_streams)
        .keep_alive_interval(limits.keepalive_interval)
        .keep_alive_timeout(limits.keepalive_timeout)
        .max_send_buf_size(MOST_BUFFERED)
        .max_header_list_size(64 * 1024);
    builder
}

/// Cuts a connection. A client that reads nothing cannot be told so: what the transport buffers for it is freed only by
/// dropping the connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    streams: Arc<AtomicUsize>,
    cut: Arc<Notify>,
}

impl Cut {
    /// Cuts the connection unless it carried more than one stream: the others may well be read.
    pub(crate) fn cut_if_alone(&self) {
        if self.streams.load(Ordering::Relaxed) <= 1 {
            self.cut.notify_one();
        }
    }
}

pub(crate) async fn serve<C: Configuration>(
    server: &Server<C>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(server.clone(), stream, stopped.clone()));
                }
                Err(error) => {
                    // Out of descriptors, or a client that left at once: trying again at once would only burn the CPU.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop(listener);
    server.drain();
    let _ = stop.send(true);
    let limits = &server.shared.limits;
    let closed = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.drain_period + limits.drain_grace, closed)
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "connections did not close in time"
        );
        connections.shutdown().await;
    }
}

async fn connection<C: Configuration>(
    server: Server<C>,
    stream: TcpStream,
    stopped: watch::Receiver<bool>,
) {
    let address = stream.peer_addr().ok();
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let limits = &server.shared.limits;
    speak(limits, stream, address, server.service(), stopped).await;
}

/// Speaks HTTP/2 on a connection until its end, which comes soon once `stopped` changes.
pub(crate) async fn speak<S, T, B>(
    limits: &Limits,
    stream: S,
    address: Option<SocketAddr>,
    service: T,
    mut stopped: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: Service<http::Request<Incoming>, Response = http::Response<B>> + Clone + Send + 'static,
    T::Error: Into<BoxError>,
    T::Future: Send + 'static,
    B: http_body::Body<Error: Into<BoxError>, Data: Send> + Send + 'static,
{
    let cut = Cut::default();
    let service = {
        let cut = cut.clone();
        service.map_request(move |mut request: http::Request<Incoming>| {
            cut.streams.fetch_add(1, Ordering::Relaxed);
            request.extensions_mut().insert(cut.clone());
            if let Some(address) = address {
                request.extensions_mut().insert(PeerAddress(address));
            }
            request
        })
    };
    let (stream, uncork) = cork(stream);
    let connection =
        http2(limits).serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    loop {
        tokio::select! {
            ended = poll_fn(|cx| uncork.poll(connection.as_mut(), cx)) => {
                match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(?address, %error, "connection failed"),
                    Err(error) => tracing::debug!(?address, %error, "connection lost"),
                }
                return;
            }
            () = cut.cut.notified() => {
                tracing::info!(?address, "connection cut: the client takes nothing of what is sent");
                return;
            }
            _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
    }
}
