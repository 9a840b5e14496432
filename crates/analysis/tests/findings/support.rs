//! A small mesh in which nothing is wrong, and what is found in it with more objects.

use std::sync::Arc;

use pilotfish_config::{ObjectKey, Snapshot, parse};
use pilotfish_mesh::{Settings, World};

/// Two namespaces, a service with two versions, an edge with its Gateway and certificate.
pub(crate) const BASE: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: edge}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.2, selector: {app: web}, ports: [{name: http, port: 80, targetPort: main}, {name: tcp-admin, port: 9000, targetPort: 9000}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: 10.96.0.3, ports: [{name: tcp, port: 5432}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, labels: {app: web, version: v1}}, spec: {containers: [{name: c, ports: [{name: main, containerPort: 8080}]}]}, status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-2, namespace: shop, labels: {app: web, version: v2}}, spec: {containers: [{name: c, ports: [{name: main, containerPort: 8080}]}]}, status: {phase: Running, podIP: 10.0.0.2, conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-s, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8080}, {name: tcp-admin, port: 9000}], endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: web-1, namespace: shop}}, {addresses: [10.0.0.2], targetRef: {kind: Pod, name: web-2, namespace: shop}}]}
---
{apiVersion: v1, kind: Service, metadata: {name: edge, namespace: edge}, spec: {clusterIP: 10.96.0.9, selector: {istio: edge}, ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8443}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: edge-1, namespace: edge, labels: {istio: edge}}, spec: {containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.9, conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: cert, namespace: edge}, stringData: {tls.crt: c, tls.key: k, ca.crt: a}}
---
{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: g, namespace: edge}, spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [shop.example]}, {port: {number: 443, name: https, protocol: HTTPS}, hosts: [shop.example], tls: {mode: MUTUAL, credentialName: cert}}]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: outer, namespace: shop}, spec: {hosts: [shop.example], gateways: [edge/g], http: [{route: [{destination: {host: web, port: {number: 80}}}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: inner, namespace: shop}, spec: {hosts: [web], http: [{route: [{destination: {host: web, subset: v1}, weight: 90}, {destination: {host: web, subset: v2}, weight: 10}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: web, namespace: shop}, spec: {host: web, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}}
"#;

/// A world of what a text declares, which must be good.
pub(crate) fn world(text: &str) -> World {
    let parsed = parse::documents(text, "test.yaml");
    let bad: Vec<_> = parsed
        .diagnostics
        .iter()
        .filter(|d| d.severity == pilotfish_config::Severity::Error)
        .collect();
    assert!(bad.is_empty(), "the input itself is bad: {bad:?}");
    let mut snapshot = Snapshot::default();
    for object in parsed.objects {
        snapshot
            .objects
            .insert(object.key.clone(), Arc::new(object));
    }
    let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
    World::empty(Settings::default())
        .update(&snapshot, &keys)
        .world
}

/// Findings as `code object field`.
pub(crate) fn found(text: &str) -> Vec<String> {
    let all = pilotfish_analysis::analyze(&world(text));
    all.iter()
        .map(|d| {
            assert!(!d.reason.is_empty() && !d.effect.is_empty(), "{d:?}");
            let object = d
                .object
                .as_ref()
                .map_or_else(String::new, ToString::to_string);
            format!("{} {object} {}", d.code, d.field)
        })
        .collect()
}

/// One object: kind, namespace and name, created at, spec.
pub(crate) fn object(kind: &str, name: &str, created: u32, spec: &str) -> String {
    let (version, body) = match kind {
        "Service" => ("v1", "spec"),
        "Telemetry" => ("telemetry.istio.io/v1", "spec"),
        _ => ("networking.istio.io/v1", "spec"),
    };
    let (namespace, name) = name.split_once('/').expect("namespace/name");
    format!(
        "{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: \"2024-01-01T00:00:{created:02}Z\"}}, {body}: {spec}}}\n---\n"
    )
}

/// The base with `wrong` gives `finding` (`code object field`); with `right` nothing of that code about that object.
pub(crate) fn tells(finding: &str, wrong: &str, right: &str) {
    let with = |more: &str| found(&format!("{BASE}---\n{more}"));
    let wrong = with(wrong);
    assert!(
        wrong.iter().any(|f| f == finding),
        "{finding} is not among {wrong:#?}"
    );
    let about = finding.rsplit_once(' ').expect("a field").0;
    let right = with(right);
    let stray: Vec<_> = right.iter().filter(|f| f.starts_with(about)).collect();
    assert!(stray.is_empty(), "a near miss is reported: {stray:?}");
}
