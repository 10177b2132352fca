//! Deliveries and their completion.

use core::borrow::Borrow;
use core::time::Duration;

use alloc::vec::Vec;

use super::{Queue, Record, Transition};
use crate::order::Ready;
use crate::rule::{self, Adds, Failures, How, Plan, Start};
use crate::types::{
    Add, CancelReason, Delivery, Ending, Finish, Finished, Phase, Popped, Slot, Ticket, Time,
};

/// The maximum number of keys of a custom order that one call of `get_by_order` skips.
const MAX_SKIPPED: usize = 256;

impl<K: Eq + Clone> Queue<K> {
    /// Delivers the next key, if one is ready. The queue must not have a custom order.
    #[inline(always)]
    pub fn get(&mut self, now: Time) -> Option<Delivery<K>> {
        debug_assert!(!self.has_order(), "a custom order needs `get_by_order`");
        self.promote_due(now);
        // In a paused queue, due keys still become ready, so that the numbers of ready and waiting
        // keys are right.
        if self.paused {
            return None;
        }
        let slot = self.ready.next_ready()?;
        if self.index.is_large() {
            self.prefetch_after(slot);
        }
        Some(self.deliver(slot, None, now))
    }

    /// Makes the processor load the data that the next deliveries and completions will read.
    fn prefetch_after(&self, slot: Slot) {
        let (Ready::Fifo(_) | Ready::Priority(_)) = &self.ready else { return };
        let next =
            self.records.get(slot).next_in_order().and_then(|next| self.records.find_record(next));
        let Some(next) = next else { return };
        self.index.prefetch(next.hash);
        if let Some(after) = next.next_in_order() {
            self.records.prefetch(after);
        }
    }

    /// Delivers the next key, if one is ready. The queue must have a custom order. `hash_of`
    /// computes the hash of a key that the order returns, so that the queue finds its record.
    pub fn get_by_order(&mut self, now: Time, hash_of: impl Fn(&K) -> u64) -> Popped<K> {
        let mut popped = Popped { item: None, dropped: Vec::new(), again: false };
        self.promote_due(now);
        if self.paused {
            return popped;
        }
        while self.eligible() > 0 {
            let Ready::Custom(custom) = &mut self.ready else { break };
            let Some(key) = custom.pop() else { break };
            // The order may return any key: one that was cancelled, is in flight, or was never
            // added.
            let slot = self.find_slot(&key, hash_of(&key));
            if let Some(slot) = slot.filter(|&slot| self.records.get(slot).phase() == Phase::Ready)
                && let Some(groups) = self.ready.groups_mut()
            {
                if groups.is_eligible(slot) {
                    popped.item = Some(self.deliver(slot, Some(key), now));
                    return popped;
                }
                // The group is at its limit or paused. The order no longer contains this key, so
                // the queue remembers it, and pushes it again when the group becomes eligible.
                groups.skip_key(slot);
            }
            popped.dropped.push(key);
            // After this call, the caller releases its lock and calls again. A long series of skips
            // therefore does not block other threads.
            if popped.dropped.len() == MAX_SKIPPED {
                popped.again = true;
                return popped;
            }
        }
        // If the order has lost keys, the queue delivers them by age.
        if let Some(slot) = self.ready.next_ready() {
            popped.item = Some(self.deliver(slot, None, now));
        }
        popped
    }

    /// Returns true if the order is a custom order.
    #[must_use]
    pub const fn has_order(&self) -> bool {
        self.ready.is_custom()
    }

    /// Returns the slot of the key that `ticket` has delivered, unless the delivery was completed.
    #[inline(never)]
    pub(super) fn slot_of(&self, ticket: &Ticket) -> Option<Slot> {
        let is =
            |record: &Record<K>| record.phase().is_in_flight() && record.epoch() == ticket.epoch;
        if self.records.find_record(ticket.slot).is_some_and(is) {
            return Some(ticket.slot);
        }
        // Compaction has moved the record. Each epoch is unique, so it identifies the record
        // without a comparison of keys.
        self.index.probe(&self.records, ticket.hash, is)
    }

    /// Completes a delivery. Returns `None` and has no effect if the delivery was already completed.
    #[inline(always)]
    pub fn finish(&mut self, ticket: &Ticket, how: Finish, now: Time) -> Option<Finished<K>> {
        // `promote_due` comes first: if this key is due, that call makes it dirty.
        self.promote_due(now);
        self.finish_settled(ticket, how, now)
    }

    /// Completes a delivery. The caller has already made the due keys ready.
    #[inline(always)]
    pub(super) fn finish_settled(
        &mut self,
        ticket: &Ticket,
        how: Finish,
        now: Time,
    ) -> Option<Finished<K>> {
        if let Some((key, worked)) = self.finish_fast(ticket, how, now) {
            let key = Some(key);
            return Some(Finished { key, lost: false, ready: false, was_dirty: false, worked });
        }
        self.finish_slow(ticket, how, now)
    }

    #[cold]
    #[inline(never)]
    fn finish_slow(&mut self, ticket: &Ticket, how: Finish, now: Time) -> Option<Finished<K>> {
        let slot = self.slot_of(ticket)?;
        Some(self.finish_slot(slot, how, now, true))
    }

    /// Like [`finish`](Self::finish), but copies no key. If a custom order needs a copy of a key,
    /// the queue delivers that key by age instead. The caller uses this function after the `clone`
    /// of a key has panicked in `finish`, which then had no effect.
    pub fn finish_without_copies(
        &mut self,
        ticket: &Ticket,
        how: Finish,
        now: Time,
    ) -> Option<Finished<K>> {
        let slot = self.slot_of(ticket)?;
        Some(self.finish_slot(slot, how, now, false))
    }

    /// Detaches a delivery from its ticket, so that [`detached`](Self::detached) finds the delivery
    /// by its key. Returns `false` if the delivery was already completed.
    pub fn detach(&mut self, ticket: &Ticket) -> bool {
        let Some(slot) = self.slot_of(ticket) else { return false };
        self.records.get_mut(slot).detach();
        true
    }

    /// Returns the ticket of the delivery of `key`, if it was [detached](Self::detach).
    pub fn detached<Q>(&self, key: &Q, hash: u64) -> Option<Ticket>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find_slot(key, hash)?;
        let record = self.records.get(slot);
        (record.phase().is_in_flight() && record.is_detached()).then(|| Ticket {
            slot,
            hash: record.hash,
            epoch: record.epoch(),
        })
    }

    /// Returns the key of this delivery, unless the delivery was completed.
    #[must_use]
    pub fn key_of(&self, ticket: &Ticket) -> Option<&K> {
        self.slot_of(ticket).map(|slot| &self.records.get(slot).key)
    }

    /// Returns the time for which the key was ready before this delivery. Returns `None` if the
    /// queue does not track times, or if the delivery was completed.
    #[must_use]
    pub fn queued(&self, ticket: &Ticket) -> Option<Duration> {
        let tracker = self.tracker.as_ref()?;
        self.slot_of(ticket).map(|slot| tracker.stamp(slot).queued)
    }

    /// Returns true if the key was added again after this delivery began.
    #[must_use]
    pub fn is_dirty(&self, ticket: &Ticket) -> bool {
        self.slot_of(ticket)
            .is_some_and(|slot| self.records.get(slot).phase() == Phase::InFlightDirty)
    }

    /// Completes the delivery of the key in `slot` as the [rules](rule::complete) say.
    fn finish_slot(&mut self, slot: Slot, finish: Finish, now: Time, copies: bool) -> Finished<K> {
        let record = self.records.get(slot);
        let was_dirty = record.phase() == Phase::InFlightDirty;
        let epoch = record.epoch();
        let how = how_of(finish, record.cancel_reason(), now);
        let plan = rule::complete(how, &self.state_of(slot), self.settings.readd_policy, now);
        // A custom order needs copies of keys. They are made before anything changes, because the
        // `clone` of a key may panic.
        let order_key = self.key_if(slot, || plan.makes_ready && copies);
        let freed = if copies { self.key_to_free(slot) } else { None };

        // `plan` contains the end of the backoff, so the entry of this delivery is no longer
        // needed.
        self.backing_off.remove(epoch);
        self.count_completion(slot, how, &plan, was_dirty);
        let asked = finish.asked();
        if plan.adds == Adds::PassOn {
            self.merge_asked(slot, asked);
        }
        if let Some(reasons) = &mut self.reasons {
            reasons.end_run(slot, plan.adds == Adds::PassOn);
        }
        match plan.failures {
            Failures::Keep => {}
            Failures::Forget => self.set_failures(slot, 0),
            Failures::Count => self.add_failure(slot),
        }
        let event = self.begin_completion(slot, finish, how, now);
        // A release undoes the start of the run. It therefore removes the start from the pace, and
        // does not end a series of restarts.
        let is_release = matches!(how, How::Release(_));
        if is_release {
            self.take_back_start(slot);
        }
        match plan.start {
            Start::Now => self.replace_waiting(slot),
            Start::No | Start::Paced(_) => {
                if was_dirty {
                    self.withdraw_run(slot);
                }
            }
        }
        // The delivery leaves its group before the key becomes ready. The key can then be eligible
        // although its group was at its limit.
        self.record_freed_group(slot, now);
        self.free_group(slot, freed);
        let worked = self.start_next(slot, &plan, was_dirty, asked.priority, now, order_key);
        // The key will not run again, so its record must not be kept only because the key has failed.
        if plan.is_lost {
            self.set_failures(slot, 0);
        }
        if self.restarts()
            && !((is_release || how == How::Restarted) && self.records.get(slot).is_pending())
        {
            self.end_series(slot);
        }
        let record = self.records.get(slot);
        let ready = record.phase() == Phase::Ready;
        if !ready && record.is_waiting() {
            // The key waits from this completion on, even if the delayed add came earlier.
            self.stamp_time(slot, now);
        }
        self.end_completion(event, slot);
        if plan.is_lost {
            self.record_slot(slot, now, Transition::Dropped);
        }
        // The record is released last, because a later statement could use the slot of the removed
        // record.
        let (key, lost) = (self.release_if_stateless(slot), plan.is_lost);
        Finished { key, lost, ready, was_dirty, worked }
    }

    /// Ends the delivery of the key in `slot`, and requests the next runs of the key. Returns the
    /// time for which the key was in flight, if the queue tracks times.
    fn start_next(
        &mut self,
        slot: Slot,
        plan: &Plan<Time>,
        was_dirty: bool,
        priority: i32,
        now: Time,
        mut order_key: Option<K>,
    ) -> Option<Duration> {
        // If the key is dirty, `end_delivery` makes it ready. Otherwise, a new request makes it
        // ready. The copy for the custom order goes to exactly one of these calls.
        let dirty_key = if was_dirty { order_key.take() } else { None };
        let worked = self.end_delivery(slot, now, dirty_key);
        if plan.start == Start::Now && !was_dirty {
            let _ = self.request_run(slot, now, order_key.take());
        }
        // Only the record of an idle key has space for the end of a backoff.
        if let Some(end) = plan.backoff
            && plan.start != Start::Now
        {
            self.records.get_mut(slot).set_not_before(end);
        }
        if let Some((due, merge)) = plan.later {
            let _ = self.request_later(slot, due, merge, None, now);
        }
        if let Start::Paced(until) = plan.start {
            let _ = self.wait_for_pace(slot, until, now);
        }
        if let Some(at) = plan.add {
            let _ = self.add_to(slot, &Add::at(at).priority(priority), now, order_key);
        }
        worked
    }

    /// Counts the failure and the retry of a completion, before `finish_slot` changes the failures
    /// of the key.
    fn count_completion(&mut self, slot: Slot, how: How<Time>, plan: &Plan<Time>, was_dirty: bool) {
        if let How::Retry(_) | How::GiveUp = how {
            self.counters.count_failure();
            if let Some(tracker) = &mut self.tracker {
                tracker.consecutive.observe(self.records.get(slot).failures().saturating_add(1));
            }
        }
        if let How::Retry(_) = how
            && self.ending != Ending::ShutDown
        {
            self.counters.count_retry(true);
            if was_dirty && plan.is_one_run() {
                self.counters.count_coalesced();
            }
        }
    }

    /// Returns the key that the completion of `slot` pushes to the custom order again. It is the
    /// oldest key that the order returned while the group was at its limit. In a paused group, such
    /// keys wait until the group is resumed.
    fn key_to_free(&self, slot: Slot) -> Option<(Slot, K)> {
        let Ready::Custom(custom) = &self.ready else { return None };
        let skipped =
            custom.by_age.oldest_skipped(slot).filter(|_| !custom.by_age.is_in_paused(slot))?;
        Some((skipped, self.records.get(skipped).key.clone()))
    }

    fn free_group(&mut self, slot: Slot, freed: Option<(Slot, K)>) {
        if let Some(groups) = self.ready.groups_mut() {
            groups.end_delivery(slot);
        }
        if let (Ready::Custom(custom), Some((skipped, key))) = (&mut self.ready, freed) {
            custom.by_age.unskip_key(skipped);
            custom.push(key);
        }
    }
}

/// Converts a completion into the form that the rules use. This form has due times instead of
/// delays.
fn how_of(finish: Finish, cancelled: Option<CancelReason>, now: Time) -> How<Time> {
    match finish {
        Finish::Done => How::Done,
        Finish::Succeed => How::Succeed,
        Finish::GiveUp => How::GiveUp,
        Finish::Cancelled { .. } if cancelled == Some(CancelReason::Restarted) => How::Restarted,
        Finish::Cancelled { .. } => How::Cancelled,
        Finish::RequeueAfter { delay, .. } => How::Requeue(now + delay),
        Finish::RetryAfter { delay, .. } => How::Retry(now + delay),
        Finish::Release { .. } => How::Release(None),
        Finish::ReleaseAfter { delay, .. } => How::Release(Some(now + delay)),
    }
}
