//! How objects stand that may be written to, for whoever writes.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pilotfish_config::{Kind, ObjectKey, Standing, Standings};
use prost::Message;
use serde_json::Value;
use tokio::sync::watch;

use super::{kinds, proto};

/// The standings of a cluster, as its watches tell; cloning shares them.
#[derive(Debug, Clone, Default)]
pub struct Register(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Mutex<Standings>,
    changes: watch::Sender<u64>,
}

impl Register {
    /// All of now.
    pub fn all(&self) -> Standings {
        self.lock().clone()
    }

    /// Changes when a standing does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Takes in what was learned of some objects; `None` for one that is gone or is not ours to write.
    pub(super) fn note(&self, news: impl IntoIterator<Item = (ObjectKey, Option<Standing>)>) {
        let mut all = self.lock();
        let mut any = false;
        for (key, standing) in news {
            any |= match standing {
                Some(standing) => {
                    all.insert(key, Arc::new(standing));
                    true
                }
                None => all.remove(&key).is_some(),
            };
        }
        drop(all);
        if any {
            self.0.changes.send_modify(|changes| *changes += 1);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Standings> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How an object stands that was read; `None` if it is not ours to write. One that names another revision is not, even if
/// a control plane without revision reads it.
pub(super) fn of(kind: Kind, object: &Value, revision: &str) -> Option<Standing> {
    let meta = object.get("metadata")?;
    let text = |field: &str| meta.get(field).and_then(Value::as_str).unwrap_or_default();
    let label = meta
        .get("labels")
        .and_then(|labels| labels.get(kinds::REVISION)?.as_str())
        .unwrap_or_default();
    let own = if revision.is_empty() {
        "default"
    } else {
        revision
    };
    if kind.is_istio() && !label.is_empty() && label != own {
        return None;
    }
    let api_version = object.get("apiVersion").and_then(Value::as_str);
    Some(Standing {
        uid: text("uid").into(),
        version: text("resourceVersion").parse().ok()?,
        generation: meta.get("generation").and_then(Value::as_i64).unwrap_or(0),
        api_version: api_version
            .map_or_else(|| kind.api_version(), str::to_owned)
            .into(),
        status: object
            .get("status")
            .filter(|status| kind.is_istio() && !status.is_null())
            .map(|status| status.to_string().into()),
        refused: false,
    })
}

/// The same of a message, if that is enough to tell: kinds of Kubernetes belong to no revision, and of their status nothing is
/// written.
pub(super) fn of_message(kind: Kind, message: Bytes) -> Option<Standing> {
    if kind.is_istio() {
        return None;
    }
    let meta = proto::Stand::decode(message).ok()?.metadata;
    Some(Standing {
        uid: meta.uid.into(),
        version: meta.resource_version.parse().ok()?,
        generation: meta.generation,
        api_version: kind.api_version().into(),
        status: None,
        refused: false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_objects_of_our_revision_are_ours_to_write() {
        let labelled = |revision: &str| json!({"metadata": {"resourceVersion": "7", "labels": {"istio.io/rev": revision}}});
        for (label, revision, ours) in [
            ("", "", true),
            ("", "canary", true),
            ("canary", "canary", true),
            ("canary", "", false),
            ("default", "", true),
            ("default", "canary", false),
        ] {
            let standing = of(Kind::Sidecar, &labelled(label), revision);
            assert_eq!(standing.is_some(), ours, "{label:?} {revision:?}");
        }
        assert!(of(Kind::Sidecar, &json!({"metadata": {}}), "").is_none());
    }

    #[test]
    fn what_is_gone_is_forgotten_and_changes_are_told() {
        let register = Register::default();
        let mut changes = register.changes();
        let key = ObjectKey::new(Kind::ServiceEntry, "a", "b");
        let object = json!({"apiVersion": "networking.istio.io/v1beta1", "metadata": {"uid": "u", "resourceVersion": "7",
            "generation": 3}, "status": {"addresses": []}});
        let standing = of(Kind::ServiceEntry, &object, "").unwrap();
        assert_eq!((standing.generation, standing.version), (3, 7));
        assert_eq!(&*standing.api_version, "networking.istio.io/v1beta1");
        assert!(standing.status().contains_key("addresses"));
        register.note([(key.clone(), Some(standing))]);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!(register.all().len(), 1);
        register.note([(key.clone(), None)]);
        assert!(changes.has_changed().unwrap() && register.all().is_empty());
        changes.mark_unchanged();
        register.note([(key, None)]);
        assert!(!changes.has_changed().unwrap());
    }
}
