//! An order of the user's own, with a net under it.

use alloc::boxed::Box;

use super::{CustomOrder, Lanes};

/// The user's order, and the same keys by age: what the order has lost is served from there.
pub(crate) struct Custom<K> {
    pub(crate) order: Box<dyn CustomOrder<K>>,
    pub(crate) lanes: Lanes,
    /// Keys pushed and not popped. An order that gives more than it got is asked no further.
    entries: usize,
}

impl<K> Custom<K> {
    pub(crate) fn new(order: Box<dyn CustomOrder<K>>, lanes: Lanes) -> Self {
        Self { order, lanes, entries: 0 }
    }

    pub(crate) fn push(&mut self, key: K) {
        self.entries += 1;
        self.order.push(key);
    }

    /// The next key of the user's order, until it has none or has given all it got.
    pub(crate) fn pop(&mut self) -> Option<K> {
        self.entries = self.entries.checked_sub(1)?;
        let key = self.order.pop();
        if key.is_none() {
            self.entries = 0;
        }
        key
    }
}
