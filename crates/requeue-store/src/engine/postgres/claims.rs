//! Claims keys, and scans for keys that claims have skipped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::listening::{QueueWakes, Task};
use super::sessions::Sessions;
use super::watermark::{LOWEST, Snapshot, Watermark};
use crate::engine::{Claim, Claimed, Place, lock};
use crate::types::error::Answer;

/// The time after the next poll of a process for which the server's record of its wait remains valid: see
/// `requeue.wait`.
pub(super) const SAID: Duration = Duration::from_secs(4);
/// Scans of all keys below the watermark use at most 1 / `WHOLE_SHARE` of the time.
const WHOLE_SHARE: u32 = 20;
/// Scans for the keys of a late transaction use at most 1 / `LATE_SHARE` of the time. This share is greater than that
/// of scans of all keys, because a scan for the keys of one transaction reads fewer rows, and a worker may be waiting
/// for one of the keys.
const LATE_SHARE: u32 = 4;

/// Claims keys for one process.
#[derive(Clone, Debug)]
pub(super) struct Claims(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sessions: Sessions,
    wakes: Arc<QueueWakes>,
    /// True if this process receives notifications from adds.
    listens: bool,
    has_warned: AtomicBool,
    /// The interval between scans of all keys below the watermark. If it is zero, each claim searches all keys.
    every: Duration,
    queues: Mutex<HashMap<i64, Known>>,
}

/// The state of a queue that this process keeps between two claims.
#[derive(Debug)]
struct Known {
    watermark: Watermark,
    /// The time from which a scan of all keys below the watermark is due.
    whole_at: Instant,
    /// True if a scan of all keys is due now.
    is_whole_due: bool,
    /// The earliest time of the next scan for the keys of late transactions.
    scan_at: Instant,
    is_scanning: bool,
    /// The earliest time at which a lease expires, as the last scan has found it.
    lease_at: Option<Instant>,
    /// The time until which the claiming task sleeps after its last claim.
    sleeps_until: Instant,
    /// The task that wakes the claiming task before `sleeps_until`.
    alarm: Option<Task>,
    /// The time until which the server has a record that this process waits.
    said_until: Instant,
    /// True if the next claim must visit the named groups again, because transactions are in progress.
    is_repeating: bool,
}

impl Known {
    fn new(now: Instant) -> Self {
        Self {
            watermark: Watermark::new(now),
            whole_at: now,
            is_whole_due: false,
            scan_at: now,
            is_scanning: false,
            lease_at: None,
            sleeps_until: now,
            alarm: None,
            said_until: now,
            is_repeating: false,
        }
    }
}

impl Claims {
    pub(super) fn new(
        sessions: Sessions,
        wakes: Arc<QueueWakes>,
        listens: bool,
        every: Duration,
    ) -> Self {
        let queues = Mutex::default();
        let has_warned = AtomicBool::new(false);
        Self(Arc::new(Shared { sessions, wakes, listens, has_warned, every, queues }))
    }

    pub(super) async fn claim(&self, queue: &Place, claim: &Claim) -> Answer<Claimed> {
        let was_named = queue.group_by.is_some() && lock(&queue.turns).has_named();
        let (mut claimed, snapshot) = self.claim_once(queue, claim).await?;
        if claim.poll.is_zero() {
            // No caller waits for a key, so no notification is needed.
            return Ok(claimed);
        }
        if queue.group_by.is_some() && claimed.items.is_empty() {
            self.visit_named_again(queue, was_named, &snapshot);
        }
        if claimed.items.is_empty() && self.say_waiting(queue, claim.poll).await? {
            // An add that ran before the server had this process's record sent no notification. Therefore, the claim is
            // repeated.
            let (again, snapshot) = self.claim_once(queue, claim).await?;
            let next = claimed.next.into_iter().chain(again.next).min();
            let parked = [claimed.parked, again.parked].concat();
            claimed = Claimed { next, parked, ..again };
            self.0.with_queue(queue.id, |known| {
                known.watermark.note_announced(&snapshot, Instant::now())
            });
        }
        if claimed.items.is_empty() {
            let sleep = claimed.next.map_or(claim.poll, |next| next.min(claim.poll));
            self.0.set_alarm(queue.id, sleep);
        }
        Ok(claimed)
    }

    /// Makes the next claim start a scan of all keys below the watermark.
    pub(super) fn scan_soon(&self, queue: &Place) {
        self.0.with_queue(queue.id, |known| known.is_whole_due = true);
    }

    async fn claim_once(&self, queue: &Place, claim: &Claim) -> Answer<(Claimed, Snapshot)> {
        let is_each_whole = self.0.every.is_zero();
        let mut begun = self.0.with_queue(queue.id, |known| known.watermark.begin(Instant::now()));
        // The list of transactions in progress decides whether the named groups are visited again.
        begun.names_newest |= queue.group_by.is_some() && lock(&queue.turns).has_named();
        if is_each_whole {
            // If the interval is zero, each claim searches all keys, and needs no scan.
            begun.lows = LOWEST;
        }
        let sessions = &self.0.sessions;
        let (mut claimed, lows, snapshot) =
            sessions.claim(queue, claim, &begun.lows, begun.names_newest).await?;
        if is_each_whole {
            let (_, lease) = sessions.passed_over(queue.id, &LOWEST, &lows).await?;
            if claimed.items.len() < claim.max {
                claimed.next = claimed.next.into_iter().chain(lease).min();
            }
        }
        let scans = self.0.with_queue(queue.id, |known| {
            known.watermark.note_claim(&begun, lows, &snapshot, claimed.items.is_empty());
            let now = Instant::now();
            if known.whole_at <= now {
                known.is_whole_due = true;
                known.whole_at = now + self.0.every;
            }
            let is_due = known.watermark.is_suspect() || known.is_whole_due;
            let scans = is_due && !known.is_scanning && !is_each_whole;
            // The lock protects both the check and the change of the flag, so only one task at a time scans a queue.
            known.is_scanning |= scans;
            scans
        });
        if scans {
            // A scan may take longer than a claim. It runs in a separate task, so that no getter waits for it.
            let shared = Arc::clone(&self.0);
            let mut scan = Scan { shared, queue: queue.id, has_ended: false };
            tokio::spawn(async move { while scan.run_step().await {} });
        }
        Ok((claimed, snapshot))
    }

    /// Makes claims visit the groups that a wake has named again, until the transactions that were in progress have
    /// ended.
    ///
    /// Suppose that a completion and an add are both uncommitted. The completion still occupies a place in the group,
    /// and does not see the key of the add. When the add commits, the process that it wakes finds the group at its
    /// limit. When the completion commits, it wakes no process.
    fn visit_named_again(&self, queue: &Place, was_named: bool, snapshot: &Snapshot) {
        let is_unaware = self.0.with_queue(queue.id, |known| {
            if was_named && !known.is_repeating {
                known.watermark.note_announced(snapshot, Instant::now());
            }
            known.is_repeating = known.watermark.has_unaware();
            known.is_repeating
        });
        if is_unaware {
            lock(&queue.turns).name_groups_again();
        }
    }

    /// Requests notifications from adds, until this process claims again after `poll`. Returns true if adds did not
    /// notify this process before this call.
    async fn say_waiting(&self, queue: &Place, poll: Duration) -> Answer<bool> {
        let now = Instant::now();
        if !self.0.listens {
            if !self.0.has_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "a pooler does not pass notifications on, so this process polls for keys; \
                     add listen=HOST:PORT, the address of the server itself, to the store's address"
                );
            }
            return Ok(false);
        }
        if self.0.with_queue(queue.id, |known| now + poll <= known.said_until) {
            return Ok(false);
        }
        // The server keeps the record for longer than one poll interval, so most claims need not renew it.
        self.0.sessions.announce_wait(queue, poll + SAID).await?;
        // The time begins before the request. Therefore, the server keeps the record for longer than this process
        // assumes.
        self.0.with_queue(queue.id, |known| known.said_until = now + poll + SAID);
        Ok(true)
    }
}

impl Shared {
    /// Schedules a wake of the claiming task if it should claim again before the end of `sleep`, for which it would
    /// sleep. Unlike [`Claimed::next`], this wake does not mean that a key is ready.
    fn set_alarm(&self, queue: i64, sleep: Duration) {
        let now = Instant::now();
        self.with_queue(queue, |known| {
            let lease = known.lease_at.filter(|&at| at > now);
            let pause = known.watermark.claim_pause(now).map(|pause| now + pause);
            let alarm_at = lease.into_iter().chain(pause).min().filter(|&at| at < now + sleep);
            known.sleeps_until = alarm_at.unwrap_or(now + sleep);
            known.alarm = alarm_at.map(|at| {
                let wakes = Arc::clone(&self.wakes);
                let alarm = tokio::spawn(async move {
                    tokio::time::sleep_until(at.into()).await;
                    wakes.getters().end_pause(queue);
                });
                Task::new(&alarm)
            });
        });
    }

    fn with_queue<T>(&self, queue: i64, what: impl FnOnce(&mut Known) -> T) -> T {
        what(lock(&self.queues).entry(queue).or_insert_with(|| Known::new(Instant::now())))
    }
}

/// Runs scans until no scan is due.
struct Scan {
    shared: Arc<Shared>,
    queue: i64,
    has_ended: bool,
}

impl Scan {
    /// Waits until the next scan is due, and runs it. Returns true if a further scan may be due.
    async fn run_step(&mut self) -> bool {
        let Self { shared, queue, has_ended } = self;
        let scan_at = shared
            .with_queue(*queue, |known| known.watermark.is_suspect().then_some(known.scan_at));
        if let Some(scan_at) = scan_at {
            tokio::time::sleep_until(scan_at.into()).await;
        }
        let suspect = shared.with_queue(*queue, |known| {
            let suspect = known.watermark.take_suspect().or_else(|| {
                let is_due = std::mem::take(&mut known.is_whole_due);
                is_due.then(|| (LOWEST, known.watermark.current_lows()))
            });
            // The lock protects both the flag and the range. Therefore, if a later claim finds a suspect range, it
            // starts another task.
            known.is_scanning = suspect.is_some();
            suspect
        });
        let Some((floors, lows)) = suspect else {
            // If the task stops before this line, because of a panic or a shutdown, its drop resets `is_scanning`.
            *has_ended = true;
            return false;
        };
        let began = Instant::now();
        let scanned = shared.sessions.passed_over(*queue, &floors, &lows).await;
        let took = began.elapsed();
        let tells = shared.with_queue(*queue, |known| match scanned {
            Ok((found, lease)) => {
                if floors == LOWEST {
                    // The interval is proportional to the duration of the scan, so that scans of a large table are
                    // rare.
                    known.whole_at = began + shared.every.max(took * WHOLE_SHARE);
                    known.lease_at = lease.map(|lease| Instant::now() + lease);
                } else {
                    known.scan_at = began + took * LATE_SHARE;
                }
                let is_sooner = known.lease_at.is_some_and(|at| at < known.sleeps_until);
                known.watermark.note_scan(found) || is_sooner
            }
            Err(fault) => {
                let error = fault.source;
                tracing::warn!(%error, "a scan for late keys failed, and is tried again");
                // The scan has failed, so its range is marked as suspect again. Otherwise, only the next scan of all
                // keys would find the keys.
                known.watermark.mark_suspect(floors);
                // The next scan waits, so that the server can recover from the failure.
                known.scan_at = began + Duration::from_secs(1);
                false
            }
        });
        if tells {
            shared.wakes.getters().end_pause(*queue);
        }
        true
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        // This branch is for a shutdown of the runtime and for a panic of the task.
        if !self.has_ended {
            self.shared.with_queue(self.queue, |known| known.is_scanning = false);
        }
    }
}

#[cfg(test)]
impl Claims {
    /// Returns the time until the alarm wakes the claiming task, or `None` if the task sleeps until its poll.
    pub(super) fn alarm(&self, queue: &Place) -> Option<Duration> {
        self.0.with_queue(queue.id, |known| {
            let sleep = known.sleeps_until.saturating_duration_since(Instant::now());
            known.alarm.as_ref().map(|_| sleep)
        })
    }

    pub(super) fn watermark<T>(&self, queue: &Place, what: impl FnOnce(&Watermark) -> T) -> T {
        self.0.with_queue(queue.id, |known| what(&known.watermark))
    }
}
