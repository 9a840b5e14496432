//! What is written back to a cluster, when, and by whom. Plain functions and state machines: time and answers are given to
//! them, requests are made elsewhere.
//!
//! A [`Writer`] is a function from a [`View`] to what it wants written and is not there yet. A [`Ledger`] decides what is
//! written next and what follows from a failure. A [`Candidate`] decides who writes at all. A [`workloads::Registrar`] looks
//! after the entries of the workloads that are connected to this replica, whoever leads.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests make time pass, from some moment on"
    )
)]

mod addresses;
mod events;
mod findings;
mod lease;
mod ledger;
mod rules;
pub mod workloads;

use std::collections::BTreeMap;
use std::fmt;

use pilotfish_config::{Diagnostic, ObjectKey, Snapshot, Standings};
use pilotfish_mesh::World;
use serde_json::{Value, json};

pub use lease::{Answer, Candidate, LeaseName, Step, Timing};
pub use ledger::{Failure, Ledger, Order};
pub use rules::{RULES, Rule, Scope};

/// What writers may know.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// What is configured.
    pub snapshot: &'a Snapshot,
    /// What the mesh makes of it.
    pub world: &'a World,
    /// How objects stand now.
    pub standings: &'a Standings,
    /// Everything that is wrong.
    pub findings: &'a [Diagnostic],
    /// How objects stood when that was found out.
    pub judged: &'a Standings,
    /// Who writes, as Events show it.
    pub instance: &'a str,
    /// The time, for people to read: RFC 3339 in UTC with microseconds.
    pub now: &'a str,
}

/// A part of what is written. Each has a field manager of its own, so that none takes away what another wrote. Order is
/// precedence: proxies depend on addresses, people can wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Addresses of ServiceEntries.
    Addresses,
    /// What is wrong, in the status of the object.
    Findings,
    /// What is wrong, as Events.
    Events,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Addresses, Self::Findings, Self::Events];

    /// Its name in settings and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Addresses => "addresses",
            Self::Findings => "findings",
            Self::Events => "events",
        }
    }

    /// Under which name the API server keeps what it wrote.
    pub fn manager(self) -> String {
        format!("pilotfish-{}", self.name())
    }

    /// What is missing if it cannot be written.
    const fn effect(self) -> &'static str {
        match self {
            Self::Addresses => {
                "addresses of hosts follow from their names, and may move when other hosts come and go"
            }
            Self::Findings => "what is wrong with these objects is not in their status",
            Self::Events => "there are no Events about what is wrong",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Something that is to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// By which writer.
    pub part: Part,
    /// The object that it is about.
    pub object: ObjectKey,
    /// What.
    pub form: Form,
}

/// How something is written.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// These fields of the status, if the object is still as it stands. Never empty.
    Status(BTreeMap<&'static str, Value>),
    /// An Event of this name, unless there is one.
    Event(String, Value),
}

/// A function that wants something written.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    /// What it writes.
    pub part: Part,
    /// What it wants written and is not there yet.
    pub wanted: fn(&View<'_>) -> Vec<Wanted>,
}

/// All writers. They know nothing of each other.
pub const WRITERS: &[Writer] = &[
    Writer {
        part: Part::Addresses,
        wanted: addresses::wanted,
    },
    Writer {
        part: Part::Findings,
        wanted: findings::wanted,
    },
    Writer {
        part: Part::Events,
        wanted: events::wanted,
    },
];

/// What the writers of some parts want.
pub fn wanted(view: &View<'_>, parts: &[Part]) -> Vec<Wanted> {
    WRITERS
        .iter()
        .filter(|writer| parts.contains(&writer.part))
        .flat_map(|writer| (writer.wanted)(view))
        .collect()
}

/// Whether a field of a status says what is wanted. What is not there is the same as an empty list.
fn says(there: Option<&Value>, wanted: &Value) -> bool {
    let empty = json!([]);
    let there = there.filter(|value| !value.is_null()).unwrap_or(&empty);
    there == wanted
}

/// At most `max` bytes of a text.
fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max.saturating_sub('…'.len_utf8()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{}…", &text[..end])
}

/// The stable name of a finding as Kubernetes wants reasons: `unknown-host` is `UnknownHost`.
fn camel(code: &str) -> String {
    code.split(|c: char| !c.is_ascii_alphanumeric())
        .flat_map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(letters)
        })
        .collect()
}

/// A finding in one line, without its object.
fn line(finding: &Diagnostic) -> String {
    let field = match finding.field.as_str() {
        "" => String::new(),
        field => format!("{field}: "),
    };
    format!("{field}{}; {}", finding.reason, finding.effect)
}

/// Several findings in at most `max` bytes: those that fit, and how many do not.
fn lines(findings: &[&Diagnostic], max: usize) -> String {
    const MORE: usize = 32;
    let mut text = String::new();
    for (index, finding) in findings.iter().enumerate() {
        let next = line(finding);
        let separator = if text.is_empty() { "" } else { " | " };
        if !text.is_empty() && text.len() + separator.len() + next.len() + MORE > max {
            return format!("{text} | and {} more", findings.len() - index);
        }
        text.push_str(separator);
        text.push_str(&shorten(&next, max - MORE));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_short_and_whole() {
        assert_eq!(camel("unknown-host"), "UnknownHost");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("äöüäöü", 8), "äö…");
        let finding = Diagnostic::error("a", "x".repeat(90), "y").at("spec");
        let all = vec![&finding; 50];
        let text = lines(&all, 300);
        assert!(text.len() <= 300 && text.ends_with("more"), "{text}");
        assert_eq!(lines(&all[..1], 300), line(&finding));
        let long = Diagnostic::error("a", "ü".repeat(900), "y");
        assert!(lines(&[&long, &long], 300).len() <= 300);
    }

    #[test]
    fn nothing_is_an_empty_list() {
        assert!(says(None, &json!([])) && says(Some(&Value::Null), &json!([])));
        assert!(!says(None, &json!([1])) && !says(Some(&json!([1])), &json!([])));
    }

    #[test]
    fn every_part_has_a_writer() {
        let parts: Vec<Part> = WRITERS.iter().map(|writer| writer.part).collect();
        assert_eq!(parts, Part::ALL);
    }
}
