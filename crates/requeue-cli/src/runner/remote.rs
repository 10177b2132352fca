//! A queue elsewhere, which other processes work on too: the program leases one key at a time. That
//! queue decides whether and when a failed key runs again.
//!
//! `requeue::workers::{WorkQueue, WorkItem}` can't stand in for these traits: `WorkItem::complete` does not
//! return whether the store recorded the outcome and parked the key, which the summary, `--halt` and the
//! dead letters depend on.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use requeue::{Added, Completion, Item};
use tokio::sync::mpsc;

use crate::key::{Key, KeyQueue};
use crate::runner::hooks::BoxFuture;

/// A queue elsewhere.
pub(crate) trait RemoteQueue: Debug + Send + Sync {
    /// Leases the next key once there is one; `None` when no more come. Cancel safe.
    fn next(&self) -> BoxFuture<'_, Option<Box<dyn Lease>>>;

    /// This process adds no more keys: the queue ends when no key is left.
    fn close(&self);

    /// Leases no more keys, and waits until the keys that do not run here are back.
    fn settle(&self) -> BoxFuture<'_, ()>;

    /// Whether the queue was dropped while this process worked on it. The engine has reported it.
    fn is_gone(&self) -> bool;

    /// The page of its keys.
    #[cfg(feature = "store")]
    fn page(&self) -> requeue_http::Builder<requeue_store::Key>;
}

/// A key that is leased for one run.
pub(crate) trait Lease: Debug + Send + Sync {
    fn key(&self) -> &[u8];

    /// 1, and one more for each failure before.
    fn attempt(&self) -> u32;

    fn priority(&self) -> i32;

    /// How many adds the run stands for.
    fn adds(&self) -> u32;

    /// The fencing token: a later lease of the key has a greater one.
    fn epoch(&self) -> u64;

    fn is_lost(&self) -> bool;

    /// Waits until the lease is lost: another worker may have the key then.
    fn lost(&self) -> BoxFuture<'_, ()>;

    /// Completes the delivery, and returns whether that parked the key. `error` is the reason of a
    /// failure. The lease ends even if the future is dropped after its first poll.
    fn complete(
        self: Box<Self>,
        completion: Completion,
        error: Option<&str>,
    ) -> BoxFuture<'static, Result<bool, String>>;
}

/// A key that this process has parked without a run: the lease of its last run expired.
#[derive(Debug)]
pub(crate) struct ExpiredKey {
    pub(crate) key: Key,
    pub(crate) attempts: u32,
    pub(crate) why: String,
}

/// The keys that claims park.
pub(crate) type ExpiredKeys = mpsc::UnboundedReceiver<ExpiredKey>;

/// A key in flight.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) item: Item<'static, Key>,
    /// `None` for a key of the queue in memory.
    pub(crate) lease: Option<Box<dyn Lease>>,
}

/// The leases of the keys that wait in the queue here: each slot leases a key into that queue, and takes
/// one from it.
#[derive(Debug)]
pub(crate) struct Leases {
    remote: Arc<dyn RemoteQueue>,
    waiting: Mutex<HashMap<Key, Box<dyn Lease>>>,
}

impl Leases {
    pub(super) fn new(remote: Arc<dyn RemoteQueue>) -> Self {
        Self { remote, waiting: Mutex::default() }
    }

    #[cfg(feature = "store")]
    pub(super) fn remote(&self) -> &dyn RemoteQueue {
        &*self.remote
    }

    /// Leases a key into the queue; `None` when no more come.
    pub(super) async fn lease_into(&self, queue: &KeyQueue) -> Option<()> {
        loop {
            let lease = self.remote.next().await?;
            let key = Key::from(lease.key());
            // Under the lock: the slot that takes the key finds its lease.
            let mut waiting = self.lock();
            // An earlier lease of the same key has been lost.
            waiting.insert(key.clone(), lease);
            match queue.add(key) {
                Added::New | Added::Dirty => return Some(()),
                Added::Refused => return None,
                // The key waits already: this lease replaces the one before.
                _ => {}
            }
        }
    }

    pub(super) fn take(&self, key: &Key) -> Option<Box<dyn Lease>> {
        self.lock().remove(key)
    }

    /// Whether the queue was dropped meanwhile.
    pub(super) fn is_gone(&self) -> bool {
        self.remote.is_gone()
    }

    pub(super) fn close(&self) {
        self.remote.close();
    }

    /// Ends the leases of all keys whose commands have not started, and waits until they are back.
    pub(super) async fn release(&self) {
        let waiting: Vec<_> = self.lock().drain().collect();
        for (_, lease) in waiting {
            // A lost lease has ended already.
            let _ = lease.complete(Completion::Release, None).await;
        }
        self.remote.settle().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Box<dyn Lease>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
