//! Writes are few, in order, and end.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::ServiceEntry, "shop", name)
}

fn standing(version: u64) -> Arc<Standing> {
    Arc::new(Standing {
        uid: "u".into(),
        version,
        generation: 1,
        api_version: "networking.istio.io/v1".into(),
        status: None,
        refused: false,
    })
}

fn standings(all: &[(&str, u64)]) -> Standings {
    all.iter()
        .map(|(name, version)| (key(name), standing(*version)))
        .collect()
}

fn status(name: &str, part: Part, text: &str) -> Wanted {
    Wanted {
        part,
        object: key(name),
        form: Form::Status(BTreeMap::from([("addresses", json!([text]))])),
    }
}

fn event(name: &str) -> Wanted {
    Wanted {
        part: Part::Events,
        object: key("a"),
        form: Form::Event(name.to_owned(), json!({"metadata": {"name": name}})),
    }
}

fn version_of(order: &Order) -> &str {
    order.body["metadata"]["resourceVersion"].as_str().unwrap()
}

#[test]
fn what_was_written_is_not_written_again_before_it_was_seen() {
    let now = Instant::now();
    let mut ledger = Ledger::new(now);
    let wanted = || {
        vec![
            status("a", Part::Findings, "x"),
            status("a", Part::Addresses, "x"),
        ]
    };
    ledger.plan(wanted(), &standings(&[("a", 5)]), now);
    let first = ledger.next(now).unwrap();
    assert_eq!((first.part, version_of(&first)), (Part::Addresses, "5"));
    ledger.done(&first, 8, now);
    // The other part goes on from our own write, which has not come back yet.
    let second = ledger.next(now).unwrap();
    assert_eq!((second.part, version_of(&second)), (Part::Findings, "8"));
    ledger.done(&second, 9, now);
    assert!(ledger.next(now).is_none() && ledger.open() == 0);
    ledger.plan(wanted(), &standings(&[("a", 5)]), now);
    assert_eq!(ledger.open(), 0, "it is on its way");
    // Nothing is wanted once it was seen.
    ledger.plan(vec![], &standings(&[("a", 9)]), now);
    assert!(ledger.versions.is_empty());
    // Another content is another matter.
    ledger.plan(
        vec![status("a", Part::Addresses, "y")],
        &standings(&[("a", 9)]),
        now,
    );
    assert_eq!(version_of(&ledger.next(now).unwrap()), "9");
}

#[test]
fn who_is_overruled_gives_in_for_ever_longer() {
    let mut now = Instant::now();
    let mut ledger = Ledger::new(now);
    let (mut version, mut writes) = (1, 0);
    // Somebody undoes it at once, for an hour.
    let end = now + Duration::from_hours(1);
    while now < end {
        ledger.plan(
            vec![status("a", Part::Addresses, "x")],
            &standings(&[("a", version)]),
            now,
        );
        if let Some(order) = ledger.next(now) {
            ledger.done(&order, version + 1, now);
            version += 2;
            writes += 1;
        }
        now += Duration::from_secs(1);
    }
    assert!((5..20).contains(&writes), "{writes}");
    ledger.plan(
        vec![status("a", Part::Addresses, "x")],
        &standings(&[("a", version)]),
        now,
    );
    assert_eq!(ledger.findings()[0].code, "write-overruled");
}

#[test]
fn what_is_forbidden_is_said_once_and_tried_again() {
    let now = Instant::now();
    let mut ledger = Ledger::new(now);
    let all = standings(&[("a", 1), ("b", 1)]);
    let wanted = || {
        vec![
            status("a", Part::Addresses, "x"),
            status("b", Part::Addresses, "x"),
            status("b", Part::Findings, "x"),
        ]
    };
    ledger.plan(wanted(), &all, now);
    let order = ledger.next(now).unwrap();
    ledger.failed(&order, &Failure::Forbidden("no".to_owned()), now);
    // The other part is not concerned, the other object is.
    let other = ledger.next(now).unwrap();
    assert_eq!(other.part, Part::Findings);
    ledger.done(&other, 2, now);
    assert!(ledger.next(now).is_none());
    let findings = ledger.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].code, "write-forbidden");
    let later = ledger.deadline().unwrap();
    assert!(later >= now + FORBIDDEN_FOR);
    let order = ledger.next(later).unwrap();
    ledger.done(&order, 3, later);
    assert!(ledger.findings().is_empty());
}

#[test]
fn failures_are_tried_again_ever_later_and_news_at_once() {
    let mut now = Instant::now();
    let mut ledger = Ledger::new(now);
    let wanted = || vec![status("a", Part::Addresses, "x")];
    ledger.plan(wanted(), &standings(&[("a", 1)]), now);
    let mut waits = Vec::new();
    for _ in 0..12 {
        let order = ledger.next(now).unwrap();
        ledger.failed(&order, &Failure::Failed("no".to_owned(), None), now);
        ledger.plan(wanted(), &standings(&[("a", 1)]), now);
        let due = ledger.deadline().unwrap();
        waits.push(due - now);
        now = due;
    }
    assert!(waits.is_sorted() && waits[0] >= FIRST_WAIT, "{waits:?}");
    assert!(*waits.last().unwrap() <= LONGEST_WAIT);
    let order = ledger.next(now).unwrap();
    let asked = Some(Duration::from_secs(1000));
    ledger.failed(&order, &Failure::Failed("busy".to_owned(), asked), now);
    assert!(ledger.deadline().unwrap() >= now + Duration::from_secs(1000));
    // The object changed: what was tried in vain may work.
    ledger.plan(wanted(), &standings(&[("a", 2)]), now);
    assert_eq!(version_of(&ledger.next(now).unwrap()), "2");
    let order = ledger.next(now).unwrap();
    ledger.failed(&order, &Failure::Invalid("odd".to_owned()), now);
    assert_eq!(ledger.findings()[0].code, "write-refused");
    // The object is gone, and with it what was wanted.
    ledger.plan(wanted(), &Standings::new(), now);
    assert_eq!((ledger.open(), ledger.deadline()), (0, None));
}

#[test]
fn events_are_made_once_and_few_at_a_time() {
    let mut now = Instant::now();
    let mut ledger = Ledger::new(now);
    let all = standings(&[("a", 1)]);
    let wanted: Vec<Wanted> = (0..100).map(|n| event(&format!("e{n}"))).collect();
    ledger.plan(wanted.clone(), &all, now);
    let mut made = 0;
    while let Some(order) = ledger.next(now) {
        // One that is there already is as good as made.
        if made % 2 == 0 {
            ledger.done(&order, 0, now);
        } else {
            ledger.failed(&order, &Failure::Conflict, now);
        }
        made += 1;
    }
    assert_eq!(made, 25);
    for _ in 0..3600 {
        now += Duration::from_secs(1);
        ledger.plan(wanted.clone(), &all, now);
        if let Some(order) = ledger.next(now) {
            ledger.done(&order, 0, now);
            made += 1;
        }
    }
    assert_eq!((made, ledger.open()), (100, 0));
}

proptest! {
    /// Whatever fails how often: in the end everything is written, nothing more often than needed, and never more than
    /// the rate allows.
    #[test]
    fn it_ends(answers in proptest::collection::vec(0..6_u8, 0..60), count in 1..40_usize) {
        let mut now = Instant::now();
        let mut ledger = Ledger::new(now);
        let names: Vec<String> = (0..count).map(|n| format!("n{n}")).collect();
        let mut there: BTreeMap<String, (u64, bool)> =
            names.iter().map(|name| (name.clone(), (1, false))).collect();
        let (mut answers, mut written, mut steps) = (answers.into_iter(), 0, 0);
        loop {
            let all: Vec<(&str, u64)> = there.iter().map(|(name, (v, _))| (name.as_str(), *v)).collect();
            let wanted = there.iter().filter(|(_, (_, done))| !done);
            let wanted: Vec<Wanted> = wanted.map(|(name, _)| status(name, Part::Addresses, "x")).collect();
            if wanted.is_empty() {
                break;
            }
            ledger.plan(wanted, &standings(&all), now);
            let mut tried = BTreeSet::new();
            while let Some(order) = ledger.next(now) {
                prop_assert!(tried.insert(order.object.clone()), "{} twice", order.object);
                let (version, done) = there.get_mut(&*order.object.name).unwrap();
                prop_assert!(!*done);
                let failure = match answers.next().unwrap_or(0) {
                    1 => Failure::Conflict,
                    2 => Failure::Absent,
                    3 => Failure::Forbidden("no".to_owned()),
                    4 => Failure::Invalid("no".to_owned()),
                    5 => Failure::Failed("no".to_owned(), None),
                    _ => {
                        (*version, *done) = (*version + 1, true);
                        ledger.done(&order, *version, now);
                        written += 1;
                        continue;
                    }
                };
                ledger.failed(&order, &failure, now);
            }
            steps += 1;
            prop_assert!(steps < 1000);
            now = ledger.deadline().unwrap_or(now).max(now);
        }
        prop_assert_eq!(written, count);
    }
}
