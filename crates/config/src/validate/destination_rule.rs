//! `DestinationRule`.

use std::collections::BTreeSet;

use super::common::{export_to, labels, selector, unique};
use super::{host, traffic_policy};
use crate::finding::Checker;
use crate::names::is_host_label;
use crate::networking::DestinationRule;

pub(super) fn check(check: &mut Checker, rule: &DestinationRule, namespace: &str) {
    check.result("host", host::wildcard_domain(&rule.host));
    check.some(
        "trafficPolicy",
        rule.traffic_policy.as_ref(),
        traffic_policy::check,
    );
    let mut names = BTreeSet::new();
    check.each("subsets", &rule.subsets, |check, subset| {
        check.error_if(
            !is_host_label(&subset.name),
            "name",
            format!("invalid subset name {:?}", subset.name),
        );
        unique(check, &mut names, "name", &subset.name);
        labels(check, "labels", &subset.labels);
        check.some(
            "trafficPolicy",
            subset.traffic_policy.as_deref(),
            traffic_policy::check,
        );
    });
    export_to(check, &rule.export_to, namespace, false);
    selector(check, "workloadSelector", rule.workload_selector.as_ref());
    let elsewhere = rule
        .export_to
        .iter()
        .any(|entry| entry != "." && entry != namespace);
    check.error_if(
        rule.workload_selector.is_some() && elsewhere,
        "exportTo",
        "must be the own namespace only, because workloadSelector is set",
    );
}
