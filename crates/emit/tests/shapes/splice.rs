//! A spliced table is the table that would have been encoded in one go.

use bytes::Bytes;
use pilotfish_ir::route::{Action, Body, PathMatch, Route};
use pilotfish_ir::{RouteTable, VirtualHost};
use pilotfish_protos::envoy::config::route::v3 as pb;
use pilotfish_protos::google::protobuf::Any;
use proptest::prelude::*;
use prost::{Message as _, Name as _};

use crate::support::*;

/// Encodes the hosts as one message, the way prost does it.
fn straightforward(table: &RouteTable, hosts: &[Bytes]) -> pb::RouteConfiguration {
    pb::RouteConfiguration {
        name: table.name.to_string(),
        virtual_hosts: hosts
            .iter()
            .map(|host| pb::VirtualHost::decode(host.clone()).unwrap())
            .collect(),
        validate_clusters: Some(pilotfish_protos::google::protobuf::BoolValue { value: false }),
        max_direct_response_body_size_bytes: table
            .max_direct_response
            .map(|value| pilotfish_protos::google::protobuf::UInt32Value { value }),
        ignore_port_in_host_matching: table.ignore_port,
        ..Default::default()
    }
}

fn any_route() -> impl Strategy<Value = Route> {
    let path = prop_oneof![
        "/[a-z]{0,20}".prop_map(|p| PathMatch::Prefix(p.into())),
        "/[a-z]{0,20}".prop_map(|p| PathMatch::Exact(p.into())),
    ];
    let action = prop_oneof![
        (1u16.., "[a-z]{0,9}", any::<bool>()).prop_map(|(port, name, split)| {
            let mut forward = forward(vec![to(subset(port, &name), 1)]);
            forward.split = split;
            Action::Forward(Box::new(forward))
        }),
        (200u32..599, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(|(status, body)| {
            Action::Respond {
                status,
                body: Some(Body::Bytes(body)),
            }
        }),
    ];
    ("\\PC{0,10}", path, action).prop_map(|(name, path, action)| {
        let mut route = route(&name, action);
        route.matches.path = path;
        route
    })
}

fn any_host() -> impl Strategy<Value = VirtualHost> {
    let domains = proptest::collection::vec("[a-z.*]{1,30}", 0..5);
    let routes = proptest::collection::vec(any_route(), 0..6);
    ("\\PC{0,200}", domains, routes, any::<bool>()).prop_map(|(name, domains, routes, flag)| {
        VirtualHost {
            name: name.into(),
            domains: domains.into_iter().map(Into::into).collect(),
            routes,
            attempt_count: flag,
            require_tls: !flag,
            session: None,
        }
    })
}

fn any_table() -> impl Strategy<Value = RouteTable> {
    ("[a-z0-9.:]{0,200}", any::<bool>(), any::<Option<u32>>()).prop_map(
        |(name, ignore_port, max)| RouteTable {
            name: name.into(),
            ignore_port,
            max_direct_response: max,
        },
    )
}

proptest! {
    #[test]
    fn equals_the_straightforward_encoding(
        table in any_table(),
        hosts in proptest::collection::vec(any_host(), 0..8),
    ) {
        let hosts: Vec<_> = hosts.iter().map(|host| pilotfish_emit::virtual_host(host, &istio())).collect();
        let encoded = pilotfish_emit::route_table(&table, &hosts);
        let any = Any::decode(encoded.any).unwrap();
        prop_assert_eq!(&any.type_url, &pb::RouteConfiguration::type_url());
        let expected = straightforward(&table, &hosts);
        prop_assert_eq!(any.value.len(), expected.encoded_len());
        prop_assert_eq!(pb::RouteConfiguration::decode(any.value).unwrap(), expected);
    }
}
