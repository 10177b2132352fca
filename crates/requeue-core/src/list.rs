//! A doubly linked list of slots, whose links lie with the records.

use crate::slab::NONE;

/// Where the links of a slot are found.
pub(crate) trait Links {
    /// The links of `slot`: the slots before and after it.
    fn links(&mut self, slot: u32) -> &mut [u32; 2];
}

/// First in, first out, and out of the middle at no cost.
#[derive(Clone, Copy)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self { head: NONE, tail: NONE }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(crate) const fn head(&self) -> Option<u32> {
        if self.head == NONE { None } else { Some(self.head) }
    }

    /// The last slot, or `NONE`.
    #[inline]
    pub(crate) const fn tail(&self) -> u32 {
        self.tail
    }

    /// Takes in `slot` at the end; its own links, to the tail and to nothing, are there already.
    #[inline]
    pub(crate) fn append(&mut self, links: &mut impl Links, slot: u32) {
        match self.tail {
            NONE => self.head = slot,
            tail => links.links(tail)[1] = slot,
        }
        self.tail = slot;
    }

    pub(crate) fn push_back(&mut self, links: &mut impl Links, slot: u32) {
        *links.links(slot) = [self.tail, NONE];
        self.append(links, slot);
    }

    /// Takes out the first slot, whose link says that `next` is first then. The link back of that
    /// one is left as it is: it is not looked at, so that a record far away is not touched.
    #[inline]
    pub(crate) const fn pop_front(&mut self, next: u32) {
        self.head = next;
        if next == NONE {
            self.tail = NONE;
        }
    }

    pub(crate) fn remove(&mut self, links: &mut impl Links, slot: u32) {
        match self.around(links, slot, slot) {
            [NONE, next] => self.pop_front(next),
            [prev, next] => self.join(links, [prev, next], next, prev),
        }
    }

    /// The slot `from` of this list is `to` from now on, with its links moved along.
    pub(crate) fn moved(&mut self, links: &mut impl Links, from: u32, to: u32) {
        let around = self.around(links, from, to);
        self.join(links, around, to, to);
    }

    /// The slots before and after `slot`, whose links lie at `at`.
    fn around(&self, links: &mut impl Links, slot: u32, at: u32) -> [u32; 2] {
        let [prev, next] = *links.links(at);
        [if slot == self.head { NONE } else { prev }, next]
    }

    /// Makes `next` the successor of the slot before, and `prev` the predecessor of the one after.
    fn join(&mut self, links: &mut impl Links, [before, after]: [u32; 2], next: u32, prev: u32) {
        match before {
            NONE => self.head = next,
            before => links.links(before)[1] = next,
        }
        match after {
            NONE => self.tail = prev,
            after => links.links(after)[0] = prev,
        }
    }
}
