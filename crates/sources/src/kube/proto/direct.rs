//! Objects of which there are many, from their message without a detour over JSON, which would take longer than all else.
//!
//! Only what is in order is read so. Of anything else, the parser of JSON has to say what is wrong with it.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use pilotfish_config::{Kind, Labels, Meta, Object, ObjectKey, OwnerRef, Spec, Text, core};
use prost::Message;

use super::super::kinds;

/// An object as `parse::object` would give it, trimmed; `None` if only that can tell.
pub(in super::super) fn object(kind: Kind, message: Bytes) -> Option<Object> {
    let (metadata, spec) = match kind {
        Kind::Pod => pod(super::Pod::decode(message).ok()?)?,
        Kind::EndpointSlice => slice(super::EndpointSlice::decode(message).ok()?)?,
        Kind::Service => service(super::Service::decode(message).ok()?)?,
        _ => return None,
    };
    Some(Object {
        key: key(kind, &metadata)?,
        meta: meta(kind, metadata),
        spec,
        origin: None,
    })
}

fn key(kind: Kind, metadata: &super::Meta) -> Option<ObjectKey> {
    let (namespace, name) = (metadata.namespace.as_str(), metadata.name.as_str());
    let fits = namespace.len() <= 63 && name.len() <= 253;
    let plain = fits && is_label(namespace) && name.split('.').all(is_label);
    plain.then(|| ObjectKey::new(kind, namespace, name))
}

fn is_label(text: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| plain(byte) || *byte == b'-')
        && bytes.first().is_some_and(plain)
        && bytes.last().is_some_and(plain)
}

fn meta(kind: Kind, metadata: super::Meta) -> Meta {
    let mut annotations = metadata.annotations;
    annotations.retain(|name, _| kinds::is_read(kind, name));
    let mut owners = metadata.owner_references.iter();
    let owner = owners.find(|owner| owner.controller == Some(true));
    Meta {
        labels: pairs(&metadata.labels),
        annotations: pairs(&annotations),
        created: metadata.creation_timestamp.as_ref().and_then(seconds),
        owner: owner.map(|owner| OwnerRef {
            kind: owner.kind.as_str().into(),
            name: owner.name.as_str().into(),
            api_version: owner.api_version.as_str().into(),
        }),
        ..Meta::default()
    }
}

fn pairs(map: &BTreeMap<String, String>) -> Labels {
    let pairs = map.iter();
    pairs
        .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
        .collect()
}

/// When it was; `None` if that is not set.
fn seconds(time: &super::Time) -> Option<i64> {
    let is_time = time.seconds != 0 && Timestamp::from_second(time.seconds).is_ok();
    is_time.then_some(time.seconds)
}

/// The value of this name; the first if nothing is set, as everywhere in the API.
macro_rules! named {
    ($text:expr, $type:ty, [$first:ident $(, $more:ident)*]) => {{
        let text: &str = $text;
        let mut all = [<$type>::$first $(, <$type>::$more)*].into_iter();
        if text.is_empty() {
            Some(<$type>::$first)
        } else {
            all.find(|value| value.as_str() == text)
        }
    }};
}

fn protocol(text: &str) -> Option<core::Protocol> {
    named!(text, core::Protocol, [Tcp, Udp, Sctp])
}

fn policy(text: &str) -> Option<core::TrafficPolicy> {
    named!(text, core::TrafficPolicy, [Cluster, Local])
}

/// What is set must say something.
fn said(text: Option<&String>) -> Option<&str> {
    match text {
        None => Some(""),
        Some(text) if text.is_empty() => None,
        Some(text) => Some(text),
    }
}

/// All of them, unless one is not in order.
fn all<T, U>(items: Vec<T>, read: impl Fn(T) -> Option<U>) -> Option<Vec<U>> {
    items
        .into_iter()
        .map(read)
        .collect::<Option<_>>()
        .map(exact)
}

/// Each of them as something else.
fn each<T, U>(items: Vec<T>, read: impl Fn(T) -> U) -> Vec<U> {
    exact(items.into_iter().map(read).collect())
}

/// The same without room for more, which reading a message leaves and objects keep as long as they live.
fn exact<T>(mut items: Vec<T>) -> Vec<T> {
    items.shrink_to_fit();
    items
}

fn pod(message: super::Pod) -> Option<(super::Meta, Spec)> {
    let metadata = message.metadata?;
    let (spec, status) = (message.spec?, message.status?);
    let phase = named!(
        &status.phase,
        core::PodPhase,
        [Unset, Pending, Running, Succeeded, Failed, Unknown]
    );
    let pod = core::Pod {
        node_name: spec.node_name.into(),
        service_account_name: spec.service_account_name.into(),
        hostname: spec.hostname.into(),
        subdomain: spec.subdomain.into(),
        host_network: spec.host_network,
        containers: all(spec.containers, container)?,
        init_containers: all(spec.init_containers, container)?,
        phase: phase?,
        pod_ip: status.pod_ip.into(),
        pod_ips: each(status.pod_ips, |one| core::PodIp { ip: one.ip.into() }),
        host_ip: status.host_ip.into(),
        conditions: each(status.conditions, |one| core::PodCondition {
            r#type: one.r#type,
            status: one.status,
        }),
        deleting: metadata
            .deletion_timestamp
            .as_ref()
            .and_then(seconds)
            .is_some(),
    };
    Some((metadata, pod.into()))
}

fn container(container: super::Container) -> Option<core::Container> {
    Some(core::Container {
        name: container.name,
        ports: all(container.ports, |port| {
            Some(core::ContainerPort {
                name: port.name,
                container_port: u16::try_from(port.container_port).ok()?,
                protocol: protocol(&port.protocol)?,
            })
        })?,
        restart_policy: container.restart_policy.unwrap_or_default(),
    })
}

fn slice(message: super::EndpointSlice) -> Option<(super::Meta, Spec)> {
    let slice = core::EndpointSlice {
        address_type: named!(&message.address_type, core::AddressType, [Ipv4, Ipv6, Fqdn])?,
        ports: all(message.ports, |port| {
            let number = port.port.map(u16::try_from);
            Some(core::EndpointPort {
                name: port.name.unwrap_or_default(),
                port: number.transpose().ok()?,
                protocol: protocol(said(port.protocol.as_ref())?)?,
                app_protocol: port.app_protocol,
            })
        })?,
        endpoints: each(message.endpoints, endpoint),
    };
    Some((message.metadata?, slice.into()))
}

fn endpoint(endpoint: super::Endpoint) -> core::Endpoint {
    let conditions = endpoint.conditions.unwrap_or_default();
    core::Endpoint {
        addresses: each(endpoint.addresses, Text::from),
        conditions: core::EndpointConditions {
            ready: conditions.ready,
            serving: conditions.serving,
            terminating: conditions.terminating,
        },
        hostname: endpoint.hostname.map(Text::from),
        node_name: endpoint.node_name.map(Text::from),
        zone: endpoint.zone.map(Text::from),
        target_ref: endpoint.target_ref.map(|target| core::TargetRef {
            kind: target.kind.into(),
            namespace: target.namespace.into(),
            name: target.name.into(),
            uid: target.uid.into(),
        }),
        hints: endpoint.hints.map(|hints| core::EndpointHints {
            for_zones: each(hints.for_zones, |zone| core::ForZone { name: zone.name }),
        }),
    }
}

fn service(message: super::Service) -> Option<(super::Meta, Spec)> {
    let spec = message.spec?;
    let balancer = message.status.and_then(|status| status.load_balancer);
    let ingress = balancer.unwrap_or_default().ingress;
    let service = core::Service {
        r#type: named!(
            &spec.r#type,
            core::ServiceType,
            [ClusterIp, NodePort, LoadBalancer, ExternalName]
        )?,
        cluster_ip: spec.cluster_ip,
        cluster_ips: exact(spec.cluster_ips),
        ip_families: all(spec.ip_families, |family| {
            named!(said(Some(&family))?, core::IpFamily, [V4, V6])
        })?,
        ip_family_policy: spec.ip_family_policy,
        external_name: spec.external_name,
        external_ips: exact(spec.external_ips),
        external_traffic_policy: policy(&spec.external_traffic_policy)?,
        internal_traffic_policy: policy(said(spec.internal_traffic_policy.as_ref())?)?,
        traffic_distribution: spec.traffic_distribution,
        publish_not_ready_addresses: spec.publish_not_ready_addresses,
        session_affinity: spec.session_affinity,
        selector: pairs(&spec.selector),
        ports: all(spec.ports, port)?,
        load_balancer_ip: spec.load_balancer_ip,
        load_balancer: core::LoadBalancerStatus {
            ingress: each(ingress, |one| core::LoadBalancerIngress {
                ip: one.ip,
                hostname: one.hostname,
            }),
        },
    };
    Some((message.metadata?, service.into()))
}

fn port(port: super::ServicePort) -> Option<core::ServicePort> {
    Some(core::ServicePort {
        name: port.name,
        port: u16::try_from(port.port).ok()?,
        target_port: port.target_port.map(|target| match target.r#type {
            1 => core::IntOrString::String(target.name),
            _ => core::IntOrString::Int(target.number),
        }),
        node_port: u16::try_from(port.node_port).ok()?,
        protocol: protocol(&port.protocol)?,
        app_protocol: port.app_protocol,
    })
}
