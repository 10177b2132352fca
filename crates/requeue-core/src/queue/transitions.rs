//! Applies the rules to the records. No other module changes the phase of a key or a counter.
//!
//! [`table`] is the state table of `docs/concepts/semantics.md`. The methods below apply a row:
//! they look up the cell for the phase of a key, change the phase, and update the order, the
//! counters and the times accordingly.

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

    /// The row `add` for a new key, whose record was inserted in `slot`.
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

    /// The row `add`: requests a run of the key in `slot` now.
    pub(super) fn request_run(&mut self, slot: Slot, now: Time, order_key: Option<K>) -> Added {
        self.request_run_in(self.records.get(slot).phase, slot, now, order_key)
    }

    /// Like `request_run`, for a caller that has already read the phase.
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
                // Three functions make a key ready, and each asks the pace: this function, the add of a new key, and a
                // completion.
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
                // A run that is due now has passed the backoff gate, so the backoff has ended.
                if !self.backing_off.is_empty() {
                    self.backing_off.remove(record.epoch());
                }
                self.enter_depth(slot);
                // The key is already dirty, so its next run follows the run that is cancelled here.
                if self.restarts.is_some() {
                    self.restart_run(slot, now);
                }
                Added::Dirty
            }
            Cell::Lift => {
                self.counters.count_coalesced();
                // Only an order with a side table needs the priority and the touch.
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

    /// The rows `add_after` and `debounce`: requests a run of the key in `slot` at `due`. A debounced add
    /// has a `bound`.
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

    /// Like `request_later`, for an add without a bound, and for a key that already has a deadline.
    #[inline(always)]
    pub(super) fn merge_due(&mut self, slot: Slot, due: Time, merge: Merge) -> Added {
        self.counters.count_coalesced();
        self.timers.update(slot, |wait| wait.merged(due, merge));
        Added::Coalesced
    }

    /// The row `due ≤ now`: the key in `slot` is due.
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

    /// The row `get`: delivers the ready key in `slot`. Copies the key, unless the caller has a copy.
    #[inline(always)]
    pub(super) fn deliver(&mut self, slot: Slot, key: Option<K>, now: Time) -> Delivery<K> {
        let mut record = self.records.get_mut(slot);
        // The copy comes before any change, because a key's `clone` may panic.
        let key = key.unwrap_or_else(|| record.key.clone());
        debug_assert!(matches!(table(Row::Get, record.phase), Cell::Start));
        // The number of a delivery is the count of deliveries up to it, so no number is used twice.
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

    /// Gives the next delivery this number, which is at least 1.
    pub(super) const fn number_deliveries_from(&mut self, number: u64) {
        self.counters.totals.deliveries = number - 1;
    }

    /// The row `done`: completes the delivery of the key in `slot`. Returns how long the key was in
    /// flight, if times are tracked.
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

    /// The row `done` for the key of `ticket`, for which `is_wanted` returns true, and whose record is no longer
    /// needed. Removes the record in the same step. Returns the key and, if times are tracked, how long it was in
    /// flight.
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
        // The record has been removed. Side tables keep the entry of its slot until the next
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

    /// The row `cancel`: withdraws the run of the key in `slot` that has no due time. Returns the
    /// previous phase.
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

    /// → Ready, at the tail. A custom order gets `order_key`.
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

    /// Updates the group's count of dirty keys, because the key in `slot` has become dirty or is no
    /// longer dirty.
    #[inline]
    fn mark_dirty(&mut self, slot: Slot, dirty: bool) {
        if let Some(groups) = self.ready.groups_mut() {
            groups.mark_dirty(slot, dirty);
        }
    }

    // --- Deadlines and failures -----------------------------------------------------------------

    /// Counts the waiting key in `slot`. A key that is not Idle is called busy. The queue counts
    /// only busy waiting keys, because few keys wait while they are ready or in flight. Groups
    /// count only Idle waiting keys.
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

    /// Reverses `enter_wait`.
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

    /// Updates the counts for the waiting key in `slot`, whose phase changes.
    #[cold]
    #[inline(never)]
    fn recount_wait(&mut self, slot: Slot, before: Phase, after: Phase) {
        let has_failed = self.records.get(slot).failures > 0;
        self.leave_wait(slot, before, has_failed);
        self.enter_wait(slot, after, has_failed);
    }

    /// Sets the deadline and the bound of the key in `slot`, which has no deadline yet.
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

    /// Sets the deadline of the key in `slot`, without a bound.
    pub(super) fn wait_until(&mut self, slot: Slot, due: Time) {
        let wait = Wait { due, bound: None };
        if self.records.get(slot).waiting {
            self.timers.update(slot, |_| wait);
        } else {
            self.begin_wait(slot, wait);
        }
    }

    /// Removes the deadline of the key in `slot`, and returns true if there was a deadline.
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

    /// Removes the deadline of the key in `slot`, which becomes ready or dirty. Under
    /// [`ReaddPolicy::KeepBoth`] the deadline stays, but loses its bound.
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
        // The failures of a waiting key decide whether it counts as waiting or as backing off.
        if record.waiting && (before > 0) != (failures > 0) {
            let phase = record.phase;
            self.leave_wait(slot, phase, before > 0);
            self.enter_wait(slot, phase, failures > 0);
        }
    }

    // --- Times and depths -----------------------------------------------------------------------

    /// Records that the key in `slot` became ready, dirty or waiting at `now`.
    #[inline]
    pub(super) fn stamp_time(&mut self, slot: Slot, now: Time) {
        if let Some(tracker) = &mut self.tracker {
            tracker.stamp_added(slot, now);
        }
    }

    /// Counts the key in `slot`, which became ready or dirty, at its priority.
    #[inline]
    fn enter_depth(&mut self, slot: Slot) {
        if let Some(tracker) = &mut self.tracker {
            tracker.depths.enter(self.records.get(slot).priority);
        }
    }

    /// Reverses `enter_depth`. The key must have been counted with this priority.
    #[inline]
    fn leave_depth(&mut self, slot: Slot) {
        if let Some(tracker) = &mut self.tracker {
            tracker.depths.leave(self.records.get(slot).priority);
        }
    }

    /// If the key in `slot` is ready or dirty, counts it at its present priority instead of at the priority `before`.
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

    /// Moves the ready key in `slot` to its new priority, if the priority was raised. Notifies a
    /// custom order of the add if `is_touched`.
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
