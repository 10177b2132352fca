//! Runs a reconciler for each object that has changed, or that something else says has to be looked
//! at: kube's [`Controller`](kube::runtime::Controller), on requeue's queue.

mod action;
mod attempt;
mod config;
mod debounce;
mod error;
mod failures;
mod hub;
mod listed;
mod names;
mod reason;
mod related;
mod run;
mod scope;
mod source;
mod start;
mod triggers;

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt, TryFuture};
use kube::api::{Api, Resource};
use kube::discovery;
use kube::runtime::Predicate;
pub use kube::runtime::controller::{ReconcileReason, ReconcileRequest};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use requeue::Queue;
use serde::de::DeserializeOwned;

pub use self::action::Action;
pub use self::config::Config;
pub use self::error::{Error, RunnerError};
use self::hub::Hub;
pub use self::listed::Readiness;
use self::run::Subject;
use self::source::{AnyPredicate, Events, Source, TriggerBackoff};
use self::start::Start;
use crate::ObjectKey;
use crate::metrics::Metrics;

/// Hears of each event before anybody else.
type OnEvent<K> = Box<dyn FnMut(&Event<K>) + Send>;
type Trigger = Box<dyn FnOnce(Arc<Hub>) -> BoxFuture<'static, ()> + Send>;

/// A controller of the objects of a kind: kube's, method by method, on a queue that backs off,
/// orders and shows itself.
///
/// What is other than in kube:
///
/// - **Failures back off**, each object by itself, with [`policy::backoff`](crate::policy::backoff)
///   as the error policy. No event makes a failing object run before its time, but a new generation
///   of it: see [below](#what-ends-a-wait).
/// - **Nothing is missed**: what was deleted while a watch was cut off is heard of, for owned and
///   watched objects, too. So is what is no longer owned by, or mapped to, an object.
/// - **One object, one run**: the owner of objects in several namespaces that lives in none itself
///   is one object.
/// - **What has changed goes first**: the first list has
///   [low priority](crate::watch::LOW_PRIORITY). A later list runs only the objects that have changed
///   since they were last seen ([`Config::reconcile_unchanged`]).
/// - **The stream is for reading alone.** The controller begins when it is first polled and ends when
///   it is dropped, but its watches and workers are tasks: a slow reader holds nobody up. Up to
///   1,024 results wait for it; what comes then is dropped, and it is run all the same.
/// - **Reconciler and error policy are called on those tasks**, several at once, so both are
///   `Fn + Send + Sync`. In kube the reconciler is `FnMut`, which only one task can call at a time.
///   An `async fn` satisfies both; a closure that counts has to hold an atomic or a `Mutex`.
/// - [`concurrency`](Config::concurrency) is 1 unless said.
///
/// # What ends a wait
///
/// What has failed waits for the delay that its error policy or the
/// [rate limiter](Config::rate_limiter) gives, and no event ends that wait, but a new generation of
/// the object or another object of the name, whose failures are none of its: it runs at once, and its
/// delays begin anew. Some reconcilers make generations themselves: they change a `spec`, or write the
/// status of a CustomResourceDefinition that has no `status` subresource, where every write makes one.
/// So that these back off, too, what has run before its time and failed waits for all of the next
/// delay, and delays begin anew once only until the object has succeeded. Nor do a reconciler's own
/// writes bring back at once what was given up, by [`max_retries`](Config::max_retries), by
/// [`Action::terminal`] or by an error policy's [`Action::await_change`]: the failure counts as any
/// other, and nothing but a new generation runs before its delay has passed.
///
/// # Example
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use futures_util::StreamExt;
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use kube::{Api, Client};
/// use kube::runtime::watcher;
/// use requeue_kube::controller::{Action, Controller};
/// use requeue_kube::policy;
///
/// async fn reconcile(map: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, kube::Error> {
///     // Bring what there is into line with what `map` says.
///     Ok(Action::requeue(Duration::from_secs(3600)))
/// }
///
/// # async fn example() -> Result<(), kube::Error> {
/// let client = Client::try_default().await?;
/// Controller::new(Api::<ConfigMap>::all(client.clone()), watcher::Config::default())
///     .owns(Api::<Secret>::all(client.clone()), watcher::Config::default())
///     .shutdown_on_signal()
///     .run(reconcile, policy::backoff, Arc::new(client))
///     .for_each(async |result| match result {
///         Ok((object, _)) => println!("reconciled {object}"),
///         Err(error) => eprintln!("{error}"),
///     })
///     .await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a controller does nothing before its stream is polled"]
pub struct Controller<K>
where
    K: Clone + Resource + Debug + 'static,
    K::DynamicType: Eq + Hash,
{
    dyntype: K::DynamicType,
    scope: Option<discovery::Scope>,
    name: Option<String>,
    store: Store<K>,
    main: Main<K>,
    related: Vec<Source>,
    triggers: Vec<Trigger>,
    trigger_backoff: Option<TriggerBackoff>,
    readiness: Readiness,
    graceful: Vec<BoxFuture<'static, ()>>,
    forced: Vec<BoxFuture<'static, ()>>,
    start: Start,
    warmup: bool,
    metrics: Option<Metrics>,
    on_start: Option<Box<dyn FnOnce(Queue<ObjectKey>) + Send>>,
    config: Config,
}

/// The watch of the controller's own kind.
struct Main<K: 'static> {
    name: String,
    events: Events<K>,
    predicate: Option<AnyPredicate<K>>,
    /// Puts what is seen into the store, unless the user does.
    store: OnEvent<K>,
}

impl<K: Resource + Send + 'static> Main<K> {
    fn source(self) -> Source {
        Source::main(self.name, self.events, self.predicate, self.store)
    }
}

impl<K> Controller<K>
where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// A controller of the objects of kind `K` that `main_api` and `wc` name.
    pub fn new(main_api: Api<K>, wc: watcher::Config) -> Self
    where
        K::DynamicType: Default,
    {
        Self::new_with(main_api, wc, K::DynamicType::default())
    }

    /// As [`new`](Self::new), for a kind that is known at run time alone.
    ///
    /// Whether its objects live in namespaces, the first that is seen tells, unless
    /// [`scope`](Self::scope) does.
    pub fn new_with(main_api: Api<K>, wc: watcher::Config, dyntype: K::DynamicType) -> Self {
        let mut writer = Writer::new(dyntype.clone());
        let store = writer.as_reader();
        let events = watcher::watcher(main_api, wc).boxed();
        Self::of(events, store, dyntype, Box::new(move |event| writer.apply_watcher_event(event)))
    }

    /// A controller of the objects that `events` tells of, which have to be in the store of `reader`
    /// by then: put [`reflect`](kube::runtime::WatchStreamExt::reflect) behind the watcher. The
    /// controller begins when it has seen an [`Event::InitDone`].
    ///
    /// In kube this is unstable and takes a stream of objects. Such a one can't say what was deleted
    /// while its watch was cut off, so here it is one of raw events: leave out
    /// `applied_objects()`. For the same reason there is no `for_shared_stream`, nor the like of it
    /// for owned and watched objects: kube's shared streams have no events in them.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::Api;
    /// use kube::runtime::{WatchStreamExt, reflector, watcher};
    /// use requeue_kube::Controller;
    ///
    /// # fn example(api: Api<ConfigMap>) {
    /// let (reader, writer) = reflector::store();
    /// let events = watcher(api, watcher::Config::default())
    ///     .modify(|map: &mut ConfigMap| map.metadata.managed_fields = None)
    ///     .reflect(writer);
    /// let controller = Controller::for_stream(events, reader);
    /// # drop(controller);
    /// # }
    /// ```
    pub fn for_stream(
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
        reader: Store<K>,
    ) -> Self
    where
        K::DynamicType: Default,
    {
        Self::for_stream_with(events, reader, K::DynamicType::default())
    }

    /// As [`for_stream`](Self::for_stream), for a kind that is known at run time alone.
    pub fn for_stream_with(
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
        reader: Store<K>,
        dyntype: K::DynamicType,
    ) -> Self {
        Self::of(events.boxed(), reader, dyntype, Box::new(|_| {}))
    }

    fn of(events: Events<K>, store: Store<K>, dyntype: K::DynamicType, write: OnEvent<K>) -> Self {
        let name = source::name::<K>(&dyntype, "controlled");
        let readiness = Readiness::new();
        readiness.expect(0, name.clone());
        Self {
            dyntype,
            scope: None,
            name: None,
            store,
            main: Main { name, events, predicate: None, store: write },
            related: Vec::new(),
            triggers: Vec::new(),
            trigger_backoff: None,
            readiness,
            graceful: Vec::new(),
            forced: Vec::new(),
            start: Start::default(),
            warmup: true,
            metrics: None,
            on_start: None,
            config: Config::default(),
        }
    }

    /// How the controller is to behave.
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Whether the objects live in namespaces, of a kind that is known at run time alone: kube's
    /// [discovery](kube::discovery::ApiCapabilities::scope) knows. Otherwise the first object that is
    /// seen tells, and what has no namespace, but is owned from several, may be several objects before.
    pub fn scope(mut self, scope: discovery::Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// What the controller is called, in metrics and messages: its kind in lower case unless said.
    /// No two in a process may have one name at once: the second ends with
    /// [`RunnerError::DuplicateName`]. A name is free once its stream has ended or is dropped. What was
    /// running in one that is dropped goes on up to its next `await`, and so for a moment beside what
    /// the next controller of the name runs: end it by a
    /// [graceful shutdown](Self::graceful_shutdown_on) where that matters.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How long watches wait before they begin again after an error. Unless said, each waits by
    /// itself, from 0.8 s to 30 s with jitter. This one is for all of them together; where it says
    /// `None`, the controller shuts down, with [`RunnerError::WatchEnded`].
    pub fn trigger_backoff(mut self, backoff: impl Backoff + 'static) -> Self {
        self.trigger_backoff = Some(TriggerBackoff::new(backoff));
        self
    }

    /// The objects of kind `K` as they were last seen.
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    /// Shows the controller in a Prometheus registry, under its name, for as long as it runs.
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Is given the controller's queue when it begins: to look into it, or to show it on a page with
    /// `requeue-http`.
    pub fn queue_on_start(mut self, f: impl FnOnce(Queue<ObjectKey>) + Send + 'static) -> Self {
        self.on_start = Some(Box::new(f));
        self
    }

    /// Whether all watches have had their first list, for `/readyz`.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Leaves out changes of objects of kind `K` that are none for `predicate`, such as
    /// [`predicates::generation`](kube::runtime::predicates::generation). New objects always count,
    /// and in [`run_refs`](Self::run_refs) deleted ones.
    ///
    /// With a [finalizer](crate::finalizer()) let changes of finalizers through: to add one makes no
    /// new generation.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::runtime::{Predicate, predicates};
    /// use requeue_kube::Controller;
    ///
    /// # fn example(controller: Controller<ConfigMap>) {
    /// let predicate = Predicate::<ConfigMap>::combine(predicates::generation, predicates::finalizers);
    /// let controller = controller.filter(predicate);
    /// # drop(controller);
    /// # }
    /// ```
    pub fn filter(mut self, predicate: impl Predicate<K> + Send + 'static) -> Self {
        self.main.predicate = Some(Box::new(predicate));
        self
    }

    /// Runs `reconcile` for each object that has to be looked at, and `error_policy` for each
    /// failure of it. The stream says how each run has ended.
    ///
    /// An object that is not in the store is [not found](Error::ObjectNotFound), and not tried
    /// again: it is gone, or was never there. Use a [finalizer](crate::finalizer()) to clean up, or
    /// [`run_refs`](Self::run_refs).
    ///
    /// Unlike in kube, all three are `'static`: closures that borrow have to `move`, and hold what
    /// they use in an `Arc`.
    ///
    /// # Panics
    ///
    /// The stream panics outside a tokio runtime, when a mapper panics, and when a reconciler does
    /// where [`recover_panic`](Config::recover_panic) is off.
    pub fn run<ReconcilerFut, Ctx>(
        self,
        reconciler: impl Fn(Arc<K>, Arc<Ctx>) -> ReconcilerFut + Send + Sync + 'static,
        error_policy: impl Fn(Arc<K>, &ReconcilerFut::Error, Arc<Ctx>) -> Action + Send + Sync + 'static,
        context: Arc<Ctx>,
    ) -> impl Stream<
        Item = Result<(ObjectRef<K>, Action), Error<ReconcilerFut::Error, watcher::Error>>,
    > + Send
    where
        K::DynamicType: Debug,
        Ctx: Send + Sync + 'static,
        ReconcilerFut: TryFuture<Ok = Action> + Send + 'static,
        ReconcilerFut::Error: std::error::Error + Send + 'static,
    {
        let subject = Subject { of: |_, object| object, runs_gone: false };
        self.stream(subject, reconciler, error_policy, context)
    }

    /// As [`run`](Self::run), with a reference instead of the object: also for objects that are
    /// gone. Take the object from the [store](Self::store), if it is there.
    ///
    /// What is deleted while the controller does not run, it does not hear of.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn run_refs<ReconcilerFut, Ctx>(
        self,
        reconciler: impl Fn(ObjectRef<K>, Arc<Ctx>) -> ReconcilerFut + Send + Sync + 'static,
        error_policy: impl Fn(ObjectRef<K>, &ReconcilerFut::Error, Arc<Ctx>) -> Action
        + Send
        + Sync
        + 'static,
        context: Arc<Ctx>,
    ) -> impl Stream<
        Item = Result<(ObjectRef<K>, Action), Error<ReconcilerFut::Error, watcher::Error>>,
    > + Send
    where
        K::DynamicType: Debug,
        Ctx: Send + Sync + 'static,
        ReconcilerFut: TryFuture<Ok = Action> + Send + 'static,
        ReconcilerFut::Error: std::error::Error + Send + 'static,
    {
        let subject = Subject { of: |object, _| Some(object.clone()), runs_gone: true };
        self.stream(subject, reconciler, error_policy, context)
    }
}

impl<K> Debug for Controller<K>
where
    K: Clone + Resource + Debug + 'static,
    K::DynamicType: Eq + Hash,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
