//! Custom orders: the trait `CustomOrder` that a user implements, as the queue calls it.

use alloc::boxed::Box;

use super::{CustomOrder, Fair};

/// The user's order, and the same keys in a second order by age. If the user's order loses keys,
/// the queue delivers them by age.
pub(crate) struct Custom<K> {
    pub(crate) order: Box<dyn CustomOrder<K>>,
    pub(crate) by_age: Fair,
    /// The number of keys that were pushed to the user's order since it was last empty, minus those
    /// that it returned. While it is 0, the queue does not call the order.
    entries: usize,
}

impl<K> Custom<K> {
    pub(crate) fn new(order: Box<dyn CustomOrder<K>>, by_age: Fair) -> Self {
        Self { order, by_age, entries: 0 }
    }

    pub(crate) fn push(&mut self, key: K) {
        self.entries += 1;
        self.order.push(key);
    }

    /// Returns the next key of the user's order. Returns `None` if the order returns no key, or has
    /// already returned as many keys as were pushed.
    pub(crate) fn pop(&mut self) -> Option<K> {
        self.entries = self.entries.checked_sub(1)?;
        let key = self.order.pop();
        // The order has lost the remaining keys. It is not called again before the next push.
        if key.is_none() {
            self.entries = 0;
        }
        key
    }
}
