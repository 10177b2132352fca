//! The ways to complete a delivery. Items, workers, stores and controllers share this type.

use std::time::Duration;

/// The way in which a delivery is completed: the result of the run, and the effect on its key.
///
/// If an item is dropped without a completion, its delivery is completed as [`Retry`](Self::Retry).
/// If its run was cancelled, the delivery is completed as [`Cancelled`](Self::Cancelled).
/// | completion | consecutive failures | next run | client-go | controller-runtime | kube-rs |
/// |---|---|---|---|---|---|
/// | [`Succeed`](Self::Succeed) | reset | when the key is added | `Forget`, `Done` | `Result{}` | `Action::await_change()` |
/// | [`RequeueAfter`](Self::RequeueAfter) | reset | after the delay | `Forget`, `AddAfter`, `Done` | `Result{RequeueAfter: d}` | `Action::requeue(d)` |
/// | [`Retry`](Self::Retry) | counted | after the limiter's backoff | `AddRateLimited`, `Done` | an error | `Err`, with a backoff in `error_policy` |
/// | [`RetryAfter`](Self::RetryAfter) | counted, but not by the limiter | after the delay | `AddAfter`, `Done` | none |
/// `Err`, with `Action::requeue(d)` in `error_policy` |
/// | [`GiveUp`](Self::GiveUp) | reset | when the key is added | `Forget`, `Done` | `reconcile.TerminalError` | `Err`, with `Action::await_change()` in `error_policy` |
/// | [`Release`](Self::Release) | unchanged | now, at the tail | `Add`, `Done` | none | none |
/// | [`ReleaseAfter`](Self::ReleaseAfter) | unchanged | after the delay, or when the key is added | `AddAfter`, `Done` | none | none |
/// | [`Cancelled`](Self::Cancelled) | unchanged | when the key is added | `Done` | none | none |
///
/// In each case, a key that was added again during the run runs once more. The state table in
/// `docs/concepts/semantics.md` has the exact rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Completion {
    /// The run succeeded. The failures of the key are forgotten.
    Succeed,
    /// The run succeeded, and the key is added again after this delay, with the priority of the
    /// run. The failures of the key are forgotten.
    RequeueAfter(Duration),
    /// The run failed. The failure is counted, and the key is retried after the backoff that the
    /// limiter computes. If the key has reached the limit of failures, a store parks it instead.
    Retry,
    /// The run failed, and the key is retried after this delay. The number of failures grows by
    /// one, but the limiter does not count this failure, so the backoff of the key does not grow.
    RetryAfter(Duration),
    /// The run failed, and the key is not retried. A queue in memory forgets the failures of the
    /// key, and increments `workqueue_given_up_total`. A store parks the key. If the key was added
    /// during the run, it is not given up: it runs again, and its failures are forgotten.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Completion, Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let clock = FakeClock::new();
    /// let queue = Queue::builder().clock(clock.clone()).build()?;
    /// queue.add("broken");
    /// queue.try_get().expect("it is ready").retry();
    /// clock.advance(Duration::from_secs(1));
    /// let item = queue.try_get().expect("the backoff is over");
    /// assert_eq!(item.attempt(), 2);
    /// item.complete(Completion::GiveUp);
    /// assert_eq!((queue.failures("broken"), queue.sample().given_up), (0, 1));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    GiveUp,
    /// The delivery is undone. The number of failures does not change, and the key is ready
    /// immediately, at the tail of the order. A worker uses this completion if it must not
    /// continue: it is being paused, or is no longer the leader.
    Release,
    /// Like [`Release`](Self::Release), but the key waits until this delay is over, or until it is
    /// added again. With [`Duration::MAX`], it waits only for an add. A worker uses this completion
    /// if it finds that the run cannot start yet. A store ignores the delay, and makes the key
    /// ready immediately.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::clock::FakeClock;
    /// use requeue::{Completion, Pace, Queue};
    /// use std::time::Duration;
    ///
    /// let second = Duration::from_secs(1);
    /// let pace = Pace::min_interval(10 * second);
    /// let clock = FakeClock::new();
    /// let queue = Queue::builder().clock(clock.clone()).pace(pace).build()?;
    /// queue.add("a");
    /// let item = queue.try_get().expect("it is ready");
    /// item.complete(Completion::ReleaseAfter(second)); // its input is not there yet
    /// assert!(queue.try_get().is_none());
    /// clock.advance(second);
    /// assert_eq!(queue.try_get().expect("no run has started").attempt(), 1);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    ReleaseAfter(Duration),
    /// The run was cancelled, and has stopped before it was done. The number of failures does not
    /// change. The key runs again only if it was added again. If the run was
    /// [restarted](crate::CancelReason::Restarted), the next run also serves the adds of this run.
    Cancelled,
}
