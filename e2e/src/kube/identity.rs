//! Who is who for one API server: its authority, its certificate, and the key that signs tokens of service accounts.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Who may do everything. The token is no secret: it is worth something on our own loopback only.
pub(super) const ADMIN_TOKEN: &str = "admin-of-a-test";

/// The files that the API server is started with, and the same as values.
#[derive(Debug)]
pub(super) struct Identity {
    folder: PathBuf,
    authority: CertificateDer<'static>,
    /// The authority, as a kubeconfig wants it.
    pub(super) authority_pem: String,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Identity {
    /// Makes everything anew and writes it into a folder.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let authority_key = KeyPair::generate()?;
        let mut params = named("pilotfish-kube");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key)?;
        let issuer = Issuer::new(params, authority_key);

        let key = KeyPair::generate()?;
        let mut params = named("kube-apiserver");
        params.subject_alt_names = vec![
            SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            SanType::DnsName("localhost".try_into()?),
        ];
        let certificate = params.signed_by(&key, &issuer)?;
        let accounts = KeyPair::generate()?;

        let identity = Self {
            folder: folder.to_owned(),
            authority: authority.der().clone(),
            authority_pem: authority.pem(),
            certificate: certificate.der().clone(),
            key: key.serialize_der(),
        };
        for (name, text) in [
            ("server.pem", certificate.pem()),
            ("server-key.pem", key.serialize_pem()),
            ("accounts.pem", accounts.public_key_pem()),
            ("accounts-key.pem", accounts.serialize_pem()),
            (
                "tokens.csv",
                format!("{ADMIN_TOKEN},admin,admin,system:masters\n"),
            ),
        ] {
            fs::write(identity.file(name), text).with_context(|| format!("write {name}"))?;
        }
        Ok(identity)
    }

    /// One of the files.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// How clients connect: they trust our authority alone.
    pub(super) fn client(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A server that clients take for the API server.
    pub(super) fn server(&self) -> Result<Arc<ServerConfig>> {
        let key = PrivatePkcs8KeyDer::from(self.key.clone()).into();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
