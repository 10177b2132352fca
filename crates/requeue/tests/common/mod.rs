//! Helpers that several files of tests share.
#![allow(dead_code, reason = "each file uses a part")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::limiter::ExponentialFailure;
use requeue::{Builder, CustomOrder, Item, Key, Phase, Queue};

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Returns a queue on a fake clock, with a backoff of 1, 2, 4, … ms.
pub(crate) fn fake<K: Key>() -> (Queue<K>, FakeClock) {
    faked(Queue::builder())
}

/// Like `fake`, but with the re-add policy of client-go.
pub(crate) fn fake_client_go<K: Key>() -> (Queue<K>, FakeClock) {
    faked(Builder::client_go())
}

fn faked<K: Key>(builder: Builder<K>) -> (Queue<K>, FakeClock) {
    let clock = FakeClock::new();
    let limiter = ExponentialFailure::new(ms(1), secs(1000));
    (builder.clock(clock.clone()).limiter(limiter).build().unwrap(), clock)
}

/// Returns a builder of queues whose clock never moves. With the default clock, a failed key could
/// become ready during a test on a slow machine.
pub(crate) fn timeless<K: Key>() -> Builder<K> {
    Queue::builder().clock(FakeClock::new())
}

/// Completes `item` as a failure, and returns the backoff of its key.
pub(crate) fn retry<K: Key>(queue: &Queue<K>, item: Item<'_, K>) -> Duration {
    let key = item.key().clone();
    item.retry();
    let due = queue.look_up(&key).and_then(|entry| entry.due);
    due.map_or(Duration::ZERO, |due| due.since(queue.now()))
}

/// Returns true if the key of `item` was added again while in flight.
pub(crate) fn is_dirty<K: Key>(queue: &Queue<K>, item: &Item<'_, K>) -> bool {
    queue.look_up(item.key()).is_some_and(|entry| entry.phase == Phase::InFlightDirty)
}

/// A custom order that is first in, first out.
pub(crate) struct Fifo<K>(VecDeque<K>);

impl<K> Default for Fifo<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Send> CustomOrder<K> for Fifo<K> {
    fn push(&mut self, key: K) {
        self.0.push_back(key);
    }

    fn touch(&mut self, _: &K) {}

    fn pop(&mut self) -> Option<K> {
        self.0.pop_front()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns a queue on the clock of the tokio runtime, which a test can pause and advance.
#[cfg(feature = "tokio")]
pub(crate) fn on_tokio<K: Key>() -> Queue<K> {
    on_tokio_builder().build().unwrap()
}

#[cfg(feature = "tokio")]
pub(crate) fn on_tokio_builder<K: Key>() -> Builder<K> {
    Queue::builder().clock(requeue::clock::TokioClock::current())
}

/// Counts the wakes of a waker.
#[derive(Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wakes {
    /// Returns a counter and its waker.
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let wakes = Arc::new(Self::default());
        (Arc::clone(&wakes), Waker::from(wakes))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns true if a getter of this queue would have to wait.
pub(crate) fn would_wait<K: Key>(queue: &Queue<K>) -> bool {
    poll(&mut queue.get(), Waker::noop()).is_pending()
}

/// Polls `future` once.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Returns the output of a future that must be ready immediately.
pub(crate) fn ready<F: Future + Unpin>(mut future: F) -> F::Output {
    match poll(&mut future, Waker::noop()) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready"),
    }
}

/// Takes the next key and detaches its item, as client-go's `Get` does.
pub(crate) fn take<K: Key>(queue: &Queue<K>) -> K {
    queue.try_get().map(Item::into_parts).expect("a key is ready").0
}

/// Takes all ready keys, and completes each delivery as a success.
pub(crate) fn take_all<K: Key>(queue: &Queue<K>) -> Vec<K> {
    std::iter::from_fn(|| {
        let item = queue.try_get()?;
        let key = item.key().clone();
        item.succeed();
        Some(key)
    })
    .collect()
}

/// Polls `condition` until it holds.
pub(crate) fn until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

/// A minimal runtime: runs a future on this thread, which parks while the future waits.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
