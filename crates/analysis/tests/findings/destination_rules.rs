//! DestinationRules.

use crate::support::{object, tells};

fn rule(name: &str, created: u32, spec: &str) -> String {
    object("DestinationRule", name, created, spec)
}

#[test]
fn hosts_ports_and_subsets_are_there() {
    tells(
        "unknown-host DestinationRule/shop/x spec.host",
        &rule("shop/x", 1, "{host: nowhere}"),
        &rule("shop/x", 1, "{host: \"*.shop.svc.cluster.local\"}"),
    );
    let port = |n: u16| {
        rule(
            "shop/x",
            1,
            &format!(
                "{{host: db, trafficPolicy: {{portLevelSettings: [{{port: {{number: {n}}}, loadBalancer: {{simple: RANDOM}}}}]}}}}"
            ),
        )
    };
    tells(
        "unknown-port DestinationRule/shop/x spec.trafficPolicy.portLevelSettings[0].port",
        &port(1),
        &port(5432),
    );
    let subset = |version: &str| {
        rule(
            "edge/x",
            1,
            &format!(
                "{{host: web.shop.svc.cluster.local, subsets: [{{name: s, labels: {{version: {version}}}}}]}}"
            ),
        )
    };
    tells(
        "empty-subset DestinationRule/edge/x spec.subsets[0]",
        &subset("v3"),
        &subset("v1"),
    );
}

#[test]
fn of_a_host_that_the_client_resolves_no_endpoints_are_known() {
    let entry = |resolution: &str| {
        object(
            "ServiceEntry",
            "shop/e",
            1,
            &format!(
                "{{hosts: [e.example], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: {resolution}}}"
            ),
        )
    };
    let rule = rule(
        "shop/x",
        1,
        "{host: e.example, subsets: [{name: s, labels: {a: b}}]}",
    );
    tells(
        "empty-subset DestinationRule/shop/x spec.subsets[0]",
        &format!("{}{rule}", entry("DNS")),
        &format!("{}{rule}", entry("NONE")),
    );
}

#[test]
fn rules_of_one_host_are_merged_and_the_oldest_counts() {
    let of =
        |name: &str, created, more: &str| rule(name, created, &format!("{{host: db, {more}}}"));
    let policy = "trafficPolicy: {loadBalancer: {simple: RANDOM}}";
    let first = of("shop/a", 1, policy);
    tells(
        "rule-shadowed DestinationRule/shop/b spec.trafficPolicy",
        &format!("{first}{}", of("shop/b", 2, policy)),
        &format!(
            "{first}{}",
            of("edge/b", 2, policy).replace("host: db", "host: db.shop.svc.cluster.local")
        ),
    );
    tells(
        "rule-shadowed DestinationRule/shop/b spec.exportTo",
        &format!(
            "{first}{}",
            of("shop/b", 2, "exportTo: [shop], subsets: [{name: s}]")
        ),
        &format!("{first}{}", of("shop/b", 2, "subsets: [{name: s}]")),
    );
    tells(
        "duplicate-subset DestinationRule/shop/b spec.subsets[1]",
        &format!(
            "{}{}",
            of("shop/a", 1, "subsets: [{name: s}]"),
            of("shop/b", 2, "subsets: [{name: t}, {name: s}]")
        ),
        &format!(
            "{}{}",
            of("shop/a", 1, "subsets: [{name: s}]"),
            of(
                "shop/b",
                2,
                "workloadSelector: {matchLabels: {app: web}}, subsets: [{name: s}]"
            )
        ),
    );
}

#[test]
fn selectors_select_something() {
    let of = |app: &str| {
        rule(
            "shop/x",
            1,
            &format!("{{host: db, workloadSelector: {{matchLabels: {{app: {app}}}}}}}"),
        )
    };
    tells(
        "selects-nothing DestinationRule/shop/x spec.workloadSelector",
        &of("nobody"),
        &of("web"),
    );
}

#[test]
fn credentials_are_there() {
    let of = |selector: &str, name: &str| {
        rule(
            "edge/x",
            1,
            &format!(
                "{{host: db.shop.svc.cluster.local, {selector}trafficPolicy: {{tls: {{mode: SIMPLE, credentialName: {name}}}}}}}"
            ),
        )
    };
    let chosen = "workloadSelector: {matchLabels: {istio: edge}}, ";
    let at = "DestinationRule/edge/x spec.trafficPolicy.tls.credentialName";
    tells(
        &format!("unknown-secret {at}"),
        &of(chosen, "nowhere"),
        &of(chosen, "cert"),
    );
    tells(
        &format!("credential-for-gateways {at}"),
        &of("", "cert"),
        &of(chosen, "cert"),
    );
}
