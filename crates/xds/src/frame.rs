//! Response messages, assembled piece by piece from resources that are encoded already.
//!
//! Protobuf fields concatenate, so a response is: a few small fields, then one field per resource, which it brings along.
//! Nothing is put together before the transport asks: a waiting response is a list of references, whatever its size.
//! Large bodies are handed over as they are (`Bytes` of the resource itself); small ones are copied into a piece, because a
//! piece of its own costs more than the copy. The first piece starts with gRPC's five-byte message prefix.

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

use crate::bundle::Bundle;
use crate::resource::{Resource, Version};

/// Resources of at least this many bytes are shared, smaller ones are copied.
pub const SHARE_FROM: usize = 4096;

/// A piece is at most this long: what HTTP/2 puts into one frame. Memory for it is at hand, since the last one was just
/// given back; larger buffers come from the kernel, which clears them first.
const PIECE: usize = 16 * 1024;

/// gRPC's prefix: one byte "not compressed", four bytes length.
const PREFIX: usize = 5;

/// One gRPC message that is yet to be written.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// Prefix and leading fields.
    head: Bytes,
    bundles: Bundles,
    /// Resources carry names and versions.
    delta: bool,
    /// Fields after the resources.
    tail: Bytes,
    len: usize,
}

/// The resources of a response.
pub(crate) type Bundles = SmallVec<[Arc<Bundle>; 2]>;

impl Frames {
    fn new(head: &BytesMut, bundles: Bundles, delta: bool, tail: BytesMut) -> Self {
        let resources = |b: &Arc<Bundle>| if delta { b.delta_len } else { b.sotw_len };
        let message = head.len() + bundles.iter().map(resources).sum::<usize>() + tail.len();
        let mut prefixed = BytesMut::with_capacity(PREFIX + head.len());
        prefixed.put_u8(0);
        // A message of 4 GiB cannot be expressed; the length is then wrong and the client ends the stream.
        prefixed.put_u32(u32::try_from(message).unwrap_or(u32::MAX));
        prefixed.put_slice(head);
        Self {
            head: prefixed.freeze(),
            bundles,
            delta,
            tail: tail.freeze(),
            len: PREFIX + message,
        }
    }

    /// Bytes in all pieces.
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
        for piece in self.clone().into_pieces() {
            all.put_slice(&piece);
        }
        all.freeze().slice(PREFIX.min(self.len)..)
    }

    /// The message in pieces, each made when it is asked for.
    pub fn into_pieces(self) -> Pieces {
        Pieces {
            left: self.len,
            rest: self,
            at: (0, 0),
            written: 0,
        }
    }
}

/// What is left of a message.
#[derive(Debug)]
pub struct Pieces {
    rest: Frames,
    /// The next resource: which bundle, and which of it.
    at: (usize, usize),
    /// How much of it was written.
    written: usize,
    left: usize,
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let piece = self.shared().unwrap_or_else(|| self.gather());
        self.left = self.left.saturating_sub(piece.len());
        (!piece.is_empty()).then_some(piece)
    }
}

impl Pieces {
    /// The next resource, unless all are written, and the version to write instead of its own.
    fn resource(&mut self) -> Option<(&Arc<Resource>, Option<Version>)> {
        let bundles = &self.rest.bundles;
        while bundles.get(self.at.0)?.resources.len() <= self.at.1 {
            self.at = (self.at.0 + 1, 0);
        }
        let bundle = bundles.get(self.at.0)?;
        let stamps = bundle.stamps.as_ref().filter(|_| self.rest.delta);
        let stamp = stamps.and_then(|stamps| stamps.get(self.at.1));
        Some((bundle.resources.get(self.at.1)?, stamp.copied()))
    }

    /// A piece of a resource that is worth sharing, if that is next.
    fn shared(&mut self) -> Option<Bytes> {
        let (delta, from, head) = (self.rest.delta, self.written, self.rest.head.len());
        let (resource, stamp) = self.resource()?;
        let len = resource.field(delta).len();
        let is_own = stamp.is_some() && from < resource.version_at().end;
        if head > 0 || is_own || len - from < SHARE_FROM {
            return None;
        }
        let to = len.min(from + PIECE);
        let piece = resource.shared_field(delta).slice(from..to);
        self.advance(to, len);
        Some(piece)
    }

    /// The resource that is next was written up to `to` of `len`.
    fn advance(&mut self, to: usize, len: usize) {
        self.written = if to < len { to } else { 0 };
        self.at.1 += usize::from(to == len);
    }

    /// Copies what is small until the piece is full or something to share is next.
    fn gather(&mut self) -> Bytes {
        if self.left == 0 {
            return Bytes::new();
        }
        let mut out = BytesMut::with_capacity(self.left.min(PIECE));
        out.put_slice(&std::mem::take(&mut self.rest.head));
        let (delta, mut from) = (self.rest.delta, self.written);
        while out.len() < PIECE {
            let room = PIECE - out.len();
            let Some((resource, stamp)) = self.resource() else {
                let tail = &mut self.rest.tail;
                out.put_slice(&tail.split_to(tail.len().min(room)));
                break;
            };
            let field = resource.field(delta);
            // A version of its own stands before what can be shared.
            let own_to = stamp.map_or(0, |_| resource.version_at().end);
            let end = match field.len() {
                len if len - from < SHARE_FROM => len,
                _ if from < own_to => own_to,
                _ => break,
            };
            let (to, len) = (end.min(from + room), field.len());
            let at = out.len();
            out.put_slice(&field[from..to]);
            if let Some(stamp) = stamp {
                restamp(&mut out[at..], from, resource.version_at(), stamp);
            }
            self.advance(to, len);
            from = self.written;
        }
        out.freeze()
    }
}

/// Writes a version over the one that stands at `place` of a field, of which `part` is what begins at `from`.
fn restamp(part: &mut [u8], from: usize, place: Range<usize>, version: Version) {
    let (start, end) = (place.start.max(from), place.end.min(from + part.len()));
    if start < end {
        let digits = &version.text()[start - place.start..end - place.start];
        part[start - from..end - from].copy_from_slice(digits);
    }
}

fn key(out: &mut BytesMut, field: u8, len: usize) {
    out.put_u8(field << 3 | 2);
    put_varint(out, len as u64);
}

fn text(out: &mut BytesMut, field: u8, text: &str) {
    key(out, field, text.len());
    out.put_slice(text.as_bytes());
}

/// A message that is encoded already.
pub(crate) fn whole(message: &[u8]) -> Frames {
    Frames::new(&BytesMut::new(), Bundles::new(), false, message.into())
}

/// Encodes a `DiscoveryResponse`.
pub(crate) fn discovery_response(
    type_url: &str,
    version: Version,
    nonce: &str,
    resources: Bundles,
) -> Frames {
    let mut head = BytesMut::new();
    text(&mut head, 1, &version.to_string());
    text(&mut head, 4, type_url);
    text(&mut head, 5, nonce);
    Frames::new(&head, resources, false, BytesMut::new())
}

/// Encodes a `DeltaDiscoveryResponse`.
pub(crate) fn delta_response<'a>(
    type_url: &str,
    nonce: &str,
    resources: Bundles,
    removed: impl IntoIterator<Item = &'a Arc<str>>,
) -> Frames {
    let (mut head, mut tail) = (BytesMut::new(), BytesMut::new());
    text(&mut head, 4, type_url);
    text(&mut head, 5, nonce);
    for name in removed {
        text(&mut tail, 6, name);
    }
    Frames::new(&head, resources, true, tail)
}

/// Encodes a resource as it stands in a `DeltaDiscoveryResponse`. The bytes from the first number on are its field in a
/// `DiscoveryResponse` (the same field number, without name and version), those from the second number on the `Any`.
pub(crate) fn encode_resource(name: &str, version: Version, any: &[u8]) -> (Bytes, u32, u32) {
    let len = field_len(Version::LEN) + field_len(name.len()) + field_len(any.len());
    let mut out = BytesMut::with_capacity(field_len(len));
    key(&mut out, 2, len);
    text(&mut out, 1, &version.to_string());
    text(&mut out, 3, name);
    // Names are a few kilobytes at most.
    let sotw_at = out.len() as u32;
    key(&mut out, 2, any.len());
    let any_at = out.len() as u32;
    out.put_slice(any);
    (out.freeze(), sotw_at, any_at)
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
pub(crate) fn decode_any(any: &[u8]) -> (&str, &[u8]) {
    let (mut url, mut body, mut at): (&str, &[u8], usize) = ("", &[], 0);
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
            (0x12, Some(bytes)) => body = bytes,
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
pub(crate) fn field_len(content: usize) -> usize {
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
    use crate::proof::Basis;
    use crate::resource::ResourceSet;

    fn bundles(resources: &[Arc<Resource>]) -> Bundles {
        let bundle = Bundle::new(resources.to_vec(), Vec::new(), &Basis::Content);
        Bundles::from_iter([bundle])
    }

    fn resource(name: &str, size: usize) -> Arc<Resource> {
        Resource::wrap(
            "type.googleapis.com/t",
            name.into(),
            &vec![7; size],
            Arc::from([]),
        )
    }

    fn checked(frames: &Frames) -> Bytes {
        let all: Vec<u8> = frames.clone().into_pieces().flatten().collect();
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
            let sotw = discovery_response(
                "type.googleapis.com/t",
                Version(1),
                "n",
                bundles(&resources),
            );
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
            let delta = delta_response("type.googleapis.com/t", "n", bundles(&resources), &removed);
            let delta = DeltaDiscoveryResponse::decode(checked(&delta)).unwrap();
            assert_eq!(delta.removed_resources, ["x", "y"]);
            assert_eq!(delta.resources.len(), sizes.len());
            for (got, want) in delta.resources.iter().zip(&resources) {
                assert_eq!(
                    (&*got.name, &got.version),
                    (&*want.name, &want.version.to_string())
                );
                assert_eq!(got.resource.as_ref().unwrap().encode_to_vec(), want.any());
            }
        }
    }

    #[test]
    fn large_bodies_are_shared_and_small_ones_coalesced() {
        let large = resource("large", 100_000);
        let small: Vec<_> = (0..100).map(|i| resource(&format!("s{i}"), 100)).collect();
        let frames = discovery_response("t", Version(0), "n", bundles(&small));
        assert_eq!(frames.into_pieces().count(), 1);
        let many = [small.clone(), small.clone()].concat();
        let frames = discovery_response("t", Version(0), "n", bundles(&many));
        let sizes: Vec<usize> = frames.into_pieces().map(|p| p.len()).collect();
        assert_eq!(
            (sizes.len(), sizes[0]),
            (2, PIECE),
            "full before the next begins"
        );
        let mut mixed = small;
        mixed.insert(50, large.clone());
        let frames = delta_response("t", "n", bundles(&mixed), &[]);
        let pieces: Vec<Bytes> = frames.into_pieces().collect();
        // What comes before, the body in six pieces, and the little that is left of it with what comes after.
        assert_eq!(pieces.len(), 8);
        assert_eq!(pieces[1].as_ptr(), large.shared_field(true).as_ptr());
    }

    #[test]
    fn versions_are_written_over_wherever_a_piece_ends() {
        // Heads of all lengths put the version of what follows on either side of the end of a piece, and across it.
        for filler in 300..700 {
            let mut all: Vec<_> = (0..15).map(|i| resource(&format!("f{i}"), 1000)).collect();
            all.push(resource("filler", filler));
            all.push(resource("large", 3 * PIECE));
            all.push(resource("small", 10));
            let clusters: ResourceSet = all.iter().skip(1).cloned().collect();
            let basis = Basis::Clusters(clusters);
            let bundle = Bundle::new(all.clone(), Vec::new(), &basis);
            let delta = delta_response("t", "n", Bundles::from_iter([bundle.clone()]), &[]);
            let delta = DeltaDiscoveryResponse::decode(checked(&delta)).unwrap();
            for (got, want) in delta.resources.iter().zip(&all) {
                let stamp = basis.proof(want).unwrap_or(want.version);
                assert_eq!(stamp == want.version, *want.name == *"f0");
                assert_eq!(
                    (&*got.name, &got.version),
                    (&*want.name, &stamp.to_string())
                );
                assert_eq!(got.resource.as_ref().unwrap().encode_to_vec(), want.any());
            }
            let sotw = discovery_response("t", Version(0), "n", Bundles::from_iter([bundle]));
            let sotw = DiscoveryResponse::decode(checked(&sotw)).unwrap();
            assert_eq!(sotw.resources.len(), all.len());
        }
    }

    #[test]
    fn an_any_comes_apart_again() {
        let r = resource("a", 300);
        let (url, body) = r.parts();
        assert_eq!((url, body.len()), ("type.googleapis.com/t", 300));
        let broken = Resource::new(
            "b".into(),
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff],
            Arc::from([]),
        );
        assert_eq!(broken.parts(), ("", Bytes::new()));
        let long = Resource::new(
            "c".into(),
            &[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
            Arc::from([]),
        );
        assert_eq!(long.parts(), ("", Bytes::new()));
    }
}
