//! The state of the pace per key, in little memory: a run may hold a million keys.

use std::collections::BTreeMap;

use requeue::Time;

/// The adds of a key since its last start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) first: Time,
    pub(super) until: Time,
    /// The due time that the adds themselves ask for, merged.
    pub(super) named: Time,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Paced {
    pub(super) window: Option<Window>,
    /// The difference between the adds of the next run and the count of the queue.
    pub(super) correction: i64,
}

/// The state of the keys, by hash. Two keys with the same hash would wait for each other; that does not occur by
/// chance.
///
/// These are trees, because a hash table doubles its size when it is full. It would take up to twice the memory, and
/// three times the memory while it grows.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// The first add, and the end of the window.
    windows: BTreeMap<u64, (Time, Time)>,
    /// The state that few keys have: `named`, `correction`.
    rest: BTreeMap<u64, (Time, i64)>,
}

impl Records {
    pub(super) fn get(&self, hash: u64) -> Paced {
        let (named, correction) = self.rest.get(&hash).copied().unwrap_or_default();
        let window = self.windows.get(&hash);
        let window = window.map(|&(first, until)| Window { first, until, named });
        Paced { window, correction }
    }

    /// Stores the state of a key. A default state takes no memory.
    pub(super) fn put(&mut self, hash: u64, paced: Paced) {
        let Paced { window, correction } = paced;
        match window {
            Some(window) => _ = self.windows.insert(hash, (window.first, window.until)),
            None => _ = self.windows.remove(&hash),
        }
        let rest = (window.map_or(Time::ZERO, |window| window.named), correction);
        match rest == (Time::ZERO, 0) {
            true => _ = self.rest.remove(&hash),
            false => _ = self.rest.insert(hash, rest),
        }
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, hash: u64) {
        self.windows.remove(&hash);
        self.rest.remove(&hash);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.rest.is_empty()
    }
}
