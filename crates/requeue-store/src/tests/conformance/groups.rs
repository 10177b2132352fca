//! Checks the turns of groups in an engine.

use std::collections::HashMap;
use std::time::Duration;

use requeue::metrics::Sample;

use super::{BEGIN, LEASE, Rig, failing};
use crate::client::look::read_look;
use crate::engine::time::until;
use crate::engine::{Ask, Claim, Delivery, End, Finish, GroupChange, Place, Settings};
use crate::tests::Batches as _;
use crate::types::add::{Add, Priority};
use crate::types::key::Key;

const HOUR: Duration = Duration::from_secs(3600);

/// Checks that each group receives as many keys per turn as its weight, if each claim takes one key.
pub(crate) async fn check_turns(rig: &dyn Rig, queue: &str) {
    let engine = rig.engine();
    let settings = Settings { group_by: Some("".into()), ..Settings::default() };
    let place = engine.open_queue(queue, settings).await.expect("the queue opens");
    rig.set_time(BEGIN).await;
    let weights = [("a", 1), ("b", 2), ("c", 3)];
    for (group, weight) in weights {
        engine.change_group(&place, group, GroupChange::Weight(weight)).await.expect("changed");
        let asks = (0..40).map(|n| {
            let key = Key::from(format!("{group}{n}"));
            Ask { group: Some(group.into()), ..Ask::new(key, Add::now()) }
        });
        engine.add_keys(&place, asks.collect()).await.expect("added");
    }
    for (max, oldest) in [(1, 0), (4, 0), (6, 0), (1, 1), (4, 1), (6, 3)] {
        let mut got: Vec<String> = Vec::new();
        while got.len() < 36 {
            let claim = Claim { max, oldest, lease: LEASE, expired: failing(), poll: LEASE };
            let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
            assert!(!claimed.items.is_empty());
            got.extend(
                claimed.items.iter().map(|out| out.group.as_deref().expect("a group").to_owned()),
            );
            let end = |out: Delivery| End {
                key: out.key,
                epoch: out.epoch,
                how: Finish::Release(out.asked),
            };
            let ends = claimed.items.into_iter().map(end).collect();
            engine.finish_deliveries(&place, ends).await.expect("finished");
        }
        for (group, weight) in weights {
            let count = got.iter().filter(|name| *name == group).count() as u32;
            assert!(
                count.abs_diff(weight * 6) <= weight,
                "{group} got {count} of {got:?} with claims of {max}, {oldest} by age"
            );
        }
    }
}

/// Opens a queue with this limit, whose adds name the groups.
async fn open(rig: &dyn Rig, queue: &str, limit: Option<u32>) -> Place {
    let settings =
        Settings { group_by: Some("".into()), group_limit: limit, ..Settings::default() };
    rig.set_time(BEGIN).await;
    rig.engine().open_queue(queue, settings).await.expect("the queue opens")
}

fn ask_in(group: &str, number: u32, priority: Priority) -> Ask {
    let key = Key::from(format!("{group}/{number}"));
    Ask { group: Some(group.into()), ..Ask::new(key, Add::now().priority(priority)) }
}

/// Checks that no group has two consecutive turns in a claim that visits a priority twice. The first visit is for the
/// oldest key.
pub(crate) async fn check_second_visit(rig: &dyn Rig, queue: &str) {
    let (engine, place) = (rig.engine(), open(rig, queue, None).await);
    let asks = (0..3).flat_map(|n| ["a", "b", "c"].map(|group| ask_in(group, n, Priority::Normal)));
    engine.add_keys(&place, asks.collect()).await.expect("added");
    rig.set_time(BEGIN + 1).await;
    engine.add_keys(&place, vec![ask_in("d", 0, Priority::Low)]).await.expect("added");
    for expected in [["a", "b"], ["c", "a"], ["b", "c"]] {
        let claim = Claim { max: 2, oldest: 1, lease: LEASE, expired: failing(), poll: LEASE };
        let items = engine.claim_keys(&place, claim).await.expect("claimed").items;
        let groups: Vec<_> = items.iter().filter_map(|out| out.group.as_deref()).collect();
        assert_eq!(groups, expected);
    }
}

/// Checks that a claim delivers no key of a low priority while a visited group has a key of a high priority.
pub(crate) async fn check_priorities(rig: &dyn Rig, queue: &str) {
    let (engine, place) = (rig.engine(), open(rig, queue, None).await);
    engine.change_group(&place, "b", GroupChange::Weight(3)).await.expect("changed");
    engine.change_group(&place, "d", GroupChange::Limit(Some(1))).await.expect("changed");
    let high = [("a", 0), ("b", 0), ("d", 0), ("a", 1), ("d", 1), ("a", 2)];
    let high = high.map(|(group, number)| ask_in(group, number, Priority::High));
    let normal = [0, 1].map(|number| ask_in("c", number, Priority::Normal));
    engine.add_keys(&place, high.into_iter().chain(normal).collect()).await.expect("added");
    // `b` has fewer keys than its turn permits. A second turn of `d` would exceed its limit.
    for expected in [&["a", "b", "d", "a"][..], &["a", "c", "c"]] {
        let claim = Claim { max: 4, oldest: 0, lease: LEASE, expired: failing(), poll: LEASE };
        let items = engine.claim_keys(&place, claim).await.expect("claimed").items;
        let groups: Vec<_> = items.iter().filter_map(|out| out.group.as_deref()).collect();
        assert_eq!(groups, expected);
    }
}

/// Checks that the oldest ready key is found in each group, and that metrics leave out the groups that hold their keys
/// back.
pub(crate) async fn check_oldest_ready(rig: &dyn Rig, queue: &str) {
    let (engine, place) = (rig.engine(), open(rig, queue, Some(1)).await);
    rig.set_time(BEGIN).await;
    let oldest = async |expected: [i64; 2]| {
        let counts = engine.count_keys(&place).await.expect("counted");
        let mut sample = Sample::default();
        sample.times.oldest_ready = counts.oldest_ready;
        let look = read_look(&*engine, &place, true, 0).await.expect("read");
        look.add_to(&mut sample, Duration::ZERO);
        let found = [counts.oldest_ready, sample.times.oldest_ready];
        assert_eq!(found, expected.map(|time| until(0, time)));
    };
    oldest([0, 0]).await;
    let full = [0, 1].map(|number| ask_in("full", number, Priority::Low));
    engine.add_keys(&place, full.to_vec()).await.expect("added");
    let claim = Claim { max: 1, oldest: 0, lease: HOUR, expired: failing(), poll: LEASE };
    assert_eq!(engine.claim_keys(&place, claim).await.expect("claimed").items.len(), 1);
    rig.set_time(BEGIN + 1).await;
    oldest([1, 0]).await;
    engine.add_keys(&place, vec![ask_in("paused", 0, Priority::Low)]).await.expect("added");
    engine.change_group(&place, "paused", GroupChange::Paused(true)).await.expect("paused");
    rig.set_time(BEGIN + 2).await;
    oldest([2, 0]).await;
    // More groups than one script reads are before the others.
    let asks = |n: u32| ask_in(&format!("a{n}"), 0, Priority::High);
    engine.add_keys(&place, (0..300).map(asks).collect()).await.expect("added");
    rig.set_time(BEGIN + 5).await;
    oldest([5, 3]).await;
}

/// Checks that a waiting process finds a group with a free place without a search of all groups. Also checks that a
/// search terminates, even if all groups have ready keys.
pub(crate) async fn check_freed_groups(rig: &dyn Rig, queue: &str) {
    // There are more groups than a few lookups read.
    const MANY: usize = 2500;
    let (engine, place) = (rig.engine(), open(rig, queue, Some(1)).await);
    let names: Vec<String> = (0..MANY).map(|n| format!("g{n:04}")).collect();
    for names in names.chunks(500) {
        let asks = |name: &String| [0, 1].map(|n| ask_in(name, n, Priority::Normal));
        engine.add_keys(&place, names.iter().flat_map(asks).collect()).await.expect("added");
    }
    let claim = Claim { max: 200, oldest: 0, lease: LEASE, expired: failing(), poll: LEASE };
    let mut held: HashMap<String, Delivery> = HashMap::new();
    let group_of = |out: &Delivery| out.group.as_deref().expect("a group").to_owned();
    while held.len() < MANY {
        let items = engine.claim_keys(&place, claim).await.expect("claimed").items;
        held.extend(items.into_iter().map(|out| (group_of(&out), out)));
    }
    let mut wakes = engine.subscribe_wakes(&place);
    let mut claims = 0;
    for name in [MANY / 2, 3, MANY - 1].map(|n| &names[n]) {
        // The process searches all groups, and then waits.
        let is_searching = async || {
            let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
            assert_eq!(claimed.items, []);
            claimed.next.is_some_and(|next| next.is_zero())
        };
        while is_searching().await {}
        wakes.mark_unchanged();
        let out = held.remove(name).expect("it is in flight");
        let ends = vec![End { key: out.key, epoch: out.epoch, how: Finish::Succeed }];
        engine.finish_deliveries(&place, ends).await.expect("finished");
        let mut found = Vec::new();
        // A wake may belong to the previous iteration.
        for _ in 0..4 {
            // This change always sends a wake, after the wake of the completion. Therefore, if the wake of the
            // completion is lost, the test fails instead of waiting forever.
            engine.change_group(&place, "other", GroupChange::Weight(1)).await.expect("changed");
            wakes.changed().await.expect("the engine sends wakes");
            claims += 1;
            let items = engine.claim_keys(&place, claim).await.expect("claimed").items;
            found.extend(items.iter().map(group_of));
            if !found.is_empty() {
                break;
            }
        }
        assert_eq!(&found, std::slice::from_ref(name), "no wake has named the group");
    }
    assert!(claims <= 6, "{claims} claims found 3 keys");
}
