//! A vector that stores its entries in chunks of a fixed size.
//!
//! The vector copies no entries when it grows, and frees chunks when it shrinks. A `Vec` of a
//! million entries would copy all entries under the queue's lock when it grows, and would not free
//! memory when it shrinks.

use alloc::vec::Vec;

use super::prefetch::prefetch;

/// The number of entries in a chunk.
pub(crate) const CHUNK: usize = 512;

pub(crate) struct Chunked<T> {
    /// Every chunk except the last contains exactly `CHUNK` entries. `pop` keeps one empty chunk at
    /// the end. Without it, a length that goes up and down at a chunk boundary would allocate a
    /// chunk each time.
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

    pub(crate) fn get(&self, at: usize) -> &T {
        &self.chunks[at / CHUNK][at % CHUNK]
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }

    /// Returns the entries from index `at` to the end of its chunk. If there is no entry at `at`,
    /// returns an empty slice.
    #[inline]
    pub(crate) fn rest_of_chunk(&self, at: usize) -> &[T] {
        let chunk = self.chunks.get(at / CHUNK);
        chunk.and_then(|chunk| chunk.get(at % CHUNK..)).unwrap_or_default()
    }

    /// Makes the processor load the entry at `at` into its cache.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize) {
        if let Some(chunk) = self.chunks.get(at / CHUNK) {
            prefetch(chunk, at % CHUNK);
        }
    }

    pub(crate) fn push(&mut self, value: T) {
        let chunk = self.len / CHUNK;
        if chunk == self.chunks.len() {
            // The first chunk grows like any `Vec`, so that a small queue uses little memory.
            self.chunks.push(if chunk == 0 { Vec::new() } else { Vec::with_capacity(CHUNK) });
        }
        self.chunks[chunk].push(value);
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        let chunk = last / CHUNK;
        let value = self.chunks[chunk].pop();
        self.len = last;
        if last == chunk * CHUNK {
            // At most one empty chunk is kept.
            self.chunks.truncate(chunk + 1);
            self.free_empty_chunks();
        }
        value
    }

    /// Shortens the vector to at most `len` entries, and frees all empty chunks.
    pub(crate) fn truncate(&mut self, len: usize) {
        if self.len >= len {
            self.chunks.truncate(len.div_ceil(CHUNK));
            if let (Some(last), 1..) = (self.chunks.last_mut(), len % CHUNK) {
                last.truncate(len % CHUNK);
            }
            self.len = len;
            self.free_empty_chunks();
        }
    }

    fn free_empty_chunks(&mut self) {
        if self.len == 0 {
            self.chunks = Vec::new();
        } else {
            give_back(&mut self.chunks);
        }
    }
}

/// Shrinks the capacity to twice the length if the capacity is above four times the length plus 16.
pub(crate) fn give_back<T>(vec: &mut Vec<T>) {
    if vec.capacity() > 4 * vec.len() + 16 {
        vec.shrink_to(2 * vec.len());
    }
}

impl<T: Clone> Chunked<T> {
    /// Extends the vector with copies of `value` until its length is at least `len`.
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
        *ours.get_mut(CHUNK + 1) += 1;
        assert_eq!((*ours.get(1), *ours.get(CHUNK), *ours.get(CHUNK + 1)), (1, CHUNK, CHUNK + 2));
        *ours.get_mut(CHUNK + 1) -= 1;
        for i in (0..3 * CHUNK).rev() {
            assert_eq!((ours.pop(), ours.len()), (Some(i), i));
            // `pop` keeps one empty chunk, because the length may cross the same boundary again.
            let chunks = if i == 0 { 0 } else { (i.div_ceil(CHUNK) + 1).min(3) };
            assert_eq!(ours.chunks.len(), chunks);
        }
        assert_eq!(ours.pop(), None);
        assert!(ours.chunks.is_empty());
    }

    #[test]
    fn truncating_frees_the_chunks_above() {
        let mut ours = Chunked::new();
        ours.extend_to(5 * CHUNK + 3, &7);
        assert_eq!(ours.len(), 5 * CHUNK + 3);
        ours.truncate(6 * CHUNK);
        assert_eq!((ours.len(), ours.chunks.len()), (5 * CHUNK + 3, 6));
        ours.truncate(CHUNK + 1);
        assert_eq!((ours.len(), ours.chunks.len(), ours.chunks[1].len()), (CHUNK + 1, 2, 1));
        ours.push(8);
        assert_eq!(*ours.get(CHUNK + 1), 8);
        ours.truncate(0);
        assert!(ours.len() == 0 && ours.chunks.is_empty());
    }

    #[test]
    fn the_first_chunk_grows_and_the_others_have_their_size() {
        let mut ours = Chunked::new();
        ours.push(1u64);
        assert!(ours.chunks[0].capacity() < CHUNK);
        ours.extend_to(CHUNK + 1, &1);
        assert_eq!(ours.chunks[1].capacity(), CHUNK);
    }

    #[test]
    fn memory_is_given_back_where_far_too_much_is_held() {
        let after = |held: usize| {
            let mut vec = Vec::with_capacity(held);
            vec.extend([0u64; 4]);
            give_back(&mut vec);
            vec.capacity()
        };
        assert_eq!([after(8), after(32), after(33), after(1000)], [8, 32, 8, 8]);
    }
}
