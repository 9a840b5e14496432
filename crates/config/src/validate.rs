//! What istiod's admission webhook refuses: rules that the types alone do not express.
//!
//! An error makes the object unusable, a warning does not. Rules that need other objects (unknown hosts and subsets)
//! are not here: the mesh stage reports them.

use crate::finding::{Checker, Finding};
use crate::mesh::{MeshConfig, MeshNetworks};
use crate::object::{Object, Spec};

mod access;
mod common;
mod destination_rule;
mod envoy_filter;
mod extensions;
mod gateway;
mod header;
mod host;
mod http_route;
mod mesh;
mod re2;
mod request_auth;
mod service_entry;
mod sidecar;
mod telemetry;
mod traffic_policy;
mod virtual_service;
mod workload;

/// What is wrong with an object whose fields have the right types.
pub(crate) fn object(object: &Object) -> Vec<Finding> {
    let namespace = &*object.key.namespace;
    let mut check = Checker::at_root("spec");
    match &object.spec {
        Spec::VirtualService(spec) => virtual_service::check(&mut check, spec, namespace),
        Spec::DestinationRule(spec) => destination_rule::check(&mut check, spec, namespace),
        Spec::Gateway(spec) => gateway::check(&mut check, spec),
        Spec::ServiceEntry(spec) => service_entry::check(&mut check, spec, object),
        Spec::Sidecar(spec) => sidecar::check(&mut check, spec),
        Spec::WorkloadEntry(spec) => workload::check_entry(&mut check, spec, None, true),
        Spec::WorkloadGroup(spec) => workload::check_group(&mut check, spec),
        Spec::EnvoyFilter(spec) => envoy_filter::check(&mut check, spec),
        Spec::ProxyConfig(spec) => workload::check_proxy_config(&mut check, spec),
        Spec::PeerAuthentication(spec) => access::check_peer(&mut check, spec),
        Spec::RequestAuthentication(spec) => request_auth::check(&mut check, spec),
        Spec::AuthorizationPolicy(spec) => access::check_policy(&mut check, spec),
        Spec::Telemetry(spec) => telemetry::check(&mut check, spec),
        Spec::WasmPlugin(spec) => extensions::check_wasm_plugin(&mut check, spec),
        Spec::TrafficExtension(spec) => extensions::check_traffic_extension(&mut check, spec),
        Spec::Namespace(_)
        | Spec::Node(_)
        | Spec::Service(_)
        | Spec::EndpointSlice(_)
        | Spec::Endpoints(_)
        | Spec::Pod(_)
        | Spec::Secret(_)
        | Spec::ConfigMap(_)
        | Spec::ServiceAccount(_) => return Vec::new(),
    }
    let mut findings = metadata(object);
    findings.extend(check.into_findings());
    findings
}

/// Annotations that only istiod itself may set, or that mean something on one kind only.
fn metadata(object: &Object) -> Vec<Finding> {
    let mut check = Checker::at_root("metadata");
    check.field("annotations", |check| {
        for (key, value) in &object.meta.annotations {
            match &**key {
                "istio.io/always-reject"
                | "internal.istio.io/parents"
                | "internal.istio.io/parent-namespace" => {
                    check.field(key, |check| check.error("may not be set by users"));
                }
                "istio.io/dry-run" => check.field(key, |check| dry_run(check, object, value)),
                _ => {}
            }
        }
    });
    check.into_findings()
}

fn dry_run(check: &mut Checker, object: &Object, value: &str) {
    use crate::security::Action;
    let Spec::AuthorizationPolicy(policy) = &object.spec else {
        return check.error("only AuthorizationPolicy can be run dry");
    };
    if !matches!(policy.action, Action::Allow | Action::Deny) {
        check.error(format!("action {} cannot be run dry", policy.action));
    }
    let booleans = [
        "1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False",
    ];
    if !booleans.contains(&value) {
        check.error(format!("expected true or false, found {value:?}"));
    }
}

/// What is wrong with a mesh configuration, defaults included.
pub(crate) fn mesh_config(mesh: &MeshConfig) -> Vec<Finding> {
    let mut check = Checker::at_top();
    mesh::check_config(&mut check, mesh);
    check.into_findings()
}

/// What is wrong with the networks.
pub(crate) fn mesh_networks(networks: &MeshNetworks) -> Vec<Finding> {
    let mut check = Checker::at_top();
    mesh::check_networks(&mut check, networks);
    check.into_findings()
}
