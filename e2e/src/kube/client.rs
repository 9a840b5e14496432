//! A plain client of the API server: one request at a time, and watches that are read event by event.
//!
//! It hides nothing: no retries, no caches, so that a test sees each answer as it came.

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::http::{self, Message};
use crate::net::Net;

/// How long an answer, or the next event of a watch, may take unless the caller says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Talks to one API server, or to what stands before it, as one user.
#[derive(Debug)]
pub struct KubeClient {
    net: Net,
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    token: String,
    timeout: Duration,
    /// Kept alive between requests: thousands of objects are applied over it.
    connection: Mutex<Option<BufReader<TlsStream>>>,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body; `null` if it was no JSON.
    pub body: Value,
}

impl Answer {
    /// The body, or an error with what the server said.
    pub fn ok(self) -> Result<Value> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        let said = self.body["message"].as_str().unwrap_or("nothing");
        bail!("the API server answers {}: {said}", self.status)
    }
}

impl KubeClient {
    pub(super) fn new(net: &Net, address: SocketAddr, tls: Arc<ClientConfig>, token: &str) -> Self {
        Self {
            net: net.clone(),
            address,
            tls,
            token: token.to_owned(),
            timeout: TIMEOUT,
            connection: Mutex::new(None),
        }
    }

    /// Waits at most so long for each answer.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// `GET path`
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, "application/json", &[])
    }

    /// `POST path`, with an object.
    pub fn create(&self, path: &str, object: &Value) -> Result<Answer> {
        self.send("POST", path, "application/json", &to_bytes(object))
    }

    /// `DELETE path`
    pub fn delete(&self, path: &str) -> Result<Answer> {
        self.send("DELETE", path, "application/json", &[])
    }

    /// Server-side apply, which takes fields over from whoever had them.
    pub fn patch(&self, path: &str, object: &Value) -> Result<Answer> {
        let path = format!("{path}?fieldManager=pilotfish-e2e&force=true");
        let content = "application/apply-patch+yaml";
        self.send("PATCH", &path, content, &to_bytes(object))
    }

    /// The same, refusing fields that the server does not know.
    pub fn patch_strictly(&self, path: &str, object: &Value) -> Result<Answer> {
        let path = format!("{path}?fieldManager=pilotfish-e2e&force=true&fieldValidation=Strict");
        let content = "application/apply-patch+yaml";
        self.send("PATCH", &path, content, &to_bytes(object))
    }

    /// Replaces the fields that are given.
    pub fn merge(&self, path: &str, fields: &Value) -> Result<Answer> {
        let content = "application/merge-patch+json";
        self.send("PATCH", path, content, &to_bytes(fields))
    }

    /// Opens a watch of a list's path, which may have a query, from a resource version on.
    pub fn watch(&self, path: &str, version: &str) -> Result<Watch> {
        let mark = if path.contains('?') { '&' } else { '?' };
        let path =
            format!("{path}{mark}watch=true&allowWatchBookmarks=true&resourceVersion={version}");
        let mut reader = self.connect()?;
        self.request("GET", &path, "application/json", &[])
            .write(reader.get_mut())?;
        let head = Message::read_head(&mut reader)?.context("closed before an answer")?;
        Ok(Watch {
            status: head.status()?,
            is_chunked: head.is_chunked(),
            reader,
            rest: Vec::new(),
        })
    }

    fn send(&self, method: &str, path: &str, content: &str, body: &[u8]) -> Result<Answer> {
        let what = || format!("{method} {path}");
        let request = self.request(method, path, content, body);
        let mut kept = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A kept connection may have been closed while nobody used it; that says nothing about the server of now.
        let answer = match kept.take().map(|reader| exchange(reader, &request)) {
            Some(Ok(answer)) => answer,
            _ => exchange(self.connect().with_context(what)?, &request).with_context(what)?,
        };
        let (message, reader) = answer;
        if !message.closes() {
            *kept = Some(reader);
        }
        Ok(Answer {
            status: message.status()?,
            body: serde_json::from_slice(&message.body).unwrap_or_default(),
        })
    }

    fn request(&self, method: &str, path: &str, content: &str, body: &[u8]) -> Message {
        let headers = [
            ("host", self.address.to_string()),
            ("authorization", format!("Bearer {}", self.token)),
            ("accept", "application/json".to_owned()),
            ("content-type", content.to_owned()),
        ];
        Message {
            first: format!("{method} {path} HTTP/1.1"),
            headers: headers
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            body: body.to_vec(),
        }
    }

    fn connect(&self) -> io::Result<BufReader<TlsStream>> {
        connect(&self.net, self.address, &self.tls, Some(self.timeout))
    }
}

/// A TLS connection to an API server.
pub(super) fn connect(
    net: &Net,
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
    timeout: Option<Duration>,
) -> io::Result<BufReader<TlsStream>> {
    let stream = net.connect(address)?;
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)?;
    let name = ServerName::IpAddress(address.ip().into());
    let session = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
    Ok(BufReader::new(StreamOwned::new(session, stream)))
}

fn exchange(
    mut reader: BufReader<TlsStream>,
    request: &Message,
) -> io::Result<(Message, BufReader<TlsStream>)> {
    request.write(reader.get_mut())?;
    let answer = Message::read(&mut reader)?;
    let message = answer
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "closed before an answer"))?;
    Ok((message, reader))
}

fn to_bytes(object: &Value) -> Vec<u8> {
    object.to_string().into_bytes()
}

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    /// What the server answered. Only 200 is followed by events.
    pub status: u16,
    is_chunked: bool,
    reader: BufReader<TlsStream>,
    rest: Vec<u8>,
}

impl Watch {
    /// The next event; `None` once the server has ended the watch in order. What is left when it ends must be whole.
    pub fn event(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).context("an event")?));
            }
            let more = self.is_chunked
                && http::read_chunk(&mut self.reader, &mut self.rest).context("read a watch")? > 0;
            if !more {
                if self.rest.is_empty() {
                    return Ok(None);
                }
                bail!("the watch ended inside of an event");
            }
        }
    }

    /// The next event that is no bookmark.
    pub fn change(&mut self) -> Result<Option<Value>> {
        loop {
            match self.event()? {
                Some(event) if event["type"] == "BOOKMARK" => {}
                other => return Ok(other),
            }
        }
    }

    /// Waits at most so long for each event from now on.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        Ok(self.reader.get_ref().sock.set_read_timeout(Some(timeout))?)
    }
}
