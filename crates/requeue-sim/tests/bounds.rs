//! The guarantees of the orders, checked independently of the model's order.

mod common;

use std::collections::{BTreeMap, VecDeque};

use common::{config, ops};
use proptest::prelude::*;
use requeue_core::ReaddPolicy::KeepBoth;
use requeue_core::{Add, Config, Finish, GroupId, InFlightPolicy, Merge, Order, Queue, Time};
use requeue_sim::model::{Ranking, Rules};
use requeue_sim::{Lockstep, Op, Setup};

const KEYS: u32 = 20;

proptest! {
    #![proptest_config(config(300))]

    /// At least one of any W consecutive deliveries takes the key that has been ready longest among
    /// the eligible keys.
    #[test]
    fn of_w_deliveries_one_is_the_oldest(
        w in 1u32..6,
        fair in any::<bool>(),
        limit in prop_oneof![Just(None), (1u32..3).prop_map(Some)],
        ops in ops(400),
    ) {
        let ranking = Ranking::Priority { oldest_every: w };
        let rules = Rules { re_add: KeepBoth, rerun: InFlightPolicy::After, ranking, fair, limit, pace: None };
        let mut lockstep = Lockstep::new(Setup { keys: KEYS, teams: 3, ..Setup::new(rules) });
        let mut passed_over = 0;
        for op in ops {
            lockstep.apply(&Op::Promote(usize::MAX));
            let oldest = lockstep.model().by_age().next().copied();
            let Some(out) = lockstep.apply(&op) else { continue };
            passed_over = if Some(out) == oldest { 0 } else { passed_over + 1 };
            prop_assert!(passed_over < w, "{} others in a row", passed_over);
        }
    }

    /// A key with r older keys leaves within W·(r + 1) deliveries.
    #[test]
    fn no_key_is_passed_over_for_ever(
        w in 1u32..6,
        fair in any::<bool>(),
        ops in ops(400),
    ) {
        let ranking = Ranking::Priority { oldest_every: w };
        let rules = Rules { re_add: KeepBoth, rerun: InFlightPolicy::After, ranking, fair, limit: None, pace: None };
        let mut lockstep = Lockstep::new(Setup { keys: KEYS, teams: 3, ..Setup::new(rules) });
        // For each ready key, the number of the delivery by which it must have left.
        let mut deadlines: BTreeMap<u32, u32> = BTreeMap::new();
        let mut deliveries = 0;
        // Pauses are left out, because after a pause a key may again have older eligible keys.
        for op in ops.into_iter().filter(|op| !matches!(op, Op::PauseTeam(..))) {
            if let Some(key) = lockstep.apply(&op) {
                deliveries += 1;
                if let Some(deadline) = deadlines.remove(&key) {
                    prop_assert!(deliveries <= deadline);
                }
            }
            if let Op::Add(key, request) = op && request.merge == Merge::Exactly {
                // The key may have become ready again.
                deadlines.remove(&(key % KEYS));
            }
            let ready: Vec<u32> = lockstep.model().by_age().copied().collect();
            deadlines.retain(|key, _| ready.contains(key));
            for (older, key) in (0u32..).zip(ready) {
                deadlines.entry(key).or_insert(deliveries + w * (older + 1));
            }
        }
    }

    /// Groups that always have keys get exactly their weights in each round, for any order of
    /// arrivals. Within a group, keys leave in order of arrival.
    #[test]
    fn groups_get_their_weights_in_each_round(
        weights in prop::collection::vec(1u32..5, 1..6),
        by_priority in any::<bool>(),
        limit in prop_oneof![Just(None), (4u32..6).prop_map(Some)],
        picks in prop::collection::vec(any::<prop::sample::Index>(), 50..300),
        rounds in 1usize..12,
    ) {
        let order =
            if by_priority { Order::Priority { oldest_every: u32::MAX } } else { Order::Fifo };
        let mut queue = Queue::new(Config {
            order,
            fair: true,
            group_limit: limit,
            ..Config::default()
        });
        let mut next = 0u64;
        let mut arrived: Vec<VecDeque<u64>> = vec![VecDeque::new(); weights.len()];
        let mut add = |queue: &mut Queue<(usize, u64)>, group: usize| {
            next += 1;
            let at = GroupId::new(group as u64).weight(weights[group]);
            let _ = queue.add((group, next), next, Add::now(), at, Time::ZERO);
            arrived[group].push_back(next);
            next
        };
        for pick in &picks {
            add(&mut queue, pick.index(weights.len()));
        }
        // Enough keys are added that no group runs out of keys in a round.
        for group in 0..weights.len() {
            (0..5).for_each(|_| {
                add(&mut queue, group);
            });
        }
        let mut picks = picks.iter().cycle();
        for _ in 0..rounds {
            let mut got = vec![0; weights.len()];
            for _ in 0..weights.iter().sum() {
                let out = queue.get(Time::ZERO).expect("there are keys");
                got[out.key.0] += 1;
                let _ = queue.finish(&out.ticket, Finish::Succeed, Time::ZERO);
                add(&mut queue, out.key.0);
                add(&mut queue, picks.next().expect("it is endless").index(weights.len()));
            }
            prop_assert_eq!(&got, &weights);
        }
        while let Some(out) = queue.get(Time::ZERO) {
            let _ = queue.finish(&out.ticket, Finish::Succeed, Time::ZERO);
        }
    }
}

/// A group gets no compensation for turns that it missed while it had no keys.
#[test]
fn an_empty_group_keeps_no_credit() {
    let mut queue = Queue::new(Config { fair: true, ..Config::default() });
    let add = |queue: &mut Queue<u64>, key: u64, group: u64| {
        let group = GroupId::new(group).weight(3);
        let _ = queue.add(key, key, Add::now(), group, Time::ZERO);
    };
    let get = |queue: &mut Queue<u64>| {
        let out = queue.get(Time::ZERO).expect("there are keys");
        let _ = queue.finish(&out.ticket, Finish::Succeed, Time::ZERO);
        out.key
    };
    // Group 1 takes one of the three keys of its turn, and then has no more keys.
    add(&mut queue, 100, 1);
    (200..220).for_each(|key| add(&mut queue, key, 2));
    assert_eq!(get(&mut queue), 100);
    assert_eq!(get(&mut queue), 200);
    // The group returns at the end of the round, with a turn of three keys and not of five.
    (101..110).for_each(|key| add(&mut queue, key, 1));
    let keys: Vec<u64> = (0..8).map(|_| get(&mut queue)).collect();
    assert_eq!(keys, [201, 202, 101, 102, 103, 203, 204, 205]);
}
