//! Services: what they declare, whom they select, what their ports say.

use pilotfish_config::core::{IntOrString, Pod, Protocol as Transport, Service};
use pilotfish_config::{Kind, Object};
use pilotfish_mesh::{Protocol, lookup};

use crate::report::Report;
use crate::scene::Scene;

/// Kinds that are read and kept but change nothing a proxy is given.
const UNTRANSLATED: [Kind; 7] = [
    Kind::EnvoyFilter,
    Kind::ProxyConfig,
    Kind::RequestAuthentication,
    Kind::AuthorizationPolicy,
    Kind::Telemetry,
    Kind::WasmPlugin,
    Kind::TrafficExtension,
];

/// Objects that nothing is made of.
pub(crate) fn untranslated(scene: &Scene<'_>, report: &mut Report) {
    for kind in UNTRANSLATED {
        for object in scene.objects(kind) {
            let reason = format!("kind {kind} is not translated yet");
            report.warn(("not-translated", object, ""), reason, "it has no effect");
        }
    }
}

/// What deriving services had to leave out or decide.
pub(crate) fn declarations(scene: &Scene<'_>, report: &mut Report) {
    report.found.extend(scene.declarations());
}

/// A Service or ServiceEntry that selects nothing.
pub(crate) fn selector<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let field = match object.kind() {
        Kind::Service => "spec.selector",
        _ => "spec.workloadSelector",
    };
    let Some(selector) = lookup::selector(object) else {
        return;
    };
    if scene.selected(&object.key.namespace, selector).is_empty() {
        report.note(
            ("selects-nothing", object, field),
            "no workload of the namespace has these labels",
            "it has no endpoints of its own choice",
        );
    }
}

/// An EndpointSlice of a service that is not there.
pub(crate) fn slice<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let service = scene.fed_service(object).and_then(|id| scene.service(&id));
    if service.is_none() {
        report.warn(
            ("unknown-service", object, "metadata.labels"),
            "label kubernetes.io/service-name names no service of the namespace",
            "its endpoints are not used",
        );
    }
}

/// Ports whose name, transport and `appProtocol` do not agree, and target ports that no pod has.
pub(crate) fn ports<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let Some(spec) = object.get::<Service>() else {
        return;
    };
    for (i, port) in spec.ports.iter().enumerate() {
        let at = format!("spec.ports[{i}]");
        let named = Protocol::parse(port.name.split('-').next().unwrap_or_default());
        let declared = port.app_protocol.as_deref().map(|word| {
            let protocol = Protocol::of_port(port.port, "", Some(word));
            (word, protocol)
        });
        if port.protocol == Transport::Udp && !matches!(named, Protocol::Udp | Protocol::Auto) {
            report.warn(
                ("protocol-mismatch", object, &format!("{at}.name")),
                format!("the name says {}, the transport is UDP", port.name),
                "the port is not proxied",
            );
        }
        match declared {
            Some((word, protocol)) if protocol.is_auto() => report.warn(
                ("unknown-protocol", object, &format!("{at}.appProtocol")),
                format!("{word} is no protocol that proxies know"),
                "the protocol is detected on each connection",
            ),
            Some((word, protocol)) if !named.is_auto() && named != protocol => report.warn(
                ("protocol-mismatch", object, &format!("{at}.name")),
                format!("the name says {}, appProtocol says {word}", port.name),
                "appProtocol counts",
            ),
            _ => {}
        }
    }
    named_targets(scene, object, spec, report);
}

/// Target ports by name: pods that have none of that name are no endpoints.
fn named_targets<'w>(scene: &Scene<'w>, object: &'w Object, spec: &Service, report: &mut Report) {
    let named: Vec<(usize, &str)> = spec
        .ports
        .iter()
        .enumerate()
        .filter_map(|(i, port)| match &port.target_port {
            Some(IntOrString::String(name)) => Some((i, name.as_str())),
            _ => None,
        })
        .collect();
    if named.is_empty() || spec.selector.is_empty() {
        return;
    }
    let selected = scene.selected(&object.key.namespace, &spec.selector);
    let pods: Vec<&Pod> = selected.iter().filter_map(|o| o.get::<Pod>()).collect();
    if pods.is_empty() {
        return;
    }
    for (i, name) in named {
        let has = |pod: &&Pod| {
            let containers = pod.containers.iter().chain(&pod.init_containers);
            containers
                .flat_map(|c| &c.ports)
                .any(|port| port.name == name)
        };
        if !pods.iter().any(has) {
            report.warn(
                (
                    "unknown-target-port",
                    object,
                    &format!("spec.ports[{i}].targetPort"),
                ),
                format!("no selected pod has a port named {name}"),
                "the port has no endpoints",
            );
        }
    }
}
