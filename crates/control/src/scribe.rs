//! Writes back to the cluster while it holds the lease: asks for the lease, asks the writers what they want, and makes the
//! requests. What is decided is decided in `pilotfish_writers`; here are the clock and the network.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::extract;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use pilotfish_config::{Diagnostic, Standings};
use pilotfish_sources::kube::{self, Link, Refusal, Register};
use pilotfish_writers::{
    Answer, Candidate, Failure, LeaseName, Ledger, Order, Part, Step, Timing, View,
};
use rand::RngExt;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::http::{Pages, json};
use crate::metrics::Metrics;
use crate::plane::Plane;

/// How often it is looked whether there is something to do.
const LOOK: Duration = Duration::from_millis(500);
/// How much longer than it took it is waited before writers are asked again, and how long at least.
const REST: u32 = 20;
const REST_AT_LEAST: Duration = Duration::from_secs(1);
/// How long is written before writers are asked again.
const SPELL: Duration = Duration::from_secs(2);
/// How long an answer to a write is waited for at most, and how much time there must be to wait.
const PATIENCE: Duration = Duration::from_secs(10);
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
/// How long giving the lease back may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// What is written, and by whom.
#[derive(Debug, Clone)]
pub(crate) struct Writing {
    /// What is written; there is something.
    pub(crate) parts: Vec<Part>,
    /// The lease to hold while writing; none if nobody else writes.
    pub(crate) lease: Option<Timing>,
    /// The name of the pod or host.
    pub(crate) host: String,
}

/// What is wrong with the mesh, and how objects stood when that was found out.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Differs between two.
    pub(crate) number: u64,
    pub(crate) findings: Vec<Diagnostic>,
    pub(crate) standings: Standings,
}

/// How it goes with writing, for people; cloning shares it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Desk(Arc<Mutex<Shown>>);

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    identity: String,
    lease: Option<String>,
    holder: String,
    leader: bool,
    /// Until when, if it is not renewed.
    #[serde(skip)]
    until: Option<Instant>,
    /// Why the lease cannot be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_problem: Option<String>,
    parts: Vec<&'static str>,
    open: usize,
    writes: u64,
    failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<String>,
}

impl Desk {
    fn lock(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> Shown {
        let mut shown = self.lock().clone();
        shown.leader &= shown.until.is_none_or(|until| until > Instant::now());
        shown
    }

    /// Whether this replica is the one that writes.
    pub(crate) fn leads(&self) -> bool {
        self.shown().leader
    }

    /// Brings the metrics up to date.
    pub(crate) fn count(&self, metrics: &Metrics) {
        metrics.leader.set(i64::from(self.leads()));
    }
}

/// How it goes with writing.
pub(crate) async fn page(extract::State(pages): extract::State<Pages>) -> Response {
    match &pages.desk {
        Some(desk) => json(&desk.shown()),
        None => "nothing is written to a cluster\n".into_response(),
    }
}

/// Whether writing is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leadership {
    No,
    Until(Instant),
    Always,
}

impl Leadership {
    /// How long a request may take that is made now.
    fn patience(self, now: Instant) -> Option<Duration> {
        match self {
            Self::No => None,
            Self::Always => Some(PATIENCE),
            Self::Until(until) => {
                let left = until.saturating_duration_since(now).min(PATIENCE);
                (left >= LEAST_PATIENCE).then_some(left)
            }
        }
    }
}

/// Who writes.
#[derive(Debug)]
pub(crate) struct Scribe {
    pub(crate) link: Link,
    pub(crate) plane: Arc<Plane>,
    pub(crate) register: Register,
    pub(crate) judged: watch::Receiver<Arc<Judgement>>,
    pub(crate) writing: Writing,
    pub(crate) desk: Desk,
}

impl Scribe {
    /// Works until told to stop, and gives the lease back then.
    pub(crate) async fn run(
        self,
        namespace: &str,
        revision: &str,
        stop: watch::Receiver<bool>,
    ) -> Result<()> {
        let identity = format!("{}_{:08x}", self.writing.host, rand::random::<u32>());
        let name = LeaseName::of(namespace, revision);
        {
            let mut shown = self.desk.lock();
            shown.identity.clone_from(&identity);
            shown.parts = self.writing.parts.iter().map(|part| part.name()).collect();
            shown.leader = self.writing.lease.is_none();
            let path = || format!("{}/{}", name.namespace, name.name);
            shown.lease = self.writing.lease.map(|_| path());
        }
        let (link, desk) = (self.link.clone(), self.desk.clone());
        let Some(timing) = self.writing.lease else {
            let (_always, leadership) = watch::channel(Leadership::Always);
            return self.write(leadership, stop, &identity).await;
        };
        let leadership = watch::Sender::new(Leadership::No);
        let allowed = leadership.subscribe();
        let mut candidate = Candidate::new(name, identity.clone(), timing);
        let ((), written) = tokio::join!(
            elect(
                &mut candidate,
                &link,
                &desk,
                &leadership,
                timing,
                stop.clone()
            ),
            self.write(allowed, stop, &identity),
        );
        // Nothing is under way any more: whoever is next need not wait.
        if let Some(step) = candidate.give_up(&clock()) {
            match ask(&link, candidate.name(), &step, FAREWELL).await {
                Ok(_) => tracing::info!(target: "kubernetes", "the lease is given back"),
                Err(refusal) => {
                    tracing::info!(target: "kubernetes", "the lease could not be given back: {}", refusal.reason());
                }
            }
        }
        written
    }

    async fn write(
        mut self,
        mut leadership: watch::Receiver<Leadership>,
        mut stop: watch::Receiver<bool>,
        identity: &str,
    ) -> Result<()> {
        let mut spell = Spell::new(Instant::now());
        loop {
            let allowed = *leadership.borrow_and_update();
            let wait = if allowed.patience(Instant::now()).is_some() {
                self.turn(&mut spell, &leadership, &stop, identity).await?
            } else {
                // Whoever holds the lease next knows nothing of what we meant to write.
                spell = Spell::new(Instant::now());
                LOOK
            };
            self.report(&spell);
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                () = tokio::time::sleep(wait) => {}
                Ok(()) = leadership.changed() => {}
            }
        }
    }

    /// Asks the writers if something has changed, and makes requests for a while; how long to wait for the next turn.
    async fn turn(
        &mut self,
        spell: &mut Spell,
        leadership: &watch::Receiver<Leadership>,
        stop: &watch::Receiver<bool>,
        identity: &str,
    ) -> Result<Duration> {
        // Nothing follows from half of what there is.
        if self.plane.readiness.check().is_err() {
            return Ok(LOOK);
        }
        let began = Instant::now();
        let seen = (
            self.plane.input_version(),
            *self.register.changes().borrow(),
            self.judged.borrow().number,
        );
        if spell.seen != Some(seen) && began >= spell.plan_at {
            self.plan(spell, identity).await?;
            let took = began.elapsed();
            spell.seen = Some(seen);
            spell.plan_at = began + REST_AT_LEAST.max(took * REST);
        }
        while began.elapsed() < SPELL && !*stop.borrow() {
            let now = Instant::now();
            let Some(patience) = leadership.borrow().patience(now) else {
                break;
            };
            let Some(order) = spell.ledger.next(now) else {
                break;
            };
            self.carry_out(&mut spell.ledger, &order, patience).await;
        }
        let now = Instant::now();
        let due = spell.ledger.deadline();
        let due = due.map_or(LOOK, |due| due.saturating_duration_since(now));
        Ok(due.min(LOOK))
    }

    async fn plan(&self, spell: &mut Spell, identity: &str) -> Result<()> {
        let (plane, judged) = (Arc::clone(&self.plane), Arc::clone(&self.judged.borrow()));
        let (standings, parts) = (self.register.all(), self.writing.parts.clone());
        let instance = identity.to_owned();
        let work = move || {
            let (world, snapshot) = (plane.world(), plane.snapshot());
            let view = View {
                snapshot: &snapshot,
                world: &world,
                standings: &standings,
                findings: &judged.findings,
                judged: &judged.standings,
                instance: &instance,
                now: &clock(),
            };
            let wanted = pilotfish_writers::wanted(&view, &parts);
            (wanted, standings)
        };
        let (wanted, standings) = tokio::task::spawn_blocking(work)
            .await
            .context("finding out what to write failed")?;
        spell.ledger.plan(wanted, &standings, Instant::now());
        Ok(())
    }

    async fn carry_out(&self, ledger: &mut Ledger, order: &Order, patience: Duration) {
        let answer = match order.part {
            Part::Events => {
                let namespace = &order.object.namespace;
                let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
                self.link.create(&path, &order.body, patience).await
            }
            Part::Addresses | Part::Findings => {
                let path = kube::path(&order.object, &order.api_version) + "/status";
                let manager = order.part.manager();
                self.link
                    .apply(&path, &manager, &order.body, patience)
                    .await
            }
        };
        let now = Instant::now();
        let mut shown = self.desk.lock();
        match answer {
            Ok(object) => {
                let version = object["metadata"]["resourceVersion"].as_str();
                let version = version.and_then(|version| version.parse().ok());
                ledger.done(order, version.unwrap_or(0), now);
                shown.writes += 1;
                self.plane.metrics.written(order.part.name());
                tracing::debug!(target: "kubernetes", "{} of {} written", order.part, order.object);
            }
            Err(refusal) => {
                let told = matches!((&refusal, order.part), (Refusal::Conflict(_), Part::Events));
                if !told {
                    let line = format!("{} of {}: {}", order.part, order.object, refusal.reason());
                    tracing::debug!(target: "kubernetes", "not written: {line}");
                    self.plane.metrics.not_written(order.part.name());
                    shown.failures += 1;
                    shown.last_failure = Some(line);
                }
                ledger.failed(order, &failure(refusal), now);
            }
        }
    }

    /// Says what cannot be written.
    fn report(&self, spell: &Spell) {
        let mut findings = spell.ledger.findings();
        let mut shown = self.desk.lock();
        shown.open = spell.ledger.open();
        if let (Some(problem), Some(lease)) = (&shown.lease_problem, &shown.lease) {
            let reason = format!("the Lease {lease} cannot be used: {problem}");
            let effect = "nothing is written to the cluster by this replica; it is tried again";
            findings.push(Diagnostic::warning("write-forbidden", reason, effect));
        }
        drop(shown);
        self.plane.set_write_diagnostics(findings);
    }
}

/// What is known while the lease is ours.
struct Spell {
    ledger: Ledger,
    /// What the last plan was made of.
    seen: Option<((u64, pilotfish_xds::Generation), u64, u64)>,
    plan_at: Instant,
}

impl Spell {
    fn new(now: Instant) -> Self {
        Self {
            ledger: Ledger::new(now),
            seen: None,
            plan_at: now,
        }
    }
}

/// The time for people to read.
fn clock() -> String {
    format!("{:.6}", Timestamp::now())
}

fn failure(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Conflict(_) => Failure::Conflict,
        Refusal::Absent(_) => Failure::Absent,
        Refusal::Forbidden(reason) => Failure::Forbidden(reason),
        Refusal::Invalid(reason) => Failure::Invalid(reason),
        Refusal::Busy(reason, wait) => Failure::Failed(reason, wait),
        Refusal::Failed(reason) => Failure::Failed(reason, None),
    }
}

/// Asks for the lease, and renews it, until told to stop. Never waits for anything that is written.
async fn elect(
    candidate: &mut Candidate,
    link: &Link,
    desk: &Desk,
    leadership: &watch::Sender<Leadership>,
    timing: Timing,
    mut stop: watch::Receiver<bool>,
) {
    let mut leads = false;
    loop {
        let due = candidate.due().unwrap_or_else(Instant::now);
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep_until(due.into()) => {}
        }
        let sent = Instant::now();
        let step = candidate.step(sent, &clock());
        let outcome = ask(link, candidate.name(), &step, timing.hold() / 2).await;
        let (answer, problem) = match outcome {
            Ok(lease) => (Answer::Lease(lease), None),
            Err(Refusal::Conflict(_)) => (Answer::Conflict, None),
            Err(Refusal::Absent(reason)) => {
                let made = matches!(step, Step::Create(_));
                (Answer::Absent, made.then_some(reason))
            }
            Err(Refusal::Forbidden(reason) | Refusal::Invalid(reason)) => {
                (Answer::Failed, Some(reason))
            }
            Err(refusal) => {
                tracing::debug!(target: "kubernetes", "the lease: {}", refusal.reason());
                (Answer::Failed, desk.lock().lease_problem.clone())
            }
        };
        let now = Instant::now();
        candidate.answered(&step, &answer, sent, now, rand::rng().random());
        let until = candidate.held_until(now);
        if leads != until.is_some() {
            leads = until.is_some();
            if leads {
                tracing::info!(target: "kubernetes", "this replica writes to the cluster now");
            } else {
                tracing::info!(target: "kubernetes", "this replica does not write to the cluster any more");
            }
        }
        {
            let mut shown = desk.lock();
            // A Lease that is absent is about to be made, which may fail.
            if !matches!((&step, &answer), (Step::Read, Answer::Absent)) {
                shown.lease_problem = problem;
            }
            candidate.holder().clone_into(&mut shown.holder);
            (shown.leader, shown.until) = (leads, until);
        }
        leadership.send_replace(until.map_or(Leadership::No, Leadership::Until));
    }
}

async fn ask(
    link: &Link,
    name: &LeaseName,
    step: &Step,
    patience: Duration,
) -> Result<Value, Refusal> {
    match step {
        Step::Read => link.read(&name.path(), patience).await,
        Step::Create(lease) => link.create(&name.collection(), lease, patience).await,
        Step::Replace(lease) => link.replace(&name.path(), lease, patience).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_begun_that_cannot_end_in_time() {
        let now = Instant::now();
        let until = |milliseconds| Leadership::Until(now + Duration::from_millis(milliseconds));
        assert_eq!(Leadership::No.patience(now), None);
        assert_eq!(until(100).patience(now), None);
        assert_eq!(until(3000).patience(now), Some(Duration::from_secs(3)));
        assert_eq!(until(60_000).patience(now), Some(PATIENCE));
        assert_eq!(until(3000).patience(now + Duration::from_secs(4)), None);
        assert_eq!(Leadership::Always.patience(now), Some(PATIENCE));
    }

    #[test]
    fn the_clock_is_as_kubernetes_wants_it() {
        let text = clock();
        assert_eq!(text.len(), "2026-01-01T00:00:00.000000Z".len(), "{text}");
    }
}
