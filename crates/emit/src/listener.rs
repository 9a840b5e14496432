//! Listeners, their chains and the network filters in them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use pilotfish_ir as ir;
use pilotfish_ir::ClusterName;
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::listener::{
    Chain, ChainMatch, Direction, DnsCache, Handler, Inspect, Ports, Side, Tcp, TcpCodec, Transport,
};
use pilotfish_protos::envoy::config::core::v3 as core;
use pilotfish_protos::envoy::config::listener::v3::{
    self as pb, listener_filter_chain_match_predicate as predicate,
};
use pilotfish_protos::envoy::extensions::filters::listener as listener_filters;
use pilotfish_protos::envoy::extensions::filters::network as filters;
use pilotfish_protos::envoy::r#type::v3 as kind;
use pilotfish_protos::google::protobuf as g;
use pilotfish_protos::udpa::r#type::v1::TypedStruct;
use prost::Message as _;

use crate::dialect::Extension;
use crate::{Dialect, cluster, http, names, tls, value};

const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";
const CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// Connections Istio's proxy makes for a transparently proxied client carry this mark, so that they are not caught again.
const TRANSPARENT_MARK: u32 = 1337;
/// Enough for most client hellos; the buffer grows.
const CLIENT_HELLO_BYTES: u32 = 512;
/// A Redis command that takes longer fails.
const REDIS_TIMEOUT: ir::Millis = ir::Millis::secs(5);

/// Peers of a TCP connection tell each other who they are before the first byte.
pub(crate) static TCP_METADATA_EXCHANGE: LazyLock<g::Any> = LazyLock::new(|| {
    pilotfish_protos::any(&TypedStruct {
        type_url: "type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange"
            .to_owned(),
        value: Some(value::fields([
            ("enable_discovery", value::bool_value(true)),
            ("protocol", value::text_value("istio-peer-exchange")),
        ])),
    })
});

static METADATA_EXCHANGE: LazyLock<pb::Filter> =
    LazyLock::new(|| packed("istio.metadata_exchange", TCP_METADATA_EXCHANGE.clone()));
static CLIENT_STATS: LazyLock<pb::Filter> =
    LazyLock::new(|| packed("istio.stats", http::CLIENT_STATS.clone()));
static SERVER_STATS: LazyLock<pb::Filter> =
    LazyLock::new(|| packed("istio.stats", http::SERVER_STATS.clone()));

static PROXY_PROTOCOL: LazyLock<pb::ListenerFilter> = LazyLock::new(|| {
    inspector(
        "envoy.filters.listener.proxy_protocol",
        &listener_filters::proxy_protocol::v3::ProxyProtocol::default(),
    )
});
static ORIGINAL_DST: LazyLock<pb::ListenerFilter> = LazyLock::new(|| {
    inspector(
        "envoy.filters.listener.original_dst",
        &listener_filters::original_dst::v3::OriginalDst {},
    )
});
static ORIGINAL_SRC: LazyLock<pb::ListenerFilter> = LazyLock::new(|| {
    let config = listener_filters::original_src::v3::OriginalSrc {
        mark: TRANSPARENT_MARK,
        ..Default::default()
    };
    inspector("envoy.filters.listener.original_src", &config)
});
static TLS_INSPECTOR: LazyLock<pb::ListenerFilter> = LazyLock::new(|| {
    let config = listener_filters::tls_inspector::v3::TlsInspector {
        initial_read_buffer_size: Some(value::u32(CLIENT_HELLO_BYTES)),
        ..Default::default()
    };
    inspector("envoy.filters.listener.tls_inspector", &config)
});
static HTTP_INSPECTOR: LazyLock<pb::ListenerFilter> = LazyLock::new(|| {
    inspector(
        "envoy.filters.listener.http_inspector",
        &listener_filters::http_inspector::v3::HttpInspector {},
    )
});

pub(crate) fn message(listener: &ir::Listener, dialect: &Dialect) -> pb::Listener {
    let direction = match listener.direction {
        Direction::Inbound => core::TrafficDirection::Inbound,
        Direction::Outbound => core::TrafficDirection::Outbound,
    };
    let address = |a: &Address| {
        if listener.quic {
            value::datagram_address(a)
        } else {
            value::address(a)
        }
    };
    let mut out = pb::Listener {
        name: value::string(&listener.name),
        address: Some(address(&listener.address)),
        additional_addresses: listener
            .additional
            .iter()
            .map(|a| pb::AdditionalAddress {
                address: Some(address(a)),
                ..Default::default()
            })
            .collect(),
        udp_listener_config: listener.quic.then(quic),
        filter_chains: listener
            .chains
            .iter()
            .filter_map(|c| chain(c, listener.quic, dialect))
            .collect(),
        default_filter_chain: listener
            .default_chain
            .as_ref()
            .and_then(|c| chain(c, listener.quic, dialect)),
        use_original_dst: set(listener.use_original_dst),
        transparent: set(listener.transparent),
        freebind: set(listener.bind
            && !dialect.mesh_identity()
            && one_interface(&listener.address)),
        bind_to_port: (!listener.bind).then(|| value::bool(false)),
        listener_filters: inspect(&listener.inspect, dialect),
        listener_filters_timeout: listener.inspect_timeout.map(value::duration),
        continue_on_listener_filters_timeout: listener.continue_on_timeout,
        traffic_direction: direction.into(),
        max_connections_to_accept_per_socket_event: listener.accepts_per_event.map(value::u32),
        connection_balance_config: listener.exact_balance.then(exact_balance),
        per_connection_buffer_limit_bytes: listener.buffer_limit.map(value::u32),
        ..Default::default()
    };
    out.filter_chains
        .extend(closed_ports(&listener.chains, dialect));
    if out.filter_chains.is_empty()
        && out.default_filter_chain.is_none()
        && !listener.chains.is_empty()
    {
        // Nothing is left to serve, and Envoy takes no listener without a chain.
        out.filter_chains.push(refusal(None));
    }
    out
}

/// Whether the proxy speaks QUIC and can prove itself to clients of at least one chain. QUIC has no chain that just refuses.
pub(crate) fn serves_quic(listener: &ir::Listener, dialect: &Dialect) -> bool {
    let secured = |c: &Chain| c.tls.as_ref().is_some_and(|s| tls::can_serve(s, dialect));
    dialect.has(Extension::Quic) && listener.chains.iter().any(secured)
}

/// QUIC with Envoy's defaults.
fn quic() -> pb::UdpListenerConfig {
    pb::UdpListenerConfig {
        downstream_socket_config: Some(core::UdpSocketConfig::default()),
        quic_options: Some(pb::QuicProtocolOptions::default()),
        ..Default::default()
    }
}

fn exact_balance() -> pb::listener::ConnectionBalanceConfig {
    use pb::listener::connection_balance_config::{BalanceType, ExactBalance};
    pb::listener::ConnectionBalanceConfig {
        balance_type: Some(BalanceType::ExactBalance(ExactBalance {})),
    }
}

/// Chains that close the ports of which nothing is left, because all they served needs a certificate that nobody gives
/// this proxy. Without them a port that demands mutual TLS would fall through to a chain that takes plain text.
fn closed_ports(chains: &[Chain], dialect: &Dialect) -> Vec<pb::FilterChain> {
    let (served, dropped): (Vec<_>, Vec<_>) = chains.iter().partition(|c| {
        c.tls
            .as_ref()
            .is_none_or(|security| tls::can_serve(security, dialect))
    });
    let ports = |chains: &[&Chain]| {
        chains
            .iter()
            .filter_map(|c| c.matches.port)
            .collect::<BTreeSet<_>>()
    };
    ports(&dropped)
        .difference(&ports(&served))
        .map(|port| refusal(Some(*port)))
        .collect()
}

/// The flag, where it is set.
fn set(flag: bool) -> Option<g::BoolValue> {
    flag.then(|| value::bool(true))
}

/// A chain, or `None` if the proxy cannot terminate its TLS.
fn chain(chain: &Chain, quic: bool, dialect: &Dialect) -> Option<pb::FilterChain> {
    let transport_socket = match &chain.tls {
        Some(security) if quic => Some(tls::downstream_quic(security, dialect)?),
        Some(security) => Some(tls::downstream(security, dialect)?),
        None => None,
    };
    let mut filters = Vec::with_capacity(4);
    if chain.metadata_exchange && dialect.has(Extension::MetadataExchange) {
        filters.push(METADATA_EXCHANGE.clone());
    }
    match &chain.handler {
        Handler::Http(http) => filters.push(filter(
            CONNECTION_MANAGER,
            &http::connection_manager(http, dialect),
        )),
        Handler::Tcp(tcp) => tcp_filters(tcp, dialect, &mut filters),
    }
    let matches = (chain.explicit_match || chain.matches != ChainMatch::default())
        .then(|| matches(&chain.matches));
    Some(pb::FilterChain {
        filter_chain_match: matches,
        filters,
        metadata: chain.origin.as_ref().map(value::origin),
        transport_socket,
        transport_socket_connect_timeout: chain.connect_timeout.map(value::duration),
        name: value::string(&chain.name),
        ..Default::default()
    })
}

fn matches(conditions: &ChainMatch) -> pb::FilterChainMatch {
    let transport = match conditions.transport {
        None => "",
        Some(Transport::Tls) => "tls",
        Some(Transport::Plain) => "raw_buffer",
    };
    pb::FilterChainMatch {
        destination_port: conditions.port.map(|port| value::u32(port.into())),
        prefix_ranges: conditions
            .networks
            .iter()
            .map(|(address, length)| core::CidrRange {
                address_prefix: value::string(address),
                prefix_len: Some(value::u32((*length).into())),
            })
            .collect(),
        server_names: conditions.server_names.iter().map(value::string).collect(),
        transport_protocol: transport.to_owned(),
        application_protocols: conditions.alpn.iter().map(value::string).collect(),
        ..Default::default()
    }
}

/// Whether an address belongs to one interface. A proxy that nobody starts after its network is there must not fail
/// because the address is not assigned yet.
fn one_interface(address: &Address) -> bool {
    let Address::Socket(host, _) = address else {
        return false;
    };
    host.parse::<std::net::IpAddr>()
        .is_ok_and(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

/// Listener filters in the order they must run: what says where the connection goes comes before what looks into it.
fn inspect(inspect: &Inspect, dialect: &Dialect) -> Vec<pb::ListenerFilter> {
    let mut chain = Vec::new();
    let mut push = |extension: Extension, filter: &pb::ListenerFilter, on: Option<&Ports>| {
        if let Some(ports) = on.filter(|_| dialect.has(extension)) {
            chain.push(pb::ListenerFilter {
                filter_disabled: off(ports),
                ..filter.clone()
            });
        }
    };
    let all = Ports::ALL;
    let wanted = |wanted: bool| wanted.then_some(&all);
    push(
        Extension::ProxyProtocol,
        &PROXY_PROTOCOL,
        wanted(inspect.proxy_protocol),
    );
    push(
        Extension::OriginalDst,
        &ORIGINAL_DST,
        wanted(inspect.original_dst),
    );
    push(
        Extension::OriginalSrc,
        &ORIGINAL_SRC,
        wanted(inspect.original_src),
    );
    push(
        Extension::TlsInspector,
        &TLS_INSPECTOR,
        inspect.tls.as_ref(),
    );
    push(
        Extension::HttpInspector,
        &HTTP_INSPECTOR,
        inspect.http.as_ref(),
    );
    chain
}

/// Where a filter is switched off; `None` for nowhere.
fn off(ports: &Ports) -> Option<pb::ListenerFilterChainMatchPredicate> {
    match ports {
        Ports::Except(ports) => on_ports(ports),
        Ports::Only(ports) => on_ports(ports).map(|on| pb::ListenerFilterChainMatchPredicate {
            rule: Some(predicate::Rule::NotMatch(Box::new(on))),
        }),
    }
}

/// Holds on any of these destination ports; `None` for no ports.
fn on_ports(ports: &[u16]) -> Option<pb::ListenerFilterChainMatchPredicate> {
    let on = |port: &u16| {
        let start = i32::from(*port);
        let range = kind::Int32Range {
            start,
            end: start + 1,
        };
        pb::ListenerFilterChainMatchPredicate {
            rule: Some(predicate::Rule::DestinationPortRange(range)),
        }
    };
    match ports {
        [] => None,
        [port] => Some(on(port)),
        several => {
            let rules = several.iter().map(on).collect();
            let any = predicate::Rule::OrMatch(predicate::MatchSet { rules });
            Some(pb::ListenerFilterChainMatchPredicate { rule: Some(any) })
        }
    }
}

fn tcp_filters(tcp: &Tcp, dialect: &Dialect, filters: &mut Vec<pb::Filter>) {
    if dialect.has(Extension::Stats) {
        filters.push(if tcp.side == Side::Client {
            CLIENT_STATS.clone()
        } else {
            SERVER_STATS.clone()
        });
    }
    match (tcp.codec, tcp.to.as_slice()) {
        (TcpCodec::Mongo, _) if dialect.has(Extension::MongoProxy) => filters.push(mongo(tcp)),
        (TcpCodec::MySql, _) if dialect.has(Extension::MySqlProxy) => filters.push(mysql(tcp)),
        // It ends the chain, and knows no weights.
        (TcpCodec::Redis, [(cluster, _)]) => return filters.push(redis(tcp, cluster)),
        _ => {}
    }
    if let Some(cache) = tcp
        .forward_by_sni
        .as_ref()
        .filter(|_| dialect.has(Extension::SniForwardProxy))
    {
        filters.push(sni_forward_proxy(cache));
    }
    filters.push(filter(TCP_PROXY, &tcp_proxy(tcp)));
}

fn tcp_proxy(tcp: &Tcp) -> filters::tcp_proxy::v3::TcpProxy {
    use filters::tcp_proxy::v3::tcp_proxy::{
        ClusterSpecifier, TunnelingConfig, WeightedCluster, weighted_cluster::ClusterWeight,
    };
    use kind::hash_policy::{PolicySpecifier, SourceIp};
    let to = match tcp.to.as_slice() {
        [(only, _)] => ClusterSpecifier::Cluster(names::cluster_name(only)),
        several => {
            let share = |(cluster, weight): &(ClusterName, u32)| ClusterWeight {
                name: names::cluster_name(cluster),
                weight: *weight,
                ..Default::default()
            };
            ClusterSpecifier::WeightedClusters(WeightedCluster {
                clusters: several.iter().map(share).collect(),
            })
        }
    };
    let by_source = kind::HashPolicy {
        policy_specifier: Some(PolicySpecifier::SourceIp(SourceIp {})),
    };
    filters::tcp_proxy::v3::TcpProxy {
        stat_prefix: value::string(&tcp.stat_prefix),
        cluster_specifier: Some(to),
        idle_timeout: tcp.idle_timeout.map(value::duration),
        max_downstream_connection_duration: tcp.max_duration.map(value::duration),
        tunneling_config: tcp.tunnel.as_ref().map(|tunnel| TunnelingConfig {
            hostname: value::string(&tunnel.to),
            use_post: tunnel.post,
            ..Default::default()
        }),
        hash_policy: tcp
            .hash_source_ip
            .then_some(by_source)
            .into_iter()
            .collect(),
        ..Default::default()
    }
}

fn mongo(tcp: &Tcp) -> pb::Filter {
    let config = filters::mongo_proxy::v3::MongoProxy {
        stat_prefix: value::string(&tcp.stat_prefix),
        ..Default::default()
    };
    filter("envoy.filters.network.mongo_proxy", &config)
}

/// The contributed filter's one field, encoded by hand: its type is not among the generated ones.
fn mysql(tcp: &Tcp) -> pb::Filter {
    let prefix = g::StringValue {
        value: value::string(&tcp.stat_prefix),
    };
    let config = g::Any {
        type_url: "type.googleapis.com/envoy.extensions.filters.network.mysql_proxy.v3.MySQLProxy"
            .to_owned(),
        value: prefix.encode_to_vec().into(),
    };
    packed("envoy.filters.network.mysql_proxy", config)
}

fn redis(tcp: &Tcp, cluster: &ClusterName) -> pb::Filter {
    use filters::redis_proxy::v3::redis_proxy::{
        ConnPoolSettings, PrefixRoutes, prefix_routes::Route,
    };
    let config = filters::redis_proxy::v3::RedisProxy {
        stat_prefix: value::string(&tcp.stat_prefix),
        settings: Some(ConnPoolSettings {
            op_timeout: Some(value::duration(REDIS_TIMEOUT)),
            ..Default::default()
        }),
        latency_in_micros: true,
        prefix_routes: Some(PrefixRoutes {
            catch_all_route: Some(Route {
                cluster: names::cluster_name(cluster),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    filter("envoy.filters.network.redis_proxy", &config)
}

fn sni_forward_proxy(cache: &DnsCache) -> pb::Filter {
    use filters::sni_dynamic_forward_proxy::v3::{FilterConfig, filter_config::PortSpecifier};
    let config = FilterConfig {
        dns_cache_config: Some(cluster::dns_cache(&cache.host, cache.family)),
        port_specifier: Some(PortSpecifier::PortValue(cache.port.into())),
        ..Default::default()
    };
    filter(
        "envoy.extensions.filters.network.sni_dynamic_forward_proxy",
        &config,
    )
}

/// A chain that closes every connection, to one port or to all.
fn refusal(port: Option<u16>) -> pb::FilterChain {
    pb::FilterChain {
        filter_chain_match: port.map(|port| pb::FilterChainMatch {
            destination_port: Some(value::u32(port.into())),
            ..Default::default()
        }),
        filters: vec![refuse()],
        ..Default::default()
    }
}

fn refuse() -> pb::Filter {
    let nowhere = names::cluster_name(&ClusterName::BlackHole);
    let config = filters::tcp_proxy::v3::TcpProxy {
        stat_prefix: nowhere.clone(),
        cluster_specifier: Some(
            filters::tcp_proxy::v3::tcp_proxy::ClusterSpecifier::Cluster(nowhere),
        ),
        ..Default::default()
    };
    filter(TCP_PROXY, &config)
}

fn filter<C: prost::Message + prost::Name>(name: &str, config: &C) -> pb::Filter {
    packed(name, pilotfish_protos::any(config))
}

fn packed(name: &str, config: g::Any) -> pb::Filter {
    pb::Filter {
        name: name.to_owned(),
        config_type: Some(pb::filter::ConfigType::TypedConfig(config)),
    }
}

fn inspector<C: prost::Message + prost::Name>(name: &str, config: &C) -> pb::ListenerFilter {
    pb::ListenerFilter {
        name: name.to_owned(),
        config_type: Some(pb::listener_filter::ConfigType::TypedConfig(
            pilotfish_protos::any(config),
        )),
        ..Default::default()
    }
}
