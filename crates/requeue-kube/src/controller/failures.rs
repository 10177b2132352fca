//! The failures of each object, and the events that end its backoff early.
//!
//! Only another version of an object ends its backoff early. A run that started early and failed
//! waits for its whole delay. Until the object succeeds, the limiter forgets its key at most once.

use std::collections::HashMap;
use std::time::Duration;

use kube::core::ObjectMeta;
use parking_lot::Mutex;
use requeue::Time;
use requeue::limiter::RateLimiter;

use crate::{ObjectKey, watch};

/// The version of an object that failed: its generation and its uid. The uid is needed because another object may get
/// the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version {
    /// The hash of the uid. A hash suffices, because uids are only compared.
    uid: u64,
    /// The generation, or `None` if new generations have no effect.
    generation: Option<i64>,
}

impl Version {
    pub(super) fn from_meta(meta: &ObjectMeta, generations: bool) -> Self {
        let generation = meta.generation.filter(|_| generations);
        Self { uid: watch::hash(&meta.uid), generation }
    }
}

/// The failures of each key: the rate limiter, and the state that decides when a key runs again.
///
/// The queue delays a key until its backoff has passed. Another [`Version`] of the object ends the wait early. Either
/// the watch or the worker that has just recorded a failure may be the first to see that version. The store has the new
/// object before the watch reports it. Both therefore compare the failed version with the store, under the lock of
/// `keys`. The later comparison has no effect.
///
/// Each object that has failed and has not succeeded since has an entry.
pub(super) struct Failures {
    /// The limiter may be user code. It is therefore called only under this lock, never under the lock of `keys`. A
    /// slow limiter then delays only callers that wait for its result.
    limiter: Mutex<Box<dyn RateLimiter<ObjectKey>>>,
    keys: Mutex<HashMap<ObjectKey, Failure>>,
}

#[derive(Default)]
struct Failure {
    /// The version that failed, or the version for which the wait was ended early.
    version: Option<Version>,
    /// The number of consecutive failures of this version since it was last given up.
    count: u32,
    wait: Wait,
    /// If the key was given up, the number of its adds at that time. After the delay, the key is
    /// delivered only to check whether it was added since.
    parked: Option<u32>,
    /// True if the key runs before its delay has passed. If the key fails again, it waits for its whole delay.
    hurried: bool,
    /// True if the limiter has forgotten the key since its last success.
    cleared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Wait {
    /// The key is ready or in flight, so it does not back off.
    #[default]
    No,
    UntilDueOrChanged,
    UntilDue,
}

impl Failures {
    pub(super) fn new(limiter: Box<dyn RateLimiter<ObjectKey>>) -> Self {
        Self { limiter: Mutex::new(limiter), keys: Mutex::default() }
    }

    /// The controller calls this method at the delivery of a key, with its number of adds. `is_retry` is false if the
    /// key was removed from the queue since its failure. Returns the number of the attempt, or `None` if the key does
    /// not run, because it was given up and not added since.
    pub(super) fn begin_attempt(&self, key: &ObjectKey, adds: u32, is_retry: bool) -> Option<u32> {
        let mut keys = self.keys.lock();
        let Some(failure) = keys.get_mut(key) else { return Some(1) };
        failure.wait = Wait::No;
        if failure.parked.take() == Some(adds) && is_retry {
            return None;
        }
        Some(failure.count.saturating_add(1))
    }

    /// Records a failure of `version`. Returns `delay` if it is given, and otherwise the limiter's delay.
    pub(super) fn record_failure(
        &self,
        key: &ObjectKey,
        version: Option<Version>,
        delay: Option<Duration>,
        now: Time,
    ) -> Duration {
        // The limiter is called first, so that it never counts a failure of a key that has no entry
        // to forget.
        let delay = delay.unwrap_or_else(|| self.limiter.lock().delay(key, now));
        let mut keys = self.keys.lock();
        let failure = keys.entry(key.clone()).or_default();
        failure.count = failure.count.saturating_add(1);
        failure.version = version;
        delay
    }

    /// Records that a run of `version`, with this number of adds, failed and is not retried. The
    /// limiter counts the failure. If the key is added, it can run again after the returned delay.
    pub(super) fn record_give_up(
        &self,
        key: &ObjectKey,
        version: Option<Version>,
        adds: u32,
        now: Time,
    ) -> Duration {
        let delay = self.limiter.lock().delay(key, now);
        let mut keys = self.keys.lock();
        let failure = keys.entry(key.clone()).or_default();
        *failure = Failure { count: 0, version, parked: Some(adds), ..std::mem::take(failure) };
        delay
    }

    /// Forgets the failures of a key that has succeeded, or whose object no longer exists.
    pub(super) fn forget_failures(&self, key: &ObjectKey) {
        // The lock is released before the limiter is called.
        let known = self.keys.lock().remove(key);
        if known.is_some() {
            self.limiter.lock().forget(key);
        }
    }

    /// Forgets the failures of the keys for which `is_gone` returns true.
    pub(super) fn forget_all(&self, is_gone: impl Fn(&ObjectKey) -> bool) {
        // The keys are collected first, because the limiter must not be called under the lock of
        // `keys`.
        let gone: Vec<_> = self.keys.lock().keys().filter(|key| is_gone(key)).cloned().collect();
        gone.iter().for_each(|key| self.forget_failures(key));
    }

    /// The controller calls this method when the queue has recorded the completion. After a failure, the key now backs
    /// off.
    pub(super) fn begin_backoff(&self, key: &ObjectKey) {
        if let Some(failure) = self.keys.lock().get_mut(key) {
            let hurried = std::mem::take(&mut failure.hurried);
            // A key that ran before its time waits for its whole delay. Generations that the reconciler itself creates
            // therefore cannot undo the backoff.
            failure.wait = if hurried { Wait::UntilDue } else { Wait::UntilDueOrChanged };
        }
    }

    /// Ends the wait of the key if the version that failed is not `version`. When the wait ends, calls `release` under
    /// the lock of `keys`, and returns true. Neither closure may run user code.
    pub(super) fn end_wait_if_changed(
        &self,
        key: &ObjectKey,
        version: impl Fn() -> Option<Version>,
        release: impl FnOnce(),
    ) -> bool {
        let mut limiter_forgot = false;
        loop {
            let mut keys = self.keys.lock();
            let Some(failure) = keys.get_mut(key) else { return false };
            if failure.wait != Wait::UntilDueOrChanged {
                return false;
            }
            let version = version();
            if version == failure.version {
                return false;
            }
            if failure.cleared || limiter_forgot {
                *failure = Failure { version, hurried: true, cleared: true, ..Failure::default() };
                release();
                return true;
            }
            // The limiter must forget the key before the release, and is not called under this lock. In the meantime,
            // the key may have become due or been released. All conditions are therefore checked again.
            drop(keys);
            self.limiter.lock().forget(key);
            limiter_forgot = true;
        }
    }
}
