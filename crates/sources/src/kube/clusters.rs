//! The keeper of other clusters: watches the Secrets that name them, and holds a connection to each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pilotfish_config::base64;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::fleet::{Action, Fleet, Named, Terms};
use super::follow::{Condition, Definitions, Follower, Keep, Timing};
use super::link::{Access, Link};
use super::status::{State, Status, WatchStatus};
use super::wire::{Fault, Raw};
use super::{Abroad, ClusterSource, kinds};
use crate::Batch;

/// How often it is looked whether a cluster takes too long.
const TICK: Duration = Duration::from_secs(1);
/// How long Secrets must be forbidden before they are not waited for: a server that starts forbids much.
const FORBIDDEN_FOR: Duration = Duration::from_secs(10);

/// How it goes with a cluster, in istiod's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncState {
    /// What is known of it is in effect.
    Synced,
    /// It is being read for the first time.
    Syncing,
    /// The same, for longer than readiness waits.
    Timeout,
    /// There is no connection.
    Closed,
}

/// One cluster, for people.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// Its name.
    pub name: String,
    /// Namespace and name of the Secret that names it.
    pub secret: String,
    /// How it goes with it.
    pub sync: SyncState,
    /// The watches of its connections; there are two while it gets new credentials.
    pub watches: Vec<WatchStatus>,
}

#[derive(Debug, Default)]
struct Shown {
    clusters: Vec<Row>,
    timeouts: u64,
}

#[derive(Debug)]
struct Row {
    name: String,
    secret: String,
    sync: SyncState,
    /// The one in effect first.
    connections: Vec<Connection>,
}

/// A connection to a cluster.
#[derive(Debug, Clone, Default)]
struct Connection {
    status: Status,
    /// Set once it is there.
    link: Arc<OnceLock<Link>>,
}

/// How it goes with all other clusters; cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Clusters(Arc<Mutex<Shown>>);

impl Clusters {
    /// All of them, by name.
    pub fn all(&self) -> Vec<ClusterStatus> {
        let shown = self.lock();
        let one = |row: &Row| {
            let watches = row.connections.iter();
            ClusterStatus {
                name: row.name.clone(),
                secret: row.secret.clone(),
                sync: row.sync,
                watches: watches.flat_map(|one| one.status.watches()).collect(),
            }
        };
        shown.clusters.iter().map(one).collect()
    }

    /// The connection to the API server of a cluster, if there is one.
    pub fn link(&self, name: &str) -> Option<Link> {
        let shown = self.lock();
        let row = shown.clusters.iter().find(|row| row.name == name)?;
        let mut connections = row.connections.iter();
        connections.find_map(|one| one.link.get().cloned())
    }

    /// How often a cluster took longer to be read than readiness waits.
    pub fn timeouts(&self) -> u64 {
        self.lock().timeouts
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads all clusters that Secrets of the config cluster name.
#[derive(Debug)]
pub struct RemoteClusters {
    /// The config cluster.
    pub link: Link,
    /// The namespace of the Secrets, and of the settings of the mesh in each cluster.
    pub namespace: String,
    /// The revision of the control plane; empty if it has none.
    pub revision: String,
    /// Whether WorkloadEntries of other clusters count.
    pub entries: bool,
    /// The name of the config cluster.
    pub own: String,
    /// How long readiness waits for a cluster; for ever if zero.
    pub timeout: Duration,
    /// What a kubeconfig may have that is refused otherwise: `exec`, `tokenFile`, …
    pub allowed: std::collections::BTreeSet<String>,
    /// How servers are asked.
    pub timing: Timing,
    /// The watches of the config cluster; that of the Secrets is added to them.
    pub status: Status,
    /// How it goes with the clusters.
    pub clusters: Clusters,
}

/// What a connection says.
enum Said {
    Learned(Batch),
    Failed(String),
}

/// What is running, by number.
struct Running {
    task: AbortHandle,
    connection: Connection,
}

impl RemoteClusters {
    /// Reads until the receiver is dropped. Batches are sent as things are learned.
    pub async fn run(self, batches: mpsc::Sender<Batch>) -> anyhow::Result<()> {
        let mut fleet = Fleet::new(Terms {
            namespace: self.namespace.clone(),
            own: self.own.clone(),
            timeout: self.timeout,
            allowed: self.allowed.clone(),
        });
        let row = self
            .status
            .add(format!("Secret of {} that names clusters", self.namespace));
        let (said, mut heard) = mpsc::channel(16);
        // Ends with this function, and all connections with it.
        let mut tasks = JoinSet::new();
        let mut running: BTreeMap<u64, Running> = BTreeMap::new();
        let mut secrets = self.watch_secrets(&mut tasks);
        let mut forbidden: Option<(Instant, String)> = None;
        let mut tick = tokio::time::interval(TICK);
        loop {
            let actions = tokio::select! {
                Some(()) = changed(&mut secrets) => {
                    let state = secrets.borrow_and_update().clone();
                    forbidden = match &state.condition {
                        Some(Condition::Forbidden(reason)) => {
                            let since = forbidden.map_or_else(Instant::now, |(since, _)| since);
                            Some((since, reason.clone()))
                        }
                        _ => None,
                    };
                    let (shown, reason) = shown(state.condition.as_ref(), state.complete);
                    self.status.set(row, shown, reason, state.by_name.len());
                    if state.complete && forbidden.is_none() {
                        fleet.secrets(&state.by_name, Instant::now())
                    } else {
                        Vec::new()
                    }
                }
                Some((number, said)) = heard.recv() => match said {
                    Said::Learned(batch) => fleet.learned(number, batch),
                    Said::Failed(reason) => {
                        fleet.failed(number, &reason);
                        Vec::new()
                    }
                },
                _ = tick.tick() => Vec::new(),
                () = batches.closed() => return Ok(()),
            };
            if let Some((_, reason)) = forbidden
                .as_ref()
                .filter(|(since, _)| since.elapsed() >= FORBIDDEN_FOR)
            {
                fleet.unreadable(reason);
            }
            for action in actions {
                match action {
                    Action::Close(number) => {
                        if let Some(ended) = running.remove(&number) {
                            ended.task.abort();
                        }
                    }
                    Action::Open {
                        number,
                        cluster,
                        name,
                        access,
                    } => {
                        tracing::info!(target: "kubernetes", cluster = name, "reading another cluster");
                        let connection = Connection::default();
                        let (opened, timing) = (connection.clone(), self.timing.clone());
                        let revision = self.revision.clone();
                        let abroad = Abroad {
                            cluster,
                            name,
                            namespace: self.namespace.clone(),
                            entries: self.entries,
                        };
                        let said = said.clone();
                        let task = tasks.spawn(async move {
                            let link = match Link::new(Access::Foreign(access)).await {
                                Ok(link) => link,
                                Err(error) => {
                                    let failed = Said::Failed(format!("{error:#}"));
                                    // Nobody hears it only if all ends.
                                    let _ = said.send((number, failed)).await;
                                    return;
                                }
                            };
                            let Connection {
                                status,
                                link: known,
                            } = opened;
                            let _first = known.set(link.clone());
                            let source =
                                ClusterSource::new(link, &revision, timing, status).of(abroad);
                            let (sender, mut received) = mpsc::channel(4);
                            let pass_on = async {
                                while let Some(batch) = received.recv().await {
                                    if said.send((number, Said::Learned(batch))).await.is_err() {
                                        break;
                                    }
                                }
                            };
                            // It ends only when nobody receives any more.
                            let _ = tokio::join!(source.run(sender), pass_on);
                        });
                        running.insert(number, Running { task, connection });
                    }
                }
            }
            // What has ended is of no interest: only what was closed ends.
            while tasks.try_join_next().is_some() {}
            let batch = fleet.batch(Instant::now());
            self.show(&fleet, &running);
            if let Some(batch) = batch
                && batches.send(batch).await.is_err()
            {
                return Ok(());
            }
        }
    }

    fn show(&self, fleet: &Fleet, running: &BTreeMap<u64, Running>) {
        let row = |(name, secret, sync, numbers): (&String, &String, SyncState, Vec<u64>)| {
            let running = numbers.iter().filter_map(|number| running.get(number));
            Row {
                name: name.clone(),
                secret: format!("{}/{secret}", self.namespace),
                sync,
                connections: running.map(|one| one.connection.clone()).collect(),
            }
        };
        let clusters = fleet.rows().map(row).collect();
        *self.clusters.lock() = Shown {
            clusters,
            timeouts: fleet.timeouts(),
        };
    }

    fn watch_secrets(&self, tasks: &mut JoinSet<()>) -> watch::Receiver<Secrets> {
        let (tell, told) = watch::channel(Secrets::default());
        let (link, timing) = (self.link.clone(), self.timing.clone());
        let place = kinds::cluster_secrets(&self.namespace);
        tasks.spawn(async move {
            let mut keep = SecretKeeper {
                now: Secrets::default(),
                list: None,
                changed: false,
                tell,
            };
            let known = watch::Sender::new(Definitions::default());
            Follower::new(&link, &place, &mut keep, &timing, known.subscribe())
                .run()
                .await;
        });
        told
    }
}

/// Resolves when something has changed; never once nobody can change it.
async fn changed(secrets: &mut watch::Receiver<Secrets>) -> Option<()> {
    if secrets.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    Some(())
}

fn shown(condition: Option<&Condition>, complete: bool) -> (State, &str) {
    match condition {
        Some(Condition::Live | Condition::Absent) => (State::Live, ""),
        Some(Condition::Forbidden(reason)) => (State::Forbidden, reason),
        Some(Condition::Down(reason)) if complete => (State::Down, reason),
        Some(Condition::Down(reason)) => (State::Waiting, reason),
        None => (State::Waiting, ""),
    }
}

/// What is known of the Secrets. They are not shown.
#[derive(Clone, Default)]
struct Secrets {
    by_name: BTreeMap<String, Named>,
    /// Whether it was once known which there are.
    complete: bool,
    condition: Option<Condition>,
}

/// Keeps the Secrets that name clusters.
struct SecretKeeper {
    now: Secrets,
    list: Option<BTreeMap<String, Named>>,
    changed: bool,
    tell: watch::Sender<Secrets>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SecretObject {
    metadata: SecretMeta,
    data: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SecretMeta {
    name: String,
    creation_timestamp: Option<String>,
}

/// A Secret as it came. Errors do not show what is in it.
fn secret(object: &Raw<'_>) -> Result<(String, Named), Fault> {
    let secret: SecretObject = serde_json::from_str(object.text()?)
        .map_err(|_| Fault::Failed("a Secret that cannot be read".to_owned()))?;
    let data = secret.data.unwrap_or_default().into_iter();
    let named = Named {
        created: secret.metadata.creation_timestamp.unwrap_or_default(),
        kubeconfigs: data
            .map(|(cluster, text)| {
                let bytes = base64::decode(&text).unwrap_or_default();
                (cluster, Arc::from(bytes))
            })
            .collect(),
    };
    Ok((secret.metadata.name, named))
}

impl Keep for SecretKeeper {
    fn begin(&mut self) {
        self.list = Some(BTreeMap::new());
    }

    fn item(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        let (name, named) = secret(object)?;
        if let Some(list) = &mut self.list {
            list.insert(name, named);
        }
        Ok(())
    }

    fn complete(&mut self) {
        if let Some(list) = self.list.take() {
            (self.now.by_name, self.now.complete) = (list, true);
            self.changed = true;
        }
    }

    fn upsert(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        let (name, named) = secret(object)?;
        self.now.by_name.insert(name, named);
        self.changed = true;
        Ok(())
    }

    fn delete(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        self.now.by_name.remove(&object.head()?.name);
        self.changed = true;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.now.by_name.is_empty()
    }

    fn report(&mut self, condition: Condition) {
        if self.now.condition.as_ref() != Some(&condition) {
            self.now.condition = Some(condition);
            self.changed = true;
        }
    }

    async fn flush(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.tell.send_replace(self.now.clone());
        }
    }
}
