//! A cluster as source: what is read from a real API server means the same as from files, and whatever happens to the
//! server, proxies keep what they have and nothing is lost. `KUBE_OUTAGE_SECONDS` is how long the server is dead.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pilotfish_e2e::config::{self, Workspace};
use pilotfish_e2e::control::{ControlPlane, Options, Ports};
use pilotfish_e2e::kube::client::KubeClient;
use pilotfish_e2e::kube::faults::{Fault, Faults, Requests, Rule};
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::wait::SOON;
use pilotfish_e2e::xds::{self, Resources};
use pilotfish_e2e::{case, tools, traffic, wait};
use serde_json::{Value, json};

/// How long it may take after trouble: the longest pause between two attempts, and some.
const RECOVERY: Duration = Duration::from_mins(1);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[test]
fn a_cluster_means_the_same_as_a_directory() {
    case::on_loopback(same_bytes);
}

#[test]
fn a_server_that_comes_and_goes() {
    case::on_loopback(comes_and_goes);
}

#[test]
fn a_server_that_answers_wrongly() {
    case::on_loopback(wrong_answers);
}

#[test]
fn a_server_that_forbids_and_lacks_kinds() {
    case::on_loopback(forbidden_and_late);
}

/// A control plane on a cluster, which may not be ready yet.
fn on_cluster(workspace: &Workspace, kubeconfig: &Path, more: &[&str]) -> Result<ControlPlane> {
    let mut flags = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    flags.extend(["--log-level", "default:info,kube:debug"].map(str::to_owned));
    flags.extend(["--secure-grpc-addr", ""].map(str::to_owned));
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    let environment = BTreeMap::from([("PILOTFISH_WATCH_SILENCE".to_owned(), "5s".to_owned())]);
    let options = Options { flags, environment };
    let ports = Ports::free(&Net::Host)?;
    ControlPlane::launch(
        &Net::Host,
        LOOPBACK,
        ports,
        None,
        &workspace.logs(),
        options,
    )
}

fn sidecar() -> Value {
    Proxy::sidecar("shop", "client", "client", Ipv4Addr::new(10, 0, 0, 9)).node()
}

fn service(name: &str, address: u8) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, \
         spec: {{clusterIP: 10.96.9.{address}, ports: [{{name: http, port: 80}}]}}}}"
    )
}

/// Whether a sidecar is given a cluster for this service.
fn has(plane: &ControlPlane, name: &str) -> Result<bool> {
    let cluster = format!("outbound|80||{name}.shop.svc.cluster.local");
    let all = xds::dump(plane.xds(), &sidecar())?;
    Ok(all.contains_key(&("Cluster", cluster)))
}

fn wait_for(plane: &ControlPlane, name: &str, there: bool, limit: Duration) -> Result<()> {
    let what = format!("{name} is {}", if there { "there" } else { "gone" });
    wait::until(&what, limit, || {
        ensure!(has(plane, name)? == there);
        Ok(())
    })
}

/// The state of each watch by its resource.
fn watches(plane: &ControlPlane) -> Result<BTreeMap<String, String>> {
    let page = plane.page("/debug/kubernetes")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = page.as_array().context("a list of watches")?.iter();
    Ok(all
        .map(|watch| (text(&watch["resource"]), text(&watch["state"])))
        .collect())
}

fn has_finding(plane: &ControlPlane, code: &str) -> Result<bool> {
    let page = plane.page("/debug/diagnostics")?;
    let all = page.as_array().context("a list of findings")?;
    Ok(all.iter().any(|finding| finding["code"] == code))
}

// ---- the same as a directory

fn same_bytes(workspace: &Workspace) -> Result<()> {
    let server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.install_crds(&tools::crds()?)?;
    let kubeconfig = server.kubeconfig(&User::admin())?;
    let scenarios = tools::workspace().join("e2e/scenarios");
    let base = fs::read_to_string(scenarios.join("base.yaml"))?;
    // The one address that the API server takes for itself.
    let base = base.replace("clusterIP: 10.96.0.1\n", "clusterIP: 10.96.0.251\n");
    admin.apply(&base)?;
    let mut base: Vec<Value> = serde_saphyr::from_multiple(&base)?;
    // What every cluster has of its own.
    let kubernetes = admin.get("/api/v1/namespaces/default/services/kubernetes")?;
    base.push(kubernetes.ok()?);
    let mut compared = 0;
    for name in traffic::scenarios()? {
        let folder = scenarios.join(&name);
        compared += same_scenario(workspace, &admin, &kubeconfig, &base, &folder)
            .with_context(|| format!("scenario {name}"))?;
    }
    eprintln!("{compared} resources were the same");
    ensure!(compared > 1000, "too few: {compared}");
    Ok(())
}

/// Where the API server has an object.
fn path_of(object: &Value) -> Result<String> {
    let text = |field: &Value| field.as_str().map(str::to_owned);
    let version = text(&object["apiVersion"]).context("a version")?;
    let kind = text(&object["kind"]).context("a kind")?.to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with('a') => format!("{stem}ies"),
        _ => format!("{kind}s"),
    };
    let api = if version.contains('/') { "apis" } else { "api" };
    let meta = &object["metadata"];
    let name = text(&meta["name"]).context("a name")?;
    if kind == "namespace" || kind == "node" {
        return Ok(format!("/{api}/{version}/{plural}/{name}"));
    }
    let namespace = text(&meta["namespace"]).unwrap_or_else(|| "default".to_owned());
    Ok(format!(
        "/{api}/{version}/namespaces/{namespace}/{plural}/{name}"
    ))
}

/// Compares what all proxies of a scenario are given; how many resources that were.
fn same_scenario(
    workspace: &Workspace,
    admin: &KubeClient,
    kubeconfig: &Path,
    base: &[Value],
    folder: &Path,
) -> Result<usize> {
    let rows: Value = serde_saphyr::from_str(&fs::read_to_string(folder.join("rows.yaml"))?)?;
    let name = folder.file_name().context("a name")?.to_string_lossy();
    // The settings of the mesh are a file here and a ConfigMap there.
    let settings = rows.get("mesh-config").cloned().unwrap_or(json!({}));
    let mesh = workspace.place(&format!("mesh-{name}.yaml"));
    fs::write(&mesh, settings.to_string())?;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "istio", "namespace": "istio-system"}, "data": {"mesh": settings.to_string()}});
    admin.apply_objects(vec![map])?;

    let mut own = config::objects(folder)?;
    own.retain(|object| object.get("rows").is_none());
    admin.apply_objects(own.clone())?;
    let mut objects: Vec<Value> = base.iter().chain(&own).cloned().collect();
    for object in &mut objects {
        // The order of objects is that of their creation, which the server decides.
        let made = admin.get(&path_of(object)?)?.ok()?;
        object["metadata"]["creationTimestamp"] = made["metadata"]["creationTimestamp"].clone();
    }
    let place = workspace.place(&format!("scenario-{name}"));
    fs::create_dir_all(&place)?;
    let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
    fs::write(place.join("mesh.yaml"), documents.join("\n---\n"))?;

    let flags = ["--mesh-config".to_owned(), mesh.display().to_string()];
    let options = Options {
        flags: flags.into_iter().collect(),
        environment: BTreeMap::new(),
    };
    let ports = Ports::free(&Net::Host)?;
    let logs = workspace.logs();
    let files = ControlPlane::start_with(&Net::Host, LOOPBACK, ports, &place, &logs, options)?;
    let mut cluster = on_cluster(workspace, kubeconfig, &[])?;
    cluster.wait_ready()?;

    let mut compared = 0;
    for pod in objects.iter().filter(|object| object["kind"] == "Pod") {
        let Some(proxy) = Proxy::of_pod(pod)? else {
            continue;
        };
        let node = proxy.node();
        let (ours, theirs) = (
            xds::dump(files.xds(), &node)?,
            xds::dump(cluster.xds(), &node)?,
        );
        same(&ours, &theirs).with_context(|| format!("proxy {}", proxy.name))?;
        compared += ours.len();
    }
    for object in own.iter().filter(|object| object["kind"] != "Namespace") {
        admin.delete(&path_of(object)?)?.ok()?;
    }
    Ok(compared)
}

fn same(files: &Resources, cluster: &Resources) -> Result<()> {
    for (key, bytes) in files {
        match cluster.get(key) {
            None => bail!("{key:?} is missing"),
            Some(other) if other != bytes => bail!("{key:?} differs"),
            Some(_) => {}
        }
    }
    let more = cluster.keys().find(|key| !files.contains_key(*key));
    ensure!(more.is_none(), "{more:?} is too much");
    Ok(())
}

// ---- coming and going

fn comes_and_goes(workspace: &Workspace) -> Result<()> {
    let mut server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.apply(&service("first", 1))?;
    let faults = server.faults()?;
    let kubeconfig = server.kubeconfig_through(&User::admin(), &faults)?;

    // It starts after us: not ready, nobody is served, and never anything empty.
    faults.refuse(true)?;
    let mut plane = on_cluster(workspace, &kubeconfig, &[])?;
    wait::until("it says that it waits", SOON, || {
        let (status, text) = plane.readiness()?;
        ensure!(
            status == 503 && text.contains("the API server"),
            "{status} {text}"
        );
        Ok(())
    })?;
    match xds::dump(plane.xds(), &sidecar()) {
        Ok(given) => bail!("it gives {} resources", given.len()),
        Err(error) => ensure!(format!("{error:#}").contains("not ready"), "{error:#}"),
    }
    faults.refuse(false)?;
    wait::until("it is ready", RECOVERY, || {
        let (status, text) = plane.readiness()?;
        ensure!(status == 200, "{text}");
        Ok(())
    })?;
    ensure!(has(&plane, "first")?);

    let memory = plane.process().memory()?;
    killed_under_load(&mut server, &plane)?;

    // etcd forgets what happened while we were cut off: what was deleted meanwhile is noticed all the same.
    faults.refuse(true)?;
    let admin = server.admin()?;
    admin.remove("v1", "Service", "shop", "load-2")?;
    admin.apply(&service("unseen", 21))?;
    server.compact()?;
    server.kill_api();
    server.start_api()?;
    ensure!(has(&plane, "load-2")? && has(&plane, "first")?);
    faults.refuse(false)?;
    wait_for(&plane, "unseen", true, RECOVERY)?;
    wait_for(&plane, "load-2", false, SOON)?;

    most_services_lost(&server, &plane)?;
    same_memory(&mut plane, memory)?;
    plane.stop()
}

/// It is killed and comes back. Meanwhile proxies connect, and things change that it will not tell one by one.
fn killed_under_load(server: &mut KubeServer, plane: &ControlPlane) -> Result<()> {
    let outage = match env::var("KUBE_OUTAGE_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().context("KUBE_OUTAGE_SECONDS")?),
        Err(_) => Duration::from_secs(4),
    };
    let admin = server.admin()?;
    let load = |range: std::ops::Range<u8>| {
        range.into_iter().try_for_each(|number| {
            admin
                .apply(&service(&format!("load-{number}"), number))
                .map(drop)
        })
    };
    load(2..15)?;
    let earlier = server.contents()?;
    load(15..20)?;
    wait_for(plane, "load-19", true, SOON)?;
    server.kill_api();
    server.put_back(&earlier)?;
    let (begin, mut connected, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while begin.elapsed() < outage {
        let asked = Instant::now();
        ensure!(has(plane, "first")? && has(plane, "load-19")?);
        longest = longest.max(asked.elapsed() / 2);
        ensure!(plane.readiness()?.0 == 200, "it is not ready any more");
        connected += 2;
    }
    server.start_api()?;
    server.admin()?.apply(&service("back", 20))?;
    let begin = Instant::now();
    wait_for(plane, "back", true, RECOVERY)?;
    wait_for(plane, "load-19", false, SOON)?;
    ensure!(has(plane, "load-14")?);
    eprintln!(
        "dead for {outage:?}: {connected} proxies connected, the slowest in {longest:.0?}; \
         seen {:.1?} after the server was back",
        begin.elapsed()
    );
    load(15..20)?;
    wait_for(plane, "load-19", true, SOON)
}

/// Whatever happened, it holds about as much as before. A build for tests holds more than one that is shipped.
fn same_memory(plane: &mut ControlPlane, before: u64) -> Result<()> {
    let after = plane.process().memory()?;
    eprintln!(
        "resident memory: {} kB before, {} kB after",
        before / 1024,
        after / 1024
    );
    ensure!(after < before + before / 2 + (16 << 20), "it has grown");
    Ok(())
}

/// The guard holds a great loss back until somebody confirms it.
fn most_services_lost(server: &KubeServer, plane: &ControlPlane) -> Result<()> {
    let admin = server.admin()?;
    for number in 3..20 {
        admin.remove("v1", "Service", "shop", &format!("load-{number}"))?;
    }
    wait::until("the loss is held back", SOON, || {
        ensure!(has_finding(plane, "loss-guard")?);
        Ok(())
    })?;
    ensure!(has(plane, "load-19")?);
    let mut client =
        pilotfish_e2e::client::Client::new(&Net::Host, plane.monitoring(), "pilotfish");
    let answer = client.post("/debug/loss_guard")?;
    ensure!(answer.status == 200, "{}", answer.text());
    wait_for(plane, "load-19", false, SOON)?;
    ensure!(has(plane, "first")?);
    Ok(())
}

// ---- wrong answers

fn wrong_answers(workspace: &Workspace) -> Result<()> {
    let server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.apply(&service("first", 1))?;
    let faults = server.faults()?;
    let kubeconfig = server.kubeconfig_through(&User::admin(), &faults)?;
    let mut plane = on_cluster(workspace, &kubeconfig, &[])?;
    plane.wait_ready()?;
    ensure!(has(&plane, "first")?);
    let memory = plane.process().memory()?;

    let trouble = [
        (Requests::Reads, Fault::Status(410)),
        (Requests::Watches, Fault::ErrorEvent(410)),
        (Requests::Reads, Fault::Status(429)),
        (Requests::Reads, Fault::Status(500)),
        (Requests::Watches, Fault::ErrorEvent(500)),
        (Requests::Reads, Fault::Cut),
        (Requests::Reads, Fault::Break),
        (Requests::Reads, Fault::Silence),
    ];
    for (number, (requests, fault)) in (2..).zip(trouble) {
        let name = format!("during-{number}");
        one_trouble(
            &faults,
            &admin,
            &plane,
            requests,
            &fault,
            &service(&name, number),
        )
        .with_context(|| format!("{fault:?}"))?;
        faults.set(Vec::new());
        let begin = Instant::now();
        wait_for(&plane, &name, true, RECOVERY).with_context(|| format!("{fault:?}"))?;
        eprintln!("{fault:?}: over after {:.1?}", begin.elapsed());
    }
    answers_of_the_past(&faults, &admin, &plane)?;
    new_credentials(&server, workspace)?;
    same_memory(&mut plane, memory)?;
    plane.stop()
}

/// Something changes while the server is of no use; nothing is lost meanwhile.
fn one_trouble(
    faults: &Faults,
    admin: &KubeClient,
    plane: &ControlPlane,
    requests: Requests,
    fault: &Fault,
    object: &str,
) -> Result<()> {
    let before = faults.hits();
    faults.set_all(requests, fault.clone());
    admin.apply(object)?;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        ensure!(has(plane, "first")?, "it is lost");
        ensure!(plane.readiness()?.0 == 200, "it is not ready any more");
    }
    ensure!(faults.hits() > before, "nothing went wrong");
    Ok(())
}

/// A server that has not caught up: what it no longer knows, or does not know yet, is not taken away.
fn answers_of_the_past(faults: &Faults, admin: &KubeClient, plane: &ControlPlane) -> Result<()> {
    let past = admin.get("/api/v1/services")?.ok()?;
    admin.apply(&service("new", 30))?;
    wait_for(plane, "new", true, SOON)?;
    let rule = |fault| {
        vec![Rule {
            requests: Requests::Reads,
            kind: Some("services".to_owned()),
            fault,
        }]
    };
    // It has to list again, and is told what was.
    faults.set(rule(Fault::Status(410)));
    wait::until("it lists again", SOON, || {
        ensure!(faults.hits() > 0);
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(1));
    faults.set(rule(Fault::Past(Arc::new(past))));
    wait::until("it has seen the past", SOON, || {
        let page = plane.page("/debug/kubernetes")?;
        ensure!(page.to_string().contains("answers from the past"), "{page}");
        Ok(())
    })?;
    ensure!(has(plane, "new")?, "the past was believed");
    faults.set(Vec::new());
    admin.apply(&service("newer", 31))?;
    wait_for(plane, "newer", true, RECOVERY)?;
    ensure!(has(plane, "new")?);
    Ok(())
}

/// The token is worth nothing any more; later the file that it came from has another.
fn new_credentials(server: &KubeServer, workspace: &Workspace) -> Result<()> {
    let rules = "[{apiGroups: ['*'], resources: ['*'], verbs: [get, list, watch]}]";
    let user = server.user("reader", rules)?;
    let faults = server.faults()?;
    let kubeconfig = server.kubeconfig_through(&user, &faults)?;
    let mut plane = on_cluster(workspace, &kubeconfig, &[])?;
    plane.wait_ready()?;
    server.dismiss(&user)?;
    let client = server.client(&user)?;
    wait::until("the token is refused", SOON, || {
        let status = client.get("/api/v1/services")?.status;
        ensure!(status == 401, "{status}");
        Ok(())
    })?;
    faults.refuse(true)?;
    faults.refuse(false)?;
    wait::until("it is told", SOON, || {
        let page = plane.page("/debug/kubernetes")?;
        ensure!(page.to_string().contains("Unauthorized"), "{page}");
        Ok(())
    })?;
    ensure!(has(&plane, "first")?);
    let text = fs::read_to_string(&kubeconfig)?;
    let admin = User::admin();
    fs::write(&kubeconfig, text.replace(&user.token, &admin.token))?;
    server.admin()?.apply(&service("rotated", 40))?;
    wait_for(&plane, "rotated", true, RECOVERY)?;
    plane.stop()
}

// ---- forbidden and missing kinds

fn forbidden_and_late(workspace: &Workspace) -> Result<()> {
    let server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.apply(&service("first", 1))?;
    let some = "[{apiGroups: ['', discovery.k8s.io], resources: [namespaces, nodes, services, endpointslices, pods, configmaps], \
                 verbs: [get, list, watch]}, \
                 {apiGroups: [networking.istio.io, security.istio.io, telemetry.istio.io, extensions.istio.io], resources: ['*'], verbs: [get, list, watch]}, \
                 {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, list, watch]}]";
    let user = server.user("some", some)?;
    let mut plane = on_cluster(workspace, &server.kubeconfig(&user)?, &[])?;
    plane.wait_ready()?;
    ensure!(has(&plane, "first")?, "the other kinds work");
    // A watch that is opened again, as all are after five seconds of silence, is down for a moment.
    wait::until("each watch is as it should be", SOON, || {
        let states = watches(&plane)?;
        ensure!(
            states["Secret"] == "forbidden" && states["Service"] == "live",
            "{states:?}"
        );
        ensure!(states["VirtualService"] == "absent", "{states:?}");
        Ok(())
    })?;
    ensure!(has_finding(&plane, "forbidden")?);

    // The CRDs come late.
    admin.install_crds(&tools::crds()?)?;
    let entry = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: out, namespace: shop}, spec: \
                 {hosts: [out.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}}";
    admin.apply(entry)?;
    let outside = ("Cluster", "outbound|80||out.example".to_owned());
    let begin = Instant::now();
    wait::until("the entry is there", RECOVERY, || {
        ensure!(xds::dump(plane.xds(), &sidecar())?.contains_key(&outside));
        Ok(())
    })?;
    eprintln!("a late CRD was noticed after {:.1?}", begin.elapsed());

    // And go again.
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/serviceentries.networking.istio.io";
    admin.delete(path)?.ok()?;
    wait::until("the entry is gone", RECOVERY, || {
        ensure!(!xds::dump(plane.xds(), &sidecar())?.contains_key(&outside));
        Ok(())
    })?;
    ensure!(has(&plane, "first")?);

    // What was forbidden is allowed.
    server.user(
        "some",
        "[{apiGroups: ['*'], resources: ['*'], verbs: [get, list, watch]}]",
    )?;
    wait::until("secrets are read", RECOVERY, || {
        ensure!(watches(&plane)?["Secret"] == "live");
        Ok(())
    })?;
    wait::until("the finding is gone", SOON, || {
        ensure!(!has_finding(&plane, "forbidden")?);
        Ok(())
    })?;
    plane.stop()
}
