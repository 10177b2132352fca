//! The keys that this process holds. One task renews their leases together, each time a third of the lease duration has
//! passed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::engine::defaults::MAX_BATCH;
use crate::engine::outage::Part;
use crate::engine::{Engine, Place, Renewed, by_shard, lock};
use crate::types::error::{EngineError, Kind};
use crate::types::key::Key;

/// The interval of polls for cancelled runs. When a poll detects a cancellation, a renewal follows immediately.
/// Therefore, a worker learns of a cancelled run within a second.
const POLL: Duration = Duration::from_millis(500);
/// The timeout of a poll for cancelled runs.
const ANSWERING: Duration = Duration::from_secs(2);

/// The program that renews a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewer {
    ThisProcess,
    /// Another program renews the lease. Its leases can last longer than the leases of this process, so a renewal by
    /// this process could shorten the lease.
    Client,
}

/// A key that this process has claimed.
#[derive(Debug)]
struct Held {
    key: Key,
    renewer: Renewer,
    /// The time until which this process certainly has the lease, by the clock of this process. The lease is measured
    /// from the moment at which the request was sent.
    deadline: Instant,
    /// The time of the delivery to a worker, or `None` before the delivery.
    since: Option<Instant>,
    lost: CancellationToken,
    /// This token is cancelled when the run is cancelled.
    cancelled: CancellationToken,
    /// True if the worker has completed the delivery, but the engine has not recorded the completion yet. During an
    /// outage, for example, the engine may need a long time for it.
    is_ending: bool,
}

impl Held {
    fn note_loss(&self) {
        if !self.is_ending {
            self.lost.cancel();
        }
    }
}

/// The signals to the worker of a delivery.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals {
    pub(crate) lost: CancellationToken,
    pub(crate) cancelled: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct Leases {
    lease: Duration,
    held: Mutex<HashMap<i64, Held>>,
    /// Wakes the renewing task when the process claims its first key, and when this value is dropped.
    begun: Arc<Notify>,
    /// Wakes the calls of [`settled`](Self::settled) when this process no longer holds a key.
    over: Notify,
}

/// The lease of a completion that the engine has not recorded yet. The lease is renewed until this value is dropped.
#[derive(Debug)]
pub(crate) struct Ending {
    leases: Arc<Leases>,
    epoch: i64,
}

impl Ending {
    /// Returns the time until which the completion can be sent, or `None` if the lease is lost.
    pub(crate) fn send_deadline(&self) -> Option<Instant> {
        let deadline = lock(&self.leases.held).get(&self.epoch)?.deadline;
        (deadline > Instant::now()).then_some(deadline)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.leases.held).remove(&self.epoch);
        self.leases.over.notify_waiters();
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.begun.notify_one();
    }
}

impl Leases {
    /// Starts a task that renews the leases until this value is dropped.
    pub(crate) fn start_renewing(
        engine: Arc<dyn Engine>,
        place: Arc<Place>,
        lease: Duration,
    ) -> Arc<Self> {
        let begun = Arc::new(Notify::new());
        let (held, over) = (Mutex::default(), Notify::new());
        let leases = Arc::new(Self { lease, held, begun: Arc::clone(&begun), over });
        tokio::spawn(keep_leases(Arc::downgrade(&leases), begun, engine, place));
        leases
    }

    /// Adds a key whose lease lasts until `deadline`. The returned tokens are cancelled when the lease is lost, and
    /// when the run is cancelled. Returns `None` if this process already holds the delivery.
    pub(crate) fn hold_key(
        &self,
        key: Key,
        epoch: i64,
        deadline: Instant,
        renewer: Renewer,
    ) -> Option<Signals> {
        let signals = Signals::default();
        let Signals { lost, cancelled } = signals.clone();
        let held = Held { key, renewer, deadline, since: None, lost, cancelled, is_ending: false };
        let mut all = lock(&self.held);
        match all.entry(epoch) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => _ = place.insert(held),
        }
        // While this process holds no key, the task sleeps without a timer. Therefore, the first key must wake the
        // task.
        let is_first = all.len() == 1;
        // The lock is released before the notification, because the woken task may need it on another thread.
        drop(all);
        if is_first {
            self.begun.notify_one();
        }
        Some(signals)
    }

    /// Removes a key whose delivery this process leaves to another program.
    pub(crate) fn hand_over(&self, epoch: i64) {
        lock(&self.held).remove(&epoch);
        self.over.notify_waiters();
    }

    /// Records the delivery of the key to a worker. Returns false if the lease is lost.
    pub(crate) fn begin_run(&self, epoch: i64, now: Instant) -> bool {
        let mut all = lock(&self.held);
        // After the deadline, the engine may have delivered the key to another worker.
        let held = all.get_mut(&epoch).filter(|held| held.deadline > now);
        held.map(|held| held.since = Some(now)).is_some()
    }

    /// Begins the completion of a delivery. Returns `None` if the lease is lost.
    pub(crate) fn begin_completion(self: &Arc<Self>, epoch: i64) -> Option<Ending> {
        // After this line, the worker does not receive a signal if the lease is lost, because the run is over.
        lock(&self.held).get_mut(&epoch)?.is_ending = true;
        let ending = Ending { leases: Arc::clone(self), epoch };
        ending.send_deadline().is_some().then_some(ending)
    }

    /// Returns true if this process certainly has the lease now. This is also correct if the task that renews leases
    /// was delayed.
    pub(crate) fn is_held(&self, epoch: i64) -> bool {
        lock(&self.held).get(&epoch).is_some_and(|held| held.deadline > Instant::now())
    }

    pub(crate) const fn duration(&self) -> Duration {
        self.lease
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.held).values().filter(|held| !held.is_ending).count()
    }

    /// Returns the time since the delivery to a worker, for each run in flight.
    pub(crate) fn run_ages(&self) -> Vec<Duration> {
        let now = Instant::now();
        let held = lock(&self.held);
        let held = held.values().filter(|held| !held.is_ending);
        held.filter_map(|held| held.since.map(|since| now - since)).collect()
    }

    /// Waits until the engine has recorded each completion, or the lease of the completion is lost.
    pub(crate) async fn settled(&self) {
        loop {
            // The future receives notifications from its creation on, even before its first poll.
            let over = self.over.notified();
            if !lock(&self.held).values().any(|held| held.is_ending) {
                return;
            }
            over.await;
        }
    }

    /// Removes the keys whose leases have expired. Returns the earliest deadline of the other keys.
    fn expire_leases(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut all = lock(&self.held);
        all.retain(|_, held| {
            if held.deadline <= now {
                held.note_loss();
            }
            held.deadline > now
        });
        self.over.notify_waiters();
        all.values().map(|held| held.deadline).min()
    }

    /// Returns the keys whose leases this process renews.
    fn renewed_keys(&self) -> Vec<(Key, i64)> {
        let held = lock(&self.held);
        let renewed = held.iter().filter(|(_, held)| held.renewer == Renewer::ThisProcess);
        renewed.map(|(&epoch, held)| (held.key.clone(), epoch)).collect()
    }

    fn note_renewed(&self, held: &[(Key, i64)], answers: &[Renewed], since: Instant) {
        let mut all = lock(&self.held);
        for ((_, epoch), renewed) in held.iter().zip(answers) {
            match renewed {
                Renewed::Yes | Renewed::Cancelled => {
                    if let Some(held) = all.get_mut(epoch) {
                        // The lease is measured from the moment at which the request was sent. The engine's lease
                        // begins later, so this process never relies on an expired lease.
                        held.deadline = since + self.lease;
                        if *renewed == Renewed::Cancelled {
                            held.cancelled.cancel();
                        }
                    }
                }
                Renewed::Lost => {
                    if let Some(held) = all.remove(epoch) {
                        held.note_loss();
                    }
                }
                // The key is locked. The next renewal, before the lease expires, tries again.
                Renewed::Busy => {}
            }
        }
        self.over.notify_waiters();
    }
}

async fn keep_leases(
    leases: Weak<Leases>,
    begun: Arc<Notify>,
    engine: Arc<dyn Engine>,
    place: Arc<Place>,
) {
    let Some(lease) = leases.upgrade().map(|leases| leases.lease) else { return };
    // At a third of the lease duration, two consecutive renewals can fail before the lease expires.
    let every = lease / 3;
    let mut renewal = Instant::now() + every;
    let mut cancels = Cancels::new();
    loop {
        let Some(next) = leases.upgrade().map(|leases| leases.expire_leases()) else { return };
        let Some(next) = next else {
            begun.notified().await;
            renewal = Instant::now() + every;
            cancels.delay_poll();
            continue;
        };
        tokio::select! {
            () = sleep_until(renewal.min(next)) => {}
            changed = cancels.poll_changed(&*engine, &place) => {
                if changed {
                    // The process renews the leases immediately, because only the answer to a renewal names the
                    // cancelled run.
                    renewal = Instant::now();
                }
            }
            () = begun.notified() => continue,
        }
        if Instant::now() < renewal {
            continue;
        }
        renewal = Instant::now() + every;
        let Some(held) = leases.upgrade().map(|leases| leases.renewed_keys()) else { return };
        let since = Instant::now();
        let mut parts = JoinSet::new();
        for part in by_shard(&*engine, &place, held, |(key, _)| key) {
            let part =
                renew_part(leases.clone(), Arc::clone(&engine), Arc::clone(&place), part, since);
            // Each request has a timeout, so that it does not overlap with the next renewal of the same leases.
            parts.spawn(timeout_at(since + every, part));
        }
        // If a shard does not answer, the other shards are renewed nevertheless, and lost leases are reported in time.
        loop {
            // A lease can expire while its shard does not answer. The worker then receives a signal at the expiry.
            let next = leases.upgrade().and_then(|leases| leases.expire_leases());
            tokio::select! {
                renewed = parts.join_next() => match renewed {
                    None => break,
                    Some(Ok(Ok(()))) => {}
                    Some(_) => {
                        let fault = EngineError::unsure("leases were not renewed in time");
                        place.note_failure(Part::all_shards(&*engine, &place), &fault);
                    }
                },
                () = sleep_until(next.unwrap_or(renewal)) => {}
            }
        }
    }
}

/// Polls for cancelled runs while this process holds keys.
struct Cancels {
    next: Instant,
    /// The last answer to [`Engine::cancel_signal`].
    last: u64,
}

impl Cancels {
    fn new() -> Self {
        Self { next: Instant::now() + POLL, last: 0 }
    }

    /// Delays the next poll. Most runs complete before it, so that no poll is needed for them.
    fn delay_poll(&mut self) {
        self.next = Instant::now() + POLL;
    }

    /// Waits for the next poll, and returns true if a run may have been cancelled. The future can be dropped, and the
    /// call can be repeated.
    async fn poll_changed(&mut self, engine: &dyn Engine, place: &Place) -> bool {
        sleep_until(self.next).await;
        let found = timeout_at(self.next + ANSWERING, engine.cancel_signal(place)).await;
        // The next poll is scheduled after the answer, so that a slow store is not polled without an interval.
        self.next = Instant::now() + POLL;
        // A failed poll is ignored, because renewals report an outage.
        let Ok(Ok(found)) = found else { return false };
        std::mem::replace(&mut self.last, found) != found
    }
}

async fn renew_part(
    leases: Weak<Leases>,
    engine: Arc<dyn Engine>,
    place: Arc<Place>,
    held: Vec<(Key, i64)>,
    mut since: Instant,
) {
    let shard = held.first().map_or(0, |(key, _)| engine.shard_of(&place, key));
    let shard = Part::Shard(shard);
    for part in held.chunks(MAX_BATCH) {
        let Some(lease) = leases.upgrade().map(|leases| leases.lease) else { return };
        match engine.renew_leases(&place, part.to_vec(), lease).await {
            Ok(answers) => {
                place.note_answer(|| shard);
                let Some(leases) = leases.upgrade() else { return };
                leases.note_renewed(part, &answers, since);
            }
            Err(fault) if fault.kind == Kind::Dropped => {
                let Some(leases) = leases.upgrade() else { return };
                leases.note_renewed(part, &vec![Renewed::Lost; part.len()], since);
            }
            Err(fault) => {
                place.note_failure(shard, &fault);
            }
        }
        // The next request is sent now, and the leases in it begin at this time.
        since = Instant::now();
    }
}
