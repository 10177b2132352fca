//! Encrypts the cursors in responses.
//!
//! In a queue in memory, a cursor contains 32 bits of the hash of a key. If cursors were
//! not encrypted, an attacker could collect many hashes, and compute the seed of a fast
//! hasher. With the seed, the attacker could create many keys with equal hashes.

use std::hash::{BuildHasher, RandomState};

/// The order in which a walk returns keys. A cursor is valid only for the order in which
/// it was created.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Order {
    ByHash,
    LongestFirst,
    /// Parked keys, the newest first.
    Parked,
}

/// Encrypts positions of a walk with a secret of this process.
#[derive(Default)]
pub(crate) struct Cursors(RandomState);

impl Cursors {
    /// Returns a tag and the masked position as text. The tag is a SipHash of the order
    /// and the position. The mask depends on the tag and on the secret. This is the
    /// synthetic-IV construction.
    pub(crate) fn encrypt(&self, order: Order, position: u32) -> String {
        // The tag depends on the order, so that `decrypt` refuses a
        // cursor of another list.
        let tag = self.0.hash_one((order, position));
        format!("{tag:016x}{:08x}", position ^ self.position_mask(tag))
    }

    /// Returns the position of a cursor. Returns `None` if this process did not create
    /// the cursor for a walk in this order.
    pub(crate) fn decrypt(&self, order: Order, cursor: &str) -> Option<u32> {
        let (tag, masked) = cursor.split_at_checked(16)?;
        let tag = u64::from_str_radix(tag, 16).ok()?;
        let position = u32::from_str_radix(masked, 16).ok()? ^ self.position_mask(tag);
        // The cursor is created again and compared, because only this process can
        // compute the tag of an order and a position.
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

    /// The cursors of equal positions differ between processes, so a cursor reveals no
    /// bit of its position.
    #[test]
    fn a_cursor_does_not_determine_the_position() {
        let processes: Vec<_> = (0..64).map(|_| Cursors::default()).collect();
        for position in POSITIONS {
            let cursors = processes.iter().map(|process| process.encrypt(Order::ByHash, position));
            let cursors: BTreeSet<_> = cursors.collect();
            assert_eq!(cursors.len(), processes.len());
            // Each of the last 32 bits is 0 in the cursor of some process, and 1 in that
            // of another process.
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
