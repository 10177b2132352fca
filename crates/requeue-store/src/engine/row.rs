//! The record of a key, and the effect of each operation on the record. [`requeue_core::rule`] contains the rules. This
//! module is the reference: conformance tests compare it with the engines that implement the rules in SQL or Lua.

use std::sync::Arc;
use std::time::Duration;

use requeue::history::Ended;
use requeue::{CancelReason, CancelledRun};
use requeue_core::Phase;
use requeue_core::rule::{self, Adds, Cell, Failures, How, KeyState, Later, Start, Wait, Wish};

use crate::engine::past::{self, Ending};
use crate::engine::time::{Micros, after, micros, until};
use crate::engine::{Ask, Asked, Backoff, Delivery, Failing, Failure, Finish, Place};
use crate::types::add::{Added, Merge, ReaddPolicy};
use crate::types::inspect::{Entry, State};
use crate::types::key::Key;

/// The error that is stored when the lease of a key has expired. `claim.lua` and `operations.sql` repeat the text.
pub(crate) const LEASE_EXPIRED: &str = "the lease expired";

/// The maximum length, in bytes, of the trace contexts of a run. Contexts of later adds are dropped if they do not fit.
const MAX_TRACE: usize = 1024;

/// Returns the trace contexts of a run: the contexts of earlier adds and, if they fit, of later adds. Engines do not
/// interpret the contexts.
pub(crate) fn join_traces(earlier: Option<Arc<str>>, later: Option<Arc<str>>) -> Option<Arc<str>> {
    match (earlier, later) {
        (Some(earlier), Some(later)) if earlier.len() + later.len() < MAX_TRACE => {
            Some(format!("{earlier}\n{later}").into())
        }
        (earlier, later) => earlier.or(later),
    }
}

/// The record of a key. A key without a state has no record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Row {
    /// The due time of the pending run. A key has at most one pending run. If the key is in flight, the pending run is
    /// the run after the present one.
    pub(crate) at: Option<Micros>,
    /// The latest time to which debounced adds can postpone the pending run. It is `None` if the run does not wait for
    /// debounced adds.
    pub(crate) bound: Option<Micros>,
    pub(crate) run: Option<Run>,
    /// The name of the worker that has the key in flight. The worker's process has chosen the name.
    pub(crate) worker: Option<Arc<str>>,
    pub(crate) parked: bool,
    /// The number of consecutive failures.
    pub(crate) failures: u32,
    /// The number of failures that determines the next backoff. `until` is the time at which the last backoff is over.
    pub(crate) steps: u32,
    pub(crate) until: Micros,
    /// Under [`ReaddPolicy::Hold`], the next run does not start before this time.
    pub(crate) not_before: Micros,
    /// The parameters of the pending run. If no run is pending, the priority remains.
    pub(crate) asked: Asked,
    /// The time at which the key became ready or parked, or will become ready if it is waiting. If the key is in
    /// flight, the time at which it became dirty.
    pub(crate) since: Micros,
    /// The error of the last failure.
    pub(crate) error: Option<String>,
    /// The time of the last failure. It is `None` if the key has no failures.
    pub(crate) failed_at: Option<Micros>,
    /// The name of the group, which does not change while the record exists. It is `None` if the queue has no groups.
    pub(crate) group: Option<Arc<str>>,
    /// The trace contexts of the pending run's adds, one per line. See [`join_traces`].
    pub(crate) trace: Option<Arc<str>>,
    /// The trace contexts of the run in flight.
    pub(crate) run_trace: Option<Arc<str>>,
    /// The last completed runs: see [`past`].
    pub(crate) past: Option<Arc<[u8]>>,
}

/// A delivery that has not been completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) epoch: i64,
    pub(crate) lease_until: Micros,
    pub(crate) since: Micros,
    /// True if the run was cancelled. Its worker should stop it.
    pub(crate) is_cancelled: bool,
    /// The parameters of the run in flight.
    pub(crate) asked: Asked,
}

impl Row {
    /// Returns true if a run is pending and due.
    fn is_dirty(&self, now: Micros) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Returns the state of the key at the time `now`, which the rules use.
    const fn state_at(&self, now: Micros) -> StateAt<'_> {
        StateAt { row: self, now }
    }

    fn phase(&self, now: Micros) -> Phase {
        match (&self.run, self.is_dirty(now)) {
            (None, false) => Phase::Idle,
            (None, true) => Phase::Ready,
            (Some(_), false) => Phase::InFlight,
            (Some(_), true) => Phase::InFlightDirty,
        }
    }

    /// Returns true if the key may be delivered at the time `now`.
    pub(crate) fn is_ready(&self, now: Micros) -> bool {
        self.phase(now) == Phase::Ready
    }

    /// Returns true if the key is in flight and a further run is due.
    pub(crate) fn is_dirty_with_a_worker(&self, now: Micros) -> bool {
        self.phase(now) == Phase::InFlightDirty
    }

    const fn is_nothing(&self) -> bool {
        self.at.is_none() && self.run.is_none() && !self.parked
    }

    fn note_adds(&mut self, more: Asked) {
        let pending = self.at.map(|_| self.asked.priority);
        self.asked.priority = rule::priority(pending, more.priority);
        self.asked.adds = self.asked.adds.saturating_add(more.adds);
        self.asked.flags |= more.flags;
    }

    fn forget_failures(&mut self) {
        (self.failures, self.steps, self.until, self.not_before) = (0, 0, 0, 0);
        (self.error, self.failed_at) = (None, None);
    }

    fn take_back(&mut self) {
        self.forget_failures();
        (self.at, self.bound, self.parked) = (None, None, false);
        (self.asked.adds, self.asked.flags, self.trace) = (0, 0, None);
    }

    /// Requests a run that is due now, by the row `add` of the state table.
    fn demand_now(&mut self, now: Micros) -> Added {
        let added = match rule::table(rule::Row::Add, self.phase(now)) {
            Cell::Enqueue => Added::New,
            Cell::MarkDirty => Added::Dirty,
            _ => return Added::Coalesced,
        };
        self.not_before = 0;
        (self.at, self.since, self.bound) = (Some(now), now, None);
        added
    }

    /// Requests a run that is due at `due`, or now if `due` is `None`. Only a debounced add has a `bound`.
    fn demand_at(
        &mut self,
        due: Option<Micros>,
        merge: Merge,
        bound: Option<Micros>,
        readd_policy: ReaddPolicy,
        now: Micros,
    ) -> Added {
        let Some(due) = due else { return self.demand_now(now) };
        let key = self.state_at(now);
        match rule::later(&key, readd_policy, bound) {
            Later::Joins => Added::Coalesced,
            Later::Begins => {
                self.wait(Wait { due, bound });
                Added::New
            }
            Later::Merges => {
                let wait = key.wait().map(|wait| wait.with_add(due, merge, bound));
                self.wait(wait.unwrap_or(Wait { due, bound }));
                Added::Coalesced
            }
        }
    }

    fn wait(&mut self, wait: Wait<Micros>) {
        (self.at, self.since) = (Some(wait.due), wait.due);
        // A bound that equals the due time has no further effect, so it is not stored.
        self.bound = wait.bound.filter(|&bound| bound != wait.due);
    }

    /// Applies the add `ask` to the record of its key. Returns the changed record and the answer.
    pub(crate) fn add(row: Option<Self>, ask: &Ask, queue: &Place, now: Micros) -> (Self, Added) {
        let mut row = row.unwrap_or_else(|| Self { group: ask.group.clone(), ..Self::default() });
        let (add, was_parked) = (ask.add, row.parked);
        if was_parked && !queue.revives(&add) {
            return (row, Added::Parked);
        }
        // A revived key has no failures. The same holds for a key whose add sets its due time exactly.
        if was_parked || add.merge == Merge::Exactly {
            row.take_back();
        }
        let asked = Asked { adds: ask.adds, flags: add.flags, priority: add.priority };
        row.note_adds(asked);
        row.trace = join_traces(row.trace.take(), ask.trace.clone());
        let due = Some(after(now, add.after)).filter(|&at| at > now);
        let bound = add.longest_wait().map(|most| after(now, most));
        let wish = Wish { due, bound, is_failure: false };
        let permit = rule::permit(&row.state_at(now), queue.readd_policy, wish, now);
        let added = row.demand_at(permit.due, add.merge, bound, queue.readd_policy, now);
        let answer = match added {
            _ if was_parked => Added::Revived,
            _ if permit.is_held => Added::BackingOff,
            added => added,
        };
        (row, answer)
    }

    /// Delivers the key, which must be ready.
    pub(crate) fn claim(
        &mut self,
        key: &Key,
        epoch: i64,
        worker: &Arc<str>,
        lease: Duration,
        now: Micros,
    ) -> Delivery {
        let asked = Asked { adds: self.asked.adds.max(1), ..self.asked };
        let queued = until(self.since, now);
        (self.asked.adds, self.asked.flags) = (0, 0);
        (self.at, self.bound) = (None, None);
        self.not_before = 0;
        self.worker = Some(Arc::clone(worker));
        let lease_until = after(now, lease);
        self.run = Some(Run { epoch, lease_until, since: now, is_cancelled: false, asked });
        self.run_trace = self.trace.take();
        let (group, trace) = (self.group.clone(), self.run_trace.clone());
        let failed = self.failed_at.filter(|_| self.failures > 0).map(|at| until(at, now));
        let failures = self.failures;
        Delivery { key: key.clone(), epoch, asked, failures, queued, group, trace, failed }
    }

    /// Returns true if the delivery with this fencing token still has a valid lease.
    pub(crate) fn is_held(&self, epoch: i64, now: Micros) -> bool {
        self.run.is_some_and(|run| run.epoch == epoch && run.lease_until > now)
    }

    /// Completes the delivery. Returns the record, or `None` if no record remains.
    pub(crate) fn finish(mut self, how: Finish, queue: &Place, now: Micros) -> Option<Self> {
        let readd_policy = queue.readd_policy;
        let is_cancelled = self.run.is_some_and(|run| run.is_cancelled);
        // If a key is unclaimed, its run has not started. Therefore, the past does not include this run.
        let keeps_past = queue.keeps_past && !matches!(how, Finish::Unclaim(..));
        let ending = self.run.filter(|_| keeps_past).map(|run| self.end_run(run, &how, now));
        let (how, asked) = match how {
            Finish::Succeed => (How::Succeed, Asked::default()),
            Finish::RequeueAfter(delay, priority) => {
                (How::Requeue(after(now, delay)), Asked { adds: 1, flags: 0, priority })
            }
            Finish::Retry(failing, failure) => {
                let delay = self.back_off(failing.backoff, now);
                self.count_failure(failure, Some(delay), failing.max_failures, now)
            }
            Finish::RetryAfter(delay, most, failure) => {
                self.count_failure(failure, Some(delay), most, now)
            }
            Finish::GiveUp(failure) => self.count_failure(failure, None, None, now),
            Finish::Cancelled => (How::Cancelled, Asked::default()),
            Finish::Release(asked) => (How::Release(None), asked),
            // The run has not started, so it need not be stopped. A cancellation takes effect now.
            Finish::Unclaim(..) if is_cancelled => (How::Cancelled, Asked::default()),
            Finish::Unclaim(asked, queued) => return Some(self.unclaim(asked, queued, now)),
        };
        let asked = match self.run {
            Some(run) if asked.adds == 0 => run.asked,
            _ => asked,
        };
        let ended = Ended::from(how);
        let plan = rule::complete(how, &self.state_at(now), readd_policy, now);
        let run_trace = self.run_trace.take();
        if plan.adds == Adds::PassOn {
            self.note_adds(asked);
            self.trace = join_traces(run_trace, self.trace.take());
        }
        if plan.failures == Failures::Forget {
            self.forget_failures();
        }
        (self.run, self.worker) = (None, None);
        self.not_before = plan.backoff.unwrap_or(0);
        match plan.start {
            // The key becomes the last of the ready keys. `since` remains the time of the add.
            Start::Now if self.is_dirty(now) => (self.at, self.bound) = (Some(now), None),
            Start::Now => {
                self.demand_now(now);
            }
            Start::No | Start::Paced(_) => {}
        }
        if let Some((due, merge)) = plan.later {
            let wait = Wait { due, bound: None };
            let was = self.state_at(now).wait();
            self.wait(was.map_or(wait, |was| was.merged(due, merge)));
        }
        if let Some(at) = plan.add {
            self.note_adds(asked);
            let due = Some(at).filter(|&at| at > now);
            self.demand_at(due, Merge::Earliest, None, readd_policy, now);
        }
        if plan.is_parked {
            (self.parked, self.since) = (true, now);
        }
        if self.is_nothing() {
            return None;
        }
        if let Some(ending) = ending {
            // A key that was added during its last run is not parked.
            let is_given_up = ended == Ended::Parked && !self.parked;
            let how = if is_given_up { Ended::GivenUp } else { ended };
            self.past = Some(past::append(self.past.as_deref(), Ending { how, ..ending }));
        }
        Some(self)
    }

    /// Returns the run that ends now, in the form for the past. The caller sets the way in which the run ended.
    fn end_run(&self, run: Run, how: &Finish, now: Micros) -> Ending {
        let took = how.failure().and_then(|failure| failure.took);
        let took = took.map_or_else(|| now.saturating_sub(run.since).max(0), micros);
        // If `since` is later than the claim, an add during the run has overwritten it.
        let queued = (self.since <= run.since)
            .then(|| now.saturating_sub(took).saturating_sub(self.since).max(0));
        Ending {
            how: Ended::Succeeded,
            lease_expired: run.lease_until <= now,
            adds: run.asked.adds,
            at: now,
            took,
            queued,
        }
    }

    /// Returns the key to the place that it had before the claim. Adds during the delivery are coalesced, as for a
    /// ready key.
    fn unclaim(mut self, asked: Asked, queued: Duration, now: Micros) -> Self {
        self.note_adds(asked);
        self.trace = join_traces(self.run_trace.take(), self.trace.take());
        // The place of a key in the order is the time at which the key became ready. An unclaim must not put the key
        // behind keys that became ready later.
        let claimed_at = self.run.map_or(now, |run| run.since);
        let place = claimed_at.saturating_sub(micros(queued)).max(0);
        (self.run, self.worker) = (None, None);
        (self.at, self.since, self.bound) = (Some(place), place, None);
        self
    }

    /// Cancels the run of a key in flight.
    pub(crate) const fn cancel_run(&mut self) -> CancelledRun {
        match &mut self.run {
            None => CancelledRun::NotInFlight,
            Some(run) if run.is_cancelled => CancelledRun::AlreadyCancelled,
            Some(run) => {
                run.is_cancelled = true;
                CancelledRun::Cancelled
            }
        }
    }

    /// Returns the completion for a key whose lease has expired. The completion is a failure, unless the run was
    /// cancelled.
    pub(crate) fn lease_expiry(&self, failing: Failing) -> Finish {
        if self.run.is_some_and(|run| run.is_cancelled) {
            return Finish::Cancelled;
        }
        let asked = self.run.map(|run| run.asked).unwrap_or_default();
        Finish::Retry(failing, Failure::new(asked, LEASE_EXPIRED))
    }

    /// Counts a failure. The key is parked if `delay` is `None`, or if it has failed `most` times consecutively.
    fn count_failure(
        &mut self,
        failure: Failure,
        delay: Option<Duration>,
        most: Option<u32>,
        now: Micros,
    ) -> (How<Micros>, Asked) {
        self.failures = self.failures.saturating_add(1);
        (self.error, self.failed_at) = (Some(failure.error), Some(now));
        let how = match delay {
            Some(delay) if most.is_none_or(|most| self.failures < most) => {
                How::Retry(after(now, delay))
            }
            _ => How::Park,
        };
        (how, failure.asked)
    }

    fn back_off(&mut self, backoff: Backoff, now: Micros) -> Duration {
        // If a key has not failed for twice the cap after its backoff, the next backoff begins at the base again.
        let expires = after(after(self.until, backoff.cap), backoff.cap);
        let Some(steps) = rule::backoff::failures_before(&now, &self.until, &expires, self.steps)
        else {
            return until(now, self.until);
        };
        let most = rule::backoff::longest_delay(backoff.base, steps, backoff.cap);
        let half = most / 2;
        let drawn = (most - half).mul_f64(backoff.share.clamp(0.0, 1.0));
        let delay = half.saturating_add(drawn);
        self.steps = steps.saturating_add(1);
        self.until = after(now, delay);
        delay
    }

    /// Cancels the key. Returns the remaining record, and true if the call removed something.
    pub(crate) fn cancel(mut self) -> (Option<Self>, bool) {
        let was_any = self.at.is_some() || self.parked;
        self.take_back();
        ((!self.is_nothing()).then_some(self), was_any)
    }

    /// Makes a key ready if it is in the state `from`, which is parked or waiting. Returns false, and changes nothing,
    /// if the key is in another state.
    pub(crate) fn make_ready(&mut self, from: State, now: Micros) -> bool {
        if self.state(now) != from {
            return false;
        }
        let (asked, trace) = (self.asked, self.trace.take());
        self.take_back();
        (self.asked, self.trace) = (asked, trace);
        (self.at, self.since) = (Some(now), now);
        true
    }

    pub(crate) fn state(&self, now: Micros) -> State {
        match self.phase(now) {
            _ if self.parked => State::Parked,
            Phase::Ready => State::Ready,
            Phase::Idle => State::Waiting,
            _ => State::InFlight,
        }
    }

    pub(crate) fn to_entry(&self, key: Key, now: Micros) -> Entry {
        let due = self.at.filter(|&at| at > now);
        Entry {
            key,
            state: self.state(now),
            dirty: self.is_dirty_with_a_worker(now),
            since: match self.run {
                Some(run) => Some(until(run.since, now)),
                None if self.since > now => None,
                None => Some(until(self.since, now)),
            },
            due: due.map(|at| until(now, at)),
            bound: self.bound.filter(|_| due.is_some()).map(|at| until(now, at)),
            cancelled: self.run.filter(|run| run.is_cancelled).map(|_| CancelReason::Cancelled),
            paused: false,
            lease: self.run.map(|run| until(now, run.lease_until)),
            worker: self
                .worker
                .as_deref()
                .filter(|name| self.run.is_some() && !name.is_empty())
                .map(str::to_owned),
            fencing_token: self.run.map(|run| run.epoch.unsigned_abs()),
            failures: self.failures,
            priority: self.asked.priority,
            adds: self.asked.adds,
            flags: self.asked.flags,
            error: self.error.clone(),
            failed: self.failed_at.filter(|_| self.failures > 0).map(|at| until(at, now)),
            group: self.group.as_deref().map(str::to_owned),
            past_runs: self
                .past
                .as_deref()
                .map(|past| past::read_runs(past, now))
                .unwrap_or_default(),
        }
    }
}

/// The state of a key at the time `now`.
struct StateAt<'r> {
    row: &'r Row,
    now: Micros,
}

impl KeyState for StateAt<'_> {
    type Time = Micros;

    fn phase(&self) -> Phase {
        self.row.phase(self.now)
    }

    fn wait(&self) -> Option<Wait<Micros>> {
        let due = self.row.at.filter(|&at| at > self.now)?;
        Some(Wait { due, bound: self.row.bound })
    }

    fn not_before(&self) -> Micros {
        self.row.not_before
    }
}
