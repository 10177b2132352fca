//! Custom orders: the keys that the queue pushes to an order, and the places where it drops keys.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use requeue_core::{
    Add, Config, CustomOrder, Finish, GroupId, Merge, Order, Queue, ReaddPolicy, Time,
};

const NOW: Time = Time::ZERO;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A key that panics if it is dropped inside the queue, where a caller would hold its lock.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Key(u32);

impl Drop for Key {
    fn drop(&mut self) {
        assert!(!INSIDE.get() || std::thread::panicking(), "{self:?} is dropped inside the queue");
    }
}

fn inside<T>(f: impl FnOnce() -> T) -> T {
    INSIDE.set(true);
    let value = f();
    INSIDE.set(false);
    value
}

/// An order that is last in, first out, or first in, first out.
struct Keys<K> {
    keys: Arc<Mutex<Vec<K>>>,
    first_out: bool,
}

impl<K: Send> CustomOrder<K> for Keys<K> {
    fn push(&mut self, key: K) {
        self.keys.lock().expect("no test panics inside").push(key);
    }

    fn touch(&mut self, _: &K) {}

    fn pop(&mut self) -> Option<K> {
        let mut keys = self.keys.lock().expect("no test panics inside");
        if self.first_out && !keys.is_empty() { Some(keys.remove(0)) } else { keys.pop() }
    }

    fn len(&self) -> usize {
        self.keys.lock().expect("no test panics inside").len()
    }
}

fn queue<K: Eq + Clone + Send + 'static>(
    readd_policy: ReaddPolicy,
    group_limit: Option<u32>,
    first_out: bool,
) -> (Queue<K>, Arc<Mutex<Vec<K>>>) {
    let keys = Arc::default();
    let order = Order::Custom(Box::new(Keys { keys: Arc::clone(&keys), first_out }));
    (Queue::new(Config { readd_policy, order, group_limit, ..Config::default() }), keys)
}

#[test]
fn no_copy_of_a_key_is_dropped_inside() {
    let later = Add::after(core::time::Duration::from_secs(1));
    for readd_policy in [ReaddPolicy::KeepBoth, ReaddPolicy::Replace, ReaddPolicy::Hold] {
        for how in 0..5 {
            let (mut queue, _keys) = queue(readd_policy, None, false);
            let mut add = |key: u32, add| {
                let key = Key(key);
                drop(inside(|| queue.add(key, 1, add, GroupId::default(), NOW)));
            };
            add(1, Add::now());
            add(1, Add::now());
            add(1, later);
            add(1, later.merge(Merge::Exactly));
            add(1, Add::now().merge(Merge::Exactly));
            add(2, later);
            let out = inside(|| queue.get_by_order(NOW, |_| 1)).item.expect("one is ready");
            let how = match how {
                0 => Finish::Done,
                1 => Finish::Succeed,
                2 => Finish::RequeueAfter { delay: core::time::Duration::ZERO, asked: out.asked },
                3 => Finish::RetryAfter {
                    delay: core::time::Duration::from_secs(1),
                    asked: out.asked,
                },
                _ => Finish::Release { asked: out.asked },
            };
            for _ in 0..2 {
                let key = Key(1);
                drop(inside(|| queue.add(key, 1, Add::now(), GroupId::default(), NOW)));
            }
            drop(inside(|| queue.finish(&out.ticket, how, NOW)));
            inside(|| queue.promote(Time::from_nanos(u64::MAX - 1), 9));
        }
    }
}

/// The order returns keys of a group while the group is at its limit, and then no longer contains
/// them. When the group is below its limit, the queue delivers these keys, even if the order never
/// becomes empty.
#[test]
fn keys_given_in_vain_are_shown_again_when_their_group_has_room() {
    let (mut queue, _keys) = queue::<u32>(ReaddPolicy::KeepBoth, Some(2), true);
    let add = |queue: &mut Queue<u32>, key: u32| {
        // Each key from 100 on is in a group of one key.
        let group = GroupId::new(if key < 100 { 0 } else { u64::from(key) });
        let _ = queue.add(key, u64::from(key), Add::now(), group, NOW);
    };
    let get = |queue: &mut Queue<u32>| {
        queue.get_by_order(NOW, |&key| u64::from(key)).item.expect("one is ready")
    };
    (1..=5).for_each(|key| add(&mut queue, key));
    add(&mut queue, 100);
    let working = [get(&mut queue), get(&mut queue)];
    assert_eq!(get(&mut queue).key, 100, "three keys before it are throttled");
    for out in &working {
        let _ = queue.finish(&out.ticket, Finish::Done, NOW);
    }
    let mut waited_for = vec![3, 4, 5];
    for key in 101..120 {
        let out = get(&mut queue);
        waited_for.retain(|&key| key != out.key);
        let _ = queue.finish(&out.ticket, Finish::Done, NOW);
        add(&mut queue, key);
    }
    assert_eq!(waited_for, []);
}

#[test]
fn what_was_cancelled_is_left_over_once_no_key_is_ready() {
    let (mut queue, _keys) = queue::<u32>(ReaddPolicy::KeepBoth, None, true);
    assert!(queue.has_order());
    assert!(!Queue::<u32>::new(Config::default()).has_order());
    for key in 1..=4 {
        let _ = queue.add(key, u64::from(key), Add::now(), GroupId::default(), NOW);
    }
    (2..=4).for_each(|key| _ = queue.cancel(&key, u64::from(key)));
    assert_eq!(queue.drain_order(9), [], "key 1 is ready");
    let popped = queue.get_by_order(NOW, |&key| u64::from(key));
    assert_eq!(popped.item.expect("it is ready").key, 1);
    assert_eq!(queue.drain_order(2), [2, 3]);
    assert_eq!(queue.drain_order(2), [4]);
}

/// One call skips at most 256 copies of keys that are no longer ready.
#[test]
fn a_call_that_finds_only_what_was_cancelled_is_made_again() {
    let (mut queue, _keys) = queue::<u32>(ReaddPolicy::KeepBoth, None, true);
    let add = |queue: &mut Queue<u32>, keys: std::ops::RangeInclusive<u32>| {
        for key in keys {
            let _ = queue.add(key, u64::from(key), Add::now(), GroupId::default(), NOW);
        }
    };
    add(&mut queue, 1..=300);
    (1..=300).for_each(|key| _ = queue.cancel(&key, u64::from(key)));
    add(&mut queue, 301..=301);
    let first = queue.get_by_order(NOW, |&key| u64::from(key));
    assert_eq!((first.item, first.dropped.len(), first.again), (None, 256, true));
    let second = queue.get_by_order(NOW, |&key| u64::from(key));
    assert_eq!((second.item.map(|out| out.key), second.dropped.len()), (Some(301), 44));
    assert!(!second.again);
}

/// A completion without copies pushes no copy of the key to the order, so the queue delivers the
/// key by age.
#[test]
fn a_run_that_ends_without_copies_is_served_by_age() {
    let (mut queue, keys) = queue::<u32>(ReaddPolicy::KeepBoth, None, false);
    let _ = queue.add(1, 1, Add::now(), GroupId::default(), NOW);
    let out = queue.get_by_order(NOW, |_| 1).item.expect("one is ready");
    let how = Finish::Release { asked: out.asked };
    assert!(queue.finish_without_copies(&out.ticket, how, NOW).expect("it is live").ready);
    assert_eq!(queue.finish_without_copies(&out.ticket, how, NOW), None);
    assert!(keys.lock().expect("no panic").is_empty());
    assert_eq!(queue.get_by_order(NOW, |_| 1).item.expect("it is ready").key, 1);
}

#[test]
fn a_key_that_is_taken_out_of_its_backoff_is_shown_to_the_order() {
    let (mut queue, keys) = queue::<u32>(ReaddPolicy::Hold, None, false);
    let failed = Add::after(core::time::Duration::from_secs(1)).failed();
    let _ = queue.add(1, 1, failed, GroupId::default(), NOW);
    let _ = queue.add(1, 1, Add::now(), GroupId::default(), NOW);
    assert!(keys.lock().expect("no panic").is_empty(), "it is backing off");
    let _ = queue.add(1, 1, Add::now().merge(Merge::Exactly), GroupId::default(), NOW);
    assert_eq!(*keys.lock().expect("no panic"), [1]);
}

#[test]
fn orders_show_what_they_are() {
    let keys = |keys| Keys { keys: Arc::new(Mutex::new(keys)), first_out: true };
    let shown = [
        (Order::Fifo, "Fifo"),
        (Order::Priority { oldest_every: 4 }, "Priority { oldest_every: 4 }"),
        (Order::Custom(Box::new(keys(vec![1]))), "Custom"),
    ];
    for (order, text) in shown {
        assert_eq!(format!("{order:?}"), text);
    }
}

#[test]
fn an_order_is_not_shown_again_what_it_has() {
    let (mut queue, keys) = queue::<u32>(ReaddPolicy::KeepBoth, Some(1), false);
    let _ = queue.add(1, 1, Add::now(), GroupId::default(), NOW);
    let _ = queue.add(2, 2, Add::now(), GroupId::default(), NOW);
    for _ in 0..100 {
        let out = queue.get_by_order(NOW, |&key| u64::from(key)).item.expect("one is ready");
        assert_eq!(out.key, 2);
        let _ = queue.finish(&out.ticket, Finish::Release { asked: out.asked }, NOW);
    }
    assert_eq!(keys.lock().expect("no panic").len(), 2);
}

thread_local! {
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

/// A key whose `clone` panics when a test requests it.
#[derive(PartialEq, Eq, Debug)]
struct Fragile(u32);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        if FAILS.get() {
            std::panic::resume_unwind(Box::new("a copy that fails"));
        }
        Self(self.0)
    }
}

fn fails<T>(f: impl FnOnce() -> T) {
    FAILS.set(true);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    FAILS.set(false);
    assert!(outcome.is_err(), "no key was copied");
}

/// A group has a limit of 2. Whichever copy fails, 2 keys of the group can still be in flight, and
/// never more.
#[test]
fn a_copy_that_fails_takes_no_place_in_its_group() {
    let (mut queue, keys) = queue::<Fragile>(ReaddPolicy::KeepBoth, Some(2), false);
    let hash = |key: &Fragile| u64::from(key.0);
    for key in 0..4 {
        let _ = queue.add(Fragile(key), key.into(), Add::now(), GroupId::default(), NOW);
    }
    // The order loses all its keys, so the queue must copy each key when it delivers it.
    keys.lock().expect("no panic").clear();
    for _ in 0..5 {
        fails(|| queue.get_by_order(NOW, hash));
        assert_eq!((queue.eligible(), queue.in_flight()), (4, 0));
    }
    let out = queue.get_by_order(NOW, hash).item.expect("four are ready");
    assert_eq!(queue.eligible(), 3, "any of the three may be delivered next");
    // A completion that has panicked is repeated without copies.
    let how = Finish::Release { asked: out.asked };
    fails(|| queue.finish(&out.ticket, how, NOW));
    assert_eq!((queue.eligible(), queue.in_flight()), (3, 1));
    assert!(queue.finish_without_copies(&out.ticket, how, NOW).expect("it is live").ready);
    assert_eq!((queue.eligible(), queue.in_flight()), (4, 0));
    let taken = [(); 3].map(|()| queue.get_by_order(NOW, hash).item.is_some());
    assert_eq!((taken, queue.eligible()), ([true, true, false], 0));
}

#[test]
fn a_copy_that_fails_while_keys_are_dropped_loses_none_of_them() {
    let mut queue: Queue<Fragile> = Queue::new(Config::default());
    let later = Add::after(core::time::Duration::from_secs(1));
    let _ = queue.add(Fragile(2), 2, Add::now(), GroupId::default(), NOW);
    let _running = queue.get(NOW).expect("it is ready");
    let _ = queue.add(Fragile(1), 1, later, GroupId::default(), NOW);
    let _ = queue.add(Fragile(2), 2, later, GroupId::default(), NOW);
    queue.end(requeue_core::Ending::ShutDown);
    let mut dropped = Vec::new();
    fails(|| queue.drop_some(10, &mut dropped));
    assert!(!queue.drop_some(10, &mut dropped));
    let mut dropped: Vec<u32> = dropped.iter().map(|key| key.0).collect();
    dropped.sort_unstable();
    assert_eq!(dropped, [1, 2]);
}
