//! Adding, taking and completing many keys in one call.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use common::{Wakes, fake, fake_client_go, poll};
use requeue::clock::FakeClock;
use requeue::{Item, Queue};

#[test]
fn items_that_end_together_end_as_each_alone() {
    for keeps_times in [false, true] {
        let clock = FakeClock::new();
        let builder = Queue::builder().clock(clock);
        let builder = if keeps_times { builder.track_times() } else { builder };
        let queue = builder.build().unwrap();
        queue.add_all(0..4);
        queue.add_rate_limited(0);
        let mut items = queue.get_many(10).now();
        let owned = items.pop().unwrap().into_owned();
        queue.add(1);
        Item::succeed_all(items.into_iter().chain([owned]));
        assert_eq!((queue.states().in_flight, queue.num_requeues(&0)), (0, 0));
        // Key 1 was added again while it was in flight.
        assert_eq!(queue.try_get().as_deref(), Some(&1));
    }
}

#[test]
fn an_item_of_another_queue_ends_there() {
    let ((one, _), (other, _)) = (fake_client_go(), fake_client_go());
    one.add_rate_limited("x");
    one.add("y");
    other.add_rate_limited("x");
    other.add("x");
    Item::succeed_all([one.try_get().unwrap(), other.try_get().unwrap()]);
    assert_eq!((one.states().in_flight, other.states().in_flight), (0, 0));
    assert_eq!((one.num_requeues(&"x"), other.num_requeues(&"x")), (1, 0));
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        resume_unwind(Box::new("a key's own panic"));
    }
}

#[test]
fn keys_that_panic_in_drop_do_so_one_by_one() {
    let (queue, _clock) = fake();
    queue.add(PanicsInDrop);
    Item::succeed_all(queue.try_get());
    assert_eq!(queue.records(), 0);
}

#[derive(Clone)]
struct PanicsInEq(u32);

impl Hash for PanicsInEq {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for PanicsInEq {
    fn eq(&self, other: &Self) -> bool {
        if (self.0, other.0) == (2, 2) {
            resume_unwind(Box::new("a key's own panic"));
        }
        self.0 == other.0
    }
}

impl Eq for PanicsInEq {}

#[test]
fn getters_are_woken_for_keys_that_were_added_before_a_panic() {
    let (queue, _clock) = fake();
    queue.add(PanicsInEq(2));
    let held = queue.try_get().unwrap();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    let keys = [1, 2, 3].map(PanicsInEq);
    assert!(catch_unwind(AssertUnwindSafe(|| queue.add_all(keys))).is_err());
    assert_eq!((queue.len(), wakes.count()), (1, 1));
    held.done();
}
