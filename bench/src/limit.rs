//! The limit: a bare server of the same gRPC stack that sends recorded bytes from memory and does nothing else.
//!
//! It is set up as `pilotfish-xds` sets up its connections, runs with the same allocator, and hands out shared bytes in
//! pieces, without a codec. The stack writes them as it does by itself; a server that collects writes can be below the limit
//! in that, and is above it by its own work.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, Result};
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body::Frame;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pilotfish_xds::Limits;
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::wire::{self, Mode, Raw, Type};

/// Several of HTTP/2's frames; the stack cuts them again.
const PIECE: usize = 64 * 1024;

/// A response as one proxy got it.
#[derive(Clone, PartialEq, Message)]
pub struct Recorded {
    /// Namespace of the proxy.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// URL of the type.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// The encoded response.
    #[prost(bytes = "bytes", tag = "3")]
    pub message: Bytes,
}

/// What one proxy of each namespace got, in order.
#[derive(Clone, PartialEq, Message)]
pub struct Recording {
    /// All responses.
    #[prost(message, repeated, tag = "1")]
    pub messages: Vec<Recorded>,
}

impl Recording {
    /// Keeps it for the server, which is another process.
    pub fn write(&self, file: &Path) -> Result<()> {
        std::fs::write(file, self.encode_to_vec()).context("keeping what was recorded")
    }

    /// Reads what [`Recording::write`] wrote.
    pub fn read(file: &Path) -> Result<Self> {
        let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
        Self::decode(Bytes::from(bytes)).context("not a recording")
    }
}

/// Recorded messages with gRPC's prefix, by namespace and type.
#[derive(Debug, Default)]
struct Answers(BTreeMap<(String, Type), Vec<Bytes>>);

impl Answers {
    fn new(recording: Recording) -> Self {
        let mut answers = Self::default();
        for recorded in recording.messages {
            let Some(kind) = Type::parse(recorded.kind.as_bytes()) else {
                continue;
            };
            let mut framed = BytesMut::with_capacity(5 + recorded.message.len());
            framed.put_u8(0);
            framed.put_u32(recorded.message.len() as u32);
            framed.put(recorded.message);
            let of = answers.0.entry((recorded.namespace, kind)).or_default();
            of.push(framed.freeze());
        }
        answers
    }
}

/// Serves a recording until the process is killed.
pub async fn serve(recording: Recording, address: SocketAddr) -> Result<()> {
    let listener = pilotfish_xds::listen(address)?;
    let answers = Arc::new(Answers::new(recording));
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, answers.clone()));
    }
}

async fn connection(stream: TcpStream, answers: Arc<Answers>) {
    let limits = Limits::default();
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let opened = open(request, answers.clone());
        async move { Ok::<_, Infallible>(opened) }
    });
    // A client that goes away is the usual end.
    let _ = pilotfish_xds::http2(&limits)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn open(request: Request<Incoming>, answers: Arc<Answers>) -> Response<Pieces> {
    let (send, receive) = mpsc::unbounded_channel();
    if let Some(mode) = Mode::of_path(request.uri().path()) {
        let requests = Streaming::new_request(Raw, request.into_body(), None, Some(usize::MAX));
        tokio::spawn(answer(requests, mode, answers, send));
    }
    let mut response = Response::new(Pieces {
        messages: receive,
        current: Bytes::new(),
    });
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Answers the first request of each type with everything that was recorded of it; acknowledgements are ignored.
async fn answer(
    mut requests: Streaming<Bytes>,
    mode: Mode,
    answers: Arc<Answers>,
    send: mpsc::UnboundedSender<Bytes>,
) {
    let (mut namespace, mut answered) = (String::new(), BTreeSet::new());
    while let Ok(Some(message)) = requests.message().await {
        let Some(request) = wire::Request::read(&message, mode) else {
            continue;
        };
        if !request.node_id.is_empty() {
            namespace = namespace_of(request.node_id);
        }
        if !answered.insert(request.kind) {
            continue;
        }
        let key = (namespace.clone(), request.kind);
        for message in answers.0.get(&key).into_iter().flatten() {
            let _ = send.send(message.clone());
        }
    }
}

/// `sidecar~<ip>~<pod>.<namespace>~<domain>`
fn namespace_of(node_id: &[u8]) -> String {
    let id = String::from_utf8_lossy(node_id);
    let name = id.split('~').nth(2).unwrap_or_default();
    let (_, namespace) = name.rsplit_once('.').unwrap_or_default();
    namespace.to_owned()
}

/// A response body: messages, cut into pieces.
#[derive(Debug)]
struct Pieces {
    messages: mpsc::UnboundedReceiver<Bytes>,
    current: Bytes,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.current.is_empty() {
            match ready!(self.messages.poll_recv(cx)) {
                Some(message) => self.current = message,
                None => return Poll::Ready(None),
            }
        }
        let len = self.current.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.current.split_to(len)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_read_back_and_framed() {
        let recorded = |kind: Type, message: &'static [u8]| Recorded {
            namespace: "n".into(),
            kind: kind.url().into(),
            message: Bytes::from_static(message),
        };
        let recording = Recording {
            messages: vec![
                recorded(Type::Cds, b"one"),
                recorded(Type::Eds, b"two"),
                recorded(Type::Cds, b"three"),
            ],
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("recording");
        recording.write(&file).unwrap();
        let answers = Answers::new(Recording::read(&file).unwrap());
        let of = &answers.0[&("n".into(), Type::Cds)];
        assert_eq!(*of, [&b"\0\0\0\0\x03one"[..], b"\0\0\0\0\x05three"]);
    }

    #[test]
    fn the_namespace_is_in_the_id() {
        let node = crate::proxy::node(5, 3).unwrap();
        assert_eq!(namespace_of(node.id.as_bytes()), "team-2");
        assert_eq!(namespace_of(b"strange"), "");
    }
}
