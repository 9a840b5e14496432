//! What writing needs to be allowed, for whoever writes the roles of an installation.

/// Where a rule is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In the namespace of the control plane.
    SystemNamespace,
    /// In all namespaces.
    Cluster,
}

/// What is to be allowed, as in a Role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Where.
    pub scope: Scope,
    /// The API group.
    pub group: &'static str,
    /// Resources and subresources.
    pub resources: &'static [&'static str],
    /// What is done with them.
    pub verbs: &'static [&'static str],
}

/// Everything that is written. Whoever may not simply does not write that part, and says so.
pub const RULES: &[Rule] = &[
    Rule {
        scope: Scope::SystemNamespace,
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "create", "update"],
    },
    Rule {
        scope: Scope::Cluster,
        group: "networking.istio.io",
        resources: &[
            "virtualservices/status",
            "destinationrules/status",
            "gateways/status",
            "serviceentries/status",
            "sidecars/status",
            "workloadentries/status",
            "workloadgroups/status",
            "envoyfilters/status",
            "proxyconfigs/status",
        ],
        verbs: &["patch"],
    },
    // Entries of workloads that register themselves.
    Rule {
        scope: Scope::Cluster,
        group: "networking.istio.io",
        resources: &["workloadentries"],
        verbs: &["create", "patch", "delete"],
    },
    Rule {
        scope: Scope::Cluster,
        group: "security.istio.io",
        resources: &[
            "peerauthentications/status",
            "requestauthentications/status",
            "authorizationpolicies/status",
        ],
        verbs: &["patch"],
    },
    Rule {
        scope: Scope::Cluster,
        group: "telemetry.istio.io",
        resources: &["telemetries/status"],
        verbs: &["patch"],
    },
    Rule {
        scope: Scope::Cluster,
        group: "extensions.istio.io",
        resources: &["wasmplugins/status", "trafficextensions/status"],
        verbs: &["patch"],
    },
    Rule {
        scope: Scope::Cluster,
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create"],
    },
];

#[cfg(test)]
mod tests {
    use pilotfish_config::Kind;

    use super::*;

    #[test]
    fn the_status_of_every_kind_of_istio_may_be_written() {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_istio()) {
            let resource = format!("{}/status", kind.plural());
            let rule = RULES.iter().find(|rule| rule.group == kind.group());
            assert!(
                rule.is_some_and(|rule| rule.resources.contains(&resource.as_str())),
                "{resource}"
            );
        }
    }
}
