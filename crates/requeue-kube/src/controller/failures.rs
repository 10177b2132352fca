//! The failures of each object, and the events that end an object's backoff early.
//!
//! Only a new version of the object ends its backoff early. If the early run fails too, the object waits for its whole
//! delay. Until the object succeeds, the limiter therefore forgets its failures at most once.

use std::collections::HashMap;
use std::time::Duration;

use kube::core::ObjectMeta;
use parking_lot::Mutex;
use requeue::Time;
use requeue::limiter::RateLimiter;

use crate::{ObjectKey, watch};

/// The version of an object whose run failed: its generation and its uid. The uid distinguishes the object from a later
/// object of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version {
    /// The hash of the uid. A hash needs less memory, and suffices for a comparison.
    uid: u64,
    /// The generation, or `None` if a new generation does not end a backoff.
    generation: Option<i64>,
}

impl Version {
    pub(super) fn from_meta(meta: &ObjectMeta, generations: bool) -> Self {
        let generation = meta.generation.filter(|_| generations);
        Self { uid: watch::hash(&meta.uid), generation }
    }
}

/// The rate limiter, and the state of each key that decides when the key runs again.
///
/// The queue delays a failed key until its backoff has passed. A new [`Version`] of the object ends the delay early.
/// Two threads can be the first to notice this version: the watch that reports the object, and the worker that has just
/// recorded the failure. The store already has the new object when the watch reports it. Both threads therefore compare
/// the failed version with the store, under the lock of `keys`. The second comparison has no effect.
///
/// `keys` has an entry for each object that has failed and has not succeeded since.
pub(super) struct Failures {
    /// The limiter may be the user's code, and may be slow. It is called only under its own lock, never under the lock
    /// of `keys`. A slow limiter therefore delays only the threads that need its result.
    limiter: Mutex<Box<dyn RateLimiter<ObjectKey>>>,
    keys: Mutex<HashMap<ObjectKey, Failure>>,
}

#[derive(Default)]
struct Failure {
    /// The version whose run failed, or the version that ended the backoff early.
    version: Option<Version>,
    /// The number of consecutive failures since the last success, since the key was last given up, and since the
    /// backoff last ended early.
    count: u32,
    wait: Wait,
    /// `Some` if the key was given up. Contains the number of its adds at that time. After the delay, the queue
    /// delivers the key. The key then runs only if it was added since it was given up.
    parked: Option<u32>,
    /// True if the next run of the key begins before its delay has passed. If this run fails, the key waits for its
    /// whole delay.
    hurried: bool,
    /// True if the limiter has forgotten the key's failures since its last success.
    cleared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Wait {
    /// The key is ready or in flight, so it does not wait for its backoff.
    #[default]
    No,
    UntilDueOrChanged,
    UntilDue,
}

impl Failures {
    pub(super) fn new(limiter: Box<dyn RateLimiter<ObjectKey>>) -> Self {
        Self { limiter: Mutex::new(limiter), keys: Mutex::default() }
    }

    /// Returns the number of the attempt that begins. The controller calls this method when a key with this number of
    /// adds was delivered. Returns `None` if the key was given up and was not added since, so that it does not run.
    /// `is_retry` is false if the key has left the queue since its failure.
    pub(super) fn begin_attempt(&self, key: &ObjectKey, adds: u32, is_retry: bool) -> Option<u32> {
        let mut keys = self.keys.lock();
        let Some(failure) = keys.get_mut(key) else { return Some(1) };
        failure.wait = Wait::No;
        if failure.parked.take() == Some(adds) && is_retry {
            return None;
        }
        Some(failure.count.saturating_add(1))
    }

    /// Records a failed run of `version`. Returns `delay`, or the limiter's delay if `delay` is `None`.
    pub(super) fn record_failure(
        &self,
        key: &ObjectKey,
        version: Option<Version>,
        delay: Option<Duration>,
        now: Time,
    ) -> Duration {
        // The limiter is called before the entry exists. Otherwise, another thread could remove the entry in between,
        // and the limiter would never forget the failure.
        let delay = delay.unwrap_or_else(|| self.limiter.lock().delay(key, now));
        let mut keys = self.keys.lock();
        let failure = keys.entry(key.clone()).or_default();
        failure.count = failure.count.saturating_add(1);
        failure.version = version;
        delay
    }

    /// Records a failed run of `version` after which the key is given up. The limiter counts the failure. If the key is
    /// added again, it runs after the returned delay at the earliest.
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

    /// Forgets the failures of a key. Its run has succeeded, or its object no longer exists.
    pub(super) fn forget_failures(&self, key: &ObjectKey) {
        // The lock on `keys` is released at the end of this statement, before the limiter is called.
        let known = self.keys.lock().remove(key);
        if known.is_some() {
            self.limiter.lock().forget(key);
        }
    }

    /// Forgets the failures of all keys for which `is_gone` returns true.
    pub(super) fn forget_all(&self, is_gone: impl Fn(&ObjectKey) -> bool) {
        // The keys are collected first, because the limiter must not be called under the lock on `keys`.
        let gone: Vec<_> = self.keys.lock().keys().filter(|key| is_gone(key)).cloned().collect();
        gone.iter().for_each(|key| self.forget_failures(key));
    }

    /// Notes that a failed key now waits for its backoff. The controller calls this method when the queue has recorded
    /// the completion of the run.
    pub(super) fn begin_backoff(&self, key: &ObjectKey) {
        if let Some(failure) = self.keys.lock().get_mut(key) {
            let hurried = std::mem::take(&mut failure.hurried);
            // If the run began early, a new version does not end the following backoff. A reconciler whose writes
            // create new generations of the object therefore still backs off.
            failure.wait = if hurried { Wait::UntilDue } else { Wait::UntilDueOrChanged };
        }
    }

    /// If the store's `version` is not the version that failed, ends the key's wait, and returns true. It then calls
    /// `release`, under the lock on `keys`. Neither closure may call the user's code.
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
            // The limiter must forget the key before `release` is called, but must not be called under this lock. While
            // the lock is released, the key may become due, or another thread may release it. All conditions are
            // therefore checked again.
            drop(keys);
            self.limiter.lock().forget(key);
            limiter_forgot = true;
        }
    }
}
