//! Connected proxies as debug pages see them.

use crate::Text;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::nonce::Nonce;
use crate::resource::{Resource, Version};
use crate::session::{Generation, Protocol, Rejection};
use crate::type_url::TypeUrl;

/// State of one type on one stream, as in istiod's `/debug/syncz`.
#[derive(Clone, Debug)]
pub struct TypeStatus {
    /// The type.
    pub type_url: TypeUrl,
    /// Last response sent.
    pub sent: Option<Nonce>,
    /// When it was sent.
    pub sent_at: Option<SystemTime>,
    /// Last response accepted.
    pub acked: Option<Nonce>,
    /// The last response, if it was rejected.
    pub rejected: Option<Rejection>,
    /// Hash of the last response's content.
    pub version: Option<Version>,
    /// Whether all resources are wanted.
    pub wildcard: bool,
    /// How many names are wanted besides.
    pub names: usize,
    /// The generation that was compared with last.
    pub generation: Generation,
    /// The generation that the proxy is known to hold.
    pub acked_generation: Generation,
}

/// One stream.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Number of the stream since the server started.
    pub id: u64,
    /// What the proxy calls itself.
    pub node_id: Text,
    /// Where it connects from.
    pub peer: Option<SocketAddr>,
    /// Since when.
    pub connected_at: SystemTime,
    /// Whether the stream is incremental.
    pub delta: bool,
    /// The types it watches, in push order.
    pub types: Vec<TypeStatus>,
}

/// A stream as its task and debug pages share it. The session is locked for the time of one request or response.
#[derive(Debug)]
pub(crate) struct Connection<P> {
    pub(crate) id: u64,
    pub(crate) node_id: Text,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) connected_at: SystemTime,
    pub(crate) delta: bool,
    pub(crate) session: Mutex<P>,
}

impl<P> Connection<P> {
    pub(crate) fn session(&self) -> MutexGuard<'_, P> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What debug pages need of a stream of either variant.
trait Inspect: Send + Sync {
    fn info(&self) -> ConnectionInfo;
    fn held(&self) -> BTreeMap<TypeUrl, Vec<Arc<Resource>>>;
    fn node_id(&self) -> &str;
}

impl<P: Protocol> Inspect for Connection<P> {
    fn info(&self) -> ConnectionInfo {
        let session = self.session();
        let types = session
            .watches()
            .iter()
            .map(|(type_url, watch)| TypeStatus {
                type_url: type_url.clone(),
                sent: watch.sent(),
                sent_at: watch.sent_at,
                acked: watch.acked(),
                rejected: watch.rejected().cloned(),
                version: watch.version(),
                wildcard: watch.subscription().is_wildcard(),
                names: watch.subscription().named().len(),
                generation: watch.generation(),
                acked_generation: watch.acked_generation(),
            });
        ConnectionInfo {
            id: self.id,
            node_id: self.node_id.clone(),
            peer: self.peer,
            connected_at: self.connected_at,
            delta: self.delta,
            types: types.collect(),
        }
    }

    fn held(&self) -> BTreeMap<TypeUrl, Vec<Arc<Resource>>> {
        let session = self.session();
        session
            .watches()
            .iter()
            .map(|(t, w)| (t.clone(), w.held().cloned().collect()))
            .collect()
    }

    fn node_id(&self) -> &str {
        &self.node_id
    }
}

/// All streams of admitted proxies.
#[derive(Default)]
pub(crate) struct Registry(Mutex<BTreeMap<u64, Arc<dyn Inspect>>>);

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn Inspect>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add<P: Protocol>(&self, connection: Arc<Connection<P>>) {
        self.lock().insert(connection.id, connection);
    }

    pub(crate) fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    pub(crate) fn infos(&self) -> Vec<ConnectionInfo> {
        let connections: Vec<_> = self.lock().values().cloned().collect();
        connections.iter().map(|c| c.info()).collect()
    }

    /// What the newest stream of a node was sent.
    pub(crate) fn held(&self, node_id: &str) -> Option<BTreeMap<TypeUrl, Vec<Arc<Resource>>>> {
        let newest = self
            .lock()
            .values()
            .rev()
            .find(|c| c.node_id() == node_id)
            .cloned();
        newest.map(|c| c.held())
    }
}
