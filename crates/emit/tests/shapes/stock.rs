//! What a stock Envoy is spared.

use pilotfish_ir::listener::{Handler, Side, TcpCodec};
use pilotfish_ir::tls::{CustomTls, MutualTls, SecretSource, UpstreamTls};
use serde_json::{Value, json};

use crate::listeners::{gateway, mesh_server, virtual_inbound};
use crate::support::*;

/// Every `name` beside a `typedConfig`, however deep.
fn extensions(json: &Value, found: &mut Vec<String>) {
    match json {
        Value::Object(fields) => {
            if let (Some(Value::String(name)), true) =
                (fields.get("name"), fields.contains_key("typedConfig"))
            {
                found.push(name.clone());
            }
            fields.values().for_each(|value| extensions(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| extensions(item, found)),
        _ => {}
    }
}

fn file_tls() -> UpstreamTls {
    UpstreamTls::Custom(CustomTls {
        sni: "inner.example".into(),
        subject_alt_names: vec![text("inner.example")],
        certificate: Some(SecretSource::File(text(
            "file-cert:/etc/certs/c.pem~/etc/certs/k.pem",
        ))),
        roots: Some(SecretSource::File(text("file-root:/etc/certs/ca.pem"))),
        ..Default::default()
    })
}

#[test]
fn no_extension_it_does_not_list() {
    let mut mongo = tcp(web(27017), Side::Server);
    mongo.codec = TcpCodec::Mongo;
    let mut mysql = tcp(web(3306), Side::Server);
    mysql.codec = TcpCodec::MySql;
    let chains = vec![
        chain("mongo", Handler::Tcp(mongo)),
        chain("mysql", Handler::Tcp(mysql)),
    ];
    let listeners = [virtual_inbound(), listener("l", "0.0.0.0", 1, chains)];
    let mut cluster = service(web(80));
    cluster.tls = UpstreamTls::AutoMutual(MutualTls::default());
    let mut found = Vec::new();
    for listener in &listeners {
        extensions(
            &body(&pilotfish_emit::listener(listener, &stock())),
            &mut found,
        );
    }
    extensions(
        &body(&pilotfish_emit::cluster(&cluster, &stock())),
        &mut found,
    );
    assert!(found.contains(&"envoy.filters.network.mongo_proxy".to_owned()));
    let unknown: Vec<_> = found
        .iter()
        .filter(|name| !STOCK.contains(&name.as_str()))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn no_mesh_identity() {
    let mut cluster = service(web(80));
    let plain = pilotfish_emit::cluster(&cluster, &stock());
    for tls in [
        UpstreamTls::AutoMutual(MutualTls::default()),
        UpstreamTls::Mutual(MutualTls::default()),
    ] {
        cluster.tls = tls;
        assert_eq!(pilotfish_emit::cluster(&cluster, &stock()), plain);
    }
    let inbound = body(&pilotfish_emit::listener(&virtual_inbound(), &stock()));
    let chains = inbound["filterChains"].as_array().unwrap();
    assert_eq!(chains.len(), 1);
    assert_eq!(chains[0]["name"], "virtualInbound");
}

#[test]
fn a_port_that_only_speaks_mutual_tls_is_closed() {
    let mut secure = chain("secure", Handler::Tcp(tcp(web(80), Side::Server)));
    secure.tls = Some(mesh_server());
    let closed = body(&pilotfish_emit::listener(
        &listener("l", "0.0.0.0", 80, vec![secure]),
        &stock(),
    ));
    let chains = closed["filterChains"].as_array().unwrap();
    assert_eq!(chains.len(), 1);
    assert_eq!(
        chains[0]["filters"][0]["typedConfig"]["cluster"],
        "BlackHoleCluster"
    );
}

#[test]
fn certificates_are_read_from_files() {
    let mut cluster = service(web(443));
    cluster.tls = file_tls();
    let context = |dialect| {
        body(&pilotfish_emit::cluster(&cluster, &dialect))["transportSocket"]["typedConfig"]
            ["commonTlsContext"]
            .take()
    };
    // Nobody said that the files are there, and Envoy refuses what it cannot read: they are left to be delivered.
    let delivered = context(stock());
    assert_eq!(
        delivered["tlsCertificateSdsSecretConfigs"][0]["sdsConfig"],
        json!({"ads": {}, "initialFetchTimeout": "1s", "resourceApiVersion": "V3"})
    );
    let context = context(stock().with_files());
    let name = |kind: &str| json!({"sanType": kind, "matcher": {"exact": "inner.example"}});
    assert_eq!(
        context,
        json!({
            "tlsCertificates": [{
                "certificateChain": {"filename": "/etc/certs/c.pem"},
                "privateKey": {"filename": "/etc/certs/k.pem"},
            }],
            "validationContext": {
                "trustedCa": {"filename": "/etc/certs/ca.pem"},
                "matchTypedSubjectAltNames": [name("DNS"), name("URI")],
            },
            "tlsParams": {"tlsMaximumProtocolVersion": "TLSv1_3", "tlsMinimumProtocolVersion": "TLSv1_2"},
        })
    );
}

#[test]
fn credentials_come_from_the_control_plane() {
    let listener = gateway(
        SecretSource::Credential(text("kubernetes://web-cert")),
        Some(SecretSource::File(text("file-root:system"))),
    );
    let emitted = body(&pilotfish_emit::listener(&listener, &stock()));
    let context = &emitted["filterChains"][0]["transportSocket"]["typedConfig"]["commonTlsContext"];
    assert_eq!(
        context["tlsCertificateSdsSecretConfigs"][0]["sdsConfig"],
        json!({"ads": {}, "initialFetchTimeout": "1s", "resourceApiVersion": "V3"})
    );
    let roots = json!({"trustedCa": {"filename": "/etc/ssl/certs/ca-certificates.crt"}});
    assert_eq!(context["validationContext"], roots);
}

#[test]
fn a_strict_port_does_not_fall_through_to_plain_text() {
    let on = |port, secure: bool| {
        let mut chain = chain("", Handler::Tcp(tcp(web(80), Side::Server)));
        chain.matches.port = port;
        chain.tls = secure.then(mesh_server);
        chain
    };
    let chains = vec![
        on(Some(8080), true),
        on(Some(9090), true),
        on(Some(9090), false),
        on(None, false),
    ];
    let inbound = listener("virtualInbound", "0.0.0.0", 15006, chains);
    let emitted = body(&pilotfish_emit::listener(&inbound, &stock()));
    let served: Vec<_> = emitted["filterChains"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| {
            (
                c["filterChainMatch"]["destinationPort"].as_u64(),
                &c["filters"][0]["typedConfig"]["cluster"],
            )
        })
        .collect();
    let web = json!("outbound|80||web.shop.svc.cluster.local");
    assert_eq!(
        served,
        [
            (Some(9090), &web),
            (None, &web),
            (Some(8080), &json!("BlackHoleCluster"))
        ]
    );
}
