//! The limiter of a queue, with a separate lock. This module catches every panic of the limiter.

use std::time::Duration;

use requeue_core::Time;
use requeue_core::limiter::{Bucket, RateLimiter};

use crate::ranked_mutex::{Rank, RankedMutex};
use crate::sync::{AtomicBool, Ordering, quietly};

/// A limiter behind a lock. A limiter is user code, so each method catches its panics.
///
/// If the lock is refused, each method returns without calling the limiter. The lock is refused if
/// the caller is the limiter itself, or code that runs under the lock of a queue.
pub(crate) struct LockedLimiter<K> {
    limiter: RankedMutex<Box<dyn RateLimiter<K>>>,
    /// The delay that is used if the limiter panics or its lock is refused.
    longest: Duration,
    /// True if the limiter has no failures to forget. A success then need not acquire the lock of
    /// the limiter. The flag is written under this lock. All failures of a key are counted before
    /// the key is delivered again. A thread that completes the key therefore reads a value of the
    /// flag that includes these failures.
    idle: AtomicBool,
}

impl<K> LockedLimiter<K> {
    pub(super) fn new(limiter: Box<dyn RateLimiter<K>>) -> Self {
        let idle = quietly(|| limiter.is_idle()).unwrap_or(false);
        let longest = quietly(|| limiter.longest_delay()).unwrap_or(Duration::from_secs(300));
        let limiter = RankedMutex::new(limiter);
        Self { limiter, longest, idle: AtomicBool::new(idle) }
    }

    fn note_idle(&self, limiter: &dyn RateLimiter<K>) {
        let idle = quietly(|| limiter.is_idle()).unwrap_or(false);
        // A relaxed store is sufficient. If a thread reads an old value, it runs concurrently with
        // the failure that changed the value, and could just as well have run before it.
        self.idle.store(idle, Ordering::Relaxed);
    }

    /// Counts a failure of `key`, and returns its delay. If the limiter panics or its lock is
    /// refused, returns the longest delay of the limiter.
    pub(crate) fn next_delay(&self, key: &K, now: Time) -> Duration {
        let Ok(mut limiter) = self.limiter.lock(Some(Rank::Limiter)) else { return self.longest };
        let delay = quietly(|| limiter.delay(key, now)).unwrap_or(self.longest);
        self.note_idle(&**limiter);
        delay
    }

    /// Returns true if the limiter may have failures that it can forget.
    #[inline]
    pub(super) fn may_forget(&self) -> bool {
        !self.idle.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn forget_key(&self, key: &K) {
        if self.may_forget() {
            self.forget_failures(key);
        }
    }

    #[inline(never)]
    fn forget_failures(&self, key: &K) {
        if let Ok(mut limiter) = self.limiter.lock(Some(Rank::Limiter)) {
            quietly(|| limiter.forget(key));
            self.note_idle(&**limiter);
        }
    }

    pub(crate) fn num_requeues(&self, key: &K) -> u32 {
        let Ok(limiter) = self.limiter.lock(Some(Rank::Limiter)) else { return 0 };
        quietly(|| limiter.num_requeues(key)).unwrap_or(0)
    }
}

impl<K> Drop for LockedLimiter<K> {
    fn drop(&mut self) {
        // A panic while the limiter is dropped must not reach the code that drops the queue. The
        // limiter is therefore replaced and dropped here.
        let limiter =
            std::mem::replace(self.limiter.get_mut(), Box::new(Bucket::new(f64::INFINITY, 0)));
        quietly(|| drop(limiter));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use requeue_core::limiter::ExponentialFailure;

    use super::*;

    /// A limiter that counts the calls of `forget`.
    struct Counting(Arc<AtomicU32>, ExponentialFailure<u32>, bool);

    impl RateLimiter<u32> for Counting {
        fn delay(&mut self, key: &u32, now: Time) -> Duration {
            self.1.delay(key, now)
        }

        fn forget(&mut self, key: &u32) {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.forget(key);
        }

        fn num_requeues(&self, key: &u32) -> u32 {
            self.1.num_requeues(key)
        }

        fn is_idle(&self) -> bool {
            self.2 && self.1.is_idle()
        }
    }

    fn counting(tells: bool) -> (Arc<AtomicU32>, LockedLimiter<u32>) {
        let count = Arc::new(AtomicU32::new(0));
        let inner = ExponentialFailure::new(Duration::from_secs(1), Duration::from_secs(9));
        (Arc::clone(&count), LockedLimiter::new(Box::new(Counting(count, inner, tells))))
    }

    #[test]
    fn a_limiter_that_does_not_say_whether_it_is_idle_is_always_called() {
        let (count, limiter) = counting(false);
        limiter.forget_key(&1);
        limiter.forget_key(&1);
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_limiter_with_nothing_to_forget_is_not_called_until_a_key_fails() {
        let (count, limiter) = counting(true);
        limiter.forget_key(&1);
        assert_eq!(count.load(Ordering::Relaxed), 0);
        limiter.next_delay(&1, Time::ZERO);
        limiter.forget_key(&2);
        assert_eq!((count.load(Ordering::Relaxed), limiter.num_requeues(&1)), (1, 1));
        limiter.forget_key(&1);
        limiter.forget_key(&1);
        assert_eq!((count.load(Ordering::Relaxed), limiter.num_requeues(&1)), (2, 0));
    }
}
