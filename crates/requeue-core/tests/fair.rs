//! Fair shares between groups.

use requeue_core::{Add, Config, Finish, Group, Queue, Time};

/// A group that leaves the turns because it is at its limit has a whole turn when it is back.
#[test]
fn a_group_comes_back_from_its_limit_with_a_whole_turn() {
    let config = Config { fair: true, group_limit: Some(2), ..Config::default() };
    let mut queue = Queue::new(config);
    let now = Time::ZERO;
    let heavy = Group::new(1).weight(3);
    for key in 0..40 {
        let group = if key < 20 { heavy } else { Group::new(100 + key % 5) };
        let _ = queue.add(key, key, Add::now(), group, now);
    }
    let mut get = |finish: bool| {
        let out = queue.get(now).expect("there are many");
        if finish {
            let _ = queue.finish(&out.ticket, Finish::Done, now);
        }
        (out.key < 20, out.ticket, finish)
    };
    // Two of its three, and it is at its limit.
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
