//! From a key's hash to its slot: extendible hashing.
//!
//! A directory of segments, addressed by the leading bits of the hash; a segment that is full
//! is split in two, one that is nearly empty is merged with its neighbour. No step touches more
//! than one segment, where one large table would stop everybody for tens of milliseconds to
//! grow past a million keys. R. Fagin et al., *Extendible hashing*, ACM TODS 4(3), 1979.

use alloc::vec;
use alloc::vec::Vec;

use hashbrown::HashTable;
use hashbrown::hash_table::{Entry, VacantEntry};

/// A segment of this many slots is split: what a table of 4096 buckets holds.
const FULL: usize = 3584;
/// A segment below this is merged with its neighbour, if that is as small.
const SMALL: usize = FULL / 8;

struct Segment {
    table: HashTable<u32>,
    /// How many leading bits all hashes in here share.
    depth: u32,
}

pub(crate) struct Index {
    /// How many leading bits of a hash address the directory.
    bits: u32,
    /// `1 << bits` numbers of segments, or none while the only segment is number 0.
    directory: Vec<u32>,
    segments: Vec<Segment>,
    /// Numbers of segments that are not in use.
    unused: Vec<u32>,
    len: usize,
}

/// Where a slot can be noted.
pub(crate) struct Vacant<'a> {
    entry: VacantEntry<'a, u32>,
    len: &'a mut usize,
}

impl Vacant<'_> {
    pub(crate) fn insert(self, slot: u32) {
        self.entry.insert(slot);
        *self.len += 1;
    }
}

/// The hash that a segment's table sees: hashbrown takes the lowest bits for the bucket and the
/// highest seven for the tag; ours has 32 bits, of which the directory takes the highest.
const fn spread(hash: u32) -> u64 {
    hash as u64 | ((hash >> 12) as u64) << 57
}

impl Index {
    pub(crate) const fn new() -> Self {
        Self { bits: 0, directory: Vec::new(), segments: Vec::new(), unused: Vec::new(), len: 0 }
    }

    fn number(&self, hash: u32) -> usize {
        if self.bits == 0 {
            0
        } else {
            self.directory[(hash >> (32 - self.bits)) as usize] as usize
        }
    }

    /// The slot under `hash` for which `is` holds.
    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.segments.get(self.number(hash))?.table.find(spread(hash), |&slot| is(slot)).copied()
    }

    /// The slot under `hash` for which `is` holds, or where to note one. `hash_of` tells the hash
    /// of every slot noted before.
    pub(crate) fn entry(
        &mut self,
        hash: u32,
        mut is: impl FnMut(u32) -> bool,
        hash_of: impl Fn(u32) -> u32,
    ) -> Result<u32, Vacant<'_>> {
        if self.segments.is_empty() {
            self.segments.push(Segment { table: HashTable::new(), depth: 0 });
        }
        let mut number = self.number(hash);
        if self.segments[number].table.len() >= FULL {
            // Before it is known whether there is anything to note: at worst one split too early.
            while self.segments[number].table.len() >= FULL && self.may_split(number) {
                self.split(number, hash, &hash_of);
                number = self.number(hash);
            }
        }
        let table = &mut self.segments[number].table;
        match table.entry(spread(hash), |&slot| is(slot), |&slot| spread(hash_of(slot))) {
            Entry::Occupied(entry) => Ok(*entry.get()),
            Entry::Vacant(entry) => Err(Vacant { entry, len: &mut self.len }),
        }
    }

    /// Notes `slot` under `hash`, where it is not noted yet.
    pub(crate) fn insert(&mut self, hash: u32, slot: u32, hash_of: impl Fn(u32) -> u32) {
        if let Err(vacant) = self.entry(hash, |_| false, hash_of) {
            vacant.insert(slot);
        }
    }

    /// Takes out `slot`, which was noted under `hash`.
    pub(crate) fn remove(&mut self, hash: u32, slot: u32, hash_of: impl Fn(u32) -> u32) {
        let number = self.number(hash);
        let Some(segment) = self.segments.get_mut(number) else { return };
        let Ok(entry) = segment.table.find_entry(spread(hash), |&s| s == slot) else { return };
        entry.remove();
        self.len -= 1;
        let left = segment.table.len();
        if left < SMALL && left % 32 == 0 {
            self.shrink(hash, &hash_of);
        }
    }

    /// `from`, noted under `hash`, is `to` from now on.
    pub(crate) fn replace(&mut self, hash: u32, from: u32, to: u32) {
        let number = self.number(hash);
        if let Some(slot) = self.segments[number].table.find_mut(spread(hash), |&slot| slot == from)
        {
            *slot = to;
        }
    }

    /// Calls `visit` with the slots whose hashes share a segment with `hash`, and returns the
    /// lowest hash of the next segment.
    pub(crate) fn visit(&self, hash: u32, mut visit: impl FnMut(u32)) -> Option<u32> {
        let segment = self.segments.get(self.number(hash))?;
        segment.table.iter().for_each(|&slot| visit(slot));
        if segment.depth == 0 {
            return None;
        }
        let shift = 32 - segment.depth;
        ((hash >> shift) + 1)
            .checked_shl(shift)
            .filter(|_| (hash >> shift) + 1 < 1 << segment.depth)
    }

    /// Hashes that are all alike can't be split: such a segment grows instead.
    fn may_split(&self, number: usize) -> bool {
        let depth = self.segments[number].depth;
        depth < 31 && (1u64 << depth) <= 16 * (self.len as u64 / 1024 + 1)
    }

    fn split(&mut self, number: usize, hash: u32, hash_of: &impl Fn(u32) -> u32) {
        let depth = self.segments[number].depth;
        if depth == self.bits {
            self.directory = match self.bits {
                0 => vec![number as u32; 2],
                _ => self.directory.iter().flat_map(|&number| [number, number]).collect(),
            };
            self.bits += 1;
        }
        let mut upper = HashTable::with_capacity(FULL / 2);
        let bit = 1 << (31 - depth);
        let segment = &mut self.segments[number];
        segment.depth += 1;
        let mut lower = HashTable::with_capacity(FULL / 2);
        for slot in core::mem::take(&mut segment.table) {
            let hash = hash_of(slot);
            let half = if hash & bit == 0 { &mut lower } else { &mut upper };
            half.insert_unique(spread(hash), slot, |&slot| spread(hash_of(slot)));
        }
        segment.table = lower;
        let segment = Segment { table: upper, depth: depth + 1 };
        let new = match self.unused.pop() {
            Some(new) => {
                self.segments[new as usize] = segment;
                new
            }
            None => {
                self.segments.push(segment);
                self.segments.len() as u32 - 1
            }
        };
        let upper = range((hash | bit) >> (31 - depth), depth + 1, self.bits);
        self.directory[upper].fill(new);
    }

    /// Merges the segment of `hash` with its neighbours while both are small, and gives back
    /// buckets that are far too many.
    fn shrink(&mut self, hash: u32, hash_of: &impl Fn(u32) -> u32) {
        loop {
            let number = self.number(hash);
            let depth = self.segments[number].depth;
            if depth == 0 {
                break;
            }
            let buddy = (hash >> (32 - depth)) ^ 1;
            let other = self.directory[range(buddy, depth, self.bits).start] as usize;
            let (len, theirs) = (self.segments[number].table.len(), &self.segments[other]);
            if theirs.depth != depth || len >= SMALL || theirs.table.len() >= SMALL {
                break;
            }
            for slot in core::mem::take(&mut self.segments[other].table) {
                let table = &mut self.segments[number].table;
                table.insert_unique(spread(hash_of(slot)), slot, |&slot| spread(hash_of(slot)));
            }
            self.segments[number].depth -= 1;
            self.directory[range(buddy, depth, self.bits)].fill(number as u32);
            self.unused.push(other as u32);
            self.narrow();
        }
        let number = self.number(hash);
        let table = &mut self.segments[number].table;
        if table.capacity() > 64 && table.len() * 8 < table.capacity() {
            table.shrink_to(table.len() * 2, |&slot| spread(hash_of(slot)));
        }
    }

    /// Halves the directory while no segment needs its last bit.
    fn narrow(&mut self) {
        // Looked at only when the segments in use could fit a directory of half the size.
        let used = self.segments.len() - self.unused.len();
        while self.bits > 0 && used <= self.directory.len() / 2 {
            let (pairs, rest) = self.directory.as_chunks::<2>();
            debug_assert!(rest.is_empty());
            if pairs.iter().any(|[lower, upper]| lower != upper) {
                break;
            }
            self.directory = pairs.iter().map(|[lower, _]| *lower).collect();
            self.bits -= 1;
        }
        if self.bits == 0 {
            let only = self.directory.first().map_or(0, |&number| number as usize);
            let segment = self.segments.swap_remove(only);
            self.segments = vec![segment];
            self.directory = Vec::new();
            self.unused = Vec::new();
        }
    }
}

/// The directory's entries for the hashes that begin with the `depth` bits `prefix`.
fn range(prefix: u32, depth: u32, bits: u32) -> core::ops::Range<usize> {
    let width = 1 << (bits - depth);
    let start = prefix as usize * width;
    start..start + width
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    fn hash_of(slot: u32) -> u32 {
        slot.wrapping_mul(0x9E37_79B1) ^ (slot >> 3)
    }

    fn check(index: &Index, slots: &BTreeSet<u32>) {
        assert_eq!(index.len, slots.len());
        for &slot in slots {
            assert_eq!(index.find(hash_of(slot), |s| s == slot), Some(slot));
        }
        let mut seen = BTreeSet::new();
        let mut hash = Some(0);
        while let Some(at) = hash {
            hash = index.visit(at, |slot| assert!(seen.insert(slot)));
        }
        assert_eq!(&seen, slots);
    }

    #[test]
    fn grows_and_shrinks_by_segments_and_loses_nothing() {
        let mut index = Index::new();
        let mut slots = BTreeSet::new();
        for slot in 0..40_000 {
            index.insert(hash_of(slot), slot, hash_of);
            slots.insert(slot);
        }
        assert!(index.bits >= 3);
        check(&index, &slots);
        for slot in (0..40_000).filter(|slot| slot % 1000 != 7) {
            index.remove(hash_of(slot), slot, hash_of);
            slots.remove(&slot);
        }
        check(&index, &slots);
        assert_eq!((index.bits, index.segments.len()), (0, 1));
        assert!(index.segments[0].table.capacity() <= 896);
        for slot in slots.clone() {
            index.remove(hash_of(slot), slot, hash_of);
        }
        check(&index, &BTreeSet::new());
    }

    #[test]
    fn replaces_a_slot_in_place() {
        let mut index = Index::new();
        index.insert(9, 1, |_| 9);
        index.replace(9, 1, 5);
        assert_eq!(index.find(9, |_| true), Some(5));
    }

    #[test]
    fn hashes_that_are_all_alike_do_not_blow_up_the_directory() {
        let mut index = Index::new();
        for slot in 0..6_000 {
            index.insert(7, slot, |_| 7);
        }
        assert!(index.directory.len() <= 1024);
        for slot in 0..6_000 {
            index.remove(7, slot, |_| 7);
        }
        assert_eq!(index.len, 0);
    }
}
