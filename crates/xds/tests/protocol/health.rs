//! Health reports: passed on, watched by nobody, and without an answer.

use pilotfish_protos::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use pilotfish_protos::google::rpc::Status;
use pilotfish_xds::TypeUrl::Cluster;

use crate::support::{Running, limits, names};

const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";

fn problem(text: &str) -> Status {
    Status {
        message: text.to_owned(),
        ..Status::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_are_passed_on_and_change_nothing() {
    let run = Running::start(limits());
    run.fake.put(&Cluster, "a", Some("1"));
    let mut client = run.delta().await;
    // An agent may be faster than its proxy: of what it says then, the last counts.
    for error_detail in [None, Some(problem("early"))] {
        let report = DeltaDiscoveryRequest {
            type_url: HEALTH.to_owned(),
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        client.send(report).await;
    }
    client.first(&Cluster, &[]).await;
    assert_eq!(names(&client.acked().await), ["a"]);
    let report = DeltaDiscoveryRequest {
        type_url: HEALTH.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    client.send(report).await;
    client.silent().await;
    run.fake.change(&Cluster, "b", Some("1"));
    assert_eq!(names(&client.acked().await), ["b"]);
    assert_eq!(run.server.connections()[0].types.len(), 1);
    let reports = run.fake.reports.lock().unwrap().clone();
    let said: Vec<_> = reports.iter().map(|(_, said)| said.as_deref()).collect();
    assert_eq!(said, [Some("early"), None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_variants_report() {
    let run = Running::start(limits());
    run.fake.put(&Cluster, "a", Some("1"));
    let mut client = run.sotw().await;
    client.first(&Cluster, &[]).await;
    client.next().await;
    let report = DiscoveryRequest {
        type_url: HEALTH.to_owned(),
        error_detail: Some(problem("no answer")),
        ..DiscoveryRequest::default()
    };
    client.send(report).await;
    client.silent().await;
    let reports = run.fake.reports.lock().unwrap().clone();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].1.as_deref(), Some("no answer"));
}
