//! Writes of HTTP/2, which come frame by frame, collected into few large ones.
//!
//! HTTP/2 hands over one frame at a time and flushes each; a system call for 16 kB costs as much as one for 128 kB, and so
//! does waking the reader. [`Corked`] takes the frames and claims to have flushed them; [`Uncork`], which polls the
//! connection, writes what is there whenever the connection has nothing more to do. Nothing waits for a later poll.
//! Under TLS, what is written at once is encrypted at once, into records that go out together.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is collected at most; a connection keeps a buffer only while its client is behind.
pub(crate) const MOST: usize = 128 * 1024;
/// What is less than this mostly stays so; where there is more, much more follows.
const LITTLE: usize = 4096;

/// Empty buffers of [`MOST`] bytes. The one that was written last is used next: it is still in the processor's cache, and
/// the allocator is not asked for it 10,000 times when many connect at once.
struct Spare(Mutex<Vec<Vec<u8>>>);

/// So many are kept: there is no use for more than there are processors that write, and each is memory.
const SPARES: usize = 2;

/// Those of all connections.
static SPARE: Spare = Spare(Mutex::new(Vec::new()));

impl Spare {
    /// A buffer with room for `len` bytes.
    fn take(&self, len: usize) -> Vec<u8> {
        if len <= LITTLE {
            return Vec::with_capacity(LITTLE);
        }
        let spare = self.lock().pop();
        spare.unwrap_or_else(|| Vec::with_capacity(MOST))
    }

    /// Takes back a buffer that is not needed any more.
    fn give_back(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() != MOST {
            return;
        }
        let mut spare = self.lock();
        if spare.len() < SPARES {
            buffer.clear();
            spare.push(buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, and what is to be written to it.
#[derive(Debug)]
struct Out<S> {
    stream: S,
    buffer: Vec<u8>,
    written: usize,
}

impl<S: AsyncWrite + Unpin> Out<S> {
    /// Takes what fits; 0 if the buffer is full.
    fn put(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(MOST.saturating_sub(self.buffer.len()));
        let len = self.buffer.len() + taken;
        if len > self.buffer.capacity() {
            let mut larger = SPARE.take(len);
            larger.extend_from_slice(&self.buffer);
            self.buffer = larger;
        }
        self.buffer.extend_from_slice(&bytes[..taken]);
        taken
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= MOST
    }

    /// Writes everything, also what the stream itself has kept or has to say.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.buffer.len() {
            let rest = &self.buffer[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        self.written = 0;
        SPARE.give_back(std::mem::take(&mut self.buffer));
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

/// Both ends are polled by one task, so that nobody ever waits for the lock.
type Shared<S> = Arc<Mutex<Out<S>>>;

fn lock<S>(out: &Shared<S>) -> MutexGuard<'_, Out<S>> {
    out.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream whose writes are collected.
#[derive(Debug)]
pub(crate) struct Corked<S>(Shared<S>);

/// Writes what a [`Corked`] stream has collected.
#[derive(Debug)]
pub(crate) struct Uncork<S>(Shared<S>);

pub(crate) fn cork<S>(stream: S) -> (Corked<S>, Uncork<S>) {
    let out = Arc::new(Mutex::new(Out {
        stream,
        buffer: Vec::new(),
        written: 0,
    }));
    (Corked(out.clone()), Uncork(out))
}

impl<S: AsyncWrite + Unpin> Uncork<S> {
    /// Polls the connection, then writes what that left.
    pub(crate) fn poll<F: Future>(
        &self,
        connection: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<F::Output>> {
        let polled = connection.poll(cx);
        let drained = lock(&self.0).poll_drain(cx);
        match (polled, drained) {
            (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            // It has ended by shutting the stream down, which writes everything first, or by failing.
            (Poll::Ready(output), _) => Poll::Ready(Ok(output)),
            (Poll::Pending, _) => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Corked<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Corked<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut out = lock(&self.0);
        if out.is_full() {
            ready!(out.poll_drain(cx))?;
        }
        let mut taken = 0;
        for slice in slices {
            taken += out.put(slice);
            if out.is_full() {
                break;
            }
        }
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Left to [`Uncork`].
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = lock(&self.0);
        ready!(out.poll_drain(cx))?;
        Pin::new(&mut out.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.expect("a client"), accepted.expect("a server").0)
    }

    #[tokio::test]
    async fn everything_arrives_in_order_and_more_than_the_buffer_holds() {
        let (mut client, server) = pair().await;
        let (mut corked, uncork) = cork(server);
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let all = sent.clone();
        let writing = tokio::spawn(async move {
            let work = async move {
                for chunk in all.chunks(9_999) {
                    corked.write_all(chunk).await?;
                    corked.flush().await?;
                }
                corked.shutdown().await
            };
            let mut work = std::pin::pin!(work);
            poll_fn(|cx| uncork.poll(work.as_mut(), cx)).await
        });
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.expect("bytes");
        writing
            .await
            .expect("a task")
            .expect("a stream")
            .expect("no error");
        assert!(got == sent);
    }

    #[test]
    fn the_buffer_that_was_written_last_is_used_next_and_few_are_kept() {
        let spare = Spare(Mutex::default());
        let mut all: Vec<Vec<u8>> = (0..=SPARES).map(|_| spare.take(MOST)).collect();
        all[SPARES - 1].extend_from_slice(b"old");
        let last = all[SPARES - 1].as_ptr();
        for buffer in all {
            spare.give_back(buffer);
        }
        spare.give_back(spare.take(1));
        let next = spare.take(LITTLE + 1);
        assert_eq!(
            (next.as_ptr(), next.len(), next.capacity()),
            (last, 0, MOST)
        );
        assert_eq!(spare.lock().len(), SPARES - 1);
    }

    #[tokio::test]
    async fn nothing_waits_for_a_later_write() {
        let (mut client, server) = pair().await;
        let (mut corked, uncork) = cork(server);
        let writing = tokio::spawn(async move {
            let work = async move {
                corked.write_all(b"hello").await?;
                std::future::pending::<io::Result<()>>().await
            };
            let mut work = std::pin::pin!(work);
            poll_fn(|cx| uncork.poll(work.as_mut(), cx)).await
        });
        let mut got = [0; 5];
        client.read_exact(&mut got).await.expect("bytes");
        assert_eq!(&got, b"hello");
        writing.abort();
    }

    #[tokio::test]
    async fn what_the_stream_itself_keeps_is_written_too() {
        let (mut client, server) = pair().await;
        // As TLS does, it holds on to what it is given until it is told to flush.
        let (mut corked, uncork) = cork(tokio::io::BufWriter::new(server));
        let writing = tokio::spawn(async move {
            let work = async move {
                corked.write_all(b"hello").await?;
                std::future::pending::<io::Result<()>>().await
            };
            let mut work = std::pin::pin!(work);
            poll_fn(|cx| uncork.poll(work.as_mut(), cx)).await
        });
        let mut got = [0; 5];
        client.read_exact(&mut got).await.expect("bytes");
        assert_eq!(&got, b"hello");
        writing.abort();
    }
}
