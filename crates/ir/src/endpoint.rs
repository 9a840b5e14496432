//! Endpoints of one upstream.

use crate::{ClusterName, Text};

/// All endpoints of one upstream, in groups; order is canonical.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointSet {
    /// The upstream.
    pub cluster: ClusterName,
    /// Groups of equal locality and priority.
    pub groups: Vec<EndpointGroup>,
    /// Traffic beyond what healthy endpoints may take spills at this percentage; `None` leaves the default.
    pub overprovisioning: Option<u32>,
    /// Health is written on each endpoint (EDS does, static lists do only of those that drain).
    pub with_health: bool,
}

/// Endpoints of one locality at one priority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointGroup {
    /// Where they are.
    pub locality: Locality,
    /// 0 is used first.
    pub priority: u32,
    /// Weight of the group.
    pub weight: u32,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// A place.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locality {
    /// Region.
    pub region: Text,
    /// Zone.
    pub zone: Text,
    /// Subzone.
    pub subzone: Text,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Where it listens.
    pub address: Address,
    /// Further addresses of the same endpoint (dual stack).
    pub additional: Vec<Address>,
    /// Health.
    pub health: Health,
    /// Weight.
    pub weight: u32,
    /// It speaks mutual TLS.
    pub mutual_tls: bool,
    /// `name;namespace;canonical name;canonical revision;cluster` for telemetry; empty: none.
    pub workload: Text,
    /// Host name, for auto host rewrite of headless services.
    pub hostname: Text,
}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// IP or host name, and port.
    Socket(Text, u16),
    /// Unix domain socket.
    Unix(Text),
}

/// Health of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// Nobody says; taken as healthy, but not written.
    Unknown,
    /// Takes traffic.
    Healthy,
    /// Takes none.
    Unhealthy,
    /// Takes no new traffic.
    Draining,
}
