//! Shapes of emitted endpoints.

use pilotfish_ir::endpoint::{Address, Health, Locality};
use serde_json::json;

use crate::support::*;

#[test]
fn localities() {
    let mut first = endpoint("10.244.1.11", 8080);
    first.mutual_tls = true;
    first.workload = text("web-v1-6d8c0f-a1x;shop;web;v1;Kubernetes");
    first.additional = vec![Address::Socket(text("fd00:10:244::1"), 8080)];
    let mut second = endpoint("10.244.1.12", 8080);
    second.health = Health::Unhealthy;
    second.weight = 3;
    second.workload = text("web-v2-6d8c0f-a2x;shop;web;v2;Kubernetes");
    let north = Locality {
        region: text("north"),
        zone: text("north-1"),
        subzone: text("rack-1"),
    };
    let mut far = group(
        3,
        Locality {
            region: text("south"),
            ..Default::default()
        },
        vec![second],
    );
    far.priority = 1;
    let mut set = endpoint_set(web(80), vec![group(1, north, vec![first]), far]);
    set.with_health = true;
    set.overprovisioning = Some(100);

    let encoded = pilotfish_emit::endpoints(&set, &istio());
    assert_eq!(&*encoded.name, "outbound|80||web.shop.svc.cluster.local");
    assert_eq!(
        typed(&encoded),
        json!({
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "clusterName": "outbound|80||web.shop.svc.cluster.local",
            "policy": {"overprovisioningFactor": 100},
            "endpoints": [
                {
                    "locality": {"region": "north", "zone": "north-1", "subZone": "rack-1"},
                    "loadBalancingWeight": 1,
                    "lbEndpoints": [{
                        "endpoint": {
                            "address": {"socketAddress": {"address": "10.244.1.11", "portValue": 8080}},
                            "additionalAddresses": [
                                {"address": {"socketAddress": {"address": "fd00:10:244::1", "portValue": 8080}}},
                            ],
                        },
                        "healthStatus": "HEALTHY",
                        "loadBalancingWeight": 1,
                        "metadata": {"filterMetadata": {
                            "envoy.transport_socket_match": {"tlsMode": "istio"},
                            "istio": {"workload": "web-v1-6d8c0f-a1x;shop;web;v1;Kubernetes"},
                        }},
                    }],
                },
                {
                    "locality": {"region": "south"},
                    "priority": 1,
                    "loadBalancingWeight": 3,
                    "lbEndpoints": [{
                        "endpoint": {"address": {"socketAddress": {"address": "10.244.1.12", "portValue": 8080}}},
                        "healthStatus": "UNHEALTHY",
                        "loadBalancingWeight": 3,
                        "metadata": {"filterMetadata": {
                            "istio": {"workload": "web-v2-6d8c0f-a2x;shop;web;v2;Kubernetes"},
                        }},
                    }],
                },
            ],
        })
    );
}

#[test]
fn none() {
    let encoded = pilotfish_emit::endpoints(&endpoint_set(web(80), Vec::new()), &istio());
    assert_eq!(
        body(&encoded),
        json!({"clusterName": "outbound|80||web.shop.svc.cluster.local"})
    );
}
