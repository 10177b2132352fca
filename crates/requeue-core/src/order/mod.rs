//! In which order ready keys are handed out.

mod bound;
mod custom;
mod group;
mod lanes;
mod levels;
mod members;
mod priorities;
mod served;

use alloc::boxed::Box;

pub(crate) use self::custom::Custom;
pub use self::group::Group;
pub(crate) use self::lanes::{Lanes, Policy};
pub(crate) use self::priorities::Priorities;
use crate::list::List;
use crate::record::Record;
use crate::slab::{NONE, Slab};

/// The order in which ready keys are handed out.
#[non_exhaustive]
pub enum Order<K> {
    /// First in, first out.
    Fifo,
    /// Higher priorities first, first in first out within one; of any `oldest_every` hand-outs in
    /// a row at least one is the key that has been ready longest of those that may be handed out.
    ///
    /// So a key with `r` older ones leaves within `oldest_every · (r + 1)` hand-outs, whatever its
    /// priority. With 1 (and 0, which means the same) this is [`Fifo`](Self::Fifo); `u32::MAX` is
    /// as good as no bound.
    Priority {
        /// Of how many hand-outs one goes to the oldest key.
        oldest_every: u32,
    },
    /// An order of one's own.
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

/// An order of one's own: client-go's `Queue` interface (`Push`, `Touch`, `Pop`, `Len`).
///
/// It is called under the queue's lock and must not call the queue. Which keys are ready is not
/// its business: a key that was cancelled may still be popped, and is skipped; a key that it loses
/// is handed out, oldest first, once it has nothing else to give.
///
/// ```
/// use requeue_core::CustomOrder;
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
pub trait CustomOrder<K>: Send {
    /// A key has become ready.
    fn push(&mut self, key: K);

    /// A key that is ready, and with no worker, was added again.
    fn touch(&mut self, key: &K);

    /// The key to hand out next.
    fn pop(&mut self) -> Option<K>;

    /// How many keys were pushed and not popped.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The ready keys.
pub(crate) enum Ready<K> {
    /// Linked through the records themselves.
    Fifo(List),
    Priorities(Box<Priorities>),
    /// Of groups, with priorities or without.
    Lanes(Box<Lanes>),
    Custom(Box<Custom<K>>),
}

impl<K> Ready<K> {
    pub(crate) fn new(order: Order<K>, fair: bool, limit: Option<u32>) -> Self {
        let limit = limit.map(|limit| limit.max(1));
        let policy =
            Policy { by_priority: false, oldest_every: 1, fair, limit: limit.unwrap_or(u32::MAX) };
        let lanes = |policy| Self::Lanes(Box::new(Lanes::new(policy)));
        match order {
            Order::Fifo | Order::Priority { oldest_every: 0..=1 } if !fair && limit.is_none() => {
                Self::Fifo(List::new())
            }
            Order::Priority { oldest_every } if !fair && limit.is_none() => {
                Self::Priorities(Box::new(Priorities::new(oldest_every)))
            }
            // An order by age would undo the fair shares.
            Order::Fifo if fair => lanes(Policy { oldest_every: u32::MAX, ..policy }),
            Order::Fifo => lanes(policy),
            Order::Priority { oldest_every } => {
                let oldest_every = oldest_every.max(1);
                lanes(Policy { by_priority: true, oldest_every, ..policy })
            }
            Order::Custom(order) => Self::Custom(Box::new(Custom::new(order, Lanes::new(policy)))),
        }
    }

    /// Whether there is more to the order than the records: something for each slot up to the last.
    pub(crate) const fn ranks(&self) -> bool {
        !matches!(self, Self::Fifo(_))
    }

    /// Of a first-in-first-out order, the last slot; else `NONE`.
    #[inline]
    pub(crate) const fn tail(&self) -> u32 {
        match self {
            Self::Fifo(list) => list.tail(),
            _ => NONE,
        }
    }

    /// Takes in the key in `slot`, which has just become ready, linked to the [`tail`](Self::tail).
    #[inline(always)]
    pub(crate) fn append(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        match self {
            Self::Fifo(list) => list.append(records, slot),
            _ => self.rank(records, slot),
        }
    }

    #[inline(never)]
    fn rank(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        match self {
            Self::Fifo(list) => list.append(records, slot),
            Self::Priorities(keys) => keys.push(records, slot),
            Self::Lanes(lanes) => lanes.push(slot, records.get(slot).priority),
            Self::Custom(custom) => custom.lanes.push(slot, records.get(slot).priority),
        }
    }

    /// The key to hand out next; of a custom order, the oldest one.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<u32> {
        match self {
            Self::Fifo(list) => list.head(),
            _ => self.first_ranked(),
        }
    }

    #[inline(never)]
    fn first_ranked(&self) -> Option<u32> {
        match self {
            Self::Fifo(list) => list.head(),
            Self::Priorities(keys) => keys.next(),
            Self::Lanes(lanes) => lanes.next(),
            Self::Custom(custom) => custom.lanes.next(),
        }
    }

    /// The ready key in `slot` is handed out.
    #[inline(never)]
    pub(crate) fn start(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        match self {
            Self::Fifo(list) => list.remove(records, slot),
            Self::Priorities(keys) => keys.start(records, slot),
            Self::Lanes(lanes) => lanes.start(slot),
            Self::Custom(custom) => custom.lanes.start(slot),
        }
    }

    /// The ready key in `slot` was added again, perhaps with a higher priority.
    pub(crate) fn lift(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        match self {
            Self::Fifo(_) | Self::Custom(_) => {}
            Self::Priorities(keys) => keys.lift(records, slot),
            Self::Lanes(lanes) => lanes.lift(slot, records.get(slot).priority),
        }
    }

    /// The structure by groups, of the orders that have one.
    pub(crate) fn lanes(&self) -> Option<&Lanes> {
        match self {
            Self::Fifo(_) | Self::Priorities(_) => None,
            Self::Lanes(lanes) => Some(lanes),
            Self::Custom(custom) => Some(&custom.lanes),
        }
    }

    pub(crate) fn lanes_mut(&mut self) -> Option<&mut Lanes> {
        match self {
            Self::Fifo(_) | Self::Priorities(_) => None,
            Self::Lanes(lanes) => Some(lanes),
            Self::Custom(custom) => Some(&mut custom.lanes),
        }
    }
}

#[cfg(test)]
impl<K> Ready<K> {
    /// Of how many slots it has something.
    pub(crate) fn slots(&self) -> usize {
        match self {
            Self::Fifo(_) => 0,
            Self::Priorities(keys) => keys.slots(),
            Self::Lanes(lanes) => lanes.slots(),
            Self::Custom(custom) => custom.lanes.slots(),
        }
    }
}
