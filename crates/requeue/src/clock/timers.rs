//! Wakers in the order of their deadlines: what the system's and the fake clock share.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::Time;

/// A deadline, and the order of arming among equal ones.
pub(super) type Key = (Time, u64);

/// Armed wakers. A method that takes a waker out hands it to the caller, who drops or wakes it
/// outside the lock that guards this.
pub(super) struct Timers {
    armed: BTreeMap<Key, Waker>,
    next: u64,
}

impl Timers {
    pub(super) const fn new() -> Self {
        Self { armed: BTreeMap::new(), next: 0 }
    }

    pub(super) fn insert(&mut self, at: Time, waker: Waker) -> Key {
        let key = (at, self.next);
        self.next += 1;
        self.armed.insert(key, waker);
        key
    }

    #[must_use]
    pub(super) fn remove(&mut self, key: Key) -> Option<Waker> {
        self.armed.remove(&key)
    }

    pub(super) fn pop_due(&mut self, now: Time) -> Option<Waker> {
        let first = self.armed.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    pub(super) fn earliest(&self) -> Option<Key> {
        self.armed.first_key_value().map(|(key, _)| *key)
    }

    pub(super) fn len(&self) -> usize {
        self.armed.len()
    }
}
