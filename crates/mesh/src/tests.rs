//! What objects mean together, in small.

use std::sync::Arc;

use pilotfish_config::{ObjectKey, Snapshot, Spec, parse};

use crate::{EndpointHealth, ExportTo, Reader, Resolution, ServiceId, Settings, World, canonical};

mod clusters;

fn world(text: &str) -> World {
    changed_world(text, |_| {})
}

/// A world of objects that were changed in ways that no text is read as.
fn changed_world(text: &str, change: impl Fn(&mut Spec)) -> World {
    let parsed = parse::documents(text, "test.yaml");
    let mut snapshot = Snapshot::default();
    for mut object in parsed.objects {
        change(&mut object.spec);
        snapshot
            .objects
            .insert(object.key.clone(), Arc::new(object));
    }
    let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
    World::empty(Settings::default())
        .update(&snapshot, &keys)
        .world
}

fn id(host: &str, namespace: &str) -> ServiceId {
    ServiceId {
        host: host.into(),
        namespace: namespace.into(),
    }
}

/// Endpoints of a port as `address:port workload;canonical;revision`.
fn endpoints(world: &World, id: &ServiceId, port: &str) -> Vec<String> {
    let Some(endpoints) = world.endpoints.get(id) else {
        return Vec::new();
    };
    let list = endpoints.by_port.get(port).into_iter().flatten();
    list.map(|e| {
        let (name, revision) = canonical(e);
        let address = e.addresses.join(",");
        format!("{address}:{} {};{name};{revision}", e.port, e.workload)
    })
    .collect()
}

const WEB: &str = r#"
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.2, selector: {app: web}, ports: [{name: http, port: 80, targetPort: main}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, labels: {app: web, version: v1}}, spec: {serviceAccountName: web, containers: [{name: c, ports: [{name: main, containerPort: 8080}]}]}, status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-s, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: web-1, namespace: shop}}, {addresses: [10.0.0.9], targetRef: {kind: Pod, name: gone, namespace: shop}}, {addresses: [192.0.2.1], conditions: {ready: false}}]}
---
"#;

#[test]
fn a_service_has_the_pods_of_its_slices() {
    let world = world(WEB);
    let web = id("web.shop.svc.cluster.local", "shop");
    assert_eq!(
        endpoints(&world, &web, "http"),
        ["10.0.0.1:8080 web-1;web;v1", "192.0.2.1:8080 ;;"]
    );
    let health: Vec<_> = world.endpoints[&web]
        .by_port
        .get("http")
        .unwrap()
        .iter()
        .map(|e| e.health)
        .collect();
    assert_eq!(health, [EndpointHealth::Healthy, EndpointHealth::Unhealthy]);
    let reader = Reader::new(&world);
    assert_eq!(
        *reader.identities(&web),
        ["spiffe://cluster.local/ns/shop/sa/web"]
    );
    let workload = reader.workload("", "10.0.0.1").unwrap();
    assert_eq!(workload.instances.len(), 1);
    assert_eq!(
        (
            workload.instances[0].port.number,
            workload.instances[0].target
        ),
        (80, 8080)
    );
}

#[test]
fn a_service_entry_for_a_host_of_kubernetes_adds_endpoints() {
    let entry = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: overlap, namespace: shop}, \
                 spec: {hosts: [web.shop.svc.cluster.local], resolution: STATIC, ports: [{number: 80, name: x, protocol: TCP, \
                 targetPort: 81}], endpoints: [{address: 203.0.113.6}]}}";
    let world = world(&format!("{WEB}{entry}"));
    let web = id("web.shop.svc.cluster.local", "shop");
    assert_eq!(
        endpoints(&world, &web, "http")[0],
        "203.0.113.6:81 overlap-0;overlap-0;"
    );
    assert_eq!(endpoints(&world, &web, "http").len(), 3);
    assert_eq!(world.services[&web].resolution, Resolution::ClientSide);
    let conflict = world
        .diagnostics()
        .into_iter()
        .find(|d| d.code == "host-conflict")
        .unwrap();
    assert_eq!(conflict.object.unwrap().name, "overlap");
}

#[test]
fn a_workload_whose_health_check_fails_is_no_endpoint() {
    let entries = |annotations: &str, status: &str| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: vm, namespace: shop}}, spec: {{hosts: [vm.example], \
             resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], workloadSelector: {{labels: {{app: vm}}}}}}}}\n---\n\
             {{apiVersion: v1, kind: Service, metadata: {{name: vms, namespace: shop}}, spec: {{clusterIP: 10.96.0.3, selector: {{app: vm}}, \
             ports: [{{name: http, port: 80}}]}}}}\n---\n\
             {{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: vm-1, namespace: shop, annotations: {annotations}}}, \
             spec: {{address: 10.0.0.7, labels: {{app: vm}}}}, status: {status}}}"
        )
    };
    let checked = "{proxy.istio.io/health-checks-enabled: 'true'}";
    let said = |status: &str| {
        format!(
            "{{conditions: [{{type: Other, status: 'True'}}, {{type: Healthy, status: '{status}'}}]}}"
        )
    };
    let (yes, no, odd) = (said("True"), said("False"), said("Unknown"));
    for (annotations, status, is_there) in [
        ("{}", "{}", true),
        ("{}", &*no, true),
        (checked, "{}", false),
        (checked, &no, false),
        (checked, &odd, false),
        (checked, &yes, true),
        ("{proxy.istio.io/health-checks-enabled: 'false'}", &no, true),
    ] {
        let world = world(&entries(annotations, status));
        let case = format!("{annotations} {status}");
        for (host, port) in [
            ("vm.example", "http"),
            ("vms.shop.svc.cluster.local", "http"),
        ] {
            let found = endpoints(&world, &id(host, "shop"), port).len();
            assert_eq!(found, usize::from(is_there), "{host} {case}");
        }
        let workload = Reader::new(&world).workload("", "10.0.0.7");
        assert_eq!(workload.is_some(), is_there, "{case}");
    }
}

#[test]
fn every_address_of_a_service_entry_repeats_its_endpoints() {
    let world = world(
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, spec: {hosts: [e.example], \
         addresses: [192.0.2.1, 192.0.2.0/24], resolution: STATIC, exportTo: [shop, other], ports: [{number: 80, name: http, protocol: \
         HTTP}], endpoints: [{address: 203.0.113.1, weight: 7}]}}",
    );
    let e = id("e.example", "shop");
    assert_eq!(endpoints(&world, &e, "http").len(), 2);
    assert_eq!(world.services[&e].ports.len(), 1);
    assert!(world.services[&e].auto_addresses.is_empty());
    let namespaces = ["other".into(), "shop".into()].into_iter().collect();
    assert_eq!(
        world.services[&e].export_to,
        ExportTo::Namespaces(namespaces)
    );
}

#[test]
fn nonsense_is_left_out() {
    let text = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, spec: {hosts: \
                [e.example], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: tcp, \
                protocol: TCP}], endpoints: [{address: 203.0.113.1, ports: {http: 8080}}]}}";
    let world = changed_world(text, |spec| {
        if let Spec::ServiceEntry(entry) = spec {
            entry.hosts.push(String::new());
            entry.addresses.push("nowhere".to_owned());
            entry.ports[1].number = 70_000;
            entry.endpoints[0].ports.insert("http".to_owned(), 0);
            entry.endpoints.push(entry.endpoints[0].clone());
            entry.endpoints[1].address = String::new();
        }
    });
    let e = id("e.example", "shop");
    assert_eq!(world.services().len(), 1);
    assert_eq!(world.services[&e].ports.len(), 1);
    assert_eq!(endpoints(&world, &e, "http"), ["203.0.113.1:80 e-0;e-0;"]);
    let bad = world.diagnostics();
    assert_eq!(
        bad.iter().filter(|d| d.code == "bad-service-entry").count(),
        2
    );
}

#[test]
fn an_external_name_is_an_alias() {
    let world = world(&format!(
        "{WEB}{{apiVersion: v1, kind: Service, metadata: {{name: old, namespace: shop}}, spec: {{type: ExternalName, externalName: \
         web.shop.svc.cluster.local}}}}\n---\n{{apiVersion: v1, kind: Service, metadata: {{name: older, namespace: b}}, spec: {{type: \
         ExternalName, externalName: old.shop.svc.cluster.local}}}}"
    ));
    let older = id("older.b.svc.cluster.local", "b");
    let old = id("old.shop.svc.cluster.local", "shop");
    let web = id("web.shop.svc.cluster.local", "shop");
    assert_eq!(world.services[&web].aliases, [older.clone(), old]);
    assert_eq!(world.services[&older].alias_of, Some(web.host));
    assert_eq!(world.services[&older].resolution, Resolution::Alias);
}

#[test]
fn nodes_lead_to_a_gateway_by_their_external_address() {
    let gateway = |annotation: &str| {
        world(&format!(
            r#"
{{apiVersion: v1, kind: Node, metadata: {{name: a, labels: {{edge: "yes"}}}}, status: {{addresses: [{{type: InternalIP, address: 172.18.0.1}}, {{type: ExternalIP, address: 198.51.100.1}}]}}}}
---
{{apiVersion: v1, kind: Node, metadata: {{name: b, labels: {{edge: "no"}}}}, status: {{addresses: [{{type: ExternalIP, address: 198.51.100.2}}]}}}}
---
{{apiVersion: v1, kind: Node, metadata: {{name: c, labels: {{edge: "yes"}}}}, status: {{addresses: [{{type: InternalIP, address: 172.18.0.3}}]}}}}
---
{{apiVersion: v1, kind: Service, metadata: {{name: cross, namespace: istio-system, labels: {{topology.istio.io/network: two}}, annotations: {{{annotation}}}}}, spec: {{type: NodePort, clusterIP: 10.96.0.3, ports: [{{name: tls, port: 15443, nodePort: 31443}}]}}}}
"#
        ))
    };
    let found = |annotation: &str| -> Vec<String> {
        let world = gateway(annotation);
        let all = world.network_gateways().iter();
        all.map(|g| format!("{} {}:{}", g.network, g.address, g.port))
            .collect()
    };
    assert!(found("").is_empty(), "no nodes are named");
    assert_eq!(
        found(r#"traffic.istio.io/nodeSelector: '{"edge": "yes"}'"#),
        ["two 198.51.100.1:31443"]
    );
    assert_eq!(
        found("traffic.istio.io/nodeSelector: '{}'"),
        ["two 198.51.100.1:31443", "two 198.51.100.2:31443"]
    );
}
