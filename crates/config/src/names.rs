//! What may be a name.

/// A DNS-1123 subdomain, as Kubernetes wants names.
pub(crate) fn is_kubernetes_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_lowercase_label)
}

/// A DNS-1123 label, as Kubernetes wants namespaces.
pub(crate) fn is_namespace(name: &str) -> bool {
    name.len() <= 63 && is_lowercase_label(name)
}

fn is_lowercase_label(label: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = label.as_bytes();
    bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
        && bytes.first().copied().is_some_and(plain)
        && bytes.last().copied().is_some_and(plain)
}

/// A label of a host name: letters of either case, digits and inner dashes, 63 at most.
pub(crate) fn is_host_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    bytes.len() <= 63
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}
