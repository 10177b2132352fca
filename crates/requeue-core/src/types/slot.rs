//! Identifiers of the entries of containers. Each container has its own type of identifier.
//!
//! An identifier is stored as `2 index + 1`. It is never 0, so an `Option` of it also takes only
//! four bytes. The conversion to and from an index takes one instruction each.

use core::num::NonZeroU32;

/// The identifier of an entry in a container.
pub(crate) trait Id: Copy + Eq {
    /// Creates the identifier of the entry at `index`, which must be below 2³¹.
    fn new(index: usize) -> Self;

    /// Returns the index of the entry in its container, from 0.
    fn index(self) -> usize;
}

/// Defines types that implement [`Id`].
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(core::num::NonZeroU32);

        impl $crate::types::Id for $name {
            #[inline(always)]
            fn new(index: usize) -> Self {
                Self(core::num::NonZeroU32::MIN | (index as u32) << 1)
            }

            #[inline(always)]
            fn index(self) -> usize {
                (self.0.get() >> 1) as usize
            }
        }
    )*};
}
pub(crate) use ids;

ids! {
    /// The identifier of a record in its `Slab`.
    Slot
}

impl Slot {
    /// Converts 32 bits to a slot. 0 means no slot. This function and [`to_bits`](Self::to_bits)
    /// compile to no instruction.
    #[inline(always)]
    pub(crate) fn from_bits(bits: u32) -> Option<Self> {
        NonZeroU32::new(bits).map(Self)
    }

    #[inline(always)]
    pub(crate) fn to_bits(slot: Option<Self>) -> u32 {
        slot.map_or(0, |slot| slot.0.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optional_slot_takes_four_bytes() {
        assert_eq!(size_of::<[Option<Slot>; 2]>(), 8);
    }

    #[test]
    fn a_slot_keeps_its_index_and_its_bits() {
        for index in [0, 1, 511, 512, i32::MAX as usize] {
            let slot = Slot::new(index);
            assert_eq!(slot.index(), index);
            assert_eq!(Slot::from_bits(Slot::to_bits(Some(slot))), Some(slot));
        }
        assert_eq!((Slot::from_bits(0), Slot::to_bits(None)), (None, 0));
    }
}
