//! The world, its history, and the sheets that proxies share.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use pilotfish_config::networking::Sidecar;
use pilotfish_config::{Diagnostic, Kind, ObjectKey, Snapshot};
use pilotfish_ir::listener::Tracing;
use pilotfish_lower::{
    Client, ClusterScope, Conduct, EndpointScope, Families, InboundScope, ListenerScope, NameScope,
    ProxyKind, RouteScope, SecretScope, Who, conduct, visibility,
};
use pilotfish_mesh::{Fact, Reader, Resolution, Settings, Text, World};
use pilotfish_xds::{ResourceSet, TypeUrl, View};
use smallvec::SmallVec;

use crate::facts::ProxyFacts;
use crate::memo::Memo;
use crate::section::{Interners, Section};
use crate::selectors::{Distinctions, Selectors, bound_to_nodes, is_bound_to_node};
use crate::sheet::{Sheet, Work};

/// The label by which endpoints of the same node are preferred; the node is part of the scope if somebody reads it.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The conduct of a proxy where it does not count.
static UNKNOWN: LazyLock<Arc<Conduct>> = LazyLock::new(|| Arc::new(Conduct::unknown()));
/// How many generations a sheet may lag behind before it is rebuilt whole.
const HISTORY: usize = 1024;
/// Of how many generations it is known what they took.
const COSTS: usize = 64;

/// Facts that may have numbers: some for the mesh as a whole, and several times what a service is read for.
const SPARE_FACTS: usize = 100_000;
const FACTS_PER_SERVICE: usize = 64;

/// Translates for all proxies. One writer calls [`Engine::apply`]; any thread may call [`Engine::view`].
#[derive(Debug)]
pub struct Engine {
    state: RwLock<State>,
    /// Sheets by section. A sheet lives as long as a proxy uses it.
    pub(crate) sheets: Mutex<HashMap<Section, Weak<Shared>>>,
    /// Memos by family. A memo lives as long as a sheet of the family.
    memos: Mutex<HashMap<Section, Weak<Mutex<Memo>>>>,
    pub(crate) interners: Interners,
    /// What the last generations took so far, newest last.
    costs: Mutex<VecDeque<(u64, Cost)>>,
    /// What all of them took.
    total_cost: Mutex<Cost>,
}

/// What bringing sheets up to a generation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Pieces that were lowered again.
    pub pieces: usize,
    /// Resources that came, went or changed, counted once for each scope.
    pub resources: usize,
}

#[derive(Debug)]
struct State {
    world: Arc<World>,
    snapshot: Arc<Snapshot>,
    generation: u64,
    /// The facts each of the last generations changed, newest last.
    history: VecDeque<(u64, Arc<[Fact]>)>,
    apart: Distinctions,
    /// Generation in which scopes may last have changed by other means than facts: labels that count, services bound to nodes.
    rescoped: u64,
    /// Generation in which everything was last forgotten, because there was nothing before it, or the numbers of facts were
    /// taken away: sheets from before forget.
    forgotten: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) section: Section,
    pub(crate) sheet: Arc<Mutex<Sheet>>,
    /// Whether it is there because a proxy connected, not because a change gave one another scope.
    for_newcomer: bool,
    /// Pieces that scopes of the same family share. Locked before any sheet of it, if both are.
    pub(crate) memo: Arc<Mutex<Memo>>,
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Facts whose value changed; none are named where there was nothing before.
    pub changed_facts: usize,
    /// The generation it made; the same as before if nothing changed.
    pub generation: u64,
}

impl State {
    /// Starts the next generation, which changed these facts.
    fn advance(&mut self, changed: Arc<[Fact]>) {
        self.generation += 1;
        self.history.push_back((self.generation, changed));
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }
}

/// A connected proxy: its facts, and the sheets of its scope.
#[derive(Debug)]
pub struct Proxy {
    facts: ProxyFacts,
    sheets: Option<Sheets>,
}

/// The sheets of a type. Not a `Vec`: collected from sections, it would keep the room that these took.
type SharedSheets = SmallVec<[Arc<Shared>; 2]>;

#[derive(Debug)]
struct Sheets {
    generation: u64,
    /// What the scope was read from.
    facts: BTreeSet<Fact>,
    clusters: SharedSheets,
    endpoints: SharedSheets,
    routes: SharedSheets,
    hosts: SharedSheets,
    listeners: SharedSheets,
    names: SharedSheets,
    secrets: SharedSheets,
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// An engine without objects.
    pub fn new(settings: Settings) -> Self {
        Self {
            state: RwLock::new(State {
                world: Arc::new(World::empty(settings)),
                snapshot: Arc::default(),
                generation: 0,
                history: VecDeque::new(),
                apart: Distinctions::default(),
                rescoped: 0,
                forgotten: 0,
            }),
            sheets: Mutex::default(),
            memos: Mutex::default(),
            interners: Interners::default(),
            costs: Mutex::default(),
            total_cost: Mutex::default(),
        }
    }

    /// Takes the next configuration. `changed` are the keys of all objects that differ from the last one: one that is not
    /// named is not looked at until it changes again. Mesh configuration and networks are compared here.
    pub fn apply(&self, snapshot: &Arc<Snapshot>, changed: &[ObjectKey]) -> Applied {
        let (world, old) = {
            let state = self.read();
            (state.world.clone(), state.snapshot.clone())
        };
        // Where there was nothing, all that anybody may have read of it is forgotten, and no fact has to be named.
        let first = old.objects.is_empty() && !snapshot.objects.is_empty();
        let (next, facts) = if first {
            (world.begin(snapshot, changed), Vec::new())
        } else {
            let update = world.update(snapshot, changed);
            (update.world, update.changed)
        };
        let next = Arc::new(next);
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut rescoped = state
            .apart
            .selectors
            .replace_mesh(&old.mesh, &snapshot.mesh);
        for key in changed.iter().filter(|k| {
            matches!(
                k.kind,
                Kind::Sidecar
                    | Kind::Gateway
                    | Kind::DestinationRule
                    | Kind::VirtualService
                    | Kind::PeerAuthentication
            )
        }) {
            rescoped |= state
                .apart
                .selectors
                .replace(old.get(key).map(|o| &**o), snapshot.get(key).map(|o| &**o));
        }
        for fact in &facts {
            if let Fact::Service(id) = fact {
                let before = Reader::new(&world)
                    .service(id)
                    .is_some_and(|s| is_bound_to_node(s));
                let after = Reader::new(&next)
                    .service(id)
                    .is_some_and(|s| is_bound_to_node(s));
                let bound = &mut state.apart.node_bound;
                let had = *bound > 0;
                *bound = *bound + usize::from(after) - usize::from(before);
                rescoped |= had != (*bound > 0);
            }
        }
        if first {
            state.apart.node_bound = bound_to_nodes(&next);
        }
        state.snapshot = snapshot.clone();
        if facts.is_empty() && !rescoped && !first {
            state.world = next;
            return Applied {
                changed_facts: 0,
                generation: state.generation,
            };
        }
        let generation = state.generation + 1;
        if rescoped || first {
            state.rescoped = generation;
        }
        if first {
            state.forgotten = generation;
        }
        // Names that come and go leave numbers behind. More than any mesh of this size can use: start again.
        if self.interners.facts.len() > SPARE_FACTS + FACTS_PER_SERVICE * next.services().count() {
            self.interners.facts.forget();
            state.forgotten = generation;
        }
        let changed_facts = facts.len();
        state.advance(facts.into());
        state.world = next;
        Applied {
            changed_facts,
            generation,
        }
    }

    /// The current world.
    pub fn world(&self) -> Arc<World> {
        self.read().world.clone()
    }

    /// The current generation.
    pub fn generation(&self) -> u64 {
        self.read().generation
    }

    /// Takes note of a proxy. Nothing is computed before it asks.
    pub fn connect(&self, facts: ProxyFacts) -> Proxy {
        Proxy {
            facts,
            sheets: None,
        }
    }

    /// The resources of one type for a proxy, as of the newest generation.
    pub fn view(&self, proxy: &mut Proxy, type_url: &TypeUrl) -> View {
        if !self.is_scoped(proxy) {
            self.scope(proxy);
        }
        match proxy.sheets.as_ref().map(|all| all.of(type_url)) {
            Some(Some(of)) => View::new(of.iter().map(|s| self.refreshed(s))),
            Some(None) => View::unknown(),
            None => View::new([]),
        }
    }

    /// The same, if nothing has to be computed or waited for.
    pub fn view_at_hand(&self, proxy: &mut Proxy, type_url: &TypeUrl) -> Option<View> {
        if !self.is_scoped(proxy) {
            return None;
        }
        let Some(of) = proxy.sheets.as_ref()?.of(type_url) else {
            return Some(View::unknown());
        };
        let generation = self.generation();
        let sets: Option<SmallVec<[ResourceSet; 2]>> = of
            .iter()
            .map(|shared| {
                let sheet = shared.sheet.try_lock().ok()?;
                sheet.is_current(generation).then(|| sheet.set().clone())
            })
            .collect();
        sets.map(View::new)
    }

    /// Problems found while translating for the proxies that are connected.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let live: Vec<Arc<Shared>> = lock(&self.sheets)
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        let mut all: BTreeSet<Diagnostic> = BTreeSet::new();
        for s in live {
            all.extend(lock(&s.sheet).diagnostics().cloned());
        }
        all.into_iter().collect()
    }

    /// How many sheets are in use.
    pub fn sheets(&self) -> usize {
        lock(&self.sheets)
            .values()
            .filter(|w| w.strong_count() > 0)
            .count()
    }

    /// How many resources are yet to be packed.
    pub fn unpacked(&self) -> usize {
        self.interners.packer.len_waiting()
    }

    /// Makes resources that are new take less memory. To be called when nobody is being sent much.
    pub fn pack(&self) {
        self.interners.packer.pack_waiting();
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn refreshed(&self, shared: &Shared) -> ResourceSet {
        let current = |sheet: &Sheet| {
            let current = sheet.is_current(self.generation());
            current.then(|| sheet.set().clone())
        };
        if let Some(set) = current(&lock(&shared.sheet)) {
            return set;
        }
        let mut memo = lock(&shared.memo);
        let mut sheet = lock(&shared.sheet);
        // Somebody may have done it meanwhile.
        if let Some(set) = current(&sheet) {
            return set;
        }
        // What connecting takes is nothing that the last change took.
        let by_change = !(shared.for_newcomer && sheet.is_blank());
        // Read under the lock of the memo, so that nobody has brought it further than this world.
        let (world, generation) = {
            let state = self.read();
            let missed = state
                .history
                .front()
                .is_some_and(|(first, _)| *first > memo.generation + 1);
            if missed || memo.is_empty() || memo.generation < state.forgotten {
                memo.forget(state.generation);
            }
            let since = memo.generation;
            for (generation, facts) in state.history.iter().filter(|(g, _)| *g > since) {
                memo.advance(*generation, facts.iter(), &self.interners.facts);
            }
            (state.world.clone(), state.generation)
        };
        memo.generation = generation;
        let client = shared.section.client();
        let latest = memo.like(client);
        let latest = latest.filter(|latest| {
            shared.section.is_shared_whole() && !Arc::ptr_eq(latest, &shared.sheet)
        });
        let like = latest.as_deref().map(lock);
        let like = like.as_deref().filter(|like| like.is_current(generation));
        let work = Work::new(&shared.section, &world, &mut memo, &self.interners);
        let cost = sheet.refresh(work, like);
        memo.refreshed(client, &shared.sheet);
        drop(memo);
        if cost != Cost::default() {
            self.add_cost(by_change.then_some(generation), cost);
        }
        sheet.set().clone()
    }

    /// What the translation of a generation has taken so far. Nothing is translated before somebody asks; what was not
    /// asked for in time counts for the generation that it was asked for in, and what newcomers ask for counts for none.
    pub fn cost(&self, generation: u64) -> Cost {
        let costs = lock(&self.costs);
        let found = costs.iter().rev().find(|(of, _)| *of == generation);
        found.map_or_else(Cost::default, |(_, cost)| *cost)
    }

    /// What translation has taken since the start.
    pub fn total_cost(&self) -> Cost {
        *lock(&self.total_cost)
    }

    fn add_cost(&self, generation: Option<u64>, more: Cost) {
        {
            let mut total = lock(&self.total_cost);
            total.pieces += more.pieces;
            total.resources += more.resources;
        }
        let Some(generation) = generation else {
            return;
        };
        let mut costs = lock(&self.costs);
        match costs.iter_mut().rev().find(|(of, _)| *of == generation) {
            Some((_, cost)) => {
                cost.pieces += more.pieces;
                cost.resources += more.resources;
            }
            None => costs.push_back((generation, more)),
        }
        if costs.len() > COSTS {
            costs.pop_front();
        }
    }

    /// The current world, what it was derived from, what tells proxies apart in it, and its generation.
    pub(crate) fn now(&self) -> (Arc<World>, Arc<Snapshot>, Distinctions, u64) {
        let state = self.read();
        (
            state.world.clone(),
            state.snapshot.clone(),
            state.apart.clone(),
            state.generation,
        )
    }

    /// Starts a generation in which everything is built again, from this world unless the objects have changed since.
    pub(crate) fn start_over(&self, world: World, apart: Distinctions, of: &Arc<Snapshot>) -> u64 {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&state.snapshot, of) {
            state.world = Arc::new(world);
            state.apart = apart;
        }
        state.advance(Arc::default());
        state.forgotten = state.generation;
        state.rescoped = state.generation;
        self.interners.forget();
        state.generation
    }

    /// Whether the sheets of a proxy are those of its scope still.
    fn is_scoped(&self, proxy: &mut Proxy) -> bool {
        let Some(s) = &mut proxy.sheets else {
            return false;
        };
        let state = self.read();
        if s.generation == state.generation {
            return true;
        }
        let covered = state
            .history
            .front()
            .is_none_or(|(first, _)| *first <= s.generation + 1);
        let untouched = || {
            state
                .history
                .iter()
                .rev()
                .take_while(|(g, _)| *g > s.generation)
                .all(|(_, f)| f.iter().all(|f| !s.facts.contains(f)))
        };
        let scoped = state.rescoped <= s.generation && covered && untouched();
        if scoped {
            s.generation = state.generation;
        }
        scoped
    }

    /// Finds the sheets of a proxy's scope.
    fn scope(&self, proxy: &mut Proxy) {
        let (world, generation, apart) = {
            let state = self.read();
            (state.world.clone(), state.generation, state.apart.clone())
        };
        let node_bound = apart.node_bound > 0 || apart.selectors.reads(HOSTNAME);
        let reader = Reader::new(&world);
        let sections = sections(&reader, &proxy.facts, &apart.selectors, node_bound);
        let is_newcomer = proxy.sheets.is_none();
        let take = |all: Vec<Section>| -> SharedSheets {
            all.into_iter()
                .map(|s| self.sheet(s, is_newcomer))
                .collect()
        };
        proxy.sheets = Some(Sheets {
            generation,
            facts: reader.into_record().facts,
            clusters: take(sections.clusters),
            endpoints: take(sections.endpoints),
            routes: take(sections.routes),
            hosts: take(sections.hosts),
            listeners: take(sections.listeners),
            names: take(sections.names),
            secrets: take(sections.secrets),
        });
    }

    fn sheet(&self, section: Section, for_newcomer: bool) -> Arc<Shared> {
        let mut sheets = lock(&self.sheets);
        if let Some(s) = sheets.get(&section).and_then(Weak::upgrade) {
            return s;
        }
        sheets.retain(|_, w| w.strong_count() > 0);
        let shared = Arc::new(Shared {
            section: section.clone(),
            sheet: Arc::default(),
            for_newcomer,
            memo: self.memo(&section),
        });
        sheets.insert(section, Arc::downgrade(&shared));
        shared
    }
}

impl Engine {
    /// The memo of a section's family.
    fn memo(&self, section: &Section) -> Arc<Mutex<Memo>> {
        let mut memos = lock(&self.memos);
        let family = section.family();
        if let Some(memo) = memos.get(&family).and_then(Weak::upgrade) {
            return memo;
        }
        memos.retain(|_, w| w.strong_count() > 0);
        let memo = Arc::default();
        memos.insert(family, Arc::downgrade(&memo));
        memo
    }
}

impl Sheets {
    /// The sheets that make up a type; `None` for a type that is not served.
    fn of(&self, type_url: &TypeUrl) -> Option<&[Arc<Shared>]> {
        Some(match type_url {
            TypeUrl::Cluster => &self.clusters,
            TypeUrl::Endpoints => &self.endpoints,
            TypeUrl::Listener => &self.listeners,
            TypeUrl::Route => &self.routes,
            TypeUrl::VirtualHost => &self.hosts,
            TypeUrl::NameTable => &self.names,
            TypeUrl::Secret => &self.secrets,
            TypeUrl::Other(_) => return None,
            _ => &[],
        })
    }
}

impl Proxy {
    /// The facts it connected with.
    pub fn facts(&self) -> &ProxyFacts {
        &self.facts
    }
}

struct Sections {
    clusters: Vec<Section>,
    endpoints: Vec<Section>,
    routes: Vec<Section>,
    hosts: Vec<Section>,
    listeners: Vec<Section>,
    names: Vec<Section>,
    secrets: Vec<Section>,
}

/// The scopes of a proxy: the only place where its facts become what lowering may read.
fn sections(
    reader: &Reader<'_>,
    facts: &ProxyFacts,
    selectors: &Selectors,
    node_bound: bool,
) -> Sections {
    let workload = facts
        .addresses
        .iter()
        .find_map(|a| reader.workload(&facts.cluster, a));
    let labels = match &workload {
        Some(w) if facts.labels.is_empty() => w.labels.as_ref(),
        _ => &facts.labels,
    };
    let v4 = facts.addresses.iter().any(|a| !a.contains(':'));
    let v6 = facts.addresses.iter().any(|a| a.contains(':'));
    let families = match (v4, v6) {
        (true, true) if reader.settings().dual_stack => Families::Dual,
        (true, true) => Families::Both,
        (false, _) => Families::V6,
        (true, false) => Families::V4,
    };
    let who = Who {
        namespace: facts.namespace.clone(),
        // One that does not say where it is, is where we are.
        cluster: match &*facts.cluster {
            "" => reader.settings().cluster.clone(),
            _ => facts.cluster.clone(),
        },
        dns_domain: facts.dns_domain.clone(),
        labels: selectors.relevant(labels),
    };
    let mut client = Client::new(facts.kind, families, who);
    client.dns_capture = facts.dns_capture;
    client.interception = facts.interception;
    client.privileged = facts.privileged;
    client.conduct = UNKNOWN.clone();
    // Endpoints and names are the same however a proxy conducts itself.
    let anyone = client.clone();
    client.conduct = Arc::new(Conduct::new(
        facts.config.as_deref(),
        reader.mesh().default_config.as_ref(),
        facts.kind,
        &facts.extras,
    ));
    // Where the workload runs is known better than what its proxy was told.
    let known = workload
        .as_ref()
        .map(|w| w.locality.clone())
        .filter(|l| !l.region.is_empty());
    let locality = known.or_else(|| facts.locality.clone()).unwrap_or_default();
    let instances = workload
        .as_ref()
        .map(|w| w.instances.clone())
        .unwrap_or_default();
    let headless = instances.iter().any(|i| {
        reader
            .service(&i.service)
            .is_some_and(|s| s.resolution == Resolution::Passthrough)
    });
    let tracing = tracing(reader, facts, labels);
    let http_proxy = facts.http_proxy.or_else(|| {
        u16::try_from(reader.mesh().proxy_http_port)
            .ok()
            .filter(|p| *p > 0)
    });
    let network = if reader.network_gateways().is_empty() && facts.view.is_empty() {
        Text::default()
    } else {
        facts.network.clone()
    };
    let d = || facts.dialect.clone();
    let router = facts.kind == ProxyKind::Router;
    let served = if router {
        instances.clone()
    } else {
        Vec::new()
    };
    let mut out = Sections {
        clusters: vec![Section::Clusters(
            ClusterScope {
                client: client.clone().at(locality.clone()),
                files: facts.client_files.clone(),
                network: network.clone(),
            },
            d(),
        )],
        endpoints: vec![Section::Endpoints(
            EndpointScope {
                client: anyone.clone().at(locality),
                network,
                cluster: facts.cluster.clone(),
                node: if node_bound {
                    facts.node.clone()
                } else {
                    Text::default()
                },
                view: facts.view.clone(),
            },
            d(),
        )],
        routes: Vec::new(),
        hosts: Vec::new(),
        listeners: vec![Section::Listeners(
            ListenerScope {
                client: client.clone(),
                tracing: tracing.clone(),
                own_address: headless.then(|| facts.addresses[0].clone()),
                instances: served.clone(),
                http10: facts.http10,
                http_proxy: http_proxy.filter(|_| !router),
                own_ports: facts.own_ports.clone(),
                files: facts.server_files.clone(),
            },
            d(),
        )],
        names: Vec::new(),
        secrets: Vec::new(),
    };
    let routes = RouteScope {
        client: client.clone(),
        instances: served.clone(),
        http_proxy: !router && http_proxy.is_some(),
    };
    if facts.hosts_apart {
        out.routes.push(Section::Tables(routes.clone()));
        out.hosts.push(Section::Hosts(routes, d()));
    } else {
        out.routes.push(Section::Routes(routes, d()));
    }
    if facts.verified {
        let scope = SecretScope {
            client: anyone.clone(),
            namespace: facts.namespace.clone(),
            cluster: facts.cluster.clone(),
            instances: served,
        };
        out.secrets.push(Section::Secrets(scope, d()));
    }
    if facts.dns_capture {
        out.names.push(Section::Names(NameScope {
            client: anyone,
            network: facts.network.clone(),
            cluster: facts.cluster.clone(),
        }));
    }
    if !router {
        // Only a written ingress listener is named after the proxy's own address.
        let ingress = visibility::sidecar(reader, &client)
            .and_then(|o| o.get::<Sidecar>())
            .is_some_and(|s| !s.ingress.is_empty());
        let addresses = if ingress {
            facts.addresses.clone()
        } else {
            Vec::new()
        };
        let inbound = InboundScope {
            client,
            tracing,
            instances,
            http10: facts.http10,
            addresses,
            own_ports: facts.own_ports.clone(),
            files: facts.server_files.clone(),
        };
        out.clusters
            .push(Section::InboundClusters(inbound.clone(), d()));
        out.listeners.push(Section::InboundListeners(inbound, d()));
    }
    out
}

/// How a proxy traces requests, and who it is.
fn tracing(
    reader: &Reader<'_>,
    facts: &ProxyFacts,
    labels: &pilotfish_mesh::Labels,
) -> Option<Tracing> {
    if !reader.mesh().enable_tracing {
        return None;
    }
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    // Envoy refuses an empty tag.
    let or_unknown = |t: &Text| {
        if t.is_empty() {
            Text::from("unknown")
        } else {
            t.clone()
        }
    };
    let config = facts.config.as_deref();
    let own = config
        .or(reader.mesh().default_config.as_ref())
        .and_then(|c| c.tracing.as_ref());
    let fallback = reader
        .settings()
        .features
        .get("PILOT_TRACE_SAMPLING")
        .and_then(|v| v.parse::<f64>().ok())
        .filter(|v| (0.0..=100.0).contains(v))
        .unwrap_or(1.0);
    Some(Tracing {
        service: or_unknown(&label("service.istio.io/canonical-name")),
        revision: Some(label("service.istio.io/canonical-revision"))
            .filter(|r| !r.is_empty())
            .unwrap_or_else(|| Text::from("latest")),
        namespace: or_unknown(&facts.namespace),
        cluster: or_unknown(&facts.cluster),
        mesh: or_unknown(&facts.mesh_id),
        sampling: conduct::sampling(own, fallback),
        own_tags: own.and_then(|t| t.enable_istio_tags) != Some(false),
        tags: conduct::tags(own),
        longest_path: own.map(|t| t.max_path_tag_length).filter(|n| *n > 0),
    })
}
