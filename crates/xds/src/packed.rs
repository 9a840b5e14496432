//! Resources kept as what they do not have in common with others of their type.
//!
//! The clusters of a mesh say nearly the same, and so do its endpoints and virtual hosts: most of their bytes stand in any
//! other as well. A [`Packer`] keeps a sample of each type, and a resource refers to the sample for what it shares with it
//! (LZ4 with a dictionary). It is unpacked whenever it is written into a response.
//!
//! Resources are made while somebody waits for them, mostly many who are sent the same. Packing and unpacking were a tenth of
//! what connecting costs, so resources wait as they are until [`Packer::pack_waiting`] is called in a quiet moment.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use lz4_flex::block::{compress_with_dict, decompress_into_with_dict};

use crate::frame::decode_any;
use crate::resource::Resource;
use crate::type_url::TypeUrl;

/// Resources of at least this many bytes are handed over to the transport as they are (see `parts`) and stay whole; smaller
/// ones are copied.
pub(crate) const SHARE_FROM: usize = 4096;
/// What is shorter is not worth it.
const SHORT: usize = 128;
/// A sample grows by what is unlike it, up to this many bytes.
const SAMPLE: usize = 16 * 1024;

/// The bytes of a resource.
pub(crate) enum Content {
    Whole(Bytes),
    Packed(Packed),
}

/// Bytes that refer to a sample.
pub(crate) struct Packed {
    sample: Arc<[u8]>,
    bytes: Box<[u8]>,
    /// Unpacked.
    len: u16,
}

impl Packed {
    /// The bytes, which are shorter than [`SHARE_FROM`], as long as `into` is.
    fn unpack(&self, into: &mut [u8]) {
        // Cannot fail: it was read back when it was packed.
        let read = decompress_into_with_dict(&self.bytes, into, &self.sample);
        debug_assert!(read.is_ok_and(|len| len == into.len()));
    }
}

impl Content {
    /// All of it, if it is not packed.
    pub(crate) fn whole(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Packed(_) => None,
        }
    }

    /// All of it. Shares the bytes, unless they are packed.
    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes.clone(),
            Self::Packed(packed) => {
                let mut bytes = vec![0; usize::from(packed.len)];
                packed.unpack(&mut bytes);
                bytes.into()
            }
        }
    }

    /// Calls `take` with all of it.
    pub(crate) fn with<T>(&self, take: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Whole(bytes) => take(bytes),
            Self::Packed(packed) => {
                let mut room = [0; SHARE_FROM];
                let bytes = &mut room[..usize::from(packed.len)];
                packed.unpack(bytes);
                take(bytes)
            }
        }
    }
}

/// Samples by type: what resources are packed with. Which one a resource refers to is nowhere to be seen.
#[derive(Default)]
pub struct Packer {
    samples: Mutex<Vec<Sample>>,
    /// Resources that are yet to be packed. Those that nobody uses any more are packed no more.
    waiting: Mutex<Vec<Weak<Resource>>>,
}

/// What resources of a type look like.
struct Sample {
    type_url: TypeUrl,
    bytes: Arc<[u8]>,
    /// How many have been unlike it. Each sample lives as long as what refers to it, so there must not be many: the first of
    /// those is learned from, the second, the fourth, the eighth and so on.
    misfits: u32,
}

impl Packer {
    /// Packs a resource when the time has come, if it may be packed at all.
    pub(crate) fn wait(&self, resource: &Arc<Resource>, len: usize) {
        if (SHORT..SHARE_FROM).contains(&len) {
            self.waiting().push(Arc::downgrade(resource));
        }
    }

    /// How many resources wait to be packed.
    pub fn len_waiting(&self) -> usize {
        self.waiting().len()
    }

    /// Packs what waits, which takes some microseconds for each. Whoever sends one meanwhile is not kept waiting.
    pub fn pack_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        for resource in waiting.iter().filter_map(Weak::upgrade) {
            resource.repack(|any, framed| self.pack(decode_any(any).0, framed));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Weak<Resource>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packs bytes of a type, if that is worth it.
    pub(crate) fn pack(&self, type_url: &str, bytes: Bytes) -> Content {
        let type_url = TypeUrl::parse(type_url);
        // No copy of a private key outlives its resource.
        let packable = type_url != TypeUrl::Secret;
        if !packable || !(SHORT..SHARE_FROM).contains(&bytes.len()) {
            return Content::Whole(bytes);
        }
        let sample = self.sample(&type_url);
        let packed = compress_with_dict(&bytes, &sample);
        if sample.is_empty() || packed.len() > bytes.len() / 3 {
            self.learn(type_url, &bytes);
        }
        if packed.len() > bytes.len() / 4 * 3 {
            return Content::Whole(bytes);
        }
        let packed = Packed {
            sample,
            bytes: packed.into(),
            len: bytes.len() as u16,
        };
        let mut room = [0; SHARE_FROM];
        let read = &mut room[..bytes.len()];
        match decompress_into_with_dict(&packed.bytes, read, &packed.sample) {
            Ok(_) if *read == *bytes => Content::Packed(packed),
            _ => Content::Whole(bytes),
        }
    }

    fn samples(&self) -> MutexGuard<'_, Vec<Sample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sample(&self, type_url: &TypeUrl) -> Arc<[u8]> {
        let samples = self.samples();
        let known = samples.iter().find(|known| known.type_url == *type_url);
        known.map(|known| known.bytes.clone()).unwrap_or_default()
    }

    /// Takes note of a resource that is unlike the sample. If the sample would become too large, it begins anew.
    fn learn(&self, type_url: TypeUrl, bytes: &[u8]) {
        let mut samples = self.samples();
        let Some(known) = samples.iter_mut().find(|known| known.type_url == type_url) else {
            samples.push(Sample {
                type_url,
                bytes: bytes.into(),
                misfits: 0,
            });
            return;
        };
        known.misfits = known.misfits.saturating_add(1);
        if known.misfits.is_power_of_two() {
            known.bytes = if known.bytes.len() + bytes.len() > SAMPLE {
                bytes.into()
            } else {
                [&*known.bytes, bytes].concat().into()
            };
        }
    }
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLUSTERS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

    fn is_packed(content: &Content) -> bool {
        matches!(content, Content::Packed(_))
    }

    fn alike(name: &str) -> Bytes {
        let common: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        let common = common.join(" setting ");
        format!("{name} {common} {name}").into()
    }

    #[test]
    fn the_second_of_a_kind_is_a_fraction_of_the_first() {
        let packer = Packer::default();
        let _ = packer.pack(CLUSTERS, alike("first"));
        let Content::Packed(second) = packer.pack(CLUSTERS, alike("second")) else {
            panic!("it is packed");
        };
        assert!(
            second.bytes.len() * 10 < usize::from(second.len),
            "{}",
            second.bytes.len()
        );
        let content = Content::Packed(second);
        assert_eq!(content.bytes(), alike("second"));
        content.with(|bytes| assert_eq!(bytes, alike("second")));
    }

    #[test]
    fn types_have_samples_of_their_own_and_secrets_none() {
        let packer = Packer::default();
        let noise = |seed: u64| -> Bytes {
            let words =
                (0..60u64).map(|i| xxhash_rust::xxh3::xxh3_64_with_seed(&i.to_le_bytes(), seed));
            words.flat_map(u64::to_le_bytes).collect()
        };
        for type_url in [CLUSTERS, TypeUrl::Endpoints.as_str()] {
            assert!(!is_packed(&packer.pack(type_url, noise(1))));
            assert!(is_packed(&packer.pack(type_url, noise(1))));
            assert!(
                !is_packed(&packer.pack(type_url, noise(2))),
                "nothing in common"
            );
            assert!(
                is_packed(&packer.pack(type_url, noise(1))),
                "and nothing is forgotten"
            );
        }
        for _ in 0..2 {
            assert!(!is_packed(&packer.pack(TypeUrl::Secret.as_str(), noise(1))));
        }
        assert_eq!(packer.samples.lock().unwrap().len(), 2);
    }

    #[test]
    fn resources_are_packed_when_they_are_told_to_be_and_stay_what_they_are() {
        let packer = Packer::default();
        let any = |name: &str| crate::frame::encode_any(CLUSTERS, &alike(name));
        let make =
            |name: &str| Resource::to_be_packed(name.into(), &any(name), Arc::from([]), &packer);
        let all: Vec<_> = ["a", "b", "c"].map(make).into();
        drop(make("nobody has it any more"));
        let tiny = Resource::to_be_packed("t".into(), b"", Arc::from([]), &packer);
        let fields = |all: &[Arc<Resource>]| -> Vec<(Bytes, usize)> {
            all.iter()
                .map(|r| (r.field(true), r.field_len(true)))
                .collect()
        };
        let before = fields(&all);
        assert_eq!(packer.len_waiting(), 4);
        assert!(!all.iter().any(|r| r.is_packed()));
        packer.pack_waiting();
        assert_eq!(packer.len_waiting(), 0);
        assert!(all.iter().all(|r| r.is_packed()) && !tiny.is_packed());
        assert_eq!(fields(&all), before);
        assert_eq!(all[1].any(), any("b"));
    }

    #[test]
    fn samples_are_bounded() {
        let packer = Packer::default();
        for seed in 0..1000u64 {
            let words =
                (0..200u64).map(|i| xxhash_rust::xxh3::xxh3_64_with_seed(&i.to_le_bytes(), seed));
            let _ = packer.pack(CLUSTERS, words.flat_map(u64::to_le_bytes).collect());
            let samples = packer.samples.lock().unwrap();
            assert!(samples.iter().all(|sample| sample.bytes.len() <= SAMPLE));
        }
    }

    proptest! {
        #[test]
        fn what_is_unpacked_is_what_was_packed(
            all in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![0u8, 1, 2, 200]), 0..5000), 1..12)
        ) {
            let packer = Packer::default();
            for bytes in all {
                let content = packer.pack(CLUSTERS, bytes.clone().into());
                prop_assert_eq!(&content.bytes(), &bytes);
                prop_assert!(content.with(|read| read == bytes));
            }
        }
    }
}
