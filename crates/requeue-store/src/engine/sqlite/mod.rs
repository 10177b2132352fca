//! SQLite stores: a file for all processes of one machine.

mod clock;
mod operations;
mod place;
mod reserve;
mod rows;
mod schema;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use requeue::CancelledRun;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::clock::Clock;
use self::thread::{Busy, Kind, Thread, Work};
use crate::engine::{
    Answer, Ask, BoxFuture, Claim, Claimed, Dropped, End, Engine, Place, Renewed, Settings, lock,
};
use crate::types::add::Added;
use crate::types::error::EngineError;
use crate::types::inspect::{Entry, QueueInfo, State, StateCounts};
use crate::types::key::Key;

/// The number of keys of a dropped queue that one transaction removes.
const SWEPT: usize = 10_000;

/// The durability of commits after a power failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Synchronous {
    /// The last commits before the failure may be lost.
    #[default]
    Normal,
    /// All acknowledged commits survive.
    Full,
}

#[derive(Debug)]
pub(crate) struct Sqlite {
    thread: Thread,
    /// The threads for operations that only read, if there are any: one that reads many keys, and one that
    /// reads a few rows. A long count or search must not delay the state of the queue and of single keys.
    readers: Option<[Thread; 2]>,
    wakes: Mutex<HashMap<i64, watch::Sender<u64>>>,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, synchronous: Synchronous) -> Result<Self, EngineError> {
        Self::open_with(path, synchronous, clock::of_machine())
    }

    fn open_with(path: &Path, synchronous: Synchronous, clock: Clock) -> Result<Self, EngineError> {
        let (thread, readers) = Thread::start(path, synchronous, clock)?;
        Ok(Self { thread, readers, wakes: Mutex::default() })
    }

    fn wake_sender(&self, queue: i64) -> watch::Sender<u64> {
        let mut wakes = lock(&self.wakes);
        wakes.entry(queue).or_insert_with(|| watch::Sender::new(0)).clone()
    }

    /// Returns the thread for operations that may read all keys.
    fn slow_reader(&self) -> &Thread {
        self.readers.as_ref().map_or(&self.thread, |[slow, _]| slow)
    }

    /// Returns the thread for operations that read a few rows.
    fn quick_reader(&self) -> &Thread {
        self.readers.as_ref().map_or(&self.thread, |[_, quick]| quick)
    }

    /// Wakes the getters of this process that wait for keys of the queue.
    fn wake_getters(&self, queue: i64) {
        self.wake_sender(queue).send_modify(|wakes| *wakes += 1);
    }

    async fn change_rows<T: Send + 'static>(
        &self,
        queue: &Place,
        work: impl FnOnce(&Work<'_>, Place) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        self.call(&self.thread, Kind::Plain, queue, |at, queue, _| work(at, queue)).await
    }

    /// As [`change_rows`](Self::change_rows), for a caller that does not try again. Waits for other processes as long as an
    /// add does.
    async fn update_rows<T: Send + 'static>(
        &self,
        queue: &Place,
        work: impl Fn(&Work<'_>, Place) -> rusqlite::Result<T> + Send + Sync + 'static,
    ) -> Result<T, EngineError> {
        let work = Arc::new(work);
        let attempt = || -> Answer<'_, T> {
            let work = Arc::clone(&work);
            Box::pin(self.change_rows(queue, move |at, queue| work(at, queue)))
        };
        retry_patiently(attempt).await
    }

    async fn read_rows<T: Send + 'static>(
        &self,
        reader: &Thread,
        queue: &Place,
        work: impl FnOnce(&Work<'_>, Place) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        self.call(reader, Kind::Plain, queue, |at, queue, _| work(at, queue)).await
    }

    /// Runs `work` on a thread with the queue, and whether the queue is paused. Fails if the queue was dropped.
    async fn call<T: Send + 'static>(
        &self,
        thread: &Thread,
        kind: Kind,
        queue: &Place,
        work: impl FnOnce(&Work<'_>, Place, bool) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        let place = queue.clone();
        let called = thread.call_as(kind, move |at| match at.is_paused(&place)? {
            Some(is_paused) => work(at, place, is_paused).map(Some),
            None => Ok(None),
        });
        called.await?.ok_or_else(|| EngineError::dropped(&queue.name))
    }

    /// Runs `work` on a thread after a check of the schema. Waits while another process has the file locked.
    async fn call_checked<T: Send + 'static>(
        &self,
        thread: &Thread,
        kind: Kind,
        work: impl Fn(&Work<'_>) -> rusqlite::Result<T> + Send + Sync + 'static,
    ) -> Result<T, EngineError> {
        let work = Arc::new(work);
        let attempt = || -> Answer<'_, T> {
            let work = Arc::clone(&work);
            Box::pin(async move {
                self.thread.check(schema::STEPS).await?;
                thread.call_as(kind, move |at| work(at)).await
            })
        };
        retry_patiently(attempt).await
    }

    /// Removes the keys of dropped queues, in short transactions that do not block others for long.
    async fn sweep(&self) -> Result<(), EngineError> {
        // In most cases nothing is left, and nothing must be written.
        while let Some(queue) = self.slow_reader().call(|at| at.left_over()).await? {
            let sweep = move || self.thread.call(move |at| at.sweep_keys(queue, SWEPT));
            retry_patiently(move || Box::pin(sweep())).await?;
        }
        Ok(())
    }
}

/// Retries while another process has the file locked. Retries once after another temporary failure: an attempt
/// that has found the disk full has released the reserve for the next one.
async fn retry_patiently<'a, T>(attempt: impl Fn() -> Answer<'a, T>) -> Result<T, EngineError> {
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

impl Engine for Sqlite {
    fn migrate_schema(&self) -> Answer<'_, ()> {
        Box::pin(async {
            retry_patiently(|| Box::pin(self.thread.migrate(schema::STEPS))).await?;
            // A process may have been killed between a drop and the removal of the keys.
            self.sweep().await
        })
    }

    fn open_queue<'a>(&'a self, name: &'a str, settings: Settings) -> Answer<'a, Place> {
        let name = name.to_owned();
        let open = move |at: &Work<'_>| at.open_queue(&name, settings);
        Box::pin(self.call_checked(&self.thread, Kind::Grows, open))
    }

    fn find_queue<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Place>> {
        let name = name.to_owned();
        Box::pin(self.call_checked(self.slow_reader(), Kind::Plain, move |at| at.find_queue(&name)))
    }

    fn drop_queue<'a>(&'a self, name: &'a str, keys_too: bool) -> Answer<'a, Dropped> {
        let name = name.to_owned();
        Box::pin(async move {
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
        })
    }

    fn close_files(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // The writer is closed last, because SQLite copies the log when the last connection closes.
            for reader in self.readers.iter().flatten() {
                reader.close().await;
            }
            // If no other process has the file open, SQLite now copies the log into it and deletes the log.
            self.thread.close().await;
        })
    }

    fn list_queues(&self) -> Answer<'_, Vec<QueueInfo>> {
        Box::pin(self.call_checked(self.slow_reader(), Kind::Plain, |at| at.list_queues()))
    }

    fn add_keys<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Added>> {
        Box::pin(async move {
            let add = move |at: &Work<'_>, queue: Place, _| at.add_keys(&queue, &asks);
            let added = self.call(&self.thread, Kind::Grows, queue, add).await?;
            self.wake_getters(queue.id);
            Ok(added)
        })
    }

    fn claim_keys<'a>(&'a self, queue: &'a Place, claim: Claim) -> Answer<'a, Claimed> {
        let kind = if claim.poll.is_zero() { Kind::Patient } else { Kind::Plain };
        let work =
            move |at: &Work<'_>, queue: Place, is_paused| at.claim_keys(&queue, &claim, is_paused);
        Box::pin(self.call(&self.thread, kind, queue, work))
    }

    fn set_paused<'a>(&'a self, queue: &'a Place, paused: bool) -> Answer<'a, ()> {
        Box::pin(async move {
            self.update_rows(queue, move |at, queue| at.set_paused(&queue, paused)).await?;
            self.wake_getters(queue.id);
            Ok(())
        })
    }

    fn is_paused<'a>(&'a self, queue: &'a Place) -> Answer<'a, bool> {
        let is_paused = |_: &Work<'_>, _, is_paused| Ok(is_paused);
        Box::pin(self.call(self.quick_reader(), Kind::Plain, queue, is_paused))
    }

    fn finish_deliveries<'a>(&'a self, queue: &'a Place, ends: Vec<End>) -> Answer<'a, Vec<bool>> {
        Box::pin(async move {
            let held = self
                .change_rows(queue, move |at, queue| at.finish_deliveries(&queue, ends))
                .await?;
            self.wake_getters(queue.id);
            Ok(held)
        })
    }

    fn renew_leases<'a>(
        &'a self,
        queue: &'a Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<'a, Vec<Renewed>> {
        Box::pin(self.change_rows(queue, move |at, queue| at.renew_leases(&queue, &held, lease)))
    }

    fn cancel_keys<'a>(
        &'a self,
        queue: &'a Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answer<'a, Vec<Option<bool>>> {
        Box::pin(self.update_rows(queue, move |at, queue| at.cancel_keys(&queue, &keys, only)))
    }

    fn cancel_running<'a>(&'a self, queue: &'a Place, key: &'a Key) -> Answer<'a, CancelledRun> {
        let key = key.clone();
        Box::pin(self.update_rows(queue, move |at, queue| at.cancel_running(&queue, &key)))
    }

    fn cancel_signal<'a>(&'a self, queue: &'a Place) -> Answer<'a, u64> {
        // Other processes do not send wakes.
        Box::pin(self.read_rows(self.quick_reader(), queue, |at, queue| at.cancel_sum(&queue)))
    }

    fn make_ready<'a>(
        &'a self,
        queue: &'a Place,
        keys: Vec<Key>,
        from: State,
    ) -> Answer<'a, Vec<Option<bool>>> {
        Box::pin(async move {
            let ready = self
                .update_rows(queue, move |at, queue| at.make_ready(&queue, &keys, from))
                .await?;
            self.wake_getters(queue.id);
            Ok(ready)
        })
    }

    fn look_up<'a>(&'a self, queue: &'a Place, key: &'a Key) -> Answer<'a, Option<Entry>> {
        let key = key.clone();
        Box::pin(
            self.read_rows(self.quick_reader(), queue, move |at, queue| at.look_up(&queue, key)),
        )
    }

    fn read_page<'a>(
        &'a self,
        queue: &'a Place,
        state: Option<State>,
        after: Option<&'a Key>,
        limit: usize,
    ) -> Answer<'a, Vec<Entry>> {
        let after = after.cloned();
        Box::pin(self.read_rows(self.slow_reader(), queue, move |at, queue| {
            at.read_page(&queue, state, after, limit)
        }))
    }

    fn count_keys<'a>(&'a self, queue: &'a Place) -> Answer<'a, StateCounts> {
        Box::pin(self.read_rows(self.slow_reader(), queue, |at, queue| at.count_keys(&queue)))
    }

    fn is_idle<'a>(&'a self, queue: &'a Place) -> Answer<'a, bool> {
        // The reading thread may be busy with a long count.
        Box::pin(self.change_rows(queue, |at, queue| at.is_idle(&queue)))
    }

    fn subscribe_wakes(&self, queue: &Place) -> watch::Receiver<u64> {
        self.wake_sender(queue.id).subscribe()
    }

    fn max_batches(&self) -> usize {
        // Only one batch is written at a time. A second one is collected meanwhile.
        2
    }
}
