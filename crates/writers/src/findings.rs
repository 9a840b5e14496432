//! What is wrong with an object, in its status: `validationMessages` in istiod's form, and a condition with the words.
//!
//! Only objects about which there is something to say, or was, are written to.

use std::collections::{BTreeMap, BTreeSet};

use pilotfish_config::{Diagnostic, ObjectKey, Severity, Standing};
use serde_json::{Map, Value, json};

use crate::{Form, Part, View, Wanted, camel, lines, says};

/// The type of our condition.
const CONDITION: &str = "PassedAnalysis";
/// How long its message may be.
const MESSAGE: usize = 1024;
/// How many messages there may be.
const MESSAGES: usize = 50;

pub(crate) fn wanted(view: &View<'_>) -> Vec<Wanted> {
    let by_object = by_object(view.findings);
    let worth = |findings: &&Vec<&Diagnostic>| {
        let telling = |finding: &&Diagnostic| finding.severity != Severity::Info;
        findings.iter().any(telling)
    };
    let now = by_object.iter().filter(|(_, findings)| worth(findings));
    let before = view.standings.iter().filter(|(_, standing)| {
        let status = standing.status.as_deref();
        status.is_some_and(|status| status.contains(CONDITION))
    });
    let mut objects: BTreeSet<&ObjectKey> = now.map(|(key, _)| *key).collect();
    objects.extend(before.map(|(key, _)| key));
    let nothing = Vec::new();
    objects
        .into_iter()
        .filter(|key| key.kind.is_istio())
        .filter_map(|key| {
            let standing = view.standings.get(key)?;
            // What was found was found in what it said then.
            let judged = view.judged.get(key)?;
            if (&judged.uid, judged.generation) != (&standing.uid, standing.generation) {
                return None;
            }
            let findings = by_object.get(key).unwrap_or(&nothing);
            let fields = fields(standing, findings, view.now)?;
            Some(Wanted {
                part: Part::Findings,
                object: key.clone(),
                form: Form::Status(fields),
            })
        })
        .collect()
}

/// What is wrong with each object of the cluster, the worst first. What is said of a file is not of the cluster.
pub(crate) fn by_object(findings: &[Diagnostic]) -> BTreeMap<&ObjectKey, Vec<&Diagnostic>> {
    let mut all: BTreeMap<&ObjectKey, Vec<&Diagnostic>> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| finding.origin.is_none()) {
        if let Some(object) = &finding.object {
            all.entry(object).or_default().push(finding);
        }
    }
    for findings in all.values_mut() {
        findings.sort();
    }
    all
}

/// The fields of a status as they should be; `None` if they are.
fn fields(
    standing: &Standing,
    findings: &[&Diagnostic],
    now: &str,
) -> Option<BTreeMap<&'static str, Value>> {
    let there = standing.status();
    let conditions = conditions(standing, &there, findings, now);
    let messages: Value = findings.iter().take(MESSAGES).map(|f| message(f)).collect();
    let same = says(there.get("conditions"), &conditions)
        && says(there.get("validationMessages"), &messages);
    (!same).then(|| BTreeMap::from([("conditions", conditions), ("validationMessages", messages)]))
}

/// A finding as istiod's analysis says one.
fn message(finding: &Diagnostic) -> Value {
    let level = match finding.severity {
        Severity::Error => "ERROR",
        Severity::Warning => "WARNING",
        Severity::Info => "INFO",
    };
    json!({
        "level": level,
        "type": {"code": finding.code, "name": camel(finding.code)},
    })
}

/// The conditions that are there, with ours in its place.
fn conditions(
    standing: &Standing,
    there: &Map<String, Value>,
    findings: &[&Diagnostic],
    now: &str,
) -> Value {
    let telling = findings.iter().filter(|f| f.severity != Severity::Info);
    let telling: Vec<&Diagnostic> = telling.copied().collect();
    let status = match telling.first() {
        Some(worst) if worst.severity == Severity::Error => "False",
        _ => "True",
    };
    let reason = telling.first();
    let reason = reason.map_or_else(|| "NoFindings".to_owned(), |worst| camel(worst.code));
    let mut ours = json!({
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": lines(&telling, MESSAGE),
        "observedGeneration": standing.generation,
        "lastTransitionTime": now,
    });
    let mut all = match there.get("conditions") {
        Some(Value::Array(all)) => all.clone(),
        _ => Vec::new(),
    };
    let place = all
        .iter()
        .position(|condition| condition["type"] == CONDITION);
    match place {
        Some(place) => {
            let old = &all[place];
            if old["status"] == status && old["lastTransitionTime"].is_string() {
                ours["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            all[place] = ours;
        }
        None => all.push(ours),
    }
    Value::Array(all)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilotfish_config::{Kind, Snapshot, Standings};
    use pilotfish_mesh::{Settings, World};

    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::new(Kind::VirtualService, "shop", "web")
    }

    fn standing(generation: i64, status: Option<Value>) -> Standing {
        Standing {
            uid: "u".into(),
            version: 1,
            generation,
            api_version: "networking.istio.io/v1".into(),
            status: status.map(|status| status.to_string().into()),
            refused: false,
        }
    }

    fn wants(findings: &[Diagnostic], judged: &Standing, now: &Standing) -> Option<Value> {
        let one =
            |standing: &Standing| Standings::from([(key(), Arc::new(standing.clone()))].as_slice());
        let (judged, standings) = (one(judged), one(now));
        let snapshot = Snapshot::default();
        let world = World::empty(Settings::default());
        let mut all = wanted(&View {
            snapshot: &snapshot,
            world: &world,
            standings: &standings,
            findings,
            judged: &judged,
            instance: "x",
            now: "T2",
        });
        match all.pop()?.form {
            Form::Status(fields) => Some(json!(fields)),
            Form::Event(..) => None,
        }
    }

    fn error() -> Diagnostic {
        Diagnostic::error("unknown-host", "no such host", "it is left out").of(key())
    }

    #[test]
    fn what_is_wrong_is_said_once() {
        let bare = standing(3, None);
        let said = wants(&[error()], &bare, &bare).unwrap();
        let condition = &said["conditions"][0];
        assert_eq!(condition["status"], "False");
        assert_eq!(condition["reason"], "UnknownHost");
        assert_eq!(condition["observedGeneration"], 3);
        assert_eq!(condition["message"], "no such host; it is left out");
        assert_eq!(said["validationMessages"][0]["level"], "ERROR");
        let written = standing(3, Some(said));
        assert_eq!(wants(&[error()], &written, &written), None);
    }

    #[test]
    fn conditions_of_others_stay_and_times_of_transition_too() {
        let others = json!({"type": "Healthy", "status": "True"});
        let ours = json!({"type": CONDITION, "status": "False", "lastTransitionTime": "T1"});
        let there = standing(
            1,
            Some(json!({"conditions": [ours, others], "addresses": []})),
        );
        let said = wants(&[error()], &there, &there).unwrap();
        assert_eq!(said["conditions"][0]["lastTransitionTime"], "T1");
        assert_eq!(said["conditions"][1], others);
        assert_eq!(said["conditions"].as_array().unwrap().len(), 2);
        // Solved: the condition stays, turns, and says when.
        let said = wants(&[], &there, &there).unwrap();
        assert_eq!(said["conditions"][0]["status"], "True");
        assert_eq!(said["conditions"][0]["reason"], "NoFindings");
        assert_eq!(said["conditions"][0]["lastTransitionTime"], "T2");
        assert_eq!(said["validationMessages"], json!([]));
    }

    #[test]
    fn a_warning_does_not_fail_and_a_remark_is_not_worth_a_write() {
        let bare = standing(1, None);
        let warning = Diagnostic::warning("doubtful", "x", "y").of(key());
        let said = wants(&[warning], &bare, &bare).unwrap();
        assert_eq!(said["conditions"][0]["status"], "True");
        assert_eq!(said["conditions"][0]["reason"], "Doubtful");
        let remark = Diagnostic::info("weights", "x", "y").of(key());
        assert_eq!(wants(&[remark], &bare, &bare), None);
        assert_eq!(wants(&[], &bare, &bare), None);
    }

    #[test]
    fn nothing_is_said_about_what_changed_meanwhile() {
        assert_eq!(
            wants(&[error()], &standing(1, None), &standing(2, None)),
            None
        );
        let file = error().from_origin(Some(pilotfish_config::Origin {
            file: "a.yaml".into(),
            line: 1,
        }));
        assert_eq!(wants(&[file], &standing(1, None), &standing(1, None)), None);
    }
}
