//! The immutable view of everything the store holds.

use std::sync::Arc;

use crate::kind::Kind;
use crate::mesh::{MeshConfig, MeshNetworks};
use crate::object::{Object, ObjectKey, SpecOf};

/// All objects at one moment. Cloning shares everything.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The objects by key, hence by kind, namespace and name.
    pub objects: imbl::OrdMap<ObjectKey, Arc<Object>>,
    /// The mesh configuration, over istiod's defaults.
    pub mesh: Arc<MeshConfig>,
    /// The networks.
    pub networks: Arc<MeshNetworks>,
    /// Grows with every change.
    pub version: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            objects: imbl::OrdMap::new(),
            mesh: Arc::new(MeshConfig::standard()),
            networks: Arc::default(),
            version: 0,
        }
    }
}

impl Snapshot {
    /// The object of that name.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// All objects of one kind, by namespace and name.
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

    /// All objects of one kind in one namespace, by name.
    pub fn in_namespace<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let first = ObjectKey::new(kind, namespace, "");
        self.objects
            .range(first..)
            .map(|(_, object)| object)
            .take_while(move |object| object.kind() == kind && &*object.key.namespace == namespace)
    }
}
