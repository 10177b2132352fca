//! An engine in memory for tests. Its time is that of tokio, and a test can make its operations fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use requeue::CancelledRun;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::activity::{Merging, Parts, Record, Recorded, Which};
use crate::engine::receipts::Attempts;
use crate::engine::row::Row;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::time::{Micros, after, until};
use crate::engine::{
    Answers, Ask, Claim, Claimed, Dropped, End, Engine, Place, Renewed, Settings, Tried,
};
use crate::tests::BoxAnswer;
use crate::tests::activity::Numbers;
use crate::types::action::ActionRecord;
use crate::types::add::{Added, Priority};
use crate::types::error::{Answer, EngineError, Kind};
use crate::types::inspect::{Entry, GroupInfo, ParkedKey, QueueInfo, State, StateCounts};
use crate::types::key::Key;

/// A failure that a test injects into a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mishap {
    /// The call has no effect, and the caller receives an error.
    Absent,
    /// The call takes effect, and its answer is lost.
    Unheard,
    /// The call has no effect. The caller receives the error for a lost answer.
    Lost,
    /// The call has no effect, and no answer ever arrives.
    Silent,
    Refused,
    /// The call takes effect and is answered. The failure after it in the list applies to a later call.
    Fine,
}

#[derive(Debug)]
pub(super) struct Memory {
    begin: Instant,
    rows: Mutex<BTreeMap<Key, Row>>,
    epoch: Mutex<i64>,
    wakes: watch::Sender<u64>,
    /// The number of wakes that the process has passed on to other processes.
    passed_wakes: AtomicUsize,
    mishaps: Mutex<VecDeque<Mishap>>,
    /// The number of keys in each batch.
    batches: Mutex<Vec<usize>>,
    is_dropped: AtomicBool,
    is_paused: AtomicBool,
    /// The keys that another transaction has locked. Their leases can be renewed nevertheless.
    locked: Mutex<BTreeSet<Key>>,
    /// The activity has separate failures, because it is written at random times.
    pub(super) numbers: Mutex<Numbers>,
    /// A test holds this lock to block all operations.
    pub(super) gate: tokio::sync::Mutex<()>,
    /// A test holds this lock to block only counts.
    pub(super) counting: tokio::sync::Mutex<()>,
    /// The number of concurrent batches that the engine supports.
    pub(super) breadth: usize,
    /// True if the engine wakes getters when a key becomes ready.
    pub(super) tells: bool,
    /// True if the answer to a claim includes the time until the next lease expires.
    pub(super) knows_leases: bool,
    /// The time until a schedule is due, which claims return.
    pub(super) schedule_in: Option<Duration>,
    /// The schedules of each shard.
    pub(super) schedules: Vec<Mutex<Vec<Scheduled>>>,
    /// True if claims return the time until the next schedule is due.
    pub(super) knows_schedules: bool,
    /// The shard that does not answer requests for schedules, or `None` if all shards answer.
    pub(super) silent_shard: Option<usize>,
    /// The duration of an attempt to fire a schedule whose key is locked.
    pub(super) lock_timeout: Duration,
    /// True if the store answers that it cannot fire schedules now.
    pub(super) is_unable: bool,
    /// The number of requests for schedules, and the number of attempts to fire one.
    pub(super) looks: AtomicUsize,
    pub(super) shots: AtomicUsize,
    /// The time by which the clock has jumped.
    pub(super) jump: Mutex<Duration>,
    pub(super) actions: Mutex<Vec<ActionRecord>>,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            begin: Instant::now(),
            rows: Mutex::default(),
            epoch: Mutex::new(0),
            wakes: watch::Sender::new(0),
            passed_wakes: AtomicUsize::new(0),
            mishaps: Mutex::default(),
            batches: Mutex::default(),
            is_dropped: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            locked: Mutex::default(),
            numbers: Mutex::default(),
            gate: tokio::sync::Mutex::default(),
            counting: tokio::sync::Mutex::default(),
            breadth: 1,
            tells: true,
            knows_leases: true,
            schedule_in: None,
            schedules: vec![Mutex::default()],
            knows_schedules: true,
            silent_shard: None,
            lock_timeout: Duration::ZERO,
            is_unable: false,
            looks: AtomicUsize::new(0),
            shots: AtomicUsize::new(0),
            jump: Mutex::default(),
            actions: Mutex::default(),
        }
    }

    /// Injects these failures into the next operations, one failure into each operation.
    pub(super) fn fail(&self, mishaps: impl IntoIterator<Item = Mishap>) {
        lock(&self.mishaps).extend(mishaps);
    }

    /// Removes the failures that no operation has consumed.
    pub(super) fn clear(&self) {
        lock(&self.mishaps).clear();
    }

    pub(super) fn batches(&self) -> Vec<usize> {
        std::mem::take(&mut lock(&self.batches))
    }

    /// Wakes the getters, although no key has changed.
    pub(super) fn wake_getters(&self) {
        self.wakes.send_modify(|wakes| *wakes += 1);
    }

    pub(super) fn passed_wakes(&self) -> usize {
        self.passed_wakes.load(Ordering::SeqCst)
    }

    pub(super) fn row(&self, key: &str) -> Option<Row> {
        lock(&self.rows).get(&Key::from(key)).cloned()
    }

    pub(super) fn set_locked(&self, key: &str, is_locked: bool) {
        let mut locked = lock(&self.locked);
        if is_locked {
            locked.insert(key.into())
        } else {
            locked.remove(&Key::from(key))
        };
    }

    fn is_locked(&self, key: &Key) -> bool {
        lock(&self.locked).contains(key)
    }

    /// Applies `operation` to the requests whose keys are not locked. The other requests have no answer, or they make
    /// the whole batch fail.
    async fn answer_free<'a, W, T>(
        &self,
        wishes: Vec<W>,
        key: fn(&W) -> &Key,
        tried: Tried,
        operation: impl Fn(Vec<W>) -> BoxAnswer<'a, Vec<T>>,
    ) -> Answers<T> {
        let is_free: Vec<bool> = wishes.iter().map(|wish| !self.is_locked(key(wish))).collect();
        if tried == Tried::No && is_free.contains(&false) {
            return Err(locked());
        }
        let free = wishes.into_iter().filter(|wish| !self.is_locked(key(wish))).collect();
        let mut answers = operation(free).await?.into_iter();
        let answer = |is_free| if is_free { answers.next() } else { None };
        Ok(is_free.into_iter().map(answer).collect())
    }

    fn add_rows<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> BoxAnswer<'a, Vec<Added>> {
        self.operation(asks.len(), move |rows, now| {
            let add = |ask: Ask| {
                let (row, added) = Row::add(rows.remove(&ask.key), &ask, queue, now);
                rows.insert(ask.key, row);
                added
            };
            let done = asks.into_iter().map(add).collect();
            self.wake();
            done
        })
    }

    fn finish_rows<'a>(&'a self, queue: &'a Place, ends: Vec<End>) -> BoxAnswer<'a, Vec<bool>> {
        self.operation(ends.len(), move |rows, now| {
            let finish = |end: End| {
                let held = rows.get(&end.key).is_some_and(|row| row.is_held(end.epoch, now));
                if held {
                    let row = rows.remove(&end.key);
                    let row = row.and_then(|row| row.finish(end.how, queue, now));
                    put(rows, end.key, row);
                }
                held
            };
            let done = ends.into_iter().map(finish).collect();
            self.wake();
            done
        })
    }

    fn now(&self) -> Micros {
        after(1_000_000, self.begin.elapsed() + *lock(&self.jump))
    }

    fn operation<'a, T: Send + 'a>(
        &'a self,
        keys: usize,
        work: impl FnOnce(&mut BTreeMap<Key, Row>, Micros) -> T + Send + 'a,
    ) -> BoxAnswer<'a, T> {
        Box::pin(async move {
            let open = self.gate.lock().await;
            if self.is_dropped.load(Ordering::SeqCst) {
                return Err(EngineError::dropped("q"));
            }
            let mishap = lock(&self.mishaps).pop_front();
            match mishap {
                None | Some(Mishap::Fine) => lock(&self.batches).push(keys),
                Some(Mishap::Unheard) => {}
                Some(Mishap::Absent) => return Err(EngineError::absent("nobody is there")),
                Some(Mishap::Refused) => return Err(EngineError::refused("it is not allowed")),
                Some(Mishap::Lost) => return Err(EngineError::unsure("the line is cut")),
                Some(Mishap::Silent) => {
                    drop(open);
                    std::future::pending().await
                }
            }
            let done = work(&mut lock(&self.rows), self.now());
            match mishap {
                None | Some(Mishap::Fine) => Ok(done),
                Some(_) => Err(EngineError::unsure("the line is cut")),
            }
        })
    }

    /// Changes the keys that are not locked. Fails, without waiting for the lock, if `keys` is a single locked key.
    fn changed<'a, T: Send + 'a>(
        &'a self,
        keys: Vec<Key>,
        change: impl Fn(&mut BTreeMap<Key, Row>, &Key, Micros) -> T + Send + 'a,
    ) -> BoxAnswer<'a, Vec<Option<T>>> {
        if keys.len() == 1 && self.is_locked(&keys[0]) {
            return Box::pin(std::future::ready(Err(locked())));
        }
        self.operation(keys.len(), move |rows, now| {
            let change = |key| (!self.is_locked(key)).then(|| change(rows, key, now));
            keys.iter().map(change).collect()
        })
    }

    fn wake(&self) {
        if self.tells {
            self.wakes.send_modify(|wakes| *wakes += 1);
        }
    }
}

fn locked() -> EngineError {
    EngineError { kind: Kind::Locked, source: "somebody has it".into() }
}

fn put(rows: &mut BTreeMap<Key, Row>, key: Key, row: Option<Row>) {
    match row {
        Some(row) => _ = rows.insert(key, row),
        None => _ = rows.remove(&key),
    }
}

#[async_trait]
impl Engine for Memory {
    async fn migrate_schema(&self) -> Answer<()> {
        Ok(())
    }

    async fn open_queue(&self, name: &str, settings: Settings) -> Answer<Place> {
        Ok(Place::new(1, name, settings))
    }

    async fn find_queue(&self, _: &str) -> Answer<Option<Place>> {
        Ok(None)
    }

    async fn drop_queue(&self, _: &str, keys_too: bool) -> Answer<Dropped> {
        let counts = self.count_keys(&Place::new(1, "q", Settings::default())).await?;
        if Dropped::keeps(&counts, 0, keys_too) {
            return Ok(Dropped::Kept(counts, 0));
        }
        self.is_dropped.store(true, Ordering::SeqCst);
        self.wake();
        Ok(Dropped::Yes(counts))
    }

    async fn list_queues(&self) -> Answer<Vec<QueueInfo>> {
        Ok(Vec::new())
    }

    fn shard_count(&self, _: &Place) -> usize {
        self.schedules.len()
    }

    async fn send_adds(
        &self,
        queue: &Place,
        asks: Vec<Ask>,
        _: &mut Attempts,
        tried: Tried,
    ) -> Answers<Added> {
        self.answer_free(asks, |ask| &ask.key, tried, |asks| self.add_rows(queue, asks)).await
    }

    async fn claim_keys(&self, queue: &Place, claim: Claim) -> Answer<Claimed> {
        self.operation(claim.max, move |rows, now| {
            let expired: Vec<Key> = rows
                .iter()
                .filter(|(_, row)| row.run.is_some_and(|run| run.lease_until <= now))
                .map(|(key, _)| key.clone())
                .collect();
            let mut parked = Vec::new();
            for (n, key) in (1..).zip(expired) {
                let row = rows.remove(&key).and_then(|row| {
                    let how = row.lease_expiry(claim.expired.nth(n));
                    row.finish(how, queue, now)
                });
                if let Some(row) = row.as_ref().filter(|row| row.parked) {
                    parked.push(ParkedKey::from_expired_lease(key.clone(), row.failures));
                }
                put(rows, key, row);
            }
            let mut items = Vec::new();
            let is_paused = self.is_paused.load(Ordering::SeqCst);
            for n in 0..if is_paused { 0 } else { claim.max } {
                let ready = rows.iter().filter(|(_, row)| row.is_ready(now));
                let next = ready.min_by_key(|(_, row)| match n < claim.oldest {
                    true => (Priority::Low, row.at),
                    false => (flipped(row.asked.priority), row.at),
                });
                let Some(key) = next.map(|(key, _)| key.clone()) else { break };
                let mut epoch = lock(&self.epoch);
                *epoch += 1;
                if let Some(row) = rows.get_mut(&key) {
                    items.push(row.claim(&key, *epoch, &queue.worker, claim.lease, now));
                }
            }
            let waiting = rows.values().filter(|row| row.run.is_none() && !is_paused);
            let waiting = waiting.filter_map(|row| row.at);
            let leases = rows.values().filter_map(|row| Some(row.run?.lease_until));
            let leases = leases.filter(|_| self.knows_leases);
            let next = waiting.chain(leases).min().map(|at| until(now, at));
            let mut due = Vec::new();
            for shard in &self.schedules {
                due.extend(lock(shard).iter().filter_map(Scheduled::due_at));
            }
            let due = due.into_iter().min().filter(|_| self.knows_schedules);
            let due = due.map(|at| until(now, at));
            let schedule_in = self.schedule_in.or(due);
            Claimed { items, next, parked, is_paused, schedule_in, ..Claimed::default() }
        })
        .await
    }

    async fn next_schedules(&self, _: &Place, shard: usize, limit: usize) -> Answer<Agenda> {
        if self.silent_shard == Some(shard) {
            return std::future::pending().await;
        }
        self.looks.fetch_add(1, Ordering::SeqCst);
        let mut schedules = lock(&self.schedules[shard]).clone();
        schedules.sort_by_key(|schedule| schedule.due_at().unwrap_or(Micros::MAX));
        schedules.truncate(limit);
        Ok(Agenda { now: self.now(), schedules })
    }

    async fn fire_schedule(&self, queue: &Place, was: &Scheduled, firing: Firing) -> Answer<bool> {
        self.shots.fetch_add(1, Ordering::SeqCst);
        if self.is_unable {
            return Err(EngineError::unable("no space"));
        }
        if self.is_locked(&was.key) {
            tokio::time::sleep(self.lock_timeout).await;
            return Err(locked());
        }
        if firing.adds(was) {
            self.add_rows(queue, vec![was.to_ask()]).await?;
        }
        for shard in &self.schedules {
            let mut schedules = lock(shard);
            let found = schedules.iter_mut().filter(|found| *found == was);
            found.for_each(|found| *found = firing.clone().apply(was));
        }
        Ok(true)
    }

    async fn record_activity(&self, _: &Place, record: Record) -> Answer<Recorded> {
        lock(&self.numbers).record(self.now(), record)
    }

    async fn read_activity(&self, _: &Place, which: Which) -> Answer<Parts> {
        Ok(lock(&self.numbers).read(self.now(), which))
    }

    async fn merge_activity(&self, _: &Place, merging: Merging) -> Answer<bool> {
        lock(&self.numbers).merge(self.now(), merging);
        Ok(true)
    }

    async fn record_action(&self, _: &Place, action: ActionRecord) -> Answer<()> {
        lock(&self.actions).push(action);
        Ok(())
    }

    async fn last_actions(&self, _: &Place) -> Answer<Vec<ActionRecord>> {
        Ok(lock(&self.actions).clone())
    }

    async fn set_paused(&self, _: &Place, paused: bool) -> Answer<()> {
        self.operation(0, move |_, _| {
            self.is_paused.store(paused, Ordering::SeqCst);
            self.wake();
        })
        .await
    }

    async fn is_paused(&self, _: &Place) -> Answer<bool> {
        self.operation(0, |_, _| self.is_paused.load(Ordering::SeqCst)).await
    }

    async fn list_groups(&self, _: &Place, _: Option<&str>, _: usize) -> Answer<Vec<GroupInfo>> {
        self.operation(0, |_, _| Vec::new()).await
    }

    async fn send_completions(&self, queue: &Place, ends: Vec<End>, tried: Tried) -> Answers<bool> {
        self.answer_free(ends, |end| &end.key, tried, |ends| self.finish_rows(queue, ends)).await
    }

    async fn renew_leases(
        &self,
        _: &Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<Vec<Renewed>> {
        self.operation(held.len(), move |rows, now| {
            let renew = |(key, epoch): (Key, i64)| {
                let row = rows.get_mut(&key).filter(|row| row.is_held(epoch, now));
                let run = row.and_then(|row| row.run.as_mut());
                let Some(run) = run else { return Renewed::Lost };
                run.lease_until = after(now, lease);
                if run.is_cancelled { Renewed::Cancelled } else { Renewed::Yes }
            };
            held.into_iter().map(renew).collect()
        })
        .await
    }

    async fn cancel_running(&self, _: &Place, key: &Key) -> Answer<CancelledRun> {
        self.operation(1, move |rows, _| {
            rows.get_mut(key).map_or(CancelledRun::NotInFlight, Row::cancel_run)
        })
        .await
    }

    async fn cancel_keys(&self, _: &Place, keys: Vec<Key>, only: Option<State>) -> Answers<bool> {
        self.changed(keys, move |rows, key, now| {
            let fits = |row: &mut Row| only.is_none_or(|only| row.state(now) == only);
            if !rows.get_mut(key).is_some_and(fits) {
                return false;
            }
            let Some(row) = rows.remove(key) else { return false };
            let (row, was_any) = row.cancel();
            put(rows, key.clone(), row);
            was_any
        })
        .await
    }

    async fn make_ready(&self, _: &Place, keys: Vec<Key>, from: State) -> Answers<bool> {
        self.changed(keys, move |rows, key, now| {
            rows.get_mut(key).is_some_and(|row| row.make_ready(from, now))
        })
        .await
    }

    async fn look_up(&self, _: &Place, key: &Key) -> Answer<Option<Entry>> {
        self.operation(1, move |rows, now| rows.get(key).map(|row| row.to_entry(key.clone(), now)))
            .await
    }

    async fn read_page(
        &self,
        _: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Entry>> {
        self.operation(limit, move |rows, now| {
            let rows = rows.iter().filter(|(key, _)| after.is_none_or(|after| *key > after));
            let rows = rows.filter(|(_, row)| state.is_none_or(|state| row.state(now) == state));
            rows.map(|(key, row)| row.to_entry(key.clone(), now)).take(limit).collect()
        })
        .await
    }

    async fn count_keys(&self, _: &Place) -> Answer<StateCounts> {
        let counts = self.operation(0, move |rows, now| {
            let count = |state| rows.values().filter(|row| row.state(now) == state).count() as u64;
            StateCounts {
                ready: count(State::Ready),
                waiting: count(State::Waiting),
                in_flight: count(State::InFlight),
                parked: count(State::Parked),
                dirty: rows.values().filter(|row| row.is_dirty_with_a_worker(now)).count() as u64,
                ..StateCounts::default()
            }
        });

        let _done = self.counting.lock().await;
        counts.await
    }

    async fn is_idle(&self, _: &Place) -> Answer<bool> {
        self.operation(0, |rows, _| rows.values().all(|row| row.parked)).await
    }

    fn subscribe_wakes(&self, _: &Place) -> watch::Receiver<u64> {
        self.wakes.subscribe()
    }

    fn pass_wake_on(&self, _: &Place) {
        self.passed_wakes.fetch_add(1, Ordering::SeqCst);
    }

    fn max_batches(&self) -> usize {
        self.breadth
    }
}

/// Reverses the order of priorities, so that the highest priority has the lowest value.
const fn flipped(priority: Priority) -> Priority {
    match priority {
        Priority::Low => Priority::High,
        Priority::Normal => Priority::Normal,
        Priority::High => Priority::Low,
    }
}
