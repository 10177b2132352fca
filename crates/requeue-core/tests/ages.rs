//! The times at which keys became ready, were delivered, or began to wait.

use std::time::Duration;

use requeue_core::{Add, Config, Finish, GroupId, Queue, Time};

#[test]
fn a_key_that_waits_after_a_run_waits_since_the_run() {
    let mut queue = Queue::new(Config { track: true, ..Config::default() });
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let add = |queue: &mut Queue<u32>, add, now| queue.add(1, 1, add, GroupId::default(), now).0;
    let _ = add(&mut queue, Add::now(), at(1));
    let out = queue.get(at(2)).expect("one is ready");
    let _ = add(&mut queue, Add::after(Duration::from_secs(9)), at(3));
    let _ = queue.finish(&out.ticket, Finish::Done, at(4));
    let entry = queue.look_up(&1, 1).expect("it waits");
    assert_eq!((entry.since, entry.due), (Some(at(4)), Some(at(12))));
}
