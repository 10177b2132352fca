//! Watches whose events the test sends, and reconcilers that record their calls.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector};
use requeue::limiter::ExponentialFailure;
use requeue_kube::Controller;
use requeue_kube::controller::{Action, Config, Error};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Sends events to a watch.
#[derive(Clone)]
pub(crate) struct Feed<O>(mpsc::UnboundedSender<watcher::Result<Event<O>>>);

impl<O: Clone> Feed<O> {
    pub(crate) fn new() -> (Self, impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static)
    where
        O: Send + 'static,
    {
        let (feed, mut events) = mpsc::unbounded_channel();
        (Self(feed), futures_util::stream::poll_fn(move |cx| events.poll_recv(cx)))
    }

    pub(crate) fn send(&self, event: Event<O>) {
        // The send fails if the controller has ended. The test ignores this error.
        _ = self.0.send(Ok(event));
    }

    pub(crate) fn list(&self, objects: &[O]) {
        self.send(Event::Init);
        for object in objects {
            self.send(Event::InitApply(object.clone()));
        }
        self.send(Event::InitDone);
    }

    pub(crate) fn apply(&self, object: &O) {
        self.send(Event::Apply(object.clone()));
    }

    pub(crate) fn delete(&self, object: &O) {
        self.send(Event::Delete(object.clone()));
    }

    pub(crate) fn fail(&self) {
        _ = self.0.send(Err(watcher::Error::NoResourceVersion));
    }
}

/// A controller with a unique name, and the feed of its watch.
pub(crate) fn controller<K>() -> (Feed<K>, Controller<K>)
where
    K: Resource<DynamicType = ()>
        + Clone
        + fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    let (feed, events) = Feed::new();
    let (reader, writer) = store();
    let controller = Controller::for_stream(events.reflect(writer), reader);
    let name = format!("controller {}", NAMES.fetch_add(1, Ordering::Relaxed));
    (feed, controller.name(name))
}

/// Returns an object in namespace `ns`, with a uid and generation 1.
pub(crate) fn map(name: &str, version: u32) -> ConfigMap {
    in_namespace("ns", name, version)
}

pub(crate) fn in_namespace(namespace: &str, name: &str, version: u32) -> ConfigMap {
    let metadata = ObjectMeta {
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: Some(format!("uid of {name}")),
        resource_version: Some(version.to_string()),
        generation: Some(1),
        ..ObjectMeta::default()
    };
    ConfigMap { metadata, ..ConfigMap::default() }
}

pub(crate) fn generation(mut object: ConfigMap, generation: i64) -> ConfigMap {
    object.metadata.generation = Some(generation);
    object
}

/// Returns `object` with an owner of kind `K`.
pub(crate) fn owned_by<K: Resource<DynamicType = ()>, O: Resource>(mut object: O, name: &str) -> O {
    object.meta_mut().owner_references.get_or_insert_default().push(OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: name.into(),
        uid: format!("uid of {name}"),
        ..OwnerReference::default()
    });
    object
}

/// The error of reconcilers that fail on purpose.
#[derive(Debug)]
pub(crate) struct OnPurpose;

impl fmt::Display for OnPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("on purpose")
    }
}

impl std::error::Error for OnPurpose {}

/// The names of the reconciled objects, with the times of their runs.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<(String, Duration)>>>, Instant);

impl Log {
    pub(crate) fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    pub(crate) fn note(&self, name: impl Into<String>) {
        self.0.lock().unwrap().push((name.into(), self.1.elapsed()));
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn times(&self, of: &str) -> Vec<Duration> {
        let log = self.0.lock().unwrap();
        log.iter().filter(|(name, _)| name == of).map(|(_, at)| *at).collect()
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// Waits until `count` runs are recorded.
    pub(crate) async fn reaches(&self, count: usize) {
        while self.0.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

type Items<K, E> =
    Pin<Box<dyn Stream<Item = Result<(ObjectRef<K>, Action), Error<E, watcher::Error>>> + Send>>;

/// The items of a stream. A task reads the stream until this value is dropped.
pub(crate) struct Reading(tokio::task::JoinHandle<()>, Arc<Mutex<Vec<String>>>);

impl Reading {
    pub(crate) fn of<K, E>(
        stream: impl Stream<Item = Result<(ObjectRef<K>, Action), Error<E, watcher::Error>>>
        + Send
        + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + 'static,
        E: std::error::Error + Send + 'static,
    {
        let items = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&items);
        let mut stream: Items<K, E> = Box::pin(stream);
        let task = tokio::spawn(async move {
            while let Some(item) = stream.next().await {
                into.lock().unwrap().push(match item {
                    Ok((object, _)) => format!("ok {}", object.name),
                    Err(error) => error.to_string(),
                });
            }
        });
        Self(task, items)
    }

    pub(crate) fn items(&self) -> Vec<String> {
        self.1.lock().unwrap().clone()
    }

    /// Waits until the stream has ended, and returns its items.
    pub(crate) async fn end(mut self) -> Vec<String> {
        (&mut self.0).await.unwrap();
        self.items()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) fn config() -> Config {
    Config::default()
}

/// Returns a configuration with delays of 1 s, 2 s, 4 s and so on.
pub(crate) fn doubling() -> Config {
    config()
        .rate_limiter(|| ExponentialFailure::new(Duration::from_secs(1), Duration::from_secs(1000)))
}

/// Waits long enough for all runs that are due now.
pub(crate) async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub(crate) fn name<K: Resource>(object: &K) -> String {
    object.meta().name.clone().unwrap_or_default()
}

/// A reconciler that records the object's name, and succeeds.
pub(crate) async fn note<K: Resource>(object: Arc<K>, log: Arc<Log>) -> Result<Action, OnPurpose> {
    log.note(name(&*object));
    Ok(Action::await_change())
}

/// A reconciler that records the name in a reference, and succeeds.
pub(crate) async fn note_ref<K: reflector::Lookup>(
    object: ObjectRef<K>,
    log: Arc<Log>,
) -> Result<Action, OnPurpose> {
    log.note(object.name);
    Ok(Action::await_change())
}

/// A reconciler that records the object's name, and fails.
pub(crate) async fn fail(map: Arc<ConfigMap>, log: Arc<Log>) -> Result<Action, OnPurpose> {
    log.note(name(&*map));
    Err(OnPurpose)
}
