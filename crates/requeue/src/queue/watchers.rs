//! The futures that wait for the cancellation of their run.

use std::collections::BTreeMap;
use std::task::Waker;

use super::waiters::Wakes;
use crate::sync::{Arc, AtomicBool, Ordering};

/// The list of the futures that wait. It is under the queue's lock, and allocated with the first one,
/// because most queues have none.
#[derive(Default)]
pub(super) struct Watchers(Option<Box<List>>);

#[derive(Default)]
struct List {
    /// The futures by the number of the delivery, and a number of their own.
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
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|list| list.listed.is_empty())
    }

    /// Lists a future of the delivery `epoch`, and returns its number.
    pub(super) fn wait(&mut self, epoch: u64, watcher: Watcher) -> u64 {
        let list = self.0.get_or_insert_default();
        list.last += 1;
        list.listed.insert((epoch, list.last), watcher);
        list.last
    }

    /// Removes a future, and returns its entry, to be dropped outside the lock.
    pub(super) fn leave(&mut self, epoch: u64, number: u64) -> Option<Watcher> {
        self.0.as_mut()?.listed.remove(&(epoch, number))
    }

    /// Removes the futures of the delivery `epoch`, which is cancelled, and returns their wakers.
    pub(super) fn take(&mut self, epoch: u64, wakes: &mut Wakes) {
        let Some(List { listed, .. }) = self.0.as_deref_mut() else { return };
        while let Some((&at, _)) = listed.range((epoch, 0)..=(epoch, u64::MAX)).next()
            && let Some(watcher) = listed.remove(&at)
        {
            watcher.is_woken.store(true, Ordering::Release);
            wakes.push(watcher.waker);
        }
    }
}
