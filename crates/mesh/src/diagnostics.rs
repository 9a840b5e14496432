//! Problems with what declares services.

use std::collections::{BTreeMap, BTreeSet};

use pilotfish_config::{ClusterId, Diagnostic, ObjectKey};

use crate::{Registry, Resolution, Text, World};

/// Everything that is wrong, sorted, each once.
pub(crate) fn all(world: &World) -> Vec<Diagnostic> {
    let mut found = BTreeSet::new();
    let mut say = |diagnostic: Diagnostic| {
        let key = diagnostic.object.as_ref();
        let object = key.and_then(|key| world.snapshot.get(key));
        let origin = object.and_then(|object| object.origin.clone());
        found.insert(diagnostic.from_origin(origin));
    };
    let mut owners: BTreeMap<(ClusterId, &Text), &ObjectKey> = BTreeMap::new();
    for service in world.ordered.iter() {
        world.view().service(&service.id, &mut say);
        if service.resolution == Resolution::Alias && world.aliases.resolve(&service.id).is_none() {
            let ring = Diagnostic::warning(
                "alias-ring",
                "external names lead back to this service",
                "the name resolves to nothing",
            );
            say(ring.of(service.source.clone()).at("spec.externalName"));
        }
        if service.registry != Registry::Kubernetes {
            continue;
        }
        for address in &service.addresses {
            let first = *owners
                .entry((service.source.cluster, address))
                .or_insert(&service.source);
            if *first != service.source {
                let shared = Diagnostic::warning(
                    "shared-cluster-ip",
                    format!("{first} has address {address} as well"),
                    "connections to the address go to the older service",
                );
                say(shared.of(service.source.clone()).at("spec.clusterIP"));
            }
        }
    }
    found.into_iter().collect()
}
