//! How a proxy conducts itself on the connections it takes: what its own configuration says, else the mesh's default for
//! proxies. The two are not merged: a proxy that brings a configuration is not asked about the mesh's.

use pilotfish_config::mesh::ProxyConfig;
use pilotfish_config::mesh::proxy_types::{
    ConnectionProfile, ConnectionSettings, CustomTag, ForwardClientCertDetails,
    HeadersWithUnderscoresAction, MetadataExchangeMode, PathWithEscapedSlashesAction, ProxyHeaders,
    Tracing,
};
use pilotfish_ir::Millis;
use pilotfish_ir::listener::{
    CertificateParts, ClientCert, EscapedSlashes, Headers, Http2Limits, HttpLimits, TagValue,
    Underscores,
};

use crate::{ProxyKind, Text};

/// What the mesh's proxies call themselves.
const SERVER: &str = "istio-envoy";

/// How a proxy conducts itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conduct {
    /// Headers of every side; what differs by side is in the fields below.
    headers: Headers,
    /// Server header of every side; `None`: each side's own.
    server: Option<Text>,
    /// What the inbound side makes of the client certificate header.
    client_cert: ClientCert,
    /// Parts of the certificate the inbound side tells.
    parts: CertificateParts,
    /// The same for gateways, and the proxies in front of them.
    gateway_cert: ClientCert,
    trusted_hops: u32,
    /// Connections to gateways begin with a PROXY header.
    pub proxy_protocol: bool,
    /// Requests say which attempt they are.
    pub attempt_count: bool,
    /// The host asked for is passed on where it is rewritten.
    pub forwarded_host: bool,
    /// Limits on connections and streams.
    pub limits: HttpLimits,
    /// Most bytes buffered for a connection to a gateway.
    pub buffer_limit: Option<u32>,
    /// Adjacent slashes, where the proxy overrules the mesh.
    merge_slashes: Option<bool>,
    /// Escaped slashes, where the proxy overrules the mesh.
    escaped_slashes: Option<EscapedSlashes>,
    /// Idle connections are closed.
    pub idle_timeout: Option<Millis>,
    /// Connections of an inbound listener are spread evenly over the workers.
    pub inbound_balance: bool,
    /// The same for outbound listeners.
    pub outbound_balance: bool,
    /// Who answers its DNS questions, if that is not the system.
    pub dns_proxy: Option<(Text, u16)>,
}

/// Settings a proxy sends beside its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Idle connections are closed.
    pub idle_timeout: Option<Millis>,
    /// Connections of an inbound listener are spread evenly over the workers.
    pub inbound_balance: bool,
    /// The same for outbound listeners.
    pub outbound_balance: bool,
    /// Who answers its DNS questions, if that is not the system.
    pub dns_proxy: Option<(Text, u16)>,
}

impl Conduct {
    /// From the configuration that counts for a proxy. `mesh` fills in connection settings that it does not have.
    pub fn new(
        config: Option<&ProxyConfig>,
        mesh: Option<&ProxyConfig>,
        kind: ProxyKind,
        extras: &Extras,
    ) -> Self {
        let config = config.or(mesh);
        let silent = ProxyHeaders::default();
        let h = config
            .and_then(|c| c.proxy_headers.as_ref())
            .unwrap_or(&silent);
        let connections = config
            .and_then(|c| c.connection_settings.as_ref())
            .or_else(|| mesh.and_then(|m| m.connection_settings.as_ref()))
            .cloned()
            .map(|c| with_profile(c, kind))
            .unwrap_or_default();
        let topology = config.and_then(|c| c.gateway_topology.as_ref());
        let server_off = h.server.as_ref().is_some_and(|s| s.disabled == Some(true));
        let mut limits = limits(&connections);
        limits.idle_timeout = limits.idle_timeout.or(extras.idle_timeout);
        Self {
            headers: Headers {
                server_of_application: server_off,
                no_request_id: off(h.request_id.as_ref().and_then(|x| x.disabled)),
                no_debug: off(h.envoy_debug_headers.as_ref().and_then(|x| x.disabled)),
                metadata_in_mesh: h
                    .metadata_exchange_headers
                    .as_ref()
                    .is_some_and(|m| m.mode == MetadataExchangeMode::InMesh),
                preserve_case: h.preserve_http1_header_case == Some(true),
                forwarded_port: h
                    .x_forwarded_port
                    .as_ref()
                    .is_some_and(|x| x.enabled == Some(true)),
                trusted_hops: 0,
                certificate: None,
                internal_networks: Vec::new(),
            },
            server: h
                .server
                .as_ref()
                .map(|s| s.value.as_str())
                .filter(|v| !server_off && !v.is_empty())
                .map(Text::from),
            client_cert: client_cert(h.forwarded_client_cert).unwrap_or(ClientCert::AppendForward),
            parts: parts(h),
            gateway_cert: topology
                .and_then(|t| client_cert(t.forward_client_cert_details))
                .unwrap_or(ClientCert::SanitizeSet),
            trusted_hops: topology.map_or(0, |t| t.num_trusted_proxies),
            proxy_protocol: topology.is_some_and(|t| t.proxy_protocol.is_some()),
            attempt_count: !off(h.attempt_count.as_ref().and_then(|x| x.disabled)),
            forwarded_host: h
                .x_forwarded_host
                .as_ref()
                .is_some_and(|x| x.enabled == Some(true)),
            limits,
            buffer_limit: unsigned(connections.listener_per_connection_buffer_limit_bytes),
            merge_slashes: connections.http_merge_slashes,
            escaped_slashes: escaped_slashes(connections.http_path_with_escaped_slashes_action),
            idle_timeout: extras.idle_timeout,
            inbound_balance: extras.inbound_balance,
            outbound_balance: extras.outbound_balance,
            dns_proxy: extras.dns_proxy.clone(),
        }
    }

    /// Names of HTTP/1 headers keep the case they were written in.
    pub fn preserves_case(&self) -> bool {
        self.headers.preserve_case
    }

    /// The same conduct as far as endpoints and names know it: not at all.
    pub fn unknown() -> Self {
        Self::new(None, None, ProxyKind::Sidecar, &Extras::default())
    }

    /// Headers and server name of a caller's side.
    pub(crate) fn client(&self) -> (Headers, Option<Text>) {
        (self.headers.clone(), self.server.clone())
    }

    /// Headers, server name and client certificate header of the callee's side.
    pub(crate) fn server(&self) -> (Headers, Option<Text>, ClientCert) {
        let headers = Headers {
            certificate: Some(self.parts),
            // What the inbound side answers stays in the mesh anyway.
            metadata_in_mesh: false,
            ..self.headers.clone()
        };
        (headers, self.named(), self.client_cert)
    }

    /// Headers, server name and client certificate header of a gateway.
    pub(crate) fn gateway(&self) -> (Headers, Option<Text>, ClientCert) {
        let tells = matches!(
            self.gateway_cert,
            ClientCert::AppendForward | ClientCert::SanitizeSet
        );
        let headers = Headers {
            trusted_hops: self.trusted_hops,
            certificate: tells.then_some(CertificateParts {
                subject: true,
                certificate: true,
                chain: false,
                dns: true,
                uri: true,
            }),
            ..self.headers.clone()
        };
        (headers, self.named(), self.gateway_cert)
    }

    fn named(&self) -> Option<Text> {
        if self.headers.server_of_application {
            return None;
        }
        Some(self.server.clone().unwrap_or_else(|| Text::from(SERVER)))
    }

    /// Adjacent slashes and escaped ones, given what the mesh says.
    pub(crate) fn slashes(&self, merge: bool, escaped: EscapedSlashes) -> (bool, EscapedSlashes) {
        (
            self.merge_slashes.unwrap_or(merge),
            self.escaped_slashes.unwrap_or(escaped),
        )
    }
}

fn off(disabled: Option<bool>) -> bool {
    disabled == Some(true)
}

fn client_cert(details: ForwardClientCertDetails) -> Option<ClientCert> {
    Some(match details {
        ForwardClientCertDetails::Undefined => return None,
        ForwardClientCertDetails::Sanitize => ClientCert::Sanitize,
        ForwardClientCertDetails::ForwardOnly => ClientCert::ForwardOnly,
        ForwardClientCertDetails::AppendForward => ClientCert::AppendForward,
        ForwardClientCertDetails::SanitizeSet => ClientCert::SanitizeSet,
        ForwardClientCertDetails::AlwaysForwardOnly => ClientCert::AlwaysForwardOnly,
    })
}

/// Subject, names and URIs are told unless the user says not to; certificate and chain only if he says so.
fn parts(h: &ProxyHeaders) -> CertificateParts {
    let d = h.set_current_client_cert_details.as_ref();
    CertificateParts {
        subject: d.and_then(|d| d.subject).unwrap_or(true),
        certificate: d.and_then(|d| d.cert).unwrap_or(false),
        chain: d.and_then(|d| d.chain).unwrap_or(false),
        dns: d.and_then(|d| d.dns).unwrap_or(true),
        uri: d.and_then(|d| d.uri).unwrap_or(true),
    }
}

fn unsigned(n: Option<i32>) -> Option<u32> {
    n.and_then(|n| u32::try_from(n).ok())
}

/// Settings with the profile for the edge put under them; sidecars have none.
fn with_profile(mut c: ConnectionSettings, kind: ProxyKind) -> ConnectionSettings {
    use pilotfish_config::duration::Duration;
    if c.profile != ConnectionProfile::Edge || kind != ProxyKind::Router {
        return c;
    }
    let secs = |s| Some(Duration::from_secs(s));
    c.listener_per_connection_buffer_limit_bytes = c
        .listener_per_connection_buffer_limit_bytes
        .or(Some(32 * 1024));
    c.http_idle_timeout = c.http_idle_timeout.or(secs(3600));
    c.http_stream_idle_timeout = c.http_stream_idle_timeout.or(secs(300));
    c.http_request_timeout = c.http_request_timeout.or(secs(300));
    c.http_request_headers_timeout = c.http_request_headers_timeout.or(secs(60));
    c.http_max_concurrent_streams = c.http_max_concurrent_streams.or(Some(100));
    c.http2_initial_stream_window_size = c.http2_initial_stream_window_size.or(Some(64 * 1024));
    c.http2_initial_connection_window_size =
        c.http2_initial_connection_window_size.or(Some(1024 * 1024));
    if c.http_headers_with_underscores_action
        == HeadersWithUnderscoresAction::HeadersWithUnderscoresUnspecified
    {
        c.http_headers_with_underscores_action =
            HeadersWithUnderscoresAction::HeadersWithUnderscoresRejectRequest;
    }
    c.http_merge_slashes = c.http_merge_slashes.or(Some(true));
    if c.http_path_with_escaped_slashes_action
        == PathWithEscapedSlashesAction::PathWithEscapedSlashesUnspecified
    {
        c.http_path_with_escaped_slashes_action = PathWithEscapedSlashesAction::UnescapeAndRedirect;
    }
    c
}

fn limits(c: &ConnectionSettings) -> HttpLimits {
    let millis = |d: Option<pilotfish_config::duration::Duration>| d.map(|d| d.get().into());
    let asked = c.http_max_concurrent_streams.is_some()
        || c.http2_initial_stream_window_size.is_some()
        || c.http2_initial_connection_window_size.is_some();
    HttpLimits {
        idle_timeout: millis(c.http_idle_timeout),
        max_duration: millis(c.http_max_connection_duration),
        max_stream_duration: millis(c.http_max_stream_duration),
        stream_idle_timeout: millis(c.http_stream_idle_timeout),
        request_timeout: millis(c.http_request_timeout),
        headers_timeout: millis(c.http_request_headers_timeout),
        drain_timeout: millis(c.http_drain_timeout),
        http2: asked.then(|| Http2Limits {
            streams: unsigned(c.http_max_concurrent_streams),
            stream_window: unsigned(c.http2_initial_stream_window_size),
            connection_window: unsigned(c.http2_initial_connection_window_size),
        }),
        underscores: match c.http_headers_with_underscores_action {
            HeadersWithUnderscoresAction::HeadersWithUnderscoresUnspecified => None,
            HeadersWithUnderscoresAction::HeadersWithUnderscoresAllow => Some(Underscores::Allow),
            HeadersWithUnderscoresAction::HeadersWithUnderscoresRejectRequest => {
                Some(Underscores::Reject)
            }
            HeadersWithUnderscoresAction::HeadersWithUnderscoresDropHeader => {
                Some(Underscores::Drop)
            }
        },
    }
}

fn escaped_slashes(action: PathWithEscapedSlashesAction) -> Option<EscapedSlashes> {
    Some(match action {
        PathWithEscapedSlashesAction::PathWithEscapedSlashesUnspecified => return None,
        PathWithEscapedSlashesAction::KeepUnchanged => EscapedSlashes::Keep,
        PathWithEscapedSlashesAction::RejectRequest => EscapedSlashes::Reject,
        PathWithEscapedSlashesAction::UnescapeAndRedirect => EscapedSlashes::Redirect,
        PathWithEscapedSlashesAction::UnescapeAndForward => EscapedSlashes::Unescape,
    })
}

/// Share of requests traced, in hundred-thousandths of a percent. `fallback` is a percentage, for configurations that say
/// nothing; more than everything is taken for a mistake and becomes one percent.
pub fn sampling(tracing: Option<&Tracing>, fallback: f64) -> u32 {
    let percent = match tracing.map(|t| t.sampling).filter(|s| *s != 0.0) {
        Some(s) if s > 100.0 => 1.0,
        Some(s) => s,
        None => fallback,
    };
    #[allow(clippy::cast_sign_loss, reason = "clamped to 0..=100 before the cast")]
    let scaled = (percent.clamp(0.0, 100.0) * 100_000.0).round() as u32;
    scaled
}

/// Envoy refuses a tag that can have no value.
fn empty(tag: &TagValue) -> bool {
    match tag {
        TagValue::Literal(t) | TagValue::Environment(t, _) | TagValue::Header(t, _) => t.is_empty(),
    }
}

/// Tags a configuration adds to spans, by name.
pub fn tags(tracing: Option<&Tracing>) -> Vec<(Text, TagValue)> {
    let text = |s: &str| Text::from(s);
    let value = |t: &CustomTag| {
        if let Some(l) = &t.literal {
            return Some(TagValue::Literal(text(&l.value)));
        }
        if let Some(e) = &t.environment {
            return Some(TagValue::Environment(text(&e.name), text(&e.default_value)));
        }
        t.header
            .as_ref()
            .map(|h| TagValue::Header(text(&h.name), text(&h.default_value)))
    };
    tracing
        .iter()
        .flat_map(|t| &t.custom_tags)
        .filter_map(|(name, t)| Some((text(name), value(t)?)))
        .filter(|(name, v)| !name.is_empty() && !empty(v))
        .collect()
}
