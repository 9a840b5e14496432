//! Checks that several kinds share.

use crate::Labels;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration as StdDuration;

use crate::duration::Duration;
use crate::finding::Checker;
use crate::names::is_host_label;
use crate::networking;
use crate::selector::{PolicyTargetReference, WorkloadSelector};

/// The effect of a warning about an object that is used all the same.
pub(super) const AS_WRITTEN: &str = "it is used as written";

/// What runs on a port, by the name the user gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
    Grpc,
    GrpcWeb,
    Http,
    HttpProxy,
    Http2,
    Https,
    Tls,
    Mongo,
    Redis,
    Mysql,
}

impl Protocol {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "grpc" => Self::Grpc,
            "grpc-web" => Self::GrpcWeb,
            "http" => Self::Http,
            "http_proxy" => Self::HttpProxy,
            "http2" => Self::Http2,
            "https" => Self::Https,
            "tls" => Self::Tls,
            "mongo" => Self::Mongo,
            "redis" => Self::Redis,
            "mysql" => Self::Mysql,
            _ => return None,
        })
    }

    pub(super) fn is_http(self) -> bool {
        matches!(
            self,
            Self::Http | Self::Http2 | Self::HttpProxy | Self::Grpc | Self::GrpcWeb
        )
    }

    pub(super) fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    pub(super) fn is_tcp(self) -> bool {
        matches!(
            self,
            Self::Tcp | Self::Https | Self::Tls | Self::Mongo | Self::Redis | Self::Mysql
        )
    }
}

/// A protocol name; empty leaves it to detection.
pub(super) fn protocol(name: &str) -> Result<(), String> {
    if name.is_empty() || Protocol::parse(name).is_some() {
        return Ok(());
    }
    Err(format!(
        "unsupported protocol {:?}",
        name.chars().take(64).collect::<String>()
    ))
}

pub(super) fn port(number: u32) -> Result<(), String> {
    if (1..=65_535).contains(&number) {
        Ok(())
    } else {
        Err(format!("port {number} is not in the range 1 to 65535"))
    }
}

pub(super) fn port_name(name: &str) -> Result<(), String> {
    if is_host_label(name) {
        Ok(())
    } else {
        Err(format!(
            "invalid port name {:?}",
            name.chars().take(64).collect::<String>()
        ))
    }
}

/// At least a millisecond, and no fractions of one.
pub(super) fn duration(value: Duration) -> Result<(), &'static str> {
    let value = value.get();
    if value < StdDuration::from_millis(1) {
        Err("must be at least 1ms")
    } else if !value.subsec_nanos().is_multiple_of(1_000_000) {
        Err("must be a whole number of milliseconds")
    } else {
        Ok(())
    }
}

/// A duration that may be left out.
pub(super) fn optional_duration(check: &mut Checker, name: &str, value: Option<Duration>) {
    if let Some(value) = value {
        check.result(name, duration(value));
    }
}

/// Labels, as Kubernetes wants them.
pub(super) fn labels<'m, T: AsRef<str> + Display + 'm>(
    check: &mut Checker,
    name: &str,
    labels: impl IntoIterator<Item = (&'m T, &'m T)>,
) {
    check.entries(name, labels, |check, key, value| {
        let (key, value) = (key.as_ref(), value.as_ref());
        let (prefix, last) = key
            .rsplit_once('/')
            .map_or((None, key), |(prefix, last)| (Some(prefix), last));
        let prefix_ok =
            prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_host_label));
        if !prefix_ok || last.is_empty() || !is_label_text(last) {
            check.error("invalid label key");
        } else if !is_label_text(value) {
            check.error(format!(
                "invalid label value {:?}",
                value.chars().take(64).collect::<String>()
            ));
        }
    });
}

fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.is_empty()
        || bytes.len() <= 63
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
            && bytes[0].is_ascii_alphanumeric()
            && bytes[bytes.len() - 1].is_ascii_alphanumeric()
}

/// A selector by `matchLabels`.
pub(super) fn selector(check: &mut Checker, name: &str, selector: Option<&WorkloadSelector>) {
    check.some(name, selector, |check, selector| {
        selector_labels(check, "matchLabels", &selector.match_labels);
    });
}

/// A selector by `labels`.
pub(super) fn workload_selector(
    check: &mut Checker,
    name: &str,
    selector: Option<&networking::WorkloadSelector>,
) {
    check.some(name, selector, |check, selector| {
        selector_labels(check, "labels", &selector.labels);
    });
}

fn selector_labels(check: &mut Checker, name: &str, labels: &Labels) {
    if labels.is_empty() {
        check.warn(
            "no labels are given",
            "it applies to every workload of the namespace",
        );
    }
    check.entries(name, labels, |check, key, value| {
        if key.is_empty() {
            check.error("the key must not be empty");
        }
        if key.contains('*') || value.contains('*') {
            check.error("wildcards are not supported in selectors");
        }
    });
}

/// How a policy is attached: by selector or by reference, not both.
pub(super) fn attachment(
    check: &mut Checker,
    by_selector: Option<&WorkloadSelector>,
    reference: Option<&PolicyTargetReference>,
    references: &[PolicyTargetReference],
) {
    let ways = usize::from(by_selector.is_some())
        + usize::from(reference.is_some())
        + usize::from(!references.is_empty());
    if ways > 1 {
        check.error("only one of selector, targetRef and targetRefs may be set");
    }
    selector(check, "selector", by_selector);
    check.some("targetRef", reference, target);
    check.each("targetRefs", references, target);
}

fn target(check: &mut Checker, target: &PolicyTargetReference) {
    check.error_if(target.name.is_empty(), "name", "must not be empty");
    check.error_if(
        !target.namespace.is_empty(),
        "namespace",
        "references to other namespaces are not supported",
    );
    let allowed = matches!(
        (target.group.as_str(), target.kind.as_str()),
        ("" | "core", "Service")
            | ("networking.istio.io", "ServiceEntry")
            | ("gateway.networking.k8s.io", "Gateway" | "GatewayClass")
    );
    check.error_if(
        !allowed,
        "kind",
        format!(
            "{}/{} cannot be referred to, only Service, ServiceEntry, Gateway and GatewayClass",
            target.group, target.kind
        ),
    );
}

/// To which namespaces an object is visible.
pub(super) fn export_to(
    check: &mut Checker,
    export_to: &[String],
    namespace: &str,
    none_allowed: bool,
) {
    let mut seen = BTreeSet::new();
    check.each("exportTo", export_to, |check, entry| {
        let wanted = if entry == "." { namespace } else { entry };
        if !seen.insert(wanted.to_owned()) {
            check.error(format!("{entry:?} is given twice"));
        }
        let valid = matches!(entry.as_str(), "*" | ".")
            || (entry == "~" && none_allowed)
            || is_host_label(entry);
        if !valid {
            check.error(format!("{entry:?} is not a namespace, \".\" or \"*\""));
        }
        if matches!(entry.as_str(), "*" | "~") && export_to.len() > 1 {
            check.error(format!("{entry:?} must be the only entry"));
        }
    });
}

/// That each of several things is there once.
pub(super) fn unique<T: Ord + Display + Clone>(
    check: &mut Checker,
    seen: &mut BTreeSet<T>,
    name: &str,
    value: &T,
) {
    if !seen.insert(value.clone()) {
        check.field(name, |check| check.error(format!("{value} is given twice")));
    }
}

/// That at most one of several fields is set.
pub(super) fn at_most_one(check: &mut Checker, fields: &[(&str, bool)]) {
    let set: Vec<&str> = fields
        .iter()
        .filter(|(_, set)| *set)
        .map(|(name, _)| *name)
        .collect();
    if set.len() > 1 {
        check.error(format!("only one of {} may be set", set.join(", ")));
    }
}

/// A socket file, with or without a name in the file system.
pub(super) fn unix_path(path: &str) -> Result<(), String> {
    if path.starts_with('@') || path.starts_with('/') && !path.ends_with('/') {
        Ok(())
    } else {
        Err(format!("{path:?} is not an absolute path of a socket"))
    }
}
