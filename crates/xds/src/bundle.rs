//! Resources that are sent together, listed once for all clients that get the same.

use crate::Text;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::names::NamePool;
use crate::parts::Parts;
use crate::proof::Basis;
use crate::resource::{Resource, ResourceSet, Version};
use crate::subscription::Subscription;

/// Part of a response.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    pub(crate) resources: Box<[Arc<Resource>]>,
    /// The version of each in an incremental response, where that is not the one of its content.
    pub(crate) stamps: Option<Box<[Version]>>,
    /// Names that were asked for and are not there.
    pub(crate) missing: Vec<Text>,
    /// Depends on what is in it, not on the order, so that versions of bundles can be added.
    pub(crate) version: Version,
    /// Bytes of the resources in a response of either protocol.
    pub(crate) sotw_len: usize,
    pub(crate) delta_len: usize,
    /// How it is cut in a long response of either protocol.
    sotw_parts: OnceLock<Parts>,
    delta_parts: OnceLock<Parts>,
}

impl Bundle {
    pub(crate) fn new(
        resources: Vec<Arc<Resource>>,
        missing: Vec<Text>,
        basis: &Basis,
    ) -> Arc<Self> {
        let mut version = Version(0);
        let (mut sotw_len, mut delta_len) = (0, 0);
        for resource in &resources {
            let one = xxh3_64_with_seed(resource.name.as_bytes(), resource.version.0);
            version = Version(version.0.wrapping_add(one));
            sotw_len += resource.field_len(false);
            delta_len += resource.field_len(true);
        }
        Arc::new(Self {
            stamps: basis.stamps(&resources),
            resources: resources.into(),
            missing,
            version,
            sotw_len,
            delta_len,
            sotw_parts: OnceLock::new(),
            delta_parts: OnceLock::new(),
        })
    }

    /// The parts of which it consists in a response.
    pub(crate) fn parts(&self, delta: bool) -> &Parts {
        let parts = if delta {
            &self.delta_parts
        } else {
            &self.sotw_parts
        };
        parts.get_or_init(|| Parts::new(self, delta))
    }

    /// The version of several that are sent together.
    pub(crate) fn version_of(bundles: &[Arc<Self>]) -> Version {
        let sum = bundles
            .iter()
            .fold(0u64, |sum, b| sum.wrapping_add(b.version.0));
        Version(sum)
    }
}

/// What a bundle was made from: a set of resources, the set of names that chose among them (0 for all), whether a name
/// stands for all within it, and what versions are made from. The empty set is the same for every type.
type Key = (u64, u64, bool, u64);

/// What streams share: sets of names, and the bundles that are being sent.
///
/// When a thousand proxies connect, those of a scope are sent the same; it is put together by the first of them. A bundle
/// lives as long as somebody is being sent it.
#[derive(Debug, Default)]
pub struct Pool {
    pub(crate) names: NamePool,
    bundles: Mutex<HashMap<Key, Weak<Bundle>>>,
}

impl Pool {
    /// All that a client who holds nothing is to be sent of a set.
    pub(crate) fn bundle(
        &self,
        set: &ResourceSet,
        wanted: &Subscription,
        basis: &Basis,
    ) -> Arc<Bundle> {
        let names = if wanted.is_wildcard() {
            Some(0)
        } else {
            wanted.named().id()
        };
        let Some(names) = names else {
            return wanted.select(set, basis);
        };
        let key = (set.id(), names, wanted.is_namespaced(), basis.id());
        if let Some(held) = self.bundles().get(&key).and_then(Weak::upgrade) {
            return held;
        }
        // Made without the lock: two that come at the same time may both make it, which costs less than all waiting.
        let bundle = wanted.select(set, basis);
        let mut bundles = self.bundles();
        bundles.retain(|_, bundle| bundle.strong_count() > 0);
        bundles.insert(key, Arc::downgrade(&bundle));
        bundle
    }

    fn bundles(&self) -> MutexGuard<'_, HashMap<Key, Weak<Bundle>>> {
        self.bundles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::type_url::TypeUrl;

    #[test]
    fn types_do_not_share_what_is_missing() {
        let pool = Pool::default();
        let missing = |type_url: &TypeUrl| {
            let mut wanted = Subscription::new(type_url);
            let names = (0..100).map(|i| format!("name-{i}")).collect();
            wanted.replace(pool.names.adopt(names));
            let bundle = pool.bundle(&ResourceSet::new(), &wanted, &Basis::Content);
            (bundle, wanted)
        };
        let (endpoints, _kept) = missing(&TypeUrl::Endpoints);
        let (again, _) = missing(&TypeUrl::Endpoints);
        let (hosts, _) = missing(&TypeUrl::VirtualHost);
        assert!(Arc::ptr_eq(&endpoints, &again));
        assert_eq!((endpoints.missing.len(), hosts.missing.len()), (100, 0));
    }
}
