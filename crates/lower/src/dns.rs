//! Names of services, for proxies that answer their application's DNS questions.

use std::collections::BTreeMap;

use pilotfish_ir::dns::Name;
use pilotfish_mesh::{EndpointHealth, Reader, Registry, Service, ServiceId};

use crate::scope::NameScope;
use crate::{ProxyKind, Text, chain, visibility};

/// The names of one service: its host, and those of its pods if it is headless.
pub fn names(reader: &Reader<'_>, scope: &NameScope, id: &ServiceId) -> Vec<Name> {
    let Some(service) = reader.service(id) else {
        return Vec::new();
    };
    // A gateway has no application that asks.
    if scope.client.kind == ProxyKind::Router {
        return Vec::new();
    }
    let mut addresses = declared(reader, service, scope);
    let mut out = Vec::new();
    // What stands for no address is an IPv4 address, which a proxy without IPv4 does not see.
    if addresses.is_empty() && service.is_headless() && scope.client.families.v4() {
        addresses = headless(reader, scope, service, &mut out);
    }
    if !addresses.is_empty() {
        let kubernetes = service.registry == Registry::Kubernetes;
        out.push(Name {
            host: id.host.clone(),
            addresses,
            registry: registry(service),
            short: if kubernetes {
                service.name.clone()
            } else {
                Text::default()
            },
            namespace: if kubernetes {
                id.namespace.clone()
            } else {
                Text::default()
            },
        });
    }
    out
}

fn registry(service: &Service) -> Text {
    Text::from(if service.registry == Registry::Kubernetes {
        "Kubernetes"
    } else {
        "External"
    })
}

/// Addresses of the service itself. Those a user wrote are given whatever their family; networks are no answer.
fn declared(reader: &Reader<'_>, service: &Service, scope: &NameScope) -> Vec<Text> {
    if service.registry == Registry::External && !service.addresses.is_empty() {
        return service
            .addresses
            .iter()
            .filter(|a| a.parse::<std::net::IpAddr>().is_ok())
            .cloned()
            .collect();
    }
    visibility::named_addresses(reader, service, &scope.client)
}

/// Addresses of the pods behind a headless service; `pods` gets the names of pods that have one.
fn headless(
    reader: &Reader<'_>,
    scope: &NameScope,
    service: &Service,
    pods: &mut Vec<Name>,
) -> Vec<Text> {
    let first = service
        .ports
        .first()
        .map(|p| p.name.clone())
        .unwrap_or_default();
    let endpoints = reader
        .endpoints(&service.id)
        .and_then(|e| e.by_port.get(&first))
        .map_or(&[][..], Vec::as_slice);
    let ready = |h| h == EndpointHealth::Healthy || service.publish_not_ready;
    let same = |a: &Text, b: &Text| a.is_empty() || b.is_empty() || a == b;
    let across_clusters = chain::feature(reader, "ENABLE_MULTICLUSTER_HEADLESS", true);
    let mut all = Vec::new();
    let (mut near, mut far): (BTreeMap<Text, Vec<Text>>, BTreeMap<Text, Vec<Text>>) =
        Default::default();
    for e in endpoints
        .iter()
        .filter(|e| ready(e.health) && same(&e.network, &scope.network))
    {
        let same_cluster = same(&e.cluster, &scope.cluster);
        if e.addresses
            .iter()
            .any(|a| a.parse::<std::net::IpAddr>().is_err())
        {
            continue;
        }
        if !e.subdomain.is_empty() && !e.hostname.is_empty() {
            let by_pod = if same_cluster { &mut near } else { &mut far };
            by_pod
                .entry(Text::from(format!("{}.{}", e.hostname, e.subdomain)))
                .or_default()
                .extend(e.addresses.iter().cloned());
        }
        if same_cluster || across_clusters {
            all.extend(e.addresses.iter().cloned());
        }
    }
    far.append(&mut near);
    let domain = service.id.host.split_once('.').map_or("", |(_, d)| d);
    pods.extend(far.into_iter().map(|(short, addresses)| Name {
        host: Text::from(format!("{short}.{domain}")),
        addresses,
        registry: registry(service),
        short,
        namespace: service.id.namespace.clone(),
    }));
    all
}
