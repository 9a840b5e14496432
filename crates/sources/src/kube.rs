//! Objects and mesh settings from the API server of a Kubernetes cluster.
//!
//! One task a kind lists and watches (`follow`) and knows which objects there are (`keeper`); one collector knows who
//! has synced and what is wrong (`collector`), and is the only one to send batches.
#![allow(
    clippy::disallowed_methods,
    reason = "sources may read the clock; what is decided by it is told the time"
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pilotfish_config::{ClusterId, Kind};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::Batch;

mod ages;
mod backoff;
mod clusters;
mod collector;
mod connect;
mod fleet;
mod follow;
mod foreign;
mod keeper;
mod kinds;
mod link;
mod mesh;
mod proto;
mod standings;
mod status;
mod trust;
mod wire;
mod write;

pub use clusters::{ClusterStatus, Clusters, RemoteClusters, SyncState};
use collector::Collector;
pub use follow::Timing;
use follow::{Condition, Definitions, Follower, Keep};
use keeper::{Keeper, Part};
pub use kinds::{Read, reads};
pub use link::{Access, Link};
pub use mesh::{MeshMaps, watch_mesh};
pub use standings::Register;
pub use status::{State, Status, WatchStatus};
use trust::TrustDomain;
use wire::{Fault, Raw};
pub use write::{Refusal, collection, path};

/// How often it is looked whether a watch has been down for too long.
const TICK: Duration = Duration::from_secs(2);
/// How many changes are told at a time, about.
const BATCH: usize = 10_000;

/// Reads all kinds of one cluster.
#[derive(Debug)]
pub struct ClusterSource {
    link: Link,
    revision: String,
    /// The namespaces that are read; all of them if empty.
    only: Vec<String>,
    timing: Timing,
    status: Status,
    register: Option<Register>,
    /// Which cluster it is, if it is not the config cluster.
    abroad: Option<Abroad>,
}

/// Another cluster than that of the configuration.
#[derive(Debug)]
pub(crate) struct Abroad {
    pub(crate) cluster: ClusterId,
    pub(crate) name: String,
    /// Where its settings of the mesh are.
    pub(crate) namespace: String,
    /// Whether its WorkloadEntries count.
    pub(crate) entries: bool,
}

impl ClusterSource {
    /// Objects that are labelled with another revision are left out.
    pub fn new(link: Link, revision: &str, timing: Timing, status: Status) -> Self {
        Self {
            link,
            revision: revision.to_owned(),
            only: Vec::new(),
            timing,
            status,
            register: None,
            abroad: None,
        }
    }

    /// Reads another cluster than that of the configuration: only what is of use there.
    #[must_use]
    pub(crate) fn of(mut self, abroad: Abroad) -> Self {
        self.abroad = Some(abroad);
        self
    }

    /// Reads these namespaces only, one by one, which takes no right to read others; all of them if there is none. What lives
    /// outside of namespaces is read all the same.
    #[must_use]
    pub fn only_in(mut self, namespaces: &[String]) -> Self {
        self.only = namespaces.to_vec();
        self
    }

    /// What is read, and of which namespace, if not of all.
    fn parts(&self) -> Vec<(Kind, Option<&str>)> {
        if let Some(abroad) = &self.abroad {
            let wanted = |kind: &Kind| abroad.entries || *kind != Kind::WorkloadEntry;
            let kinds = kinds::ABROAD.iter().copied().filter(wanted);
            return kinds.map(|kind| (kind, None)).collect();
        }
        let mut parts = Vec::new();
        for kind in kinds::watched() {
            if kind.cluster_scoped() || self.only.is_empty() {
                parts.push((kind, None));
            } else {
                parts.extend(
                    self.only
                        .iter()
                        .map(|namespace| (kind, Some(namespace.as_str()))),
                );
            }
        }
        parts
    }

    /// The same, which also notes how objects stand that may be written to.
    #[must_use]
    pub fn with_register(mut self, register: Option<Register>) -> Self {
        self.register = register;
        self
    }

    /// Reads and watches until the receiver is dropped. Batches are sent as things are learned; nothing is complete before
    /// one of them is synced.
    pub async fn run(self, batches: mpsc::Sender<Batch>) -> anyhow::Result<()> {
        let (reports, mut received) = mpsc::channel(256);
        // Ends with this function, and all the tasks with it.
        let mut tasks = JoinSet::new();
        let definitions = watch::Sender::new(Definitions::default());
        let mut rows = Vec::new();
        let parts = self.parts();
        let abroad = self.abroad.as_ref();
        let cluster = abroad.map_or(ClusterId::CONFIG, |abroad| abroad.cluster);
        for (kind, namespace) in &parts {
            rows.push(self.status.add(match namespace {
                Some(namespace) => format!("{kind} of {namespace}"),
                None => kind.to_string(),
            }));
        }
        // Whoever takes longest is asked for first.
        let mut order: Vec<(usize, (Kind, Option<&str>))> =
            parts.iter().copied().enumerate().collect();
        order.sort_by_key(|(_, (kind, _))| std::cmp::Reverse(kinds::length(*kind)));
        for (index, (kind, namespace)) in order {
            let place = kinds::place(kind, namespace);
            let mut keep = Keeper::new(kind, Part::Useful, &self.revision, index, reports.clone())
                .of(cluster)
                .with_register(self.register.as_ref());
            let (link, timing) = (self.link.clone(), self.timing.clone());
            let known = definitions.subscribe();
            tasks.spawn(async move {
                Follower::new(&link, &place, &mut keep, &timing, known)
                    .run()
                    .await;
            });
        }
        if parts.iter().any(|(kind, _)| kind.is_istio()) {
            let (link, timing) = (self.link.clone(), self.timing.clone());
            tasks.spawn(async move {
                let known = definitions.subscribe();
                let mut keep = DefinitionNames {
                    names: BTreeSet::new(),
                    changes: 0,
                    known: definitions,
                };
                let place = kinds::definitions();
                Follower::new(&link, &place, &mut keep, &timing, known)
                    .run()
                    .await;
            });
        }

        let kinds = parts.iter().map(|(kind, _)| *kind);
        let mut collector = Collector::new(self.link.server(), kinds);
        let mut trust = None;
        if let Some(abroad) = abroad {
            let index = parts.len();
            let name = mesh::name(&self.revision);
            rows.push(
                self.status
                    .add(format!("ConfigMap {}/{name}", abroad.namespace)),
            );
            let place = kinds::config_map(&abroad.namespace, &name);
            let mut keep =
                Keeper::new(Kind::ConfigMap, Part::Whole, "", index, reports.clone()).of(cluster);
            let (link, timing) = (self.link.clone(), self.timing.clone());
            let known = watch::Sender::new(Definitions::default()).subscribe();
            tasks.spawn(async move {
                Follower::new(&link, &place, &mut keep, &timing, known)
                    .run()
                    .await;
            });
            collector = collector
                .of(&abroad.name)
                .and(Kind::ConfigMap, trust::FORBIDDEN);
            trust = Some((index, TrustDomain::new(cluster)));
        }
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                Some((index, news)) = received.recv() => {
                    let mut next = Some((index, news));
                    while let Some((index, mut news)) = next {
                        let now = Instant::now();
                        if let Some((at, trust)) = &mut trust && *at == index {
                            trust.take(&mut news);
                            collector.trust(trust.known());
                        }
                        if let (Some((state, reason, objects)), Some(row)) =
                            (collector.take(index, news, now), rows.get(index))
                        {
                            self.status.set(*row, state, reason, objects);
                        }
                        next = if collector.waiting() < BATCH { received.try_recv().ok() } else { None };
                    }
                }
                _ = tick.tick() => {}
                () = batches.closed() => return Ok(()),
            }
            if let Some(batch) = collector.batch(Instant::now()) {
                let (changes, findings) = (batch.changes.len(), batch.diagnostics.len());
                tracing::debug!(target: "kubernetes", changes, findings, synced = batch.synced, "the cluster was read");
                if batches.send(batch).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// Tells the tasks of kinds that are not there which CRDs there are.
struct DefinitionNames {
    names: BTreeSet<String>,
    changes: u64,
    known: watch::Sender<Definitions>,
}

impl DefinitionNames {
    fn tell(&mut self) {
        self.changes += 1;
        self.known.send_replace(Definitions::Known(
            Arc::new(self.names.clone()),
            self.changes,
        ));
    }
}

impl Keep for DefinitionNames {
    fn begin(&mut self) {
        self.names.clear();
    }

    fn item(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        self.names.insert(object.head()?.name);
        Ok(())
    }

    fn complete(&mut self) {
        self.tell();
    }

    fn upsert(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        self.item(object)?;
        self.tell();
        Ok(())
    }

    fn delete(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        self.names.remove(&object.head()?.name);
        self.tell();
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn report(&mut self, condition: Condition) {
        // While the server is away, what it last said is as good as anything; who may not read them never knows.
        if let Condition::Forbidden(_) = condition {
            self.known.send_replace(Definitions::Unknown);
        }
    }

    async fn flush(&mut self) {}
}
