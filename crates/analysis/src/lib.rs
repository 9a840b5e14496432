//! What is wrong with a mesh as a whole: everything that is ignored, dropped or shadowed, said aloud.
//!
//! Mistakes within one object are found when it is read (`config`). What shows only when objects are seen together is
//! found here, from a [`World`], by a list of independent checks. Each reads the world through a `Scene`, which records
//! the kinds of objects it read; an [`Analyzer`] runs those checks again whose kinds have changed since, and no others.
//! A check that looks at each object on its own runs for the objects that changed, unless others that it read did too.
//! Nothing here is on the way of a push: whoever wants to know asks.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod claims;
mod conflicts;
mod credentials;
mod destination_rules;
mod exports;
mod gateways;
mod listeners;
mod report;
mod scene;
mod servers;
mod services;
mod sidecars;
mod virtual_services;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};

use pilotfish_config::{ClusterId, Diagnostic, Kind, Object, ObjectKey, Snapshot};
use pilotfish_mesh::World;

use report::Report;
pub use scene::Proxy;
use scene::{Changes, Reads, Scene};

/// One check: everything it finds goes into the report.
enum Check {
    /// Of the mesh as a whole.
    Whole(fn(&Scene<'_>, &mut Report)),
    /// Of each object of a kind on its own. What it reads of other objects it reads through the scene.
    Each(Kind, for<'w> fn(&Scene<'w>, &'w Object, &mut Report)),
}

use Check::{Each, Whole};

/// All checks. They know nothing of each other; their order does not matter.
const CHECKS: &[Check] = &[
    Whole(services::declarations),
    Each(Kind::Service, services::ports),
    Each(Kind::Service, services::selector),
    Each(Kind::ServiceEntry, services::selector),
    Each(Kind::EndpointSlice, services::slice),
    Whole(services::untranslated),
    Whole(listeners::outbound),
    Whole(listeners::inbound),
    Whole(conflicts::entries),
    Each(Kind::VirtualService, virtual_services::references),
    Each(Kind::VirtualService, virtual_services::bindings),
    Each(Kind::VirtualService, virtual_services::protocols),
    Whole(virtual_services::delegates),
    Whole(claims::hosts),
    Whole(claims::gateways),
    Each(Kind::DestinationRule, destination_rules::hosts),
    Each(Kind::DestinationRule, destination_rules::selector),
    Whole(destination_rules::merging),
    Whole(gateways::workloads),
    Whole(gateways::unused),
    Whole(servers::merging),
    Whole(credentials::gateways),
    Each(Kind::DestinationRule, credentials::destination_rule),
    Whole(sidecars::selectors),
    Whole(sidecars::egress),
    Whole(workloads::entries),
    Each(Kind::VirtualService, exports::namespaces),
    Each(Kind::DestinationRule, exports::namespaces),
    Each(Kind::ServiceEntry, exports::namespaces),
];

/// What a check found, by object where it looks at each on its own, and what it read to find it.
#[derive(Debug, Default)]
struct Outcome {
    reads: Reads,
    found: BTreeMap<Option<ObjectKey>, BTreeSet<Diagnostic>>,
}

impl Outcome {
    fn keep(&mut self, key: Option<ObjectKey>, scene: &Scene<'_>, report: Report) {
        self.reads = self.reads.with(scene.take_reads());
        if report.found.is_empty() {
            self.found.remove(&key);
        } else {
            self.found.insert(key, report.found);
        }
    }
}

/// Remembers what each check found, so that a change costs the checks that read something of its kind; and of checks
/// that look at each object on its own, where nothing else they read has changed, the objects that did.
#[derive(Debug, Default)]
pub struct Analyzer {
    seen: Option<(Snapshot, Vec<Proxy>)>,
    outcomes: Vec<Option<Outcome>>,
}

impl Analyzer {
    /// Everything that is wrong with a world in which these proxies are connected, sorted, each once. Give worlds of one
    /// control plane only: its settings are taken to stay the same.
    pub fn update(&mut self, world: &World, proxies: &[Proxy]) -> Vec<Diagnostic> {
        let changes = match &self.seen {
            Some((before, known)) => Changes::between(before, world.snapshot(), known == proxies),
            None => Changes::everything(),
        };
        let scene = Scene::new(world, proxies);
        self.outcomes.resize_with(CHECKS.len(), || None);
        for (check, outcome) in CHECKS.iter().zip(&mut self.outcomes) {
            run(check, outcome, &changes, &scene);
        }
        self.seen = Some((world.snapshot().clone(), proxies.to_vec()));
        let outcomes = self.outcomes.iter().flatten();
        let found: BTreeSet<&Diagnostic> =
            outcomes.flat_map(|o| o.found.values().flatten()).collect();
        found.into_iter().cloned().collect()
    }
}

/// Brings what one check found up to date.
fn run(check: &Check, outcome: &mut Option<Outcome>, changes: &Changes, scene: &Scene<'_>) {
    let known = outcome
        .take()
        .filter(|known| !known.reads.overlap(changes.kinds));
    let fresh = known.is_none();
    let mut now = known.unwrap_or_default();
    match check {
        Whole(check) if fresh => {
            let mut report = Report::default();
            check(scene, &mut report);
            now.keep(None, scene, report);
        }
        Whole(_) => {}
        Each(kind, check) => {
            let mut one = |key: &ObjectKey, object: Option<&Object>| {
                let mut report = Report::default();
                if let Some(object) = object {
                    check(scene, object, &mut report);
                }
                now.keep(Some(key.clone()), scene, report);
            };
            if fresh {
                for object in scene.unrecorded().in_cluster(*kind, ClusterId::CONFIG) {
                    one(&object.key, Some(object));
                }
            } else {
                let ours = |key: &&ObjectKey| key.kind == *kind && key.cluster.is_config();
                for key in changes.keys.iter().filter(ours) {
                    one(key, scene.unrecorded().get(key).map(|o| &**o));
                }
            }
        }
    }
    *outcome = Some(now);
}

/// Everything that is wrong with a world, sorted, each once.
pub fn analyze(world: &World) -> Vec<Diagnostic> {
    Analyzer::default().update(world, &[])
}
