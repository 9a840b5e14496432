//! Listeners and what happens on a connection.

use crate::cluster::AnyHost;
use crate::endpoint::Address;
use crate::tls::DownstreamTls;
use crate::{ClusterName, Millis, RouteTable, Text, VirtualHost};

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listener {
    /// Its name.
    pub name: Text,
    /// Where it listens.
    pub address: Address,
    /// Further addresses.
    pub additional: Vec<Address>,
    /// Which way traffic flows.
    pub direction: Direction,
    /// It is bound to its port; else it only takes connections handed over by the listener that intercepts.
    pub bind: bool,
    /// Connections are handed to the listener of their original destination.
    pub use_original_dst: bool,
    /// Source addresses are kept (TPROXY).
    pub transparent: bool,
    /// What is inspected before a chain is chosen.
    pub inspect: Inspect,
    /// Connections that match none of the inspectors in time go on.
    pub continue_on_timeout: bool,
    /// Time for the inspectors; `None` leaves the default.
    pub inspect_timeout: Option<Millis>,
    /// Chains; the most specific match wins.
    pub chains: Vec<Chain>,
    /// The chain for what matches none.
    pub default_chain: Option<Chain>,
    /// Most connections accepted per event; `None` leaves the default.
    pub accepts_per_event: Option<u32>,
    /// Connections are spread evenly over the workers.
    pub exact_balance: bool,
    /// Most bytes buffered for a connection; `None` leaves the default.
    pub buffer_limit: Option<u32>,
    /// It takes datagrams, which carry QUIC; else streams.
    pub quic: bool,
}

/// Which way traffic flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the application.
    Inbound,
    /// From the application, or through a gateway.
    Outbound,
}

/// What is inspected before a chain is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Inspect {
    /// The original destination is restored.
    pub original_dst: bool,
    /// The original source is kept (TPROXY).
    pub original_src: bool,
    /// A PROXY header is read.
    pub proxy_protocol: bool,
    /// TLS, on these destination ports.
    pub tls: Option<Ports>,
    /// HTTP, on these destination ports.
    pub http: Option<Ports>,
}

/// A set of destination ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ports {
    /// All but these.
    Except(Vec<u16>),
    /// Just these.
    Only(Vec<u16>),
}

impl Ports {
    /// Every port.
    pub const ALL: Self = Self::Except(Vec::new());
}

/// Filters for connections that match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Name; empty: none.
    pub name: Text,
    /// What it matches.
    pub matches: ChainMatch,
    /// An empty match is written out.
    pub explicit_match: bool,
    /// TLS it terminates.
    pub tls: Option<DownstreamTls>,
    /// What happens on a connection.
    pub handler: Handler,
    /// Peer metadata is exchanged first.
    pub metadata_exchange: bool,
    /// Time to finish the handshake.
    pub connect_timeout: Option<Millis>,
    /// Path of the object it came from, for telemetry.
    pub origin: Option<Text>,
}

/// What a chain matches; all conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChainMatch {
    /// Original destination port.
    pub port: Option<u16>,
    /// Destination networks, `address/length`.
    pub networks: Vec<(Text, u8)>,
    /// Server names.
    pub server_names: Vec<Text>,
    /// `tls` or `raw_buffer`.
    pub transport: Option<Transport>,
    /// ALPN.
    pub alpn: Vec<Text>,
}

/// What the TLS inspector saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TLS.
    Tls,
    /// Not TLS.
    Plain,
}

/// What happens on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Handler {
    /// HTTP.
    Http(Box<Http>),
    /// Bytes.
    Tcp(Tcp),
}

/// Byte streams.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tcp {
    /// Statistics prefix.
    pub stat_prefix: Text,
    /// Destinations with weights; weights are meaningless with one.
    pub to: Vec<(ClusterName, u32)>,
    /// Idle timeout.
    pub idle_timeout: Option<Millis>,
    /// Longest life of a connection.
    pub max_duration: Option<Millis>,
    /// Consistent hashing hashes the source address.
    pub hash_source_ip: bool,
    /// The stream is sent through an HTTP tunnel.
    pub tunnel: Option<Tunnel>,
    /// What the bytes are, where Envoy can count them.
    pub codec: TcpCodec,
    /// Which side's statistics are kept.
    pub side: Side,
    /// The server name is resolved when it comes; port of the upstream.
    pub forward_by_sni: Option<DnsCache>,
}

/// An HTTP tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Where its far end connects to, `host:port`.
    pub to: Text,
    /// It is asked for with POST instead of CONNECT.
    pub post: bool,
}

/// Protocols Envoy can count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TcpCodec {
    /// Opaque bytes.
    #[default]
    Raw,
    /// MongoDB.
    Mongo,
    /// MySQL.
    MySql,
    /// Redis.
    Redis,
}

/// A cache of names resolved on demand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DnsCache {
    /// Host pattern it serves.
    pub host: Text,
    /// Address families.
    pub family: crate::cluster::DnsFamily,
    /// Port of the upstream.
    pub port: u16,
}

/// Which side of a call a proxy stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The caller's.
    Client,
    /// The callee's.
    Server,
    /// A gateway.
    Gateway,
}

/// An HTTP connection manager.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Http {
    /// Which side.
    pub side: Side,
    /// Statistics prefix, without the delimiter.
    pub stat_prefix: Text,
    /// The prefix was chosen by the user: no delimiter follows.
    pub stat_chosen: bool,
    /// Routes.
    pub routes: Routes,
    /// HTTP/2 is expected.
    pub http2: bool,
    /// HTTP/3 is spoken, and nothing else.
    pub http3: bool,
    /// gRPC-Web is bridged.
    pub grpc_web: bool,
    /// Peers are told who we are.
    pub peers: bool,
    /// The protocol of a request decides what its connection offers, so that a peer knows it is in the mesh.
    pub mesh_alpn: bool,
    /// Routes may keep sessions.
    pub sessions: bool,
    /// Names resolved on demand.
    pub dns_caches: Vec<DnsCache>,
    /// Hosts nobody declared are resolved on demand too.
    pub any_host: Option<AnyHost>,
    /// How requests are traced; `None`: not at all.
    pub tracing: Option<Tracing>,
    /// Paths are normalised before they are matched.
    pub normalize_path: bool,
    /// Adjacent slashes are merged.
    pub merge_slashes: bool,
    /// Escaped slashes.
    pub escaped_slashes: EscapedSlashes,
    /// The immediate client's address is the one to trust.
    pub use_remote_address: Option<bool>,
    /// What becomes of the client certificate header.
    pub client_cert: ClientCert,
    /// `Expect: 100-continue` is forwarded.
    pub forward_continue: bool,
    /// Server name in responses.
    pub server_name: Option<Text>,
    /// HTTP/1.0 is accepted.
    pub http10: bool,
    /// Requests may name their target by an absolute URL, as to a proxy.
    pub absolute_urls: bool,
    /// Headers that are added, kept and left out.
    pub headers: Headers,
    /// Limits on connections and streams.
    pub limits: HttpLimits,
}

/// Headers that are added, kept and left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Headers {
    /// The server header is the application's own.
    pub server_of_application: bool,
    /// Requests without an id stay without.
    pub no_request_id: bool,
    /// What Envoy says of itself (time taken, timeouts, retries) stays inside.
    pub no_debug: bool,
    /// Who we are is not told to what is outside the mesh.
    pub metadata_in_mesh: bool,
    /// Names of HTTP/1 headers keep the case they were written in.
    pub preserve_case: bool,
    /// The port asked for is passed on.
    pub forwarded_port: bool,
    /// Proxies in front of us whose word on the client's address is taken.
    pub trusted_hops: u32,
    /// What goes into the client certificate header; `None`: Envoy's default.
    pub certificate: Option<CertificateParts>,
    /// Networks whose requests count as internal.
    pub internal_networks: Vec<(Text, u8)>,
}

/// Parts of a client certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each part is told or not")]
pub struct CertificateParts {
    /// Subject.
    pub subject: bool,
    /// The certificate itself.
    pub certificate: bool,
    /// The whole chain.
    pub chain: bool,
    /// DNS names.
    pub dns: bool,
    /// URIs.
    pub uri: bool,
}

/// Limits on connections and streams; `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HttpLimits {
    /// Idle connections are closed.
    pub idle_timeout: Option<Millis>,
    /// Longest life of a connection.
    pub max_duration: Option<Millis>,
    /// Longest life of a stream.
    pub max_stream_duration: Option<Millis>,
    /// Idle streams are closed; `None`: never.
    pub stream_idle_timeout: Option<Millis>,
    /// Time for a whole request to come.
    pub request_timeout: Option<Millis>,
    /// Time for the headers of a request to come.
    pub headers_timeout: Option<Millis>,
    /// Time for clients to leave.
    pub drain_timeout: Option<Millis>,
    /// HTTP/2 settings.
    pub http2: Option<Http2Limits>,
    /// Headers with underscores; `None`: allowed, and not said so.
    pub underscores: Option<Underscores>,
}

/// HTTP/2 settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Http2Limits {
    /// Most streams on one connection.
    pub streams: Option<u32>,
    /// Window of a stream.
    pub stream_window: Option<u32>,
    /// Window of a connection.
    pub connection_window: Option<u32>,
}

/// What becomes of headers with underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Underscores {
    /// Kept.
    Allow,
    /// The request is refused.
    Reject,
    /// The header is dropped.
    Drop,
}

/// The client certificate header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientCert {
    /// Removed (Envoy's default).
    Sanitize,
    /// Kept if the client proved itself.
    ForwardOnly,
    /// Kept whoever the client is.
    AlwaysForwardOnly,
    /// Kept and ours appended.
    AppendForward,
    /// Replaced by ours.
    SanitizeSet,
}

/// Escaped slashes in paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EscapedSlashes {
    /// Left alone.
    Keep,
    /// The request is refused.
    Reject,
    /// Unescaped, and the client is told to ask again.
    Redirect,
    /// Unescaped, and the request goes on.
    Unescape,
}

/// Where the routes of an HTTP listener are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Routes {
    /// Over RDS under this name.
    Discovered(Text),
    /// In the listener.
    Inline(RouteTable, Vec<VirtualHost>),
}

/// How requests are traced, and who the proxy is, for tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tracing {
    /// Canonical service.
    pub service: Text,
    /// Canonical revision.
    pub revision: Text,
    /// Namespace.
    pub namespace: Text,
    /// Cluster.
    pub cluster: Text,
    /// Mesh.
    pub mesh: Text,
    /// Share of requests traced, hundred-thousandths of a percent.
    pub sampling: u32,
    /// Spans say who the proxy is, and what policies that are only tried out would have done.
    pub own_tags: bool,
    /// Tags the user adds, by name.
    pub tags: Vec<(Text, TagValue)>,
    /// Longest path that is recorded; `None` leaves the default.
    pub longest_path: Option<u32>,
}

/// Where the value of a tag comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagValue {
    /// It is written.
    Literal(Text),
    /// A variable of the proxy's environment, and what stands in for it.
    Environment(Text, Text),
    /// A header of the request, and what stands in for it.
    Header(Text, Text),
}
