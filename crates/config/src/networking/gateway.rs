//! `Gateway`: which ports and names a gateway proxy serves.

use super::{api, api_enum};
use std::collections::BTreeMap;

api! {
    pub struct Gateway {
        pub servers: Vec<Server>,
        pub selector: BTreeMap<String, String>,
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
