//! The leases of keys of a queue in a store, which other processes also work on. The program leases one key at a time.
//! The store decides whether and when a failed key runs again.
//!
//! `requeue::workers::WorkQueue` cannot represent both kinds of queues. The summary, `--halt` and the dead letters need
//! to know whether the store recorded the outcome and parked the key, but `WorkItem::complete` does not return this.

use std::collections::HashMap;

use parking_lot::Mutex;
use requeue::{Added, Completion, Item};
use requeue_store::Queue;
use tokio::sync::mpsc;

use crate::exit::error_chain;
use crate::key::{Key, KeyQueue};
use crate::runner::outcome::Outcome;
use crate::traces::RunSpan;

/// A key that is leased for one run.
pub(crate) type Lease = requeue_store::Item;

/// Completes the delivery. Returns true if this completion parked the key. The lease ends even if the future is dropped
/// after its first poll.
pub(super) async fn complete_lease(mut lease: Lease, outcome: &Outcome) -> Result<bool, String> {
    if let (Outcome::Failed { exit, .. }, Some(error)) = (outcome, outcome.error()) {
        lease.set_error(&error);
        exit.iter().for_each(|&exit| lease.set_exit_status(exit));
    }
    let completed = lease.complete(outcome.completion()).await;
    completed.map(|completed| completed.parked).map_err(|error| error_chain(&error))
}

/// The keys that this process has parked without a run, because the lease of their last run expired. Each entry
/// contains the number of attempts and the reason.
pub(crate) type ExpiredKeys = mpsc::UnboundedReceiver<(Key, u32, String)>;

/// A key in flight.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) item: Item<'static, Key>,
    /// `None` for a key of the queue in memory.
    pub(crate) lease: Option<Lease>,
}

impl Job {
    /// Begins the span of the run.
    pub(super) fn start_span(&self) -> RunSpan {
        #[cfg(feature = "opentelemetry")]
        let span = RunSpan::from(match &self.lease {
            Some(lease) => lease.start_span(),
            None => self.item.start_span(),
        });
        #[cfg(not(feature = "opentelemetry"))]
        let span = RunSpan::default();
        span.set_key(&self.item);
        span
    }
}

/// The leases of the keys in the local queue. Each slot leases a key into that queue, and takes a key from it.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(super) remote: Queue,
    waiting: Mutex<HashMap<Key, Lease>>,
}

impl Leases {
    pub(super) fn new(remote: Queue) -> Self {
        Self { remote, waiting: Mutex::default() }
    }

    /// Leases a key into the local queue. Returns `None` when no more keys will come.
    pub(super) async fn lease_into(&self, queue: &KeyQueue) -> Option<()> {
        loop {
            let lease = self.remote.get().await?;
            let key = Key::from(&**lease.key());
            // The lock is held until the key is added, so that the slot that takes the key finds its lease.
            let mut waiting = self.waiting.lock();
            // This may replace an earlier lease of the key, which was lost.
            waiting.insert(key.clone(), lease);
            match queue.add(key) {
                // A key whose command still runs here waits for the end of that command.
                Added::New | Added::Dirty => return Some(()),
                added if !added.is_accepted() => return None,
                // The key is already in the queue.
                _ => {}
            }
        }
    }

    pub(super) fn take_lease(&self, key: &Key) -> Option<Lease> {
        self.waiting.lock().remove(key)
    }

    /// Releases all keys whose commands have not started, and waits until the remote queue has received them.
    pub(super) async fn release_all(&self) {
        // The lock is not held during the releases, because each of them waits for the store.
        let waiting: Vec<_> = self.waiting.lock().drain().collect();
        for (_, lease) in waiting {
            // The result is ignored, because a lost lease needs no release.
            let _ = lease.complete(Completion::Release).await;
        }
        self.remote.shut_down();
        self.remote.settled().await;
    }
}
