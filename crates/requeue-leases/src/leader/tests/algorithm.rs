//! Tests of the election's algorithm, step by step.

use k8s_openapi::jiff::Timestamp;
use requeue::Time;
use requeue::wait::JitterSource;
use serde_json::{Value, json};

use super::{config, seconds};
use crate::leader::LeadershipLost;
use crate::leader::election::{Election, Step};
use crate::leader::lost::End;
use crate::lease::ASSIGNMENT;
use crate::requests::{Answer, Call};
use crate::testing::ElectionServer as Server;

/// A candidate and a server, which the test drives. The lease duration is 15 s, the renew deadline 10 s and the retry
/// period 2 s.
struct Driven {
    election: Election,
    server: Server,
    now: Time,
}

fn at(time: f64) -> Time {
    Time::ZERO + seconds(time)
}

fn wall() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn held_by_another() -> Value {
    json!({
        "metadata": { "name": "web", "labels": { "app": "web" }, "shiny": "new" },
        "spec": {
            "holderIdentity": "another", "leaseDurationSeconds": 30, "leaseTransitions": 7,
            "renewTime": "2023-11-14T22:13:20.000000Z", "colour": "blue",
        },
    })
}

impl Driven {
    fn new() -> Self {
        Self::seeded(1)
    }

    fn seeded(seed: u64) -> Self {
        let jitter = JitterSource::new(seed);
        let election = Election::new(config(15.0, 10.0, 2.0), "me".into(), jitter, Time::ZERO);
        Self { election, server: Server::default(), now: Time::ZERO }
    }

    fn leading() -> Self {
        let mut it = Self::new();
        it.answers();
        it.answers();
        assert!(it.election.fencing_token().is_some());
        it
    }

    fn poll(&mut self) -> Step {
        self.election.poll(self.now, wall())
    }

    /// Returns the call that the candidate makes now. Fails if no call is due.
    fn call(&mut self) -> Call {
        match self.poll() {
            Step::Call { call, .. } => call,
            other => panic!("no call at {:?} but {other:?}", self.now),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.election.handle_answer(self.now, answer);
    }

    /// Makes the call that is due now. The server answers without a delay.
    fn answers(&mut self) -> Call {
        let call = self.call();
        let answer = self.server.answer(call.clone());
        self.answer(answer);
        call
    }

    fn waits(&mut self) -> Time {
        match self.poll() {
            Step::Wait(until) => until,
            other => panic!("no wait at {:?} but {other:?}", self.now),
        }
    }

    /// Lets time pass until `end`, and asserts that the candidate only reads the Lease.
    fn follows_until(&mut self, end: Time) {
        while self.now < end {
            assert!(matches!(self.answers(), Call::Read(_)), "took it at {:?}", self.now);
            self.now = self.waits();
        }
    }

    /// Lets the candidate create the Lease, which does not exist yet, so that it leads.
    fn creates(&mut self) {
        assert!(matches!(self.answers(), Call::Read(_)));
        assert!(matches!(self.answers(), Call::Create(_)));
        assert!(self.election.fencing_token().is_some());
    }

    fn spec(&self) -> &Value {
        &self.server.lease.as_ref().unwrap()["spec"]
    }
}

#[test]
fn a_lease_that_is_not_there_is_created_and_one_that_is_released_is_taken() {
    let mut it = Driven::new();
    it.creates();
    assert_eq!(it.election.fencing_token().unwrap().to_string(), "uid-1/0");
    assert_eq!(it.spec()["leaseDurationSeconds"], 15);

    it.now = at(1.0);
    it.election.release();
    it.answers();
    assert!(matches!(it.poll(), Step::Ended(End::Released)));
    assert_eq!(it.election.holder(), None);
    assert_eq!(it.spec()["holderIdentity"], "");
    assert_eq!(it.spec()["leaseDurationSeconds"], 1);

    let mut next = Driven { server: it.server, ..Driven::new() };
    assert!(matches!(next.answers(), Call::Read(_)));
    assert!(matches!(next.answers(), Call::Replace(_)));
    assert_eq!(next.election.fencing_token().unwrap().to_string(), "uid-1/1");
}

#[test]
fn a_lease_is_waited_out_for_the_duration_written_in_it_and_keeps_unknown_fields() {
    let mut it = Driven::new();
    it.server.call(Call::Create(held_by_another())).unwrap();
    it.follows_until(at(30.0));

    assert!(matches!(it.answers(), Call::Read(_)));
    assert!(matches!(it.answers(), Call::Replace(_)));
    assert_eq!(it.election.fencing_token().unwrap().to_string(), "uid-1/8");
    let metadata = &it.server.lease.as_ref().unwrap()["metadata"];
    assert_eq!((&metadata["labels"]["app"], &metadata["shiny"]), (&json!("web"), &json!("new")));
    assert_eq!(it.spec()["colour"], "blue");
}

#[test]
fn a_change_of_a_label_is_no_sign_of_life() {
    let mut it = Driven::new();
    it.server.call(Call::Create(held_by_another())).unwrap();
    it.follows_until(at(20.0));
    it.server.label(1);
    it.follows_until(at(30.0));
    it.answers();
    it.answers();
    assert!(it.election.fencing_token().is_some());
}

#[test]
fn a_lease_that_vanishes_is_waited_out_by_those_who_have_seen_it() {
    let mut it = Driven::new();
    it.server.call(Call::Create(held_by_another())).unwrap();
    it.answers();
    it.now = it.waits();
    it.server.lease = None;
    it.follows_until(at(30.0));
    assert!(matches!(it.answers(), Call::Read(_)));
    assert!(matches!(it.answers(), Call::Create(_)));
}

#[test]
fn an_answer_after_the_renew_deadline_does_not_make_a_leader() {
    let mut it = Driven::new();
    it.answers();
    let call = it.call();
    let answer = it.server.answer(call);
    it.now = at(10.0);
    it.answer(answer);
    assert!(it.election.fencing_token().is_none());

    // The candidate finds its own name in the Lease, and takes the Lease over without a wait. The new term has a new
    // number.
    it.answers();
    it.answers();
    assert_eq!(it.election.fencing_token().unwrap().to_string(), "uid-1/1");
}

#[test]
fn a_term_counts_from_when_the_lease_was_asked_for() {
    let mut it = Driven::new();
    it.answers();
    it.now = at(1.0);
    let call = it.call();
    let answer = it.server.answer(call);
    it.now = at(5.0);
    it.answer(answer);
    assert_eq!(it.election.right_times().unwrap(), (at(1.0), at(11.0)));
}

#[test]
fn a_leader_steps_down_after_the_send_time_of_its_last_good_renewal() {
    let mut it = Driven::leading();
    it.now = at(2.0);
    let call = it.call();
    let answer = it.server.answer(call);
    it.now = at(6.0);
    it.answer(answer);
    let (renewed, until) = it.election.right_times().unwrap();
    assert_eq!((renewed, until), (at(2.0), at(12.0)));

    // From now on, all requests fail. No request lasts longer than the leader's right.
    it.now = at(11.5);
    let Step::Call { until, .. } = it.poll() else { panic!("no renewal") };
    assert_eq!(until, at(12.0));
    it.now = at(12.0);
    it.answer(Answer::Failed);
    let Step::Ended(End::Lost(lost)) = it.poll() else { panic!("leads on") };
    assert_eq!(lost, LeadershipLost::RenewDeadline(seconds(10.0)));
}

#[test]
fn a_good_answer_after_the_deadline_does_not_bring_a_term_back() {
    let mut it = Driven::leading();
    it.now = at(9.9);
    let call = it.call();
    let answer = it.server.answer(call);
    it.now = at(10.0);
    it.answer(answer);
    assert!(matches!(it.poll(), Step::Ended(End::Lost(_))));
}

#[test]
fn a_conflict_is_read_at_once_and_the_next_one_in_its_time() {
    let mut it = Driven::leading();
    it.now = at(2.0);
    it.server.label(1);
    assert!(matches!(it.answers(), Call::Replace(_)));
    assert!(matches!(it.answers(), Call::Read(_)));
    it.server.label(2);
    assert!(matches!(it.answers(), Call::Replace(_)));
    it.now = it.waits();
    assert_eq!(it.now, at(4.0));
    assert!(matches!(it.answers(), Call::Read(_)));
    assert!(matches!(it.answers(), Call::Replace(_)));
    assert_eq!(it.election.right_times().unwrap().0, at(4.0));
}

#[test]
fn a_lease_that_another_holds_or_that_is_gone_is_lost() {
    for (change, expected) in [
        (None, LeadershipLost::Deleted),
        (Some("another"), LeadershipLost::Taken("another".into())),
    ] {
        let mut it = Driven::leading();
        it.server.lease = it.server.lease.take().filter(|_| change.is_some());
        if let (Some(lease), Some(holder)) = (&mut it.server.lease, change) {
            lease["spec"]["holderIdentity"] = json!(holder);
        }
        it.server.label(1);
        it.now = at(2.0);
        it.answers();
        it.answers();
        let Step::Ended(End::Lost(lost)) = it.poll() else { panic!("leads on") };
        assert_eq!(lost, expected);
    }
}

#[test]
fn a_release_whose_answer_was_lost_is_known_for_what_it_was() {
    let mut it = Driven::leading();
    it.election.release();
    let call = it.call();
    it.server.answer(call);
    it.answer(Answer::Failed);
    it.now = it.waits();
    it.answers();
    it.answers();
    assert!(matches!(it.poll(), Step::Ended(End::Released)));
}

#[test]
fn a_release_waits_for_the_renewal_that_is_under_way() {
    let mut it = Driven::leading();
    it.now = at(2.0);
    let call = it.call();
    it.election.release();
    let answer = it.server.answer(call);
    it.answer(answer);
    it.answers();
    assert!(matches!(it.poll(), Step::Ended(End::Released)));
}

#[test]
fn the_time_of_renewal_goes_up_though_the_clock_was_set_back() {
    let mut it = Driven::leading();
    let first = it.spec()["renewTime"].clone();
    it.now = at(2.0);
    it.answers();
    let second = it.spec()["renewTime"].clone();
    assert!(second.as_str() > first.as_str(), "{first} {second}");
}

#[test]
fn a_lease_without_a_next_number_is_not_taken() {
    let mut it = Driven::new();
    let mut lease = held_by_another();
    lease["spec"]["leaseTransitions"] = json!(i32::MAX);
    it.server.call(Call::Create(lease)).unwrap();
    it.follows_until(at(100.0));
    it.server.lease = None;
    it.creates();
}

#[test]
fn the_lease_of_a_shard_group_is_not_taken() {
    let mut it = Driven::new();
    let mut lease = held_by_another();
    lease["spec"]["holderIdentity"] = json!("");
    lease["metadata"]["annotations"] = json!({ ASSIGNMENT: "-:0" });
    it.server.call(Call::Create(lease)).unwrap();
    it.follows_until(at(100.0));
    it.server.lease = None;
    it.creates();
}

#[test]
fn a_leader_that_is_not_heard_of_is_followed_after_a_lease_and_4_4_retry_periods_at_most() {
    let mut longest = seconds(0.0);
    for seed in 0..5000 {
        let mut it = Driven::seeded(seed);
        let mut lease = held_by_another();
        lease["metadata"]["uid"] = json!("uid");
        lease["metadata"]["resourceVersion"] = json!("0");
        it.server.lease = Some(lease.clone());
        it.answers();
        // The leader renews for the last time, just after the candidate has read the Lease.
        lease["spec"]["renewTime"] = json!("2023-11-14T22:13:21.000000Z");
        it.server.lease = Some(lease);
        let renewed = it.now;
        while it.election.fencing_token().is_none() {
            match it.poll() {
                Step::Call { call, .. } => {
                    let answer = it.server.answer(call);
                    it.answer(answer);
                }
                Step::Wait(until) => it.now = until,
                Step::Ended(end) => panic!("{end:?}"),
            }
        }
        let took = it.now.since(renewed);
        assert!((seconds(30.0)..=seconds(38.8)).contains(&took), "{took:?} with the seed {seed}");
        longest = longest.max(took);
    }
    assert!(longest > seconds(38.0), "{longest:?}");
}
