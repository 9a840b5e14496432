//! Which fields of an object a change touched. Names only: values are never shown.

use std::fmt::Write as _;
use std::sync::Arc;

use pilotfish_config::core::Secret;
use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use pilotfish_config::{Kind, Object, Snapshot};
use serde::Serialize;
use serde_json::{Map, Value};

/// How many fields of an object are named.
const NAMED: usize = 10;
/// How much of a key is shown.
const KEY: usize = 64;

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    Added,
    Removed,
    Changed,
}

/// What a change did to an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Edit {
    pub(crate) what: What,
    /// The first of them; none for an object that is new or gone.
    pub(crate) fields: Vec<String>,
    /// How many are not named.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) more_fields: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// One object before and after. The objects are shared with snapshots; they are compared when somebody asks.
#[derive(Debug, Clone)]
pub(crate) enum Touched {
    Object(Option<Arc<Object>>, Option<Arc<Object>>),
    Mesh(Arc<MeshConfig>, Arc<MeshConfig>),
    Networks(Arc<MeshNetworks>, Arc<MeshNetworks>),
    /// A Secret is compared at once, so that values that were replaced are not kept.
    Secret(Edit),
}

impl Touched {
    /// One object.
    pub(crate) fn object(was: Option<&Arc<Object>>, is: Option<&Arc<Object>>) -> Self {
        let kind = was.or(is).map(|object| object.kind());
        if kind == Some(Kind::Secret) {
            Self::Secret(compare(was, is))
        } else {
            Self::Object(was.cloned(), is.cloned())
        }
    }

    /// Settings of the mesh that differ between two snapshots, under the names that objects cannot have.
    pub(crate) fn settings(was: &Snapshot, is: &Snapshot) -> Vec<(&'static str, Self)> {
        let mut all = Vec::new();
        if was.mesh != is.mesh {
            all.push(("MeshConfig", Self::Mesh(was.mesh.clone(), is.mesh.clone())));
        }
        if was.networks != is.networks {
            let networks = Self::Networks(was.networks.clone(), is.networks.clone());
            all.push(("MeshNetworks", networks));
        }
        all
    }

    /// The comparison.
    pub(crate) fn edit(&self) -> Edit {
        match self {
            Self::Object(was, is) => compare(was.as_ref(), is.as_ref()),
            Self::Mesh(was, is) => changed(&value(&**was), &value(&**is)),
            Self::Networks(was, is) => changed(&value(&**was), &value(&**is)),
            Self::Secret(edit) => edit.clone(),
        }
    }
}

fn compare(was: Option<&Arc<Object>>, is: Option<&Arc<Object>>) -> Edit {
    let whole = |what| Edit {
        what,
        fields: Vec::new(),
        more_fields: 0,
    };
    match (was, is) {
        (None, _) => whole(What::Added),
        (_, None) => whole(What::Removed),
        (Some(was), Some(is)) => match (was.get::<Secret>(), is.get::<Secret>()) {
            (Some(old), Some(new)) => secret((was, old), (is, new)),
            _ => changed(&written(was), &written(is)),
        },
    }
}

/// Not even the names of a Secret's entries.
fn secret(was: (&Object, &Secret), is: (&Object, &Secret)) -> Edit {
    let differs = [
        ("metadata", metadata(was.0) != metadata(is.0)),
        ("type", was.1.r#type != is.1.r#type),
        ("data", was.1.data != is.1.data),
    ];
    let fields = differs.iter().filter(|(_, differs)| *differs);
    Edit {
        what: What::Changed,
        fields: fields.map(|(name, _)| (*name).to_owned()).collect(),
        more_fields: 0,
    }
}

/// An object with its fields where Kubernetes has them.
fn written(object: &Object) -> Value {
    let spec = value(&object.spec);
    let mut root = match (object.kind(), spec) {
        (Kind::EndpointSlice | Kind::Endpoints | Kind::ConfigMap, Value::Object(fields)) => fields,
        (kind, Value::Object(fields)) => {
            let (mut spec, mut status) = (Map::new(), Map::new());
            for (key, field) in fields {
                let place = if is_status(kind, &key) {
                    &mut status
                } else {
                    &mut spec
                };
                place.insert(key, field);
            }
            let parts = [("spec", spec), ("status", status)];
            parts
                .map(|(k, v)| (k.to_owned(), v.into()))
                .into_iter()
                .collect()
        }
        (_, spec) => [("spec".to_owned(), spec)].into_iter().collect(),
    };
    root.insert("metadata".to_owned(), metadata(object));
    root.into()
}

/// Whether a field that is kept with the spec was read from the status.
fn is_status(kind: Kind, field: &str) -> bool {
    match kind {
        Kind::Service => field == "loadBalancer",
        Kind::Node => field == "addresses",
        Kind::Pod => matches!(
            field,
            "phase" | "podIP" | "podIPs" | "hostIP" | "conditions"
        ),
        _ => false,
    }
}

fn metadata(object: &Object) -> Value {
    let meta = &object.meta;
    serde_json::json!({
        "labels": meta.labels,
        "annotations": meta.annotations,
        "creationTimestamp": meta.created,
        "ownerReferences": meta.owner,
    })
}

fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or(Value::Null)
}

fn changed(was: &Value, is: &Value) -> Edit {
    let mut found = Found::default();
    found.compare(&mut String::new(), was, is);
    Edit {
        what: What::Changed,
        fields: found.named,
        more_fields: found.more,
    }
}

#[derive(Default)]
struct Found {
    named: Vec<String>,
    more: usize,
}

impl Found {
    fn add(&mut self, path: &str) {
        if self.named.len() < NAMED {
            self.named.push(path.to_owned());
        } else {
            self.more += 1;
        }
    }

    /// Goes down as long as both sides are of one sort. `path` is as it was when this returns.
    fn compare(&mut self, path: &mut String, was: &Value, is: &Value) {
        match (was, is) {
            _ if was == is => {}
            (Value::Object(was), Value::Object(is)) => {
                let new = is.keys().filter(|key| !was.contains_key(*key));
                for key in was.keys().chain(new) {
                    let (was, is) = (was.get(key), is.get(key));
                    let end = path.len();
                    step(path, key);
                    self.either(path, was, is);
                    path.truncate(end);
                }
            }
            (Value::Array(was), Value::Array(is)) => self.items(path, was, is),
            _ => self.add(path),
        }
    }

    /// A field that one side may not have. What it would hold is gone through where the other is empty, too, so that a
    /// default that is left out makes no difference to the names.
    fn either(&mut self, path: &mut String, was: Option<&Value>, is: Option<&Value>) {
        match (was, is) {
            (Some(was), Some(is)) => self.compare(path, was, is),
            (Some(Value::Object(only)), None) | (None, Some(Value::Object(only)))
                if !only.is_empty() =>
            {
                for (key, field) in only {
                    let end = path.len();
                    step(path, key);
                    self.either(path, Some(field), None);
                    path.truncate(end);
                }
            }
            _ => self.add(path),
        }
    }

    /// Lists of one length are compared place by place. Otherwise items came or went: those between the equal ones at
    /// both ends.
    fn items(&mut self, path: &mut String, was: &[Value], is: &[Value]) {
        let end = path.len();
        let at = |path: &mut String, index: usize| {
            path.truncate(end);
            let _ = write!(path, "[{index}]");
        };
        if was.len() == is.len() {
            for (index, (was, is)) in was.iter().zip(is).enumerate() {
                at(path, index);
                self.compare(path, was, is);
            }
        } else {
            let same = |(was, is): &(&Value, &Value)| was == is;
            let head = was.iter().zip(is).take_while(same).count();
            let (was, is) = (&was[head..], &is[head..]);
            let tail = was
                .iter()
                .rev()
                .zip(is.iter().rev())
                .take_while(same)
                .count();
            for index in head..head + was.len().max(is.len()) - tail {
                at(path, index);
                self.add(path);
            }
        }
        path.truncate(end);
    }
}

/// Keys that are no plain word are written as `["a.b/c"]`.
fn step(path: &mut String, key: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if key.is_empty() || !key.chars().all(plain) {
        let short: String = key.chars().take(KEY).collect();
        let _ = write!(path, "[{short:?}]");
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.extend(key.chars().take(KEY));
}

#[cfg(test)]
mod tests {
    use pilotfish_config::parse;

    use super::*;

    fn object(text: &str) -> Arc<Object> {
        let read = parse::documents(text, "x.yaml");
        assert_eq!(read.objects.len(), 1, "{:?}", read.diagnostics);
        Arc::new(read.objects.into_iter().next().unwrap())
    }

    fn fields(was: &str, is: &str) -> Vec<String> {
        let touched = Touched::object(Some(&object(was)), Some(&object(is)));
        let edit = touched.edit();
        assert_eq!((edit.what, edit.more_fields), (What::Changed, 0));
        edit.fields
    }

    const ROUTES: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop, labels: {app.kubernetes.io/name: web}}
spec:
  hosts: [web]
  http:
  - route:
    - {destination: {host: web, subset: v1}, weight: 90}
    - {destination: {host: web, subset: v2}, weight: 10}
";

    #[test]
    fn a_field_is_named_by_its_path() {
        let moved = ROUTES.replace("90", "80").replace("10", "20");
        assert_eq!(
            fields(ROUTES, &moved),
            [
                "spec.http[0].route[0].weight",
                "spec.http[0].route[1].weight"
            ]
        );
        assert_eq!(
            fields(ROUTES, &ROUTES.replace("name: web}}", "name: site}}")),
            ["metadata.labels[\"app.kubernetes.io/name\"]"]
        );
        let timeout = ROUTES.replace("  - route:", "  - timeout: 1s\n    route:");
        assert_eq!(fields(ROUTES, &timeout), ["spec.http[0].timeout"]);
        assert_eq!(fields(ROUTES, ROUTES), Vec::<String>::new());
    }

    #[test]
    fn items_that_came_are_named_alone() {
        let one = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web, namespace: shop}\nsubsets: [{addresses: [{ip: 10.0.0.1}, {ip: 10.0.0.3}], ports: [{port: 80}]}]\n";
        let two = one.replace("{ip: 10.0.0.3}", "{ip: 10.0.0.2}, {ip: 10.0.0.3}");
        assert_eq!(fields(one, &two), ["subsets[0].addresses[1]"]);
    }

    #[test]
    fn many_fields_are_counted() {
        let side = |n: u32| (0..30).map(|i| (format!("k{i:02}"), n)).collect::<Value>();
        let found = changed(&side(1), &side(2));
        assert_eq!((found.fields.len(), found.more_fields), (NAMED, 20));
        assert_eq!(found.fields[0], "k00");
    }

    #[test]
    fn what_came_or_went_has_no_fields() {
        let web = object(ROUTES);
        let what = |was, is| Touched::object(was, is).edit().what;
        assert_eq!(what(None, Some(&web)), What::Added);
        assert_eq!(what(Some(&web), None), What::Removed);
    }

    #[test]
    fn of_secrets_only_the_outermost_names_are_kept() {
        let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: web, namespace: shop}\ndata: {hunter: c2VjcmV0}\n";
        let touched = |is: &str| Touched::object(Some(&object(secret)), Some(&object(is)));
        let rotated = touched(&secret.replace("c2VjcmV0", "b3RoZXI="));
        assert!(matches!(rotated, Touched::Secret(_)), "no values are held");
        assert_eq!(rotated.edit().fields, ["data"]);
        let labelled = touched(&secret.replace("shop}", "shop, labels: {hunter: x}}"));
        assert_eq!(labelled.edit().fields, ["metadata"]);
    }

    #[test]
    fn settings_of_the_mesh_are_named_too() {
        let was = Snapshot::default();
        let mut is = was.clone();
        let mut mesh = (*was.mesh).clone();
        mesh.enable_tracing = !mesh.enable_tracing;
        is.mesh = Arc::new(mesh);
        let all = Touched::settings(&was, &is);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].0, "MeshConfig");
        assert_eq!(all[0].1.edit().fields, ["enableTracing"]);
    }
}
