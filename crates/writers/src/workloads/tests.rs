//! An entry is there while its proxy is connected to anybody, and gone when it is not, whatever happens to requests, replicas
//! and clocks.

use std::sync::Arc;

use pilotfish_config::{Change, Store, parse};
use proptest::prelude::*;
use serde_json::json;

use super::*;

const GRACE: Duration = Duration::from_secs(10);
const GROUP: &str = "{apiVersion: networking.istio.io/v1, kind: WorkloadGroup, metadata: {name: vms, namespace: shop}, \
    spec: {metadata: {labels: {app: vm, team: a}, annotations: {note: x}}, template: {serviceAccount: vm, network: far, \
    ports: {http: 8080}, labels: {app: other, tier: back}}}}";

fn group() -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup",
        "metadata": {"name": "vms", "namespace": "shop", "uid": "u-1"},
        "spec": {
            "metadata": {"labels": {"app": "vm", "team": "a"}, "annotations": {"note": "x"}},
            "template": {"serviceAccount": "vm", "network": "far", "ports": {"http": 8080}, "labels": {"app": "other", "tier": "back"}},
        },
    })
}

fn proven(namespace: &str, account: &str) -> Identity {
    Identity::Proven {
        namespace: namespace.to_owned(),
        account: account.to_owned(),
    }
}

fn applicant() -> Applicant {
    Applicant {
        namespace: "shop".to_owned(),
        claim: Claim::Group("vms".to_owned()),
        address: "10.0.0.7".to_owned(),
        network: String::new(),
        labels: BTreeMap::new(),
        locality: String::new(),
        health_checked: true,
        tunnel: false,
        identity: proven("shop", "vm"),
    }
}

fn place() -> Place {
    Place::new(Kind::WorkloadEntry, "shop", "vms-10.0.0.7")
}

fn start() -> Now {
    Now {
        instant: Instant::now(),
        clock: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

impl Now {
    fn after(self, time: Duration) -> Self {
        Self {
            instant: self.instant + time,
            clock: self.clock + time,
        }
    }
}

fn registrar(pod: &str) -> Registrar {
    Registrar::new(Rules::new("istio-system", Some(pod), "", GRACE, None))
}

/// What the store has after this much was read.
fn snapshot(entries: &[&Value], yaml: &[&str]) -> Arc<Snapshot> {
    let mut store = Store::new();
    let source = store.register("test");
    let read = |value: Value| {
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| value["kind"] == kind.to_string())
            .unwrap();
        parse::object(value, kind).objects
    };
    let mut changes = Vec::new();
    for entry in entries {
        changes.extend(read((*entry).clone()).into_iter().map(Change::upsert));
    }
    for text in yaml {
        let objects = parse::documents(text, "test").objects;
        changes.extend(objects.into_iter().map(Change::upsert));
    }
    store.apply(source, changes).snapshot
}

fn made(yaml: &str) -> Arc<Snapshot> {
    snapshot(&[], &[yaml])
}

fn say(registrar: &mut Registrar, healthy: bool, now: Now) {
    let message = if healthy { "" } else { "no answer" };
    let report = Report {
        healthy,
        message: message.to_owned(),
        at: now.clock,
    };
    registrar.reported(&place(), 1, report, now);
}

/// Asks all that is due.
fn settle(registrar: &mut Registrar, shelf: &mut Shelf, now: Now) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some(order) = registrar.next(now.instant) {
        let answer = shelf.answer(&order.place, &order.step, Some(group()));
        registrar.answered(&order, answer, now);
        steps.push(order.step);
        assert!(steps.len() < 50, "{steps:?}");
    }
    steps
}

fn annotation<'a>(shelf: &'a Shelf, name: &str) -> &'a Value {
    &shelf.get(&place()).unwrap()["metadata"]["annotations"][name]
}

#[test]
fn an_entry_says_what_group_and_proxy_say() {
    let mut who = applicant();
    who.labels = [
        ("app", "own"),
        ("bad label", "x"),
        ("istio-locality", "r/z/s"),
        ("v", &"x".repeat(64)),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    "r/z".clone_into(&mut who.locality);
    who.tunnel = true;
    let time: Timestamp = "2026-01-01T00:00:00.5Z".parse().unwrap();
    let entry = who.entry(&group(), "vms-10.0.0.7", "me", time);
    let labels =
        json!({"app": "own", "team": "a", "tier": "back", "networking.istio.io/tunnel": "http"});
    assert_eq!(
        entry,
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry",
            "metadata": {
                "name": "vms-10.0.0.7", "namespace": "shop", "labels": labels,
                "annotations": {
                    "note": "x", "istio.io/autoRegistrationGroup": "vms", "istio.io/workloadController": "me",
                    "istio.io/connectedAt": "2026-01-01T00:00:00.5Z", "proxy.istio.io/health-checks-enabled": "true",
                },
                "ownerReferences": [{"apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup", "name": "vms", "uid": "u-1",
                    "controller": true}],
            },
            "spec": {"address": "10.0.0.7", "network": "far", "locality": "r/z", "serviceAccount": "vm", "ports": {"http": 8080},
                "labels": labels},
        })
    );
    assert_eq!(who.odd_labels(), ["bad label", "v"]);
    let read = parse::object(entry, Kind::WorkloadEntry);
    assert!(
        read.diagnostics.is_empty() && read.objects.len() == 1,
        "{:?}",
        read.diagnostics
    );
}

#[test]
fn names_are_those_of_istiod_and_never_too_long() {
    let name = |group: &str, address: &str, network: &str| {
        let mut who = applicant();
        who.claim = Claim::Group(group.to_owned());
        (who.address, who.network) = (address.to_owned(), network.to_owned());
        who.entry_name()
    };
    assert_eq!(name("vms", "10.0.0.7", "").unwrap(), "vms-10.0.0.7");
    assert_eq!(name("vms", "fd00::7", "net").unwrap(), "vms-fd00--7-net");
    let long = name(
        &format!("{}-{}", "a".repeat(200), "b".repeat(100)),
        "10.0.0.7",
        "n",
    )
    .unwrap();
    assert!(
        long.len() <= 253 && long.ends_with("b-10.0.0.7-n"),
        "{long}"
    );
    for (group, network) in [
        ("Vms", ""),
        ("vms", "a_b"),
        ("v/m", ""),
        ("vms", "ü"),
        ("..", ""),
    ] {
        assert!(
            name(group, "10.0.0.7", network).is_err(),
            "{group} {network}"
        );
    }
}

#[test]
fn only_the_groups_own_account_is_admitted() {
    let snapshot = snapshot(&[], &[GROUP]);
    let admitted = |identity: Identity, group: &str| {
        let claim = Claim::Group(group.to_owned());
        admit(
            &Applicant {
                claim,
                identity,
                ..applicant()
            },
            &snapshot,
        )
    };
    assert_eq!(admitted(proven("shop", "vm"), "vms"), Ok(Some(place())));
    assert_eq!(admitted(Identity::Any, "vms"), Ok(Some(place())));
    for stranger in [
        proven("shop", "other"),
        proven("other", "vm"),
        Identity::Unproven,
    ] {
        assert!(matches!(admitted(stranger, "vms"), Err(Unfit::Denied(_))));
    }
    assert!(matches!(
        admitted(proven("shop", "vm"), "none"),
        Err(Unfit::Missing(_))
    ));
    assert!(matches!(
        admitted(proven("shop", "vm"), "No"),
        Err(Unfit::Invalid(_))
    ));
    let entry = |more: &str| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: one, namespace: shop{more}}}, \
             spec: {{address: 10.0.0.7, serviceAccount: vm}}}}"
        )
    };
    let one = Applicant {
        claim: Claim::Entry("one".to_owned()),
        ..applicant()
    };
    let checked = entry(", annotations: {proxy.istio.io/health-checks-enabled: 'true'}");
    assert!(matches!(admit(&one, &made(&checked)), Ok(Some(_))));
    assert_eq!(
        admit(&one, &made(&entry(""))),
        Ok(None),
        "its health is not checked"
    );
    assert!(matches!(admit(&one, &snapshot), Err(Unfit::Missing(_))));
    let stranger = Applicant {
        identity: proven("shop", "other"),
        ..one
    };
    assert!(matches!(
        admit(&stranger, &made(&checked)),
        Err(Unfit::Denied(_))
    ));
}

#[test]
fn who_registers_reports_and_leaves_is_made_written_and_removed() {
    let (mut a, mut shelf, now) = (registrar("a"), Shelf::default(), start());
    a.connected(&place(), 1, applicant(), now);
    say(&mut a, false, now);
    let steps = settle(&mut a, &mut shelf, now);
    assert!(
        matches!(
            steps[..],
            [
                Step::Read,
                Step::ReadGroup(_),
                Step::Create(_),
                Step::Health(_)
            ]
        ),
        "{steps:?}"
    );
    assert_eq!(
        annotation(&shelf, "istio.io/workloadController"),
        "pilotfish/istio-system/a"
    );
    let condition = |shelf: &Shelf| shelf.get(&place()).unwrap()["status"]["conditions"][0].clone();
    let time = "2026-01-01T00:00:00Z";
    assert_eq!(
        condition(&shelf),
        json!({"type": "Healthy", "status": "False", "message": "no answer", "lastProbeTime": time, "lastTransitionTime": time})
    );
    // The same again is not written, and of many only the last.
    let now = now.after(Duration::from_secs(2));
    say(&mut a, false, now);
    assert_eq!(settle(&mut a, &mut shelf, now), [Step::Read]);
    for healthy in [true, false, true] {
        say(&mut a, healthy, now);
    }
    assert_eq!(
        settle(&mut a, &mut shelf, now),
        [],
        "not more than once a second"
    );
    let now = now.after(Duration::from_secs(1));
    assert_eq!(settle(&mut a, &mut shelf, now).len(), 2);
    assert_eq!(condition(&shelf)["status"], "True");
    // Not even if it is said while another answer is waited for.
    let now = now.after(Duration::from_secs(1));
    say(&mut a, false, now);
    let read = a.next(now.instant).unwrap();
    say(&mut a, true, now);
    say(&mut a, false, now);
    let answer = shelf.answer(&read.place, &read.step, None);
    a.answered(&read, answer, now);
    assert_eq!(settle(&mut a, &mut shelf, now), []);
    let now = now.after(Duration::from_secs(1));
    assert_eq!(settle(&mut a, &mut shelf, now).len(), 2);
    assert_eq!(condition(&shelf)["status"], "False");
    // It leaves, and comes back at once: nothing is said about it but when it came.
    a.disconnected(&place(), 1, now);
    a.connected(&place(), 2, applicant(), now.after(SETTLE / 2));
    let now = now.after(SETTLE);
    assert!(matches!(
        settle(&mut a, &mut shelf, now)[..],
        [Step::Read, Step::Claim(_)]
    ));
    // It leaves for good.
    a.disconnected(&place(), 2, now);
    assert_eq!(settle(&mut a, &mut shelf, now), []);
    let now = now.after(SETTLE);
    assert!(matches!(
        settle(&mut a, &mut shelf, now)[..],
        [Step::Read, Step::Release(_)]
    ));
    assert!(annotation(&shelf, "istio.io/connectedAt").is_null());
    let now = now.after(GRACE.saturating_sub(SETTLE * 2));
    assert_eq!(settle(&mut a, &mut shelf, now), []);
    let now = now.after(SETTLE);
    assert!(matches!(
        settle(&mut a, &mut shelf, now)[..],
        [Step::Read, Step::Delete(_)]
    ));
    assert!(shelf.get(&place()).is_none() && a.is_done());
}

#[test]
fn an_entry_of_others_is_never_removed_but_its_health_is_forgotten() {
    let (mut a, mut shelf, now) = (registrar("a"), Shelf::default(), start());
    let entry = json!({"kind": "WorkloadEntry", "metadata": {"name": "one", "namespace": "shop"}, "spec": {"address": "10.0.0.7"},
        "status": {"conditions": [{"type": "Other", "status": "True"}]}});
    shelf.answer(&place(), &Step::Create(entry), None);
    let one = Applicant {
        claim: Claim::Entry("one".to_owned()),
        ..applicant()
    };
    a.connected(&place(), 1, one, now);
    say(&mut a, true, now);
    settle(&mut a, &mut shelf, now);
    let conditions = |shelf: &Shelf| {
        shelf.get(&place()).unwrap()["status"]["conditions"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(conditions(&shelf), 2);
    a.disconnected(&place(), 1, now);
    settle(&mut a, &mut shelf, now.after(SETTLE));
    settle(&mut a, &mut shelf, now.after(GRACE + SETTLE));
    assert_eq!(conditions(&shelf), 1);
    assert!(a.is_done());
}

#[test]
fn what_is_missing_is_said_and_waited_for() {
    let (mut a, mut shelf, now) = (registrar("a"), Shelf::default(), start());
    a.connected(&place(), 1, applicant(), now);
    while let Some(order) = a.next(now.instant) {
        let answer = shelf.answer(&order.place, &order.step, None);
        a.answered(&order, answer, now);
    }
    let found = a.findings();
    assert!(
        found.len() == 1 && found[0].reason.contains("WorkloadGroup/shop/vms"),
        "{found:?}"
    );
    let now = now.after(Duration::from_secs(2));
    a.observe(&snapshot(&[], &[]), false, now);
    assert_eq!(settle(&mut a, &mut shelf, now), []);
    a.observe(&snapshot(&[], &[GROUP]), false, now);
    settle(&mut a, &mut shelf, now);
    assert!(shelf.get(&place()).is_some() && a.findings().is_empty());
}

#[test]
fn failures_are_tried_again_ever_later_and_said() {
    let (mut a, mut shelf, now) = (registrar("a"), Shelf::default(), start());
    a.connected(&place(), 1, applicant(), now);
    let mut at = now;
    for _ in 0..20 {
        let order = a.next(at.instant).unwrap();
        a.answered(&order, Answer::Failed("away".to_owned(), None), at);
        assert_eq!(a.next(at.instant), None);
        let wait = a.deadline().unwrap() - at.instant;
        assert!(wait >= RETRY && wait <= RETRY_AT_MOST, "{wait:?}");
        at = at.after(wait);
    }
    assert_eq!(a.findings()[0].reason, "away");
    settle(&mut a, &mut shelf, at);
    assert!(a.findings().is_empty() && shelf.get(&place()).is_some());
}

#[test]
fn refusals_are_said_for_a_while_and_never_too_many() {
    let (mut a, now) = (registrar("a"), start());
    for number in 0..MOST_REFUSALS * 2 {
        let finding = Diagnostic::error("x", number.to_string(), "y");
        a.refused(finding.clone(), now);
        a.refused(finding, now);
    }
    assert_eq!(a.findings().len(), MOST_REFUSALS);
    a.observe(&Snapshot::default(), true, now.after(REFUSALS_LAST * 2));
    assert!(a.findings().is_empty());
}

const PODS: [&str; 2] = [
    "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: istio-system}, spec: {containers: []}}",
    "{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: istio-system}, spec: {containers: []}}",
];

#[test]
fn what_a_dead_replica_left_behind_is_removed_by_the_leader() {
    let (mut a, mut b, mut shelf, now) =
        (registrar("a"), registrar("b"), Shelf::default(), start());
    a.connected(&place(), 1, applicant(), now);
    settle(&mut a, &mut shelf, now);
    let entry = shelf.get(&place()).unwrap().clone();
    let mut at = now;
    let mut look = |b: &mut Registrar, pods: &[&str], leads: bool, seconds: u64| {
        let until = at.after(Duration::from_secs(seconds));
        while at.instant < until.instant {
            at = at.after(Duration::from_secs(5));
            b.observe(&snapshot(&[&entry], pods), leads, at);
            settle(b, &mut shelf, at);
        }
        shelf.get(&place()).is_some()
    };
    assert!(look(&mut b, &PODS, true, 300), "its pod is there");
    assert!(look(&mut b, &PODS[1..], false, 300), "somebody else leads");
    assert!(
        look(&mut b, &[], true, 300),
        "who cannot see itself can judge nobody"
    );
    assert!(look(&mut b, &PODS[1..], true, 25), "it may come back");
    assert!(look(&mut b, &PODS, true, 25) && look(&mut b, &PODS[1..], true, 25));
    assert!(!look(&mut b, &PODS[1..], true, 20));
    assert!(b.is_done());
}

#[test]
fn a_process_finds_what_the_one_before_it_left() {
    let (mut before, mut shelf, now) = (registrar("a"), Shelf::default(), start());
    before.connected(&place(), 1, applicant(), now);
    settle(&mut before, &mut shelf, now);
    let (mut a, now) = (registrar("a"), now.after(GRACE * 9));
    a.observe(&snapshot(&[shelf.get(&place()).unwrap()], &[]), false, now);
    settle(&mut a, &mut shelf, now.after(SETTLE));
    assert!(!annotation(&shelf, "istio.io/disconnectedAt").is_null());
    settle(&mut a, &mut shelf, now.after(GRACE + SETTLE));
    assert!(shelf.get(&place()).is_none());
}

#[test]
fn who_stops_says_so_and_waits_for_nobody() {
    let (mut a, mut shelf, now) = (registrar("a"), Shelf::default(), start());
    a.connected(&place(), 1, applicant(), now);
    settle(&mut a, &mut shelf, now);
    a.stop(now);
    assert!(!a.is_done());
    a.disconnected(&place(), 1, now);
    settle(&mut a, &mut shelf, now);
    assert!(a.is_done() && !annotation(&shelf, "istio.io/disconnectedAt").is_null());
}

/// What happens next in a history of one proxy and some replicas.
#[derive(Debug, Clone)]
enum Event {
    Wait(u64),
    /// The proxy connects to a replica.
    Connect(usize),
    /// A replica learns that its oldest connection to the proxy is no more.
    Lose(usize),
    /// A replica asks what is due, and is answered at once.
    Settle(usize),
    Send(usize),
    Serve(usize),
    Receive(usize),
    /// The answer is lost, whether the server has done it or not.
    Drop(usize),
    /// A replica is told what the server has.
    Observe(usize),
    /// A replica dies with all its connections; another of another name begins.
    Die(usize),
    Report(usize, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..3_usize;
    prop_oneof![
        5 => (1..6000_u64).prop_map(Event::Wait),
        4 => who.clone().prop_map(Event::Connect),
        4 => who.clone().prop_map(Event::Lose),
        6 => who.clone().prop_map(Event::Settle),
        3 => who.clone().prop_map(Event::Send),
        3 => who.clone().prop_map(Event::Serve),
        3 => who.clone().prop_map(Event::Receive),
        1 => who.clone().prop_map(Event::Drop),
        3 => who.clone().prop_map(Event::Observe),
        1 => who.clone().prop_map(Event::Die),
        1 => (who, any::<bool>()).prop_map(|(who, healthy)| Event::Report(who, healthy)),
    ]
}

/// A replica with connections, and a request under way.
struct Replica {
    registrar: Registrar,
    streams: Vec<u64>,
    /// The last thing its health check said.
    under_way: Option<(Order, Option<Answer>)>,
    skew: Duration,
}

struct World {
    replicas: Vec<Replica>,
    shelf: Shelf,
    now: Now,
    names: u32,
    streams: u64,
    /// What the store last had, for which pods and which version of the entry.
    stored: Option<((u32, String), Arc<Snapshot>)>,
}

impl World {
    fn replica(&mut self, skew: Duration) -> Replica {
        self.names += 1;
        Replica {
            registrar: registrar(&format!("r{}", self.names)),
            streams: Vec::new(),
            under_way: None,
            skew,
        }
    }

    /// The time as a replica sees it.
    fn at(&self, who: usize) -> Now {
        let skew = self.replicas[who].skew;
        Now {
            clock: self.now.clock + skew,
            ..self.now
        }
    }

    fn pods(&self) -> Vec<String> {
        let names = self.replicas.iter().map(|replica| {
            replica
                .registrar
                .rules()
                .instance()
                .rsplit('/')
                .next()
                .unwrap()
                .to_owned()
        });
        names
            .map(|name| format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: istio-system}}, spec: {{containers: []}}}}"))
            .collect()
    }

    fn observe(&mut self, who: usize) {
        let entry = self.shelf.get(&place());
        let version = entry.map(|entry| entry["metadata"]["resourceVersion"].to_string());
        let wanted = (self.names, version.unwrap_or_default());
        if self
            .stored
            .as_ref()
            .is_none_or(|(stored, _)| *stored != wanted)
        {
            let pods = self.pods();
            let mut yaml: Vec<&str> = pods.iter().map(String::as_str).collect();
            yaml.push(GROUP);
            let entries: Vec<&Value> = entry.into_iter().collect();
            self.stored = Some((wanted, snapshot(&entries, &yaml)));
        }
        let snapshot = self
            .stored
            .as_ref()
            .map(|(_, snapshot)| Arc::clone(snapshot))
            .unwrap();
        let now = self.at(who);
        self.replicas[who]
            .registrar
            .observe(&snapshot, who == 0, now);
    }

    fn serve(&mut self, who: usize) -> Result<(), TestCaseError> {
        let now = self.now;
        let Some((order, answer @ None)) = &mut self.replicas[who].under_way else {
            return Ok(());
        };
        let before = self.shelf.get(&place()).cloned();
        let said = self.shelf.answer(&order.place, &order.step, Some(group()));
        // Whoever removes an entry removes one that nobody has come back for.
        if let (Step::Delete(_), Answer::Object(_), Some(before)) = (&order.step, &said, before) {
            let stands = Stands::of_json(&before);
            let away = stands
                .disconnected
                .map(|since| since_then(now.clock + Duration::from_secs(2), since));
            let orphan = stands.is_connected;
            prop_assert!(orphan || away.is_some_and(|away| away >= GRACE), "{before}");
        }
        *answer = Some(said);
        Ok(())
    }

    fn receive(&mut self, who: usize, lose: bool) {
        let now = self.at(who);
        let replica = &mut self.replicas[who];
        let done = matches!(replica.under_way, Some((_, Some(_)))) || lose;
        if let Some((order, answer)) = replica.under_way.take_if(|_| done) {
            let lost = || Answer::Failed("lost".to_owned(), None);
            let answer = answer.filter(|_| !lose).unwrap_or_else(lost);
            replica.registrar.answered(&order, answer, now);
        }
    }

    fn settle(&mut self, who: usize) -> Result<(), TestCaseError> {
        for _ in 0..100 {
            let now = self.at(who);
            let replica = &mut self.replicas[who];
            if replica.under_way.is_none() {
                let Some(order) = replica.registrar.next(now.instant) else {
                    return Ok(());
                };
                replica.under_way = Some((order, None));
            }
            self.serve(who)?;
            self.receive(who, false);
        }
        prop_assert!(false, "it does not come to rest");
        Ok(())
    }

    fn play(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match *event {
            Event::Wait(milliseconds) => {
                self.now = self.now.after(Duration::from_millis(milliseconds));
            }
            Event::Connect(who) => {
                self.streams += 1;
                let (stream, now) = (self.streams, self.at(who));
                self.replicas[who].streams.push(stream);
                self.replicas[who]
                    .registrar
                    .connected(&place(), stream, applicant(), now);
            }
            Event::Lose(who) => {
                let now = self.at(who);
                let replica = &mut self.replicas[who];
                if !replica.streams.is_empty() {
                    let stream = replica.streams.remove(0);
                    replica.registrar.disconnected(&place(), stream, now);
                }
            }
            Event::Settle(who) => self.settle(who)?,
            Event::Send(who) => {
                let now = self.now.instant;
                let replica = &mut self.replicas[who];
                if replica.under_way.is_none() {
                    replica.under_way = replica.registrar.next(now).map(|order| (order, None));
                }
            }
            Event::Serve(who) => self.serve(who)?,
            Event::Receive(who) => self.receive(who, false),
            Event::Drop(who) => self.receive(who, true),
            Event::Observe(who) => self.observe(who),
            Event::Die(who) => {
                let skew = self.replicas[who].skew;
                self.replicas[who] = self.replica(skew);
            }
            Event::Report(who, healthy) => {
                let now = self.at(who);
                let replica = &mut self.replicas[who];
                if let Some(stream) = replica.streams.last() {
                    let report = Report {
                        healthy,
                        message: String::new(),
                        at: now.clock,
                    };
                    replica.registrar.reported(&place(), *stream, report, now);
                }
            }
        }
        Ok(())
    }

    /// Lets everybody do what is due for so long.
    fn calm(&mut self, time: Duration) -> Result<(), TestCaseError> {
        let end = self.now.after(time).instant;
        while self.now.instant < end {
            for who in 0..self.replicas.len() {
                self.observe(who);
                self.settle(who)?;
            }
            self.now = self.now.after(Duration::from_millis(500));
        }
        Ok(())
    }
}

fn world(skews: [u64; 3]) -> World {
    let mut world = World {
        replicas: Vec::new(),
        shelf: Shelf::default(),
        now: start(),
        names: 0,
        streams: 0,
        stored: None,
    };
    for skew in skews {
        let replica = world.replica(Duration::from_millis(skew));
        world.replicas.push(replica);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// However requests are delayed and lost, whoever dies, and if clocks differ: soon after, the entry is there and says that its
    /// proxy is connected, if it is connected to anybody; and is gone after a while if it is not.
    #[test]
    fn what_is_written_becomes_true(skews in [0..1500_u64, 0..1500_u64, 0..1500_u64], events in proptest::collection::vec(event(), 0..200)) {
        let mut world = world(skews);
        for event in &events {
            world.play(event)?;
        }
        world.calm(Duration::from_secs(8))?;
        let here = |world: &World| world.replicas.iter().any(|replica| !replica.streams.is_empty());
        if here(&world) {
            for _ in 0..3 {
                let entry = world.shelf.get(&place());
                let stands = entry.map(Stands::of_json);
                prop_assert!(stands.as_ref().is_some_and(|stands| stands.is_connected && stands.disconnected.is_none()), "{entry:?}");
                world.calm(GRACE)?;
            }
        }
        for who in 0..world.replicas.len() {
            while !world.replicas[who].streams.is_empty() {
                world.play(&Event::Lose(who))?;
            }
        }
        world.calm(Duration::from_mins(2))?;
        prop_assert!(world.shelf.get(&place()).is_none(), "{:?}", world.shelf.get(&place()));
        prop_assert!(world.replicas.iter().all(|replica| replica.registrar.is_done()));
    }

    /// Who moves from replica to replica within the grace period never misses its entry, if requests are answered. Who stays for
    /// no time at all has none yet.
    #[test]
    fn moving_never_loses_an_entry(moves in proptest::collection::vec((0..3_usize, 0..9000_u64, 1..9000_u64), 1..20)) {
        let mut world = world([0, 0, 0]);
        let mut last = None;
        for (who, away, stay) in moves {
            if let Some(before) = last.replace(who) {
                world.play(&Event::Lose(before))?;
                world.calm(Duration::from_millis(away))?;
                prop_assert!(world.shelf.get(&place()).is_some());
            }
            world.play(&Event::Connect(who))?;
            world.calm(Duration::from_millis(stay))?;
            prop_assert!(world.shelf.get(&place()).is_some());
        }
    }
}
