//! From the objects that declare services to services.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use pilotfish_config::core::{
    Protocol as Transport, Service as KubeService, ServiceType, TrafficPolicy, node_selector,
};
use pilotfish_config::mesh::{LabelSelector, Visibility};
use pilotfish_config::networking::{Location, Resolution as Wanted, ServiceEntry};
use pilotfish_config::{ClusterId, Diagnostic, Kind, Labels, Object};

use crate::service::{OnNodes, TrafficDistribution};
use crate::view::View;
use crate::{
    ExportTo, Port, Protocol, Registry, Resolution, Service, ServiceId, Text, alias, allocation,
    index,
};

/// Where problems go while a declaration is read.
pub(crate) type Report<'a> = &'a mut dyn FnMut(Diagnostic);

/// Reports nothing.
pub(crate) fn ignore(_: Diagnostic) {}

/// Which nodes lead to a gateway from other networks.
pub(crate) const NODE_SELECTOR: &str = "traffic.istio.io/nodeSelector";
const DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";

/// A port number as users write it; 0 and what is too large is no port.
pub(crate) fn port_number(number: u32) -> Option<u16> {
    u16::try_from(number).ok().filter(|n| *n > 0)
}

fn distribution(word: &str) -> Option<TrafficDistribution> {
    match word.to_ascii_lowercase().as_str() {
        "preferclose" | "prefersamezone" => Some(TrafficDistribution::PreferSameZone),
        "prefersamenode" => Some(TrafficDistribution::PreferSameNode),
        _ => None,
    }
}

/// The addresses a ServiceEntry writes that can be understood; a CIDR of one address is that address.
pub(crate) fn entry_addresses(entry: &ServiceEntry) -> Vec<Text> {
    entry
        .addresses
        .iter()
        .filter_map(|text| {
            if text.parse::<IpAddr>().is_ok() {
                return Some(Text::from(text.as_str()));
            }
            let net: IpNet = text.parse().ok()?;
            Some(if net.prefix_len() == net.max_prefix_len() {
                Text::from(net.addr().to_string())
            } else {
                Text::from(text.as_str())
            })
        })
        .collect()
}

/// When a Service was made. The one of the API server itself is older than anything a user applies.
fn age(object: &Object) -> i64 {
    let first = &*object.key.name == "kubernetes" && &*object.key.namespace == "default";
    object
        .meta
        .created
        .unwrap_or(if first { i64::MIN } else { 0 })
}

pub(crate) fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    let all = selector
        .match_labels
        .iter()
        .all(|(k, v)| labels.get(k.as_str()).is_some_and(|l| **l == **v));
    all && selector.match_expressions.iter().all(|rule| {
        let value = labels.get(rule.key.as_str());
        let listed = value.is_some_and(|v| rule.values.iter().any(|x| **x == **v));
        match rule.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    })
}

impl View<'_> {
    /// The service `id`: what its best declaration says, with the ports of others that agree with it.
    pub(crate) fn service(&self, id: &ServiceId, report: Report<'_>) -> Option<Service> {
        let mut declarers = self.declarers(id).into_iter();
        let mut service = self.declaration(declarers.next()?, id, report)?;
        for other in declarers {
            let Some(other) = self.declaration(other, id, &mut ignore) else {
                continue;
            };
            if other.registry == Registry::Kubernetes {
                self.join(&mut service, other);
                continue;
            }
            let joined = service.registry == other.registry
                && service.resolution == other.resolution
                && service.labels == other.labels
                && service.selector == other.selector
                && service.export_to == other.export_to;
            report(
                Diagnostic::warning(
                    "host-conflict",
                    format!("host {} is declared by {} as well", id.host, service.source),
                    if joined {
                        "its endpoints are added, and ports that the other does not have"
                    } else {
                        "its endpoints are added; everything else is ignored"
                    },
                )
                .of(other.source),
            );
            if joined {
                let fresh: Vec<Port> = other
                    .ports
                    .into_iter()
                    .filter(|port| service.port(port.number).is_none())
                    .collect();
                service.ports.extend(fresh);
            }
        }
        if service.cluster_addresses.is_none()
            && !service.source.cluster.is_config()
            && service.addresses.len() > 1
        {
            let own = self.cluster_name(service.source.cluster).clone();
            let of_own = (own, service.addresses.clone());
            service.cluster_addresses = Some(Box::new(BTreeMap::from([of_own])));
        }
        let target = self.aliases.resolve(id);
        service.alias_of = target.filter(|host| self.index.declared_of(host).next().is_some());
        service.aliases = self.aliases.of(&id.host);
        service.cluster_local = self.local_hosts.is_local(&id.host);
        Some(service)
    }

    /// Adds what the Service of another cluster says: where it is reached there, and who runs it. Everything else is as the
    /// first cluster says.
    fn join(&self, service: &mut Service, other: Service) {
        let own = self.cluster_name(service.source.cluster).clone();
        let addresses = service.cluster_addresses.get_or_insert_with(|| {
            let of_own = (own, service.addresses.clone());
            Box::new(BTreeMap::from([of_own]))
        });
        let cluster = self.cluster_name(other.source.cluster).clone();
        addresses.insert(cluster, other.addresses);
        for name in other.subject_alt_names {
            if !service.subject_alt_names.contains(&name) {
                service.subject_alt_names.push(name);
            }
        }
    }

    /// The objects that declare a service, the one that wins first: Kubernetes, then the config cluster, then older, then by
    /// name.
    pub(crate) fn declarers(&self, id: &ServiceId) -> Vec<&Object> {
        let mut objects: Vec<&Object> = self
            .index
            .declarers(id)
            .filter_map(|key| self.get(key))
            .map(|object| &**object)
            .collect();
        objects.sort_by_key(|object| {
            (
                object.kind() != Kind::Service,
                object.key.cluster,
                object.meta.created.unwrap_or(0),
                object.key.name.clone(),
            )
        });
        objects
    }

    fn declaration(&self, object: &Object, id: &ServiceId, report: Report<'_>) -> Option<Service> {
        if let Some(service) = index::kube(object) {
            return Some(self.kubernetes(object, service, id, report));
        }
        index::entry(object).map(|entry| self.external(object, entry, id, report))
    }

    fn export_to(&self, words: Option<ExportTo>, owner: &str) -> ExportTo {
        let default = || {
            let words = &self.snapshot.mesh.default_service_export_to;
            ExportTo::parse(words.iter().map(String::as_str), owner)
        };
        words.or_else(default).unwrap_or(ExportTo::Public)
    }

    fn distribution(&self, object: &Object, spec: Option<&str>) -> TrafficDistribution {
        let annotation = |object: &Object| {
            let word = object.meta.annotations.get(DISTRIBUTION)?;
            (!word.is_empty()).then(|| distribution(word).unwrap_or_default())
        };
        spec.and_then(distribution)
            .or_else(|| annotation(object))
            .or_else(|| annotation(self.namespace(object.key.cluster, &object.key.namespace)?))
            .unwrap_or_default()
    }

    /// A Service as its own cluster has it.
    pub(crate) fn kubernetes(
        &self,
        object: &Object,
        spec: &KubeService,
        id: &ServiceId,
        report: Report<'_>,
    ) -> Service {
        let annotation = |name: &str| object.meta.annotations.get(name).filter(|v| !v.is_empty());
        let owner = &object.key.namespace;
        let external_name = alias::external_name(object);
        let resolution = if spec.is_headless() {
            Resolution::Passthrough
        } else if external_name.is_some() {
            Resolution::Alias
        } else {
            Resolution::ClientSide
        };
        let mut ports = Vec::with_capacity(spec.ports.len());
        for (i, port) in spec.ports.iter().enumerate() {
            if port.port == 0 {
                report(
                    Diagnostic::error("bad-port", "0 is no port", "the port is left out")
                        .of(object.key.clone())
                        .from_origin(object.origin.clone())
                        .at(format!("spec.ports[{i}].port")),
                );
                continue;
            }
            ports.push(Port {
                name: Text::from(port.name.as_str()),
                number: port.port,
                protocol: match port.protocol {
                    Transport::Udp => Protocol::Udp,
                    _ => Protocol::of_port(port.port, &port.name, port.app_protocol.as_deref()),
                },
            });
        }
        let split = |text: &Text| {
            let words = text.split(',').map(str::trim).filter(|w| !w.is_empty());
            words.map(Text::from).collect::<Vec<Text>>()
        };
        let mut subject_alt_names = annotation("alpha.istio.io/canonical-serviceaccounts")
            .map(split)
            .unwrap_or_default();
        subject_alt_names.extend(
            annotation("alpha.istio.io/kubernetes-serviceaccounts")
                .map(split)
                .unwrap_or_default()
                .iter()
                .map(|account| self.identity(object.key.cluster, owner, account)),
        );
        let balancers =
            spec.load_balancer
                .ingress
                .iter()
                .map(|ingress| match ingress.ip.as_str() {
                    "" => ingress.hostname.as_str(),
                    ip => ip,
                });
        let balancers = balancers.filter(|_| spec.r#type == ServiceType::LoadBalancer);
        let nodes = object.meta.annotations.get(NODE_SELECTOR);
        let on_nodes = nodes
            .filter(|_| spec.r#type == ServiceType::NodePort)
            .map(|selector| {
                Box::new(OnNodes {
                    selector: node_selector(selector),
                    ports: spec.ports.iter().map(|p| (p.port, p.node_port)).collect(),
                })
            });
        Service {
            id: id.clone(),
            name: object.key.name.clone(),
            registry: Registry::Kubernetes,
            source: object.key.clone(),
            created: age(object),
            resolution,
            mesh_external: external_name.is_some(),
            addresses: if spec.is_headless() {
                Vec::new()
            } else {
                spec.virtual_ips().map(Text::from).collect()
            },
            cluster_addresses: None,
            auto_addresses: Vec::new(),
            ports,
            export_to: self.export_to(
                annotation("networking.istio.io/exportTo")
                    .and_then(|v| ExportTo::parse(v.split(','), owner)),
                owner,
            ),
            labels: object.meta.labels.clone(),
            selector: (!spec.selector.is_empty()).then(|| spec.selector.clone()),
            alias_of: None,
            aliases: Vec::new(),
            external_name,
            subject_alt_names,
            publish_not_ready: spec.publish_not_ready_addresses,
            client_ip_affinity: spec.session_affinity == "ClientIP",
            node_local: spec.internal_traffic_policy == TrafficPolicy::Local,
            cluster_local: false,
            traffic_distribution: self.distribution(object, spec.traffic_distribution.as_deref()),
            external_addresses: balancers
                .chain(spec.external_ips.iter().map(String::as_str))
                .filter(|a| !a.is_empty())
                .map(Text::from)
                .collect(),
            on_nodes,
            passthrough_ports: BTreeMap::new(),
        }
    }

    fn external(
        &self,
        object: &Object,
        entry: &ServiceEntry,
        id: &ServiceId,
        report: Report<'_>,
    ) -> Service {
        let owner = &object.key.namespace;
        let mut bad = |field: String, reason: String, effect: &str| {
            report(
                Diagnostic::error("bad-service-entry", reason, effect)
                    .of(object.key.clone())
                    .from_origin(object.origin.clone())
                    .at(field),
            );
        };
        let resolution = match entry.resolution {
            Wanted::None => Resolution::Passthrough,
            Wanted::Static => Resolution::ClientSide,
            Wanted::Dns => Resolution::Dns,
            Wanted::DnsRoundRobin => Resolution::DnsRoundRobin,
            Wanted::DynamicDns => Resolution::DynamicDns,
        };
        let mut ports: Vec<Port> = Vec::with_capacity(entry.ports.len());
        let mut passthrough_ports = BTreeMap::new();
        for (i, port) in entry.ports.iter().enumerate() {
            let Some(number) = port_number(port.number) else {
                let reason = format!("{} is no port", port.number);
                bad(
                    format!("spec.ports[{i}].number"),
                    reason,
                    "the port is left out",
                );
                continue;
            };
            if resolution == Resolution::Passthrough
                && let Some(target) = port_number(port.target_port)
            {
                passthrough_ports.insert(number, target);
            }
            ports.push(Port {
                name: Text::from(port.name.as_str()),
                number,
                protocol: Protocol::parse(&port.protocol),
            });
        }
        let addresses = entry_addresses(entry);
        if addresses.len() < entry.addresses.len() {
            let reason = "some of the addresses are neither IP nor CIDR".to_owned();
            bad("spec.addresses".to_owned(), reason, "they are left out");
        }
        let written = entry.export_to.iter().map(String::as_str);
        let export_to = self.export_to(ExportTo::parse(written, owner), owner);
        Service {
            id: id.clone(),
            name: id.host.clone(),
            registry: Registry::External,
            source: object.key.clone(),
            created: object.meta.created.unwrap_or(0),
            resolution,
            mesh_external: entry.location == Location::MeshExternal,
            auto_addresses: self.auto_addresses(object, entry, id),
            cluster_addresses: None,
            addresses,
            ports,
            export_to: self.capped(export_to, owner),
            labels: object.meta.labels.clone(),
            selector: entry.workload_selector.as_ref().map(|s| s.labels.clone()),
            alias_of: None,
            aliases: Vec::new(),
            external_name: None,
            subject_alt_names: entry
                .subject_alt_names
                .iter()
                .map(|name| Text::from(name.as_str()))
                .collect(),
            publish_not_ready: false,
            client_ip_affinity: false,
            node_local: false,
            cluster_local: false,
            traffic_distribution: self.distribution(object, None),
            external_addresses: Vec::new(),
            on_nodes: None,
            passthrough_ports,
        }
    }

    fn auto_addresses(&self, object: &Object, entry: &ServiceEntry, id: &ServiceId) -> Vec<Text> {
        if !allocation::wanted(object, entry, self.settings) {
            return Vec::new();
        }
        let assigned = allocation::assigned(entry, &id.host);
        if assigned.is_empty() {
            self.slots.addresses(&allocation::holder(object, id))
        } else {
            assigned
        }
    }

    /// Who may see a ServiceEntry once the mesh's limit on visibility is applied; it only ever narrows.
    fn capped(&self, export_to: ExportTo, owner: &str) -> ExportTo {
        let Some(limits) = self
            .snapshot
            .mesh
            .service_entry_visibility
            .as_ref()
            .filter(|limits| limits.apply_to_sidecars)
        else {
            return export_to;
        };
        let none = Labels::new();
        let labels = self
            .namespace(ClusterId::CONFIG, owner)
            .map_or(&none, |ns| &ns.meta.labels);
        let policy = limits.policies.iter().find(|policy| {
            policy.matching_rules.iter().all(|rule| {
                rule.namespace_selector
                    .as_ref()
                    .is_some_and(|s| matches(s, labels))
            })
        });
        match policy.map_or(limits.default_visibility, |p| p.visibility) {
            Visibility::Namespace if export_to.visible(owner, owner) => ExportTo::Private,
            Visibility::Namespace | Visibility::None => ExportTo::None,
            _ => export_to,
        }
    }
}
