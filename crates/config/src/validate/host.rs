//! Host names, with and without wildcards.

use std::net::IpAddr;

use crate::names::is_host_label;

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

fn length(name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err("must not be empty".to_owned()),
        1..=255 => Ok(()),
        _ => Err("is longer than 255 characters".to_owned()),
    }
}

fn labels(name: &str) -> Result<(), String> {
    let last = name.rsplit('.').next().unwrap_or_default();
    if !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "invalid host {:?}: its last label is a number",
            short(name)
        ));
    }
    // One dot at the end is allowed: it marks the name as complete.
    match name
        .strip_suffix('.')
        .unwrap_or(name)
        .split('.')
        .find(|label| !is_host_label(label))
    {
        Some(label) => Err(format!(
            "invalid host {:?}: label {:?} is invalid",
            short(name),
            short(label)
        )),
        None => Ok(()),
    }
}

/// A name without wildcards.
pub(super) fn domain(name: &str) -> Result<(), String> {
    length(name)?;
    labels(name)
}

/// A name whose first label may be `*`, `*x` or `*-x`.
pub(super) fn wildcard_domain(name: &str) -> Result<(), String> {
    length(name)?;
    let (first, rest) = name
        .split_once('.')
        .map_or((name, None), |(first, rest)| (first, Some(rest)));
    let plain = first
        .strip_prefix("*-")
        .or_else(|| first.strip_prefix('*'))
        .unwrap_or(first);
    if first != "*" && (first.len() > 63 || !is_host_label(plain)) {
        return Err(format!(
            "invalid host {:?}: label {:?} is invalid",
            short(name),
            short(first)
        ));
    }
    rest.map_or(Ok(()), labels)
}

/// A wildcard that is more than `*` or `*.`: accepted by the syntax, supported almost nowhere.
pub(super) fn partial_wildcard(name: &str) -> Result<(), String> {
    if name.contains('*') && name.len() != 1 && !name.starts_with("*.") {
        return Err(format!("partial wildcard {:?} is not allowed", short(name)));
    }
    Ok(())
}

/// The form that gateways in automatic passthrough use: `outbound_.80_._.host`.
pub(super) fn sni_domain(name: &str) -> Result<(), String> {
    if !name.starts_with("outbound_") {
        return wildcard_domain(name);
    }
    length(name)?;
    let parts: Vec<&str> = name.split('_').collect();
    let port = parts
        .get(1)
        .is_some_and(|port| port.contains(|c: char| c.is_ascii_digit()));
    let host = parts
        .get(3)
        .is_some_and(|host| host.contains(|c: char| c.is_ascii_alphabetic()));
    if port && host {
        Ok(())
    } else {
        Err(format!(
            "invalid host {:?}: expected outbound_.<port>_.<subset>_.<host>",
            short(name)
        ))
    }
}

pub(super) fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

pub(super) fn ip(text: &str) -> Result<(), String> {
    if is_ip(text) {
        Ok(())
    } else {
        Err(format!("{:?} is not an IP address", short(text)))
    }
}

/// An address, or a range of them.
pub(super) fn subnet(text: &str) -> Result<(), String> {
    if !text.contains('/') {
        return ip(text);
    }
    match text.parse::<ipnet::IpNet>() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{:?} is not a CIDR block", short(text))),
    }
}

/// `namespace/host` of a gateway or sidecar.
pub(super) fn namespaced(text: &str, gateway: bool) -> Result<(), String> {
    let Some((namespace, name)) = text.split_once('/') else {
        return if gateway {
            complete(text, true)
        } else {
            Err("must be of the form namespace/host".to_owned())
        };
    };
    if namespace.is_empty() || name.is_empty() {
        return Err("namespace and host must not be empty".to_owned());
    }
    let bare = if gateway {
        namespace
    } else {
        namespace.strip_prefix('~').unwrap_or(namespace)
    };
    let bare_tilde = bare.is_empty() && !gateway;
    if !bare_tilde && !matches!(bare, "*" | ".") && !is_host_label(bare) {
        return Err(format!("invalid namespace {:?}", short(namespace)));
    }
    complete(name, gateway)
}

/// A name with at least one dot, or `*`.
fn complete(name: &str, allow_ip: bool) -> Result<(), String> {
    if name != "*" && !name.contains('.') && !(allow_ip && is_ip(name)) {
        return Err(format!(
            "short name {:?} is not allowed: write the whole name",
            short(name)
        ));
    }
    if !(allow_ip && is_ip(name)) {
        wildcard_domain(name)?;
    }
    partial_wildcard(name)
}

fn tail(name: &str) -> Option<&str> {
    name.strip_prefix('*')
}

/// Whether some name matches both.
pub(super) fn overlap(a: &str, b: &str) -> bool {
    match (tail(a), tail(b)) {
        (Some(a), Some(b)) => a.ends_with(b) || b.ends_with(a),
        (Some(tail), None) => b.ends_with(tail),
        (None, Some(tail)) => a.ends_with(tail),
        (None, None) => a == b,
    }
}

/// Whether every name that matches `inner` matches `outer`.
pub(super) fn within(inner: &str, outer: &str) -> bool {
    match (tail(inner), tail(outer)) {
        (Some(inner), Some(outer)) => inner.ends_with(outer),
        (Some(_), None) => false,
        (None, Some(tail)) => inner.ends_with(tail),
        (None, None) => inner == outer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names() {
        for good in [
            "a",
            "a.b.c",
            "A-1.example.com",
            "a.example.com.",
            "*.example.com",
            "*",
            "*-x.com",
            "*x.com",
            "1.a",
        ] {
            assert_eq!(wildcard_domain(good), Ok(()), "{good}");
        }
        for bad in [
            "", "a..b", "-a.com", "a_b.com", "*.*.com", "a.*.com", "10.0.0.1", "a b", "foo.1",
            "**.com",
        ] {
            assert!(wildcard_domain(bad).is_err(), "{bad}");
        }
        assert!(domain("*.com").is_err());
        assert!(domain(&"a.".repeat(200)).is_err());
        assert!(sni_domain("outbound_.80_._.e2e.foobar.mesh").is_ok());
        assert!(sni_domain("outbound_.80").is_err());
    }

    #[test]
    fn wildcards_overlap_by_their_tails() {
        assert!(overlap("*.com", "a.com") && overlap("a.com", "*.com") && overlap("*", "*.com"));
        assert!(!overlap("*.foo.com", "foo.com") && !overlap("a.com", "b.com"));
        assert!(
            within("*.a.com", "*.com") && !within("*.com", "*.a.com") && !within("*.com", "a.com")
        );
    }
}
