//! The watch of the controller's own kind, whose objects are in the controller's store.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use kube::Resource;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::enqueuer::{Enqueuer, Handling};
use super::error::RunnerError;
use super::ownership::{ChangingShards, Learned, Ownership};
use super::source::{Following, MakeEvents, Selected, Source, StartWatch};
use super::writes::{Kind, Origin};
use crate::ObjectKey;
use crate::relist::Events;
use crate::watch::{Change, ChangeKind, Observation, Watch};

/// Writes an event to the store. Has no effect if the user maintains the store.
type Write<E> = Box<dyn FnMut(&Event<E>) + Send>;
/// Returns the stored objects whose keys satisfy a condition.
type Stored<E> = Box<dyn Fn(&dyn Fn(&ObjectKey) -> bool) -> Vec<E> + Send>;
/// Returns the result of the filter for an object.
type Property<E> = Box<dyn Fn(&E) -> Option<u64> + Send>;

/// The functions that know the controller's store and its filter.
pub(super) struct OwnObjects<E> {
    pub(super) write: Write<E>,
    pub(super) stored: Stored<E>,
    pub(super) property: Property<E>,
}

/// Returns the watch of the controller's own kind.
pub(super) fn own_source<E: Resource + Send + 'static>(
    name: String,
    kind: Kind,
    events: MakeEvents<E>,
    objects: OwnObjects<E>,
) -> Source {
    Source::new(name, kind, events, |mut following, events| async move {
        let enqueuer = Arc::clone(&following.enqueuer);
        // A shared watch and a stream of the user contain the objects of all shards.
        let is_watch = matches!(events, MakeEvents::Watch(_));
        let name = is_watch.then(|| following.name.clone());
        let filter = KeyFilter { name, moved: Vec::new() };
        let is_merged = events.is_merged();
        let (fixed, changing) =
            (enqueuer.ownership.fixed_shard(), enqueuer.ownership.changing_shards().cloned());
        let mut own = OwnWatch { enqueuer, watch: Watch::new(), filter, is_merged, objects };
        if let Some(shards) = changing {
            return ShardedWatch::new(following, own, shards, events).follow_shards().await;
        }
        let apply = move |event, origin: Origin<'_>| own.apply_event(event, origin, None);
        following.follow_events(events, Selected::from_shard(fixed), apply).await
    })
}

/// The state of the watch, and its effects on the store and the queue.
struct OwnWatch<E> {
    enqueuer: Arc<Enqueuer>,
    watch: Watch,
    filter: KeyFilter,
    is_merged: fn(&E) -> bool,
    objects: OwnObjects<E>,
}

impl<E: Resource> OwnWatch<E> {
    /// Applies an event. For the last event of a list of shards, `list` is the state of that list.
    fn apply_event(&mut self, event: Event<E>, origin: Origin<'_>, list: Option<Listing>) {
        let Self { enqueuer, watch, filter, objects, .. } = self;
        if !filter.keeps_event(&event, &*enqueuer.ownership) {
            return filter.moved.drain(..).for_each(|key| enqueuer.regroup(&key));
        }
        if matches!(event, Event::Init) && enqueuer.ownership.changing_shards().is_some() {
            // All other objects are in shards that this process no longer holds, or has just received.
            watch.forget_objects(|key| !enqueuer.ownership.is_listed(key));
        }
        // The scope must be known before the object is in the store, so it is learned first.
        if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) = &event {
            enqueuer.scope.learn_from(object);
        }
        // The store is updated before the queue, so that the store contains the object of each delivered key.
        (objects.write)(&event);
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            // The store now contains the objects, so their keys can move to their new groups.
            filter.moved.drain(..).for_each(|key| enqueuer.regroup(&key));
        }
        let mut changes = watch.event(event, |object| {
            Observation::from_meta(object.meta()).property((objects.property)(&object))
        });
        if let Some(list) = list {
            changes.retain_mut(|change| list.keeps_change(change, &*enqueuer.ownership));
        }
        changes.into_iter().for_each(|change| enqueuer.own_changed(change, origin));
    }

    /// Removes the objects of released shards from the store. The keys of these objects were dropped.
    fn drop_released(&mut self) {
        let ownership = &self.enqueuer.ownership;
        let has_left = |key: &ObjectKey| !ownership.is_held(key);
        self.watch.forget_objects(has_left);
        // The objects are collected first, because each write changes the store.
        let left = (self.objects.stored)(&has_left);
        left.into_iter().for_each(|object| (self.objects.write)(&Event::Delete(object)));
    }
}

/// Drops the events of objects whose keys the controller does not own.
struct KeyFilter {
    /// The name of the watch, if the API server should select its objects. `None` after the API
    /// server has sent an object of a shard that was not selected.
    name: Option<String>,
    /// The objects that have come from another shard, in the event or list in progress.
    moved: Vec<ObjectKey>,
}

impl KeyFilter {
    /// Returns false for an event of an object in another shard.
    fn keeps_event<O: Resource>(&mut self, event: &Event<O>, ownership: &dyn Ownership) -> bool {
        let (Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) = event
        else {
            return true;
        };
        let meta = object.meta();
        // An add for an object in an unknown shard is dropped, so the shard is learned first.
        let learned = ownership.learn_object(meta);
        if matches!(learned, Learned::Left | Learned::Moved) {
            self.moved.push(ObjectKey::from_meta(meta));
        }
        if matches!(learned, Learned::Held | Learned::Moved) {
            return true;
        }
        if self.name.is_none() {
            return false;
        }
        if !ownership.is_selected(meta) {
            let watch = self.name.take();
            tracing::info!(
                watch,
                "the events are not limited to the shard, so this process receives and drops the others; \
                 an API server limits them with the feature gate ShardedListAndWatch"
            );
        } else if !matches!(event, Event::InitApply(_)) {
            // The API server selects a released shard until the next request of the watch.
            ownership.narrow_selector();
        }
        false
    }
}

/// The watch of the shards that are held. After the process gains a shard, the watch starts again with another
/// selector, because kube's watchers cannot list more objects in another way.
/// After a release, the watch continues. A stream of the user cannot start
/// again, so its objects are listed from its store.
///
/// A controller that has not joined its group yet holds no shards. Such a controller first lists one object. If this
/// list fails, the controller does not join, so it receives no shards whose objects it cannot list.
struct ShardedWatch<E> {
    following: Following,
    own: OwnWatch<E>,
    shards: ChangingShards,
    events: Events<E>,
    /// Starts the events again. `None` for a stream of the user, which cannot start again.
    restart: Option<StartWatch<E>>,
    list: Listing,
    /// The number of gains so far. `list.gains` is the number of gains that the present list
    /// includes.
    gains: watch::Receiver<u64>,
    drops: watch::Receiver<u64>,
    /// True if keys of released shards were dropped, and the objects of these keys are still in the
    /// store.
    has_dropped: bool,
    is_listing: bool,
    has_ended: bool,
    /// The time until which the gained shards must be listed.
    list_by: Option<Instant>,
}

impl<E: Resource + Send + 'static> ShardedWatch<E> {
    fn new(
        following: Following,
        own: OwnWatch<E>,
        shards: ChangingShards,
        events: MakeEvents<E>,
    ) -> Self {
        // The number of the last gain is read first, so that the watch's list contains all shards up to this number.
        let gains = shards.gains();
        let drops = shards.drops();
        let first_gains = *gains.borrow();
        let period = following.lists.period;
        let (events, restart) = match events.into_restart() {
            Ok(mut start) => {
                let events = match shards.held().is_empty() {
                    true => start(Selected::Probe, period),
                    false => watch_held(&mut start, &shards, period),
                };
                (events, Some(start))
            }
            Err(events) => (events, None),
        };
        let mut watch = Self {
            following,
            own,
            shards,
            events,
            restart,
            list: Listing { gains: first_gains, is_restart: false },
            gains,
            drops,
            has_dropped: false,
            is_listing: true,
            has_ended: false,
            list_by: None,
        };
        // The first list also has a time limit, if the shards were gained before the start.
        watch.list_by = watch.list_deadline();
        watch
    }

    /// Applies events and changes of the shards, until the controller needs neither events nor changes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Following::follow_events`], and an error if a gained shard is not listed in time. No
    /// process reconciles its objects until the controller leaves the group.
    async fn follow_shards(mut self) -> Result<(), RunnerError> {
        while !self.has_ended || !self.following.others.is_closed() || !self.is_complete() {
            // A list in progress is useless if this process holds none of its shards.
            if self.has_dropped && (!self.is_listing || self.shards.held().is_empty()) {
                self.drop_released();
            }
            // A list in progress is not interrupted, because its shards would have to wait for the next list.
            if *self.gains.borrow() != self.list.gains && !self.is_listing {
                self.list_gained();
                continue;
            }
            // Changes of shards are handled before events, so that no event is applied with an outdated set of shards.
            tokio::select! {
                biased;
                Ok(()) = self.gains.changed() => self.list_by = self.list_deadline(),
                Ok(()) = self.drops.changed(), if self.restart.is_some() => self.has_dropped = true,
                // The controller may still receive shards, whose objects the watches of the other kinds must report.
                () = self.following.others.closed(), if self.has_ended && self.is_complete() => {}
                event = self.events.next(), if !self.has_ended => match event {
                    Some(event) => self.handle_event(event).await?,
                    None => (self.has_ended, self.is_listing) = (true, false),
                },
                () = sleep_until(self.list_by.unwrap_or_else(Instant::now)), if self.list_by.is_some() => self.check_deadline()?,
            }
        }
        tracing::debug!(watch = self.following.name, "a watch ended");
        Ok(())
    }

    /// Returns true if all gained shards were listed. A stream that has ended still lists the shards that are gained
    /// while other watches run. If the stream ends before the first gain, the objects that it has listed have not run
    /// yet.
    fn is_complete(&self) -> bool {
        self.list.gains != 0 && self.list.gains == *self.gains.borrow()
    }

    fn drop_released(&mut self) {
        self.has_dropped = false;
        self.own.drop_released();
        if let Some(start) = &mut self.restart
            && self.shards.held().is_empty()
            && !self.has_ended
        {
            self.events = watch_held(start, &self.shards, self.following.lists.period);
            self.is_listing = true;
        }
    }

    /// Lists the objects of the shards that were gained.
    fn list_gained(&mut self) {
        self.list = Listing { gains: *self.gains.borrow(), is_restart: true };
        if let Some(start) = &mut self.restart {
            self.events = watch_held(start, &self.shards, self.following.lists.period);
            (self.is_listing, self.has_ended) = (true, false);
            return;
        }
        // Until the whole list is applied, no shard of its objects is forgotten.
        let _handling = Handling::begin_event(&self.own.enqueuer);
        let listed = (self.own.objects.stored)(&|_| true).into_iter().map(Event::InitApply);
        for event in [Event::Init].into_iter().chain(listed).chain([Event::InitDone]) {
            let end = matches!(event, Event::InitDone).then_some(self.list);
            let origin = Origin::from_event(&self.following.kind, &event, self.own.is_merged);
            self.own.apply_event(event, origin, end);
        }
        self.end_list();
    }

    async fn handle_event(&mut self, event: watcher::Result<Event<E>>) -> Result<(), RunnerError> {
        let is_end = matches!(event, Ok(Event::InitDone));
        match event {
            Ok(Event::Init) => self.is_listing = true,
            Ok(Event::InitDone) => self.is_listing = false,
            // The watch lists its objects again, so another watch can start instead.
            Err(_) if self.restart.is_some() => self.is_listing = false,
            _ => {}
        }
        let end = is_end.then_some(self.list);
        let list_by = self.list_by;
        let is_merged = self.own.is_merged;
        let Self { following, own, .. } = self;
        let apply = |event, origin: Origin<'_>| own.apply_event(event, origin, end);
        let handle = following.handle_event(event, is_merged, apply);
        tokio::select! {
            biased;
            handled = handle => handled?,
            // The backoff after an error may be longer.
            () = sleep_until(list_by.unwrap_or_else(Instant::now)), if list_by.is_some() => self.check_deadline()?,
        }
        if is_end {
            self.end_list();
        }
        Ok(())
    }

    /// Permits the runs in the shards that were listed.
    fn end_list(&mut self) {
        debug_assert!(!self.is_listing, "a list that is in progress is not complete");
        self.shards.mark_listed(self.list.gains);
        // A later list of this watch follows an outage. Unchanged objects in that list count as usual.
        self.list.is_restart = false;
        self.list_by = None;
        self.list_by = self.list_deadline();
    }

    /// Returns the time until which the gained shards must be listed, if there are any.
    fn list_deadline(&self) -> Option<Instant> {
        if !self.shards.awaits_list() {
            return None;
        }
        self.list_by.or_else(|| Instant::now().checked_add(self.following.lists.timeout))
    }

    fn check_deadline(&mut self) -> Result<(), RunnerError> {
        self.list_by = self.list_deadline();
        match self.list_by {
            Some(_) => {
                let watches = vec![self.following.name.clone()];
                Err(RunnerError::CacheSync(watches, self.following.lists.timeout))
            }
            None => Ok(()),
        }
    }
}

/// Starts a watch of the objects of the shards that are held.
fn watch_held<O: Send + 'static>(
    start: &mut StartWatch<O>,
    shards: &ChangingShards,
    list_period: Option<Duration>,
) -> Events<O> {
    match shards.select_held() {
        Some(selection) => start(Selected::Held(selection), list_period),
        None => {
            let nothing = [Ok(Event::Init), Ok(Event::InitDone)];
            stream::iter(nothing).chain(stream::pending()).boxed()
        }
    }
}

/// A list of the objects of the shards that are held.
#[derive(Clone, Copy)]
struct Listing {
    /// The number of gains before the list.
    gains: u64,
    /// True if the list begins because shards were gained.
    is_restart: bool,
}

impl Listing {
    /// Returns true if the change counts. In a shard that was gained, each object counts as in a first
    /// list.
    fn keeps_change(self, change: &mut Change, ownership: &dyn Ownership) -> bool {
        if ownership.is_gained(&change.key) {
            let is_here = change.kind != ChangeKind::Deleted;
            change.kind = ChangeKind::Listed;
            return is_here;
        }
        // Other unchanged objects are in shards that were held all the time, because objects of released shards were
        // forgotten.
        !(self.is_restart && change.kind == ChangeKind::Unchanged)
    }
}
