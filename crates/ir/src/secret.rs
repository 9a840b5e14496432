//! Secrets that the control plane delivers to a proxy.

use std::fmt;

use crate::Text;

/// A secret under the name a proxy asks for it by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Secret {
    /// Its name.
    pub name: Text,
    /// What it holds.
    pub content: SecretContent,
}

/// What a secret holds, in PEM.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum SecretContent {
    /// A certificate with its key.
    Certificate {
        /// The chain, leaf first.
        chain: Vec<u8>,
        /// The private key.
        key: Vec<u8>,
        /// A stapled OCSP response.
        staple: Option<Vec<u8>>,
    },
    /// Authorities to trust.
    Roots {
        /// Their certificates.
        certificates: Vec<u8>,
        /// Certificates that were revoked.
        revoked: Option<Vec<u8>>,
    },
}

/// Says what kind of content it is, never the content.
impl fmt::Debug for SecretContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate { .. } => "Certificate",
            Self::Roots { .. } => "Roots",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_has_no_key() {
        let secret = Secret {
            name: Text::from("kubernetes://web"),
            content: SecretContent::Certificate {
                chain: b"chain".to_vec(),
                key: b"hush".to_vec(),
                staple: None,
            },
        };
        let shown = format!("{secret:?}");
        assert!(shown.contains("kubernetes://web") && !shown.contains("104, 117, 115, 104"));
    }
}
