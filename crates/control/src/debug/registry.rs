//! Services and endpoints, with istiod's field names.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use pilotfish_mesh::{Endpoint, ExportTo, Reader, Registry, Resolution, Service};
use serde_json::{Map, Value, json as value};

use crate::http::{Pages, json};

pub(super) async fn services(State(pages): State<Pages>) -> Response {
    let world = pages.plane.world();
    let reader = Reader::new(&world);
    let cluster = reader.settings().cluster.clone();
    let shown: Vec<_> = reader
        .services()
        .iter()
        .map(|service| show(service, reader.identities(&service.id), &cluster))
        .collect();
    json(&shown)
}

/// Host, then namespace, then the shards of istiod's registries.
pub(super) async fn endpoints(State(pages): State<Pages>) -> Response {
    let world = pages.plane.world();
    let reader = Reader::new(&world);
    let mut hosts: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for service in reader.services() {
        let Some(endpoints) = reader.endpoints(&service.id) else {
            continue;
        };
        let mut shards: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (port, of_port) in &endpoints.by_port {
            for endpoint in of_port {
                let shard = format!("{}/{}", registry(service.registry), endpoint.cluster);
                shards
                    .entry(shard)
                    .or_default()
                    .push(show_endpoint(port, endpoint));
            }
        }
        let shown = value!({"Shards": shards, "ServiceAccounts": reader.identities(&service.id)});
        hosts
            .entry(service.id.host.to_string())
            .or_default()
            .insert(service.id.namespace.to_string(), shown);
    }
    json(&hosts)
}

fn show(service: &Service, identities: &[pilotfish_mesh::Text], cluster: &str) -> Value {
    let ports: Vec<_> = service
        .ports
        .iter()
        .map(|port| value!({"name": &*port.name, "port": port.number, "protocol": format!("{:?}", port.protocol)}))
        .collect();
    value!({
        "hostname": &*service.id.host,
        "Attributes": {
            "ServiceRegistry": registry(service.registry),
            "Name": &*service.name,
            "Namespace": &*service.id.namespace,
            "Labels": service.labels,
            "LabelSelectors": service.selector,
            "ExportTo": export_to(&service.export_to),
            "Aliases": service.aliases.iter().map(|id| value!({"Hostname": &*id.host, "Namespace": &*id.namespace})).collect::<Vec<_>>(),
        },
        "ports": ports,
        "serviceAccounts": identities,
        "creationTime": jiff::Timestamp::from_second(service.created).map(|time| time.to_string()).ok(),
        "clusterVIPs": {"Addresses": {cluster: service.addresses}},
        "defaultAddress": service.addresses.first().map_or("0.0.0.0", |address| &**address),
        "autoAllocatedAddresses": service.auto_addresses,
        "Resolution": resolution(service.resolution),
        "MeshExternal": service.mesh_external,
        "source": service.source.to_string(),
    })
}

fn show_endpoint(port: &str, endpoint: &Endpoint) -> Value {
    let locality = &endpoint.locality;
    value!({
        "Addresses": endpoint.addresses,
        "EndpointPort": endpoint.port,
        "ServicePortName": port,
        "HealthStatus": format!("{:?}", endpoint.health),
        "Labels": *endpoint.labels,
        "Locality": {"Label": format!("{}/{}/{}", locality.region, locality.zone, locality.subzone).trim_end_matches('/'), "ClusterID": &*endpoint.cluster},
        "Network": &*endpoint.network,
        "LbWeight": endpoint.weight,
        "TLSMode": if endpoint.mutual_tls { "istio" } else { "disabled" },
        "ServiceAccount": &*endpoint.identity,
        "Namespace": &*endpoint.namespace,
        "WorkloadName": &*endpoint.workload,
        "HostName": &*endpoint.hostname,
        "SubDomain": &*endpoint.subdomain,
        "NodeName": &*endpoint.node,
    })
}

const fn registry(registry: Registry) -> &'static str {
    match registry {
        Registry::Kubernetes => "Kubernetes",
        Registry::External => "External",
    }
}

/// The numbers of istiod's enumeration.
const fn resolution(resolution: Resolution) -> u8 {
    match resolution {
        Resolution::ClientSide => 0,
        Resolution::Dns => 1,
        Resolution::Passthrough => 2,
        Resolution::DnsRoundRobin => 3,
        Resolution::Alias => 4,
        Resolution::DynamicDns => 5,
    }
}

fn export_to(export_to: &ExportTo) -> Vec<String> {
    match export_to {
        ExportTo::Public => vec!["*".to_owned()],
        ExportTo::Private => vec![".".to_owned()],
        ExportTo::None => vec!["~".to_owned()],
        ExportTo::Namespaces(set) => set.iter().map(ToString::to_string).collect(),
    }
}
