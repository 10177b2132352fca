//! What a queue of keys does, as plainly as it can be said.
//!
//! The state is client-go's: the ready keys in order, a set of *dirty* keys, a set of keys in
//! *processing*, and a map of *waiting* keys. [`ReAdd::KeepBoth`] works on it as client-go's
//! `queue.go` and `delaying_queue.go` do, line by line (in `keep`); the two other policies, which
//! have at most one run of a key pending, are written down in `single`. What is the same for all
//! is here.
//!
//! Differences from client-go, all deliberate: `done` of a key that is not in processing does
//! nothing; equal deadlines come in order of arrival; a key is ready at its deadline, not just
//! after it.

mod client_go;
mod debounce;
mod ending;
mod keep;
mod order;
mod single;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use requeue_core::{Added, Asked, Cancelled, Ending, Merge, ReAdd, Time, When};

pub use self::order::{Ranking, ReadyKeys, Stack, Team};
pub use self::view::{Seen, Tally};
use crate::How;

/// The time `delay` after `now`, or never: by arithmetic of the model's own.
fn later(now: Time, delay: Duration) -> Time {
    let nanos = u128::from(now.as_nanos()) + delay.as_nanos();
    u64::try_from(nanos).map_or(Time::NEVER, Time::from_nanos)
}

/// How many waiting keys an operation makes ready before its own work, at most.
const PROMOTE: usize = 256;

/// How a model is to behave.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What an add does to a key that waits or has failed.
    pub re_add: ReAdd,
    /// The order.
    pub ranking: Ranking,
    /// Whether teams take turns.
    pub fair: bool,
    /// How many keys of a team may be in work.
    pub limit: Option<u32>,
}

/// What is asked of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ask {
    /// When the key is to be ready.
    pub when: When,
    /// How that and a delay that it has become one.
    pub merge: Merge,
    /// Its priority.
    pub priority: i32,
    /// Why.
    pub reasons: u32,
    /// Whether it is the retry of a failure.
    pub failed: bool,
    /// The longest wait of a debounced add, if there is a delay: then that is the quiet time.
    pub debounce: Option<Duration>,
}

impl Ask {
    fn debounced(&self) -> Option<Duration> {
        self.debounce.filter(|_| matches!(self.when, When::After(_)))
    }

    /// The time asked for, or `None` for now.
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
    /// The number of the hand-out.
    epoch: u64,
    since: Time,
    detached: bool,
}

/// A key that waits for its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wait {
    at: Time,
    arrival: u64,
}

/// A key handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Out<K> {
    /// The key.
    pub key: K,
    /// The number of the hand-out.
    pub epoch: u64,
    /// What the run was asked with.
    pub asked: Asked,
    /// Failures in a row before it.
    pub failures: u32,
    /// How long it was ready.
    pub queued: Duration,
}

/// What became of a hand-out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended<K> {
    /// The key, if nothing is known of it any more.
    pub key: Option<K>,
    /// Whether a run that was asked for will not happen.
    pub lost: bool,
    /// Whether the key is ready again.
    pub ready: bool,
    /// Whether it had been added meanwhile.
    pub was_dirty: bool,
    /// How long the worker had it.
    pub worked: Duration,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model<K> {
    re_add: ReAdd,
    queue: ReadyKeys<K>,
    dirty: BTreeSet<K>,
    processing: BTreeMap<K, Run>,
    waiting: BTreeMap<K, Wait>,
    /// The bounds of those that wait for debounced adds.
    bounds: BTreeMap<K, Time>,
    /// The waiting keys by time.
    deadlines: BTreeSet<(Time, u64, K)>,
    /// `Hold`: keys that back off, and until when.
    not_before: BTreeMap<K, Time>,
    failures: BTreeMap<K, u32>,
    /// What the next run of each known key is asked with.
    asked: BTreeMap<K, Asked>,
    teams: BTreeMap<K, Team>,
    ending: Ending,
    paused: bool,
    arrivals: u64,
    epoch: u64,
    tally: Tally,
    /// The time of the operation.
    now: Time,
    /// Since when known keys are ready or dirty, or wait.
    since: BTreeMap<K, Time>,
}

impl<K: Ord + Clone> Model<K> {
    /// An empty queue.
    #[must_use]
    pub fn new(rules: &Rules) -> Self {
        Self {
            re_add: rules.re_add,
            queue: ReadyKeys::new(rules.ranking, rules.fair, rules.limit),
            dirty: BTreeSet::new(),
            processing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            bounds: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            not_before: BTreeMap::new(),
            failures: BTreeMap::new(),
            asked: BTreeMap::new(),
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
    pub fn add(&mut self, key: &K, team: Team, ask: &Ask, now: Time) -> Added {
        if self.ending == Ending::ShutDown {
            return Added::Refused;
        }
        self.promote(now, PROMOTE);
        // What is remembered for its failures alone is new to a queue that has been closed.
        if self.ending == Ending::Closed && !self.is_pending(key) && !self.is_processing(key) {
            return Added::Refused;
        }
        if !self.knows(key) {
            self.teams.insert(key.clone(), team);
        }
        if ask.merge == Merge::Exactly {
            self.take_back(key);
        }
        if ask.when != When::Now && ask.debounced().is_none() {
            self.tally.retries += 1;
        }
        if ask.failed {
            self.fail(key);
        }
        self.note(key, Asked { adds: 1, reasons: ask.reasons, priority: ask.priority });
        let added = match (self.re_add, ask.due(now), ask.debounced()) {
            (_, Some(due), Some(most)) => self.debounce(key, due, later(now, most), ask.failed),
            (ReAdd::KeepBoth, None, _) => self.add_now(key),
            (ReAdd::KeepBoth, Some(due), None) => self.wait(key, due, ask.merge),
            (_, due, _) => self.add_single(key, due, ask, now),
        };
        self.let_go(key);
        added
    }

    /// Hands out the next key; with it the number of keys that a custom order gave in vain.
    pub fn get(&mut self, now: Time) -> Option<Out<K>> {
        self.promote(now, PROMOTE);
        if self.paused {
            return None;
        }
        let key = self.queue.pop()?;
        self.hand_out(key, now)
    }

    /// Hands out this key, which is ready, whatever the order says.
    pub fn get_this(&mut self, key: &K, now: Time) -> Option<Out<K>> {
        self.promote(now, PROMOTE);
        if self.paused || !self.queue.pop_this(key) {
            return None;
        }
        self.hand_out(key.clone(), now)
    }

    fn hand_out(&mut self, key: K, now: Time) -> Option<Out<K>> {
        self.epoch += 1;
        self.tally.hand_outs += 1;
        self.dirty.remove(&key);
        let run = Run { epoch: self.epoch, since: now, detached: false };
        self.processing.insert(key.clone(), run);
        let next = self.asked.get_mut(&key)?;
        let asked = Asked { adds: next.adds.max(1), ..*next };
        (next.adds, next.reasons) = (0, 0);
        let queued = now.since(self.since[&key]);
        self.tally.queued += queued.as_nanos();
        Some(Out { epoch: self.epoch, asked, failures: self.failures(&key), queued, key })
    }

    /// Ends a hand-out. `None`, and no effect, if it has ended.
    pub fn finish(&mut self, epoch: u64, how: How, asked: Asked, now: Time) -> Option<Ended<K>> {
        self.promote(now, PROMOTE);
        let key = self.processing.iter().find(|(_, run)| run.epoch == epoch)?.0.clone();
        Some(self.end_run(&key, how, asked, now))
    }

    /// As [`finish`](Self::finish) where keys can't be copied: a custom order is given none.
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

    /// A custom order has given all that it has, and none of it could leave.
    ///
    /// # Panics
    ///
    /// If one of the keys could.
    pub fn ask_order_in_vain(&mut self) {
        assert!(self.queue.pop_stack().is_none(), "the order has a key that may leave");
    }

    /// Ends the hand-out of `key` if its guard was given up.
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

    /// Takes a key out of ready, waiting and dirty. `None` if it is not known.
    pub fn cancel(&mut self, key: &K) -> Option<Cancelled> {
        if !self.knows(key) {
            return None;
        }
        let cancelled = self.take_back(key);
        self.let_go(key);
        Some(cancelled)
    }

    /// Clears a key's failures.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
        self.not_before.remove(key);
        self.let_go(key);
    }

    /// Makes up to `max` keys ready that are due.
    pub fn promote(&mut self, now: Time, max: usize) -> usize {
        self.now = now;
        for n in 0..max {
            let first =
                self.deadlines.first().filter(|first| first.0 <= now && first.0 < Time::NEVER);
            let Some((.., key)) = first.cloned() else { return n };
            self.stop_waiting(&key);
            self.not_before.remove(&key);
            self.add_now(&key);
        }
        max
    }

    /// Pauses or resumes.
    pub fn pause(&mut self, paused: bool) {
        if self.ending < Ending::ShutDown {
            self.paused = paused;
        }
    }

    // --- Parts ------------------------------------------------------------------------------------

    fn push(&mut self, key: &K) {
        self.queue.push(key, self.asked[key].priority, self.teams[key]);
    }

    fn fail(&mut self, key: &K) {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
    }

    /// The next run is asked with this, too: the highest priority asked for wins.
    fn note(&mut self, key: &K, more: Asked) {
        let pending = self.is_pending(key);
        let asked = self.asked.entry(key.clone()).or_default();
        asked.priority = if pending { asked.priority.max(more.priority) } else { more.priority };
        asked.adds = asked.adds.saturating_add(more.adds);
        asked.reasons |= more.reasons;
        let priority = asked.priority;
        self.queue.lift(key, priority);
    }

    fn take_back(&mut self, key: &K) -> Cancelled {
        let processing = self.processing.contains_key(key);
        let dirty = self.dirty.remove(key);
        if dirty && !processing {
            self.queue.remove(key);
        }
        self.failures.remove(key);
        self.not_before.remove(key);
        if let Some(asked) = self.asked.get_mut(key) {
            (asked.adds, asked.reasons) = (0, 0);
        }
        let waiting = self.stop_waiting(key);
        Cancelled { ready: dirty && !processing, dirty: dirty && processing, waiting }
    }

    /// Forgets all about a key without a state.
    fn let_go(&mut self, key: &K) -> Option<K> {
        if self.knows(key) {
            return None;
        }
        self.not_before.remove(key);
        self.asked.remove(key);
        self.since.remove(key);
        self.teams.remove(key);
        Some(key.clone())
    }
}
