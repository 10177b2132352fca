//! The visible state of a model.

use std::time::Duration;

use requeue_core::{Asked, CancelReason, Ending, Entry, Phase, Time, Totals};

use super::{Model, Team};

/// The counters of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Accepted adds.
    pub adds: u64,
    /// Keys that became ready, or dirty while in processing.
    pub enqueued: u64,
    /// Adds that became part of a pending run.
    pub coalesced: u64,
    /// Delayed adds.
    pub retries: u64,
    /// Deliveries.
    pub deliveries: u64,
    /// Deliveries that were completed as a failure.
    pub failures: u64,
    /// Failed deliveries by the number of consecutive failures of their keys: up to 1, 2, 5, 10, 20, 50, 100, and more.
    pub consecutive: [u64; 8],
    /// Runs that the pace delayed.
    pub paced: u64,
    /// The sum of the times for which keys were ready, in nanoseconds.
    pub queued: u128,
    /// The sum of the times for which keys were in flight, in nanoseconds.
    pub worked: u128,
}

/// The visible state of one key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Seen {
    /// The phase as a number: idle is 0, ready 1, processing 2, and processing and dirty 3.
    pub phase: u8,
    /// The due time.
    pub due: Option<Time>,
    /// The latest time to which debounced adds may postpone the due time.
    pub bound: Option<Time>,
    /// The time from which the pace permits the next start.
    pub paced_until: Time,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The number of adds that the next run serves.
    pub adds: u32,
    /// The flags of the adds that the next run serves.
    pub flags: u32,
    /// The priority of the run that is pending or in flight. Otherwise, the priority is not compared.
    pub priority: Option<i32>,
    /// True if the key is throttled: it is ready, but its team is at its limit or paused.
    pub held_back: bool,
    /// True if the team of the key is paused.
    pub group_paused: bool,
    /// The reason why the run in flight was cancelled, as a number: cancelled is 1, and restarted 2.
    pub cancelled: Option<u8>,
    /// The time at which the key entered its state. The time is not compared for a key that is remembered only for its
    /// failures.
    pub since: Option<Time>,
}

impl Seen {
    /// Returns the same state without the time of a pace that has passed at `now`, because the queue may forget such a
    /// time at any moment.
    #[must_use]
    pub fn at(self, now: Time) -> Self {
        let paced_until = if self.paced_until > now { self.paced_until } else { Time::ZERO };
        Self { paced_until, ..self }
    }

    /// Returns the number of a phase.
    #[must_use]
    pub fn number(phase: Phase) -> u8 {
        match phase {
            Phase::Idle => 0,
            Phase::Ready => 1,
            Phase::InFlight => 2,
            Phase::InFlightDirty => 3,
            other => unreachable!("no model of {other:?}"),
        }
    }

    /// Returns the number of a reason.
    fn number_of(reason: CancelReason) -> u8 {
        match reason {
            CancelReason::Cancelled => 1,
            CancelReason::Restarted => 2,
            other => unreachable!("no queue cancels a run as {other:?}"),
        }
    }

    /// Returns the state of a key in a queue, without the parts that are not compared with `model`.
    #[must_use]
    pub fn of<K>(entry: &Entry<K>, model: Option<Self>) -> Self {
        Self {
            phase: Self::number(entry.phase),
            due: entry.due,
            bound: entry.bound,
            paced_until: entry.around.paced_until.unwrap_or_default(),
            failures: entry.failures,
            adds: entry.adds,
            flags: entry.flags,
            priority: model.and_then(|model| model.priority).map(|_| entry.priority),
            held_back: entry.held_back,
            group_paused: entry.around.group_paused,
            cancelled: entry.cancelled.map(Self::number_of),
            since: entry.since.filter(|_| model.is_some_and(|model| model.since.is_some())),
        }
    }
}

impl Tally {
    /// Returns the counters of a queue. A queue that tracks times provides `queued` and `worked`.
    #[must_use]
    pub const fn of(
        counts: &Totals,
        consecutive: [u64; 8],
        (queued, worked): (u128, u128),
    ) -> Self {
        Self {
            adds: counts.adds,
            enqueued: counts.enqueued,
            coalesced: counts.coalesced,
            retries: counts.retries,
            deliveries: counts.deliveries,
            failures: counts.failures,
            consecutive,
            paced: counts.paced,
            queued,
            worked,
        }
    }
}

impl<K: Ord + Clone> Model<K> {
    /// Returns the visible state of `key`, if the key is known.
    pub fn see(&self, key: &K) -> Option<Seen> {
        if !self.knows(key) {
            return None;
        }
        let phase = match (self.is_in_flight(key), self.dirty.contains(key)) {
            (false, false) => Phase::Idle,
            (false, true) => Phase::Ready,
            (true, false) => Phase::InFlight,
            (true, true) => Phase::InFlightDirty,
        };
        let Asked { adds, flags, priority } = self.asked.get(key).copied().unwrap_or_default();
        let since = match self.processing.get(key) {
            Some(run) => Some(run.since),
            None if self.is_pending(key) => self.since.get(key).copied(),
            None => None,
        };
        Some(Seen {
            since,
            phase: Seen::number(phase),
            due: self.waiting.get(key).map(|wait| wait.at),
            bound: self.bounds.get(key).copied(),
            paced_until: self.permit(key),
            failures: self.failures(key),
            adds,
            flags,
            priority: (self.is_pending(key) || self.is_in_flight(key)).then_some(priority),
            cancelled: self.processing.get(key).and_then(|run| run.cancelled).map(Seen::number_of),
            held_back: phase == Phase::Ready && !self.queue.has_room(self.teams[key].id),
            group_paused: self.queue.is_paused(self.teams[key].id),
        })
    }

    /// Returns true if `key` is known.
    pub fn knows(&self, key: &K) -> bool {
        self.is_pending(key) || self.is_in_flight(key) || self.failures.contains_key(key)
    }

    /// Returns true if a run of `key` is pending.
    pub fn is_pending(&self, key: &K) -> bool {
        self.dirty.contains(key) || self.waiting.contains_key(key)
    }

    /// Returns true if `key` is in flight.
    pub fn is_in_flight(&self, key: &K) -> bool {
        self.processing.contains_key(key)
    }

    /// Returns true if `key` is neither ready nor in flight.
    pub(super) fn is_idle(&self, key: &K) -> bool {
        !self.dirty.contains(key) && !self.processing.contains_key(key)
    }

    /// Returns the number of consecutive failures of `key`.
    pub fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }

    /// Returns the number of ready keys.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if no key is ready.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of ready keys that may be delivered.
    pub fn eligible(&self) -> usize {
        if self.paused { 0 } else { self.queue.eligible() }
    }

    /// Returns the keys that may be delivered, starting with the key that has been ready longest.
    pub fn by_age(&self) -> impl Iterator<Item = &K> {
        self.queue.by_age()
    }

    /// Returns the number of ready and dirty keys.
    pub fn ready_and_dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the number of waiting keys.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of waiting keys that have failed.
    pub fn failing(&self) -> usize {
        self.waiting.keys().filter(|key| self.failures(key) > 0).count()
    }

    /// Returns the number of waiting keys that are neither ready nor in flight, and the number of
    /// these keys that have failed.
    pub fn idle_waiting(&self) -> (usize, usize) {
        let idle = || self.waiting.keys().filter(|key| self.is_idle(key));
        (idle().count(), idle().filter(|key| self.failures(key) > 0).count())
    }

    /// Returns the number of keys in flight.
    pub fn in_flight(&self) -> usize {
        self.processing.len()
    }

    /// Returns the number of known keys.
    pub fn known(&self) -> usize {
        self.asked.len()
    }

    /// Returns the sum of the times for which the keys in flight have been in flight.
    pub fn unfinished_work(&self, now: Time) -> Duration {
        self.processing.values().map(|run| now.since(run.since)).sum()
    }

    /// Returns how long the oldest delivery has been in flight.
    pub fn longest_running(&self, now: Time) -> Duration {
        let first = self.processing.values().min_by_key(|run| run.epoch);
        first.map_or(Duration::ZERO, |run| now.since(run.since))
    }

    /// Returns how long the oldest key that may be delivered has been ready.
    pub fn oldest_ready(&self, now: Time) -> Duration {
        let since = self.queue.oldest().and_then(|key| self.since.get(&key).copied());
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns the number of ready keys whose teams have reached their limit. Also returns how long the oldest of these
    /// keys has been ready.
    pub fn at_team_limit(&self, now: Time) -> (usize, Duration) {
        let since = |key| self.since.get(key).copied().map_or(Duration::ZERO, |at| now.since(at));
        let mut oldest_first = self.queue.held_by_age().peekable();
        let oldest = oldest_first.peek().copied().map_or(Duration::ZERO, since);
        (oldest_first.count(), oldest)
    }

    /// Returns the time at which the next waiting key becomes ready.
    pub fn next_due(&self) -> Option<Time> {
        self.deadlines.first().map(|first| first.0).filter(|&at| at < Time::NEVER)
    }

    /// Returns the counters.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns true if deliveries are paused.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns the lifecycle state of the queue.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// Returns true if client-go's `Get` would report that the queue has ended.
    pub fn is_exhausted(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Closed => {
                !self.asked.keys().any(|k| self.is_pending(k) || self.is_in_flight(k))
            }
            _ => self.paused || self.is_empty(),
        }
    }

    /// Returns true if no more keys will be delivered.
    pub fn is_finished(&self) -> bool {
        self.is_exhausted() && self.dirty.iter().all(|key| self.is_stopped(key))
    }

    /// Returns true if a closed or shut-down queue has no key ready and none in flight.
    pub fn is_drained(&self) -> bool {
        self.is_exhausted() && self.processing.is_empty()
    }

    /// Returns the deliveries that are not completed, the oldest first.
    pub fn runs(&self) -> Vec<(u64, K)> {
        let mut runs: Vec<_> =
            self.processing.iter().map(|(k, run)| (run.epoch, k.clone())).collect();
        runs.sort_unstable();
        runs
    }

    /// Returns all values that determine the future behaviour, relative to `now`, to distinguish
    /// states. Times, failures and adds are capped.
    pub fn essence(&self, now: Time, cap: u64) -> impl Ord + use<K> {
        let ahead = |at: Time| at.as_nanos().saturating_sub(now.as_nanos()).min(cap);
        let keys: Vec<_> = self
            .asked
            .keys()
            .map(|key| {
                let asked = self.asked[key];
                let wait = self.waiting.get(key).map(|wait| {
                    let earlier = |w: &&super::Wait| w.at == wait.at && w.arrival < wait.arrival;
                    (ahead(wait.at), self.waiting.values().filter(earlier).count())
                });
                (
                    key.clone(),
                    self.dirty.contains(key),
                    self.processing.get(key).map(|run| {
                        (run.detached, run.cancelled.map(Seen::number_of), run.counts, run.sealed)
                    }),
                    wait,
                    (
                        self.bounds.get(key).map(|&bound| ahead(bound)),
                        self.series.get(key).map(|&until| ahead(until)),
                    ),
                    self.not_before.get(key).map(|&at| ahead(at)).filter(|&at| at > 0),
                    self.failures(key).min(1),
                    (asked.adds.min(1), asked.flags, asked.priority, self.paced.contains(key)),
                )
            })
            .collect();
        let windows = |starts: &Vec<Time>| -> Vec<u64> {
            let per = self.pace.map(|pace| pace.per()).unwrap_or_default();
            let over = starts.iter().map(|&start| ahead(super::later(start, per)));
            over.filter(|&over| over > 0).collect()
        };
        let starts: Vec<_> =
            self.starts.iter().map(|(key, starts)| (key.clone(), windows(starts))).collect();
        let starts: Vec<_> = starts.into_iter().filter(|(_, over)| !over.is_empty()).collect();
        let order = self.runs().into_iter().map(|(_, key)| key).collect::<Vec<_>>();
        (keys, order, starts, self.queue.essence(), self.ending, self.paused)
    }

    /// Returns the team of a known key.
    pub fn team(&self, key: &K) -> Option<Team> {
        self.teams.get(key).copied()
    }
}
