//! The queue as a state machine: the table of `docs/SEMANTICS.md` in code.

use core::borrow::Borrow;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::add::{Add, Added, Cancelled, EarlyAdd, Merge};
use crate::index::Index;
use crate::order::{Group, Order, Ready};
use crate::record::{Phase, Record};
use crate::slab::Slab;
use crate::stats::{Counts, Tracker};
use crate::timers::Timers;
use crate::{Ending, PROMOTE, Time};

/// How a [`Queue`] is to behave.
pub struct Config<K> {
    /// What an add does to a key that is waiting or has failed.
    pub early_add: EarlyAdd,
    /// The order of ready keys.
    pub order: Order<K>,
    /// Whether groups take turns within a priority.
    pub fair: bool,
    /// How many keys of one group may be with workers at once.
    pub group_limit: Option<u32>,
    /// Whether times are kept: for histograms, ages and `since` in snapshots. Every operation then
    /// needs its `now`.
    pub track: bool,
}

impl<K> Default for Config<K> {
    fn default() -> Self {
        Self {
            early_add: EarlyAdd::Keep,
            order: Order::Fifo,
            fair: false,
            group_limit: None,
            track: false,
        }
    }
}

/// A work queue of keys, without clock, lock, waker or hasher: all of these are the caller's.
///
/// `hash` must be the same for equal keys, `now` should not go back (when it does, nothing breaks:
/// ages are zero for a while). What is no longer needed is returned, never dropped inside, so that
/// the caller can drop it outside its lock.
///
/// ```
/// use requeue_core::{Add, Added, Config, Finish, Group, Queue, Time};
///
/// let mut queue = Queue::new(Config::default());
/// let now = Time::ZERO;
/// assert_eq!(queue.add("a", 1, Add::now(), Group::default(), now).0, Added::New);
/// assert_eq!(queue.add("a", 1, Add::now(), Group::default(), now).0, Added::Coalesced);
///
/// let out = queue.get(now).unwrap();
/// assert_eq!((out.key, out.asked.adds), ("a", 2));
/// assert!(queue.get(now).is_none());
///
/// // Added while it is being worked on: once more afterwards.
/// assert_eq!(queue.add("a", 1, Add::now(), Group::default(), now).0, Added::Dirty);
/// assert!(queue.get(now).is_none());
/// assert!(queue.finish(&out.ticket, Finish::Succeed, now).unwrap().ready);
/// assert_eq!(queue.get(now).unwrap().key, "a");
/// ```
pub struct Queue<K> {
    pub(crate) records: Slab<Record<K>>,
    pub(crate) index: Index,
    pub(crate) ready: Ready<K>,
    pub(crate) timers: Timers,
    /// Whether times are kept.
    pub(crate) tracks: bool,
    /// Of what has times, made with the first key: few queues keep them, most are idle, and histograms
    /// are large.
    pub(crate) tracker: Option<Box<Tracker>>,
    pub(crate) counts: Counts,
    /// [`EarlyAdd::Hold`]: the ends of the backoffs of keys that have failed and are still with
    /// their worker (client-go's `AddRateLimited` before `Done`), by hand-out.
    pub(crate) backing_off: BTreeMap<u64, Time>,
    pub(crate) early_add: EarlyAdd,
    pub(crate) ending: Ending,
    pub(crate) paused: bool,
    /// The last hand-out; each has a number of its own, for ever.
    pub(crate) epoch: u64,
    pub(crate) ready_len: usize,
    pub(crate) processing_len: usize,
    pub(crate) dirty_len: usize,
    /// Keys with a delayed add that have failed.
    pub(crate) failing_len: usize,
}

/// A key's hash as it is kept. Both halves of the product together depend in every bit on all bits
/// of a hash: of one that differs from others in few, too.
pub(crate) const fn fold(hash: u64) -> u32 {
    let product = hash as u128 * 0x9E37_79B9_7F4A_7C15;
    (product ^ product >> 64) as u32
}

impl<K: Eq + Clone> Queue<K> {
    /// An empty queue, which has allocated nothing but what its order needs.
    #[must_use]
    pub fn new(config: Config<K>) -> Self {
        let ready = Ready::new(config.order, config.fair, config.group_limit);
        Self {
            records: Slab::new(config.track || ready.ranks()),
            index: Index::new(),
            ready,
            timers: Timers::new(),
            tracks: config.track,
            tracker: None,
            counts: Counts::default(),
            backing_off: BTreeMap::new(),
            early_add: config.early_add,
            ending: Ending::Open,
            paused: false,
            epoch: 0,
            ready_len: 0,
            processing_len: 0,
            dirty_len: 0,
            failing_len: 0,
        }
    }

    // --- Adding ---------------------------------------------------------------------------------

    /// Has the processor fetch what an add, or another call, of a key with `hash` will read. It
    /// has no other effect, and may have none.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if self.index.is_large() {
            self.index.prefetch(fold(hash));
        }
    }

    /// Adds `key`. The key comes back when the queue had it, or refuses it.
    #[inline(always)]
    pub fn add(
        &mut self,
        key: K,
        hash: u64,
        add: Add,
        group: Group,
        now: Time,
    ) -> (Added, Option<K>) {
        match self.add_plain(key, hash, &add, group, now) {
            Ok(added) => added,
            Err(key) => self.add_any(key, hash, add, group, now),
        }
    }

    #[inline(never)]
    fn add_any(
        &mut self,
        key: K,
        hash: u64,
        add: Add,
        group: Group,
        now: Time,
    ) -> (Added, Option<K>) {
        if self.ending != Ending::Open {
            return match self.add_known(&key, hash, &add, now) {
                Some(added) => (added, Some(key)),
                None => (Added::Refused, Some(key)),
            };
        }
        self.promote_due(now);
        let wanted = fold(hash);
        let is = |record: &Record<K>| record.hash == wanted && record.key == key;
        if let Some(slot) = self.index.probe(&self.records, wanted, is) {
            return (self.add_again(slot, &add, now), Some(key));
        }
        // What follows is what `add_to` does to a key of which nothing is known.
        let due = add.due(now);
        let order_key = match &self.ready {
            Ready::Custom(_) if due.is_none() => Some(key.clone()),
            _ => None,
        };
        let mut record = Record::new(key, wanted);
        record.note(add.priority, 1, add.reasons);
        record.failures = add.failed.into();
        if let (Some(due), true, EarlyAdd::Hold) = (due, add.failed, self.early_add) {
            record.set_not_before(due);
        }
        let slot = self.records.insert(record);
        self.index.insert(&mut self.records, wanted, slot);
        if let Some(lanes) = self.ready.lanes_mut() {
            lanes.enroll(slot, group);
        }
        self.enroll(slot, now);
        self.counts.retries += u64::from(add.is_retry());
        match due {
            Some(due) => self.demand_later(slot, due, Merge::Earliest, now),
            None => {
                self.counts.adds += 1;
                self.stamp(slot, now);
                self.make_ready(slot, order_key);
                Added::New
            }
        };
        (Added::New, None)
    }

    /// Whether an add of `key` would be refused.
    pub fn refuses<Q>(&self, key: &Q, hash: u64) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match self.ending {
            Ending::Open => false,
            Ending::Closed => {
                self.find(key, hash).is_none_or(|slot| !self.records.get(slot).is_known())
            }
            Ending::ShutDown => true,
        }
    }

    /// Adds `key` if the queue has a record of it; `None` if not, and then nothing has happened.
    pub fn add_known<Q>(&mut self, key: &Q, hash: u64, add: &Add, now: Time) -> Option<Added>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        if self.ending == Ending::ShutDown {
            return Some(Added::Refused);
        }
        self.promote_due(now);
        let slot = self.find(key, hash)?;
        if self.is_plain(add)
            && let Some(added) = self.add_again_plain(slot, add, add.due(now), now)
        {
            return Some(added);
        }
        let record = self.records.get(slot);
        if self.ending == Ending::Closed && !record.is_known() {
            return Some(Added::Refused);
        }
        Some(self.add_again(slot, add, now))
    }

    fn add_again(&mut self, slot: u32, add: &Add, now: Time) -> Added {
        let record = self.records.get(slot);
        let order_key = self.key_if(self.makes_ready(record, add, now), slot);
        if add.merge == Merge::Exactly {
            self.clear(slot);
        }
        self.add_to(slot, add, now, order_key)
    }

    /// The cell of the table for an add of the key in `slot`.
    pub(crate) fn add_to(
        &mut self,
        slot: u32,
        add: &Add,
        now: Time,
        order_key: Option<K>,
    ) -> Added {
        if add.is_retry() {
            self.counts.retries += 1;
        }
        let (due, held) = match self.early_add {
            EarlyAdd::Keep | EarlyAdd::Replace => (add.due(now), false),
            EarlyAdd::Hold => self.hold(slot, add, now),
        };
        if add.failed {
            self.fail_once_more(slot);
        }
        let record = self.records.get_mut(slot);
        let before = record.priority;
        record.note(add.priority, 1, add.reasons);
        self.raised(slot, before);
        match due {
            Some(due) => match self.demand_later(slot, due, add.merge, now) {
                Added::Coalesced | Added::New if held => Added::Held,
                added => added,
            },
            None => {
                if self.early_add != EarlyAdd::Keep {
                    self.stop_waiting(slot);
                }
                self.demand(slot, now, order_key)
            }
        }
    }

    /// A run of the key in `slot` is due later: the row `add_after` of the table.
    pub(crate) fn demand_later(&mut self, slot: u32, due: Time, merge: Merge, now: Time) -> Added {
        self.touch_if(slot, self.early_add != EarlyAdd::Keep);
        if self.early_add != EarlyAdd::Keep && self.records.get(slot).phase.is_dirty() {
            // At most one run is pending, and it is due already.
            self.counts.coalesced += 1;
            return Added::Coalesced;
        }
        if self.start_waiting(slot) {
            if self.records.get(slot).phase == Phase::Idle {
                self.stamp(slot, now);
            }
            self.timers.set(slot, due);
            return Added::New;
        }
        self.counts.coalesced += 1;
        let set = match (merge, self.timers.due(slot)) {
            (Merge::Earliest, Some(was)) => due < was,
            (Merge::Latest, Some(was)) => due > was,
            (Merge::Exactly, _) | (_, None) => true,
        };
        if set {
            self.timers.set(slot, due);
        }
        Added::Coalesced
    }

    /// A run of the key in `slot` is due now: the row `add` of the table.
    pub(crate) fn demand(&mut self, slot: u32, now: Time, order_key: Option<K>) -> Added {
        match self.records.get(slot).phase {
            Phase::Idle => {
                self.counts.adds += 1;
                self.stamp(slot, now);
                self.make_ready(slot, order_key);
                Added::New
            }
            Phase::Ready => {
                self.counts.coalesced += 1;
                self.touch_if(slot, true);
                Added::Coalesced
            }
            Phase::Processing => {
                self.counts.adds += 1;
                self.stamp(slot, now);
                let record = self.records.get_mut(slot);
                record.phase = Phase::ProcessingDirty;
                self.backing_off.remove(&record.epoch());
                self.dirty_len += 1;
                self.enter(slot);
                Added::Dirty
            }
            Phase::ProcessingDirty => {
                self.counts.coalesced += 1;
                Added::Coalesced
            }
        }
    }

    /// Makes what is due ready, a bounded number of keys, before an operation's own work.
    #[inline]
    pub(crate) fn promote_due(&mut self, now: Time) {
        if self.timers.is_due(now) {
            self.promote(now, PROMOTE);
        }
    }

    /// Makes up to `max` keys ready whose time has come, by (time, order of arrival), and says how
    /// many it made so.
    pub fn promote(&mut self, now: Time, max: usize) -> usize {
        if self.ending == Ending::ShutDown {
            return 0;
        }
        let mut count = 0;
        while count < max
            && let Some(slot) = self.timers.first(now)
        {
            if self.index.is_large()
                && let Some(next) = self.timers.second()
            {
                self.records.prefetch(next);
            }
            let order_key = self.key_if(self.records.get(slot).phase == Phase::Idle, slot);
            self.stop_waiting(slot);
            let record = self.records.get_mut(slot);
            if record.phase == Phase::Idle {
                record.rest();
            }
            let _ = self.demand(slot, now, order_key);
            count += 1;
        }
        count
    }

    // --- Taking back ----------------------------------------------------------------------------

    /// Takes `key` out of ready, waiting and dirty, never out of a run, and clears its failures.
    /// `None` if the queue has no record of it; else what was taken, and what is to be dropped.
    pub fn cancel<Q>(&mut self, key: &Q, hash: u64) -> Option<(Cancelled, Option<K>)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find(key, hash)?;
        let cancelled = self.clear(slot);
        Some((cancelled, self.release_if_stateless(slot)))
    }

    fn clear(&mut self, slot: u32) -> Cancelled {
        let waiting = self.stop_waiting(slot);
        let phase = self.records.get(slot).phase;
        if phase == Phase::Ready {
            self.unready(slot);
        }
        self.stop_backing_off(slot);
        if phase == Phase::ProcessingDirty {
            self.dirty_len -= 1;
            self.leave(slot);
            self.records.get_mut(slot).phase = Phase::Processing;
        }
        let record = self.records.get_mut(slot);
        (record.failures, record.adds, record.reasons) = (0, 0, 0);
        Cancelled { ready: phase == Phase::Ready, dirty: phase == Phase::ProcessingDirty, waiting }
    }

    /// Clears the failures of `key`. Returns the record's key if nothing else kept the record.
    pub fn forget<Q>(&mut self, key: &Q, hash: u64) -> Option<K>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find(key, hash)?;
        self.set_failures(slot, 0);
        self.stop_backing_off(slot);
        self.release_if_stateless(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    /// The first bits of a hash tell the line, the last ones the segment, seven between them the tag.
    #[test]
    fn hashes_that_differ_in_few_bits_differ_in_all_parts() {
        for shift in 0..=52 {
            for part in [0, 10, 19, 20] {
                let parts = (0..4096).map(|n: u64| fold(n << shift) >> part & 0xFFF);
                let distinct = parts.collect::<BTreeSet<_>>().len();
                // 2589 if they were drawn at random.
                assert!(distinct > 1500, "{distinct} of 4096, shifted {shift}, from bit {part}");
            }
        }
    }
}
