//! The keys of a run: the queue, and the additional state of each key.
//!
//! The queue decides which key starts next, and when each key may start. The rate limits the starts of all keys
//! together. The keys of a queue in a store are leased one by one, and are in the local queue from their lease to the
//! end of their run. If a lease is lost and its key is leased again, the key therefore waits until its command in this
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

/// The keys of a run.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) queue: KeyQueue,
    pub(super) failing: FailingKeys,
    times: Times,
    /// True after the end of the input. After that, no key waits for `times`.
    input_ended: AtomicBool,
    rate: Option<Rate>,
    /// The leases, if the keys come from a queue in a store or at a server.
    pub(super) leases: Option<Leases>,
    room: Room,
    pub(super) max_keys: usize,
    /// The order of the output, with `--keep-order`.
    pub(super) order: Option<OutputOrder>,
}

impl Keys {
    /// The caller must be in a runtime.
    pub(super) fn new(
        config: &Config,
        metrics: Option<&Metrics>,
        remote: Option<Remote>,
    ) -> Result<Self, Refusal> {
        let (failures, pacing) = (&config.failures, &config.pacing);
        // The hash of an empty input is a random seed.
        let seed = RandomState::new().build_hasher().finish();
        // The metrics of a queue in a store are separate, and its dashboard does not show the events of the local
        // queue.
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
        // The input may have ended after the window was computed, so that the flush has missed this add.
        if window.is_some() && options.debounce.is_none() && self.has_input_ended() {
            self.queue.flush_debounced();
        }
        added
    }

    /// Returns the quiet time and the bound of an add of `key` under `--delay` and `--debounce`. Returns `None` if the
    /// key need not wait.
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

    /// Cancels the pending run of a key, and forgets its failures. Returns true if there was a run.
    pub(super) fn cancel_key(&self, key: &[u8]) -> bool {
        let cancelled = self.queue.cancel(key).any();
        self.failing.forget_key(key);
        // A key in flight keeps its place in the output.
        if self.queue.look_up(key).is_none() {
            self.end_place(key);
        }
        cancelled
    }

    /// Waits until there is space for `key`, the key is already held, or the run stops. Calls `on_wait` before the first
    /// wait. Returns the number of held keys.
    pub(super) fn make_room(
        &self,
        key: &[u8],
        is_stopping: impl Fn() -> bool,
        on_wait: impl FnOnce(usize),
    ) -> usize {
        let held = || self.queue.states().total();
        // The key is looked up last, because most calls need no lookup.
        let is_full =
            || held() >= self.max_keys && !is_stopping() && self.queue.look_up(key).is_none();
        if is_full() && self.room.is_first_wait() {
            on_wait(self.max_keys);
        }
        self.room.wait_while(is_full);
        held()
    }

    /// At the end of the input, ends the waits of `--delay` and `--debounce`, even for later adds, and of the
    /// `debounce` of JSON records.
    pub(super) fn end_of_input(&self) {
        // The flag is set before the flush, so that no later add waits.
        self.input_ended.store(true, Ordering::SeqCst);
        self.queue.flush_debounced();
    }

    /// Closes the queue, to which no more keys can be added.
    pub(super) fn close_queue(&self) {
        match &self.leases {
            None => self.queue.close(),
            Some(leases) => leases.remote.shut_down_when_idle(),
        }
        // A slot that waits for its turn must notice that no key is left.
        self.rate.iter().for_each(Rate::notify_changed);
    }

    // --- Runs ------------------------------------------------------------------------------------

    /// Waits for the next key that may start. Returns `None` when no more keys will come.
    pub(super) async fn next_job(&self) -> Option<Job> {
        // The lock prevents two slots from exchanging the places of their keys.
        let _turn = match &self.order {
            Some(order) => Some(order.wait_for_turn().await),
            None => None,
        };
        // The slot takes a turn before it takes a key. A key that waits for a turn is thus still in the queue,
        // where adds of it are coalesced.
        let turn = match &self.rate {
            Some(rate) => Some(rate.wait_for_turn(&self.queue).await?),
            None => None,
        };
        if let Some(leases) = &self.leases {
            leases.lease_into(&self.queue).await?;
        }
        let item = self.queue.get().await.map(Item::into_owned)?;
        self.order.iter().for_each(|order| order.give_place(&item));
        // The start is counted later, because the run may not be needed.
        item.uncount_start();
        // The lease is present, because it was stored under the same lock as the key.
        let lease = self.leases.as_ref().and_then(|leases| leases.take_lease(&item));
        if let Some(turn) = turn {
            turn.use_up(self.queue.now());
        }
        Some(Job { item, lease })
    }

    /// Records the start of a run. Returns the attempt of the run, and the number of adds that the run serves.
    pub(super) fn record_start(&self, Job { item, lease }: &Job) -> (Past, u32) {
        item.count_start();
        match lease {
            Some(lease) => (Past { attempt: lease.attempt(), last_exit: None }, lease.adds()),
            None => (self.failing.past_of(item), item.adds()),
        }
    }

    /// Completes a key. The key runs again only if it was re-added.
    pub(super) fn succeed(&self, item: Item<'static, Key>) {
        // The state of the key is removed before the completion, after which the key may start again as a new key.
        self.end_place(&item);
        self.failing.forget_key(&item);
        item.succeed();
    }

    /// Completes a key after its last failure. If the key was re-added, it runs again without failures.
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

    /// The caller must call this after a key has left the queue, and when the run stops.
    pub(super) fn notify_changed(&self) {
        self.room.notify_changed();
        self.rate.iter().for_each(Rate::notify_changed);
    }

    // --- The end ---------------------------------------------------------------------------------

    /// Stops deliveries and adds. The queue keeps its keys.
    pub(super) fn stop(&self) {
        // The queue is paused first, so that no slot takes a key between the two calls.
        self.queue.pause();
        self.queue.close();
    }
}
