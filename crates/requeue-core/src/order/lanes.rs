//! Priorities with a bound, fair groups within a priority, and the limit of keys in work per group.
//!
//! A *lane* holds the ready keys of one group at one priority, first in first out. A *level* holds
//! the lanes of one priority that may be served, in turn (fair) or by their first key. Every group
//! has all its ready keys in a second list by age, for the bound. A group at its limit is taken out
//! of its levels and of the order by age in one step, so that no hand-out ever looks at a key that
//! may not leave.

use core::ops::Bound;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::Group;
use crate::chunked::Chunked;
use crate::list::{Links, List};
use crate::slab::NONE;

#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// Whether priorities count.
    pub(crate) by_priority: bool,
    /// Of how many hand-outs at least one is the oldest eligible key; at least 1.
    pub(crate) oldest_every: u32,
    /// Whether the lanes of a level take turns.
    pub(crate) fair: bool,
    /// How many keys of a group may be in work; at least 1.
    pub(crate) limit: u32,
}

impl Policy {
    const fn level(&self, priority: i32) -> i32 {
        if self.by_priority { priority } else { 0 }
    }
}

/// What is known of a slot here.
#[derive(Clone)]
struct Place {
    group: u32,
    /// The lane it is ready in, or `NONE`.
    lane: u32,
    in_lane: [u32; 2],
    by_age: [u32; 2],
    /// When it entered its lane.
    entered: u64,
    /// When it became ready.
    ready: u64,
}

struct Lane {
    level: i32,
    group: u32,
    keys: List,
    /// Its key in the level, while the lane may be served.
    turn: Option<u64>,
    /// How many keys it may still hand out in this turn.
    credit: u32,
}

struct Members {
    group: Group,
    /// Records that belong to it.
    records: u32,
    in_work: u32,
    ready: u32,
    by_age: List,
    /// Its key in `ages`, while the group may be served and has keys.
    age: Option<u64>,
    /// By level.
    lanes: BTreeMap<i32, u32>,
    /// Keys that a custom order gave while the group was at its limit, by age: the order does not
    /// have them any more, and is shown one for each key that leaves work.
    skipped: BTreeMap<u64, u32>,
}

pub(crate) struct Lanes {
    policy: Policy,
    places: Chunked<Place>,
    lanes: Vec<Lane>,
    unused_lanes: Vec<u32>,
    groups: Vec<Members>,
    unused_groups: Vec<u32>,
    /// Numbers of groups by their id.
    by_id: HashMap<u64, u32, foldhash::fast::FixedState>,
    /// The lanes that may be served, by priority and turn. No level is empty.
    levels: BTreeMap<i32, BTreeMap<u64, u32>>,
    /// The groups that may be served, by the time their oldest key became ready.
    ages: BTreeMap<u64, u32>,
    /// Counts everything that is put in order.
    ticks: u64,
    eligible: usize,
    /// Hand-outs since the oldest eligible key was served.
    since_oldest: u32,
}

struct InLane<'a>(&'a mut Chunked<Place>);
struct ByAge<'a>(&'a mut Chunked<Place>);

impl Links for InLane<'_> {
    fn links(&mut self, slot: u32) -> &mut [u32; 2] {
        &mut self.0.get_mut(slot as usize).in_lane
    }
}

impl Links for ByAge<'_> {
    fn links(&mut self, slot: u32) -> &mut [u32; 2] {
        &mut self.0.get_mut(slot as usize).by_age
    }
}

impl Lanes {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            places: Chunked::new(),
            lanes: Vec::new(),
            unused_lanes: Vec::new(),
            groups: Vec::new(),
            unused_groups: Vec::new(),
            by_id: HashMap::default(),
            levels: BTreeMap::new(),
            ages: BTreeMap::new(),
            ticks: 0,
            eligible: 0,
            since_oldest: 0,
        }
    }

    /// How many ready keys may be handed out.
    pub(crate) const fn eligible(&self) -> usize {
        self.eligible
    }

    /// There is a record in `slot`, of `group`.
    pub(crate) fn enroll(&mut self, slot: u32, group: Group) {
        let number = self.group_number(group);
        self.groups[number as usize].records += 1;
        let place = Place {
            group: number,
            lane: NONE,
            in_lane: [NONE; 2],
            by_age: [NONE; 2],
            entered: 0,
            ready: 0,
        };
        self.places.extend_to(slot as usize + 1, &place);
        *self.places.get_mut(slot as usize) = place;
    }

    /// The record in `slot`, neither ready nor in work, is gone.
    pub(crate) fn leave(&mut self, slot: u32) {
        let number = self.places.get(slot as usize).group;
        let members = &mut self.groups[number as usize];
        members.records -= 1;
        if members.records == 0 {
            let id = members.group.id;
            self.unused_groups.push(number);
            self.by_id.remove(&id);
            if self.unused_groups.len() == self.groups.len() {
                self.groups = Vec::new();
                self.unused_groups = Vec::new();
                self.by_id = HashMap::default();
            }
        }
    }

    /// The record in `from` is in `to` from now on.
    pub(crate) fn moved(&mut self, from: u32, to: u32) {
        let place = self.places.get(from as usize).clone();
        let (group, lane, ready) = (place.group as usize, place.lane, place.ready);
        self.places.extend_to(to as usize + 1, &place);
        *self.places.get_mut(to as usize) = place;
        if lane != NONE {
            self.lanes[lane as usize].keys.moved(&mut InLane(&mut self.places), from, to);
            self.groups[group].by_age.moved(&mut ByAge(&mut self.places), from, to);
            if let Some(slot) = self.groups[group].skipped.get_mut(&ready) {
                *slot = to;
            }
        }
    }

    /// There are no slots from `span` on any more.
    pub(crate) fn truncate(&mut self, span: usize) {
        self.places.truncate(span);
    }

    /// The key in `slot` has become ready.
    pub(crate) fn push(&mut self, slot: u32, priority: i32) {
        let tick = self.tick();
        let place = self.places.get_mut(slot as usize);
        (place.entered, place.ready) = (tick, tick);
        let group = place.group;
        let members = &mut self.groups[group as usize];
        members.ready += 1;
        members.by_age.push_back(&mut ByAge(&mut self.places), slot);
        if members.in_work < self.policy.limit {
            self.eligible += 1;
        }
        self.enter(slot, self.policy.level(priority));
        self.place_group(group);
    }

    /// The ready key in `slot` has a new priority: it goes to the end of that level and keeps its
    /// age.
    pub(crate) fn lift(&mut self, slot: u32, priority: i32) {
        let level = self.policy.level(priority);
        if self.lanes[self.places.get(slot as usize).lane as usize].level == level {
            return;
        }
        self.exit(slot);
        self.places.get_mut(slot as usize).entered = self.tick();
        self.enter(slot, level);
    }

    /// The ready key in `slot` is ready no more.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.exit(slot);
        let group = self.places.get(slot as usize).group;
        let members = &mut self.groups[group as usize];
        members.ready -= 1;
        members.by_age.remove(&mut ByAge(&mut self.places), slot);
        members.skipped.remove(&self.places.get(slot as usize).ready);
        if members.in_work < self.policy.limit {
            self.eligible -= 1;
        }
        self.place_group(group);
    }

    /// The ready key that is to be handed out next.
    pub(crate) fn next(&self) -> Option<u32> {
        if self.is_forced() {
            return self.oldest();
        }
        let (_, level) = self.levels.last_key_value()?;
        let (_, &lane) = level.first_key_value()?;
        self.lanes[lane as usize].keys.head()
    }

    /// Whether the next hand-out has to be the oldest key.
    const fn is_forced(&self) -> bool {
        self.since_oldest.saturating_add(1) >= self.policy.oldest_every
    }

    /// Of the ready keys that may be handed out, the one that has been ready longest.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let (_, &group) = self.ages.first_key_value()?;
        self.groups[group as usize].by_age.head()
    }

    /// Any ready key, in whatever group.
    pub(crate) fn any(&self) -> Option<u32> {
        self.oldest().or_else(|| self.groups.iter().find_map(|members| members.by_age.head()))
    }

    /// Whether the ready key in `slot` may be handed out.
    pub(crate) fn is_eligible(&self, slot: u32) -> bool {
        let group = self.places.get(slot as usize).group;
        self.groups[group as usize].in_work < self.policy.limit
    }

    /// The ready key in `slot` is handed out.
    pub(crate) fn start(&mut self, slot: u32) {
        let forced = self.is_forced();
        let is_oldest = self.oldest() == Some(slot);
        self.since_oldest = if is_oldest { 0 } else { self.since_oldest.saturating_add(1) };
        let Place { lane, group, .. } = *self.places.get(slot as usize);
        if self.policy.fair && !forced {
            let tick = self.tick();
            let weight = self.groups[group as usize].group.weight;
            let lane_state = &mut self.lanes[lane as usize];
            lane_state.credit = lane_state.credit.saturating_sub(1);
            if lane_state.credit == 0 {
                lane_state.credit = weight;
                self.place_lane(lane, Some(tick));
            }
        }
        self.remove(slot);
        let members = &mut self.groups[group as usize];
        members.in_work += 1;
        if members.in_work == self.policy.limit {
            self.eligible -= members.ready as usize;
            self.place_all(group);
        }
    }

    /// The key in `slot` is in work no more.
    pub(crate) fn finish(&mut self, slot: u32) {
        let group = self.places.get(slot as usize).group;
        let members = &mut self.groups[group as usize];
        let was_full = members.in_work == self.policy.limit;
        members.in_work -= 1;
        if was_full {
            self.eligible += members.ready as usize;
            self.place_all(group);
        }
    }

    /// A custom order gave the ready key in `slot`, which its group holds back.
    pub(crate) fn skip(&mut self, slot: u32) {
        let place = self.places.get(slot as usize);
        self.groups[place.group as usize].skipped.insert(place.ready, slot);
    }

    /// Of the keys of the group of `slot` that a custom order gave in vain, the oldest.
    pub(crate) fn skipped(&self, slot: u32) -> Option<u32> {
        let members = &self.groups[self.places.get(slot as usize).group as usize];
        members.skipped.first_key_value().map(|(_, &slot)| slot)
    }

    /// The custom order has been given the key in `slot` once more.
    pub(crate) fn unskip(&mut self, slot: u32) {
        let place = self.places.get(slot as usize);
        self.groups[place.group as usize].skipped.remove(&place.ready);
    }

    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn group_number(&mut self, group: Group) -> u32 {
        if let Some(&n) = self.by_id.get(&group.id) {
            self.groups[n as usize].group = group;
            return n;
        }
        let members = Members {
            group,
            records: 0,
            in_work: 0,
            ready: 0,
            by_age: List::new(),
            age: None,
            lanes: BTreeMap::new(),
            skipped: BTreeMap::new(),
        };
        let number = fill(&mut self.groups, &mut self.unused_groups, members);
        self.by_id.insert(group.id, number);
        number
    }

    /// Puts `slot` at the end of the lane of its group at `level`.
    fn enter(&mut self, slot: u32, level: i32) {
        let group = self.places.get(slot as usize).group;
        let members = &self.groups[group as usize];
        let found = members.lanes.get(&level).copied();
        let credit = members.group.weight;
        let lane = match found {
            Some(number) => number,
            None => {
                let lane = Lane { level, group, keys: List::new(), turn: None, credit };
                let number = fill(&mut self.lanes, &mut self.unused_lanes, lane);
                self.groups[group as usize].lanes.insert(level, number);
                number
            }
        };
        self.places.get_mut(slot as usize).lane = lane;
        self.lanes[lane as usize].keys.push_back(&mut InLane(&mut self.places), slot);
        if self.lanes[lane as usize].turn.is_none() {
            self.place_lane(lane, None);
        }
    }

    /// Takes `slot` out of its lane, and the lane away if that was its last key.
    fn exit(&mut self, slot: u32) {
        let place = self.places.get_mut(slot as usize);
        let group = place.group as usize;
        let number = core::mem::replace(&mut place.lane, NONE);
        let lane = &mut self.lanes[number as usize];
        let was_first = lane.keys.head() == Some(slot);
        lane.keys.remove(&mut InLane(&mut self.places), slot);
        let (is_empty, level) = (lane.keys.is_empty(), lane.level);
        if is_empty || (was_first && !self.policy.fair) {
            self.place_lane(number, None);
        }
        if is_empty {
            self.groups[group].lanes.remove(&level);
            self.unused_lanes.push(number);
            if self.unused_lanes.len() == self.lanes.len() {
                self.lanes = Vec::new();
                self.unused_lanes = Vec::new();
            }
        }
    }

    /// Puts a lane where it belongs in its level; in a fair order at `turn`, or at the end.
    fn place_lane(&mut self, number: u32, turn: Option<u64>) {
        let lane = &self.lanes[number as usize];
        let members = &self.groups[lane.group as usize];
        let weight = members.group.weight;
        let turn = match lane.keys.head() {
            Some(first) if members.in_work < self.policy.limit => Some(match turn {
                Some(turn) => turn,
                None if self.policy.fair => self.tick(),
                None => self.places.get(first as usize).entered,
            }),
            _ => None,
        };
        let lane = &mut self.lanes[number as usize];
        if turn.is_none() {
            // It comes back with a turn of its own.
            lane.credit = weight;
        }
        let (level, old) = (lane.level, core::mem::replace(&mut lane.turn, turn));
        if old == turn {
            return;
        }
        if turn.is_some() || old.is_some() {
            let lanes = self.levels.entry(level).or_default();
            if let Some(old) = old {
                lanes.remove(&old);
            }
            if let Some(turn) = turn {
                lanes.insert(turn, number);
            }
            if lanes.is_empty() {
                self.levels.remove(&level);
            }
        }
    }

    /// Puts a group where it belongs in the order by age.
    fn place_group(&mut self, number: u32) {
        let members = &mut self.groups[number as usize];
        let age = match members.by_age.head() {
            Some(first) if members.in_work < self.policy.limit => {
                Some(self.places.get(first as usize).ready)
            }
            _ => None,
        };
        let old = core::mem::replace(&mut members.age, age);
        if old == age {
            return;
        }
        if let Some(old) = old {
            self.ages.remove(&old);
        }
        if let Some(age) = age {
            self.ages.insert(age, number);
        }
    }

    /// Puts a group and all its lanes where they belong: it has reached its limit, or left it.
    fn place_all(&mut self, group: u32) {
        let mut from = Bound::Unbounded;
        while let Some((&level, &lane)) =
            self.groups[group as usize].lanes.range((from, Bound::Unbounded)).next()
        {
            self.place_lane(lane, None);
            from = Bound::Excluded(level);
        }
        self.place_group(group);
    }
}

/// Puts `value` into an unused place, or a new one.
fn fill<T>(all: &mut Vec<T>, unused: &mut Vec<u32>, value: T) -> u32 {
    match unused.pop() {
        Some(number) => {
            all[number as usize] = value;
            number
        }
        None => {
            all.push(value);
            all.len() as u32 - 1
        }
    }
}
