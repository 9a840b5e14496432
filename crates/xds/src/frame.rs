//! Response messages, assembled piece by piece from resources that are encoded already.
//!
//! Protobuf fields concatenate, so a response is: a few small fields, then one field per resource, which it brings along.
//! Nothing is put together before the transport asks: a waiting response is a list of references, whatever its size.
//! A short response is one piece, a long one consists of the parts of its bundles. The first piece starts with gRPC's
//! five-byte message prefix.

use crate::Text;
use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

use crate::bundle::Bundle;
use crate::parts::PIECE;
use crate::resource::Version;

/// gRPC's prefix: one byte "not compressed", four bytes length.
const PREFIX: usize = 5;

/// A message of so many bytes is one piece, which nobody shares: it takes no longer to copy than to look for.
const SHORT: usize = 16 * 1024;

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
        }
    }
}

/// What is left of a message.
#[derive(Debug)]
pub struct Pieces {
    rest: Frames,
    /// The next part: which bundle, and which of it.
    at: (usize, usize),
    left: usize,
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let piece = if self.rest.len <= SHORT {
            self.whole()
        } else {
            self.head()
                .or_else(|| self.part())
                .or_else(|| self.tail())?
        };
        self.left = self.left.saturating_sub(piece.len());
        Some(piece)
    }
}

impl Pieces {
    /// Bytes in the pieces that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// All of a short message.
    fn whole(&mut self) -> Bytes {
        let Frames {
            head,
            bundles,
            delta,
            tail,
            len,
        } = std::mem::take(&mut self.rest);
        let mut out = BytesMut::with_capacity(len);
        out.put_slice(&head);
        for bundle in &bundles {
            for (at, resource) in bundle.resources.iter().enumerate() {
                bundle.put(&mut out, at, 0..resource.field_len(delta), delta);
            }
        }
        out.put_slice(&tail);
        out.freeze()
    }

    fn head(&mut self) -> Option<Bytes> {
        let head = std::mem::take(&mut self.rest.head);
        (!head.is_empty()).then_some(head)
    }

    fn part(&mut self) -> Option<Bytes> {
        let delta = self.rest.delta;
        while let Some(bundle) = self.rest.bundles.get(self.at.0) {
            if let Some(part) = bundle.parts(delta).get(self.at.1, bundle, delta) {
                self.at.1 += 1;
                return Some(part);
            }
            self.at = (self.at.0 + 1, 0);
        }
        None
    }

    fn tail(&mut self) -> Option<Bytes> {
        let tail = &mut self.rest.tail;
        let piece = tail.split_to(tail.len().min(PIECE));
        (!piece.is_empty()).then_some(piece)
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
    removed: impl IntoIterator<Item = &'a Text>,
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

/// The key of the names that a request subscribes to, in both variants.
const NAME_KEY: u8 = 3 << 3 | 2;

/// What can be said of an encoded request without decoding it.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    /// How many top-level fields it has. Lets a request with millions of names be refused before it takes memory.
    pub(crate) fields: usize,
    /// Where the names are that it subscribes to, if they stand together.
    pub(crate) names: Range<usize>,
}

impl Outline {
    pub(crate) fn of(message: &[u8]) -> Self {
        let (mut outline, mut together, mut parsed) = (Self::default(), true, 0);
        for Field { key, at, end } in fields(message) {
            outline.fields += 1;
            parsed = end;
            if key != u64::from(NAME_KEY) {
                continue;
            }
            let names = &mut outline.names;
            if names.end == 0 {
                names.start = at;
                names.end = at;
            }
            together &= names.end == at && message[at] == NAME_KEY;
            names.end = end;
        }
        // There may be more of them in what only the decoder can read.
        if !together || parsed < message.len() {
            outline.names = 0..0;
        }
        outline
    }
}

/// The names in that part of a request.
pub(crate) fn names(listed: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    fields(listed).map(|Field { at, end, .. }| {
        let (_, start) = get_varint(listed, at + 1).unwrap_or((0, end));
        &listed[start..end]
    })
}

/// A top-level field of a message: its key, where it begins, and where it ends.
struct Field {
    key: u64,
    at: usize,
    end: usize,
}

/// All up to the first that does not parse. That one does not decode either, and the decoder's message is the better one.
fn fields(message: &[u8]) -> impl Iterator<Item = Field> + Clone {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from;
        let (key, start) = get_varint(message, at)?;
        let end = match key & 7 {
            0 => get_varint(message, start)?.1,
            1 => start.checked_add(8)?,
            2 => {
                let (len, start) = get_varint(message, start)?;
                start.checked_add(usize::try_from(len).ok()?)?
            }
            5 => start.checked_add(4)?,
            _ => return None,
        };
        from = end;
        (end <= message.len()).then_some(Field { key, at, end })
    })
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
    use crate::proof::{Basis, Marks};
    use crate::resource::{Resource, ResourceSet};

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

            let removed: Vec<Text> = vec!["x".into(), "y".into()];
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
        let many = vec![small.clone(); 6].concat();
        let frames = discovery_response("t", Version(0), "n", bundles(&many));
        let sizes: Vec<usize> = frames.into_pieces().map(|p| p.len()).collect();
        // The head, and the rest in pieces which are full but for what did not fit.
        assert_eq!(sizes.len(), 3, "{sizes:?}");
        assert!((PIECE - 200..=PIECE).contains(&sizes[1]), "{sizes:?}");
        let mut mixed = small;
        mixed.insert(50, large.clone());
        let frames = delta_response("t", "n", bundles(&mixed), &[]);
        let pieces: Vec<Bytes> = frames.into_pieces().collect();
        // The head, what comes before, the body in two pieces, and what comes after.
        assert_eq!(pieces.len(), 5);
        assert_eq!(pieces[2].as_ptr(), large.field(true).as_ptr());
    }

    #[test]
    fn who_is_sent_the_same_shares_what_was_copied_and_who_is_alone_keeps_nothing() {
        let small: Vec<_> = (0..4000).map(|i| resource(&format!("s{i}"), 100)).collect();
        let all = bundles(&small);
        let pieces = |of: &Bundles| -> Vec<Bytes> {
            let frames = delta_response("t", "n", of.clone(), &[]);
            frames.into_pieces().skip(1).collect()
        };
        let addresses =
            |of: &[Bytes]| -> Vec<*const u8> { of.iter().map(|p| p.as_ptr()).collect() };
        let (first, second) = (pieces(&all), pieces(&all));
        assert!(first.len() > 5);
        assert_eq!(addresses(&first), addresses(&second));
        let alone = |of: Bundles| -> Vec<Bytes> {
            let frames = delta_response("t", "n", of, &[]);
            frames.into_pieces().skip(1).collect()
        };
        let weak = Arc::downgrade(&all[0]);
        assert_eq!(alone(all), first);
        assert!(weak.upgrade().is_none());
        let unshared = bundles(&small);
        let held = Arc::downgrade(&unshared[0]);
        let mut sent = delta_response("t", "n", unshared, &[])
            .into_pieces()
            .skip(1);
        let part = sent.next().expect("a part");
        assert_eq!(part, first[0]);
        assert!(part.is_unique(), "nobody else needs it");
        let (len, room) = (part.len(), part.try_into_mut().map(|own| own.capacity()));
        assert_eq!(room, Ok(len), "it takes what it counts for");
        drop(sent);
        assert!(held.upgrade().is_none());
    }

    #[test]
    fn versions_are_written_over_wherever_a_piece_ends() {
        // Heads of all lengths put the version of what follows on either side of the end of a piece, and across it.
        let fills = |i: usize| resource(&format!("f{i:02}"), 1000);
        let (each, around) = (fills(0).field_len(true), 300);
        let fillers = (PIECE - around) / each;
        let rest = PIECE - fillers * each;
        for filler in rest - around..rest + around {
            let mut all: Vec<_> = (0..fillers).map(fills).collect();
            all.push(resource("filler", filler));
            all.push(resource("large", 3 * PIECE));
            all.push(resource("small", 10));
            let clusters: ResourceSet = all.iter().skip(1).cloned().collect();
            let basis = Basis::Clusters(clusters, Marks::default());
            let bundle = Bundle::new(all.clone(), Vec::new(), &basis);
            let delta = delta_response("t", "n", Bundles::from_iter([bundle.clone()]), &[]);
            let delta = DeltaDiscoveryResponse::decode(checked(&delta)).unwrap();
            for (got, want) in delta.resources.iter().zip(&all) {
                let stamp = basis.after_cluster(want).unwrap_or(want.version);
                assert_eq!(stamp == want.version, *want.name == *"f00");
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
        assert_eq!((url.as_str(), body.len()), ("type.googleapis.com/t", 300));
        let broken = Resource::new(
            "b".into(),
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff],
            Arc::from([]),
        );
        assert_eq!(broken.parts(), (String::new(), Bytes::new()));
        let long = Resource::new(
            "c".into(),
            &[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
            Arc::from([]),
        );
        assert_eq!(long.parts(), (String::new(), Bytes::new()));
    }
}
