//! Destination rules, virtual services, gateways and sidecars, indexed by what they are written for.

use std::sync::Arc;

use pilotfish_config::Object;

use crate::Text;

/// Objects in order of precedence: older first, then by name, then by namespace.
pub type Ranked = Arc<Vec<Arc<Object>>>;

/// Sorts by age, name, namespace: the order in which objects win.
pub fn rank(objects: &mut [Arc<Object>]) {
    objects.sort_by(|a, b| {
        let key = |o: &Arc<Object>| {
            (
                o.meta.created.unwrap_or(0),
                o.key.name.clone(),
                o.key.namespace.clone(),
            )
        };
        key(a).cmp(&key(b))
    });
}

/// Reference to a gateway from a VirtualService in `namespace`: `mesh`, or `namespace/name`.
pub fn gateway_ref(reference: &str, namespace: &str) -> Text {
    if reference == "mesh" || reference.contains('/') {
        Text::from(reference)
    } else {
        Text::from(format!("{namespace}/{reference}"))
    }
}
