//! A watch, from its stream to the hub.

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
use super::hub::Hub;
use super::listed::Readiness;
use crate::ObjectKey;
use crate::watch::{Sight, Watch};

pub(super) type Events<O> = BoxStream<'static, watcher::Result<Event<O>>>;
pub(super) type AnyPredicate<O> = Box<dyn Predicate<O> + Send>;
type Follow = Box<dyn FnOnce(Following) -> BoxFuture<'static, Result<(), RunnerError>> + Send>;

/// A watch that has not begun.
pub(super) struct Source {
    /// As in `ConfigMap.v1 (owned)`.
    pub(super) name: String,
    pub(super) follow: Follow,
}

/// What a watch needs to be followed.
pub(super) struct Following {
    pub(super) hub: Arc<Hub>,
    pub(super) backoff: TriggerBackoff,
    pub(super) readiness: Readiness,
    /// Of the watch.
    pub(super) name: String,
    pub(super) number: usize,
    /// Is told of what goes wrong.
    pub(super) failed: Arc<dyn Fn(watcher::Error) + Send + Sync>,
}

/// `ConfigMap.v1 (owned)`: what a watch is called.
pub(super) fn name<O: Resource>(dyntype: &O::DynamicType, role: &str) -> String {
    let (kind, version, group) = (O::kind(dyntype), O::version(dyntype), O::group(dyntype));
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}.{version}{dot}{group} ({role})")
}

impl Source {
    /// The objects of the controller's kind. `store` hears of each event before anybody else, so
    /// that what is handed out is in there.
    pub(super) fn main<K: Resource + Send + 'static>(
        name: String,
        events: Events<K>,
        predicate: Option<AnyPredicate<K>>,
        mut store: impl FnMut(&Event<K>) + Send + 'static,
    ) -> Self {
        let follow = move |following: Following| {
            let (hub, mut watch) = (Arc::clone(&following.hub), Watch::new());
            let on_event = move |event: Event<K>| {
                // First: who finds it in the store has to know its one key.
                if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) =
                    &event
                {
                    hub.scope.learn(object);
                }
                store(&event);
                let changes = watch.event(event, |object| {
                    let property = predicate.as_ref().and_then(|p| p.hash_property(&object));
                    Sight::of(object.meta()).property(property)
                });
                changes.into_iter().for_each(|change| hub.changed(change));
            };
            following.follow(events, on_event)
        };
        Self { name, follow: Box::new(|following| Box::pin(follow(following))) }
    }

    /// Objects of another kind, which concern those that `targets` gives.
    pub(super) fn related<O: Resource + Send + 'static>(
        name: String,
        dyntype: &O::DynamicType,
        events: Events<O>,
        predicate: Option<AnyPredicate<O>>,
        mut targets: impl FnMut(O) -> Vec<ObjectKey> + Send + 'static,
    ) -> Self {
        let kind = Arc::new(ApiResource::erase::<O>(dyntype));
        let follow = move |following: Following| {
            let (hub, mut watch) = (Arc::clone(&following.hub), Watch::new());
            let on_event = move |event: Event<O>| {
                let changes = watch.event(event, |object| {
                    let property = predicate.as_ref().and_then(|p| p.hash_property(&object));
                    let sight = Sight::of(object.meta()).property(property);
                    sight.concerning(targets(object))
                });
                hub.related(changes, &kind);
            };
            following.follow(events, on_event)
        };
        Self { name, follow: Box::new(|following| Box::pin(follow(following))) }
    }
}

impl Following {
    /// Passes events on for as long as there are any, and waits after each error.
    ///
    /// # Errors
    ///
    /// The backoff says not to go on.
    async fn follow<O>(
        self,
        events: impl Stream<Item = watcher::Result<Event<O>>>,
        mut on_event: impl FnMut(Event<O>),
    ) -> Result<(), RunnerError> {
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that has begun may fail still.
                    if !matches!(event, Event::Init | Event::InitApply(_)) {
                        self.backoff.reset();
                    }
                    let is_listed = matches!(event, Event::InitDone);
                    on_event(event);
                    if is_listed {
                        self.readiness.listed(self.number);
                    }
                }
                Err(error) => {
                    // kube's watchers try again without a word, even where they are not allowed to.
                    tracing::warn!(watch = self.name, %error, "a watch has failed");
                    (self.failed)(error);
                    let Some(delay) = self.backoff.next() else {
                        return Err(RunnerError::WatchEnded(self.name));
                    };
                    tokio::time::sleep(delay).await;
                }
            }
            // A stream that is always ready is to leave others their turn.
            tokio::task::consume_budget().await;
        }
        tracing::debug!(watch = self.name, "a watch has ended");
        Ok(())
    }
}

/// How long a watch waits after an error: kube's way, each watch by itself; or the user's, who has
/// given one for all of them.
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
