//! Whatever happens to the mesh and on the wire, a proxy ends up with what a new control plane sends to a new proxy.
//!
//! Changes are made while clients of both protocols read late, answer late, twice or never, reject, ask for what they have,
//! and come back with or without what they held. They share a pool, as all streams of a server do.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fmt::Write as _;

use common::bench::{Bench, TYPES, settings};
use common::edits::{self, Edit, Step};
use common::envoy::{Answer, BY_NAME, Envoy, Habits, Net};
use common::settings::MESHES;
use common::{FURNISHED, proxies};
use proptest::prelude::*;
use proptest::sample::Index;

/// What happens to one of the clients.
#[derive(Clone, Debug)]
enum Act {
    /// The server reads a request.
    Read,
    /// The client takes a response.
    Take(Answer),
    /// The server looks for what is new, of one type or of all; it may have waited for an answer long enough.
    Look(Index, bool),
    LookAtAll(bool),
    Withdraw,
    /// All is delivered.
    Deliver,
    AskAgain(Index, Index),
    Mute(Index, Index),
    Unmute,
    Flicker(Index, Index),
    Stale(Index, Index, bool),
    Reconnect(bool),
}

#[derive(Clone, Debug)]
enum Event {
    One(Index, Act),
    /// Settings of the mesh change, and with them most clusters; the stream breaks after so many responses of the push.
    Break(Index, usize, u8),
    Audit(usize),
    /// It was quiet: what was made takes less memory.
    Pack,
    /// Everything is delivered to everybody, and what they have then is compared.
    Check,
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => Just(Answer::Accept),
        1 => Just(Answer::Twice),
        2 => Just(Answer::Never),
        2 => any::<u8>().prop_map(Answer::Reject),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let index = any::<Index>;
    prop_oneof![
        8 => Just(Act::Read),
        10 => answer().prop_map(Act::Take),
        4 => (index(), any::<bool>()).prop_map(|(t, waited)| Act::Look(t, waited)),
        8 => proptest::bool::weighted(0.2).prop_map(Act::LookAtAll),
        3 => Just(Act::Withdraw),
        8 => Just(Act::Deliver),
        3 => (index(), index()).prop_map(|(t, n)| Act::AskAgain(t, n)),
        3 => (index(), index()).prop_map(|(t, n)| Act::Mute(t, n)),
        2 => Just(Act::Unmute),
        3 => (index(), index()).prop_map(|(t, n)| Act::Flicker(t, n)),
        2 => (index(), index(), any::<bool>()).prop_map(|(t, n, no)| Act::Stale(t, n, no)),
        3 => any::<bool>().prop_map(Act::Reconnect),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        52 => (any::<Index>(), act()).prop_map(|(client, act)| Event::One(client, act)),
        2 => (any::<Index>(), 0..MESHES.len(), 0..4u8)
            .prop_map(|(client, mesh, after)| Event::Break(client, mesh, after)),
        2 => any::<u8>().prop_map(|turn| Event::Audit(turn.into())),
        2 => Just(Event::Pack),
        1 => Just(Event::Check),
    ]
}

/// Which of all proxies a client is, and what it does on its own account.
fn clients() -> impl Strategy<Value = Vec<(Index, Habits)>> {
    let habits = any::<(bool, bool, bool)>();
    let habits = habits.prop_map(|(delta, star, hasty)| Habits { delta, star, hasty });
    proptest::collection::vec((any::<Index>(), habits), 2..7)
}

/// So many services that clients who want all of them share the set of their names.
fn crowd() -> String {
    let mut text = String::new();
    for n in 0..40 {
        let _ = write!(
            text,
            "{{apiVersion: v1, kind: Service, metadata: {{name: many-{n}, namespace: shop}}, \
             spec: {{clusterIP: 10.97.0.{n}, ports: [{{name: http, port: 80}}]}}}}\n---\n"
        );
    }
    text
}

struct Scene {
    bench: Bench,
    net: Net,
    clients: Vec<(&'static str, Envoy)>,
}

impl Scene {
    fn new(dual_stack: bool, clients: Vec<(Index, Habits)>) -> Self {
        let bench = Bench::with(settings(dual_stack), Vec::new());
        let net = Net::default();
        let all = proxies::all();
        let connect = |(which, habits): (Index, Habits)| {
            let (name, facts) = which.get(&all);
            // Some get their hosts one by one whatever is asked.
            let delta = habits.delta || proxies::APART.contains(name);
            let habits = Habits { delta, ..habits };
            // Hosts come one by one to those who speak the incremental protocol, unless the operator says otherwise.
            let apart = habits.delta && habits.star == habits.hasty;
            let facts = if apart {
                facts.clone().with_hosts_apart()
            } else {
                facts.clone()
            };
            (*name, Envoy::new(&bench.engine, &facts, habits, &net))
        };
        let clients = clients.into_iter().map(connect).collect();
        Self {
            bench,
            net,
            clients,
        }
    }

    fn act(&mut self, client: Index, act: &Act) {
        let at = client.index(self.clients.len());
        let (engine, client) = (&self.bench.engine, &mut self.clients[at].1);
        match act {
            Act::Read => drop(client.read(engine)),
            Act::Take(answer) => drop(client.take(*answer)),
            Act::Look(t, waited) => drop(client.look(engine, t.get(&TYPES), *waited)),
            Act::LookAtAll(waited) => drop(client.look_at_all(engine, *waited)),
            Act::Withdraw => drop(client.withdraw_all(false)),
            Act::Deliver => client.deliver(engine),
            Act::AskAgain(t, name) => client.ask_again(t.get(&TYPES), *name),
            Act::Mute(t, name) => client.mute(t.get(&BY_NAME), *name),
            Act::Unmute => client.unmute(),
            Act::Flicker(t, name) => client.flicker(t.get(&BY_NAME), *name),
            Act::Stale(t, nonce, rejects) => {
                client.say_something_stale(t.get(&TYPES), *nonce, *rejects);
            }
            Act::Reconnect(keeps) => client.reconnect(engine, *keeps),
        }
    }

    fn break_off(&mut self, client: Index, mesh: usize, after: u8) {
        let at = client.index(self.clients.len());
        let client = &mut self.clients[at].1;
        client.deliver(&self.bench.engine);
        edits::apply(&mut self.bench, &Edit::Mesh(mesh));
        client.look_at_all(&self.bench.engine, true);
        for _ in 0..after {
            client.take(Answer::Accept);
        }
        client.reconnect(&self.bench.engine, true);
    }

    /// Incremental state is what it would be from scratch, of one sheet.
    fn audit(&self, turn: usize) -> Result<(), TestCaseError> {
        if let Some((audit, _)) = self.bench.engine.audit(turn) {
            prop_assert!(audit.is_clean(), "the audit finds {audit:#?}");
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let engine = &self.bench.engine;
        let fresh = self.bench.fresh().engine;
        let net = self.net.another();
        for (name, client) in &mut self.clients {
            client.settle(engine);
            let mut newcomer = client.newcomer(&fresh, &net);
            newcomer.deliver(&fresh);
            prop_assert!(newcomer.holds() > 0, "{name} is sent nothing");
            if let Some(difference) = client.difference(engine, &newcomer) {
                return Err(TestCaseError::fail(format!("{name}: {difference}")));
            }
        }
        for turn in 0..3 {
            self.audit(turn)?;
        }
        Ok(())
    }

    fn run(&mut self, steps: Vec<Step<Event>>) -> Result<(), TestCaseError> {
        for step in steps {
            match step {
                Step::Edit(edit) => edits::apply(&mut self.bench, &edit),
                Step::Event(Event::One(client, act)) => self.act(client, &act),
                Step::Event(Event::Break(client, mesh, after)) => {
                    self.break_off(client, mesh, after);
                }
                Step::Event(Event::Audit(turn)) => self.audit(turn)?,
                Step::Event(Event::Pack) => {
                    self.bench.engine.pack();
                    prop_assert_eq!(self.bench.engine.unpacked(), 0);
                }
                Step::Event(Event::Check) => self.check()?,
            }
        }
        self.check()
    }
}

proptest! {
    #![proptest_config(common::cases(60))]

    #[test]
    fn clients_end_up_with_what_a_new_one_gets(
        dual_stack in any::<bool>(),
        clients in clients(),
        furnished in any::<bool>(),
        crowded in proptest::bool::weighted(0.2),
        steps in edits::steps(120, 90, event()),
    ) {
        let mut scene = Scene::new(dual_stack, clients);
        if furnished {
            scene.bench.write(FURNISHED);
        }
        if crowded {
            scene.bench.write(&crowd());
        }
        scene.run(steps)?;
    }
}
