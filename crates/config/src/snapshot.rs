//! The immutable view of everything the store holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Text;
use crate::cluster::ClusterId;
use crate::kind::Kind;
use crate::mesh::{MeshConfig, MeshNetworks};
use crate::object::{Object, ObjectKey, SpecOf};

/// All objects at one moment. Cloning shares everything.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The objects by key, hence by kind, cluster, namespace and name.
    pub objects: imbl::OrdMap<ObjectKey, Arc<Object>>,
    /// The mesh configuration, over istiod's defaults.
    pub mesh: Arc<MeshConfig>,
    /// The networks.
    pub networks: Arc<MeshNetworks>,
    /// The trust domains of other clusters than the config cluster. One of which nothing is known has that of the mesh.
    pub trust_domains: Arc<BTreeMap<ClusterId, Text>>,
    /// Grows with every change.
    pub version: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            objects: imbl::OrdMap::new(),
            mesh: Arc::new(MeshConfig::standard()),
            networks: Arc::default(),
            trust_domains: Arc::default(),
            version: 0,
        }
    }
}

impl Snapshot {
    /// The object of that name.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// All objects of one kind, whatever their cluster, by cluster, namespace and name.
    pub fn list(&self, kind: Kind) -> impl Iterator<Item = &Arc<Object>> {
        let first = ObjectKey::new(kind, "", "");
        self.objects
            .range(first..)
            .map(|(_, object)| object)
            .take_while(move |object| object.kind() == kind)
    }

    /// All objects of the kind whose spec is `T`, with that spec.
    pub fn typed<T: SpecOf + 'static>(&self) -> impl Iterator<Item = (&Arc<Object>, &T)> {
        self.list(T::KIND)
            .filter_map(|object| Some((object, object.get::<T>()?)))
    }

    /// All objects of one kind in one cluster, by namespace and name.
    pub fn in_cluster(&self, kind: Kind, cluster: ClusterId) -> impl Iterator<Item = &Arc<Object>> {
        let first = ObjectKey::new(kind, "", "").of(cluster);
        self.objects
            .range(first..)
            .map(|(_, object)| object)
            .take_while(move |object| object.kind() == kind && object.key.cluster == cluster)
    }

    /// The clusters that have objects of a kind.
    pub fn clusters(&self, kind: Kind) -> impl Iterator<Item = ClusterId> {
        let next = move |after: Option<ClusterId>| {
            // No namespace comes after this one.
            let last = after.map(|cluster| ObjectKey::new(kind, "\u{10ffff}", "").of(cluster));
            let first = last.unwrap_or_else(|| ObjectKey::new(kind, "", ""));
            let (key, _) = self.objects.range(first..).next()?;
            (key.kind == kind).then_some(key.cluster)
        };
        std::iter::successors(next(None), move |cluster| next(Some(*cluster)))
    }

    /// All objects of one kind in one namespace of the config cluster, by name.
    pub fn in_namespace<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        self.in_namespace_of(kind, ClusterId::CONFIG, namespace)
    }

    /// All objects of one kind in one namespace of a cluster, by name.
    pub fn in_namespace_of<'a>(
        &'a self,
        kind: Kind,
        cluster: ClusterId,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let first = ObjectKey::new(kind, namespace, "").of(cluster);
        self.objects
            .range(first..)
            .map(|(_, object)| object)
            .take_while(move |object| {
                let key = &object.key;
                key.kind == kind && key.cluster == cluster && &*key.namespace == namespace
            })
    }
}

/// Every second item, then the others. Trees that are filled in order stay half empty, because a node that is full is cut in
/// the middle and the left half never sees another key; this way the others find the room that the first have left.
pub fn every_second_first<T>(items: &[T]) -> impl Iterator<Item = &T> {
    let others = items.iter().skip(1).step_by(2);
    items.iter().step_by(2).chain(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_once() {
        assert_eq!(every_second_first::<u8>(&[]).count(), 0);
        let order: Vec<u8> = every_second_first(&[0, 1, 2, 3, 4]).copied().collect();
        assert_eq!(order, [0, 2, 4, 1, 3]);
    }
}
