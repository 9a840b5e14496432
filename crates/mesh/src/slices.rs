//! Endpoints from EndpointSlices, and from Endpoints where there are none.

use std::collections::BTreeSet;

use pilotfish_config::core::{
    AddressType, Endpoint as SliceEndpoint, EndpointConditions, EndpointPort, EndpointSlice,
    Endpoints, Pod, PodPhase, Service as KubeService, TargetRef,
};
use pilotfish_config::{ClusterId, Kind, Object, ObjectKey};

use crate::endpoint::Alike;
use crate::index::{self, Ref};
use crate::population::{Found, PortKey};
use crate::view::{self, View};
use crate::{Backend, Endpoint, EndpointHealth, Labels, Locality, Service, Settings, Text};

/// What the conditions of an endpoint mean. One that goes away is unhealthy, unless sessions may still end on it.
fn health(
    service: &Service,
    conditions: &EndpointConditions,
    settings: &Settings,
) -> EndpointHealth {
    if conditions.ready != Some(false) {
        return EndpointHealth::Healthy;
    }
    if service.has_sessions(settings)
        && conditions.serving != Some(false)
        && conditions.terminating != Some(false)
    {
        return EndpointHealth::Draining;
    }
    EndpointHealth::Unhealthy
}

/// The endpoints of an Endpoints object as if a slice had been mirrored from it.
fn mirrored(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let mut slices = Vec::new();
    for subset in &endpoints.subsets {
        let ready = subset.addresses.iter().map(|a| (a, true));
        let not_ready = subset.not_ready_addresses.iter().map(|a| (a, false));
        let endpoints = ready
            .chain(not_ready)
            .map(|(address, ready)| SliceEndpoint {
                addresses: vec![address.ip.clone()],
                conditions: EndpointConditions {
                    ready: Some(ready),
                    ..EndpointConditions::default()
                },
                hostname: address.hostname.clone(),
                node_name: address.node_name.clone(),
                target_ref: address.target_ref.clone(),
                ..SliceEndpoint::default()
            });
        slices.push(EndpointSlice {
            address_type: AddressType::default(),
            ports: subset.ports.clone(),
            endpoints: endpoints.collect(),
        });
    }
    slices
}

impl View<'_> {
    /// Endpoints of a Kubernetes service; `refs` learns whom they name.
    pub(crate) fn of_slices(
        &self,
        object: &Object,
        spec: &KubeService,
        service: &Service,
        found: &mut Vec<Found>,
        refs: &mut BTreeSet<Ref>,
    ) {
        let namespace = &object.key.namespace;
        let feeding: Vec<&Object> = self
            .index
            .feeding(namespace, &object.key.name)
            .filter(|key| key.cluster == object.key.cluster && key.namespace == *namespace)
            .filter_map(|key| self.get(key))
            .map(|object| &**object)
            .filter(|slice| index::fed(slice).as_ref() == Some(&object.key.name))
            .collect();
        let mut seen: BTreeSet<(Text, Text)> = BTreeSet::new();
        let mut sliced = false;
        for slice in feeding.iter().filter_map(|object| index::slice(object)) {
            sliced = true;
            self.of_slice(&object.key, slice, spec, service, &mut seen, found, refs);
        }
        if sliced {
            return;
        }
        for endpoints in feeding
            .iter()
            .filter_map(|object| object.get::<Endpoints>())
        {
            for slice in mirrored(endpoints) {
                self.of_slice(&object.key, &slice, spec, service, &mut seen, found, refs);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one loop, split for its length")]
    fn of_slice(
        &self,
        owner: &ObjectKey,
        slice: &EndpointSlice,
        spec: &KubeService,
        service: &Service,
        seen: &mut BTreeSet<(Text, Text)>,
        found: &mut Vec<Found>,
        refs: &mut BTreeSet<Ref>,
    ) {
        if slice.address_type == AddressType::Fqdn {
            return;
        }
        let (cluster, namespace) = (owner.cluster, &owner.namespace);
        let mut alike = Alike::default();
        for item in &slice.endpoints {
            for address in item.addresses.iter().filter(|a| !a.is_empty()) {
                let of_pod = item.target_ref.as_ref().filter(|r| r.kind == "Pod");
                let pod = self.slice_pod(cluster, namespace, address, of_pod, refs);
                if pod.is_none() && of_pod.is_some() {
                    continue;
                }
                let mut backend = match pod {
                    Some((object, pod)) => self.pod_backend(object, pod, address.clone()),
                    None => self.bare_backend(cluster, address),
                };
                backend.health = health(service, &item.conditions, self.settings);
                if let (true, Some(_), Some((_, pod))) = (self.settings.dual_stack, of_pod, pod)
                    && spec.cluster_ips.len() > 1
                    && pod.ips().nth(1).is_some()
                {
                    if slice.address_type == AddressType::Ipv6 {
                        continue;
                    }
                    backend.addresses = pod.ips().cloned().collect();
                }
                let backend = alike.next(backend);
                for EndpointPort { name, port, .. } in &slice.ports {
                    let name = Text::from(name.as_str());
                    if seen.insert((backend.addresses[0].clone(), name.clone())) {
                        found.push(Found {
                            port: PortKey::Name(name),
                            endpoint: Endpoint::new(backend.clone(), port.unwrap_or(0)),
                        });
                    }
                }
            }
        }
    }

    /// The pod an address of a slice belongs to: the one it names, else one of the namespace that has the address. Both are
    /// pods of the slice's own cluster.
    fn slice_pod(
        &self,
        cluster: ClusterId,
        namespace: &Text,
        address: &str,
        named: Option<&TargetRef>,
        refs: &mut BTreeSet<Ref>,
    ) -> Option<(&Object, &Pod)> {
        if let Some(named) = named {
            let namespace = match named.namespace.as_str() {
                "" => namespace,
                _ => &named.namespace,
            };
            let name = named.name.clone();
            let key = ObjectKey::new(Kind::Pod, namespace.clone(), name).of(cluster);
            let object = self.get(&key);
            // The key of the object is there already.
            let key = object.map_or(&key, |object| &object.key);
            refs.insert(Ref::Pod(key.namespace.clone(), key.name.clone()));
            let object = object?;
            let pod = object.get::<Pod>()?;
            let failed = pod.phase == PodPhase::Failed;
            return (!failed).then_some((&**object, pod));
        }
        self.at(address)
            .filter(|object| object.key.cluster == cluster && object.key.namespace == *namespace)
            .find_map(|object| {
                let pod = object.get::<Pod>()?;
                view::in_service(pod).then_some((&**object, pod))
            })
    }

    /// An address of which nothing else is known.
    fn bare_backend(&self, cluster: ClusterId, address: &str) -> Backend {
        let network = self.network(cluster, &Labels::new(), address);
        let cluster = self.cluster_name(cluster);
        Backend {
            addresses: vec![Text::from(address)],
            health: EndpointHealth::Healthy,
            locality: Locality::default(),
            labels: view::augment(
                &Labels::new(),
                cluster,
                &Locality::default(),
                &Text::default(),
                &network,
            ),
            network,
            cluster: cluster.clone(),
            weight: 1,
            mutual_tls: false,
            workload: Text::default(),
            namespace: Text::default(),
            node: Text::default(),
            hostname: Text::default(),
            subdomain: Text::default(),
            identity: Text::default(),
        }
    }
}
