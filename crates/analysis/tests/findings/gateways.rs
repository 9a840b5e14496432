//! Gateways.

use crate::support::{object, tells};

const PLAIN: &str = "[{port: {number: 80, name: http, protocol: HTTP}, hosts: [x.example]}]";

fn gateway(name: &str, created: u32, selector: &str, servers: &str) -> String {
    object(
        "Gateway",
        name,
        created,
        &format!("{{selector: {selector}, servers: {servers}}}"),
    )
}

fn tls(port: u16, host: &str, settings: &str) -> String {
    format!(
        "[{{port: {{number: {port}, name: https, protocol: HTTPS}}, hosts: [{host}], tls: {settings}}}]"
    )
}

#[test]
fn some_workload_serves_it_and_some_service_opens_its_port() {
    tells(
        "selects-nothing Gateway/shop/x spec.selector",
        &gateway("shop/x", 1, "{istio: nobody}", PLAIN),
        &gateway("shop/x", 1, "{istio: edge}", PLAIN),
    );
    let port = |n: u16| {
        gateway(
            "shop/x",
            1,
            "{istio: edge}",
            &PLAIN.replace("number: 80", &format!("number: {n}")),
        )
    };
    tells(
        "port-not-open Gateway/shop/x spec.servers[0].port.number",
        &port(81),
        &port(8080),
    );
}

#[test]
fn somebody_uses_it() {
    let own = gateway("shop/x", 1, "{istio: edge}", PLAIN);
    let user = object(
        "VirtualService",
        "shop/user",
        1,
        "{hosts: [x.example], gateways: [x], http: [{route: [{destination: {host: db}}]}]}",
    );
    tells(
        "unused-gateway Gateway/shop/x ",
        &own,
        &format!("{own}{user}"),
    );
    let passes = gateway(
        "shop/x",
        1,
        "{istio: edge}",
        &tls(443, "\"*.local\"", "{mode: AUTO_PASSTHROUGH}"),
    );
    tells("unused-gateway Gateway/shop/x ", &own, &passes);
}

#[test]
fn servers_that_cannot_stand_together() {
    let other = |name: &str, selector: &str, servers: &str| gateway(name, 9, selector, servers);
    let tcp = "[{port: {number: 80, name: tcp, protocol: TCP}, hosts: [\"*\"]}]";
    let at = "server-conflict Gateway/edge/x spec.servers[0].port";
    tells(
        at,
        &other("edge/x", "{istio: edge}", tcp),
        &other("edge/x", "{istio: edge}", PLAIN),
    );
    tells(
        at,
        &other("edge/x", "{istio: edge}", tcp),
        &other("edge/x", "{istio: other}", tcp),
    );
    tells(
        at,
        &other("edge/x", "{istio: edge}", tcp),
        &other(
            "edge/x",
            "{istio: edge}",
            &tcp.replace("hosts:", "bind: 10.0.0.9, hosts:"),
        ),
    );
}

#[test]
fn one_name_belongs_to_one_server() {
    let other = |host: &str, port| {
        gateway(
            "edge/x",
            9,
            "{istio: edge}",
            &tls(port, host, "{mode: SIMPLE, credentialName: cert}"),
        )
    };
    let at = "duplicate-host Gateway/edge/x spec.servers[0].hosts";
    tells(
        at,
        &other("shop.example", 443),
        &other("other.example", 443),
    );
    tells(
        at,
        &other("\"*/shop.example\"", 443),
        &other("shop.example", 8443),
    );
}

#[test]
fn a_certificate_of_several_gateways() {
    let other = |name: &str| {
        gateway(
            "edge/x",
            9,
            "{istio: edge}",
            &tls(
                443,
                "x.example",
                &format!("{{mode: SIMPLE, credentialName: {name}}}"),
            ),
        )
    };
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: cert2, namespace: edge}, stringData: {cert: c, key: k}}\n---\n";
    tells(
        "shared-certificate Gateway/edge/x spec.servers[0].tls.credentialName",
        &other("cert"),
        &format!("{secret}{}", other("cert2")),
    );
}

#[test]
fn certificates_are_there_and_whole() {
    let own = |settings: &str| {
        gateway(
            "edge/x",
            9,
            "{istio: edge}",
            &tls(443, "x.example", settings),
        )
    };
    let secret = |name: &str, data: &str| {
        format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: {name}, namespace: edge}}, stringData: {data}}}\n---\n"
        )
    };
    let at = "Gateway/edge/x spec.servers[0].tls.credentialName";
    let (simple, mutual) = (
        own("{mode: SIMPLE, credentialName: s}"),
        own("{mode: MUTUAL, credentialName: s}"),
    );
    tells(
        &format!("unknown-secret {at}"),
        &simple,
        &format!("{simple}{}", secret("s", "{tls.crt: a, tls.key: b}")),
    );
    // The secret of another namespace does not count: the proxy is in this one.
    tells(
        &format!("unknown-secret {at}"),
        &format!(
            "{simple}{}",
            secret("s", "{cert: a, key: b}").replace("namespace: edge", "namespace: shop")
        ),
        &format!("{simple}{}", secret("s", "{cert: a, key: b}")),
    );
    tells(
        &format!("bad-secret {at}"),
        &format!("{simple}{}", secret("s", "{tls.crt: a, key: b}")),
        &format!("{simple}{}", secret("s", "{tls.crt: a, tls.key: b}")),
    );
    tells(
        &format!("bad-secret {at}"),
        &format!("{mutual}{}", secret("s", "{tls.crt: a, tls.key: b}")),
        &format!(
            "{mutual}{}{}",
            secret("s", "{tls.crt: a, tls.key: b}"),
            secret("s-cacert", "{cacert: a}")
        ),
    );
    let apart = own("{mode: MUTUAL, credentialName: cert, caCertCredentialName: ca}");
    tells(
        "bad-secret Gateway/edge/x spec.servers[0].tls.caCertCredentialName",
        &apart,
        &format!("{apart}{}", secret("ca", "{ca.crt: a}")),
    );
}
