//! What proxies of several clusters are given: the same services, at the addresses of their own cluster.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::bench::{Bench, TYPES, settings, touched};
use common::proxies;
use pilotfish_config::{Change, ClusterId, ObjectKey, parse};
use pilotfish_protos::json::any_to_json;
use pilotfish_xds::TypeUrl;
use serde_json::{Value, json};

const HOME: usize = 0;
const WEST: usize = 1;

fn bench() -> Bench {
    let node = |address: &str, cluster: &str, network: &str| {
        let meta = json!({"CLUSTER_ID": cluster, "NETWORK": network, "DNS_CAPTURE": "true", "DNS_AUTO_ALLOCATE": "true",
            "LABELS": {"app": "client"}});
        proxies::facts(&proxies::node("sidecar", address, "shop", &meta)).verified()
    };
    let proxies = vec![
        ("home", node("10.1.0.1", "Kubernetes", "home-net")),
        ("west", node("10.2.0.1", "west", "west-net")),
    ];
    Bench::with(settings(false), proxies)
}

/// Applies objects of a cluster, or takes them away.
fn change(bench: &mut Bench, cluster: &str, yaml: &str, there: bool) {
    let parsed = parse::documents(yaml, "test.yaml");
    assert!(parsed.diagnostics.is_empty(), "{:#?}", parsed.diagnostics);
    let changes = parsed.objects.into_iter().map(|mut object| {
        object.key.cluster = ClusterId::named(cluster).unwrap();
        if there {
            Change::upsert(object)
        } else {
            Change::Delete(object.key)
        }
    });
    bench.change(changes.collect());
}

/// A namespace with its network, a service of one pod, and a gateway into the network.
fn cluster(network: &str, number: u8) -> String {
    format!(
        r#"
{{apiVersion: v1, kind: Namespace, metadata: {{name: istio-system, labels: {{topology.istio.io/network: {network}}}}}}}
---
{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: shop}}, spec: {{clusterIP: 10.9{number}.0.2, selector: {{app: web}}, ports: [{{name: tcp-db, port: 90}}, {{name: http, port: 80}}]}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: web-1, namespace: shop, labels: {{app: web, security.istio.io/tlsMode: istio}}}}, spec: {{containers: [{{name: c}}]}}, status: {{phase: Running, podIP: 10.{number}.0.9, conditions: [{{type: Ready, status: "True"}}]}}}}
---
{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: web-s, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: tcp-db, port: 90}}, {{name: http, port: 80}}], endpoints: [{{addresses: [10.{number}.0.9], targetRef: {{kind: Pod, name: web-1, namespace: shop}}}}]}}
"#
    )
}

fn gateway(network: &str, address: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: cross, namespace: istio-system, labels: {{topology.istio.io/network: {network}}}}}, \
         spec: {{type: LoadBalancer, clusterIP: 10.90.0.3, ports: [{{name: tls, port: 15443}}]}}, \
         status: {{loadBalancer: {{ingress: [{{ip: {address}}}]}}}}}}\n"
    )
}

fn get(bench: &mut Bench, proxy: usize, kind: &TypeUrl, name: &str) -> Value {
    let view = bench.ask(proxy, kind);
    let resource = view
        .get(name)
        .unwrap_or_else(|| panic!("{name} is missing"));
    let (type_url, body) = resource.parts();
    any_to_json(&type_url, &body).unwrap()
}

/// Addresses and ports of the endpoints of a cluster.
fn endpoints(bench: &mut Bench, proxy: usize, name: &str) -> Vec<String> {
    let set = get(bench, proxy, &TypeUrl::Endpoints, name);
    let groups = set["endpoints"].as_array().cloned().unwrap_or_default();
    let all = groups
        .iter()
        .flat_map(|g| g["lbEndpoints"].as_array().cloned().unwrap_or_default());
    all.map(|e| {
        let at = &e["endpoint"]["address"]["socketAddress"];
        format!("{}:{}", at["address"].as_str().unwrap(), at["portValue"])
    })
    .collect()
}

fn names(bench: &mut Bench, proxy: usize, kind: &TypeUrl) -> Vec<String> {
    let view = bench.ask(proxy, kind);
    view.iter().map(|r| r.name.to_string()).collect()
}

const WEB: &str = "outbound|80||web.shop.svc.cluster.local";

#[test]
fn everybody_sees_the_address_of_its_own_cluster() {
    let mut bench = bench();
    bench.write(&cluster("home-net", 1));
    change(&mut bench, "west", &cluster("west-net", 2), true);
    for (proxy, own, other) in [
        (HOME, "10.91.0.2", "10.92.0.2"),
        (WEST, "10.92.0.2", "10.91.0.2"),
    ] {
        let listeners = names(&mut bench, proxy, &TypeUrl::Listener);
        assert!(listeners.contains(&format!("{own}_90")), "{listeners:?}");
        assert!(!listeners.contains(&format!("{other}_90")), "{listeners:?}");
        let name = names(&mut bench, proxy, &TypeUrl::NameTable).remove(0);
        let table = get(&mut bench, proxy, &TypeUrl::NameTable, &name);
        let ips = &table["table"]["web.shop.svc.cluster.local"]["ips"];
        assert_eq!(*ips, json!([own]), "{table}");
        let hosts = get(&mut bench, proxy, &TypeUrl::Route, "80").to_string();
        assert!(hosts.contains(own) && !hosts.contains(other), "{hosts}");
        assert_eq!(
            endpoints(&mut bench, proxy, WEB),
            ["10.1.0.9:80", "10.2.0.9:80"]
        );
    }
}

#[test]
fn endpoints_of_other_networks_are_behind_their_gateways() {
    let mut bench = bench();
    bench.write(&(cluster("home-net", 1) + &gateway("home-net", "192.0.2.1")));
    change(
        &mut bench,
        "west",
        &(cluster("west-net", 2) + &gateway("west-net", "192.0.2.2")),
        true,
    );
    assert_eq!(
        endpoints(&mut bench, HOME, WEB),
        ["10.1.0.9:80", "192.0.2.2:15443"]
    );
    assert_eq!(
        endpoints(&mut bench, WEST, WEB),
        ["10.2.0.9:80", "192.0.2.1:15443"]
    );
}

#[test]
fn a_local_host_stays_in_its_cluster() {
    let mut bench = bench();
    bench.set_mesh(
        "serviceSettings:\n- settings: {clusterLocal: true}\n  hosts: [web.shop.svc.cluster.local]",
    );
    bench.write(&cluster("home-net", 1));
    change(&mut bench, "west", &cluster("west-net", 2), true);
    assert_eq!(endpoints(&mut bench, HOME, WEB), ["10.1.0.9:80"]);
    assert_eq!(endpoints(&mut bench, WEST, WEB), ["10.2.0.9:80"]);
}

#[test]
fn secrets_of_the_own_cluster_go_first() {
    let mut bench = bench();
    let secret = |name: &str, value: &str| {
        format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: {name}, namespace: shop}}, stringData: {{tls.crt: {value}, tls.key: {value}}}}}"
        )
    };
    bench.write(&format!(
        "{}\n---\n{}",
        secret("both", "home"),
        secret("one", "home")
    ));
    change(&mut bench, "west", &secret("both", "west"), true);
    let chain = |bench: &mut Bench, proxy, name: &str| {
        let secret = get(
            bench,
            proxy,
            &TypeUrl::Secret,
            &format!("kubernetes://{name}"),
        );
        secret["tlsCertificate"]["certificateChain"]["inlineBytes"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (home, west) = ("aG9tZQ==", "d2VzdA==");
    assert_eq!(chain(&mut bench, HOME, "both"), home);
    assert_eq!(chain(&mut bench, WEST, "both"), west);
    assert_eq!(chain(&mut bench, WEST, "one"), home);
}

#[test]
fn a_cluster_that_goes_leaves_what_was_there_before() {
    let mut bench = bench();
    bench.write(&cluster("home-net", 1));
    let before = bench.dump();
    let west = cluster("west-net", 2);
    change(&mut bench, "west", &west, true);
    let both = bench.dump();
    // Only what names the service is different; its cluster is not.
    let kinds: std::collections::BTreeSet<&str> =
        touched(&before, &both).iter().map(|t| t.kind).collect();
    assert!(!kinds.contains(TYPES[0].short()), "{kinds:?}");
    change(&mut bench, "west", &west, false);
    let after = bench.dump();
    assert_eq!(common::bench::difference(&before, &after), None);
    let keys: Vec<ObjectKey> = bench.snapshot().objects.keys().cloned().collect();
    assert!(keys.iter().all(|key| key.cluster.is_config()));
}

/// Gateways between networks, as a proxy: connections are passed on to those that take mutual TLS.
#[test]
fn what_is_passed_on_is_chosen_before_its_place_is() {
    let meta =
        json!({"CLUSTER_ID": "Kubernetes", "NETWORK": "home-net", "LABELS": {"istio": "cross"}});
    let node = proxies::node("router", "10.1.0.1", "istio-system", &meta);
    let cross = proxies::facts(&node).verified();
    let mut bench = Bench::with(settings(false), vec![("cross", cross)]);
    let place = |name: &str, region: &str| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{topology.kubernetes.io/region: {region}}}}}}}\n---\n"
        )
    };
    let pod = |name: &str, node: &str, number: u8, mode: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: db, security.istio.io/tlsMode: {mode}}}}}, \
             spec: {{nodeName: {node}, containers: [{{name: c}}]}}, status: {{phase: Running, podIP: 10.1.0.{number}, conditions: [{{type: Ready, status: \"True\"}}]}}}}\n---\n"
        )
    };
    let objects = place("n1", "near")
        + &place("n2", "far")
        + &pod("db-1", "n1", 11, "disabled")
        + &pod("db-2", "n2", 12, "istio")
        + &pod("db-3", "n2", 13, "istio")
        + r"
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: 10.91.0.9, selector: {app: db}, ports: [{name: tcp, port: 90}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: bare, namespace: shop}, spec: {clusterIP: 10.91.0.8, ports: [{name: tcp, port: 90}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: bare-s, namespace: shop, labels: {kubernetes.io/service-name: bare}}, addressType: IPv4, ports: [{name: tcp, port: 90}], endpoints: [{addresses: [10.1.0.99]}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-s, namespace: shop, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, ports: [{name: tcp, port: 90}], endpoints: [{addresses: [10.1.0.11], targetRef: {kind: Pod, name: db-1}}, {addresses: [10.1.0.12], targetRef: {kind: Pod, name: db-2}}, {addresses: [10.1.0.13], targetRef: {kind: Pod, name: db-3}}]}
---
{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: cross, namespace: istio-system}, spec: {selector: {istio: cross}, servers: [{port: {number: 15443, name: tls, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}, hosts: ['*.local']}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: db, namespace: shop}, spec: {host: db, trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: '*', to: {'near/*': 30, 'far/*': 70}}]}}}}}
";
    bench.write(&objects);
    let name = "outbound_.90_._.db.shop.svc.cluster.local";
    let set = get(&mut bench, 0, &TypeUrl::Endpoints, name);
    let groups = set["endpoints"].as_array().unwrap();
    let far = groups
        .iter()
        .find(|g| g["locality"]["region"] == "far")
        .unwrap();
    assert_eq!(far["loadBalancingWeight"], 70, "{set}");
    assert_eq!(
        endpoints(&mut bench, 0, name),
        ["10.1.0.12:90", "10.1.0.13:90"]
    );
    // A place that has lost its endpoints is still a place.
    let name = "outbound_.90_._.bare.shop.svc.cluster.local";
    let set = get(&mut bench, 0, &TypeUrl::Endpoints, name);
    assert_eq!(set["endpoints"], json!([{"locality": {}}]));
}

/// What a Service has no address for in a cluster is reached there as if it had none at all.
#[test]
fn a_service_without_address_in_a_cluster() {
    let mut bench = bench();
    let headless = |text: &str, vip: &str| text.replace(vip, "None");
    bench.write(&cluster("home-net", 1));
    let west = headless(&cluster("west-net", 2), "10.92.0.2");
    change(&mut bench, "west", &west, true);
    let listeners = names(&mut bench, WEST, &TypeUrl::Listener);
    assert!(
        listeners.contains(&"0.0.0.0_90".to_owned()),
        "{listeners:?}"
    );
    assert!(
        !listeners.contains(&"10.91.0.2_90".to_owned()),
        "{listeners:?}"
    );
    let listeners = names(&mut bench, HOME, &TypeUrl::Listener);
    assert!(
        listeners.contains(&"10.91.0.2_90".to_owned()),
        "{listeners:?}"
    );
    // Another name in one cluster is an address in the other.
    let alias = "{apiVersion: v1, kind: Service, metadata: {name: deed, namespace: shop}, spec: {type: ExternalName, externalName: x.example, ports: [{name: http, port: 80}]}}";
    let real = "{apiVersion: v1, kind: Service, metadata: {name: deed, namespace: shop}, spec: {clusterIP: 10.92.0.7, ports: [{name: http, port: 80}]}}";
    bench.write(alias);
    change(&mut bench, "west", real, true);
    for (proxy, expected) in [(HOME, Value::Null), (WEST, json!(["10.92.0.7"]))] {
        let name = names(&mut bench, proxy, &TypeUrl::NameTable).remove(0);
        let table = get(&mut bench, proxy, &TypeUrl::NameTable, &name);
        assert_eq!(
            table["table"]["deed.shop.svc.cluster.local"]["ips"],
            expected
        );
    }
}
