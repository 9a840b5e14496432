//! Compares what was seen with what a step expects.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;

use super::ask::{Answer, Outcome};
use super::scenario::{Count, Expect, Saw, Wanted};

/// Everything that was seen of a step.
pub(super) struct Seen<'a> {
    /// What came of each request.
    pub(super) outcomes: &'a [Outcome],
    /// What reached each upstream.
    pub(super) reached: &'a BTreeMap<String, Vec<Value>>,
    /// The sum of an Envoy's counters: pod, regular expression.
    pub(super) stat: &'a dyn Fn(&str, &str) -> Result<u64>,
}

/// The differences, each with what was expected and what was seen. None means that the step passed.
pub(super) fn differences(expect: &Expect, seen: &Seen<'_>) -> Vec<String> {
    let mut found = Differences::default();
    if let Some(text) = &expect.failure {
        failures(text, seen.outcomes, &mut found);
    } else {
        answers(expect, seen.outcomes, &mut found);
    }
    for (upstream, count) in &expect.reached {
        let requests = seen.reached.get(upstream).map_or(0, Vec::len) as u64;
        found.count(
            &format!("requests that reached {upstream}"),
            *count,
            requests,
        );
    }
    for (upstream, saw) in &expect.saw {
        match seen.reached.get(upstream).and_then(|all| all.last()) {
            Some(report) => report_differs(upstream, saw, report, &mut found),
            None => found.add(&format!("request to {upstream}"), &"one", "none"),
        }
    }
    for (proxy, stats) in &expect.stats {
        for (filter, count) in stats {
            match (seen.stat)(proxy, filter) {
                Ok(sum) => found.count(&format!("{filter} of {proxy}"), *count, sum),
                Err(error) => found.add(filter, &count, &format!("{error:#}")),
            }
        }
    }
    found.lines
}

#[derive(Default)]
struct Differences {
    lines: Vec<String>,
}

impl Differences {
    fn add(&mut self, what: &str, expected: &dyn std::fmt::Display, seen: &str) {
        let line = format!("{what}: expected {expected}, seen {seen}");
        // A hundred answers that differ in the same way are one difference.
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    fn count(&mut self, what: &str, wanted: Count, seen: u64) {
        if !wanted.holds(seen) {
            self.add(what, &wanted, &seen.to_string());
        }
    }

    fn text(&mut self, what: &str, wanted: Option<&Wanted>, seen: Option<&str>) {
        if let Some(wanted) = wanted.filter(|wanted| !wanted.holds(seen)) {
            self.add(what, wanted, &quoted(seen));
        }
    }
}

fn quoted(text: Option<&str>) -> String {
    text.map_or_else(|| "nothing".to_owned(), |text| format!("{text:?}"))
}

fn failures(text: &str, outcomes: &[Outcome], found: &mut Differences) {
    for outcome in outcomes {
        match &outcome.answer {
            Err(error) if error.contains(text) => {}
            Err(error) => found.add("failure", &text, error),
            Ok(answer) => found.add("failure", &text, &in_short(answer)),
        }
    }
}

fn answers(expect: &Expect, outcomes: &[Outcome], found: &mut Differences) {
    let mut statuses = BTreeMap::<u16, u64>::new();
    let mut upstreams = BTreeMap::<&str, u64>::new();
    for outcome in outcomes {
        let answer = match &outcome.answer {
            Ok(answer) => answer,
            Err(error) => {
                found.add("answer", &"one", error);
                continue;
            }
        };
        *statuses.entry(answer.status).or_default() += 1;
        if let Some(upstream) = answer.upstream().filter(|_| answer.status < 500) {
            *upstreams.entry(upstream).or_default() += 1;
        }
        answer_differs(expect, answer, found);
        if let Some((least, most)) = expect.seconds
            && !(least..=most).contains(&outcome.seconds)
        {
            let seen = format!("{:.3}", outcome.seconds);
            found.add("seconds", &format!("{least} to {most}"), &seen);
        }
    }
    let expected: BTreeSet<u16> = expect.statuses.keys().copied().collect();
    for (status, count) in &expect.statuses {
        let seen = statuses.get(status).copied().unwrap_or(0);
        found.count(&format!("answers with {status}"), *count, seen);
    }
    if !expected.is_empty() {
        for (status, count) in statuses.iter().filter(|(s, _)| !expected.contains(s)) {
            found.add(&format!("answers with {status}"), &0, &count.to_string());
        }
    }
    for (upstream, count) in &expect.answered {
        let seen = upstreams.get(upstream.as_str()).copied().unwrap_or(0);
        found.count(&format!("answers of {upstream}"), *count, seen);
    }
    if let Some(count) = expect.different {
        found.count("different upstreams", count, upstreams.len() as u64);
    }
}

fn answer_differs(expect: &Expect, answer: &Answer, found: &mut Differences) {
    if expect.statuses.is_empty() && answer.status != expect.status.unwrap_or(200) {
        found.add("status", &expect.status.unwrap_or(200), &in_short(answer));
    }
    if let Some(upstream) = &expect.from
        && answer.upstream() != Some(upstream)
    {
        let wanted = format!("{upstream:?}");
        found.add("upstream", &wanted, &quoted(answer.upstream()));
    }
    for (name, wanted) in &expect.headers {
        let what = format!("header {name} of the answer");
        found.text(&what, Some(wanted), answer.message.header(name));
    }
    let body = String::from_utf8_lossy(&answer.message.body);
    found.text("body", expect.body.as_ref(), Some(&body));
    found.text(
        "certificate of the server",
        expect.certificate.as_ref(),
        answer.certificate.as_deref(),
    );
    report_differs("the upstream", &expect.upstream, &answer.report, found);
}

fn report_differs(who: &str, saw: &Saw, report: &Value, found: &mut Differences) {
    for (field, wanted) in [
        ("method", &saw.method),
        ("path", &saw.path),
        ("host", &saw.host),
        ("protocol", &saw.protocol),
        ("port", &saw.port),
        ("sni", &saw.sni),
        ("certificate", &saw.certificate),
        ("transport", &saw.transport),
        ("proxy-protocol", &saw.proxy_protocol),
        ("tunnel", &saw.tunnel),
    ] {
        let seen = match &report[field] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        found.text(
            &format!("{field} at {who}"),
            wanted.as_ref(),
            seen.as_deref(),
        );
    }
    for (name, wanted) in &saw.headers {
        let seen = report["headers"][name].as_str();
        found.text(&format!("header {name} at {who}"), Some(wanted), seen);
    }
}

/// Status and the beginning of the body.
fn in_short(answer: &Answer) -> String {
    let body = String::from_utf8_lossy(&answer.message.body);
    let body: String = body.chars().take(160).collect();
    match answer.upstream() {
        Some(upstream) => format!("{} from {upstream}", answer.status),
        None => format!("{} {body:?}", answer.status),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::Message;

    fn outcome(status: u16, upstream: &str) -> Outcome {
        Outcome {
            seconds: 0.2,
            answer: Ok(Answer {
                status,
                message: Message {
                    headers: [("server".to_owned(), "envoy".to_owned())].into(),
                    ..Message::default()
                },
                report: json!({"upstream": upstream, "path": "/a", "headers": {"x": "1"}}),
                certificate: None,
            }),
        }
    }

    fn found(expect: &str, outcomes: &[Outcome]) -> Vec<String> {
        let expect: Expect = serde_saphyr::from_str(expect).unwrap();
        let reached = [("a".to_owned(), vec![json!({"host": "a-shadow"})])].into();
        differences(
            &expect,
            &Seen {
                outcomes,
                reached: &reached,
                stat: &|_, _| Ok(3),
            },
        )
    }

    #[test]
    fn what_is_as_expected_is_no_difference() {
        let expect = "
from: a
different: 1
reached: {a: 1, b: 0}
saw: {a: {host: ~shadow}}
upstream: {path: /a, headers: {x: 1, y: absent}}
headers: {server: envoy}
seconds: [0.1, 0.3]
stats: {client: {x: [2]}}
";
        assert_eq!(found(expect, &[outcome(200, "a")]), [""; 0]);
    }

    #[test]
    fn each_difference_names_what_was_expected_and_seen() {
        for (expect, difference) in [
            ("from: b", "upstream: expected \"b\", seen \"a\""),
            ("status: 404", "status: expected 404, seen 200 from a"),
            (
                "reached: {a: 2}",
                "requests that reached a: expected 2, seen 1",
            ),
            (
                "reached: {a: [2]}",
                "requests that reached a: expected 2 or more, seen 1",
            ),
            (
                "saw: {b: {host: x}}",
                "request to b: expected one, seen none",
            ),
            ("seconds: [1, 2]", "seconds: expected 1 to 2, seen 0.200"),
            (
                "upstream: {path: absent}",
                "path at the upstream: expected nothing, seen \"/a\"",
            ),
            (
                "headers: {via: envoy}",
                "header via of the answer: expected \"envoy\", seen nothing",
            ),
            (
                "answered: {a: [0, 1]}",
                "answers of a: expected 0 to 1, seen 2",
            ),
            (
                "statuses: {503: 1, 200: 2}",
                "answers with 503: expected 1, seen 0",
            ),
            ("statuses: {503: 0}", "answers with 200: expected 0, seen 2"),
            ("failure: reset", "failure: expected reset, seen 200 from a"),
            ("stats: {client: {x: 1}}", "x of client: expected 1, seen 3"),
        ] {
            let seen = found(expect, &[outcome(200, "a"), outcome(200, "a")]);
            assert_eq!(seen, [difference], "{expect}");
        }
    }
}
