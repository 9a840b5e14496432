//! Writing back to a cluster: one replica does, another takes over when it dies in the middle of it, and nothing is written
//! that is there.

use std::collections::{BTreeMap, BTreeSet};
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
use pilotfish_e2e::{case, tools, wait};
use serde_json::{Value, json};

/// The duration of leases here: long enough that a busy machine does not lose one, short enough to wait for.
const LEASE: Duration = Duration::from_secs(9);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ENTRIES: &str = "/apis/networking.istio.io/v1/namespaces/shop/serviceentries";
const SERVICES: &str = "/apis/networking.istio.io/v1/namespaces/shop/virtualservices";
const LEASE_PATH: &str =
    "/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/pilotfish-writer";
/// How many entries are made at a time.
const COUNT: usize = 200;

#[test]
fn one_writes_and_another_takes_over() {
    case::on_loopback(takes_over);
}

#[test]
fn what_is_wrong_is_said_where_it_is_looked_for() {
    case::on_loopback(says_what_is_wrong);
}

fn start(workspace: &Workspace, kubeconfig: &Path, more: &[&str]) -> Result<ControlPlane> {
    let mut flags = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    flags.extend(["--log-level", "default:info,kube:debug"].map(str::to_owned));
    flags.extend(["--secure-grpc-addr", ""].map(str::to_owned));
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    let lease = format!("{}s", LEASE.as_secs());
    let environment = BTreeMap::from([("PILOTFISH_LEASE_DURATION".to_owned(), lease)]);
    let options = Options { flags, environment };
    let ports = Ports::free(&Net::Host)?;
    let logs = workspace.logs();
    ControlPlane::launch(&Net::Host, LOOPBACK, ports, None, &logs, options)
}

fn leads(plane: &ControlPlane) -> Result<bool> {
    Ok(plane.page("/debug/writers")?["leader"] == true)
}

fn wait_leads(plane: &ControlPlane, limit: Duration) -> Result<()> {
    wait::until("it leads", limit, || {
        ensure!(leads(plane)?, "{}", plane.page("/debug/writers")?);
        Ok(())
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// How many pushes there were.
fn pushes(plane: &ControlPlane) -> Result<u64> {
    let page = plane.page("/debug/push_status")?;
    page["total"].as_u64().context("a number of pushes")
}

fn entry(number: usize) -> Value {
    json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"name": format!("out-{number}"), "namespace": "shop"},
        "spec": {"hosts": [format!("out-{number}.example")], "resolution": "DNS",
            "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]}})
}

/// Versions and statuses by name.
type Statuses = BTreeMap<String, (String, Value)>;

fn statuses(admin: &KubeClient, path: &str) -> Result<Statuses> {
    let list = admin.get(path)?.ok()?;
    let items = list["items"].as_array().context("a list")?.iter();
    Ok(items
        .map(|item| {
            let meta = &item["metadata"];
            let stands = (text(&meta["resourceVersion"]), item["status"].clone());
            (text(&meta["name"]), stands)
        })
        .collect())
}

fn with_addresses(all: &Statuses) -> usize {
    let written = all.values().filter(|(_, status)| has_addresses(status));
    written.count()
}

fn has_addresses(status: &Value) -> bool {
    let addresses = status["addresses"].as_array();
    addresses.is_some_and(|addresses| !addresses.is_empty())
}

/// Every entry has both of its addresses, and no two have the same.
fn check_addresses(all: &Statuses, count: usize) -> Result<()> {
    ensure!(all.len() == count, "{}", all.len());
    let mut seen = BTreeSet::new();
    for (name, (_, status)) in all {
        let addresses = status["addresses"].as_array().context("addresses")?;
        ensure!(addresses.len() == 2, "{name}: {status}");
        for (address, start) in addresses.iter().zip(["240.240.", "2001:2::"]) {
            let value = address["value"].as_str().unwrap_or_default();
            ensure!(
                address["host"] == format!("{name}.example"),
                "{name}: {status}"
            );
            ensure!(value.starts_with(start), "{name}: {status}");
            ensure!(seen.insert(value.to_owned()), "{value} is given twice");
        }
    }
    Ok(())
}

/// Who the Lease says writes.
fn holder(admin: &KubeClient) -> Result<String> {
    let lease = admin.get(LEASE_PATH)?.ok()?;
    Ok(text(&lease["spec"]["holderIdentity"]))
}

fn identity(plane: &ControlPlane) -> Result<String> {
    Ok(text(&plane.page("/debug/writers")?["identity"]))
}

/// Adds entries until the one who writes them is killed before it is through; returns how many there are.
fn kill_while_writing(admin: &KubeClient, mut plane: ControlPlane) -> Result<usize> {
    plane.wait_ready()?;
    for round in 1..=10 {
        let (old, all) = (COUNT * (round - 1), COUNT * round);
        admin.apply_objects((old..all).map(entry).collect())?;
        wait::until("some are written", SOON, || {
            let written = with_addresses(&statuses(admin, ENTRIES)?);
            ensure!(written > old + 20, "{written}");
            Ok(())
        })?;
        if with_addresses(&statuses(admin, ENTRIES)?) < all {
            ensure!(holder(admin)? == identity(&plane)?, "somebody else writes");
            return Ok(all);
        }
    }
    bail!("it is always faster")
}

fn takes_over(workspace: &Workspace) -> Result<()> {
    let mut server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.install_crds(&tools::crds()?)?;
    admin.apply("{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")?;
    let kubeconfig = server.kubeconfig(&User::admin())?;

    // Two replicas, of which one begins to write, and is killed in the middle of it.
    let first = start(workspace, &kubeconfig, &[])?;
    wait_leads(&first, SOON)?;
    let mut second = start(workspace, &kubeconfig, &[])?;
    second.wait_ready()?;
    let dead = identity(&first)?;
    let count = kill_while_writing(&admin, first)?;
    let killed = Instant::now();
    let before = statuses(&admin, ENTRIES)?;
    ensure!(holder(&admin)? == dead, "nobody could know that it is dead");
    wait_leads(&second, SOON)?;
    let taken = killed.elapsed();
    // It was last renewed at most the time it is relied on before it was killed.
    ensure!(taken >= LEASE / 3, "taken before its time: {taken:?}");
    wait::until("all are written", SOON, || {
        let written = with_addresses(&statuses(&admin, ENTRIES)?);
        ensure!(written == count, "{written} of {count}");
        Ok(())
    })?;
    eprintln!(
        "killed after {} of {count}; taken over after {taken:.1?}, done after {:.1?}",
        with_addresses(&before),
        killed.elapsed()
    );
    let after = statuses(&admin, ENTRIES)?;
    check_addresses(&after, count)?;
    for (name, (version, status)) in &before {
        if has_addresses(status) {
            ensure!(after[name].0 == *version, "{name} was written twice");
        }
    }

    // Without an API server nobody can be sure to lead, and nothing is lost by it.
    server.kill_api();
    wait::until("it does not lead", SOON, || {
        ensure!(!leads(&second)?);
        Ok(())
    })?;
    server.start_api()?;
    wait_leads(&second, SOON)?;

    idle(&admin, &second)?;
    orderly_stop(workspace, &admin, &kubeconfig, &mut second, count)
}

/// Waits until everything is read again, nothing is left to be written, and nothing has come of it for a while.
fn settle(plane: &ControlPlane) -> Result<()> {
    let mut last = (0, Instant::now());
    wait::until("it comes to rest", SOON, || {
        let watches = plane.page("/debug/kubernetes")?;
        let watches = watches.as_array().context("watches")?.iter();
        for watch in watches {
            let state = watch["state"].as_str();
            ensure!(matches!(state, Some("live" | "absent")), "{watch}");
        }
        let page = plane.page("/debug/writers")?;
        ensure!(page["open"] == 0, "{page}");
        let pushes = pushes(plane)?;
        if last.0 != pushes {
            last = (pushes, Instant::now());
        }
        ensure!(last.1.elapsed() >= Duration::from_secs(5), "{pushes}");
        Ok(())
    })
}

/// Nothing is written and nothing is pushed when nothing happens.
fn idle(admin: &KubeClient, plane: &ControlPlane) -> Result<()> {
    settle(plane)?;
    let (before, pushed) = (statuses(admin, ENTRIES)?, pushes(plane)?);
    let page = plane.page("/debug/writers")?;
    std::thread::sleep(Duration::from_mins(1));
    ensure!(statuses(admin, ENTRIES)? == before, "something was written");
    let more = pushes(plane)? - pushed;
    ensure!(more == 0, "{more} pushes");
    eprintln!("{pushed} pushes for {} writes", page["writes"]);
    Ok(())
}

/// Who stops in good order hands over at once, and what was written outlives all who wrote it.
fn orderly_stop(
    workspace: &Workspace,
    admin: &KubeClient,
    kubeconfig: &Path,
    leader: &mut ControlPlane,
    count: usize,
) -> Result<()> {
    let before = statuses(admin, ENTRIES)?;
    let mut next = start(workspace, kubeconfig, &[])?;
    next.wait_ready()?;
    wait_leads(leader, SOON)?;
    let gone = identity(leader)?;
    leader.stop()?;
    // Sooner than it would run out.
    wait::until("the Lease is given back", LEASE / 3, || {
        ensure!(holder(admin)? != gone);
        Ok(())
    })?;
    wait_leads(&next, SOON)?;
    next.stop()?;
    // Neighbours come and go while nobody runs; whoever has an address keeps it.
    let path = format!("{ENTRIES}/out-7");
    admin.delete(&path)?.ok()?;
    admin.apply_objects((count..count + 50).map(entry).collect())?;
    next.start_again()?;
    wait_leads(&next, SOON)?;
    let added = wait::until("the new ones are written", SOON, || {
        let all = statuses(admin, ENTRIES)?;
        ensure!(all.values().all(|(_, status)| has_addresses(status)));
        Ok(all)
    })?;
    ensure!(added.len() == count + 49);
    for (name, stood) in before.iter().filter(|(name, _)| *name != "out-7") {
        ensure!(added[name] == *stood, "{name} was changed");
    }
    next.stop()
}

fn route(name: &str, host: &str, more: &Value) -> Value {
    let mut metadata = json!({"name": name, "namespace": "shop"});
    if let (Some(metadata), Some(more)) = (metadata.as_object_mut(), more.as_object()) {
        metadata.extend(more.clone());
    }
    json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": metadata,
        "spec": {"hosts": [host], "http": [{"route": [{"destination": {"host": host}}]}]}})
}

fn condition(object: &Value) -> Value {
    let all = object["status"]["conditions"].as_array();
    let ours = all.and_then(|all| all.iter().find(|c| c["type"] == "PassedAnalysis"));
    ours.cloned().unwrap_or_default()
}

/// Waits for our condition to have a status, for the generation that there is.
fn wait_condition(admin: &KubeClient, path: &str, status: &str) -> Result<Value> {
    wait::until(&format!("{path} is {status}"), SOON, || {
        let object = admin.get(path)?.ok()?;
        let condition = condition(&object);
        ensure!(condition["status"] == status, "{object}");
        ensure!(condition["observedGeneration"] == object["metadata"]["generation"]);
        Ok(object)
    })
}

fn says_what_is_wrong(workspace: &Workspace) -> Result<()> {
    let server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.install_crds(&tools::crds()?)?;
    admin.apply("{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")?;
    for name in ["web", "api"] {
        let meta = json!({"name": name, "namespace": "shop"});
        admin.apply_objects(vec![
            json!({"apiVersion": "v1", "kind": "Service", "metadata": meta,
            "spec": {"ports": [{"name": "http", "port": 80}]}}),
        ])?;
    }
    let foreign = json!({"labels": {"istio.io/rev": "canary"}});
    let mut kept = route("kept", "none.example", &json!({}));
    kept["status"] = json!({"conditions": [{"type": "Healthy", "status": "True"}]});
    admin.apply_objects(vec![
        route("good", "web", &json!({})),
        route("bad", "nowhere.example", &json!({})),
        route("foreign", "elsewhere.example", &foreign),
        kept,
    ])?;
    let mut plane = start(workspace, &server.kubeconfig(&User::admin())?, &[])?;
    plane.wait_ready()?;

    let path = |name: &str| format!("{SERVICES}/{name}");
    let bad = wait_condition(&admin, &path("bad"), "False")?;
    let ours = condition(&bad);
    ensure!(ours["reason"] == "UnknownHost", "{ours}");
    let messages = &bad["status"]["validationMessages"];
    ensure!(messages[0]["level"] == "ERROR", "{messages}");
    let kept = wait_condition(&admin, &path("kept"), "False")?;
    ensure!(
        kept["status"]["conditions"][0]["type"] == "Healthy",
        "what others say stays: {kept}"
    );
    let events = "/apis/events.k8s.io/v1/namespaces/shop/events";
    let event = wait::until("there is an Event", SOON, || {
        let all = admin.get(events)?.ok()?;
        let mut all = all["items"].as_array().context("events")?.iter();
        let about = |event: &&Value| event["regarding"]["uid"] == bad["metadata"]["uid"];
        all.find(about).cloned().context("none is about it")
    })?;
    ensure!(event["reason"] == "UnknownHost", "{event}");

    // It is put right: the condition turns, once, and that is no push.
    admin.apply_objects(vec![route("bad", "api", &json!({}))])?;
    let good = wait_condition(&admin, &path("bad"), "True")?;
    ensure!(good["status"]["validationMessages"] == json!([]), "{good}");
    settle(&plane)?;
    let (stood, pushed) = (statuses(&admin, SERVICES)?, pushes(&plane)?);
    let made = admin.get(events)?.ok()?["items"].as_array().map(Vec::len);
    std::thread::sleep(Duration::from_secs(10));
    ensure!(
        statuses(&admin, SERVICES)? == stood,
        "it does not come to rest"
    );
    ensure!(pushes(&plane)? == pushed, "pushes go on");
    for name in ["good", "foreign"] {
        ensure!(stood[name].1.is_null(), "{name}: {}", stood[name].1);
    }

    // Another replica says nothing twice.
    plane.stop()?;
    plane.start_again()?;
    wait_leads(&plane, SOON)?;
    std::thread::sleep(Duration::from_secs(8));
    ensure!(
        statuses(&admin, SERVICES)? == stood,
        "it was all written again"
    );
    let again = admin.get(events)?.ok()?["items"].as_array().map(Vec::len);
    ensure!(again == made, "{again:?} Events instead of {made:?}");
    plane.stop()?;
    may_not_write(workspace, &server)
}

/// Whoever may only read serves, and says what it cannot do.
fn may_not_write(workspace: &Workspace, server: &KubeServer) -> Result<()> {
    let findings = |plane: &ControlPlane| -> Result<usize> {
        let page = plane.page("/debug/diagnostics")?;
        let all = page.as_array().context("findings")?.iter();
        Ok(all.filter(|f| f["code"] == "write-forbidden").count())
    };
    let wait_findings = |plane: &ControlPlane, count: usize| {
        wait::until("it says what it may not do", SOON, || {
            let found = findings(plane)?;
            ensure!(found == count, "{found} findings");
            Ok(())
        })
    };
    let read = "{apiGroups: ['*'], resources: ['*'], verbs: [get, list, watch]}";
    let reader = server.user("reader", &format!("[{read}]"))?;
    let mut plane = start(workspace, &server.kubeconfig(&reader)?, &[])?;
    plane.wait_ready()?;
    wait_findings(&plane, 1)?;
    ensure!(!leads(&plane)?);
    // With the lease alone, each part says for itself what it cannot do.
    let lease = "{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, update]}";
    server.user("reader", &format!("[{read}, {lease}]"))?;
    wait_leads(&plane, SOON)?;
    server.admin()?.apply_objects(vec![entry(0)])?;
    wait::until("it says what it may not do", SOON, || {
        let page = plane.page("/debug/diagnostics")?.to_string();
        ensure!(page.contains("serviceentries may not be written"), "{page}");
        Ok(())
    })?;
    plane.stop()
}
