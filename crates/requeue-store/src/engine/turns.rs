//! Computes the turns that the groups of a queue take in the claims of one process.
//!
//! A claim visits groups instead of keys, so that the keys of a group at its limit cost no time. The *ring* of a
//! priority contains the groups that still had keys after their last turn. A claim first visits groups of the ring.
//! Then it visits a few groups that follow the *cursor* in the order of their names. Therefore, the claims find each
//! group with ready keys within one cycle. The cost of a claim does not depend on the number of groups.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::time::Micros;
#[cfg(feature = "redis")]
use super::time::{after, until};
use crate::types::add::Priority;

/// The number of groups of the ring that one claim visits. A claim costs less if it takes more keys from fewer groups,
/// so the number is small.
const VISITED: usize = 8;
/// The number of groups that one claim looks up. The lookup starts at the cursor.
pub(crate) const LOOKED_UP: usize = 16;
/// The interval of lookups, as a number of full claims. Without this interval, no group would be looked up while the
/// ring of the priority is not empty.
const LOOKUP_EVERY: u32 = 8;
/// The number of groups that one step of a search looks up. A search begins after a claim that found no key.
pub(crate) const LOOKED_UP_IF_EMPTY: usize = 1024;
/// The number of search steps after a poll, if an earlier search has visited all groups. Since that search, wakes name
/// each group that has changed, so a poll finds only changes that wakes have missed.
const STEPS_PER_POLL: u32 = 8;
/// After this number of claims with keys, a search is out of date, because a busy process receives no wakes.
const CLAIMS_PER_SEARCH: u32 = 16;
/// The maximum number of named groups for each priority. Wakes name a group, and a claim that visits the group removes
/// it.
const NAMED: usize = 64;

/// A value for each priority, the lowest first.
pub(crate) type Bands<T> = [T; Priority::ALL.len()];

/// Chooses the groups that the next claims of a process visit.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    bands: Bands<Band>,
    /// True if the next claim is a step of a search for groups with ready keys.
    is_searching: bool,
    /// True if wakes name each group that has changed.
    hears_wakes: bool,
    /// The number of search steps since the search began, or since the last poll.
    steps: u32,
    /// The number of further claims with keys after which the last complete search is out of date. It is 0 if the
    /// search is out of date now.
    searched_for: u32,
    /// True if the last claim found as many keys as it wanted.
    was_full: bool,
    /// True if the last claim found a key.
    was_found: bool,
    /// The number of claims since the last claim that looked up groups of all priorities.
    since_lookup: u32,
    /// True if a rate applied to a claim of the present search.
    is_rated: bool,
    /// True if a rate applied to any claim.
    has_rates: bool,
    /// The earliest time of the next claim, among the times that the claims of this search have returned.
    next_at: Option<Micros>,
}

/// A group in the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    pub(crate) group: Arc<str>,
    /// The number of keys that the group has received in its present turn.
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
    /// The groups that are in the ring.
    members: HashSet<Arc<str>>,
    /// The groups that wakes have named. The next claim visits them after the groups of the ring. Therefore, a group
    /// that is named often receives no more turns than others.
    named: Vec<Arc<str>>,
    /// The named groups that the present claim visits.
    visited_named: Vec<Arc<str>>,
    /// The named groups that the last claim visited.
    last_named: Vec<Arc<str>>,
    /// The last group that a claim looked up. It is `None` if the next lookup begins with the first group.
    cursor: Option<Arc<str>>,
    /// False if the present claim looks up no group.
    looks_up: bool,
    search: Option<Search>,
}

/// The progress of a search in one priority.
#[derive(Debug)]
struct Search {
    /// The cursor when the search began.
    start: Option<Arc<str>>,
    /// True if the cursor has passed the last group of the queue.
    has_wrapped: bool,
    is_over: bool,
}

impl Band {
    fn next_round(&mut self, more: usize) -> Round {
        let mut first: Vec<Turn> = (0..VISITED).map_while(|_| self.leave_ring()).collect();
        let named = std::mem::take(&mut self.named).into_iter();
        self.visited_named = named
            .filter(|group| {
                !self.members.contains(group) && !first.iter().any(|turn| turn.group == *group)
            })
            .collect();
        first.extend(self.visited_named.iter().cloned().map(Turn::from));
        self.looks_up = more > 0;
        Round { first, after: self.cursor.clone(), more }
    }

    fn leave_ring(&mut self) -> Option<Turn> {
        let turn = self.ring.pop_front()?;
        self.members.remove(&turn.group);
        Some(turn)
    }

    /// Names groups again, because a claim has visited them without finding a key. Returns false if not all of them
    /// fit.
    fn name_again(&mut self, groups: Vec<Arc<str>>) -> bool {
        let again: Vec<_> =
            groups.into_iter().filter(|group| !self.named.contains(group)).collect();
        let room = NAMED.saturating_sub(self.named.len());
        let fits = again.len() <= room;
        self.named.extend(again.into_iter().take(room));
        fits
    }

    fn note_visited(&mut self, visited: Visited) {
        let named = std::mem::take(&mut self.visited_named);
        // The claim did not reach these named groups. They must not come before the groups of the ring.
        let is_late = |turn: &Turn| turn.used == 0 && named.contains(&turn.group);
        let (late, next): (Vec<_>, Vec<_>) = visited.next.into_iter().partition(is_late);
        for turn in next.into_iter().rev() {
            if self.members.insert(Arc::clone(&turn.group)) {
                self.ring.push_front(turn);
            }
        }
        for group in late.into_iter().map(|turn| turn.group).chain(visited.last) {
            // A group that the claim looked up may already be in the ring.
            if self.members.insert(Arc::clone(&group)) {
                self.ring.push_back(group.into());
            }
        }
        self.last_named = named;
        if self.looks_up {
            self.note_lookup(visited.cursor, visited.is_complete);
        }
    }

    fn note_lookup(&mut self, cursor: Option<Arc<str>>, is_complete: bool) {
        if let Some(search) = &mut self.search {
            search.has_wrapped |= cursor <= self.cursor && self.cursor.is_some();
            search.is_over |= is_complete || search.has_wrapped && cursor >= search.start;
        }
        self.cursor = cursor;
    }

    fn begin_search(&mut self) {
        let start = self.cursor.clone();
        self.search.get_or_insert(Search { start, has_wrapped: false, is_over: false });
    }
}

/// The groups that a claim visits for one priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    /// The groups that the claim visits first, in this order.
    pub(crate) first: Vec<Turn>,
    /// The group after which the lookup of further groups begins. It is `None` if the lookup begins with the first
    /// group.
    pub(crate) after: Option<Arc<str>>,
    /// The number of further groups that the claim looks up.
    pub(crate) more: usize,
}

/// The result of the visits of a claim for one priority.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Visited {
    /// The groups whose turns come next. They are a group whose turn the claim interrupted, and the groups of
    /// `Round::first` that the claim did not reach.
    pub(crate) next: Vec<Turn>,
    /// The groups that may have more keys after their turns, and other groups that the claim found.
    pub(crate) last: Vec<Arc<str>>,
    /// The last group that the claim looked up, or `None` after the last group of the queue.
    pub(crate) cursor: Option<Arc<str>>,
    /// True if the claim looked up all groups with ready keys.
    pub(crate) is_complete: bool,
}

impl Turns {
    /// Records that wakes name each group that changes from now on.
    pub(crate) fn hear_wakes(&mut self) {
        self.hears_wakes = true;
    }

    /// Makes the next claim visit a group, because the group may be able to deliver a key of this priority.
    pub(crate) fn name_group(&mut self, priority: Priority, group: &str) {
        let band = Priority::ALL.iter().zip(&mut self.bands).find(|(band, _)| **band == priority);
        let Some((_, Band { named, .. })) = band else { return };
        if self.was_full || named.len() >= NAMED {
            // A busy process has enough groups to visit, so it need not search now.
            self.forget_search();
        } else if !named.iter().any(|name| **name == *group) {
            named.push(group.into());
        }
    }

    /// Names groups as [`name_group`](Self::name_group) does, for each priority.
    #[cfg(feature = "sqlite")]
    pub(crate) fn name_groups<'a>(&mut self, groups: impl IntoIterator<Item = &'a Arc<str>>) {
        for group in groups {
            Priority::ALL.into_iter().for_each(|priority| self.name_group(priority, group));
        }
    }

    /// Returns true if wakes have named groups that no claim has visited yet.
    #[cfg(feature = "postgres")]
    pub(crate) fn has_named(&self) -> bool {
        self.bands.iter().any(|band| !band.named.is_empty())
    }

    /// Makes the next claim visit the named groups of the last claim again, because the last claim found no key.
    #[cfg(feature = "postgres")]
    pub(crate) fn name_groups_again(&mut self) {
        let mut fits = true;
        for band in &mut self.bands {
            let again = std::mem::take(&mut band.last_named);
            fits &= band.name_again(again);
        }
        if !fits {
            self.forget_search();
        }
    }

    /// Makes the next claim that finds no key begin a search of all groups, because any group may have changed.
    pub(crate) fn forget_search(&mut self) {
        self.searched_for = 0;
    }

    /// Records that a rate applies to a claim. No wake names a group when its rate permits the next start, so only a
    /// search finds the group.
    pub(crate) fn note_rate(&mut self) {
        self.is_rated = true;
        self.has_rates = true;
        self.forget_search();
    }

    /// Returns true if a rate applied to an earlier claim. A claim does not detect the rate of a group that it does not
    /// visit.
    #[cfg(feature = "redis")]
    pub(crate) fn has_rates(&self) -> bool {
        self.has_rates
    }

    /// Returns the time until the next claim. The last claim began at the engine's time `at`, found `count` keys, and
    /// returned `next`. Each claim of a search knows only the rates of the groups that it has visited, so the result
    /// combines the times of all claims of the search.
    #[cfg(feature = "redis")]
    pub(crate) fn next_claim(
        &mut self,
        is_searching: bool,
        count: usize,
        at: Micros,
        next: Option<Duration>,
    ) -> Option<Duration> {
        let before = self.next_at.take();
        if count > 0 {
            return next;
        }
        let earliest = before.into_iter().chain(next.map(|next| after(at, next))).min();
        if is_searching {
            self.next_at = earliest;
            return Some(Duration::ZERO);
        }
        earliest.map(|earliest| until(at, earliest))
    }

    /// Returns the groups that the next claim visits. The groups are removed from the ring until the claim is answered.
    /// If the answer is lost, later claims look the groups up again.
    pub(crate) fn next_rounds(&mut self) -> Bands<Round> {
        let skips = self.was_full && !self.is_searching && self.since_lookup + 1 < LOOKUP_EVERY;
        self.since_lookup = if skips { self.since_lookup + 1 } else { 0 };
        let is_named = self.bands.iter().any(|band| !band.named.is_empty());
        let is_searching = self.is_searching && !(is_named && self.searched_for > 0);
        self.bands.each_mut().map(|band| {
            let more = match (is_searching, skips && !band.ring.is_empty()) {
                (true, _) if band.search.as_ref().is_none_or(|search| !search.is_over) => {
                    LOOKED_UP_IF_EMPTY
                }
                (true, _) | (false, false) => LOOKED_UP,
                (false, true) => 0,
            };
            band.next_round(more)
        })
    }

    /// Returns the groups of a claim to their places. The claim has visited no group, because the queue is paused or
    /// its rate permits no start.
    pub(crate) fn return_rounds(&mut self, rounds: Bands<Round>) {
        let mut fits = true;
        for (band, round) in self.bands.iter_mut().zip(rounds) {
            let named = std::mem::take(&mut band.visited_named);
            for turn in round.first.into_iter().rev().filter(|turn| !named.contains(&turn.group)) {
                if band.members.insert(Arc::clone(&turn.group)) {
                    band.ring.push_front(turn);
                }
            }
            fits &= band.name_again(named);
        }
        if !fits {
            self.forget_search();
        }
    }

    /// Records the result of a claim that asked for `wanted` keys and found `count`. Returns true if another claim may
    /// find a key immediately.
    pub(crate) fn note_visited(
        &mut self,
        visited: Bands<Visited>,
        count: usize,
        wanted: usize,
    ) -> bool {
        let was_named = self.bands.iter().any(|band| !band.visited_named.is_empty());
        let is_complete =
            self.bands.iter().zip(&visited).all(|(band, new)| band.looks_up && new.is_complete);
        for (band, visited) in self.bands.iter_mut().zip(visited) {
            band.note_visited(visited);
        }
        self.was_full = count > 0 && count >= wanted;
        let was_found = std::mem::replace(&mut self.was_found, count > 0);
        if count > 0 {
            self.searched_for = self.searched_for.saturating_sub(u32::from(!was_named));
            self.end_search();
            return false;
        }
        let over = |band: &Band| band.search.as_ref().is_some_and(|search| search.is_over);
        if is_complete || self.bands.iter().all(over) {
            let is_rated = std::mem::take(&mut self.is_rated);
            self.searched_for = if self.hears_wakes && !is_rated { CLAIMS_PER_SEARCH } else { 0 };
            self.end_search();
            return false;
        }
        if self.searched_for > 0 && (was_named || was_found) {
            // Since the last search, only the named groups have changed. The next poll continues the search.
            return false;
        }
        if self.is_searching {
            self.steps += 1;
        } else {
            // A new search begins. The lookup of this claim is not enough, because it may have preceded the request for
            // wakes.
            self.is_searching = true;
            self.bands.iter_mut().for_each(Band::begin_search);
        }
        if self.searched_for > 0 && self.steps >= STEPS_PER_POLL {
            self.steps = 0;
            return false;
        }
        true
    }

    fn end_search(&mut self) {
        (self.is_searching, self.steps) = (false, 0);
        self.bands.iter_mut().for_each(|band| band.search = None);
    }
}

/// Returns the number of turns that each visited group needs, so that these groups together fill a claim of `wanted`
/// keys. For each group that may deliver, `groups` has its weight, and the number of keys that it has received in its
/// present turn.
pub(crate) fn turns_each(wanted: usize, groups: impl Iterator<Item = (u32, u32)>) -> usize {
    let add = |(sum, used): (u64, u64), (weight, had): (u32, u32)| {
        (sum + u64::from(weight), used + u64::from(had))
    };
    let (sum, used) = groups.take(VISITED).fold((0, 0), add);
    let wanted = (wanted as u64).saturating_add(used);
    usize::try_from(wanted.div_ceil(sum.max(1))).unwrap_or(usize::MAX).max(1)
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
        turns.note_visited(open(&["b", "a"], None), 7, 9);
        assert_eq!(first(&mut turns), ["b0", "a0"]);
        // The group `a` has no more keys, and the claim found the group `c`.
        turns.note_visited(open(&["b", "c", "b"], None), 7, 9);
        assert_eq!(first(&mut turns), ["b0", "c0"]);
        turns.note_visited(open(&[], None), 7, 9);
        assert_eq!(first(&mut turns), [""; 0]);
    }

    #[test]
    fn a_turn_that_was_cut_short_comes_first() {
        let mut turns = Turns::default();
        let many: Vec<String> = (0..VISITED + 2).map(|n| format!("g{n}-")).collect();
        turns.note_visited(open(&many.iter().map(String::as_str).collect::<Vec<_>>(), None), 7, 9);
        let [_, round, _] = turns.next_rounds();
        let mut next = round.first[1..].to_vec();
        next[0].used = 3;
        let last = names(&["g0-", "new-"]);
        let visited = Visited { next, last, is_complete: true, ..Visited::default() };
        turns.note_visited([Visited::default(), visited, Visited::default()], 4, 9);
        assert_eq!(first(&mut turns)[..2], ["g1-3", "g2-0"]);
        assert_eq!(first(&mut turns), ["g9-0", "g0-0", "new-0"]);
    }

    #[test]
    fn an_empty_claim_is_final_only_after_all_groups() {
        let mut turns = Turns::default();
        assert_eq!(turns.next_rounds()[1].more, LOOKED_UP);
        assert!(turns.note_visited(open(&[], Some("m")), 0, 9), "groups after m may have keys");
        let round = turns.next_rounds()[1].clone();
        assert_eq!((round.after.as_deref(), round.more), (Some("m"), LOOKED_UP_IF_EMPTY));
        assert!(!turns.note_visited(open(&[], None), 0, 9));
        assert_eq!(turns.next_rounds()[1].more, LOOKED_UP);
    }

    #[test]
    fn turns_fill_a_claim() {
        assert_eq!(turns_each(1, [(1, 0), (1, 0)].into_iter()), 1);
        assert_eq!(turns_each(100, [(1, 0), (3, 0)].into_iter()), 25);
        assert_eq!(turns_each(100, [].into_iter()), 100);
        assert_eq!(turns_each(100, std::iter::repeat_n((1, 0), 1000)), 13);
        // A group that continues its turn has fewer keys left in it.
        assert_eq!(turns_each(16, [(1, 2), (1, 0)].into_iter()), 9);
    }

    /// Makes a claim that finds no key, and looks up groups up to `cursor` in each priority.
    fn look_up_to(turns: &mut Turns, cursor: &str) -> bool {
        _ = turns.next_rounds();
        let looked_up = Visited { cursor: Some(cursor.into()), ..Visited::default() };
        turns.note_visited([looked_up.clone(), looked_up.clone(), looked_up], 0, 9)
    }

    #[test]
    fn a_search_ends_after_all_groups_even_if_no_lookup_covers_them() {
        let mut turns = Turns::default();
        let claims = ["d", "m", "z", "c"].map(|cursor| look_up_to(&mut turns, cursor));
        assert_eq!(claims, [true; 4], "the groups up to d have not been searched");
        assert!(!look_up_to(&mut turns, "d"));
        assert_eq!(turns.next_rounds()[1].more, LOOKED_UP);
    }

    #[test]
    fn a_wake_that_names_groups_causes_no_search_and_another_wake_does() {
        let mut turns = Turns::default();
        turns.hear_wakes();
        _ = first(&mut turns);
        assert!(!turns.note_visited(open(&[], None), 0, 9));
        turns.name_group(Priority::Normal, "x");
        turns.name_group(Priority::Normal, "x");
        assert_eq!(first(&mut turns), ["x0"]);
        assert!(!turns.note_visited(open(&[], Some("a")), 0, 9), "only x has changed");
        // After a poll, the search continues for a limited number of steps.
        let mut steps = (100..).map(|n| look_up_to(&mut turns, &format!("b{n}")));
        assert_eq!(steps.position(|may_find| !may_find), Some(STEPS_PER_POLL as usize));
        drop(steps);
        turns.forget_search();
        assert!((200..300).all(|n| look_up_to(&mut turns, &format!("b{n}"))));
    }

    #[test]
    fn a_queue_with_a_rate_is_searched_after_each_empty_claim() {
        let mut turns = Turns::default();
        turns.hear_wakes();
        _ = first(&mut turns);
        turns.note_rate();
        assert!(!turns.note_visited(open(&[], None), 0, 9));
        turns.name_group(Priority::Normal, "x");
        assert_eq!(first(&mut turns), ["x0"]);
        assert!(turns.note_visited(open(&[], Some("a")), 0, 9), "a rate may permit other groups");
    }

    #[test]
    #[cfg(feature = "redis")]
    fn the_end_of_a_search_knows_the_earliest_time_of_its_claims() {
        let mut turns = Turns::default();
        let ms = Duration::from_millis;
        let zero = Some(Duration::ZERO);
        assert_eq!(turns.next_claim(true, 0, 0, Some(ms(9))), zero);
        assert_eq!(turns.next_claim(true, 0, 1000, None), zero);
        assert_eq!(turns.next_claim(false, 0, 2000, Some(ms(20))), Some(ms(7)));
        assert_eq!(turns.next_claim(false, 0, 2000, None), None);
        // After a claim with keys, a new search begins.
        assert_eq!(turns.next_claim(true, 0, 2000, Some(ms(1))), zero);
        assert_eq!(turns.next_claim(false, 1, 2000, Some(ms(20))), Some(ms(20)));
        assert_eq!(turns.next_claim(false, 0, 2000, Some(ms(20))), Some(ms(20)));
    }

    #[test]
    fn a_group_that_is_named_often_gets_no_more_turns_than_others() {
        let mut turns = Turns::default();
        let many: Vec<String> = (0..VISITED + 2).map(|n| format!("g{n}-")).collect();
        turns.note_visited(open(&many.iter().map(String::as_str).collect::<Vec<_>>(), None), 7, 9);
        turns.name_group(Priority::Normal, "x");
        let [_, round, _] = turns.next_rounds();
        assert_eq!(round.first.last().map(|turn| &*turn.group), Some("x"));
        // The claim reaches only the first group.
        let next = round.first[1..].to_vec();
        let visited = Visited { next, is_complete: true, ..Visited::default() };
        turns.note_visited([Visited::default(), visited, Visited::default()], 1, 9);
        assert_eq!(first(&mut turns).last().map(String::as_str), Some("g8-0"));
        assert_eq!(first(&mut turns), ["g9-0", "x0"]);
    }

    /// While the queue is paused, each claim returns its groups, and wakes name further groups.
    #[test]
    fn the_groups_that_wakes_have_named_are_bounded() {
        let mut turns = Turns::default();
        turns.hear_wakes();
        let name = |turns: &mut Turns, groups: std::ops::Range<usize>| {
            groups.for_each(|n| turns.name_group(Priority::Normal, &format!("g{n}")));
        };
        for n in 1..4 {
            _ = turns.next_rounds();
            assert!(!turns.note_visited(open(&[], None), 0, 9));
            name(&mut turns, 0..NAMED);
            let rounds = turns.next_rounds();
            name(&mut turns, n..NAMED);
            turns.return_rounds(rounds);
            assert_eq!(turns.bands[1].named.len(), NAMED);
            assert_eq!(turns.searched_for, CLAIMS_PER_SEARCH, "no name was lost");
            let rounds = turns.next_rounds();
            name(&mut turns, NAMED..2 * NAMED);
            turns.return_rounds(rounds);
            assert_eq!(turns.bands[1].named.len(), NAMED);
            assert_eq!(turns.searched_for, 0, "a search finds the others");
        }
        #[cfg(feature = "postgres")]
        {
            _ = turns.next_rounds();
            assert!(!turns.note_visited(open(&[], None), 0, 9));
            name(&mut turns, 0..NAMED);
            turns.name_groups_again();
            assert_eq!(turns.bands[1].named.len(), NAMED);
            assert_eq!(turns.searched_for, 0, "a search finds the others");
        }
    }

    #[test]
    fn full_claims_look_up_groups_from_time_to_time() {
        let mut turns = Turns::default();
        let mut lookups = Vec::new();
        for _ in 0..2 * LOOKUP_EVERY {
            let rounds = turns.next_rounds();
            lookups.push(rounds[1].more);
            assert_eq!(
                rounds[0].more, LOOKED_UP,
                "a priority without a ring is looked up each time"
            );
            turns.note_visited(open(&["a"], Some("m")), 9, 9);
        }
        let some = lookups.iter().filter(|&&more| more > 0).count();
        assert_eq!((some, lookups[0]), (2, LOOKED_UP));
        // If no group was looked up, the cursor stays where it was.
        assert_eq!(turns.next_rounds()[1].after.as_deref(), Some("m"));
    }
}
