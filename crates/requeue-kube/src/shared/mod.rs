//! One watch and one store for several controllers of a process.
//!
//! Two controllers that need the objects of one kind usually have a watch and a store each. With a [`SharedWatch`],
//! they share one watch and one store. After an outage, there is only one list, and each object is in memory only once.
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
//!     // Each pod runs when its node changes.
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

/// A watch of one kind, scope and selector, and its store, for several controllers of a process.
///
/// Pass the watch to [`Controller::for_shared`] and [`Watched::shared`]. The watch begins when the first of these
/// controllers starts, and ends when all these controllers have ended and all clones of this value are dropped.
///
/// - **Deletions are delivered**, including deletions while the watch was disconnected. kube's shared streams deliver
///   no deletions.
/// - **Each subscriber is a queue.** A slow subscriber delays no other subscriber, and needs memory only for the keys
///   of objects that have changed since it last read. The subscriber then reads the latest state of these objects.
///   Several changes of an object become one event, which
///   [`suppress_own_writes`](crate::controller::Config::suppress_own_writes) never suppresses.
/// - **A late subscriber** first receives the current state, as a first list.
/// - **After an outage**, the watch requests only one list from the API server. Each controller
///   reconciles only the objects that have changed.
/// - **Errors** of the watch are reported by each controller. The watch uses kube's backoff, and not the backoff of
///   [`Controller::trigger_backoff`]. If a subscriber has a shard group or an election, the first list is repeated at
///   least once per retry period.
///
/// With a [shard](crate::Controller::shard), each controller drops the objects of other shards, but the store contains
/// all objects.
///
/// The store contains each object once. For each object, each subscriber also remembers the key, the uid, the version
/// and the targets, which need about 100 bytes, and 16 bytes for each target.
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
    /// The future of the watch, before the watch begins.
    start: Mutex<Option<BoxFuture<'static, ()>>>,
    /// The task of the watch, after the watch has begun. Dropping the task ends the watch.
    task: Mutex<JoinSet<()>>,
}

/// The state that the watch changes and the subscribers read. The state has one lock, so that a subscriber receives
/// each change exactly once, either in the store when it reads a list, or as a key.
struct Fanout<K: ObjectKind> {
    dyntype: K::DynamicType,
    writer: Writer<K>,
    store: Store<K>,
    indexes: Vec<Arc<dyn Update<K>>>,
    subscribers: BTreeMap<u64, Subscriber<K>>,
    /// The number of subscribers that were added so far.
    numbers: u64,
    is_listed: bool,
    /// The shortest retry period of the groups and elections of the subscribers.
    list_period: Option<Duration>,
    end: Option<End>,
}

#[derive(Clone, Copy)]
enum End {
    Ended,
    Panicked,
}

/// The changes that a subscriber has not read.
struct Subscriber<K> {
    /// True if the subscriber must read the whole store before the other changes.
    lists: bool,
    order: VecDeque<ObjectKey>,
    changed: HashMap<ObjectKey, Changed<K>>,
    /// The latest error that the subscriber has not read.
    error: Option<Arc<watcher::Error>>,
    wake: Arc<Notify>,
}

/// The changes of an object that a subscriber has not read.
struct Changed<K> {
    /// The last state before the deletion, if the object was deleted.
    deleted: Option<Arc<K>>,
    /// True if several changes were combined.
    is_merged: bool,
}

impl<K> SharedWatch<K>
where
    K: Clone + Resource + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// Creates a watch of the objects that `api` and `wc` select.
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

    /// Like [`new_with`](Self::new_with), for a kind that may not be installed: see
    /// [`Watched::optional`](crate::controller::Watched::optional).
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
    /// Shares a stream of raw events, such as a watcher whose objects are changed by `modify`.
    ///
    /// `dyntype` is `()` for a kind that is known at compile time.
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

    /// Returns a reader of the store, which contains the objects as they were last seen.
    ///
    /// The store is empty before the first controller has started the watch. For a kind whose objects are only looked
    /// up, use [`watch_mapped`](crate::Controller::watch_mapped) with a mapper that returns no objects. The controller
    /// then starts only when the store is complete.
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

    /// Returns an index of the objects by the values that `f` returns for each object. `f` can return any number of
    /// values.
    ///
    /// Use the index in a mapper, to find the objects that refer to a changed object. `f` is called
    /// once for each change of an object, and once for each object of a list. A slow `f` delays
    /// only the events of the watch. If `f` panics, the panic is logged, and the object has no
    /// value in the index until its next change.
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

    /// Returns the events of a new subscriber. The watch begins when the stream is first polled. If a period is given,
    /// a first list that fails is repeated at least once per period.
    pub(crate) fn subscribed_events(
        &self,
        list_period: Option<Duration>,
    ) -> BoxStream<'static, watcher::Result<Event<Object<K>>>> {
        let (number, wake) = {
            let mut fanout = self.lock_fanout();
            // The shortest period of the subscribers applies, because all subscribers wait for the
            // same list.
            fanout.list_period = fanout.list_period.into_iter().chain(list_period).min();
            fanout.add_subscriber()
        };
        let subscription = Subscription { shared: self.clone(), number };
        let events = stream! {
            subscription.shared.begin_watch();
            loop {
                // The events and the end are read under one lock. Otherwise, the last events could
                // be lost.
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

    /// Starts the watch, unless the watch has already begun.
    fn begin_watch(&self) {
        // Only the first caller receives the watch, and starts it.
        let watch = self.0.start.lock().take();
        if let Some(watch) = watch {
            self.0.task.lock().spawn(watch);
        }
    }
}

/// Passes the events of the watch to the fanout, until the stream ends.
async fn follow_watch<K: ObjectKind>(
    fanout: Arc<Mutex<Fanout<K>>>,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
) {
    /// Ends the streams of all subscribers, also after a panic.
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
                // The functions of the user run before the lock is acquired, because all
                // subscribers need the lock.
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
        // A stream that is always ready must yield to other tasks.
        tokio::task::consume_budget().await;
    }
}

/// The backoff of a shared watch. It is kube's backoff, but before the first list at most the
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

/// Calls the functions of the indexes for the object of an event, without the lock of the fanout.
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
        // The store changes under the lock of the subscribers. Each subscriber therefore receives the change either in
        // its list or as a key, but never both.
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

    /// Returns the next events of a subscriber, or no events if the subscriber has read all events.
    fn take_events(&mut self, number: u64) -> Vec<watcher::Result<Event<Object<K>>>> {
        let Some(subscriber) = self.subscribers.get_mut(&number) else { return Vec::new() };
        // An error is passed on first, even before a list that the subscriber has not read.
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
    /// Makes the subscriber read the whole store.
    fn list_again(&mut self) {
        self.lists = true;
        // The pending changes are dropped, because the list also shows them.
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
                // The state is read from the store later, so a slow subscriber keeps no old states.
                entry.insert(Changed { deleted: deleted.cloned(), is_merged: false });
                self.order.push_back(key.clone());
                self.wake.notify_one();
            }
            Entry::Occupied(mut entry) => {
                let changed = entry.get_mut();
                changed.is_merged = true;
                // An object that was created again must also be reported as deleted.
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

/// The subscription of one subscriber. Dropping this value ends the subscription.
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
