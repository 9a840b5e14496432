//! The `pilotfish` binary: wiring, push machinery, HTTP, metrics and the command line.
#![allow(
    clippy::disallowed_methods,
    reason = "clock, environment and files are this crate's job, not translation's"
)]

mod address;
mod analyze;
mod audit;
mod cli;
mod debounce;
mod debug;
mod environment;
mod fields;
mod findings;
mod guard;
mod http;
mod identity;
mod kubernetes;
mod logging;
mod manifest;
mod metrics;
mod nodes;
mod packing;
mod plane;
mod process;
mod pushes;
mod questions;
mod readiness;
mod request;
mod scribe;
mod serve;
mod settings;
mod tls;
mod tokens;
mod version;
mod workloads;
mod writer;

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cli::{AnalyzeArgs, Command, ServeArgs};
use crate::environment::Environment;
use crate::logging::Logging;
use crate::settings::Settings;

/// How long a thread beside the workers waits for work before it ends: what computes does so there. Each has a stack and a
/// cache of the allocator.
const UNUSED_THREAD_STAYS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let started = Instant::now();
    let cli = cli::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let success = |()| ExitCode::SUCCESS;
    let (result, failure) = match cli.command {
        Command::Serve(args) | Command::Discovery(args) => {
            (serve(*args, started).map(success), ExitCode::FAILURE)
        }
        Command::Analyze(args) => (analyze(&args), ExitCode::from(analyze::NOT_DONE)),
        Command::Manifest(args) => {
            let printed = print(manifest::text(&(*args).into()).as_bytes());
            (printed.map(success), ExitCode::FAILURE)
        }
        Command::Request(args) => {
            let answered = request::send(&args).and_then(|body| print(&body));
            (answered.map(success), ExitCode::FAILURE)
        }
        Command::Version(args) => {
            let printed = print(format!("{}\n", version::describe(&args)).as_bytes());
            (printed.map(success), ExitCode::FAILURE)
        }
    };
    result.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        failure
    })
}

fn analyze(args: &AnalyzeArgs) -> Result<ExitCode> {
    let outcome = analyze::run(args, &Environment::of_process(), &mut std::io::stdin())?;
    print(outcome.text.as_bytes())?;
    Ok(ExitCode::from(outcome.code))
}

fn serve(args: ServeArgs, started: Instant) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let settings = Settings::resolve(args, &Environment::of_process(), cores)?;
    let logging = Logging::start(&settings.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_keep_alive(UNUSED_THREAD_STAYS)
        .enable_all()
        .build()
        .context("cannot start")?;
    let result = runtime.block_on(serve::run(settings, logging, started));
    // Whatever still computes is not worth waiting for: every answer that was owed is written.
    runtime.shutdown_background();
    result
}

/// Standard output, where a reader that has gone away is no error.
fn print(text: &[u8]) -> Result<()> {
    match std::io::stdout()
        .write_all(text)
        .and_then(|()| std::io::stdout().flush())
    {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the answer")
        }
        _ => Ok(()),
    }
}
