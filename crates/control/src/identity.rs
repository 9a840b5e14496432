//! Who a client is, once it has proved it.

use pilotfish_mesh::Text;
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The workload identity of a client: `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) namespace: Text,
    pub(crate) service_account: Text,
}

impl Identity {
    /// The identity in a certificate whose chain was verified; `None` if it names no workload, or more than one.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok()??;
        let mut uris = names.value.general_names.iter().filter_map(|n| match n {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let only = uris.next().filter(|_| uris.next().is_none())?;
        Self::of_uri(only)
    }

    fn of_uri(uri: &str) -> Option<Self> {
        let path = uri.strip_prefix("spiffe://")?;
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            [domain, "ns", namespace, "sa", account]
                if ![domain, namespace, account].iter().any(|p| p.is_empty()) =>
            {
                Some(Self {
                    namespace: Text::from(*namespace),
                    service_account: Text::from(*account),
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_workloads() {
        let found = Identity::of_uri("spiffe://cluster.local/ns/edge/sa/gate").unwrap();
        assert_eq!(
            (&*found.namespace, &*found.service_account),
            ("edge", "gate")
        );
        for other in [
            "spiffe://cluster.local/ns/edge/sa/",
            "spiffe:///ns/edge/sa/gate",
            "spiffe://cluster.local/ns/edge/sa/gate/more",
            "spiffe://cluster.local/edge/gate",
            "https://cluster.local/ns/edge/sa/gate",
        ] {
            assert_eq!(Identity::of_uri(other), None, "{other}");
        }
    }
}
