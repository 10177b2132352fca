//! The futures and threads that wait for a drain of the queue or of a group.

use std::task::Waker;

use requeue_core::{self as core, GroupId};

/// The list of all waiting drains of a queue. The lock of the queue guards it. It is allocated by
/// the first drain.
#[derive(Default)]
pub(super) struct Drainers(Option<Box<List>>);

#[derive(Default)]
struct List {
    listed: Vec<Drainer>,
    /// The number of the drain that was listed last.
    last: u64,
}

/// The condition for which a drain waits.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// No key is ready or in flight.
    Drained,
    /// No key is in flight.
    NothingInFlight,
    /// No key of the group is in flight.
    NoneInFlight(GroupId),
}

impl Until {
    pub(super) fn is_reached<K: Eq + Clone>(self, core: &core::Queue<K>) -> bool {
        match self {
            Self::Drained => core.is_drained(),
            Self::NothingInFlight => core.in_flight() == 0,
            Self::NoneInFlight(group) => core.group_states(group).in_flight == 0,
        }
    }
}

/// One waiting drain.
struct Drainer {
    number: u64,
    until: Until,
    /// True if the condition has been met. Later deliveries do not change this value.
    finished: bool,
    waker: Option<Waker>,
}

impl Drainers {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|list| list.listed.is_empty())
    }

    fn iter_drainers(&mut self) -> impl Iterator<Item = &mut Drainer> {
        self.0.iter_mut().flat_map(|list| &mut list.listed)
    }

    /// Marks the drains whose condition is met now. Returns their wakers.
    pub(super) fn finish_reached<K: Eq + Clone>(
        &mut self,
        core: &core::Queue<K>,
    ) -> impl Iterator<Item = Waker> {
        self.iter_drainers().filter_map(|drainer| {
            drainer.finished |= drainer.until.is_reached(core);
            if drainer.finished { drainer.waker.take() } else { None }
        })
    }

    /// Returns the wakers of all drains.
    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.iter_drainers().filter_map(|drainer| drainer.waker.take())
    }

    /// Returns true if the condition of this drain has been met since the drain was listed.
    pub(super) fn has_finished(&self, number: Option<u64>) -> bool {
        self.0
            .iter()
            .flat_map(|list| &list.listed)
            .any(|drainer| Some(drainer.number) == number && drainer.finished)
    }

    /// Adds a drain to the list, or replaces its waker. Returns the old waker, which the caller
    /// drops outside the lock.
    pub(super) fn list_drain(
        &mut self,
        number: &mut Option<u64>,
        until: Until,
        waker: Waker,
    ) -> Option<Waker> {
        let list = self.0.get_or_insert_default();
        let listed = list.listed.iter_mut().find(|drainer| Some(drainer.number) == *number);
        if let Some(drainer) = listed {
            drainer.until = until;
            return drainer.waker.replace(waker);
        }
        list.last += 1;
        *number = Some(list.last);
        let waker = Some(waker);
        list.listed.push(Drainer { number: list.last, until, finished: false, waker });
        None
    }

    /// Removes a drain that no longer waits. Returns its waker, which the caller drops outside the
    /// lock.
    pub(super) fn remove_drain(&mut self, number: u64) -> Option<Waker> {
        let list = self.0.as_mut()?;
        let at = list.listed.iter().position(|drainer| drainer.number == number)?;
        list.listed.swap_remove(at).waker
    }
}
