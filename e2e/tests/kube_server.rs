//! The real API server that other tests rest on: it takes what they give it, and breaks as they want it to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::kube::client::{KubeClient, Watch};
use pilotfish_e2e::kube::faults::{Fault, Faults, Requests, Rule};
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::{case, tools, wait};
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/services";
const ENTRY: &str = "/apis/networking.istio.io/v1/namespaces/shop/serviceentries/out";

const OBJECTS: &str = r#"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: out, namespace: shop, creationTimestamp: "2020-01-01T00:00:00Z", resourceVersion: "1"}
spec:
  hosts: [out.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DNS
status:
  addresses: [{host: out.example, value: 240.240.0.1}]
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: web, namespace: shop, labels: {app: web}}
  spec: # one that cannot be applied, only made
    containers: [{name: app, image: web, ports: [{containerPort: 80}, {containerPort: 80}]}]
  status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: shop}
  spec: {selector: {app: web}, clusterIP: 10.96.0.50, ports: [{port: 80}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
"#;

#[test]
fn it_takes_objects_and_survives() {
    case::on_loopback(objects_and_deaths);
}

#[test]
fn faults_are_seen() {
    case::on_loopback(faults);
}

fn objects_and_deaths(workspace: &Workspace) -> Result<()> {
    let begin = Instant::now();
    let mut server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let started = begin.elapsed();
    let admin = server.admin()?;
    let begin = Instant::now();
    let count = admin.install_crds(&tools::crds()?)?;
    let installed = begin.elapsed();
    eprintln!("ready after {started:.1?}; {count} CRDs in {installed:.1?}");

    ensure!(admin.apply(OBJECTS)? == 4);
    let entry = admin.get(ENTRY)?.ok()?;
    ensure!(
        entry["status"]["addresses"][0]["value"] == "240.240.0.1",
        "{entry}"
    );
    let pod = admin.get("/api/v1/namespaces/shop/pods/web")?.ok()?;
    ensure!(pod["status"]["podIP"] == "10.0.0.1", "{pod}");
    let namespace = admin.get("/api/v1/namespaces/shop")?.ok()?;
    ensure!(
        namespace["metadata"]["labels"]["istio-injection"] == "enabled",
        "{namespace}"
    );
    ensure!(
        admin
            .apply("{apiVersion: v1, kind: Nonsense, metadata: {name: a}}")
            .is_err()
    );

    let dismissed = restricted_user(&server)?;
    tokens_are_reviewed(&server)?;
    deaths(&mut server)?;
    // The server remembers a good token for some seconds, though not beyond its death.
    let status = server.client(&dismissed)?.get(SERVICES)?.status;
    ensure!(status == 401, "a dismissed user is answered {status}");
    Ok(())
}

/// Leaves a user behind whose account is gone.
fn restricted_user(server: &KubeServer) -> Result<User> {
    let user = server.user(
        "reader",
        "[{apiGroups: [''], resources: [services], verbs: [get, list, watch]}]",
    )?;
    let client = server.client(&user)?;
    ensure!(client.get(SERVICES)?.status == 200);
    ensure!(client.get("/api/v1/secrets")?.status == 403);
    let nobody = User {
        name: "nobody".to_owned(),
        token: "unknown".to_owned(),
    };
    ensure!(server.client(&nobody)?.get(SERVICES)?.status == 401);
    server.dismiss(&user)?;
    Ok(user)
}

/// As a control plane asks who a proxy is.
fn tokens_are_reviewed(server: &KubeServer) -> Result<()> {
    let admin = server.admin()?;
    admin
        .apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: shop}}")?;
    let token = server.token("shop", "web", &["istio-ca"])?;
    let review = |audience: &str| -> Result<Value> {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]}});
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        Ok(admin.create(path, &body)?.ok()?["status"].clone())
    };
    let good = review("istio-ca")?;
    ensure!(
        good["user"]["username"] == "system:serviceaccount:shop:web",
        "{good}"
    );
    ensure!(review("others")?["authenticated"] != true);
    Ok(())
}

fn deaths(server: &mut KubeServer) -> Result<()> {
    let admin = server.admin()?;
    let old = version(&admin)?;
    let mut watch = admin.watch(SERVICES, &old)?;
    admin.apply(&service("one"))?;
    let event = watch.change()?.context("an event")?;
    ensure!(event["object"]["metadata"]["name"] == "one", "{event}");

    let begin = Instant::now();
    server.kill_etcd();
    let impatient = server.admin()?.with_timeout(Duration::from_secs(3));
    let failed = impatient
        .create(
            "/api/v1/namespaces",
            &json!({"metadata": {"name": "never"}}),
        )
        .map_or(true, |answer| answer.status >= 500);
    ensure!(failed, "nothing can be written without etcd");
    server.start_etcd()?;
    let etcd = begin.elapsed();
    wait::until("writes work again", Duration::from_secs(30), || {
        admin.apply(&service("two"))
    })?;

    let begin = Instant::now();
    server.kill_api();
    ensure!(admin.get(SERVICES).is_err(), "nobody answers");
    ensure!(
        watch_ends(&mut watch),
        "a watch does not outlive the server"
    );
    server.compact()?;
    server.start_api()?;
    eprintln!(
        "etcd killed and back in {etcd:.1?}, the API server in {:.1?}",
        begin.elapsed()
    );
    let admin = server.admin()?;
    for name in ["one", "two"] {
        admin
            .get(&format!("/api/v1/namespaces/default/services/{name}"))?
            .ok()?;
    }
    ensure!(
        told(&admin, &old)? == 410,
        "a watch from before the compaction is too old"
    );
    ensure!(admin.watch(SERVICES, &version(&admin)?)?.status == 200);

    server.backup("before")?;
    let before = version(&admin)?.parse::<u64>()?;
    wait::until("writes work again", Duration::from_secs(30), || {
        admin.apply(&service("three"))
    })?;
    server.restore("before", Duration::ZERO)?;
    let admin = server.admin()?;
    let after = version(&admin)?.parse::<u64>()?;
    ensure!(after < before + 20, "{after} follows {before} closely");
    let three = admin.get("/api/v1/namespaces/default/services/three")?;
    ensure!(three.status == 404, "what came later is gone");
    admin.get("/api/v1/namespaces/default/services/two")?.ok()?;
    Ok(())
}

/// How often the same watch may still deliver what happened before the end.
fn watch_ends(watch: &mut Watch) -> bool {
    (0..10).any(|_| matches!(watch.event(), Err(_) | Ok(None)))
}

fn service(name: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{ports: [{{port: 80}}]}}}}"
    )
}

/// The resource version of a list of now.
fn version(client: &KubeClient) -> Result<String> {
    let list = client.get(SERVICES)?.ok()?;
    let version = list["metadata"]["resourceVersion"].as_str();
    Ok(version.context("a list has a version")?.to_owned())
}

/// The code that a watch is refused with, whether by HTTP or by its first event; 200 if it is not.
fn told(client: &KubeClient, version: &str) -> Result<u64> {
    let mut watch = client.watch(SERVICES, version)?;
    if watch.status != 200 {
        return Ok(watch.status.into());
    }
    watch.set_timeout(Duration::from_secs(5))?;
    let event = watch.event()?.context("an event")?;
    Ok(event["object"]["code"].as_u64().unwrap_or(200))
}

fn faults(workspace: &Workspace) -> Result<()> {
    let server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    let faults = server.faults()?;
    let through = server.client_at(&User::admin(), faults.address())?;
    through.apply(&service("first"))?;
    let now = version(&admin)?;
    // The version of a list is that of the whole store, in which the API server itself writes.
    let items = |client: &KubeClient| anyhow::Ok(client.get(SERVICES)?.ok()?["items"].clone());
    ensure!(
        items(&through)? == items(&admin)?,
        "it passes everything on"
    );
    ensure!(faults.hits() == 0);

    answers(&faults, &through, &now)?;
    broken_json(&faults, &admin, &through)?;
    silence(&faults, &server)?;
    past(&faults, &admin, &through)?;

    let mut watch = through.watch(SERVICES, &now)?;
    faults.refuse(true)?;
    ensure!(through.get(SERVICES).is_err());
    ensure!(watch_ends(&mut watch));
    faults.refuse(false)?;
    ensure!(through.get(SERVICES)?.status == 200);
    Ok(())
}

fn answers(faults: &Faults, through: &KubeClient, now: &str) -> Result<()> {
    for code in [410, 429, 500] {
        faults.set_all(Requests::Watches, Fault::Status(code));
        ensure!(told(through, now)? == u64::from(code));
        ensure!(through.get(SERVICES)?.status == 200, "lists work");
        faults.set_all(Requests::Watches, Fault::ErrorEvent(code));
        ensure!(told(through, now)? == u64::from(code));
        faults.set_all(Requests::Lists, Fault::Status(code));
        ensure!(through.get(SERVICES)?.status == code);
        ensure!(through.watch(SERVICES, now)?.status == 200, "watches work");
    }
    ensure!(faults.hits() == 9, "{}", faults.hits());
    faults.set(vec![Rule {
        requests: Requests::All,
        kind: Some("pods".to_owned()),
        fault: Fault::Status(403),
    }]);
    ensure!(through.get("/api/v1/pods")?.status == 403);
    ensure!(through.get(SERVICES)?.status == 200, "only one kind");
    faults.set(Vec::new());
    ensure!(through.get("/api/v1/pods")?.status == 200);
    Ok(())
}

fn broken_json(faults: &Faults, admin: &KubeClient, through: &KubeClient) -> Result<()> {
    for (number, fault) in [Fault::Cut, Fault::Break].into_iter().enumerate() {
        let now = version(admin)?;
        // One that is open already is cut as well.
        let mut watch = through.watch(SERVICES, &now)?;
        faults.set_all(Requests::Reads, fault.clone());
        admin.apply(&service(&format!("broken-{number}")))?;
        let error = watch.event().err().context("the event is whole")?;
        let error = format!("{error:#}");
        let list = through.get(SERVICES);
        if fault == Fault::Cut {
            ensure!(error.contains("inside of an event"), "{error}");
            ensure!(list?.body.is_null(), "half a list is no JSON");
        } else {
            ensure!(error.contains("read a watch"), "{error}");
            ensure!(list.is_err(), "the connection breaks");
        }
        faults.set(Vec::new());
        ensure!(through.get(SERVICES)?.body["items"].is_array());
    }
    Ok(())
}

fn silence(faults: &Faults, server: &KubeServer) -> Result<()> {
    let admin = server.admin()?;
    let patience = Duration::from_millis(300);
    let through = server
        .client_at(&User::admin(), faults.address())?
        .with_timeout(patience);
    let mut watch = through.watch(SERVICES, &version(&admin)?)?;
    faults.set_all(Requests::Reads, Fault::Silence);
    admin.apply(&service("silent"))?;
    ensure!(watch.event().is_err(), "an open watch says nothing");
    ensure!(through.get(SERVICES).is_err(), "nor does a list");
    faults.set_all(Requests::Lists, Fault::Delay(patience / 2));
    let begin = Instant::now();
    ensure!(through.get(SERVICES)?.status == 200);
    ensure!(begin.elapsed() >= patience / 2, "{:?}", begin.elapsed());
    faults.set_all(Requests::Lists, Fault::Delay(patience * 10));
    ensure!(through.get(SERVICES).is_err(), "too late");
    faults.set(Vec::new());
    Ok(())
}

fn past(faults: &Faults, admin: &KubeClient, through: &KubeClient) -> Result<()> {
    let old = admin.get(SERVICES)?.ok()?;
    admin.apply(&service("later"))?;
    faults.set(vec![Rule {
        requests: Requests::Reads,
        kind: Some("services".to_owned()),
        fault: Fault::Past(Arc::new(old.clone())),
    }]);
    let stale = through.get(SERVICES)?.ok()?;
    ensure!(stale == old, "as it was");
    let mut watch = through.watch(&format!("{SERVICES}?sendInitialEvents=true"), "")?;
    let mut names = Vec::new();
    while let Some(event) = watch.event()?
        && event["type"] == "ADDED"
    {
        names.push(event["object"]["metadata"]["name"].clone());
    }
    ensure!(names.contains(&"silent".into()), "{names:?}");
    ensure!(!names.contains(&"later".into()), "{names:?}");
    faults.set(Vec::new());
    ensure!(version(through)? == version(admin)?);
    Ok(())
}
