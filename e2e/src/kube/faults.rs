//! A proxy before the API server that does, by switch, what networks and overloaded servers do.
//!
//! It ends TLS with the API server's own certificate, so clients see no difference; users come through by their tokens.
//! Each connection carries one request. Rules hold for requests to come and for watches that are open.

use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio_rustls::rustls::{ClientConfig, ServerConfig, ServerConnection, StreamOwned};

use super::client::connect;
use crate::http::{self, Message};
use crate::net::Net;
use crate::wait;

/// How often an open connection looks at the rules, and whether its client is still there.
const LOOK: Duration = Duration::from_millis(20);
/// How long a client may take to say what it wants.
const REQUEST: Duration = Duration::from_secs(30);
const JSON: &str = "application/json";
const SWITCH: Duration = Duration::from_secs(5);

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The proxy answers with this code itself. An open watch is ended.
    Status(u16),
    /// A watch is opened, and its first event is an error with this code: how servers mostly say 410.
    ErrorEvent(u16),
    /// The answer ends in the middle of its JSON, though HTTP says that this is all; a watch in its next event.
    Cut,
    /// The connection breaks in the middle of the answer; that of a watch in its next event.
    Break,
    /// Nothing more arrives, and the connection stays open, even when the rule is gone.
    Silence,
    /// The answer, and each piece of a watch, comes so much later.
    Delay(Duration),
    /// An API server that is behind: lists are answered with this one, watches begin with it if they ask for that, and
    /// then say nothing. An open watch is ended.
    Past(Arc<Value>),
}

/// Which requests a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// Lists.
    Lists,
    /// Watches.
    Watches,
    /// Lists and watches.
    Reads,
    /// All, also those that are about one object or change something.
    All,
}

/// What goes wrong with which requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Which requests.
    pub requests: Requests,
    /// Only those about this kind, by its plural (`services`).
    pub kind: Option<String>,
    /// What goes wrong.
    pub fault: Fault,
}

/// The proxy. Dropping it closes it and everything that passes it.
#[derive(Debug)]
pub struct Faults {
    net: Net,
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    net: Net,
    target: SocketAddr,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    rules: Mutex<Vec<Rule>>,
    hits: AtomicU64,
    stopped: AtomicBool,
    refusing: Mutex<bool>,
    refusal: Condvar,
}

impl Faults {
    /// A proxy on a free port of loopback, which passes everything on to `target`.
    pub(super) fn start(
        net: &Net,
        target: SocketAddr,
        server: Arc<ServerConfig>,
        client: Arc<ClientConfig>,
    ) -> Result<Self> {
        let listener = net.bind(([127, 0, 0, 1], 0).into()).context("bind")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            net: net.clone(),
            target,
            server,
            client,
            rules: Mutex::default(),
            hits: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            refusing: Mutex::new(false),
            refusal: Condvar::new(),
        });
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(listener, address, &shared)
        });
        Ok(Self {
            net: net.clone(),
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on these rules hold; of two that are about a request, the first. None: all is well again.
    pub fn set(&self, rules: Vec<Rule>) {
        *lock(&self.shared.rules) = rules;
    }

    /// One rule for all kinds.
    pub fn set_all(&self, requests: Requests, fault: Fault) {
        self.set(vec![Rule {
            requests,
            kind: None,
            fault,
        }]);
    }

    /// How many requests a rule has hit so far.
    pub fn hits(&self) -> u64 {
        self.shared.hits.load(Ordering::Relaxed)
    }

    /// Closes the port and breaks what passes, as if the server had died; `false` opens it again.
    pub fn refuse(&self, refusing: bool) -> Result<()> {
        *lock(&self.shared.refusing) = refusing;
        self.shared.refusal.notify_all();
        wait::until("the port follows", SWITCH, || {
            // Also wakes the acceptor, which otherwise sees no switch.
            let refused = self.net.connect(self.address).is_err();
            ensure!(refused == refusing, "it is refused: {refused}");
            Ok(())
        })
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        *lock(&self.shared.refusing) = false;
        self.shared.refusal.notify_all();
        let _woken = self.net.connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ended = acceptor.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(mut listener: TcpListener, address: SocketAddr, shared: &Arc<Shared>) {
    loop {
        let stream = listener.accept();
        if *lock(&shared.refusing) {
            drop((stream, listener));
            let refusing = lock(&shared.refusing);
            drop(shared.refusal.wait_while(refusing, |refusing| *refusing));
            if shared.stopped.load(Ordering::Relaxed) {
                return;
            }
            let Ok(again) = shared.net.bind(address) else {
                return;
            };
            listener = again;
            continue;
        }
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        if let Ok((stream, _)) = stream {
            let shared = Arc::clone(shared);
            // An error on one connection is its client's to see.
            std::thread::spawn(move || serve(stream, &shared));
        }
    }
}

/// What a request is about, as far as rules ask.
#[derive(Clone, Debug, PartialEq, Eq)]
struct About {
    requests: Requests,
    kind: String,
    /// A watch that wants what there is as its first events.
    wants_initial: bool,
}

impl About {
    fn of(request: &Message) -> Self {
        let mut words = request.first.split(' ');
        let is_read = words.next() == Some("GET");
        let (path, query) = words
            .next()
            .map_or(("", ""), |url| url.split_once('?').unwrap_or((url, "")));
        let asks = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.any(|(key, value)| key == name && matches!(value, "true" | "1"))
        };
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let rest = match parts.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        let rest = match rest {
            ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
            rest => rest,
        };
        Self {
            requests: match rest {
                [_] if is_read && asks("watch") => Requests::Watches,
                [_] if is_read => Requests::Lists,
                _ => Requests::All,
            },
            kind: rest.first().copied().unwrap_or_default().to_owned(),
            wants_initial: asks("sendInitialEvents"),
        }
    }

    fn fits(&self, rule: &Rule) -> bool {
        let requests = match rule.requests {
            Requests::All => true,
            Requests::Reads => self.requests != Requests::All,
            one => self.requests == one,
        };
        requests && rule.kind.as_ref().is_none_or(|kind| *kind == self.kind)
    }
}

/// Part of what the API server answers, as it arrives.
enum Part {
    Head(Message),
    Piece(Vec<u8>),
    End,
}

impl Shared {
    /// What is to go wrong now.
    fn fault(&self, about: &About) -> Option<Fault> {
        let rules = lock(&self.rules);
        let rule = rules.iter().find(|rule| about.fits(rule))?;
        Some(rule.fault.clone())
    }

    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || *lock(&self.refusing)
    }
}

/// The client's end of a connection.
struct Near<'a> {
    stream: StreamOwned<ServerConnection, TcpStream>,
    shared: &'a Shared,
}

fn serve(stream: TcpStream, shared: &Shared) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(REQUEST))?;
    let session = ServerConnection::new(Arc::clone(&shared.server))?;
    let mut reader = BufReader::new(StreamOwned::new(session, stream));
    let Some(mut request) = Message::read(&mut reader)? else {
        return Ok(());
    };
    let mut near = Near {
        stream: reader.into_inner(),
        shared,
    };
    let about = About::of(&request);
    let fault = shared.fault(&about);
    if fault.is_some() {
        shared.hits.fetch_add(1, Ordering::Relaxed);
    }
    match &fault {
        Some(Fault::ErrorEvent(code)) if about.requests == Requests::Watches => {
            near.begin(JSON)?;
            near.event(&json!({"type": "ERROR", "object": status(*code)}))?;
            return near.end();
        }
        Some(Fault::Status(code) | Fault::ErrorEvent(code)) => {
            return near.answer(*code, &status(*code));
        }
        Some(Fault::Silence) => return near.hold(),
        Some(Fault::Delay(time)) => near.sleep(*time)?,
        Some(Fault::Past(list)) => return near.past(&about, list),
        Some(Fault::Cut | Fault::Break) | None => {}
    }
    request.headers.remove("accept-encoding");
    request.headers.remove("content-length");
    request.headers.remove("transfer-encoding");
    request
        .headers
        .insert("connection".to_owned(), "close".to_owned());
    let far = Far::ask(shared, request)?;
    near.relay(&about, fault.as_ref(), &far.parts)
}

/// The server's end: a thread reads what arrives, so that rules can be looked at meanwhile.
struct Far {
    socket: TcpStream,
    parts: Receiver<Part>,
}

impl Far {
    fn ask(shared: &Shared, request: Message) -> Result<Self> {
        let mut reader = connect(&shared.net, shared.target, &shared.client, None)?;
        let socket = reader.get_ref().sock.try_clone()?;
        let (sender, parts) = mpsc::channel();
        std::thread::spawn(move || -> Result<()> {
            request.write(reader.get_mut())?;
            let head = Message::read_head(&mut reader)?.context("no answer")?;
            let is_chunked = head.is_chunked();
            let whole = if is_chunked {
                Vec::new()
            } else {
                head.read_body(&mut reader)?
            };
            sender.send(Part::Head(head))?;
            let mut piece = whole;
            while is_chunked && http::read_chunk(&mut reader, &mut piece)? > 0 {
                sender.send(Part::Piece(std::mem::take(&mut piece)))?;
            }
            if !piece.is_empty() {
                sender.send(Part::Piece(piece))?;
            }
            Ok(sender.send(Part::End)?)
        });
        Ok(Self { socket, parts })
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // Ends the thread that reads.
        let _closed = self.socket.shutdown(Shutdown::Both);
    }
}

impl Near<'_> {
    fn relay(
        &mut self,
        about: &About,
        fault: Option<&Fault>,
        parts: &Receiver<Part>,
    ) -> Result<()> {
        let Part::Head(head) = self.next(parts)? else {
            return Ok(());
        };
        if about.requests == Requests::Watches && head.is_chunked() {
            let content = head
                .headers
                .get("content-type")
                .map_or(JSON, String::as_str);
            self.begin(content)?;
            return self.relay_watch(about, content != JSON, parts);
        }
        let mut body = Vec::new();
        while let Part::Piece(piece) = self.next(parts)? {
            body.extend_from_slice(&piece);
        }
        let half = body.len() / 2;
        match fault {
            Some(Fault::Break) => {
                let length = body.len();
                write!(
                    self.stream,
                    "{}\r\ncontent-type: {}\r\ncontent-length: {length}\r\n\r\n",
                    head.first,
                    head.headers
                        .get("content-type")
                        .map_or(JSON, String::as_str)
                )?;
                self.stream.write_all(&body[..half])?;
                return self.close();
            }
            Some(Fault::Cut) => body.truncate(half),
            _ => {}
        }
        self.write(&head, body)
    }

    fn relay_watch(&mut self, about: &About, is_proto: bool, parts: &Receiver<Part>) -> Result<()> {
        loop {
            let part = match parts.recv_timeout(LOOK) {
                Ok(part) => Some(part),
                Err(RecvTimeoutError::Timeout) => None,
                // What broke on the way is broken for the client.
                Err(RecvTimeoutError::Disconnected) => return self.close(),
            };
            if self.shared.is_over() || self.is_gone() {
                return self.close();
            }
            let fault = self.shared.fault(about);
            match &fault {
                Some(Fault::Silence) => return self.hold(),
                Some(Fault::Status(_) | Fault::Past(_)) => return self.end(),
                Some(Fault::ErrorEvent(code)) if is_proto => {
                    self.chunk(&error_message(*code))?;
                    return self.end();
                }
                Some(Fault::ErrorEvent(code)) => {
                    self.event(&json!({"type": "ERROR", "object": status(*code)}))?;
                    return self.end();
                }
                _ => {}
            }
            match (part, fault) {
                (None, _) => {}
                (Some(Part::Piece(piece)), Some(fault @ (Fault::Cut | Fault::Break))) => {
                    self.chunk(&piece[..piece.len() / 2])?;
                    return if fault == Fault::Cut {
                        self.end()
                    } else {
                        self.close()
                    };
                }
                (Some(Part::Piece(piece)), Some(Fault::Delay(time))) => {
                    self.sleep(time)?;
                    self.chunk(&piece)?;
                }
                (Some(Part::Piece(piece)), _) => self.chunk(&piece)?,
                (Some(Part::Head(_) | Part::End), _) => return self.end(),
            }
        }
    }

    /// Waits for the next part, as long as somebody wants it.
    fn next(&self, parts: &Receiver<Part>) -> Result<Part> {
        loop {
            match parts.recv_timeout(LOOK) {
                Ok(part) => return Ok(part),
                Err(RecvTimeoutError::Timeout) => {
                    ensure!(!self.shared.is_over() && !self.is_gone(), "nobody waits");
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the API server broke off"),
            }
        }
    }

    /// Says nothing for as long as the client stays.
    fn hold(&mut self) -> Result<()> {
        while !self.shared.is_over() && !self.is_gone() {
            std::thread::sleep(LOOK);
        }
        self.close()
    }

    fn sleep(&self, time: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            ensure!(!self.shared.is_over() && !self.is_gone(), "nobody waits");
            std::thread::sleep(LOOK.min(time));
        }
        Ok(())
    }

    fn past(&mut self, about: &About, list: &Value) -> Result<()> {
        if about.requests != Requests::Watches {
            return self.answer(200, list);
        }
        self.begin(JSON)?;
        if about.wants_initial {
            let kind = list["kind"].as_str().unwrap_or_default();
            let kind = kind.strip_suffix("List").unwrap_or(kind);
            for item in list["items"].as_array().into_iter().flatten() {
                let mut item = item.clone();
                item["apiVersion"] = list["apiVersion"].clone();
                item["kind"] = kind.into();
                self.event(&json!({"type": "ADDED", "object": item}))?;
            }
            self.event(&json!({"type": "BOOKMARK", "object": {
                "apiVersion": list["apiVersion"], "kind": kind,
                "metadata": {
                    "resourceVersion": list["metadata"]["resourceVersion"],
                    "annotations": {"k8s.io/initial-events-end": "true"},
                },
            }}))?;
        }
        self.hold()
    }

    fn answer(&mut self, code: u16, body: &Value) -> Result<()> {
        let mut head = Message {
            first: format!("HTTP/1.1 {code} {}", reason(code)),
            ..Message::default()
        };
        head.headers
            .insert("content-type".to_owned(), JSON.to_owned());
        if code == 429 {
            head.headers
                .insert("retry-after".to_owned(), "1".to_owned());
        }
        self.write(&head, body.to_string().into_bytes())
    }

    fn write(&mut self, head: &Message, body: Vec<u8>) -> Result<()> {
        let mut message = Message {
            body,
            ..head.clone()
        };
        message.headers.remove("transfer-encoding");
        message.headers.remove("content-length");
        message
            .headers
            .insert("connection".to_owned(), "close".to_owned());
        message.write(&mut self.stream)?;
        self.close()
    }

    /// The head of a watch's answer.
    fn begin(&mut self, content: &str) -> Result<()> {
        write!(
            self.stream,
            "HTTP/1.1 200 OK\r\ncontent-type: {content}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        )?;
        Ok(self.stream.flush()?)
    }

    fn event(&mut self, event: &Value) -> Result<()> {
        self.chunk(format!("{event}\n").as_bytes())
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.stream.write_all(&chunk)?;
        Ok(self.stream.flush()?)
    }

    /// The end of a watch, as HTTP wants it.
    fn end(&mut self) -> Result<()> {
        self.stream.write_all(b"0\r\n\r\n")?;
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        self.stream.conn.send_close_notify();
        self.stream.flush()?;
        Ok(self.stream.sock.shutdown(Shutdown::Write)?)
    }

    /// A client that has asked has nothing more to say: whatever arrives is its end.
    fn is_gone(&self) -> bool {
        let socket = &self.stream.sock;
        let peeked = socket
            .set_nonblocking(true)
            .and_then(|()| socket.peek(&mut [0]));
        let reset = socket.set_nonblocking(false);
        !matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock) || reset.is_err()
    }
}

fn reason(code: u16) -> &'static str {
    match code {
        403 => "Forbidden",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    }
}

/// An event with an error in Protocol Buffers, after its length.
fn error_message(code: u16) -> Vec<u8> {
    let field = |number: u8, content: &[u8]| {
        let mut bytes = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    };
    let mut status = field(3, b"a fault made by a test");
    status.extend(field(4, reason(code).as_bytes()));
    status.push(6 << 3);
    prost::encoding::encode_varint(u64::from(code), &mut status);
    let object = [b"k8s\0".to_vec(), field(2, &status)].concat();
    let event = [field(1, b"ERROR"), field(2, &field(1, &object))].concat();
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [length.to_be_bytes().to_vec(), event].concat()
}

fn status(code: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "metadata": {},
        "code": code, "reason": reason(code), "message": "a fault made by a test",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(first: &str) -> (Requests, String) {
        let message = Message {
            first: format!("{first} HTTP/1.1"),
            ..Message::default()
        };
        let About { requests, kind, .. } = About::of(&message);
        (requests, kind)
    }

    #[test]
    fn a_request_is_told_by_its_path() {
        let expect = |first, requests, kind: &str| {
            assert_eq!(about(first), (requests, kind.to_owned()), "{first}");
        };
        expect("GET /api/v1/services?limit=5", Requests::Lists, "services");
        expect("GET /api/v1/namespaces", Requests::Lists, "namespaces");
        expect("GET /api/v1/namespaces/a/pods", Requests::Lists, "pods");
        expect("GET /api/v1/namespaces/a", Requests::All, "namespaces");
        expect("GET /api/v1/namespaces/a/pods/b", Requests::All, "pods");
        expect(
            "GET /apis/networking.istio.io/v1/gateways?x=y&watch=true",
            Requests::Watches,
            "gateways",
        );
        expect("POST /api/v1/namespaces/a/pods", Requests::All, "pods");
        expect("GET /readyz", Requests::All, "");
    }

    #[test]
    fn a_rule_holds_for_its_requests_and_its_kind() {
        let watch = About {
            requests: Requests::Watches,
            kind: "pods".to_owned(),
            wants_initial: false,
        };
        let rule = |requests, kind: Option<&str>| Rule {
            requests,
            kind: kind.map(str::to_owned),
            fault: Fault::Silence,
        };
        assert!(watch.fits(&rule(Requests::Watches, None)));
        assert!(watch.fits(&rule(Requests::Reads, Some("pods"))));
        assert!(watch.fits(&rule(Requests::All, None)));
        assert!(!watch.fits(&rule(Requests::Lists, None)));
        assert!(!watch.fits(&rule(Requests::Watches, Some("nodes"))));
    }
}
