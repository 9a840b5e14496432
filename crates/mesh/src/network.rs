//! Gateways between networks.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use pilotfish_config::core::{Node, NodeAddress, Service as KubeService};
use pilotfish_config::{ClusterId, Kind, Object};

use crate::declare::{NODE_SELECTOR, ignore};
use crate::service::OnNodes;
use crate::view::NETWORK;
use crate::{Service, Text, World, index};

/// Port on which a gateway takes mutual TLS from other networks, unless its service says otherwise.
const DEFAULT_PORT: u16 = 15443;
const PORT_LABEL: &str = "networking.istio.io/gatewayPort";

/// A way into a network from outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkGateway {
    /// The network behind it.
    pub network: Text,
    /// IP address.
    pub address: Text,
    /// Port that takes mutual TLS.
    pub port: u16,
    /// Cluster whose service it is; empty: written in the mesh networks.
    pub cluster: Text,
}

/// Whether an object is a Service that may be a gateway: it can be reached from outside.
pub(crate) fn may_be_gateway(object: &Object) -> bool {
    object.get::<KubeService>().is_some_and(|service| {
        !service.load_balancer.ingress.is_empty()
            || !service.external_ips.is_empty()
            || object.meta.annotations.contains_key(NODE_SELECTOR)
    })
}

/// All gateways, by network and address. Those whose address is a name are left out: nobody resolves it.
pub(crate) fn gateways(world: &World) -> Vec<NetworkGateway> {
    let mut found = BTreeSet::new();
    let networks = &world.networks.networks;
    for (name, network) in networks {
        for gateway in &network.gateways {
            if let (Some(address), Ok(port)) = (&gateway.address, u16::try_from(gateway.port)) {
                found.insert(NetworkGateway {
                    network: Text::from(name.as_str()),
                    address: Text::from(address.as_str()),
                    port,
                    cluster: Text::default(),
                });
            }
        }
    }
    // Each cluster has gateways of its own, whatever else the host is there.
    let view = world.view();
    let objects = world.snapshot.list(Kind::Service);
    for object in objects.filter(|object| may_be_gateway(object)) {
        let (cluster, key) = (object.key.cluster, &object.key);
        let id = index::kube_id(&key.namespace, &key.name, &world.settings);
        let Some(spec) = index::kube(object) else {
            continue;
        };
        let service = view.kubernetes(object, spec, &id, &mut ignore);
        let addresses = match &service.on_nodes {
            Some(on_nodes) if service.external_addresses.is_empty() => {
                nodes(world, cluster, on_nodes)
            }
            _ => service.external_addresses.clone(),
        };
        let cluster = view.cluster_name(cluster);
        for (network, port) in fronted(world, cluster, &service) {
            let of_nodes = service.on_nodes.as_ref().and_then(|n| n.ports.get(&port));
            found.extend(addresses.iter().map(|address| NetworkGateway {
                network: network.clone(),
                address: address.clone(),
                port: of_nodes.copied().unwrap_or(port),
                cluster: cluster.clone(),
            }));
        }
    }
    let usable =
        |gateway: &NetworkGateway| gateway.port > 0 && gateway.address.parse::<IpAddr>().is_ok();
    found.into_iter().filter(usable).collect()
}

/// The addresses by which the nodes of a service are reached from outside.
fn nodes(world: &World, cluster: ClusterId, on_nodes: &OnNodes) -> Vec<Text> {
    let all = world.snapshot.in_cluster(Kind::Node, cluster);
    let selected = all.filter(|node: &&Arc<Object>| {
        let has = |(key, value): (&Text, &Text)| node.meta.labels.get(key) == Some(value);
        on_nodes.selector.iter().all(has)
    });
    selected.filter_map(|node| external_address(node)).collect()
}

/// The address by which a node is reached from outside its network.
fn external_address(node: &Object) -> Option<Text> {
    let addresses = node.get::<Node>().map_or(&[][..], |n| &n.addresses);
    let outside = |a: &&NodeAddress| a.r#type == "ExternalIP" && !a.address.is_empty();
    let found = addresses.iter().find(outside)?;
    Some(Text::from(found.address.as_str()))
}

/// The networks that a service fronts, by its label, else by the mesh networks.
fn fronted(world: &World, cluster: &str, service: &Service) -> Vec<(Text, u16)> {
    if let Some(network) = service.labels.get(NETWORK).filter(|n| !n.is_empty()) {
        let said = service.labels.get(PORT_LABEL).and_then(|p| p.parse().ok());
        let port = said.unwrap_or(DEFAULT_PORT);
        return match service.port(port) {
            Some(_) => vec![(network.clone(), port)],
            None => Vec::new(),
        };
    }
    let mut out = Vec::new();
    for (name, network) in &world.networks.networks {
        let ours = network
            .endpoints
            .iter()
            .any(|e| e.from_registry.as_deref() == Some(cluster));
        if !ours {
            continue;
        }
        let ports = network
            .gateways
            .iter()
            .filter(|gateway| gateway.registry_service_name.as_deref() == Some(&*service.id.host))
            .filter_map(|gateway| u16::try_from(gateway.port).ok());
        out.extend(ports.map(|port| (Text::from(name.as_str()), port)));
    }
    out
}
