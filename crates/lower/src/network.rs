//! The way to endpoints of other networks: through the gateways of their network, which share the weight of what is behind
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::networking::{Gateway, ServerTlsMode};
use pilotfish_ir::endpoint::{self as ir, Address, Health};
use pilotfish_mesh::{Backend, Endpoint, EndpointHealth, Labels, Locality, NetworkGateway, Reader};

use crate::virtual_service::selects;
use crate::{Client, EndpointScope, Families, ProxyKind, Text};

/// How a client gets to an endpoint.
pub(crate) enum Way<'a> {
    /// By itself.
    Direct,
    /// Through these gateways. The server name says what is meant, so only mutual TLS can go this way.
    Through(Vec<&'a NetworkGateway>),
    /// Not at all.
    None,
}

/// The networks as a client sees them.
pub(crate) struct Networks<'a> {
    scope: &'a EndpointScope,
    gateways: &'a [NetworkGateway],
    /// All weights are multiplied by this, so that gateways can share them without a remainder.
    scale: u32,
}

/// Weight by gateway.
pub(crate) type Shares<'a> = BTreeMap<&'a NetworkGateway, u32>;

impl<'a> Networks<'a> {
    pub(crate) fn new(reader: &Reader<'a>, scope: &'a EndpointScope) -> Self {
        let gateways = reader.network_gateways();
        Self {
            scope,
            gateways,
            scale: scale(gateways),
        }
    }

    /// The same for a list that a proxy resolves itself: without endpoints behind gateways there is nothing to share.
    pub(crate) fn of_names(mut self, endpoints: &[Endpoint]) -> Self {
        if !endpoints
            .iter()
            .any(|e| matches!(self.way(e), Way::Through(_)))
        {
            self.scale = 1;
        }
        self
    }

    /// The weight of an endpoint.
    pub(crate) fn weight(&self, weight: u32) -> u32 {
        weight.max(1).saturating_mul(self.scale)
    }

    /// How the client gets to an endpoint.
    pub(crate) fn way(&self, e: &Endpoint) -> Way<'a> {
        let same = self.scope.network.is_empty()
            || e.network.is_empty()
            || self.scope.network == e.network;
        let gateways = self.of(e);
        // A client that does not say where it is goes through the gateway of those that do.
        let forced = self.scope.network.is_empty() && !e.network.is_empty() && !gateways.is_empty();
        if !forced && (same || gateways.is_empty()) {
            return if e.addresses.is_empty() {
                Way::None
            } else {
                Way::Direct
            };
        }
        let reachable: Vec<_> = gateways.into_iter().filter(|g| self.reaches(g)).collect();
        if reachable.is_empty() {
            Way::None
        } else {
            Way::Through(reachable)
        }
    }

    /// Gateways of an endpoint's network and cluster, else of its network.
    fn of(&self, e: &Endpoint) -> Vec<&'a NetworkGateway> {
        let of_network = || self.gateways.iter().filter(|g| g.network == e.network);
        let near: Vec<_> = of_network().filter(|g| g.cluster == e.cluster).collect();
        if near.is_empty() {
            of_network().collect()
        } else {
            near
        }
    }

    fn reaches(&self, gateway: &NetworkGateway) -> bool {
        let v4 = gateway
            .address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_ipv4());
        match self.scope.client.families {
            Families::Dual | Families::Both => true,
            Families::V4 => v4,
            Families::V6 => !v4,
        }
    }
}

/// Whether the client asked for endpoints of this network.
pub(crate) fn in_view(scope: &EndpointScope, e: &Endpoint) -> bool {
    scope.view.is_empty() || e.network.is_empty() || scope.view.contains(&e.network)
}

/// Spreads the weight of an endpoint over the gateways that lead to it.
pub(crate) fn share<'a>(shares: &mut Shares<'a>, gateways: &[&'a NetworkGateway], weight: u32) {
    let each = weight / u32::try_from(gateways.len()).unwrap_or(u32::MAX).max(1);
    for g in gateways {
        let sum = shares.entry(*g).or_default();
        *sum = sum.saturating_add(each);
    }
}

/// A gateway as an endpoint, with what failover may ask about it.
pub(crate) fn endpoint(gateway: &NetworkGateway, weight: u32) -> (Endpoint, ir::Endpoint) {
    let mut labels = Labels::new();
    for (key, value) in [
        ("topology.istio.io/cluster", &gateway.cluster),
        ("topology.istio.io/network", &gateway.network),
    ] {
        if !value.is_empty() {
            labels.insert(Text::from(key), value.clone());
        }
    }
    let backend = Backend {
        addresses: vec![gateway.address.clone()],
        health: EndpointHealth::Unknown,
        locality: Locality::default(),
        network: gateway.network.clone(),
        cluster: gateway.cluster.clone(),
        weight,
        mutual_tls: true,
        labels: Arc::new(labels),
        workload: Text::default(),
        namespace: Text::default(),
        node: Text::default(),
        hostname: Text::default(),
        subdomain: Text::default(),
        identity: Text::default(),
    };
    let built = ir::Endpoint {
        address: Address::Socket(gateway.address.clone(), gateway.port),
        additional: Vec::new(),
        health: Health::Unknown,
        weight: weight.max(1),
        mutual_tls: true,
        workload: Text::from(format!(";;;;{}", gateway.cluster)),
        hostname: Text::default(),
    };
    (Endpoint::new(Arc::new(backend), gateway.port), built)
}

/// Whether a proxy passes connections of other networks on by their server name.
pub(crate) fn passes_on(reader: &Reader<'_>, client: &Client) -> bool {
    if client.kind != ProxyKind::Router {
        return false;
    }
    let gateway = reader.gateways().iter().find(|object| {
        object.get::<Gateway>().is_some_and(|spec| {
            selects(reader, &spec.selector, client)
                && spec.servers.iter().any(|server| {
                    let tls = server.tls.as_ref();
                    tls.is_some_and(|t| t.mode == ServerTlsMode::AutoPassthrough)
                })
        })
    });
    if let Some(object) = gateway {
        reader.uses(&object.key);
    }
    gateway.is_some()
}

/// The least common multiple of the numbers of gateways that may share a weight: of each network, and of each network and
/// cluster.
fn scale(gateways: &[NetworkGateway]) -> u32 {
    let mut counts: BTreeMap<(&Text, Option<&Text>), u32> = BTreeMap::new();
    for g in gateways {
        *counts.entry((&g.network, None)).or_default() += 1;
        *counts.entry((&g.network, Some(&g.cluster))).or_default() += 1;
    }
    counts.into_values().fold(1, |all, n| {
        let gcd = gcd(all, n);
        all.saturating_mul(n / gcd)
    })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}
