//! One watch of a controller, which reads a stream of events and reports the changes to the enqueuer.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use kube::api::{Api, ListParams, Resource};
use kube::runtime::Predicate;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::enqueuer::{Enqueuer, Handling};
use super::error::RunnerError;
use super::ownership::Selection;
use super::readiness::Lists;
use super::writes::{Kind, Origin};
use crate::ObjectKey;
use crate::intercept::select_shards;
use crate::key::ObjectKind;
use crate::range::Shard;
use crate::relist::Events;
use crate::shared::{Object, SharedWatch};

/// Starts a watch of the selected objects. The duration is the [period](ListTimes::period) of the list, for a shared
/// watch, which has no selector.
pub(super) type StartWatch<O> = Box<dyn FnMut(Selected, Option<Duration>) -> Events<O> + Send>;

/// The origin of the events of a watch.
pub(super) enum MakeEvents<O> {
    /// The user's stream, which contains the events of all objects.
    Made(Events<O>),
    Watch(StartWatch<O>),
    /// A shared watch. The function returns true if the event of this object combines several changes of the object.
    Shared(StartWatch<O>, fn(&O) -> bool),
}

/// The objects that a watch requests from the API server.
pub(super) enum Selected {
    All,
    /// No object is watched. The watch only lists one object, to check that this process can list the kind.
    Probe,
    Shard(Shard),
    /// The objects in the shards that this process held when the watch started, except for shards that it has released
    /// since.
    Held(Selection),
}

impl Selected {
    pub(super) fn from_shard(shard: Option<Shard>) -> Self {
        shard.map_or(Self::All, Self::Shard)
    }

    /// Returns an `Api` whose list and watch requests select these objects.
    pub(super) fn select_objects<O: Resource>(
        self,
        api: Api<O>,
        dyntype: &O::DynamicType,
    ) -> Api<O> {
        match self {
            Self::All | Self::Probe => api,
            Self::Shard(shard) => {
                let selector = shard.selector();
                select_shards(api, dyntype, move || (selector.clone(), pending().boxed()))
            }
            Self::Held(selection) => match selection.selectable_field() {
                Some(by) => select_shards(api, dyntype, move || selection.next_selector(by)),
                None => api,
            },
        }
    }

    /// Returns the configuration for a watch of these objects. The shards that a group assigns are listed by a
    /// consistent read. The cache of an API server may be older than the last writes of a shard's former holder.
    pub(super) fn list_config(&self, wc: watcher::Config) -> watcher::Config {
        match self {
            Self::All | Self::Probe | Self::Shard(_) => wc,
            // A streaming list may also begin with the outdated state of a cache.
            Self::Held(_) => watcher::Config {
                list_semantic: watcher::ListSemantic::MostRecent,
                initial_list_strategy: watcher::InitialListStrategy::ListWatch,
                ..wc
            },
        }
    }
}

pub(super) type AnyPredicate<O> = Box<dyn Predicate<O> + Send>;
/// An object that must be reconciled because another object changed, and the priority that the mapper has set, if any.
pub(super) type Target = (ObjectKey, Option<i32>);
type Follow = Box<dyn FnOnce(Following) -> BoxFuture<'static, Result<(), RunnerError>> + Send>;

/// A watch of a controller that has not started.
pub(super) struct Source {
    /// The name of the watch in messages, for example `ConfigMap.v1 (owned)`.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) follow: Follow,
    /// True if the events come from a shared watch, which applies its backoff itself.
    pub(super) is_shared: bool,
}

/// The time limits of the lists for which a controller waits.
#[derive(Clone, Copy)]
pub(super) struct ListTimes {
    /// The time limit for all first lists together, and for the list of a gained shard.
    pub(super) timeout: Duration,
    /// The maximum time between two attempts of a list for which the process waits. It waits before it takes part in
    /// its group or election, and before it works on a gained shard. `None` without a group or an election.
    pub(super) period: Option<Duration>,
}

/// The values that a running watch needs.
pub(super) struct Following {
    pub(super) enqueuer: Arc<Enqueuer>,
    /// The backoff after errors. `None` for a shared watch, which applies its backoff itself.
    pub(super) backoff: Option<TriggerBackoff>,
    pub(super) listed: Lists,
    /// The name of the watch in messages.
    pub(super) name: String,
    pub(super) number: usize,
    /// The role of the watch, if the controller has several watches of the kind.
    pub(super) role: Option<String>,
    pub(super) kind: Kind,
    pub(super) lists: ListTimes,
    /// This channel is closed when the watches of all other kinds have ended.
    pub(super) others: Arc<watch::Sender<()>>,
    /// A callback that receives each error of the watch.
    pub(super) failed: Arc<dyn Fn(watcher::Error) + Send + Sync>,
    /// The guard for the event or list that the watch is handling.
    pub(super) handling: Option<Handling>,
}

/// Lists one object, and then never yields another event. If the list fails, the next poll lists again, as with kube's
/// watcher.
pub(super) fn probe_events<O>(api: Api<O>, wc: &watcher::Config) -> Events<O>
where
    O: Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    let params = ListParams {
        label_selector: wc.label_selector.clone(),
        field_selector: wc.field_selector.clone(),
        limit: Some(1),
        ..ListParams::default()
    };
    let events = stream! {
        yield Ok(Event::Init);
        while let Err(error) = api.list(&params).await {
            yield Err(watcher::Error::InitialListFailed(error));
        }
        yield Ok(Event::InitDone);
        pending::<()>().await;
    };
    events.boxed()
}

impl<O> MakeEvents<O> {
    /// Returns a function that starts the watch again. Returns the events themselves as the error if they cannot start
    /// again.
    pub(super) fn into_restart(self) -> Result<StartWatch<O>, Events<O>> {
        match self {
            Self::Made(events) => Err(events),
            Self::Watch(start) | Self::Shared(start, _) => Ok(start),
        }
    }

    pub(super) fn is_merged(&self) -> fn(&O) -> bool {
        match self {
            Self::Made(_) | Self::Watch(_) => |_| false,
            Self::Shared(_, is_merged) => *is_merged,
        }
    }
}

impl<K: ObjectKind> MakeEvents<Object<K>> {
    pub(super) fn from_shared(watch: &SharedWatch<K>) -> Self {
        let watch = watch.clone();
        Self::Shared(Box::new(move |_, period| watch.subscribed_events(period)), |object| {
            object.is_merged
        })
    }
}

impl Source {
    /// Creates a source. The function `follow` reads the watch's events until they end.
    pub(super) fn new<E: 'static, F>(
        name: String,
        kind: Kind,
        events: MakeEvents<E>,
        follow: impl FnOnce(Following, MakeEvents<E>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), RunnerError>> + Send + 'static,
    {
        let is_shared = matches!(events, MakeEvents::Shared(..));
        let follow = Box::new(|following| Box::pin(follow(following, events)) as _);
        Self { name, kind, follow, is_shared }
    }
}

/// Makes a name differ from those of the other watches, as in `ConfigMap.v1 (owned, 2)`.
pub(super) fn distinct_name(mut name: String, others: &[Source]) -> String {
    let is_taken = |name: &str| others.iter().any(|other| other.name == name);
    let start = name.trim_end_matches(')').to_owned();
    let mut number = 2_usize;
    while is_taken(&name) {
        name = format!("{start}, {number})");
        number += 1;
    }
    name
}

impl Source {
    /// Returns the last part of the name, as in `owned, 2`, if several of the watches have the kind of this watch.
    pub(super) fn role_among(&self, watches: &[Self]) -> Option<String> {
        let (_, role) = self.name.strip_suffix(')')?.rsplit_once('(')?;
        let has_twins = watches.iter().filter(|watch| watch.kind == self.kind).count() > 1;
        has_twins.then(|| role.to_owned())
    }
}

impl Following {
    /// Applies events until the stream ends. After each error, waits for the delay of the backoff.
    ///
    /// # Errors
    ///
    /// Returns an error if the watch failed and the user's backoff returned `None`.
    pub(super) async fn follow_events<O: Resource>(
        &mut self,
        events: MakeEvents<O>,
        selected: Selected,
        mut on_event: impl FnMut(Event<O>, Origin<'_>),
    ) -> Result<(), RunnerError> {
        let is_merged = events.is_merged();
        let started = events.into_restart().map(|mut start| start(selected, self.lists.period));
        let mut events = started.unwrap_or_else(|events| events);
        while let Some(event) = events.next().await {
            self.handle_event(event, is_merged, &mut on_event).await?;
        }
        tracing::debug!(watch = self.name, "a watch ended");
        Ok(())
    }

    /// Applies one event with `on_event`. If the event is an error, waits for the delay of the backoff.
    pub(super) async fn handle_event<O: Resource>(
        &mut self,
        event: watcher::Result<Event<O>>,
        is_merged: fn(&O) -> bool,
        on_event: impl FnOnce(Event<O>, Origin<'_>),
    ) -> Result<(), RunnerError> {
        match event {
            Ok(event) => {
                // The beginning of a list does not reset the backoff, because the list may still fail. Otherwise, a
                // list that always fails in the middle would be repeated without a growing delay.
                if let Some(backoff) = &self.backoff
                    && !matches!(event, Event::Init | Event::InitApply(_))
                {
                    backoff.lock().reset();
                }
                let is_listed = matches!(event, Event::InitDone);
                let is_handled = !matches!(event, Event::Init | Event::InitApply(_));
                let origin = Origin::from_event(&self.kind, &event, is_merged);
                self.handling.get_or_insert_with(|| Handling::begin_event(&self.enqueuer));
                // The event is applied before the writes that it shows are closed. A run that waited for one of these
                // writes therefore reads the new store.
                on_event(event, origin);
                if is_handled {
                    self.handling = None;
                }
                self.enqueuer.watch_progressed(origin, self.number);
                if is_listed {
                    // Readiness is reported last. At this time, the objects of the list are in the store, and their
                    // keys are in the queue.
                    self.listed.mark_listed(self.number);
                }
            }
            Err(error) if self.backoff.is_none() => (self.failed)(error),
            Err(error) => {
                // The watch logs each error itself, because kube's watcher retries without a message, even if the
                // permission is missing.
                tracing::warn!(watch = self.name, %error, "a watch failed");
                (self.failed)(error);
                let Some(delay) = self.error_delay() else {
                    return Err(RunnerError::WatchEnded(self.name.clone()));
                };
                tokio::time::sleep(delay).await;
            }
        }
        if let Some(error) = self.enqueuer.ownership.function_error() {
            return Err(error);
        }
        // The stream may always be ready. It must yield to the other tasks of the runtime from time to time.
        tokio::task::consume_budget().await;
        Ok(())
    }

    /// Returns the delay after an error, or `None` if the user's backoff permits no restart.
    ///
    /// If the process waits for the list, the delay is limited. kube's delay is up to 30 s after an outage, and the
    /// objects of a gained shard have no reconciler during this delay.
    fn error_delay(&self) -> Option<Duration> {
        let delay = self.backoff.as_ref()?.lock().next()?;
        // Only the watch of the controller's own kind, which has number 0, lists gained shards.
        let is_awaited = self.listed.awaits_list(self.number)
            || self.number == 0 && self.enqueuer.ownership.awaits_list();
        Some(self.lists.period.filter(|_| is_awaited).map_or(delay, |period| delay.min(period)))
    }
}

/// The backoff of a watch after an error. By default, each watch has a separate backoff with kube's delays. If the user
/// sets a backoff, all watches share it.
pub(super) type TriggerBackoff = Arc<Mutex<dyn Backoff>>;
