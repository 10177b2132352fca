//! A controller before it runs: its kind, its sources and its settings.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, TryFuture};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{Api, Resource};
use kube::discovery;
use kube::runtime::Predicate;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::action::Action;
use super::config::Config;
use super::enqueuer::Enqueuer;
use super::error::Error;
use super::own_watch::{OwnObjects, own_source};
use super::parts::{Observers, Others, Own, Parts, ShardSettings, StopTriggers};
use super::readiness::{Lists, Readiness};
use super::reconcile::Reconciler;
use super::request::Request;
use super::run;
use super::sharding::HeldShards;
use super::source::{self, AnyPredicate, MakeEvents, Selected, Source};
use super::start_gate::{Managed, Start};
use super::status::Status;
use super::watched::{EventSource, Role, Watched};
use super::writes::{Kind, Writes};
use crate::membership::ShardGroup;
use crate::metrics::Metrics;
use crate::range::Shard;
use crate::shared::{Object, SharedWatch};
use crate::watch::watch_name;
use crate::{ObjectKey, ObjectQueue, relist};

/// A controller for the objects of one kind.
///
/// This type has the methods of kube's [`Controller`](kube::runtime::Controller), and a queue with backoff, priorities
/// and metrics.
///
/// The controller differs from kube's controller in these points:
///
/// - **Failures back off.** Each object has a separate backoff, with [`policy::backoff`](crate::policy::backoff) as the
///   error policy. Only a new generation runs a failing object before its time: see
///   [below](#backoff-and-new-generations).
/// - **No deletion is missed.** A deletion that happened while a watch was disconnected is reported, including
///   deletions of owned and watched objects. The former owner of an object, and the objects to which the object was
///   mapped before, are also reconciled.
/// - **One object, one run.** An owner without a namespace is one object, even if its children live
///   in several namespaces.
/// - **Changes go first.** The first list has [low priority](crate::controller::LOW_PRIORITY). After a later list, only
///   objects run that have changed since they were last seen ([`Config::reconcile_unchanged`]).
/// - **The stream only reports results.** The controller starts when the stream is first polled,
///   and stops when it is dropped. Watches and workers are separate tasks, so a slow reader does
///   not delay watches and workers. Up to 1,024 results wait for the reader. Further results are
///   dropped, but the runs take place.
/// - **The reconciler and the error policy are called concurrently, on these tasks**, so both are
///   `Fn + Send + Sync`. In kube, the reconciler is `FnMut`, which only one task can call at a
///   time. An `async fn` satisfies all these traits. A closure that counts needs an atomic or a
///   `Mutex`.
/// - [`concurrency`](Config::concurrency) is 1 by default.
///
/// # Backoff and new generations
///
/// A failed object waits for the delay that its error policy or the [rate
/// limiter](Config::rate_limiter) returns. Two events end this wait: a new generation of the
/// object, and another object with the same name, which has no failures. The object then runs
/// immediately, and its backoff starts again.
///
/// Some reconcilers create generations themselves. Such a reconciler changes a `spec`, or writes the status of a custom
/// resource without a `status` subresource, for which every write creates a generation. These objects also back off: if
/// an object runs before its delay has passed and that run fails, no change of the object shortens its next delay.
/// Until the object succeeds, its backoff starts again at most once.
///
/// An object can be given up: by [`max_retries`](Config::max_retries), by [`Action::terminal`], or by an error policy's
/// [`Action::await_change`]. The failure of such an object counts like any other failure. Writes of the reconciler do
/// not start the object's next run immediately. Before the delay has passed, only a new generation starts a run.
///
/// # Examples
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use futures_util::StreamExt;
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use kube::{Api, Client};
/// use kube::runtime::watcher;
/// use requeue_kube::{Controller, controller::Action, policy};
///
/// async fn reconcile(map: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, kube::Error> {
///     // Make the Secrets match `map`.
///     Ok(Action::requeue_after(Duration::from_secs(3600)))
/// }
///
/// # let _ = async {
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
/// # Ok::<(), kube::Error>(())
/// # };
/// ```
#[must_use = "a controller does nothing before its stream is polled"]
pub struct Controller<K>
where
    K: Clone + Resource + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    pub(super) parts: Parts<K>,
}

impl<K> Controller<K>
where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// Creates a controller for the objects of kind `K` that `main_api` and `wc` select.
    ///
    /// With [`any_semantic`](watcher::Config::any_semantic) or [`streaming_lists`](watcher::Config::streaming_lists),
    /// the first list may be older than the latest state. Later lists are never older than the state already seen, so
    /// no object is treated as deleted because it is missing in an old list.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::runtime::watcher;
    /// use kube::{Api, Client};
    /// use requeue_kube::Controller;
    ///
    /// fn controller(client: Client) -> Controller<ConfigMap> {
    ///     let maps = Api::namespaced(client, "default");
    ///     Controller::new(maps, watcher::Config::default().labels("app=web"))
    /// }
    /// ```
    pub fn new(main_api: Api<K>, wc: watcher::Config) -> Self
    where
        K::DynamicType: Default,
    {
        Self::new_with(main_api, wc, K::DynamicType::default())
    }

    /// Like [`new`](Self::new), for a kind that is known only at run time.
    ///
    /// The first object of the watch shows whether the kind is namespaced, unless
    /// [`scope`](Self::scope) states it.
    pub fn new_with(main_api: Api<K>, wc: watcher::Config, dyntype: K::DynamicType) -> Self {
        let mut writer = Writer::new(dyntype.clone());
        let store = writer.as_reader();
        let of = dyntype.clone();
        let client = main_api.clone().into_client();
        let mut main_api = relist::consistent_api(main_api, &of, &wc);
        let events = move |selected: Selected, _| match selected {
            Selected::Probe => source::probe_events(main_api(), &wc),
            selected => {
                let wc = selected.list_config(wc.clone());
                watcher::watcher(selected.select_objects(main_api(), &of), wc).boxed()
            }
        };
        let events = MakeEvents::Watch(Box::new(events));
        let write = move |event: &_| writer.apply_watcher_event(event);
        let mut controller = Self::from_events(events, Arc::unwrap_or_clone, store, dyntype, write);
        controller.parts.sharding.client = Some(client);
        controller
    }

    /// Creates a controller for the objects of a stream of events.
    ///
    /// Each object must be in the store of `reader` before its event arrives: apply
    /// [`reflect`](kube::runtime::WatchStreamExt::reflect) to the watcher. The controller starts
    /// after an [`Event::InitDone`].
    ///
    /// In kube this method is unstable, and takes a stream of objects. Such a stream cannot report objects that were
    /// deleted while its watch was disconnected. This method therefore takes a stream of raw events: omit
    /// `applied_objects()`. Instead of kube's `for_shared_stream`, whose streams do not report deletions, use
    /// [`for_shared`](Self::for_shared).
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::Api;
    /// use kube::runtime::{WatchStreamExt, reflector, watcher};
    /// use requeue_kube::Controller;
    ///
    /// # let _ = |api: Api<ConfigMap>| {
    /// let (reader, writer) = reflector::store();
    /// let events = watcher(api, watcher::Config::default())
    ///     .modify(|map: &mut ConfigMap| map.metadata.managed_fields = None)
    ///     .reflect(writer);
    /// let controller = Controller::for_stream(events, reader);
    /// # };
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

    /// Like [`for_stream`](Self::for_stream), for a kind that is known only at run time.
    pub fn for_stream_with(
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
        reader: Store<K>,
        dyntype: K::DynamicType,
    ) -> Self {
        let events = MakeEvents::Made(events.boxed());
        Self::from_events(events, Arc::unwrap_or_clone, reader, dyntype, |_| {})
    }

    /// Creates a controller for the objects of a shared watch. [`store`](Self::store) is the store of the watch.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use requeue_kube::Controller;
    /// use requeue_kube::shared::SharedWatch;
    ///
    /// fn controllers(maps: &SharedWatch<ConfigMap>) -> [Controller<ConfigMap>; 2] {
    ///     ["first", "second"].map(|name| Controller::for_shared(maps).name(name))
    /// }
    /// ```
    pub fn for_shared(watch: &SharedWatch<K>) -> Self {
        let store = watch.store();
        let dyntype = watch.dyntype().clone();
        let events = MakeEvents::from_shared(watch);
        Self::from_events(events, Object::from, store, dyntype, |_| {})
    }

    /// Creates a controller from events. `write` receives each event before all other parts of the
    /// controller.
    fn from_events<E: Resource<DynamicType = K::DynamicType> + Borrow<K> + Send + 'static>(
        events: MakeEvents<E>,
        from_object: fn(Arc<K>) -> E,
        store: Store<K>,
        dyntype: K::DynamicType,
        write: impl FnMut(&Event<E>) + Send + 'static,
    ) -> Self {
        let name = watch_name::<K>(&dyntype, "controlled");
        let kind = Kind::from_type::<K>(&dyntype);
        let lists = Lists::default();
        lists.expect_list(0, name.clone());
        let reader = store.clone();
        let own = move |predicate: Option<AnyPredicate<K>>| {
            let stored = move |is_wanted: &dyn Fn(&ObjectKey) -> bool| {
                let state = reader.state().into_iter();
                state
                    .filter(|it| is_wanted(&ObjectKey::from_object(&**it)))
                    .map(from_object)
                    .collect()
            };
            let property = move |item: &E| predicate.as_ref()?.hash_property(item.borrow());
            let objects = OwnObjects {
                write: Box::new(write),
                stored: Box::new(stored),
                property: Box::new(property),
            };
            own_source(name, kind, events, objects)
        };
        let own = Own { dyntype, scope: None, store, make: Box::new(own), predicate: None };
        let observers =
            Observers { lists, status: Status::default(), metrics: None, on_start: None };
        Self {
            parts: Parts {
                name: None,
                config: Config::default(),
                own,
                others: Others::default(),
                sharding: ShardSettings::default(),
                start: Start::default(),
                stops: StopTriggers::default(),
                observers,
            },
        }
    }

    /// Sets the configuration.
    ///
    /// The default is [`Config::default`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use requeue_kube::Controller;
    /// use std::time::Duration;
    ///
    /// use requeue_kube::controller::Config;
    ///
    /// # let _ = |controller: Controller<ConfigMap>| {
    /// let config = Config::default().concurrency(8).reconcile_timeout(Duration::from_secs(60));
    /// let controller = controller.with_config(config);
    /// # };
    /// ```
    pub fn with_config(mut self, config: Config) -> Self {
        self.parts.config = config;
        self
    }

    /// States whether the kind is namespaced, if it is known only at run time.
    ///
    /// kube's [discovery](kube::discovery::ApiCapabilities::scope) provides the scope. Without this call, the
    /// controller learns the scope from the first object. Until then, an object without a namespace may be treated as
    /// several objects, if objects in several namespaces name it as their owner.
    pub fn scope(mut self, scope: discovery::Scope) -> Self {
        self.parts.own.scope = Some(scope);
        self
    }

    /// Reconciles only the objects of a shard, so that replicas share the work.
    ///
    /// Each replica has another shard. An API server with the feature gate `ShardedListAndWatch` (alpha since
    /// Kubernetes 1.36) sends only the objects of the shard. Without the gate, the controller drops the objects of
    /// other shards, and logs this fact once.
    ///
    /// - The [store](Self::store) contains only the objects of the shard. With [`for_stream`](Self::for_stream), your
    ///   program maintains the store, and decides which objects it contains.
    /// - An owned object belongs to the shard of its owner.
    /// - An object that a mapper or a trigger names is reconciled if the object is in the store and
    ///   in the shard.
    ///
    /// The shards are fixed, so no other replica takes over the shards of a replica that stops. Run one replica for
    /// each shard, for example as a StatefulSet, or combine a shard with [`leader_election`](Self::leader_election) by
    /// a separate Lease. With a [shard group](Self::shard_group), replicas take shards over.
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::{Api, runtime::watcher};
    /// # use requeue_kube::Controller;
    /// use requeue_kube::range::Shard;
    ///
    /// # let _ = |api: Api<ConfigMap>| {
    /// let shard = Shard::new(0, 4)?;
    /// let controller = Controller::new(api, watcher::Config::default()).shard(shard);
    /// # Ok::<(), requeue_kube::ConfigError>(())
    /// # };
    /// ```
    pub const fn shard(mut self, shard: Shard) -> Self {
        self.parts.sharding.shard = Some(shard);
        self
    }

    /// Shares the objects with the other replicas of a [group](crate::membership). The group replaces leader election.
    /// All replicas work, each on an equal part of the shards.
    ///
    /// - **Start.** The controller joins the group once its watches have listed their objects. The controller lists the
    ///   objects of each new shard by a consistent read, and then runs these objects with [low
    ///   priority](crate::controller::LOW_PRIORITY), as after a start. No object runs before the controller holds a
    ///   shard.
    /// - **Handover.** Before another replica takes over a shard, the shard's runs in flight complete. A run that
    ///   exceeds [`handover_timeout`](ShardGroup::handover_timeout) is dropped at an `await`. The keys of the shard
    ///   leave the queue, and its objects leave a store that the controller maintains. The controller does not treat
    ///   this removal as a deletion of the objects. With [`run_refs`](Self::run_refs), the pending run of an object
    ///   that was deleted is also dropped. Use a finalizer if a deletion must be handled.
    /// - **Shutdown.** A [graceful shutdown](Self::graceful_shutdown_on) hands all shards over when their runs in
    ///   flight have completed, and the other replicas continue immediately. After a forced shutdown, or if the stream
    ///   is dropped, the shards have no holder until the member Lease has expired.
    /// - **Objects that are created again.** An object that is deleted and created again under the
    ///   same name has another uid. With [`ShardBy::Uid`](crate::range::ShardBy::Uid), it is
    ///   usually in another shard. If one replica holds both shards, the key never has two runs at
    ///   the same time. Otherwise, the run in flight for the former object, or for its deletion,
    ///   may overlap with the first run for the new object at another replica.
    /// - **End of the streams.** When all streams of a controller have ended, the remaining keys
    ///   run, and then the shards are handed over. If a stream ends before the group has assigned
    ///   shards, the controller waits for the assignment.
    /// - **Loss of the membership.** All runs in flight are immediately dropped, each at an `await`. The stream ends
    ///   with [`RunnerError::Membership`](super::RunnerError::Membership) before another replica takes over. The
    ///   process should then exit, or create another controller.
    /// - **Writes.** The [fence](crate::membership::HeldShard::fence) of a shard rejects late writes of a
    ///   former holder: see [`held_shards`](Self::held_shards).
    /// - **Watches.** As with [`shard`](Self::shard), an API server that can select shards sends only the objects of
    ///   the replica's shards. Each replica receives all owned and watched objects. After the controller receives
    ///   shards, the watch starts again, with a list of all shards that are held. If the controller receives shards
    ///   several times during a list, it needs only one more list. A release requires no list: the objects are dropped,
    ///   and the next request of the watch omits the shard. With [`for_stream`](Self::for_stream) and
    ///   [`for_shared`](Self::for_shared), the objects come from the user's watch, which may not contain the former
    ///   holder's last writes yet. The stores of owned and watched objects may always lack recent writes.
    ///
    /// The requests of the group use the client of the controller's `Api`, unless
    /// [`with_client`](ShardGroup::with_client) sets a client with separate connections, which is recommended. The
    /// group's [kind](ShardGroup::objects) is the controller's kind by default, and its [metrics](ShardGroup::metrics)
    /// are the controller's metrics.
    ///
    /// Invalid settings of the group, missing [permissions](crate::membership#permissions) and a group with another
    /// number of shards end the stream with [`RunnerError::Membership`](super::RunnerError::Membership). A program
    /// should then exit with an error, as in this example. Settings of the controller that cannot be combined with a
    /// group end the stream with [`RunnerError::Config`](super::RunnerError::Config).
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use futures_util::StreamExt;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::{Api, Client, runtime::watcher};
    /// # use requeue_kube::{Controller, controller::Action, policy};
    /// use requeue_kube::controller::Error;
    /// use requeue_kube::range::ShardBy;
    /// use requeue_kube::membership::ShardGroup;
    ///
    /// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
    /// # let _ = async {
    /// let config = kube::Config::infer().await?;
    /// let shards = ShardGroup::new("website", &config.default_namespace).count(64).by(ShardBy::Uid);
    /// let own_connections = shards.client(config.clone())?;
    /// let maps = Api::<ConfigMap>::all(Client::try_from(config)?);
    /// let results = Controller::new(maps, watcher::Config::default())
    ///     .shard_group(shards.with_client(own_connections))
    ///     .shutdown_on_signal()
    ///     .run(reconcile, policy::backoff, Arc::new(()));
    /// let mut results = std::pin::pin!(results);
    /// while let Some(result) = results.next().await {
    ///     match result {
    ///         Ok((map, _)) => println!("reconciled {map}"),
    ///         Err(Error::RunnerError(error)) => return Err(error.into()),
    ///         Err(error) => eprintln!("{error}"),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// ```
    pub fn shard_group(mut self, shards: ShardGroup) -> Self {
        self.parts.sharding.shards = Some(shards);
        self
    }

    /// Returns a handle to the shards that the controller holds in its [group](Self::shard_group).
    pub fn held_shards(&self) -> HeldShards {
        self.parts.observers.status.held.clone()
    }

    /// Returns the name of the controller, or the default.
    pub(crate) fn effective_name(&self) -> String {
        self.parts.effective_name()
    }

    /// Returns the client of the main `Api`.
    pub(crate) const fn client(&self) -> Option<&Client> {
        self.parts.sharding.client.as_ref()
    }

    /// Reconciles only the objects of the shards that `shards` holds, which may change while the
    /// controller runs.
    #[cfg(test)]
    pub(crate) fn owning(mut self, shards: super::ownership::ChangingShards) -> Self {
        self.parts.sharding.changing = Some(shards);
        self
    }

    /// Sets the name of the controller in metrics and messages.
    ///
    /// The default is its kind in lower case.
    ///
    /// Two controllers of a process cannot have the same name at the same time. The second controller ends with
    /// [`RunnerError::DuplicateName`](super::RunnerError::DuplicateName). A name is free as soon as the stream of its
    /// controller has ended or was dropped.
    ///
    /// When a stream is dropped, its runs continue up to their next `await`. These runs can briefly
    /// overlap with the runs of the next controller of the same name. To prevent the overlap, end
    /// the first controller by a [graceful shutdown](Self::graceful_shutdown_on).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.parts.name = Some(name.into());
        self
    }

    /// Sets the start, the shutdown and the metrics for a manager.
    pub(crate) fn set_managed(mut self, managed: Managed) -> Self {
        let Managed { lead, group, graceful, forced, metrics } = managed;
        self.parts.sharding.common_group = group;
        if let Some((lead, election)) = lead {
            self.parts.start.on = Some(lead);
            self.parts.start.election = Some(election);
        }
        self.parts.stops.graceful.push(graceful);
        self.parts.stops.forced.push(forced);
        // If the manager has no metrics, the metrics of the controller remain.
        if metrics.is_some() {
            self.parts.observers.metrics = metrics;
        }
        self
    }

    /// Sets the backoff of failed watches.
    ///
    /// All watches of the controller share this backoff. A [shared watch](crate::shared::SharedWatch) does not use this
    /// backoff.
    ///
    /// By default, each watch has a separate backoff, from 0.8 s to 30 s with jitter. With an election or a shard
    /// group, a list that the controller awaits before it can take part is repeated at least once per retry period of
    /// that election or group. If `backoff` returns `None`, the controller shuts down with
    /// [`RunnerError::WatchEnded`](super::RunnerError::WatchEnded).
    pub fn trigger_backoff(mut self, backoff: impl Backoff + 'static) -> Self {
        self.parts.others.backoff = Some(Arc::new(Mutex::new(backoff)));
        self
    }

    /// Returns a reader of the store, which contains the objects of kind `K` as they were last
    /// seen.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::runtime::reflector::ObjectRef;
    /// # use requeue_kube::Controller;
    /// # let _ = |controller: Controller<ConfigMap>| {
    /// let store = controller.store();
    /// // In the reconciler, without a request to the API server:
    /// let other: Option<Arc<ConfigMap>> = store.get(&ObjectRef::new("settings").within("default"));
    /// # };
    /// ```
    pub fn store(&self) -> Store<K> {
        self.parts.own.store.clone()
    }

    /// Publishes the controller's metrics in a Prometheus registry, under its name, while it runs.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use requeue_kube::Controller;
    /// use prometheus_client::registry::Registry;
    /// use requeue_kube::metrics::Metrics;
    ///
    /// # let _ = |controller: Controller<ConfigMap>| {
    /// let mut registry = Registry::default();
    /// let controller = controller.name("settings").metrics(&Metrics::register(&mut registry));
    /// # };
    /// ```
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.parts.observers.metrics = Some(metrics.clone());
        self
    }

    /// Sets a callback that receives the controller's queue when the controller starts.
    ///
    /// Use the callback to inspect the queue, or to show the queue on the dashboard of `requeue-http`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use requeue_kube::Controller;
    /// # let _ = |controller: Controller<ConfigMap>| {
    /// let (send, queue) = std::sync::mpsc::channel();
    /// let controller = controller.queue_on_start(move |queue| _ = send.send(queue));
    /// # };
    /// ```
    pub fn queue_on_start(mut self, f: impl FnOnce(ObjectQueue) + Send + 'static) -> Self {
        self.parts.observers.on_start = Some(Box::new(f));
        self
    }

    /// Returns a handle for `/readyz`, which reports whether all watches have received their first
    /// list.
    pub fn readiness(&self) -> Readiness {
        Readiness::new(self.parts.observers.lists.clone())
    }

    /// Returns the record of the reconciler's writes, which prevents runs on a store that is older than the
    /// controller's own writes.
    pub fn writes(&self) -> Writes {
        self.parts.observers.status.writes.clone()
    }

    /// Returns a handle for a dashboard. The handle shows why an object waits, and the shards of the controller's
    /// group.
    pub fn status(&self) -> Status {
        self.parts.observers.status.clone()
    }

    /// Ignores changes of objects of kind `K` that leave the result of `predicate` unchanged. An example of a predicate
    /// is [`predicates::generation`](kube::runtime::predicates::generation).
    ///
    /// New objects are never ignored. With [`run_refs`](Self::run_refs), deleted objects are not
    /// ignored either.
    ///
    /// If you use a [finalizer](crate::finalizer::finalizer), do not ignore changes of finalizers, because adding a
    /// finalizer creates no new generation.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::runtime::{Predicate, predicates};
    /// use requeue_kube::Controller;
    ///
    /// # let _ = |controller: Controller<ConfigMap>| {
    /// let predicate = Predicate::<ConfigMap>::combine(predicates::generation, predicates::finalizers);
    /// let controller = controller.filter(predicate);
    /// # };
    /// ```
    pub fn filter(mut self, predicate: impl Predicate<K> + Send + 'static) -> Self {
        self.parts.own.predicate = Some(Box::new(predicate));
        self
    }

    /// Watches objects that objects of kind `K` own.
    ///
    /// When an owned object changes or is deleted, its owners are reconciled. An owner that the object has lost is also
    /// reconciled.
    ///
    /// Every owner counts, not only the controlling owner, in any version of its kind. Only metadata is watched. For
    /// other sources and for options, use [`watch_owned`](Self::watch_owned).
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// use kube::{Api, Client, runtime::watcher};
    /// use requeue_kube::Controller;
    ///
    /// fn controller(client: Client) -> Controller<ConfigMap> {
    ///     let secrets = Api::<Secret>::all(client.clone());
    ///     Controller::new(Api::all(client), watcher::Config::default())
    ///         .owns(secrets, watcher::Config::default().labels("app=web"))
    /// }
    /// ```
    pub fn owns<Child>(self, api: Api<Child>, wc: watcher::Config) -> Self
    where
        Child: Clone + Resource<DynamicType = ()> + DeserializeOwned + Debug + Send + 'static,
    {
        self.watch_owned(Watched::metadata(api, wc))
    }

    /// Watches objects that objects of kind `K` own, like [`owns`](Self::owns), but from any source and with any
    /// options.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// # use kube::{Api, runtime::watcher};
    /// # use requeue_kube::Controller;
    /// use kube::runtime::predicates;
    /// use requeue_kube::controller::Watched;
    ///
    /// # let _ = |controller: Controller<ConfigMap>, secrets: Api<Secret>| {
    /// let secrets = Watched::metadata(secrets, watcher::Config::default());
    /// let controller = controller.watch_owned(secrets.filter(predicates::labels));
    /// # };
    /// ```
    #[expect(private_bounds, reason = "only the constructors of `Watched` name sources")]
    pub fn watch_owned<Child, S>(self, watched: Watched<Child, S>) -> Self
    where
        Child: Resource + 'static,
        S: EventSource<Child>,
    {
        let owner = self.parts.own.dyntype.clone();
        let owners = move |child: S::Item, enqueuer: &Enqueuer| {
            let meta = child.meta();
            let owners = meta.owner_references.iter().flatten();
            let owners = owners.filter(|reference| is_of::<K>(reference, &owner));
            let namespace = meta.namespace.as_deref();
            let target = |owner: &OwnerReference| {
                let key = ObjectKey::new(namespace, &owner.name);
                let object = enqueuer.scope.normalize(key.clone());
                let may_be_ours = enqueuer.ownership.learn_owner(&object, &owner.uid, meta);
                // The key has no namespace here. The watch compares targets, so a target must not change when the scope
                // becomes known.
                may_be_ours.then_some((key, None))
            };
            owners.filter_map(target).collect()
        };
        self.add_watch(watched.into_source(Role::Owned, owners))
    }

    /// Watches other objects whose changes concern objects of kind `K`.
    ///
    /// `mapper` returns the objects to reconcile when an object changes or is deleted. The objects to which the object
    /// was mapped before are also reconciled.
    ///
    /// The mapper is called when an object is seen. The mapper returns kube's [`ObjectRef`]s, or [`Request`]s, which
    /// can have a priority. A deletion has the priority that the mapper returned for the object's last state.
    ///
    /// For other sources and for options, use [`watch_mapped`](Self::watch_mapped).
    ///
    /// # Panics
    ///
    /// A panic of the mapper ends the controller, and its stream panics.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// use kube::runtime::{reflector::ObjectRef, watcher};
    /// use kube::{Api, Client};
    /// use requeue_kube::Controller;
    ///
    /// fn controller(client: Client) -> Controller<ConfigMap> {
    ///     let pods = Api::<Pod>::all(client.clone());
    ///     // The ConfigMap `settings` of a namespace runs when a pod of the namespace changes.
    ///     let mapper = |pod: Pod| {
    ///         let namespace = pod.metadata.namespace?;
    ///         Some(ObjectRef::new("settings").within(&namespace))
    ///     };
    ///     Controller::new(Api::all(client), watcher::Config::default())
    ///         .watches(pods, watcher::Config::default(), mapper)
    /// }
    /// ```
    pub fn watches<Other, I>(
        self,
        api: Api<Other>,
        wc: watcher::Config,
        mapper: impl Fn(Other) -> I + Sync + Send + 'static,
    ) -> Self
    where
        Other: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
        Other::DynamicType: Default + Debug + Clone + Eq + Hash,
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
        I::IntoIter: Send,
    {
        self.watch_mapped(Watched::new(api, wc), mapper)
    }

    /// Watches objects that concern objects of kind `K`, like [`watches`](Self::watches), but from any source and with
    /// any options.
    ///
    /// The mapper receives an object, only its metadata, or an `Arc` of it, as the source
    /// [provides](Watched) it.
    ///
    /// # Panics
    ///
    /// As [`watches`](Self::watches).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// # use kube::runtime::reflector::ObjectRef;
    /// # use requeue_kube::Controller;
    /// use requeue_kube::controller::Watched;
    /// use requeue_kube::shared::SharedWatch;
    ///
    /// # let _ = |controller: Controller<ConfigMap>, pods: &SharedWatch<Pod>| {
    /// let controller = controller.watch_mapped(Watched::shared(pods), |pod| {
    ///     let namespace = pod.metadata.namespace.as_ref()?;
    ///     Some(ObjectRef::new("settings").within(namespace))
    /// });
    /// # };
    /// ```
    #[expect(private_bounds, reason = "only the constructors of `Watched` name sources")]
    pub fn watch_mapped<Other, S, I>(
        self,
        watched: Watched<Other, S>,
        mapper: impl Fn(S::Object) -> I + Sync + Send + 'static,
    ) -> Self
    where
        Other: Resource + 'static,
        S: EventSource<Other>,
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
        I::IntoIter: Send,
    {
        let targets = move |item: S::Item, _: &Enqueuer| {
            let requests = mapper(item.into()).into_iter();
            requests.map(|request| request.into().target()).collect()
        };
        self.add_watch(watched.into_source(Role::Mapped, targets))
    }

    fn add_watch(mut self, mut source: Source) -> Self {
        // Number 0 is the controller's own kind.
        let watches = &mut self.parts.others.watches;
        source.distinguish_name(watches);
        self.parts.observers.lists.expect_list(watches.len() + 1, source.name.clone());
        watches.push(source);
        self
    }

    /// Runs `reconciler` for each object that needs it, and `error_policy` for each failure.
    ///
    /// The stream yields the result of each run.
    ///
    /// An object that is not in the store is reported as [not found](Error::ObjectNotFound), and is
    /// not retried, because it was deleted or never existed. To clean up after a deletion, use a
    /// [finalizer](crate::finalizer::finalizer) or [`run_refs`](Self::run_refs).
    ///
    /// Unlike in kube, all three arguments are `'static`. A closure must therefore `move` its
    /// captures, and share them by an `Arc`.
    ///
    /// # Panics
    ///
    /// The stream panics outside a tokio runtime, and when a mapper panics. With
    /// [`propagate_panics`](Config::propagate_panics), it also panics when a reconciler panics.
    ///
    /// # Cancel safety
    ///
    /// The stream can be polled in a `select!`, because no result is lost when a poll is dropped. Dropping the stream
    /// itself stops the controller, and drops each run at an `await`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use futures_util::StreamExt;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::runtime::reflector::ObjectRef;
    /// # use requeue_kube::controller::Action;
    /// # use requeue_kube::{Controller, policy};
    /// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
    /// # let _ = async |controller: Controller<ConfigMap>| {
    /// let stream = controller.shutdown_on_signal().run(reconcile, policy::backoff, Arc::new(()));
    /// stream.for_each(async |result| println!("{result:?}")).await;
    /// # };
    /// ```
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
        let reconciler = Reconciler {
            to_target: |_, object| object,
            runs_gone: false,
            reconcile: reconciler,
            error_policy,
            context,
        };
        run::controller_stream(self.parts, reconciler)
    }

    /// Like [`run`](Self::run), but passes a reference instead of the object, and also reconciles
    /// deleted objects.
    ///
    /// To read the object, look it up in the [store](Self::store). Deletions that happen while the controller is not
    /// running are not reported.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use futures_util::StreamExt;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::runtime::reflector::{ObjectRef, Store};
    /// # use requeue_kube::{Controller, controller::Action, policy};
    /// async fn reconcile(
    ///     object: ObjectRef<ConfigMap>,
    ///     store: Arc<Store<ConfigMap>>,
    /// ) -> Result<Action, kube::Error> {
    ///     match store.get(&object) {
    ///         Some(map) => println!("{object} has {} labels", map.metadata.labels.iter().flatten().count()),
    ///         None => println!("{object} was deleted"),
    ///     }
    ///     Ok(Action::await_change())
    /// }
    ///
    /// # let _ = async |controller: Controller<ConfigMap>| {
    /// let store = Arc::new(controller.store());
    /// controller.run_refs(reconcile, policy::backoff, store).for_each(async |_| {}).await;
    /// # };
    /// ```
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
        let reconciler = Reconciler {
            to_target: |object, _| Some(object.clone()),
            runs_gone: true,
            reconcile: reconciler,
            error_policy,
            context,
        };
        run::controller_stream(self.parts, reconciler)
    }
}

/// Returns true if the owner is of kind `K`, in any version.
fn is_of<K: Resource>(owner: &OwnerReference, dyntype: &K::DynamicType) -> bool {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    owner.kind == K::kind(dyntype) && group == K::group(dyntype)
}

impl<K> Debug for Controller<K>
where
    K: Clone + Resource + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.parts.name)
            .field("config", &self.parts.config)
            .finish_non_exhaustive()
    }
}
