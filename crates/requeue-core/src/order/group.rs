//! The group of a key, such as its namespace, tenant or shard.

use core::hash::{BuildHasher, Hash};

/// The group of a key. In a fair order, the keys of a group share turns. If the queue has a limit
/// per group, they also share the limit of keys in flight.
///
/// A group is identified by a number of 64 bits, which is usually the hash of a name. Two names
/// with the same hash would be the same group. Such a collision is practically impossible.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use requeue::GroupId;
///
/// assert_eq!(GroupId::of("kube-system"), GroupId::of("kube-system"));
/// assert_ne!(GroupId::of("kube-system"), GroupId::of("default"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[must_use]
pub struct GroupId {
    pub(crate) id: u64,
    pub(crate) weight: u32,
}

impl GroupId {
    /// Creates the group with the number `id`, and with weight 1.
    pub const fn new(id: u64) -> Self {
        Self { id, weight: 1 }
    }

    /// Creates the group called `name`, with weight 1. Its number is a hash of the name, and is the
    /// same in every process.
    pub fn of<T: Hash + ?Sized>(name: &T) -> Self {
        Self::new(foldhash::quality::FixedState::with_seed(0x7265_7175_6575_6521).hash_one(name))
    }

    /// Sets the weight: the number of keys that the fair order delivers in one turn of the group.
    ///
    /// The default is 1. A weight of 0 is treated as 1.
    pub const fn weight(self, weight: u32) -> Self {
        Self { id: self.id, weight: if weight == 0 { 1 } else { weight } }
    }

    /// Returns the number of the group.
    // `requeue` compares groups by this number. Users already have the number or the name with
    // which they created the group.
    #[doc(hidden)]
    #[must_use]
    pub const fn id(self) -> u64 {
        self.id
    }
}

impl Default for GroupId {
    fn default() -> Self {
        Self::new(0)
    }
}
