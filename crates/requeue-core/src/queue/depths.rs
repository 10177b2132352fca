//! The depth of the queue for each priority.

use alloc::collections::BTreeMap;

/// The number of dirty keys of each priority, where dirty has client-go's meaning: the key is
/// ready, or was added again while in flight.
pub(super) struct Depths {
    /// The number for priority 0. Most keys have this priority, so it is not in the map.
    zero: usize,
    /// The numbers for all other priorities. A priority without keys has no entry.
    others: BTreeMap<i32, usize>,
}

impl Depths {
    pub(super) const fn new() -> Self {
        Self { zero: 0, others: BTreeMap::new() }
    }

    /// Counts a key of `priority` that has become dirty.
    #[inline]
    pub(super) fn enter(&mut self, priority: i32) {
        if priority == 0 {
            self.zero += 1;
        } else {
            *self.others.entry(priority).or_default() += 1;
        }
    }

    /// Counts a key of `priority` that is no longer dirty.
    #[inline]
    pub(super) fn leave(&mut self, priority: i32) {
        if priority == 0 {
            debug_assert!(self.zero > 0, "a key leaves the priority with which it has entered");
            self.zero = self.zero.saturating_sub(1);
        } else {
            self.leave_other(priority);
        }
    }

    #[inline(never)]
    fn leave_other(&mut self, priority: i32) {
        let Some(depth) = self.others.get_mut(&priority) else {
            debug_assert!(false, "a key leaves the priority with which it has entered");
            return;
        };
        *depth -= 1;
        if *depth == 0 {
            self.others.remove(&priority);
        }
    }

    /// Returns each priority that has keys, in ascending order, with the number of its keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (i32, usize)> {
        let zero = (self.zero > 0).then_some((0, self.zero));
        let copy = |(&priority, &depth): (&i32, &usize)| (priority, depth);
        self.others.range(..0).map(copy).chain(zero).chain(self.others.range(1..).map(copy))
    }
}
