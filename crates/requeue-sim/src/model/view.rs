//! What can be seen of a model.

use std::time::Duration;

use requeue_core::{Asked, Counts, Ending, Entry, Phase, Time};

use super::{Model, Team};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Keys that became ready, or dirty while in processing.
    pub adds: u64,
    /// Adds that became part of a run that was pending.
    pub coalesced: u64,
    /// Delayed adds.
    pub retries: u64,
    /// Hand-outs.
    pub hand_outs: u64,
    /// Hand-outs that ended as a failure.
    pub failures: u64,
    /// How long keys were ready, all together, in nanoseconds.
    pub queued: u128,
    /// How long workers had them.
    pub worked: u128,
}

/// What is known of one key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Seen {
    /// By number: idle, ready, processing, and dirty.
    pub phase: u8,
    /// When it is due.
    pub due: Option<Time>,
    /// To when debounced adds may postpone that.
    pub bound: Option<Time>,
    /// Failures in a row.
    pub failures: u32,
    /// Adds that its next run stands for.
    pub adds: u32,
    /// Their reasons.
    pub reasons: u32,
    /// The priority of what is pending, or was taken last; not compared otherwise.
    pub priority: Option<i32>,
    /// Whether it is ready, and held back because its team is at its limit.
    pub held_back: bool,
    /// Since when it is where it is; not compared where it is remembered for its failures alone.
    pub since: Option<Time>,
}

impl Seen {
    /// The number of a phase.
    #[must_use]
    pub fn number(phase: Phase) -> u8 {
        match phase {
            Phase::Idle => 0,
            Phase::Ready => 1,
            Phase::Processing => 2,
            Phase::ProcessingDirty => 3,
            other => unreachable!("no model of {other:?}"),
        }
    }

    /// What a queue knows of a key, as far as it is compared with what the model does.
    #[must_use]
    pub fn of<K>(entry: &Entry<K>, model: Option<Self>) -> Self {
        Self {
            phase: Self::number(entry.phase),
            due: entry.due,
            bound: entry.bound,
            failures: entry.failures,
            adds: entry.adds,
            reasons: entry.reasons,
            priority: model.and_then(|model| model.priority).map(|_| entry.priority),
            held_back: entry.held_back,
            since: entry.since.filter(|_| model.is_some_and(|model| model.since.is_some())),
        }
    }
}

impl Tally {
    /// What a queue has counted. It knows how long things took if it keeps times.
    #[must_use]
    pub const fn of(counts: &Counts, queued: u128, worked: u128) -> Self {
        Self {
            adds: counts.adds,
            coalesced: counts.coalesced,
            retries: counts.retries,
            hand_outs: counts.hand_outs,
            failures: counts.failures,
            queued,
            worked,
        }
    }
}

impl<K: Ord + Clone> Model<K> {
    /// What is known of `key`, if anything.
    pub fn see(&self, key: &K) -> Option<Seen> {
        if !self.knows(key) {
            return None;
        }
        let phase = match (self.is_processing(key), self.dirty.contains(key)) {
            (false, false) => Phase::Idle,
            (false, true) => Phase::Ready,
            (true, false) => Phase::Processing,
            (true, true) => Phase::ProcessingDirty,
        };
        let Asked { adds, reasons, priority } = self.asked.get(key).copied().unwrap_or_default();
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
            failures: self.failures(key),
            adds,
            reasons,
            priority: (self.is_pending(key) || self.is_processing(key)).then_some(priority),
            held_back: phase == Phase::Ready && !self.queue.has_room(self.teams[key].id),
        })
    }

    /// Whether anything is known of `key`.
    pub fn knows(&self, key: &K) -> bool {
        self.is_pending(key) || self.is_processing(key) || self.failures.contains_key(key)
    }

    /// Whether a run of `key` is pending.
    pub fn is_pending(&self, key: &K) -> bool {
        self.dirty.contains(key) || self.waiting.contains_key(key)
    }

    /// Whether `key` is with a worker.
    pub fn is_processing(&self, key: &K) -> bool {
        self.processing.contains_key(key)
    }

    /// Failures in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }

    /// Ready keys.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no key is ready.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Ready keys that may be handed out.
    pub fn eligible(&self) -> usize {
        if self.paused { 0 } else { self.queue.eligible() }
    }

    /// The keys that may be handed out, the one that has been ready longest first.
    pub fn by_age(&self) -> impl Iterator<Item = &K> {
        self.queue.by_age()
    }

    /// Ready keys, and those that will be when their worker is done.
    pub fn depth(&self) -> usize {
        self.dirty.len()
    }

    /// Keys with a delayed add.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Keys with a delayed add that have failed.
    pub fn failing(&self) -> usize {
        self.waiting.keys().filter(|key| self.failures(key) > 0).count()
    }

    /// Keys with a worker.
    pub fn processing(&self) -> usize {
        self.processing.len()
    }

    /// Keys of which anything is known.
    pub fn known(&self) -> usize {
        self.asked.len()
    }

    /// The time that all keys with a worker have been with it, added up.
    pub fn unfinished_work(&self, now: Time) -> Duration {
        self.processing.values().map(|run| now.since(run.since)).sum()
    }

    /// How long the key that was handed out first has been with its worker.
    pub fn longest_running(&self, now: Time) -> Duration {
        let first = self.processing.values().min_by_key(|run| run.epoch);
        first.map_or(Duration::ZERO, |run| now.since(run.since))
    }

    /// How long the oldest key that may be handed out has been ready.
    pub fn oldest_ready(&self, now: Time) -> Duration {
        let since = self.queue.oldest().and_then(|key| self.since.get(&key).copied());
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// When the next waiting key becomes ready.
    pub fn next_due(&self) -> Option<Time> {
        self.deadlines.first().map(|first| first.0).filter(|&at| at < Time::NEVER)
    }

    /// What was counted.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Whether handing out is stopped.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// How far the queue has ended.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// Whether client-go's `Get` would say that the queue has ended.
    pub fn is_exhausted(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Closed => {
                !self.asked.keys().any(|k| self.is_pending(k) || self.is_processing(k))
            }
            _ => self.paused || self.is_empty(),
        }
    }

    /// Whether nothing will be handed out any more.
    pub fn is_finished(&self) -> bool {
        self.is_exhausted() && (self.paused || self.dirty.is_empty())
    }

    /// Whether nothing is ready, and nothing with a worker.
    pub fn is_drained(&self) -> bool {
        self.is_exhausted() && self.processing.is_empty()
    }

    /// The hand-outs that have not ended, from the oldest on.
    pub fn runs(&self) -> Vec<(u64, K)> {
        let mut runs: Vec<_> =
            self.processing.iter().map(|(k, run)| (run.epoch, k.clone())).collect();
        runs.sort_unstable();
        runs
    }

    /// All that decides about the future, relative to `now`, for telling states apart. Times are
    /// capped, and so are failures and adds.
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
                    self.processing.get(key).map(|run| run.detached),
                    wait,
                    self.bounds.get(key).map(|&bound| ahead(bound)),
                    self.not_before.get(key).map(|&at| ahead(at)).filter(|&at| at > 0),
                    self.failures(key).min(1),
                    (asked.adds.min(1), asked.reasons, asked.priority),
                )
            })
            .collect();
        let order = self.runs().into_iter().map(|(_, key)| key).collect::<Vec<_>>();
        (keys, order, self.queue.essence(), self.ending, self.paused)
    }

    /// The team of a known key.
    pub fn team(&self, key: &K) -> Option<Team> {
        self.teams.get(key).copied()
    }
}
