//! VirtualServices that claim the same host.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::VirtualService;
use pilotfish_config::networking::overlap::takes_everything;
use pilotfish_mesh::{ExportTo, Text, rules};

use crate::report::Report;
use crate::scene::{Scene, both_visible};
use crate::virtual_services::exported;

fn specs(objects: &[Arc<Object>]) -> Vec<(&Arc<Object>, &VirtualService)> {
    let specs = objects.iter();
    specs
        .filter_map(|o| Some((o, o.get::<VirtualService>()?)))
        .collect()
}

fn host_field(scene: &Scene<'_>, object: &Object, spec: &VirtualService, name: &Text) -> String {
    let at = spec
        .hosts
        .iter()
        .position(|h| scene.resolve(h, object) == *name);
    at.map_or_else(|| "spec.hosts".to_owned(), |i| format!("spec.hosts[{i}]"))
}

/// Of several for one host of the mesh a proxy follows the oldest that it sees.
pub(crate) fn hosts(scene: &Scene<'_>, report: &mut Report) {
    for (name, ranked) in scene.virtual_services() {
        let specs = specs(ranked);
        for (i, (object, spec)) in specs.iter().enumerate() {
            let own = exported(scene, object, spec);
            let older = specs[..i].iter().find(|(older, theirs)| {
                let export = exported(scene, older, theirs);
                both_visible(&export, &older.key.namespace, &own, &object.key.namespace)
            });
            if let Some((older, _)) = older {
                report.error(
                    (
                        "host-claimed",
                        object,
                        &host_field(scene, object, spec, name),
                    ),
                    format!("{}, which is older, claims host {name} as well", older.key),
                    "proxies that see both ignore these routes",
                );
            }
        }
    }
}

/// At a gateway the routes of all that name a host are put one after another: what follows a catch-all is lost.
pub(crate) fn gateways(scene: &Scene<'_>, report: &mut Report) {
    for (gateway, ranked) in scene.gateway_virtual_services() {
        let mut full: BTreeMap<Text, (&Arc<Object>, ExportTo)> = BTreeMap::new();
        for (object, spec) in specs(ranked) {
            let own = exported(scene, object, spec);
            for written in &spec.hosts {
                let name = scene.resolve(written, object);
                if let Some((older, theirs)) = full.get(&name) {
                    let both =
                        both_visible(theirs, &older.key.namespace, &own, &object.key.namespace);
                    if both && !spec.http.is_empty() {
                        report.warn(
                            ("unreachable-route", object, "spec.http"),
                            format!("{}, which is older, takes everything for {name} at gateway {gateway}", older.key),
                            "these routes are never used there",
                        );
                    }
                    continue;
                }
                let as_written =
                    |name: &String| *rules::gateway_ref(name, &object.key.namespace) == **gateway;
                let own_name = spec.gateways.iter().find(|g| as_written(g));
                let last = spec.http.iter().any(|route| {
                    own_name.is_some_and(|own_name| takes_everything(route, own_name))
                });
                if last {
                    full.insert(name, (object, own.clone()));
                }
            }
        }
    }
}
