//! How long control planes take from their start to ready on a real cluster, and what they hold then.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::process::{Process, Start};
use pilotfish_e2e::{tools, yaml};

/// How long a start may take.
const READY: Duration = Duration::from_mins(3);
/// Objects are applied by so many at once.
const HANDS: usize = 4;
const NAMESPACES: usize = 20;
/// Every how many services there is a VirtualService with a DestinationRule.
const RULED: usize = 5;

/// Starts a real etcd and kube-apiserver on loopback, applies a mesh of Services, EndpointSlices and Pods (and a
/// VirtualService and a DestinationRule for every fifth Service), then starts control planes on it, one after the other and
/// taking turns, and prints how long each took until /ready answered 200 and what it held and used. What kube-apiserver used
/// from the start until then is printed too: it is a large part of the time. The programs are $ETCD and $KUBE_APISERVER, or
/// those of scripts/fetch-kube.
#[derive(Parser)]
#[command(name = "pilotfish-start", max_term_width = 120)]
struct Args {
    /// The server [default: $PILOTFISH, or pilotfish beside this program]
    #[arg(long, value_name = "FILE")]
    ours: Option<PathBuf>,
    /// Another one to measure beside it: words, with {kubeconfig}, {grpc}, {http}, {monitoring} and {control} (one more port)
    /// for what it is given
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
    /// A variable for its environment; give it again for more
    #[arg(long, value_name = "NAME=VALUE")]
    peer_env: Vec<String>,
    /// Services
    #[arg(long, value_name = "N", default_value_t = 1000)]
    services: usize,
    /// Pods of each service, which are its endpoints
    #[arg(long, value_name = "N", default_value_t = 5)]
    endpoints: usize,
    /// How often each is started
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Measures the first start of each as well. Without this it is made but does not count: a new API server does much once,
    /// for whoever comes first, and not again
    #[arg(long)]
    cold: bool,
    /// Has the API server collect its garbage before each start. It spends half a second of processor time on that every few
    /// starts; without this, whoever's start that falls into is slow
    #[arg(long)]
    collect: bool,
    /// How long it is left alone before its memory is looked at again
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    idle: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pilotfish-start: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a line; whoever reads may stop reading.
fn say(line: &str) {
    let _closed = writeln!(std::io::stdout(), "{line}");
}

/// What to start.
struct Candidate {
    name: &'static str,
    program: PathBuf,
    words: Vec<String>,
    environment: BTreeMap<String, String>,
}

/// What one start was like.
#[derive(Clone, Copy)]
struct Measured {
    ready: Duration,
    /// In kB, as the others.
    memory: u32,
    idle_memory: u32,
    peak: u32,
    /// Until ready, and until the end of idling.
    cpu: [Duration; 2],
    /// What the API server used until ready.
    server: Duration,
}

fn run(args: &Args) -> Result<()> {
    let workspace = Workspace::new()?;
    for program in [tools::kube_apiserver()?, tools::etcd()?] {
        say(&format!("{}", program.display()));
    }
    let server = KubeServer::start(&Net::Host, "kube", &workspace)?;
    server.admin()?.install_crds(&tools::crds()?)?;
    let begin = Instant::now();
    let count = fill(&server, args)?;
    say(&format!(
        "{count} objects applied in {:.0?}",
        begin.elapsed()
    ));
    let kubeconfig = server.kubeconfig(&User::admin())?;

    let mut candidates = vec![ours(args)?];
    candidates.extend(peer(args)?);
    let begin = |candidate: &Candidate, idle| {
        let idle = Duration::from_secs(idle);
        if args.collect {
            server.collect_garbage()?;
        }
        start(candidate, &server, &kubeconfig, &workspace, idle)
    };
    if !args.cold {
        for candidate in &candidates {
            let ready = begin(candidate, 0)?.ready;
            say(&format!(
                "a start of {} to warm up, not counted: {:.0} ms",
                candidate.name,
                ready.as_secs_f64() * 1000.0
            ));
        }
    }
    let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); candidates.len()];
    say(&format!(
        "| who | ready ms | RSS MB at ready | RSS MB after {} s | peak MB | CPU ms until ready | CPU ms | CPU ms of kube-apiserver until ready |",
        args.idle
    ));
    say("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for _ in 0..args.rounds.max(1) {
        for (candidate, all) in candidates.iter().zip(&mut measured) {
            let one = begin(candidate, args.idle)?;
            line(candidate.name, &one);
            all.push(one);
        }
    }
    let medians: Vec<Measured> = measured.iter().map(|all| median(all)).collect();
    say(&format!("\nmedians of {} rounds", args.rounds.max(1)));
    for (candidate, median) in candidates.iter().zip(&medians) {
        line(candidate.name, median);
    }
    if let [ours, peer] = &medians[..] {
        let share = |a: u32, b: u32| f64::from(a) / f64::from(b.max(1));
        let time = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64().max(1e-9);
        say(&format!(
            "\nours as a share of the peer: ready {:.3}, RSS at ready {:.3}, RSS idle {:.3}, peak {:.3}, CPU {:.3}",
            time(ours.ready, peer.ready),
            share(ours.memory, peer.memory),
            share(ours.idle_memory, peer.idle_memory),
            share(ours.peak, peer.peak),
            time(ours.cpu[1], peer.cpu[1])
        ));
    }
    Ok(())
}

fn ours(args: &Args) -> Result<Candidate> {
    let words = "serve --kubeconfig {kubeconfig} --grpc-addr 127.0.0.1:{grpc} --http-addr 127.0.0.1:{http} \
                 --monitoring-addr 127.0.0.1:{monitoring} --secure-grpc-addr=";
    Ok(Candidate {
        name: "ours",
        program: args.ours.clone().map_or_else(tools::pilotfish, Ok)?,
        words: words.split_whitespace().map(str::to_owned).collect(),
        environment: BTreeMap::new(),
    })
}

fn peer(args: &Args) -> Result<Option<Candidate>> {
    let Some(line) = &args.peer else {
        return Ok(None);
    };
    let mut words = line.split_whitespace().map(str::to_owned);
    let variables = args.peer_env.iter().map(|variable| {
        let (name, value) = variable.split_once('=').context("--peer-env NAME=VALUE")?;
        Ok((name.to_owned(), value.to_owned()))
    });
    Ok(Some(Candidate {
        name: "peer",
        program: words.next().context("--peer is empty")?.into(),
        words: words.collect(),
        environment: variables.collect::<Result<_>>()?,
    }))
}

fn start(
    candidate: &Candidate,
    server: &KubeServer,
    kubeconfig: &Path,
    workspace: &Workspace,
    idle: Duration,
) -> Result<Measured> {
    let mut ports = BTreeMap::new();
    for name in ["grpc", "http", "monitoring", "control"] {
        ports.insert(name, Net::Host.free_port()?);
    }
    let fill = |word: &String| {
        let word = word.replace("{kubeconfig}", &kubeconfig.display().to_string());
        ports.iter().fold(word, |word, (name, port)| {
            word.replace(&format!("{{{name}}}"), &port.to_string())
        })
    };
    let server_before = server.processor_time()?;
    let begin = Instant::now();
    let mut process = Process::start(Start {
        name: candidate.name,
        program: &candidate.program,
        args: candidate.words.iter().map(fill).collect(),
        environment: candidate.environment.clone(),
        gid: None,
        net: &Net::Host,
        logs: &workspace.logs(),
    })?;
    let http = SocketAddr::from((Ipv4Addr::LOCALHOST, ports["http"]));
    process.wait_for("ready", READY, || {
        let answer = Client::new(&Net::Host, http, candidate.name).get("/ready")?;
        ensure!(answer.status == 200, "{}", answer.status);
        Ok(())
    })?;
    let ready = begin.elapsed();
    let (memory, until_ready) = (kilobytes(process.memory()?), process.processor_time()?);
    let server = server.processor_time()?.saturating_sub(server_before);
    std::thread::sleep(idle);
    process.check()?;
    let measured = Measured {
        ready,
        memory,
        idle_memory: kilobytes(process.memory()?),
        peak: kilobytes(process.peak_memory()?),
        cpu: [until_ready, process.processor_time()?],
        server,
    };
    process.stop(Duration::from_secs(15))?;
    Ok(measured)
}

fn kilobytes(bytes: u64) -> u32 {
    u32::try_from(bytes / 1024).unwrap_or(u32::MAX)
}

/// Of an even number, halfway between the two in the middle.
fn median(all: &[Measured]) -> Measured {
    fn middle<T: Ord>(all: &[Measured], of: impl Fn(&Measured) -> T) -> [T; 2] {
        let at = |index: usize| {
            let mut values: Vec<T> = all.iter().map(&of).collect();
            values.sort();
            values.swap_remove(index)
        };
        [at((all.len() - 1) / 2), at(all.len() / 2)]
    }
    let time = |of: fn(&Measured) -> Duration| {
        let [low, high] = middle(all, of);
        (low + high) / 2
    };
    let size = |of: fn(&Measured) -> u32| {
        let [low, high] = middle(all, of);
        low.midpoint(high)
    };
    Measured {
        ready: time(|one| one.ready),
        memory: size(|one| one.memory),
        idle_memory: size(|one| one.idle_memory),
        peak: size(|one| one.peak),
        cpu: [time(|one| one.cpu[0]), time(|one| one.cpu[1])],
        server: time(|one| one.server),
    }
}

fn line(name: &str, one: &Measured) {
    let mb = |kilobytes: u32| f64::from(kilobytes) / 1024.0;
    say(&format!(
        "| {name} | {:.0} | {:.1} | {:.1} | {:.1} | {} | {} | {} |",
        one.ready.as_secs_f64() * 1000.0,
        mb(one.memory),
        mb(one.idle_memory),
        mb(one.peak),
        one.cpu[0].as_millis(),
        one.cpu[1].as_millis(),
        one.server.as_millis()
    ));
}

/// Applies the mesh; how many objects it has.
fn fill(server: &KubeServer, args: &Args) -> Result<usize> {
    let first: String = (0..NAMESPACES)
        .map(|number| yaml::namespace(&namespace(number)))
        .chain([MESH.to_owned()])
        .collect();
    let mut count = server.admin()?.apply(&first)?;
    let hands = (0..HANDS).map(|hand| {
        let client = server.admin();
        let numbers: Vec<usize> = (hand..args.services).step_by(HANDS).collect();
        move || -> Result<usize> {
            let client = client?;
            let mut count = 0;
            for number in numbers {
                count += client.apply(&service(number, args.endpoints))?;
            }
            Ok(count)
        }
    });
    let applied: Vec<Result<usize>> = std::thread::scope(|scope| {
        let threads: Vec<_> = hands.map(|hand| scope.spawn(hand)).collect();
        let ended = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended
            .map(|result| result.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
            .collect()
    });
    for applied in applied {
        count += applied?;
    }
    Ok(count)
}

const MESH: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'rootNamespace: \
                    istio-system'}}\n";

fn namespace(number: usize) -> String {
    format!("ns-{}", number % NAMESPACES)
}

/// A Service, its EndpointSlice, its Pods and, for some, their rules.
fn service(number: usize, endpoints: usize) -> String {
    let (name, namespace) = (format!("service-{number}"), namespace(number));
    let at = |base: u32, number: usize| Ipv4Addr::from(base + number as u32);
    let service = yaml::Service::http(&namespace, &name, at(0x0a60_1000, number));
    let pods: Vec<Ipv4Addr> = (0..endpoints)
        .map(|pod| at(0x0a80_0000, number * endpoints + pod))
        .collect();
    let mut text = service.with_endpoints(&pods);
    for (pod, address) in pods.iter().enumerate() {
        let version = if pod % 2 == 0 { "v1" } else { "v2" };
        text += &yaml::pod(&namespace, &name, version, *address);
    }
    if number.is_multiple_of(RULED) {
        text += &rules(&name, &namespace);
    }
    text
}

fn rules(name: &str, namespace: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  hosts: [{name}]
  http:
  - route:
    - {{destination: {{host: {name}, subset: v1}}, weight: 90}}
    - {{destination: {{host: {name}, subset: v2}}, weight: 10}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  host: {name}
  subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]
---
"
    )
}
