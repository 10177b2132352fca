//! One run of the reconciler.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, TryFuture, TryFutureExt};
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use requeue::Add;
use requeue::workers::{self, Context};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Instrument;

use super::action::{Action, Then};
use super::error::Error;
use super::hub::Hub;
use crate::ObjectKey;
use crate::metrics::{Meters, Outcome};

/// What is in the stream of a controller.
pub(super) type Item<K, E> = Result<(ObjectRef<K>, Action), Error<E, watcher::Error>>;

/// Everything that a run needs. `T` is what the reconciler is given: the object, or a reference.
pub(super) struct Attempts<K, T, F, P, C, E>
where
    K: Resource + 'static,
    K::DynamicType: Hash + Eq,
{
    pub(super) hub: Arc<Hub>,
    pub(super) store: Store<K>,
    pub(super) dyntype: K::DynamicType,
    /// What the reconciler is given; nothing if there is nothing to reconcile.
    pub(super) subject: fn(ObjectRef<K>, Option<Arc<K>>) -> Option<T>,
    pub(super) reconcile: Mutex<F>,
    pub(super) error_policy: P,
    pub(super) context: Arc<C>,
    pub(super) timeout: Option<Duration>,
    pub(super) clear_on_new_generation: bool,
    pub(super) meters: Arc<Meters>,
    pub(super) results: mpsc::Sender<Item<K, E>>,
    /// Where what it panics with goes, if that is to end the controller.
    pub(super) panics: Option<mpsc::UnboundedSender<Box<dyn Any + Send>>>,
}

/// How a run has ended.
enum Ended<E> {
    Ok(Action),
    Failed(E, Action),
    Panicked(Box<dyn Any + Send>),
    TimedOut(Duration),
}

impl<E> Ended<E> {
    const fn outcome(&self) -> Outcome {
        match self {
            Self::Ok(Action { then: Then::After(_), .. }) => Outcome::RequeueAfter,
            Self::Ok(Action { then: Then::Backoff, .. }) => Outcome::Requeue,
            Self::Ok(Action { then: Then::Change | Then::Terminal, .. }) => Outcome::Success,
            Self::Failed(_, Action { then: Then::Terminal, .. }) => Outcome::Terminal,
            Self::Failed(..) => Outcome::Error,
            Self::Panicked(_) => Outcome::Panic,
            Self::TimedOut(_) => Outcome::Timeout,
        }
    }
}

impl<K, T, F, P, C, Fut> Attempts<K, T, F, P, C, Fut::Error>
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: fmt::Debug + Eq + Hash + Clone,
    T: Clone + Send,
    F: FnMut(T, Arc<C>) -> Fut + Send,
    P: Fn(T, &Fut::Error, Arc<C>) -> Action + Send + Sync,
    C: Send + Sync,
    Fut: TryFuture<Ok = Action> + Send,
    Fut::Error: std::error::Error + Send + 'static,
{
    /// Reconciles the object of `key`, and says to its worker how that has ended.
    pub(super) async fn attempt(
        &self,
        key: ObjectKey,
        run: Context,
    ) -> Result<workers::Action, workers::Error> {
        let normal = self.hub.scope.normal(key.clone());
        if normal != key {
            // It was added before it was known that its kind has no namespaces.
            let add = Add::now().priority(run.priority()).reason(run.reasons());
            self.hub.queue.add_with(normal, add);
            return Ok(workers::Action::done());
        }
        let reason = self.hub.details.take(&key, run.reasons(), run.attempt());
        let object = key.to_ref::<K>(self.dyntype.clone());
        let before = self.store.get(&object);
        let Some(subject) = (self.subject)(object.clone(), before.clone()) else {
            self.report(Err(Error::ObjectNotFound(Box::new(object.erase()))));
            return Ok(workers::Action::done());
        };
        let span = tracing::info_span!(
            "reconciling object",
            "object.ref" = %object,
            object.reason = %reason,
            attempt = run.attempt(),
        );
        let (begun, active) = (Instant::now(), self.meters.begin());
        let ended = self.run(subject).instrument(span.clone()).await;
        drop(active);
        self.meters.end(ended.outcome(), begun.elapsed());
        let next = self.next(&ended, &object, before.as_deref());
        span.in_scope(|| self.tell(ended, object));
        next
    }

    async fn run(&self, subject: T) -> Ended<Fut::Error> {
        let run = async {
            // The call itself may panic, too.
            let reconciling = {
                let mut reconcile = self.reconcile.lock().unwrap_or_else(PoisonError::into_inner);
                reconcile(subject.clone(), Arc::clone(&self.context))
            };
            match TryFutureExt::into_future(reconciling).await {
                Ok(action) => Ended::Ok(action),
                Err(error) => {
                    let policy = &self.error_policy;
                    let action = policy(subject, &error, Arc::clone(&self.context));
                    Ended::Failed(error, action)
                }
            }
        };
        let run = AssertUnwindSafe(run).catch_unwind();
        match within(self.timeout, run).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(panic)) => Ended::Panicked(panic),
            Err(timeout) => Ended::TimedOut(timeout),
        }
    }

    /// What becomes of the key.
    fn next(
        &self,
        ended: &Ended<Fut::Error>,
        object: &ObjectRef<K>,
        before: Option<&K>,
    ) -> Result<workers::Action, workers::Error> {
        let (action, failed) = match ended {
            Ended::Ok(action) => (action, false),
            Ended::Failed(_, action) => (action, true),
            Ended::Panicked(_) | Ended::TimedOut(_) => (&Action::backoff(), true),
        };
        let failure = workers::Error::from("has failed");
        let next = match action.then {
            Then::After(delay) if !failed => Ok(self.after(delay)),
            Then::Change | Then::Terminal if !failed => Ok(workers::Action::done()),
            _ if failed && self.is_over(object) => Ok(workers::Action::done()),
            // What has failed is not what there is now.
            _ if failed && self.is_overtaken(object, before) => Ok(self.after(Duration::ZERO)),
            Then::Backoff => Err(failure),
            Then::After(delay) => Err(workers::Error::retry_after(delay, "has failed")),
            Then::Change | Then::Terminal => Err(workers::Error::terminal("has failed")),
        };
        match (next, action.priority) {
            (Ok(next), Some(priority)) => Ok(next.priority(priority)),
            (Err(error), Some(priority)) => Err(error.priority(priority)),
            (next, None) => next,
        }
    }

    fn after(&self, delay: Duration) -> workers::Action {
        if delay.is_zero() {
            self.meters.came_back_at_once();
        }
        workers::Action::after(delay)
    }

    /// Whether there is nothing to be tried again.
    fn is_over(&self, object: &ObjectRef<K>) -> bool {
        !self.hub.runs_gone && self.store.get(object).is_none()
    }

    /// Whether there is a new generation of the object since it was looked up, or another object
    /// under its name.
    fn is_overtaken(&self, object: &ObjectRef<K>, before: Option<&K>) -> bool {
        let identity = |object: &K| object.meta().uid.clone();
        let generation = |object: &K| object.meta().generation;
        let now = self.store.get(object);
        let now = now.as_deref();
        now.map(identity) != before.map(identity)
            || (self.clear_on_new_generation && now.map(generation) != before.map(generation))
    }

    /// Tells the stream.
    fn tell(&self, ended: Ended<Fut::Error>, object: ObjectRef<K>) {
        self.report(match ended {
            Ended::Ok(action) => Ok((object, action)),
            Ended::Failed(error, _) => {
                tracing::debug!(%error, "a reconciler has failed");
                Err(Error::ReconcilerFailed(error, Box::new(object.erase())))
            }
            Ended::Panicked(panic) => {
                let message = message(&*panic);
                tracing::error!(message, "a reconciler has panicked");
                if let Some(panics) = &self.panics {
                    // Nobody listens when the controller has ended.
                    _ = panics.send(panic);
                }
                Err(Error::ReconcilerPanicked(message, Box::new(object.erase())))
            }
            Ended::TimedOut(timeout) => {
                tracing::debug!(?timeout, "a reconciler has timed out");
                Err(Error::ReconcilerTimedOut(timeout, Box::new(object.erase())))
            }
        });
    }

    fn report(&self, item: Item<K, Fut::Error>) {
        report(&self.results, item);
    }
}

/// Puts `item` into the stream, unless that is full: nobody waits for who reads it.
pub(super) fn report<T>(results: &mpsc::Sender<T>, item: T) {
    if let Err(mpsc::error::TrySendError::Full(_)) = results.try_send(item) {
        tracing::debug!("a result was dropped: nobody reads the controller's stream");
    }
}

/// Waits for `future`, but no longer than for `timeout`.
async fn within<F: Future>(timeout: Option<Duration>, future: F) -> Result<F::Output, Duration> {
    match timeout {
        None => Ok(future.await),
        Some(timeout) => tokio::time::timeout(timeout, future).await.map_err(|_| timeout),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("(no message)").to_owned()
}
