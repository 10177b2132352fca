//! Deliveries and their completion.

use core::borrow::Borrow;
use core::time::Duration;

use alloc::vec::Vec;

use super::Queue;
use super::transitions::record::Record;
use crate::order::Ready;
use crate::types::add::{Add, Merge, ReAdd};
use crate::types::cancel::CancelReason;
use crate::types::delivery::{Delivery, Finish, Finished, Popped, Ticket};
use crate::types::lifecycle::{Ending, Phase};
use crate::types::slot::Slot;
use crate::types::time::Time;

/// The maximum number of keys of a custom order that one call skips.
const MAX_SKIPPED: usize = 256;

impl<K: Eq + Clone> Queue<K> {
    /// Delivers the next key, if one is ready. The queue must not have a custom order.
    #[inline(always)]
    pub fn get(&mut self, now: Time) -> Option<Delivery<K>> {
        debug_assert!(!self.has_order(), "a custom order needs `get_by_order`");
        self.promote_due(now);
        if self.paused {
            return None;
        }
        let slot = self.ready.next()?;
        if self.index.is_large() {
            self.prefetch_after(slot);
        }
        Some(self.deliver(slot, None, now))
    }

    /// Makes the processor fetch the data that the deliveries and completions of the next keys
    /// need.
    fn prefetch_after(&self, slot: Slot) {
        let (Ready::Fifo(_) | Ready::Priority(_)) = &self.ready else { return };
        let next = self.records.get(slot).next().and_then(|next| self.records.find(next));
        let Some(next) = next else { return };
        self.index.prefetch(next.hash);
        if let Some(after) = next.next() {
            self.records.prefetch(after);
        }
    }

    /// Delivers the next key, if one is ready, in a queue with a custom order. `hash_of` hashes the
    /// keys that the order returns, so that the queue finds them.
    pub fn get_by_order(&mut self, now: Time, hash_of: impl Fn(&K) -> u64) -> Popped<K> {
        let mut popped = Popped { item: None, dropped: Vec::new(), again: false };
        self.promote_due(now);
        if self.paused {
            return popped;
        }
        while self.eligible() > 0 {
            let Ready::Custom(custom) = &mut self.ready else { break };
            let Some(key) = custom.pop() else { break };
            let slot = self.find(&key, hash_of(&key));
            if let Some(slot) = slot.filter(|&slot| self.records.get(slot).phase() == Phase::Ready)
                && let Some(groups) = self.ready.groups_mut()
            {
                if groups.is_eligible(slot) {
                    popped.item = Some(self.deliver(slot, Some(key), now));
                    return popped;
                }
                groups.skip(slot);
            }
            popped.dropped.push(key);
            if popped.dropped.len() == MAX_SKIPPED {
                popped.again = true;
                return popped;
            }
        }
        // Keys that the order lost are delivered by age.
        if let Some(slot) = self.ready.next() {
            popped.item = Some(self.deliver(slot, None, now));
        }
        popped
    }

    /// Returns true if the order is a custom one.
    #[must_use]
    pub const fn has_order(&self) -> bool {
        self.ready.is_custom()
    }

    /// Returns the slot of a delivery that has not been completed.
    #[inline(never)]
    pub(super) fn locate(&self, ticket: &Ticket) -> Option<Slot> {
        let is =
            |record: &Record<K>| record.phase().is_processing() && record.epoch() == ticket.epoch;
        if self.records.find(ticket.slot).is_some_and(is) {
            return Some(ticket.slot);
        }
        // The record has moved. Epochs are unique, so no key is compared.
        self.index.probe(&self.records, ticket.hash, is)
    }

    /// Completes a delivery. Returns `None` and has no effect if it was completed already.
    #[inline(always)]
    pub fn finish(&mut self, ticket: &Ticket, how: Finish, now: Time) -> Option<Finished<K>> {
        self.promote_due(now);
        if let Some((key, worked)) = self.finish_fast(ticket, how, now) {
            let key = Some(key);
            return Some(Finished { key, lost: false, ready: false, was_dirty: false, worked });
        }
        self.finish_slow(ticket, how, now)
    }

    #[cold]
    #[inline(never)]
    fn finish_slow(&mut self, ticket: &Ticket, how: Finish, now: Time) -> Option<Finished<K>> {
        let slot = self.locate(ticket)?;
        Some(self.finish_slot(slot, how, now, true))
    }

    /// Like [`finish`](Self::finish), but copies no key. If a custom order would need a copy of a
    /// key, that key is delivered by age instead. The caller uses this after a key's `clone`
    /// panicked in `finish`, which then had no effect.
    pub fn finish_without_copies(
        &mut self,
        ticket: &Ticket,
        how: Finish,
        now: Time,
    ) -> Option<Finished<K>> {
        let slot = self.locate(ticket)?;
        Some(self.finish_slot(slot, how, now, false))
    }

    /// Detaches a delivery from its ticket, so that [`detached`](Self::detached) finds it by its
    /// key. Returns `false` if the delivery was completed already.
    pub fn detach(&mut self, ticket: &Ticket) -> bool {
        let Some(slot) = self.locate(ticket) else { return false };
        self.records.get_mut(slot).detach();
        true
    }

    /// Returns the ticket of the delivery of `key`, if it was [detached](Self::detach).
    pub fn detached<Q>(&self, key: &Q, hash: u64) -> Option<Ticket>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find(key, hash)?;
        let record = self.records.get(slot);
        (record.phase().is_processing() && record.is_detached()).then(|| Ticket {
            slot,
            hash: record.hash,
            epoch: record.epoch(),
        })
    }

    /// Returns the key of this delivery, if it has not been completed.
    #[must_use]
    pub fn key_of(&self, ticket: &Ticket) -> Option<&K> {
        self.locate(ticket).map(|slot| &self.records.get(slot).key)
    }

    /// Returns how long the key was ready before this delivery, if times are tracked and the
    /// delivery has not been completed.
    #[must_use]
    pub fn queued(&self, ticket: &Ticket) -> Option<Duration> {
        let tracker = self.tracker.as_ref()?;
        self.locate(ticket).map(|slot| tracker.queued(slot))
    }

    /// Returns true if the key was added again since this delivery.
    #[must_use]
    pub fn is_dirty(&self, ticket: &Ticket) -> bool {
        self.locate(ticket)
            .is_some_and(|slot| self.records.get(slot).phase() == Phase::ProcessingDirty)
    }

    fn finish_slot(&mut self, slot: Slot, how: Finish, now: Time, copies: bool) -> Finished<K> {
        let record = self.records.get(slot);
        let was_dirty = record.phase() == Phase::ProcessingDirty;
        let epoch = record.epoch();
        let not_before = self.backoff_of(epoch);
        let has_ended = self.ending == Ending::ShutDown;
        let is_restarted = matches!(how, Finish::Cancelled { .. })
            && record.cancel_reason() == Some(CancelReason::Restarted);
        let passes_on = is_restarted && record.is_pending();
        let (ready, due) = self.what_follows(how, was_dirty, not_before, now);
        // A released delivery does not count as a start, so the pace permits another one.
        let is_released = matches!(how, Finish::Release { .. } | Finish::ReleaseAfter { .. });
        let paced = if ready && !is_released { self.pace_gate(slot, now) } else { None };
        let lost = has_ended && (paced.is_some() || self.is_next_run_lost(slot, how, was_dirty));
        let ready = ready && paced.is_none() && !lost;
        let paced = if lost { None } else { paced };
        let requeues = matches!(how, Finish::RequeueAfter { .. }) && !has_ended;
        // Copies for a custom order come before any change, because a key's `clone` may panic.
        let mut order_key = self.key_if(ready && copies, slot);
        let freed = if copies { self.key_to_free(slot) } else { None };

        self.backing_off.remove(&epoch);
        match how {
            Finish::Done => {}
            Finish::Succeed | Finish::RequeueAfter { .. } => self.set_failures(slot, 0),
            Finish::GiveUp => {
                self.counters.count_failure();
                self.set_failures(slot, 0);
            }
            Finish::RetryAfter { asked, .. } => {
                self.counters.count_failure();
                self.note(slot, asked);
                self.add_failure(slot);
                self.counters.count_retry(!has_ended);
                if !has_ended && was_dirty && (self.re_add != ReAdd::KeepBoth || due.is_none()) {
                    self.counters.count_coalesced();
                }
            }
            Finish::Release { asked } | Finish::ReleaseAfter { asked, .. } => {
                self.take_back_start(slot);
                self.note(slot, asked);
            }
            Finish::Cancelled { asked } if passes_on => self.note(slot, asked),
            Finish::Cancelled { .. } => {}
        }
        if was_dirty && !ready {
            self.withdraw(slot);
        }
        if ready && (was_dirty || !requeues) {
            self.replace_waiting(slot);
        }
        self.free_group(slot, freed);
        let dirty_key = if was_dirty { order_key.take() } else { None };
        let worked = self.end_delivery(slot, now, dirty_key);
        if let Finish::Done | Finish::Cancelled { .. } = how
            && !ready
        {
            self.records.get_mut(slot).set_not_before(not_before);
        }

        if let Finish::RequeueAfter { delay, asked } = how
            && requeues
        {
            if let Some(until) = paced.filter(|_| was_dirty) {
                let _ = self.wait_for_pace(slot, until, now);
            }
            let later = Add::after(delay).priority(asked.priority);
            let _ = self.add_to(slot, &later, now, order_key);
        } else {
            if ready && !was_dirty {
                let _ = self.demand(slot, now, order_key);
            }
            if let Some(due) = due {
                let mut merge = Merge::Earliest;
                if self.re_add == ReAdd::Hold {
                    let backoff = if is_released { not_before } else { due };
                    self.records.get_mut(slot).set_not_before(backoff);
                    if due == backoff {
                        // One run serves the failure and all adds since the delivery.
                        merge = Merge::Exactly;
                    }
                }
                let _ = self.demand_later(slot, due, merge, None, now);
            }
            if let Some(until) = paced {
                let _ = self.wait_for_pace(slot, until, now);
            }
        }
        if lost {
            self.set_failures(slot, 0);
        }
        // A release is not a run, and leaves a series as it is.
        if self.restarts()
            && !((is_restarted || is_released) && self.records.get(slot).is_pending())
        {
            self.end_series(slot);
        }
        let record = self.records.get(slot);
        let ready = record.phase() == Phase::Ready;
        if !ready && record.is_waiting() {
            // The key has been waiting since the completion, even if the delayed add was made
            // earlier.
            self.stamp(slot, now);
        }
        Finished { key: self.release_if_stateless(slot), lost, ready, was_dirty, worked }
    }

    /// Returns true if the run that would follow the completed delivery of the key in `slot` is
    /// dropped, because the queue was shut down.
    #[cold]
    fn is_next_run_lost(&self, slot: Slot, how: Finish, was_dirty: bool) -> bool {
        let asks_more = !matches!(
            how,
            Finish::Done | Finish::Succeed | Finish::GiveUp | Finish::Cancelled { .. }
        );
        if self.paused || self.is_in_paused_group(slot) {
            was_dirty || asks_more
        } else {
            asks_more && !was_dirty
        }
    }

    /// Returns whether the key of a completed delivery becomes ready immediately. Also returns the
    /// later time at which it is due, if there is one.
    fn what_follows(
        &self,
        how: Finish,
        was_dirty: bool,
        not_before: Time,
        now: Time,
    ) -> (bool, Option<Time>) {
        let due = match how {
            Finish::Done | Finish::Succeed | Finish::GiveUp | Finish::Cancelled { .. } => {
                return (was_dirty, None);
            }
            _ if self.ending == Ending::ShutDown => return (was_dirty, None),
            Finish::RequeueAfter { delay, .. } => now + delay,
            Finish::RetryAfter { delay, .. } => not_before.max(now + delay),
            Finish::ReleaseAfter { delay, .. } if !was_dirty => not_before.max(now + delay),
            Finish::Release { .. } | Finish::ReleaseAfter { .. } => not_before,
        };
        match self.re_add {
            _ if due <= now => (true, None),
            ReAdd::KeepBoth => (was_dirty, Some(due)),
            ReAdd::Hold if !matches!(how, Finish::RequeueAfter { .. }) => (false, Some(due)),
            ReAdd::Replace | ReAdd::Hold => (was_dirty, (!was_dirty).then_some(due)),
        }
    }

    /// Returns the key to push to the custom order again when the delivery of `slot` is completed.
    /// It is the oldest of the keys that the order returned while the group was at its limit. The
    /// keys of a paused group wait for the end of the pause.
    fn key_to_free(&self, slot: Slot) -> Option<(Slot, K)> {
        let Ready::Custom(custom) = &self.ready else { return None };
        let skipped = custom.by_age.skipped(slot).filter(|_| !custom.by_age.is_in_paused(slot))?;
        Some((skipped, self.records.get(skipped).key.clone()))
    }

    fn free_group(&mut self, slot: Slot, freed: Option<(Slot, K)>) {
        if let Some(groups) = self.ready.groups_mut() {
            groups.finish(slot);
        }
        if let (Ready::Custom(custom), Some((skipped, key))) = (&mut self.ready, freed) {
            custom.by_age.unskip(skipped);
            custom.push(key);
        }
    }
}
