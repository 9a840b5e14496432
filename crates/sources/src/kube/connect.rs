//! A client of an API server that does all it asks over one connection, where the server can, but for long lists.
//!
//! kube-rs' own opens another connection, with another TLS handshake and other buffers, for every watch.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{Request, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
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
/// How long requests wait for the greeting that goes ahead.
const AHEAD: Duration = Duration::from_secs(1);

/// Marks a request whose answer is long and has an end: it has a connection of its own meanwhile, of HTTP/1.1. In one of
/// HTTP/2, servers hand every few kilobytes from one goroutine to the next, and all that is asked waits in one queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Long;

/// Makes a client; nothing is sent yet.
pub(super) fn client(config: Config) -> Result<Client, Box<dyn Error + Send + Sync>> {
    if config.proxy_url.is_some() {
        // Says what it can do about that.
        return Ok(Client::try_from(config)?);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let tls = config.rustls_client_config()?;
    let connector = || -> Result<_, Box<dyn Error + Send + Sync>> {
        let tls = HttpsConnectorBuilder::new().with_tls_config(tls.clone());
        let mut connector = tls.https_or_http();
        if let Some(name) = config.tls_server_name.clone() {
            let resolver = FixedServerNameResolver::new(name.try_into()?);
            connector = connector.with_server_name_resolver(resolver);
        }
        Ok(connector.enable_http1())
    };
    let shared = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_initial_stream_window_size(WINDOW)
        .http2_initial_connection_window_size(WINDOWS)
        .http2_keep_alive_interval(IDLE)
        .http2_keep_alive_timeout(ALIVE)
        .build(connector()?.enable_http2().wrap_connector(tcp.clone()));
    let own = HttpClient::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build(connector()?.wrap_connector(tcp));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(Into::<Box<dyn Error + Send + Sync>>::into)
        .service(Lanes {
            shared: OneAhead::new(shared, greeting),
            own,
        });
    Ok(Client::new(service, config.default_namespace.clone()))
}

type Http = HttpClient<HttpsConnector<HttpConnector>, Body>;

/// Two ways to the same server.
#[derive(Clone)]
struct Lanes {
    /// One connection for all, which stays.
    shared: OneAhead<Http, Request<Body>>,
    /// A connection for each, which is closed after the answer.
    own: Http,
}

impl Service<Request<Body>> for Lanes {
    type Response = <Http as Service<Request<Body>>>::Response;
    type Error = <Http as Service<Request<Body>>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.shared.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match request.extensions().get::<Long>() {
            // A client of the pool is always ready.
            Some(Long) => Box::pin(self.own.call(request)),
            None => self.shared.call(request),
        }
    }
}

/// A request to the server that another one goes to, which any server answers at once, if only with a refusal. It comes from the
/// same user: when strangers ask, servers close the connection after the answer.
fn greeting(request: &Request<Body>) -> Request<Body> {
    let mut greeting = Request::new(Body::empty());
    if let Some(user) = request.headers().get(AUTHORIZATION) {
        greeting.headers_mut().insert(AUTHORIZATION, user.clone());
    }
    let mut uri = request.uri().clone().into_parts();
    uri.path_and_query = Some(PathAndQuery::from_static("/version"));
    // An address with another path is as good as it was.
    *greeting.uri_mut() = Uri::from_parts(uri).unwrap_or_else(|_| request.uri().clone());
    greeting
}

/// Lets a greeting go ahead while there may be no connection; all share the one that it makes. All at once, as at the start or
/// when the server is back, each would make its own before any learns that one is enough. It is not one of them that goes
/// ahead, because a server answers a list when it knows that what it has is up to date, which may take a while.
#[derive(Debug)]
struct OneAhead<S, R> {
    inner: S,
    greeting: fn(&R) -> R,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last that was sent was answered.
    connected: AtomicBool,
    turn: Mutex<()>,
}

// Derived, it would want requests to be `Clone`.
impl<S: Clone, R> Clone for OneAhead<S, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            greeting: self.greeting,
            state: self.state.clone(),
        }
    }
}

impl<S, R> OneAhead<S, R> {
    fn new(inner: S, greeting: fn(&R) -> R) -> Self {
        Self {
            inner,
            greeting,
            state: Arc::default(),
        }
    }
}

impl<S, R> Service<R> for OneAhead<S, R>
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
        let greeting = self.greeting;
        // The clone takes the place of the one that is ready.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let connected = || state.connected.load(Ordering::Relaxed);
            if !connected() {
                let (mut greeter, greeting) = (inner.clone(), greeting(&request));
                let ahead = async {
                    let _turn = state.turn.lock().await;
                    // Whoever had the turn before may have connected.
                    if !connected() {
                        let ready = poll_fn(|context| greeter.poll_ready(context));
                        let ready = ready.await.is_ok();
                        let greeted = ready && greeter.call(greeting).await.is_ok();
                        state.connected.store(greeted, Ordering::Relaxed);
                    }
                };
                // Who gets no answer in time tries by itself.
                let _late = tokio::time::timeout(AHEAD, ahead).await;
            }
            let answer = inner.call(request).await;
            state.connected.store(answer.is_ok(), Ordering::Relaxed);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Semaphore;
    use tokio::task::JoinSet;
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// What it was sent.
    #[derive(Clone, Copy)]
    enum Sent {
        Greeting,
        Request,
    }

    struct Server {
        greeted: AtomicUsize,
        asked: AtomicUsize,
        /// As many are answered, first come first served.
        answers: Semaphore,
        /// How.
        up: AtomicBool,
    }

    impl Server {
        async fn answer(self: Arc<Self>, sent: Sent) -> Result<(), ()> {
            let count = match sent {
                Sent::Greeting => &self.greeted,
                Sent::Request => &self.asked,
            };
            count.fetch_add(1, Ordering::Relaxed);
            self.answers.acquire().await.unwrap().forget();
            self.up.load(Ordering::Relaxed).then_some(()).ok_or(())
        }

        /// How many have greeted and asked once nobody has anything to do but wait. The clock stands still meanwhile.
        async fn sent(&self) -> (usize, usize) {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
            (count(&self.greeted), count(&self.asked))
        }
    }

    fn many(server: &Arc<Server>) -> JoinSet<Result<(), ()>> {
        let inner = service_fn({
            let server = server.clone();
            move |sent| server.clone().answer(sent)
        });
        let service = OneAhead::new(inner, |_| Sent::Greeting);
        let request = |_| service.clone().oneshot(Sent::Request);
        (0..10).map(request).collect()
    }

    fn server(up: bool) -> Arc<Server> {
        Arc::new(Server {
            greeted: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            answers: Semaphore::new(0),
            up: AtomicBool::new(up),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_greeting_goes_ahead_and_all_follow_when_it_has_an_answer() {
        let server = server(true);
        let requests = many(&server);
        assert_eq!(server.sent().await, (1, 0));
        server.answers.add_permits(1);
        assert_eq!(server.sent().await, (1, 10));
        server.answers.add_permits(10);
        assert_eq!(requests.join_all().await, [Ok(()); 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_is_followed_by_one() {
        let server = server(false);
        let requests = many(&server);
        assert_eq!(server.sent().await, (1, 0));
        server.answers.add_permits(1);
        assert_eq!(server.sent().await, (2, 1), "one tries all the same");
        server.answers.add_permits(1);
        assert_eq!(server.sent().await, (2, 1), "and fails");
        server.up.store(true, Ordering::Relaxed);
        server.answers.add_permits(1);
        assert_eq!(server.sent().await, (2, 10));
        server.answers.add_permits(9);
        let answers = requests.join_all().await;
        assert_eq!(answers.iter().filter(|r| r.is_err()).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_long_for_a_greeting_that_gets_no_answer() {
        let server = server(true);
        let requests = many(&server);
        assert_eq!(server.sent().await, (1, 0));
        tokio::time::sleep(AHEAD * 2).await;
        assert_eq!(server.sent().await.1, 10);
        drop(requests);
    }

    /// Reads a request and answers it; the line that it begins with, or nothing if there is none to come.
    async fn answer(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => text.push(byte),
                Err(_) => return String::new(),
            }
        }
        let said = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(said).await.unwrap();
        let text = String::from_utf8(text).unwrap();
        text.lines().next().unwrap().to_owned()
    }

    #[tokio::test]
    async fn a_long_answer_has_a_connection_of_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let client = client(Config::new(address.parse().unwrap())).unwrap();
        let ask = |path: &str, long: bool| {
            let mut request = Request::get(path).body(Body::empty()).unwrap();
            if long {
                request.extensions_mut().insert(Long);
            }
            let client = client.clone();
            tokio::spawn(async move {
                let answer = client.send(request).await.unwrap();
                answer.into_body().collect().await.unwrap().to_bytes()
            })
        };
        // Nobody goes ahead of it, nobody follows it.
        for path in ["/pods", "/services"] {
            let asked = ask(path, true);
            let (mut own, _) = listener.accept().await.unwrap();
            assert_eq!(answer(&mut own).await, format!("GET {path} HTTP/1.1"));
            assert_eq!(asked.await.unwrap(), "{}");
            let closed = tokio::time::timeout(IDLE, answer(&mut own)).await;
            assert_eq!(closed.as_deref(), Ok(""), "it is closed");
        }
        let asked = ask("/nodes", false);
        let (mut shared, _) = listener.accept().await.unwrap();
        assert_eq!(answer(&mut shared).await, "GET /version HTTP/1.1");
        assert_eq!(answer(&mut shared).await, "GET /nodes HTTP/1.1");
        assert_eq!(asked.await.unwrap(), "{}");
    }

    #[test]
    fn a_greeting_goes_to_the_same_server_from_the_same_user() {
        let request = Request::get("https://10.0.0.1:6443/api/v1/pods?watch=true")
            .header("authorization", "Bearer secret")
            .header("accept", "application/json")
            .body(Body::empty())
            .unwrap();
        let greeting = greeting(&request);
        assert_eq!(*greeting.uri(), "https://10.0.0.1:6443/version");
        assert_eq!(greeting.headers().len(), 1);
        assert_eq!(greeting.headers()["authorization"], "Bearer secret");
    }
}
