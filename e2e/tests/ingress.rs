//! An ingress gateway: the host decides which service answers.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use pilotfish_e2e::backend::{Backend, Identity};
use pilotfish_e2e::case;
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::envoy::Protocol;
use pilotfish_e2e::fabric::Interception;
use pilotfish_e2e::mesh::Mesh;
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::yaml::{self, Service};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const BOOKS: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
const MUSIC: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 3);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 1);

const ROUTES: &str = "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {istio: ingress}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [books.example, music.example]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: books, namespace: shop}
spec:
  hosts: [books.example]
  gateways: [edge/edge]
  http: [{route: [{destination: {host: books.shop.svc.cluster.local, port: {number: 80}}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: music, namespace: shop}
spec:
  hosts: [music.example]
  gateways: [edge/edge]
  http: [{route: [{destination: {host: music.shop.svc.cluster.local, port: {number: 80}}}]}]
";

fn routes_by_host(workspace: &Workspace, protocol: Protocol) -> Result<()> {
    let objects = [
        yaml::namespace("edge"),
        yaml::namespace("shop"),
        yaml::gateway_pod("edge", GATEWAY),
        Service {
            target: 8080,
            ..Service::http("edge", "ingress", Ipv4Addr::new(10, 96, 1, 1))
        }
        .with_endpoints(&[GATEWAY]),
        yaml::pod("shop", "books", "v1", BOOKS),
        Service::http("shop", "books", Ipv4Addr::new(10, 96, 1, 2)).with_endpoints(&[BOOKS]),
        yaml::pod("shop", "music", "v1", MUSIC),
        Service::http("shop", "music", Ipv4Addr::new(10, 96, 1, 3)).with_endpoints(&[MUSIC]),
    ];
    let mesh = Mesh::start(
        workspace,
        &[("mesh.yaml", &objects.concat()), ("routes.yaml", ROUTES)],
    )?;
    let mut proxy = Proxy::router(
        "edge",
        &yaml::pod_name("ingress", GATEWAY),
        "ingress",
        GATEWAY,
    );
    proxy.labels.push(("app".to_owned(), "ingress".to_owned()));
    let gateway = mesh.proxy(&proxy, protocol)?;
    let pods = mesh
        .fabric
        .pod("backends", &[BOOKS, MUSIC], Interception::None)?;
    let _books = Backend::start(
        &pods,
        (BOOKS, 9080),
        Identity::new("books", "v1", "books-1"),
    )?;
    let _music = Backend::start(
        &pods,
        (MUSIC, 9080),
        Identity::new("music", "v1", "music-1"),
    )?;

    let outside = mesh.outsider(OUTSIDE)?;
    for (host, wanted) in [("books.example", "books-1"), ("music.example", "music-1")] {
        let mut client = Client::new(&outside, (GATEWAY, 8080), host);
        for _ in 0..20 {
            let response = client.get("/shelf")?;
            ensure!(response.status == 200, "{host}: {response:?}");
            ensure!(
                response.json()["instance"] == wanted,
                "{host}: {}",
                response.json()
            );
        }
    }
    let unknown = Client::new(&outside, (GATEWAY, 8080), "unknown.example").get("/")?;
    ensure!(
        unknown.status == 404,
        "an unknown host gets {}",
        unknown.status
    );
    ensure!(gateway.envoy.admin().rejected()? == 0);
    Ok(())
}

#[test]
fn the_host_decides_state_of_the_world() {
    case::run(|workspace| routes_by_host(workspace, Protocol::Sotw));
}

#[test]
fn the_host_decides_delta() {
    case::run(|workspace| routes_by_host(workspace, Protocol::Delta));
}
