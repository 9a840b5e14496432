//! HTTP/3 at a gateway. The client is an Envoy that speaks nothing else to it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pilotfish_e2e::backend::{Backend, Identity};
use pilotfish_e2e::case;
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::Options;
use pilotfish_e2e::envoy::{self, Envoy, Protocol};
use pilotfish_e2e::fabric::{HUB, Interception};
use pilotfish_e2e::mesh::Mesh;
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::{Proxy, Role};
use pilotfish_e2e::yaml::{self, Service};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const BOOKS: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 1);
const HOST: &str = "books.example";

const ROUTES: &str = "
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: edge}
spec:
  clusterIP: 10.96.1.1
  selector: {app: ingress}
  ports:
  - {name: https, port: 443, targetPort: 8443}
  - {name: http3, port: 443, targetPort: 8443, protocol: UDP}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: [books.example]
    tls: {mode: SIMPLE, serverCertificate: $RUN/cert.pem, privateKey: $RUN/key.pem}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: books, namespace: shop}
spec:
  hosts: [books.example]
  gateways: [edge/edge]
  http: [{route: [{destination: {host: books.shop.svc.cluster.local, port: {number: 80}}}]}]
";

/// A certificate that is its own authority.
fn certificate(folder: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new([HOST.to_owned()])?.self_signed(&key)?;
    fs::create_dir_all(folder)?;
    fs::write(folder.join("cert.pem"), certificate.pem())?;
    fs::write(folder.join("key.pem"), key.serialize_pem())?;
    Ok(())
}

/// An Envoy at `port` of loopback that passes requests on to the gateway over HTTP/3.
fn client(net: &Net, port: u16, run: &Path, workspace: &Workspace) -> Result<Envoy> {
    let admin: SocketAddr = ([127, 0, 0, 1], net.free_port()?).into();
    let bootstrap = json!({
        "admin": {"address": envoy::socket(admin)},
        "static_resources": {
            "listeners": [{
                "name": "requests",
                "address": envoy::socket(([127, 0, 0, 1], port).into()),
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                        "stat_prefix": "requests",
                        "route_config": {"virtual_hosts": [{
                            "name": "all",
                            "domains": ["*"],
                            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "gateway"}}],
                        }]},
                        "http_filters": [{
                            "name": "envoy.filters.http.router",
                            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
                        }],
                    },
                }]}],
            }],
            "clusters": [{
                "name": "gateway",
                "type": "STATIC",
                "connect_timeout": "5s",
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                        "explicit_http_config": {"http3_protocol_options": {}},
                    },
                },
                "transport_socket": {
                    "name": "envoy.transport_sockets.quic",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.quic.v3.QuicUpstreamTransport",
                        "upstream_tls_context": {
                            "sni": HOST,
                            "common_tls_context": {"validation_context": {
                                "trusted_ca": {"filename": run.join("cert.pem")},
                            }},
                        },
                    },
                },
                "load_assignment": {
                    "cluster_name": "gateway",
                    "endpoints": [{"lb_endpoints": [{"endpoint": {
                        "address": envoy::socket((GATEWAY, 8443).into()),
                    }}]}],
                },
            }],
        },
    });
    let logs = workspace.logs();
    let mut envoy = Envoy::start_with("client", &bootstrap, net, Role::Router, admin, &logs)?;
    let probe = envoy.admin().clone();
    envoy
        .process()
        .wait_for("Envoy ready", Duration::from_secs(10), || {
            probe.get("/ready")
        })?;
    Ok(envoy)
}

fn over_quic(workspace: &Workspace) -> Result<()> {
    let run = workspace.place("run");
    certificate(&run)?;
    let objects = [
        yaml::namespace("edge"),
        yaml::namespace("shop"),
        yaml::gateway_pod("edge", GATEWAY),
        yaml::pod("shop", "books", "v1", BOOKS),
        Service::http("shop", "books", Ipv4Addr::new(10, 96, 1, 2)).with_endpoints(&[BOOKS]),
    ];
    workspace.write("mesh.yaml", &objects.concat())?;
    let routes = ROUTES.replace("$RUN", &run.display().to_string());
    workspace.write("routes.yaml", &routes)?;
    let options = Options {
        environment: [("PILOT_ENABLE_QUIC_LISTENERS".to_owned(), "true".to_owned())].into(),
        ..Options::default()
    };
    let mesh = Mesh::serve_with(workspace, HUB, options)?;
    let name = yaml::pod_name("ingress", GATEWAY);
    let mut proxy = Proxy::router("edge", &name, "ingress", GATEWAY);
    proxy.labels.push(("app".to_owned(), "ingress".to_owned()));
    proxy.local_files = true;
    let gateway = mesh.proxy(&proxy, Protocol::Delta)?;
    let pods = mesh.fabric.pod("backends", &[BOOKS], Interception::None)?;
    let identity = Identity::new("books", "v1", "books-1");
    let _books = Backend::start(&pods, (BOOKS, 9080), identity)?;

    let outside = mesh.outsider(OUTSIDE)?;
    let port = outside.free_port()?;
    let client = client(&outside, port, &run, workspace)?;
    let response = Client::new(&outside, (Ipv4Addr::LOCALHOST, port), HOST).get("/shelf")?;
    ensure!(response.status == 200, "{response:?}");
    ensure!(response.json()["instance"] == "books-1", "{response:?}");
    let told = response.message.header("alt-svc").context("alt-svc")?;
    ensure!(told == "h3=\":443\"; ma=86400", "{told}");
    let over_http3 = client
        .admin()
        .sum("cluster.gateway.upstream_cx_http3_total")?;
    ensure!(over_http3 == 1, "{over_http3} connections over HTTP/3");
    ensure!(gateway.envoy.admin().rejected()? == 0);
    Ok(())
}

#[test]
fn a_gateway_answers_over_quic() {
    case::run(over_quic);
}
