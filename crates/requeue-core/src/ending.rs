//! Pausing, closing, shutting down.

use core::borrow::Borrow;

use alloc::vec::Vec;

use crate::order::Ready;
use crate::record::Phase;
use crate::{Queue, Ticket, Time};

/// How far a queue has come on the way to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
#[non_exhaustive]
pub enum Ending {
    /// Not at all.
    #[default]
    Open,
    /// New keys are refused; what waits still ripens, retries of known keys are honoured.
    Closed,
    /// Adds are refused, waiting keys dropped, ready ones still handed out.
    ShutDown,
}

impl<K: Eq + Clone> Queue<K> {
    /// How far the queue has ended.
    #[must_use]
    pub const fn ending(&self) -> Ending {
        self.ending
    }

    /// Ends the queue, at least so far. What [`Ending::ShutDown`] drops is taken out by
    /// [`drop_some`](Self::drop_some).
    pub fn end(&mut self, ending: Ending) {
        self.ending = self.ending.max(ending);
    }

    /// Whether handing out is stopped.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Stops or restarts handing out. Without effect once the queue is shut down.
    pub fn pause(&mut self, paused: bool) {
        if self.ending != Ending::ShutDown {
            self.paused = paused;
        }
    }

    /// After [`Ending::ShutDown`]: takes out up to `max` keys that will not run, and appends them to
    /// `keys`. These are the waiting ones and, if the queue was paused, the ready ones. Returns whether
    /// there may be more.
    ///
    /// # Panics
    ///
    /// If a key's `clone` does. `keys` has the keys that were taken out before.
    #[must_use]
    pub fn drop_some(&mut self, max: usize, keys: &mut Vec<K>) -> bool {
        if self.ending != Ending::ShutDown {
            return false;
        }
        for _ in 0..max {
            if let Some(slot) = self.timers.any() {
                let record = self.records.get(slot);
                if record.phase == Phase::Processing {
                    // The run that would have followed is lost.
                    keys.push(record.key.clone());
                }
                self.stop_waiting(slot);
                self.drop_idle(slot, keys);
            } else if self.paused
                && let Some(slot) = self.any_ready()
            {
                self.unready(slot);
                self.drop_idle(slot, keys);
            } else {
                return false;
            }
        }
        true
    }

    fn drop_idle(&mut self, slot: u32, keys: &mut Vec<K>) {
        if self.records.get(slot).phase == Phase::Idle {
            self.set_failures(slot, 0);
            keys.extend(self.release_if_stateless(slot));
        }
    }

    /// Where no key is ready, the keys that a custom order has none the less, which were cancelled
    /// or dropped: up to `max` of them, to be dropped.
    #[must_use]
    pub fn leftovers(&mut self, max: usize) -> Vec<K> {
        match &mut self.ready {
            Ready::Custom(custom) if self.ready_len == 0 => {
                core::iter::from_fn(|| custom.pop()).take(max).collect()
            }
            Ready::Fifo(_) | Ready::Priorities(_) | Ready::Lanes(_) | Ready::Custom(_) => {
                Vec::new()
            }
        }
    }

    /// All keys, whatever they are in the middle of: for those who have to drop them one by one.
    pub fn into_keys(self) -> impl Iterator<Item = K> {
        self.records.into_values().map(|record| record.key)
    }

    pub(crate) fn any_ready(&self) -> Option<u32> {
        match &self.ready {
            Ready::Fifo(list) => list.head(),
            Ready::Priorities(keys) => keys.oldest(),
            // Groups at their limit are none the less dropped.
            Ready::Lanes(lanes) => lanes.any(),
            Ready::Custom(custom) => custom.lanes.any(),
        }
    }

    /// Whether a queue that has ended has nothing left to hand out, as far as client-go's `Get` is
    /// concerned: after `ShutDown` this can change back when a dirty key is done.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Closed => {
                self.ready_len == 0 && self.processing_len == 0 && self.timers.len() == 0
            }
            Ending::ShutDown => self.ready_len == 0 || self.paused,
        }
    }

    /// Whether a queue that has ended will hand out nothing any more.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_exhausted() && (self.dirty_len == 0 || self.paused)
    }

    /// Whether a queue that has ended has nothing ready and nothing with a worker.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_exhausted() && self.processing_len == 0
    }

    // --- What there is --------------------------------------------------------------------------

    /// Ready keys, those held back by a limit of their group included (client-go's `Len`).
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ready_len
    }

    /// Whether no key is ready.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ready_len == 0
    }

    /// Ready keys, and those to be ready when their worker is done (`workqueue_depth`).
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.ready_len + self.dirty_len
    }

    /// Keys with a delayed add.
    #[must_use]
    pub fn waiting(&self) -> usize {
        if self.ending == Ending::ShutDown { 0 } else { self.timers.len() }
    }

    /// Keys with a delayed add that have failed.
    #[must_use]
    pub fn failing(&self) -> usize {
        if self.ending == Ending::ShutDown { 0 } else { self.failing_len }
    }

    /// Keys with a worker.
    #[must_use]
    pub const fn processing(&self) -> usize {
        self.processing_len
    }

    /// Keys the queue has a record of: ready, waiting, with a worker, or remembered for failures.
    #[must_use]
    pub const fn records(&self) -> usize {
        self.records.len()
    }

    /// Ready keys that may be handed out now.
    #[must_use]
    pub fn eligible(&self) -> usize {
        if self.paused {
            return 0;
        }
        self.ready.lanes().map_or(self.ready_len, crate::order::Lanes::eligible)
    }

    /// When the next waiting key becomes ready.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.timers.next().filter(|&at| self.ending != Ending::ShutDown && at < Time::NEVER)
    }

    /// Whether `now` makes a difference to an add. Where not, `Time::ZERO` will do.
    #[must_use]
    pub const fn add_needs_now(&self) -> bool {
        self.timers.len() > 0 || self.tracks
    }

    /// Whether `now` makes a difference to a get.
    #[must_use]
    #[inline]
    pub fn get_needs_now(&self) -> bool {
        self.tracks || (self.timers.len() > 0 && !self.first_is_known())
    }

    /// What is ready stands before what becomes ready, but for orders that rank. If the first has a
    /// delayed add besides, that may be part of the run.
    fn first_is_known(&self) -> bool {
        match &self.ready {
            Ready::Fifo(list) => list.head().is_some_and(|slot| !self.records.get(slot).waiting),
            Ready::Priorities(_) | Ready::Lanes(_) | Ready::Custom(_) => false,
        }
    }

    /// Whether `now` makes a difference to finishing this hand-out as `how` says.
    #[must_use]
    pub fn finish_needs_now(&self, ticket: &Ticket, how: &crate::Finish) -> bool {
        match how {
            crate::Finish::Done | crate::Finish::Succeed => {
                self.tracks
                    || (self.timers.len() > 0
                        && self.locate(ticket).is_some_and(|slot| self.comes_back(slot)))
            }
            crate::Finish::PutBack { .. } => self.add_needs_now(),
            crate::Finish::Later { .. } | crate::Finish::Fail { .. } => true,
        }
    }

    /// Whether `now` makes a difference to the end of the hand-out of `key`, as client-go's `Done`.
    #[must_use]
    pub fn done_needs_now<Q>(&self, key: &Q, hash: u64) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.tracks
            || (self.timers.len() > 0
                && self.find(key, hash).is_some_and(|slot| self.comes_back(slot)))
    }

    /// Whether a key that is done may go to the tail, behind what has become ready before: it is
    /// dirty, or has a delayed add, which makes it so when that falls due before the end.
    fn comes_back(&self, slot: u32) -> bool {
        let record = self.records.get(slot);
        record.phase == Phase::ProcessingDirty || record.waiting
    }
}
