//! Upstreams.

use crate::tls::UpstreamTls;
use crate::{ClusterName, EndpointSet, Millis, Text};

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
    /// Locality weights are honoured.
    pub locality_weighted: bool,
    /// Send to all endpoints if too few are healthy: percentage, `None` leaves Envoy's default.
    pub panic_threshold: Option<u32>,
    /// Slow start of new endpoints.
    pub warmup: Option<Warmup>,
    /// The block is written even if all its fields are default (the inbound side).
    pub explicit_common: bool,
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
    pub window: Millis,
    /// Lowest weight share at the start, percent.
    pub minimum_percent: Option<u32>,
    /// Aggression in thousandths.
    pub aggression: Option<u32>,
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
    /// Counters of what is left are kept.
    pub track_remaining: bool,
    /// Requests on one connection before it is closed.
    pub max_requests_per_connection: Option<u32>,
    /// Most streams on one HTTP/2 connection.
    pub max_concurrent_streams: Option<u32>,
    /// HTTP idle timeout.
    pub idle_timeout: Option<Millis>,
    /// Longest life of a connection.
    pub max_duration: Option<Millis>,
    /// TCP keepalive.
    pub keepalive: Option<Keepalive>,
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
