//! Upstreams.

use crate::tls::UpstreamTls;
use crate::{ClusterName, EndpointSet, Millis, Real, Text};

/// One upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    /// Its name.
    pub name: ClusterName,
    /// Services behind it, for telemetry.
    pub services: Vec<ServiceRef>,
    /// Telemetry treats it as outside the mesh.
    pub external: bool,
    /// Path of the rule that shaped it, and the subset it belongs to, for telemetry.
    pub rule: Option<Text>,
    /// Name of the subset, for telemetry.
    pub subset: Option<Text>,
    /// How its endpoints are found.
    pub discovery: Discovery,
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// Connection limits and timeouts.
    pub pool: ConnectionPool,
    /// Passive health checks.
    pub outlier: Option<OutlierDetection>,
    /// HTTP version spoken upstream.
    pub http: UpstreamHttp,
    /// Transport security.
    pub tls: UpstreamTls,
    /// The upstream is not of the mesh and must not be offered the mesh's protocols.
    pub foreign_alpn: bool,
    /// Connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Peer metadata is exchanged on TCP connections.
    pub metadata_exchange: bool,
    /// Source address of upstream connections (the inbound side marks its own connections this way).
    pub source_address: Option<Text>,
    /// Source addresses of the other family (dual stack).
    pub extra_source_addresses: Vec<Text>,
    /// Name in statistics, where the mesh says how it is made.
    pub stat_name: Option<Text>,
    /// Names of HTTP/1 headers keep the case they were written in.
    pub preserve_case: bool,
}

/// A service as telemetry names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceRef {
    /// Host.
    pub host: Text,
    /// Short name.
    pub name: Text,
    /// Namespace.
    pub namespace: Text,
}

/// How the endpoints of a cluster are found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Discovery {
    /// No endpoints at all.
    Static,
    /// Endpoints written into the cluster.
    StaticEndpoints(EndpointSet),
    /// Over EDS, under the cluster's own name.
    Eds,
    /// By DNS; endpoints carry host names.
    Dns {
        /// Endpoints with host names (or addresses).
        endpoints: EndpointSet,
        /// One connection pool for whatever the name resolves to.
        logical: bool,
        /// Address families asked for.
        family: DnsFamily,
        /// Refresh rate when the answer has no TTL.
        refresh: Millis,
        /// Added at random to each.
        jitter: Millis,
        /// Queries over one UDP socket; 0: any number.
        queries: u32,
    },
    /// The address the connection was meant for.
    OriginalDst {
        /// Take the destination from the request's header.
        use_http_header: bool,
        /// Override of the upstream port.
        port_override: Option<u16>,
        /// Entries are kept for ever (the inbound side).
        keep_forever: bool,
    },
    /// Any host a request names, resolved when it comes.
    AnyHost(AnyHost),
    /// The host name of the request, resolved when it comes.
    DynamicDns {
        /// Host pattern, names the DNS cache.
        host: Text,
        /// Address families asked for.
        family: DnsFamily,
    },
}

/// How hosts nobody declared are resolved; the cluster and the filters before it must agree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnyHost {
    /// Address families asked for.
    pub family: DnsFamily,
    /// Most hosts remembered.
    pub most: u32,
    /// Who is asked; `None`: the system's resolver.
    pub resolver: Option<(Text, u16)>,
}

/// Address families of DNS lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DnsFamily {
    /// Only IPv4.
    V4Only,
    /// Only IPv6.
    V6Only,
    /// IPv4 preferred.
    V4Preferred,
    /// Both, as one list.
    All,
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Balancing {
    /// The algorithm.
    pub policy: Policy,
    /// How places take part.
    pub places: Places,
    /// Send to all endpoints if too few are healthy: percentage, `None` leaves Envoy's default.
    pub panic_threshold: Option<u32>,
    /// Slow start of new endpoints.
    pub warmup: Option<Warmup>,
    /// Sessions stay with endpoints that drain.
    pub sessions: bool,
    /// The block is written even if all its fields are default.
    pub explicit_common: bool,
}

/// How places take part in the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Places {
    /// Not at all.
    #[default]
    Ignored,
    /// By the weight of each.
    Weighted,
    /// The client's own zone as far as its share of the clients allows.
    Zones {
        /// The user switched it off.
        off: bool,
        /// Fewest endpoints with which it is done.
        minimum: Option<u32>,
    },
}

/// Load balancing algorithms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Least outstanding requests.
    LeastRequest,
    /// Round robin.
    RoundRobin,
    /// Random.
    Random,
    /// The cluster type decides.
    ClusterProvided,
    /// Consistent hashing on a ring of at least this size.
    RingHash {
        /// Smallest ring; `None` leaves the default.
        minimum: Option<u64>,
    },
    /// Maglev hashing.
    Maglev {
        /// Table size; `None` leaves the default.
        table: Option<u64>,
    },
}

/// Slow start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Warmup {
    /// Length of the window.
    pub window: Option<Millis>,
    /// Lowest weight share at the start, percent.
    pub minimum_percent: Option<Real>,
    /// How fast traffic grows.
    pub aggression: Option<Real>,
}

/// Connection limits and timeouts. `None` of a limit means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectionPool {
    /// TCP connect timeout.
    pub connect_timeout: Millis,
    /// Most connections.
    pub max_connections: Option<u32>,
    /// Most requests that wait for a connection.
    pub max_pending: Option<u32>,
    /// Most requests in flight.
    pub max_requests: Option<u32>,
    /// Most retries in flight.
    pub max_retries: Option<u32>,
    /// Most retries in flight, in proportion to the requests; overrules the fixed number.
    pub retry_budget: Option<RetryBudget>,
    /// Counters of what is left are kept.
    pub track_remaining: bool,
    /// Requests on one connection before it is closed.
    pub max_requests_per_connection: Option<u32>,
    /// Most streams on one HTTP/2 connection.
    pub max_concurrent_streams: Option<u32>,
    /// HTTP/2 connections are pinged.
    pub http2_keepalive: Option<Ping>,
    /// HTTP idle timeout.
    pub idle_timeout: Option<Millis>,
    /// Longest life of a connection.
    pub max_duration: Option<Millis>,
    /// TCP keepalive.
    pub keepalive: Option<Keepalive>,
}

/// Pings on HTTP/2 connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ping {
    /// Time between them.
    pub interval: Option<Millis>,
    /// Time to wait for the answer.
    pub timeout: Option<Millis>,
}

/// Retries allowed in proportion to the requests in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RetryBudget {
    /// Share of the requests, percent.
    pub percent: Real,
    /// Retries always allowed.
    pub minimum: u32,
    /// Time over which requests are counted; `None`: those in flight.
    pub interval: Option<Millis>,
}

/// TCP keepalive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keepalive {
    /// Probes before the connection is dead.
    pub probes: Option<u32>,
    /// Idle time before the first probe, seconds.
    pub time: Option<u32>,
    /// Seconds between probes.
    pub interval: Option<u32>,
}

/// Passive health checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OutlierDetection {
    /// Local errors are counted apart.
    pub split_local_origin: bool,
    /// Local errors in a row.
    pub consecutive_local: Option<u32>,
    /// 502, 503, 504 in a row; enforcement follows (0: off).
    pub consecutive_gateway: Option<u32>,
    /// 5xx in a row; enforcement follows (0: off).
    pub consecutive_5xx: Option<u32>,
    /// Sweep interval.
    pub interval: Option<Millis>,
    /// Base ejection time.
    pub base_ejection: Option<Millis>,
    /// Largest share ejected, percent.
    pub max_ejection_percent: Option<u32>,
}

/// Versions of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// HTTP version spoken upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum UpstreamHttp {
    /// HTTP/1.1, or not HTTP at all.
    #[default]
    Default,
    /// HTTP/2.
    Http2,
    /// What the client spoke.
    Downstream,
}
