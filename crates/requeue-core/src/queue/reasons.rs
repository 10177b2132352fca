//! The reasons of adds. They are not in the records, because most queues have no reasons.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::borrow::Borrow;
use core::mem;

use super::Queue;
use crate::types::{Add, Added, Reasons, Slot, Ticket};

/// The reasons of the keys of a queue.
#[derive(Default)]
pub(super) struct ReasonTable {
    /// The reasons of each key that has one. The entry of a key is removed with its record.
    keys: BTreeMap<Slot, KeyReasons>,
}

/// The reasons of a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KeyReasons {
    /// The reasons of the run in flight.
    pub running: Reasons,
    /// The reasons of the pending run.
    pub pending: Reasons,
}

impl ReasonTable {
    /// Called when the key in `slot` is delivered: the reasons of its pending run become those of
    /// the run in flight.
    #[cold]
    pub(super) fn start_run(&mut self, slot: Slot) {
        if let Some(of_key) = self.keys.get_mut(&slot) {
            of_key.running = mem::take(&mut of_key.pending);
        }
    }

    /// Called when the run of the key in `slot` is completed. If `passes_on` is true, the next run
    /// also serves the adds of this run, and gets their reasons.
    pub(super) fn end_run(&mut self, slot: Slot, passes_on: bool) {
        self.change(slot, |of_key| {
            let run = mem::take(&mut of_key.running);
            if passes_on {
                let later = mem::replace(&mut of_key.pending, run);
                of_key.pending.append(later);
            }
        });
    }

    /// Forgets the reasons of the pending run of the key in `slot`.
    pub(super) fn forget_pending(&mut self, slot: Slot) {
        self.change(slot, |of_key| of_key.pending = Reasons::default());
    }

    /// Removes the reasons of the key in `slot`, because its record is removed.
    #[cold]
    pub(super) fn remove_slot(&mut self, slot: Slot) {
        self.keys.remove(&slot);
    }

    pub(super) fn move_slot(&mut self, from: Slot, to: Slot) {
        if let Some(of_key) = self.keys.remove(&from) {
            self.keys.insert(to, of_key);
        }
    }

    fn change(&mut self, slot: Slot, change: impl FnOnce(&mut KeyReasons)) {
        let Some(of_key) = self.keys.get_mut(&slot) else { return };
        change(of_key);
        if of_key.running.is_empty() && of_key.pending.is_empty() {
            self.keys.remove(&slot);
        }
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Stores the reason of an add of the key in `slot`, if the add has a reason.
    #[inline(always)]
    pub(super) fn note_reason(
        &mut self,
        slot: Slot,
        add: &Add,
        added: Added,
        cause: Option<&Arc<str>>,
    ) {
        if add.reason.is_some() && added.is_accepted() {
            self.note_some_reason(slot, add, cause);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_some_reason(&mut self, slot: Slot, add: &Add, cause: Option<&Arc<str>>) {
        let Some(reason) = add.reason else { return };
        let table = self.reasons.get_or_insert_with(Box::default);
        table.keys.entry(slot).or_default().pending.note_add(reason, cause.cloned());
    }

    /// Returns the reasons of the run in flight and of the pending run of `key`.
    pub fn reasons<Q>(&self, key: &Q, hash: u64) -> KeyReasons
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.reasons.as_ref().and_then(|_| self.find_slot(key, hash));
        slot.map(|slot| self.reasons_at(slot)).unwrap_or_default()
    }

    /// Returns the reasons of the run of this delivery. After the completion, the result is empty.
    #[must_use]
    pub fn run_reasons(&self, ticket: &Ticket) -> Reasons {
        let slot = self.reasons.as_ref().and_then(|_| self.slot_of(ticket));
        slot.map(|slot| self.reasons_at(slot).running).unwrap_or_default()
    }

    fn reasons_at(&self, slot: Slot) -> KeyReasons {
        let of_key = self.reasons.as_ref().and_then(|table| table.keys.get(&slot));
        of_key.cloned().unwrap_or_default()
    }

    /// Returns true if an add of this queue has ever had a reason.
    #[inline]
    #[must_use]
    pub const fn has_reasons(&self) -> bool {
        self.reasons.is_some()
    }
}
