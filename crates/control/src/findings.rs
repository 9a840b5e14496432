//! Diagnostics on their way to the log: each is written once, when it appears.

use std::collections::BTreeSet;

use pilotfish_config::{Diagnostic, Severity};

/// Lines for one report; the page has them all.
const LINES: usize = 100;

/// What has been logged and still holds. Owned by one task.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    known: BTreeSet<Diagnostic>,
}

/// What is new in a report.
#[derive(Debug, Default, PartialEq, Eq)]
struct News {
    appeared: Vec<Diagnostic>,
    resolved: usize,
}

impl Findings {
    /// Takes the diagnostics that hold now, and logs those that did not before. One that went away and comes back is
    /// logged again.
    pub(crate) fn report(&mut self, current: impl IntoIterator<Item = Diagnostic>) {
        let news = self.update(current);
        for finding in news.appeared.iter().take(LINES) {
            match finding.severity {
                Severity::Error => {
                    tracing::error!(target: "config", code = finding.code, "{}", text(finding));
                }
                Severity::Warning => {
                    tracing::warn!(target: "config", code = finding.code, "{}", text(finding));
                }
                Severity::Info => {
                    tracing::info!(target: "config", code = finding.code, "{}", text(finding));
                }
            }
        }
        if news.appeared.len() > LINES {
            tracing::warn!(target: "config", "and {} more findings; see /debug/diagnostics", news.appeared.len() - LINES);
        }
        if news.resolved > 0 {
            tracing::info!(target: "config", "{} findings resolved, {} left", news.resolved, self.known.len());
        }
    }

    fn update(&mut self, current: impl IntoIterator<Item = Diagnostic>) -> News {
        let current: BTreeSet<_> = current.into_iter().collect();
        let appeared = current.difference(&self.known).cloned().collect();
        let resolved = self.known.difference(&current).count();
        self.known = current;
        News { appeared, resolved }
    }
}

/// The diagnostic without its severity, which is the level of the line.
fn text(finding: &Diagnostic) -> String {
    let whole = finding.to_string();
    whole
        .strip_prefix(&finding.severity.to_string())
        .unwrap_or(&whole)
        .trim_start_matches([' ', ':'])
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_news_once() {
        let (a, b) = (
            Diagnostic::error("a", "one", "x"),
            Diagnostic::warning("b", "two", "y"),
        );
        let mut findings = Findings::default();
        assert_eq!(
            findings.update([a.clone()]),
            News {
                appeared: vec![a.clone()],
                resolved: 0
            }
        );
        assert_eq!(
            findings.update([a.clone(), b.clone()]),
            News {
                appeared: vec![b.clone()],
                resolved: 0
            }
        );
        assert_eq!(
            findings.update([b.clone()]),
            News {
                appeared: vec![],
                resolved: 1
            }
        );
        assert_eq!(
            findings.update([a.clone(), b]),
            News {
                appeared: vec![a],
                resolved: 0
            }
        );
    }

    #[test]
    fn the_level_is_not_said_twice() {
        assert_eq!(
            text(&Diagnostic::error("a", "no such host", "it is left out").at("spec")),
            "spec: no such host; it is left out"
        );
        assert_eq!(
            text(&Diagnostic::error("a", "no such host", "it is left out")),
            "no such host; it is left out"
        );
    }
}
