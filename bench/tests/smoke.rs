//! The benchmark itself, on a small mesh: every proxy is reached in each phase, and the limit comes out.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test drives processes and files"
)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{BENCH, bench, only};
use serde_json::Value;

#[test]
fn a_peer_is_measured_beside_it_and_compared() {
    let server = Path::new(BENCH).with_file_name("pilotfish");
    let peer = format!(
        "{} serve --config-dir {{dir}} --grpc-addr 127.0.0.1:{{grpc}} --http-addr 127.0.0.1:{{http}} \
         --monitoring-addr 127.0.0.1:{{monitoring}}",
        server.display()
    );
    let (text, _, figures) = bench(&["--mode", "delta", "--repeats", "1", "--peer", &peer]);
    assert!(text.contains("pilotfish as a share of peer"), "{text}");
    let one = &figures["measured"][0];
    let (phases, shares) = (&one["ours"]["phases"], &one["shares"]);
    let connect = (&shares[0]["name"], &shares[0]["sent"]);
    assert_eq!(connect, (&"connect".into(), &1.0.into()), "{shares:#}");
    let of = |all: &Value| all.as_array().map(Vec::len);
    assert_eq!(of(shares), of(phases));
    for share in shares.as_array().unwrap() {
        assert!(share["p99"].as_f64() > Some(0.0), "{share:#}");
    }
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    for (args, why) in [
        (&["--growth", "--peer", "x"][..], "cannot be used with"),
        (&["--peer", "x {dir} {kubeconfig}"], "name one of them"),
        (&["--istiod", "sh"], "PATH is not searched"),
        (&["--server", "sh"], "PATH is not searched"),
    ] {
        let output = Command::new(BENCH).args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{said}");
        assert!(!said.contains("services"), "it was measured: {said}");
    }
}

#[test]
fn a_small_mesh_is_measured() {
    let (text, said, figures) = bench(&["--repeats", "2", "--env", "PILOT_DEBOUNCE_AFTER=20ms"]);
    assert_eq!(text.matches("times the limit's CPU").count(), 2, "{text}");
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
        only(if *mode == "delta" { "VHDS" } else { "RDS" }, &phases[1]);
        only("EDS", &phases[2]);
        // The limit sends the very bytes that connecting took.
        let limit = &one["limit"];
        assert_eq!(limit["reached"], 4, "{limit:#}");
        assert_eq!(limit["messages"], phases[0]["messages"]);
        assert_eq!(limit["kilobytes"], phases[0]["kilobytes"]);
    }
}
