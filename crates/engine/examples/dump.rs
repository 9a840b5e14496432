//! Translates a directory of YAML for the proxies of a file and writes what each would be sent, as JSON.
//!
//! `dump CONFIG.yaml... --mesh FILE --proxies FILE --out DIR`
#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a developer's tool, not part of the engine"
)]

use std::collections::BTreeMap;

use pilotfish_config::{Change, Store};
use pilotfish_engine::{Engine, ProxyFacts};
use pilotfish_mesh::Settings;
use pilotfish_xds::TypeUrl;

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut files, mut options) = (Vec::new(), BTreeMap::new());
    while let Some(a) = args.next() {
        match a.strip_prefix("--") {
            Some(name) => {
                options.insert(name.to_owned(), args.next().unwrap());
            }
            None => files.push(a),
        }
    }
    let mut store = Store::new();
    let source = store.register("files");
    let mut changes = Vec::new();
    for f in &files {
        let parsed = pilotfish_config::parse::documents(&std::fs::read_to_string(f).unwrap(), f);
        for d in parsed.diagnostics {
            eprintln!("{d}");
        }
        changes.extend(parsed.objects.into_iter().map(Change::upsert));
    }
    if let Some(f) = options.get("mesh") {
        let (mesh, diagnostics) =
            pilotfish_config::parse::mesh_config(&std::fs::read_to_string(f).unwrap(), f);
        for d in diagnostics {
            eprintln!("{d}");
        }
        store.set_mesh(mesh.unwrap());
    }
    let applied = store.apply(source, changes);
    let settings = Settings {
        dual_stack: options.contains_key("dual-stack"),
        ..Settings::default()
    };
    let engine = Engine::new(settings);
    let keys: Vec<_> = applied.snapshot.objects.keys().cloned().collect();
    engine.apply(&applied.snapshot, &keys);
    for d in engine.diagnostics() {
        eprintln!("{d}");
    }
    let out = &options["out"];
    std::fs::create_dir_all(out).unwrap();
    let proxies: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&options["proxies"]).unwrap()).unwrap();
    for p in proxies["proxies"].as_array().unwrap() {
        let any =
            pilotfish_protos::json::from_json("envoy.config.core.v3.Node", &p["node"]).unwrap();
        let node = prost::Message::decode(any.value).unwrap();
        let mut proxy = engine.connect(ProxyFacts::from_node(&node).unwrap());
        for (short, t) in [
            ("cds", TypeUrl::Cluster),
            ("eds", TypeUrl::Endpoints),
            ("lds", TypeUrl::Listener),
            ("rds", TypeUrl::Route),
            ("nds", TypeUrl::NameTable),
        ] {
            let view = engine.view(&mut proxy, &t);
            if t == TypeUrl::NameTable && view.is_empty() {
                continue;
            }
            let items: Vec<_> = view
                .iter()
                .map(|r| {
                    let (url, body) = r.parts();
                    let mut json = pilotfish_protos::json::any_to_json(&url, &body).unwrap();
                    json.as_object_mut().unwrap().remove("@type");
                    serde_json::json!({"name": &*r.name, "resource": json})
                })
                .collect();
            std::fs::write(
                format!("{out}/{}.{short}.json", p["name"].as_str().unwrap()),
                serde_json::to_string(&items).unwrap(),
            )
            .unwrap();
        }
    }
}
