//! Tests of each rule of the protocol, step by step.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use requeue::Time;
use requeue::wait::JitterSource;
use serde_json::{Value, json};

use crate::lease::Lease;
use crate::membership::assignment::{GroupLease, JOINED, LABEL, Layout, STOPPING};
use crate::membership::group::Group;
use crate::membership::protocol::{Change, End, Gain, Settings, Source, Step, Watched};
use crate::requests::{Answer, Call};
use crate::testing::{Server, lease};

const LEASE: f64 = 15.0;

fn at(seconds: f64) -> Time {
    Time::ZERO + Duration::from_secs_f64(seconds)
}

fn layout() -> Layout {
    Layout { count: 4, by: "object.metadata.uid".to_owned(), objects: String::new() }
}

fn wall() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

/// The replica `me` of the group `web`, and a server, which the test drives.
struct Driven {
    group: Group,
    server: Server,
    now: Time,
    right: Option<Time>,
}

impl Driven {
    fn new(server: Server) -> Self {
        let settings = Settings {
            name: "web".to_owned(),
            member: "me".into(),
            layout: layout(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            request_limit: Duration::from_secs(5),
            handover_limit: Duration::from_secs(30),
        };
        let group = Group::new(settings, JitterSource::new(1), Time::ZERO);
        Self { group, server, now: Time::ZERO, right: None }
    }

    /// Returns a replica that is the only member, and holds all shards.
    fn alone() -> Self {
        let mut it = Self::new(Server::default());
        it.list();
        it.join();
        assert_eq!(it.run(), ["web"]);
        assert_eq!(it.gained(), [0, 1, 2, 3]);
        it
    }

    /// Returns a replica whose next call writes the handover of half of the shards to `other`.
    fn handing_over() -> Self {
        let mut it = Self::alone();
        it.renews("other", 0);
        it.passes(2.0);
        it.renews("other", 2);
        it.watch();
        let _ = it.poll();
        let released = it.released();
        it.group.mark_drained(it.now, released);
        it
    }

    /// Returns a replica that joins a group in which `other` holds all shards.
    fn beside(other: &str) -> Self {
        let mut server = Server::default();
        let json = GroupLease::new_object("web", &layout(), 15);
        let Answer::Lease(group) = server.call(Call::Create(json)) else { panic!("no group") };
        let uid = group.uid().to_owned();
        renew(&mut server, other, &uid, 0);
        let group = GroupLease::from_lease(group).unwrap();
        let mut assignment = group.assignment.clone();
        (0..4).for_each(|shard| assignment.set_holder(shard, Some(other.into())));
        server.call(Call::Replace(group.with_assignment(&assignment, "web-other", 15)));
        server.events.clear();
        let mut it = Self::new(server);
        it.list();
        it.join();
        it
    }

    fn list(&mut self) {
        self.group.handle_event(self.now, Watched::Init);
        self.server.events.clear();
        for event in self.server.list() {
            self.group.handle_event(self.now, event);
        }
    }

    /// Passes the new events of the server to the replica.
    fn watch(&mut self) {
        for event in std::mem::take(&mut self.server.events) {
            self.group.handle_event(self.now, event);
        }
    }

    fn poll(&mut self) -> Step {
        self.group.poll(self.now, self.right)
    }

    /// Makes the calls before the join, and then lets the replica join.
    fn join(&mut self) {
        let group = loop {
            match self.poll() {
                Step::Join { group } => break group,
                Step::Call(call) => {
                    let answer = self.server.call(call);
                    self.group.handle_answer(self.now, answer);
                    self.watch();
                }
                other => panic!("no step to join but {other:?}"),
            }
        };
        renew(&mut self.server, "me", &group, 0);
        self.watch();
        self.right = Some(Time::NEVER);
    }

    fn call(&mut self) -> Call {
        match self.poll() {
            Step::Call(call) => call,
            other => panic!("no call at {:?} but {other:?}", self.now),
        }
    }

    /// Makes all calls that are due now. The server answers each call without a delay, and the
    /// watch shows each change before the next call. Returns the names of the objects in the calls.
    fn run(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Step::Call(call) = self.poll() {
            names.push(name(&call));
            let answer = self.server.call(call);
            self.group.handle_answer(self.now, answer);
            self.watch();
        }
        names
    }

    fn changes(&mut self) -> Vec<Change> {
        std::iter::from_fn(|| self.group.next_change()).collect()
    }

    fn gained(&mut self) -> Vec<usize> {
        let changes = self.changes();
        let [Change::Gained(gained)] = &changes[..] else { panic!("{changes:?}") };
        gained.iter().map(|gain| gain.shard).collect()
    }

    fn released(&mut self) -> Vec<usize> {
        let changes = self.changes();
        let [Change::Release(shards)] = &changes[..] else { panic!("{changes:?}") };
        shards.clone()
    }

    /// Creates the Lease of another member, or renews it.
    fn renews(&mut self, member: &str, time: i64) {
        let uid = self.group.group().expect("the group is known").uid().to_owned();
        renew(&mut self.server, member, &uid, time);
    }

    /// Returns the holder and the number of each shard in the server's group object.
    fn stored(&self) -> Vec<(Option<Arc<str>>, i32)> {
        let group = GroupLease::from_lease(lease(&self.server.leases["web"])).unwrap();
        let slots = group.assignment.slots().iter();
        slots.map(|slot| (slot.holder.clone(), slot.number)).collect()
    }

    fn acting(&self) -> Vec<usize> {
        (0..4).filter(|shard| self.group.acting_number(*shard).is_some()).collect()
    }

    /// Sets the time to `until`, and renews this replica's own Lease.
    fn passes(&mut self, until: f64) {
        self.now = at(until);
        self.renews("me", until as i64);
        self.watch();
    }
}

fn name(call: &Call) -> String {
    match call {
        Call::Create(json) | Call::Replace(json) => {
            json["metadata"]["name"].as_str().unwrap().to_owned()
        }
        Call::Read(name) | Call::Delete { name, .. } => name.clone(),
    }
}

/// Creates a member Lease at the server, or renews it.
fn renew(server: &mut Server, member: &str, group: &str, time: i64) {
    let metadata = json!({
        "name": member, "labels": { LABEL: "web" }, "annotations": { JOINED: group },
    });
    let stamp = Timestamp::from_second(1_700_000_000 + time).unwrap();
    match server.leases.get(member).map(lease) {
        None => server.call(Call::Create(Lease::new_object(&metadata, member, 15, stamp))),
        Some(lease) => server.call(Call::Replace(lease.as_renewed(15, stamp))),
    };
}

fn change(server: &mut Server, name: &str, change: impl FnOnce(&mut Value)) {
    let mut json = server.leases[name].clone();
    change(&mut json);
    let answer = server.call(Call::Replace(json));
    assert!(matches!(answer, Answer::Lease(_)));
}

#[test]
fn the_first_member_creates_the_group_and_takes_all_shards() {
    let it = Driven::alone();
    assert_eq!(it.stored(), vec![(Some("me".into()), 1); 4]);
    assert_eq!(it.acting(), [0, 1, 2, 3]);
}

#[test]
fn no_shard_is_acted_on_before_the_write_is_confirmed() {
    let mut it = Driven::new(Server::default());
    it.list();
    it.join();
    let call = it.call();
    assert_eq!(it.acting(), [0; 0]);
    // The server executes the write, but its response is lost. The watch shows the write later.
    it.server.call(call);
    it.now = at(6.0);
    it.group.handle_answer(it.now, Answer::Failed);
    assert_eq!(it.acting(), [0; 0]);
    it.watch();
    assert_eq!(it.gained(), [0, 1, 2, 3]);
}

#[test]
fn a_confirmation_that_is_requested_during_a_read_causes_another_read() {
    let mut it = Driven::alone();
    it.now = at(1.0);
    it.group.request_read();
    let call = it.call();
    it.now = at(2.0);
    it.group.request_read();
    let answer = it.server.call(call);
    it.group.handle_answer(it.now, answer);
    assert_eq!(it.group.confirmed_at(), Some(at(1.0)));
    assert_eq!(it.run(), ["web"]);
    assert_eq!(it.group.confirmed_at(), Some(at(2.0)));
}

#[test]
fn a_confirmation_does_not_end_the_pause_after_a_failure() {
    let mut it = Driven::alone();
    it.group.request_read();
    let _ = it.call();
    it.group.handle_answer(it.now, Answer::Failed);
    it.group.request_read();
    let Step::Wait(until) = it.poll() else { panic!("no pause") };
    assert!(until > it.now);
    it.now = until;
    assert_eq!(it.run(), ["web"]);
}

#[test]
fn a_replica_that_is_stopped_while_it_joins_takes_no_shards_and_leaves() {
    let mut it = Driven::new(Server::default());
    it.list();
    let group = loop {
        match it.poll() {
            Step::Join { group } => break group,
            Step::Call(call) => {
                let answer = it.server.call(call);
                it.group.handle_answer(it.now, answer);
            }
            other => panic!("{other:?}"),
        }
    };
    it.group.stop();
    assert!(matches!(it.poll(), Step::Wait(_)), "the Lease may be created");
    renew(&mut it.server, "me", &group, 0);
    it.right = Some(Time::NEVER);
    it.watch();
    assert_eq!(it.run(), ["me"], "the announcement");
    assert_eq!(it.stored(), vec![(None, 0); 4]);
    assert!(matches!(it.poll(), Step::Ended(End::Left)));
}

#[test]
fn a_shard_is_handed_over_when_it_is_drained_and_not_before() {
    let mut it = Driven::alone();
    it.renews("other", 0);
    it.watch();
    assert!(matches!(it.poll(), Step::Wait(_)));
    let released = it.released();
    assert_eq!(released.len(), 2);
    assert_eq!(it.acting(), [0, 1, 2, 3], "their runs are in flight");

    it.group.mark_drained(it.now, released.clone());
    assert_eq!(it.acting().len(), 2);
    assert_eq!(it.run(), ["web"], "one write for both");
    for (shard, (holder, number)) in it.stored().into_iter().enumerate() {
        let expected = if released.contains(&shard) { ("other", 2) } else { ("me", 1) };
        assert_eq!((holder.as_deref(), number), (Some(expected.0), expected.1));
    }
    let changes = it.changes();
    assert!(matches!(&changes[..], [Change::Moved(moved)] if moved.len() == 2), "{changes:?}");
}

#[test]
fn a_handover_comes_before_a_read_and_confirms_as_one() {
    let mut it = Driven::handing_over();
    it.group.request_read();
    let call = it.call();
    assert!(matches!(call, Call::Replace(_)), "{call:?}");
    let answer = it.server.call(call);
    it.group.handle_answer(it.now, answer);
    assert_eq!(it.group.confirmed_at(), Some(it.now));
    assert!(matches!(it.poll(), Step::Wait(_)), "no read");
}

#[test]
fn a_write_that_failed_does_not_keep_a_reader_waiting() {
    let mut it = Driven::handing_over();
    let _ = it.call();
    it.group.request_read();
    it.group.handle_answer(it.now, Answer::Failed);
    it.now = at(3.0);
    let call = it.call();
    assert!(matches!(call, Call::Read(_)), "{call:?}");

    // A further request to read does not prevent the next attempt to write.
    it.group.request_read();
    let answer = it.server.call(call);
    it.group.handle_answer(it.now, answer);
    let call = it.call();
    assert!(matches!(call, Call::Replace(_)), "{call:?}");
}

#[test]
fn readers_do_not_delay_a_takeover() {
    let mut it = Driven::beside("other");
    it.passes(LEASE);
    it.group.request_read();
    for expected in ["other", "web"] {
        let call = it.call();
        assert_eq!(name(&call), expected);
        it.group.request_read();
        let answer = it.server.call(call);
        it.group.handle_answer(it.now, answer);
    }
    assert_eq!(it.stored(), vec![(Some("me".into()), 2); 4]);
}

#[test]
fn a_member_receives_shards_when_it_has_renewed_its_lease() {
    let mut it = Driven::alone();
    it.passes(2.0);
    it.renews("other", 2);
    it.watch();
    assert_eq!(it.run(), [""; 0]);
    assert_eq!(it.changes(), [], "it may be in a crash loop");
    it.renews("other", 4);
    it.watch();
    let _ = it.poll();
    assert_eq!(it.released().len(), 2);
}

#[test]
fn a_member_that_has_not_renewed_its_lease_takes_no_shards_beside_one_that_has() {
    let mut it = Driven::beside("other");
    it.renews("third", 0);
    it.renews("third", 1);
    change(&mut it.server, "other", |json| json["spec"]["holderIdentity"] = json!(""));
    it.watch();
    assert_eq!(it.run(), ["web"]);
    assert_eq!(it.changes(), []);
    assert_eq!(it.stored(), vec![(Some("third".into()), 2); 4]);
    it.passes(2.0);
    assert_eq!(it.run(), ["other"], "the deletion; the third member hands its surplus over");
}

#[test]
fn a_member_that_knows_of_a_death_also_gives_shards_to_one_that_joined_after_it() {
    let mut it = Driven::beside("other");
    it.passes(7.0);
    it.renews("late", 7);
    it.renews("late", 9);
    it.passes(LEASE);
    assert_eq!(it.run(), ["other", "web"]);
    assert_eq!(it.gained().len(), 2);
    let late = it.stored().into_iter().filter(|slot| *slot == (Some("late".into()), 2));
    assert_eq!(late.count(), 2);
}

#[test]
fn a_member_that_joined_after_a_death_knows_that_its_shards_are_those_of_a_dead_member() {
    for (writer, is_dead) in [("third", true), ("other", false)] {
        let mut it = Driven::beside("other");
        let group = GroupLease::from_lease(lease(&it.server.leases["web"])).unwrap();
        let mut assignment = group.assignment.clone();
        (0..4).for_each(|shard| assignment.set_holder(shard, Some("me".into())));
        it.server.call(Call::Replace(group.with_assignment(&assignment, writer, 15)));
        let _ = it.poll();
        it.watch();
        let changes = it.changes();
        let [Change::Gained(gained)] = &changes[..] else { panic!("{changes:?}") };
        assert!(gained.iter().all(|gain| matches!(gain.from, Source::Dead(..)) == is_dead));
    }
}

#[test]
fn a_report_for_a_shard_that_is_not_released_is_ignored() {
    let mut it = Driven::alone();
    it.group.mark_drained(it.now, [0, 3, 99]);
    assert_eq!(it.run(), [""; 0]);
    assert_eq!(it.acting(), [0, 1, 2, 3]);
}

#[test]
fn runs_that_exceed_the_limit_are_cancelled_and_waited_for() {
    let mut it = Driven::alone();
    it.renews("other", 0);
    it.watch();
    let _ = it.poll();
    let released = it.released();
    for time in [5, 10, 15, 20, 25] {
        it.passes(time as f64);
        it.renews("other", time);
        it.watch();
        assert_eq!(it.run(), [""; 0]);
        assert_eq!(it.changes(), []);
    }
    it.passes(30.0);
    assert_eq!(it.run(), [""; 0], "the shards are not handed over yet");
    assert_eq!(it.changes(), [Change::Cancel(released.clone())]);
    assert_eq!(it.acting(), [0, 1, 2, 3]);
    it.group.mark_drained(it.now, released);
    assert_eq!(it.run(), ["web"]);
}

#[test]
fn a_handover_without_a_response_is_settled_before_the_shard_is_used_again() {
    let mut it = Driven::alone();
    it.renews("other", 0);
    it.watch();
    let _ = it.poll();
    let released = it.released();
    it.group.mark_drained(it.now, released.clone());
    let late = it.call();
    it.now = at(5.0);
    it.group.handle_answer(it.now, Answer::Failed);
    // `other` stops, so this replica keeps the shards. Its first write may still succeed.
    change(&mut it.server, "other", |json| {
        json["metadata"]["annotations"][STOPPING] = json!("true");
    });
    it.watch();
    let _ = it.poll();
    assert_eq!(it.acting().len(), 2);
    it.now = at(6.0);
    assert_eq!(it.run(), ["web"], "a write that makes the first one fail");
    assert!(matches!(it.server.call(late), Answer::Conflict));
    let _ = it.poll();
    assert_eq!(it.gained(), released);
    assert_eq!(it.acting(), [0, 1, 2, 3]);
    assert_eq!(it.stored(), vec![(Some("me".into()), 1); 4]);
}

#[test]
fn the_shards_of_a_live_member_are_not_taken() {
    let mut it = Driven::beside("other");
    for time in 1..100 {
        it.passes(f64::from(time) * 5.0);
        it.renews("other", i64::from(time) * 5);
        it.watch();
        assert_eq!(it.run(), [""; 0]);
    }
    assert_eq!(it.acting(), [0; 0]);
}

#[test]
fn the_shards_of_a_member_are_taken_when_its_lease_has_expired_and_a_read_confirms_that() {
    let mut it = Driven::beside("other");
    it.passes(7.0);
    it.passes(LEASE - 0.1);
    assert_eq!(it.run(), [""; 0]);
    it.passes(LEASE);
    assert_eq!(it.run(), ["other", "web", "other"], "a read, the write, and the deletion");
    assert_eq!(it.gained(), [0, 1, 2, 3]);
    assert_eq!(it.stored(), vec![(Some("me".into()), 2); 4]);
    assert!(!it.server.leases.contains_key("other"));
}

#[test]
fn a_late_watch_takes_no_shard() {
    let mut it = Driven::beside("other");
    it.passes(7.0);
    it.renews("other", 7);
    it.server.events.clear();
    it.passes(LEASE);
    assert_eq!(it.run(), ["other"], "the read shows the renewal");
    assert_eq!(it.acting(), [0; 0]);
    it.passes(LEASE + 7.0);
    it.passes(2.0 * LEASE);
    assert_eq!(it.run(), ["other", "web", "other"]);
}

#[test]
fn a_read_that_was_sent_before_the_lease_expired_proves_nothing() {
    let mut it = Driven::beside("other");
    it.passes(7.0);
    it.passes(LEASE);
    let call = it.call();
    let answer = it.server.call(call);
    // The watch shows a renewal before the response to the read arrives.
    it.renews("other", 15);
    it.watch();
    it.group.handle_answer(it.now, answer);
    assert_eq!(it.run(), [""; 0]);
}

#[test]
fn the_shards_of_a_member_that_has_released_its_lease_are_taken_at_once() {
    let mut it = Driven::beside("other");
    change(&mut it.server, "other", |json| json["spec"]["holderIdentity"] = json!(""));
    it.watch();
    assert_eq!(it.run(), ["web", "other"]);
    let changes = it.changes();
    let [Change::Gained(gained)] = &changes[..] else { panic!("{changes:?}") };
    assert!(gained.iter().all(|gain| matches!(gain.from, Source::Dead(..))));
}

#[test]
fn the_shards_of_a_deleted_lease_are_taken_when_it_would_have_expired() {
    let mut it = Driven::beside("other");
    it.passes(5.0);
    it.server.delete("other");
    it.watch();
    for time in [5.0, 10.0, 15.0, 5.0 + LEASE - 0.1] {
        it.passes(time);
        assert_eq!(it.run(), [""; 0]);
    }
    it.passes(5.0 + LEASE);
    assert_eq!(it.run(), ["web"]);
    assert_eq!(it.acting(), [0, 1, 2, 3]);
}

#[test]
fn the_shards_of_an_unknown_member_are_taken_when_its_lease_would_have_expired() {
    let mut it = Driven::beside("other");
    it.server.delete("other");
    let mut it = Driven::new(it.server);
    it.list();
    it.join();
    assert_eq!(it.run(), ["other"], "a read, because the watch may be late");
    it.passes(5.0);
    it.passes(LEASE - 0.1);
    assert_eq!(it.run(), [""; 0]);
    it.passes(LEASE);
    assert_eq!(it.run(), ["web"]);
    assert_eq!(it.gained(), [0, 1, 2, 3]);
}

#[test]
fn a_list_without_a_lease_counts_as_its_deletion() {
    let mut it = Driven::beside("other");
    it.passes(5.0);
    it.server.delete("other");
    it.list();
    assert_eq!(it.run(), [""; 0]);
    it.passes(10.0);
    it.passes(5.0 + LEASE);
    assert_eq!(it.run(), ["web"]);
}

#[test]
fn a_replica_that_stops_announces_it_hands_over_and_leaves() {
    let mut it = Driven::alone();
    it.renews("other", 0);
    it.watch();
    let _ = it.poll();
    let mut shards = it.released();
    it.group.stop();
    assert_eq!(it.run(), ["me"]);
    assert_eq!(it.server.leases["me"]["metadata"]["annotations"][STOPPING], "true");
    shards.extend(it.released());
    it.group.mark_drained(it.now, shards);
    assert_eq!(it.run(), ["web"]);
    assert!(
        it.stored()
            .iter()
            .all(|(holder, number)| (holder.as_deref(), *number) == (Some("other"), 2))
    );
    assert!(matches!(it.poll(), Step::Ended(End::Left)));
}

#[test]
fn a_renewal_that_conflicts_with_the_announcement_causes_a_read_and_no_list() {
    let mut it = Driven::alone();
    it.passes(12.0);
    it.renews("me", 13);
    it.server.events.clear();
    it.group.stop();
    assert_eq!(it.run(), ["me", "me", "me"], "a conflict, a read, and the announcement");
    assert_eq!(it.server.leases["me"]["metadata"]["annotations"][STOPPING], "true");
}

#[test]
fn the_last_replica_that_stops_leaves_shards_without_a_holder_and_the_next_takes_them_at_once() {
    let mut it = Driven::alone();
    it.group.stop();
    it.run();
    let shards = it.released();
    it.group.mark_drained(it.now, shards);
    it.run();
    assert!(matches!(it.poll(), Step::Ended(End::Left)));
    assert_eq!(it.stored(), vec![(None, 1); 4]);

    it.server.delete("me");
    let mut next = Driven::new(it.server);
    next.list();
    next.join();
    assert_eq!(next.run(), ["web"]);
    assert_eq!(next.stored(), vec![(Some("me".into()), 2); 4]);
}

#[test]
fn a_member_that_stops_receives_no_shards() {
    let mut it = Driven::alone();
    it.renews("other", 0);
    change(&mut it.server, "other", |json| {
        json["metadata"]["annotations"][STOPPING] = json!("true");
    });
    it.watch();
    assert_eq!(it.run(), [""; 0]);
    assert_eq!(it.changes(), []);
}

#[test]
fn another_number_of_shards_is_refused() {
    let mut it = Driven::new(Server::default());
    let other = Layout { count: 8, ..layout() };
    it.server.call(Call::Create(GroupLease::new_object("web", &other, 15)));
    it.list();
    let step = it.poll();
    assert!(matches!(&step, Step::Ended(End::Mismatch(found)) if *found == other), "{step:?}");
}

#[test]
fn a_lease_of_another_kind_is_refused() {
    let mut it = Driven::new(Server::default());
    let foreign = Lease::new_object(&json!({ "name": "web" }), "leader", 15, wall());
    it.server.call(Call::Create(foreign));
    // The object has lost its label, so the watch does not show it.
    it.server.events.clear();
    it.group.handle_event(it.now, Watched::Init);
    it.group.handle_event(it.now, Watched::InitDone);
    assert_eq!(it.run(), ["web", "web"]);
    assert!(matches!(it.poll(), Step::Ended(End::Unreadable(_))));
}

#[test]
fn a_group_that_is_deleted_ends_the_membership() {
    let mut it = Driven::alone();
    it.server.delete("web");
    it.watch();
    assert_eq!(it.acting(), [0; 0]);
    assert!(matches!(it.poll(), Step::Ended(End::Deleted)));
}

#[test]
fn the_members_of_a_deleted_group_delay_the_next_one() {
    let mut server = Server::default();
    renew(&mut server, "former", "uid-of-a-deleted-group", 0);
    let mut it = Driven::new(server);
    it.list();
    it.join();
    assert_eq!(it.run(), [""; 0]);
    it.passes(5.0);
    it.passes(LEASE - 0.1);
    assert_eq!(it.run(), [""; 0]);
    it.passes(LEASE);
    assert_eq!(it.run(), ["former", "web", "former"]);
    assert_eq!(it.gained(), [0, 1, 2, 3]);
}

#[test]
fn a_right_that_has_ended_ends_the_membership() {
    let mut it = Driven::alone();
    it.right = Some(at(10.0));
    it.now = at(10.0);
    assert!(matches!(it.poll(), Step::Ended(End::Lost)));
    it.right = Some(at(20.0));
    assert!(matches!(it.poll(), Step::Ended(End::Lost)), "it does not return");
    assert_eq!(it.acting(), [0; 0]);
}

#[test]
fn a_watch_that_does_not_show_the_own_renewals_is_replaced() {
    let mut it = Driven::alone();
    it.passes(4.0);
    it.now = at(13.9);
    assert!(matches!(it.poll(), Step::Wait(until) if until == at(14.0)));
    it.now = at(14.0);
    assert!(matches!(it.poll(), Step::Relist));
    assert!(matches!(it.poll(), Step::Wait(until) if until == at(24.0)));
}

#[test]
fn a_shard_that_another_process_has_reassigned_is_lost_at_once() {
    let mut it = Driven::alone();
    let group = GroupLease::from_lease(lease(&it.server.leases["web"])).unwrap();
    let mut assignment = group.assignment.clone();
    assignment.set_holder(2, Some("other".into()));
    it.server.call(Call::Replace(group.with_assignment(&assignment, "web-other", 15)));
    it.watch();
    assert_eq!(it.changes(), [Change::Lost(vec![2])]);
    assert_eq!(it.acting(), [0, 1, 3]);
}

#[test]
fn an_older_version_of_the_group_is_ignored() {
    let mut it = Driven::alone();
    let old = it.server.leases["web"].clone();
    it.renews("other", 0);
    it.watch();
    let _ = it.poll();
    let released = it.released();
    it.group.mark_drained(it.now, released);
    it.run();
    it.changes();
    it.group.handle_event(it.now, Watched::Apply(lease(&old)));
    assert_eq!(it.acting().len(), 2);
    assert_eq!(it.changes(), []);
}

#[test]
fn shards_that_were_handed_over_before_the_member_knew_that_it_had_joined_are_gained() {
    let mut it = Driven::new(Server::default());
    let json = GroupLease::new_object("web", &layout(), 15);
    it.server.call(Call::Create(json));
    it.list();
    assert!(matches!(it.poll(), Step::Join { .. }));
    let group = GroupLease::from_lease(lease(&it.server.leases["web"])).unwrap();
    let mut assignment = group.assignment.clone();
    assignment.set_holder(1, Some("me".into()));
    it.server.call(Call::Replace(group.with_assignment(&assignment, "web-other", 15)));
    it.watch();
    assert_eq!(it.acting(), [0; 0]);
    it.right = Some(Time::NEVER);
    let _ = it.poll();
    assert_eq!(
        it.changes(),
        [Change::Gained(vec![Gain { shard: 1, number: 1, from: Source::Nobody }])]
    );
}

#[test]
fn the_longest_lease_duration_is_stored_for_members_whose_lease_is_deleted() {
    let mut it = Driven::alone();
    let uid = it.group.group().unwrap().uid().to_owned();
    let metadata =
        json!({ "name": "slow", "labels": { LABEL: "web" }, "annotations": { JOINED: uid } });
    it.server.call(Call::Create(Lease::new_object(&metadata, "slow", 60, wall())));
    it.watch();
    let _ = it.poll();
    let released = it.released();
    it.group.mark_drained(it.now, released);
    it.run();
    assert_eq!(it.server.leases["web"]["spec"]["leaseDurationSeconds"], 60);
}
