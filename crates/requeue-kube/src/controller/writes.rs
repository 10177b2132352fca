//! The writes that reconcilers make to the API server, and the events that show these writes.
//!
//! A write is *shown* when a watch of its kind has reported it, so that a store of this watch contains it. If a run has
//! made a write that is not shown yet, the run's object does not run again before the event of the write arrives.
//!
//! The resource versions of one resource are compared as integers, which [Kubernetes
//! permits](https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use educe::Educe;
use either::Either;
use kube::Resource;
use kube::core::{ObjectMeta, Status};
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::reason::Reason;
use crate::ObjectKey;
use crate::watch::hash;

/// The number of past events of a kind that are stored. An event can arrive before its write is recorded. The write is
/// then found to be shown by a stored event.
const RECENT: usize = 1024;

/// The minimum time for which a write is stored in order to recognize its event, if own writes are suppressed.
const SUPPRESSED: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// The run that the current task executes: the `Writes` of the run's controller, and the run's object.
    static RUN: (Writes, ObjectKey);
}

/// A kind of objects, as its group and its name. All versions of a kind are equal.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Kind(Arc<(String, String)>);

impl Kind {
    pub(super) fn from_type<O: Resource>(dyntype: &O::DynamicType) -> Self {
        Self(Arc::new((O::group(dyntype).into_owned(), O::kind(dyntype).into_owned())))
    }
}

/// The recorded writes of a controller's reconcilers. They prevent a run on a store that does not contain the
/// controller's own writes yet.
///
/// A reconciler records the response of each write. Afterwards, the run's object does not run again until the
/// controller's watch of the written kind has reported the write. The event of the write starts the run, without
/// polling, and the wait is not a failure. A write of a kind that the controller does not watch delays no run.
///
/// The wait is limited by [`Config::own_writes_timeout`](super::Config::own_writes_timeout), because the event may
/// never come. For example, the selector of the watch may exclude the written object. After this time, the object runs,
/// and the metric `stale_sync_timeouts_total` counts the run.
///
/// If the controller has several watches of the kind, the wait ends at the first event that shows the write. The other
/// watches may have selectors that exclude the object. Their stores may not contain the write yet. A
/// [`SharedWatch`](crate::shared::SharedWatch) has only one store.
///
/// A write without a response cannot be recorded, and the API server may have executed it, for example if the
/// connection broke. A later run may then repeat the write. To prevent a second object, use server-side apply, or
/// derive the names of created objects from the run's object.
///
/// A reconciler must read objects from the stores of the controller's own watches. For the controller's own kind, this
/// is [`Controller::store`]. For other kinds, it is a store that [`reflect`](kube::runtime::WatchStreamExt::reflect)
/// fills, with [`Watched::stream`].
///
/// ```
/// use std::sync::Arc;
///
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use kube::api::{Api, PostParams};
/// use kube::runtime::{WatchStreamExt, reflector, watcher};
/// use kube::{Client, ResourceExt};
/// use requeue_kube::Controller;
/// use requeue_kube::controller::{Action, Watched, Writes};
///
/// struct Context {
///     client: Client,
///     secrets: reflector::Store<Secret>,
///     writes: Writes,
/// }
///
/// async fn reconcile(owner: Arc<ConfigMap>, ctx: Arc<Context>) -> Result<Action, kube::Error> {
///     let is_ours = |secret: &Arc<Secret>| secret.name_any().starts_with(&owner.name_any());
///     if ctx.secrets.state().iter().filter(|secret| is_ours(secret)).count() < 3 {
///         let secrets = Api::namespaced(ctx.client.clone(), "default");
///         let secret = Secret::default(); // with a name, and `owner` as its owner
///         ctx.writes.record(&secrets.create(&PostParams::default(), &secret).await?);
///     }
///     Ok(Action::await_change())
/// }
///
/// fn controller(client: Client) -> (Controller<ConfigMap>, Context) {
///     let (secrets, writer) = reflector::store();
///     let events = watcher(Api::all(client.clone()), watcher::Config::default()).reflect(writer);
///     let controller = Controller::new(Api::all(client.clone()), watcher::Config::default())
///         .watch_owned(Watched::stream(events));
///     let writes = controller.writes();
///     (controller, Context { client, secrets, writes })
/// }
/// ```
///
/// [`Controller::store`]: crate::Controller::store
/// [`Watched::stream`]: super::Watched::stream
#[derive(Clone, Default, Educe)]
#[educe(Debug)]
pub struct Writes(#[educe(Debug(ignore))] Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    kinds: HashMap<Kind, Watched>,
    /// The objects that have writes that are not shown yet.
    open: HashMap<ObjectKey, Open>,
    /// The writes that are not shown yet, in the order of their time limits.
    limits: VecDeque<(Instant, Kind, Write)>,
    timeout: Duration,
    /// The number of writes recorded so far. It is the number of the last write.
    recorded: u64,
    /// If own writes are suppressed: for each object in flight, the adds that are held back until its run has ended.
    in_flight: HashMap<ObjectKey, Vec<Held>>,
    suppresses: bool,
}

/// A kind that the controller watches, and the writes to objects of the kind.
#[derive(Default)]
struct Watched {
    /// The watches of this kind, by the numbers of their sources.
    watches: BTreeMap<usize, Progress>,
    /// The writes that are not shown yet, by resource version. Deletions whose responses have no version are in
    /// `deletions`.
    versions: BTreeMap<u64, Vec<Write>>,
    deletions: Vec<Write>,
    recent: VecDeque<Shown>,
    /// The writes whose events must not start a run, by resource version. Only the object of the run that made the
    /// write is suppressed.
    own: BTreeMap<u64, Vec<Write>>,
}

#[derive(Default)]
struct Progress {
    /// The highest resource version that the watch has reported.
    reached: u64,
    /// The highest resource version in the list in progress.
    listing: u64,
    /// The value of `State::recorded` when a list began. `recorded` belongs to the list in progress, and `listed` to
    /// the last complete list.
    recorded: u64,
    listed: u64,
}

#[derive(Clone)]
struct Write {
    key: ObjectKey,
    /// The object that was written, which may be another object than that of the run.
    object: ObjectKey,
    uid: u64,
    /// The resource version in the response, or `None` if the response to a deletion has no version.
    version: Option<u64>,
    number: u64,
}

/// The state of an object that an event shows.
#[derive(Clone, Copy)]
struct Shown {
    uid: u64,
    version: u64,
    /// True if the object no longer exists, or has a deletion timestamp.
    is_deleted: bool,
}

/// The result of the comparison, at the delivery of an object, between the stores and the writes of the object's
/// earlier runs.
pub(super) enum Freshness {
    Fresh,
    /// A write is not shown yet. The run must wait for its event, at most for this time.
    Stale(Duration),
    /// The object has already waited for the maximum time, so its run starts anyway.
    TimedOut,
}

struct Open {
    /// The numbers of the object's writes that are not shown yet.
    writes: Vec<u64>,
    until: Instant,
    /// True if the object was delivered, and its run waits for these writes.
    waits: bool,
}

/// An add that the enqueuer holds back until the run in flight has ended. Its event may show a write that the run has
/// not recorded yet.
pub(super) struct Held {
    kind: Kind,
    shown: Shown,
    pub(super) priority: i32,
    pub(super) reason: Reason,
}

impl Shown {
    /// Returns `None` if the object's resource version is not a number.
    fn from_meta(meta: &ObjectMeta, is_gone: bool) -> Option<Self> {
        Some(Self {
            uid: hash(&meta.uid),
            version: numeric_version(meta)?,
            is_deleted: is_gone || meta.deletion_timestamp.is_some(),
        })
    }
}

fn numeric_version(meta: &ObjectMeta) -> Option<u64> {
    meta.resource_version.as_ref()?.parse().ok()
}

/// The event that causes adds.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    kind: &'a Kind,
    progressed: Option<Progressed>,
    /// True if the event combines several changes. Even if the last change is an own write, an earlier one may be
    /// another client's.
    is_merged: bool,
}

impl<'a> Origin<'a> {
    pub(super) fn from_event<O: Resource>(
        kind: &'a Kind,
        event: &Event<O>,
        is_merged: fn(&O) -> bool,
    ) -> Self {
        let is_merged = matches!(event, Event::Apply(object) if is_merged(object));
        Self { kind, progressed: Progressed::from_event(event), is_merged }
    }

    /// Returns the name of the watched kind.
    pub(super) fn kind(&self) -> &'a str {
        &self.kind.0.1
    }

    /// Returns the state that the event shows, if it is possible that the event shows an own write and nothing else.
    fn only_shows(&self) -> Option<Shown> {
        match self.progressed {
            Some(Progressed::Shown(shown)) if !self.is_merged => Some(shown),
            _ => None,
        }
    }
}

/// The part of an event that decides which writes are shown.
#[derive(Clone, Copy)]
enum Progressed {
    ListBegan,
    Listed { version: u64 },
    ListEnded,
    Shown(Shown),
}

impl Progressed {
    fn from_event<O: Resource>(event: &Event<O>) -> Option<Self> {
        match event {
            Event::Init => Some(Self::ListBegan),
            Event::InitApply(object) => {
                numeric_version(object.meta()).map(|version| Self::Listed { version })
            }
            Event::InitDone => Some(Self::ListEnded),
            Event::Apply(object) => Shown::from_meta(object.meta(), false).map(Self::Shown),
            Event::Delete(object) => Shown::from_meta(object.meta(), true).map(Self::Shown),
        }
    }
}

impl Writes {
    /// Records the response of a write. The write can be a create, replace, patch or apply of an object, or of a
    /// subresource such as `status`.
    ///
    /// Call this method on the task on which the controller runs the reconciler. On any other task, for example one
    /// that the reconciler has spawned, this method only logs a warning. Call [`record_for`](Self::record_for) there.
    ///
    /// The method ignores an object that has no uid, or whose resource version is not a number, because the controller
    /// could not recognize its event.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::Secret;
    /// use kube::api::{Api, PostParams};
    /// use requeue_kube::controller::Writes;
    ///
    /// # let _ = async |secrets: Api<Secret>, writes: Writes| {
    /// writes.record(&secrets.create(&PostParams::default(), &Secret::default()).await?);
    /// # Ok::<(), kube::Error>(())
    /// # };
    /// ```
    pub fn record<O>(&self, written: &O)
    where
        O: Resource,
        O::DynamicType: Default,
    {
        self.record_with(written, &O::DynamicType::default());
    }

    /// Like [`record`](Self::record), for a kind that is known only at run time.
    pub fn record_with<O: Resource>(&self, written: &O, dyntype: &O::DynamicType) {
        if let Some(key) = self.current_run() {
            self.record_version(key, written, dyntype);
        }
    }

    /// Like [`record`](Self::record), for a write by the run of `object`. The method can be called on any task.
    pub fn record_for<K, O>(&self, object: &ObjectRef<K>, written: &O)
    where
        K: Lookup,
        O: Resource,
        O::DynamicType: Default,
    {
        self.record_version(ObjectKey::from(object), written, &O::DynamicType::default());
    }

    /// Records the response of a delete request.
    ///
    /// The deletion is shown when a watch has reported that the object no longer exists, or that it has a deletion
    /// timestamp. Otherwise, the method works like [`record`](Self::record).
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::Secret;
    /// use kube::api::{Api, DeleteParams};
    /// use requeue_kube::controller::Writes;
    ///
    /// # let _ = async |secrets: Api<Secret>, writes: Writes| {
    /// writes.record_deletion(&secrets.delete("a", &DeleteParams::default()).await?);
    /// # Ok::<(), kube::Error>(())
    /// # };
    /// ```
    pub fn record_deletion<O>(&self, deleted: &Either<O, Status>)
    where
        O: Resource,
        O::DynamicType: Default,
    {
        let Some(key) = self.current_run() else { return };
        let kind = Kind::from_type::<O>(&O::DynamicType::default());
        match deleted {
            // The object has a finalizer, and continues to exist. The deletion timestamp is a write with this version.
            Either::Left(object) if object.meta().deletion_timestamp.is_some() => {
                self.record_version(key, object, &O::DynamicType::default());
            }
            Either::Left(object) => {
                let meta = object.meta();
                self.open_write(key, &kind, (ObjectKey::from_meta(meta), hash(&meta.uid)), None);
            }
            Either::Right(status) => {
                let details = status.details.as_ref();
                if let Some(uid) = details.map(|it| &it.uid).filter(|uid| !uid.is_empty()) {
                    let name = details.map_or("", |it| &it.name);
                    // The response of a completed deletion contains the uid, but no namespace and no version.
                    let object = ObjectKey::new(None, name);
                    self.open_write(key, &kind, (object, hash(&Some(uid))), None);
                }
            }
        }
    }

    /// Returns the object whose run the current task executes.
    fn current_run(&self) -> Option<ObjectKey> {
        // A reconciler may by mistake use the `Writes` of another controller. That controller does not execute this
        // run.
        let run =
            RUN.try_with(|(writes, key)| Arc::ptr_eq(&writes.0, &self.0).then(|| key.clone()));
        let key = run.ok().flatten();
        if key.is_none() {
            tracing::warn!(
                "a write was not recorded: this task does not run a reconciler of this \
                 controller; use `record_for`"
            );
        }
        key
    }

    fn record_version<O: Resource>(&self, key: ObjectKey, written: &O, dyntype: &O::DynamicType) {
        let meta = written.meta();
        if let (Some(_), Some(version)) = (&meta.uid, numeric_version(meta)) {
            let object = (ObjectKey::from_meta(meta), hash(&meta.uid));
            self.open_write(key, &Kind::from_type::<O>(dyntype), object, Some(version));
        }
    }

    fn open_write(
        &self,
        key: ObjectKey,
        kind: &Kind,
        (object, uid): (ObjectKey, u64),
        version: Option<u64>,
    ) {
        self.0.lock().open_write(Write { key, object, uid, version, number: 0 }, kind);
    }

    /// Returns a text for the latest write for which the run of `key` waits.
    pub(super) fn wait_of(&self, key: &ObjectKey) -> Option<String> {
        let state = self.0.lock();
        let open = state.open.get(key).filter(|open| open.waits)?;
        let left = open.until.saturating_duration_since(Instant::now());
        let last = open.writes.last()?;
        state.kinds.iter().find_map(|(kind, watched)| {
            let mut writes = watched.versions.values().flatten().chain(&watched.deletions);
            let write = writes.find(|write| write.number == *last)?;
            let shows = match write.version {
                Some(version) => format!("reach resourceVersion {version} of"),
                None => "show the deletion of".to_owned(),
            };
            let (kind, object, left) = (&kind.0.1, &write.object, left.as_secs_f64());
            Some(format!("waits for the watch to {shows} {kind} {object}, at most {left:.1} s"))
        })
    }

    /// Sets the maximum time for which a run waits. If `suppress` is true, the events of own writes start no run.
    pub(super) fn set_limits(&self, timeout: Duration, suppress: bool) {
        let mut state = self.0.lock();
        state.timeout = timeout;
        state.suppresses = suppress;
    }

    /// Registers a watch of `kind`. From then on, writes of this kind delay runs.
    pub(super) fn add_watch(&self, kind: Kind, number: usize) {
        self.0.lock().kinds.entry(kind).or_default().watches.insert(number, Progress::default());
    }

    /// Executes the run of `key`. Writes that the task records during the run belong to `key`.
    pub(super) async fn record_during<F: Future>(&self, key: ObjectKey, run: F) -> F::Output {
        RUN.scope((self.clone(), key), run).await
    }

    /// Compares the stores with the writes of the earlier runs of `key`. The controller calls this method at each
    /// delivery of `key`.
    pub(super) fn begin_run(&self, key: &ObjectKey) -> Freshness {
        let mut state = self.0.lock();
        let state = &mut *state;
        let mut timed_out = false;
        if let Some(open) = state.open.get_mut(key) {
            let left = open.until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                open.waits = true;
                return Freshness::Stale(left);
            }
            timed_out = open.waits;
            state.open.remove(key);
        }
        if state.suppresses {
            // The map may already have an entry, because `end_run` may not have been called for the previous run yet.
            state.in_flight.entry(key.clone()).or_default();
        }
        if timed_out { Freshness::TimedOut } else { Freshness::Fresh }
    }

    /// Returns the adds that were held back until the run of `key` has ended. The controller calls this method after
    /// each run.
    pub(super) fn end_run(&self, key: &ObjectKey) -> Vec<Held> {
        self.0.lock().in_flight.remove(key).unwrap_or_default()
    }

    /// Returns true if the event shows a write by a run of `key`, so that the event must not start a run of `key`.
    pub(super) fn is_own(&self, event: Origin<'_>, key: &ObjectKey) -> bool {
        let Some(shown) = event.only_shows() else { return false };
        let state = self.0.lock();
        let own = state.kinds.get(event.kind).and_then(|watched| watched.own.get(&shown.version));
        let is_by_key = |write: &Write| write.key == *key && shown.is_version(write);
        own.is_some_and(|writes| writes.iter().any(is_by_key))
    }

    /// Holds an add back until the run of `key` has ended, if a run is in flight and the event may show a write that
    /// the run has not recorded yet. Otherwise, returns the add's reason.
    pub(super) fn hold_add(
        &self,
        key: &ObjectKey,
        event: Origin<'_>,
        priority: i32,
        reason: Reason,
    ) -> Option<Reason> {
        let Some(shown) = event.only_shows() else { return Some(reason) };
        let mut state = self.0.lock();
        match state.in_flight.get_mut(key) {
            Some(held) if !shown.is_deleted => {
                held.push(Held { kind: event.kind.clone(), shown, priority, reason });
                None
            }
            _ => Some(reason),
        }
    }

    /// Forgets the writes of an object that no longer exists, and the adds that are held back until its run has ended.
    pub(super) fn forget_writes(&self, key: &ObjectKey) {
        let mut state = self.0.lock();
        state.open.remove(key);
        if let Some(held) = state.in_flight.get_mut(key) {
            held.clear();
        }
    }

    /// Ends all waits for events, because all watches have ended. Returns the adds that were held back, with their
    /// keys. Also returns the keys whose runs waited.
    pub(super) fn stop_waits(&self) -> (Vec<(ObjectKey, Held)>, Vec<ObjectKey>) {
        let mut state = self.0.lock();
        // If no kind is watched, no write delays a run.
        state.kinds.clear();
        // From this line on, no add is held back.
        state.suppresses = false;
        let in_flight = std::mem::take(&mut state.in_flight).into_iter();
        let held =
            in_flight.flat_map(|(key, held)| held.into_iter().map(move |it| (key.clone(), it)));
        let waiting = state.open.drain().filter(|(_, open)| open.waits).map(|(key, _)| key);
        (held.collect(), waiting.collect())
    }

    /// Like [`forget_writes`](Self::forget_writes), for all objects for which `is_gone` returns true.
    pub(super) fn forget_all(&self, is_gone: impl Fn(&ObjectKey) -> bool) {
        let mut state = self.0.lock();
        state.open.retain(|key, _| !is_gone(key));
        let in_flight = state.in_flight.iter_mut();
        in_flight.filter(|(key, _)| is_gone(key)).for_each(|(_, held)| held.clear());
    }

    /// Closes the writes that the event shows. The controller calls this method after it has applied the event to its
    /// store. Returns the objects whose runs waited only for these writes.
    pub(super) fn apply_progress(&self, event: Origin<'_>, watch: usize) -> Vec<ObjectKey> {
        let progress = |progressed| self.0.lock().apply_progress(event.kind, watch, progressed);
        event.progressed.map(progress).unwrap_or_default()
    }
}

impl State {
    fn open_write(&mut self, mut write: Write, kind: &Kind) {
        let now = Instant::now();
        self.expire_writes(now);
        let Some(watched) = self.kinds.get_mut(kind) else { return };
        // If the timeout exceeds the range of `Instant`, the limit is about 34 years.
        let until = now.checked_add(self.timeout).unwrap_or(now + Duration::from_secs(1 << 30));
        if let (true, Some(version)) = (self.suppresses, write.version) {
            watched.own.entry(version).or_default().push(write.clone());
            if let Some(held) = self.in_flight.get_mut(&write.key) {
                // If the event of this write has arrived before the response, the enqueuer has held its add back. The
                // add is dropped, because it must start no run.
                held.retain(|held| held.kind != *kind || !held.shown.is_version(&write));
            }
            // The event may come after the run has stopped waiting for it, so the write is stored for at least
            // `SUPPRESSED`. The limit removes writes whose events never come.
            self.limits.push_back((until.max(now + SUPPRESSED), kind.clone(), write.clone()));
        }
        // The event can arrive before the response. In this case, no run must wait.
        if watched.has_shown(&write) {
            return;
        }
        self.recorded += 1;
        write.number = self.recorded;
        match write.version {
            Some(version) => watched.versions.entry(version).or_default().push(write.clone()),
            None => watched.deletions.push(write.clone()),
        }
        let fresh = || Open { writes: Vec::new(), until, waits: false };
        let open = self.open.entry(write.key.clone()).or_insert_with(fresh);
        open.writes.push(write.number);
        open.until = until;
        self.limits.push_back((until, kind.clone(), write));
    }

    /// Removes the writes whose time limit has passed.
    fn expire_writes(&mut self, now: Instant) {
        while self.limits.front().is_some_and(|(until, ..)| *until <= now) {
            let Some((_, kind, write)) = self.limits.pop_front() else { return };
            if let Some(open) = self.open.get_mut(&write.key) {
                open.writes.retain(|number| *number != write.number);
                // If the run waits, the entry remains. The next `begin_run` removes it, and counts a run that has
                // waited for the maximum time.
                if open.writes.is_empty() && !open.waits {
                    self.open.remove(&write.key);
                }
            }
            let Some(watched) = self.kinds.get_mut(&kind) else { continue };
            watched.deletions.retain(|other| other.number != write.number);
            if let Some(version) = write.version {
                retain_writes(&mut watched.versions, version, |other| other.number != write.number);
                retain_writes(&mut watched.own, version, |other| other.uid != write.uid);
            }
        }
    }

    /// Marks a write as shown. Returns the object if its run waited, and this write was the last one.
    fn close_write(&mut self, write: &Write) -> Option<ObjectKey> {
        let open = self.open.get_mut(&write.key)?;
        open.writes.retain(|number| *number != write.number);
        if !open.writes.is_empty() {
            return None;
        }
        let open = self.open.remove(&write.key)?;
        open.waits.then(|| write.key.clone())
    }

    fn apply_progress(
        &mut self,
        kind: &Kind,
        watch: usize,
        progressed: Progressed,
    ) -> Vec<ObjectKey> {
        let recorded = self.recorded;
        let Some(watched) = self.kinds.get_mut(kind) else { return Vec::new() };
        let Some(progress) = watched.watches.get_mut(&watch) else { return Vec::new() };
        let mut shown = Vec::new();
        match progressed {
            Progressed::ListBegan => {
                (progress.listing, progress.recorded) = (0, recorded);
                return Vec::new();
            }
            Progressed::Listed { version } => {
                progress.listing = progress.listing.max(version);
                return Vec::new();
            }
            Progressed::ListEnded => {
                progress.reached = progress.reached.max(progress.listing);
                progress.listed = progress.recorded;
                // A deleted object is missing in the list. Its deletion is shown if it was recorded before all watches
                // of the kind began their last complete list.
                let before = watched.watches.values().map(|progress| progress.listed).min();
                let is_gone =
                    |write: &Write| write.version.is_none() && Some(write.number) <= before;
                watched.take_shown(is_gone, &mut shown);
            }
            Progressed::Shown(event) => {
                progress.reached = progress.reached.max(event.version);
                watched.recent.push_back(event);
                if watched.recent.len() > RECENT {
                    watched.recent.pop_front();
                }
                // If the kind has only one watch, `take_reached` finds all shown writes by their version, and the
                // search is not needed.
                if watched.watches.len() > 1 || event.is_deleted {
                    watched.take_shown(|write| event.shows_write(write), &mut shown);
                }
            }
        }
        watched.take_reached(&mut shown);
        let ready: HashSet<_> = shown.iter().filter_map(|write| self.close_write(write)).collect();
        ready.into_iter().collect()
    }
}

impl Shown {
    /// Returns true if the event shows the object exactly as this write has left it.
    fn is_version(&self, write: &Write) -> bool {
        self.uid == write.uid && write.version == Some(self.version) && !self.is_deleted
    }

    fn shows_write(&self, write: &Write) -> bool {
        self.uid == write.uid
            && match write.version {
                Some(version) => version <= self.version,
                None => self.is_deleted,
            }
    }
}

impl Watched {
    /// Returns the resource version up to which every watch of the kind has reported all writes.
    fn lowest_reached(&self) -> u64 {
        // The result is the minimum, because versions of different objects arrive in order only within one watch.
        self.watches.values().map(|progress| progress.reached).min().unwrap_or(0)
    }

    fn has_shown(&self, write: &Write) -> bool {
        write.version.is_some_and(|version| version <= self.lowest_reached())
            || self.recent.iter().rev().any(|event| event.shows_write(write))
    }

    /// Moves the writes for which `is_shown` returns true from this kind to `shown`.
    fn take_shown(&mut self, is_shown: impl Fn(&Write) -> bool, shown: &mut Vec<Write>) {
        self.versions.retain(|_, writes| {
            shown.extend(writes.extract_if(.., |write| is_shown(write)));
            !writes.is_empty()
        });
        shown.extend(self.deletions.extract_if(.., |write| is_shown(write)));
    }

    /// Moves the writes up to the version that all watches have reached to `shown`.
    fn take_reached(&mut self, shown: &mut Vec<Write>) {
        let reached = self.lowest_reached();
        while let Some(entry) = self.versions.first_entry().filter(|it| *it.key() <= reached) {
            shown.extend(entry.remove());
        }
        // A write with exactly the reached version stays, because the enqueuer may not have compared the event of this
        // version with it yet.
        while let Some(entry) = self.own.first_entry().filter(|it| *it.key() < reached) {
            entry.remove();
        }
    }
}

/// Removes the values of `version` for which `keep` returns false.
fn retain_writes<T>(map: &mut BTreeMap<u64, Vec<T>>, version: u64, keep: impl Fn(&T) -> bool) {
    if let Entry::Occupied(mut values) = map.entry(version) {
        values.get_mut().retain(keep);
        if values.get().is_empty() {
            values.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn writes_whose_events_never_come_take_no_memory_after_the_limit() {
        let writes = Writes::default();
        let kind = Kind::from_type::<ConfigMap>(&());
        writes.set_limits(Duration::from_secs(10), true);
        writes.add_watch(kind.clone(), 0);
        for number in 0..1000 {
            let key = ObjectKey::new(None, &number.to_string());
            assert!(matches!(writes.begin_run(&key), Freshness::Fresh));
            let object = (ObjectKey::new(None, "written"), number);
            writes.open_write(key.clone(), &kind, object.clone(), Some(number + 1));
            writes.open_write(key.clone(), &kind, object, None);
            assert!(matches!(writes.begin_run(&key), Freshness::Stale(_)));
            assert!(writes.end_run(&key).is_empty());
            advance(Duration::from_secs(1)).await;
        }
        let mut state = writes.0.lock();
        state.expire_writes(Instant::now());
        let watched = &state.kinds[&kind];
        assert!(state.limits.len() <= 30, "{}", state.limits.len());
        for count in [watched.versions.len(), watched.deletions.len(), watched.own.len()] {
            assert!(count <= 10, "{count}");
        }
        drop(state);
        assert!(matches!(writes.begin_run(&ObjectKey::new(None, "0")), Freshness::TimedOut));
    }
}
