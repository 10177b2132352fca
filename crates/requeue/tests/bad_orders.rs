//! Custom orders that panic, return wrong keys, lose keys, or call the queue. The queue must still
//! deliver every key.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};

use common::{take_all, timeless};
use requeue::{Added, CustomOrder, GroupId, Order, Queue};

/// The payload of a panic, which panics when it is dropped.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new("dropped"));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Call {
    Push,
    Touch,
    Pop,
    Len,
    Drop,
}

/// A stack that panics in one of its methods.
struct Panics {
    keys: Vec<u32>,
    in_call: Call,
}

impl Panics {
    fn call(&self, call: Call) {
        if self.in_call == call {
            resume_unwind(Box::new(Payload));
        }
    }
}

impl CustomOrder<u32> for Panics {
    fn push(&mut self, key: u32) {
        self.keys.push(key);
        self.call(Call::Push);
    }

    fn touch(&mut self, _: &u32) {
        self.call(Call::Touch);
    }

    fn pop(&mut self) -> Option<u32> {
        self.call(Call::Pop);
        self.keys.pop()
    }

    fn len(&self) -> usize {
        self.call(Call::Len);
        self.keys.len()
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.call(Call::Drop);
    }
}

fn with(order: impl CustomOrder<u32> + 'static) -> Queue<u32> {
    timeless().order(Order::Custom(Box::new(order))).build().unwrap()
}

#[test]
fn an_order_that_panics_loses_no_key() {
    for in_call in [Call::Push, Call::Touch, Call::Pop, Call::Len, Call::Drop] {
        let queue = with(Panics { keys: Vec::new(), in_call });
        assert_eq!(queue.add_all([1, 2, 3, 2]), 4, "{in_call:?}");
        let item = queue.try_get().unwrap();
        assert_eq!(queue.add(*item), Added::Dirty);
        item.succeed();
        assert_eq!(queue.len(), 3);
        let mut keys = take_all(&queue);
        keys.sort_unstable();
        assert_eq!(keys, [1, 2, 3], "{in_call:?}");
        queue.add(4);
        assert_eq!(take_all(&queue), [4]);
        drop(queue);
    }
}

/// An order that returns keys that were never pushed, and then each pushed key twice.
struct Lies(Vec<u32>);

impl CustomOrder<u32> for Lies {
    fn push(&mut self, key: u32) {
        self.0.extend([key, key, 1000 + key]);
    }

    fn touch(&mut self, key: &u32) {
        self.0.push(*key);
    }

    fn pop(&mut self) -> Option<u32> {
        Some(self.0.pop().unwrap_or(u32::MAX))
    }

    fn len(&self) -> usize {
        usize::MAX
    }
}

#[test]
fn an_order_that_lies_delivers_each_key_once() {
    let queue = with(Lies(Vec::new()));
    queue.add_all((0..500).chain(0..500));
    let items = queue.get_many(usize::MAX).now();
    assert!(queue.try_get().is_none());
    let mut keys: Vec<_> = items.iter().map(|item| **item).collect();
    keys.sort_unstable();
    assert_eq!(keys, (0..500).collect::<Vec<_>>());
}

/// An order that loses every third key.
struct Loses(Vec<u32>);

impl CustomOrder<u32> for Loses {
    fn push(&mut self, key: u32) {
        if key.is_multiple_of(3) {
            self.0.push(key);
        }
    }

    fn touch(&mut self, _: &u32) {
        self.0.clear();
    }

    fn pop(&mut self) -> Option<u32> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn keys_that_an_order_loses_are_delivered_by_age() {
    let queue = with(Loses(Vec::new()));
    queue.add_all(0..9);
    assert_eq!(take_all(&queue), [6, 3, 0, 1, 2, 4, 5, 7, 8]);
    queue.add_all(0..9);
    queue.add(4);
    assert_eq!(take_all(&queue), (0..9).collect::<Vec<_>>());
}

/// The order returns no key until it has several keys, like an order that forms batches.
#[test]
fn an_order_that_holds_keys_back_loses_none() {
    struct Holds(Vec<u32>);

    impl CustomOrder<u32> for Holds {
        fn push(&mut self, key: u32) {
            self.0.push(key);
        }

        fn touch(&mut self, _: &u32) {}

        fn pop(&mut self) -> Option<u32> {
            if self.0.len() < 3 { None } else { self.0.pop() }
        }

        fn len(&self) -> usize {
            self.0.len()
        }
    }

    let queue = with(Holds(Vec::new()));
    for key in 0..10 {
        queue.add(key);
    }
    let mut keys = take_all(&queue);
    keys.sort_unstable();
    assert_eq!(keys, (0..10).collect::<Vec<_>>());
}

/// An order that calls its queue. The queue refuses the calls.
struct Calls {
    keys: Vec<u32>,
    queue: Arc<OnceLock<Queue<u32>>>,
}

impl Calls {
    fn call(&self) {
        let Some(queue) = self.queue.get() else { return };
        assert_eq!(queue.add(99), Added::Refused);
        assert!(queue.try_get().is_none());
        assert_eq!((queue.len(), queue.waiting(), queue.states().in_flight), (0, 0, 0));
        assert!(!queue.cancel(&1).any());
        assert!(!queue.done(&1));
        queue.close();
        assert_eq!(queue.shut_down(), []);
        let _ = format!("{queue:?}");
    }
}

impl CustomOrder<u32> for Calls {
    fn push(&mut self, key: u32) {
        self.call();
        self.keys.push(key);
    }

    fn touch(&mut self, _: &u32) {
        self.call();
    }

    fn pop(&mut self) -> Option<u32> {
        self.call();
        self.keys.pop()
    }

    fn len(&self) -> usize {
        self.call();
        self.keys.len()
    }
}

#[test]
fn an_order_that_calls_the_queue_is_refused() {
    let handle = Arc::new(OnceLock::new());
    let queue = with(Calls { keys: Vec::new(), queue: Arc::clone(&handle) });
    let _ = handle.set(queue.clone());
    queue.add_all([1, 2, 1]);
    assert_eq!(take_all(&queue), [2, 1]);
    assert!(!queue.is_closed());
}

/// The queue also delivers the keys that the order loses if the limit of a group throttles them.
#[test]
fn an_order_that_loses_keys_may_have_a_group_limit() {
    let queue = timeless()
        .order(Order::Custom(Box::new(Loses(Vec::new()))))
        .group_by(|key| GroupId::new(u64::from(key % 2)))
        .group_limit(1)
        .build()
        .unwrap();
    queue.add_all(0..9);
    let mut keys = Vec::new();
    while let Some(item) = queue.try_get() {
        assert!(queue.states().in_flight <= 2);
        keys.push(*item);
        item.succeed();
    }
    keys.sort_unstable();
    assert_eq!(keys, (0..9).collect::<Vec<_>>());
}
