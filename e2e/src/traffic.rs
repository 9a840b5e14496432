//! Where requests land: tables of requests and what must be seen of them, with real Envoys.
//!
//! `scenarios/NAME/rows.yaml` is a table, and the other files beside it are the mesh, as a user would write it, on top of
//! `scenarios/base.yaml`. A scenario starts its control plane, proxies and upstreams once; its rows run
//! one after the other and leave nothing behind for the next one.

mod ask;
mod certificates;
mod check;
mod scenario;
mod stage;
mod upstream;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::config::Workspace;
use crate::process::read_tail;
use crate::tools;
use ask::send_all;
use check::{Seen, differences};
use scenario::{Behaviour, Count, Scenario, Step, Xds};
use stage::{SECRETS, Stage};

/// Scenarios that run at once. Most of their time is spent waiting for delays and time-outs.
const AT_ONCE: usize = 3;
/// How long what reaches an upstream beside the answer (a mirror) may take to be counted.
const ASIDE: Duration = Duration::from_secs(2);
/// How long to wait for a request that must not come.
const MOMENT: Duration = Duration::from_millis(60);

/// What came of a scenario.
#[derive(Debug)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// How many rows it has.
    pub rows: usize,
    /// How many of them passed; none if the scenario did not start.
    pub passed: usize,
    /// How long it took.
    pub seconds: f64,
    /// Rows that failed, and what was expected and seen.
    pub failures: Vec<String>,
}

/// The folder of scenarios.
fn folder() -> PathBuf {
    tools::workspace().join("e2e/scenarios")
}

/// The names of all scenarios.
pub fn scenarios() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder()).context("the folder of scenarios")? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Runs scenarios, a few at once, and reports each in the order given. `row` leaves only rows whose name has it.
pub fn run(names: &[String], row: Option<&str>) -> Vec<Report> {
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(names.len()) {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = run_one(name, row);
                    let mut reports = reports.lock().expect("no panic with the reports");
                    reports.insert(name.clone(), report);
                }
            });
        }
    });
    reports
        .into_inner()
        .expect("no panic with the reports")
        .into_values()
        .collect()
}

fn run_one(name: &str, row: Option<&str>) -> Report {
    let start = Instant::now();
    let mut report = Report {
        name: name.to_owned(),
        rows: 0,
        passed: 0,
        seconds: 0.0,
        failures: Vec::new(),
    };
    let played = Workspace::new().and_then(|workspace| {
        let played = play(&folder().join(name), row, &workspace, &mut report);
        if played.is_err() || !report.failures.is_empty() {
            show_logs(&workspace);
        }
        played
    });
    if let Err(error) = played {
        report.failures.push(format!("{name}: {error:#}"));
    }
    report.seconds = start.elapsed().as_secs_f64();
    report
}

/// `E2E_LOGS=1` shows the end of every log of a scenario that failed.
fn show_logs(workspace: &Workspace) {
    if env::var_os("E2E_LOGS").is_none() {
        return;
    }
    for log in workspace.log_files() {
        let text = read_tail(&log).unwrap_or_else(|error| format!("(unreadable: {error})"));
        eprintln!("--- end of {}\n{text}", log.display());
    }
}

fn play(
    folder: &Path,
    row: Option<&str>,
    workspace: &Workspace,
    report: &mut Report,
) -> Result<()> {
    let mut scenario = Scenario::read(folder)?;
    if let Some(xds) = env::var_os("E2E_XDS") {
        scenario.xds = Xds::named(&xds.to_string_lossy())?;
    }
    ensure!(!scenario.about.is_empty(), "say what it is about");
    let rows = scenario
        .rows
        .iter()
        .filter(|step| row.is_none_or(|part| step.name().contains(part)));
    let mut rows: Vec<&Step> = rows.collect();
    // What a row has written takes a moment to be taken back: those rows come last and wait for what they expect.
    rows.sort_by_key(|row| row.writes());
    report.rows = rows.len();
    let stage = Stage::start(&scenario, folder, workspace)?;
    for row in rows {
        match play_row(&stage, &scenario.from, row) {
            Ok(()) => report.passed += 1,
            Err(error) => {
                let failure = format!("{} / {}: {error:#}", report.name, row.name());
                report.failures.push(failure);
            }
        }
    }
    if !report.failures.is_empty() {
        let page = stage.mesh.control.page("/debug/diagnostics")?;
        eprintln!(
            "{}: what the control plane says of the mesh: {page:#}",
            report.name
        );
    }
    let rejected = stage.rejected()?;
    ensure!(rejected.is_empty(), "refused updates: {rejected:?}");
    Ok(())
}

/// Plays a row and takes back what it changed.
fn play_row(stage: &Stage<'_>, from: &str, row: &Step) -> Result<()> {
    let mut changed = BTreeMap::new();
    let mut behaviour = BTreeMap::new();
    let mut steps = std::iter::once(row).chain(&row.then).enumerate();
    let played = steps.try_for_each(|(number, step)| {
        play_step(stage, from, step, &mut behaviour, &mut changed).with_context(|| {
            if row.then.is_empty() {
                step.send.clone()
            } else {
                format!("step {} ({})", number + 1, step.send)
            }
        })
    });
    stage.upstreams.behave(BTreeMap::new());
    for (file, text) in changed {
        write(stage.mesh.workspace, &file, text.as_deref())?;
    }
    played
}

fn play_step(
    stage: &Stage<'_>,
    from: &str,
    step: &Step,
    behaviour: &mut BTreeMap<String, Behaviour>,
    changed: &mut BTreeMap<String, Option<String>>,
) -> Result<()> {
    behaviour.extend(step.given.clone());
    stage.upstreams.behave(behaviour.clone());
    let workspace = stage.mesh.workspace;
    let mut files = step.write.clone();
    if !step.secrets.is_empty() {
        files.insert(SECRETS.to_owned(), Some(stage.replaced(&step.secrets)?));
    }
    for (file, text) in &files {
        let before = workspace.read(file).ok();
        changed.entry(file.clone()).or_insert(before);
        write(workspace, file, text.as_deref())?;
    }
    let limit = Duration::from_secs_f64(step.within.unwrap_or(0.0));
    let start = Instant::now();
    loop {
        let found = attempt(stage, from, step)?;
        if found.is_empty() {
            return Ok(());
        }
        ensure!(start.elapsed() < limit, "{}", found.join("; "));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn write(workspace: &Workspace, file: &str, text: Option<&str>) -> Result<()> {
    match text {
        Some(text) => workspace.write(file, text),
        // Taking back a file that a row has removed itself.
        None if !workspace.config().join(file).exists() => Ok(()),
        None => workspace.remove(file),
    }
}

/// Sends what a step says once, and returns what was not as expected.
fn attempt(stage: &Stage<'_>, from: &str, step: &Step) -> Result<Vec<String>> {
    static IDS: AtomicUsize = AtomicUsize::new(0);
    // Each attempt has books of its own.
    let id = IDS.fetch_add(1, Ordering::Relaxed).to_string();
    let ask = stage.ask(step, from, &id)?;
    let outcomes = send_all(&ask, step.times, step.parallel);
    let aside: Vec<&Count> = step.expect.reached.values().collect();
    if aside.iter().any(|count| count.bounds_above()) {
        std::thread::sleep(MOMENT);
    }
    let start = Instant::now();
    loop {
        let reached = stage.upstreams.seen(&id);
        let seen = Seen {
            outcomes: &outcomes,
            reached: &reached,
            stat: &|proxy, filter| stage.stat(proxy, filter),
        };
        let found = differences(&step.expect, &seen);
        // A step that is done again need not wait for stragglers of this attempt.
        let may_come = step.within.is_none() && (!aside.is_empty() || !step.expect.saw.is_empty());
        if found.is_empty() || !may_come || start.elapsed() > ASIDE {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
