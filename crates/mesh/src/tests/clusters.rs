//! What objects of several clusters mean together.

use std::sync::Arc;

use pilotfish_config::{ClusterId, Kind, ObjectKey, Snapshot, parse};

use super::id;
use crate::{Fact, Reader, Settings, World};

/// A pod, its slice and its Service. The number is the last of its address, and tells clusters apart.
fn web(vip: &str, number: u8, labels: &str) -> String {
    format!(
        r#"
{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: shop, labels: {{{labels}}}}}, spec: {{clusterIP: {vip}, selector: {{app: web}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: web-1, namespace: shop, labels: {{app: web}}}}, spec: {{nodeName: n1, serviceAccountName: web-{number}, containers: [{{name: c}}]}}, status: {{phase: Running, podIP: 10.0.0.{number}, conditions: [{{type: Ready, status: "True"}}]}}}}
---
{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: web-s, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: http, port: 8080}}], endpoints: [{{addresses: [10.0.0.{number}], targetRef: {{kind: Pod, name: web-1, namespace: shop}}}}]}}
---
"#
    )
}

const SYSTEM: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {topology.istio.io/network: NETWORK}}}\n---\n\
                      {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/region: REGION}}}\n---\n";

fn system(network: &str, region: &str) -> String {
    SYSTEM.replace("NETWORK", network).replace("REGION", region)
}

fn snapshot(clusters: &[(&str, &str)]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (cluster, text) in clusters {
        let parsed = parse::documents(text, "test.yaml");
        assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
        for mut object in parsed.objects {
            if !cluster.is_empty() {
                object.key.cluster = ClusterId::named(cluster).unwrap();
            }
            let key = object.key.clone();
            snapshot.objects.insert(key, Arc::new(object));
        }
    }
    snapshot
}

/// The world of the objects of several clusters; the config cluster has no name here.
fn world(clusters: &[(&str, &str)]) -> World {
    let snapshot = snapshot(clusters);
    let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
    let empty = World::empty(Settings::default());
    empty.update(&snapshot, &keys).world
}

/// Endpoints as `address cluster network region account`.
fn endpoints(world: &World) -> Vec<String> {
    let web = id("web.shop.svc.cluster.local", "shop");
    let all = world
        .endpoints
        .get(&web)
        .map(|e| e.by_port.get("http").unwrap());
    let shown = all.into_iter().flatten().map(|e| {
        let account = e
            .identity
            .rsplit_once('/')
            .map_or("", |(_, account)| account);
        format!(
            "{} {} {} {} {account}",
            e.addresses[0], e.cluster, e.network, e.locality.region
        )
    });
    shown.collect()
}

#[test]
fn services_of_one_host_are_one() {
    let home = system("home-net", "here") + &web("10.96.0.2", 1, "own: 'yes'");
    let west = system("west-net", "there") + &web("10.97.0.2", 2, "");
    let east = web("10.98.0.2", 3, "");
    let world = world(&[("", &home), ("west", &west), ("east", &east)]);
    // By the names of clusters, as istiod orders them: Kubernetes, east, west.
    assert_eq!(
        endpoints(&world),
        [
            "10.0.0.1 Kubernetes home-net here web-1",
            "10.0.0.3 east   web-3",
            "10.0.0.2 west west-net there web-2",
        ]
    );
    let service = &world.services[&id("web.shop.svc.cluster.local", "shop")];
    assert!(service.source.cluster.is_config());
    assert!(
        service.labels.contains_key("own"),
        "the config cluster wins"
    );
    for (cluster, address) in [
        ("Kubernetes", "10.96.0.2"),
        ("west", "10.97.0.2"),
        ("east", "10.98.0.2"),
        ("unknown", "10.96.0.2"),
    ] {
        assert_eq!(*service.addresses_in(cluster), [address], "{cluster}");
    }
    let labels = |at: usize| {
        let all = world.endpoints[&service.id].by_port.get("http").unwrap();
        all[at]
            .labels
            .get("topology.istio.io/cluster")
            .cloned()
            .unwrap()
    };
    assert_eq!(
        (&*labels(0), &*labels(1)),
        ("Kubernetes", "east"),
        "for subsets"
    );
    assert_eq!(world.identities[&service.id].len(), 3);
    assert_eq!(world.diagnostics(), []);
}

#[test]
fn a_service_may_be_elsewhere_only() {
    let west = web("10.97.0.2", 2, "").replace(
        "clusterIP: 10.97.0.2",
        "clusterIP: 10.97.0.2, clusterIPs: [10.97.0.2, 'fd00::2']",
    );
    let world = world(&[("west", &west)]);
    let service = &world.services[&id("web.shop.svc.cluster.local", "shop")];
    assert_eq!(service.source.to_string(), "Service/shop/web@west");
    assert_eq!(service.addresses_in("west").len(), 2);
    assert_eq!(*service.addresses_in("Kubernetes"), ["10.97.0.2"]);
}

#[test]
fn an_address_means_another_workload_in_another_cluster() {
    // Two networks with the same addresses.
    let home = web("10.96.0.2", 1, "");
    let west =
        web("10.97.0.2", 1, "").replace("serviceAccountName", "hostname: w, serviceAccountName");
    let world = world(&[("", &home), ("west", &west)]);
    let reader = Reader::new(&world);
    let source = |cluster: &str| {
        reader
            .workload(cluster, "10.0.0.1")
            .map(|w| w.source.to_string())
    };
    assert_eq!(source("").as_deref(), Some("Pod/shop/web-1"));
    assert_eq!(source("Kubernetes").as_deref(), Some("Pod/shop/web-1"));
    assert_eq!(source("west").as_deref(), Some("Pod/shop/web-1@west"));
    assert_eq!(source("east"), None);
    let of_west = reader.workload("west", "10.0.0.1").unwrap();
    assert_eq!(of_west.instances.len(), 1, "of its own cluster's Service");
    assert_eq!(
        of_west
            .labels
            .get("topology.istio.io/cluster")
            .map(|name| &**name),
        Some("west")
    );
    assert_eq!(endpoints(&world).len(), 2, "both are endpoints");
}

#[test]
fn a_service_entry_chooses_pods_of_all_clusters() {
    let entry = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, spec: {hosts: [e.example], \
                 location: MESH_INTERNAL, resolution: STATIC, workloadSelector: {labels: {app: web}}, ports: [{number: 80, name: http, protocol: HTTP}]}}";
    let home = web("10.96.0.2", 1, "") + entry;
    let west = web("10.97.0.2", 2, "");
    let world = world(&[("", &home), ("west", &west)]);
    let all = world.endpoints[&id("e.example", "shop")]
        .by_port
        .get("http")
        .unwrap();
    let shown: Vec<String> = all
        .iter()
        .map(|e| format!("{} {}", e.addresses[0], e.cluster))
        .collect();
    assert_eq!(shown, ["10.0.0.1 Kubernetes", "10.0.0.2 west"]);
    let workload = Reader::new(&world)
        .workload("west", "10.0.0.2")
        .unwrap()
        .clone();
    assert_eq!(workload.instances.len(), 2, "the Service's and the entry's");
}

#[test]
fn each_cluster_has_gateways_of_its_own() {
    let gateway = |network: &str, address: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: cross, namespace: istio-system, labels: {{topology.istio.io/network: {network}}}}}, \
             spec: {{type: LoadBalancer, clusterIP: 10.96.0.3, ports: [{{name: tls, port: 15443}}]}}, \
             status: {{loadBalancer: {{ingress: [{{ip: {address}}}]}}}}}}"
        )
    };
    let clusters = [
        ("", &*gateway("home-net", "192.0.2.1")),
        ("west", &*gateway("west-net", "192.0.2.2")),
    ];
    let before = world(&clusters);
    let shown = |world: &World| -> Vec<String> {
        let all = world.network_gateways().iter();
        all.map(|g| format!("{} {} {}", g.network, g.address, g.cluster))
            .collect()
    };
    assert_eq!(
        shown(&before),
        ["home-net 192.0.2.1 Kubernetes", "west-net 192.0.2.2 west"]
    );
    // Only the one of the other cluster moves.
    let after = snapshot(&[clusters[0], ("west", &gateway("west-net", "192.0.2.3"))]);
    let west = ClusterId::named("west").unwrap();
    let key = ObjectKey::new(Kind::Service, "istio-system", "cross").of(west);
    let update = before.update(&after, &[key]);
    assert_eq!(update.changed, [Fact::NetworkGateways]);
    assert_eq!(shown(&update.world)[1], "west-net 192.0.2.3 west");
}

#[test]
fn networks_follow_from_the_cluster() {
    let mut snapshot = snapshot(&[
        ("", &web("10.96.0.2", 1, "")),
        ("west", &web("10.97.0.2", 2, "")),
    ]);
    let networks = "networks: {far: {endpoints: [{fromRegistry: west}]}}";
    snapshot.networks = Arc::new(parse::mesh_networks(networks, "n.yaml").0.unwrap());
    let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
    let world = World::empty(Settings::default())
        .update(&snapshot, &keys)
        .world;
    assert_eq!(
        endpoints(&world),
        ["10.0.0.1 Kubernetes   web-1", "10.0.0.2 west far  web-2"]
    );
}

#[test]
fn a_change_elsewhere_costs_what_it_touches() {
    let home = system("home-net", "here") + &web("10.96.0.2", 1, "");
    let other = "{apiVersion: v1, kind: Service, metadata: {name: other, namespace: shop}, spec: {clusterIP: 10.96.0.9, ports: [{name: http, port: 80}]}}\n---\n";
    let home = home + other;
    let west = system("west-net", "there") + &web("10.97.0.2", 2, "");
    let alone = world(&[("", &home)]);
    let both = snapshot(&[("", &home), ("west", &west)]);
    let web_id = id("web.shop.svc.cluster.local", "shop");
    let new: Vec<ObjectKey> = both
        .objects
        .keys()
        .filter(|k| !k.cluster.is_config())
        .cloned()
        .collect();
    let update = alone.update(&both, &new);
    let mut facts = vec![
        Fact::Services,
        Fact::ServicesIn("shop".into()),
        Fact::Service(web_id.clone()),
        Fact::Endpoints(web_id.clone()),
        Fact::Identities(web_id.clone()),
        Fact::Workload("10.0.0.2".into()),
    ];
    assert_eq!(update.changed, facts, "nothing of the other service");
    // It goes as it came.
    let update = update.world.update(&snapshot(&[("", &home)]), &new);
    assert_eq!(update.changed, facts);
    // Another network there: its pods, and who has them.
    let moved = system("moved-net", "there") + &web("10.97.0.2", 2, "");
    let world = alone.update(&both, &new).world;
    let west_id = ClusterId::named("west").unwrap();
    let namespace = ObjectKey::new(Kind::Namespace, "", "istio-system").of(west_id);
    let update = world.update(&snapshot(&[("", &home), ("west", &moved)]), &[namespace]);
    facts = vec![Fact::Endpoints(web_id), Fact::Workload("10.0.0.2".into())];
    assert_eq!(update.changed, facts);
}

/// An entry of some cluster, and the Service that selects it there.
fn vm(name: &str, address: &str, more: &str) -> String {
    format!(
        r"
{{apiVersion: v1, kind: Service, metadata: {{name: vms, namespace: shop}}, spec: {{clusterIP: 10.96.0.8, selector: {{app: vm}}, ports: [{{name: http, port: 80}}]}}}}
---
{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: {name}, namespace: shop}}, spec: {{address: {address}, serviceAccount: vm, labels: {{app: vm}}{more}}}}}
---
"
    )
}

fn with_trust(mut snapshot: Snapshot, mesh: &str, domains: &[(&str, &str)]) -> Snapshot {
    let mut config = pilotfish_config::mesh::MeshConfig::standard();
    config.trust_domain = mesh.to_owned();
    snapshot.mesh = Arc::new(config);
    let domains = domains
        .iter()
        .map(|(cluster, domain)| (ClusterId::named(cluster).unwrap(), (*domain).into()));
    snapshot.trust_domains = Arc::new(domains.collect());
    snapshot
}

fn identities(world: &World, host: &str) -> Vec<String> {
    let known = world.identities.get(&id(host, "shop"));
    known.map_or_else(Vec::new, |all| {
        all.iter().map(ToString::to_string).collect()
    })
}

#[test]
fn identities_are_of_the_trust_domain_of_their_cluster() {
    let annotated = |number: u8| {
        let vip = format!("10.9{number}.0.2");
        web(&vip, number, "").replace(
            "name: web, namespace: shop, labels: {}",
            "name: web, namespace: shop, annotations: {alpha.istio.io/kubernetes-serviceaccounts: robot}",
        )
    };
    let (home, west) = (annotated(1) + &vm("vm-h", "10.3.0.1", ""), annotated(2));
    let west = west + &vm("vm-w", "10.4.0.1", "");
    let east = web("10.98.0.2", 3, "")
        + "{apiVersion: v1, kind: Service, metadata: {name: other, namespace: shop}, spec: {clusterIP: 10.96.0.9, ports: [{name: http, port: 80}]}}";
    let clusters = [("", &*home), ("west", &*west), ("east", &*east)];
    let known = with_trust(
        snapshot(&clusters),
        "home.example",
        &[("west", "west.example")],
    );
    let keys: Vec<ObjectKey> = known.objects.keys().cloned().collect();
    let before = World::empty(Settings::default())
        .update(&known, &keys)
        .world;
    let host = "web.shop.svc.cluster.local";
    let all = |west: &str, east: &str| -> Vec<String> {
        let mut all = [
            ("home.example", "robot"),
            ("home.example", "web-1"),
            (west, "robot"),
            (west, "web-2"),
            (east, "web-3"),
        ]
        .map(|(domain, account)| format!("spiffe://{domain}/ns/shop/sa/{account}"))
        .to_vec();
        all.sort();
        all
    };
    assert_eq!(
        identities(&before, host),
        all("west.example", "home.example")
    );
    // Entries are workloads of the mesh, whichever cluster names them.
    let entries = ["spiffe://home.example/ns/shop/sa/vm"];
    assert_eq!(identities(&before, "vms.shop.svc.cluster.local"), entries);
    // Another one is heard of: what runs there, and who has it behind them.
    let both = [("west", "west.example"), ("east", "east.example")];
    let next = with_trust(known.clone(), "home.example", &both);
    let next = Snapshot {
        mesh: known.mesh.clone(),
        ..next
    };
    let update = before.update(&next, &[]);
    let web = id(host, "shop");
    assert_eq!(
        update.changed,
        [Fact::Endpoints(web.clone()), Fact::Identities(web)]
    );
    assert_eq!(
        identities(&update.world, host),
        all("west.example", "east.example")
    );
    // It is forgotten: that of the mesh counts again.
    let update = update.world.update(&known, &[]);
    assert_eq!(
        identities(&update.world, host),
        all("west.example", "home.example")
    );
}

#[test]
fn services_choose_entries_of_their_own_cluster_and_service_entries_those_of_all() {
    let chosen = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: NAME, namespace: shop}, spec: {hosts: [NAME.example], \
                  location: MESH_INTERNAL, resolution: HOW, workloadSelector: {labels: {app: vm}}, ports: [{number: 80, name: http, protocol: HTTP}]}}\n---\n";
    let chosen = |name: &str, how: &str| chosen.replace("NAME", name).replace("HOW", how);
    let named = |name: &str| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: {name}, namespace: shop}}, spec: {{address: {name}.example.com, labels: {{app: vm}}}}}}\n---\n"
        )
    };
    let home = system("home-net", "here") + &vm("vm", "10.3.0.1", "") + &named("byname");
    let home = home + &chosen("fixed", "STATIC") + &chosen("dns", "DNS");
    // The name is taken at home, too.
    let west =
        system("west-net", "there") + &vm("vm", "10.4.0.1", ", network: far") + &named("other");
    let world = world(&[("", &home), ("west", &west)]);
    let shown = |host: &str| -> Vec<String> {
        let all = world.endpoints[&id(host, "shop")]
            .by_port
            .get("http")
            .unwrap();
        let label =
            |e: &crate::Endpoint, name: &str| e.labels.get(name).cloned().unwrap_or_default();
        let one = |e: &crate::Endpoint| {
            let network = label(e, "topology.istio.io/network");
            format!(
                "{} {} {network}/{}",
                e.addresses[0],
                label(e, "topology.istio.io/cluster"),
                e.network
            )
        };
        all.iter().map(one).collect()
    };
    let (here, there) = ("10.3.0.1 Kubernetes home-net/", "10.4.0.1 west far/far");
    assert_eq!(
        shown("vms.shop.svc.cluster.local"),
        [here, there],
        "each of its own"
    );
    assert_eq!(shown("fixed.example"), [here, there]);
    let by_name = "byname.example.com Kubernetes home-net/";
    assert_eq!(
        shown("dns.example"),
        [by_name, here, there],
        "no names of elsewhere"
    );
    // The proxy of an entry serves what its own cluster has.
    let reader = Reader::new(&world);
    let serves = |cluster: &str, address: &str| {
        let workload = reader.workload(cluster, address).unwrap();
        (workload.source.to_string(), workload.instances.len())
    };
    assert_eq!(
        serves("west", "10.4.0.1"),
        ("WorkloadEntry/shop/vm@west".to_owned(), 3)
    );
    assert_eq!(
        serves("", "10.3.0.1"),
        ("WorkloadEntry/shop/vm".to_owned(), 3)
    );
    // Without the Service of its cluster, it is an endpoint of the ServiceEntries only.
    let alone = west.replace("name: vms", "name: others");
    let update = {
        let snapshot = snapshot(&[("", &home), ("west", &alone)]);
        let mut keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
        keys.extend(world.snapshot().objects.keys().cloned());
        world.update(&snapshot, &keys)
    };
    let left = &update.world.endpoints[&id("vms.shop.svc.cluster.local", "shop")];
    assert_eq!(left.by_port.get("http").unwrap().len(), 1);
}

#[test]
fn the_network_of_a_cluster_is_that_of_its_entries() {
    let far = |network: &str| system(network, "there") + &vm("vm", "10.4.0.1", "");
    let before = world(&[("", ""), ("west", &far("west-net"))]);
    let after = snapshot(&[("west", &far("moved-net"))]);
    let west = ClusterId::named("west").unwrap();
    let key = ObjectKey::new(Kind::Namespace, "", "istio-system").of(west);
    let update = before.update(&after, &[key]);
    let vms = id("vms.shop.svc.cluster.local", "shop");
    assert_eq!(
        update.changed,
        [Fact::Endpoints(vms), Fact::Workload("10.4.0.1".into())]
    );
}

#[test]
fn a_workload_serves_the_ports_that_its_own_cluster_says() {
    let home = web("10.96.0.2", 1, "");
    let west = web("10.97.0.2", 2, "").replace(
        "ports: [{name: http, port: 80, targetPort: 8080}]}",
        "ports: [{name: grpc-web, port: 80, targetPort: 8080}, {name: tcp-more, port: 81}]}",
    );
    let world = world(&[("", &home), ("west", &west)]);
    let reader = Reader::new(&world);
    let serves = |cluster: &str, address: &str| -> Vec<String> {
        let all = reader.workload(cluster, address).unwrap().instances;
        let one = |i: &crate::Instance| {
            format!(
                "{} {} {:?} {}",
                i.port.name, i.port.number, i.port.protocol, i.target
            )
        };
        all.iter().map(one).collect()
    };
    assert_eq!(serves("", "10.0.0.1"), ["http 80 Http 8080"]);
    assert_eq!(
        serves("west", "10.0.0.2"),
        ["grpc-web 80 GrpcWeb 8080", "tcp-more 81 Tcp 81"]
    );
}

#[test]
fn a_service_without_address_in_a_cluster_has_none_there() {
    let (home, west) = (web("10.96.0.2", 1, ""), web("None", 2, ""));
    let world = world(&[("", &home), ("west", &west)]);
    let service = &world.services[&id("web.shop.svc.cluster.local", "shop")];
    assert_eq!(*service.addresses_in("Kubernetes"), ["10.96.0.2"]);
    assert_eq!(service.addresses_in("west").len(), 0);
    assert_eq!(
        *service.addresses_in("east"),
        ["10.96.0.2"],
        "it is not there"
    );
}
