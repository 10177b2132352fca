//! The queue's rate limiter, behind a lock of its own and a net.

use std::time::Duration;

use requeue_core::{RateLimiter, Time};

use crate::sync::{AtomicBool, Guarded, Ordering, quietly};

/// A limiter is the user's code: what it panics with, or calls back into, is caught here.
pub(crate) struct Limits<K> {
    limiter: Guarded<Box<dyn RateLimiter<K>>>,
    /// Whether the limiter says that it has nothing to forget; written under its lock. A success
    /// then need not take that, and mostly nothing fails. Whoever forgets a failure has got the key
    /// after it was counted, and so sees what was written then.
    idle: AtomicBool,
}

impl<K> Limits<K> {
    pub(super) fn new(limiter: Box<dyn RateLimiter<K>>) -> Self {
        let idle = quietly(|| limiter.is_idle()).unwrap_or(false);
        Self { limiter: Guarded::new(limiter, true), idle: AtomicBool::new(idle) }
    }

    fn note_idle(&self, limiter: &dyn RateLimiter<K>) {
        let idle = quietly(|| limiter.is_idle()).unwrap_or(false);
        self.idle.store(idle, Ordering::Relaxed);
    }

    /// Counts a failure of `key`. A limiter that panics, or that is asked from within itself,
    /// yields its longest delay.
    pub(crate) fn delay(&self, key: &K, now: Time) -> Duration {
        let fallback = Duration::from_secs(300);
        let Ok(mut limiter) = self.limiter.lock() else { return fallback };
        let delay = quietly(|| limiter.delay(key, now))
            .or_else(|| quietly(|| limiter.longest()))
            .unwrap_or(fallback);
        self.note_idle(&**limiter);
        delay
    }

    /// Whether there may be something to forget.
    #[inline]
    pub(super) fn forgets(&self) -> bool {
        !self.idle.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn forget(&self, key: &K) {
        if self.forgets() {
            self.forget_failures(key);
        }
    }

    #[inline(never)]
    fn forget_failures(&self, key: &K) {
        if let Ok(mut limiter) = self.limiter.lock() {
            quietly(|| limiter.forget(key));
            self.note_idle(&**limiter);
        }
    }

    pub(crate) fn num_requeues(&self, key: &K) -> u32 {
        let Ok(limiter) = self.limiter.lock() else { return 0 };
        quietly(|| limiter.num_requeues(key)).unwrap_or(0)
    }
}

impl<K> Drop for Limits<K> {
    fn drop(&mut self) {
        // A limiter whose drop panics must not do so while a queue is dropped.
        let Ok(mut limiter) = self.limiter.lock() else { return };
        let limiter = std::mem::replace(&mut *limiter, Box::new(Nothing));
        quietly(|| drop(limiter));
    }
}

struct Nothing;

impl<K> RateLimiter<K> for Nothing {
    fn delay(&mut self, _: &K, _: Time) -> Duration {
        Duration::ZERO
    }

    fn forget(&mut self, _: &K) {}

    fn num_requeues(&self, _: &K) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use requeue_core::limiter::ExponentialFailure;

    use super::*;

    /// Counts how often it is told to forget.
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

    fn counting(tells: bool) -> (Arc<AtomicU32>, Limits<u32>) {
        let count = Arc::new(AtomicU32::new(0));
        let inner = ExponentialFailure::new(Duration::from_secs(1), Duration::from_secs(9));
        (Arc::clone(&count), Limits::new(Box::new(Counting(count, inner, tells))))
    }

    #[test]
    fn a_limiter_that_does_not_say_whether_it_is_idle_is_always_told() {
        let (count, limits) = counting(false);
        limits.forget(&1);
        limits.forget(&1);
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_limiter_with_nothing_to_forget_is_left_alone_until_something_fails() {
        let (count, limits) = counting(true);
        limits.forget(&1);
        assert_eq!(count.load(Ordering::Relaxed), 0);
        limits.delay(&1, Time::ZERO);
        limits.forget(&2);
        assert_eq!((count.load(Ordering::Relaxed), limits.num_requeues(&1)), (1, 1));
        limits.forget(&1);
        limits.forget(&1);
        assert_eq!((count.load(Ordering::Relaxed), limits.num_requeues(&1)), (2, 0));
    }
}
