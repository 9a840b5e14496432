//! What is known of one kind, and what changes.

use std::collections::HashMap;

use pilotfish_config::{Change, ClusterId, Diagnostic, Kind, Object, ObjectKey, Standing, parse};
use tokio::sync::mpsc;

use super::follow::{Condition, Keep};
use super::kinds;
use super::standings::{self, Register};
use super::wire::{Fault, Head, Raw};
use crate::share::Shared;

/// What a task has learned since it last reported.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) changes: Vec<Change>,
    /// What is wrong with objects now; an empty list if nothing is any more.
    pub(super) findings: Vec<(ObjectKey, Vec<Diagnostic>)>,
    /// How the connection is, if that has changed.
    pub(super) condition: Option<Condition>,
    /// How many objects there are.
    pub(super) objects: usize,
}

impl News {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.findings.is_empty() && self.condition.is_none()
    }
}

/// Which part of an object is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// What translation may need.
    Useful,
    /// All of it.
    Whole,
}

/// Owns the keys of one kind. The objects go on to the collector; of each, the version stays, so that a list costs only
/// what differs from what is known.
#[derive(Debug)]
pub(super) struct Keeper {
    kind: Kind,
    cluster: ClusterId,
    part: Part,
    revision: String,
    /// Objects that were passed on or refused, with their versions.
    known: HashMap<ObjectKey, u64>,
    /// A list that is not complete yet.
    list: Option<List>,
    news: News,
    condition: Option<Condition>,
    shared: Shared,
    /// Where it is noted how objects stand, if somebody writes to them.
    register: Option<Register>,
    /// How objects stand that were read since that was last noted.
    stand: Vec<(ObjectKey, Option<Standing>)>,
    index: usize,
    reports: mpsc::Sender<(usize, News)>,
}

#[derive(Debug, Default)]
struct List {
    seen: HashMap<ObjectKey, u64>,
    changes: Vec<Change>,
    findings: Vec<(ObjectKey, Vec<Diagnostic>)>,
}

/// What an object came to.
enum Read {
    /// Not one that is kept.
    Skipped(ObjectKey),
    /// Usable.
    Used(Change, Vec<Diagnostic>),
    /// Not usable: the last good version stays.
    Refused(ObjectKey, Vec<Diagnostic>),
}

impl Keeper {
    /// Reports as number `index`.
    pub(super) fn new(
        kind: Kind,
        part: Part,
        revision: &str,
        index: usize,
        reports: mpsc::Sender<(usize, News)>,
    ) -> Self {
        Self {
            kind,
            cluster: ClusterId::CONFIG,
            part,
            revision: revision.to_owned(),
            known: HashMap::new(),
            list: None,
            news: News::default(),
            condition: None,
            shared: Shared::default(),
            register: None,
            stand: Vec::new(),
            index,
            reports,
        }
    }

    /// The same for objects of some cluster.
    #[must_use]
    pub(super) fn of(mut self, cluster: ClusterId) -> Self {
        self.cluster = cluster;
        self
    }

    /// The same, which also notes how objects stand.
    #[must_use]
    pub(super) fn with_register(mut self, register: Option<&Register>) -> Self {
        let written = kinds::is_written(self.kind);
        self.register = register.filter(|_| written).cloned();
        self
    }

    fn key(&self, head: &Head) -> ObjectKey {
        let key =
            ObjectKey::new(self.kind, head.namespace.as_str(), head.name.as_str()).of(self.cluster);
        // The key that is there already shares its strings with the store.
        self.known
            .get_key_value(&key)
            .map_or(key, |(known, _)| known.clone())
    }

    fn read(&mut self, key: ObjectKey, object: &Raw<'_>) -> Read {
        // Where somebody writes about objects, their message must tell how they stand as well.
        let standing = self.register.as_ref().map(|_| object.standing(self.kind));
        if self.part == Part::Useful
            && standing != Some(None)
            && let Some(object) = object.object(self.kind)
        {
            let standing = standing.map(|standing| (key, standing));
            self.stand.extend(standing);
            return self.used(object, Vec::new());
        }
        // It came whole, so that this is about one object and not about the answer.
        let mut value = match object.value(self.kind) {
            Ok(value) => value,
            Err(reason) => {
                let effect = "the object is not used; its last good version stays";
                let found = Diagnostic::error("syntax", reason, effect).of(key.clone());
                return Read::Refused(key, vec![found]);
            }
        };
        let useful = self.part == Part::Whole || kinds::trim(self.kind, &mut value);
        if !useful || !kinds::is_ours(self.kind, &value, &self.revision) {
            return Read::Skipped(key);
        }
        let standing = match &self.register {
            Some(_) => standings::of(self.kind, &value, &self.revision),
            None => None,
        };
        let mut parsed = parse::object(value, self.kind);
        if self.register.is_some() {
            let refused = parsed.objects.is_empty();
            let standing = standing.map(|standing| Standing {
                refused,
                ..standing
            });
            self.stand.push((key.clone(), standing));
        }
        let mut diagnostics = std::mem::take(&mut parsed.diagnostics);
        for key in diagnostics.iter_mut().filter_map(|d| d.object.as_mut()) {
            key.cluster = self.cluster;
        }
        match parsed.objects.pop() {
            Some(object) => self.used(object, diagnostics),
            None => Read::Refused(key, diagnostics),
        }
    }

    fn used(&mut self, mut object: Object, diagnostics: Vec<Diagnostic>) -> Read {
        object.key.cluster = self.cluster;
        self.shared.share(&mut object);
        Read::Used(Change::upsert(object), diagnostics)
    }

    fn forget(&mut self, key: ObjectKey) {
        if self.known.remove(&key).is_some() {
            self.news.findings.push((key.clone(), Vec::new()));
            if let Some(register) = &self.register {
                register.note([(key.clone(), None)]);
            }
            self.news.changes.push(Change::Delete(key));
        }
    }

    fn note(&mut self) {
        let stand = std::mem::take(&mut self.stand);
        if let Some(register) = &self.register {
            register.note(stand);
        }
    }
}

/// The key of an object that is to be added or replaced.
fn upserted(change: &Change) -> Option<ObjectKey> {
    match change {
        Change::Upsert(object) => Some(object.key.clone()),
        Change::Delete(_) | Change::Relocate(..) => None,
    }
}

impl Keep for Keeper {
    fn begin(&mut self) {
        self.list = Some(List::default());
        self.stand.clear();
    }

    fn item(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        let head = object.head()?;
        let (key, version) = (self.key(&head), head.version);
        let unchanged = version != 0 && self.known.get(&key) == Some(&version);
        let read = if unchanged {
            None
        } else {
            Some(self.read(key.clone(), object))
        };
        let Some(list) = &mut self.list else {
            return Ok(());
        };
        match read {
            None => drop(list.seen.insert(key, version)),
            Some(Read::Skipped(_)) => {}
            Some(Read::Used(change, diagnostics)) => {
                let key = upserted(&change).unwrap_or(key);
                // Of what was never seen, nothing was said either.
                if !diagnostics.is_empty() || self.known.contains_key(&key) {
                    list.findings.push((key.clone(), diagnostics));
                }
                list.seen.insert(key, version);
                list.changes.push(change);
            }
            Some(Read::Refused(key, diagnostics)) => {
                list.findings.push((key.clone(), diagnostics));
                list.seen.insert(key, version);
            }
        }
        Ok(())
    }

    fn complete(&mut self) {
        let Some(list) = self.list.take() else { return };
        let known = self.known.keys();
        let mut gone: Vec<ObjectKey> = known
            .filter(|key| !list.seen.contains_key(*key))
            .cloned()
            .collect();
        gone.sort_unstable();
        for key in gone {
            self.forget(key);
        }
        self.known = list.seen;
        self.known.shrink_to_fit();
        self.note();
        self.news.changes.extend(list.changes);
        self.news.findings.extend(list.findings);
    }

    fn upsert(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        let head = object.head()?;
        let (key, version) = (self.key(&head), head.version);
        let read = self.read(key, object);
        self.note();
        match read {
            Read::Skipped(key) => self.forget(key),
            Read::Used(change, diagnostics) => {
                if let Some(key) = upserted(&change) {
                    self.known.insert(key.clone(), version);
                    self.news.findings.push((key, diagnostics));
                }
                self.news.changes.push(change);
            }
            Read::Refused(key, diagnostics) => {
                self.known.insert(key.clone(), version);
                self.news.findings.push((key, diagnostics));
            }
        }
        Ok(())
    }

    fn delete(&mut self, object: &Raw<'_>) -> Result<(), Fault> {
        let key = self.key(&object.head()?);
        self.forget(key);
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn report(&mut self, condition: Condition) {
        if self.condition.as_ref() != Some(&condition) {
            self.condition = Some(condition.clone());
            self.news.condition = Some(condition);
        }
    }

    async fn flush(&mut self) {
        if self.news.is_empty() {
            return;
        }
        let mut news = std::mem::take(&mut self.news);
        news.objects = self.known.len();
        if self.reports.send((self.index, news)).await.is_err() {
            // Nobody listens any more; the task is about to be ended.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn raw(name: &str, version: u32, spec: &str) -> Box<RawValue> {
        let text = format!(
            r#"{{"apiVersion":"telemetry.istio.io/v1","kind":"Telemetry","metadata":{{"name":"{name}","namespace":"a","resourceVersion":"{version}"}},"spec":{spec}}}"#
        );
        RawValue::from_string(text).unwrap()
    }

    /// How objects stand is noted when a list is complete, and at once afterwards.
    #[test]
    fn the_register_knows_how_objects_stand() {
        let register = Register::default();
        let mut keeper = keeper().with_register(Some(&register));
        let versions = || {
            let all = register.all();
            let all = all.iter();
            all.map(|(key, s)| (key.name.to_string(), s.version, s.refused))
                .collect::<Vec<_>>()
        };
        keeper.begin();
        keeper.item(&Raw::Json(&raw("a", 1, "{}"))).unwrap();
        assert_eq!(versions(), [], "half a list says nothing");
        keeper.begin();
        keeper.item(&Raw::Json(&raw("a", 1, "{}"))).unwrap();
        keeper.item(&Raw::Json(&raw("b", 2, "{}"))).unwrap();
        keeper.complete();
        let both = [("a".to_owned(), 1, false), ("b".to_owned(), 2, false)];
        assert_eq!(versions(), both);
        keeper.upsert(&Raw::Json(&raw("b", 3, "7"))).unwrap();
        assert_eq!(versions()[1], ("b".to_owned(), 3, true));
        keeper.delete(&Raw::Json(&raw("a", 4, "{}"))).unwrap();
        assert_eq!(versions().len(), 1);
        // What a list does not change is still known.
        keeper.begin();
        keeper.item(&Raw::Json(&raw("b", 3, "7"))).unwrap();
        keeper.complete();
        assert_eq!(versions(), [("b".to_owned(), 3, true)]);
    }

    fn keeper() -> Keeper {
        Keeper::new(Kind::Telemetry, Part::Useful, "", 0, mpsc::channel(1).0)
    }

    /// Names with `+` or `-`, then `!` with the names of objects with findings.
    fn told(keeper: &mut Keeper) -> String {
        let news = std::mem::take(&mut keeper.news);
        let mut words: Vec<String> = news
            .changes
            .iter()
            .map(|change| match change {
                Change::Upsert(object) => format!("+{}", object.key.name),
                Change::Delete(key) => format!("-{}", key.name),
                Change::Relocate(..) => "?".to_owned(),
            })
            .collect();
        let wrong = news.findings.iter().filter(|(_, found)| !found.is_empty());
        words.extend(wrong.map(|(key, _)| format!("!{}", key.name)));
        words.join(" ")
    }

    fn list(keeper: &mut Keeper, objects: &[Box<RawValue>]) {
        keeper.begin();
        for object in objects {
            keeper.item(&Raw::Json(object)).unwrap();
        }
    }

    const BAD: &str = r#"{"tracing":1}"#;
    const OTHER: &str = r#"{"selector":{"matchLabels":{"a":"b"}}}"#;

    #[test]
    fn half_a_list_changes_nothing() {
        let mut keeper = keeper();
        list(&mut keeper, &[raw("a", 1, "{}"), raw("b", 2, "{}")]);
        assert_eq!(told(&mut keeper), "");
        keeper.complete();
        assert_eq!(told(&mut keeper), "+a +b");
        // One that breaks off, and a complete one after it.
        list(&mut keeper, &[raw("c", 3, "{}")]);
        list(&mut keeper, &[raw("a", 1, "{}"), raw("b", 4, OTHER)]);
        assert_eq!(told(&mut keeper), "");
        keeper.complete();
        assert_eq!(told(&mut keeper), "+b");
        list(&mut keeper, &[raw("b", 4, OTHER)]);
        keeper.complete();
        assert_eq!(told(&mut keeper), "-a");
    }

    #[test]
    fn a_refused_object_keeps_its_last_good_version() {
        let mut keeper = keeper();
        list(&mut keeper, &[raw("a", 1, "{}"), raw("b", 1, BAD)]);
        keeper.complete();
        assert_eq!(told(&mut keeper), "+a !b");
        keeper.upsert(&Raw::Json(&raw("a", 2, BAD))).unwrap();
        assert_eq!(told(&mut keeper), "!a");
        list(&mut keeper, &[raw("a", 2, BAD), raw("b", 1, BAD)]);
        keeper.complete();
        assert_eq!(told(&mut keeper), "", "nothing new");
        keeper.upsert(&Raw::Json(&raw("a", 3, OTHER))).unwrap();
        keeper.delete(&Raw::Json(&raw("b", 4, "{}"))).unwrap();
        assert_eq!(told(&mut keeper), "+a -b");
    }

    #[test]
    fn one_object_that_cannot_be_read_costs_only_itself() {
        let mut keeper = keeper();
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        list(&mut keeper, &[raw("a", 1, "{}"), raw("b", 2, &deep)]);
        keeper.complete();
        assert_eq!(told(&mut keeper), "+a !b");
        keeper.upsert(&Raw::Json(&raw("a", 3, &deep))).unwrap();
        assert_eq!(told(&mut keeper), "!a");
    }

    #[test]
    fn an_object_that_goes_to_another_revision_is_gone() {
        let mut keeper = keeper();
        keeper.revision = "default".to_owned();
        keeper.upsert(&Raw::Json(&raw("a", 1, "{}"))).unwrap();
        assert_eq!(told(&mut keeper), "+a");
        let moved = raw("a", 2, "{}").get().replace(
            r#""name":"a""#,
            r#""name":"a","labels":{"istio.io/rev":"canary"}"#,
        );
        let moved = RawValue::from_string(moved).unwrap();
        keeper.upsert(&Raw::Json(&moved)).unwrap();
        assert_eq!(told(&mut keeper), "-a");
        keeper.delete(&Raw::Json(&moved)).unwrap();
        assert_eq!(told(&mut keeper), "");
    }
}
