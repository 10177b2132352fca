//! What is remembered of a key while it fails.

use std::collections::HashMap;
use std::sync::Mutex;

use requeue::{Item, Time};

use crate::input::Key;

/// Failing keys. An entry goes when its key is done or given up, so there are never more than keys
/// are held.
#[derive(Debug)]
pub(crate) struct Failing {
    /// Runs after the first; `None` for ever.
    retries: Option<u32>,
    keys: Mutex<HashMap<Key, State>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Failures that count.
    failures: u32,
    /// Until when the last of them has the key wait: one before that time, of a run that an add
    /// has brought forward, doesn't count.
    until: Time,
    last_exit: i32,
}

/// What a run is told of the attempts before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Past {
    pub(crate) attempt: u32,
    pub(crate) last_exit: Option<i32>,
}

/// What a failure comes to.
#[derive(Debug)]
#[must_use]
pub(crate) enum Verdict {
    /// The key is back in the queue.
    Retried,
    /// It is past its retries, after so many attempts.
    GivenUp { item: Item<'static, Key>, attempts: u32 },
}

impl Failing {
    pub(crate) fn new(retries: Option<u32>) -> Self {
        Self { retries, keys: Mutex::default() }
    }

    pub(crate) fn past(&self, key: &[u8]) -> Past {
        match self.lock().get(key) {
            None => Past { attempt: 1, last_exit: None },
            Some(state) => {
                Past { attempt: state.failures.saturating_add(1), last_exit: Some(state.last_exit) }
            }
        }
    }

    pub(crate) fn forget(&self, key: &[u8]) {
        self.lock().remove(key);
    }

    /// Counts a failure at `now`; has the key wait for its retry, if there is to be one.
    pub(crate) fn fail(&self, item: Item<'static, Key>, last_exit: i32, now: Time) -> Verdict {
        let mut keys = self.lock();
        let before = keys.get(item.key()).copied().unwrap_or_default();
        let counts = now >= before.until;
        let failures = before.failures.saturating_add(counts.into());
        if self.retries.is_some_and(|retries| failures > retries) {
            keys.remove(item.key());
            return Verdict::GivenUp { item, attempts: failures };
        }
        let key = item.key().clone();
        // Still under the lock: the next run, which may start at once, finds it counted.
        let delay = item.retry();
        let until = if counts { now + delay } else { before.until };
        keys.insert(key, State { failures, until, last_exit });
        Verdict::Retried
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, State>> {
        self.keys.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use requeue::clock::FakeClock;
    use requeue::{EarlyAdd, Queue};

    use super::*;

    const KEY: &[u8] = b"key";

    fn queue(clock: &FakeClock) -> Queue<Key> {
        let queue = Queue::builder().clock(clock.clone()).early_add(EarlyAdd::Replace);
        let queue = queue.build().unwrap();
        queue.add(KEY.into());
        queue
    }

    fn fail(failing: &Failing, queue: &Queue<Key>) -> Verdict {
        failing.fail(queue.try_get_owned().unwrap(), 7, queue.now())
    }

    #[test]
    fn a_key_is_given_up_past_its_retries_and_starts_afresh() {
        let (failing, clock) = (Failing::new(Some(1)), FakeClock::new());
        let queue = queue(&clock);
        assert_eq!(failing.past(KEY), Past { attempt: 1, last_exit: None });
        assert!(matches!(fail(&failing, &queue), Verdict::Retried));
        assert_eq!(failing.past(KEY), Past { attempt: 2, last_exit: Some(7) });
        clock.advance(Duration::from_secs(1));
        assert!(matches!(fail(&failing, &queue), Verdict::GivenUp { attempts: 2, .. }));
        assert_eq!(failing.past(KEY), Past { attempt: 1, last_exit: None });
    }

    #[test]
    fn a_failure_of_a_run_before_its_time_does_not_count() {
        let (failing, clock) = (Failing::new(Some(1)), FakeClock::new());
        let queue = queue(&clock);
        assert!(matches!(fail(&failing, &queue), Verdict::Retried));
        for _ in 0..100 {
            queue.add(KEY.into());
            assert!(matches!(fail(&failing, &queue), Verdict::Retried));
        }
        assert_eq!(failing.past(KEY).attempt, 2);
        clock.advance(Duration::from_secs(1));
        assert!(matches!(fail(&failing, &queue), Verdict::GivenUp { attempts: 2, .. }));
    }
}
