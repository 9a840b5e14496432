//! Transport security, both sides.

use crate::Text;

/// How connections to an upstream are secured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum UpstreamTls {
    /// Plain text.
    #[default]
    None,
    /// The mesh's mutual TLS where the endpoint is ready for it, plain text elsewhere.
    AutoMutual(MutualTls),
    /// The mesh's mutual TLS always.
    Mutual(MutualTls),
    /// TLS as the user described it.
    Custom(CustomTls),
}

/// The mesh's own mutual TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MutualTls {
    /// Server name sent; empty: none.
    pub sni: String,
    /// Identities accepted; empty: any of the trust root.
    pub identities: Vec<Text>,
    /// HTTP/2 is offered.
    pub http2: bool,
}

/// TLS origination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CustomTls {
    /// Server name sent.
    pub sni: String,
    /// Names accepted.
    pub subject_alt_names: Vec<Text>,
    /// Where the client certificate comes from; `None`: one-way TLS.
    pub certificate: Option<SecretSource>,
    /// Where the roots come from; `None`: the server is not verified.
    pub roots: Option<SecretSource>,
    /// ALPN offered.
    pub alpn: Vec<Text>,
    /// Accept any certificate.
    pub insecure_skip_verify: bool,
}

/// Where a key, certificate or root comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// Files on the proxy's host, delivered by its agent under this SDS name.
    File(Text),
    /// A secret of the cluster by its SDS name, delivered by the control plane.
    Credential(Text),
}

/// Trust placed in clients of an inbound port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DownstreamMutual {
    /// ALPN offered.
    pub alpn: Vec<Text>,
    /// Trust domains accepted, as identity prefixes.
    pub identity_prefixes: Vec<Text>,
    /// Lowest TLS version is 1.3.
    pub tls13_only: bool,
    /// Cipher suites.
    pub ciphers: Vec<Text>,
}

/// Server TLS of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DownstreamTls {
    /// The mesh's mutual TLS.
    Mutual(DownstreamMutual),
    /// A certificate of the user's.
    Server {
        /// Key and certificate.
        certificate: SecretSource,
        /// Roots for client certificates, if they are asked for.
        client_roots: Option<SecretSource>,
        /// Client must present one.
        require_client: bool,
        /// ALPN offered.
        alpn: Vec<Text>,
    },
}
