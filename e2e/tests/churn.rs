//! Endpoints, services, weights and names of hosts change all the time, and nobody who sends requests notices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pilotfish_e2e::backend::{Backend, Identity};
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::Options;
use pilotfish_e2e::envoy::Protocol;
use pilotfish_e2e::fabric::{HUB, Interception};
use pilotfish_e2e::load::{Load, Report};
use pilotfish_e2e::mesh::{Mesh, Pod};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::wait::SOON;
use pilotfish_e2e::yaml::{self, Service};
use pilotfish_e2e::{case, wait};

const CHANGES: usize = 100;
/// Enough for ten of each kind.
const FEW_CHANGES: usize = 40;
const KINDS: [&str; 4] = ["weights", "endpoints", "services", "names"];
/// Changes sent faster than they can be looked at, to end with.
const BURST: usize = 30;
/// So short that audits fall amid the changes, too: where it is never quiet, they come ten pauses late.
const AUDIT_INTERVAL: &str = "10ms";
/// A host that stays and is always asked.
const STEADY: &str = "steady.example";
/// Hosts that are renamed: one has a VirtualService of its own, the other shares that of the host that stays.
const RENAMED: [&str; 2] = ["alone", "sibling"];
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 1);
const SHOP: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 1);
/// Backends of each version; all of them stay alive, as pods do while they drain.
const EACH: u8 = 5;
const PAUSE: Duration = Duration::from_millis(5);
/// Where a virtual host is taken away before its successor comes, it is missing for less than a millisecond.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

fn address(version: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 10 + version, 1 + number)
}

/// What is written in the YAML now.
#[derive(Clone, Debug)]
struct Desired {
    v2_weight: u8,
    endpoints: BTreeSet<Ipv4Addr>,
    extras: BTreeSet<u8>,
    /// The number in hosts' names, while there are such hosts.
    name: Option<u8>,
    /// How often they were renamed or removed.
    renamed: u8,
}

struct Scene<'a> {
    load: Load,
    steady: Load,
    probe: Net,
    outside: Net,
    proxies: [Pod; 2],
    backends: Vec<Backend>,
    mesh: Mesh<'a>,
}

#[test]
fn a_hundred_changes_and_no_failed_request_delta() {
    case::run(|workspace| churn(workspace, Protocol::Delta, Tables::Apart, CHANGES));
}

#[test]
fn a_hundred_changes_and_no_failed_request_state_of_the_world() {
    case::run(|workspace| churn(workspace, Protocol::Sotw, Tables::Whole, CHANGES));
}

#[test]
fn changes_and_no_failed_request_delta_with_whole_tables() {
    case::run(|workspace| churn(workspace, Protocol::Delta, Tables::Whole, FEW_CHANGES));
}

/// How the proxies are to get their virtual hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tables {
    Apart,
    Whole,
}

fn churn(workspace: &Workspace, protocol: Protocol, tables: Tables, changes: usize) -> Result<()> {
    let mut desired = Desired {
        v2_weight: 50,
        endpoints: [address(1, 0), address(2, 0)].into(),
        extras: BTreeSet::new(),
        name: None,
        renamed: 0,
    };
    // What no host answers for is refused at once, instead of waiting for a connection to where nobody is.
    let mesh = workspace.place("mesh-config.yaml");
    std::fs::write(&mesh, "outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n")?;
    let mut flags = vec!["--mesh-config".to_owned(), mesh.display().to_string()];
    flags.extend(["--audit-interval", AUDIT_INTERVAL].map(str::to_owned));
    if (protocol, tables) == (Protocol::Delta, Tables::Whole) {
        flags.push("--whole-route-tables".to_owned());
    }
    let options = Options {
        flags,
        ..Options::default()
    };
    let scene = Scene::start(workspace, &desired, protocol, options)?;
    let mut kinds = BTreeMap::<&str, u32>::new();
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    for number in 0..changes {
        let kind = desired.change(number);
        let changed = Instant::now();
        scene.write(&desired, kind)?;
        scene
            .took_effect(&desired, kind, changed)
            .with_context(|| format!("change {number} ({kind}), now {desired:?}"))?;
        slowest = slowest.max(changed.elapsed());
        *kinds.entry(kind).or_default() += 1;
    }
    let verified = start.elapsed();
    for number in changes..changes + BURST {
        let kind = desired.change(number);
        scene.write(&desired, kind)?;
        std::thread::sleep(Duration::from_millis(15));
    }
    let burst = Instant::now();
    for kind in KINDS {
        scene
            .took_effect(&desired, kind, burst)
            .with_context(|| format!("{kind} after the burst: {desired:?}"))?;
    }

    let (shop, steady) = (scene.load.report(), scene.steady.report());
    for pod in &scene.proxies {
        let rejected = pod.envoy.admin().stats("update_rejected$")?;
        ensure!(
            rejected.values().all(|count| *count == 0),
            "rejected: {rejected:?}"
        );
        let apart = pod.envoy.admin().sum("vhds\\..*update_success$")?;
        ensure!(
            (apart > 0) == (tables == Tables::Apart),
            "{apart} updates of virtual hosts"
        );
    }
    eprintln!(
        "{protocol:?}: {changes} changes {kinds:?} in {verified:.1?} (slowest {slowest:.0?}) and {BURST} in a burst; \
         {} requests answered, {} of them by {STEADY}, {} failed, {} sent again",
        shop.answered + steady.answered,
        steady.answered,
        shop.failed + steady.failed,
        shop.resent + steady.resent,
    );
    for (host, report) in [("shop", shop), (STEADY, steady)] {
        unnoticed(&report, changes).context(host)?;
    }
    let silent: Vec<_> = scene
        .backends
        .iter()
        .filter(|backend| backend.requests() == 0)
        .collect();
    ensure!(silent.is_empty(), "never asked: {silent:?}");
    // The less there is to do, the sooner audits follow each other.
    drop((scene.load, scene.steady));
    audited(&scene.mesh, protocol, tables)
}

/// An error if whoever sent these requests noticed a change.
fn unnoticed(report: &Report, changes: usize) -> Result<()> {
    ensure!(
        report.failed == 0,
        "{} requests failed, the first: {:#?}",
        report.failed,
        report.failures
    );
    ensure!(
        report.resent == 0,
        "{} kept connections were closed on a request",
        report.resent
    );
    ensure!(
        report.answered > 10 * changes as u64,
        "only {} requests were answered",
        report.answered
    );
    Ok(())
}

impl Desired {
    /// The next change.
    fn change(&mut self, number: usize) -> &'static str {
        let step = number / KINDS.len();
        let kind = KINDS[number % KINDS.len()];
        match kind {
            "weights" => self.v2_weight = [100, 0, 30, 70][step % 4],
            "endpoints" => {
                // One endpoint comes or goes; the first of each version stays, so that no subset is ever empty.
                let version = 1 + (step % 2) as u8;
                let other = address(version, 1 + (step / 2) as u8 % (EACH - 1));
                if !self.endpoints.remove(&other) {
                    self.endpoints.insert(other);
                }
            }
            "services" => {
                let extra = (step % 3) as u8;
                if !self.extras.remove(&extra) {
                    self.extras.insert(extra);
                }
            }
            _ => {
                self.renamed += 1;
                self.name = Some(self.renamed).filter(|name| is_there(*name));
            }
        }
        kind
    }

    fn routes(&self) -> String {
        let v2 = self.v2_weight;
        let v1 = 100 - v2;
        format!(
            "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: shop, namespace: shop}}
spec:
  hosts: [shop.shop.svc.cluster.local, shop.example]
  gateways: [mesh, edge/edge]
  http:
  - route:
    - {{destination: {{host: shop.shop.svc.cluster.local, subset: v1, port: {{number: 80}}}}, weight: {v1}}}
    - {{destination: {{host: shop.shop.svc.cluster.local, subset: v2, port: {{number: 80}}}}, weight: {v2}}}
"
        )
    }

    /// Hosts that are nothing but names, for sidecars and at the gateway: one alone, and one beside a host that stays. The
    /// header makes that one's virtual host another with each name.
    fn names(&self) -> String {
        let renamed = self.renamed;
        let virtual_service = |name, hosts: &[String]| {
            let hosts = hosts.join(", ");
            format!(
                "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{hosts}]
  gateways: [mesh, edge/edge]
  http:
  - route: [{{destination: {{host: shop.shop.svc.cluster.local, subset: v1, port: {{number: 80}}}}}}]
    headers: {{request: {{set: {{renamed: \"{renamed}\"}}}}}}
---
"
            )
        };
        let [alone, sibling] = RENAMED.map(|kind| self.name.map(|name| host(kind, name)));
        let beside: Vec<_> = sibling.into_iter().chain([STEADY.to_owned()]).collect();
        let alone = alone.map(|host| virtual_service("alone", &[host]));
        alone.unwrap_or_default() + &virtual_service("siblings", &beside)
    }

    fn slices(&self) -> String {
        let addresses: Vec<_> = self.endpoints.iter().copied().collect();
        Service::http("shop", "shop", SHOP).endpoints(&addresses)
    }
}

/// A name comes, another takes its place, and then there is none.
fn is_there(name: u8) -> bool {
    !name.is_multiple_of(3)
}

fn host(kind: &str, name: u8) -> String {
    format!("{kind}-{name}.example")
}

fn extra_address(extra: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, 2, 1 + extra)
}

impl<'a> Scene<'a> {
    fn start(
        workspace: &'a Workspace,
        desired: &Desired,
        protocol: Protocol,
        options: Options,
    ) -> Result<Self> {
        let mut objects = vec![
            yaml::namespace("edge"),
            yaml::namespace("shop"),
            yaml::gateway("edge", "edge"),
            yaml::gateway_pod("edge", GATEWAY),
            Service {
                target: 8080,
                ..Service::http("edge", "ingress", Ipv4Addr::new(10, 96, 1, 2))
            }
            .with_endpoints(&[GATEWAY]),
            yaml::pod("shop", "client", "v1", CLIENT),
            Service::http("shop", "shop", SHOP).object(),
            "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: shop}
spec:
  host: shop.shop.svc.cluster.local
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
"
            .to_owned(),
        ];
        let pods: Vec<(u8, Ipv4Addr)> = (1..=2)
            .flat_map(|version| (0..EACH).map(move |number| (version, address(version, number))))
            .collect();
        objects.extend(
            pods.iter()
                .map(|(version, at)| yaml::pod("shop", "shop", &format!("v{version}"), *at)),
        );
        workspace.write("mesh.yaml", &objects.concat())?;
        workspace.write("weights.yaml", &desired.routes())?;
        workspace.write("endpoints.yaml", &desired.slices())?;
        workspace.write("names.yaml", &desired.names())?;
        let mesh = Mesh::serve_with(workspace, HUB, options)?;

        let addresses: Vec<Ipv4Addr> = pods.iter().map(|(_, at)| *at).collect();
        let servers = mesh.fabric.pod("servers", &addresses, Interception::None)?;
        let backends = pods
            .iter()
            .map(|(version, at)| {
                let identity = Identity::new("shop", &format!("v{version}"), &at.to_string());
                Backend::start(&servers, (*at, 9080), identity)
            })
            .collect::<Result<_>>()?;
        let sidecar = Proxy::sidecar("shop", &yaml::pod_name("client", CLIENT), "client", CLIENT);
        let mut router = Proxy::router(
            "edge",
            &yaml::pod_name("ingress", GATEWAY),
            "ingress",
            GATEWAY,
        );
        router.labels.push(("app".to_owned(), "ingress".to_owned()));
        let proxies = [
            mesh.proxy(&sidecar, protocol)?,
            mesh.proxy(&router, protocol)?,
        ];
        let outside = mesh.outsider(OUTSIDE)?;
        let inside = proxies[0].net.clone();
        let load = |hosts: [&str; 2], pause| {
            let both = || {
                [
                    Client::new(&inside, (SHOP, 80), hosts[0]),
                    Client::new(&outside, (GATEWAY, 8080), hosts[1]),
                ]
            };
            let clients = (0..2).flat_map(|_| both()).collect();
            Load::start(clients, "/", pause, |answer| answer)
        };
        let steady = load([STEADY; 2], SHORT_PAUSE);
        Ok(Self {
            load: load(["shop.shop", "shop.example"], PAUSE),
            steady,
            probe: inside,
            outside,
            proxies,
            backends,
            mesh,
        })
    }

    fn write(&self, desired: &Desired, kind: &str) -> Result<()> {
        let workspace = &self.mesh.workspace;
        match kind {
            "weights" => workspace.write("weights.yaml", &desired.routes()),
            "endpoints" => workspace.write("endpoints.yaml", &desired.slices()),
            "names" => workspace.write("names.yaml", &desired.names()),
            _ => (0..3).try_for_each(|extra| {
                let name = format!("extra{extra}");
                let file = format!("{name}.yaml");
                let exists = workspace.config().join(&file).exists();
                match (desired.extras.contains(&extra), exists) {
                    (true, false) => workspace.write(
                        &file,
                        &Service {
                            app: "shop",
                            ..Service::http("shop", &name, extra_address(extra))
                        }
                        .with_endpoints(&[address(1, 0)]),
                    ),
                    (false, true) => workspace.remove(&file),
                    _ => Ok(()),
                }
            }),
        }
    }

    /// Waits until requests and proxies show what is written.
    fn took_effect(&self, desired: &Desired, kind: &str, changed: Instant) -> Result<()> {
        match kind {
            "weights" => self.shares_follow(desired, changed),
            "endpoints" => self.hosts_follow(desired),
            "names" => self.names_follow(desired),
            _ => self.services_follow(desired),
        }
    }

    fn shares_follow(&self, desired: &Desired, changed: Instant) -> Result<()> {
        let wanted = f64::from(desired.v2_weight) / 100.0;
        // All or nothing is exact; a share among 200 is within four standard deviations.
        let (count, tolerance) = match desired.v2_weight {
            0 | 100 => (40, 0.0),
            _ => (200, 0.14),
        };
        wait::until("the share of v2", SOON, || {
            let share = self
                .load
                .share("v2", count, changed)
                .context("too few answers")?;
            ensure!(
                (share - wanted).abs() <= tolerance,
                "{share} instead of {wanted}"
            );
            Ok(())
        })
    }

    fn hosts_follow(&self, desired: &Desired) -> Result<()> {
        for pod in &self.proxies {
            for version in 1..=2 {
                let cluster = format!("outbound|80|v{version}|shop.shop.svc.cluster.local");
                let wanted: BTreeSet<String> = desired
                    .endpoints
                    .iter()
                    .filter(|at| at.octets()[2] == 10 + version)
                    .map(|at| format!("{at}:9080"))
                    .collect();
                wait::until(&cluster, SOON, || {
                    let hosts = pod.envoy.admin().hosts()?;
                    let has: BTreeSet<String> = hosts
                        .get(&cluster)
                        .context("no such cluster")?
                        .iter()
                        .cloned()
                        .collect();
                    ensure!(has == wanted, "{has:?} instead of {wanted:?}");
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    fn services_follow(&self, desired: &Desired) -> Result<()> {
        for extra in 0..3 {
            let wanted = desired.extras.contains(&extra);
            let host = format!("extra{extra}.shop");
            let cluster = format!("outbound|80||{host}.svc.cluster.local");
            wait::until(&host, SOON, || {
                // A gateway has only the clusters its routes name, so the sidecar is asked.
                let known = self.proxies[0]
                    .envoy
                    .admin()
                    .hosts()?
                    .contains_key(&cluster);
                ensure!(known == wanted, "cluster known: {known}");
                answers(&self.probe, (extra_address(extra), 80), &host, wanted)
            })?;
        }
        Ok(())
    }

    /// Names that are written answer, and those before them do no more. The host that stays has its new header.
    fn names_follow(&self, desired: &Desired) -> Result<()> {
        let former = desired
            .renamed
            .checked_sub(1)
            .filter(|name| is_there(*name));
        let ways = [(&self.probe, (SHOP, 80)), (&self.outside, (GATEWAY, 8080))];
        for (net, address) in ways {
            for (name, wanted) in [(desired.name, true), (former, false)] {
                for host in name
                    .iter()
                    .flat_map(|name| RENAMED.map(|kind| host(kind, *name)))
                {
                    wait::until(&host, SOON, || answers(net, address, &host, wanted))?;
                }
            }
            wait::until(STEADY, SOON, || {
                let answer = Client::new(net, address, STEADY).get("/")?.json();
                let renamed = &answer["headers"]["renamed"];
                let wanted = desired.renamed.to_string();
                ensure!(*renamed == wanted, "{renamed} instead of {wanted}");
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Waits until what proxies have was audited after the last change; an error if any audit found something.
fn audited(mesh: &Mesh<'_>, protocol: Protocol, tables: Tables) -> Result<()> {
    // Sheets of both proxies: clusters, endpoints, listeners and routes, the hosts of these, and what is inbound. Those for the
    // state of the world are those for whole tables, so that one audit is enough to know that audits are made.
    let wanted = match (protocol, tables) {
        (Protocol::Delta, Tables::Apart) => 12,
        (Protocol::Delta, Tables::Whole) => 10,
        (Protocol::Sotw, _) => 1,
    };
    let audits = || counter(mesh, "pilotfish_audit_sheets_total");
    let (start, amid) = (Instant::now(), audits()?);
    // Each may take its time: pauses are so many times as long as audits.
    for count in 1..=wanted {
        wait::until("an audit", SOON, || {
            let more = audits()? - amid;
            ensure!(more >= f64::from(count), "{more} of {wanted}");
            Ok(())
        })?;
    }
    let differences = counter(mesh, "pilotfish_audit_differences_total")?;
    let took = start.elapsed();
    eprintln!(
        "{amid} audits amid changes and {wanted} more in {took:.1?}: {differences} differences"
    );
    ensure!(
        differences == 0.0,
        "audits found {differences} differences, see the log"
    );
    Ok(())
}

/// A counter of the control plane. They are written as `1.0`.
fn counter(mesh: &Mesh<'_>, name: &str) -> Result<f64> {
    let hub = mesh.fabric.hub();
    let mut client = Client::new(&hub, mesh.control.monitoring(), "pilotfish");
    let text = client.get("/metrics")?.text();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.with_context(|| format!("no {name}"))?.parse()?)
}

/// Whether a host answers is as wanted.
fn answers(net: &Net, address: (Ipv4Addr, u16), host: &str, wanted: bool) -> Result<()> {
    let answer = Client::new(net, address, host).get("/")?;
    ensure!(
        (answer.status == 200) == wanted,
        "{host} at {address:?} answers {}: {}",
        answer.status,
        answer.text()
    );
    Ok(())
}
