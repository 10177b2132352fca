//! A vector in chunks of fixed size.
//!
//! It never copies what it holds when it grows and gives memory back as it shrinks: a `Vec` of a
//! million entries would do one long copy under the queue's lock, and keep it all afterwards.

use alloc::vec::Vec;

/// Entries per chunk, as a power of two.
const BITS: u32 = 9;
pub(crate) const CHUNK: usize = 1 << BITS;

pub(crate) struct Chunked<T> {
    /// Every chunk but the last holds exactly `CHUNK` entries; the last may be empty, kept so that
    /// a length that swings around a boundary does not allocate each time.
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Chunked<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, at: usize) -> &T {
        &self.chunks[at >> BITS][at & (CHUNK - 1)]
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at >> BITS][at & (CHUNK - 1)]
    }

    pub(crate) fn push(&mut self, value: T) {
        let chunk = self.len >> BITS;
        if chunk == self.chunks.len() {
            // The first chunk grows as any vector: an idle queue costs next to nothing.
            self.chunks.push(if chunk == 0 { Vec::new() } else { Vec::with_capacity(CHUNK) });
        }
        self.chunks[chunk].push(value);
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        let chunk = last >> BITS;
        let value = self.chunks[chunk].pop();
        self.len = last;
        self.trim(chunk);
        value
    }

    /// Keeps no empty chunk: it is called when the owner gives memory back.
    pub(crate) fn truncate(&mut self, len: usize) {
        if self.len > len {
            self.chunks.truncate(len.div_ceil(CHUNK));
            if let (Some(last), 1..) = (self.chunks.last_mut(), len & (CHUNK - 1)) {
                last.truncate(len & (CHUNK - 1));
            }
            self.len = len;
            self.shrink();
        }
    }

    /// Called when `chunk` has lost entries: at most one empty chunk is kept.
    fn trim(&mut self, chunk: usize) {
        if self.len == chunk << BITS {
            self.chunks.truncate(chunk + 1);
            self.shrink();
        }
    }

    fn shrink(&mut self) {
        if self.len == 0 {
            self.chunks = Vec::new();
        } else if self.chunks.capacity() > 4 * self.chunks.len() + 16 {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }
}

impl<T: Clone> Chunked<T> {
    /// Makes the length at least `len`.
    pub(crate) fn extend_to(&mut self, len: usize, value: &T) {
        while self.len < len {
            self.push(value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_a_vec_holds_across_chunk_boundaries() {
        let mut ours = Chunked::new();
        for i in 0..3 * CHUNK {
            ours.push(i);
        }
        assert_eq!(*ours.get(CHUNK), CHUNK);
        for i in (0..3 * CHUNK).rev() {
            assert_eq!(ours.pop(), Some(i));
        }
        assert_eq!(ours.pop(), None);
        assert!(ours.chunks.is_empty());
    }

    #[test]
    fn truncating_frees_the_chunks_above() {
        let mut ours = Chunked::new();
        ours.extend_to(5 * CHUNK + 3, &7);
        ours.truncate(CHUNK + 1);
        assert_eq!((ours.len(), ours.chunks.len()), (CHUNK + 1, 2));
        ours.push(8);
        assert_eq!(*ours.get(CHUNK + 1), 8);
        ours.truncate(0);
        assert!(ours.is_empty() && ours.chunks.is_empty());
    }
}
