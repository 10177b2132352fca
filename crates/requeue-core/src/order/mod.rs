//! The order in which ready keys are delivered.

mod aging;
mod custom;
mod eligible;
mod fair;
mod group;
mod group_state;
mod priority;
mod priority_lists;

use alloc::boxed::Box;

pub(crate) use self::custom::Custom;
pub(crate) use self::fair::{Fair, Policy};
pub use self::group::GroupId;
pub(crate) use self::priority::ByPriority;
use crate::memory::{Links, List};
use crate::types::Slot;

/// The order in which ready keys are delivered.
#[non_exhaustive]
pub enum Order<K> {
    /// First in, first out.
    Fifo,
    /// Keys of higher priorities are delivered first, with aging. Keys of the same priority are
    /// delivered first in, first out.
    ///
    /// At least one of `oldest_every` consecutive deliveries takes the eligible key that has been
    /// ready for the longest time. A key with `r` older keys is therefore delivered within
    /// `oldest_every · (r + 1)` deliveries, regardless of its priority. With 0 or 1, this order is
    /// [`Fifo`](Self::Fifo). With `u32::MAX`, there is practically no bound.
    Priority {
        /// At least one of this number of consecutive deliveries takes the oldest key.
        oldest_every: u32,
    },
    /// An order that the user implements.
    Custom(Box<dyn CustomOrder<K>>),
}

impl<K> core::fmt::Debug for Order<K> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Fifo => f.write_str("Fifo"),
            Self::Priority { oldest_every } => {
                f.debug_struct("Priority").field("oldest_every", oldest_every).finish()
            }
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// An order that the user implements: client-go's `Queue` interface (`Push`, `Touch`, `Pop`,
/// `Len`).
///
/// The queue calls the order under its lock, so the order must not call the queue. The order does
/// not have to know which keys are still ready: if it returns a key that was cancelled, the queue
/// skips the key. If the order returns no key although keys are ready, the queue delivers these
/// keys itself, oldest first.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use requeue::CustomOrder;
///
/// /// Last in, first out.
/// struct Stack(Vec<&'static str>);
///
/// impl CustomOrder<&'static str> for Stack {
///     fn push(&mut self, key: &'static str) {
///         self.0.push(key);
///     }
///     fn touch(&mut self, _: &&'static str) {}
///     fn pop(&mut self) -> Option<&'static str> {
///         self.0.pop()
///     }
///     fn len(&self) -> usize {
///         self.0.len()
///     }
/// }
/// ```
#[expect(clippy::len_without_is_empty, reason = "these are the methods of client-go's interface")]
pub trait CustomOrder<K>: Send {
    /// Adds `key`, which has become ready.
    fn push(&mut self, key: K);

    /// Tells the order that `key`, which is already ready, was added again.
    fn touch(&mut self, key: &K);

    /// Removes and returns the key to deliver next.
    fn pop(&mut self) -> Option<K>;

    /// Returns the number of keys that were pushed and not popped.
    fn len(&self) -> usize;
}

/// The records of the keys, from the view of an order. Each record has a priority, and the links of
/// one list.
pub(crate) trait Ranked: Links {
    fn priority(&self, slot: Slot) -> i32;
}

/// The ready keys, in the order in which they are delivered.
pub(crate) enum Ready<K> {
    /// A list. Its links are stored in the records.
    Fifo(List),
    Priority(Box<ByPriority>),
    Fair(Box<Fair>),
    Custom(Box<Custom<K>>),
}

impl<K> Ready<K> {
    /// Creates an empty order. The order has groups if `groups` or `fair` is true, or if `limit` is
    /// given.
    pub(crate) fn new(order: Order<K>, fair: bool, limit: Option<u32>, groups: bool) -> Self {
        let has_groups = groups || fair || limit.is_some();
        let limit = limit.map(|limit| limit.max(1));
        let policy =
            Policy { by_priority: false, oldest_every: 1, fair, limit: limit.unwrap_or(u32::MAX) };
        let groups = |policy| Self::Fair(Box::new(Fair::new(policy)));
        match order {
            Order::Fifo | Order::Priority { oldest_every: 0..=1 } if !has_groups => {
                Self::Fifo(List::new())
            }
            Order::Priority { oldest_every } if !has_groups => {
                Self::Priority(Box::new(ByPriority::new(oldest_every)))
            }
            // Aging would break the fair turns, so it is switched off.
            Order::Fifo if fair => groups(Policy { oldest_every: u32::MAX, ..policy }),
            Order::Fifo => groups(policy),
            Order::Priority { oldest_every } => {
                let oldest_every = oldest_every.max(1);
                groups(Policy { by_priority: true, oldest_every, ..policy })
            }
            Order::Custom(order) => Self::Custom(Box::new(Custom::new(order, Fair::new(policy)))),
        }
    }

    /// Returns true if the order has a side table with an entry for each slot up to the last slot.
    pub(crate) const fn has_side_table(&self) -> bool {
        !matches!(self, Self::Fifo(_))
    }

    /// Returns true if the order is a custom order.
    #[inline]
    pub(crate) const fn is_custom(&self) -> bool {
        matches!(self, Self::Custom(_))
    }

    /// Returns the last slot of the order's list, if the links of the list are in the records.
    /// Before [`append`](Self::append), the caller links the new key to this slot.
    #[inline]
    pub(crate) const fn tail(&self) -> Option<Slot> {
        match self {
            Self::Fifo(list) => list.tail(),
            Self::Priority(_) | Self::Fair(_) | Self::Custom(_) => None,
        }
    }

    /// Appends the key in `slot`, which has become ready. The caller has already linked it to the
    /// [`tail`](Self::tail).
    #[inline(always)]
    pub(crate) fn append(&mut self, records: &mut impl Ranked, slot: Slot) {
        match self {
            Self::Fifo(list) => list.append(records, slot),
            _ => self.append_ranked(records, slot),
        }
    }

    #[inline(never)]
    fn append_ranked(&mut self, records: &mut impl Ranked, slot: Slot) {
        match self {
            Self::Fifo(list) => list.append(records, slot),
            Self::Priority(keys) => keys.push(records, slot),
            Self::Fair(groups) => groups.push(slot, records.priority(slot)),
            Self::Custom(custom) => custom.by_age.push(slot, records.priority(slot)),
        }
    }

    /// Returns the key that the next delivery takes. For a custom order, returns the oldest ready
    /// key.
    #[inline(always)]
    pub(crate) fn next_ready(&self) -> Option<Slot> {
        match self {
            Self::Fifo(list) => list.head(),
            _ => self.next_ranked(),
        }
    }

    #[inline(never)]
    fn next_ranked(&self) -> Option<Slot> {
        match self {
            Self::Fifo(list) => list.head(),
            Self::Priority(keys) => keys.next_ready(),
            Self::Fair(groups) => groups.next_ready(),
            Self::Custom(custom) => custom.by_age.next_ready(),
        }
    }

    /// Removes a ready key, because it is being delivered.
    #[inline(never)]
    pub(crate) fn start_delivery(&mut self, records: &mut impl Ranked, slot: Slot) {
        match self {
            Self::Fifo(list) => list.remove(records, slot),
            Self::Priority(keys) => keys.start_delivery(records, slot),
            Self::Fair(groups) => groups.start_delivery(slot),
            Self::Custom(custom) => custom.by_age.start_delivery(slot),
        }
    }

    /// Removes a ready key that will not be delivered. A custom order still contains the key. When
    /// the order returns it, the queue skips it.
    pub(crate) fn remove(&mut self, records: &mut impl Ranked, slot: Slot) {
        match self {
            Self::Fifo(list) => list.remove(records, slot),
            Self::Priority(keys) => keys.remove(records, slot),
            Self::Fair(groups) => groups.remove(slot),
            Self::Custom(custom) => custom.by_age.remove(slot),
        }
    }

    /// Updates the position of a ready key whose priority has been raised.
    pub(crate) fn lift_ready(&mut self, records: &mut impl Ranked, slot: Slot) {
        match self {
            Self::Fifo(_) | Self::Custom(_) => {}
            Self::Priority(keys) => keys.lift_ready(records, slot),
            Self::Fair(groups) => groups.lift_ready(slot, records.priority(slot)),
        }
    }

    /// Returns any ready key, even a throttled one.
    pub(crate) fn any_ready(&self) -> Option<Slot> {
        match self {
            Self::Fifo(list) => list.head(),
            Self::Priority(keys) => keys.oldest_ready(),
            Self::Fair(groups) => groups.any_ready(),
            Self::Custom(custom) => custom.by_age.any_ready(),
        }
    }

    /// Returns the eligible key that has been ready for the longest time.
    pub(crate) fn oldest_eligible(&self) -> Option<Slot> {
        match self.groups() {
            None => self.any_ready(),
            Some(groups) => groups.oldest_eligible(),
        }
    }

    /// Replaces slot `from` with slot `to`, after the slab has moved the record.
    pub(crate) fn move_slot(
        &mut self,
        records: &mut impl Ranked,
        from: Slot,
        to: Slot,
        is_ready: bool,
    ) {
        match self {
            Self::Fifo(list) if is_ready => list.move_slot(records, from, to),
            Self::Priority(keys) if is_ready => keys.move_slot(records, from, to),
            Self::Fifo(_) | Self::Priority(_) => {}
            Self::Fair(groups) => groups.move_slot(from, to),
            Self::Custom(custom) => custom.by_age.move_slot(from, to),
        }
    }

    /// Frees the memory for slots from index `end` on. These slots must have no records.
    pub(crate) fn truncate_slots(&mut self, end: usize) {
        match self {
            Self::Fifo(_) => {}
            Self::Priority(keys) => keys.truncate_slots(end),
            Self::Fair(groups) => groups.truncate_slots(end),
            Self::Custom(custom) => custom.by_age.truncate_slots(end),
        }
    }

    /// Returns the order by groups, if the keys have groups.
    #[inline(always)]
    pub(crate) fn groups(&self) -> Option<&Fair> {
        match self {
            Self::Fifo(_) | Self::Priority(_) => None,
            Self::Fair(groups) => Some(groups),
            Self::Custom(custom) => Some(&custom.by_age),
        }
    }

    #[inline(always)]
    pub(crate) fn groups_mut(&mut self) -> Option<&mut Fair> {
        match self {
            Self::Fifo(_) | Self::Priority(_) => None,
            Self::Fair(groups) => Some(groups),
            Self::Custom(custom) => Some(&mut custom.by_age),
        }
    }
}

#[cfg(test)]
impl<K> Ready<K> {
    /// Returns the number of slots for which the side table has entries.
    pub(crate) fn slots(&self) -> usize {
        match self {
            Self::Fifo(_) => 0,
            Self::Priority(keys) => keys.slots(),
            Self::Fair(groups) => groups.slots(),
            Self::Custom(custom) => custom.by_age.slots(),
        }
    }
}
