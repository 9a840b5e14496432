//! Mutual TLS that PeerAuthentications demand of workloads: which policy applies, and what it says about a port.

use std::collections::BTreeMap;

use pilotfish_config::security::{MutualTls, MutualTlsMode, PeerAuthentication};
use pilotfish_mesh::{Endpoint, Reader, Resolution, Service};

/// Label value of workloads that take no mutual TLS.
const TLS_MODE: &str = "security.istio.io/tlsMode";
const DISABLED: &str = "disabled";

/// What a workload takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Plain text.
    Plain,
    /// Mutual TLS and plain text.
    Permissive,
    /// Mutual TLS.
    Strict,
}

impl Mode {
    fn of(tls: Option<&MutualTls>) -> Option<Self> {
        match tls.map_or(MutualTlsMode::Unset, |t| t.mode) {
            MutualTlsMode::Unset => None,
            MutualTlsMode::Disable => Some(Self::Plain),
            MutualTlsMode::Permissive => Some(Self::Permissive),
            MutualTlsMode::Strict => Some(Self::Strict),
        }
    }
}

/// What a workload takes on its ports.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    whole: Mode,
    /// Ports that differ, or are written although they do not.
    pub(crate) ports: BTreeMap<u16, Mode>,
}

impl Demand {
    /// What it takes on one port.
    pub(crate) fn at(&self, port: u16) -> Mode {
        self.ports.get(&port).copied().unwrap_or(self.whole)
    }
}

/// Whether a workload has a label with a value.
type Labelled<'a> = &'a dyn Fn(&str, &str) -> bool;

/// The oldest policy of a namespace that applies: to all workloads if `labelled` is `None`, else to one with these labels.
fn policy<'w>(
    reader: &Reader<'w>,
    namespace: &str,
    labelled: Option<Labelled<'_>>,
) -> Option<&'w PeerAuthentication> {
    let all = reader.peer_authentications(namespace)?;
    let found = all.iter().find(|o| {
        let selector = o
            .get::<PeerAuthentication>()
            .and_then(|p| p.selector.as_ref())
            .filter(|s| !s.match_labels.is_empty());
        match (selector, labelled) {
            (None, None) => true,
            (Some(s), Some(labelled)) => s.match_labels.iter().all(|(k, v)| labelled(k, v)),
            _ => false,
        }
    })?;
    reader.uses(&found.key);
    found.get::<PeerAuthentication>()
}

/// What a workload takes: its own policy goes over that of its namespace, and that over the mesh's.
pub(crate) fn demand(reader: &Reader<'_>, namespace: &str, labelled: Labelled<'_>) -> Demand {
    let root = reader.mesh().root_namespace.as_str();
    let mut whole = Mode::Permissive;
    let mut ports = BTreeMap::new();
    let mesh = policy(reader, root, None);
    let of_namespace = (namespace != root)
        .then(|| policy(reader, namespace, None))
        .flatten();
    let own = (namespace != root)
        .then(|| policy(reader, namespace, Some(labelled)))
        .flatten();
    for p in [mesh, of_namespace, own].into_iter().flatten() {
        whole = Mode::of(p.mtls.as_ref()).unwrap_or(whole);
    }
    for (port, tls) in own.iter().flat_map(|p| &p.port_level_mtls) {
        if let Ok(port) = u16::try_from(*port) {
            ports.insert(port, Mode::of(Some(tls)).unwrap_or(whole));
        }
    }
    Demand { whole, ports }
}

/// Whether the policies let an endpoint take mutual TLS.
pub(crate) fn lets(reader: &Reader<'_>, e: &Endpoint) -> bool {
    let labelled = |k: &str, v: &str| e.labels.get(k).is_some_and(|have| **have == *v);
    demand(reader, &e.namespace, &labelled).at(e.port) != Mode::Plain
}

/// Whether clients of a service try mutual TLS at all: not where its namespace takes plain text; nor where the application
/// chooses the endpoint, unless every one of them takes mutual TLS.
pub(crate) fn tried(
    reader: &Reader<'_>,
    service: &Service,
    port_name: &str,
    chosen_by_application: bool,
) -> bool {
    if chosen_by_application || service.resolution == Resolution::Passthrough {
        let endpoints = reader
            .endpoints(&service.id)
            .and_then(|e| e.by_port.get(port_name))
            .map_or(&[][..], Vec::as_slice);
        let refuses = |e: &Endpoint| match e.labels.get(TLS_MODE).filter(|m| !m.is_empty()) {
            Some(mode) => &**mode == DISABLED,
            None => !e.mutual_tls,
        };
        if endpoints.is_empty() || endpoints.iter().any(refuses) {
            return false;
        }
    }
    let root = reader.mesh().root_namespace.as_str();
    let mode = |namespace: &str| policy(reader, namespace, None).map(|p| Mode::of(p.mtls.as_ref()));
    let mesh = mode(root).flatten();
    let own = match mode(&service.id.namespace) {
        Some(own) if *service.id.namespace != *root => own.or(mesh),
        _ => mesh,
    };
    own != Some(Mode::Plain)
}
