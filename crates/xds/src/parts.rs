//! A bundle cut into parts, each of which is put together once for all that are being sent it.
//!
//! A part is as much as HTTP/2 puts into a few frames. What is small is copied into one buffer with its neighbours, because a
//! frame of its own costs more than the copy; a large resource is handed over as it is. When many clients are sent the same
//! at once, a part is kept by the first who needs it and shared by the others: otherwise copying takes a quarter of all that
//! connecting costs. Whoever is alone keeps nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};

use crate::bundle::Bundle;
use crate::packed::SHARE_FROM;
use crate::resource::Version;

/// A part is at most this long: four frames of HTTP/2, which cuts it without copying. What goes with each part, from one
/// task to the other and into HTTP/2's queue, goes with every fourth frame only.
pub(crate) const PIECE: usize = 64 * 1024;

/// How much all bundles together keep. Beyond that, everybody copies.
const MOST_KEPT: usize = 32 * 1024 * 1024;

/// How much they keep now.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// A place in a bundle: which resource, and how far into its field of a response.
type Place = (usize, usize);

/// The parts of a bundle in responses of one variant of the protocol.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Where each part begins; the last one is where all ends.
    cuts: Box<[Place]>,
    /// The parts that somebody put together while others were being sent the same.
    kept: Box<[OnceLock<Bytes>]>,
}

impl Parts {
    /// Cuts between resources and within large ones. A version that is written over another is never cut.
    pub(crate) fn new(bundle: &Bundle, delta: bool) -> Self {
        let (mut cuts, mut filled) = (vec![(0, 0)], 0);
        let mut cut = |place: Place| {
            if cuts.last() != Some(&place) {
                cuts.push(place);
            }
        };
        for (at, resource) in bundle.resources.iter().enumerate() {
            let len = resource.field_len(delta);
            let copied = if len < SHARE_FROM {
                len
            } else {
                // A version of its own stands before what can be shared.
                let stamped = bundle.stamp(at, delta).is_some();
                if stamped {
                    resource.version_at().end
                } else {
                    0
                }
            };
            if filled + copied > PIECE {
                cut((at, 0));
                filled = 0;
            }
            filled += copied;
            if copied < len {
                (copied..len)
                    .step_by(PIECE)
                    .for_each(|from| cut((at, from)));
                cut((at + 1, 0));
                filled = 0;
            }
        }
        cut((bundle.resources.len(), 0));
        Self {
            kept: (1..cuts.len()).map(|_| OnceLock::new()).collect(),
            cuts: cuts.into(),
        }
    }

    /// A part; none after the last.
    pub(crate) fn get(&self, at: usize, bundle: &Arc<Bundle>, delta: bool) -> Option<Bytes> {
        let kept = self.kept.get(at)?;
        if let Some(part) = kept.get() {
            return Some(part.clone());
        }
        let (from, to) = (*self.cuts.get(at)?, *self.cuts.get(at + 1)?);
        if let Some(part) = shared(bundle, from, to, delta) {
            return Some(part);
        }
        // No longer than it is: what is kept is counted by its length. It begins with a resource, since only large ones are cut.
        let whole = || bundle.resources[from.0..to.0].iter();
        let len: usize = whole().map(|r| r.field_len(delta)).sum();
        let mut out = BytesMut::with_capacity(len + to.1);
        for (at, resource) in (from.0..).zip(whole()) {
            bundle.put(&mut out, at, 0..resource.field_len(delta), delta);
        }
        if to.1 > 0 {
            bundle.put(&mut out, to.0, 0..to.1, delta);
        }
        let part = out.freeze();
        // Besides the one that is asking, somebody else is being sent this bundle.
        if Arc::strong_count(bundle) > 1 && reserve(part.len()) && kept.set(part.clone()).is_err() {
            release(part.len());
        }
        Some(part)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        release(
            self.kept
                .iter()
                .filter_map(OnceLock::get)
                .map(Bytes::len)
                .sum(),
        );
    }
}

/// The part between two places, if it is one of a large resource: those never reach beyond it.
fn shared(bundle: &Bundle, from: Place, to: Place, delta: bool) -> Option<Bytes> {
    let resource = bundle.resources.get(from.0)?;
    let stamp = bundle.stamp(from.0, delta);
    let own = stamp.map_or(0, |_| resource.version_at().end);
    let len = resource.field_len(delta);
    let end = if to.0 == from.0 { to.1 } else { len };
    (len >= SHARE_FROM && from.1 >= own).then(|| resource.field(delta).slice(from.1..end))
}

fn reserve(len: usize) -> bool {
    let before = KEPT.fetch_add(len, Ordering::Relaxed);
    if before + len > MOST_KEPT {
        release(len);
        return false;
    }
    true
}

fn release(len: usize) {
    KEPT.fetch_sub(len, Ordering::Relaxed);
}

impl Bundle {
    /// The version to write over that of a resource.
    fn stamp(&self, at: usize, delta: bool) -> Option<Version> {
        let stamps = self.stamps.as_ref().filter(|_| delta)?;
        stamps.get(at).copied()
    }

    /// Appends a part of a resource's field, which begins before its version or after it.
    pub(crate) fn put(&self, out: &mut BytesMut, at: usize, part: Range<usize>, delta: bool) {
        let (resource, start) = (&self.resources[at], out.len());
        resource.put(out, part.clone(), delta);
        if let Some(version) = self.stamp(at, delta)
            && part.start == 0
        {
            let place = resource.version_at();
            out[start + place.start..start + place.end].copy_from_slice(&version.text());
        }
    }
}
