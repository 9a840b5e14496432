//! The stages without sockets: deriving the world, lowering, emitting, both for each type as the engine does it, one change,
//! comparing generations, encoding a response.
//!
//! `make bench BENCH_ARGS=micro` runs all, `BENCH_ARGS="micro CDS"` those with the word in their name.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use pilotfish_bench::mesh::{Change as Edited, Edit, Size};
use pilotfish_bench::proxy;
use pilotfish_config::{Change, ObjectKey, Snapshot, SourceId, Store, parse};
use pilotfish_emit::{self as emit, Dialect};
use pilotfish_engine::{Engine, Proxy, ProxyFacts};
use pilotfish_ir::tls::CertificateFiles;
use pilotfish_lower::{
    Client, ClusterScope, EndpointScope, Families, ProxyKind, RouteScope, Who, cluster, endpoint,
    route,
};
use pilotfish_mesh::service::ServiceId;
use pilotfish_mesh::{Reader, Settings, Text, World};
use pilotfish_protos::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use pilotfish_xds::{
    Generation, Protocol, Resource, ResourceSet, SessionConfig, TypeUrl, View, delta, sotw,
};

const SIZES: [usize; 2] = [100, 1000];

const TYPES: [TypeUrl; 5] = [
    TypeUrl::Cluster,
    TypeUrl::Endpoints,
    TypeUrl::Listener,
    TypeUrl::Route,
    TypeUrl::VirtualHost,
];

fn size(services: usize) -> Size {
    Size {
        services,
        endpoints: 5,
        namespaces: 20,
    }
}

/// Objects in a store, as a source would bring them.
struct Objects {
    store: Store,
    source: SourceId,
}

impl Objects {
    fn of(size: &Size) -> Self {
        let mut store = Store::new();
        let source = store.register("bench");
        let mut objects = Self { store, source };
        for (_, text) in size.files() {
            objects.put(&text);
        }
        objects
    }

    fn put(&mut self, text: &str) -> (Arc<Snapshot>, Vec<ObjectKey>) {
        let parsed = parse::documents(text, "bench.yaml").objects;
        let changes = parsed.into_iter().map(Change::upsert).collect();
        let applied = self.store.apply(self.source, changes);
        (applied.snapshot, applied.changed)
    }

    fn engine(&self) -> Engine {
        let snapshot = self.store.snapshot();
        let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
        let engine = Engine::new(Settings::default());
        engine.apply(&snapshot, &keys);
        engine
    }
}

fn sidecar(engine: &Engine) -> Proxy {
    let node = proxy::node(0, 20).expect("a node");
    let facts = ProxyFacts::from_node(&node).expect("facts of a node");
    engine.connect(facts.with_hosts_apart())
}

fn world(c: &mut Criterion) {
    let mut group = c.benchmark_group("derive the world");
    for services in SIZES {
        let objects = Objects::of(&size(services));
        group.bench_function(BenchmarkId::from_parameter(services), |b| {
            b.iter_with_large_drop(|| objects.engine());
        });
    }
}

/// What a sidecar of the first namespace may read.
struct Scopes {
    clusters: ClusterScope,
    endpoints: EndpointScope,
    routes: RouteScope,
}

impl Scopes {
    fn new() -> Self {
        let who = Who {
            namespace: "ns0".into(),
            dns_domain: "ns0.svc.cluster.local".into(),
            ..Who::default()
        };
        let client = || Client::new(ProxyKind::Sidecar, Families::V4, who.clone());
        Self {
            clusters: ClusterScope {
                client: client(),
                files: CertificateFiles::default(),
                network: Text::default(),
            },
            endpoints: EndpointScope {
                client: client(),
                network: Text::default(),
                cluster: Text::default(),
                node: Text::default(),
                view: BTreeSet::new(),
            },
            routes: RouteScope {
                client: client(),
                instances: Vec::new(),
                http_proxy: false,
            },
        }
    }

    /// For each service what `lower` makes of it, with what it read on record, as the engine has it.
    fn of_services<T>(world: &World, lower: impl Fn(&Reader<'_>, &ServiceId) -> Vec<T>) -> Vec<T> {
        let services = world.services();
        let lowered = services.flat_map(|service| {
            let reader = Reader::new(world);
            let made = lower(&reader, &service.id);
            black_box(reader.into_record());
            made
        });
        lowered.collect()
    }

    fn clusters(&self, world: &World) -> Vec<pilotfish_ir::Cluster> {
        Self::of_services(world, |r, id| cluster::outbound(r, &self.clusters, id))
    }

    fn endpoints(&self, world: &World) -> Vec<pilotfish_ir::EndpointSet> {
        Self::of_services(world, |r, id| endpoint::sets(r, &self.endpoints, id))
    }

    fn hosts(&self, world: &World) -> Vec<pilotfish_ir::VirtualHost> {
        let reader = Reader::new(world);
        let mut all = Vec::new();
        for table in route::tables(&reader, &self.routes) {
            for host in route::hosts(&reader, &self.routes, &table) {
                let own = Reader::new(world);
                all.extend(route::virtual_host(&own, &self.routes, &table, &host));
                black_box(own.into_record());
            }
        }
        all
    }
}

/// From the world to what is to be said, and from there to bytes, apart.
fn lower_and_emit(c: &mut Criterion) {
    let (scopes, dialect) = (Scopes::new(), Dialect::istio(""));
    for services in SIZES {
        let world = Objects::of(&size(services)).engine().world();
        let mut lower = c.benchmark_group("lower");
        let mut stage = |what: &str, run: &dyn Fn() -> usize| {
            assert!(run() > 0, "{what} of {services} services");
            lower.bench_function(BenchmarkId::new(what, services), |b| b.iter(run));
        };
        stage("clusters", &|| scopes.clusters(&world).len());
        stage("endpoints", &|| scopes.endpoints(&world).len());
        stage("virtual hosts", &|| scopes.hosts(&world).len());
        lower.finish();
        let (clusters, sets) = (scopes.clusters(&world), scopes.endpoints(&world));
        let hosts = scopes.hosts(&world);
        let mut emit = c.benchmark_group("emit");
        let mut stage = |what: &str, run: &dyn Fn() -> usize| {
            assert!(run() > 0, "{what} of {services} services");
            emit.bench_function(BenchmarkId::new(what, services), |b| b.iter(run));
        };
        let len = |encoded: emit::Encoded| encoded.any.len();
        stage("clusters", &|| {
            clusters
                .iter()
                .map(|c| len(emit::cluster(c, &dialect)))
                .sum()
        });
        stage("endpoints", &|| {
            sets.iter().map(|s| len(emit::endpoints(s, &dialect))).sum()
        });
        stage("virtual hosts", &|| {
            hosts
                .iter()
                .map(|h| emit::virtual_host(h, &dialect).len())
                .sum()
        });
        emit.finish();
    }
}

/// Everything of a type for the first proxy that asks.
fn translate(c: &mut Criterion) {
    for kind in TYPES {
        let mut group = c.benchmark_group(format!("translate {}", kind.short()));
        for services in SIZES {
            let objects = Objects::of(&size(services));
            group.bench_function(BenchmarkId::from_parameter(services), |b| {
                let fresh = || {
                    let engine = objects.engine();
                    let proxy = sidecar(&engine);
                    (engine, proxy)
                };
                b.iter_batched_ref(
                    fresh,
                    |(engine, proxy)| engine.view(proxy, &kind).len(),
                    BatchSize::LargeInput,
                );
            });
        }
    }
}

/// A changed object until the proxy's new view is there, for a weight and for an endpoint.
fn change(c: &mut Criterion) {
    for (change, kind) in [
        (Edited::Weight, TypeUrl::VirtualHost),
        (Edited::Endpoint, TypeUrl::Endpoints),
    ] {
        let mut group = c.benchmark_group(format!("change {}", change.name()));
        for services in SIZES {
            let size = size(services);
            let mut objects = Objects::of(&size);
            let engine = objects.engine();
            let mut proxy = sidecar(&engine);
            engine.view(&mut proxy, &kind);
            let mut round = 0;
            group.bench_function(BenchmarkId::from_parameter(services), |b| {
                b.iter(|| {
                    round += 1;
                    let Edit::Write(_, text) = change.edit(&size, round) else {
                        return 0;
                    };
                    let (snapshot, changed) = objects.put(&text);
                    engine.apply(&snapshot, &changed);
                    engine.view(&mut proxy, &kind).len()
                });
            });
        }
    }
}

/// What differs between two generations of a set, of which one resource is another: the same whatever the size.
fn compare(c: &mut Criterion) {
    let mut group = c.benchmark_group("compare generations");
    for size in [1_000, 100_000] {
        let resource = |at: usize, content: u8| {
            Resource::new(
                format!("name-{at}").into(),
                &[0x0a, 1, content],
                Arc::from([]),
            )
        };
        let old: ResourceSet = (0..size).map(|at| resource(at, 1)).collect();
        let mut new = old.clone();
        new.insert(resource(size / 2, 2));
        let (old, new) = (View::new([old]), View::new([new]));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| black_box(&old).changes(&new).count());
        });
    }
}

/// All clusters as one message, in pieces as the transport takes them, for a stream that just asked for them.
fn encode(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode clusters");
    let url = || TypeUrl::Cluster.as_str().to_owned();
    let delta = DeltaDiscoveryRequest {
        type_url: url(),
        ..Default::default()
    };
    let sotw = DiscoveryRequest {
        type_url: url(),
        ..Default::default()
    };
    for services in SIZES {
        let engine = Objects::of(&size(services)).engine();
        let view = engine.view(&mut sidecar(&engine), &TypeUrl::Cluster);
        group.bench_function(BenchmarkId::new("delta", services), |b| {
            let open = || opened::<delta::Session>(delta.clone());
            b.iter_batched_ref(open, |s| push(s, &view), BatchSize::SmallInput);
        });
        group.bench_function(BenchmarkId::new("state of the world", services), |b| {
            let open = || opened::<sotw::Session>(sotw.clone());
            b.iter_batched_ref(open, |s| push(s, &view), BatchSize::SmallInput);
        });
    }
}

fn opened<P: Protocol>(request: P::Request) -> P {
    let mut session = P::new(SessionConfig::default());
    let taken = session.on_request(request);
    assert!(taken.is_ok(), "a first request");
    session
}

fn push<P: Protocol>(session: &mut P, view: &View) -> usize {
    let response = session.push(&TypeUrl::Cluster, black_box(view.clone()), Generation(1));
    let pieces = response.into_iter().flat_map(|r| r.frames.into_pieces());
    pieces.map(|piece| piece.len()).sum()
}

criterion_group!(
    benches,
    world,
    lower_and_emit,
    translate,
    change,
    compare,
    encode
);
criterion_main!(benches);
