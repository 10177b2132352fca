//! The futures that wait for the cancellation of their runs.

use std::collections::BTreeMap;
use std::task::{Wake, Waker};

use super::waiters::Wakes;
use crate::sync::{Arc, AtomicBool, Ordering};

/// The list of the futures that wait for a cancellation. The queue's lock guards the list. It is allocated with the
/// first future, because most queues have no such future.
#[derive(Default)]
pub(super) struct Watchers(Option<Box<List>>);

#[derive(Default)]
struct List {
    /// The futures, by the number of the delivery and the number of the future.
    listed: BTreeMap<(u64, u64), Arc<Watcher>>,
    /// The number of the future that was listed last.
    last: u64,
}

/// The state of a future that waits. The future and the list share this value, so that the list
/// never drops the waker, whose drop is user code.
pub(super) struct Watcher {
    waker: Waker,
    /// This flag is set under the lock, before the waker is called.
    is_woken: AtomicBool,
}

impl Watcher {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { waker, is_woken: AtomicBool::new(false) })
    }

    /// Returns true if `waker` was not woken yet, and will be woken.
    pub(super) fn will_wake(&self, waker: &Waker) -> bool {
        // The flag is read without the lock. A poll that misses the change of the flag has begun
        // before the waker is called, so the waker polls the task again.
        !self.is_woken.load(Ordering::Acquire) && self.waker.will_wake(waker)
    }
}

impl Wake for Watcher {
    fn wake(self: Arc<Self>) {
        self.waker.wake_by_ref();
    }
}

impl Watchers {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|list| list.listed.is_empty())
    }

    /// Lists a future of the delivery `epoch`, and returns its number.
    pub(super) fn list_watcher(&mut self, epoch: u64, watcher: Arc<Watcher>) -> u64 {
        let list = self.0.get_or_insert_default();
        list.last += 1;
        list.listed.insert((epoch, list.last), watcher);
        list.last
    }

    /// Removes a future.
    pub(super) fn remove_watcher(&mut self, epoch: u64, number: u64) {
        if let Some(list) = &mut self.0 {
            list.listed.remove(&(epoch, number));
        }
    }

    /// Removes the futures of the delivery `epoch`, which is cancelled, and returns their wakers.
    pub(super) fn take_wakers(&mut self, epoch: u64, wakes: &mut Wakes) {
        while let Some(watcher) = self.pop_watcher(epoch) {
            watcher.is_woken.store(true, Ordering::Release);
            wakes.push(Waker::from(watcher));
        }
    }

    /// Removes the futures of the delivery `epoch`, which is completed. These futures are never ready.
    #[inline(always)]
    pub(super) fn end_delivery(&mut self, epoch: u64) {
        if self.0.is_some() {
            self.remove_all(epoch);
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_all(&mut self, epoch: u64) {
        while self.pop_watcher(epoch).is_some() {}
    }

    fn pop_watcher(&mut self, epoch: u64) -> Option<Arc<Watcher>> {
        let listed = &mut self.0.as_mut()?.listed;
        let (&at, _) = listed.range((epoch, 0)..=(epoch, u64::MAX)).next()?;
        listed.remove(&at)
    }
}
