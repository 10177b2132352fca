//! Numbers of entries in containers. Each container has a separate type of number.
//!
//! A number is stored as `2 index + 1`, so that an `Option` of the number also needs only four
//! bytes. Encoding and decoding each cost one instruction.

use core::num::NonZeroU32;

/// The number of an entry in a container.
pub(crate) trait Id: Copy + Eq {
    /// Creates the number of the entry at `index`, which is below 2³¹.
    fn new(index: usize) -> Self;

    /// Returns the index in the container, from 0.
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
    /// The number of a record in its `Slab`.
    Slot
}

impl Slot {
    /// Reads 32 bits as a slot. 0 means no slot. This function and [`to_bits`](Self::to_bits) cost no instruction.
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
