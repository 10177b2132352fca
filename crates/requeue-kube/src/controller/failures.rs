//! What has failed, and what ends its wait.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::reflector::Store;
use requeue::{RateLimiter, Time};

use crate::{ObjectKey, watch};

/// What a failure is one of: a generation of an object, and of no other under its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version {
    /// A hash, as it is only compared.
    uid: u64,
    /// Nothing where a new generation is to change nothing.
    generation: Option<i64>,
}

impl Version {
    pub(super) fn of(meta: &ObjectMeta, generations: bool) -> Self {
        let generation = meta.generation.filter(|_| generations);
        Self { uid: watch::hash(&meta.uid), generation }
    }
}

/// Finds the version of an object in the store; nothing if it is not there.
pub(super) type Versions = Box<dyn Fn(&ObjectKey) -> Option<Version> + Send + Sync>;

pub(super) fn versions<K>(store: Store<K>, dyntype: K::DynamicType, generations: bool) -> Versions
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Send + Sync,
{
    Box::new(move |key| {
        let object = store.get(&key.to_ref(dyntype.clone()))?;
        Some(Version::of(object.meta(), generations))
    })
}

/// The failures of each key: the rate limiter, and the state that decides when a key comes back.
///
/// The queue holds a key back until its delay has passed. Another [`Version`] of the object ends the
/// wait early. The watch and the worker that has just entered a failure may both be the first to see
/// one. The store has the new object before the watch reports it, so both compare with the store,
/// under the lock of `keys`: the second finds nothing left to do.
///
/// There is an entry for each object that has failed and has not succeeded since.
pub(super) struct Failures {
    /// The limiter may be the user's code, so it is called under this lock alone, never under that of
    /// `keys`: a slow limiter delays only those that wait for its answer.
    limiter: Mutex<Box<dyn RateLimiter<ObjectKey>>>,
    keys: Mutex<HashMap<ObjectKey, Failure>>,
}

#[derive(Default)]
struct Failure {
    /// What has failed, or what it was let go for.
    version: Option<Version>,
    /// In a row, of this version, since it was given up last.
    count: u32,
    wait: Wait,
    /// It is given up, and comes back only to see whether it was added in the meantime: the adds
    /// that it had before.
    parked: Option<u32>,
    /// It runs before its time. The next failure waits for all of its own.
    hurried: bool,
    /// The limiter has been told to forget it since it succeeded last.
    cleared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Wait {
    /// It runs, or could: the queue holds nothing back.
    #[default]
    No,
    UntilDueOrChanged,
    UntilDue,
}

/// What a run is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    /// This attempt.
    Attempt(u32),
    /// None: the key was given up, and nobody has asked for it since.
    Nothing,
}

impl Failures {
    pub(super) fn new(limiter: Box<dyn RateLimiter<ObjectKey>>) -> Self {
        Self { limiter: Mutex::new(limiter), keys: Mutex::default() }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<ObjectKey, Failure>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limiter(&self) -> MutexGuard<'_, Box<dyn RateLimiter<ObjectKey>>> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key was handed out; so many adds have asked for it. It is a retry unless somebody has taken
    /// the key out of the queue since.
    pub(super) fn begin(&self, key: &ObjectKey, adds: u32, is_retry: bool) -> Begin {
        let mut keys = self.keys();
        let Some(failure) = keys.get_mut(key) else { return Begin::Attempt(1) };
        failure.wait = Wait::No;
        if failure.parked.take() == Some(adds) && is_retry {
            return Begin::Nothing;
        }
        Begin::Attempt(failure.count.saturating_add(1))
    }

    /// A run of `version` has failed, for the `count`th time in a row: the delay is what was said
    /// for it, or the limiter's.
    pub(super) fn fail(
        &self,
        key: &ObjectKey,
        version: Option<Version>,
        delay: Option<Duration>,
        now: Time,
    ) -> Duration {
        // First, so that the limiter never counts a failure of a key that has no entry to forget.
        let delay = delay.unwrap_or_else(|| self.limiter().delay(key, now));
        let mut keys = self.keys();
        let failure = keys.entry(key.clone()).or_default();
        failure.count = failure.count.saturating_add(1);
        failure.version = version;
        delay
    }

    /// A run of `version`, for which there had been so many adds, has failed for good: the limiter
    /// counts it, and the key may come back after its delay, if it is added.
    pub(super) fn give_up(
        &self,
        key: &ObjectKey,
        version: Option<Version>,
        adds: u32,
        now: Time,
    ) -> Duration {
        let delay = self.limiter().delay(key, now);
        let mut keys = self.keys();
        let failure = keys.entry(key.clone()).or_default();
        *failure = Failure { count: 0, version, parked: Some(adds), ..std::mem::take(failure) };
        delay
    }

    /// The key has succeeded, or its object is gone.
    pub(super) fn forget(&self, key: &ObjectKey) {
        // The lock is free again before the limiter is called.
        let known = self.keys().remove(key);
        if known.is_some() {
            self.limiter().forget(key);
        }
    }

    /// The queue has heard of the failure, if it was one, and holds the key back.
    pub(super) fn entered(&self, key: &ObjectKey) {
        if let Some(failure) = self.keys().get_mut(key) {
            let hurried = std::mem::take(&mut failure.hurried);
            failure.wait = if hurried { Wait::UntilDue } else { Wait::UntilDueOrChanged };
        }
    }

    /// Ends the wait of the key if another version than `version` has failed: calls `release`, under
    /// the lock of `keys`, and returns whether it did. Neither closure may run the user's code.
    pub(super) fn compare(
        &self,
        key: &ObjectKey,
        version: impl Fn() -> Option<Version>,
        release: impl FnOnce(),
    ) -> bool {
        let mut limiter_forgot = false;
        loop {
            let mut keys = self.keys();
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
            // The limiter has to forget the key before it is released, and is not called under this
            // lock. Meanwhile the key may have come due or been released, so all is compared again.
            drop(keys);
            self.limiter().forget(key);
            limiter_forgot = true;
        }
    }
}
