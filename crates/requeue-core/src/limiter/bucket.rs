//! The limiter of all keys together: client-go's `TypedBucketRateLimiter`.

use core::time::Duration;

use super::RateLimiter;
use crate::types::time::Time;

/// A bucket of tokens, of which each failure of whatever key takes one, and waits for it when
/// there is none.
///
/// The bucket starts full and is refilled at a steady rate. Failures that find it empty stand in
/// line: each is told to wait until its own token is there, and the line has no bound. client-go's
/// `TypedBucketRateLimiter`, which is a `Limiter` of `golang.org/x/time/rate`; the delays are that
/// limiter's, nanosecond for nanosecond. It remembers no key: [`num_requeues`] is 0, and [`forget`]
/// gives no token back.
///
/// When the clock goes back no token is lost or gained, and refilling goes on from there: a time
/// that comes twice refills twice.
///
/// [`num_requeues`]: RateLimiter::num_requeues
/// [`forget`]: RateLimiter::forget
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::Bucket;
/// use requeue::{RateLimiter, Time};
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
    /// Tokens per second: [`f64::MAX`] and above are no limit.
    rate: f64,
    burst: u32,
    /// Below zero by as many as stand in line.
    tokens: f64,
    last: Time,
}

impl Bucket {
    /// A bucket that holds up to `burst` tokens and gets `qps` more each second.
    ///
    /// - From [`f64::MAX`] on, infinity included, `qps` is no limit: no failure waits.
    /// - At 0, and where it makes no sense (below 0, or NaN), no token comes after the first
    ///   `burst`: later failures get [`Duration::MAX`].
    /// - With a `burst` of 0 and a limit, every failure gets [`Duration::MAX`].
    /// - A wait of more than 292 years is [`Duration::MAX`] too.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::Bucket;
    /// use requeue::{RateLimiter, Time};
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

    /// x/time/rate's `reserveN` of one token, with no bound on the wait.
    fn reserve(&mut self, now: Time) -> Duration {
        if self.is_unlimited() {
            return Duration::ZERO;
        }
        if self.burst == 0 {
            return Duration::MAX;
        }
        let gained = now.since(self.last).as_secs_f64() * self.rate;
        self.tokens = (self.tokens + gained).min(f64::from(self.burst)) - 1.0;
        self.last = now;
        if self.tokens < 0.0 { self.time_to_gain(-self.tokens) } else { Duration::ZERO }
    }

    fn time_to_gain(&self, tokens: f64) -> Duration {
        const MOST_NANOS: f64 = i64::MAX as f64;
        let nanos = (tokens / self.rate) * 1e9;
        // Infinite at a rate of 0.
        if nanos <= MOST_NANOS { Duration::from_nanos(nanos as u64) } else { Duration::MAX }
    }
}

impl<K> RateLimiter<K> for Bucket {
    fn delay(&mut self, _key: &K, now: Time) -> Duration {
        self.reserve(now)
    }

    fn forget(&mut self, _key: &K) {}

    fn num_requeues(&self, _key: &K) -> u32 {
        0
    }

    /// There is none, because the line has no bound: the time that the empty bucket takes to fill.
    fn is_idle(&self) -> bool {
        true
    }

    fn longest(&self) -> Duration {
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
