//! Sidecar objects: whom they are for, and what they let in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilotfish_config::Labels;
use pilotfish_config::Object;
use pilotfish_config::networking::{Sidecar, VirtualService};
use pilotfish_mesh::{Text, host};

use crate::report::{Report, listed};
use crate::scene::{Runs, Scene};

fn selector(spec: &Sidecar) -> Option<&Labels> {
    let labels = spec.workload_selector.as_ref().map(|s| &s.labels);
    labels.filter(|labels| !labels.is_empty())
}

/// Several for one workload, several for a whole namespace, and those for nobody.
pub(crate) fn selectors(scene: &Scene<'_>, report: &mut Report) {
    let all = scene.sidecars();
    if all.is_empty() {
        return;
    }
    let running = scene.running();
    for (namespace, sidecars) in all {
        let mut whole: Option<&Arc<Object>> = None;
        for (object, _) in sidecars.iter().filter(|(_, spec)| selector(spec).is_none()) {
            let first = *whole.get_or_insert(object);
            if first.key != object.key {
                report.error(
                    ("several-sidecars", object, "spec.workloadSelector"),
                    format!(
                        "{}, which is older, is for the whole namespace as well",
                        first.key
                    ),
                    "it has no effect",
                );
            }
        }
        let here = running.iter().filter(|runs| runs.namespace() == namespace);
        let here: Vec<&Runs<'_>> = here.collect();
        let chosen: Vec<_> = sidecars
            .iter()
            .filter_map(|(object, spec)| Some((*object, selector(spec)?)))
            .collect();
        for (i, (object, own)) in chosen.iter().enumerate() {
            let mine: Vec<&&Runs<'_>> = here.iter().filter(|runs| runs.has(own)).collect();
            if mine.is_empty() && !running.is_empty() {
                report.warn(
                    ("selects-nothing", object, "spec.workloadSelector"),
                    "no workload of the namespace has these labels",
                    "it has no effect",
                );
            }
            let shares =
                |theirs: &Labels| theirs == *own || mine.iter().any(|runs| runs.has(theirs));
            if let Some((older, _)) = chosen[..i].iter().find(|(_, theirs)| shares(theirs)) {
                report.error(
                    ("several-sidecars", object, "spec.workloadSelector"),
                    format!(
                        "{}, which is older, selects some of the same workloads",
                        older.key
                    ),
                    "workloads that both select follow the older",
                );
            }
        }
    }
}

/// Egress hosts that name nothing.
pub(crate) fn egress(scene: &Scene<'_>, report: &mut Report) {
    let sidecars = scene.sidecars();
    if sidecars.is_empty() {
        return;
    }
    let mut namespaces = scene.namespaces();
    namespaces.insert(scene.root_namespace());
    let mut hosts: BTreeSet<(&Text, Text)> = BTreeSet::new();
    let mut ports: BTreeMap<(&Text, Text), BTreeSet<u16>> = BTreeMap::new();
    for service in scene.services() {
        let key = (&service.id.namespace, service.id.host.clone());
        let numbers = service.ports.iter().map(|p| p.number);
        ports.entry(key.clone()).or_default().extend(numbers);
        hosts.insert(key);
    }
    for (object, spec) in scene.list::<VirtualService>() {
        let names = spec
            .hosts
            .iter()
            .map(|h| (&object.key.namespace, scene.resolve(h, object)));
        hosts.extend(names);
    }
    for (namespace, of_namespace) in sidecars {
        for (object, spec) in of_namespace {
            for (i, listener) in spec.egress.iter().enumerate() {
                let at = format!("spec.egress[{i}]");
                let matching = |written: &str| matching(written, namespace, &hosts);
                for (j, written) in listener.hosts.iter().enumerate() {
                    if is_whole(written, &namespaces) {
                        continue;
                    }
                    if matching(written).is_empty() {
                        report.warn(
                            ("unknown-host", object, &format!("{at}.hosts[{j}]")),
                            format!("no service that {written} names is there"),
                            "it lets nothing in",
                        );
                    }
                }
                let Some(port) = listener.port.as_ref().filter(|port| port.number > 0) else {
                    continue;
                };
                let named: Vec<_> = listener.hosts.iter().flat_map(|h| matching(h)).collect();
                let open = |key: &&(&Text, Text)| {
                    ports
                        .get(*key)
                        .is_none_or(|all| all.iter().any(|p| u32::from(*p) == port.number))
                };
                if !named.is_empty() && !named.iter().any(open) {
                    let numbers = named.iter().filter_map(|key| ports.get(*key)).flatten();
                    let numbers: BTreeSet<&u16> = numbers.collect();
                    report.warn(
                        ("unknown-port", object, &format!("{at}.port.number")),
                        format!(
                            "no service it names has port {}, only {}",
                            port.number,
                            listed(numbers)
                        ),
                        "the listener forwards nothing",
                    );
                }
            }
        }
    }
}

/// Whether an egress host says "whatever there may be" in a namespace that is there: nothing to be wrong about.
fn is_whole(written: &str, namespaces: &BTreeSet<&str>) -> bool {
    match written.split_once('/') {
        Some(("~", _)) => true,
        Some((from, "*")) => matches!(from, "*" | ".") || namespaces.contains(from),
        _ => false,
    }
}

/// What an egress host of a Sidecar in `own` names.
fn matching<'h, 'w>(
    written: &str,
    own: &str,
    hosts: &'h BTreeSet<(&'w Text, Text)>,
) -> Vec<&'h (&'w Text, Text)> {
    let Some((from, pattern)) = written.split_once('/') else {
        return Vec::new();
    };
    let from = if from == "." { own } else { from };
    hosts
        .iter()
        .filter(|(namespace, _)| from == "*" || ***namespace == *from)
        .filter(|(_, name)| host::covers(pattern, name) || host::covers(name, pattern))
        .collect()
}
