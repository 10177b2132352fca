//! The leases of keys in a remote queue: a queue in a store or at a server, which other processes also work on. The
//! remote queue decides whether and when a failed key runs again.
//!
//! `requeue::workers::WorkQueue` cannot be used as the common interface of remote queues and a queue in memory. The
//! summary, `--halt` and the dead letters need to know whether the queue recorded the outcome and parked the key.
//! `WorkItem::complete` does not return this.

use std::collections::HashMap;

use parking_lot::Mutex;
use requeue::{Added, Completion, Item};
use requeue_http::api::WorkAction;
use requeue_store::Queue;
use tokio::sync::mpsc;

use crate::client::claims::{End, ServerLease, ServerQueue};
use crate::exit::error_chain;
use crate::key::{Key, KeyQueue};
use crate::runner::outcome::Outcome;
use crate::traces::RunSpan;

/// A queue that other processes also work on.
#[derive(Debug)]
pub(crate) enum Remote {
    Store(Queue),
    Server(ServerQueue),
}

impl Remote {
    async fn get(&self) -> Option<Lease> {
        match self {
            Self::Store(queue) => Some(Lease::Store(Box::new(queue.get().await?))),
            Self::Server(queue) => Some(Lease::Server(Box::new(queue.get().await?))),
        }
    }

    /// Closes the queue for this process when no process has keys left.
    pub(super) fn shut_down_when_idle(&self) {
        match self {
            Self::Store(queue) => queue.shut_down_when_idle(),
            // The server answers each claim by this rule, so the client does nothing.
            Self::Server(_) => {}
        }
    }

    /// Stops the claims of keys, and waits until the remote queue has recorded all outcomes.
    async fn shut_down(&self) {
        match self {
            Self::Store(queue) => {
                queue.shut_down();
                queue.settled().await;
            }
            Self::Server(queue) => {
                queue.shut_down();
                queue.settled().await;
            }
        }
    }

    /// Returns true if the queue was dropped from the store, or if the server has refused to deliver keys.
    pub(super) fn has_failed(&self) -> bool {
        match self {
            Self::Store(queue) => queue.is_dropped(),
            Self::Server(queue) => queue.has_failed(),
        }
    }
}

/// A key that this process has leased for one run.
#[derive(Debug)]
pub(crate) enum Lease {
    Store(Box<requeue_store::Item>),
    Server(Box<ServerLease>),
}

impl Lease {
    fn key(&self) -> Key {
        match self {
            Self::Store(item) => Key::from(&**item.key()),
            Self::Server(lease) => lease.key().clone(),
        }
    }

    pub(super) fn attempt(&self) -> u32 {
        match self {
            Self::Store(item) => item.attempt(),
            Self::Server(lease) => lease.claimed().attempt,
        }
    }

    pub(super) fn adds(&self) -> u32 {
        match self {
            Self::Store(item) => item.adds(),
            Self::Server(lease) => lease.claimed().adds,
        }
    }

    pub(super) fn priority(&self) -> i32 {
        match self {
            Self::Store(item) => item.priority().into(),
            Self::Server(lease) => lease.claimed().priority,
        }
    }

    pub(super) fn fencing_token(&self) -> u64 {
        match self {
            Self::Store(item) => item.fencing_token(),
            Self::Server(lease) => lease.fencing_token(),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Store(item) => item.is_lost(),
            Self::Server(lease) => lease.is_lost(),
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        match self {
            Self::Store(item) => item.cancel_reason().is_some(),
            Self::Server(lease) => lease.is_cancelled(),
        }
    }

    /// Waits until the lease is lost or the run is cancelled.
    pub(super) async fn stopped(&self) {
        match self {
            Self::Store(item) => tokio::select! {
                () = item.lost() => {}
                _ = item.cancelled() => {}
            },
            Self::Server(lease) => lease.stopped().await,
        }
    }

    /// Sets the command's output. The remote queue stores it if the run fails.
    pub(super) fn set_output(&mut self, output: &str) {
        match self {
            Self::Store(item) => item.set_output(output),
            Self::Server(lease) => lease.set_output(output),
        }
    }

    /// Completes the delivery. Returns true if this completion parked the key. If the future is dropped after its
    /// first poll, the lease still ends.
    pub(super) async fn complete(self, outcome: &Outcome) -> Result<bool, String> {
        let (error, exit_status) = match outcome {
            Outcome::Failed { exit, .. } => (outcome.error(), *exit),
            _ => (None, None),
        };
        match self {
            Self::Store(mut item) => {
                error.iter().for_each(|error| item.set_error(error));
                exit_status.iter().for_each(|&exit| item.set_exit_status(exit));
                let completed = item.complete(outcome.completion()).await;
                completed.map(|completed| completed.parked).map_err(|error| error_chain(&error))
            }
            Self::Server(lease) => {
                let (action, gives_up) = match outcome {
                    Outcome::Succeeded => (WorkAction::Complete, false),
                    Outcome::Failed { is_final, .. } => (WorkAction::Fail, *is_final),
                    // The server already knows that the run was cancelled, so a release is enough.
                    Outcome::Cancelled(_) | Outcome::Interrupted => (WorkAction::Release, false),
                };
                lease.end(action, End { error, exit_status, gives_up }).await
            }
        }
    }

    /// Gives the key back to the remote queue. The caller must not have started its run.
    async fn release(self) {
        // The result is ignored. If the lease was lost, the key no longer needs a release.
        match self {
            Self::Store(item) => _ = item.complete(Completion::Release).await,
            Self::Server(lease) => _ = lease.end(WorkAction::Release, End::default()).await,
        }
    }

    /// Begins the span of the run. A key of a server has no span, because the server does not send the trace context
    /// of an add.
    #[cfg(feature = "opentelemetry")]
    fn start_span(&self) -> Option<requeue::trace::RunSpan> {
        match self {
            Self::Store(item) => item.start_span(),
            Self::Server(_) => None,
        }
    }
}

/// The keys that this process has parked without a run, because the lease of their last allowed run expired. Each
/// entry contains the key, the number of attempts and the reason.
pub(crate) type ExpiredKeys = mpsc::UnboundedReceiver<(Key, u32, String)>;

/// A key in flight in this process.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) item: Item<'static, Key>,
    /// The lease of the key. `None` for a key of the queue in memory.
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

/// The leases of the keys in the local queue. Each slot first leases a key from the remote queue, puts the key into
/// the local queue, and then takes a key from the local queue.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(super) remote: Remote,
    waiting: Mutex<HashMap<Key, Lease>>,
}

impl Leases {
    pub(super) fn new(remote: Remote) -> Self {
        Self { remote, waiting: Mutex::default() }
    }

    /// Leases one key and adds it to the local queue. Returns `None` when the remote queue delivers no more keys.
    pub(super) async fn lease_into(&self, queue: &KeyQueue) -> Option<()> {
        loop {
            let lease = self.remote.get().await?;
            let key = lease.key();
            // The lock is held until the key is in the local queue. The slot that takes the key then always finds its
            // lease.
            let mut waiting = self.waiting.lock();
            // If this replaces an earlier lease of the same key, that lease was lost.
            waiting.insert(key.clone(), lease);
            match queue.add(key) {
                // A key whose earlier command still runs in this process becomes dirty. It runs when that command has
                // exited.
                Added::New | Added::Dirty => return Some(()),
                added if !added.is_accepted() => return None,
                // The key is already in the local queue, so the loop leases another one.
                _ => {}
            }
        }
    }

    pub(super) fn take_lease(&self, key: &Key) -> Option<Lease> {
        self.waiting.lock().remove(key)
    }

    /// Releases all leased keys whose commands have not started. Waits until the remote queue has recorded the
    /// releases.
    pub(super) async fn release_all(&self) {
        // Each release waits for the remote queue, so the lock is not held during the releases.
        let waiting: Vec<_> = self.waiting.lock().drain().collect();
        for (_, lease) in waiting {
            lease.release().await;
        }
        self.remote.shut_down().await;
    }
}
