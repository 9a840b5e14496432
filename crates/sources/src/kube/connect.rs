//! A client of an API server that does all it asks over one connection, where the server can.
//!
//! kube-rs' own opens another connection, with another TLS handshake and other buffers, for every watch.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tokio::sync::Mutex;
use tower::{Service, ServiceBuilder};

/// How much may be on its way to us: of one answer, and of all together.
const WINDOW: u32 = 1 << 20;
const WINDOWS: u32 = 4 << 20;
/// A server that says nothing for so long is asked whether it is there.
const IDLE: Duration = Duration::from_secs(30);
/// How long it may take to answer that.
const ALIVE: Duration = Duration::from_secs(15);
/// How long others wait for the one that goes ahead.
const AHEAD: Duration = Duration::from_secs(1);

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
        .service(OneAhead::new(http));
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Lets one request go ahead while there may be no connection; the others share the one that it makes. All at once, as at the
/// start or when the server is back, each would make its own before any learns that one is enough.
#[derive(Clone, Debug)]
struct OneAhead<S> {
    inner: S,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last request was answered.
    connected: AtomicBool,
    turn: Mutex<()>,
}

impl<S> OneAhead<S> {
    fn new(inner: S) -> Self {
        Self {
            inner,
            state: Arc::default(),
        }
    }
}

impl<S, R> Service<R> for OneAhead<S>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let state = self.state.clone();
        // The clone takes the place of the one that is ready.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let connected = || state.connected.load(Ordering::Relaxed);
            let turn = if connected() {
                None
            } else {
                tokio::time::timeout(AHEAD, state.turn.lock()).await.ok()
            };
            // Whoever had the turn before may have connected.
            let _turn = turn.filter(|_| !connected());
            let answer = inner.call(request).await;
            state.connected.store(answer.is_ok(), Ordering::Relaxed);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Semaphore;
    use tokio::task::JoinSet;
    use tower::{ServiceExt, service_fn};

    use super::*;

    struct Server {
        asked: AtomicUsize,
        /// As many are answered.
        answers: Semaphore,
        /// How.
        up: AtomicBool,
    }

    impl Server {
        async fn answer(self: Arc<Self>) -> Result<(), ()> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.answers.acquire().await.unwrap().forget();
            self.up.load(Ordering::Relaxed).then_some(()).ok_or(())
        }

        /// How many are asking once nobody has anything to do but wait. The clock stands still meanwhile.
        async fn asked(&self) -> usize {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            self.asked.load(Ordering::Relaxed)
        }
    }

    fn many(server: &Arc<Server>) -> JoinSet<Result<(), ()>> {
        let service = OneAhead::new(service_fn({
            let server = server.clone();
            move |()| server.clone().answer()
        }));
        (0..10).map(|_| service.clone().oneshot(())).collect()
    }

    fn server(up: bool) -> Arc<Server> {
        Arc::new(Server {
            asked: AtomicUsize::new(0),
            answers: Semaphore::new(0),
            up: AtomicBool::new(up),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn one_goes_ahead_and_the_others_follow_when_it_has_an_answer() {
        let server = server(true);
        let requests = many(&server);
        assert_eq!(server.asked().await, 1);
        server.answers.add_permits(1);
        assert_eq!(server.asked().await, 10);
        server.answers.add_permits(9);
        assert_eq!(requests.join_all().await, [Ok(()); 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_is_followed_by_one() {
        let server = server(false);
        let requests = many(&server);
        assert_eq!(server.asked().await, 1);
        server.answers.add_permits(1);
        assert_eq!(server.asked().await, 2);
        server.up.store(true, Ordering::Relaxed);
        server.answers.add_permits(1);
        assert_eq!(server.asked().await, 10);
        server.answers.add_permits(8);
        let failed = requests
            .join_all()
            .await
            .iter()
            .filter(|r| r.is_err())
            .count();
        assert_eq!(failed, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_long_for_one_that_gets_no_answer() {
        let server = server(true);
        let requests = many(&server);
        assert_eq!(server.asked().await, 1);
        tokio::time::sleep(AHEAD * 2).await;
        assert_eq!(server.asked().await, 10);
        drop(requests);
    }
}
