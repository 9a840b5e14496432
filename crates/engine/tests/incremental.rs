//! Changes applied one by one, to proxies that ask now and then, give what a new engine makes of the last state.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::bench::{Bench, TYPES, difference, settings};
use common::settings::{MESHES, NETWORKS};
use common::{Text, object_of};
use pilotfish_config::{Change, ObjectKey};
use pilotfish_xds::TypeUrl;
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Step {
    /// An object comes or says something else.
    Put(Text),
    /// Several at once, as from one file.
    PutMany(Vec<Text>),
    /// One of those that are there goes.
    Delete(Index),
    /// One goes and comes back as it was, in one batch.
    Replace(Index),
    Mesh(usize),
    Networks(usize),
    /// One proxy asks for one type, so that its sheets lag behind by different numbers of generations.
    Ask(Index, Index),
    AskAll(Index),
    /// A proxy leaves, and its sheets with it if it was the last of its scope.
    Reconnect(Index),
    /// Everybody asks, and what they get is compared.
    Check,
}

/// Rolls of the dice, before they are objects.
#[derive(Clone, Debug)]
enum Raw {
    Fresh(Vec<u8>),
    /// An earlier object with one roll made again: most often the same object with one field changed.
    Tweak(Index, Index, u8),
    Several(Vec<Vec<u8>>),
    Other(Step),
}

fn rolls() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 40)
}

fn raw() -> impl Strategy<Value = Raw> {
    let index = any::<Index>;
    let ask = (index(), index()).prop_map(|(p, t)| Step::Ask(p, t));
    prop_oneof![
        10 => rolls().prop_map(Raw::Fresh),
        10 => (index(), index(), any::<u8>()).prop_map(|(o, at, roll)| Raw::Tweak(o, at, roll)),
        2 => proptest::collection::vec(rolls(), 2..6).prop_map(Raw::Several),
        6 => index().prop_map(|i| Raw::Other(Step::Delete(i))),
        1 => index().prop_map(|i| Raw::Other(Step::Replace(i))),
        1 => (0..MESHES.len()).prop_map(|i| Raw::Other(Step::Mesh(i))),
        1 => (0..NETWORKS.len()).prop_map(|i| Raw::Other(Step::Networks(i))),
        10 => ask.prop_map(Raw::Other),
        4 => index().prop_map(|p| Raw::Other(Step::AskAll(p))),
        1 => index().prop_map(|p| Raw::Other(Step::Reconnect(p))),
        1 => Just(Raw::Other(Step::Check)),
    ]
}

/// The first rolls choose kind and name; tweaks leave them alone.
const IDENTITY: usize = 4;

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(raw(), 1..most).prop_map(|raw| {
        let mut known: Vec<Vec<u8>> = Vec::new();
        let mut steps = Vec::new();
        for raw in raw {
            match raw {
                Raw::Fresh(rolls) => {
                    steps.push(Step::Put(object_of(&rolls)));
                    known.push(rolls);
                }
                Raw::Tweak(which, at, roll) if !known.is_empty() => {
                    let mut rolls = which.get(&known).clone();
                    rolls[IDENTITY + at.index(20)] = roll;
                    steps.push(Step::Put(object_of(&rolls)));
                    known.push(rolls);
                }
                Raw::Tweak(..) => {}
                Raw::Several(all) => {
                    steps.push(Step::PutMany(all.iter().map(|r| object_of(r)).collect()));
                    known.extend(all);
                }
                Raw::Other(step) => steps.push(step),
            }
        }
        steps
    })
}

fn pick(bench: &Bench, index: Index) -> Option<ObjectKey> {
    let snapshot = bench.snapshot();
    let keys: Vec<&ObjectKey> = snapshot.objects.keys().collect();
    (!keys.is_empty()).then(|| (*index.get(&keys)).clone())
}

fn check(bench: &mut Bench) -> Result<(), TestCaseError> {
    let mut fresh = bench.fresh();
    let (left, right) = (bench.dump(), fresh.dump());
    if let Some(d) = difference(&left, &right) {
        return Err(TestCaseError::fail(format!(
            "step by step (left) and from scratch (right): {d}"
        )));
    }
    prop_assert_eq!(bench.engine.diagnostics(), fresh.engine.diagnostics());
    prop_assert_eq!(bench.engine.sheets(), fresh.engine.sheets());
    Ok(())
}

fn run(bench: &mut Bench, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let proxies = bench.proxies.len();
    for step in steps {
        match step {
            Step::Put(text) => bench.put([&text]),
            Step::PutMany(texts) => bench.put(&texts),
            Step::Delete(index) => {
                if let Some(key) = pick(bench, index) {
                    bench.delete(&key);
                }
            }
            Step::Replace(index) => {
                if let Some(key) = pick(bench, index) {
                    let object = (**bench.snapshot().get(&key).unwrap()).clone();
                    bench.change(vec![Change::Delete(key), Change::Upsert(object)]);
                }
            }
            Step::Mesh(i) => bench.set_mesh(MESHES[i]),
            Step::Networks(i) => bench.set_networks(NETWORKS[i]),
            Step::Ask(p, t) => {
                bench.ask(p.index(proxies), t.get(&TYPES));
            }
            Step::AskAll(p) => {
                for t in &TYPES {
                    bench.ask(p.index(proxies), t);
                }
            }
            Step::Reconnect(p) => {
                let proxy = &mut bench.proxies[p.index(proxies)].1;
                *proxy = bench.engine.connect(proxy.facts().clone());
            }
            Step::Check => check(bench)?,
        }
    }
    check(bench)
}

proptest! {
    #![proptest_config(common::cases(60))]

    #[test]
    fn step_by_step_is_as_from_scratch(steps in steps(60), dual_stack in any::<bool>(), furnished in any::<bool>()) {
        let mut bench = Bench::new(settings(dual_stack));
        if furnished {
            bench.write(common::FURNISHED);
        }
        run(&mut bench, steps)?;
    }
}

/// A service, and a rule for it whose weight can be told apart.
fn weighted(weight: usize) -> Text {
    let other = 100 - weight;
    Text(format!(
        "{{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: routes-a, namespace: shop}}, spec: {{hosts: [web], http: [\
         {{route: [{{destination: {{host: web}}, weight: {weight}}}, {{destination: {{host: cart}}, weight: {other}}}]}}]}}}}"
    ))
}

/// A sheet that nobody asked for is forgotten rather than brought forward change by change.
#[test]
fn a_proxy_that_slept_for_long_gets_the_truth() {
    let mut bench = Bench::new(settings(false));
    bench.write(common::FURNISHED);
    bench.dump();
    for n in 0..1100 {
        bench.put([&weighted(n % 99 + 1)]);
        if n % 100 == 0 {
            bench.ask(0, &TypeUrl::Route);
        }
    }
    check(&mut bench).unwrap();
}

/// What depends on its own labels follows them: a proxy that brings none has those of its pod.
#[test]
fn a_pod_that_is_relabelled_changes_its_view() {
    let at = |bench: &Bench| {
        bench
            .proxies
            .iter()
            .position(|(name, _)| name.starts_with("labels of its pod"))
            .unwrap()
    };
    let pod = |app: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p3, namespace: bank, labels: {{app: {app}}}}}, spec: {{containers: [{{name: c}}]}}, \
         status: {{phase: Running, podIP: 10.0.0.3, conditions: [{{type: Ready, status: 'True'}}]}}}}"
        )
    };
    let clusters = |bench: &mut Bench, at| -> Vec<String> {
        let all = bench.resources(at, &TypeUrl::Cluster);
        all.iter()
            .filter(|r| r.name.starts_with("outbound|"))
            .map(|r| r.name.to_string())
            .collect()
    };
    let mut bench = Bench::new(settings(false));
    bench.write(common::FURNISHED);
    bench.write(&pod("teller"));
    let at = at(&bench);
    let before = clusters(&mut bench, at);
    assert!(before.len() > 4, "{before:?}");
    bench.write(
        "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: view-b, namespace: bank}, \
         spec: {workloadSelector: {labels: {app: vault}}, egress: [{hosts: ['./*']}]}}",
    );
    assert_eq!(clusters(&mut bench, at), before, "it is not meant");
    bench.write(&pod("vault"));
    assert_eq!(
        clusters(&mut bench, at),
        [
            "outbound|9000||db.example",
            "outbound|9090||db.bank.svc.cluster.local"
        ]
    );
    bench.write(&pod("teller"));
    assert_eq!(clusters(&mut bench, at), before);
    check(&mut bench).unwrap();
}
