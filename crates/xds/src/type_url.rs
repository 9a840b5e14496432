//! Resource types: their URLs, their order in a push and what the protocol lets a server leave out.

use crate::Text;
use std::fmt;

/// The type of a resource. The order of the variants is the order of a push: what is referred to goes before what refers
/// to it (clusters before the routes that name them).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TypeUrl {
    /// Clusters (CDS).
    Cluster,
    /// Endpoints of a cluster (EDS).
    Endpoints,
    /// Listeners (LDS).
    Listener,
    /// Scopes of route tables (SRDS).
    ScopedRoute,
    /// Route tables (RDS).
    Route,
    /// Single virtual hosts of a route table (VHDS); named `<route table>/<host>`.
    VirtualHost,
    /// Filter configuration (ECDS).
    ExtensionConfig,
    /// Certificates and trust bundles (SDS).
    Secret,
    /// Runtime layers (RTDS).
    Runtime,
    /// Istio's table of DNS names (NDS).
    NameTable,
    /// Istio's per-proxy mesh configuration (PCDS).
    ProxyConfig,
    /// Workloads and services of ambient mode (WDS).
    Address,
    /// Workloads only, of ambient mode.
    Workload,
    /// Authorization policies of ambient mode (WADS).
    Authorization,
    /// Any other type, by its URL.
    Other(Text),
}

use TypeUrl as T;

/// URL and short name of every type that has a variant.
const KNOWN: &[(TypeUrl, &str, &str)] = &[
    (
        T::Cluster,
        "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "CDS",
    ),
    (
        T::Endpoints,
        "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "EDS",
    ),
    (
        T::Listener,
        "type.googleapis.com/envoy.config.listener.v3.Listener",
        "LDS",
    ),
    (
        T::ScopedRoute,
        "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration",
        "SRDS",
    ),
    (
        T::Route,
        "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "RDS",
    ),
    (
        T::VirtualHost,
        "type.googleapis.com/envoy.config.route.v3.VirtualHost",
        "VHDS",
    ),
    (
        T::ExtensionConfig,
        "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "ECDS",
    ),
    (
        T::Secret,
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "SDS",
    ),
    (
        T::Runtime,
        "type.googleapis.com/envoy.service.runtime.v3.Runtime",
        "RTDS",
    ),
    (
        T::NameTable,
        "type.googleapis.com/istio.networking.nds.v1.NameTable",
        "NDS",
    ),
    (
        T::ProxyConfig,
        "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig",
        "PCDS",
    ),
    (
        T::Address,
        "type.googleapis.com/istio.workload.Address",
        "WDS",
    ),
    (
        T::Workload,
        "type.googleapis.com/istio.workload.Workload",
        "WADS-workload",
    ),
    (
        T::Authorization,
        "type.googleapis.com/istio.security.Authorization",
        "WADS",
    ),
];

impl TypeUrl {
    /// The type with this URL.
    pub fn parse(url: &str) -> Self {
        KNOWN
            .iter()
            .find(|(_, known, _)| *known == url)
            .map_or_else(|| T::Other(Text::from(url)), |(t, _, _)| t.clone())
    }

    /// The URL, as in `type_url` of requests and of `google.protobuf.Any`.
    pub fn as_str(&self) -> &str {
        match self {
            T::Other(url) => url,
            known => KNOWN
                .iter()
                .find(|(t, _, _)| t == known)
                .map_or("", |(_, url, _)| url),
        }
    }

    /// The name operators use: `CDS`, `EDS`, …; `other` for a type without one, so that a metric's labels stay bounded.
    pub fn short(&self) -> &'static str {
        KNOWN
            .iter()
            .find(|(t, _, _)| t == self)
            .map_or("other", |(_, _, short)| short)
    }

    /// Whether the type belongs to the vocabulary of Envoy or Istio. A type that does but that nobody serves is left
    /// unanswered, as istiod does, since proxies of another version ask for it; any other unknown type is an error.
    pub fn is_known(&self) -> bool {
        !matches!(self, T::Other(_))
    }

    /// Whether the resources of this type are the whole state of the proxy: an empty first subscription means "all", and
    /// a state-of-the-world response must be complete because what it leaves out is deleted. The other types are
    /// subscribed to by name; leaving one out of a response says nothing about it.
    pub fn is_whole(&self) -> bool {
        !matches!(
            self,
            T::Endpoints | T::Route | T::VirtualHost | T::ExtensionConfig | T::Secret
        )
    }

    /// Whether an empty first subscription of the incremental protocol means "all": also of virtual hosts, which belong
    /// to the route tables a client has asked for by name.
    pub(crate) fn is_whole_if_unnamed(&self) -> bool {
        self.is_whole() || *self == T::VirtualHost
    }

    /// Whether a proxy does without a resource of this type until it comes: what there is none of is then not worth a
    /// response, unless the protocol can name it as missing.
    pub(crate) fn is_optional(&self) -> bool {
        matches!(self, T::ExtensionConfig | T::Secret)
    }

    /// Whether a subscription to `a` includes every `a/…` (Envoy's "namespace matching", used for virtual hosts).
    pub(crate) fn is_namespaced(&self) -> bool {
        matches!(self, T::VirtualHost)
    }

    /// Whether resources of other types refer to these by name, so that removing one must wait for those that did.
    pub(crate) fn is_referred_to(&self) -> bool {
        matches!(self, T::Cluster | T::Endpoints)
    }
}

impl fmt::Display for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse_back_and_order_is_that_of_a_push() {
        for (t, url, _) in KNOWN {
            assert_eq!(&TypeUrl::parse(url), t);
            assert_eq!(t.as_str(), *url);
        }
        let other = TypeUrl::parse("type.googleapis.com/foo.Bar");
        assert_eq!(other.as_str(), "type.googleapis.com/foo.Bar");
        assert_eq!(other.short(), "other");
        let mut types = vec![
            other.clone(),
            T::Route,
            T::Endpoints,
            T::Secret,
            T::Listener,
            T::Cluster,
        ];
        types.sort();
        assert_eq!(
            types,
            [
                T::Cluster,
                T::Endpoints,
                T::Listener,
                T::Route,
                T::Secret,
                other
            ]
        );
    }
}
