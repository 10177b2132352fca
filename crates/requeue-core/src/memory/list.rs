//! A doubly linked list whose links are stored outside the list, beside its entries.

use crate::types::{Id, Slot};

/// The container that stores the links of the entries of a list.
pub(crate) trait Links<I: Id = Slot> {
    /// Returns the links of `id`: the previous entry and the next entry.
    fn links_of(&mut self, id: I) -> &mut [Option<I>; 2];
}

/// A list of entries in order of arrival. The removal of any entry takes constant time.
///
/// The previous-link of the first entry is not valid. [`pop_front`](Self::pop_front) therefore does
/// not write to the second entry, which may be far away in memory.
#[derive(Clone, Copy)]
pub(crate) struct List<I = Slot> {
    head: Option<I>,
    tail: Option<I>,
}

impl<I: Id> List<I> {
    pub(crate) const fn new() -> Self {
        Self { head: None, tail: None }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    #[inline]
    pub(crate) const fn head(&self) -> Option<I> {
        self.head
    }

    #[inline]
    pub(crate) const fn tail(&self) -> Option<I> {
        self.tail
    }

    /// Appends `id`. The caller has already set the links of `id`: the previous entry is the old
    /// tail, and there is no next entry.
    #[inline]
    pub(crate) fn append(&mut self, links: &mut impl Links<I>, id: I) {
        match self.tail {
            None => self.head = Some(id),
            Some(tail) => links.links_of(tail)[1] = Some(id),
        }
        self.tail = Some(id);
    }

    pub(crate) fn push_back(&mut self, links: &mut impl Links<I>, id: I) {
        *links.links_of(id) = [self.tail, None];
        self.append(links, id);
    }

    pub(crate) fn push_front(&mut self, links: &mut impl Links<I>, id: I) {
        *links.links_of(id) = [None, self.head];
        match self.head {
            None => self.tail = Some(id),
            Some(head) => links.links_of(head)[0] = Some(id),
        }
        self.head = Some(id);
    }

    /// Removes the first entry. `next` must be the second entry.
    #[inline]
    pub(crate) const fn pop_front(&mut self, next: Option<I>) {
        self.head = next;
        if next.is_none() {
            self.tail = None;
        }
    }

    pub(crate) fn remove(&mut self, links: &mut impl Links<I>, id: I) {
        match self.around(links, id, id) {
            [None, next] => self.pop_front(next),
            [prev, next] => self.link_neighbours(links, [prev, next], next, prev),
        }
    }

    /// Replaces entry `from` with entry `to`. The caller has already copied the links of `from` to
    /// `to`.
    pub(crate) fn move_slot(&mut self, links: &mut impl Links<I>, from: I, to: I) {
        let around = self.around(links, from, to);
        self.link_neighbours(links, around, Some(to), Some(to));
    }

    /// Returns the previous and the next entry of `id`. The links of `id` are stored at `at`.
    fn around(&self, links: &mut impl Links<I>, id: I, at: I) -> [Option<I>; 2] {
        let [prev, next] = *links.links_of(at);
        // The previous-link of the first entry is not valid, because `pop_front` does not clear it.
        [if Some(id) == self.head { None } else { prev }, next]
    }

    /// Makes `next` the entry after `before`, and `prev` the entry before `after`.
    fn link_neighbours(
        &mut self,
        links: &mut impl Links<I>,
        [before, after]: [Option<I>; 2],
        next: Option<I>,
        prev: Option<I>,
    ) {
        match before {
            None => self.head = next,
            Some(before) => links.links_of(before)[1] = next,
        }
        match after {
            None => self.tail = prev,
            Some(after) => links.links_of(after)[0] = prev,
        }
    }
}
