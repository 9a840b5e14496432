//! `make demo`: the bookshop with real Envoys, while the weight of the canary changes in its YAML.

mod follow;
mod screen;
mod stage;

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pilotfish_e2e::{config, interrupt};

use crate::follow::Follow;
use crate::screen::{Screen, View};
use crate::stage::Stage;

/// The shares of v2 that the demo writes, one after the other. The example's own is the first.
const WEIGHTS: [u32; 4] = [10, 50, 100, 0];
/// How long each share stays; shorter where the whole demo is to be short.
const STAY: Duration = Duration::from_secs(6);
const REDRAW: Duration = Duration::from_millis(200);
const CANARY: &str = "catalog-canary.yaml";

fn main() -> ExitCode {
    match demo() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<()> {
    let limit = match env::var("DEMO_SECONDS") {
        Ok(text) => Some(Duration::from_secs(
            text.parse()
                .context("DEMO_SECONDS is not a number of seconds")?,
        )),
        Err(_) => None,
    };
    let stay = limit.map_or(STAY, |limit| {
        (limit / 4).clamp(Duration::from_secs(2), STAY)
    });
    let interrupt = interrupt::watch()?;
    let mut stage = Stage::set()?;
    let mut screen = Screen::new();
    let mut follow = Follow::new(WEIGHTS[0]);
    let start = Instant::now();
    let mut next = 1;
    while !interrupt.came() && limit.is_none_or(|limit| start.elapsed() < limit) {
        stage.check()?;
        if follow.since().elapsed() >= stay {
            let weight = WEIGHTS[next % WEIGHTS.len()];
            next += 1;
            let text =
                config::with_weights(&stage.workspace().read(CANARY)?, &[100 - weight, weight]);
            stage.workspace().write(CANARY, &text)?;
            follow.change(weight);
        }
        follow.look(&stage.load);
        screen.draw(&View {
            stage: &stage,
            follow: &follow,
            running: start.elapsed(),
        });
        std::thread::sleep(REDRAW);
    }
    let report = stage.load.report();
    drop(stage);
    follow.finish();
    screen::summary(&report, &follow);
    if report.failed > 0 {
        bail!(
            "{} requests failed, the first: {:#?}",
            report.failed,
            report.failures
        );
    }
    if follow.lost() > 0 {
        bail!(
            "traffic did not follow {} of {} weights",
            follow.lost(),
            follow.settled()
        );
    }
    Ok(())
}
