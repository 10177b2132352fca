//! A container for records, in slots. The slots are in chunks. The slab reuses vacant slots, and
//! compacts its records when few are left.
//!
//! No single operation takes long: the slab allocates and frees whole chunks, and moves at most a
//! few records after each removal.

use alloc::vec::Vec;

use super::chunked::{CHUNK, give_back};
use super::list::{Links, List};
use super::prefetch::prefetch;
use crate::types::{Id, Slot, ids};

/// The maximum number of records that one call of `compact` moves.
const MAX_MOVES: usize = 4;
/// The maximum number of slots that one call of `compact` examines.
const SCAN_LIMIT: usize = 64;
/// The maximum number of vacant slots in the list of spare slots.
const MAX_SPARES: u32 = 64;
/// The maximum number of chunks that one removal drops. A slab rarely has more empty chunks than
/// this at its end.
const MAX_DROPS: usize = 4096;

ids! {
    /// The index of a chunk.
    ChunkId
}

enum Entry<T, I> {
    Vacant { next: Option<I> },
    Live(T),
}

struct Chunk<T, I> {
    entries: Vec<Entry<T, I>>,
    /// The first slot in the list of the chunk's vacant slots. `Entry::Vacant::next` links the
    /// other slots of the list.
    vacant: Option<I>,
    live: u32,
    /// The previous and the next chunk in [`roomy`](Slab::roomy).
    links: [Option<ChunkId>; 2],
    /// True if the chunk is in [`roomy`](Slab::roomy).
    is_listed: bool,
}

impl<T, I> Chunk<T, I> {
    const fn new() -> Self {
        Self { entries: Vec::new(), vacant: None, live: 0, links: [None; 2], is_listed: false }
    }

    /// Frees the memory of the chunk, which contains no records.
    fn free_memory(&mut self) {
        self.entries = Vec::new();
        self.vacant = None;
    }
}

impl<T, I> Links<ChunkId> for Vec<Chunk<T, I>> {
    fn links_of(&mut self, id: ChunkId) -> &mut [Option<ChunkId>; 2] {
        &mut self[id.index()].links
    }
}

/// A container that gives each record a slot. A record keeps its slot until
/// [`compact`](Slab::compact) moves the record, and reports the old and the new slot.
pub(crate) struct Slab<T, I = Slot> {
    chunks: Vec<Chunk<T, I>>,
    /// The chunks with vacant slots. The chunks without memory are last, in the order in which
    /// their memory was freed.
    roomy: List<ChunkId>,
    live: u32,
    /// The slab is sparse while it contains fewer records than this number.
    floor: u32,
    /// The number of chunks for which memory is allocated.
    held: u32,
    /// True if other containers (side tables) have an entry for each slot up to the last slot.
    has_side_tables: bool,
    /// The first slot in the list of spare slots, which `Entry::Vacant::next` links. The slots of
    /// the last removals become spare, and the next insertions use them. Chunks count spare slots
    /// as live. A removal and an insertion that alternate therefore change no chunk.
    spare: Option<I>,
    spares: u32,
    /// The chunk that compaction is emptying. It is not in `roomy`, so that no record is inserted
    /// into it.
    source: Option<ChunkId>,
    /// The number of slots of `source` that compaction has not examined yet.
    unexamined: u32,
    /// True if [`slots_end`](Self::slots_end) may have decreased since the last call of
    /// [`take_shrunk`](Self::take_shrunk).
    has_shrunk: bool,
    /// True if a removal may have made the slab sparse, or may have decreased
    /// [`slots_end`](Self::slots_end).
    needs_care: bool,
}

impl<T, I: Id> Slab<T, I> {
    /// Creates an empty slab. `has_side_tables` must be true if other containers have an entry for
    /// each slot up to the last slot. These containers then have memory for a slot even if the slab
    /// has none.
    pub(crate) const fn new(has_side_tables: bool) -> Self {
        Self {
            chunks: Vec::new(),
            roomy: List::new(),
            live: 0,
            floor: 0,
            held: 0,
            has_side_tables,
            spare: None,
            spares: 0,
            source: None,
            unexamined: 0,
            has_shrunk: false,
            needs_care: false,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.live as usize
    }

    /// Returns true if [`slots_end`](Self::slots_end) may have decreased since the last call of
    /// this function.
    #[inline]
    pub(crate) fn take_shrunk(&mut self) -> bool {
        core::mem::take(&mut self.has_shrunk)
    }

    /// Returns one more than the index of the last slot for which the slab has memory. Side tables
    /// need no entries from this index on.
    pub(crate) fn slots_end(&self) -> usize {
        let last = self.chunks.len().checked_sub(1);
        last.map_or(0, |last| last * CHUNK + self.chunks[last].entries.len())
    }

    /// Returns the record in `slot`, or `None` if the slot is vacant.
    #[inline]
    pub(crate) fn find_record(&self, slot: I) -> Option<&T> {
        let (chunk, at) = split_slot(slot);
        match self.chunks.get(chunk)?.entries.get(at)? {
            Entry::Live(value) => Some(value),
            Entry::Vacant { .. } => None,
        }
    }

    /// Makes the processor load the record in `slot` into its cache.
    #[inline]
    pub(crate) fn prefetch(&self, slot: I) {
        let (chunk, at) = split_slot(slot);
        if let Some(chunk) = self.chunks.get(chunk) {
            prefetch(&chunk.entries, at);
        }
    }

    /// Returns the record in `slot`, which must not be vacant.
    #[track_caller]
    #[inline]
    pub(crate) fn get(&self, slot: I) -> &T {
        match self.find_record(slot) {
            Some(value) => value,
            None => is_vacant(slot),
        }
    }

    #[track_caller]
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: I) -> &mut T {
        let (chunk, at) = split_slot(slot);
        let entry = self.chunks.get_mut(chunk).and_then(|chunk| chunk.entries.get_mut(at));
        match entry {
            Some(Entry::Live(value)) => value,
            _ => is_vacant(slot),
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> I {
        self.insert_with(|| value)
    }

    /// Inserts the record that `make` returns. `make` writes the record directly into its slot. A
    /// record that is written elsewhere must be copied in large pieces, and the copy waits until
    /// the small writes have completed.
    #[inline(always)]
    pub(crate) fn insert_with(&mut self, make: impl FnOnce() -> T) -> I {
        let Some(slot) = self.spare else { return self.insert_in_chunk(make()) };
        let (chunk, at) = split_slot(slot);
        let entry = &mut self.chunks[chunk].entries[at];
        if let Entry::Vacant { next } = *entry {
            self.spare = next;
        }
        *entry = Entry::Live(make());
        // The chunk already counts this slot as live, because spare slots count as live.
        self.spares -= 1;
        self.live += 1;
        slot
    }

    /// Inserts a record into a chunk. The caller has found no spare slot.
    #[inline(never)]
    fn insert_in_chunk(&mut self, value: T) -> I {
        // Chunks with memory are filled first. Chunks without memory then stay empty, and can be
        // dropped.
        let number = match self.roomy.head() {
            Some(first) => first.index(),
            None => self.add_roomy_chunk(),
        };
        let chunk = &mut self.chunks[number];
        chunk.live += 1;
        self.live += 1;
        let slot = match chunk.vacant {
            None => {
                let at = chunk.entries.len();
                if at == 0 && number > 0 {
                    // The first chunk grows like any `Vec`, so that a small queue uses little
                    // memory.
                    chunk.entries.reserve_exact(CHUNK);
                }
                chunk.entries.push(Entry::Live(value));
                if at == 0 {
                    self.held += 1;
                    self.update_floor();
                }
                join_slot(number, at)
            }
            Some(slot) => {
                let entry = &mut chunk.entries[split_slot(slot).1];
                if let Entry::Vacant { next } = *entry {
                    chunk.vacant = next;
                }
                *entry = Entry::Live(value);
                slot
            }
        };
        if self.chunks[number].live as usize == CHUNK {
            self.remove_from_roomy(number);
        }
        slot
    }

    #[track_caller]
    #[inline]
    pub(crate) fn remove(&mut self, slot: I) -> T {
        match self.remove_if(slot, |_| true) {
            Some(value) => value,
            None => is_vacant(slot),
        }
    }

    /// Removes the record in `slot` if `wanted` returns true for it.
    #[inline]
    pub(crate) fn remove_if(&mut self, slot: I, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let (chunk, at) = split_slot(slot);
        let entry = self.chunks.get_mut(chunk)?.entries.get_mut(at)?;
        if !matches!(entry, Entry::Live(value) if wanted(value)) {
            return None;
        }
        let vacant = Entry::Vacant { next: self.spare };
        let Entry::Live(value) = core::mem::replace(entry, vacant) else { return None };
        self.live -= 1;
        // A sparse slab has no spare slots, because compaction needs the true number of records in
        // each chunk.
        if self.spares < MAX_SPARES && self.live >= self.floor {
            self.spare = Some(slot);
            self.spares += 1;
        } else {
            self.free_slot(slot);
        }
        Some(value)
    }

    /// Makes the chunk of `slot` count the slot as vacant. The entry in the slot is already vacant.
    #[inline(never)]
    fn free_slot(&mut self, slot: I) {
        self.needs_care = true;
        let (number, at) = split_slot(slot);
        let chunk = &mut self.chunks[number];
        chunk.entries[at] = Entry::Vacant { next: chunk.vacant };
        chunk.vacant = Some(slot);
        chunk.live -= 1;
        // The first chunk keeps its memory, so that a queue that is often empty does not allocate
        // each time.
        let is_emptied = chunk.live == 0 && number > 0;
        if is_emptied {
            chunk.free_memory();
            self.held -= 1;
            self.has_shrunk = true;
            self.remove_from_roomy(number);
        }
        // The chunk that compaction empties is not added to the list, so that no record is inserted
        // into it.
        if !self.chunks[number].is_listed && self.source != Some(Id::new(number)) {
            self.add_to_roomy(number);
        }
        if is_emptied {
            self.drop_empty_chunks();
        }
    }

    /// Returns true if removals since the last call of this function may have made the slab
    /// [sparse](Self::is_sparse) or [shrunk](Self::take_shrunk).
    #[inline]
    pub(crate) fn take_needs_care(&mut self) -> bool {
        core::mem::take(&mut self.needs_care)
    }

    /// Returns the first record at or after index `from` in the same chunk. If there is none,
    /// returns the index of the first slot of the next chunk as an error. After the last chunk,
    /// this index is 0.
    pub(crate) fn next_in_chunk(&self, from: usize) -> Result<I, usize> {
        let (chunk, at) = (from / CHUNK, from % CHUNK);
        let entries = self.chunks.get(chunk).map_or(&[][..], |chunk| &chunk.entries);
        let ahead = entries.iter().skip(at).position(|entry| matches!(entry, Entry::Live(_)));
        match ahead {
            Some(ahead) => Ok(I::new(from + ahead)),
            None if chunk + 1 < self.chunks.len() => Err((chunk + 1) * CHUNK),
            None => Err(0),
        }
    }

    /// Returns all records, in the order of their slots.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| &chunk.entries).filter_map(|entry| match entry {
            Entry::Live(value) => Some(value),
            Entry::Vacant { .. } => None,
        })
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.chunks.into_iter().flat_map(|chunk| chunk.entries).filter_map(|entry| match entry {
            Entry::Live(value) => Some(value),
            Entry::Vacant { .. } => None,
        })
    }

    /// Returns true if the slab contains so few records that [`compact`](Self::compact) has work to
    /// do. [`update_floor`](Self::update_floor) computes the limit.
    pub(crate) const fn is_sparse(&self) -> bool {
        self.live < self.floor
    }

    /// Moves up to [`MAX_MOVES`] records from the last chunk to lower slots. After each move, calls
    /// `moved` with the old slot and the new slot.
    pub(crate) fn compact(&mut self, mut moved: impl FnMut(&mut Self, I, I)) {
        // Chunks count spare slots as live. All spare slots are freed first, so that each chunk has
        // the true number of records.
        while let Some(slot) = self.spare {
            let (chunk, at) = split_slot(slot);
            let Entry::Vacant { next } = self.chunks[chunk].entries[at] else { break };
            (self.spare, self.spares) = (next, self.spares - 1);
            self.free_slot(slot);
        }
        if !self.is_sparse() {
            return;
        }
        let last = self.chunks.len() - 1;
        if self.source != Some(Id::new(last)) {
            self.source = Some(Id::new(last));
            self.unexamined = self.chunks[last].entries.len() as u32;
            self.remove_from_roomy(last);
        }
        let mut moves = 0;
        for _ in 0..SCAN_LIMIT {
            if moves == MAX_MOVES || self.unexamined == 0 {
                break;
            }
            self.unexamined -= 1;
            let at = self.unexamined as usize;
            let chunk = &mut self.chunks[last];
            // If the last record of the chunk has been removed in the meantime, the chunk has no
            // entries.
            let Some(entry) = chunk.entries.get_mut(at) else { continue };
            if matches!(entry, Entry::Vacant { .. }) {
                continue;
            }
            let vacant = Entry::Vacant { next: chunk.vacant };
            let Entry::Live(value) = core::mem::replace(entry, vacant) else { continue };
            let from = join_slot(last, at);
            chunk.vacant = Some(from);
            chunk.live -= 1;
            self.live -= 1;
            // A lower chunk always has a vacant slot, because less than a quarter of all slots are
            // live.
            let to = self.insert_in_chunk(value);
            moves += 1;
            moved(self, from, to);
        }
        if self.chunks[last].live == 0 {
            self.chunks[last].free_memory();
            self.held -= 1;
            self.has_shrunk = true;
            self.drop_empty_chunks();
        }
    }

    /// Puts a chunk with vacant slots at the head of `roomy`, and returns its index.
    #[cold]
    fn add_roomy_chunk(&mut self) -> usize {
        // If a slab grows, compaction stops. The chunk that compaction was emptying can then take
        // records again.
        let source = self.source.take().map(Id::index);
        let source = source.filter(|&source| (self.chunks[source].live as usize) < CHUNK);
        let number = source.unwrap_or_else(|| {
            self.chunks.push(Chunk::new());
            self.update_floor();
            self.chunks.len() - 1
        });
        self.add_to_roomy(number);
        number
    }

    /// Drops up to [`MAX_DROPS`] chunks without memory from the end of `chunks`.
    #[cold]
    fn drop_empty_chunks(&mut self) {
        for _ in 0..MAX_DROPS {
            let Some(chunk) = self.chunks.last() else { break };
            if chunk.entries.capacity() > 0 {
                break;
            }
            let last = self.chunks.len() - 1;
            self.remove_from_roomy(last);
            if self.source == Some(Id::new(last)) {
                self.source = None;
            }
            self.chunks.pop();
        }
        give_back(&mut self.chunks);
        self.update_floor();
    }

    /// Computes the number of records below which the slab is sparse: a quarter of the slots with
    /// memory.
    ///
    /// If keys are removed in order of arrival, whole chunks lose their memory. These chunks are
    /// included only if side tables have entries for their slots, or if they are more than seven
    /// eighths of all chunks.
    fn update_floor(&mut self) {
        let chunks = self.chunks.len();
        let counted =
            if self.has_side_tables { chunks } else { (self.held as usize).max(chunks / 8) };
        self.floor = if chunks > 1 { (counted * CHUNK / 4) as u32 } else { 0 };
    }

    /// Adds a chunk to `roomy`.
    fn add_to_roomy(&mut self, number: usize) {
        let chunk = &mut self.chunks[number];
        chunk.is_listed = true;
        // A chunk without records goes to the end of the list, so that it is filled last. It can
        // then be dropped.
        if chunk.live > 0 {
            self.roomy.push_front(&mut self.chunks, Id::new(number));
        } else {
            self.roomy.push_back(&mut self.chunks, Id::new(number));
        }
    }

    /// Removes a chunk from `roomy`, if it is in this list.
    fn remove_from_roomy(&mut self, number: usize) {
        if core::mem::take(&mut self.chunks[number].is_listed) {
            self.roomy.remove(&mut self.chunks, Id::new(number));
        }
    }
}

/// Returns the index of the chunk of `slot`, and the index of the slot in this chunk.
#[inline(always)]
fn split_slot<I: Id>(slot: I) -> (usize, usize) {
    (slot.index() / CHUNK, slot.index() % CHUNK)
}

/// Panics. This is a separate function, so that its callers need no stack space for the message.
#[cold]
#[inline(never)]
#[track_caller]
fn is_vacant<I: Id>(slot: I) -> ! {
    unreachable!("slot {} is vacant", slot.index())
}

fn join_slot<I: Id>(chunk: usize, at: usize) -> I {
    I::new(chunk * CHUNK + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    #[test]
    fn a_vacant_slot_costs_no_tag() {
        struct Record {
            _key: u64,
            _phase: core::cmp::Ordering,
        }
        assert_eq!(size_of::<Entry<Record, Slot>>(), size_of::<Record>());
    }

    impl<T> Slab<T> {
        /// Returns the number of slots for which memory is allocated.
        pub(crate) fn capacity(&self) -> usize {
            self.chunks.iter().map(|chunk| chunk.entries.capacity()).sum()
        }
    }

    /// Returns a slab with `chunks` full chunks, and with [`MAX_SPARES`] spare slots after them.
    fn full(chunks: usize) -> Slab<usize> {
        let mut slab = Slab::<_>::new(false);
        for n in 0..chunks * CHUNK + MAX_SPARES as usize {
            assert_eq!((slab.insert(n).index(), slab.slots_end()), (n, n + 1));
        }
        (0..MAX_SPARES).for_each(|n| _ = slab.remove(at((chunks * CHUNK) as u32 + n)));
        slab
    }

    fn at(index: u32) -> Slot {
        Slot::new(index as usize)
    }

    fn chunk_of(slot: Slot) -> usize {
        split_slot(slot).0
    }

    #[test]
    fn as_many_coming_as_going_need_no_care() {
        let mut slab = Slab::<_>::new(false);
        (0..100).for_each(|n| _ = slab.insert(n));
        for slot in (0..MAX_SPARES).cycle().take(1000) {
            slab.remove(at(slot));
            assert_eq!(slab.insert(0), at(slot));
        }
        (0..MAX_SPARES).for_each(|slot| _ = slab.remove(at(slot)));
        assert!(!slab.take_needs_care());
        slab.remove(at(MAX_SPARES));
        assert!(slab.take_needs_care());
        assert!(!slab.take_needs_care());
    }

    #[test]
    fn the_first_chunk_grows_and_the_others_have_their_size() {
        let mut slab = Slab::<_>::new(false);
        slab.insert(0);
        assert!(slab.chunks[0].entries.capacity() < CHUNK);
        (0..CHUNK).for_each(|_| _ = slab.insert(0));
        assert_eq!(slab.chunks[1].entries.capacity(), CHUNK);
    }

    #[test]
    fn the_first_chunk_is_kept_and_others_that_are_empty_are_not() {
        let mut slab = full(3);
        assert!(!slab.take_shrunk());
        (0..3 * CHUNK as u32).rev().for_each(|slot| _ = slab.remove(at(slot)));
        slab.compact(|_, _, _| ());
        assert!(slab.take_shrunk());
        assert!(!slab.take_shrunk());
        assert_eq!((slab.len(), slab.chunks.len(), slab.held), (0, 1, 1));
        assert!(slab.chunks[0].entries.capacity() > 0);
    }

    #[test]
    fn empty_chunks_at_the_end_go_at_once() {
        let mut slab = full(3);
        (0..MAX_SPARES).for_each(|_| _ = slab.insert(0));
        (0..MAX_SPARES).for_each(|slot| _ = slab.remove(at(slot)));
        let last = 3 * CHUNK as u32;
        (last..last + MAX_SPARES).for_each(|slot| _ = slab.remove(at(slot)));
        assert_eq!((slab.chunks.len(), slab.slots_end()), (3, 3 * CHUNK));
    }

    /// The result must not depend on the order in which the chunks got vacant slots.
    #[test]
    fn room_in_chunks_with_memory_is_taken_first() {
        for emptied_first in [true, false] {
            let mut slab = full(8);
            let empty = |slab: &mut Slab<usize>| {
                (3 * CHUNK..4 * CHUNK).for_each(|slot| _ = slab.remove(at(slot as u32)));
            };
            // All other vacant slots are in the last chunk.
            if emptied_first {
                empty(&mut slab);
            }
            slab.remove(at(5 * CHUNK as u32));
            if !emptied_first {
                empty(&mut slab);
            }
            let mut chunks = Vec::new();
            while slab.chunks.len() == 9 {
                chunks.push(chunk_of(slab.insert(0)));
            }
            let at = |chunk| chunks.iter().position(|&c| c == chunk);
            assert!(at(5) < at(3) && at(5).is_some() && at(8) < at(3), "{emptied_first}");
        }
    }

    #[test]
    fn very_many_chunks_without_memory_are_a_reason_to_move_records() {
        let mut slab = full(64);
        let left = 500;
        (0..64 * CHUNK as u32 - left).for_each(|slot| _ = slab.remove(at(slot)));
        assert!(slab.is_sparse(), "{} chunks have memory, of {}", slab.held, slab.chunks.len());
    }

    #[test]
    fn records_in_chunks_that_have_memory_again_come_together() {
        let mut slab = full(32);
        let emptied = 2 * CHUNK as u32..31 * CHUNK as u32;
        emptied.clone().for_each(|slot| _ = slab.remove(at(slot)));
        let again: Vec<Slot> = emptied.map(|_| slab.insert(0)).collect();
        let most = again.iter().filter(|slot| slot.index() % 8 > 0);
        most.for_each(|&slot| _ = slab.remove(slot));
        assert!(slab.is_sparse(), "{} in {} chunks", slab.len(), slab.held);
    }

    #[test]
    fn room_in_the_chunk_that_is_being_emptied_is_taken_before_memory() {
        let mut slab = Slab::<_>::new(true);
        (0..8 * CHUNK).for_each(|n| _ = slab.insert(n));
        (0..8 * CHUNK as u32)
            .filter(|slot| slot % 8 > 0)
            .for_each(|slot| _ = slab.remove(at(slot)));
        assert!(slab.is_sparse());
        slab.compact(|_, _, _| ());
        let free = 8 * CHUNK - slab.len();
        (0..free).for_each(|n| _ = slab.insert(n));
        assert_eq!(slab.chunks.len(), 8);
    }

    proptest! {
        /// The test compares the slab with a map: each record must be in its present slot.
        #[test]
        fn finds_what_a_map_finds(
            followers: bool,
            ops in proptest::collection::vec((0u8..8, any::<u32>()), 1..60),
        ) {
            let mut slab = Slab::<_>::new(followers);
            let mut model: BTreeMap<Slot, u32> = BTreeMap::new();
            let mut next = 0u32;
            for (op, pick) in ops {
                match op {
                    0..3 => {
                        for _ in 0..pick % 2000 {
                            prop_assert!(model.insert(slab.insert(next), next).is_none());
                            next += 1;
                        }
                    }
                    3..7 => {
                        // Removes all records except those in every n-th slot.
                        let keep = pick as usize % 7 + 1;
                        let gone: Vec<Slot> =
                            model.keys().copied().filter(|slot| slot.index() % keep != 0).collect();
                        for slot in gone {
                            let value = model.remove(&slot);
                            prop_assert_eq!(Some(slab.remove(slot)), value);
                        }
                    }
                    _ => {
                        let mut steps = 0;
                        while slab.is_sparse() {
                            let mut moves = 0;
                            slab.compact(|slab, from, to| {
                                moves += 1;
                                let value = model.remove(&from).unwrap();
                                assert_eq!(*slab.get(to), value);
                                assert!(model.insert(to, value).is_none());
                            });
                            prop_assert!(moves <= MAX_MOVES && slab.spares == 0);
                            steps += 1;
                            assert!(steps < 100_000, "compaction does not terminate");
                        }
                        let rare = if followers { 1 } else { 8 };
                        prop_assert!(slab.held as usize * CHUNK <= CHUNK.max(4 * slab.len()) + CHUNK);
                        prop_assert!(slab.chunks.len() * CHUNK <= rare * (CHUNK.max(4 * slab.len()) + CHUNK));
                    }
                }
                prop_assert_eq!(slab.len(), model.len());
                for (&slot, value) in &model {
                    prop_assert_eq!(slab.find_record(slot), Some(value));
                }
                prop_assert!(slab.values().eq(model.values()));
                let (mut from, mut walked) = (0, Vec::new());
                loop {
                    match slab.next_in_chunk(from) {
                        Ok(slot) => walked.push(slot),
                        Err(0) => break,
                        Err(_) => {}
                    }
                    from = slab.next_in_chunk(from).map_or_else(|next| next, |slot| slot.index() + 1);
                }
                prop_assert!(walked.iter().eq(model.keys()));
            }
        }
    }
}
