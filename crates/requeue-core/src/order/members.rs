//! A group and its lanes.

use alloc::collections::BTreeMap;

use super::Group;
use crate::list::List;
use crate::slab::NONE;

/// The ready keys of a group at one priority.
pub(super) struct Lane {
    pub(super) level: i32,
    pub(super) keys: List,
    /// When its first key entered, as the order of lanes has it; `None` while it may not be served.
    pub(super) served: Option<u64>,
    /// The groups before and after it in the turns of its level, where there are turns.
    pub(super) turn: [u32; 2],
    /// How many keys it may still hand out in this turn.
    pub(super) credit: u32,
}

/// When the oldest ready key of a group became ready, and whether the group is at its limit.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Age {
    pub(super) ready: u64,
    pub(super) held: bool,
}

pub(super) struct Members {
    pub(super) group: Group,
    /// Records that belong to it.
    pub(super) records: u32,
    pub(super) in_work: u32,
    pub(super) ready: u32,
    pub(super) by_age: List,
    /// Its key in the orders by age, while it has ready keys.
    pub(super) age: Option<Age>,
    /// One of its lanes, which is mostly all of them: a group is one piece of memory.
    lane: Option<Lane>,
    /// The others, by level.
    more: BTreeMap<i32, Lane>,
    /// Keys that a custom order gave while the group was at its limit, by age: the order does not
    /// have them any more, and is shown one for each key that leaves work.
    pub(super) skipped: BTreeMap<u64, u32>,
}

impl Members {
    pub(super) const fn new(group: Group) -> Self {
        Self {
            group,
            records: 0,
            in_work: 0,
            ready: 0,
            by_age: List::new(),
            age: None,
            lane: None,
            more: BTreeMap::new(),
            skipped: BTreeMap::new(),
        }
    }

    /// The lane at `level`, which there is.
    #[track_caller]
    pub(super) fn lane(&self, level: i32) -> &Lane {
        match &self.lane {
            Some(lane) if lane.level == level => lane,
            _ => &self.more[&level],
        }
    }

    /// The lane at `level`, which there is.
    #[track_caller]
    pub(super) fn lane_mut(&mut self, level: i32) -> &mut Lane {
        match &mut self.lane {
            Some(lane) if lane.level == level => lane,
            _ => match self.more.get_mut(&level) {
                Some(lane) => lane,
                None => unreachable!("no key of the group is ready at {level}"),
            },
        }
    }

    /// The lane at `level`, which there may not be yet.
    pub(super) fn open(&mut self, level: i32) -> &mut Lane {
        let credit = self.group.weight;
        let new = || Lane { level, keys: List::new(), served: None, turn: [NONE; 2], credit };
        let is_here = match &self.lane {
            Some(lane) => lane.level == level,
            None => !self.more.contains_key(&level),
        };
        if is_here {
            self.lane.get_or_insert_with(new)
        } else {
            self.more.entry(level).or_insert_with(new)
        }
    }

    /// The lane at `level` has no keys any more.
    pub(super) fn close(&mut self, level: i32) {
        if self.lane.as_ref().is_some_and(|lane| lane.level == level) {
            self.lane = None;
        } else {
            self.more.remove(&level);
        }
    }

    /// The first level above `level` at which it has a lane; of all, where that is `None`.
    pub(super) fn level_after(&self, level: Option<i32>) -> Option<i32> {
        let from = level.map_or(Some(i32::MIN), |level| level.checked_add(1))?;
        let here = self.lane.as_ref().map(|lane| lane.level).filter(|&here| here >= from);
        let more = self.more.range(from..).next().map(|(&level, _)| level);
        here.into_iter().chain(more).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_there_from_when_it_is_opened_until_it_is_closed() {
        let mut members = Members::new(Group::new(0));
        for levels in [[1, 5, 9], [9, 1, 5], [5, 9, 1]] {
            for level in levels {
                members.open(level);
            }
            let after = [None, Some(0), Some(1), Some(5), Some(9), Some(i32::MAX)];
            let found = after.map(|level| members.level_after(level));
            assert_eq!(found, [Some(1), Some(1), Some(5), Some(9), None, None]);
            assert_eq!(levels.map(|level| members.lane(level).level), levels);
            members.close(5);
            assert_eq!(members.level_after(Some(1)), Some(9));
            [9, 1].into_iter().for_each(|level| members.close(level));
            assert_eq!(members.level_after(None), None);
        }
    }
}
