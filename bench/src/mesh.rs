//! The mesh that is measured: ServiceEntries, VirtualServices and DestinationRules of a stated size, as files.
//!
//! Pure: the same size gives the same text. Service 0 is the one that changes; its three objects are files of their own, so
//! that a change is one small file, as it would be with a file per object. The rest is written in files of some hundred
//! services, because reading files is not what is measured.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use serde::Serialize;

/// Every how many services there are a VirtualService and a DestinationRule with two subsets.
pub const RULED: usize = 5;
/// Services in one file.
const PER_FILE: usize = 250;

const PROBE_SERVICE: &str = "probe-service.yaml";
const PROBE_ROUTE: &str = "probe-route.yaml";
const PROBE_RULE: &str = "probe-rule.yaml";
const SIDECAR: &str = "sidecar.yaml";

/// How large the mesh is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Services, each with two ports.
    pub services: usize,
    /// Endpoints of each service.
    pub endpoints: usize,
    /// Namespaces that services, and proxies, are spread over.
    pub namespaces: usize,
}

/// What is done to a file of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The file with this name says this now.
    Write(String, String),
    /// The file with this name, which said this, is gone.
    Remove(String, String),
}

/// A change that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The weights of a VirtualService.
    Weight,
    /// An endpoint of a service has another address.
    Endpoint,
    /// A service more.
    ServiceAdded,
    /// The services that were added go again.
    ServiceDeleted,
    /// The connection pool of a DestinationRule.
    Rule,
    /// One namespace sees only itself from now on.
    Sidecar,
}

impl Change {
    /// All, in the order in which they are measured.
    pub const ALL: [Self; 6] = [
        Self::Weight,
        Self::Endpoint,
        Self::ServiceAdded,
        Self::ServiceDeleted,
        Self::Rule,
        Self::Sidecar,
    ];

    /// What a report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Endpoint => "endpoint",
            Self::ServiceAdded => "service added",
            Self::ServiceDeleted => "service deleted",
            Self::Rule => "DestinationRule",
            Self::Sidecar => "Sidecar added",
        }
    }

    /// Whether it can be made again and mean something again.
    pub fn repeats(self) -> bool {
        self != Self::Sidecar
    }

    /// Whether proxies of a namespace feel it.
    pub fn reaches(self, namespace: usize) -> bool {
        self != Self::Sidecar || namespace == 0
    }

    /// The edit of the `round`th time, counted from 0.
    pub fn edit(self, size: &Size, round: usize) -> Edit {
        match self {
            Self::Weight => Edit::Write(PROBE_ROUTE.into(), size.route(0, 10 + round % 80)),
            Self::Endpoint => Edit::Write(
                PROBE_SERVICE.into(),
                size.service(0, Some(Ipv4Addr::from(0xac10_0001 + round as u32))),
            ),
            Self::ServiceAdded => {
                Edit::Write(extra(round), size.service(size.services + round, None))
            }
            Self::ServiceDeleted => {
                Edit::Remove(extra(round), size.service(size.services + round, None))
            }
            Self::Rule => Edit::Write(PROBE_RULE.into(), size.rule(0, 101 + round)),
            Self::Sidecar => Edit::Write(SIDECAR.into(), sidecar(0)),
        }
    }
}

fn extra(round: usize) -> String {
    format!("extra-{round}.yaml")
}

/// The name of a namespace.
pub fn namespace(index: usize) -> String {
    format!("team-{index}")
}

impl Size {
    fn namespace_of(&self, service: usize) -> String {
        namespace(service % self.namespaces.max(1))
    }

    fn host(&self, service: usize) -> String {
        format!(
            "service-{service}.{}.svc.cluster.local",
            self.namespace_of(service)
        )
    }

    /// Name and text of every file, before anything changed.
    pub fn files(&self) -> Vec<(String, String)> {
        let mut files = vec![
            (PROBE_SERVICE.into(), self.service(0, None)),
            (PROBE_ROUTE.into(), self.route(0, 90)),
            (PROBE_RULE.into(), self.rule(0, 100)),
        ];
        let others: Vec<usize> = (1..self.services).collect();
        for (number, part) in others.chunks(PER_FILE).enumerate() {
            let mut text = String::new();
            for &service in part {
                text += &self.service(service, None);
                if service % RULED == 0 {
                    text += &self.route(service, 90);
                    text += &self.rule(service, 100);
                }
            }
            files.push((format!("services-{number:04}.yaml"), text));
        }
        files
    }

    /// A service of two ports. Its endpoints take turns in version and zone; `another` is one more.
    fn service(&self, service: usize, another: Option<Ipv4Addr>) -> String {
        let first = 0x0a00_0000 + service * self.endpoints;
        let own = (0..self.endpoints).map(|k| Ipv4Addr::from((first + k) as u32));
        let mut text = format!(
            "---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: service-{service}, namespace: {namespace}}}
spec:
  hosts: [{host}]
  addresses: [{address}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {{number: 80, name: http, protocol: HTTP, targetPort: 8080}}
  - {{number: 9000, name: grpc, protocol: GRPC}}
  endpoints:
",
            namespace = self.namespace_of(service),
            host = self.host(service),
            address = Ipv4Addr::from(0x0a80_0000 + service as u32),
        );
        for (k, address) in own.chain(another).enumerate() {
            let (version, zone) = (1 + k % 2, k % 3);
            let _ = writeln!(
                text,
                "  - {{address: {address}, locality: west/zone-{zone}, labels: {{version: v{version}}}}}"
            );
        }
        text
    }

    /// A canary by header, and weights for everybody else.
    fn route(&self, service: usize, weight: usize) -> String {
        format!(
            "---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: service-{service}, namespace: {namespace}}}
spec:
  hosts: [{host}]
  http:
  - match:
    - headers: {{x-tester: {{exact: \"yes\"}}}}
    route:
    - destination: {{host: {host}, subset: v2}}
  - timeout: 10s
    retries: {{attempts: 2, perTryTimeout: 3s}}
    route:
    - {{destination: {{host: {host}, subset: v1}}, weight: {weight}}}
    - {{destination: {{host: {host}, subset: v2}}, weight: {rest}}}
",
            namespace = self.namespace_of(service),
            host = self.host(service),
            rest = 100 - weight,
        )
    }

    fn rule(&self, service: usize, connections: usize) -> String {
        format!(
            "---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: service-{service}, namespace: {namespace}}}
spec:
  host: {host}
  trafficPolicy:
    connectionPool: {{tcp: {{maxConnections: {connections}}}}}
    outlierDetection: {{consecutive5xxErrors: 5, interval: 10s}}
  subsets:
  - {{name: v1, labels: {{version: v1}}}}
  - {{name: v2, labels: {{version: v2}}}}
",
            namespace = self.namespace_of(service),
            host = self.host(service),
        )
    }
}

fn sidecar(index: usize) -> String {
    format!(
        "---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: {}}}
spec:
  egress:
  - hosts: [\"./*\"]
",
        namespace(index)
    )
}

/// Writes the mesh into a directory.
pub fn write(size: &Size, directory: &Path) -> std::io::Result<()> {
    for (name, text) in size.files() {
        std::fs::write(directory.join(name), text)?;
    }
    Ok(())
}

/// Applies an edit as careful tools do: a reader sees the old file or the new one, never half of it.
pub fn apply(edit: &Edit, directory: &Path) -> std::io::Result<()> {
    match edit {
        Edit::Write(name, text) => {
            let hidden = directory.join(format!(".{name}.new"));
            std::fs::write(&hidden, text)?;
            std::fs::rename(hidden, directory.join(name))
        }
        Edit::Remove(name, _) => std::fs::remove_file(directory.join(name)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pilotfish_config::{Kind, parse};

    use super::*;

    const SIZE: Size = Size {
        services: 600,
        endpoints: 3,
        namespaces: 7,
    };

    fn parsed(name: &str, text: &str) -> Vec<pilotfish_config::Object> {
        let parsed = parse::documents(text, name);
        assert!(parsed.diagnostics.is_empty(), "{:#?}", parsed.diagnostics);
        parsed.objects
    }

    #[test]
    fn a_mesh_is_what_was_asked_for_and_nothing_is_wrong_with_it() {
        let files = SIZE.files();
        assert_eq!(files, SIZE.files());
        let objects: Vec<_> = files
            .iter()
            .flat_map(|(name, text)| parsed(name, text))
            .collect();
        let count = |kind| objects.iter().filter(|o| o.key.kind == kind).count();
        assert_eq!(count(Kind::ServiceEntry), 600);
        assert_eq!(count(Kind::VirtualService), 120);
        assert_eq!(count(Kind::DestinationRule), 120);
        let namespaces: BTreeSet<_> = objects.iter().map(|o| &o.key.namespace).collect();
        assert_eq!(namespaces.len(), 7);
        let keys: BTreeSet<_> = objects.iter().map(|o| &o.key).collect();
        assert_eq!(keys.len(), objects.len());
    }

    #[test]
    fn every_change_of_every_round_says_something_new() {
        for change in Change::ALL {
            let mut seen: BTreeSet<String> =
                SIZE.files().into_iter().map(|(_, text)| text).collect();
            for round in 0..if change.repeats() { 20 } else { 1 } {
                match change.edit(&SIZE, round) {
                    Edit::Write(name, text) => {
                        assert_eq!(parsed(&name, &text).len(), 1, "{change:?}");
                        assert!(seen.insert(text), "{change:?} in round {round}");
                    }
                    Edit::Remove(name, text) => {
                        let added = Change::ServiceAdded.edit(&SIZE, round);
                        assert_eq!(added, Edit::Write(name, text));
                    }
                }
            }
        }
    }

    #[test]
    fn an_edit_leaves_one_file_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let files = std::fs::read_dir(dir.path()).unwrap();
            files.map(|f| f.unwrap().file_name()).collect::<Vec<_>>()
        };
        apply(&Change::ServiceAdded.edit(&SIZE, 0), dir.path()).unwrap();
        assert_eq!(names(), ["extra-0.yaml"]);
        apply(&Change::ServiceDeleted.edit(&SIZE, 0), dir.path()).unwrap();
        assert!(names().is_empty());
    }
}
