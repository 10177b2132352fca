//! Observes a queue through its hooks, its limiter, its order and its wakers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};
use std::time::Duration;

use requeue::limiter::RateLimiter;
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::{CustomOrder, Time};

use crate::limiters::Boxed;

/// The notifications of the queue, in total or since they were last read.
#[derive(Default)]
pub(crate) struct Reported {
    pub(crate) adds: u64,
    pub(crate) depth: i64,
    pub(crate) retries: u64,
    pub(crate) queued: Vec<Duration>,
    pub(crate) worked: Vec<Duration>,
    pub(crate) touched: Vec<char>,
    pub(crate) delay: Option<Duration>,
}

#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Reported>>);

impl Seen {
    pub(crate) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap()
    }
}

impl<K> QueueMetrics<K> for Seen {
    fn add(&self) {
        let mut reported = self.reported();
        reported.adds += 1;
        reported.depth += 1;
    }

    fn get(&self, _: &K, queued: Duration) {
        let mut reported = self.reported();
        reported.depth -= 1;
        reported.queued.push(queued);
    }

    fn done(&self, _: &K, worked: Duration) {
        self.reported().worked.push(worked);
    }

    fn retry(&self) {
        self.reported().retries += 1;
    }

    fn withdraw(&self) {
        self.reported().depth -= 1;
    }
}

impl<K> MetricsProvider<K> for Seen {
    fn queue(&self, _name: &str) -> Arc<dyn QueueMetrics<K>> {
        Arc::new(self.clone())
    }
}

/// A limiter whose last delay is recorded.
pub(crate) struct Watched(pub(crate) Boxed, pub(crate) Seen);

impl RateLimiter<char> for Watched {
    fn delay(&mut self, key: &char, now: Time) -> Duration {
        let delay = self.0.delay(key, now);
        self.1.reported().delay = Some(delay);
        delay
    }

    fn forget(&mut self, key: &char) {
        self.0.forget(key);
    }

    fn num_requeues(&self, key: &char) -> u32 {
        self.0.num_requeues(key)
    }
}

/// client-go's order, as a custom order.
pub(crate) struct InOrder(VecDeque<char>, Seen);

impl InOrder {
    pub(crate) fn new(seen: &Seen) -> Self {
        Self(VecDeque::new(), seen.clone())
    }
}

impl CustomOrder<char> for InOrder {
    fn push(&mut self, key: char) {
        self.0.push_back(key);
    }

    fn touch(&mut self, key: &char) {
        self.1.reported().touched.push(*key);
    }

    fn pop(&mut self) -> Option<char> {
        self.0.pop_front()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Records whether a getter was woken. Getters that were not woken are not polled, so that a missed
/// wake is detected.
pub(crate) struct Woken(AtomicBool);

impl Woken {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
