//! Endpoints, sent by themselves or written into a cluster.

use pilotfish_ir::EndpointSet;
use pilotfish_ir::endpoint::{Endpoint, EndpointGroup, Health, Locality};
use pilotfish_protos::envoy::config::core::v3 as core;
use pilotfish_protos::envoy::config::endpoint::v3 as pb;
use pilotfish_protos::google::protobuf as g;

use crate::{names, value};

/// The same for every dialect: a proxy that has no use for the metadata ignores it, and all proxies share the bytes.
pub(crate) fn assignment(set: &EndpointSet) -> pb::ClusterLoadAssignment {
    pb::ClusterLoadAssignment {
        cluster_name: names::cluster_name(&set.cluster),
        endpoints: set
            .groups
            .iter()
            .map(|group| locality(group, set.with_health))
            .collect(),
        policy: set
            .overprovisioning
            .map(|percent| pb::cluster_load_assignment::Policy {
                overprovisioning_factor: Some(value::u32(percent)),
                ..Default::default()
            }),
        ..Default::default()
    }
}

fn locality(group: &EndpointGroup, with_health: bool) -> pb::LocalityLbEndpoints {
    let Locality {
        region,
        zone,
        subzone,
    } = &group.locality;
    // A group that takes part in weighing, or would if anything were left of it, says where it is even if that is nowhere.
    let weighed = group.weight > 0 || group.endpoints.is_empty();
    let named = weighed || group.locality != Locality::default();
    pb::LocalityLbEndpoints {
        locality: named.then(|| core::Locality {
            region: value::string(region),
            zone: value::string(zone),
            sub_zone: value::string(subzone),
        }),
        lb_endpoints: group
            .endpoints
            .iter()
            .map(|e| endpoint(e, with_health))
            .collect(),
        load_balancing_weight: weight(group.weight),
        priority: group.priority,
        ..Default::default()
    }
}

fn endpoint(endpoint: &Endpoint, with_health: bool) -> pb::LbEndpoint {
    let health = match endpoint.health {
        Health::Draining => core::HealthStatus::Draining,
        _ if !with_health => core::HealthStatus::Unknown,
        Health::Unknown => core::HealthStatus::Unknown,
        Health::Healthy => core::HealthStatus::Healthy,
        Health::Unhealthy => core::HealthStatus::Unhealthy,
    };
    pb::LbEndpoint {
        health_status: health.into(),
        metadata: metadata(endpoint),
        load_balancing_weight: weight(endpoint.weight),
        host_identifier: Some(pb::lb_endpoint::HostIdentifier::Endpoint(pb::Endpoint {
            address: Some(value::address(&endpoint.address)),
            hostname: value::string(&endpoint.hostname),
            additional_addresses: endpoint
                .additional
                .iter()
                .map(|a| pb::endpoint::AdditionalAddress {
                    address: Some(value::address(a)),
                })
                .collect(),
            ..Default::default()
        })),
    }
}

/// Who the workload is, and the key by which a cluster picks the transport socket.
fn metadata(endpoint: &Endpoint) -> Option<core::Metadata> {
    let mut metadata = core::Metadata::default();
    if endpoint.mutual_tls {
        let mode = value::fields([("tlsMode", value::text_value("istio"))]);
        metadata
            .filter_metadata
            .insert("envoy.transport_socket_match".to_owned(), mode);
    }
    if !endpoint.workload.is_empty() {
        let workload = value::fields([("workload", value::text_value(endpoint.workload.as_str()))]);
        metadata
            .filter_metadata
            .insert("istio".to_owned(), workload);
    }
    (!metadata.filter_metadata.is_empty()).then_some(metadata)
}

/// Zero is not a weight Envoy takes; it stands for none.
fn weight(weight: u32) -> Option<g::UInt32Value> {
    (weight > 0).then(|| value::u32(weight))
}
