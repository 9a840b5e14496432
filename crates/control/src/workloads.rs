//! Workloads that register themselves when their proxies connect, and the health that their agents report. What is decided is
//! decided in `pilotfish_writers::workloads`; here are the clock, and the requests to a cluster or to memory.
//!
//! Every replica writes for the proxies that are connected to it. An entry lives where its group does: one whose group is
//! in a file, or in no cluster, lives in memory, as one more source of the store.

use pilotfish_config::Text;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use jiff::Timestamp;
use pilotfish_config::networking::WorkloadGroup;
use pilotfish_config::{Change, Diagnostic, Kind, ObjectKey, Snapshot, parse};
use pilotfish_engine::ProxyFacts;
use pilotfish_sources::Batch;
use pilotfish_sources::kube::{self, Link, Refusal};
use pilotfish_writers::workloads::{
    Answer, Applicant, Claim, Identity, Now, Order, Place, Registrar, Report, Rules, Shelf, Step,
    Unfit, admit,
};
use pilotfish_xds::Health;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::metrics::{Metrics, Registrations};
use crate::plane::Plane;
use crate::scribe::Desk;
use crate::writer::{Input, Origin};

/// Under which name the API server keeps what is written here.
const MANAGER: &str = "pilotfish-workloads";
/// How many requests are under way at a time.
const AT_ONCE: usize = 16;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked what the store says.
const LOOK: Duration = Duration::from_secs(1);
/// How often even if it says the same, since time passes.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long a replica that stops waits for the answers to its last words.
const FAREWELL: Duration = Duration::from_secs(2);

/// What is done about workloads that register themselves.
#[derive(Debug, Clone)]
pub(crate) struct Enrolment {
    /// Entries are made.
    pub(crate) registers: bool,
    /// Health is written.
    pub(crate) checks_health: bool,
    /// Proxies must prove who they are.
    pub(crate) validates: bool,
    /// How long a proxy may be away.
    pub(crate) grace: Duration,
    pub(crate) max_connection_age: Option<Duration>,
    /// The pod of this replica.
    pub(crate) pod: Option<String>,
    /// What it runs on.
    pub(crate) host: String,
}

/// Who registers workloads; cloning shares.
#[derive(Debug, Clone)]
pub(crate) struct Workloads(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    enrolment: Enrolment,
    registrar: Mutex<Registrar>,
    shelf: Mutex<Shelf>,
    changed: Notify,
    streams: AtomicU64,
    metrics: Arc<Metrics>,
}

/// The workload of a proxy that is connected. It has left when this is dropped.
#[derive(Debug)]
pub(crate) struct Enrolled {
    workloads: Workloads,
    place: Place,
    stream: u64,
}

impl Enrolled {
    /// Its agent says how it is.
    pub(crate) fn reported(&self, health: Health) {
        if !self.workloads.0.enrolment.checks_health {
            return;
        }
        let now = now();
        let report = Report {
            healthy: health.problem.is_none(),
            message: health.problem.unwrap_or_default(),
            at: now.clock,
        };
        let mut registrar = self.workloads.registrar();
        registrar.reported(&self.place, self.stream, report, now);
        drop(registrar);
        self.workloads.0.changed.notify_one();
    }
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        let mut registrar = self.workloads.registrar();
        registrar.disconnected(&self.place, self.stream, now());
        drop(registrar);
        self.workloads.0.changed.notify_one();
    }
}

fn now() -> Now {
    Now {
        instant: Instant::now(),
        clock: Timestamp::now(),
    }
}

impl Workloads {
    /// For a control plane of this namespace.
    pub(crate) fn new(enrolment: Enrolment, namespace: &str, metrics: Arc<Metrics>) -> Self {
        let rules = Rules::new(
            namespace,
            enrolment.pod.as_deref(),
            &format!("{}_{:08x}", enrolment.host, rand::random::<u32>()),
            enrolment.grace,
            enrolment.max_connection_age,
        );
        Self(Arc::new(Inner {
            enrolment,
            registrar: Mutex::new(Registrar::new(rules)),
            shelf: Mutex::default(),
            changed: Notify::new(),
            streams: AtomicU64::new(0),
            metrics,
        }))
    }

    fn registrar(&self) -> MutexGuard<'_, Registrar> {
        let registrar = self.0.registrar.lock();
        registrar.unwrap_or_else(PoisonError::into_inner)
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters(&self) -> &Registrations {
        &self.0.metrics.registrations
    }

    /// Registers the workload of a proxy that connects, if it wants that. Who may not is refused.
    pub(crate) fn enrol(
        &self,
        facts: &ProxyFacts,
        identity: Identity,
        snapshot: &Snapshot,
    ) -> Result<Option<Enrolled>, tonic::Status> {
        let Some(applicant) = self.applicant(facts, identity) else {
            return Ok(None);
        };
        let place = match admit(&applicant, snapshot) {
            Ok(Some(place)) => place,
            Ok(None) => return Ok(None),
            Err(unfit) => return Err(self.refuse(&applicant, &unfit)),
        };
        let declared = snapshot.get(&place).filter(|entry| entry.origin.is_some());
        if let (Some(entry), Claim::Entry(_)) = (declared, &applicant.claim) {
            let reason = "the health of a workload cannot be written to the file that declares it";
            let effect = "what its agent reports is not used";
            let finding = Diagnostic::warning("workload-registration", reason, effect)
                .of(place)
                .from_origin(entry.origin.clone());
            self.registrar().refused(finding, now());
            return Ok(None);
        }
        let stream = self.0.streams.fetch_add(1, Ordering::Relaxed);
        let mut registrar = self.registrar();
        registrar.connected(&place, stream, applicant, now());
        drop(registrar);
        self.0.changed.notify_one();
        Ok(Some(Enrolled {
            workloads: self.clone(),
            place,
            stream,
        }))
    }

    /// What a proxy wants; none if it wants nothing.
    fn applicant(&self, facts: &ProxyFacts, identity: Identity) -> Option<Applicant> {
        let enrolment = &self.0.enrolment;
        let claim = match (facts.register_group(), facts.workload_entry()) {
            (group, _) if enrolment.registers && !group.is_empty() => {
                Claim::Group(group.to_owned())
            }
            (_, entry) if enrolment.checks_health && !entry.is_empty() => {
                Claim::Entry(entry.to_owned())
            }
            _ => return None,
        };
        let text = |(key, value): (&Text, &Text)| (key.to_string(), value.to_string());
        let locality = facts.locality().map(|place| {
            let parts = [&place.region, &place.zone, &place.subzone];
            let said = parts.into_iter().take_while(|part| !part.is_empty());
            said.map(|part| &**part).collect::<Vec<_>>().join("/")
        });
        Some(Applicant {
            namespace: facts.namespace().to_owned(),
            claim,
            address: facts.addresses().first()?.to_string(),
            network: facts.network().to_owned(),
            labels: facts.labels().iter().map(text).collect(),
            locality: locality.unwrap_or_default(),
            health_checked: facts.checks_health(),
            tunnel: facts.has_tunnel(),
            identity: if enrolment.validates {
                identity
            } else {
                Identity::Any
            },
        })
    }

    fn refuse(&self, applicant: &Applicant, unfit: &Unfit) -> tonic::Status {
        let (kind, name) = match &applicant.claim {
            Claim::Group(name) => (Kind::WorkloadGroup, name),
            Claim::Entry(name) => (Kind::WorkloadEntry, name),
        };
        let object = ObjectKey::new(kind, applicant.namespace.as_str(), name.as_str());
        let reason = format!(
            "the workload at {} cannot be registered: {}",
            applicant.address,
            unfit.reason()
        );
        let effect = "its proxy is refused, and keeps what it has";
        let finding = Diagnostic::error("workload-refused", reason.as_str(), effect).of(object);
        self.registrar().refused(finding, now());
        self.0.changed.notify_one();
        self.counters().failed.inc();
        match unfit {
            Unfit::Invalid(_) => tonic::Status::invalid_argument(reason),
            Unfit::Denied(_) => tonic::Status::permission_denied(reason),
            Unfit::Missing(_) => tonic::Status::failed_precondition(reason),
        }
    }

    /// Makes requests until told to stop; then says who has left, for as long as streams are drained and a little longer.
    pub(crate) async fn run(
        self,
        plane: Arc<Plane>,
        link: Option<Link>,
        desk: Option<Desk>,
        inputs: mpsc::Sender<Input>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<()> {
        let clerk = Arc::new(Clerk {
            workloads: self.clone(),
            plane,
            link,
            inputs,
        });
        let mut tasks: JoinSet<(Order, Answer)> = JoinSet::new();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut seen = None;
        let mut end = None;
        loop {
            let at = Instant::now();
            while tasks.len() < AT_ONCE
                && let Some(order) = self.registrar().next(at)
            {
                let clerk = Arc::clone(&clerk);
                tasks.spawn(async move {
                    let answer = clerk.carry_out(&order).await;
                    (order, answer)
                });
            }
            let deadline = {
                let registrar = self.registrar();
                clerk.plane.set_workload_diagnostics(registrar.findings());
                let drained = registrar.counts().1 == 0;
                if end.is_some() && registrar.is_done() {
                    return Ok(());
                }
                if let Some(none @ None) = &mut end
                    && drained
                {
                    *none = Some(at + FAREWELL);
                }
                registrar.deadline().filter(|_| tasks.len() < AT_ONCE)
            };
            if end.flatten().is_some_and(|end| end <= at) {
                return Ok(());
            }
            tokio::select! {
                Some(done) = tasks.join_next(), if !tasks.is_empty() => {
                    let (order, answer) = done?;
                    self.count(&order, &answer);
                    self.registrar().answered(&order, answer, now());
                }
                () = self.0.changed.notified() => {}
                () = sleep_until(deadline) => {}
                _ = look.tick() => {
                    let snapshot = clerk.plane.snapshot();
                    let is_old = |(version, looked): (u64, Instant)| {
                        version != snapshot.version || looked.elapsed() >= LOOK_AGAIN
                    };
                    if clerk.plane.readiness.check().is_ok() && seen.is_none_or(is_old) {
                        seen = Some((snapshot.version, Instant::now()));
                        let leads = desk.as_ref().is_none_or(Desk::leads);
                        self.registrar().observe(&snapshot, leads, now());
                    }
                }
                _ = stop.wait_for(|stop| *stop), if end.is_none() => {
                    end = Some(None);
                    self.registrar().stop(now());
                }
            }
        }
    }

    fn count(&self, order: &Order, answer: &Answer) {
        let counters = self.counters();
        let done = matches!(answer, Answer::Object(_));
        match (&order.step, answer) {
            (Step::Create(_), _) if done => {
                counters.made.inc();
                tracing::info!(target: "wle", "{} is registered", order.place);
            }
            (Step::Claim(_), _) if done => counters.updated.inc(),
            (Step::Release(_), _) if done => {
                counters.left.inc();
                tracing::info!(target: "wle", "the proxy of {} has left", order.place);
            }
            (Step::Delete(_), _) if done => {
                counters.removed.inc();
                tracing::info!(target: "wle", "{} is removed: its proxy did not come back", order.place);
            }
            (_, Answer::Failed(reason, _) | Answer::Refused(reason)) => {
                counters.failed.inc();
                tracing::debug!(target: "wle", "{}: {reason}", order.place);
            }
            _ => {}
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Who makes requests.
struct Clerk {
    workloads: Workloads,
    plane: Arc<Plane>,
    link: Option<Link>,
    inputs: mpsc::Sender<Input>,
}

impl Clerk {
    async fn carry_out(&self, order: &Order) -> Answer {
        let snapshot = self.plane.snapshot();
        let namespace = &order.place.namespace;
        let group =
            |name: &String| ObjectKey::new(Kind::WorkloadGroup, namespace.clone(), name.as_str());
        let group = order
            .group
            .as_ref()
            .and_then(|name| snapshot.get(&group(name)));
        let is_kept = self.workloads.shelf().get(&order.place).is_some();
        let in_file = group.is_some_and(|group| group.origin.is_some());
        match &self.link {
            Some(link) if !is_kept && !in_file => ask(link, order).await,
            _ => {
                let spec = group.and_then(|group| Some((group, group.get::<WorkloadGroup>()?)));
                let group = spec.map(|(group, spec)| written(&group.key, spec));
                let answer = self
                    .workloads
                    .shelf()
                    .answer(&order.place, &order.step, group);
                if let (false, Answer::Object(entry)) = (is_question(&order.step), &answer) {
                    self.tell(order, entry).await;
                }
                answer
            }
        }
    }

    /// Tells the store of an entry in memory.
    async fn tell(&self, order: &Order, entry: &Value) {
        let mut batch = Batch {
            synced: true,
            ..Batch::default()
        };
        if matches!(order.step, Step::Delete(_)) {
            batch.changes.push(Change::Delete(order.place.clone()));
        } else {
            let parsed = parse::object(entry.clone(), Kind::WorkloadEntry);
            batch
                .changes
                .extend(parsed.objects.into_iter().map(Change::upsert));
            batch.diagnostics = parsed.diagnostics;
        }
        // An error means that the store is gone, and with it the server.
        let _ = self
            .inputs
            .send(Input::Objects(Origin::Workloads, batch))
            .await;
    }
}

fn is_question(step: &Step) -> bool {
    matches!(step, Step::Read | Step::ReadGroup(_))
}

/// A group as an API server would give it.
fn written(key: &ObjectKey, spec: &WorkloadGroup) -> Value {
    json!({
        "apiVersion": key.kind.api_version(), "kind": key.kind.to_string(),
        "metadata": {"name": &*key.name, "namespace": &*key.namespace, "uid": ""},
        "spec": serde_json::to_value(spec).unwrap_or_default(),
    })
}

async fn ask(link: &Link, order: &Order) -> Answer {
    let (key, kind) = (&order.place, order.place.kind);
    let path = kube::path(key, &kind.api_version());
    let status = || format!("{path}/status");
    let asked = match &order.step {
        Step::Read => link.read(&path, PATIENCE).await,
        Step::ReadGroup(name) => {
            let group = ObjectKey::new(Kind::WorkloadGroup, key.namespace.clone(), name.as_str());
            let path = kube::path(&group, &group.kind.api_version());
            link.read(&path, PATIENCE).await
        }
        Step::Create(entry) => {
            let path = kube::collection(kind, &kind.api_version(), &key.namespace);
            link.create(&path, entry, PATIENCE).await
        }
        Step::Claim(change) | Step::Release(change) => {
            link.merge(&path, MANAGER, change, PATIENCE).await
        }
        Step::Health(change) | Step::Clear(change) => {
            link.merge(&status(), MANAGER, change, PATIENCE).await
        }
        Step::Delete(options) => link.delete(&path, options, PATIENCE).await,
    };
    match asked {
        Ok(object) => Answer::Object(object),
        Err(Refusal::Conflict(_)) => Answer::Conflict,
        Err(Refusal::Absent(_)) => Answer::Absent,
        Err(Refusal::Forbidden(reason) | Refusal::Invalid(reason)) => Answer::Refused(reason),
        Err(Refusal::Busy(reason, wait)) => Answer::Failed(reason, wait),
        Err(Refusal::Failed(reason)) => Answer::Failed(reason, None),
    }
}

#[cfg(test)]
mod tests {
    use pilotfish_config::Store;
    use pilotfish_protos::envoy::config::core::v3::Node;
    use pilotfish_protos::json::from_json;
    use tonic::Code;

    use super::*;

    const GROUP: &str = "{apiVersion: networking.istio.io/v1, kind: WorkloadGroup, metadata: {name: vms, namespace: shop}, \
                         spec: {template: {serviceAccount: vm}}}";

    fn snapshot() -> Arc<Snapshot> {
        let mut store = Store::new();
        let source = store.register("test");
        let objects = parse::documents(GROUP, "test").objects.into_iter();
        store
            .apply(source, objects.map(Change::upsert).collect())
            .snapshot
    }

    fn facts(more: &Value) -> ProxyFacts {
        let mut metadata = json!({"NAMESPACE": "shop"});
        if let (Some(metadata), Some(more)) = (metadata.as_object_mut(), more.as_object()) {
            metadata.extend(more.clone());
        }
        let node = json!({"id": "sidecar~10.0.0.7~vm.shop~x", "metadata": metadata,
            "locality": {"region": "r", "zone": "z"}});
        let node = from_json("envoy.config.core.v3.Node", &node).unwrap();
        let node = <Node as prost::Message>::decode(node.value).unwrap();
        ProxyFacts::from_node(&node).unwrap()
    }

    fn workloads(change: impl FnOnce(&mut Enrolment)) -> Workloads {
        let mut enrolment = Enrolment {
            registers: true,
            checks_health: true,
            validates: true,
            grace: Duration::from_secs(10),
            max_connection_age: None,
            pod: None,
            host: "h".to_owned(),
        };
        change(&mut enrolment);
        let metrics = Arc::new(Metrics::new(Instant::now()));
        Workloads::new(enrolment, "istio-system", metrics)
    }

    fn proven(account: &str) -> Identity {
        Identity::Proven {
            namespace: "shop".to_owned(),
            account: account.to_owned(),
        }
    }

    #[test]
    fn who_may_not_is_refused_and_said() {
        let (all, vm) = (
            workloads(|_| ()),
            facts(&json!({"AUTO_REGISTER_GROUP": "vms"})),
        );
        let enrol = |workloads: &Workloads, facts: &ProxyFacts, identity: Identity| {
            let enrolled = workloads.enrol(facts, identity, &snapshot());
            enrolled
                .map(|enrolled| enrolled.is_some())
                .map_err(|status| status.code())
        };
        assert_eq!(enrol(&all, &vm, proven("vm")), Ok(true));
        assert_eq!(
            enrol(&all, &vm, proven("other")),
            Err(Code::PermissionDenied)
        );
        assert_eq!(
            enrol(&all, &vm, Identity::Unproven),
            Err(Code::PermissionDenied)
        );
        let other = facts(&json!({"AUTO_REGISTER_GROUP": "none"}));
        assert_eq!(
            enrol(&all, &other, proven("vm")),
            Err(Code::FailedPrecondition)
        );
        let odd = facts(&json!({"AUTO_REGISTER_GROUP": "vms", "NETWORK": "a b"}));
        assert_eq!(enrol(&all, &odd, proven("vm")), Err(Code::InvalidArgument));
        assert_eq!(all.counters().failed.get(), 4);
        let findings = all.registrar().findings();
        let refused = findings
            .iter()
            .filter(|finding| finding.code == "workload-refused");
        assert_eq!(refused.count(), 4, "{findings:?}");
        assert_eq!(
            enrol(&all, &facts(&json!({})), Identity::Unproven),
            Ok(false)
        );
        // Switched off, or not checked.
        let off = workloads(|enrolment| enrolment.registers = false);
        assert_eq!(enrol(&off, &vm, Identity::Unproven), Ok(false));
        let lax = workloads(|enrolment| enrolment.validates = false);
        assert_eq!(enrol(&lax, &vm, Identity::Unproven), Ok(true));
    }

    #[test]
    fn who_ends_its_stream_has_left() {
        let all = workloads(|_| ());
        let vm = facts(&json!({"AUTO_REGISTER_GROUP": "vms"}));
        let enrolled = all.enrol(&vm, proven("vm"), &snapshot()).unwrap().unwrap();
        assert_eq!(all.registrar().counts(), (1, 1));
        drop(enrolled);
        assert_eq!(all.registrar().counts(), (1, 0));
    }

    #[test]
    fn a_proxy_is_described_by_its_metadata() {
        let all = workloads(|_| ());
        let vm = facts(&json!({
            "AUTO_REGISTER_GROUP": "vms", "NETWORK": "far", "LABELS": {"app": "vm"}, "ENABLE_HBONE": "true",
            "PROXY_CONFIG": {"readinessProbe": {"httpGet": {"port": 8080}}},
        }));
        let applicant = all.applicant(&vm, Identity::Unproven).unwrap();
        assert_eq!(applicant.claim, Claim::Group("vms".to_owned()));
        assert_eq!(applicant.entry_name().unwrap(), "vms-10.0.0.7-far");
        assert_eq!(applicant.locality, "r/z");
        assert_eq!(applicant.labels.get("app").map(String::as_str), Some("vm"));
        assert!(applicant.health_checked && applicant.tunnel);
        let entry = facts(&json!({"WORKLOAD_ENTRY": "one"}));
        let applicant = all.applicant(&entry, Identity::Unproven).unwrap();
        assert_eq!(applicant.claim, Claim::Entry("one".to_owned()));
        let off = workloads(|enrolment| enrolment.checks_health = false);
        assert!(off.applicant(&entry, Identity::Unproven).is_none());
    }
}
