//! Checks the queue in memory with the conformance test of the engines. The test sets the queue's clock. This module
//! keeps the leases, because the queue in memory has none.

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use proptest::prelude::*;
use requeue::clock::FakeClock;
use requeue::limiter::RateLimiter;
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::{CancelledRun, Completion, Item, Order, Phase, Time};
use tokio::sync::watch;

use crate::engine::receipts::Attempts;
use crate::engine::time::Micros;
use crate::engine::{
    Answers, Ask, Asked, Claim, Claimed, Delivery, Dropped, End, Engine, Finish, Place, Renewed,
    Settings, Tried,
};
use crate::tests::conformance::{BACKOFF, Rig, check, steps};
use crate::tests::{BoxAnswer, BoxFuture};
use crate::types::add::{Added, Priority, ReaddPolicy};
use crate::types::error::Answer;
use crate::types::inspect::{Entry, QueueInfo, State, StateCounts};
use crate::types::key::Key;

#[derive(Debug)]
struct InMemory {
    clock: FakeClock,
    queue: OnceLock<requeue::Queue<Key>>,
    last: Arc<Last>,
    held: Mutex<BTreeMap<i64, Held>>,
}

#[derive(Debug)]
struct Held {
    item: Item<'static, Key>,
    worker: Arc<str>,
    lease_until: Time,
}

/// A limiter like [`requeue::limiter::BackoffLimiter`], without jitter and growth.
///
/// All backoffs are equal. The delay after a failure during the backoff of the previous failure is the time that
/// remains.
#[derive(Debug, Default)]
struct Steady(HashMap<Key, Time>);

impl RateLimiter<Key> for Steady {
    fn delay(&mut self, key: &Key, now: Time) -> Duration {
        let until = self.0.entry(key.clone()).or_default();
        if *until <= now {
            *until = now + BACKOFF;
        }
        until.since(now)
    }

    fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    fn num_requeues(&self, key: &Key) -> u32 {
        self.0.contains_key(key).into()
    }
}

/// The time for which the last delivered key had been ready.
#[derive(Debug, Default)]
struct Last(Mutex<Duration>);

impl<K> QueueMetrics<K> for Last {
    fn get(&self, _: &K, queued: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = queued;
    }
}

struct OfLast(Arc<Last>);

impl<K> MetricsProvider<K> for OfLast {
    fn queue(&self, _: &str) -> Arc<dyn QueueMetrics<K>> {
        Arc::clone(&self.0) as _
    }
}

impl InMemory {
    fn new() -> Self {
        Self {
            clock: FakeClock::new(),
            queue: OnceLock::new(),
            last: Arc::default(),
            held: Mutex::default(),
        }
    }

    fn queue(&self) -> &requeue::Queue<Key> {
        self.queue.get().expect("the queue is open")
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<i64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn add_one(&self, ask: Ask) -> Added {
        let at = match ask.add.longest_wait() {
            Some(most) => requeue::Add::debounce(ask.add.after).at_most(most),
            None => requeue::Add::after(ask.add.after),
        };
        let add =
            at.priority(ask.add.priority.number().into()).flags(ask.add.flags).merge(ask.add.merge);
        match self.queue().add_with(ask.key, add) {
            requeue::Added::New => Added::New,
            requeue::Added::Coalesced => Added::Coalesced,
            requeue::Added::Dirty => Added::Dirty,
            requeue::Added::BackingOff => Added::BackingOff,
            other => unreachable!("{other:?}"),
        }
    }

    fn claim_all(&self, queue: &Place, claim: &Claim) -> Claimed {
        let now = self.now();
        let mut held = self.held();
        let mut expired: Vec<Held> =
            held.extract_if(.., |_, held| held.lease_until <= now).map(|(_, held)| held).collect();
        expired.sort_by_key(|held| held.lease_until);
        for held in expired {
            held.item.retry();
        }
        let mut claimed = Claimed::default();
        while claimed.items.len() < claim.max
            && let Some(item) = self.queue().try_get().map(Item::into_owned)
        {
            let priority = Priority::from(item.priority());
            let asked = Asked { adds: item.adds(), flags: item.flags(), priority };
            let epoch = i64::try_from(item.fencing_token()).expect("epochs count from 1");
            let queued = *self.last.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (key, failures) = (item.key().clone(), item.attempt() - 1);
            let (group, trace, failed) = (None, None, None);
            claimed.items.push(Delivery {
                key,
                epoch,
                asked,
                failures,
                queued,
                group,
                trace,
                failed,
            });
            let worker = Arc::clone(&queue.worker);
            held.insert(epoch, Held { item, worker, lease_until: now + claim.lease });
        }
        let waiting = self.all().into_iter().filter(waits);
        let is_paused = self.queue().is_paused();
        let due = waiting.filter_map(|entry| entry.due.filter(|_| !is_paused));
        let leases = held.values().map(|held| held.lease_until);
        claimed.is_paused = is_paused;
        claimed.next = due.chain(leases).min().map(|next| next.since(now));
        claimed
    }

    fn finish_one(&self, end: &End) -> bool {
        let now = self.now();
        let mut held = self.held();
        if held.get(&end.epoch).is_none_or(|held| held.lease_until <= now) {
            return false;
        }
        let Some(Held { mut item, .. }) = held.remove(&end.epoch) else { return false };
        match end.how {
            Finish::Succeed => item.succeed(),
            Finish::RequeueAfter(delay, priority) => {
                item.set_priority(priority.number().into());
                item.complete(Completion::RequeueAfter(delay));
            }
            Finish::Retry(..) => item.retry(),
            Finish::RetryAfter(delay, ..) => item.complete(Completion::RetryAfter(delay)),
            Finish::GiveUp(_) => unreachable!("a queue in memory parks no keys"),
            Finish::Cancelled => unreachable!("this engine cancels no runs"),
            // The queue in memory does not keep the place of a key, so the test does not unclaim keys.
            Finish::Release(_) | Finish::Unclaim(..) => item.complete(Completion::Release),
        }
        true
    }

    fn renew_one(&self, epoch: i64, lease: Duration) -> Renewed {
        let now = self.now();
        match self.held().get_mut(&epoch).filter(|held| held.lease_until > now) {
            Some(held) => {
                held.lease_until = now + lease;
                Renewed::Yes
            }
            None => Renewed::Lost,
        }
    }

    fn all(&self) -> Vec<requeue::Entry<Key>> {
        // The call of `len` makes due keys ready.
        let _ = self.queue().len();
        self.queue().snapshot(requeue::Cursor::default(), 100).entries
    }

    fn next_due(&self) -> Option<Time> {
        self.queue.get()?;
        self.all().iter().filter_map(|entry| entry.due).min()
    }

    fn seen(&self, entry: requeue::Entry<Key>) -> Option<Entry> {
        let now = self.now();
        let state = match entry.phase {
            Phase::Ready => State::Ready,
            Phase::InFlight | Phase::InFlightDirty => State::InFlight,
            _ if waits(&entry) => State::Waiting,
            // The queue only has the failures of the key, so the key has no state.
            _ => return None,
        };
        let held = self.held();
        let held = held.iter().find(|(_, held)| *held.item.key() == entry.key);
        Some(Entry {
            key: entry.key,
            state,
            since: entry.since.filter(|_| state != State::Waiting).map(|since| now.since(since)),
            due: entry.due.map(|due| due.since(now)),
            bound: entry.bound.map(|bound| bound.since(now)),
            cancelled: None,
            paused: false,
            dirty: entry.phase == Phase::InFlightDirty,
            fencing_token: held.map(|(&epoch, _)| epoch.unsigned_abs()),
            worker: held.map(|(_, held)| held.worker.to_string()),
            lease: held.map(|(_, held)| held.lease_until.since(now)),
            failures: entry.failures,
            priority: Priority::from(entry.priority),
            adds: entry.adds,
            flags: entry.flags,
            error: None,
            failed: None,
            group: None,
            past_runs: Vec::new(),
        })
    }

    fn entries(&self) -> Vec<Entry> {
        let mut all: Vec<Entry> =
            self.all().into_iter().filter_map(|entry| self.seen(entry)).collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }
}

fn waits(entry: &requeue::Entry<Key>) -> bool {
    entry.phase == Phase::Idle && entry.due.is_some()
}

fn answer<'a, T: Send + 'a>(answer: T) -> BoxAnswer<'a, T> {
    Box::pin(ready(Ok(answer)))
}

#[async_trait]
impl Engine for InMemory {
    async fn migrate_schema(&self) -> Answer<()> {
        answer(()).await
    }

    async fn open_queue(&self, name: &str, settings: Settings) -> Answer<Place> {
        let queue = requeue::Queue::builder()
            .name(name)
            .clock(self.clock.clone())
            .readd_policy(settings.readd_policy)
            .order(Order::Priority { oldest_every: u32::MAX })
            .limiter(Steady::default())
            .metrics_provider(Arc::new(OfLast(Arc::clone(&self.last))))
            .build();
        self.queue.set(queue.expect("valid options")).expect("opened once");
        answer(Place::new(1, name, settings)).await
    }

    async fn find_queue(&self, _: &str) -> Answer<Option<Place>> {
        answer(None).await
    }

    async fn drop_queue(&self, _: &str, _: bool) -> Answer<Dropped> {
        // The test drops no queues of this engine.
        answer(Dropped::Missing).await
    }

    async fn list_queues(&self) -> Answer<Vec<QueueInfo>> {
        answer(Vec::new()).await
    }

    async fn send_adds(
        &self,
        _: &Place,
        asks: Vec<Ask>,
        _: &mut Attempts,
        _: Tried,
    ) -> Answers<Added> {
        answer(asks.into_iter().map(|ask| Some(self.add_one(ask))).collect()).await
    }

    async fn claim_keys(&self, queue: &Place, claim: Claim) -> Answer<Claimed> {
        answer(self.claim_all(queue, &claim)).await
    }

    async fn set_paused(&self, _: &Place, paused: bool) -> Answer<()> {
        if paused {
            self.queue().pause();
        } else {
            self.queue().resume();
        }
        answer(()).await
    }

    async fn is_paused(&self, _: &Place) -> Answer<bool> {
        answer(self.queue().is_paused()).await
    }

    async fn send_completions(&self, _: &Place, ends: Vec<End>, _: Tried) -> Answers<bool> {
        answer(ends.iter().map(|end| Some(self.finish_one(end))).collect()).await
    }

    async fn renew_leases(
        &self,
        _: &Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<Vec<Renewed>> {
        answer(held.iter().map(|&(_, epoch)| self.renew_one(epoch, lease)).collect()).await
    }

    async fn cancel_running(&self, _: &Place, _: &Key) -> Answer<CancelledRun> {
        let why = "a queue in memory has no other process";
        Err(crate::types::error::EngineError::refused(why))
    }

    async fn cancel_keys(&self, _: &Place, keys: Vec<Key>, only: Option<State>) -> Answers<bool> {
        let entries = self.entries();
        let fits = |key: &Key| {
            let is_it = |entry: &Entry| entry.key == *key && Some(entry.state) == only;
            only.is_none() || entries.iter().any(is_it)
        };
        let cancel = |key: &Key| Some(fits(key) && self.queue().cancel(key).any());
        answer(keys.iter().map(cancel).collect()).await
    }

    async fn make_ready(&self, _: &Place, keys: Vec<Key>, from: State) -> Answers<bool> {
        let entries = self.entries();
        let make_ready = |key: &Key| {
            let found = entries.iter().find(|entry| entry.key == *key && entry.state == from);
            if let Some(&Entry { priority, adds, flags, .. }) = found {
                self.queue().cancel(key);
                let add = requeue::Add::now().priority(priority.number().into()).flags(flags);
                for _ in 0..adds {
                    let _ = self.queue().add_with(key.clone(), add);
                }
            }
            Some(found.is_some())
        };
        answer(keys.iter().map(make_ready).collect()).await
    }

    async fn look_up(&self, _: &Place, key: &Key) -> Answer<Option<Entry>> {
        answer(self.entries().into_iter().find(|entry| entry.key == *key)).await
    }

    async fn read_page(
        &self,
        _: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Entry>> {
        let fits = |entry: &Entry| {
            state.is_none_or(|state| entry.state == state)
                && after.is_none_or(|after| entry.key > *after)
        };
        answer(self.entries().into_iter().filter(fits).take(limit).collect()).await
    }

    async fn count_keys(&self, _: &Place) -> Answer<StateCounts> {
        let queue = self.queue();
        let in_flight = queue.states().in_flight as u64;
        let waiting = self.all().iter().filter(|entry| waits(entry)).count();
        answer(StateCounts {
            ready: queue.len() as u64,
            waiting: waiting as u64,
            in_flight,
            ..StateCounts::default()
        })
        .await
    }

    fn subscribe_wakes(&self, _: &Place) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }

    fn max_batches(&self) -> usize {
        1
    }
}

struct Fixture(Arc<InMemory>);

impl Rig for Fixture {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.0) as _
    }

    fn parks(&self) -> bool {
        false
    }

    fn drops(&self) -> bool {
        false
    }

    fn cancels_runs(&self) -> bool {
        false
    }

    fn set_time(&self, now: Micros) -> BoxFuture<'_, ()> {
        let now = Time::from_nanos(u64::try_from(now).expect("after 1970") * 1000);
        // In this queue, a key becomes ready when a call finds it due. Therefore, the test advances the clock to each
        // due time.
        while let Some(due) = self.0.next_due().filter(|&due| due < now) {
            self.0.clock.set(due);
        }
        self.0.clock.set(now);
        Box::pin(ready(()))
    }

    fn keeps_places(&self) -> bool {
        false
    }

    fn keeps_attempts(&self) -> bool {
        false
    }
}

fn conforms(readd_policy: ReaddPolicy) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) };
    proptest!(config, |(steps in steps(80))| {
        let rig = Fixture(Arc::new(InMemory::new()));
        runtime.block_on(check(&rig, "q", readd_policy, &steps));
    });
}

#[test]
fn the_queue_in_memory_replaces_as_the_model_does() {
    conforms(ReaddPolicy::Replace);
}

#[test]
fn the_queue_in_memory_holds_as_the_model_does() {
    conforms(ReaddPolicy::Hold);
}
