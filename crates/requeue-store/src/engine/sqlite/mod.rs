//! The engine for SQLite files. All processes of one machine can use the same file.

mod actions;
mod activity;
mod attempts;
mod clock;
mod operations;
mod place;
mod rates;
mod reserve;
mod rows;
mod schedules;
mod schema;
#[cfg(any(test, feature = "test-util"))]
pub mod simulated;
#[cfg(test)]
mod tests;
mod thread;
mod turns;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use requeue::CancelledRun;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::clock::Clock;
use self::operations::{Groups, Standing};
use self::thread::{Busy, Kind, Thread, Work};
use crate::engine::activity::{Merging, Parts, Record, Recorded, Which};
use crate::engine::receipts::Attempts;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::wakes::Wakes;
use crate::engine::{
    Answers, Ask, Claim, Claimed, Dropped, End, Engine, GroupChange, Place, Renewed, Settings,
    Tried, lock,
};
use crate::types::action::ActionRecord;
use crate::types::add::Added;
use crate::types::error::{Answer, EngineError};
use crate::types::inspect::{Attempt, Entry, GroupInfo, QueueInfo, State, StateCounts};
use crate::types::key::Key;
use crate::types::rate::{Rate, Throttle};

/// The number of keys of a dropped queue that are removed in one transaction.
const SWEPT: usize = 10_000;

/// The effect of a power failure on acknowledged commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Synchronous {
    /// The last commits before the failure may be lost.
    #[default]
    Normal,
    /// No acknowledged commit is lost.
    Full,
}

#[derive(Debug)]
pub(crate) struct Sqlite {
    thread: Thread,
    /// The threads for operations that only read, if there are any. The first is for operations that read many keys.
    /// The second is for operations that read a few rows, so that they do not wait for a long count or search.
    readers: Option<[Thread; 2]>,
    wakes: Wakes,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, synchronous: Synchronous) -> Answer<Self> {
        Self::open_with(path, synchronous, clock::of_machine())
    }

    fn open_with(path: &Path, synchronous: Synchronous, clock: Clock) -> Answer<Self> {
        let (thread, readers) = Thread::start(path, synchronous, clock)?;
        Ok(Self { thread, readers, wakes: Wakes::default() })
    }

    /// Returns the thread for operations that may read all keys.
    fn slow_reader(&self) -> &Thread {
        self.readers.as_ref().map_or(&self.thread, |[slow, _]| slow)
    }

    /// Returns the thread for operations that read a few rows.
    fn quick_reader(&self) -> &Thread {
        self.readers.as_ref().map_or(&self.thread, |[_, quick]| quick)
    }

    /// Wakes the getters of this process that wait for keys of `queue`.
    fn wake_getters(&self, queue: i64) {
        self.wakes.wake_getters(queue);
    }

    /// Wakes getters as [`wake_getters`](Self::wake_getters) does. If the queue has groups, only keys of `groups` have
    /// changed.
    fn wake_for_groups(&self, queue: &Place, groups: &Groups) {
        match queue.group_by {
            Some(_) => self.wakes.wake_after(queue.id, |turns| turns.name_groups(groups)),
            None => self.wake_getters(queue.id),
        }
    }

    /// Runs `work` as [`with_rows`](Self::with_rows) does, for a caller that does not retry. The wait for another
    /// process that has locked the file is as long as that of an add.
    async fn update_rows<T: Send + 'static>(
        &self,
        queue: &Place,
        work: impl Fn(&Work<'_>, Place) -> rusqlite::Result<T> + Send + Sync + 'static,
    ) -> Answer<T> {
        let work = Arc::new(work);
        let attempt = || -> Trial<'_, T> {
            let work = Arc::clone(&work);
            Box::pin(self.with_rows(&self.thread, queue, move |at, queue| work(at, queue)))
        };
        retry_patiently(attempt).await
    }

    /// Runs `work` on a queue, in a transaction of the thread. Fails if the queue was dropped.
    async fn with_rows<T: Send + 'static>(
        &self,
        thread: &Thread,
        queue: &Place,
        work: impl FnOnce(&Work<'_>, Place) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.call(thread, Kind::Plain, queue, |at, queue, _| work(at, queue)).await
    }

    /// Runs `work` as [`with_rows`](Self::with_rows) does, and passes the state of the queue to it.
    async fn call<T: Send + 'static>(
        &self,
        thread: &Thread,
        kind: Kind,
        queue: &Place,
        work: impl FnOnce(&Work<'_>, Place, Standing) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<T> {
        let place = queue.clone();
        let called = thread.call_as(kind, move |at| match at.read_standing(&place)? {
            Some(standing) => work(at, place, standing).map(Some),
            None => Ok(None),
        });
        called.await?.ok_or_else(|| EngineError::dropped(&queue.name))
    }

    /// Checks the schema, and then runs `work` on a thread. Waits while another process has locked the file.
    async fn call_checked<T: Send + 'static>(
        &self,
        thread: &Thread,
        kind: Kind,
        work: impl Fn(&Work<'_>) -> rusqlite::Result<T> + Send + Sync + 'static,
    ) -> Answer<T> {
        let work = Arc::new(work);
        let attempt = || -> Trial<'_, T> {
            let work = Arc::clone(&work);
            Box::pin(async move {
                self.thread.check(schema::STEPS).await?;
                thread.call_as(kind, move |at| work(at)).await
            })
        };
        retry_patiently(attempt).await
    }

    /// Removes the keys of dropped queues. Each transaction is short, so that it does not block other processes for
    /// long.
    async fn sweep(&self) -> Answer<()> {
        // In most cases, no keys are left. Therefore, the loop first checks this with a read.
        while let Some(queue) = self.slow_reader().call(|at| at.left_over()).await? {
            let sweep = move || self.thread.call(move |at| at.sweep_keys(queue, SWEPT));
            retry_patiently(move || Box::pin(sweep())).await?;
        }
        Ok(())
    }
}

type Trial<'a, T> = Pin<Box<dyn Future<Output = Answer<T>> + Send + 'a>>;

/// Retries while another process has locked the file. Also retries once after another temporary failure: an attempt
/// that finds the disk full releases the reserve, so the next attempt may succeed.
async fn retry_patiently<'a, T>(attempt: impl Fn() -> Trial<'a, T>) -> Answer<T> {
    let (since, mut has_failed) = (Instant::now(), false);
    loop {
        match attempt().await {
            Err(fault) if fault.source.is::<Busy>() && since.elapsed() < thread::OPENING => {
                sleep(thread::PAUSE).await;
            }
            Err(fault) if !fault.kind.is_final() && !has_failed => has_failed = true,
            done => return done,
        }
    }
}

#[async_trait]
impl Engine for Sqlite {
    async fn migrate_schema(&self) -> Answer<()> {
        retry_patiently(|| Box::pin(self.thread.migrate(schema::STEPS))).await?;
        // If a process was killed after a drop, keys of the dropped queue may remain. They are removed now.
        self.sweep().await
    }

    async fn open_queue(&self, name: &str, settings: Settings) -> Answer<Place> {
        let name = name.to_owned();
        let open = move |at: &Work<'_>| at.open_queue(&name, &settings);
        self.call_checked(&self.thread, Kind::Grows, open).await
    }

    async fn find_queue(&self, name: &str) -> Answer<Option<Place>> {
        let name = name.to_owned();
        self.call_checked(self.slow_reader(), Kind::Plain, move |at| at.find_queue(&name)).await
    }

    async fn drop_queue(&self, name: &str, keys_too: bool) -> Answer<Dropped> {
        let name = name.to_owned();

        let drop_queue = move |at: &Work<'_>| at.drop_queue(&name, keys_too);
        let (dropped, id) = self.call_checked(&self.thread, Kind::Plain, drop_queue).await?;
        if matches!(dropped, Dropped::Yes(_)) {
            self.wake_getters(id);
            if let Err(fault) = self.sweep().await {
                let error = fault.source;
                tracing::warn!(%error, "the rows of a dropped queue were not \
                        removed, and will be later");
            }
        }
        Ok(dropped)
    }

    async fn close_files(&self) {
        // The writer is closed last, because SQLite writes the log into the file when the last connection closes.
        for reader in self.readers.iter().flatten() {
            reader.close().await;
        }
        // If no other process has the file open, this call writes the log into the file and deletes the log.
        self.thread.close().await;
    }

    async fn list_queues(&self) -> Answer<Vec<QueueInfo>> {
        self.call_checked(self.slow_reader(), Kind::Plain, |at| at.list_queues()).await
    }

    async fn send_adds(
        &self,
        queue: &Place,
        asks: Vec<Ask>,
        _: &mut Attempts,
        _: Tried,
    ) -> Answers<Added> {
        let add = move |at: &Work<'_>, queue: Place, _| at.add_keys(&queue, &asks);
        let (added, ready) = self.call(&self.thread, Kind::Grows, queue, add).await?;
        self.wake_for_groups(queue, &ready);
        Ok(added)
    }

    async fn claim_keys(&self, queue: &Place, claim: Claim) -> Answer<Claimed> {
        let kind = if claim.poll.is_zero() { Kind::Patient } else { Kind::Plain };
        let work = move |at: &Work<'_>, queue: Place, standing: Standing| {
            at.claim_keys(&queue, &claim, &standing)
        };
        self.call(&self.thread, kind, queue, work).await
    }

    async fn set_paused(&self, queue: &Place, paused: bool) -> Answer<()> {
        self.update_rows(queue, move |at, queue| at.set_paused(&queue, paused)).await?;
        self.wake_getters(queue.id);
        Ok(())
    }

    async fn change_group(&self, queue: &Place, group: &str, change: GroupChange) -> Answer<()> {
        let name = group.to_owned();
        self.update_rows(queue, move |at, queue| at.change_group(&queue, &name, change)).await?;
        self.wake_for_groups(queue, &Groups::from([group.into()]));
        Ok(())
    }

    async fn set_group_limit(&self, queue: &Place, limit: Option<u32>) -> Answer<()> {
        self.update_rows(queue, move |at, queue| at.set_group_limit(&queue, limit)).await?;
        self.wake_getters(queue.id);
        Ok(())
    }

    async fn list_groups(
        &self,
        queue: &Place,
        after: Option<&str>,
        limit: usize,
    ) -> Answer<Vec<GroupInfo>> {
        let after = after.map(str::to_owned);
        self.with_rows(self.slow_reader(), queue, move |at, queue| {
            at.list_groups(&queue, after.as_deref(), limit)
        })
        .await
    }

    async fn put_schedule(&self, queue: &Place, schedule: Scheduled) -> Answer<Agenda> {
        let put = move |at: &Work<'_>, queue: Place| at.put_schedule(&queue, &schedule);
        let put = self.update_rows(queue, put).await?;
        self.wake_getters(queue.id);
        Ok(put)
    }

    async fn remove_schedule(&self, queue: &Place, key: &Key) -> Answer<bool> {
        let key = key.clone();
        self.update_rows(queue, move |at, queue| at.remove_schedule(&queue, &key)).await
    }

    async fn pause_schedule(&self, queue: &Place, key: &Key, paused: bool) -> Answer<bool> {
        let key = key.clone();
        let pause = move |at: &Work<'_>, queue: Place| at.pause_schedule(&queue, &key, paused);
        let is_there = self.update_rows(queue, pause).await?;
        self.wake_getters(queue.id);
        Ok(is_there)
    }

    async fn look_up_schedule(&self, queue: &Place, key: &Key) -> Answer<Agenda> {
        let key = key.clone();
        self.with_rows(self.quick_reader(), queue, move |at, queue| {
            let schedules = at.look_up_schedule(&queue, &key)?.into_iter().collect();
            Ok(Agenda { now: at.now, schedules })
        })
        .await
    }

    async fn list_schedules(
        &self,
        queue: &Place,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Agenda>> {
        let after = after.cloned();
        self.with_rows(self.quick_reader(), queue, move |at, queue| {
            at.list_schedules(&queue, after.as_ref(), limit).map(|agenda| vec![agenda])
        })
        .await
    }

    async fn next_schedules(&self, queue: &Place, _: usize, limit: usize) -> Answer<Agenda> {
        self.with_rows(&self.thread, queue, move |at, queue| at.next_schedules(&queue, limit)).await
    }

    async fn fire_schedule(&self, queue: &Place, was: &Scheduled, firing: Firing) -> Answer<bool> {
        let was = was.clone();
        let fire = move |at: &Work<'_>, queue: Place, _| at.fire_schedule(&queue, &was, firing);
        let has_fired = self.call(&self.thread, Kind::Grows, queue, fire).await?;
        self.wake_getters(queue.id);
        Ok(has_fired)
    }

    async fn record_activity(&self, queue: &Place, record: Record) -> Answer<Recorded> {
        let work = move |at: &Work<'_>, queue: Place, _| at.record_activity(&queue, &record);
        self.call(&self.thread, Kind::Grows, queue, work).await
    }

    async fn read_activity(&self, queue: &Place, which: Which) -> Answer<Parts> {
        self.with_rows(self.quick_reader(), queue, move |at, queue| at.read_activity(&queue, which))
            .await
    }

    async fn merge_activity(&self, queue: &Place, merging: Merging) -> Answer<bool> {
        self.with_rows(&self.thread, queue, move |at, queue| at.merge_activity(&queue, &merging))
            .await
    }

    async fn record_action(&self, queue: &Place, action: ActionRecord) -> Answer<()> {
        self.update_rows(queue, move |at, queue| at.record_action(&queue, &action)).await
    }

    async fn last_actions(&self, queue: &Place) -> Answer<Vec<ActionRecord>> {
        self.with_rows(self.quick_reader(), queue, |at, queue| at.last_actions(&queue)).await
    }

    async fn is_paused(&self, queue: &Place) -> Answer<bool> {
        let is_paused = |_: &Work<'_>, _, standing: Standing| Ok(standing.is_paused);
        self.call(self.quick_reader(), Kind::Plain, queue, is_paused).await
    }

    async fn read_rate(&self, queue: &Place) -> Answer<Option<Throttle>> {
        let throttle = |at: &Work<'_>, _, standing: Standing| {
            Ok(standing.gate.map(|gate| gate.throttle(at.now)))
        };
        self.call(self.quick_reader(), Kind::Plain, queue, throttle).await
    }

    async fn set_rate(&self, queue: &Place, rate: Option<Rate>) -> Answer<()> {
        self.update_rows(queue, move |at, queue| at.set_rate(&queue, rate)).await?;
        self.wake_getters(queue.id);
        Ok(())
    }

    async fn set_first_rate(&self, queue: &Place, rate: Rate) -> Answer<Rate> {
        let rate = self.update_rows(queue, move |at, queue| at.set_first_rate(&queue, rate)).await;
        self.wake_getters(queue.id);
        rate
    }

    async fn send_completions(&self, queue: &Place, ends: Vec<End>, _: Tried) -> Answers<bool> {
        let (held, freed) = self
            .with_rows(&self.thread, queue, move |at, queue| at.finish_deliveries(&queue, ends))
            .await?;
        self.wake_for_groups(queue, &freed);
        Ok(held)
    }

    async fn renew_leases(
        &self,
        queue: &Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<Vec<Renewed>> {
        self.with_rows(&self.thread, queue, move |at, queue| at.renew_leases(&queue, &held, lease))
            .await
    }

    async fn cancel_keys(
        &self,
        queue: &Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answers<bool> {
        self.update_rows(queue, move |at, queue| at.cancel_keys(&queue, &keys, only)).await
    }

    async fn cancel_running(&self, queue: &Place, key: &Key) -> Answer<CancelledRun> {
        let key = key.clone();
        self.update_rows(queue, move |at, queue| at.cancel_running(&queue, &key)).await
    }

    async fn cancel_signal(&self, queue: &Place) -> Answer<u64> {
        // Other processes do not send wakes to this process, so it polls this value.
        self.with_rows(self.quick_reader(), queue, |at, queue| at.cancel_sum(&queue)).await
    }

    async fn make_ready(&self, queue: &Place, keys: Vec<Key>, from: State) -> Answers<bool> {
        let ready =
            self.update_rows(queue, move |at, queue| at.make_ready(&queue, &keys, from)).await?;
        self.wake_getters(queue.id);
        Ok(ready)
    }

    async fn look_up(&self, queue: &Place, key: &Key) -> Answer<Option<Entry>> {
        let key = key.clone();
        self.with_rows(self.quick_reader(), queue, move |at, queue| at.look_up(&queue, key)).await
    }

    async fn read_attempts(&self, queue: &Place, key: &Key) -> Answer<Vec<Attempt>> {
        let key = key.clone();
        self.with_rows(self.quick_reader(), queue, move |at, queue| at.read_attempts(&queue, &key))
            .await
    }

    async fn read_page(
        &self,
        queue: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Entry>> {
        let after = after.cloned();
        self.with_rows(self.slow_reader(), queue, move |at, queue| {
            at.read_page(&queue, state, after, limit)
        })
        .await
    }

    async fn count_keys(&self, queue: &Place) -> Answer<StateCounts> {
        self.with_rows(self.slow_reader(), queue, |at, queue| at.count_keys(&queue)).await
    }

    async fn is_idle(&self, queue: &Place) -> Answer<bool> {
        // The thread for slow reads may be busy with a long count.
        self.with_rows(&self.thread, queue, |at, queue| at.is_idle(&queue)).await
    }

    fn subscribe_wakes(&self, queue: &Place) -> watch::Receiver<u64> {
        lock(&queue.turns).hear_wakes();
        self.wakes.subscribe(queue)
    }

    fn max_batches(&self) -> usize {
        // The engine writes one batch at a time. Meanwhile, the second batch collects further requests.
        2
    }
}
