//! The order of queues whose keys have groups. It has fair turns within a priority, aging, and a
//! limit of keys in flight per group.
//!
//! A *lane* contains the ready keys of one group at one priority, first in, first out. The eligible
//! lanes of a priority take turns (fair), or are sorted by the age of their first keys. For aging,
//! each group also has a list of all its ready keys by age. An order that depends only on age has
//! no lanes.
//!
//! When a group reaches its limit, the order removes it from all lists of eligible groups. A
//! delivery therefore never examines a throttled key. A paused group is a group with the limit 0.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use super::GroupId;
use super::aging::Aging;
use super::eligible::{EligibleLanes, Groups};
use super::group_state::{Age, GroupCounts, GroupIndex, GroupState, LaneId, Standing};
use crate::memory::{Chunked, Links, Slab};
use crate::types::{Id, Slot};

#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// True if the order depends on priorities.
    pub(crate) by_priority: bool,
    /// At least one of this number of consecutive deliveries takes the oldest eligible key. It is
    /// at least 1.
    pub(crate) oldest_every: u32,
    /// True if the lanes of a priority take turns.
    pub(crate) fair: bool,
    /// The maximum number of keys of a group in flight. It is at least 1.
    pub(crate) limit: u32,
}

impl Policy {
    /// Returns true if the order depends on more than the age of the keys.
    const fn has_lanes(&self) -> bool {
        self.oldest_every > 1
    }

    /// Returns the priority of the lane in which a key with `priority` is.
    const fn lane_priority(&self, priority: i32) -> i32 {
        if self.by_priority && self.has_lanes() { priority } else { 0 }
    }
}

/// The data that the order stores for each slot.
#[derive(Clone)]
struct Place {
    group: GroupIndex,
    /// The priority of the key's lane, valid while the key is ready.
    priority: i32,
    in_lane: [Option<Slot>; 2],
    by_age: [Option<Slot>; 2],
    /// The tick at which the key entered its lane.
    entered: u64,
    /// The tick at which the key became ready, or 0 while it is not ready.
    ready: u64,
}

impl Place {
    const fn lane(&self) -> LaneId {
        LaneId { group: self.group, priority: self.priority }
    }
}

pub(crate) struct Fair {
    policy: Policy,
    places: Chunked<Place>,
    /// The groups, in slots that never change. Each group is in a box, so that a vacant slot takes
    /// little memory.
    groups: Groups,
    /// The slots of the groups, by the public number of the group. The map is a tree, because a
    /// hash table grows and shrinks in one long step.
    by_id: BTreeMap<u64, GroupIndex>,
    eligible_lanes: EligibleLanes,
    /// For each [`Standing`], the groups that have ready keys and this standing. They are sorted by
    /// the tick at which their oldest ready key became ready.
    by_age: [BTreeMap<u64, GroupIndex>; 3],
    /// The number of ready keys in paused groups.
    paused_ready: usize,
    /// The number of dirty keys in paused groups.
    paused_dirty: usize,
    /// The last tick. Each change of the order gets the next tick, so a lower tick means an earlier
    /// change.
    ticks: u64,
    /// The number of ready keys in eligible groups.
    eligible: usize,
    aging: Aging,
}

struct InLane<'a>(&'a mut Chunked<Place>);
struct ByAge<'a>(&'a mut Chunked<Place>);

impl Links for InLane<'_> {
    fn links_of(&mut self, slot: Slot) -> &mut [Option<Slot>; 2] {
        &mut self.0.get_mut(slot.index()).in_lane
    }
}

impl Links for ByAge<'_> {
    fn links_of(&mut self, slot: Slot) -> &mut [Option<Slot>; 2] {
        &mut self.0.get_mut(slot.index()).by_age
    }
}

impl Fair {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            places: Chunked::new(),
            groups: Slab::new(false),
            by_id: BTreeMap::new(),
            eligible_lanes: EligibleLanes::new(policy.fair),
            by_age: [const { BTreeMap::new() }; 3],
            paused_ready: 0,
            paused_dirty: 0,
            ticks: 0,
            eligible: 0,
            aging: Aging::new(policy.oldest_every),
        }
    }

    fn place(&self, slot: Slot) -> &Place {
        self.places.get(slot.index())
    }

    fn place_mut(&mut self, slot: Slot) -> &mut Place {
        self.places.get_mut(slot.index())
    }

    /// Returns true if groups have a limit of keys in flight.
    pub(crate) const fn has_limit(&self) -> bool {
        self.policy.limit < u32::MAX
    }

    /// Returns the oldest ready key among the groups that have reached their limit.
    pub(crate) fn oldest_held(&self) -> Option<Slot> {
        self.oldest_with(Standing::Held)
    }

    /// Returns the number of ready keys in eligible groups, which may be delivered now.
    pub(crate) const fn eligible(&self) -> usize {
        self.eligible
    }

    /// Assigns the new record in `slot` to `group`.
    pub(crate) fn enroll_record(&mut self, slot: Slot, group: GroupId) {
        let id = self.group_id(group);
        self.groups.get_mut(id).records += 1;
        let place = Place {
            group: id,
            priority: 0,
            in_lane: [None; 2],
            by_age: [None; 2],
            entered: 0,
            ready: 0,
        };
        self.places.extend_to(slot.index() + 1, &place);
        *self.place_mut(slot) = place;
    }

    /// Removes the record in `slot` from its group. The key must be neither ready nor in flight.
    pub(crate) fn leave_group(&mut self, slot: Slot) {
        let id = self.place(slot).group;
        self.groups.get_mut(id).records -= 1;
        self.remove_if_unused(id);
    }

    #[inline]
    fn remove_if_unused(&mut self, id: GroupIndex) {
        let state = self.groups.get(id);
        if state.is_unused() {
            self.by_id.remove(&state.group.id);
            self.groups.remove(id);
        }
    }

    /// Replaces slot `from` with slot `to`, after the slab has moved the record.
    pub(crate) fn move_slot(&mut self, from: Slot, to: Slot) {
        let place = self.place(from).clone();
        let (LaneId { group, priority }, ready) = (place.lane(), place.ready);
        *self.place_mut(to) = place;
        if ready > 0 {
            let state = self.groups.get_mut(group);
            if self.policy.has_lanes() {
                state.lane_mut(priority).keys.move_slot(&mut InLane(&mut self.places), from, to);
            }
            state.by_age.move_slot(&mut ByAge(&mut self.places), from, to);
            if let Some(slot) = state.skipped.get_mut(&ready) {
                *slot = to;
            }
        }
    }

    /// Frees the memory for slots from index `end` on. These slots must have no records.
    pub(crate) fn truncate_slots(&mut self, end: usize) {
        self.places.truncate(end);
    }

    /// Appends the key in `slot`, which has just become ready.
    pub(crate) fn push(&mut self, slot: Slot, priority: i32) {
        let tick = self.next_tick();
        let place = self.place_mut(slot);
        (place.entered, place.ready) = (tick, tick);
        let group = place.group;
        let state = self.groups.get_mut(group);
        state.counts.ready += 1;
        state.by_age.push_back(&mut ByAge(&mut self.places), slot);
        // A throttled key is ready, but no getter can take it, so `eligible` does not include it.
        if state.is_eligible() {
            self.eligible += 1;
        } else if state.is_paused() {
            self.paused_ready += 1;
        }
        self.enter_lane(slot, self.policy.lane_priority(priority));
        self.update_group(group);
    }

    /// Moves a ready key, whose priority has just been raised, to the end of its new lane. Its age
    /// does not change.
    pub(crate) fn lift_ready(&mut self, slot: Slot, priority: i32) {
        let priority = self.policy.lane_priority(priority);
        if self.place(slot).priority == priority {
            return;
        }
        // The new tick puts the key behind the other keys of its new priority. The key keeps its
        // age, which is in `ready`.
        self.leave_lane(slot);
        self.place_mut(slot).entered = self.next_tick();
        self.enter_lane(slot, priority);
    }

    /// Removes a ready key that will not be delivered.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let state = self.group_state(slot);
        if state.is_eligible() {
            self.eligible -= 1;
        } else if state.is_paused() {
            self.paused_ready -= 1;
        }
        let group = self.take_out(slot);
        self.update_group(group);
    }

    /// Removes a ready key from the lists of its group. The caller must then call `update_group`.
    fn take_out(&mut self, slot: Slot) -> GroupIndex {
        self.leave_lane(slot);
        let place = self.place_mut(slot);
        // The value 0 marks the key as not ready. If the slab then moves the record, `move_slot`
        // does not change the lists.
        let (group, ready) = (place.group, core::mem::take(&mut place.ready));
        let state = self.groups.get_mut(group);
        state.counts.ready -= 1;
        state.by_age.remove(&mut ByAge(&mut self.places), slot);
        state.skipped.remove(&ready);
        group
    }

    /// Returns the key that the next delivery takes.
    pub(crate) fn next_ready(&self) -> Option<Slot> {
        // Aging takes precedence over priorities and turns. Otherwise, a key with a low priority
        // could wait forever.
        if self.aging.is_due() {
            return self.oldest_eligible();
        }
        let LaneId { group, priority } = self.eligible_lanes.first_lane()?;
        self.groups.get(group).lane(priority).keys.head()
    }

    /// Returns the eligible key that has been ready for the longest time.
    pub(crate) fn oldest_eligible(&self) -> Option<Slot> {
        self.oldest_with(Standing::Eligible)
    }

    /// Returns any ready key, of an eligible group if possible.
    pub(crate) fn any_ready(&self) -> Option<Slot> {
        self.oldest_eligible().or_else(|| self.oldest_held()).or_else(|| self.any_paused())
    }

    /// Returns a ready key of a paused group.
    pub(crate) fn any_paused(&self) -> Option<Slot> {
        self.oldest_with(Standing::Paused)
    }

    fn oldest_with(&self, standing: Standing) -> Option<Slot> {
        let (_, &group) = self.by_age[standing as usize].first_key_value()?;
        self.groups.get(group).by_age.head()
    }

    fn group_state(&self, slot: Slot) -> &GroupState {
        self.groups.get(self.place(slot).group)
    }

    fn state_mut(&mut self, slot: Slot) -> &mut GroupState {
        let group = self.place(slot).group;
        self.groups.get_mut(group)
    }

    /// Returns true if the group of the key in `slot` is below its limit and is not paused.
    pub(crate) fn is_eligible(&self, slot: Slot) -> bool {
        self.group_state(slot).is_eligible()
    }

    /// Removes a ready key, because it is being delivered.
    pub(crate) fn start_delivery(&mut self, slot: Slot) {
        // `is_due` is read before `count_delivery` changes it. A delivery because of aging uses no
        // turn.
        let is_out_of_turn = self.aging.is_due();
        self.aging.count_delivery(self.oldest_eligible() == Some(slot));
        if self.policy.fair && !is_out_of_turn {
            self.use_turn(slot);
        }
        self.eligible -= 1;
        let group = self.place(slot).group;
        self.groups.get_mut(group).counts.in_flight += 1;
        // `in_flight` is incremented before `take_out`, because the position of the lane depends on
        // the number of keys in flight.
        self.take_out(slot);
        let state = self.groups.get(group);
        // The group has reached its limit. Its ready keys leave the lists of eligible keys here, so
        // that no later delivery examines them.
        if state.counts.in_flight == state.limit {
            self.eligible -= state.counts.ready as usize;
            self.update_lanes(group);
        }
        self.update_group(group);
    }

    /// Counts a delivery of the key in `slot` toward the turn of its lane. If it is the last
    /// delivery of the turn, the lane goes to the end.
    fn use_turn(&mut self, slot: Slot) {
        let id = self.place(slot).lane();
        let state = self.groups.get_mut(id.group);
        let weight = state.group.weight;
        let lane = state.lane_mut(id.priority);
        lane.credit = lane.credit.saturating_sub(1);
        if lane.credit == 0 {
            lane.credit = weight;
            self.eligible_lanes.end_turn(&mut self.groups, id);
        }
    }

    /// Counts that the delivery of the key in `slot` was completed.
    pub(crate) fn end_delivery(&mut self, slot: Slot) {
        let group = self.place(slot).group;
        let state = self.groups.get_mut(group);
        // The limit of a paused group is 0, so the completion of a run makes no key of this group
        // eligible.
        let was_full = state.counts.in_flight == state.limit;
        state.counts.in_flight -= 1;
        if was_full {
            self.eligible += state.counts.ready as usize;
            self.update_lanes(group);
            self.update_group(group);
        }
    }

    /// Stores that the custom order has returned the key in `slot`, which is ready but throttled.
    pub(crate) fn skip_key(&mut self, slot: Slot) {
        let place = self.places.get(slot.index());
        self.groups.get_mut(place.group).skipped.insert(place.ready, slot);
    }

    /// Returns the oldest skipped key in the group of the key in `slot`.
    pub(crate) fn oldest_skipped(&self, slot: Slot) -> Option<Slot> {
        self.group_state(slot).skipped.first_key_value().map(|(_, &slot)| slot)
    }

    /// Removes the key in `slot` from the skipped keys. The caller pushes the key to the custom
    /// order again.
    pub(crate) fn unskip_key(&mut self, slot: Slot) {
        let place = self.places.get(slot.index());
        self.groups.get_mut(place.group).skipped.remove(&place.ready);
    }

    fn next_tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn group_id(&mut self, group: GroupId) -> GroupIndex {
        if let Some(&id) = self.by_id.get(&group.id) {
            // If adds of a group give different weights, the weight of the last add is used.
            self.groups.get_mut(id).group = group;
            return id;
        }
        let id = self.groups.insert(Box::new(GroupState::new(group, self.policy.limit)));
        self.by_id.insert(group.id, id);
        id
    }

    /// Appends the key in `slot` to the lane of its group at `priority`.
    fn enter_lane(&mut self, slot: Slot, priority: i32) {
        if !self.policy.has_lanes() {
            return;
        }
        let place = self.place_mut(slot);
        place.priority = priority;
        let id = place.lane();
        let lane = self.groups.get_mut(id.group).open_lane(priority);
        lane.keys.push_back(&mut InLane(&mut self.places), slot);
        // If the lane is already eligible, its position does not change, because its first key is
        // the same.
        if lane.eligible_since.is_none() {
            self.update_lane(id);
        }
    }

    /// Removes the key in `slot` from its lane, and closes the lane if it contains no other key.
    fn leave_lane(&mut self, slot: Slot) {
        if !self.policy.has_lanes() {
            return;
        }
        let id = self.place(slot).lane();
        let lane = self.groups.get_mut(id.group).lane_mut(id.priority);
        let was_first = lane.keys.head() == Some(slot);
        lane.keys.remove(&mut InLane(&mut self.places), slot);
        let is_empty = lane.keys.is_empty();
        // In a fair order, the position of a lane does not depend on its first key.
        if is_empty || (was_first && !self.policy.fair) {
            self.update_lane(id);
        }
        if is_empty {
            self.groups.get_mut(id.group).close_lane(id.priority);
        }
    }

    /// Updates the position of a lane among the eligible lanes. In a fair order, the lane keeps its
    /// position or goes to the end.
    fn update_lane(&mut self, id: LaneId) {
        let state = self.groups.get_mut(id.group);
        let (is_eligible, weight) = (state.is_eligible(), state.group.weight);
        let lane = state.lane_mut(id.priority);
        let first = lane.keys.head().filter(|_| is_eligible);
        let since = first.map(|slot| self.places.get(slot.index()).entered);
        let was = core::mem::replace(&mut lane.eligible_since, since);
        if since.is_none() {
            // A lane that becomes eligible again gets a full turn.
            lane.credit = weight;
        }
        self.eligible_lanes.update(&mut self.groups, id, was, since);
    }

    /// Updates all lanes of a group that has become eligible, or has ceased to be eligible.
    fn update_lanes(&mut self, group: GroupIndex) {
        let mut last = None;
        while let Some(priority) = self.groups.get(group).priority_after(last) {
            self.update_lane(LaneId { group, priority });
            last = Some(priority);
        }
    }

    /// Updates the position of a group in the orders by age.
    fn update_group(&mut self, group: GroupIndex) {
        let state = self.groups.get_mut(group);
        let standing = state.standing();
        let first = state.by_age.head();
        let age = first.map(|slot| Age { ready: self.places.get(slot.index()).ready, standing });
        let old = core::mem::replace(&mut state.age, age);
        // In most calls, neither the oldest key nor the standing has changed, and no tree must
        // change.
        if old == age {
            return;
        }
        if let Some(old) = old {
            self.by_age[old.standing as usize].remove(&old.ready);
        }
        if let Some(age) = age {
            self.by_age[age.standing as usize].insert(age.ready, group);
        }
    }
}

/// Operations on one group.
impl Fair {
    /// Pauses or resumes a group. A paused group keeps its entry even if it has no keys.
    pub(crate) fn set_paused(&mut self, group: GroupId, paused: bool) {
        let id = match self.by_id.get(&group.id) {
            Some(&id) => id,
            // The entry of the group records the pause for keys that are added later.
            None if paused => self.group_id(group),
            None => return,
        };
        let state = self.groups.get_mut(id);
        if state.is_paused() == paused {
            return;
        }
        let was_eligible = state.is_eligible();
        state.limit = if paused { 0 } else { self.policy.limit };
        let is_eligible = state.is_eligible();
        let (ready, dirty) = (state.counts.ready as usize, state.counts.dirty as usize);
        if paused {
            self.paused_ready += ready;
            self.paused_dirty += dirty;
        } else {
            self.paused_ready -= ready;
            self.paused_dirty -= dirty;
        }
        if was_eligible {
            self.eligible -= ready;
        }
        if is_eligible {
            self.eligible += ready;
        }
        if was_eligible != is_eligible {
            self.update_lanes(id);
        }
        self.update_group(id);
        self.remove_if_unused(id);
    }

    /// Returns true if the group is paused.
    pub(crate) fn is_paused(&self, group: GroupId) -> bool {
        self.find_group(group).is_some_and(GroupState::is_paused)
    }

    /// Returns true if the group of the key in `slot` is paused.
    pub(crate) fn is_in_paused(&self, slot: Slot) -> bool {
        self.group_state(slot).is_paused()
    }

    /// Returns the group of the key in `slot`.
    pub(crate) fn group_of(&self, slot: Slot) -> GroupId {
        self.group_state(slot).group
    }

    /// Returns the group of the key in `slot` if the delivery of this key makes the group reach its
    /// limit.
    pub(crate) fn filled_by(&self, slot: Slot) -> Option<GroupId> {
        let state = self.group_state(slot);
        (state.counts.in_flight + 1 == self.policy.limit).then_some(state.group)
    }

    /// Returns the group of the key in `slot` if the completion of this key makes the group fall
    /// below its limit.
    pub(crate) fn freed_by(&self, slot: Slot) -> Option<GroupId> {
        let state = self.group_state(slot);
        (state.counts.in_flight == self.policy.limit).then_some(state.group)
    }

    /// Returns the number of ready keys in paused groups.
    pub(crate) const fn paused_ready(&self) -> usize {
        self.paused_ready
    }

    /// Returns the number of dirty keys in paused groups.
    pub(crate) const fn paused_dirty(&self) -> usize {
        self.paused_dirty
    }

    /// Returns the number of the group's keys in each state.
    pub(crate) fn counts(&self, group: GroupId) -> GroupCounts {
        self.find_group(group).map_or(GroupCounts::default(), |state| state.counts)
    }

    /// Returns the oldest skipped key of the group, if the group is eligible.
    pub(crate) fn skipped_of(&self, group: GroupId) -> Option<Slot> {
        let state = self.find_group(group).filter(|state| state.is_eligible())?;
        state.skipped.first_key_value().map(|(_, &slot)| slot)
    }

    /// Records that the key in `slot`, which is in flight, has become dirty or is no longer dirty.
    // This function and the next two are not inlined. Queues without groups then do not have to
    // save registers for them.
    #[inline(never)]
    pub(crate) fn mark_dirty(&mut self, slot: Slot, dirty: bool) {
        let state = self.state_mut(slot);
        let is_paused = state.is_paused();
        if dirty {
            state.counts.dirty += 1;
            self.paused_dirty += usize::from(is_paused);
        } else {
            state.counts.dirty -= 1;
            self.paused_dirty -= usize::from(is_paused);
        }
    }

    /// Counts a key of the group that waits and is neither ready nor in flight.
    #[inline(never)]
    pub(crate) fn enter_wait(&mut self, slot: Slot, has_failed: bool) {
        let state = self.state_mut(slot);
        state.counts.waiting += 1;
        state.counts.backing_off += u32::from(has_failed);
    }

    /// Reverses a call of `enter_wait` for the same key.
    #[inline(never)]
    pub(crate) fn leave_wait(&mut self, slot: Slot, has_failed: bool) {
        let state = self.state_mut(slot);
        state.counts.waiting -= 1;
        state.counts.backing_off -= u32::from(has_failed);
    }

    fn find_group(&self, group: GroupId) -> Option<&GroupState> {
        self.by_id.get(&group.id).map(|&id| &**self.groups.get(id))
    }
}

#[cfg(test)]
impl Fair {
    /// Returns the number of slots for which the side table has entries.
    pub(crate) fn slots(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }
}
