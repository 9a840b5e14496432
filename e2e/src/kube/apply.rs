//! YAML into an API server: in the order in which it can be taken, with status, and with the namespaces it needs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::client::KubeClient;
use crate::{config, wait};

/// How long the API server may take to serve a kind whose CRD it has just been given.
const SERVED: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(50);
/// Creation times have the resolution of a second.
const NEXT_SECOND: Duration = Duration::from_millis(1_100);
/// What the server writes itself, or refuses in an apply.
const SERVER_FIELDS: [&str; 6] = [
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
];

/// How the API server serves a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Served {
    /// `/apis/networking.istio.io/v1`
    base: String,
    plural: String,
    is_namespaced: bool,
    has_status: bool,
}

impl Served {
    fn path(&self, object: &Value) -> Result<String> {
        let name = object["metadata"]["name"]
            .as_str()
            .with_context(|| format!("a {} without a name", object["kind"]))?;
        Ok(format!("{}/{name}", self.collection(object)))
    }

    /// Where an object is made.
    fn collection(&self, object: &Value) -> String {
        let Self { base, plural, .. } = self;
        if self.is_namespaced {
            format!("{base}/namespaces/{}/{plural}", namespace(object))
        } else {
            format!("{base}/{plural}")
        }
    }
}

/// What the server said of the kinds so far; asked once for each version of a group.
type Known = BTreeMap<(String, String), Served>;

impl KubeClient {
    /// Applies all objects of a text: namespaces first (made if nobody mentions them), then CRDs, then everything else
    /// in its order. Returns how many there were.
    ///
    /// The server writes creation times itself. Objects whose times differ are made in the order of these, more than
    /// a second apart, so that the same one is the oldest. It takes no generations and no UIDs either.
    pub fn apply(&self, yaml: &str) -> Result<usize> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).context("parse YAML")?;
        self.apply_objects(documents)
    }

    /// The same with objects.
    pub fn apply_objects(&self, objects: Vec<Value>) -> Result<usize> {
        let mut objects: Vec<Value> = objects.into_iter().flat_map(items).collect();
        objects.sort_by_cached_key(|object| (rank(object), created(object)));
        let mut known = Known::new();
        let (first, last): (Vec<_>, Vec<_>) = objects.iter().partition(|o| rank(o) < LAST);
        for object in &first {
            self.apply_object(object, &mut known)
                .with_context(|| title(object))?;
        }
        self.wait_served(&first)?;
        let mut before = None;
        for object in &last {
            let time = created(object);
            if before.as_ref().is_some_and(|before| *before != time) {
                std::thread::sleep(NEXT_SECOND);
            }
            before = Some(time);
            self.apply_object(object, &mut known)
                .with_context(|| title(object))?;
        }
        Ok(objects.len())
    }

    /// When each of these objects, which have to be there, was made.
    pub fn creation_times(&self, objects: &[Value]) -> Result<Vec<Value>> {
        let mut known = Known::new();
        let time = |object: &Value| {
            let path = self.served(object, &mut known)?.path(object)?;
            let made = self.get(&path)?.ok().with_context(|| title(object))?;
            Ok(made["metadata"]["creationTimestamp"].clone())
        };
        objects.iter().map(time).collect()
    }

    /// Applies one object as it is: nothing is made that it needs, and no field is left out in silence.
    pub fn apply_strictly(&self, object: &Value) -> Result<()> {
        let path = self.served(object, &mut Known::new())?.path(object)?;
        let answer = self.patch_strictly(&path, object)?.ok();
        answer.map(drop).with_context(|| title(object))
    }

    /// Installs the CRDs of all YAML files of a folder and waits until they are served. Returns how many there were.
    pub fn install_crds(&self, folder: &Path) -> Result<usize> {
        let objects = config::objects(folder)?;
        ensure!(!objects.is_empty(), "no CRDs in {}", folder.display());
        self.apply_objects(objects)
    }

    /// Removes an object, which has to be there.
    pub fn remove(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Result<()> {
        let object = json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"namespace": namespace, "name": name}});
        let path = self.served(&object, &mut Known::new())?.path(&object)?;
        self.delete(&path)?.ok().map(drop)
    }

    /// Removes all objects of a text, which have to be there.
    pub fn remove_all(&self, yaml: &str) -> Result<()> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).context("parse YAML")?;
        let mut known = Known::new();
        for object in documents.into_iter().flat_map(items) {
            let path = self.served(&object, &mut known)?.path(&object)?;
            let answer = self.delete(&path)?.ok();
            answer.with_context(|| title(&object))?;
        }
        Ok(())
    }

    fn apply_object(&self, object: &Value, known: &mut Known) -> Result<()> {
        let served = self.served(object, known)?;
        let mut wanted = object.clone();
        if let Some(metadata) = wanted["metadata"].as_object_mut() {
            for field in SERVER_FIELDS {
                metadata.remove(field);
            }
            if served.is_namespaced {
                metadata.insert("namespace".to_owned(), namespace(object).into());
            }
        }
        let status = match wanted.as_object_mut() {
            Some(fields) if served.has_status => fields.remove("status"),
            _ => None,
        };
        let path = served.path(object)?;
        if rank(object) == CRD {
            // To find out who owns which of its thousand fields takes the server longer than everything else.
            let answer = self.create(&served.collection(object), &wanted)?;
            if answer.status != 409 {
                return answer.ok().map(drop);
            }
        }
        let mut answer = self.patch(&path, &wanted)?;
        if answer.status == 404 && served.is_namespaced {
            self.make_namespace(namespace(object))?;
            answer = self.patch(&path, &wanted)?;
        }
        // Some objects can be made but not applied: a Pod that names a port twice, for instance.
        if answer.status == 500 {
            let made = self.create(&served.collection(object), &wanted)?;
            if made.status != 409 {
                answer = made;
            }
        }
        answer.ok()?;
        if let Some(status) = status.filter(|status| !status.is_null()) {
            let status = json!({
                "apiVersion": wanted["apiVersion"], "kind": wanted["kind"], "status": status,
                "metadata": {"name": wanted["metadata"]["name"], "namespace": wanted["metadata"]["namespace"]},
            });
            let path = format!("{path}/status");
            let mut answer = self.patch(&path, &status)?;
            if answer.status == 500 {
                answer = self.merge(&path, &json!({"status": status["status"]}))?;
            }
            answer.ok().context("its status")?;
        }
        Ok(())
    }

    fn make_namespace(&self, name: &str) -> Result<()> {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let path = format!("/api/v1/namespaces/{name}");
        self.patch(&path, &object)?.ok().map(drop)
    }

    fn served(&self, object: &Value, known: &mut Known) -> Result<Served> {
        let version = object["apiVersion"].as_str().context("no apiVersion")?;
        let kind = object["kind"].as_str().context("no kind")?;
        let key = (version.to_owned(), kind.to_owned());
        if let Some(served) = known.get(&key) {
            return Ok(served.clone());
        }
        let base = base(version);
        let list = self.get(&base)?.ok()?;
        let served =
            find(&base, &list, kind).with_context(|| format!("{version} has no {kind}"))?;
        known.insert(key, served.clone());
        Ok(served)
    }

    /// A CRD is accepted before its kind is served; all of them are waited for together.
    fn wait_served(&self, objects: &[&Value]) -> Result<()> {
        let mut awaited: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for spec in objects
            .iter()
            .filter(|o| rank(o) == CRD)
            .map(|o| &o["spec"])
        {
            let (group, plural) = (&spec["group"], &spec["names"]["plural"]);
            let (Some(group), Some(plural)) = (group.as_str(), plural.as_str()) else {
                bail!("a CRD without group or plural");
            };
            let versions = spec["versions"].as_array().into_iter().flatten();
            for version in versions.filter(|version| version["served"] == true) {
                let version = version["name"].as_str().unwrap_or_default();
                let path = format!("/apis/{group}/{version}");
                awaited.entry(path).or_default().push(plural);
            }
        }
        for (path, plurals) in awaited {
            wait::until(&path, SERVED, || {
                let list = self.get(&path)?.ok()?;
                let is_listed =
                    |plural: &&str| resources(&list).any(|resource| resource["name"] == **plural);
                if let Some(missing) = plurals.iter().find(|plural| !is_listed(plural)) {
                    // The server has enough to do with what was asked already.
                    std::thread::sleep(LOOK);
                    bail!("no {missing}");
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// `v1` is served at `/api/v1`, all others at `/apis/GROUP/VERSION`.
fn base(version: &str) -> String {
    if version.contains('/') {
        format!("/apis/{version}")
    } else {
        format!("/api/{version}")
    }
}

fn resources(list: &Value) -> impl Iterator<Item = &Value> {
    list["resources"].as_array().into_iter().flatten()
}

fn find(base: &str, list: &Value, kind: &str) -> Option<Served> {
    let named = |name: &str| resources(list).any(|resource| resource["name"] == name);
    let resource = resources(list).find(|resource| {
        let name = resource["name"].as_str().unwrap_or_default();
        resource["kind"] == kind && !name.contains('/')
    })?;
    let plural = resource["name"].as_str()?;
    Some(Served {
        base: base.to_owned(),
        plural: plural.to_owned(),
        is_namespaced: resource["namespaced"] == true,
        has_status: named(&format!("{plural}/status")),
    })
}

/// The objects of a list; anything else is itself. Empty documents are nothing.
fn items(object: Value) -> Vec<Value> {
    let is_list = object["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    match object {
        Value::Null => Vec::new(),
        Value::Object(mut fields) if is_list => match fields.remove("items") {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        object => vec![object],
    }
}

const CRD: u8 = 1;
const LAST: u8 = 2;

/// What others need comes first.
fn rank(object: &Value) -> u8 {
    match object["kind"].as_str() {
        Some("Namespace") => 0,
        Some("CustomResourceDefinition") => CRD,
        _ => LAST,
    }
}

fn created(object: &Value) -> String {
    let time = object["metadata"]["creationTimestamp"].as_str();
    time.unwrap_or_default().to_owned()
}

fn namespace(object: &Value) -> &str {
    let namespace = object["metadata"]["namespace"].as_str();
    namespace.unwrap_or("default")
}

fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!(
        "{} {}/{}",
        text(&object["kind"]),
        namespace(object),
        text(&object["metadata"]["name"])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_taken_apart_and_empty_documents_left_out() {
        let list = json!({"kind": "List", "items": [{"kind": "A"}, {"kind": "B"}]});
        assert_eq!(items(list).len(), 2);
        assert!(items(Value::Null).is_empty());
        assert_eq!(items(json!({"kind": "Pod"})).len(), 1);
    }

    #[test]
    fn a_kind_is_found_with_its_scope_and_its_status() {
        let list = json!({"resources": [
            {"name": "pods/status", "kind": "Pod", "namespaced": true},
            {"name": "pods", "kind": "Pod", "namespaced": true},
            {"name": "secrets", "kind": "Secret", "namespaced": true},
        ]});
        let pod = find("/api/v1", &list, "Pod").unwrap();
        let object = json!({"metadata": {"name": "a", "namespace": "b"}});
        assert_eq!(pod.path(&object).unwrap(), "/api/v1/namespaces/b/pods/a");
        assert!(pod.has_status);
        assert!(!find("/api/v1", &list, "Secret").unwrap().has_status);
        assert_eq!(find("/api/v1", &list, "Node"), None);
        assert_eq!(base("apps/v1"), "/apis/apps/v1");
    }
}
