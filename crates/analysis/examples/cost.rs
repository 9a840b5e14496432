//! What analysis costs in a mesh of 1,000 services: all of it, and after one change.
#![expect(clippy::disallowed_methods, reason = "measures time")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use pilotfish_analysis::Analyzer;
use pilotfish_config::{Change, Store, parse};
use pilotfish_mesh::{Settings, World};

const SERVICES: usize = 1000;

fn virtual_service(i: usize, weight: usize) -> String {
    format!(
        "{{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: s{i}, namespace: n{n}}}, spec: {{hosts: [s{i}], http: [{{route: [{{destination: {{host: s{i}, subset: v0}}, weight: {weight}}}, {{destination: {{host: s{i}, subset: v1}}, weight: {rest}}}]}}]}}}}\n---\n",
        n = i % 20,
        rest = 100 - weight,
    )
}

fn pod(i: usize, j: usize, phase: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: s{i}-{j}, namespace: n{n}, labels: {{app: s{i}, version: v{v}}}}}, spec: {{containers: [{{name: c}}]}}, status: {{phase: {phase}, podIP: 10.{a}.{b}.{j}, conditions: [{{type: Ready, status: \"True\"}}]}}}}\n---\n",
        n = i % 20,
        v = j % 2,
        a = i / 250,
        b = i % 250,
    )
}

fn service(i: usize) -> String {
    let (n, a, b) = (i % 20, i / 250, i % 250);
    let mut text = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: s{i}, namespace: n{n}}}, spec: {{clusterIP: 10.96.{a}.{b}, selector: {{app: s{i}}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}}}\n---\n"
    );
    let mut endpoints = Vec::new();
    for j in 1..4 {
        text += &pod(i, j, "Running");
        endpoints.push(format!(
            "{{addresses: [10.{a}.{b}.{j}], targetRef: {{kind: Pod, name: s{i}-{j}, namespace: n{n}}}}}"
        ));
    }
    let _ = write!(
        text,
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s{i}, namespace: n{n}, labels: {{kubernetes.io/service-name: s{i}}}}}, addressType: IPv4, ports: [{{name: http, port: 8080}}], endpoints: [{}]}}\n---\n\
         {{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {{name: s{i}, namespace: n{n}}}, spec: {{host: s{i}, subsets: [{{name: v0, labels: {{version: v0}}}}, {{name: v1, labels: {{version: v1}}}}]}}}}\n---\n",
        endpoints.join(", ")
    );
    text + &virtual_service(i, 90)
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut store = Store::new();
    let source = store.register("cost");
    let mut world = World::empty(Settings::default());
    let mut analyzer = Analyzer::default();
    let all: String = (0..SERVICES).map(service).collect();
    let steps = [
        ("everything", all),
        ("the same again", String::new()),
        ("a weight", virtual_service(7, 80)),
        ("a pod", pod(7, 1, "Failed")),
    ];
    for (what, text) in steps {
        let objects = parse::documents(&text, "cost.yaml").objects;
        let applied = store.apply(source, objects.into_iter().map(Change::upsert).collect());
        world = world.update(&applied.snapshot, &applied.changed).world;
        let start = Instant::now();
        let found = analyzer.update(&world, &[]).len();
        let took = start.elapsed();
        writeln!(out, "{what}: {found} findings in {took:?}")?;
    }
    Ok(())
}
