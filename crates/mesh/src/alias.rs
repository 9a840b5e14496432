//! Services that are other names of services: Kubernetes services of type ExternalName.

use std::collections::BTreeSet;

use imbl::OrdMap;
use pilotfish_config::Object;
use pilotfish_config::core::ServiceType;

use crate::index::{self, Index, Multi};
use crate::{ServiceId, Text};

/// The name that a service of type ExternalName stands for.
pub(crate) fn external_name(object: &Object) -> Option<Text> {
    let service = index::kube(object)?;
    (service.r#type == ServiceType::ExternalName && !service.external_name.is_empty())
        .then(|| Text::from(service.external_name.as_str()))
}

/// Which service stands for which name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aliases {
    target: OrdMap<ServiceId, Text>,
    named: Multi<Text, ServiceId>,
}

impl Aliases {
    /// Replaces what a service stands for.
    pub(crate) fn replace(&mut self, id: &ServiceId, target: Option<Text>) {
        if let Some(old) = self.target.remove(id) {
            self.named.remove(&old, id);
        }
        if let Some(target) = target {
            self.named.insert(target.clone(), id.clone());
            self.target.insert(id.clone(), target);
        }
    }

    /// The name that a host stands for, if it is an alias.
    fn target(&self, host: &Text) -> Option<&Text> {
        let first = ServiceId {
            host: host.clone(),
            namespace: Text::default(),
        };
        let (id, target) = self.target.range(first..).next()?;
        (id.host == *host).then_some(target)
    }

    /// The last name of the chain that begins with a service; `None` if it is no alias or the chain is a ring.
    pub(crate) fn resolve(&self, id: &ServiceId) -> Option<Text> {
        let mut at = self.target.get(id)?.clone();
        let mut seen = BTreeSet::from([id.host.clone()]);
        while let Some(next) = self.target(&at) {
            if !seen.insert(at) {
                return None;
            }
            at = next.clone();
        }
        (!seen.contains(&at)).then_some(at)
    }

    /// All services whose chain ends at a host, by namespace and host.
    pub(crate) fn of(&self, host: &Text) -> Vec<ServiceId> {
        if self.target(host).is_some() {
            return Vec::new();
        }
        let mut found: Vec<ServiceId> = self.above(host).into_iter().collect();
        found.retain(|id| self.resolve(id).as_ref() == Some(host));
        found.sort_by(|a, b| (&a.namespace, &a.host).cmp(&(&b.namespace, &b.host)));
        found
    }

    fn above(&self, host: &Text) -> BTreeSet<ServiceId> {
        let mut found: BTreeSet<ServiceId> = BTreeSet::new();
        let mut open = vec![host.clone()];
        while let Some(host) = open.pop() {
            for id in self.named.get(&host) {
                if found.insert(id.clone()) {
                    open.push(id.host.clone());
                }
            }
        }
        found
    }

    /// Services whose aliases, or what they are an alias of, may follow from a host.
    pub(crate) fn around(&self, host: &Text, index: &Index, out: &mut BTreeSet<ServiceId>) {
        if self.named.len(host) == 0 && self.target(host).is_none() {
            return;
        }
        let mut hosts = BTreeSet::new();
        let mut open = vec![host.clone()];
        while let Some(host) = open.pop() {
            if hosts.insert(host.clone()) {
                let first = ServiceId {
                    host: host.clone(),
                    namespace: Text::default(),
                };
                open.extend(
                    self.target
                        .range(first..)
                        .take_while(|(id, _)| id.host == host)
                        .map(|(_, target)| target.clone()),
                );
            }
        }
        hosts.extend(self.above(host).into_iter().map(|id| id.host));
        for host in hosts {
            out.extend(index.declared_of(&host).cloned());
        }
    }
}
