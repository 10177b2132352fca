//! The list of waiting drains.

use std::task::Waker;

use requeue_core as core;

/// The waiting drains of a queue. The list is under the queue's lock.
pub(super) struct Drainers {
    listed: Vec<Drainer>,
    /// The number of the latest drain that was listed.
    last: u64,
}

/// A waiting drain.
struct Drainer {
    number: u64,
    in_flight_only: bool,
    /// True once the drain has completed. It stays true, even if other keys are delivered
    /// afterwards.
    finished: bool,
    waker: Option<Waker>,
}

impl Drainers {
    pub(super) const fn new() -> Self {
        Self { listed: Vec::new(), last: 0 }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Marks the drains that have just completed, and returns their wakers.
    pub(super) fn finish<K: Eq + Clone>(
        &mut self,
        core: &core::Queue<K>,
    ) -> impl Iterator<Item = Waker> {
        self.listed.iter_mut().filter_map(|drainer| {
            drainer.finished |= is_drained(core, drainer.in_flight_only);
            if drainer.finished { drainer.waker.take() } else { None }
        })
    }

    /// Returns the wakers of all drains.
    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.listed.iter_mut().filter_map(|drainer| drainer.waker.take())
    }

    /// Returns true if the drain has completed since it was listed.
    pub(super) fn has_finished(&self, number: Option<u64>) -> bool {
        self.listed.iter().any(|drainer| Some(drainer.number) == number && drainer.finished)
    }

    /// Lists a drain, or replaces its waker. Returns a waker that is no longer needed, to be
    /// dropped outside the lock.
    pub(super) fn wait(
        &mut self,
        number: &mut Option<u64>,
        in_flight_only: bool,
        waker: Waker,
    ) -> Option<Waker> {
        let listed = self.listed.iter_mut().find(|drainer| Some(drainer.number) == *number);
        if let Some(drainer) = listed {
            drainer.in_flight_only = in_flight_only;
            return drainer.waker.replace(waker);
        }
        self.last += 1;
        *number = Some(self.last);
        let waker = Some(waker);
        self.listed.push(Drainer { number: self.last, in_flight_only, finished: false, waker });
        None
    }

    /// Removes a drain that no longer waits. Returns its waker, to be dropped outside the lock.
    pub(super) fn leave(&mut self, number: u64) -> Option<Waker> {
        let at = self.listed.iter().position(|drainer| drainer.number == number)?;
        self.listed.swap_remove(at).waker
    }
}

/// Returns true if a drain of this queue is complete.
pub(super) fn is_drained<K: Eq + Clone>(core: &core::Queue<K>, in_flight_only: bool) -> bool {
    if in_flight_only { core.processing() == 0 } else { core.is_drained() }
}
