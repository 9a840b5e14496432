//! The way into a stream: gRPC messages out of a request body.
//!
//! Unlike tonic's decoder it keeps no buffer between messages: a proxy that once subscribed to ten thousand names would
//! otherwise hold on to the memory of that request for as long as it is connected.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use tonic::Status;

use crate::frame::{self, Outline};
use crate::names::{NamePool, Names};

/// A request, and the names that it subscribes to if they are not in it: a set that somebody else holds, too.
#[derive(Debug)]
pub(crate) struct Received<M> {
    pub(crate) request: Box<M>,
    pub(crate) held: Option<Names>,
}

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

    /// The next message; none at the end. Dropping the future loses nothing. Boxed, because tasks that pass it on have room
    /// for it at each step.
    pub(crate) async fn message<M: prost::Message + Default>(
        &mut self,
    ) -> Result<Option<Box<M>>, Status> {
        match self.encoded().await? {
            Some((bytes, _)) => decode(bytes).map(Some),
            None => Ok(None),
        }
    }

    /// The same, without the names that it subscribes to if somebody has subscribed to the same: thousands of strings are not
    /// made only to be compared and dropped.
    pub(crate) async fn request<M: prost::Message + Default>(
        &mut self,
        pool: &NamePool,
    ) -> Result<Option<Received<M>>, Status> {
        let Some((bytes, outline)) = self.encoded().await? else {
            return Ok(None);
        };
        let Range { start, end } = outline.names;
        let held = pool.held(&frame::names(&bytes[start..end]));
        let request = if held.is_some() {
            decode(bytes.slice(..start).chain(bytes.slice(end..)))
        } else {
            decode(bytes)
        };
        request.map(|request| Some(Received { request, held }))
    }

    /// The next message as it came, and what can be said of it.
    async fn encoded(&mut self) -> Result<Option<(Bytes, Outline)>, Status> {
        loop {
            if let Some(bytes) = self.take()? {
                let outline = Outline::of(&bytes);
                if outline.fields > self.max_fields {
                    return Err(Status::resource_exhausted(format!(
                        "more than {} fields in one request",
                        self.max_fields
                    )));
                }
                return Ok(Some((bytes, outline)));
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

fn decode<M: prost::Message + Default>(bytes: impl Buf) -> Result<Box<M>, Status> {
    M::decode(bytes)
        .map(Box::new)
        .map_err(|e| Status::invalid_argument(format!("request does not decode: {e}")))
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::{Context, Poll};

    use pilotfish_protos::envoy::service::discovery::v3::DiscoveryRequest;
    use proptest::prelude::*;
    use prost::Message;
    use tonic::Code;

    use super::*;

    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
            Poll::Ready(
                self.0
                    .pop_front()
                    .map(|piece| Ok(http_body::Frame::data(piece))),
            )
        }
    }

    fn framed(request: &DiscoveryRequest) -> Vec<u8> {
        let message = request.encode_to_vec();
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        bytes.extend(message);
        bytes
    }

    fn read(bytes: &[u8], piece: usize) -> (Vec<DiscoveryRequest>, Option<Code>) {
        let pieces = bytes
            .chunks(piece.max(1))
            .map(Bytes::copy_from_slice)
            .collect();
        let mut inbound = Inbound::new(Pieces(pieces), 1000, 20);
        let mut all = Vec::new();
        loop {
            // Never pending, so that one poll is enough.
            let mut future = Box::pin(inbound.message::<DiscoveryRequest>());
            let polled = future
                .as_mut()
                .poll(&mut Context::from_waker(std::task::Waker::noop()));
            match polled {
                Poll::Ready(Ok(Some(message))) => all.push(*message),
                Poll::Ready(Ok(None)) => return (all, None),
                Poll::Ready(Err(status)) => return (all, Some(status.code())),
                Poll::Pending => panic!("pending"),
            }
        }
    }

    #[test]
    fn messages_come_out_however_they_are_cut() {
        let request = DiscoveryRequest {
            type_url: "t".repeat(200),
            ..DiscoveryRequest::default()
        };
        let bytes = [
            framed(&request),
            framed(&DiscoveryRequest::default()),
            framed(&request),
        ]
        .concat();
        for piece in 1..bytes.len() {
            let (all, error) = read(&bytes, piece);
            assert_eq!((all.len(), error), (3, None), "pieces of {piece}");
            assert_eq!(all[2], request);
        }
        assert_eq!(read(&bytes[..bytes.len() - 1], 7).1, Some(Code::Internal));
    }

    fn received(pool: &NamePool, bytes: &[u8]) -> (DiscoveryRequest, Option<Names>) {
        let mut framed = vec![0];
        framed.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
        framed.extend(bytes);
        let pieces = Pieces([Bytes::from(framed)].into());
        let mut inbound = Inbound::new(pieces, 10_000, 200);
        let future = std::pin::pin!(inbound.request::<DiscoveryRequest>(pool));
        match future.poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(Ok(Some(received))) => (*received.request, received.held),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_that_somebody_holds_are_those_that_the_request_lists_and_all_of_them() {
        let pool = NamePool::default();
        let list: Vec<String> = (0..40).map(|i| format!("name-{i:02}")).collect();
        let held = pool.adopt(list.clone());
        let request = |resource_names: Vec<String>| DiscoveryRequest {
            version_info: "1".into(),
            resource_names,
            type_url: "t".into(),
            ..DiscoveryRequest::default()
        };
        let reversed: Vec<String> = list.iter().rev().cloned().collect();
        for listed in [&list, &reversed] {
            let (rest, same) = received(&pool, &request(listed.clone()).encode_to_vec());
            assert_eq!(same.and_then(|names| names.id()), held.id());
            assert_eq!(rest, request(Vec::new()));
        }
        // Other names, and names of which some stand elsewhere or are written in another way, stay where they are.
        let more = request([&list[..], &["*".to_owned()]].concat()).encode_to_vec();
        let fewer = request(list[1..].to_vec()).encode_to_vec();
        let whole = request(list.clone()).encode_to_vec();
        let apart = [&whole[..], &[0x1a, 1, b'x']].concat();
        let long_key = [&whole[..], &[0x9a, 0, 1, b'x']].concat();
        let behind_a_group = [&whole[..], &[0x7b, 0x7c, 0x1a, 1, b'x']].concat();
        for bytes in [more, fewer, apart, long_key, behind_a_group] {
            let (got, same) = received(&pool, &bytes);
            assert!(same.is_none());
            assert_eq!(got, DiscoveryRequest::decode(&bytes[..]).unwrap());
        }
    }

    #[test]
    fn what_is_too_much_is_refused_before_it_is_read() {
        assert_eq!(
            read(&[0, 0, 0, 4, 0], 5),
            (vec![], Some(Code::ResourceExhausted))
        );
        assert_eq!(
            read(&[1, 0, 0, 0, 0], 5),
            (vec![], Some(Code::Unimplemented))
        );
        let names = DiscoveryRequest {
            resource_names: vec!["n".into(); 21],
            ..DiscoveryRequest::default()
        };
        assert_eq!(
            read(&framed(&names), 64),
            (vec![], Some(Code::ResourceExhausted))
        );
        assert_eq!(
            read(&[0, 0, 0, 0, 2, 0x0a, 9], 64),
            (vec![], Some(Code::InvalidArgument))
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1usize..50) {
            read(&bytes, piece);
            let mut framed = vec![0, 0, 0, 0, u8::try_from(bytes.len()).unwrap()];
            framed.extend(&bytes);
            read(&framed, piece);
            crate::frame::decode_any(&bytes);
        }
    }
}
