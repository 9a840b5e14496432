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
    /// Memory that a proxy more takes, since the row before, which has fewer.
    pub kb_per_proxy: Option<f64>,
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
    /// Whether it is.
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
        let run = step(launch, plan, services, few_proxies).await?;
        rows.push(Row::new(run, None));
    }
    let bounds = CHANGES
        .iter()
        .filter_map(|change| bound(&rows, change.name(), plan.repeats))
        .collect();
    let mut last: Option<Row> = None;
    for &proxies in &steps.proxies {
        let run = step(launch, plan, few_services, proxies).await?;
        let row = Row::new(run, last.as_ref());
        rows.push(row.clone());
        last = Some(row);
    }
    Ok(Growth {
        mode: plan.mode,
        rows,
        bounds,
    })
}

async fn step(launch: &Launch, plan: &Plan, services: usize, proxies: usize) -> Result<Run> {
    let plan = Plan {
        size: Size {
            services,
            ..plan.size
        },
        proxies,
        changes: CHANGES.to_vec(),
        ..plan.clone()
    };
    Ok(run::measure(launch, &plan).await?.0)
}

impl Row {
    fn new(run: Run, last: Option<&Self>) -> Self {
        let memory = |phases: &[Phase]| phases.first().map_or(0.0, |p| p.rss_mb);
        let kb_per_proxy = last.and_then(|last| {
            let more = (memory(&run.phases) - memory(&last.phases)) * 1024.0;
            ratio(more, run.proxies as f64 - last.proxies as f64)
        });
        Self {
            services: run.size.services,
            proxies: run.proxies,
            kb_per_proxy,
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
    let tick = TICK_MS / repeats.max(1) as f64;
    let within = |before: f64, after: f64, unit: f64| after <= before * MOST + unit;
    Some(Bound {
        change,
        from: smaller.services,
        to: larger.services,
        cpu_ratio: ratio(after.cpu_ms, before.cpu_ms),
        p99_ratio: ratio(after.p99_ms, before.p99_ms),
        most: MOST,
        holds: within(before.cpu_ms, after.cpu_ms, tick)
            && within(before.p99_ms, after.p99_ms, 0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ByType;

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
            kb_per_proxy: None,
            phases: vec![phase],
        }
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
}
