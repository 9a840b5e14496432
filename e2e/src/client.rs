//! An HTTP client with one kept-alive connection.

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::http::Message;
use crate::net::Net;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends requests to one address, from one place.
#[derive(Debug)]
pub struct Client {
    net: Net,
    address: SocketAddr,
    host: String,
    connection: Option<BufReader<TcpStream>>,
    connections: u64,
    resent: u64,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Headers and body.
    pub message: Message,
}

impl Response {
    /// The body as JSON; `null` if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.message.body).unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.message.body).into_owned()
    }
}

impl Client {
    /// A client that connects from `net` to `address` and asks for `host`. It connects when first used.
    pub fn new(net: &Net, address: impl Into<SocketAddr>, host: &str) -> Self {
        Self {
            net: net.clone(),
            address: address.into(),
            host: host.to_owned(),
            connection: None,
            connections: 0,
            resent: 0,
        }
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// How many requests were sent a second time, because their connection was closed before an answer.
    pub fn resent(&self) -> u64 {
        self.resent
    }

    /// `GET path`
    pub fn get(&mut self, path: &str) -> io::Result<Response> {
        self.send("GET", path, &[])
    }

    /// `POST path` without a body.
    pub fn post(&mut self, path: &str) -> io::Result<Response> {
        self.send("POST", path, &[])
    }

    /// `POST path` with a body.
    pub fn post_json(&mut self, path: &str, body: &Value) -> io::Result<Response> {
        self.send("POST", path, body.to_string().as_bytes())
    }

    /// Sends one request. A request that fails is for the caller to count; nothing is tried again, except on a kept
    /// connection that the peer closed before it answered. HTTP asks clients to cope with that, but it is counted too.
    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<Response> {
        if let Some(connection) = self.connection.take() {
            if let Some(response) = self.exchange(connection, method, path, body)? {
                return Ok(response);
            }
            self.resent += 1;
        }
        let stream = self.net.connect(self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        self.connections += 1;
        self.exchange(BufReader::new(stream), method, path, body)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "closed before an answer"))
    }

    /// `None` if the connection was closed without a byte of an answer.
    fn exchange(
        &mut self,
        mut connection: BufReader<TcpStream>,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> io::Result<Option<Response>> {
        let request = Message {
            first: format!("{method} {path} HTTP/1.1"),
            headers: [("host".to_owned(), self.host.clone())].into(),
            body: body.to_vec(),
        };
        let answer = request
            .write(connection.get_mut())
            .and_then(|()| Message::read(&mut connection));
        let message = match answer {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(None),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let status = message.status()?;
        if !message.closes() {
            self.connection = Some(connection);
        }
        Ok(Some(Response { status, message }))
    }
}
