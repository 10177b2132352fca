//! A remote queue, which other processes work on too. The program leases one key at a time. The remote queue decides
//! whether and when a failed key runs again.
//!
//! `requeue::workers::{WorkQueue, WorkItem}` cannot replace these traits: `WorkItem::complete` does not return whether
//! the store recorded the outcome and parked the key, which the summary, `--halt` and the dead letters depend on.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use requeue::{Added, Completion, Item};
use tokio::sync::mpsc;

use crate::key::{Key, KeyQueue};
use crate::runner::hooks::BoxFuture;

/// A remote queue.
pub(crate) trait RemoteQueue: Debug + Send + Sync {
    /// Waits for the next key, and leases it. Returns `None` when there will be no more keys. Cancel safe.
    fn next(&self) -> BoxFuture<'_, Option<Box<dyn Lease>>>;

    /// Declares that this process adds no more keys. `next` then returns `None` when no key is left.
    fn close(&self);

    /// Stops leasing, and waits until the leases of keys without a command are released.
    fn settle(&self) -> BoxFuture<'_, ()>;

    /// Returns true if the queue was dropped during this run. The engine has reported that.
    fn is_gone(&self) -> bool;

    /// Returns the dashboard of its keys.
    #[cfg(feature = "store")]
    fn page(&self) -> requeue_http::Builder<requeue_store::Key>;
}

/// A key that is leased for one run.
pub(crate) trait Lease: Debug + Send + Sync {
    fn key(&self) -> &[u8];

    /// Returns 1 plus the number of failures since the last success.
    fn attempt(&self) -> u32;

    fn priority(&self) -> i32;

    /// Returns the number of adds that the run serves.
    fn adds(&self) -> u32;

    /// Returns the fencing token. A later lease of the key has a greater one.
    fn fencing_token(&self) -> u64;

    fn is_lost(&self) -> bool;

    /// Waits until the lease is lost. Then another worker may have the key.
    fn lost(&self) -> BoxFuture<'_, ()>;

    /// Returns true if the run was cancelled.
    fn is_cancelled(&self) -> bool;

    /// Waits until the run is cancelled.
    fn cancelled(&self) -> BoxFuture<'_, ()>;

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

/// The leases of the keys in the local queue. Each slot leases a key into that queue, and takes a key from it.
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

    /// Leases a key into the local queue. Returns `None` when there will be no more keys.
    pub(super) async fn lease_into(&self, queue: &KeyQueue) -> Option<()> {
        loop {
            let lease = self.remote.next().await?;
            let key = Key::from(lease.key());
            // The lock is held until the key is added, so that the slot that takes the key finds its lease.
            let mut waiting = self.lock();
            // This may replace an earlier lease of the key, which was lost.
            waiting.insert(key.clone(), lease);
            match queue.add(key) {
                Added::New | Added::Dirty => return Some(()),
                Added::Refused => return None,
                // The key is already in the queue.
                _ => {}
            }
        }
    }

    pub(super) fn take(&self, key: &Key) -> Option<Box<dyn Lease>> {
        self.lock().remove(key)
    }

    /// Returns true if the queue was dropped.
    pub(super) fn is_gone(&self) -> bool {
        self.remote.is_gone()
    }

    pub(super) fn close(&self) {
        self.remote.close();
    }

    /// Releases all keys whose commands have not started, and waits until the remote queue has them back.
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
