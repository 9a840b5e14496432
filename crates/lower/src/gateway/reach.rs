//! Which services a gateway may send anything to, where it is told of no others.

use std::collections::BTreeSet;

use pilotfish_config::networking::{Gateway, HttpRoute};
use pilotfish_mesh::{Reader, ServiceId, host};

use super::servers::selected;
use crate::{Client, ProxyKind, Text, chain, delegate, network, virtual_service};

/// Services by what leads to them.
#[derive(Debug, Default)]
pub struct Reached {
    hosts: BTreeSet<Text>,
    services: BTreeSet<ServiceId>,
}

impl Reached {
    /// Whether a service is among them.
    pub fn has(&self, service: &ServiceId) -> bool {
        self.hosts.contains(&service.host) || self.services.contains(service)
    }

    /// `host`, or `namespace/host`.
    fn add(&mut self, written: &str) {
        match written.split_once('/') {
            Some((namespace, host)) => {
                self.services.insert(ServiceId {
                    host: Text::from(host),
                    namespace: Text::from(namespace),
                });
            }
            None => {
                self.hosts.insert(Text::from(written));
            }
        }
    }
}

/// What a gateway reaches: the destinations of all VirtualServices that are bound to its Gateways, and the services that
/// the mesh names as providers. `None`: it is told of everything, as one between networks always is.
pub fn reached(reader: &Reader<'_>, client: &Client) -> Option<Reached> {
    if client.kind != ProxyKind::Router
        || !chain::feature(reader, "PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", false)
        || network::passes_on(reader, client)
    {
        return None;
    }
    let mut out = Reached::default();
    for provider in &reader.mesh().extension_providers {
        for service in provider.services() {
            out.add(service);
        }
    }
    let own_only = chain::feature(reader, "PILOT_SCOPE_GATEWAY_TO_NAMESPACE", false);
    let domain = &reader.settings().domain;
    for object in reader.gateways().iter() {
        if object
            .get::<Gateway>()
            .is_none_or(|g| !selected(reader, client, object, g))
        {
            continue;
        }
        let namespace = &object.key.namespace;
        let gateway = Text::from(format!("{namespace}/{}", object.key.name));
        for head in reader.gateway_virtual_service_heads(&gateway) {
            let Some((rules, vs)) = reader.virtual_service(head.key) else {
                continue;
            };
            for (http, near) in delegate::rules(reader, rules, vs) {
                if !own_only || may_come_from(&http, namespace) {
                    let to = virtual_service::destinations(&http);
                    out.hosts
                        .extend(to.map(|d| host::resolve(&d.host, &near, domain)));
                }
            }
            let tcp = vs.tcp.iter().flat_map(|t| &t.route);
            let tls = vs.tls.iter().flat_map(|t| &t.route);
            let to = tcp.chain(tls).filter_map(|r| r.destination.as_ref());
            let near = &rules.key.namespace;
            out.hosts
                .extend(to.map(|d| host::resolve(&d.host, near, domain)));
        }
    }
    Some(out)
}

/// Whether a rule is for requests from this namespace, perhaps among others.
fn may_come_from(http: &HttpRoute, namespace: &str) -> bool {
    let fits = |from: &str| from.is_empty() || from == namespace;
    http.r#match.is_empty() || http.r#match.iter().any(|m| fits(&m.source_namespace))
}
