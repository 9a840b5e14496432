//! The control plane: what is configured now, and what proxies are given. The one file that knows the engine.
//!
//! [`Plane`] is shared by everything that reads. It is written by one task only (`writer.rs`), in this order: engine,
//! snapshot, generation; so that whoever sees a generation finds its snapshot and its resources. The one exception is a
//! generation that heals what an audit found wrong, which has the snapshot of the one before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use pilotfish_analysis::Analyzer;
use pilotfish_config::{Diagnostic, ObjectKey, Snapshot};
#[cfg(test)]
pub(crate) use pilotfish_engine::Wrong;
pub(crate) use pilotfish_engine::{Audit, Cost, Difference};
use pilotfish_engine::{Engine, ProxyFacts};
use pilotfish_mesh::World;
use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_writers::workloads;
use pilotfish_xds::{Configuration, Generation, Health, Peer, TypeUrl, View};
use tokio::sync::watch;

use crate::guard;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::nodes::Nodes;
use crate::pushes::History;
use crate::readiness::Readiness;
use crate::settings::Treatment;
use crate::workloads::{Enrolled, Workloads};

/// What is missing until the first snapshot is derived.
pub(crate) const FIRST_SNAPSHOT: &str = "the first snapshot to be built";

/// The state of the control plane.
pub(crate) struct Plane {
    engine: Engine,
    snapshot: ArcSwap<Snapshot>,
    /// Only rises: see [`Plane::publish`].
    generation: watch::Sender<Generation>,
    /// Held while something is applied or a generation is published, so that none is seen before its snapshot.
    applying: Mutex<()>,
    /// What is wrong with the input; the engine and the analyzer have the rest.
    input_diagnostics: ArcSwap<Vec<Diagnostic>>,
    /// What cannot be written to the cluster.
    write_diagnostics: ArcSwap<Vec<Diagnostic>>,
    /// What cannot be done for workloads that register themselves.
    workload_diagnostics: ArcSwap<Vec<Diagnostic>>,
    /// Who registers workloads, if anybody does.
    workloads: OnceLock<Workloads>,
    /// What is wrong with the mesh as a whole, as of when somebody last asked. Pushes never wait for it.
    analyzer: Mutex<Analyzer>,
    /// How often anything came in.
    inputs: AtomicU64,
    pub(crate) readiness: Readiness,
    pub(crate) history: Arc<History>,
    pub(crate) metrics: Arc<Metrics>,
    nodes: Arc<Nodes>,
    treatment: Treatment,
}

/// A connected proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    engine: pilotfish_engine::Proxy,
    /// The workload that it stands for; lets go of it when dropped.
    enrolled: Option<Enrolled>,
}

/// What applying a change did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) generation: u64,
    pub(crate) changed_facts: usize,
    /// Whether the generation is a new one, so that proxies are looked at.
    pub(crate) is_new: bool,
}

impl Plane {
    /// A control plane that knows nothing yet.
    pub(crate) fn new(
        settings: pilotfish_mesh::Settings,
        readiness: Readiness,
        metrics: Arc<Metrics>,
        nodes: Arc<Nodes>,
        treatment: Treatment,
    ) -> Self {
        Self {
            engine: Engine::new(settings),
            snapshot: ArcSwap::from_pointee(Snapshot::default()),
            generation: watch::Sender::new(Generation::default()),
            applying: Mutex::default(),
            input_diagnostics: ArcSwap::default(),
            write_diagnostics: ArcSwap::default(),
            workload_diagnostics: ArcSwap::default(),
            workloads: OnceLock::new(),
            analyzer: Mutex::default(),
            inputs: AtomicU64::new(0),
            readiness,
            history: Arc::clone(&nodes.history),
            metrics,
            nodes,
            treatment,
        }
    }

    /// Whether the peer has proved to be the proxy it says it is. One that has proved to be another is refused.
    fn is_verified(&self, facts: &ProxyFacts, peer: &Peer) -> Result<bool, tonic::Status> {
        let Some(identity) = peer.extensions.get::<Identity>() else {
            return Ok(self.is_trusted(peer));
        };
        let account = facts.service_account();
        if *identity.namespace != *facts.namespace()
            || !(account.is_empty() || *identity.service_account == *account)
        {
            return Err(tonic::Status::permission_denied(format!(
                "the certificate or token is for service account {}/{}, the node says it is {}/{account}",
                identity.namespace,
                identity.service_account,
                facts.namespace(),
            )));
        }
        Ok(true)
    }

    /// Who the peer has proved to be, or is believed to be.
    fn proof(&self, facts: &ProxyFacts, peer: &Peer) -> workloads::Identity {
        let (namespace, account) = match peer.extensions.get::<Identity>() {
            Some(identity) => (&*identity.namespace, &*identity.service_account),
            None if self.is_trusted(peer) => (facts.namespace(), facts.service_account()),
            None => return workloads::Identity::Unproven,
        };
        workloads::Identity::Proven {
            namespace: namespace.to_owned(),
            account: account.to_owned(),
        }
    }

    /// Whether whoever connects from there is who it says it is.
    fn is_trusted(&self, peer: &Peer) -> bool {
        self.treatment.trust_local && peer.address.is_some_and(|a| a.ip().is_loopback())
    }

    /// Derives the state of the mesh from a snapshot and wakes connections. Only the writer calls this.
    pub(crate) fn apply(&self, snapshot: Arc<Snapshot>, changed: &[ObjectKey]) -> Outcome {
        let _applying = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = self.engine.apply(&snapshot, changed);
        self.snapshot.store(snapshot);
        Outcome {
            generation: applied.generation,
            changed_facts: applied.changed_facts,
            is_new: self.publish(applied.generation),
        }
    }

    /// Wakes connections, if this generation is newer than what they know.
    fn publish(&self, generation: u64) -> bool {
        let new = Generation(generation);
        self.generation.send_if_modified(|current| {
            let is_new = *current < new;
            *current = new.max(*current);
            is_new
        })
    }

    /// Compares a part of what proxies are given with what the configuration gives from scratch. If something was wrong, all
    /// is built again, and proxies are told, in the generation that is returned.
    pub(crate) fn audit(&self, turn: usize) -> Option<(Audit, Option<u64>)> {
        let (audit, correction) = self.engine.audit(turn)?;
        let healed = (!audit.is_clean()).then(|| {
            let _applying = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
            let generation = self.engine.heal(correction);
            self.publish(generation);
            generation
        });
        Some((audit, healed))
    }

    /// How many resources take more memory than they need.
    pub(crate) fn unpacked(&self) -> usize {
        self.engine.unpacked()
    }

    /// Makes them take less.
    pub(crate) fn pack(&self) {
        self.engine.pack();
    }

    /// The generation that connections know.
    pub(crate) fn current(&self) -> u64 {
        self.generation.borrow().0
    }

    /// What translating a generation has taken so far.
    pub(crate) fn cost(&self, generation: u64) -> Cost {
        self.engine.cost(generation)
    }

    /// What translation has taken since the start.
    pub(crate) fn total_cost(&self) -> Cost {
        self.engine.total_cost()
    }

    /// Replaces what is wrong with the input. Only the writer calls this.
    pub(crate) fn set_input_diagnostics(&self, diagnostics: Vec<Diagnostic>) {
        self.input_diagnostics.store(Arc::new(diagnostics));
        self.inputs.fetch_add(1, Ordering::Relaxed);
    }

    /// Replaces what cannot be written to the cluster.
    pub(crate) fn set_write_diagnostics(&self, diagnostics: Vec<Diagnostic>) {
        if **self.write_diagnostics.load() != diagnostics {
            self.write_diagnostics.store(Arc::new(diagnostics));
            self.inputs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Replaces what cannot be done for workloads that register themselves.
    pub(crate) fn set_workload_diagnostics(&self, diagnostics: Vec<Diagnostic>) {
        if **self.workload_diagnostics.load() != diagnostics {
            self.workload_diagnostics.store(Arc::new(diagnostics));
            self.inputs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Who registers workloads from now on; without, nobody does. Only the first one counts.
    pub(crate) fn register_workloads(&self, workloads: Workloads) {
        let _ = self.workloads.set(workloads);
    }

    /// What is said about a push that the loss guard holds back now.
    pub(crate) fn held_back(&self) -> Option<Diagnostic> {
        let all = self.input_diagnostics.load();
        all.iter().find(|d| d.code == guard::CODE).cloned()
    }

    /// Differs when diagnostics may differ because of input.
    pub(crate) fn input_version(&self) -> (u64, Generation) {
        (
            self.inputs.load(Ordering::Relaxed),
            *self.generation.borrow(),
        )
    }

    /// All objects.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// What the mesh means.
    pub(crate) fn world(&self) -> Arc<World> {
        self.engine.world()
    }

    /// Everything that is wrong, sorted, each once. Analyses what has changed since somebody last asked, which may take a
    /// while: not for tasks that others wait for.
    pub(crate) fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut all = self.engine.diagnostics();
        let (world, proxies) = (self.world(), self.nodes.proxies());
        let mut analyzer = self.analyzer.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(analyzer.update(&world, &proxies));
        drop(analyzer);
        all.extend(self.input_diagnostics.load().iter().cloned());
        all.extend(self.write_diagnostics.load().iter().cloned());
        all.extend(self.workload_diagnostics.load().iter().cloned());
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Configuration for Plane {
    type Proxy = Proxy;

    fn connect(&self, node: &Node, peer: &Peer) -> Result<Self::Proxy, tonic::Status> {
        // While stopping, streams that are open are drained; new ones belong to another replica.
        self.readiness
            .check()
            .map_err(|why| tonic::Status::unavailable(format!("not ready, {why}")))?;
        let facts = ProxyFacts::from_node(node)
            .map_err(|error| tonic::Status::invalid_argument(error.to_string()))?;
        let facts = match self.treatment.aliases.get(facts.cluster()) {
            Some(name) => facts.in_cluster(name),
            None => facts,
        };
        let facts = if self.is_verified(&facts, peer)? {
            facts.verified()
        } else {
            facts
        };
        let enrolled = match self.workloads.get() {
            Some(workloads) => {
                workloads.enrol(&facts, self.proof(&facts, peer), &self.snapshot())?
            }
            None => None,
        };
        let facts = if peer.incremental && !self.treatment.whole_tables {
            facts.with_hosts_apart()
        } else {
            facts
        };
        self.nodes.announce(node, facts.cluster());
        Ok(Proxy {
            engine: self.engine.connect(facts),
            enrolled,
        })
    }

    fn view(&self, proxy: &mut Self::Proxy, type_url: &TypeUrl) -> View {
        self.engine.view(&mut proxy.engine, type_url)
    }

    fn view_at_hand(&self, proxy: &mut Self::Proxy, type_url: &TypeUrl) -> Option<View> {
        self.engine.view_at_hand(&mut proxy.engine, type_url)
    }

    fn reported(&self, proxy: &mut Self::Proxy, health: Health) {
        if let Some(enrolled) = &proxy.enrolled {
            enrolled.reported(health);
        }
    }

    fn generation(&self) -> watch::Receiver<Generation> {
        self.generation.subscribe()
    }
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane")
            .field("generation", &*self.generation.borrow())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use pilotfish_protos::google::protobuf::value::Kind;
    use pilotfish_protos::google::protobuf::{Struct, Value};

    use super::*;
    use crate::settings::Aliases;

    fn plane(treatment: Treatment) -> Plane {
        let metrics = Arc::new(Metrics::new(std::time::Instant::now()));
        let nodes = Arc::new(Nodes::new(Arc::clone(&metrics)));
        let settings = pilotfish_mesh::Settings::default();
        Plane::new(
            settings,
            Readiness::waiting_for([]),
            metrics,
            nodes,
            treatment,
        )
    }

    #[test]
    fn a_proxy_is_in_the_cluster_that_its_alias_stands_for() {
        let plane = plane(Treatment {
            aliases: Aliases::parse(&["old=east".to_owned()]).unwrap(),
            ..Treatment::default()
        });
        for (named, meant) in [("old", "east"), ("west", "west")] {
            let id = format!("sidecar~10.0.0.1~{named}.shop~shop.svc.cluster.local");
            let name = Value {
                kind: Some(Kind::StringValue(named.to_owned())),
            };
            let fields = [("CLUSTER_ID".to_owned(), name)];
            let node = Node {
                id: id.clone(),
                metadata: Some(Struct {
                    fields: fields.into_iter().collect(),
                }),
                ..Node::default()
            };
            plane.connect(&node, &Peer::default()).unwrap();
            assert_eq!(plane.nodes.get(&id).cluster_id, meant);
        }
    }

    #[test]
    fn generations_only_rise() {
        let plane = plane(Treatment::default());
        let mut seen = plane.generation();
        // A repair may be published before the change that came in while it was found.
        assert!(plane.publish(2));
        assert_eq!(*seen.borrow_and_update(), Generation(2));
        assert!(!plane.publish(1) && !plane.publish(2));
        assert!(!seen.has_changed().unwrap());
        assert_eq!(plane.current(), 2);
    }
}
