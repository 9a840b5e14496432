//! Servers of gateways: which share a listener, which are left out, and who is given the secrets they name.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::bench::{Bench, settings};
use common::proxies;
use pilotfish_protos::json::any_to_json;
use pilotfish_xds::TypeUrl;
use serde_json::{Value, json};

/// A verified gateway and one that is not, both in `edge`.
fn bench() -> Bench {
    let node = |address: &str| {
        let meta = json!({"LABELS": {"istio": "ingress"}});
        proxies::facts(&proxies::node("router", address, "edge", &meta))
    };
    let proxies = vec![
        ("verified", node("10.0.0.1").verified()),
        ("stranger", node("10.0.0.2")),
    ];
    Bench::with(settings(false), proxies)
}

fn gateway(name: &str, servers: &Value) -> String {
    let spec = json!({"selector": {"istio": "ingress"}, "servers": servers});
    document(
        "networking.istio.io/v1",
        "Gateway",
        "edge",
        name,
        &json!({"spec": spec}),
    )
}

fn virtual_service(name: &str, spec: &Value) -> String {
    document(
        "networking.istio.io/v1",
        "VirtualService",
        "edge",
        name,
        &json!({"spec": spec}),
    )
}

fn secret(namespace: &str, name: &str, data: &Value) -> String {
    document(
        "v1",
        "Secret",
        namespace,
        name,
        &json!({"stringData": data}),
    )
}

fn document(api: &str, kind: &str, namespace: &str, name: &str, rest: &Value) -> String {
    let mut all = rest.clone();
    all["apiVersion"] = api.into();
    all["kind"] = kind.into();
    all["metadata"] = json!({"name": name, "namespace": namespace});
    format!("---\n# an object\n{all}\n")
}

fn names(bench: &mut Bench, proxy: usize, kind: &TypeUrl) -> Vec<String> {
    let view = bench.ask(proxy, kind);
    view.iter().map(|r| r.name.to_string()).collect()
}

fn get(bench: &mut Bench, kind: &TypeUrl, name: &str) -> Value {
    let view = bench.ask(0, kind);
    let resource = view
        .get(name)
        .unwrap_or_else(|| panic!("{name} is missing"));
    let (type_url, body) = resource.parts();
    any_to_json(&type_url, &body).unwrap()
}

/// Server names and route table (or cluster) of each chain.
fn chains(listener: &Value) -> Vec<(Vec<&str>, &str)> {
    let all = listener["filterChains"].as_array().unwrap();
    all.iter()
        .map(|chain| {
            let names = chain["filterChainMatch"]["serverNames"].as_array();
            let names = names.into_iter().flatten().map(|n| n.as_str().unwrap());
            let last = &chain["filters"].as_array().unwrap().last().unwrap()["typedConfig"];
            let to = last["rds"]["routeConfigName"]
                .as_str()
                .or(last["cluster"].as_str());
            (names.collect(), to.unwrap())
        })
        .collect()
}

fn diagnostics(bench: &Bench) -> Vec<String> {
    bench
        .engine
        .diagnostics()
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn https(name: &str, host: &str, tls: &Value) -> Value {
    json!({"port": {"number": 8443, "name": name, "protocol": "HTTPS"}, "hosts": [host], "tls": tls})
}

#[test]
fn servers_with_certificates_share_a_listener_and_have_tables_of_their_own() {
    let mut bench = bench();
    let simple = json!({"mode": "SIMPLE", "credentialName": "web"});
    let servers = json!([
        https("a", "a.example", &simple),
        https("b", "*.b.example", &simple)
    ]);
    bench.write(&gateway("gate", &servers));
    let listener = get(&mut bench, &TypeUrl::Listener, "0.0.0.0_8443");
    assert_eq!(
        chains(&listener),
        [
            (vec!["a.example"], "https.8443.a.gate.edge"),
            (vec!["*.b.example"], "https.8443.b.gate.edge"),
        ]
    );
    assert_eq!(
        names(&mut bench, 0, &TypeUrl::Route),
        ["https.8443.a.gate.edge", "https.8443.b.gate.edge"]
    );
    assert_eq!(
        listener["listenerFilters"][0]["name"],
        "envoy.filters.listener.tls_inspector"
    );
}

#[test]
fn a_host_that_is_taken_costs_the_later_server_all_its_hosts() {
    let mut bench = bench();
    let simple = json!({"mode": "SIMPLE", "credentialName": "web"});
    let both = json!([{
        "port": {"number": 8443, "name": "both", "protocol": "HTTPS"}, "hosts": ["new.example", "a.example"], "tls": simple,
    }]);
    bench.write(&gateway(
        "a",
        &json!([https("first", "a.example", &simple)]),
    ));
    bench.write(&gateway("b", &both));
    let listener = get(&mut bench, &TypeUrl::Listener, "0.0.0.0_8443");
    assert_eq!(
        chains(&listener),
        [(vec!["a.example"], "https.8443.first.a.edge")]
    );
}

#[test]
fn another_protocol_in_plain_text_is_left_out() {
    let mut bench = bench();
    let http =
        json!([{"port": {"number": 8080, "name": "web", "protocol": "HTTP"}, "hosts": ["*"]}]);
    let tcp = json!([{"port": {"number": 8080, "name": "raw", "protocol": "TCP"}, "hosts": ["*"]}]);
    bench.write(&gateway("a", &http));
    bench.write(&gateway("b", &tcp));
    let listener = get(&mut bench, &TypeUrl::Listener, "0.0.0.0_8080");
    assert_eq!(chains(&listener), [(vec![], "http.8080")]);
}

#[test]
fn tls_is_passed_on_by_server_name_and_a_name_goes_to_one_rule() {
    let mut bench = bench();
    let server = json!([{
        "port": {"number": 9443, "name": "tls", "protocol": "TLS"}, "hosts": ["*.example"], "tls": {"mode": "PASSTHROUGH"},
    }]);
    bench.write(&gateway("gate", &server));
    let rule = |name: &str, port: u16, to: &str| {
        let route = json!([{"destination": {"host": to, "port": {"number": port}}}]);
        let tls = json!([{"match": [{"sniHosts": [name]}], "route": route}]);
        json!({"hosts": [name], "gateways": ["gate"], "tls": tls})
    };
    bench.write(&virtual_service(
        "a",
        &rule("db.example", 443, "one.example"),
    ));
    bench.write(&virtual_service(
        "b",
        &rule("db.example", 443, "two.example"),
    ));
    bench.write(&virtual_service(
        "c",
        &rule("elsewhere.test", 443, "three.example"),
    ));
    let listener = get(&mut bench, &TypeUrl::Listener, "0.0.0.0_9443");
    assert_eq!(
        chains(&listener),
        [(vec!["db.example"], "outbound|443||one.example")]
    );
    assert!(
        diagnostics(&bench)
            .join("\n")
            .contains("has one of the server names db.example")
    );
}

#[test]
fn hosts_without_a_route_are_redirected_all_the_same() {
    let mut bench = bench();
    let server = json!([{
        "port": {"number": 8080, "name": "web", "protocol": "HTTP"}, "hosts": ["a.example", "edge/b.example"],
        "tls": {"httpsRedirect": true},
    }]);
    bench.write(&gateway("gate", &server));
    let route = json!([{"route": [{"destination": {"host": "web.example"}}]}]);
    let spec = json!({"hosts": ["a.example"], "gateways": ["gate"], "http": route});
    bench.write(&virtual_service("a", &spec));
    let table = get(&mut bench, &TypeUrl::Route, "http.8080");
    let hosts = table["virtualHosts"].as_array().unwrap();
    let seen: Vec<_> = hosts
        .iter()
        .map(|h| {
            (
                &h["domains"][0],
                &h["requireTls"],
                h["routes"].as_array().map_or(0, Vec::len),
            )
        })
        .collect();
    let all = json!("ALL");
    assert_eq!(
        seen,
        [
            (&json!("a.example"), &all, 1),
            (&json!("b.example"), &all, 0)
        ]
    );
}

#[test]
fn secrets_go_to_verified_proxies_of_their_namespace_only() {
    let mut bench = bench();
    let mutual = json!({"mode": "MUTUAL", "credentialName": "web"});
    bench.write(&gateway("gate", &json!([https("a", "a.example", &mutual)])));
    bench.write(&secret(
        "edge",
        "web",
        &json!({"tls.crt": "chain", "tls.key": "key", "ca.crt": "roots"}),
    ));
    bench.write(&secret(
        "bank",
        "vault",
        &json!({"tls.crt": "chain", "tls.key": "key"}),
    ));
    assert_eq!(
        names(&mut bench, 0, &TypeUrl::Secret),
        ["kubernetes://web", "kubernetes://web-cacert"]
    );
    assert_eq!(names(&mut bench, 1, &TypeUrl::Secret), Vec::<String>::new());
    // base64 of "chain", "roots" and later "others"
    let own = get(&mut bench, &TypeUrl::Secret, "kubernetes://web");
    assert_eq!(
        own["tlsCertificate"]["certificateChain"]["inlineBytes"],
        "Y2hhaW4="
    );
    let trusted = |bench: &mut Bench| {
        let roots = get(bench, &TypeUrl::Secret, "kubernetes://web-cacert");
        roots["validationContext"]["trustedCa"]["inlineBytes"].clone()
    };
    assert_eq!(trusted(&mut bench), "cm9vdHM=");
    // A secret of that very name goes before.
    bench.write(&secret("edge", "web-cacert", &json!({"cacert": "others"})));
    assert_eq!(trusted(&mut bench), "b3RoZXJz");
}

#[test]
fn a_secret_of_another_namespace_is_not_served_even_if_a_gateway_names_it() {
    let mut bench = bench();
    let foreign = json!({"mode": "SIMPLE", "credentialName": "kubernetes://bank/vault"});
    bench.write(&gateway(
        "gate",
        &json!([https("a", "a.example", &foreign)]),
    ));
    bench.write(&secret(
        "bank",
        "vault",
        &json!({"tls.crt": "chain", "tls.key": "key"}),
    ));
    assert_eq!(names(&mut bench, 0, &TypeUrl::Secret), Vec::<String>::new());
}
