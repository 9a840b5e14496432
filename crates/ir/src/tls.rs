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
    /// The mesh's mutual TLS with certificates the proxy brings itself.
    OwnCertificate(CustomTls),
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
    /// Peers tell each other who they are before the first byte.
    pub peer_exchange: bool,
    /// What an HTTP request decides about its connection.
    pub by_request: ByRequest,
}

/// What an HTTP request decides about the TLS of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByRequest {
    /// Its host is the server name sent.
    pub sni: bool,
    /// Its host must be in the certificate.
    pub san: bool,
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
    /// File with revoked certificates.
    pub revoked: Option<Text>,
    /// ALPN offered.
    pub alpn: Vec<Text>,
    /// Accept any certificate.
    pub insecure_skip_verify: bool,
    /// Limits on what is negotiated.
    pub limits: TlsLimits,
    /// Nothing is said about the server's certificate, not even that any will do.
    pub silent: bool,
    /// What an HTTP request decides about its connection.
    pub by_request: ByRequest,
}

/// Where a key, certificate or root comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// The workload's own certificate, or the mesh's roots.
    Workload,
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
    /// Files that stand in for the certificate and the roots of the mesh.
    pub files: CertificateFiles,
}

/// Files that stand in for what the mesh gives a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateFiles {
    /// Key and certificate, by SDS name.
    pub certificate: Option<Text>,
    /// Roots, by SDS name.
    pub roots: Option<Text>,
}

/// TLS that a chain terminates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DownstreamTls {
    /// The mesh's mutual TLS, as sidecars speak it.
    Mutual(DownstreamMutual),
    /// As the user described it.
    Server(Box<ServerTls>),
}

/// TLS of a server that the user described.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerTls {
    /// Keys and certificates, one for each kind of key.
    pub certificates: Vec<SecretSource>,
    /// How a client's certificate is checked, if it shows one; `None`: it is not looked at.
    pub clients: Option<ClientCheck>,
    /// A client must show a certificate.
    pub require_client: bool,
    /// ALPN offered.
    pub alpn: Vec<Text>,
    /// Limits on what is negotiated.
    pub limits: TlsLimits,
}

/// How certificates of clients are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientCheck {
    /// Where the roots come from; `None`: only what else is written here is checked.
    pub roots: Option<SecretSource>,
    /// Names accepted; empty: any.
    pub names: Vec<Text>,
    /// Hashes of accepted public keys; empty: any.
    pub key_hashes: Vec<Text>,
    /// Hashes of accepted certificates; empty: any.
    pub certificate_hashes: Vec<Text>,
    /// File of revoked certificates.
    pub revoked: Option<Text>,
    /// Certificates of unknown authorities are accepted.
    pub accept_untrusted: bool,
}

/// Limits on what a TLS handshake may agree on; what is empty is left to the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TlsLimits {
    /// Oldest version.
    pub oldest: Option<TlsVersion>,
    /// Newest version.
    pub newest: Option<TlsVersion>,
    /// Cipher suites.
    pub ciphers: Vec<Text>,
    /// Curves of key exchange.
    pub curves: Vec<Text>,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TlsVersion {
    /// 1.0
    V1_0,
    /// 1.1
    V1_1,
    /// 1.2
    V1_2,
    /// 1.3
    V1_3,
}
