//! The state of one key of the queue, in the form that the [rules](crate::rule) read.

use super::{Queue, Record};
use crate::rule::{KeyState, Wait};
use crate::types::{Ending, Phase, Slot, Time};

/// Gives the rules access to the state of the key in `slot`.
pub(super) struct State<'q, K> {
    queue: &'q Queue<K>,
    slot: Slot,
    record: &'q Record<K>,
}

impl<K: Eq + Clone> Queue<K> {
    #[inline(always)]
    pub(super) fn state_of(&self, slot: Slot) -> State<'_, K> {
        State { queue: self, slot, record: self.records.get(slot) }
    }
}

impl<K: Eq + Clone> KeyState for State<'_, K> {
    type Time = Time;

    #[inline(always)]
    fn phase(&self) -> Phase {
        self.record.phase()
    }

    #[inline]
    fn wait(&self) -> Option<Wait<Time>> {
        self.queue.timers.wait(self.slot)
    }

    #[inline(always)]
    fn is_waiting(&self) -> bool {
        self.record.is_waiting()
    }

    #[inline]
    fn not_before(&self) -> Time {
        match self.record.phase() {
            Phase::Idle => self.record.not_before(),
            Phase::Ready => Time::ZERO,
            Phase::InFlight | Phase::InFlightDirty => self.queue.backoff_of(self.record.epoch()),
        }
    }

    #[inline]
    fn paced(&self, now: Time) -> Option<Time> {
        self.queue.pace_gate(self.slot, now)
    }

    #[inline]
    fn ending(&self) -> Ending {
        self.queue.ending
    }

    #[inline]
    fn is_stopped(&self) -> bool {
        self.queue.paused || self.queue.is_in_paused_group(self.slot)
    }
}
