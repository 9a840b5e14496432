//! The server audits itself: now and then it builds a part of what proxies were given from scratch and compares.
//!
//! Incremental updates that miss something would otherwise stay wrong until the next restart. What is found is healed,
//! logged with its provenance and counted; it is always a bug of Pilotfish, never of the configuration.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use pilotfish_mesh::Text;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::plane::{Audit, Difference, Plane};
use crate::pushes::Push;

/// The pause is so many times what the last audit took: at most 0.5 % of the time is spent on audits.
const PAUSE_FACTOR: u32 = 200;
/// How long no generation may have come: while pushes go on, they have the processor.
const QUIET: Duration = Duration::from_secs(5);
/// If it is never quiet, an audit is put off for so many intervals at most.
const PUT_OFF: u32 = 10;
/// How often it is looked whether one is due.
const TICK: Duration = Duration::from_secs(1);
/// Lines in the log for one audit.
const LINES: usize = 20;
/// Source objects of a difference that are named.
const SOURCES: usize = 5;

/// When the next audit is due. Knows no clock.
#[derive(Debug)]
struct Pacer {
    interval: Duration,
    next: Instant,
    generation: u64,
    changed: Instant,
}

impl Pacer {
    fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            next: now + interval,
            generation: 0,
            changed: now,
        }
    }

    /// Whether one is due. To be asked often enough to notice when generations change.
    fn is_due(&mut self, now: Instant, is_ready: bool, generation: u64) -> bool {
        if generation != self.generation {
            self.generation = generation;
            self.changed = now;
        }
        let quiet = now.saturating_duration_since(self.changed) >= QUIET;
        let overdue = || now >= self.next + self.interval.saturating_mul(PUT_OFF);
        is_ready && now >= self.next && (quiet || overdue())
    }

    fn done(&mut self, now: Instant, took: Duration) {
        self.next = now + self.interval.max(took.saturating_mul(PAUSE_FACTOR));
    }
}

/// Audits one sheet after the other, for as long as the server runs.
pub(crate) async fn run(plane: Arc<Plane>, interval: Duration) -> Result<()> {
    let mut pacer = Pacer::new(interval, Instant::now());
    let mut turn = 0;
    loop {
        tokio::time::sleep(interval.min(TICK)).await;
        let is_ready = plane.readiness.check().is_ok();
        if !pacer.is_due(Instant::now(), is_ready, plane.current()) {
            continue;
        }
        let began = Instant::now();
        let audited = Arc::clone(&plane);
        let done = tokio::task::spawn_blocking(move || audited.audit(turn)).await;
        let took = began.elapsed();
        match done {
            Ok(Some((audit, healed))) => {
                take(&plane.metrics, &audit, healed, took);
                if let Some(generation) = healed {
                    let time = jiff::Timestamp::now().to_string();
                    let version = plane.snapshot().version;
                    plane.history.add(Push::repair(time, generation, version));
                }
            }
            Ok(None) => {}
            // Proxies are served all the same.
            Err(error) => tracing::error!(target: "push", "the self-audit failed: {error}"),
        }
        turn = turn.wrapping_add(1);
        pacer.done(Instant::now(), took);
    }
}

/// Counts what an audit found, and logs it if it is not as it should be.
fn take(metrics: &Metrics, audit: &Audit, healed: Option<u64>, took: Duration) {
    let differences = audit.differences.len() + usize::from(audit.mixed_up);
    metrics.audited(differences, took);
    if healed.is_some() {
        metrics.triggered("audit", 1);
    }
    tracing::debug!(target: "push", sheet = audit.section, resources = audit.resources, took_ms = took.as_secs_f64() * 1e3, "self-audit");
    for line in lines(audit, healed) {
        tracing::error!(target: "push", "{line}");
    }
}

/// What the log says of an audit: nothing if all was well.
fn lines(audit: &Audit, healed: Option<u64>) -> Vec<String> {
    let Some(generation) = healed else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    if audit.mixed_up {
        lines.push(format!(
            "self-audit: the labels or nodes that tell proxies apart are others than those that the configuration reads, so that some proxies may \
             have had what is for others (healed in generation {generation}). This is a bug of Pilotfish; please report it with this line",
        ));
    }
    if audit.differences.is_empty() {
        return lines;
    }
    let head = format!(
        "self-audit: {} of {} resources of {} differ from what the configuration gives (healed in generation {generation}). This is a bug of \
         Pilotfish; please report it with these lines",
        audit.differences.len(),
        audit.resources,
        audit.section,
    );
    // Two lines for the head and the rest.
    let named = LINES - 2 - lines.len();
    lines.push(head);
    let each = audit.differences.iter().take(named);
    lines.extend(each.map(|difference| line(audit.section, difference)));
    if audit.differences.len() > named {
        let rest = audit.differences.len() - named;
        lines.push(format!("self-audit: and {rest} more of {}", audit.section));
    }
    lines
}

fn line(section: &str, difference: &Difference) -> String {
    format!(
        "self-audit: {section} {} {}; {}",
        difference.name,
        difference.what.as_str(),
        provenance(&difference.sources)
    )
}

fn provenance(sources: &[Text]) -> String {
    if sources.is_empty() {
        return "made from no object".to_owned();
    }
    let named: Vec<&str> = sources.iter().take(SOURCES).map(|s| &**s).collect();
    let more = match sources.len().saturating_sub(SOURCES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("made from {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::Wrong;

    const MINUTE: Duration = Duration::from_mins(1);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn the_pause_follows_what_an_audit_took() {
        let start = Instant::now();
        let mut pacer = Pacer::new(MINUTE, start);
        assert!(!pacer.is_due(start + seconds(59), true, 0));
        assert!(pacer.is_due(start + seconds(60), true, 0));
        pacer.done(start + seconds(60), Duration::from_millis(1));
        assert!(!pacer.is_due(start + seconds(119), true, 0));
        assert!(pacer.is_due(start + seconds(120), true, 0));
        pacer.done(start + seconds(120), seconds(1));
        assert!(
            !pacer.is_due(start + seconds(319), true, 0),
            "200 times 1 s"
        );
        assert!(pacer.is_due(start + seconds(320), true, 0));
    }

    #[test]
    fn neither_before_ready_nor_while_pushes_go_on() {
        let start = Instant::now();
        let mut pacer = Pacer::new(MINUTE, start);
        assert!(!pacer.is_due(start + seconds(70), false, 0));
        assert!(!pacer.is_due(start + seconds(71), true, 1), "just pushed");
        assert!(!pacer.is_due(start + seconds(75), true, 1));
        assert!(pacer.is_due(start + seconds(76), true, 1));
    }

    #[test]
    fn a_mesh_that_is_never_quiet_is_audited_all_the_same() {
        let start = Instant::now();
        let mut pacer = Pacer::new(MINUTE, start);
        let due = (1..3600).find(|s| pacer.is_due(start + seconds(*s), true, *s));
        assert_eq!(due, Some(11 * 60), "ten intervals late");
    }

    fn audit(differences: usize) -> (Audit, Option<u64>) {
        let difference = |index| Difference {
            name: Text::from(format!("outbound|80||web-{index}")),
            what: Wrong::Outdated,
            sources: (0..7)
                .map(|s| Text::from(format!("Service/shop/{s}")))
                .collect(),
        };
        let audit = Audit {
            section: "clusters",
            resources: 100,
            differences: (0..differences).map(difference).collect(),
            mixed_up: false,
        };
        (audit, (differences > 0).then_some(7))
    }

    fn said(differences: usize) -> Vec<String> {
        let (audit, healed) = audit(differences);
        lines(&audit, healed)
    }

    #[test]
    fn a_difference_is_said_with_its_provenance_and_counted() {
        let found = said(1);
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("1 of 100 resources of clusters"));
        assert!(found[0].contains("healed in generation 7"));
        assert_eq!(
            found[1],
            "self-audit: clusters outbound|80||web-0 is out of date; made from Service/shop/0, Service/shop/1, \
             Service/shop/2, Service/shop/3, Service/shop/4 and 2 more"
        );
        let metrics = Metrics::new(std::time::Instant::now());
        for differences in [0, 3] {
            let (audit, healed) = audit(differences);
            take(&metrics, &audit, healed, seconds(1));
        }
        let text = metrics.text();
        for line in [
            "pilotfish_audit_sheets_total 2",
            "pilotfish_audit_differences_total 3",
            "pilotfish_audit_seconds_sum 2",
            "pilot_push_triggers{type=\"audit\"} 1",
        ] {
            assert!(text.lines().any(|l| l.starts_with(line)), "{line}\n{text}");
        }
    }

    #[test]
    fn proxies_that_were_mixed_up_are_no_difference_of_a_sheet() {
        let (mut audit, _) = audit(0);
        audit.mixed_up = true;
        let said = lines(&audit, Some(7));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("tell proxies apart") && !said[0].contains("clusters"));
        let metrics = Metrics::new(std::time::Instant::now());
        take(&metrics, &audit, Some(7), seconds(1));
        let text = metrics.text();
        let counted = "pilotfish_audit_differences_total 1.0";
        assert!(text.lines().any(|l| l == counted), "{text}");
    }

    #[test]
    fn what_is_said_is_bounded() {
        assert_eq!(said(0), Vec::<String>::new());
        assert_eq!(said(LINES - 2).len(), LINES - 1);
        let many = said(1000);
        assert_eq!(many.len(), LINES);
        assert!(many[LINES - 1].contains("and 982 more"), "{many:?}");
    }
}
