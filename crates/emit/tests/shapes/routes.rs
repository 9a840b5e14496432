//! Shapes of emitted routes.

use pilotfish_emit::Dialect;
use pilotfish_ir::route::{
    Abort, Action, Body, ClaimMatch, Cors, Fault, HashPolicy, HeaderEdit, HeaderMatch, HeaderOps,
    HeaderValue, Mirror, PathMatch, QueryMatch, Redirect, RedirectPath, Retries, Rewrite, Route,
    StringMatch,
};
use pilotfish_ir::{Millionths, Millis, RouteTable, Share, VirtualHost};
use serde_json::{Value, json};

use crate::support::*;

fn host(routes: Vec<Route>) -> VirtualHost {
    VirtualHost {
        name: text("web.shop.svc.cluster.local:80"),
        domains: vec![
            text("web.shop.svc.cluster.local"),
            text("web"),
            text("10.96.20.11"),
        ],
        routes,
        attempt_count: true,
        require_tls: false,
        session: None,
    }
}

fn table() -> RouteTable {
    RouteTable {
        name: text("80"),
        ignore_port: true,
        max_direct_response: Some(1_048_576),
    }
}

/// The one route, as emitted.
fn emitted(route: Route) -> Value {
    emitted_for(route, &istio())
}

fn emitted_for(route: Route, dialect: &Dialect) -> Value {
    let hosts = [pilotfish_emit::virtual_host(&host(vec![route]), dialect)];
    body(&pilotfish_emit::route_table(&table(), &hosts))["virtualHosts"][0]["routes"][0].take()
}

fn simple(forward: pilotfish_ir::route::Forward) -> Route {
    route("default", Action::Forward(Box::new(forward)))
}

/// Expected of `default_retries()`.
fn retry_policy() -> Value {
    json!({
        "retryOn": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
        "numRetries": 2,
        "hostSelectionRetryMaxAttempts": "5",
        "retryHostPredicate": [{
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            },
        }],
    })
}

#[test]
fn a_table() {
    let mut forward = forward(vec![to(web(80), 0)]);
    forward.retries = Some(default_retries());
    let mut route = simple(forward);
    route.operation = Some("web.shop.svc.cluster.local:80/*".into());
    let hosts = [pilotfish_emit::virtual_host(&host(vec![route]), &istio())];
    let encoded = pilotfish_emit::route_table(&table(), &hosts);
    assert_eq!(&*encoded.name, "80");
    assert_eq!(
        typed(&encoded),
        json!({
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": "80",
            "ignorePortInHostMatching": true,
            "maxDirectResponseBodySizeBytes": 1_048_576,
            "validateClusters": false,
            "virtualHosts": [{
                "name": "web.shop.svc.cluster.local:80",
                "domains": ["web.shop.svc.cluster.local", "web", "10.96.20.11"],
                "includeRequestAttemptCount": true,
                "routes": [{
                    "name": "default",
                    "match": {"prefix": "/"},
                    "decorator": {"operation": "web.shop.svc.cluster.local:80/*"},
                    "route": {
                        "cluster": "outbound|80||web.shop.svc.cluster.local",
                        "timeout": "0s",
                        "maxGrpcTimeout": "0s",
                        "retryPolicy": retry_policy(),
                    },
                }],
            }],
        })
    );
}

#[test]
fn plain_text_is_turned_away() {
    let mut host = host(Vec::new());
    host.require_tls = true;
    host.attempt_count = false;
    let hosts = [pilotfish_emit::virtual_host(&host, &istio())];
    let host = &body(&pilotfish_emit::route_table(&table(), &hosts))["virtualHosts"][0];
    assert_eq!(host["requireTls"], "ALL");
    assert_eq!(host.get("includeRequestAttemptCount"), None);
}

fn edit(set: &str, add: &str, remove: &[&str]) -> HeaderEdit {
    let give = |name: &str, value: &str, append| HeaderValue {
        name: text(name),
        value: text(value),
        append,
    };
    HeaderEdit {
        give: vec![give(set, "s", false), give(add, "a", true)],
        remove: remove.iter().map(|name| text(name)).collect(),
    }
}

#[test]
fn weights_and_headers() {
    let mut one = to(subset(80, "one"), 70);
    one.headers.request.remove.push(text("x-one"));
    one.host_rewrite = Some(text("one.shop.example"));
    let mut forward = forward(vec![one, to(subset(80, "two"), 30)]);
    forward.rewrite = Some(Rewrite {
        host: Some(text("all.shop.example")),
        ..Default::default()
    });
    let mut route = simple(forward);
    route.headers = HeaderOps {
        request: edit("x-set", "x-added", &["x-gone"]),
        response: edit("y-set", "y-added", &["y-gone"]),
    };
    route.origin = Some(text(
        "/apis/networking.istio.io/v1/namespaces/shop/virtual-service/web",
    ));
    let added = |set: &str, add: &str| {
        json!([
            {"appendAction": "OVERWRITE_IF_EXISTS_OR_ADD", "header": {"key": set, "value": "s"}},
            {"header": {"key": add, "value": "a"}},
        ])
    };
    assert_eq!(
        emitted(route),
        json!({
            "name": "default",
            "match": {"prefix": "/"},
            "metadata": {"filterMetadata": {"istio": {
                "config": "/apis/networking.istio.io/v1/namespaces/shop/virtual-service/web",
            }}},
            "requestHeadersToAdd": added("x-set", "x-added"),
            "requestHeadersToRemove": ["x-gone"],
            "responseHeadersToAdd": added("y-set", "y-added"),
            "responseHeadersToRemove": ["y-gone"],
            "route": {
                "hostRewriteLiteral": "all.shop.example",
                "timeout": "0s",
                "maxGrpcTimeout": "0s",
                "weightedClusters": {"clusters": [
                    {
                        "name": "outbound|80|one|web.shop.svc.cluster.local",
                        "weight": 70,
                        "requestHeadersToRemove": ["x-one"],
                        "hostRewriteLiteral": "one.shop.example",
                    },
                    {"name": "outbound|80|two|web.shop.svc.cluster.local", "weight": 30},
                ]},
            },
        })
    );
}

#[test]
fn what_is_left_of_a_split() {
    let mut forward = forward(vec![to(web(80), 100)]);
    forward.split = true;
    assert_eq!(
        emitted(simple(forward))["route"]["weightedClusters"],
        json!({"clusters": [{"name": "outbound|80||web.shop.svc.cluster.local", "weight": 100}]})
    );
}

#[test]
fn the_host_of_an_only_destination() {
    let mut only = to(web(80), 0);
    only.host_rewrite = Some(text("one.shop.example"));
    assert_eq!(
        emitted(simple(forward(vec![only])))["route"]["hostRewriteLiteral"],
        "one.shop.example"
    );
}

#[test]
fn conditions() {
    let mut route = simple(forward(vec![to(web(80), 0)]));
    let header = |name: &str, value: Option<StringMatch>| HeaderMatch {
        name: text(name),
        value,
        invert: false,
        missing_as_empty: false,
    };
    let mut not = header("x-not", Some(StringMatch::Exact(text("bad"))));
    not.invert = true;
    not.missing_as_empty = true;
    route.matches.path = PathMatch::Regex(text("/item/[0-9]+"));
    route.matches.explicit_case = true;
    route.matches.headers = vec![
        header(":method", Some(StringMatch::Regex(text("PUT|PATCH")))),
        not,
        header("x-present", None),
        header("x-end", Some(StringMatch::Suffix(text("end")))),
    ];
    route.matches.query = vec![
        QueryMatch {
            name: text("d"),
            value: Some(StringMatch::Exact(text(""))),
        },
        QueryMatch {
            name: text("p"),
            value: None,
        },
    ];
    assert_eq!(
        emitted(route)["match"],
        json!({
            "safeRegex": {"regex": "/item/[0-9]+"},
            "caseSensitive": true,
            "headers": [
                {"name": ":method", "stringMatch": {"safeRegex": {"regex": "PUT|PATCH"}}},
                {
                    "name": "x-not",
                    "invertMatch": true,
                    "stringMatch": {"exact": "bad"},
                    "treatMissingHeaderAsEmpty": true,
                },
                {"name": "x-present", "presentMatch": true},
                {"name": "x-end", "stringMatch": {"suffix": "end"}},
            ],
            "queryParameters": [
                {"name": "d", "stringMatch": {"exact": ""}},
                {"name": "p", "presentMatch": true},
            ],
        })
    );
}

#[test]
fn case_is_written_where_it_matters() {
    let mut route = simple(forward(vec![to(web(80), 0)]));
    route.matches.path = PathMatch::SegmentPrefix(text("/Pre"));
    assert_eq!(
        emitted(route.clone())["match"],
        json!({"pathSeparatedPrefix": "/Pre"})
    );
    route.matches.ignore_case = true;
    assert_eq!(
        emitted(route)["match"],
        json!({"pathSeparatedPrefix": "/Pre", "caseSensitive": false})
    );
}

#[test]
fn resilience() {
    let mut forward = forward(vec![to(web(80), 0)]);
    forward.timeout = Millis(1500);
    forward.max_grpc_timeout = Some(Millis(1500));
    forward.retries = Some(Retries {
        attempts: 4,
        per_try: Some(Millis::secs(2)),
        statuses: vec![503],
        other_localities: true,
        backoff: Some(Millis(80)),
        ..default_retries()
    });
    let mirror = |share| Mirror {
        cluster: web(81),
        share,
        disable_shadow_suffix: true,
    };
    forward.mirrors = vec![
        mirror(Share::Millionths(Millionths::from_percent(33.3))),
        mirror(Share::Percent(100)),
    ];
    forward.hash = vec![
        HashPolicy::Header(text("x-user")),
        HashPolicy::SourceIp(true),
        HashPolicy::Query(text("uid")),
        HashPolicy::Cookie {
            name: text("sess"),
            path: text("/p"),
            ttl: Some(Millis(0)),
            attributes: vec![(text("SameSite"), text("Strict"))],
        },
    ];
    let mirrored = |fraction: Value| {
        json!({
            "cluster": "outbound|81||web.shop.svc.cluster.local",
            "disableShadowHostSuffixAppend": true,
            "runtimeFraction": {"defaultValue": fraction},
            "traceSampled": false,
        })
    };
    assert_eq!(
        emitted(simple(forward))["route"],
        json!({
            "cluster": "outbound|80||web.shop.svc.cluster.local",
            "timeout": "1.500s",
            "maxGrpcTimeout": "1.500s",
            "retryPolicy": with(retry_policy(), json!({
                "numRetries": 4,
                "perTryTimeout": "2s",
                "retriableStatusCodes": [503],
                "retryBackOff": {"baseInterval": "0.080s"},
                "retryPriority": {
                    "name": "envoy.retry_priorities.previous_priorities",
                    "typedConfig": {
                        "@type": "type.googleapis.com/\
                            envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
                        "updateFrequency": 2,
                    },
                },
            })),
            "requestMirrorPolicies": [
                mirrored(json!({"denominator": "MILLION", "numerator": 333_000})),
                mirrored(json!({"numerator": 100})),
            ],
            "hashPolicy": [
                {"header": {"headerName": "x-user"}},
                {"connectionProperties": {"sourceIp": true}},
                {"queryParameter": {"name": "uid"}},
                {"cookie": {
                    "name": "sess",
                    "path": "/p",
                    "ttl": "0s",
                    "attributes": [{"name": "SameSite", "value": "Strict"}],
                }},
            ],
        })
    );
}

#[test]
fn to_the_application() {
    let mut forward = forward(vec![to(
        pilotfish_ir::ClusterName::Inbound { port: 8080 },
        0,
    )]);
    forward.stream_duration = Some(Millis(0));
    forward.retries = Some(Retries {
        on: text("reset-before-request"),
        other_hosts: false,
        ..default_retries()
    });
    assert_eq!(
        emitted(simple(forward))["route"],
        json!({
            "cluster": "inbound|8080||",
            "timeout": "0s",
            "maxStreamDuration": {"maxStreamDuration": "0s", "grpcTimeoutHeaderMax": "0s"},
            "retryPolicy": {"numRetries": 2, "retryOn": "reset-before-request"},
        })
    );
}

#[test]
fn rewrites() {
    let rewritten = |rewrite: Rewrite| {
        let mut forward = forward(vec![to(web(80), 0)]);
        forward.rewrite = Some(rewrite);
        emitted(simple(forward))["route"].take()
    };
    let prefix = rewritten(Rewrite {
        prefix: Some(text("/other")),
        auto_host: true,
        ..Default::default()
    });
    assert_eq!(prefix["prefixRewrite"], "/other");
    assert_eq!(prefix["autoHostRewrite"], true);
    let pattern = rewritten(Rewrite {
        regex: Some((text("/c/(.*)"), text("/n/\\1"))),
        ..Default::default()
    });
    assert_eq!(
        pattern["regexRewrite"],
        json!({"pattern": {"regex": "/c/(.*)"}, "substitution": "/n/\\1"})
    );
}

#[test]
fn redirects() {
    let redirected = |redirect| emitted(route("", Action::Redirect(redirect)))["redirect"].take();
    assert_eq!(
        redirected(Redirect {
            scheme: Some(text("https")),
            port: Some(8443),
            code: 307,
            ..Default::default()
        }),
        json!({
            "pathRedirect": "", "portRedirect": 8443, "responseCode": "TEMPORARY_REDIRECT", "schemeRedirect": "https",
        })
    );
    assert_eq!(
        redirected(Redirect {
            path: Some(RedirectPath::Full(text("/dee"))),
            host: Some(text("d.shop.example")),
            code: 301,
            ..Default::default()
        }),
        json!({"hostRedirect": "d.shop.example", "pathRedirect": "/dee"})
    );
    assert_eq!(
        redirected(Redirect {
            path: Some(RedirectPath::Prefix(text("/new"))),
            https: true,
            strip_query: true,
            code: 308,
            ..Default::default()
        }),
        json!({
            "httpsRedirect": true, "prefixRewrite": "/new", "responseCode": "PERMANENT_REDIRECT", "stripQuery": true,
        })
    );
}

#[test]
fn direct_responses() {
    let answered = |status, body| {
        emitted(route("", Action::Respond { status, body }))["directResponse"].take()
    };
    assert_eq!(answered(204, None), json!({"status": 204}));
    assert_eq!(
        answered(418, Some(Body::Text(text("short and stout")))),
        json!({"status": 418, "body": {"inlineString": "short and stout"}})
    );
    assert_eq!(
        answered(503, Some(Body::Bytes(vec![0, 1, 2]))),
        json!({"status": 503, "body": {"inlineBytes": "AAEC"}})
    );
}

fn guarded() -> Route {
    let mut route = simple(forward(vec![to(web(80), 0)]));
    route.fault = Some(Fault {
        delay: Some((
            Millis::secs(3),
            Share::Millionths(Millionths::from_percent(12.5)),
        )),
        abort: Some((
            Abort::Grpc(14),
            Some(Share::Millionths(Millionths::from_percent(100.0))),
        )),
    });
    route.cors = Some(Cors {
        origins: vec![
            StringMatch::Exact(text("https://shop.example")),
            StringMatch::Prefix(text("https://dev.")),
        ],
        methods: text("GET,POST"),
        headers: text("x-one,x-two"),
        expose: text("x-out"),
        max_age: Some(text("86400")),
        credentials: Some(false),
        forward_unmatched: Some(true),
    });
    route
}

#[test]
fn faults_and_cross_origin_policy() {
    assert_eq!(
        emitted(guarded())["typedPerFilterConfig"],
        json!({
            "envoy.filters.http.fault": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
                "delay": {"fixedDelay": "3s", "percentage": {"denominator": "MILLION", "numerator": 125_000}},
                "abort": {"grpcStatus": 14, "percentage": {"denominator": "MILLION", "numerator": 1_000_000}},
            },
            "envoy.filters.http.cors": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
                "allowOriginStringMatch": [{"exact": "https://shop.example"}, {"prefix": "https://dev."}],
                "allowMethods": "GET,POST",
                "allowHeaders": "x-one,x-two",
                "exposeHeaders": "x-out",
                "maxAge": "86400",
                "allowCredentials": false,
                "forwardNotMatchingPreflights": true,
                "filterEnabled": {"defaultValue": {"numerator": 100}},
            },
        })
    );
}

#[test]
fn a_filter_that_is_not_there_is_not_configured() {
    let only_cors = Dialect::from_extensions(&["envoy.filters.http.cors"].into());
    let configs = emitted_for(guarded(), &only_cors)["typedPerFilterConfig"].take();
    let names: Vec<_> = configs.as_object().unwrap().keys().collect();
    assert_eq!(names, ["envoy.filters.http.cors"]);
}

#[test]
fn a_claim_is_one_value_or_one_of_a_list() {
    let mut route = route(
        "r",
        Action::Forward(Box::new(forward(vec![to(web(80), 0)]))),
    );
    route.matches.claims = vec![ClaimMatch {
        path: vec![text("group"), text("id")],
        value: StringMatch::Exact(text("admin")),
        invert: true,
    }];
    assert_eq!(
        emitted(route)["match"]["dynamicMetadata"],
        json!([{
            "filter": "envoy.filters.http.jwt_authn",
            "path": [{"key": "payload"}, {"key": "group"}, {"key": "id"}],
            "value": {"orMatch": {"valueMatchers": [
                {"listMatch": {"oneOf": {"stringMatch": {"exact": "admin"}}}},
                {"stringMatch": {"exact": "admin"}},
            ]}},
            "invert": true,
        }])
    );
}
