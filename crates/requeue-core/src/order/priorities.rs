//! Priorities with a bound, of keys that no group holds back.

use super::bound::Bound;
use super::levels::Levels;
use crate::chunked::Chunked;
use crate::list::{Links, List};
use crate::record::Record;
use crate::slab::{NONE, Slab};

/// What is known of a slot here.
#[derive(Clone)]
struct Place {
    by_age: [u32; 2],
    /// Where it is, while ready: its priority may be another already.
    level: i32,
}

/// Ready keys are in two lists: that of their priority goes through the records themselves, that by
/// age through places beside them.
pub(crate) struct Priorities {
    levels: Levels,
    ages: Ages,
    /// All ready keys by the time they became ready.
    by_age: List,
    bound: Bound,
}

struct Ages(Chunked<Place>);

impl Links for Ages {
    fn links(&mut self, slot: u32) -> &mut [u32; 2] {
        &mut self.0.get_mut(slot as usize).by_age
    }
}

impl Priorities {
    pub(super) const fn new(oldest_every: u32) -> Self {
        Self {
            levels: Levels::new(),
            ages: Ages(Chunked::new()),
            by_age: List::new(),
            bound: Bound::new(oldest_every),
        }
    }

    /// The key in `slot` has become ready.
    pub(crate) fn push<K>(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        let level = records.get(slot).priority;
        let place = Place { by_age: [self.by_age.tail(), NONE], level };
        self.ages.0.extend_to(slot as usize + 1, &place);
        *self.ages.0.get_mut(slot as usize) = place;
        self.by_age.append(&mut self.ages, slot);
        self.levels.push_back(records, level, slot);
    }

    /// The ready key in `slot` may have a new priority: it goes to the end of that level and keeps
    /// its age.
    pub(crate) fn lift<K>(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        let level = records.get(slot).priority;
        let was = core::mem::replace(&mut self.ages.0.get_mut(slot as usize).level, level);
        if was != level {
            self.levels.remove(records, was, slot);
            self.levels.push_back(records, level, slot);
        }
    }

    /// The ready key in `slot` is ready no more.
    #[inline]
    pub(crate) fn remove<K>(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        let level = self.ages.0.get(slot as usize).level;
        self.by_age.remove(&mut self.ages, slot);
        self.levels.remove(records, level, slot);
    }

    /// The key that is to be handed out next.
    pub(crate) fn next(&self) -> Option<u32> {
        if self.bound.is_reached() {
            return self.oldest();
        }
        self.levels.first().map(|(_, slot)| slot)
    }

    /// The key that has been ready longest.
    pub(crate) const fn oldest(&self) -> Option<u32> {
        self.by_age.head()
    }

    /// The ready key in `slot` is handed out.
    pub(crate) fn start<K>(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        self.bound.count(self.oldest() == Some(slot));
        self.remove(records, slot);
    }

    /// The record in `from`, which is ready, is in `to`, below it, from now on.
    pub(crate) fn moved<K>(&mut self, records: &mut Slab<Record<K>>, from: u32, to: u32) {
        let place = self.ages.0.get(from as usize).clone();
        if let Some(list) = self.levels.list_mut(place.level) {
            list.moved(records, from, to);
        }
        *self.ages.0.get_mut(to as usize) = place;
        self.by_age.moved(&mut self.ages, from, to);
    }

    /// There are no slots from `end` on any more.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.ages.0.truncate(end);
    }
}

#[cfg(test)]
impl Priorities {
    /// Of how many slots it has something.
    pub(crate) fn slots(&self) -> usize {
        self.ages.0.len()
    }
}
