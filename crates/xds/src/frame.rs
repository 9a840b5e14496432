//! Response messages as lists of byte chunks, assembled from resources that are encoded already.
//!
//! Protobuf fields concatenate, so a response is: a few small fields, then per resource a tag, a length and its bytes.
//! Large bodies are shared (`Bytes` of the resource itself, one reference each); small ones are copied into a common
//! buffer, because a chunk costs more than the copy. The first chunk starts with gRPC's five-byte message prefix.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::resource::{Resource, Version};

/// Bodies of at least this many bytes are shared, smaller ones are copied.
pub const SHARE_FROM: usize = 4096;

/// gRPC's prefix: one byte "not compressed", four bytes length.
const PREFIX: usize = 5;

/// Length of a version in text.
const VERSION: usize = 16;

/// One gRPC message, ready to be written.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    chunks: Vec<Bytes>,
    len: usize,
}

impl Frames {
    /// The chunks in order.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// Bytes in all chunks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing; never so for a response.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The message without gRPC's prefix in one piece, for tests and debug pages.
    pub fn message(&self) -> Bytes {
        let mut all = BytesMut::with_capacity(self.len);
        for chunk in &self.chunks {
            all.put_slice(chunk);
        }
        all.freeze().slice(PREFIX.min(self.len)..)
    }

    pub(crate) fn into_chunks(self) -> Vec<Bytes> {
        self.chunks
    }
}

/// Builds one message.
struct Writer {
    chunks: Vec<Bytes>,
    buffer: BytesMut,
    len: usize,
}

impl Writer {
    /// `message` is the exact length of the message, `copied` about how much of it is not shared.
    fn new(message: usize, copied: usize) -> Self {
        let mut buffer = BytesMut::with_capacity(copied + PREFIX);
        buffer.put_u8(0);
        // A message of 4 GiB cannot be expressed; the length is then wrong and the client ends the stream.
        buffer.put_u32(u32::try_from(message).unwrap_or(u32::MAX));
        Self {
            chunks: Vec::new(),
            buffer,
            len: 0,
        }
    }

    fn key(&mut self, field: u8, len: usize) {
        self.buffer.put_u8(field << 3 | 2);
        put_varint(&mut self.buffer, len as u64);
    }

    fn text(&mut self, field: u8, text: &str) {
        self.key(field, text.len());
        self.buffer.put_slice(text.as_bytes());
    }

    fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARE_FROM {
            self.buffer.put_slice(bytes);
        } else {
            self.flush();
            self.len += bytes.len();
            self.chunks.push(bytes.clone());
        }
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.len += self.buffer.len();
            self.chunks.push(self.buffer.split().freeze());
        }
    }

    fn finish(mut self) -> Frames {
        self.flush();
        Frames {
            chunks: self.chunks,
            len: self.len,
        }
    }
}

/// How much of these resources' bytes is copied.
fn copied(resources: &[Arc<Resource>]) -> usize {
    resources
        .iter()
        .map(|r| r.any.len())
        .filter(|len| *len < SHARE_FROM)
        .sum()
}

/// Encodes a `DiscoveryResponse`.
pub fn discovery_response(
    type_url: &str,
    version: Version,
    nonce: &str,
    resources: &[Arc<Resource>],
) -> Frames {
    let version = version.to_string();
    let head = field_len(version.len()) + field_len(type_url.len()) + field_len(nonce.len());
    let message = head
        + resources
            .iter()
            .map(|r| field_len(r.any.len()))
            .sum::<usize>();
    let mut w = Writer::new(message, head + 8 * resources.len() + copied(resources));
    w.text(1, &version);
    w.text(4, type_url);
    w.text(5, nonce);
    for resource in resources {
        w.key(2, resource.any.len());
        w.shared(&resource.any);
    }
    w.finish()
}

/// Length of the fields of a delta `Resource`.
fn delta_len(resource: &Resource) -> usize {
    field_len(VERSION) + field_len(resource.name.len()) + field_len(resource.any.len())
}

/// Encodes a `DeltaDiscoveryResponse`.
pub fn delta_response(
    type_url: &str,
    nonce: &str,
    resources: &[Arc<Resource>],
    removed: &[Arc<str>],
) -> Frames {
    let head = field_len(type_url.len()) + field_len(nonce.len());
    let names: usize = removed.iter().map(|n| field_len(n.len())).sum();
    let message = head
        + names
        + resources
            .iter()
            .map(|r| field_len(delta_len(r)))
            .sum::<usize>();
    let headers: usize = resources.iter().map(|r| 40 + r.name.len()).sum();
    let mut w = Writer::new(message, head + names + headers + copied(resources));
    w.text(4, type_url);
    w.text(5, nonce);
    for resource in resources {
        w.key(2, delta_len(resource));
        w.text(1, &resource.version.to_string());
        w.text(3, &resource.name);
        w.key(2, resource.any.len());
        w.shared(&resource.any);
    }
    for name in removed {
        w.text(6, name);
    }
    w.finish()
}

/// Encodes a `google.protobuf.Any` around an encoded message.
pub(crate) fn encode_any(type_url: &str, message: &[u8]) -> Bytes {
    let mut buffer = BytesMut::with_capacity(field_len(type_url.len()) + field_len(message.len()));
    for (field, bytes) in [(1u8, type_url.as_bytes()), (2, message)] {
        if !bytes.is_empty() {
            buffer.put_u8(field << 3 | 2);
            put_varint(&mut buffer, bytes.len() as u64);
            buffer.put_slice(bytes);
        }
    }
    buffer.freeze()
}

/// Type URL and body of an encoded `Any`; what is missing or malformed is empty.
pub(crate) fn decode_any(any: &Bytes) -> (&str, Bytes) {
    let (mut url, mut body, mut at) = ("", Bytes::new(), 0);
    while let Some(&key) = any.get(at) {
        let Some((len, start)) = get_varint(any, at + 1) else {
            break;
        };
        let Some(end) = usize::try_from(len)
            .ok()
            .and_then(|len| start.checked_add(len))
        else {
            break;
        };
        match (key, any.get(start..end)) {
            (0x0a, Some(text)) => url = std::str::from_utf8(text).unwrap_or(""),
            (0x12, Some(_)) => body = any.slice(start..end),
            _ => break,
        }
        at = end;
    }
    (url, body)
}

/// How many top-level fields an encoded message has, without decoding it. Lets a request with millions of names
/// be refused before it takes memory.
pub(crate) fn count_fields(message: &[u8]) -> usize {
    let (mut fields, mut at) = (0, 0);
    while at < message.len() {
        let next = get_varint(message, at).and_then(|(key, at)| match key & 7 {
            0 => get_varint(message, at).map(|(_, at)| at),
            1 => at.checked_add(8),
            2 => get_varint(message, at)
                .and_then(|(len, at)| at.checked_add(usize::try_from(len).ok()?)),
            5 => at.checked_add(4),
            _ => None,
        });
        // What does not parse here does not decode either; the decoder's message is the better one.
        let Some(next) = next else { return fields };
        at = next;
        fields += 1;
    }
    fields
}

/// Length of a field with a one-byte tag: tag, length, content.
fn field_len(content: usize) -> usize {
    1 + varint_len(content as u64) + content
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_varint(buffer: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        buffer.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.put_u8(value as u8);
}

fn get_varint(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = *bytes.get(at)?;
        at += 1;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use pilotfish_protos::envoy::service::discovery::v3::{
        DeltaDiscoveryResponse, DiscoveryResponse,
    };
    use prost::Message;

    use super::*;

    fn resource(name: &str, size: usize) -> Arc<Resource> {
        Resource::wrap(
            "type.googleapis.com/t",
            name.into(),
            &vec![7; size],
            Arc::from([]),
        )
    }

    fn checked(frames: &Frames) -> Bytes {
        let all: Vec<u8> = frames.chunks().iter().flatten().copied().collect();
        assert_eq!(all.len(), frames.len());
        assert_eq!(all[0], 0);
        assert_eq!(
            u32::from_be_bytes(all[1..5].try_into().unwrap()) as usize,
            all.len() - 5
        );
        frames.message()
    }

    #[test]
    fn prost_reads_what_we_wrote() {
        for sizes in [
            vec![],
            vec![0],
            vec![1, 5000, 127, 128, 70_000, 70_000, 16_384, 4096 - 26, 4096],
        ] {
            let resources: Vec<_> = sizes
                .iter()
                .enumerate()
                .map(|(i, s)| resource(&format!("r{i}"), *s))
                .collect();
            let sotw = discovery_response("type.googleapis.com/t", Version(1), "n", &resources);
            let sotw = DiscoveryResponse::decode(checked(&sotw)).unwrap();
            assert_eq!(
                (sotw.version_info.as_str(), sotw.nonce.as_str()),
                ("0000000000000001", "n")
            );
            assert_eq!(sotw.type_url, "type.googleapis.com/t");
            assert_eq!(
                sotw.resources
                    .iter()
                    .map(|r| r.value.len())
                    .collect::<Vec<_>>(),
                sizes
            );

            let removed: Vec<Arc<str>> = vec!["x".into(), "y".into()];
            let delta = delta_response("type.googleapis.com/t", "n", &resources, &removed);
            let delta = DeltaDiscoveryResponse::decode(checked(&delta)).unwrap();
            assert_eq!(delta.removed_resources, ["x", "y"]);
            assert_eq!(delta.resources.len(), sizes.len());
            for (got, want) in delta.resources.iter().zip(&resources) {
                assert_eq!(
                    (&*got.name, &got.version),
                    (&*want.name, &want.version.to_string())
                );
                assert_eq!(got.resource.as_ref().unwrap().encode_to_vec(), want.any);
            }
        }
    }

    #[test]
    fn large_bodies_are_shared_and_small_ones_coalesced() {
        let large = resource("large", 100_000);
        let small: Vec<_> = (0..100).map(|i| resource(&format!("s{i}"), 100)).collect();
        let frames = discovery_response("t", Version(0), "n", &small);
        assert_eq!(frames.chunks().len(), 1);
        let mut mixed = small;
        mixed.insert(50, large.clone());
        let frames = delta_response("t", "n", &mixed, &[]);
        assert_eq!(frames.chunks().len(), 3);
        assert_eq!(frames.chunks()[1].as_ptr(), large.any.as_ptr());
    }

    #[test]
    fn an_any_comes_apart_again() {
        let r = resource("a", 300);
        let (url, body) = r.parts();
        assert_eq!((url, body.len()), ("type.googleapis.com/t", 300));
        let broken = Resource::new(
            "b".into(),
            Bytes::from_static(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff]),
            Arc::from([]),
        );
        assert_eq!(broken.parts(), ("", Bytes::new()));
        let long = Resource::new(
            "c".into(),
            Bytes::from_static(&[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ]),
            Arc::from([]),
        );
        assert_eq!(long.parts(), ("", Bytes::new()));
    }
}
