//! What the control plane may do: read what the source reads, and write what its writers write. Nothing else.

use std::collections::BTreeMap;

use pilotfish_sources::kube;
use serde_json::{Value, json};

use super::{Options, webhooks};

const GROUP: &str = "rbac.authorization.k8s.io";
const READ: &[&str] = &["get", "list", "watch"];
/// What server-side apply needs, and updates that must not overwrite others.
const WRITE: &[&str] = &["create", "get", "patch", "update"];
/// The ConfigMap that tells each namespace whom to trust.
const ROOT_CERTIFICATE: &str = "istio-ca-root-cert";

/// Where a right is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Of objects outside of namespaces.
    Cluster,
    /// Of objects in every namespace that is served.
    Namespaces,
    /// In the control plane's namespace only.
    Own,
}

/// Something that may be done.
#[derive(Debug, Clone)]
struct Right {
    scope: Scope,
    group: &'static str,
    resources: Vec<&'static str>,
    names: Vec<String>,
    verbs: Vec<&'static str>,
}

impl Right {
    fn new(
        scope: Scope,
        group: &'static str,
        resource: &'static str,
        verbs: &[&'static str],
    ) -> Self {
        Self {
            scope,
            group,
            resources: vec![resource],
            names: Vec::new(),
            verbs: verbs.to_vec(),
        }
    }

    /// Only for the objects of that name. Making one is included, as long as it is done by applying it.
    fn named(mut self, name: &str) -> Self {
        self.names.push(name.to_owned());
        self
    }

    fn rule(&self) -> Value {
        let mut rule = json!({
            "apiGroups": [self.group], "resources": self.resources, "verbs": self.verbs,
        });
        if !self.names.is_empty() {
            rule["resourceNames"] = json!(self.names);
        }
        rule
    }
}

/// Reading, as the source does it: one right for each group.
fn reading() -> Vec<Right> {
    let mut groups: BTreeMap<(bool, &'static str), Vec<&'static str>> = BTreeMap::new();
    for read in kube::reads() {
        let of_group = groups.entry((!read.namespaced, read.group)).or_default();
        of_group.push(read.resource);
    }
    groups
        .into_iter()
        .map(|((cluster, group), resources)| Right {
            scope: if cluster {
                Scope::Cluster
            } else {
                Scope::Namespaces
            },
            group,
            resources,
            names: Vec::new(),
            verbs: READ.to_vec(),
        })
        .collect()
}

/// Writing: addresses of ServiceEntries, workloads of virtual machines, whom to trust, findings, and who leads; and asking
/// who somebody is and what he may do.
fn writing() -> Vec<Right> {
    const NETWORKING: &str = "networking.istio.io";
    let all = Scope::Namespaces;
    let workloads = ["create", "delete", "patch", "update"];
    vec![
        Right::new(all, NETWORKING, "workloadentries", &workloads),
        Right::new(
            all,
            NETWORKING,
            "workloadentries/status",
            &["patch", "update"],
        ),
        Right::new(
            all,
            NETWORKING,
            "serviceentries/status",
            &["patch", "update"],
        ),
        Right::new(all, "", "configmaps", &["create", "patch", "update"]).named(ROOT_CERTIFICATE),
        Right::new(all, "", "events", &["create", "patch"]),
        Right::new(Scope::Own, "coordination.k8s.io", "leases", WRITE),
        Right::new(
            Scope::Cluster,
            "authentication.k8s.io",
            "tokenreviews",
            &["create"],
        ),
        Right::new(
            Scope::Cluster,
            "authorization.k8s.io",
            "subjectaccessreviews",
            &["create"],
        ),
    ]
}

/// The webhooks are told which authority their server's certificate comes from.
fn of_webhooks(options: &Options) -> Vec<Right> {
    const ADMISSION: &str = "admissionregistration.k8s.io";
    let verbs = ["get", "list", "patch", "watch"];
    [
        (
            "validatingwebhookconfigurations",
            webhooks::validator(options),
        ),
        ("mutatingwebhookconfigurations", webhooks::injector(options)),
    ]
    .into_iter()
    .map(|(resource, name)| Right::new(Scope::Cluster, ADMISSION, resource, &verbs).named(&name))
    .collect()
}

/// Roles and their bindings.
pub(super) fn objects(options: &Options) -> Vec<Value> {
    let mut rights = reading();
    rights.extend(writing());
    if options.webhooks {
        rights.extend(of_webhooks(options));
    }
    let rules = |wanted: &[Scope]| -> Vec<Value> {
        let some = rights.iter().filter(|right| wanted.contains(&right.scope));
        some.map(Right::rule).collect()
    };
    let everywhere = options.only.is_empty();
    let of_cluster: &[Scope] = if everywhere {
        &[Scope::Cluster, Scope::Namespaces]
    } else {
        &[Scope::Cluster]
    };
    let name = options.cluster_name();
    let mut all = vec![
        role("ClusterRole", &options.outside(&name), &rules(of_cluster)),
        binding(options, "ClusterRole", &options.outside(&name)),
    ];
    let mut namespaces = options.only.clone();
    if everywhere {
        namespaces.push(options.namespace.clone());
    }
    for namespace in &namespaces {
        let mut scopes = Vec::new();
        if !everywhere {
            scopes.push(Scope::Namespaces);
        }
        if *namespace == options.namespace {
            scopes.push(Scope::Own);
        }
        let metadata = options.within(&options.name(), namespace);
        all.push(role("Role", &metadata, &rules(&scopes)));
        all.push(binding(options, "Role", &metadata));
    }
    all
}

fn role(kind: &str, metadata: &Value, rules: &[Value]) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata, "rules": rules})
}

/// Gives a role of the same name to the control plane.
fn binding(options: &Options, kind: &str, metadata: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": format!("{kind}Binding"),
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": options.name(), "namespace": options.namespace}],
        "metadata": metadata,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pilotfish_config::Kind;

    use super::super::tests::options;
    use super::*;

    type Grant = (String, String, String, String);

    /// Everything that is granted: namespace (`*` for all), group, resource and verb; names behind the resource.
    fn granted(flags: &[&str]) -> BTreeSet<Grant> {
        let texts = |list: &Value| -> Vec<String> {
            let all = list.as_array().into_iter().flatten();
            all.map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let mut all = BTreeSet::new();
        for object in objects(&options(flags)) {
            let namespace = match object["kind"].as_str().unwrap() {
                "Role" => object["metadata"]["namespace"].as_str().unwrap(),
                "ClusterRole" => "*",
                _ => continue,
            };
            for rule in object["rules"].as_array().unwrap() {
                let names = texts(&rule["resourceNames"]).join(",");
                for (group, resource, verb) in texts(&rule["apiGroups"]).iter().flat_map(|g| {
                    texts(&rule["resources"]).into_iter().flat_map(move |r| {
                        texts(&rule["verbs"])
                            .into_iter()
                            .map(move |v| (g.clone(), r.clone(), v))
                    })
                }) {
                    let resource = if names.is_empty() {
                        resource
                    } else {
                        format!("{resource}={names}")
                    };
                    all.insert((namespace.to_owned(), group, resource, verb));
                }
            }
        }
        all
    }

    /// What is read, from the kinds themselves; the CRDs are besides.
    fn expected(namespaced_in: &[&str]) -> BTreeSet<Grant> {
        let unread = [Kind::Endpoints, Kind::ServiceAccount];
        let kinds = Kind::ALL.into_iter().filter(|kind| !unread.contains(kind));
        let mut all = BTreeSet::new();
        let mut read = |namespace: &str, group: &str, resource: &str| {
            for verb in READ {
                all.insert((
                    namespace.to_owned(),
                    group.to_owned(),
                    resource.to_owned(),
                    (*verb).to_owned(),
                ));
            }
        };
        read("*", "apiextensions.k8s.io", "customresourcedefinitions");
        for kind in kinds {
            let places: &[&str] = if kind.cluster_scoped() {
                &["*"]
            } else {
                namespaced_in
            };
            for namespace in places {
                read(namespace, kind.group(), kind.plural());
            }
        }
        all
    }

    fn reads(all: &BTreeSet<Grant>) -> BTreeSet<Grant> {
        let is_read = |(_, group, resource, verb): &&Grant| {
            READ.contains(&verb.as_str())
                && group != "coordination.k8s.io"
                && !resource.contains('=')
        };
        all.iter().filter(is_read).cloned().collect()
    }

    #[test]
    fn exactly_what_is_watched_may_be_read() {
        assert_eq!(reads(&granted(&[])), expected(&["*"]));
        let some = granted(&["--namespaced", "shop,bank"]);
        assert_eq!(reads(&some), expected(&["shop", "bank", "istio-system"]));
    }

    #[test]
    fn what_is_written_is_listed_here() {
        let all = granted(&[]);
        let writes: Vec<String> = all
            .difference(&reads(&all))
            .map(|(namespace, group, resource, verb)| {
                format!("{namespace} {group} {resource} {verb}")
            })
            .collect();
        assert_eq!(
            writes,
            [
                "*  configmaps=istio-ca-root-cert create",
                "*  configmaps=istio-ca-root-cert patch",
                "*  configmaps=istio-ca-root-cert update",
                "*  events create",
                "*  events patch",
                "* authentication.k8s.io tokenreviews create",
                "* authorization.k8s.io subjectaccessreviews create",
                "* networking.istio.io serviceentries/status patch",
                "* networking.istio.io serviceentries/status update",
                "* networking.istio.io workloadentries create",
                "* networking.istio.io workloadentries delete",
                "* networking.istio.io workloadentries patch",
                "* networking.istio.io workloadentries update",
                "* networking.istio.io workloadentries/status patch",
                "* networking.istio.io workloadentries/status update",
                "istio-system coordination.k8s.io leases create",
                "istio-system coordination.k8s.io leases get",
                "istio-system coordination.k8s.io leases patch",
                "istio-system coordination.k8s.io leases update",
            ]
        );
        // Of other namespaces nothing is written.
        let some = granted(&["--namespaced", "shop"]);
        for (namespace, group, resource, verb) in some.difference(&reads(&some)) {
            assert!(
                namespace != "*" || resource.ends_with("reviews"),
                "{namespace} {group} {resource} {verb}"
            );
        }
    }

    #[test]
    fn nothing_is_granted_by_wildcard() {
        for flags in [&[][..], &["--webhooks"], &["--namespaced", "shop"]] {
            for (_, group, resource, verb) in granted(flags) {
                assert!(
                    ![group, resource, verb]
                        .iter()
                        .any(|part| part.contains('*'))
                );
            }
        }
    }
}
