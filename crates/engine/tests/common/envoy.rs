//! A proxy at the end of a stream: it holds what the protocol lets an Envoy hold, asks for what that refers to, and answers
//! as badly as a client may. Both ends are here, with a queue for each direction.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use pilotfish_engine::{Engine, Proxy, ProxyFacts};
use pilotfish_protos::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use pilotfish_protos::google::rpc::Status;
use pilotfish_xds::TypeUrl::{self, Cluster, Endpoints, Listener, Route, Secret, VirtualHost};
use pilotfish_xds::frame::Frames;
use pilotfish_xds::{
    Generation, Pool, Protocol, Response, SessionConfig, View, WILDCARD, Watches, delta, sotw,
};
use proptest::sample::Index;
use prost::Message as _;

use super::bench::TYPES;
use super::resource::{Body, Known};

/// Types that are asked for by name: the names are those that other resources refer to.
pub(crate) const BY_NAME: [TypeUrl; 4] = [Endpoints, Route, VirtualHost, Secret];

/// What a client does on its own account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// It speaks the incremental protocol.
    pub(crate) delta: bool,
    /// It says that it wants everything, rather than nothing in particular.
    pub(crate) star: bool,
    /// It asks for listeners before it has any cluster.
    pub(crate) hasty: bool,
}

/// What becomes of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Accept,
    /// It is acknowledged twice.
    Twice,
    /// It is taken, but the server never hears of it.
    Never,
    /// It is rejected; bit `i` tells whether the i-th part of it was taken all the same.
    Reject(u8),
}

impl Answer {
    fn takes(self, part: usize) -> bool {
        match self {
            Self::Reject(parts) => parts >> (part % 8) & 1 == 1,
            _ => true,
        }
    }
}

/// A request of either protocol: one says what it wants, the other what is different.
#[derive(Debug)]
struct Request {
    type_url: TypeUrl,
    names: Vec<String>,
    subscribe: Vec<String>,
    unsubscribe: Vec<String>,
    initial: BTreeMap<String, String>,
    nonce: String,
    rejects: bool,
}

#[derive(Debug)]
enum Session {
    Delta(delta::Session),
    Sotw(sotw::Session),
}

impl Session {
    fn new(delta: bool, config: SessionConfig) -> Self {
        if delta {
            Self::Delta(delta::Session::new(config))
        } else {
            Self::Sotw(sotw::Session::new(config))
        }
    }

    fn read(&mut self, request: Request) {
        let type_url = request.type_url.as_str().to_owned();
        let error_detail = request.rejects.then(|| Status {
            code: 13,
            message: "no".to_owned(),
            ..Status::default()
        });
        let read = match self {
            Self::Delta(session) => session.on_request(DeltaDiscoveryRequest {
                type_url,
                resource_names_subscribe: request.subscribe,
                resource_names_unsubscribe: request.unsubscribe,
                initial_resource_versions: request.initial,
                response_nonce: request.nonce,
                error_detail,
                ..DeltaDiscoveryRequest::default()
            }),
            Self::Sotw(session) => session.on_request(DiscoveryRequest {
                type_url,
                resource_names: request.names,
                response_nonce: request.nonce,
                error_detail,
                ..DiscoveryRequest::default()
            }),
        };
        read.unwrap();
    }

    fn push(&mut self, t: &TypeUrl, view: View, generation: Generation) -> Option<Response> {
        match self {
            Self::Delta(session) => session.push(t, view, generation),
            Self::Sotw(session) => session.push(t, view, generation),
        }
    }

    fn withdraw(&mut self, t: &TypeUrl) -> Option<Response> {
        match self {
            Self::Delta(session) => session.withdraw(t),
            Self::Sotw(session) => session.withdraw(t),
        }
    }

    fn watches(&self) -> &Watches {
        match self {
            Self::Delta(session) => session.watches(),
            Self::Sotw(session) => session.watches(),
        }
    }
}

/// A response on its way.
#[derive(Debug)]
struct Sent {
    type_url: TypeUrl,
    /// Not put together before it is taken, as on the wire: until then it shares what it is made of.
    frames: Frames,
    /// It was made by looking at everything, and the server had read so many rejections of the type by then.
    heals: Option<usize>,
}

/// A resource that the client has.
#[derive(Debug)]
struct Held {
    body: Rc<Body>,
    /// What it reports when it comes back.
    version: String,
}

/// What the client knows of one type.
#[derive(Debug, Default)]
struct Side {
    /// It was asked for on this stream.
    started: bool,
    wanted: BTreeSet<String>,
    /// Referred to, but not wanted for a while.
    muted: BTreeSet<String>,
    held: BTreeMap<String, Held>,
    /// The newest response, and those before it, of other streams, too.
    nonce: String,
    older: Vec<String>,
    /// The server was not told that the newest response came.
    silent: bool,
    /// How many responses were rejected on this stream, and whether one of them may be missed still.
    rejected: usize,
    behind: bool,
    /// How many of the rejections the server has read.
    read: usize,
}

impl Side {
    fn wants(&self, t: &TypeUrl, name: &str) -> bool {
        let within = || name.rsplit_once('/').map_or("", |(table, _)| table);
        t.is_whole()
            || self.wanted.contains(name)
            || *t == VirtualHost && self.wanted.contains(within())
    }

    fn next_stream(&mut self) {
        let last = std::mem::take(&mut self.nonce);
        self.older.extend((!last.is_empty()).then_some(last));
        self.started = false;
        self.silent = false;
        self.behind = false;
        self.rejected = 0;
        self.read = 0;
    }
}

/// What all clients of a server share.
#[derive(Clone, Default)]
pub(crate) struct Net {
    pool: Arc<Pool>,
    known: Rc<RefCell<Known>>,
    streams: Rc<RefCell<u32>>,
}

impl Net {
    /// Another server's. Only what the tests remember of resources is the same.
    pub(crate) fn another(&self) -> Self {
        Self {
            known: self.known.clone(),
            ..Self::default()
        }
    }
}

pub(crate) struct Envoy {
    facts: ProxyFacts,
    habits: Habits,
    net: Net,
    proxy: Proxy,
    session: Session,
    sides: BTreeMap<TypeUrl, Side>,
    up: VecDeque<Request>,
    down: VecDeque<Sent>,
    /// The clusters that came last and are in use, with their versions. One that is new or changed is used once its
    /// endpoints have come after it, even if it is what was in use before the last one.
    active: BTreeMap<String, String>,
}

impl Envoy {
    pub(crate) fn new(engine: &Engine, facts: &ProxyFacts, habits: Habits, net: &Net) -> Self {
        let mut envoy = Self {
            facts: facts.clone(),
            habits,
            net: net.clone(),
            proxy: engine.connect(facts.clone()),
            session: Session::new(habits.delta, SessionConfig::default()),
            sides: TYPES.map(|t| (t, Side::default())).into(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            active: BTreeMap::new(),
        };
        envoy.reconnect(engine, false);
        envoy
    }

    /// One like it that knows nothing, of another server.
    pub(crate) fn newcomer(&self, engine: &Engine, net: &Net) -> Self {
        Self::new(engine, &self.facts, self.habits, net)
    }

    fn side(&mut self, t: &TypeUrl) -> &mut Side {
        self.sides.get_mut(t).unwrap()
    }

    fn in_flight(&self, t: &TypeUrl) -> bool {
        let watch = self.session.watches().get(t);
        watch.is_some_and(pilotfish_xds::Watch::in_flight)
    }

    // The server.

    /// Reads one request and answers it.
    pub(crate) fn read(&mut self, engine: &Engine) -> bool {
        let Some(request) = self.up.pop_front() else {
            return false;
        };
        let t = request.type_url.clone();
        self.side(&t).read += usize::from(request.rejects);
        self.session.read(request);
        if self.session.watches().get(&t).unwrap().wants_answer() {
            self.push(engine, &t);
        }
        true
    }

    fn push(&mut self, engine: &Engine, t: &TypeUrl) -> bool {
        if self.session.watches().get(t).is_none() {
            return false;
        }
        let generation = Generation(engine.generation());
        let view = engine.view_at_hand(&mut self.proxy, t);
        let view = view.unwrap_or_else(|| engine.view(&mut self.proxy, t));
        let response = self.session.push(t, view, generation);
        let heals = Some(self.side(t).read);
        self.send(t, response, heals)
    }

    fn withdraw(&mut self, t: &TypeUrl) -> bool {
        let response = self.session.withdraw(t);
        // What is complete makes up for everything; a list of what is gone does not.
        let heals = (!self.habits.delta).then(|| self.side(t).read);
        self.send(t, response, heals)
    }

    fn send(&mut self, t: &TypeUrl, response: Option<Response>, heals: Option<usize>) -> bool {
        let Some(response) = response else {
            return false;
        };
        self.down.push_back(Sent {
            type_url: t.clone(),
            frames: response.frames,
            heals,
        });
        true
    }

    /// Looks for what has changed of one type; once it has waited for long enough, whether or not the last response was
    /// answered.
    pub(crate) fn look(&mut self, engine: &Engine, t: &TypeUrl, waited: bool) -> bool {
        (waited || !self.in_flight(t)) && self.push(engine, t)
    }

    pub(crate) fn look_at_all(&mut self, engine: &Engine, waited: bool) -> bool {
        let mut sent = false;
        for t in &TYPES {
            sent |= self.look(engine, t, waited);
        }
        sent
    }

    /// Removes what was left for the sake of what referred to it.
    pub(crate) fn withdraw_all(&mut self, waited: bool) -> bool {
        let mut sent = false;
        for t in &TYPES {
            sent |= (waited || !self.in_flight(t)) && self.withdraw(t);
        }
        sent
    }

    // The client.

    fn request(&self, t: &TypeUrl) -> Request {
        let side = &self.sides[t];
        let names = if t.is_whole() {
            self.habits
                .star
                .then(|| WILDCARD.to_owned())
                .into_iter()
                .collect()
        } else {
            side.wanted.iter().cloned().collect()
        };
        let nonce = if self.habits.delta {
            String::new()
        } else {
            side.nonce.clone()
        };
        Request {
            type_url: t.clone(),
            names,
            subscribe: Vec::new(),
            unsubscribe: Vec::new(),
            initial: BTreeMap::new(),
            nonce,
            rejects: false,
        }
    }

    /// The first request of a type on a stream.
    fn start(&mut self, t: &TypeUrl) {
        if std::mem::replace(&mut self.side(t).started, true) {
            return;
        }
        let mut request = self.request(t);
        request.subscribe.clone_from(&request.names);
        let held = self.sides[t].held.iter();
        let reported = held.map(|(name, held)| (name.clone(), held.version.clone()));
        request.initial = reported.collect();
        self.up.push_back(request);
    }

    /// Asks for what is referred to and no longer for what is not.
    fn follow(&mut self) {
        for t in BY_NAME {
            let refs = self.sides.values().flat_map(|s| s.held.values());
            let refs = refs.flat_map(|held| &held.body.refs);
            let mut names: BTreeSet<String> = refs
                .filter(|(of, _)| *of == t)
                .map(|(_, name)| name.clone())
                .collect();
            let side = self.side(&t);
            names.retain(|n| !side.muted.contains(n));
            if names == side.wanted {
                continue;
            }
            let before = std::mem::replace(&mut side.wanted, names);
            let mut held = std::mem::take(&mut side.held);
            held.retain(|name, _| side.wants(&t, name));
            side.held = held;
            if !side.started {
                self.start(&t);
                continue;
            }
            let mut request = self.request(&t);
            let now = &self.sides[&t].wanted;
            request.subscribe = now.difference(&before).cloned().collect();
            request.unsubscribe = before.difference(now).cloned().collect();
            self.up.push_back(request);
        }
    }

    /// Takes one response.
    pub(crate) fn take(&mut self, answer: Answer) -> bool {
        let Some(sent) = self.down.pop_front() else {
            return false;
        };
        let t = sent.type_url;
        let (nonce, resources, removed) = self.decode(&t, sent.frames.message());
        let side = self.sides.get_mut(&t).unwrap();
        let last = std::mem::replace(&mut side.nonce, nonce.clone());
        side.older.extend((!last.is_empty()).then_some(last));
        let gone: Vec<String> = if self.habits.delta {
            removed
        } else {
            let held = side.held.keys().filter(|_| t.is_whole());
            held.filter(|n| resources.iter().all(|h| h.body.name != **n))
                .cloned()
                .collect()
        };
        for (i, name) in gone.iter().enumerate() {
            if answer.takes(i) {
                side.held.remove(name);
            }
        }
        let rejects = matches!(answer, Answer::Reject(_));
        let mut endpoints = BTreeSet::new();
        for (i, mut held) in resources.into_iter().enumerate() {
            let name = held.body.name.clone();
            if !answer.takes(i) || !side.wants(&t, &name) {
                continue;
            }
            if t == Endpoints && rejects {
                let was = side.held.remove(&name);
                held.version = was.map(|was| was.version).unwrap_or_default();
            } else if t == Endpoints {
                endpoints.insert(name.clone());
            }
            side.held.insert(name, held);
        }
        side.silent = matches!(answer, Answer::Never);
        if rejects {
            side.rejected += 1;
            side.behind = true;
        } else if sent.heals == Some(side.rejected) {
            side.behind = false;
        }
        self.warm(&endpoints);
        let times = match answer {
            Answer::Never => 0,
            Answer::Twice => 2,
            _ => 1,
        };
        for _ in 0..times {
            let request = self.request(&t);
            self.up.push_back(Request {
                nonce: nonce.clone(),
                rejects,
                ..request
            });
        }
        if t == Cluster {
            self.start(&Listener);
            self.start(&TypeUrl::NameTable);
        }
        self.follow();
        true
    }

    /// Endpoints have come: their clusters are used from now on, and so are those that need none.
    fn warm(&mut self, endpoints: &BTreeSet<String>) {
        let clusters = &self.sides[&Cluster].held;
        let is_last = |name: &String, version: &String| {
            let held = clusters.get(name);
            held.is_some_and(|held| held.body.version == *version)
        };
        self.active.retain(|name, version| is_last(name, version));
        for (name, held) in clusters {
            let mut sets = held.body.refs.iter().filter(|(of, _)| *of == Endpoints);
            if sets.all(|(_, name)| endpoints.contains(name)) {
                self.active.insert(name.clone(), held.body.version.clone());
            }
        }
    }

    /// A cluster that is not used, although the client has endpoints for it.
    fn cold(&self) -> Option<&String> {
        let endpoints = &self.sides[&Endpoints].held;
        let clusters = self.sides[&Cluster].held.iter();
        let cold = |(name, held): &(&String, &Held)| {
            let (name, version) = ((*name).clone(), held.body.version.clone());
            endpoints.contains_key(&name) && self.active.get(&name) != Some(&version)
        };
        clusters.filter(cold).map(|(name, _)| name).next()
    }

    /// Nonce, resources with their versions, and removed names of a response, which must be well formed.
    fn decode(&self, t: &TypeUrl, message: bytes::Bytes) -> (String, Vec<Held>, Vec<String>) {
        let mut known = self.net.known.borrow_mut();
        let (nonce, type_url, resources, removed) = if self.habits.delta {
            let response = DeltaDiscoveryResponse::decode(message).unwrap();
            let each = response.resources.into_iter().map(|r| {
                let body = known.body(t, &r.resource.unwrap());
                assert_eq!(r.name, body.name, "the name of what is in it");
                // Those of endpoints tell of their clusters, too, and those of clusters may be marked.
                let digits = match t {
                    Endpoints => 0,
                    Cluster => 12,
                    _ => body.version.len(),
                };
                let (said, is) = (&r.version[..digits], &body.version[..digits]);
                assert_eq!(said, is, "the version of what is in it");
                Held {
                    body,
                    version: r.version,
                }
            });
            let resources: Vec<_> = each.collect();
            let removed = response.removed_resources;
            (response.nonce, response.type_url, resources, removed)
        } else {
            let response = DiscoveryResponse::decode(message).unwrap();
            let each = response.resources.iter().map(|any| known.body(t, any));
            let held = each.map(|body| Held {
                body,
                version: String::new(),
            });
            let resources: Vec<_> = held.collect();
            (response.nonce, response.type_url, resources, Vec::new())
        };
        assert_eq!(type_url, t.as_str());
        let mut names = BTreeSet::new();
        for name in resources.iter().map(|h| &h.body.name).chain(&removed) {
            assert!(names.insert(name), "{t} {name} twice in one response");
        }
        (nonce, resources, removed)
    }

    /// Asks once more for something that it has asked for.
    pub(crate) fn ask_again(&mut self, t: &TypeUrl, which: Index) {
        let wanted: Vec<String> = if t.is_whole() {
            vec![WILDCARD.to_owned()]
        } else {
            self.sides[t].wanted.iter().cloned().collect()
        };
        if wanted.is_empty() || !self.sides[t].started {
            return;
        }
        let name = which.get(&wanted).clone();
        if !self.habits.delta {
            // Those that list what they want can only take it from the list and put it back.
            let mut without = self.request(t);
            without.names.retain(|n| *n != name);
            self.up.push_back(without);
        }
        let mut request = self.request(t);
        request.subscribe.push(name);
        self.up.push_back(request);
    }

    /// Does without something for a while.
    pub(crate) fn mute(&mut self, t: &TypeUrl, which: Index) {
        let side = self.side(t);
        let wanted: Vec<&String> = side.wanted.iter().collect();
        if !wanted.is_empty() {
            let name = (*which.get(&wanted)).clone();
            side.muted.insert(name);
            self.follow();
        }
    }

    /// Does without something, and changes its mind before anybody heard of it.
    pub(crate) fn flicker(&mut self, t: &TypeUrl, which: Index) {
        self.mute(t, which);
        self.unmute();
    }

    pub(crate) fn unmute(&mut self) {
        for side in self.sides.values_mut() {
            side.muted.clear();
        }
        self.follow();
    }

    /// Answers a response of long ago, perhaps of another stream.
    pub(crate) fn say_something_stale(&mut self, t: &TypeUrl, which: Index, rejects: bool) {
        let side = &self.sides[t];
        if side.started && !side.older.is_empty() {
            let nonce = which.get(&side.older).clone();
            let request = self.request(t);
            self.side(t).rejected += usize::from(rejects);
            self.side(t).behind |= rejects;
            self.up.push_back(Request {
                nonce,
                rejects,
                ..request
            });
        }
    }

    /// Starts another stream, with what it has or with nothing.
    pub(crate) fn reconnect(&mut self, engine: &Engine, keeps: bool) {
        let stream = {
            let mut streams = self.net.streams.borrow_mut();
            *streams += 1;
            *streams
        };
        let config = SessionConfig {
            stream,
            pool: self.net.pool.clone(),
            ..SessionConfig::default()
        };
        self.session = Session::new(self.habits.delta, config);
        self.proxy = engine.connect(self.facts.clone());
        self.up.clear();
        self.down.clear();
        for side in self.sides.values_mut() {
            side.next_stream();
            if !keeps {
                side.held.clear();
                side.wanted.clear();
                side.muted.clear();
            }
        }
        if !keeps {
            self.active.clear();
        }
        self.start(&Cluster);
        if keeps || self.habits.hasty {
            self.start(&Listener);
        }
        for t in BY_NAME {
            if !self.sides[&t].wanted.is_empty() {
                self.start(&t);
            }
        }
    }

    // Both.

    /// Everything is delivered and accepted until nothing moves.
    pub(crate) fn deliver(&mut self, engine: &Engine) {
        for round in 0.. {
            assert!(round < 100, "it never ends");
            while self.read(engine) {}
            while self.take(Answer::Accept) {}
            if !self.up.is_empty() {
                continue;
            }
            // What was referred to goes last. Everything has been delivered: what is unanswered stays so.
            if !self.look_at_all(engine, true) && !self.withdraw_all(true) {
                return;
            }
        }
    }

    /// The same, and the client makes up for what it has left undone: it wants what it refers to, says what it has not
    /// said, and gets what it has rejected, which no server sends again unless it is asked or something changes.
    pub(crate) fn settle(&mut self, engine: &Engine) {
        self.unmute();
        for t in TYPES {
            if self.sides[&t].silent && !self.habits.delta {
                let request = self.request(&t);
                self.up.push_back(request);
                self.side(&t).silent = false;
            }
        }
        self.deliver(engine);
        let behind: Vec<TypeUrl> = TYPES.into_iter().filter(|t| self.sides[t].behind).collect();
        if behind.is_empty() {
            return;
        }
        if self.habits.delta {
            for t in behind {
                let mut request = self.request(&t);
                request.subscribe = if t.is_whole() {
                    vec![WILDCARD.to_owned()]
                } else {
                    request.names.clone()
                };
                self.up.push_back(request);
                self.side(&t).behind = false;
            }
        } else {
            self.reconnect(engine, true);
        }
        self.deliver(engine);
    }

    /// What is wrong with a client that has settled, given a new one.
    pub(crate) fn difference(&mut self, engine: &Engine, newcomer: &Self) -> Option<String> {
        for t in &TYPES {
            let (own, other) = (&self.sides[t], &newcomer.sides[t]);
            if own.wanted != other.wanted {
                let wants = (&own.wanted, &other.wanted);
                return Some(format!("{} wanted: {wants:#?}", t.short()));
            }
            for name in own.held.keys().chain(other.held.keys()) {
                let (l, r) = (own.held.get(name), other.held.get(name));
                if l.map(|h| &h.body.any) != r.map(|h| &h.body.any) {
                    let shown = |h: Option<&Held>| h.map_or("nothing".into(), |h| h.body.shown());
                    let (l, r) = (shown(l), shown(r));
                    let t = t.short();
                    return Some(format!("{t} {name}:\n  held {l}\n  new  {r}"));
                }
            }
        }
        if let Some(name) = self.cold() {
            return Some(format!("{name} waits for its endpoints"));
        }
        let again = self.look_at_all(engine, true) || self.withdraw_all(true);
        again.then(|| format!("another look sends {:?}", self.down))
    }

    /// How many resources it holds.
    pub(crate) fn holds(&self) -> usize {
        self.sides.values().map(|side| side.held.len()).sum()
    }
}
