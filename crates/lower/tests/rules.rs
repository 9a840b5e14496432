//! Destination rules and VirtualServices as proxies see them, in small.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::{calling, id, object, routing, virtual_service, who, world};
use pilotfish_config::networking::ClientTlsMode;
use pilotfish_ir::cluster::{Discovery, Places, Policy, UpstreamHttp};
use pilotfish_ir::route::{Action, Forward, HashPolicy};
use pilotfish_ir::tls::UpstreamTls;
use pilotfish_ir::{Cluster, ClusterName, EndpointSet, Millionths, Share};
use pilotfish_lower::{
    Client, EndpointScope, Families, ProxyKind, Text, cluster, endpoint, policy, route, visibility,
};
use pilotfish_mesh::{Locality, Reader, ServiceId, World};

fn client(namespace: &str, labels: &[(&str, &str)]) -> Client {
    Client::new(ProxyKind::Sidecar, Families::V4, who(namespace, labels))
}

fn service(name: &str, namespace: &str) -> String {
    let ports = "{name: http, port: 80}, {name: tcp, port: 90}, {name: what, port: 70}";
    common::service(name, namespace, "10.96.0.2", ports)
}

fn rule(name: &str, namespace: &str, spec: &str) -> String {
    object("DestinationRule", name, namespace, spec)
}

/// `namespace/name` of the rule that applies, its most connections, and its subsets.
fn applied(world: &World, client: &Client, of: &ServiceId, serving: bool) -> Option<String> {
    let reader = Reader::new(world);
    let service = reader.service(of).unwrap();
    let rule = if serving {
        policy::rule_of_server(&reader, client, service)
    } else {
        policy::rule(&reader, client, service)
    }?;
    let most = policy::effective(Some(&rule), None, 80)
        .connection_pool
        .and_then(|p| p.tcp)
        .map_or(0, |t| t.max_connections);
    let subsets: Vec<&str> = rule.spec.subsets.iter().map(|s| s.name.as_str()).collect();
    Some(format!(
        "{}/{} {most} {}",
        rule.object.key.namespace,
        rule.object.key.name,
        subsets.join(",")
    ))
}

fn limit(n: u32) -> String {
    format!("trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {n}}}}}}}")
}

fn clusters(world: &World, client: &Client, of: &ServiceId) -> BTreeMap<String, Cluster> {
    let scope = calling(client.clone());
    cluster::outbound(&Reader::new(world), &scope, of)
        .into_iter()
        .map(|c| {
            let ClusterName::Outbound { port, subset, .. } = &c.name else {
                panic!("not outbound: {:?}", c.name)
            };
            (format!("{port}|{subset}"), c)
        })
        .collect()
}

fn endpoints(world: &World, scope: &EndpointScope, of: &ServiceId) -> Vec<EndpointSet> {
    endpoint::sets(&Reader::new(world), scope, of)
}

fn at(client: Client, network: &str, region: &str, zone: &str) -> EndpointScope {
    let locality = Locality {
        region: region.into(),
        zone: zone.into(),
        subzone: Text::default(),
    };
    EndpointScope {
        client: client.at(locality),
        network: network.into(),
        cluster: "Kubernetes".into(),
        node: Text::default(),
        view: std::collections::BTreeSet::new(),
    }
}

/// What the first route of a host's virtual host in the table of port 80 does.
fn forward(world: &World, client: &Client, of: &ServiceId) -> Forward {
    let scope = routing(client.clone());
    let host = route::virtual_host(
        &Reader::new(world),
        &scope,
        &route::TableKey::Port(80),
        &route::HostKey::Service(of.clone()),
    )
    .unwrap();
    match host.routes.into_iter().next().unwrap().action {
        Action::Forward(f) => *f,
        other => panic!("not forwarded: {other:?}"),
    }
}

#[test]
fn rules_of_one_host_become_one() {
    let text = service("bank", "pay")
        + &rule(
            "a",
            "pay",
            &format!("{{host: bank, {}, subsets: [{{name: one}}]}}", limit(3)),
        )
        + &rule(
            "b",
            "pay",
            &format!(
                "{{host: bank.pay.svc.cluster.local, {}, subsets: [{{name: one}}, {{name: two}}]}}",
                limit(4)
            ),
        );
    let world = world(&text);
    let bank = id("bank", "pay");
    for namespace in ["pay", "shop"] {
        assert_eq!(
            applied(&world, &client(namespace, &[]), &bank, false).as_deref(),
            Some("pay/a 3 one,two"),
            "seen from {namespace}"
        );
    }
}

#[test]
fn rules_for_other_audiences_stay_apart() {
    let text = service("bank", "pay")
        + &rule(
            "a",
            "pay",
            &format!("{{host: bank, exportTo: [shop], {}}}", limit(3)),
        )
        + &rule(
            "b",
            "pay",
            &format!("{{host: bank, exportTo: ['.'], {}}}", limit(4)),
        );
    let world = world(&text);
    let seen =
        |namespace: &str| applied(&world, &client(namespace, &[]), &id("bank", "pay"), false);
    assert_eq!(seen("shop").as_deref(), Some("pay/a 3 "));
    assert_eq!(seen("pay").as_deref(), Some("pay/b 4 "));
    assert_eq!(seen("infra"), None);
}

#[test]
fn the_first_namespace_that_has_a_rule_decides() {
    let text = service("bank", "pay")
        + &service("web", "pay")
        + &rule(
            "all",
            "istio-system",
            &format!("{{host: '*.svc.cluster.local', {}}}", limit(1)),
        )
        + &rule("bank", "pay", &format!("{{host: bank, {}}}", limit(3)))
        + &rule(
            "wild",
            "shop",
            &format!("{{host: '*.pay.svc.cluster.local', {}}}", limit(9)),
        )
        + &rule(
            "hidden",
            "pay",
            &format!("{{host: web, exportTo: [infra], {}}}", limit(8)),
        )
        + &rule(
            "less",
            "pay",
            &format!("{{host: '*.pay.svc.cluster.local', {}}}", limit(7)),
        );
    let world = world(&text);
    let seen = |namespace: &str, name: &str| {
        applied(&world, &client(namespace, &[]), &id(name, "pay"), false).unwrap()
    };
    assert_eq!(seen("shop", "bank"), "shop/wild 9 ", "the client's own");
    assert_eq!(seen("dev", "bank"), "pay/bank 3 ", "the service's");
    assert_eq!(
        seen("istio-system", "bank"),
        "pay/bank 3 ",
        "before the root's own"
    );
    assert_eq!(
        seen("dev", "web"),
        "istio-system/all 1 ",
        "a more specific rule hides a wider one even from those it is not meant for"
    );
    assert_eq!(seen("infra", "web"), "pay/hidden 8 ");
}

#[test]
fn selected_workloads_have_a_rule_of_their_own() {
    let text = service("bank", "pay")
        + &rule(
            "plain",
            "shop",
            &format!(
                "{{host: bank.pay.svc.cluster.local, exportTo: ['.'], {}, subsets: [{{name: one}}]}}",
                limit(5)
            ),
        )
        + &rule(
            "special",
            "shop",
            &format!(
                "{{host: bank.pay.svc.cluster.local, workloadSelector: {{matchLabels: {{app: special}}}}, {}}}",
                limit(6)
            ),
        );
    let world = world(&text);
    let bank = id("bank", "pay");
    let special = client("shop", &[("app", "special")]);
    assert_eq!(
        applied(&world, &special, &bank, false).as_deref(),
        Some("shop/special 6 one")
    );
    let plain = Some("shop/plain 5 one");
    assert_eq!(
        applied(&world, &special, &bank, true).as_deref(),
        plain,
        "as a server"
    );
    assert_eq!(
        applied(&world, &client("shop", &[]), &bank, false).as_deref(),
        plain
    );
}

#[test]
fn settings_of_a_port_inherit_nothing() {
    let text = service("bank", "pay")
        + &rule(
            "bank",
            "pay",
            "{host: bank, trafficPolicy: {proxyProtocol: {version: V2}, retryBudget: {percent: 50}, loadBalancer: {simple: RANDOM}, outlierDetection: {}, portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}}]}, subsets: [{name: s, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}, portLevelSettings: [{port: {number: 90}, tls: {mode: SIMPLE}}]}}]}",
        );
    let world = world(&text);
    let all = clusters(&world, &client("pay", &[]), &id("bank", "pay"));
    let c = |name: &str| &all[name];
    assert_eq!(c("80|").balancing.policy, Policy::LeastRequest);
    assert_eq!(c("80|").proxy_protocol, None);
    assert_eq!(c("80|").pool.retry_budget, None);
    assert!(c("80|").outlier.is_none());
    assert_eq!(c("80|s").balancing.policy, Policy::RoundRobin);
    assert!(matches!(c("80|s").tls, UpstreamTls::None));
    assert!(c("90|").proxy_protocol.is_some());
    assert_eq!(
        c("90|s").balancing.policy,
        Policy::LeastRequest,
        "replaced by the port's"
    );
    assert!(c("90|s").proxy_protocol.is_some(), "kept from the service");
    assert!(c("90|s").foreign_alpn);
    assert!(!c("90|").foreign_alpn);
}

#[test]
fn endpoints_are_marked_by_the_nearest_mode() {
    let text = service("bank", "pay")
        + &rule(
            "bank",
            "pay",
            "{host: bank, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}, portLevelSettings: [{port: {number: 80}, outlierDetection: {interval: 1s}}, {port: {number: 90}, tls: {mode: DISABLE}}]}, subsets: [{name: s, trafficPolicy: {tls: {mode: SIMPLE}}}, {name: t}]}",
        );
    let world = world(&text);
    let reader = Reader::new(&world);
    let of = reader.service(&id("bank", "pay")).unwrap();
    let rule = policy::rule(&reader, &client("pay", &[]), of).unwrap();
    let mode = |subset: &str, port| policy::tls_mode(Some(&rule), rule.subset(subset), port);
    assert_eq!(mode("", 80), Some(ClientTlsMode::IstioMutual));
    assert_eq!(mode("", 90), Some(ClientTlsMode::Disable));
    assert_eq!(mode("s", 90), Some(ClientTlsMode::Simple));
    assert_eq!(mode("t", 90), Some(ClientTlsMode::Disable));
}

#[test]
fn original_destinations() {
    let text = service("bank", "pay")
        + &rule(
            "bank",
            "pay",
            "{host: bank, trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}, subsets: [{name: s, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}}]}",
        );
    let world = world(&text);
    let all = clusters(&world, &client("pay", &[]), &id("bank", "pay"));
    for name in ["80|", "80|s"] {
        let c = &all[name];
        assert!(
            matches!(c.discovery, Discovery::OriginalDst { .. }),
            "{name}"
        );
        assert_eq!(c.balancing.policy, Policy::ClusterProvided, "{name}");
    }
    // No endpoint is known to be ready for it.
    assert_eq!(all["80|"].tls, UpstreamTls::None);
    assert!(matches!(all["80|s"].tls, UpstreamTls::Mutual(_)));
}

#[test]
fn a_detected_protocol_is_not_upgraded() {
    let text = service("bank", "pay")
        + &rule(
            "bank",
            "pay",
            "{host: bank, trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}, subsets: [{name: s, trafficPolicy: {connectionPool: {http: {useClientProtocol: true}}}}]}",
        );
    let world = world(&text);
    let mut proxy = client("pay", &[]);
    let all = clusters(&world, &proxy, &id("bank", "pay"));
    assert_eq!(all["80|"].http, UpstreamHttp::Http2);
    assert_eq!(all["70|"].http, UpstreamHttp::Downstream);
    assert_eq!(all["80|s"].http, UpstreamHttp::Downstream);
    proxy.kind = ProxyKind::Router;
    let all = clusters(&world, &proxy, &id("bank", "pay"));
    assert_eq!(all["70|"].http, UpstreamHttp::Http2);
}

#[test]
fn credentials_are_not_for_every_sidecar() {
    let spec = "trafficPolicy: {tls: {mode: MUTUAL, credentialName: mine, sni: x.example}}";
    let text = service("bank", "pay")
        + &rule("bank", "pay", &format!("{{host: bank, {spec}}}"))
        + &rule(
            "named",
            "pay",
            &format!("{{host: bank, workloadSelector: {{matchLabels: {{app: special}}}}, {spec}}}"),
        );
    let world = world(&text);
    let tls = |client: &Client| {
        clusters(&world, client, &id("bank", "pay"))["80|"]
            .tls
            .clone()
    };
    assert_eq!(tls(&client("pay", &[])), UpstreamTls::None);
    let special = client("pay", &[("app", "special")]);
    assert!(matches!(tls(&special), UpstreamTls::Custom(_)));
    let mut gateway = client("shop", &[]);
    gateway.kind = ProxyKind::Router;
    assert!(matches!(tls(&gateway), UpstreamTls::Custom(_)));
}

#[test]
fn the_nearest_hash_counts() {
    let hash = |name: &str| format!("loadBalancer: {{consistentHash: {{httpHeaderName: {name}}}}}");
    let text = service("bank", "pay")
        + &rule(
            "bank",
            "pay",
            &format!(
                "{{host: bank, trafficPolicy: {{{}, portLevelSettings: [{{port: {{number: 80}}, {}}}]}}, subsets: [{{name: s, trafficPolicy: {{{}, portLevelSettings: [{{port: {{number: 80}}, outlierDetection: {{interval: 1s}}}}]}}}}, {{name: t}}]}}",
                hash("rule"),
                hash("port"),
                hash("subset")
            ),
        );
    let world = world(&text);
    let reader = Reader::new(&world);
    let of = reader.service(&id("bank", "pay")).unwrap();
    let rule = policy::rule(&reader, &client("pay", &[]), of).unwrap();
    let hashed = |subset: &str, port| {
        policy::hash_of_destination(&rule, subset, port).and_then(policy::hash_policy)
    };
    let header = |name: &str| Some(HashPolicy::Header(name.into()));
    assert_eq!(hashed("s", Some(80)), header("subset"));
    assert_eq!(hashed("t", Some(80)), header("port"));
    assert_eq!(hashed("", None), header("rule"));
    let of_service = |port| policy::hash_of_service(&rule, port).and_then(policy::hash_policy);
    assert_eq!(of_service(80), header("port"));
    assert_eq!(of_service(90), header("rule"));
}

#[test]
fn shares_keep_the_unit_they_are_written_in() {
    let text = service("bank", "pay")
        + &virtual_service(
            "bank",
            "pay",
            "{hosts: [bank], http: [{route: [{destination: {host: bank}}], mirrors: [{destination: {host: bank}, percentage: {value: 100}}, {destination: {host: bank}}, {destination: {host: bank}, percentage: {value: 0}}], retries: {attempts: 1, retryOn: '503,299'}}]}",
        );
    let world = world(&text);
    let f = forward(&world, &client("pay", &[]), &id("bank", "pay"));
    let shares: Vec<Share> = f.mirrors.iter().map(|m| m.share).collect();
    assert_eq!(
        shares,
        [
            Share::Millionths(Millionths(1_000_000)),
            Share::Percent(100)
        ]
    );
    let retries = f.retries.unwrap();
    assert_eq!(
        (&*retries.on, &*retries.statuses),
        ("299,retriable-status-codes", &[503][..])
    );
}

#[test]
fn what_is_meant_for_a_namespace_comes_before_what_is_for_all() {
    let to = |timeout: &str| {
        format!(
            "http: [{{timeout: {timeout}, route: [{{destination: {{host: bank.pay.svc.cluster.local}}}}]}}]"
        )
    };
    let text = service("bank", "pay")
        + &virtual_service("a", "pay", &format!("{{hosts: [bank], {}}}", to("1s")))
        + &virtual_service(
            "b",
            "pay",
            &format!("{{hosts: [bank], exportTo: [shop, dev], {}}}", to("2s")),
        )
        + &virtual_service(
            "c",
            "shop",
            &format!(
                "{{hosts: [bank.pay.svc.cluster.local], exportTo: ['.'], {}}}",
                to("3s")
            ),
        );
    let world = world(&text);
    let seconds = |namespace: &str| {
        forward(&world, &client(namespace, &[]), &id("bank", "pay"))
            .timeout
            .0
            / 1000
    };
    assert_eq!(
        (seconds("shop"), seconds("dev"), seconds("infra")),
        (3, 2, 1)
    );
}

const PLACES: &str = r"
{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: far, namespace: pay}, spec: {hosts: [far.example], addresses: [240.1.0.1], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, location: MESH_INTERNAL, endpoints: [
  {address: 10.0.0.1, network: one, locality: r1/z1}, {address: 10.0.0.2, network: one, locality: r1/z2}, {address: 10.0.0.3, network: two, locality: r1/z1}, {address: 10.0.0.4, network: two, locality: r2/z1}]}}
---
";

/// Priorities of endpoints by the last digit of their address.
fn priorities(sets: &[EndpointSet]) -> String {
    let mut out: Vec<String> = sets[0]
        .groups
        .iter()
        .flat_map(|g| {
            g.endpoints.iter().map(|e| {
                let pilotfish_ir::endpoint::Address::Socket(address, _) = &e.address else {
                    panic!("a socket")
                };
                format!("{}={}", address.rsplit_once('.').unwrap().1, g.priority)
            })
        })
        .collect();
    out.sort();
    out.join(" ")
}

#[test]
fn places_decide_priorities() {
    let far = ServiceId {
        host: "far.example".into(),
        namespace: "pay".into(),
    };
    let with = |lb: &str| {
        let text = PLACES.to_owned()
            + &rule(
                "far",
                "pay",
                &format!(
                    "{{host: far.example, trafficPolicy: {{outlierDetection: {{}}, loadBalancer: {{{lb}}}}}}}"
                ),
            );
        let world = world(&text);
        let here = at(client("pay", &[]), "one", "r1", "z1");
        let places = clusters(&world, &here.client, &far)["80|"].balancing.places;
        (priorities(&endpoints(&world, &here, &far)), places)
    };
    let labels =
        "[topology.istio.io/network, topology.kubernetes.io/region, topology.kubernetes.io/zone]";
    assert_eq!(
        with(&format!(
            "localityLbSetting: {{failoverPriority: {labels}}}"
        )),
        ("1=0 2=1 3=2 4=3".to_owned(), Places::Weighted),
        "another network is worse than any place in the own, and ordered in itself"
    );
    assert_eq!(
        with("zoneAwareLbSetting: {minClusterSize: 3}"),
        (
            "1=0 2=0 3=0 4=1".to_owned(),
            Places::Zones {
                off: false,
                minimum: Some(3)
            }
        )
    );
    assert_eq!(
        with("zoneAwareLbSetting: {enabled: false}").0,
        "1=0 2=0 3=0 4=0"
    );
    assert_eq!(with("localityLbSetting: {}").0, "1=0 2=1 3=0 4=2");
}

#[test]
fn virtual_services_lead_to_services_that_are_not_shown() {
    let text = service("bank", "pay").replace(
        "name: bank,",
        "name: bank, annotations: {networking.istio.io/exportTo: shop},",
    ) + &virtual_service(
        "bank",
        "pay",
        "{hosts: [bank], http: [{route: [{destination: {host: bank, port: {number: 80}}}]}]}",
    );
    let world = world(&text);
    let reader = Reader::new(&world);
    let bank = reader.service(&id("bank", "pay")).unwrap();
    let ports = |namespace: &str| -> Vec<u16> {
        visibility::ports(&reader, &client(namespace, &[]), bank)
            .iter()
            .map(|p| p.number)
            .collect()
    };
    assert_eq!(
        ports("pay"),
        [80],
        "its own namespace is sent there, at one port"
    );
    assert_eq!(ports("shop"), [80, 90, 70]);
    assert!(ports("infra").is_empty());
}

#[test]
fn a_sidecar_uses_the_virtual_services_it_imports() {
    let text = service("bank", "pay")
        + &virtual_service(
            "bank",
            "dev",
            "{hosts: [bank.pay.svc.cluster.local], http: [{timeout: 3s, route: [{destination: {host: bank.pay.svc.cluster.local}}]}]}",
        )
        + "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: default, namespace: shop}, spec: {egress: [{hosts: ['pay/*']}]}}\n---\n"
        + "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: default, namespace: infra}, spec: {egress: [{hosts: ['*/*', '~dev/*', '~/other.example']}]}}\n---\n";
    let world = world(&text);
    let timeout = |namespace: &str| {
        forward(&world, &client(namespace, &[]), &id("bank", "pay"))
            .timeout
            .0
    };
    assert_eq!(timeout("web"), 3000);
    assert_eq!(timeout("shop"), 0, "only what stands in namespace pay");
    assert_eq!(timeout("infra"), 0, "nothing that stands in namespace dev");
}

#[test]
fn conditions_on_claims_are_no_conditions_on_headers() {
    let text = service("bank", "pay")
        + "{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: edge, namespace: pay}, spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}}\n---\n"
        + &virtual_service(
            "bank",
            "pay",
            "{hosts: [bank.example], gateways: [edge], http: [{match: [{headers: {'@request.auth.claims.a.b': {exact: x}, plain: {exact: w}}, withoutHeaders: {'@request.auth.claims[c.d][e]': {prefix: z}}}], route: [{destination: {host: bank}}]}]}",
        );
    let world = world(&text);
    let who = who("pay", &[("app", "edge")]);
    let scope = routing(Client::new(ProxyKind::Router, Families::V4, who));
    let reader = Reader::new(&world);
    let table = route::TableKey::Gateway("http.80".into());
    let hosts = route::hosts(&reader, &scope, &table);
    assert_eq!(hosts.len(), 1, "{hosts:?}");
    let host = route::virtual_host(&reader, &scope, &table, &hosts[0]).unwrap();
    let matches = &host.routes[0].matches;
    let headers: Vec<&str> = matches.headers.iter().map(|h| &*h.name).collect();
    assert_eq!(headers, ["plain"]);
    let claims: Vec<(String, bool)> = matches
        .claims
        .iter()
        .map(|c| (c.path.join(" "), c.invert))
        .collect();
    assert_eq!(
        claims,
        [("a b".to_owned(), false), ("c.d e".to_owned(), true)]
    );
}
