//! The worker's function: one run of the reconciler, from the delivery of a key to the key's completion.

use std::any::Any;
use std::collections::BTreeSet;
use std::future::{self, Future};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use kube::Resource;
use kube::runtime::reflector::{Lookup, ObjectRef, Store};
use kube::runtime::watcher;
use parking_lot::Mutex;
use requeue::workers::{self, Context};
use requeue::{Add, CancelReason, Completion, intern_reason};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::action::Action;
use super::config::Config;
use super::enqueuer::Enqueuer;
use super::error::{Error, panic_message};
use super::failures::Version;
use super::reason::cause_of;
use super::reconcile::{OwnKind, Reconcile};
use super::sharding::HeldShards;
use super::span::RunSpan;
use super::writes::Freshness;
use crate::ObjectKey;
use crate::leader::Status;
use crate::metrics::{Meters, Outcome};

/// An item of the stream that [`Controller::run`](crate::Controller::run) returns.
pub(super) type Item<K, E> = Result<(ObjectRef<K>, Action), Error<E, watcher::Error>>;

/// The values that all runs of a controller share.
pub(super) struct Attempts<K: OwnKind, R: Reconcile<K>> {
    pub(super) enqueuer: Arc<Enqueuer>,
    pub(super) store: Store<K>,
    pub(super) dyntype: K::DynamicType,
    pub(super) reconciler: R,
    pub(super) config: Config,
    pub(super) meters: Arc<Meters>,
    /// The status of the election. A run begins only while this status says that the process leads. `None` without an
    /// election.
    pub(super) lease: Option<Status>,
    pub(super) held: HeldShards,
    /// The keys of the runs in flight. If the controller drops these runs, its error names the keys.
    pub(super) running: Mutex<BTreeSet<ObjectKey>>,
    /// The tracing span in which the user's program first polled the stream.
    pub(super) parent: Span,
    pub(super) results: mpsc::Sender<Item<K, R::Error>>,
    /// The channel for the panic of a reconciler. `None` if a panic only fails the run, and does not end the
    /// controller.
    pub(super) panics: Option<mpsc::UnboundedSender<Box<dyn Any + Send>>>,
}

/// A run whose reconciler has returned, failed, panicked or timed out.
struct Tried<K: Lookup> {
    key: ObjectKey,
    object: ObjectRef<K>,
    version: Option<Version>,
    attempt: u32,
    /// The number of adds of the key before the run. Several adds of a pending key lead to one run.
    adds: u32,
    span: RunSpan,
}

/// A guard that keeps the key of a run in `running`. If the run is dropped because the controller stops, the guard
/// leaves the key there.
struct Listed<'a> {
    running: &'a Mutex<BTreeSet<ObjectKey>>,
    key: &'a ObjectKey,
    run: &'a Context,
    is_over: bool,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let reason = self.run.cancel_reason();
        let was_cancelled =
            matches!(reason, Some(CancelReason::Cancelled | CancelReason::Restarted));
        if self.is_over || was_cancelled {
            self.running.lock().remove(self.key);
        }
    }
}

/// The way in which the reconciler ended.
enum Ended<E> {
    Ok(Action),
    Failed(E, Action),
    Panicked(Box<dyn Any + Send>),
    TimedOut(Duration),
}

impl<E> Ended<E> {
    const fn outcome(&self) -> Outcome {
        match self {
            // A delay of zero does not requeue the object, as in controller-runtime.
            Self::Ok(Action { completion: Completion::RequeueAfter(delay), .. })
                if !delay.is_zero() =>
            {
                Outcome::RequeueAfter
            }
            Self::Ok(Action { completion: Completion::Retry, .. }) => Outcome::Requeue,
            Self::Ok(_) => Outcome::Success,
            Self::Failed(_, Action { completion: Completion::GiveUp, .. }) => Outcome::Terminal,
            Self::Failed(..) => Outcome::Error,
            Self::Panicked(_) => Outcome::Panic,
            Self::TimedOut(_) => Outcome::Timeout,
        }
    }
}

impl<K: OwnKind, R: Reconcile<K>> Attempts<K, R> {
    /// Runs the reconciler for the object of `key`, and returns the action that completes the key in the queue.
    pub(super) async fn run_key(
        &self,
        key: ObjectKey,
        run: Context,
    ) -> Result<workers::Action, workers::Error> {
        if self.lease.as_ref().is_some_and(|lease| !lease.is_leading()) {
            // The term has ended, but this process has not been told yet, because it was frozen. The end of the term
            // drops this future.
            return future::pending().await;
        }
        let normal = self.enqueuer.scope.normalize(key.clone());
        if normal != key {
            // The key has a namespace, because it was added before the controller knew that its kind has none. The run
            // is moved to the key without a namespace.
            let reason = intern_reason("kind without namespaces");
            let add = Add::now().priority(run.priority()).flags(run.flags()).reason(reason);
            self.enqueuer.details.rename_key(&key, &normal);
            self.enqueuer.add_if_held(normal, add, cause_of(run.reasons()));
            return Ok(workers::Action::succeed());
        }
        let object = key.to_ref::<K>(self.dyntype.clone());
        let stored_uid = || uid_of(self.store.get(&object).as_deref());
        let Some(in_flight) = self.enqueuer.ownership.begin_run(&key, &stored_uid) else {
            return Ok(workers::Action::succeed());
        };
        if self.held.has_expired(&key) {
            // This process is no longer a member of the shard group. The handling of this loss cancels the run.
            return future::pending().await;
        }
        let attempt = match self.begin_attempt(&key, &run) {
            Ok(attempt) => attempt,
            Err(action) => return Ok(action),
        };
        let reason = self.enqueuer.details.take_reason(&key, run.flags(), attempt);
        // The store is read again, because the object may have been replaced since the first read.
        let found = self.store.get(&object);
        if !in_flight.is_for(|| uid_of(found.as_deref())) {
            // The store now has another object of this name. The watch's event for this object adds the key again.
            return Ok(workers::Action::succeed());
        }
        let generations = self.config.clear_on_new_generation;
        let version = found.as_ref().map(|found| Version::from_meta(found.meta(), generations));
        let Some(target) = self.reconciler.target_of(&object, found) else {
            self.enqueuer.failures.forget_failures(&key);
            report_item(&self.results, Err(Error::ObjectNotFound(Box::new(object.erase()))));
            return Ok(workers::Action::succeed());
        };
        let mut span = RunSpan::new(&self.parent, &object, &reason, attempt, &run);
        let ended = self.observed_run(&key, &run, target, &mut span).await;
        // The run is no longer counted, so the shard can be handed over.
        drop(in_flight);
        let tried = Tried { key, object, version, attempt, adds: run.adds(), span };
        let next = self.completion_of(&ended, &tried);
        tried.span.span.in_scope(|| self.report_run(ended, tried.object));
        next
    }

    /// Returns the number of this attempt. If the key must not run now, returns the action that completes the key.
    fn begin_attempt(&self, key: &ObjectKey, run: &Context) -> Result<u32, workers::Action> {
        match self.enqueuer.writes.begin_run(key) {
            Freshness::Fresh => {}
            Freshness::TimedOut => self.meters.started_stale(),
            Freshness::Stale(limit) => {
                // The watch has not shown the controller's last write yet. Its event makes the key ready again.
                self.meters.skipped_stale();
                return Err(workers::Action::release_after(limit));
            }
        }
        let attempt = self.enqueuer.failures.begin_attempt(key, run.adds(), run.attempt() > 1);
        if attempt.is_none() && self.enqueuer.stored_version(key).is_none() {
            self.enqueuer.failures.forget_failures(key);
        }
        attempt.ok_or_else(workers::Action::succeed)
    }

    /// Runs the reconciler. During the run, the key is in `running`, and the metrics and a tracing span show the run.
    async fn observed_run(
        &self,
        key: &ObjectKey,
        run: &Context,
        target: R::Target,
        span: &mut RunSpan,
    ) -> Ended<R::Error> {
        let begun = Instant::now();
        let active = self.meters.count_run();
        // The key is inserted before the first poll of the run. If the run is dropped at an `await`, the key remains,
        // and the controller's error names it.
        self.running.lock().insert(key.clone());
        let mut listed = Listed { running: &self.running, key, run, is_over: false };
        let run_of_key =
            self.enqueuer.writes.record_during(key.clone(), self.call_reconciler(target));
        let ended = run_of_key.instrument(span.span.clone()).await;
        // The run has ended by itself, so the guard must remove its key.
        listed.is_over = true;
        drop(listed);
        drop(active);
        span.record_end(ended.outcome());
        self.meters.count_end(ended.outcome(), begun.elapsed());
        ended
    }

    async fn call_reconciler(&self, target: R::Target) -> Ended<R::Error> {
        // The reconciler is called within the time limit and the panic handler, because the call itself may also panic
        // or take long.
        let run = async { self.reconciler.reconcile(target).await };
        match run_within(self.config.reconcile_timeout, AssertUnwindSafe(run).catch_unwind()).await
        {
            Ok(Ok(Ok(action))) => Ended::Ok(action),
            Ok(Ok(Err((error, action)))) => Ended::Failed(error, action),
            Ok(Err(panic)) => Ended::Panicked(panic),
            Err(timeout) => Ended::TimedOut(timeout),
        }
    }

    /// Returns the action that completes the key after the run.
    fn completion_of(
        &self,
        ended: &Ended<R::Error>,
        tried: &Tried<K>,
    ) -> Result<workers::Action, workers::Error> {
        let (action, failed) = match ended {
            Ended::Ok(action) => (action, false),
            Ended::Failed(_, action) => (action, true),
            Ended::Panicked(_) | Ended::TimedOut(_) => (&Action::backoff(), true),
        };
        // The store is read after the run, because the reconciler may have deleted the object.
        let is_gone = !self.enqueuer.runs_gone && self.store.get(&tried.object).is_none();
        let next = if is_gone {
            self.enqueuer.failures.forget_failures(&tried.key);
            Ok(workers::Action::succeed())
        } else if failed || action.completion == Completion::Retry {
            Err(workers::Error::retry_after(
                self.delay_after(action.completion, tried),
                "has failed",
            ))
        } else {
            self.enqueuer.failures.forget_failures(&tried.key);
            Ok(match action.completion {
                Completion::RequeueAfter(delay) => {
                    self.show_delay(delay, tried);
                    workers::Action::requeue_after(delay)
                }
                _ => workers::Action::succeed(),
            })
        };
        match (next, action.priority) {
            (Ok(next), Some(priority)) => Ok(next.priority(priority)),
            (Err(error), Some(priority)) => Err(error.priority(priority)),
            (next, None) => next,
        }
    }

    /// Records a failure, and returns the delay until the next attempt.
    fn delay_after(&self, completion: Completion, tried: &Tried<K>) -> Duration {
        let Tried { key, version, attempt, adds, .. } = tried;
        let failures = &self.enqueuer.failures;
        let version = *version;
        let now = self.enqueuer.queue.now();
        let said = match completion {
            Completion::RequeueAfter(delay) => Some(delay),
            Completion::Retry => None,
            // The object is given up. It runs again only after a change.
            _ => return failures.record_give_up(key, version, *adds, now),
        };
        if self.config.max_retries.is_some_and(|most| *attempt > most) {
            return failures.record_give_up(key, version, *adds, now);
        }
        let delay = failures.record_failure(key, version, said, now);
        self.show_delay(delay, tried);
        delay
    }

    /// Adds the delay until the next run to the metrics and the span.
    fn show_delay(&self, delay: Duration, tried: &Tried<K>) {
        self.meters.comes_back(delay);
        tried.span.requeued_after(delay);
    }

    /// Logs a failure, and sends the result to the stream.
    fn report_run(&self, ended: Ended<R::Error>, object: ObjectRef<K>) {
        let item = match ended {
            Ended::Ok(action) => Ok((object, action)),
            Ended::Failed(error, _) => {
                tracing::debug!(%error, "a reconciler failed");
                Err(Error::ReconcilerFailed(error, Box::new(object.erase())))
            }
            Ended::Panicked(panic) => {
                let message = panic_message(&*panic);
                tracing::error!(message, "a reconciler panicked");
                if let Some(panics) = &self.panics {
                    // The receiver is gone if the controller has ended. The error is ignored.
                    _ = panics.send(panic);
                }
                Err(Error::ReconcilerPanicked(message, Box::new(object.erase())))
            }
            Ended::TimedOut(timeout) => {
                tracing::debug!(?timeout, "a reconciler timed out");
                Err(Error::ReconcilerTimedOut(timeout, Box::new(object.erase())))
            }
        };
        report_item(&self.results, item);
    }
}

/// Sends `item` to the stream of results. If the stream is full, drops the item, because a slow reader of the stream
/// must not delay runs.
pub(super) fn report_item<T>(results: &mpsc::Sender<T>, item: T) {
    if let Err(mpsc::error::TrySendError::Full(_)) = results.try_send(item) {
        tracing::debug!("dropped a result: the controller's stream is full; read it continuously");
    }
}

/// Returns the uid of the object, or `None` if there is no object.
fn uid_of(object: Option<&impl Resource>) -> Option<String> {
    object.map(|object| object.meta().uid.clone().unwrap_or_default())
}

/// Waits for `future`, but no longer than `timeout`.
async fn run_within<F: Future>(
    timeout: Option<Duration>,
    future: F,
) -> Result<F::Output, Duration> {
    match timeout {
        None => Ok(future.await),
        Some(timeout) => tokio::time::timeout(timeout, future).await.map_err(|_| timeout),
    }
}
