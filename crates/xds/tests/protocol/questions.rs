//! Questions: answered once, on streams of their own and on those of proxies.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pilotfish_protos::envoy::config::core::v3::ControlPlane;
use pilotfish_protos::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use pilotfish_protos::google::protobuf::Any;
use pilotfish_xds::TypeUrl::{self, Cluster};
use pilotfish_xds::{Answer, Answering, Answers, Limits, Peer, Question};
use tonic::{Code, Status};

use crate::support::{Running, delta, delta_ack, limits, names, node, sotw, sotw_ack};

/// Answers with the names it was asked for; nobody may ask for `secret`.
struct Echo;

impl Answers for Echo {
    fn answer(&self, question: Question, peer: Peer) -> Answering {
        Box::pin(async move {
            assert!(peer.address.is_some());
            if question.names.iter().any(|name| name == "secret") {
                return Err(Status::permission_denied("not for you"));
            }
            let resource = |name: String| {
                let any = Any {
                    type_url: "istio.io/debug".to_owned(),
                    value: name.clone().into_bytes().into(),
                };
                (name, any)
            };
            Ok(Answer {
                control_plane: Some(ControlPlane {
                    identifier: "echo".to_owned(),
                }),
                resources: question.names.into_iter().map(resource).collect(),
            })
        })
    }
}

fn start(limits: Limits) -> Running {
    let run = Running::start(limits);
    run.server.answer_questions(Arc::new(Echo));
    run
}

fn debug() -> TypeUrl {
    TypeUrl::parse("istio.io/debug/syncz")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_only_asks_is_nobody() {
    let run = start(limits());
    // Neither a node nor a configuration is needed.
    run.fake.ready.store(false, Ordering::Relaxed);
    let mut client = run.sotw().await;
    let first = DiscoveryRequest {
        response_nonce: "2026-11-16 09:00:00 +0000 UTC".to_owned(),
        ..sotw(&debug(), &["a", "b"])
    };
    client.send(first).await;
    let answer = client.next().await;
    assert_eq!(answer.type_url, "istio.io/debug/syncz");
    assert_eq!(answer.control_plane.as_ref().unwrap().identifier, "echo");
    let values: Vec<_> = answer.resources.iter().map(|any| &any.value[..]).collect();
    assert_eq!(values, [b"a", b"b"]);
    assert!(run.server.connections().is_empty());
    // Saying that it came asks nothing; asking again does.
    client.send(sotw_ack(&answer, &["a"])).await;
    client.silent().await;
    client.send(sotw(&debug(), &["c"])).await;
    let again = client.next().await;
    assert_eq!(again.resources.len(), 1);
    assert_ne!(again.nonce, answer.nonce);
    // A change is no news to somebody who watches nothing.
    run.fake.change(&Cluster, "x", Some("1"));
    client.silent().await;
    assert_eq!(run.fake.views.load(Ordering::Relaxed), 0);
    // Nor can it become a proxy.
    client.first(&Cluster, &[]).await;
    assert_eq!(client.end().await, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_may_ask_in_between() {
    let run = start(limits());
    run.fake.put(&Cluster, "a", Some("1"));
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    assert_eq!(names(&client.acked().await), ["a"]);
    client.send(delta(&debug(), &["q"], &[])).await;
    let answer = client.next().await;
    assert_eq!(names(&answer), ["q"]);
    client.send(delta_ack(&answer)).await;
    // Its watches are what they were.
    run.fake.change(&Cluster, "b", Some("1"));
    assert_eq!(names(&client.acked().await), ["b"]);
    assert_eq!(run.server.connections()[0].types.len(), 1);
    assert!(run.server.connections()[0].types[0].sent_at.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_end_the_stream() {
    let run = start(limits());
    let mut client = run.sotw().await;
    client.send(sotw(&debug(), &["secret"])).await;
    assert_eq!(client.end().await, Code::PermissionDenied);
    let mut client = run.delta().await;
    client.send(delta(&debug(), &["secret"], &[])).await;
    assert_eq!(client.end().await, Code::PermissionDenied);
    // Without anybody who answers, the type is unknown.
    let silent = Running::start(limits());
    let mut client = silent.delta().await;
    let request = DeltaDiscoveryRequest {
        node: node("proxy"),
        ..delta(&debug(), &["a"], &[])
    };
    client.send(request).await;
    assert_eq!(client.end().await, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_no_more_is_let_go() {
    let run = start(Limits {
        first_request_timeout: Duration::from_millis(200),
        ..limits()
    });
    let mut client = run.sotw().await;
    client.send(sotw(&debug(), &["a"])).await;
    client.next().await;
    assert_eq!(client.end().await, Code::Ok);
    // Stopping does not wait for those who might.
    let run = start(limits());
    let mut client = run.sotw().await;
    client.send(sotw(&debug(), &["a"])).await;
    client.next().await;
    run.stop().await;
    assert_eq!(client.end().await, Code::Ok);
}
