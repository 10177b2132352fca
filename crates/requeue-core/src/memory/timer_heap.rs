//! When waiting keys become ready: a heap of deadlines that knows where each slot's stands.
//!
//! Four children a node, of which the fourfold of its place is the first one's: they are in one
//! chunk, and in one or two cache lines, and the heap is half as high as a binary one. The root is
//! in the group of its own children. Equal deadlines leave in order of arrival.

use crate::Time;
use crate::chunked::Chunked;
use crate::slab::NONE;
use crate::sparse::Sparse;

const ARITY: usize = 4;
/// Places up to here have children that the caches next to a processor hold.
const NEAR: usize = 1 << 10;

#[derive(Clone, Copy)]
struct Entry {
    at: Time,
    /// Order of arrival among equal deadlines. It may wrap: then only keys of one nanosecond
    /// that were added two billion delays apart change places.
    seq: u32,
    slot: u32,
}

impl Entry {
    /// Without a branch: of two children of a heap, nobody can foretell which is the earlier.
    #[inline]
    fn before(&self, other: &Self) -> bool {
        let arrived_before = (self.seq.wrapping_sub(other.seq) as i32) < 0;
        (self.at < other.at) | ((self.at == other.at) & arrived_before)
    }
}

pub(crate) struct Timers {
    heap: Chunked<Entry>,
    /// Where the slot's entry stands in the heap, or `NONE`. Apart from the records, so that
    /// moving entries up and down touches four bytes of each and not its whole record.
    places: Sparse,
    seq: u32,
    /// The earliest deadline, at hand.
    next: Time,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { heap: Chunked::new(), places: Sparse::new(), seq: 0, next: Time::NEVER }
    }

    pub(crate) const fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        (!self.heap.is_empty()).then(|| self.heap.get(0).at)
    }

    /// Whether there may be a deadline that is not after `now`.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.next <= now
    }

    fn look(&mut self) {
        self.next = self.next().unwrap_or(Time::NEVER);
    }

    /// The deadline of `slot`.
    pub(crate) fn due(&self, slot: u32) -> Option<Time> {
        match self.places.get(slot) {
            NONE => None,
            place => Some(self.heap.get(place as usize).at),
        }
    }

    fn entry(&mut self, slot: u32, at: Time) -> Entry {
        let entry = Entry { at, seq: self.seq, slot };
        self.seq = self.seq.wrapping_add(1);
        entry
    }

    /// Sets the deadline of `slot`, which has none.
    pub(crate) fn insert(&mut self, slot: u32, at: Time) {
        let entry = self.entry(slot, at);
        let end = self.heap.len();
        self.places.insert(slot, end as u32);
        self.heap.push(entry);
        if end > 0 && entry.before(self.heap.get(end / ARITY)) {
            self.up(end, entry);
        }
        self.next = self.next.min(at);
    }

    /// Sets the deadline of `slot`, and its arrival to now.
    pub(crate) fn set(&mut self, slot: u32, at: Time) {
        match self.places.get(slot) {
            NONE => self.insert(slot, at),
            place => {
                let entry = self.entry(slot, at);
                self.fix(place as usize, entry);
                self.look();
            }
        }
    }

    /// Of the deadline of `slot`, which has one, and of `at`, the earlier one, or the later; and its
    /// arrival is now, if it changes.
    pub(crate) fn merge(&mut self, slot: u32, at: Time, earliest: bool) {
        let place = self.places.get(slot) as usize;
        let was = self.heap.get(place).at;
        let changes = if earliest { at < was } else { at > was };
        if !changes {
            return;
        }
        let entry = self.entry(slot, at);
        if earliest {
            self.up(place, entry);
        } else {
            self.down(place, entry);
        }
        self.look();
    }

    /// Takes out the deadline of `slot`.
    pub(crate) fn clear(&mut self, slot: u32) -> Option<Time> {
        let place = self.places.get(slot);
        if place == NONE {
            return None;
        }
        let at = self.heap.get(place as usize).at;
        self.places.remove(slot);
        if let Some(last) = self.heap.pop()
            && (place as usize) < self.heap.len()
        {
            self.fix(place as usize, last);
        }
        self.look();
        Some(at)
    }

    /// The slot with the earliest deadline, if that is not after `now`.
    pub(crate) fn first(&self, now: Time) -> Option<u32> {
        let at = self.next()?;
        (at <= now && at < Time::NEVER).then(|| self.heap.get(0).slot)
    }

    /// The slot with the earliest deadline but one.
    #[inline]
    pub(crate) fn second(&self) -> Option<u32> {
        Some(self.least_child(0)?.1.slot)
    }

    /// Any slot with a deadline: the one that is cheapest to take out.
    pub(crate) fn any(&self) -> Option<u32> {
        Some(self.heap.get(self.heap.len().checked_sub(1)?).slot)
    }

    /// The record in `from` is in `to` from now on.
    pub(crate) fn moved(&mut self, from: u32, to: u32) {
        let place = self.places.get(from);
        if place == NONE {
            return;
        }
        self.places.remove(from);
        self.places.insert(to, place);
        self.heap.get_mut(place as usize).slot = to;
    }

    /// There are no slots from `end` on any more.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.places.truncate(end);
    }

    fn write(&mut self, place: usize, entry: Entry) {
        self.places.set(entry.slot, place as u32);
        *self.heap.get_mut(place) = entry;
    }

    /// Puts `entry` at `place` or where it belongs from there.
    fn fix(&mut self, place: usize, entry: Entry) {
        if place > 0 && entry.before(self.heap.get(place / ARITY)) {
            self.up(place, entry);
        } else {
            self.down(place, entry);
        }
    }

    fn up(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = place / ARITY;
            let above = *self.heap.get(parent);
            if !entry.before(&above) {
                break;
            }
            self.write(place, above);
            place = parent;
        }
        self.write(place, entry);
    }

    fn down(&mut self, mut place: usize, entry: Entry) {
        while let Some((least, below)) = self.least_child(place) {
            if !below.before(&entry) {
                break;
            }
            if place > NEAR {
                (0..ARITY).for_each(|child| self.heap.prefetch((least * ARITY + child) * ARITY));
            }
            self.write(place, below);
            place = least;
        }
        self.write(place, entry);
    }

    /// Where the child of `place` is that is due first, and it.
    #[inline]
    fn least_child(&self, place: usize) -> Option<(usize, Entry)> {
        let first = place * ARITY;
        let group = self.heap.rest(first);
        let earlier = |a: usize, b: usize| if group[b].before(&group[a]) { b } else { a };
        let least = match group.len() {
            ARITY.. if place > 0 => earlier(earlier(0, 1), earlier(2, 3)),
            // The root is no child of its own.
            len => (usize::from(place == 0)..len.min(ARITY)).reduce(earlier)?,
        };
        Some((first + least, group[least]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    impl Timers {
        /// Of how many chunks of slots it has something.
        pub(crate) fn chunks(&self) -> usize {
            self.places.chunks()
        }
    }

    proptest! {
        /// Against a list that is sorted anew for each question.
        #[test]
        fn leaves_by_deadline_then_by_arrival(
            ops in proptest::collection::vec((0u8..7, 0u32..40, 0u64..20), 1..300),
        ) {
            let mut timers = Timers::new();
            let mut model: Vec<(u64, u32, u32)> = Vec::new();
            for (arrival, (op, slot, at)) in (0u32..).zip(ops) {
                match op {
                    0..3 => {
                        timers.set(slot, Time::from_nanos(at));
                        model.retain(|entry| entry.2 != slot);
                        model.push((at, arrival, slot));
                    }
                    3 => {
                        let was = model.iter().find(|e| e.2 == slot).map(|e| Time::from_nanos(e.0));
                        prop_assert_eq!(timers.due(slot), was);
                        prop_assert_eq!(timers.clear(slot), was);
                        model.retain(|entry| entry.2 != slot);
                    }
                    4 => {
                        let earliest = arrival % 2 == 0;
                        if let Some(entry) = model.iter_mut().find(|entry| entry.2 == slot) {
                            timers.merge(slot, Time::from_nanos(at), earliest);
                            let changes = if earliest { at < entry.0 } else { at > entry.0 };
                            if changes {
                                (entry.0, entry.1) = (at, arrival);
                            }
                        }
                    }
                    5 => {
                        let to = slot + 100;
                        if !model.iter().any(|e| e.2 == to) {
                            timers.moved(slot, to);
                            for entry in model.iter_mut().filter(|e| e.2 == slot) {
                                entry.2 = to;
                            }
                        }
                    }
                    _ => {
                        model.sort_unstable();
                        let due = model.first().filter(|e| e.0 <= at).map(|e| e.2);
                        prop_assert_eq!(timers.first(Time::from_nanos(at)), due);
                        if let Some(slot) = due {
                            timers.clear(slot);
                        }
                        model.retain(|entry| Some(entry.2) != due);
                    }
                }
                prop_assert_eq!(timers.len(), model.len());
                prop_assert_eq!(timers.next(), model.iter().map(|e| Time::from_nanos(e.0)).min());
            }
        }
    }

    /// So many that the heap is several levels high, in an order that puts each where it is not yet.
    #[test]
    fn many_leave_in_order() {
        let mut timers = Timers::new();
        let at = |slot: u32| Time::from_nanos(u64::from(slot) * 7919 % 2003);
        for slot in 0..2003 {
            timers.set(slot, at(slot));
            assert!(timers.next() <= Some(at(slot)));
        }
        for n in 0..2003 {
            assert!(timers.any().is_some_and(|slot| timers.due(slot).is_some()));
            let slot = timers.first(Time::from_nanos(n)).expect("each nanosecond has one");
            assert_eq!((at(slot), timers.is_due(at(slot))), (Time::from_nanos(n), true));
            assert!(n == 0 || !timers.is_due(Time::from_nanos(n - 1)));
            timers.clear(slot);
        }
        assert_eq!((timers.any(), timers.is_due(Time::from_nanos(9999))), (None, false));
    }

    #[test]
    fn of_slots_that_are_gone_nothing_is_kept() {
        let mut timers = Timers::new();
        let far = 100 * crate::chunked::CHUNK as u32;
        timers.set(far, Time::ZERO);
        timers.clear(far);
        timers.truncate(1);
        assert_eq!(timers.chunks(), 1);
    }

    #[test]
    fn a_deadline_that_is_merged_with_its_like_keeps_its_arrival() {
        let at = Time::from_nanos;
        for earliest in [true, false] {
            let mut timers = Timers::new();
            (0..3).for_each(|slot| timers.set(slot, at(5)));
            timers.merge(1, at(5), earliest);
            for slot in 0..3 {
                assert_eq!(timers.first(at(5)), Some(slot));
                timers.clear(slot);
            }
        }
    }

    #[test]
    fn never_does_not_fire() {
        let mut timers = Timers::new();
        timers.set(0, Time::NEVER);
        assert_eq!(timers.first(Time::NEVER), None);
        assert_eq!(timers.due(0), Some(Time::NEVER));
    }
}
