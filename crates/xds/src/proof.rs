//! Versions of endpoints in incremental responses, which prove that the endpoints came after their cluster.
//!
//! A cluster that is sent anew warms until its endpoints come, even if those are the same as before. A client whose stream
//! breaks in between reports the new cluster and the old endpoints when it comes back, and by their content alone nothing
//! would be missing: the cluster would wait for ever. So the version of endpoints is made from their content and from the
//! cluster of that name which the stream was sent last. If a client reports that version, the endpoints reached it after that
//! cluster, which is in use then.
//!
//! Who holds no such version is sent the endpoints: those whose cluster the stream does not carry, and those that came with
//! the other variant of the protocol.

use crate::Text;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::resource::{Resource, ResourceSet, Version};

/// Clusters sent before the client asked for endpoints that are remembered by name; of more than that, all are in doubt.
const MAX_EARLY: usize = 1000;

/// What versions are made from besides the content.
#[derive(Clone, Debug)]
pub(crate) enum Basis {
    /// Nothing: equal content is all there is to know.
    Content,
    /// These clusters.
    Clusters(ResourceSet),
}

impl Basis {
    /// A number that only equal bases share.
    pub(crate) fn id(&self) -> u64 {
        match self {
            Self::Content => 0,
            Self::Clusters(set) => set.id(),
        }
    }

    /// The version that a client reports if it needs nothing; `None` if none is proof of that.
    pub(crate) fn proof(&self, resource: &Resource) -> Option<Version> {
        match self {
            Self::Content => Some(resource.version),
            Self::Clusters(set) => {
                let cluster = set.get(&resource.name)?;
                Some(resource.version.after(cluster.version))
            }
        }
    }

    /// The versions to send these under, if they are not those of their content.
    pub(crate) fn stamps(&self, resources: &[Arc<Resource>]) -> Option<Box<[Version]>> {
        if self.id() == 0 {
            return None;
        }
        let stamp = |r: &Arc<Resource>| self.proof(r).unwrap_or(r.version);
        Some(resources.iter().map(stamp).collect())
    }
}

/// Clusters that a stream was sent before the client said which endpoints it holds. It may have rejected one of them on
/// another stream and taken the endpoints that came along: those are no proof that it has endpoints for the one it takes now.
#[derive(Debug)]
pub(crate) enum Early {
    /// These.
    Names(BTreeSet<Text>),
    /// Any.
    All,
}

impl Default for Early {
    fn default() -> Self {
        Self::Names(BTreeSet::new())
    }
}

impl Early {
    /// Takes note of clusters that are sent.
    pub(crate) fn add<'a>(&mut self, names: impl Iterator<Item = &'a Text>) {
        let Self::Names(early) = self else { return };
        early.extend(names.cloned());
        if early.len() > MAX_EARLY {
            *self = Self::All;
        }
    }

    /// Whether a cluster of that name may have been sent.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Names(names) => names.contains(name),
            Self::All => true,
        }
    }
}
