//! Fair shares between groups.

use requeue_core::{Add, Config, Ending, Finish, GroupId, Queue, Time};

/// When a group reaches its limit, it leaves the turns. When it returns, it gets a full turn.
#[test]
fn a_group_comes_back_from_its_limit_with_a_whole_turn() {
    let config = Config { fair: true, group_limit: Some(2), ..Config::default() };
    let mut queue = Queue::new(config);
    let now = Time::ZERO;
    let heavy = GroupId::new(1).weight(3);
    for key in 0..40 {
        let group = if key < 20 { heavy } else { GroupId::new(100 + key % 5) };
        let _ = queue.add(key, key, Add::now(), group, now);
    }
    let mut get = |finish: bool| {
        let out = queue.get(now).expect("there are many");
        if finish {
            let _ = queue.finish(&out.ticket, Finish::Done, now);
        }
        (out.key < 20, out.ticket, finish)
    };
    // The group has delivered two of the three keys of its turn, and is at its limit.
    let (first, second) = (get(false), get(false));
    assert!(first.0 && second.0);
    assert!(!get(true).0);
    for (_, ticket, _) in [first, second] {
        let _ = queue.finish(&ticket, Finish::Done, now);
    }
    let turns: Vec<bool> = (0..60)
        .map_while(|_| {
            let out = queue.get(now)?;
            let _ = queue.finish(&out.ticket, Finish::Done, now);
            Some(out.key < 20)
        })
        .collect();
    let back = turns.iter().position(|&heavy| heavy).expect("it has keys left");
    assert_eq!(turns[back..back + 3], [true; 3]);
}

/// A shutdown drops all throttled keys, however many groups are at their limit.
#[test]
fn what_groups_at_their_limit_hold_back_is_dropped_with_a_paused_queue() {
    let mut queue = Queue::new(Config { group_limit: Some(1), ..Config::default() });
    let now = Time::ZERO;
    for key in 0..3000_u64 {
        let _ = queue.add(key, key, Add::now(), GroupId::new(key % 1000), now);
    }
    let held: Vec<_> = std::iter::from_fn(|| queue.get(now)).collect();
    assert_eq!((held.len(), queue.len(), queue.eligible()), (1000, 2000, 0));
    queue.pause();
    queue.end(Ending::ShutDown);
    let mut dropped = Vec::new();
    while queue.drop_some(256, &mut dropped) {}
    // The queue drops the keys by age, so it does not have to search for them.
    assert_eq!(dropped, (1000..3000).collect::<Vec<_>>());
    assert_eq!((queue.len(), queue.in_flight()), (0, 1000));
}

#[test]
fn groups_of_different_names_are_different_groups() {
    assert_eq!(GroupId::of("a"), GroupId::of("a"));
    assert_ne!(GroupId::of("a").id(), GroupId::of("b").id());
    assert_eq!(GroupId::new(7).id(), 7);
}
