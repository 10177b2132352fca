//! A map from slots to small values, for tables in which only few slots have a value.
//!
//! The map is a vector in chunks, and a chunk without values has no memory. Unlike
//! [`Chunked`](super::chunked::Chunked), the map counts the values of each chunk, which costs each
//! insertion and removal one or two instructions. In return, a value needs no entries for all lower
//! slots. In a `Chunked`, a single deadline would cost four bytes for every key of the queue.

use alloc::vec;
use alloc::vec::Vec;

use super::chunked::{CHUNK, give_back};
use crate::types::{Id, Slot};

struct Chunk<V> {
    values: Vec<Option<V>>,
    used: u32,
}

pub(crate) struct Sparse<V> {
    chunks: Vec<Chunk<V>>,
}

impl<V: Copy> Sparse<V> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<V> {
        let chunk = self.chunks.get(slot.index() / CHUNK)?;
        chunk.values.get(slot.index() % CHUNK).copied().flatten()
    }

    /// Sets the value of `slot`, which must have no value.
    pub(crate) fn insert(&mut self, slot: Slot, value: V) {
        let (number, at) = (slot.index() / CHUNK, slot.index() % CHUNK);
        if number >= self.chunks.len() {
            self.chunks.resize_with(number + 1, || Chunk { values: Vec::new(), used: 0 });
        }
        let chunk = &mut self.chunks[number];
        if at >= chunk.values.len() {
            if number > 0 {
                chunk.values = vec![None; CHUNK];
            } else {
                // The first chunk grows with the number of keys, so that a small queue uses little
                // memory.
                chunk.values.resize((at + 1).next_power_of_two().max(4), None);
            }
        }
        chunk.values[at] = Some(value);
        chunk.used += 1;
    }

    /// Replaces the value of `slot`, which must already have a value.
    pub(crate) fn set(&mut self, slot: Slot, value: V) {
        self.chunks[slot.index() / CHUNK].values[slot.index() % CHUNK] = Some(value);
    }

    /// Removes the value of `slot`, which must have a value.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let chunk = &mut self.chunks[slot.index() / CHUNK];
        chunk.values[slot.index() % CHUNK] = None;
        chunk.used -= 1;
        // If the first chunk is shorter than the others, it keeps its memory for the next value.
        if chunk.used == 0 && chunk.values.len() == CHUNK {
            chunk.values = Vec::new();
        }
    }

    /// Removes the value of `slot`, if any, and returns it.
    pub(crate) fn take(&mut self, slot: Slot) -> Option<V> {
        let value = self.get(slot)?;
        self.remove(slot);
        Some(value)
    }

    /// Moves the value of `from`, if any, to `to`, which must have no value. Returns the moved
    /// value.
    pub(crate) fn move_slot(&mut self, from: Slot, to: Slot) -> Option<V> {
        let value = self.take(from)?;
        self.insert(to, value);
        Some(value)
    }

    /// Frees the memory for slots from index `end` on. These slots must have no values.
    pub(crate) fn truncate_slots(&mut self, end: usize) {
        self.chunks.truncate(end.div_ceil(CHUNK));
        give_back(&mut self.chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    impl<V> Sparse<V> {
        pub(crate) fn chunks(&self) -> usize {
            self.chunks.len()
        }

        /// Returns the number of values for which memory is allocated.
        fn room(&self) -> usize {
            self.chunks.iter().map(|chunk| chunk.values.capacity()).sum()
        }
    }

    fn at(index: u32) -> Slot {
        Slot::new(index as usize)
    }

    const END: u32 = 5 * CHUNK as u32;

    proptest! {
        /// The test compares the map with a `BTreeMap`. Only the first chunk and chunks with a
        /// value may have memory.
        #[test]
        fn holds_what_a_map_holds(
            ops in proptest::collection::vec((0u8..5, 0..END, any::<u32>()), 1..200),
        ) {
            let mut sparse = Sparse::new();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            for (op, slot, number) in ops {

                match op {
                    0..2 if !model.contains_key(&slot) => {
                        sparse.insert(at(slot), number);
                        model.insert(slot, number);
                    }
                    0..3 => {
                        // Chooses the highest slot that has a value and is not above the given
                        // slot.
                        if let Some((&slot, old)) = model.range_mut(..=slot).next_back() {
                            sparse.set(at(slot), number);
                            *old = number;
                        }
                    }
                    3 => {
                        if let Some((&slot, _)) = model.range(..=slot).next_back() {
                            sparse.remove(at(slot));
                            model.remove(&slot);
                        }
                    }
                    _ => {
                        let end = model.last_key_value().map_or(0, |(&last, _)| last + 1);
                        sparse.truncate_slots(end as usize);
                        prop_assert_eq!(sparse.chunks(), (end as usize).div_ceil(CHUNK));
                    }
                }
                prop_assert_eq!(sparse.get(at(slot)), model.get(&slot).copied());
                let mut used: Vec<usize> = model.keys().map(|&slot| slot as usize / CHUNK).collect();
                used.retain(|&chunk| chunk > 0);
                used.dedup();
                prop_assert!(sparse.room() <= (used.len() + 1) * CHUNK);
            }
            for slot in 0..END + 1 {
                prop_assert_eq!(sparse.get(at(slot)), model.get(&slot).copied());
            }
        }
    }

    #[test]
    fn the_first_chunk_grows_with_its_queue() {
        let mut sparse = Sparse::new();
        sparse.insert(at(0), 7);
        assert_eq!(sparse.room(), 4);
        sparse.insert(at(4), 7);
        assert_eq!(sparse.room(), 8);
        // A short first chunk keeps its memory, so that a queue to which one key is added and
        // removed repeatedly does not allocate.
        sparse.remove(at(0));
        sparse.remove(at(4));
        assert_eq!(sparse.room(), 8);
        sparse.insert(at(CHUNK as u32 - 1), 7);
        sparse.remove(at(CHUNK as u32 - 1));
        assert_eq!(sparse.room(), 0);
        // Every other chunk has its full size from the start.
        sparse.insert(at(CHUNK as u32), 7);
        assert_eq!(sparse.room(), CHUNK);
        sparse.remove(at(CHUNK as u32));
        assert_eq!(sparse.room(), 0);
    }

    #[test]
    fn truncating_gives_the_memory_back() {
        let mut sparse = Sparse::new();
        sparse.insert(at(1000 * CHUNK as u32), 7);
        sparse.remove(at(1000 * CHUNK as u32));
        sparse.truncate_slots(0);
        assert!(sparse.chunks.capacity() <= 16);
    }
}
