//! How connections to an upstream are secured.

use pilotfish_config::Diagnostic;
use pilotfish_config::networking::{ClientTlsMode, ClientTlsSettings, Subset};
use pilotfish_ir::Cluster;
use pilotfish_ir::cluster::{Discovery, UpstreamHttp};
use pilotfish_ir::tls::{ByRequest, CustomTls, MutualTls, SecretSource, TlsLimits, UpstreamTls};
use pilotfish_mesh::{Reader, Registry};

use crate::cluster::Upstream;
use crate::secret::credential;
use crate::{ProxyKind, Text, chain, peer};

/// The server name the mesh's mutual TLS sends: it names the cluster, with characters a host name may have.
pub fn mesh_sni(port: u16, subset: &str, host: &str) -> String {
    format!("outbound_.{port}_.{subset}_.{host}")
}

/// TLS that the user describes, to a server that does not know the mesh.
pub(crate) fn is_users(t: &ClientTlsSettings) -> bool {
    matches!(t.mode, ClientTlsMode::Simple | ClientTlsMode::Mutual)
}

/// The security of a cluster, given what its policy says of TLS. `passes_through`: the policy of its own level (that of the
/// subset, or of the service) sends connections where the application wants them.
pub(crate) fn security(
    upstream: &Upstream<'_, '_>,
    subset: Option<&Subset>,
    settings: Option<&ClientTlsSettings>,
    passes_through: bool,
    c: &Cluster,
) -> UpstreamTls {
    let Some(t) = settings else {
        return inferred(upstream, subset, passes_through, c);
    };
    // The authorities of the mesh mean nothing outside of it.
    let as_written = upstream.service.mesh_external
        && chain::feature(
            upstream.reader,
            "PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES",
            true,
        );
    let brings = upstream.scope.files.certificate.is_some() && !as_written;
    match t.mode {
        ClientTlsMode::Disable => UpstreamTls::None,
        ClientTlsMode::IstioMutual if brings => UpstreamTls::OwnCertificate(own(upstream, t, c)),
        ClientTlsMode::Mutual if brings => UpstreamTls::Custom(own(upstream, t, c)),
        ClientTlsMode::IstioMutual => UpstreamTls::Mutual(mesh(upstream, subset, t, c)),
        ClientTlsMode::Simple | ClientTlsMode::Mutual if lacks_credential(upstream, t) => {
            UpstreamTls::None
        }
        ClientTlsMode::Simple | ClientTlsMode::Mutual => {
            UpstreamTls::Custom(custom(upstream, t, c))
        }
    }
}

/// Mutual TLS without anybody having asked for it.
fn inferred(
    upstream: &Upstream<'_, '_>,
    subset: Option<&Subset>,
    passes_through: bool,
    c: &Cluster,
) -> UpstreamTls {
    let (reader, service) = (upstream.reader, upstream.service);
    if service.mesh_external
        || reader.mesh().enable_auto_mtls == Some(false)
        || !peer::tried(reader, service, &upstream.port.name, passes_through)
    {
        return UpstreamTls::None;
    }
    let mutual = mesh(upstream, subset, &ClientTlsSettings::default(), c);
    if upstream.scope.files.certificate.is_some() {
        let as_written = ClientTlsSettings {
            sni: mutual.sni,
            subject_alt_names: mutual.identities.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        return UpstreamTls::OwnCertificate(own(upstream, &as_written, c));
    }
    if matches!(c.discovery, Discovery::OriginalDst { .. }) {
        UpstreamTls::Mutual(mutual)
    } else {
        UpstreamTls::AutoMutual(mutual)
    }
}

fn is_dynamic(c: &Cluster) -> bool {
    matches!(c.discovery, Discovery::DynamicDns { .. })
}

fn mesh(
    upstream: &Upstream<'_, '_>,
    subset: Option<&Subset>,
    t: &ClientTlsSettings,
    c: &Cluster,
) -> MutualTls {
    let dynamic = is_dynamic(c);
    MutualTls {
        sni: if t.sni.is_empty() && !dynamic {
            mesh_sni(
                upstream.port.number,
                subset.map_or("", |s| &s.name),
                &upstream.service.id.host,
            )
        } else {
            t.sni.clone()
        },
        identities: if t.subject_alt_names.is_empty() && !dynamic {
            upstream.reader.identities(&upstream.service.id).to_vec()
        } else {
            texts(&t.subject_alt_names)
        },
        http2: c.http == UpstreamHttp::Http2,
        peer_exchange: chain::peer_exchange(upstream.reader),
        by_request: if dynamic {
            by_request(t, true)
        } else {
            ByRequest::default()
        },
    }
}

fn texts(strings: &[String]) -> Vec<Text> {
    strings.iter().map(|s| Text::from(s.as_str())).collect()
}

/// Without a server name of its own a cluster uses the request's, and expects a certificate for it unless the user says
/// which one to expect. Where the request names the upstream, the certificate must always be the upstream's.
fn by_request(t: &ClientTlsSettings, dynamic: bool) -> ByRequest {
    let sni = t.sni.is_empty();
    ByRequest {
        sni,
        san: t.insecure_skip_verify != Some(true)
            && (dynamic || (sni && t.subject_alt_names.is_empty())),
    }
}

/// Secrets of the cluster are for gateways, and for the sidecars a rule names: else every sidecar that sees the rule would
/// wait for a secret it may not read.
fn lacks_credential(upstream: &Upstream<'_, '_>, t: &ClientTlsSettings) -> bool {
    let named = upstream
        .rule
        .is_some_and(|r| r.spec.workload_selector.is_some());
    let lacks = !t.credential_name.is_empty()
        && !t.credential_name.starts_with("configmap://")
        && upstream.scope.client.kind == ProxyKind::Sidecar
        && !named;
    if let Some(rule) = upstream.rule.filter(|_| lacks) {
        upstream.reader.report(
            Diagnostic::warning(
                "credential-not-for-sidecars",
                "credentialName without workloadSelector is for gateways only",
                "sidecars connect to the host without TLS",
            )
            .of(rule.object.key.clone())
            .at("spec.trafficPolicy.tls.credentialName".to_owned())
            .from_origin(rule.object.origin.clone()),
        );
    }
    lacks
}

/// Certificates the proxy brings stand in for the mesh's, whatever the rule says of certificates.
fn own(upstream: &Upstream<'_, '_>, t: &ClientTlsSettings, c: &Cluster) -> CustomTls {
    let file = |f: &Option<Text>| f.clone().map(SecretSource::File);
    let files = &upstream.scope.files;
    CustomTls {
        sni: t.sni.clone(),
        subject_alt_names: texts(&t.subject_alt_names),
        certificate: file(&files.certificate),
        roots: file(&files.roots).or_else(|| Some(SecretSource::File("file-root:system".into()))),
        alpn: alpn(c.http == UpstreamHttp::Http2),
        insecure_skip_verify: t.insecure_skip_verify == Some(true),
        by_request: by_request(t, is_dynamic(c)),
        limits: limits(upstream.reader),
        ..Default::default()
    }
}

/// The security of the cluster for hosts that nobody declared.
pub(crate) fn any_host(reader: &Reader<'_>, t: &ClientTlsSettings) -> UpstreamTls {
    match t.mode {
        ClientTlsMode::Disable => UpstreamTls::None,
        ClientTlsMode::IstioMutual => UpstreamTls::Mutual(MutualTls {
            sni: t.sni.clone(),
            identities: texts(&t.subject_alt_names),
            http2: false,
            peer_exchange: chain::peer_exchange(reader),
            by_request: by_request(t, true),
        }),
        ClientTlsMode::Simple | ClientTlsMode::Mutual => UpstreamTls::Custom(CustomTls {
            subject_alt_names: texts(&t.subject_alt_names),
            by_request: by_request(t, true),
            limits: limits(reader),
            ..written(t)
        }),
    }
}

fn alpn(http2: bool) -> Vec<Text> {
    if http2 {
        vec![Text::from("h2")]
    } else {
        Vec::new()
    }
}

/// What the mesh allows TLS that is not its own to negotiate.
fn limits(reader: &Reader<'_>) -> TlsLimits {
    let defaults = reader.mesh().tls_defaults.as_ref();
    TlsLimits {
        ciphers: defaults.map_or_else(Vec::new, |d| texts(&d.cipher_suites)),
        curves: defaults.map_or_else(Vec::new, |d| texts(&d.ecdh_curves)),
        ..Default::default()
    }
}

fn custom(upstream: &Upstream<'_, '_>, t: &ClientTlsSettings, c: &Cluster) -> CustomTls {
    let service = upstream.service;
    let declared = t.subject_alt_names.is_empty() && service.registry != Registry::Kubernetes;
    CustomTls {
        subject_alt_names: if declared && !is_dynamic(c) {
            upstream.reader.identities(&service.id).to_vec()
        } else {
            texts(&t.subject_alt_names)
        },
        alpn: alpn(c.http == UpstreamHttp::Http2),
        by_request: by_request(t, is_dynamic(c)),
        limits: limits(upstream.reader),
        ..written(t)
    }
}

/// Where keys and roots come from, as written.
fn written(t: &ClientTlsSettings) -> CustomTls {
    let insecure = t.insecure_skip_verify == Some(true);
    let named = Some(t.credential_name.as_str()).filter(|c| !c.is_empty());
    let certificate = match named {
        Some(name) => credential(name),
        None => SecretSource::File(Text::from(format!(
            "file-cert:{}~{}",
            t.client_certificate, t.private_key
        ))),
    };
    let roots = match named {
        Some(name) => credential(&format!("{name}-cacert")),
        None if t.ca_certificates.is_empty() => SecretSource::File(Text::from("file-root:system")),
        None => SecretSource::File(Text::from(format!("file-root:{}", t.ca_certificates))),
    };
    CustomTls {
        sni: t.sni.clone(),
        certificate: (t.mode == ClientTlsMode::Mutual).then_some(certificate),
        roots: Some(roots).filter(|_| !insecure),
        revoked: Some(t.ca_crl.as_str())
            .filter(|path| !path.is_empty() && named.is_none() && !insecure)
            .map(Text::from),
        insecure_skip_verify: insecure,
        silent: insecure && named.is_some(),
        ..Default::default()
    }
}
