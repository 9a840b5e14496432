//! What is known of a cluster as a whole: who has synced, what is wrong, and what is to be told. Plain code without clock:
//! whoever calls says what time it is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pilotfish_config::{Change, ClusterId, Diagnostic, Kind, ObjectKey, Text};

use super::follow::Condition;
use super::keeper::News;
use super::status::State;
use crate::Batch;

/// How long a watch may be down before it is a finding: every watch ends now and then.
const DOWN_FOR: Duration = Duration::from_secs(10);
/// How long a kind must be forbidden before it is not waited for: a server that starts forbids much.
const FORBIDDEN_FOR: Duration = Duration::from_secs(10);
/// How many kinds are named in one finding.
const NAMED: usize = 5;

/// Collects the news of all kinds.
#[derive(Debug)]
pub(super) struct Collector {
    server: String,
    /// How the cluster is called.
    cluster: String,
    kinds: Vec<KindState>,
    findings: BTreeMap<ObjectKey, Vec<Diagnostic>>,
    changes: Vec<Change>,
    trust_domains: BTreeMap<ClusterId, Text>,
    /// Whether these were told.
    trusted: bool,
    /// What was last told, apart from changes.
    told: Option<(Vec<Diagnostic>, Vec<String>)>,
}

#[derive(Debug)]
struct KindState {
    kind: Kind,
    /// What follows if it may not be read, if it is not that there is none.
    otherwise: Option<&'static str>,
    condition: Option<Condition>,
    /// Whether it was once known what there is.
    synced: bool,
    objects: usize,
    down_since: Option<Instant>,
    forbidden_since: Option<Instant>,
}

impl KindState {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            otherwise: None,
            condition: None,
            synced: false,
            objects: 0,
            down_since: None,
            forbidden_since: None,
        }
    }

    /// Whether it is not waited for.
    fn is_settled(&self, now: Instant) -> bool {
        let forbidden = |since| now.duration_since(since) >= FORBIDDEN_FOR;
        self.synced || self.forbidden_since.is_some_and(forbidden)
    }

    fn state(&self) -> State {
        match &self.condition {
            Some(Condition::Live) => State::Live,
            Some(Condition::Absent) => State::Absent,
            Some(Condition::Forbidden(_)) => State::Forbidden,
            Some(Condition::Down(_)) if self.synced => State::Down,
            Some(Condition::Down(_)) | None => State::Waiting,
        }
    }

    fn reason(&self) -> &str {
        match &self.condition {
            Some(Condition::Forbidden(reason) | Condition::Down(reason)) => reason,
            _ => "",
        }
    }
}

impl Collector {
    pub(super) fn new(server: &str, kinds: impl IntoIterator<Item = Kind>) -> Self {
        Self {
            server: server.to_owned(),
            cluster: "the cluster".to_owned(),
            kinds: kinds.into_iter().map(KindState::new).collect(),
            findings: BTreeMap::new(),
            changes: Vec::new(),
            trust_domains: BTreeMap::new(),
            trusted: true,
            told: None,
        }
    }

    /// The same of a cluster that is not ours alone.
    #[must_use]
    pub(super) fn of(mut self, cluster: &str) -> Self {
        self.cluster = format!("cluster {cluster}");
        self
    }

    /// The same, which reads one kind more, for a purpose of its own: what follows if it may not be read.
    #[must_use]
    pub(super) fn and(mut self, kind: Kind, otherwise: &'static str) -> Self {
        self.kinds.push(KindState {
            otherwise: Some(otherwise),
            ..KindState::new(kind)
        });
        self
    }

    /// Takes in what is known of trust domains.
    pub(super) fn trust(&mut self, domains: BTreeMap<ClusterId, Text>) {
        self.trusted &= self.trust_domains == domains;
        self.trust_domains = domains;
    }

    /// Takes in what the task of a kind has learned; returns how that kind is now, for the status.
    pub(super) fn take(
        &mut self,
        index: usize,
        news: News,
        now: Instant,
    ) -> Option<(State, &str, usize)> {
        for (key, diagnostics) in news.findings {
            if diagnostics.is_empty() {
                self.findings.remove(&key);
            } else {
                self.findings.insert(key, diagnostics);
            }
        }
        self.changes.extend(news.changes);
        let kind = self.kinds.get_mut(index)?;
        kind.objects = news.objects;
        if let Some(condition) = news.condition {
            match &condition {
                Condition::Down(_) => {
                    kind.forbidden_since = None;
                    kind.down_since.get_or_insert(now);
                }
                Condition::Forbidden(_) => {
                    kind.down_since = None;
                    kind.forbidden_since.get_or_insert(now);
                }
                Condition::Live | Condition::Absent => {
                    (kind.down_since, kind.forbidden_since) = (None, None);
                    kind.synced = true;
                }
            }
            kind.condition = Some(condition);
        }
        Some((kind.state(), kind.reason(), kind.objects))
    }

    /// Whether every kind is known, or known to be out of reach. Somebody who may read nothing knows nothing.
    fn is_synced(&self, now: Instant) -> bool {
        self.kinds
            .iter()
            .any(|kind| kind.synced && kind.condition != Some(Condition::Absent))
            && self.kinds.iter().all(|kind| kind.is_settled(now))
    }

    /// How many changes wait to be told.
    pub(super) fn waiting(&self) -> usize {
        self.changes.len()
    }

    /// What there is to tell since the last time.
    pub(super) fn batch(&mut self, now: Instant) -> Option<Batch> {
        let (diagnostics, waiting_for) = (self.diagnostics(now), self.waiting_for(now));
        let same = self
            .told
            .as_ref()
            .is_some_and(|(told, waited)| *told == diagnostics && *waited == waiting_for);
        let trusted = std::mem::replace(&mut self.trusted, true);
        if same && trusted && self.changes.is_empty() {
            return None;
        }
        self.told = Some((diagnostics.clone(), waiting_for.clone()));
        Some(Batch {
            changes: std::mem::take(&mut self.changes),
            diagnostics,
            trust_domains: self.trust_domains.clone(),
            synced: waiting_for.is_empty(),
            waiting_for,
        })
    }

    /// What is not read yet, and why.
    fn waiting_for(&self, now: Instant) -> Vec<String> {
        if self.is_synced(now) {
            return Vec::new();
        }
        let missing: Vec<&KindState> = self.kinds.iter().filter(|kind| !kind.synced).collect();
        let reason = missing
            .iter()
            .map(|kind| kind.reason())
            .find(|r| !r.is_empty());
        let why = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        if missing.len() == self.kinds.len() {
            return vec![format!("the API server {}{why}", self.server)];
        }
        missing
            .iter()
            .map(|kind| match kind.reason() {
                "" => kind.kind.to_string(),
                reason => format!("{} ({reason})", kind.kind),
            })
            .collect()
    }

    fn diagnostics(&self, now: Instant) -> Vec<Diagnostic> {
        let mut all: Vec<Diagnostic> = self.findings.values().flatten().cloned().collect();
        for kind in &self.kinds {
            if let Some(Condition::Forbidden(reason)) = &kind.condition {
                let effect = if let Some(otherwise) = kind.otherwise {
                    otherwise.to_owned()
                } else if kind.objects == 0 {
                    format!(
                        "no {} of {} is in effect; it is tried again",
                        kind.kind, self.cluster
                    )
                } else {
                    format!(
                        "what was last known of {} of {} stays in effect; it is tried again",
                        kind.kind, self.cluster
                    )
                };
                let reason = format!(
                    "{} of {} may not be read: {reason}",
                    kind.kind.plural(),
                    self.cluster
                );
                all.push(Diagnostic::error("forbidden", reason, effect));
            }
        }
        let down: Vec<&KindState> = self
            .kinds
            .iter()
            .filter(|kind| kind.synced)
            .filter(|kind| {
                kind.down_since
                    .is_some_and(|since| now.duration_since(since) >= DOWN_FOR)
            })
            .collect();
        if let Some(first) = down.first() {
            let names: Vec<&str> = down
                .iter()
                .take(NAMED)
                .map(|kind| kind.kind.as_str())
                .collect();
            let more = down.len().saturating_sub(NAMED);
            let more = if more == 0 {
                String::new()
            } else {
                format!(" and {more} more kinds")
            };
            let reason = format!(
                "the API server {} of {} cannot be watched for {}{more}: {}",
                self.server,
                self.cluster,
                names.join(", "),
                first.reason()
            );
            let effect = "what was last known stays in effect; it is tried again";
            all.push(Diagnostic::warning("watch-down", reason, effect));
        }
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(condition: Condition) -> News {
        News {
            condition: Some(condition),
            ..News::default()
        }
    }

    fn down(reason: &str) -> News {
        news(Condition::Down(reason.to_owned()))
    }

    #[test]
    fn synced_means_every_kind() {
        let kinds = [Kind::Service, Kind::Pod, Kind::Sidecar, Kind::Gateway];
        let (mut collector, now) = (Collector::new("https://api", kinds), Instant::now());
        let batch = collector.batch(now).unwrap();
        assert!(!batch.synced);
        assert_eq!(batch.waiting_for, ["the API server https://api"]);
        collector.take(0, down("connection refused"), now);
        let batch = collector.batch(now).unwrap();
        assert_eq!(
            batch.waiting_for,
            ["the API server https://api (connection refused)"]
        );

        collector.take(0, news(Condition::Live), now);
        collector.take(2, news(Condition::Absent), now);
        collector.take(3, news(Condition::Forbidden("no".to_owned())), now);
        let batch = collector.batch(now).unwrap();
        let waited = ["Pod".to_owned(), "Gateway (no)".to_owned()];
        assert_eq!((batch.synced, &*batch.waiting_for), (false, &waited[..]));
        assert_eq!(batch.diagnostics.len(), 1);
        assert_eq!(batch.diagnostics[0].code, "forbidden");
        collector.take(1, news(Condition::Live), now);
        assert!(
            !collector.batch(now).unwrap().synced,
            "it may be forbidden for a moment only"
        );
        let now = now + FORBIDDEN_FOR;
        let batch = collector.batch(now).unwrap();
        assert!(batch.synced && batch.waiting_for.is_empty());
        assert!(collector.batch(now).is_none(), "nothing new");

        // Once synced, it stays so; a watch that is down for long is a finding.
        collector.take(0, down("gone"), now);
        assert!(collector.batch(now).is_none());
        let batch = collector.batch(now + DOWN_FOR).unwrap();
        assert!(batch.synced && batch.changes.is_empty());
        assert!(
            batch
                .diagnostics
                .iter()
                .any(|d| d.code == "watch-down" && d.reason.contains("gone"))
        );
        collector.take(0, news(Condition::Live), now);
        assert_eq!(collector.batch(now).unwrap().diagnostics.len(), 1);
    }

    #[test]
    fn who_may_read_nothing_is_not_synced() {
        let kinds = [Kind::Service, Kind::Sidecar];
        let (mut collector, now) = (Collector::new("x", kinds), Instant::now());
        collector.take(0, news(Condition::Forbidden("no".to_owned())), now);
        collector.take(1, news(Condition::Absent), now);
        assert!(!collector.batch(now + FORBIDDEN_FOR * 9).unwrap().synced);
    }

    #[test]
    fn a_finding_stays_until_its_object_is_good_or_gone() {
        let (mut collector, now) = (Collector::new("x", [Kind::Sidecar]), Instant::now());
        let key = ObjectKey::new(Kind::Sidecar, "a", "b");
        let wrong = |found: Vec<Diagnostic>| News {
            findings: vec![(key.clone(), found)],
            ..News::default()
        };
        collector.take(0, wrong(vec![Diagnostic::error("x", "y", "z")]), now);
        assert_eq!(collector.batch(now).unwrap().diagnostics.len(), 1);
        collector.take(0, news(Condition::Live), now);
        assert_eq!(collector.batch(now).unwrap().diagnostics.len(), 1);
        collector.take(0, wrong(Vec::new()), now);
        assert_eq!(collector.batch(now).unwrap().diagnostics, []);
    }

    #[test]
    fn a_trust_domain_is_news() {
        let (mut collector, now) = (Collector::new("x", [Kind::Pod]), Instant::now());
        collector = collector.and(Kind::ConfigMap, "as before");
        collector.take(0, news(Condition::Live), now);
        let no = Condition::Forbidden("no".to_owned());
        collector.take(1, news(no), now);
        let batch = collector.batch(now).unwrap();
        assert!(!batch.synced, "it was forbidden just now");
        let batch = collector.batch(now + FORBIDDEN_FOR).unwrap();
        assert!(batch.synced && batch.trust_domains.is_empty());
        assert_eq!(batch.diagnostics[0].effect, "as before");
        let domain = |name: &str| BTreeMap::from([(ClusterId::CONFIG, Text::from(name))]);
        collector.trust(domain("a"));
        collector.take(1, news(Condition::Live), now);
        assert_eq!(collector.batch(now).unwrap().trust_domains, domain("a"));
        collector.trust(domain("a"));
        assert!(collector.batch(now).is_none(), "nothing new");
        collector.trust(domain("b"));
        assert_eq!(collector.batch(now).unwrap().trust_domains, domain("b"));
    }
}
