//! Checks that a cancelled run reaches the process that has the key. The tests of each engine call these
//! functions.

use std::time::Duration;

use requeue::workers::{Action, Context, Error, Workers};
use tokio::time::{Instant, timeout};

use crate::api::queue::Queue;
use crate::api::store::Store;
use crate::types::add::Added;
use crate::types::key::Key;
use crate::{CancelReason, CancelledRun, Completion};

/// The time in which a worker must learn of a cancelled run on a machine that is not loaded.
const PROMISED: Duration = Duration::from_secs(1);
/// The limit of the tests.
const LATEST: Duration = Duration::from_secs(60);

async fn open(store: &Store, name: &str) -> Queue {
    store.queue(name).open().await.expect("the queue opens")
}

/// Cancels runs of `worker` from the process `other`. Returns the shortest time until a worker learned of it.
/// With several attempts, a loaded machine does not fail the test.
pub(crate) async fn check_cancels(worker: &Store, other: &Store, name: &str) {
    let (queue, other) = (open(worker, name).await, open(other, name).await);
    assert_eq!(other.cancel_running("none").await.expect("answered"), CancelledRun::NotInFlight);
    let mut shortest = LATEST;
    for attempt in 0..10 {
        let key = format!("key-{attempt}");
        queue.add(key.as_str()).await.expect("added");
        let item = queue.get().await.expect("the queue is open");
        assert!(!item.is_cancelled());
        let since = Instant::now();
        let cancelled = other.cancel_running(key.as_str()).await.expect("answered");
        assert_eq!(cancelled, CancelledRun::Cancelled);
        let reason = timeout(LATEST, item.cancelled()).await.expect("the worker learns of it");
        shortest = shortest.min(since.elapsed());
        assert_eq!((reason, item.cancel_reason()), (CancelReason::Cancelled, Some(reason)));
        assert!(!item.is_lost(), "the lease is still renewed");
        let again = other.cancel_running(key.as_str()).await.expect("answered");
        assert_eq!(again, CancelledRun::AlreadyCancelled);
        item.complete(Completion::Cancelled).await.expect("the lease is held");
        assert!(other.look_up(key.as_str()).await.expect("looked up").is_none(), "nothing is left");
        if shortest < PROMISED && attempt > 0 {
            break;
        }
    }
    assert!(shortest < PROMISED, "{shortest:?}");

    // A key that was added during the run runs again, and that delivery is not cancelled.
    queue.add("again").await.expect("added");
    let item = queue.get().await.expect("the queue is open");
    assert_eq!(other.add("again").await.expect("added"), Added::Dirty);
    let cancelled = other.cancel_running("again").await.expect("answered");
    assert_eq!(cancelled, CancelledRun::Cancelled);
    timeout(LATEST, item.cancelled()).await.expect("the worker learns of it");
    // The drop of a cancelled item is no failure.
    drop(item);
    let item = queue.get().await.expect("the queue is open");
    assert_eq!((item.attempt(), item.is_cancelled()), (1, false));
    item.succeed().await.expect("the lease is held");
}

/// Cancels a run of `Workers`, whose handler stops.
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

/// Cancels a run whose worker renews only by its lease.
pub(crate) async fn check_renewals(worker: &Store, other: &Store, name: &str) {
    let lease = Duration::from_secs(1);
    let queue = worker.queue(name).lease(lease).open().await.expect("the queue opens");
    let other = open(other, name).await;
    queue.add("a").await.expect("added");
    let item = queue.get().await.expect("the queue is open");
    assert_eq!(other.cancel_running("a").await.expect("answered"), CancelledRun::Cancelled);
    timeout(LATEST, item.cancelled()).await.expect("the worker learns of it by a renewal");
    item.complete(Completion::Cancelled).await.expect("the lease is held");
}
