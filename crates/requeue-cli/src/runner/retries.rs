//! The failures of keys that wait for a retry.

use std::collections::HashMap;
use std::hash::RandomState;
use std::time::Duration;

use parking_lot::Mutex;
use requeue::limiter::BackoffLimiter;
use requeue::limiter::RateLimiter;
use requeue::{Completion, Item, Time};

use crate::key::Key;
use crate::process::run_input::Past;

/// The keys with failures. An entry is removed when its key succeeds or is given up, so there are never more entries
/// than held keys.
#[derive(Debug)]
pub(crate) struct FailingKeys {
    /// The maximum number of retries of a key. `None` means no limit.
    retries: Option<u32>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    keys: HashMap<Key, State>,
    limiter: BackoffLimiter<Key, RandomState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The number of counted failures.
    failures: u32,
    /// The end of the backoff. If an add makes the key run before this time, a failure of that run is not counted.
    until: Time,
    last_exit: i32,
}

/// The result of a failure for its key.
#[derive(Debug)]
#[must_use]
pub(crate) enum Verdict {
    /// The key is in the queue, and waits for its retry.
    Retried { attempt: u32, delay: Duration },
    /// The key has used all its retries. The caller must complete the item.
    GivenUp { item: Item<'static, Key>, attempts: u32 },
}

impl FailingKeys {
    /// Creates an empty collection. Backoffs grow from `base` to `longest`. `seed` determines the jitter of the
    /// backoffs.
    pub(crate) fn new(retries: Option<u32>, base: Duration, longest: Duration, seed: u64) -> Self {
        let limiter = BackoffLimiter::with_hasher(base, longest, RandomState::new()).seed(seed);
        Self { retries, inner: Mutex::new(Inner { keys: HashMap::new(), limiter }) }
    }

    pub(crate) fn past_of(&self, key: &[u8]) -> Past {
        match self.inner.lock().keys.get(key) {
            None => Past { attempt: 1, last_exit: None },
            Some(state) => {
                Past { attempt: state.failures.saturating_add(1), last_exit: Some(state.last_exit) }
            }
        }
    }

    pub(crate) fn forget_key(&self, key: &[u8]) {
        let mut inner = self.inner.lock();
        if let Some((key, _)) = inner.keys.remove_entry(key) {
            inner.limiter.forget(&key);
        }
    }

    /// Counts a failure at `now`. If the key has retries left, completes the item, so that the key runs again after
    /// its backoff.
    pub(crate) fn count_failure(
        &self,
        item: Item<'static, Key>,
        last_exit: i32,
        now: Time,
    ) -> Verdict {
        let mut inner = self.inner.lock();
        let before = inner.keys.get(item.key()).copied().unwrap_or_default();
        // An add can start the key before its backoff is over. A failure of this early run is not counted.
        let counts = now >= before.until;
        let failures = before.failures.saturating_add(counts.into());
        if self.retries.is_some_and(|retries| failures > retries) {
            // The entry is removed, so that the key has no failures when it is added again.
            inner.keys.remove(item.key());
            inner.limiter.forget(item.key());
            return Verdict::GivenUp { item, attempts: failures };
        }
        let until = if counts { now + inner.limiter.delay(item.key(), now) } else { before.until };
        inner.keys.insert(item.key().clone(), State { failures, until, last_exit });
        // The item is completed under the lock. The next run may start immediately, and it then waits for the lock and
        // sees this failure.
        let delay = until.since(now);
        item.complete(Completion::RetryAfter(delay));
        Verdict::Retried { attempt: before.failures.saturating_add(1), delay }
    }
}

#[cfg(test)]
mod tests {
    use requeue::clock::FakeClock;
    use requeue::{Queue, ReaddPolicy};

    use super::*;
    use crate::key::KeyQueue;

    const KEY: &[u8] = b"key";

    fn queue(clock: &FakeClock) -> KeyQueue {
        let queue = Queue::builder().clock(clock.clone()).readd_policy(ReaddPolicy::Replace);
        let queue = queue.hasher(RandomState::new()).build().unwrap();
        queue.add(KEY.into());
        queue
    }

    fn failing(retries: u32) -> FailingKeys {
        FailingKeys::new(Some(retries), Duration::from_secs(1), Duration::from_secs(9), 42)
    }

    fn fail(failing: &FailingKeys, queue: &KeyQueue) -> Verdict {
        failing.count_failure(queue.try_get().map(Item::into_owned).unwrap(), 7, queue.now())
    }

    #[test]
    fn a_key_is_given_up_past_its_retries_and_starts_afresh() {
        let (failing, clock) = (failing(1), FakeClock::new());
        let queue = queue(&clock);
        assert_eq!(failing.past_of(KEY), Past { attempt: 1, last_exit: None });
        assert!(matches!(fail(&failing, &queue), Verdict::Retried { attempt: 1, .. }));
        assert_eq!(failing.past_of(KEY), Past { attempt: 2, last_exit: Some(7) });
        clock.advance(Duration::from_secs(1));
        assert!(matches!(fail(&failing, &queue), Verdict::GivenUp { attempts: 2, .. }));
        assert_eq!(failing.past_of(KEY), Past { attempt: 1, last_exit: None });
    }

    #[test]
    fn a_failure_of_a_run_before_its_time_does_not_count() {
        let (failing, clock) = (failing(1), FakeClock::new());
        let queue = queue(&clock);
        assert!(matches!(fail(&failing, &queue), Verdict::Retried { attempt: 1, .. }));
        for _ in 0..100 {
            queue.add(KEY.into());
            assert!(matches!(fail(&failing, &queue), Verdict::Retried { attempt: 2, .. }));
        }
        assert_eq!(failing.past_of(KEY).attempt, 2);
        clock.advance(Duration::from_secs(1));
        assert!(matches!(fail(&failing, &queue), Verdict::GivenUp { attempts: 2, .. }));
    }
}
