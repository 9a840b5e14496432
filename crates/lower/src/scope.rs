//! What lowering may know of a proxy: one type per section of its configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_ir::listener::Tracing;
use pilotfish_ir::tls::CertificateFiles;
use pilotfish_mesh::{Instance, Locality};

use crate::Text;
use crate::conduct::Conduct;

/// What a proxy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyKind {
    /// Stands beside one workload.
    Sidecar,
    /// A gateway.
    Router,
}

/// Address families a proxy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Families {
    /// Only IPv4.
    V4,
    /// Only IPv6.
    V6,
    /// Both, with dual-stack configuration switched on.
    Dual,
}

impl Families {
    /// IPv4 addresses are usable.
    pub fn v4(self) -> bool {
        self != Self::V6
    }

    /// IPv6 addresses are usable.
    pub fn v6(self) -> bool {
        self != Self::V4
    }

    /// The addresses that mean "all", main one first.
    pub fn wildcards(self) -> &'static [&'static str] {
        match self {
            Self::V4 => &["0.0.0.0"],
            Self::V6 => &["::"],
            Self::Dual => &["0.0.0.0", "::"],
        }
    }

    /// The loopback addresses, main one first.
    pub fn loopbacks(self) -> &'static [&'static str] {
        match self {
            Self::V4 => &["127.0.0.1"],
            Self::V6 => &["::1"],
            Self::Dual => &["127.0.0.1", "::1"],
        }
    }
}

/// How a sidecar gets its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interception {
    /// iptables REDIRECT.
    Redirect,
    /// iptables TPROXY: source addresses are kept.
    Tproxy,
    /// None: the application dials the proxy.
    None,
}

/// A proxy as a client of the mesh: the part every outbound section needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// What it does.
    pub kind: ProxyKind,
    /// Namespace.
    pub namespace: Text,
    /// DNS domain its short names are resolved in, such as `shop.svc.cluster.local`.
    pub dns_domain: Text,
    /// Address families.
    pub families: Families,
    /// It captures DNS, so allocated addresses reach it.
    pub dns_capture: bool,
    /// Labels that some selector reads; no others.
    pub labels: BTreeMap<Text, Text>,
    /// How it gets connections.
    pub interception: Interception,
    /// It may bind ports below 1024.
    pub privileged: bool,
    /// How it conducts itself on connections; [`Conduct::unknown`] where that does not count.
    pub conduct: Arc<Conduct>,
}

/// What clusters depend on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterScope {
    /// The client.
    pub client: Client,
    /// Where it is: static endpoint lists are ordered by it.
    pub locality: Locality,
    /// Certificates it brings for calling others.
    pub files: CertificateFiles,
    /// Network it is in; empty unless there are gateways between networks.
    pub network: Text,
}

/// What endpoints depend on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointScope {
    /// The client.
    pub client: Client,
    /// Where it is.
    pub locality: Locality,
    /// Network it is in.
    pub network: Text,
    /// Cluster it is in.
    pub cluster: Text,
    /// Node it runs on; empty unless some service is bound to nodes.
    pub node: Text,
    /// Networks whose endpoints it asked for; empty: all.
    pub view: BTreeSet<Text>,
}

/// What the table of DNS names depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameScope {
    /// The client.
    pub client: Client,
    /// Cluster it is in: headless services of other clusters are not answered.
    pub cluster: Text,
}

/// What route tables depend on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteScope {
    /// The client.
    pub client: Client,
    /// Gateways it serves are chosen by labels, which are in the client; its own ports by its instances.
    pub instances: Vec<Instance>,
    /// The application reaches it as an HTTP proxy.
    pub http_proxy: bool,
}

/// What secrets depend on. Made only for proxies whose identity was verified.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretScope {
    /// The client, whose labels choose its Gateways.
    pub client: Client,
    /// Namespace of its verified identity.
    pub namespace: Text,
    /// Services a gateway serves.
    pub instances: Vec<Instance>,
}

/// What outbound listeners depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenerScope {
    /// The client.
    pub client: Client,
    /// How it traces requests, and who it is.
    pub tracing: Option<Tracing>,
    /// Its own address, if it is an endpoint of a headless service: it does not listen for itself.
    pub own_address: Option<Text>,
    /// Services a gateway serves (maps service ports to container ports); empty for sidecars.
    pub instances: Vec<Instance>,
    /// HTTP/1.0 is accepted.
    pub http10: bool,
    /// Port on which the application reaches it as an HTTP proxy.
    pub http_proxy: Option<u16>,
    /// Ports its own listeners have.
    pub own_ports: BTreeSet<u16>,
    /// Certificates it brings for being called.
    pub files: CertificateFiles,
}

/// What the inbound side depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboundScope {
    /// The proxy as a client, for its namespace, labels and families.
    pub client: Client,
    /// How it traces requests, and who it is.
    pub tracing: Option<Tracing>,
    /// Services its workload serves.
    pub instances: Vec<Instance>,
    /// HTTP/1.0 is accepted.
    pub http10: bool,
    /// Its own addresses, where listeners are bound to them.
    pub addresses: Vec<Text>,
    /// Ports its own listeners have.
    pub own_ports: BTreeSet<u16>,
    /// Certificates it brings for being called.
    pub files: CertificateFiles,
}
