//! How costs grow with services and with proxies.

use anyhow::Result;
use serde::Serialize;

use crate::mesh::{Change, Size};
use crate::report::ratio;
use crate::run::{self, Phase, Plan, Run};
use crate::server::Launch;
use crate::wire::Mode;

/// By how much a change that touches one service may cost more in the largest mesh than in the one before.
pub const MOST: f64 = 1.5;

/// Kilobytes that a proxy more may take beyond what the gRPC stack needs for its connection.
pub const MOST_KB: f64 = 60.0;

/// A difference below this is the kernel's tick, not the server's work.
const TICK_MS: f64 = 10.0;

/// Which sizes.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Services, with the first number of proxies.
    pub services: Vec<usize>,
    /// Proxies, with the first number of services.
    pub proxies: Vec<usize>,
}

/// One size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Services.
    pub services: usize,
    /// Proxies.
    pub proxies: usize,
    /// Proxies that were reached, in the phase with the fewest.
    pub reached: usize,
    /// Streams that ended before anything came.
    pub refused: u64,
    /// Memory that a proxy more takes, since the row before, which has fewer.
    pub kb_per_proxy: Option<f64>,
    /// What of that a bare server of the same gRPC stack takes, too.
    pub stack_kb_per_proxy: Option<f64>,
    /// `connect`, then the changes.
    pub phases: Vec<Phase>,
}

/// Whether a change costs what it touches, and not what there is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// Which change.
    pub change: &'static str,
    /// Services of the smaller mesh.
    pub from: usize,
    /// Services of the larger mesh.
    pub to: usize,
    /// Processor time in the larger as a multiple of the smaller.
    pub cpu_ratio: Option<f64>,
    /// The same of the delay.
    pub p99_ratio: Option<f64>,
    /// What it may be.
    pub most: f64,
    /// Whether everybody was reached and nobody refused. If not, figures are of less work than they should be.
    pub complete: bool,
    /// Whether it is, and that is known.
    pub holds: bool,
}

/// What a proxy more takes, from the fewest to the most proxies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// Kilobytes of our server.
    pub kb_per_proxy: f64,
    /// Kilobytes of a bare server of the same gRPC stack.
    pub stack_kb_per_proxy: f64,
    /// What the difference may be.
    pub most_kb: f64,
    /// Whether everybody was reached and nobody refused, by the bare server either.
    pub complete: bool,
    /// Whether it is, and that is known.
    pub holds: bool,
}

/// How costs grow.
#[derive(Clone, Debug, Serialize)]
pub struct Growth {
    /// How proxies spoke.
    pub mode: Mode,
    /// Services grow first, then proxies.
    pub rows: Vec<Row>,
    /// For a weight and an endpoint.
    pub bounds: Vec<Bound>,
    /// None if the number of proxies does not grow.
    pub memory: Option<Memory>,
}

/// Resident memory in MB with so many proxies: of ours, and of the bare server.
#[derive(Clone, Copy, Debug)]
struct Held {
    proxies: usize,
    ours: f64,
    stack: f64,
    complete: bool,
}

impl Held {
    /// Kilobytes that each proxy more takes: of ours, and of the bare server.
    fn more_than(&self, fewer: &Self) -> Option<(f64, f64)> {
        let proxies = self.proxies as f64 - fewer.proxies as f64;
        let each = |mb: f64| ratio(mb * 1024.0, proxies);
        each(self.ours - fewer.ours).zip(each(self.stack - fewer.stack))
    }
}

const CHANGES: [Change; 2] = [Change::Weight, Change::Endpoint];

/// Measures every step. Everything else is as in `plan`.
pub async fn measure(launch: &Launch, plan: &Plan, steps: &Steps) -> Result<Growth> {
    let (Some(&few_services), Some(&few_proxies)) = (steps.services.first(), steps.proxies.first())
    else {
        anyhow::bail!("no steps to grow by");
    };
    let mut rows: Vec<Row> = Vec::new();
    for &services in &steps.services {
        let (run, _) = step(launch, plan, services, few_proxies).await?;
        rows.push(Row::new(run, None));
    }
    let bounds = CHANGES
        .iter()
        .filter_map(|change| bound(&rows, change.name(), plan.repeats))
        .collect();
    let mut held: Vec<Held> = Vec::new();
    for &proxies in &steps.proxies {
        let (run, stack) = step(launch, plan, few_services, proxies).await?;
        let now = Held {
            proxies,
            ours: run.phases.first().map_or(0.0, |p| p.rss_mb),
            stack: stack.rss_mb,
            complete: run.phases.iter().chain([&stack]).all(Phase::is_complete),
        };
        rows.push(Row::new(run, held.last().and_then(|h| now.more_than(h))));
        held.push(now);
    }
    Ok(Growth {
        mode: plan.mode,
        rows,
        bounds,
        memory: memory(&held),
    })
}

/// Measures ours, and how the bare server is after connecting the same proxies.
async fn step(
    launch: &Launch,
    plan: &Plan,
    services: usize,
    proxies: usize,
) -> Result<(Run, Phase)> {
    let plan = Plan {
        size: Size {
            services,
            ..plan.size
        },
        proxies,
        changes: CHANGES.to_vec(),
        ..plan.clone()
    };
    let (run, recording) = run::measure(launch, &plan).await?;
    let stack = run::limit(&recording, &plan).await?;
    Ok((run, stack))
}

fn memory(held: &[Held]) -> Option<Memory> {
    let (fewest, most) = (held.first()?, held.last()?);
    let (kb_per_proxy, stack_kb_per_proxy) = most.more_than(fewest)?;
    let complete = fewest.complete && most.complete;
    Some(Memory {
        kb_per_proxy,
        stack_kb_per_proxy,
        most_kb: MOST_KB,
        complete,
        holds: complete && kb_per_proxy - stack_kb_per_proxy <= MOST_KB,
    })
}

impl Row {
    fn new(run: Run, kb_per_proxy: Option<(f64, f64)>) -> Self {
        Self {
            services: run.size.services,
            proxies: run.proxies,
            reached: run.phases.iter().map(|p| p.reached).min().unwrap_or(0),
            refused: run.phases.iter().map(|p| p.refused).sum(),
            kb_per_proxy: kb_per_proxy.map(|(ours, _)| ours),
            stack_kb_per_proxy: kb_per_proxy.map(|(_, stack)| stack),
            phases: run.phases,
        }
    }
}

/// Compares the last two rows.
fn bound(rows: &[Row], change: &'static str, repeats: usize) -> Option<Bound> {
    let [.., smaller, larger] = rows else {
        return None;
    };
    let phase = |row: &Row| row.phases.iter().find(|p| p.name == change).cloned();
    let (before, after) = (phase(smaller)?, phase(larger)?);
    // A proxy that did not connect costs the changes nothing, so that all phases count.
    let complete = [smaller, larger]
        .iter()
        .all(|row| row.phases.iter().all(Phase::is_complete));
    let tick = TICK_MS / repeats.max(1) as f64;
    let within = |before: f64, after: f64, unit: f64| after <= before * MOST + unit;
    Some(Bound {
        change,
        from: smaller.services,
        to: larger.services,
        cpu_ratio: ratio(after.cpu_ms, before.cpu_ms),
        p99_ratio: ratio(after.p99_ms, before.p99_ms),
        most: MOST,
        complete,
        holds: complete
            && within(before.cpu_ms, after.cpu_ms, tick)
            && within(before.p99_ms, after.p99_ms, 0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{self, ByType};

    fn row(services: usize, cpu_ms: f64, p99_ms: f64) -> Row {
        let phase = Phase {
            name: "weight",
            repeats: 10,
            expected: 1,
            reached: 1,
            p50_ms: 0.0,
            p99_ms,
            max_ms: 0.0,
            cpu_ms,
            client_cpu_ms: 0.0,
            messages: ByType::default(),
            kilobytes: ByType::default(),
            rss_mb: 0.0,
            peak_mb: 0.0,
            reconnects: 0,
            refused: 0,
        };
        Row {
            services,
            proxies: 1,
            reached: 1,
            refused: 0,
            kb_per_proxy: None,
            stack_kb_per_proxy: None,
            phases: vec![phase],
        }
    }

    #[test]
    fn memory_is_what_is_beyond_the_stack() {
        let held = |proxies, ours, stack| Held {
            proxies,
            ours,
            stack,
            complete: true,
        };
        let three = |ours| {
            [
                held(100, 50.0, 20.0),
                held(500, 60.0, 99.0),
                held(1124, ours, 60.0),
            ]
        };
        let holds = |ours| memory(&three(ours)).unwrap().holds;
        // 40 kB each are the stack's.
        assert!(holds(150.0));
        assert!(!holds(150.1));
        let mut missed = three(150.0);
        missed[0].complete = false;
        let missed = memory(&missed).unwrap();
        assert!(!missed.complete && !missed.holds);
        assert_eq!(memory(&[held(100, 50.0, 20.0)]), None);
    }

    #[test]
    fn a_change_may_cost_half_as_much_again_and_a_tick() {
        let holds = |cpu, p99| {
            let rows = [
                row(1, 99.0, 99.0),
                row(1000, 10.0, 100.0),
                row(5000, cpu, p99),
            ];
            let bound = bound(&rows, "weight", 10).unwrap();
            assert_eq!((bound.from, bound.to), (1000, 5000));
            bound.holds
        };
        assert!(holds(15.0, 150.0));
        assert!(holds(16.0, 100.0));
        assert!(!holds(16.1, 100.0));
        assert!(!holds(10.0, 151.0));
        assert!(bound(&[row(1, 1.0, 1.0)], "weight", 10).is_none());
    }

    #[test]
    fn nothing_holds_if_somebody_was_missed_or_refused() {
        let spoilt: [fn(&mut Phase); 2] = [|phase| phase.reached = 0, |phase| phase.refused = 1];
        for (which, spoil) in [(0, spoilt[0]), (0, spoilt[1]), (1, spoilt[0])] {
            let mut rows = [row(1000, 10.0, 100.0), row(5000, 10.0, 100.0)];
            assert!(bound(&rows, "weight", 10).unwrap().holds);
            spoil(&mut rows[which].phases[0]);
            let bound = bound(&rows, "weight", 10).unwrap();
            assert!(!bound.complete && !bound.holds);
        }
    }

    #[test]
    fn a_table_says_who_was_missed_and_refused() {
        let rows = vec![row(1000, 1.0, 1.0), row(5000, 1.0, 1.0)];
        let mut growth = Growth {
            mode: Mode::Delta,
            bounds: bound(&rows, "weight", 10).into_iter().collect(),
            rows,
            memory: None,
        };
        let text = report::growth(&growth);
        assert!(
            text.contains("1/1        0 ") && text.ends_with("holds\n"),
            "{text}"
        );
        growth.rows[1].reached = 0;
        growth.rows[1].refused = 7;
        growth.bounds[0].complete = false;
        let text = report::growth(&growth);
        assert!(
            text.contains("0/1        7 ") && !text.contains("holds"),
            "{text}"
        );
    }
}
