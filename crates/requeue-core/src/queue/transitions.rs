//! The transitions of keys. No other module changes the phase of a key or a counter.
//!
//! [`table`] is the state table of `docs/concepts/semantics.md`. Each method below applies one row
//! of it. The method looks up the cell for the phase of the key, and changes the phase. It then
//! updates the order, the counters and the times.

mod counters;
pub(super) mod record;

use alloc::boxed::Box;
use core::time::Duration;

pub(super) use self::counters::Counters;
use self::record::Record;
use super::Queue;
use super::event::Transition;
use super::stats::Tracker;
use crate::order::{GroupId, Ready};
use crate::rule::{self, Cell, KeyState, Later, Row, Wait, table};
use crate::types::{Add, Added, Asked, Delivery, Merge, Phase, ReaddPolicy, Slot, Ticket, Time};

impl<K: Eq + Clone> Queue<K> {
    // --- New keys -------------------------------------------------------------------------------

    /// The row `add` for a new key. The caller has inserted its record in `slot`.
    #[inline(always)]
    pub(super) fn admit_new(
        &mut self,
        slot: Slot,
        add: &Add,
        due: Option<Time>,
        group: GroupId,
        now: Time,
    ) {
        if let Some(groups) = self.ready.groups_mut() {
            groups.enroll_record(slot, group);
        }
        self.counters.count_add(add);
        match due {
            None => {
                self.ready.append(&mut self.records, slot);
                self.counters.ready += 1;
                self.counters.totals.enqueued += 1;
            }
            Some(due) => {
                self.timers.insert(slot, due);
                if add.is_debounced() {
                    self.timers.set_bound(slot, add.bound(now));
                }
                self.enter_wait(slot, Phase::Idle, add.failed);
                if add.failed
                    && self.settings.readd_policy == ReaddPolicy::Hold
                    && let Some(backoff) = add.due(now)
                {
                    self.records.get_mut(slot).set_not_before(backoff);
                }
            }
        }
        if self.settings.tracks {
            let tracker = self.tracker.get_or_insert_with(|| Box::new(Tracker::new()));
            tracker.enroll(slot, now);
            if due.is_none() {
                self.enter_depth(slot);
            }
        }
    }

    // --- Rows of the table ----------------------------------------------------------------------

    /// The row `add`: requests an immediate run of the key in `slot`.
    pub(super) fn request_run(&mut self, slot: Slot, now: Time, order_key: Option<K>) -> Added {
        self.request_run_in(self.records.get(slot).phase, slot, now, order_key)
    }

    /// Like `request_run`. The caller has already read the phase of the key.
    #[inline(always)]
    pub(super) fn request_run_in(
        &mut self,
        phase: Phase,
        slot: Slot,
        now: Time,
        order_key: Option<K>,
    ) -> Added {
        match table(Row::Add, phase) {
            Cell::Enqueue => {
                // Each function that makes a key ready asks the pace first. There are three: this
                // one, the add of a new key, and the completion.
                if let Some(until) = self.pace_gate(slot, now) {
                    return self.wait_for_pace(slot, until, now);
                }
                self.counters.totals.enqueued += 1;
                self.stamp_time(slot, now);
                if self.records.get(slot).waiting {
                    self.recount_wait(slot, Phase::Idle, Phase::Ready);
                }
                self.enqueue_ready(slot, order_key);
                Added::New
            }
            Cell::MarkDirty => {
                self.counters.totals.enqueued += 1;
                self.counters.dirty += 1;
                self.mark_dirty(slot, true);
                self.stamp_time(slot, now);
                let record = self.records.get_mut(slot);
                record.phase = Phase::InFlightDirty;
                // This run has passed the backoff gate, so the backoff of the key has ended.
                if !self.backing_off.is_empty() {
                    self.backing_off.remove(record.epoch());
                }
                self.enter_depth(slot);
                // The key is dirty before its run is cancelled, so its next run follows
                // immediately.
                if self.restarts.is_some() {
                    self.restart_run(slot, now);
                }
                Added::Dirty
            }
            Cell::Lift => {
                self.counters.count_coalesced();
                // Only an order with a side table depends on the priority, or must be told about
                // the add.
                if self.ready.has_side_table() {
                    self.touch_ready(slot, true);
                }
                Added::Coalesced
            }
            _ => {
                self.counters.count_coalesced();
                Added::Coalesced
            }
        }
    }

    /// The rows `add_after` and `debounce`: requests a run of the key in `slot` at the time `due`.
    /// `bound` is present if the add is debounced.
    pub(super) fn request_later(
        &mut self,
        slot: Slot,
        due: Time,
        merge: Merge,
        bound: Option<Time>,
        now: Time,
    ) -> Added {
        let key = self.state_of(slot);
        let phase = key.phase();
        let effect = rule::later(&key, self.settings.readd_policy, bound);
        if phase == Phase::Ready {
            self.touch_ready(slot, effect == Later::Joins);
        }
        match effect {
            Later::Joins => {
                self.counters.count_coalesced();
                Added::Coalesced
            }
            Later::Begins => {
                if phase == Phase::Idle {
                    self.stamp_time(slot, now);
                }
                self.begin_wait(slot, Wait { due, bound });
                Added::New
            }
            Later::Merges if bound.is_some() => {
                self.counters.count_coalesced();
                self.timers.update_bounded(slot, |wait| wait.with_add(due, merge, bound));
                Added::Coalesced
            }
            Later::Merges => self.merge_due(slot, due, merge),
        }
    }

    /// Like `request_later`, for an add without a bound. The key must already have a deadline.
    #[inline(always)]
    pub(super) fn merge_due(&mut self, slot: Slot, due: Time, merge: Merge) -> Added {
        self.counters.count_coalesced();
        self.timers.update(slot, |wait| wait.merged(due, merge));
        Added::Coalesced
    }

    /// The row `due ≤ now`: handles that the key in `slot` is due.
    pub(super) fn fall_due(&mut self, slot: Slot, now: Time, order_key: Option<K>) {
        self.stop_waiting(slot);
        self.record_slot(slot, now, Transition::Due);
        let record = self.records.get_mut(slot);
        let phase = record.phase;
        if phase == Phase::Idle {
            record.set_not_before(Time::ZERO);
        }
        let _ = self.request_run_in(phase, slot, now, order_key);
    }

    /// The row `get`: delivers the ready key in `slot`. Copies the key, unless the caller passes a
    /// copy.
    #[inline(always)]
    pub(super) fn deliver(&mut self, slot: Slot, key: Option<K>, now: Time) -> Delivery<K> {
        let mut record = self.records.get_mut(slot);
        // The key is copied before anything changes, because the `clone` of a key may panic.
        let key = key.unwrap_or_else(|| record.key.clone());
        debug_assert!(matches!(table(Row::Get, record.phase), Cell::Start));
        // The number of a delivery is the number of all deliveries so far, including this one. No
        // number is therefore used twice.
        let epoch = self.counters.totals.deliveries + 1;
        if let Some(pace) = &mut self.pace {
            pace.record_start(&record.key, record.hash, now, epoch);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.push_delivery(record, epoch, now);
        }
        if let Ready::Fifo(list) = &mut self.ready {
            list.pop_front(record.next_in_order());
        } else {
            if let Some(recorder) = &mut self.recorder
                && let Some(group) = self.ready.groups().and_then(|groups| groups.filled_by(slot))
            {
                recorder.push_filled_group(group, now);
            }
            self.ready.start_delivery(&mut self.records, slot);
            record = self.records.get_mut(slot);
        }
        if let Some(reasons) = &mut self.reasons {
            reasons.start_run(slot);
        }
        debug_assert!(self.timers.bound(slot).is_none(), "a ready key has no bound");
        self.counters.totals.deliveries = epoch;
        record.start_delivery(epoch);
        let adds = core::mem::take(&mut record.adds).max(1);
        let flags = core::mem::take(&mut record.add_flags);
        let priority = record.priority;
        self.counters.ready -= 1;
        self.counters.in_flight += 1;
        Delivery {
            key,
            ticket: Ticket { slot, hash: record.hash, epoch },
            asked: Asked { adds, flags, priority },
            failures: record.failures,
            queued: self.tracker.as_mut().map(|tracker| {
                tracker.depths.leave(priority);
                tracker.record_delivery(slot, now)
            }),
        }
    }

    /// Sets the number of the next delivery. The number must be at least 1.
    pub(super) const fn number_deliveries_from(&mut self, number: u64) {
        self.counters.totals.deliveries = number - 1;
    }

    /// The row `done`: completes the delivery of the key in `slot`. Returns the time for which the
    /// key was in flight, if the queue tracks times.
    pub(super) fn end_delivery(
        &mut self,
        slot: Slot,
        now: Time,
        order_key: Option<K>,
    ) -> Option<Duration> {
        let worked = self.tracker.as_mut().map(|tracker| tracker.record_completion(slot, now));
        let record = self.records.get_mut(slot);
        match table(Row::Done, record.phase) {
            Cell::End => {
                self.counters.in_flight -= 1;
                record.make_idle();
                if record.waiting {
                    self.recount_wait(slot, Phase::InFlight, Phase::Idle);
                }
            }
            Cell::EndAndEnqueue => {
                self.counters.in_flight -= 1;
                self.counters.dirty -= 1;
                self.mark_dirty(slot, false);
                self.leave_depth(slot);
                self.enqueue_ready(slot, order_key);
            }
            _ => {}
        }
        worked
    }

    /// The row `done` for a key whose record is no longer needed: completes the delivery of
    /// `ticket` and removes the record in one step. Does nothing if `is_wanted` returns false for
    /// the record. Returns the key, and the time for which it was in flight, if the queue tracks
    /// times.
    #[inline(always)]
    pub(super) fn end_and_remove(
        &mut self,
        ticket: &Ticket,
        succeeds: bool,
        now: Time,
        is_wanted: impl FnOnce(&Record<K>) -> bool,
    ) -> Option<(K, Option<Duration>)> {
        let slot = ticket.slot;
        let record = self.records.remove_if(slot, |record| {
            matches!(table(Row::Done, record.phase), Cell::End) && is_wanted(record)
        })?;
        // The record is removed, but side tables keep the entry of its slot until the next
        // insertion.
        self.counters.in_flight -= 1;
        let worked = self.tracker.as_mut().map(|tracker| tracker.record_completion(slot, now));
        if let Some(recorder) = &mut self.recorder {
            recorder.push_removal(ticket, succeeds, now);
        }
        if let Some(groups) = self.ready.groups_mut() {
            if let Some(recorder) = &mut self.recorder
                && let Some(group) = groups.freed_by(slot)
            {
                recorder.push_freed_group(group, now);
            }
            groups.end_delivery(slot);
        }
        self.forget_slot(slot, &record);
        Some((record.key, worked))
    }

    /// The row `cancel`: cancels the run of the key in `slot` that has no due time. Returns the
    /// phase of the key before the call.
    pub(super) fn withdraw_run(&mut self, slot: Slot) -> Phase {
        let record = self.records.get_mut(slot);
        let phase = record.phase;
        match table(Row::Cancel, phase) {
            Cell::Dequeue => {
                self.counters.ready -= 1;
                self.leave_depth(slot);
                self.ready.remove(&mut self.records, slot);
                let record = self.records.get_mut(slot);
                record.make_idle();
                if record.waiting {
                    self.recount_wait(slot, Phase::Ready, Phase::Idle);
                }
            }
            Cell::Unmark => {
                self.counters.dirty -= 1;
                record.phase = Phase::InFlight;
                self.mark_dirty(slot, false);
                self.leave_depth(slot);
            }
            _ => {}
        }
        phase
    }

    /// → Ready, at the tail of the order. `order_key` is the copy for a custom order.
    #[inline]
    fn enqueue_ready(&mut self, slot: Slot, order_key: Option<K>) {
        self.counters.ready += 1;
        self.records.get_mut(slot).make_ready(self.ready.tail());
        self.ready.append(&mut self.records, slot);
        self.enter_depth(slot);
        if let (Ready::Custom(custom), Some(key)) = (&mut self.ready, order_key) {
            custom.push(key);
        }
    }

    /// Updates the number of dirty keys of the group, because the key in `slot` has become dirty or
    /// is no longer dirty.
    #[inline]
    fn mark_dirty(&mut self, slot: Slot, dirty: bool) {
        if let Some(groups) = self.ready.groups_mut() {
            groups.mark_dirty(slot, dirty);
        }
    }

    // --- Deadlines and failures -----------------------------------------------------------------

    /// Counts that the key in `slot` waits, in its present phase. Few keys wait while they are
    /// ready or in flight. The queue therefore counts only these keys, which are called busy, and
    /// computes the number of the other waiting keys. Groups count only Idle waiting keys.
    #[inline(always)]
    fn enter_wait(&mut self, slot: Slot, phase: Phase, has_failed: bool) {
        self.counters.failing += u32::from(has_failed);
        if phase != Phase::Idle {
            self.counters.busy_waiting += 1;
            self.counters.busy_failing += u32::from(has_failed);
        } else if let Some(groups) = self.ready.groups_mut() {
            groups.enter_wait(slot, has_failed);
        }
    }

    /// Reverses a call of `enter_wait` with the same arguments.
    #[inline(always)]
    fn leave_wait(&mut self, slot: Slot, phase: Phase, has_failed: bool) {
        self.counters.failing -= u32::from(has_failed);
        if phase != Phase::Idle {
            self.counters.busy_waiting -= 1;
            self.counters.busy_failing -= u32::from(has_failed);
        } else if let Some(groups) = self.ready.groups_mut() {
            groups.leave_wait(slot, has_failed);
        }
    }

    /// Updates the counters for the waiting key in `slot`, because its phase changes.
    #[cold]
    #[inline(never)]
    fn recount_wait(&mut self, slot: Slot, before: Phase, after: Phase) {
        let has_failed = self.records.get(slot).failures > 0;
        self.leave_wait(slot, before, has_failed);
        self.enter_wait(slot, after, has_failed);
    }

    /// Sets the deadline and the bound of the key in `slot`, which must have no deadline.
    fn begin_wait(&mut self, slot: Slot, wait: Wait<Time>) {
        let record = self.records.get_mut(slot);
        debug_assert!(!record.waiting, "the key has a deadline already");
        record.waiting = true;
        let (phase, has_failed) = (record.phase, record.failures > 0);
        self.enter_wait(slot, phase, has_failed);
        self.timers.insert(slot, wait.due);
        if wait.bound.is_some() {
            self.timers.set_bound(slot, wait.bound);
        }
    }

    /// Sets or replaces the deadline of the key in `slot`. Its run then has no bound.
    pub(super) fn wait_until(&mut self, slot: Slot, due: Time) {
        let wait = Wait { due, bound: None };
        if self.records.get(slot).waiting {
            self.timers.update(slot, |_| wait);
        } else {
            self.begin_wait(slot, wait);
        }
    }

    /// Removes the deadline of the key in `slot`. Returns true if there was one.
    pub(super) fn stop_waiting(&mut self, slot: Slot) -> bool {
        let record = self.records.get_mut(slot);
        let waiting = core::mem::take(&mut record.waiting);
        if waiting {
            let (phase, has_failed) = (record.phase, record.failures > 0);
            self.leave_wait(slot, phase, has_failed);
            self.timers.remove_deadline(slot);
        }
        waiting
    }

    /// Removes the deadline of the key in `slot`, because the key becomes ready or dirty. Under
    /// [`ReaddPolicy::KeepBoth`], the deadline stays, and only its bound is removed.
    pub(super) fn replace_waiting(&mut self, slot: Slot) {
        if self.settings.readd_policy == ReaddPolicy::KeepBoth {
            self.timers.drop_bound(slot);
        } else {
            self.stop_waiting(slot);
        }
    }

    pub(super) fn add_failure(&mut self, slot: Slot) {
        let failures = self.records.get(slot).failures;
        self.set_failures(slot, failures.saturating_add(1));
    }

    #[inline]
    pub(super) fn set_failures(&mut self, slot: Slot, failures: u32) {
        let record = self.records.get_mut(slot);
        let before = core::mem::replace(&mut record.failures, failures);
        // A waiting key that has failed is counted as backing off, so a change between zero and
        // nonzero changes the counters.
        if record.waiting && (before > 0) != (failures > 0) {
            let phase = record.phase;
            self.leave_wait(slot, phase, before > 0);
            self.enter_wait(slot, phase, failures > 0);
        }
    }

    // --- Times and depths -----------------------------------------------------------------------

    /// Stores `now` as the time at which the key in `slot` became ready or dirty, or began to wait.
    #[inline]
    pub(super) fn stamp_time(&mut self, slot: Slot, now: Time) {
        if let Some(tracker) = &mut self.tracker {
            tracker.stamp_added(slot, now);
        }
    }

    /// Counts the key in `slot`, which has become ready or dirty, in the depth of its priority.
    #[inline]
    fn enter_depth(&mut self, slot: Slot) {
        if let Some(tracker) = &mut self.tracker {
            tracker.depths.enter(self.records.get(slot).priority);
        }
    }

    /// Reverses a call of `enter_depth`. The priority of the key must not have changed since that
    /// call.
    #[inline]
    fn leave_depth(&mut self, slot: Slot) {
        if let Some(tracker) = &mut self.tracker {
            tracker.depths.leave(self.records.get(slot).priority);
        }
    }

    /// Moves the key in `slot` from the depth of priority `before` to the depth of its present
    /// priority, if the key is ready or dirty.
    #[inline(never)]
    pub(super) fn move_depth(&mut self, slot: Slot, before: i32) {
        let record = self.records.get(slot);
        if record.priority == before || !record.phase.is_dirty() {
            return;
        }
        if let Some(tracker) = &mut self.tracker {
            tracker.depths.leave(before);
            tracker.depths.enter(record.priority);
        }
    }

    /// Tells the order that the ready key in `slot` was added again. The key moves forward if its
    /// priority was raised. A custom order is called only if `is_touched` is true.
    #[inline(never)]
    fn touch_ready(&mut self, slot: Slot, is_touched: bool) {
        match &mut self.ready {
            Ready::Custom(custom) if is_touched => {
                custom.order.touch(&self.records.get(slot).key);
            }
            ready => ready.lift_ready(&mut self.records, slot),
        }
    }
}
