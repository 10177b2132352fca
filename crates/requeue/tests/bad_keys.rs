//! Keys whose code panics or calls the queue. No such key may make the queue lose another key or
//! stop.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use common::{Fifo, fake, poll, ready, secs};
use requeue::clock::FakeClock;
use requeue::{Added, Completion, Order, Queue};

/// The actions that the code of a key performs.
#[derive(Default)]
struct Orders {
    panic_in_eq: AtomicBool,
    panic_in_clone: AtomicBool,
    panic_in_drop: AtomicBool,
    /// The queue that `eq`, `clone` and `drop` call.
    queue: OnceLock<Queue<Key>>,
    calls: AtomicBool,
}

struct Key {
    id: u32,
    orders: Arc<Orders>,
}

fn release(item: requeue::Item<'_, Key>) {
    item.complete(requeue::Completion::Release);
}

impl Key {
    fn obey(&self, panic: &AtomicBool) {
        if self.orders.calls.load(Ordering::Relaxed)
            && let Some(queue) = self.orders.queue.get()
        {
            // The calls are disabled first. Otherwise, the keys that the queue drops during this
            // call would call the queue again.
            self.orders.calls.store(false, Ordering::Relaxed);
            let other = Self { id: 1000 + self.id, orders: Arc::clone(&self.orders) };
            queue.add(other);
            let _ = (queue.len(), queue.try_get().map(release));
            let _ = format!("{queue:?}");
            self.orders.calls.store(true, Ordering::Relaxed);
        }
        if panic.load(Ordering::Relaxed) && !std::thread::panicking() {
            resume_unwind(Box::new("a key's own panic"));
        }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.obey(&self.orders.panic_in_eq);
        self.id == other.id
    }
}

impl Eq for Key {}

impl Clone for Key {
    fn clone(&self) -> Self {
        self.obey(&self.orders.panic_in_clone);
        Self { id: self.id, orders: Arc::clone(&self.orders) }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.obey(&self.orders.panic_in_drop);
    }
}

struct Setup {
    queue: Queue<Key>,
    clock: FakeClock,
    orders: Arc<Orders>,
}

impl Setup {
    fn new(order: Order<Key>) -> Self {
        let (clock, orders) = (FakeClock::new(), Arc::new(Orders::default()));
        let queue = Queue::builder().clock(clock.clone()).order(order).build().unwrap();
        Self { queue, clock, orders }
    }

    fn key(&self, id: u32) -> Key {
        Key { id, orders: Arc::clone(&self.orders) }
    }

    fn add(&self, ids: impl IntoIterator<Item = u32>) {
        ids.into_iter().for_each(|id| _ = self.queue.add(self.key(id)));
    }

    fn take_all(&self) -> Vec<u32> {
        std::iter::from_fn(|| {
            let item = self.queue.try_get()?;
            let id = item.id;
            item.succeed();
            Some(id)
        })
        .collect()
    }
}

fn orders() -> [Order<Key>; 3] {
    let custom = Order::Custom(Box::new(Fifo::default()));
    [Order::Fifo, Order::Priority { oldest_every: 10 }, custom]
}

fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn a_panic_in_eq_reaches_the_caller_and_leaves_the_queue_as_it_was() {
    for order in orders() {
        let setup = Setup::new(order);
        let queue = &setup.queue;
        setup.add([1, 2, 3]);
        setup.orders.panic_in_eq.store(true, Ordering::Relaxed);
        assert!(panics(|| queue.add(setup.key(1))));
        assert!(panics(|| queue.add_after(setup.key(1), secs(1))));
        assert!(panics(|| queue.add_all([setup.key(1)])));
        assert!(panics(|| queue.cancel(&setup.key(1))));
        assert!(panics(|| queue.done(&setup.key(1))));
        assert!(panics(|| queue.failures(&setup.key(1))));
        assert!(panics(|| queue.look_up(&setup.key(1))));
        setup.orders.panic_in_eq.store(false, Ordering::Relaxed);
        assert_eq!((queue.len(), queue.waiting()), (3, 0));
        assert_eq!(queue.add(setup.key(1)), Added::Coalesced);
        assert_eq!(setup.take_all(), [1, 2, 3]);
    }
}

#[test]
fn a_panic_in_clone_reaches_the_caller_and_leaves_the_queue_as_it_was() {
    for order in orders() {
        let setup = Setup::new(order);
        let queue = &setup.queue;
        setup.add([1, 2]);
        setup.orders.panic_in_clone.store(true, Ordering::Relaxed);
        let caught = panics(|| queue.try_get().map(release));
        let _ = panics(|| queue.add(setup.key(3)));
        assert!(panics(|| queue.snapshot(Default::default(), 10)));
        setup.orders.panic_in_clone.store(false, Ordering::Relaxed);
        assert_eq!(queue.states().in_flight, 0);
        queue.add(setup.key(3));
        // A worker could not complete its delivery, so its run has failed.
        setup.clock.advance(secs(600));
        let mut keys = setup.take_all();
        keys.sort_unstable();
        assert_eq!(keys, [1, 2, 3], "the delivery panicked: {caught}");
    }
}

#[test]
fn a_panic_in_clone_in_a_getter_that_waits_leaves_the_key_to_the_next() {
    let setup = Setup::new(Order::Fifo);
    let queue = &setup.queue;
    let mut get = queue.get();
    assert!(poll(&mut get, Waker::noop()).is_pending());
    setup.add([1]);
    setup.orders.panic_in_clone.store(true, Ordering::Relaxed);
    assert!(panics(|| poll(&mut get, Waker::noop()).is_ready()));
    drop(get);
    setup.orders.panic_in_clone.store(false, Ordering::Relaxed);
    assert_eq!(ready(queue.get()).map(|item| item.id), Some(1));
}

/// The panic of a key may prevent the completion of its delivery. The key must not be lost.
#[test]
fn a_panic_in_clone_during_a_completion_leaves_no_key_stuck() {
    let setup = Setup::new(Order::Custom(Box::new(Fifo::default())));
    let queue = &setup.queue;
    let endings: [fn(requeue::Item<'_, Key>); 3] =
        [release, |item| item.succeed(), |item| drop(item)];
    for ending in endings {
        setup.add([1]);
        let item = queue.try_get().unwrap();
        queue.add(setup.key(1));
        setup.orders.panic_in_clone.store(true, Ordering::Relaxed);
        let _ = panics(|| ending(item));
        setup.orders.panic_in_clone.store(false, Ordering::Relaxed);
        assert_eq!(queue.states().in_flight, 0);
        setup.clock.advance(secs(600));
        assert_eq!(setup.take_all().first(), Some(&1));
        setup.clock.advance(secs(600));
        setup.take_all();
    }
}

/// The completion must take effect although taking the next key panics. Another worker can then
/// take that key.
#[test]
fn a_panic_in_clone_while_the_next_key_is_taken_leaves_it_where_it_is() {
    for order in [Order::Fifo, Order::Priority { oldest_every: 10 }] {
        let setup = Setup::new(order);
        setup.add([1, 2]);
        let item = setup.queue.try_get().unwrap();
        setup.orders.panic_in_clone.store(true, Ordering::Relaxed);
        assert!(panics(|| setup.queue.succeed_and_try_get(item).is_some()));
        setup.orders.panic_in_clone.store(false, Ordering::Relaxed);
        assert_eq!((setup.queue.states().in_flight, setup.queue.totals().failures), (0, 0));
        assert_eq!(setup.take_all(), [2]);
        assert_eq!(setup.queue.records(), 0);
    }
}

#[test]
fn a_panic_in_drop_ends_in_the_queue() {
    for order in orders() {
        let setup = Setup::new(order);
        let (queue, clock) = (&setup.queue, &setup.clock);
        setup.orders.panic_in_drop.store(true, Ordering::Relaxed);
        setup.add([1, 2, 3, 1, 2, 3]);
        queue.add_all([1, 2, 3, 4].map(|id| setup.key(id)));
        queue.add_after(setup.key(5), secs(1));
        queue.add_after(setup.key(5), secs(1));
        queue.try_get().unwrap().succeed();
        queue.try_get().unwrap().done();
        queue.try_get().unwrap().retry();
        queue.try_get().unwrap().complete(Completion::RequeueAfter(secs(1)));
        clock.advance(secs(600));
        drop(queue.try_get().unwrap());
        clock.advance(secs(600));
        let mut items = queue.get_many(10).now();
        assert_eq!(items.len(), 3);
        items.drain(..).for_each(release);
        let query = std::mem::ManuallyDrop::new(setup.key(3));
        queue.cancel(&*query);
        queue.forget(&*query);
        assert_eq!(queue.len(), 2);
        // The caller owns the keys that a shutdown returns, so the queue does not catch panics of
        // their `drop`.
        setup.orders.panic_in_drop.store(false, Ordering::Relaxed);
        queue.shut_down();
    }
}

/// If two keys panicked while one collection was dropped, the process would abort.
#[test]
fn a_queue_full_of_keys_that_panic_in_drop_is_dropped_quietly() {
    for order in orders() {
        let setup = Setup::new(order);
        setup.add(0..10);
        (10..20).for_each(|id| _ = setup.queue.add_after(setup.key(id), secs(1)));
        (20..30).for_each(|id| _ = setup.queue.add_rate_limited(setup.key(id)));
        let given_up: Vec<_> =
            setup.queue.get_many(5).now().into_iter().map(requeue::Item::into_parts).collect();
        let orders = Arc::clone(&setup.orders);
        orders.panic_in_drop.store(true, Ordering::Relaxed);
        drop(setup);
        orders.panic_in_drop.store(false, Ordering::Relaxed);
        drop(given_up);
        assert_eq!(Arc::strong_count(&orders), 1, "every key was dropped");
    }
}

/// The keys failed after the shutdown, and no caller has taken them with `take_dropped`.
#[test]
fn reports_that_are_not_taken_are_dropped_quietly() {
    let setup = Setup::new(Order::Fifo);
    setup.add(0..4);
    (10..14).for_each(|id| _ = setup.queue.add_after(setup.key(id), secs(1)));
    let items = setup.queue.get_many(4).now();
    let drain = setup.queue.shut_down_with_drain();
    setup.orders.panic_in_drop.store(true, Ordering::Relaxed);
    items.into_iter().for_each(|item| item.retry());
    drop(drain);
    let orders = Arc::clone(&setup.orders);
    drop(setup);
    assert_eq!(Arc::strong_count(&orders), 1);
}

#[test]
fn keys_may_call_the_queue() {
    for order in orders() {
        let setup = Setup::new(order);
        let queue = &setup.queue;
        assert!(setup.orders.queue.set(queue.clone()).is_ok());
        setup.orders.calls.store(true, Ordering::Relaxed);
        setup.add([1, 2, 3, 1, 2, 3]);
        queue.add_after(setup.key(4), secs(1));
        setup.clock.advance(secs(1));
        queue.try_get().unwrap().succeed();
        drop(queue.try_get().unwrap());
        queue.try_get().unwrap().retry();
        queue.cancel(&setup.key(4));
        let items = queue.get_many(100).now();
        items.into_iter().for_each(requeue::Item::done);
        let _ = queue.snapshot(Default::default(), 100);
        let _ = queue.shut_down();
        setup.orders.calls.store(false, Ordering::Relaxed);
        setup.take_all();
        assert_eq!((queue.len(), queue.waiting(), queue.states().in_flight), (0, 0, 0));
    }
}

// --- Keys without fields that find the queue in a static -----------------------------------------

static QUEUE: Mutex<Option<Queue<Plain>>> = Mutex::new(None);
static CALLED: AtomicBool = AtomicBool::new(false);

/// A key without `Drop`. It calls the queue that it finds in a static variable.
#[derive(Clone, Copy, Eq)]
struct Plain(u32);

impl Hash for Plain {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Plain {
    fn eq(&self, other: &Self) -> bool {
        if let Ok(queue) = QUEUE.try_lock()
            && let Some(queue) = queue.as_ref()
        {
            assert_eq!(queue.add(Self(7)), Added::Refused);
            CALLED.store(true, Ordering::Relaxed);
        }
        self.0 == other.0
    }
}

#[test]
fn keys_without_a_drop_may_call_the_queue() {
    let (queue, _clock) = fake();
    queue.add(Plain(1));
    *QUEUE.lock().unwrap() = Some(queue.clone());
    assert_eq!(queue.add(Plain(1)), Added::Coalesced);
    *QUEUE.lock().unwrap() = None;
    assert!(CALLED.load(Ordering::Relaxed));
    assert_eq!(queue.len(), 1);
}

// --- Keys with the minimum of traits ------------------------------------------------------------

/// A key that is neither `Sync` nor `Debug`.
#[derive(Clone, PartialEq, Eq)]
struct Secret(std::cell::Cell<u32>);

impl Hash for Secret {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.get().hash(state);
    }
}

#[test]
fn keys_need_neither_sync_nor_debug() {
    let (queue, _clock) = fake();
    let secret = || Secret(1.into());
    queue.add(secret());
    queue.add_after(secret(), Duration::MAX);
    let other = queue.clone();
    let taken = std::thread::spawn(move || {
        let item = other.get().blocking().map(requeue::Item::into_owned).unwrap();
        std::thread::spawn(move || item.into_parts().0.0.get()).join().unwrap()
    });
    assert_eq!(taken.join().unwrap(), 1);
    assert!(queue.done(&secret()));
    let future = async move {
        let _dropped = queue.shut_down_with_drain().await.dropped;
        queue.get().await.is_none()
    };
    let send: Box<dyn Future<Output = bool> + Send> = Box::new(future);
    assert!(ready(Box::into_pin(send)));
}

#[test]
fn a_key_may_be_nothing() {
    let (queue, _clock) = fake();
    queue.add(());
    assert_eq!(queue.add(()), Added::Coalesced);
    queue.try_get().unwrap().complete(Completion::RetryAfter(Duration::ZERO));
    assert_eq!(queue.try_get().unwrap().attempt(), 2);
}

#[test]
fn a_panic_in_clone_during_a_shutdown_loses_no_key_and_leaves_no_getter_waiting() {
    let setup = Setup::new(Order::Fifo);
    let queue = &setup.queue;
    setup.add([1]);
    let item = queue.try_get().unwrap();
    for id in 1..=9 {
        queue.add_after(setup.key(id), secs(1));
    }
    let (wakes, waker) = common::Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    setup.orders.panic_in_clone.store(true, Ordering::Relaxed);
    assert!(panics(|| queue.shut_down()));
    setup.orders.panic_in_clone.store(false, Ordering::Relaxed);
    assert_eq!((queue.shutting_down(), wakes.count()), (true, 1));
    let mut dropped: Vec<u32> = queue.shut_down().iter().map(|key| key.id).collect();
    dropped.extend(queue.take_dropped().iter().map(|key| key.id));
    dropped.sort_unstable();
    assert_eq!(dropped, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    item.succeed();
}
