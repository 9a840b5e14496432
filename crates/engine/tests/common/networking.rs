//! Istio objects.

use serde_json::{Value, json};

use super::dice::Dice;
use super::kubernetes::{NAMES, NAMESPACES, document, metadata};

const API: &str = "networking.istio.io/v1";
/// Hosts that rules are written for: some are of Kubernetes services, some of ServiceEntries, some of nobody.
const HOSTS: [&str; 9] = [
    "cart",
    "web",
    "web.shop.svc.cluster.local",
    "api.example",
    "db.example",
    "db.bank.svc.cluster.local",
    "*.example",
    "*.shop.svc.cluster.local",
    "nobody.example",
];
const LOCALITIES: [&str; 4] = ["north/n-a/x", "north/n-b", "south/s-a", "west"];

fn export_to(dice: &mut Dice<'_>, spec: &mut Value) {
    match dice.roll(8) {
        5 => spec["exportTo"] = json!(["."]),
        6 => spec["exportTo"] = json!(["bank"]),
        7 => spec["exportTo"] = json!(["*"]),
        _ => {}
    }
}

pub(crate) fn service_entry(dice: &mut Dice<'_>) -> String {
    let namespace = dice.pick(&NAMESPACES);
    let name = dice.pick(&["entry-a", "entry-b", "entry-c"]);
    let mut meta = metadata(dice, namespace, name);
    let resolution = dice.pick(&["STATIC", "NONE", "DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS"]);
    let mut ports: Vec<Value> = match resolution {
        "DYNAMIC_DNS" => vec![
            json!({"number": 80, "name": "http", "protocol": "HTTP"}),
            json!({"number": 443, "name": "tls", "protocol": "TLS"}),
        ],
        _ => dice
            .some(&[
                (80, "http", "HTTP"),
                (443, "tls", "TLS"),
                (9000, "tcp", "TCP"),
                (7000, "grpc", "GRPC"),
                (8080, "odd", "HTTP_PROXY"),
            ])
            .iter()
            .map(|(number, name, protocol)| json!({"number": number, "name": name, "protocol": protocol}))
            .collect(),
    };
    if dice.one_in(6) && resolution != "DYNAMIC_DNS" {
        ports[0]["targetPort"] = 8088.into();
    }
    let nameless = ports.iter().any(|p| p["protocol"] == "TCP");
    let hosts: &[&str] = match (resolution, nameless, dice.roll(6)) {
        ("DYNAMIC_DNS", ..) | ("NONE" | "STATIC", false, 5) => &["*.wild.example"],
        (_, _, 4) => &["web.shop.svc.cluster.local"],
        (_, false, 3) => &["api.example", "db.example"],
        (_, _, 2) => &["db.example"],
        _ => &["api.example"],
    };
    let mut spec = json!({"hosts": hosts, "ports": ports, "resolution": resolution});
    match (resolution, dice.roll(6)) {
        ("DYNAMIC_DNS", _) => {}
        (_, 1) => spec["addresses"] = json!(["10.97.0.1"]),
        (_, 2) => spec["addresses"] = json!(["10.97.0.1", "10.97.0.2"]),
        ("NONE" | "STATIC", 3) => spec["addresses"] = json!(["10.98.0.0/16"]),
        (_, 4) => spec["addresses"] = json!(["fd00::97"]),
        _ => {}
    }
    spec["location"] = dice.pick(&["MESH_INTERNAL", "MESH_EXTERNAL"]).into();
    match resolution {
        "STATIC" if dice.one_in(2) => {
            spec["workloadSelector"] = json!({"labels": {"app": dice.pick(&NAMES)}});
        }
        "STATIC" => spec["endpoints"] = endpoints(dice, &["10.0.0.1", "10.0.0.2", "10.1.0.1"], 3),
        "DNS" => spec["endpoints"] = endpoints(dice, &["a.example", "b.example", "10.1.0.2"], 3),
        "DNS_ROUND_ROBIN" => spec["endpoints"] = endpoints(dice, &["a.example", "b.example"], 2),
        _ => {}
    }
    if dice.one_in(6) {
        spec["subjectAltNames"] = json!(["spiffe://cluster.local/ns/x/sa/y"]);
    }
    export_to(dice, &mut spec);
    if dice.one_in(8) {
        meta["labels"]["networking.istio.io/enable-autoallocate-ip"] = "false".into();
    }
    document(API, "ServiceEntry", meta, json!({"spec": spec}))
}

fn endpoints(dice: &mut Dice<'_>, addresses: &[&str], limit: usize) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for _ in 0..dice.roll(limit) {
        let address = dice.pick(addresses);
        let mut endpoint = json!({"address": address});
        match dice.roll(6) {
            1 => endpoint["locality"] = dice.pick(&LOCALITIES).into(),
            2 => endpoint["weight"] = 3.into(),
            3 => endpoint["labels"] = json!({"version": "v1"}),
            4 => endpoint["network"] = "far".into(),
            _ => {}
        }
        if all.iter().all(|e| e["address"] != endpoint["address"]) {
            all.push(endpoint);
        }
    }
    all.into()
}

pub(crate) fn workload_entry(dice: &mut Dice<'_>) -> String {
    let namespace = dice.pick(&NAMESPACES);
    let name = dice.pick(&["vm-a", "vm-b"]);
    let meta = metadata(dice, namespace, name);
    let address = dice.pick(&["10.0.0.4", "10.0.0.5", "10.2.0.1", "vm.example"]);
    let mut spec = json!({"address": address, "labels": {"app": dice.pick(&NAMES)}});
    match dice.roll(6) {
        1 => spec["locality"] = dice.pick(&LOCALITIES).into(),
        2 => spec["ports"] = json!({"http": 8099, "tcp": 9999}),
        3 => spec["labels"]["version"] = "v2".into(),
        4 => spec["serviceAccount"] = "robot".into(),
        5 => spec["weight"] = 7.into(),
        _ => {}
    }
    document(API, "WorkloadEntry", meta, json!({"spec": spec}))
}

fn balancer(dice: &mut Dice<'_>) -> Value {
    let mut lb = match dice.roll(8) {
        1 => json!({"simple": "RANDOM"}),
        2 => json!({"simple": "PASSTHROUGH"}),
        3 => json!({"consistentHash": {"httpHeaderName": "x-user"}}),
        4 => json!({"consistentHash": {"useSourceIp": true}}),
        5 => {
            json!({"consistentHash": {"httpCookie": {"name": "session", "ttl": "60s"}, "maglev": {"tableSize": 101}}})
        }
        6 => json!({"simple": "LEAST_REQUEST", "warmupDurationSecs": "30s"}),
        _ => json!({"simple": "ROUND_ROBIN"}),
    };
    match dice.roll(8) {
        4 => {
            lb["localityLbSetting"] =
                json!({"distribute": [{"from": "north/*", "to": {"north/*": 80, "south/*": 20}}]});
        }
        5 => lb["localityLbSetting"] = json!({"failover": [{"from": "north", "to": "south"}]}),
        6 => {
            lb["localityLbSetting"] =
                json!({"failoverPriority": ["topology.kubernetes.io/region", "version"]});
        }
        7 => lb["localityLbSetting"] = json!({"enabled": false}),
        _ => {}
    }
    lb
}

fn traffic_policy(dice: &mut Dice<'_>, ports_too: bool) -> Value {
    let mut policy = json!({"loadBalancer": balancer(dice)});
    match dice.roll(6) {
        1 => policy["outlierDetection"] = json!({"consecutive5xxErrors": 3, "interval": "5s"}),
        2 => policy["outlierDetection"] = json!({"minHealthPercent": 40}),
        _ => {}
    }
    match dice.roll(8) {
        1 => {
            policy["connectionPool"] =
                json!({"http": {"h2UpgradePolicy": "UPGRADE", "http2MaxRequests": 9}});
        }
        2 => policy["connectionPool"] = json!({"tcp": {"maxConnections": 4, "idleTimeout": "9s"}}),
        3 => policy["connectionPool"] = json!({"http": {"useClientProtocol": true}}),
        _ => {}
    }
    match dice.roll(10) {
        1 => policy["tls"] = json!({"mode": "ISTIO_MUTUAL"}),
        2 => policy["tls"] = json!({"mode": "SIMPLE", "sni": "x.example"}),
        3 => policy["tls"] = json!({"mode": "DISABLE"}),
        _ => {}
    }
    if ports_too && dice.one_in(5) {
        policy["portLevelSettings"] =
            json!([{"port": {"number": 80}, "loadBalancer": balancer(dice)}]);
    }
    policy
}

pub(crate) fn destination_rule(dice: &mut Dice<'_>) -> String {
    let namespace = dice.pick(&NAMESPACES);
    let name = dice.pick(&["rule-a", "rule-b", "rule-c"]);
    let meta = metadata(dice, namespace, name);
    let mut spec = json!({"host": dice.pick(&HOSTS)});
    if dice.one_in(2) {
        let mut subsets = vec![json!({"name": "v1", "labels": {"version": "v1"}})];
        if dice.one_in(2) {
            subsets.push(json!({"name": "v2", "labels": {"version": "v2"}}));
        }
        if dice.one_in(3) {
            subsets[0]["trafficPolicy"] = traffic_policy(dice, true);
        }
        spec["subsets"] = subsets.into();
    }
    if !dice.one_in(3) {
        spec["trafficPolicy"] = traffic_policy(dice, true);
    }
    if dice.one_in(8) {
        spec["workloadSelector"] = json!({"matchLabels": {"app": dice.pick(&NAMES)}});
    } else {
        export_to(dice, &mut spec);
    }
    document(API, "DestinationRule", meta, json!({"spec": spec}))
}

fn destination(dice: &mut Dice<'_>) -> Value {
    let mut destination = json!({"host": dice.pick(&HOSTS[..6])});
    match dice.roll(5) {
        2 => destination["subset"] = "v1".into(),
        3 => destination["subset"] = "v2".into(),
        4 => destination["port"] = json!({"number": dice.pick(&[80, 9000])}),
        _ => {}
    }
    destination
}

fn request_match(dice: &mut Dice<'_>) -> Value {
    match dice.roll(9) {
        0 | 1 => json!({"uri": {"prefix": "/a"}}),
        2 => json!({"uri": {"exact": "/b"}, "name": "exact"}),
        3 => json!({"headers": {"x-user": {"exact": "me"}}}),
        4 => json!({"sourceLabels": {"app": dice.pick(&NAMES)}}),
        5 => json!({"sourceNamespace": dice.pick(&NAMESPACES)}),
        6 => json!({"port": dice.pick(&[80, 8080, 7000])}),
        7 => json!({"gateways": [dice.pick(&["mesh", "shop/gate-a", "gate-b"])]}),
        _ => {
            json!({"uri": {"regex": "/c.*"}, "queryParams": {"q": {"exact": "1"}}, "withoutHeaders": {"x-no": {}}})
        }
    }
}

fn http_route(dice: &mut Dice<'_>) -> Value {
    let mut route = json!({});
    let matches = dice.roll(3);
    if matches > 0 {
        let all: Vec<Value> = (0..matches).map(|_| request_match(dice)).collect();
        route["match"] = all.into();
    }
    match dice.roll(8) {
        5 => {
            route["redirect"] = json!({"uri": "/elsewhere", "authority": "x.example"});
            return route;
        }
        4 => {
            // Sometimes it is there, sometimes it is no delegate, sometimes it is itself.
            let to = dice.pick(&["delegate-a", "routes-c"]);
            return json!({"match": [{"uri": {"prefix": "/a"}}], "delegate": {"name": to, "namespace": "shop"}});
        }
        6 => {
            route["directResponse"] = json!({"status": 418, "body": {"string": "no"}});
            return route;
        }
        2 | 7 => {
            let first = 10 * dice.roll(10) as u64 + 5;
            route["route"] = json!([
                {"destination": destination(dice), "weight": first},
                {"destination": destination(dice), "weight": 100 - first},
            ]);
        }
        _ => route["route"] = json!([{"destination": destination(dice)}]),
    }
    match dice.roll(12) {
        1 => route["timeout"] = "3s".into(),
        2 => route["retries"] = json!({"attempts": 3, "retryOn": "5xx,503", "perTryTimeout": "1s"}),
        3 => route["fault"] = json!({"delay": {"fixedDelay": "1s", "percentage": {"value": 10.0}}}),
        4 => route["mirror"] = destination(dice),
        5 => route["rewrite"] = json!({"uri": "/x", "authority": "y.example"}),
        6 => {
            route["corsPolicy"] =
                json!({"allowOrigins": [{"exact": "https://a.example"}], "maxAge": "1h"});
        }
        7 => {
            route["headers"] = json!({"request": {"set": {"x-a": "1", "host": "z.example"}}, "response": {"remove": ["x-b"]}});
        }
        8 => route["name"] = "named".into(),
        _ => {}
    }
    route
}

pub(crate) fn virtual_service(dice: &mut Dice<'_>) -> String {
    let namespace = dice.pick(&NAMESPACES);
    let name = dice.pick(&[
        "routes-a",
        "routes-a",
        "routes-b",
        "routes-b",
        "routes-c",
        "delegate-a",
    ]);
    let meta = metadata(dice, namespace, name);
    if name == "delegate-a" {
        let route = json!({"match": [{"uri": {"prefix": "/a/b"}}], "route": [{"destination": destination(dice)}]});
        let mut spec = json!({"http": [route]});
        export_to(dice, &mut spec);
        return document(API, "VirtualService", meta, json!({"spec": spec}));
    }
    let mut spec = json!({"hosts": [dice.pick(&HOSTS)]});
    if dice.one_in(5)
        && spec["hosts"] != json!(["nobody.example"])
        && spec["hosts"] != json!(["*.example"])
    {
        spec["hosts"] = json!([spec["hosts"][0], "nobody.example"]);
    }
    match dice.roll(6) {
        3 => spec["gateways"] = json!(["shop/gate-a"]),
        4 => spec["gateways"] = json!(["mesh", "gate-b"]),
        5 => spec["gateways"] = json!(["shop/gate-a", "bank/gate-b"]),
        _ => {}
    }
    match dice.roll(6) {
        4 => spec["tcp"] = tcp_routes(dice),
        // Names of servers must be names of the rule, so wildcards and short names are left out.
        5 => {
            spec["hosts"] = json!([dice.pick(&["api.example", "db.example"])]);
            let matches = json!({"port": 443, "sniHosts": spec["hosts"]});
            spec["tls"] =
                json!([{"match": [matches], "route": [{"destination": destination(dice)}]}]);
        }
        _ => {
            let routes: Vec<Value> = (0..=dice.roll(3)).map(|_| http_route(dice)).collect();
            spec["http"] = routes.into();
        }
    }
    export_to(dice, &mut spec);
    document(API, "VirtualService", meta, json!({"spec": spec}))
}

fn tcp_routes(dice: &mut Dice<'_>) -> Value {
    let mut route = json!({"route": [{"destination": destination(dice)}]});
    match dice.roll(5) {
        1 => route["match"] = json!([{"port": 9000}]),
        2 => route["match"] = json!([{"sourceLabels": {"app": dice.pick(&NAMES)}}]),
        3 => route["match"] = json!([{"destinationSubnets": ["10.97.0.0/16"]}]),
        4 => {
            route["route"] = json!([
                {"destination": destination(dice), "weight": 30},
                {"destination": destination(dice), "weight": 70},
            ]);
        }
        _ => {}
    }
    json!([route])
}

pub(crate) fn gateway(dice: &mut Dice<'_>) -> String {
    let namespace = dice.pick(&NAMESPACES);
    let name = dice.pick(&["gate-a", "gate-b"]);
    let meta = metadata(dice, namespace, name);
    let mut servers = Vec::new();
    for n in 0..=dice.roll(3) {
        let (number, protocol) = dice.pick(&[
            (80, "HTTP"),
            (8080, "HTTP2"),
            (443, "HTTPS"),
            (443, "HTTPS"),
            (443, "TLS"),
            (9000, "TCP"),
        ]);
        let hosts = dice.pick(&[
            "*",
            "*.example",
            "shop/*",
            "api.example",
            "./web.shop.svc.cluster.local",
        ]);
        let mut server = json!({"port": {"number": number, "name": format!("port-{n}"), "protocol": protocol}, "hosts": [hosts]});
        match protocol {
            "HTTPS" | "TLS" => {
                server["tls"] = dice.pick(&[
                    json!({"mode": "SIMPLE", "credentialName": "own"}),
                    json!({"mode": "MUTUAL", "credentialName": "own", "subjectAltNames": ["a.example"]}),
                    json!({"mode": "OPTIONAL_MUTUAL", "credentialNames": ["own", "other"]}),
                    json!({"mode": "SIMPLE", "serverCertificate": "/c.pem", "privateKey": "/k.pem"}),
                    json!({"mode": "ISTIO_MUTUAL"}),
                    json!({"mode": "PASSTHROUGH"}),
                    json!({"mode": "AUTO_PASSTHROUGH"}),
                ]);
            }
            "HTTP" if dice.one_in(5) => server["tls"] = json!({"httpsRedirect": true}),
            _ if dice.one_in(8) => server["bind"] = "127.0.0.1".into(),
            _ => {}
        }
        servers.push(server);
    }
    let mut spec = json!({"servers": servers});
    spec["selector"] = dice
        .pick(&[("istio", "ingress"), ("istio", "ingress"), ("app", "web")])
        .into_selector();
    document(API, "Gateway", meta, json!({"spec": spec}))
}

trait Selector {
    fn into_selector(self) -> Value;
}

impl Selector for (&str, &str) {
    fn into_selector(self) -> Value {
        let mut map = serde_json::Map::new();
        map.insert(self.0.to_owned(), self.1.into());
        map.into()
    }
}

pub(crate) fn sidecar(dice: &mut Dice<'_>) -> String {
    let namespace = dice.pick(&NAMESPACES);
    let name = dice.pick(&["view-a", "view-b"]);
    let meta = metadata(dice, namespace, name);
    let mut spec = json!({});
    if dice.one_in(3) && namespace != "istio-system" {
        spec["workloadSelector"] = json!({"labels": {"app": dice.pick(&NAMES)}});
    }
    let hosts = |dice: &mut Dice<'_>| {
        dice.pick(&[
            &["*/*"][..],
            &["./*"],
            &["./*", "istio-system/*"],
            &["shop/web.shop.svc.cluster.local", "*/api.example"],
            &["bank/*"],
            &["~/*"],
            &["*/*.example"],
        ])
    };
    let mut egress = Vec::new();
    if dice.one_in(3) {
        let (number, protocol) = dice.pick(&[(80, "HTTP"), (9000, "TCP"), (7777, "HTTP")]);
        let mut listener = json!({"port": {"number": number, "protocol": protocol, "name": "own"}, "hosts": hosts(dice)});
        match dice.roll(4) {
            2 => listener["bind"] = "127.0.0.9".into(),
            3 => listener["captureMode"] = "NONE".into(),
            _ => {}
        }
        egress.push(listener);
    }
    if dice.one_in(8) {
        egress.push(json!({"port": {"number": 0, "protocol": "HTTP", "name": "unix"}, "bind": "unix:///tmp/egress.sock", "hosts": hosts(dice)}));
    }
    egress.push(json!({"hosts": hosts(dice)}));
    spec["egress"] = egress.into();
    if dice.one_in(4) {
        let mut listener = json!({"port": {"number": 8080, "protocol": "HTTP", "name": "in"}, "defaultEndpoint": "127.0.0.1:8000"});
        match dice.roll(4) {
            1 => listener["captureMode"] = "NONE".into(),
            2 => listener["defaultEndpoint"] = "unix:///tmp/app.sock".into(),
            3 => listener["bind"] = "0.0.0.0".into(),
            _ => {}
        }
        spec["ingress"] = json!([listener]);
    }
    if dice.one_in(5) {
        spec["outboundTrafficPolicy"] = json!({"mode": dice.pick(&["REGISTRY_ONLY", "ALLOW_ANY"])});
    }
    document(API, "Sidecar", meta, json!({"spec": spec}))
}
