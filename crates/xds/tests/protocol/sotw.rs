//! The rules of the state-of-the-world variant.

use pilotfish_protos::envoy::service::discovery::v3::DiscoveryRequest;
use pilotfish_xds::TypeUrl::{Cluster, Endpoints, ExtensionConfig, Listener, Route, Secret};
use pilotfish_xds::{Protocol, SessionConfig, Verdict, View};

use crate::support::{Sotw, contents, error, sotw_ack, view};

const AB: &[(&str, &str)] = &[("a", "a1"), ("b", "b1")];

#[test]
fn listeners_and_clusters_are_complete_and_sent_on_change_only() {
    let mut s = Sotw::new();
    s.subscribe(&Listener, &[]);
    let first = s.push(&Listener, &view(&Listener, AB)).unwrap();
    assert_eq!(contents(&Listener, AB, &first), ["a", "b"]);
    s.ack(&first, &[]);
    assert!(s.push(&Listener, &view(&Listener, AB)).is_none());
    let second = s
        .push(&Listener, &view(&Listener, &[("a", "a2"), ("b", "b1")]))
        .unwrap();
    assert_eq!(contents(&Listener, AB, &second), ["a2", "b"]);
    assert_ne!(first.version_info, second.version_info);
    s.ack(&second, &[]);
    let third = s.push(&Listener, &view(&Listener, AB)).unwrap();
    assert_eq!(
        third.version_info, first.version_info,
        "the version is the content"
    );
    s.ack(&third, &[]);
    assert_eq!(
        s.push(&Listener, &View::default()).unwrap().resources.len(),
        0
    );
}

#[test]
fn a_first_request_is_answered_even_if_there_is_nothing() {
    for t in [Cluster, Listener, Route, Endpoints] {
        let mut s = Sotw::new();
        s.request(DiscoveryRequest {
            version_info: "held".into(),
            ..crate::support::sotw(&t, &["x"])
        });
        let first = s.push(&t, &View::default()).unwrap();
        assert!(first.resources.is_empty());
        s.ack(&first, &["x"]);
        assert!(s.push(&t, &View::default()).is_none());
    }
}

#[test]
fn what_a_proxy_does_without_is_not_answered_until_it_comes() {
    for t in [Secret, ExtensionConfig] {
        let mut s = Sotw::new();
        s.subscribe(&t, &["a"]);
        assert!(s.push(&t, &View::default()).is_none());
        assert!(!s.0.watches().get(&t).unwrap().wants_answer());
        // Asked again, for more, of which there is none either.
        s.subscribe(&t, &["a"]);
        s.subscribe(&t, &["a", "b"]);
        assert!(s.push(&t, &view(&t, &[("c", "c1")])).is_none());
        let r = s.push(&t, &view(&t, AB)).unwrap();
        assert_eq!(contents(&t, AB, &r), ["a", "b"]);
        s.ack(&r, &["a", "b"]);
        s.request(sotw_ack(&r, &["a", "b", "later"]));
        assert!(s.push(&t, &view(&t, AB)).is_none());
        assert!(
            s.push(&t, &view(&t, &[("b", "b1")])).is_none(),
            "a removal alone is not news"
        );
        let r = s.push(&t, &view(&t, &[("b", "b1"), ("later", "l1")]));
        assert_eq!(contents(&t, AB, &r.unwrap()), ["l1"]);
    }
}

#[test]
fn endpoints_and_routes_are_sent_by_name_and_never_deleted_by_leaving_out() {
    for t in [Endpoints, Route] {
        let mut s = Sotw::new();
        s.subscribe(&t, &["a", "b", "later"]);
        let all = &[("a", "a1"), ("b", "b1"), ("c", "c1")];
        let first = s.push(&t, &view(&t, all)).unwrap();
        assert_eq!(contents(&t, all, &first), ["a", "b"]);
        s.ack(&first, &["a", "b", "later"]);
        let second = s.push(&t, &view(&t, &[("b", "b2"), ("c", "c2")])).unwrap();
        assert_eq!(contents(&t, all, &second), ["b2"]);
        s.ack(&second, &["a", "b", "later"]);
        assert!(
            s.push(&t, &view(&t, &[("c", "c2")])).is_none(),
            "a removal alone is not news"
        );
        let third = s.push(&t, &view(&t, &[("later", "l1")])).unwrap();
        assert_eq!(contents(&t, all, &third), ["l1"]);
    }
}

#[test]
fn a_stale_nonce_is_not_answered() {
    let mut s = Sotw::new();
    let v1 = view(&Endpoints, AB);
    s.subscribe(&Endpoints, &["a"]);
    let first = s.push(&Endpoints, &v1).unwrap();
    s.ack(&first, &["a"]);
    let v2 = view(&Endpoints, &[("a", "a2"), ("b", "b1")]);
    let second = s.push(&Endpoints, &v2).unwrap();
    assert_eq!(s.request(sotw_ack(&first, &["a", "b"])), Verdict::Stale);
    let nack = DiscoveryRequest {
        error_detail: Some(error("late")),
        ..sotw_ack(&first, &["a"])
    };
    assert_eq!(s.request(nack), Verdict::Stale);
    assert!(s.push(&Endpoints, &v2).is_none());
    s.ack(&second, &["a", "b"]);
    assert_eq!(
        contents(&Endpoints, AB, &s.push(&Endpoints, &v2).unwrap()),
        ["b"]
    );
}

#[test]
fn wildcard_to_named_to_empty_is_unsubscribed() {
    let mut s = Sotw::new();
    let all = view(&Cluster, AB);
    s.subscribe(&Cluster, &[]);
    let r = s.push(&Cluster, &all).unwrap();
    assert_eq!(r.resources.len(), 2);
    s.ack(&r, &["a"]);
    let r = s.push(&Cluster, &all).unwrap();
    assert_eq!(contents(&Cluster, AB, &r), ["a"]);
    s.ack(&r, &[]);
    assert!(s.push(&Cluster, &view(&Cluster, &[("a", "a2")])).is_none());
    s.request(sotw_ack(&r, &["*"]));
    let r = s.push(&Cluster, &all).unwrap();
    assert_eq!(contents(&Cluster, AB, &r), ["a", "b"]);
    s.ack(&r, &[]);
    assert!(
        s.push(&Cluster, &view(&Cluster, &[("a", "a3")])).is_none(),
        "the star was taken back"
    );
}

#[test]
fn an_empty_list_stays_a_wildcard_while_nothing_was_named() {
    let mut s = Sotw::new();
    s.subscribe(&Cluster, &[]);
    let r = s.push(&Cluster, &view(&Cluster, AB)).unwrap();
    s.ack(&r, &[]);
    assert_eq!(
        s.push(&Cluster, &view(&Cluster, &[("a", "a2")]))
            .unwrap()
            .resources
            .len(),
        1
    );
}

#[test]
fn a_star_in_a_stale_request_ends_the_meaning_of_the_empty_list() {
    let mut s = Sotw::new();
    s.subscribe(&Cluster, &[]);
    let first = s.push(&Cluster, &view(&Cluster, AB)).unwrap();
    s.subscribe(&Cluster, &[]);
    let second = s.push(&Cluster, &view(&Cluster, AB)).unwrap();
    assert_eq!(s.request(sotw_ack(&first, &["*"])), Verdict::Stale);
    s.ack(&second, &[]);
    assert!(s.push(&Cluster, &view(&Cluster, &[("a", "a2")])).is_none());
}

#[test]
fn names_subscribed_again_are_sent_again() {
    let mut s = Sotw::new();
    let all = view(&Endpoints, AB);
    s.subscribe(&Endpoints, &["a", "b"]);
    let r = s.push(&Endpoints, &all).unwrap();
    s.ack(&r, &["a"]);
    assert!(s.push(&Endpoints, &all).is_none());
    s.request(sotw_ack(&r, &["a", "b"]));
    assert_eq!(
        contents(&Endpoints, AB, &s.push(&Endpoints, &all).unwrap()),
        ["b"]
    );
}

#[test]
fn a_subscription_that_grows_before_the_first_response_is_honoured() {
    let mut s = Sotw::new();
    let all = view(&Endpoints, AB);
    s.subscribe(&Endpoints, &["a"]);
    s.subscribe(&Endpoints, &["a", "b"]);
    let r = s.push(&Endpoints, &all).unwrap();
    assert_eq!(contents(&Endpoints, AB, &r), ["a", "b"]);
    // Sent before the response arrived, read after it was sent.
    s.subscribe(&Endpoints, &["a", "b"]);
    assert_eq!(s.push(&Endpoints, &all).unwrap().resources.len(), 2);
    assert!(s.push(&Endpoints, &all).is_none());
}

#[test]
fn a_rejected_version_is_not_sent_again_until_the_content_changes() {
    let mut s = Sotw::new();
    s.subscribe(&Endpoints, &["a", "b"]);
    let r = s.push(&Endpoints, &view(&Endpoints, AB)).unwrap();
    s.ack(&r, &["a", "b"]);
    let bad = view(&Endpoints, &[("a", "bad"), ("b", "b2")]);
    let r = s.push(&Endpoints, &bad).unwrap();
    s.nack(&r, &["a", "b"]);
    assert!(s.push(&Endpoints, &bad).is_none());
    let r = s
        .push(&Endpoints, &view(&Endpoints, &[("a", "a3"), ("b", "b2")]))
        .unwrap();
    assert_eq!(
        contents(&Endpoints, &[], &r),
        ["a3", "b2"],
        "what came with the bad one was rejected with it"
    );
    s.ack(&r, &["a", "b"]);
    let r = s
        .push(&Endpoints, &view(&Endpoints, &[("a", "a4"), ("b", "b2")]))
        .unwrap();
    assert_eq!(contents(&Endpoints, &[], &r), ["a4"]);
}

#[test]
fn a_rejection_may_change_the_subscription() {
    let mut s = Sotw::new();
    s.subscribe(&Endpoints, &["a"]);
    let r = s.push(&Endpoints, &view(&Endpoints, AB)).unwrap();
    s.nack(&r, &["a", "b"]);
    assert_eq!(
        contents(
            &Endpoints,
            AB,
            &s.push(&Endpoints, &view(&Endpoints, AB)).unwrap()
        ),
        ["a", "b"]
    );
}

#[test]
fn nonces_of_another_stream_make_a_first_request() {
    let mut old = Sotw::new();
    old.subscribe(&Listener, &[]);
    let r = old.push(&Listener, &view(&Listener, AB)).unwrap();
    let mut s = Sotw(pilotfish_xds::sotw::Session::new(SessionConfig {
        stream: 9,
        ..SessionConfig::default()
    }));
    assert_eq!(s.request(sotw_ack(&r, &[])), Verdict::None);
    assert_eq!(
        s.push(&Listener, &view(&Listener, AB))
            .unwrap()
            .resources
            .len(),
        2
    );
    assert_eq!(s.request(sotw_ack(&r, &[])), Verdict::Stale);
}

#[test]
fn changed_clusters_are_followed_by_their_endpoints() {
    let mut s = Sotw::new();
    let endpoints = view(&Endpoints, AB);
    s.subscribe(&Cluster, &[]);
    s.subscribe(&Endpoints, &["a", "b"]);
    let r = s
        .push(&Cluster, &view(&Cluster, &[("a", "1"), ("b", "1")]))
        .unwrap();
    s.ack(&r, &[]);
    let r = s.push(&Endpoints, &endpoints).unwrap();
    s.ack(&r, &["a", "b"]);
    let r = s
        .push(&Cluster, &view(&Cluster, &[("a", "1"), ("b", "2")]))
        .unwrap();
    assert_eq!(r.resources.len(), 2);
    s.ack(&r, &[]);
    assert_eq!(
        contents(&Endpoints, AB, &s.push(&Endpoints, &endpoints).unwrap()),
        ["b"]
    );
}

#[test]
fn clusters_are_removed_after_what_refers_to_them() {
    let mut s = Sotw::new();
    s.subscribe(&Cluster, &[]);
    s.subscribe(&Route, &["r"]);
    let r = s.push(&Cluster, &view(&Cluster, AB)).unwrap();
    s.ack(&r, &[]);
    let r = s
        .push(&Cluster, &view(&Cluster, &[("b", "b1"), ("c", "c1")]))
        .unwrap();
    assert_eq!(
        contents(&Cluster, AB, &r),
        ["b", "c1", "a"],
        "new and old together"
    );
    s.ack(&r, &[]);
    let r = s.withdraw(&Cluster).unwrap();
    assert_eq!(contents(&Cluster, AB, &r), ["b", "c1"]);
    s.ack(&r, &[]);
    assert!(s.withdraw(&Cluster).is_none());
    assert!(
        s.push(&Cluster, &view(&Cluster, &[("b", "b1")])).is_none(),
        "a removal alone waits"
    );
    let r = s
        .push(&Cluster, &view(&Cluster, &[("b", "b1"), ("c", "c2")]))
        .unwrap();
    assert_eq!(contents(&Cluster, AB, &r), ["b", "c2"], "no name twice");
    assert!(s.withdraw(&Cluster).is_none());
}
