//! Priorities with a bound, fair groups within a priority, and the limit of keys in work per group.
//!
//! A *lane* holds the ready keys of one group at one priority, first in first out. The lanes of one
//! priority that may be served take turns (fair), or stand by their first key. Every group has all
//! its ready keys in a second list by age, for the bound; where that leaves no choice there are no
//! lanes. A group at its limit is taken out of all that in one step, so that no hand-out ever looks
//! at a key that may not leave.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use super::Group;
use super::bound::Bound;
use super::members::{Age, Members};
use super::served::Served;
use crate::chunked::Chunked;
use crate::list::Links;
use crate::slab::{NONE, Slab};

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
    /// Whether anything but age counts.
    const fn has_lanes(&self) -> bool {
        self.oldest_every > 1
    }

    const fn level(&self, priority: i32) -> i32 {
        if self.by_priority && self.has_lanes() { priority } else { 0 }
    }
}

/// What is known of a slot here.
#[derive(Clone)]
struct Place {
    group: u32,
    /// The level of the lane it is in, while ready.
    level: i32,
    in_lane: [u32; 2],
    by_age: [u32; 2],
    /// When it entered its lane.
    entered: u64,
    /// When it became ready; 0 while it is not.
    ready: u64,
}

pub(crate) struct Lanes {
    policy: Policy,
    places: Chunked<Place>,
    /// Groups never move, so that those that are gone can leave holes among others that stay; in
    /// boxes, so that a hole is small.
    groups: Slab<Box<Members>>,
    /// Numbers of groups by their id. No table of hashes: that would grow and shrink in one long
    /// step.
    by_id: BTreeMap<u64, u32>,
    /// The lanes that may be served.
    served: Served,
    /// The groups that may be served, by the tick at which their oldest key became ready.
    ages: BTreeMap<u64, u32>,
    /// The groups at their limit that have ready keys, by the same.
    held: BTreeMap<u64, u32>,
    /// Counts everything that is put in order.
    ticks: u64,
    eligible: usize,
    bound: Bound,
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
            groups: Slab::new(false),
            by_id: BTreeMap::new(),
            served: Served::new(policy.fair),
            ages: BTreeMap::new(),
            held: BTreeMap::new(),
            ticks: 0,
            eligible: 0,
            bound: Bound::new(policy.oldest_every),
        }
    }

    /// How many ready keys may be handed out.
    pub(crate) const fn eligible(&self) -> usize {
        self.eligible
    }

    /// There is a record in `slot`, of `group`.
    pub(crate) fn enroll(&mut self, slot: u32, group: Group) {
        let number = self.group_number(group);
        self.groups.get_mut(number).records += 1;
        let place = Place {
            group: number,
            level: 0,
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
        let members = self.groups.get_mut(number);
        members.records -= 1;
        if members.records == 0 {
            self.by_id.remove(&members.group.id);
            self.groups.remove(number);
        }
    }

    /// The record in `from` is in `to`, below it, from now on.
    pub(crate) fn moved(&mut self, from: u32, to: u32) {
        let place = self.places.get(from as usize).clone();
        let (group, level, ready) = (place.group, place.level, place.ready);
        *self.places.get_mut(to as usize) = place;
        if ready > 0 {
            let members = self.groups.get_mut(group);
            if self.policy.has_lanes() {
                members.lane_mut(level).keys.moved(&mut InLane(&mut self.places), from, to);
            }
            members.by_age.moved(&mut ByAge(&mut self.places), from, to);
            if let Some(slot) = members.skipped.get_mut(&ready) {
                *slot = to;
            }
        }
    }

    /// There are no slots from `end` on any more.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.places.truncate(end);
    }

    /// The key in `slot` has become ready.
    pub(crate) fn push(&mut self, slot: u32, priority: i32) {
        let tick = self.tick();
        let place = self.places.get_mut(slot as usize);
        (place.entered, place.ready) = (tick, tick);
        let group = place.group;
        let members = self.groups.get_mut(group);
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
        if self.places.get(slot as usize).level == level {
            return;
        }
        self.exit(slot);
        self.places.get_mut(slot as usize).entered = self.tick();
        self.enter(slot, level);
    }

    /// The ready key in `slot` is ready no more.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.eligible -= usize::from(self.is_eligible(slot));
        let group = self.take_out(slot);
        self.place_group(group);
    }

    /// Takes the ready key in `slot` out of the lists of its group, which is still to be placed.
    fn take_out(&mut self, slot: u32) -> u32 {
        self.exit(slot);
        let place = self.places.get_mut(slot as usize);
        let (group, ready) = (place.group, core::mem::take(&mut place.ready));
        let members = self.groups.get_mut(group);
        members.ready -= 1;
        members.by_age.remove(&mut ByAge(&mut self.places), slot);
        members.skipped.remove(&ready);
        group
    }

    /// The ready key that is to be handed out next.
    pub(crate) fn next(&self) -> Option<u32> {
        if self.bound.is_reached() {
            return self.oldest();
        }
        let (level, group) = self.served.first()?;
        self.groups.get(group).lane(level).keys.head()
    }

    /// Of the ready keys that may be handed out, the one that has been ready longest.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.first_of(&self.ages)
    }

    /// Any ready key, in whatever group.
    pub(crate) fn any(&self) -> Option<u32> {
        self.oldest().or_else(|| self.first_of(&self.held))
    }

    fn first_of(&self, ages: &BTreeMap<u64, u32>) -> Option<u32> {
        let (_, &group) = ages.first_key_value()?;
        self.groups.get(group).by_age.head()
    }

    /// Whether the ready key in `slot` may be handed out.
    pub(crate) fn is_eligible(&self, slot: u32) -> bool {
        let group = self.places.get(slot as usize).group;
        self.groups.get(group).in_work < self.policy.limit
    }

    /// The ready key in `slot` is handed out.
    pub(crate) fn start(&mut self, slot: u32) {
        let out_of_turn = self.bound.is_reached();
        self.bound.count(self.oldest() == Some(slot));
        if self.policy.fair && !out_of_turn {
            self.use_turn(slot);
        }
        self.eligible -= 1;
        let group = self.places.get(slot as usize).group;
        self.groups.get_mut(group).in_work += 1;
        self.take_out(slot);
        let members = self.groups.get(group);
        if members.in_work == self.policy.limit {
            self.eligible -= members.ready as usize;
            self.place_lanes(group);
        }
        self.place_group(group);
    }

    /// The lane of `slot` has one key less to hand out in its turn, and the turn may be over.
    fn use_turn(&mut self, slot: u32) {
        let Place { group, level, .. } = *self.places.get(slot as usize);
        let members = self.groups.get_mut(group);
        let weight = members.group.weight;
        let lane = members.lane_mut(level);
        lane.credit = lane.credit.saturating_sub(1);
        if lane.credit == 0 {
            lane.credit = weight;
            self.served.end_turn(&mut self.groups, level, group);
        }
    }

    /// The key in `slot` is in work no more.
    pub(crate) fn finish(&mut self, slot: u32) {
        let group = self.places.get(slot as usize).group;
        let members = self.groups.get_mut(group);
        let was_full = members.in_work == self.policy.limit;
        members.in_work -= 1;
        if was_full {
            self.eligible += members.ready as usize;
            self.place_lanes(group);
            self.place_group(group);
        }
    }

    /// A custom order gave the ready key in `slot`, which its group holds back.
    pub(crate) fn skip(&mut self, slot: u32) {
        let place = self.places.get(slot as usize);
        self.groups.get_mut(place.group).skipped.insert(place.ready, slot);
    }

    /// Of the keys of the group of `slot` that a custom order gave in vain, the oldest.
    pub(crate) fn skipped(&self, slot: u32) -> Option<u32> {
        let members = self.groups.get(self.places.get(slot as usize).group);
        members.skipped.first_key_value().map(|(_, &slot)| slot)
    }

    /// The custom order has been given the key in `slot` once more.
    pub(crate) fn unskip(&mut self, slot: u32) {
        let place = self.places.get(slot as usize);
        self.groups.get_mut(place.group).skipped.remove(&place.ready);
    }

    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn group_number(&mut self, group: Group) -> u32 {
        if let Some(&n) = self.by_id.get(&group.id) {
            self.groups.get_mut(n).group = group;
            return n;
        }
        let number = self.groups.insert(Box::new(Members::new(group)));
        self.by_id.insert(group.id, number);
        number
    }

    /// Puts `slot` at the end of the lane of its group at `level`.
    fn enter(&mut self, slot: u32, level: i32) {
        if !self.policy.has_lanes() {
            return;
        }
        let place = self.places.get_mut(slot as usize);
        place.level = level;
        let group = place.group;
        let lane = self.groups.get_mut(group).open(level);
        lane.keys.push_back(&mut InLane(&mut self.places), slot);
        if lane.served.is_none() {
            self.place_lane(group, level);
        }
    }

    /// Takes `slot` out of its lane, and the lane away if that was its last key.
    fn exit(&mut self, slot: u32) {
        if !self.policy.has_lanes() {
            return;
        }
        let Place { group, level, .. } = *self.places.get(slot as usize);
        let lane = self.groups.get_mut(group).lane_mut(level);
        let was_first = lane.keys.head() == Some(slot);
        lane.keys.remove(&mut InLane(&mut self.places), slot);
        let is_empty = lane.keys.is_empty();
        if is_empty || (was_first && !self.policy.fair) {
            self.place_lane(group, level);
        }
        if is_empty {
            self.groups.get_mut(group).close(level);
        }
    }

    /// Puts a lane where it belongs among those that may be served: in a fair order it stays where
    /// it is, or comes to the end.
    fn place_lane(&mut self, group: u32, level: i32) {
        let members = self.groups.get_mut(group);
        let (may_leave, weight) = (members.in_work < self.policy.limit, members.group.weight);
        let lane = members.lane_mut(level);
        let first = lane.keys.head().filter(|_| may_leave);
        let entered = first.map(|slot| self.places.get(slot as usize).entered);
        let was = core::mem::replace(&mut lane.served, entered);
        if entered.is_none() {
            // It comes back with a turn of its own.
            lane.credit = weight;
        }
        self.served.place(&mut self.groups, level, group, [was, entered]);
    }

    /// Puts all lanes of a group where they belong: it has reached its limit, or left it.
    fn place_lanes(&mut self, group: u32) {
        let mut last = None;
        while let Some(level) = self.groups.get(group).level_after(last) {
            self.place_lane(group, level);
            last = Some(level);
        }
    }

    /// Puts a group where it belongs in the order by age.
    fn place_group(&mut self, number: u32) {
        let members = self.groups.get_mut(number);
        let held = members.in_work >= self.policy.limit;
        let first = members.by_age.head();
        let age = first.map(|slot| Age { ready: self.places.get(slot as usize).ready, held });
        let old = core::mem::replace(&mut members.age, age);
        if old == age {
            return;
        }
        if let Some(old) = old {
            self.in_order(old.held).remove(&old.ready);
        }
        if let Some(age) = age {
            self.in_order(age.held).insert(age.ready, number);
        }
    }

    fn in_order(&mut self, held: bool) -> &mut BTreeMap<u64, u32> {
        if held { &mut self.held } else { &mut self.ages }
    }
}

#[cfg(test)]
impl Lanes {
    /// Of how many slots it has something.
    pub(crate) fn slots(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }
}
