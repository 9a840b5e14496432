//! Resources and the immutable sets of them that the rest of the control plane hands to the wire.
//!
//! A resource is encoded once; every proxy that gets it shares the bytes. A set is a persistent map: the next generation
//! shares the nodes that did not change, so that comparing two generations costs what differs.

use crate::Text;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use smallvec::SmallVec;

use crate::packed::{Content, Packer};
use crate::proof::Mark;

/// Hash of a resource's content; equal bytes have equal versions across restarts and replicas, so that a proxy that
/// reconnects elsewhere is sent nothing it already holds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// Length in text.
    pub(crate) const LEN: usize = 16;

    /// The version of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(bytes))
    }

    /// The version of something that is of use only if it comes after something else.
    pub(crate) fn after(self, first: Self) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64_with_seed(
            &self.0.to_le_bytes(),
            first.0,
        ))
    }

    /// The version under which this content is sent if it has to be told from other times.
    pub(crate) fn marked(self, mark: Mark) -> Self {
        Self(self.0 ^ u64::from(mark.0))
    }

    /// The mark in a version of this content.
    pub(crate) fn mark_of(self, content: Self) -> Mark {
        Mark((self.0 ^ content.0) as u16)
    }

    /// Whether this is a version of that content, marked or not.
    pub(crate) fn is_content_of(self, content: Self) -> bool {
        (self.0 ^ content.0) >> u16::BITS == 0
    }

    /// What `Display` writes.
    pub(crate) fn text(self) -> [u8; Self::LEN] {
        std::array::from_fn(|i| b"0123456789abcdef"[(self.0 >> (60 - 4 * i)) as usize & 15])
    }

    /// Reads what `Display` writes; anything else is no version of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let plain =
            text.len() == Self::LEN && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if plain {
            u64::from_str_radix(text, 16).ok().map(Self)
        } else {
            None
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One generated resource, encoded once and shared by every proxy that gets it. Two resources are equal when name and
/// version are.
pub struct Resource {
    /// Name, unique within its type for one proxy.
    pub name: Text,
    /// Hash of its `Any`.
    pub version: Version,
    /// The resource as it stands in an incremental response; its end is what stands in a state-of-the-world response, and
    /// the end of that is an encoded `google.protobuf.Any`. How it is kept may change, what it is does not.
    framed: Mutex<Content>,
    /// The length of it all, and where these ends begin.
    len: u32,
    sotw_at: u32,
    any_at: u32,
    /// Names of the objects it was made from, for debug pages.
    pub sources: Arc<[Text]>,
}

impl Resource {
    /// A resource from an encoded `google.protobuf.Any`.
    pub fn new(name: Text, any: &[u8], sources: Arc<[Text]>) -> Arc<Self> {
        let version = Version::of(any);
        let (framed, sotw_at, any_at) = crate::frame::encode_resource(&name, version, any);
        Arc::new(Self {
            name,
            version,
            // A message of 4 GiB cannot be expressed.
            len: framed.len() as u32,
            framed: Mutex::new(Content::Whole(framed)),
            sotw_at,
            any_at,
            sources,
        })
    }

    /// The same, which will take less memory if it is like others that the packer has seen.
    pub fn to_be_packed(
        name: Text,
        any: &[u8],
        sources: Arc<[Text]>,
        packer: &Packer,
    ) -> Arc<Self> {
        let resource = Self::new(name, any, sources);
        packer.wait(&resource, resource.len as usize);
        resource
    }

    /// Exchanges how it is kept, if it is whole, for what `pack` makes of its `Any` and the whole.
    pub(crate) fn repack(&self, pack: impl FnOnce(&[u8], Bytes) -> Content) {
        let Some(whole) = self.framed().whole().cloned() else {
            return;
        };
        // Made without the lock: nobody waits for it.
        let content = pack(&whole[self.any_at as usize..], whole.clone());
        *self.framed() = content;
    }

    #[cfg(test)]
    pub(crate) fn is_packed(&self) -> bool {
        self.framed().whole().is_none()
    }

    fn framed(&self) -> MutexGuard<'_, Content> {
        self.framed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An encoded `google.protobuf.Any`.
    pub fn any(&self) -> Bytes {
        self.framed().bytes().slice(self.any_at as usize..)
    }

    /// The length of its field in a response.
    pub(crate) fn field_len(&self, delta: bool) -> usize {
        self.len as usize - self.field_at(delta)
    }

    /// Its field in a response, of which large ones share the bytes.
    pub(crate) fn field(&self, delta: bool) -> Bytes {
        self.framed().bytes().slice(self.field_at(delta)..)
    }

    /// Appends a part of its field in a response.
    pub(crate) fn put(&self, out: &mut BytesMut, part: Range<usize>, delta: bool) {
        let at = self.field_at(delta);
        self.framed()
            .with(|framed| out.put_slice(&framed[at + part.start..at + part.end]));
    }

    /// Where the version stands in its field of an incremental response.
    pub(crate) fn version_at(&self) -> Range<usize> {
        let end = self.sotw_at as usize - crate::frame::field_len(self.name.len());
        end - Version::LEN..end
    }

    fn field_at(&self, delta: bool) -> usize {
        if delta { 0 } else { self.sotw_at as usize }
    }

    /// A resource from an encoded message of a type: wraps it in `google.protobuf.Any`, copying it once.
    pub fn wrap(type_url: &str, name: Text, message: &[u8], sources: Arc<[Text]>) -> Arc<Self> {
        Self::new(name, &crate::frame::encode_any(type_url, message), sources)
    }

    /// Type URL and body of the `Any`; empty where the bytes are no `Any`.
    pub fn parts(&self) -> (String, Bytes) {
        let any = self.any();
        let (type_url, body) = crate::frame::decode_any(&any);
        (type_url.to_owned(), any.slice_ref(body))
    }

    /// The encoded message inside the `Any`.
    pub fn body(&self) -> Bytes {
        self.parts().1
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.name == other.name
    }
}

impl Eq for Resource {}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{} ({} bytes)",
            self.name,
            self.version,
            self.len - self.any_at
        )
    }
}

/// An immutable set, ordered by name. Cloning is O(1); changing a clone copies O(log n) nodes; comparing two sets skips
/// the nodes they share.
#[derive(Clone, Default)]
pub struct ResourceSet {
    map: OrdMap<Text, Arc<Resource>>,
    /// Sets with the same number are equal: clones that nobody has changed since.
    id: u64,
}

/// The number of a set that was just changed.
fn fresh_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl ResourceSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces the resource of that name.
    pub fn insert(&mut self, resource: Arc<Resource>) {
        self.id = fresh_id();
        self.map.insert(resource.name.clone(), resource);
    }

    /// Removes the resource of that name.
    pub fn remove(&mut self, name: &str) -> Option<Arc<Resource>> {
        let removed = self.map.remove(name);
        if removed.is_some() {
            self.id = fresh_id();
        }
        removed
    }

    /// The resource of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        self.map.get(name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.map.values()
    }

    /// All whose name starts with `prefix`, by name.
    pub fn with_prefix(&self, prefix: String) -> impl Iterator<Item = &Arc<Resource>> + use<'_> {
        let from = (
            std::ops::Bound::Included(prefix.as_str()),
            std::ops::Bound::Unbounded,
        );
        self.map
            .range::<_, str>(from)
            .map(|(_, r)| r)
            .take_while(move |r| r.name.starts_with(&prefix))
    }

    /// A number that only equal sets share; equal sets that were made apart have different ones.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl PartialEq for ResourceSet {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id || self.map == other.map
    }
}

impl Eq for ResourceSet {}

impl FromIterator<Arc<Resource>> for ResourceSet {
    fn from_iter<I: IntoIterator<Item = Arc<Resource>>>(resources: I) -> Self {
        Self {
            map: resources.into_iter().map(|r| (r.name.clone(), r)).collect(),
            id: fresh_id(),
        }
    }
}

impl fmt::Debug for ResourceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// All that a proxy may get of one type: sections with disjoint names, each shared with other proxies. Should two
/// sections hold one name after all, the first wins, since a response with a duplicate name is rejected as a whole.
#[derive(Clone, Debug)]
pub struct View {
    sections: SmallVec<[ResourceSet; 2]>,
    known: bool,
}

/// One difference between two views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// New, or with other content.
    Set(&'a Arc<Resource>),
    /// Gone; what it was.
    Removed(&'a Arc<Resource>),
}

impl<'a> Change<'a> {
    /// The name of the resource that differs.
    pub fn name(&self) -> &'a Text {
        match self {
            Self::Set(r) | Self::Removed(r) => &r.name,
        }
    }
}

impl Default for View {
    fn default() -> Self {
        Self::new([])
    }
}

impl View {
    /// A view of these sections. Put the large one first: looking up names in later sections costs a look-up in earlier ones.
    pub fn new(sections: impl IntoIterator<Item = ResourceSet>) -> Self {
        Self {
            sections: sections.into_iter().collect(),
            known: true,
        }
    }

    /// The answer for a type that the control plane does not serve.
    pub fn unknown() -> Self {
        Self {
            sections: SmallVec::new(),
            known: false,
        }
    }

    /// Whether the control plane serves the type at all.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// The resource of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        self.sections.iter().find_map(|s| s.get(name))
    }

    /// All, section by section, by name within each; no name twice.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.sections
            .iter()
            .enumerate()
            .flat_map(move |(i, s)| s.iter().filter(move |r| self.is_first(i, &r.name)))
    }

    /// All whose name starts with `prefix`; no name twice.
    pub fn with_prefix(&self, prefix: String) -> impl Iterator<Item = &Arc<Resource>> {
        self.sections.iter().enumerate().flat_map(move |(i, s)| {
            s.with_prefix(prefix.clone())
                .filter(move |r| self.is_first(i, &r.name))
        })
    }

    /// The first section, which is the large one.
    pub(crate) fn main(&self) -> Option<&ResourceSet> {
        self.sections.first()
    }

    /// All but the first section.
    pub(crate) fn others(&self) -> &[ResourceSet] {
        self.sections.get(1..).unwrap_or_default()
    }

    /// All that is in other sections than the first alone; no name twice.
    pub(crate) fn iter_others(&self) -> impl Iterator<Item = &Arc<Resource>> {
        (1..)
            .zip(self.others())
            .flat_map(move |(i, s)| s.iter().filter(move |r| self.is_first(i, &r.name)))
    }

    /// How many resources the sections hold.
    pub fn len(&self) -> usize {
        self.sections.iter().map(ResourceSet::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sections.iter().all(ResourceSet::is_empty)
    }

    fn is_first(&self, section: usize, name: &str) -> bool {
        self.sections
            .iter()
            .take(section)
            .all(|s| s.get(name).is_none())
    }

    /// What turns `self` into `newer`, no name twice. Costs what differs, given that sections keep their place.
    pub fn changes<'a>(&'a self, newer: &'a Self) -> impl Iterator<Item = Change<'a>> {
        static EMPTY: std::sync::LazyLock<ResourceSet> = std::sync::LazyLock::new(ResourceSet::new);
        let sections = self.sections.len().max(newer.sections.len());
        (0..sections).flat_map(move |i| {
            let old = self.sections.get(i).unwrap_or(&EMPTY);
            let new = newer.sections.get(i).unwrap_or(&EMPTY);
            let same = old.id == new.id;
            (!same)
                .then(|| old.map.diff(&new.map))
                .into_iter()
                .flatten()
                .filter_map(move |item| self.change(newer, i, &item))
        })
    }

    /// Judges a difference within one section by the views as a whole: a resource may move between sections.
    fn change<'a>(
        &'a self,
        newer: &'a Self,
        section: usize,
        item: &DiffItem<'a, 'a, Text, Arc<Resource>>,
    ) -> Option<Change<'a>> {
        match *item {
            DiffItem::Add(name, _) | DiffItem::Update { new: (name, _), .. } => {
                let new = newer.get(name)?;
                (newer.is_first(section, name) && self.get(name) != Some(new))
                    .then_some(Change::Set(new))
            }
            DiffItem::Remove(name, old) => match newer.get(name) {
                None => self.is_first(section, name).then_some(Change::Removed(old)),
                // It moved to an earlier section or was shadowed there: no other section reports it unless it differs there.
                Some(new) => {
                    let reported = newer.sections.iter().enumerate().any(|(i, s)| {
                        newer.is_first(i, name)
                            && s.get(name).is_some_and(|n| {
                                self.sections.get(i).and_then(|o| o.get(name)) != Some(n)
                            })
                    });
                    (!reported && self.is_first(section, name) && self.get(name) != Some(new))
                        .then_some(Change::Set(new))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn resource(name: &str, content: u8) -> Arc<Resource> {
        Resource::new(name.into(), &[10, content], Arc::from([]))
    }

    fn model(view: &View) -> BTreeMap<String, u64> {
        view.iter()
            .map(|r| (r.name.to_string(), r.version.0))
            .collect()
    }

    #[test]
    fn a_version_is_the_content_and_reads_back() {
        let version = Version::of(b"abc");
        assert_eq!(Version::parse(&version.to_string()), Some(version));
        assert_eq!(Version::of(b"abc").to_string(), "78af5f94892f3950");
        assert_eq!(&Version::of(b"abc").text(), b"78af5f94892f3950");
        for bad in [
            "",
            "1",
            "78AF5F94892F3950",
            "+8af5f94892f3950",
            "78af5f94892f39500",
        ] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn generations_differ_in_what_came_went_or_changed() {
        let old: ResourceSet = (0..10_000)
            .map(|i| resource(&format!("name-{i:06}"), 1))
            .collect();
        let mut new = old.clone();
        for i in [3, 5_000, 9_999] {
            new.insert(resource(&format!("name-{i:06}"), 2));
        }
        new.remove("name-007000");
        new.insert(resource("name-0070005", 1));
        let (old, new) = (View::new([old]), View::new([new]));
        let changes = old.changes(&new).map(|change| match change {
            Change::Set(new) => format!("+{}", new.name),
            Change::Removed(old) => format!("-{}", old.name),
        });
        let expected = [
            "+name-000003",
            "+name-005000",
            "-name-007000",
            "+name-0070005",
            "+name-009999",
        ];
        assert_eq!(changes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_resource_may_move_between_sections() {
        let a: ResourceSet = [resource("x", 1)].into_iter().collect();
        let (first, second) = (View::new([a.clone()]), View::new([ResourceSet::new(), a]));
        assert_eq!(first.changes(&second).count(), 0);
        assert_eq!(second.changes(&first).count(), 0);
    }

    proptest! {
        #[test]
        fn changes_turn_one_view_into_the_other(
            first in proptest::collection::vec((0u8..3, 0u16..60, 0u8..3), 0..80),
            edits in proptest::collection::vec((0u8..3, 0u16..60, 0u8..4), 0..40),
        ) {
            let mut sections = vec![ResourceSet::new(); 3];
            for (s, n, c) in first {
                sections[usize::from(s)].insert(resource(&format!("{n}"), c));
            }
            let old = View::new(sections.clone());
            for (s, n, c) in edits {
                if c == 3 {
                    sections[usize::from(s)].remove(&format!("{n}"));
                } else {
                    sections[usize::from(s)].insert(resource(&format!("{n}"), c));
                }
            }
            let new = View::new(sections);
            let mut patched = model(&old);
            let mut seen = std::collections::BTreeSet::new();
            for change in old.changes(&new) {
                prop_assert!(seen.insert(change.name().to_string()), "twice: {}", change.name());
                match change {
                    Change::Set(r) => { patched.insert(r.name.to_string(), r.version.0); }
                    Change::Removed(r) => { prop_assert!(patched.remove(&*r.name).is_some()); }
                }
            }
            prop_assert_eq!(patched, model(&new));
        }
    }
}
