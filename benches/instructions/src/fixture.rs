//! Keys, queues and a clock that are the same in every run.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::FixedState;
use requeue::clock::{Alarm, Clock};
use requeue::limiter::ExponentialFailure;
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::{Builder, Time};

/// The number of queued keys, in paths with many queued keys.
pub(crate) const QUEUED: usize = 65_536;
/// The number of waiting keys, in paths with many waiting keys.
pub(crate) const WAITING: usize = 100_000;
/// The number of spare keys, which exceeds the number of repetitions.
const SPARE: usize = 4_096;
const HASHER: FixedState = FixedState::with_seed(7);

pub(crate) type Queue<K> = requeue::Queue<K, FixedState>;

/// A namespace and a name, as in controllers.
pub(crate) type Name = (Arc<str>, Arc<str>);

pub(crate) trait Key: Hash + Eq + Clone + Send + 'static {
    /// Returns `count` keys whose neighbours are not neighbours in memory.
    fn below(count: usize) -> Vec<Self>;
}

impl Key for u64 {
    fn below(count: usize) -> Vec<Self> {
        (0..count as Self).collect()
    }
}

impl Key for Name {
    fn below(count: usize) -> Vec<Self> {
        let namespaces: Vec<Arc<str>> = (0..300).map(|n| format!("namespace-{n}").into()).collect();
        let name = |n: usize| {
            let namespace = Arc::clone(&namespaces[n % namespaces.len()]);
            (namespace, format!("some-deployment-{n:07}").into())
        };
        (0..count).map(name).collect()
    }
}

/// A ring of keys, which yields the keys in an endless cycle.
pub(crate) struct Ring<K> {
    keys: Vec<K>,
    at: usize,
}

impl<K: Key> Ring<K> {
    /// Makes a ring of `count` keys and some spare keys.
    pub(crate) fn beyond(count: usize) -> Self {
        Self { keys: K::below(count + SPARE), at: 0 }
    }

    pub(crate) fn of(count: usize) -> Self {
        Self { keys: K::below(count), at: 0 }
    }

    pub(crate) fn lend(&mut self) -> &K {
        let at = self.at;
        self.at = if at + 1 == self.keys.len() { 0 } else { at + 1 };
        &self.keys[at]
    }

    pub(crate) fn copy(&mut self) -> K {
        self.lend().clone()
    }
}

/// A clock that stands still until it is moved. Reading it costs an atomic load.
pub(crate) struct Still(AtomicU64);

impl Still {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1)))
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for Still {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn arm(&self, _: Time, _: &Waker) -> Alarm {
        Alarm::none()
    }
}

/// Returns a builder with defaults, except for settings that depend on chance or time.
pub(crate) fn builder<K: Key>(clock: Arc<Still>) -> Builder<K, FixedState> {
    let (base, max) = (Duration::from_millis(5), Duration::from_secs(1_000));
    let limiter = ExponentialFailure::with_hasher(base, max, HASHER);
    requeue::Queue::builder().hasher(HASHER).clock(clock).limiter(limiter)
}

pub(crate) fn plain<K: Key>() -> Queue<K> {
    build(builder(Still::new()))
}

pub(crate) fn build<K: Key>(builder: Builder<K, FixedState>) -> Queue<K> {
    match builder.build() {
        Ok(queue) => queue,
        Err(wrong) => unreachable!("the settings are valid: {wrong}"),
    }
}

/// Hooks that do nothing. Their cost is the cost of the calls, and of the measurement of the times
/// that the calls receive.
pub(crate) struct Deaf;

impl<K> QueueMetrics<K> for Deaf {}

impl<K> MetricsProvider<K> for Deaf {
    fn queue(&self, _: &str) -> Arc<dyn QueueMetrics<K>> {
        Arc::new(Self)
    }
}

pub(crate) fn hash<K: Key>(key: &K) -> u64 {
    std::hash::BuildHasher::hash_one(&HASHER, key)
}

/// Returns a delay between one and two hours, different for each number.
pub(crate) fn delay(number: usize) -> Duration {
    const HOUR: Duration = Duration::from_secs(3600);
    HOUR + Duration::from_nanos(hash(&(number as u64)) % HOUR.as_nanos() as u64)
}
