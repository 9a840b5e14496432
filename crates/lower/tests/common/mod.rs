//! What the tests of lowering share: a world of a few objects, and somebody who looks at it.
#![allow(
    dead_code,
    reason = "each test is a crate of its own and uses a part of this"
)]

use std::collections::BTreeSet;
use std::sync::Arc;

use pilotfish_config::{ObjectKey, Snapshot, parse};
use pilotfish_ir::tls::CertificateFiles;
use pilotfish_lower::{Client, ClusterScope, ListenerScope, RouteScope, Text, Who};
use pilotfish_mesh::{ServiceId, Settings, World};

/// The world of these objects, about which there must be nothing to say.
pub(crate) fn world(text: &str) -> World {
    world_with(text, Settings::default())
}

pub(crate) fn world_with(text: &str, settings: Settings) -> World {
    let parsed = parse::documents(text, "test.yaml");
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    let mut snapshot = Snapshot::default();
    for object in parsed.objects {
        let key = object.key.clone();
        snapshot.objects.insert(key, Arc::new(object));
    }
    let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
    World::empty(settings).update(&snapshot, &keys).world
}

/// Settings with these variables of the environment.
pub(crate) fn tuned(features: &[(&str, &str)]) -> Settings {
    let features = features
        .iter()
        .map(|(k, v)| (Text::from(*k), Text::from(*v)));
    Settings {
        features: features.collect(),
        ..Settings::default()
    }
}

pub(crate) fn who(namespace: &str, labels: &[(&str, &str)]) -> Who {
    Who {
        namespace: namespace.into(),
        cluster: "Kubernetes".into(),
        dns_domain: format!("{namespace}.svc.cluster.local").into(),
        labels: labels
            .iter()
            .map(|(k, v)| (Text::from(*k), Text::from(*v)))
            .collect(),
    }
}

/// A service of the cluster.
pub(crate) fn id(name: &str, namespace: &str) -> ServiceId {
    id_of_host(&format!("{name}.{namespace}.svc.cluster.local"), namespace)
}

pub(crate) fn id_of_host(host: &str, namespace: &str) -> ServiceId {
    ServiceId {
        host: host.into(),
        namespace: namespace.into(),
    }
}

/// An object of the networking API, with the line that ends a document.
pub(crate) fn object(kind: &str, name: &str, namespace: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.istio.io/v1, kind: {kind}, metadata: {{name: {name}, namespace: {namespace}}}, spec: {spec}}}\n---\n"
    )
}

pub(crate) fn virtual_service(name: &str, namespace: &str, spec: &str) -> String {
    object("VirtualService", name, namespace, spec)
}

/// A service whose pods are labelled with its name.
pub(crate) fn service(name: &str, namespace: &str, address: &str, ports: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}}}, spec: {{clusterIP: {address}, selector: {{app: {name}}}, ports: [{ports}]}}}}\n---\n"
    )
}

/// The scope of clusters, for somebody who says nothing else of itself.
pub(crate) fn calling(client: Client) -> ClusterScope {
    ClusterScope {
        client,
        files: CertificateFiles::default(),
        network: Text::default(),
    }
}

/// The same of routes.
pub(crate) fn routing(client: Client) -> RouteScope {
    RouteScope {
        client,
        instances: Vec::new(),
        http_proxy: false,
    }
}

/// The same of listeners.
pub(crate) fn listening(client: Client) -> ListenerScope {
    ListenerScope {
        client,
        tracing: None,
        own_address: None,
        instances: Vec::new(),
        http10: false,
        http_proxy: None,
        own_ports: BTreeSet::new(),
        files: CertificateFiles::default(),
    }
}
