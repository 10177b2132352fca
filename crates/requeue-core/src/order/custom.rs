//! Custom orders, which the user implements.

use alloc::boxed::Box;

use super::{CustomOrder, Fair};

/// The user's order, and the same keys by age. Keys that the order lost are delivered by age.
pub(crate) struct Custom<K> {
    pub(crate) order: Box<dyn CustomOrder<K>>,
    pub(crate) by_age: Fair,
    /// The number of keys that were pushed and not popped. An order that has returned this number of keys is not called
    /// again.
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

    /// Returns the next key of the user's order, until the order has no key or has returned every pushed key.
    pub(crate) fn pop(&mut self) -> Option<K> {
        self.entries = self.entries.checked_sub(1)?;
        let key = self.order.pop();
        // The order has lost keys, so it is not called again before the next push.
        if key.is_none() {
            self.entries = 0;
        }
        key
    }
}
