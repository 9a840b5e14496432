//! `Telemetry`.

use super::common::{at_most_one, attachment};
use crate::finding::Checker;
use crate::telemetry::{Metrics, ProviderRef, TagOperation, Telemetry, Tracing};

pub(super) fn check(check: &mut Checker, telemetry: &Telemetry) {
    attachment(
        check,
        telemetry.selector.as_ref(),
        telemetry.target_ref.as_ref(),
        &telemetry.target_refs,
    );
    check.each("metrics", &telemetry.metrics, metrics);
    if telemetry.tracing.len() > 1 {
        check.field("tracing", |check| {
            check.warn("more than one entry", "only the first is used");
        });
    }
    check.each("tracing", &telemetry.tracing, tracing);
    check.each(
        "accessLogging",
        &telemetry.access_logging,
        |check, logging| {
            providers(check, &logging.providers);
        },
    );
}

fn providers(check: &mut Checker, list: &[ProviderRef]) {
    check.each("providers", list, |check, provider| {
        check.error_if(provider.name.is_empty(), "name", "must not be empty");
    });
}

fn metrics(check: &mut Checker, metrics: &Metrics) {
    providers(check, &metrics.providers);
    check.each("overrides", &metrics.overrides, |check, change| {
        check.entries("tagOverrides", &change.tag_overrides, |check, _, tag| {
            check.error_if(
                tag.operation == TagOperation::Upsert && tag.value.is_empty(),
                "value",
                "is required for operation UPSERT",
            );
            check.error_if(
                tag.operation == TagOperation::Remove && !tag.value.is_empty(),
                "value",
                "is not possible for operation REMOVE",
            );
        });
        check.some("match", change.r#match.as_ref(), |check, matched| {
            at_most_one(
                check,
                &[
                    ("metric", matched.metric.is_some()),
                    ("customMetric", matched.custom_metric.is_some()),
                ],
            );
            let empty = matched.custom_metric.as_ref().is_some_and(String::is_empty);
            check.error_if(empty, "customMetric", "must not be empty");
        });
    });
}

fn tracing(check: &mut Checker, tracing: &Tracing) {
    providers(check, &tracing.providers);
    if tracing.providers.len() > 1 {
        check.field("providers", |check| {
            check.warn("more than one provider", "only the first is used");
        });
    }
    let percent = tracing.random_sampling_percentage.unwrap_or_default();
    check.error_if(
        !(0.0..=100.0).contains(&percent),
        "randomSamplingPercentage",
        "must be from 0 to 100",
    );
    check.entries("customTags", &tracing.custom_tags, |check, name, tag| {
        if name.is_empty() {
            check.error("the name must not be empty");
        }
        at_most_one(
            check,
            &[
                ("literal", tag.literal.is_some()),
                ("environment", tag.environment.is_some()),
                ("header", tag.header.is_some()),
                ("formatter", tag.formatter.is_some()),
            ],
        );
        check.some("literal", tag.literal.as_ref(), |check, literal| {
            check.error_if(literal.value.is_empty(), "value", "must not be empty");
        });
        check.some(
            "environment",
            tag.environment.as_ref(),
            |check, environment| {
                check.error_if(environment.name.is_empty(), "name", "must not be empty");
            },
        );
        check.some("header", tag.header.as_ref(), |check, header| {
            check.error_if(header.name.is_empty(), "name", "must not be empty");
        });
    });
}
