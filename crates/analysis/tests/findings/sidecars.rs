//! Sidecars.

use crate::support::{object, tells};

fn sidecar(name: &str, created: u32, selector: &str, hosts: &str) -> String {
    object(
        "Sidecar",
        name,
        created,
        &format!("{{{selector}egress: [{{hosts: [{hosts}]}}]}}"),
    )
}

const WEB: &str = "workloadSelector: {labels: {app: web}}, ";
const V1: &str = "workloadSelector: {labels: {version: v1}}, ";

#[test]
fn one_for_each_workload() {
    let first = sidecar("shop/a", 1, "", "\"./*\"");
    tells(
        "several-sidecars Sidecar/shop/b spec.workloadSelector",
        &format!("{first}{}", sidecar("shop/b", 2, "", "\"./*\"")),
        &format!("{first}{}", sidecar("shop/b", 2, WEB, "\"./*\"")),
    );
    let other = "workloadSelector: {labels: {version: v2}}, ";
    tells(
        "several-sidecars Sidecar/shop/b spec.workloadSelector",
        &format!(
            "{}{}",
            sidecar("shop/a", 1, WEB, "\"./*\""),
            sidecar("shop/b", 2, V1, "\"./*\"")
        ),
        &format!(
            "{}{}",
            sidecar("shop/a", 1, other, "\"./*\""),
            sidecar("shop/b", 2, V1, "\"./*\"")
        ),
    );
    tells(
        "selects-nothing Sidecar/edge/a spec.workloadSelector",
        &sidecar("edge/a", 1, WEB, "\"./*\""),
        &sidecar(
            "edge/a",
            1,
            "workloadSelector: {labels: {istio: edge}}, ",
            "\"./*\"",
        ),
    );
}

#[test]
fn egress_names_something() {
    let at = "unknown-host Sidecar/shop/a spec.egress[0].hosts[0]";
    let of = |host: &str| sidecar("shop/a", 1, "", &format!("\"{host}\""));
    tells(
        at,
        &of("shop/nowhere.shop.svc.cluster.local"),
        &of("shop/web.shop.svc.cluster.local"),
    );
    tells(at, &of("nowhere/*"), &of("edge/*"));
    tells(at, &of("nowhere/*"), &of("istio-system/*"));
    tells(
        at,
        &of("edge/web.shop.svc.cluster.local"),
        &of("*/web.shop.svc.cluster.local"),
    );
    // A host that only a VirtualService has is there as well.
    tells(at, &of("shop/other.example"), &of("shop/shop.example"));
    let port = |n: u16| {
        object(
            "Sidecar",
            "shop/a",
            1,
            &format!(
                "{{egress: [{{port: {{number: {n}, name: http, protocol: HTTP}}, hosts: [\"shop/web.shop.svc.cluster.local\"]}}]}}"
            ),
        )
    };
    tells(
        "unknown-port Sidecar/shop/a spec.egress[0].port.number",
        &port(81),
        &port(80),
    );
}
