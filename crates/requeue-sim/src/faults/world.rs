//! A queue and its model, and the operations on both.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::history::Recording;
use requeue::{CancelledRun, GroupHandle, Item, Queue, Ticket};
use requeue_core::{Asked, Ending, GroupId, InFlightPolicy, Merge, Order, Time, When};

use super::hooks::{Hooks, Provider, events};
use super::limiter::{Extreme, Said};
use crate::How;
use crate::model::{
    AddRequest, Model, Out, Ranking, Rules, Seen, SeenReasons, Tally, Team, TeamStates,
};

pub(super) type Hashes = foldhash::fast::FixedState;
type Handle<'q> = GroupHandle<'q, u32, Hashes>;

pub(super) struct World {
    pub(super) queue: Queue<u32, Hashes>,
    pub(super) clock: FakeClock,
    pub(super) model: RefCell<Model<u32>>,
    pub(super) rng: RefCell<fastrand::Rng>,
    pub(super) said: Arc<Mutex<Said>>,
    /// The ways in which workers may handle keys: see `tasks`.
    pub(super) faults: Cell<u32>,
    pub(super) keys: u32,
    pub(super) teams: u32,
    track: bool,
    /// True if an add restarts the run in flight of its key.
    pub(super) restarts: bool,
    pub(super) has_pace: bool,
    /// True if the queue and the model are compared only occasionally, so that operations meet keys
    /// that are due and not ready yet. A comparison would make these keys ready, and hide lost
    /// wakes.
    pub(super) sparing: bool,
    hooks: Option<Arc<Hooks>>,
    /// The failures of each key that the limiter should have counted.
    counted: RefCell<BTreeMap<u32, u32>>,
    /// The keys of crowds have numbers from `CROWD` up to this number.
    pub(super) crowd: Cell<u32>,
    /// Tickets of completed deliveries.
    pub(super) stale: RefCell<Vec<Ticket>>,
    /// The keys that will not run, as the queue and the model have reported them.
    pub(super) lost: RefCell<[BTreeSet<u32>; 2]>,
    /// The first difference that was found.
    pub(super) wrong: RefCell<Option<String>>,
    digest: RefCell<DefaultHasher>,
}

/// The first key of a crowd.
const CROWD: u32 = 1_000;

impl World {
    pub(super) fn new(rules: Rules, keys: u32, teams: u32, mut rng: fastrand::Rng) -> Self {
        // A key waits for its pace from the first operation that finds the key due. The queue and the model must
        // therefore check for due keys at the same times.
        let sparing = rng.bool() && rules.pace.is_none();
        // The bound of restarts counts from the time at which a key becomes ready, and the queue and the model make due
        // keys ready at different times.
        let rerun = match rules.rerun {
            InFlightPolicy::Restart { .. } if sparing => {
                InFlightPolicy::Restart { at_most: Duration::MAX }
            }
            rerun => rerun,
        };
        let rules = Rules { rerun, ..rules };
        let hooks = (!sparing && rng.bool()).then(Arc::<Hooks>::default);
        let track = !sparing && (hooks.is_some() || rng.bool());
        let clock = FakeClock::new();
        let said = Said::new(rng.fork());
        let builder = Queue::builder()
            .clock(clock.clone())
            .readd_policy(rules.re_add)
            .in_flight_policy(rules.rerun)
            .limiter(Extreme(Arc::clone(&said)));
        let has_groups = rules.fair || rules.limit.is_some() || rng.bool();
        let builder = match has_groups {
            true => builder.group_by(move |key| group(*key, teams)),
            false => builder,
        };
        let builder = if track { builder.track_times().record_events(1 << 20) } else { builder };
        let builder = match &hooks {
            Some(hooks) => {
                builder.name("simulated").metrics_provider(Arc::new(Provider(Arc::clone(hooks))))
            }
            None => builder,
        };
        let builder = match rules.ranking {
            Ranking::Fifo | Ranking::Stack { .. } => builder,
            Ranking::Priority { oldest_every } => builder.order(Order::Priority { oldest_every }),
        };
        let builder = if rules.fair { builder.fair() } else { builder };
        let builder = match rules.pace {
            Some(pace) => builder.pace(pace),
            None => builder,
        };
        let builder = match rules.limit {
            Some(limit) => builder.group_limit(limit),
            None => builder,
        };
        Self {
            queue: builder.hasher(Hashes::default()).build().expect("the rules are valid"),
            clock,
            model: RefCell::new(Model::new(&rules)),
            faults: Cell::new(rng.u32(..)),
            rng: RefCell::new(rng),
            said,
            keys,
            teams,
            track,
            restarts: rules.rerun != InFlightPolicy::After,
            has_pace: rules.pace.is_some(),
            sparing,
            hooks,
            counted: RefCell::default(),
            crowd: Cell::new(CROWD),
            stale: RefCell::default(),
            lost: RefCell::default(),
            wrong: RefCell::default(),
            digest: RefCell::default(),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(super) fn pick(&self, below: u32) -> u32 {
        self.rng.borrow_mut().u32(..below.max(1))
    }

    /// Hashes an event, so that two runs can be compared.
    pub(super) fn note(&self, what: impl Hash) {
        what.hash(&mut *self.digest.borrow_mut());
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest.borrow().finish()
    }

    /// Records a difference between the queue and the model. The difference is reported only after the step, because a
    /// panic inside a task would look like a panic of the task.
    pub(super) fn expect<T: PartialEq + std::fmt::Debug>(&self, what: &str, queue: T, model: T) {
        if queue != model {
            let wrong = format!("{what}: the queue says {queue:?}, the model {model:?}");
            self.wrong.borrow_mut().get_or_insert(wrong);
        }
    }

    /// Saves, loads and replays the recording of the queue, if it has one. The replay must end in the state of the
    /// queue.
    pub(super) fn replay(&self) -> Result<(), String> {
        let Some(recording) = self.queue.recording() else { return Ok(()) };
        let loaded: Recording =
            recording.to_string().parse().map_err(|error| format!("the recording: {error}"))?;
        let mut replay = loaded.replay();
        if let Some(Err(difference)) = replay.find(Result::is_err) {
            return Err(format!("the replay: {difference}\n{recording}"));
        }
        if recording.lost_events() == 0 {
            self.expect("totals of the replay", self.queue.totals(), replay.queue().totals());
            self.expect("states of the replay", self.queue.states(), replay.queue().states());
        }
        Ok(())
    }

    // --- Operations -----------------------------------------------------------------------------

    pub(super) fn add(&self, key: u32, request: AddRequest) {
        self.note((0, key, format!("{request:?}")));
        let queue = self.queue.add_with(key, request.to_add());
        let model = self.model.borrow_mut().add(&key, team(key, self.teams), &request, self.now());
        self.expect("add", queue, model);
        if request.merge == Merge::Exactly && queue.is_accepted() {
            self.forgotten(key);
        }
    }

    pub(super) fn add_all(&self, keys: &[u32]) {
        self.note((7, keys));
        let queue = self.queue.add_all(keys.iter().copied());
        let (mut model, now) = (self.model.borrow_mut(), self.now());
        let mut add =
            |key: &u32| model.add(key, team(*key, self.teams), &AddRequest::default(), now);
        let taken = keys.iter().filter(|key| add(key).is_accepted()).count();
        self.expect("add_all", queue, taken);
    }

    /// Adds many keys of one team that become due at the same time, and three keys of another team
    /// that become due 1 ns later. In two of three cases, the clock then advances past these times
    /// before any other operation.
    pub(super) fn add_crowd(&self, one: u32) {
        self.catch_up();
        let other = self.pick(self.teams);
        let delay = Duration::from_millis(self.pick(5_000).into());
        let many = 200 + self.pick(400);
        for n in 0..many + 3 {
            let (team, moment) = if n < many { (one, 0) } else { (other, 1) };
            let when = When::After(delay + Duration::from_nanos(moment));
            self.add_new(team, AddRequest { when, ..AddRequest::default() });
        }
        if self.pick(3) > 0 {
            self.note((3, delay));
            self.clock.advance(delay + Duration::from_secs(1));
        }
    }

    /// Adds a key of `team` that was not used before.
    pub(super) fn add_new(&self, team: u32, request: AddRequest) {
        let first = self.crowd.get().next_multiple_of(self.teams);
        self.crowd.set(first + self.teams);
        self.add(first + team, request);
    }

    /// Returns all keys that were used.
    pub(super) fn all_keys(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.keys).chain(CROWD..self.crowd.get())
    }

    pub(super) fn add_rate_limited(&self, key: u32) {
        let queue = self.queue.add_rate_limited(key);
        if !queue.is_accepted() {
            self.expect("an add is refused", self.model.borrow().ending() > Ending::Open, true);
            return;
        }
        self.failed(key);
        let after = When::After(self.said());
        let request = AddRequest { when: after, failed: true, ..AddRequest::default() };
        let model = self.model.borrow_mut().add(&key, team(key, self.teams), &request, self.now());
        self.expect("add_rate_limited", queue, model);
    }

    pub(super) fn said(&self) -> Duration {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).delay
    }

    /// Counts a failure of `key`, for which the limiter was called.
    pub(super) fn failed(&self, key: u32) {
        if !self.said.lock().unwrap_or_else(PoisonError::into_inner).panicked {
            *self.counted.borrow_mut().entry(key).or_default() += 1;
        }
    }

    /// Resets the count of the failures of `key`, which were forgotten.
    pub(super) fn forgotten(&self, key: u32) {
        self.counted.borrow_mut().remove(&key);
    }

    pub(super) fn cancel(&self, key: u32) {
        self.note((1, key));
        let queue = self.queue.cancel(&key);
        self.promote();
        let model = self.model.borrow_mut().cancel(&key);
        if model.is_some() {
            self.forgotten(key);
        }
        self.expect("cancel", queue, model.unwrap_or_default());
    }

    pub(super) fn cancel_running(&self, key: u32) {
        self.note((8, key));
        let queue = self.queue.cancel_running(&key);
        self.promote();
        let (model, _) = self.model.borrow_mut().cancel_running(&key);
        self.expect("cancel_running", queue, model);
    }

    /// Returns true if the delivery `epoch` was cancelled, directly before its completion.
    pub(super) fn is_cancelled(&self, epoch: u64) -> bool {
        if self.restarts {
            self.promote();
        }
        self.model.borrow().is_cancelled(epoch)
    }

    // --- Teams ----------------------------------------------------------------------------------

    /// Calls `on_queue` with the queue's handle of a team, if the queue has groups.
    fn on_team<T>(&self, team: u32, on_queue: impl FnOnce(Handle<'_>) -> T) -> Option<T> {
        self.queue.group(GroupId::new(team.into())).ok().map(on_queue)
    }

    pub(super) fn pause_team(&self, team: u32, paused: bool) {
        self.note((9, team, paused));
        let on_queue = |group: Handle<'_>| if paused { group.pause() } else { group.resume() };
        if self.on_team(team, on_queue).is_some() {
            if !paused {
                self.promote();
            }
            self.model.borrow_mut().pause_team(team.into(), paused);
        }
    }

    pub(super) fn cancel_team(&self, team: u32) {
        self.note((10, team));
        let Some(queue) = self.on_team(team, |group| group.cancel()) else { return };
        self.promote();
        let mut model = self.model.borrow_mut();
        for key in model.members(team.into()) {
            self.forgotten(key);
        }
        self.expect("cancelled keys of a team", queue, model.cancel_team(team.into()));
    }

    pub(super) fn cancel_running_team(&self, team: u32) {
        self.note((11, team));
        let Some(queue) = self.on_team(team, |group| group.cancel_running()) else { return };
        self.promote();
        let model = self.model.borrow_mut().cancel_running_team(team.into());
        self.expect("cancelled runs of a team", queue, model.len());
    }

    /// Returns a future that waits until no key of a team is in flight, if the queue has groups.
    pub(super) fn none_in_flight(&self, team: u32) -> Option<impl Future<Output = ()> + use<>> {
        self.on_team(team, |group| group.none_in_flight())
    }

    fn compare_team(&self, team: u32) {
        let read = |group: Handle<'_>| {
            let states = group.states();
            let states = TeamStates {
                ready: states.ready,
                waiting: states.waiting,
                backing_off: states.backing_off,
                in_flight: states.in_flight,
                dirty: states.dirty,
            };
            (states, group.is_paused())
        };
        if let Some(queue) = self.on_team(team, read) {
            let (model, team) = (self.model.borrow(), team.into());
            self.expect("a team", queue, (model.team_states(team), model.is_team_paused(team)));
        }
    }

    pub(super) fn forget(&self, key: u32) {
        self.queue.forget(&key);
        self.model.borrow_mut().forget(&key);
        self.forgotten(key);
    }

    pub(super) fn done(&self, key: u32) {
        let queue = self.queue.done(&key);
        let model = self.model.borrow_mut().done(&key, self.now());
        if let Some(key) = model.as_ref().filter(|ended| ended.lost).and_then(|ended| ended.key) {
            self.dropped(key);
        }
        self.expect("done", queue, model.is_some());
    }

    /// Checks that a ticket of a completed delivery has no effect on a later delivery.
    pub(super) fn use_stale(&self) {
        let which = self.pick(self.stale.borrow().len() as u32) as usize;
        if let Some(ticket) = self.stale.borrow().get(which) {
            self.expect("a stale ticket", self.queue.done_ticket(ticket.clone()), false);
        }
    }

    pub(super) fn pause(&self, paused: bool) {
        if paused {
            self.queue.pause()
        } else {
            self.queue.resume()
        }
        self.model.borrow_mut().pause(paused);
    }

    pub(super) fn close(&self) {
        self.queue.close();
        self.model.borrow_mut().end(Ending::Closed);
    }

    pub(super) fn shut_down(&self) {
        self.note(2);
        let lost = self.queue.shut_down();
        self.shut_down_model();
        self.lost.borrow_mut()[0].extend(lost);
    }

    pub(super) fn shut_down_model(&self) {
        self.promote();
        let lost = self.model.borrow_mut().end(Ending::ShutDown);
        for key in lost {
            self.dropped(key);
        }
    }

    /// Records that the model has dropped the run of `key`. The failures of the key are then forgotten, unless the key
    /// is in flight.
    fn dropped(&self, key: u32) {
        if self.model.borrow().failures(&key) == 0 {
            self.forgotten(key);
        }
        self.lost.borrow_mut()[1].insert(key);
    }

    /// Ends all waits for debounced adds, if at most one key waits for them. With more keys, the order in which they
    /// become ready would not be defined.
    pub(super) fn flush_debounced(&self) {
        self.catch_up();
        let is_bounded =
            |key: &u32| self.model.borrow().see(key).is_some_and(|seen| seen.bound.is_some());
        let keys: Vec<u32> = self.all_keys().filter(is_bounded).collect();
        if keys.len() > 1 {
            return;
        }
        self.note((12, &keys));
        let (queue, now) = (self.queue.flush_debounced(), self.now());
        let flush = |key: &&u32| self.model.borrow_mut().flush_debounced(key, now);
        let model = keys.iter().filter(flush).count();
        self.promote();
        self.expect("flush_debounced", queue, model);
    }

    /// Sets the clock to `at`, which may be earlier than now.
    pub(super) fn set_clock(&self, at: Time) {
        self.note((3, at));
        if !self.sparing || at < self.now() {
            self.catch_up();
        }
        self.clock.set(at);
        // After a crowd, more keys may be due than one operation makes ready. The queue's alarm
        // makes all these keys ready, but only if a getter waits, which the model does not know.
        if self.crowd.get() > CROWD {
            self.catch_up();
        }
    }

    /// Makes due keys ready on both sides.
    pub(super) fn catch_up(&self) {
        let _ = self.queue.len();
        self.promote();
    }

    pub(super) fn promote(&self) {
        self.model.borrow_mut().promote(self.now(), usize::MAX);
    }

    // --- Deliveries -----------------------------------------------------------------------------

    pub(super) fn handed_out(&self, item: &Item<'_, u32>) {
        self.note((4, **item, item.fencing_token(), self.now()));
        let asked = asked(item);
        let out = self.take();
        let out = out.map(|Out { key, epoch, asked, failures, .. }| (key, epoch, asked, failures));
        let queue = (**item, item.fencing_token(), asked, item.attempt() - 1);
        self.expect("delivery", Some(queue), out);
        let [model, _] = self.model.borrow().see_reasons(item);
        self.expect("reasons", SeenReasons::of_queue(&item.reasons()), model);
    }

    /// Takes a key if one is ready.
    pub(super) fn try_get(&self) -> Option<Item<'static, u32>> {
        let item = self.queue.try_get().map(Item::into_owned);
        if item.is_none() {
            self.took_nothing();
        }
        item
    }

    /// Checks, after a getter has returned without a key, that the model has no key either.
    pub(super) fn took_nothing(&self) {
        self.expect("no key", None, self.take().map(|out| out.key));
    }

    /// Delivers the model's next key, however many keys must become ready first.
    fn take(&self) -> Option<Out<u32>> {
        let (mut model, now) = (self.model.borrow_mut(), self.now());
        loop {
            let out = model.get(now);
            let more = !model.is_paused() && model.next_due().is_some_and(|due| due <= now);
            if out.is_some() || !more {
                return out;
            }
        }
    }

    /// Drops an item before its completion. While the limiter computes the delay of the key, the run may be cancelled,
    /// but this cancellation comes too late.
    pub(super) fn drop_item(&self, item: Item<'static, u32>) {
        let (queue, key) = (self.queue.clone(), *item);
        let late = Arc::new(Mutex::new(None));
        if self.pick(2) == 0 {
            let late = Arc::clone(&late);
            let cancel = move || *lock(&late) = Some(queue.cancel_running(&key));
            lock(&self.said).before = Some(Box::new(cancel));
        }
        drop(item);
        lock(&self.said).before = None;
        let late = lock(&late).take();
        if let Some(late) = late {
            self.expect("a cancellation of a dropped item", late, CancelledRun::NotInFlight);
        }
    }

    pub(super) fn finished(&self, epoch: u64, how: How, asked: Asked) {
        self.note((5, epoch, format!("{how:?}")));
        let ended = self.model.borrow_mut().finish(epoch, how, asked, self.now());
        if let Some(key) = ended.filter(|ended| ended.lost).and_then(|ended| ended.key) {
            self.dropped(key);
        }
    }

    // --- Comparing ------------------------------------------------------------------------------

    pub(super) fn compare(&self) {
        self.catch_up();
        let (queue, model) = (&self.queue, self.model.borrow());
        let counts = |what, queue: usize, model: usize| self.expect(what, queue, model);
        counts("len", queue.len(), model.len());
        counts("depth", queue.sample().depth, model.ready_and_dirty());
        counts("waiting", queue.waiting(), model.waiting());
        counts("in flight", queue.states().in_flight, model.in_flight());
        counts("known", queue.records(), model.known());
        self.expect("paused", queue.is_paused(), model.is_paused());
        let sample = queue.sample();
        let histograms = sample.times;
        let of_model = model.tally();
        let (consecutive, queued, worked) = match self.track {
            true => (sample.consecutive.counts, histograms.queued.sum, histograms.worked.sum),
            false => (of_model.consecutive, of_model.queued, of_model.worked),
        };
        let tally = Tally::of(&sample.totals, consecutive, (queued, worked));
        self.expect("counts", tally, model.tally());
        if let Some(hooks) = &self.hooks {
            self.expect("calls of the hooks", hooks.told(), events(&model));
        }
        (0..self.teams).for_each(|team| self.compare_team(team));
        for key in 0..self.keys {
            let counted = self.counted.borrow().get(&key).copied().unwrap_or(0);
            self.expect("num_requeues", queue.num_requeues(&key), counted);
            // The limiter must not count failures of a key without a record, because `cancel` could not forget these
            // failures.
            let is_forgotten = counted == 0 || model.failures(&key) > 0;
            self.expect("the limiter counts only the failures in the record", is_forgotten, true);
            let known = model.see(&key);
            let known = known.map(|seen| Seen { since: seen.since.filter(|_| self.track), ..seen });
            let entry = queue.look_up(&key).map(|entry| Seen::of(&entry, known).at(self.now()));
            let known = known.map(|seen| seen.at(self.now()));
            self.expect("snapshot of a key", entry, known);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn asked(item: &Item<'_, u32>) -> Asked {
    Asked { adds: item.adds(), flags: item.flags(), priority: item.priority() }
}

const fn team(key: u32, teams: u32) -> Team {
    let id = key % teams;
    Team { id: id as u64, weight: id % 3 + 1 }
}

fn group(key: u32, teams: u32) -> GroupId {
    let Team { id, weight } = team(key, teams);
    GroupId::new(id).weight(weight)
}
