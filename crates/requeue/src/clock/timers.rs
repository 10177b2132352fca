//! A set of wakers, sorted by their deadlines. The system's clock and the fake clock use it.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::Time;

/// A deadline and a sequence number. Alarms with equal deadlines are in the order in which they
/// were armed.
pub(super) type Key = (Time, u64);

/// The wakers of armed alarms. A method that removes a waker returns it. The caller then drops or
/// wakes it outside the lock that guards this value.
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

    pub(super) fn first_deadline(&self) -> Option<Key> {
        self.armed.first_key_value().map(|(key, _)| *key)
    }

    pub(super) fn len(&self) -> usize {
        self.armed.len()
    }
}
