//! The HTTP ports: probes, metrics, log levels and the debug pages.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use axum::{Router, serve};
use pilotfish_xds::Server;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::cli::DebugAccess;
use crate::debug;
use crate::kubernetes;
use crate::logging::Logging;
use crate::nodes::Nodes;
use crate::plane::Plane;
use crate::scribe::Desk;
use crate::settings;
use crate::version;
use crate::writer::Input;

/// What the pages are made from.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    pub(crate) plane: Arc<Plane>,
    pub(crate) server: Server<Plane>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) logging: Logging,
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) debug: settings::Debug,
    /// How reading goes, if a cluster is read.
    pub(crate) kubernetes: Option<kubernetes::Reading>,
    /// How it goes with writing to it, if anything is written.
    pub(crate) desk: Option<Desk>,
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy)]
struct Ends {
    remote: Option<SocketAddr>,
    local: Option<SocketAddr>,
}

impl Ends {
    /// Whether the request comes from this host: over loopback, or from the very address it was sent to.
    fn is_local(self) -> bool {
        let ip = |end: Option<SocketAddr>| end.map(|address| address.ip().to_canonical());
        let remote = ip(self.remote);
        remote.is_some_and(|ip: IpAddr| ip.is_loopback())
            || (remote.is_some() && remote == ip(self.local))
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for Ends {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self {
            remote: Some(*stream.remote_addr()),
            local: stream.io().local_addr().ok(),
        }
    }
}

/// Serves the HTTP port: `/ready` and the debug pages.
pub(crate) async fn serve_http(
    listener: TcpListener,
    pages: Pages,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    run(listener, common(&pages), pages, stop).await
}

/// Serves the monitoring port: everything on the HTTP port, metrics and log levels.
pub(crate) async fn serve_monitoring(
    listener: TcpListener,
    pages: Pages,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let scopes = Router::new()
        .route("/scopez", get(scopes).put(set_scopes).post(set_scopes))
        .route("/scopez/", get(scopes))
        .route("/scopez/{scope}", get(scope).put(set_scope).post(set_scope))
        .route("/scopej/", get(scopes))
        .route("/scopej/{scope}", get(scope).put(set_scope).post(set_scope))
        .route_layer(middleware::from_fn_with_state(pages.clone(), only_allowed));
    let router = common(&pages).route("/metrics", get(metrics)).merge(scopes);
    run(listener, router, pages, stop).await
}

fn common(pages: &Pages) -> Router<Pages> {
    let router = Router::new()
        .route("/ready", get(ready))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/version", get(|| async { version::line() }));
    if pages.debug.enabled {
        router.merge(
            debug::router()
                .route_layer(middleware::from_fn_with_state(pages.clone(), only_allowed)),
        )
    } else {
        router
    }
}

async fn run(
    listener: TcpListener,
    router: Router<Pages>,
    pages: Pages,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = router
        .layer(middleware::map_response(harden))
        .with_state(pages);
    serve(
        listener,
        router.into_make_service_with_connect_info::<Ends>(),
    )
    .with_graceful_shutdown(stop)
    .await
}

/// Pages show names that users chose: no browser is to run or guess anything in them.
async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
    );
    response
}

/// Debug pages show the whole configuration, and as long as nobody is authenticated they are for this host alone.
async fn only_allowed(
    State(pages): State<Pages>,
    ConnectInfo(ends): ConnectInfo<Ends>,
    request: Request,
    next: Next,
) -> Response {
    if pages.debug.access == DebugAccess::Any || ends.is_local() {
        return next.run(request).await;
    }
    tracing::info!(target: "http", remote = ?ends.remote, path = request.uri().path(), "debug page refused: not from this host");
    let hint = "only requests from this host may see this; use kubectl port-forward or exec `pilotfish request`, or start \
                the server with --debug-access any\n";
    (StatusCode::FORBIDDEN, hint).into_response()
}

async fn ready(State(pages): State<Pages>) -> Response {
    match pages.plane.readiness.check() {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready, {why}\n"),
        )
            .into_response(),
    }
}

async fn metrics(State(pages): State<Pages>, ConnectInfo(ends): ConnectInfo<Ends>) -> Response {
    if pages.debug.metrics_local_only && !ends.is_local() {
        return (
            StatusCode::FORBIDDEN,
            "metrics are for this host only (METRICS_LOCALHOST_ACCESS_ONLY)\n",
        )
            .into_response();
    }
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    if let Some(reading) = &pages.kubernetes {
        kubernetes::count(reading, &pages.plane.metrics);
    }
    if let Some(desk) = &pages.desk {
        desk.count(&pages.plane.metrics);
    }
    let taken = pages.plane.total_cost();
    pages
        .plane
        .metrics
        .translated(taken.pieces, taken.resources);
    ([(header::CONTENT_TYPE, kind)], pages.plane.metrics.text()).into_response()
}

async fn scopes(State(pages): State<Pages>) -> Response {
    json(&pages.logging.scopes())
}

async fn scope(State(pages): State<Pages>, Path(name): Path<String>) -> Response {
    match pages
        .logging
        .scopes()
        .into_iter()
        .find(|scope| scope.name == name)
    {
        Some(scope) => json(&scope),
        None => (
            StatusCode::NOT_FOUND,
            format!("there is no scope {name:?}; /scopez lists them\n"),
        )
            .into_response(),
    }
}

/// The body of a change of level, as istiod's `/scopej/<scope>` takes it.
#[derive(Debug, Deserialize)]
struct NewLevel {
    #[serde(alias = "level")]
    output_level: String,
}

/// Takes `{"output_level": "debug"}`, or the level alone.
async fn set_scope(State(pages): State<Pages>, Path(name): Path<String>, body: Bytes) -> Response {
    let text = String::from_utf8_lossy(&body);
    let level = serde_json::from_str::<NewLevel>(&text)
        .map_or_else(|_| text.trim().to_owned(), |new| new.output_level);
    change(&pages, [(name.as_str(), level.as_str())])
}

/// Takes `ads:debug,push:info`.
async fn set_scopes(State(pages): State<Pages>, body: String) -> Response {
    let parts = body
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    change(
        &pages,
        parts.map(|part| part.split_once(':').unwrap_or(("default", part))),
    )
}

fn change<'a>(pages: &Pages, changes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Response {
    let mut any = false;
    for (scope, level) in changes {
        any = true;
        if let Err(reason) = pages.logging.set(scope, level) {
            return (StatusCode::BAD_REQUEST, format!("{reason}\n")).into_response();
        }
        tracing::info!("log level of {scope} is now {level}");
    }
    if any {
        json(&pages.logging.scopes())
    } else {
        (
            StatusCode::BAD_REQUEST,
            "send scope:level, such as ads:debug\n",
        )
            .into_response()
    }
}

/// Pretty-printed JSON.
pub(crate) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(value) {
        Ok(mut text) => {
            text.push('\n');
            (
                [(
                    header::CONTENT_TYPE,
                    HeaderValue::from_static("application/json"),
                )],
                Body::from(text),
            )
                .into_response()
        }
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot write JSON: {error}\n"),
        )
            .into_response(),
    }
}

/// A page for people.
pub(crate) fn html(text: String) -> Response {
    Html(text).into_response()
}

/// Whether a browser asks. `format=json` and `format=html` in the query decide; otherwise what is accepted.
pub(crate) fn wants_html(headers: &HeaderMap, format: Option<&str>) -> bool {
    match format {
        Some(format) => format == "html",
        None => headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|accept| accept.contains("text/html")),
    }
}

/// Whether plain text is wanted: `format=text` in the query decides; otherwise what is accepted.
pub(crate) fn wants_text(headers: &HeaderMap, format: Option<&str>) -> bool {
    match format {
        Some(format) => format == "text",
        None => headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|accept| accept.starts_with("text/plain")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_recognised() {
        let ends = |remote: &str, local: &str| Ends {
            remote: remote.parse().ok(),
            local: local.parse().ok(),
        };
        assert!(ends("127.0.0.1:9", "127.0.0.1:15014").is_local());
        assert!(ends("[::1]:9", "[::1]:15014").is_local());
        assert!(ends("[::ffff:127.0.0.1]:9", "[::ffff:127.0.0.1]:15014").is_local());
        assert!(ends("10.0.0.1:9", "10.0.0.1:15014").is_local());
        assert!(!ends("10.0.0.2:9", "10.0.0.1:15014").is_local());
        assert!(!ends("", "").is_local());
    }

    #[test]
    fn browsers_get_html() {
        let mut headers = HeaderMap::new();
        assert!(!wants_html(&headers, None));
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("text/html,application/xhtml+xml"),
        );
        assert!(wants_html(&headers, None) && !wants_html(&headers, Some("json")));
    }

    #[test]
    fn text_is_for_those_who_ask() {
        let mut headers = HeaderMap::new();
        assert!(!wants_text(&headers, None) && wants_text(&headers, Some("text")));
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        assert!(!wants_text(&headers, None));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/plain"));
        assert!(wants_text(&headers, None) && !wants_text(&headers, Some("json")));
    }
}
