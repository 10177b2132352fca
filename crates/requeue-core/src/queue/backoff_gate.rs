//! The ends of backoffs. Under [`ReaddPolicy::Hold`](crate::ReaddPolicy::Hold), no run of a key
//! starts before its backoff has ended.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use super::Queue;
use crate::rule;
use crate::types::{Phase, Slot, Time};

/// The ends of backoffs of keys in flight, by the epoch of the delivery. A key in flight has a
/// backoff if a failure was reported before its completion (client-go's `AddRateLimited` before
/// `Done`). Most queues have no such key, so the map is in a box, and is freed when it becomes
/// empty.
#[expect(clippy::box_collection, reason = "a queue without such keys takes 16 bytes less")]
#[derive(Default)]
pub(super) struct Backoffs(Option<Box<BTreeMap<u64, Time>>>);

impl Backoffs {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the end of the backoff of the delivery `epoch`, or zero if it has none.
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
    /// Starts a backoff, until `at`, of the key in `slot`. A pending run also waits until `at`.
    pub(super) fn back_off_until(&mut self, slot: Slot, at: Time) {
        // The rule is called first, because `withdraw_run` removes the pending run that the rule
        // examines.
        let postpones = rule::postpones(&self.state_of(slot), at);
        let record = self.records.get_mut(slot);
        match record.phase() {
            Phase::Idle | Phase::Ready => record.set_not_before(at),
            Phase::InFlight | Phase::InFlightDirty => {
                self.backing_off.insert(record.epoch(), at);
            }
        }
        // Without this call, a ready or dirty key would run before its backoff has ended.
        self.withdraw_run(slot);
        if postpones {
            self.wait_until(slot, at);
        }
    }

    /// Returns the end of the backoff of the delivery `epoch`, or zero if it has none.
    pub(super) fn backoff_of(&self, epoch: u64) -> Time {
        self.backing_off.end_of(epoch)
    }

    /// Ends the backoff of the key in `slot`, because its failures are forgotten.
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
