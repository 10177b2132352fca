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

/// A group in the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    pub(crate) group: Arc<str>,
    /// The number of keys that the group has already got in its turn.
    pub(crate) used: u32,
}

impl From<Arc<str>> for Turn {
    fn from(group: Arc<str>) -> Self {
        Self { group, used: 0 }
    }
}

#[derive(Debug, Default)]
struct Band {
    ring: VecDeque<Turn>,
    /// The groups of the ring.
    members: HashSet<Arc<str>>,
    /// The last group that was looked up. `None`: the next lookup begins with the first group.
    cursor: Option<Arc<str>>,
}

impl Band {
    fn leave_ring(&mut self) -> Option<Turn> {
        let turn = self.ring.pop_front()?;
        self.members.remove(&turn.group);
        Some(turn)
    }

    fn note_visited(&mut self, visited: Visited) {
        for turn in visited.next.into_iter().rev() {
            if self.members.insert(Arc::clone(&turn.group)) {
                self.ring.push_front(turn);
            }
        }
        for group in visited.last {
            // A group that was looked up may be in the ring already.
            if self.members.insert(Arc::clone(&group)) {
                self.ring.push_back(group.into());
            }
        }
        self.cursor = visited.cursor;
    }
}

/// The groups that a claim visits for one priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    /// These are visited first, in this order.
    pub(crate) first: Vec<Turn>,
    /// The claim looks up further groups after this one, or from the first one on.
    pub(crate) after: Option<Arc<str>>,
    /// The number of further groups.
    pub(crate) more: usize,
}

/// The result of the visits for one priority.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Visited {
    /// The groups whose turns come next: one whose turn was cut short, and those of `Round::first` that were not
    /// reached.
    pub(crate) next: Vec<Turn>,
    /// The groups that may have more keys after their turns, and other groups that were found.
    pub(crate) last: Vec<Arc<str>>,
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
            band.note_visited(visited);
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
        let cursor = cursor.map(Arc::from);
        let normal = Visited { last: names(groups), cursor, is_complete, ..Visited::default() };
        let none = Visited { is_complete: true, ..Visited::default() };
        [none.clone(), normal, none]
    }

    fn first(turns: &mut Turns) -> Vec<String> {
        let [_, normal, _] = turns.next_rounds();
        normal.first.iter().map(|turn| format!("{}{}", turn.group, turn.used)).collect()
    }

    #[test]
    fn groups_with_more_keys_take_turns() {
        let mut turns = Turns::default();
        assert_eq!(first(&mut turns), [""; 0]);
        turns.note_visited(open(&["b", "a"], None), 7);
        assert_eq!(first(&mut turns), ["b0", "a0"]);
        // The group `a` has no more keys, and `c` was found.
        turns.note_visited(open(&["b", "c", "b"], None), 7);
        assert_eq!(first(&mut turns), ["b0", "c0"]);
        turns.note_visited(open(&[], None), 7);
        assert_eq!(first(&mut turns), [""; 0]);
    }

    #[test]
    fn a_turn_that_was_cut_short_comes_first() {
        let mut turns = Turns::default();
        let many: Vec<String> = (0..VISITED + 2).map(|n| format!("g{n}-")).collect();
        turns.note_visited(open(&many.iter().map(String::as_str).collect::<Vec<_>>(), None), 7);
        let [_, round, _] = turns.next_rounds();
        let mut next = round.first[1..].to_vec();
        next[0].used = 3;
        let last = names(&["g0-", "new-"]);
        let visited = Visited { next, last, is_complete: true, ..Visited::default() };
        turns.note_visited([Visited::default(), visited, Visited::default()], 4);
        assert_eq!(first(&mut turns)[..2], ["g1-3", "g2-0"]);
        assert_eq!(first(&mut turns), ["g9-0", "g0-0", "new-0"]);
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
