//! The one task that writes: takes what sources have learned, keeps the store, and pushes when changes have settled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use pilotfish_config::{Kind, ObjectKey, Snapshot, SourceId, Store};
use pilotfish_mesh::Reader;
use pilotfish_sources::{Batch, MeshUpdate};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::debounce::{Debouncer, Due, Reason, Request};
use crate::guard::{self, Decision, Guard, Loss};
use crate::plane::{FIRST_SNAPSHOT, Plane};
use crate::pushes::{Causes, Push};
use crate::settings::Debounce;

/// Where something comes from. Of two that declare an object, the first here counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// Files and directories.
    Files,
    /// A Kubernetes cluster.
    Kubernetes,
    /// Proxies that registered their workloads, and have no cluster to be registered in. Never waited for.
    Workloads,
    /// Other clusters, which that one names.
    OtherClusters,
}

impl Origin {
    const fn name(self) -> &'static str {
        match self {
            Self::Files => "directories",
            Self::Kubernetes => "Kubernetes",
            Self::Workloads => "registered workloads",
            Self::OtherClusters => "other clusters",
        }
    }

    /// What readiness waits for until the objects are known.
    pub(crate) const fn objects(self) -> &'static str {
        match self {
            Self::Files => "the configuration directories to be read",
            Self::Kubernetes => "the objects of the cluster to be read",
            Self::Workloads => "workloads to be registered",
            Self::OtherClusters => "the objects of other clusters to be read",
        }
    }

    /// What readiness waits for until the settings of the mesh are known.
    pub(crate) const fn mesh(self) -> &'static str {
        match self {
            Self::Files => "the mesh configuration to be read",
            Self::Kubernetes | Self::OtherClusters => {
                "the mesh configuration of the cluster to be read"
            }
            Self::Workloads => "the mesh configuration of workloads",
        }
    }
}

/// What comes in.
#[derive(Debug)]
pub(crate) enum Input {
    /// Objects.
    Objects(Origin, Batch),
    /// Mesh configuration and networks.
    Mesh(Origin, Box<MeshUpdate>),
    /// Somebody asked for a push.
    Push,
    /// Somebody says that a loss of services is meant.
    ConfirmLoss,
}

/// What a writer is to expect and how it pushes.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Where objects come from; all must have synced before the first push.
    pub(crate) objects: Vec<Origin>,
    /// Where settings of the mesh come from; all must have been heard before the first push.
    pub(crate) mesh: Vec<Origin>,
    pub(crate) debounce: Debounce,
    pub(crate) guard: Guard,
}

impl Plan {
    /// What must have been heard before the first snapshot is built.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = &'static str> {
        let objects = self.objects.iter().map(|origin| origin.objects());
        objects.chain(self.mesh.iter().map(|origin| origin.mesh()))
    }
}

/// Owner of the store.
#[derive(Debug)]
pub(crate) struct Writer {
    store: Store,
    objects: BTreeMap<Origin, Feed>,
    mesh: BTreeMap<Origin, Feed>,
    plane: Arc<Plane>,
    debouncer: Debouncer,
    guard: Guard,
    /// A push that the guard holds back.
    held: Option<Held>,
    started: std::time::Instant,
    first_done: bool,
}

/// A source and whether it has been heard.
#[derive(Debug)]
struct Feed {
    id: SourceId,
    synced: bool,
}

#[derive(Debug)]
struct Held {
    due: Due,
    since: Instant,
    until: Instant,
    loss: Loss,
}

impl Writer {
    /// A writer with an empty store.
    pub(crate) fn new(plane: Arc<Plane>, plan: &Plan, started: std::time::Instant) -> Self {
        let mut store = Store::new();
        let mut feeds = |origins: &[Origin], what: &str| {
            let mut origins = origins.to_vec();
            origins.sort_unstable();
            origins
                .into_iter()
                .map(|origin| {
                    let id = store.register(format!("{}{what}", origin.name()));
                    (origin, Feed { id, synced: false })
                })
                .collect()
        };
        let mut objects: BTreeMap<Origin, Feed> = feeds(&plan.objects, "");
        let mesh = feeds(&plan.mesh, " (mesh settings)");
        let registered = Feed {
            id: store.register(Origin::Workloads.name()),
            synced: true,
        };
        objects.insert(Origin::Workloads, registered);
        Self {
            objects,
            mesh,
            store,
            plane,
            debouncer: Debouncer::new(plan.debounce),
            guard: plan.guard,
            held: None,
            started,
            first_done: false,
        }
    }

    /// Works until nobody can send any more.
    pub(crate) async fn run(mut self, mut inputs: mpsc::Receiver<Input>) -> Result<()> {
        loop {
            // Looked at first, so that a flood of changes cannot put off a push for ever.
            if let Some(due) = self.take_due() {
                self.push(due).await?;
            }
            let held = self.held.as_ref().map(|held| held.until);
            let deadline = [self.debouncer.deadline(), held]
                .into_iter()
                .flatten()
                .min()
                .filter(|_| self.first_done);
            tokio::select! {
                biased;
                input = inputs.recv() => match input {
                    Some(input) => self.take(input),
                    None => return Ok(()),
                },
                () = sleep_until(deadline) => {}
            }
        }
    }

    fn take(&mut self, input: Input) {
        let request = match input {
            Input::Objects(origin, batch) => self.take_objects(origin, batch),
            Input::Mesh(origin, update) => self.take_mesh(origin, *update),
            Input::Push => Request::because(Reason::Debug),
            Input::ConfirmLoss => {
                if let Some(held) = &mut self.held {
                    held.until = Instant::now();
                }
                return;
            }
        };
        if !request.reasons.is_empty() {
            self.debouncer.add(request, Instant::now());
        }
        self.tell_findings();
    }

    fn tell_findings(&self) {
        let mut diagnostics = self.store.diagnostics();
        let held = self.held.as_ref();
        diagnostics.extend(held.map(|held| guard::finding(held.loss, self.guard.time)));
        self.plane.set_input_diagnostics(diagnostics);
    }

    fn take_objects(&mut self, origin: Origin, batch: Batch) -> Request {
        let Some(feed) = self.objects.get_mut(&origin) else {
            return Request::default();
        };
        let before = self.store.snapshot();
        let applied = self.store.apply(feed.id, batch.changes);
        // Only those that read other clusters know anything of them.
        let trusts = origin == Origin::OtherClusters;
        let trust_changed = trusts && self.store.set_trust_domains(batch.trust_domains);
        self.store.set_diagnostics(feed.id, batch.diagnostics);
        feed.synced |= batch.synced;
        if feed.synced {
            self.plane.readiness.done(origin.objects());
        } else {
            self.plane
                .readiness
                .explain(origin.objects(), &batch.waiting_for.join("; "));
        }
        for key in &applied.changed {
            self.plane
                .metrics
                .object_event(key.kind, event(key, &before, &applied.snapshot));
        }
        tracing::debug!(target: "config", changed = applied.changed.len(), version = applied.snapshot.version, "objects read");
        let mut request = Request::of(applied.changed);
        if trust_changed {
            tracing::info!(target: "config", "trust domains of other clusters changed");
            request.reasons.insert(Reason::Global, 1);
        }
        request
    }

    fn take_mesh(&mut self, origin: Origin, update: MeshUpdate) -> Request {
        let mut request = Request::default();
        let Some(feed) = self.mesh.get_mut(&origin) else {
            return request;
        };
        if !update.waiting_for.is_empty() {
            self.plane
                .readiness
                .explain(origin.mesh(), &update.waiting_for.join("; "));
            return request;
        }
        if let Some(mesh) = update.mesh
            && self.store.set_mesh(mesh)
        {
            tracing::info!(target: "config", "mesh configuration changed");
            request.reasons.insert(Reason::Global, 1);
        }
        if let Some(networks) = update.networks
            && self.store.set_networks(networks)
        {
            tracing::info!(target: "config", "networks of the mesh changed");
            request.reasons.insert(Reason::Networks, 1);
        }
        self.store.set_diagnostics(feed.id, update.diagnostics);
        feed.synced = true;
        self.plane.readiness.done(origin.mesh());
        request
    }

    /// The first push waits for every source and for nothing else; later ones for quiet, and for the guard.
    fn take_due(&mut self) -> Option<Due> {
        let now = Instant::now();
        if self.first_done {
            let due = self.debouncer.take(now);
            return self.guarded(due, now);
        }
        if !self
            .objects
            .values()
            .chain(self.mesh.values())
            .all(|feed| feed.synced)
        {
            return None;
        }
        let all = self.store.snapshot().objects.keys().cloned().collect();
        let first = Due {
            request: Request::of(all),
            since: now,
            events: 1,
        };
        Some(self.debouncer.drain().map_or(first.clone(), |waiting| Due {
            request: first.request,
            ..waiting
        }))
    }

    /// What is due and what was held back, unless the guard holds it back now.
    fn guarded(&mut self, due: Option<Due>, now: Instant) -> Option<Due> {
        let waited = self.held.as_ref().is_some_and(|held| held.until <= now);
        if due.is_none() && !waited {
            return None;
        }
        // What waits is in the store already, and is pushed with the rest: it has to be named.
        let due = due.or_else(|| self.debouncer.drain());
        let held = self.held.take();
        let since = held.as_ref().map(|held| held.since);
        let due = match (held, due) {
            (Some(held), Some(due)) => held.due.and(due),
            (Some(held), None) => held.due,
            (None, due) => due?,
        };
        let loss = Loss::between(
            &self.plane.snapshot(),
            &self.store.snapshot(),
            &due.request.changed,
        );
        match self.guard.decide(loss, since, now) {
            Decision::Hold(until) if !waited => {
                if since.is_none() {
                    tracing::error!(target: "push", "{}", guard::finding(loss, self.guard.time));
                }
                self.held = Some(Held {
                    due,
                    since: since.unwrap_or(now),
                    until,
                    loss,
                });
                self.plane.metrics.held_back.set(1);
                self.tell_findings();
                None
            }
            _ => {
                if since.is_some() {
                    let why = if waited {
                        "it has lasted, or was confirmed"
                    } else {
                        "the services are back"
                    };
                    tracing::warn!(target: "push", lost = loss.lost, before = loss.before, "pushing again after a loss of services: {why}");
                    self.plane.metrics.held_back.set(0);
                    self.tell_findings();
                }
                Some(due)
            }
        }
    }

    async fn push(&mut self, due: Due) -> Result<()> {
        let snapshot = self.store.snapshot();
        let before = self.plane.snapshot();
        let began = Instant::now();
        let (plane, wanted) = (Arc::clone(&self.plane), Arc::clone(&snapshot));
        let (outcome, due) =
            tokio::task::spawn_blocking(move || (plane.apply(wanted, &due.request.changed), due))
                .await
                .context("deriving the state of the mesh failed")?;
        let (waited, derived) = (due.since.elapsed(), began.elapsed());
        let causes = Causes::between(&before, &snapshot, &due.request.changed);
        self.record(&due, &snapshot, outcome, causes, waited, derived);
        if !self.first_done {
            self.first_done = true;
            self.plane.readiness.done(FIRST_SNAPSHOT);
            self.announce(&snapshot);
        }
        Ok(())
    }

    fn record(
        &self,
        due: &Due,
        snapshot: &Snapshot,
        outcome: crate::plane::Outcome,
        causes: Causes,
        waited: Duration,
        derived: Duration,
    ) {
        let metrics = &self.plane.metrics;
        metrics.debounced(waited, derived);
        for (reason, count) in &due.request.reasons {
            metrics.triggered(reason.as_str(), *count);
        }
        let services = services(&self.plane);
        metrics.services.set(services);
        metrics
            .virtual_services
            .set(i64::try_from(snapshot.list(Kind::VirtualService).count()).unwrap_or(i64::MAX));
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e5).round() / 1e2;
        let push = Push {
            time: Timestamp::now().to_string(),
            generation: outcome.generation,
            config_version: snapshot.version,
            events: due.events,
            reasons: due
                .request
                .reasons
                .iter()
                .map(|(reason, count)| (reason.as_str(), *count))
                .collect(),
            changed_objects: due.request.changed.len(),
            objects: Push::names(&due.request.changed),
            changed_facts: outcome.changed_facts,
            waited_ms: milliseconds(waited),
            derived_ms: milliseconds(derived),
            is_new: outcome.is_new,
            causes,
        };
        if self.first_done {
            tracing::info!(
                target: "push",
                generation = push.generation, objects = push.changed_objects, facts = push.changed_facts,
                waited_ms = push.waited_ms, derived_ms = push.derived_ms,
                "{} {} because of {}", if push.is_new { "pushing" } else { "nothing to send after a change of" }, push.objects.first().map_or("", String::as_str), reasons(&push),
            );
        }
        self.plane.history.add(push);
    }

    fn announce(&self, snapshot: &Snapshot) {
        let endpoints = endpoints(&self.plane);
        tracing::info!(
            "ready in {} ms: {} services, {endpoints} endpoints, {} objects",
            self.started.elapsed().as_millis(),
            services(&self.plane),
            snapshot.objects.len(),
        );
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn reasons(push: &Push) -> String {
    push.reasons
        .iter()
        .map(|(reason, count)| format!("{reason} ({count})"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn event(key: &ObjectKey, before: &Snapshot, after: &Snapshot) -> &'static str {
    match (before.get(key), after.get(key)) {
        (None, _) => "add",
        (_, None) => "delete",
        _ => "update",
    }
}

fn services(plane: &Plane) -> i64 {
    i64::try_from(Reader::new(&plane.world()).services().len()).unwrap_or(i64::MAX)
}

fn endpoints(plane: &Plane) -> usize {
    let world = plane.world();
    let reader = Reader::new(&world);
    let of = |id| {
        reader
            .endpoints(id)
            .map_or(0, |all| all.by_port.values().map(Vec::len).sum())
    };
    reader
        .services()
        .iter()
        .map(|service| of(&service.id))
        .sum()
}

#[cfg(test)]
mod tests {
    use pilotfish_config::{Change, parse};

    use super::*;
    use crate::metrics::Metrics;
    use crate::nodes::Nodes;
    use crate::readiness::Readiness;

    fn plane() -> Arc<Plane> {
        let metrics = Arc::new(Metrics::new(std::time::Instant::now()));
        let nodes = Arc::new(Nodes::new(Arc::clone(&metrics)));
        let waits = [
            Origin::Files.objects(),
            Origin::Files.mesh(),
            FIRST_SNAPSHOT,
        ];
        let readiness = Readiness::waiting_for(waits.map(str::to_owned));
        Arc::new(Plane::new(
            pilotfish_mesh::Settings::default(),
            readiness,
            metrics,
            nodes,
            crate::settings::Treatment::default(),
        ))
    }

    fn objects(names: &[&str]) -> Input {
        let text: Vec<_> = names
            .iter()
            .map(|name| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{clusterIP: 10.0.0.1, ports: [{{port: 80}}]}}\n"))
            .collect();
        let parsed = parse::documents(&text.join("---\n"), "x.yaml");
        let changes = parsed.objects.into_iter().map(Change::upsert).collect();
        Input::Objects(
            Origin::Files,
            Batch {
                changes,
                synced: true,
                ..Batch::default()
            },
        )
    }

    fn plan(debounce: Debounce) -> Plan {
        Plan {
            objects: vec![Origin::Files],
            mesh: vec![Origin::Files],
            debounce,
            guard: Guard {
                percent: 50,
                time: Duration::from_secs(30),
            },
        }
    }

    /// Time stands still unless everybody waits.
    #[tokio::test(start_paused = true)]
    async fn the_first_push_is_at_once_and_later_ones_merge() {
        let (plane, (inputs, received)) = (plane(), mpsc::channel(4));
        let debounce = Debounce {
            first: Duration::from_millis(100),
            after: Duration::from_millis(100),
            max: Duration::from_secs(10),
            endpoints: true,
        };
        let mut generations = pilotfish_xds::Configuration::generation(&*plane);
        let writer = tokio::spawn(
            Writer::new(
                Arc::clone(&plane),
                &plan(debounce),
                std::time::Instant::now(),
            )
            .run(received),
        );
        let start = Instant::now();
        inputs.send(objects(&["a"])).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(
            plane.readiness.check().is_err(),
            "the mesh configuration was not heard of"
        );
        assert_eq!(services(&plane), 0);

        inputs
            .send(Input::Mesh(Origin::Files, Box::default()))
            .await
            .unwrap();
        generations.changed().await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(1), "not debounced");
        assert_eq!(services(&plane), 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(plane.readiness.check(), Ok(()));

        let start = Instant::now();
        inputs.send(objects(&["a", "b"])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;
        inputs.send(objects(&["a", "b", "c"])).await.unwrap();
        generations.changed().await.unwrap();
        assert_eq!(services(&plane), 3, "one push for both");
        assert!(
            start.elapsed() >= Duration::from_millis(160),
            "{:?}",
            start.elapsed()
        );
        assert!(
            start.elapsed() < Duration::from_millis(170),
            "{:?}",
            start.elapsed()
        );
        drop(inputs);
        writer.await.unwrap().unwrap();
    }

    fn lose(names: &[String]) -> Input {
        let gone =
            |name: &String| Change::Delete(ObjectKey::new(Kind::Service, "shop", name.as_str()));
        Input::Objects(
            Origin::Files,
            Batch {
                changes: names.iter().map(gone).collect(),
                synced: true,
                ..Batch::default()
            },
        )
    }

    /// A writer that has pushed 20 services.
    async fn guarded() -> (Arc<Plane>, mpsc::Sender<Input>, Vec<String>) {
        let (plane, (inputs, received)) = (plane(), mpsc::channel(4));
        let debounce = Debounce {
            first: Duration::from_millis(5),
            after: Duration::from_millis(100),
            max: Duration::from_secs(10),
            endpoints: true,
        };
        let writer = Writer::new(
            Arc::clone(&plane),
            &plan(debounce),
            std::time::Instant::now(),
        );
        tokio::spawn(writer.run(received));
        let names: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        inputs.send(objects(&all)).await.unwrap();
        inputs
            .send(Input::Mesh(Origin::Files, Box::default()))
            .await
            .unwrap();
        settle().await;
        assert_eq!(services(&plane), 20);
        (plane, inputs, names)
    }

    /// Long enough for a push. The thread that derives is not part of the clock that stands still.
    async fn settle() {
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_great_loss_waits_until_it_has_lasted() {
        let (plane, inputs, names) = guarded().await;
        inputs.send(lose(&names[..10])).await.unwrap();
        settle().await;
        assert_eq!(services(&plane), 10, "half may go");
        inputs.send(lose(&names[10..])).await.unwrap();
        settle().await;
        assert_eq!(services(&plane), 10);
        let held = plane.held_back().expect("a finding");
        assert!(held.reason.contains("10 of 10"), "{held}");
        tokio::time::sleep(Duration::from_secs(20)).await;
        settle().await;
        assert_eq!(services(&plane), 10);
        tokio::time::sleep(Duration::from_secs(10)).await;
        settle().await;
        assert_eq!(services(&plane), 0);
        assert_eq!(plane.held_back(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_that_is_made_good_is_never_seen() {
        let (plane, inputs, names) = guarded().await;
        inputs.send(lose(&names)).await.unwrap();
        settle().await;
        assert!(plane.held_back().is_some());
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        inputs.send(objects(&all)).await.unwrap();
        settle().await;
        assert_eq!((services(&plane), plane.held_back()), (20, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_that_somebody_confirms_is_pushed() {
        let (plane, inputs, names) = guarded().await;
        inputs.send(lose(&names[1..])).await.unwrap();
        settle().await;
        assert_eq!(services(&plane), 20);
        inputs.send(Input::ConfirmLoss).await.unwrap();
        settle().await;
        assert_eq!((services(&plane), plane.held_back()), (1, None));
    }

    /// What waits is in the store already: whoever pushes the store names it.
    #[tokio::test(start_paused = true)]
    async fn what_came_before_a_confirmed_loss_is_pushed_with_it() {
        let (plane, inputs, names) = guarded().await;
        inputs.send(lose(&names[1..])).await.unwrap();
        settle().await;
        let before = plane.current();
        inputs.send(objects(&["late"])).await.unwrap();
        inputs.send(Input::ConfirmLoss).await.unwrap();
        settle().await;
        assert_eq!((services(&plane), plane.current()), (2, before + 1));
    }
}
