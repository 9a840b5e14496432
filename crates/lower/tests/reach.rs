//! What a proxy listens for and asks about: written egress listeners, other names of services, address families, DNS.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{calling, id, listening, routing, who};
use pilotfish_ir::cluster::Discovery;
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{Handler, Listener, Routes};
use pilotfish_lower::{
    Client, EndpointScope, Families, NameScope, ProxyKind, Text, cluster, dns, endpoint, outbound,
    route, visibility,
};
use pilotfish_mesh::{Reader, ServiceId, World};

const SERVICES: &str = "
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 80}, {name: tcp, port: 90}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: bank, namespace: pay}, spec: {clusterIP: 10.96.0.2, selector: {app: bank}, ports: [{name: http, port: 8080}]}}
";

fn world(more: &[&str]) -> World {
    common::world(&format!("{SERVICES}\n---\n{}", more.join("\n---\n")))
}

fn client(families: Families) -> Client {
    Client::new(
        ProxyKind::Sidecar,
        families,
        who("shop", &[("app", "client")]),
    )
}

fn router() -> Client {
    let who = who("shop", &[("istio", "cross")]);
    Client::new(ProxyKind::Router, Families::V4, who)
}

fn egress(listener: &str) -> String {
    format!(
        "{{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {{name: default, namespace: shop}}, spec: {{egress: [{listener}]}}}}"
    )
}

fn listeners(world: &World, client: &Client) -> Vec<Listener> {
    let scope = listening(client.clone());
    let reader = Reader::new(world);
    let ports = outbound::ports(&reader, &scope);
    let of_port = |port| outbound::listeners(&reader, &scope, port);
    ports.into_iter().flat_map(of_port).collect()
}

fn table_of(listener: &Listener) -> Text {
    let Handler::Http(http) = &listener.chains[0].handler else {
        panic!("not HTTP: {listener:?}")
    };
    let Routes::Discovered(table) = &http.routes else {
        panic!("not discovered")
    };
    table.clone()
}

fn clusters(world: &World, client: &Client, of: &ServiceId) -> Vec<pilotfish_ir::Cluster> {
    let scope = calling(client.clone());
    cluster::outbound(&Reader::new(world), &scope, of)
}

fn domains(world: &World, client: &Client, of: &ServiceId, port: u16) -> Vec<Text> {
    let scope = routing(client.clone());
    let host = route::virtual_host(
        &Reader::new(world),
        &scope,
        &route::TableKey::Port(port),
        &route::HostKey::Service(of.clone()),
    );
    host.unwrap().domains
}

#[test]
fn a_written_http_proxy_reaches_all_ports() {
    let sidecar = egress(
        "{port: {number: 3128, protocol: HTTP_PROXY, name: proxy}, bind: 127.0.0.1, captureMode: NONE, hosts: ['*/*']}",
    );
    let world = world(&[&sidecar]);
    let client = client(Families::V4);
    let found = listeners(&world, &client);
    assert_eq!(found.len(), 1);
    assert_eq!(&*found[0].name, "127.0.0.1_3128");
    assert_eq!(&*table_of(&found[0]), "3128");
    let of = |name, namespace| clusters(&world, &client, &id(name, namespace)).len();
    assert_eq!((of("web", "shop"), of("bank", "pay")), (2, 1));
}

#[test]
fn a_unix_socket_reaches_all_ports_of_what_it_names() {
    let sidecar = egress(
        "{port: {number: 0, protocol: HTTP, name: http}, bind: 'unix:///run/egress.sock', hosts: ['./*']}",
    );
    let world = world(&[&sidecar]);
    let client = client(Families::V4);
    let found = listeners(&world, &client);
    assert_eq!(found.len(), 1);
    assert_eq!(&*found[0].name, "unix:///run/egress.sock_0");
    assert_eq!(
        found[0].address,
        Address::Unix(Text::from("/run/egress.sock"))
    );
    assert_eq!(&*table_of(&found[0]), "unix:///run/egress.sock");
    assert_eq!(clusters(&world, &client, &id("web", "shop")).len(), 2);
    assert!(clusters(&world, &client, &id("bank", "pay")).is_empty());
}

#[test]
fn other_names_are_shown_by_the_hosts_that_show_the_service() {
    let alias = "{apiVersion: v1, kind: Service, metadata: {name: vault, namespace: pay, annotations: {networking.istio.io/exportTo: '.'}}, spec: {type: ExternalName, externalName: web.shop.svc.cluster.local, ports: [{name: http, port: 80}]}}";
    let has = |world: &World| {
        let all = domains(world, &client(Families::V4), &id("web", "shop"), 80);
        all.iter().any(|d| &**d == "vault.pay.svc.cluster.local")
    };
    assert!(has(&world(&[alias])), "whatever the alias is exported to");
    let only = |hosts: &str| world(&[alias, &egress(&format!("{{hosts: [{hosts}]}}"))]);
    assert!(has(&only("./*")));
    assert!(!has(&only("./web.shop.svc.cluster.local")));
    assert!(!has(&only("./web.shop.svc.cluster.local, 'pay/*'")));
    assert!(has(&only(
        "'*/web.shop.svc.cluster.local', '*/vault.pay.svc.cluster.local'"
    )));
}

#[test]
fn tcp_is_served_beside_udp() {
    let dns = "{apiVersion: v1, kind: Service, metadata: {name: dns, namespace: shop}, spec: {clusterIP: 10.96.0.53, selector: {app: dns}, ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]}}";
    let found = listeners(&world(&[dns]), &client(Families::V4));
    assert!(found.iter().any(|l| &*l.name == "10.96.0.53_53"));
}

#[test]
fn without_dual_stack_the_first_family_of_a_service_counts() {
    let six = "{apiVersion: v1, kind: Service, metadata: {name: six, namespace: shop}, spec: {clusterIP: 'fd00::6', clusterIPs: ['fd00::6', 10.96.0.6], ipFamilies: [IPv6, IPv4], selector: {app: six}, ports: [{name: tcp, port: 91}, {name: http, port: 81}]}}";
    let world = world(&[six]);
    let named = |families| {
        let reader = Reader::new(&world);
        let service = reader.service(&id("six", "shop")).unwrap();
        let all = visibility::addresses(&reader, service, &client(families));
        all.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(named(Families::V4), ["10.96.0.6"]);
    assert_eq!(named(Families::Both), ["fd00::6"]);
    assert_eq!(named(Families::Dual), ["fd00::6", "10.96.0.6"]);
    let found = listeners(&world, &client(Families::Both));
    let http = found.iter().find(|l| &*l.name == "0.0.0.0_81").unwrap();
    assert_eq!(http.additional, [Address::Socket(Text::from("::"), 81)]);
    assert_eq!(Families::Both.entrances(), ["0.0.0.0"]);
}

const HEADLESS: &str = "
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp, port: 5432}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: shop, labels: {app: db, topology.istio.io/network: one}}, spec: {hostname: db-0, subdomain: db, containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.1}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, ports: [{name: tcp, port: 5432}], endpoints: [{addresses: [10.0.0.1], hostname: db-0, conditions: {ready: true}, targetRef: {kind: Pod, name: db-0, namespace: shop}}]}
";

fn names(world: &World, client: Client, network: &str, cluster: &str) -> Vec<String> {
    let scope = NameScope {
        client,
        network: network.into(),
        cluster: cluster.into(),
    };
    let all = dns::names(&Reader::new(world), &scope, &id("db", "shop"));
    all.iter().map(|n| n.host.to_string()).collect()
}

#[test]
fn pods_of_a_headless_service_are_named_within_their_network() {
    let world = world(&[HEADLESS]);
    let both = [
        "db-0.db.shop.svc.cluster.local",
        "db.shop.svc.cluster.local",
    ];
    let v4 = || client(Families::V4);
    assert_eq!(names(&world, v4(), "one", "Kubernetes"), both);
    assert_eq!(names(&world, v4(), "", "elsewhere"), both, "any cluster");
    assert!(names(&world, v4(), "two", "Kubernetes").is_empty());
    assert!(names(&world, client(Families::V6), "one", "Kubernetes").is_empty());
    assert!(names(&world, router(), "one", "Kubernetes").is_empty());
}

#[test]
fn endpoints_out_of_view_leave_no_trace() {
    let slice = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web, topology.istio.io/network: one}}, spec: {containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.2}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.2], conditions: {ready: true}, targetRef: {kind: Pod, name: web, namespace: shop}}]}";
    let world = world(&[slice]);
    let groups = |view: &[&str]| {
        let scope = EndpointScope {
            client: client(Families::V4),
            network: Text::default(),
            cluster: "Kubernetes".into(),
            node: Text::default(),
            view: view.iter().map(|n| Text::from(*n)).collect(),
        };
        let sets = endpoint::sets(&Reader::new(&world), &scope, &id("web", "shop"));
        sets[0].groups.len()
    };
    assert_eq!((groups(&[]), groups(&["one"]), groups(&["two"])), (1, 1, 0));
}

#[test]
fn what_is_passed_on_by_server_name_is_sent_to_mutual_tls_alone() {
    let entry = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: vm, namespace: shop}, spec: {hosts: [vm.example], location: MESH_INTERNAL, resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: a.example, labels: {security.istio.io/tlsMode: istio}}, {address: b.example}]}}";
    let gateway = "{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: cross, namespace: shop}, spec: {selector: {istio: cross}, servers: [{port: {number: 15443, name: tls, protocol: TLS}, hosts: ['*.local'], tls: {mode: AUTO_PASSTHROUGH}}]}}";
    let vm = ServiceId {
        host: "vm.example".into(),
        namespace: "shop".into(),
    };
    let found = clusters(&world(&[entry, gateway]), &router(), &vm);
    let counts: Vec<usize> = found
        .iter()
        .map(|c| {
            let Discovery::Dns { endpoints, .. } = &c.discovery else {
                panic!("not DNS")
            };
            assert_eq!(endpoints.cluster, c.name);
            endpoints.groups.iter().map(|g| g.endpoints.len()).sum()
        })
        .collect();
    assert_eq!(counts, [2, 1]);
}
