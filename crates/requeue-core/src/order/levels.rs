//! A list for each priority.
//!
//! There are few priorities mostly, and a key that comes and goes is often the only one at its own.
//! So the first of them have a place that they keep while they are empty, in a sorted array, with a
//! bit each to find the highest one that is not. A queue that has ever so many keeps the others in a
//! tree.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

use crate::list::{Links, List};

/// How many priorities have a place.
const NEAR: usize = u32::BITS as usize;

pub(super) struct Levels {
    /// By priority.
    near: Vec<(i32, List)>,
    /// Which of them have anything, a bit each.
    occupied: u32,
    /// Those that found no place. None of them is empty, and there are none while there is a place.
    far: BTreeMap<i32, List>,
}

impl Levels {
    pub(super) const fn new() -> Self {
        Self { near: Vec::new(), occupied: 0, far: BTreeMap::new() }
    }

    /// The first of the highest priority, and that priority.
    #[inline]
    pub(super) fn first(&self) -> Option<(i32, u32)> {
        let near = self.occupied.checked_ilog2().map(|at| self.near[at as usize]);
        let far = self.far.last_key_value().map(|(&level, &list)| (level, list));
        let (level, list) = match (near, far) {
            (Some(near), Some(far)) => {
                if near.0 > far.0 {
                    near
                } else {
                    far
                }
            }
            (near, far) => near.or(far)?,
        };
        Some((level, list.head()?))
    }

    /// Takes in `slot` at the end of `level`.
    #[inline]
    pub(super) fn push_back(&mut self, links: &mut impl Links, level: i32, slot: u32) {
        let at = match self.find(level) {
            Ok(at) => at,
            Err(at) => match self.make_place(level, at) {
                Some(at) => at,
                None => {
                    return self.far.entry(level).or_insert(List::new()).push_back(links, slot);
                }
            },
        };
        self.near[at].1.push_back(links, slot);
        self.occupied |= 1 << at;
    }

    /// Takes `slot` out of `level`.
    #[inline]
    pub(super) fn remove(&mut self, links: &mut impl Links, level: i32, slot: u32) {
        if let Ok(at) = self.find(level) {
            let list = &mut self.near[at].1;
            list.remove(links, slot);
            if list.is_empty() {
                self.occupied &= !(1 << at);
            }
        } else if let Entry::Occupied(mut list) = self.far.entry(level) {
            list.get_mut().remove(links, slot);
            if list.get().is_empty() {
                list.remove();
            }
        }
    }

    /// The list of `level`, in which there is something.
    pub(super) fn list_mut(&mut self, level: i32) -> Option<&mut List> {
        match self.find(level) {
            Ok(at) => Some(&mut self.near[at].1),
            Err(_) => self.far.get_mut(&level),
        }
    }

    /// Where `level` is among those that have a place, or where that would be.
    fn find(&self, level: i32) -> Result<usize, usize> {
        self.near.binary_search_by_key(&level, |&(level, _)| level)
    }

    /// Gives `level`, which has none, a place at `at`, if there is room. When nobody needs the places
    /// any more, others get them.
    #[cold]
    fn make_place(&mut self, level: i32, at: usize) -> Option<usize> {
        if self.near.len() == NEAR {
            if self.occupied > 0 || !self.far.is_empty() {
                return None;
            }
            self.near.clear();
        }
        let at = at.min(self.near.len());
        self.near.insert(at, (level, List::new()));
        let below = (1 << at) - 1;
        self.occupied = self.occupied & below | (self.occupied & !below) << 1;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::NONE;
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    struct Beside(Vec<[u32; 2]>);

    impl Links for Beside {
        fn links(&mut self, slot: u32) -> &mut [u32; 2] {
            &mut self.0[slot as usize]
        }
    }

    fn beside(slots: usize) -> Beside {
        Beside(alloc::vec![[NONE; 2]; slots])
    }

    proptest! {
        /// Against a map of queues, with more levels than have a place and with fewer.
        #[test]
        fn hold_what_a_map_holds(
            distinct in 1i32..100,
            ops in proptest::collection::vec((0u8..6, any::<i32>(), any::<usize>()), 1..400),
        ) {
            let mut levels = Levels::new();
            let mut links = beside(ops.len());
            let mut model: BTreeMap<i32, VecDeque<u32>> = BTreeMap::new();
            for (slot, (op, level, pick)) in (0..).zip(ops) {
                // Up to the ends of what there is.
                let level = (level % distinct) * (i32::MAX / 100);
                let some = model.iter().nth(pick % model.len().max(1)).map(|(&level, _)| level);
                let highest = model.last_key_value().map(|(&level, _)| level);
                match (op, some, highest) {
                    // From the middle of one of them.
                    (3, Some(level), _) => {
                        let slots = model.get_mut(&level).unwrap();
                        let slot = slots.remove(pick % slots.len()).unwrap();
                        levels.remove(&mut links, level, slot);
                    }
                    (4, _, Some(level)) => {
                        let slot = model.get_mut(&level).unwrap().pop_front().unwrap();
                        levels.remove(&mut links, level, slot);
                    }
                    // All of it, so that places are free.
                    (5, ..) if pick % 16 == 0 => {
                        for (level, slots) in core::mem::take(&mut model) {
                            slots.iter().for_each(|&slot| levels.remove(&mut links, level, slot));
                        }
                    }
                    _ => {
                        levels.push_back(&mut links, level, slot);
                        model.entry(level).or_default().push_back(slot);
                    }
                }
                model.retain(|_, slots| !slots.is_empty());
                let first = model.last_key_value().map(|(&level, slots)| (level, slots[0]));
                prop_assert_eq!(levels.first(), first);
                for (&level, slots) in &model {
                    let list = levels.list_mut(level).map(|list| (list.head(), list.tail()));
                    let ends = (slots.front().copied(), *slots.back().unwrap());
                    prop_assert_eq!(list, Some(ends));
                }
                prop_assert!(levels.near.len() <= NEAR && levels.near.is_sorted_by_key(|near| near.0));
            }
        }
    }

    #[test]
    fn the_first_levels_have_a_place_until_all_are_empty() {
        let mut levels = Levels::new();
        let mut links = beside(100);
        for n in 0..100 {
            levels.push_back(&mut links, n as i32, n);
        }
        assert_eq!((levels.near.len(), levels.far.len()), (NEAR, 100 - NEAR));
        // The highest ones are those without a place.
        for n in (0..100).rev() {
            assert_eq!(levels.first(), Some((n as i32, n)));
            levels.remove(&mut links, n as i32, n);
        }
        assert_eq!((levels.first(), levels.far.len()), (None, 0));
        levels.push_back(&mut links, 50, 50);
        assert_eq!((levels.near.len(), levels.far.len()), (1, 0));
        // Those that are empty keep theirs while nobody else needs it.
        levels.remove(&mut links, 50, 50);
        levels.push_back(&mut links, 51, 51);
        assert_eq!((levels.near.len(), levels.first()), (2, Some((51, 51))));
    }
}
