//! A token bucket for the failures of all keys: client-go's `TypedBucketRateLimiter`.

use core::time::Duration;

use super::RateLimiter;
use crate::types::Time;

/// A token bucket that limits the rate of failures of all keys together.
///
/// The bucket starts full, and gains tokens at a constant rate. Each failure takes one token. If
/// the bucket is empty, the key waits for a token, behind the keys that already wait. The number of
/// waiting keys is unlimited.
///
/// This is client-go's `TypedBucketRateLimiter`, which wraps a `Limiter` of
/// `golang.org/x/time/rate`. The delays equal those of the Go limiter to the nanosecond. The bucket
/// stores no data per key: [`num_requeues`] always returns 0, and [`forget`] returns no token to
/// the bucket.
///
/// If the clock goes back, the number of tokens does not change, and the bucket gains tokens from
/// the new time on. The bucket therefore gains tokens twice for a period that the clock repeats.
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
    /// The number of tokens that the bucket gains per second. [`f64::MAX`] and above mean no limit.
    rate: f64,
    burst: u32,
    /// The number of tokens in the bucket. It is negative while keys wait: each waiting key has
    /// taken one token in advance.
    tokens: f64,
    last: Time,
}

impl Bucket {
    /// Creates a bucket that holds up to `burst` tokens and gains `qps` tokens per second.
    ///
    /// - If `qps` is [`f64::MAX`] or more, including infinity, there is no limit, and every delay
    ///   is zero.
    /// - If `qps` is 0, negative or NaN, the bucket gains no tokens. After the first `burst`
    ///   failures, every delay is [`Duration::MAX`].
    /// - If `burst` is 0 and there is a limit, every delay is [`Duration::MAX`].
    /// - A delay of more than about 292 years becomes [`Duration::MAX`].
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

    /// Takes one token, and returns the time until the bucket has gained it. This is `reserveN` of
    /// Go's x/time/rate, for one token and without a maximum wait.
    fn reserve_token(&mut self, now: Time) -> Duration {
        if self.is_unlimited() {
            return Duration::ZERO;
        }
        if self.burst == 0 {
            return Duration::MAX;
        }
        let gained = now.since(self.last).as_secs_f64() * self.rate;
        // A waiting key has already taken its token, so the next key waits one token longer.
        self.tokens = (self.tokens + gained).min(f64::from(self.burst)) - 1.0;
        // The time is stored even if the clock went back. Otherwise, the bucket would gain no token
        // until the clock reaches the old time again.
        self.last = now;
        if self.tokens < 0.0 { self.time_to_gain(-self.tokens) } else { Duration::ZERO }
    }

    fn time_to_gain(&self, tokens: f64) -> Duration {
        const MOST_NANOS: f64 = i64::MAX as f64;
        let nanos = (tokens / self.rate) * 1e9;
        // If the rate is 0, `nanos` is infinite.
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

    /// Returns the time in which an empty bucket fills. A delay can be longer, because the number
    /// of waiting keys is unlimited.
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
