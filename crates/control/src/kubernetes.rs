//! The Kubernetes source: what to read, starting it, and the page about it.

use anyhow::{Context, Result};
use axum::extract;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use pilotfish_sources::kube::{
    self, Access, ClusterSource, Link, MeshMaps, Register, State, Status, Timing, WatchStatus,
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
    /// What is written back, if anything.
    pub(crate) writing: Option<Writing>,
}

impl Kubernetes {
    /// Starts reading, over the connection that is returned. Fails only if it is not known where from: a server that is not
    /// there is waited for. How objects stand is noted in the register, if there is one.
    pub(crate) async fn start(
        &self,
        status: Status,
        register: Option<Register>,
        inputs: &mpsc::Sender<Input>,
        vital: &mut JoinSet<Result<()>>,
    ) -> Result<Link> {
        let link = Link::new(self.access.clone()).await?;
        tracing::info!(target: "kubernetes", "reading the cluster of {}", link.server());
        let timing = self.timing.clone();
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

/// Brings the metrics about watches up to date.
pub(crate) fn count(status: &Status, metrics: &Metrics) {
    let watches = status.watches();
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
    #[serde(flatten)]
    watch: WatchStatus,
    since: Option<String>,
}

/// How it goes with each watch.
pub(crate) async fn page(extract::State(pages): extract::State<Pages>) -> Response {
    let Some(status) = &pages.kubernetes else {
        return "no Kubernetes cluster is read\n".into_response();
    };
    let shown = |watch: WatchStatus| Shown {
        since: Timestamp::try_from(watch.since)
            .ok()
            .map(|time| time.to_string()),
        watch,
    };
    json(&status.watches().into_iter().map(shown).collect::<Vec<_>>())
}
