//! DestinationRules: what they are for, and what others of the same host leave of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::{DestinationRule, Subset, TrafficPolicy};
use pilotfish_lower::policy;
use pilotfish_mesh::{ExportTo, Registry, Resolution, Service, Text, lookup};

use crate::report::{Report, listed};
use crate::scene::Scene;
use crate::virtual_services::unknown;

fn exported(scene: &Scene<'_>, object: &Object, rule: &DestinationRule) -> ExportTo {
    let default = &scene.mesh().default_destination_rule_export_to;
    policy::export_to(&rule.export_to, default, &object.key.namespace)
}

/// Hosts, ports and subsets that are not there.
pub(crate) fn hosts<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let Some(rule) = object.get::<DestinationRule>() else {
        return;
    };
    let name = scene.resolve(&rule.host, object);
    let services = scene.covered(&name);
    if services.is_empty() {
        report.warn(
            ("unknown-host", object, "spec.host"),
            unknown(scene, &name),
            "the rule has no effect",
        );
        return;
    }
    ports(
        object,
        "spec.trafficPolicy",
        rule.traffic_policy.as_ref(),
        &services,
        report,
    );
    for (i, subset) in rule.subsets.iter().enumerate() {
        let at = format!("spec.subsets[{i}]");
        ports(
            object,
            &format!("{at}.trafficPolicy"),
            subset.traffic_policy.as_deref(),
            &services,
            report,
        );
        if is_empty(scene, subset, &services) {
            report.warn(
                ("empty-subset", object, &at),
                format!(
                    "no endpoint of {name} has the labels of subset {}",
                    subset.name
                ),
                "requests to the subset fail",
            );
        }
    }
}

/// A rule for workloads that are not there.
pub(crate) fn selector<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let rule = object.get::<DestinationRule>();
    let Some(selector) = rule.and_then(|rule| rule.workload_selector.as_ref()) else {
        return;
    };
    let running = scene.running();
    let selected = running
        .iter()
        .any(|runs| *runs.namespace() == object.key.namespace && runs.has(&selector.match_labels));
    if !running.is_empty() && !selected {
        report.warn(
            ("selects-nothing", object, "spec.workloadSelector"),
            "no workload of the namespace has these labels",
            "the rule has no effect",
        );
    }
}

fn ports(
    object: &Object,
    at: &str,
    policy: Option<&TrafficPolicy>,
    services: &[&Arc<Service>],
    report: &mut Report,
) {
    let settings = policy.map_or(&[][..], |p| &p.port_level_settings);
    for (i, setting) in settings.iter().enumerate() {
        let Some(port) = &setting.port else {
            continue;
        };
        let mut known = services.iter().flat_map(|s| &s.ports);
        if !known.any(|p| u32::from(p.number) == port.number) {
            report.warn(
                (
                    "unknown-port",
                    object,
                    &format!("{at}.portLevelSettings[{i}].port"),
                ),
                format!("its host has no port {}", port.number),
                "the settings have no effect",
            );
        }
    }
}

fn is_empty(scene: &Scene<'_>, subset: &Subset, services: &[&Arc<Service>]) -> bool {
    // Of services whose endpoints are found elsewhere nothing can be said.
    let blind = services.iter().any(|service| {
        matches!(
            service.resolution,
            Resolution::DynamicDns | Resolution::Alias
        ) || service.registry == Registry::External && service.resolution == Resolution::Passthrough
    });
    if subset.labels.is_empty() || blind {
        return false;
    }
    let known = services.iter().filter_map(|s| scene.endpoints(&s.id));
    !known
        .flat_map(|endpoints| endpoints.by_port.values().flatten())
        .any(|endpoint| lookup::selects(&subset.labels, &endpoint.labels))
}

/// Rules of one namespace for one host with equal selector and visibility become one: the oldest policy counts, and the
/// oldest subset of a name. Where the visibility differs they stay apart, and a proxy follows the oldest that it sees.
pub(crate) fn merging(scene: &Scene<'_>, report: &mut Report) {
    for (host, ranked) in scene.destination_rules() {
        let mut by_namespace: BTreeMap<&Text, Vec<(&Arc<Object>, &DestinationRule)>> =
            BTreeMap::new();
        for object in ranked.iter() {
            let Some(rule) = object.get::<DestinationRule>() else {
                continue;
            };
            let earlier = by_namespace.entry(&object.key.namespace).or_default();
            pairs(scene, host, earlier, (object, rule), report);
            earlier.push((object, rule));
        }
    }
}

fn pairs(
    scene: &Scene<'_>,
    host: &Text,
    earlier: &[(&Arc<Object>, &DestinationRule)],
    (object, rule): (&Arc<Object>, &DestinationRule),
    report: &mut Report,
) {
    let own = exported(scene, object, rule);
    let labels = |rule: &DestinationRule| {
        rule.workload_selector
            .as_ref()
            .map(|s| s.match_labels.clone())
    };
    let alike: Vec<_> = earlier
        .iter()
        .filter(|(_, other)| labels(other) == labels(rule))
        .collect();
    let (merged, apart): (Vec<_>, Vec<_>) = alike
        .into_iter()
        .partition(|(other, theirs)| exported(scene, other, theirs) == own);
    if let Some((other, _)) = apart.first() {
        let names = listed([&other.key]);
        report.warn(
            ("rule-shadowed", object, "spec.exportTo"),
            format!("{names}, which is older, is for host {host} too and exported elsewhere"),
            "they are not merged; proxies that see both follow the older",
        );
    }
    let policy = merged
        .iter()
        .find(|(_, other)| other.traffic_policy.is_some());
    if let (Some((other, _)), Some(_)) = (policy, &rule.traffic_policy) {
        report.error(
            ("rule-shadowed", object, "spec.trafficPolicy"),
            format!(
                "{}, which is older, has a policy for host {host}",
                other.key
            ),
            "this policy is not used",
        );
    }
    for (i, subset) in rule.subsets.iter().enumerate() {
        let named = |other: &DestinationRule| other.subsets.iter().any(|s| s.name == subset.name);
        if let Some((other, _)) = merged.iter().find(|(_, other)| named(other)) {
            report.error(
                ("duplicate-subset", object, &format!("spec.subsets[{i}]")),
                format!(
                    "{}, which is older, has subset {} for host {host}",
                    other.key, subset.name
                ),
                "this subset is not used",
            );
        }
    }
}
