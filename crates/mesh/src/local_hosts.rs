//! Hosts whose endpoints are for clients of their own cluster only.

use std::collections::BTreeMap;

use pilotfish_config::mesh::MeshConfig;

use crate::{Text, host};

/// Where the control plane is found unless the mesh says otherwise.
const DISCOVERY: &str = "istiod.istio-system.svc";

/// What users and we ourselves say of hosts, which may be wildcards: whether they are local.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalHosts(BTreeMap<Text, bool>);

impl LocalHosts {
    /// The hosts of a mesh. The system's own services are local unless somebody says of a host among them that it is not.
    pub(crate) fn of(mesh: &MeshConfig, domain: &str) -> Self {
        let discovery = mesh
            .default_config
            .as_ref()
            .map_or("", |c| &c.discovery_address);
        let discovery = match discovery.rsplit_once(':') {
            Some((name, _)) if !name.is_empty() => name,
            _ => DISCOVERY,
        };
        let discovery = if discovery.ends_with(domain) {
            discovery.to_owned()
        } else {
            format!("{discovery}.{domain}")
        };
        let mut ours = vec![
            format!("*.kube-system.svc.{domain}"),
            format!("kubernetes.default.svc.{domain}"),
            discovery,
        ];
        let mut all = BTreeMap::new();
        for setting in &mesh.service_settings {
            let local = setting.settings.as_ref().is_some_and(|s| s.cluster_local);
            for name in &setting.hosts {
                if !local {
                    ours.retain(|own| {
                        let within = |suffix| name.ends_with(suffix);
                        name != own && !own.strip_prefix('*').is_some_and(within)
                    });
                }
                all.insert(Text::from(name.as_str()), local);
            }
        }
        all.extend(ours.into_iter().map(|name| (Text::from(name), true)));
        Self(all)
    }

    /// Whether a host is local: what is said of it, else of the most specific wildcard that covers it.
    pub(crate) fn is_local(&self, name: &str) -> bool {
        if let Some(local) = self.0.get(name) {
            return *local;
        }
        let wildcards = self.0.iter().filter(|(k, _)| k.starts_with('*'));
        let covering = wildcards.filter(|(wildcard, _)| host::covers(wildcard, name));
        let best = covering.max_by_key(|(wildcard, _)| wildcard.len());
        best.is_some_and(|(_, local)| *local)
    }
}

#[cfg(test)]
mod tests {
    use pilotfish_config::parse;

    use super::*;

    fn hosts(mesh: &str) -> LocalHosts {
        let (mesh, found) = parse::mesh_config(mesh, "mesh.yaml");
        assert_eq!(found, []);
        LocalHosts::of(&mesh.unwrap(), "cluster.local")
    }

    #[test]
    fn the_systems_own_services_are_local() {
        let standard = hosts("{}");
        for (name, local) in [
            ("dns.kube-system.svc.cluster.local", true),
            ("kubernetes.default.svc.cluster.local", true),
            ("istiod.istio-system.svc.cluster.local", true),
            ("web.shop.svc.cluster.local", false),
            ("kube-system.svc.cluster.local", false),
        ] {
            assert_eq!(standard.is_local(name), local, "{name}");
        }
        let moved = hosts("defaultConfig: {discoveryAddress: 'pf.system.svc:15012'}");
        assert!(moved.is_local("pf.system.svc.cluster.local"));
        assert!(!moved.is_local("istiod.istio-system.svc.cluster.local"));
    }

    #[test]
    fn what_is_said_of_a_host_counts_most() {
        let said = hosts(
            "serviceSettings:\n- settings: {clusterLocal: true}\n  hosts: ['*.shop.svc.cluster.local']\n\
             - settings: {clusterLocal: false}\n  hosts: [web.shop.svc.cluster.local, dns.kube-system.svc.cluster.local]",
        );
        assert!(said.is_local("cart.shop.svc.cluster.local"));
        assert!(!said.is_local("web.shop.svc.cluster.local"));
        // Who says of one of them that it is not takes away what we say of all.
        assert!(!said.is_local("other.kube-system.svc.cluster.local"));
        assert!(said.is_local("kubernetes.default.svc.cluster.local"));
    }
}
