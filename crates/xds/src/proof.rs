//! Versions of clusters and of endpoints in incremental responses, which prove that the endpoints came after their cluster.
//!
//! A cluster that is sent anew warms until its endpoints come, even if those are the same as before. A client whose stream
//! breaks in between reports the new cluster and the old endpoints when it comes back, and by their content alone nothing
//! would be missing: the cluster would wait for ever. So the version of endpoints is made from their content and from the
//! version of the cluster of that name which the stream was sent last. If a client reports that version, the endpoints
//! reached it after that cluster, which is in use then.
//!
//! That holds as long as a version of a cluster stands for one time at which it was sent. The same content may be sent
//! several times: a client rejects a cluster and takes the endpoints that were meant for it, or a cluster changes and
//! changes back before its endpoints could follow. Whenever the client may hold endpoints of an earlier time ([`Doubt`]), the
//! cluster goes out under a version that is **marked**: the lower bits of the hash differ, the upper ones still say what it
//! is ([`Version::is_content_of`]). Clients report the mark when they come back, to whichever replica.
//!
//! Who holds no such version is sent the endpoints: those whose cluster the stream does not carry, and those that came with
//! the other variant of the protocol.

use crate::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::names::{NamePool, Names};
use crate::nonce::Nonce;
use crate::resource::{Resource, ResourceSet, Version};

/// Clusters in doubt that are remembered by name; of more than that, all are. Few: a first response has all clusters of a mesh,
/// and names take memory for every client.
const MAX_IN_DOUBT: usize = 64;
/// Marks that are told apart on one stream. Each is of one response, of this stream or of an earlier one, and lasts until
/// the cluster changes; endpoints of those that are forgotten are sent again when the client comes back.
const MAX_MARKS: usize = 16;

/// What tells one sending of a content from another; 0 is no mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(pub(crate) u16);

impl Mark {
    /// The mark of a response. Marks of two responses may be equal by chance, which matters only if both are of one client
    /// whose streams broke at two bad moments.
    pub(crate) fn of(nonce: Nonce) -> Self {
        let bits = xxhash_rust::xxh3::xxh3_64(nonce.to_string().as_bytes()) as u16;
        Self(bits.max(1))
    }
}

/// What versions are made from besides the content.
#[derive(Clone, Debug)]
pub(crate) enum Basis {
    /// Nothing: equal content is all there is to know.
    Content,
    /// Clusters: those in doubt are marked.
    Doubt(Doubt, Mark),
    /// Endpoints: these clusters, some of which were sent with marks.
    Clusters(ResourceSet, Marks),
}

impl Basis {
    /// A number that only equal bases share, if others may have the same.
    pub(crate) fn id(&self) -> u64 {
        match self {
            Self::Content | Self::Doubt(..) => 0,
            Self::Clusters(set, _) => set.id(),
        }
    }

    /// Whether what is made from it depends on nothing but its number.
    pub(crate) fn is_common(&self) -> bool {
        match self {
            Self::Content => true,
            Self::Doubt(..) => false,
            Self::Clusters(_, marks) => marks.is_empty(),
        }
    }

    /// Whether a client that reports this version needs nothing.
    pub(crate) fn is_proof(&self, held: Version, resource: &Resource) -> bool {
        match self {
            Self::Content => held == resource.version,
            Self::Doubt(..) => held.is_content_of(resource.version),
            Self::Clusters(..) => self.after_cluster(resource) == Some(held),
        }
    }

    /// The version that tells after which cluster endpoints come, if the stream carries that cluster.
    pub(crate) fn after_cluster(&self, endpoints: &Resource) -> Option<Version> {
        let Self::Clusters(set, marks) = self else {
            return None;
        };
        let cluster = set.get(&endpoints.name)?;
        let sent = cluster.version.marked(marks.get(&endpoints.name)?);
        Some(endpoints.version.after(sent))
    }

    /// The versions to send these under, if they are not those of their content.
    pub(crate) fn stamps(&self, resources: &[Arc<Resource>]) -> Option<Box<[Version]>> {
        match self {
            Self::Content => None,
            Self::Doubt(doubt, mark) => {
                let stamp = |r: &Arc<Resource>| {
                    let mark = if doubt.has(&r.name) {
                        *mark
                    } else {
                        Mark::default()
                    };
                    r.version.marked(mark)
                };
                Some(resources.iter().map(stamp).collect())
            }
            Self::Clusters(set, _) if set.id() == 0 => None,
            Self::Clusters(..) => {
                let stamp = |r: &Arc<Resource>| self.after_cluster(r).unwrap_or(r.version);
                Some(resources.iter().map(stamp).collect())
            }
        }
    }
}

/// Clusters for which a client may hold endpoints that came at another time than with the cluster it holds: on an earlier
/// stream, or on this one and not acknowledged yet.
#[derive(Clone, Debug)]
pub(crate) enum Doubt {
    /// These.
    Names(BTreeSet<Text>),
    /// Any.
    All,
}

impl Default for Doubt {
    fn default() -> Self {
        Self::Names(BTreeSet::new())
    }
}

impl Doubt {
    /// Takes note of clusters that are sent.
    pub(crate) fn add<'a>(&mut self, names: impl Iterator<Item = &'a Text>) {
        let Self::Names(doubtful) = self else { return };
        for name in names {
            if doubtful.len() == MAX_IN_DOUBT {
                *self = Self::All;
                return;
            }
            doubtful.insert(name.clone());
        }
    }

    /// Whether it is about nothing.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Names(names) if names.is_empty())
    }

    /// Whether it is about a cluster of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Names(names) => names.contains(name),
            Self::All => true,
        }
    }
}

/// The marks under which a client holds clusters. Names are sets that streams share: after an upgrade, all clusters of all
/// proxies may be marked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    known: Vec<(Mark, Names)>,
    /// Those with a mark that was forgotten.
    unknown: Names,
}

impl Marks {
    /// Whether no cluster is marked.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.unknown.is_empty()
    }

    /// The mark of a cluster, if it is known.
    fn get(&self, name: &str) -> Option<Mark> {
        if let Some((mark, _)) = self.known.iter().find(|(_, names)| names.contains(name)) {
            return Some(*mark);
        }
        (!self.unknown.contains(name)).then(Mark::default)
    }

    /// Takes note that the client has, or is sent, clusters with these marks.
    pub(crate) fn set(&mut self, marked: Vec<(Mark, Text)>, pool: &NamePool) {
        let mut anew: BTreeMap<Mark, Vec<Text>> = BTreeMap::new();
        for (mark, name) in marked {
            for (_, names) in &mut self.known {
                names.remove(&name);
            }
            self.unknown.remove(&name);
            if mark != Mark::default() {
                anew.entry(mark).or_default().push(name);
            }
        }
        for (mark, names) in anew {
            match self.known.iter_mut().find(|(known, _)| *known == mark) {
                Some((_, known)) => {
                    for name in names {
                        known.insert(name);
                    }
                }
                None => self.known.push((mark, names.into_iter().collect())),
            }
        }
        self.known.retain(|(_, names)| !names.is_empty());
        while self.known.len() > MAX_MARKS {
            let (_, names) = self.known.remove(0);
            for name in names.iter() {
                self.unknown.insert(name.clone());
            }
        }
        for (_, names) in &mut self.known {
            pool.share(names);
        }
        pool.share(&mut self.unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(mark: u16, names: &[&str]) -> Vec<(Mark, Text)> {
        let each = names.iter().map(|name| (Mark(mark), Text::from(*name)));
        each.collect()
    }

    #[test]
    fn a_mark_leaves_the_content_to_be_seen() {
        let (one, other) = (Version::of(b"one"), Version::of(b"other"));
        let sent = one.marked(Mark(7));
        assert!(sent != one && sent.is_content_of(one) && one.is_content_of(one));
        assert!(!sent.is_content_of(other));
        assert_eq!(sent.mark_of(one), Mark(7));
    }

    #[test]
    fn the_last_mark_of_a_name_counts_and_too_many_are_forgotten() {
        let (pool, mut marks) = (NamePool::default(), Marks::default());
        marks.set(marked(1, &["a", "b"]), &pool);
        marks.set(marked(2, &["b"]), &pool);
        assert_eq!(marks.get("a"), Some(Mark(1)));
        assert_eq!(marks.get("b"), Some(Mark(2)));
        assert_eq!(marks.get("c"), Some(Mark(0)));
        for mark in 10..10 + MAX_MARKS as u16 {
            marks.set(marked(mark, &[&mark.to_string()]), &pool);
        }
        assert_eq!((marks.get("a"), marks.get("b")), (None, None));
        assert_eq!(marks.get("10"), Some(Mark(10)));
        marks.set(marked(0, &["a"]), &pool);
        assert_eq!(marks.get("a"), Some(Mark(0)));
    }

    #[test]
    fn more_than_some_are_all() {
        let names: Vec<Text> = (0..=MAX_IN_DOUBT).map(|n| n.to_string().into()).collect();
        let mut doubt = Doubt::default();
        doubt.add(names[1..].iter());
        assert!(doubt.has("1") && !doubt.has("0"));
        doubt.add(names.iter());
        assert!(doubt.has("anything"));
    }
}
