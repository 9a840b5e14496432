//! What is said to the API server over HTTP, and how its answers are understood, be they JSON or Protocol Buffers.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use pilotfish_config::{Kind, Object, Standing};
use prost::Message;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::connect::Long;
use super::{proto, standings};

/// The largest answer or event that is read.
const MAX_BYTES: usize = 128 << 20;
/// How much of an error is read.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// How long the first byte of an answer is waited for. A server that queues requests takes up to a minute.
const ANSWER: Duration = Duration::from_secs(70);
/// How long a whole page may take.
const PAGE: Duration = Duration::from_mins(2);

/// Why the API server did not do as it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The version to go on from is no longer known: only a new list helps.
    Expired(String),
    /// The version to go on from is not known yet: the server is behind what we have seen.
    Behind(String),
    /// There is no such resource.
    Absent(String),
    /// We may not.
    Forbidden(String),
    /// We are not who we say we are, as far as the server knows.
    Unauthorized(String),
    /// The object is there already, or is not as we think.
    Conflict(String),
    /// Not now.
    Busy(String, Option<Duration>),
    /// The server cannot do its work, for instance because its storage is away.
    Broken(String, Option<Duration>),
    /// The request is one that this server does not understand.
    Unsupported(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// Anything else: an answer that ends early or cannot be read.
    Failed(String),
}

impl Fault {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Expired(reason)
            | Self::Behind(reason)
            | Self::Absent(reason)
            | Self::Forbidden(reason)
            | Self::Unauthorized(reason)
            | Self::Conflict(reason)
            | Self::Busy(reason, _)
            | Self::Broken(reason, _)
            | Self::Unsupported(reason)
            | Self::Unreachable(reason)
            | Self::Failed(reason) => reason,
        }
    }
}

/// The answer of a server that did not do what it was asked, as far as we use it. Comes as the body of an error and
/// inside an event.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<Details>,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    #[prost(message, repeated, tag = "4")]
    causes: Vec<Cause>,
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct Cause {
    #[prost(string, tag = "1")]
    reason: String,
}

/// What a status means. Servers say the same thing in several ways.
fn classify(status: &Status, retry_after: Option<Duration>) -> Fault {
    let details = status.details.as_ref();
    let has_cause = |wanted: &str| {
        details.is_some_and(|details| details.causes.iter().any(|cause| cause.reason == wanted))
    };
    let mut reason = status.message.trim().to_owned();
    if reason.is_empty() {
        let code = u16::try_from(status.code).unwrap_or_default();
        reason = match StatusCode::from_u16(code) {
            Ok(code) => code.to_string(),
            Err(_) => "an error without explanation".to_owned(),
        };
    }
    let lower = reason.to_lowercase();
    if has_cause("ResourceVersionTooLarge") || lower.contains("too large resource version") {
        return Fault::Behind(reason);
    }
    if status.code == 410
        || matches!(status.reason.as_str(), "Gone" | "Expired")
        || lower.contains("too old resource version")
    {
        return Fault::Expired(reason);
    }
    let wait = details
        .and_then(|details| u64::try_from(details.retry_after_seconds).ok())
        .map(Duration::from_secs)
        .filter(|wait| !wait.is_zero())
        .or(retry_after);
    match status.code {
        401 => Fault::Unauthorized(reason),
        403 => Fault::Forbidden(reason),
        404 => Fault::Absent(reason),
        409 => Fault::Conflict(reason),
        429 => Fault::Busy(reason, wait),
        500..=599 => Fault::Broken(reason, wait),
        400 | 405 | 406 | 415 | 422 => Fault::Unsupported(reason),
        _ => Fault::Failed(reason),
    }
}

/// An object as it came, not looked into.
#[derive(Debug)]
pub(super) enum Raw<'a> {
    /// As text.
    Json(&'a RawValue),
    /// As a message, whose kind only the request tells.
    Proto(Bytes),
}

impl Raw<'_> {
    /// The name and version of the object.
    pub(super) fn head(&self) -> Result<Head, Fault> {
        let unreadable =
            |error: String| Fault::Failed(format!("an object without readable metadata: {error}"));
        match self {
            Self::Json(text) => {
                let head: JsonHead = serde_json::from_str(text.get())
                    .map_err(|error| unreadable(error.to_string()))?;
                Ok(Head {
                    version: number(&head.metadata.resource_version),
                    name: head.metadata.name,
                    namespace: head.metadata.namespace,
                })
            }
            Self::Proto(bytes) => {
                let head = proto::Head::decode(bytes.clone())
                    .map_err(|error| unreadable(error.to_string()))?;
                Ok(Head {
                    version: number(&head.metadata.resource_version),
                    name: head.metadata.name,
                    namespace: head.metadata.namespace,
                })
            }
        }
    }

    /// The object, which is of this kind. It may be nested too deeply, for one.
    pub(super) fn value(&self, kind: Kind) -> Result<Value, String> {
        match self {
            Self::Json(text) => serde_json::from_str(text.get()).map_err(|error| error.to_string()),
            Self::Proto(bytes) => proto::value(kind, bytes.clone()),
        }
    }

    /// The object at once, without what is not worth keeping, if it is of a kind of which there are many and nothing is wrong
    /// with it.
    pub(super) fn object(&self, kind: Kind) -> Option<Object> {
        match self {
            Self::Json(_) => None,
            Self::Proto(bytes) => proto::object(kind, bytes.clone()),
        }
    }

    /// How the object stands, if that can be told without reading all of it.
    pub(super) fn standing(&self, kind: Kind) -> Option<Standing> {
        match self {
            Self::Json(_) => None,
            Self::Proto(bytes) => standings::of_message(kind, bytes.clone()),
        }
    }

    /// The text of an object that was asked for as such.
    pub(super) fn text(&self) -> Result<&str, Fault> {
        match self {
            Self::Json(text) => Ok(text.get()),
            Self::Proto(_) => Err(Fault::Failed("an object that is not JSON".to_owned())),
        }
    }
}

/// What is looked at before an object is read as a whole.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) version: u64,
}

/// A resource version as a number, which it has always been and is promised to be; zero if it is none.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonHead {
    metadata: JsonMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JsonMeta {
    name: String,
    namespace: String,
    resource_version: String,
    annotations: JsonAnnotations,
}

/// The annotation of the bookmark that ends an initial list.
const INITIAL: &str = "k8s.io/initial-events-end";

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial: Option<String>,
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum Event<'a> {
    /// An object is new or has changed.
    Upsert(Raw<'a>),
    /// An object is gone.
    Delete(Raw<'a>),
    /// Nothing happened up to this version; true if that ends the initial list.
    Bookmark { version: u64, initial: bool },
}

#[derive(Deserialize)]
struct JsonEvent<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Reads one event of a watch.
pub(super) fn event(form: Form, bytes: &Bytes) -> Result<Event<'_>, Fault> {
    match form {
        Form::Json => json_event(bytes).map_err(|error| unreadable_event(&error))?,
        Form::Proto => proto_event(bytes.clone()).map_err(|error| unreadable_event(&error))?,
    }
}

fn unreadable_event(error: &dyn std::fmt::Display) -> Fault {
    Fault::Failed(format!("unreadable event: {error}"))
}

fn unknown_event(name: &str) -> Fault {
    Fault::Failed(format!("unknown event {name:?}"))
}

fn json_event(line: &[u8]) -> Result<Result<Event<'_>, Fault>, serde_json::Error> {
    let event: JsonEvent<'_> = serde_json::from_slice(line)?;
    let object = event.object;
    Ok(match event.r#type {
        "ADDED" | "MODIFIED" => Ok(Event::Upsert(Raw::Json(object))),
        "DELETED" => Ok(Event::Delete(Raw::Json(object))),
        "BOOKMARK" => {
            let head: JsonHead = serde_json::from_str(object.get())?;
            Ok(Event::Bookmark {
                version: number(&head.metadata.resource_version),
                initial: head.metadata.annotations.initial.as_deref() == Some("true"),
            })
        }
        "ERROR" => Err(classify(&serde_json::from_str(object.get())?, None)),
        other => Err(unknown_event(other)),
    })
}

fn proto_event(frame: Bytes) -> Result<Result<Event<'static>, Fault>, prost::DecodeError> {
    let (name, object) = proto::event(frame)?;
    Ok(match name.as_str() {
        "ADDED" | "MODIFIED" => Ok(Event::Upsert(Raw::Proto(object))),
        "DELETED" => Ok(Event::Delete(Raw::Proto(object))),
        "BOOKMARK" => {
            let meta = proto::Bookmark::decode(object)?.metadata;
            Ok(Event::Bookmark {
                version: number(&meta.resource_version),
                initial: meta.annotations.get(INITIAL).is_some_and(|is| is == "true"),
            })
        }
        "ERROR" => Err(classify(&Status::decode(object)?, None)),
        other => Err(unknown_event(other)),
    })
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) version: u64,
    /// Where the next page begins; empty if this is the last.
    pub(super) next: String,
    pub(super) items: Vec<Raw<'a>>,
}

#[derive(Deserialize)]
struct JsonPage<'a> {
    #[serde(default)]
    metadata: JsonPageMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JsonPageMeta {
    resource_version: String,
    r#continue: String,
}

/// Reads a page in JSON; one that was cut off is an error.
pub(super) fn page(bytes: &[u8]) -> Result<Page<'_>, Fault> {
    let page: JsonPage<'_> = serde_json::from_slice(bytes).map_err(unreadable)?;
    let items = page.items.into_iter().flatten();
    Ok(Page {
        version: number(&page.metadata.resource_version),
        next: page.metadata.r#continue,
        items: items.map(Raw::Json).collect(),
    })
}

fn unreadable(error: impl std::fmt::Display) -> Fault {
    Fault::Failed(format!("unreadable list: {error}"))
}

/// What an answer says that means failure; `None` if it cannot be read.
fn said(body: &Bytes) -> Option<Status> {
    match proto::open(body) {
        Some(content) => content.and_then(Status::decode).ok(),
        None => serde_json::from_slice(body).ok(),
    }
}

/// A question for `path`.
fn question(path: &str, accept: &str) -> Result<Request<Body>, Fault> {
    Request::get(path)
        .header(header::ACCEPT, accept)
        .body(Body::empty())
        .map_err(|error| Fault::Failed(format!("not a request: {error}")))
}

/// Sends a request; the answer is one that means success.
async fn ask(
    client: &Client,
    request: Request<Body>,
    patience: Duration,
) -> Result<http::Response<Body>, Fault> {
    let response = tokio::time::timeout(patience, client.send(request))
        .await
        .map_err(|_| Fault::Unreachable(format!("no answer within {patience:?}")))?
        .map_err(|error| Fault::Unreachable(chain(&error)))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let code = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .map(Duration::from_secs);
    let body = tokio::time::timeout(patience, collect(response.into_body(), MAX_ERROR_BYTES)).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    let mut status = said(&body).unwrap_or_else(|| Status {
        message: String::from_utf8_lossy(&body).chars().take(200).collect(),
        ..Status::default()
    });
    status.code = i32::from(code);
    Err(classify(&status, retry_after))
}

/// Asks for something to be done; the answer must be whole within `patience`.
pub(super) async fn perform(
    client: &Client,
    request: Request<Body>,
    patience: Duration,
) -> Result<Bytes, Fault> {
    let done = async {
        let response = ask(client, request, patience).await?;
        collect(response.into_body(), MAX_BYTES).await
    };
    tokio::time::timeout(patience, done)
        .await
        .map_err(|_| Fault::Unreachable(format!("no answer within {patience:?}")))?
}

/// An answer with a page of a list.
pub(super) enum Listing {
    /// The text of all of it.
    Json(Bytes),
    /// Objects, which are read as they arrive.
    Proto(Box<Items>),
}

/// Asks for a page of a list, which may be a long one.
pub(super) async fn list(
    client: &Client,
    path: &str,
    accept: &str,
    long: bool,
) -> Result<Listing, Fault> {
    let mut request = question(path, accept)?;
    if long {
        request.extensions_mut().insert(Long);
    }
    let response = ask(client, request, ANSWER).await?;
    if is_proto(&response) {
        return Ok(Listing::Proto(Box::new(Items::new(response.into_body()))));
    }
    tokio::time::timeout(PAGE, collect(response.into_body(), MAX_BYTES))
        .await
        .map_err(|_| Fault::Failed(format!("a list did not end within {PAGE:?}")))?
        .map(Listing::Json)
}

/// A page that arrives. It is held no further than to the end of the object that was begun.
pub(super) struct Items {
    body: Body,
    buffer: BytesMut,
    reader: proto::ListReader,
}

impl Items {
    fn new(body: Body) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            reader: proto::ListReader::default(),
        }
    }

    /// The next object; `None` if there was all that the page announced. Silence for longer than `patience` is an error.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Option<Raw<'static>>, Fault> {
        loop {
            if let Some(item) = self.reader.take(&mut self.buffer).map_err(unreadable)? {
                return Ok(Some(Raw::Proto(item)));
            }
            if self.buffer.len() > MAX_BYTES {
                let reason = format!("an object of more than {MAX_BYTES} bytes");
                return Err(Fault::Failed(reason));
            }
            if !more(&mut self.body, &mut self.buffer, patience).await? {
                return Ok(None);
            }
        }
    }

    /// The version of the list and where its next page begins, once there are no more objects. What was cut off is an error.
    pub(super) fn end(self) -> Result<(u64, String), Fault> {
        let metadata = self.reader.end(&self.buffer).map_err(unreadable)?;
        Ok((number(&metadata.resource_version), metadata.r#continue))
    }
}

/// Whether an answer is a message, and not JSON.
fn is_proto(response: &http::Response<Body>) -> bool {
    let content = response.headers().get(header::CONTENT_TYPE);
    content.is_some_and(|content| content.as_bytes().starts_with(proto::CONTENT.as_bytes()))
}

/// Waits for more of an answer; false if that was all of it. Silence for longer than `patience` is an error.
async fn more(body: &mut Body, buffer: &mut BytesMut, patience: Duration) -> Result<bool, Fault> {
    let frame = tokio::time::timeout(patience, body.frame())
        .await
        .map_err(|_| Fault::Unreachable(format!("not a word for {patience:?}")))?;
    match frame {
        Some(Ok(frame)) => {
            if let Ok(data) = frame.into_data() {
                buffer.extend_from_slice(&data);
            }
            Ok(true)
        }
        Some(Err(error)) => Err(Fault::Unreachable(chain(&error))),
        None => Ok(false),
    }
}

async fn collect(mut body: Body, limit: usize) -> Result<Bytes, Fault> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Fault::Failed(chain(&error)))?;
        if let Ok(data) = frame.into_data() {
            all.extend_from_slice(&data);
        }
        if all.len() > limit {
            return Err(Fault::Failed(format!(
                "an answer of more than {limit} bytes"
            )));
        }
    }
    Ok(all.freeze())
}

/// An error with what caused it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let mut text = text.trim_start_matches("ServiceError: ").to_owned();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// In which form events come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One a line.
    Json,
    /// Each after its length, which takes four bytes.
    Proto,
}

const PREFIX: usize = size_of::<u32>();

/// An open watch.
pub(super) struct Events {
    body: Body,
    form: Form,
    buffer: BytesMut,
    /// How far the buffer was searched for the end of a line.
    searched: usize,
}

impl Events {
    pub(super) async fn open(client: &Client, path: &str, accept: &str) -> Result<Self, Fault> {
        let response = ask(client, question(path, accept)?, ANSWER).await?;
        Ok(Self {
            form: if is_proto(&response) {
                Form::Proto
            } else {
                Form::Json
            },
            body: response.into_body(),
            buffer: BytesMut::new(),
            searched: 0,
        })
    }

    /// In which form they come.
    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// The next event; `None` if the server has ended the watch between two. Silence for longer than `patience` is an
    /// error: a server sends bookmarks more often than that.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, Fault> {
        loop {
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            if !more(&mut self.body, &mut self.buffer, patience).await? {
                if self.is_between() {
                    return Ok(None);
                }
                let reason = "the answer ended in the middle of an event".to_owned();
                return Err(Fault::Failed(reason));
            }
        }
    }

    /// Takes a whole event, if one is there.
    fn take(&mut self) -> Result<Option<Bytes>, Fault> {
        let too_large = || Fault::Failed(format!("an event of more than {MAX_BYTES} bytes"));
        match self.form {
            Form::Json => {
                while let Some(end) = self.line() {
                    let line = self.buffer.split_to(end).freeze();
                    self.searched = 0;
                    if !line.iter().all(u8::is_ascii_whitespace) {
                        return Ok(Some(line));
                    }
                }
                self.searched = self.buffer.len();
                if self.buffer.len() > MAX_BYTES {
                    return Err(too_large());
                }
                Ok(None)
            }
            Form::Proto => {
                let Some(length) = self.length() else {
                    return Ok(None);
                };
                if length > MAX_BYTES {
                    return Err(too_large());
                }
                if self.buffer.len() < PREFIX + length {
                    return Ok(None);
                }
                let _prefix = self.buffer.split_to(PREFIX);
                Ok(Some(self.buffer.split_to(length).freeze()))
            }
        }
    }

    /// Where the first line ends.
    fn line(&self) -> Option<usize> {
        let mut rest = self.buffer[self.searched..].iter();
        let end = rest.position(|byte| *byte == b'\n')?;
        Some(self.searched + end + 1)
    }

    /// How long the next event is.
    fn length(&self) -> Option<usize> {
        let prefix = self.buffer.first_chunk::<PREFIX>()?;
        usize::try_from(u32::from_be_bytes(*prefix)).ok()
    }

    fn is_between(&self) -> bool {
        match self.form {
            Form::Json => self.buffer.iter().all(u8::is_ascii_whitespace),
            Form::Proto => self.buffer.is_empty(),
        }
    }

    /// Whether another event is there without waiting.
    pub(super) fn has_more(&self) -> bool {
        match self.form {
            Form::Json => self.buffer.contains(&b'\n'),
            Form::Proto => self
                .length()
                .is_some_and(|length| self.buffer.len() >= PREFIX + length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> Fault {
        classify(&serde_json::from_str(text).unwrap(), None)
    }

    #[test]
    fn every_way_to_say_gone() {
        for text in [
            r#"{"code":410,"reason":"Expired","message":"The resourceVersion for the provided watch is too old."}"#,
            r#"{"code":410}"#,
            r#"{"code":400,"reason":"Gone"}"#,
            r#"{"code":500,"message":"etcdserver: too old resource version: 1 (5)"}"#,
            r#"{"reason":"Expired"}"#,
        ] {
            assert!(matches!(status(text), Fault::Expired(_)), "{text}");
        }
        for text in [
            r#"{"code":504,"reason":"Timeout","message":"Too large resource version: 9, current: 5"}"#,
            r#"{"code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#,
        ] {
            assert!(matches!(status(text), Fault::Behind(_)), "{text}");
        }
    }

    #[test]
    fn other_answers() {
        let wait = |seconds| Some(Duration::from_secs(seconds));
        let busy = Status {
            code: 429,
            message: "slow".to_owned(),
            ..Status::default()
        };
        assert_eq!(
            classify(&busy, wait(7)),
            Fault::Busy("slow".to_owned(), wait(7))
        );
        assert_eq!(
            status(r#"{"code":429,"message":"x","details":{"retryAfterSeconds":3}}"#),
            Fault::Busy("x".to_owned(), wait(3))
        );
        assert!(matches!(status(r#"{"code":401}"#), Fault::Unauthorized(_)));
        assert!(matches!(status(r#"{"code":403}"#), Fault::Forbidden(_)));
        assert!(matches!(status(r#"{"code":404}"#), Fault::Absent(_)));
        assert!(matches!(status(r#"{"code":409}"#), Fault::Conflict(_)));
        assert!(matches!(status(r#"{"code":422}"#), Fault::Unsupported(_)));
        assert_eq!(
            status(r#"{"code":500}"#),
            Fault::Broken("500 Internal Server Error".to_owned(), None)
        );
    }

    #[test]
    fn events() {
        let line = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        assert!(matches!(
            event(Form::Json, &Bytes::from_static(line)),
            Ok(Event::Bookmark {
                version: 12,
                initial: true
            })
        ));
        let line = br#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#;
        let line = Bytes::from_static(line);
        assert!(matches!(event(Form::Json, &line), Err(Fault::Expired(_))));
        for cut in [&line[..20], b"{}", b"[]", b"\"\\ud800\""] {
            let cut = Bytes::copy_from_slice(cut);
            for form in [Form::Json, Form::Proto] {
                assert!(matches!(event(form, &cut), Err(Fault::Failed(_))));
            }
        }
        let cut = br#"{"items":[{"a":1"#;
        assert!(matches!(page(cut), Err(Fault::Failed(_))));
        let empty = br#"{"metadata":{},"items":null}"#;
        assert!(page(empty).is_ok_and(|page| page.items.is_empty()));
    }

    fn feed(form: Form) -> Events {
        Events {
            body: Body::empty(),
            form,
            buffer: BytesMut::new(),
            searched: 0,
        }
    }

    #[test]
    fn events_come_in_pieces() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\n{";
        let messages = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c\0\0";
        for (form, bytes, expected) in [
            (Form::Json, &text[..], vec!["{\"a\":1}\n", "{\"b\":2}\n"]),
            (Form::Proto, &messages[..], vec!["ab", "", "c"]),
        ] {
            let (mut events, mut taken) = (feed(form), Vec::new());
            for byte in bytes {
                events.buffer.extend_from_slice(&[*byte]);
                let more = events.has_more();
                let event = events.take().expect("no error");
                assert!(more || event.is_none());
                taken.extend(event);
            }
            assert_eq!(taken, expected, "{form:?}");
            assert!(!events.is_between(), "something is left over");
        }
        let mut events = feed(Form::Proto);
        events.buffer.extend_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(events.take(), Err(Fault::Failed(_))));
    }

    #[test]
    fn an_error_is_understood_in_both_forms() {
        let told = Status {
            message: "slow down".to_owned(),
            code: 429,
            details: Some(Details {
                retry_after_seconds: 3,
                causes: Vec::new(),
            }),
            ..Status::default()
        };
        let envelope = [
            b"k8s\0\x12".as_slice(),
            &[u8::try_from(told.encoded_len()).unwrap()],
        ];
        let message = [&envelope.concat()[..], &told.encode_to_vec()].concat();
        let json = br#"{"code":429,"message":"slow down","details":{"retryAfterSeconds":3}}"#;
        for body in [message, json.to_vec()] {
            assert_eq!(said(&body.into()), Some(told.clone()));
        }
        assert_eq!(said(&Bytes::from_static(b"k8s\0\xff")), None);
    }
}
