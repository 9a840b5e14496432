//! Two replicas on one cluster: when one is killed, its proxies go on with the other, which sends them what they lack and
//! nothing else. `KUBE_PROXIES` is how many there are.

use std::collections::BTreeMap;
use std::env;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::{ControlPlane, Options, Ports};
use pilotfish_e2e::crowd::{Crowd, Given};
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::yaml::{self, Service};
use pilotfish_e2e::{case, tools, wait, xds};
use serde_json::Value;

const PROXIES: usize = 500;
const SERVICES: u8 = 30;
/// What a busy machine with a slow build may take to configure them all.
const AGAIN: Duration = Duration::from_mins(2);
const CDS: usize = 0;
const EDS: usize = 1;

#[test]
fn a_replica_that_dies_costs_its_proxies_nothing() {
    case::on_loopback(one_dies);
}

fn one_dies(workspace: &Workspace) -> Result<()> {
    let proxies = match env::var("KUBE_PROXIES") {
        Ok(number) => number.parse().context("KUBE_PROXIES")?,
        Err(_) => PROXIES,
    };
    let server = KubeServer::start(&Net::Host, "kube", workspace)?;
    let admin = server.admin()?;
    admin.install_crds(&tools::crds()?)?;
    let services: String = (1..=SERVICES).map(service).collect();
    admin.apply(&services)?;
    let kubeconfig = server.kubeconfig(&User::admin())?;
    let replica = || -> Result<ControlPlane> {
        let flags = ["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
        let plain = ["--secure-grpc-addr".to_owned(), String::new()];
        let options = Options {
            flags: flags.into_iter().chain(plain).collect(),
            environment: BTreeMap::new(),
        };
        let (ports, logs) = (Ports::free(&Net::Host)?, workspace.logs());
        ControlPlane::launch(&Net::Host, Ipv4Addr::LOCALHOST, ports, None, &logs, options)
    };
    let (mut first, mut second) = (replica()?, replica()?);
    first.wait_ready()?;
    second.wait_ready()?;

    let nodes: Vec<Value> = (0..proxies).map(node).collect();
    let crowd = Crowd::connect(vec![first.xds(), second.xds()], &nodes)?;
    let given = crowd.wait_configured(&[0, 1], AGAIN)?;
    report("connect", &given);
    let begin = &given[0];
    ensure!(begin.resources[CDS] > usize::from(SERVICES), "{begin:?}");
    ensure!(begin.resources[EDS] >= usize::from(SERVICES), "{begin:?}");

    // Nothing changes while they are away: nothing is sent.
    drop(first.process().stop(Duration::ZERO));
    let given = crowd.wait_configured(&[1], AGAIN)?;
    let moved: Vec<Given> = of_replica(&given, 0, 2);
    report("one replica dies", &moved);
    for given in &moved {
        ensure!(all(given) == ([0; 5], 0), "sent again: {given:?}");
    }
    for given in of_replica(&given, 1, 2) {
        ensure!(given.resources == begin.resources, "disturbed: {given:?}");
    }

    // Something changes while all are away: that is sent. A changed cluster waits for its endpoints.
    first.start_again()?;
    crowd.hold(true);
    drop(second.process().stop(Duration::ZERO));
    admin.apply(RULE)?;
    wait::until("the other replica knows", AGAIN, || {
        let all = xds::dump(first.xds(), &nodes[0])?;
        let cluster = all.get(&(
            "Cluster",
            "outbound|80||service-1.shop.svc.cluster.local".into(),
        ));
        let cluster = xds::to_json("Cluster", cluster.context("the cluster")?)?;
        ensure!(cluster.to_string().contains("RANDOM"), "{cluster}");
        Ok(())
    })?;
    crowd.hold(false);
    let given = crowd.wait_configured(&[0], AGAIN)?;
    report("the other dies, one rule changes", &given);
    for given in &given {
        ensure!(
            all(given) == ([1, 1, 0, 0, 0], 0),
            "not just the cluster and its endpoints: {given:?}"
        );
    }
    first.stop()
}

const RULE: &str = "{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: one, namespace: shop}, \
    spec: {host: service-1, trafficPolicy: {loadBalancer: {simple: RANDOM}}}}";

fn service(number: u8) -> String {
    let name = format!("service-{number}");
    Service::http("shop", &name, Ipv4Addr::new(10, 96, 7, number)).with_endpoints(&[
        Ipv4Addr::new(10, 1, number, 1),
        Ipv4Addr::new(10, 1, number, 2),
    ])
}

fn node(index: usize) -> Value {
    let address = Ipv4Addr::from(0x0a0a_0000 + u32::try_from(index).unwrap_or_default());
    let name = yaml::pod_name("client", address);
    Proxy::sidecar("shop", &name, "client", address).node()
}

/// Of the proxies that began with a replica.
fn of_replica(given: &[Given], replica: usize, replicas: usize) -> Vec<Given> {
    let all = given.iter().skip(replica).step_by(replicas);
    all.cloned().collect()
}

/// What was sent, and how much was taken away.
fn all(given: &Given) -> ([usize; 5], usize) {
    (given.resources, given.removed.iter().sum())
}

fn report(what: &str, given: &[Given]) {
    let mut times: Vec<Duration> = given.iter().filter_map(|given| given.configured).collect();
    times.sort();
    let at = |part: usize| {
        times
            .get(times.len() * part / 100)
            .copied()
            .unwrap_or_default()
    };
    let last = times.last().copied().unwrap_or_default();
    let bytes: usize = given.iter().map(|given| given.bytes).sum();
    let sum = |kind: usize| -> usize { given.iter().map(|given| given.resources[kind]).sum() };
    let resources: Vec<usize> = (0..5).map(sum).collect();
    eprintln!(
        "{what}: {} proxies configured, p50 {:.0?}, p99 {:.0?}, last {last:.0?}; CDS, EDS, LDS, RDS, VHDS: {resources:?}; {bytes} bytes",
        times.len(),
        at(50),
        at(99),
    );
}
