//! The harness itself, without a control plane: do the namespaces, the iptables rules, Envoy, backend and client work?
//! If this fails, no other end-to-end test says anything about Pilotfish.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use pilotfish_e2e::backend::{Backend, Identity};
use pilotfish_e2e::case;
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::envoy::{Envoy, socket};
use pilotfish_e2e::fabric::{Fabric, Interception};
use pilotfish_e2e::intercept::{INBOUND_PORT, OUTBOUND_PORT};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::Role;
use serde_json::{Value, json};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
const PORT: u16 = 9080;

#[test]
fn a_connection_passes_both_sidecars_of_a_static_configuration() {
    case::run(passes_both);
}

fn passes_both(workspace: &Workspace) -> Result<()> {
    let fabric = Fabric::new()?;
    let client = fabric.pod("client", &[CLIENT], Interception::Redirect)?;
    let server = fabric.pod("server", &[SERVER], Interception::Redirect)?;
    let backend = Backend::start(
        &server,
        (SERVER, PORT),
        Identity::new("server", "v1", "server-1"),
    )?;
    let outbound = forwarder("client", &client, OUTBOUND_PORT, None, workspace)?;
    let inbound = forwarder(
        "server",
        &server,
        INBOUND_PORT,
        Some("127.0.0.6"),
        workspace,
    )?;

    let mut requests = Client::new(&client, (SERVER, PORT), "server");
    for number in 0..20 {
        let response = requests.get(&format!("/{number}"))?;
        ensure!(response.status == 200, "{response:?}");
        ensure!(
            response.json()["path"] == format!("/{number}"),
            "{response:?}"
        );
        ensure!(response.json()["instance"] == "server-1", "{response:?}");
    }
    ensure!(
        requests.connections() == 1,
        "the connection was not kept: {}",
        requests.connections()
    );
    ensure!(backend.requests() == 20);
    for (name, envoy) in [("outbound", outbound), ("inbound", inbound)] {
        let passed = envoy.admin().sum("tcp.forward.downstream_cx_total")?;
        ensure!(
            passed == 1,
            "{passed} connections passed the {name} sidecar"
        );
    }
    Ok(())
}

/// An Envoy that sends every intercepted connection on to where it was going.
fn forwarder(
    name: &str,
    net: &Net,
    port: u16,
    source: Option<&str>,
    workspace: &Workspace,
) -> Result<Envoy> {
    let admin = SocketAddr::from(([127, 0, 0, 1], 15000));
    let bind: Value = source.map_or(
        json!({}),
        |address| json!({"source_address": {"address": address, "port_value": 0}}),
    );
    let bootstrap = json!({
        "admin": {"address": socket(admin)},
        "static_resources": {
            "listeners": [{
                "name": "intercepted",
                "address": socket((Ipv4Addr::UNSPECIFIED, port).into()),
                "listener_filters": [{
                    "name": "envoy.filters.listener.original_dst",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst",
                    },
                }],
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.tcp_proxy",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                        "stat_prefix": "forward",
                        "cluster": "original",
                    },
                }]}],
            }],
            "clusters": [{
                "name": "original",
                "type": "ORIGINAL_DST",
                "lb_policy": "CLUSTER_PROVIDED",
                "connect_timeout": "1s",
                "upstream_bind_config": bind,
            }],
        },
    });
    let mut envoy = Envoy::start_with(
        name,
        &bootstrap,
        net,
        Role::Sidecar,
        admin,
        &workspace.logs(),
    )?;
    let probe = envoy.admin().clone();
    envoy
        .process()
        .wait_for("Envoy ready", Duration::from_secs(10), || {
            probe.get("/ready")
        })?;
    Ok(envoy)
}
