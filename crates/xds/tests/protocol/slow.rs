//! Clients that read slowly, not at all, or never answer.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pilotfish_xds::Limits;
use pilotfish_xds::TypeUrl::{Cluster, Listener};
use tonic::Code;

use crate::support::{Running, delta, limits, names};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_answers_gets_one_response_and_then_all_at_once() {
    let run = Running::start(limits());
    run.fake.put(&Cluster, "a", Some("1"));
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    let first = client.next().await;
    for i in 2..20 {
        run.fake.change(&Cluster, "a", Some(&format!("{i}")));
        run.fake.change(&Cluster, &format!("b{i}"), Some("1"));
    }
    client.silent().await;
    client.send(crate::support::delta_ack(&first)).await;
    assert_eq!(client.acked().await.resources.len(), 19);
    client.silent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_never_comes_is_waited_for_only_so_long() {
    let run = Running::start(Limits {
        ack_timeout: Duration::from_millis(200),
        ..limits()
    });
    run.fake.put(&Cluster, "a", Some("1"));
    let mut client = run.delta().await;
    client.first(&Cluster, &[]).await;
    client.next().await;
    run.fake.change(&Cluster, "a", Some("2"));
    client.silent().await;
    assert_eq!(names(&client.next().await), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_answered_while_another_response_waits_for_its_answer() {
    let run = Running::start(limits());
    run.fake.put(&Cluster, "a", Some("1"));
    let mut client = run.delta().await;
    client.first(&Cluster, &["a"]).await;
    client.next().await;
    client.send(delta(&Cluster, &["b"], &[])).await;
    assert_eq!(client.next().await.removed_resources, ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_are_cut_off_and_hold_up_nobody() {
    let limits = Limits {
        send_timeout: Duration::from_secs(2),
        push_throttle: 2,
        ..limits()
    };
    let run = Running::start(limits);
    // Far more than the transport buffers on its own.
    let large = "x".repeat(8 << 20);
    run.fake.put(&Listener, "large", Some(&large));
    run.fake.put(&Cluster, "small", Some("1"));
    let mut stuck = Vec::new();
    for _ in 0..5 {
        let client = run.delta().await;
        client.first(&Listener, &[]).await;
        stuck.push(client);
    }
    let start = Instant::now();
    let mut reader = run.delta().await;
    reader.first(&Cluster, &[]).await;
    reader.acked().await;
    for i in 0..10 {
        run.fake.change(&Cluster, "small", Some(&format!("{i}")));
        reader.acked().await;
    }
    assert_eq!(
        run.server.connections().len(),
        6,
        "held up until others were cut off"
    );
    let before = run.fake.views.load(Ordering::Relaxed);
    while run.server.connections().len() > 1 {
        assert!(start.elapsed() < Duration::from_secs(20), "still connected");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(
        run.fake.views.load(Ordering::Relaxed) - before < 3,
        "nothing is made for those that do not read"
    );
    for client in &mut stuck {
        assert_ne!(client.end().await, Code::Ok);
    }
    // The one that reads gets the large one as well.
    reader.send(delta(&Listener, &[], &[])).await;
    assert_eq!(
        reader.acked().await.resources[0]
            .resource
            .as_ref()
            .unwrap()
            .value
            .len(),
        large.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_is_not_cut_off() {
    let run = Running::start(Limits {
        send_timeout: Duration::from_millis(300),
        ..limits()
    });
    for i in 0..40 {
        run.fake
            .put(&Listener, &format!("l{i}"), Some(&"x".repeat(100_000)));
    }
    let mut client = SlowReader::open(run.address).await;
    let start = Instant::now();
    let read = client.read_all(4_000_000, Duration::from_millis(25)).await;
    assert!(
        start.elapsed() > Duration::from_millis(600),
        "too fast to tell: {:?}",
        start.elapsed()
    );
    assert!(read >= 4_000_000);
    assert_eq!(run.server.connections().len(), 1);
}

/// An HTTP/2 client that takes a piece, then sleeps.
struct SlowReader {
    body: h2::RecvStream,
    _send: h2::SendStream<bytes::Bytes>,
}

impl SlowReader {
    async fn open(address: std::net::SocketAddr) -> Self {
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut client, connection) = h2::client::handshake(tcp).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post(format!("http://{address}{}", crate::support::ADS_DELTA))
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let (response, mut send) = client.send_request(request, false).unwrap();
        let message = prost::Message::encode_to_vec(
            &pilotfish_protos::envoy::service::discovery::v3::DeltaDiscoveryRequest {
                node: crate::support::node("slow"),
                ..delta(&Listener, &[], &[])
            },
        );
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend(message);
        send.send_data(framed.into(), false).unwrap();
        Self {
            body: response.await.unwrap().into_body(),
            _send: send,
        }
    }

    async fn read_all(&mut self, total: usize, pause: Duration) -> usize {
        let mut read = 0;
        let mut since_pause = 0;
        while read < total {
            let Some(Ok(data)) = self.body.data().await else {
                break;
            };
            read += data.len();
            since_pause += data.len();
            self.body
                .flow_control()
                .release_capacity(data.len())
                .unwrap();
            if since_pause > 100_000 {
                since_pause = 0;
                tokio::time::sleep(pause).await;
            }
        }
        read
    }
}
