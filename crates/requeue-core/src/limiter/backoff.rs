//! The limiter that is proof against triggers: ours, and the default.

use core::hash::{BuildHasher, Hash};
use core::time::Duration;

use foldhash::fast::RandomState;

use super::RateLimiter;
use super::exponential::doubled;
use super::table::KeyTable;
use crate::Time;
use crate::wait::JitterSource;

/// Backs off per key, with jitter, and counts one failure per wait.
///
/// With [`ExponentialFailure`](super::ExponentialFailure), events that run a failing key before its
/// time make every such run count, so that the key is at the longest delay within seconds. Here the
/// n-th failure that *counts* (n from 0) waits d = min(base · 2ⁿ, cap), drawn from d/2 to d, at
/// least 1 ns. A failure before that wait is over doesn't count: it gets the rest of the wait. One
/// at the very end of it counts.
///
/// A key that has not failed for twice the cap after its wait was over starts afresh. Nothing has to
/// be forgotten or trimmed for the memory to come back: each call of [`delay`] looks at two entries
/// for one that has expired, in turn.
///
/// When the clock goes back, a key waits no longer than its last delay, and its failures don't
/// count until the clock is where it was; whether a key that had already expired then starts afresh
/// depends on whether its entry was looked at.
///
/// [`delay`]: RateLimiter::delay
///
/// ```
/// use core::time::Duration;
/// use requeue_core::limiter::BackoffLimiter;
/// use requeue_core::{RateLimiter, Time};
///
/// let mut limiter = BackoffLimiter::new(42);
/// let key = "default/web";
///
/// let first = limiter.delay(&key, Time::ZERO);
/// assert!(Duration::from_micros(2_500) <= first && first <= Duration::from_millis(5));
///
/// // A trigger runs the key at once, and it fails again: the rest of the wait, and nothing counted.
/// let early = Time::from_nanos(1_000);
/// assert_eq!(limiter.delay(&key, early), first - Duration::from_nanos(1_000));
/// assert_eq!(limiter.num_requeues(&key), 1);
///
/// // It fails when its time has come.
/// let second = limiter.delay(&key, Time::ZERO + first);
/// assert!(Duration::from_millis(5) <= second && second <= Duration::from_millis(10));
/// assert_eq!(limiter.num_requeues(&key), 2);
/// ```
#[derive(Clone, Debug)]
pub struct BackoffLimiter<K, S = RandomState> {
    waits: KeyTable<K, Wait, S>,
    base: Duration,
    cap: Duration,
    source: JitterSource,
    /// From where on an entry is looked at next for having expired.
    hand: u32,
    /// The time of the last call, by which `num_requeues` tells what has expired.
    now: Time,
}

/// The last wait of a key that was counted.
#[derive(Clone, Debug, Default)]
struct Wait {
    until: Time,
    last: Duration,
    /// How many failures have counted; 0 only before the first is.
    failures: u32,
}

/// How many entries a call looks at: more than the one that it may add.
const LOOKS: usize = 2;

impl<K> BackoffLimiter<K> {
    /// From 5 ms to 5 min, with the jitter that follows from `seed`.
    ///
    /// Give each process a seed of its own, so that keys which failed together in several don't
    /// come back together.
    ///
    /// ```
    /// use requeue_core::limiter::BackoffLimiter;
    /// use requeue_core::{RateLimiter, Time};
    ///
    /// let delay = |seed| BackoffLimiter::new(seed).delay(&"a", Time::ZERO);
    /// assert_eq!(delay(42), delay(42));
    /// assert_ne!(delay(42), delay(43));
    /// ```
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_hasher(seed, RandomState::default())
    }
}

impl<K, S> BackoffLimiter<K, S> {
    /// The same with a hasher of your choice.
    ///
    /// ```
    /// use std::hash::RandomState;
    /// use requeue_core::limiter::BackoffLimiter;
    ///
    /// let limiter = BackoffLimiter::<String, _>::with_hasher(42, RandomState::new());
    /// assert!(limiter.is_empty());
    /// ```
    #[must_use]
    pub const fn with_hasher(seed: u64, hasher: S) -> Self {
        Self {
            waits: KeyTable::with_hasher(hasher),
            base: Duration::from_millis(5),
            cap: Duration::from_secs(300),
            source: JitterSource::new(seed),
            hand: 0,
            now: Time::ZERO,
        }
    }

    /// What the first failure waits at most. With a base of zero, every failure waits 1 ns; with
    /// one above the cap, each waits the cap at most.
    ///
    /// ```
    /// use core::time::Duration;
    /// use requeue_core::limiter::BackoffLimiter;
    /// use requeue_core::{RateLimiter, Time};
    ///
    /// let mut limiter = BackoffLimiter::new(42).base(Duration::from_secs(1));
    /// assert!(limiter.delay(&"a", Time::ZERO) >= Duration::from_millis(500));
    /// ```
    #[must_use]
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// What any failure waits at most, but for the 1 ns that each waits; twice as long after a wait
    /// its key starts afresh. With a cap of more than about 292 years keys never do, and are never
    /// given up: the memory is then unbounded.
    ///
    /// ```
    /// use core::time::Duration;
    /// use requeue_core::limiter::BackoffLimiter;
    /// use requeue_core::{RateLimiter, Time};
    ///
    /// let mut limiter = BackoffLimiter::new(42).cap(Duration::from_micros(1));
    /// assert!(limiter.delay(&"a", Time::ZERO) <= Duration::from_micros(1));
    /// ```
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// How many keys it remembers, those included that have expired and were not looked at since.
    ///
    /// ```
    /// use requeue_core::limiter::BackoffLimiter;
    /// use requeue_core::{RateLimiter, Time};
    ///
    /// let mut limiter = BackoffLimiter::new(42);
    /// limiter.delay(&"a", Time::ZERO);
    /// assert_eq!(limiter.len(), 1);
    /// ```
    #[must_use]
    pub const fn len(&self) -> usize {
        self.waits.len()
    }

    /// Whether it remembers no key.
    ///
    /// ```
    /// use requeue_core::limiter::BackoffLimiter;
    ///
    /// assert!(BackoffLimiter::<u64>::new(42).is_empty());
    /// ```
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at up to `looks` entries, in turn, and drops those that have expired; says how many.
    ///
    /// Each failure does this for two entries. To have the memory back while nothing fails, call it
    /// now and then; with `len()` looks, it drops all that has expired.
    ///
    /// ```
    /// use core::time::Duration;
    /// use requeue_core::limiter::BackoffLimiter;
    /// use requeue_core::{RateLimiter, Time};
    ///
    /// let mut limiter = BackoffLimiter::new(42);
    /// limiter.delay(&"a", Time::ZERO);
    /// let after_two_caps = Time::ZERO + Duration::from_secs(601);
    /// assert_eq!(limiter.sweep(after_two_caps, limiter.len()), 1);
    /// assert!(limiter.is_empty());
    /// ```
    pub fn sweep(&mut self, now: Time, looks: usize) -> usize {
        let before = self.len();
        let cap = self.cap;
        self.hand = self.waits.sweep(self.hand, looks, |_, wait| !wait.is_expired(now, cap));
        before - self.len()
    }
}

impl Wait {
    /// Whether this was over for more than twice the cap.
    fn is_expired(&self, now: Time, cap: Duration) -> bool {
        now > self.until + cap.saturating_mul(2)
    }
}

impl<K, S> RateLimiter<K> for BackoffLimiter<K, S>
where
    K: Hash + Eq + Clone + Send,
    S: BuildHasher + Send,
{
    fn delay(&mut self, key: &K, now: Time) -> Duration {
        self.now = now;
        self.sweep(now, LOOKS);
        let wait = self.waits.get_or_default(key);
        if now < wait.until {
            return wait.until.since(now).min(wait.last);
        }
        if wait.is_expired(now, self.cap) {
            wait.failures = 0;
        }
        let longest = doubled(self.base, wait.failures, self.cap);
        let delay = self.source.upper_half(longest).max(Duration::from_nanos(1));
        wait.failures = wait.failures.saturating_add(1);
        wait.until = now + delay;
        wait.last = delay;
        delay
    }

    fn forget(&mut self, key: &K) {
        self.waits.remove(key);
    }

    /// How many failures of `key` have counted; 0 when that has expired by the time of the last
    /// failure of any key.
    fn num_requeues(&self, key: &K) -> u32 {
        self.waits
            .get(key)
            .filter(|wait| !wait.is_expired(self.now, self.cap))
            .map_or(0, |wait| wait.failures)
    }

    fn is_idle(&self) -> bool {
        self.is_empty()
    }

    fn longest(&self) -> Duration {
        doubled(self.base, u32::MAX, self.cap).max(Duration::from_nanos(1))
    }
}

#[cfg(test)]
mod tests;
