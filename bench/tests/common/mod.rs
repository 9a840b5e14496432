//! The benchmark, run as a person would on a small mesh.

use std::process::Command;

use serde_json::Value;

pub(crate) const BENCH: &str = env!("CARGO_BIN_EXE_pilotfish-bench");

/// Of this type each proxy got something, and of no other type anybody anything.
pub(crate) fn only(kind: &str, phase: &Value) {
    for (sent, count) in phase["messages"].as_object().unwrap() {
        let count = count.as_f64().unwrap();
        if sent == kind {
            assert!(count >= 4.0, "{phase:#}");
        } else {
            assert!(count == 0.0, "{sent} was sent, too: {phase:#}");
        }
    }
}

/// The tables, what was said besides, and the figures, of a small mesh.
pub(crate) fn bench(args: &[&str]) -> (String, String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("figures.json");
    let output = Command::new(BENCH)
        .args(["--services", "20", "--endpoints", "2"])
        .args(["--namespaces", "2", "--proxies", "4"])
        .args(["--settle", "0.2", "--patience", "5"])
        .args(args)
        .arg("--json")
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{said}\n(the server is built with `cargo build -p pilotfish`)"
    );
    let figures = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    (text, said, figures)
}
