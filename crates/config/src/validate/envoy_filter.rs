//! `EnvoyFilter`. Whether a patch is valid Envoy configuration is seen when it is applied.

use super::common::{at_most_one, port, workload_selector};
use super::re2;
use crate::finding::Checker;
use crate::networking::EnvoyFilter;
use crate::networking::envoy_filter::{
    ApplyTo, ConfigPatch, ListenerMatch, ObjectMatch, PatchContext, PatchOperation,
};

const HTTP_MANAGER: [&str; 2] = [
    "envoy.filters.network.http_connection_manager",
    "envoy.http_connection_manager",
];

pub(super) fn check(check: &mut Checker, filter: &EnvoyFilter) {
    workload_selector(check, "workloadSelector", filter.workload_selector.as_ref());
    if filter.workload_selector.is_some() && !filter.target_refs.is_empty() {
        check.error("only one of workloadSelector and targetRefs may be set");
    }
    check.each("configPatches", &filter.config_patches, patch);
}

fn patch(check: &mut Checker, patch: &ConfigPatch) {
    if let Some(matched) = &patch.r#match {
        check.field("match", |check| {
            at_most_one(
                check,
                &[
                    ("listener", matched.listener.is_some()),
                    ("routeConfiguration", matched.route_configuration.is_some()),
                    ("cluster", matched.cluster.is_some()),
                    ("waypoint", matched.waypoint.is_some()),
                ],
            );
            check.some("proxy", matched.proxy.as_ref(), |check, proxy| {
                check.result("proxyVersion", re2::check(&proxy.proxy_version));
            });
        });
    }
    if let Some(matched) = &patch.r#match {
        let waypoint = matched.context == PatchContext::Waypoint;
        check.field("match", |check| {
            let other = matched.listener.is_some()
                || matched.route_configuration.is_some()
                || matched.cluster.is_some();
            if waypoint && other || !waypoint && matched.waypoint.is_some() {
                check.error("waypoint is the match for context WAYPOINT, and for that only");
            }
            check.some("waypoint", matched.waypoint.as_ref(), |check, waypoint| {
                if waypoint.port_number != 0 {
                    check.result("portNumber", port(waypoint.port_number));
                }
            });
        });
        if waypoint {
            return;
        }
    }
    if patch.apply_to == ApplyTo::Invalid {
        return check.error("applyTo is required");
    }
    let Some(change) = &patch.patch else {
        return check.error("patch is required");
    };
    check.field("patch", |check| {
        if change.operation == PatchOperation::Invalid {
            check.error("operation is required");
        } else if change.operation != PatchOperation::Remove && change.value.is_none() {
            check.error(format!(
                "value is required for operation {}",
                change.operation
            ));
        }
        let object = change
            .value
            .as_ref()
            .is_none_or(serde_json::Value::is_object);
        check.error_if(!object, "value", "expected an object");
    });
    if let Some(matched) = &patch.r#match {
        check.field("match", |check| fits(check, patch.apply_to, matched));
    }
}

/// That what is matched is of the sort that is patched.
fn fits(check: &mut Checker, apply_to: ApplyTo, matched: &ObjectMatch) {
    let other = |own: bool| {
        !own && (matched.listener.is_some()
            || matched.route_configuration.is_some()
            || matched.cluster.is_some()
            || matched.waypoint.is_some())
    };
    let wanted = match apply_to {
        ApplyTo::Listener | ApplyTo::FilterChain | ApplyTo::NetworkFilter | ApplyTo::HttpFilter => {
            (other(matched.listener.is_some()), "listener")
        }
        ApplyTo::RouteConfiguration | ApplyTo::VirtualHost | ApplyTo::HttpRoute => (
            other(matched.route_configuration.is_some()),
            "routeConfiguration",
        ),
        ApplyTo::Cluster => (other(matched.cluster.is_some()), "cluster"),
        _ => (false, ""),
    };
    if wanted.0 {
        check.error(format!("applyTo {apply_to} needs a match by {}", wanted.1));
    }
    if wanted.1 == "listener" {
        check.some("listener", matched.listener.as_ref(), |check, listener| {
            check.field("filterChain", |check| {
                filter_match(check, apply_to, listener);
            });
        });
    }
}

fn filter_match(check: &mut Checker, apply_to: ApplyTo, listener: &ListenerMatch) {
    let Some(filter) = listener
        .filter_chain
        .as_ref()
        .and_then(|chain| chain.filter.as_ref())
    else {
        return;
    };
    check.field("filter", |check| {
        if matches!(apply_to, ApplyTo::Listener | ApplyTo::FilterChain) {
            check.warn(
                format!("has no meaning for applyTo {apply_to}"),
                "it is ignored",
            );
        }
        if filter.name.is_empty() {
            return check.error("name is required");
        }
        check.some("subFilter", filter.sub_filter.as_ref(), |check, sub| {
            if apply_to != ApplyTo::HttpFilter {
                check.error("is possible for applyTo HTTP_FILTER only");
            } else if !HTTP_MANAGER.contains(&filter.name.as_str()) {
                check.error(format!("needs the filter {}", HTTP_MANAGER[0]));
            } else if sub.name.is_empty() {
                check.error("name is required");
            }
        });
    });
}
