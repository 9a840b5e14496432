//! Incremental state compared with what the same objects give from scratch, one sheet at a time.

use std::sync::{Arc, Weak};

use pilotfish_config::Snapshot;
use pilotfish_mesh::{Text, World};
use pilotfish_xds::{Change, Resource, ResourceSet, View};

use crate::engine::{Engine, lock};
use crate::memo::Memo;
use crate::section::Interners;
use crate::selectors::Distinctions;
use crate::sheet::{Sheet, Work};

/// What a look at one sheet found.
#[derive(Debug, Default)]
pub struct Audit {
    /// What the sheet is about.
    pub section: &'static str,
    /// Resources that were compared.
    pub resources: usize,
    /// Where the sheet was wrong.
    pub differences: Vec<Difference>,
    /// What tells proxies apart was wrong, so that some may have had the sheets of others.
    pub mixed_up: bool,
}

impl Audit {
    /// Whether all was as it should be.
    pub fn is_clean(&self) -> bool {
        self.differences.is_empty() && !self.mixed_up
    }
}

/// The world as it follows from the objects that there were at an audit.
#[derive(Debug)]
pub struct Correction {
    world: World,
    apart: Distinctions,
    snapshot: Arc<Snapshot>,
}

/// One resource that was not what it should have been.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: Text,
    /// What is wrong with it.
    pub what: Wrong,
    /// The objects that it was made from, or is to be made from.
    pub sources: Arc<[Text]>,
}

/// How a resource was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It should not have been there.
    Left,
    /// It should have been there.
    Missing,
    /// Its content was another.
    Outdated,
}

impl Wrong {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Left => "should be gone",
            Self::Missing => "is missing",
            Self::Outdated => "is out of date",
        }
    }
}

impl Engine {
    /// Builds one of the sheets in use from the objects, without anything that the engine keeps, and compares. It also compares
    /// what tells proxies apart, which decides whose sheet is whose. `turn` chooses the sheet: callers that count up look at
    /// all of them in time, unless sheets come and go. `None` if nobody has asked for any since the last change. Takes as long
    /// as the first proxy of a scope waits after a start, for a moment as much memory as the world, and holds no lock meanwhile.
    pub fn audit(&self, turn: usize) -> Option<(Audit, Correction)> {
        let (was, snapshot, held_apart, generation) = self.now();
        let live: Vec<_> = lock(&self.sheets)
            .values()
            .filter_map(Weak::upgrade)
            .filter(|shared| lock(&shared.sheet).is_current(generation))
            .collect();
        let shared = live.get(turn.checked_rem(live.len())?)?;
        let held = {
            let sheet = lock(&shared.sheet);
            sheet.is_current(generation).then(|| sheet.set().clone())?
        };
        let all: Vec<_> = snapshot.objects.keys().cloned().collect();
        let world = World::empty(was.settings().clone()).begin(&snapshot, &all);
        drop(was);
        let mut memo = Memo::default();
        memo.forget(generation);
        let mut fresh = Sheet::default();
        let interners = Interners::default();
        let work = Work::new(&shared.section, &world, &mut memo, &interners);
        fresh.refresh(work, None);
        let apart = Distinctions::of(&snapshot, &world);
        let audit = Audit {
            section: shared.section.name(),
            resources: fresh.set().len(),
            differences: differences(&held, fresh.set()),
            mixed_up: held_apart != apart,
        };
        let correction = Correction {
            world,
            apart,
            snapshot,
        };
        Some((audit, correction))
    }

    /// Forgets all that may share a mistake, so that it is built again when it is next asked for; returns the generation that
    /// makes proxies ask. Like [`Engine::apply`], for one writer.
    pub fn heal(&self, correction: Correction) -> u64 {
        self.start_over(correction.world, correction.apart, &correction.snapshot)
    }
}

fn differences(held: &ResourceSet, right: &ResourceSet) -> Vec<Difference> {
    let (held, right) = (View::new([held.clone()]), View::new([right.clone()]));
    let difference = |resource: &Resource, what| Difference {
        name: resource.name.clone(),
        what,
        sources: resource.sources.clone(),
    };
    held.changes(&right)
        .map(|change| match change {
            Change::Removed(was) => difference(was, Wrong::Left),
            Change::Set(new) if held.get(&new.name).is_none() => difference(new, Wrong::Missing),
            Change::Set(new) => difference(new, Wrong::Outdated),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use pilotfish_config::{Applied, Change as Edit, SourceId, Store, parse};
    use pilotfish_protos::envoy::config::core::v3::Node;
    use pilotfish_xds::TypeUrl;

    use super::*;
    use crate::{Proxy, ProxyFacts};

    const MESH: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: default}
spec:
  hosts: [shop.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1}]
";

    /// An engine on the mesh and a proxy that has its endpoints.
    struct Bench {
        store: Store,
        source: SourceId,
        engine: Engine,
        proxy: Proxy,
    }

    impl Bench {
        fn new() -> Self {
            let mut store = Store::new();
            let source = store.register("test");
            let engine = Engine::new(pilotfish_mesh::Settings::default());
            let node = Node {
                id: "sidecar~10.0.0.9~a.default~default.svc.cluster.local".into(),
                ..Node::default()
            };
            let proxy = engine.connect(ProxyFacts::from_node(&node).expect("a node"));
            let mut bench = Self {
                store,
                source,
                engine,
                proxy,
            };
            let applied = bench.write(MESH);
            bench.engine.apply(&applied.snapshot, &applied.changed);
            bench
        }

        fn write(&mut self, mesh: &str) -> Applied {
            let read = parse::documents(mesh, "mesh.yaml");
            let edits = read.objects.into_iter().map(Edit::upsert).collect();
            self.store.apply(self.source, edits)
        }

        fn endpoints(&mut self) -> View {
            self.engine.view(&mut self.proxy, &TypeUrl::Endpoints)
        }

        fn audit(&self) -> (Vec<(String, Wrong)>, Correction) {
            let (audit, correction) = self.engine.audit(0).expect("a sheet");
            assert!(audit.resources > 0);
            let found = audit.differences.iter();
            let found = found.map(|d| (d.name.to_string(), d.what)).collect();
            (found, correction)
        }
    }

    #[test]
    fn a_sheet_that_went_wrong_is_found_and_healed() {
        let mut bench = Bench::new();
        let right = bench.endpoints();
        let name = right.iter().next().expect("endpoints").name.clone();
        assert_eq!(bench.audit().0, []);

        let broken = Resource::new(name.clone(), b"\x0a\x01x", Arc::from([]));
        let extra = Resource::new("extra".into(), b"\x0a\x01y", Arc::from([]));
        for shared in lock(&bench.engine.sheets)
            .values()
            .filter_map(Weak::upgrade)
        {
            lock(&shared.sheet).tamper(&broken);
            lock(&shared.sheet).tamper(&extra);
        }
        assert_ne!(bench.endpoints().get(&name), right.get(&name));
        let generation = bench.engine.generation();
        let (found, correction) = bench.audit();
        let wrong = [
            ("extra".to_owned(), Wrong::Left),
            (name.to_string(), Wrong::Outdated),
        ];
        assert_eq!(found, wrong);
        assert!(bench.engine.heal(correction) > generation);
        assert_eq!(bench.endpoints().changes(&right).count(), 0);
        assert_eq!(bench.audit().0, []);
    }

    #[test]
    fn a_change_that_the_world_missed_is_found_and_healed() {
        let mut bench = Bench::new();
        let before = bench.endpoints();
        let name = before.iter().next().expect("endpoints").name.clone();
        let applied = bench.write(&MESH.replace("10.0.0.1", "10.0.0.2"));
        bench.engine.apply(&applied.snapshot, &[]);
        assert_eq!(bench.endpoints().changes(&before).count(), 0, "missed");

        let (found, correction) = bench.audit();
        assert_eq!(found, [(name.to_string(), Wrong::Outdated)]);
        bench.engine.heal(correction);
        assert_eq!(bench.endpoints().changes(&before).count(), 1);
        assert_eq!(bench.audit().0, []);
        // Objects go on changing from there.
        let applied = bench.write(MESH);
        bench.engine.apply(&applied.snapshot, &applied.changed);
        assert_eq!(bench.endpoints().changes(&before).count(), 0);
    }

    #[test]
    fn a_selector_that_was_missed_is_found_and_healed() {
        let mut bench = Bench::new();
        bench.endpoints();
        let sidecar = "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: narrow, namespace: default}
spec: {workloadSelector: {labels: {app: shop}}, egress: [{hosts: [nowhere/*]}]}
";
        let applied = bench.write(sidecar);
        bench.engine.apply(&applied.snapshot, &[]);
        let (audit, correction) = bench.engine.audit(0).expect("a sheet");
        assert!(audit.mixed_up);
        bench.engine.heal(correction);
        bench.endpoints();
        let (audit, _) = bench.engine.audit(0).expect("a sheet");
        assert!(audit.is_clean(), "{audit:?}");
    }
}
