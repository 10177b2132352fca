//! `ReaddPolicy::Hold`: no run of a key starts before its backoff has ended.

use std::time::Duration;

use requeue_core::{Add, Added, Config, Delivery, Finish, GroupId, Queue, ReaddPolicy, Time};

const SECOND: Duration = Duration::from_secs(1);

fn queue() -> Queue<u32> {
    Queue::new(Config { readd_policy: ReaddPolicy::Hold, ..Config::default() })
}

fn add(queue: &mut Queue<u32>, add: Add) -> Added {
    queue.add(1, 1, add, GroupId::default(), Time::ZERO).0
}

fn get(queue: &mut Queue<u32>) -> Delivery<u32> {
    queue.get(Time::ZERO).expect("a key is ready")
}

#[test]
fn a_failure_holds_back_what_was_to_come_earlier() {
    let mut queue = queue();
    assert_eq!(add(&mut queue, Add::after(SECOND)), Added::New);
    assert_eq!(add(&mut queue, Add::after(5 * SECOND).failed()), Added::Coalesced);
    assert_eq!(queue.next_due(), Some(Time::ZERO + 5 * SECOND));
}

#[test]
fn a_rate_limited_add_and_done_are_a_retry() {
    let mut queue = queue();
    add(&mut queue, Add::now());
    let out = get(&mut queue);
    assert_eq!(add(&mut queue, Add::now()), Added::Dirty);

    // The failure is reported while the key is in flight (client-go's `AddRateLimited`).
    assert_eq!(add(&mut queue, Add::after(SECOND).failed()), Added::Coalesced);
    assert!(!queue.is_dirty(&out.ticket), "one run serves the failure and the adds before it");
    assert_eq!(add(&mut queue, Add::now()), Added::BackingOff);
    assert!(!queue.finish(&out.ticket, Finish::Done, Time::ZERO).expect("it is live").ready);

    assert_eq!(add(&mut queue, Add::now()), Added::BackingOff);
    assert!(queue.get(Time::ZERO).is_none());
    assert_eq!(queue.next_due(), Some(Time::ZERO + SECOND));
    assert_eq!(queue.get(Time::ZERO + SECOND).expect("it is due").failures, 1);
    assert!(queue.get(Time::NEVER).is_none(), "one run served all adds");
}

#[test]
fn forgetting_ends_the_backoff_also_while_the_worker_has_the_key() {
    let mut queue = queue();
    add(&mut queue, Add::now());
    let out = get(&mut queue);
    add(&mut queue, Add::after(SECOND).failed());
    assert_eq!(queue.forget(&1, 1), None);
    assert_eq!(add(&mut queue, Add::now()), Added::Dirty);
    assert!(queue.finish(&out.ticket, Finish::Done, Time::ZERO).expect("it is live").ready);
}

/// Keys with the same due time are delivered in the order in which they began to wait.
#[test]
fn a_failure_that_changes_no_time_keeps_the_place() {
    let mut queue = queue();
    for key in [1, 2] {
        let _ = queue.add(key, 1, Add::after(SECOND), GroupId::default(), Time::ZERO);
    }
    assert_eq!(add(&mut queue, Add::after(SECOND).failed()), Added::Coalesced);
    let later = Time::ZERO + SECOND;
    assert_eq!([(); 2].map(|()| queue.get(later).expect("both are due").key), [1, 2]);
}
