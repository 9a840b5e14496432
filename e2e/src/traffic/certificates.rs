//! Certificates made for one run: authorities, servers and clients, each under a name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use serde::Deserialize;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS12;
use tokio_rustls::rustls::{ALL_VERSIONS, ClientConfig, RootCertStore, ServerConfig};

use super::scenario::ClientTls;

/// What a scenario says of a certificate. Without an issuer it is an authority.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Wish {
    /// The authority that signs it.
    #[serde(default)]
    issuer: Option<String>,
    /// Its subject alternative names: DNS names, or URIs.
    #[serde(default)]
    names: Vec<String>,
}

/// The certificates of a scenario. Peers are reported by the names they have here.
#[derive(Debug, Default)]
pub(super) struct Certificates {
    made: BTreeMap<String, Made>,
}

#[derive(Debug)]
struct Made {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
    pem: String,
    key_pem: String,
}

impl Certificates {
    /// Makes them and writes `NAME.pem` and `NAME-key.pem` for each into a folder.
    pub(super) fn make(wishes: &BTreeMap<String, Wish>, folder: &Path) -> Result<Self> {
        let mut authorities = BTreeMap::new();
        let mut made = BTreeMap::new();
        for (name, wish) in wishes.iter().filter(|(_, wish)| wish.issuer.is_none()) {
            let (key, mut params) = (KeyPair::generate()?, params(name, wish)?);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            made.insert(name.clone(), Made::new(&params.self_signed(&key)?, &key));
            authorities.insert(name.as_str(), Issuer::new(params, key));
        }
        for (name, wish) in wishes {
            let Some(issuer) = &wish.issuer else { continue };
            let issuer = authorities
                .get(issuer.as_str())
                .with_context(|| format!("certificate {name}: no authority {issuer}"))?;
            let key = KeyPair::generate()?;
            let certificate = params(name, wish)?.signed_by(&key, issuer)?;
            made.insert(name.clone(), Made::new(&certificate, &key));
        }
        fs::create_dir_all(folder)?;
        for (name, made) in &made {
            fs::write(folder.join(format!("{name}.pem")), &made.pem)?;
            fs::write(folder.join(format!("{name}-key.pem")), &made.key_pem)?;
        }
        Ok(Self { made })
    }

    fn get(&self, name: &str) -> Result<&Made> {
        self.made
            .get(name)
            .with_context(|| format!("the scenario makes no certificate {name}"))
    }

    fn roots(&self, authority: &str) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.get(authority)?.certificate.clone())?;
        Ok(roots)
    }

    /// The certificate and the key of a name, in PEM.
    pub(super) fn pem(&self, name: &str) -> Result<(&str, &str)> {
        let made = self.get(name)?;
        Ok((&made.pem, &made.key_pem))
    }

    /// What a peer showed, by name.
    pub(super) fn name_of(&self, shown: Option<&[CertificateDer<'_>]>) -> Option<String> {
        let leaf = shown?.first()?;
        let known = self
            .made
            .iter()
            .find(|(_, made)| made.certificate.as_ref() == leaf.as_ref());
        Some(known.map_or_else(|| "unknown".to_owned(), |(name, _)| name.clone()))
    }

    /// A server with this certificate, which asks clients for one of `authority` and serves those without one too: what
    /// it was shown is what the test looks at.
    pub(super) fn server(&self, name: &str, authority: Option<&str>) -> Result<Arc<ServerConfig>> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        let builder = match authority {
            None => builder.with_no_client_auth(),
            Some(authority) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(
                    Arc::new(self.roots(authority)?),
                    provider(),
                )
                .allow_unauthenticated()
                .build()?,
            ),
        };
        let made = self.get(name)?;
        let mut config = builder.with_single_cert(vec![made.certificate.clone()], made.key())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// The client's side, as a row describes it.
    pub(super) fn client(&self, tls: &ClientTls) -> Result<Arc<ClientConfig>> {
        let versions = if tls.old { &[&TLS12][..] } else { ALL_VERSIONS };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)?
            .with_root_certificates(self.roots(&tls.trusts)?);
        let mut config = match &tls.shows {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let made = self.get(name)?;
                builder.with_client_auth_cert(vec![made.certificate.clone()], made.key())?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl Made {
    fn new(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self {
            certificate: certificate.der().clone(),
            key: key.serialize_der(),
            pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn params(name: &str, wish: &Wish) -> Result<CertificateParams> {
    if wish.issuer.is_none() && !wish.names.is_empty() {
        bail!("certificate {name}: an authority has no alternative names");
    }
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    for name in &wish.names {
        let text = Ia5String::try_from(name.as_str())?;
        params.subject_alt_names.push(if name.contains("://") {
            SanType::URI(text)
        } else {
            SanType::DnsName(text)
        });
    }
    Ok(params)
}
