//! Services, whoever declared them.

use std::collections::{BTreeMap, BTreeSet};

use pilotfish_config::ObjectKey;

use crate::{Labels, Protocol, Settings, Text};

/// Identity of a service: one host may be declared in several namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId {
    /// Host name.
    pub host: Text,
    /// Namespace it was declared in.
    pub namespace: Text,
}

/// Who declared a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Registry {
    /// A Kubernetes Service.
    Kubernetes,
    /// A ServiceEntry.
    External,
}

/// How a client finds an endpoint of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// It is told the endpoints.
    ClientSide,
    /// It resolves names and uses all answers.
    Dns,
    /// It resolves a name and uses the first answer.
    DnsRoundRobin,
    /// It uses the address the application chose.
    Passthrough,
    /// It resolves the name in the request.
    DynamicDns,
    /// The service is another name of [`Service::alias_of`].
    Alias,
}

/// Who may see an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExportTo {
    /// Everybody.
    Public,
    /// Its own namespace.
    Private,
    /// Nobody.
    None,
    /// These namespaces (`.` already replaced).
    Namespaces(BTreeSet<Text>),
}

impl ExportTo {
    /// From the words of an `exportTo` list in `owner`; `None` if the list is empty. `*` beats `~`, which beats names.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>, owner: &str) -> Option<Self> {
        let words: BTreeSet<&str> = words
            .into_iter()
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(|word| if word == "." { owner } else { word })
            .collect();
        Some(if words.is_empty() {
            return None;
        } else if words.contains("*") {
            Self::Public
        } else if words.contains("~") {
            Self::None
        } else if words.len() == 1 && words.contains(owner) {
            Self::Private
        } else {
            Self::Namespaces(words.into_iter().map(Text::from).collect())
        })
    }

    /// Whether a proxy in `namespace` may see an object declared in `owner`.
    pub fn visible(&self, namespace: &str, owner: &str) -> bool {
        match self {
            Self::Public => true,
            Self::Private => namespace == owner,
            Self::None => false,
            Self::Namespaces(set) => set.iter().any(|n| &**n == namespace),
        }
    }
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Name, unique in the service; may be empty.
    pub name: Text,
    /// Number clients use.
    pub number: u16,
    /// What it speaks.
    pub protocol: Protocol,
}

/// Where clients should prefer to send traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficDistribution {
    /// Anywhere.
    #[default]
    Any,
    /// The closest: network, region, zone, subzone.
    PreferClose,
    /// The same zone.
    PreferSameZone,
    /// The same node.
    PreferSameNode,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Identity.
    pub id: ServiceId,
    /// Short name for telemetry: the Kubernetes name, or the host of a ServiceEntry.
    pub name: Text,
    /// Who declared it.
    pub registry: Registry,
    /// The object it comes from.
    pub source: ObjectKey,
    /// Creation time in unix seconds; 0 if unknown. Older wins.
    pub created: i64,
    /// How endpoints are found.
    pub resolution: Resolution,
    /// It is outside the mesh: no mutual TLS, telemetry says external.
    pub mesh_external: bool,
    /// Virtual addresses as declared: IPs or CIDRs, first is the main one; empty for headless.
    pub addresses: Vec<Text>,
    /// Virtual addresses by cluster, if they differ. Those above are of the cluster that `source` is in.
    pub cluster_addresses: Option<Box<BTreeMap<Text, Vec<Text>>>>,
    /// Addresses allocated by the control plane (IPv4 then IPv6), used where DNS is captured.
    pub auto_addresses: Vec<Text>,
    /// Ports.
    pub ports: Vec<Port>,
    /// Who may see it.
    pub export_to: ExportTo,
    /// Labels of the declaring object.
    pub labels: Labels,
    /// Which workloads it selects; `None`: no selector.
    pub selector: Option<Labels>,
    /// Host it is an alias of (ExternalName to a host of the mesh).
    pub alias_of: Option<Text>,
    /// Hosts that are aliases of this service.
    pub aliases: Vec<ServiceId>,
    /// DNS name of an ExternalName service.
    pub external_name: Option<Text>,
    /// Identities the user says its endpoints have.
    pub subject_alt_names: Vec<Text>,
    /// Endpoints get traffic before they are ready.
    pub publish_not_ready: bool,
    /// Sticky to the client's address.
    pub client_ip_affinity: bool,
    /// Only endpoints on the client's node are used.
    pub node_local: bool,
    /// Only endpoints in the client's cluster are used.
    pub cluster_local: bool,
    /// Preference for near endpoints.
    pub traffic_distribution: TrafficDistribution,
    /// Addresses by which it is reached from outside the cluster: load balancers, then external IPs.
    pub external_addresses: Vec<Text>,
    /// The ports of nodes by which it is reached from outside the cluster, if it says which nodes.
    pub on_nodes: Option<Box<OnNodes>>,
    /// Port to connect to by port number, where the address is the application's choice but the port is not.
    pub passthrough_ports: BTreeMap<u16, u16>,
}

/// A service that is reached through ports of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnNodes {
    /// Labels of the nodes.
    pub selector: Labels,
    /// Port of the nodes by port of the service.
    pub ports: BTreeMap<u16, u16>,
}

impl Service {
    /// The port with this number. TCP and UDP may share one: that of TCP is meant, since nothing is done with UDP.
    pub fn port(&self, number: u16) -> Option<&Port> {
        let mut of_number = self.ports.iter().filter(|p| p.number == number);
        let streams = of_number.clone().find(|p| p.protocol != Protocol::Udp);
        streams.or_else(|| of_number.next())
    }

    /// Whether it takes connections at this port. Nothing is done with UDP.
    pub fn takes(&self, port: u16) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|p| p.number == port && p.protocol != Protocol::Udp)
    }

    /// Its virtual addresses as seen from a cluster; none where it has none. In a cluster that does not have it, the main
    /// address is as good as any: it leads to the proxy, which knows what it stands for.
    pub fn addresses_in(&self, cluster: &str) -> &[Text] {
        match &self.cluster_addresses {
            None => &self.addresses,
            Some(all) => match all.get(cluster) {
                Some(own) => own,
                None => &self.addresses[..self.addresses.len().min(1)],
            },
        }
    }

    /// The cookie by which its sessions stay with an endpoint.
    pub fn session_cookie(&self, settings: &Settings) -> Option<&str> {
        let label = settings.text(
            "PILOT_PERSISTENT_SESSION_LABEL",
            "istio.io/persistent-session",
        );
        self.label(label)
    }

    /// The header by which its sessions stay with an endpoint.
    pub fn session_header(&self, settings: &Settings) -> Option<&str> {
        let label = settings.text(
            "PILOT_PERSISTENT_SESSION_HEADER_LABEL",
            "istio.io/persistent-session-header",
        );
        self.label(label)
    }

    /// Whether its sessions may outlive the readiness of an endpoint.
    pub fn has_sessions(&self, settings: &Settings) -> bool {
        self.session_cookie(settings).is_some() || self.session_header(settings).is_some()
    }

    /// The value of a label that is not empty.
    fn label(&self, name: &str) -> Option<&str> {
        let value = self.labels.get(name)?;
        (!value.is_empty()).then_some(value)
    }

    /// A Kubernetes headless service.
    pub fn is_headless(&self) -> bool {
        self.registry == Registry::Kubernetes && self.resolution == Resolution::Passthrough
    }
}
