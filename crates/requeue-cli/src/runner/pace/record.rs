//! The state of the pace per key, packed: there can be a million keys.

use std::collections::BTreeMap;

use requeue::Time;

/// The adds of a key since its last start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) first: Time,
    pub(super) until: Time,
    /// The time that adds themselves have named, as one.
    pub(super) named: Time,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Paced {
    pub(super) window: Option<Window>,
    /// The next start, by the last.
    pub(super) not_before: Time,
    /// The adds of its next run that were made here or got lost: to be added to what the queue
    /// counts.
    pub(super) correction: i64,
}

impl Paced {
    /// Whether there is nothing to know.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.window.is_none() && self.not_before <= now && self.correction == 0
    }
}

/// By hash: two keys with the same one, which don't occur by chance, would wait for each other.
///
/// In trees, as a hash table doubles: it would hold twice the room, and three times while it grows.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// From the first add, until.
    windows: BTreeMap<u64, (Time, Time)>,
    /// What few keys have: `named`, `not_before`, `correction`.
    rest: BTreeMap<u64, (Time, Time, i64)>,
}

impl Records {
    pub(super) fn get(&self, hash: u64) -> Paced {
        let (named, not_before, correction) = self.rest.get(&hash).copied().unwrap_or_default();
        let window = self.windows.get(&hash);
        let window = window.map(|&(first, until)| Window { first, until, named });
        Paced { window, not_before, correction }
    }

    /// Keeps what there is to know, if anything.
    pub(super) fn put(&mut self, hash: u64, paced: Paced) {
        let Paced { window, not_before, correction } = paced;
        match window {
            Some(window) => _ = self.windows.insert(hash, (window.first, window.until)),
            None => _ = self.windows.remove(&hash),
        }
        let rest = (window.map_or(Time::ZERO, |window| window.named), not_before, correction);
        match rest == (Time::ZERO, Time::ZERO, 0) {
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
