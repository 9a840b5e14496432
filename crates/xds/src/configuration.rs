//! What the wire asks of the rest of the control plane, and what it tells it.

use std::net::SocketAddr;
use std::time::Duration;

use pilotfish_protos::envoy::config::core::v3::Node;
use tokio::sync::watch;

use crate::health::Health;
use crate::resource::View;
use crate::session::{Generation, Rejection};
use crate::type_url::TypeUrl;

/// Who is at the other end, as far as the transport knows.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Where the connection comes from.
    pub address: Option<SocketAddr>,
    /// The request's headers: tokens and such.
    pub headers: http::HeaderMap,
    /// What the transport left with the request, such as a verified certificate.
    pub extensions: http::Extensions,
    /// It speaks the incremental protocol for all types on one stream.
    pub incremental: bool,
}

/// The configuration to serve. Implemented by the control plane on top of its engine.
#[expect(
    unused_variables,
    reason = "the names document what an implementation gets"
)]
pub trait Configuration: Send + Sync + 'static {
    /// A connected proxy as translation sees it. Dropped when its stream has ended, or is refused.
    type Proxy: Send + 'static;

    /// Admits a proxy by its first request. `Unavailable` while the configuration is not complete (a proxy must keep
    /// what it has rather than get a part), `InvalidArgument` for a node that makes no sense.
    fn connect(&self, node: &Node, peer: &Peer) -> Result<Self::Proxy, tonic::Status>;

    /// The resources of one type as of the newest generation, or [`View::unknown`]. May compute for a while; called where that
    /// does not hold up other streams, by no more than [`Limits::cores`](crate::Limits::cores) threads at a time.
    fn view(&self, proxy: &mut Self::Proxy, type_url: &TypeUrl) -> View;

    /// The same, if nothing has to be computed or waited for.
    fn view_at_hand(&self, proxy: &mut Self::Proxy, type_url: &TypeUrl) -> Option<View> {
        None
    }

    /// The agent of a proxy says how the workload beside it is. Must not block.
    fn reported(&self, proxy: &mut Self::Proxy, health: Health) {}

    /// Rises after every change. A view may be newer than the generation read before it, never older.
    fn generation(&self) -> watch::Receiver<Generation>;
}

/// A response that was handed to the transport.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// Its type.
    pub type_url: &'a TypeUrl,
    /// How many resources it carries.
    pub resources: usize,
    /// How many it withdraws.
    pub removed: usize,
    /// Its size on the wire, before TLS.
    pub bytes: usize,
    /// How long view and response took to make.
    pub took: Duration,
    /// From the change, or the request, until now.
    pub since: Duration,
    /// The change that it brings. `None` if it tells the proxy of its type for the first time: that was there before.
    pub generation: Option<Generation>,
    /// Whether it is the first that this stream sends about that change.
    pub first: bool,
}

/// Learns what happens on the wire, for metrics and logs. Called on the streams' own tasks: must not block.
#[expect(
    unused_variables,
    reason = "the names document what an implementation gets"
)]
pub trait Observer: Send + Sync + 'static {
    /// A proxy was admitted.
    fn connected(&self, node_id: &str, peer: &Peer) {}
    /// A stream ended before its proxy was admitted.
    fn refused(&self, status: &tonic::Status) {}
    /// The stream of an admitted proxy ended.
    fn disconnected(&self, node_id: &str, status: &tonic::Status) {}
    /// A response was handed to the transport.
    fn pushed(&self, node_id: &str, push: &Push<'_>) {}
    /// A proxy accepted a response; `since` is the time from the change, `generation` that of the response.
    fn accepted(
        &self,
        node_id: &str,
        type_url: &TypeUrl,
        since: Duration,
        generation: Option<Generation>,
    ) {
    }
    /// A proxy rejected a response.
    fn rejected(&self, node_id: &str, type_url: &TypeUrl, rejection: &Rejection) {}
    /// A proxy answered a response that had been overtaken.
    fn stale(&self, node_id: &str, type_url: &TypeUrl) {}
    /// A proxy did not answer in time; the type is pushed again when it changes.
    fn unanswered(&self, node_id: &str, type_url: &TypeUrl) {}
}

/// Nobody watches.
impl Observer for () {}
