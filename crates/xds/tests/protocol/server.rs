//! A real server on loopback, raw clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pilotfish_protos::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use pilotfish_xds::TypeUrl::{self, Cluster, Endpoints, Listener, Route, Secret, Workload};
use pilotfish_xds::{Generation, Limits, NewStreams, Observer, Push};
use tonic::Code;

use crate::support::{
    ADS_DELTA, Client, Running, channel, contents, delta, delta_ack, error, limits, names, node,
    resource, sotw, sotw_ack,
};

type DeltaClient = Client<DeltaDiscoveryRequest, DeltaDiscoveryResponse>;
type SotwClient = Client<DiscoveryRequest, DiscoveryResponse>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delta_stream_from_connect_to_drain() {
    let run = Running::start(Limits {
        drain_period: Duration::from_millis(100),
        ..limits()
    });
    run.fake.put(&Cluster, "a", Some("1"));
    run.fake.put(&Cluster, "b", Some("1"));
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    assert_eq!(names(&client.acked().await), ["a", "b"]);
    run.fake.change(&Cluster, "b", Some("2"));
    let response = client.next().await;
    assert_eq!(names(&response), ["b"]);
    let info = &run.server.connections()[0];
    assert_eq!(
        (&*info.node_id, info.delta, info.types.len()),
        ("proxy", true, 1)
    );
    assert!(info.peer.is_some());
    let status = &info.types[0];
    assert_ne!(status.sent, status.acked);
    assert_eq!((status.generation, status.wildcard), (Generation(2), true));
    client.send(delta_ack(&response)).await;
    wait_until(|| run.server.connections()[0].types[0].acked_generation == Generation(2)).await;
    let held = run.server.held("proxy").unwrap();
    assert_eq!(
        held[&Cluster],
        [resource(&Cluster, "a", "1"), resource(&Cluster, "b", "2")]
    );
    assert!(run.server.held("nobody").is_none());
    let server = run.server.clone();
    run.stop().await;
    assert_eq!(client.end().await, Code::Ok);
    wait_until(|| server.connections().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_the_world_stream() {
    let run = Running::start(limits());
    run.fake.put(&Listener, "l", Some("l1"));
    run.fake.put(&Route, "r", Some("r1"));
    let mut client = run.sotw().await;
    client.first(&Listener, &[]).await;
    assert_eq!(contents(&Listener, &[], &client.acked(&[]).await), ["l1"]);
    client.send(sotw(&Route, &["r", "x"])).await;
    let first = client.acked(&["r", "x"]).await;
    assert_eq!(contents(&Route, &[], &first), ["r1"]);
    run.fake.change(&Route, "x", Some("x1"));
    let second = client.acked(&["r", "x"]).await;
    assert_eq!(contents(&Route, &[], &second), ["x1"]);
    // Stale: neither answered nor honoured.
    client.send(sotw_ack(&first, &["r", "x", "y"])).await;
    run.fake.change(&Route, "y", Some("y1"));
    client.silent().await;
    client.send(sotw_ack(&second, &["r", "y"])).await;
    assert_eq!(
        contents(&Route, &[], &client.acked(&["r", "y"]).await),
        ["y1"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_end_their_stream_and_no_other() {
    let run = Running::start(limits());
    run.fake.put(&Cluster, "a", Some("1"));
    let mut bystander = run.delta().await;
    bystander.first(&Cluster, &[]).await;
    bystander.acked().await;

    let nameless = [None, node("")];
    for n in nameless {
        let mut client = run.delta().await;
        client
            .send(DeltaDiscoveryRequest {
                node: n,
                ..delta(&Cluster, &[], &[])
            })
            .await;
        assert_eq!(client.end().await, Code::InvalidArgument);
    }
    let mut client = run.delta().await;
    client
        .first(&TypeUrl::parse("type.googleapis.com/no.Such"), &[])
        .await;
    assert_eq!(client.end().await, Code::InvalidArgument);

    let mut client = run.delta().await;
    client
        .send(DeltaDiscoveryRequest {
            node: node("p"),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    assert_eq!(client.end().await, Code::InvalidArgument);

    let mut client = run.sotw().await;
    client
        .first(&Endpoints, &["x".repeat(5 << 20).as_str()])
        .await;
    assert_eq!(client.end().await, Code::ResourceExhausted);

    let mut client = run.sotw().await;
    client.first(&Endpoints, &vec!["n"; 1_000_000]).await;
    assert_eq!(client.end().await, Code::ResourceExhausted);

    let mut client = run.delta().await;
    client.first(&Endpoints, &[]).await;
    let many: Vec<String> = (0..60_000).map(|i| format!("name-{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    client.send(delta(&Endpoints, &many, &[])).await;
    client.acked().await;
    let more: Vec<String> = (0..60_000).map(|i| format!("more-{i}")).collect();
    client
        .send(delta(
            &Endpoints,
            &more.iter().map(String::as_str).collect::<Vec<_>>(),
            &[],
        ))
        .await;
    assert_eq!(client.end().await, Code::ResourceExhausted);

    run.fake.change(&Cluster, "a", Some("2"));
    assert_eq!(names(&bystander.acked().await), ["a"]);
    wait_until(|| run.server.connections().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_of_another_version_is_left_unanswered() {
    let run = Running::start(limits());
    run.fake.put(&Cluster, "a", Some("1"));
    let mut client = run.delta().await;
    client.first(&Workload, &[]).await;
    client.silent().await;
    client.send(delta(&Cluster, &[], &[])).await;
    assert_eq!(names(&client.acked().await), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_ready_says_so() {
    let run = Running::start(limits());
    run.fake.ready.store(false, Ordering::Relaxed);
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    assert_eq!(client.end().await, Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_waited_for_in_silence() {
    let run = Running::start(limits());
    let mut client = run.sotw().await;
    client.first(&Secret, &["a"]).await;
    client.silent().await;
    run.fake.change(&Secret, "other", Some("1"));
    client.silent().await;
    run.fake.change(&Secret, "a", Some("1"));
    assert_eq!(contents(&Secret, &[], &client.acked(&["a"]).await), ["1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_type_services_and_unknown_paths() {
    let run = Running::start(limits());
    for t in [Cluster, Endpoints, Listener, Route, Secret] {
        run.fake.put(&t, "a", Some("1"));
    }
    let paths = [
        (
            Cluster,
            "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters",
        ),
        (
            Endpoints,
            "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints",
        ),
        (
            Listener,
            "/envoy.service.listener.v3.ListenerDiscoveryService/StreamListeners",
        ),
        (
            Route,
            "/envoy.service.route.v3.RouteDiscoveryService/StreamRoutes",
        ),
        (
            Secret,
            "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets",
        ),
    ];
    for (t, path) in paths {
        let mut client = SotwClient::open(run.address, path).await.unwrap();
        let request = DiscoveryRequest {
            type_url: String::new(),
            node: node("p"),
            ..sotw(&t, &["a"])
        };
        client.send(request).await;
        assert_eq!(contents(&t, &[], &client.next().await), ["1"]);
        let mut client = SotwClient::open(run.address, path).await.unwrap();
        client.first(&TypeUrl::Runtime, &["a"]).await;
        assert_eq!(client.end().await, Code::InvalidArgument);
    }
    let path = "/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints";
    let mut client = DeltaClient::open(run.address, path).await.unwrap();
    client
        .send(DeltaDiscoveryRequest {
            type_url: String::new(),
            node: node("p"),
            ..delta(&Endpoints, &["a"], &[])
        })
        .await;
    let response = client.next().await;
    assert_eq!(
        (names(&response), response.type_url.as_str()),
        (vec!["a"], Endpoints.as_str())
    );

    let unknown = DeltaClient::open(
        run.address,
        "/envoy.service.nothing.v3.Nothing/StreamNothing",
    )
    .await;
    assert_eq!(unknown.err().map(|s| s.code()), Some(Code::Unimplemented));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_goes_out_in_order_and_removes_clusters_last() {
    let run = Running::start(limits());
    for t in [Cluster, Endpoints, Listener, Route] {
        run.fake.put(&t, "old", Some("1"));
    }
    let mut client = run.delta().await;
    client.first(&Route, &["old", "new"]).await;
    client.acked().await;
    for (t, n) in [
        (Listener, &[][..]),
        (Endpoints, &["old", "new"]),
        (Cluster, &[]),
    ] {
        client.send(delta(&t, n, &[])).await;
        client.acked().await;
    }
    // What the clusters brought along: their endpoints again.
    let again = client.acked().await;
    assert_eq!(
        (again.type_url.as_str(), names(&again)),
        (Endpoints.as_str(), vec!["old"])
    );
    for t in [Route, Listener, Endpoints, Cluster] {
        run.fake.put(&t, "new", Some("1"));
        run.fake.put(&t, "old", None);
    }
    run.fake.commit();
    let mut seen = Vec::new();
    let mut routes = None;
    for _ in 0..4 {
        let r = client.next().await;
        seen.push((
            TypeUrl::parse(&r.type_url).short(),
            r.resources.len(),
            r.removed_resources.len(),
        ));
        if r.type_url == Route.as_str() {
            routes = Some(r);
        } else {
            client.send(delta_ack(&r)).await;
        }
    }
    assert_eq!(
        seen,
        [("CDS", 1, 0), ("EDS", 1, 0), ("LDS", 1, 1), ("RDS", 1, 1)]
    );
    client.silent().await;
    client.send(delta_ack(&routes.unwrap())).await;
    let (r1, r2) = (client.acked().await, client.acked().await);
    let last = [&r1, &r2].map(|r| {
        (
            TypeUrl::parse(&r.type_url).short(),
            names(r),
            r.removed_resources.clone(),
        )
    });
    assert_eq!(
        last,
        [
            ("CDS", vec![], vec!["old".to_string()]),
            ("EDS", vec![], vec!["old".to_string()])
        ]
    );
    client.silent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_clusters_go_in_the_end_even_if_routes_are_never_accepted() {
    let run = Running::start(Limits {
        removal_timeout: Duration::from_millis(300),
        ..limits()
    });
    run.fake.put(&Cluster, "a", Some("1"));
    run.fake.put(&Listener, "l", Some("1"));
    let mut client = run.sotw().await;
    client.first(&Cluster, &[]).await;
    client.acked(&[]).await;
    client.send(sotw(&Listener, &[])).await;
    client.acked(&[]).await;
    run.fake.put(&Cluster, "a", None);
    run.fake.put(&Cluster, "b", Some("b1"));
    run.fake.change(&Listener, "l", Some("bad"));
    assert_eq!(
        contents(&Cluster, &[], &client.acked(&[]).await),
        ["b1", "1"]
    );
    let listeners = client.next().await;
    client
        .send(DiscoveryRequest {
            error_detail: Some(error("no")),
            ..sotw_ack(&listeners, &[])
        })
        .await;
    client.silent().await;
    assert_eq!(contents(&Cluster, &[], &client.acked(&[]).await), ["b1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejection_stops_nothing_but_itself() {
    let run = Running::start(limits());
    run.fake.put(&Cluster, "a", Some("1"));
    run.fake.put(&Listener, "l", Some("1"));
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    client.acked().await;
    client.send(delta(&Listener, &[], &[])).await;
    client.acked().await;
    run.fake.change(&Cluster, "a", Some("bad"));
    let bad = client.next().await;
    client
        .send(DeltaDiscoveryRequest {
            error_detail: Some(error("bad cluster")),
            ..delta_ack(&bad)
        })
        .await;
    wait_until(|| run.server.connections()[0].types[0].rejected.is_some()).await;
    assert_eq!(
        run.server.connections()[0].types[0]
            .rejected
            .as_ref()
            .unwrap()
            .message,
        "bad cluster"
    );
    for i in 0..5 {
        run.fake.change(&Listener, "l", Some(&format!("{i}")));
        let r = client.acked().await;
        assert_eq!(
            r.type_url,
            Listener.as_str(),
            "the rejected clusters are not sent again"
        );
    }
    run.fake.change(&Cluster, "a", Some("good"));
    assert_eq!(names(&client.acked().await), ["a"]);
    wait_until(|| run.server.connections()[0].types[0].rejected.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnecting_client_is_sent_what_differs() {
    let run = Running::start(limits());
    for n in ["a", "b", "c"] {
        run.fake.put(&Listener, n, Some("1"));
    }
    let mut client = run.delta().await;
    client.first(&Listener, &[]).await;
    let first = client.acked().await;
    drop(client);
    run.fake.put(&Listener, "b", Some("2"));
    run.fake.change(&Listener, "c", None);
    let mut client = run.delta().await;
    client
        .send(DeltaDiscoveryRequest {
            node: node("proxy"),
            response_nonce: first.nonce.clone(),
            initial_resource_versions: first
                .resources
                .iter()
                .map(|r| (r.name.clone(), r.version.clone()))
                .collect(),
            ..delta(&Listener, &["*"], &[])
        })
        .await;
    let again = client.acked().await;
    assert_eq!(
        (names(&again), &again.removed_resources),
        (vec!["b"], &vec!["c".to_string()])
    );
    assert_ne!(first.nonce, again.nonce);
    wait_until(|| run.server.connections().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_at_its_age() {
    let run = Running::start(Limits {
        max_age: Some(Duration::from_millis(200)),
        ..limits()
    });
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    client.acked().await;
    assert_eq!(client.end().await, Code::Ok);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_at_once() {
    let as_they_cost = Limits {
        new_streams: NewStreams::AsTheyCost,
        ..limits()
    };
    let watch = Arc::new(Watch::default());
    let run = Running::start_watched(as_they_cost, watch.clone());
    for i in 0..50 {
        run.fake.put(&Cluster, &format!("c{i}"), Some("1"));
    }
    // Each has a TCP connection of its own, as proxies do.
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let address = run.address;
        tasks.spawn(async move {
            let channel = channel(address).await;
            let mut client = DeltaClient::open_on(channel, ADS_DELTA).await.unwrap();
            client.first(&Cluster, &[]).await;
            assert_eq!(client.acked().await.resources.len(), 50);
            let changed = client.acked().await;
            assert_eq!(names(&changed), ["c7"]);
        });
    }
    wait_until(|| {
        let connections = run.server.connections();
        connections.len() == 1000
            && connections
                .iter()
                .all(|c| c.types.first().is_some_and(|t| t.acked.is_some()))
    })
    .await;
    assert_eq!(watch.refused.load(Ordering::Relaxed), 0);
    run.fake.change(&Cluster, "c7", Some("2"));
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    wait_until(|| run.server.connections().is_empty()).await;
}

/// How many streams were refused, and how long each response took to make.
#[derive(Default)]
struct Watch {
    refused: AtomicUsize,
    took: Mutex<Vec<Duration>>,
}

impl Observer for Watch {
    fn refused(&self, _: &tonic::Status) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn pushed(&self, _: &str, push: &Push<'_>) {
        self.took.lock().unwrap().push(push.took);
    }
}

/// Streams are admitted at the pace that their cost allows. If waiting for each other counted as cost, more would wait, and
/// admission would become slower the more there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_turn_costs_nothing() {
    let (clients, each) = (20, Duration::from_millis(20));
    let watch = Arc::new(Watch::default());
    let one_at_a_time = Limits {
        cores: 1,
        ..limits()
    };
    let run = Running::start_watched(one_at_a_time, watch.clone());
    *run.fake.view_takes.lock().unwrap() = each;
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(run.delta().await);
    }
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for mut client in all {
        tasks.spawn(async move {
            client.first(&Cluster, &[]).await;
            client.acked().await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let (took, passed) = (watch.took.lock().unwrap(), start.elapsed());
    assert_eq!(took.len(), clients);
    let sum: Duration = took.iter().sum();
    assert!(sum >= each * clients as u32, "{sum:?}");
    // One core cannot have worked for longer than time has passed; with their waits it would be ten times that.
    assert!(sum < passed * 2, "{sum:?} of {passed:?}");
}

/// One thread serves all connections here. It must not be the one that computes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn who_computes_holds_nobody_else_up() {
    let run = Running::start(limits());
    let fake = run.fake.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (held, holds) = std::sync::mpsc::channel();
    // Not on a clock of the runtime, which stands still if all its threads do.
    let holder = std::thread::spawn(move || {
        let _stopped = fake.stopped.lock().unwrap();
        held.send(()).unwrap();
        stopped.recv_timeout(Duration::from_secs(20)) == Err(RecvTimeoutError::Timeout)
    });
    holds.recv().unwrap();
    let mut waits = run.delta().await;
    waits.first(&Cluster, &[]).await;
    wait_until(|| run.fake.views.load(Ordering::Relaxed) == 1).await;
    // Refused without a view: its node has no name.
    let mut other = run.delta().await;
    other.send(DeltaDiscoveryRequest::default()).await;
    assert_eq!(other.end().await, Code::InvalidArgument);
    drop(stop);
    let held_up = holder.join().unwrap();
    assert!(!held_up, "nobody was answered while one view was made");
    waits.acked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_cannot_be_made_ends_its_stream_and_no_other() {
    let run = Running::start(Limits {
        cores: 1,
        ..limits()
    });
    run.fake.panics.store(true, Ordering::Relaxed);
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    assert_eq!(client.end().await, Code::Internal);
    wait_until(|| run.server.connections().is_empty()).await;
    run.fake.panics.store(false, Ordering::Relaxed);
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    client.acked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_streams_are_refused() {
    let run = Running::start(Limits {
        max_concurrent_streams: 2,
        ..limits()
    });
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = run.delta().await;
        client.first(&Cluster, &[]).await;
        client.acked().await;
        clients.push(client);
    }
    let mut third = run.delta().await;
    assert_eq!(third.end().await, Code::ResourceExhausted);
    drop(clients);
    wait_until(|| run.server.connections().is_empty()).await;
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    client.acked().await;
}

async fn wait_until(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !condition() {
        assert!(Instant::now() < end, "not in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
