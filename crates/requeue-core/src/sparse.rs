//! A number per slot for the few slots that have one.

use alloc::vec;
use alloc::vec::Vec;

use crate::chunked::CHUNK;
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
        if chunk.used == 0 && (at > 0 || chunk.numbers.len() == CHUNK) {
            chunk.numbers = Vec::new();
        }
    }

    /// There are no slots from `end` on any more.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.chunks.truncate(end.div_ceil(CHUNK));
        if self.chunks.capacity() > 4 * self.chunks.len() + 16 {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }
}
