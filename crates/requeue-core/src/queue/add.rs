//! Adds and cancels of keys, and the promotion of keys that become due.

use alloc::sync::Arc;
use core::borrow::Borrow;

use super::{MAX_PROMOTIONS, Queue, Record, Transition, Walk};
use crate::memory::{Position, fold};
use crate::order::{GroupId, Ready};
use crate::rule::{self, KeyState, Wish};
use crate::types::{Add, Added, Asked, Cancelled, Ending, Merge, Phase, Slot, Time};

impl<K: Eq + Clone> Queue<K> {
    /// Adds `key`. Returns the key to the caller if the queue already has a record of it, or
    /// refuses the add.
    #[inline(always)]
    pub fn add(
        &mut self,
        key: K,
        hash: u64,
        add: Add,
        group: GroupId,
        now: Time,
    ) -> (Added, Option<K>) {
        match self.add_fast(key, hash, &add, group, now) {
            Ok(added) => added,
            Err(key) => self.add_caused_by(key, hash, add, None, group, now),
        }
    }

    /// Like [`add`](Self::add). `cause` is the cause of the add, for an add that has a reason.
    #[inline(never)]
    pub fn add_caused_by(
        &mut self,
        key: K,
        hash: u64,
        add: Add,
        cause: Option<&Arc<str>>,
        group: GroupId,
        now: Time,
    ) -> (Added, Option<K>) {
        if self.ending != Ending::ShutDown {
            // Keys that are due become ready before this add takes effect. One of them may be the
            // added key.
            self.promote_due(now);
        }
        self.add_settled(key, hash, &add, cause, group, now)
    }

    /// Adds `key`. The caller has already made the due keys ready.
    pub(super) fn add_settled(
        &mut self,
        key: K,
        hash: u64,
        add: &Add,
        cause: Option<&Arc<str>>,
        group: GroupId,
        now: Time,
    ) -> (Added, Option<K>) {
        let known = match self.ending {
            Ending::ShutDown => None,
            Ending::Open | Ending::Closed => self.find_slot(&key, hash),
        };
        let added = known.map(|slot| self.add_known_slot(slot, add, now));
        if let Some(added) = added.or((self.ending != Ending::Open).then_some(Added::Refused)) {
            match known {
                Some(slot) => self.note_reason(slot, add, added, cause),
                None => self.record_add(fold(hash), add, added, now),
            }
            return (added, Some(key));
        }
        let folded = fold(hash);
        // The pace remembers a start for longer than the queue keeps the record of its key. A key
        // without a record can therefore still have to wait for its pace.
        let until = self.pace.as_ref().map(|pace| pace.permitted_from(&key, folded));
        let paced = until.filter(|&until| until > now && add.due(now).is_none());
        let due = add.due(now).or(paced);
        // The key is copied before anything changes, because the `clone` of a key is user code and
        // may panic.
        let order_key = (self.ready.is_custom() && due.is_none()).then(|| key.clone());
        let tail = self.ready.tail();
        let record = Record::new(key, folded, add, due.is_some(), tail, Position::OVERFLOWED);
        let slot = self.records.insert(record);
        self.index.insert(&mut self.records, folded, slot);
        self.admit_new(slot, add, due, group, now);
        self.record_new(folded, add, group, now);
        self.note_reason(slot, add, Added::New, cause);
        if let Some(until) = paced {
            self.count_paced(slot);
            self.record_slot(slot, now, Transition::Paced { until });
        }
        // `push` is user code and may panic. The queue has then already added the key, and delivers
        // it by age.
        if let (Ready::Custom(custom), Some(key)) = (&mut self.ready, order_key) {
            custom.push(key);
        }
        (Added::New, None)
    }

    /// Returns true if the queue would refuse an add of `key`.
    pub fn refuses<Q>(&self, key: &Q, hash: u64) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match self.ending {
            Ending::Open => false,
            Ending::Closed => {
                self.find_slot(key, hash).is_none_or(|slot| !self.records.get(slot).is_known())
            }
            Ending::ShutDown => true,
        }
    }

    /// Adds `key` if the queue has a record of it. Otherwise, changes nothing and returns `None`.
    pub fn add_known<Q>(&mut self, key: &Q, hash: u64, add: &Add, now: Time) -> Option<Added>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        if self.ending == Ending::ShutDown {
            self.record_add(fold(hash), add, Added::Refused, now);
            return Some(Added::Refused);
        }
        self.promote_due(now);
        let slot = self.find_slot(key, hash)?;
        let is_simple = self.is_simple();
        let added = match is_simple.then(|| self.add_again_fast(slot, add, now)).flatten() {
            Some(added) => {
                self.record_add(fold(hash), add, added, now);
                added
            }
            None => self.add_known_slot(slot, add, now),
        };
        self.note_reason(slot, add, added, None);
        Some(added)
    }

    /// Adds the key in `slot` again, unless the queue refuses it.
    fn add_known_slot(&mut self, slot: Slot, add: &Add, now: Time) -> Added {
        let record = self.records.get(slot);
        if self.ending == Ending::Closed && !record.is_known() {
            self.record_add(record.hash, add, Added::Refused, now);
            return Added::Refused;
        }
        self.add_again(slot, add, now)
    }

    /// Adds the key in `slot` again.
    fn add_again(&mut self, slot: Slot, add: &Add, now: Time) -> Added {
        let order_key = self.key_if(slot, || self.makes_ready(slot, add, now));
        let event = self.begin_add(slot, add, now);
        // `Merge::Exactly` cancels the pending run first, so there is no due time with which this
        // add could merge.
        if add.merge == Merge::Exactly {
            let _ = self.clear_pending(slot);
        }
        let added = self.add_to(slot, add, now, order_key);
        self.end_add(event, added);
        added
    }

    /// Returns true if the add makes the key ready, and the key either was not ready or loses its
    /// pending run first.
    fn makes_ready(&self, slot: Slot, add: &Add, now: Time) -> bool {
        let key = self.state_of(slot);
        let is_cancelled = add.merge == Merge::Exactly;
        let is_idle = match key.phase() {
            Phase::Idle => true,
            Phase::Ready => is_cancelled,
            Phase::InFlight | Phase::InFlightDirty => false,
        };
        // The cancel also ends the backoff, so `permit`, which respects a backoff, must not be
        // called.
        let due = match is_cancelled {
            true => add.due(now),
            false => {
                rule::permit(&key, self.settings.readd_policy, Wish::of_add(add, now), now).due
            }
        };
        is_idle && due.is_none() && key.paced(now).is_none()
    }

    /// Applies an add to the key in `slot`.
    pub(super) fn add_to(
        &mut self,
        slot: Slot,
        add: &Add,
        now: Time,
        order_key: Option<K>,
    ) -> Added {
        self.counters.count_add(add);
        let wish = Wish::of_add(add, now);
        let permit = rule::permit(&self.state_of(slot), self.settings.readd_policy, wish, now);
        if let Some(at) = permit.backoff {
            self.back_off_until(slot, at);
        }
        if add.failed {
            self.add_failure(slot);
        }
        self.merge_asked(slot, Asked { adds: 1, flags: add.flags, priority: add.priority });
        if let Some(until) = permit.backoff.or(permit.due.filter(|_| permit.is_held)) {
            self.record_slot(slot, now, Transition::Held { until });
        }
        match permit.due {
            Some(due) => match self.request_later(slot, due, add.merge, wish.bound, now) {
                Added::Coalesced | Added::New if permit.is_held => Added::BackingOff,
                added => added,
            },
            None => {
                if self.records.get(slot).phase() == Phase::Idle
                    && let Some(until) = self.pace_gate(slot, now)
                {
                    // The backoff has ended.
                    self.records.get_mut(slot).set_not_before(Time::ZERO);
                    return self.wait_for_pace(slot, until, now);
                }
                self.replace_waiting(slot);
                self.request_run(slot, now, order_key)
            }
        }
    }

    /// Merges the adds, flags and priority of `asked` into the pending run of the key in `slot`. If
    /// no run is pending, they become those of its next run.
    #[inline(always)]
    pub(super) fn merge_asked(&mut self, slot: Slot, asked: Asked) {
        let record = self.records.get_mut(slot);
        let before = record.priority;
        record.merge_asked(asked);
        if record.priority != before {
            self.move_depth(slot, before);
        }
    }

    /// Makes up to [`MAX_PROMOTIONS`] due keys ready. An operation calls this function before its
    /// own work.
    #[inline]
    pub(super) fn promote_due(&mut self, now: Time) {
        if self.timers.is_due(now) {
            self.promote(now, MAX_PROMOTIONS);
        }
    }

    /// Makes up to `max` due keys ready, in the order of their due times. Keys with the same due
    /// time become ready in the order in which those times were set. Returns the number of these
    /// keys.
    pub fn promote(&mut self, now: Time, max: usize) -> usize {
        self.observe(now);
        if self.ending == Ending::ShutDown {
            return 0;
        }
        let mut count = 0;
        while count < max
            && let Some(slot) = self.timers.first_due(now)
        {
            // The next iteration reads this record, so the processor loads it early.
            if self.index.is_large()
                && let Some(next) = self.timers.second_due()
            {
                self.records.prefetch(next);
            }
            count += 1;
            self.promote_slot(slot, now);
        }
        count
    }

    /// Makes the key in `slot` ready, or dirty if it is in flight. The key must be due.
    #[inline]
    pub(super) fn promote_slot(&mut self, slot: Slot, now: Time) {
        let is_idle = self.records.get(slot).phase() == Phase::Idle;
        // A key in flight does not wait for its pace at this point. Its completion checks the pace
        // again, before the next start.
        if is_idle && let Some(until) = self.pace_gate(slot, now) {
            return self.postpone_run(slot, until, now);
        }
        let order_key = self.key_if(slot, || is_idle);
        self.fall_due(slot, now, order_key);
    }

    /// Examines up to `max` slots. If a key waits for further debounced adds, ends this wait: its
    /// pending run is due now, or as soon as its backoff and its pace permit. Returns the number of
    /// keys whose wait this call has ended.
    ///
    /// The keys of one call become due in the order of their slots. The walk is over immediately if
    /// no key was ever debounced. It is also over after a shutdown, because a shutdown drops the
    /// waiting keys.
    pub fn flush_debounced(&mut self, walk: &mut Walk, max: usize, now: Time) -> usize {
        if self.ending == Ending::ShutDown || !self.timers.has_bounds() {
            walk.skip_rest();
        }
        let mut count = 0;
        // This walk removes no records, so it may visit the slots in any order.
        for slot in walk.advance(max).rev() {
            if self.timers.bound(slot).is_some() {
                self.flush_wait(slot, now);
                count += 1;
            }
        }
        count
    }

    /// Makes the pending run of the key in `slot` due as soon as its backoff and its pace permit.
    /// The run must have a bound.
    pub(super) fn flush_wait(&mut self, slot: Slot, now: Time) {
        let record = self.records.get(slot);
        // The completion of a key in flight checks the pace, so only the backoff matters here.
        let (backoff, paced) = if record.phase().is_in_flight() {
            (self.backoff_of(record.epoch()), Time::ZERO)
        } else {
            (record.not_before(), self.paced_until(slot).unwrap_or_default())
        };
        let is_paced = paced > backoff.max(now);
        self.timers.update(slot, |wait| wait.flushed(now.max(backoff).max(paced)));
        let due = self.timers.due(slot).unwrap_or(now);
        self.record_slot(slot, now, Transition::Flushed { due });
        if is_paced {
            self.count_paced(slot);
            self.record_slot(slot, now, Transition::Paced { until: paced });
        }
    }

    /// Cancels all pending runs of `key`, and forgets its failures. Returns the states that the key
    /// has lost. Also returns the key itself if the queue no longer has a record of it. Returns
    /// `None` if the queue had no record of the key.
    pub fn cancel<Q>(&mut self, key: &Q, hash: u64) -> Option<(Cancelled, Option<K>)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find_slot(key, hash)?;
        let cancelled = self.cancel_slot(slot);
        Some((cancelled, self.release_if_stateless(slot)))
    }

    /// Cancels all pending runs of the key in `slot`, and forgets its failures.
    pub(super) fn cancel_slot(&mut self, slot: Slot) -> Cancelled {
        let (cancelled, ends_series) = self.clear_pending(slot);
        // A cancel ends a series of restarts, and `forget` does not. A replay must distinguish the
        // two, so they are recorded as different transitions.
        let is_cancel = cancelled.any() || ends_series;
        let transition = if is_cancel { Transition::Withdrawn } else { Transition::Forgotten };
        self.record_slot_now(slot, transition);
        cancelled
    }

    /// Returns the states that the key has lost. The second value is true if the call has ended a
    /// series of restarts.
    fn clear_pending(&mut self, slot: Slot) -> (Cancelled, bool) {
        let waiting = self.stop_waiting(slot);
        let phase = self.withdraw_run(slot);
        self.stop_backing_off(slot);
        self.set_failures(slot, 0);
        let ends_series = self.end_series(slot);
        self.records.get_mut(slot).forget_adds();
        if let Some(reasons) = &mut self.reasons {
            reasons.forget_pending(slot);
        }
        let (ready, dirty) = (phase == Phase::Ready, phase == Phase::InFlightDirty);
        (Cancelled { ready, dirty, waiting }, ends_series)
    }

    /// Forgets the failures of `key`. Returns the key if the queue no longer has a record of it.
    pub fn forget<Q>(&mut self, key: &Q, hash: u64) -> Option<K>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find_slot(key, hash)?;
        self.set_failures(slot, 0);
        self.stop_backing_off(slot);
        self.record_slot_now(slot, Transition::Forgotten);
        self.release_if_stateless(slot)
    }
}
