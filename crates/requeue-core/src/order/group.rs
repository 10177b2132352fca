//! What a key's namespace, tenant or shard is called.

use core::hash::{BuildHasher, Hash};

/// The group of a key: those of one group share a turn of the fair order and a limit of keys in
/// work.
///
/// Groups are told apart by a number of 64 bits, mostly a hash: two groups with the same number,
/// which do not occur by chance, would be one.
///
/// ```
/// use requeue_core::Group;
///
/// assert_eq!(Group::of("kube-system"), Group::of("kube-system"));
/// assert_ne!(Group::of("kube-system"), Group::of("default"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[must_use]
pub struct Group {
    pub(crate) id: u64,
    pub(crate) weight: u32,
}

impl Group {
    /// The group with this number.
    pub const fn new(id: u64) -> Self {
        Self { id, weight: 1 }
    }

    /// The group called `name`.
    pub fn of<T: Hash + ?Sized>(name: &T) -> Self {
        Self::new(foldhash::quality::FixedState::with_seed(0x7265_7175_6575_6521).hash_one(name))
    }

    /// How many keys the group is handed a turn in the fair order; 1 unless said, and at least.
    pub const fn weight(self, weight: u32) -> Self {
        Self { id: self.id, weight: if weight == 0 { 1 } else { weight } }
    }

    /// The number.
    #[must_use]
    pub const fn id(self) -> u64 {
        self.id
    }
}

impl Default for Group {
    fn default() -> Self {
        Self::new(0)
    }
}
