//! One watch of a controller: reads a stream of events, and reports changes to the enqueuer.

use std::fmt;
use std::future::pending;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use kube::api::{Api, ListParams, Resource};
use kube::core::ApiResource;
use kube::runtime::Predicate;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::RunnerError;
use super::enqueuer::{Enqueuer, Handling};
use super::ownership::{Learned, Ownership, Selection};
use super::readiness::Readiness;
use super::writes::{Kind, Origin};
use crate::ObjectKey;
use crate::intercept::{select_shard, select_shards};
use crate::range::Shard;
use crate::shared::{Object, SharedWatch};
use crate::watch::{Change, ChangeKind, Observation, Watch};

pub(super) type Events<O> = BoxStream<'static, watcher::Result<Event<O>>>;
type Subscribe<O> = Box<dyn FnMut(Option<Duration>) -> Events<O> + Send>;
type MakeSelected<O> = Box<dyn FnMut(Selected) -> Events<O> + Send>;

/// The events of a watch.
pub(super) enum MakeEvents<O> {
    /// A stream of the user, which has all objects.
    Made(Events<O>),
    /// Creates the stream of what a selector selects.
    Watch(MakeSelected<O>),
    /// Subscribes to a shared watch, which has no selector, with a
    /// [period](Following::list_period). The function returns true for an object of an event that
    /// stands for several changes.
    Shared(Subscribe<O>, fn(&O) -> bool),
}

/// The objects that the API server is asked for.
pub(super) enum Selected {
    All,
    /// None. A list of one object shows whether the kind can be listed.
    Probe,
    Shard(Shard),
    /// The shards that were held when the watch started, as far as they still are.
    Held(Selection),
}

impl Selected {
    fn of(shard: Option<Shard>) -> Self {
        shard.map_or(Self::All, Self::Shard)
    }

    /// Returns `api` with lists and watches of these objects.
    pub(super) fn select<O: Resource>(self, api: Api<O>, dyntype: &O::DynamicType) -> Api<O> {
        match self {
            Self::All | Self::Probe => api,
            Self::Shard(shard) => select_shard(shard, api, dyntype),
            Self::Held(selection) => match selection.by() {
                Some(by) => select_shards(api, dyntype, move || selection.request(by)),
                None => api,
            },
        }
    }

    /// Returns the configuration for a watch of these objects. A shard that was gained is listed by a
    /// consistent read: a cache may be behind the writes of its former holder.
    pub(super) fn config(&self, wc: watcher::Config) -> watcher::Config {
        match self {
            Self::All | Self::Probe | Self::Shard(_) => wc,
            // A streaming list can begin in a cache, too.
            Self::Held(_) => watcher::Config {
                list_semantic: watcher::ListSemantic::MostRecent,
                initial_list_strategy: watcher::InitialListStrategy::ListWatch,
                ..wc
            },
        }
    }
}

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
    /// The events come from a shared watch, which has its own backoff.
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
    /// The time in which a shard that was gained must be listed.
    pub(super) list_timeout: Duration,
    /// The longest time between two attempts of a list that the process awaits before it takes part in
    /// its group or election, or before it works on a shard.
    pub(super) list_period: Option<Duration>,
    /// It is closed when the watches of the other kinds have ended.
    pub(super) others: Arc<watch::Sender<()>>,
    /// Receives each error of the watch.
    pub(super) failed: Arc<dyn Fn(watcher::Error) + Send + Sync>,
    /// The event or the list that is being handled.
    pub(super) handling: Option<Handling>,
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
    MakeEvents::Made(events.boxed())
}

/// Lists one object, and then waits forever. If the list fails, the next poll tries again, as in
/// kube's watcher.
pub(super) fn probe<O>(api: Api<O>, wc: &watcher::Config) -> Events<O>
where
    O: Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    let params = ListParams {
        label_selector: wc.label_selector.clone(),
        field_selector: wc.field_selector.clone(),
        limit: Some(1),
        ..ListParams::default()
    };
    let lists = stream::unfold((api, params, false), |(api, params, is_listed)| async move {
        if is_listed {
            pending::<()>().await;
        }
        let listed = api.list(&params).await.map_err(watcher::Error::InitialListFailed);
        let is_listed = listed.is_ok();
        Some((listed.map(|_| Event::InitDone), (api, params, is_listed)))
    });
    stream::iter([Ok(Event::Init)]).chain(lists).boxed()
}

impl<O> MakeEvents<O> {
    fn start(self, selected: Selected, list_period: Option<Duration>) -> Events<O> {
        match self {
            Self::Made(events) => events,
            Self::Watch(mut watch) => watch(selected),
            Self::Shared(mut subscribe, _) => subscribe(list_period),
        }
    }

    /// Returns a function that starts the events again, or the events themselves if they cannot start
    /// again.
    fn selected(self, list_period: Option<Duration>) -> Result<MakeSelected<O>, Events<O>>
    where
        O: 'static,
    {
        match self {
            Self::Made(events) => Err(events),
            Self::Watch(watch) => Ok(watch),
            Self::Shared(mut subscribe, _) => Ok(Box::new(move |_| subscribe(list_period))),
        }
    }

    const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(..))
    }

    fn is_merged(&self) -> fn(&O) -> bool {
        match self {
            Self::Made(_) | Self::Watch(_) => |_| false,
            Self::Shared(_, is_merged) => *is_merged,
        }
    }
}

impl<K> MakeEvents<Object<K>>
where
    K: Clone + Resource + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    pub(super) fn shared(watch: &SharedWatch<K>) -> Self {
        let watch = watch.clone();
        Self::Shared(Box::new(move |period| watch.events(period)), |object| object.is_merged)
    }
}

/// Drops the events of objects that are not in the controller's shard, or in none that it holds.
struct ShardFilter {
    shard: Option<Shard>,
    ownership: Option<Ownership>,
    /// The name of the watch, if the API server can select its objects, until it sends one of a
    /// shard that was not selected.
    name: Option<String>,
    /// The objects that have come from another shard, in the event or list in progress.
    moved: Vec<ObjectKey>,
}

impl ShardFilter {
    /// `is_watch` is false for a shared watch and for a stream of the user.
    fn new(shard: Option<Shard>, ownership: Option<Ownership>, name: &str, is_watch: bool) -> Self {
        let is_by_hash = ownership.as_ref().map_or(shard.is_some(), |it| it.by().is_some());
        let name = (is_watch && is_by_hash).then(|| name.to_owned());
        Self { shard, ownership, name, moved: Vec::new() }
    }

    fn own<O: Resource>(&mut self, event: Event<O>) -> Option<Event<O>> {
        let is_change = matches!(event, Event::Apply(_) | Event::Delete(_));
        let (own, is_selected) = match (&self.ownership, self.shard) {
            (Some(ownership), _) => match &event {
                Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => {
                    let meta = object.meta();
                    let (key, uid) = (ObjectKey::of_meta(meta), meta.uid.as_deref());
                    let uid = uid.unwrap_or_default();
                    let learned = ownership.learn(&key, uid);
                    let is_held = matches!(learned, Learned::Held | Learned::Moved);
                    // A released shard is selected until the next request of the watch.
                    let is_selected = !is_held && ownership.is_selected(uid, &key);
                    if matches!(learned, Learned::Left | Learned::Moved) {
                        self.moved.push(key);
                    }
                    (is_held.then_some(event), is_selected)
                }
                Event::Init | Event::InitDone => (Some(event), true),
            },
            (None, Some(shard)) => (shard.own(event), false),
            (None, None) => return Some(event),
        };
        if own.is_none()
            && is_selected
            && is_change
            && let (Some(_), Some(ownership)) = (&self.name, &self.ownership)
        {
            ownership.narrow();
        }
        if own.is_none()
            && !is_selected
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

/// An input of the watch of the controller's own kind.
enum Input<'a, K> {
    /// An event. The last one of a list has the state of the list.
    Event(Event<K>, Origin<'a>, Option<Listing>),
    /// Keys of released shards were dropped: their objects leave the store.
    Dropped,
}

impl Source {
    /// A watch of the controller's own kind. `store` receives each event first, so that every
    /// delivered object is in the store.
    pub(super) fn main<K>(
        name: String,
        kind: Kind,
        events: MakeEvents<K>,
        predicate: Option<AnyPredicate<K>>,
        mut store: impl FnMut(&Event<K>) + Send + 'static,
        objects: impl Fn(&dyn Fn(&ObjectKey) -> bool) -> Vec<K> + Send + Sync + 'static,
    ) -> Self
    where
        K: Resource + Send + Sync + 'static,
    {
        let (is_shared, is_merged) = (events.is_shared(), events.is_merged());
        let follow = move |mut following: Following| async move {
            let (enqueuer, mut watch) = (Arc::clone(&following.enqueuer), Watch::new());
            let ownership = enqueuer.ownership().cloned();
            let is_watch = matches!(events, MakeEvents::Watch(_));
            let (shard, name) = (following.shard, &following.name);
            let mut filter = ShardFilter::new(shard, ownership.clone(), name, is_watch);
            let objects = Arc::new(objects);
            let listed = Arc::clone(&objects);
            let mut on_input = move |input: Input<'_, K>| {
                let (event, origin, list) = match (input, enqueuer.ownership()) {
                    (Input::Event(event, origin, list), _) => (event, origin, list),
                    (Input::Dropped, None) => return,
                    (Input::Dropped, Some(ownership)) => {
                        let has_left = |key: &ObjectKey| !ownership.is_held(key);
                        watch.forget(has_left);
                        objects(&has_left).into_iter().for_each(|it| store(&Event::Delete(it)));
                        return;
                    }
                };
                let Some(event) = filter.own(event) else {
                    return filter.moved.drain(..).for_each(|key| enqueuer.regroup(&key));
                };
                if let (Event::Init, Some(ownership)) = (&event, enqueuer.ownership()) {
                    // The objects of the other shards were gained or have left.
                    watch.forget(|key| !ownership.is_listed(key));
                }
                // This comes first: the scope must be known before the object is in the store.
                if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) =
                    &event
                {
                    enqueuer.scope.learn(object);
                }
                store(&event);
                if !matches!(event, Event::Init | Event::InitApply(_)) {
                    // The store has the objects from now on.
                    filter.moved.drain(..).for_each(|key| enqueuer.regroup(&key));
                }
                let mut changes = watch.event(event, |object| {
                    let property = predicate.as_ref().and_then(|p| p.hash_property(&object));
                    Observation::of(object.meta()).property(property)
                });
                if let (Some(list), Some(ownership)) = (list, enqueuer.ownership()) {
                    changes.retain_mut(|change| list.keeps(change, ownership));
                }
                changes.into_iter().for_each(|change| enqueuer.changed(change, origin));
            };
            match ownership {
                Some(ownership) => {
                    let listed = || listed(&|_| true);
                    following.follow_shards(events, on_input, listed, &ownership).await
                }
                None => {
                    let selected = Selected::of(following.shard);
                    let mut events = events.start(selected, following.list_period);
                    following
                        .follow(&mut events, is_merged, |event, origin| {
                            on_input(Input::Event(event, origin, None));
                        })
                        .await
                }
            }
        };
        let follow = Box::new(|following| Box::pin(follow(following)) as _);
        Self { name, kind, follow, is_shared }
    }

    /// A watch of another kind. `targets` returns the objects that an object concerns. If a mapper
    /// names them, it is not known whether they are in the shard.
    pub(super) fn related<O: Resource + Send + 'static>(
        name: String,
        is_mapped: bool,
        dyntype: &O::DynamicType,
        events: MakeEvents<O>,
        predicate: Option<AnyPredicate<O>>,
        mut targets: impl FnMut(O, Option<Shard>, &Enqueuer) -> Vec<Target> + Send + 'static,
    ) -> Self {
        let resource = Arc::new(ApiResource::erase::<O>(dyntype));
        let kind = Kind::of::<O>(dyntype);
        let (is_shared, is_merged) = (events.is_shared(), events.is_merged());
        let follow = move |mut following: Following| async move {
            let (enqueuer, mut watch) = (Arc::clone(&following.enqueuer), Watch::new());
            let shard = following.shard;
            let mut events = events.start(Selected::of(shard), following.list_period);
            let on_event = move |event: Event<O>, origin: Origin<'_>| {
                let mut changes = watch.event(event, |object| {
                    let property = predicate.as_ref().and_then(|p| p.hash_property(&object));
                    let observation = Observation::of(object.meta()).property(property);
                    let targets = targets(object, shard, &enqueuer);
                    let priority = |(key, priority): &Target| Some((key.clone(), (*priority)?));
                    let priorities: Vec<_> = targets.iter().filter_map(priority).collect();
                    let targets = targets.into_iter().map(|(key, _)| key);
                    observation.concerning(targets).priorities(priorities)
                });
                if is_mapped {
                    let targets = changes.iter_mut().map(|change| &mut change.targets);
                    targets.for_each(|targets| targets.retain(|target| enqueuer.is_ours(target)));
                }
                enqueuer.related(&changes, &resource, origin);
            };
            following.follow(&mut events, is_merged, on_event).await
        };
        let follow = Box::new(|following| Box::pin(follow(following)) as _);
        Self { name, kind, follow, is_shared }
    }
}

impl Following {
    /// Passes events on until the stream ends, and waits after each error.
    ///
    /// # Errors
    ///
    /// The watch failed, and the backoff returned `None`.
    async fn follow<O: Resource>(
        &mut self,
        events: &mut Events<O>,
        is_merged: fn(&O) -> bool,
        mut on_event: impl FnMut(Event<O>, Origin<'_>),
    ) -> Result<(), RunnerError> {
        while let Some(event) = events.next().await {
            self.handle(event, is_merged, &mut on_event).await?;
        }
        tracing::debug!(watch = self.name, "a watch ended");
        Ok(())
    }

    async fn handle<O: Resource>(
        &mut self,
        event: watcher::Result<Event<O>>,
        is_merged: fn(&O) -> bool,
        on_event: impl FnOnce(Event<O>, Origin<'_>),
    ) -> Result<(), RunnerError> {
        match event {
            Ok(event) => {
                // A list that has begun may still fail.
                if let Some(backoff) = &self.backoff
                    && !matches!(event, Event::Init | Event::InitApply(_))
                {
                    backoff.reset();
                }
                let is_listed = matches!(event, Event::InitDone);
                let is_handled = !matches!(event, Event::Init | Event::InitApply(_));
                let origin = Origin::of(&self.kind, &event, is_merged);
                self.handling.get_or_insert_with(|| Handling::begin(&self.enqueuer));
                on_event(event, origin);
                if is_handled {
                    self.handling = None;
                }
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
                let Some(delay) = self.delay() else {
                    return Err(RunnerError::WatchEnded(self.name.clone()));
                };
                tokio::time::sleep(delay).await;
            }
        }
        let ownership = self.enqueuer.ownership();
        if let Some(error) = ownership.and_then(|ownership| ownership.places().failure()) {
            return Err(error);
        }
        // A stream that is always ready must yield to other tasks.
        tokio::task::consume_budget().await;
        Ok(())
    }

    /// Returns the delay after an error, or `None` if the watch must end.
    ///
    /// After an outage, kube's backoff is up to 30 s. An object of a shard without a holder would wait
    /// that long, although other requests of the process succeed.
    fn delay(&self) -> Option<Duration> {
        let delay = self.backoff.as_ref()?.next()?;
        let ownership = self.enqueuer.ownership().filter(|_| self.number == 0);
        let is_awaited =
            self.readiness.awaits(self.number) || ownership.is_some_and(Ownership::awaits_list);
        Some(self.list_period.filter(|_| is_awaited).map_or(delay, |period| delay.min(period)))
    }

    /// As [`follow`](Self::follow), for the shards that are held. After a gain, the watch starts
    /// again with another selector: kube's watchers have no other way to list objects. After a
    /// release, the watch continues. A stream of the user cannot start again, so its objects are
    /// listed from its store.
    ///
    /// A controller that has not joined its group yet holds no shards. It first lists one object.
    /// If that fails, it does not join, and so receives no shards whose objects it cannot list.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow), or if a gained shard is not listed in time. No process
    /// reconciles its objects until the controller leaves the group.
    async fn follow_shards<K>(
        &mut self,
        source: MakeEvents<K>,
        mut on_input: impl FnMut(Input<'_, K>),
        objects: impl Fn() -> Vec<K>,
        ownership: &Ownership,
    ) -> Result<(), RunnerError>
    where
        K: Resource + Send + 'static,
    {
        let mut list = Listing { gains: ownership.gains(), is_restart: false };
        let mut drops = ownership.drops();
        let (mut is_listing, mut has_ended) = (true, false);
        let is_merged = source.is_merged();
        let (mut events, mut watch) = match source.selected(self.list_period) {
            Ok(mut watch) => {
                let events = match ownership.held().is_empty() {
                    true => watch(Selected::Probe),
                    false => watch_held(&mut watch, ownership),
                };
                (events, Some(watch))
            }
            Err(events) => (events, None),
        };
        let list_timeout = self.list_timeout;
        let deadline = |before: Option<Instant>| match ownership.awaits_list() {
            true => before.or_else(|| Instant::now().checked_add(list_timeout)),
            false => None,
        };
        let mut list_by = deadline(None);
        let late =
            RunnerError::CacheSync { watches: vec![self.name.clone()], timeout: list_timeout };
        // The gains that have been noticed. `list.gains` are those that the list includes.
        let mut gains = list.gains;
        // Keys of released shards were dropped, and their objects are in the store.
        let mut has_dropped = false;
        // A stream that has ended still lists the shards that are gained while other watches live. If it
        // ends before the first gain, the objects that it has listed have not run yet.
        let is_complete = |list: Listing| list.gains != 0 && list.gains == ownership.gains();
        while !has_ended || !self.others.is_closed() || !is_complete(list) {
            // A list in progress is useless if all of its shards have left.
            if has_dropped && (!is_listing || ownership.held().is_empty()) {
                has_dropped = false;
                on_input(Input::Dropped);
                if let Some(watch) = &mut watch
                    && ownership.held().is_empty()
                    && !has_ended
                {
                    (events, is_listing) = (watch_held(watch, ownership), true);
                }
            }
            // A list in progress is completed. Otherwise its shards would wait for the next list.
            if gains != list.gains && !is_listing {
                gains = ownership.gains();
                list = Listing { gains, is_restart: true };
                if let Some(watch) = &mut watch {
                    events = watch_held(watch, ownership);
                    (is_listing, has_ended) = (true, false);
                } else {
                    let _handling = Handling::begin(&self.enqueuer);
                    let listed = objects().into_iter().map(Event::InitApply);
                    for event in [Event::Init].into_iter().chain(listed).chain([Event::InitDone]) {
                        let end = matches!(event, Event::InitDone).then_some(list);
                        let origin = Origin::of(&self.kind, &event, is_merged);
                        on_input(Input::Event(event, origin, end));
                    }
                    ownership.listed(list.gains);
                    (list.is_restart, list_by) = (false, deadline(None));
                }
                continue;
            }
            tokio::select! {
                biased;
                () = ownership.gained_since(gains) => {
                    gains = ownership.gains();
                    list_by = deadline(list_by);
                }
                () = ownership.dropped_since(drops), if watch.is_some() => {
                    (drops, has_dropped) = (ownership.drops(), true);
                }
                () = self.others.closed(), if has_ended && is_complete(list) => {}
                event = events.next(), if !has_ended => {
                    let Some(event) = event else {
                        (has_ended, is_listing) = (true, false);
                        continue;
                    };
                    let is_end = matches!(event, Ok(Event::InitDone));
                    match event {
                        Ok(Event::Init) => is_listing = true,
                        Ok(Event::InitDone) => is_listing = false,
                        // The watch lists again, so another one can start.
                        Err(_) if watch.is_some() => is_listing = false,
                        _ => {}
                    }
                    let end = is_end.then_some(list);
                    let handle = self.handle(event, is_merged, |event, origin| {
                        on_input(Input::Event(event, origin, end));
                    });
                    tokio::select! {
                        biased;
                        handled = handle => handled?,
                        // The backoff after an error may be longer.
                        () = reach(list_by) => {
                            list_by = deadline(list_by);
                            if list_by.is_some() {
                                return Err(late);
                            }
                        }
                    }
                    if is_end {
                        ownership.listed(list.gains);
                        (list.is_restart, list_by) = (false, deadline(None));
                    }
                }
                () = reach(list_by) => {
                    list_by = deadline(list_by);
                    if list_by.is_some() {
                        return Err(late);
                    }
                }
            }
        }
        tracing::debug!(watch = self.name, "a watch ended");
        Ok(())
    }
}

/// Waits until `time`, or forever.
async fn reach(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Starts a watch of the shards that are held.
fn watch_held<O: Send + 'static>(
    watch: &mut (impl FnMut(Selected) -> Events<O> + ?Sized),
    ownership: &Ownership,
) -> Events<O> {
    match ownership.select() {
        Some(selection) => watch(Selected::Held(selection)),
        None => {
            let nothing = [Ok(Event::Init), Ok(Event::InitDone)];
            stream::iter(nothing).chain(stream::pending()).boxed()
        }
    }
}

/// A list of the shards that are held.
#[derive(Clone, Copy)]
struct Listing {
    /// The number of gains before the list.
    gains: u64,
    /// The list begins because shards were gained.
    is_restart: bool,
}

impl Listing {
    /// Returns true if the change counts. In a shard that was gained, each object counts as in a first
    /// list.
    fn keeps(self, change: &mut Change, ownership: &Ownership) -> bool {
        if ownership.is_gained(&change.key) {
            let is_here = change.kind != ChangeKind::Deleted;
            change.kind = ChangeKind::Listed;
            return is_here;
        }
        // The other objects did not leave with a shard: those were forgotten.
        !(self.is_restart && change.kind == ChangeKind::Unchanged)
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
