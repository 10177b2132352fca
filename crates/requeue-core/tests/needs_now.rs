//! The operations whose result depends on the current time.

use requeue_core::{
    Add, Config, Finish, GroupId, Operation, Order, Queue, ReaddPolicy, Ticket, Time,
};

fn add_needs_now(queue: &Queue<u64>) -> bool {
    let needs = queue.needs_now(Operation::Add(&Add::now()));
    assert_eq!(needs, queue.needs_now(Operation::Promote));
    needs
}

fn get_needs_now(queue: &Queue<u64>) -> bool {
    queue.needs_now(Operation::Get)
}

fn finish_needs_now(queue: &Queue<u64>, ticket: &Ticket, how: Finish) -> bool {
    queue.needs_now(Operation::Finish(ticket, &how))
}

#[test]
fn nothing_needs_now_while_no_key_waits_and_no_times_are_kept() {
    let orders = [Order::Fifo, Order::Priority { oldest_every: 4 }];
    for order in orders {
        let mut queue = Queue::new(Config { order, ..Config::default() });
        assert!(!add_needs_now(&queue) && !get_needs_now(&queue));
        let _ = queue.add(1, 1, Add::now(), GroupId::default(), Time::ZERO);
        assert!(!add_needs_now(&queue) && !get_needs_now(&queue));
        let out = queue.get(Time::ZERO).expect("one is ready");
        assert!(!add_needs_now(&queue) && !get_needs_now(&queue));
        let _ = queue.add(1, 1, Add::now(), GroupId::default(), Time::ZERO);
        let asked = out.asked;
        for how in [Finish::Done, Finish::Succeed, Finish::Release { asked }] {
            assert!(!finish_needs_now(&queue, &out.ticket, how));
        }
        // The delay begins at the current time.
        let delay = core::time::Duration::ZERO;
        assert!(finish_needs_now(&queue, &out.ticket, Finish::RequeueAfter { delay, asked }));
        assert!(finish_needs_now(&queue, &out.ticket, Finish::RetryAfter { delay, asked }));
    }
}

#[test]
fn all_needs_now_where_times_are_kept() {
    let mut queue = Queue::new(Config { track: true, ..Config::default() });
    assert!(add_needs_now(&queue) && get_needs_now(&queue));
    let _ = queue.add(1, 1, Add::now(), GroupId::default(), Time::ZERO);
    assert!(get_needs_now(&queue));
    let out = queue.get(Time::ZERO).expect("one is ready");
    for how in [Finish::Done, Finish::Succeed, Finish::Release { asked: out.asked }] {
        assert!(finish_needs_now(&queue, &out.ticket, how));
    }
}

/// A key that is due may be ahead of the ready keys.
#[test]
fn a_get_needs_now_where_keys_wait_unless_what_is_ready_comes_first() {
    let second = core::time::Duration::from_secs(1);
    for (order, ready_first) in [(Order::Fifo, true), (Order::Priority { oldest_every: 4 }, false)]
    {
        let mut queue = Queue::new(Config { order, ..Config::default() });
        let _ = queue.add(1, 1, Add::after(second), GroupId::default(), Time::ZERO);
        assert!(add_needs_now(&queue) && get_needs_now(&queue));
        let _ = queue.add(2, 2, Add::now(), GroupId::default(), Time::ZERO);
        assert_eq!(get_needs_now(&queue), !ready_first);
        let out = queue.get(Time::ZERO).expect("one is ready");
        assert!(finish_needs_now(&queue, &out.ticket, Finish::Release { asked: out.asked }));
    }
}

#[test]
fn a_get_needs_now_where_the_first_key_has_a_delayed_add_too() {
    let mut queue = Queue::new(Config { readd_policy: ReaddPolicy::KeepBoth, ..Config::default() });
    let delay = core::time::Duration::from_secs(1);
    let _ = queue.add(1, 1, Add::now(), GroupId::default(), Time::ZERO);
    let _ = queue.add(2, 2, Add::after(delay), GroupId::default(), Time::ZERO);
    assert!(!get_needs_now(&queue));
    // When the delayed add is due, it becomes part of the run that is ready.
    let _ = queue.add(1, 1, Add::after(delay), GroupId::default(), Time::ZERO);
    assert!(get_needs_now(&queue));
    let out = queue.get(Time::ZERO + delay).expect("one is ready");
    assert_eq!(
        queue.finish(&out.ticket, Finish::Done, Time::ZERO + delay).expect("live").key,
        Some(1)
    );
}

#[test]
fn the_end_of_a_run_needs_now_where_its_key_has_a_delayed_add() {
    let mut queue = Queue::new(Config::default());
    let second = core::time::Duration::from_secs(1);
    for key in [1, 2] {
        let _ = queue.add(key, key, Add::now(), GroupId::default(), Time::ZERO);
    }
    let [one, two] = [(); 2].map(|()| queue.get(Time::ZERO).expect("two are ready"));
    let _ = queue.add(1, 1, Add::after(second), GroupId::default(), Time::ZERO);
    let _ = queue.add(3, 3, Add::after(2 * second), GroupId::default(), Time::ZERO);
    assert!(finish_needs_now(&queue, &one.ticket, Finish::Done));
    assert!(!finish_needs_now(&queue, &two.ticket, Finish::Done));

    // The delayed add became due before the completion, and made the key dirty. The key therefore
    // goes to the tail.
    let later = Time::ZERO + 3 * second;
    let finished = queue.finish(&one.ticket, Finish::Done, later).expect("it is live");
    assert!(finished.was_dirty);
    let order = [(); 2].map(|()| queue.get(later).expect("two are ready").key);
    assert_eq!(order, [3, 1]);
    let _ = queue.finish(&two.ticket, Finish::Done, later);
}

/// The completion makes a group eligible that was at its limit. Keys of other groups that became
/// due earlier must be ahead of its keys.
#[test]
fn a_completion_needs_now_if_it_may_free_a_group() {
    let second = core::time::Duration::from_secs(1);
    let mut queue = Queue::new(Config { fair: true, group_limit: Some(1), ..Config::default() });
    let [first, other] = [1, 2].map(GroupId::new);
    let _ = queue.add(1, 1, Add::now(), first, Time::ZERO);
    let _ = queue.add(2, 2, Add::now(), first, Time::ZERO);
    let _ = queue.add(3, 3, Add::after(second), other, Time::ZERO);
    let one = queue.get(Time::ZERO).expect("one is ready");
    assert!(finish_needs_now(&queue, &one.ticket, Finish::Succeed));

    let later = Time::ZERO + 2 * second;
    let _ = queue.finish(&one.ticket, Finish::Succeed, later).expect("it is live");
    let order = [(); 2].map(|()| queue.get(later).expect("two are ready").key);
    assert_eq!(order, [3, 2]);
}
