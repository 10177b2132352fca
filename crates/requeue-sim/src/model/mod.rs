//! The behaviour of a queue of keys, implemented as simply as possible.
//!
//! The state is the same as in client-go: the ready keys in order, a set of *dirty* keys, a set of keys in
//! *processing*, and a map of *waiting* keys. For [`ReaddPolicy::KeepBoth`], `keep` follows client-go's `queue.go` and
//! `delaying_queue.go` line by line. The two other policies, with at most one pending run per key, are in `single`.
//! This module contains the parts that all policies share.
//!
//! The differences from client-go are deliberate:
//!
//! - `done` of a key that is not in processing has no effect.
//! - Equal deadlines come in order of arrival.
//! - A key is ready exactly at its deadline.

mod cancelling;
mod client_go;
mod debounce;
mod ending;
mod groups;
mod keep;
mod order;
mod pace;
mod reasons;
mod single;
mod store_groups;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use requeue_core::{
    Added, Asked, CancelReason, Cancelled, Ending, InFlightPolicy, Merge, Pace, ReaddPolicy, Time,
    When,
};

pub use self::groups::TeamStates;
pub use self::order::{Ranking, ReadyKeys, Stack, Team};
pub use self::reasons::{SeenReasons, Why};
pub use self::store_groups::{GroupSettings, GroupedKey, Refusal, StoreGroups};
pub use self::view::{Seen, Tally};
use crate::How;

/// Returns the time `delay` after `now`, or never. The arithmetic does not use the core's.
fn later(now: Time, delay: Duration) -> Time {
    let nanos = u128::from(now.as_nanos()) + delay.as_nanos();
    u64::try_from(nanos).map_or(Time::NEVER, Time::from_nanos)
}

/// The maximum number of waiting keys that an operation makes ready before its other work.
const PROMOTE: usize = 256;

/// The rules of a model.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The effect of an add on a key that waits or has failed.
    pub re_add: ReaddPolicy,
    /// The effect of an add on a key in flight.
    pub rerun: InFlightPolicy,
    /// The order of ready keys.
    pub ranking: Ranking,
    /// True if teams take turns.
    pub fair: bool,
    /// The maximum number of keys of a team in flight.
    pub limit: Option<u32>,
    /// The limit on how often one key runs.
    pub pace: Option<Pace>,
}

/// The options of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddRequest {
    /// The time at which the key becomes ready.
    pub when: When,
    /// The rule that combines the time of this add with the due time that the key already has.
    pub merge: Merge,
    /// The priority.
    pub priority: i32,
    /// The flags.
    pub flags: u32,
    /// The reason.
    pub why: Option<Why>,
    /// True if the add is the retry of a failure.
    pub failed: bool,
    /// The longest wait of a debounced add, whose quiet time is the delay of `when`. `debounce` has no effect without a
    /// delay.
    pub debounce: Option<Duration>,
}

impl AddRequest {
    fn debounced(&self) -> Option<Duration> {
        self.debounce.filter(|_| matches!(self.when, When::After(_)))
    }

    /// Returns the due time, or `None` for now.
    fn due(&self, now: Time) -> Option<Time> {
        match self.when {
            When::Now => None,
            When::After(delay) => Some(later(now, delay)),
            When::At(at) => Some(at),
            other => unreachable!("no model of {other:?}"),
        }
        .filter(|&at| at > now)
    }
}

/// A key in processing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// The number of the delivery.
    epoch: u64,
    since: Time,
    detached: bool,
    cancelled: Option<CancelReason>,
    /// True if the start of the run counts toward the pace.
    counts: bool,
    /// True if nothing can cancel the run.
    sealed: bool,
}

/// The due time of a waiting key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wait {
    at: Time,
    arrival: u64,
}

/// A delivered key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Out<K> {
    /// The key.
    pub key: K,
    /// The number of the delivery.
    pub epoch: u64,
    /// The adds, flags and priority of the run.
    pub asked: Asked,
    /// The number of consecutive failures before the run.
    pub failures: u32,
    /// The time for which the key was ready.
    pub queued: Duration,
}

/// The result of a completion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended<K> {
    /// The key, if the model no longer knows it.
    pub key: Option<K>,
    /// True if a requested run will not happen.
    pub lost: bool,
    /// True if the key is ready again.
    pub ready: bool,
    /// True if the key was added again while it was in flight.
    pub was_dirty: bool,
    /// The time for which the key was in flight.
    pub worked: Duration,
}

/// The model of a queue.
#[derive(Clone, Debug)]
pub struct Model<K> {
    re_add: ReaddPolicy,
    rerun: InFlightPolicy,
    queue: ReadyKeys<K>,
    dirty: BTreeSet<K>,
    processing: BTreeMap<K, Run>,
    waiting: BTreeMap<K, Wait>,
    /// The bounds of the keys that wait for debounced adds.
    bounds: BTreeMap<K, Time>,
    /// The waiting keys, by due time.
    deadlines: BTreeSet<(Time, u64, K)>,
    /// Under `Hold`, the keys that back off, with the ends of their backoffs.
    not_before: BTreeMap<K, Time>,
    failures: BTreeMap<K, u32>,
    /// The keys in a series of restarts, with the times after which adds no longer restart their
    /// runs.
    series: BTreeMap<K, Time>,
    /// The deliveries that were restarted and not yet reported.
    restarted: Vec<u64>,
    pace: Option<Pace>,
    /// The last starts of each key, the oldest first, at most as many as the pace permits.
    starts: BTreeMap<K, Vec<Time>>,
    /// The keys whose pending run was delayed by the pace.
    paced: BTreeSet<K>,
    /// The adds, flags and priority of the next run of each known key.
    asked: BTreeMap<K, Asked>,
    /// The reasons of the run in flight and of the next run of each known key.
    reasons: BTreeMap<K, [reasons::Adds; 2]>,
    teams: BTreeMap<K, Team>,
    ending: Ending,
    paused: bool,
    arrivals: u64,
    epoch: u64,
    tally: Tally,
    /// The time of the present operation.
    now: Time,
    /// The times at which known keys became ready or dirty, or began to wait.
    since: BTreeMap<K, Time>,
}

impl<K: Ord + Clone> Model<K> {
    /// Creates an empty queue.
    #[must_use]
    pub fn new(rules: &Rules) -> Self {
        Self {
            re_add: rules.re_add,
            rerun: rules.rerun,
            queue: ReadyKeys::new(rules.ranking, rules.fair, rules.limit),
            dirty: BTreeSet::new(),
            processing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            bounds: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            not_before: BTreeMap::new(),
            failures: BTreeMap::new(),
            series: BTreeMap::new(),
            restarted: Vec::new(),
            pace: rules.pace,
            starts: BTreeMap::new(),
            paced: BTreeSet::new(),
            asked: BTreeMap::new(),
            reasons: BTreeMap::new(),
            teams: BTreeMap::new(),
            ending: Ending::Open,
            paused: false,
            arrivals: 0,
            epoch: 0,
            tally: Tally::default(),
            now: Time::ZERO,
            since: BTreeMap::new(),
        }
    }

    /// Adds a key.
    pub fn add(&mut self, key: &K, team: Team, request: &AddRequest, now: Time) -> Added {
        if self.ending == Ending::ShutDown {
            return Added::Refused;
        }
        self.promote(now, PROMOTE);
        // A key that is remembered only for its failures is new to a closed queue.
        if self.ending == Ending::Closed && !self.is_pending(key) && !self.is_in_flight(key) {
            return Added::Refused;
        }
        if !self.knows(key) {
            self.teams.insert(key.clone(), team);
        }
        if request.merge == Merge::Exactly {
            self.take_back(key);
        }
        self.tally.adds += 1;
        if request.when != When::Now && request.debounced().is_none() {
            self.tally.retries += 1;
        }
        if request.failed {
            self.fail(key);
        }
        self.note(key, Asked { adds: 1, flags: request.flags, priority: request.priority });
        self.note_reason(key, request.why);
        let added = match (self.re_add, request.due(now), request.debounced()) {
            (_, Some(due), Some(most)) => self.debounce(key, due, later(now, most), request.failed),
            (ReaddPolicy::KeepBoth, None, _) => self.add_now(key),
            (ReaddPolicy::KeepBoth, Some(due), None) => self.wait(key, due, request.merge),
            (_, due, _) => self.add_single(key, due, request, now),
        };
        self.let_go(key);
        added
    }

    /// Delivers the next key.
    pub fn get(&mut self, now: Time) -> Option<Out<K>> {
        self.promote(now, PROMOTE);
        if self.paused {
            return None;
        }
        let key = self.queue.pop()?;
        self.deliver(key, now)
    }

    /// Delivers `key`, if it is ready, regardless of the order.
    pub fn get_this(&mut self, key: &K, now: Time) -> Option<Out<K>> {
        self.promote(now, PROMOTE);
        if self.paused || !self.queue.pop_this(key) {
            return None;
        }
        self.deliver(key.clone(), now)
    }

    fn deliver(&mut self, key: K, now: Time) -> Option<Out<K>> {
        self.epoch += 1;
        self.tally.deliveries += 1;
        self.dirty.remove(&key);
        self.paced.remove(&key);
        self.start(&key);
        self.start_reasons(&key);
        let run = Run {
            epoch: self.epoch,
            since: now,
            detached: false,
            cancelled: None,
            counts: true,
            sealed: false,
        };
        self.processing.insert(key.clone(), run);
        let next = self.asked.get_mut(&key)?;
        let asked = Asked { adds: next.adds.max(1), ..*next };
        (next.adds, next.flags) = (0, 0);
        let queued = now.since(self.since[&key]);
        self.tally.queued += queued.as_nanos();
        Some(Out { epoch: self.epoch, asked, failures: self.failures(&key), queued, key })
    }

    /// Completes a delivery. Returns `None` and has no effect if the delivery was already
    /// completed.
    pub fn finish(&mut self, epoch: u64, how: How, asked: Asked, now: Time) -> Option<Ended<K>> {
        self.promote(now, PROMOTE);
        let key = self.processing.iter().find(|(_, run)| run.epoch == epoch)?.0.clone();
        Some(self.end_run(&key, how, asked, now))
    }

    /// Like [`finish`](Self::finish), for keys that cannot be copied. A custom order gets no copies.
    pub fn finish_without_copies(
        &mut self,
        epoch: u64,
        how: How,
        asked: Asked,
        now: Time,
    ) -> Option<Ended<K>> {
        self.now = now;
        let key = self.processing.iter().find(|(_, run)| run.epoch == epoch)?.0.clone();
        self.queue.gives_copies(false);
        let ended = self.end_run(&key, how, asked, now);
        self.queue.gives_copies(true);
        Some(ended)
    }

    /// Lets a custom order return all its keys. None of these keys may be eligible.
    ///
    /// # Panics
    ///
    /// Panics if one of the keys may be delivered.
    pub fn ask_order_in_vain(&mut self) {
        assert!(self.queue.pop_stack().is_none(), "the order has a key that may be delivered");
    }

    /// Completes the delivery of `key`, if it was detached.
    pub fn done(&mut self, key: &K, now: Time) -> Option<Ended<K>> {
        self.promote(now, PROMOTE);
        self.processing.get(key).filter(|run| run.detached)?;
        Some(self.end_run(key, How::Done, Asked::default(), now))
    }

    /// Detaches a delivery from its ticket.
    pub fn detach(&mut self, epoch: u64) -> bool {
        let run = self.processing.values_mut().find(|run| run.epoch == epoch);
        run.map(|run| run.detached = true).is_some()
    }

    /// Withdraws all pending runs of a key. Returns `None` if the key is not known.
    pub fn cancel(&mut self, key: &K) -> Option<Cancelled> {
        if !self.knows(key) {
            return None;
        }
        let cancelled = self.take_back(key);
        self.let_go(key);
        Some(cancelled)
    }

    /// Forgets a key's failures.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
        self.not_before.remove(key);
        self.let_go(key);
    }

    /// Makes up to `max` due keys ready, and returns the number of these keys.
    pub fn promote(&mut self, now: Time, max: usize) -> usize {
        self.now = now;
        for n in 0..max {
            let first =
                self.deadlines.first().filter(|first| first.0 <= now && first.0 < Time::NEVER);
            let Some((.., key)) = first.cloned() else { return n };
            self.not_before.remove(&key);
            if self.is_idle(&key) && self.is_paced(&key) {
                self.postpone(&key);
                continue;
            }
            self.stop_waiting(&key);
            self.add_now(&key);
        }
        max
    }

    /// Pauses or resumes deliveries.
    pub fn pause(&mut self, paused: bool) {
        if self.ending < Ending::ShutDown {
            self.paused = paused;
        }
    }

    // --- Helpers ----------------------------------------------------------------------------------

    fn push(&mut self, key: &K) {
        self.queue.push(key, self.asked[key].priority, self.teams[key]);
    }

    fn fail(&mut self, key: &K) {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
    }

    /// Adds `more` to the next run. The run keeps the highest priority.
    fn note(&mut self, key: &K, more: Asked) {
        let pending = self.is_pending(key);
        let asked = self.asked.entry(key.clone()).or_default();
        asked.priority = if pending { asked.priority.max(more.priority) } else { more.priority };
        asked.adds = asked.adds.saturating_add(more.adds);
        asked.flags |= more.flags;
        let priority = asked.priority;
        self.queue.lift(key, priority);
    }

    fn take_back(&mut self, key: &K) -> Cancelled {
        let processing = self.processing.contains_key(key);
        let dirty = self.dirty.remove(key);
        if dirty && !processing {
            self.queue.remove(key);
        }
        self.series.remove(key);
        self.paced.remove(key);
        self.failures.remove(key);
        self.not_before.remove(key);
        if let Some(asked) = self.asked.get_mut(key) {
            (asked.adds, asked.flags) = (0, 0);
        }
        if let Some([_, pending]) = self.reasons.get_mut(key) {
            pending.clear();
        }
        let waiting = self.stop_waiting(key);
        Cancelled { ready: dirty && !processing, dirty: dirty && processing, waiting }
    }

    /// Removes all data of a key, if the key has no state.
    fn let_go(&mut self, key: &K) -> Option<K> {
        if self.knows(key) {
            return None;
        }
        self.not_before.remove(key);
        self.series.remove(key);
        self.paced.remove(key);
        self.asked.remove(key);
        self.reasons.remove(key);
        self.since.remove(key);
        self.teams.remove(key);
        Some(key.clone())
    }
}
