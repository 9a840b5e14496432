//! Services, ServiceEntries and WorkloadEntries.

use crate::support::{object, tells};

fn service(name: &str, ports: &str) -> String {
    object(
        "Service",
        name,
        9,
        &format!("{{clusterIP: 10.96.1.1, selector: {{app: web}}, ports: [{ports}]}}"),
    )
}

fn entry(name: &str, created: u32, host: &str, port: &str, more: &str) -> String {
    object(
        "ServiceEntry",
        name,
        created,
        &format!("{{hosts: [{host}], ports: [{port}], resolution: DNS{more}}}"),
    )
}

#[test]
fn ports_agree_with_themselves() {
    let at = "Service/shop/x spec.ports[0]";
    tells(
        &format!("protocol-mismatch {at}.name"),
        &service("shop/x", "{name: http-a, port: 80, appProtocol: tcp}"),
        &service("shop/x", "{name: http-a, port: 80, appProtocol: http}"),
    );
    tells(
        &format!("protocol-mismatch {at}.name"),
        &service("shop/x", "{name: http-a, port: 80, protocol: UDP}"),
        &service("shop/x", "{name: dns, port: 80, protocol: UDP}"),
    );
    tells(
        &format!("unknown-protocol {at}.appProtocol"),
        &service("shop/x", "{name: a, port: 80, appProtocol: gopher}"),
        &service(
            "shop/x",
            "{name: a, port: 80, appProtocol: kubernetes.io/h2c}",
        ),
    );
    tells(
        &format!("unknown-target-port {at}.targetPort"),
        &service("shop/x", "{name: http, port: 80, targetPort: nowhere}"),
        &service("shop/x", "{name: http, port: 80, targetPort: main}"),
    );
}

#[test]
fn selectors_select_something() {
    let of = |app: &str| {
        object(
            "Service",
            "shop/x",
            1,
            &format!(
                "{{clusterIP: 10.96.1.1, selector: {{app: {app}}}, ports: [{{name: http, port: 80}}]}}"
            ),
        )
    };
    tells(
        "selects-nothing Service/shop/x spec.selector",
        &of("nobody"),
        &of("web"),
    );
}

#[test]
fn slices_belong_to_services() {
    let of = |name: &str| {
        format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}, addressType: IPv4, ports: [], endpoints: []}}"
        )
    };
    tells(
        "unknown-service EndpointSlice/shop/s metadata.labels",
        &of("nobody"),
        &of("web"),
    );
}

#[test]
fn one_port_of_a_pod_has_one_protocol() {
    // Port 8080 of the pods is HTTP by the older service.
    tells(
        "inbound-conflict Service/shop/x spec.ports[0]",
        &service("shop/x", "{name: tcp, port: 81, targetPort: 8080}"),
        &service("shop/x", "{name: grpc, port: 81, targetPort: 8080}"),
    );
}

#[test]
fn connections_that_cannot_be_told_apart() {
    let tcp = "{number: 7000, name: tcp, protocol: TCP}";
    let first = entry("shop/a", 1, "a.example", tcp, "");
    let at = "listener-conflict ServiceEntry/shop/b spec.ports[0]";
    tells(
        at,
        &format!("{first}{}", entry("shop/b", 2, "b.example", tcp, "")),
        &format!(
            "{first}{}",
            entry("shop/b", 2, "b.example", tcp, ", addresses: [192.0.2.1]")
        ),
    );
    let tls = "{number: 7000, name: tls, protocol: TLS}";
    tells(
        at,
        &format!("{first}{}", entry("shop/b", 2, "b.example", tcp, "")),
        &format!("{first}{}", entry("shop/b", 2, "b.example", tls, "")),
    );
    tells(
        at,
        &format!(
            "{first}{}",
            entry(
                "shop/b",
                2,
                "b.example",
                "{number: 7000, name: mongo, protocol: MONGO}",
                ""
            )
        ),
        &format!(
            "{first}{}",
            entry("shop/b", 2, "b.example", tcp, ", exportTo: [edge]")
                .replace("namespace: shop", "namespace: edge")
        )
        .replace("resolution: DNS}", "resolution: DNS, exportTo: [shop]}"),
    );
}

#[test]
fn entries_that_contradict_each_other() {
    let of = |name: &str, created, protocol: &str| {
        entry(
            name,
            created,
            "a.example",
            &format!("{{number: 7000, name: p, protocol: {protocol}}}"),
            "",
        )
    };
    tells(
        "protocol-conflict ServiceEntry/shop/b spec.ports[0].protocol",
        &format!("{}{}", of("shop/a", 1, "HTTP"), of("shop/b", 2, "TLS")),
        &format!("{}{}", of("shop/a", 1, "HTTP"), of("shop/b", 2, "http")),
    );
    let tcp = "{number: 7000, name: tcp, protocol: TCP}";
    tells(
        "address-required ServiceEntry/shop/a spec.ports[0]",
        &entry("shop/a", 1, "a.example", tcp, ""),
        &entry("shop/a", 1, "a.example", tcp, ", addresses: [192.0.2.7]"),
    );
}

#[test]
fn a_host_of_kubernetes_is_not_for_entries() {
    let port = "{number: 80, name: http, protocol: HTTP}";
    tells(
        "host-conflict ServiceEntry/shop/a ",
        &entry("shop/a", 1, "db.shop.svc.cluster.local", port, ""),
        &entry("shop/a", 1, "other.shop.svc.cluster.local", port, ""),
    );
}

#[test]
fn workload_entries_are_selected() {
    let of = |app: &str| {
        object(
            "WorkloadEntry",
            "shop/w",
            1,
            &format!("{{address: 10.1.1.1, labels: {{app: {app}}}}}"),
        )
    };
    tells(
        "not-selected WorkloadEntry/shop/w spec.labels",
        &of("nobody"),
        &of("web"),
    );
}

#[test]
fn kinds_that_do_nothing_yet() {
    let telemetry = object("Telemetry", "shop/t", 1, "{}");
    tells("not-translated Telemetry/shop/t ", &telemetry, "");
}
