//! Kubernetes objects.

use serde_json::{Value, json};

use super::dice::Dice;

/// Most of it happens in one namespace, so that things meet.
pub(crate) const NAMESPACES: [&str; 6] = ["shop", "shop", "shop", "shop", "bank", "istio-system"];
pub(crate) const NAMES: [&str; 3] = ["cart", "web", "db"];
const EXPORTS: [&str; 8] = ["", "", "", "*", ".", "~", "bank", "shop,bank"];
const CREATED: [&str; 3] = ["", "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"];

/// Name, number and target of ports that services may have: what two services have in common decides who shares what.
pub(crate) const PORTS: [(&str, u16, u16); 8] = [
    ("http", 80, 8080),
    ("http-admin", 8080, 8081),
    ("grpc", 7000, 7000),
    ("tcp-store", 9000, 9000),
    ("tls", 443, 8443),
    ("", 9000, 9000),
    ("other", 9090, 9091),
    ("mongo", 80, 27017),
];

/// An object whose metadata is `meta` and whose other fields are those of `rest`. The comment makes it YAML to the
/// parser, which takes a text that begins with a brace as JSON.
pub(crate) fn document(api: &str, kind: &str, meta: Value, mut rest: Value) -> String {
    rest["apiVersion"] = api.into();
    rest["kind"] = kind.into();
    rest["metadata"] = meta;
    format!("# made up\n{rest}\n")
}

pub(crate) fn metadata(dice: &mut Dice<'_>, namespace: &str, name: &str) -> Value {
    let mut meta = json!({"name": name, "labels": {}, "annotations": {}});
    if !namespace.is_empty() {
        meta["namespace"] = namespace.into();
    }
    let created = dice.pick(&CREATED);
    if !created.is_empty() {
        meta["creationTimestamp"] = created.into();
    }
    meta
}

fn address(n: usize) -> String {
    format!("10.0.0.{n}")
}

pub(crate) fn secret(dice: &mut Dice<'_>) -> String {
    let namespace = dice.pick(&NAMESPACES);
    let name = dice.pick(&["own", "own-cacert", "other"]);
    let meta = metadata(dice, namespace, name);
    let (chain, roots) = (dice.pick(&["one", "two"]), dice.pick(&["three", "four"]));
    let data = dice.pick(&[
        json!({"tls.crt": chain, "tls.key": "k"}),
        json!({"tls.crt": chain, "tls.key": "k", "ca.crt": roots}),
        json!({"cert": chain, "key": "k", "cacert": roots, "crl": "gone"}),
        json!({"cacert": roots}),
        json!({"tls.crt": chain, "tls.key": ""}),
    ]);
    document("v1", "Secret", meta, json!({"stringData": data}))
}

pub(crate) fn namespace(dice: &mut Dice<'_>) -> String {
    let name = dice.pick(&NAMESPACES);
    let mut meta = metadata(dice, "", name);
    if dice.one_in(3) {
        meta["labels"]["topology.istio.io/network"] = "far".into();
    }
    if dice.one_in(3) {
        meta["annotations"]["networking.istio.io/traffic-distribution"] = "PreferClose".into();
    }
    document("v1", "Namespace", meta, json!({}))
}

pub(crate) fn node(dice: &mut Dice<'_>) -> String {
    let name = dice.pick(&["n1", "n2"]);
    let mut meta = metadata(dice, "", name);
    let (region, zone) = dice.pick(&[("north", "n-a"), ("north", "n-b"), ("south", "s-a")]);
    meta["labels"]["topology.kubernetes.io/region"] = region.into();
    meta["labels"]["topology.kubernetes.io/zone"] = zone.into();
    document("v1", "Node", meta, json!({}))
}

fn service_ports(dice: &mut Dice<'_>) -> Vec<Value> {
    let mut ports: Vec<(&str, u16, u16)> = vec![dice.pick(&PORTS)];
    for _ in 0..dice.roll(3) {
        let more = dice.pick(&PORTS);
        if ports.iter().all(|p| p.0 != more.0 && p.1 != more.1) {
            ports.push(more);
        }
    }
    // A port may be nameless only if it is alone.
    if ports.len() > 1 {
        ports.retain(|p| !p.0.is_empty());
    }
    let mut ports: Vec<Value> = ports
        .iter()
        .map(|(name, port, target)| json!({"name": name, "port": port, "targetPort": target}))
        .collect();
    if dice.one_in(8) {
        ports[0]["targetPort"] = "main".into();
    }
    if dice.one_in(8) {
        ports.push(json!({"name": "dns", "port": 53, "protocol": "UDP"}));
    }
    if dice.one_in(10) {
        ports[0]["appProtocol"] = dice.pick(&["kubernetes.io/h2c", "grpc-web", "tcp"]).into();
    }
    ports
}

pub(crate) fn service(dice: &mut Dice<'_>) -> String {
    let (n, i) = (dice.roll(NAMES.len()), dice.roll(NAMESPACES.len()));
    let (name, namespace) = (NAMES[n], NAMESPACES[i]);
    let mut meta = metadata(dice, namespace, name);
    let ports = service_ports(dice);
    let mut spec = json!({"ports": ports});
    match dice.roll(10) {
        0..=5 => spec["clusterIP"] = format!("10.96.{i}.{n}").into(),
        6 => {
            let both = [format!("10.96.{i}.{n}"), format!("fd00::96:{i}:{n}")];
            spec["clusterIP"] = both[0].clone().into();
            spec["clusterIPs"] = json!(both);
        }
        7 | 8 => spec["clusterIP"] = "None".into(),
        _ => {
            let target = dice.pick(&["web.shop.svc.cluster.local", "api.example", "db.example"]);
            spec = json!({"type": "ExternalName", "externalName": target, "ports": spec["ports"]});
        }
    }
    if !dice.one_in(6) {
        spec["selector"] = json!({"app": name});
        if dice.one_in(4) {
            spec["selector"]["version"] = "v1".into();
        }
    }
    let export = dice.pick(&EXPORTS);
    if !export.is_empty() {
        meta["annotations"]["networking.istio.io/exportTo"] = export.into();
    }
    match dice.roll(14) {
        11 => spec["internalTrafficPolicy"] = "Local".into(),
        12 => spec["trafficDistribution"] = "PreferSameNode".into(),
        13 => spec["trafficDistribution"] = "PreferClose".into(),
        10 => spec["publishNotReadyAddresses"] = true.into(),
        9 => meta["labels"]["istio.io/persistent-session"] = "x".into(),
        8 => {
            meta["annotations"]["alpha.istio.io/kubernetes-serviceaccounts"] = "other".into();
        }
        7 => meta["labels"]["topology.istio.io/network"] = "far".into(),
        _ => {}
    }
    document("v1", "Service", meta, json!({"spec": spec}))
}

pub(crate) fn slice(dice: &mut Dice<'_>) -> String {
    let (service, namespace) = (dice.pick(&NAMES), dice.pick(&NAMESPACES));
    let name = format!("{service}-{}", dice.roll(2));
    let mut meta = metadata(dice, namespace, &name);
    meta["labels"]["kubernetes.io/service-name"] = service.into();
    let ports: Vec<Value> = dice
        .some(&PORTS[..6])
        .iter()
        .map(|(name, _, target)| json!({"name": name, "port": target}))
        .collect();
    let mut endpoints = Vec::new();
    for _ in 0..dice.roll(4) {
        let n = dice.roll(8) + 1;
        let mut endpoint = json!({"addresses": [address(n)]});
        if dice.one_in(2) {
            let pod = format!("p{n}");
            endpoint["targetRef"] = json!({"kind": "Pod", "name": pod, "namespace": namespace});
        }
        match dice.roll(6) {
            4 => endpoint["conditions"] = json!({"ready": false}),
            5 => {
                endpoint["conditions"] =
                    json!({"ready": false, "serving": true, "terminating": true});
            }
            3 => endpoint["nodeName"] = dice.pick(&["n1", "n2"]).into(),
            _ => {}
        }
        endpoints.push(endpoint);
    }
    let rest = json!({"addressType": "IPv4", "ports": ports, "endpoints": endpoints});
    document("discovery.k8s.io/v1", "EndpointSlice", meta, rest)
}

pub(crate) fn pod(dice: &mut Dice<'_>) -> String {
    let n = dice.roll(8) + 1;
    let namespace = dice.pick(&NAMESPACES);
    let mut meta = metadata(dice, namespace, &format!("p{n}"));
    meta["labels"]["app"] = dice.pick(&NAMES).into();
    match dice.roll(6) {
        1 | 2 => meta["labels"]["version"] = "v1".into(),
        3 => meta["labels"]["version"] = "v2".into(),
        4 => meta["labels"]["istio-locality"] = "south.s-a.x".into(),
        5 => meta["labels"]["istio"] = "ingress".into(),
        _ => {}
    }
    if dice.one_in(2) {
        meta["labels"]["security.istio.io/tlsMode"] = "istio".into();
    }
    let mut spec = json!({"nodeName": dice.pick(&["n1", "n2"]), "containers": [{"name": "c", "ports": [{"name": "main", "containerPort": 8080}]}]});
    if dice.one_in(2) {
        spec["serviceAccountName"] = dice.pick(&["robot", "clerk"]).into();
    }
    // Now and then a pod takes over the address of another.
    let ip = address(if dice.one_in(6) { n % 8 + 1 } else { n });
    let ready = if dice.one_in(5) { "False" } else { "True" };
    let status = json!({"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": ready}]});
    document("v1", "Pod", meta, json!({"spec": spec, "status": status}))
}
