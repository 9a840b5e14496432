//! What is wrong with an object, as an Event about it: one for all that is wrong with it at a time. Its name follows from
//! what it says, so that it is made once, whoever makes it.

use std::fmt::Write;

use pilotfish_config::{Diagnostic, Severity};
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::findings::by_object;
use crate::{Form, Part, View, Wanted, camel, lines, shorten};

/// How long a note may be.
const NOTE: usize = 1024;
/// How much of the name of the object is in that of the Event.
const NAME: usize = 200;

pub(crate) fn wanted(view: &View<'_>) -> Vec<Wanted> {
    let mut all: Vec<(Severity, Wanted)> = by_object(view.findings)
        .into_iter()
        .filter_map(|(key, findings)| {
            let standing = view.standings.get(key)?;
            let telling = findings
                .into_iter()
                .filter(|f| f.severity != Severity::Info);
            let telling: Vec<&Diagnostic> = telling.collect();
            let worst = telling.first()?;
            let mut said = standing.uid.to_string();
            for finding in &telling {
                let (code, field, reason) = (finding.code, &finding.field, &finding.reason);
                let _ = write!(said, "\n{code} {field} {reason}");
            }
            let stem: String = key.name.chars().take(NAME).collect();
            let name = format!(
                "{}.{:016x}",
                stem.trim_end_matches(['.', '-']),
                xxh3_64(said.as_bytes())
            );
            let event = json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": &*key.namespace},
                "eventTime": view.now,
                "type": "Warning",
                "reason": shorten(&camel(worst.code), 128),
                "action": "Analyze",
                "note": lines(&telling, NOTE),
                "regarding": {
                    "apiVersion": &*standing.api_version,
                    "kind": key.kind.as_str(),
                    "name": &*key.name,
                    "namespace": &*key.namespace,
                    "uid": &*standing.uid,
                    "resourceVersion": standing.version.to_string(),
                },
                "reportingController": "pilotfish",
                "reportingInstance": shorten(view.instance, 128),
            });
            let wanted = Wanted {
                part: Part::Events,
                object: key.clone(),
                form: Form::Event(name, event),
            };
            Some((worst.severity, wanted))
        })
        .collect();
    // Where not all can be made, errors are.
    all.sort_by_key(|(severity, _)| *severity);
    all.into_iter().map(|(_, wanted)| wanted).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilotfish_config::{Kind, ObjectKey, Snapshot, Standing, Standings};
    use pilotfish_mesh::{Settings, World};

    use super::*;

    fn events(findings: &[Diagnostic], version: u64) -> Vec<(String, serde_json::Value)> {
        let standing = Standing {
            uid: "u".into(),
            version,
            generation: 1,
            api_version: "networking.istio.io/v1".into(),
            status: None,
            refused: false,
        };
        let standings = Standings::from([(key(), Arc::new(standing))].as_slice());
        let (snapshot, world) = (Snapshot::default(), World::empty(Settings::default()));
        let all = wanted(&View {
            snapshot: &snapshot,
            world: &world,
            standings: &standings,
            findings,
            judged: &standings,
            instance: "pilotfish-0",
            now: "T",
        });
        all.into_iter()
            .map(|wanted| match wanted.form {
                Form::Event(name, event) => (name, event),
                Form::Status(_) => panic!(),
            })
            .collect()
    }

    fn key() -> ObjectKey {
        ObjectKey::new(Kind::Gateway, "shop", "front")
    }

    #[test]
    fn one_for_each_object_and_the_same_for_the_same() {
        let error = Diagnostic::error("bad-secret", "no key", "not served").of(key());
        let warning = Diagnostic::warning("doubtful", "hm", "hm").of(key());
        let remark = Diagnostic::info("weights", "a", "b").of(key());
        let elsewhere =
            Diagnostic::error("a", "b", "c").of(ObjectKey::new(Kind::Gateway, "x", "y"));
        let all = [warning.clone(), remark.clone(), error, elsewhere];
        let first = events(&all, 1);
        assert_eq!(first.len(), 1, "{first:?}");
        let (name, event) = &first[0];
        assert!(name.starts_with("front.") && event["metadata"]["name"] == **name);
        assert_eq!(event["reason"], "BadSecret");
        assert_eq!(event["note"], "no key; not served | hm; hm");
        assert_eq!(event["regarding"]["uid"], "u");
        assert_eq!(events(&all, 2)[0].0, *name, "only what it says counts");
        assert_ne!(events(&[warning], 1)[0].0, *name);
        assert!(events(&[remark], 1).is_empty());
    }
}
