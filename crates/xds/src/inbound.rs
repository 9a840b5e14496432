//! The way into a stream: gRPC messages out of a request body.
//!
//! Unlike tonic's decoder it keeps no buffer between messages: a proxy that once subscribed to ten thousand names would
//! otherwise hold on to the memory of that request for as long as it is connected.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use tonic::Status;

use crate::frame;

type BoxBody = Pin<Box<dyn Body<Data = Bytes, Error = Status> + Send>>;

/// Reads the requests of one stream.
pub(crate) struct Inbound {
    body: BoxBody,
    buffer: BytesMut,
    max_bytes: usize,
    max_fields: usize,
    ended: bool,
}

impl Inbound {
    /// Messages of more than `max_bytes`, or with more than `max_fields` top-level fields, end the stream.
    pub(crate) fn new<B>(body: B, max_bytes: usize, max_fields: usize) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        Self {
            body: Box::pin(Mapped(Box::pin(body))),
            buffer: BytesMut::new(),
            max_bytes,
            max_fields,
            ended: false,
        }
    }

    /// The next message; none at the end. Dropping the future loses nothing.
    pub(crate) async fn message<M: prost::Message + Default>(
        &mut self,
    ) -> Result<Option<M>, Status> {
        loop {
            if let Some(bytes) = self.take()? {
                if frame::count_fields(&bytes) > self.max_fields {
                    return Err(Status::resource_exhausted(format!(
                        "more than {} fields in one request",
                        self.max_fields
                    )));
                }
                return M::decode(bytes).map(Some).map_err(|e| {
                    Status::invalid_argument(format!("request does not decode: {e}"))
                });
            }
            if self.ended {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(Status::internal("request ends in a message"))
                };
            }
            match poll_fn(|cx| self.body.as_mut().poll_frame(cx)).await {
                None => self.ended = true,
                Some(Err(status)) => return Err(status),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// Cuts one whole message off the buffer.
    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(&[compressed, a, b, c, d]) = self.buffer.first_chunk::<5>() else {
            return Ok(None);
        };
        if compressed != 0 {
            return Err(Status::unimplemented(
                "compressed requests are not supported",
            ));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.max_bytes {
            let max = self.max_bytes;
            return Err(Status::resource_exhausted(format!(
                "request of {len} bytes, at most {max} are accepted"
            )));
        }
        if self.buffer.len() < 5 + len {
            return Ok(None);
        }
        self.buffer.advance(5);
        let message = self.buffer.split_to(len).freeze();
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
        Ok(Some(message))
    }
}

/// A body whose errors are statuses.
struct Mapped<B>(Pin<Box<B>>);

impl<B> Body for Mapped<B>
where
    B: Body<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        self.0
            .as_mut()
            .poll_frame(cx)
            .map_err(|e| Status::cancelled(format!("the client went away: {e}")))
    }
}
