//! Values to start from, and parts of expected JSON that recur.

use pilotfish_emit::{Dialect, Encoded};
use pilotfish_ir::cluster::{
    Balancing, ConnectionPool, Discovery, Places, Policy, ServiceRef, UpstreamHttp,
};
use pilotfish_ir::endpoint::{Address, Endpoint, EndpointGroup, Health, Locality};
use pilotfish_ir::listener::{
    Chain, ChainMatch, ClientCert, Direction, EscapedSlashes, Handler, Headers, Http, HttpLimits,
    Inspect, Routes, Side, Tcp, TcpCodec, Tracing,
};
use pilotfish_ir::route::{
    Action, Forward, HeaderOps, Retries, Route, RouteMatch, WeightedCluster,
};
use pilotfish_ir::tls::UpstreamTls;
use pilotfish_ir::{Cluster, ClusterName, EndpointSet, Listener, Millis, Text};
use prost::Message as _;
use serde_json::{Value, json};

pub(crate) fn istio() -> Dialect {
    Dialect::istio("1.31.0")
}

/// The extensions of Envoy 1.40 that matter here.
pub(crate) fn stock() -> Dialect {
    Dialect::from_extensions(&STOCK.into())
}

pub(crate) const STOCK: [&str; 24] = [
    "envoy.clusters.dynamic_forward_proxy",
    "envoy.filters.http.cors",
    "envoy.filters.http.dynamic_forward_proxy",
    "envoy.filters.http.fault",
    "envoy.filters.http.grpc_stats",
    "envoy.filters.http.grpc_web",
    "envoy.filters.http.router",
    "envoy.filters.listener.http_inspector",
    "envoy.filters.listener.original_dst",
    "envoy.filters.listener.original_src",
    "envoy.filters.listener.proxy_protocol",
    "envoy.filters.listener.tls_inspector",
    "envoy.filters.network.http_connection_manager",
    "envoy.filters.network.mongo_proxy",
    "envoy.filters.network.redis_proxy",
    "envoy.filters.network.sni_dynamic_forward_proxy",
    "envoy.filters.network.tcp_proxy",
    "envoy.network.dns_resolver.cares",
    "envoy.request_id.uuid",
    "envoy.retry_host_predicates.previous_hosts",
    "envoy.retry_priorities.previous_priorities",
    "envoy.transport_sockets.raw_buffer",
    "envoy.transport_sockets.tls",
    "envoy.upstreams.http.http_protocol_options",
];

/// JSON of a resource, without `@type`.
pub(crate) fn body(resource: &Encoded) -> Value {
    let mut json = typed(resource);
    json.as_object_mut().unwrap().remove("@type");
    json
}

pub(crate) fn typed(resource: &Encoded) -> Value {
    let any = pilotfish_protos::google::protobuf::Any::decode(resource.any.clone()).unwrap();
    pilotfish_protos::json::any_to_json(&any.type_url, &any.value).unwrap()
}

/// Sets the fields of an object.
pub(crate) fn with(mut base: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else {
        panic!("fields are an object")
    };
    base.as_object_mut().unwrap().extend(fields);
    base
}

/// Removes fields of an object.
pub(crate) fn without(mut base: Value, fields: &[&str]) -> Value {
    for field in fields {
        base.as_object_mut()
            .unwrap()
            .remove(*field)
            .expect("the field was there");
    }
    base
}

pub(crate) fn text(s: &str) -> Text {
    s.into()
}

pub(crate) fn web(port: u16) -> ClusterName {
    subset(port, "")
}

pub(crate) fn subset(port: u16, subset: &str) -> ClusterName {
    ClusterName::Outbound {
        port,
        subset: subset.into(),
        host: "web.shop.svc.cluster.local".into(),
    }
}

/// A cluster with nothing but defaults.
pub(crate) fn cluster(name: ClusterName, discovery: Discovery, policy: Policy) -> Cluster {
    Cluster {
        name,
        services: Vec::new(),
        external: false,
        rule: None,
        subset: None,
        discovery,
        balancing: Balancing {
            policy,
            places: Places::Ignored,
            panic_threshold: None,
            warmup: None,
            sessions: false,
            explicit_common: false,
        },
        pool: ConnectionPool {
            connect_timeout: Millis::secs(10),
            ..Default::default()
        },
        outlier: None,
        http: UpstreamHttp::Default,
        tls: UpstreamTls::None,
        foreign_alpn: false,
        proxy_protocol: None,
        metadata_exchange: false,
        source_address: None,
        extra_source_addresses: Vec::new(),
        stat_name: None,
        preserve_case: false,
    }
}

/// A service of the mesh, in plain text.
pub(crate) fn service(name: ClusterName) -> Cluster {
    let mut cluster = cluster(name, Discovery::Eds, Policy::LeastRequest);
    cluster.services.push(web_service());
    cluster.balancing.panic_threshold = Some(0);
    cluster.metadata_exchange = true;
    cluster
}

pub(crate) fn web_service() -> ServiceRef {
    ServiceRef {
        host: text("web.shop.svc.cluster.local"),
        name: text("web"),
        namespace: text("shop"),
    }
}

pub(crate) fn group(weight: u32, locality: Locality, endpoints: Vec<Endpoint>) -> EndpointGroup {
    EndpointGroup {
        locality,
        priority: 0,
        weight,
        endpoints,
    }
}

pub(crate) fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint {
        address: Address::Socket(text(host), port),
        additional: Vec::new(),
        health: Health::Healthy,
        weight: 1,
        mutual_tls: false,
        workload: text(""),
        hostname: text(""),
    }
}

pub(crate) fn endpoint_set(cluster: ClusterName, groups: Vec<EndpointGroup>) -> EndpointSet {
    EndpointSet {
        cluster,
        groups,
        overprovisioning: None,
        with_health: false,
    }
}

pub(crate) fn to(cluster: ClusterName, weight: u32) -> WeightedCluster {
    WeightedCluster {
        cluster,
        weight,
        headers: HeaderOps::default(),
        host_rewrite: None,
    }
}

pub(crate) fn forward(to: Vec<WeightedCluster>) -> Forward {
    Forward {
        to,
        split: false,
        timeout: Millis(0),
        max_grpc_timeout: Some(Millis(0)),
        stream_duration: None,
        retries: None,
        rewrite: None,
        mirrors: Vec::new(),
        hash: Vec::new(),
    }
}

pub(crate) fn route(name: &str, action: Action) -> Route {
    Route {
        name: text(name),
        matches: RouteMatch::any(),
        action,
        operation: None,
        origin: None,
        headers: HeaderOps::default(),
        fault: None,
        cors: None,
        stat_prefix: None,
        session: None,
        http3_port: None,
    }
}

pub(crate) fn default_retries() -> Retries {
    Retries {
        on: text("connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"),
        statuses: Vec::new(),
        attempts: 2,
        per_try: None,
        other_hosts: true,
        other_localities: false,
        backoff: None,
    }
}

pub(crate) fn listener(name: &str, host: &str, port: u16, chains: Vec<Chain>) -> Listener {
    Listener {
        name: text(name),
        address: Address::Socket(text(host), port),
        additional: Vec::new(),
        direction: Direction::Outbound,
        bind: false,
        use_original_dst: false,
        transparent: false,
        inspect: Inspect::default(),
        continue_on_timeout: true,
        inspect_timeout: Some(Millis(0)),
        chains,
        default_chain: None,
        accepts_per_event: None,
        exact_balance: false,
        buffer_limit: None,
        quic: false,
    }
}

pub(crate) fn chain(name: &str, handler: Handler) -> Chain {
    Chain {
        name: text(name),
        matches: ChainMatch::default(),
        explicit_match: false,
        tls: None,
        handler,
        metadata_exchange: false,
        connect_timeout: None,
        origin: None,
    }
}

pub(crate) fn tcp(to: ClusterName, side: Side) -> Tcp {
    Tcp {
        stat_prefix: pilotfish_emit::names::cluster_name(&to).into(),
        to: vec![(to, 0)],
        idle_timeout: None,
        max_duration: None,
        hash_source_ip: false,
        tunnel: None,
        codec: TcpCodec::Raw,
        side,
        forward_by_sni: None,
    }
}

pub(crate) fn http(side: Side, stat_prefix: &str, routes: Routes) -> Http {
    Http {
        side,
        stat_prefix: text(stat_prefix),
        stat_chosen: false,
        routes,
        http2: false,
        http3: false,
        grpc_web: false,
        peers: true,
        mesh_alpn: side != Side::Server,
        sessions: false,
        dns_caches: Vec::new(),
        any_host: None,
        tracing: Some(Tracing {
            service: text("client"),
            revision: text("v1"),
            namespace: text("shop"),
            cluster: text("Kubernetes"),
            mesh: text("cluster.local"),
            sampling: 100_000,
            own_tags: true,
            tags: Vec::new(),
            longest_path: None,
        }),
        normalize_path: true,
        merge_slashes: false,
        escaped_slashes: EscapedSlashes::Keep,
        use_remote_address: Some(false),
        client_cert: ClientCert::Sanitize,
        forward_continue: true,
        server_name: None,
        http10: false,
        absolute_urls: false,
        headers: Headers::default(),
        limits: HttpLimits::default(),
    }
}

/// Expected: no limits.
pub(crate) fn unlimited() -> Value {
    let most = u32::MAX;
    json!({"thresholds": [
        {"maxConnections": most, "maxPendingRequests": most, "maxRequests": most, "maxRetries": most},
    ]})
}

/// Expected: the filter of TCP connections by which peers learn of each other.
pub(crate) fn metadata_exchange() -> Value {
    json!({
        "name": "istio.metadata_exchange",
        "typedConfig": {
            "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
            "typeUrl": "type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange",
            "value": {"enable_discovery": true, "protocol": "istio-peer-exchange"},
        },
    })
}

/// Expected: a secret the agent serves.
pub(crate) fn agent_secret(name: &str) -> Value {
    json!({
        "name": name,
        "sdsConfig": {
            "apiConfigSource": {
                "apiType": "GRPC",
                "grpcServices": [{"envoyGrpc": {"clusterName": "sds-grpc"}}],
                "setNodeOnFirstMessageOnly": true,
                "transportApiVersion": "V3",
            },
            "initialFetchTimeout": "0s",
            "resourceApiVersion": "V3",
        },
    })
}

/// Expected: over the stream the proxy has.
pub(crate) fn over_ads() -> Value {
    json!({"ads": {}, "initialFetchTimeout": "0s", "resourceApiVersion": "V3"})
}
