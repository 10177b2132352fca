//! Where the queue says that `now` makes no difference.

use requeue_core::{Add, Config, Finish, Group, Queue, Time};

#[test]
fn a_get_needs_now_where_the_first_key_has_a_delayed_add_too() {
    let mut queue = Queue::new(Config::default());
    let delay = core::time::Duration::from_secs(1);
    let _ = queue.add(1, 1, Add::now(), Group::default(), Time::ZERO);
    let _ = queue.add(2, 2, Add::after(delay), Group::default(), Time::ZERO);
    assert!(!queue.get_needs_now());
    // Once that is due, it is part of the run that is ready.
    let _ = queue.add(1, 1, Add::after(delay), Group::default(), Time::ZERO);
    assert!(queue.get_needs_now());
    let out = queue.get(Time::ZERO + delay).expect("one is ready");
    assert_eq!(
        queue.finish(&out.ticket, Finish::Done, Time::ZERO + delay).expect("live").key,
        Some(1)
    );
}
