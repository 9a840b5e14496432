//! The units of change.

use pilotfish_config::ObjectKey;

use crate::{ServiceId, Text};

/// Something lowering can read of a [`World`](crate::World). A change reports the facts whose *value* changed; a piece
/// that read none of them is up to date.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fact {
    /// Mesh configuration, networks and settings.
    Mesh,
    /// Which services exist, in which order, with which ports, addresses, resolution and visibility: the list, not their
    /// labels, selectors, aliases, identities or preferences.
    Services,
    /// The same of the services of one namespace.
    ServicesIn(Text),
    /// One service.
    Service(ServiceId),
    /// Services that have this port, in order.
    Port(u16),
    /// The same of the services of one namespace.
    PortIn(Text, u16),
    /// Services of this host name.
    Host(Text),
    /// The endpoints of a service.
    Endpoints(ServiceId),
    /// The identities its endpoints run as.
    Identities(ServiceId),
    /// Destination rules written for exactly this host (which may be a wildcard).
    DestinationRules(Text),
    /// Virtual services for the mesh written for exactly this host (which may be a wildcard).
    VirtualServices(Text),
    /// The same without their routes: which there are, how old, for which hosts and whom ([`Head`](crate::rules::Head)).
    VirtualServiceHeads(Text),
    /// The same with the hosts that their routes lead to ([`Leads`](crate::rules::Leads)).
    VirtualServiceLeads(Text),
    /// Which wildcard hosts have destination rules.
    DestinationRuleWildcards,
    /// Which wildcard hosts have virtual services for the mesh.
    VirtualServiceWildcards,
    /// Which hosts have virtual services for the mesh.
    VirtualServiceHosts,
    /// Virtual services bound to a gateway, `namespace/name`, without their routes.
    GatewayVirtualServiceHeads(Text),
    /// One VirtualService, wherever it is listed.
    VirtualService(ObjectKey),
    /// All Gateways.
    Gateways,
    /// Which namespaces have Sidecar objects.
    SidecarNamespaces,
    /// Sidecar objects of a namespace.
    Sidecars(Text),
    /// PeerAuthentications of a namespace.
    PeerAuthentications(Text),
    /// Gateways between networks.
    NetworkGateways,
    /// The workload at an address.
    Workload(Text),
    /// One Secret or ConfigMap.
    Secret(ObjectKey),
    /// Which Secrets a namespace has.
    Secrets(Text),
}
