//! Turns: how many long responses are on their way at the same time.
//!
//! When all proxies of a mesh connect at once, each can be sent a little at a time, so that all wait for the end of theirs; or
//! some are sent theirs, then the next. What is half-sent takes memory wherever it is: in queues here, in the system's
//! buffers for each connection, in clients that cannot use it yet.
//! A turn is no more than an order: nobody waits longer than [`PATIENCE`] for those before it, however slow they are.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// What is shorter goes out at once.
pub(crate) const LONG: usize = 256 * 1024;
/// Turns for each core: enough that some are always ready to be written while others wait for their clients.
const PER_CORE: usize = 40;
/// How long a turn is waited for at most.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// The turns that all streams share.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    left: Arc<Semaphore>,
    all: usize,
}

impl Turns {
    pub(crate) fn new(cores: usize) -> Self {
        Self::of(cores.saturating_mul(PER_CORE))
    }

    pub(crate) fn of(turns: usize) -> Self {
        let turns = turns.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            left: Arc::new(Semaphore::new(turns)),
            all: turns,
        }
    }

    /// Whether a long response is on its way.
    pub(crate) fn are_taken(&self) -> bool {
        self.left.available_permits() < self.all
    }

    /// A turn that is yet to come.
    fn wait(&self) -> Waiting {
        let turns = self.left.clone();
        // One that did not come in time is none, and so is one when there are none any more.
        Box::pin(async move { timeout(PATIENCE, turns.acquire_owned()).await.ok()?.ok() })
    }
}

type Waiting = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// What a stream has to do with turns. Dropping it gives its turn to the next.
#[derive(Default)]
pub(crate) enum Turn {
    /// Nothing long is being sent.
    #[default]
    Idle,
    Waiting(Waiting),
    /// It may send; without a permit if it has waited long enough.
    Mine(#[expect(dead_code, reason = "held until it is dropped")] Option<OwnedSemaphorePermit>),
}

impl Turn {
    /// How long it may be that nothing is sent because it is not its turn.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Self::Waiting(_) => PATIENCE,
            Self::Idle | Self::Mine(_) => Duration::ZERO,
        }
    }

    /// Ready when a response of that length may be sent.
    pub(crate) fn poll(&mut self, len: usize, turns: &Turns, cx: &mut Context<'_>) -> Poll<()> {
        if len < LONG && matches!(self, Self::Idle) {
            return Poll::Ready(());
        }
        loop {
            match self {
                Self::Idle => *self = Self::Waiting(turns.wait()),
                Self::Waiting(waiting) => *self = Self::Mine(ready!(waiting.as_mut().poll(cx))),
                Self::Mine(_) => return Poll::Ready(()),
            }
        }
    }
}
