//! `PeerAuthentication` and `AuthorizationPolicy`.

use super::common::{attachment, port, selector};
use super::host;
use crate::finding::Checker;
use crate::security::{
    Action, AuthorizationPolicy, Condition, Operation, PeerAuthentication, Rule, Source,
};

/// How many service accounts one list may name.
const MAX_SERVICE_ACCOUNTS: usize = 16;

pub(super) fn check_peer(check: &mut Checker, peer: &PeerAuthentication) {
    selector(check, "selector", peer.selector.as_ref());
    let selects = peer
        .selector
        .as_ref()
        .is_some_and(|selector| !selector.match_labels.is_empty());
    check.error_if(
        !selects && !peer.port_level_mtls.is_empty(),
        "portLevelMtls",
        "needs a selector: ports are those of workloads",
    );
    check.entries(
        "portLevelMtls",
        &peer.port_level_mtls,
        |check, number, _| {
            if let Err(reason) = port(*number) {
                check.error(reason);
            }
        },
    );
}

pub(super) fn check_policy(check: &mut Checker, policy: &AuthorizationPolicy) {
    attachment(
        check,
        policy.selector.as_ref(),
        policy.target_ref.as_ref(),
        &policy.target_refs,
    );
    let name = policy
        .provider
        .as_ref()
        .map(|provider| provider.name.as_str());
    match policy.action {
        Action::Custom => {
            if policy.rules.is_empty() {
                check.error("action CUSTOM without rules never applies; add an empty rule to apply it always");
            } else if name.is_none_or(str::is_empty) {
                check.error("provider.name is required for action CUSTOM");
            }
        }
        Action::Deny if policy.rules.is_empty() => {
            check.error(
                "action DENY without rules never applies; add an empty rule to apply it always",
            );
        }
        _ => {}
    }
    check.error_if(
        policy.action != Action::Custom && policy.provider.is_some(),
        "provider",
        format!("is not possible for action {}", policy.action),
    );
    check.each("rules", &policy.rules, |check, entry| {
        rule(check, entry, policy.action);
    });
}

fn rule(check: &mut Checker, rule: &Rule, action: Action) {
    check.each("from", &rule.from, |check, from| match &from.source {
        Some(from) => check.field("source", |check| source(check, from, action)),
        None => check.error("source is required"),
    });
    check.each("to", &rule.to, |check, to| match &to.operation {
        Some(to) => check.field("operation", |check| operation(check, to)),
        None => check.error("operation is required"),
    });
    check.each("when", &rule.when, |check, when| {
        condition(check, when, action);
    });
    if action == Action::Deny {
        let tcp_from = rule
            .from
            .iter()
            .filter_map(|from| from.source.as_ref())
            .any(has_tcp_attribute);
        let tcp_to = rule
            .to
            .iter()
            .filter_map(|to| to.operation.as_ref())
            .any(|to| !to.ports.is_empty() || !to.not_ports.is_empty());
        let http_only = (!rule.from.is_empty() && rule.to.is_empty() && !tcp_from)
            || (!rule.to.is_empty() && !tcp_to);
        if http_only {
            check.warn(
                "a DENY rule of HTTP attributes only, without ports",
                "all TCP traffic of the selected workloads is denied",
            );
        }
    }
}

fn has_tcp_attribute(source: &Source) -> bool {
    [
        &source.principals,
        &source.not_principals,
        &source.namespaces,
        &source.not_namespaces,
        &source.service_accounts,
        &source.not_service_accounts,
        &source.ip_blocks,
        &source.not_ip_blocks,
        &source.remote_ip_blocks,
        &source.not_remote_ip_blocks,
    ]
    .iter()
    .any(|list| !list.is_empty())
}

fn source(check: &mut Checker, source: &Source, action: Action) {
    if *source == Source::default() {
        return check.error("must not be empty");
    }
    let by_account = !source.service_accounts.is_empty() || !source.not_service_accounts.is_empty();
    let otherwise = [
        &source.principals,
        &source.not_principals,
        &source.namespaces,
        &source.not_namespaces,
    ];
    if by_account && otherwise.iter().any(|list| !list.is_empty()) {
        check.error("serviceAccounts is not possible together with principals or namespaces");
    }
    for (name, list, custom) in [
        ("principals", &source.principals, false),
        ("notPrincipals", &source.not_principals, false),
        ("requestPrincipals", &source.request_principals, false),
        (
            "notRequestPrincipals",
            &source.not_request_principals,
            false,
        ),
        ("namespaces", &source.namespaces, false),
        ("notNamespaces", &source.not_namespaces, false),
        ("serviceAccounts", &source.service_accounts, false),
        ("notServiceAccounts", &source.not_service_accounts, false),
        ("trustDomains", &source.trust_domains, false),
        ("notTrustDomains", &source.not_trust_domains, false),
        ("ipBlocks", &source.ip_blocks, true),
        ("notIpBlocks", &source.not_ip_blocks, true),
        ("remoteIpBlocks", &source.remote_ip_blocks, true),
        ("notRemoteIpBlocks", &source.not_remote_ip_blocks, true),
    ] {
        check.error_if(
            action == Action::Custom && !custom && !list.is_empty(),
            name,
            "is not supported for action CUSTOM",
        );
        not_empty(check, name, list);
    }
    for (name, list) in [
        ("ipBlocks", &source.ip_blocks),
        ("notIpBlocks", &source.not_ip_blocks),
        ("remoteIpBlocks", &source.remote_ip_blocks),
        ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
    ] {
        each(check, name, list, host::subnet);
    }
    for (name, list) in [
        ("serviceAccounts", &source.service_accounts),
        ("notServiceAccounts", &source.not_service_accounts),
    ] {
        service_accounts(check, name, list);
    }
    for (name, list) in [
        ("trustDomains", &source.trust_domains),
        ("notTrustDomains", &source.not_trust_domains),
    ] {
        each(check, name, list, |text| {
            if text.contains('/') {
                Err("a trust domain has no slash".to_owned())
            } else {
                wildcard(text)
            }
        });
    }
}

fn operation(check: &mut Checker, operation: &Operation) {
    if *operation == Operation::default() {
        return check.error("must not be empty");
    }
    for (name, list) in [
        ("hosts", &operation.hosts),
        ("notHosts", &operation.not_hosts),
        ("ports", &operation.ports),
        ("notPorts", &operation.not_ports),
        ("methods", &operation.methods),
        ("notMethods", &operation.not_methods),
        ("paths", &operation.paths),
        ("notPaths", &operation.not_paths),
    ] {
        not_empty(check, name, list);
    }
    each(check, "ports", &operation.ports, port_text);
    each(check, "notPorts", &operation.not_ports, port_text);
    each(check, "paths", &operation.paths, path_template);
    each(check, "notPaths", &operation.not_paths, path_template);
}

fn condition(check: &mut Checker, condition: &Condition, action: Action) {
    let key = condition.key.as_str();
    if key.is_empty() {
        return check.error("key is required");
    }
    if condition.values.is_empty() && condition.not_values.is_empty() {
        return check.error("one of values and notValues is required");
    }
    let identity = matches!(
        key,
        "source.namespace" | "source.serviceAccount" | "source.trustDomain" | "source.principal"
    );
    check.error_if(
        action == Action::Custom && (identity || key.starts_with("request.auth.")),
        "key",
        "is not supported for action CUSTOM",
    );
    check.result("key", attribute(key));
    for (name, list) in [
        ("values", &condition.values),
        ("notValues", &condition.not_values),
    ] {
        not_empty(check, name, list);
        match key {
            "source.ip" | "remote.ip" | "destination.ip" => each(check, name, list, host::subnet),
            "destination.port" => each(check, name, list, port_text),
            "source.serviceAccount" => service_accounts(check, name, list),
            "source.trustDomain" => each(check, name, list, wildcard),
            _ => {}
        }
    }
}

/// Whether conditions know the attribute.
fn attribute(key: &str) -> Result<(), String> {
    let bracketed = |key: &str| {
        let open = key.find('[').unwrap_or(0);
        key.ends_with(']') && open > 0 && open + 2 < key.len()
    };
    match key {
        "source.ip"
        | "remote.ip"
        | "source.namespace"
        | "source.serviceAccount"
        | "source.principal"
        | "source.trustDomain"
        | "request.auth.principal"
        | "request.auth.audiences"
        | "request.auth.presenter"
        | "destination.ip"
        | "destination.port"
        | "connection.sni" => Ok(()),
        "destination.namespace" => Err("the namespace of the policy takes its place".to_owned()),
        "destination.name" | "destination.user" => Err("is no longer supported".to_owned()),
        _ if key.starts_with("destination.labels") => {
            Err("the selector of the policy takes its place".to_owned())
        }
        _ if [
            "request.headers",
            "request.auth.claims",
            "experimental.envoy.filters.",
        ]
        .iter()
        .any(|prefix| key.starts_with(prefix)) =>
        {
            if bracketed(key) {
                Ok(())
            } else {
                Err(format!("{key:?} must be of the form a[b]"))
            }
        }
        _ => Err(format!(
            "unknown attribute {:?}",
            key.chars().take(64).collect::<String>()
        )),
    }
}

fn each(
    check: &mut Checker,
    name: &str,
    list: &[String],
    valid: impl Fn(&str) -> Result<(), String>,
) {
    check.each(name, list, |check, text| {
        if !text.is_empty()
            && let Err(reason) = valid(text)
        {
            check.error(reason);
        }
    });
}

fn not_empty(check: &mut Checker, name: &str, list: &[String]) {
    check.each(name, list, |check, text| {
        if text.is_empty() {
            check.error("must not be empty");
        }
    });
}

fn port_text(text: &str) -> Result<(), String> {
    match text.parse::<u16>() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{text:?} is not a port number")),
    }
}

/// At most one `*`, at the beginning or the end.
fn wildcard(text: &str) -> Result<(), String> {
    match text.matches('*').count() {
        0 => Ok(()),
        1 if text.starts_with('*') || text.ends_with('*') => Ok(()),
        _ => Err("one * is allowed, at the beginning or the end".to_owned()),
    }
}

fn service_accounts(check: &mut Checker, name: &str, list: &[String]) {
    check.error_if(
        list.len() > MAX_SERVICE_ACCOUNTS,
        name,
        format!("more than {MAX_SERVICE_ACCOUNTS} entries"),
    );
    each(check, name, list, |text| {
        let parts: Vec<&str> = text.split('/').collect();
        if text.contains('*')
            || parts.len() > 2
            || parts.iter().any(|part| part.is_empty())
            || text.len() > 320
        {
            return Err("must be of the form name or namespace/name, without wildcards".to_owned());
        }
        Ok(())
    });
}

/// `{*}` for one segment and `{**}` for the rest are the only templates.
fn path_template(path: &str) -> Result<(), String> {
    let template = path.contains("{*}") || path.contains("{**}");
    let mut rest_seen = false;
    for segment in path.trim_matches('/').split('/') {
        match segment {
            "{*}" | "{**}" if rest_seen => return Err("{**} must be the last template".to_owned()),
            "{*}" => {}
            "{**}" => rest_seen = true,
            _ if segment.contains(['{', '}']) => {
                return Err(
                    "only {*} and {**} are possible as templates, each a whole segment".to_owned(),
                );
            }
            _ => {
                let literal = !segment.is_empty()
                    && segment.bytes().all(|byte| {
                        byte.is_ascii_alphanumeric() || b"-._~%!$&'()+,;:@=".contains(&byte)
                    });
                if template && !literal {
                    return Err(format!(
                        "segment {segment:?} is not possible beside a template"
                    ));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_templates() {
        for good in ["/a", "/a/*", "/a/{*}/b", "/a/{**}", "*", "/{*}/{**}"] {
            assert_eq!(path_template(good), Ok(()), "{good}");
        }
        for bad in ["/a/{x}", "/{**}/{*}", "/a{*}", "/{**}/{**}", "/{*}/a*b"] {
            assert!(path_template(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn attributes() {
        assert!(attribute("request.headers[x]").is_ok() && attribute("source.ip").is_ok());
        assert!(attribute("request.headers[]").is_err() && attribute("request.headers").is_err());
        assert!(attribute("destination.labels[x]").is_err() && attribute("nope").is_err());
    }
}
