//! `pilotfish-fuzz 10`: every target for ten seconds, side by side, in an ordinary build.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Parser;
use pilotfish_fuzz::driver::{Outcome, TARGETS, Target, drive};

/// Runs the fuzz targets on random inputs and fails if one panics, takes long or does not end.
///
/// `make fuzz` runs the same targets with libFuzzer, which learns from what its inputs reach and finds more.
#[derive(Parser)]
#[command(
    name = "pilotfish-fuzz",
    after_help = "Examples:\n  pilotfish-fuzz 10                              all targets, ten seconds\n  \
        pilotfish-fuzz 60 documents --seed 7           one target, the inputs of a seed\n  \
        FUZZ_TRACE=1 pilotfish-fuzz --input FILE 0 requests   one input, with what it does\n\n\
        FUZZ_INPUTS names a folder of folders whose input.yaml are good meshes to be spoilt, too."
)]
struct Args {
    /// How long each target runs; they run at the same time.
    #[arg(default_value_t = 10)]
    seconds: u64,
    /// Which targets: documents, mutations, requests. All, if none is named.
    targets: Vec<String>,
    /// The same seed gives the same inputs. Taken from the clock, and printed, if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Runs this input alone, in one target, and lets it panic.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

fn main() -> ExitCode {
    match fuzz(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pilotfish-fuzz: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn fuzz(args: &Args) -> Result<()> {
    let named = |name: &String| {
        let found = TARGETS.into_iter().find(|target| target.name == name);
        found.with_context(|| format!("there is no target {name}"))
    };
    let mut targets: Vec<Target> = args.targets.iter().map(named).collect::<Result<_>>()?;
    if targets.is_empty() {
        targets = TARGETS.to_vec();
    }
    if let Some(file) = &args.input {
        let [target] = targets[..] else {
            bail!("--input needs one target");
        };
        let input = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
        (target.run)(&input);
        return Ok(());
    }
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = match args.seed {
        Some(seed) => seed,
        None => clock().map_or(0, |time| time.as_millis() as u64),
    };
    let time = Duration::from_secs(args.seconds);
    eprintln!("seed {seed}, {} s each", args.seconds);
    let outcomes = std::thread::scope(|scope| {
        let runs: Vec<_> = targets
            .iter()
            .map(|target| scope.spawn(move || drive(*target, seed, time)))
            .collect();
        let joined = runs.into_iter().map(ScopedJoinHandle::join);
        joined.collect::<Result<Vec<Outcome>, _>>()
    });
    let Ok(outcomes) = outcomes else {
        bail!("the driver itself failed");
    };
    let mut failed = Vec::new();
    for (target, outcome) in targets.iter().zip(outcomes) {
        match outcome {
            Outcome::Fine(number) => eprintln!("{:<10} {number:>8} inputs, all fine", target.name),
            Outcome::Failed(number, input) => {
                let file = std::env::temp_dir().join(format!("pilotfish-fuzz-{}", target.name));
                std::fs::write(&file, input).context("keep the input")?;
                let file = file.display();
                eprintln!(
                    "{:<10} {number:>8} inputs, the last FAILED: FUZZ_TRACE=1 pilotfish-fuzz --input {file} 0 {}",
                    target.name, target.name
                );
                failed.push(target.name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} failed with seed {seed}", failed.join(", "));
    }
    Ok(())
}
