//! One VirtualService as routes, seen by one client at one port.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::{
    CorsPolicy, Destination, HeaderOperations, Headers, HttpFaultInjection, HttpMatchRequest,
    HttpRedirect, HttpRetry, HttpRoute, HttpRouteDestination, Percent, RedirectPortSelection,
    StringMatch, UnmatchedPreflights, VirtualService,
};
use pilotfish_ir::route as ir;
use pilotfish_ir::route::{
    Abort, Action, Body, ClaimMatch, Cors, Fault, Forward, HeaderEdit, HeaderMatch, HeaderOps,
    HeaderValue, Mirror, PathMatch, QueryMatch, Redirect, RedirectPath, Retries, Rewrite,
    RouteMatch, Session, WeightedCluster,
};
use pilotfish_ir::{ClusterName, Millionths, Millis, Share};
use pilotfish_mesh::{Reader, host};

use crate::{Client, Text, chain, delegate, policy, session, visibility};

/// Where the routes will be used.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The client.
    pub client: &'a Client,
    /// Port of the route table.
    pub port: u16,
    /// `mesh`, or the gateways (`namespace/name`) that serve the routes.
    pub gateways: &'a [Text],
    /// Requests arrive over TLS that was terminated here.
    pub tls: bool,
    /// They may come over HTTP/3 as well.
    pub http3: bool,
}

/// The routes of a VirtualService; rules after one that matches everything are unreachable and left out.
pub fn routes<'w>(
    reader: &Reader<'w>,
    place: Place<'_>,
    object: &'w Arc<Object>,
    vs: &'w VirtualService,
) -> Vec<ir::Route> {
    reader.uses(&object.key);
    let mut out = Vec::new();
    for (http, namespace) in &delegate::rules(reader, object, vs) {
        if http.r#match.is_empty() {
            out.push(route(reader, place, object, namespace, http, None));
            return out;
        }
        for m in http
            .r#match
            .iter()
            .filter(|m| applies(reader, m, place, &object.key.namespace))
        {
            let r = route(reader, place, object, namespace, http, Some(m));
            let everything = catches_all(&r.matches);
            out.push(r);
            if everything {
                return out;
            }
        }
    }
    out
}

/// Whether a VirtualService has any route for this client and port.
pub(crate) fn has_routes<'w>(
    reader: &Reader<'w>,
    place: Place<'_>,
    object: &'w Arc<Object>,
    vs: &'w VirtualService,
) -> bool {
    delegate::rules(reader, object, vs).iter().any(|(http, _)| {
        http.r#match.is_empty()
            || http
                .r#match
                .iter()
                .any(|m| applies(reader, m, place, &object.key.namespace))
    })
}

/// The destinations of a rule, those of copies included.
pub(crate) fn destinations(http: &HttpRoute) -> impl Iterator<Item = &Destination> {
    let routed = http.route.iter().filter_map(|r| r.destination.as_ref());
    let copied = http.mirrors.iter().filter_map(|m| m.destination.as_ref());
    routed.chain(&http.mirror).chain(copied)
}

/// Whether a match is meant for this client and port at all.
fn applies(reader: &Reader<'_>, m: &HttpMatchRequest, place: Place<'_>, namespace: &str) -> bool {
    if m.port != 0 && m.port != u32::from(place.port) {
        return false;
    }
    if !m.gateways.is_empty() {
        return m.gateways.iter().any(|g| {
            place
                .gateways
                .contains(&pilotfish_mesh::rules::gateway_ref(g, namespace))
        });
    }
    selects(reader, &m.source_labels, place.client)
        && (m.source_namespace.is_empty() || place.client.is_in(reader, &m.source_namespace))
}

/// Whether a client has all these labels.
pub(crate) fn selects(
    reader: &Reader<'_>,
    labels: &pilotfish_config::Labels,
    client: &Client,
) -> bool {
    labels.iter().all(|(k, v)| client.is_labelled(reader, k, v))
}

/// Whether a match takes every request.
pub(crate) fn catches_all(m: &RouteMatch) -> bool {
    let path = match &m.path {
        PathMatch::Prefix(p) | PathMatch::SegmentPrefix(p) => &**p == "/",
        PathMatch::Regex(r) => &**r == ".*",
        PathMatch::Exact(_) => false,
    };
    path && m.headers.is_empty() && m.query.is_empty() && m.claims.is_empty()
}

fn route(
    reader: &Reader<'_>,
    place: Place<'_>,
    object: &Object,
    namespace: &str,
    http: &HttpRoute,
    m: Option<&HttpMatchRequest>,
) -> ir::Route {
    let matches = m.map_or_else(RouteMatch::any, request_match);
    let (mut headers, authority) = header_ops(http.headers.as_ref());
    let action = if let Some(r) = &http.redirect {
        Action::Redirect(redirect(r, place))
    } else if let Some(d) = &http.direct_response {
        let body = d.body.as_ref().and_then(|b| {
            b.string
                .as_ref()
                .map(|s| Body::Text(Text::from(s.as_str())))
                .or_else(|| b.bytes.as_ref().map(|b| Body::Bytes(b.0.clone())))
        });
        Action::Respond {
            status: d.status,
            body,
        }
    } else {
        Action::Forward(Box::new(forward(
            reader,
            place,
            namespace,
            http,
            authority,
            &mut headers,
        )))
    };
    let session = match action {
        Action::Forward(_) => session_of(reader, place, namespace, http),
        _ => None,
    };
    let name = match m.map_or("", |m| m.name.as_str()) {
        "" => Text::from(http.name.as_str()),
        own => Text::from(format!("{}.{own}", http.name)),
    };
    ir::Route {
        operation: Some(operation(&matches, &action, object, place.port)),
        name,
        matches,
        action,
        origin: Some(path_of(object, "virtual-service")),
        headers,
        fault: http.fault.as_ref().and_then(fault),
        cors: http.cors_policy.as_ref().map(cors),
        stat_prefix: m
            .map(|m| m.stat_prefix.as_str())
            .filter(|s| !s.is_empty())
            .map(Text::from),
        session,
        http3_port: place.http3.then_some(place.port),
    }
}

/// The path telemetry names an object by.
pub fn path_of(object: &Object, kind: &str) -> Text {
    Text::from(format!(
        "/apis/networking.istio.io/v1/namespaces/{}/{kind}/{}",
        object.key.namespace, object.key.name
    ))
}

/// The operation name of traces: destination and path where there is one destination, else the rule's name.
fn operation(m: &RouteMatch, action: &Action, object: &Object, port: u16) -> String {
    let path = match &m.path {
        PathMatch::Prefix(p) => format!("{p}*"),
        PathMatch::Exact(p) => p.to_string(),
        PathMatch::Regex(r) => r.to_string(),
        PathMatch::SegmentPrefix(_) => "/*".to_owned(),
    };
    if let Action::Forward(f) = action
        && let [
            WeightedCluster {
                cluster: ClusterName::Outbound { port, host, .. },
                ..
            },
        ] = f.to.as_slice()
        && !f.split
    {
        return format!("{host}:{port}{path}");
    }
    format!("{}:{port}{path}", object.key.name)
}

/// `None`: nothing is said.
fn pattern(m: &StringMatch) -> Option<ir::StringMatch> {
    Some(match m {
        StringMatch::Exact(s) => ir::StringMatch::Exact(Text::from(s.as_str())),
        StringMatch::Prefix(s) => ir::StringMatch::Prefix(Text::from(s.as_str())),
        StringMatch::Regex(s) => ir::StringMatch::Regex(Text::from(s.as_str())),
        StringMatch::Any => return None,
    })
}

/// `None`: any value will do. A lone star is no regular expression, but what people write for "any".
fn string_match(m: &StringMatch) -> Option<ir::StringMatch> {
    match m {
        StringMatch::Regex(s) if s == "*" => None,
        other => pattern(other),
    }
}

fn header_match(name: &str, m: &StringMatch, invert: bool) -> HeaderMatch {
    let value = string_match(m);
    HeaderMatch {
        name: Text::from(name),
        missing_as_empty: invert && value.is_some(),
        value,
        invert,
    }
}

fn request_match(m: &HttpMatchRequest) -> RouteMatch {
    let path = match &m.uri {
        Some(StringMatch::Exact(p)) => PathMatch::Exact(Text::from(p.as_str())),
        Some(StringMatch::Prefix(p)) => PathMatch::Prefix(Text::from(p.as_str())),
        Some(StringMatch::Regex(p)) => PathMatch::Regex(Text::from(p.as_str())),
        Some(StringMatch::Any) | None => PathMatch::Prefix(Text::from("/")),
    };
    let written = m.headers.iter().map(|(k, v)| (k, v, false));
    let unwanted = m.without_headers.iter().map(|(k, v)| (k, v, true));
    let mut headers = Vec::new();
    let mut claims = Vec::new();
    for (name, value, invert) in written.chain(unwanted) {
        match claim(name) {
            Some(path) => claims.push(ClaimMatch {
                path,
                value: pattern(value).unwrap_or(ir::StringMatch::Prefix(Text::default())),
                invert,
            }),
            None => headers.push(header_match(name, value, invert)),
        }
    }
    headers.sort_by(|a, b| a.name.cmp(&b.name));
    let pseudo = [
        (":method", &m.method),
        (":authority", &m.authority),
        (":scheme", &m.scheme),
    ];
    headers.extend(
        pseudo
            .into_iter()
            .filter_map(|(k, v)| v.as_ref().map(|v| header_match(k, v, false))),
    );
    RouteMatch {
        path,
        ignore_case: m.ignore_uri_case,
        explicit_case: true,
        headers,
        query: m
            .query_params
            .iter()
            .map(|(k, v)| QueryMatch {
                name: Text::from(k.as_str()),
                value: string_match(v),
            })
            .collect(),
        claims,
    }
}

/// The claim that a condition on a header really is about: `@request.auth.claims.a.b` or `@request.auth.claims[a][b]`.
fn claim(header: &str) -> Option<Vec<Text>> {
    const PREFIX: &str = "@request.auth.claims";
    let (prefix, name) = header.split_at_checked(PREFIX.len())?;
    if !prefix.eq_ignore_ascii_case(PREFIX) {
        return None;
    }
    let parts: Vec<&str> = if let Some(dotted) = name.strip_prefix('.').filter(|n| !n.is_empty()) {
        dotted.split('.').collect()
    } else {
        let inner = name.strip_prefix('[')?.strip_suffix(']')?;
        (!inner.is_empty()).then(|| inner.split("][").collect())?
    };
    Some(parts.into_iter().map(Text::from).collect())
}

fn is_pseudo(header: &str) -> bool {
    header.starts_with(':') || header.eq_ignore_ascii_case("host")
}

fn is_authority(header: &str) -> bool {
    header.eq_ignore_ascii_case(":authority") || header.eq_ignore_ascii_case("host")
}

/// Headers that are given values; the host is none of them.
fn given(of: &BTreeMap<String, String>, append: bool) -> impl Iterator<Item = HeaderValue> + '_ {
    of.iter()
        .filter(|(k, _)| !is_pseudo(k))
        .map(move |(k, v)| HeaderValue {
            name: Text::from(k.as_str()),
            value: Text::from(v.as_str()),
            append,
        })
}

/// Header operations, and the host they set: that is a rewrite, not a header.
fn header_ops(h: Option<&Headers>) -> (HeaderOps, Option<Text>) {
    let Some(h) = h else {
        return Default::default();
    };
    let edit = |o: Option<&HeaderOperations>| {
        o.map_or_else(HeaderEdit::default, |o| HeaderEdit {
            give: given(&o.set, false).chain(given(&o.add, true)).collect(),
            remove: o
                .remove
                .iter()
                .filter(|k| !is_pseudo(k))
                .map(|k| Text::from(k.as_str()))
                .collect(),
        })
    };
    let host_in = |m: &BTreeMap<String, String>| {
        m.iter()
            .find(|(k, _)| is_authority(k))
            .map(|(_, v)| Text::from(v.as_str()))
    };
    let authority = h
        .request
        .as_ref()
        .and_then(|r| host_in(&r.set).or_else(|| host_in(&r.add)));
    (
        HeaderOps {
            request: edit(h.request.as_ref()),
            response: edit(h.response.as_ref()),
        },
        authority,
    )
}

/// The cluster a destination means. The port is the one written, else the only port of the service, else the table's.
pub(crate) fn cluster(
    reader: &Reader<'_>,
    place: Place<'_>,
    namespace: &str,
    d: &Destination,
) -> ClusterName {
    let domain = &reader.settings().domain;
    let host = host::resolve(&d.host, namespace, domain);
    let service = visibility::service_of_host(reader, place.client, &host);
    let port = match (&d.port, service) {
        (Some(p), _) => u16::try_from(p.number).unwrap_or(0),
        (None, Some(s)) if s.ports.len() == 1 => s.ports[0].number,
        _ => place.port,
    };
    // An external name has no clusters of its own.
    let host = service
        .and_then(|s| s.external_name.clone())
        .unwrap_or(host);
    ClusterName::Outbound {
        port,
        subset: Text::from(d.subset.as_str()),
        host,
    }
}

fn forward(
    reader: &Reader<'_>,
    place: Place<'_>,
    namespace: &str,
    http: &HttpRoute,
    authority: Option<Text>,
    headers: &mut HeaderOps,
) -> Forward {
    let mut rewrite = http.rewrite.as_ref().map(|r| Rewrite {
        prefix: (r.uri_regex_rewrite.is_none() && !r.uri.is_empty())
            .then(|| Text::from(r.uri.as_str())),
        regex: r.uri_regex_rewrite.as_ref().map(|x| {
            (
                Text::from(x.r#match.as_str()),
                Text::from(x.rewrite.as_str()),
            )
        }),
        host: (!r.authority.is_empty()).then(|| Text::from(r.authority.as_str())),
        auto_host: false,
        forwarded_host: place.client.conduct.forwarded_host,
    });
    if let Some(a) = authority {
        let r = rewrite.get_or_insert_default();
        r.host = r.host.take().or(Some(a));
    }
    let split = http.route.len() != 1;
    let mut to = Vec::new();
    let mut hash = Vec::new();
    let mut sticky = false;
    for d in http.route.iter().filter(|d| !split || d.weight != 0) {
        let (ops, host_rewrite) = header_ops(d.headers.as_ref());
        if let Some(Hashed(by)) = hash_of(reader, place, namespace, d) {
            sticky |= !split;
            hash.extend(by);
        }
        let cluster = d.destination.as_ref().map_or(ClusterName::BlackHole, |x| {
            cluster(reader, place, namespace, x)
        });
        if split {
            to.push(WeightedCluster {
                cluster,
                weight: u32::try_from(d.weight).unwrap_or(0),
                headers: ops,
                host_rewrite,
            });
        } else {
            append(headers, ops);
            if let Some(h) = host_rewrite {
                let r = rewrite.get_or_insert_default();
                r.host = r.host.take().or(Some(h));
            }
            to.push(WeightedCluster {
                cluster,
                weight: 0,
                headers: HeaderOps::default(),
                host_rewrite: None,
            });
        }
    }
    let timeout: Millis = http.timeout.map_or(Millis(0), |d| d.get().into());
    let default_retries = reader.mesh().default_http_retry_policy.as_ref();
    Forward {
        to,
        split,
        timeout,
        max_grpc_timeout: Some(timeout),
        stream_duration: None,
        retries: retries(http.retries.as_ref().or(default_retries), sticky),
        rewrite,
        mirrors: mirrors(reader, place, namespace, http),
        hash,
    }
}

/// How sessions of a route are kept: as the first destination asks that asks for any.
fn session_of(
    reader: &Reader<'_>,
    place: Place<'_>,
    namespace: &str,
    http: &HttpRoute,
) -> Option<Session> {
    let split = http.route.len() != 1;
    let used = http.route.iter().filter(|d| !split || d.weight != 0);
    used.filter_map(|d| d.destination.as_ref()).find_map(|d| {
        let host = host::resolve(&d.host, namespace, &reader.settings().domain);
        let service = visibility::service_of_host(reader, place.client, &host)?;
        session::of(reader, service)
    })
}

fn append(headers: &mut HeaderOps, more: HeaderOps) {
    let join = |a: &mut HeaderEdit, b: HeaderEdit| {
        a.give.extend(b.give);
        a.remove.extend(b.remove);
    };
    join(&mut headers.request, more.request);
    join(&mut headers.response, more.response);
}

/// How a destination is hashed: by nothing or something, and a retry stays with its host.
struct Hashed(Option<ir::HashPolicy>);

/// Whether a destination is hashed.
fn hash_of(
    reader: &Reader<'_>,
    place: Place<'_>,
    namespace: &str,
    d: &HttpRouteDestination,
) -> Option<Hashed> {
    let destination = d.destination.as_ref()?;
    let host = host::resolve(&destination.host, namespace, &reader.settings().domain);
    let service = visibility::service_of_host(reader, place.client, &host)?;
    let rule = policy::rule(reader, place.client, service)?;
    let port = destination
        .port
        .as_ref()
        .and_then(|p| u16::try_from(p.number).ok());
    policy::hash_of_destination(&rule, &destination.subset, port)
        .map(|h| Hashed(policy::hash_policy(h)))
}

/// What is hashed for a service without a VirtualService.
pub(crate) fn hash_of_service(
    reader: &Reader<'_>,
    client: &Client,
    service: &pilotfish_mesh::Service,
    port: u16,
) -> Option<ir::HashPolicy> {
    let rule = policy::rule(reader, client, service)?;
    policy::hash_of_service(&rule, port).and_then(policy::hash_policy)
}

const RETRY_ON: &str =
    "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";

/// Retries as written, over the defaults; `None`: switched off.
pub(crate) fn retries(written: Option<&HttpRetry>, sticky: bool) -> Option<Retries> {
    let mut out = Retries {
        on: Text::from(RETRY_ON),
        statuses: Vec::new(),
        attempts: 2,
        per_try: None,
        other_hosts: !sticky,
        other_localities: false,
        backoff: None,
    };
    let Some(w) = written else { return Some(out) };
    out.attempts = u32::try_from(w.attempts).ok().filter(|n| *n > 0)?;
    if !w.retry_on.is_empty() {
        let (mut on, mut statuses): (Vec<&str>, Vec<u32>) = Default::default();
        for part in w
            .retry_on
            .split(',')
            .map(str::trim)
            .filter(|p| !p.is_empty())
        {
            match part.parse::<u32>() {
                Ok(code) if is_status(code) => statuses.push(code),
                _ => on.push(part),
            }
        }
        let mut on = on.join(",");
        if !statuses.is_empty() && !on.contains("retriable-status-codes") {
            on.push_str(",retriable-status-codes");
        }
        out.on = Text::from(on);
        out.statuses = statuses;
    }
    out.per_try = w.per_try_timeout.map(|d| d.get().into());
    if let Some(ignore) = w.retry_ignore_previous_hosts {
        out.other_hosts = ignore;
    }
    out.other_localities = w.retry_remote_localities == Some(true);
    out.backoff = w.backoff.map(|d| d.get().into());
    Some(out)
}

/// Registered HTTP status codes; another number is not taken for one.
fn is_status(code: u32) -> bool {
    matches!(
        code,
        100..=103
            | 200..=208
            | 226
            | 300..=305
            | 307..=308
            | 400..=418
            | 421..=426
            | 428..=429
            | 431
            | 451
            | 500..=508
            | 510..=511
    )
}

fn share(p: &Percent) -> Share {
    Share::Millionths(Millionths::from_percent(p.value))
}

fn percent(p: u32) -> Share {
    Share::Percent(p.min(100))
}

fn mirrors(
    reader: &Reader<'_>,
    place: Place<'_>,
    namespace: &str,
    http: &HttpRoute,
) -> Vec<Mirror> {
    let of_single = match (&http.mirror_percentage, http.mirror_percent) {
        (Some(p), _) => share(p),
        (None, p) => percent(p.unwrap_or(100)),
    };
    let single = http.mirror.iter().map(|d| (d, of_single));
    let several = http.mirrors.iter().filter_map(|m| {
        let part = m.percentage.as_ref().map_or(percent(100), share);
        Some((m.destination.as_ref()?, part))
    });
    let without_suffix = chain::feature(reader, "DISABLE_SHADOW_HOST_SUFFIX", true);
    single
        .chain(several)
        .filter(|(_, share)| !share.is_none())
        .map(|(d, share)| Mirror {
            cluster: cluster(reader, place, namespace, d),
            share,
            disable_shadow_suffix: without_suffix,
        })
        .collect()
}

fn redirect(r: &HttpRedirect, place: Place<'_>) -> Redirect {
    let scheme = if !r.scheme.is_empty() {
        r.scheme.as_str()
    } else if place.tls {
        "https"
    } else {
        "http"
    };
    let port = match (r.port, r.derive_port) {
        (Some(p), _) => Some(p),
        (None, Some(RedirectPortSelection::FromRequestPort)) => Some(u32::from(place.port)),
        _ => None,
    };
    // The default port of a scheme is not spelled.
    let port = port.filter(|p| !matches!((*p, scheme), (80, "http") | (443, "https")));
    Redirect {
        path: if r.prefix_rewrite.is_empty() {
            Some(RedirectPath::Full(Text::from(r.uri.as_str())))
        } else {
            Some(RedirectPath::Prefix(Text::from(r.prefix_rewrite.as_str())))
        },
        host: (!r.authority.is_empty()).then(|| Text::from(r.authority.as_str())),
        scheme: (!r.scheme.is_empty()).then(|| Text::from(r.scheme.as_str())),
        port,
        https: false,
        code: if r.redirect_code == 0 {
            301
        } else {
            r.redirect_code
        },
        strip_query: false,
    }
}

fn fault(f: &HttpFaultInjection) -> Option<Fault> {
    let delay = f.delay.as_ref().and_then(|d| {
        let part = d
            .percentage
            .as_ref()
            .map_or_else(|| percent(u32::try_from(d.percent).unwrap_or(0)), share);
        Some((d.fixed_delay?.get().into(), part))
    });
    let abort = f.abort.as_ref().and_then(|a| {
        let kind = match (&a.http_status, &a.grpc_status) {
            (Some(s), _) => Abort::Http(u32::try_from(*s).ok()?),
            (None, Some(name)) => Abort::Grpc(grpc_status(name)?),
            (None, None) => return None,
        };
        Some((kind, a.percentage.as_ref().map(share)))
    });
    (delay.is_some() || abort.is_some()).then_some(Fault { delay, abort })
}

/// gRPC status codes by name.
fn grpc_status(name: &str) -> Option<u32> {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    NAMES.iter().position(|n| *n == name).map(|i| i as u32)
}

fn cors(c: &CorsPolicy) -> Cors {
    let join = |v: &[String]| Text::from(v.join(","));
    let origins = if c.allow_origins.is_empty() {
        c.allow_origin
            .iter()
            .map(|o| ir::StringMatch::Exact(Text::from(o.as_str())))
            .collect()
    } else {
        c.allow_origins.iter().filter_map(pattern).collect()
    };
    Cors {
        origins,
        methods: join(&c.allow_methods),
        headers: join(&c.allow_headers),
        expose: join(&c.expose_headers),
        max_age: c.max_age.map(|d| Text::from(d.get().as_secs().to_string())),
        credentials: c.allow_credentials,
        forward_unmatched: Some(c.unmatched_preflights != UnmatchedPreflights::Ignore),
    }
}
