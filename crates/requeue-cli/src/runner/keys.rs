//! The keys of a run: the queue, and the state per key that the queue does not have.
//!
//! The queue decides which key starts next, and when a certain key may start. The rate decides when any key may start.
//! The keys of a queue in a store are leased one by one, and are in the local queue from their lease to
//! the end of their run. Therefore, if the lease of a key is lost and the key is leased again, it waits until its
//! command here has exited.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
use crate::runner::remote::{Job, Leases, RemoteQueue};
use crate::runner::retries::{FailingKeys, Verdict};
use crate::runner::room::Room;
use crate::serve::Metrics;

/// The keys of a run.
#[derive(Debug)]
pub(super) struct Keys {
    queue: KeyQueue,
    failing: FailingKeys,
    times: Times,
    /// True after the end of the input. Then no key waits for `times`.
    input_ended: AtomicBool,
    rate: Option<Rate>,
    leases: Option<Leases>,
    room: Room,
    max_keys: usize,
    /// The order of the output, with `--keep-order`.
    order: Option<OutputOrder>,
}

impl Keys {
    /// Must be called in a runtime.
    pub(super) fn new(
        config: &Config,
        metrics: Option<&Metrics>,
        remote: Option<Arc<dyn RemoteQueue>>,
    ) -> Result<Self, Refusal> {
        let (failures, pacing) = (&config.failures, &config.pacing);
        // A random seed.
        let seed = RandomState::new().build_hasher().finish();
        // A queue in a store has its own metrics.
        let metrics = metrics.filter(|_| remote.is_none());
        let queue = pacing.queue(config.name, failures.re_add, metrics);
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

    pub(super) const fn queue(&self) -> &KeyQueue {
        &self.queue
    }

    /// Returns the leases, if the keys come from a queue in a store.
    pub(super) const fn leases(&self) -> Option<&Leases> {
        self.leases.as_ref()
    }

    pub(super) const fn order(&self) -> Option<&OutputOrder> {
        self.order.as_ref()
    }

    // --- Adding ----------------------------------------------------------------------------------

    pub(super) fn add(&self, key: &[u8], options: AddOptions) -> Added {
        let window = options.debounce.or_else(|| self.window(key));
        let add = match (options.after, window) {
            (Some(after), _) => Add::after(after),
            (None, Some(Debounce { quiet, most })) => Add::debounce(quiet).at_most(most),
            (None, None) => Add::now(),
        };
        let added = self.queue_add(key, add.merge(options.merge).priority(options.priority));
        // The input may have ended after the window was read, and the flush may have missed this add.
        if window.is_some() && options.debounce.is_none() && self.has_input_ended() {
            self.queue.flush_debounced();
        }
        added
    }

    /// Returns the quiet time and the bound of an add of `key` under `--delay` and `--debounce`. Returns `None` if
    /// it need not wait.
    fn window(&self, key: &[u8]) -> Option<Debounce> {
        if self.has_input_ended() {
            return None;
        }
        self.times.window(|| self.window_wait(key))
    }

    fn has_input_ended(&self) -> bool {
        self.input_ended.load(Ordering::SeqCst)
    }

    /// Returns the time until the end of the wait of a key for further debounced adds.
    fn window_wait(&self, key: &[u8]) -> Option<Duration> {
        let entry = self.queue.look_up(key).filter(|entry| entry.bound.is_some())?;
        Some(entry.due?.since(self.queue.now()))
    }

    fn queue_add(&self, key: &[u8], add: Add) -> Added {
        self.queue.add_ref_with(key, add, |key| key.into())
    }

    /// Cancels the pending run of a key, and forgets its failures. Returns true if there was a run.
    pub(super) fn cancel(&self, key: &[u8]) -> bool {
        let cancelled = self.queue.cancel(key).any();
        self.failing.forget(key);
        // A key in flight keeps its place.
        if self.queue.look_up(key).is_none() {
            self.over(key);
        }
        cancelled
    }

    /// Makes a waiting key ready. Its failures still count. Returns false if that is refused.
    pub(super) fn run_now(&self, key: &[u8], priority: i32) -> bool {
        self.queue_add(key, Add::now().merge(requeue::Merge::Exactly).priority(priority))
            .is_accepted()
    }

    /// Forgets the failures of a key.
    pub(super) fn forget_failures(&self, key: &[u8]) {
        self.failing.forget(key);
    }

    /// Forgets the failures and the backoff of a key.
    #[cfg(feature = "kube")]
    pub(super) fn end_backoff(&self, key: &[u8]) {
        self.queue.forget(&key.into());
        self.failing.forget(key);
    }

    /// Waits until there is space for `key`, the key is already held, or the run stops. Calls `on_wait` before the first
    /// wait. Returns the number of held keys.
    pub(super) fn make_room(
        &self,
        key: &[u8],
        is_stopping: impl Fn() -> bool,
        on_wait: impl FnOnce(usize),
    ) -> usize {
        let held = || self.queue.len() + self.queue.waiting() + self.queue.states().in_flight;
        let is_full =
            || held() >= self.max_keys && !is_stopping() && self.queue.look_up(key).is_none();
        if is_full() && self.room.is_first_wait() {
            on_wait(self.max_keys);
        }
        self.room.wait_while(is_full);
        held()
    }

    pub(super) const fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Ends the waits of `--delay` and `--debounce`, also for later adds, and of the `debounce` of JSON records. Called
    /// at the end of the input.
    pub(super) fn end_of_input(&self) {
        // The flag comes before the flush, so that no later add waits.
        self.input_ended.store(true, Ordering::SeqCst);
        self.queue.flush_debounced();
    }

    /// Closes the queue: no more keys are added.
    pub(super) fn close(&self) {
        match &self.leases {
            None => self.queue.close(),
            Some(leases) => leases.close(),
        }
        self.rate.iter().for_each(Rate::changed);
    }

    // --- Runs ------------------------------------------------------------------------------------

    /// Waits for the next key that may start. Returns `None` when there will be no more keys.
    pub(super) async fn next(&self) -> Option<Job> {
        // Two slots must not exchange the places of their keys.
        let _turn = match &self.order {
            Some(order) => Some(order.turn().await),
            None => None,
        };
        // The slot takes a turn before it takes a key. A key that waits for a turn is thus still in the queue,
        // where adds of it are coalesced.
        let turn = match &self.rate {
            Some(rate) => Some(rate.turn(&self.queue).await?),
            None => None,
        };
        if let Some(leases) = &self.leases {
            leases.lease_into(&self.queue).await?;
        }
        let item = self.queue.get().await.map(Item::into_owned)?;
        self.order.iter().for_each(|order| order.start(&item));
        // The command has not started, and perhaps none is needed.
        item.uncount_start();
        let lease = self.leases.as_ref().and_then(|leases| leases.take(&item));
        if let Some(turn) = turn {
            turn.take(self.queue.now());
        }
        Some(Job { item, lease })
    }

    /// Records the start of a run. Returns its attempt, and the number of adds that it serves.
    pub(super) fn start(&self, Job { item, lease }: &Job) -> (Past, u32) {
        item.count_start();
        match lease {
            Some(lease) => (Past { attempt: lease.attempt(), last_exit: None }, lease.adds()),
            None => (self.failing.past(item), item.adds()),
        }
    }

    pub(super) fn past(&self, key: &[u8]) -> Past {
        self.failing.past(key)
    }

    /// Completes a key. It runs again only if it was re-added.
    pub(super) fn succeed(&self, item: Item<'static, Key>) {
        self.over(&item);
        self.failing.forget(&item);
        item.succeed();
    }

    /// Completes a key after its last failure. If it was re-added, it runs again without failures.
    pub(super) fn give_up(&self, item: Item<'static, Key>) {
        self.over(&item);
        self.failing.forget(&item);
        item.complete(Completion::GiveUp);
    }

    /// Completes a run that was cancelled.
    pub(super) fn end_cancelled(&self, item: Item<'static, Key>) {
        self.over(&item);
        item.complete(Completion::Cancelled);
    }

    fn over(&self, key: &[u8]) {
        self.order.iter().for_each(|order| order.over(key));
    }

    /// Retries a key, or returns it to the caller after its last retry.
    pub(super) fn fail(&self, item: Item<'static, Key>, exit: i32) -> Verdict {
        self.failing.fail(item, exit, self.queue.now())
    }

    /// Must be called when a key has left the queue or the run stops.
    pub(super) fn changed(&self) {
        self.room.changed();
        self.rate.iter().for_each(Rate::changed);
    }

    // --- The end ---------------------------------------------------------------------------------

    /// Stops deliveries and adds. The queue keeps its keys.
    pub(super) fn stop(&self) {
        self.queue.pause();
        self.queue.close();
    }

    /// Shuts the queue down. Returns the number of keys that have not run.
    pub(super) fn shut_down(&self) -> usize {
        self.queue.shut_down().len()
    }
}
