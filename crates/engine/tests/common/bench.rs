//! A store, an engine and connected proxies: what a control plane is without its sockets.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::{
    Change, Kind, Object, ObjectKey, Severity, Snapshot, SourceId, Store, parse,
};
use pilotfish_engine::{Engine, Proxy, ProxyFacts};
use pilotfish_mesh::Settings;
use pilotfish_xds::{Resource, TypeUrl, View};

use super::{Text, proxies};

/// What proxies ask for.
pub(crate) const TYPES: [TypeUrl; 7] = [
    TypeUrl::Cluster,
    TypeUrl::Endpoints,
    TypeUrl::Listener,
    TypeUrl::Route,
    TypeUrl::VirtualHost,
    TypeUrl::NameTable,
    TypeUrl::Secret,
];

pub(crate) struct Bench {
    store: Store,
    source: SourceId,
    pub(crate) engine: Engine,
    pub(crate) proxies: Vec<(&'static str, Proxy)>,
}

/// All resources by proxy and type.
pub(crate) type Dump = BTreeMap<(&'static str, &'static str), Vec<Arc<Resource>>>;

/// The one object of a text, which must be valid: invalid ones are the business of other tests.
pub(crate) fn parsed(text: &Text) -> Object {
    let mut parsed = parse::documents(&text.0, "made-up.yaml");
    let wrong: Vec<String> = parsed
        .diagnostics
        .iter()
        .filter(|d| d.severity == Severity::Error)
        .map(ToString::to_string)
        .collect();
    assert!(wrong.is_empty(), "{text:?}\nis refused: {wrong:#?}");
    parsed.objects.pop().unwrap()
}

pub(crate) fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(kind, namespace, name)
}

pub(crate) fn settings(dual_stack: bool) -> Settings {
    Settings {
        dual_stack,
        ..Settings::default()
    }
}

impl Bench {
    /// No objects, and proxies of every sort.
    pub(crate) fn new(settings: Settings) -> Self {
        Self::with(settings, proxies::all())
    }

    pub(crate) fn with(settings: Settings, proxies: Vec<(&'static str, ProxyFacts)>) -> Self {
        let mut store = Store::new();
        let source = store.register("test");
        let engine = Engine::new(settings);
        let proxies = proxies
            .into_iter()
            .map(|(name, facts)| (name, engine.connect(facts)))
            .collect();
        Self {
            store,
            source,
            engine,
            proxies,
        }
    }

    /// A bench that gets the same configuration all at once.
    pub(crate) fn fresh(&self) -> Self {
        let facts = self
            .proxies
            .iter()
            .map(|(name, p)| (*name, p.facts().clone()));
        let fresh = Self::with(self.engine.world().settings().clone(), facts.collect());
        let snapshot = self.store.snapshot();
        let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
        fresh.engine.apply(&snapshot, &keys);
        fresh
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.store.snapshot()
    }

    /// Applies one batch; a later text of a key replaces an earlier one.
    pub(crate) fn put<'t>(&mut self, texts: impl IntoIterator<Item = &'t Text>) {
        let changes = texts.into_iter().map(|text| Change::upsert(parsed(text)));
        self.change(changes.collect());
    }

    /// Applies what is valid of these in one batch.
    pub(crate) fn write_all(&mut self, texts: &[Text]) {
        let objects = texts
            .iter()
            .flat_map(|t| parse::documents(&t.0, "input.yaml").objects);
        self.change(objects.map(Change::upsert).collect());
    }

    /// Applies objects that the test wrote itself.
    pub(crate) fn write(&mut self, yaml: &str) {
        let parsed = parse::documents(yaml, "test.yaml");
        assert!(parsed.diagnostics.is_empty(), "{:#?}", parsed.diagnostics);
        self.change(parsed.objects.into_iter().map(Change::upsert).collect());
    }

    pub(crate) fn delete(&mut self, key: &ObjectKey) {
        self.change(vec![Change::Delete(key.clone())]);
    }

    pub(crate) fn change(&mut self, changes: Vec<Change>) {
        let applied = self.store.apply(self.source, changes);
        self.engine.apply(&applied.snapshot, &applied.changed);
    }

    /// Replaces the mesh's configuration.
    pub(crate) fn set_mesh(&mut self, yaml: &str) {
        let (mesh, findings) = parse::mesh_config(yaml, "mesh.yaml");
        self.store
            .set_mesh(mesh.unwrap_or_else(|| panic!("{yaml}: {findings:?}")));
        self.engine.apply(&self.store.snapshot(), &[]);
    }

    pub(crate) fn set_networks(&mut self, yaml: &str) {
        let (networks, findings) = parse::mesh_networks(yaml, "networks.yaml");
        self.store
            .set_networks(networks.unwrap_or_else(|| panic!("{yaml}: {findings:?}")));
        self.engine.apply(&self.store.snapshot(), &[]);
    }

    /// One proxy asks for one type.
    pub(crate) fn ask(&mut self, proxy: usize, type_url: &TypeUrl) -> View {
        self.engine.view(&mut self.proxies[proxy].1, type_url)
    }

    /// What one proxy is given of one type.
    pub(crate) fn resources(&mut self, proxy: usize, type_url: &TypeUrl) -> Vec<Arc<Resource>> {
        self.ask(proxy, type_url).iter().cloned().collect()
    }

    /// Every proxy asks for every type.
    pub(crate) fn dump(&mut self) -> Dump {
        let mut all = Dump::new();
        for (name, proxy) in &mut self.proxies {
            for t in &TYPES {
                let view = self.engine.view(proxy, t);
                all.insert((*name, t.short()), view.iter().cloned().collect());
            }
        }
        all
    }
}

fn same(a: &Resource, b: &Resource) -> bool {
    a.name == b.name && a.version == b.version && a.any() == b.any() && a.sources == b.sources
}

fn shown(resource: Option<&Arc<Resource>>) -> String {
    let Some(resource) = resource else {
        return "nothing".to_owned();
    };
    let (url, body) = resource.parts();
    let json = pilotfish_protos::json::any_to_json(&url, &body);
    format!(
        "{} from {:?}: {}",
        resource.version,
        resource.sources,
        json.map_or_else(|e| format!("{e:?}"), |json| json.to_string())
    )
}

/// The first difference between two dumps, byte by byte.
pub(crate) fn difference(a: &Dump, b: &Dump) -> Option<String> {
    for (of, left) in a {
        let right = &b[of];
        let names = left.iter().chain(right).map(|r| &r.name);
        for name in names {
            let find = |all: &[Arc<Resource>]| all.iter().find(|r| r.name == *name).cloned();
            let (l, r) = (find(left), find(right));
            if l.as_deref()
                .zip(r.as_deref())
                .is_none_or(|(l, r)| !same(l, r))
            {
                let (l, r) = (shown(l.as_ref()), shown(r.as_ref()));
                return Some(format!("{of:?} {name}:\n  left  {l}\n  right {r}"));
            }
        }
        let order = |all: &[Arc<Resource>]| all.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
        if order(left) != order(right) {
            return Some(format!("{of:?}: {:?} and {:?}", order(left), order(right)));
        }
    }
    None
}

/// One resource that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Touched {
    pub(crate) proxy: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum How {
    Came,
    Went,
    /// It is another one, even if it may have the same bytes.
    Changed,
}

/// Resources that are not the very same between two dumps of one bench.
pub(crate) fn touched(before: &Dump, after: &Dump) -> Vec<Touched> {
    let mut all = Vec::new();
    for ((proxy, kind), old) in before {
        let new = &after[&(*proxy, *kind)];
        let by_name = |all: &[Arc<Resource>]| -> BTreeMap<pilotfish_xds::Text, Arc<Resource>> {
            all.iter().map(|r| (r.name.clone(), r.clone())).collect()
        };
        let (old, new) = (by_name(old), by_name(new));
        let mut add = |name: &str, how| {
            all.push(Touched {
                proxy,
                kind,
                name: name.to_owned(),
                how,
            });
        };
        for (name, r) in &old {
            match new.get(name) {
                None => add(name, How::Went),
                Some(n) if !Arc::ptr_eq(r, n) => add(name, How::Changed),
                Some(_) => {}
            }
        }
        for name in new.keys().filter(|n| !old.contains_key(*n)) {
            add(name, How::Came);
        }
    }
    all
}
