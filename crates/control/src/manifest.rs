//! `pilotfish manifest`: what installs Pilotfish in a cluster, in istiod's place.
//!
//! Plain functions from [`Options`] to objects, in an order in which `kubectl apply -f -` can take them: what others refer
//! to goes first, and the Deployment last of what it needs.

mod rbac;
mod webhooks;
mod workload;
mod yaml;

use serde_json::{Value, json};

use crate::cli::ManifestArgs;
use crate::version::VERSION;

/// What to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// The namespace of the control plane.
    namespace: String,
    /// Whether the namespace is made, too.
    create_namespace: bool,
    /// Empty if there is none.
    revision: String,
    image: String,
    cluster: String,
    /// How many run at least.
    replicas: u32,
    /// How many run at most.
    max_replicas: u32,
    /// The Secret with the certificate for xDS over TLS.
    tls_secret: Option<String>,
    /// The namespaces that are read, the control plane's own among them; all if empty.
    only: Vec<String>,
    webhooks: bool,
}

impl From<ManifestArgs> for Options {
    fn from(args: ManifestArgs) -> Self {
        let mut only = args.namespaced;
        if !only.is_empty() {
            only.push(args.namespace.clone());
            only.sort();
            only.dedup();
        }
        // istiod calls having no revision so, and so may a user.
        let revision = args.revision.filter(|name| name != "default");
        Self {
            create_namespace: args.create_namespace,
            revision: revision.unwrap_or_default(),
            image: args.image.unwrap_or_else(|| format!("pilotfish:{VERSION}")),
            cluster: args.cluster_id,
            replicas: args.replicas,
            max_replicas: args.max_replicas.max(args.replicas),
            tls_secret: args.tls_secret,
            only,
            webhooks: args.webhooks,
            namespace: args.namespace,
        }
    }
}

impl Options {
    /// What istiod's objects are called, so that proxies and tools find them.
    fn name(&self) -> String {
        self.with_revision("istiod")
    }

    fn with_revision(&self, name: &str) -> String {
        match self.revision.as_str() {
            "" => name.to_owned(),
            revision => format!("{name}-{revision}"),
        }
    }

    /// The name of what lives outside of namespaces. It is not istiod's, so that removing one leaves the other its rights.
    fn cluster_name(&self) -> String {
        format!("{}-{}", self.with_revision("pilotfish"), self.namespace)
    }

    fn revision_label(&self) -> &str {
        match self.revision.as_str() {
            "" => "default",
            revision => revision,
        }
    }

    fn labels(&self) -> Value {
        json!({
            "app": "istiod",
            "app.kubernetes.io/name": "istiod",
            "app.kubernetes.io/part-of": "pilotfish",
            "istio.io/rev": self.revision_label(),
        })
    }

    /// The metadata of an object of the control plane's namespace.
    fn own(&self, name: &str) -> Value {
        self.within(name, &self.namespace)
    }

    fn within(&self, name: &str, namespace: &str) -> Value {
        json!({"name": name, "namespace": namespace, "labels": self.labels()})
    }

    /// The metadata of an object outside of namespaces.
    fn outside(&self, name: &str) -> Value {
        json!({"name": name, "labels": self.labels()})
    }
}

/// Everything, in order.
pub(crate) fn objects(options: &Options) -> Vec<Value> {
    let mut all = Vec::new();
    if options.create_namespace {
        all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace}}));
    }
    all.push(json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": options.own(&options.name()),
    }));
    all.extend(rbac::objects(options));
    all.extend(workload::objects(options));
    if options.webhooks {
        all.extend(webhooks::objects(options));
    }
    all
}

/// The same as text.
pub(crate) fn text(options: &Options) -> String {
    let documents: Vec<String> = objects(options).iter().map(yaml::document).collect();
    documents.join("---\n")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, parse};

    /// The options of a command line.
    pub(super) fn options(flags: &[&str]) -> Options {
        let args = ["pilotfish", "manifest"].iter().chain(flags);
        match parse(args.map(OsString::from)).unwrap().command {
            Command::Manifest(args) => Options::from(*args),
            other => panic!("{other:?}"),
        }
    }

    fn kinds(flags: &[&str]) -> Vec<String> {
        let all = objects(&options(flags));
        all.iter()
            .map(|object| object["kind"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn what_others_need_goes_first() {
        assert_eq!(
            kinds(&["--create-namespace", "--webhooks"]),
            [
                "Namespace",
                "ServiceAccount",
                "ClusterRole",
                "ClusterRoleBinding",
                "Role",
                "RoleBinding",
                "ConfigMap",
                "Service",
                "Deployment",
                "PodDisruptionBudget",
                "HorizontalPodAutoscaler",
                "ValidatingWebhookConfiguration",
                "MutatingWebhookConfiguration",
            ]
        );
        let plain = kinds(&[]);
        assert!(
            !plain
                .iter()
                .any(|kind| kind == "Namespace" || kind.ends_with("WebhookConfiguration"))
        );
    }

    #[test]
    fn a_revision_has_names_of_its_own() {
        for (revision, name, map) in [
            ("", "istiod", "istio"),
            ("canary", "istiod-canary", "istio-canary"),
        ] {
            let flags = ["--revision", revision];
            let given = if revision.is_empty() { &[][..] } else { &flags };
            for object in objects(&options(given)) {
                let expected = match object["kind"].as_str().unwrap() {
                    "ConfigMap" => map.to_owned(),
                    "ClusterRole" | "ClusterRoleBinding" => options(given).cluster_name(),
                    _ => name.to_owned(),
                };
                assert_eq!(object["metadata"]["name"], expected, "{object}");
            }
        }
        // What istiod's chart calls the revision of an installation without one.
        assert_eq!(options(&["--revision", "default"]), options(&[]));
    }

    #[test]
    fn names_that_kubernetes_refuses_are_refused_here() {
        for flags in [
            ["--namespace", "Istio"],
            ["--revision", "1.2"],
            ["--namespaced", "shop,-"],
            ["--tls-secret", ""],
            ["--replicas", "0"],
        ] {
            let args = ["pilotfish", "manifest"].iter().chain(&flags);
            assert!(parse(args.map(OsString::from)).is_err(), "{flags:?}");
        }
    }

    #[test]
    fn the_text_is_what_the_objects_say() {
        let all = options(&[
            "--create-namespace",
            "--webhooks",
            "--tls-secret",
            "istiod-tls",
        ]);
        let read: Vec<Value> = serde_saphyr::from_multiple(&text(&all)).unwrap();
        assert_eq!(read, objects(&all));
    }
}
