//! `Gateway`: which ports and names a gateway proxy serves.

use super::{api, api_enum};
use crate::Labels;

api! {
    pub struct Gateway {
        pub servers: Vec<Server>,
        pub selector: Labels,
    }
}

api! {
    pub struct Server {
        pub port: Option<Port>,
        pub bind: String,
        pub hosts: Vec<String>,
        pub tls: Option<ServerTlsSettings>,
        pub default_endpoint: String,
        pub name: String,
    }
}

api! {
    pub struct Port {
        pub number: u32,
        pub protocol: String,
        pub name: String,
        pub target_port: u32,
    }
}

api! {
    pub struct ServerTlsSettings {
        pub https_redirect: bool,
        pub mode: ServerTlsMode,
        pub server_certificate: String,
        pub private_key: String,
        pub ca_certificates: String,
        pub ca_crl: String,
        pub credential_name: String,
        pub credential_names: Vec<String>,
        pub ca_cert_credential_name: String,
        pub tls_certificates: Vec<TlsCertificate>,
        pub subject_alt_names: Vec<String>,
        pub verify_certificate_spki: Vec<String>,
        pub verify_certificate_hash: Vec<String>,
        pub min_protocol_version: TlsProtocol,
        pub max_protocol_version: TlsProtocol,
        pub cipher_suites: Vec<String>,
        pub insecure_skip_verify: Option<bool>,
    }
}

api! {
    pub struct TlsCertificate {
        pub server_certificate: String,
        pub private_key: String,
        pub ca_certificates: String,
    }
}

/// What BoringSSL knows by these names. Expressions with operators are left to it.
const CIPHER_SUITES: &[&str] = &[
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-SHA",
    "AES256-SHA",
    "DES-CBC3-SHA",
];

/// Whether the proxy may know a cipher suite: it does by name, and what is an expression it decides itself.
pub fn known_cipher(suite: &str) -> bool {
    suite == "ALL"
        || !suite.starts_with(|c: char| c.is_alphanumeric())
        || CIPHER_SUITES.contains(&suite)
}

impl ServerTlsSettings {
    /// The cipher suites that the proxy may know, each once.
    pub fn usable_ciphers(&self) -> Vec<&str> {
        let mut out: Vec<&str> = Vec::new();
        for suite in self.cipher_suites.iter().map(String::as_str) {
            if known_cipher(suite) && !out.contains(&suite) {
                out.push(suite);
            }
        }
        out
    }

    /// The connection goes through as it is.
    pub fn is_passthrough(&self) -> bool {
        matches!(
            self.mode,
            ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough
        )
    }
}

api_enum! {
    ServerTlsMode {
        Passthrough = "PASSTHROUGH",
        Simple = "SIMPLE",
        Mutual = "MUTUAL",
        AutoPassthrough = "AUTO_PASSTHROUGH",
        IstioMutual = "ISTIO_MUTUAL",
        OptionalMutual = "OPTIONAL_MUTUAL",
    }
}

api_enum! {
    TlsProtocol {
        TlsAuto = "TLS_AUTO",
        Tlsv1_0 = "TLSV1_0",
        Tlsv1_1 = "TLSV1_1",
        Tlsv1_2 = "TLSV1_2",
        Tlsv1_3 = "TLSV1_3",
    }
}
