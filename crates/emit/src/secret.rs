//! Secrets.

use pilotfish_ir::secret::{Secret, SecretContent};
use pilotfish_protos::envoy::config::core::v3::{DataSource, data_source::Specifier};
use pilotfish_protos::envoy::extensions::transport_sockets::tls::v3 as pb;

use crate::value;

pub(crate) fn message(secret: &Secret) -> pb::Secret {
    let content = match &secret.content {
        SecretContent::Certificate { chain, key, staple } => {
            pb::secret::Type::TlsCertificate(pb::TlsCertificate {
                certificate_chain: Some(inline(chain)),
                private_key: Some(inline(key)),
                ocsp_staple: staple.as_deref().map(inline),
                ..Default::default()
            })
        }
        SecretContent::Roots {
            certificates,
            revoked,
        } => pb::secret::Type::ValidationContext(pb::CertificateValidationContext {
            trusted_ca: Some(inline(certificates)),
            crl: revoked.as_deref().map(inline),
            ..Default::default()
        }),
    };
    pb::Secret {
        name: value::string(&secret.name),
        r#type: Some(content),
    }
}

fn inline(bytes: &[u8]) -> DataSource {
    DataSource {
        specifier: Some(Specifier::InlineBytes(bytes.to_vec().into())),
        ..Default::default()
    }
}
