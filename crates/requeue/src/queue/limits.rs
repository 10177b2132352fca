//! The queue's rate limiter, behind a lock of its own and a net.

use std::time::Duration;

use requeue_core::{RateLimiter, Time};

use crate::sync::{Guarded, quietly};

/// A limiter is the user's code: what it panics with, or calls back into, is caught here.
pub(crate) struct Limits<K> {
    limiter: Guarded<Box<dyn RateLimiter<K>>>,
}

impl<K> Limits<K> {
    pub(super) const fn new(limiter: Box<dyn RateLimiter<K>>) -> Self {
        Self { limiter: Guarded::new(limiter, true) }
    }

    /// Counts a failure of `key`. A limiter that panics, or that is asked from within itself,
    /// yields its longest delay.
    pub(crate) fn delay(&self, key: &K, now: Time) -> Duration {
        let fallback = Duration::from_secs(300);
        let Ok(mut limiter) = self.limiter.lock() else { return fallback };
        quietly(|| limiter.delay(key, now))
            .or_else(|| quietly(|| limiter.longest()))
            .unwrap_or(fallback)
    }

    pub(crate) fn forget(&self, key: &K) {
        if let Ok(mut limiter) = self.limiter.lock() {
            quietly(|| limiter.forget(key));
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
