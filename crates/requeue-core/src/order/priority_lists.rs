//! A list of entries for each priority.
//!
//! Most queues have few priorities, and a key is often the only key of its priority. The first 32
//! lists are therefore in a sorted array, in which an empty list keeps its place. A mask has one
//! bit for each list, so that the highest list with entries is found quickly. All further lists are
//! in a tree.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

use crate::memory::{Links, List};
use crate::types::{Id, Slot};

/// The maximum number of lists in the array.
const NEAR: usize = u32::BITS as usize;

pub(super) struct PriorityLists<I: Id = Slot> {
    /// The first lists, sorted by priority. Some of them may be empty.
    near: Vec<(i32, List<I>)>,
    /// A mask with one bit for each list of `near` that is not empty.
    occupied: u32,
    /// The lists that do not fit into `near`. None of them is empty.
    far: BTreeMap<i32, List<I>>,
}

impl<I: Id> PriorityLists<I> {
    pub(super) const fn new() -> Self {
        Self { near: Vec::new(), occupied: 0, far: BTreeMap::new() }
    }

    /// Returns the highest priority that has entries, with the first entry of its list.
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

    /// Returns the list of `priority`, which must not be empty.
    pub(super) fn list_mut(&mut self, priority: i32) -> Option<&mut List<I>> {
        match self.find_list(priority) {
            Ok(at) => Some(&mut self.near[at].1),
            Err(_) => self.far.get_mut(&priority),
        }
    }

    /// Returns the index of the list of `priority` in `near`. If the array does not contain this
    /// list, returns the index at which it would be inserted, as an error.
    fn find_list(&self, priority: i32) -> Result<usize, usize> {
        self.near.binary_search_by_key(&priority, |&(priority, _)| priority)
    }

    /// Inserts an empty list at index `at`, and returns its index. If the array is full and all
    /// lists are empty, clears the array first. If the array is full and a list is not empty,
    /// returns `None`.
    #[cold]
    fn make_place(&mut self, priority: i32, at: usize) -> Option<usize> {
        if self.near.len() == NEAR {
            if self.occupied > 0 || !self.far.is_empty() {
                return None;
            }
            // Empty lists keep their place until the array is full, because a priority that was
            // used is likely to be used again.
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
        /// The test compares the lists with a map of queues. The number of lists is above and below
        /// the size of the array.
        #[test]
        fn hold_what_a_map_holds(
            distinct in 1i32..100,
            ops in proptest::collection::vec((0u8..6, any::<i32>(), any::<usize>()), 1..400),
        ) {
            let mut lists = PriorityLists::new();
            let mut links = beside(ops.len());
            let mut model: BTreeMap<i32, VecDeque<Slot>> = BTreeMap::new();
            for (slot, (op, priority, pick)) in (0..).map(Slot::new).zip(ops) {
                // Spreads the priorities over the range of `i32`.
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
                    // Removes all entries, so that a full array can be cleared.
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
        // The lists of the highest priorities are in the tree.
        for n in (0..100).rev() {
            assert_eq!(lists.first_entry(), Some((n as i32, Slot::new(n))));
            lists.remove(&mut links, n as i32, Slot::new(n));
        }
        assert_eq!((lists.first_entry(), lists.far.len()), (None, 0));
        lists.push_back(&mut links, 50, Slot::new(50));
        assert_eq!((lists.near.len(), lists.far.len()), (1, 0));
        // An empty list keeps its place in the array until the array is full.
        lists.remove(&mut links, 50, Slot::new(50));
        lists.push_back(&mut links, 51, Slot::new(51));
        assert_eq!((lists.near.len(), lists.first_entry()), (2, Some((51, Slot::new(51)))));
    }
}
