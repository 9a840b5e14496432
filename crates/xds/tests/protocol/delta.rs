//! The rules of the incremental variant.

use std::collections::BTreeMap;

use pilotfish_protos::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use pilotfish_xds::TypeUrl::{
    self, Cluster, Endpoints, ExtensionConfig, Listener, Route, Secret, VirtualHost,
};
use pilotfish_xds::{Protocol, RequestError, SessionConfig, Verdict, View};

use crate::support::{Delta, delta, delta_ack, error, names, resource, set, view};

#[test]
fn an_empty_first_request_means_everything_and_only_changes_follow() {
    let mut s = Delta::new();
    s.subscribe(&Cluster, &[], &[]);
    let first = s
        .push(&Cluster, &view(&Cluster, &[("a", "1"), ("b", "1")]))
        .unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    s.ack(&first);
    assert!(
        s.push(&Cluster, &view(&Cluster, &[("a", "1"), ("b", "1")]))
            .is_none()
    );
    let second = s
        .push(
            &Cluster,
            &view(&Cluster, &[("a", "1"), ("b", "2"), ("c", "1")]),
        )
        .unwrap();
    assert_eq!(names(&second), ["b", "c"]);
    assert_ne!(first.nonce, second.nonce);
    assert_eq!(
        second.resources[0].version,
        resource(&Cluster, "b", "2").version.to_string()
    );
}

#[test]
fn a_first_request_is_answered_even_if_there_is_nothing() {
    for t in [Cluster, Listener, Route, Endpoints] {
        let mut s = Delta::new();
        s.subscribe(&t, &[], &[]);
        let first = s.push(&t, &View::default()).unwrap();
        assert!(first.resources.is_empty() && first.removed_resources.is_empty());
        s.ack(&first);
        assert!(s.push(&t, &View::default()).is_none());
    }
}

#[test]
fn what_a_proxy_does_without_is_reported_missing() {
    for t in [Secret, ExtensionConfig] {
        let mut s = Delta::new();
        s.subscribe(&t, &["a"], &[]);
        let first = s.push(&t, &View::default()).unwrap();
        assert_eq!(first.removed_resources, ["a"]);
        s.ack(&first);
        assert_eq!(names(&s.push(&t, &view(&t, &[("a", "1")])).unwrap()), ["a"]);
    }
}

#[test]
fn an_empty_first_request_for_endpoints_subscribes_to_nothing() {
    let mut s = Delta::new();
    s.subscribe(&Endpoints, &[], &[]);
    let first = s
        .push(&Endpoints, &view(&Endpoints, &[("a", "1")]))
        .unwrap();
    assert!(first.resources.is_empty());
    s.subscribe(&Endpoints, &["*"], &[]);
    assert_eq!(
        names(
            &s.push(&Endpoints, &view(&Endpoints, &[("a", "1")]))
                .unwrap()
        ),
        ["a"]
    );
}

#[test]
fn what_does_not_exist_is_reported_and_sent_once_it_does() {
    let mut s = Delta::new();
    s.subscribe(&Endpoints, &["a", "b"], &[]);
    let first = s
        .push(&Endpoints, &view(&Endpoints, &[("a", "1")]))
        .unwrap();
    assert_eq!(
        (names(&first), &first.removed_resources),
        (vec!["a"], &vec!["b".to_string()])
    );
    s.ack(&first);
    let second = s
        .push(
            &Endpoints,
            &view(&Endpoints, &[("a", "1"), ("b", "1"), ("c", "1")]),
        )
        .unwrap();
    assert_eq!(names(&second), ["b"]);
}

#[test]
fn a_name_subscribed_again_is_sent_again() {
    let mut s = Delta::new();
    let all = view(&Endpoints, &[("a", "1"), ("b", "1")]);
    s.subscribe(&Endpoints, &["a", "b"], &[]);
    let first = s.push(&Endpoints, &all).unwrap();
    s.ack(&first);
    s.subscribe(&Endpoints, &["a"], &[]);
    assert_eq!(names(&s.push(&Endpoints, &all).unwrap()), ["a"]);
    s.subscribe(&Endpoints, &[], &["b"]);
    assert!(!s.wants(&Endpoints));
    assert!(
        s.push(&Endpoints, &view(&Endpoints, &[("a", "1"), ("b", "2")]))
            .is_none()
    );
    s.subscribe(&Endpoints, &["b"], &[]);
    assert_eq!(names(&s.push(&Endpoints, &all).unwrap()), ["b"]);
}

#[test]
fn phantom_and_duplicate_unsubscriptions_do_nothing() {
    let mut s = Delta::new();
    let all = view(&Endpoints, &[("a", "1"), ("b", "1")]);
    s.subscribe(&Endpoints, &["a"], &[]);
    s.push(&Endpoints, &all).unwrap();
    for _ in 0..2 {
        s.subscribe(&Endpoints, &[], &["b", "nobody"]);
        assert!(s.push(&Endpoints, &all).is_none());
    }
    for _ in 0..2 {
        s.subscribe(&Endpoints, &[], &["a"]);
        assert!(s.push(&Endpoints, &all).is_none());
    }
    assert!(
        s.push(&Endpoints, &view(&Endpoints, &[("a", "2")]))
            .is_none()
    );
}

#[test]
fn unsubscribing_a_name_under_the_wildcard_is_answered() {
    let mut s = Delta::new();
    let all = view(&Cluster, &[("a", "1"), ("b", "1")]);
    s.subscribe(&Cluster, &["*", "a", "x"], &[]);
    let first = s.push(&Cluster, &all).unwrap();
    assert_eq!(
        (names(&first), &first.removed_resources),
        (vec!["a", "b"], &vec!["x".to_string()])
    );
    s.subscribe(&Cluster, &[], &["a"]);
    assert_eq!(names(&s.push(&Cluster, &all).unwrap()), ["a"]);
    s.subscribe(&Cluster, &[], &["x"]);
    let third = s.push(&Cluster, &all).unwrap();
    assert_eq!(
        (third.resources.len(), third.removed_resources),
        (0, vec!["x".to_string()])
    );
}

#[test]
fn wildcard_to_named_and_back() {
    let mut s = Delta::new();
    let all = view(&Cluster, &[("a", "1"), ("b", "1"), ("c", "1")]);
    s.subscribe(&Cluster, &[], &[]);
    s.push(&Cluster, &all).unwrap();
    s.subscribe(&Cluster, &["a"], &["*"]);
    assert_eq!(names(&s.push(&Cluster, &all).unwrap()), ["a"]);
    let b2 = view(&Cluster, &[("a", "1"), ("b", "2"), ("c", "1")]);
    assert!(s.push(&Cluster, &b2).is_none());
    s.subscribe(&Cluster, &["*"], &[]);
    assert_eq!(names(&s.push(&Cluster, &b2).unwrap()), ["a", "b", "c"]);
    s.subscribe(&Cluster, &[], &["*"]);
    s.subscribe(&Cluster, &[], &["a"]);
    assert!(
        s.push(&Cluster, &view(&Cluster, &[("a", "9")])).is_none(),
        "nothing is subscribed to any more"
    );
}

#[test]
fn subscriptions_count_even_with_a_stale_nonce() {
    let mut s = Delta::new();
    let all = view(&Endpoints, &[("a", "1"), ("b", "1")]);
    s.subscribe(&Endpoints, &["a"], &[]);
    let first = s.push(&Endpoints, &all).unwrap();
    s.ack(&first);
    let second = s
        .push(&Endpoints, &view(&Endpoints, &[("a", "2"), ("b", "1")]))
        .unwrap();
    let stale = DeltaDiscoveryRequest {
        resource_names_subscribe: vec!["b".into()],
        ..delta_ack(&first)
    };
    assert_eq!(s.request(stale), Verdict::Stale);
    assert_eq!(names(&s.push(&Endpoints, &all).unwrap()), ["a", "b"]);
    s.ack(&second);
}

#[test]
fn a_rejected_version_is_not_sent_again_until_the_content_changes() {
    let mut s = Delta::new();
    s.subscribe(&Cluster, &[], &[]);
    let good = view(&Cluster, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let first = s.push(&Cluster, &good).unwrap();
    s.ack(&first);
    let bad = view(&Cluster, &[("a", "bad"), ("b", "2"), ("d", "1")]);
    let second = s.push(&Cluster, &bad).unwrap();
    assert_eq!(
        (names(&second), &second.removed_resources),
        (vec!["a", "b", "d"], &vec!["c".to_string()])
    );
    s.nack(&second);
    let watch = s.0.watches().get(&Cluster).unwrap();
    assert_eq!(watch.rejected().unwrap().message, "bad");
    for _ in 0..3 {
        assert!(s.push(&Cluster, &bad).is_none());
    }
    // All of the rejected response comes along, since none, some or all of it may have been applied.
    let third = s
        .push(&Cluster, &view(&Cluster, &[("a", "3"), ("b", "2")]))
        .unwrap();
    assert_eq!(names(&third), ["a", "b"]);
    assert_eq!(third.removed_resources, ["c", "d"]);
    s.ack(&third);
    assert!(s.0.watches().get(&Cluster).unwrap().rejected().is_none());
    let fourth = s
        .push(&Cluster, &view(&Cluster, &[("a", "4"), ("b", "2")]))
        .unwrap();
    assert_eq!(names(&fourth), ["a"]);
}

#[test]
fn a_rejected_subscription_is_made_good_with_the_next_change() {
    let mut s = Delta::new();
    let all = view(&Endpoints, &[("a", "1"), ("b", "bad")]);
    s.subscribe(&Endpoints, &["a"], &[]);
    let first = s.push(&Endpoints, &all).unwrap();
    s.ack(&first);
    s.subscribe(&Endpoints, &["b"], &[]);
    let second = s.push(&Endpoints, &all).unwrap();
    s.nack(&second);
    assert!(s.push(&Endpoints, &all).is_none());
    assert_eq!(
        names(
            &s.push(&Endpoints, &view(&Endpoints, &[("a", "2"), ("b", "bad")]))
                .unwrap()
        ),
        ["a", "b"]
    );
}

#[test]
fn a_reconnecting_client_gets_what_differs_and_learns_what_is_gone() {
    let held = |t: &TypeUrl| {
        ["a", "b", "gone"]
            .map(|n| (n.to_string(), resource(t, n, "1").version.to_string()))
            .into_iter()
            .collect()
    };
    let mut s = Delta::new();
    s.request(DeltaDiscoveryRequest {
        initial_resource_versions: held(&Listener),
        response_nonce: "00000001.7".into(),
        ..delta(&Listener, &["*"], &[])
    });
    let first = s
        .push(
            &Listener,
            &view(&Listener, &[("a", "1"), ("b", "2"), ("c", "1")]),
        )
        .unwrap();
    assert_eq!(
        (names(&first), &first.removed_resources),
        (vec!["b", "c"], &vec!["gone".to_string()])
    );

    let mut s = Delta::new();
    s.request(DeltaDiscoveryRequest {
        initial_resource_versions: held(&Route),
        ..delta(&Route, &["a", "b", "gone", "x"], &[])
    });
    let first = s
        .push(&Route, &view(&Route, &[("a", "1"), ("b", "2"), ("c", "1")]))
        .unwrap();
    assert_eq!(names(&first), ["b"]);
    assert_eq!(first.removed_resources, ["gone", "x"]);
}

#[test]
fn nonces_of_another_stream_make_a_first_request() {
    let mut old = Delta::new();
    old.subscribe(&Cluster, &[], &[]);
    let response = old.push(&Cluster, &view(&Cluster, &[("a", "1")])).unwrap();
    let mut s = Delta(pilotfish_xds::delta::Session::new(SessionConfig {
        stream: 1,
        ..SessionConfig::default()
    }));
    assert_eq!(s.request(delta_ack(&response)), Verdict::None);
    assert_eq!(
        names(&s.push(&Cluster, &view(&Cluster, &[("a", "1")])).unwrap()),
        ["a"]
    );
    assert_eq!(s.request(delta_ack(&response)), Verdict::Stale);
    let nack = DeltaDiscoveryRequest {
        error_detail: Some(error("old")),
        ..delta_ack(&response)
    };
    assert_eq!(s.request(nack), Verdict::Stale);
}

#[test]
fn changed_clusters_are_followed_by_their_endpoints() {
    let mut s = Delta::new();
    let endpoints = view(&Endpoints, &[("a", "1"), ("b", "1")]);
    s.subscribe(&Cluster, &[], &[]);
    let r = s
        .push(
            &Cluster,
            &view(&Cluster, &[("a", "1"), ("b", "1"), ("static", "1")]),
        )
        .unwrap();
    s.ack(&r);
    s.subscribe(&Endpoints, &["a", "b"], &[]);
    let r = s.push(&Endpoints, &endpoints).unwrap();
    s.ack(&r);
    let r = s
        .push(
            &Cluster,
            &view(&Cluster, &[("a", "2"), ("b", "1"), ("static", "2")]),
        )
        .unwrap();
    s.ack(&r);
    let r = s.push(&Endpoints, &endpoints).unwrap();
    assert_eq!((names(&r), r.removed_resources.len()), (vec!["a"], 0));
    s.ack(&r);
    assert!(s.push(&Endpoints, &endpoints).is_none());
}

type Versions = BTreeMap<String, String>;

fn versions(response: &DeltaDiscoveryResponse) -> Versions {
    let all = response.resources.iter();
    all.map(|r| (r.name.clone(), r.version.clone())).collect()
}

/// A stream of a client that holds that. What it was sent of clusters and endpoints first.
fn come_back(
    held: (&Versions, &Versions),
    clusters: &View,
    endpoints: &View,
) -> (Delta, DeltaDiscoveryResponse, DeltaDiscoveryResponse) {
    let mut s = Delta::new();
    let ask = |t: &TypeUrl, names: &[&str], held: &Versions| DeltaDiscoveryRequest {
        initial_resource_versions: held.clone(),
        ..delta(t, names, &[])
    };
    s.request(ask(&Cluster, &["*"], held.0));
    let sent = s.push(&Cluster, clusters).unwrap();
    s.request(ask(&Endpoints, &["a", "b"], held.1));
    let follows = s.push(&Endpoints, endpoints).unwrap();
    (s, sent, follows)
}

#[test]
fn after_a_reconnect_endpoints_are_sent_to_clusters_that_may_wait_for_them() {
    let clusters = view(&Cluster, &[("a", "1"), ("b", "1")]);
    let changed = view(&Cluster, &[("a", "2"), ("b", "1")]);
    let endpoints = view(&Endpoints, &[("a", "1"), ("b", "1")]);
    let nothing = Versions::new();
    let (mut s, first, follows) = come_back((&nothing, &nothing), &clusters, &endpoints);
    assert_eq!(names(&follows), ["a", "b"]);
    let (held, had) = (versions(&first), versions(&follows));

    // It has everything.
    let (_, sent, follows) = come_back((&held, &had), &clusters, &endpoints);
    assert_eq!((names(&sent).len(), names(&follows).len()), (0, 0));
    // Other endpoints, or another cluster.
    let others = view(&Endpoints, &[("a", "1"), ("b", "2")]);
    let (_, sent, follows) = come_back((&held, &had), &clusters, &others);
    assert_eq!((names(&sent).len(), names(&follows)), (0, vec!["b"]));
    let (_, sent, follows) = come_back((&held, &had), &changed, &endpoints);
    assert_eq!((names(&sent), names(&follows)), (vec!["a"], vec!["a"]));

    // The stream broke after the changed cluster had come, before its endpoints did.
    let r = s.push(&Cluster, &changed).unwrap();
    let warms: Versions = held.clone().into_iter().chain(versions(&r)).collect();
    let r = s.push(&Endpoints, &endpoints).unwrap();
    assert_eq!(names(&r), ["a"]);
    let (_, sent, follows) = come_back((&warms, &had), &changed, &endpoints);
    assert_eq!((names(&sent).len(), names(&follows)), (0, vec!["a"]));
    // It broke after both.
    let has: Versions = had.clone().into_iter().chain(versions(&r)).collect();
    let (_, sent, follows) = come_back((&warms, &has), &changed, &endpoints);
    assert_eq!((names(&sent).len(), names(&follows).len()), (0, 0));
    // The changed cluster was rejected, and its endpoints were taken; now it takes both.
    let (_, sent, follows) = come_back((&held, &has), &changed, &endpoints);
    assert_eq!((names(&sent), names(&follows)), (vec!["a"], vec!["a"]));
}

#[test]
fn without_their_clusters_endpoints_are_sent_whatever_the_client_holds() {
    let endpoints = view(&Endpoints, &[("a", "1"), ("b", "1")]);
    let mut s = Delta::new();
    s.subscribe(&Endpoints, &["a", "b"], &[]);
    let first = s.push(&Endpoints, &endpoints).unwrap();
    let again = DeltaDiscoveryRequest {
        initial_resource_versions: versions(&first),
        ..delta(&Endpoints, &["a", "b"], &[])
    };
    let mut s = Delta::new();
    s.request(again);
    assert_eq!(names(&s.push(&Endpoints, &endpoints).unwrap()), ["a", "b"]);
    assert!(s.push(&Endpoints, &endpoints).is_none());
    // Named clusters are as good as none: which of them were sent is not remembered.
    let mut s = Delta::new();
    s.subscribe(&Cluster, &["a"], &[]);
    s.push(&Cluster, &view(&Cluster, &[("a", "1")])).unwrap();
    s.subscribe(&Endpoints, &["a"], &[]);
    let named = s.push(&Endpoints, &endpoints).unwrap();
    assert_eq!(versions(&named)["a"], versions(&first)["a"]);
}

#[test]
fn clusters_are_removed_after_what_refers_to_them() {
    let mut s = Delta::new();
    s.subscribe(&Cluster, &[], &[]);
    s.subscribe(&Route, &["r"], &[]);
    let r = s
        .push(&Cluster, &view(&Cluster, &[("a", "1"), ("b", "1")]))
        .unwrap();
    s.ack(&r);
    let r = s.push(&Cluster, &view(&Cluster, &[("b", "2")])).unwrap();
    assert_eq!((names(&r), r.removed_resources.len()), (vec!["b"], 0));
    s.ack(&r);
    assert!(s.0.watches().get(&Cluster).unwrap().is_lingering());
    let r = s.withdraw(&Cluster).unwrap();
    assert_eq!(
        (r.resources.len(), &r.removed_resources),
        (0, &vec!["a".to_string()])
    );
    s.ack(&r);
    assert!(s.withdraw(&Cluster).is_none());
    // A removal alone sends nothing at first; one that is taken back sends the resource.
    assert!(s.push(&Cluster, &View::default()).is_none());
    let r = s.push(&Cluster, &view(&Cluster, &[("b", "2")])).unwrap();
    assert_eq!(names(&r), ["b"]);
    assert!(s.withdraw(&Cluster).is_none());
}

#[test]
fn sections_may_change_without_the_client_noticing() {
    let mut s = Delta::new();
    s.subscribe(&Cluster, &[], &[]);
    let (x, y) = (set(&Cluster, &[("a", "1")]), set(&Cluster, &[("b", "1")]));
    assert_eq!(
        names(
            &s.push(&Cluster, &View::new([x.clone(), y.clone()]))
                .unwrap()
        ),
        ["a", "b"]
    );
    assert!(
        s.push(&Cluster, &View::new([y.clone(), x.clone()]))
            .is_none()
    );
    assert!(
        s.push(&Cluster, &view(&Cluster, &[("a", "1"), ("b", "1")]))
            .is_none()
    );
    // A name in two sections is sent once.
    let doubled = View::new([x, y, set(&Cluster, &[("b", "2"), ("c", "1")])]);
    assert_eq!(names(&s.push(&Cluster, &doubled).unwrap()), ["c"]);
}

#[test]
fn virtual_hosts_are_subscribed_to_by_route_table() {
    let mut s = Delta::new();
    let hosts = view(
        &VirtualHost,
        &[("80/a", "1"), ("80/b", "1"), ("8080/a", "1")],
    );
    s.subscribe(&VirtualHost, &["80"], &[]);
    let r = s.push(&VirtualHost, &hosts).unwrap();
    assert_eq!(
        (names(&r), r.removed_resources.len()),
        (vec!["80/a", "80/b"], 0)
    );
    s.ack(&r);
    let hosts = view(
        &VirtualHost,
        &[("80/b", "2"), ("80/c", "1"), ("8080/a", "2")],
    );
    let r = s.push(&VirtualHost, &hosts).unwrap();
    assert_eq!(
        (names(&r), &r.removed_resources),
        (vec!["80/b", "80/c"], &vec!["80/a".to_string()])
    );
    s.ack(&r);
    s.subscribe(&VirtualHost, &["80/nobody"], &[]);
    assert_eq!(
        s.push(&VirtualHost, &hosts).unwrap().removed_resources,
        ["80/nobody"]
    );
}

/// A client that joins a table takes what a response under way brings of it, though it asked for that alone and has
/// left it since.
#[test]
fn whoever_joins_a_table_is_told_what_left_it_meanwhile() {
    let mut s = Delta::new();
    s.subscribe(&VirtualHost, &["80/a"], &[]);
    let hosts = view(&VirtualHost, &[("80/a", "1"), ("80/b", "1")]);
    let under_way = s.push(&VirtualHost, &hosts).unwrap();
    assert_eq!(names(&under_way), ["80/a"]);
    s.subscribe(&VirtualHost, &[], &["80/a"]);
    let hosts = view(&VirtualHost, &[("80/b", "1")]);
    assert!(s.push(&VirtualHost, &hosts).is_none());
    s.subscribe(&VirtualHost, &["80"], &[]);
    let r = s.push(&VirtualHost, &hosts).unwrap();
    assert_eq!(
        (names(&r), &r.removed_resources),
        (vec!["80/b"], &vec!["80/a".to_string()])
    );
    // Who has left again before anything was sent is told nothing of it.
    s.subscribe(&VirtualHost, &["80"], &[]);
    s.subscribe(&VirtualHost, &[], &["80"]);
    let nothing = s.push(&VirtualHost, &hosts);
    assert!(nothing.is_none_or(|r| names(&r).is_empty() && r.removed_resources.is_empty()));
}

#[test]
fn requests_beyond_the_limits_are_refused() {
    let config = SessionConfig {
        max_names: 3,
        max_name_bytes: 60,
        max_types: 2,
        ..SessionConfig::default()
    };
    let mut s = pilotfish_xds::delta::Session::new(config);
    assert_eq!(
        s.on_request(DeltaDiscoveryRequest::default()),
        Err(RequestError::WrongType(String::new()))
    );
    let t = TypeUrl::parse("t");
    s.on_request(delta(&t, &["1", "2"], &[])).unwrap();
    s.on_request(delta(&t, &["3"], &[])).unwrap();
    assert_eq!(
        s.on_request(delta(&t, &["4"], &[])),
        Err(RequestError::TooManyNames(3))
    );
    assert_eq!(
        s.on_request(delta(&t, &["1"; 4], &[])),
        Err(RequestError::TooManyNames(3))
    );
    assert_eq!(
        s.on_request(delta(&t, &[&"x".repeat(61)], &[])),
        Err(RequestError::NameTooLong(60))
    );
    s.on_request(delta(&TypeUrl::parse("u"), &[], &[])).unwrap();
    assert_eq!(
        s.on_request(delta(&TypeUrl::parse("v"), &[], &[])),
        Err(RequestError::TooManyTypes(2))
    );
}
