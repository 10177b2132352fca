//! Fires the due schedules of a queue: adds their keys, and computes their next times.

use std::collections::{HashSet, VecDeque};
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::client::shared::Shared;
use crate::engine::outage::Part;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::time::{Micros, until};
use crate::types::calendar::Calendar;
use crate::types::error::{Answer, EngineError, Kind};
use crate::types::key::Key;

/// The maximum number of schedules that one request returns, in addition to the failed schedules.
const PAGE: usize = 64;
/// The maximum number of failed schedules that one look retries. A look also stops after this number of failures of the
/// kind `Unable`, because each of these failures can take as long as the wait for a lock.
const RETRIES: usize = 8;
/// The minimum and the maximum delay of a retry. Each consecutive failure doubles the delay.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// After this number of poll intervals, a process looks at the schedules, even if no claim has reported a due schedule.
const POLLS: u32 = 10;

type Work = Pin<Box<dyn Future<Output = Looked> + Send>>;

/// The next times at which this process looks at the schedules of each shard. Each shard has separate times, so that a
/// shard that does not answer does not delay the others.
pub(crate) struct Timetable {
    shards: Vec<ShardTimes>,
    /// Until this time, a claim causes no look. A claim reports only the earliest due time, and the schedule with this
    /// time has just failed.
    quiet_until: Option<Instant>,
    /// The maximum interval between two looks of a process that claims keys. These looks find the due schedules even if
    /// the store has lost the due time that claims report.
    review: Duration,
}

#[derive(Default)]
struct ShardTimes {
    due_at: Option<Instant>,
    review_at: Option<Instant>,
    looking: Option<Work>,
    failing: Failing,
}

/// The schedules of a shard whose last firing failed.
#[derive(Default)]
struct Failing {
    /// The keys of the schedules, in the order of their failures.
    held: VecDeque<Key>,
    /// True if the shard did not answer.
    is_silent: bool,
    retry_at: Option<Instant>,
    pause: Duration,
}

/// The result of a look at the schedules of a shard.
struct Looked {
    next: Option<Instant>,
    failing: Failing,
}

impl Timetable {
    pub(crate) fn new(shards: usize, poll: Duration) -> Self {
        let shards = (0..shards).map(|_| ShardTimes::default()).collect();
        Self { shards, quiet_until: None, review: poll.saturating_mul(POLLS) }
    }

    /// Records the time until a schedule is due, as a claim has reported it.
    ///
    /// The earliest reported time is used. A claim and a request for schedules can overlap, so each of them can miss a
    /// schedule that the other has found. A time that is out of date costs one request, which returns the current time.
    pub(crate) fn note_due(&mut self, time: Option<Duration>) {
        let now = Instant::now();
        let due_at = time.and_then(|time| now.checked_add(time));
        let quiet_until = self.quiet_until;
        for shard in &mut self.shards {
            let due_at = due_at.map(|at| quiet_until.unwrap_or(at).max(at));
            shard.review_at = shard.review_at.or_else(|| now.checked_add(self.review));
            let due_at = due_at.into_iter().chain(shard.review_at).min();
            let due_at = due_at.map(|at| shard.failing.delay(at));
            shard.due_at = shard.due_at.into_iter().chain(due_at).min();
        }
    }

    /// Starts a look at each shard that has a due schedule.
    pub(crate) fn begin(&mut self, shared: impl Fn() -> Option<Arc<Shared>>) {
        let now = Instant::now();
        for (number, shard) in self.shards.iter_mut().enumerate() {
            if shard.looking.is_none()
                && shard.due_at.is_some_and(|at| at <= now)
                && let Some(shared) = shared()
            {
                (shard.due_at, shard.review_at) = (None, None);
                let failing = std::mem::take(&mut shard.failing);
                shard.looking = Some(Box::pin(async move { look(&shared, number, failing).await }));
            }
        }
    }

    /// Waits until a schedule is due, or until a look has completed.
    pub(crate) async fn changed(&mut self) {
        let idle = self.shards.iter().filter(|shard| shard.looking.is_none());
        let due_at = idle.filter_map(|shard| shard.due_at).min();
        let due = async {
            match due_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            (number, looked) = looked(&mut self.shards) => self.end_look(number, looked),
            () = due => {}
        }
    }

    fn end_look(&mut self, number: usize, Looked { next, failing }: Looked) {
        if failing.retry_at.is_some() {
            self.quiet_until = Instant::now().checked_add(PAUSES.0);
        }
        let shard = &mut self.shards[number];
        // During the look, a claim may have reported the due time of a schedule that failed in this look.
        let due_at = shard.due_at.map(|at| failing.delay(at).max(self.quiet_until.unwrap_or(at)));
        // The future is removed, because a completed future must not be polled again.
        shard.looking = None;
        shard.due_at = due_at.into_iter().chain(next).min();
        shard.failing = failing;
    }
}

impl Failing {
    /// Returns the time of a look that is due at `at`. If the shard does not answer, the look is delayed until the
    /// retry.
    fn delay(&self, at: Instant) -> Instant {
        self.retry_at.filter(|_| self.is_silent).map_or(at, |retry_at| retry_at.max(at))
    }

    /// Sets the time of the next attempt.
    fn back_off(&mut self) {
        self.pause = (self.pause * 2).clamp(PAUSES.0, PAUSES.1);
        self.retry_at = Instant::now().checked_add(self.pause);
    }
}

/// Waits until the first look completes. Returns the number of its shard and its result.
async fn looked(shards: &mut [ShardTimes]) -> (usize, Looked) {
    poll_fn(|context| {
        for (number, shard) in shards.iter_mut().enumerate() {
            if let Some(looking) = &mut shard.looking
                && let Poll::Ready(looked) = looking.as_mut().poll(context)
            {
                return Poll::Ready((number, looked));
            }
        }
        Poll::Pending
    })
    .await
}

/// Fires the due schedules of a shard. Failed schedules wait for their retry. One look retries only a few of them, so
/// that they do not delay the other schedules.
async fn look(shared: &Shared, number: usize, mut failing: Failing) -> Looked {
    let is_retry = failing.retry_at.is_none_or(|at| at <= Instant::now());
    let mut held = std::mem::take(&mut failing.held);
    if is_retry {
        held.drain(..RETRIES.min(held.len()));
    }
    let held_before = held.len();
    let fired = timeout(shared.options.lease, fire_page(shared, number, &mut held)).await;
    let fired = fired.unwrap_or_else(|_| Err(EngineError::late()));
    failing.is_silent = fired.is_err();
    let next = fired.unwrap_or_else(|fault| {
        // The failure is only noted: if the queue was dropped, the next claim reports it.
        shared.place.note_failure(Part::Shard(number), &fault);
        None
    });
    failing.held = held;
    if !failing.is_silent && failing.held.is_empty() {
        failing = Failing::default();
    } else if is_retry && !failing.is_silent && failing.held.len() == held_before {
        // All retried schedules were fired, so the cause of the failures may no longer exist. The next retry is
        // immediate.
        failing.retry_at = Some(Instant::now());
        failing.pause = Duration::ZERO;
    } else if is_retry || failing.is_silent {
        failing.back_off();
    }
    Looked { next: next.into_iter().chain(failing.retry_at).min(), failing }
}

/// Fires the due schedules of a shard, except the schedules in `held`. Adds each schedule that fails to `held`. Returns
/// the time of the next look.
async fn fire_page(
    shared: &Shared,
    number: usize,
    held: &mut VecDeque<Key>,
) -> Answer<Option<Instant>> {
    let Shared { engine, place, .. } = shared;
    let began = Instant::now();
    let held_before: HashSet<Key> = held.iter().cloned().collect();
    let limit = PAGE + held.len();
    let Agenda { now, schedules } = engine.next_schedules(place, number, limit).await?;
    let is_full = schedules.len() == limit;
    let mut unable = 0;
    let mut next = None;
    let mut sooner = |at: Option<Instant>| next = next.into_iter().chain(at).min();
    for schedule in schedules {
        match schedule.due_at().filter(|_| !held_before.contains(&schedule.key)) {
            Some(at) if at <= now => match fire(shared, &schedule, now).await {
                // The schedule now has another due time, which this process or another process has set. The next page
                // contains that time.
                Ok(_) => sooner(Some(began)),
                Err(fault) => {
                    unable += usize::from(fault.kind == Kind::Unable);
                    if unable == RETRIES
                        || matches!(fault.kind, Kind::Absent | Kind::Unsure | Kind::Dropped)
                    {
                        return Err(fault);
                    }
                    place.note_failure(Part::Shard(number), &fault);
                    held.push_back(schedule.key);
                }
            },
            Some(at) => sooner(began.checked_add(until(now, at))),
            None => {}
        }
    }
    if is_full && held.len() > held_before.len() {
        // If all schedules of this page failed, later pages may still have due schedules. The next look reads a longer
        // page.
        sooner(Some(began));
    }
    Ok(next)
}

/// Fires the schedule `was`, which was read at the time `now`. Returns false if another process has changed the
/// schedule.
pub(crate) async fn fire(shared: &Shared, was: &Scheduled, now: Micros) -> Answer<bool> {
    let calendar = Calendar::parse(&was.spec, &was.zone);
    let next = calendar.and_then(|calendar| calendar.next_after(was.next_at, now));
    let firing = match next {
        Ok(next) => Firing::Next(next),
        Err(why) => {
            let (queue, key) = (&shared.place.name, &was.key);
            tracing::warn!(queue, %key, why, "the schedule was refused, and adds nothing until it is changed or resumed");
            Firing::Refused(why)
        }
    };
    shared.engine.fire_schedule(&shared.place, was, firing).await
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const SOON: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn a_claim_tells_of_a_schedule_that_is_stored_while_others_are_read() {
        for read in [None, Some(HOUR)] {
            let mut timetable = Timetable::new(1, HOUR);
            let next = read.map(|read| Instant::now() + read);
            let looked = Looked { next, failing: Failing::default() };
            timetable.shards[0].looking = Some(Box::pin(ready(looked)));
            timetable.note_due(Some(SOON));
            timetable.changed().await;
            let start = Instant::now();
            assert!(timetable.shards[0].looking.is_none());
            timeout(2 * SOON, timetable.changed()).await.expect("the schedule is due");
            // A claim that began earlier does not know this schedule. Because this time is recorded, the answer of that
            // claim does not hide the schedule.
            timetable.note_due(read);
            assert_eq!(timetable.shards[0].due_at, Some(start + SOON));
        }
    }
}
