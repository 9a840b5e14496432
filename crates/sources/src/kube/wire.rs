//! What is said to the API server over HTTP, and how its answers are understood.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

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
    /// The request is one that this server does not understand.
    Unsupported(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// Anything else: an error of the server, an answer that ends early or cannot be read.
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
            | Self::Unsupported(reason)
            | Self::Unreachable(reason)
            | Self::Failed(reason) => reason,
        }
    }
}

/// The answer of a server that did not do what it was asked, as far as we use it. Comes as the body of an error and
/// inside an event.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    message: String,
    reason: String,
    code: u16,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    retry_after_seconds: u64,
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
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
        reason = match StatusCode::from_u16(status.code) {
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
        .map(|details| Duration::from_secs(details.retry_after_seconds))
        .filter(|wait| !wait.is_zero())
        .or(retry_after);
    match status.code {
        401 => Fault::Unauthorized(reason),
        403 => Fault::Forbidden(reason),
        404 => Fault::Absent(reason),
        409 => Fault::Conflict(reason),
        429 => Fault::Busy(reason, wait),
        500..=599 if wait.is_some() => Fault::Busy(reason, wait),
        400 | 405 | 406 | 415 | 422 => Fault::Unsupported(reason),
        _ => Fault::Failed(reason),
    }
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum Event<'a> {
    /// An object is new or has changed.
    Upsert(&'a RawValue),
    /// An object is gone.
    Delete(&'a RawValue),
    /// Nothing happened up to this version; true if that ends the initial list.
    Bookmark { version: u64, initial: bool },
}

#[derive(Deserialize)]
struct WireEvent<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Reads one line of a watch.
pub(super) fn event(line: &[u8]) -> Result<Event<'_>, Fault> {
    let unreadable = |error: serde_json::Error| Fault::Failed(format!("unreadable event: {error}"));
    let event: WireEvent<'_> = serde_json::from_slice(line).map_err(unreadable)?;
    match event.r#type {
        "ADDED" | "MODIFIED" => Ok(Event::Upsert(event.object)),
        "DELETED" => Ok(Event::Delete(event.object)),
        "BOOKMARK" => {
            let head = head(event.object)?;
            Ok(Event::Bookmark {
                version: head.version(),
                initial: head.metadata.annotations.initial.as_deref() == Some("true"),
            })
        }
        "ERROR" => {
            let status = serde_json::from_str(event.object.get()).map_err(unreadable)?;
            Err(classify(&status, None))
        }
        other => Err(Fault::Failed(format!("unknown event {other:?}"))),
    }
}

/// What is looked at before an object is read as a whole.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Head {
    pub(super) metadata: HeadMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct HeadMeta {
    pub(super) name: String,
    pub(super) namespace: String,
    resource_version: String,
    annotations: HeadAnnotations,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HeadAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial: Option<String>,
}

impl Head {
    /// The resource version as a number, which it has always been and is promised to be; zero if it is none.
    pub(super) fn version(&self) -> u64 {
        self.metadata.resource_version.parse().unwrap_or(0)
    }
}

/// The name and version of an object.
pub(super) fn head(object: &RawValue) -> Result<Head, Fault> {
    serde_json::from_str(object.get())
        .map_err(|error| Fault::Failed(format!("an object without readable metadata: {error}")))
}

/// One page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct Page<'a> {
    #[serde(default)]
    pub(super) metadata: PageMeta,
    #[serde(borrow, default)]
    pub(super) items: Option<Vec<&'a RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PageMeta {
    resource_version: String,
    pub(super) r#continue: String,
}

impl Page<'_> {
    pub(super) fn version(&self) -> u64 {
        self.metadata.resource_version.parse().unwrap_or(0)
    }
}

/// Reads a page; one that was cut off is an error.
pub(super) fn page(bytes: &[u8]) -> Result<Page<'_>, Fault> {
    serde_json::from_slice(bytes)
        .map_err(|error| Fault::Failed(format!("unreadable list: {error}")))
}

/// Asks for `path`; the answer is one that means success.
async fn get(client: &Client, path: &str, accept: &str) -> Result<http::Response<Body>, Fault> {
    let request = Request::get(path)
        .header(header::ACCEPT, accept)
        .body(Body::empty())
        .map_err(|error| Fault::Failed(format!("not a request: {error}")))?;
    ask(client, request, ANSWER).await
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
    let mut status: Status = serde_json::from_slice(&body).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(&body).chars().take(200).collect(),
        ..Status::default()
    });
    status.code = code;
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

/// One whole answer.
pub(super) async fn fetch(client: &Client, path: &str, accept: &str) -> Result<Bytes, Fault> {
    let response = get(client, path, accept).await?;
    tokio::time::timeout(PAGE, collect(response.into_body(), MAX_BYTES))
        .await
        .map_err(|_| Fault::Failed(format!("a list did not end within {PAGE:?}")))?
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

/// An open watch: one event a line.
pub(super) struct Lines {
    body: Body,
    buffer: BytesMut,
    /// How far the buffer was searched for the end of a line.
    searched: usize,
}

impl Lines {
    pub(super) async fn open(client: &Client, path: &str, accept: &str) -> Result<Self, Fault> {
        let response = get(client, path, accept).await?;
        Ok(Self {
            body: response.into_body(),
            buffer: BytesMut::new(),
            searched: 0,
        })
    }

    /// The next line; `None` if the server has ended the watch between two. Silence for longer than `patience` is an
    /// error: a server sends bookmarks more often than that.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, Fault> {
        loop {
            if let Some(at) = self.buffer[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                let line = self.buffer.split_to(self.searched + at + 1).freeze();
                self.searched = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_BYTES {
                let reason = format!("an event of more than {MAX_BYTES} bytes");
                return Err(Fault::Failed(reason));
            }
            let frame = tokio::time::timeout(patience, self.body.frame())
                .await
                .map_err(|_| Fault::Unreachable(format!("not a word for {patience:?}")))?;
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(Fault::Unreachable(chain(&error))),
                None if self.buffer.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                None => {
                    let reason = "the answer ended in the middle of an event".to_owned();
                    return Err(Fault::Failed(reason));
                }
            }
        }
    }

    /// Whether another line is there without waiting.
    pub(super) fn has_more(&self) -> bool {
        self.buffer.contains(&b'\n')
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
            Fault::Failed("500 Internal Server Error".to_owned())
        );
    }

    #[test]
    fn events() {
        let line = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        assert!(matches!(
            event(line),
            Ok(Event::Bookmark {
                version: 12,
                initial: true
            })
        ));
        let line = br#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#;
        assert!(matches!(event(line), Err(Fault::Expired(_))));
        for cut in [&line[..20], b"{}", b"[]", b"\"\\ud800\""] {
            assert!(matches!(event(cut), Err(Fault::Failed(_))));
        }
        assert!(matches!(
            page(br#"{"items":[{"a":1"#),
            Err(Fault::Failed(_))
        ));
        assert!(page(br#"{"metadata":{},"items":null}"#).is_ok());
    }
}
