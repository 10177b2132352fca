//! A watch and a store of one kind, which several controllers of a process share.
//!
//! Without this module, each controller has a watch and a store for each kind that it needs. With a [`SharedWatch`],
//! several controllers use one watch and one store. Each object is then in memory once, and is listed only once after
//! an outage.
//!
//! ```no_run
//! use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
//! use kube::runtime::reflector::ObjectRef;
//! use kube::runtime::watcher;
//! use kube::{Api, Client, ResourceExt};
//! use requeue_kube::Controller;
//! use requeue_kube::controller::Watched;
//! use requeue_kube::shared::SharedWatch;
//!
//! fn controllers(client: Client) -> (Controller<Pod>, Controller<ConfigMap>) {
//!     let pods = SharedWatch::new(Api::<Pod>::all(client.clone()), watcher::Config::default());
//!     let by_node = pods.by_index(|pod: &Pod| pod.spec.as_ref()?.node_name.clone());
//!     let nodes = Api::<Node>::all(client.clone());
//!     let on_node = move |node: Node| {
//!         let pods = by_node.keys(&node.name_any());
//!         pods.into_iter().map(|pod| pod.to_ref(())).collect::<Vec<ObjectRef<Pod>>>()
//!     };
//!     // When a node changes, the controller runs each pod on this node.
//!     let of_pods =
//!         Controller::for_shared(&pods).watches(nodes, watcher::Config::default(), on_node);
//!     let maps = Api::<ConfigMap>::all(client);
//!     let of_maps = Controller::new(maps, watcher::Config::default()).watch_owned(Watched::shared(&pods));
//!     (of_pods, of_maps)
//! }
//! ```

mod errors;
mod index;
mod object;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use educe::Educe;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, Stream, StreamExt};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;

pub use self::index::Index;
use self::index::{Indexed, Update};
pub(crate) use self::object::Object;
use crate::key::ObjectKind;
use crate::watch::watch_name;
use crate::{ObjectKey, optional, relist};

/// A watch of one kind, scope and selector, with its store. Several controllers of a process can share it.
///
/// Pass it to [`Controller::for_shared`] and [`Watched::shared`]. The watch begins when the first of these controllers
/// starts. It ends when all these controllers have ended, and all clones of this value are dropped.
///
/// - **Subscribers receive deletions**, including those of objects that were deleted while the watch was disconnected.
///   kube's shared streams report no deletions.
/// - **Each subscriber has a queue.** A slow subscriber does not delay other subscribers. Its queue contains the keys
///   of the objects that have changed since it last read. The subscriber then reads the latest state of these objects.
///   If an object has changed several times, the subscriber receives one event, which
///   [`suppress_own_writes`](crate::controller::Config::suppress_own_writes) never suppresses.
/// - **A late subscriber** first receives all objects in the store, as its first list.
/// - **After an outage**, the watch lists its objects once. Each controller reconciles only the objects that have
///   changed.
/// - **Errors** of the watch appear in the stream of each controller. The watch has kube's backoff. It ignores the
///   backoff of [`Controller::trigger_backoff`]. If a subscriber has a shard group or an election, the watch repeats
///   its first list at least once per retry period of the group or election.
///
/// If a controller has a [shard](crate::Controller::shard), it drops the objects of other shards. The shared store
/// contains the objects of all shards.
///
/// The store contains each object once. For each object, each subscriber stores the key, the uid, the version and the
/// targets. This takes about 100 bytes, and 16 bytes for each target.
///
/// [`Controller::for_shared`]: crate::Controller::for_shared
/// [`Watched::shared`]: crate::controller::Watched::shared
/// [`Controller::trigger_backoff`]: crate::Controller::trigger_backoff
#[derive(Educe)]
#[educe(Clone(bound()))]
pub struct SharedWatch<K>(Arc<Inner<K>>)
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone;

struct Inner<K: ObjectKind> {
    dyntype: K::DynamicType,
    fanout: Arc<Mutex<Fanout<K>>>,
    /// The future that runs the watch, until the watch begins.
    start: Mutex<Option<BoxFuture<'static, ()>>>,
    /// The task that runs the watch, from its beginning. The watch ends when this value is dropped.
    task: Mutex<JoinSet<()>>,
}

/// The state that the watch writes and the subscribers read, under one lock. A subscriber therefore receives each
/// change exactly once: in the store when it lists, or by its queue.
struct Fanout<K: ObjectKind> {
    dyntype: K::DynamicType,
    writer: Writer<K>,
    store: Store<K>,
    indexes: Vec<Arc<dyn Update<K>>>,
    subscribers: BTreeMap<u64, Subscriber<K>>,
    /// The number of subscribers so far, including those that have ended.
    numbers: u64,
    is_listed: bool,
    /// The shortest retry period of the elections and groups of all subscribers.
    list_period: Option<Duration>,
    end: Option<End>,
}

#[derive(Clone, Copy)]
enum End {
    Ended,
    Panicked,
}

/// The changes that one subscriber has not read yet.
struct Subscriber<K> {
    /// True if the subscriber must list the whole store before it reads further changes.
    lists: bool,
    order: VecDeque<ObjectKey>,
    changed: HashMap<ObjectKey, Changed<K>>,
    /// The latest error of the watch, if the subscriber has not read it yet.
    error: Option<Arc<watcher::Error>>,
    wake: Arc<Notify>,
}

/// The changes of one object that a subscriber has not read yet.
struct Changed<K> {
    /// The last state of the object before its deletion. `None` if it was not deleted.
    deleted: Option<Arc<K>>,
    /// True if this value combines several changes.
    is_merged: bool,
}

impl<K> SharedWatch<K>
where
    K: Clone + Resource + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// Creates a shared watch of the objects that `api` and `wc` select. It begins when a controller subscribes to it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::{Api, Client, runtime::watcher};
    /// use requeue_kube::shared::SharedWatch;
    ///
    /// fn settings(client: Client) -> SharedWatch<ConfigMap> {
    ///     SharedWatch::new(Api::all(client), watcher::Config::default().labels("app=web"))
    /// }
    /// ```
    pub fn new(api: Api<K>, wc: watcher::Config) -> Self
    where
        K::DynamicType: Default,
    {
        Self::new_with(api, wc, K::DynamicType::default())
    }

    /// Like [`new`](Self::new), for a kind that is known only at run time.
    pub fn new_with(api: Api<K>, wc: watcher::Config, dyntype: K::DynamicType) -> Self {
        Self::from_stream(relist::consistent_watch(api, &dyntype, wc), dyntype)
    }

    /// Like [`new_with`](Self::new_with), for a kind that the API server may not serve.
    /// [`Watched::optional`](crate::controller::Watched::optional) describes the effects.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
    /// use kube::{Api, Client, runtime::watcher};
    /// use requeue_kube::shared::SharedWatch;
    ///
    /// fn certificates(client: Client) -> SharedWatch<DynamicObject> {
    ///     let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate");
    ///     let kind = ApiResource::from_gvk(&kind);
    ///     SharedWatch::optional(Api::all_with(client, &kind), watcher::Config::default(), kind)
    /// }
    /// ```
    pub fn optional(api: Api<K>, wc: watcher::Config, dyntype: K::DynamicType) -> Self {
        let client = api.clone().into_client();
        let of = dyntype.clone();
        let mut api = relist::consistent_api(api, &dyntype, &wc);
        let make = move || watcher::watcher(api(), wc.clone()).boxed();
        let name = watch_name::<K>(&dyntype, "shared");
        Self::from_stream(optional::optional_events::<K, K>(name, client, of, make), dyntype)
    }
}

impl<K> SharedWatch<K>
where
    K: Clone + Resource + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// Shares a stream of raw events, for example of a watcher whose objects `modify` changes.
    ///
    /// If the kind is known at compile time, `dyntype` is `()`.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::Api;
    /// use kube::runtime::{WatchStreamExt, watcher};
    /// use requeue_kube::shared::SharedWatch;
    ///
    /// # let _ = |api: Api<ConfigMap>| {
    /// let events = watcher(api, watcher::Config::default())
    ///     .modify(|map: &mut ConfigMap| map.metadata.managed_fields = None);
    /// let maps = SharedWatch::from_stream(events, ());
    /// # };
    /// ```
    pub fn from_stream(
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
        dyntype: K::DynamicType,
    ) -> Self {
        let writer = Writer::new(dyntype.clone());
        let store = writer.as_reader();
        let fanout = Arc::new(Mutex::new(Fanout {
            dyntype: dyntype.clone(),
            writer,
            store,
            indexes: Vec::new(),
            subscribers: BTreeMap::new(),
            numbers: 0,
            is_listed: false,
            list_period: None,
            end: None,
        }));
        let start = follow_watch(Arc::clone(&fanout), events).boxed();
        let task = Mutex::new(JoinSet::new());
        Self(Arc::new(Inner { dyntype, fanout, start: Mutex::new(Some(start)), task }))
    }

    /// Returns a reader of the store, which contains the last known state of the objects.
    ///
    /// The store is empty until a controller has started the watch. If a reconciler only reads the objects of this
    /// kind, pass the watch to [`watch_mapped`](crate::Controller::watch_mapped) with a mapper that returns nothing.
    /// The controller then starts only when the store is complete.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use requeue_kube::shared::SharedWatch;
    /// use kube::runtime::reflector::ObjectRef;
    ///
    /// # let _ = |maps: &SharedWatch<ConfigMap>| {
    /// let settings = maps.store().get(&ObjectRef::new("settings").within("default"));
    /// # };
    /// ```
    #[must_use]
    pub fn store(&self) -> Store<K> {
        self.lock_fanout().store.clone()
    }

    /// Returns an index of the objects. `f` returns the values by which an object can be found. It can return any
    /// number of values.
    ///
    /// A mapper can use the index to find the objects that refer to a changed object. The watch calls `f` once for each
    /// change of an object, and once for each object of a list. A slow `f` delays only the events of this watch. If `f`
    /// panics, the watch logs the panic, and the object has no value until its next change.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use requeue_kube::shared::{Index, SharedWatch};
    ///
    /// fn by_image(pods: &SharedWatch<Pod>) -> Index<String, Pod> {
    ///     pods.by_index(|pod: &Pod| {
    ///         let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    ///         containers.filter_map(|container| container.image.clone()).collect::<Vec<_>>()
    ///     })
    /// }
    /// ```
    pub fn by_index<V, I>(&self, f: impl Fn(&K) -> I + Send + 'static) -> Index<V, K>
    where
        V: Hash + Eq + Clone + Send + Sync + 'static,
        I: IntoIterator<Item = V> + 'static,
    {
        let index = Index::new();
        let indexed = Arc::new(Indexed::new(index.clone(), f));
        let objects = self.lock_fanout().stored_objects();
        objects.iter().for_each(|(key, object)| indexed.prepare_object(key, object));
        let mut fanout = self.lock_fanout();
        indexed.replace_objects(&fanout.stored_objects());
        fanout.indexes.push(indexed);
        index
    }

    pub(crate) fn dyntype(&self) -> &K::DynamicType {
        &self.0.dyntype
    }

    /// Adds a subscriber, and returns its events. The watch begins when this stream is first polled. `list_period` is
    /// the maximum time between two attempts of the first list.
    pub(crate) fn subscribed_events(
        &self,
        list_period: Option<Duration>,
    ) -> BoxStream<'static, watcher::Result<Event<Object<K>>>> {
        let (number, wake) = {
            let mut fanout = self.lock_fanout();
            // All subscribers wait for the same first list, so the shortest of their periods is used.
            fanout.list_period = fanout.list_period.into_iter().chain(list_period).min();
            fanout.add_subscriber()
        };
        let subscription = Subscription { shared: self.clone(), number };
        let events = stream! {
            subscription.shared.begin_watch();
            loop {
                // The events and the end of the watch are read under one lock. Otherwise, events that come just before
                // the end could be lost.
                let (events, end) = {
                    let mut fanout = subscription.shared.lock_fanout();
                    (fanout.take_events(subscription.number), fanout.end)
                };
                match end {
                    Some(End::Ended) if events.is_empty() => return,
                    Some(End::Panicked) if events.is_empty() => {
                        panic!("the stream of a shared watch panicked")
                    }
                    None if events.is_empty() => wake.notified().await,
                    _ => {}
                }
                for event in events {
                    yield event;
                }
            }
        };
        events.boxed()
    }

    fn lock_fanout(&self) -> MutexGuard<'_, Fanout<K>> {
        self.0.fanout.lock()
    }

    /// Starts the task of the watch, unless it has already started.
    fn begin_watch(&self) {
        // Only the first call finds the future here, and starts it.
        let watch = self.0.start.lock().take();
        if let Some(watch) = watch {
            self.0.task.lock().spawn(watch);
        }
    }
}

/// Applies the events of the watch to the shared state, until the stream ends.
async fn follow_watch<K: ObjectKind>(
    fanout: Arc<Mutex<Fanout<K>>>,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
) {
    /// Ends the streams of all subscribers when it is dropped, even after a panic.
    struct Ending<'a, K: ObjectKind>(&'a Mutex<Fanout<K>>);

    impl<K: ObjectKind> Drop for Ending<'_, K> {
        fn drop(&mut self) {
            let end = if std::thread::panicking() { End::Panicked } else { End::Ended };
            let mut fanout = self.0.lock();
            fanout.end = Some(end);
            fanout.subscribers.values().for_each(|subscriber| subscriber.wake.notify_one());
        }
    }

    let _ending = Ending(&fanout);
    let watch = K::kind(&fanout.lock().dyntype).into_owned();
    let backoff = ListBackoff { backoff: DefaultBackoff::default(), fanout: Arc::clone(&fanout) };
    let mut events = std::pin::pin!(events.backoff(backoff));
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                // The user's functions are called before the lock is acquired, because all subscribers need the lock.
                prepare_indexes(&fanout, &event);
                fanout.lock().apply_event(event);
            }
            Err(error) => {
                tracing::warn!(watch, %error, "a shared watch failed");
                let error = Arc::new(error);
                for subscriber in fanout.lock().subscribers.values_mut() {
                    subscriber.error = Some(Arc::clone(&error));
                    subscriber.wake.notify_one();
                }
            }
        }
        // The stream may always be ready. It must yield to the other tasks of the runtime from time to time.
        tokio::task::consume_budget().await;
    }
}

/// The backoff of a shared watch, which is kube's backoff. Until the first list is complete, a delay is at most the
/// period of the subscribers.
struct ListBackoff<K: ObjectKind> {
    backoff: DefaultBackoff,
    fanout: Arc<Mutex<Fanout<K>>>,
}

impl<K: ObjectKind> Iterator for ListBackoff<K> {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = self.backoff.next()?;
        let fanout = self.fanout.lock();
        let period = fanout.list_period.filter(|_| !fanout.is_listed);
        Some(period.map_or(delay, |period| delay.min(period)))
    }
}

impl<K: ObjectKind> Backoff for ListBackoff<K> {
    fn reset(&mut self) {
        self.backoff.reset();
    }
}

/// Calls the user's functions of all indexes for the objects of an event, without the lock on the shared state.
fn prepare_indexes<K: ObjectKind>(fanout: &Mutex<Fanout<K>>, event: &Event<K>) {
    let indexes = fanout.lock().indexes.clone();
    match event {
        Event::Init => indexes.iter().for_each(|index| index.begin_list()),
        Event::Apply(object) | Event::InitApply(object) => {
            let key = ObjectKey::from_object(object);
            indexes.iter().for_each(|index| index.prepare_object(&key, object));
        }
        Event::InitDone | Event::Delete(_) => {}
    }
}

impl<K: ObjectKind> Fanout<K> {
    fn apply_event(&mut self, event: Event<K>) {
        // The store and the queues of the subscribers change under one lock. A subscriber that lists therefore sees the
        // change either in the store or in its queue, but never in both.
        self.writer.apply_watcher_event(&event);
        match event {
            Event::Init | Event::InitApply(_) => {}
            Event::InitDone => {
                self.is_listed = true;
                if !self.indexes.is_empty() {
                    let objects = self.stored_objects();
                    self.indexes.iter().for_each(|index| index.replace_objects(&objects));
                }
                self.subscribers.values_mut().for_each(Subscriber::list_again);
            }
            Event::Apply(object) => {
                let key = ObjectKey::from_object(&object);
                if let Some(object) = self.stored_object(&key) {
                    self.indexes.iter().for_each(|index| index.put_object(&key, &object));
                }
                self.notify_change(&key, None);
            }
            Event::Delete(object) => {
                let key = ObjectKey::from_object(&object);
                self.indexes.iter().for_each(|index| index.remove_object(&key));
                self.notify_change(&key, Some(&Arc::new(object)));
            }
        }
    }

    fn notify_change(&mut self, key: &ObjectKey, deleted: Option<&Arc<K>>) {
        for subscriber in self.subscribers.values_mut() {
            subscriber.add_change(key, deleted);
        }
    }

    fn stored_object(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.store.get(&key.to_ref(self.dyntype.clone()))
    }

    fn stored_objects(&self) -> Vec<(ObjectKey, Arc<K>)> {
        self.store
            .state()
            .into_iter()
            .map(|object| (ObjectKey::from_object(&*object), object))
            .collect()
    }

    fn add_subscriber(&mut self) -> (u64, Arc<Notify>) {
        self.numbers += 1;
        let wake = Arc::new(Notify::new());
        let subscriber = Subscriber {
            lists: true,
            order: VecDeque::new(),
            changed: HashMap::new(),
            error: None,
            wake: Arc::clone(&wake),
        };
        self.subscribers.insert(self.numbers, subscriber);
        (self.numbers, wake)
    }

    /// Returns the next events of a subscriber. The result is empty if the subscriber has read all changes.
    fn take_events(&mut self, number: u64) -> Vec<watcher::Result<Event<Object<K>>>> {
        let Some(subscriber) = self.subscribers.get_mut(&number) else { return Vec::new() };
        // The subscriber receives an error first, even if it must still list the store.
        if let Some(error) = subscriber.error.take() {
            return vec![Err(errors::copy_error(&error))];
        }
        if subscriber.lists && self.is_listed {
            subscriber.lists = false;
            let objects = self.store.state().into_iter();
            let list = objects.map(|object| Event::InitApply(object.into()));
            return [Event::Init]
                .into_iter()
                .chain(list)
                .chain([Event::InitDone])
                .map(Ok)
                .collect();
        }
        let Some((key, changed)) = subscriber.pop_change() else { return Vec::new() };
        let Changed { deleted, is_merged } = changed;
        let deleted = deleted.map(|object| Event::Delete(object.into()));
        let here =
            self.stored_object(&key).map(|object| Event::Apply(Object { object, is_merged }));
        deleted.into_iter().chain(here).map(Ok).collect()
    }
}

impl<K> Subscriber<K> {
    /// Makes the subscriber list the whole store.
    fn list_again(&mut self) {
        self.lists = true;
        // The list includes the pending changes, so they are dropped.
        self.order.clear();
        self.changed.clear();
        self.wake.notify_one();
    }

    fn add_change(&mut self, key: &ObjectKey, deleted: Option<&Arc<K>>) {
        if self.lists {
            return;
        }
        match self.changed.entry(key.clone()) {
            Entry::Vacant(entry) => {
                // The queue does not contain the new state, which is read from the store later. A slow subscriber
                // therefore keeps no old states in memory.
                entry.insert(Changed { deleted: deleted.cloned(), is_merged: false });
                self.order.push_back(key.clone());
                self.wake.notify_one();
            }
            Entry::Occupied(mut entry) => {
                let changed = entry.get_mut();
                changed.is_merged = true;
                // The object was deleted, and has since been created again. The subscriber must receive both.
                if let Some(object) = deleted {
                    changed.deleted = Some(Arc::clone(object));
                }
            }
        }
    }

    fn pop_change(&mut self) -> Option<(ObjectKey, Changed<K>)> {
        let key = self.order.pop_front()?;
        let changed = self.changed.remove(&key)?;
        Some((key, changed))
    }
}

/// A guard that removes the subscriber when it is dropped.
struct Subscription<K: ObjectKind> {
    shared: SharedWatch<K>,
    number: u64,
}

impl<K: ObjectKind> Drop for Subscription<K> {
    fn drop(&mut self) {
        self.shared.lock_fanout().subscribers.remove(&self.number);
    }
}

impl<K> fmt::Debug for SharedWatch<K>
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWatch")
            .field("kind", &K::kind(&self.0.dyntype))
            .finish_non_exhaustive()
    }
}
