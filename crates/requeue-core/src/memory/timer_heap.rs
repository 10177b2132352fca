//! The deadlines of waiting keys, as an indexed heap: a table stores the position of each slot in
//! the heap.
//!
//! A node has four children, so the heap is half as high as a binary heap. The children of the node
//! at position `n` are at positions `4 n` to `4 n + 3`, so that they are in the same chunk and in
//! one or two cache lines. The root, at position 0, is in the same group as its children. Equal
//! deadlines leave the heap in the order in which they were set.
//!
//! A deadline can have a bound, as [`Wait`] describes. Bounds are in a side table, which is
//! allocated when the first bound is set. The rules that change a deadline and its bound are in
//! [`crate::rule`].

use alloc::boxed::Box;

use super::chunked::Chunked;
use super::sparse::Sparse;
use crate::rule::Wait;
use crate::types::{Id, Slot, Time, ids};

const ARITY: usize = 4;
/// The children of the nodes up to this position fit into the nearest caches of the processor.
const NEAR: usize = 1 << 10;

ids! {
    /// A position in the heap.
    Position
}

#[derive(Clone, Copy)]
struct Entry {
    at: Time,
    /// The order of arrival, which decides between equal deadlines. The number may wrap around. The
    /// order of two entries is then wrong only if they have the same deadline, and two billion
    /// deadlines were set between them.
    seq: u32,
    slot: Slot,
}

impl Entry {
    /// Returns true if this entry leaves the heap before `other`. The comparison has no branch,
    /// because the processor cannot predict which of two children has the earlier deadline.
    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        let arrived_before = (self.seq.wrapping_sub(other.seq) as i32) < 0;
        (self.at < other.at) | ((self.at == other.at) & arrived_before)
    }
}

pub(crate) struct TimerHeap {
    heap: Chunked<Entry>,
    /// The position of each slot's entry in the heap. If the records contained it, a move in the
    /// heap would write to a large record. In this table, a move writes four bytes.
    positions: Sparse<Position>,
    /// The bounds of the deadlines that have one.
    bounds: Option<Box<Sparse<Time>>>,
    seq: u32,
    /// A copy of the earliest deadline, or [`Time::NEVER`] if the heap is empty.
    next: Time,
}

impl TimerHeap {
    pub(crate) const fn new() -> Self {
        Self {
            heap: Chunked::new(),
            positions: Sparse::new(),
            bounds: None,
            seq: 0,
            next: Time::NEVER,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns the earliest deadline.
    #[inline]
    pub(crate) fn next_time(&self) -> Option<Time> {
        Some(self.heap.rest_of_chunk(0).first()?.at)
    }

    /// Returns true if a deadline may be at or before `now`.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.next <= now
    }

    fn update_next(&mut self) {
        self.next = self.next_time().unwrap_or(Time::NEVER);
    }

    fn heap_position(&self, slot: Slot) -> Option<usize> {
        self.positions.get(slot).map(Id::index)
    }

    /// Returns the deadline of `slot`, if it has one.
    pub(crate) fn due(&self, slot: Slot) -> Option<Time> {
        Some(self.heap.get(self.heap_position(slot)?).at)
    }

    fn new_entry(&mut self, slot: Slot, at: Time) -> Entry {
        let entry = Entry { at, seq: self.seq, slot };
        self.seq = self.seq.wrapping_add(1);
        entry
    }

    /// Sets the deadline of `slot`, which must have no deadline.
    pub(crate) fn insert(&mut self, slot: Slot, at: Time) {
        let entry = self.new_entry(slot, at);
        let end = self.heap.len();
        self.positions.insert(slot, Id::new(end));
        self.heap.push(entry);
        // In most cases, a new deadline is the latest deadline, and its entry stays at the end of
        // the heap.
        if end > 0 && entry.is_before(self.heap.get(end / ARITY)) {
            self.move_up(end, entry);
        }
        // `is_due` reads this copy instead of the heap.
        self.next = self.next.min(at);
    }

    /// Changes the deadline of `slot`, and its bound, to the result of `rule`. The slot must have a
    /// deadline. `rule` must not add a bound to a deadline without one. If the deadline changes, it
    /// is the last to leave among equal deadlines. If it does not change, it keeps its place among
    /// them.
    #[inline(always)]
    pub(crate) fn update(&mut self, slot: Slot, rule: impl Fn(Wait<Time>) -> Wait<Time>) {
        // In a queue without bounds, the first arm runs. It does not save registers for the longer
        // second arm.
        match self.bounds {
            None => self.update_deadline(slot, |due| rule(Wait { due, bound: None }).due),
            Some(_) => self.update_bounded(slot, rule),
        }
    }

    /// Like [`update`](Self::update), but `rule` may add a bound.
    #[inline(never)]
    pub(crate) fn update_bounded(&mut self, slot: Slot, rule: impl Fn(Wait<Time>) -> Wait<Time>) {
        let Some(wait) = self.wait(slot) else { return };
        let after = rule(wait);
        self.set_bound(slot, after.bound);
        self.update_deadline(slot, |_| after.due);
    }

    #[inline(always)]
    fn update_deadline(&mut self, slot: Slot, rule: impl FnOnce(Time) -> Time) {
        let Some(position) = self.heap_position(slot) else {
            debug_assert!(false, "a slot without a deadline");
            return;
        };
        let was = self.heap.get(position).at;
        let at = rule(was);
        if at == was {
            return;
        }
        let entry = self.new_entry(slot, at);
        if at < was {
            self.move_up(position, entry);
        } else {
            self.move_down(position, entry);
        }
        self.update_next();
    }

    /// Removes the deadline of `slot`, and returns it.
    pub(crate) fn remove_deadline(&mut self, slot: Slot) -> Option<Time> {
        // The bound is removed with its deadline. Otherwise, it would apply to the next wait of the
        // key.
        self.drop_bound(slot);
        let position = self.heap_position(slot)?;
        let at = self.heap.get(position).at;
        self.positions.remove(slot);
        if let Some(last) = self.heap.pop()
            && position < self.heap.len()
        {
            // The last entry may be in a different branch of the heap than the gap. It can
            // therefore be earlier than the parent of the gap.
            if position > 0 && last.is_before(self.heap.get(position / ARITY)) {
                self.move_up(position, last);
            } else {
                self.move_down(position, last);
            }
        }
        self.update_next();
        Some(at)
    }

    /// Returns the slot with the earliest deadline, if this deadline is at or before `now`.
    pub(crate) fn first_due(&self, now: Time) -> Option<Slot> {
        let at = self.next_time()?;
        // A saturated deadline is never due, even when the clock reaches the latest time.
        (at <= now && at < Time::NEVER).then(|| self.heap.get(0).slot)
    }

    /// Returns the slot with the second-earliest deadline.
    #[inline]
    pub(crate) fn second_due(&self) -> Option<Slot> {
        Some(self.least_child(0)?.1.slot)
    }

    /// Returns the slot whose deadline can be removed with the least work: the last entry of the
    /// heap.
    pub(crate) fn cheapest_to_remove(&self) -> Option<Slot> {
        Some(self.heap.get(self.heap.len().checked_sub(1)?).slot)
    }

    /// Moves the deadline and bound of slot `from`, if any, to slot `to`, after the slab has moved
    /// the record.
    pub(crate) fn move_slot(&mut self, from: Slot, to: Slot) {
        if let Some(position) = self.positions.move_slot(from, to) {
            self.heap.get_mut(position.index()).slot = to;
        }
        if let Some(bounds) = &mut self.bounds {
            bounds.move_slot(from, to);
        }
    }

    /// Frees the memory for slots from index `end` on. These slots must have no deadlines.
    pub(crate) fn truncate_slots(&mut self, end: usize) {
        self.positions.truncate_slots(end);
        if let Some(bounds) = &mut self.bounds {
            bounds.truncate_slots(end);
        }
    }

    // --- Bounds ---------------------------------------------------------------------------------

    /// Returns the deadline of `slot` with its bound, if the slot has a deadline.
    pub(crate) fn wait(&self, slot: Slot) -> Option<Wait<Time>> {
        Some(Wait { due: self.due(slot)?, bound: self.bound(slot) })
    }

    /// Sets the bound of `slot`. `None` removes it.
    pub(crate) fn set_bound(&mut self, slot: Slot, bound: Option<Time>) {
        let Some(bound) = bound else { return self.drop_bound(slot) };
        let bounds = self.bounds.get_or_insert_with(|| Box::new(Sparse::new()));
        match bounds.get(slot) {
            None => bounds.insert(slot, bound),
            Some(_) => bounds.set(slot, bound),
        }
    }

    /// Returns the bound of the deadline of `slot`, if any.
    #[inline]
    pub(crate) fn bound(&self, slot: Slot) -> Option<Time> {
        self.bounds.as_ref()?.get(slot)
    }

    /// Returns true if a deadline has ever had a bound.
    #[inline]
    pub(crate) const fn has_bounds(&self) -> bool {
        self.bounds.is_some()
    }

    /// Removes the bound of `slot`, if any. Debounced adds can then no longer postpone its
    /// deadline.
    #[inline(always)]
    pub(crate) fn drop_bound(&mut self, slot: Slot) {
        if self.bounds.is_some() {
            self.remove_bound(slot);
        }
    }

    #[inline(never)]
    fn remove_bound(&mut self, slot: Slot) {
        if let Some(bounds) = &mut self.bounds {
            bounds.take(slot);
        }
    }

    fn write_entry(&mut self, position: usize, entry: Entry) {
        self.positions.set(entry.slot, Id::new(position));
        *self.heap.get_mut(position) = entry;
    }

    fn move_up(&mut self, mut position: usize, entry: Entry) {
        while position > 0 {
            let parent = position / ARITY;
            let above = *self.heap.get(parent);
            if !entry.is_before(&above) {
                break;
            }
            self.write_entry(position, above);
            position = parent;
        }
        self.write_entry(position, entry);
    }

    fn move_down(&mut self, mut position: usize, entry: Entry) {
        while let Some((least, below)) = self.least_child(position) {
            if !below.is_before(&entry) {
                break;
            }
            // The next iterations read the grandchildren. In a large heap they are far apart, so
            // the processor loads them early.
            if position > NEAR {
                (0..ARITY).for_each(|child| self.heap.prefetch((least * ARITY + child) * ARITY));
            }
            self.write_entry(position, below);
            position = least;
        }
        self.write_entry(position, entry);
    }

    /// Returns the position and the entry of the child that leaves first, of the node at
    /// `position`.
    #[inline]
    fn least_child(&self, position: usize) -> Option<(usize, Entry)> {
        let first = position * ARITY;
        let group = self.heap.rest_of_chunk(first);
        let earlier = |a: usize, b: usize| if group[b].is_before(&group[a]) { b } else { a };
        let least = match group.len() {
            ARITY.. if position > 0 => earlier(earlier(0, 1), earlier(2, 3)),
            // The group at position 0 contains the root, which is not its own child.
            len => (usize::from(position == 0)..len.min(ARITY)).reduce(earlier)?,
        };
        Some((first + least, group[least]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    impl TimerHeap {
        /// Returns the number of chunks in the table of positions.
        pub(crate) fn chunks(&self) -> usize {
            self.positions.chunks()
        }
    }

    fn id(index: u32) -> Slot {
        Slot::new(index as usize)
    }

    /// Sets the deadline of `slot`, and no bound.
    fn set(timers: &mut TimerHeap, slot: Slot, at: u64) {
        let due = Time::from_nanos(at);
        match timers.due(slot) {
            None => timers.insert(slot, due),
            Some(_) => timers.update(slot, |_| Wait { due, bound: None }),
        }
    }

    proptest! {
        /// The test compares the heap with a list, which it sorts for each query.
        #[test]
        fn leaves_by_deadline_then_by_arrival(
            ops in proptest::collection::vec((0u8..10, 0u32..40, 0u64..20), 1..300),
        ) {
            let mut timers = TimerHeap::new();
            let mut model: Vec<(u64, u32, u32)> = Vec::new();
            let mut bounds: BTreeMap<u32, u64> = BTreeMap::new();
            for (arrival, (op, slot, at)) in (0u32..).zip(ops) {
                let was = model.iter().find(|e| e.2 == slot).map(|e| e.0);
                match op {
                    0..4 => {
                        set(&mut timers, id(slot), at);
                        bounds.remove(&slot);
                        if was != Some(at) {
                            model.retain(|entry| entry.2 != slot);
                            model.push((at, arrival, slot));
                        }
                    }
                    4 => {
                        let was = was.map(Time::from_nanos);
                        prop_assert_eq!(timers.due(id(slot)), was);
                        prop_assert_eq!(timers.remove_deadline(id(slot)), was);
                        bounds.remove(&slot);
                        model.retain(|entry| entry.2 != slot);
                    }
                    5 => {
                        let to = slot + 100;
                        if !model.iter().any(|e| e.2 == to) {
                            timers.move_slot(id(slot), id(to));
                            for entry in model.iter_mut().filter(|e| e.2 == slot) {
                                entry.2 = to;
                            }
                            if let Some(bound) = bounds.remove(&slot) {
                                bounds.insert(to, bound);
                            }
                        }
                    }
                    6..8 if was.is_some() => {
                        let due = at + u64::from(arrival % 9);
                        timers.update_bounded(id(slot), |_| Wait {
                            due: Time::from_nanos(due),
                            bound: Some(Time::from_nanos(at)),
                        });
                        bounds.insert(slot, at);
                        if was != Some(due) {
                            model.retain(|entry| entry.2 != slot);
                            model.push((due, arrival, slot));
                        }
                    }
                    8 => {
                        timers.drop_bound(id(slot));
                        bounds.remove(&slot);
                    }
                    _ => {
                        model.sort_unstable();
                        let due = model.first().filter(|e| e.0 <= at).map(|e| e.2);
                        prop_assert_eq!(timers.first_due(Time::from_nanos(at)), due.map(id));
                        if let Some(slot) = due {
                            timers.remove_deadline(id(slot));
                            bounds.remove(&slot);
                        }
                        model.retain(|entry| Some(entry.2) != due);
                    }
                }
                let bound = bounds.get(&slot).copied().map(Time::from_nanos);
                prop_assert_eq!(timers.bound(id(slot)), bound);
                prop_assert_eq!(timers.has_bounds() || bound.is_none(), true);
                prop_assert_eq!(timers.len(), model.len());
                prop_assert_eq!(timers.next_time(), model.iter().map(|e| Time::from_nanos(e.0)).min());
            }
        }
    }

    /// The heap has several levels, and most keys are not inserted in the order of their deadlines.
    #[test]
    fn many_leave_in_order() {
        let mut timers = TimerHeap::new();
        let at = |slot: u32| Time::from_nanos(u64::from(slot) * 7919 % 2003);
        for slot in 0..2003 {
            timers.insert(id(slot), at(slot));
            assert!(timers.next_time() <= Some(at(slot)));
        }
        for n in 0..2003 {
            assert!(timers.cheapest_to_remove().is_some_and(|slot| timers.due(slot).is_some()));
            let slot = timers.first_due(Time::from_nanos(n)).expect("a key is due each nanosecond");
            let due = at(slot.index() as u32);
            assert_eq!((due, timers.is_due(due)), (Time::from_nanos(n), true));
            assert!(n == 0 || !timers.is_due(Time::from_nanos(n - 1)));
            timers.remove_deadline(slot);
        }
        assert_eq!(
            (timers.cheapest_to_remove(), timers.is_due(Time::from_nanos(9999))),
            (None, false)
        );
    }

    #[test]
    fn of_slots_that_are_gone_nothing_is_kept() {
        let mut timers = TimerHeap::new();
        let far = Slot::new(100 * crate::memory::chunked::CHUNK);
        assert!(!timers.has_bounds());
        timers.insert(far, Time::ZERO);
        timers.set_bound(far, Some(Time::NEVER));
        timers.remove_deadline(far);
        timers.truncate_slots(1);
        assert_eq!(timers.chunks(), 1);
        assert_eq!(timers.bounds.map(|bounds| bounds.chunks()), Some(1));
    }

    #[test]
    fn a_deadline_that_stays_the_same_keeps_its_arrival() {
        let mut timers = TimerHeap::new();
        (0..3).for_each(|slot| set(&mut timers, id(slot), 5));
        set(&mut timers, id(1), 5);
        for slot in 0..3 {
            assert_eq!(timers.first_due(Time::from_nanos(5)), Some(id(slot)));
            timers.remove_deadline(id(slot));
        }
    }

    #[test]
    fn never_does_not_fire() {
        let mut timers = TimerHeap::new();
        timers.insert(id(0), Time::NEVER);
        assert_eq!(timers.first_due(Time::NEVER), None);
        assert_eq!(timers.due(id(0)), Some(Time::NEVER));
    }
}
