//! Reading documents: what is kept, what is reported, and where.

use pilotfish_config::networking::{ServiceEntry, StringMatch, VirtualService};
use pilotfish_config::parse::{self, documents};
use pilotfish_config::security::PeerAuthentication;
use pilotfish_config::{Kind, ObjectKey, Severity, core};
use serde_json::json;

fn report(text: &str) -> Vec<String> {
    documents(text, "shop.yaml")
        .diagnostics
        .iter()
        .map(ToString::to_string)
        .collect()
}

const WEB: &str = "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: web
  namespace: shop
spec:
  hosts: [web.shop.svc.cluster.local]
  http:
  - match:
    - uri: {prefix: /api}
      headers:
        x-user: {}
    route:
    - destination: {host: web, port: {number: 80}}
    timeout: 1.5s
";

#[test]
fn a_good_object_is_read_whole() {
    let parsed = documents(WEB, "shop.yaml");
    assert_eq!(parsed.diagnostics, []);
    let object = &parsed.objects[0];
    assert_eq!(object.key.to_string(), "VirtualService/shop/web");
    assert_eq!(object.origin.as_ref().unwrap().to_string(), "shop.yaml:1");
    let vs: &VirtualService = object.get().unwrap();
    let route = &vs.http[0];
    assert_eq!(
        route.timeout.unwrap().get(),
        std::time::Duration::from_millis(1500)
    );
    assert_eq!(
        route.r#match[0].uri,
        Some(StringMatch::Prefix("/api".into()))
    );
    assert_eq!(route.r#match[0].headers["x-user"], StringMatch::Any);
    assert_eq!(
        route.route[0]
            .destination
            .as_ref()
            .unwrap()
            .port
            .as_ref()
            .unwrap()
            .number,
        80
    );
}

#[test]
fn an_unknown_field_is_a_warning_with_a_line_and_a_hint() {
    let text = WEB.replace("    route:", "    rout:\n    - {}\n    route:");
    assert_eq!(
        report(&text),
        [
            "warning VirtualService/shop/web spec.http[0].rout: unknown field; did you mean route?; the field is ignored \
          (shop.yaml:13)"
        ]
    );
    assert_eq!(documents(&text, "x").objects.len(), 1);
}

#[test]
fn wrong_types_refuse_the_object_and_only_that() {
    for (from, to, expected) in [
        (
            "number: 80",
            "number: eighty",
            "port.number: expected an integer from 0 to 4294967295, found \"eighty\"",
        ),
        (
            "number: 80",
            "number: -1",
            "port.number: -1 is out of range",
        ),
        (
            "1.5s",
            "5",
            "spec.http[0].timeout: expected a duration such as \"10s\", found 5",
        ),
        ("1.5s", "5x", "invalid duration \"5x\": unknown unit"),
        ("1.5s", "-5s", "must not be negative"),
        (
            "{prefix: /api}",
            "{prefix: /api, exact: /x}",
            "only one of exact, prefix, regex",
        ),
        (
            "{prefix: /api}",
            "/api",
            "uri: expected an object, found \"/api\"",
        ),
        (
            "host: web",
            "host: true",
            "destination.host: expected text, found true; quote it",
        ),
    ] {
        let text = format!(
            "{}---\n{}",
            WEB.replace(from, to),
            WEB.replace("name: web", "name: other")
        );
        let parsed = documents(&text, "shop.yaml");
        assert_eq!(parsed.objects.len(), 1, "{to}: {:?}", parsed.diagnostics);
        assert_eq!(&*parsed.objects[0].key.name, "other");
        assert_eq!(parsed.refused[0].to_string(), "VirtualService/shop/web");
        let line = parsed.diagnostics[0].to_string();
        assert!(line.contains(expected), "{line}");
        assert!(
            line.contains("the object is not used; its last good version stays (shop.yaml:1"),
            "{line}"
        );
    }
}

#[test]
fn bad_enumerations_name_the_choices() {
    let text = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: a}\nspec:\n  mtls:\n    \
                mode: STRIKT\n";
    let line = &report(text)[0];
    assert!(
        line.contains("spec.mtls.mode: unknown value \"STRIKT\", expected one of UNSET, DISABLE"),
        "{line}"
    );
    assert!(line.contains("did you mean STRICT?"), "{line}");
    assert!(line.ends_with("(shop.yaml:6)"), "{line}");
}

#[test]
fn a_syntax_error_costs_one_document() {
    let text = format!(
        "{WEB}---\nkind: [\n---\n{}",
        WEB.replace("name: web", "name: b")
    );
    let parsed = documents(&text, "shop.yaml");
    assert_eq!(parsed.objects.len(), 2);
    assert_eq!(parsed.unreadable, 1);
    assert!(
        parsed.diagnostics[0].to_string().contains("invalid YAML"),
        "{}",
        parsed.diagnostics[0]
    );
    assert_eq!(parsed.objects[1].origin.as_ref().unwrap().line, 19);
}

#[test]
fn labels_must_be_text() {
    let line = &report(&WEB.replace(
        "  namespace: shop",
        "  namespace: shop\n  labels:\n    canary: yes",
    ))[0];
    assert!(
        line.contains("metadata.labels.canary: expected text, found true; quote it"),
        "{line}"
    );
    assert!(line.ends_with("(shop.yaml:7)"), "{line}");
    assert_eq!(
        report(&WEB.replace(
            "  namespace: shop",
            "  namespace: shop\n  labels:\n    canary: \"yes\""
        )),
        [""; 0]
    );
}

#[test]
fn the_envelope_is_checked() {
    for (from, to, expected) in [
        ("kind: VirtualService\n", "", "kind is missing"),
        (
            "apiVersion: networking.istio.io/v1\n",
            "",
            "apiVersion is missing",
        ),
        ("  name: web\n", "", "metadata.name: name is missing"),
        ("name: web", "name: Web_1", "invalid name \"Web_1\""),
        (
            "namespace: shop",
            "namespace: a.b",
            "invalid namespace \"a.b\"",
        ),
        (
            "kind: VirtualService",
            "kind: VirtualServise",
            "did you mean VirtualService?",
        ),
        ("istio.io/v1", "istio.io/v9", "unsupported version"),
        ("spec:", "sepc:", "sepc: unknown field; did you mean spec?"),
    ] {
        let lines = report(&WEB.replace(from, to));
        assert!(
            lines.iter().any(|line| line.contains(expected)),
            "{to}: {lines:?}"
        );
    }
}

#[test]
fn json_and_lists() {
    let text = r#"{"apiVersion": "v1", "kind": "List", "items": [
      {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "labels": {"x": "y"}}},
      {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}},
      {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    ]}
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}}"#;
    let parsed = documents(text, "a.json");
    let keys: Vec<_> = parsed
        .objects
        .iter()
        .map(|object| object.key.to_string())
        .collect();
    assert_eq!(keys, ["Namespace/a", "Node/n", "Namespace/b"]);
    assert_eq!(parsed.objects[2].origin.as_ref().unwrap().line, 6);
    assert_eq!(parsed.diagnostics.len(), 1);
    assert_eq!(parsed.diagnostics[0].severity, Severity::Info);
    assert_eq!(
        parsed.objects[1].get::<core::Node>().unwrap().addresses[0].address,
        "10.0.0.1"
    );

    let text =
        r#"{"apiVersion": "v1", "kind": "NamespaceList", "items": [{"metadata": {"name": "a"}}]}"#;
    assert_eq!(
        documents(text, "a.json").objects[0].key.to_string(),
        "Namespace/a"
    );

    let yaml = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: a}\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: [b]}\n";
    let parsed = documents(yaml, "l.yaml");
    assert_eq!(parsed.objects[0].origin.as_ref().unwrap().line, 4);
    let line = parsed
        .diagnostics
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        line.contains("metadata.name: expected text, found a list"),
        "{line}"
    );
    assert!(line.contains("l.yaml:9"), "{line}");
}

#[test]
fn not_yet_translated_kinds_are_remarks() {
    let line =
        &report("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: a}\n")
            [0];
    assert!(
        line.starts_with("info: kind HTTPRoute is not translated yet; ignored"),
        "{line}"
    );
}

#[test]
fn null_is_not_set() {
    let text = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: a\n  creationTimestamp: null\nspec:\n  hosts: [a.example.com]\n  addresses:\n  ports:\n  - {number: 80, name: http, protocol: HTTP}\n  resolution: DNS\nstatus:\n  addresses:\n  - {value: 240.240.0.1, host: a.example.com}\n";
    let parsed = documents(text, "a.yaml");
    assert_eq!(parsed.diagnostics, []);
    let entry: &ServiceEntry = parsed.objects[0].get().unwrap();
    assert_eq!(entry.status_addresses[0].value, "240.240.0.1");
    assert_eq!(parsed.objects[0].key.to_string(), "ServiceEntry/default/a");
}

#[test]
fn maps_keyed_by_port() {
    let text = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: a}\nspec:\n  selector: {matchLabels: {app: a}}\n  portLevelMtls:\n    8080: {mode: DISABLE}\n";
    let parsed = documents(text, "a.yaml");
    assert_eq!(parsed.diagnostics, []);
    let auth: &PeerAuthentication = parsed.objects[0].get().unwrap();
    assert!(auth.port_level_mtls.contains_key(&8080));
    let lines = report(&text.replace("8080", "http"));
    assert!(
        lines[0].contains("spec.portLevelMtls.http: expected an integer"),
        "{lines:?}"
    );
}

#[test]
fn secrets_never_show_their_values() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: Opaque\ndata:\n  key: aHVudGVyMg==\nstringData:\n  more: hunter2\n";
    let parsed = documents(text, "a.yaml");
    assert_eq!(parsed.diagnostics, []);
    let object = &parsed.objects[0];
    let secret: &core::Secret = object.get().unwrap();
    assert_eq!(secret.data["key"].0, b"hunter2");
    assert_eq!(secret.data["more"].0, b"hunter2");
    let shown = format!("{object:?}{}", serde_json::to_string(object).unwrap());
    assert!(
        !shown.contains("hunter2") && !shown.contains("aHVudGVyMg"),
        "{shown}"
    );
    for bad in ["key: 'hunter2!'", "key: [hunter2]"] {
        let lines = report(&text.replace("key: aHVudGVyMg==", bad));
        assert!(
            lines[0].contains("data.key: invalid value") && !lines[0].contains("hunter2"),
            "{lines:?}"
        );
    }
}

#[test]
fn kubernetes_kinds_are_flat_and_tolerant() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  deletionTimestamp: 2024-01-01T00:00:00Z\n  creationTimestamp: 2024-01-01T00:00:00Z\n  ownerReferences:\n  - {kind: ReplicaSet, name: rs, apiVersion: apps/v1, controller: true, uid: x}\nspec:\n  nodeName: node\n  containers:\n  - {name: c, image: x, ports: [{containerPort: 80}]}\nstatus:\n  phase: Running\n  podIP: 10.0.0.1\n  podIPs: [{ip: 10.0.0.1}, {ip: fd00::1}]\n";
    let parsed = documents(text, "a.yaml");
    assert_eq!(parsed.diagnostics, []);
    let object = &parsed.objects[0];
    assert_eq!(object.meta.created, Some(1_704_067_200));
    assert_eq!(&*object.meta.owner.as_ref().unwrap().kind, "ReplicaSet");
    let pod: &core::Pod = object.get().unwrap();
    assert!(pod.deleting);
    assert_eq!(pod.ips().collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
    let lines = report(&text.replace("phase: Running", "phase: [x]"));
    assert!(
        lines[0].contains("status.phase: expected one of"),
        "{lines:?}"
    );
    assert!(lines[0].ends_with("(shop.yaml:14)"), "{lines:?}");
}

#[test]
fn bounds_hold() {
    // Billion laughs.
    let bomb = (1..20).fold(
        String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"),
        |text, i| {
            let alias = format!("*a{}", i - 1);
            let items = [alias.as_str(); 10].join(", ");
            text + &format!("a{i}: &a{i} [{items}]\n")
        },
    );
    assert!(
        report(&bomb)[0].contains("more than 2000000 values"),
        "{:?}",
        report(&bomb)
    );
    // Deep, in each of the ways to be deep.
    let deep_flow = format!("a: {}{}", "[".repeat(5000), "]".repeat(5000));
    let deep_json = format!("{{\"a\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
    let deep_block = (0..2000).fold(String::new(), |text, i| text + &" ".repeat(i) + "a:\n");
    let deep_alias = (1..50).fold(
        String::from("a0: &a0 [[[[[[[[[[x]]]]]]]]]]\n"),
        |text, i| text + &format!("a{i}: &a{i} [[[[[[[[[*a{}]]]]]]]]]\n", i - 1),
    );
    for text in [deep_flow, deep_json, deep_block, deep_alias] {
        let lines = report(&text);
        assert!(
            lines[0].contains("nested more than 100 levels deep"),
            "{}: {lines:?}",
            &text[..60]
        );
    }
    // Large.
    let large = format!("{WEB}\n  x: {}\n", "y".repeat(parse::MAX_OBJECT_BYTES));
    let parsed = documents(&large, "x");
    assert!(parsed.objects.is_empty());
    assert!(
        parsed
            .diagnostics
            .iter()
            .any(|d| d.reason.contains("larger than 4 MiB")),
        "{:?}",
        parsed.diagnostics
    );
    let text = "x".repeat(parse::MAX_TEXT_BYTES + 1);
    assert!(report(&text)[0].contains("larger than 64 MiB"));
    // Many.
    let many = "---\na: 1\n".repeat(parse::MAX_DOCUMENTS + 5);
    let parsed = documents(&many, "x");
    assert!(
        parsed
            .diagnostics
            .iter()
            .any(|d| d.reason.contains("more than 100000 documents"))
    );
}

#[test]
fn an_alias_cannot_contain_itself() {
    let lines = report("a: &a [*a]\n");
    assert!(
        lines[0].contains("alias") || lines[0].contains("anchor"),
        "{lines:?}"
    );
}

#[test]
fn merge_keys_fill_in() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  <<: &base {x: \"1\", y: \"2\"}\n  y: \"3\"\n";
    let parsed = documents(text, "a");
    let map: &core::ConfigMap = parsed.objects[0].get().unwrap();
    assert_eq!(map.data["x"], "1");
    assert_eq!(map.data["y"], "3");
}

#[test]
fn text_that_is_none() {
    assert_eq!(
        parse::text(b"a\n\0", "f").unwrap_err().to_string(),
        "error: not text: contains a NUL byte; the file is not used; the last good versions of its objects stay (f:2)"
    );
    assert_eq!(parse::text(b"a\n\xff\xfe", "f").unwrap_err().code, "binary");
    assert!(report("a: \u{0}")[0].contains("NUL"));
}

#[test]
fn windows_files_are_fine() {
    let text = format!("\u{feff}{}", WEB.replace('\n', "\r\n"));
    let parsed = documents(&text, "a");
    assert_eq!(parsed.diagnostics, []);
    assert_eq!(parsed.objects.len(), 1);
}

#[test]
fn duplicates_in_one_text() {
    let parsed = documents(&format!("{WEB}---\n{WEB}"), "shop.yaml");
    assert_eq!(parsed.objects.len(), 1);
    assert_eq!(
        parsed.diagnostics[0].to_string(),
        "error VirtualService/shop/web: already defined at shop.yaml:1; this definition is ignored (shop.yaml:17)"
    );
}

#[test]
fn every_kind_round_trips_through_its_own_json() {
    for kind in Kind::ALL {
        assert!(!kind.versions().is_empty());
    }
    let parsed = documents(WEB, "a");
    let spec = serde_json::to_value(&parsed.objects[0].spec).unwrap();
    let again: VirtualService = serde_json::from_value(spec).unwrap();
    assert_eq!(Some(&again), parsed.objects[0].get());
}

#[test]
fn an_object_of_an_api_server_needs_no_file() {
    let value = json!({
        "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "7", "managedFields": [{"manager": "x"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}},
        "spec": {"ports": [{"port": 80}]},
    });
    // Items of lists do not say what they are.
    let parsed = parse::object(value, Kind::Service);
    assert_eq!(parsed.diagnostics, []);
    let [service] = &parsed.objects[..] else {
        panic!("{parsed:?}")
    };
    assert_eq!(service.key, ObjectKey::new(Kind::Service, "shop", "web"));
    assert_eq!(service.origin, None);
    let annotations: Vec<&str> = service.meta.annotations.keys().map(|k| &**k).collect();
    assert_eq!(
        annotations,
        ["a"],
        "what kubectl notes for itself is not kept"
    );

    let bad = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"ports": [{"port": "x"}]}});
    let parsed = parse::object(bad, Kind::Service);
    assert_eq!(
        parsed.refused,
        [ObjectKey::new(Kind::Service, "shop", "web")]
    );
    let shown = parsed.diagnostics[0].to_string();
    assert!(
        shown.starts_with("error Service/shop/web spec.ports[0].port: "),
        "{shown}"
    );
    assert_eq!(parsed.diagnostics[0].origin, None);
    assert_eq!(parse::object(json!([]), Kind::Service).unreadable, 1);
}

#[test]
fn settings_are_laid_over_each_other() {
    let layer = |text, name| parse::Layer { text, name };
    let (mesh, found) = parse::mesh_layers(&[
        layer(
            "trustDomain: a\nrootNamespace: a\ndefaultConfig: {concurrency: 1}",
            "one",
        ),
        layer("trustDomain: b\ndefaultConfig: {drainDuration: 7s}", "two"),
    ]);
    assert_eq!(found, []);
    let mesh = mesh.unwrap();
    assert_eq!(
        (mesh.trust_domain.as_str(), mesh.root_namespace.as_str()),
        ("b", "a")
    );
    assert_eq!(mesh.default_config.unwrap().concurrency, Some(1));
    let (mesh, found) = parse::mesh_layers(&[layer("trustDomain: [", "one"), layer("", "two")]);
    assert!(mesh.is_none());
    assert_eq!(found[0].origin.as_ref().map(|at| &*at.file), Some("one"));
}
