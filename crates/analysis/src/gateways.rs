//! Gateways: the workloads that serve them, and who uses them.

use std::collections::BTreeSet;

use pilotfish_config::Labels;
use pilotfish_config::core::{IntOrString, Protocol as Transport, Service};
use pilotfish_config::networking::{Gateway, ServerTlsMode};
use pilotfish_mesh::Text;

use crate::report::{Report, listed};
use crate::scene::{Runs, Scene};

fn selector_text(selector: &Labels) -> String {
    listed(selector.iter().map(|(k, v)| format!("{k}={v}")))
}

/// Whether gateways serve the workloads of their own namespace only.
pub(crate) fn scoped(scene: &Scene<'_>) -> bool {
    let set = scene
        .settings()
        .features
        .get("PILOT_SCOPE_GATEWAY_TO_NAMESPACE");
    set.is_some_and(|value| &**value == "true")
}

/// Whether a workload serves a Gateway of `namespace`.
pub(crate) fn served_by(
    scene: &Scene<'_>,
    gateway: &Gateway,
    namespace: &Text,
    runs: &Runs<'_>,
) -> bool {
    (!scoped(scene) || runs.namespace() == namespace) && runs.has(&gateway.selector)
}

/// Gateways that no workload serves, and ports that no Service of those workloads opens.
pub(crate) fn workloads(scene: &Scene<'_>, report: &mut Report) {
    if scene.gateways().is_empty() {
        return;
    }
    let running = scene.running();
    // Of a mesh of which no workload is described nothing can be said.
    if running.is_empty() {
        return;
    }
    for (object, gateway) in scene.list::<Gateway>() {
        let serving: Vec<&Runs<'_>> = running
            .iter()
            .filter(|runs| served_by(scene, gateway, &object.key.namespace, runs))
            .collect();
        if serving.is_empty() {
            report.warn(
                ("selects-nothing", object, "spec.selector"),
                format!(
                    "no workload has the labels {}",
                    selector_text(&gateway.selector)
                ),
                "no proxy serves it",
            );
            continue;
        }
        let Some(open) = open_ports(scene, &serving) else {
            continue;
        };
        for (i, server) in gateway.servers.iter().enumerate() {
            let Some(port) = &server.port else {
                continue;
            };
            if !open.contains(&port.number) {
                report.warn(
                    (
                        "port-not-open",
                        object,
                        &format!("spec.servers[{i}].port.number"),
                    ),
                    format!(
                        "no Service of its workloads has port {}, only {}",
                        port.number,
                        listed(&open)
                    ),
                    "the port is reached by the address of the workload only",
                );
            }
        }
    }
}

/// Ports and target ports of the Services that select these workloads; `None` if there is no such Service.
fn open_ports(scene: &Scene<'_>, serving: &[&Runs<'_>]) -> Option<BTreeSet<u32>> {
    let mut found = false;
    let mut open = BTreeSet::new();
    for (object, service) in scene.list::<Service>() {
        let selects = |runs: &&Runs<'_>| {
            *runs.namespace() == object.key.namespace && runs.has(&service.selector)
        };
        if service.selector.is_empty() || !serving.iter().any(selects) {
            continue;
        }
        found = true;
        for port in service
            .ports
            .iter()
            .filter(|p| p.protocol == Transport::Tcp)
        {
            open.insert(u32::from(port.port));
            if let Some(IntOrString::Int(target)) = port.target_port {
                open.extend(u32::try_from(target));
            }
        }
    }
    found.then_some(open)
}

/// Gateways that no VirtualService is bound to.
pub(crate) fn unused(scene: &Scene<'_>, report: &mut Report) {
    let bound: BTreeSet<&Text> = scene
        .gateway_virtual_services()
        .map(|(name, _)| name)
        .collect();
    for (object, gateway) in scene.list::<Gateway>() {
        let name = Text::from(format!("{}/{}", object.key.namespace, object.key.name));
        // Some servers need no routes: they redirect, or forward by server name.
        let needs_routes = gateway.servers.iter().any(|server| {
            server
                .tls
                .as_ref()
                .is_none_or(|tls| !tls.https_redirect && tls.mode != ServerTlsMode::AutoPassthrough)
        });
        if needs_routes && !bound.contains(&name) {
            report.note(
                ("unused-gateway", object, ""),
                "no VirtualService is bound to it",
                "it answers every request with 404, and closes other connections",
            );
        }
    }
}
