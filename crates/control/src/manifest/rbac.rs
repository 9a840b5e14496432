//! What the control plane may do: read what the source reads, and write what its writers write. Nothing else.

use std::collections::BTreeMap;

use pilotfish_sources::kube;
use serde_json::{Value, json};

use super::{Options, webhooks};

const GROUP: &str = "rbac.authorization.k8s.io";
const READ: &[&str] = &["get", "list", "watch"];

/// Where a right is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    let mut groups: BTreeMap<(Scope, &'static str), Vec<&'static str>> = BTreeMap::new();
    for read in kube::reads() {
        let scope = match (read.own, read.namespaced) {
            (true, _) => Scope::Own,
            (false, true) => Scope::Namespaces,
            (false, false) => Scope::Cluster,
        };
        let of_group = groups.entry((scope, read.group)).or_default();
        of_group.push(read.resource);
    }
    groups
        .into_iter()
        .map(|((scope, group), resources)| Right {
            scope,
            group,
            resources,
            names: Vec::new(),
            verbs: READ.to_vec(),
        })
        .collect()
}

/// Writing, as the writers do it.
fn writing() -> Vec<Right> {
    let right = |rule: &pilotfish_writers::Rule| Right {
        scope: match rule.scope {
            pilotfish_writers::Scope::SystemNamespace => Scope::Own,
            pilotfish_writers::Scope::Cluster => Scope::Namespaces,
        },
        group: rule.group,
        resources: rule.resources.to_vec(),
        names: Vec::new(),
        verbs: rule.verbs.to_vec(),
    };
    pilotfish_writers::RULES.iter().map(right).collect()
}

/// Asking whose tokens are, which clients show over TLS.
fn reviewing() -> Right {
    let group = "authentication.k8s.io";
    Right::new(Scope::Cluster, group, "tokenreviews", &["create"])
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
    if options.tls_secret.is_some() {
        rights.push(reviewing());
    }
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
        // Those that name other clusters.
        read("istio-system", "", "secrets");
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
    fn exactly_what_writers_write_may_be_written() {
        let all = granted(&[]);
        let writes: BTreeSet<Grant> = all.difference(&reads(&all)).cloned().collect();
        let mut expected = BTreeSet::new();
        for rule in pilotfish_writers::RULES {
            let namespace = match rule.scope {
                pilotfish_writers::Scope::SystemNamespace => "istio-system",
                pilotfish_writers::Scope::Cluster => "*",
            };
            for (resource, verb) in rule
                .resources
                .iter()
                .flat_map(|r| rule.verbs.iter().map(move |v| (r, v)))
            {
                let parts = [namespace, rule.group, resource, verb].map(str::to_owned);
                expected.insert(parts.into());
            }
        }
        assert_eq!(writes, expected);
        // Of other namespaces nothing is written.
        let some = granted(&["--namespaced", "shop"]);
        for (namespace, group, resource, verb) in some.difference(&reads(&some)) {
            assert!(namespace != "*", "{namespace} {group} {resource} {verb}");
        }
    }

    #[test]
    fn tokens_may_be_reviewed_where_they_are_shown() {
        for some in [&[][..], &["--namespaced", "shop"]] {
            let with = [some, &["--tls-secret", "istiod-tls"]].concat();
            let (with, without) = (granted(&with), granted(some));
            let more: Vec<&Grant> = with.difference(&without).collect();
            let right = ["*", "authentication.k8s.io", "tokenreviews", "create"];
            assert_eq!(more, [&right.map(str::to_owned).into()]);
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
