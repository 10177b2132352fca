//! The gate of the [`Pace`]. A key whose pace permits no start yet waits instead of becoming ready.
//!
//! The gate checks each key that would become ready. A key is never in flight twice, so no other start can come between
//! the check and the delivery. A run that the gate delays is a delayed add, due when the pace permits it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Queue, Transition};
use crate::memory::KeyMap;
use crate::rule::Wait;
use crate::types::{Added, Merge, Pace, Slot, Ticket, Time};

/// The number of keys that one sweep examines. Each delivery inserts at most one key.
const SWEEP: usize = 4;

/// The starts of one key within the last window, at most as many as the pace permits.
#[derive(Default)]
struct Starts {
    /// The last start. With a pace of one run, it is the only stored start, and needs no
    /// allocation.
    last: Option<Time>,
    /// The starts before `last`, the oldest first.
    earlier: VecDeque<Time>,
    /// The number of the delivery that started at `last`, or 0 if that start can no longer be removed from the count.
    epoch: u64,
}

impl Starts {
    /// Returns the time from which `pace` permits another start. `Time::ZERO` means any time.
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
        // Starts outside of the window no longer count. At most `runs` starts remain, which bounds
        // the memory.
        while self.earlier.len() >= pace.runs() as usize || self.earlier.front().is_some_and(is_old)
        {
            self.earlier.pop_front();
        }
    }

    /// Removes the start of the delivery `epoch`, if that start counts.
    fn take_back(&mut self, epoch: u64) {
        if self.epoch == epoch {
            (self.last, self.epoch) = (self.earlier.pop_back(), 0);
        }
    }
}

/// The starts of the keys that ran within the last window. The starts are not in the records, because a record is
/// removed when its key has no state.
pub(super) struct PaceTable<K> {
    pace: Pace,
    starts: KeyMap<K, Starts>,
    /// The slot at which the next sweep begins.
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

    /// Records a start of `key`. If the key is new to the table, inserts a copy; nothing changes if the copy panics.
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
    /// Returns the time until which the key in `slot` must wait for its pace if it would become ready now, or `None` if
    /// it may become ready.
    #[inline(always)]
    pub(super) fn pace_gate(&self, slot: Slot, now: Time) -> Option<Time> {
        // The check is out of line, because few queues have a pace, and each key that would become
        // ready runs this line.
        if self.pace.is_some() { self.check_pace(slot, now) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn check_pace(&self, slot: Slot, now: Time) -> Option<Time> {
        self.paced_until(slot).filter(|&until| until > now)
    }

    /// Returns the time from which the pace permits the next start of the key in `slot`.
    pub(super) fn paced_until(&self, slot: Slot) -> Option<Time> {
        let pace = self.pace.as_ref()?;
        let record = self.records.get(slot);
        Some(pace.permitted_from(&record.key, record.hash))
    }

    /// Makes the key in `slot` wait until `until`, when the pace permits its run. The key must not be ready. If the key
    /// already waits for an earlier time, it keeps that due time, and the gate stops it then.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_pace(&mut self, slot: Slot, until: Time, now: Time) -> Added {
        self.count_paced(slot);
        self.record_slot(slot, now, Transition::Paced { until });
        self.request_later(slot, until, Merge::Earliest, None, now)
    }

    /// Delays the key in `slot`, which is due, to the time `until`, when the pace permits its run. A bound is kept, so
    /// that debounced adds can postpone the run further.
    #[cold]
    #[inline(never)]
    pub(super) fn postpone_run(&mut self, slot: Slot, until: Time, now: Time) {
        self.count_paced(slot);
        self.record_slot(slot, now, Transition::Paced { until });
        // The backoff has ended.
        self.records.get_mut(slot).set_not_before(Time::ZERO);
        self.timers.update(slot, |wait| Wait { due: until, ..wait });
    }

    /// Counts the pending run of the key in `slot`, which the pace delays, unless it has already
    /// been counted.
    pub(super) fn count_paced(&mut self, slot: Slot) {
        if self.records.get_mut(slot).mark_paced() {
            self.counters.count_paced();
        }
    }

    /// Makes a delivery not count toward the pace, although its key stays in flight. The call has no effect after the
    /// completion.
    pub fn uncount_start(&mut self, ticket: &Ticket) {
        if let Some(slot) = self.slot_of(ticket) {
            self.take_back_start(slot);
            if self.pace.is_some() {
                self.record_slot_now(slot, Transition::StartUncounted);
            }
        }
    }

    /// Makes a delivery count toward the pace from `now` on, instead of from the time of the delivery. The call has no
    /// effect after the completion.
    ///
    /// # Panics
    ///
    /// Panics if a key's `clone` panics. The delivery then does not count.
    pub fn count_start(&mut self, ticket: &Ticket, now: Time) {
        let Some(slot) = self.slot_of(ticket) else { return };
        self.take_back_start(slot);
        if let Some(pace) = &mut self.pace {
            let record = self.records.get(slot);
            pace.record_start(&record.key, record.hash, now, ticket.epoch);
            self.record_slot(slot, now, Transition::StartCounted);
        }
    }

    /// Removes the start of the delivery of the key in `slot`, which is in flight, from the count.
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

    /// Examines a few keys that ran, and forgets the starts that no longer count. Appends the copies of these keys to
    /// `keys`, for the caller to drop. A queue without a pace keeps no copies.
    ///
    /// The caller calls this method about as often as it takes keys. Otherwise, the copies of keys
    /// that no longer run are never freed.
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

    /// Returns the number of keys whose starts the queue remembers for its pace.
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

    /// A key that counts its comparisons.
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
