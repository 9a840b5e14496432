//! What a build of Envoy can do.

use std::collections::BTreeSet;

/// An extension that is left out where the proxy does not have it. What no proxy can do without (the connection manager,
/// the router, the TCP proxy, TLS) is not listed: there is nothing to fall back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    MetadataExchange,
    Stats,
    Alpn,
    MongoProxy,
    MySqlProxy,
    SniForwardProxy,
    GrpcStats,
    GrpcWeb,
    Fault,
    Cors,
    DynamicForwardProxy,
    DynamicForwardProxyCluster,
    OriginalDst,
    OriginalSrc,
    ProxyProtocol,
    UpstreamProxyProtocol,
    TlsInspector,
    HttpInspector,
    PreviousHosts,
    PreviousPriorities,
    Cares,
    UuidRequestId,
    Quic,
    StatefulSession,
}

/// Each extension and the name a proxy lists it by, which is not always the name of the filter we emit.
const LISTED: [(Extension, &str); 24] = [
    (Extension::MetadataExchange, "istio.metadata_exchange"),
    (Extension::Stats, "istio.stats"),
    (Extension::Alpn, "istio.alpn"),
    (Extension::MongoProxy, "envoy.filters.network.mongo_proxy"),
    (Extension::MySqlProxy, "envoy.filters.network.mysql_proxy"),
    (
        Extension::SniForwardProxy,
        "envoy.filters.network.sni_dynamic_forward_proxy",
    ),
    (Extension::GrpcStats, "envoy.filters.http.grpc_stats"),
    (Extension::GrpcWeb, "envoy.filters.http.grpc_web"),
    (Extension::Fault, "envoy.filters.http.fault"),
    (Extension::Cors, "envoy.filters.http.cors"),
    (
        Extension::DynamicForwardProxy,
        "envoy.filters.http.dynamic_forward_proxy",
    ),
    (
        Extension::DynamicForwardProxyCluster,
        "envoy.clusters.dynamic_forward_proxy",
    ),
    (
        Extension::OriginalDst,
        "envoy.filters.listener.original_dst",
    ),
    (
        Extension::OriginalSrc,
        "envoy.filters.listener.original_src",
    ),
    (
        Extension::ProxyProtocol,
        "envoy.filters.listener.proxy_protocol",
    ),
    (
        Extension::UpstreamProxyProtocol,
        "envoy.transport_sockets.upstream_proxy_protocol",
    ),
    (
        Extension::TlsInspector,
        "envoy.filters.listener.tls_inspector",
    ),
    (
        Extension::HttpInspector,
        "envoy.filters.listener.http_inspector",
    ),
    (
        Extension::PreviousHosts,
        "envoy.retry_host_predicates.previous_hosts",
    ),
    (
        Extension::PreviousPriorities,
        "envoy.retry_priorities.previous_priorities",
    ),
    (Extension::Cares, "envoy.network.dns_resolver.cares"),
    (Extension::UuidRequestId, "envoy.request_id.uuid"),
    (Extension::Quic, "envoy.transport_sockets.quic"),
    (
        Extension::StatefulSession,
        "envoy.filters.http.stateful_session",
    ),
];

/// What a build of Envoy can do. Part of cache keys, so it holds only what changes the output: two proxies that are to be
/// sent the same are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dialect {
    /// The proxy runs beside Istio's agent, which serves the workload's certificate and the mesh's roots.
    agent: bool,
    /// Without an agent: the files that users name are on the proxy's host, so it can be told their paths. Envoy refuses a
    /// resource that names a file it cannot read, so this is not assumed.
    files: bool,
    /// One bit for each extension it has.
    extensions: u32,
}

impl Dialect {
    /// Istio's build. No supported version needs other output than the newest, so all versions are one dialect.
    pub const fn istio(_version: &str) -> Self {
        Self {
            agent: true,
            files: false,
            extensions: u32::MAX,
        }
    }

    /// A proxy that lists its extensions. A list that names anything of Istio's is the list of Istio's build, which has all
    /// we emit under names of its own choosing; an empty list says nothing, and is what Istio's agent sends.
    pub fn from_extensions(listed: &BTreeSet<&str>) -> Self {
        if listed.is_empty() || listed.iter().any(|name| name.contains("istio")) {
            return Self::istio("");
        }
        let extensions = LISTED
            .iter()
            .filter(|(_, name)| listed.contains(name))
            .fold(0, |bits, (e, _)| bits | bit(*e));
        Self {
            agent: false,
            files: false,
            extensions,
        }
    }

    /// The same proxy with the files that users name in its reach.
    #[must_use]
    pub const fn with_files(self) -> Self {
        Self {
            files: !self.agent,
            ..self
        }
    }

    /// Whether a file is named by its path. Otherwise somebody must deliver it as a secret, or nothing is trusted.
    pub(crate) const fn reads_files(&self) -> bool {
        self.files
    }

    /// Whether the mesh's mutual TLS can be used: somebody serves the certificates.
    pub const fn mesh_identity(&self) -> bool {
        self.agent
    }

    pub(crate) const fn has(&self, extension: Extension) -> bool {
        self.extensions & bit(extension) != 0
    }
}

const fn bit(extension: Extension) -> u32 {
    1 << extension as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_extension_has_its_own_bit() {
        let all = LISTED.iter().fold(0, |bits, (e, _)| bits | bit(*e));
        assert_eq!(all.count_ones() as usize, LISTED.len());
    }

    #[test]
    fn istio_is_known_by_its_extensions() {
        let istio = BTreeSet::from(["envoy.filters.http.router", "istio.stats"]);
        assert_eq!(Dialect::from_extensions(&istio), Dialect::istio("1.31.0"));
        assert_eq!(
            Dialect::from_extensions(&BTreeSet::new()),
            Dialect::istio("1.30.1")
        );
    }

    #[test]
    fn a_stock_proxy_has_what_it_lists() {
        let stock = Dialect::from_extensions(&BTreeSet::from([
            "envoy.filters.http.router",
            "envoy.filters.http.cors",
        ]));
        assert!(stock.has(Extension::Cors));
        assert!(!stock.has(Extension::Fault));
        assert!(!stock.has(Extension::Stats));
        assert!(!stock.mesh_identity());
    }
}
