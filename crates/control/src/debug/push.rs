//! `/debug/push`: what caused each of the last pushes, what it touched, what it cost and how far it got.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};

use crate::fields::{Edit, Touched, What};
use crate::http::{Pages, json, wants_text};
use crate::plane::Plane;
use crate::pushes::{Account, Delivery, Noise, Push, Volume};

/// How many of the noisiest objects are shown.
const NOISIEST: usize = 20;

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    format: Option<String>,
}

pub(super) async fn page(
    State(pages): State<Pages>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Response {
    // Objects are compared here, which takes a moment.
    let shown = tokio::task::spawn_blocking(move || Shown::of(&pages.plane)).await;
    match shown {
        Ok(shown) if wants_text(&headers, asked.format.as_deref()) => shown.text().into_response(),
        Ok(shown) => json(&shown),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    total: u64,
    reasons: BTreeMap<&'static str, u64>,
    /// Newest first.
    pushes: Vec<ShownPush>,
    /// Those that caused, or took part in, most pushes since the start.
    noisiest: Vec<ShownNoise>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownPush {
    time: String,
    generation: u64,
    config_version: u64,
    events: u64,
    reasons: BTreeMap<&'static str, u64>,
    changed_objects: usize,
    objects: Vec<ShownObject>,
    changed_facts: usize,
    waited_ms: f64,
    derived_ms: f64,
    /// Nothing depended on what changed if not, and the rest is empty.
    had_effect: bool,
    /// Pieces of configuration that were translated again, for all proxies that share them.
    pieces: usize,
    /// Resources that came, went or changed, counted once for each scope.
    changed_resources: usize,
    /// Proxies that were sent something because of it.
    proxies: u64,
    sent: Volume,
    sent_by_type: BTreeMap<&'static str, Volume>,
    acknowledged: u64,
    /// From the change until the last proxy was sent to; absent if none was.
    last_sent_ms: Option<f64>,
    last_acknowledged_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
struct ShownObject {
    object: String,
    #[serde(flatten)]
    edit: Edit,
}

#[derive(Debug, Serialize)]
struct ShownNoise {
    object: String,
    #[serde(flatten)]
    noise: Noise,
}

impl Shown {
    fn of(plane: &Plane) -> Self {
        let Account {
            total,
            reasons,
            pushes,
            noisiest,
        } = plane.history.account();
        Self {
            total,
            reasons,
            pushes: pushes
                .into_iter()
                .map(|(push, delivery)| ShownPush::of(plane, push, delivery))
                .collect(),
            noisiest: noisiest
                .into_iter()
                .take(NOISIEST)
                .map(|(key, noise)| ShownNoise {
                    object: key.to_string(),
                    noise,
                })
                .collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{} pushes since the start, newest first\n", self.total);
        for push in &self.pushes {
            push.text(&mut text);
        }
        text.push_str("\nObjects that caused, or took part in, most pushes\n");
        row(&mut text, ["PUSHES", "RESPONSES", "BYTES", "OBJECT"]);
        for ShownNoise { object, noise } in &self.noisiest {
            let [pushes, responses, bytes] =
                [noise.pushes, noise.responses, noise.bytes].map(|n| n.to_string());
            row(&mut text, [&pushes, &responses, &bytes, object]);
        }
        text
    }
}

impl ShownPush {
    fn of(plane: &Plane, push: Push, delivery: Delivery) -> Self {
        let cost = push.is_new.then(|| plane.cost(push.generation));
        let cost = cost.unwrap_or_default();
        let after = |time: Duration, any: bool| any.then(|| milliseconds(time));
        let object = |(object, touched): (String, Touched)| ShownObject {
            object,
            edit: touched.edit(),
        };
        Self {
            time: push.time,
            generation: push.generation,
            config_version: push.config_version,
            events: push.events,
            reasons: push.reasons,
            changed_objects: push.changed_objects,
            objects: push.causes.touched.into_iter().map(object).collect(),
            changed_facts: push.changed_facts,
            waited_ms: push.waited_ms,
            derived_ms: push.derived_ms,
            had_effect: push.is_new,
            pieces: cost.pieces,
            changed_resources: cost.resources,
            proxies: delivery.proxies,
            sent: delivery.sent,
            sent_by_type: delivery.by_type,
            acknowledged: delivery.acknowledged,
            last_sent_ms: after(delivery.last_sent, delivery.sent.responses > 0),
            last_acknowledged_ms: after(delivery.last_acknowledged, delivery.acknowledged > 0),
        }
    }

    fn text(&self, text: &mut String) {
        let reasons: Vec<_> = self
            .reasons
            .iter()
            .map(|(r, n)| format!("{r} ({n})"))
            .collect();
        line(
            text,
            &format!(
                "\n{}  generation {}  because of {}; waited {} ms",
                self.time,
                self.generation,
                reasons.join(", "),
                self.waited_ms
            ),
        );
        for ShownObject { object, edit } in &self.objects {
            let what = match edit.what {
                What::Added => "added".to_owned(),
                What::Removed => "removed".to_owned(),
                What::Changed if edit.fields.is_empty() => "changed".to_owned(),
                What::Changed => edit.fields.join(" "),
            };
            let more = match edit.more_fields {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            line(text, &format!("  {object}: {what}{more}"));
        }
        let unnamed = self.changed_objects.saturating_sub(self.objects.len());
        if unnamed > 0 {
            line(text, &format!("  and {unnamed} more objects"));
        }
        if !self.had_effect {
            line(text, "  no effect: nothing depends on what changed");
            return;
        }
        line(
            text,
            &format!(
                "  {} facts changed, {} pieces translated, {} resources changed; {} proxies reached",
                self.changed_facts, self.pieces, self.changed_resources, self.proxies
            ),
        );
        if self.sent.responses == 0 {
            return;
        }
        let after = |time: Option<f64>| time.map_or("-".to_owned(), |ms| format!("{ms} ms"));
        line(
            text,
            &format!(
                "  last sent after {}; {} of {} responses acknowledged, the last after {}",
                after(self.last_sent_ms),
                self.acknowledged,
                self.sent.responses,
                after(self.last_acknowledged_ms)
            ),
        );
        row(text, ["RESPONSES", "RESOURCES", "BYTES", "TYPE"]);
        for (kind, sent) in &self.sent_by_type {
            let [responses, resources, bytes] =
                [sent.responses, sent.resources + sent.removed, sent.bytes].map(|n| n.to_string());
            row(text, [&responses, &resources, &bytes, kind]);
        }
    }
}

/// Names come from users: whatever would end the line, or drive a terminal, is written out.
fn line(text: &mut String, content: &str) {
    let (head, content) = content
        .strip_prefix('\n')
        .map_or(("", content), |c| ("\n", c));
    text.push_str(head);
    for c in content.chars() {
        if c.is_control() {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    text.push('\n');
}

fn row(text: &mut String, [a, b, c, d]: [&str; 4]) {
    let mut cells = String::new();
    let _ = write!(cells, "  {a:>10} {b:>10} {c:>12}  {d}");
    line(text, &cells);
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 1e2
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use pilotfish_config::{Change, Store, parse};
    use pilotfish_protos::envoy::config::core::v3::Node;
    use pilotfish_protos::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
    use pilotfish_sources::Batch;
    use pilotfish_xds::{Limits, Server, TypeUrl};
    use serde_json::Value;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::guard::Guard;
    use crate::metrics::Metrics;
    use crate::nodes::Nodes;
    use crate::readiness::Readiness;
    use crate::settings::{Debounce, Treatment};
    use crate::writer::{Input, Origin, Plan, Writer};

    const MESH: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: canary, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web]
  http:
  - route:
    - {destination: {host: web}, weight: 90}
    - {destination: {host: canary}, weight: 10}
";

    fn objects(text: &str) -> Input {
        let read = parse::documents(text, "x.yaml");
        assert_eq!(read.diagnostics, []);
        Input::Objects(
            Origin::Files,
            Batch {
                changes: read.objects.into_iter().map(Change::upsert).collect(),
                synced: true,
                ..Batch::default()
            },
        )
    }

    fn plane() -> (Arc<Plane>, Arc<Nodes>) {
        let metrics = Arc::new(Metrics::new(Instant::now()));
        let nodes = Arc::new(Nodes::new(Arc::clone(&metrics)));
        let plane = Plane::new(
            pilotfish_mesh::Settings::default(),
            Readiness::waiting_for([]),
            metrics,
            Arc::clone(&nodes),
            Treatment::default(),
        );
        (Arc::new(plane), nodes)
    }

    /// A proxy that watches the routes of port 80 and acknowledges whatever it gets.
    struct Client {
        requests: mpsc::Sender<DiscoveryRequest>,
        responses: tonic::Streaming<DiscoveryResponse>,
    }

    impl Client {
        async fn connect(address: std::net::SocketAddr, pod: &str) -> Self {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
            let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
            grpc.ready().await.unwrap();
            let (requests, sent) = mpsc::channel(4);
            let node = Node {
                id: format!("sidecar~10.0.0.9~{pod}.shop~shop.svc.cluster.local"),
                ..Node::default()
            };
            let first = DiscoveryRequest {
                node: Some(node),
                ..Self::wanted()
            };
            requests.send(first).await.unwrap();
            let path = axum::http::uri::PathAndQuery::from_static(
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
            );
            let sent = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(sent));
            let codec = tonic_prost::ProstCodec::default();
            let responses = grpc
                .streaming(sent, path, codec)
                .await
                .unwrap()
                .into_inner();
            let mut client = Self {
                requests,
                responses,
            };
            client.next().await;
            client
        }

        fn wanted() -> DiscoveryRequest {
            DiscoveryRequest {
                type_url: TypeUrl::Route.as_str().to_owned(),
                resource_names: vec!["80".to_owned()],
                ..DiscoveryRequest::default()
            }
        }

        async fn next(&mut self) {
            let response = self.responses.message().await.unwrap().unwrap();
            assert_eq!(response.resources.len(), 1);
            let answer = DiscoveryRequest {
                version_info: response.version_info,
                response_nonce: response.nonce,
                ..Self::wanted()
            };
            self.requests.send(answer).await.unwrap();
        }
    }

    /// Where a server of that plane listens.
    async fn served(plane: &Arc<Plane>, nodes: Arc<Nodes>) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::new(Arc::clone(plane), Limits::default(), nodes);
        tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
        address
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_an_audit_finds_is_healed_down_to_the_proxy() {
        let (plane, nodes) = plane();
        let address = served(&plane, nodes).await;
        let mut store = Store::new();
        let source = store.register("test");
        let mut put = |text: &str| {
            let read = parse::documents(text, "x.yaml").objects;
            store.apply(source, read.into_iter().map(Change::upsert).collect())
        };
        let first = put(MESH);
        plane.apply(first.snapshot, &first.changed);
        let mut client = Client::connect(address, "a").await;
        let found = || plane.audit(0).expect("a sheet in use");
        assert!(found().1.is_none());

        // A change that nobody is told of, as if it had been missed.
        plane.apply(put(&MESH.replace("10.96.0.1", "10.96.0.3")).snapshot, &[]);
        let (audit, healed) = found();
        assert_eq!(audit.differences.len(), 1);
        assert_eq!(healed, Some(plane.current()));
        client.next().await;
        assert!(found().1.is_none());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_changed_weight_is_explained() {
        let (plane, nodes) = plane();
        let address = served(&plane, nodes).await;
        let debounce = Debounce {
            first: Duration::from_millis(1),
            after: Duration::from_millis(1),
            max: Duration::from_secs(1),
            endpoints: true,
        };
        let (inputs, received) = mpsc::channel(4);
        let mut generations = pilotfish_xds::Configuration::generation(&*plane);
        let plan = Plan {
            objects: vec![Origin::Files],
            mesh: vec![Origin::Files],
            debounce,
            guard: Guard {
                percent: 0,
                time: Duration::ZERO,
            },
        };
        tokio::spawn(Writer::new(Arc::clone(&plane), &plan, Instant::now()).run(received));
        inputs.send(objects(MESH)).await.unwrap();
        inputs
            .send(Input::Mesh(Origin::Files, Box::default()))
            .await
            .unwrap();
        generations.changed().await.unwrap();
        let mut clients = [
            Client::connect(address, "a").await,
            Client::connect(address, "b").await,
        ];
        let shown = || serde_json::to_value(Shown::of(&plane)).unwrap();
        let connected = shown();
        for figure in ["proxies", "pieces", "changedResources"] {
            assert_eq!(connected["pushes"][0][figure], 0, "connecting is no push");
        }

        let moved = MESH
            .replace("weight: 90", "weight: 80")
            .replace("weight: 10", "weight: 20");
        inputs.send(objects(&moved)).await.unwrap();
        for client in &mut clients {
            client.next().await;
        }
        let acknowledged = |shown: &Value| shown["pushes"][0]["acknowledged"] == 2;
        let start = Instant::now();
        while !acknowledged(&shown()) {
            assert!(start.elapsed() < Duration::from_secs(10), "{:#}", shown());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let shown = shown();
        assert_eq!(shown["total"], 2);
        let push = &shown["pushes"][0];
        let fields = [
            "spec.http[0].route[0].weight",
            "spec.http[0].route[1].weight",
        ];
        let object = serde_json::json!([{"object": "VirtualService/shop/web", "what": "changed", "fields": fields}]);
        assert_eq!(push["objects"], object);
        assert!(push["changedFacts"].as_u64() >= Some(1), "{push:#}");
        assert_eq!(push["pieces"], 1, "one virtual host, which both share");
        assert_eq!(push["changedResources"], 1, "both proxies share it");
        let reached = "pilotfish_push_proxies_total 2.0";
        let metrics = plane.metrics.text();
        assert!(metrics.lines().any(|l| l == reached), "{metrics}");
        assert_eq!(
            (&push["proxies"], &push["hadEffect"]),
            (&2.into(), &true.into())
        );
        let volume = &push["sentByType"]["rds"];
        assert_eq!(
            (&volume["responses"], &volume["resources"]),
            (&2.into(), &2.into())
        );
        assert!(volume["bytes"].as_u64() > Some(0), "{push:#}");
        assert_eq!(push["sent"], *volume);
        assert!(push["lastSentMs"].as_f64() <= push["lastAcknowledgedMs"].as_f64());
        assert!(push["lastSentMs"].is_f64(), "{push:#}");
        let noisiest = &shown["noisiest"];
        assert_eq!(noisiest.as_array().map(Vec::len), Some(1));
        assert_eq!(noisiest[0]["object"], "VirtualService/shop/web");
        assert_eq!(noisiest[0]["bytes"], volume["bytes"]);

        let text = Shown::of(&plane).text();
        for part in [
            "  VirtualService/shop/web: spec.http[0].route[0].weight spec.http[0].route[1].weight\n",
            "; 2 proxies reached\n",
            "2 of 2 responses acknowledged",
            "  rds\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn names_cannot_forge_lines() {
        let mut text = String::new();
        line(&mut text, "\na\nb\u{1b}[31m");
        assert_eq!(text, "\na\\nb\\u{1b}[31m\n");
    }
}
