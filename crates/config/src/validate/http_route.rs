//! One `http` route of a virtual service.

use super::common::{AS_WRITTEN, at_most_one, labels, optional_duration, port};
use super::virtual_service::{destination, gateways, weights};
use super::{header, re2};
use crate::finding::Checker;
use crate::names::is_host_label;
use crate::networking::{
    CorsPolicy, FaultAbort, Headers, HttpDirectResponse, HttpFaultInjection, HttpMatchRequest,
    HttpRedirect, HttpRetry, HttpRewrite, HttpRoute, Percent, StringMatch,
};

const RETRY_ON: &[&str] = &[
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "envoy-ratelimited",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];

const GRPC_STATUS: &[&str] = &[
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

const METHODS: &[&str] = &[
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*",
];

pub(super) fn check(check: &mut Checker, route: &HttpRoute, delegate: bool) {
    actions(check, route, delegate);
    check.each("match", &route.r#match, request);
    check.some("headers", route.headers.as_ref(), headers);
    check.some("corsPolicy", route.cors_policy.as_ref(), cors);
    check.some("fault", route.fault.as_ref(), fault);
    if let Some(percent) = route.mirror_percent {
        check.error_if(percent > 100, "mirrorPercent", "must be at most 100");
        check.field("mirrorPercent", |check| {
            check.warn("deprecated, use mirrorPercentage", AS_WRITTEN);
        });
    }
    check.some(
        "mirrorPercentage",
        route.mirror_percentage.as_ref(),
        mirror_share,
    );
    check.some("mirror", route.mirror.as_ref(), destination);
    check.each("mirrors", &route.mirrors, |check, mirror| {
        match &mirror.destination {
            Some(to) => check.field("destination", |check| destination(check, to)),
            None => check.error("destination is required"),
        }
        check.some("percentage", mirror.percentage.as_ref(), mirror_share);
    });
    check.some("redirect", route.redirect.as_ref(), |check, to| {
        redirect(check, to, &route.r#match);
    });
    check.some(
        "directResponse",
        route.direct_response.as_ref(),
        direct_response,
    );
    check.some("retries", route.retries.as_ref(), retries);
    check.some("rewrite", route.rewrite.as_ref(), rewrite);
    authority_once(check, route);
    check.each("route", &route.route, |check, to| {
        match &to.destination {
            Some(to) => check.field("destination", |check| destination(check, to)),
            None => check.error("destination is required"),
        }
        check.some("headers", to.headers.as_ref(), headers);
    });
    let all: Vec<i32> = route.route.iter().map(|to| to.weight).collect();
    check.field("route", |check| weights(check, &all));
    optional_duration(check, "timeout", route.timeout);
}

/// What the route does: exactly one of forwarding, redirecting, answering and delegating.
fn actions(check: &mut Checker, route: &HttpRoute, delegate: bool) {
    let forwards = !route.route.is_empty();
    if route.delegate.is_some() {
        if delegate {
            check.field("delegate", |check| {
                check.error("a delegate cannot delegate");
            });
        }
        if route.redirect.is_some() || forwards {
            check.error("a route that delegates cannot have route or redirect");
        }
        return;
    }
    at_most_one(
        check,
        &[
            ("route", forwards),
            ("redirect", route.redirect.is_some()),
            ("directResponse", route.direct_response.is_some()),
        ],
    );
    if !forwards {
        let answers = route.redirect.is_some() || route.direct_response.is_some();
        if !answers {
            check.error("one of route, redirect, directResponse and delegate is required");
        }
        check.error_if(
            answers && route.fault.is_some(),
            "fault",
            "is not possible without route",
        );
        check.error_if(
            answers && route.rewrite.is_some(),
            "rewrite",
            "is not possible without route",
        );
    }
    at_most_one(
        check,
        &[
            ("mirror", route.mirror.is_some()),
            ("mirrors", !route.mirrors.is_empty()),
        ],
    );
}

fn string_match(
    check: &mut Checker,
    name: &str,
    matched: Option<&StringMatch>,
    empty_prefix: bool,
) {
    check.some(name, matched, |check, matched| match matched {
        StringMatch::Prefix(text) if text.is_empty() && !empty_prefix => {
            check.field("prefix", |check| check.error("must not be empty"));
        }
        StringMatch::Regex(text) => regex(check, "regex", text),
        _ => {}
    });
}

fn regex(check: &mut Checker, name: &str, text: &str) {
    check.error_if(text.is_empty(), name, "must not be empty");
    check.result(name, re2::check(text));
}

fn request(check: &mut Checker, request: &HttpMatchRequest) {
    for (field, map) in [
        ("headers", &request.headers),
        ("withoutHeaders", &request.without_headers),
    ] {
        check.field(field, |check| {
            for (name, matched) in map {
                check.result(name, header::matched(name));
                let present =
                    field == "withoutHeaders" && *matched == StringMatch::Regex("*".to_owned());
                if !present {
                    string_match(check, name, Some(matched), false);
                }
            }
        });
    }
    check.field("queryParams", |check| {
        for (name, matched) in &request.query_params {
            string_match(check, name, Some(matched), false);
        }
    });
    string_match(check, "uri", request.uri.as_ref(), true);
    string_match(check, "scheme", request.scheme.as_ref(), false);
    string_match(check, "method", request.method.as_ref(), false);
    string_match(check, "authority", request.authority.as_ref(), false);
    if request.port != 0 {
        check.result("port", port(request.port));
    }
    labels(check, "sourceLabels", &request.source_labels);
    gateways(check, &request.gateways);
    let namespace = &request.source_namespace;
    check.error_if(
        !namespace.is_empty() && !is_host_label(namespace),
        "sourceNamespace",
        "is not a namespace",
    );
}

fn headers(check: &mut Checker, headers: &Headers) {
    for (side, operations) in [
        ("request", &headers.request),
        ("response", &headers.response),
    ] {
        check.some(side, operations.as_ref(), |check, operations| {
            for (field, map) in [("set", &operations.set), ("add", &operations.add)] {
                check.entries(field, map, |check, name, value| {
                    if let Err(reason) = header::written(name, side == "request") {
                        check.error(reason);
                    }
                    if let Err(reason) = header::value(value) {
                        check.error(reason);
                    }
                });
            }
            check.each("remove", &operations.remove, |check, name| {
                if let Err(reason) = header::written(name, false) {
                    check.error(reason);
                }
            });
        });
    }
}

/// The authority can be rewritten in several ways, of which only one may be used.
fn authority_once(check: &mut Checker, route: &HttpRoute) {
    let rewritten = route
        .rewrite
        .as_ref()
        .is_some_and(|rewrite| !rewrite.authority.is_empty());
    let request = route
        .headers
        .as_ref()
        .and_then(|headers| headers.request.as_ref());
    let set = request.map_or(0, |request| {
        request
            .set
            .keys()
            .chain(request.add.keys())
            .filter(|name| header::is_authority(name))
            .count()
    });
    if usize::from(rewritten) + set > 1 {
        check.error("the authority is rewritten more than once");
    }
}

fn cors(check: &mut Checker, policy: &CorsPolicy) {
    check.each(
        "allowOrigins",
        &policy.allow_origins,
        |check, origin| match origin {
            StringMatch::Regex(text) => regex(check, "regex", text),
            StringMatch::Exact(text) | StringMatch::Prefix(text) if !text.is_empty() => {}
            _ => check.error("must not be empty"),
        },
    );
    check.each("allowMethods", &policy.allow_methods, |check, method| {
        if !METHODS.contains(&method.as_str()) {
            check.error(format!("{method:?} is not an HTTP method"));
        }
    });
    for (field, names) in [
        ("allowHeaders", &policy.allow_headers),
        ("exposeHeaders", &policy.expose_headers),
    ] {
        check.each(field, names, |check, name| {
            if name != "*" && !header::is_token(name) {
                check.error("invalid header name");
            }
        });
    }
    optional_duration(check, "maxAge", policy.max_age);
    let fraction = policy
        .max_age
        .is_some_and(|age| age.get().subsec_nanos() > 0);
    check.error_if(fraction, "maxAge", "must be whole seconds");
}

fn share(check: &mut Checker, percent: &Percent) {
    let value = percent.value;
    let tiny = value > 0.0 && value < 0.0001;
    check.error_if(
        !(0.0..=100.0).contains(&value) || tiny,
        "value",
        format!("{value} is neither 0 nor from 0.0001 to 100"),
    );
}

fn mirror_share(check: &mut Checker, percent: &Percent) {
    check.error_if(
        !(0.0..=100.0).contains(&percent.value),
        "value",
        "must be from 0 to 100",
    );
}

fn fault(check: &mut Checker, fault: &HttpFaultInjection) {
    if fault.abort.is_none() && fault.delay.is_none() {
        check.error("one of abort and delay is required");
    }
    check.some("abort", fault.abort.as_ref(), abort);
    check.some("delay", fault.delay.as_ref(), |check, delay| {
        check.some("percentage", delay.percentage.as_ref(), share);
        optional_duration(check, "fixedDelay", delay.fixed_delay);
        check.error_if(
            delay.exponential_delay.is_some(),
            "exponentialDelay",
            "is not supported",
        );
    });
}

fn abort(check: &mut Checker, abort: &FaultAbort) {
    check.some("percentage", abort.percentage.as_ref(), share);
    at_most_one(
        check,
        &[
            ("httpStatus", abort.http_status.is_some()),
            ("grpcStatus", abort.grpc_status.is_some()),
            ("http2Error", abort.http2_error.is_some()),
        ],
    );
    match (abort.http_status, &abort.grpc_status, &abort.http2_error) {
        (Some(code), _, _) => check.result("httpStatus", status(i64::from(code))),
        (_, Some(name), _) => check.error_if(
            !GRPC_STATUS.contains(&name.as_str()),
            "grpcStatus",
            format!("{name:?} is not a gRPC status such as NOT_FOUND"),
        ),
        (_, _, Some(_)) => check.field("http2Error", |check| check.error("is not supported")),
        _ => check.warn("no status is given", "no request is aborted"),
    }
}

fn status(code: i64) -> Result<(), String> {
    if (200..=600).contains(&code) {
        Ok(())
    } else {
        Err(format!("HTTP status {code} is not in the range 200 to 599"))
    }
}

fn redirect(check: &mut Checker, redirect: &HttpRedirect, matches: &[HttpMatchRequest]) {
    at_most_one(
        check,
        &[
            ("uri", !redirect.uri.is_empty()),
            ("prefixRewrite", !redirect.prefix_rewrite.is_empty()),
        ],
    );
    at_most_one(
        check,
        &[
            ("port", redirect.port.is_some()),
            ("derivePort", redirect.derive_port.is_some()),
        ],
    );
    if !redirect.prefix_rewrite.is_empty() {
        let other = |request: &HttpMatchRequest| {
            !matches!(request.uri, None | Some(StringMatch::Prefix(_)))
        };
        check.error_if(
            matches.iter().any(other),
            "prefixRewrite",
            "needs every uri to be matched by prefix",
        );
    }
    let empty = redirect.uri.is_empty()
        && redirect.prefix_rewrite.is_empty()
        && redirect.authority.is_empty()
        && redirect.scheme.is_empty()
        && redirect.port.is_none()
        && redirect.derive_port.is_none();
    if empty {
        check.error("one of uri, prefixRewrite, authority, scheme and port is required");
    }
    let code = redirect.redirect_code;
    check.error_if(
        code != 0 && !(300..=399).contains(&code),
        "redirectCode",
        "must be from 300 to 399",
    );
    let scheme = redirect.scheme.as_str();
    check.error_if(
        !matches!(scheme, "" | "http" | "https"),
        "scheme",
        "must be http or https",
    );
    if let Some(number @ 1..) = redirect.port {
        check.result("port", port(number));
    }
}

fn direct_response(check: &mut Checker, response: &HttpDirectResponse) {
    check.result("status", status(i64::from(response.status)));
    check.some("body", response.body.as_ref(), |check, body| {
        at_most_one(
            check,
            &[
                ("string", body.string.is_some()),
                ("bytes", body.bytes.is_some()),
            ],
        );
        let size = body.string.as_ref().map_or(0, String::len)
            + body.bytes.as_ref().map_or(0, |bytes| bytes.0.len());
        if size > 1 << 20 {
            check.error("must be smaller than 1 MiB");
        } else if size > 100 << 10 {
            check.warn("is larger than 100 KiB", "every proxy is sent all of it");
        }
    });
}

pub(super) fn retries(check: &mut Checker, retries: &HttpRetry) {
    check.error_if(retries.attempts < 0, "attempts", "must not be negative");
    let more = retries.per_try_timeout.is_some()
        || !retries.retry_on.is_empty()
        || retries.retry_remote_localities.is_some();
    check.error_if(
        retries.attempts == 0 && more,
        "attempts",
        "is 0, which turns retries off, but other fields are set",
    );
    optional_duration(check, "perTryTimeout", retries.per_try_timeout);
    optional_duration(check, "backoff", retries.backoff);
    if !retries.retry_on.is_empty() {
        for policy in retries.retry_on.split(',') {
            let code = policy
                .parse::<u16>()
                .is_ok_and(|code| (100..=599).contains(&code));
            check.error_if(
                !code && !RETRY_ON.contains(&policy),
                "retryOn",
                format!("unknown condition {policy:?}"),
            );
        }
    }
}

fn rewrite(check: &mut Checker, rewrite: &HttpRewrite) {
    at_most_one(
        check,
        &[
            ("uri", !rewrite.uri.is_empty()),
            ("uriRegexRewrite", rewrite.uri_regex_rewrite.is_some()),
        ],
    );
    if rewrite.uri.is_empty() && rewrite.uri_regex_rewrite.is_none() && rewrite.authority.is_empty()
    {
        check.error("one of uri, uriRegexRewrite and authority is required");
    }
    check.some(
        "uriRegexRewrite",
        rewrite.uri_regex_rewrite.as_ref(),
        |check, rewrite| {
            regex(check, "match", &rewrite.r#match);
            check.error_if(rewrite.rewrite.is_empty(), "rewrite", "must not be empty");
        },
    );
}
