//! A cluster that is put back to a backup: its versions are older than what was seen, and what it says is the truth all the
//! same. It has to insist for a minute, because a server that has not caught up says the same things; unless its versions
//! have passed those that were seen, which makes it no less different.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::{ControlPlane, Options, Ports};
use pilotfish_e2e::kube::client::KubeClient;
use pilotfish_e2e::kube::faults::{Fault, Requests};
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::wait::SOON;
use pilotfish_e2e::yaml::Service;
use pilotfish_e2e::{case, wait, xds};
use serde_json::json;

/// How long the cluster has to insist, and the longest pause between two attempts.
const BELIEVED: Duration = Duration::from_secs(60 + 35);

#[test]
fn a_cluster_that_was_restored_is_believed_after_a_minute() {
    case::on_loopback(|workspace| restored(workspace, 150));
}

#[test]
fn a_cluster_that_was_restored_and_has_caught_up_is_believed() {
    case::on_loopback(|workspace| restored(workspace, 0));
}

/// Servers behind a load balancer are seldom dead: it answers for them.
#[test]
fn a_cluster_that_was_restored_behind_errors_and_has_caught_up_is_believed() {
    case::on_loopback(restored_behind_errors);
}

fn service(name: &str, address: u8) -> String {
    Service::http("shop", name, Ipv4Addr::new(10, 96, 9, address)).object()
}

fn has(plane: &ControlPlane, name: &str) -> Result<bool> {
    let node = Proxy::sidecar("shop", "client", "client", Ipv4Addr::new(10, 0, 0, 9)).node();
    let cluster = format!("outbound|80||{name}.shop.svc.cluster.local");
    Ok(xds::dump(plane.xds(), &node)?.contains_key(&("Cluster", cluster)))
}

/// A cluster, and how it differs from its backup.
fn backed_up(workspace: &Workspace, writes: usize) -> Result<(KubeServer, KubeClient)> {
    let mut server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.apply(&(service("stays", 1) + &service("deleted-later", 2)))?;
    server.backup("before")?;
    wait::until("writes work again", SOON, || {
        admin.apply(&service("made-later", 3))
    })?;
    admin.remove("v1", "Service", "shop", "deleted-later")?;
    be_busy(&admin, writes)?;
    Ok((server, admin))
}

fn be_busy(admin: &KubeClient, writes: usize) -> Result<()> {
    for number in 0..writes {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "busy", "namespace": "shop"}, "data": {"number": number.to_string()}});
        admin.apply_objects(vec![map])?;
    }
    Ok(())
}

fn launch(workspace: &Workspace, kubeconfig: &Path) -> Result<ControlPlane> {
    let flags = ["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    let plain = ["--secure-grpc-addr".to_owned(), String::new()];
    let options = Options {
        flags: flags.into_iter().chain(plain).collect(),
        environment: BTreeMap::new(),
    };
    let (ports, logs) = (Ports::free(&Net::Host)?, workspace.logs());
    let here = Ipv4Addr::LOCALHOST;
    let mut plane = ControlPlane::launch(&Net::Host, here, ports, None, &logs, options)?;
    plane.wait_ready()?;
    ensure!(has(&plane, "made-later")? && !has(&plane, "deleted-later")?);
    Ok(plane)
}

fn restored_behind_errors(workspace: &Workspace) -> Result<()> {
    let (mut server, _) = backed_up(workspace, 0)?;
    let faults = server.faults()?;
    let kubeconfig = server.kubeconfig_through(&User::admin(), &faults)?;
    let mut plane = launch(workspace, &kubeconfig)?;
    faults.set_all(Requests::All, Fault::Status(503));
    // As many as there are kinds, and some more: each has been told.
    wait::until("errors arrive", SOON, || {
        ensure!(faults.hits() > 40);
        Ok(())
    })?;
    server.restore("before", Duration::ZERO)?;
    let admin = server.admin()?;
    // Versions pass those that were seen: nothing that a watch says from there on tells what is different.
    wait::until("writes work again", SOON, || be_busy(&admin, 1))?;
    be_busy(&admin, 150)?;
    faults.set(Vec::new());
    wait::until("the backup is believed", BELIEVED, || {
        ensure!(!has(&plane, "made-later")? && has(&plane, "deleted-later")?);
        Ok(())
    })?;
    plane.stop()
}

/// `writes`: how much happens between the backup and the loss.
fn restored(workspace: &Workspace, writes: usize) -> Result<()> {
    let (mut server, admin) = backed_up(workspace, writes)?;
    // The newest that is seen of a kind is the version of its list.
    admin.apply(&service("made-last", 5))?;

    let kubeconfig = server.kubeconfig(&User::admin())?;
    let mut plane = launch(workspace, &kubeconfig)?;

    // One that is back before anybody notices that it was gone is found out by its versions, unless they have caught up.
    let down = if writes > 0 {
        Duration::ZERO
    } else {
        Duration::from_secs(1)
    };
    server.restore("before", down)?;
    let begin = Instant::now();
    while writes > 0 && begin.elapsed() < Duration::from_secs(15) {
        ensure!(has(&plane, "stays")? && has(&plane, "made-later")?);
        ensure!(plane.readiness()?.0 == 200, "it is not ready any more");
        std::thread::sleep(Duration::from_millis(200));
    }
    wait::until("the backup is believed", BELIEVED, || {
        ensure!(!has(&plane, "made-later")? && has(&plane, "deleted-later")?);
        Ok(())
    })?;
    eprintln!(
        "{writes} writes: believed {:.0?} after the server was back",
        begin.elapsed()
    );
    // From there on it is a cluster like any other.
    server.admin()?.apply(&service("new", 4))?;
    wait::until("a change arrives", SOON, || {
        ensure!(has(&plane, "new")? && has(&plane, "stays")?);
        Ok(())
    })?;
    plane.stop()
}
