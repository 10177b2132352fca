//! The builder of a controller, with its kind, its watches and its settings.

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

/// A controller, which reconciles the objects of one kind.
///
/// This type has the methods of kube's [`Controller`](kube::runtime::Controller). In addition, it has a queue with
/// backoff, priorities and metrics.
///
/// The controller differs from kube's controller in these points:
///
/// - **Failures back off.** Each object has a separate backoff, if [`policy::backoff`](crate::policy::backoff) is the
///   error policy. Only a new generation of a failing object starts its run before the backoff has passed: see
///   [below](#backoff-and-new-generations).
/// - **No deletion is missed.** If an object is deleted while its watch is disconnected, the controller handles the
///   deletion after the next list. This is also true for owned and watched objects. The former owner of an object, and
///   the objects that the mapper returned for the object before, are also reconciled.
/// - **One object, one run.** If children in several namespaces have the same owner, and the owner has no namespace,
///   the owner has one key.
/// - **Changes go first.** Objects in the first list have [low priority](crate::controller::LOW_PRIORITY). After a
///   later list, only objects run that have changed since the controller last saw them
///   ([`Config::reconcile_unchanged`]).
/// - **The stream only reports results.** The controller starts when the stream is first polled, and stops when it is
///   dropped. Its watches and workers are separate tasks, so a slow reader of the stream does not delay them. Up to
///   1,024 results wait for the reader. Further results are dropped, but their runs take place.
/// - **Several tasks call the reconciler and the error policy at the same time**, so both must be `Fn + Send + Sync`.
///   In kube, the reconciler is `FnMut`, because only one task calls it. An `async fn` satisfies all these traits. A
///   closure that changes a counter needs an atomic or a `Mutex`.
/// - **One worker.** [`concurrency`](Config::concurrency) is 1 by default.
///
/// # Backoff and new generations
///
/// A failed object waits for the delay that the error policy or the [rate limiter](Config::rate_limiter) returns. Two
/// events end this wait early: the object gets a new generation, or it is replaced by another object of the same name,
/// which has no failures. The object then runs immediately, and its backoff starts again at the first delay.
///
/// Some reconcilers create new generations of the objects that they reconcile. They change a `spec`, or they write the
/// status of a custom resource without a `status` subresource, where each write creates a generation. Such objects back
/// off too. If an object runs before its delay has passed, and this run fails, no change of the object shortens the
/// next delay. Until the object succeeds, its backoff starts again at most once.
///
/// An object can be given up by [`max_retries`](Config::max_retries), by [`Action::terminal`], or by an error policy
/// that returns [`Action::await_change`]. The limiter counts the failure of such an object like any other failure. If
/// the reconciler itself has changed the object, the next run therefore waits for the delay. Only a new generation
/// starts a run earlier.
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
    /// the first list may be older than the latest state of the API server. A later list is never older than the state
    /// that the controller has seen. An object that is missing in a later list has therefore really been deleted.
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
    /// The controller learns from the first object of the watch whether the kind has namespaces, unless
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
    /// Each object must be in the store of `reader` before the stream yields its event. To achieve this, apply
    /// [`reflect`](kube::runtime::WatchStreamExt::reflect) to the watcher. The controller starts after the first
    /// [`Event::InitDone`].
    ///
    /// In kube, the method of this name is unstable, and takes a stream of objects. Such a stream does not report an
    /// object that was deleted while its watch was disconnected. This method therefore takes a stream of raw events,
    /// without `applied_objects()`. Kube's `for_shared_stream` does not report deletions at all. Use
    /// [`for_shared`](Self::for_shared) instead.
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

    /// Creates a controller for the objects of a shared watch. The controller's [`store`](Self::store) is the store of
    /// the shared watch.
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

    /// Creates a controller from a source of events. `write` receives each event first, before the watch and the queue.
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
    /// You find the scope by kube's [discovery](kube::discovery::ApiCapabilities::scope). Without this call, the
    /// controller learns the scope from the first object that its watch reports. Until then, if objects in several
    /// namespaces have the same owner without a namespace, the controller may treat this owner as several objects.
    pub fn scope(mut self, scope: discovery::Scope) -> Self {
        self.parts.own.scope = Some(scope);
        self
    }

    /// Makes the controller reconcile only the objects of a shard, so that several replicas can share the objects.
    ///
    /// Give each replica another shard. An API server with the feature gate `ShardedListAndWatch` (alpha since
    /// Kubernetes 1.36) then sends only the objects of the shard. From any other API server, the controller receives
    /// all objects, drops those of other shards, and logs this once.
    ///
    /// - The [store](Self::store) contains only the objects of the shard. With [`for_stream`](Self::for_stream), your
    ///   program fills the store, and decides which objects it contains.
    /// - An owned object is in the shard of its owner.
    /// - If a mapper or a trigger names an object, the object is reconciled if it is in the store and in the shard.
    ///
    /// The shard of a replica never changes. If a replica stops, no other replica reconciles the objects of its shard.
    /// Run one replica for each shard, for example as a StatefulSet. Or run several replicas for each shard, with
    /// [`leader_election`](Self::leader_election) and a separate Lease for each shard. With a [shard
    /// group](Self::shard_group), the other replicas take over the shards.
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

    /// Shares the objects with the other replicas of a [group](crate::membership), instead of a leader election. All
    /// replicas reconcile objects, each in an equal number of shards.
    ///
    /// - **Start.** The controller joins the group when its watches have listed their objects. After it has gained a
    ///   shard, it lists the objects of the shard by a consistent read, and runs them with [low
    ///   priority](crate::controller::LOW_PRIORITY), as after a start. Before it holds a shard, no object runs.
    /// - **Handover.** The runs in flight of a shard complete before another replica takes the shard over. A run that
    ///   exceeds [`handover_timeout`](ShardGroup::handover_timeout) is dropped at an `await`. The keys of the shard
    ///   leave the queue, and its objects leave the store, if the controller fills the store. The controller does not
    ///   treat these objects as deleted. With [`run_refs`](Self::run_refs), the pending run of a deleted object is
    ///   lost. If every deletion must be handled, use a finalizer.
    /// - **Shutdown.** A [graceful shutdown](Self::graceful_shutdown_on) hands all shards over when their runs in
    ///   flight have completed, and the other replicas continue immediately. After a forced shutdown, or if the stream
    ///   is dropped, the shards have no holder until the member Lease has expired.
    /// - **Objects that are created again.** An object that is deleted and created again under the same name has
    ///   another uid. With [`ShardBy::Uid`](crate::range::ShardBy::Uid), it is usually in another shard. If one replica
    ///   holds both shards, the key never has two runs at the same time. If two replicas hold them, the last run for
    ///   the former object or its deletion may overlap with the first run for the new object.
    /// - **End of the streams.** When all event streams of a controller have ended, the controller runs its remaining
    ///   keys, and then hands its shards over. If the streams end before the group has assigned shards, the controller
    ///   waits for the assignment.
    /// - **Loss of the membership.** The controller immediately drops all runs in flight, each at an `await`. The
    ///   stream ends with [`RunnerError::Membership`](super::RunnerError::Membership) before another replica takes
    ///   over. The process should then exit, or create another controller.
    /// - **Writes.** The [fence](crate::membership::HeldShard::fence) of a shard makes the API server reject late
    ///   writes of a former holder: see [`held_shards`](Self::held_shards).
    /// - **Watches.** If the API server can select shards, it sends only the objects of the replica's shards, as with
    ///   [`shard`](Self::shard). Each replica receives all owned and watched objects. When the controller has gained
    ///   shards, its watch starts again, with a list of all shards that it holds. If the controller gains several
    ///   shards during a list, it only lists once more. A release needs no list: the controller drops the objects, and
    ///   the next request of the watch omits the shard. With [`for_stream`](Self::for_stream) and
    ///   [`for_shared`](Self::for_shared), the objects come from your watch, which may not have reported the last
    ///   writes of the former holder yet. The stores of owned and watched objects may lack recent writes at any time.
    ///
    /// [`with_client`](ShardGroup::with_client) sets the client for the group's requests. A client with separate
    /// connections is recommended. By default, the group uses the client of the controller's `Api`. The default
    /// [kind](ShardGroup::objects) of the group is the controller's kind, and the default
    /// [metrics](ShardGroup::metrics) are the controller's metrics.
    ///
    /// The stream ends with [`RunnerError::Membership`](super::RunnerError::Membership) if a setting of the group is
    /// invalid, a [permission](crate::membership#permissions) is missing, or the existing group has another number of
    /// shards. The program should then exit with an error, as in the example. The stream ends with
    /// [`RunnerError::Config`](super::RunnerError::Config) if a setting of the controller cannot be combined with a
    /// group.
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

    /// Returns a handle that shows the shards that the controller holds in its [group](Self::shard_group).
    pub fn held_shards(&self) -> HeldShards {
        self.parts.observers.status.held.clone()
    }

    /// Returns the name that was set, or the kind in lower case.
    pub(crate) fn effective_name(&self) -> String {
        self.parts.effective_name()
    }

    /// Returns the client of the `Api` with which the controller was created.
    pub(crate) const fn client(&self) -> Option<&Client> {
        self.parts.sharding.client.as_ref()
    }

    /// Makes the controller own the objects in the shards that `shards` holds. These shards can change while the
    /// controller runs.
    #[cfg(test)]
    pub(crate) fn owning(mut self, shards: super::ownership::ChangingShards) -> Self {
        self.parts.sharding.changing = Some(shards);
        self
    }

    /// Sets the name of the controller in metrics, logs and errors.
    ///
    /// By default, the name is the controller's kind in lower case.
    ///
    /// Two controllers of a process cannot have the same name at the same time. The second one ends with
    /// [`RunnerError::DuplicateName`](super::RunnerError::DuplicateName). Another controller can use the name when the
    /// stream of this controller has ended or was dropped.
    ///
    /// If the stream is dropped, runs in flight continue up to their next `await`. For a short time, they may overlap
    /// with runs of the next controller of this name. To prevent the overlap, stop the first controller by a [graceful
    /// shutdown](Self::graceful_shutdown_on).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.parts.name = Some(name.into());
        self
    }

    /// Sets the values that a manager determines: the start, the shutdown, the group and the metrics.
    pub(crate) fn set_managed(mut self, managed: Managed) -> Self {
        let Managed { lead, group, graceful, forced, metrics } = managed;
        self.parts.sharding.common_group = group;
        if let Some((lead, election)) = lead {
            self.parts.start.on = Some(lead);
            self.parts.start.election = Some(election);
        }
        self.parts.stops.graceful.push(graceful);
        self.parts.stops.forced.push(forced);
        // A manager without metrics does not change the metrics of the controller.
        if metrics.is_some() {
            self.parts.observers.metrics = metrics;
        }
        self
    }

    /// Sets the backoff of failed watches.
    ///
    /// All watches of the controller share this backoff, except a [shared watch](crate::shared::SharedWatch), which has
    /// its own backoff.
    ///
    /// By default, each watch has a separate backoff, from 0.8 s to 30 s with jitter. If the controller needs a list to
    /// take part in an election or a shard group, it repeats the list at least once per retry period of the election or
    /// group. If `backoff` returns `None`, the controller shuts down with
    /// [`RunnerError::WatchEnded`](super::RunnerError::WatchEnded).
    pub fn trigger_backoff(mut self, backoff: impl Backoff + 'static) -> Self {
        self.parts.others.backoff = Some(Arc::new(Mutex::new(backoff)));
        self
    }

    /// Returns a reader of the store, which contains the last known state of the objects of kind `K`.
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
    /// // The reconciler reads the store without a request to the API server:
    /// let other: Option<Arc<ConfigMap>> = store.get(&ObjectRef::new("settings").within("default"));
    /// # };
    /// ```
    pub fn store(&self) -> Store<K> {
        self.parts.own.store.clone()
    }

    /// Adds the controller's metrics to a Prometheus registry while the controller runs. The label `controller` is its
    /// name.
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
    /// Use the callback to inspect the queue, or to display it on the dashboard of `requeue-http`.
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

    /// Returns a handle for the endpoint `/readyz`. It tells whether all watches have received their first list.
    pub fn readiness(&self) -> Readiness {
        Readiness::new(self.parts.observers.lists.clone())
    }

    /// Returns the handle with which the reconciler records its writes. An object then does not run on a store that is
    /// older than the writes of its last run.
    pub fn writes(&self) -> Writes {
        self.parts.observers.status.writes.clone()
    }

    /// Returns a handle for a dashboard. It shows why an object waits, and which shards each member of the controller's
    /// group holds.
    pub fn status(&self) -> Status {
        self.parts.observers.status.clone()
    }

    /// Ignores a change of an object of kind `K` if the result of `predicate` stays the same. An example is
    /// [`predicates::generation`](kube::runtime::predicates::generation).
    ///
    /// A new object is never ignored. With [`run_refs`](Self::run_refs), a deleted object is not ignored either.
    ///
    /// With a [finalizer](crate::finalizer::finalizer), the predicate must depend on the object's finalizers, because
    /// adding a finalizer does not create a new generation.
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
    /// When an owned object changes or is deleted, the controller reconciles its owners. If an object no longer names
    /// an owner, the controller reconciles that former owner too.
    ///
    /// The controller reconciles every owner of kind `K`, in any version of the kind, and not only the owner with
    /// `controller: true`. It watches only the metadata of owned objects. For other sources and for options, use
    /// [`watch_owned`](Self::watch_owned).
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

    /// Watches objects that objects of kind `K` own, like [`owns`](Self::owns). The source and the options come from
    /// `watched`.
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
                // The target is the key before `normalize`. The watch compares the targets of two events, so a target
                // must not change when the controller learns the scope.
                may_be_ours.then_some((key, None))
            };
            owners.filter_map(target).collect()
        };
        let source = watched.into_source(Role::Owned, &self.parts.others.watches, owners);
        self.add_watch(source)
    }

    /// Watches objects of another kind whose changes require runs of objects of kind `K`.
    ///
    /// When an object of the other kind changes or is deleted, the controller reconciles the objects that `mapper`
    /// returns for it. It also reconciles the objects that `mapper` returned for the previous state.
    ///
    /// The controller calls the mapper for each object that its watch reports. The mapper returns kube's
    /// [`ObjectRef`]s, or [`Request`]s, which can have a priority. At a deletion, the controller uses the priority that
    /// the mapper returned for the last state of the object.
    ///
    /// For other sources and for options, use [`watch_mapped`](Self::watch_mapped).
    ///
    /// # Panics
    ///
    /// If the mapper panics, the controller ends, and its stream panics.
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
    ///     // When a pod changes, the ConfigMap `settings` in the pod's namespace runs.
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

    /// Watches objects whose changes require runs of objects of kind `K`, like [`watches`](Self::watches). The source
    /// and the options come from `watched`.
    ///
    /// The argument of the mapper depends on the [source](Watched): it is the object, only its metadata, or an `Arc` of
    /// the object.
    ///
    /// # Panics
    ///
    /// The method has the panics of [`watches`](Self::watches).
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
        let source = watched.into_source(Role::Mapped, &self.parts.others.watches, targets);
        self.add_watch(source)
    }

    fn add_watch(mut self, source: Source) -> Self {
        // Number 0 is the watch of the controller's own kind, so the other watches begin with 1.
        let watches = &mut self.parts.others.watches;
        self.parts.observers.lists.expect_list(watches.len() + 1, source.name.clone());
        watches.push(source);
        self
    }

    /// Returns the stream of a controller that calls `reconciler` for each object, and `error_policy` after each
    /// failure.
    ///
    /// The stream yields the result of each run.
    ///
    /// If an object is not in the store, because it was deleted or never existed, the stream yields
    /// [`ObjectNotFound`](Error::ObjectNotFound), and the controller does not retry the object. To clean up after a
    /// deletion, use a [finalizer](crate::finalizer::finalizer) or [`run_refs`](Self::run_refs).
    ///
    /// Unlike in kube, all three arguments must be `'static`. A closure must therefore `move` its captures, and share
    /// them by an `Arc`.
    ///
    /// # Panics
    ///
    /// The stream panics if it is polled outside a tokio runtime, or if a mapper panics. With
    /// [`propagate_panics`](Config::propagate_panics), it also panics if the reconciler or the error policy panics.
    ///
    /// # Cancel safety
    ///
    /// The stream can be polled in a `select!`, because a poll that is dropped loses no result. If the stream itself is
    /// dropped, the controller stops, and each run is dropped at an `await`.
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

    /// Like [`run`](Self::run), but calls the reconciler with a reference to the object, and also for deleted objects.
    ///
    /// The reconciler can read the object in the [store](Self::store). If an object is deleted while no controller
    /// runs, no run reports the deletion.
    ///
    /// # Panics
    ///
    /// The stream has the panics of [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// The stream has the cancel safety of [`run`](Self::run).
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

/// Returns true if the owner reference names kind `K`, in any version.
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
