//! The futures that wait for the cancellation of their run.

use std::collections::BTreeMap;
use std::task::Waker;

use super::waiters::Wakes;
use crate::sync::{Arc, AtomicBool, Ordering};

/// The futures that wait, by the number of the delivery and a number of their own. The list is under
/// the queue's lock.
pub(super) struct Watchers {
    listed: BTreeMap<(u64, u64), Watcher>,
    /// The number of the latest future that was listed.
    last: u64,
}

/// A future that waits.
#[derive(Clone)]
pub(super) struct Watcher {
    waker: Waker,
    /// Set under the lock, before the waker is called.
    is_woken: Arc<AtomicBool>,
}

impl Watcher {
    pub(super) fn new(waker: Waker) -> Self {
        Self { waker, is_woken: Arc::new(AtomicBool::new(false)) }
    }

    /// Returns true if `waker` will be woken, and has not been yet.
    pub(super) fn will_wake(&self, waker: &Waker) -> bool {
        !self.is_woken.load(Ordering::Acquire) && self.waker.will_wake(waker)
    }
}

impl Watchers {
    pub(super) const fn new() -> Self {
        Self { listed: BTreeMap::new(), last: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Lists a future of the delivery `epoch`, and returns its number.
    pub(super) fn wait(&mut self, epoch: u64, watcher: Watcher) -> u64 {
        self.last += 1;
        self.listed.insert((epoch, self.last), watcher);
        self.last
    }

    /// Removes a future, and returns its entry, to be dropped outside the lock.
    pub(super) fn leave(&mut self, epoch: u64, number: u64) -> Option<Watcher> {
        self.listed.remove(&(epoch, number))
    }

    /// Removes the futures of the delivery `epoch`, which is cancelled, and returns their wakers.
    pub(super) fn take(&mut self, epoch: u64, wakes: &mut Wakes) {
        while let Some((&at, _)) = self.listed.range((epoch, 0)..=(epoch, u64::MAX)).next()
            && let Some(watcher) = self.listed.remove(&at)
        {
            watcher.is_woken.store(true, Ordering::Release);
            wakes.push(watcher.waker);
        }
    }
}
