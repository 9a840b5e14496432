//! One request from a pod, in plain text or over TLS, and what came of it.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::certificates::Certificates;
use crate::http::Message;
use crate::net::Net;

/// Longer than any delay or time-out of the tables.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request, ready to be sent any number of times, each on a connection of its own.
#[derive(Clone)]
pub(super) struct Ask {
    /// Where it is sent from.
    pub(super) net: Net,
    /// Where it is sent to.
    pub(super) address: SocketAddr,
    /// `GET /books HTTP/1.1`
    pub(super) first: String,
    /// All headers.
    pub(super) headers: BTreeMap<String, String>,
    /// With TLS: the client's side, and the server it asks for.
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// To name the certificate that the server shows.
    pub(super) certificates: Arc<Certificates>,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// How long it took.
    pub(super) seconds: f64,
    /// The answer, or why there was none.
    pub(super) answer: Result<Answer, String>,
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The status code.
    pub(super) status: u16,
    /// Headers and body.
    pub(super) message: Message,
    /// What the upstream said it saw; null if no upstream answered.
    pub(super) report: Value,
    /// The certificate that the server showed.
    pub(super) certificate: Option<String>,
}

impl Answer {
    /// The upstream that answered.
    pub(super) fn upstream(&self) -> Option<&str> {
        self.report["upstream"].as_str()
    }
}

impl Ask {
    /// Sends it as the n-th and waits for what comes of it.
    fn send(&self, number: usize) -> Outcome {
        let start = Instant::now();
        let answer = self.exchange(number).map_err(|error| format!("{error:#}"));
        Outcome {
            seconds: start.elapsed().as_secs_f64(),
            answer,
        }
    }

    fn exchange(&self, number: usize) -> Result<Answer> {
        let stream = self.net.connect(self.address).context("connect")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let Some((config, name)) = &self.tls else {
            return self.over(stream, number, |_| None);
        };
        let client = ClientConnection::new(Arc::clone(config), name.clone())?;
        let mut stream = StreamOwned::new(client, stream);
        while stream.conn.is_handshaking() {
            stream
                .conn
                .complete_io(&mut stream.sock)
                .context("handshake")?;
        }
        self.over(stream, number, |stream| {
            self.certificates.name_of(stream.conn.peer_certificates())
        })
    }

    fn over<S: Read + Write>(
        &self,
        stream: S,
        number: usize,
        certificate: impl Fn(&S) -> Option<String>,
    ) -> Result<Answer> {
        let mut stream = BufReader::new(stream);
        let numbered = |text: &String| text.replace("{n}", &number.to_string());
        let headers = self.headers.iter();
        let request = Message {
            first: numbered(&self.first),
            headers: headers
                .map(|(name, value)| (name.clone(), numbered(value)))
                .collect(),
            body: Vec::new(),
        };
        request.write(stream.get_mut()).context("send")?;
        let message = Message::read(&mut stream)
            .context("answer")?
            .ok_or_else(|| anyhow!("closed before an answer"))?;
        let status = message.first.split(' ').nth(1);
        Ok(Answer {
            status: status
                .and_then(|code| code.parse().ok())
                .context("no status")?,
            report: serde_json::from_slice(&message.body).unwrap_or_default(),
            certificate: certificate(stream.get_ref()),
            message,
        })
    }
}

/// Sends a request `times` times, `parallel` at once.
pub(super) fn send_all(ask: &Ask, times: usize, parallel: usize) -> Vec<Outcome> {
    if parallel <= 1 {
        return (0..times).map(|number| ask.send(number)).collect();
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..parallel)
            .map(|thread| {
                let numbers = (thread..times).step_by(parallel);
                scope.spawn(move || numbers.map(|number| ask.send(number)).collect::<Vec<_>>())
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("sending does not panic"))
            .collect()
    })
}
