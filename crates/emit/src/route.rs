//! HTTP routing.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::{BufMut, Bytes};
use pilotfish_ir as ir;
use pilotfish_ir::Text;
use pilotfish_ir::route::{
    Abort, Action, Body, ClaimMatch, Cors, Fault, Forward, HashPolicy, HeaderEdit, HeaderMatch,
    HeaderOps, HeaderValue, Mirror, PathMatch, QueryMatch, Redirect, RedirectPath, Retries, Route,
    RouteMatch, Session, StringMatch, WeightedCluster,
};
use pilotfish_protos::envoy::config::core::v3 as core;
use pilotfish_protos::envoy::config::route::v3 as pb;
use pilotfish_protos::envoy::extensions::filters::common::fault::v3 as delay;
use pilotfish_protos::envoy::extensions::filters::http::cors::v3::CorsPolicy;
use pilotfish_protos::envoy::extensions::filters::http::fault::v3 as fault;
use pilotfish_protos::envoy::extensions::filters::http::stateful_session::v3 as sessions;
use pilotfish_protos::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
use pilotfish_protos::envoy::extensions::http::stateful_session::header::v3::HeaderBasedSessionState;
use pilotfish_protos::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
use pilotfish_protos::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use pilotfish_protos::envoy::r#type::http::v3::Cookie;
use pilotfish_protos::envoy::r#type::matcher::v3 as matcher;
use pilotfish_protos::google::protobuf as g;
use prost::{Message as _, Name as _};

use crate::dialect::Extension;
use crate::{Dialect, http, names, value};

/// Field number of `RouteConfiguration.virtual_hosts`.
const VIRTUAL_HOSTS: u32 = 2;
/// The filter that says what a request's token claims.
const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";
/// How often a retry looks for a host that was not tried.
const HOST_SELECTION_ATTEMPTS: i64 = 5;

static PREVIOUS_HOSTS: LazyLock<pb::retry_policy::RetryHostPredicate> = LazyLock::new(|| {
    use pb::retry_policy::{RetryHostPredicate, retry_host_predicate::ConfigType};
    RetryHostPredicate {
        name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
        config_type: Some(ConfigType::TypedConfig(pilotfish_protos::any(
            &PreviousHostsPredicate {},
        ))),
    }
});

static PREVIOUS_PRIORITIES: LazyLock<pb::retry_policy::RetryPriority> = LazyLock::new(|| {
    use pb::retry_policy::{RetryPriority, retry_priority::ConfigType};
    let config = PreviousPrioritiesConfig {
        update_frequency: 2,
    };
    RetryPriority {
        name: "envoy.retry_priorities.previous_priorities".to_owned(),
        config_type: Some(ConfigType::TypedConfig(pilotfish_protos::any(&config))),
    }
});

/// The table without its hosts. Clusters are not checked: they arrive by other ways and times.
pub(crate) fn table(table: &ir::RouteTable) -> pb::RouteConfiguration {
    pb::RouteConfiguration {
        name: value::string(&table.name),
        validate_clusters: Some(value::bool(false)),
        max_direct_response_body_size_bytes: table.max_direct_response.map(value::u32),
        ignore_port_in_host_matching: table.ignore_port,
        ..Default::default()
    }
}

/// The table without hosts: they come one by one, as resources named after the table.
pub(crate) fn without_hosts(ir: &ir::RouteTable) -> pb::RouteConfiguration {
    pb::RouteConfiguration {
        vhds: Some(pb::Vhds {
            config_source: Some(value::ads()),
        }),
        ..table(ir)
    }
}

/// An encoded host as a resource of its own.
pub(crate) fn apart(host: &[u8]) -> Bytes {
    value::framed(&pb::VirtualHost::type_url(), host.len(), |out| {
        out.put_slice(host);
    })
}

/// The table with encoded hosts, wrapped as a resource. One allocation; the hosts are copied once and never decoded.
pub(crate) fn splice(ir: &ir::RouteTable, hosts: &[Bytes]) -> Bytes {
    let own = table(ir);
    let spliced: usize = hosts
        .iter()
        .map(|host| value::delimited_len(VIRTUAL_HOSTS, host.len()))
        .sum();
    value::framed(
        &pb::RouteConfiguration::type_url(),
        own.encoded_len() + spliced,
        |out| {
            own.encode_raw(out);
            for host in hosts {
                value::delimited_header(VIRTUAL_HOSTS, host.len(), out);
                out.put_slice(host);
            }
        },
    )
}

pub(crate) fn virtual_host(host: &ir::VirtualHost, dialect: &Dialect) -> pb::VirtualHost {
    use pb::virtual_host::TlsRequirementType as Require;
    pb::VirtualHost {
        name: value::string(&host.name),
        domains: host.domains.iter().map(value::string).collect(),
        routes: host.routes.iter().map(|r| route(r, dialect)).collect(),
        require_tls: if host.require_tls {
            Require::All
        } else {
            Require::None
        }
        .into(),
        include_request_attempt_count: host.attempt_count,
        typed_per_filter_config: kept(host.session.as_ref(), dialect).into_iter().collect(),
        ..Default::default()
    }
}

fn route(route: &Route, dialect: &Dialect) -> pb::Route {
    let action = match &route.action {
        Action::Forward(action) => pb::route::Action::Route(forward(action, dialect)),
        Action::Redirect(action) => pb::route::Action::Redirect(redirect(action)),
        Action::Respond { status, body } => {
            pb::route::Action::DirectResponse(respond(*status, body.as_ref()))
        }
    };
    let HeaderOps { request, response } = &route.headers;
    pb::Route {
        name: value::string(&route.name),
        r#match: Some(matches(&route.matches)),
        metadata: route.origin.as_ref().map(value::origin),
        decorator: route.operation.as_ref().map(|operation| pb::Decorator {
            operation: operation.clone(),
            ..Default::default()
        }),
        typed_per_filter_config: filter_config(route, dialect),
        request_headers_to_add: added(request),
        request_headers_to_remove: removed(request),
        response_headers_to_add: added(response)
            .into_iter()
            .chain(announced(route, dialect))
            .collect(),
        response_headers_to_remove: removed(response),
        stat_prefix: route
            .stat_prefix
            .as_ref()
            .map(value::string)
            .unwrap_or_default(),
        action: Some(action),
        ..Default::default()
    }
}

/// For a day, clients may come back over HTTP/3.
fn announced(route: &Route, dialect: &Dialect) -> Option<core::HeaderValueOption> {
    let port = route.http3_port.filter(|_| dialect.has(Extension::Quic))?;
    Some(core::HeaderValueOption {
        header: Some(core::HeaderValue {
            key: "alt-svc".to_owned(),
            value: format!("h3=\":{port}\"; ma=86400"),
            ..Default::default()
        }),
        ..Default::default()
    })
}

/// What filters do on this route alone. A proxy without the filter would reject its configuration.
fn filter_config(route: &Route, dialect: &Dialect) -> BTreeMap<String, g::Any> {
    let mut configs = BTreeMap::new();
    if let Some(policy) = route.cors.as_ref().filter(|_| dialect.has(Extension::Cors)) {
        configs.insert(http::CORS.to_owned(), pilotfish_protos::any(&cors(policy)));
    }
    if let Some(injected) = route
        .fault
        .as_ref()
        .filter(|_| dialect.has(Extension::Fault))
    {
        configs.insert(
            http::FAULT.to_owned(),
            pilotfish_protos::any(&faults(injected)),
        );
    }
    configs.extend(kept(route.session.as_ref(), dialect));
    configs
}

/// What the filter for sessions is told, by its name.
fn kept(kept: Option<&Session>, dialect: &Dialect) -> Option<(String, g::Any)> {
    use sessions::stateful_session_per_route::Override;
    let how = kept.filter(|_| dialect.has(Extension::StatefulSession))?;
    let (name, config) = match how {
        Session::Cookie { name, path } => {
            let cookie = Cookie {
                name: value::string(name),
                path: value::string(path),
                ..Default::default()
            };
            let config = CookieBasedSessionState {
                cookie: Some(cookie),
            };
            (
                "envoy.http.stateful_session.cookie",
                pilotfish_protos::any(&config),
            )
        }
        Session::Header(name) => {
            let config = HeaderBasedSessionState {
                name: value::string(name),
            };
            (
                "envoy.http.stateful_session.header",
                pilotfish_protos::any(&config),
            )
        }
    };
    let state = core::TypedExtensionConfig {
        name: name.to_owned(),
        typed_config: Some(config),
    };
    let here = sessions::StatefulSessionPerRoute {
        r#override: Some(Override::StatefulSession(sessions::StatefulSession {
            session_state: Some(state),
            ..Default::default()
        })),
    };
    Some((http::SESSION.to_owned(), pilotfish_protos::any(&here)))
}

fn matches(conditions: &RouteMatch) -> pb::RouteMatch {
    use pb::route_match::PathSpecifier;
    let path = match &conditions.path {
        PathMatch::Exact(path) => PathSpecifier::Path(value::string(path)),
        PathMatch::Prefix(path) => PathSpecifier::Prefix(value::string(path)),
        PathMatch::SegmentPrefix(path) => PathSpecifier::PathSeparatedPrefix(value::string(path)),
        PathMatch::Regex(pattern) => PathSpecifier::SafeRegex(regex(pattern)),
    };
    let explicit = conditions.ignore_case || conditions.explicit_case;
    pb::RouteMatch {
        path_specifier: Some(path),
        case_sensitive: explicit.then(|| value::bool(!conditions.ignore_case)),
        headers: conditions.headers.iter().map(header).collect(),
        query_parameters: conditions.query.iter().map(query).collect(),
        dynamic_metadata: conditions.claims.iter().map(claim).collect(),
        ..Default::default()
    }
}

/// A claim may be one value or a list of them.
fn claim(condition: &ClaimMatch) -> matcher::MetadataMatcher {
    use matcher::list_matcher::MatchPattern as List;
    use matcher::metadata_matcher::{PathSegment, path_segment::Segment};
    use matcher::value_matcher::MatchPattern as Value;
    let of = |pattern| matcher::ValueMatcher {
        match_pattern: Some(pattern),
    };
    let one = of(Value::StringMatch(string_matcher(&condition.value)));
    let among = of(Value::ListMatch(
        matcher::ListMatcher {
            match_pattern: Some(List::OneOf(Box::new(one.clone()))),
        }
        .into(),
    ));
    let key = |name: &str| PathSegment {
        segment: Some(Segment::Key(name.to_owned())),
    };
    matcher::MetadataMatcher {
        filter: JWT_FILTER.to_owned(),
        path: std::iter::once(key("payload"))
            .chain(condition.path.iter().map(|name| key(name)))
            .collect(),
        value: Some(of(Value::OrMatch(matcher::OrMatcher {
            value_matchers: vec![among, one],
        }))),
        invert: condition.invert,
    }
}

fn header(condition: &HeaderMatch) -> pb::HeaderMatcher {
    use pb::header_matcher::HeaderMatchSpecifier as Specifier;
    pb::HeaderMatcher {
        name: value::string(&condition.name),
        invert_match: condition.invert,
        treat_missing_header_as_empty: condition.missing_as_empty,
        header_match_specifier: Some(match &condition.value {
            Some(value) => Specifier::StringMatch(string_matcher(value)),
            None => Specifier::PresentMatch(true),
        }),
    }
}

fn query(condition: &QueryMatch) -> pb::QueryParameterMatcher {
    use pb::query_parameter_matcher::QueryParameterMatchSpecifier as Specifier;
    pb::QueryParameterMatcher {
        name: value::string(&condition.name),
        query_parameter_match_specifier: Some(match &condition.value {
            Some(value) => Specifier::StringMatch(string_matcher(value)),
            None => Specifier::PresentMatch(true),
        }),
    }
}

fn string_matcher(condition: &StringMatch) -> matcher::StringMatcher {
    use matcher::string_matcher::MatchPattern;
    let pattern = match condition {
        StringMatch::Exact(text) => MatchPattern::Exact(value::string(text)),
        StringMatch::Prefix(text) => MatchPattern::Prefix(value::string(text)),
        StringMatch::Suffix(text) => MatchPattern::Suffix(value::string(text)),
        StringMatch::Regex(pattern) => MatchPattern::SafeRegex(regex(pattern)),
    };
    matcher::StringMatcher {
        match_pattern: Some(pattern),
        ..Default::default()
    }
}

fn regex(pattern: &Text) -> matcher::RegexMatcher {
    matcher::RegexMatcher {
        regex: value::string(pattern),
        ..Default::default()
    }
}

fn substitution(pattern: &Text, with: &Text) -> matcher::RegexMatchAndSubstitute {
    matcher::RegexMatchAndSubstitute {
        pattern: Some(regex(pattern)),
        substitution: value::string(with),
    }
}

fn forward(forward: &Forward, dialect: &Dialect) -> pb::RouteAction {
    let mut action = pb::RouteAction {
        timeout: Some(value::duration(forward.timeout)),
        request_mirror_policies: forward.mirrors.iter().map(mirror).collect(),
        hash_policy: forward.hash.iter().map(hash).collect(),
        retry_policy: forward
            .retries
            .as_ref()
            .map(|r| retries(r, forward, dialect)),
        ..Default::default()
    };
    match forward.stream_duration {
        Some(longest) => {
            action.max_stream_duration = Some(pb::route_action::MaxStreamDuration {
                max_stream_duration: Some(value::duration(longest)),
                grpc_timeout_header_max: Some(value::duration(
                    forward.max_grpc_timeout.unwrap_or_default(),
                )),
                ..Default::default()
            });
        }
        #[expect(
            deprecated,
            reason = "what Istio's proxy is sent; every Envoy still takes it"
        )]
        None => action.max_grpc_timeout = forward.max_grpc_timeout.map(value::duration),
    }
    direct(&mut action, forward);
    rewrite(&mut action, forward);
    action
}

/// Sets where the request goes.
fn direct(action: &mut pb::RouteAction, forward: &Forward) {
    use pb::route_action::{ClusterSpecifier, HostRewriteSpecifier};
    action.cluster_specifier = Some(match forward.to.as_slice() {
        [only] if !forward.split => {
            action.host_rewrite_specifier = only
                .host_rewrite
                .as_ref()
                .map(|host| HostRewriteSpecifier::HostRewriteLiteral(value::string(host)));
            ClusterSpecifier::Cluster(names::cluster_name(&only.cluster))
        }
        several => ClusterSpecifier::WeightedClusters(pb::WeightedCluster {
            clusters: several.iter().map(weighted).collect(),
            ..Default::default()
        }),
    });
}

fn weighted(share: &WeightedCluster) -> pb::weighted_cluster::ClusterWeight {
    use pb::weighted_cluster::cluster_weight::HostRewriteSpecifier;
    let HeaderOps { request, response } = &share.headers;
    pb::weighted_cluster::ClusterWeight {
        name: names::cluster_name(&share.cluster),
        weight: Some(value::u32(share.weight)),
        request_headers_to_add: added(request),
        request_headers_to_remove: removed(request),
        response_headers_to_add: added(response),
        response_headers_to_remove: removed(response),
        host_rewrite_specifier: share
            .host_rewrite
            .as_ref()
            .map(|host| HostRewriteSpecifier::HostRewriteLiteral(value::string(host))),
        ..Default::default()
    }
}

fn rewrite(action: &mut pb::RouteAction, forward: &Forward) {
    use pb::route_action::HostRewriteSpecifier;
    let Some(rewrite) = &forward.rewrite else {
        return;
    };
    action.append_x_forwarded_host = rewrite.forwarded_host;
    action.prefix_rewrite = rewrite
        .prefix
        .as_ref()
        .map(value::string)
        .unwrap_or_default();
    action.regex_rewrite = rewrite
        .regex
        .as_ref()
        .map(|(pattern, with)| substitution(pattern, with));
    if let Some(host) = &rewrite.host {
        action.host_rewrite_specifier = Some(HostRewriteSpecifier::HostRewriteLiteral(
            value::string(host),
        ));
    } else if rewrite.auto_host {
        action.host_rewrite_specifier = Some(HostRewriteSpecifier::AutoHostRewrite(g::BoolValue {
            value: true,
        }));
    }
}

fn retries(retries: &Retries, forward: &Forward, dialect: &Dialect) -> pb::RetryPolicy {
    let other_hosts = retries.other_hosts && dialect.has(Extension::PreviousHosts);
    let other_localities = retries.other_localities && dialect.has(Extension::PreviousPriorities);
    pb::RetryPolicy {
        retry_on: value::string(&retries.on),
        num_retries: Some(value::u32(retries.attempts)),
        per_try_timeout: retries.per_try.map(value::duration),
        retry_priority: other_localities.then(|| PREVIOUS_PRIORITIES.clone()),
        retry_host_predicate: other_hosts
            .then(|| PREVIOUS_HOSTS.clone())
            .into_iter()
            .collect(),
        // The application is one host: the inbound side has none to select from.
        host_selection_retry_max_attempts: if forward.stream_duration.is_none() {
            HOST_SELECTION_ATTEMPTS
        } else {
            0
        },
        retriable_status_codes: retries.statuses.clone(),
        retry_back_off: retries.backoff.map(|base| pb::retry_policy::RetryBackOff {
            base_interval: Some(value::duration(base)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn mirror(mirror: &Mirror) -> pb::route_action::RequestMirrorPolicy {
    pb::route_action::RequestMirrorPolicy {
        cluster: names::cluster_name(&mirror.cluster),
        runtime_fraction: Some(core::RuntimeFractionalPercent {
            default_value: Some(value::fraction(mirror.share)),
            ..Default::default()
        }),
        trace_sampled: Some(value::bool(false)),
        disable_shadow_host_suffix_append: mirror.disable_shadow_suffix,
        ..Default::default()
    }
}

fn hash(policy: &HashPolicy) -> pb::route_action::HashPolicy {
    use pb::route_action::hash_policy::{
        ConnectionProperties, Cookie, CookieAttribute, Header, PolicySpecifier, QueryParameter,
    };
    let specifier = match policy {
        HashPolicy::Header(name) => PolicySpecifier::Header(Header {
            header_name: value::string(name),
            ..Default::default()
        }),
        HashPolicy::Cookie {
            name,
            path,
            ttl,
            attributes,
        } => PolicySpecifier::Cookie(Cookie {
            name: value::string(name),
            ttl: ttl.map(value::duration),
            path: value::string(path),
            attributes: attributes
                .iter()
                .map(|(name, text)| CookieAttribute {
                    name: value::string(name),
                    value: value::string(text),
                })
                .collect(),
        }),
        HashPolicy::SourceIp(source_ip) => {
            PolicySpecifier::ConnectionProperties(ConnectionProperties {
                source_ip: *source_ip,
            })
        }
        HashPolicy::Query(name) => PolicySpecifier::QueryParameter(QueryParameter {
            name: value::string(name),
        }),
    };
    pb::route_action::HashPolicy {
        policy_specifier: Some(specifier),
        ..Default::default()
    }
}

fn redirect(redirect: &Redirect) -> pb::RedirectAction {
    use pb::redirect_action::{
        PathRewriteSpecifier as Path, RedirectResponseCode as Code, SchemeRewriteSpecifier,
    };
    let path = match &redirect.path {
        // An empty path keeps the request's.
        None => Path::PathRedirect(String::new()),
        Some(RedirectPath::Full(path)) => Path::PathRedirect(value::string(path)),
        Some(RedirectPath::Prefix(prefix)) => Path::PrefixRewrite(value::string(prefix)),
        Some(RedirectPath::Regex(pattern, with)) => Path::RegexRewrite(substitution(pattern, with)),
    };
    let scheme = match &redirect.scheme {
        Some(scheme) => Some(SchemeRewriteSpecifier::SchemeRedirect(value::string(
            scheme,
        ))),
        None => redirect
            .https
            .then_some(SchemeRewriteSpecifier::HttpsRedirect(true)),
    };
    let code = match redirect.code {
        302 => Code::Found,
        303 => Code::SeeOther,
        307 => Code::TemporaryRedirect,
        308 => Code::PermanentRedirect,
        _ => Code::MovedPermanently,
    };
    pb::RedirectAction {
        host_redirect: redirect
            .host
            .as_ref()
            .map(value::string)
            .unwrap_or_default(),
        port_redirect: redirect.port.unwrap_or_default(),
        response_code: code.into(),
        strip_query: redirect.strip_query,
        scheme_rewrite_specifier: scheme,
        path_rewrite_specifier: Some(path),
    }
}

fn respond(status: u32, body: Option<&Body>) -> pb::DirectResponseAction {
    use core::data_source::Specifier;
    let specifier = body.map(|body| match body {
        Body::Text(text) => Specifier::InlineString(value::string(text)),
        Body::Bytes(bytes) => Specifier::InlineBytes(Bytes::copy_from_slice(bytes)),
    });
    pb::DirectResponseAction {
        status,
        body: specifier.map(|s| core::DataSource {
            specifier: Some(s),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn added(edit: &HeaderEdit) -> Vec<core::HeaderValueOption> {
    use core::header_value_option::HeaderAppendAction as Mode;
    let option = |h: &HeaderValue| core::HeaderValueOption {
        header: Some(core::HeaderValue {
            key: value::string(&h.name),
            value: value::string(&h.value),
            ..Default::default()
        }),
        append_action: if h.append {
            Mode::AppendIfExistsOrAdd.into()
        } else {
            Mode::OverwriteIfExistsOrAdd.into()
        },
        ..Default::default()
    };
    edit.give.iter().map(option).collect()
}

fn removed(edit: &HeaderEdit) -> Vec<String> {
    edit.remove.iter().map(value::string).collect()
}

fn cors(policy: &Cors) -> CorsPolicy {
    CorsPolicy {
        allow_origin_string_match: policy.origins.iter().map(string_matcher).collect(),
        allow_methods: value::string(&policy.methods),
        allow_headers: value::string(&policy.headers),
        expose_headers: value::string(&policy.expose),
        max_age: policy
            .max_age
            .as_ref()
            .map(value::string)
            .unwrap_or_default(),
        allow_credentials: policy.credentials.map(value::bool),
        filter_enabled: Some(value::all()),
        forward_not_matching_preflights: policy.forward_unmatched.map(value::bool),
        ..Default::default()
    }
}

fn faults(injected: &Fault) -> fault::HttpFault {
    use delay::fault_delay::FaultDelaySecifier;
    use fault::fault_abort::ErrorType;
    fault::HttpFault {
        delay: injected.delay.map(|(length, share)| delay::FaultDelay {
            percentage: Some(value::fraction(share)),
            fault_delay_secifier: Some(FaultDelaySecifier::FixedDelay(value::duration(length))),
        }),
        abort: injected
            .abort
            .as_ref()
            .map(|(abort, share)| fault::FaultAbort {
                percentage: share.map(value::fraction),
                error_type: Some(match abort {
                    Abort::Http(status) => ErrorType::HttpStatus(*status),
                    Abort::Grpc(status) => ErrorType::GrpcStatus(*status),
                }),
                ..Default::default()
            }),
        ..Default::default()
    }
}
