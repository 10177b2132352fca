//! The default limiter. If a run starts before its key's wait has ended and fails, the failure does
//! not increase the backoff.

use core::hash::{BuildHasher, Hash};
use core::time::Duration;

use foldhash::fast::RandomState;

use super::RateLimiter;
use super::table::KeyTable;
use crate::rule::backoff::{failures_before, longest_delay};
use crate::types::Time;
use crate::wait::JitterSource;

/// The default limiter: a backoff for each key, with jitter. It counts at most one failure per
/// wait.
///
/// [`ExponentialFailure`](super::ExponentialFailure) counts every failed run. If events run a
/// failing key before its wait has ended, its delay therefore reaches the maximum within seconds.
/// This limiter counts only the first failure, and failures at or after the end of the key's wait.
///
/// After the counted failure number n (from 0), the key waits for a random time from d/2 to d,
/// where d = min(base · 2ⁿ, max). The wait is at least 1 ns. After a failure that is not counted,
/// the key waits for the rest of its current wait.
///
/// If a key does not fail for 2 · `max` after the end of its wait, its entry expires, and its next
/// delay starts again at `base`. The memory is bounded even if `forget` is never called: each call
/// of [`delay`] checks the next two entries of the table, and removes them if they have expired.
///
/// If the clock goes back, a key waits at most as long as its last delay. The limiter then counts
/// no failure of the key until the clock reaches the end of the key's wait. If [`delay`] did not
/// remove an expired entry before the clock went back, the entry becomes valid again.
///
/// Source of the jitter: M. Brooker, *Exponential backoff and jitter*, 2015 ("equal jitter").
///
/// [`delay`]: RateLimiter::delay
///
/// # Examples
///
/// ```
/// use core::time::Duration;
/// # use requeue_core as requeue;
/// use requeue::limiter::BackoffLimiter;
/// use requeue::limiter::RateLimiter;
/// use requeue::Time;
///
/// let mut limiter = BackoffLimiter::default();
/// let key = "default/web";
///
/// let first = limiter.delay(&key, Time::ZERO);
/// assert!(Duration::from_millis(500) <= first && first <= Duration::from_secs(1));
///
/// // An event runs the key immediately, and the run fails. The limiter returns the rest of the wait,
/// // and does not count this failure.
/// let early = Time::from_nanos(1_000);
/// assert_eq!(limiter.delay(&key, early), first - Duration::from_nanos(1_000));
/// assert_eq!(limiter.num_requeues(&key), 1);
///
/// // The next failure is at the end of the wait, so the limiter counts it.
/// let second = limiter.delay(&key, Time::ZERO + first);
/// assert!(Duration::from_secs(1) <= second && second <= Duration::from_secs(2));
/// assert_eq!(limiter.num_requeues(&key), 2);
/// ```
#[derive(Debug)]
pub struct BackoffLimiter<K, S = RandomState> {
    waits: KeyTable<K, Wait, S>,
    base: Duration,
    max: Duration,
    source: JitterSource,
    /// The index of the entry that the next sweep checks first.
    hand: usize,
    /// The time of the last call of `delay`. `num_requeues` gets no time, so it compares expiry
    /// times with this time.
    now: Time,
}

/// The last wait of a key.
#[derive(Debug, Default)]
struct Wait {
    until: Time,
    last: Duration,
    /// The number of counted failures. It is 0 only until the first call of `delay` for the key
    /// returns.
    failures: u32,
}

/// The `base` and the `max` of `BackoffLimiter::default`.
///
/// # Examples
///
/// ```
/// use core::time::Duration;
/// # use requeue_core as requeue;
/// use requeue::limiter::DEFAULT_BACKOFF;
///
/// let (base, max) = DEFAULT_BACKOFF;
/// let shortest = |n: u32| (base * (1 << n)).min(max) / 2;
/// assert_eq!((0..10).map(shortest).sum::<Duration>(), Duration::from_millis(405_500));
/// ```
// This constant is hidden, because users call `BackoffLimiter::default` instead.
#[doc(hidden)]
pub const DEFAULT_BACKOFF: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(300));

/// The number of entries that a call of `delay` checks. A call adds at most one entry and checks
/// two, so expired entries do not accumulate.
const LOOKS: usize = 2;

impl<K> BackoffLimiter<K> {
    /// Creates a limiter whose delays grow from `base` to `max`.
    ///
    /// If `base` is zero, every delay is 1 ns. If `base` is above `max`, every delay is between
    /// `max / 2` and `max`. If `max` is more than about 292 years, entries never expire. The memory
    /// then grows with each new key that fails, until the caller calls `forget` for it.
    ///
    /// # Examples
    ///
    /// ```
    /// use core::time::Duration;
    /// # use requeue_core as requeue;
    /// use requeue::limiter::BackoffLimiter;
    /// use requeue::{Time, limiter::RateLimiter};
    ///
    /// let mut limiter = BackoffLimiter::new(Duration::from_secs(1), Duration::from_secs(60));
    /// assert!(limiter.delay(&"a", Time::ZERO) >= Duration::from_millis(500));
    /// ```
    #[must_use]
    pub fn new(base: Duration, max: Duration) -> Self {
        Self::with_hasher(base, max, RandomState::default())
    }
}

impl<K, S> BackoffLimiter<K, S> {
    /// Creates a limiter that hashes keys with `hasher`. The other parameters are those of
    /// [`new`](BackoffLimiter::new).
    ///
    /// # Examples
    ///
    /// ```
    /// use core::time::Duration;
    /// use std::hash::RandomState;
    /// use requeue::limiter::RateLimiter;
    /// # use requeue_core as requeue;
    /// use requeue::limiter::BackoffLimiter;
    ///
    /// let (base, max) = (Duration::from_millis(5), Duration::from_secs(300));
    /// let limiter = BackoffLimiter::<String, _>::with_hasher(base, max, RandomState::new());
    /// assert_eq!(limiter.num_requeues(&"a".to_owned()), 0);
    /// ```
    #[must_use]
    pub fn with_hasher(base: Duration, max: Duration, hasher: S) -> Self {
        // Each limiter has a random seed. If keys fail at the same time in several processes, the
        // processes therefore retry them at different times.
        let source = JitterSource::new(RandomState::default().hash_one(0));
        let waits = KeyTable::with_hasher(hasher);
        Self { waits, base, max, source, hand: 0, now: Time::ZERO }
    }

    /// Sets the seed of the jitter. With the same seed and the same calls, all delays are the same.
    /// The default seed is random.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use requeue::limiter::BackoffLimiter;
    /// use requeue::{Time, limiter::RateLimiter};
    ///
    /// let delay = |seed| BackoffLimiter::default().seed(seed).delay(&"a", Time::ZERO);
    /// assert_eq!(delay(42), delay(42));
    /// assert_ne!(delay(42), delay(43));
    /// ```
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.source = JitterSource::new(seed);
        self
    }

    /// Checks the next `looks` entries from `hand` on, and removes those that have expired.
    fn sweep(&mut self, now: Time, looks: usize) {
        let max = self.max;
        self.hand = self.waits.sweep(self.hand, looks, |_, wait| !wait.is_expired(now, max));
    }
}

/// Creates a limiter whose delays grow from 1 s to 5 min.
///
/// Ten retries then take at least 6 min 45 s. A service on which the handler depends can restart in
/// that time. With client-go's base of 5 ms, ten retries take only a few seconds.
impl<K> Default for BackoffLimiter<K> {
    fn default() -> Self {
        let (base, max) = DEFAULT_BACKOFF;
        Self::new(base, max)
    }
}

impl Wait {
    /// Returns true if more than 2 · `max` has passed since the end of the wait.
    fn is_expired(&self, now: Time, max: Duration) -> bool {
        now > self.expires_at(max)
    }

    fn expires_at(&self, max: Duration) -> Time {
        self.until + max.saturating_mul(2)
    }
}

impl<K, S> RateLimiter<K> for BackoffLimiter<K, S>
where
    K: Hash + Eq + Clone + Send,
    S: BuildHasher + Send,
{
    fn delay(&mut self, key: &K, now: Time) -> Duration {
        self.now = now;
        // The sweep precedes the lookup, because the sweep may remove or move the entry of this
        // key.
        self.sweep(now, LOOKS);
        let wait = self.waits.get_or_default(key);
        let expires = wait.expires_at(self.max);
        let Some(before) = failures_before(&now, &wait.until, &expires, wait.failures) else {
            return wait.until.since(now).min(wait.last);
        };
        let longest = longest_delay(self.base, before, self.max);
        let delay = self.source.upper_half(longest).max(Duration::from_nanos(1));
        wait.failures = before.saturating_add(1);
        wait.until = now + delay;
        wait.last = delay;
        delay
    }

    fn forget(&mut self, key: &K) {
        self.waits.remove(key);
    }

    /// Returns the number of counted failures of `key`. If the entry of the key had expired at the
    /// last call of `delay`, returns 0.
    fn num_requeues(&self, key: &K) -> u32 {
        self.waits
            .get(key)
            .filter(|wait| !wait.is_expired(self.now, self.max))
            .map_or(0, |wait| wait.failures)
    }

    fn is_idle(&self) -> bool {
        self.waits.len() == 0
    }

    fn longest_delay(&self) -> Duration {
        longest_delay(self.base, u32::MAX, self.max).max(Duration::from_nanos(1))
    }
}

#[cfg(test)]
mod tests;
