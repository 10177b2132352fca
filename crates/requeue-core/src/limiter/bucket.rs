//! A limiter that all keys share: client-go's `TypedBucketRateLimiter`.

use core::time::Duration;

use super::RateLimiter;
use crate::types::Time;

/// A token bucket that limits the rate of failures of all keys together.
///
/// The bucket starts full and is refilled at a steady rate. Each failure takes one token. Keys that fail while the
/// bucket is empty form a line: each key waits until the bucket has gained the key's token. The number of keys in the
/// line is unlimited.
///
/// This is client-go's `TypedBucketRateLimiter`, which is a `Limiter` of `golang.org/x/time/rate`. The delays equal the
/// delays of that limiter to the nanosecond. The bucket remembers no key: [`num_requeues`] is 0, and [`forget`] returns
/// no token.
///
/// If the clock goes back, no token is lost or gained, and refilling continues from the new time. A period that the
/// clock repeats therefore refills the bucket twice.
///
/// [`num_requeues`]: RateLimiter::num_requeues
/// [`forget`]: RateLimiter::forget
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::Bucket;
/// use requeue::limiter::RateLimiter;
/// use requeue::Time;
///
/// let mut limiter = Bucket::new(10.0, 100);
/// for key in 0..100 {
///     assert!(limiter.delay(&key, Time::ZERO).is_zero());
/// }
/// assert_eq!(limiter.delay(&100, Time::ZERO), Duration::from_millis(100));
/// assert_eq!(limiter.delay(&101, Time::ZERO), Duration::from_millis(200));
/// ```
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Tokens per second. [`f64::MAX`] and above mean no limit.
    rate: f64,
    burst: u32,
    /// The number of tokens in the bucket. Each key that waits counts as -1, so the number can be negative.
    tokens: f64,
    last: Time,
}

impl Bucket {
    /// Creates a bucket that holds up to `burst` tokens and gains `qps` tokens per second.
    ///
    /// - If `qps` is [`f64::MAX`] or more, including infinity, there is no limit, and every delay
    ///   is zero.
    /// - If `qps` is 0, negative or NaN, no token is added after the first `burst`. Later failures
    ///   get [`Duration::MAX`].
    /// - If `burst` is 0 and there is a limit, every failure gets [`Duration::MAX`].
    /// - A wait of more than about 292 years also becomes [`Duration::MAX`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::Bucket;
    /// use requeue::{Time, limiter::RateLimiter};
    ///
    /// let first = |qps, burst| Bucket::new(qps, burst).delay(&"a", Time::ZERO);
    /// assert_eq!(first(f64::INFINITY, 0), Duration::ZERO);
    /// assert_eq!(first(0.0, 1), Duration::ZERO);
    /// assert_eq!(first(10.0, 0), Duration::MAX);
    /// ```
    #[must_use]
    pub fn new(qps: f64, burst: u32) -> Self {
        let rate = if qps > 0.0 { qps } else { 0.0 };
        Self { rate, burst, tokens: f64::from(burst), last: Time::ZERO }
    }

    const fn is_unlimited(&self) -> bool {
        self.rate >= f64::MAX
    }

    /// x/time/rate's `reserveN` for one token, without a bound on the wait.
    fn reserve_token(&mut self, now: Time) -> Duration {
        if self.is_unlimited() {
            return Duration::ZERO;
        }
        if self.burst == 0 {
            return Duration::MAX;
        }
        let gained = now.since(self.last).as_secs_f64() * self.rate;
        // A key that waits has already taken its token, so the next key waits longer.
        self.tokens = (self.tokens + gained).min(f64::from(self.burst)) - 1.0;
        // The time is set even if the clock went back. Otherwise, no token would be added until the
        // clock reaches the old time.
        self.last = now;
        if self.tokens < 0.0 { self.time_to_gain(-self.tokens) } else { Duration::ZERO }
    }

    fn time_to_gain(&self, tokens: f64) -> Duration {
        const MOST_NANOS: f64 = i64::MAX as f64;
        let nanos = (tokens / self.rate) * 1e9;
        // `nanos` is infinite at a rate of 0.
        if nanos <= MOST_NANOS { Duration::from_nanos(nanos as u64) } else { Duration::MAX }
    }
}

impl<K> RateLimiter<K> for Bucket {
    fn delay(&mut self, _key: &K, now: Time) -> Duration {
        self.reserve_token(now)
    }

    fn forget(&mut self, _key: &K) {}

    fn num_requeues(&self, _key: &K) -> u32 {
        0
    }

    fn is_idle(&self) -> bool {
        true
    }

    /// Returns the time in which the empty bucket fills. The delays have no maximum, because the
    /// number of keys in the line is unlimited.
    fn longest_delay(&self) -> Duration {
        if self.is_unlimited() {
            Duration::ZERO
        } else if self.burst == 0 {
            Duration::MAX
        } else {
            self.time_to_gain(f64::from(self.burst))
        }
    }
}

#[cfg(test)]
mod tests;
