//! Clusters that objects come from.

use crate::Text;
use std::cmp::Ordering;
use std::fmt;
use std::sync::OnceLock;

/// How many names there can be in the life of a process, besides the config cluster.
const MOST: usize = 1024;

/// The names, in the order in which they were first heard. A place that is taken stays so: an id means the same for ever.
static NAMES: [OnceLock<Text>; MOST] = [const { OnceLock::new() }; MOST];

/// A cluster. Small, since every key has one. The order is that of names, with the config cluster before all others, so
/// that nothing depends on which one was heard of first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ClusterId(u16);

impl ClusterId {
    /// The cluster that the configuration comes from, and everything else that says nothing of clusters. Its name is a
    /// setting of the control plane.
    pub const CONFIG: Self = Self(0);

    /// The cluster of this name, which is not the config cluster; `None` if there have been too many.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().zip(1..).find_map(|(place, id)| {
            let known = place.get_or_init(|| Text::from(name));
            (**known == *name).then_some(Self(id))
        })
    }

    /// Its name; `None` for the config cluster.
    pub fn name(self) -> Option<&'static Text> {
        let index = usize::from(self.0).checked_sub(1)?;
        NAMES.get(index)?.get()
    }

    /// Whether it is the config cluster.
    pub const fn is_config(self) -> bool {
        self.0 == 0
    }
}

impl Ord for ClusterId {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.0, other.0) {
            (a, b) if a == b => Ordering::Equal,
            (0, _) => Ordering::Less,
            (_, 0) => Ordering::Greater,
            _ => self.name().cmp(&other.name()),
        }
    }
}

impl PartialOrd for ClusterId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({:?})", self.name().map_or("", |name| &**name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, ObjectKey};

    #[test]
    fn ids_are_ordered_by_name() {
        let (west, east) = (
            ClusterId::named("order-west").unwrap(),
            ClusterId::named("order-east").unwrap(),
        );
        assert!(east < west, "whichever was heard of first");
        assert!(ClusterId::CONFIG < east && ClusterId::default().is_config());
        assert_eq!(ClusterId::named("order-west"), Some(west));
        assert_eq!(
            (west.name().map(|n| &**n), ClusterId::CONFIG.name()),
            (Some("order-west"), None)
        );
    }

    #[test]
    fn a_key_is_no_larger_for_its_cluster() {
        assert_eq!(size_of::<ObjectKey>(), 24);
        let mut key = ObjectKey::new(Kind::Pod, "shop", "web");
        assert_eq!(key.to_string(), "Pod/shop/web");
        key.cluster = ClusterId::named("shown").unwrap();
        assert_eq!(key.to_string(), "Pod/shop/web@shown");
    }
}
