//! The settings of the whole mesh, from ConfigMaps.

use std::collections::BTreeMap;

use pilotfish_config::core::ConfigMap;
use pilotfish_config::parse::{self, Layer};
use pilotfish_config::{Change, Diagnostic, Kind, ObjectKey};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::follow::{Condition, Definitions, Follower};
use super::keeper::{Keeper, News, Part};
use super::status::{State, Status};
use super::{Link, Timing, kinds};
use crate::MeshUpdate;

/// The ConfigMap that every installation of Istio has.
const NAME: &str = "istio";
/// The key of the mesh configuration in it.
pub(super) const MESH: &str = "mesh";
const NETWORKS: &str = "meshNetworks";

/// Where the settings of the mesh are.
#[derive(Debug, Clone)]
pub struct MeshMaps {
    /// The namespace of the control plane.
    pub namespace: String,
    /// The revision of the control plane; it may have a ConfigMap of its own.
    pub revision: String,
    /// A ConfigMap of the user's, over which that of the installation is laid.
    pub shared: Option<String>,
    /// Whether the mesh configuration is wanted.
    pub mesh: bool,
    /// Whether the networks are.
    pub networks: bool,
}

impl MeshMaps {
    /// The ConfigMaps, the one that counts most last.
    fn names(&self) -> Vec<String> {
        let own = name(&self.revision);
        self.shared.iter().cloned().chain([own]).collect()
    }
}

/// The ConfigMap of the installation of a revision.
pub(super) fn name(revision: &str) -> String {
    match revision {
        "" | "default" => NAME.to_owned(),
        revision => format!("{NAME}-{revision}"),
    }
}

/// Reads and watches the settings until the receiver is dropped. The first update comes when all ConfigMaps were asked for.
pub async fn watch_mesh(
    link: Link,
    maps: MeshMaps,
    timing: Timing,
    status: Status,
    updates: mpsc::Sender<MeshUpdate>,
) -> anyhow::Result<()> {
    let names = maps.names();
    let (reports, mut received) = mpsc::channel(16);
    let (_definitions, known) = watch::channel(Definitions::default());
    let mut tasks = JoinSet::new();
    let mut rows = Vec::new();
    for (index, name) in names.iter().enumerate() {
        rows.push(status.add(format!("ConfigMap {}/{name}", maps.namespace)));
        let place = kinds::config_map(&maps.namespace, name);
        let mut keep = Keeper::new(Kind::ConfigMap, Part::Whole, "", index, reports.clone());
        let (link, timing, known) = (link.clone(), timing.clone(), known.clone());
        tasks.spawn(async move {
            Follower::new(&link, &place, &mut keep, &timing, known)
                .run()
                .await;
        });
    }
    let mut settings = Settings::new(maps, names);
    loop {
        let (index, news) = tokio::select! {
            Some(news) = received.recv() => news,
            () = updates.closed() => return Ok(()),
        };
        let state = settings.take(index, news);
        if let (Some((state, reason, objects)), Some(row)) = (state, rows.get(index)) {
            status.set(*row, state, &reason, objects);
        }
        let update = settings.update().or_else(|| settings.waiting());
        if let Some(update) = update
            && updates.send(update).await.is_err()
        {
            return Ok(());
        }
    }
}

/// What is known of the ConfigMaps.
struct Settings {
    maps: MeshMaps,
    names: Vec<String>,
    /// The content of each, once it is known; a ConfigMap that is not there is empty.
    contents: BTreeMap<usize, Option<BTreeMap<String, String>>>,
    findings: BTreeMap<usize, Vec<Diagnostic>>,
    /// Why the others are not known.
    reasons: BTreeMap<usize, String>,
    changed: bool,
    /// What was last told to be wrong.
    told: Option<Vec<Diagnostic>>,
}

impl Settings {
    fn new(maps: MeshMaps, names: Vec<String>) -> Self {
        Self {
            maps,
            names,
            contents: BTreeMap::new(),
            findings: BTreeMap::new(),
            reasons: BTreeMap::new(),
            changed: false,
            told: None,
        }
    }

    fn take(&mut self, index: usize, news: News) -> Option<(State, String, usize)> {
        for change in news.changes {
            let content = match change {
                Change::Upsert(object) => object.get::<ConfigMap>().map(|map| map.data.clone()),
                Change::Delete(_) | Change::Relocate(..) => None,
            };
            self.changed |= self.contents.get(&index) != Some(&content);
            self.contents.insert(index, content);
        }
        for (_, found) in news.findings {
            self.findings.insert(index, found);
        }
        let known = self.contents.contains_key(&index);
        let condition = news.condition?;
        if !known && let Condition::Down(reason) | Condition::Forbidden(reason) = &condition {
            self.reasons.insert(index, reason.clone());
        }
        match condition {
            Condition::Live | Condition::Absent => {
                self.changed |= !known;
                self.contents.entry(index).or_default();
                Some((State::Live, String::new(), news.objects))
            }
            Condition::Forbidden(reason) => Some((State::Forbidden, reason, news.objects)),
            Condition::Down(reason) if known => Some((State::Down, reason, news.objects)),
            Condition::Down(reason) => Some((State::Waiting, reason, 0)),
        }
    }

    /// What is not known yet, if there is something new to say about it.
    fn waiting(&mut self) -> Option<MeshUpdate> {
        if self.contents.len() == self.names.len() || self.reasons.is_empty() {
            return None;
        }
        let reasons = std::mem::take(&mut self.reasons);
        let shown = |(index, reason): (usize, String)| {
            let name = self.names.get(index).map_or("", String::as_str);
            format!("ConfigMap {}/{name} ({reason})", self.maps.namespace)
        };
        Some(MeshUpdate {
            waiting_for: reasons.into_iter().map(shown).collect(),
            ..MeshUpdate::default()
        })
    }

    /// An update, if all is known and something is new.
    fn update(&mut self) -> Option<MeshUpdate> {
        if self.contents.len() < self.names.len() || !std::mem::take(&mut self.changed) {
            return None;
        }
        let mut update = MeshUpdate::default();
        let key = |name: &str| ObjectKey::new(Kind::ConfigMap, &*self.maps.namespace, name);
        update.diagnostics = self.findings.values().flatten().cloned().collect();
        let named: Vec<(String, Option<&BTreeMap<String, String>>)> = self
            .names
            .iter()
            .zip(self.contents.values())
            .map(|(name, content)| (name.clone(), content.as_ref()))
            .collect();
        for (name, content) in &named {
            if content.is_none() {
                update.diagnostics.push(
                    Diagnostic::warning(
                        "missing",
                        "there is no such ConfigMap",
                        "the last good settings of the mesh stay, or the defaults",
                    )
                    .of(key(name)),
                );
            }
        }
        let texts = |field: &'static str| {
            named
                .iter()
                .filter_map(move |(name, content)| Some((name, content.as_ref()?.get(field)?)))
        };
        let place =
            |name: &str, field: &str| format!("ConfigMap/{}/{name} {field}", self.maps.namespace);
        // A ConfigMap that is gone says nothing: what it last said stays.
        let complete = named.last().is_some_and(|(_, content)| content.is_some());
        if self.maps.mesh && (complete || self.told.is_none()) {
            let layers: Vec<(String, &String)> = texts(MESH)
                .map(|(name, text)| (place(name, MESH), text))
                .collect();
            let layers: Vec<Layer<'_>> = layers
                .iter()
                .map(|(name, text)| Layer { text, name })
                .collect();
            let (mesh, found) = parse::mesh_layers(&layers);
            update.mesh = mesh;
            update.diagnostics.extend(found);
        }
        if self.maps.networks
            && let Some((name, text)) = texts(NETWORKS).next_back()
        {
            let (networks, found) = parse::mesh_networks(text, &place(name, NETWORKS));
            update.networks = networks;
            update.diagnostics.extend(found);
        }
        self.told = Some(update.diagnostics.clone());
        Some(update)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn maps(revision: &str, shared: Option<&str>) -> MeshMaps {
        MeshMaps {
            namespace: "istio-system".to_owned(),
            revision: revision.to_owned(),
            shared: shared.map(str::to_owned),
            mesh: true,
            networks: true,
        }
    }

    fn live(content: Option<serde_json::Value>) -> News {
        let change = content.map(|data| {
            let value =
                json!({"metadata": {"name": "x", "namespace": "istio-system"}, "data": data});
            Change::upsert(parse::object(value, Kind::ConfigMap).objects.remove(0))
        });
        News {
            changes: change.into_iter().collect(),
            condition: Some(Condition::Live),
            ..News::default()
        }
    }

    fn settings(maps: MeshMaps) -> Settings {
        let names = maps.names();
        Settings::new(maps, names)
    }

    #[test]
    fn the_revision_names_the_map() {
        assert_eq!(maps("", None).names(), ["istio"]);
        assert_eq!(maps("default", Some("mine")).names(), ["mine", "istio"]);
        assert_eq!(maps("canary", None).names(), ["istio-canary"]);
    }

    #[test]
    fn the_installation_is_laid_over_the_users_map() {
        let mut settings = settings(maps("", Some("mine")));
        settings.take(1, live(Some(json!({"mesh": "trustDomain: theirs"}))));
        assert!(settings.update().is_none(), "one is not known yet");
        settings.take(
            0,
            live(Some(json!({"mesh": "trustDomain: mine\nrootNamespace: mine", "meshNetworks": "networks: {}"}))),
        );
        let update = settings.update().unwrap();
        let mesh = update.mesh.unwrap();
        assert_eq!(mesh.trust_domain, "theirs");
        assert_eq!(mesh.root_namespace, "mine");
        assert!(update.networks.is_some());
        assert_eq!(update.diagnostics, []);
        assert!(settings.update().is_none(), "nothing new");
    }

    #[test]
    fn without_a_map_the_defaults_count_and_a_lost_map_changes_nothing() {
        let mut settings = settings(maps("", None));
        settings.take(0, live(None));
        let update = settings.update().unwrap();
        assert_eq!(
            update.mesh,
            Some(pilotfish_config::mesh::MeshConfig::standard())
        );
        assert_eq!(update.diagnostics[0].code, "missing");
        settings.take(0, live(Some(json!({"mesh": "trustDomain: x"}))));
        let update = settings.update().unwrap();
        assert_eq!(update.mesh.unwrap().trust_domain, "x");
        assert_eq!(update.diagnostics, []);
        let gone = News {
            changes: vec![Change::Delete(ObjectKey::new(
                Kind::ConfigMap,
                "istio-system",
                "istio",
            ))],
            ..News::default()
        };
        settings.take(0, gone);
        let update = settings.update().unwrap();
        assert!(update.mesh.is_none());
        assert_eq!(update.diagnostics[0].code, "missing");
    }

    #[test]
    fn what_cannot_be_read_is_waited_for() {
        let mut settings = settings(maps("", None));
        let forbidden = News {
            condition: Some(Condition::Forbidden("no".to_owned())),
            ..News::default()
        };
        settings.take(0, forbidden);
        assert!(settings.update().is_none());
        let waiting = settings.waiting().unwrap().waiting_for;
        assert_eq!(waiting, ["ConfigMap istio-system/istio (no)"]);
        assert!(settings.waiting().is_none());
    }

    #[test]
    fn a_bad_map_is_reported_and_the_last_good_one_stays() {
        let mut settings = settings(maps("", None));
        settings.take(0, live(Some(json!({"mesh": "trustDomain: [1"}))));
        let update = settings.update().unwrap();
        assert!(update.mesh.is_none());
        let found = format!("{}", update.diagnostics[0]);
        assert!(
            found.contains("ConfigMap/istio-system/istio mesh"),
            "{found}"
        );
    }
}
