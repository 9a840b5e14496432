//! The control plane may go away: proxies keep serving, come back to it, and take what changed meanwhile.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pilotfish_e2e::backend::{Backend, Identity};
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::envoy::Protocol;
use pilotfish_e2e::fabric::Interception;
use pilotfish_e2e::load::Load;
use pilotfish_e2e::mesh::{Mesh, Pod};
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::yaml::{self, Service};
use pilotfish_e2e::{case, wait};

const CLIENTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 1, 1), Ipv4Addr::new(10, 77, 1, 2)];
const SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 2, 1), Ipv4Addr::new(10, 77, 2, 2)];
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 1);
const OUTAGE: Duration = Duration::from_secs(2);

#[test]
fn proxies_keep_serving_and_come_back() {
    case::run(serving_and_back);
}

fn serving_and_back(workspace: &Workspace) -> Result<()> {
    let service = Service::http("shop", "server", SERVICE);
    let objects = [
        yaml::namespace("shop"),
        service.object(),
        yaml::pod("shop", "server", "v1", SERVERS[0]),
        yaml::pod("shop", "server", "v2", SERVERS[1]),
        yaml::pod("shop", "client", "v1", CLIENTS[0]),
        yaml::pod("shop", "client", "v1", CLIENTS[1]),
    ];
    let endpoints = |addresses| service.endpoints(addresses);
    let mut mesh = Mesh::start(
        workspace,
        &[
            ("mesh.yaml", &objects.concat()),
            ("endpoints.yaml", &endpoints(&SERVERS[..1])),
        ],
    )?;
    let servers = mesh.fabric.pod("servers", &SERVERS, Interception::None)?;
    let _first = Backend::start(
        &servers,
        (SERVERS[0], 9080),
        Identity::new("server", "v1", "first"),
    )?;
    let _second = Backend::start(
        &servers,
        (SERVERS[1], 9080),
        Identity::new("server", "v2", "second"),
    )?;
    let sidecar = |address, protocol| {
        mesh.proxy(
            &Proxy::sidecar(
                "shop",
                &yaml::pod_name("client", address),
                "client",
                address,
            ),
            protocol,
        )
    };
    let pods = [
        sidecar(CLIENTS[0], Protocol::Sotw)?,
        sidecar(CLIENTS[1], Protocol::Delta)?,
    ];
    let clients = pods
        .iter()
        .map(|pod| Client::new(&pod.net, (SERVICE, 80), "server.shop"))
        .collect();
    let load = Load::start(clients, "/", Duration::from_millis(5), |answer| answer);

    mesh.control.stop()?;
    for pod in &pods {
        wait::until("the proxy notices", Duration::from_secs(5), || {
            connected(pod, 0)
        })?;
    }
    let before = load.report().answered;
    std::thread::sleep(OUTAGE);
    let during = load.report().answered - before;
    ensure!(
        during > 100,
        "only {during} answers in {OUTAGE:?} without a control plane"
    );

    // While it was away the service moved.
    mesh.workspace
        .write("endpoints.yaml", &endpoints(&SERVERS[1..]))?;
    let restarted = Instant::now();
    mesh.control.start_again()?;
    for pod in &pods {
        wait::until("the proxy comes back", Duration::from_secs(20), || {
            connected(pod, 1)
        })?;
    }
    let back = restarted.elapsed();
    wait::until("traffic follows", Duration::from_secs(20), || {
        let share = load.share("v2", 100, restarted);
        ensure!(share == Some(1.0), "share of v2 is {share:?}");
        Ok(())
    })?;
    for pod in &pods {
        ensure!(pod.envoy.admin().rejected()? == 0);
    }
    let report = load.report();
    ensure!(
        report.failed == 0,
        "{} of {} failed: {:?}",
        report.failed,
        report.answered,
        report.failures
    );
    eprintln!(
        "{during} answers while the control plane was away, all {} fine; connected again {back:?} after its start",
        report.answered
    );
    Ok(())
}

fn connected(pod: &Pod, wanted: u64) -> Result<()> {
    let state = pod.envoy.admin().sum("control_plane.connected_state$")?;
    ensure!(state == wanted, "connected: {state}");
    Ok(())
}
