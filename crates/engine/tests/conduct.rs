//! What the mesh's settings, a proxy's own configuration, policies and Sidecar objects make of listeners and clusters.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::bench::{Bench, settings};
use common::proxies;
use pilotfish_mesh::Settings;
use pilotfish_protos::json::any_to_json;
use pilotfish_xds::TypeUrl;
use serde_json::{Value, json};

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.2
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9000, targetPort: 9000}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, security.istio.io/tlsMode: istio}}
spec: {containers: [{name: c}]}
status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-s, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]
endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: web-1, namespace: shop}}]
";

const WEB_HTTP: &str = "outbound|80||web.shop.svc.cluster.local";
const MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// One proxy, the pod of the service unless its address says otherwise.
fn bench(settings: Settings, kind: &str, address: &str, metadata: &Value) -> Bench {
    let facts = proxies::facts(&proxies::node(kind, address, "shop", metadata));
    let mut bench = Bench::with(settings, vec![("proxy", facts)]);
    bench.write(WEB);
    bench
}

fn sidecar(metadata: &Value) -> Bench {
    let mut all = json!({"LABELS": {"app": "web"}, "CLUSTER_ID": "Kubernetes"});
    all.as_object_mut()
        .unwrap()
        .extend(metadata.as_object().unwrap().clone());
    bench(settings(false), "sidecar", "10.0.0.1", &all)
}

fn find(bench: &mut Bench, type_url: &TypeUrl, name: &str) -> Option<Value> {
    let view = bench.ask(0, type_url);
    let resource = view.get(name)?;
    let (type_url, body) = resource.parts();
    Some(any_to_json(&type_url, &body).unwrap())
}

fn listener(bench: &mut Bench, name: &str) -> Value {
    find(bench, &TypeUrl::Listener, name).unwrap_or_else(|| panic!("no listener {name}"))
}

fn cluster(bench: &mut Bench, name: &str) -> Value {
    find(bench, &TypeUrl::Cluster, name).unwrap_or_else(|| panic!("no cluster {name}"))
}

/// The filter of that name in the first chain that has it.
fn filter(listener: &Value, name: &str) -> Value {
    let chains = listener["filterChains"].as_array().unwrap();
    let mut filters = chains.iter().flat_map(|c| c["filters"].as_array().unwrap());
    let found = filters.find(|f| f["name"] == name);
    found.map_or(Value::Null, |f| f["typedConfig"].clone())
}

#[test]
fn a_proxy_brings_its_own_configuration() {
    let mut plain = sidecar(&json!({}));
    plain.set_mesh("defaultConfig: {proxyHeaders: {server: {value: mine}}}");
    let inbound = listener(&mut plain, "virtualInbound");
    assert_eq!(filter(&inbound, MANAGER)["serverName"], "mine");

    let own = json!({"PROXY_CONFIG": {
        "proxyHeaders": {"attemptCount": {"disabled": true}, "forwardedClientCert": "SANITIZE_SET"},
        "tracing": {"sampling": 12.5},
    }});
    let mut own = sidecar(&own);
    own.set_mesh("defaultConfig: {proxyHeaders: {server: {value: mine}}}");
    let inbound = filter(&listener(&mut own, "virtualInbound"), MANAGER);
    assert_eq!(
        inbound["serverName"], "istio-envoy",
        "the mesh's default is not asked"
    );
    assert_eq!(inbound["forwardClientCertDetails"], "SANITIZE_SET");
    assert_eq!(inbound["tracing"]["randomSampling"]["value"], 12.5);
    let routes = find(&mut own, &TypeUrl::Route, "80").unwrap();
    for host in routes["virtualHosts"].as_array().unwrap() {
        assert_eq!(host.get("includeRequestAttemptCount"), None, "{host}");
    }
    own.set_mesh("enableTracing: false");
    let inbound = filter(&listener(&mut own, "virtualInbound"), MANAGER);
    assert_eq!(inbound.get("tracing"), None);
}

#[test]
fn a_broken_configuration_is_refused() {
    let node = proxies::node(
        "sidecar",
        "10.0.0.1",
        "shop",
        &json!({"PROXY_CONFIG": {"drainDuration": []}}),
    );
    let any = pilotfish_protos::json::from_json("envoy.config.core.v3.Node", &node).unwrap();
    let node = prost::Message::decode(any.value).unwrap();
    let error = pilotfish_engine::ProxyFacts::from_node(&node).unwrap_err();
    assert!(error.to_string().contains("PROXY_CONFIG"), "{error}");
}

#[test]
fn headers_keep_their_case_upstream_too() {
    let mut bench =
        sidecar(&json!({"PROXY_CONFIG": {"proxyHeaders": {"preserveHttp1HeaderCase": true}}}));
    bench.set_mesh("h2UpgradePolicy: UPGRADE");
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let c = cluster(&mut bench, WEB_HTTP);
    let explicit = &c["typedExtensionProtocolOptions"][options]["explicitHttpConfig"];
    assert!(explicit.get("httpProtocolOptions").is_some(), "{explicit}");
    let c = cluster(&mut bench, "inbound|9000||");
    assert_eq!(c.get("typedExtensionProtocolOptions"), None, "no HTTP");
}

#[test]
fn the_mesh_names_statistics() {
    let mut bench = sidecar(&json!({}));
    bench.set_mesh(
        "inboundClusterStatName: '%SERVICE%_%SERVICE_PORT%_%TARGET_PORT%'\noutboundClusterStatName: '%SERVICE_NAME%_%SERVICE_PORT_NAME%'",
    );
    assert_eq!(cluster(&mut bench, WEB_HTTP)["altStatName"], "web_http;");
    let inbound = cluster(&mut bench, "inbound|8080||");
    assert_eq!(inbound["altStatName"], "web.shop_80_8080;");
    let out = listener(&mut bench, "10.96.0.2_9000");
    let tcp = filter(&out, "envoy.filters.network.tcp_proxy");
    assert_eq!(tcp["statPrefix"], "web_", "the listener knows no port name");
}

#[test]
fn connections_time_out_as_the_proxy_says() {
    let mut bench = sidecar(&json!({"IDLE_TIMEOUT": "20s", "HTTP10": "1"}));
    let inbound = listener(&mut bench, "virtualInbound");
    let manager = filter(&inbound, MANAGER);
    assert_eq!(manager["commonHttpProtocolOptions"]["idleTimeout"], "20s");
    assert_eq!(manager["httpProtocolOptions"]["acceptHttp10"], true);
    let out = listener(&mut bench, "10.96.0.2_9000");
    let tcp = filter(&out, "envoy.filters.network.tcp_proxy");
    assert_eq!(tcp["idleTimeout"], "20s");
}

#[test]
fn the_edge_has_a_profile_of_its_own() {
    let settings = json!({"PROXY_CONFIG": {"connectionSettings": {"profile": "EDGE", "httpIdleTimeout": "9s"}}});
    let mut on_sidecar = sidecar(&settings);
    let inbound = filter(&listener(&mut on_sidecar, "virtualInbound"), MANAGER);
    assert_eq!(
        inbound["commonHttpProtocolOptions"],
        json!({"idleTimeout": "9s"})
    );
    assert_eq!(inbound.get("http2ProtocolOptions"), None);

    let mut all = settings;
    all["LABELS"] = json!({"app": "edge"});
    let mut edge = bench(common::bench::settings(false), "router", "10.0.0.9", &all);
    edge.write(
        "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: shop}
spec:
  selector: {app: edge}
  servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}]
",
    );
    let l = listener(&mut edge, "0.0.0.0_8080");
    assert_eq!(l["perConnectionBufferLimitBytes"], 32768);
    let manager = filter(&l, MANAGER);
    assert_eq!(manager["http2ProtocolOptions"]["maxConcurrentStreams"], 100);
    assert_eq!(manager["mergeSlashes"], true);
}

/// Names and matches of chains for one port.
fn chains(inbound: &Value, port: u16) -> Vec<(bool, bool)> {
    let all = inbound["filterChains"].as_array().unwrap();
    all.iter()
        .filter(|c| c["filterChainMatch"]["destinationPort"] == port)
        .map(|c| {
            let tls = c["filterChainMatch"]["transportProtocol"] == "tls";
            (tls, c.get("transportSocket").is_some())
        })
        .collect()
}

#[test]
fn policies_decide_what_ports_take() {
    let mut bench = sidecar(&json!({}));
    let permissive = [(true, true), (false, false)];
    assert_eq!(
        chains(&listener(&mut bench, "virtualInbound"), 8080),
        permissive
    );
    bench.write(
        "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  mtls: {mode: STRICT}
  portLevelMtls: {9000: {mode: DISABLE}, 7000: {mode: PERMISSIVE}}
",
    );
    let inbound = listener(&mut bench, "virtualInbound");
    assert_eq!(chains(&inbound, 8080), [(true, true)]);
    assert_eq!(chains(&inbound, 9000), [(false, false)]);
    assert_eq!(
        chains(&inbound, 7000).len(),
        5,
        "nobody serves it, yet it takes both"
    );
    let marked = |bench: &mut Bench, name: &str| {
        let set = find(bench, &TypeUrl::Endpoints, name).unwrap();
        let endpoint = &set["endpoints"][0]["lbEndpoints"][0];
        endpoint["metadata"]["filterMetadata"]
            .get("envoy.transport_socket_match")
            .is_some()
    };
    assert!(marked(&mut bench, WEB_HTTP));
    assert!(!marked(
        &mut bench,
        "outbound|9000||web.shop.svc.cluster.local"
    ));
}

#[test]
fn a_namespace_without_mutual_tls_is_not_tried() {
    let mut bench = sidecar(&json!({}));
    assert!(
        cluster(&mut bench, WEB_HTTP)
            .get("transportSocketMatches")
            .is_some()
    );
    bench.write(
        "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: shop}
spec: {mtls: {mode: DISABLE}}
",
    );
    assert_eq!(
        cluster(&mut bench, WEB_HTTP).get("transportSocketMatches"),
        None
    );
}

#[test]
fn the_application_may_use_the_proxy_as_one() {
    let mut bench = sidecar(&json!({}));
    bench.set_mesh("proxyHttpPort: 15007");
    let l = listener(&mut bench, "127.0.0.1_15007");
    let manager = filter(&l, MANAGER);
    assert_eq!(manager["rds"]["routeConfigName"], "http_proxy");
    assert_eq!(manager["httpProtocolOptions"]["allowAbsoluteUrl"], true);
    let table = find(&mut bench, &TypeUrl::Route, "http_proxy").unwrap();
    let names: Vec<&Value> = table["virtualHosts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|h| &h["name"])
        .collect();
    assert!(
        names.contains(&&json!("web.shop.svc.cluster.local:80")),
        "{names:?}"
    );
    let hosts = table["virtualHosts"].as_array().unwrap();
    let web = hosts
        .iter()
        .find(|h| h["name"] == "web.shop.svc.cluster.local:80");
    let domains = web.unwrap()["domains"].as_array().unwrap();
    assert!(domains.contains(&json!("web:80")), "{domains:?}");
    assert!(domains.contains(&json!("web")), "{domains:?}");
}

#[test]
fn hosts_nobody_declared_may_be_resolved() {
    let mut bench = sidecar(&json!({}));
    bench.set_mesh("outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS}");
    let c = cluster(&mut bench, "AllowAnyDynamicDNSCluster");
    let cache = &c["clusterType"]["typedConfig"]["dnsCacheConfig"];
    assert_eq!(cache["name"], "allow_any_dfp_dns_cache");
    let out = listener(&mut bench, "virtualOutbound");
    let manager = filter(&out, MANAGER);
    let host = &manager["routeConfig"]["virtualHosts"][0];
    assert_eq!(
        host["routes"][0]["route"]["cluster"],
        "AllowAnyDynamicDNSCluster"
    );
}

#[test]
fn the_application_may_be_reached_on_the_loopback_address() {
    let mut bench = sidecar(&json!({}));
    bench.set_mesh("inboundTrafficPolicy: {mode: LOCALHOST}");
    let c = cluster(&mut bench, "inbound|8080||");
    assert_eq!(c["type"], "STATIC");
    assert_eq!(c.get("upstreamBindConfig"), None);
}

#[test]
fn other_networks_are_reached_through_their_gateways() {
    let far = |network: &str| {
        let meta =
            json!({"LABELS": {"app": "client"}, "NETWORK": network, "CLUSTER_ID": "Kubernetes"});
        let mut bench = bench(settings(false), "sidecar", "10.0.0.7", &meta);
        bench.set_networks(
            "
networks:
  near: {endpoints: [{fromRegistry: Kubernetes}], gateways: [{address: 192.0.2.1, port: 15443}, {address: 192.0.2.2, port: 15443}]}
  far: {endpoints: [{fromCidr: 10.9.0.0/16}], gateways: [{address: 192.0.2.9, port: 15443}]}
",
        );
        let set = find(&mut bench, &TypeUrl::Endpoints, WEB_HTTP).unwrap();
        let all = set["endpoints"][0]["lbEndpoints"].as_array().unwrap();
        all.iter()
            .map(|e| {
                let socket = &e["endpoint"]["address"]["socketAddress"];
                (
                    socket["address"].as_str().unwrap().to_owned(),
                    e["loadBalancingWeight"].as_u64().unwrap(),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(far("near"), [("10.0.0.1".to_owned(), 2)]);
    let gateways = [("192.0.2.1".to_owned(), 1), ("192.0.2.2".to_owned(), 1)];
    assert_eq!(far("far"), gateways);
}

#[test]
fn a_sidecar_sees_what_its_rules_lead_to() {
    let mut bench = sidecar(&json!({}));
    bench.write(
        "
apiVersion: v1
kind: Service
metadata: {name: bank, namespace: pay}
spec: {clusterIP: 10.96.0.3, ports: [{name: http, port: 80}, {name: https, port: 443}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: narrow, namespace: shop}
spec: {egress: [{hosts: ['./*']}]}
",
    );
    let bank = "outbound|80||bank.pay.svc.cluster.local";
    assert_eq!(find(&mut bench, &TypeUrl::Cluster, bank), None);
    bench.write(
        "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web]
  http: [{route: [{destination: {host: bank.pay.svc.cluster.local, port: {number: 80}}}]}]
",
    );
    assert!(find(&mut bench, &TypeUrl::Cluster, bank).is_some());
    let other = "outbound|443||bank.pay.svc.cluster.local";
    assert_eq!(find(&mut bench, &TypeUrl::Cluster, other), None);
    bench.write(
        "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: narrow, namespace: shop}
spec: {egress: [{hosts: ['*/*', '~shop/web.shop.svc.cluster.local']}]}
",
    );
    assert!(find(&mut bench, &TypeUrl::Cluster, other).is_some());
    assert_eq!(find(&mut bench, &TypeUrl::Cluster, WEB_HTTP), None);
}

#[test]
fn namespaces_that_are_not_selected_do_not_exist() {
    let mut bench = sidecar(&json!({}));
    bench.set_mesh("discoverySelectors: [{matchLabels: {mesh: 'yes'}}]");
    assert_eq!(find(&mut bench, &TypeUrl::Cluster, WEB_HTTP), None);
    bench.write("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {mesh: 'yes'}}}");
    assert!(find(&mut bench, &TypeUrl::Cluster, WEB_HTTP).is_some());
    bench.set_mesh("{}");
    assert!(find(&mut bench, &TypeUrl::Cluster, WEB_HTTP).is_some());
}

#[test]
fn ingress_listeners_may_terminate_tls() {
    let mut told = settings(false);
    told.features
        .insert("ENABLE_TLS_ON_SIDECAR_INGRESS".into(), "true".into());
    let meta = json!({"LABELS": {"app": "web"}, "CLUSTER_ID": "Kubernetes"});
    let mut bench = bench(told, "sidecar", "10.0.0.1", &meta);
    bench.write(
        "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - port: {number: 8443, name: https, protocol: HTTPS}
    defaultEndpoint: 127.0.0.1:8080
    tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  portLevelMtls: {8443: {mode: DISABLE}}
",
    );
    let inbound = listener(&mut bench, "virtualInbound");
    assert_eq!(chains(&inbound, 8443), [(true, true)]);
    let c = cluster(&mut bench, "inbound|8443||");
    assert_eq!(c["type"], "STATIC");
}
