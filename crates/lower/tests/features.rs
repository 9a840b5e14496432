//! What variables of the environment switch on or off: HTTP/3, sessions, clusters of gateways, and smaller things.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use pilotfish_ir::cluster::{Discovery, Places};
use pilotfish_ir::endpoint::Health;
use pilotfish_ir::listener::{Handler, Http};
use pilotfish_ir::route::{Action, Session};
use pilotfish_ir::tls::{DownstreamTls, SecretSource, UpstreamTls};
use pilotfish_ir::{Cluster, Listener, Millis, VirtualHost};
use pilotfish_lower::route::{self, HostKey, TableKey};
use pilotfish_lower::{
    Client, ClusterScope, EndpointScope, Families, ListenerScope, ProxyKind, RouteScope, Text,
    cluster, endpoint, gateway, outbound,
};
use pilotfish_mesh::{Instance, Port, Protocol, Reader, ServiceId, World};

const QUIC: (&str, &str) = ("PILOT_ENABLE_QUIC_LISTENERS", "true");
const SESSIONS: (&str, &str) = ("PILOT_ENABLE_PERSISTENT_SESSION_FILTER", "true");
const REACHED: (&str, &str) = ("PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", "true");

fn world(objects: &[String], features: &[(&str, &str)]) -> World {
    common::world_with(&objects.join("\n---\n"), common::tuned(features))
}

fn client(kind: ProxyKind) -> Client {
    Client::new(kind, Families::V4, common::who("shop", &[("gw", "front")]))
}

fn id(name: &str) -> ServiceId {
    common::id(name, "shop")
}

fn object(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.istio.io/v1, kind: {kind}, metadata: {{name: {name}, namespace: shop}}, spec: {spec}}}"
    )
}

fn service(name: &str, labels: &str, ports: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}, spec: {{clusterIP: 10.96.0.1, selector: {{app: {name}}}, ports: [{ports}]}}}}"
    )
}

fn web(name: &str, labels: &str) -> String {
    service(name, labels, "{name: http, port: 80, targetPort: 8080}")
}

fn front(servers: &str) -> String {
    object(
        "Gateway",
        "front",
        &format!("{{selector: {{gw: front}}, servers: [{servers}]}}"),
    )
}

fn listening(kind: ProxyKind, instances: Vec<Instance>) -> ListenerScope {
    ListenerScope {
        instances,
        ..common::listening(client(kind))
    }
}

/// The port 443 of the gateway's service, which leads to 8443.
fn exposed() -> Vec<Instance> {
    vec![Instance {
        service: id("front"),
        port: Port {
            name: "https".into(),
            number: 443,
            protocol: Protocol::Https,
        },
        target: 8443,
    }]
}

const TCP_AND_UDP: &str = "{name: https, port: 443, targetPort: 8443}, {name: h3, port: 443, targetPort: 8443, protocol: UDP}";

fn https(name: &str, host: &str, mode: &str) -> String {
    format!(
        "{{port: {{number: 443, name: {name}, protocol: HTTPS}}, hosts: [{host}], tls: {{mode: {mode}, credentialName: cert}}}}"
    )
}

fn http(listener: &Listener) -> &Http {
    match &listener.chains[0].handler {
        Handler::Http(http) => http,
        Handler::Tcp(tcp) => panic!("{tcp:?}"),
    }
}

fn names(listeners: &[Listener]) -> Vec<&str> {
    listeners.iter().map(|l| &*l.name).collect()
}

fn gateway_listeners(world: &World) -> Vec<Listener> {
    gateway::listeners(
        &Reader::new(world),
        &listening(ProxyKind::Router, exposed()),
    )
}

fn gateway_hosts(world: &World, table: &str) -> Vec<VirtualHost> {
    let reader = Reader::new(world);
    let scope = RouteScope {
        client: client(ProxyKind::Router),
        instances: exposed(),
        http_proxy: false,
    };
    let key = TableKey::Gateway(table.into());
    route::hosts(&reader, &scope, &key)
        .iter()
        .map(|h| route::virtual_host(&reader, &scope, &key, h).unwrap())
        .collect()
}

fn virtual_service(hosts: &str, gateways: &str, http: &str) -> String {
    object(
        "VirtualService",
        "routes",
        &format!("{{hosts: [{hosts}], gateways: [{gateways}], http: [{http}]}}"),
    )
}

#[test]
fn https_is_served_over_quic_where_datagrams_come() {
    let servers = [
        https("a", "a.example", "SIMPLE"),
        https("b", "b.example", "OPTIONAL_MUTUAL"),
    ];
    let objects = [
        service("front", "", TCP_AND_UDP),
        front(&servers.join(", ")),
        virtual_service("'*.example'", "front", "{directResponse: {status: 200}}"),
    ];
    let world = world(&objects, &[QUIC]);
    let listeners = gateway_listeners(&world);
    assert_eq!(names(&listeners), ["0.0.0.0_8443", "udp_0.0.0.0_8443"]);
    let quic = &listeners[1];
    assert!(quic.quic && !listeners[0].quic);
    assert_eq!(quic.address, listeners[0].address);
    assert!(quic.inspect.tls.is_none() && listeners[0].inspect.tls.is_some());
    assert_eq!(quic.chains.len(), 2);
    assert!(http(quic).http3 && !http(&listeners[0]).http3);
    assert_eq!(&*http(quic).stat_prefix, "outbound_udp_0.0.0.0_8443");
    let Some(DownstreamTls::Server(tls)) = &quic.chains[0].tls else {
        panic!("{:?}", quic.chains[0].tls);
    };
    assert_eq!(tls.alpn, [Text::from("h3")]);
    // Clients know the port of the service, not that of the proxy.
    let hosts = gateway_hosts(&world, "https.443.a.front.shop");
    assert_eq!(hosts[0].routes[0].http3_port, Some(443));
}

#[test]
fn nothing_is_served_over_quic_unasked() {
    let servers = front(&https("a", "a.example", "SIMPLE"));
    let without_udp = "{name: https, port: 443, targetPort: 8443}";
    for (ports, features) in [(TCP_AND_UDP, &[][..]), (without_udp, &[QUIC][..])] {
        let objects = [
            service("front", "", ports),
            servers.clone(),
            virtual_service("a.example", "front", "{directResponse: {status: 200}}"),
        ];
        let world = world(&objects, features);
        assert_eq!(names(&gateway_listeners(&world)), ["0.0.0.0_8443"]);
        let hosts = gateway_hosts(&world, "https.443.a.front.shop");
        assert_eq!(hosts[0].routes[0].http3_port, None);
    }
}

/// Over QUIC nobody could be asked for a certificate.
#[test]
fn servers_that_demand_certificates_stay_off_quic() {
    for mode in ["MUTUAL", "ISTIO_MUTUAL"] {
        let server = https("a", "a.example", mode);
        let server = match mode {
            "MUTUAL" => server,
            _ => server.replace(", credentialName: cert", ""),
        };
        let objects = [
            service("front", "", TCP_AND_UDP),
            front(&server),
            virtual_service("a.example", "front", "{directResponse: {status: 200}}"),
        ];
        let world = world(&objects, &[QUIC]);
        let reader = Reader::new(&world);
        let scope = listening(ProxyKind::Router, exposed());
        let listeners = gateway::listeners(&reader, &scope);
        assert_eq!(names(&listeners), ["0.0.0.0_8443"]);
        let said = reader.into_record().diagnostics;
        assert!(said.iter().any(|d| d.code == "no-http3"), "{said:?}");
        let hosts = gateway_hosts(&world, "https.443.a.front.shop");
        assert_eq!(hosts[0].routes[0].http3_port, None);
    }
}

fn cookie(name: &str, path: &str) -> Session {
    Session::Cookie {
        name: name.into(),
        path: path.into(),
    }
}

fn host_of(world: &World, name: &str) -> VirtualHost {
    let reader = Reader::new(world);
    let scope = RouteScope {
        client: client(ProxyKind::Sidecar),
        instances: Vec::new(),
        http_proxy: false,
    };
    let key = HostKey::Service(id(name));
    route::virtual_host(&reader, &scope, &TableKey::Port(80), &key).unwrap()
}

#[test]
fn labels_of_a_service_ask_for_sessions() {
    let objects = [
        web("a", "istio.io/persistent-session: c"),
        web("b", "'istio.io/persistent-session': 'c:/p'"),
        web("c", "istio.io/persistent-session-header: x-session"),
        web("d", "sticky: mine, istio.io/persistent-session: c"),
        web("e", ""),
    ];
    let sessions = |features: &[(&str, &str)]| {
        let world = world(&objects, features);
        ["a", "b", "c", "d", "e"].map(|name| host_of(&world, name).session)
    };
    assert_eq!(
        sessions(&[SESSIONS]),
        [
            Some(cookie("c", "/")),
            Some(cookie("c", "/p")),
            Some(Session::Header("x-session".into())),
            Some(cookie("c", "/")),
            None,
        ]
    );
    assert_eq!(sessions(&[]), [const { None }; 5]);
    let other = ("PILOT_PERSISTENT_SESSION_LABEL", "sticky");
    let renamed = sessions(&[SESSIONS, other]);
    assert_eq!(renamed[3], Some(cookie("mine", "/")));
    assert_eq!(renamed[0], None);
}

#[test]
fn a_route_keeps_the_sessions_of_its_destinations() {
    let to =
        |name: &str, weight: u32| format!("{{destination: {{host: {name}}}, weight: {weight}}}");
    let rule = |path: &str, to: &[String]| {
        format!(
            "{{match: [{{uri: {{prefix: {path}}}}}], route: [{}]}}",
            to.join(", ")
        )
    };
    let rules = [
        rule("/1", &[to("a", 0)]),
        rule("/2", &[to("plain", 50), to("b", 50)]),
        rule("/3", &[to("a", 50), to("b", 50)]),
        rule("/4", &[to("a", 0), to("b", 100)]),
        rule("/5", &[to("plain", 0)]),
        "{redirect: {uri: /}}".to_owned(),
    ];
    let objects = [
        web("a", "istio.io/persistent-session: a"),
        web("b", "istio.io/persistent-session: b"),
        web("plain", ""),
        virtual_service("plain", "mesh", &rules.join(", ")),
    ];
    let host = host_of(&world(&objects, &[SESSIONS]), "plain");
    let kept: Vec<_> = host.routes.iter().map(|r| r.session.clone()).collect();
    let (a, b) = (Some(cookie("a", "/")), Some(cookie("b", "/")));
    assert_eq!(kept, [a.clone(), b.clone(), a, b, None, None]);
}

#[test]
fn a_host_of_a_gateway_keeps_the_sessions_of_the_service_it_is() {
    let name = "a.shop.svc.cluster.local";
    let objects = |to: &str| {
        [
            web("a", "istio.io/persistent-session: c"),
            web("plain", ""),
            front("{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}"),
            virtual_service(
                name,
                "front",
                &format!("{{route: [{{destination: {{host: {to}}}}}]}}"),
            ),
        ]
    };
    let session = |to: &str| {
        let world = world(&objects(to), &[SESSIONS]);
        gateway_hosts(&world, "http.8080").remove(0).session
    };
    assert_eq!(session("a"), Some(cookie("c", "/")));
    assert_eq!(session("plain"), None);
}

fn clusters(world: &World, name: &str) -> Vec<Cluster> {
    clusters_of(world, &id(name))
}

fn clusters_of(world: &World, of: &ServiceId) -> Vec<Cluster> {
    let scope = ClusterScope {
        client: client(ProxyKind::Sidecar),
        files: pilotfish_ir::tls::CertificateFiles::default(),
        network: Text::default(),
    };
    cluster::outbound(&Reader::new(world), &scope, of)
}

fn pod(name: &str, ip: &str, labels: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}, status: {{phase: Running, podIP: {ip}, podIPs: [{{ip: {ip}}}], conditions: [{{type: Ready, status: 'True'}}]}}}}"
    )
}

fn slice(service: &str, endpoints: &[(&str, &str, &str)]) -> String {
    let endpoints: Vec<String> = endpoints
        .iter()
        .map(|(pod, ip, conditions)| {
            format!(
                "{{addresses: [{ip}], conditions: {{{conditions}}}, targetRef: {{kind: Pod, name: {pod}, namespace: shop}}}}"
            )
        })
        .collect();
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {service}-1, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}, addressType: IPv4, ports: [{{name: http, port: 8080}}], endpoints: [{}]}}",
        endpoints.join(", ")
    )
}

fn endpoints(world: &World, name: &str) -> Vec<(Health, Text)> {
    let scope = EndpointScope {
        client: client(ProxyKind::Sidecar),
        network: Text::default(),
        cluster: Text::from("Kubernetes"),
        node: Text::default(),
        view: BTreeSet::new(),
    };
    let sets = endpoint::sets(&Reader::new(world), &scope, &id(name));
    let groups = sets[0].groups.iter().flat_map(|g| &g.endpoints);
    groups.map(|e| (e.health, e.workload.clone())).collect()
}

fn healths(world: &World, name: &str) -> Vec<Health> {
    endpoints(world, name).into_iter().map(|e| e.0).collect()
}

#[test]
fn sessions_stay_with_endpoints_that_drain() {
    let pods = [
        ("p1", "10.0.0.1", "ready: true"),
        ("p2", "10.0.0.2", "ready: true"),
    ];
    let of = |labels: &str| {
        [
            web("a", labels),
            pod("p1", "10.0.0.1", "app: a"),
            pod("p2", "10.0.0.2", "app: a, istio.io/draining: yes1"),
            slice("a", &pods),
        ]
    };
    let sticky = of("istio.io/persistent-session: c");
    let kept = world(&sticky, &[]);
    assert_eq!(healths(&kept, "a"), [Health::Healthy, Health::Draining]);
    assert!(clusters(&kept, "a")[0].balancing.sessions);
    let plain = world(&of(""), &[]);
    assert_eq!(healths(&plain, "a"), [Health::Healthy]);
    assert!(!clusters(&plain, "a")[0].balancing.sessions);
    let other = world(&sticky, &[("PILOT_DRAINING_LABEL", "leaves")]);
    assert_eq!(healths(&other, "a"), [Health::Healthy, Health::Healthy]);
}

#[test]
fn endpoints_that_are_not_ready_may_be_kept_from_clients() {
    let objects = [
        web("a", ""),
        pod("p1", "10.0.0.1", "app: a"),
        slice(
            "a",
            &[(
                "p1",
                "10.0.0.1",
                "ready: false, serving: false, terminating: false",
            )],
        ),
    ];
    let auto_off = ("PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", "false");
    let always = ("PILOT_SEND_UNHEALTHY_ENDPOINTS", "true");
    let seen = |features: &[(&str, &str)]| {
        let world = world(&objects, features);
        let panic = clusters(&world, "a")[0].balancing.panic_threshold;
        (healths(&world, "a").len(), panic)
    };
    assert_eq!(seen(&[]), (1, Some(0)));
    assert_eq!(seen(&[auto_off]), (0, None));
    assert_eq!(seen(&[auto_off, always]), (1, Some(0)));
}

#[test]
fn a_gateway_reaches_what_its_rules_lead_to() {
    let to = |name: &str| format!("{{destination: {{host: {name}}}}}");
    let http = format!(
        "{{match: [{{uri: {{prefix: /x}}}}], route: [{to_a}], mirror: {{host: b}}}}, {{route: [{to_a}], mirrors: [{{destination: {{host: c}}}}]}}",
        to_a = to("a")
    );
    let objects = [
        front("{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}"),
        virtual_service("x.example", "front", &http),
        object(
            "VirtualService",
            "bytes",
            &format!(
                "{{hosts: [y.example], gateways: [front], tcp: [{{route: [{}]}}], tls: [{{match: [{{sniHosts: [y.example]}}], route: [{}]}}]}}",
                to("d"),
                to("e")
            ),
        ),
        object(
            "VirtualService",
            "inside",
            &format!("{{hosts: [f], http: [{{route: [{}]}}]}}", to("f")),
        ),
    ];
    let reached = |features: &[(&str, &str)], kind: ProxyKind| {
        let world = world(&objects, features);
        let reached = gateway::reached(&Reader::new(&world), &client(kind))?;
        Some(["a", "b", "c", "d", "e", "f"].map(|name| reached.has(&id(name))))
    };
    let of_rules = [true, true, true, true, true, false];
    assert_eq!(reached(&[REACHED], ProxyKind::Router), Some(of_rules));
    assert_eq!(reached(&[REACHED], ProxyKind::Sidecar), None);
    assert_eq!(reached(&[], ProxyKind::Router), None);
}

#[test]
fn rules_for_other_namespaces_are_not_reached_by_a_gateway_of_one() {
    let from = |namespace: &str, to: &str| {
        format!(
            "{{match: [{{sourceNamespace: {namespace}}}], route: [{{destination: {{host: {to}}}}}]}}"
        )
    };
    let rules = format!("{}, {}", from("shop", "a"), from("elsewhere", "b"));
    let objects = [
        front("{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}"),
        virtual_service("x.example", "front", &rules),
    ];
    let reached = |features: &[(&str, &str)]| {
        let world = world(&objects, features);
        let reached = gateway::reached(&Reader::new(&world), &client(ProxyKind::Router)).unwrap();
        ["a", "b"].map(|name| reached.has(&id(name)))
    };
    assert_eq!(reached(&[REACHED]), [true, true]);
    let scoped = ("PILOT_SCOPE_GATEWAY_TO_NAMESPACE", "true");
    assert_eq!(reached(&[REACHED, scoped]), [true, false]);
}

#[test]
fn listeners_of_gateways_are_tuned() {
    let objects = [front(
        "{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}",
    )];
    let seen = |features: &[(&str, &str)]| {
        let world = world(&objects, features);
        let listener = gateway_listeners(&world).remove(0);
        (
            listener.accepts_per_event,
            listener.chains[0].connect_timeout,
        )
    };
    let accepts = "MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP";
    let handshake = "PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT";
    assert_eq!(seen(&[]), (Some(1), Some(Millis::secs(15))));
    assert_eq!(
        seen(&[(accepts, "5"), (handshake, "3s")]),
        (Some(5), Some(Millis::secs(3)))
    );
    assert_eq!(seen(&[(accepts, "0"), (handshake, "0s")]), (None, None));
}

#[test]
fn what_telemetry_needs_can_be_left_out() {
    let objects = [
        web("a", ""),
        pod("p1", "10.0.0.1", "app: a"),
        slice("a", &[("p1", "10.0.0.1", "ready: true")]),
    ];
    let seen = |features: &[(&str, &str)]| {
        let world = world(&objects, features);
        let cluster = clusters(&world, "a").remove(0);
        let reader = Reader::new(&world);
        let scope = listening(ProxyKind::Sidecar, Vec::new());
        let listener = outbound::listeners(&reader, &scope, 80).remove(0);
        let (peers, alpn) = (http(&listener).peers, http(&listener).mesh_alpn);
        let told = !endpoints(&world, "a")[0].1.is_empty();
        let services = !cluster.services.is_empty();
        (cluster.metadata_exchange, peers, alpn, services, told)
    };
    assert_eq!(seen(&[]), (true, true, true, true, true));
    assert_eq!(
        seen(&[("PILOT_ENABLE_METADATA_EXCHANGE", "false")]),
        (false, false, true, true, true)
    );
    assert_eq!(
        seen(&[("PILOT_ENABLE_ALPN_FILTER", "false")]),
        (true, true, false, true, true)
    );
    assert_eq!(
        seen(&[("PILOT_ENABLE_TELEMETRY_LABEL", "false")]),
        (true, true, true, false, false)
    );
    assert_eq!(
        seen(&[("PILOT_ENDPOINT_TELEMETRY_LABEL", "false")]),
        (true, true, true, true, false)
    );
}

#[test]
fn balancing_and_limits_are_tuned() {
    let objects = [web("a", "")];
    let seen = |features: &[(&str, &str)]| {
        let cluster = clusters(&world(&objects, features), "a").remove(0);
        (cluster.balancing.places, cluster.pool.track_remaining)
    };
    assert_eq!(seen(&[]), (Places::Ignored, false));
    assert_eq!(
        seen(&[
            ("ENABLE_LOCALITY_WEIGHTED_LB_CONFIG", "true"),
            ("DISABLE_TRACK_REMAINING_CB_METRICS", "false")
        ]),
        (Places::Weighted, true)
    );
}

#[test]
fn routes_are_tuned() {
    let objects = [
        web("a", ""),
        front("{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}"),
        virtual_service(
            "a.example, b.example",
            "front",
            "{route: [{destination: {host: a}}], mirror: {host: a}}",
        ),
    ];
    let seen = |features: &[(&str, &str)]| {
        let hosts = gateway_hosts(&world(&objects, features), "http.8080");
        let Action::Forward(to) = &hosts[0].routes[0].action else {
            panic!("{hosts:?}");
        };
        (hosts.len(), to.mirrors[0].disable_shadow_suffix)
    };
    assert_eq!(seen(&[]), (1, true));
    assert_eq!(
        seen(&[
            ("PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION", "false"),
            ("DISABLE_SHADOW_HOST_SUFFIX", "false")
        ]),
        (2, false)
    );
}

fn entry(name: &str, spec: &str) -> String {
    object("ServiceEntry", name, spec)
}

#[test]
fn names_are_resolved_as_the_environment_says() {
    let objects = [entry(
        "dns",
        "{hosts: [dns.example], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}",
    )];
    let seen = |features: &[(&str, &str)]| {
        let outside = ServiceId {
            host: "dns.example".into(),
            namespace: "shop".into(),
        };
        let cluster = clusters_of(&world(&objects, features), &outside).remove(0);
        match cluster.discovery {
            Discovery::Dns {
                jitter, queries, ..
            } => (jitter, queries),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(seen(&[]), (Millis(100), 100));
    assert_eq!(
        seen(&[
            ("PILOT_DNS_JITTER_DURATION", "2s"),
            ("PILOT_DNS_CARES_UDP_MAX_QUERIES", "0")
        ]),
        (Millis::secs(2), 0)
    );
}

#[test]
fn what_selects_what_is_tuned() {
    let workload = object(
        "WorkloadEntry",
        "vm",
        "{address: 10.0.0.9, labels: {app: a}}",
    );
    let objects = [
        web("a", ""),
        pod("p1", "10.0.0.1", "app: a"),
        slice("a", &[("p1", "10.0.0.1", "ready: true")]),
        workload,
        entry(
            "both",
            "{hosts: [both.shop.svc.cluster.local], resolution: STATIC, workloadSelector: {labels: {app: a}}, ports: [{number: 80, name: http, protocol: HTTP}]}",
        ),
    ];
    let seen = |features: &[(&str, &str)]| {
        let world = world(&objects, features);
        (
            endpoints(&world, "a").len(),
            endpoints(&world, "both").len(),
        )
    };
    assert_eq!(seen(&[]), (2, 2));
    let pods = ("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", "false");
    assert_eq!(seen(&[pods]), (2, 1));
    let entries = ("PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", "false");
    assert_eq!(seen(&[entries]), (1, 2));
}

#[test]
fn what_is_outside_may_be_called_what_its_entry_says() {
    let objects = [entry(
        "shop-window",
        "{hosts: [out.shop.svc.cluster.local], location: MESH_EXTERNAL, resolution: STATIC, endpoints: [{address: 10.0.0.9}], ports: [{number: 80, name: http, protocol: HTTP}]}",
    )];
    let seen = |features: &[(&str, &str)]| {
        let workload = endpoints(&world(&objects, features), "out").remove(0).1;
        workload.split(';').nth(2).unwrap().to_owned()
    };
    let on = (
        "LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES",
        "true",
    );
    assert_ne!(seen(&[]), "shop-window");
    assert_eq!(seen(&[on]), "shop-window");
}

/// A proxy with certificates of its own shows them outside the mesh only if it is told to.
#[test]
fn own_certificates_outside_the_mesh() {
    let objects = [
        entry(
            "out",
            "{hosts: [out.shop.svc.cluster.local], location: MESH_EXTERNAL, resolution: STATIC, endpoints: [{address: 10.0.0.9}], ports: [{number: 443, name: https, protocol: HTTPS}]}",
        ),
        object(
            "DestinationRule",
            "out",
            "{host: out.shop.svc.cluster.local, trafficPolicy: {tls: {mode: MUTUAL, clientCertificate: /written.pem, privateKey: /k.pem, caCertificates: /ca.pem}}}",
        ),
    ];
    let shown = |features: &[(&str, &str)]| {
        let scope = ClusterScope {
            client: client(ProxyKind::Sidecar),
            files: pilotfish_ir::tls::CertificateFiles {
                certificate: Some("file-cert:/own.pem~/own-key.pem".into()),
                roots: None,
            },
            network: Text::default(),
        };
        let world = world(&objects, features);
        let cluster = cluster::outbound(&Reader::new(&world), &scope, &id("out")).remove(0);
        match cluster.tls {
            UpstreamTls::Custom(tls) => tls.certificate,
            other => panic!("{other:?}"),
        }
    };
    let file = |name: &str| Some(SecretSource::File(name.into()));
    assert_eq!(shown(&[]), file("file-cert:/written.pem~/k.pem"));
    let off = ("PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES", "false");
    assert_eq!(shown(&[off]), file("file-cert:/own.pem~/own-key.pem"));
}

#[test]
fn peers_agree_on_an_exchange_unless_it_is_off() {
    let objects = [
        web("a", ""),
        front(
            "{port: {number: 8443, name: tls, protocol: TLS}, hosts: ['*'], tls: {mode: ISTIO_MUTUAL}}",
        ),
        object(
            "VirtualService",
            "bytes",
            "{hosts: ['*'], gateways: [front], tcp: [{route: [{destination: {host: a}}]}]}",
        ),
    ];
    let seen = |features: &[(&str, &str)]| {
        let world = world(&objects, features);
        let UpstreamTls::AutoMutual(up) = clusters(&world, "a").remove(0).tls else {
            panic!("no mutual TLS");
        };
        let listener = gateway_listeners(&world).remove(0);
        let chain = &listener.chains[0];
        let Some(DownstreamTls::Server(down)) = &chain.tls else {
            panic!("{:?}", chain.tls);
        };
        let offered = down.alpn.iter().any(|a| &**a == "istio-peer-exchange");
        (up.peer_exchange, offered, chain.metadata_exchange)
    };
    assert_eq!(seen(&[]), (true, true, true));
    assert_eq!(
        seen(&[("PILOT_DISABLE_MX_ALPN", "true")]),
        (false, false, true)
    );
    assert_eq!(
        seen(&[("PILOT_ENABLE_METADATA_EXCHANGE", "false")]),
        (false, true, false)
    );
}

#[test]
fn gateways_spread_connections_evenly_if_asked() {
    let objects = [
        service("front", "", TCP_AND_UDP),
        front(&https("a", "a.example", "SIMPLE")),
    ];
    let world = world(&objects, &[QUIC]);
    let mut scope = listening(ProxyKind::Router, exposed());
    Arc::make_mut(&mut scope.client.conduct).outbound_balance = true;
    let listeners = gateway::listeners(&Reader::new(&world), &scope);
    // Of datagrams the kernel takes care.
    let even: Vec<bool> = listeners.iter().map(|l| l.exact_balance).collect();
    assert_eq!(even, [true, false]);
}
