//! Upstreams a client may reach.

use pilotfish_config::networking::{ClientTlsMode, ClientTlsSettings, Subset, TrafficPolicy};
use pilotfish_ir::cluster::{
    AnyHost, Balancing, Discovery, DnsFamily, Policy, ServiceRef, UpstreamHttp,
};
use pilotfish_ir::tls::{CustomTls, MutualTls, SecretSource, TlsLimits, UpstreamTls};
use pilotfish_ir::{Cluster, ClusterName, EndpointSet, Millis};
use pilotfish_mesh::{Port, Reader, Registry, Resolution, Service, ServiceId};

use crate::policy::{self, Rule};
use crate::visibility::Elsewhere;
use crate::{
    Client, ClusterScope, EndpointScope, Families, ProxyKind, Text, endpoint, locality, network,
    visibility,
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
        passthrough(&mut c, &scope.client);
        c.metadata_exchange = true;
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
    passthrough(&mut c, &scope.client);
    c.metadata_exchange = true;
    let settings = reader
        .mesh()
        .outbound_traffic_policy
        .as_ref()
        .and_then(|p| p.tls.as_ref());
    c.tls = match settings {
        Some(t) if t.mode == ClientTlsMode::IstioMutual => UpstreamTls::Mutual(MutualTls {
            sni: t.sni.clone(),
            identities: names(&t.subject_alt_names),
            http2: false,
        }),
        Some(t) if t.mode != ClientTlsMode::Disable => UpstreamTls::Custom(custom(t, &[], false)),
        _ => UpstreamTls::None,
    };
    tls_defaults(reader, &mut c.tls);
    c
}

/// How hosts nobody declared are resolved.
pub(crate) fn any_host_cache(reader: &Reader<'_>, client: &Client) -> AnyHost {
    const MOST: u32 = 1024;
    AnyHost {
        family: dns_family(client.families),
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
pub(crate) fn passthrough(c: &mut Cluster, client: &Client) {
    c.preserve_case = client.conduct.preserves_case();
    c.balancing.policy = Policy::ClusterProvided;
    c.http = UpstreamHttp::Downstream;
    c.pool.idle_timeout = Some(Millis::secs(300));
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
            locality_weighted: false,
            panic_threshold: None,
            warmup: None,
            explicit_common: false,
        },
        pool: policy::pool(reader, None),
        outlier: None,
        http: UpstreamHttp::Default,
        tls: UpstreamTls::None,
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
    let mut out = Vec::new();
    for port in visibility::ports(reader, &scope.client, service) {
        out.extend(one(reader, scope, service, port, rule, None));
        for subset in rule.iter().flat_map(|r| &r.spec.subsets) {
            out.extend(one(reader, scope, service, port, rule, Some(subset)));
        }
    }
    if !service.mesh_external && network::passes_on(reader, &scope.client) {
        let forwarded: Vec<_> = out.iter().map(by_sni).collect();
        out.extend(forwarded);
    }
    out
}

/// The same upstream for connections of another network, which are passed on as they are.
fn by_sni(c: &Cluster) -> Cluster {
    let mut out = c.clone();
    out.name = c.name.by_sni();
    out.tls = UpstreamTls::None;
    out
}

fn one(
    reader: &Reader<'_>,
    scope: &ClusterScope,
    service: &Service,
    port: &Port,
    rule: Option<Rule<'_>>,
    subset: Option<&Subset>,
) -> Option<Cluster> {
    let name = ClusterName::Outbound {
        port: port.number,
        subset: subset
            .map(|s| Text::from(s.name.as_str()))
            .unwrap_or_default(),
        host: service.id.host.clone(),
    };
    let policy = policy::effective(rule, subset, port.number);
    let lb = policy.load_balancer.as_ref();
    let algorithm = policy::algorithm(lb);
    let discovery = match discovery(reader, scope, service, port, &policy, subset, &name)? {
        Discovery::DynamicDns { host, family } => Discovery::DynamicDns { host, family },
        _ if algorithm.is_none() => Discovery::OriginalDst {
            use_http_header: false,
            port_override: None,
            keep_forever: false,
        },
        d => d,
    };
    let dynamic = matches!(discovery, Discovery::DynamicDns { .. });
    let provided = dynamic || matches!(discovery, Discovery::OriginalDst { .. });
    let outlier = policy.outlier_detection.as_ref();
    let panic = outlier
        .map(|o| o.min_health_percent)
        .filter(|p| *p > 0)
        .and_then(|p| u32::try_from(p).ok())
        .or(Some(0));
    let weighted =
        locality::preference(reader, lb, service).is_some_and(|p| p.weighted(outlier.is_some()));

    let mut c = bare(reader, name, discovery);
    if !dynamic {
        c.services = vec![ServiceRef {
            host: service.id.host.clone(),
            name: service.name.clone(),
            namespace: service.id.namespace.clone(),
        }];
    }
    c.external = service.mesh_external;
    c.rule = rule.map(|r| r.path());
    c.subset = subset.map(|s| Text::from(s.name.as_str()));
    c.balancing = Balancing {
        policy: if provided {
            Policy::ClusterProvided
        } else {
            algorithm.unwrap_or(Policy::LeastRequest)
        },
        locality_weighted: weighted && !dynamic,
        panic_threshold: panic.filter(|_| !dynamic),
        warmup: policy::warmup(lb),
        explicit_common: false,
    };
    let pool = policy.connection_pool.as_ref();
    c.pool = policy::pool(reader, pool);
    c.outlier = outlier.map(policy::outlier);
    let as_client = pool
        .and_then(|p| p.http.as_ref())
        .is_some_and(|h| h.use_client_protocol);
    let may_be_http1 =
        port.protocol.is_http() && !port.protocol.is_http2() || port.protocol.is_auto();
    c.preserve_case = may_be_http1 && scope.client.conduct.preserves_case();
    // Gateways offer HTTP/2 to all clients, so what a client speaks says nothing of the server.
    let detects = port.protocol.is_auto() && scope.client.kind == ProxyKind::Sidecar;
    let upgrades = || policy::upgrades(reader, pool, port.protocol.is_http());
    c.http = if as_client {
        UpstreamHttp::Downstream
    } else if port.protocol.is_http2() {
        UpstreamHttp::Http2
    } else if detects {
        UpstreamHttp::Downstream
    } else if c.preserve_case {
        // Headers with case are HTTP/1.
        UpstreamHttp::Default
    } else if upgrades() {
        UpstreamHttp::Http2
    } else {
        UpstreamHttp::Default
    };
    c.stat_name = outbound_stat(reader, service, port, subset.map_or("", |s| &s.name));
    c.tls = tls(
        reader,
        scope,
        service,
        port,
        subset,
        policy.tls.as_ref(),
        &c,
    );
    tls_defaults(reader, &mut c.tls);
    c.metadata_exchange = true;
    Some(c)
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

fn discovery(
    reader: &Reader<'_>,
    scope: &ClusterScope,
    service: &Service,
    port: &Port,
    policy: &TrafficPolicy,
    subset: Option<&Subset>,
    name: &ClusterName,
) -> Option<Discovery> {
    if visibility::uses_eds(reader, &scope.client, service) {
        return Some(Discovery::Eds);
    }
    Some(match service.resolution {
        Resolution::ClientSide => Discovery::Eds,
        Resolution::Passthrough => Discovery::OriginalDst {
            use_http_header: false,
            port_override: service.passthrough_ports.get(&port.number).copied(),
            keep_forever: false,
        },
        Resolution::DynamicDns => Discovery::DynamicDns {
            host: service.id.host.clone(),
            family: dns_family(scope.client.families),
        },
        Resolution::Dns | Resolution::DnsRoundRobin => {
            let view = EndpointScope {
                client: scope.client.clone(),
                locality: scope.locality.clone(),
                network: scope.network.clone(),
                cluster: Text::default(),
                node: Text::default(),
                view: std::collections::BTreeSet::new(),
            };
            let groups = endpoint::groups(reader, &view, service, port, policy, subset, true);
            if groups.is_empty() {
                return None;
            }
            Discovery::Dns {
                endpoints: EndpointSet {
                    cluster: name.clone(),
                    groups,
                    overprovisioning: None,
                    with_health: false,
                },
                logical: service.resolution == Resolution::DnsRoundRobin,
                family: dns_family(scope.client.families),
                refresh: reader
                    .mesh()
                    .dns_refresh_rate
                    .map_or(Millis::secs(60), |d| d.get().into()),
            }
        }
        Resolution::Alias => return None,
    })
}

pub(crate) fn dns_family(families: Families) -> DnsFamily {
    match families {
        Families::V4 => DnsFamily::V4Only,
        Families::V6 => DnsFamily::V6Only,
        Families::Dual => DnsFamily::All,
    }
}

/// The server name the mesh's mutual TLS sends: it names the cluster, with characters a host name may have.
pub fn mesh_sni(port: u16, subset: &str, host: &str) -> String {
    format!("outbound_.{port}_.{subset}_.{host}")
}

fn tls(
    reader: &Reader<'_>,
    scope: &ClusterScope,
    service: &Service,
    port: &Port,
    subset: Option<&Subset>,
    settings: Option<&ClientTlsSettings>,
    c: &Cluster,
) -> UpstreamTls {
    let http2 = c.http == UpstreamHttp::Http2;
    let mesh = |sni: &str, sans: &[String]| MutualTls {
        sni: if sni.is_empty() {
            mesh_sni(
                port.number,
                subset.map_or("", |s| &s.name),
                &service.id.host,
            )
        } else {
            sni.to_owned()
        },
        identities: if sans.is_empty() {
            reader.identities(&service.id).to_vec()
        } else {
            sans.iter().map(|s| Text::from(s.as_str())).collect()
        },
        http2,
    };
    // Certificates the proxy brings stand in for the mesh's, whatever the rule says of certificates.
    let own = |sni: &str, names: Vec<Text>, insecure: bool| {
        let file = |f: &Option<Text>| f.clone().map(SecretSource::File);
        CustomTls {
            sni: sni.to_owned(),
            subject_alt_names: names,
            certificate: file(&scope.files.certificate),
            roots: file(&scope.files.roots)
                .or_else(|| Some(SecretSource::File(Text::from("file-root:system")))),
            alpn: if http2 {
                vec![Text::from("h2")]
            } else {
                Vec::new()
            },
            insecure_skip_verify: insecure,
            limits: TlsLimits::default(),
        }
    };
    let brings = scope.files.certificate.is_some();
    let Some(t) = settings else {
        if service.mesh_external || reader.mesh().enable_auto_mtls == Some(false) {
            return UpstreamTls::None;
        }
        if brings {
            let m = mesh("", &[]);
            return UpstreamTls::OwnCertificate(own(&m.sni, m.identities, false));
        }
        // Without endpoints there is nothing to tell apart: original destinations always get mutual TLS.
        return if matches!(c.discovery, Discovery::OriginalDst { .. }) {
            UpstreamTls::Mutual(mesh("", &[]))
        } else {
            UpstreamTls::AutoMutual(mesh("", &[]))
        };
    };
    let written = || {
        own(
            &t.sni,
            names(&t.subject_alt_names),
            t.insecure_skip_verify == Some(true),
        )
    };
    match t.mode {
        ClientTlsMode::Disable => UpstreamTls::None,
        ClientTlsMode::IstioMutual if brings && !service.mesh_external => {
            UpstreamTls::OwnCertificate(written())
        }
        ClientTlsMode::Mutual if brings && !service.mesh_external => UpstreamTls::Custom(written()),
        ClientTlsMode::IstioMutual => UpstreamTls::Mutual(mesh(&t.sni, &t.subject_alt_names)),
        ClientTlsMode::Simple | ClientTlsMode::Mutual => {
            UpstreamTls::Custom(custom(t, &service.subject_alt_names, http2))
        }
    }
}

/// Ciphers and curves of the mesh for TLS that is not the mesh's own.
fn tls_defaults(reader: &Reader<'_>, tls: &mut UpstreamTls) {
    let (UpstreamTls::Custom(t) | UpstreamTls::OwnCertificate(t)) = tls else {
        return;
    };
    if let Some(defaults) = &reader.mesh().tls_defaults {
        t.limits.ciphers = names(&defaults.cipher_suites);
        t.limits.curves = names(&defaults.ecdh_curves);
    }
}

fn names(written: &[String]) -> Vec<Text> {
    written.iter().map(|s| Text::from(s.as_str())).collect()
}

fn custom(t: &ClientTlsSettings, declared: &[Text], http2: bool) -> CustomTls {
    let credential = Some(t.credential_name.as_str()).filter(|c| !c.is_empty());
    let names = if t.subject_alt_names.is_empty() {
        declared.to_vec()
    } else {
        names(&t.subject_alt_names)
    };
    let certificate = (t.mode == ClientTlsMode::Mutual).then(|| match credential {
        Some(name) => SecretSource::Credential(Text::from(format!("kubernetes://{name}"))),
        None => SecretSource::File(Text::from(format!(
            "file-cert:{}~{}",
            t.client_certificate, t.private_key
        ))),
    });
    let roots = match credential {
        Some(name) => Some(SecretSource::Credential(Text::from(format!(
            "kubernetes://{name}-cacert"
        )))),
        None if !t.ca_certificates.is_empty() => Some(SecretSource::File(Text::from(format!(
            "file-root:{}",
            t.ca_certificates
        )))),
        None => Some(SecretSource::File(Text::from("file-root:system"))),
    };
    CustomTls {
        sni: t.sni.clone(),
        subject_alt_names: names,
        certificate,
        roots: roots.filter(|_| t.insecure_skip_verify != Some(true)),
        alpn: if http2 {
            vec![Text::from("h2")]
        } else {
            Vec::new()
        },
        insecure_skip_verify: t.insecure_skip_verify == Some(true),
        limits: TlsLimits::default(),
    }
}
