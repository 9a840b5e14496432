//! The command line of the benchmark.

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use pilotfish_bench::crowd::Waits;
use pilotfish_bench::growth::{self, Steps};
use pilotfish_bench::limit::{self, Recording};
use pilotfish_bench::mesh::{Change, Size};
use pilotfish_bench::place::KUBECONFIG;
use pilotfish_bench::report::{self, Measured, Output, ratio};
use pilotfish_bench::run::{self, Plan};
use pilotfish_bench::server::{self, Launch};
use pilotfish_bench::wire::Mode;
use pilotfish_e2e::interrupt;

/// A benchmark of few rounds says too little of a change that takes some milliseconds.
const GROWTH_REPEATS: usize = 20;

/// In lines of at most 100: clap breaks them there where no terminal is wider.
const HELP: &str = "\
Writes a mesh into a temporary directory (with --istiod or {kubeconfig}: into a real API server of
its own), starts `pilotfish serve` on it, connects proxies to it as sidecars do (CDS, EDS, LDS, RDS,
and VHDS where tables say so), and changes the mesh while they are connected. Everything is on
loopback, and nothing of it stays.

Examples:
  pilotfish-bench
      1000 services, 200 proxies, incremental and state of the world.
  pilotfish-bench --services 5000 --proxies 1000 --mode delta --json figures.json
      A larger mesh, one variant of the protocol, and the figures for a program.
  pilotfish-bench --peer '/opt/old/pilotfish serve --config-dir {dir} --grpc-addr 127.0.0.1:{grpc}
                  --http-addr 127.0.0.1:{http} --monitoring-addr 127.0.0.1:{monitoring}'
      The same against a former release, and the ratios.
  pilotfish-bench --istiod ./pilot-discovery --mode delta
      The same against istiod, and the ratios. Both read the mesh from an API server of their own.
  pilotfish-bench --growth --mode delta
      How costs grow with services and proxies; some minutes. Proxies grow at 100 services.
  pilotfish-bench --growth --mode delta --growth-services 1000,5000
      The same, and proxies grow at 1000 services.

What the columns mean:
  reached      Proxies that got something, in the round with the fewest; of connect: that have
               everything they asked for. With --growth: of the phase with the fewest
  p50 p99 max  From the change (the rename of the file, or the API server's word that it is made) to
               the last message of a proxy. It includes the time for which the server collects
               changes before it pushes: 2 ms, as every change comes after quiet
               (--first-change-wait of `pilotfish serve`), or PILOT_DEBOUNCE_AFTER if that is set.
  CPU          Time on a processor per change, user and system, as the kernel accounts for it in
               ticks of 10 ms: the mean of all rounds, so that with --repeats 5 it is known to 2 ms.
               It includes whatever else the server does until the next change.
  proxies' CPU The same of this program, which shares the processors with the server.
  RSS, peak    Resident memory of the server after the phase, and the most there ever was
  of the stack With --growth: what of the memory of a proxy more a bare server of the same gRPC
               stack takes, too
  refused      Streams that ended before anything came. reconnects: streams opened again, for any
               reason

Connecting is paced by the server as fast as it can configure proxies, and that is part of its p99.
With istiod's pace:
  pilotfish-bench --env PILOT_MAX_REQUESTS_PER_SECOND=25

The limit is what the same gRPC stack needs to send the same bytes if it does nothing else. What is
above it is the server's own work.

What the comparison with istiod contains:
  istiod runs without certificates, webhooks, TLS and Gateway API, may ask the API server more often
  than by default, and has its defaults otherwise. So it collects changes until none came for 100 ms
  (PILOT_DEBOUNCE_AFTER), where ours waits 2 ms, and admits streams at a pace of its own. Both
  inherit the environment, so that this evens the former out:
      PILOT_DEBOUNCE_AFTER=2ms pilotfish-bench --istiod ./pilot-discovery
  kube-apiserver and etcd share the processors with both and are not in the column CPU. What reaches
  a proxy before the API server's answer reaches this program counts as 0 ms.

The API server is kube-apiserver with etcd, as scripts/fetch-kube builds them (`make bench` calls it
where it is needed), or $KUBE_APISERVER and $ETCD. istiod's binary is called pilot-discovery, in its
image as in its Go module.";

/// Measure what the control plane costs
#[derive(Debug, Parser)]
#[command(name = "pilotfish-bench", version, after_long_help = HELP, max_term_width = 120)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a recording; the benchmark starts this itself
    #[command(hide = true)]
    Limit {
        recording: PathBuf,
        address: SocketAddr,
    },
}

#[derive(Debug, Args)]
struct Options {
    /// Services, each with two ports; every fifth has a VirtualService and a DestinationRule with two subsets
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Mesh", value_parser = at_least::<1>)]
    services: usize,
    /// Endpoints of each service
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Mesh", value_parser = at_least::<1>)]
    endpoints: usize,
    /// Namespaces that services and proxies are spread over
    #[arg(long, value_name = "N", default_value_t = 20, help_heading = "Mesh", value_parser = at_least::<2>)]
    namespaces: usize,
    /// Proxies, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 200, help_heading = "Proxies", value_parser = at_least::<1>)]
    proxies: usize,
    /// The variant of the protocol; one after the other unless given
    #[arg(long, value_enum, help_heading = "Proxies")]
    mode: Option<Mode>,
    /// How often each change is made; processor time is the mean
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Measuring", value_parser = at_least::<1>)]
    repeats: usize,
    /// A phase has ended when nothing arrived for so long and everybody who should be was reached
    #[arg(long, value_name = "SECONDS", default_value = "1", help_heading = "Measuring", value_parser = seconds)]
    settle: Duration,
    /// A phase has ended when nothing arrived for so long, whoever was reached
    #[arg(long, value_name = "SECONDS", default_value = "20", help_heading = "Measuring", value_parser = seconds)]
    patience: Duration,
    /// Measure how costs grow instead
    #[arg(long, help_heading = "Growth")]
    growth: bool,
    /// Numbers of services, at the first number of proxies; the last two are compared. The first is also what proxies grow
    /// at: 1000,5000 has them grow at 1000 services instead of 100
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "100,1000,5000",
        value_parser = at_least::<1>,
        help_heading = "Growth"
    )]
    growth_services: Vec<usize>,
    /// Numbers of proxies, at the first number of services
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "100,1000,2000",
        value_parser = at_least::<1>,
        help_heading = "Growth"
    )]
    growth_proxies: Vec<usize>,
    /// The path of the server's binary [default: $PILOTFISH, or pilotfish beside this program]
    #[arg(long, value_name = "FILE", help_heading = "Servers")]
    server: Option<PathBuf>,
    /// A variable for the server's environment; give it again for more
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Servers", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The path of istiod's binary, to measure beside it. Both read from an API server instead of a directory
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Servers",
        conflicts_with_all = ["peer", "growth"]
    )]
    istiod: Option<PathBuf>,
    /// Another server to measure beside it, with {dir} or {kubeconfig}, {grpc}, {http}, {monitoring}, {control} (one more port)
    /// for what it is given; it must answer /ready on {http}. With {kubeconfig} both read from an API server
    #[arg(
        long,
        value_name = "COMMAND",
        help_heading = "Servers",
        conflicts_with = "growth",
        value_parser = peer
    )]
    peer: Option<String>,
    /// Write all figures to a file as well
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
}

fn at_least<const LEAST: usize>(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if number < LEAST {
        return Err(format!("at least {LEAST}"));
    }
    Ok(number)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn peer(line: &str) -> Result<String, String> {
    if line.contains("{dir}") && line.contains(KUBECONFIG) {
        return Err("it reads a mesh from {dir} or from {kubeconfig}: name one of them".into());
    }
    Ok(line.to_owned())
}

impl Options {
    fn plan(&self, mode: Mode) -> Plan {
        Plan {
            size: Size {
                services: self.services,
                endpoints: self.endpoints,
                namespaces: self.namespaces,
            },
            proxies: self.proxies,
            mode,
            changes: Change::ALL.to_vec(),
            repeats: self.repeats,
            waits: Waits {
                settle: self.settle,
                patience: self.patience.max(self.settle),
                longest: Duration::from_mins(10),
            },
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Limit { recording, address }) => serve_limit(&recording, address).await,
        None => until_interrupted(bench(&cli.options)).await,
    };
    if let Err(error) = done {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn serve_limit(recording: &Path, address: SocketAddr) -> Result<()> {
    limit::serve(Recording::read(recording)?, address).await
}

/// Whoever presses Ctrl-C drops the future, and with it processes and temporary directories.
async fn until_interrupted(bench: impl Future<Output = Result<()>>) -> Result<()> {
    let interrupt = interrupt::watch()?;
    let came = async {
        while !interrupt.came() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        done = bench => done,
        () = came => bail!("interrupted"),
    }
}

async fn bench(options: &Options) -> Result<()> {
    // Said before ours is measured for minutes.
    let istiod = match &options.istiod {
        Some(file) => Some(Launch::istiod(&server::program("--istiod", file)?)),
        None => None,
    };
    let binary = match &options.server {
        Some(file) => server::program("--server", file)?,
        None => server::built()?,
    };
    let grown = options.growth_proxies.iter().copied().max().unwrap_or(0);
    server::allow_connections(if options.growth {
        grown
    } else {
        options.proxies
    })?;
    let peer = istiod.or_else(|| options.peer.as_deref().map(Launch::peer));
    // What two read from is no difference between them.
    let on_cluster = peer.as_ref().is_some_and(Launch::reads_cluster);
    let ours = Launch::pilotfish(&binary, on_cluster, options.env.clone());
    let mut output = Output {
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        measured: Vec::new(),
        growth: Vec::new(),
    };
    let modes = match options.mode {
        Some(mode) => vec![mode],
        None => vec![Mode::Delta, Mode::Sotw],
    };
    for mode in modes {
        let plan = options.plan(mode);
        if options.growth {
            let grown = grow(options, &ours, plan).await?;
            print(&report::growth(&grown))?;
            output.growth.push(grown);
        } else {
            let measured = beside(&ours, peer.as_ref(), &plan).await?;
            print(&report::measured(&measured))?;
            output.measured.push(measured);
        }
    }
    if let Some(file) = &options.json {
        let text = serde_json::to_vec_pretty(&output)?;
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

async fn beside(ours: &Launch, peer: Option<&Launch>, plan: &Plan) -> Result<Measured> {
    let (ours, recording) = run::measure(ours, plan).await?;
    let limit = run::limit(&recording, plan).await?;
    let connect = ours.phase("connect").map_or(0.0, |phase| phase.cpu_ms);
    let peer = match peer {
        Some(peer) => Some(run::measure(peer, plan).await?.0),
        None => None,
    };
    Ok(Measured {
        limit_ratio: ratio(connect, limit.cpu_ms),
        shares: peer.as_ref().map(|peer| report::shares(&ours, peer)),
        ours,
        limit,
        peer,
    })
}

async fn grow(options: &Options, ours: &Launch, plan: Plan) -> Result<growth::Growth> {
    let plan = Plan {
        repeats: plan.repeats.max(GROWTH_REPEATS),
        ..plan
    };
    let steps = Steps {
        services: options.growth_services.clone(),
        proxies: options.growth_proxies.clone(),
    };
    growth::measure(ours, &plan, &steps).await
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_help_are_not_broken() {
        let wide: Vec<&str> = HELP.lines().filter(|line| line.len() > 100).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }

    #[test]
    fn a_peer_reads_a_directory_or_a_cluster() {
        assert!(peer("x {dir}").is_ok() && peer("x {kubeconfig}").is_ok());
        assert!(peer("x {dir} {kubeconfig}").is_err());
    }
}
