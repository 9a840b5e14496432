//! Where requests land: the tables of `scenarios/`, with real Envoys.
//!
//! `cargo test -p pilotfish-e2e --test traffic` runs all; `... --test traffic canary` one scenario (names are matched by
//! their beginning), `... --test traffic -- canary --row tester` only rows whose name has the word, `... -- --list` shows
//! their names.

use std::env;
use std::process::ExitCode;

use pilotfish_e2e::{tools, traffic};

fn main() -> ExitCode {
    let mut wanted = Vec::new();
    let mut row = None;
    let mut list = false;
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--row" => row = args.next(),
            "--list" => list = true,
            // Flags that are meant for the tests of the other binaries.
            flag if flag.starts_with('-') => {}
            name => wanted.push(name.to_owned()),
        }
    }
    let mut names = traffic::scenarios().expect("the scenarios");
    if !wanted.is_empty() {
        names.retain(|name| wanted.iter().any(|wanted| name.starts_with(wanted)));
    }
    if names.is_empty() {
        // A filter that was meant for the tests of another binary.
        eprintln!("no scenario begins with {}", wanted.join(" or with "));
        return ExitCode::SUCCESS;
    }
    if list {
        eprintln!("{}", names.join("\n"));
        return ExitCode::SUCCESS;
    }
    if env::var_os("PILOTFISH_E2E").is_some_and(|value| value == "skip") {
        eprintln!("skipped, because PILOTFISH_E2E=skip is set");
        return ExitCode::SUCCESS;
    }
    if let Err(error) = tools::namespaces_work() {
        eprintln!(
            "end-to-end tests cannot run here: {error:#}. PILOTFISH_E2E=skip leaves them out."
        );
        return ExitCode::FAILURE;
    }
    let reports = traffic::run(&names, row.as_deref());
    report(&reports)
}

/// The table, and a last line like that of cargo's other tests, by which the gate counts.
fn report(reports: &[traffic::Report]) -> ExitCode {
    for failure in reports.iter().flat_map(|report| &report.failures) {
        eprintln!("FAILED {failure}\n");
    }
    let (mut passed, mut failed) = (0, 0);
    eprintln!("scenario          rows  passed  seconds");
    for traffic::Report {
        name,
        rows,
        passed: good,
        seconds,
        failures,
    } in reports
    {
        eprintln!("{name:<16}{rows:>6}{good:>8}{seconds:>9.1}");
        passed += good;
        // A scenario that did not start, or whose proxies refused something, is a failure too.
        failed += failures.len().max(rows - good);
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    eprintln!("\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
