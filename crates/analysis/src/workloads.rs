//! WorkloadEntries that no service selects.

use pilotfish_config::Kind;
use pilotfish_config::ObjectKey;
use pilotfish_mesh::lookup;

use crate::report::Report;
use crate::scene::Scene;

/// An entry is an endpoint of those who select it, and of nobody else.
pub(crate) fn entries(scene: &Scene<'_>, report: &mut Report) {
    if scene.objects(Kind::WorkloadEntry).next().is_none() {
        return;
    }
    let mut selected: std::collections::BTreeSet<&ObjectKey> = std::collections::BTreeSet::new();
    for kind in [Kind::Service, Kind::ServiceEntry] {
        for object in scene.objects(kind) {
            if let Some(selector) = lookup::selector(object) {
                let found = scene.selected(&object.key.namespace, selector);
                // A Service means the workloads of its own cluster.
                let may = |key: &&ObjectKey| {
                    kind == Kind::ServiceEntry || key.cluster == object.key.cluster
                };
                selected.extend(found.into_iter().map(|o| &o.key).filter(may));
            }
        }
    }
    for object in scene.objects(Kind::WorkloadEntry) {
        if !selected.contains(&object.key) {
            report.warn(
                ("not-selected", object, "spec.labels"),
                "no Service or ServiceEntry of the namespace selects it",
                "it gets no traffic",
            );
        }
    }
}
