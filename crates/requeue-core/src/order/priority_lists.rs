//! One list for each priority.
//!
//! Most queues have few priorities, and a key is often the only one of its priority. The first 32 lists are therefore
//! in a sorted array, and stay there while they are empty. One bit for each list finds the highest list that is not
//! empty. Further lists are in a tree.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

use crate::memory::{Links, List};
use crate::types::{Id, Slot};

/// The number of lists in the array.
const NEAR: usize = u32::BITS as usize;

pub(super) struct PriorityLists<I: Id = Slot> {
    /// The first lists, sorted by priority.
    near: Vec<(i32, List<I>)>,
    /// One bit for each list of `near` that is not empty.
    occupied: u32,
    /// The lists that did not fit into `near`. None of these lists is empty.
    far: BTreeMap<i32, List<I>>,
}

impl<I: Id> PriorityLists<I> {
    pub(super) const fn new() -> Self {
        Self { near: Vec::new(), occupied: 0, far: BTreeMap::new() }
    }

    /// Returns the highest priority that has entries, and its first entry.
    #[inline]
    pub(super) fn first_entry(&self) -> Option<(i32, I)> {
        let near = self.occupied.checked_ilog2().map(|at| self.near[at as usize]);
        let far = self.far.last_key_value().map(|(&priority, &list)| (priority, list));
        let (priority, list) = match (near, far) {
            (Some(near), Some(far)) => {
                if near.0 > far.0 {
                    near
                } else {
                    far
                }
            }
            (near, far) => near.or(far)?,
        };
        Some((priority, list.head()?))
    }

    /// Appends `id` to the list of `priority`.
    #[inline]
    pub(super) fn push_back(&mut self, links: &mut impl Links<I>, priority: i32, id: I) {
        let at = match self.find_list(priority) {
            Ok(at) => at,
            Err(at) => match self.make_place(priority, at) {
                Some(at) => at,
                None => {
                    return self.far.entry(priority).or_insert(List::new()).push_back(links, id);
                }
            },
        };
        self.near[at].1.push_back(links, id);
        self.occupied |= 1 << at;
    }

    /// Removes `id` from the list of `priority`.
    #[inline]
    pub(super) fn remove(&mut self, links: &mut impl Links<I>, priority: i32, id: I) {
        if let Ok(at) = self.find_list(priority) {
            let list = &mut self.near[at].1;
            list.remove(links, id);
            if list.is_empty() {
                self.occupied &= !(1 << at);
            }
        } else if let Entry::Occupied(mut list) = self.far.entry(priority) {
            list.get_mut().remove(links, id);
            if list.get().is_empty() {
                list.remove();
            }
        }
    }

    /// Returns the list of `priority`, which is not empty.
    pub(super) fn list_mut(&mut self, priority: i32) -> Option<&mut List<I>> {
        match self.find_list(priority) {
            Ok(at) => Some(&mut self.near[at].1),
            Err(_) => self.far.get_mut(&priority),
        }
    }

    /// Returns the index of the list of `priority` in the array, or as an error the index at which
    /// it would be inserted.
    fn find_list(&self, priority: i32) -> Result<usize, usize> {
        self.near.binary_search_by_key(&priority, |&(priority, _)| priority)
    }

    /// Inserts an empty list at `at`, and returns its index. A full array is cleared first if all
    /// its lists are empty. Returns `None` if the array is full and one of its lists is not empty.
    #[cold]
    fn make_place(&mut self, priority: i32, at: usize) -> Option<usize> {
        if self.near.len() == NEAR {
            if self.occupied > 0 || !self.far.is_empty() {
                return None;
            }
            // Empty lists are kept until the array is full, because a priority that was used is
            // likely to be used again.
            self.near.clear();
        }
        let at = at.min(self.near.len());
        self.near.insert(at, (priority, List::new()));
        let below = (1 << at) - 1;
        self.occupied = self.occupied & below | (self.occupied & !below) << 1;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    struct Beside(Vec<[Option<Slot>; 2]>);

    impl Links for Beside {
        fn links_of(&mut self, slot: Slot) -> &mut [Option<Slot>; 2] {
            &mut self.0[slot.index()]
        }
    }

    fn beside(slots: usize) -> Beside {
        Beside(alloc::vec![[None; 2]; slots])
    }

    proptest! {
        /// The oracle is a map of queues, with more lists than fit into the array and with fewer.
        #[test]
        fn hold_what_a_map_holds(
            distinct in 1i32..100,
            ops in proptest::collection::vec((0u8..6, any::<i32>(), any::<usize>()), 1..400),
        ) {
            let mut lists = PriorityLists::new();
            let mut links = beside(ops.len());
            let mut model: BTreeMap<i32, VecDeque<Slot>> = BTreeMap::new();
            for (slot, (op, priority, pick)) in (0..).map(Slot::new).zip(ops) {
                // Spreads the priorities up to the limits of `i32`.
                let priority = (priority % distinct) * (i32::MAX / 100);
                let some = model.iter().nth(pick % model.len().max(1)).map(|(&priority, _)| priority);
                let highest = model.last_key_value().map(|(&priority, _)| priority);
                match (op, some, highest) {
                    // Removes an entry from the middle of a list.
                    (3, Some(priority), _) => {
                        let slots = model.get_mut(&priority).unwrap();
                        let slot = slots.remove(pick % slots.len()).unwrap();
                        lists.remove(&mut links, priority, slot);
                    }
                    (4, _, Some(priority)) => {
                        let slot = model.get_mut(&priority).unwrap().pop_front().unwrap();
                        lists.remove(&mut links, priority, slot);
                    }
                    // Removes all entries, so that the array can be cleared.
                    (5, ..) if pick % 16 == 0 => {
                        for (priority, slots) in core::mem::take(&mut model) {
                            slots.iter().for_each(|&slot| lists.remove(&mut links, priority, slot));
                        }
                    }
                    _ => {
                        lists.push_back(&mut links, priority, slot);
                        model.entry(priority).or_default().push_back(slot);
                    }
                }
                model.retain(|_, slots| !slots.is_empty());
                let first = model.last_key_value().map(|(&priority, slots)| (priority, slots[0]));
                prop_assert_eq!(lists.first_entry(), first);
                for (&priority, slots) in &model {
                    let list = lists.list_mut(priority).map(|list| (list.head(), list.tail()));
                    let ends = (slots.front().copied(), slots.back().copied());
                    prop_assert_eq!(list, Some(ends));
                }
                prop_assert!(lists.near.len() <= NEAR && lists.near.is_sorted_by_key(|near| near.0));
            }
        }
    }

    #[test]
    fn the_first_lists_have_a_place_until_all_are_empty() {
        let mut lists = PriorityLists::new();
        let mut links = beside(100);
        for n in 0..100 {
            lists.push_back(&mut links, n as i32, Slot::new(n));
        }
        assert_eq!((lists.near.len(), lists.far.len()), (NEAR, 100 - NEAR));
        // The highest lists are not in the array.
        for n in (0..100).rev() {
            assert_eq!(lists.first_entry(), Some((n as i32, Slot::new(n))));
            lists.remove(&mut links, n as i32, Slot::new(n));
        }
        assert_eq!((lists.first_entry(), lists.far.len()), (None, 0));
        lists.push_back(&mut links, 50, Slot::new(50));
        assert_eq!((lists.near.len(), lists.far.len()), (1, 0));
        // An empty list keeps its place in the array until another list needs it.
        lists.remove(&mut links, 50, Slot::new(50));
        lists.push_back(&mut links, 51, Slot::new(51));
        assert_eq!((lists.near.len(), lists.first_entry()), (2, Some((51, Slot::new(51)))));
    }
}
