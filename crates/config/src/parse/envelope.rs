//! What every Kubernetes document has around its content: apiVersion, kind, metadata.

use serde_json::{Map, Value};

use super::decode::{Mismatch, Unknown, closest};
use super::path::Segment;
use super::{kinds, meta};
use crate::diagnostic::Severity;
use crate::finding::{FIELD_IGNORED, Finding, OBJECT_REFUSED};
use crate::kind::Kind;
use crate::object::{Object, ObjectKey};
use crate::validate;

/// What became of a document.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The object, unless a finding is an error.
    pub(super) object: Option<Object>,
    /// Its key, as soon as that is known.
    pub(super) key: Option<ObjectKey>,
    pub(super) findings: Vec<Finding>,
}

/// What the items of a list are if they do not say it themselves, as in the lists of the API server.
#[derive(Debug, Default)]
pub(super) struct ItemDefaults {
    kind: Option<String>,
    api_version: Option<String>,
}

impl ItemDefaults {
    /// Those of a kind, in the version that we prefer.
    pub(super) fn of(kind: Kind) -> Self {
        Self {
            kind: Some(kind.as_str().to_owned()),
            api_version: Some(kind.api_version()),
        }
    }
}

/// The items of a `List` or `PodList`; anything else is given back.
pub(super) fn items(value: Value) -> Result<(ItemDefaults, Vec<Value>), Value> {
    let Value::Object(mut map) = value else {
        return Err(value);
    };
    let text = |field: &str| map.get(field).and_then(Value::as_str);
    let item_kind = text("kind").and_then(|kind| kind.strip_suffix("List"));
    let is_list = item_kind == Some("") || item_kind.is_some() && map.contains_key("items");
    if !is_list || !matches!(map.get("items"), None | Some(Value::Null | Value::Array(_))) {
        return Err(Value::Object(map));
    }
    let defaults = match item_kind {
        Some(kind) if !kind.is_empty() => ItemDefaults {
            kind: Some(kind.to_owned()),
            api_version: text("apiVersion").map(str::to_owned),
        },
        _ => ItemDefaults::default(),
    };
    match map.remove("items") {
        Some(Value::Array(items)) => Ok((defaults, items)),
        _ => Ok((defaults, Vec::new())),
    }
}

/// Reads one object, found at `at` in its document.
pub(super) fn open(value: Value, defaults: &ItemDefaults, at: &[Segment]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut scope = Scope {
        at,
        outcome: &mut outcome,
    };
    let Value::Object(mut root) = value else {
        scope.error(
            "not-an-object",
            &[],
            "expected an object with apiVersion, kind and metadata",
        );
        return outcome;
    };
    let Some(kind) = scope.kind(&root, defaults) else {
        return outcome;
    };
    let meta = meta::read(
        root.remove("metadata").unwrap_or_default(),
        kind,
        &mut scope,
    );
    let Some(meta) = meta else { return outcome };
    scope.outcome.key = Some(meta.key.clone());
    if let Some(spec) = kinds::read(kind, root, &meta, &mut scope) {
        let object = Object {
            key: meta.key,
            meta: meta.meta,
            spec,
            origin: None,
        };
        for mut finding in validate::object(&object) {
            finding.path = scope.path_of(&finding.path);
            scope.outcome.findings.push(finding);
        }
        outcome.object = Some(object);
    }
    outcome
}

/// Where findings about the object at hand go.
pub(super) struct Scope<'a> {
    at: &'a [Segment],
    outcome: &'a mut Outcome,
}

impl Scope<'_> {
    fn path_of(&self, path: &[Segment]) -> Vec<Segment> {
        [self.at, path].concat()
    }

    fn push(
        &mut self,
        severity: Severity,
        code: &'static str,
        path: &[Segment],
        reason: String,
        effect: &str,
    ) {
        let path = self.path_of(path);
        self.outcome.findings.push(Finding {
            severity,
            code,
            path,
            reason,
            effect: effect.to_owned(),
        });
    }

    pub(super) fn error(&mut self, code: &'static str, fields: &[&str], reason: impl Into<String>) {
        let path: Vec<_> = fields
            .iter()
            .map(|field| Segment::Key((*field).to_owned()))
            .collect();
        self.push(Severity::Error, code, &path, reason.into(), OBJECT_REFUSED);
    }

    pub(super) fn mismatch(&mut self, mismatch: Mismatch) {
        self.push(
            Severity::Error,
            "invalid-value",
            &mismatch.path,
            mismatch.reason,
            OBJECT_REFUSED,
        );
    }

    pub(super) fn warning(&mut self, code: &'static str, path: &[Segment], reason: String) {
        self.push(Severity::Warning, code, path, reason, FIELD_IGNORED);
    }

    pub(super) fn unknown(&mut self, unknown: Vec<Unknown>) {
        for Unknown { path, suggestion } in unknown {
            let hint = suggestion.map(|name| format!("; did you mean {name}?"));
            let reason = format!("unknown field{}", hint.unwrap_or_default());
            self.warning("unknown-field", &path, reason);
        }
    }

    /// The kind, if it is one that we keep.
    fn kind(&mut self, root: &Map<String, Value>, defaults: &ItemDefaults) -> Option<Kind> {
        let text = |field: &str| match root.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.as_str())),
            Some(_) => Err(()),
        };
        let (Ok(kind), Ok(version)) = (text("kind"), text("apiVersion")) else {
            self.error("invalid-value", &[], "kind and apiVersion must be text");
            return None;
        };
        let Some(kind) = kind.or(defaults.kind.as_deref()) else {
            self.error("missing-field", &["kind"], "kind is missing");
            return None;
        };
        let Some(version) = version.or(defaults.api_version.as_deref()) else {
            self.error("missing-field", &["apiVersion"], "apiVersion is missing");
            return None;
        };
        match recognise(kind, version) {
            Recognised::Kept(kind) => return Some(kind),
            Recognised::NotYet => {
                let reason = format!("kind {kind} is not translated yet");
                self.push(Severity::Info, "not-translated", &[], reason, "ignored");
            }
            Recognised::Foreign => {
                let reason = format!("kind {kind} does not concern the mesh");
                self.push(Severity::Info, "foreign-kind", &[], reason, "ignored");
            }
            Recognised::Version(known) => {
                let reason = format!(
                    "unsupported version {version:?} of {known}, expected one of {}",
                    known.versions().join(", ")
                );
                self.error("unsupported-version", &["apiVersion"], reason);
            }
            Recognised::Group(known) => {
                let reason = format!(
                    "kind {known} is of the group {}, not {version}",
                    group_of(known)
                );
                self.error("unknown-kind", &["apiVersion"], reason);
            }
            Recognised::Unknown => {
                let names: Vec<&'static str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
                let hint = closest(kind, &names).map(|name| format!("; did you mean {name}?"));
                let short: String = kind.chars().take(64).collect();
                let reason = format!(
                    "unknown kind {short:?} of {:?}{}",
                    version.chars().take(64).collect::<String>(),
                    hint.unwrap_or_default()
                );
                self.error("unknown-kind", &["kind"], reason);
            }
        }
        None
    }
}

fn group_of(kind: Kind) -> &'static str {
    if kind.group().is_empty() {
        "core (v1)"
    } else {
        kind.group()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Recognised {
    Kept(Kind),
    /// Part of what a mesh is configured with, but not yet read here.
    NotYet,
    /// A Kubernetes kind that says nothing about the mesh.
    Foreign,
    /// The kind is known, but not in this version.
    Version(Kind),
    /// The kind is known, but in another group.
    Group(Kind),
    Unknown,
}

/// Groups of the Kubernetes API server itself; what we do not keep of them is none of our business.
const KUBERNETES_GROUPS: &[&str] = &[
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "kustomize.config.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

fn recognise(kind: &str, api_version: &str) -> Recognised {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let known = Kind::ALL
        .iter()
        .find(|known| known.as_str() == kind)
        .copied();
    match (group, kind) {
        ("networking.k8s.io", "Ingress" | "IngressClass")
        | (
            "gateway.networking.k8s.io"
            | "gateway.networking.x-k8s.io"
            | "inference.networking.k8s.io"
            | "inference.networking.x-k8s.io",
            _,
        ) => return Recognised::NotYet,
        _ => {}
    }
    // A typo in something that we would have kept is worth more than a remark. Other people's groups are theirs.
    let near = |word: &str, names: Vec<&'static str>| closest(word, &names).is_some();
    let groups = || {
        Kind::ALL
            .iter()
            .map(|kind| kind.group())
            .filter(|group| !group.is_empty())
            .collect()
    };
    let ours = Kind::ALL.iter().any(|kind| kind.group() == group) || near(group, groups());
    let kubernetes = KUBERNETES_GROUPS.contains(&group);
    match known {
        Some(known) if known.group() == group => {
            if known.versions().contains(&version) {
                Recognised::Kept(known)
            } else {
                Recognised::Version(known)
            }
        }
        Some(known) if ours || kubernetes || group.contains("istio") => Recognised::Group(known),
        None if ours || group.contains("istio") => {
            let in_group = |kind: &&Kind| kind.group() == group || !kubernetes;
            let names = Kind::ALL
                .iter()
                .filter(in_group)
                .map(|kind| kind.as_str())
                .collect();
            if (ours && !kubernetes) || near(kind, names) {
                Recognised::Unknown
            } else {
                Recognised::Foreign
            }
        }
        _ => Recognised::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_versions() {
        use Recognised::{Foreign, Group, Kept, NotYet, Unknown, Version};
        for (kind, version, expected) in [
            (
                "VirtualService",
                "networking.istio.io/v1",
                Kept(Kind::VirtualService),
            ),
            (
                "VirtualService",
                "networking.istio.io/v1alpha3",
                Kept(Kind::VirtualService),
            ),
            (
                "VirtualService",
                "networking.istio.io/v2",
                Version(Kind::VirtualService),
            ),
            (
                "EnvoyFilter",
                "networking.istio.io/v1",
                Version(Kind::EnvoyFilter),
            ),
            (
                "VirtualService",
                "networking.istio.com/v1",
                Group(Kind::VirtualService),
            ),
            ("Gateway", "gateway.networking.k8s.io/v1", NotYet),
            ("HTTPRoute", "gateway.networking.k8s.io/v1", NotYet),
            ("Ingress", "networking.k8s.io/v1", NotYet),
            ("NetworkPolicy", "networking.k8s.io/v1", Foreign),
            ("Deployment", "apps/v1", Foreign),
            ("PersistentVolume", "v1", Foreign),
            ("Pods", "v1", Unknown),
            ("Service", "v1", Kept(Kind::Service)),
            ("Service", "serving.knative.dev/v1", Foreign),
            ("Service", "apps/v1", Group(Kind::Service)),
            ("IstioOperator", "install.istio.io/v1alpha1", Foreign),
            ("ServiceMonitor", "monitoring.coreos.com/v1", Foreign),
            ("Sidecars", "netwroking.istio.io/v1", Unknown),
            ("Virtualservice", "networking.istio.io/v1", Unknown),
        ] {
            assert_eq!(recognise(kind, version), expected, "{kind} {version}");
        }
    }
}
