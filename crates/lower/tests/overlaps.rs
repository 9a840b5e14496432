//! Rules, hosts and services that overlap, in small.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{
    id, id_of_host, listening, object, routing, tuned, virtual_service, who, world, world_with,
};
use pilotfish_ir::listener::Handler;
use pilotfish_ir::route::Action;
use pilotfish_ir::{ClusterName, Listener, VirtualHost};
use pilotfish_lower::route::{self, HostKey, TableKey};
use pilotfish_lower::{Client, Families, ProxyKind, gateway, outbound};
use pilotfish_mesh::{Reader, ServiceId, World};

fn client(kind: ProxyKind, namespace: &str) -> Client {
    Client::new(kind, Families::V4, who(namespace, &[("gw", "front")]))
}

fn service(name: &str, namespace: &str, address: &str) -> String {
    let ports = "{name: http, port: 80}, {name: tcp, port: 90}, {name: tls, port: 93}";
    common::service(name, namespace, address, ports)
}

/// Virtual hosts of a gateway in namespace edge.
fn gateway_hosts(world: &World, table: &str) -> Vec<VirtualHost> {
    let reader = Reader::new(world);
    let scope = routing(client(ProxyKind::Router, "edge"));
    let key = TableKey::Gateway(table.into());
    route::hosts(&reader, &scope, &key)
        .iter()
        .map(|h| route::virtual_host(&reader, &scope, &key, h).unwrap())
        .collect()
}

fn names(hosts: &[VirtualHost]) -> Vec<&str> {
    hosts.iter().map(|h| &*h.name).collect()
}

fn gateway(servers: &str) -> String {
    object(
        "Gateway",
        "front",
        "edge",
        &format!("{{selector: {{gw: front}}, servers: {servers}}}"),
    )
}

fn answer(hosts: &str, status: u16) -> String {
    format!(
        "{{hosts: {hosts}, gateways: [edge/front], http: [{{directResponse: {{status: {status}}}}}]}}"
    )
}

#[test]
fn hosts_that_share_routes_are_named_after_the_most_specific() {
    let text = gateway("[{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}]")
        + &virtual_service(
            "a",
            "shop",
            &answer("['*.a.example', b.example, longer.example]", 200),
        );
    let hosts = gateway_hosts(&world(&text), "http.8080");
    assert_eq!(names(&hosts), ["longer.example:8080"]);
    let domains: Vec<&str> = hosts[0].domains.iter().map(|d| &**d).collect();
    assert_eq!(domains, ["longer.example", "b.example", "*.a.example"]);
}

#[test]
fn routes_for_few_namespaces_go_first_at_gateways() {
    let one = |status| answer("[a.example]", status);
    let text = gateway("[{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}]")
        + &virtual_service("a", "shop", &one(201))
        + &virtual_service(
            "b",
            "shop",
            &one(202).replace("hosts:", "exportTo: [edge], hosts:"),
        )
        + &virtual_service(
            "c",
            "edge",
            &one(203).replace("hosts:", "exportTo: ['.'], hosts:"),
        );
    let hosts = gateway_hosts(&world(&text), "http.8080");
    let statuses: Vec<u32> = hosts[0]
        .routes
        .iter()
        .map(|r| match &r.action {
            Action::Respond { status, .. } => *status,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(statuses, [203, 202, 201]);
}

#[test]
fn servers_of_a_gateway_share_the_routes_of_the_first() {
    let text = gateway(
        "[{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example]}, {port: {number: 80, name: http-2, protocol: HTTP}, hosts: [b.example], tls: {httpsRedirect: true}}]",
    ) + &virtual_service(
        "a",
        "shop",
        "{hosts: ['*.example'], gateways: [edge/front], http: [{redirect: {uri: /x, scheme: '', derivePort: FROM_REQUEST_PORT}}]}",
    );
    let hosts = gateway_hosts(&world(&text), "http.80");
    assert_eq!(names(&hosts), ["a.example:80", "b.example:80"]);
    assert_eq!(hosts[0].routes, hosts[1].routes);
    assert!(hosts[1].require_tls && !hosts[0].require_tls);
}

#[test]
fn gateways_of_other_namespaces_can_be_kept_out() {
    let text = gateway("[{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}]")
        .replace("namespace: edge", "namespace: shop");
    let ports = |features: &[(&str, &str)]| {
        let world = world_with(&text, tuned(features));
        let scope = listening(client(ProxyKind::Router, "edge"));
        gateway::listeners(&Reader::new(&world), &scope).len()
    };
    assert_eq!(ports(&[]), 1);
    assert_eq!(ports(&[("PILOT_SCOPE_GATEWAY_TO_NAMESPACE", "true")]), 0);
}

#[test]
fn a_gateway_translates_grpc_web() {
    let text = gateway(
        "[{port: {number: 8080, name: a, protocol: HTTP}, hosts: ['*']}, {port: {number: 8081, name: b, protocol: GRPC-WEB}, hosts: ['*']}]",
    );
    let world = world(&text);
    let scope = listening(client(ProxyKind::Router, "edge"));
    let translates: Vec<bool> = gateway::listeners(&Reader::new(&world), &scope)
        .iter()
        .map(|l| matches!(&l.chains[0].handler, Handler::Http(h) if h.grpc_web))
        .collect();
    assert_eq!(translates, [false, true]);
}

#[test]
fn the_name_of_a_tls_server_is_its_prefix_of_statistics() {
    let server = |name: &str, host: &str| {
        format!(
            "{{port: {{number: 8443, name: https-{host}, protocol: HTTPS}}, hosts: [{host}.example], tls: {{mode: SIMPLE, credentialName: c}}{name}}}"
        )
    };
    let text = gateway(&format!(
        "[{}, {}]",
        server("", "a"),
        server(", name: own", "b")
    ));
    let world = world(&text);
    let scope = listening(client(ProxyKind::Router, "edge"));
    let listeners = gateway::listeners(&Reader::new(&world), &scope);
    let prefixes: Vec<(&str, bool)> = listeners[0]
        .chains
        .iter()
        .map(|c| match &c.handler {
            Handler::Http(h) => (&*h.stat_prefix, h.stat_chosen),
            Handler::Tcp(_) => panic!("not HTTP"),
        })
        .collect();
    assert_eq!(prefixes, [("outbound_0.0.0.0_8443", false), ("own", true)]);
}

/// The virtual host of a service in the table of port 80 for a sidecar.
fn host_of(world: &World, namespace: &str, of: &ServiceId) -> VirtualHost {
    route::virtual_host(
        &Reader::new(world),
        &routing(client(ProxyKind::Sidecar, namespace)),
        &TableKey::Port(80),
        &HostKey::Service(of.clone()),
    )
    .unwrap()
}

#[test]
fn the_headers_of_a_rule_come_before_those_of_its_destination() {
    let text = service("bank", "pay", "10.96.0.2")
        + &virtual_service(
            "bank",
            "pay",
            "{hosts: [bank], http: [{headers: {request: {set: {a: '1'}, add: {b: '2'}}}, route: [{destination: {host: bank}, headers: {request: {set: {c: '3'}, add: {d: '4'}}}}]}]}",
        );
    let bank = id("bank", "pay");
    let host = host_of(&world(&text), "pay", &bank);
    let given: Vec<(&str, bool)> = host.routes[0]
        .headers
        .request
        .give
        .iter()
        .map(|h| (&*h.name, h.append))
        .collect();
    assert_eq!(
        given,
        [("a", false), ("b", true), ("c", false), ("d", true)]
    );
}

#[test]
fn a_mirror_belongs_to_the_rule_that_delegates() {
    let text = service("bank", "pay", "10.96.0.2")
        + &virtual_service(
            "root",
            "shop",
            "{hosts: [bank.pay.svc.cluster.local], http: [{delegate: {name: leaf, namespace: pay}, mirror: {host: shadow}}]}",
        )
        + &virtual_service(
            "leaf",
            "pay",
            "{http: [{route: [{destination: {host: bank}}]}]}",
        );
    let bank = id("bank", "pay");
    let host = host_of(&world(&text), "pay", &bank);
    let Action::Forward(f) = &host.routes[0].action else {
        panic!("{:?}", host.routes[0])
    };
    let ClusterName::Outbound { host, .. } = &f.mirrors[0].cluster else {
        panic!("{:?}", f.mirrors)
    };
    assert_eq!(&**host, "shadow.shop.svc.cluster.local");
}

/// Where the chains of the listener at an address lead, with the server names they are for.
fn led(listeners: &[Listener], name: &str) -> Vec<String> {
    let listener = listeners.iter().find(|l| &*l.name == name).unwrap();
    let chains = listener.chains.iter();
    chains
        .map(|c| match &c.handler {
            Handler::Tcp(t) => format!("{} {}", c.matches.server_names.join(","), t.stat_prefix),
            Handler::Http(_) => "http".to_owned(),
        })
        .collect()
}

#[test]
fn streams_take_all_rules_that_cover_their_host() {
    let text = service("bank", "pay", "10.96.0.2")
        + &service("cash", "pay", "10.96.0.3")
        + &virtual_service(
            "a",
            "pay",
            "{hosts: [bank.pay.svc.cluster.local], tls: [{match: [{port: 93, sniHosts: [bank.pay.svc.cluster.local]}], route: [{destination: {host: one}}]}]}",
        )
        + &virtual_service(
            "b",
            "pay",
            "{hosts: ['*.pay.svc.cluster.local'], tcp: [{match: [{port: 90}], route: [{destination: {host: two}}]}], tls: [{match: [{sniHosts: ['*.pay.svc.cluster.local']}], route: [{destination: {host: two}}]}]}",
        )
        + &virtual_service(
            "c",
            "pay",
            "{hosts: [cash], tcp: [{route: [{destination: {host: three}}]}]}",
        );
    let world = world(&text);
    let scope = listening(client(ProxyKind::Sidecar, "pay"));
    let reader = Reader::new(&world);
    assert_eq!(
        led(&outbound::listeners(&reader, &scope, 93), "10.96.0.2_93"),
        [
            "bank.pay.svc.cluster.local outbound|93||one.pay.svc.cluster.local",
            "*.pay.svc.cluster.local outbound|93||two.pay.svc.cluster.local",
        ]
    );
    let streams = outbound::listeners(&reader, &scope, 90);
    for address in ["10.96.0.2_90", "10.96.0.3_90"] {
        assert_eq!(
            led(&streams, address),
            [" outbound|90||two.pay.svc.cluster.local"],
            "the older rule takes everything"
        );
    }
}

#[test]
fn a_host_has_only_the_ports_of_the_service_that_owns_it() {
    let text = service("bank", "pay", "10.96.0.2")
        + &object(
            "ServiceEntry",
            "bank",
            "shop",
            "{hosts: [bank.pay.svc.cluster.local], addresses: [192.0.2.1], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 192.0.2.2}]}",
        );
    let world = world(&text);
    let streams = |namespace| {
        let scope = listening(client(ProxyKind::Sidecar, namespace));
        outbound::listeners(&Reader::new(&world), &scope, 90).len()
    };
    assert_eq!((streams("pay"), streams("shop")), (1, 0));
}

#[test]
fn a_written_host_owns_an_address_before_one_under_a_wildcard() {
    let text = object(
        "ServiceEntry",
        "all",
        "shop",
        "{hosts: [a.x.example, x.example], addresses: [192.0.2.1], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 192.0.2.2}]}",
    ) + &virtual_service(
        "x",
        "shop",
        "{hosts: ['*.x.example', x.example], http: [{directResponse: {status: 200}}]}",
    );
    let world = world(&text);
    let scope = routing(client(ProxyKind::Sidecar, "shop"));
    let keys = route::hosts(&Reader::new(&world), &scope, &TableKey::Port(80));
    let expected = ["x.example", "a.x.example"].map(|h| HostKey::Service(id_of_host(h, "shop")));
    assert_eq!(keys[..2], expected);
}
