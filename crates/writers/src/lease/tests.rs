//! One holder at a time, whatever happens to requests and to those who make them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const CLOCK: &str = "2026-01-01T00:00:00.000000Z";

fn candidate(identity: &str) -> Candidate {
    let name = LeaseName::of("istio-system", "");
    Candidate::new(name, identity.to_owned(), Timing::default())
}

/// An API server with one Lease.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
}

impl Server {
    fn answer(&mut self, step: &Step) -> Answer {
        match (step, &self.lease) {
            (Step::Read, Some(lease)) => Answer::Lease(lease.clone()),
            (Step::Read | Step::Replace(_), None) => Answer::Absent,
            (Step::Create(_), Some(_)) => Answer::Conflict,
            (Step::Create(new), None) => self.store(new),
            (Step::Replace(new), Some(old)) => {
                if new["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"] {
                    self.store(new)
                } else {
                    Answer::Conflict
                }
            }
        }
    }

    fn store(&mut self, lease: &Value) -> Answer {
        self.version += 1;
        let mut lease = lease.clone();
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        Answer::Lease(lease)
    }
}

fn go(candidate: &mut Candidate, server: &mut Server, now: Instant) {
    let step = candidate.step(now, CLOCK);
    let answer = server.answer(&step);
    candidate.answered(&step, &answer, now, now, 0.0);
}

/// Takes all steps that are due.
fn settle(candidate: &mut Candidate, server: &mut Server, now: Instant) {
    for _ in 0..5 {
        if candidate.due().is_none_or(|due| due <= now) {
            go(candidate, server, now);
        }
    }
}

#[test]
fn the_first_takes_it_and_the_second_waits_until_nothing_changes_any_more() {
    let (mut a, mut b, mut server) = (candidate("a"), candidate("b"), Server::default());
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    settle(&mut a, &mut server, start);
    settle(&mut b, &mut server, start);
    assert!(a.held_until(start).is_some() && b.held_until(start).is_none());
    assert_eq!(b.holder(), "a");
    // Renewed for a minute: nothing moves.
    for second in 1..60 {
        settle(&mut a, &mut server, after(second));
        settle(&mut b, &mut server, after(second));
        assert!(a.held_until(after(second)).is_some());
        assert!(b.held_until(after(second)).is_none());
    }
    // The first is gone, the second takes over, not before the time and soon after.
    let taken = (60..90).find(|second| {
        settle(&mut b, &mut server, after(*second));
        b.held_until(after(*second)).is_some()
    });
    let taken = taken.unwrap();
    assert!((73..=77).contains(&taken), "{taken}");
    assert!(
        a.held_until(after(taken)).is_none(),
        "the first has stopped by itself"
    );
    assert_eq!(
        server.lease.as_ref().unwrap()["spec"]["leaseTransitions"],
        1
    );
    // The first comes back and sees that it is not its own any more.
    settle(&mut a, &mut server, after(taken + 1));
    assert_eq!((a.holder(), a.held_until(after(taken + 1))), ("b", None));
}

#[test]
fn what_is_given_back_is_taken_at_once() {
    let (mut a, mut b, mut server) = (candidate("a"), candidate("b"), Server::default());
    let now = Instant::now();
    settle(&mut a, &mut server, now);
    settle(&mut b, &mut server, now);
    let step = a.give_up(CLOCK).unwrap();
    assert!(matches!(server.answer(&step), Answer::Lease(_)));
    assert!(a.held_until(now).is_none());
    assert_eq!(b.give_up(CLOCK), None, "what is not ours is not given back");
    let later = now + Timing::default().retry();
    settle(&mut b, &mut server, later);
    assert!(b.held_until(later).is_some());
}

#[test]
fn without_answers_it_ends() {
    let (mut a, mut server) = (candidate("a"), Server::default());
    let now = Instant::now();
    settle(&mut a, &mut server, now);
    let step = a.step(now, CLOCK);
    a.answered(&step, &Answer::Failed, now, now, 0.0);
    assert!(a.held_until(now + Duration::from_secs(9)).is_some());
    assert!(a.held_until(now + Duration::from_secs(10)).is_none());
    // A request that took long counts from when it was sent.
    let sent = now + Duration::from_secs(20);
    let answered = sent + Duration::from_secs(9);
    let read = a.step(sent, CLOCK);
    let answer = server.answer(&read);
    a.answered(&read, &answer, sent, sent, 0.0);
    let step = a.step(sent, CLOCK);
    let answer = server.answer(&step);
    a.answered(&step, &answer, sent, answered, 0.0);
    assert!(a.held_until(answered).is_some());
    assert!(a.held_until(answered + Duration::from_secs(1)).is_none());
}

#[test]
fn a_lease_without_namespace_is_tried_again_later() {
    let mut a = candidate("a");
    let now = Instant::now();
    a.answered(&Step::Read, &Answer::Absent, now, now, 0.0);
    let step = a.step(now, CLOCK);
    assert!(matches!(step, Step::Create(_)));
    a.answered(&step, &Answer::Absent, now, now, 0.0);
    assert!(a.due().is_some_and(|due| due > now) && a.held_until(now).is_none());
}

#[test]
fn nonsense_in_a_lease_is_no_trouble() {
    let mut a = candidate("a");
    let now = Instant::now();
    let odd = json!({"metadata": [], "spec": {"holderIdentity": 7, "leaseDurationSeconds": -1, "leaseTransitions": i64::MAX}});
    a.answered(&Step::Read, &Answer::Lease(odd), now, now, 0.0);
    assert!(matches!(a.step(now, CLOCK), Step::Replace(_)));
}

/// What happens next in a history.
#[derive(Debug, Clone)]
enum Event {
    /// Time passes.
    Wait(u64),
    /// A candidate does what is due, and is answered at once.
    Go(usize),
    /// A candidate sends what is due.
    Send(usize),
    /// The server works on what a candidate has sent.
    Serve(usize),
    /// The answer arrives.
    Receive(usize),
    /// The answer is lost.
    Lose(usize),
    /// A candidate dies, and another begins in its place.
    Die(usize),
    /// A candidate stops in good order.
    Stop(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..3_usize;
    prop_oneof![
        6 => (1..9000_u64).prop_map(Event::Wait),
        9 => who.clone().prop_map(Event::Go),
        2 => who.clone().prop_map(Event::Send),
        2 => who.clone().prop_map(Event::Serve),
        2 => who.clone().prop_map(Event::Receive),
        1 => who.clone().prop_map(Event::Lose),
        1 => who.clone().prop_map(Event::Die),
        1 => who.prop_map(Event::Stop),
    ]
}

proptest! {
    /// However requests are delayed, reordered and lost, and whoever dies: there is never more than one holder.
    #[test]
    fn never_two(events in proptest::collection::vec(event(), 0..400)) {
        let mut server = Server::default();
        let mut now = Instant::now();
        let mut names = 3;
        let mut all: Vec<Candidate> = (0..3).map(|n| candidate(&n.to_string())).collect();
        // Requests under way: step, when it was sent, and the answer once there is one. The dead may have some too.
        let mut under_way: BTreeMap<usize, (Step, Instant, Option<Answer>)> = BTreeMap::new();
        for event in events {
            match event {
                Event::Wait(milliseconds) => now += Duration::from_millis(milliseconds),
                Event::Go(who) => {
                    if !under_way.contains_key(&who) {
                        settle(&mut all[who], &mut server, now);
                    }
                }
                Event::Send(who) => {
                    if !under_way.contains_key(&who) && all[who].due().is_none_or(|due| due <= now) {
                        let step = all[who].step(now, CLOCK);
                        under_way.insert(who, (step, now, None));
                    }
                }
                Event::Serve(who) => {
                    if let Some((step, _, answer @ None)) = under_way.get_mut(&who) {
                        *answer = Some(server.answer(step));
                    }
                }
                Event::Receive(who) => {
                    if let Some((_, _, Some(_))) = under_way.get(&who)
                        && let Some((step, sent, Some(answer))) = under_way.remove(&who)
                    {
                        all[who].answered(&step, &answer, sent, now, 0.0);
                    }
                }
                Event::Lose(who) => {
                    if let Some((step, sent, _)) = under_way.remove(&who) {
                        all[who].answered(&step, &Answer::Failed, sent, now, 0.0);
                    }
                }
                Event::Die(who) => {
                    under_way.remove(&who);
                    names += 1;
                    all[who] = candidate(&names.to_string());
                }
                Event::Stop(who) => {
                    under_way.remove(&who);
                    if let Some(step) = all[who].give_up(CLOCK) {
                        server.answer(&step);
                    }
                    names += 1;
                    all[who] = candidate(&names.to_string());
                }
            }
            let holders = all.iter().filter(|candidate| candidate.held_until(now).is_some());
            prop_assert!(holders.count() <= 1);
        }
    }
}
