//! Incremental state compared with what the same world gives from scratch, one sheet at a time.

use std::sync::{Arc, Weak};

use pilotfish_mesh::Text;
use pilotfish_xds::{Change, Resource, ResourceSet, View};

use crate::engine::{Engine, lock};
use crate::memo::Memo;
use crate::sheet::{Sheet, Work};

/// What a look at one sheet found.
#[derive(Debug, Default)]
pub struct Audit {
    /// What the sheet is about.
    pub section: &'static str,
    /// Resources that were compared.
    pub resources: usize,
    /// Where the sheet was wrong. All sheets that may share the mistake are rebuilt when they are next asked for.
    pub differences: Vec<Difference>,
    /// The generation that makes proxies ask, if something was wrong.
    pub healed: Option<u64>,
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
    /// Builds one of the sheets in use from scratch and compares. `turn` chooses it: callers that count up look at all of
    /// them in time. `None` if nobody has asked for any since the last change. Takes as long as the
    /// first proxy of a scope waits, and holds no lock meanwhile.
    pub fn audit(&self, turn: usize) -> Option<Audit> {
        let (world, generation) = self.now();
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
        let mut memo = Memo::default();
        memo.forget(generation);
        let mut fresh = Sheet::default();
        let work = Work::new(&shared.section, &world, &mut memo, &self.interners);
        fresh.refresh(work, None);
        let differences = differences(&held, fresh.set());
        let healed = (!differences.is_empty()).then(|| {
            lock(&shared.memo).distrust();
            self.wake()
        });
        Some(Audit {
            section: shared.section.name(),
            resources: fresh.set().len(),
            differences,
            healed,
        })
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
    use pilotfish_config::{Change as Edit, Store, parse};
    use pilotfish_protos::envoy::config::core::v3::Node;
    use pilotfish_xds::TypeUrl;

    use super::*;
    use crate::ProxyFacts;

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

    #[test]
    fn a_sheet_that_went_wrong_is_found_and_healed() {
        let mut store = Store::new();
        let source = store.register("test");
        let read = parse::documents(MESH, "mesh.yaml");
        let edits = read.objects.into_iter().map(Edit::upsert).collect();
        let applied = store.apply(source, edits);
        let engine = Engine::new(pilotfish_mesh::Settings::default());
        engine.apply(&applied.snapshot, &applied.changed);
        let node = Node {
            id: "sidecar~10.0.0.9~a.default~default.svc.cluster.local".into(),
            ..Node::default()
        };
        let mut proxy = engine.connect(ProxyFacts::from_node(&node).expect("a node"));
        let right = engine.view(&mut proxy, &TypeUrl::Endpoints);
        let name = right.iter().next().expect("endpoints").name.clone();
        assert!(
            engine
                .audit(0)
                .is_some_and(|audit| audit.differences.is_empty() && audit.resources > 0)
        );

        let broken = Resource::new(name.clone(), b"\x0a\x01x", Arc::from([]));
        let extra = Resource::new("extra".into(), b"\x0a\x01y", Arc::from([]));
        let generation = engine.generation();
        for shared in lock(&engine.sheets).values().filter_map(Weak::upgrade) {
            lock(&shared.sheet).tamper(&broken);
            lock(&shared.sheet).tamper(&extra);
        }
        assert_ne!(
            engine.view(&mut proxy, &TypeUrl::Endpoints).get(&name),
            right.get(&name)
        );
        let audit = engine.audit(0).expect("a sheet");
        let found: Vec<_> = audit
            .differences
            .iter()
            .map(|d| (&*d.name, d.what))
            .collect();
        assert_eq!(found, [("extra", Wrong::Left), (&*name, Wrong::Outdated)]);
        assert!(audit.healed > Some(generation));
        let healed = engine.view(&mut proxy, &TypeUrl::Endpoints);
        assert_eq!(healed.changes(&right).count(), 0);
        assert!(
            engine
                .audit(0)
                .is_some_and(|audit| audit.differences.is_empty())
        );
    }
}
