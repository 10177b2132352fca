//! The order by priority with aging, for queues without groups.

use super::Ranked;
use super::aging::Aging;
use super::priority_lists::PriorityLists;
use crate::memory::{Chunked, Links, List};
use crate::types::{Id, Slot};

/// The data that the order stores for each slot.
#[derive(Clone)]
struct Place {
    by_age: [Option<Slot>; 2],
    /// The priority of the list that contains the key. The record can have a higher priority, if an
    /// add has raised it since the key entered the list.
    priority: i32,
}

/// The ready keys. Each key is in the list of its priority, whose links are in the records. It is
/// also in the list by age, whose links are in a side table.
pub(crate) struct ByPriority {
    lists: PriorityLists,
    places: Chunked<Place>,
    /// All ready keys, in the order in which they became ready.
    by_age: List,
    aging: Aging,
}

impl Links for Chunked<Place> {
    fn links_of(&mut self, slot: Slot) -> &mut [Option<Slot>; 2] {
        &mut self.get_mut(slot.index()).by_age
    }
}

impl ByPriority {
    pub(super) const fn new(oldest_every: u32) -> Self {
        Self {
            lists: PriorityLists::new(),
            places: Chunked::new(),
            by_age: List::new(),
            aging: Aging::new(oldest_every),
        }
    }

    /// Appends the key in `slot`, which has just become ready.
    pub(crate) fn push(&mut self, records: &mut impl Ranked, slot: Slot) {
        let priority = records.priority(slot);
        // The new entry already contains its links, so `append` writes only to the old tail.
        let place = Place { by_age: [self.by_age.tail(), None], priority };
        self.places.extend_to(slot.index() + 1, &place);
        *self.places.get_mut(slot.index()) = place;
        self.by_age.append(&mut self.places, slot);
        self.lists.push_back(records, priority, slot);
    }

    /// Moves a ready key, whose priority has been raised, to the end of the list of its new
    /// priority. Its age does not change.
    pub(crate) fn lift_ready(&mut self, records: &mut impl Ranked, slot: Slot) {
        let priority = records.priority(slot);
        let place = self.places.get_mut(slot.index());
        let was = core::mem::replace(&mut place.priority, priority);
        if was != priority {
            self.lists.remove(records, was, slot);
            self.lists.push_back(records, priority, slot);
        }
    }

    /// Removes a ready key that will not be delivered.
    #[inline]
    pub(crate) fn remove(&mut self, records: &mut impl Ranked, slot: Slot) {
        let priority = self.places.get(slot.index()).priority;
        self.by_age.remove(&mut self.places, slot);
        self.lists.remove(records, priority, slot);
    }

    /// Returns the key that the next delivery takes.
    pub(crate) fn next_ready(&self) -> Option<Slot> {
        if self.aging.is_due() {
            return self.oldest_ready();
        }
        self.lists.first_entry().map(|(_, slot)| slot)
    }

    /// Returns the key that has been ready for the longest time.
    pub(crate) const fn oldest_ready(&self) -> Option<Slot> {
        self.by_age.head()
    }

    /// Removes a ready key, because it is being delivered.
    pub(crate) fn start_delivery(&mut self, records: &mut impl Ranked, slot: Slot) {
        self.aging.count_delivery(self.oldest_ready() == Some(slot));
        self.remove(records, slot);
    }

    /// Replaces slot `from` with slot `to`, after the slab has moved the record of a ready key.
    pub(crate) fn move_slot(&mut self, records: &mut impl Ranked, from: Slot, to: Slot) {
        let place = self.places.get(from.index()).clone();
        if let Some(list) = self.lists.list_mut(place.priority) {
            list.move_slot(records, from, to);
        }
        *self.places.get_mut(to.index()) = place;
        self.by_age.move_slot(&mut self.places, from, to);
    }

    /// Frees the memory for slots from index `end` on. These slots must have no records.
    pub(crate) fn truncate_slots(&mut self, end: usize) {
        self.places.truncate(end);
    }
}

#[cfg(test)]
impl ByPriority {
    /// Returns the number of slots for which the side table has entries.
    pub(crate) fn slots(&self) -> usize {
        self.places.len()
    }
}
