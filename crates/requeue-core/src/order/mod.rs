//! In which order ready keys are handed out.

mod custom;
mod group;
mod lanes;
mod members;

use alloc::boxed::Box;

pub(crate) use self::custom::Custom;
pub use self::group::Group;
pub(crate) use self::lanes::{Lanes, Policy};
use crate::list::List;

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
            Order::Fifo if !fair && limit.is_none() => Self::Fifo(List::new()),
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

    /// The structure by groups, of the orders that have one.
    pub(crate) fn lanes(&self) -> Option<&Lanes> {
        match self {
            Self::Fifo(_) => None,
            Self::Lanes(lanes) => Some(lanes),
            Self::Custom(custom) => Some(&custom.lanes),
        }
    }

    pub(crate) fn lanes_mut(&mut self) -> Option<&mut Lanes> {
        match self {
            Self::Fifo(_) => None,
            Self::Lanes(lanes) => Some(lanes),
            Self::Custom(custom) => Some(&mut custom.lanes),
        }
    }
}
