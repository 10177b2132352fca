//! The tests of client-go's `queue_test.go`, and further tests of the same behaviour.
//!
//! client-go completes deliveries by their keys, and so do these tests: [`take`] detaches the item,
//! and `done(&key)` completes the delivery.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

use common::{fake_client_go, poll, ready, take, take_all, timeless};
use requeue::{Added, CustomOrder, Item, Order, Queue};

/// The two ways in which client-go's tests shut a queue down.
const ENDINGS: [fn(&Queue<u32>); 2] = [
    |queue| assert_eq!(queue.shut_down(), []),
    |queue| assert!(queue.shut_down_with_drain().blocking().finished),
];

/// An order that is first in, first out, and records the keys for which `touch` is called.
struct Traced {
    queue: VecDeque<&'static str>,
    touched: Arc<Mutex<Vec<&'static str>>>,
}

impl CustomOrder<&'static str> for Traced {
    fn push(&mut self, key: &'static str) {
        self.queue.push_back(key);
    }

    fn touch(&mut self, key: &&'static str) {
        self.touched.lock().unwrap().push(key);
    }

    fn pop(&mut self) -> Option<&'static str> {
        self.queue.pop_front()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

fn traced() -> (Queue<&'static str>, Arc<Mutex<Vec<&'static str>>>) {
    let touched = Arc::default();
    let order = Traced { queue: VecDeque::new(), touched: Arc::clone(&touched) };
    let queue = timeless().order(Order::Custom(Box::new(order))).build().unwrap();
    (queue, touched)
}

/// client-go: `TestBasic`.
#[test]
fn test_basic() {
    const AFTER_SHUTDOWN: u32 = u32::MAX;
    for end in ENDINGS {
        let (queue, _clock) = fake_client_go();
        let mut seen = HashSet::new();
        thread::scope(|scope| {
            let producers: Vec<_> = (0..50)
                .map(|key| {
                    let queue = &queue;
                    scope.spawn(move || (0..50).for_each(|_| assert!(queue.add(key).is_accepted())))
                })
                .collect();
            let consumers: Vec<_> = (0..10)
                .map(|_| {
                    scope.spawn(|| {
                        let mut seen = Vec::new();
                        while let Some(item) = queue.get().blocking() {
                            seen.push(*item);
                            item.done();
                        }
                        seen
                    })
                })
                .collect();
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            end(&queue);
            assert_eq!(queue.add(AFTER_SHUTDOWN), Added::Refused);
            consumers.into_iter().for_each(|consumer| seen.extend(consumer.join().unwrap()));
        });
        assert_eq!(seen, (0..50).collect());
        assert_eq!(queue.len(), 0);
    }
}

/// client-go: `TestAddWhileProcessing`. Each worker adds each key once more while the key is in
/// flight.
#[test]
fn test_add_while_processing() {
    for end in ENDINGS {
        let (queue, _clock) = fake_client_go();
        thread::scope(|scope| {
            let producers: Vec<_> = (0..50)
                .map(|key| {
                    let queue = &queue;
                    scope.spawn(move || assert_eq!(queue.add(key), Added::New))
                })
                .collect();
            for _ in 0..10 {
                scope.spawn(|| {
                    let mut counters = HashMap::new();
                    while let Some(item) = queue.get().blocking() {
                        let counter = counters.entry(*item).or_insert(0);
                        *counter += 1;
                        if *counter < 2 {
                            let added = queue.add(*item);
                            assert!(matches!(added, Added::Dirty | Added::Refused));
                        }
                        item.done();
                    }
                });
            }
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            end(&queue);
        });
        assert_eq!((queue.len(), queue.states().in_flight), (0, 0));
    }
}

/// client-go: `TestLen`.
#[test]
fn test_len() {
    let (queue, _clock) = fake_client_go();
    queue.add("foo");
    assert_eq!(queue.len(), 1);
    queue.add("bar");
    assert_eq!(queue.len(), 2);
    queue.add("foo");
    assert_eq!(queue.len(), 2);
}

/// client-go: `TestReinsert`.
#[test]
fn test_reinsert() {
    let (queue, _clock) = fake_client_go();
    queue.add("foo");
    assert_eq!(take(&queue), "foo");
    queue.add("foo");
    assert!(queue.done(&"foo"));
    assert_eq!(take(&queue), "foo");
    assert!(queue.done(&"foo"));
    assert_eq!(queue.len(), 0);
}

/// client-go: `TestCollapse`.
#[test]
fn test_collapse() {
    let (queue, touched) = traced();
    assert_eq!(queue.add("bar"), Added::New);
    assert_eq!(queue.add("bar"), Added::Coalesced);
    assert_eq!(take(&queue), "bar");
    assert!(queue.done(&"bar"));
    assert_eq!(queue.len(), 0);
    assert_eq!(*touched.lock().unwrap(), ["bar"]);
}

/// client-go: `TestCollapseWhileProcessing`.
#[test]
fn test_collapse_while_processing() {
    let (queue, touched) = traced();
    queue.add("foo");
    assert_eq!(take(&queue), "foo");
    assert_eq!(queue.add("foo"), Added::Dirty);
    assert_eq!(queue.add("foo"), Added::Coalesced);

    let mut other = queue.get();
    assert!(poll(&mut other, Waker::noop()).is_pending(), "the key is in flight");
    assert!(queue.done(&"foo"));
    let item = ready(other).expect("the key was added while in flight");
    assert_eq!((*item, item.adds()), ("foo", 2));
    item.done();
    assert_eq!(queue.len(), 0);
    assert!(touched.lock().unwrap().is_empty(), "not touched while in flight");
}

/// client-go: `TestQueueDrainageUsingShutDownWithDrain`.
#[test]
fn test_queue_drainage_using_shut_down_with_drain() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(["foo", "bar"]);
    let (first, second) = (take(&queue), take(&queue));
    let mut drain = queue.shut_down_with_drain();
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    assert!(queue.get().blocking().is_none());

    assert!(queue.done(&first));
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    assert!(queue.done(&second));
    let drained = ready(drain);
    assert!(drained.finished);
    assert_eq!((drained.in_flight, drained.dropped), (0, vec![]));
}

/// client-go: `TestNoQueueDrainageUsingShutDown`.
#[test]
fn test_no_queue_drainage_using_shut_down() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(["foo", "bar"]);
    let _items = queue.get_many(2).now();
    assert_eq!(queue.shut_down(), [""; 0]);
    assert_eq!(queue.states().in_flight, 2);
}

/// client-go: `TestForceQueueShutdownUsingShutDown`.
#[test]
fn test_force_queue_shutdown_using_shut_down() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(["foo", "bar"]);
    let _items = queue.get_many(2).now();
    thread::scope(|scope| {
        let drain = scope.spawn(|| queue.shut_down_with_drain().blocking());
        while queue.get().blocking().is_some() {}
        assert!(queue.shutting_down());
        // The test cannot know if the drain has begun to wait. Repeated calls of `shut_down` end
        // the drain in either case.
        while !drain.is_finished() {
            queue.shut_down();
            thread::yield_now();
        }
        let drained = drain.join().unwrap();
        assert!(!drained.finished);
        assert_eq!(drained.in_flight, 2);
    });
}

/// client-go: `TestQueueDrainageUsingShutDownWithDrainWithDirtyItem`.
#[test]
fn test_queue_drainage_using_shut_down_with_drain_with_dirty_item() {
    let (queue, _clock) = fake_client_go();
    queue.add("foo");
    let item = queue.try_get().unwrap();
    assert_eq!(queue.add("foo"), Added::Dirty);
    let mut drain = queue.shut_down_with_drain();
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    assert!(queue.get().blocking().is_none(), "as in client-go, not final while a key is dirty");

    item.done();
    let again = queue.get().blocking().expect("the dirty key is delivered after the shutdown");
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    again.done();
    assert!(queue.get().blocking().is_none());
    assert!(ready(drain).finished);
}

/// client-go: `TestGarbageCollection`.
#[test]
fn test_garbage_collection() {
    let (queue, _clock) = fake_client_go();
    let key: Arc<str> = "hello".into();
    let watch = Arc::downgrade(&key);
    queue.add(key);
    let (key, _ticket) = queue.try_get().unwrap().into_parts();
    assert!(queue.done(&key));
    drop(key);
    assert!(watch.upgrade().is_none(), "the queue keeps no copy");
    drop(queue);
}

// --- Not covered by client-go's tests ------------------------------------------------------------

/// Intended difference: client-go's `ShutDownWithDrain` waits only for keys in flight.
#[test]
fn a_drain_does_not_return_at_once_while_keys_are_ready() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(0..100);
    let mut drain = queue.shut_down_with_drain();
    for key in 0..100 {
        assert!(poll(&mut drain, Waker::noop()).is_pending());
        let item = queue.try_get().unwrap();
        assert_eq!(*item, key);
        assert!(poll(&mut drain, Waker::noop()).is_pending());
        item.done();
    }
    assert!(ready(drain).finished);
}

#[test]
fn a_drain_does_not_return_at_once_while_keys_are_with_workers() {
    let (queue, _clock) = fake_client_go();
    queue.add(1);
    let item = queue.try_get().unwrap();
    let mut drain = queue.shut_down_with_drain();
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    item.done();
    assert!(ready(drain).finished);
}

#[test]
fn a_drain_does_not_discard_the_queue() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(["a", "b", "c"]);
    let drain = queue.shut_down_with_drain();
    assert_eq!(queue.len(), 3);
    assert_eq!(take_all(&queue), ["a", "b", "c"]);
    assert_eq!(ready(drain).dropped, [""; 0]);
}

#[test]
fn a_shut_down_does_not_discard_the_queue() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(["a", "b", "c"]);
    assert_eq!(queue.shut_down(), [""; 0]);
    assert_eq!(take_all(&queue), ["a", "b", "c"]);
}

#[test]
fn a_key_added_while_being_worked_on_goes_to_the_tail() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(["a", "b", "c"]);
    let item = queue.try_get().unwrap();
    queue.add("a");
    item.done();
    assert_eq!(take_all(&queue), ["b", "c", "a"]);
}

#[test]
fn a_key_added_again_while_ready_keeps_its_place() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(["a", "b", "c", "a", "b"]);
    assert_eq!(take_all(&queue), ["a", "b", "c"]);
}

/// Intended difference: in client-go, the queue then contains the key twice, and two workers get
/// it.
#[test]
fn done_without_get_does_nothing() {
    let (queue, _clock) = fake_client_go();
    assert!(!queue.done(&"a"));
    queue.add("a");
    assert!(!queue.done(&"a"), "the key is ready, not in flight");
    assert_eq!(queue.len(), 1);
    let _item = queue.try_get().unwrap();
    assert!(queue.try_get().is_none());
}

/// Intended difference: in client-go, a single `Signal` wakes one of the two drains, and perhaps
/// not the other.
#[test]
fn two_drains_at_once_both_end() {
    let (queue, _clock) = fake_client_go();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let ((wakes1, waker1), (wakes2, waker2)) = (common::Wakes::new(), common::Wakes::new());
    let mut first = queue.shut_down_with_drain();
    let mut second = queue.shut_down_with_drain();
    assert!(poll(&mut first, &waker1).is_pending());
    assert!(poll(&mut second, &waker2).is_pending());
    item.done();
    assert_eq!((wakes1.count(), wakes2.count()), (1, 1));
    assert!(ready(first).finished);
    assert!(ready(second).finished);
}

/// The depth in client-go's metrics includes dirty keys in flight. Its `Len` does not.
#[test]
fn depth_counts_dirty_keys_and_len_does_not() {
    let (queue, _clock) = fake_client_go();
    queue.add_all(["a", "b"]);
    let item = queue.try_get().unwrap();
    queue.add("a");
    assert_eq!((queue.len(), queue.sample().depth), (1, 2));
    item.done();
    assert_eq!((queue.len(), queue.sample().depth), (2, 2));
}

/// Before a shutdown, both methods return false.
#[test]
fn an_open_queue_is_not_shutting_down() {
    let (queue, _clock) = fake_client_go::<u8>();
    assert!(!queue.shutting_down());
    assert!(matches!(poll(&mut queue.get(), Waker::noop()), Poll::Pending));
    queue.shut_down();
    assert!(queue.shutting_down());
    assert!(ready(queue.get()).map(Item::done).is_none());
}
