//! `Sidecar`.

use std::collections::BTreeSet;

use super::common::{Protocol, port, port_name, protocol, unique, unix_path, workload_selector};
use super::gateway::{UNIX, server_tls};
use super::{host, traffic_policy, virtual_service};
use crate::finding::Checker;
use crate::networking::{
    CaptureMode, IstioEgressListener, IstioIngressListener, OutboundTrafficMode,
    OutboundTrafficPolicy, ServerTlsMode, ServerTlsSettings, Sidecar, SidecarPort,
};

pub(super) fn check(check: &mut Checker, sidecar: &Sidecar) {
    workload_selector(
        check,
        "workloadSelector",
        sidecar.workload_selector.as_ref(),
    );
    let empty = sidecar.egress.is_empty()
        && sidecar.ingress.is_empty()
        && sidecar.outbound_traffic_policy.is_none()
        && sidecar.inbound_connection_pool.is_none();
    if empty {
        check.error(
            "one of ingress, egress, outboundTrafficPolicy and inboundConnectionPool is required",
        );
    }
    let mut ports = BTreeSet::new();
    check.each("ingress", &sidecar.ingress, |check, listener| {
        ingress(check, listener, &mut ports);
    });
    check.some(
        "inboundConnectionPool",
        sidecar.inbound_connection_pool.as_ref(),
        traffic_policy::connection_pool,
    );
    egress_listeners(check, &sidecar.egress);
    check.some(
        "outboundTrafficPolicy",
        sidecar.outbound_traffic_policy.as_ref(),
        outbound_policy,
    );
}

fn listener_port(check: &mut Checker, own: &SidecarPort) {
    check.error_if(
        own.target_port > 0,
        "targetPort",
        "has no meaning for sidecars",
    );
    if !own.name.is_empty() {
        check.result("name", port_name(&own.name));
    }
    check.result("protocol", protocol(&own.protocol));
}

fn ingress(check: &mut Checker, listener: &IstioIngressListener, ports: &mut BTreeSet<u32>) {
    let Some(own) = &listener.port else {
        return check.error("port is required");
    };
    check.field("port", |check| {
        listener_port(check, own);
        check.result("number", port(own.number));
        unique(check, ports, "number", &own.number);
    });
    if !listener.bind.is_empty() {
        check.result("bind", host::ip(&listener.bind));
    }
    if !listener.default_endpoint.is_empty() {
        check.result("defaultEndpoint", endpoint(&listener.default_endpoint));
    }
    let own_protocol = Protocol::parse(&own.protocol);
    check.some("tls", listener.tls.as_ref(), |check, tls| {
        if !own_protocol.is_some_and(Protocol::is_tls) {
            check.error("is possible for HTTPS and TLS ports only");
        }
        ingress_tls(check, tls);
    });
    check.some(
        "connectionPool",
        listener.connection_pool.as_ref(),
        |check, pool| {
            traffic_policy::connection_pool(check, pool);
            if pool.http.is_some() && !own_protocol.is_some_and(Protocol::is_http) {
                check.warn(
                    "http settings on a port that is not HTTP",
                    "only the tcp settings apply",
                );
            }
        },
    );
}

/// `127.0.0.1:80`, `0.0.0.0:80`, `[::1]:80`, `[::]:80`, `:80` or a unix socket.
fn endpoint(text: &str) -> Result<(), String> {
    if let Some(path) = text.strip_prefix(UNIX) {
        return unix_path(path);
    }
    let (address, number) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("{text:?} has no port"))?;
    if !matches!(address, "" | "127.0.0.1" | "0.0.0.0" | "[::1]" | "[::]") {
        return Err(format!("{address:?} is not a local address"));
    }
    let number: u32 = number
        .parse()
        .map_err(|_| format!("{number:?} is not a port number"))?;
    port(number)
}

fn ingress_tls(check: &mut Checker, tls: &ServerTlsSettings) {
    for (name, set) in [
        ("subjectAltNames", !tls.subject_alt_names.is_empty()),
        ("httpsRedirect", tls.https_redirect),
        ("credentialName", !tls.credential_name.is_empty()),
        ("credentialNames", !tls.credential_names.is_empty()),
        ("tlsCertificates", !tls.tls_certificates.is_empty()),
    ] {
        check.error_if(set, name, "is not supported for sidecars");
    }
    check.error_if(
        matches!(
            tls.mode,
            ServerTlsMode::IstioMutual | ServerTlsMode::AutoPassthrough
        ),
        "mode",
        format!("{} is not supported for sidecars", tls.mode),
    );
    server_tls(check, tls);
}

fn egress_listeners(check: &mut Checker, listeners: &[IstioEgressListener]) {
    let (mut ports, mut sockets) = (BTreeSet::new(), BTreeSet::new());
    let mut remaining = listeners.len();
    check.each("egress", listeners, |check, listener| {
        remaining -= 1;
        match &listener.port {
            None if remaining > 0 => {
                check.error("a listener without port must be the last, and the only one");
            }
            None => {}
            Some(own) => {
                check.field("port", |check| listener_port(check, own));
                if own.number == 0 {
                    match listener.bind.strip_prefix(UNIX) {
                        Some(path) => check.result("bind", unix_path(path)),
                        None => check.error("port 0 needs a unix socket as bind"),
                    }
                    check.error_if(
                        listener.capture_mode == CaptureMode::Iptables,
                        "captureMode",
                        "must be DEFAULT or NONE for a unix socket",
                    );
                    unique(check, &mut sockets, "bind", &listener.bind);
                } else {
                    check.field("port", |check| {
                        check.result("number", port(own.number));
                        unique(check, &mut ports, "number", &own.number);
                    });
                    if !listener.bind.is_empty() {
                        check.result("bind", host::ip(&listener.bind));
                    }
                }
            }
        }
        egress_hosts(check, &listener.hosts);
    });
}

fn egress_hosts(check: &mut Checker, hosts: &[String]) {
    if hosts.is_empty() {
        check.field("hosts", |check| {
            check.error("at least one host is required");
        });
    }
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    check.each("hosts", hosts, |check, name| {
        if let Err(reason) = host::namespaced(name, false) {
            check.error(reason);
        }
    });
    for (index, name) in hosts.iter().enumerate() {
        let covered = name.split_once('/').is_some_and(|(namespace, host)| {
            host != "*" && seen.contains(format!("{namespace}/*").as_str())
        });
        if !seen.insert(name)
            || covered
            || seen.contains("*/*") && name != "*/*" && !name.starts_with('~')
        {
            let reason = format!("{name} is covered by another host");
            check.field("hosts", |check| {
                check.index(index, |check| {
                    check.warn(reason, "it has no effect of its own");
                });
            });
        }
    }
}

fn outbound_policy(check: &mut Checker, policy: &OutboundTrafficPolicy) {
    check.some(
        "egressProxy",
        policy.egress_proxy.as_ref(),
        |check, proxy| {
            if policy.mode != OutboundTrafficMode::AllowAny {
                check.error("is possible with mode ALLOW_ANY only");
            }
            check.result("host", host::domain(&proxy.host));
            if proxy.port.is_none() {
                check.error("port is required");
            }
            virtual_service::destination(check, proxy);
        },
    );
}
