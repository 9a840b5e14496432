//! Incremental updates against a build from scratch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, LazyLock};

use imbl::OrdMap;
use pilotfish_config::networking::VirtualService;
use pilotfish_config::{ClusterId, Kind, Object, ObjectKey, Snapshot, parse};
use proptest::prelude::*;

use super::listed;
use crate::rules::{Head, Leads, Ranked};
use crate::{Fact, Service, Settings, World};

/// Versions that objects may have, by key.
static VERSIONS: LazyLock<BTreeMap<ObjectKey, Vec<Arc<Object>>>> = LazyLock::new(|| {
    let mut versions: BTreeMap<ObjectKey, Vec<Arc<Object>>> = BTreeMap::new();
    for text in include_str!("tests.yaml").split("\n---\n") {
        let parsed = parse::documents(text, "tests.yaml");
        assert!(
            !parsed.objects.is_empty(),
            "{text}: {:?}",
            parsed.diagnostics
        );
        for object in parsed.objects {
            // What is read of other clusters exists there, too.
            let abroad = matches!(
                object.kind(),
                Kind::Namespace | Kind::Node | Kind::Service | Kind::EndpointSlice | Kind::Pod
            );
            let mut other = object.clone();
            other.key.cluster = ClusterId::named("west").unwrap();
            for version in [Some(object), Some(other).filter(|_| abroad)]
                .into_iter()
                .flatten()
            {
                let version = Arc::new(version);
                versions
                    .entry(version.key.clone())
                    .or_default()
                    .push(version);
            }
        }
    }
    versions
});

/// Versions of the mesh's own configuration.
static MESHES: LazyLock<Vec<Snapshot>> = LazyLock::new(|| {
    let mesh = |text: &str, networks: &str| Snapshot {
        mesh: Arc::new(parse::mesh_config(text, "mesh.yaml").0.unwrap()),
        networks: Arc::new(parse::mesh_networks(networks, "networks.yaml").0.unwrap()),
        ..Snapshot::default()
    };
    vec![
        mesh("{}", "{}"),
        mesh(
            "trustDomain: other.example\ntrustDomainAliases: [old.example]",
            "{}",
        ),
        mesh("defaultServiceExportTo: ['.']", "{}"),
        mesh("discoverySelectors:\n- matchLabels: {seen: 'yes'}", "{}"),
        mesh(
            "discoverySelectors:\n- matchExpressions: [{key: seen, operator: NotIn, values: ['yes']}]",
            "{}",
        ),
        mesh(
            "serviceEntryVisibility:\n  applyToSidecars: true\n  defaultVisibility: NAMESPACE",
            "{}",
        ),
        mesh(
            "{}",
            "networks:\n  far:\n    endpoints:\n    - fromCidr: 10.0.0.0/16",
        ),
        mesh(
            "{}",
            "networks:\n  near:\n    endpoints:\n    - fromRegistry: Kubernetes",
        ),
        mesh(
            "serviceSettings:\n- settings: {clusterLocal: true}\n  hosts: ['*.a.svc.cluster.local']",
            "networks:\n  near:\n    endpoints:\n    - fromRegistry: west",
        ),
    ]
});

#[derive(Clone, Debug)]
enum Change {
    Object(ObjectKey, Option<usize>),
    Mesh(usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let keys: Vec<ObjectKey> = VERSIONS.keys().cloned().collect();
    let object =
        (proptest::sample::select(keys), any::<prop::sample::Index>()).prop_map(|(key, index)| {
            // One choice beside the versions is to have none.
            let count = VERSIONS[&key].len();
            let index = index.index(count + 1);
            Change::Object(key, (index < count).then_some(index))
        });
    let change = prop_oneof![
        30 => object,
        1 => (0..MESHES.len()).prop_map(Change::Mesh),
    ];
    proptest::collection::vec(change, 1..8)
}

fn apply(snapshot: &Snapshot, batch: &[Change]) -> (Snapshot, Vec<ObjectKey>) {
    let mut next = snapshot.clone();
    let mut changed = BTreeSet::new();
    for change in batch {
        match change {
            Change::Object(key, version) => {
                match version {
                    Some(version) => next
                        .objects
                        .insert(key.clone(), VERSIONS[key][*version].clone()),
                    None => next.objects.remove(key),
                };
                changed.insert(key.clone());
            }
            Change::Mesh(version) => {
                next.mesh = MESHES[*version].mesh.clone();
                next.networks = MESHES[*version].networks.clone();
            }
        }
    }
    (next, changed.into_iter().collect())
}

fn scratch(snapshot: &Snapshot) -> World {
    let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
    World::empty(settings()).update(snapshot, &keys).world
}

fn settings() -> Settings {
    Settings {
        dual_stack: true,
        ..Settings::default()
    }
}

fn differences<K: Ord + Clone + Debug, V: Clone>(
    a: &OrdMap<K, V>,
    b: &OrdMap<K, V>,
    equal: impl Fn(&V, &V) -> bool,
) -> Vec<K> {
    let keys: BTreeSet<&K> = a.keys().chain(b.keys()).collect();
    keys.into_iter()
        .filter(|key| match (a.get(*key), b.get(*key)) {
            (Some(a), Some(b)) => !equal(a, b),
            _ => true,
        })
        .cloned()
        .collect()
}

fn same_objects(a: &Ranked, b: &Ranked) -> bool {
    a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.same_content(b))
}

/// Every fact whose value differs between two worlds.
fn facts(a: &World, b: &World) -> BTreeSet<Fact> {
    let mut out = BTreeSet::new();
    if a.mesh != b.mesh || a.networks != b.networks {
        out.insert(Fact::Mesh);
    }
    let list = |world: &World| -> Vec<_> {
        let services = world.ordered.iter();
        services
            .map(|s| {
                (
                    s.id.clone(),
                    s.ports.clone(),
                    s.export_to.clone(),
                    s.addresses.clone(),
                )
            })
            .collect()
    };
    if list(a) != list(b) {
        out.insert(Fact::Services);
    }
    let same_list = |a: &Arc<Vec<Arc<Service>>>, b: &Arc<Vec<Arc<Service>>>| {
        a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| listed(a) == listed(b))
    };
    let namespaces = differences(&a.by_namespace, &b.by_namespace, same_list);
    out.extend(namespaces.into_iter().map(Fact::ServicesIn));
    out.extend(
        differences(&a.services, &b.services, |a, b| a == b)
            .into_iter()
            .map(Fact::Service),
    );
    out.extend(
        differences(&a.by_host, &b.by_host, |a, b| a == b)
            .into_iter()
            .map(Fact::Host),
    );
    out.extend(
        differences(&a.by_port, &b.by_port, |a, b| a == b)
            .into_iter()
            .map(Fact::Port),
    );
    let ports_in = differences(&a.by_port_in, &b.by_port_in, |a, b| a == b).into_iter();
    out.extend(ports_in.map(|(namespace, port)| Fact::PortIn(namespace, port)));
    out.extend(
        differences(&a.endpoints, &b.endpoints, |a, b| a == b)
            .into_iter()
            .map(Fact::Endpoints),
    );
    out.extend(
        differences(&a.identities, &b.identities, |a, b| a == b)
            .into_iter()
            .map(Fact::Identities),
    );
    let addresses = a.addresses().into_iter().chain(b.addresses());
    let differ = addresses.filter(|address| a.workloads_at(address) != b.workloads_at(address));
    out.extend(differ.map(Fact::Workload));
    out.extend(
        differences(&a.destination_rules, &b.destination_rules, same_objects)
            .into_iter()
            .map(Fact::DestinationRules),
    );
    out.extend(
        differences(&a.virtual_services, &b.virtual_services, same_objects)
            .into_iter()
            .map(Fact::VirtualServices),
    );
    let same_heads = |a: &Ranked, b: &Ranked| Head::all(a) == Head::all(b);
    out.extend(
        differences(&a.virtual_services, &b.virtual_services, same_heads)
            .into_iter()
            .map(Fact::VirtualServiceHeads),
    );
    let same_leads = |a: &Ranked, b: &Ranked| Leads::all(a) == Leads::all(b);
    out.extend(
        differences(&a.virtual_services, &b.virtual_services, same_leads)
            .into_iter()
            .map(Fact::VirtualServiceLeads),
    );
    out.extend(
        differences(
            &a.gateway_virtual_services,
            &b.gateway_virtual_services,
            same_heads,
        )
        .into_iter()
        .map(Fact::GatewayVirtualServiceHeads),
    );
    out.extend(
        differences(
            &a.peer_authentications,
            &b.peer_authentications,
            same_objects,
        )
        .into_iter()
        .map(Fact::PeerAuthentications),
    );
    out.extend(
        differences(&a.sidecars, &b.sidecars, same_objects)
            .into_iter()
            .map(Fact::Sidecars),
    );
    if a.sidecar_namespaces != b.sidecar_namespaces {
        out.insert(Fact::SidecarNamespaces);
    }
    if !same_objects(&a.gateways, &b.gateways) {
        out.insert(Fact::Gateways);
    }
    if a.network_gateways != b.network_gateways {
        out.insert(Fact::NetworkGateways);
    }
    let services = |w: &World| -> BTreeMap<ObjectKey, Arc<Object>> {
        let all = w.snapshot.typed::<VirtualService>();
        all.map(|(o, _)| (o.key.clone(), o.clone())).collect()
    };
    let (before, after) = (services(a), services(b));
    for key in before.keys().chain(after.keys()) {
        let same =
            matches!((before.get(key), after.get(key)), (Some(a), Some(b)) if a.same_content(b));
        if !same {
            out.insert(Fact::VirtualService(key.clone()));
        }
    }
    let wildcards = |m: &imbl::OrdMap<crate::Text, crate::rules::Ranked>| -> Vec<crate::Text> {
        m.keys().filter(|h| h.starts_with('*')).cloned().collect()
    };
    if wildcards(&a.destination_rules) != wildcards(&b.destination_rules) {
        out.insert(Fact::DestinationRuleWildcards);
    }
    if wildcards(&a.virtual_services) != wildcards(&b.virtual_services) {
        out.insert(Fact::VirtualServiceWildcards);
    }
    if a.virtual_services.keys().ne(b.virtual_services.keys()) {
        out.insert(Fact::VirtualServiceHosts);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_change_gives_the_world_that_scratch_gives(batches in proptest::collection::vec(changes(), 1..12)) {
        let mut snapshot = Snapshot::default();
        let mut world = World::empty(settings());
        for batch in batches {
            let (next, changed) = apply(&snapshot, &batch);
            let update = world.update(&next, &changed);
            let fresh = scratch(&next);
            prop_assert_eq!(facts(&update.world, &fresh), BTreeSet::new());
            prop_assert_eq!(&*update.world.ordered, &*fresh.ordered);
            prop_assert_eq!(&update.world.by_namespace, &fresh.by_namespace);
            let unasked = world.begin(&next, &changed);
            prop_assert_eq!(facts(&unasked, &fresh), BTreeSet::new());
            prop_assert_eq!(&*unasked.ordered, &*fresh.ordered);
            prop_assert_eq!(&unasked.by_namespace, &fresh.by_namespace);
            let reported: BTreeSet<Fact> = update.changed.iter().cloned().collect();
            let mut differing = facts(&world, &update.world);
            // The list shows a little more of a service than this test compares.
            if reported.contains(&Fact::Services) {
                differing.insert(Fact::Services);
            }
            prop_assert_eq!(reported, differing);
            let _ = update.world.diagnostics();
            snapshot = next;
            world = update.world;
        }
    }
}
