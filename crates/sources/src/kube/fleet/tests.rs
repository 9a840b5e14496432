//! Clusters that come, change their credentials and go.

use pilotfish_config::parse;
use serde_json::json;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(30);

fn fleet() -> Fleet {
    Fleet::new(Terms {
        namespace: "istio-system".to_owned(),
        own: "home".to_owned(),
        timeout: TIMEOUT,
        allowed: BTreeSet::new(),
    })
}

fn kubeconfig(token: &str) -> Arc<[u8]> {
    let text = json!({
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://api"}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    Arc::from(text.to_string().into_bytes())
}

/// A Secret: its name, and clusters with their tokens.
type Written<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// Secrets in the order of their age.
fn secrets(all: &[Written<'_>]) -> BTreeMap<String, Named> {
    let one = |(age, (name, clusters)): (usize, &Written<'_>)| {
        let clusters = clusters.iter();
        let named = Named {
            created: age.to_string(),
            kubeconfigs: clusters
                .map(|(cluster, token)| ((*cluster).to_owned(), kubeconfig(token)))
                .collect(),
        };
        ((*name).to_owned(), named)
    };
    all.iter().enumerate().map(one).collect()
}

/// `+number name` and `-number`.
fn shown(actions: &[Action]) -> Vec<String> {
    let one = |action: &Action| match action {
        Action::Open { number, name, .. } => format!("+{number} {name}"),
        Action::Close(number) => format!("-{number}"),
    };
    actions.iter().map(one).collect()
}

fn service(cluster: &str, name: &str) -> Change {
    let value = json!({"metadata": {"name": name, "namespace": "shop"}});
    let mut object = parse::object(value, Kind::Service).objects.remove(0);
    object.key.cluster = ClusterId::named(cluster).unwrap();
    Change::upsert(object)
}

fn learned(changes: Vec<Change>, synced: bool) -> Batch {
    Batch {
        changes,
        synced,
        ..Batch::default()
    }
}

/// Names with `+` or `-`.
fn told(batch: &Batch) -> Vec<String> {
    let one = |change: &Change| match change {
        Change::Upsert(object) => format!("+{}", object.key.name),
        Change::Delete(key) => format!("-{}", key.name),
        Change::Relocate(..) => "?".to_owned(),
    };
    batch.changes.iter().map(one).collect()
}

#[test]
fn a_cluster_counts_when_it_has_been_read() {
    let (mut fleet, now) = (fleet(), Instant::now());
    let batch = fleet.batch(now).unwrap();
    assert!(!batch.synced, "which Secrets there are is not known");
    let actions = fleet.secrets(&secrets(&[("a", &[("west", "1")])]), now);
    assert_eq!(shown(&actions), ["+1 west"]);
    assert_eq!(
        fleet.learned(1, learned(vec![service("west", "web")], false)),
        []
    );
    let batch = fleet.batch(now).unwrap();
    assert!(!batch.synced && batch.changes.is_empty());
    assert_eq!(batch.waiting_for, ["cluster west ()"]);
    assert_eq!(
        fleet.learned(1, learned(vec![service("west", "db")], true)),
        []
    );
    let batch = fleet.batch(now).unwrap();
    assert!(batch.synced);
    assert_eq!(told(&batch), ["+db", "+web"]);
    assert!(fleet.batch(now).is_none(), "nothing new");
    let actions = fleet.secrets(&BTreeMap::new(), now);
    assert_eq!(shown(&actions), ["-1"]);
    assert_eq!(told(&fleet.batch(now).unwrap()), ["-db", "-web"]);
}

#[test]
fn new_credentials_take_nothing_away() {
    let (mut fleet, now) = (fleet(), Instant::now());
    fleet.secrets(&secrets(&[("a", &[("west", "1")])]), now);
    fleet.learned(
        1,
        learned(vec![service("west", "web"), service("west", "old")], true),
    );
    fleet.batch(now);
    let rotated = secrets(&[("a", &[("west", "2")])]);
    assert_eq!(shown(&fleet.secrets(&rotated, now)), ["+2 west"]);
    assert_eq!(
        shown(&fleet.secrets(&rotated, now)),
        [""; 0],
        "the same again"
    );
    // Both are heard; the old one counts.
    fleet.learned(2, learned(vec![service("west", "web")], false));
    fleet.learned(1, learned(vec![service("west", "late")], true));
    assert_eq!(told(&fleet.batch(now).unwrap()), ["+late"]);
    // Rotated again before the second was read.
    let again = secrets(&[("a", &[("west", "3")])]);
    assert_eq!(shown(&fleet.secrets(&again, now)), ["-2", "+3 west"]);
    fleet.learned(2, learned(vec![service("west", "lost")], true));
    let actions = fleet.learned(3, learned(vec![service("west", "web")], true));
    assert_eq!(shown(&actions), ["-1"]);
    assert_eq!(told(&fleet.batch(now).unwrap()), ["+web", "-late", "-old"]);
    fleet.learned(1, learned(vec![service("west", "late")], true));
    assert!(fleet.batch(now).is_none(), "it is closed");
}

#[test]
fn credentials_that_do_not_work_leave_the_old_ones() {
    let (mut fleet, now) = (fleet(), Instant::now());
    fleet.secrets(&secrets(&[("a", &[("west", "1")])]), now);
    fleet.learned(1, learned(vec![service("west", "web")], true));
    fleet.batch(now);
    let mut bad = secrets(&[("a", &[("west", "1")])]);
    let broken = Arc::from(&b"hunter2: ["[..]);
    bad.get_mut("a")
        .unwrap()
        .kubeconfigs
        .insert("west".to_owned(), broken);
    assert_eq!(fleet.secrets(&bad, now), []);
    let batch = fleet.batch(now).unwrap();
    assert!(batch.synced && batch.changes.is_empty());
    let found = batch.diagnostics[0].to_string();
    for part in ["Secret/istio-system/a", "west", "stays in use"] {
        assert!(found.contains(part), "{found}");
    }
    assert!(!found.contains("hunter2"), "{found}");
    // Some that nobody accepts.
    let actions = fleet.secrets(&secrets(&[("a", &[("west", "2")])]), now);
    assert_eq!(shown(&actions), ["+2 west"]);
    assert_eq!(fleet.batch(now).unwrap().diagnostics, []);
    let batch = fleet.batch(now + TIMEOUT).unwrap();
    assert!(batch.synced && batch.changes.is_empty());
    assert_eq!(batch.diagnostics[0].code, "cluster-timeout");
    // The ones before.
    let actions = fleet.secrets(&secrets(&[("a", &[("west", "1")])]), now);
    assert_eq!(shown(&actions), ["-2", "+3 west"]);
}

#[test]
fn the_oldest_secret_wins_and_our_own_cluster_is_not_another() {
    let (mut fleet, now) = (fleet(), Instant::now());
    let both = secrets(&[
        ("z", &[("west", "1")]),
        ("a", &[("west", "2"), ("home", "3")]),
    ]);
    assert_eq!(shown(&fleet.secrets(&both, now)), ["+1 west"]);
    let found = fleet.batch(now).unwrap().diagnostics;
    let codes: Vec<&str> = found.iter().map(|d| d.code).collect();
    assert_eq!(codes.len(), 2);
    assert!(codes.contains(&"duplicate-cluster") && codes.contains(&"own-cluster"));
    fleet.learned(1, learned(vec![service("west", "web")], true));
    fleet.batch(now);
    // The other one takes over without a gap.
    let second = secrets(&[("a", &[("west", "2")])]);
    assert_eq!(shown(&fleet.secrets(&second, now)), ["+2 west"]);
    let actions = fleet.learned(2, learned(vec![service("west", "web")], true));
    assert_eq!(shown(&actions), ["-1"]);
    assert_eq!(told(&fleet.batch(now).unwrap()), ["+web"]);
}

#[test]
fn readiness_does_not_wait_for_ever() {
    let (mut fleet, now) = (fleet(), Instant::now());
    fleet.secrets(&secrets(&[("a", &[("west", "1"), ("east", "1")])]), now);
    fleet.learned(1, learned(Vec::new(), true));
    let almost = now + Duration::from_secs(29);
    assert!(!fleet.batch(almost).unwrap().synced);
    let batch = fleet.batch(now + TIMEOUT).unwrap();
    assert!(batch.synced);
    assert!(batch.diagnostics[0].to_string().contains("west"));
    assert_eq!(fleet.timeouts(), 1);
    let states: Vec<SyncState> = fleet.rows().map(|(.., sync, _)| sync).collect();
    assert_eq!(states, [SyncState::Synced, SyncState::Timeout]);
    // It is read later all the same.
    fleet.learned(2, learned(vec![service("west", "web")], true));
    let batch = fleet.batch(now + TIMEOUT).unwrap();
    assert_eq!(
        (told(&batch), batch.diagnostics),
        (vec!["+web".to_owned()], vec![])
    );
    let mut patient = Fleet::new(Terms {
        timeout: Duration::ZERO,
        ..super::tests::fleet().terms
    });
    patient.secrets(&secrets(&[("a", &[("west", "1")])]), now);
    assert!(!patient.batch(now + TIMEOUT * 99).unwrap().synced);
}

#[test]
fn trust_domains_count_with_their_cluster() {
    let (mut fleet, now) = (fleet(), Instant::now());
    let trusted = |domain: &str, synced| Batch {
        trust_domains: BTreeMap::from([(ClusterId::named("west").unwrap(), Text::from(domain))]),
        ..learned(Vec::new(), synced)
    };
    let told = |fleet: &mut Fleet| -> Option<Vec<String>> {
        let all = fleet.batch(now)?.trust_domains.into_values();
        Some(all.map(|domain| domain.to_string()).collect())
    };
    fleet.secrets(&secrets(&[("a", &[("west", "1")])]), now);
    fleet.learned(1, trusted("one", false));
    assert_eq!(told(&mut fleet).unwrap(), [""; 0], "nothing counts yet");
    fleet.learned(1, trusted("one", true));
    assert_eq!(told(&mut fleet).unwrap(), ["one"]);
    fleet.learned(1, trusted("two", true));
    assert_eq!(told(&mut fleet).unwrap(), ["two"]);
    // New credentials that cannot read it yet.
    fleet.secrets(&secrets(&[("a", &[("west", "2")])]), now);
    fleet.learned(2, learned(Vec::new(), false));
    assert_eq!(told(&mut fleet), None);
    fleet.learned(2, trusted("two", true));
    assert_eq!(told(&mut fleet), None, "nothing new");
    fleet.secrets(&BTreeMap::new(), now);
    assert_eq!(told(&mut fleet).unwrap(), [""; 0]);
}
