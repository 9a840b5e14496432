//! Problems that show only when objects are seen together.

use std::collections::{BTreeMap, BTreeSet};

use pilotfish_config::networking::{Destination, DestinationRule, VirtualService};
use pilotfish_config::{Diagnostic, Kind, Object, ObjectKey};

use crate::{Registry, Resolution, ServiceId, Text, World, host, index, rules};

/// Kinds that are read and kept but change nothing a proxy is given.
const UNTRANSLATED: [Kind; 8] = [
    Kind::WorkloadGroup,
    Kind::EnvoyFilter,
    Kind::ProxyConfig,
    Kind::RequestAuthentication,
    Kind::AuthorizationPolicy,
    Kind::Telemetry,
    Kind::WasmPlugin,
    Kind::TrafficExtension,
];

/// Everything that is wrong, sorted, each once.
pub(crate) fn all(world: &World) -> Vec<Diagnostic> {
    let mut check = Check {
        world,
        found: BTreeSet::new(),
    };
    check.services();
    check.selectors();
    check.slices();
    for (object, spec) in world.snapshot.typed::<VirtualService>() {
        check.virtual_service(object, spec);
    }
    for (object, spec) in world.snapshot.typed::<DestinationRule>() {
        check.destination_rule(object, spec);
    }
    for kind in UNTRANSLATED {
        for object in world.snapshot.list(kind) {
            check.say(
                object,
                "",
                Diagnostic::warning(
                    "not-translated",
                    format!("kind {kind} is not translated yet"),
                    "it has no effect",
                ),
            );
        }
    }
    check.found.into_iter().collect()
}

struct Check<'a> {
    world: &'a World,
    found: BTreeSet<Diagnostic>,
}

impl<'a> Check<'a> {
    fn say(&mut self, object: &Object, field: impl Into<String>, diagnostic: Diagnostic) {
        self.found.insert(
            diagnostic
                .of(object.key.clone())
                .at(field)
                .from_origin(object.origin.clone()),
        );
    }

    fn origin_of(&self, diagnostic: Diagnostic) -> Diagnostic {
        let object = diagnostic
            .object
            .as_ref()
            .and_then(|key| self.world.snapshot.get(key));
        let origin = object.and_then(|object| object.origin.clone());
        diagnostic.from_origin(origin)
    }

    fn services(&mut self) {
        let world = self.world;
        let mut owners: BTreeMap<&Text, &ObjectKey> = BTreeMap::new();
        for service in world.ordered.iter() {
            let mut reported = Vec::new();
            world.view().service(&service.id, &mut |d| reported.push(d));
            for diagnostic in reported {
                let diagnostic = self.origin_of(diagnostic);
                self.found.insert(diagnostic);
            }
            if service.resolution == Resolution::Alias
                && world.aliases.resolve(&service.id).is_none()
            {
                self.of(
                    &service.source,
                    "spec.externalName",
                    Diagnostic::warning(
                        "alias-ring",
                        "external names lead back to this service",
                        "the name resolves to nothing",
                    ),
                );
            }
            if service.registry != Registry::Kubernetes {
                continue;
            }
            for address in &service.addresses {
                if let Some(first) = owners.insert(address, &service.source) {
                    owners.insert(address, first);
                    self.of(
                        &service.source,
                        "spec.clusterIP",
                        Diagnostic::warning(
                            "shared-cluster-ip",
                            format!("{first} has address {address} as well"),
                            "connections to the address go to the older service",
                        ),
                    );
                }
            }
        }
    }

    fn of(&mut self, key: &ObjectKey, field: &str, diagnostic: Diagnostic) {
        if let Some(object) = self.world.snapshot.get(key).cloned() {
            self.say(&object, field, diagnostic);
        }
    }

    fn selectors(&mut self) {
        let world = self.world;
        let view = world.view();
        for kind in [Kind::Service, Kind::ServiceEntry] {
            for object in world.snapshot.list(kind) {
                let Some(selector) = index::selector(object) else {
                    continue;
                };
                let found = view.selected(
                    &object.key.namespace,
                    selector,
                    &[Kind::Pod, Kind::WorkloadEntry],
                );
                let any = found.into_iter().any(|workload| {
                    view.workload_facts(workload)
                        .is_some_and(|(labels, ..)| index::selects(selector, &labels))
                });
                if !any {
                    let field = match kind {
                        Kind::Service => "spec.selector",
                        _ => "spec.workloadSelector",
                    };
                    let diagnostic = Diagnostic::info(
                        "selects-nothing",
                        "no workload of the namespace has these labels",
                        "it has no endpoints of its own choice",
                    );
                    self.say(object, field, diagnostic);
                }
            }
        }
    }

    fn slices(&mut self) {
        let world = self.world;
        for object in world.snapshot.list(Kind::EndpointSlice) {
            let known = index::fed(object).is_some_and(|name| {
                let id = index::kube_id(&object.key.namespace, &name, &world.settings);
                world.services.contains_key(&id)
            });
            if !known {
                let diagnostic = Diagnostic::warning(
                    "unknown-service",
                    format!(
                        "label {} names no service of the namespace",
                        index::SERVICE_NAME
                    ),
                    "its endpoints are not used",
                );
                self.say(object, "metadata.labels", diagnostic);
            }
        }
    }

    /// Services that a host means, or that a wildcard covers it.
    fn meant(&self, name: &Text) -> Vec<&'a ServiceId> {
        host::candidates(name)
            .iter()
            .filter_map(|candidate| self.world.by_host.get(candidate))
            .flat_map(|ids| ids.iter())
            .collect()
    }

    fn virtual_service(&mut self, object: &Object, spec: &VirtualService) {
        let namespace = &object.key.namespace;
        for (i, gateway) in spec
            .gateways
            .iter()
            .enumerate()
            .filter(|(_, g)| *g != "mesh")
        {
            let reference = rules::gateway_ref(gateway, namespace);
            let known = reference.split_once('/').is_some_and(|(namespace, name)| {
                let key = ObjectKey::new(Kind::Gateway, namespace, name);
                self.world.snapshot.get(&key).is_some()
            });
            if !known {
                let diagnostic = Diagnostic::warning(
                    "unknown-gateway",
                    format!("there is no Gateway {reference}"),
                    "no proxy serves these routes for it",
                );
                self.say(object, format!("spec.gateways[{i}]"), diagnostic);
            }
        }
        for (i, route) in spec.http.iter().enumerate() {
            let at = format!("spec.http[{i}]");
            for (j, target) in route.route.iter().enumerate() {
                self.destination(
                    object,
                    &format!("{at}.route[{j}].destination"),
                    target.destination.as_ref(),
                );
            }
            self.destination(object, &format!("{at}.mirror"), route.mirror.as_ref());
            for (j, mirror) in route.mirrors.iter().enumerate() {
                self.destination(
                    object,
                    &format!("{at}.mirrors[{j}].destination"),
                    mirror.destination.as_ref(),
                );
            }
            if let Some(delegate) = &route.delegate {
                let to = match delegate.namespace.as_str() {
                    "" => namespace.clone(),
                    namespace => Text::from(namespace),
                };
                let key = ObjectKey::new(Kind::VirtualService, to, delegate.name.as_str());
                if self.world.snapshot.get(&key).is_none() {
                    let diagnostic = Diagnostic::error(
                        "unknown-delegate",
                        format!("there is no {key}"),
                        "the route is left out",
                    );
                    self.say(object, format!("{at}.delegate"), diagnostic);
                }
            }
        }
        let tls = spec.tls.iter().map(|route| &route.route).enumerate();
        let tcp = spec.tcp.iter().map(|route| &route.route).enumerate();
        let streams = tls.map(|r| ("tls", r)).chain(tcp.map(|r| ("tcp", r)));
        for (kind, (i, targets)) in streams {
            for (j, target) in targets.iter().enumerate() {
                let at = format!("spec.{kind}[{i}].route[{j}].destination");
                self.destination(object, &at, target.destination.as_ref());
            }
        }
    }

    fn destination(&mut self, object: &Object, at: &str, destination: Option<&Destination>) {
        let Some(destination) = destination else {
            return;
        };
        let world = self.world;
        let name = host::resolve(
            &destination.host,
            &object.key.namespace,
            &world.settings.domain,
        );
        let meant = self.meant(&name);
        if meant.is_empty() {
            let diagnostic = Diagnostic::error(
                "unknown-host",
                format!("no service has host {name}"),
                "requests that take this route fail",
            );
            return self.say(object, format!("{at}.host"), diagnostic);
        }
        if let Some(port) = &destination.port {
            let services = meant.iter().filter_map(|id| world.services.get(*id));
            let known = services
                .flat_map(|service| &service.ports)
                .any(|p| u32::from(p.number) == port.number);
            if !known {
                let diagnostic = Diagnostic::error(
                    "unknown-port",
                    format!("host {name} has no port {}", port.number),
                    "requests that take this route fail",
                );
                self.say(object, format!("{at}.port"), diagnostic);
            }
        }
        if destination.subset.is_empty() {
            return;
        }
        let candidates = host::candidates(&name);
        let known = candidates
            .iter()
            .filter_map(|candidate| world.destination_rules.get(candidate))
            .flat_map(|rules| rules.iter())
            .filter_map(|rule| rule.get::<DestinationRule>())
            .any(|rule| rule.subsets.iter().any(|s| s.name == destination.subset));
        if !known {
            let diagnostic = Diagnostic::error(
                "unknown-subset",
                format!(
                    "no DestinationRule for {name} has subset {}",
                    destination.subset
                ),
                "requests that take this route fail",
            );
            self.say(object, format!("{at}.subset"), diagnostic);
        }
    }

    fn destination_rule(&mut self, object: &Object, rule: &DestinationRule) {
        let world = self.world;
        let name = host::resolve(&rule.host, &object.key.namespace, &world.settings.domain);
        let ids: Vec<&ServiceId> = if name.starts_with('*') {
            let covered = world
                .by_host
                .iter()
                .filter(|(host, _)| host::covers(&name, host));
            covered.flat_map(|(_, ids)| ids.iter()).collect()
        } else {
            self.meant(&name)
        };
        if ids.is_empty() {
            let diagnostic = Diagnostic::warning(
                "unknown-host",
                format!("no service has host {name}"),
                "the rule has no effect",
            );
            return self.say(object, "spec.host", diagnostic);
        }
        for (i, subset) in rule.subsets.iter().enumerate() {
            if subset.labels.is_empty() {
                continue;
            }
            let known: Vec<_> = ids
                .iter()
                .filter_map(|id| world.endpoints.get(*id))
                .collect();
            // Of services whose endpoints are found elsewhere nothing can be said.
            let blind = ids
                .iter()
                .filter_map(|id| world.services.get(*id))
                .any(|service| {
                    matches!(
                        service.resolution,
                        Resolution::DynamicDns | Resolution::Alias
                    ) || (service.registry == Registry::External
                        && service.resolution == Resolution::Passthrough)
                });
            let any = known
                .iter()
                .flat_map(|endpoints| endpoints.by_port.values().flatten())
                .any(|endpoint| index::selects(&subset.labels, &endpoint.labels));
            if !any && !blind {
                let diagnostic = Diagnostic::warning(
                    "empty-subset",
                    format!(
                        "no endpoint of {name} has the labels of subset {}",
                        subset.name
                    ),
                    "requests to the subset fail",
                );
                self.say(object, format!("spec.subsets[{i}]"), diagnostic);
            }
        }
    }
}
