//! `WorkloadEntry`, `WorkloadGroup` and `ProxyConfig`.

use std::collections::BTreeSet;

use super::common::{at_most_one, labels, port, port_name, selector, unix_path};
use super::gateway::UNIX;
use super::host;
use crate::finding::Checker;
use crate::networking::{ProxyConfig, ReadinessProbe, WorkloadEntry, WorkloadGroup};

/// An entry on its own, or an endpoint of a service entry with the names of its ports.
pub(super) fn check_entry(
    check: &mut Checker,
    entry: &WorkloadEntry,
    service_ports: Option<&BTreeSet<String>>,
    names_allowed: bool,
) {
    let address = entry.address.as_str();
    if address.is_empty() {
        if entry.network.is_empty() {
            return check.error("address is required");
        }
        check.warn("address is not set", "the gateways of the network are used");
    } else if let Some(path) = address.strip_prefix(UNIX) {
        check.result("address", unix_path(path));
        check.error_if(
            !entry.ports.is_empty(),
            "ports",
            "a unix socket has no ports",
        );
        if service_ports.is_some_and(|ports| ports.len() != 1) {
            check.error("a unix socket serves exactly one port");
        }
    } else if !host::is_ip(address) {
        if !names_allowed {
            check.result("address", host::ip(address));
        } else if host::domain(address).is_err() {
            check.field("address", |check| {
                check.error(format!(
                    "{address:?} is neither a host name nor an IP address"
                ));
            });
        }
    }
    endpoint_ports(check, entry, service_ports);
    labels(check, "labels", &entry.labels);
}

pub(super) fn endpoint_ports(
    check: &mut Checker,
    entry: &WorkloadEntry,
    service_ports: Option<&BTreeSet<String>>,
) {
    check.entries("ports", &entry.ports, |check, name, number| {
        if service_ports.is_some_and(|ports| !ports.contains(name)) {
            check.error("the service entry has no port of that name");
        }
        if let Err(reason) = port_name(name) {
            check.error(reason);
        }
        if let Err(reason) = port(*number) {
            check.error(reason);
        }
    });
}

pub(super) fn check_group(check: &mut Checker, group: &WorkloadGroup) {
    if group.template.is_none() {
        check.error("template is required");
    }
    check.some("metadata", group.metadata.as_ref(), |check, meta| {
        labels(check, "labels", &meta.labels);
    });
    check.some("probe", group.probe.as_ref(), probe);
}

fn probe(check: &mut Checker, probe: &ReadinessProbe) {
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        check.error_if(value < 0, name, "must not be negative");
    }
    let methods = [
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
        ("exec", probe.exec.is_some()),
        ("grpc", probe.grpc.is_some()),
    ];
    at_most_one(check, &methods);
    if methods.iter().all(|(_, set)| !set) {
        check.error("one of httpGet, tcpSocket, exec and grpc is required");
    }
    check.some("httpGet", probe.http_get.as_ref(), |check, http| {
        check.result("port", port(http.port));
        let scheme = http.scheme.as_str();
        check.error_if(
            !matches!(scheme, "" | "HTTP" | "HTTPS"),
            "scheme",
            "must be HTTP or HTTPS",
        );
        check.each("httpHeaders", &http.http_headers, |check, header| {
            let valid = !header.name.is_empty()
                && header
                    .name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            check.error_if(!valid, "name", "invalid header name");
        });
    });
    check.some("tcpSocket", probe.tcp_socket.as_ref(), |check, tcp| {
        check.result("port", port(tcp.port));
    });
    check.some("exec", probe.exec.as_ref(), |check, exec| {
        check.error_if(exec.command.is_empty(), "command", "must not be empty");
    });
}

pub(super) fn check_proxy_config(check: &mut Checker, config: &ProxyConfig) {
    selector(check, "selector", config.selector.as_ref());
    check.error_if(
        config.concurrency.unwrap_or_default() < 0,
        "concurrency",
        "must not be negative",
    );
}
