//! The record of a key, and the effect of each operation on it. This is the reference: conformance tests
//! compare it with the engines that implement it in SQL or Lua.

use std::sync::Arc;
use std::time::Duration;

use requeue::{CancelReason, CancelledRun};

use crate::engine::time::{Micros, after, micros, until};
use crate::engine::{Ask, Asked, Backoff, Delivery, Failing, Failure, Finish, Place};
use crate::types::add::{Added, Cancelled, Merge, ReAdd};
use crate::types::inspect::{Entry, State};
use crate::types::key::Key;

/// The error of a key whose lease expired. `claim.lua` and `operations.sql` repeat it.
pub(crate) const LEASE_EXPIRED: &str = "the lease expired";

/// The record of a key. A key without a state has no record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Row {
    /// The due time of the pending run. A key has at most one; for a key in flight, it is the run after the
    /// current one.
    pub(crate) at: Option<Micros>,
    /// The latest time to which debounced adds postpone the pending run, if it waits for such adds.
    pub(crate) bound: Option<Micros>,
    pub(crate) run: Option<Run>,
    /// The name of the process that has the key in flight. The process chose the name itself.
    pub(crate) worker: Option<Arc<str>>,
    pub(crate) parked: bool,
    /// The number of failures in a row.
    pub(crate) failures: u32,
    /// The number of failures that the backoff has counted. `until` is the end of the last backoff.
    pub(crate) steps: u32,
    pub(crate) until: Micros,
    /// The earliest time of the next run under [`ReAdd::Hold`].
    pub(crate) not_before: Micros,
    /// The parameters of the pending run. The priority is kept when no run is pending.
    pub(crate) asked: Asked,
    /// The time at which the key became ready or parked. For a key in flight, the time at which it became
    /// dirty. For a waiting key, the time at which it will become ready.
    pub(crate) since: Micros,
    /// The error of the last failure.
    pub(crate) error: Option<String>,
}

/// A delivery that has not been completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) epoch: i64,
    pub(crate) lease_until: Micros,
    pub(crate) since: Micros,
    /// True if the run was cancelled, so that its worker should stop it.
    pub(crate) is_cancelled: bool,
    /// The parameters of the run.
    pub(crate) asked: Asked,
}

impl Row {
    /// Returns true if the pending run is due.
    fn is_dirty(&self, now: Micros) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Returns true if the key may be delivered.
    pub(crate) fn is_ready(&self, now: Micros) -> bool {
        self.run.is_none() && self.is_dirty(now)
    }

    /// Returns true if the key is delivered again after the completion of its current run.
    pub(crate) fn is_dirty_with_a_worker(&self, now: Micros) -> bool {
        self.run.is_some() && self.is_dirty(now)
    }

    const fn is_nothing(&self) -> bool {
        self.at.is_none() && self.run.is_none() && !self.parked
    }

    fn note(&mut self, more: Asked) {
        let pending = self.at.is_some();
        self.asked.priority =
            if pending { self.asked.priority.max(more.priority) } else { more.priority };
        self.asked.adds = self.asked.adds.saturating_add(more.adds);
        self.asked.reasons |= more.reasons;
    }

    fn forget(&mut self) {
        (self.failures, self.steps, self.until, self.not_before) = (0, 0, 0, 0);
        self.error = None;
    }

    fn take_back(&mut self) {
        self.forget();
        (self.at, self.bound, self.parked) = (None, None, false);
        (self.asked.adds, self.asked.reasons) = (0, 0);
    }

    /// Returns the latest time to which a debounced add may postpone the pending run.
    fn latest(&self) -> Option<Micros> {
        self.bound.or(self.at)
    }

    /// Requests a run at `at`. A debounced add has a `bound`.
    fn demand(&mut self, at: Micros, merge: Merge, bound: Option<Micros>, now: Micros) -> Added {
        if self.is_dirty(now) {
            return Added::Coalesced;
        }
        if at <= now {
            self.not_before = 0;
            (self.at, self.since, self.bound) = (Some(now), now, None);
            return if self.run.is_some() { Added::Dirty } else { Added::New };
        }
        let latest = self.latest();
        let (at, bound, added) = match (self.at, bound, merge) {
            (None, bound, _) => (at, bound, Added::New),
            (Some(_), Some(bound), _) => (at, latest.min(Some(bound)), Added::Coalesced),
            (Some(was), None, Merge::Earliest) => {
                (was.min(at), self.bound.map(|bound| bound.min(at)), Added::Coalesced)
            }
            (Some(was), None, Merge::Latest) if at <= was => (was, self.bound, Added::Coalesced),
            (Some(_), None, Merge::Latest | Merge::Exactly) => (at, None, Added::Coalesced),
        };
        (self.at, self.since) = (Some(at), at);
        // A bound at the due time is the rule for every delayed add.
        self.bound = bound.filter(|&bound| bound != at);
        added
    }

    /// Applies the add of `ask` to the record of its key.
    pub(crate) fn add(row: Option<Self>, ask: &Ask, queue: &Place, now: Micros) -> (Self, Added) {
        let mut row = row.unwrap_or_default();
        let (add, was_parked) = (ask.add, row.parked);
        if was_parked && !queue.revives(&add) {
            return (row, Added::Parked);
        }
        if was_parked || add.merge == Merge::Exactly {
            row.take_back();
        }
        let asked = Asked { adds: ask.adds, reasons: add.reasons, priority: add.priority };
        row.note(asked);
        let bound = add.longest_wait().map(|most| after(now, most));
        let mut wanted = after(now, add.after);
        if bound.is_some() {
            wanted = self::earliest(wanted, row.latest());
        }
        let held = queue.re_add == ReAdd::Hold && !row.is_ready(now);
        let at = if held { wanted.max(row.not_before) } else { wanted };
        let added = row.demand(at, add.merge, bound, now);
        let answer = match added {
            _ if was_parked => Added::Revived,
            _ if at > wanted => Added::Held,
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
        (self.asked.adds, self.asked.reasons) = (0, 0);
        (self.at, self.bound) = (None, None);
        self.not_before = 0;
        self.worker = Some(Arc::clone(worker));
        let lease_until = after(now, lease);
        self.run = Some(Run { epoch, lease_until, since: now, is_cancelled: false, asked });
        Delivery { key: key.clone(), epoch, asked, failures: self.failures, queued }
    }

    /// Returns true if the delivery with this fencing token still has a valid lease.
    pub(crate) fn is_held(&self, epoch: i64, now: Micros) -> bool {
        self.run.is_some_and(|run| run.epoch == epoch && run.lease_until > now)
    }

    /// Completes the delivery. Returns the remaining record, if any.
    pub(crate) fn finish(mut self, how: Finish, re_add: ReAdd, now: Micros) -> Option<Self> {
        let mut place = None;
        let how = match how {
            // The run has not started, so the cancellation takes effect immediately.
            Finish::Unclaim(..) if self.run.is_some_and(|run| run.is_cancelled) => {
                Finish::Cancelled
            }
            how => how,
        };
        let later = match how {
            Finish::Succeed => {
                self.forget();
                None
            }
            Finish::RequeueAfter(delay, priority) => {
                self.forget();
                Some((delay, priority))
            }
            Finish::Retry(failing, failure) => {
                let delay = self.back_off(failing.backoff, now);
                self.fail(failure, Some(delay), failing.max_failures, re_add, now);
                None
            }
            Finish::RetryAfter(delay, most, failure) => {
                self.fail(failure, Some(delay), most, re_add, now);
                None
            }
            Finish::GiveUp(failure) => {
                self.fail(failure, None, None, re_add, now);
                None
            }
            Finish::Cancelled => None,
            Finish::Release(asked) => {
                self.note(asked);
                self.demand(self.not_before.max(now), Merge::Earliest, None, now);
                None
            }
            Finish::Unclaim(asked, queued) => {
                self.note(asked);
                let claimed_at = self.run.map_or(now, |run| run.since);
                place = Some(claimed_at.saturating_sub(micros(queued)).max(0));
                None
            }
        };
        (self.run, self.worker) = (None, None);
        if let Some(place) = place {
            // Adds during the delivery have coalesced, as for any ready key.
            (self.at, self.since, self.bound) = (Some(place), place, None);
        } else if self.is_dirty(now) {
            // The key becomes the last of the ready keys. `since` keeps the time of the add.
            (self.at, self.bound) = (Some(now), None);
        }
        if let Some((delay, priority)) = later {
            self.note(Asked { adds: 1, reasons: 0, priority });
            self.demand(after(now, delay), Merge::Earliest, None, now);
        }
        (!self.is_nothing()).then_some(self)
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

    /// Handles an expired lease as a failure, unless the run was cancelled.
    pub(crate) fn expire(self, failing: Failing, re_add: ReAdd, now: Micros) -> Option<Self> {
        if self.run.is_some_and(|run| run.is_cancelled) {
            return self.finish(Finish::Cancelled, re_add, now);
        }
        let asked = self.run.map(|run| run.asked).unwrap_or_default();
        let error = LEASE_EXPIRED.to_owned();
        self.finish(Finish::Retry(failing, Failure { asked, error }), re_add, now)
    }

    /// Counts a failure. The key is parked if `delay` is `None`, or after `most` failures in a row.
    fn fail(
        &mut self,
        failure: Failure,
        delay: Option<Duration>,
        most: Option<u32>,
        re_add: ReAdd,
        now: Micros,
    ) {
        self.failures = self.failures.saturating_add(1);
        self.error = Some(failure.error);
        self.note(failure.asked);
        let Some(delay) = delay.filter(|_| most.is_none_or(|most| self.failures < most)) else {
            if self.at.is_some() {
                // The key was added during the run, so its failures are forgotten.
                self.forget();
            } else {
                (self.parked, self.since) = (true, now);
            }
            return;
        };
        let mut at = after(now, delay);
        if re_add == ReAdd::Hold {
            self.not_before = self.not_before.max(at);
            at = self.not_before;
            if at > now
                && let Some(was) = self.at
            {
                // One run serves both the failure and the adds during the run.
                let at = was.max(at);
                (self.at, self.since) = (Some(at), at);
                self.bound = None;
            }
        }
        self.demand(at, Merge::Earliest, None, now);
    }

    fn back_off(&mut self, backoff: Backoff, now: Micros) -> Duration {
        if now < self.until {
            return until(now, self.until);
        }
        let expired = after(after(self.until, backoff.cap), backoff.cap) < now;
        let steps = if expired { 0 } else { self.steps };
        let most = doubled(backoff.base, steps).min(backoff.cap);
        let half = most / 2;
        let drawn = (most - half).mul_f64(backoff.share.clamp(0.0, 1.0));
        let delay = half.saturating_add(drawn);
        self.steps = steps.saturating_add(1);
        self.until = after(now, delay);
        delay
    }

    pub(crate) fn cancel(mut self, now: Micros) -> (Option<Self>, Cancelled) {
        let (pending, due, running) = (self.at.is_some(), self.is_dirty(now), self.run.is_some());
        let cancelled = Cancelled {
            ready: due && !running,
            dirty: due && running,
            waiting: pending && !due,
            parked: self.parked,
            damaged: false,
        };
        self.take_back();
        ((!self.is_nothing()).then_some(self), cancelled)
    }

    /// Makes a key in this state ready: parked or waiting. Returns false if it is in another state.
    pub(crate) fn make_ready(&mut self, from: State, now: Micros) -> bool {
        if self.state(now) != from {
            return false;
        }
        let asked = self.asked;
        self.take_back();
        self.asked = asked;
        (self.at, self.since) = (Some(now), now);
        true
    }

    pub(crate) fn state(&self, now: Micros) -> State {
        match (self.parked, self.run) {
            (true, _) => State::Parked,
            (false, Some(_)) => State::Processing,
            (false, None) if self.is_dirty(now) => State::Ready,
            (false, None) => State::Waiting,
        }
    }

    pub(crate) fn seen(&self, key: Key, now: Micros) -> Entry {
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
            epoch: self.run.map(|run| run.epoch.unsigned_abs()),
            failures: self.failures,
            priority: self.asked.priority,
            adds: self.asked.adds,
            reasons: self.asked.reasons,
            error: self.error.clone(),
        }
    }
}

fn earliest(at: Micros, other: Option<Micros>) -> Micros {
    other.map_or(at, |other| other.min(at))
}

/// Returns base · 2ⁿ, or the maximum duration if that overflows.
fn doubled(base: Duration, n: u32) -> Duration {
    2u32.checked_pow(n).and_then(|factor| base.checked_mul(factor)).unwrap_or(Duration::MAX)
}
