//! The content of each kind, from where that kind has it.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::decode::{Mismatch, Spelling, Unknown, closest, decode, decode_known};
use super::envelope::Scope;
use super::meta;
use super::path::Segment;
use crate::kind::Kind;
use crate::networking::{ServiceEntry, ServiceEntryAddress, WorkloadEntry};
use crate::object::Spec;
use crate::{base64, core};

/// The spec of an object whose metadata is read already; `None` if a finding tells why not.
pub(super) fn read(
    kind: Kind,
    mut root: Map<String, Value>,
    meta: &meta::Read,
    scope: &mut Scope<'_>,
) -> Option<Spec> {
    root.remove("apiVersion");
    root.remove("kind");
    match kind {
        Kind::Namespace => Some(core::Namespace::default().into()),
        Kind::ServiceAccount => Some(core::ServiceAccount::default().into()),
        Kind::Node => plain::<core::Node>(flat(root, &["addresses"], scope)?, scope),
        Kind::Service => plain::<core::Service>(flat(root, &["loadBalancer"], scope)?, scope),
        Kind::Pod => {
            let mut flat = flat(
                root,
                &["phase", "podIP", "podIPs", "hostIP", "conditions"],
                scope,
            )?;
            flat.map
                .insert("deleting".to_owned(), Value::Bool(meta.deleting));
            plain::<core::Pod>(flat, scope)
        }
        Kind::EndpointSlice => plain::<core::EndpointSlice>(Flat::top(root), scope),
        Kind::Endpoints => plain::<core::Endpoints>(Flat::top(root), scope),
        Kind::ConfigMap => plain::<core::ConfigMap>(Flat::top(root), scope),
        Kind::Secret => secret(root, scope),
        Kind::ServiceEntry => service_entry(root, scope),
        Kind::VirtualService => strict::<crate::networking::VirtualService>(root, scope),
        Kind::DestinationRule => strict::<crate::networking::DestinationRule>(root, scope),
        Kind::Gateway => strict::<crate::networking::Gateway>(root, scope),
        Kind::Sidecar => strict::<crate::networking::Sidecar>(root, scope),
        Kind::WorkloadEntry => workload_entry(root, scope),
        Kind::WorkloadGroup => strict::<crate::networking::WorkloadGroup>(root, scope),
        Kind::EnvoyFilter => strict::<crate::networking::EnvoyFilter>(root, scope),
        Kind::ProxyConfig => strict::<crate::networking::ProxyConfig>(root, scope),
        Kind::PeerAuthentication => strict::<crate::security::PeerAuthentication>(root, scope),
        Kind::RequestAuthentication => {
            strict::<crate::security::RequestAuthentication>(root, scope)
        }
        Kind::AuthorizationPolicy => strict::<crate::security::AuthorizationPolicy>(root, scope),
        Kind::Telemetry => strict::<crate::telemetry::Telemetry>(root, scope),
        Kind::WasmPlugin => strict::<crate::extensions::WasmPlugin>(root, scope),
        Kind::TrafficExtension => strict::<crate::extensions::TrafficExtension>(root, scope),
    }
}

/// An Istio kind: everything is in `spec`, and a field that we do not know is a mistake.
fn strict<T: DeserializeOwned + Into<Spec>>(
    root: Map<String, Value>,
    scope: &mut Scope<'_>,
) -> Option<Spec> {
    typed_spec::<T>(root, scope).map(Into::into)
}

fn typed_spec<T: DeserializeOwned>(
    mut root: Map<String, Value>,
    scope: &mut Scope<'_>,
) -> Option<T> {
    let spec = match root.remove("spec") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(spec) => spec,
    };
    root.remove("status");
    for field in root.keys() {
        scope.unknown(vec![Unknown {
            path: vec![Segment::Key(field.clone())],
            suggestion: closest(field, &["spec", "status", "metadata"]),
        }]);
    }
    let (spec, unknown) = decode::<T>(spec, &[Segment::Key("spec".to_owned())], Spelling::Camel);
    scope.unknown(unknown);
    spec.map_err(|mismatch| scope.mismatch(mismatch)).ok()
}

/// Its status matters: it holds the addresses that a controller allocated.
fn service_entry(mut root: Map<String, Value>, scope: &mut Scope<'_>) -> Option<Spec> {
    let addresses = root
        .get_mut("status")
        .and_then(|status| status.get_mut("addresses"))
        .map(Value::take);
    let mut entry = typed_spec::<ServiceEntry>(root, scope)?;
    if let Some(addresses) = addresses {
        let at = [
            Segment::Key("status".to_owned()),
            Segment::Key("addresses".to_owned()),
        ];
        match decode::<Option<Vec<ServiceEntryAddress>>>(addresses, &at, Spelling::Camel).0 {
            Ok(addresses) => entry.status_addresses = addresses.unwrap_or_default(),
            Err(mismatch) => scope.warning("invalid-value", &mismatch.path, mismatch.reason),
        }
    }
    Some(entry.into())
}

/// Its status matters: it holds what the health check of the workload last said. Of a condition that is neither true nor
/// false nothing is known.
fn workload_entry(root: Map<String, Value>, scope: &mut Scope<'_>) -> Option<Spec> {
    let conditions = root
        .get("status")
        .and_then(|status| status.get("conditions"))
        .and_then(Value::as_array);
    let healthy = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Healthy")
        .and_then(|condition| match condition["status"].as_str() {
            Some("True") => Some(true),
            Some("False") => Some(false),
            _ => None,
        });
    let mut entry = typed_spec::<WorkloadEntry>(root, scope)?;
    entry.status_healthy = healthy;
    Some(entry.into())
}

/// The fields of a Kubernetes kind in one map, and where they came from.
struct Flat {
    map: Map<String, Value>,
    at: Vec<Segment>,
    from_status: &'static [&'static str],
}

impl Flat {
    /// A kind whose fields are at the top of the document.
    fn top(map: Map<String, Value>) -> Self {
        Self {
            map,
            at: Vec::new(),
            from_status: &[],
        }
    }
}

/// `spec` with some fields of `status` added.
fn flat(
    mut root: Map<String, Value>,
    from_status: &'static [&'static str],
    scope: &mut Scope<'_>,
) -> Option<Flat> {
    let mut take = |field: &'static str| match root.remove(field) {
        None | Some(Value::Null) => Some(Map::new()),
        Some(Value::Object(map)) => Some(map),
        Some(_) => {
            scope.error("invalid-value", &[field], "expected an object");
            None
        }
    };
    let (mut map, mut status) = (take("spec")?, take("status")?);
    for field in from_status {
        map.remove(*field);
        if let Some(value) = status.remove(*field) {
            map.insert((*field).to_owned(), value);
        }
    }
    Some(Flat {
        map,
        at: vec![Segment::Key("spec".to_owned())],
        from_status,
    })
}

/// A Kubernetes kind: what we do not model is dropped without a word.
fn plain<T: DeserializeOwned + Into<Spec>>(flat: Flat, scope: &mut Scope<'_>) -> Option<Spec> {
    let spec = decode_known::<T>(Value::Object(flat.map), &flat.at);
    let mut mismatch = match spec {
        Ok(spec) => return Some(spec.into()),
        Err(mismatch) => mismatch,
    };
    if let [first, Segment::Key(field), ..] = mismatch.path.as_mut_slice()
        && flat.from_status.contains(&field.as_str())
    {
        *first = Segment::Key("status".to_owned());
    }
    scope.mismatch(mismatch);
    None
}

/// A secret: a mistake is reported without what was written there.
fn secret(mut root: Map<String, Value>, scope: &mut Scope<'_>) -> Option<Spec> {
    if let Some(Value::Object(plain)) = root.remove("stringData") {
        let data = root
            .entry("data")
            .or_insert_with(|| Value::Object(Map::new()));
        if data.is_null() {
            *data = Value::Object(Map::new());
        }
        if let Value::Object(data) = data {
            for (key, value) in plain {
                let value = match value {
                    Value::String(text) => Value::String(base64::encode(text.as_bytes())),
                    other => other,
                };
                data.insert(key, value);
            }
        }
    }
    let secret = decode_known::<core::Secret>(Value::Object(root), &[]);
    match secret {
        Ok(secret) => Some(secret.into()),
        Err(Mismatch { path, .. }) => {
            let reason = "invalid value; it is not shown because it may be a secret".to_owned();
            scope.mismatch(Mismatch { path, reason });
            None
        }
    }
}
