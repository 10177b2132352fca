//! The watch of the objects that a controller reconciles. It fills the controller's store and adds keys to the queue.

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

/// Writes an event to the controller's store. Does nothing if the user's program maintains the store.
type Write<E> = Box<dyn FnMut(&Event<E>) + Send>;
/// Returns the objects in the store whose keys satisfy the condition.
type Stored<E> = Box<dyn Fn(&dyn Fn(&ObjectKey) -> bool) -> Vec<E> + Send>;
/// Returns the hash that the user's predicate computes for an object, or `None` if there is no predicate or no hash. A
/// change that leaves the hash unchanged is ignored.
type Property<E> = Box<dyn Fn(&E) -> Option<u64> + Send>;

/// The functions through which the watch uses the controller's store and predicate. They hide the type of the store.
pub(super) struct OwnObjects<E> {
    pub(super) write: Write<E>,
    pub(super) stored: Stored<E>,
    pub(super) property: Property<E>,
}

/// Returns the source that watches the controller's own kind.
pub(super) fn own_source<E: Resource + Send + 'static>(
    name: String,
    kind: Kind,
    events: MakeEvents<E>,
    objects: OwnObjects<E>,
) -> Source {
    Source::new(name, kind, events, |mut following, events| async move {
        let enqueuer = Arc::clone(&following.enqueuer);
        // Only a separate watch can select shards. A shared watch and a stream of the user contain the objects of all
        // shards.
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

/// The state of the watch, with the store and the enqueuer that receive its changes.
struct OwnWatch<E> {
    enqueuer: Arc<Enqueuer>,
    watch: Watch,
    filter: KeyFilter,
    is_merged: fn(&E) -> bool,
    objects: OwnObjects<E>,
}

impl<E: Resource> OwnWatch<E> {
    /// Applies an event to the store and the queue. If `event` is the last event of a list of shards, `list` describes
    /// that list.
    fn apply_event(&mut self, event: Event<E>, origin: Origin<'_>, list: Option<Listing>) {
        let Self { enqueuer, watch, filter, objects, .. } = self;
        if !filter.keeps_event(&event, &*enqueuer.ownership) {
            return filter.moved.drain(..).for_each(|key| enqueuer.regroup(&key));
        }
        if matches!(event, Event::Init) && enqueuer.ownership.changing_shards().is_some() {
            // A list begins. The watch keeps only the objects of shards that were listed before. The shards of all
            // other objects were released, or were gained after their last list.
            watch.forget_objects(|key| !enqueuer.ownership.is_listed(key));
        }
        // The first object shows whether the kind has namespaces. The controller must know this before the object is in
        // the store, because the keys depend on it.
        if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) = &event {
            enqueuer.scope.learn_from(object);
        }
        // The store is updated before the queue. Each key that a worker receives from the queue therefore has its
        // object in the store.
        (objects.write)(&event);
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            // The store now contains the objects that have moved to another shard, so their keys can move to the queue
            // groups of these shards.
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

    /// Removes the objects of released shards from the store. Their keys have already been removed from the queue.
    fn drop_released(&mut self) {
        let ownership = &self.enqueuer.ownership;
        let has_left = |key: &ObjectKey| !ownership.is_held(key);
        self.watch.forget_objects(has_left);
        // The objects are collected before the first write, because each write changes the store that is read.
        let left = (self.objects.stored)(&has_left);
        left.into_iter().for_each(|object| (self.objects.write)(&Event::Delete(object)));
    }
}

/// Drops the events of objects in shards that this process does not hold.
struct KeyFilter {
    /// The name of the watch, if the API server is expected to send only objects of the selected shards. `None` after
    /// the API server has sent another object, so that the log message appears once.
    name: Option<String>,
    /// The keys of objects that have moved to another shard since the last complete event or list.
    moved: Vec<ObjectKey>,
}

impl KeyFilter {
    /// Returns false if the event's object is in a shard that this process does not hold.
    fn keeps_event<O: Resource>(&mut self, event: &Event<O>, ownership: &dyn Ownership) -> bool {
        let (Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) = event
        else {
            return true;
        };
        let meta = object.meta();
        // The shard is stored first, because the enqueuer drops adds of objects whose shard it does not know.
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
            // This process has released the object's shard since the request. The next request of the watch must omit
            // the shard.
            ownership.narrow_selector();
        }
        false
    }
}

/// The watch of the shards that this process holds. When the process gains a shard, the watch starts again with a
/// selector that includes the new shard. kube's watcher has no other way to list more objects. After a release, the
/// watch continues. A stream of the user cannot start again, so the objects of a gained shard are read from the user's
/// store.
///
/// Before a controller joins its group, it holds no shard, and the watch lists one object. If this list fails, the
/// controller does not join. It therefore never receives shards whose objects it cannot list.
struct ShardedWatch<E> {
    following: Following,
    own: OwnWatch<E>,
    shards: ChangingShards,
    events: Events<E>,
    /// Starts the watch again. `None` for a stream of the user, which cannot start again.
    restart: Option<StartWatch<E>>,
    list: Listing,
    /// The number of gains of this process so far. `list.gains` is the number of gains whose shards the list in
    /// progress includes.
    gains: watch::Receiver<u64>,
    drops: watch::Receiver<u64>,
    /// True if the keys of released shards were removed from the queue, and their objects must still be removed from
    /// the store.
    has_dropped: bool,
    is_listing: bool,
    has_ended: bool,
    /// The time limit for the list of the gained shards, or `None` if no gained shard must be listed.
    list_by: Option<Instant>,
}

impl<E: Resource + Send + 'static> ShardedWatch<E> {
    fn new(
        following: Following,
        own: OwnWatch<E>,
        shards: ChangingShards,
        events: MakeEvents<E>,
    ) -> Self {
        // The number of gains is read before the shards. The list then contains at least the shards of the gains up to
        // this number.
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
        // If the process gained shards before the start, their first list also has a time limit.
        watch.list_by = watch.list_deadline();
        watch
    }

    /// Applies events and changes of the shards. Returns when no further event can come, and no shard must be listed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Following::follow_events`]. Also returns an error if a gained shard is not listed in
    /// time. No process reconciles the objects of this shard until the controller leaves the group.
    async fn follow_shards(mut self) -> Result<(), RunnerError> {
        while !self.has_ended || !self.following.others.is_closed() || !self.is_complete() {
            // The removal waits for the end of a list in progress. If this process holds no shard, the list is useless,
            // and the removal does not wait.
            if self.has_dropped && (!self.is_listing || self.shards.held().is_empty()) {
                self.drop_released();
            }
            // The watch waits for the end of a list in progress. If it started again earlier, the shards in this list
            // would have to wait for the next list.
            if *self.gains.borrow() != self.list.gains && !self.is_listing {
                self.list_gained();
                continue;
            }
            // Changes of shards are polled before events, so that each event is applied with the current set of shards.
            tokio::select! {
                biased;
                Ok(()) = self.gains.changed() => self.list_by = self.list_deadline(),
                Ok(()) = self.drops.changed(), if self.restart.is_some() => self.has_dropped = true,
                // The stream has ended, but the controller may still gain shards while other watches run. Those watches
                // report changes that concern the objects of these shards.
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

    /// Returns true if every gained shard has been listed. A stream that has ended still lists the shards that are
    /// gained while other watches run. Before the first gain, the result is false, because no object that the stream
    /// has listed has run yet.
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

    /// Lists the objects of the gained shards: the watch starts again, or the objects are read from the user's store.
    fn list_gained(&mut self) {
        self.list = Listing { gains: *self.gains.borrow(), is_restart: true };
        if let Some(start) = &mut self.restart {
            self.events = watch_held(start, &self.shards, self.following.lists.period);
            (self.is_listing, self.has_ended) = (true, false);
            return;
        }
        // The guard exists until the whole list is applied, so that no shard of an object is forgotten in between.
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
            // After an error, the watcher lists again anyway. The list is therefore not in progress, and another watch
            // can replace this one.
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
            // The wait after an error may be longer than the rest of the time limit.
            () = sleep_until(list_by.unwrap_or_else(Instant::now)), if list_by.is_some() => self.check_deadline()?,
        }
        if is_end {
            self.end_list();
        }
        Ok(())
    }

    /// Permits runs in the shards that the list included.
    fn end_list(&mut self) {
        debug_assert!(!self.is_listing, "a list that is in progress is not complete");
        self.shards.mark_listed(self.list.gains);
        // If this watch lists again without a further gain, it does so after an outage. Changes that it reports as
        // unchanged are then handled as in any list after an outage.
        self.list.is_restart = false;
        self.list_by = None;
        self.list_by = self.list_deadline();
    }

    /// Returns the time limit for the list of the gained shards, or `None` if all of them have been listed.
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

/// Starts a watch of the objects in all shards that this process holds.
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

/// A list of the objects in the shards that this process holds.
#[derive(Clone, Copy)]
struct Listing {
    /// The number of gains when the list began.
    gains: u64,
    /// True if the watch started again because shards were gained.
    is_restart: bool,
}

impl Listing {
    /// Returns true if the change must be reported to the enqueuer. In a gained shard, every existing object is
    /// reported, as in a first list.
    fn keeps_change(self, change: &mut Change, ownership: &dyn Ownership) -> bool {
        if ownership.is_gained(&change.key) {
            let is_here = change.kind != ChangeKind::Deleted;
            change.kind = ChangeKind::Listed;
            return is_here;
        }
        // If the list began because of a gain, other unchanged objects need no run. They are in shards that this
        // process has held all the time, because the watch has forgotten the objects of released shards.
        !(self.is_restart && change.kind == ChangeKind::Unchanged)
    }
}
