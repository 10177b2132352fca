//! Where records live: slots in chunks, reused, and moved together when few are left.

use alloc::vec::Vec;

use crate::chunked::{CHUNK, give_back};
use crate::prefetch::prefetch;

/// No slot: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// How many records one step of compaction moves, and how many slots it looks at.
const MOVES: usize = 4;
const LOOKS: usize = 64;

/// How many freed slots are kept at hand.
const SPARES: u32 = 64;

enum Slot<T> {
    Vacant { next: u32 },
    Live(T),
}

struct Chunk<T> {
    slots: Vec<Slot<T>>,
    /// The vacant slots of this chunk, a list through `Vacant::next`.
    vacant: u32,
    live: u32,
    /// Links of the list of chunks that have room.
    prev: u32,
    next: u32,
    /// Whether the chunk is in that list.
    listed: bool,
}

impl<T> Chunk<T> {
    const fn new() -> Self {
        Self { slots: Vec::new(), vacant: NONE, live: 0, prev: NONE, next: NONE, listed: false }
    }

    /// Gives back the memory of a chunk without records.
    fn clear(&mut self) {
        self.slots = Vec::new();
        self.vacant = NONE;
    }
}

/// Slots addressed by number. A slot stays where it is until [`Slab::compact`] moves it, and says so.
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// First chunk with room; the others follow by `Chunk::next`, to the last. Those that have no
    /// memory come after those that have, in the order in which they lost it.
    room: u32,
    last_room: u32,
    live: usize,
    /// With fewer records than this, the slab is sparse.
    floor: usize,
    /// Chunks that have memory.
    held: usize,
    /// Whether others keep something for each slot up to the last.
    has_followers: bool,
    /// Slots that were freed last, a list through `Vacant::next`, to be filled first. Their chunks
    /// count them as live: a queue that has as many keys coming as going keeps no books of chunks.
    spare: u32,
    spares: u32,
    /// While records are moved out of the last chunk: the slots of it still to look at.
    looking: usize,
    /// The chunk that is being emptied, if any; it is kept out of the list of room.
    source: u32,
    /// Whether memory was given back since somebody asked.
    shrunk: bool,
    /// Whether a record was removed that may have left the slab sparse or shrunk.
    care: bool,
}

impl<T> Slab<T> {
    /// `has_followers`: whether others keep something for each slot up to the last, so that slots
    /// without memory of their own cost something, too.
    pub(crate) const fn new(has_followers: bool) -> Self {
        Self {
            chunks: Vec::new(),
            room: NONE,
            last_room: NONE,
            live: 0,
            floor: 0,
            held: 0,
            has_followers,
            spare: NONE,
            spares: 0,
            looking: 0,
            source: NONE,
            shrunk: false,
            care: false,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.live
    }

    /// Whether [`end`](Self::end) may have gone down since the last time.
    #[inline]
    pub(crate) fn has_shrunk(&mut self) -> bool {
        core::mem::take(&mut self.shrunk)
    }

    /// One more than the highest slot that has been used since its chunk was made: nobody need
    /// remember anything of slots from here on.
    pub(crate) fn end(&self) -> usize {
        let last = self.chunks.len().checked_sub(1);
        last.map_or(0, |last| last * CHUNK + self.chunks[last].slots.len())
    }

    /// The record in `slot`, if there is one.
    #[inline]
    pub(crate) fn find(&self, slot: u32) -> Option<&T> {
        let (chunk, at) = split(slot);
        match self.chunks.get(chunk)?.slots.get(at)? {
            Slot::Live(value) => Some(value),
            Slot::Vacant { .. } => None,
        }
    }

    /// Has the processor fetch the record in `slot`.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        let (chunk, at) = split(slot);
        if let Some(chunk) = self.chunks.get(chunk) {
            prefetch(&chunk.slots, at);
        }
    }

    /// The record in `slot`, which is live.
    #[track_caller]
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &T {
        let (chunk, at) = split(slot);
        match &self.chunks[chunk].slots[at] {
            Slot::Live(value) => value,
            Slot::Vacant { .. } => unreachable!("slot {slot} is vacant"),
        }
    }

    #[track_caller]
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut T {
        let (chunk, at) = split(slot);
        match &mut self.chunks[chunk].slots[at] {
            Slot::Live(value) => value,
            Slot::Vacant { .. } => unreachable!("slot {slot} is vacant"),
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.insert_with(|| value)
    }

    /// As `insert`, of a record that is made where it is to be: one that is copied just after it
    /// was made, in larger pieces, waits for that to be done.
    #[inline(always)]
    pub(crate) fn insert_with(&mut self, make: impl FnOnce() -> T) -> u32 {
        let slot = self.spare;
        if slot == NONE {
            return self.insert_in_chunk(make());
        }
        let (chunk, at) = split(slot);
        let place = &mut self.chunks[chunk].slots[at];
        if let Slot::Vacant { next } = *place {
            self.spare = next;
        }
        *place = Slot::Live(make());
        self.spares -= 1;
        self.live += 1;
        slot
    }

    /// As `insert`, where there is no spare slot.
    #[inline(never)]
    fn insert_in_chunk(&mut self, value: T) -> u32 {
        if self.room == NONE {
            self.grow();
        }
        let number = self.room;
        let chunk = &mut self.chunks[number as usize];
        chunk.live += 1;
        self.live += 1;
        let at = match chunk.vacant {
            NONE => {
                let is_first = chunk.slots.is_empty();
                if is_first && number > 0 {
                    // The first chunk grows as any vector: a small queue stays small.
                    chunk.slots.reserve_exact(CHUNK);
                }
                chunk.slots.push(Slot::Live(value));
                let at = chunk.slots.len() - 1;
                if is_first {
                    self.held += 1;
                    self.measure();
                }
                at
            }
            at => {
                let slot = &mut chunk.slots[at as usize];
                if let Slot::Vacant { next } = *slot {
                    chunk.vacant = next;
                }
                *slot = Slot::Live(value);
                at as usize
            }
        };
        if self.chunks[number as usize].live as usize == CHUNK {
            self.unlist(number);
        }
        (number << CHUNK.trailing_zeros()) | at as u32
    }

    #[track_caller]
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> T {
        match self.take_if(slot, |_| true) {
            Some(value) => value,
            None => unreachable!("slot {slot} is vacant"),
        }
    }

    /// Takes out the record in `slot`, if there is one and it is `wanted`.
    #[inline]
    pub(crate) fn take_if(&mut self, slot: u32, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let (chunk, at) = split(slot);
        let place = self.chunks.get_mut(chunk)?.slots.get_mut(at)?;
        if !matches!(place, Slot::Live(value) if wanted(value)) {
            return None;
        }
        let vacant = Slot::Vacant { next: self.spare };
        let Slot::Live(value) = core::mem::replace(place, vacant) else { return None };
        self.live -= 1;
        if self.spares < SPARES && self.live >= self.floor {
            self.spare = slot;
            self.spares += 1;
        } else {
            self.free(slot);
        }
        Some(value)
    }

    /// The chunk of `slot`, which is vacant, is to count it so.
    #[inline(never)]
    fn free(&mut self, slot: u32) {
        self.care = true;
        let (number, at) = split(slot);
        let chunk = &mut self.chunks[number];
        chunk.slots[at] = Slot::Vacant { next: chunk.vacant };
        chunk.vacant = at as u32;
        chunk.live -= 1;
        // A queue that is empty now and then keeps the little it needs, its first chunk.
        let emptied = chunk.live == 0 && number > 0;
        if emptied {
            chunk.clear();
            let listed = chunk.listed;
            self.held -= 1;
            self.shrunk = true;
            if listed {
                self.unlist(number as u32);
            }
        }
        if !self.chunks[number].listed && number as u32 != self.source {
            self.list(number as u32);
        }
        if emptied {
            self.trim();
        }
    }

    /// Whether something may have to be done since records were removed: see
    /// [`is_sparse`](Self::is_sparse) and [`has_shrunk`](Self::has_shrunk).
    #[inline]
    pub(crate) fn needs_care(&mut self) -> bool {
        core::mem::take(&mut self.care)
    }

    /// The first record from `from` on in its chunk, or where the next chunk begins, the first one
    /// after the last.
    pub(crate) fn next_in_chunk(&self, from: u32) -> Result<u32, u32> {
        let (chunk, at) = split(from);
        let slots = self.chunks.get(chunk).map_or(&[][..], |chunk| &chunk.slots);
        let ahead = slots.iter().skip(at).position(|slot| matches!(slot, Slot::Live(_)));
        match ahead {
            Some(ahead) => Ok(from + ahead as u32),
            None if chunk + 1 < self.chunks.len() => Err(((chunk + 1) * CHUNK) as u32),
            None => Err(0),
        }
    }

    /// By slot.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| &chunk.slots).filter_map(|slot| match slot {
            Slot::Live(value) => Some(value),
            Slot::Vacant { .. } => None,
        })
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.chunks.into_iter().flat_map(|chunk| chunk.slots).filter_map(|slot| match slot {
            Slot::Live(value) => Some(value),
            Slot::Vacant { .. } => None,
        })
    }

    /// Whether records fill so few of the slots that [`compact`](Self::compact) has something to do:
    /// see [`measure`](Self::measure).
    pub(crate) const fn is_sparse(&self) -> bool {
        self.live < self.floor
    }

    /// One step of moving the records of the last chunk to slots below: a bounded number of moves,
    /// each told to `moved` as (from, to) before the next one.
    pub(crate) fn compact(&mut self, mut moved: impl FnMut(&mut Self, u32, u32)) {
        while self.spare != NONE {
            let slot = self.spare;
            let (chunk, at) = split(slot);
            let Slot::Vacant { next } = self.chunks[chunk].slots[at] else { break };
            (self.spare, self.spares) = (next, self.spares - 1);
            self.free(slot);
        }
        if !self.is_sparse() {
            return;
        }
        let last = self.chunks.len() - 1;
        if self.source != last as u32 {
            self.source = last as u32;
            self.looking = self.chunks[last].slots.len();
            if self.chunks[last].listed {
                self.unlist(last as u32);
            }
        }
        let mut moves = 0;
        for _ in 0..LOOKS {
            if moves == MOVES || self.looking == 0 {
                break;
            }
            self.looking -= 1;
            let at = self.looking;
            let chunk = &mut self.chunks[last];
            // A chunk that has lost all its slots meanwhile has nothing to look at.
            let Some(slot) = chunk.slots.get_mut(at) else { continue };
            let vacant = Slot::Vacant { next: chunk.vacant };
            if matches!(slot, Slot::Vacant { .. }) {
                continue;
            }
            let Slot::Live(value) = core::mem::replace(slot, vacant) else { continue };
            chunk.vacant = at as u32;
            chunk.live -= 1;
            self.live -= 1;
            let from = ((last << CHUNK.trailing_zeros()) | at) as u32;
            // There is room below: less than a quarter of all slots is live.
            let to = self.insert_in_chunk(value);
            moves += 1;
            moved(self, from, to);
        }
        if self.chunks[last].live == 0 {
            self.chunks[last].clear();
            self.held -= 1;
            self.shrunk = true;
            self.trim();
        }
    }

    #[cold]
    fn grow(&mut self) {
        // A source that is in the way of growth is no source any more.
        let source = core::mem::replace(&mut self.source, NONE);
        if source != NONE && (self.chunks[source as usize].live as usize) < CHUNK {
            self.list(source);
            return;
        }
        self.chunks.push(Chunk::new());
        self.measure();
        self.list(self.chunks.len() as u32 - 1);
    }

    /// Drops empty chunks from the end, which have no memory any more: so many that nearly always
    /// all go, and so few that no call takes long.
    #[cold]
    fn trim(&mut self) {
        for _ in 0..4096 {
            let Some(chunk) = self.chunks.last() else { break };
            if chunk.slots.capacity() > 0 {
                break;
            }
            let last = self.chunks.len() as u32 - 1;
            if self.chunks[last as usize].listed {
                self.unlist(last);
            }
            if self.source == last {
                self.source = NONE;
            }
            self.chunks.pop();
        }
        give_back(&mut self.chunks);
        self.measure();
    }

    /// The slab is sparse when records fill less than a quarter of the chunks that have memory. Keys
    /// that go in order leave whole chunks behind, which have none: nothing is to be moved for them,
    /// until there are very many.
    fn measure(&mut self) {
        let chunks = self.chunks.len();
        let counted = if self.has_followers { chunks } else { self.held.max(chunks / 8) };
        self.floor = if chunks > 1 { counted * CHUNK / 4 } else { 0 };
    }

    fn list(&mut self, number: u32) {
        let has_memory = self.chunks[number as usize].live > 0;
        let (prev, next) = if has_memory { (NONE, self.room) } else { (self.last_room, NONE) };
        let chunk = &mut self.chunks[number as usize];
        (chunk.listed, chunk.prev, chunk.next) = (true, prev, next);
        self.link(prev, number);
        self.link_back(next, number);
    }

    fn unlist(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        chunk.listed = false;
        let (prev, next) = (chunk.prev, chunk.next);
        self.link(prev, next);
        self.link_back(next, prev);
    }

    /// `next` comes after `prev` in the list of chunks with room.
    fn link(&mut self, prev: u32, next: u32) {
        match prev {
            NONE => self.room = next,
            prev => self.chunks[prev as usize].next = next,
        }
    }

    /// `prev` comes before `next`.
    fn link_back(&mut self, next: u32, prev: u32) {
        match next {
            NONE => self.last_room = prev,
            next => self.chunks[next as usize].prev = prev,
        }
    }
}

const fn split(slot: u32) -> (usize, usize) {
    let slot = slot as usize;
    (slot >> CHUNK.trailing_zeros(), slot & (CHUNK - 1))
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
        assert_eq!(size_of::<Slot<Record>>(), size_of::<Record>());
    }

    impl<T> Slab<T> {
        /// How many slots have memory.
        pub(crate) fn room(&self) -> usize {
            self.chunks.iter().map(|chunk| chunk.slots.capacity()).sum()
        }
    }

    /// Slots from 0 on, of which the last ones are spare, as many as there can be.
    fn full(chunks: usize) -> Slab<usize> {
        let mut slab = Slab::new(false);
        for n in 0..chunks * CHUNK + SPARES as usize {
            assert_eq!((slab.insert(n) as usize, slab.end()), (n, n + 1));
        }
        (0..SPARES).for_each(|n| _ = slab.remove((chunks * CHUNK) as u32 + n));
        slab
    }

    fn chunk_of(slot: u32) -> usize {
        split(slot).0
    }

    #[test]
    fn as_many_coming_as_going_need_no_care() {
        let mut slab = Slab::new(false);
        (0..100).for_each(|n| _ = slab.insert(n));
        for slot in (0..SPARES).cycle().take(1000) {
            slab.remove(slot);
            assert_eq!(slab.insert(0), slot);
        }
        (0..SPARES).for_each(|slot| _ = slab.remove(slot));
        assert!(!slab.needs_care());
        slab.remove(SPARES);
        assert!(slab.needs_care());
        assert!(!slab.needs_care());
    }

    #[test]
    fn the_first_chunk_grows_and_the_others_have_their_size() {
        let mut slab = Slab::new(false);
        slab.insert(0);
        assert!(slab.chunks[0].slots.capacity() < CHUNK);
        (0..CHUNK).for_each(|_| _ = slab.insert(0));
        assert_eq!(slab.chunks[1].slots.capacity(), CHUNK);
    }

    #[test]
    fn the_first_chunk_is_kept_and_others_that_are_empty_are_not() {
        let mut slab = full(3);
        assert!(!slab.has_shrunk());
        (0..3 * CHUNK as u32).rev().for_each(|slot| _ = slab.remove(slot));
        slab.compact(|_, _, _| ());
        assert!(slab.has_shrunk());
        assert!(!slab.has_shrunk());
        assert_eq!((slab.len(), slab.chunks.len(), slab.held), (0, 1, 1));
        assert!(slab.chunks[0].slots.capacity() > 0);
    }

    #[test]
    fn empty_chunks_at_the_end_go_at_once() {
        let mut slab = full(3);
        (0..SPARES).for_each(|_| _ = slab.insert(0));
        (0..SPARES).for_each(|slot| _ = slab.remove(slot));
        let last = 3 * CHUNK as u32;
        (last..last + SPARES).for_each(|slot| _ = slab.remove(slot));
        assert_eq!((slab.chunks.len(), slab.end()), (3, 3 * CHUNK));
    }

    /// Whichever of the two came to have room first.
    #[test]
    fn room_in_chunks_with_memory_is_taken_first() {
        for emptied_first in [true, false] {
            let mut slab = full(8);
            let empty = |slab: &mut Slab<usize>| {
                (3 * CHUNK..4 * CHUNK).for_each(|slot| _ = slab.remove(slot as u32));
            };
            // All room but that.
            if emptied_first {
                empty(&mut slab);
            }
            slab.remove(5 * CHUNK as u32);
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
        (0..64 * CHUNK as u32 - left).for_each(|slot| _ = slab.remove(slot));
        assert!(slab.is_sparse(), "{} chunks have memory, of {}", slab.held, slab.chunks.len());
    }

    #[test]
    fn records_in_chunks_that_have_memory_again_come_together() {
        let mut slab = full(32);
        let emptied = 2 * CHUNK as u32..31 * CHUNK as u32;
        emptied.clone().for_each(|slot| _ = slab.remove(slot));
        let again: Vec<u32> = emptied.map(|_| slab.insert(0)).collect();
        again.iter().filter(|&slot| slot % 8 > 0).for_each(|&slot| _ = slab.remove(slot));
        assert!(slab.is_sparse(), "{} in {} chunks", slab.len(), slab.held);
    }

    #[test]
    fn room_in_the_chunk_that_is_being_emptied_is_taken_before_memory() {
        let mut slab = Slab::new(true);
        (0..8 * CHUNK).for_each(|n| _ = slab.insert(n));
        (0..8 * CHUNK as u32).filter(|slot| slot % 8 > 0).for_each(|slot| _ = slab.remove(slot));
        assert!(slab.is_sparse());
        slab.compact(|_, _, _| ());
        let free = 8 * CHUNK - slab.len();
        (0..free).for_each(|n| _ = slab.insert(n));
        assert_eq!(slab.chunks.len(), 8);
    }

    proptest! {
        /// Against a map: what was inserted is found under its slot, wherever it has moved.
        #[test]
        fn finds_what_a_map_finds(
            followers: bool,
            ops in proptest::collection::vec((0u8..8, any::<u32>()), 1..60),
        ) {
            let mut slab = Slab::new(followers);
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
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
                        // Thin out: all but each n-th.
                        let keep = pick % 7 + 1;
                        let gone: alloc::vec::Vec<u32> =
                            model.keys().copied().filter(|slot| slot % keep != 0).collect();
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
                            prop_assert!(moves <= MOVES && slab.spares == 0);
                            steps += 1;
                            assert!(steps < 100_000, "compaction does not end");
                        }
                        let rare = if followers { 1 } else { 8 };
                        prop_assert!(slab.held * CHUNK <= CHUNK.max(4 * slab.len()) + CHUNK);
                        prop_assert!(slab.chunks.len() * CHUNK <= rare * (CHUNK.max(4 * slab.len()) + CHUNK));
                    }
                }
                prop_assert_eq!(slab.len(), model.len());
                for (&slot, value) in &model {
                    prop_assert_eq!(slab.find(slot), Some(value));
                }
                prop_assert!(slab.values().eq(model.values()));
                let (mut at, mut walked) = (0, Vec::new());
                loop {
                    match slab.next_in_chunk(at) {
                        Ok(slot) => walked.push(slot),
                        Err(0) => break,
                        Err(_) => {}
                    }
                    at = slab.next_in_chunk(at).map_or_else(|next| next, |slot| slot + 1);
                }
                prop_assert!(walked.iter().eq(model.keys()));
            }
        }
    }
}
