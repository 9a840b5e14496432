//! The benchmark on a real API server, which `scripts/fetch-kube` builds: what only reads clusters is measured beside ours.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test drives processes and files"
)]

mod common;

use std::env;
use std::io::{self, Write as _};
use std::path::Path;

use common::{BENCH, bench, only};

#[test]
fn who_reads_only_clusters_is_measured_on_one_and_so_are_we() {
    if env::var_os("PILOTFISH_E2E").is_some_and(|value| value == "skip") {
        // Not by eprintln, which is kept from whoever runs tests that pass.
        writeln!(io::stderr(), "skipped, because PILOTFISH_E2E=skip is set").unwrap();
        return;
    }
    let server = Path::new(BENCH).with_file_name("pilotfish");
    let peer = format!(
        "{} serve --kubeconfig {{kubeconfig}} --grpc-addr 127.0.0.1:{{grpc}} --http-addr 127.0.0.1:{{http}} \
         --monitoring-addr 127.0.0.1:{{monitoring}}",
        server.display()
    );
    let (text, said, figures) = bench(&["--mode", "delta", "--repeats", "2", "--peer", &peer]);
    assert!(text.contains("pilotfish as a share of peer"), "{text}");
    assert_eq!(said.matches("  a cluster\n").count(), 2, "{said}");
    let one = &figures["measured"][0];
    for who in ["ours", "peer"] {
        let phases = one[who]["phases"].as_array().unwrap();
        assert_eq!(phases.len(), 7, "{phases:#?}");
        for phase in phases {
            assert_eq!(phase["reached"], phase["expected"], "{who}: {phase:#}");
        }
        only("VHDS", &phases[1]);
        only("EDS", &phases[2]);
        let sent = |phase: usize, kind: &str| phases[phase]["messages"][kind].as_f64().unwrap();
        assert!(sent(4, "CDS") >= 4.0, "removed: {who}: {:#}", phases[4]);
    }
    let connect = (&one["shares"][0]["name"], &one["shares"][0]["sent"]);
    assert_eq!(connect, (&"connect".into(), &1.0.into()));
}
