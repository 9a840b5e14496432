//! Questions: requests that are answered once and watch nothing. `istioctl` asks them, on a stream of its own or through a
//! proxy's.
//!
//! A stream that begins with a question is no proxy's: nobody is admitted, it is on no page, and it can only ask more.

use std::pin::Pin;

use pilotfish_protos::envoy::config::core::v3::ControlPlane;
use pilotfish_protos::google::protobuf::Any;
use tonic::Status;

use crate::configuration::Peer;
use crate::nonce::Nonce;

/// Types that ask: themselves, and everything below them.
const DEBUG: &str = "istio.io/debug";
const CONNECTIONS: &str = "istio.io/connections";

/// What somebody wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The type, such as `istio.io/debug/syncz`.
    pub type_url: String,
    /// The names it was asked for.
    pub names: Vec<String>,
    /// It only says that an answer came, or was not liked.
    pub(crate) is_reply: bool,
}

impl Question {
    /// What a request asks, if its type is one that asks. Clients make up nonces for their first request: only one of ours
    /// makes it a reply.
    pub(crate) fn of(type_url: &str, names: &[String], nonce: &str, rejects: bool) -> Option<Self> {
        let below = type_url.strip_prefix(DEBUG);
        let asks = below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
            || type_url == CONNECTIONS;
        asks.then(|| Self {
            type_url: type_url.to_owned(),
            names: names.to_vec(),
            is_reply: rejects || Nonce::parse(nonce).is_some(),
        })
    }
}

/// What it is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Who answers, if that is part of the answer.
    pub control_plane: Option<ControlPlane>,
    /// Resources with their names.
    pub resources: Vec<(String, Any)>,
}

/// An answer that is being made.
pub type Answering = Pin<Box<dyn Future<Output = Result<Answer, Status>> + Send>>;

/// Whoever knows the answers, and who may have them.
pub trait Answers: Send + Sync + 'static {
    /// Answers a question. An error ends the stream.
    fn answer(&self, question: Question, peer: Peer) -> Answering;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_types_ask() {
        let asks = |url: &str| Question::of(url, &[], "", false).is_some();
        for url in [
            "istio.io/debug",
            "istio.io/debug/syncz",
            "istio.io/debug/edsz?proxyID=a",
            "istio.io/connections",
        ] {
            assert!(asks(url), "{url}");
        }
        for url in [
            "",
            "istio.io/debugger",
            "istio.io/connect",
            "type.googleapis.com/istio.io/debug",
        ] {
            assert!(!asks(url), "{url}");
        }
    }

    #[test]
    fn only_nonces_of_ours_make_a_reply() {
        let is_reply =
            |nonce: &str, rejects: bool| Question::of(DEBUG, &[], nonce, rejects).unwrap().is_reply;
        // What istioctl sends with its first request.
        assert!(!is_reply("2026-11-16 09:00:00.1 +0000 UTC m=+0.5", false));
        assert!(!is_reply("", false));
        assert!(is_reply("000000ab.1", false));
        assert!(is_reply("", true));
    }
}
