//! The order of the eligible lanes: the lanes whose keys may be delivered.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::cmp::Reverse;

use super::group_state::{GroupIndex, GroupState, LaneId};
use super::priority_lists::PriorityLists;
use crate::memory::{Links, Slab};

pub(super) type Groups = Slab<Box<GroupState>, GroupIndex>;

pub(super) enum EligibleLanes {
    /// The lanes of a priority take turns. A lane that becomes eligible goes to the end, and so
    /// does a lane whose turn is over.
    InTurn(PriorityLists<GroupIndex>),
    /// The lanes of a priority are sorted by the tick at which their first keys entered.
    ByFirst(BTreeMap<(Reverse<i32>, u64), GroupIndex>),
}

struct Turns<'a> {
    groups: &'a mut Groups,
    priority: i32,
}

impl Links<GroupIndex> for Turns<'_> {
    fn links_of(&mut self, group: GroupIndex) -> &mut [Option<GroupIndex>; 2] {
        &mut self.groups.get_mut(group).lane_mut(self.priority).turn
    }
}

impl EligibleLanes {
    pub(super) const fn new(fair: bool) -> Self {
        if fair { Self::InTurn(PriorityLists::new()) } else { Self::ByFirst(BTreeMap::new()) }
    }

    /// Returns the lane from which the next delivery takes a key.
    pub(super) fn first_lane(&self) -> Option<LaneId> {
        match self {
            Self::InTurn(lists) => {
                lists.first_entry().map(|(priority, group)| LaneId { group, priority })
            }
            Self::ByFirst(lanes) => lanes
                .first_key_value()
                .map(|(&(Reverse(priority), _), &group)| LaneId { group, priority }),
        }
    }

    /// Moves `lane` behind the other lanes of its priority, if lanes take turns.
    pub(super) fn end_turn(&mut self, groups: &mut Groups, lane: LaneId) {
        if let Self::InTurn(lists) = self {
            let LaneId { group, priority } = lane;
            let links = &mut Turns { groups, priority };
            lists.remove(links, priority, group);
            lists.push_back(links, priority, group);
        }
    }

    /// Updates the position of `lane` after its first key has changed. `was` is the tick at which
    /// the old first key entered, and `since` the tick of the new one. `None` means that the lane
    /// was or is not eligible.
    pub(super) fn update(
        &mut self,
        groups: &mut Groups,
        lane: LaneId,
        was: Option<u64>,
        since: Option<u64>,
    ) {
        let LaneId { group, priority } = lane;
        match self {
            Self::InTurn(lists) => {
                let links = &mut Turns { groups, priority };
                match (was, since) {
                    (None, Some(_)) => lists.push_back(links, priority, group),
                    (Some(_), None) => lists.remove(links, priority, group),
                    (None, None) | (Some(_), Some(_)) => {}
                }
            }
            Self::ByFirst(lanes) if was != since => {
                if let Some(was) = was {
                    lanes.remove(&(Reverse(priority), was));
                }
                if let Some(since) = since {
                    lanes.insert((Reverse(priority), since), group);
                }
            }
            Self::ByFirst(_) => {}
        }
    }
}
