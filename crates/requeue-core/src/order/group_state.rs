//! The state of a group, and its lanes.

use alloc::collections::BTreeMap;

use super::GroupId;
use crate::memory::List;
use crate::types::{Slot, ids};

ids! {
    /// The slot of a group's state.
    GroupIndex
}

/// Identifies a lane by its group and its priority.
#[derive(Clone, Copy)]
pub(super) struct LaneId {
    pub(super) group: GroupIndex,
    pub(super) priority: i32,
}

/// The ready keys of a group at one priority, first in, first out.
pub(super) struct Lane {
    priority: i32,
    pub(super) keys: List,
    /// The tick at which the first key entered the lane, or `None` if the lane is not eligible.
    pub(super) eligible_since: Option<u64>,
    /// The groups of the previous and the next lane in the turns of this priority.
    pub(super) turn: [Option<GroupIndex>; 2],
    /// The number of keys that the lane may still deliver in its present turn.
    pub(super) credit: u32,
}

/// The position of a group in one of the orders by age.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Age {
    /// The tick at which the oldest ready key of the group became ready.
    pub(super) ready: u64,
    pub(super) standing: Standing,
}

/// Says if a group may deliver keys, and why not.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Standing {
    /// The group is below its limit.
    Eligible,
    /// The group is at its limit.
    Held,
    /// The group is paused.
    Paused,
}

/// The number of keys of a group in each state.
#[derive(Clone, Copy, Default)]
pub(crate) struct GroupCounts {
    pub(crate) in_flight: u32,
    pub(crate) ready: u32,
    /// The number of keys in flight that are dirty.
    pub(crate) dirty: u32,
    /// The number of waiting keys that are neither ready nor in flight.
    pub(crate) waiting: u32,
    /// The number of those waiting keys whose last run failed.
    pub(crate) backing_off: u32,
}

pub(super) struct GroupState {
    pub(super) group: GroupId,
    /// The number of records in the group.
    pub(super) records: u32,
    /// The maximum number of keys in flight. It is 0 if the group is paused, and at least 1
    /// otherwise.
    pub(super) limit: u32,
    pub(super) counts: GroupCounts,
    pub(super) by_age: List,
    /// The group's position in the orders by age, or `None` if it has no ready keys.
    pub(super) age: Option<Age>,
    /// One of the lanes. Most groups have only this lane, and then need no tree.
    lane: Option<Lane>,
    /// The lanes at other priorities.
    more: BTreeMap<i32, Lane>,
    /// The keys that a custom order returned while the group was at its limit or paused, sorted by
    /// age. The custom order no longer contains them. When a delivery of the group is completed,
    /// the queue pushes one of these keys again. When the group is resumed, it pushes all of them.
    pub(super) skipped: BTreeMap<u64, Slot>,
}

impl GroupState {
    pub(super) const fn new(group: GroupId, limit: u32) -> Self {
        Self {
            group,
            records: 0,
            limit,
            counts: GroupCounts { in_flight: 0, ready: 0, dirty: 0, waiting: 0, backing_off: 0 },
            by_age: List::new(),
            age: None,
            lane: None,
            more: BTreeMap::new(),
            skipped: BTreeMap::new(),
        }
    }

    /// Returns true if the group may deliver keys.
    #[inline(always)]
    pub(super) const fn is_eligible(&self) -> bool {
        self.counts.in_flight < self.limit
    }

    #[inline(always)]
    pub(super) const fn is_paused(&self) -> bool {
        self.limit == 0
    }

    pub(super) const fn standing(&self) -> Standing {
        if self.is_eligible() {
            Standing::Eligible
        } else if self.is_paused() {
            Standing::Paused
        } else {
            Standing::Held
        }
    }

    /// Returns true if the state can be removed: the group has no records and is not paused.
    pub(super) const fn is_unused(&self) -> bool {
        self.records == 0 && !self.is_paused()
    }

    /// Returns the lane at `priority`, which must exist.
    #[track_caller]
    pub(super) fn lane(&self, priority: i32) -> &Lane {
        match &self.lane {
            Some(lane) if lane.priority == priority => lane,
            _ => &self.more[&priority],
        }
    }

    /// Returns the lane at `priority`, which must exist.
    #[track_caller]
    pub(super) fn lane_mut(&mut self, priority: i32) -> &mut Lane {
        match &mut self.lane {
            Some(lane) if lane.priority == priority => lane,
            _ => match self.more.get_mut(&priority) {
                Some(lane) => lane,
                None => unreachable!("no key of the group is ready at {priority}"),
            },
        }
    }

    /// Returns the lane at `priority`, and creates it if it does not exist.
    pub(super) fn open_lane(&mut self, priority: i32) -> &mut Lane {
        let credit = self.group.weight;
        let keys = List::new();
        let new = || Lane { priority, keys, eligible_since: None, turn: [None; 2], credit };
        // The first lane is stored in the group itself, so that a group with one priority allocates
        // no tree.
        let is_here = match &self.lane {
            Some(lane) => lane.priority == priority,
            None => !self.more.contains_key(&priority),
        };
        if is_here {
            self.lane.get_or_insert_with(new)
        } else {
            self.more.entry(priority).or_insert_with(new)
        }
    }

    /// Removes the lane at `priority`, which must be empty.
    pub(super) fn close_lane(&mut self, priority: i32) {
        if self.lane.as_ref().is_some_and(|lane| lane.priority == priority) {
            self.lane = None;
        } else {
            self.more.remove(&priority);
        }
    }

    /// Returns the lowest priority above `priority` at which the group has a lane. For `None`,
    /// returns the lowest priority of all lanes.
    pub(super) fn priority_after(&self, priority: Option<i32>) -> Option<i32> {
        let from = priority.map_or(Some(i32::MIN), |priority| priority.checked_add(1))?;
        let here = self.lane.as_ref().map(|lane| lane.priority).filter(|&here| here >= from);
        let more = self.more.range(from..).next().map(|(&priority, _)| priority);
        here.into_iter().chain(more).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_exists_from_open_to_close() {
        let mut state = GroupState::new(GroupId::new(0), 1);
        for priorities in [[1, 5, 9], [9, 1, 5], [5, 9, 1]] {
            for priority in priorities {
                state.open_lane(priority);
            }
            let after = [None, Some(0), Some(1), Some(5), Some(9), Some(i32::MAX)];
            let found = after.map(|priority| state.priority_after(priority));
            assert_eq!(found, [Some(1), Some(1), Some(5), Some(9), None, None]);
            assert_eq!(priorities.map(|priority| state.lane(priority).priority), priorities);
            state.close_lane(5);
            assert_eq!(state.priority_after(Some(1)), Some(9));
            [9, 1].into_iter().for_each(|priority| state.close_lane(priority));
            assert_eq!(state.priority_after(None), None);
        }
    }
}
