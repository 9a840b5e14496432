//! Proxies of every sort: what differs between them is what scopes are made of.

use pilotfish_engine::ProxyFacts;
use serde_json::{Value, json};

/// What a stock Envoy lists, as far as it matters.
const STOCK: [&str; 9] = [
    "envoy.filters.http.router",
    "envoy.filters.http.fault",
    "envoy.filters.http.cors",
    "envoy.filters.listener.original_dst",
    "envoy.filters.listener.tls_inspector",
    "envoy.filters.listener.http_inspector",
    "envoy.filters.network.mongo_proxy",
    "envoy.clusters.dynamic_forward_proxy",
    "envoy.retry_host_predicates.previous_hosts",
];

/// Those that take virtual hosts one by one, which is for incremental streams only.
pub(crate) const APART: [&str; 2] = ["IPv6", "router, hosts apart"];

pub(crate) fn facts(node: &Value) -> ProxyFacts {
    let any = pilotfish_protos::json::from_json("envoy.config.core.v3.Node", node).unwrap();
    ProxyFacts::from_node(&prost::Message::decode(any.value).unwrap()).unwrap()
}

/// A node of that address and namespace.
pub(crate) fn node(kind: &str, address: &str, namespace: &str, metadata: &Value) -> Value {
    let name = address.replace([':', '.'], "-");
    json!({
        "id": format!("{kind}~{address}~{name}.{namespace}~{namespace}.svc.cluster.local"),
        "metadata": metadata,
    })
}

fn with(mut node: Value, field: &str, value: Value) -> Value {
    node[field] = value;
    node
}

fn stock(node: Value) -> Value {
    let listed: Vec<Value> = STOCK.iter().map(|name| json!({"name": name})).collect();
    with(node, "extensions", listed.into())
}

/// Name and facts of each.
pub(crate) fn all() -> Vec<(&'static str, ProxyFacts)> {
    let cart = || json!({"LABELS": {"app": "cart", "version": "v1"}, "CLUSTER_ID": "Kubernetes", "NODE_NAME": "n1"});
    let north = || json!({"region": "north", "zone": "n-a", "subZone": "x"});
    let nodes = [
        (
            "cart",
            with(
                node("sidecar", "10.0.0.1", "shop", &cart()),
                "locality",
                north(),
            ),
        ),
        (
            "twin of cart",
            with(
                node("sidecar", "10.0.9.9", "shop", &cart()),
                "locality",
                north(),
            ),
        ),
        (
            "web, DNS capture, place of its pod",
            node(
                "sidecar",
                "10.0.0.2",
                "shop",
                &json!({"LABELS": {"app": "web"}, "DNS_CAPTURE": "true", "NODE_NAME": "n2"}),
            ),
        ),
        (
            "labels of its pod, TPROXY",
            node(
                "sidecar",
                "10.0.0.3",
                "bank",
                &json!({"INTERCEPTION_MODE": "TPROXY"}),
            ),
        ),
        (
            "no interception, unprivileged",
            node(
                "sidecar",
                "10.0.0.4",
                "bank",
                &json!({"INTERCEPTION_MODE": "NONE", "UNPRIVILEGED_POD": "true", "LABELS": {"app": "db"}, "NETWORK": "far"}),
            ),
        ),
        (
            "stock",
            stock(node(
                "sidecar",
                "10.0.0.5",
                "shop",
                &json!({"LABELS": {"app": "db", "version": "v2"}}),
            )),
        ),
        (
            "both families",
            node(
                "sidecar",
                "10.0.0.7",
                "istio-system",
                &json!({"INSTANCE_IPS": "10.0.0.7,fd00::7", "HTTP10": "1", "DNS_CAPTURE": "true"}),
            ),
        ),
        (
            "IPv6",
            node(
                "sidecar",
                "fd00::8",
                "bank",
                &json!({"LABELS": {"app": "web"}, "ISTIO_VERSION": "1.31.0"}),
            ),
        ),
        (
            "router",
            node(
                "router",
                "10.0.0.6",
                "istio-system",
                &json!({"LABELS": {"istio": "ingress"}}),
            ),
        ),
        (
            "router, hosts apart",
            node(
                "router",
                "10.0.0.9",
                "shop",
                &json!({"LABELS": {"app": "web", "istio": "ingress"}, "ISTIO_VERSION": "1.31.0"}),
            ),
        ),
        (
            "stock router",
            stock(node(
                "router",
                "10.0.0.8",
                "shop",
                &json!({"LABELS": {"app": "web", "istio": "ingress"}}),
            )),
        ),
    ];
    nodes
        .iter()
        .map(|(name, node)| (*name, facts(node)))
        .map(|(name, facts)| match name {
            "router" | "cart" => (name, facts.verified()),
            name if APART.contains(&name) => (name, facts.with_hosts_apart()),
            _ => (name, facts),
        })
        .collect()
}

/// A list of extensions that names Istio's is taken as Istio's build, so this is the twin of a proxy that lists nothing.
pub(crate) fn listing_istio() -> ProxyFacts {
    let node = node(
        "sidecar",
        "10.0.9.8",
        "shop",
        &json!({"LABELS": {"app": "cart", "version": "v1"}, "CLUSTER_ID": "Kubernetes", "NODE_NAME": "n1"}),
    );
    let node = with(
        node,
        "locality",
        json!({"region": "north", "zone": "n-a", "subZone": "x"}),
    );
    facts(&with(
        node,
        "extensions",
        json!([{"name": "envoy.filters.http.router"}, {"name": "istio.stats"}]),
    ))
}

/// Proxies that stand beside no workload of the mesh.
pub(crate) fn visitors() -> Vec<(&'static str, ProxyFacts)> {
    let nodes = [
        (
            "in shop",
            node(
                "sidecar",
                "10.9.9.1",
                "shop",
                &json!({"LABELS": {"app": "cart", "version": "v1"}}),
            ),
        ),
        (
            "in bank, DNS capture",
            node(
                "sidecar",
                "10.9.9.2",
                "bank",
                &json!({"LABELS": {"app": "web"}, "DNS_CAPTURE": "true"}),
            ),
        ),
        (
            "stock",
            stock(node(
                "sidecar",
                "10.9.9.3",
                "shop",
                &json!({"INTERCEPTION_MODE": "NONE"}),
            )),
        ),
        (
            "router",
            node(
                "router",
                "10.9.9.4",
                "istio-system",
                &json!({"LABELS": {"istio": "ingress"}}),
            ),
        ),
        (
            "router, hosts apart",
            node(
                "router",
                "10.9.9.5",
                "istio-system",
                &json!({"LABELS": {"istio": "ingress"}, "ISTIO_VERSION": "1.31.0"}),
            ),
        ),
    ];
    nodes
        .iter()
        .map(|(name, node)| (*name, facts(node)))
        .map(|(name, facts)| match name {
            name if APART.contains(&name) => (name, facts.with_hosts_apart()),
            _ => (name, facts),
        })
        .collect()
}
