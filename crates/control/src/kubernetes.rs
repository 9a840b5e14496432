//! The Kubernetes source: what to read, starting it, and the pages about it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use pilotfish_sources::kube::{
    self, Access, ClusterSource, Clusters, Link, MeshMaps, Register, RemoteClusters, State, Status,
    SyncState, Timing, WatchStatus,
};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::http::{Pages, json};
use crate::metrics::Metrics;
use crate::scribe::Writing;
use crate::serve::pass_on;
use crate::writer::{Input, Origin};

/// Which cluster is read, and what of it.
#[derive(Debug, Clone)]
pub(crate) struct Kubernetes {
    pub(crate) access: Access,
    /// The namespace of the control plane.
    pub(crate) namespace: String,
    /// The revision of the control plane; empty if it has none.
    pub(crate) revision: String,
    /// The namespaces that are read; all of them if empty.
    pub(crate) only: Vec<String>,
    /// A ConfigMap with settings of the mesh, over which those of the installation are laid.
    pub(crate) shared_mesh_config: Option<String>,
    /// Whether the mesh configuration comes from the cluster.
    pub(crate) mesh: bool,
    /// Whether the networks do.
    pub(crate) networks: bool,
    pub(crate) timing: Timing,
    /// What tokens that clients show must be meant for, one of these.
    pub(crate) audiences: Vec<String>,
    /// How other clusters are read.
    pub(crate) others: Others,
    /// What is written back, if anything.
    pub(crate) writing: Option<Writing>,
}

/// How clusters are read that Secrets of the control plane's namespace name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Others {
    /// What the config cluster is called.
    pub(crate) own: String,
    /// Whether their WorkloadEntries count.
    pub(crate) entries: bool,
    /// How long readiness waits for them; for ever if zero.
    pub(crate) timeout: Duration,
    /// What a kubeconfig may have that is refused otherwise.
    pub(crate) allowed: BTreeSet<String>,
}

/// How reading goes; cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// The watches of the cluster that the configuration comes from.
    pub(crate) status: Status,
    /// Other clusters.
    pub(crate) clusters: Clusters,
    /// What the first is called.
    own: String,
}

impl Kubernetes {
    /// How reading goes, before it has begun.
    pub(crate) fn reading(&self) -> Reading {
        Reading {
            status: Status::default(),
            clusters: Clusters::default(),
            own: self.others.own.clone(),
        }
    }

    /// Starts reading, over the connection that is returned. Fails only if it is not known where from: a server that is not
    /// there is waited for. How objects stand is noted in the register, if there is one.
    pub(crate) async fn start(
        &self,
        reading: Reading,
        register: Option<Register>,
        inputs: &mpsc::Sender<Input>,
        vital: &mut JoinSet<Result<()>>,
    ) -> Result<Link> {
        let link = Link::new(self.access.clone()).await?;
        tracing::info!(target: "kubernetes", "reading the cluster of {}", link.server());
        let (timing, status) = (self.timing.clone(), reading.status);
        if self.mesh || self.networks {
            let maps = MeshMaps {
                namespace: self.namespace.clone(),
                revision: self.revision.clone(),
                shared: self.shared_mesh_config.clone(),
                mesh: self.mesh,
                networks: self.networks,
            };
            let (updates, received) = mpsc::channel(4);
            let watching =
                kube::watch_mesh(link.clone(), maps, timing.clone(), status.clone(), updates);
            vital.spawn(async move {
                watching
                    .await
                    .context("reading the mesh configuration of the cluster failed")
            });
            vital.spawn(pass_on(received, inputs.clone(), |update| {
                Input::Mesh(Origin::Kubernetes, Box::new(update))
            }));
        }
        let others = RemoteClusters {
            link: link.clone(),
            namespace: self.namespace.clone(),
            revision: self.revision.clone(),
            entries: self.others.entries,
            own: self.others.own.clone(),
            timeout: self.others.timeout,
            allowed: self.others.allowed.clone(),
            timing: timing.clone(),
            status: status.clone(),
            clusters: reading.clusters,
        };
        let (batches, received) = mpsc::channel(4);
        vital.spawn(async move {
            let reading = others.run(batches).await;
            reading.context("reading other clusters failed")
        });
        vital.spawn(pass_on(received, inputs.clone(), |batch| {
            Input::Objects(Origin::OtherClusters, batch)
        }));
        let source = ClusterSource::new(link.clone(), &self.revision, timing, status)
            .only_in(&self.only)
            .with_register(register);
        let (batches, received) = mpsc::channel(4);
        vital.spawn(async move {
            source
                .run(batches)
                .await
                .context("reading the cluster failed")
        });
        vital.spawn(pass_on(received, inputs.clone(), |batch| {
            Input::Objects(Origin::Kubernetes, batch)
        }));
        Ok(link)
    }
}

/// Brings the metrics about watches and clusters up to date.
pub(crate) fn count(reading: &Reading, metrics: &Metrics) {
    let clusters = reading.clusters.all();
    let mut watches = reading.status.watches();
    metrics.clusters(clusters.len(), reading.clusters.timeouts());
    watches.extend(clusters.into_iter().flat_map(|cluster| cluster.watches));
    let works = |watch: &&WatchStatus| matches!(watch.state, State::Live | State::Absent);
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    metrics.watches.set(number(watches.len()));
    metrics
        .watches_down
        .set(number(watches.len() - watches.iter().filter(works).count()));
}

/// A watch as the page shows it.
#[derive(Debug, Serialize)]
struct Shown {
    /// The cluster, if it is not that of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    #[serde(flatten)]
    watch: WatchStatus,
    since: Option<String>,
}

impl Shown {
    fn new(cluster: Option<&str>, watch: WatchStatus) -> Self {
        Self {
            cluster: cluster.map(str::to_owned),
            since: Timestamp::try_from(watch.since)
                .ok()
                .map(|time| time.to_string()),
            watch,
        }
    }
}

/// How it goes with each watch.
pub(crate) async fn page(extract::State(pages): extract::State<Pages>) -> Response {
    let Some(reading) = &pages.kubernetes else {
        return "no Kubernetes cluster is read\n".into_response();
    };
    let own = reading.status.watches().into_iter();
    let mut all: Vec<Shown> = own.map(|watch| Shown::new(None, watch)).collect();
    for cluster in reading.clusters.all() {
        let watches = cluster.watches.into_iter();
        all.extend(watches.map(|watch| Shown::new(Some(&cluster.name), watch)));
    }
    json(&all)
}

/// A cluster in istiod's form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterShown {
    id: String,
    secret_name: String,
    sync_status: SyncState,
}

/// The clusters that are read, that of the configuration first.
pub(crate) async fn clusters(extract::State(pages): extract::State<Pages>) -> Response {
    let Some(reading) = &pages.kubernetes else {
        return "no Kubernetes cluster is read\n".into_response();
    };
    let waits = |watch: &WatchStatus| watch.state == State::Waiting;
    let own = ClusterShown {
        id: reading.own.clone(),
        secret_name: String::new(),
        sync_status: if reading.status.watches().iter().any(waits) {
            SyncState::Syncing
        } else {
            SyncState::Synced
        },
    };
    let others = reading.clusters.all().into_iter();
    let others = others.map(|cluster| ClusterShown {
        id: cluster.name,
        secret_name: cluster.secret,
        sync_status: cluster.sync,
    });
    json(&[own].into_iter().chain(others).collect::<Vec<_>>())
}
