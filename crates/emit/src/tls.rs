//! Transport sockets, both sides.
//!
//! The mesh's own certificates come from the agent beside the proxy. A proxy without one has nobody to ask, so for it
//! the mesh's mutual TLS does not exist; certificates of the user's are read from files or asked of the control plane.

use std::sync::LazyLock;

use pilotfish_ir::Text;
use pilotfish_ir::cluster::ProxyProtocol;
use pilotfish_ir::tls::{
    CertificateFiles, ClientCheck, CustomTls, DownstreamMutual, DownstreamTls, MutualTls,
    SecretSource, ServerTls, TlsLimits, TlsVersion, UpstreamTls,
};
use pilotfish_protos::envoy::config::cluster::v3::cluster::TransportSocketMatch;
use pilotfish_protos::envoy::config::core::v3::{self as core, TransportSocket};
use pilotfish_protos::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use pilotfish_protos::envoy::extensions::transport_sockets::quic::v3::QuicDownstreamTransport;
use pilotfish_protos::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use pilotfish_protos::envoy::extensions::transport_sockets::tls::v3::{
    self as tls, CommonTlsContext,
};
use pilotfish_protos::envoy::r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern};
use pilotfish_protos::google::protobuf as g;
use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
use tls::tls_parameters::TlsProtocol;

use crate::dialect::Extension;
use crate::{Dialect, value};

/// Where the agent serves secrets.
const AGENT_CLUSTER: &str = "sds-grpc";
/// How long a stock proxy waits for a secret before it goes on without.
const STOCK_WAIT: pilotfish_ir::Millis = pilotfish_ir::Millis::secs(1);
/// The system's roots, for a proxy whose agent does not look for them.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

static PLAIN: LazyLock<TransportSocket> = LazyLock::new(|| {
    socket(
        "envoy.transport_sockets.raw_buffer",
        pilotfish_protos::any(&RawBuffer {}),
    )
});

/// Catches what the first match does not.
static PLAIN_MATCH: LazyLock<TransportSocketMatch> = LazyLock::new(|| TransportSocketMatch {
    name: "tlsMode-disabled".to_owned(),
    r#match: Some(g::Struct::default()),
    transport_socket: Some(PLAIN.clone()),
});

static WORKLOAD_CERTIFICATE: LazyLock<tls::SdsSecretConfig> =
    LazyLock::new(|| workload_secret("default"));
static MESH_ROOTS: LazyLock<tls::SdsSecretConfig> = LazyLock::new(|| workload_secret("ROOTCA"));

/// How a cluster secures its connections.
pub(crate) enum Upstream {
    Plain,
    Always(TransportSocket),
    ByEndpoint(Vec<TransportSocketMatch>),
}

pub(crate) fn upstream(
    security: &UpstreamTls,
    header: Option<ProxyProtocol>,
    dialect: &Dialect,
) -> Upstream {
    let Some(version) = header.filter(|_| dialect.has(Extension::UpstreamProxyProtocol)) else {
        return secured(security, dialect);
    };
    match secured(security, dialect) {
        Upstream::Plain => {
            // Named as Istio's proxy is told, which goes by the type.
            let plain = TransportSocket {
                name: "raw_buffer".to_owned(),
                ..PLAIN.clone()
            };
            Upstream::Always(with_header(plain, version))
        }
        Upstream::Always(socket) => Upstream::Always(with_header(socket, version)),
        Upstream::ByEndpoint(mut matches) => {
            for m in &mut matches {
                m.transport_socket = m.transport_socket.take().map(|s| with_header(s, version));
            }
            Upstream::ByEndpoint(matches)
        }
    }
}

/// A socket that sends a PROXY header first.
fn with_header(inner: TransportSocket, version: ProxyProtocol) -> TransportSocket {
    use core::proxy_protocol_config::Version;
    let version = match version {
        ProxyProtocol::V1 => Version::V1,
        ProxyProtocol::V2 => Version::V2,
    };
    let config = ProxyProtocolUpstreamTransport {
        config: Some(core::ProxyProtocolConfig {
            version: version.into(),
            ..Default::default()
        }),
        transport_socket: Some(inner),
        ..Default::default()
    };
    socket(
        "envoy.transport_sockets.upstream_proxy_protocol",
        pilotfish_protos::any(&config),
    )
}

fn secured(security: &UpstreamTls, dialect: &Dialect) -> Upstream {
    match security {
        UpstreamTls::None => Upstream::Plain,
        UpstreamTls::AutoMutual(_) | UpstreamTls::Mutual(_) if !dialect.mesh_identity() => {
            Upstream::Plain
        }
        UpstreamTls::AutoMutual(mutual) => Upstream::ByEndpoint(vec![
            TransportSocketMatch {
                name: "tlsMode-istio".to_owned(),
                r#match: Some(value::fields([("tlsMode", value::text_value("istio"))])),
                transport_socket: Some(tls_socket(&mesh_client(mutual))),
            },
            PLAIN_MATCH.clone(),
        ]),
        UpstreamTls::Mutual(mutual) => Upstream::Always(tls_socket(&mesh_client(mutual))),
        UpstreamTls::Custom(custom) | UpstreamTls::OwnCertificate(custom) => {
            Upstream::Always(tls_socket(&custom_client(custom, dialect)))
        }
    }
}

/// Whether the proxy can terminate this TLS.
pub(crate) fn can_serve(security: &DownstreamTls, dialect: &Dialect) -> bool {
    let needs_identity = match security {
        DownstreamTls::Mutual(_) => true,
        DownstreamTls::Server(server) => server.certificates.contains(&SecretSource::Workload),
    };
    dialect.mesh_identity() || !needs_identity
}

/// The socket of a chain, or `None` if the proxy cannot terminate this TLS.
pub(crate) fn downstream(security: &DownstreamTls, dialect: &Dialect) -> Option<TransportSocket> {
    server_context(security, dialect).map(|context| tls_socket(&context))
}

/// The same over QUIC.
pub(crate) fn downstream_quic(
    security: &DownstreamTls,
    dialect: &Dialect,
) -> Option<TransportSocket> {
    let config = QuicDownstreamTransport {
        downstream_tls_context: Some(server_context(security, dialect)?),
        ..Default::default()
    };
    Some(socket(
        "envoy.transport_sockets.quic",
        pilotfish_protos::any(&config),
    ))
}

fn server_context(
    security: &DownstreamTls,
    dialect: &Dialect,
) -> Option<tls::DownstreamTlsContext> {
    can_serve(security, dialect).then(|| match security {
        DownstreamTls::Mutual(mutual) => mesh_server(mutual, dialect),
        DownstreamTls::Server(server) => custom_server(server, dialect),
    })
}

fn mesh_client(mutual: &MutualTls) -> tls::UpstreamTlsContext {
    let mut alpn = vec!["istio".to_owned()];
    if mutual.peer_exchange {
        alpn.insert(0, "istio-peer-exchange".to_owned());
    }
    if mutual.http2 {
        alpn.push("h2".to_owned());
    }
    let names = mutual
        .identities
        .iter()
        .map(|name| matcher(MatchPattern::Exact(value::string(name))))
        .collect();
    tls::UpstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            tls_params: Some(client_parameters()),
            alpn_protocols: alpn,
            ..mesh_identity(names)
        }),
        sni: mutual.sni.clone(),
        ..Default::default()
    }
}

fn mesh_server(mutual: &DownstreamMutual, dialect: &Dialect) -> tls::DownstreamTlsContext {
    let names = mutual
        .identity_prefixes
        .iter()
        .map(|p| matcher(MatchPattern::Prefix(value::string(p))))
        .collect();
    let oldest = if mutual.tls13_only {
        TlsProtocol::TlSv13
    } else {
        TlsProtocol::TlSv12
    };
    let explicit = mutual.tls13_only || !mutual.ciphers.is_empty();
    tls::DownstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            tls_params: explicit.then(|| tls::TlsParameters {
                tls_minimum_protocol_version: oldest.into(),
                tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
                cipher_suites: strings(&mutual.ciphers),
                ..Default::default()
            }),
            alpn_protocols: strings(&mutual.alpn),
            ..identity(&mutual.files, names, dialect)
        }),
        require_client_certificate: Some(value::bool(true)),
        ..Default::default()
    }
}

fn custom_server(server: &ServerTls, dialect: &Dialect) -> tls::DownstreamTlsContext {
    let mut common = CommonTlsContext {
        alpn_protocols: strings(&server.alpn),
        tls_params: (server.limits != TlsLimits::default()).then(|| parameters(&server.limits)),
        validation_context_type: server.clients.as_ref().map(|c| client_check(c, dialect)),
        ..Default::default()
    };
    for certificate in &server.certificates {
        set_certificate(&mut common, certificate, dialect);
    }
    tls::DownstreamTlsContext {
        common_tls_context: Some(common),
        require_client_certificate: Some(value::bool(server.require_client)),
        ..Default::default()
    }
}

fn parameters(limits: &TlsLimits) -> tls::TlsParameters {
    let version = |v: Option<TlsVersion>| match v {
        None => TlsProtocol::TlsAuto,
        Some(TlsVersion::V1_0) => TlsProtocol::TlSv10,
        Some(TlsVersion::V1_1) => TlsProtocol::TlSv11,
        Some(TlsVersion::V1_2) => TlsProtocol::TlSv12,
        Some(TlsVersion::V1_3) => TlsProtocol::TlSv13,
    };
    tls::TlsParameters {
        tls_minimum_protocol_version: version(limits.oldest).into(),
        tls_maximum_protocol_version: version(limits.newest).into(),
        cipher_suites: strings(&limits.ciphers),
        ecdh_curves: strings(&limits.curves),
        ..Default::default()
    }
}

/// Hashes that nothing has.
const NO_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
const NO_CERTIFICATE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Hashes as written. A listener with one that Envoy cannot read is refused with all its servers, so where no parity with
/// Istio is asked for such a hash becomes one that nothing has: nobody passes, as nobody would, and other servers work.
fn pins(written: &[Text], valid: fn(&str) -> bool, nothing: &str, to: &Dialect) -> Vec<String> {
    let pin = |p: &Text| {
        if to.mesh_identity() || valid(p) {
            value::string(p)
        } else {
            nothing.to_owned()
        }
    };
    written.iter().map(pin).collect()
}

/// SHA-256 in base64.
fn is_key_hash(s: &str) -> bool {
    let digits = s.strip_suffix('=').unwrap_or_default();
    let is_digit = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
    digits.len() == 43 && digits.bytes().all(is_digit)
}

/// SHA-256 in hexadecimal, the bytes joined or parted by colons.
fn is_certificate_hash(s: &str) -> bool {
    let digits =
        |part: &str, n: usize| part.len() == n && part.bytes().all(|b| b.is_ascii_hexdigit());
    digits(s, 64) || s.len() == 95 && s.split(':').all(|byte| digits(byte, 2))
}

/// What a client's certificate must be. The roots come over SDS unless the proxy reads files itself.
fn client_check(check: &ClientCheck, dialect: &Dialect) -> ValidationContextType {
    use tls::certificate_validation_context::TrustChainVerification;
    let trust = if check.accept_untrusted {
        TrustChainVerification::AcceptUntrusted
    } else {
        TrustChainVerification::VerifyTrustChain
    };
    let context = tls::CertificateValidationContext {
        verify_certificate_spki: pins(&check.key_hashes, is_key_hash, NO_KEY, dialect),
        verify_certificate_hash: pins(
            &check.certificate_hashes,
            is_certificate_hash,
            NO_CERTIFICATE,
            dialect,
        ),
        crl: check.revoked.as_ref().map(|path| file(path)),
        trust_chain_verification: trust.into(),
        ..Default::default()
    };
    match &check.roots {
        Some(SecretSource::File(name)) if reads_roots(name, dialect) => {
            ValidationContextType::ValidationContext(tls::CertificateValidationContext {
                trusted_ca: Some(file(roots_file(name))),
                match_typed_subject_alt_names: typed_names(&check.names),
                ..context
            })
        }
        Some(roots) => combined(
            roots_secret(roots, dialect),
            accept(context, exact(&check.names)),
        ),
        None => ValidationContextType::ValidationContext(accept(context, exact(&check.names))),
    }
}

fn custom_client(custom: &CustomTls, dialect: &Dialect) -> tls::UpstreamTlsContext {
    let mut common = CommonTlsContext {
        tls_params: Some(tls::TlsParameters {
            cipher_suites: strings(&custom.limits.ciphers),
            ecdh_curves: strings(&custom.limits.curves),
            ..client_parameters()
        }),
        alpn_protocols: strings(&custom.alpn),
        ..Default::default()
    };
    if let Some(certificate) = &custom.certificate {
        set_certificate(&mut common, certificate, dialect);
    }
    common.validation_context_type = (!custom.silent).then(|| match &custom.roots {
        Some(roots) if !custom.insecure_skip_verify => revoking(
            validation(roots, &custom.subject_alt_names, dialect),
            custom.revoked.as_deref(),
            dialect,
        ),
        // Present and empty: whatever the server shows is accepted.
        _ => ValidationContextType::ValidationContext(tls::CertificateValidationContext::default()),
    });
    tls::UpstreamTlsContext {
        common_tls_context: Some(common),
        sni: custom.sni.clone(),
        ..Default::default()
    }
}

/// The same validation with a list of revoked certificates. A proxy that cannot be told of files is not told of this one:
/// it would refuse the cluster.
fn revoking(
    mut rules: ValidationContextType,
    file_name: Option<&str>,
    dialect: &Dialect,
) -> ValidationContextType {
    let Some(path) = file_name.filter(|_| dialect.mesh_identity() || dialect.reads_files()) else {
        return rules;
    };
    let context = match &mut rules {
        ValidationContextType::ValidationContext(context) => Some(context),
        ValidationContextType::CombinedValidationContext(combined) => {
            combined.default_validation_context.as_mut()
        }
        _ => None,
    };
    if let Some(context) = context {
        context.crl = Some(file(path));
    }
    rules
}

/// The workload's certificate, and the mesh's roots with the names accepted.
fn mesh_identity(names: Vec<StringMatcher>) -> CommonTlsContext {
    CommonTlsContext {
        tls_certificate_sds_secret_configs: vec![WORKLOAD_CERTIFICATE.clone()],
        validation_context_type: Some(combined(
            MESH_ROOTS.clone(),
            accept(tls::CertificateValidationContext::default(), names),
        )),
        ..Default::default()
    }
}

/// The same, where files stand in for what the mesh gives.
fn identity(
    files: &CertificateFiles,
    names: Vec<StringMatcher>,
    dialect: &Dialect,
) -> CommonTlsContext {
    let named = |file: &Option<Text>, mesh: &LazyLock<tls::SdsSecretConfig>| match file {
        Some(name) => secret(&SecretSource::File(name.clone()), mesh, dialect),
        None => (**mesh).clone(),
    };
    CommonTlsContext {
        tls_certificate_sds_secret_configs: vec![named(&files.certificate, &WORKLOAD_CERTIFICATE)],
        validation_context_type: Some(combined(
            named(&files.roots, &MESH_ROOTS),
            accept(tls::CertificateValidationContext::default(), names),
        )),
        ..Default::default()
    }
}

fn set_certificate(common: &mut CommonTlsContext, source: &SecretSource, dialect: &Dialect) {
    match source {
        SecretSource::File(name) if dialect.reads_files() => {
            let (chain, key) = certificate_files(name);
            common.tls_certificates.push(tls::TlsCertificate {
                certificate_chain: Some(file(chain)),
                private_key: Some(file(key)),
                ..Default::default()
            });
        }
        _ => common
            .tls_certificate_sds_secret_configs
            .push(certificate_secret(source, dialect)),
    }
}

fn validation(roots: &SecretSource, names: &[Text], dialect: &Dialect) -> ValidationContextType {
    match roots {
        SecretSource::File(name) if reads_roots(name, dialect) => {
            ValidationContextType::ValidationContext(tls::CertificateValidationContext {
                trusted_ca: Some(file(roots_file(name))),
                match_typed_subject_alt_names: typed_names(names),
                ..Default::default()
            })
        }
        _ => combined(
            roots_secret(roots, dialect),
            accept(tls::CertificateValidationContext::default(), exact(names)),
        ),
    }
}

fn exact(names: &[Text]) -> Vec<StringMatcher> {
    names
        .iter()
        .map(|name| matcher(MatchPattern::Exact(value::string(name))))
        .collect()
}

fn accept(
    context: tls::CertificateValidationContext,
    names: Vec<StringMatcher>,
) -> tls::CertificateValidationContext {
    #[expect(
        deprecated,
        reason = "what Istio's proxy is sent; it matches names of any kind"
    )]
    tls::CertificateValidationContext {
        match_subject_alt_names: names,
        ..context
    }
}

fn combined(
    roots: tls::SdsSecretConfig,
    defaults: tls::CertificateValidationContext,
) -> ValidationContextType {
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(defaults),
        validation_context_sds_secret_config: Some(roots),
        ..Default::default()
    })
}

/// A name may be of a host or of a workload; it is accepted as either.
fn typed_names(names: &[Text]) -> Vec<tls::SubjectAltNameMatcher> {
    use tls::subject_alt_name_matcher::SanType;
    names
        .iter()
        .flat_map(|name| [SanType::Dns, SanType::Uri].map(|kind| (kind, name)))
        .map(|(kind, name)| tls::SubjectAltNameMatcher {
            san_type: kind.into(),
            matcher: Some(matcher(MatchPattern::Exact(value::string(name)))),
            ..Default::default()
        })
        .collect()
}

fn client_parameters() -> tls::TlsParameters {
    tls::TlsParameters {
        tls_minimum_protocol_version: TlsProtocol::TlSv12.into(),
        tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
        ..Default::default()
    }
}

/// A secret of the workload itself. Connections wait for it however long it takes.
fn workload_secret(name: &str) -> tls::SdsSecretConfig {
    let source = core::ConfigSource {
        initial_fetch_timeout: Some(g::Duration::default()),
        ..agent()
    };
    tls::SdsSecretConfig {
        name: name.to_owned(),
        sds_config: Some(source),
    }
}

/// Whether the proxy reads roots from a file itself. Those of the system are where every system has them.
fn reads_roots(name: &str, dialect: &Dialect) -> bool {
    dialect.reads_files() || (!dialect.mesh_identity() && roots_file(name) == SYSTEM_ROOTS)
}

fn certificate_secret(source: &SecretSource, dialect: &Dialect) -> tls::SdsSecretConfig {
    secret(source, &WORKLOAD_CERTIFICATE, dialect)
}

fn roots_secret(source: &SecretSource, dialect: &Dialect) -> tls::SdsSecretConfig {
    secret(source, &MESH_ROOTS, dialect)
}

fn secret(
    source: &SecretSource,
    own: &tls::SdsSecretConfig,
    dialect: &Dialect,
) -> tls::SdsSecretConfig {
    let (name, source) = match source {
        SecretSource::Workload => return own.clone(),
        SecretSource::File(name) if dialect.mesh_identity() => (name, agent()),
        SecretSource::File(name) | SecretSource::Credential(name) => {
            // A stock proxy does not hold everything up for a secret that may never come: without it connections fail,
            // and nothing else.
            let wait = (!dialect.mesh_identity()).then(|| value::duration(STOCK_WAIT));
            let source = core::ConfigSource {
                initial_fetch_timeout: wait,
                ..value::ads()
            };
            (name, source)
        }
    };
    tls::SdsSecretConfig {
        name: value::string(name),
        sds_config: Some(source),
    }
}

fn agent() -> core::ConfigSource {
    use core::{api_config_source::ApiType, config_source::ConfigSourceSpecifier, grpc_service};
    let target = grpc_service::EnvoyGrpc {
        cluster_name: AGENT_CLUSTER.to_owned(),
        ..Default::default()
    };
    core::ConfigSource {
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(ConfigSourceSpecifier::ApiConfigSource(
            core::ApiConfigSource {
                api_type: ApiType::Grpc.into(),
                transport_api_version: core::ApiVersion::V3.into(),
                grpc_services: vec![core::GrpcService {
                    target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(target)),
                    ..Default::default()
                }],
                set_node_on_first_message_only: true,
                ..Default::default()
            },
        )),
        ..Default::default()
    }
}

/// Paths in `file-cert:<chain>~<key>`.
fn certificate_files(name: &str) -> (&str, &str) {
    let paths = name.strip_prefix("file-cert:").unwrap_or(name);
    paths.split_once('~').unwrap_or((paths, paths))
}

/// Path in `file-root:<path>`, where `system` stands for the system's roots.
fn roots_file(name: &str) -> &str {
    match name.strip_prefix("file-root:").unwrap_or(name) {
        "system" => SYSTEM_ROOTS,
        path => path,
    }
}

fn file(path: &str) -> core::DataSource {
    core::DataSource {
        specifier: Some(core::data_source::Specifier::Filename(path.to_owned())),
        ..Default::default()
    }
}

fn matcher(pattern: MatchPattern) -> StringMatcher {
    StringMatcher {
        match_pattern: Some(pattern),
        ..Default::default()
    }
}

fn tls_socket<C: prost::Message + prost::Name>(context: &C) -> TransportSocket {
    socket(
        "envoy.transport_sockets.tls",
        pilotfish_protos::any(context),
    )
}

fn socket(name: &str, config: g::Any) -> TransportSocket {
    TransportSocket {
        name: name.to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(config)),
    }
}

fn strings(texts: &[Text]) -> Vec<String> {
    texts.iter().map(value::string).collect()
}
