//! Upstreams a client may reach.

use pilotfish_config::networking::{ClientTlsMode, ClientTlsSettings, Subset, TrafficPolicy};
use pilotfish_ir::cluster::{Balancing, Discovery, DnsFamily, Policy, ServiceRef, UpstreamHttp};
use pilotfish_ir::tls::{CustomTls, MutualTls, SecretSource, UpstreamTls};
use pilotfish_ir::{Cluster, ClusterName, EndpointSet, Millis};
use pilotfish_mesh::{Port, Reader, Resolution, Service, ServiceId};

use crate::policy::{self, Rule};
use crate::{
    ClusterScope, EndpointScope, Families, ProxyKind, Text, endpoint, locality, visibility,
};

/// Clusters every proxy has.
pub fn fixed(reader: &Reader<'_>, scope: &ClusterScope) -> Vec<Cluster> {
    let mut out = vec![bare(reader, ClusterName::BlackHole, Discovery::Static)];
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
        passthrough(&mut c);
        c.metadata_exchange = true;
        out.push(c);
    }
    out
}

/// What a cluster that forwards to the original destination has in common.
pub(crate) fn passthrough(c: &mut Cluster) {
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
    c.http = if as_client {
        UpstreamHttp::Downstream
    } else if policy::upgrades(reader, pool, port.protocol.is_http()) || port.protocol.is_http2() {
        UpstreamHttp::Http2
    } else if port.protocol.is_auto() {
        UpstreamHttp::Downstream
    } else {
        UpstreamHttp::Default
    };
    c.tls = tls(reader, service, port, subset, policy.tls.as_ref(), &c);
    c.metadata_exchange = true;
    Some(c)
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
    Some(match service.resolution {
        Resolution::ClientSide => Discovery::Eds,
        Resolution::Passthrough => Discovery::OriginalDst {
            use_http_header: false,
            port_override: None,
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
                network: Text::default(),
                cluster: Text::default(),
                node: Text::default(),
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
    let Some(t) = settings else {
        if service.mesh_external || reader.mesh().enable_auto_mtls == Some(false) {
            return UpstreamTls::None;
        }
        // Without endpoints there is nothing to tell apart: original destinations always get mutual TLS.
        return if matches!(c.discovery, Discovery::OriginalDst { .. }) {
            UpstreamTls::Mutual(mesh("", &[]))
        } else {
            UpstreamTls::AutoMutual(mesh("", &[]))
        };
    };
    match t.mode {
        ClientTlsMode::Disable => UpstreamTls::None,
        ClientTlsMode::IstioMutual => UpstreamTls::Mutual(mesh(&t.sni, &t.subject_alt_names)),
        ClientTlsMode::Simple | ClientTlsMode::Mutual => {
            UpstreamTls::Custom(custom(t, service, http2))
        }
    }
}

fn custom(t: &ClientTlsSettings, service: &Service, http2: bool) -> CustomTls {
    let credential = Some(t.credential_name.as_str()).filter(|c| !c.is_empty());
    let names = if t.subject_alt_names.is_empty() {
        service.subject_alt_names.clone()
    } else {
        t.subject_alt_names
            .iter()
            .map(|s| Text::from(s.as_str()))
            .collect()
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
    }
}
