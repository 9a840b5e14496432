//! `ServiceEntry`.

use std::collections::BTreeSet;

use super::common::{
    AS_WRITTEN, Protocol, export_to, labels, port, port_name, protocol, unique, workload_selector,
};
use super::{host, workload};
use crate::finding::Checker;
use crate::networking::{Location, Resolution, ServiceEntry, WorkloadEntry};
use crate::object::Object;

pub(super) fn check(check: &mut Checker, entry: &ServiceEntry, object: &Object) {
    workload_selector(check, "workloadSelector", entry.workload_selector.as_ref());
    if entry.workload_selector.is_some() && !entry.endpoints.is_empty() {
        check.error("only one of workloadSelector and endpoints may be set");
    }
    hosts(check, entry);
    addresses(check, entry);
    let ports = ports(check, entry);
    match entry.resolution {
        Resolution::None => {
            check.error_if(
                !entry.endpoints.is_empty(),
                "endpoints",
                "are not possible for resolution NONE",
            );
            if entry.workload_selector.is_some() {
                check.field("workloadSelector", |check| {
                    check.warn("has no meaning for resolution NONE", "it is ignored");
                });
            }
        }
        Resolution::Static => check.each("endpoints", &entry.endpoints, |check, endpoint| {
            workload::check_entry(check, endpoint, Some(&ports), false);
        }),
        Resolution::Dns | Resolution::DnsRoundRobin => dns(check, entry, &ports),
        Resolution::DynamicDns => dynamic_dns(check, entry, object),
    }
    // Connections without a name in them cannot be told apart by host.
    let nameless =
        |protocol: &str| !Protocol::parse(protocol).is_some_and(|p| p.is_http() || p.is_tls());
    if entry.resolution != Resolution::None
        && entry.hosts.len() > 1
        && entry.ports.iter().any(|port| nameless(&port.protocol))
    {
        check.field("hosts", |check| {
            check.error("several hosts are possible for HTTP and TLS ports only");
        });
    }
    export_to(check, &entry.export_to, &object.key.namespace, true);
}

fn hosts(check: &mut Checker, entry: &ServiceEntry) {
    if entry.hosts.is_empty() {
        check.field("hosts", |check| {
            check.error("at least one host is required");
        });
    }
    check.each("hosts", &entry.hosts, |check, name| {
        if name == "*" {
            return check.error("the host * is not possible here");
        }
        if let Err(reason) = host::wildcard_domain(name) {
            return check.error(reason);
        }
        if entry.resolution != Resolution::DynamicDns
            && let Err(reason) = host::partial_wildcard(name)
        {
            check.warn(reason, AS_WRITTEN);
        }
    });
}

fn addresses(check: &mut Checker, entry: &ServiceEntry) {
    let ranges = matches!(entry.resolution, Resolution::None | Resolution::Static);
    check.each("addresses", &entry.addresses, |check, address| {
        if let Err(reason) = host::subnet(address) {
            check.error(reason);
        } else if address.contains('/') && !ranges {
            check.error("CIDR blocks are possible for resolution NONE and STATIC only");
        }
    });
}

/// Checks the ports; returns their names, which endpoints refer to.
fn ports(check: &mut Checker, entry: &ServiceEntry) -> BTreeSet<String> {
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    check.each("ports", &entry.ports, |check, own| {
        unique(check, &mut names, "name", &own.name);
        unique(check, &mut numbers, "number", &own.number);
        check.result("name", port_name(&own.name));
        check.result("protocol", protocol(&own.protocol));
        check.result("number", port(own.number));
        if own.target_port != 0 {
            check.result("targetPort", port(own.target_port));
        }
    });
    names
}

fn dns(check: &mut Checker, entry: &ServiceEntry, ports: &BTreeSet<String>) {
    if entry.endpoints.is_empty() {
        check.each("hosts", &entry.hosts, |check, name| {
            if host::domain(name).is_err() && host::wildcard_domain(name).is_ok() {
                check.error(format!(
                    "{name} cannot be resolved: a wildcard needs endpoints"
                ));
            }
        });
    }
    check.error_if(
        entry.resolution == Resolution::DnsRoundRobin && entry.endpoints.len() > 1,
        "endpoints",
        "at most one is possible for resolution DNS_ROUND_ROBIN",
    );
    check.each(
        "endpoints",
        &entry.endpoints,
        |check, endpoint: &WorkloadEntry| {
            if !host::is_ip(&endpoint.address) && host::domain(&endpoint.address).is_err() {
                check.field("address", |check| {
                    check.error(format!(
                        "{:?} is neither a host name nor an IP address",
                        endpoint.address
                    ));
                });
            }
            labels(check, "labels", &endpoint.labels);
            workload::endpoint_ports(check, endpoint, Some(ports));
        },
    );
    let tcp = entry
        .ports
        .iter()
        .any(|port| Protocol::parse(&port.protocol).is_some_and(Protocol::is_tcp));
    if !entry.addresses.is_empty() && tcp && entry.hosts.len() > 1 {
        check.field("hosts", |check| {
            check.warn(
                "several hosts share addresses and a TCP port",
                "connections reach any of them",
            );
        });
    }
}

/// Hosts that the proxy itself resolves, request by request.
fn dynamic_dns(check: &mut Checker, entry: &ServiceEntry, object: &Object) {
    check.each("hosts", &entry.hosts, |check, name| {
        if !name.starts_with('*') {
            check.error("must be a wildcard for resolution DYNAMIC_DNS");
        }
    });
    check.error_if(
        !entry.addresses.is_empty(),
        "addresses",
        "are not possible for resolution DYNAMIC_DNS",
    );
    check.error_if(
        !entry.endpoints.is_empty(),
        "endpoints",
        "are not possible for resolution DYNAMIC_DNS",
    );
    check.each("ports", &entry.ports, |check, port| {
        let named = matches!(
            Protocol::parse(&port.protocol),
            Some(Protocol::Http | Protocol::Tls | Protocol::Grpc | Protocol::Http2)
        );
        check.error_if(
            !named,
            "protocol",
            "must be HTTP, HTTP2, GRPC or TLS for resolution DYNAMIC_DNS",
        );
    });
    let waypoint = object
        .meta
        .labels
        .get("istio.io/use-waypoint")
        .is_some_and(|name| !name.is_empty() && !name.eq_ignore_ascii_case("none"));
    check.error_if(
        entry.location == Location::MeshInternal && waypoint,
        "location",
        "MESH_INTERNAL with resolution DYNAMIC_DNS is not possible behind a waypoint",
    );
}
