//! Which conditions of a route leave nothing for later ones.

use std::collections::BTreeMap;

use crate::Labels;

use super::{
    HttpMatchRequest, HttpRoute, L4MatchAttributes, StringMatch, TcpRoute, TlsMatchAttributes,
    TlsRoute,
};

/// A route with conditions, of which one must hold; none at all match everything.
pub trait Conditions {
    /// One condition.
    type Match;
    /// The conditions.
    fn conditions(&self) -> &[Self::Match];
    /// Whether whatever meets a condition takes this route. A route that delegates says more elsewhere.
    fn is_final(&self) -> bool {
        true
    }
    /// Whether everything that meets `narrow` meets `wide`. A false answer may be wrong, a true one is not.
    fn covers(wide: &Self::Match, narrow: &Self::Match) -> bool;
}

impl Conditions for HttpRoute {
    type Match = HttpMatchRequest;

    fn conditions(&self) -> &[HttpMatchRequest] {
        &self.r#match
    }

    fn is_final(&self) -> bool {
        self.delegate.is_none()
    }

    fn covers(wide: &HttpMatchRequest, narrow: &HttpMatchRequest) -> bool {
        let present = |w: &Option<StringMatch>, n: &Option<StringMatch>| match (w, n) {
            (None | Some(StringMatch::Any), _) => true,
            (Some(w), Some(n)) => text_covers(w, n),
            (Some(_), None) => false,
        };
        uri_covers(wide, narrow)
            && present(&wide.scheme, &narrow.scheme)
            && present(&wide.method, &narrow.method)
            && present(&wide.authority, &narrow.authority)
            && all_covered(&wide.headers, &narrow.headers, text_covers)
            && all_covered(&wide.query_params, &narrow.query_params, text_covers)
            // Who asks that more is absent asks for less.
            && all_covered(&wide.without_headers, &narrow.without_headers, |w, n| text_covers(n, w))
            && (wide.port == 0 || wide.port == narrow.port)
            && subset(&wide.source_labels, &narrow.source_labels)
            && names_cover(&wide.gateways, &narrow.gateways)
            && (wide.source_namespace.is_empty()
                || wide.source_namespace == narrow.source_namespace)
    }
}

impl Conditions for TlsRoute {
    type Match = TlsMatchAttributes;

    fn conditions(&self) -> &[TlsMatchAttributes] {
        &self.r#match
    }

    fn covers(wide: &TlsMatchAttributes, narrow: &TlsMatchAttributes) -> bool {
        let named = |name: &String| {
            let under = |pattern: &String| {
                pattern == name
                    || pattern
                        .strip_prefix('*')
                        .is_some_and(|suffix| name.ends_with(suffix))
            };
            wide.sni_hosts.iter().any(under)
        };
        !narrow.sni_hosts.is_empty()
            && narrow.sni_hosts.iter().all(named)
            && names_cover(&wide.destination_subnets, &narrow.destination_subnets)
            && (wide.port == 0 || wide.port == narrow.port)
            && subset(&wide.source_labels, &narrow.source_labels)
            && names_cover(&wide.gateways, &narrow.gateways)
            && (wide.source_namespace.is_empty()
                || wide.source_namespace == narrow.source_namespace)
    }
}

impl Conditions for TcpRoute {
    type Match = L4MatchAttributes;

    fn conditions(&self) -> &[L4MatchAttributes] {
        &self.r#match
    }

    fn covers(wide: &L4MatchAttributes, narrow: &L4MatchAttributes) -> bool {
        names_cover(&wide.destination_subnets, &narrow.destination_subnets)
            && (wide.port == 0 || wide.port == narrow.port)
            && (wide.source_subnet.is_empty() || wide.source_subnet == narrow.source_subnet)
            && subset(&wide.source_labels, &narrow.source_labels)
            && names_cover(&wide.gateways, &narrow.gateways)
            && (wide.source_namespace.is_empty()
                || wide.source_namespace == narrow.source_namespace)
    }
}

/// Whether a route takes everything that reaches it through `gateway`.
pub fn takes_everything(route: &HttpRoute, gateway: &str) -> bool {
    let everything = HttpMatchRequest {
        gateways: vec![gateway.to_owned()],
        ..HttpMatchRequest::default()
    };
    route.is_final()
        && (route.r#match.is_empty()
            || route
                .r#match
                .iter()
                .any(|m| HttpRoute::covers(m, &everything)))
}

fn uri_covers(wide: &HttpMatchRequest, narrow: &HttpMatchRequest) -> bool {
    match (&wide.uri, &narrow.uri) {
        (None | Some(StringMatch::Any), _) => true,
        // Every path begins with a slash.
        (Some(StringMatch::Prefix(p)), _) if p.is_empty() || p == "/" => true,
        (Some(_), None) => false,
        (Some(w), Some(n)) if wide.ignore_uri_case => text_covers(&lowered(w), &lowered(n)),
        (Some(w), Some(n)) => !narrow.ignore_uri_case && text_covers(w, n),
    }
}

fn lowered(text: &StringMatch) -> StringMatch {
    match text {
        StringMatch::Exact(t) => StringMatch::Exact(t.to_lowercase()),
        StringMatch::Prefix(t) => StringMatch::Prefix(t.to_lowercase()),
        other => other.clone(),
    }
}

fn text_covers(wide: &StringMatch, narrow: &StringMatch) -> bool {
    match (wide, narrow) {
        (StringMatch::Any, _) => true,
        (StringMatch::Regex(w), _) if w == ".*" => true,
        (StringMatch::Prefix(w), StringMatch::Prefix(n) | StringMatch::Exact(n)) => {
            n.starts_with(w.as_str())
        }
        (w, n) => w == n,
    }
}

fn all_covered(
    wide: &BTreeMap<String, StringMatch>,
    narrow: &BTreeMap<String, StringMatch>,
    covers: impl Fn(&StringMatch, &StringMatch) -> bool,
) -> bool {
    wide.iter()
        .all(|(name, w)| narrow.get(name).is_some_and(|n| covers(w, n)))
}

fn subset(wide: &Labels, narrow: &Labels) -> bool {
    wide.iter().all(|(k, v)| narrow.get(k) == Some(v))
}

/// Lists of alternatives, of which an empty one allows everything.
fn names_cover(wide: &[String], narrow: &[String]) -> bool {
    wide.is_empty() || !narrow.is_empty() && narrow.iter().all(|n| wide.contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> HttpMatchRequest {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn wide_conditions_cover_narrow_ones_and_not_the_reverse() {
        for (wide, narrow) in [
            (r"{}", r#"{"uri": {"prefix": "/a"}}"#),
            (
                r#"{"uri": {"prefix": "/a"}}"#,
                r#"{"uri": {"exact": "/a/b"}}"#,
            ),
            (r#"{"uri": {"prefix": "/"}}"#, r#"{"port": 80}"#),
            (
                r#"{"uri": {"prefix": "/A"}, "ignoreUriCase": true}"#,
                r#"{"uri": {"prefix": "/ab"}}"#,
            ),
            (
                r#"{"headers": {"x": {}}}"#,
                r#"{"headers": {"x": {"exact": "1"}, "y": {}}}"#,
            ),
            (
                r#"{"withoutHeaders": {"x": {"exact": "1"}}}"#,
                r#"{"withoutHeaders": {"x": {}, "y": {}}}"#,
            ),
            (r#"{"gateways": ["a", "b"]}"#, r#"{"gateways": ["a"]}"#),
            (
                r#"{"sourceLabels": {"app": "a"}}"#,
                r#"{"sourceLabels": {"app": "a", "v": "1"}}"#,
            ),
        ] {
            let (wide, narrow) = (request(wide), request(narrow));
            assert!(HttpRoute::covers(&wide, &narrow), "{wide:?} {narrow:?}");
            assert!(!HttpRoute::covers(&narrow, &wide), "{narrow:?} {wide:?}");
        }
        for (a, b) in [
            (
                r#"{"uri": {"prefix": "/a"}}"#,
                r#"{"uri": {"regex": "/a.*"}}"#,
            ),
            (
                r#"{"uri": {"prefix": "/a"}}"#,
                r#"{"uri": {"prefix": "/AB"}, "ignoreUriCase": true}"#,
            ),
            (
                r#"{"method": {"exact": "GET"}}"#,
                r#"{"method": {"exact": "PUT"}}"#,
            ),
            (r#"{"port": 80}"#, r#"{"port": 81}"#),
        ] {
            assert!(!HttpRoute::covers(&request(a), &request(b)), "{a} {b}");
            assert!(!HttpRoute::covers(&request(b), &request(a)), "{b} {a}");
        }
    }

    #[test]
    fn a_name_under_a_wildcard_is_covered() {
        let sni = |names: &[&str]| TlsMatchAttributes {
            sni_hosts: names.iter().map(ToString::to_string).collect(),
            ..TlsMatchAttributes::default()
        };
        assert!(TlsRoute::covers(
            &sni(&["*.a.example"]),
            &sni(&["x.a.example"])
        ));
        assert!(!TlsRoute::covers(
            &sni(&["x.a.example"]),
            &sni(&["*.a.example"])
        ));
    }

    #[test]
    fn a_route_for_one_gateway_takes_everything_there_only() {
        let route: HttpRoute =
            serde_json::from_str(r#"{"match": [{"uri": {"prefix": "/"}, "gateways": ["ns/a"]}]}"#)
                .unwrap();
        assert!(takes_everything(&route, "ns/a"));
        assert!(!takes_everything(&route, "ns/b"));
        let delegating: HttpRoute = serde_json::from_str(r#"{"delegate": {"name": "x"}}"#).unwrap();
        assert!(!takes_everything(&delegating, "ns/a"));
    }
}
