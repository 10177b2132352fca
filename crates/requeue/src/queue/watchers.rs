//! The futures that wait until their runs are cancelled.

use std::collections::BTreeMap;
use std::task::{Wake, Waker};

use super::waiters::Wakes;
use crate::sync::{Arc, AtomicBool, Ordering};

/// The list of these futures. The lock of the queue guards it. It is allocated by the first future,
/// because most queues have none.
#[derive(Default)]
pub(super) struct Watchers(Option<Box<List>>);

#[derive(Default)]
struct List {
    /// The futures, by the epoch of the delivery and the number of the future.
    listed: BTreeMap<(u64, u64), Arc<Watcher>>,
    /// The number of the future that was added last.
    last: u64,
}

/// The state of one waiting future. The future and the list share it. The list therefore never
/// drops the last reference to the waker, whose `drop` is user code.
pub(super) struct Watcher {
    waker: Waker,
    /// True if the run was cancelled. It is set under the lock, before the waker is called.
    is_woken: AtomicBool,
}

impl Watcher {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { waker, is_woken: AtomicBool::new(false) })
    }

    /// Returns true if this value contains the same waker, and the waker has not been called yet.
    pub(super) fn will_wake(&self, waker: &Waker) -> bool {
        // The flag is read without the lock. If a poll reads an old value, it began before the
        // waker was called. The waker then polls the task again.
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

    /// Adds a future that waits for a cancellation of the delivery `epoch`. Returns the number of
    /// the future.
    pub(super) fn list_watcher(&mut self, epoch: u64, watcher: Arc<Watcher>) -> u64 {
        let list = self.0.get_or_insert_default();
        list.last += 1;
        list.listed.insert((epoch, list.last), watcher);
        list.last
    }

    /// Removes the future with this number.
    pub(super) fn remove_watcher(&mut self, epoch: u64, number: u64) {
        if let Some(list) = &mut self.0 {
            list.listed.remove(&(epoch, number));
        }
    }

    /// Removes the futures of the delivery `epoch`, because it is cancelled. Appends their wakers
    /// to `wakes`.
    pub(super) fn take_wakers(&mut self, epoch: u64, wakes: &mut Wakes) {
        while let Some(watcher) = self.pop_watcher(epoch) {
            watcher.is_woken.store(true, Ordering::Release);
            wakes.push(Waker::from(watcher));
        }
    }

    /// Removes the futures of the delivery `epoch`, because it is completed. They never become
    /// ready.
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
