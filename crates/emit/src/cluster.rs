//! Upstreams.

use std::sync::LazyLock;

use pilotfish_ir as ir;
use pilotfish_ir::Millis;
use pilotfish_ir::cluster::{
    AnyHost, Balancing, ConnectionPool, Discovery, DnsFamily, OutlierDetection, Places, Policy,
    RetryBudget, UpstreamHttp, Warmup,
};
use pilotfish_ir::tls::{ByRequest, UpstreamTls};
use pilotfish_protos::envoy::config::cluster::v3::{self as pb, cluster as parts};
use pilotfish_protos::envoy::config::core::v3 as core;
use pilotfish_protos::envoy::extensions::clusters::dynamic_forward_proxy::v3 as forward;
use pilotfish_protos::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use pilotfish_protos::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use pilotfish_protos::envoy::extensions::upstreams::http::v3 as http;
use pilotfish_protos::google::protobuf as g;

use crate::dialect::Extension;
use crate::{Dialect, endpoint, names, tls, value};

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// Longest interval Envoy takes: entries of the application's own address never age.
const FOREVER: Millis = Millis::secs(9_223_372_035);

/// A resolver that sends so many queries over one UDP socket.
fn resolver(queries: u32) -> core::TypedExtensionConfig {
    core::TypedExtensionConfig {
        name: "envoy.network.dns_resolver.cares".to_owned(),
        typed_config: Some(pilotfish_protos::any(&CaresDnsResolverConfig {
            udp_max_queries: Some(value::u32(queries)),
            ..Default::default()
        })),
    }
}

static METADATA_EXCHANGE: LazyLock<pb::Filter> = LazyLock::new(|| pb::Filter {
    name: "istio.metadata_exchange".to_owned(),
    typed_config: Some(crate::listener::TCP_METADATA_EXCHANGE.clone()),
    ..Default::default()
});

pub(crate) fn message(cluster: &ir::Cluster, name: &str, dialect: &Dialect) -> pb::Cluster {
    let mut out = pb::Cluster {
        name: name.to_owned(),
        alt_stat_name: match &cluster.stat_name {
            Some(said) => names::delimited(said),
            None => names::stat_name(&cluster.name, name),
        },
        connect_timeout: Some(value::duration(cluster.pool.connect_timeout)),
        metadata: metadata(cluster),
        common_lb_config: common_balancing(&cluster.balancing),
        outlier_detection: cluster.outlier.as_ref().map(outlier),
        upstream_bind_config: source(cluster),
        ..Default::default()
    };
    discover(&mut out, cluster, name, dialect);
    limit(&mut out, cluster);
    if let Some(options) = http_options(cluster) {
        out.typed_extension_protocol_options
            .insert(HTTP_OPTIONS.to_owned(), pilotfish_protos::any(&options));
    }
    if cluster.metadata_exchange && dialect.has(Extension::MetadataExchange) {
        out.filters.push(METADATA_EXCHANGE.clone());
    }
    match tls::upstream(&cluster.tls, cluster.proxy_protocol, dialect) {
        tls::Upstream::Plain => {}
        tls::Upstream::Always(socket) => out.transport_socket = Some(socket),
        tls::Upstream::ByEndpoint(matches) => out.transport_socket_matches = matches,
    }
    out
}

/// Sets how endpoints are found and chosen: the two depend on each other.
#[expect(
    deprecated,
    reason = "the DNS fields Istio's proxy is sent; every Envoy still takes them"
)]
fn discover(out: &mut pb::Cluster, cluster: &ir::Cluster, name: &str, dialect: &Dialect) {
    use parts::DiscoveryType as Type;
    balance(out, &cluster.balancing);
    let kind = match &cluster.discovery {
        Discovery::Static => Type::Static,
        Discovery::StaticEndpoints(set) => {
            out.load_assignment = Some(endpoint::assignment(set));
            Type::Static
        }
        Discovery::Eds => {
            out.eds_cluster_config = Some(parts::EdsClusterConfig {
                eds_config: Some(value::ads()),
                service_name: name.to_owned(),
            });
            Type::Eds
        }
        Discovery::Dns {
            endpoints,
            logical,
            family,
            refresh,
            jitter,
            queries,
        } => {
            out.load_assignment = Some(endpoint::assignment(endpoints));
            out.dns_refresh_rate = Some(value::duration(*refresh));
            out.dns_jitter = Some(value::duration(*jitter));
            out.respect_dns_ttl = true;
            out.dns_lookup_family = lookup_family(*family);
            out.typed_dns_resolver_config =
                dialect.has(Extension::Cares).then(|| resolver(*queries));
            if *logical {
                Type::LogicalDns
            } else {
                Type::StrictDns
            }
        }
        Discovery::OriginalDst {
            use_http_header,
            port_override,
            keep_forever,
        } => {
            out.cleanup_interval = keep_forever.then(|| value::duration(FOREVER));
            if *use_http_header || port_override.is_some() {
                out.lb_config = Some(parts::LbConfig::OriginalDstLbConfig(
                    parts::OriginalDstLbConfig {
                        use_http_header: *use_http_header,
                        upstream_port_override: port_override.map(|port| value::u32(port.into())),
                        ..Default::default()
                    },
                ));
            }
            Type::OriginalDst
        }
        Discovery::DynamicDns { host, family }
            if dialect.has(Extension::DynamicForwardProxyCluster) =>
        {
            let cache = dns_cache(host, *family);
            let by = by_request(&cluster.tls);
            let checked = by.is_some_and(|by| by.sni && by.san);
            // Envoy refuses options of HTTP that do not check the name, even where there is no TLS to check.
            let insecure = !checked && (by.is_some() || http_options(cluster).is_some());
            out.cluster_discovery_type = Some(on_demand(cache, insecure));
            return;
        }
        Discovery::AnyHost(hosts) if dialect.has(Extension::DynamicForwardProxyCluster) => {
            // Without TLS there is no server name to check, which Envoy wants to hear.
            let insecure = cluster.tls == UpstreamTls::None;
            out.cluster_discovery_type = Some(on_demand(any_host_cache(hosts), insecure));
            return;
        }
        // Nothing stands in for resolving on demand: a cluster without endpoints fails requests, not the update.
        Discovery::DynamicDns { .. } | Discovery::AnyHost(_) => {
            out.lb_policy = parts::LbPolicy::RoundRobin.into();
            Type::Static
        }
    };
    out.cluster_discovery_type = Some(parts::ClusterDiscoveryType::Type(kind.into()));
}

/// The cache of names that a cluster and the filters before it share; all must describe it alike.
pub(crate) fn dns_cache(host: &str, family: DnsFamily) -> DnsCacheConfig {
    DnsCacheConfig {
        name: names::dns_cache(host),
        dns_lookup_family: lookup_family(family),
        ..Default::default()
    }
}

/// A cluster whose hosts are resolved when they are asked for.
fn on_demand(cache: DnsCacheConfig, insecure: bool) -> parts::ClusterDiscoveryType {
    use forward::cluster_config::ClusterImplementationSpecifier::DnsCacheConfig as Cache;
    let config = forward::ClusterConfig {
        cluster_implementation_specifier: Some(Cache(cache)),
        allow_insecure_cluster_options: insecure,
        ..Default::default()
    };
    parts::ClusterDiscoveryType::ClusterType(parts::CustomClusterType {
        name: "envoy.clusters.dynamic_forward_proxy".to_owned(),
        typed_config: Some(pilotfish_protos::any(&config)),
    })
}

/// The cache of hosts that nobody declared.
pub(crate) fn any_host_cache(hosts: &AnyHost) -> DnsCacheConfig {
    let resolver = hosts.resolver.as_ref().map(|(address, port)| {
        let config = CaresDnsResolverConfig {
            resolvers: vec![value::address(&ir::endpoint::Address::Socket(
                address.clone(),
                *port,
            ))],
            ..Default::default()
        };
        core::TypedExtensionConfig {
            name: "envoy.network.dns_resolver.cares".to_owned(),
            typed_config: Some(pilotfish_protos::any(&config)),
        }
    });
    DnsCacheConfig {
        name: names::dns_cache("allow_any"),
        dns_lookup_family: lookup_family(hosts.family),
        max_hosts: Some(value::u32(hosts.most)),
        typed_dns_resolver_config: resolver,
        ..Default::default()
    }
}

fn lookup_family(family: DnsFamily) -> i32 {
    use parts::DnsLookupFamily as Family;
    match family {
        DnsFamily::V4Only => Family::V4Only,
        DnsFamily::V6Only => Family::V6Only,
        DnsFamily::V4Preferred => Family::V4Preferred,
        DnsFamily::All => Family::All,
    }
    .into()
}

fn balance(out: &mut pb::Cluster, balancing: &Balancing) {
    use parts::{LbConfig, LbPolicy};
    let slow_start = balancing.warmup.as_ref().map(slow_start);
    let (policy, config) = match &balancing.policy {
        Policy::LeastRequest => {
            let config = slow_start.map(|slow| {
                LbConfig::LeastRequestLbConfig(parts::LeastRequestLbConfig {
                    slow_start_config: Some(slow),
                    ..Default::default()
                })
            });
            (LbPolicy::LeastRequest, config)
        }
        Policy::RoundRobin => {
            let config = slow_start.map(|slow| {
                LbConfig::RoundRobinLbConfig(parts::RoundRobinLbConfig {
                    slow_start_config: Some(slow),
                })
            });
            (LbPolicy::RoundRobin, config)
        }
        Policy::Random => (LbPolicy::Random, None),
        Policy::ClusterProvided => (LbPolicy::ClusterProvided, None),
        Policy::RingHash { minimum } => {
            let config = minimum.map(|size| {
                LbConfig::RingHashLbConfig(parts::RingHashLbConfig {
                    minimum_ring_size: Some(value::u64(size)),
                    ..Default::default()
                })
            });
            (LbPolicy::RingHash, config)
        }
        Policy::Maglev { table } => {
            let config = table.map(|size| {
                LbConfig::MaglevLbConfig(parts::MaglevLbConfig {
                    table_size: Some(value::u64(size)),
                })
            });
            (LbPolicy::Maglev, config)
        }
    };
    out.lb_policy = policy.into();
    out.lb_config = config;
}

fn slow_start(warmup: &Warmup) -> parts::SlowStartConfig {
    parts::SlowStartConfig {
        slow_start_window: warmup.window.map(value::duration),
        aggression: warmup.aggression.map(|aggression| core::RuntimeDouble {
            default_value: aggression.into(),
            // Envoy demands a key; this one is Istio's and names no runtime value.
            runtime_key: "(".to_owned(),
        }),
        min_weight_percent: warmup.minimum_percent.map(value::percent),
    }
}

fn common_balancing(balancing: &Balancing) -> Option<parts::CommonLbConfig> {
    use parts::common_lb_config::{
        LocalityConfigSpecifier, LocalityWeightedLbConfig, ZoneAwareLbConfig,
    };
    let places = match balancing.places {
        Places::Ignored => None,
        Places::Weighted => Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(
            LocalityWeightedLbConfig {},
        )),
        Places::Zones { off, minimum } => Some(LocalityConfigSpecifier::ZoneAwareLbConfig(
            ZoneAwareLbConfig {
                routing_enabled: off.then(|| value::percent(0)),
                min_cluster_size: minimum.map(|n| value::u64(n.into())),
                ..Default::default()
            },
        )),
    };
    let config = parts::CommonLbConfig {
        healthy_panic_threshold: balancing.panic_threshold.map(value::percent),
        locality_config_specifier: places,
        override_host_status: balancing.sessions.then(kept_by_sessions),
        ..Default::default()
    };
    (balancing.explicit_common || config != parts::CommonLbConfig::default()).then_some(config)
}

/// Endpoints that a session may stay with: also those that drain.
fn kept_by_sessions() -> core::HealthStatusSet {
    use core::HealthStatus as Status;
    let statuses = [
        Status::Healthy,
        Status::Draining,
        Status::Unknown,
        Status::Degraded,
    ];
    core::HealthStatusSet {
        statuses: statuses.map(i32::from).into(),
    }
}

fn limit(out: &mut pb::Cluster, cluster: &ir::Cluster) {
    let pool = &cluster.pool;
    // A cluster without endpoints has nothing to break.
    if cluster.discovery != Discovery::Static {
        let most = |limit: Option<u32>| Some(value::u32(limit.unwrap_or(u32::MAX)));
        out.circuit_breakers = Some(pb::CircuitBreakers {
            thresholds: vec![pb::circuit_breakers::Thresholds {
                max_connections: most(pool.max_connections),
                max_pending_requests: most(pool.max_pending),
                max_requests: most(pool.max_requests),
                max_retries: most(pool.max_retries),
                track_remaining: pool.track_remaining,
                retry_budget: pool.retry_budget.as_ref().map(retry_budget),
                ..Default::default()
            }],
            ..Default::default()
        });
    }
    out.upstream_connection_options =
        pool.keepalive
            .as_ref()
            .map(|keepalive| pb::UpstreamConnectionOptions {
                tcp_keepalive: Some(core::TcpKeepalive {
                    keepalive_probes: keepalive.probes.map(value::u32),
                    keepalive_time: keepalive.time.map(value::u32),
                    keepalive_interval: keepalive.interval.map(value::u32),
                }),
                ..Default::default()
            });
}

fn retry_budget(budget: &RetryBudget) -> pb::circuit_breakers::thresholds::RetryBudget {
    pb::circuit_breakers::thresholds::RetryBudget {
        budget_percent: Some(value::percent(budget.percent)),
        min_retry_concurrency: Some(value::u32(budget.minimum)),
        budget_interval: budget.interval.map(value::duration),
    }
}

/// What requests decide about TLS, where there is any.
fn by_request(tls: &UpstreamTls) -> Option<ByRequest> {
    match tls {
        UpstreamTls::None => None,
        UpstreamTls::AutoMutual(mutual) | UpstreamTls::Mutual(mutual) => Some(mutual.by_request),
        UpstreamTls::Custom(custom) | UpstreamTls::OwnCertificate(custom) => {
            Some(custom.by_request)
        }
    }
}

/// What is spoken upstream; `None` where all is default.
fn http_options(cluster: &ir::Cluster) -> Option<http::HttpProtocolOptions> {
    use http::http_protocol_options::{
        ExplicitHttpConfig, UpstreamProtocolOptions, UseDownstreamHttpConfig,
        explicit_http_config::ProtocolConfig,
    };
    let common = common_http(&cluster.pool);
    let upstream = by_request(&cluster.tls)
        .filter(|by| by.sni || by.san)
        .map(|by| core::UpstreamHttpProtocolOptions {
            auto_sni: by.sni,
            auto_san_validation: by.san,
            ..Default::default()
        });
    let http1 = core::Http1ProtocolOptions {
        header_key_format: cluster
            .preserve_case
            .then(|| crate::http::PRESERVE_CASE.clone()),
        ..Default::default()
    };
    if cluster.http == UpstreamHttp::Default
        && !cluster.preserve_case
        && common.is_none()
        && upstream.is_none()
    {
        return None;
    }
    let explicit = |protocol| {
        UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(protocol),
        })
    };
    let protocol = match cluster.http {
        UpstreamHttp::Default => explicit(ProtocolConfig::HttpProtocolOptions(http1)),
        UpstreamHttp::Http2 => explicit(ProtocolConfig::Http2ProtocolOptions(
            core::Http2ProtocolOptions {
                max_concurrent_streams: cluster.pool.max_concurrent_streams.map(value::u32),
                connection_keepalive: cluster.pool.http2_keepalive.as_ref().map(|ping| {
                    core::KeepaliveSettings {
                        interval: ping.interval.map(value::duration),
                        timeout: ping.timeout.map(value::duration),
                        ..Default::default()
                    }
                }),
                ..Default::default()
            },
        )),
        UpstreamHttp::Downstream => {
            UpstreamProtocolOptions::UseDownstreamProtocolConfig(UseDownstreamHttpConfig {
                http_protocol_options: Some(http1),
                http2_protocol_options: Some(core::Http2ProtocolOptions::default()),
                ..Default::default()
            })
        }
    };
    Some(http::HttpProtocolOptions {
        common_http_protocol_options: common,
        upstream_http_protocol_options: upstream,
        upstream_protocol_options: Some(protocol),
        ..Default::default()
    })
}

fn common_http(pool: &ConnectionPool) -> Option<core::HttpProtocolOptions> {
    let options = core::HttpProtocolOptions {
        idle_timeout: pool.idle_timeout.map(value::duration),
        max_connection_duration: pool.max_duration.map(value::duration),
        max_requests_per_connection: pool.max_requests_per_connection.map(value::u32),
        ..Default::default()
    };
    // Settings for HTTP/2 have the block written even where nothing of it is for all versions.
    let http2 = pool.max_concurrent_streams.is_some() || pool.http2_keepalive.is_some();
    (http2 || options != core::HttpProtocolOptions::default()).then_some(options)
}

/// Ejection by success rate is always off; each kind of error in a row ejects if it is counted at all.
fn outlier(outlier: &OutlierDetection) -> pb::OutlierDetection {
    let enforced = |count: Option<u32>| count.map(|n| value::u32(if n > 0 { 100 } else { 0 }));
    let split = outlier.split_local_origin;
    let local = outlier.consecutive_local.filter(|_| split);
    pb::OutlierDetection {
        consecutive_5xx: outlier.consecutive_5xx.map(value::u32),
        enforcing_consecutive_5xx: enforced(outlier.consecutive_5xx),
        consecutive_gateway_failure: outlier.consecutive_gateway.map(value::u32),
        enforcing_consecutive_gateway_failure: enforced(outlier.consecutive_gateway),
        split_external_local_origin_errors: split,
        consecutive_local_origin_failure: local.map(value::u32),
        enforcing_consecutive_local_origin_failure: enforced(local),
        enforcing_local_origin_success_rate: split.then(|| value::u32(0)),
        enforcing_success_rate: Some(value::u32(0)),
        interval: outlier.interval.map(value::duration),
        base_ejection_time: outlier.base_ejection.map(value::duration),
        max_ejection_percent: outlier.max_ejection_percent.map(value::u32),
        ..Default::default()
    }
}

fn source(cluster: &ir::Cluster) -> Option<core::BindConfig> {
    cluster
        .source_address
        .as_ref()
        .map(|address| core::BindConfig {
            source_address: Some(value::socket(address, 0)),
            extra_source_addresses: cluster
                .extra_source_addresses
                .iter()
                .map(|extra| core::ExtraSourceAddress {
                    address: Some(value::socket(extra, 0)),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        })
}

/// What telemetry knows the cluster by.
fn metadata(cluster: &ir::Cluster) -> Option<core::Metadata> {
    let mut istio = g::Struct::default();
    let mut set = |key: &str, value| istio.fields.insert(key.to_owned(), value);
    if let Some(rule) = &cluster.rule {
        set("config", value::text_value(rule.as_str()));
    }
    if let Some(subset) = &cluster.subset {
        set("subset", value::text_value(subset.as_str()));
    }
    if cluster.external {
        set("external", value::bool_value(true));
    }
    if !cluster.services.is_empty() {
        let services = cluster.services.iter().map(|service| {
            value::struct_value(value::fields([
                ("host", value::text_value(service.host.as_str())),
                ("name", value::text_value(service.name.as_str())),
                ("namespace", value::text_value(service.namespace.as_str())),
            ]))
        });
        set("services", value::list_value(services.collect()));
    }
    if cluster.foreign_alpn {
        // The user's server does not know the mesh's protocols.
        set("alpn_override", value::text_value("false"));
    }
    (!istio.fields.is_empty()).then(|| value::metadata(istio))
}
