//! `VirtualService`: how requests are routed.

use std::collections::BTreeMap;

use super::StringMatch;
use super::{api, api_enum};
use crate::Labels;
use crate::base64::Base64;
use crate::duration::Duration;

api! {
    pub struct VirtualService {
        pub hosts: Vec<String>,
        pub gateways: Vec<String>,
        pub http: Vec<HttpRoute>,
        pub tls: Vec<TlsRoute>,
        pub tcp: Vec<TcpRoute>,
        pub export_to: Vec<String>,
    }
}

api! {
    pub struct Destination {
        pub host: String,
        pub subset: String,
        pub port: Option<PortSelector>,
    }
}

api! {
    pub struct HttpRoute {
        pub name: String,
        pub r#match: Vec<HttpMatchRequest>,
        pub route: Vec<HttpRouteDestination>,
        pub redirect: Option<HttpRedirect>,
        pub direct_response: Option<HttpDirectResponse>,
        pub delegate: Option<Delegate>,
        pub rewrite: Option<HttpRewrite>,
        pub timeout: Option<Duration>,
        pub retries: Option<HttpRetry>,
        pub fault: Option<HttpFaultInjection>,
        pub mirror: Option<Destination>,
        pub mirrors: Vec<HttpMirrorPolicy>,
        #[serde(alias = "mirror_percent")]
        pub mirror_percent: Option<u32>,
        pub mirror_percentage: Option<Percent>,
        pub cors_policy: Option<CorsPolicy>,
        pub headers: Option<Headers>,
    }
}

api! {
    pub struct Delegate {
        pub name: String,
        pub namespace: String,
    }
}

api! {
    pub struct Headers {
        pub request: Option<HeaderOperations>,
        pub response: Option<HeaderOperations>,
    }
}

api! {
    pub struct HeaderOperations {
        pub set: BTreeMap<String, String>,
        pub add: BTreeMap<String, String>,
        pub remove: Vec<String>,
    }
}

api! {
    pub struct TlsRoute {
        pub r#match: Vec<TlsMatchAttributes>,
        pub route: Vec<RouteDestination>,
    }
}

api! {
    pub struct TcpRoute {
        pub r#match: Vec<L4MatchAttributes>,
        pub route: Vec<RouteDestination>,
    }
}

api! {
    pub struct HttpMatchRequest {
        pub name: String,
        pub uri: Option<StringMatch>,
        pub scheme: Option<StringMatch>,
        pub method: Option<StringMatch>,
        pub authority: Option<StringMatch>,
        pub headers: BTreeMap<String, StringMatch>,
        pub port: u32,
        pub source_labels: Labels,
        pub gateways: Vec<String>,
        pub query_params: BTreeMap<String, StringMatch>,
        pub ignore_uri_case: bool,
        pub without_headers: BTreeMap<String, StringMatch>,
        pub source_namespace: String,
        pub stat_prefix: String,
    }
}

api! {
    pub struct HttpRouteDestination {
        pub destination: Option<Destination>,
        pub weight: i32,
        pub headers: Option<Headers>,
    }
}

api! {
    pub struct RouteDestination {
        pub destination: Option<Destination>,
        pub weight: i32,
    }
}

api! {
    pub struct L4MatchAttributes {
        pub destination_subnets: Vec<String>,
        pub port: u32,
        pub source_subnet: String,
        pub source_labels: Labels,
        pub gateways: Vec<String>,
        pub source_namespace: String,
    }
}

api! {
    pub struct TlsMatchAttributes {
        pub sni_hosts: Vec<String>,
        pub destination_subnets: Vec<String>,
        pub port: u32,
        pub source_labels: Labels,
        pub gateways: Vec<String>,
        pub source_namespace: String,
    }
}

api! {
    pub struct HttpRedirect {
        pub uri: String,
        pub authority: String,
        pub port: Option<u32>,
        pub derive_port: Option<RedirectPortSelection>,
        pub scheme: String,
        pub redirect_code: u32,
        pub prefix_rewrite: String,
    }
}

api_enum! {
    RedirectPortSelection {
        FromProtocolDefault = "FROM_PROTOCOL_DEFAULT",
        FromRequestPort = "FROM_REQUEST_PORT",
    }
}

api! {
    pub struct HttpDirectResponse {
        pub status: u32,
        pub body: Option<HttpBody>,
    }
}

api! {
    pub struct HttpBody {
        pub string: Option<String>,
        pub bytes: Option<Base64>,
    }
}

api! {
    pub struct HttpRewrite {
        pub uri: String,
        pub authority: String,
        pub uri_regex_rewrite: Option<RegexRewrite>,
    }
}

api! {
    pub struct RegexRewrite {
        pub r#match: String,
        pub rewrite: String,
    }
}

api! {
    pub struct HttpRetry {
        pub attempts: i32,
        pub per_try_timeout: Option<Duration>,
        pub retry_on: String,
        pub retry_remote_localities: Option<bool>,
        pub retry_ignore_previous_hosts: Option<bool>,
        pub backoff: Option<Duration>,
    }
}

api! {
    pub struct CorsPolicy {
        pub allow_origin: Vec<String>,
        pub allow_origins: Vec<StringMatch>,
        pub allow_methods: Vec<String>,
        pub allow_headers: Vec<String>,
        pub expose_headers: Vec<String>,
        pub max_age: Option<Duration>,
        pub allow_credentials: Option<bool>,
        pub unmatched_preflights: UnmatchedPreflights,
    }
}

api_enum! {
    UnmatchedPreflights {
        Unspecified = "UNSPECIFIED",
        Forward = "FORWARD",
        Ignore = "IGNORE",
    }
}

api! {
    pub struct HttpFaultInjection {
        pub delay: Option<FaultDelay>,
        pub abort: Option<FaultAbort>,
    }
}

api! {
    pub struct FaultDelay {
        pub percent: i32,
        pub fixed_delay: Option<Duration>,
        pub exponential_delay: Option<Duration>,
        pub percentage: Option<Percent>,
    }
}

api! {
    pub struct FaultAbort {
        pub http_status: Option<i32>,
        pub grpc_status: Option<String>,
        pub http2_error: Option<String>,
        pub percentage: Option<Percent>,
    }
}

api! {
    pub struct HttpMirrorPolicy {
        pub destination: Option<Destination>,
        pub percentage: Option<Percent>,
    }
}

api! {
    pub struct PortSelector {
        pub number: u32,
    }
}

api! {
    pub struct Percent {
        pub value: f64,
    }
}
