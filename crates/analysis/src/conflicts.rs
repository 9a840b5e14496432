//! ServiceEntries that contradict each other, or catch more than they say.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilotfish_config::Object;
use pilotfish_config::networking::{Resolution, ServiceEntry};
use pilotfish_mesh::ExportTo;

use crate::report::Report;
use crate::scene::{Scene, both_visible};

/// Visibility of an entry.
fn exported(scene: &Scene<'_>, object: &Object, entry: &ServiceEntry) -> ExportTo {
    let owner = &*object.key.namespace;
    let words = entry.export_to.iter().map(String::as_str);
    ExportTo::parse(words, owner)
        .or_else(|| {
            let default = &scene.mesh().default_service_export_to;
            ExportTo::parse(default.iter().map(String::as_str), owner)
        })
        .unwrap_or(ExportTo::Public)
}

/// One host and port with two protocols; a port without an address that takes every connection.
pub(crate) fn entries(scene: &Scene<'_>, report: &mut Report) {
    type Claim<'w> = (&'w Arc<Object>, &'w ServiceEntry, &'w str);
    let mut claims: BTreeMap<(&str, u32), Vec<Claim<'_>>> = BTreeMap::new();
    for (object, entry) in scene.list::<ServiceEntry>() {
        for (i, port) in entry.ports.iter().enumerate() {
            let at = format!("spec.ports[{i}]");
            for name in &entry.hosts {
                let earlier = claims.entry((name, port.number)).or_default();
                let other = earlier.iter().find(|(other, theirs, protocol)| {
                    !protocol.eq_ignore_ascii_case(&port.protocol)
                        && both_visible(
                            &exported(scene, other, theirs),
                            &other.key.namespace,
                            &exported(scene, object, entry),
                            &object.key.namespace,
                        )
                });
                if let Some((other, _, protocol)) = other {
                    report.warn(
                        ("protocol-conflict", object, &format!("{at}.protocol")),
                        format!(
                            "{} says that port {} of {name} speaks {protocol}",
                            other.key, port.number
                        ),
                        "which of the two a proxy expects depends on which entry it sees first",
                    );
                }
                earlier.push((object, entry, &port.protocol));
            }
            if catches_all(scene, entry) && is_bytes(&port.protocol) {
                report.warn(
                    ("address-required", object, &at),
                    "a port of TCP needs an address to be told apart by",
                    format!(
                        "proxies that do not capture DNS send every connection to port {} here",
                        port.number
                    ),
                );
            }
        }
    }
}

/// Whether the entry is reached at no address of its own. With resolution NONE that is what is asked for, and where
/// proxies capture DNS it has an allocated one.
fn catches_all(scene: &Scene<'_>, entry: &ServiceEntry) -> bool {
    let captures = scene.mesh().default_config.as_ref().is_some_and(|config| {
        let set = config.proxy_metadata.get("ISTIO_META_DNS_CAPTURE");
        set.is_some_and(|value| value == "true")
    });
    let has_address = !entry.addresses.is_empty() || !entry.status_addresses.is_empty();
    !captures && !has_address && entry.resolution != Resolution::None
}

fn is_bytes(protocol: &str) -> bool {
    protocol.is_empty() || protocol.eq_ignore_ascii_case("tcp")
}
