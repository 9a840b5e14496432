//! The one task that writes: takes what sources have learned, keeps the store, and pushes when changes have settled.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use pilotfish_config::{Kind, ObjectKey, Snapshot, SourceId, Store};
use pilotfish_mesh::Reader;
use pilotfish_sources::Batch;
use pilotfish_sources::files::MeshUpdate;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::debounce::{Debouncer, Due, Reason, Request};
use crate::plane::{FIRST_SNAPSHOT, Plane};
use crate::pushes::{Causes, Push};
use crate::settings::Debounce;

/// What comes in.
#[derive(Debug)]
pub(crate) enum Input {
    /// Objects.
    Objects(Batch),
    /// Mesh configuration and networks.
    Mesh(Box<MeshUpdate>),
    /// Somebody asked for a push.
    Push,
}

/// What must have been heard before the first snapshot is built.
pub(crate) const OBJECTS: &str = "the configuration directories to be read";
pub(crate) const MESH: &str = "the mesh configuration to be read";

/// Owner of the store.
#[derive(Debug)]
pub(crate) struct Writer {
    store: Store,
    objects: SourceId,
    mesh: SourceId,
    plane: Arc<Plane>,
    debouncer: Debouncer,
    started: std::time::Instant,
    objects_synced: bool,
    mesh_synced: bool,
    first_done: bool,
}

impl Writer {
    /// A writer with an empty store.
    pub(crate) fn new(plane: Arc<Plane>, debounce: Debounce, started: std::time::Instant) -> Self {
        let mut store = Store::new();
        let objects = store.register("directories");
        let mesh = store.register("mesh settings");
        Self {
            store,
            objects,
            mesh,
            plane,
            debouncer: Debouncer::new(debounce),
            started,
            objects_synced: false,
            mesh_synced: false,
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
            let deadline = self.debouncer.deadline().filter(|_| self.first_done);
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
            Input::Objects(batch) => self.take_objects(batch),
            Input::Mesh(update) => self.take_mesh(*update),
            Input::Push => Request::because(Reason::Debug),
        };
        if !request.reasons.is_empty() {
            self.debouncer.add(request, Instant::now());
        }
        let diagnostics = self.store.diagnostics();
        self.plane.set_input_diagnostics(diagnostics);
    }

    fn take_objects(&mut self, batch: Batch) -> Request {
        let before = self.store.snapshot();
        let applied = self.store.apply(self.objects, batch.changes);
        self.store.set_diagnostics(self.objects, batch.diagnostics);
        self.objects_synced |= batch.synced;
        if self.objects_synced {
            self.plane.readiness.done(OBJECTS);
        }
        for key in &applied.changed {
            self.plane
                .metrics
                .object_event(key.kind, event(key, &before, &applied.snapshot));
        }
        tracing::debug!(target: "config", changed = applied.changed.len(), version = applied.snapshot.version, "objects read");
        Request::of(applied.changed)
    }

    fn take_mesh(&mut self, update: MeshUpdate) -> Request {
        let mut request = Request::default();
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
        self.store.set_diagnostics(self.mesh, update.diagnostics);
        self.mesh_synced = true;
        self.plane.readiness.done(MESH);
        request
    }

    /// The first push waits for every source and for nothing else; later ones for quiet.
    fn take_due(&mut self) -> Option<Due> {
        let now = Instant::now();
        if self.first_done {
            return self.debouncer.take(now);
        }
        if !(self.objects_synced && self.mesh_synced) {
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
        let readiness = Readiness::waiting_for([OBJECTS, MESH, FIRST_SNAPSHOT].map(str::to_owned));
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
        let changes = parsed.objects.into_iter().map(Change::Upsert).collect();
        Input::Objects(Batch {
            changes,
            diagnostics: Vec::new(),
            synced: true,
        })
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
            Writer::new(Arc::clone(&plane), debounce, std::time::Instant::now()).run(received),
        );
        let start = Instant::now();
        inputs.send(objects(&["a"])).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(
            plane.readiness.check().is_err(),
            "the mesh configuration was not heard of"
        );
        assert_eq!(services(&plane), 0);

        inputs.send(Input::Mesh(Box::default())).await.unwrap();
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
}
