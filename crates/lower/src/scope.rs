//! What lowering may know of a proxy: one type per section of its configuration.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilotfish_ir::listener::Tracing;
use pilotfish_ir::tls::CertificateFiles;
use pilotfish_mesh::reader::Known;
use pilotfish_mesh::{ExportTo, Instance, Labels, Locality, Reader, Service};

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
    /// Both, without it: of a service the family it names first is used.
    Both,
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
            Self::Dual | Self::Both => &["0.0.0.0", "::"],
        }
    }

    /// Those of them on which connections are taken that were not dialled to an address of the mesh: intercepted ones,
    /// and those of a gateway.
    pub fn entrances(self) -> &'static [&'static str] {
        match self {
            Self::Both => &self.wildcards()[..1],
            _ => self.wildcards(),
        }
    }

    /// The loopback addresses, main one first.
    pub fn loopbacks(self) -> &'static [&'static str] {
        match self {
            Self::V4 => &["127.0.0.1"],
            Self::V6 => &["::1"],
            Self::Dual | Self::Both => &["127.0.0.1", "::1"],
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
///
/// What differs between most proxies (namespace, labels, place) can only be asked about, and each answer is recorded: what was
/// made for one proxy serves all that would have answered the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// What it does.
    pub kind: ProxyKind,
    /// Address families.
    pub families: Families,
    /// It captures DNS, so allocated addresses reach it.
    pub dns_capture: bool,
    /// How it gets connections.
    pub interception: Interception,
    /// It may bind ports below 1024.
    pub privileged: bool,
    /// How it conducts itself on connections; [`Conduct::unknown`] where that does not count.
    pub conduct: Arc<Conduct>,
    who: Who,
    place: Locality,
}

/// Who a client is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    /// Namespace.
    pub namespace: Text,
    /// Cluster it is in.
    pub cluster: Text,
    /// DNS domain its short names are resolved in, such as `shop.svc.cluster.local`.
    pub dns_domain: Text,
    /// Labels that some selector reads; no others.
    pub labels: Labels,
}

/// What the first part of the DNS domain is replaced by in a client without a name, if it is the namespace.
const NAMELESS: &str = "*";

impl Client {
    /// A client of unknown conduct.
    pub fn new(kind: ProxyKind, families: Families, who: Who) -> Self {
        Self {
            kind,
            families,
            dns_capture: false,
            interception: Interception::Redirect,
            privileged: true,
            conduct: Arc::new(Conduct::unknown()),
            who,
            place: Locality::default(),
        }
    }

    /// The client at a place. Only sections that may ask for it are given it: others would differ in nothing else.
    #[must_use]
    pub fn at(mut self, locality: Locality) -> Self {
        self.place = locality;
        self
    }

    /// Whether both are at the same place: most of what is made for one then serves the other, which is no promise.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.place == other.place
    }

    /// The client without what can be asked about it.
    #[must_use]
    pub fn anonymous(&self) -> Self {
        let domain = match self.dns() {
            (Some(namespace), root) if *namespace == *self.who.namespace => {
                Text::from(format!("{NAMELESS}.svc.{root}"))
            }
            _ => self.who.dns_domain.clone(),
        };
        Self {
            who: Who {
                dns_domain: domain,
                ..Who::default()
            },
            place: Locality::default(),
            ..self.clone()
        }
    }

    /// Whether this holds of the client.
    pub fn agrees(&self, known: &Known) -> bool {
        let (own, labels) = (&self.who.namespace, &self.who.labels);
        match known {
            Known::In(namespace) => namespace == own,
            Known::NotIn(namespace) => namespace != own,
            Known::InNone(namespaces) => !namespaces.contains(own),
            Known::Labelled(k, v) => labels.get(k) == Some(v),
            Known::NotLabelled(k, v) => labels.get(k) != Some(v),
            Known::Label(k, v) => labels.get(k) == v.as_ref(),
            Known::Cluster(cluster) => *cluster == self.who.cluster,
            Known::At(place) => *place == self.place,
        }
    }

    /// Whether it is in a namespace.
    pub fn is_in(&self, reader: &Reader<'_>, namespace: &str) -> bool {
        let yes = *self.who.namespace == *namespace;
        let namespace = Text::from(namespace);
        reader.knows(if yes {
            Known::In(namespace)
        } else {
            Known::NotIn(namespace)
        });
        yes
    }

    /// Which of these namespaces it is in.
    pub fn which_of<'n>(
        &self,
        reader: &Reader<'_>,
        namespaces: &'n Arc<BTreeSet<Text>>,
    ) -> Option<&'n Text> {
        let found = namespaces.get(&self.who.namespace);
        reader.knows(match found {
            Some(own) => Known::In(own.clone()),
            None => Known::InNone(namespaces.clone()),
        });
        found
    }

    /// Its namespace, for what names it.
    pub fn namespace(&self, reader: &Reader<'_>) -> &Text {
        reader.knows(Known::In(self.who.namespace.clone()));
        &self.who.namespace
    }

    /// Its cluster, for what differs between clusters.
    pub fn cluster(&self, reader: &Reader<'_>) -> &Text {
        reader.knows(Known::Cluster(self.who.cluster.clone()));
        &self.who.cluster
    }

    /// Where it is, for what depends on how far away something is.
    pub fn place(&self, reader: &Reader<'_>) -> &Locality {
        reader.knows(Known::At(self.place.clone()));
        &self.place
    }

    /// The addresses of a service as seen from its cluster.
    pub fn addresses_of<'s>(&self, reader: &Reader<'_>, service: &'s Service) -> &'s [Text] {
        if service.cluster_addresses.is_none() {
            return &service.addresses;
        }
        service.addresses_in(self.cluster(reader))
    }

    /// Whether what is exported like this from a namespace reaches it.
    pub fn sees(&self, reader: &Reader<'_>, export_to: &ExportTo, from: &str) -> bool {
        match export_to {
            ExportTo::Public => true,
            ExportTo::None => false,
            ExportTo::Private => self.is_in(reader, from),
            ExportTo::Namespaces(all) => all.iter().any(|n| self.is_in(reader, n)),
        }
    }

    /// Whether it has a label with a value.
    pub fn is_labelled(&self, reader: &Reader<'_>, key: &str, value: &str) -> bool {
        let yes = self
            .who
            .labels
            .get(key)
            .is_some_and(|have| **have == *value);
        let (key, value) = (Text::from(key), Text::from(value));
        reader.knows(if yes {
            Known::Labelled(key, value)
        } else {
            Known::NotLabelled(key, value)
        });
        yes
    }

    /// The value of a label.
    pub fn label(&self, reader: &Reader<'_>, key: &str) -> Option<&Text> {
        let value = self.who.labels.get(key);
        reader.knows(Known::Label(Text::from(key), value.cloned()));
        value
    }

    /// Whether the resolver it uses completes short names of services of this namespace and domain without (`true`) or
    /// with (`false`) the namespace; `None`: not at all.
    pub fn completes(&self, reader: &Reader<'_>, namespace: &str, domain: &str) -> Option<bool> {
        match self.dns() {
            (Some(own), root) if root == domain => {
                // Mostly the namespace it is in, which can be asked about.
                Some(if *own == *self.who.namespace {
                    self.is_in(reader, namespace)
                } else {
                    own == namespace
                })
            }
            _ => None,
        }
    }

    /// The DNS domain, unless it is one of a namespace of Kubernetes.
    pub fn foreign_domain(&self) -> Option<&str> {
        self.dns().0.is_none().then_some(&*self.who.dns_domain)
    }

    /// Namespace and cluster domain of the DNS domain.
    fn dns(&self) -> (Option<&str>, &str) {
        match self.who.dns_domain.split_once(".svc.") {
            Some((namespace, root)) if !namespace.is_empty() => (Some(namespace), root),
            _ => (None, &self.who.dns_domain),
        }
    }
}

/// What clusters depend on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterScope {
    /// The client, and where it is: static endpoint lists are ordered by that.
    pub client: Client,
    /// Certificates it brings for calling others.
    pub files: CertificateFiles,
    /// Network it is in; empty unless there are gateways between networks.
    pub network: Text,
}

/// What endpoints depend on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointScope {
    /// The client, and where it is.
    pub client: Client,
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
    /// Network it is in: pods of other networks are no answer for headless services.
    pub network: Text,
    /// Cluster it is in: its pods are a better answer than those of other clusters that have the same name.
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
    /// Cluster it says it is in: Secrets there go before those of the config cluster.
    pub cluster: Text,
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
