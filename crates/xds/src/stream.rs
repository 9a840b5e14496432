//! One stream: a task that owns the session and the proxy and decides when to compare, send and give up.
//!
//! The task waits for requests, for a new generation, for room on the way out and for its time-outs. A generation only
//! marks types as dirty, so that any number of them merge while a type cannot be sent. Types go out in push order; a type
//! whose last response is unanswered holds back the later ones, which may refer to what it has yet to bring. A request
//! that calls for a response is not held back.

use crate::Text;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use pilotfish_protos::envoy::config::core::v3::Node;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Status;

use crate::configuration::{Configuration, Peer, Push};
use crate::connection::Connection;
use crate::health::Health;
use crate::inbound::{Inbound, Received};
use crate::names::Names;
use crate::outbound::Outbound;
use crate::question::Question;
use crate::resource::View;
use crate::server::Shared;
use crate::session::{Generation, Protocol, Response, Verdict};
use crate::type_url::TypeUrl;

/// A client that reconnects with clusters that are gone gets this long to ask for what may refer to them.
const REFERRERS_MAY_COME: Duration = Duration::from_secs(2);
/// What a stream is sent in this time after its start is what it costs to admit it.
const SETTING_UP: Duration = Duration::from_secs(10);

/// What a stream is about, before anything was read from it.
pub(crate) struct Opening {
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    pub(crate) peer: Peer,
    pub(crate) only: Option<TypeUrl>,
    pub(crate) delta: bool,
}

/// Runs a stream to its end.
pub(crate) async fn run<C: Configuration, P: Protocol>(shared: Arc<Shared<C>>, opening: Opening) {
    let Opening {
        mut inbound,
        outbound,
        peer,
        only,
        delta,
    } = opening;
    let Some(_place) = shared.enter() else {
        let status = Status::resource_exhausted("too many streams");
        shared.observer.refused(&status);
        outbound.end(status);
        return;
    };
    // What a stream does once is boxed, here and below: its task has the size of the largest thing that it may wait for.
    let first = tokio::select! {
        first = Box::pin(first_request::<C, P>(&shared, &mut inbound)) => first,
        () = gone(&outbound) => Err(Status::cancelled("the client went away")),
    };
    // A service that carries one type has no questions.
    let aggregated = only.is_none();
    let (first, early) = match first {
        Ok((first, early)) => (Ok(first), early),
        Err(status) => (Err(status), None),
    };
    let question = first.as_deref().ok().and_then(P::question);
    if let Some(question) = question.filter(|_| aggregated) {
        let asked = inquire::<C, P>(&shared, &mut inbound, &outbound, &peer, question);
        let asked = Box::pin(asked).await;
        let status = asked.err().unwrap_or_else(|| Status::ok(""));
        if status.code() != tonic::Code::Ok {
            shared.observer.refused(&status);
        }
        outbound.end(status);
        return;
    }
    let (first, node_id, mut proxy) =
        match first.and_then(|first| admit::<C, P>(&shared, first, &peer)) {
            Ok(admitted) => admitted,
            Err(status) => {
                shared.observer.refused(&status);
                outbound.end(status);
                return;
            }
        };
    if let Some(health) = early.filter(|_| aggregated) {
        shared.config.reported(&mut proxy, health);
    }
    let id = shared.next_id();
    let session = P::new(shared.limits.session(
        shared.stream_nonce(id),
        only,
        Arc::clone(&shared.pool),
    ));
    let connection = Arc::new(Connection {
        id,
        node_id,
        peer: peer.address,
        connected_at: SystemTime::now(),
        delta,
        session: Mutex::new(session),
    });
    shared.observer.connected(&connection.node_id, &peer);
    shared.registry.add(connection.clone());
    let _registered = Registered {
        shared: shared.clone(),
        id,
    };
    let now = Instant::now();
    let mut generation = shared.config.generation();
    generation.mark_unchanged();
    let mut stream = Stream {
        aggregated,
        started: now,
        was_sent: false,
        paces: BTreeMap::new(),
        brought: Generation::default(),
        lingering_since: None,
        generation,
        outbound,
        connection,
        proxy: Arc::new(Mutex::new(proxy)),
        shared,
    };
    let (status, stuck) = match stream.serve(&mut inbound, first, &peer).await {
        Ok(()) => (Status::ok(""), false),
        Err(End::Stuck) => (
            Status::deadline_exceeded("the client takes nothing of what is sent"),
            true,
        ),
        Err(End::Status(status)) => (status, false),
    };
    stream
        .shared
        .observer
        .disconnected(&stream.connection.node_id, &status);
    if stuck {
        stream.outbound.abort(status);
        if let Some(cut) = peer.extensions.get::<crate::accept::Cut>() {
            cut.cut_if_alone();
        }
    } else {
        stream.outbound.end(status);
    }
}

async fn gone(outbound: &Outbound) {
    while !outbound.is_gone() {
        outbound.taken().await;
    }
}

/// Waits for its turn, then for the first request; and what was reported before it, since agents may be faster than their
/// proxies.
async fn first_request<C: Configuration, P: Protocol>(
    shared: &Shared<C>,
    inbound: &mut Inbound,
) -> Result<(Box<P::Request>, Option<Health>), Status> {
    let refused = || Status::resource_exhausted("too many streams wait to be admitted");
    shared.admission.admit().await.ok_or_else(refused)?;
    let mut early = None;
    let first = async {
        loop {
            let request = inbound.message::<P::Request>().await?;
            match request.as_deref().and_then(P::health) {
                Some(health) => early = Some(health),
                None => return Ok::<_, Status>(request),
            }
        }
    };
    let first = timeout(shared.limits.first_request_timeout, first).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no request came"))??;
    let ended = || Status::invalid_argument("the stream ended before its first request");
    Ok((first.ok_or_else(ended)?, early))
}

/// Answers one question after the other, until nobody asks any more.
async fn inquire<C: Configuration, P: Protocol>(
    shared: &Shared<C>,
    inbound: &mut Inbound,
    outbound: &Outbound,
    peer: &Peer,
    first: Question,
) -> Result<(), Status> {
    let limits = &shared.limits;
    let nonce = shared.stream_nonce(shared.next_id());
    let mut session = P::new(limits.session(nonce, None, Arc::clone(&shared.pool)));
    let mut drain = shared.drain.subscribe();
    let mut question = first;
    loop {
        if !question.is_reply {
            let answer = tokio::select! {
                answer = shared.answer(question.clone(), peer) => answer?,
                () = gone(outbound) => return Ok(()),
            };
            outbound.send(session.answer(&question, answer));
        }
        // The next answer waits until this one was taken.
        let taken = async {
            while !outbound.is_writable() && !outbound.is_gone() {
                outbound.taken().await;
            }
        };
        if timeout(limits.send_timeout, taken).await.is_err() {
            return Err(Status::deadline_exceeded(
                "the client takes nothing of what is sent",
            ));
        }
        let request = tokio::select! {
            request = timeout(limits.first_request_timeout, inbound.message::<P::Request>()) => request,
            () = gone(outbound) => return Ok(()),
            _ = drain.wait_for(|drains| *drains) => return Ok(()),
        };
        // Whoever asks nothing for a while is done, and so is whoever leaves without a word, as istioctl does.
        let request = match request {
            Ok(Ok(Some(request))) => request,
            Err(_) | Ok(Ok(None)) => return Ok(()),
            Ok(Err(status)) if status.code() == tonic::Code::Cancelled => return Ok(()),
            Ok(Err(status)) => return Err(status),
        };
        question = P::question(&request).ok_or_else(|| {
            Status::invalid_argument(
                "this stream began with a question; open another one for resources",
            )
        })?;
    }
}

/// Who was admitted: its first request, its name and what translation sees of it.
type Admitted<C, P> = (
    Box<<P as Protocol>::Request>,
    Text,
    <C as Configuration>::Proxy,
);

/// Lets the control plane judge the node.
fn admit<C: Configuration, P: Protocol>(
    shared: &Shared<C>,
    first: Box<P::Request>,
    peer: &Peer,
) -> Result<Admitted<C, P>, Status> {
    let nameless =
        || Status::invalid_argument("the first request must name its node: node.id is missing");
    let node: &Node = P::node(&first)
        .filter(|n| !n.id.is_empty())
        .ok_or_else(nameless)?;
    if node.id.len() > shared.limits.max_name_bytes {
        return Err(Status::invalid_argument("node.id is too long"));
    }
    let proxy = shared.config.connect(node, peer)?;
    let node_id = Text::from(node.id.as_str());
    Ok((first, node_id, proxy))
}

/// Takes the stream off the debug pages, whatever ends its task.
struct Registered<C: Configuration> {
    shared: Arc<Shared<C>>,
    id: u64,
}

impl<C: Configuration> Drop for Registered<C> {
    fn drop(&mut self) {
        self.shared.registry.remove(self.id);
    }
}

/// Why a stream ends early.
enum End {
    /// With that status.
    Status(Status),
    /// The client takes nothing.
    Stuck,
}

impl<S: Into<Status>> From<S> for End {
    fn from(status: S) -> Self {
        Self::Status(status.into())
    }
}

/// When a type was and is to be sent.
struct Pace {
    /// A newer generation may differ from what was sent.
    dirty: bool,
    /// When the change, or the request, came that the next response is about.
    since: Instant,
    /// When the last response was sent, if it waits for its answer.
    sent: Option<Instant>,
    /// The change that the last response is about.
    sent_since: Instant,
    /// The generation that the proxy was first told of; later ones are changes to it.
    began: Option<Generation>,
    /// The generation that the last response brought.
    brought: Option<Generation>,
}

/// What is to be done next.
enum Step {
    Push(TypeUrl),
    Withdraw(TypeUrl),
    /// Nothing before that time, if any.
    Wait(Option<Instant>),
}

struct Stream<C: Configuration, P: Protocol> {
    shared: Arc<Shared<C>>,
    connection: Arc<Connection<P>>,
    /// Lent to the thread that computes; nobody else asks for it meanwhile.
    proxy: Arc<Mutex<C::Proxy>>,
    outbound: Outbound,
    generation: watch::Receiver<Generation>,
    paces: BTreeMap<TypeUrl, Pace>,
    /// The last generation that any response brought.
    brought: Generation,
    started: Instant,
    /// Something was sent.
    was_sent: bool,
    lingering_since: Option<Instant>,
    /// It carries all types, and questions.
    aggregated: bool,
}

impl<C: Configuration, P: Protocol> Stream<C, P> {
    async fn serve(
        &mut self,
        inbound: &mut Inbound,
        first: Box<P::Request>,
        peer: &Peer,
    ) -> Result<(), End> {
        let age = self.shared.limits.age().map(|age| self.started + age);
        let mut drain = self.shared.drain.subscribe();
        if *drain.borrow() {
            drain.mark_changed();
        }
        let mut end = age;
        self.on_request(*first, None)?;
        let shared = self.shared.clone();
        loop {
            let mut wake = self.push_due().await?;
            let stuck = self
                .outbound
                .stuck_since()
                .map(|since| since + self.shared.limits.send_timeout);
            if stuck.is_some_and(|at| at <= Instant::now()) {
                return Err(End::Stuck);
            }
            for at in [stuck, end].into_iter().flatten() {
                wake = Some(wake.map_or(at, |w| w.min(at)));
            }
            tokio::select! {
                request = inbound.request::<P::Request>(&shared.pool.names) => match request? {
                    Some(request) => self.take(request, peer).await?,
                    None => return Ok(()),
                },
                changed = self.generation.changed() => {
                    if changed.is_err() {
                        return Err(Status::unavailable("the control plane is stopping").into());
                    }
                    self.on_generation();
                }
                () = self.outbound.taken() => if self.outbound.is_gone() {
                    return Err(Status::cancelled("the client went away").into());
                },
                _ = drain.changed() => {
                    let delay = self.shared.limits.drain_period.mul_f64(rand::random::<f64>());
                    let at = Instant::now() + delay;
                    end = Some(end.map_or(at, |e| e.min(at)));
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                    if end.is_some_and(|at| at <= Instant::now()) {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn take(&mut self, received: Received<P::Request>, peer: &Peer) -> Result<(), End> {
        let Received { request, held } = received;
        if self.aggregated {
            if let Some(health) = P::health(&request) {
                self.shared.config.reported(&mut lock(&self.proxy), health);
                return Ok(());
            }
            if let Some(mut question) = P::question(&request) {
                let names = held.iter().flat_map(Names::iter);
                question.names.extend(names.map(Text::to_string));
                return Box::pin(self.answer(question, peer)).await;
            }
        }
        self.on_request(*request, held)
    }

    fn on_generation(&mut self) {
        let generation = *self.generation.borrow_and_update();
        let since = self.shared.changed_at(generation);
        for pace in self.paces.values_mut() {
            if !pace.dirty {
                pace.dirty = true;
                pace.since = since;
            }
        }
    }

    /// Answers what somebody asks through a proxy's stream. Its watches do not notice.
    async fn answer(&mut self, question: Question, peer: &Peer) -> Result<(), End> {
        if question.is_reply {
            return Ok(());
        }
        if !self.outbound.is_writable() {
            let status = Status::resource_exhausted("more is asked than answers are taken");
            return Err(status.into());
        }
        let answer = self.shared.answer(question.clone(), peer).await?;
        let frames = self.connection.session().answer(&question, answer);
        self.outbound.send(frames);
        Ok(())
    }

    fn on_request(&mut self, request: P::Request, held: Option<Names>) -> Result<(), End> {
        let now = Instant::now();
        let reply = self.connection.session().on_request_for(request, held)?;
        let node_id = &self.connection.node_id;
        let observer = &self.shared.observer;
        let pace = self.paces.entry(reply.type_url.clone());
        let pace = pace.or_insert(Pace {
            dirty: false,
            since: now,
            sent: None,
            sent_since: now,
            began: None,
            brought: None,
        });
        if !pace.dirty {
            pace.since = now;
        }
        match &reply.verdict {
            Verdict::None => {}
            Verdict::Ack(_) => observer.accepted(
                node_id,
                &reply.type_url,
                now - pace.sent_since,
                pace.brought,
            ),
            Verdict::Nack(rejection) => observer.rejected(node_id, &reply.type_url, rejection),
            Verdict::Stale => observer.stale(node_id, &reply.type_url),
        }
        if self
            .connection
            .session()
            .watches()
            .get(&reply.type_url)
            .is_some_and(|w| !w.in_flight())
        {
            pace.sent = None;
        }
        Ok(())
    }

    /// Sends what is due and can be sent; returns when to look again at the latest.
    async fn push_due(&mut self) -> Result<Option<Instant>, End> {
        loop {
            if !self.outbound.is_writable() {
                return Ok(None);
            }
            if let Step::Wait(until) = self.next_step() {
                return Ok(until);
            }
            // Held for as long as something is computed, never while a client is waited for: some slow clients must not
            // keep the others from theirs.
            let shared = self.shared.clone();
            let _permit = shared.permits.acquire().await.map_err(stopping)?;
            while self.outbound.is_writable() {
                if self.generation.has_changed().unwrap_or(false) {
                    self.on_generation();
                }
                match self.next_step() {
                    Step::Push(type_url) => self.push(&type_url).await?,
                    Step::Withdraw(type_url) => {
                        let start = Instant::now();
                        let generation = *self.generation.borrow();
                        let response = self.connection.session().withdraw(&type_url);
                        self.send(&type_url, response, generation, start, start);
                    }
                    Step::Wait(until) => return Ok(until),
                }
            }
        }
    }

    async fn push(&mut self, type_url: &TypeUrl) -> Result<(), End> {
        let generation = *self.generation.borrow();
        let (view, start) = self.view(type_url).await?;
        let known = view.is_known();
        let response = self.connection.session().push(type_url, view, generation);
        if !known && !type_url.is_known() {
            return Err(Status::invalid_argument(format!("unknown type {type_url}")).into());
        }
        let since = self.paces.get_mut(type_url).map_or(start, |pace| {
            pace.dirty = false;
            pace.since
        });
        self.send(type_url, response, generation, start, since);
        Ok(())
    }

    /// What the proxy is to have, and since when that was worked on: waiting for one's turn costs nobody anything, and must not
    /// make those who come later wait longer.
    async fn view(&mut self, type_url: &TypeUrl) -> Result<(View, Instant), Status> {
        let config = &self.shared.config;
        let start = Instant::now();
        if let Some(view) = config.view_at_hand(&mut lock(&self.proxy), type_url) {
            return Ok((view, start));
        }
        let computing = Arc::clone(&self.shared.computing);
        let permit = computing.acquire_owned().await.map_err(stopping)?;
        let start = Instant::now();
        // Somebody of the same scope may have computed it while this one waited.
        if let Some(view) = config.view_at_hand(&mut lock(&self.proxy), type_url) {
            return Ok((view, start));
        }
        let (config, proxy) = (Arc::clone(config), Arc::clone(&self.proxy));
        let type_url = type_url.clone();
        // Not on this thread: it reads and writes for others, too. The permit goes along, and ends with the work.
        let computed = spawn_blocking(move || {
            let _permit = permit;
            let start = Instant::now();
            let view = config.view(&mut lock(&proxy), &type_url);
            (view, start.elapsed())
        });
        match computed.await {
            Ok((view, took)) => Ok((view, Instant::now() - took)),
            Err(error) if error.is_cancelled() => Err(stopping(())),
            // Said in the log by whatever handles panics.
            Err(_) => Err(Status::internal("the resources could not be made")),
        }
    }

    fn send(
        &mut self,
        type_url: &TypeUrl,
        response: Option<Response>,
        generation: Generation,
        start: Instant,
        since: Instant,
    ) {
        let pace = self.paces.get_mut(type_url);
        let began = pace.map(|pace| *pace.began.get_or_insert(generation));
        let Some(response) = response else { return };
        let now = Instant::now();
        let brings = Some(generation).filter(|g| began.is_some_and(|began| began < *g));
        let first = brings.is_some_and(|g| self.brought < g);
        self.brought = self.brought.max(brings.unwrap_or_default());
        if let Some(pace) = self.paces.get_mut(type_url) {
            pace.sent = Some(now);
            pace.sent_since = since;
            pace.brought = brings;
        }
        let mut session = self.connection.session();
        session.watches_mut().stamp(type_url, SystemTime::now());
        drop(session);
        let push = Push {
            type_url,
            resources: response.resources,
            removed: response.removed,
            bytes: response.frames.len(),
            took: now - start,
            since: now.saturating_duration_since(since),
            generation: brings,
            first,
        };
        self.shared.observer.pushed(&self.connection.node_id, &push);
        if now < self.started + SETTING_UP {
            let first = !std::mem::replace(&mut self.was_sent, true);
            self.shared.admission.spent(push.took, push.bytes, first);
        }
        self.outbound.send(response.frames);
    }

    fn next_step(&mut self) -> Step {
        let now = Instant::now();
        let limits = &self.shared.limits;
        let session = self.connection.session();
        let mut wait: Option<Instant> = None;
        let mut held_back = false;
        let mut settled = true;
        let mut listens = false;
        for (type_url, watch) in session.watches().iter() {
            let Some(pace) = self.paces.get_mut(type_url) else {
                continue;
            };
            if watch.wants_answer() {
                return Step::Push(type_url.clone());
            }
            let dirty = pace.dirty || watch.wants_refresh();
            let mut waits_for_answer = false;
            if let (true, Some(sent)) = (watch.in_flight(), pace.sent) {
                let until = sent + limits.ack_timeout;
                if until > now {
                    waits_for_answer = true;
                    wait = Some(wait.map_or(until, |w| w.min(until)));
                } else {
                    pace.sent = None;
                    self.shared
                        .observer
                        .unanswered(&self.connection.node_id, type_url);
                }
            }
            if dirty && !waits_for_answer && !held_back {
                return Step::Push(type_url.clone());
            }
            held_back |= dirty;
            listens |= *type_url == TypeUrl::Listener;
            if !type_url.is_referred_to() {
                settled &= !dirty && !waits_for_answer && watch.rejected().is_none();
            }
        }
        let mut lingering = session
            .watches()
            .iter()
            .filter(|(_, w)| w.is_lingering())
            .peekable();
        if lingering.peek().is_none() {
            self.lingering_since = None;
            return Step::Wait(wait);
        }
        let since = *self.lingering_since.get_or_insert(now);
        let may_come = self.started + REFERRERS_MAY_COME.min(limits.removal_timeout);
        let overdue = since + limits.removal_timeout;
        let ready = now >= overdue || (settled && !held_back && (listens || now >= may_come));
        for (type_url, watch) in lingering {
            let in_flight =
                watch.in_flight() && self.paces.get(type_url).is_some_and(|p| p.sent.is_some());
            if ready && !in_flight {
                return Step::Withdraw(type_url.clone());
            }
        }
        let until = if settled && !listens && may_come > now {
            may_come.min(overdue)
        } else {
            overdue
        };
        if until > now {
            wait = Some(wait.map_or(until, |w| w.min(until)));
        }
        Step::Wait(wait)
    }
}

fn lock<T>(proxy: &Mutex<T>) -> MutexGuard<'_, T> {
    proxy.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stopping<E>(_: E) -> Status {
    Status::unavailable("the server is stopping")
}
