//! The benchmark itself, on a small mesh: every proxy is reached in each phase, and the limit comes out.
#![allow(
    clippy::disallowed_methods,
    reason = "a test drives processes and files"
)]

use std::process::Command;

use serde_json::Value;

#[test]
fn a_small_mesh_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("figures.json");
    let output = Command::new(env!("CARGO_BIN_EXE_pilotfish-bench"))
        .args([
            "--services",
            "20",
            "--endpoints",
            "2",
            "--namespaces",
            "2",
            "--proxies",
            "4",
        ])
        .args(["--repeats", "2", "--settle", "0.2", "--patience", "5"])
        .args(["--env", "PILOT_DEBOUNCE_AFTER=20ms", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{said}\n(the server is built with `cargo build -p pilotfish`)"
    );
    assert_eq!(text.matches("times the limit's CPU").count(), 2, "{text}");

    let figures: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let measured = figures["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 2);
    for (mode, one) in ["delta", "sotw"].iter().zip(measured) {
        let ours = &one["ours"];
        assert_eq!(ours["mode"], *mode);
        let phases = ours["phases"].as_array().unwrap();
        let names: Vec<&str> = phases.iter().map(|p| p["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "connect",
                "weight",
                "endpoint",
                "service added",
                "service deleted",
                "DestinationRule",
                "Sidecar added"
            ]
        );
        for phase in phases {
            let expected = if phase["name"] == "Sidecar added" {
                2
            } else {
                4
            };
            assert_eq!(phase["expected"], expected, "{phase:#}");
            assert_eq!(phase["reached"], expected, "{phase:#}\n{said}");
            assert_eq!(phase["reconnects"], 0, "{phase:#}\n{said}");
        }
        // What is touched is what is sent: endpoints for an endpoint, and routes for a weight.
        let sent = |phase: usize, kind: &str| phases[phase]["messages"][kind].as_f64().unwrap();
        let hosts = if *mode == "delta" { "VHDS" } else { "RDS" };
        assert!(sent(1, hosts) >= 4.0, "{:#}", phases[1]);
        assert!(sent(2, "EDS") >= 4.0, "{:#}", phases[2]);
        assert_eq!(phases[2]["messages"]["CDS"], 0.0, "{:#}", phases[2]);
        // The limit sends the very bytes that connecting took.
        let limit = &one["limit"];
        assert_eq!(limit["reached"], 4, "{limit:#}");
        assert_eq!(limit["messages"], phases[0]["messages"]);
        assert_eq!(limit["kilobytes"], phases[0]["kilobytes"]);
    }
}
