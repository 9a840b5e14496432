//! Which other clusters there are, which connections are wanted, and what of them counts. Plain code without clock and
//! network: whoever calls says what time it is, and does what is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pilotfish_config::{Change, ClusterId, Diagnostic, Kind, Object, ObjectKey, Text};

use super::clusters::SyncState;
use super::foreign::Foreign;
use crate::Batch;

/// A Secret that names clusters.
#[derive(Clone, Default)]
pub(super) struct Named {
    /// When it was made, in a form that sorts.
    pub(super) created: String,
    /// Kubeconfigs by the name of the cluster. Never shown.
    pub(super) kubeconfigs: BTreeMap<String, Arc<[u8]>>,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Connect, and report under this number.
    Open {
        number: u64,
        cluster: ClusterId,
        name: String,
        access: Foreign,
    },
    /// End what was opened under this number.
    Close(u64),
}

/// What is not a matter of one cluster.
#[derive(Debug)]
pub(super) struct Terms {
    /// The namespace of the Secrets.
    pub(super) namespace: String,
    /// The name of the config cluster.
    pub(super) own: String,
    /// How long readiness waits for a cluster; for ever if zero.
    pub(super) timeout: Duration,
    /// What a kubeconfig may have that is refused otherwise.
    pub(super) allowed: BTreeSet<String>,
}

/// All other clusters.
pub(super) struct Fleet {
    terms: Terms,
    clusters: BTreeMap<String, Cluster>,
    /// What is wrong with Secrets.
    findings: Vec<Diagnostic>,
    /// What is wrong with reading them.
    trouble: Option<Diagnostic>,
    changes: Vec<Change>,
    /// Whether it is known which Secrets there are, or that nobody can know.
    heard: bool,
    last_number: u64,
    timeouts: u64,
    told: Option<Told>,
}

/// What is told as a whole whenever it changes: findings, what is waited for, and trust domains.
type Told = (Vec<Diagnostic>, Vec<String>, BTreeMap<ClusterId, Text>);

/// One cluster. What counts is what `live` knows.
struct Cluster {
    /// The Secret that names it.
    secret: String,
    /// The connection that was last asked for, if it could be.
    access: Option<Foreign>,
    live: Option<Live>,
    next: Option<Next>,
}

/// A connection that has synced.
struct Live {
    number: u64,
    keys: BTreeSet<ObjectKey>,
    diagnostics: Vec<Diagnostic>,
    trust_domains: BTreeMap<ClusterId, Text>,
}

/// A connection of which nothing counts yet.
struct Next {
    number: u64,
    since: Instant,
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    waiting_for: Vec<String>,
    timed_out: bool,
}

impl Cluster {
    fn numbers(&self) -> impl Iterator<Item = u64> + use<> {
        let live = self.live.as_ref().map(|live| live.number);
        let next = self.next.as_ref().map(|next| next.number);
        live.into_iter().chain(next)
    }

    fn sync(&self) -> SyncState {
        match (&self.live, &self.next) {
            (Some(_), _) => SyncState::Synced,
            (None, Some(next)) if next.timed_out => SyncState::Timeout,
            (None, Some(_)) => SyncState::Syncing,
            (None, None) => SyncState::Closed,
        }
    }
}

impl Fleet {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            clusters: BTreeMap::new(),
            findings: Vec::new(),
            trouble: None,
            changes: Vec::new(),
            heard: false,
            last_number: 0,
            timeouts: 0,
            told: None,
        }
    }

    /// These Secrets there are now, by name. A cluster belongs to the oldest Secret that names it.
    pub(super) fn secrets(
        &mut self,
        secrets: &BTreeMap<String, Named>,
        now: Instant,
    ) -> Vec<Action> {
        (self.heard, self.trouble) = (true, None);
        self.findings.clear();
        let mut by_age: Vec<(&String, &Named)> = secrets.iter().collect();
        by_age.sort_by_key(|(name, secret)| (&secret.created, *name));
        let mut wanted: BTreeMap<&String, (&String, &Arc<[u8]>)> = BTreeMap::new();
        for (secret, named) in by_age {
            for (cluster, kubeconfig) in &named.kubeconfigs {
                let effect = "this entry has no effect";
                if *cluster == self.terms.own {
                    let reason =
                        format!("{cluster} is the cluster that the configuration is read from");
                    self.find("own-cluster", secret, cluster, reason, effect);
                } else if let Some((first, _)) = wanted.get(cluster) {
                    let reason =
                        format!("cluster {cluster} is named by Secret {first}, which is older");
                    self.find("duplicate-cluster", secret, cluster, reason, effect);
                } else {
                    wanted.insert(cluster, (secret, kubeconfig));
                }
            }
        }
        let mut actions = Vec::new();
        let gone: Vec<String> = self
            .clusters
            .keys()
            .filter(|name| !wanted.contains_key(name))
            .cloned()
            .collect();
        for name in gone {
            if let Some(cluster) = self.clusters.remove(&name) {
                actions.extend(cluster.numbers().map(Action::Close));
                let keys = cluster.live.into_iter().flat_map(|live| live.keys);
                self.changes.extend(keys.map(Change::Delete));
            }
        }
        for (name, (secret, kubeconfig)) in wanted {
            self.want(name, secret, kubeconfig, now, &mut actions);
        }
        actions
    }

    /// A cluster is to be read with this kubeconfig.
    fn want(
        &mut self,
        name: &str,
        secret: &str,
        kubeconfig: &Arc<[u8]>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let known = self.clusters.get_mut(name);
        if let Some(known) = known {
            secret.clone_into(&mut known.secret);
            if known.access.as_ref().is_some_and(|a| a.is(kubeconfig)) {
                return;
            }
        }
        let live = self.clusters.get(name).is_some_and(|c| c.live.is_some());
        let effect = if live {
            "the connection that there is stays in use"
        } else {
            "the cluster is not read"
        };
        let access = match Foreign::read(kubeconfig, &self.terms.allowed) {
            Ok(access) => access,
            Err(reason) => {
                let reason = format!("the kubeconfig of cluster {name} cannot be used: {reason}");
                self.find("bad-kubeconfig", secret, name, reason, effect);
                return;
            }
        };
        let Some(id) = ClusterId::named(name) else {
            let reason = "there have been too many names of clusters since we started".to_owned();
            self.find("too-many-clusters", secret, name, reason, effect);
            return;
        };
        self.last_number += 1;
        let number = self.last_number;
        let cluster = self.clusters.entry(name.to_owned()).or_insert(Cluster {
            secret: secret.to_owned(),
            access: None,
            live: None,
            next: None,
        });
        cluster.access = Some(access.clone());
        let replaced = cluster.next.replace(Next {
            number,
            since: now,
            objects: BTreeMap::new(),
            waiting_for: Vec::new(),
            timed_out: false,
        });
        actions.extend(replaced.map(|next| Action::Close(next.number)));
        actions.push(Action::Open {
            number,
            cluster: id,
            name: name.to_owned(),
            access,
        });
    }

    fn find(
        &mut self,
        code: &'static str,
        secret: &str,
        cluster: &str,
        reason: String,
        effect: &str,
    ) {
        let key = ObjectKey::new(Kind::Secret, &*self.terms.namespace, secret);
        let found = Diagnostic::error(code, reason, effect).of(key);
        self.findings.push(found.at(format!("data[{cluster:?}]")));
    }

    /// Secrets cannot be read, and that is not waited for.
    pub(super) fn unreadable(&mut self, reason: &str) {
        self.heard = true;
        let reason = format!(
            "Secrets of namespace {} may not be read: {reason}",
            self.terms.namespace
        );
        let effect =
            "clusters that they name are not known, or no longer looked after; it is tried again";
        self.trouble = Some(Diagnostic::error("forbidden", reason, effect));
    }

    /// A connection has learned something. One that is not known any more says nothing.
    pub(super) fn learned(&mut self, number: u64, batch: Batch) -> Vec<Action> {
        for cluster in self.clusters.values_mut() {
            match (&mut cluster.live, &mut cluster.next) {
                (Some(live), _) if live.number == number => {
                    for change in &batch.changes {
                        match change {
                            Change::Upsert(object) => drop(live.keys.insert(object.key.clone())),
                            Change::Delete(key) => drop(live.keys.remove(key)),
                            Change::Relocate(..) => {}
                        }
                    }
                    live.diagnostics = batch.diagnostics;
                    live.trust_domains = batch.trust_domains;
                    self.changes.extend(batch.changes);
                    return Vec::new();
                }
                (_, Some(next)) if next.number == number => {
                    for change in batch.changes {
                        match change {
                            Change::Upsert(object) => {
                                next.objects.insert(object.key.clone(), object);
                            }
                            Change::Delete(key) => drop(next.objects.remove(&key)),
                            Change::Relocate(..) => {}
                        }
                    }
                    next.waiting_for = batch.waiting_for;
                    if !batch.synced {
                        return Vec::new();
                    }
                    let objects = std::mem::take(&mut next.objects);
                    cluster.next = None;
                    let keys: BTreeSet<ObjectKey> = objects.keys().cloned().collect();
                    let old = cluster.live.replace(Live {
                        number,
                        keys,
                        diagnostics: batch.diagnostics,
                        trust_domains: batch.trust_domains,
                    });
                    // Equal objects are no changes to the store.
                    self.changes
                        .extend(objects.into_values().map(Change::Upsert));
                    let keys = cluster.live.as_ref().map(|live| &live.keys);
                    let gone = old.iter().flat_map(|old| &old.keys);
                    let gone = gone.filter(|key| keys.is_none_or(|keys| !keys.contains(*key)));
                    self.changes.extend(gone.cloned().map(Change::Delete));
                    return old
                        .map(|old| Action::Close(old.number))
                        .into_iter()
                        .collect();
                }
                _ => {}
            }
        }
        Vec::new()
    }

    /// A connection could not even be tried.
    pub(super) fn failed(&mut self, number: u64, reason: &str) {
        for cluster in self.clusters.values_mut() {
            let next = cluster.next.as_mut().filter(|next| next.number == number);
            if let Some(next) = next {
                next.waiting_for = vec![reason.to_owned()];
                next.timed_out = true;
            }
        }
    }

    /// What there is to tell since the last time.
    pub(super) fn batch(&mut self, now: Instant) -> Option<Batch> {
        let timeout = self.terms.timeout;
        for next in self.clusters.values_mut().filter_map(|c| c.next.as_mut()) {
            let late = !timeout.is_zero() && now.duration_since(next.since) >= timeout;
            if late && !next.timed_out {
                next.timed_out = true;
                self.timeouts += 1;
            }
        }
        let now = (self.diagnostics(), self.waiting_for(), self.trust_domains());
        if self.told.as_ref() == Some(&now) && self.changes.is_empty() {
            return None;
        }
        self.told = Some(now.clone());
        let (diagnostics, waiting_for, trust_domains) = now;
        Some(Batch {
            changes: std::mem::take(&mut self.changes),
            diagnostics,
            trust_domains,
            synced: waiting_for.is_empty(),
            waiting_for,
        })
    }

    fn trust_domains(&self) -> BTreeMap<ClusterId, Text> {
        let live = self.clusters.values().filter_map(|c| c.live.as_ref());
        live.flat_map(|live| live.trust_domains.clone()).collect()
    }

    fn waiting_for(&self) -> Vec<String> {
        if !self.heard {
            return vec![format!("Secrets of namespace {}", self.terms.namespace)];
        }
        let waited = |(name, cluster): (&String, &Cluster)| {
            let next = cluster.next.as_ref().filter(|next| !next.timed_out)?;
            let why = next.waiting_for.join("; ");
            cluster
                .live
                .is_none()
                .then(|| format!("cluster {name} ({why})"))
        };
        self.clusters.iter().filter_map(waited).collect()
    }

    fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut all: Vec<Diagnostic> = self.findings.clone();
        all.extend(self.trouble.clone());
        for (name, cluster) in &self.clusters {
            all.extend(
                cluster
                    .live
                    .iter()
                    .flat_map(|live| live.diagnostics.clone()),
            );
            let Some(next) = cluster.next.as_ref().filter(|next| next.timed_out) else {
                continue;
            };
            let reason = format!(
                "cluster {name} cannot be read: {}",
                next.waiting_for.join("; ")
            );
            let effect = if cluster.live.is_some() {
                "the connection before it stays in use; it is tried again"
            } else {
                "nothing of the cluster is in effect; it is tried again"
            };
            let key = ObjectKey::new(Kind::Secret, &*self.terms.namespace, &*cluster.secret);
            let found = Diagnostic::error("cluster-timeout", reason, effect).of(key);
            all.push(found.at(format!("data[{name:?}]")));
        }
        all.sort();
        all
    }

    /// Names of clusters, of their Secrets, how it goes with them, and the numbers of their connections.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&String, &String, SyncState, Vec<u64>)> {
        let row =
            |(name, cluster): (_, &'_ Cluster)| (name, cluster.sync(), cluster.numbers().collect());
        let secrets = self.clusters.values().map(|cluster| &cluster.secret);
        let rows = self.clusters.iter().map(row).zip(secrets);
        rows.map(|((name, sync, numbers), secret)| (name, secret, sync, numbers))
    }

    /// How often a cluster took longer than readiness waits.
    pub(super) fn timeouts(&self) -> u64 {
        self.timeouts
    }
}

#[cfg(test)]
mod tests;
