//! Host names and how they match.

use crate::Text;

/// Whether host `a` (possibly a wildcard) covers host `b` (possibly a wildcard).
pub fn covers(a: &str, b: &str) -> bool {
    match a.strip_prefix('*') {
        Some(suffix) => b.strip_prefix('*').unwrap_or(b).ends_with(suffix),
        None => a == b,
    }
}

/// The fully qualified form of a host as written in an object of `namespace`: short names of Kubernetes get the
/// namespace and domain; anything with a dot or a wildcard is taken as it is.
pub fn resolve(host: &str, namespace: &str, domain: &str) -> Text {
    if host.contains('.') || host.contains('*') || host.contains(':') {
        Text::from(host)
    } else {
        Text::from(format!("{host}.{namespace}.svc.{domain}"))
    }
}

/// Keys under which rules that cover `host` may have been written, most specific first: the host, then `*.` of each
/// parent, then `*`.
pub fn candidates(host: &str) -> Vec<Text> {
    let mut out = vec![Text::from(host)];
    let mut rest = host.strip_prefix("*.").unwrap_or(host);
    if rest == "*" {
        return out;
    }
    while let Some((_, parent)) = rest.split_once('.') {
        let key = format!("*.{parent}");
        if key != host {
            out.push(Text::from(key));
        }
        rest = parent;
    }
    if host != "*" {
        out.push(Text::from("*"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_cover() {
        assert!(covers("*.shop.example", "a.shop.example"));
        assert!(covers("*", "anything"));
        assert!(covers("*.example", "*.shop.example"));
        assert!(!covers("*.shop.example", "shop.example"));
        assert!(!covers("a.example", "*.example"));
    }

    #[test]
    fn short_names_get_a_domain() {
        assert_eq!(
            &*resolve("web", "shop", "cluster.local"),
            "web.shop.svc.cluster.local"
        );
        assert_eq!(&*resolve("web.shop", "x", "cluster.local"), "web.shop");
    }

    #[test]
    fn candidates_go_from_specific_to_general() {
        let c = candidates("a.b.c");
        assert_eq!(
            c.iter().map(|t| &**t).collect::<Vec<_>>(),
            ["a.b.c", "*.b.c", "*.c", "*"]
        );
    }
}
