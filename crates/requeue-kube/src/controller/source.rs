//! One watch of a controller: reads a stream of events, and reports changes to the enqueuer.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use kube::Resource;
use kube::core::ApiResource;
use kube::runtime::Predicate;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};

use super::RunnerError;
use super::enqueuer::Enqueuer;
use super::readiness::Readiness;
use super::writes::{Kind, Origin};
use crate::ObjectKey;
use crate::shard::Shard;
use crate::watch::{Observation, Watch};

pub(super) type Events<O> = BoxStream<'static, watcher::Result<Event<O>>>;
/// Creates the stream of events of a shard, or of all objects.
pub(super) type MakeEvents<O> = Box<dyn FnOnce(Option<Shard>) -> Events<O> + Send>;
pub(super) type AnyPredicate<O> = Box<dyn Predicate<O> + Send>;
/// An object that another object concerns, and its priority, if a mapper has set one.
pub(super) type Target = (ObjectKey, Option<i32>);
type Follow = Box<dyn FnOnce(Following) -> BoxFuture<'static, Result<(), RunnerError>> + Send>;

/// A watch that has not started.
pub(super) struct Source {
    /// As in `ConfigMap.v1 (owned)`.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) follow: Follow,
    /// The events come from a shared watch, which has a backoff of its own.
    pub(super) is_shared: bool,
}

/// The parts that a running watch needs.
pub(super) struct Following {
    pub(super) enqueuer: Arc<Enqueuer>,
    /// `None` for a shared watch.
    pub(super) backoff: Option<TriggerBackoff>,
    pub(super) readiness: Readiness,
    /// The name of the watch.
    pub(super) name: String,
    pub(super) number: usize,
    pub(super) kind: Kind,
    pub(super) shard: Option<Shard>,
    /// Receives each error of the watch.
    pub(super) failed: Arc<dyn Fn(watcher::Error) + Send + Sync>,
}

/// Returns the name of a watch, as in `ConfigMap.v1 (owned)`.
pub(super) fn name<O: Resource>(dyntype: &O::DynamicType, role: &str) -> String {
    let (kind, version, group) = (O::kind(dyntype), O::version(dyntype), O::group(dyntype));
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}.{version}{dot}{group} ({role})")
}

/// Returns the events of a stream that is there already.
pub(super) fn made<O: 'static>(
    events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static,
) -> MakeEvents<O> {
    Box::new(move |_| events.boxed())
}

/// Drops the events of objects that are not in the controller's shard.
struct ShardFilter {
    shard: Option<Shard>,
    /// The name of the watch, until an object is dropped.
    name: Option<String>,
}

impl ShardFilter {
    fn new(shard: Option<Shard>, name: &str) -> Self {
        Self { shard, name: shard.map(|_| name.to_owned()) }
    }

    fn own<O: Resource>(&mut self, event: Event<O>) -> Option<Event<O>> {
        let Some(shard) = self.shard else { return Some(event) };
        let own = shard.own(event);
        if own.is_none()
            && let Some(watch) = self.name.take()
        {
            tracing::info!(
                watch,
                "the events are not limited to the shard, so this process receives and drops the others; \
                 an API server limits them with the feature gate ShardedListAndWatch"
            );
        }
        own
    }
}

impl Source {
    /// A watch of the controller's own kind. `store` receives each event first, so that every
    /// delivered object is in the store.
    pub(super) fn main<K: Resource + Send + 'static>(
        name: String,
        kind: Kind,
        events: MakeEvents<K>,
        predicate: Option<AnyPredicate<K>>,
        mut store: impl FnMut(&Event<K>) + Send + 'static,
    ) -> Self {
        let follow = move |following: Following| {
            let (enqueuer, mut watch) = (Arc::clone(&following.enqueuer), Watch::new());
            let mut filter = ShardFilter::new(following.shard, &following.name);
            let events = events(following.shard);
            let on_event = move |event: Event<K>, origin: Origin<'_>| {
                let Some(event) = filter.own(event) else { return };
                // This comes first: the scope must be known before the object is in the store.
                if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) =
                    &event
                {
                    enqueuer.scope.learn(object);
                }
                store(&event);
                let changes = watch.event(event, |object| {
                    let property = predicate.as_ref().and_then(|p| p.hash_property(&object));
                    Observation::of(object.meta()).property(property)
                });
                changes.into_iter().for_each(|change| enqueuer.changed(change, origin));
            };
            following.follow(events, on_event)
        };
        let follow = Box::new(|following| Box::pin(follow(following)) as _);
        Self { name, kind, follow, is_shared: false }
    }

    /// A watch of another kind. `targets` returns the objects that an object concerns. If a mapper
    /// names them, it is not known whether they are in the shard.
    pub(super) fn related<O: Resource + Send + 'static>(
        name: String,
        is_mapped: bool,
        dyntype: &O::DynamicType,
        events: MakeEvents<O>,
        predicate: Option<AnyPredicate<O>>,
        mut targets: impl FnMut(O, Option<Shard>) -> Vec<Target> + Send + 'static,
    ) -> Self {
        let resource = Arc::new(ApiResource::erase::<O>(dyntype));
        let kind = Kind::of::<O>(dyntype);
        let follow = move |following: Following| {
            let (enqueuer, mut watch) = (Arc::clone(&following.enqueuer), Watch::new());
            let shard = following.shard;
            let events = events(shard);
            let on_event = move |event: Event<O>, origin: Origin<'_>| {
                let mut changes = watch.event(event, |object| {
                    let property = predicate.as_ref().and_then(|p| p.hash_property(&object));
                    let sight = Observation::of(object.meta()).property(property);
                    let targets = targets(object, shard);
                    let priority = |(key, priority): &Target| Some((key.clone(), (*priority)?));
                    let priorities: Vec<_> = targets.iter().filter_map(priority).collect();
                    let sight = sight.concerning(targets.into_iter().map(|(key, _)| key));
                    sight.priorities(priorities)
                });
                if is_mapped {
                    let targets = changes.iter_mut().map(|change| &mut change.targets);
                    targets.for_each(|targets| targets.retain(|target| enqueuer.is_ours(target)));
                }
                enqueuer.related(&changes, &resource, origin);
            };
            following.follow(events, on_event)
        };
        let follow = Box::new(|following| Box::pin(follow(following)) as _);
        Self { name, kind, follow, is_shared: false }
    }
}

impl Following {
    /// Passes events on until the stream ends, and waits after each error.
    ///
    /// # Errors
    ///
    /// The watch failed, and the backoff returned `None`.
    async fn follow<O: Resource>(
        self,
        events: impl Stream<Item = watcher::Result<Event<O>>>,
        mut on_event: impl FnMut(Event<O>, Origin<'_>),
    ) -> Result<(), RunnerError> {
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that has begun may still fail.
                    if let Some(backoff) = &self.backoff
                        && !matches!(event, Event::Init | Event::InitApply(_))
                    {
                        backoff.reset();
                    }
                    let is_listed = matches!(event, Event::InitDone);
                    let origin = Origin::of(&self.kind, &event);
                    on_event(event, origin);
                    self.enqueuer.progressed(origin, self.number);
                    if is_listed {
                        self.readiness.listed(self.number);
                    }
                }
                Err(error) if self.backoff.is_none() => (self.failed)(error),
                Err(error) => {
                    // kube's watchers retry silently, even if permission is denied.
                    tracing::warn!(watch = self.name, %error, "a watch failed");
                    (self.failed)(error);
                    let Some(delay) = self.backoff.as_ref().and_then(TriggerBackoff::next) else {
                        return Err(RunnerError::WatchEnded(self.name));
                    };
                    tokio::time::sleep(delay).await;
                }
            }
            // A stream that is always ready must yield to other tasks.
            tokio::task::consume_budget().await;
        }
        tracing::debug!(watch = self.name, "a watch ended");
        Ok(())
    }
}

/// The backoff of a watch after an error. By default each watch has its own, with kube's times. A
/// backoff of the user is shared by all watches.
#[derive(Clone)]
pub(super) struct TriggerBackoff(Arc<Mutex<dyn Backoff>>);

impl TriggerBackoff {
    pub(super) fn new(backoff: impl Backoff + 'static) -> Self {
        Self(Arc::new(Mutex::new(backoff)))
    }

    fn next(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn reset(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).reset();
    }
}

impl Default for TriggerBackoff {
    fn default() -> Self {
        Self::new(DefaultBackoff::default())
    }
}
