//! xDS over TLS, with a certificate from files. Renewed files are taken up without a restart.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pilotfish_xds::{PeerAddress, Server};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tower::ServiceExt as _;

use crate::plane::Plane;
use crate::settings::{Push, Secure};

const HANDSHAKE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The certificate in use. Owned by the accepting task.
pub(crate) struct Certificate {
    files: Secure,
    acceptor: TlsAcceptor,
    stamp: Stamp,
    looked: Instant,
}

/// When the two files were written.
type Stamp = [Option<SystemTime>; 2];

impl Certificate {
    /// Reads the files; the error names the one that cannot be used.
    pub(crate) fn load(files: Secure) -> Result<Self> {
        let stamp = stamp(&files);
        let acceptor = acceptor(&files)?;
        Ok(Self {
            files,
            acceptor,
            stamp,
            looked: Instant::now(),
        })
    }

    /// The certificate for the next connection. A pair that cannot be used, half-written perhaps, leaves the last one.
    fn current(&mut self) -> TlsAcceptor {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let stamp = stamp(&self.files);
            if stamp != self.stamp {
                match acceptor(&self.files) {
                    Ok(acceptor) => {
                        tracing::info!(target: "ads", "certificate read again from {}", self.files.certificate.display());
                        self.acceptor = acceptor;
                        self.stamp = stamp;
                    }
                    Err(error) => {
                        tracing::warn!(target: "ads", "certificate not renewed: {error:#}");
                    }
                }
            }
        }
        self.acceptor.clone()
    }
}

fn stamp(files: &Secure) -> Stamp {
    [&files.certificate, &files.key].map(|path| {
        std::fs::metadata(path)
            .and_then(|meta| meta.modified())
            .ok()
    })
}

fn acceptor(files: &Secure) -> Result<TlsAcceptor> {
    let shown = |path: &Path| path.display().to_string();
    let certificate = shown(&files.certificate);
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("--tls-cert-file {certificate}: not a PEM certificate chain"))?;
    if chain.is_empty() {
        bail!("--tls-cert-file {certificate}: there is no certificate in it");
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).with_context(|| {
        format!(
            "--tls-key-file {}: not a PEM private key",
            shown(&files.key)
        )
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| {
            format!(
                "--tls-key-file {} does not fit {certificate}",
                shown(&files.key)
            )
        })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts TLS connections until `stop` resolves, then drains for as long as the caller waits.
pub(crate) async fn serve(
    server: Server<Plane>,
    listener: TcpListener,
    mut certificate: Certificate,
    limits: Push,
    stop: impl Future<Output = ()>,
) {
    let (tell, told) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(server.clone(), stream, certificate.current(), limits, told.clone()));
                }
                Err(error) => {
                    // Out of descriptors, most likely: do not spin.
                    tracing::warn!(target: "ads", %error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop(listener);
    server.drain();
    tell.send_replace(true);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    server: Server<Plane>,
    stream: TcpStream,
    acceptor: TlsAcceptor,
    limits: Push,
    mut told: watch::Receiver<bool>,
) {
    let address = stream.peer_addr().ok();
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(target: "ads", %error, "cannot set TCP_NODELAY");
    }
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::info!(target: "ads", peer = address.map(tracing::field::display), "TLS handshake failed: {error}");
            return;
        }
        Err(_) => {
            tracing::info!(target: "ads", peer = address.map(tracing::field::display), "TLS handshake took too long");
            return;
        }
    };
    let service = server.service().map_request(
        move |mut request: axum::http::Request<hyper::body::Incoming>| {
            if let Some(address) = address {
                request.extensions_mut().insert(PeerAddress(address));
            }
            request
        },
    );
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .keep_alive_interval(limits.keepalive_interval)
        .keep_alive_timeout(limits.keepalive_timeout)
        .max_header_list_size(64 * 1024);
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    loop {
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(target: "ads", ?address, %error, "connection failed");
                }
                return;
            }
            _ = told.changed() => connection.as_mut().graceful_shutdown(),
        }
    }
}
