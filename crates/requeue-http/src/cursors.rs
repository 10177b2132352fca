//! Encrypts the cursors that clients see.
//!
//! A cursor of a queue in memory is 32 bits of the hash of a key. With enough hashes, an attacker could compute the
//! seed of a fast hasher. With the seed, the attacker could find keys with equal hashes.

use std::hash::{BuildHasher, RandomState};

/// The order of a walk. A cursor is valid for walks of the same order.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Order {
    ByHash,
    LongestFirst,
    /// Parked keys, the newest first.
    Parked,
}

/// Encrypts positions with a secret of this process.
#[derive(Default)]
pub(crate) struct Cursors(RandomState);

impl Cursors {
    /// Returns a SipHash of the position, followed by the position under a mask that depends on that hash and the
    /// secret: This is the synthetic-IV construction.
    pub(crate) fn encrypt(&self, order: Order, position: u32) -> String {
        // The tag depends on the order, so that a cursor of another list is refused.
        let tag = self.0.hash_one((order, position));
        format!("{tag:016x}{:08x}", position ^ self.position_mask(tag))
    }

    /// Returns the position, or `None` if this process has not created `cursor` for a walk of this order.
    pub(crate) fn decrypt(&self, order: Order, cursor: &str) -> Option<u32> {
        let (tag, masked) = cursor.split_at_checked(16)?;
        let tag = u64::from_str_radix(tag, 16).ok()?;
        let position = u32::from_str_radix(masked, 16).ok()? ^ self.position_mask(tag);
        // The tag is computed again for the check, because only this process can create the tag of a position and an
        // order.
        (self.encrypt(order, position) == cursor).then_some(position)
    }

    fn position_mask(&self, tag: u64) -> u32 {
        self.0.hash_one(("mask", tag)) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const POSITIONS: [u32; 6] = [0, 1, 2, 1 << 31, u32::MAX - 1, u32::MAX];

    #[test]
    fn a_cursor_is_read_by_the_process_that_made_it_for_the_same_order() {
        let [own, foreign] = [Cursors::default(), Cursors::default()];
        for position in POSITIONS {
            let cursor = own.encrypt(Order::ByHash, position);
            assert_eq!(own.decrypt(Order::ByHash, &cursor), Some(position));
            assert_eq!(own.decrypt(Order::LongestFirst, &cursor), None);
            assert_eq!(foreign.decrypt(Order::ByHash, &cursor), None);
        }
    }

    /// Equal positions have different cursors in other processes, so that a cursor determines no bit of a position.
    #[test]
    fn a_cursor_does_not_determine_the_position() {
        let processes: Vec<_> = (0..64).map(|_| Cursors::default()).collect();
        for position in POSITIONS {
            let cursors = processes.iter().map(|process| process.encrypt(Order::ByHash, position));
            let cursors: BTreeSet<_> = cursors.collect();
            assert_eq!(cursors.len(), processes.len());
            // Each bit of the last 32 is 0 in some process and 1 in another.
            let masked =
                cursors.iter().map(|cursor| u32::from_str_radix(&cursor[16..], 16).unwrap());
            let (ones, zeros) = masked.fold((0, 0), |(ones, zeros), it| (ones | it, zeros | !it));
            assert_eq!((ones, zeros), (u32::MAX, u32::MAX));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let cursors = Cursors::default();
        let cursor = cursors.encrypt(Order::ByHash, 7);
        for at in 0..cursor.len() {
            let (before, after) = (&cursor[..at], &cursor[at + 1..]);
            for char in ["0", "f", "F", "+", "é", "", "00"] {
                let other = format!("{before}{char}{after}");
                let position = cursors.decrypt(Order::ByHash, &other);
                assert_eq!(position.is_some(), other == cursor, "{other}");
            }
        }
        for text in ["", "7", "0", "4294967295", "-1", "ééééééééé", "éééééééééééé"]
        {
            assert_eq!(cursors.decrypt(Order::ByHash, text), None, "{text}");
        }
        assert_eq!(cursors.decrypt(Order::ByHash, &"0".repeat(24)), None);
    }
}
