//! The trust domain of a cluster that is not the config cluster: its own settings of the mesh say it. Nothing else of them
//! counts, since there is one mesh.

use std::collections::BTreeMap;

use pilotfish_config::core::ConfigMap;
use pilotfish_config::mesh::MeshConfig;
use pilotfish_config::{Change, ClusterId, Object, Text, parse};

use super::follow::Condition;
use super::keeper::News;
use super::mesh;

/// What follows if nobody knows.
pub(super) const FORBIDDEN: &str =
    "its workloads count as of the trust domain of the mesh; it is tried again";

/// What is known of a cluster's trust domain.
#[derive(Debug)]
pub(super) struct TrustDomain {
    cluster: ClusterId,
    said: Option<Text>,
}

impl TrustDomain {
    pub(super) fn new(cluster: ClusterId) -> Self {
        Self {
            cluster,
            said: None,
        }
    }

    /// Takes in news of the ConfigMap, and leaves in them what is not about the trust domain.
    pub(super) fn take(&mut self, news: &mut News) {
        for change in std::mem::take(&mut news.changes) {
            match change {
                Change::Upsert(object) => self.read(&object, news),
                Change::Delete(_) => self.said = Some(standard()),
                Change::Relocate(..) => {}
            }
        }
        // Whoever has no such ConfigMap has the settings that everybody has who says nothing.
        if let Some(Condition::Live | Condition::Absent) = news.condition {
            self.said.get_or_insert_with(standard);
        }
    }

    fn read(&mut self, object: &Object, news: &mut News) {
        let data = object.get::<ConfigMap>().map(|map| &map.data);
        let Some(text) = data.and_then(|data| data.get(mesh::MESH)) else {
            self.said = Some(standard());
            return;
        };
        let place = format!("{} {}", object.key, mesh::MESH);
        match parse::mesh_config(text, &place) {
            // What is wrong with other settings matters to nobody here.
            (Some(mesh), _) => self.said = Some(Text::from(mesh.trust_domain)),
            (None, found) => news.findings.push((object.key.clone(), found)),
        }
    }

    /// The trust domain by cluster, if it is known.
    pub(super) fn known(&self) -> BTreeMap<ClusterId, Text> {
        let said = self.said.iter();
        said.map(|domain| (self.cluster, domain.clone())).collect()
    }
}

fn standard() -> Text {
    Text::from(MeshConfig::standard().trust_domain)
}

#[cfg(test)]
mod tests {
    use pilotfish_config::{Kind, ObjectKey};
    use serde_json::{Value, json};

    use super::*;

    fn map(data: &Value) -> News {
        let value =
            json!({"metadata": {"name": "istio", "namespace": "istio-system"}, "data": data});
        News {
            changes: parse::object(value, Kind::ConfigMap)
                .objects
                .into_iter()
                .map(Change::upsert)
                .collect(),
            ..News::default()
        }
    }

    fn condition(condition: Condition) -> News {
        News {
            condition: Some(condition),
            ..News::default()
        }
    }

    /// What is said after some news, and how much of them is wrong.
    fn after(domain: &mut TrustDomain, mut news: News) -> (Option<String>, usize) {
        domain.take(&mut news);
        assert_eq!(news.changes, [], "no object of the mesh");
        let known = domain.known().into_values().next();
        (known.map(|text| text.to_string()), news.findings.len())
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let mut domain = TrustDomain::new(ClusterId::named("west").unwrap());
        let forbidden = Condition::Forbidden("no".to_owned());
        assert_eq!(after(&mut domain, condition(forbidden)), (None, 0));
        let down = Condition::Down("no".to_owned());
        assert_eq!(after(&mut domain, condition(down)), (None, 0));
        // A cluster without the ConfigMap has the default, not that of the mesh.
        let standard = Some("cluster.local".to_owned());
        assert_eq!(
            after(&mut domain, condition(Condition::Live)),
            (standard, 0)
        );
    }

    #[test]
    fn the_last_good_one_counts() {
        let mut domain = TrustDomain::new(ClusterId::named("west").unwrap());
        let mesh = |text: &str| map(&json!({"mesh": text}));
        let west = Some("west.example".to_owned());
        let standard = Some("cluster.local".to_owned());
        assert_eq!(after(&mut domain, mesh("trustDomain: [1")), (None, 1));
        let good = mesh("trustDomain: west.example\nnobodyKnows: this");
        assert_eq!(after(&mut domain, good), (west.clone(), 0));
        assert_eq!(
            after(&mut domain, condition(Condition::Live)),
            (west.clone(), 0)
        );
        assert_eq!(after(&mut domain, mesh("trustDomain: [1")), (west, 1));
        assert_eq!(
            after(&mut domain, mesh("rootNamespace: x")),
            (standard.clone(), 0)
        );
        assert_eq!(
            after(&mut domain, mesh("trustDomain: ''")),
            (standard.clone(), 1)
        );
        assert_eq!(after(&mut domain, map(&json!({}))), (standard.clone(), 0));
        let key = ObjectKey::new(Kind::ConfigMap, "istio-system", "istio");
        let gone = News {
            changes: vec![Change::Delete(key)],
            ..News::default()
        };
        assert_eq!(after(&mut domain, gone), (standard, 0));
    }
}
