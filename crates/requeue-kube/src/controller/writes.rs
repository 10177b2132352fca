//! The writes of reconcilers, and the events that show them.
//!
//! A write is *shown* when a watch of its kind has reported it. From then on, a store that the watch maintains contains
//! the write. If a run has made a write that is not shown yet, its object waits for the event before it runs again.
//!
//! Resource versions of one resource are compared as integers, as [Kubernetes
//! allows](https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).

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

/// The number of events of a kind that are remembered. They are needed for a write that is recorded
/// after its event has arrived.
const RECENT: usize = 1024;

/// The minimum time for which the events of own writes start no run.
const SUPPRESSED: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// The run that the task executes: the writes of its controller, and its object.
    static RUN: (Writes, ObjectKey);
}

/// A kind of objects in any version, as its group and its name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Kind(Arc<(String, String)>);

impl Kind {
    pub(super) fn from_type<O: Resource>(dyntype: &O::DynamicType) -> Self {
        Self(Arc::new((O::group(dyntype).into_owned(), O::kind(dyntype).into_owned())))
    }
}

/// The writes of a controller's reconcilers, so that no run reads a cache that is older than the
/// controller's own writes.
///
/// A reconciler records the response of each write. Its object then does not run again until the
/// controller's watch of that kind has shown the write. The object waits for the event. It is not
/// polled, and no failure is counted. Writes of kinds that the controller does not watch delay
/// nothing.
///
/// The object waits at most for [`Config::own_writes_timeout`](super::Config::own_writes_timeout), because an event may
/// never come, for example if the watch has a selector that excludes the object. After this time, the object runs, and
/// the metric `stale_sync_timeouts_total` counts the run.
///
/// With several watches of one kind, the first event that shows a write counts, because the other
/// watches may have selectors that exclude the object. The store of another watch may not contain
/// the write yet. A [`SharedWatch`](crate::shared::SharedWatch) has only one store.
///
/// A write without a response cannot be recorded. If the connection breaks, the API server may have executed the write.
/// Use server-side apply, or derive the names of the objects that a run creates from its object. A repeated write then
/// creates no second object.
///
/// Read the objects from a store that the controller's own watches maintain: [`Controller::store`]
/// for its own kind, and [`Watched::stream`] with
/// [`reflect`](kube::runtime::WatchStreamExt::reflect) for other kinds.
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
    /// The objects with writes that are not shown.
    open: HashMap<ObjectKey, Open>,
    /// The open writes in the order in which their time limits pass.
    limits: VecDeque<(Instant, Kind, Write)>,
    timeout: Duration,
    /// The number of writes that were recorded.
    recorded: u64,
    /// The events that arrived for each object in flight, if own writes are suppressed.
    in_flight: HashMap<ObjectKey, Vec<Held>>,
    suppresses: bool,
}

/// A kind that the controller watches, with its writes.
#[derive(Default)]
struct Watched {
    /// The watches of this kind, by their numbers.
    watches: BTreeMap<usize, Progress>,
    /// The open writes by resource version. Deletions without a version are in `deletions`.
    versions: BTreeMap<u64, Vec<Write>>,
    deletions: Vec<Write>,
    recent: VecDeque<Shown>,
    /// The writes whose events start no run of the object for which the write was made, by version.
    own: BTreeMap<u64, Vec<Write>>,
}

#[derive(Default)]
struct Progress {
    /// The highest resource version that the watch has shown.
    reached: u64,
    /// The highest version in the list in progress.
    listing: u64,
    /// The numbers of writes that were recorded before two lists began: the list in progress, and the last complete
    /// list.
    recorded: u64,
    listed: u64,
}

#[derive(Clone)]
struct Write {
    key: ObjectKey,
    /// The object that was written.
    object: ObjectKey,
    uid: u64,
    /// The version in the response, or `None` for a deletion whose response has no version.
    version: Option<u64>,
    number: u64,
}

/// An event of one object.
#[derive(Clone, Copy)]
struct Shown {
    uid: u64,
    version: u64,
    /// True if the object no longer exists, or is being deleted.
    is_deleted: bool,
}

/// The state of the stores at the delivery of an object, compared with the writes of the object's
/// runs.
pub(super) enum Freshness {
    Fresh,
    /// A write is not shown yet, so the run waits, but at most for this time.
    Stale(Duration),
    /// The run has waited for the maximum time, and starts.
    TimedOut,
}

struct Open {
    /// The numbers of the open writes.
    writes: Vec<u64>,
    until: Instant,
    /// True if the object was delivered and its run waits.
    waits: bool,
}

/// An add that waits for the end of the run in flight, because its event may show a write that the
/// run has not recorded yet.
pub(super) struct Held {
    kind: Kind,
    shown: Shown,
    pub(super) priority: i32,
    pub(super) reason: Reason,
}

impl Shown {
    /// Returns `None` for an object without a numeric resource version.
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

/// The event that causes an add.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    kind: &'a Kind,
    progressed: Option<Progressed>,
    /// True if the event combines several changes. The last change may be an own write, although an earlier change came
    /// from another client.
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

    /// Returns the name of the kind of the watch.
    pub(super) fn kind(&self) -> &'a str {
        &self.kind.0.1
    }

    /// Returns the version that the event shows, if the event may show only an own write.
    fn only_shows(&self) -> Option<Shown> {
        match self.progressed {
            Some(Progressed::Shown(shown)) if !self.is_merged => Some(shown),
            _ => None,
        }
    }
}

/// The part of an event that is relevant for writes.
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
    /// Records the response of a write: a create, replace, patch or apply of an object or of a
    /// subresource such as `status`.
    ///
    /// Call this method in the reconciler, on the task on which the controller runs it. On any other task, such as a
    /// task that the reconciler has spawned, call [`record_for`](Self::record_for), because `record` only logs a
    /// warning there.
    ///
    /// An object without a uid, or with a resource version that is not a number, is ignored,
    /// because its event could not be recognized.
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

    /// Like [`record`](Self::record), for a write of the run of `object`.
    pub fn record_for<K, O>(&self, object: &ObjectRef<K>, written: &O)
    where
        K: Lookup,
        O: Resource,
        O::DynamicType: Default,
    {
        self.record_version(ObjectKey::from(object), written, &O::DynamicType::default());
    }

    /// Records the response of a deletion.
    ///
    /// A deletion is shown when the object no longer exists or has a deletion timestamp. In all other respects, the
    /// method works like [`record`](Self::record).
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
            // The object continues to exist for some time, with this version.
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
                    // The response of a completed delete does not contain the namespace.
                    let object = ObjectKey::new(None, name);
                    self.open_write(key, &kind, (object, hash(&Some(uid))), None);
                }
            }
        }
    }

    /// Returns the object of the run that this task executes.
    fn current_run(&self) -> Option<ObjectKey> {
        // A reconciler may use the `Writes` of another controller, which does not execute this run.
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

    /// Returns the latest write for which the run of `key` waits.
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

    /// Sets the time limit of a wait. If `suppress` is true, the events of own writes start no
    /// run.
    pub(super) fn set_limits(&self, timeout: Duration, suppress: bool) {
        let mut state = self.0.lock();
        state.timeout = timeout;
        state.suppresses = suppress;
    }

    /// Adds a watch of `kind`.
    pub(super) fn add_watch(&self, kind: Kind, number: usize) {
        self.0.lock().kinds.entry(kind).or_default().watches.insert(number, Progress::default());
    }

    /// Executes the run of `key`, whose writes are then recorded for it.
    pub(super) async fn record_during<F: Future>(&self, key: ObjectKey, run: F) -> F::Output {
        RUN.scope((self.clone(), key), run).await
    }

    /// The controller calls this method at the delivery of `key`. Returns the freshness of the
    /// stores.
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
            // An entry may exist already, because the end of the previous run may not be recorded
            // here yet.
            state.in_flight.entry(key.clone()).or_default();
        }
        if timed_out { Freshness::TimedOut } else { Freshness::Fresh }
    }

    /// The controller calls this method after the run of `key`. Returns the adds that waited for the end of the run.
    pub(super) fn end_run(&self, key: &ObjectKey) -> Vec<Held> {
        self.0.lock().in_flight.remove(key).unwrap_or_default()
    }

    /// Returns true if an event shows a write of a run of `key`, and must start no run of `key`.
    pub(super) fn is_own(&self, event: Origin<'_>, key: &ObjectKey) -> bool {
        let Some(shown) = event.only_shows() else { return false };
        let state = self.0.lock();
        let own = state.kinds.get(event.kind).and_then(|watched| watched.own.get(&shown.version));
        let is_by_key = |write: &Write| write.key == *key && shown.is_version(write);
        own.is_some_and(|writes| writes.iter().any(is_by_key))
    }

    /// Keeps an add until the end of the run of `key`, if there is such a run, and if the event of the add may show a
    /// write that the run has not recorded yet. Returns the add otherwise.
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

    /// Forgets the open writes of an object that no longer exists, and the adds that wait for its
    /// run.
    pub(super) fn forget_writes(&self, key: &ObjectKey) {
        let mut state = self.0.lock();
        state.open.remove(key);
        if let Some(held) = state.in_flight.get_mut(key) {
            held.clear();
        }
    }

    /// The controller calls this method when all watches have ended. From now on, no run waits for an event. Returns
    /// the adds that waited for the ends of runs, with their objects, and the objects whose runs waited.
    pub(super) fn stop_waits(&self) -> (Vec<(ObjectKey, Held)>, Vec<ObjectKey>) {
        let mut state = self.0.lock();
        // Without watched kinds, no write delays a run.
        state.kinds.clear();
        // No event would end the wait of a held add, so no add is held from this line on.
        state.suppresses = false;
        let in_flight = std::mem::take(&mut state.in_flight).into_iter();
        let held =
            in_flight.flat_map(|(key, held)| held.into_iter().map(move |it| (key.clone(), it)));
        let waiting = state.open.drain().filter(|(_, open)| open.waits).map(|(key, _)| key);
        (held.collect(), waiting.collect())
    }

    /// Like [`forget_writes`](Self::forget_writes), for the objects for which `is_gone` returns
    /// true.
    pub(super) fn forget_all(&self, is_gone: impl Fn(&ObjectKey) -> bool) {
        let mut state = self.0.lock();
        state.open.retain(|key, _| !is_gone(key));
        let in_flight = state.in_flight.iter_mut();
        in_flight.filter(|(key, _)| is_gone(key)).for_each(|(_, held)| held.clear());
    }

    /// The controller calls this method after it has applied an event. Returns the objects whose runs waited for the
    /// event and can now start.
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
        // A timeout that is out of range has no effect.
        let until = now.checked_add(self.timeout).unwrap_or(now + Duration::from_secs(1 << 30));
        if let (true, Some(version)) = (self.suppresses, write.version) {
            watched.own.entry(version).or_default().push(write.clone());
            if let Some(held) = self.in_flight.get_mut(&write.key) {
                // The event of this write has arrived before the response, so the event starts no
                // run.
                held.retain(|held| held.kind != *kind || !held.shown.is_version(&write));
            }
            // The event may come after the run's wait for it, so the write is remembered for longer. The limit is for
            // events that never come.
            self.limits.push_back((until.max(now + SUPPRESSED), kind.clone(), write.clone()));
        }
        // The event can arrive before the response does.
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

    /// Forgets writes whose time limit has passed.
    fn expire_writes(&mut self, now: Instant) {
        while self.limits.front().is_some_and(|(until, ..)| *until <= now) {
            let Some((_, kind, write)) = self.limits.pop_front() else { return };
            if let Some(open) = self.open.get_mut(&write.key) {
                open.writes.retain(|number| *number != write.number);
                // The entry of a waiting run stays, because the run itself removes it, and counts that it has waited
                // for the maximum time.
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

    /// Closes a write. Returns the object if the write was its last open write and its run waits.
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
                // A deleted object is not in the list. The deletion is shown if it was recorded before the list began.
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
                // If the kind has only one watch, the version that this watch has reached answers the question without
                // a search.
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
    /// Returns true if the event shows exactly the version that this write created.
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
    /// Returns the highest version that all watches of the kind have shown.
    fn lowest_reached(&self) -> u64 {
        // The lowest version is used, because versions of different objects arrive in order only
        // within one watch.
        self.watches.values().map(|progress| progress.reached).min().unwrap_or(0)
    }

    fn has_shown(&self, write: &Write) -> bool {
        write.version.is_some_and(|version| version <= self.lowest_reached())
            || self.recent.iter().rev().any(|event| event.shows_write(write))
    }

    /// Moves the writes that satisfy `is_shown` to `shown`.
    fn take_shown(&mut self, is_shown: impl Fn(&Write) -> bool, shown: &mut Vec<Write>) {
        self.versions.retain(|_, writes| {
            shown.extend(writes.extract_if(.., |write| is_shown(write)));
            !writes.is_empty()
        });
        shown.extend(self.deletions.extract_if(.., |write| is_shown(write)));
    }

    /// Moves the writes that all watches have reached to `shown`.
    fn take_reached(&mut self, shown: &mut Vec<Write>) {
        let reached = self.lowest_reached();
        while let Some(entry) = self.versions.first_entry().filter(|it| *it.key() <= reached) {
            shown.extend(entry.remove());
        }
        // Writes of exactly the reached version are kept, because the event of this version may not be compared with
        // them yet.
        while let Some(entry) = self.own.first_entry().filter(|it| *it.key() < reached) {
            entry.remove();
        }
    }
}

/// Keeps only the values of `version` that satisfy `keep`.
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
