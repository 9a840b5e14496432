//! xDS over TLS: an authority, what a server needs of it, and the channels of clients.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Channel, Endpoint, Uri};

/// Issues the certificates of a server and its clients.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// One that nobody else trusts.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self(issuer))
    }

    /// What opens the TLS port of a control plane; the files are written into a folder.
    pub fn flags(&self, folder: &Path, port: u16) -> Result<Vec<String>> {
        fs::create_dir_all(folder)?;
        let (chain, key) = self.issue(SanType::DnsName("localhost".try_into()?))?;
        let address = format!("127.0.0.1:{port}");
        let mut flags = vec!["--secure-grpc-addr".to_owned(), address];
        for (flag, name, text) in [
            ("--tls-cert-file", "chain.pem", chain),
            ("--tls-key-file", "key.pem", key),
            ("--ca-cert-file", "roots.pem", self.0.pem()),
        ] {
            let path = folder.join(name);
            fs::write(&path, text)?;
            flags.extend([flag.to_owned(), path.display().to_string()]);
        }
        Ok(flags)
    }

    /// A channel that shows the certificate of a workload of a namespace, or none.
    pub async fn channel(&self, address: SocketAddr, namespace: Option<&str>) -> Result<Channel> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone())?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match namespace {
            Some(namespace) => {
                let uri = format!("spiffe://cluster.local/ns/{namespace}/sa/default");
                let (chain, key) = self.issue(SanType::URI(uri.try_into()?))?;
                let chain = CertificateDer::from_pem_slice(chain.as_bytes())?;
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
                builder.with_client_auth_cert(vec![chain], key)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let connect = tower::service_fn(move |_: Uri| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::try_from("localhost").map_err(std::io::Error::other)?;
                Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
            }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        Ok(endpoint.connect_with_connector(connect).await?)
    }

    /// A certificate for a name, and its key, in PEM.
    fn issue(&self, name: SanType) -> Result<(String, String)> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }
}
