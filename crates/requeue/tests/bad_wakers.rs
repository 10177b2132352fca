//! Wakers that panic or call the queue, when they are woken and when they are dropped.

mod common;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};

use common::{Wakes, fake, poll, ready, secs};
use requeue::{Completion, Queue};

/// A waker that panics when it is woken, and when it is dropped. The payloads of these panics also
/// panic when they are dropped.
struct Panics;

struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new("dropped"));
        }
    }
}

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        resume_unwind(Box::new(Payload));
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new(Payload));
        }
    }
}

/// Polls a future with a waker. After the poll, the queue has the only other copy of the waker.
fn poll_with<W: Wake + Send + Sync + 'static, F: Future + Unpin>(future: &mut F, waker: W) -> bool {
    let waker = std::mem::ManuallyDrop::new(Waker::from(Arc::new(waker)));
    let pending = poll(future, &waker).is_pending();
    // This copy is leaked, because its `drop` would panic in the test. The test is about the copy
    // of the queue.
    pending
}

#[test]
fn a_waker_that_panics_keeps_no_key_from_others() {
    let (queue, clock) = fake();
    let mut panics = queue.get();
    assert!(poll_with(&mut panics, Panics));
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.add("a");
    queue.add("b");
    assert_eq!(wakes.count(), 1);
    let item = ready(get).unwrap();
    assert_eq!(*item, "a");
    item.succeed();
    assert_eq!(ready(panics).map(|item| item.into_parts().0), Some("b"));

    let mut panics = queue.get();
    assert!(poll_with(&mut panics, Panics));
    queue.add_after("c", secs(1));
    clock.advance(secs(1));
    assert_eq!(queue.len(), 1, "the clock's thread must make the key ready");
}

#[test]
fn a_waker_that_panics_harms_no_ending() {
    let endings: [fn(&Queue<u8>); 3] = [
        |queue| queue.close(),
        |queue| drop(queue.shut_down()),
        |queue| drop(queue.shut_down_with_drain()),
    ];
    for end in endings {
        let (queue, _clock) = fake();
        let mut panics = queue.get();
        assert!(poll_with(&mut panics, Panics));
        let (wakes, waker) = Wakes::new();
        let mut get = queue.get();
        assert!(poll(&mut get, &waker).is_pending());
        end(&queue);
        assert_eq!(wakes.count(), 1);
    }

    let (queue, _clock) = fake();
    queue.add(1);
    let item = queue.try_get().unwrap();
    let mut panics = queue.shut_down_with_drain();
    assert!(poll_with(&mut panics, Panics));
    let (wakes, waker) = Wakes::new();
    let mut drain = queue.shut_down_with_drain();
    assert!(poll(&mut drain, &waker).is_pending());
    item.succeed();
    assert_eq!(wakes.count(), 1);
}

/// A waker that counts its drops, and panics in each drop.
struct Drops(Arc<AtomicUsize>);

impl Wake for Drops {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        if !std::thread::panicking() {
            resume_unwind(Box::new(Payload));
        }
    }
}

/// Polls a future with a waker. After the poll, only the queue has copies of the waker.
fn poll_dropping<F: Future + Unpin>(future: &mut F, drops: &Arc<AtomicUsize>) {
    let waker = Waker::from(Arc::new(Drops(Arc::clone(drops))));
    assert!(poll(future, &waker).is_pending());
}

#[test]
fn a_waker_whose_drop_panics_is_dropped_quietly() {
    let (queue, clock) = fake();
    let drops = Arc::default();
    let mut get = queue.get();
    for polls in 0..3 {
        // The queue replaces the waker of the previous poll.
        poll_dropping(&mut get, &drops);
        assert_eq!(drops.load(Ordering::SeqCst), polls);
    }
    queue.add("a");
    assert_eq!(drops.load(Ordering::SeqCst), 3, "a waker is dropped by its wake");
    ready(get).unwrap().succeed();

    let mut get = queue.get();
    poll_dropping(&mut get, &drops);
    drop(get);
    assert_eq!(drops.load(Ordering::SeqCst), 4);

    queue.add("b");
    let item = queue.try_get().unwrap();
    let mut drain = queue.shut_down_with_drain().timeout(secs(1));
    poll_dropping(&mut drain, &drops);
    poll_dropping(&mut drain, &drops);
    drop(drain);
    assert_eq!((drops.load(Ordering::SeqCst), clock.armed()), (6, 0));
    item.succeed();
}

/// A waker that makes every possible call of the queue, when it is woken and when it is dropped.
struct Calls(Queue<&'static str>);

impl Calls {
    fn call(&self) {
        let queue = &self.0;
        queue.add("from the waker");
        queue.add_after("later", secs(1));
        queue.get_many(10).now().into_iter().for_each(|item| item.complete(Completion::Release));
        let _ = (queue.len(), queue.totals(), format!("{queue:?}"));
        if let Poll::Ready(Some(item)) = poll(&mut queue.get(), Waker::noop()) {
            item.complete(Completion::Release);
        }
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.call();
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.call();
    }
}

#[test]
fn a_waker_may_call_the_queue() {
    let (queue, clock) = fake();
    let mut get = queue.get();
    let waker = Waker::from(Arc::new(Calls(queue.clone())));
    assert!(poll(&mut get, &waker).is_pending());
    drop(waker);
    queue.add("a");
    ready(get).unwrap().complete(Completion::Release);

    // The queue drops the waker without waking it.
    let empty: Queue<&str> = fake().0;
    let mut get = empty.get();
    let waker = Waker::from(Arc::new(Calls(queue.clone())));
    assert!(poll(&mut get, &waker).is_pending());
    drop(waker);
    drop(get);

    clock.advance(secs(600));
    let mut keys = common::take_all(&queue);
    keys.sort_unstable();
    assert_eq!(keys, ["a", "from the waker", "later"]);
}
