//! The lanes that may be served, each by its level and the number of its group.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::cmp::Reverse;

use super::levels::Levels;
use super::members::Members;
use crate::list::Links;
use crate::slab::Slab;

type Groups = Slab<Box<Members>>;

pub(super) enum Served {
    /// Those of a level take turns: who comes in, and who has had a turn, goes to the end.
    InTurn(Levels),
    /// Those of a level stand by when their first key entered.
    ByFirst(BTreeMap<(Reverse<i32>, u64), u32>),
}

struct InTurn<'a> {
    groups: &'a mut Groups,
    level: i32,
}

impl Links for InTurn<'_> {
    fn links(&mut self, group: u32) -> &mut [u32; 2] {
        &mut self.groups.get_mut(group).lane_mut(self.level).turn
    }
}

impl Served {
    pub(super) const fn new(fair: bool) -> Self {
        if fair { Self::InTurn(Levels::new()) } else { Self::ByFirst(BTreeMap::new()) }
    }

    /// The lane to be served next.
    pub(super) fn first(&self) -> Option<(i32, u32)> {
        match self {
            Self::InTurn(levels) => levels.first(),
            Self::ByFirst(lanes) => {
                lanes.first_key_value().map(|(&(Reverse(level), _), &group)| (level, group))
            }
        }
    }

    /// Where lanes take turns, that of `group` at `level` has had its own.
    pub(super) fn end_turn(&mut self, groups: &mut Groups, level: i32, group: u32) {
        if let Self::InTurn(levels) = self {
            let links = &mut InTurn { groups, level };
            levels.remove(links, level, group);
            levels.push_back(links, level, group);
        }
    }

    /// When the first key of a lane entered has changed, from `Some` if it was among these, and to
    /// `Some` if it is to be.
    pub(super) fn place(
        &mut self,
        groups: &mut Groups,
        level: i32,
        group: u32,
        [was, entered]: [Option<u64>; 2],
    ) {
        match self {
            Self::InTurn(levels) => {
                let links = &mut InTurn { groups, level };
                match (was, entered) {
                    (None, Some(_)) => levels.push_back(links, level, group),
                    (Some(_), None) => levels.remove(links, level, group),
                    (None, None) | (Some(_), Some(_)) => {}
                }
            }
            Self::ByFirst(lanes) if was != entered => {
                if let Some(was) = was {
                    lanes.remove(&(Reverse(level), was));
                }
                if let Some(entered) = entered {
                    lanes.insert((Reverse(level), entered), group);
                }
            }
            Self::ByFirst(_) => {}
        }
    }
}
