//! The ends of backoffs. Under [`ReaddPolicy::Hold`](crate::ReaddPolicy::Hold), a key starts no run before its backoff
//! ends.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use super::Queue;
use crate::rule;
use crate::types::{Phase, Slot, Time};

/// The ends of the backoffs of keys that failed and are still in flight (client-go's `AddRateLimited` before `Done`), by
/// epoch. The map is boxed, because most queues need none. An empty map is freed.
#[expect(clippy::box_collection, reason = "a queue without such keys takes 16 bytes less")]
#[derive(Default)]
pub(super) struct Backoffs(Option<Box<BTreeMap<u64, Time>>>);

impl Backoffs {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the end of the backoff, or zero if there is no backoff.
    fn end_of(&self, epoch: u64) -> Time {
        let ends = self.0.as_ref();
        ends.and_then(|ends| ends.get(&epoch)).copied().unwrap_or(Time::ZERO)
    }

    pub(super) fn insert(&mut self, epoch: u64, end: Time) {
        self.0.get_or_insert_default().insert(epoch, end);
    }

    pub(super) fn remove(&mut self, epoch: u64) {
        if let Some(ends) = &mut self.0 {
            ends.remove(&epoch);
            if ends.is_empty() {
                self.0 = None;
            }
        }
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Starts the backoff of a key that is not ready. A pending run also waits until `at`.
    pub(super) fn back_off_until(&mut self, slot: Slot, at: Time) {
        // The rule is called before `withdraw_run`, which hides the pending run from the rule.
        let postpones = rule::postpones(&self.state_of(slot), at);
        let record = self.records.get_mut(slot);
        match record.phase() {
            Phase::Idle | Phase::Ready => record.set_not_before(at),
            Phase::InFlight | Phase::InFlightDirty => {
                self.backing_off.insert(record.epoch(), at);
            }
        }
        // A ready or dirty key would run before the end of the backoff.
        self.withdraw_run(slot);
        if postpones {
            self.wait_until(slot, at);
        }
    }

    /// Returns the end of the backoff of a key that failed during the delivery with the number
    /// `epoch`.
    pub(super) fn backoff_of(&self, epoch: u64) -> Time {
        self.backing_off.end_of(epoch)
    }

    /// Ends the backoff of the key in `slot`, whose failures are forgotten.
    pub(super) fn stop_backing_off(&mut self, slot: Slot) {
        let record = self.records.get_mut(slot);
        match record.phase() {
            Phase::Idle => record.set_not_before(Time::ZERO),
            Phase::Ready => {}
            Phase::InFlight | Phase::InFlightDirty => {
                self.backing_off.remove(record.epoch());
            }
        }
    }
}
