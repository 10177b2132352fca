//! The depth of the queue by priority.

use alloc::collections::BTreeMap;

/// Counts the keys of each priority that are dirty in client-go's sense: the ready keys, and the keys in flight that
/// were added again.
pub(super) struct Depths {
    /// The keys of priority 0, which most keys have. These keys need no entry in a map.
    zero: usize,
    /// The keys of every other priority that has keys.
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

    /// Returns the priorities that have keys, in ascending order, with their numbers of keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (i32, usize)> {
        let zero = (self.zero > 0).then_some((0, self.zero));
        let copy = |(&priority, &depth): (&i32, &usize)| (priority, depth);
        self.others.range(..0).map(copy).chain(zero).chain(self.others.range(1..).map(copy))
    }
}
