//! Checks that the cancellation of a run reaches the process that has the key. The tests of each engine call these
//! functions.

use std::time::Duration;

use requeue::workers::{Action, Context, Error, Workers};
use tokio::time::timeout;

use crate::api::queue::Queue;
use crate::api::store::Store;
use crate::types::add::Added;
use crate::types::key::Key;
use crate::{CancelReason, CancelledRun, Completion};

/// The time limit for each wait.
const LATEST: Duration = Duration::from_secs(900);

async fn open(store: &Store, name: &str) -> Queue {
    store.queue(name).open().await.expect("the queue opens")
}

/// Cancels runs of `worker` from the process `other`. The lease is so long that the worker cannot learn of the
/// cancellation from a renewal.
pub(crate) async fn check_cancels(worker: &Store, other: &Store, name: &str) {
    let opened = worker.queue(name).lease(LATEST * 6).open().await;
    let (queue, other) = (opened.expect("the queue opens"), open(other, name).await);
    assert_eq!(other.cancel_running("none").await.expect("answered"), CancelledRun::NotInFlight);
    queue.add("a").await.expect("added");
    let item = queue.get().await.expect("the queue is open");
    assert_eq!(item.cancel_reason(), None);
    let cancelled = other.cancel_running("a").await.expect("answered");
    assert_eq!(cancelled, CancelledRun::Cancelled);
    let reason = timeout(LATEST, item.cancelled()).await.expect("the worker learns of it");
    assert_eq!((reason, item.cancel_reason()), (CancelReason::Cancelled, Some(reason)));
    assert!(!item.is_lost(), "the lease is still held");
    let again = other.cancel_running("a").await.expect("answered");
    assert_eq!(again, CancelledRun::AlreadyCancelled);
    item.complete(Completion::Cancelled).await.expect("the lease is held");
    assert!(other.look_up("a").await.expect("looked up").is_none(), "nothing is left");

    // A key that was added during the run runs again. The next delivery is not cancelled.
    queue.add("again").await.expect("added");
    let item = queue.get().await.expect("the queue is open");
    assert_eq!(other.add("again").await.expect("added"), Added::Dirty);
    let cancelled = other.cancel_running("again").await.expect("answered");
    assert_eq!(cancelled, CancelledRun::Cancelled);
    timeout(LATEST, item.cancelled()).await.expect("the worker learns of it");
    // If the item of a cancelled run is dropped, no failure is counted.
    drop(item);
    let item = queue.get().await.expect("the queue is open");
    assert_eq!((item.attempt(), item.cancel_reason()), (1, None));
    item.succeed().await.expect("the lease is held");
}

/// Cancels a run of `Workers`, and checks that its handler stops.
pub(crate) async fn check_workers(worker: &Store, other: &Store, name: &str) {
    async fn handle(_: Key, context: Context) -> Result<Action, Error> {
        assert_eq!(context.cancelled().await, CancelReason::Cancelled);
        Ok(Action::cancelled())
    }
    let (queue, other) = (open(worker, name).await, open(other, name).await);
    queue.add("a").await.expect("added");
    queue.shut_down_when_idle();
    let workers = tokio::spawn(Workers::new(queue, handle).run());
    while other.cancel_running("a").await.expect("answered") == CancelledRun::NotInFlight {
        tokio::task::yield_now().await;
    }
    let ended = timeout(LATEST, workers).await.expect("the workers stop").expect("no panic");
    assert!(ended.finished);
    assert!(other.look_up("a").await.expect("looked up").is_none());
}

/// Cancels a run whose worker learns of it only at a regular renewal.
pub(crate) async fn check_renewals(worker: &Store, other: &Store, name: &str) {
    let lease = Duration::from_secs(9);
    let queue = worker.queue(name).lease(lease).open().await.expect("the queue opens");
    let other = open(other, name).await;
    queue.add("a").await.expect("added");
    let item = queue.get().await.expect("the queue is open");
    assert_eq!(other.cancel_running("a").await.expect("answered"), CancelledRun::Cancelled);
    timeout(LATEST, item.cancelled()).await.expect("the worker learns of it by a renewal");
    item.complete(Completion::Cancelled).await.expect("the lease is held");
}
