//! Upstreams a client may reach.

use pilotfish_config::networking::{ProxyProtocolVersion, SimpleLb, Subset, TrafficPolicy};
use pilotfish_ir::cluster::{
    AnyHost, Balancing, Discovery, DnsFamily, Places, Policy, ProxyProtocol, ServiceRef,
    UpstreamHttp,
};
use pilotfish_ir::tls::UpstreamTls;
use pilotfish_ir::{Cluster, ClusterName, EndpointSet, Millis};
use pilotfish_mesh::{Port, Reader, Registry, Resolution, Service, ServiceId};

use crate::outbound::V4_FOR_V6;
use crate::policy::{self, Rule};
use crate::visibility::Elsewhere;
use crate::{
    Client, ClusterScope, EndpointScope, Families, ProxyKind, Text, chain, endpoint, locality,
    network, upstream_tls, visibility,
};

/// Clusters every proxy has.
pub fn fixed(reader: &Reader<'_>, scope: &ClusterScope) -> Vec<Cluster> {
    let mut nowhere = bare(reader, ClusterName::BlackHole, Discovery::Static);
    nowhere.pool.keepalive = None;
    let mut out = vec![nowhere];
    if scope.client.kind == ProxyKind::Sidecar {
        let mut c = bare(
            reader,
            ClusterName::Passthrough,
            Discovery::OriginalDst {
                use_http_header: false,
                port_override: None,
                keep_forever: false,
            },
        );
        passthrough(reader, &mut c, &scope.client);
        c.metadata_exchange = chain::peers(reader);
        out.push(c);
    }
    if visibility::elsewhere(reader, &scope.client) == Elsewhere::ByHost {
        out.push(any_host(reader, scope));
    }
    out
}

/// The cluster for HTTP to hosts nobody declared, where the mesh has them resolved.
fn any_host(reader: &Reader<'_>, scope: &ClusterScope) -> Cluster {
    let mut c = bare(
        reader,
        ClusterName::AnyHost,
        Discovery::AnyHost(any_host_cache(reader, &scope.client)),
    );
    passthrough(reader, &mut c, &scope.client);
    c.metadata_exchange = chain::peers(reader);
    let settings = reader
        .mesh()
        .outbound_traffic_policy
        .as_ref()
        .and_then(|p| p.tls.as_ref());
    if let Some(t) = settings {
        c.tls = upstream_tls::any_host(reader, t);
    }
    c
}

/// How hosts nobody declared are resolved.
pub(crate) fn any_host_cache(reader: &Reader<'_>, client: &Client) -> AnyHost {
    const MOST: u32 = 1024;
    AnyHost {
        family: dns_family(reader, client.families),
        most: reader
            .settings()
            .features
            .get("PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS")
            .and_then(|v| v.parse().ok())
            .unwrap_or(MOST),
        resolver: client.conduct.dns_proxy.clone(),
    }
}

/// What a cluster that forwards to the original destination has in common.
pub(crate) fn passthrough(reader: &Reader<'_>, c: &mut Cluster, client: &Client) {
    let defaults = reader.mesh().default_traffic_policy.as_ref();
    c.preserve_case = client.conduct.preserves_case();
    c.balancing.policy = Policy::ClusterProvided;
    c.http = UpstreamHttp::Downstream;
    c.pool = policy::pool(reader, defaults.and_then(|d| d.connection_pool.as_ref()));
    // What is spoken is not known, so limits of HTTP connections are not the mesh's.
    c.pool.idle_timeout = Some(Millis::secs(300));
    c.pool.max_duration = None;
    c.pool.max_requests_per_connection = None;
    c.pool.max_concurrent_streams = None;
    c.pool.http2_keepalive = None;
}

/// A cluster without any policy.
pub(crate) fn bare(reader: &Reader<'_>, name: ClusterName, discovery: Discovery) -> Cluster {
    Cluster {
        name,
        services: Vec::new(),
        external: false,
        rule: None,
        subset: None,
        discovery,
        balancing: Balancing {
            policy: Policy::RoundRobin,
            places: Places::Ignored,
            panic_threshold: None,
            warmup: None,
            sessions: false,
            explicit_common: false,
        },
        pool: policy::pool(reader, None),
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

/// All clusters of one service: one for each port, and one more for each port and subset.
pub fn outbound(reader: &Reader<'_>, scope: &ClusterScope, id: &ServiceId) -> Vec<Cluster> {
    let Some(service) = reader.service(id) else {
        return Vec::new();
    };
    if service.resolution == Resolution::Alias {
        return Vec::new();
    }
    let rule = policy::rule(reader, &scope.client, service);
    let all = |by_sni: bool| {
        let mut out = Vec::new();
        for port in visibility::ports(reader, &scope.client, service) {
            let upstream = Upstream {
                reader,
                scope,
                service,
                port,
                rule: rule.as_ref(),
                by_sni,
            };
            let Some(whole) = upstream.cluster(None) else {
                continue;
            };
            out.push(whole);
            // Names resolved on demand have no labels to choose by.
            if service.resolution != Resolution::DynamicDns {
                let subsets = rule.iter().flat_map(|r| &r.spec.subsets);
                out.extend(subsets.filter_map(|s| upstream.cluster(Some(s))));
            }
        }
        out
    };
    let mut out = all(false);
    if !service.mesh_external && network::passes_on(reader, &scope.client) {
        out.extend(all(true).into_iter().map(passed_on));
    }
    out
}

/// An upstream for connections of another network, which are passed on as they are.
fn passed_on(mut c: Cluster) -> Cluster {
    c.name = c.name.by_sni();
    c.tls = UpstreamTls::None;
    c.proxy_protocol = None;
    c.balancing.sessions = false;
    if let Discovery::Dns { endpoints, .. } = &mut c.discovery {
        endpoints.cluster = c.name.clone();
    }
    c
}

/// Spreads the refreshes of many proxies.
const DNS_JITTER: std::time::Duration = std::time::Duration::from_millis(100);
/// Queries over one UDP socket.
const DNS_QUERIES: u32 = 100;

const ORIGINAL_DESTINATION: Discovery = Discovery::OriginalDst {
    use_http_header: false,
    port_override: None,
    keep_forever: false,
};

/// One port of a service, seen by one client.
pub(crate) struct Upstream<'a, 'w> {
    pub(crate) reader: &'a Reader<'w>,
    pub(crate) scope: &'a ClusterScope,
    pub(crate) service: &'a Service,
    pub(crate) port: &'a Port,
    pub(crate) rule: Option<&'a Rule<'w>>,
    /// Whether connections are passed on by their server name.
    pub(crate) by_sni: bool,
}

/// Whether telemetry learns from a cluster which services it is for.
pub(crate) fn tells_services(reader: &Reader<'_>) -> bool {
    chain::feature(reader, "PILOT_ENABLE_TELEMETRY_LABEL", true)
}

/// Whether the weights of places count even where nobody prefers any.
fn weighs_places(reader: &Reader<'_>) -> bool {
    chain::feature(reader, "ENABLE_LOCALITY_WEIGHTED_LB_CONFIG", false)
}

fn passes_through(level: Option<&TrafficPolicy>) -> bool {
    level
        .and_then(|p| p.load_balancer.as_ref())
        .is_some_and(|lb| lb.simple == Some(SimpleLb::Passthrough))
}

impl Upstream<'_, '_> {
    fn cluster(&self, subset: Option<&Subset>) -> Option<Cluster> {
        let (reader, service) = (self.reader, self.service);
        let policy = policy::of_cluster(reader, self.rule, subset, self.port.number);
        let lb = policy.load_balancer.as_ref();
        let name = ClusterName::Outbound {
            port: self.port.number,
            subset: subset
                .map(|s| Text::from(s.name.as_str()))
                .unwrap_or_default(),
            host: service.id.host.clone(),
        };
        let algorithm = policy::algorithm(lb);
        let discovery = self.discovery(&policy, subset, &name)?;
        let dynamic = matches!(discovery, Discovery::DynamicDns { .. });
        let provided = dynamic || matches!(discovery, Discovery::OriginalDst { .. });

        let mut c = bare(reader, name, discovery);
        if !dynamic && tells_services(reader) {
            c.services = vec![ServiceRef {
                host: service.id.host.clone(),
                name: service.name.clone(),
                namespace: service.id.namespace.clone(),
            }];
        }
        // Of subsets telemetry learns it from the service's own cluster.
        c.external = service.mesh_external && subset.is_none();
        c.rule = self.rule.map(Rule::path);
        c.subset = subset.map(|s| Text::from(s.name.as_str()));
        c.balancing = Balancing {
            policy: match algorithm {
                Some(algorithm) if !provided => algorithm,
                _ => Policy::ClusterProvided,
            },
            places: if dynamic {
                Places::Ignored
            } else {
                let preference = locality::preference(reader, lb, service);
                let places = preference.map_or(Places::Ignored, |p| {
                    p.places(policy.outlier_detection.is_some())
                });
                match places {
                    Places::Ignored if weighs_places(reader) => Places::Weighted,
                    said => said,
                }
            },
            panic_threshold: self.panic_threshold(&policy).filter(|_| !dynamic),
            warmup: policy::warmup(lb),
            sessions: subset.is_none() && service.has_sessions(reader.settings()),
            explicit_common: !dynamic,
        };
        self.connect(&mut c, &policy);
        c.outlier = policy.outlier_detection.as_ref().map(policy::outlier);
        let own = match subset {
            Some(s) => s.traffic_policy.as_deref(),
            None => self.rule.and_then(|r| r.spec.traffic_policy.as_ref()),
        };
        c.tls = upstream_tls::security(self, subset, policy.tls.as_ref(), passes_through(own), &c);
        c.foreign_alpn = policy.tls.as_ref().is_some_and(upstream_tls::is_users);
        c.proxy_protocol = policy.proxy_protocol.as_ref().map(|p| match p.version {
            ProxyProtocolVersion::V1 => ProxyProtocol::V1,
            ProxyProtocolVersion::V2 => ProxyProtocol::V2,
        });
        let subset = subset.map_or("", |s| &s.name);
        c.stat_name = outbound_stat(reader, service, self.port, subset);
        c.metadata_exchange = chain::peers(reader);
        Some(c)
    }

    /// Limits of connections, and what is spoken on them.
    fn connect(&self, c: &mut Cluster, policy: &TrafficPolicy) {
        let pool = policy.connection_pool.as_ref();
        c.pool = policy::pool(self.reader, pool);
        c.pool.retry_budget = policy.retry_budget.as_ref().map(policy::retry_budget);
        let protocol = self.port.protocol;
        // A gateway's clients offer HTTP/2 whatever the upstream can do, so there detection decides nothing.
        let may_be_http1 = protocol.is_http() && !protocol.is_http2() || protocol.is_auto();
        c.preserve_case = may_be_http1 && self.scope.client.conduct.preserves_case();
        let detected = protocol.is_auto() && self.scope.client.kind == ProxyKind::Sidecar;
        c.http = if policy::as_client(pool) {
            UpstreamHttp::Downstream
        } else if protocol.is_http2() {
            UpstreamHttp::Http2
        } else if detected {
            UpstreamHttp::Downstream
        } else if c.preserve_case {
            // Headers with case are HTTP/1.
            UpstreamHttp::Default
        } else if policy::upgrades(self.reader, pool, protocol.is_http()) {
            UpstreamHttp::Http2
        } else {
            UpstreamHttp::Default
        };
    }

    /// Below this share of healthy endpoints all are used. Clients that are told of unhealthy ones whatever happens must
    /// never use them.
    fn panic_threshold(&self, policy: &TrafficPolicy) -> Option<u32> {
        let (reader, service) = (self.reader, self.service);
        if endpoint::always_tells_unhealthy(reader, service) {
            return Some(0);
        }
        let written = policy.outlier_detection.as_ref();
        let written = written.and_then(|o| u32::try_from(o.min_health_percent).ok());
        written.or(endpoint::tells_unhealthy(reader, service).then_some(0))
    }

    fn discovery(
        &self,
        policy: &TrafficPolicy,
        subset: Option<&Subset>,
        name: &ClusterName,
    ) -> Option<Discovery> {
        let service = self.service;
        let original = Discovery::OriginalDst {
            use_http_header: false,
            port_override: service.passthrough_ports.get(&self.port.number).copied(),
            keep_forever: false,
        };
        // Subsets of a cluster that takes the original destination take it too, whatever they say.
        if subset.is_some() && self.takes_original(subset) {
            return Some(original);
        }
        let declared = match service.resolution {
            Resolution::ClientSide => Discovery::Eds,
            Resolution::Passthrough
                if visibility::uses_eds(self.reader, &self.scope.client, service) =>
            {
                Discovery::Eds
            }
            Resolution::Passthrough => return Some(original),
            Resolution::DynamicDns => {
                return Some(Discovery::DynamicDns {
                    host: service.id.host.clone(),
                    family: dns_family(self.reader, self.scope.client.families),
                });
            }
            Resolution::Dns | Resolution::DnsRoundRobin => self.dns(policy, subset, name)?,
            Resolution::Alias => return None,
        };
        Some(
            if policy::algorithm(policy.load_balancer.as_ref()).is_none() {
                ORIGINAL_DESTINATION
            } else {
                declared
            },
        )
    }

    /// Whether a subset's cluster is one for original destinations: its service's is, or its own policy says so.
    fn takes_original(&self, subset: Option<&Subset>) -> bool {
        let whole = policy::effective(self.rule, None, self.port.number);
        passes_through(Some(&whole))
            || passes_through(subset.and_then(|s| s.traffic_policy.as_deref()))
    }

    fn dns(
        &self,
        policy: &TrafficPolicy,
        subset: Option<&Subset>,
        name: &ClusterName,
    ) -> Option<Discovery> {
        let (reader, service) = (self.reader, self.service);
        let view = EndpointScope {
            client: self.scope.client.clone(),
            network: self.scope.network.clone(),
            cluster: Text::default(),
            node: Text::default(),
            view: std::collections::BTreeSet::new(),
        };
        let mutual = policy::tls_mode(self.rule, subset, self.port.number);
        let chosen = endpoint::Chosen {
            policy,
            subset,
            mutual,
            by_sni: self.by_sni,
        };
        let groups = endpoint::groups(reader, &view, service, self.port, &chosen, true);
        if groups.is_empty() {
            return None;
        }
        Some(Discovery::Dns {
            endpoints: EndpointSet {
                cluster: name.clone(),
                groups,
                overprovisioning: None,
                with_health: false,
            },
            logical: service.resolution == Resolution::DnsRoundRobin,
            family: dns_family(self.reader, self.scope.client.families),
            refresh: reader
                .mesh()
                .dns_refresh_rate
                .map_or(Millis::secs(60), |d| d.get().into()),
            jitter: reader
                .settings()
                .time("PILOT_DNS_JITTER_DURATION", DNS_JITTER)
                .into(),
            queries: reader
                .settings()
                .number("PILOT_DNS_CARES_UDP_MAX_QUERIES", DNS_QUERIES),
        })
    }
}

/// The name the mesh gives a destination in statistics, if it says how names are made.
pub(crate) fn outbound_stat(
    reader: &Reader<'_>,
    service: &Service,
    port: &Port,
    subset: &str,
) -> Option<Text> {
    let pattern = reader.mesh().outbound_cluster_stat_name.as_str();
    (!pattern.is_empty()).then(|| stat_name(pattern, service, port, subset, 0))
}

/// Fills in a pattern for names in statistics.
pub(crate) fn stat_name(
    pattern: &str,
    service: &Service,
    port: &Port,
    subset: &str,
    target: u16,
) -> Text {
    let kubernetes = match service.registry {
        Registry::Kubernetes => Some((&*service.name, &*service.id.namespace)),
        Registry::External => None,
    };
    let filled = fill(
        pattern,
        &service.id.host,
        kubernetes,
        subset,
        (port.number, &port.name),
    );
    Text::from(filled.replace("%TARGET_PORT%", &target.to_string()))
}

/// The same for a host; a Kubernetes service has a short name, others are called by their host.
pub(crate) fn fill(
    pattern: &str,
    host: &str,
    kubernetes: Option<(&str, &str)>,
    subset: &str,
    (port, port_name): (u16, &str),
) -> String {
    let short = kubernetes.map_or_else(|| host.to_owned(), |(name, ns)| format!("{name}.{ns}"));
    pattern
        .replace("%SERVICE%", &short)
        .replace("%SERVICE_NAME%", kubernetes.map_or(host, |(name, _)| name))
        .replace("%SERVICE_FQDN%", host)
        .replace("%SUBSET_NAME%", subset)
        .replace("%SERVICE_PORT%", &port.to_string())
        .replace("%SERVICE_PORT_NAME%", port_name)
}

/// Which addresses a proxy asks for. One without IPv4 may still be served IPv4 by its node, if the control plane is told so.
pub(crate) fn dns_family(reader: &Reader<'_>, families: Families) -> DnsFamily {
    match families {
        Families::V4 | Families::Both => DnsFamily::V4Only,
        Families::V6 if chain::feature(reader, V4_FOR_V6, false) => DnsFamily::All,
        Families::V6 => DnsFamily::V6Only,
        Families::Dual => DnsFamily::All,
    }
}
