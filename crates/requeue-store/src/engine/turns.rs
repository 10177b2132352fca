//! The turns that the groups of a queue take in the claims of one process.
//!
//! The claims of a process visit groups, not keys, so that the keys of a group at its limit cost nothing. A claim
//! first visits the groups that had more keys than their last turn took: the *ring* of a priority. It then visits a
//! few groups that follow the *cursor* in the order of their names. So it finds each group with ready keys within
//! one cycle, at a cost that does not depend on the number of groups.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::types::add::Priority;

/// The number of groups of the ring that a claim visits. Fewer visits with more keys each cost less.
const VISITED: usize = 8;
/// The number of groups that a claim looks up from the cursor on.
const LOOKED_UP: usize = 16;
/// The same, after a claim that has found no key and has not looked up all groups.
const LOOKED_UP_IF_EMPTY: usize = 1024;

/// A value for each priority, the lowest first.
pub(crate) type Bands<T> = [T; Priority::ALL.len()];

/// The groups that the next claims of a process visit.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    bands: Bands<Band>,
    /// True if the last claim has found no key, and has not looked up all groups.
    is_searching: bool,
}

#[derive(Debug, Default)]
struct Band {
    ring: VecDeque<Arc<str>>,
    /// The groups of the ring.
    members: HashSet<Arc<str>>,
    /// The last group that was looked up. `None`: the next lookup begins with the first group.
    cursor: Option<Arc<str>>,
}

impl Band {
    fn join_ring(&mut self, group: Arc<str>) {
        // A group that was looked up may be in the ring already.
        if self.members.insert(Arc::clone(&group)) {
            self.ring.push_back(group);
        }
    }

    fn leave_ring(&mut self) -> Option<Arc<str>> {
        let group = self.ring.pop_front()?;
        self.members.remove(&group);
        Some(group)
    }
}

/// The groups that a claim visits for one priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    /// These are visited first, in this order.
    pub(crate) first: Vec<Arc<str>>,
    /// The claim looks up further groups after this one, or from the first one on.
    pub(crate) after: Option<Arc<str>>,
    /// The number of further groups.
    pub(crate) more: usize,
}

/// The result of the visits for one priority.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Visited {
    /// The groups that may have more keys, in the order of their next turns.
    pub(crate) open: Vec<Arc<str>>,
    /// The last group that was looked up. `None` after the last group of the queue.
    pub(crate) cursor: Option<Arc<str>>,
    /// True if all groups with ready keys were looked up.
    pub(crate) is_complete: bool,
}

impl Turns {
    /// Returns the groups that the next claim visits. They leave the ring until the claim has answered. If it does
    /// not answer, later claims look them up again.
    pub(crate) fn next_rounds(&mut self) -> Bands<Round> {
        let more = if self.is_searching { LOOKED_UP_IF_EMPTY } else { LOOKED_UP };
        self.bands.each_mut().map(|band| {
            let first = (0..VISITED).map_while(|_| band.leave_ring()).collect();
            Round { first, after: band.cursor.clone(), more }
        })
    }

    /// Records the result of a claim that has found `count` keys. Returns true if another claim may find a key
    /// immediately.
    pub(crate) fn note_visited(&mut self, visited: Bands<Visited>, count: usize) -> bool {
        let is_complete = visited.iter().all(|band| band.is_complete);
        for (band, visited) in self.bands.iter_mut().zip(visited) {
            visited.open.into_iter().for_each(|group| band.join_ring(group));
            band.cursor = visited.cursor;
        }
        self.is_searching = count == 0 && !is_complete;
        self.is_searching
    }
}

/// Returns the number of turns that each visited group gets, so that they fill a claim of `wanted` keys. `weights` has
/// those of the groups that may deliver.
pub(crate) fn turns_each(wanted: usize, weights: impl Iterator<Item = u32>) -> usize {
    let sum: u64 = weights.take(VISITED).map(u64::from).sum();
    usize::try_from((wanted as u64).div_ceil(sum.max(1))).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|&name| name.into()).collect()
    }

    fn open(groups: &[&str], cursor: Option<&str>) -> Bands<Visited> {
        let is_complete = cursor.is_none();
        let normal = Visited { open: names(groups), cursor: cursor.map(Arc::from), is_complete };
        let none = Visited { is_complete: true, ..Visited::default() };
        [none.clone(), normal, none]
    }

    #[test]
    fn groups_with_more_keys_take_turns() {
        let mut turns = Turns::default();
        assert_eq!(turns.next_rounds()[1].first, []);
        turns.note_visited(open(&["b", "a"], None), 7);
        assert_eq!(turns.next_rounds()[1].first, names(&["b", "a"]));
        // The group `a` has no more keys, and `c` was found.
        turns.note_visited(open(&["b", "c", "b"], None), 7);
        assert_eq!(turns.next_rounds()[1].first, names(&["b", "c"]));
        turns.note_visited(open(&[], None), 7);
        assert_eq!(turns.next_rounds()[1].first, []);
    }

    #[test]
    fn an_empty_claim_is_final_only_after_all_groups() {
        let mut turns = Turns::default();
        assert_eq!(turns.next_rounds()[1].more, LOOKED_UP);
        assert!(turns.note_visited(open(&[], Some("m")), 0), "groups after m may have keys");
        let round = turns.next_rounds()[1].clone();
        assert_eq!((round.after.as_deref(), round.more), (Some("m"), LOOKED_UP_IF_EMPTY));
        assert!(!turns.note_visited(open(&[], None), 0));
        assert_eq!(turns.next_rounds()[1].more, LOOKED_UP);
    }

    #[test]
    fn turns_fill_a_claim() {
        assert_eq!(turns_each(1, [1, 1].into_iter()), 1);
        assert_eq!(turns_each(100, [1, 3].into_iter()), 25);
        assert_eq!(turns_each(100, [].into_iter()), 100);
        assert_eq!(turns_each(100, std::iter::repeat_n(1, 1000)), 13);
    }
}
