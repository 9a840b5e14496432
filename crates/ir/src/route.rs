//! HTTP routing.

use crate::{ClusterName, Millis, Share, Text};

/// A route table without its virtual hosts, which are emitted one by one and spliced in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteTable {
    /// Its name.
    pub name: Text,
    /// The port is ignored when hosts are matched.
    pub ignore_port: bool,
    /// Largest direct response body.
    pub max_direct_response: Option<u32>,
}

/// Routes for a set of domains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualHost {
    /// Its name.
    pub name: Text,
    /// Domains matched.
    pub domains: Vec<Text>,
    /// Routes, first match wins.
    pub routes: Vec<Route>,
    /// The attempt count is sent upstream.
    pub attempt_count: bool,
    /// Plain-text requests are refused or redirected.
    pub require_tls: bool,
    /// How sessions are kept where a route says nothing else.
    pub session: Option<Session>,
}

/// How a client comes back to the endpoint that served it before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Session {
    /// By a cookie.
    Cookie {
        /// Its name.
        name: Text,
        /// The path it is for.
        path: Text,
    },
    /// By a header of this name.
    Header(Text),
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Its name.
    pub name: Text,
    /// What it matches.
    pub matches: RouteMatch,
    /// What it does.
    pub action: Action,
    /// Operation name for tracing.
    pub operation: Option<String>,
    /// Path of the object it came from, for telemetry.
    pub origin: Option<Text>,
    /// Headers added, set and removed.
    pub headers: HeaderOps,
    /// Injected faults.
    pub fault: Option<Fault>,
    /// Cross-origin policy.
    pub cors: Option<Cors>,
    /// Prefix of statistics of its own.
    pub stat_prefix: Option<Text>,
    /// How sessions are kept.
    pub session: Option<Session>,
    /// Responses say that this port speaks HTTP/3, too.
    pub http3_port: Option<u16>,
}

/// What a route matches; all conditions must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteMatch {
    /// Path.
    pub path: PathMatch,
    /// Path is compared without case.
    pub ignore_case: bool,
    /// The rule about case is written out even where it is the default.
    pub explicit_case: bool,
    /// Headers, pseudo-headers included.
    pub headers: Vec<HeaderMatch>,
    /// Query parameters.
    pub query: Vec<QueryMatch>,
    /// Claims of the token the request was authenticated by.
    pub claims: Vec<ClaimMatch>,
}

impl RouteMatch {
    /// Everything.
    pub fn any() -> Self {
        Self {
            path: PathMatch::Prefix(Text::from("/")),
            ignore_case: false,
            explicit_case: false,
            headers: Vec::new(),
            query: Vec::new(),
            claims: Vec::new(),
        }
    }
}

/// Path conditions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// Equal.
    Exact(Text),
    /// Begins with.
    Prefix(Text),
    /// Begins with, at a segment boundary.
    SegmentPrefix(Text),
    /// Matches wholly.
    Regex(Text),
}

/// String conditions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StringMatch {
    /// Equal.
    Exact(Text),
    /// Begins with.
    Prefix(Text),
    /// Ends with.
    Suffix(Text),
    /// Matches wholly.
    Regex(Text),
}

/// A header condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// Header name.
    pub name: Text,
    /// Value; `None`: it must be present.
    pub value: Option<StringMatch>,
    /// The condition must not hold.
    pub invert: bool,
    /// An absent header counts as empty when the condition is inverted.
    pub missing_as_empty: bool,
}

/// A query parameter condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueryMatch {
    /// Parameter name.
    pub name: Text,
    /// Value; `None`: it must be present.
    pub value: Option<StringMatch>,
}

/// A condition on a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimMatch {
    /// Its name, and those of claims within it.
    pub path: Vec<Text>,
    /// Value, or one of the values of a list.
    pub value: StringMatch,
    /// The condition must not hold.
    pub invert: bool,
}

/// What a route does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send it upstream.
    Forward(Box<Forward>),
    /// Redirect the client.
    Redirect(Redirect),
    /// Answer at once.
    Respond {
        /// Status.
        status: u32,
        /// Body.
        body: Option<Body>,
    },
}

/// A direct response body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Text.
    Text(Text),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// Sending a request upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// Destinations with weights; weights are meaningless with one.
    pub to: Vec<WeightedCluster>,
    /// Written as a split even if one destination is left of it.
    pub split: bool,
    /// Time for the whole request; 0: none.
    pub timeout: Millis,
    /// Longest gRPC timeout a client may ask for; 0: what it asks for.
    pub max_grpc_timeout: Option<Millis>,
    /// Stream durations are bounded instead of requests (the inbound side).
    pub stream_duration: Option<Millis>,
    /// Retries.
    pub retries: Option<Retries>,
    /// Path and host rewritten.
    pub rewrite: Option<Rewrite>,
    /// Copies sent elsewhere.
    pub mirrors: Vec<Mirror>,
    /// What consistent hashing hashes.
    pub hash: Vec<HashPolicy>,
}

/// A destination and its share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedCluster {
    /// The upstream.
    pub cluster: ClusterName,
    /// Its weight.
    pub weight: u32,
    /// Header operations of this destination.
    pub headers: HeaderOps,
    /// Host sent to this destination.
    pub host_rewrite: Option<Text>,
}

/// Retries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Retries {
    /// Conditions, as a list.
    pub on: Text,
    /// Status codes that are retried.
    pub statuses: Vec<u32>,
    /// Attempts after the first.
    pub attempts: u32,
    /// Time for each.
    pub per_try: Option<Millis>,
    /// A host that failed is avoided.
    pub other_hosts: bool,
    /// Failed localities are avoided.
    pub other_localities: bool,
    /// Back-off base.
    pub backoff: Option<Millis>,
}

/// Rewriting of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rewrite {
    /// Replacement of the matched prefix (or of the whole path when matched exactly).
    pub prefix: Option<Text>,
    /// Pattern and substitution.
    pub regex: Option<(Text, Text)>,
    /// Host.
    pub host: Option<Text>,
    /// Host taken from the endpoint.
    pub auto_host: bool,
    /// The host asked for is passed on in a header.
    pub forwarded_host: bool,
}

/// A copy of the traffic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mirror {
    /// Where it goes.
    pub cluster: ClusterName,
    /// How much of it.
    pub share: Share,
    /// The mirror's host is not given a suffix.
    pub disable_shadow_suffix: bool,
}

/// What consistent hashing hashes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HashPolicy {
    /// A header.
    Header(Text),
    /// A cookie, made if absent.
    Cookie {
        /// Name.
        name: Text,
        /// Path.
        path: Text,
        /// Lifetime; `None`: only used, never made.
        ttl: Option<Millis>,
        /// Further attributes of a cookie that is made: name and value.
        attributes: Vec<(Text, Text)>,
    },
    /// The source address, or (false) nothing.
    SourceIp(bool),
    /// A query parameter.
    Query(Text),
}

/// A redirect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Redirect {
    /// Path, or a prefix replaced.
    pub path: Option<RedirectPath>,
    /// Host.
    pub host: Option<Text>,
    /// Scheme.
    pub scheme: Option<Text>,
    /// Port.
    pub port: Option<u32>,
    /// To https.
    pub https: bool,
    /// 301, 302, 303, 307 or 308.
    pub code: u32,
    /// The query is dropped.
    pub strip_query: bool,
}

/// Path of a redirect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RedirectPath {
    /// The whole path.
    Full(Text),
    /// The matched prefix.
    Prefix(Text),
    /// By pattern.
    Regex(Text, Text),
}

/// Header operations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderOps {
    /// On requests.
    pub request: HeaderEdit,
    /// On responses.
    pub response: HeaderEdit,
}

/// Edits of one direction, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderEdit {
    /// Values given.
    pub give: Vec<HeaderValue>,
    /// Removed.
    pub remove: Vec<Text>,
}

/// A value a header is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderValue {
    /// Of the header.
    pub name: Text,
    /// Its value.
    pub value: Text,
    /// Values that are there already stay.
    pub append: bool,
}

/// Injected faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Delay and its share.
    pub delay: Option<(Millis, Share)>,
    /// Abort and its share; without one it never happens.
    pub abort: Option<(Abort, Option<Share>)>,
}

/// How a request is aborted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Abort {
    /// With an HTTP status.
    Http(u32),
    /// With a gRPC status.
    Grpc(u32),
}

/// Cross-origin policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cors {
    /// Origins allowed.
    pub origins: Vec<StringMatch>,
    /// Methods allowed.
    pub methods: Text,
    /// Headers allowed.
    pub headers: Text,
    /// Headers exposed.
    pub expose: Text,
    /// How long a preflight answer holds, seconds.
    pub max_age: Option<Text>,
    /// Credentials are allowed.
    pub credentials: Option<bool>,
    /// Unmatched preflights are forwarded.
    pub forward_unmatched: Option<bool>,
}
