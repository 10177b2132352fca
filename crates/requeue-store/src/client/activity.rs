//! Writes the activity of this process to the store, with a sign of life of its worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::client::leases::Leases;
use crate::client::store_clock::StoreClock;
use crate::engine::activity::{
    MINUTE, Parts, Record, Recorded, Which, by_minute, live_workers, merge_old, minute_of,
};
use crate::engine::defaults::SIGN;
use crate::engine::time::{micros, until};
use crate::engine::{Engine, Place};
use crate::types::activity::{Activity, LiveWorker, Minute, Tally};
use crate::types::error::{Answer, EngineError};
use crate::types::inspect::{Entry, State};

/// The mean interval between two writes while there is new activity.
const EVERY: Duration = Duration::from_secs(5);
/// The time limit of a write.
const LIMIT: Duration = Duration::from_secs(5);

/// Writes the activity of an open queue. A separate task writes regularly, so that no other operation waits for a
/// write.
#[derive(Debug)]
pub(crate) struct Recorder {
    engine: Arc<dyn Engine>,
    place: Arc<Place>,
    leases: Arc<Leases>,
    /// True while this process claims keys.
    claims: AtomicBool,
    clock: StoreClock,
    written: tokio::sync::Mutex<Written>,
}

/// The activity that this process has written.
///
/// The row of a minute contains the activity since `base`. The process rewrites the row until the minute is over.
/// Therefore, the activity of a write with an unknown result is counted once.
#[derive(Debug)]
struct Written {
    /// Identifies the rows that this process writes.
    instance: Arc<str>,
    /// The minute of the row, by the engine's clock.
    minute: Option<i64>,
    /// The activity of this process before this minute.
    base: Tally,
    /// The activity in the last write that may have succeeded.
    last: Tally,
    /// True if the result of the last write is unknown.
    is_unsure: bool,
    /// The time of the last write. The `bool` is true if the write was a sign of life.
    sign: Option<(Instant, bool)>,
}

impl Written {
    fn new() -> Self {
        let (minute, base, last, is_unsure, sign) = Default::default();
        Self { instance: new_instance(), minute, base, last, is_unsure, sign }
    }

    /// Returns true if there is activity to write, or a sign of life is due.
    fn is_due(&self, tally: &Tally, is_worker: bool) -> bool {
        let is_known = match self.sign {
            Some((at, true)) => is_worker && at.elapsed() < SIGN,
            Some((_, false)) | None => !is_worker,
        };
        self.is_unsure || !is_known || self.last != *tally
    }

    /// Records that a write begins. Until [`note_answer`](Self::note_answer), the result of the write is unknown.
    /// Returns the activity in the write before.
    fn begin(&mut self, tally: &Tally) -> Tally {
        if self.is_unsure && self.minute.is_none() {
            // The first write may have succeeded, but its minute is unknown. If this write is in the same minute, it
            // must not replace the row of the first write.
            (self.base, self.instance) = (self.last.clone(), new_instance());
        }
        self.is_unsure = true;
        std::mem::replace(&mut self.last, tally.clone())
    }

    /// Records the answer to a write. `before` is the result of [`begin`](Self::begin). Returns true if the store has
    /// written the row.
    fn note_answer(&mut self, before: Tally, answer: &Answer<Recorded>, is_worker: bool) -> bool {
        match answer {
            Ok(recorded) => {
                let is_over = self.minute.is_some_and(|minute| minute != recorded.minute);
                self.is_unsure = !recorded.is_written;
                if recorded.is_written {
                    self.sign = Some((Instant::now(), is_worker));
                } else {
                    self.last = before;
                }
                if is_over {
                    self.base = self.last.clone();
                }
                self.minute = Some(recorded.minute);
                recorded.is_written
            }
            // The queue was dropped, or the role of the connection has no right to write. The activity is discarded.
            Err(fault) if fault.kind.is_final() => {
                self.is_unsure = false;
                self.sign = Some((Instant::now(), is_worker));
                false
            }
            Err(fault) => {
                if !fault.kind.may_have_happened() {
                    self.last = before;
                }
                false
            }
        }
    }
}

fn new_instance() -> Arc<str> {
    format!("{:016x}", fastrand::u64(..)).into()
}

impl Recorder {
    /// Starts a task that writes the activity until the token is cancelled.
    pub(crate) fn start(
        engine: Arc<dyn Engine>,
        place: Arc<Place>,
        leases: Arc<Leases>,
        closed: CancellationToken,
    ) -> Arc<Self> {
        let (claims, written) = (AtomicBool::new(false), tokio::sync::Mutex::new(Written::new()));
        let clock = StoreClock::default();
        let recorder = Arc::new(Self { engine, place, leases, claims, clock, written });
        tokio::spawn(keep_recording(Arc::clone(&recorder), closed));
        recorder
    }

    /// Records whether this process claims keys. A process that claims keys is a worker.
    pub(crate) fn set_claims(&self, claims: bool) {
        self.claims.store(claims, Ordering::Relaxed);
    }

    fn is_worker(&self) -> bool {
        // A process with keys in flight is still a worker, because its last runs can continue long after a shutdown.
        self.claims.load(Ordering::Relaxed) || self.leases.len() > 0
    }

    /// Writes the activity that the store does not have yet. A failure is only logged, because other calls on the queue
    /// report an outage.
    pub(crate) async fn record(&self) {
        let recorded = timeout(LIMIT, self.write_new()).await;
        match recorded.unwrap_or_else(|_| Err(EngineError::late())) {
            Ok(()) => {}
            Err(fault) => {
                let (queue, error) = (&self.place.name, fault.source);
                tracing::debug!(queue, %error, "the numbers of this process were not written");
            }
        }
    }

    /// Looks for a jump of the store's clock, which concerns workers.
    async fn check_clock(&self) {
        if !self.is_worker() {
            return self.clock.forget();
        }
        let check = self.clock.check(&*self.engine, &self.place, self.leases.duration());
        // An outage is not reported here, because other calls on the queue report it.
        if let Ok(Some(jump)) = timeout(LIMIT, check).await {
            // The record has a separate time limit, because a jump is found only once.
            let _ = timeout(LIMIT, jump.record(&*self.engine, &self.place)).await;
        }
    }

    /// Returns the activity of this process that the last write has included.
    pub(crate) async fn last_written(&self) -> Tally {
        self.written.lock().await.last.clone()
    }

    async fn write_new(&self) -> Answer<()> {
        let mut written = self.written.lock().await;
        // The engine refuses a row whose minute is over, and names the current minute. The second write uses that
        // minute.
        for _ in 0..2 {
            let tally = self.place.meters.tally();
            let is_worker = self.is_worker();
            if !written.is_due(&tally, is_worker) {
                return Ok(());
            }
            let before = written.begin(&tally);
            let record = Record {
                minute: written.minute,
                instance: Arc::clone(&written.instance),
                worker: if is_worker { Arc::clone(&self.place.worker) } else { "".into() },
                tally: tally.since(&written.base),
            };
            let answer = self.engine.record_activity(&self.place, record).await;
            let is_written = written.note_answer(before, &answer, is_worker);
            if answer?.has_old && is_written {
                return merge_old(&*self.engine, &self.place).await;
            }
            if is_written {
                return Ok(());
            }
        }
        Ok(())
    }
}

async fn keep_recording(recorder: Arc<Recorder>, closed: CancellationToken) {
    // The random interval spreads the writes of processes that start together.
    let pause = || sleep(EVERY.mul_f64(0.8 + 0.4 * fastrand::f64()));
    while closed.run_until_cancelled(pause()).await.is_some() {
        recorder.record().await;
        recorder.check_clock().await;
    }
    recorder.set_claims(false);
    recorder.record().await;
}

/// The maximum number of keys in flight that the call reads, and assigns to their workers.
const RUNNING: usize = 256;
/// The time after its last sign of life for which a worker counts as alive.
const ALIVE: Duration = Duration::from_secs(30);

/// Reads the activity of all processes in the last `since`, for each minute, and the workers that are alive.
pub(crate) async fn read_activity(
    engine: &dyn Engine,
    place: &Place,
    since: Duration,
) -> Answer<Activity> {
    let which = Which::Since(micros(since.max(ALIVE)));
    let Parts { now, parts } = engine.read_activity(place, which).await?;
    let running = engine.read_page(place, Some(State::InFlight), None, RUNNING).await?;
    let ago = |minute: i64| until(minute.saturating_mul(MINUTE), now);
    let first = minute_of(now.saturating_sub(micros(since)));
    let minutes = by_minute(&parts).into_iter().filter(|(minute, _)| *minute >= first);
    let minutes = minutes.map(|(number, tally)| Minute { number, ago: ago(number), tally });
    let workers = live_workers(&parts, now.saturating_sub(micros(ALIVE))).into_iter();
    let workers = workers.map(|(name, at)| {
        let is_own = |entry: &&Entry| entry.worker.as_ref() == Some(&name);
        let running = running.iter().filter(is_own).cloned().collect();
        LiveWorker { name, seen: until(at, now), running }
    });
    Ok(Activity { period: ago(first), minutes: minutes.collect(), workers: workers.collect() })
}
