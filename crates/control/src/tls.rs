//! xDS over TLS, with a certificate from files. Renewed files are taken up without a restart.
//!
//! A client may show a certificate of its own. If the authority it comes from is trusted (`--ca-cert-file`), the
//! SPIFFE name in it is the client's identity. Without one, and where a cluster is read, it may show the token of a service
//! account. A client that shows neither is served, but no secrets.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use axum::http::header::AUTHORIZATION;
use pilotfish_xds::Server;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tower::ServiceExt as _;

use crate::identity::Identity;
use crate::plane::Plane;
use crate::settings::Secure;
use crate::tokens::Tokens;

const HANDSHAKE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Left with every request that came over TLS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encrypted;

/// The certificate in use. Owned by the accepting task.
pub(crate) struct Certificate {
    files: Secure,
    acceptor: TlsAcceptor,
    stamp: Stamp,
    looked: Instant,
}

/// When the files were written.
type Stamp = [Option<SystemTime>; 3];

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
    [
        Some(&files.certificate),
        Some(&files.key),
        files.client_roots.as_ref(),
    ]
    .map(|path| {
        std::fs::metadata(path?)
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
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match &files.client_roots {
        Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).with_context(|| {
        format!(
            "--tls-key-file {} does not fit {certificate}",
            shown(&files.key)
        )
    })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Checks certificates of clients that show one.
fn verifier(path: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>> {
    let flag = || format!("--ca-cert-file {}", path.display());
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("{}: not PEM certificates", flag()))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate)
            .with_context(|| format!("{}: a certificate cannot be used", flag()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
        .with_context(flag)
}

/// Accepts TLS connections until `stop` resolves, then drains for as long as the caller waits.
pub(crate) async fn serve(
    server: Server<Plane>,
    listener: TcpListener,
    mut certificate: Certificate,
    tokens: Option<Arc<Tokens>>,
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
                    let (server, acceptor) = (server.clone(), certificate.current());
                    let (tokens, told) = (tokens.clone(), told.clone());
                    connections.spawn(connection(server, stream, acceptor, tokens, told));
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
    tokens: Option<Arc<Tokens>>,
    told: watch::Receiver<bool>,
) {
    let address = stream.peer_addr().ok();
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(target: "ads", %error, "cannot set TCP_NODELAY");
    }
    let mut stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
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
    // What is written at once is to be encrypted and sent at once; otherwise 64 kB are.
    let session = stream.get_mut().1;
    session.set_buffer_limit(Some(Server::<Plane>::MOST_WRITTEN));
    let certificates = stream.get_ref().1.peer_certificates();
    let identity = certificates.and_then(|chain| Identity::of_certificate(chain.first()?));
    let service = server.service();
    let service = tower::service_fn(
        move |mut request: axum::http::Request<hyper::body::Incoming>| {
            let service = service.clone();
            let (identity, tokens) = (identity.clone(), tokens.clone());
            async move {
                let identity = match (identity, tokens) {
                    (None, Some(tokens)) => match tokens.identify(request.headers()).await {
                        Ok(identity) => identity,
                        Err(status) => {
                            tracing::info!(target: "ads", peer = address.map(tracing::field::display), "{}", status.message());
                            return Ok(status.into_http());
                        }
                    },
                    (identity, _) => identity,
                };
                // The stream may last for long; the token is of no use to it.
                request.headers_mut().remove(AUTHORIZATION);
                request.extensions_mut().insert(Encrypted);
                if let Some(identity) = identity {
                    request.extensions_mut().insert(identity);
                }
                service.oneshot(request).await
            }
        },
    );
    server.speak(stream, address, service, told).await;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use hyper_util::rt::TokioIo;
    use pilotfish_config::{Change, Store, parse};
    use pilotfish_protos::envoy::config::core::v3::Node;
    use pilotfish_protos::envoy::service::discovery::v3 as discovery;
    use pilotfish_protos::json::from_json;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::ClientConfig;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tonic::transport::{Channel, Endpoint, Uri};

    use super::*;
    use crate::metrics::Metrics;
    use crate::nodes::Nodes;
    use crate::readiness::Readiness;

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A certificate and its key, in PEM.
    fn issue(by: &Authority, name: SanType) -> (String, String) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        let key = KeyPair::generate().unwrap();
        (
            params.signed_by(&key, by).unwrap().pem(),
            key.serialize_pem(),
        )
    }

    fn workload(namespace: &str) -> SanType {
        let uri = format!("spiffe://cluster.local/ns/{namespace}/sa/gate");
        SanType::URI(uri.try_into().unwrap())
    }

    /// A control plane with one Secret, behind TLS.
    async fn start(authority: &Authority) -> SocketAddr {
        let metrics = Arc::new(Metrics::new(Instant::now()));
        let nodes = Arc::new(Nodes::new(Arc::clone(&metrics)));
        let plane = Arc::new(Plane::new(
            pilotfish_mesh::Settings::default(),
            Readiness::waiting_for([]),
            metrics,
            Arc::clone(&nodes),
            crate::settings::Treatment::default(),
        ));
        let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: web, namespace: edge}\nstringData: {tls.crt: c, tls.key: k}\n";
        let mut store = Store::new();
        let source = store.register("test");
        let objects = parse::documents(secret, "test.yaml").objects;
        let applied = store.apply(source, objects.into_iter().map(Change::upsert).collect());
        plane.apply(applied.snapshot, &applied.changed);
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (chain, key) = issue(authority, SanType::DnsName("localhost".try_into().unwrap()));
        let certificate = Certificate::load(Secure {
            address: crate::address::Address::parse("127.0.0.1:0", "test")
                .unwrap()
                .unwrap(),
            certificate: write("chain.pem", &chain),
            key: write("key.pem", &key),
            client_roots: Some(write("roots.pem", &authority.pem())),
        })
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::new(plane, pilotfish_xds::Limits::default(), nodes);
        tokio::spawn(serve(
            server,
            listener,
            certificate,
            None,
            std::future::pending(),
        ));
        address
    }

    /// A channel that shows this certificate.
    async fn channel(
        address: SocketAddr,
        authority: &Authority,
        own: Option<(String, String)>,
    ) -> Result<Channel, tonic::transport::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match own {
            Some((chain, key)) => {
                let chain = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![chain], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let connect = tower::service_fn(move |_: Uri| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::try_from("localhost").unwrap();
                Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
            }
        });
        Endpoint::from_static("http://localhost")
            .connect_with_connector(connect)
            .await
    }

    /// The names of the secrets that a gateway in `edge` is given over this channel.
    async fn secrets(channel: Channel) -> Result<Vec<String>, tonic::Status> {
        let node = serde_json::json!({
            "id": "router~10.0.0.1~gate.edge~edge.svc.cluster.local",
            "metadata": {"NAMESPACE": "edge", "SERVICE_ACCOUNT": "gate"},
        });
        let node = from_json("envoy.config.core.v3.Node", &node).unwrap();
        let request = discovery::DeltaDiscoveryRequest {
            node: Some(<Node as prost::Message>::decode(node.value).unwrap()),
            type_url: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
                .to_owned(),
            resource_names_subscribe: vec!["kubernetes://web".to_owned()],
            ..Default::default()
        };
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready()
            .await
            .map_err(|e| tonic::Status::unavailable(e.to_string()))?;
        let (sender, requests) = tokio::sync::mpsc::channel(1);
        sender.send(request).await.unwrap();
        let path =
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
        let codec = tonic_prost::ProstCodec::<_, discovery::DeltaDiscoveryResponse>::default();
        let requests = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(requests));
        let path = axum::http::uri::PathAndQuery::from_static(path);
        let mut responses = grpc.streaming(requests, path, codec).await?.into_inner();
        let response = responses.message().await?.unwrap_or_default();
        Ok(response.resources.into_iter().map(|r| r.name).collect())
    }

    #[tokio::test]
    async fn a_certificate_of_its_namespace_opens_the_secrets() {
        let ours = authority();
        let address = start(&ours).await;
        let connect = |own| channel(address, &ours, own);
        let own = Some(issue(&ours, workload("edge")));
        let given = secrets(connect(own).await.unwrap()).await.unwrap();
        assert_eq!(given, ["kubernetes://web"]);
        // Without a certificate the proxy is served, but no secrets.
        let given = secrets(connect(None).await.unwrap()).await.unwrap();
        assert_eq!(given, Vec::<String>::new());
        // Somebody else's does not fit what the node says.
        let other = Some(issue(&ours, workload("bank")));
        let refused = secrets(connect(other).await.unwrap()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        // One of an unknown authority does not get through the handshake.
        let unknown = Some(issue(&authority(), workload("edge")));
        let refused = match connect(unknown).await {
            Ok(channel) => secrets(channel).await.is_err(),
            Err(_) => true,
        };
        assert!(refused);
    }
}
