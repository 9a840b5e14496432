//! The kinds we keep, and which group and version each may be written in.

use std::fmt;

use serde::{Serialize, Serializer};

/// A kind of object that the store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "each variant is the Kubernetes kind of that name"
)]
pub enum Kind {
    Namespace,
    Node,
    Service,
    EndpointSlice,
    Endpoints,
    Pod,
    Secret,
    ConfigMap,
    ServiceAccount,
    VirtualService,
    DestinationRule,
    Gateway,
    ServiceEntry,
    Sidecar,
    WorkloadEntry,
    WorkloadGroup,
    EnvoyFilter,
    ProxyConfig,
    PeerAuthentication,
    RequestAuthentication,
    AuthorizationPolicy,
    Telemetry,
    WasmPlugin,
    TrafficExtension,
}

impl Kind {
    /// Every kind, in order.
    pub const ALL: [Self; 24] = [
        Self::Namespace,
        Self::Node,
        Self::Service,
        Self::EndpointSlice,
        Self::Endpoints,
        Self::Pod,
        Self::Secret,
        Self::ConfigMap,
        Self::ServiceAccount,
        Self::VirtualService,
        Self::DestinationRule,
        Self::Gateway,
        Self::ServiceEntry,
        Self::Sidecar,
        Self::WorkloadEntry,
        Self::WorkloadGroup,
        Self::EnvoyFilter,
        Self::ProxyConfig,
        Self::PeerAuthentication,
        Self::RequestAuthentication,
        Self::AuthorizationPolicy,
        Self::Telemetry,
        Self::WasmPlugin,
        Self::TrafficExtension,
    ];

    /// The Kubernetes name of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Endpoints => "Endpoints",
            Self::Pod => "Pod",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::ServiceAccount => "ServiceAccount",
            Self::VirtualService => "VirtualService",
            Self::DestinationRule => "DestinationRule",
            Self::Gateway => "Gateway",
            Self::ServiceEntry => "ServiceEntry",
            Self::Sidecar => "Sidecar",
            Self::WorkloadEntry => "WorkloadEntry",
            Self::WorkloadGroup => "WorkloadGroup",
            Self::EnvoyFilter => "EnvoyFilter",
            Self::ProxyConfig => "ProxyConfig",
            Self::PeerAuthentication => "PeerAuthentication",
            Self::RequestAuthentication => "RequestAuthentication",
            Self::AuthorizationPolicy => "AuthorizationPolicy",
            Self::Telemetry => "Telemetry",
            Self::WasmPlugin => "WasmPlugin",
            Self::TrafficExtension => "TrafficExtension",
        }
    }

    /// The name of the kind in addresses of the API.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Namespace => "namespaces",
            Self::Node => "nodes",
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::Endpoints => "endpoints",
            Self::Pod => "pods",
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
            Self::ServiceAccount => "serviceaccounts",
            Self::VirtualService => "virtualservices",
            Self::DestinationRule => "destinationrules",
            Self::Gateway => "gateways",
            Self::ServiceEntry => "serviceentries",
            Self::Sidecar => "sidecars",
            Self::WorkloadEntry => "workloadentries",
            Self::WorkloadGroup => "workloadgroups",
            Self::EnvoyFilter => "envoyfilters",
            Self::ProxyConfig => "proxyconfigs",
            Self::PeerAuthentication => "peerauthentications",
            Self::RequestAuthentication => "requestauthentications",
            Self::AuthorizationPolicy => "authorizationpolicies",
            Self::Telemetry => "telemetries",
            Self::WasmPlugin => "wasmplugins",
            Self::TrafficExtension => "trafficextensions",
        }
    }

    /// The API group; empty for the core group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::Namespace
            | Self::Node
            | Self::Service
            | Self::Endpoints
            | Self::Pod
            | Self::Secret
            | Self::ConfigMap
            | Self::ServiceAccount => "",
            Self::EndpointSlice => "discovery.k8s.io",
            Self::VirtualService
            | Self::DestinationRule
            | Self::Gateway
            | Self::ServiceEntry
            | Self::Sidecar
            | Self::WorkloadEntry
            | Self::WorkloadGroup
            | Self::EnvoyFilter
            | Self::ProxyConfig => "networking.istio.io",
            Self::PeerAuthentication | Self::RequestAuthentication | Self::AuthorizationPolicy => {
                "security.istio.io"
            }
            Self::Telemetry => "telemetry.istio.io",
            Self::WasmPlugin | Self::TrafficExtension => "extensions.istio.io",
        }
    }

    /// The versions that are read; the first is the one we write.
    pub const fn versions(self) -> &'static [&'static str] {
        match self {
            Self::EnvoyFilter => &["v1alpha3"],
            Self::ProxyConfig => &["v1beta1"],
            Self::VirtualService
            | Self::DestinationRule
            | Self::Gateway
            | Self::ServiceEntry
            | Self::Sidecar
            | Self::WorkloadEntry
            | Self::WorkloadGroup => &["v1", "v1beta1", "v1alpha3"],
            Self::PeerAuthentication | Self::RequestAuthentication | Self::AuthorizationPolicy => {
                &["v1", "v1beta1"]
            }
            Self::Telemetry => &["v1", "v1alpha1"],
            Self::WasmPlugin | Self::TrafficExtension => &["v1alpha1"],
            _ => &["v1"],
        }
    }

    /// Group and version as an object says them, in the version that we prefer.
    pub fn api_version(self) -> String {
        let version = self.versions().first().copied().unwrap_or("v1");
        match self.group() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// Whether objects of the kind live outside namespaces.
    pub const fn cluster_scoped(self) -> bool {
        matches!(self, Self::Namespace | Self::Node)
    }

    /// Whether we model the whole kind, so that a field we do not know is a mistake.
    pub const fn is_istio(self) -> bool {
        !matches!(
            self,
            Self::Namespace
                | Self::Node
                | Self::Service
                | Self::EndpointSlice
                | Self::Endpoints
                | Self::Pod
                | Self::Secret
                | Self::ConfigMap
                | Self::ServiceAccount
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
