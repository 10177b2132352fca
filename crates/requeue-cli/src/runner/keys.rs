//! The keys that the program works on: the queue, and the data about each key that the queue does not contain.
//!
//! The queue decides which key starts next, and the earliest time of each start. `rate` limits the starts of all keys
//! together. A key of a remote queue is leased by itself, and is in the local queue from its lease to the end of its
//! run. If this process loses a lease and leases the same key again, the key waits until its earlier command in this
//! process has exited.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use requeue::{Add, Added, Completion, Item};

use crate::args::config::Config;
use crate::args::pacing::Times;
use crate::duration::Debounce;
use crate::exit::Refusal;
use crate::input::AddOptions;
use crate::key::{Key, KeyQueue};
use crate::process::run_input::Past;
use crate::runner::order::OutputOrder;
use crate::runner::rate::Rate;
use crate::runner::remote::{Job, Leases, Remote};
use crate::runner::retries::FailingKeys;
use crate::runner::room::Room;
use crate::serve::Metrics;

/// The keys that the program works on.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) queue: KeyQueue,
    pub(super) failing: FailingKeys,
    times: Times,
    /// True after the end of the input. After that, no key waits for the delays in `times`.
    input_ended: AtomicBool,
    rate: Option<Rate>,
    /// The leases, if the keys come from a queue in a store or at a server.
    pub(super) leases: Option<Leases>,
    room: Room,
    pub(super) max_keys: usize,
    /// The order of the output, if `--keep-order` is set.
    pub(super) order: Option<OutputOrder>,
}

impl Keys {
    /// Creates the queue. The caller must be inside a Tokio runtime.
    pub(super) fn new(
        config: &Config,
        metrics: Option<&Metrics>,
        remote: Option<Remote>,
    ) -> Result<Self, Refusal> {
        let (failures, pacing) = (&config.failures, &config.pacing);
        // Each `RandomState` has random keys, so the hash of an empty input is a random seed.
        let seed = RandomState::new().build_hasher().finish();
        // A queue in a store has its own metrics, and its dashboard does not show the events of the local queue. The
        // local queue therefore has neither metrics nor a recording.
        let metrics = metrics.filter(|_| remote.is_none());
        let recording = if remote.is_none() { config.recording } else { None };
        let queue = pacing.build_queue(config.name, failures.re_add, metrics, recording);
        let queue = queue.map_err(|error| Refusal::failure(error.to_string()))?;
        Ok(Self {
            failing: FailingKeys::new(
                failures.retries,
                failures.base_delay,
                failures.max_delay,
                seed,
            ),
            times: pacing.times,
            input_ended: AtomicBool::new(false),
            rate: pacing.rate.map(|(every, burst)| Rate::new(every, burst)),
            leases: remote.map(Leases::new),
            room: Room::default(),
            max_keys: config.input.max_keys,
            order: config.commands.keep_order.then(OutputOrder::default),
            queue,
        })
    }

    // --- Adding ----------------------------------------------------------------------------------

    pub(super) fn add_key(&self, key: &[u8], options: AddOptions) -> Added {
        let window = options.debounce.or_else(|| self.wait_window(key));
        let add = match (options.after, window) {
            (Some(after), _) => Add::after(after),
            (None, Some(Debounce { quiet, most })) => Add::debounce(quiet).at_most(most),
            (None, None) => Add::now(),
        };
        let add = add.merge(options.merge).priority(options.priority);
        let add = options.reason.map_or(add, |reason| add.reason(reason));
        let added = self.queue.add_ref_with(key, add, |key| key.into());
        // The input may have ended after `wait_window` was called. In that case, `end_of_input` has not flushed this
        // add, so it is flushed here.
        if window.is_some() && options.debounce.is_none() && self.has_input_ended() {
            self.queue.flush_debounced();
        }
        added
    }

    /// Returns the quiet time and the bound of an add of `key`, under `--delay` and `--debounce`. Returns `None` if
    /// the key does not have to wait.
    fn wait_window(&self, key: &[u8]) -> Option<Debounce> {
        if self.has_input_ended() {
            return None;
        }
        self.times.debounce_window(|| {
            let entry = self.queue.look_up(key).filter(|entry| entry.bound.is_some())?;
            Some(entry.due?.since(self.queue.now()))
        })
    }

    pub(super) fn has_input_ended(&self) -> bool {
        self.input_ended.load(Ordering::SeqCst)
    }

    /// Cancels the pending run of a key, and forgets its failures. Returns true if a run was pending.
    pub(super) fn cancel_key(&self, key: &[u8]) -> bool {
        let cancelled = self.queue.cancel(key).any();
        self.failing.forget_key(key);
        // The output of a key in flight keeps its place until the run ends.
        if self.queue.look_up(key).is_none() {
            self.end_place(key);
        }
        cancelled
    }

    /// Waits until there is space for `key`, the queue already contains `key`, or the program stops. Calls `on_wait`
    /// before the first wait of the program. Returns the number of held keys.
    pub(super) fn make_room(
        &self,
        key: &[u8],
        is_stopping: impl Fn() -> bool,
        on_wait: impl FnOnce(usize),
    ) -> usize {
        let held = || self.queue.states().total();
        // The lookup is the last condition, because most calls find space and need no lookup.
        let is_full =
            || held() >= self.max_keys && !is_stopping() && self.queue.look_up(key).is_none();
        if is_full() && self.room.is_first_wait() {
            on_wait(self.max_keys);
        }
        self.room.wait_while(is_full);
        held()
    }

    /// Ends the waits of `--delay`, of `--debounce` and of the `debounce` field of JSON records, at the end of the
    /// input. Adds after this call do not wait for `--delay` or `--debounce` either.
    pub(super) fn end_of_input(&self) {
        // The flag is set before the flush. An add that the flush misses then sees the flag, and does not wait.
        self.input_ended.store(true, Ordering::SeqCst);
        self.queue.flush_debounced();
    }

    /// Closes the queue. After this call, no key can be added.
    pub(super) fn close_queue(&self) {
        match &self.leases {
            None => self.queue.close(),
            Some(leases) => leases.remote.shut_down_when_idle(),
        }
        // A slot that waits for the rate must notice that no key is left.
        self.rate.iter().for_each(Rate::notify_changed);
    }

    // --- Runs ------------------------------------------------------------------------------------

    /// Waits for the next key that may start. Returns `None` when no more keys will come.
    pub(super) async fn next_job(&self) -> Option<Job> {
        // Without the lock, a slot could give its key a place after another slot took a later key and gave it a place.
        let _turn = match &self.order {
            Some(order) => Some(order.wait_for_turn().await),
            None => None,
        };
        // The slot waits for the rate before it takes a key. During the wait, the key is still in the queue, where
        // adds of it coalesce.
        let turn = match &self.rate {
            Some(rate) => Some(rate.wait_for_turn(&self.queue).await?),
            None => None,
        };
        if let Some(leases) = &self.leases {
            leases.lease_into(&self.queue).await?;
        }
        let item = self.queue.get().await.map(Item::into_owned)?;
        self.order.iter().for_each(|order| order.give_place(&item));
        // The queue has counted a start at the delivery. `record_start` counts it again when the command is about to
        // run, because some deliveries need no run.
        item.uncount_start();
        // `lease_into` stores the lease under the same lock as it adds the key, so the lease exists.
        let lease = self.leases.as_ref().and_then(|leases| leases.take_lease(&item));
        if let Some(turn) = turn {
            turn.use_up(self.queue.now());
        }
        Some(Job { item, lease })
    }

    /// Records the start of a run. Returns the attempt number and last exit code of the key, and the number of adds
    /// that the run serves.
    pub(super) fn record_start(&self, Job { item, lease }: &Job) -> (Past, u32) {
        item.count_start();
        match lease {
            Some(lease) => (Past { attempt: lease.attempt(), last_exit: None }, lease.adds()),
            None => (self.failing.past_of(item), item.adds()),
        }
    }

    /// Completes a key after a success. The key runs again only if it was re-added during the run.
    pub(super) fn succeed(&self, item: Item<'static, Key>) {
        // After the completion, the key may start again as a new key. Its place and its failures are therefore removed
        // before the completion.
        self.end_place(&item);
        self.failing.forget_key(&item);
        item.succeed();
    }

    /// Completes a key after its last failure. If the key was re-added during the run, it runs again, with no
    /// failures.
    pub(super) fn give_up(&self, item: Item<'static, Key>) {
        self.end_place(&item);
        self.failing.forget_key(&item);
        item.complete(Completion::GiveUp);
    }

    /// Completes a run that was cancelled.
    pub(super) fn end_cancelled(&self, item: Item<'static, Key>) {
        self.end_place(&item);
        item.complete(Completion::Cancelled);
    }

    fn end_place(&self, key: &[u8]) {
        self.order.iter().for_each(|order| order.end_place(key));
    }

    /// Wakes the tasks that wait for space or for the rate. The caller must call this after a key has left the queue,
    /// and when the program stops.
    pub(super) fn notify_changed(&self) {
        self.room.notify_changed();
        self.rate.iter().for_each(Rate::notify_changed);
    }

    // --- The end ---------------------------------------------------------------------------------

    /// Stops deliveries and adds. The keys stay in the queue.
    pub(super) fn stop(&self) {
        // The queue is paused before it is closed. A slot can then take no key between the two calls.
        self.queue.pause();
        self.queue.close();
    }
}
