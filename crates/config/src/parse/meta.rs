//! `metadata`.

use crate::Text;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::decode::{Spelling, decode};
use super::envelope::Scope;
use super::path::Segment;
use crate::kind::Kind;
use crate::names;
use crate::object::{Meta, ObjectKey, OwnerRef};

/// What kubectl notes for itself: the whole object once more, as text.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Metadata that was read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) key: ObjectKey,
    pub(super) meta: Meta,
    /// Whether `deletionTimestamp` is set.
    pub(super) deleting: bool,
}

/// All of Kubernetes' metadata, so that a field that is not here is a mistake. What only the API server uses is dropped.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    name: String,
    namespace: String,
    // Go reads a null in a map of strings as the empty string.
    labels: BTreeMap<Text, Option<Text>>,
    annotations: BTreeMap<Text, Option<Text>>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<IgnoredAny>,
    owner_references: Vec<WireOwner>,
    cluster_name: IgnoredAny,
    deletion_grace_period_seconds: IgnoredAny,
    finalizers: IgnoredAny,
    generate_name: IgnoredAny,
    generation: IgnoredAny,
    managed_fields: IgnoredAny,
    resource_version: IgnoredAny,
    self_link: IgnoredAny,
    uid: IgnoredAny,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireOwner {
    api_version: String,
    kind: String,
    name: String,
    controller: bool,
    uid: IgnoredAny,
    block_owner_deletion: IgnoredAny,
}

/// The metadata of an object of `kind`; `None` if it does not name the object.
pub(super) fn read(value: Value, kind: Kind, scope: &mut Scope<'_>) -> Option<Read> {
    let at = [Segment::Key("metadata".to_owned())];
    if value.is_null() {
        scope.error("missing-field", &["metadata"], "metadata is missing");
        return None;
    }
    // The name is looked for on its own: with it, a mistake elsewhere in the metadata still tells whose it is.
    let text = |field: &str| {
        value
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (name, namespace) = (text("name"), text("namespace"));
    let (wire, unknown) = decode::<Wire>(value, &at, Spelling::Camel);
    scope.unknown(unknown);

    let key = key(kind, &name, &namespace, scope);
    let mut wire = match wire {
        Ok(wire) => wire,
        Err(mismatch) => {
            scope.mismatch(mismatch);
            Wire::default()
        }
    };
    let created = wire.creation_timestamp.as_deref().and_then(|text| {
        let seconds = text
            .parse::<jiff::Timestamp>()
            .map(jiff::Timestamp::as_second);
        if seconds.is_err() {
            let path = [at[0].clone(), Segment::Key("creationTimestamp".to_owned())];
            scope.warning(
                "invalid-value",
                &path,
                format!("{text:?} is not a time such as 2024-01-31T12:00:00Z"),
            );
        }
        seconds.ok()
    });
    wire.annotations.remove(LAST_APPLIED);
    let owner = wire
        .owner_references
        .into_iter()
        .find(|owner| owner.controller)
        .map(|owner| OwnerRef {
            kind: owner.kind.into(),
            name: owner.name.into(),
            api_version: owner.api_version.into(),
        });
    let labels = |map: BTreeMap<Text, Option<Text>>| {
        map.into_iter()
            .map(|(key, value)| (key, value.unwrap_or_default()))
            .collect()
    };
    Some(Read {
        key: key?,
        meta: Meta {
            labels: labels(wire.labels),
            annotations: labels(wire.annotations),
            created,
            owner,
            ..Meta::default()
        },
        deleting: wire.deletion_timestamp.is_some(),
    })
}

fn key(kind: Kind, name: &str, namespace: &str, scope: &mut Scope<'_>) -> Option<ObjectKey> {
    let short = |text: &str| text.chars().take(64).collect::<String>();
    if name.is_empty() {
        scope.error("missing-field", &["metadata", "name"], "name is missing");
        return None;
    }
    if !names::is_kubernetes_name(name) {
        let reason = format!(
            "invalid name {:?}: use lowercase letters, digits, '-' and '.'",
            short(name)
        );
        scope.error("invalid-name", &["metadata", "name"], reason);
        return None;
    }
    if kind.cluster_scoped() {
        return Some(ObjectKey::new(kind, "", name));
    }
    let namespace = if namespace.is_empty() {
        "default"
    } else {
        namespace
    };
    if !names::is_namespace(namespace) {
        let reason = format!(
            "invalid namespace {:?}: use lowercase letters, digits and '-'",
            short(namespace)
        );
        scope.error("invalid-name", &["metadata", "namespace"], reason);
        return None;
    }
    Some(ObjectKey::new(kind, namespace, name))
}
