//! The gate of the [`Pace`]. If the pace of a key permits no start yet, the key waits instead of
//! becoming ready.
//!
//! The gate checks each key before it becomes ready. A key is never in flight twice, so it cannot
//! start another run between this check and its delivery. A run that the gate delays becomes a
//! delayed add, which is due when the pace permits the run.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Queue, Transition};
use crate::memory::KeyMap;
use crate::rule::Wait;
use crate::types::{Added, Merge, Pace, Slot, Ticket, Time};

/// The number of entries that one sweep checks. Each delivery inserts at most one entry, so the
/// table does not grow without bound.
const SWEEP: usize = 4;

/// The starts of one key within the last window. Their number is at most that of the pace.
#[derive(Default)]
struct Starts {
    /// The last start. If the pace permits one run, this is the only stored start, and the key
    /// needs no allocation.
    last: Option<Time>,
    /// The starts before `last`, the oldest first.
    earlier: VecDeque<Time>,
    /// The number of the delivery that started at `last`. It is 0 if this start was taken back, or
    /// can no longer be.
    epoch: u64,
}

impl Starts {
    /// Returns the time from which `pace` permits the next start. `Time::ZERO` means that a start
    /// is permitted at any time.
    fn permitted_from(&self, pace: Pace) -> Time {
        let Some(last) = self.last else { return Time::ZERO };
        if self.earlier.len() + 1 < pace.runs() as usize {
            return Time::ZERO;
        }
        *self.earlier.front().unwrap_or(&last) + pace.per()
    }

    fn push_start(&mut self, now: Time, epoch: u64, pace: Pace) {
        self.epoch = epoch;
        if pace.runs() > 1 {
            self.earlier.extend(self.last);
        }
        self.last = Some(now);
        let is_old = |&start: &Time| start + pace.per() <= now;
        // Starts before the window no longer matter. At most `runs` starts remain, which bounds the
        // memory.
        while self.earlier.len() >= pace.runs() as usize || self.earlier.front().is_some_and(is_old)
        {
            self.earlier.pop_front();
        }
    }

    /// Takes back the start of the delivery `epoch`, if it is the last start.
    fn take_back(&mut self, epoch: u64) {
        if self.epoch == epoch {
            (self.last, self.epoch) = (self.earlier.pop_back(), 0);
        }
    }
}

/// The starts of the keys that ran within the last window. They are not in the records, because the
/// queue removes the record of a key without a state.
pub(super) struct PaceTable<K> {
    pace: Pace,
    starts: KeyMap<K, Starts>,
    /// The slot at which the next sweep starts.
    hand: usize,
}

impl<K> PaceTable<K> {
    pub(super) fn new(pace: Pace) -> Self {
        let pace = Pace::new(pace.runs().clamp(1, Pace::MAX_RUNS), pace.per());
        Self { pace, starts: KeyMap::new(), hand: 0 }
    }

    pub(super) fn into_keys(self) -> impl Iterator<Item = K> {
        self.starts.into_keys()
    }
}

impl<K: Eq> PaceTable<K> {
    pub(super) fn permitted_from(&self, key: &K, hash: u32) -> Time {
        let starts = self.starts.find_slot(key, hash).map(|slot| self.starts.value(slot));
        starts.map_or(Time::ZERO, |starts| starts.permitted_from(self.pace))
    }

    /// Records a start of `key`. If the table does not contain the key, inserts a copy. If the
    /// `clone` of the key panics, nothing changes.
    #[cold]
    #[inline(never)]
    pub(super) fn record_start(&mut self, key: &K, hash: u32, now: Time, epoch: u64)
    where
        K: Clone,
    {
        let slot = self.starts.find_or_insert(key, hash);
        self.starts.value_mut(slot).push_start(now, epoch, self.pace);
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Returns the time until which the key in `slot` must wait for its pace before it becomes
    /// ready. Returns `None` if the pace permits its run now.
    #[inline(always)]
    pub(super) fn pace_gate(&self, slot: Slot, now: Time) -> Option<Time> {
        // The check is a separate function. Each key that becomes ready executes this line, and few
        // queues have a pace.
        if self.pace.is_some() { self.check_pace(slot, now) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn check_pace(&self, slot: Slot, now: Time) -> Option<Time> {
        self.paced_until(slot).filter(|&until| until > now)
    }

    /// Returns the time from which the pace permits the next start of the key in `slot`, if the
    /// queue has a pace.
    pub(super) fn paced_until(&self, slot: Slot) -> Option<Time> {
        let pace = self.pace.as_ref()?;
        let record = self.records.get(slot);
        Some(pace.permitted_from(&record.key, record.hash))
    }

    /// Makes the key in `slot` wait until `until`, when the pace permits its run. The key must not
    /// be ready. If the key already waits for an earlier time, it keeps that due time, and the gate
    /// checks it again at that time.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_pace(&mut self, slot: Slot, until: Time, now: Time) -> Added {
        self.count_paced(slot);
        self.record_slot(slot, now, Transition::Paced { until });
        self.request_later(slot, until, Merge::Earliest, None, now)
    }

    /// Postpones the due run of the key in `slot` to `until`, when the pace permits it. The bound
    /// of the run does not change, so debounced adds can postpone the run further.
    #[cold]
    #[inline(never)]
    pub(super) fn postpone_run(&mut self, slot: Slot, until: Time, now: Time) {
        self.count_paced(slot);
        self.record_slot(slot, now, Transition::Paced { until });
        // The key was due, so its backoff has ended.
        self.records.get_mut(slot).set_not_before(Time::ZERO);
        self.timers.update(slot, |wait| Wait { due: until, ..wait });
    }

    /// Counts the pending run of the key in `slot` as delayed by the pace, unless it is already
    /// counted.
    pub(super) fn count_paced(&mut self, slot: Slot) {
        if self.records.get_mut(slot).mark_paced() {
            self.counters.count_paced();
        }
    }

    /// Removes the start of a delivery from the pace, although its key stays in flight. After the
    /// completion, the call has no effect.
    pub fn uncount_start(&mut self, ticket: &Ticket) {
        if let Some(slot) = self.slot_of(ticket) {
            self.take_back_start(slot);
            if self.pace.is_some() {
                self.record_slot_now(slot, Transition::StartUncounted);
            }
        }
    }

    /// Makes the start of a delivery count toward the pace from `now` on, instead of from the
    /// beginning of the delivery. After the completion, the call has no effect.
    ///
    /// # Panics
    ///
    /// Panics if the `clone` of the key panics. The start then does not count.
    pub fn count_start(&mut self, ticket: &Ticket, now: Time) {
        let Some(slot) = self.slot_of(ticket) else { return };
        self.take_back_start(slot);
        if let Some(pace) = &mut self.pace {
            let record = self.records.get(slot);
            pace.record_start(&record.key, record.hash, now, ticket.epoch);
            self.record_slot(slot, now, Transition::StartCounted);
        }
    }

    /// Takes back the start of the key in `slot`, which must be in flight.
    #[cold]
    #[inline(never)]
    pub(super) fn take_back_start(&mut self, slot: Slot) {
        if let Some(pace) = &mut self.pace {
            let record = self.records.get(slot);
            let epoch = record.epoch();
            if let Some(slot) = pace.starts.find_slot(&record.key, record.hash) {
                pace.starts.value_mut(slot).take_back(epoch);
            }
        }
    }

    /// Checks a few keys that ran, and forgets the starts that are older than the window. Appends
    /// the table's copies of these keys to `keys`, and the caller drops them. A queue without a
    /// pace has no such copies.
    ///
    /// The caller must call this method about as often as it takes keys. Otherwise, the copies of
    /// keys that no longer run are never freed.
    pub fn sweep_pace(&mut self, now: Time, keys: &mut Vec<K>) {
        if let Some(pace) = &mut self.pace {
            let per = pace.pace.per();
            let is_recent =
                |_: &K, starts: &Starts| starts.last.is_some_and(|last| last + per > now);
            let (mut hashes, is_recording) = (Vec::new(), self.recorder.is_some());
            pace.hand = pace.starts.sweep(pace.hand, SWEEP, is_recent, |hash, key| {
                hashes.extend(is_recording.then_some(hash));
                keys.push(key);
            });
            for hash in hashes {
                self.record_hash(hash, now, Transition::PaceOver);
            }
        }
    }

    /// Forgets the starts of `key`.
    pub(super) fn forget_starts(&mut self, key: &K, hash: u32, now: Time) {
        if let Some(pace) = &mut self.pace
            && pace.starts.remove(key, hash).is_some()
        {
            self.record_hash(hash, now, Transition::PaceOver);
        }
    }

    /// Returns the pace of the queue, if any.
    #[must_use]
    pub fn pace(&self) -> Option<Pace> {
        self.pace.as_ref().map(|table| table.pace)
    }

    /// Returns the number of keys whose starts the queue stores for its pace.
    #[must_use]
    pub fn paced_keys(&self) -> usize {
        self.pace.as_ref().map_or(0, |pace| pace.starts.len())
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::time::Duration;

    use super::*;
    use crate::memory::fold;
    use crate::order::GroupId;
    use crate::queue::Config;
    use crate::types::Add;

    /// A key that counts how often it is compared.
    #[derive(Clone, Eq)]
    struct Key<'c>(u32, &'c Cell<usize>);

    impl PartialEq for Key<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn forgetting_the_starts_of_a_key_does_not_visit_other_keys() {
        let compared = Cell::new(0);
        let pace = Some(Pace::new(1, Duration::from_secs(60)));
        let mut queue = Queue::new(Config { pace, ..Config::default() });
        for n in 0..1000 {
            let key = Key(n, &compared);
            let _ = queue.add(key, n.into(), Add::now(), GroupId::default(), Time::ZERO);
            let _ = queue.get(Time::ZERO).expect("it is ready");
        }
        compared.set(0);
        for n in 0..1000 {
            queue.forget_starts(&Key(n, &compared), fold(n.into()), Time::ZERO);
        }
        assert_eq!((queue.paced_keys(), compared.get()), (0, 1000));
    }
}
