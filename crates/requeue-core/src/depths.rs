//! The depth of the queue by priority.

use alloc::collections::BTreeMap;

/// Counts the dirty keys of each priority: those that are ready, and those with a worker that were
/// added again since. A priority without such keys has no entry.
pub(crate) struct Depths(BTreeMap<i32, usize>);

impl Depths {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// A key of `priority` has become dirty.
    pub(crate) fn enter(&mut self, priority: i32) {
        *self.0.entry(priority).or_default() += 1;
    }

    /// A key of `priority` is dirty no more.
    pub(crate) fn leave(&mut self, priority: i32) {
        let Some(depth) = self.0.get_mut(&priority) else {
            debug_assert!(false, "a key leaves the priority with which it has entered");
            return;
        };
        *depth -= 1;
        if *depth == 0 {
            self.0.remove(&priority);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i32, usize)> {
        self.0.iter().map(|(&priority, &depth)| (priority, depth))
    }
}
