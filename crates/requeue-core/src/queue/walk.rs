//! A walk through all records, in steps.
//!
//! A walk examines the slots from the last to the first. Compaction moves records only to lower
//! slots. The walk therefore visits each record that exists during the whole walk.

use super::Queue;
use crate::types::{Id, Slot};

/// A position in a walk through all records, for [`Queue::cancel_groups`],
/// [`Queue::cancel_running_group`] and [`Queue::flush_debounced`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// The number of slots that the walk has not examined yet.
    left: usize,
}

impl Walk {
    /// Returns true if the walk has examined all slots.
    #[must_use]
    pub const fn is_over(self) -> bool {
        self.left == 0
    }

    /// Ends the walk before it has examined all records.
    pub(super) const fn skip_rest(&mut self) {
        self.left = 0;
    }

    /// Returns the next slots of the walk, at most `max` of them.
    pub(super) fn advance(&mut self, max: usize) -> impl DoubleEndedIterator<Item = Slot> + use<> {
        let before = self.left;
        self.left = before.saturating_sub(max);
        (self.left..before).rev().map(Slot::new)
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Starts a walk through all records.
    #[must_use]
    pub fn walk(&self) -> Walk {
        Walk { left: self.records.slots_end() }
    }
}
