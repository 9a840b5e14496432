//! Sessions of both variants under any requests, and a client that keeps to the rules, which must end up with the truth.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pilotfish_xds::TypeUrl::{
    self, Cluster, Endpoints, Listener, NameTable, Route, Secret, VirtualHost,
};
use pilotfish_xds::{
    Generation, Nonce, Protocol, Resource, ResourceSet, Response, SessionConfig, View, Watch,
};

use crate::dice::Dice;

mod variant;

use variant::{Delta, NAMES, Seen, Side, Sotw, Variant};

const TYPES: [TypeUrl; 7] = [
    Cluster,
    Endpoints,
    Listener,
    Route,
    VirtualHost,
    Secret,
    NameTable,
];

/// The server's side: what there is of each type, in two sections.
#[derive(Default)]
struct World {
    sections: BTreeMap<TypeUrl, [ResourceSet; 2]>,
    generation: u64,
}

impl World {
    fn change(&mut self, dice: &mut Dice<'_>) {
        let (t, name) = (dice.roll(TYPES.len()), dice.pick(&NAMES));
        let content = dice.roll(4);
        self.generation += 1;
        let t = &TYPES[t];
        trace!("world: {} {name} = {content}", t.short());
        let sections = self.sections.entry(t.clone()).or_default();
        for section in sections.iter_mut() {
            section.remove(name);
        }
        if content > 0 {
            // The body names the resource, so that a state-of-the-world client can tell which it is.
            let body = format!("{name}={content}");
            let resource = Resource::wrap(t.as_str(), name.into(), body.as_bytes(), [].into());
            sections[content % 2].insert(resource);
        }
    }

    fn view(&self, t: &TypeUrl) -> View {
        match t {
            TypeUrl::Other(_) => View::unknown(),
            t => View::new(self.sections.get(t).cloned().unwrap_or_default()),
        }
    }
}

struct Link<V: Variant> {
    session: V::Session,
    world: World,
    sides: BTreeMap<TypeUrl, Side>,
    up: VecDeque<<V::Session as Protocol>::Request>,
    down: VecDeque<(TypeUrl, Seen)>,
    nonces: Vec<String>,
    /// What was ever asked for, by type; `*` stands for everything.
    asked: BTreeMap<TypeUrl, BTreeSet<String>>,
}

impl<V: Variant> Link<V> {
    fn new(config: SessionConfig) -> Self {
        Self {
            session: V::Session::new(config),
            world: World::default(),
            sides: BTreeMap::new(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            nonces: Vec::new(),
            asked: BTreeMap::new(),
        }
    }

    /// What must be true of any response, whatever was asked.
    fn sent(&mut self, t: &TypeUrl, response: &Response) -> Seen {
        let seen = V::decode(t, response);
        trace!("server sends {} {seen:?}", t.short());
        let watch = self
            .session
            .watches()
            .get(t)
            .expect("only what is watched is sent");
        assert_eq!(seen.nonce, response.nonce.to_string());
        assert_eq!(watch.sent(), Nonce::parse(&seen.nonce), "the newest nonce");
        assert!(!self.nonces.contains(&seen.nonce), "a nonce twice");
        let held: BTreeSet<&str> = watch.held().map(|r| &*r.name).collect();
        let asked = self.asked.entry(t.clone()).or_default();
        for name in seen.resources.keys() {
            if watch.subscription().covers(name) {
                let known = held.contains(name.as_str());
                assert!(known, "{name} was sent but is not taken to be held");
                continue;
            }
            // After a rejection a name that is no longer wanted may come once more; clients do not mind.
            let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
            let ever = [name, parent, "*"].iter().any(|n| asked.contains(*n));
            assert!(ever, "{name} was never asked for");
        }
        self.nonces.push(seen.nonce.clone());
        seen
    }

    /// Hands a request to the server; the type it is about, unless it ends the stream.
    fn request(&mut self, request: <V::Session as Protocol>::Request) -> Option<TypeUrl> {
        trace!("server reads {request:?}");
        let reply = self.session.on_request(request).ok()?;
        let watch = self
            .session
            .watches()
            .get(&reply.type_url)
            .expect("a watch");
        let subscription = watch.subscription();
        let asked = self.asked.entry(reply.type_url.clone()).or_default();
        asked.extend(subscription.named().iter().map(ToString::to_string));
        asked.extend(subscription.is_wildcard().then(|| "*".to_owned()));
        Some(reply.type_url)
    }

    fn push(&mut self, t: &TypeUrl) {
        let generation = Generation(self.world.generation);
        if let Some(response) = self.session.push(t, self.world.view(t), generation) {
            let seen = self.sent(t, &response);
            self.down.push_back((t.clone(), seen));
        }
        if let Some(watch) = self.session.watches().get(t) {
            assert!(
                !watch.wants_answer(),
                "a push leaves nothing to be answered"
            );
            let again = self.session.push(t, self.world.view(t), generation);
            assert!(again.is_none(), "the same view twice gives two responses");
        }
    }

    fn withdraw(&mut self, t: &TypeUrl) {
        if let Some(response) = self.session.withdraw(t) {
            let seen = self.sent(t, &response);
            self.down.push_back((t.clone(), seen));
        }
    }

    fn in_flight(&self, t: &TypeUrl) -> bool {
        self.session.watches().get(t).is_some_and(Watch::in_flight)
    }

    fn server_reads(&mut self) -> bool {
        let Some(request) = self.up.pop_front() else {
            return false;
        };
        let t = self.request(request).expect("a good request");
        let watch = self.session.watches().get(&t);
        if watch.is_some_and(Watch::wants_answer) {
            self.push(&t);
        }
        true
    }

    fn client_reads(&mut self, accept: bool) -> bool {
        let Some((t, seen)) = self.down.pop_front() else {
            return false;
        };
        let side = self.sides.entry(t.clone()).or_default();
        trace!(
            "client reads {} {}, accepts: {accept}",
            t.short(),
            seen.nonce
        );
        let request = V::take(side, &t, seen, accept);
        self.up.push_back(request);
        true
    }

    fn subscribe(&mut self, t: &TypeUrl, name: &str, add: bool) {
        let side = self.sides.entry(t.clone()).or_default();
        let request = V::subscribe(side, t, name, add);
        self.up.push_back(request);
    }

    /// Anything goes; nothing is known of what the client has.
    fn wild(mut self, dice: &mut Dice<'_>) {
        while !dice.is_empty() {
            match dice.roll(6) {
                0 => self.world.change(dice),
                1..=3 => {
                    let request = V::wild(dice, &self.nonces);
                    self.request(request);
                }
                4 => self.push(&TYPES[dice.roll(TYPES.len())]),
                _ => self.withdraw(&TYPES[dice.roll(TYPES.len())]),
            }
            self.down.clear();
        }
    }

    /// A client that keeps to the rules, on a slow line.
    fn honest(mut self, dice: &mut Dice<'_>) {
        while !dice.is_empty() {
            match dice.roll(12) {
                0..=2 => self.world.change(dice),
                3 | 4 => {
                    let t = &TYPES[dice.roll(TYPES.len())];
                    let name = match t {
                        VirtualHost => dice.pick(&["a", "b", "a/x", "a/y", "b/x", "*"]),
                        _ => dice.pick(&["a", "b", "c", "a/x", "*"]),
                    };
                    self.subscribe(t, name, dice.roll(3) > 0);
                }
                5 | 6 => drop(self.server_reads()),
                7 | 8 => drop(self.client_reads(true)),
                9 => {
                    let t = &TYPES[dice.roll(TYPES.len())];
                    if !self.in_flight(t) {
                        self.push(t);
                    }
                }
                10 => {
                    let t = &TYPES[dice.roll(TYPES.len())];
                    if !self.in_flight(t) {
                        self.withdraw(t);
                    }
                }
                // Rejections are rarer: a rejection keeps the client behind until something else changes.
                _ => drop(self.client_reads(dice.roll(4) > 0)),
            }
        }
        self.settle();
        self.check();
    }

    /// One more change of each type makes up for rejections; then all is delivered until nothing moves.
    fn settle(&mut self) {
        let started: Vec<TypeUrl> = self
            .sides
            .iter()
            .filter(|(_, s)| s.started)
            .map(|(t, _)| t.clone())
            .collect();
        for t in &started {
            let resource = Resource::wrap(t.as_str(), "z".into(), b"z=1", [].into());
            self.world.sections.entry(t.clone()).or_default()[0].insert(resource);
            self.subscribe(t, "z", true);
        }
        for round in 0.. {
            assert!(round < 100, "it never ends");
            while self.server_reads() {}
            for t in &started {
                if !self.in_flight(t) {
                    self.push(t);
                }
                if !self.in_flight(t) {
                    self.withdraw(t);
                }
            }
            if self.up.is_empty() && self.down.is_empty() {
                break;
            }
            while self.client_reads(true) {}
        }
    }

    fn check(&self) {
        for (t, side) in self.sides.iter().filter(|(_, s)| s.started) {
            let view = self.world.view(t);
            let wanted: BTreeMap<String, String> = view
                .iter()
                .filter(|r| side.wants(t, &r.name))
                .map(|r| (r.name.to_string(), r.version.to_string()))
                .collect();
            let mut held = side.held.clone();
            if !V::tells_removals(t) {
                held.retain(|name, _| wanted.contains_key(name));
            }
            assert_eq!(
                held,
                wanted,
                "{}: what the client has, and the truth",
                t.short()
            );
        }
    }
}

fn session<V: Variant>(dice: &mut Dice<'_>, honest: bool) {
    let mut config = SessionConfig {
        stream: 1,
        ..SessionConfig::default()
    };
    if honest {
        return Link::<V>::new(config).honest(dice);
    }
    if dice.roll(4) == 3 {
        config.only = Some(TYPES[dice.roll(TYPES.len())].clone());
    }
    if dice.roll(2) == 1 {
        (config.max_names, config.max_name_bytes, config.max_types) = (3, 20 + dice.roll(80), 2);
    }
    Link::<V>::new(config).wild(dice);
}

/// One input.
pub fn run(data: &[u8]) {
    let mut dice = Dice::new(data);
    let mode = dice.byte();
    match mode % 4 {
        0 => session::<Delta>(&mut dice, true),
        1 => session::<Sotw>(&mut dice, true),
        2 => session::<Delta>(&mut dice, false),
        _ => session::<Sotw>(&mut dice, false),
    }
}
