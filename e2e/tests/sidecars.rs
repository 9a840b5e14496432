//! A client reaches a server through both their sidecars, with real interception.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use pilotfish_e2e::backend::{Backend, Identity};
use pilotfish_e2e::case;
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::envoy::Protocol;
use pilotfish_e2e::mesh::{Mesh, Pod};
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::yaml::{self, Service};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
const HTTP: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 1);
const TCP: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 2);
const REQUESTS: u64 = 50;

struct Scene<'a> {
    client: Pod,
    server: Pod,
    _backends: [Backend; 2],
    // Last, so that what stands on it goes first.
    mesh: Mesh<'a>,
}

fn scene(workspace: &Workspace, client: Protocol, server: Protocol) -> Result<Scene<'_>> {
    let objects = [
        yaml::namespace("shop"),
        yaml::pod("shop", "client", "v1", CLIENT),
        yaml::pod("shop", "server", "v1", SERVER),
        Service::http("shop", "server", HTTP).with_endpoints(&[SERVER]),
        Service {
            app: "server",
            protocol: "tcp",
            port: 7000,
            target: 9090,
            ..Service::http("shop", "store", TCP)
        }
        .with_endpoints(&[SERVER]),
    ];
    let mesh = Mesh::start(workspace, &[("mesh.yaml", &objects.concat())])?;
    let name = |app: &str, address| yaml::pod_name(app, address);
    let client = mesh.proxy(
        &Proxy::sidecar("shop", &name("client", CLIENT), "client", CLIENT),
        client,
    )?;
    let server = mesh.proxy(
        &Proxy::sidecar("shop", &name("server", SERVER), "server", SERVER),
        server,
    )?;
    let backends = [
        Backend::start(
            &server.net,
            (SERVER, 9080),
            Identity::new("server", "v1", "http"),
        )?,
        Backend::start(
            &server.net,
            (SERVER, 9090),
            Identity::new("store", "v1", "tcp"),
        )?,
    ];
    Ok(Scene {
        client,
        server,
        _backends: backends,
        mesh,
    })
}

fn http_through_both(workspace: &Workspace, client: Protocol, server: Protocol) -> Result<()> {
    let scene = scene(workspace, client, server)?;
    let mut client = Client::new(&scene.client.net, (HTTP, 80), "server.shop");
    for number in 0..REQUESTS {
        let path = format!("/books/{number}");
        let response = client.get(&path)?;
        ensure!(response.status == 200, "{response:?}");
        let answer = response.json();
        ensure!(
            answer["path"] == path.as_str() && answer["instance"] == "http",
            "{answer}"
        );
        ensure!(
            answer["headers"]["x-request-id"].is_string(),
            "no proxy touched the request: {answer}"
        );
    }
    let (outbound, inbound) = (scene.client.envoy.admin(), scene.server.envoy.admin());
    for (what, counted) in [
        (
            "client: outbound listener",
            outbound.sum("^http\\.outbound_.*downstream_rq_2xx$")?,
        ),
        (
            "client: cluster of the service",
            outbound.sum("^cluster\\.outbound\\|80\\|\\|server\\.shop[^;]*;\\.upstream_rq_2xx$")?,
        ),
        (
            "server: inbound listener",
            inbound.sum("^http\\.inbound_.*downstream_rq_2xx$")?,
        ),
        (
            "server: cluster of the port",
            inbound.sum("^cluster\\.inbound\\|9080\\|\\|;\\.upstream_rq_2xx$")?,
        ),
    ] {
        ensure!(
            counted == REQUESTS,
            "{what}: {counted} of {REQUESTS} requests"
        );
    }
    for (who, admin) in [("client", outbound), ("server", inbound)] {
        ensure!(
            admin.rejected()? == 0,
            "{who} rejected an update: {:?}",
            admin.stats("update_rejected")?
        );
    }
    Ok(())
}

#[test]
fn http_passes_both_sidecars_state_of_the_world() {
    case::run(|workspace| http_through_both(workspace, Protocol::Sotw, Protocol::Sotw));
}

#[test]
fn http_passes_both_sidecars_delta() {
    case::run(|workspace| http_through_both(workspace, Protocol::Delta, Protocol::Delta));
}

#[test]
fn tcp_passes_both_sidecars() {
    case::run(tcp_through_both);
}

fn tcp_through_both(workspace: &Workspace) -> Result<()> {
    let scene = scene(workspace, Protocol::Delta, Protocol::Sotw)?;
    let mut client = Client::new(&scene.client.net, (TCP, 7000), "anything");
    for _ in 0..REQUESTS {
        let response = client.get("/")?;
        ensure!(
            response.status == 200 && response.json()["instance"] == "tcp",
            "{response:?}"
        );
        ensure!(
            response.json()["headers"]["x-request-id"].is_null(),
            "taken for HTTP: {}",
            response.json()
        );
    }
    let (outbound, inbound) = (scene.client.envoy.admin(), scene.server.envoy.admin());
    let left =
        outbound.sum("^cluster\\.outbound\\|7000\\|\\|store\\.shop.*\\.upstream_cx_total$")?;
    let arrived = inbound.sum("^cluster\\.inbound\\|9090\\|\\|.*\\.upstream_cx_total$")?;
    ensure!(
        left == 1 && arrived == 1,
        "{left} connections left through the sidecar, {arrived} arrived through one"
    );
    Ok(())
}

#[test]
fn an_unknown_address_is_passed_through() {
    case::run(passed_through);
}

fn passed_through(workspace: &Workspace) -> Result<()> {
    let scene = scene(workspace, Protocol::Delta, Protocol::Delta)?;
    let address = Ipv4Addr::new(10, 77, 9, 9);
    let outside = scene.mesh.outsider(address)?;
    let _stranger = Backend::start(
        &outside,
        (address, 8888),
        Identity::new("stranger", "v1", "outside"),
    )?;
    let response = Client::new(&scene.client.net, (address, 8888), "stranger.example").get("/")?;
    ensure!(
        response.status == 200 && response.json()["instance"] == "outside",
        "{response:?}"
    );
    Ok(())
}
