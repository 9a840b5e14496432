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
use crate::turns::{Turn, Turns};

/// Another response is accepted when no more than this is queued.
const LOW_WATER: usize = 64 * 1024;

struct State {
    responses: VecDeque<Pieces>,
    queued: usize,
    /// That of the first response, once it has begun.
    turn: Turn,
    end: Option<Status>,
    ended: bool,
    gone: bool,
    progress: Instant,
    waker: Option<Waker>,
}

struct Shared {
    state: Mutex<State>,
    turns: Turns,
    /// The queue accepts another response again, or the transport went away.
    taken: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that makes responses. Dropping it ends the stream with an error, since that happens only if its task dies.
pub(crate) struct Outbound(Arc<Shared>);

/// The end that the transport reads.
pub(crate) struct ResponseBody(Arc<Shared>);

pub(crate) fn channel(turns: Turns) -> (Outbound, ResponseBody) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            responses: VecDeque::new(),
            queued: 0,
            turn: Turn::default(),
            end: None,
            ended: false,
            gone: false,
            progress: Instant::now(),
            waker: None,
        }),
        turns,
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

    /// Since when the transport has taken nothing although there is something, and it was its turn.
    pub(crate) fn stuck_since(&self) -> Option<Instant> {
        let state = self.0.lock();
        let since = state.progress + state.turn.patience();
        (state.queued > 0).then_some(since)
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
        state.turn = Turn::Idle;
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
        loop {
            let State {
                responses, turn, ..
            } = &mut *state;
            let Some(response) = responses.front_mut() else {
                break;
            };
            if turn.poll(response.left(), &self.0.turns, cx).is_pending() {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let Some(piece) = response.next() else {
                *turn = Turn::Idle;
                responses.pop_front();
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
        state.turn = Turn::Idle;
        state.queued = 0;
        drop(state);
        self.0.taken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body::Body as _;
    use tokio::time::timeout;

    use super::*;
    use crate::frame::whole;
    use crate::turns::{LONG, PATIENCE};

    /// What comes next: how many bytes, none at the end.
    async fn next(body: &mut ResponseBody) -> Option<usize> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        let data = frame?.expect("no error").into_data();
        Some(data.map_or(0, |data| data.len()))
    }

    async fn is_waiting(body: &mut ResponseBody) -> bool {
        timeout(Duration::ZERO, next(body)).await.is_err()
    }

    /// Takes a whole response of that length.
    async fn take(body: &mut ResponseBody, len: usize) {
        let mut taken = 0;
        while taken < len + 5 {
            taken += next(body).await.expect("more");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_responses_take_turns_and_short_ones_do_not() {
        let turns = Turns::of(1);
        let (first, mut first_body) = channel(turns.clone());
        let (second, mut second_body) = channel(turns.clone());
        let (short, mut short_body) = channel(turns);
        first.send(whole(&vec![0; LONG]));
        second.send(whole(&vec![0; LONG]));
        short.send(whole(&[0; 1000]));
        assert!(next(&mut first_body).await.is_some());
        assert!(is_waiting(&mut second_body).await);
        take(&mut short_body, 1000).await;
        // Once begun, a response keeps its turn to its end, also where little is left.
        let mut pieces = 0;
        while !is_waiting(&mut first_body).await {
            pieces += 1;
            assert!(is_waiting(&mut second_body).await);
        }
        assert!(pieces > 1);
        take(&mut second_body, LONG).await;
        // It is given back at the end.
        assert!(is_waiting(&mut second_body).await);
        first.send(whole(&vec![0; LONG]));
        take(&mut first_body, LONG).await;
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_long_for_a_client_that_takes_nothing() {
        let turns = Turns::of(1);
        let (slow, mut slow_body) = channel(turns.clone());
        let (other, mut other_body) = channel(turns);
        slow.send(whole(&vec![0; LONG]));
        other.send(whole(&vec![0; LONG]));
        assert!(next(&mut slow_body).await.is_some());
        assert!(is_waiting(&mut other_body).await);
        let before = Instant::now();
        assert!(slow.stuck_since().is_some_and(|since| since <= before));
        assert!(other.stuck_since().is_some_and(|since| since > before));
        take(&mut other_body, LONG).await;
        let waited = before.elapsed();
        assert!(
            (PATIENCE..PATIENCE * 2).contains(&waited),
            "waited for {waited:?}"
        );
        // One that goes gives its turn to the next.
        other.send(whole(&vec![0; LONG]));
        assert!(is_waiting(&mut other_body).await);
        drop(slow_body);
        let before = Instant::now();
        take(&mut other_body, LONG).await;
        assert_eq!(before.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_waits_for_its_turn_can_be_ended() {
        let turns = Turns::of(1);
        let (slow, mut slow_body) = channel(turns.clone());
        let (other, mut other_body) = channel(turns);
        slow.send(whole(&vec![0; LONG]));
        other.send(whole(&vec![0; LONG]));
        assert!(next(&mut slow_body).await.is_some());
        let ended = tokio::spawn(async move { next(&mut other_body).await });
        tokio::task::yield_now().await;
        other.abort(Status::aborted("enough"));
        let before = Instant::now();
        assert_eq!(ended.await.expect("a task"), Some(0), "trailers");
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
}
