//! Endpoints of services.

use std::ops::Deref;
use std::sync::Arc;

use litemap::LiteMap;
use smallvec::SmallVec;

use crate::{Labels, Text};

/// A place.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locality {
    /// Region.
    pub region: Text,
    /// Zone.
    pub zone: Text,
    /// Subzone.
    pub subzone: Text,
}

impl Locality {
    /// From `region/zone/subzone`; what follows is ignored.
    pub fn parse(s: &str) -> Self {
        let mut parts = s.split('/').map(Text::from);
        Self {
            region: parts.next().unwrap_or_default(),
            zone: parts.next().unwrap_or_default(),
            subzone: parts.next().unwrap_or_default(),
        }
    }

    /// From the value of a label, which may not contain slashes and is then written with dots.
    pub fn from_label(s: &str) -> Self {
        if s.contains('/') {
            Self::parse(s)
        } else {
            Self::parse(&s.replace('.', "/"))
        }
    }
}

/// Health of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointHealth {
    /// Nobody says: endpoints of ServiceEntries and WorkloadEntries. Taken as healthy, but not written as such.
    Unknown,
    /// Ready.
    Healthy,
    /// Not ready.
    Unhealthy,
    /// Going away but still serving.
    Draining,
    /// Going away.
    Terminating,
}

/// One endpoint of one port of a service: who it is, and where it listens for that port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Who it is, kept once for all ports.
    backend: Arc<Backend>,
    /// Port it listens on; 0 for Unix sockets.
    pub port: u16,
}

impl Endpoint {
    /// A backend that serves on a port.
    pub fn new(backend: Arc<Backend>, port: u16) -> Self {
        Self { backend, port }
    }
}

impl Deref for Endpoint {
    type Target = Backend;

    fn deref(&self) -> &Backend {
        &self.backend
    }
}

/// A workload behind a service, whichever of its ports is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Addresses (IP, host name or `unix://path`), the main one first. None: it is reached through the gateway of its
    /// network only.
    pub addresses: Vec<Text>,
    /// Health.
    pub health: EndpointHealth,
    /// Place.
    pub locality: Locality,
    /// Network; empty: the default.
    pub network: Text,
    /// Cluster it runs in.
    pub cluster: Text,
    /// Weight, at least 1.
    pub weight: u32,
    /// It has a sidecar that takes mutual TLS.
    pub mutual_tls: bool,
    /// Labels of the workload.
    pub labels: Arc<Labels>,
    /// Name of the workload for telemetry.
    pub workload: Text,
    /// Namespace of the workload.
    pub namespace: Text,
    /// Node it runs on.
    pub node: Text,
    /// Host name in a headless service.
    pub hostname: Text,
    /// Subdomain (the headless service's name).
    pub subdomain: Text,
    /// SPIFFE identity; empty: unknown.
    pub identity: Text,
}

impl Backend {
    /// Keeps what another has as well only once.
    fn share(&mut self, other: &Self) {
        fn one<T: PartialEq + Clone>(mine: &mut T, other: &T) {
            if mine == other {
                mine.clone_from(other);
            }
        }
        one(&mut self.labels, &other.labels);
        one(&mut self.locality, &other.locality);
        one(&mut self.network, &other.network);
        one(&mut self.workload, &other.workload);
        one(&mut self.node, &other.node);
        one(&mut self.subdomain, &other.subdomain);
        one(&mut self.identity, &other.identity);
    }
}

/// Backends of a service one after the other. They differ in little but their address, and in labels by version: what is the
/// same as in one of those before is kept once.
#[derive(Debug, Default)]
pub(crate) struct Alike(SmallVec<[Arc<Backend>; VERSIONS]>);

/// How many backends with different labels are remembered.
const VERSIONS: usize = 4;

impl Alike {
    pub(crate) fn next(&mut self, mut backend: Backend) -> Arc<Backend> {
        for other in &self.0 {
            backend.share(other);
        }
        let backend = Arc::new(backend);
        let new = |other: &Arc<Backend>| !Arc::ptr_eq(&other.labels, &backend.labels);
        if self.0.iter().all(new) {
            if self.0.len() == VERSIONS {
                self.0.remove(0);
            }
            self.0.push(backend.clone());
        }
        backend
    }
}

/// Canonical name and revision of a workload, for telemetry.
pub fn canonical(backend: &Backend) -> (Text, Text) {
    canonical_of(&backend.labels, &backend.workload)
}

/// Canonical name and revision by labels. The name is the first of the labels `service.istio.io/canonical-name`,
/// `app.kubernetes.io/name` and `app`, else the name of the object; the revision the first of
/// `service.istio.io/canonical-revision`, `app.kubernetes.io/version` and `version`, and empty for `latest` or none.
pub fn canonical_of(labels: &Labels, name: &Text) -> (Text, Text) {
    let first = |keys: [&str; 3]| keys.iter().find_map(|key| labels.get(*key)).cloned();
    let labelled = first([
        "service.istio.io/canonical-name",
        "app.kubernetes.io/name",
        "app",
    ]);
    let revision = first([
        "service.istio.io/canonical-revision",
        "app.kubernetes.io/version",
        "version",
    ]);
    (
        labelled.unwrap_or_else(|| name.clone()),
        revision.filter(|r| &**r != "latest").unwrap_or_default(),
    )
}

/// Endpoints of a service by port name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEndpoints {
    /// Port name to endpoints in canonical order. Services have few ports, and there are many services.
    pub by_port: LiteMap<Text, Vec<Endpoint>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(version: &str) -> Backend {
        let labels = [(Text::from("version"), Text::from(version))];
        Backend {
            addresses: vec![Text::from("10.0.0.1")],
            health: EndpointHealth::Healthy,
            locality: Locality::parse("region/zone"),
            network: Text::default(),
            cluster: Text::default(),
            weight: 1,
            mutual_tls: false,
            labels: Arc::new(labels.into_iter().collect()),
            workload: Text::default(),
            namespace: Text::default(),
            node: Text::default(),
            hostname: Text::default(),
            subdomain: Text::default(),
            identity: Text::default(),
        }
    }

    #[test]
    fn versions_that_take_turns_share_their_labels() {
        let mut alike = Alike::default();
        let all: Vec<Arc<Backend>> = ["a", "b", "a", "b", "c", "d", "e", "a"]
            .into_iter()
            .map(|version| alike.next(backend(version)))
            .collect();
        let shared = |a: usize, b: usize| Arc::ptr_eq(&all[a].labels, &all[b].labels);
        assert!(shared(0, 2) && shared(1, 3));
        assert!(!shared(0, 1));
        // It was too long ago.
        assert!(!shared(0, 7));
        assert_eq!(all[0].labels, all[7].labels);
    }
}
