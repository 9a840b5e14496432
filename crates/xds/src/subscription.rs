//! What a client wants of one type: everything, some names, or nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::names::{NamePool, Names};
use crate::type_url::TypeUrl;

/// The name that stands for all resources of a type.
pub const WILDCARD: &str = "*";

/// The names a client subscribed to on one stream for one type. Both protocols change it, each by its own rules.
#[derive(Clone, Debug, Default)]
pub struct Subscription {
    wildcard: bool,
    /// Shared with other clients that subscribed to the same; copied before it changes.
    named: Arc<Names>,
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
    pub fn named(&self) -> &BTreeSet<Arc<str>> {
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
    pub(crate) fn add(&mut self, name: Arc<str>) -> bool {
        !self.named.contains(&name) && Arc::make_mut(&mut self.named).insert(name)
    }

    /// Keeps the resource's own copy of a name that is subscribed to.
    pub(crate) fn share(&mut self, name: &Arc<str>) {
        let other_copy = |held: &Arc<str>| !Arc::ptr_eq(held, name);
        if self.named.get(name).is_some_and(other_copy) {
            Arc::make_mut(&mut self.named).replace(name.clone());
        }
    }

    /// Holds the same names as others do, if somebody has them.
    pub(crate) fn pool(&mut self, pool: &NamePool) {
        pool.share(&mut self.named);
    }

    /// Removes a name; true if it was there.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.named.contains(name) && Arc::make_mut(&mut self.named).remove(name)
    }

    /// Replaces the names by these; returns those that are new.
    pub(crate) fn replace(&mut self, names: BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let added = names.difference(&self.named).cloned().collect();
        self.named = Arc::new(names);
        added
    }
}
