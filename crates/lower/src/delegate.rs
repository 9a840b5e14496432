//! Delegation: rules of one VirtualService that stand in another.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pilotfish_config::Object;
use pilotfish_config::networking::{HttpMatchRequest, HttpRoute, StringMatch, VirtualService};
use pilotfish_mesh::{Reader, host};

use crate::{Text, policy};

/// A rule, and the namespace its short names belong to.
pub(crate) type Rule<'w> = (Cow<'w, HttpRoute>, Text);

/// The rules of a VirtualService with those it delegates put in their place. What a delegated rule leaves out comes from
/// the rule that delegates; one that can never match is left out.
pub(crate) fn rules<'w>(
    reader: &Reader<'w>,
    object: &'w Object,
    vs: &'w VirtualService,
) -> Vec<Rule<'w>> {
    let own = &object.key.namespace;
    let mut out = Vec::with_capacity(vs.http.len());
    for http in &vs.http {
        let Some(reference) = &http.delegate else {
            out.push((Cow::Borrowed(http), own.clone()));
            continue;
        };
        let namespace = if reference.namespace.is_empty() {
            own
        } else {
            reference.namespace.as_str()
        };
        // What cannot be found or does not fit is left out; the crate `analysis` says so.
        if let Some((to, rules)) = target(reader, &reference.name, namespace, own) {
            reader.uses(&to.key);
            let http = &with_full_names(http, own, &reader.settings().domain);
            let merged = rules.http.iter().filter_map(|leaf| merge(http, leaf));
            out.extend(merged.map(|r| (Cow::Owned(r), to.key.namespace.clone())));
        }
    }
    out
}

fn target<'w>(
    reader: &Reader<'w>,
    name: &str,
    namespace: &str,
    own: &str,
) -> Option<(&'w Object, &'w VirtualService)> {
    let to = reader.delegate(name, namespace)?;
    let vs = to.get::<VirtualService>()?;
    let visible = policy::export_to(
        &vs.export_to,
        &reader.mesh().default_virtual_service_export_to,
        namespace,
    )
    .visible(own, namespace);
    visible.then_some((&**to, vs))
}

/// Whether a rule of a delegate can stand in for the rule that delegates.
pub fn fits(root: &HttpRoute, leaf: &HttpRoute) -> bool {
    matches(&root.r#match, &leaf.r#match).is_some()
}

/// A rule that delegates, its mirrors named so that another namespace understands them.
fn with_full_names(root: &HttpRoute, namespace: &str, domain: &str) -> HttpRoute {
    let mut root = root.clone();
    let several = root.mirrors.iter_mut();
    let mirrors = several.filter_map(|m| m.destination.as_mut());
    for d in mirrors.chain(root.mirror.as_mut()) {
        d.host = host::resolve(&d.host, namespace, domain).to_string();
    }
    root
}

fn merge(root: &HttpRoute, leaf: &HttpRoute) -> Option<HttpRoute> {
    let r#match = matches(&root.r#match, &leaf.r#match)?;
    let (root, leaf) = (root.clone(), leaf.clone());
    Some(HttpRoute {
        name: joined(&root.name, &leaf.name),
        r#match,
        rewrite: leaf.rewrite.or(root.rewrite),
        direct_response: leaf.direct_response.or(root.direct_response),
        timeout: leaf.timeout.or(root.timeout),
        retries: leaf.retries.or(root.retries),
        fault: leaf.fault.or(root.fault),
        mirror: leaf.mirror.or(root.mirror),
        mirror_percent: leaf.mirror_percent.or(root.mirror_percent),
        mirror_percentage: leaf.mirror_percentage.or(root.mirror_percentage),
        cors_policy: leaf.cors_policy.or(root.cors_policy),
        mirrors: if leaf.mirrors.is_empty() {
            root.mirrors
        } else {
            leaf.mirrors
        },
        headers: leaf.headers.or(root.headers),
        route: leaf.route,
        redirect: leaf.redirect,
        delegate: None,
    })
}

fn joined(root: &str, leaf: &str) -> String {
    match (root, leaf) {
        (root, "") => root.to_owned(),
        ("", leaf) => leaf.to_owned(),
        (root, leaf) => format!("{root}-{leaf}"),
    }
}

/// Every condition of the delegate narrowed by every compatible one of the root; `None` if one has no compatible partner.
fn matches(root: &[HttpMatchRequest], leaf: &[HttpMatchRequest]) -> Option<Vec<HttpMatchRequest>> {
    if root.is_empty() || leaf.is_empty() {
        return Some([root, leaf].concat());
    }
    let mut out = Vec::new();
    for l in leaf {
        let partners: Vec<_> = root
            .iter()
            .filter(|r| compatible(r, l))
            .map(|r| narrow(r, l))
            .collect();
        if partners.is_empty() {
            return None;
        }
        out.extend(partners);
    }
    Some(out)
}

/// Whether whatever the leaf matches, the root matches too.
fn within(root: Option<&StringMatch>, leaf: Option<&StringMatch>) -> bool {
    let (Some(root), Some(leaf)) = (root, leaf) else {
        return true;
    };
    match (root, leaf) {
        (StringMatch::Exact(r), StringMatch::Exact(l)) => r == l,
        (StringMatch::Prefix(r), StringMatch::Exact(l) | StringMatch::Prefix(l)) => {
            l.starts_with(r.as_str())
        }
        (StringMatch::Any, _) | (_, StringMatch::Any) => true,
        // Whether expressions overlap is not decided.
        (StringMatch::Regex(_), _)
        | (_, StringMatch::Regex(_))
        | (StringMatch::Exact(_), StringMatch::Prefix(_)) => false,
    }
}

fn compatible(root: &HttpMatchRequest, leaf: &HttpMatchRequest) -> bool {
    let single = [
        (&root.uri, &leaf.uri),
        (&root.scheme, &leaf.scheme),
        (&root.method, &leaf.method),
        (&root.authority, &leaf.authority),
    ];
    let keyed = [
        (&root.headers, &leaf.headers),
        (&root.without_headers, &leaf.without_headers),
        (&root.query_params, &leaf.query_params),
    ];
    single.iter().all(|(r, l)| within(r.as_ref(), l.as_ref()))
        && keyed
            .iter()
            .all(|(r, l)| l.iter().all(|(k, v)| within(r.get(k), Some(v))))
        && root.ignore_uri_case == leaf.ignore_uri_case
        && (root.port == 0 || leaf.port == 0 || root.port == leaf.port)
        && (root.source_namespace.is_empty() || root.source_namespace == leaf.source_namespace)
        && leaf
            .source_labels
            .iter()
            .all(|(k, v)| root.source_labels.get(k).is_none_or(|have| have == v))
        && (root.gateways.is_empty() || leaf.gateways.iter().all(|g| root.gateways.contains(g)))
}

fn narrow(root: &HttpMatchRequest, leaf: &HttpMatchRequest) -> HttpMatchRequest {
    fn both<V: Clone>(
        root: &BTreeMap<String, V>,
        leaf: &BTreeMap<String, V>,
    ) -> BTreeMap<String, V> {
        root.iter()
            .chain(leaf)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }
    let first = |leaf: &str, root: &str| {
        if leaf.is_empty() {
            root.to_owned()
        } else {
            leaf.to_owned()
        }
    };
    let mut source_labels = root.source_labels.clone();
    source_labels.extend(leaf.source_labels.clone());
    HttpMatchRequest {
        name: joined(&root.name, &leaf.name),
        uri: leaf.uri.clone().or_else(|| root.uri.clone()),
        scheme: leaf.scheme.clone().or_else(|| root.scheme.clone()),
        method: leaf.method.clone().or_else(|| root.method.clone()),
        authority: leaf.authority.clone().or_else(|| root.authority.clone()),
        headers: both(&root.headers, &leaf.headers),
        without_headers: both(&root.without_headers, &leaf.without_headers),
        query_params: both(&root.query_params, &leaf.query_params),
        port: if leaf.port == 0 { root.port } else { leaf.port },
        source_labels,
        source_namespace: first(&leaf.source_namespace, &root.source_namespace),
        gateways: if leaf.gateways.is_empty() {
            root.gateways.clone()
        } else {
            leaf.gateways.clone()
        },
        stat_prefix: first(&leaf.stat_prefix, &root.stat_prefix),
        ignore_uri_case: leaf.ignore_uri_case,
    }
}
