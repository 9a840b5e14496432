//! What the demo shows: a table redrawn in place on a terminal, a line a second elsewhere.
#![expect(clippy::print_stdout, reason = "this is what the demo is for")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _, stdout};
use std::time::{Duration, Instant};

use pilotfish_e2e::load::Report;

use crate::follow::Follow;
use crate::stage::Stage;

/// How far back "now" goes.
const WINDOW: Duration = Duration::from_secs(2);
const BAR: u64 = 24;

/// What is drawn.
pub(crate) struct View<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) follow: &'a Follow,
    pub(crate) running: Duration,
}

/// One line of progress.
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// The terminal, or what stands in for it.
pub(crate) struct Screen {
    terminal: bool,
    drawn: usize,
    said: Option<Instant>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self {
            terminal: stdout().is_terminal(),
            drawn: 0,
            said: None,
        }
    }

    pub(crate) fn draw(&mut self, view: &View<'_>) {
        if self.terminal {
            let table = table(view);
            // Up over what was drawn before, then each line anew; no flicker, no scrolling.
            let mut text = if self.drawn > 0 {
                format!("\x1b[{}A", self.drawn)
            } else {
                String::new()
            };
            for line in &table {
                let _infallible = writeln!(text, "\x1b[2K{line}");
            }
            self.drawn = table.len();
            print!("{text}");
            let _closed = stdout().flush();
        } else {
            if self.said.is_none() {
                println!("{}\nway of a request: {}", addresses(view), view.stage.way);
            }
            if self
                .said
                .is_none_or(|at| at.elapsed() >= Duration::from_secs(1))
            {
                self.said = Some(Instant::now());
                println!("{}", line(view));
            }
        }
    }
}

/// The last words.
pub(crate) fn summary(report: &Report, follow: &Follow) {
    let slowest = follow.slowest().map_or(String::new(), |delay| {
        format!(", the slowest after {delay:.1?}")
    });
    println!(
        "\n{} requests answered, {} failed. Traffic followed {} of {} weights{slowest}.",
        report.answered,
        report.failed,
        follow.settled() - follow.lost(),
        follow.settled(),
    );
    println!("Everything the demo started is stopped and removed.");
}

fn addresses(view: &View<'_>) -> String {
    let debug = view.stage.debug;
    format!(
        "debug pages: http://{debug}/debug/\nmetrics:     http://{debug}/metrics\ntry it:      {}",
        view.stage.shop
    )
}

/// Percent of each version, and of each pod, among the last answers.
struct Shares {
    pods: BTreeMap<(String, String), u64>,
    all: u64,
}

impl Shares {
    fn now(stage: &Stage) -> Self {
        let pods = Instant::now()
            .checked_sub(WINDOW)
            .map(|moment| stage.load.since(moment))
            .unwrap_or_default();
        let all = pods.values().sum();
        Self { pods, all }
    }

    fn percent(&self, part: u64) -> u64 {
        (part * 100 + self.all / 2)
            .checked_div(self.all)
            .unwrap_or(0)
    }

    fn pod(&self, name: &str) -> u64 {
        self.pods
            .iter()
            .filter(|((_, pod), _)| pod == name)
            .map(|(_, count)| count)
            .sum()
    }

    fn version(&self, version: &str) -> u64 {
        let count = self
            .pods
            .iter()
            .filter(|((it, _), _)| it == version)
            .map(|(_, count)| count)
            .sum();
        self.percent(count)
    }
}

/// No line is wider than 80, so that none wraps and the redraw finds its way back.
fn table(view: &View<'_>) -> Vec<String> {
    let View {
        stage,
        follow,
        running,
    } = view;
    let (shares, report) = (Shares::now(stage), stage.load.report());
    let followed = match follow.after() {
        Some(delay) => format!("traffic followed after {:.1} s", delay.as_secs_f64()),
        None => format!(
            "written {:.1} s ago",
            follow.since().elapsed().as_secs_f64()
        ),
    };
    let mut lines = vec![
        String::new(),
        format!("Pilotfish demo, {} s", running.as_secs()),
        stage.way.to_owned(),
        format!(
            "weight of catalog v2 in the YAML: {} % ({followed})",
            follow.weight()
        ),
        String::new(),
        format!(
            "  {:<14} {:<17} {:>5}  {:BAR$} {:>9}",
            "answered by",
            "endpoint",
            "now",
            "",
            "in all",
            BAR = BAR as usize
        ),
    ];
    for (pod, address) in &stage.catalog {
        let count = shares.pod(pod);
        let bar = "█".repeat((shares.percent(count) * BAR / 100) as usize);
        let total: u64 = report
            .total
            .iter()
            .filter(|((_, name), _)| name == pod)
            .map(|(_, count)| count)
            .sum();
        lines.push(format!(
            "  {pod:<14} {:<17} {:>3} %  {bar:BAR$} {total:>9}",
            address.to_string(),
            shares.percent(count),
            BAR = BAR as usize
        ));
    }
    lines.push(String::new());
    lines.push(format!(
        "  v1 {} %, v2 {} %, {} requests a second, {} failed",
        shares.version("v1"),
        shares.version("v2"),
        shares.all / WINDOW.as_secs(),
        report.failed
    ));
    lines.push(String::new());
    lines.extend(addresses(view).lines().map(str::to_owned));
    lines.push("Ctrl-C ends the demo.".to_owned());
    lines
}

fn line(view: &View<'_>) -> String {
    let View {
        stage,
        follow,
        running,
    } = view;
    let (shares, report) = (Shares::now(stage), stage.load.report());
    let pods: Vec<String> = stage
        .catalog
        .keys()
        .map(|pod| format!("{pod} {} %", shares.percent(shares.pod(pod))))
        .collect();
    format!(
        "{:>3} s  weight of v2 {} %  answered by v1 {} %, v2 {} %  ({})  {} requests, {} failed",
        running.as_secs(),
        follow.weight(),
        shares.version("v1"),
        shares.version("v2"),
        pods.join(", "),
        report.answered,
        report.failed
    )
}
