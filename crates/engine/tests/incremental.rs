//! Changes applied one by one, to proxies that ask now and then, give what a new engine makes of the last state.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Text;
use common::bench::{Bench, TYPES, difference, settings};
use common::edits::{self, Step};
use pilotfish_xds::TypeUrl;
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Event {
    /// One proxy asks for one type, so that its sheets lag behind by different numbers of generations.
    Ask(Index, Index),
    AskAll(Index),
    /// A proxy leaves, and its sheets with it if it was the last of its scope.
    Reconnect(Index),
    /// Everybody asks, and what they get is compared.
    Check,
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<Index>;
    prop_oneof![
        10 => (index(), index()).prop_map(|(p, t)| Event::Ask(p, t)),
        4 => index().prop_map(Event::AskAll),
        1 => index().prop_map(Event::Reconnect),
        1 => Just(Event::Check),
    ]
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

fn run(bench: &mut Bench, steps: Vec<Step<Event>>) -> Result<(), TestCaseError> {
    let proxies = bench.proxies.len();
    for step in steps {
        match step {
            Step::Edit(edit) => edits::apply(bench, &edit),
            Step::Event(Event::Ask(p, t)) => {
                bench.ask(p.index(proxies), t.get(&TYPES));
            }
            Step::Event(Event::AskAll(p)) => {
                for t in &TYPES {
                    bench.ask(p.index(proxies), t);
                }
            }
            Step::Event(Event::Reconnect(p)) => {
                let proxy = &mut bench.proxies[p.index(proxies)].1;
                *proxy = bench.engine.connect(proxy.facts().clone());
            }
            Step::Event(Event::Check) => check(bench)?,
        }
    }
    check(bench)
}

proptest! {
    #![proptest_config(common::cases(60))]

    #[test]
    fn step_by_step_is_as_from_scratch(steps in edits::steps(60, 16, event()), dual_stack in any::<bool>(), furnished in any::<bool>()) {
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

/// Domains move from one host of a table to another that comes in the same change.
#[test]
fn an_alias_that_becomes_a_service_takes_its_domains_along() {
    let mut bench = Bench::new(settings(false));
    bench.write(
        "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: entry-a, namespace: shop}
spec:
  hosts: [api.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {type: ExternalName, externalName: api.example, ports: [{name: http, port: 80}]}
",
    );
    check(&mut bench).unwrap();
    bench.write(
        "
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{name: http, port: 80}]}
",
    );
    check(&mut bench).unwrap();
}

/// A host that changes its domains is another resource of the same name, where hosts come one by one.
#[test]
fn a_service_that_gets_another_address_changes_its_host() {
    let entry = |addresses: &str| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: entry-c, namespace: shop}}
spec:
  hosts: [api.example]
  addresses: {addresses}
  ports: [{{number: 80, name: http, protocol: HTTP}}, {{number: 8080, name: odd, protocol: HTTP_PROXY}}]
  resolution: STATIC
"
        )
    };
    let mut bench = Bench::new(settings(true));
    bench.write(&entry("[10.97.0.1]"));
    check(&mut bench).unwrap();
    bench.write(&entry("[10.97.0.1, 10.97.0.2]"));
    check(&mut bench).unwrap();
}
