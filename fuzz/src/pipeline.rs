//! Text in, resources out: the whole way of a configuration, twice, and what must hold of the result.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use pilotfish_config::parse::{self, Parsed};
use pilotfish_config::{Change, Diagnostic, ObjectKey, Snapshot, SourceId, Store};
use pilotfish_engine::{Engine, Proxy, ProxyFacts};
use pilotfish_mesh::Settings;
use pilotfish_protos::envoy::config::cluster::v3::Cluster;
use pilotfish_protos::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilotfish_protos::envoy::config::listener::v3::Listener;
use pilotfish_protos::envoy::config::route::v3::RouteConfiguration;
use pilotfish_xds::{Resource, TypeUrl};
use prost::Message;

const TYPES: [TypeUrl; 7] = [
    TypeUrl::Cluster,
    TypeUrl::Endpoints,
    TypeUrl::Listener,
    TypeUrl::Route,
    TypeUrl::NameTable,
    TypeUrl::VirtualHost,
    TypeUrl::Secret,
];

/// A sidecar of Istio's build, a stock Envoy at the edge, and a gateway that is given secrets and hosts one by one.
static PROXIES: LazyLock<Vec<ProxyFacts>> = LazyLock::new(|| {
    let sidecar = serde_json::json!({
        "id": "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local",
        "locality": {"region": "north", "zone": "n-a"},
        "metadata": {"LABELS": {"app": "web", "version": "v1"}, "DNS_CAPTURE": "true", "NODE_NAME": "n1", "INSTANCE_IPS": "10.0.0.1,fd00::11"},
    });
    let router = serde_json::json!({
        "id": "router~10.0.0.6~ingress-1.istio-system~istio-system.svc.cluster.local",
        "extensions": [{"name": "envoy.filters.http.router"}, {"name": "envoy.filters.http.fault"}, {"name": "envoy.clusters.dynamic_forward_proxy"}],
        "metadata": {"LABELS": {"istio": "ingress"}},
    });
    let edge = serde_json::json!({
        "id": "router~10.244.1.13~edge-gw.edge~edge.svc.cluster.local",
        "metadata": {"LABELS": {"istio": "edge-gw", "app": "edge-gw"}, "ISTIO_VERSION": "1.31.0"},
    });
    let edge = facts(&edge).verified().with_hosts_apart();
    [sidecar, router].iter().map(facts).chain([edge]).collect()
});

fn facts(node: &serde_json::Value) -> ProxyFacts {
    let any = pilotfish_protos::json::from_json("envoy.config.core.v3.Node", node).expect("a node");
    let node = Message::decode(any.value).expect("a node");
    ProxyFacts::from_node(&node).expect("a node that is served")
}

fn settings() -> Settings {
    Settings {
        dual_stack: true,
        ..Settings::default()
    }
}

/// A control plane without sockets.
struct Plane {
    store: Store,
    source: SourceId,
    engine: Engine,
    proxies: Vec<Proxy>,
}

type Views = Vec<Vec<Arc<Resource>>>;

impl Plane {
    fn new() -> Self {
        let mut store = Store::new();
        let source = store.register("fuzz");
        let engine = Engine::new(settings());
        let proxies = PROXIES.iter().map(|f| engine.connect(f.clone())).collect();
        Self {
            store,
            source,
            engine,
            proxies,
        }
    }

    /// Has exactly these objects from now on.
    fn replace(&mut self, objects: &[pilotfish_config::Object]) {
        let kept: BTreeSet<&ObjectKey> = objects.iter().map(|o| &o.key).collect();
        let before = self.store.snapshot();
        let gone = before.objects.keys().filter(|k| !kept.contains(k)).cloned();
        let mut changes: Vec<Change> = gone.map(Change::Delete).collect();
        changes.extend(objects.iter().cloned().map(Change::upsert));
        let applied = self.store.apply(self.source, changes);
        self.engine.apply(&applied.snapshot, &applied.changed);
    }

    fn whole(snapshot: &Arc<Snapshot>) -> Self {
        let plane = Self::new();
        let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
        plane.engine.apply(snapshot, &keys);
        plane
    }

    fn views(&mut self) -> Views {
        let mut all = Vec::new();
        for proxy in &mut self.proxies {
            for t in &TYPES {
                let view = self.engine.view(proxy, t);
                let resources: Vec<_> = view.iter().cloned().collect();
                for r in &resources {
                    check_resource(t, r);
                }
                all.push(resources);
            }
        }
        all
    }
}

/// What Envoy refuses whole responses for.
fn check_resource(t: &TypeUrl, resource: &Resource) {
    let (url, body) = resource.parts();
    assert_eq!(url, t.as_str(), "{}: the wrong type", resource.name);
    let name = match t {
        TypeUrl::Cluster => Cluster::decode(body).expect("a cluster").name,
        TypeUrl::Endpoints => {
            let set = ClusterLoadAssignment::decode(body).expect("endpoints");
            let of =
                |place: &pilotfish_protos::envoy::config::endpoint::v3::LocalityLbEndpoints| {
                    place
                        .load_balancing_weight
                        .map_or(0, |w| u64::from(w.value))
                };
            let total: u64 = set.endpoints.iter().map(of).sum();
            assert!(
                u32::try_from(total).is_ok(),
                "{}: the weights overflow",
                resource.name
            );
            set.cluster_name
        }
        TypeUrl::Listener => Listener::decode(body).expect("a listener").name,
        TypeUrl::Route => {
            let table = RouteConfiguration::decode(body).expect("a route table");
            let (mut domains, mut names) = (BTreeSet::new(), BTreeSet::new());
            for host in &table.virtual_hosts {
                assert!(
                    !host.domains.is_empty(),
                    "{}: {} has no domain",
                    table.name,
                    host.name
                );
                assert!(
                    names.insert(&host.name),
                    "{}: {} twice",
                    table.name,
                    host.name
                );
                for domain in &host.domains {
                    let folded = domain.to_ascii_lowercase();
                    assert!(
                        domains.insert(folded),
                        "{}: domain {domain} twice",
                        table.name
                    );
                }
            }
            table.name
        }
        _ => return,
    };
    assert_eq!(*name, *resource.name, "the message has another name");
}

fn same(a: &Views, b: &Views) -> Result<(), String> {
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        let shown = |all: &[Arc<Resource>]| -> Vec<String> {
            all.iter()
                .map(|r| format!("{r:?} {:?}", r.sources))
                .collect()
        };
        let equal = a.len() == b.len()
            && a.iter()
                .zip(b)
                .all(|(a, b)| a == b && a.sources == b.sources);
        if !equal {
            let (a, b) = (shown(a), shown(b));
            let differ: Vec<_> = a
                .iter()
                .filter(|x| !b.contains(x))
                .chain(b.iter().filter(|x| !a.contains(x)))
                .collect();
            return Err(format!(
                "proxy {}, {}: {differ:#?}",
                i / TYPES.len(),
                TYPES[i % TYPES.len()].short()
            ));
        }
    }
    Ok(())
}

fn check_diagnostics(all: &[Diagnostic], text: &str) {
    let lines = text.lines().count() as u32 + 1;
    for d in all {
        assert!(
            !d.reason.is_empty() && !d.effect.is_empty() && !d.code.is_empty(),
            "{d:?} says nothing"
        );
        assert!(!d.to_string().contains('\n'), "{d:?} is more than one line");
        let line = d.origin.as_ref().map_or(1, |o| o.line);
        assert!((1..=lines).contains(&line), "{d:?} is not in the file");
    }
}

/// Reads a text and checks what is reported about it.
pub fn read(text: &str) -> Parsed {
    let parsed = parse::documents(text, "fuzz.yaml");
    check_diagnostics(&parsed.diagnostics, text);
    if !parsed.refused.is_empty() || parsed.unreadable > 0 {
        assert!(!parsed.diagnostics.is_empty(), "refused without a word");
    }
    let keys: BTreeSet<&ObjectKey> = parsed.objects.iter().map(|o| &o.key).collect();
    assert_eq!(keys.len(), parsed.objects.len(), "one key, two objects");
    parsed
}

/// Settings of the mesh that a text holds, if it is good.
pub fn read_mesh(text: &str) -> Option<MeshConfig> {
    let (mesh, diagnostics) = parse::mesh_config(text, "mesh.yaml");
    check_diagnostics(&diagnostics, text);
    mesh
}

/// Networks that a text holds, if it is good.
pub fn read_networks(text: &str) -> Option<MeshNetworks> {
    let (networks, diagnostics) = parse::mesh_networks(text, "networks.yaml");
    check_diagnostics(&diagnostics, text);
    networks
}

/// From one configuration to the next and back, step by step and from scratch; both must give the same.
pub fn translate(
    before: &Parsed,
    after: &Parsed,
    mesh: Option<MeshConfig>,
    networks: Option<MeshNetworks>,
) {
    let mut plane = Plane::new();
    plane.replace(&before.objects);
    let first = plane.views();
    let is_same_mesh = mesh.is_none() && networks.is_none();
    if let Some(mesh) = mesh {
        plane.store.set_mesh(mesh);
    }
    if let Some(networks) = networks {
        plane.store.set_networks(networks);
    }
    plane.replace(&after.objects);
    let stepped = plane.views();
    let mut scratch = Plane::whole(&plane.store.snapshot());
    if let Err(difference) = same(&stepped, &scratch.views()) {
        panic!("step by step and from scratch differ: {difference}");
    }
    for d in plane.engine.diagnostics() {
        assert!(
            !d.reason.is_empty() && !d.effect.is_empty(),
            "{d:?} says nothing"
        );
    }
    if is_same_mesh {
        plane.replace(&before.objects);
        if let Err(difference) = same(&plane.views(), &first) {
            panic!("there and back again differs: {difference}");
        }
    }
}

/// How long an input may take. Ordinary ones take a millisecond; the machine may be busy, hence the second chance.
const LONG: Duration = Duration::from_secs(1);

/// Runs something that must not take long.
pub fn timed(run: impl Fn()) {
    let took = |run: &dyn Fn()| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    let first = took(&run);
    if first > LONG {
        let best = first.min(took(&run)).min(took(&run));
        assert!(best <= LONG, "takes {best:?}");
    }
}
