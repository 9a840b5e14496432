//! Which kinds are read from a cluster, where they are, and what of them is not worth keeping.

use pilotfish_config::Kind;
use serde_json::{Map, Value};

use super::follow::{Accept, Place};
use super::proto;

/// Large secrets that are never credentials; the same that istiod leaves out.
const SECRETS: &str = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token";
/// Keys under which a Secret may hold a certificate, its key, roots and what belongs to them.
const SECRET_KEYS: &[&str] = &[
    "cert",
    "key",
    "tls.crt",
    "tls.key",
    "tls.ocsp-staple",
    "cacert",
    "crl",
    "ca.crt",
    "ca.crl",
];
/// Keys under which a ConfigMap may hold roots.
const CONFIG_MAP_KEYS: &[&str] = &["cacert", "crl", "ca.crt", "ca.crl"];
/// The group and resource of CRDs.
const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
/// The label of Secrets that name other clusters.
const CLUSTERS: &str = "istio/multiCluster=true";
/// The label that says to which control plane an object belongs.
pub(super) const REVISION: &str = "istio.io/rev";
/// Annotations that are large and that nobody reads; injection and kubectl write them.
const UNREAD: &[&str] = &[
    "proxy.istio.io/overrides",
    "sidecar.istio.io/status",
    "kubectl.kubernetes.io/last-applied-configuration",
];

/// The kinds that are read. Endpoints are not, since Kubernetes mirrors them to EndpointSlices, nor are ServiceAccounts,
/// since nothing follows from them.
pub(super) fn watched() -> impl Iterator<Item = Kind> {
    Kind::ALL
        .into_iter()
        .filter(|kind| !matches!(kind, Kind::Endpoints | Kind::ServiceAccount))
}

/// The kinds that are read from other clusters than the one of the configuration: what services, endpoints and networks
/// follow from, the credentials of gateways there, and workloads outside of it. [`trust`](super::trust) reads one more.
pub(super) const ABROAD: &[Kind] = &[
    Kind::Namespace,
    Kind::Node,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Pod,
    Kind::Secret,
    Kind::WorkloadEntry,
];

/// Something that is listed and watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// Its name in addresses of the API.
    pub resource: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Whether it is read in the namespace of the control plane, whichever others are read.
    pub own: bool,
}

/// Everything that is listed and watched: who may do that with all of it can run a source.
pub fn reads() -> Vec<Read> {
    let of_kind = |kind: Kind| Read {
        group: kind.group(),
        resource: kind.plural(),
        namespaced: !kind.cluster_scoped(),
        own: false,
    };
    let definitions = Read {
        group: DEFINITIONS.0,
        resource: DEFINITIONS.1,
        namespaced: false,
        own: false,
    };
    let clusters = Read {
        own: true,
        ..of_kind(Kind::Secret)
    };
    let kinds = watched().map(of_kind);
    kinds.chain([definitions, clusters]).collect()
}

/// Whether something may be written about objects of a kind: into the status of Istio's, and Events about Services.
pub(super) fn is_written(kind: Kind) -> bool {
    kind.is_istio() || kind == Kind::Service
}

/// Where all objects of a kind are; or those of one namespace, if the kind has any.
pub(super) fn place(kind: Kind, namespace: Option<&str>) -> Place {
    let plural = match namespace {
        Some(namespace) if !kind.cluster_scoped() => {
            format!("namespaces/{namespace}/{}", kind.plural())
        }
        _ => kind.plural().to_owned(),
    };
    let path = |version: &&str| match kind.group() {
        "" => format!("/api/{version}/{plural}"),
        group => format!("/apis/{group}/{version}/{plural}"),
    };
    Place {
        paths: kind.versions().iter().map(path).collect(),
        field_selector: (kind == Kind::Secret).then(|| SECRETS.to_owned()),
        label_selector: None,
        // A page of messages is read while it arrives; one of JSON is held as a whole.
        stream: !proto::speaks(kind),
        page: page(kind),
        long: length(kind) > 0,
        definition: kind
            .is_istio()
            .then(|| format!("{}.{}", kind.plural(), kind.group())),
        accept: if proto::speaks(kind) {
            Accept::both(proto::ACCEPT)
        } else {
            Accept::JSON
        },
    }
}

/// Where one ConfigMap is.
pub(super) fn config_map(namespace: &str, name: &str) -> Place {
    Place {
        paths: vec![format!("/api/v1/namespaces/{namespace}/configmaps")],
        field_selector: Some(format!("metadata.name={name}")),
        label_selector: None,
        stream: true,
        page: 1,
        long: false,
        definition: None,
        accept: Accept::JSON,
    }
}

/// Where the Secrets are that name other clusters.
pub(super) fn cluster_secrets(namespace: &str) -> Place {
    Place {
        label_selector: Some(CLUSTERS.to_owned()),
        field_selector: None,
        ..place(Kind::Secret, Some(namespace))
    }
}

/// Where the names of all CRDs are. They are not streamed: for each event the server copies a whole CRD, with its schemas,
/// before it leaves out all but the name, which costs it five times as much processor time and nine times as much memory (ADR 10).
pub(super) fn definitions() -> Place {
    Place {
        paths: vec![format!("/apis/{}/v1/{}", DEFINITIONS.0, DEFINITIONS.1)],
        field_selector: None,
        label_selector: None,
        stream: false,
        page: 500,
        long: false,
        definition: None,
        accept: Accept {
            list: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            event: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        },
    }
}

/// How long a list is to be expected, compared with others: of most kinds there are few objects.
pub(super) fn length(kind: Kind) -> u8 {
    match kind {
        Kind::Pod => 3,
        Kind::EndpointSlice => 2,
        Kind::Service => 1,
        _ => 0,
    }
}

/// How many objects make a page that is not too large to hold, or to be made.
fn page(kind: Kind) -> usize {
    match kind {
        Kind::Secret | Kind::ConfigMap | Kind::EnvoyFilter => 50,
        _ if proto::speaks(kind) => 10_000,
        _ => 500,
    }
}

/// Whether an object is one of ours: it names no revision, or this one. A control plane without revision takes all.
pub(super) fn is_ours(kind: Kind, object: &Value, revision: &str) -> bool {
    if !kind.is_istio() || revision.is_empty() {
        return true;
    }
    let label = object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(REVISION));
    label.is_none_or(|label| label.as_str() == Some(revision))
}

/// Whether an annotation of an object is worth keeping.
pub(super) fn is_read(kind: Kind, annotation: &str) -> bool {
    !matches!(kind, Kind::Node | Kind::EndpointSlice) && !UNREAD.contains(&annotation)
}

/// Drops what is not worth keeping of an object; false if that is all of it.
pub(super) fn trim(kind: Kind, object: &mut Value) -> bool {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.retain(|name, _| is_read(kind, name));
        }
    }
    match kind {
        Kind::Secret => credentials(object, SECRET_KEYS),
        Kind::ConfigMap => credentials(object, CONFIG_MAP_KEYS),
        _ => true,
    }
}

/// Keeps the data under some keys; false if there is none.
fn credentials(object: &mut Value, keys: &[&str]) -> bool {
    if let Value::Object(root) = object {
        root.remove("binaryData");
    }
    let Some(Value::Object(data)) = object.get_mut("data") else {
        return false;
    };
    let kept: Map<String, Value> = keys
        .iter()
        .filter_map(|key| data.remove_entry(*key))
        .collect();
    let any = !kept.is_empty();
    *data = kept;
    any
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_prefer_our_version() {
        assert_eq!(
            place(Kind::VirtualService, None).paths[0],
            "/apis/networking.istio.io/v1/virtualservices"
        );
        assert_eq!(place(Kind::VirtualService, None).paths.len(), 3);
        assert_eq!(place(Kind::Pod, None).paths, ["/api/v1/pods"]);
        assert_eq!(place(Kind::EndpointSlice, None).definition, None);
        assert_eq!(
            place(Kind::Telemetry, None).definition.as_deref(),
            Some("telemetries.telemetry.istio.io")
        );
    }

    #[test]
    fn one_namespace_has_paths_of_its_own() {
        let paths = |kind| place(kind, Some("shop")).paths;
        assert_eq!(
            paths(Kind::EndpointSlice),
            ["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"]
        );
        assert_eq!(paths(Kind::Pod), ["/api/v1/namespaces/shop/pods"]);
        assert_eq!(paths(Kind::Node), ["/api/v1/nodes"]);
        assert_eq!(
            place(Kind::Sidecar, Some("shop")).definition,
            place(Kind::Sidecar, None).definition
        );
    }

    #[test]
    fn whatever_has_a_place_is_read() {
        let reads = reads();
        for kind in watched() {
            let path = &place(kind, None).paths[0];
            let found = reads
                .iter()
                .find(|read| path.ends_with(&format!("/{}", read.resource)));
            assert!(
                found.is_some_and(|read| path.contains(read.group)),
                "{path}"
            );
        }
        // The CRDs, and the Secrets that name clusters.
        assert_eq!(reads.len(), watched().count() + 2);
        let own: Vec<&Read> = reads.iter().filter(|read| read.own).collect();
        assert_eq!((own.len(), own[0].resource), (1, "secrets"));
        let secrets = cluster_secrets("system");
        assert_eq!(secrets.paths, ["/api/v1/namespaces/system/secrets"]);
        assert_eq!(secrets.label_selector.as_deref(), Some(CLUSTERS));
    }

    #[test]
    fn only_credentials_are_kept() {
        let mut secret = json!({"metadata": {"name": "a", "managedFields": [1]}, "data": {"tls.crt": "YQ==", "password": "Yg=="}});
        assert!(trim(Kind::Secret, &mut secret));
        assert_eq!(
            secret,
            json!({"metadata": {"name": "a"}, "data": {"tls.crt": "YQ=="}})
        );
        for other in [
            json!({"data": {"password": "x"}}),
            json!({}),
            json!({"data": null}),
        ] {
            assert!(!trim(Kind::Secret, &mut other.clone()), "{other}");
        }
        let mut map = json!({"data": {"tls.crt": "x"}, "binaryData": {"ca.crt": "eA=="}});
        assert!(!trim(Kind::ConfigMap, &mut map));
        assert!(trim(Kind::ConfigMap, &mut json!({"data": {"ca.crt": "x"}})));
    }

    #[test]
    fn other_revisions_are_not_ours() {
        let labelled = json!({"metadata": {"labels": {"istio.io/rev": "canary"}}});
        let plain = json!({"metadata": {"labels": {"app": "x"}}});
        for (kind, object, revision, ours) in [
            (Kind::Sidecar, &labelled, "canary", true),
            (Kind::Sidecar, &labelled, "default", false),
            (Kind::Sidecar, &labelled, "", true),
            (Kind::Sidecar, &plain, "default", true),
            (Kind::Service, &labelled, "default", true),
        ] {
            assert_eq!(is_ours(kind, object, revision), ours, "{kind} {revision}");
        }
    }
}
