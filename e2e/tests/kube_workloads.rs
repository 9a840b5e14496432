//! Workloads that register themselves: a machine joins, falls ill, moves from replica to replica, and leaves; a replica dies
//! together with a machine; a stranger is refused.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::{ControlPlane, Options, Ports};
use pilotfish_e2e::kube::client::KubeClient;
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::wait::SOON;
use pilotfish_e2e::xds::{self, Connected, Follower};
use pilotfish_e2e::{case, tools, wait};
use serde_json::{Value, json};

/// How long a machine may be away here.
const GRACE: Duration = Duration::from_secs(4);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ENTRIES: &str = "/apis/networking.istio.io/v1/namespaces/shop/workloadentries";
const CLUSTER: &str = "outbound|80||vm.example";
const MESH: &str = "\
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: vms, namespace: shop}
spec: {metadata: {labels: {app: vm}}, template: {serviceAccount: vm, ports: {http: 8080}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: vm, namespace: shop}
spec:
  hosts: [vm.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: vm}}
";

#[test]
fn a_machine_comes_moves_and_goes() {
    case::on_loopback(in_a_cluster);
}

#[test]
fn without_a_cluster_too() {
    case::on_loopback(in_memory);
}

fn options(flags: &[&str], pod: Option<&str>) -> Options {
    let common = [
        "--insecure-trust-local-proxies",
        "--secure-grpc-addr",
        "",
        "--log-level",
        "default:info,wle:debug",
    ];
    let flags = common.iter().chain(flags);
    let mut environment = BTreeMap::from([
        ("PILOTFISH_LEASE_DURATION", "6s".to_owned()),
        (
            "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD",
            format!("{}s", GRACE.as_secs()),
        ),
    ]);
    environment.extend(pod.map(|pod| ("POD_NAME", pod.to_owned())));
    Options {
        flags: flags.map(|flag| (*flag).to_owned()).collect(),
        environment: environment
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    }
}

fn replica(workspace: &Workspace, kubeconfig: &Path, pod: &str) -> Result<ControlPlane> {
    let kubeconfig = kubeconfig.display().to_string();
    let options = options(&["--kubeconfig", &kubeconfig], Some(pod));
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

/// A machine as its agent describes it.
fn machine(address: &str, account: &str) -> Value {
    json!({"id": format!("sidecar~{address}~vm.shop~shop.svc.cluster.local"), "metadata": {
        "NAMESPACE": "shop", "SERVICE_ACCOUNT": account, "AUTO_REGISTER_GROUP": "vms", "LABELS": {"version": "v1"},
        "PROXY_CONFIG": {"readinessProbe": {"httpGet": {"port": 8080}}},
    }})
}

fn join(plane: &ControlPlane, address: &str) -> Result<Connected> {
    xds::connect(plane.xds(), &machine(address, "vm"))
}

fn follow(plane: &ControlPlane) -> Result<Follower> {
    let client = json!({"id": "sidecar~10.1.0.1~client.shop~shop.svc.cluster.local", "metadata": {"NAMESPACE": "shop"}});
    xds::follow(plane.xds(), &client, CLUSTER)
}

fn wait_endpoints(follower: &Follower, wanted: &[&str]) -> Result<()> {
    wait::until(&format!("endpoints {wanted:?}"), SOON, || {
        let seen = follower.seen();
        ensure!(seen.last().is_some_and(|last| last == wanted), "{seen:?}");
        Ok(())
    })
}

/// Waits until there is, or is no, entry of a machine.
fn wait_entry(admin: &KubeClient, address: &str, wanted: bool) -> Result<Value> {
    let path = format!("{ENTRIES}/vms-{address}");
    wait::until(&format!("{path}: {wanted}"), SOON, || {
        let answer = admin.get(&path)?;
        match (answer.status, wanted) {
            (404, false) => Ok(Value::Null),
            (200, true) => answer.ok(),
            (status, _) => bail!("{status}"),
        }
    })
}

fn annotation<'a>(entry: &'a Value, name: &str) -> &'a Value {
    &entry["metadata"]["annotations"][name]
}

/// Waits until an entry says that its proxy is connected to a replica, or that it is not connected.
fn wait_controller(admin: &KubeClient, address: &str, pod: &str, connected: bool) -> Result<Value> {
    wait::until(&format!("{address} is {pod}'s"), SOON, || {
        let entry = admin.get(&format!("{ENTRIES}/vms-{address}"))?.ok()?;
        let controller = annotation(&entry, "istio.io/workloadController");
        ensure!(
            *controller == format!("pilotfish/istio-system/{pod}"),
            "{entry}"
        );
        let since = annotation(&entry, "istio.io/connectedAt");
        let until = annotation(&entry, "istio.io/disconnectedAt");
        ensure!(
            since.is_string() == connected && until.is_null() == connected,
            "{entry}"
        );
        Ok(entry)
    })
}

fn wait_health(admin: &KubeClient, address: &str, status: &str) -> Result<Value> {
    wait::until(&format!("{address} is healthy: {status}"), SOON, || {
        let entry = admin.get(&format!("{ENTRIES}/vms-{address}"))?.ok()?;
        let all = entry["status"]["conditions"].as_array();
        let found = all.and_then(|all| all.iter().find(|one| one["type"] == "Healthy"));
        let found = found.context("no condition")?;
        ensure!(found["status"] == status, "{found}");
        Ok(found.clone())
    })
}

fn refused(plane: &ControlPlane) -> Result<()> {
    let stranger = xds::connect(plane.xds(), &machine("10.0.0.9", "other"));
    let error = format!("{:#}", stranger.err().context("a stranger is admitted")?);
    ensure!(error.contains("runs as service account vm"), "{error}");
    wait::until("it is said who was refused", SOON, || {
        let page = plane.page("/debug/diagnostics")?.to_string();
        ensure!(page.contains("workload-refused"), "{page}");
        Ok(())
    })
}

fn in_a_cluster(workspace: &Workspace) -> Result<()> {
    let server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.install_crds(&tools::crds()?)?;
    admin.apply(MESH)?;
    for pod in ["replica-a", "replica-b"] {
        admin.apply_objects(vec![
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "istio-system"},
            "spec": {"containers": [{"name": "discovery", "image": "pilotfish"}]}}),
        ])?;
    }
    let kubeconfig = server.kubeconfig(&User::admin())?;
    let mut first = replica(workspace, &kubeconfig, "replica-a")?;
    let mut second = replica(workspace, &kubeconfig, "replica-b")?;
    first.wait_ready()?;
    second.wait_ready()?;
    let begin = Instant::now();

    // It joins, and is no endpoint before it is known to be well.
    let follower = follow(&second)?;
    wait_endpoints(&follower, &[])?;
    let one = join(&first, "10.0.0.7")?;
    let entry = wait_controller(&admin, "10.0.0.7", "replica-a", true)?;
    ensure!(entry["spec"]["address"] == "10.0.0.7", "{entry}");
    ensure!(entry["spec"]["serviceAccount"] == "vm", "{entry}");
    let labels = &entry["metadata"]["labels"];
    ensure!(
        labels["app"] == "vm" && labels["version"] == "v1",
        "{entry}"
    );
    let owner = &entry["metadata"]["ownerReferences"][0];
    ensure!(
        owner["kind"] == "WorkloadGroup" && owner["name"] == "vms",
        "{entry}"
    );
    ensure!(
        annotation(&entry, "proxy.istio.io/health-checks-enabled") == "true",
        "{entry}"
    );
    one.report(None)?;
    wait_health(&admin, "10.0.0.7", "True")?;
    wait_endpoints(&follower, &["10.0.0.7"])?;
    one.report(Some("no answer"))?;
    let condition = wait_health(&admin, "10.0.0.7", "False")?;
    ensure!(condition["message"] == "no answer", "{condition}");
    wait_endpoints(&follower, &[])?;
    one.report(None)?;
    wait_endpoints(&follower, &["10.0.0.7"])?;

    refused(&second)?;
    // Another one is connected to the first replica when both die.
    let other = join(&first, "10.0.0.8")?;
    wait_controller(&admin, "10.0.0.8", "replica-a", true)?;

    // It loses its connection, which is noticed, and finds another replica: nobody misses it.
    let before = follower.seen().len();
    drop(one);
    wait_controller(&admin, "10.0.0.7", "replica-a", false)?;
    let one = join(&second, "10.0.0.7")?;
    wait_controller(&admin, "10.0.0.7", "replica-b", true)?;
    drop(first);
    drop(other);
    admin
        .delete("/api/v1/namespaces/istio-system/pods/replica-a")?
        .ok()?;
    let died = Instant::now();
    std::thread::sleep(GRACE + Duration::from_secs(2));
    let seen = follower.seen();
    ensure!(
        seen[before..]
            .iter()
            .all(|seen| seen.contains(&"10.0.0.7".to_owned())),
        "{seen:?}"
    );
    wait_entry(&admin, "10.0.0.7", true)?;

    // It leaves for good.
    drop(one);
    let left = Instant::now();
    wait_entry(&admin, "10.0.0.7", false)?;
    let away = left.elapsed();
    ensure!(away >= GRACE, "{away:?}");
    wait_endpoints(&follower, &[])?;
    wait_entry(&admin, "10.0.0.8", false)?;
    eprintln!(
        "removed {away:.1?} after it left, {:.1?} after its replica died; all in {:.1?}",
        died.elapsed(),
        begin.elapsed()
    );
    ensure!(died.elapsed() >= GRACE * 3, "too soon");
    second.stop()
}

fn in_memory(workspace: &Workspace) -> Result<()> {
    let folder = workspace.place("mesh");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("mesh.yaml"), MESH)?;
    let ports = Ports::free(&Net::Host)?;
    let options = options(&[], None);
    let logs = workspace.logs();
    let mut plane = ControlPlane::start_with(&Net::Host, LOOPBACK, ports, &folder, &logs, options)?;
    let follower = follow(&plane)?;
    wait_endpoints(&follower, &[])?;
    let one = join(&plane, "10.0.0.7")?;
    one.report(None)?;
    wait_endpoints(&follower, &["10.0.0.7"])?;
    refused(&plane)?;
    // It is away for a moment, and nobody misses it.
    let before = follower.seen().len();
    drop(one);
    std::thread::sleep(GRACE / 2);
    let one = join(&plane, "10.0.0.7")?;
    std::thread::sleep(GRACE);
    ensure!(follower.seen().len() == before, "{:?}", follower.seen());
    one.report(Some("no answer"))?;
    wait_endpoints(&follower, &[])?;
    one.report(None)?;
    wait_endpoints(&follower, &["10.0.0.7"])?;
    drop(one);
    let left = Instant::now();
    wait_endpoints(&follower, &[])?;
    ensure!(left.elapsed() >= GRACE, "{:?}", left.elapsed());
    plane.stop()
}
