//! Figures as tables for people.

use std::fmt::Write as _;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::growth::Growth;
use crate::run::{Phase, Run};
use crate::wire::Type;

/// A figure for each type that proxies ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByType(pub [f64; 5]);

impl ByType {
    /// All types together.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }
}

impl Serialize for ByType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (kind, figure) in Type::ALL.iter().zip(self.0) {
            map.serialize_entry(kind.short(), &figure)?;
        }
        map.end()
    }
}

/// The smallest of the sorted values that is not exceeded by `percent` of them; 0 if there is none.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// How many times `b` goes into `a`; none if nothing was measured of `b`.
pub fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b)
}

/// A server, beside the limit and perhaps beside another.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The server.
    pub ours: Run,
    /// Connecting to a bare server that sends the same bytes from memory.
    pub limit: Phase,
    /// Processor time of `connect` as a multiple of the limit's.
    pub limit_ratio: Option<f64>,
    /// The same against another server.
    pub peer: Option<Run>,
    /// What ours took as a share of what that took.
    pub shares: Option<Vec<Share>>,
}

/// What a phase took as a share of what it took another server; none of what took it nothing.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Share {
    /// The phase.
    pub name: &'static str,
    /// Half of the proxies were reached.
    pub p50: Option<f64>,
    /// All but a hundredth were.
    pub p99: Option<f64>,
    /// Processor time.
    pub cpu: Option<f64>,
    /// Bytes.
    pub sent: Option<f64>,
    /// Memory after the phase.
    pub rss: Option<f64>,
    /// The most memory so far.
    pub peak: Option<f64>,
}

/// Everything, as it is written for programs.
#[derive(Clone, Debug, Serialize)]
pub struct Output {
    /// Processors of the machine, which server and proxies share.
    pub cores: usize,
    /// For each variant of the protocol.
    pub measured: Vec<Measured>,
    /// For each variant of the protocol, how costs grow.
    pub growth: Vec<Growth>,
}

fn shown(ratio: Option<f64>, digits: usize) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.digits$}"))
}

/// Columns of equal width; the first is text, the others are figures.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(String::len)
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column == 0 {
                write!(line, "  {cell:<width$}")
            } else {
                write!(line, "  {cell:>width$}")
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn words(header: &[&str]) -> Vec<String> {
    header.iter().map(ToString::to_string).collect()
}

/// A run: what each phase cost, then what was sent by type.
pub fn run(run: &Run) -> String {
    let mut text = format!(
        "{}: {} services of 2 ports and {} endpoints in {} namespaces; {} proxies, {}\n\
         ready after {:.0} ms and {:.0} ms of CPU, with {:.0} MB\n\n",
        run.server,
        run.size.services,
        run.size.endpoints,
        run.size.namespaces,
        run.proxies,
        run.mode,
        run.ready_ms,
        run.ready_cpu_ms,
        run.idle_mb
    );
    let mut rows = vec![words(&[
        "phase",
        "times",
        "reached",
        "p50 ms",
        "p99 ms",
        "max ms",
        "CPU ms",
        "proxies' CPU ms",
        "messages",
        "kB sent",
        "RSS MB",
        "peak MB",
        "reconnects",
        "refused",
    ])];
    rows.extend(run.phases.iter().map(row));
    text += &table(&rows);
    text += "\nsent, messages/kB\n";
    let mut rows = vec![words(&["phase"])];
    rows[0].extend(Type::ALL.map(|kind| kind.short().into()));
    rows.extend(run.phases.iter().map(|phase| {
        let sent = phase.messages.0.iter().zip(phase.kilobytes.0);
        let mut row = vec![phase.name.into()];
        row.extend(sent.map(|(messages, kb)| format!("{messages:.0}/{kb:.1}")));
        row
    }));
    text + &table(&rows)
}

fn row(phase: &Phase) -> Vec<String> {
    vec![
        phase.name.into(),
        phase.repeats.to_string(),
        format!("{}/{}", phase.reached, phase.expected),
        format!("{:.0}", phase.p50_ms),
        format!("{:.0}", phase.p99_ms),
        format!("{:.0}", phase.max_ms),
        format!("{:.1}", phase.cpu_ms),
        format!("{:.1}", phase.client_cpu_ms),
        format!("{:.0}", phase.messages.total()),
        format!("{:.1}", phase.kilobytes.total()),
        format!("{:.0}", phase.rss_mb),
        format!("{:.0}", phase.peak_mb),
        phase.reconnects.to_string(),
        phase.refused.to_string(),
    ]
}

/// A run beside the limit, and beside another server.
pub fn measured(measured: &Measured) -> String {
    let (ours, limit) = (&measured.ours, &measured.limit);
    let mut text = run(ours);
    let _ = write!(
        text,
        "\nlimit: a bare server of the same gRPC stack sends the same {:.1} MB from memory to {}/{} proxies with {:.0} ms \
         of CPU, p99 {:.0} ms\n",
        limit.kilobytes.total() / 1000.0,
        limit.reached,
        limit.expected,
        limit.cpu_ms,
        limit.p99_ms,
    );
    let _ = writeln!(
        text,
        "connect takes {} times the limit's CPU",
        shown(measured.limit_ratio, 2)
    );
    if let Some(peer) = &measured.peer {
        text.push('\n');
        text += &run(peer);
        let _ = writeln!(
            text,
            "\n{} as a share of {}; less is better",
            ours.server, peer.server
        );
        text += &share_table(measured.shares.as_deref().unwrap_or_default());
    }
    text
}

/// What each phase took `ours` as a share of what it took `peer`.
pub fn shares(ours: &Run, peer: &Run) -> Vec<Share> {
    let phases = ours.phases.iter().zip(&peer.phases);
    let share = |(a, b): (&Phase, &Phase)| Share {
        name: a.name,
        p50: ratio(a.p50_ms, b.p50_ms),
        p99: ratio(a.p99_ms, b.p99_ms),
        cpu: ratio(a.cpu_ms, b.cpu_ms),
        sent: ratio(a.kilobytes.total(), b.kilobytes.total()),
        rss: ratio(a.rss_mb, b.rss_mb),
        peak: ratio(a.peak_mb, b.peak_mb),
    };
    phases.map(share).collect()
}

fn share_table(shares: &[Share]) -> String {
    let mut rows = vec![words(&[
        "phase", "p50", "p99", "CPU", "sent", "RSS", "peak",
    ])];
    rows.extend(shares.iter().map(|s| {
        let figures = [s.p50, s.p99, s.cpu, s.sent, s.rss, s.peak];
        let mut row = vec![s.name.into()];
        row.extend(figures.map(|figure| shown(figure, 3)));
        row
    }));
    table(&rows)
}

fn verdict(complete: bool, holds: bool) -> &'static str {
    match (complete, holds) {
        (false, _) => "not known, as proxies were missed or refused",
        (true, true) => "holds",
        (true, false) => "exceeded",
    }
}

/// How costs grow.
pub fn growth(growth: &Growth) -> String {
    let mut rows = vec![words(&[
        "services",
        "proxies",
        "reached",
        "refused",
        "connect CPU ms",
        "p99 ms",
        "RSS MB",
        "kB per proxy more",
        "of the stack",
        "weight CPU ms",
        "p99 ms",
        "endpoint CPU ms",
        "p99 ms",
    ])];
    rows.extend(growth.rows.iter().map(|row| {
        let mut cells = vec![
            row.services.to_string(),
            row.proxies.to_string(),
            format!("{}/{}", row.reached, row.proxies),
            row.refused.to_string(),
        ];
        for phase in &row.phases {
            cells.push(format!("{:.1}", phase.cpu_ms));
            cells.push(format!("{:.0}", phase.p99_ms));
            if phase.name == "connect" {
                cells.push(format!("{:.0}", phase.rss_mb));
                cells.push(shown(row.kb_per_proxy, 0));
                cells.push(shown(row.stack_kb_per_proxy, 0));
            }
        }
        cells
    }));
    let mut text = format!("growth, {}\n\n", growth.mode);
    text += &table(&rows);
    for bound in &growth.bounds {
        let _ = writeln!(
            text,
            "{}, {} services to {}: CPU {}, p99 {}; at most {:.1}: {}",
            bound.change,
            bound.to,
            bound.from,
            shown(bound.cpu_ratio, 2),
            shown(bound.p99_ratio, 2),
            bound.most,
            verdict(bound.complete, bound.holds)
        );
    }
    if let Some(memory) = &growth.memory {
        let _ = writeln!(
            text,
            "a proxy more takes {:.0} kB; the gRPC stack alone takes {:.0}; at most {:.0} beyond that: {}",
            memory.kb_per_proxy,
            memory.stack_kb_per_proxy,
            memory.most_kb,
            verdict(memory.complete, memory.holds)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "values are picked, not computed")]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 50), 50.0);
        assert_eq!(percentile(&hundred, 99), 99.0);
        assert_eq!(percentile(&hundred, 100), 100.0);
        assert_eq!(percentile(&[3.0, 4.0], 50), 3.0);
        assert_eq!(percentile(&[3.0, 4.0], 99), 4.0);
        assert_eq!(percentile(&[7.0], 1), 7.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }

    #[test]
    fn columns_line_up() {
        let rows = [words(&["a", "long"]), words(&["bcd", "1"])];
        assert_eq!(table(&rows), "  a    long\n  bcd     1\n");
    }

    #[test]
    fn a_ratio_needs_something_to_compare_with() {
        assert_eq!(ratio(3.0, 2.0), Some(1.5));
        assert_eq!(ratio(3.0, 0.0), None);
    }

    #[test]
    fn figures_by_type_are_named() {
        let json = serde_json::to_value(ByType([1.0, 2.0, 3.0, 4.0, 5.0])).unwrap();
        assert_eq!(json["VHDS"], 5.0);
        assert_eq!(json["CDS"], 1.0);
    }
}
