//! The results of reads: entries of keys, states, counts and settings.

use std::collections::BTreeMap;
use std::time::Duration;

use requeue::CancelReason;
use requeue::history::Ended;
use requeue_core::Shown;

use crate::types::add::{ParkedAdd, Priority, ReaddPolicy};
use crate::types::group::GroupBy;
use crate::types::key::Key;
use crate::types::rate::{Rate, Throttle};

/// The state of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[non_exhaustive]
pub enum State {
    /// The key can be delivered now.
    Ready,
    /// The key has a due time in the future, because it was added with a delay or is backing off.
    Waiting,
    /// A worker of this or another process has received the key, and has not completed it.
    InFlight,
    /// The key has failed for the last time. The store keeps it until it is added again, revived or cancelled.
    Parked,
    /// The key is set aside, because another program has written an unreadable row for it. No worker receives the key
    /// until it is added again: an add replaces the row. [`Entry::error`] has the reason.
    Damaged,
}

/// The state of a key at the time of a read. All times are measured by the engine's clock.
///
/// The struct has no nested structs, because each field is a column in lists of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The name of the key.
    pub key: Key,
    /// The state of the key.
    pub state: State,
    /// The time for which the key has been in its state. A ready key has been ready since its add, or since its due
    /// time. The value is `None` for a waiting key, because the store does not record when the wait began.
    pub since: Option<Duration>,
    /// The time until the pending run is due. For a key in flight, the pending run is the run after the present run.
    pub due: Option<Duration>,
    /// The bound: the time until which, at the latest, further debounced adds can postpone the pending run. It is
    /// `None` if the run does not wait for debounced adds. Without [`at_most`](crate::Add::at_most), the bound is more
    /// than 100 years.
    pub bound: Option<Duration>,
    /// True if the key is in flight and was added again. The key runs once more after its completion.
    pub dirty: bool,
    /// The reason for the [cancellation](crate::Queue::cancel_running) of the run in flight. It is `None` if the run
    /// was not cancelled. The worker may not have noticed the cancellation yet.
    pub cancelled: Option<CancelReason>,
    /// True if the key is ready and its queue is [paused](crate::Queue::pause).
    pub paused: bool,
    /// For a key in flight, the fencing token of its delivery: [`Item::fencing_token`](crate::Item::fencing_token).
    pub fencing_token: Option<u64>,
    /// For a key in flight, the time until its lease expires if the worker does not renew it.
    pub lease: Option<Duration>,
    /// For a key in flight, the [name of its worker](crate::OpenOptions::worker). Another process has written this text
    /// to the store, so escape it before you show it.
    pub worker: Option<String>,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The priority of the key.
    pub priority: Priority,
    /// The number of adds that the pending run serves.
    pub adds: u32,
    /// The bitwise or of the flags of the adds that the pending run serves.
    pub flags: u32,
    /// The error of the last failure, or the reason why the row is damaged.
    pub error: Option<String>,
    /// The time since the last failure, if [`failures`](Self::failures) is not 0.
    pub failed: Option<Duration>,
    /// The name of the group, or `None` if the queue has no [groups](crate::OpenOptions::group_by).
    pub group: Option<String>,
    /// The last completed runs of the key, the oldest first. The store keeps about seven runs with a key, unless
    /// [`without_past`](crate::OpenOptions::without_past) was set. It removes them with the key, for example after a
    /// success.
    pub past_runs: Vec<CompletedRun>,
}

/// A completed run of a key that is still in the queue: see [`Entry::past_runs`]. Times are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CompletedRun {
    /// The result of the run.
    pub how: Ended,
    /// True if the worker did not complete the run before its lease expired.
    pub lease_expired: bool,
    /// The number of adds that the run served.
    pub adds: u32,
    /// The time since the run ended, measured by the store.
    pub ended: Duration,
    /// The duration of the run. For a failure, the worker measures this duration. Otherwise, this is the time since the
    /// claim of the key.
    pub took: Duration,
    /// The time for which the key was ready before the run. It is `None` if the store does not know this time, because
    /// the key was added again during the run.
    pub queued: Option<Duration>,
}

/// A run that failed. [`Queue::attempts`](crate::Queue::attempts) returns this value.
///
/// Other processes have written the texts to the store, so escape them before you show them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// The number of consecutive failures, including this one. The first failure has the number 1.
    pub number: u32,
    /// The time since the run ended, measured by the store.
    pub ended: Duration,
    /// The duration of the run. If the lease expired, this is the time from the claim of the key to the expiry.
    pub took: Duration,
    /// The [name](crate::OpenOptions::worker) of the worker.
    pub worker: Option<String>,
    /// The [exit status](crate::Item::set_exit_status), if the worker has set it.
    pub exit_status: Option<i32>,
    /// The error of the run.
    pub error: String,
    /// The last part of the [output](crate::Item::set_output), if the worker has set it.
    pub output: Option<String>,
}

/// A part of a walk over the keys of a queue: see [`Queue::walk_entries`](crate::Queue::walk_entries).
#[doc(hidden)] // Only `requeue-http` needs this item.
#[derive(Debug)]
#[non_exhaustive]
pub struct Part {
    /// The entries of the keys in this part.
    pub entries: Vec<Entry>,
    /// The position of the next part, or `None` after the last part.
    pub next: Option<Vec<u8>>,
    /// True if the entries are sorted by key. A walk can then continue after each of them.
    pub in_order: bool,
}

impl Part {
    const SORTED: u8 = b'k';
    const SCANNED: u8 = b's';

    /// Returns the part of a walk in sorted order.
    #[must_use]
    pub fn of_page(entries: Vec<Entry>, limit: usize) -> Self {
        let last = entries.last().filter(|_| entries.len() >= limit);
        let next = last.map(|last| Self::position_after(&last.key));
        Self { entries, next, in_order: true }
    }

    /// Returns the part of a walk that scans several shards.
    pub(crate) fn of_scan(entries: Vec<Entry>, next: Option<(usize, Vec<u8>)>) -> Self {
        let position = |(shard, at): (usize, Vec<u8>)| {
            // A queue has at most 256 shards.
            let shard = u16::try_from(shard).unwrap_or(u16::MAX).to_be_bytes();
            [&[Self::SCANNED][..], &shard, &at].concat()
        };
        Self { entries, next: next.map(position), in_order: false }
    }

    /// Returns the position after `key`, for a walk in sorted order.
    #[must_use]
    pub fn position_after(key: &Key) -> Vec<u8> {
        [&[Self::SORTED], &key[..]].concat()
    }

    /// Returns the key after which a walk in sorted order continues, or `None` if the position belongs to a scan.
    #[must_use]
    pub fn key_before(position: &[u8]) -> Option<Key> {
        Some(Key::from(position.strip_prefix(&[Self::SORTED])?))
    }

    /// Returns the shard of a scan and the position within the shard, or `None` if the position belongs to another
    /// walk.
    pub(crate) fn place_in_scan(position: &[u8]) -> Option<(usize, Vec<u8>)> {
        let (shard, at) = position.strip_prefix(&[Self::SCANNED])?.split_first_chunk::<2>()?;
        let is_valid = at.iter().all(u8::is_ascii_digit)
            && str::from_utf8(at).is_ok_and(|at| at.parse::<u64>().is_ok());
        is_valid.then(|| (usize::from(u16::from_be_bytes(*shard)), at.to_vec()))
    }

    /// Returns true if a walk can continue at this position.
    #[must_use]
    pub fn is_position(position: &[u8]) -> bool {
        Self::key_before(position).is_some_and(|key| key.len() <= Key::MAX_LENGTH)
            || Self::place_in_scan(position).is_some()
    }
}

/// A key that this process has parked.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ParkedKey {
    /// The key.
    pub key: Key,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The error of the last failure.
    pub error: String,
    /// True if the last failure was the expiry of a lease, because the worker died or could not reach the store.
    pub lease_expired: bool,
}

/// A queue of a store, with its settings.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueInfo {
    /// The name of the queue.
    pub name: String,
    /// The re-add policy.
    pub readd_policy: ReaddPolicy,
    /// The setting for an add of a parked key.
    pub parked_add: ParkedAdd,
    /// The rule that assigns keys to groups, or `None` if the queue has no [groups](crate::OpenOptions::group_by).
    pub group_by: Option<GroupBy>,
    /// The maximum number of keys in flight of each group without a [separate limit](crate::GroupHandle::set_limit). It
    /// is `None` if these groups have no limit.
    pub group_limit: Option<u32>,
    /// The [rate](crate::OpenOptions::rate) of the queue's starts, or `None` if the queue has no rate.
    pub rate: Option<Rate>,
    /// True if the queue has no key in any state.
    pub is_empty: bool,
    /// True if the queue is [paused](crate::Queue::pause).
    pub is_paused: bool,
}

/// A group of a queue, with its settings and the number of its keys in each state.
/// [`Queue::groups`](crate::Queue::groups) and [`GroupHandle::info`](crate::GroupHandle::info) return this value.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupInfo {
    /// The name of the group. It is empty for keys whose add names no group, and for keys that the pattern does not
    /// match.
    pub name: String,
    /// The number of the group's keys in each state.
    pub counts: StateCounts,
    /// The maximum number of the group's keys in flight. It is the group's [separate
    /// limit](crate::GroupHandle::set_limit), or the [limit of the queue](crate::OpenOptions::group_limit). It is
    /// `None` if neither is set.
    pub limit: Option<u32>,
    /// The number of keys that are delivered in one turn: see
    /// [`GroupHandle::set_weight`](crate::GroupHandle::set_weight).
    pub weight: u32,
    /// The [rate](crate::GroupHandle::set_rate) of the group's starts. It is `None` if only the rate of the queue
    /// applies.
    pub rate: Option<Rate>,
    /// The time until the group's rate permits the next start. It is zero if the rate permits a start now, and `None`
    /// if the group has no rate.
    pub next_start: Option<Duration>,
    /// True if the group is [paused](crate::GroupHandle::pause).
    pub is_paused: bool,
}

/// The reason why no ready key of a group may be delivered.
#[doc(hidden)] // For `requeue-http`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    Paused,
    Limit,
    Rate,
}

impl GroupInfo {
    /// Returns the reason why no ready key of the group may be delivered. If there are several, the order is that of
    /// [`Hold`].
    #[doc(hidden)] // For `requeue-http`.
    #[must_use]
    pub fn hold(&self) -> Option<Hold> {
        match self {
            Self { is_paused: true, .. } => Some(Hold::Paused),
            Self { limit: Some(limit), counts, .. } if counts.in_flight >= (*limit).into() => {
                Some(Hold::Limit)
            }
            Self { next_start: Some(wait), .. } if !wait.is_zero() => Some(Hold::Rate),
            _ => None,
        }
    }
}

/// The number of keys in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StateCounts {
    /// The number of keys that may be delivered now.
    pub ready: u64,
    /// The number of keys with a due time in the future.
    pub waiting: u64,
    /// The number of keys in flight, including dirty keys.
    pub in_flight: u64,
    /// The number of keys in flight that were added again.
    pub dirty: u64,
    /// The number of parked keys.
    pub parked: u64,
    /// The number of [damaged](State::Damaged) keys.
    pub damaged: u64,
    /// The time for which the oldest ready key has been ready, or zero if no key is ready.
    pub oldest_ready: Duration,
}

impl StateCounts {
    /// Returns the number of all keys.
    pub(crate) const fn total(&self) -> u64 {
        let Self { ready, waiting, in_flight, parked, damaged, .. } = *self;
        ready + waiting + in_flight + parked + damaged
    }
}

/// The time, 100 years, beyond which a bound is treated as unlimited. Without this limit, the text about a key would
/// depend on the latest time that its engine can store.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The reason why a ready key is or is not delivered now: the settings of its group and queue, and the keys of its
/// group in flight.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    /// No setting holds the keys of the group back.
    Eligible {
        limit: Option<u32>,
        in_flight: u64,
    },
    Paused,
    /// The rate of the queue permits no start now.
    AtRate(Throttle),
    /// The rate of the group permits no start now.
    AtGroupRate(Throttle),
    /// The group has as many keys in flight as its limit permits. `first` contains the first of these keys.
    AtLimit {
        limit: u32,
        in_flight: u64,
        first: Vec<Entry>,
    },
}

impl Standing {
    /// Returns the part of an explanation that follows the state of a key in `group`.
    fn explain(&self, group: &str) -> String {
        match self {
            Self::Eligible { limit: Some(limit), in_flight } => {
                format!(" in group {group:?}, {in_flight} of {limit} in flight")
            }
            Self::Eligible { limit: None, .. } if group.is_empty() => String::new(),
            Self::Eligible { limit: None, .. } => format!(" in group {group:?}"),
            Self::Paused => format!(", but throttled by group {group:?}, which is paused"),
            Self::AtRate(throttle) => {
                format!(", but throttled by the queue: {}", throttle.explain())
            }
            Self::AtGroupRate(throttle) => {
                format!(", but throttled by group {group:?}: {}", throttle.explain())
            }
            Self::AtLimit { limit, in_flight, first } => {
                let holders = holders_text(first, *in_flight);
                format!(
                    ", but throttled by group {group:?}: {in_flight} of {limit} in flight{holders}"
                )
            }
        }
    }
}

/// Returns a text that lists the keys of `first` by their workers. These keys are in flight. `in_flight` is the number
/// of all keys in flight.
fn holders_text(first: &[Entry], in_flight: u64) -> String {
    let mut workers: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
    for entry in first {
        workers.entry(entry.worker.as_deref()).or_default().push(entry.key.to_string());
    }
    let mut parts: Vec<_> = workers
        .into_iter()
        .map(|(worker, keys)| {
            let worker = worker.map(|name| format!("{name:?}: ")).unwrap_or_default();
            worker + &keys.join(", ")
        })
        .collect();
    if parts.is_empty() {
        return String::new();
    }
    let more = in_flight.saturating_sub(first.len() as u64);
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    format!(" ({})", parts.join("; "))
}

impl Entry {
    /// Returns one line of text that explains the state of the key.
    ///
    /// The text does not say whether a rate, or the limit or a pause of the group, holds a ready key back.
    /// [`Queue::explain`](crate::Queue::explain) names these causes.
    #[must_use]
    pub fn explain(&self) -> String {
        self.explain_in_group(None)
    }

    /// Returns the explanation of the key. `standing` says whether a ready key is held back. If it is `None`, the text
    /// does not say so.
    pub(crate) fn explain_in_group(&self, standing: Option<&Standing>) -> String {
        let (key, since) = (&self.key, Shown(self.since.unwrap_or_default()));
        let failed = match self.failures {
            0 => String::new(),
            1 => ", after a failure".to_owned(),
            n => format!(", after {n} failures in a row"),
        };
        let why = self.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let postponed = match self.bound {
            None => String::new(),
            Some(bound) if bound > FAR => ", and further adds may postpone it".to_owned(),
            Some(bound) => {
                format!(", and further adds postpone it to at most {} from now", Shown(bound))
            }
        };
        match (self.state, self.due) {
            (State::Parked, _) => {
                format!(
                    "{key}: parked for {since}{failed}; it runs again only after a revive, or an add \
                     that revives it{why}"
                )
            }
            (State::Damaged, _) => {
                format!("{key}: its row is damaged{why}; add the key again to run it, or cancel it")
            }
            (State::InFlight, due) => {
                let lease = Shown(self.lease.unwrap_or_default());
                let then = match due {
                    _ if self.dirty => "; it runs once more after this run".to_owned(),
                    Some(due) => format!("; it is due again in {}", Shown(due)),
                    None => String::new(),
                };
                let worker = self.at_worker();
                let cancelled =
                    if self.cancelled.is_some() { "; its run was cancelled" } else { "" };
                format!(
                    "{key}: in flight{worker} for {since}; its lease expires in {lease}\
                     {cancelled}{then}{postponed}"
                )
            }
            (State::Waiting, due) => {
                let due = Shown(due.unwrap_or_default());
                format!("{key}: due in {due}{postponed}{failed}{why}")
            }
            (State::Ready, _) => {
                // Without a standing, the limit of the group is not known.
                let unread = Standing::Eligible { limit: None, in_flight: 0 };
                let group = self.group.as_deref().unwrap_or_default();
                let but = match self.paused {
                    true => ", but the queue is paused".to_owned(),
                    false => standing.unwrap_or(&unread).explain(group),
                };
                format!("{key}: ready for {since}{but}{failed}{why}")
            }
        }
    }

    fn at_worker(&self) -> String {
        let worker = self.worker.as_ref().map(|name| format!(" at worker {name:?}"));
        worker.unwrap_or_default()
    }
}
