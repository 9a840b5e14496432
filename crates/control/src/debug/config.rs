//! Objects and mesh configuration as they were understood. Values of Secrets are never shown.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pilotfish_config::{Kind, Object};
use serde::Deserialize;
use serde_json::{Map, Value, json as value};

use crate::http::{Pages, json};

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

/// Istio's kinds by default, as istiod's page has; any one kind on request.
pub(super) async fn objects(State(pages): State<Pages>, Query(asked): Query<Asked>) -> Response {
    let kinds: Vec<Kind> = match asked.kind.as_deref() {
        None => Kind::ALL
            .into_iter()
            .filter(|kind| kind.is_istio())
            .collect(),
        Some(name) => match Kind::ALL
            .into_iter()
            .find(|kind| kind.as_str().eq_ignore_ascii_case(name))
        {
            Some(kind) => vec![kind],
            None => {
                return (
                    StatusCode::NOT_FOUND,
                    format!("{name:?} is not read; /debug/resourcesz lists the kinds\n"),
                )
                    .into_response();
            }
        },
    };
    let snapshot = pages.plane.snapshot();
    let wanted = |object: &Object| {
        let is = |asked: &Option<String>, actual: &str| {
            asked.as_deref().is_none_or(|asked| asked == actual)
        };
        is(&asked.namespace, &object.key.namespace) && is(&asked.name, &object.key.name)
    };
    let shown: Vec<_> = kinds
        .into_iter()
        .flat_map(|kind| snapshot.list(kind))
        .filter(|object| wanted(object))
        .map(|object| show(object))
        .collect();
    json(&shown)
}

/// The kinds that are read.
pub(super) async fn kinds() -> Response {
    let kind = |kind: Kind| value!({"Group": kind.group(), "Version": kind.versions().first(), "Kind": kind.as_str()});
    json(&Kind::ALL.map(kind))
}

pub(super) async fn mesh(State(pages): State<Pages>) -> Response {
    let mut shown = serde_json::to_value(&*pages.plane.snapshot().mesh).unwrap_or(Value::Null);
    blank_tokens(&mut shown);
    json(&shown)
}

pub(super) async fn networks(State(pages): State<Pages>) -> Response {
    json(&*pages.plane.snapshot().networks)
}

/// Tracing providers may carry a token.
fn blank_tokens(shown: &mut Value) {
    match shown {
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                if key == "accessToken" && field.is_string() {
                    *field = Value::from("[redacted]");
                } else {
                    blank_tokens(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank_tokens),
        _ => {}
    }
}

/// An object as Kubernetes writes it.
fn show(object: &Object) -> Value {
    let kind = object.kind();
    let version = kind.versions().first().copied().unwrap_or("v1");
    let api_version = if kind.group().is_empty() {
        version.to_owned()
    } else {
        format!("{}/{version}", kind.group())
    };
    let mut metadata = Map::from_iter([
        ("name".to_owned(), Value::from(&*object.key.name)),
        (
            "resourceVersion".to_owned(),
            Value::from(object.meta.resource_version.to_string()),
        ),
    ]);
    if !object.key.namespace.is_empty() {
        metadata.insert("namespace".to_owned(), Value::from(&*object.key.namespace));
    }
    if let Some(created) = object
        .meta
        .created
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
    {
        metadata.insert(
            "creationTimestamp".to_owned(),
            Value::from(created.to_string()),
        );
    }
    for (field, labels) in [
        ("labels", &object.meta.labels),
        ("annotations", &object.meta.annotations),
    ] {
        // kubectl keeps a copy of the whole object in an annotation, values of Secrets included.
        let shown: Map<String, Value> = labels
            .iter()
            .filter(|(key, _)| kind != Kind::Secret || !key.ends_with("last-applied-configuration"))
            .map(|(key, value)| (key.to_string(), Value::from(&**value)))
            .collect();
        if !shown.is_empty() {
            metadata.insert(field.to_owned(), Value::Object(shown));
        }
    }
    let mut shown = value!({"apiVersion": api_version, "kind": kind.as_str(), "metadata": metadata, "spec": spec(object)});
    if let Some(origin) = &object.origin {
        shown["origin"] = Value::from(origin.to_string());
    }
    shown
}

fn spec(object: &Object) -> Value {
    let spec = serde_json::to_value(&object.spec).unwrap_or(Value::Null);
    if object.kind() == Kind::Secret {
        redact(spec)
    } else {
        spec
    }
}

/// Keeps the shape and drops every value: also of fields that a later version may add.
fn redact(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| {
                let shown = if key == "type" { value } else { redact(value) };
                (key, shown)
            })
            .collect(),
        Value::Null => Value::Null,
        _ => Value::from("[redacted]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_keep_their_values() {
        let spec = value!({"type": "kubernetes.io/tls", "data": {"tls.key": "c2VjcmV0", "list": [1, 2]}, "x": null});
        assert_eq!(
            redact(spec),
            value!({"type": "kubernetes.io/tls", "data": {"tls.key": "[redacted]", "list": "[redacted]"}, "x": null})
        );
    }
}
