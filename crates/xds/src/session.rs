//! What both variants of the protocol share: the watches of a stream, the order between types and the messages in and out.
//!
//! A session is pure: no clock, no I/O. [`Protocol::on_request`] takes note of what a client says, [`Protocol::push`]
//! compares a view with what the client holds and returns the response that this calls for, if any. The caller decides when.

use crate::Text;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use pilotfish_protos::envoy::config::core::v3::Node;

use crate::bundle::Pool;
use crate::frame::Frames;
use crate::health::Health;
use crate::names::Names;
use crate::nonce::{Nonce, Nonces};
use crate::question::{Answer, Question};
use crate::type_url::TypeUrl;
use crate::watch::Watch;

/// A state of the whole configuration; rises with every (debounced) change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// A response that a client refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Which response.
    pub nonce: Nonce,
    /// Why, in the client's words.
    pub message: String,
}

/// What a request said about the last response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it only subscribes.
    None,
    /// The response is in use.
    Ack(Nonce),
    /// The response was refused; the client keeps what it had.
    Nack(Rejection),
    /// It answers a response that a newer one has overtaken.
    Stale,
}

/// What a request meant. Whether it calls for a response is asked of [`Watch::wants_answer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The type it is about.
    pub type_url: TypeUrl,
    /// What it said about the last response.
    pub verdict: Verdict,
    /// The first request of its type on the stream.
    pub first: bool,
}

/// A request that ends its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// No type where one is needed, or one that the service does not carry.
    WrongType(String),
    /// More names than the limit.
    TooManyNames(usize),
    /// A name longer than the limit.
    NameTooLong(usize),
    /// More types on one stream than the limit.
    TooManyTypes(usize),
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::WrongType(url) if url.is_empty() => f.write_str("the request names no type"),
            Self::WrongType(url) => write!(f, "this service does not carry type {url}"),
            Self::TooManyNames(max) => write!(f, "more than {max} names for one type"),
            Self::NameTooLong(max) => write!(f, "a resource name of more than {max} bytes"),
            Self::TooManyTypes(max) => write!(f, "more than {max} types on one stream"),
        }
    }
}

impl std::error::Error for RequestError {}

impl From<RequestError> for tonic::Status {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::WrongType(_) | RequestError::NameTooLong(_) => {
                Self::invalid_argument(error.to_string())
            }
            RequestError::TooManyNames(_) | RequestError::TooManyTypes(_) => {
                Self::resource_exhausted(error.to_string())
            }
        }
    }
}

/// A response to be written.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its type.
    pub type_url: TypeUrl,
    /// Its nonce.
    pub nonce: Nonce,
    /// The encoded message.
    pub frames: Frames,
    /// How many resources it carries.
    pub resources: usize,
    /// How many it withdraws.
    pub removed: usize,
}

/// What a session must know at its start.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Distinguishes the nonces of this stream from those of others.
    pub stream: u32,
    /// The one type of a single-type service; none on an aggregated stream.
    pub only: Option<TypeUrl>,
    /// Names per type.
    pub max_names: usize,
    /// Bytes per name or type URL.
    pub max_name_bytes: usize,
    /// Types per stream.
    pub max_types: usize,
    /// What is shared with other streams.
    pub pool: Arc<Pool>,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            stream: 0,
            only: None,
            max_names: 100_000,
            max_name_bytes: 4096,
            max_types: 32,
            pool: Arc::default(),
        }
    }
}

/// The watches of one stream.
#[derive(Debug)]
pub struct Watches {
    config: SessionConfig,
    nonces: Nonces,
    /// Boxed: a node of the map has room for eleven, and most streams watch five types.
    types: BTreeMap<TypeUrl, Box<Watch>>,
}

impl Watches {
    pub(crate) fn new(config: SessionConfig) -> Self {
        Self {
            nonces: Nonces::new(config.stream),
            config,
            types: BTreeMap::new(),
        }
    }

    /// The watch of a type.
    pub fn get(&self, type_url: &TypeUrl) -> Option<&Watch> {
        self.types.get(type_url).map(|watch| &**watch)
    }

    /// All, in push order.
    pub fn iter(&self) -> impl Iterator<Item = (&TypeUrl, &Watch)> {
        let all = self.types.iter();
        all.map(|(type_url, watch)| (type_url, &**watch))
    }

    pub(crate) fn get_mut(&mut self, type_url: &TypeUrl) -> Option<&mut Watch> {
        self.types.get_mut(type_url).map(|watch| &mut **watch)
    }

    /// The type of a request.
    pub(crate) fn type_of(&self, url: &str) -> Result<TypeUrl, RequestError> {
        if url.len() > self.config.max_name_bytes {
            return Err(RequestError::NameTooLong(self.config.max_name_bytes));
        }
        let type_url = match (&self.config.only, url) {
            (Some(only), "") => only.clone(),
            (Some(only), url) if only.as_str() != url => {
                return Err(RequestError::WrongType(url.into()));
            }
            (None, "") => return Err(RequestError::WrongType(String::new())),
            (_, url) => TypeUrl::parse(url),
        };
        if !self.types.contains_key(&type_url) && self.types.len() >= self.config.max_types {
            return Err(RequestError::TooManyTypes(self.config.max_types));
        }
        Ok(type_url)
    }

    /// Refuses lists of names that no client needs.
    pub(crate) fn check<'a>(
        &self,
        names: impl ExactSizeIterator<Item = &'a String>,
    ) -> Result<(), RequestError> {
        if names.len() > self.config.max_names {
            return Err(RequestError::TooManyNames(self.config.max_names));
        }
        for name in names {
            if name.len() > self.config.max_name_bytes {
                return Err(RequestError::NameTooLong(self.config.max_name_bytes));
            }
        }
        Ok(())
    }

    /// Refuses a subscription that grew too large over several requests.
    pub(crate) fn check_total(&self, type_url: &TypeUrl) -> Result<(), RequestError> {
        let names = self
            .types
            .get(type_url)
            .map_or(0, |w| w.subscription().named().len().max(w.asked.len()));
        if names > self.config.max_names {
            Err(RequestError::TooManyNames(self.config.max_names))
        } else {
            Ok(())
        }
    }

    /// Starts a watch.
    pub(crate) fn start(&mut self, type_url: &TypeUrl, watch: Watch) {
        self.types.insert(type_url.clone(), Box::new(watch));
    }

    /// What is shared with other streams.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.config.pool
    }

    /// A response was recorded: the names that were subscribed to for it are likely to stay.
    pub(crate) fn share_names(&mut self, type_url: &TypeUrl) {
        if let Some(watch) = self.types.get_mut(type_url) {
            watch.subscription.share(&self.config.pool.names);
        }
    }

    /// Clusters were sent: their endpoints have to follow even if unchanged, or the clusters never finish warming.
    pub(crate) fn clusters_sent<'a>(&mut self, names: impl Iterator<Item = &'a Text>) {
        if let Some(endpoints) = self.types.get_mut(&TypeUrl::Endpoints) {
            endpoints.refresh(names);
        }
    }

    /// Whether resources of this type that are gone must wait for those that refer to them. Before its first response a
    /// client has had no time to ask for those, so that only a single-type stream is sure to have none.
    pub(crate) fn holds_removals(&self, type_url: &TypeUrl) -> bool {
        let first = self.types.get(type_url).is_some_and(|w| w.sent().is_none());
        type_url.is_referred_to()
            && self.config.only.is_none()
            && (first || self.types.keys().any(|t| !t.is_referred_to()))
    }

    /// A response of this type was sent at that time.
    pub(crate) fn stamp(&mut self, type_url: &TypeUrl, time: SystemTime) {
        if let Some(watch) = self.types.get_mut(type_url) {
            watch.sent_at = Some(time);
        }
    }

    pub(crate) fn next_nonce(&mut self) -> Nonce {
        self.nonces.next()
    }
}

/// One of the two variants of the protocol, as a state machine.
pub trait Protocol: Send + 'static {
    /// What clients send.
    type Request: prost::Message + Default + Send + 'static;

    /// A session at the start of a stream.
    fn new(config: SessionConfig) -> Self;

    /// The node that a request names.
    fn node(request: &Self::Request) -> Option<&Node>;

    /// What a request reports, if it is one that reports. Such a request is not given to `on_request`.
    fn health(request: &Self::Request) -> Option<Health>;

    /// What a request asks, if it is one that is answered once. Such a request is not given to `on_request`.
    fn question(request: &Self::Request) -> Option<Question>;

    /// The response that answers a question. Nothing is remembered of it.
    fn answer(&mut self, question: &Question, answer: Answer) -> Frames;

    /// Takes note of a request. An error ends the stream.
    fn on_request(&mut self, request: Self::Request) -> Result<Reply, RequestError> {
        self.on_request_for(request, None)
    }

    /// The same; `held` are all names that it subscribes to, if they are not in the request itself.
    fn on_request_for(
        &mut self,
        request: Self::Request,
        held: Option<Names>,
    ) -> Result<Reply, RequestError>;

    /// Compares a view with what the client holds. Returns the response that this calls for; the client is taken to hold
    /// it from then on.
    fn push(
        &mut self,
        type_url: &TypeUrl,
        view: crate::View,
        generation: Generation,
    ) -> Option<Response>;

    /// Withdraws resources that an earlier push had left in place for the sake of those that referred to them.
    fn withdraw(&mut self, type_url: &TypeUrl) -> Option<Response>;

    /// The state of the stream.
    fn watches(&self) -> &Watches;

    /// The same, to take note of when a response was sent.
    fn watches_mut(&mut self) -> &mut Watches;
}

#[cfg(test)]
mod tests {
    use pilotfish_protos::envoy::service::discovery::v3::{
        DeltaDiscoveryRequest, DiscoveryRequest,
    };

    use super::*;
    use crate::{View, delta, sotw};

    fn list(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("name-{i}")).collect()
    }

    /// What a session makes of requests, each with the names that it subscribes to: listed, or as somebody holds them.
    fn outcome<P: Protocol>(
        requests: &[(Vec<String>, &str)],
        request: impl Fn(Vec<String>, String) -> P::Request,
        holds: bool,
    ) -> Vec<(Reply, Vec<String>, bool, usize)> {
        let config = SessionConfig::default();
        let names = Arc::clone(&config.pool);
        let mut session = P::new(config);
        let all = requests.iter().map(|(list, answers)| {
            let held = holds.then(|| names.names.adopt(list.clone()));
            let list = if holds { Vec::new() } else { list.clone() };
            let last = session.watches().get(&TypeUrl::Endpoints);
            let nonce = match (*answers, last.and_then(Watch::sent)) {
                ("last", Some(nonce)) => nonce.to_string(),
                (other, _) => other.to_owned(),
            };
            let reply = session.on_request_for(request(list, nonce), held).unwrap();
            let sent = session.push(&TypeUrl::Endpoints, View::default(), Generation(1));
            let watch = session.watches().get(&TypeUrl::Endpoints).unwrap();
            (
                reply,
                watch
                    .subscription()
                    .named()
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                watch.wants_answer(),
                sent.map_or(0, |sent| sent.removed),
            )
        });
        all.collect()
    }

    #[test]
    fn names_that_somebody_holds_count_like_those_in_a_request() {
        let url = || TypeUrl::Endpoints.as_str().to_owned();
        let history = [
            (list(40), ""),
            (list(40), "last"),
            (list(50), "last"),
            (list(35), "ffffffff.1"),
            (list(60), ""),
        ];
        let sotw = |resource_names, response_nonce| DiscoveryRequest {
            type_url: url(),
            resource_names,
            response_nonce,
            ..DiscoveryRequest::default()
        };
        let delta = |resource_names_subscribe, response_nonce| DeltaDiscoveryRequest {
            type_url: url(),
            resource_names_subscribe,
            response_nonce,
            ..DeltaDiscoveryRequest::default()
        };
        let of_sotw = |holds| outcome::<sotw::Session>(&history, sotw, holds);
        let of_delta = |holds| outcome::<delta::Session>(&history, delta, holds);
        assert_eq!(of_sotw(true), of_sotw(false));
        assert_eq!(of_delta(true), of_delta(false));
        let last = |all: Vec<(_, Vec<String>, _, _)>| all.last().map(|(_, names, ..)| names.len());
        assert_eq!(
            (last(of_sotw(true)), last(of_delta(true))),
            (Some(60), Some(60))
        );
    }
}
