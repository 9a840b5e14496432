//! A client of an API server that does all it asks over one connection, where the server can.
//!
//! kube-rs' own opens another connection, with another TLS handshake and other buffers, for every watch.

use std::error::Error;
use std::time::Duration;

use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::ServiceBuilder;

/// How much may be on its way to us: of one answer, and of all together.
const WINDOW: u32 = 1 << 20;
const WINDOWS: u32 = 4 << 20;
/// A server that says nothing for so long is asked whether it is there.
const IDLE: Duration = Duration::from_secs(30);
/// How long it may take to answer that.
const ALIVE: Duration = Duration::from_secs(15);

/// Makes a client; nothing is sent yet.
pub(super) fn client(config: Config) -> Result<Client, Box<dyn Error + Send + Sync>> {
    if config.proxy_url.is_some() {
        // Says what it can do about that.
        return Ok(Client::try_from(config)?);
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name.try_into()?));
    }
    let connector = tls.enable_http1().enable_http2().wrap_connector(connector);
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_initial_stream_window_size(WINDOW)
        .http2_initial_connection_window_size(WINDOWS)
        .http2_keep_alive_interval(IDLE)
        .http2_keep_alive_timeout(ALIVE)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(Into::<Box<dyn Error + Send + Sync>>::into)
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}
