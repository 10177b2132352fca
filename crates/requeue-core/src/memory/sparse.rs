//! A number per slot for the few slots that have one.

use alloc::vec;
use alloc::vec::Vec;

use crate::chunked::{CHUNK, give_back};
use crate::slab::NONE;

struct Chunk {
    numbers: Vec<u32>,
    /// How many of `numbers` are not `NONE`.
    used: u32,
}

/// As a vector of numbers that are `NONE` unless set; chunks without any take no memory.
pub(crate) struct Sparse {
    chunks: Vec<Chunk>,
}

impl Sparse {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    pub(crate) fn get(&self, slot: u32) -> u32 {
        let slot = slot as usize;
        let Some(chunk) = self.chunks.get(slot / CHUNK) else { return NONE };
        chunk.numbers.get(slot % CHUNK).copied().unwrap_or(NONE)
    }

    /// Gives `slot`, which had none, its number.
    pub(crate) fn insert(&mut self, slot: u32, number: u32) {
        let (at, slot) = (slot as usize / CHUNK, slot as usize % CHUNK);
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, || Chunk { numbers: Vec::new(), used: 0 });
        }
        let chunk = &mut self.chunks[at];
        if slot >= chunk.numbers.len() {
            if at > 0 {
                chunk.numbers = vec![NONE; CHUNK];
            } else {
                // The first chunk grows with its queue.
                chunk.numbers.resize((slot + 1).next_power_of_two().max(4), NONE);
            }
        }
        chunk.numbers[slot] = number;
        chunk.used += 1;
    }

    /// Changes the number of `slot`, which has one.
    pub(crate) fn set(&mut self, slot: u32, number: u32) {
        self.chunks[slot as usize / CHUNK].numbers[slot as usize % CHUNK] = number;
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let at = slot as usize / CHUNK;
        let chunk = &mut self.chunks[at];
        chunk.numbers[slot as usize % CHUNK] = NONE;
        chunk.used -= 1;
        if chunk.used == 0 && chunk.numbers.len() == CHUNK {
            chunk.numbers = Vec::new();
        }
    }

    /// There are no slots from `end` on any more.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.chunks.truncate(end.div_ceil(CHUNK));
        give_back(&mut self.chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    impl Sparse {
        pub(crate) fn chunks(&self) -> usize {
            self.chunks.len()
        }

        /// How many numbers there is room for.
        fn room(&self) -> usize {
            self.chunks.iter().map(|chunk| chunk.numbers.capacity()).sum()
        }
    }

    const END: u32 = 5 * CHUNK as u32;

    proptest! {
        /// Against a map; and memory is held for chunks that have a number, and for the first.
        #[test]
        fn holds_what_a_map_holds(
            ops in proptest::collection::vec((0u8..5, 0..END, any::<u32>()), 1..200),
        ) {
            let mut sparse = Sparse::new();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            for (op, slot, number) in ops {
                let number = number.min(NONE - 1);
                match op {
                    0..2 if !model.contains_key(&slot) => {
                        sparse.insert(slot, number);
                        model.insert(slot, number);
                    }
                    0..3 => {
                        // Of the slots that have one, one near by.
                        if let Some((&slot, old)) = model.range_mut(..=slot).next_back() {
                            sparse.set(slot, number);
                            *old = number;
                        }
                    }
                    3 => {
                        if let Some((&slot, _)) = model.range(..=slot).next_back() {
                            sparse.remove(slot);
                            model.remove(&slot);
                        }
                    }
                    _ => {
                        let end = model.last_key_value().map_or(0, |(&last, _)| last + 1);
                        sparse.truncate(end as usize);
                        prop_assert_eq!(sparse.chunks(), (end as usize).div_ceil(CHUNK));
                    }
                }
                prop_assert_eq!(sparse.get(slot), model.get(&slot).copied().unwrap_or(NONE));
                let mut used: Vec<usize> = model.keys().map(|&slot| slot as usize / CHUNK).collect();
                used.retain(|&chunk| chunk > 0);
                used.dedup();
                prop_assert!(sparse.room() <= (used.len() + 1) * CHUNK);
            }
            for slot in 0..END + 1 {
                prop_assert_eq!(sparse.get(slot), model.get(&slot).copied().unwrap_or(NONE));
            }
        }
    }

    #[test]
    fn the_first_chunk_grows_with_its_queue() {
        let mut sparse = Sparse::new();
        sparse.insert(0, 7);
        assert_eq!(sparse.room(), 4);
        sparse.insert(4, 7);
        assert_eq!(sparse.room(), 8);
        // It is kept while it is small, so that one key that comes and goes allocates nothing.
        sparse.remove(0);
        sparse.remove(4);
        assert_eq!(sparse.room(), 8);
        sparse.insert(CHUNK as u32 - 1, 7);
        sparse.remove(CHUNK as u32 - 1);
        assert_eq!(sparse.room(), 0);
        // The others have their size.
        sparse.insert(CHUNK as u32, 7);
        assert_eq!(sparse.room(), CHUNK);
        sparse.remove(CHUNK as u32);
        assert_eq!(sparse.room(), 0);
    }

    #[test]
    fn truncating_gives_the_memory_back() {
        let mut sparse = Sparse::new();
        sparse.insert(1000 * CHUNK as u32, 7);
        sparse.remove(1000 * CHUNK as u32);
        sparse.truncate(0);
        assert!(sparse.chunks.capacity() <= 16);
    }
}
