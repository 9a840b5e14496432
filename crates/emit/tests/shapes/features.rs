//! Shapes that only some meshes ask for: HTTP/3 and sessions.

use pilotfish_emit::Dialect;
use pilotfish_ir::cluster::{Discovery, Policy};
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{Handler, Routes, Side};
use pilotfish_ir::route::{Action, Session};
use pilotfish_ir::tls::{DownstreamTls, SecretSource, ServerTls, TlsLimits};
use pilotfish_ir::{Listener, VirtualHost};
use serde_json::{Value, json};

use crate::support::*;

/// A stock proxy with one extension more.
fn stock_with(extension: &str) -> Dialect {
    let mut listed: std::collections::BTreeSet<&str> = STOCK.into();
    listed.insert(extension);
    Dialect::from_extensions(&listed)
}

fn quic(certificate: SecretSource) -> Listener {
    let mut server = http(
        Side::Gateway,
        "outbound_udp_0.0.0.0_8443",
        Routes::Discovered(text("https.443.a.front.edge")),
    );
    server.http3 = true;
    let mut chain = chain("", Handler::Http(Box::new(server)));
    chain.matches.server_names = vec![text("a.example")];
    chain.tls = Some(DownstreamTls::Server(Box::new(ServerTls {
        certificates: vec![certificate],
        clients: None,
        require_client: false,
        alpn: vec![text("h3")],
        limits: TlsLimits::default(),
    })));
    let mut listener = listener("udp_0.0.0.0_8443", "0.0.0.0", 8443, vec![chain]);
    listener.bind = true;
    listener.quic = true;
    listener.additional = vec![Address::Socket(text("::"), 8443)];
    listener
}

fn credential() -> SecretSource {
    SecretSource::Credential(text("kubernetes://a"))
}

#[test]
fn http3() {
    let emitted = body(&pilotfish_emit::listener(&quic(credential()), &istio()));
    let socket = |host: &str| json!({"socketAddress": {"address": host, "portValue": 8443, "protocol": "UDP"}});
    assert_eq!(emitted["address"], socket("0.0.0.0"));
    assert_eq!(
        emitted["additionalAddresses"],
        json!([{"address": socket("::")}])
    );
    assert_eq!(
        emitted["udpListenerConfig"],
        json!({"quicOptions": {}, "downstreamSocketConfig": {}})
    );
    let chain = &emitted["filterChains"][0];
    let socket = &chain["transportSocket"];
    assert_eq!(socket["name"], "envoy.transport_sockets.quic");
    let tls = &socket["typedConfig"]["downstreamTlsContext"];
    assert_eq!(tls["commonTlsContext"]["alpnProtocols"], json!(["h3"]));
    assert_eq!(tls["requireClientCertificate"], false);
    let manager = &chain["filters"][0]["typedConfig"];
    assert_eq!(manager["codecType"], "HTTP3");
    assert_eq!(manager["http3ProtocolOptions"], json!({}));
}

#[test]
fn http3_only_where_it_can_be_spoken() {
    let able = stock_with("envoy.transport_sockets.quic");
    assert!(pilotfish_emit::can_listen(&quic(credential()), &istio()));
    assert!(pilotfish_emit::can_listen(&quic(credential()), &able));
    assert!(!pilotfish_emit::can_listen(&quic(credential()), &stock()));
    // Nobody gives a stock proxy the mesh's certificate.
    assert!(!pilotfish_emit::can_listen(
        &quic(SecretSource::Workload),
        &able
    ));
    let streams = listener("l", "0.0.0.0", 80, Vec::new());
    assert!(pilotfish_emit::can_listen(&streams, &stock()));
}

fn emitted(change: impl FnOnce(&mut VirtualHost), dialect: &Dialect) -> Value {
    let mut host = VirtualHost {
        name: text("web:80"),
        domains: vec![text("web")],
        routes: vec![route(
            "r",
            Action::Respond {
                status: 200,
                body: None,
            },
        )],
        attempt_count: false,
        require_tls: false,
        session: None,
    };
    change(&mut host);
    let table = pilotfish_ir::RouteTable {
        name: text("80"),
        ignore_port: false,
        max_direct_response: None,
    };
    let hosts = [pilotfish_emit::virtual_host(&host, dialect)];
    body(&pilotfish_emit::route_table(&table, &hosts))["virtualHosts"][0].take()
}

#[test]
fn http3_is_announced() {
    let announce = |host: &mut VirtualHost| host.routes[0].http3_port = Some(443);
    let told = emitted(announce, &istio());
    assert_eq!(
        told["routes"][0]["responseHeadersToAdd"],
        json!([{"header": {"key": "alt-svc", "value": "h3=\":443\"; ma=86400"}}])
    );
    let silent = emitted(announce, &stock());
    assert_eq!(silent["routes"][0]["responseHeadersToAdd"], Value::Null);
}

#[test]
fn sessions() {
    let keep = |host: &mut VirtualHost| {
        host.session = Some(Session::Cookie {
            name: text("c"),
            path: text("/p"),
        });
        host.routes[0].session = Some(Session::Header(text("x-session")));
    };
    let kept = |name: &str, state: Value| {
        json!({"envoy.filters.http.stateful_session": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute",
            "statefulSession": {"sessionState": {
                "name": format!("envoy.http.stateful_session.{name}"),
                "typedConfig": state,
            }},
        }})
    };
    let host = emitted(keep, &istio());
    assert_eq!(
        host["typedPerFilterConfig"],
        kept(
            "cookie",
            json!({
                "@type": "type.googleapis.com/envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState",
                "cookie": {"name": "c", "path": "/p"},
            })
        )
    );
    assert_eq!(
        host["routes"][0]["typedPerFilterConfig"],
        kept(
            "header",
            json!({
                "@type": "type.googleapis.com/envoy.extensions.http.stateful_session.header.v3.HeaderBasedSessionState",
                "name": "x-session",
            })
        )
    );
    // A proxy without the filter would reject what is said to it.
    let without = emitted(keep, &stock());
    assert_eq!(without["typedPerFilterConfig"], Value::Null);
    assert_eq!(without["routes"][0]["typedPerFilterConfig"], Value::Null);
}

fn filters(change: impl FnOnce(&mut pilotfish_ir::listener::Http)) -> Vec<String> {
    let mut client = http(Side::Client, "x", Routes::Discovered(text("80")));
    change(&mut client);
    let listener = listener(
        "l",
        "0.0.0.0",
        80,
        vec![chain("", Handler::Http(Box::new(client)))],
    );
    let json = body(&pilotfish_emit::listener(&listener, &istio()));
    let filters = &json["filterChains"][0]["filters"][0]["typedConfig"]["httpFilters"];
    let names = filters.as_array().unwrap().iter();
    names
        .map(|f| f["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn filters_that_are_asked_for() {
    let usual = filters(|_| {});
    let with = filters(|http| http.sessions = true);
    let at = with
        .iter()
        .position(|n| n == "envoy.filters.http.stateful_session");
    // After what counts, before what sends on.
    assert_eq!(at, Some(usual.len() - 1));
    assert!(usual.contains(&"istio.alpn".to_owned()));
    assert!(!filters(|http| http.mesh_alpn = false).contains(&"istio.alpn".to_owned()));
    assert_eq!(usual[0], "istio.metadata_exchange");
    assert_ne!(filters(|http| http.peers = false)[0], usual[0]);
}

#[test]
fn sessions_outlive_readiness() {
    let mut kept = cluster(web(80), Discovery::Eds, Policy::LeastRequest);
    let json = body(&pilotfish_emit::cluster(&kept, &istio()));
    assert_eq!(json["commonLbConfig"]["overrideHostStatus"], Value::Null);
    kept.balancing.sessions = true;
    let json = body(&pilotfish_emit::cluster(&kept, &istio()));
    assert_eq!(
        json["commonLbConfig"]["overrideHostStatus"],
        json!({"statuses": ["HEALTHY", "DRAINING", "UNKNOWN", "DEGRADED"]})
    );
}
