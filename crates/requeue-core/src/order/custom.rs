//! An order of the user's own.

use alloc::boxed::Box;

use super::{CustomOrder, Fair};

/// The user's order, and the same keys by age, from which keys that the order lost are delivered.
pub(crate) struct Custom<K> {
    pub(crate) order: Box<dyn CustomOrder<K>>,
    pub(crate) by_age: Fair,
    /// Keys pushed and not popped. An order that returns more than it was given is asked no further.
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

    /// The next key of the user's order, until it has none or has returned as many as it was given.
    pub(crate) fn pop(&mut self) -> Option<K> {
        self.entries = self.entries.checked_sub(1)?;
        let key = self.order.pop();
        if key.is_none() {
            self.entries = 0;
        }
        key
    }
}
