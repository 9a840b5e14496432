//! The way out of a stream: a queue of responses between the task that makes them and the transport that takes them.
//!
//! The transport takes pieces as the client's flow-control window allows. The queue accepts a new response only when
//! nearly all of the last one was taken, so that a slow client holds references to at most one large response here; what
//! changes meanwhile is merged into the next one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use crate::frame::{Frames, Pieces};

/// Another response is accepted when no more than this is queued.
const LOW_WATER: usize = 64 * 1024;

#[derive(Debug)]
struct State {
    responses: VecDeque<Pieces>,
    queued: usize,
    end: Option<Status>,
    ended: bool,
    gone: bool,
    progress: Instant,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The queue accepts another response again, or the transport went away.
    taken: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that makes responses. Dropping it ends the stream with an error, since that happens only if its task dies.
#[derive(Debug)]
pub(crate) struct Outbound(Arc<Shared>);

/// The end that the transport reads.
#[derive(Debug)]
pub(crate) struct ResponseBody(Arc<Shared>);

pub(crate) fn channel() -> (Outbound, ResponseBody) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            responses: VecDeque::new(),
            queued: 0,
            end: None,
            ended: false,
            gone: false,
            progress: Instant::now(),
            waker: None,
        }),
        taken: Notify::new(),
    });
    (Outbound(shared.clone()), ResponseBody(shared))
}

impl Outbound {
    /// Whether another response is accepted now.
    pub(crate) fn is_writable(&self) -> bool {
        self.0.lock().queued <= LOW_WATER
    }

    /// Whether the client is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.lock().gone
    }

    /// Since when the transport has taken nothing although there is something.
    pub(crate) fn stuck_since(&self) -> Option<Instant> {
        let state = self.0.lock();
        (state.queued > 0).then_some(state.progress)
    }

    /// Resolves when another response is accepted again, or when the client is gone. May resolve without.
    pub(crate) async fn taken(&self) {
        self.0.taken.notified().await;
    }

    /// Appends a response.
    pub(crate) fn send(&self, frames: Frames) {
        let mut state = self.0.lock();
        if state.gone || state.end.is_some() {
            return;
        }
        if state.queued == 0 {
            state.progress = Instant::now();
        }
        state.queued += frames.len();
        state.responses.push_back(frames.into_pieces());
        wake(state);
    }

    /// Ends the stream after what is queued.
    pub(crate) fn end(&self, status: Status) {
        let mut state = self.0.lock();
        state.end.get_or_insert(status);
        wake(state);
    }

    /// Ends the stream and drops what is queued.
    pub(crate) fn abort(&self, status: Status) {
        let mut state = self.0.lock();
        state.responses.clear();
        state.queued = 0;
        state.end.get_or_insert(status);
        wake(state);
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.end(Status::internal("the stream failed"));
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut state = self.0.lock();
        while let Some(response) = state.responses.front_mut() {
            let Some(piece) = response.next() else {
                state.responses.pop_front();
                continue;
            };
            let was_full = state.queued > LOW_WATER;
            state.queued = state.queued.saturating_sub(piece.len());
            state.progress = Instant::now();
            let writable = was_full && state.queued <= LOW_WATER;
            drop(state);
            if writable {
                self.0.taken.notify_one();
            }
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        if let Some(status) = &state.end {
            let mut trailers = HeaderMap::new();
            let written = status.add_header(&mut trailers);
            state.ended = true;
            return Poll::Ready(Some(written.map(|()| Frame::trailers(trailers))));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().ended
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.gone = true;
        state.responses.clear();
        state.queued = 0;
        drop(state);
        self.0.taken.notify_one();
    }
}
