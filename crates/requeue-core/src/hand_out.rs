//! Handing keys out and taking them back.

use core::borrow::Borrow;
use core::time::Duration;

use alloc::vec::Vec;

use crate::add::{Add, EarlyAdd, Merge};
use crate::order::Ready;
use crate::record::{Phase, Record};
use crate::{Ending, PROMOTE, Queue, Time};

/// Names one hand-out of one key. A ticket of an earlier hand-out does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ticket {
    /// Where the record was; a hint.
    slot: u32,
    hash: u32,
    epoch: u64,
}

impl Ticket {
    /// The number of the hand-out, never used twice in the life of a queue.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) const fn slot(&self) -> u32 {
        self.slot
    }
}

/// What a run was asked with, and goes back with when it was not successful.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Asked {
    /// The adds that the run stands for.
    pub adds: u32,
    /// Their reasons, or-ed.
    pub reasons: u32,
    /// Their highest priority.
    pub priority: i32,
}

/// A key that is handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a hand-out that is not finished keeps its key from everybody else"]
pub struct HandOut<K> {
    /// The key.
    pub key: K,
    /// What finishes the hand-out.
    pub ticket: Ticket,
    /// What the run was asked with. `adds` is at least 1.
    pub asked: Asked,
    /// Failures in a row before this run.
    pub failures: u32,
    /// How long the key was ready, if times are kept.
    pub queued: Option<Duration>,
}

/// What [`Queue::get_by_order`] found.
#[derive(Debug)]
#[must_use]
pub struct Popped<K> {
    /// The key that is handed out.
    pub item: Option<HandOut<K>>,
    /// Copies of keys to be dropped.
    pub dropped: Vec<K>,
    /// Whether the call ended only for having taken long, and is to be made again.
    pub again: bool,
}

/// How a hand-out ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Finish {
    /// client-go's `Done`: failures stay as they are.
    Done,
    /// Done, and the failures forgotten.
    Succeed,
    /// As `Succeed`, and added again after a delay.
    Later {
        /// How long after now.
        after: Duration,
        /// What the run had been asked with; its priority is kept.
        asked: Asked,
    },
    /// A failure, to be retried after a delay.
    Fail {
        /// How long after now, as a limiter said.
        delay: Duration,
        /// What the run had been asked with; all of it goes to the retry.
        asked: Asked,
    },
    /// As if the key had not been handed out: no failure, ready at once, at the tail.
    PutBack {
        /// What the run had been asked with.
        asked: Asked,
    },
}

/// What became of a hand-out that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Finished<K> {
    /// The record's key, when there is nothing to keep a record for. To be dropped, or reported
    /// if `lost`.
    pub key: Option<K>,
    /// Whether a run that was asked for will not happen, because the queue has ended.
    pub lost: bool,
    /// Whether the key is ready again.
    pub ready: bool,
    /// Whether the key had been added while it was with the worker.
    pub was_dirty: bool,
    /// How long the worker had the key, if times are kept.
    pub worked: Option<Duration>,
}

impl<K> Finished<K> {
    /// Of a key of which nothing is left.
    const fn of(key: K, worked: Option<Duration>) -> Self {
        Self { key: Some(key), lost: false, ready: false, was_dirty: false, worked }
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Hands out the next key, if there is one.
    #[inline(always)]
    pub fn get(&mut self, now: Time) -> Option<HandOut<K>> {
        debug_assert!(!self.has_order(), "an order of one's own is asked by `get_by_order`");
        self.promote_due(now);
        if self.paused {
            return None;
        }
        let slot = self.ready.next()?;
        if self.index.is_large() {
            self.look_ahead(slot);
        }
        Some(self.hand_out(slot, None, now))
    }

    /// Has the processor fetch what it takes to hand out, and to take back, the keys that come
    /// after the one in `slot`.
    fn look_ahead(&self, slot: u32) {
        let (Ready::Fifo(_) | Ready::Priorities(_)) = &self.ready else { return };
        let Some(next) = self.records.find(self.records.get(slot).next()) else { return };
        self.index.prefetch(next.hash);
        self.records.prefetch(next.next());
    }

    /// As [`get`](Self::get), for a queue with an order of the user's own, which gives keys that
    /// have to be hashed to be found.
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
            match slot.filter(|&slot| self.records.get(slot).phase == Phase::Ready) {
                Some(slot) if self.may_leave(slot) => {
                    popped.item = Some(self.hand_out(slot, Some(key), now));
                    return popped;
                }
                Some(slot) => {
                    if let Some(lanes) = self.ready.lanes_mut() {
                        lanes.skip(slot);
                    }
                    popped.dropped.push(key);
                }
                None => popped.dropped.push(key),
            }
            if popped.dropped.len() == PROMOTE {
                popped.again = true;
                return popped;
            }
        }
        // What the order has lost is served by age.
        if let Some(slot) = self.ready.next() {
            popped.item = Some(self.hand_out(slot, None, now));
        }
        popped
    }

    /// Whether the queue has an order of the user's own.
    #[must_use]
    pub const fn has_order(&self) -> bool {
        matches!(self.ready, Ready::Custom(_))
    }

    /// Whether the group of a ready key has room.
    fn may_leave(&self, slot: u32) -> bool {
        self.ready.lanes().is_none_or(|lanes| lanes.is_eligible(slot))
    }

    /// Ready → Processing. Copies the key, unless there is a copy.
    #[inline(always)]
    fn hand_out(&mut self, slot: u32, key: Option<K>, now: Time) -> HandOut<K> {
        let mut record = self.records.get_mut(slot);
        // Before anything changes: a key's `clone` may panic.
        let key = key.unwrap_or_else(|| record.key.clone());
        if let Ready::Fifo(list) = &mut self.ready {
            list.pop_front(record.next());
        } else {
            self.ready.start(&mut self.records, slot);
            record = self.records.get_mut(slot);
        }
        self.epoch += 1;
        record.start(self.epoch);
        let adds = core::mem::take(&mut record.adds).max(1);
        let reasons = core::mem::take(&mut record.reasons);
        self.ready_len -= 1;
        self.processing_len += 1;
        self.counts.hand_outs += 1;
        let priority = record.priority;
        HandOut {
            key,
            ticket: Ticket { slot, hash: record.hash, epoch: self.epoch },
            asked: Asked { adds, reasons, priority },
            failures: record.failures,
            queued: self.tracker.as_mut().map(|tracker| {
                tracker.depths.leave(priority);
                tracker.start(slot, now)
            }),
        }
    }

    /// The slot of a hand-out that has not ended.
    #[inline(never)]
    pub(crate) fn locate(&self, ticket: &Ticket) -> Option<u32> {
        let is =
            |record: &Record<K>| record.phase.is_processing() && record.epoch() == ticket.epoch;
        if self.records.find(ticket.slot).is_some_and(is) {
            return Some(ticket.slot);
        }
        // The record has moved; hand-outs have numbers of their own, so no key is compared.
        self.index.probe(&self.records, ticket.hash, is)
    }

    /// Ends a hand-out. `None`, and no effect, if it has ended already.
    #[inline]
    pub fn finish(&mut self, ticket: &Ticket, how: Finish, now: Time) -> Option<Finished<K>> {
        self.promote_due(now);
        if let Some((key, worked)) = self.finish_plain(ticket, how, now) {
            return Some(Finished::of(key, worked));
        }
        let slot = self.locate(ticket)?;
        Some(self.finish_slot(slot, how, now, true))
    }

    /// As [`finish`](Self::finish), but copies no key: what a custom order is not given is handed
    /// out by age. For when a key's `clone` has panicked in there, which then had no effect.
    pub fn finish_without_copies(
        &mut self,
        ticket: &Ticket,
        how: Finish,
        now: Time,
    ) -> Option<Finished<K>> {
        let slot = self.locate(ticket)?;
        Some(self.finish_slot(slot, how, now, false))
    }

    /// Ends the hand-out of `key`, as client-go's `Done`, if its ticket was given up by
    /// [`give_up`](Self::give_up). `None`, and no effect, if not.
    pub fn done<Q>(&mut self, key: &Q, hash: u64, now: Time) -> Option<Finished<K>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.promote_due(now);
        let slot = self.find(key, hash)?;
        let record = self.records.get(slot);
        let ends = record.phase.is_processing() && record.released;
        ends.then(|| self.finish_slot(slot, Finish::Done, now, true))
    }

    /// Allows [`done`](Self::done) to end this hand-out. `false` if it has ended already.
    pub fn give_up(&mut self, ticket: &Ticket) -> bool {
        let Some(slot) = self.locate(ticket) else { return false };
        self.records.get_mut(slot).released = true;
        true
    }

    /// The key of this delivery, if it has not ended.
    #[must_use]
    pub fn key_of(&self, ticket: &Ticket) -> Option<&K> {
        self.locate(ticket).map(|slot| &self.records.get(slot).key)
    }

    /// Whether the key of this hand-out was added again since.
    #[must_use]
    pub fn is_dirty(&self, ticket: &Ticket) -> bool {
        self.locate(ticket)
            .is_some_and(|slot| self.records.get(slot).phase == Phase::ProcessingDirty)
    }

    fn finish_slot(&mut self, slot: u32, how: Finish, now: Time, copies: bool) -> Finished<K> {
        let record = self.records.get(slot);
        let was_dirty = record.phase == Phase::ProcessingDirty;
        let not_before = self.backing_off(record.epoch());
        let ended = self.ending == Ending::ShutDown;
        let asks_more = !matches!(how, Finish::Done | Finish::Succeed);
        let lost =
            ended && if self.paused { was_dirty || asks_more } else { asks_more && !was_dirty };
        let (ready, due) = self.what_follows(how, was_dirty, not_before, now);
        let ready = ready && !lost;
        // Copies for a custom order come first, because a key's `clone` may panic.
        let mut order_key = self.key_if(ready && copies, slot);
        let freed = if copies { self.key_to_free(slot) } else { None };

        let worked = self.tracker.as_mut().map(|tracker| tracker.finish(slot, now));
        self.processing_len -= 1;
        if was_dirty {
            self.dirty_len -= 1;
            self.leave(slot);
        }
        self.free_group(slot, freed);
        let record = self.records.get_mut(slot);
        self.backing_off.remove(&record.epoch());
        record.rest();
        match how {
            Finish::Done => record.set_not_before(not_before),
            Finish::Succeed | Finish::Later { .. } => self.set_failures(slot, 0),
            Finish::Fail { asked, .. } => {
                self.counts.failures += 1;
                record.note_back(asked, was_dirty);
                self.fail_once_more(slot);
            }
            Finish::PutBack { asked } => record.note_back(asked, was_dirty),
        }
        if let (Finish::Fail { .. }, false) = (how, ended) {
            self.counts.retries += 1;
            let joins = was_dirty && (self.early_add != EarlyAdd::Keep || due.is_none());
            self.counts.coalesced += u64::from(joins);
        }
        let later = match how {
            Finish::Later { after, asked } if !ended => {
                Some(Add::after(after).priority(asked.priority))
            }
            _ => None,
        };
        if ready && (was_dirty || later.is_none()) {
            if self.early_add != EarlyAdd::Keep {
                self.stop_waiting(slot);
            }
            if !was_dirty {
                self.counts.adds += 1;
                self.stamp(slot, now);
            }
            self.make_ready(slot, order_key.take());
        }
        if let Some(later) = later {
            let _ = self.add_to(slot, &later, now, order_key);
        } else if let Some(due) = due {
            if self.early_add == EarlyAdd::Hold {
                // One run for the failure and whatever was asked for meanwhile.
                self.back_off_until(slot, due);
            }
            let _ = self.demand_later(slot, due, Merge::Earliest, now);
        }
        if lost {
            self.set_failures(slot, 0);
        }
        let record = self.records.get(slot);
        let ready = record.phase == Phase::Ready;
        if !ready && record.waiting {
            // Since it has left the worker, whenever the delayed add was made.
            self.stamp(slot, now);
        }
        Finished { key: self.release_if_stateless(slot), lost, ready, was_dirty, worked }
    }

    /// Of a hand-out that ends: whether the key is ready at once, and when it is due besides.
    fn what_follows(
        &self,
        how: Finish,
        was_dirty: bool,
        not_before: Time,
        now: Time,
    ) -> (bool, Option<Time>) {
        let due = match how {
            Finish::Done | Finish::Succeed => return (was_dirty, None),
            _ if self.ending == Ending::ShutDown => return (was_dirty, None),
            Finish::Later { after, .. } => now + after,
            Finish::Fail { delay, .. } => not_before.max(now + delay),
            Finish::PutBack { .. } => not_before,
        };
        match self.early_add {
            _ if due <= now => (true, None),
            EarlyAdd::Keep => (was_dirty, Some(due)),
            EarlyAdd::Hold if !matches!(how, Finish::Later { .. }) => (false, Some(due)),
            EarlyAdd::Replace | EarlyAdd::Hold => (was_dirty, (!was_dirty).then_some(due)),
        }
    }

    /// When a key leaves work: the key of its group to show to the custom order once more, which
    /// gave it while the group was at its limit.
    fn key_to_free(&self, slot: u32) -> Option<(u32, K)> {
        let Ready::Custom(custom) = &self.ready else { return None };
        let skipped = custom.lanes.skipped(slot)?;
        Some((skipped, self.records.get(skipped).key.clone()))
    }

    fn free_group(&mut self, slot: u32, freed: Option<(u32, K)>) {
        if let Some(lanes) = self.ready.lanes_mut() {
            lanes.finish(slot);
        }
        if let (Ready::Custom(custom), Some((skipped, key))) = (&mut self.ready, freed) {
            custom.lanes.unskip(skipped);
            custom.push(key);
        }
    }
}
