//! What a client wants of one type: everything, some names, or nothing.

use crate::Text;
use std::sync::Arc;

use crate::bundle::Bundle;
use crate::names::{NamePool, Names};
use crate::proof::Basis;
use crate::resource::{Resource, ResourceSet};
use crate::type_url::TypeUrl;

/// The name that stands for all resources of a type.
pub const WILDCARD: &str = "*";

/// The names that a request lists.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Without the wildcard.
    pub(crate) names: Names,
    /// The wildcard is among them.
    pub(crate) wildcard: bool,
}

impl Listed {
    /// As a request lists them, or as somebody holds them.
    pub(crate) fn of(mut list: Vec<String>, held: Option<Names>, pool: &NamePool) -> Self {
        let len = list.len();
        list.retain(|name| name != WILDCARD);
        Self {
            wildcard: list.len() < len,
            names: held.unwrap_or_else(|| pool.adopt(list)),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.wildcard
    }
}

/// The names a client subscribed to on one stream for one type. Both protocols change it, each by its own rules.
#[derive(Clone, Debug, Default)]
pub struct Subscription {
    wildcard: bool,
    /// Shared with other clients that subscribed to the same.
    named: Names,
    namespaced: bool,
}

impl Subscription {
    /// No subscription yet, of that type.
    pub(crate) fn new(type_url: &TypeUrl) -> Self {
        Self {
            namespaced: type_url.is_namespaced(),
            ..Self::default()
        }
    }

    /// Whether everything is wanted.
    pub fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    /// The names asked for, besides the wildcard.
    pub fn named(&self) -> &Names {
        &self.named
    }

    /// Whether a resource of that name is wanted.
    pub fn covers(&self, name: &str) -> bool {
        self.wildcard
            || self.named.contains(name)
            || (self.namespaced
                && name
                    .rsplit_once('/')
                    .is_some_and(|(ns, _)| self.named.contains(ns)))
    }

    pub(crate) fn is_namespaced(&self) -> bool {
        self.namespaced
    }

    /// Sets or clears the wildcard; true if that changed something.
    pub(crate) fn set_wildcard(&mut self, wildcard: bool) -> bool {
        std::mem::replace(&mut self.wildcard, wildcard) != wildcard
    }

    /// Adds a name; true if it is new.
    pub(crate) fn add(&mut self, name: Text) -> bool {
        self.named.insert(name)
    }

    /// Removes a name; true if it was there.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.named.remove(name)
    }

    /// Replaces the names by these.
    pub(crate) fn replace(&mut self, names: Names) {
        self.named = names;
    }

    /// Those of these names that were not asked for.
    pub(crate) fn new_among(&self, names: &Names) -> Vec<Text> {
        let is_new = |name: &&Text| !self.named.contains(name);
        names.iter().filter(is_new).cloned().collect()
    }

    /// Holds the same names as others do, if somebody has them.
    pub(crate) fn share(&mut self, pool: &NamePool) {
        pool.share(&mut self.named);
    }

    /// What a name stands for in a set: the resource of that name, and where names are namespaced all within it.
    pub(crate) fn resolve<'a>(
        &self,
        name: &str,
        set: &'a ResourceSet,
    ) -> impl Iterator<Item = &'a Arc<Resource>> + use<'a> {
        let prefix = self.namespaced.then(|| format!("{name}/"));
        let within = prefix.map(|prefix| set.with_prefix(prefix));
        set.get(name)
            .into_iter()
            .chain(within.into_iter().flatten())
    }

    /// Whether a name can be missing. A route table is no virtual host, so that it cannot.
    pub(crate) fn may_miss(&self, name: &str) -> bool {
        !self.namespaced || name.contains('/')
    }

    /// All of a set that is wanted, and the names that are not in it: everything, or what was named.
    pub(crate) fn select(&self, set: &ResourceSet, basis: &Basis) -> Arc<Bundle> {
        if self.wildcard {
            return Bundle::new(set.iter().cloned().collect(), Vec::new(), basis);
        }
        let (mut resources, mut missing) = (Vec::new(), Vec::new());
        for name in self.named.iter() {
            let before = resources.len();
            resources.extend(self.resolve(name, set).cloned());
            if resources.len() == before && self.may_miss(name) {
                missing.push(name.clone());
            }
        }
        // A virtual host may be named beside its table.
        if self.namespaced && self.named.len() > 1 {
            resources.sort_by(|a, b| a.name.cmp(&b.name));
            resources.dedup_by(|a, b| a.name == b.name);
        }
        Bundle::new(resources, missing, basis)
    }
}
