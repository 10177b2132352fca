//! The interface of a storage engine. Most operations apply to a batch of keys.

pub(crate) mod activity;
pub(crate) mod address;
pub(crate) mod attempts;
pub(crate) mod columns;
pub(crate) mod counters;
pub(crate) mod damage;
pub(crate) mod defaults;
pub(crate) mod gate;
pub(crate) mod outage;
pub(crate) mod parked;
pub(crate) mod past;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod peer;
#[cfg(feature = "postgres")]
pub mod postgres;
pub(crate) mod receipts;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod retry_delay;
pub(crate) mod row;
pub(crate) mod schedules;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
pub(crate) mod time;
pub(crate) mod turns;
pub(crate) mod wakes;

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use requeue::CancelledRun;
use tokio::sync::watch;

use crate::engine::activity::{Merging, Parts, Record, Recorded, Which};
use crate::engine::counters::Counters;
use crate::engine::damage::Damaged;
use crate::engine::outage::Outage;
use crate::engine::parked::OnParked;
use crate::engine::receipts::Attempts;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::turns::Turns;
use crate::types::action::ActionRecord;
use crate::types::add::{Add, Added, ParkedAdd, Priority, ReaddPolicy};
use crate::types::error::{Answer, EngineError};
use crate::types::group::GroupBy;
use crate::types::inspect::{Attempt, Entry, GroupInfo, ParkedKey, QueueInfo, State, StateCounts};
use crate::types::key::Key;
use crate::types::rate::{Rate, Throttle};

/// An open queue, as its engine knows it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) readd_policy: ReaddPolicy,
    pub(crate) parked_add: ParkedAdd,
    /// The name of this process, which is stored with each key that it claims.
    pub(crate) worker: Arc<str>,
    /// True if the completions of this process add their runs to the past of a key that stays.
    pub(crate) keeps_past: bool,
    /// Distinguishes successive queues of the same name, for engines whose `id` does not.
    pub(crate) generation: u64,
    /// The counters of this process.
    pub(crate) meters: Arc<Counters>,
    /// The outages that this process has noticed.
    pub(crate) outage: Arc<Outage>,
    /// The function that this process calls for parked keys.
    pub(crate) on_parked: OnParked,
    /// The rule that assigns keys to groups, as engines store it, or `None` if the queue has no groups.
    pub(crate) group_by: Option<Arc<str>>,
    /// The limit of each group without a separate limit, when the queue was opened.
    pub(crate) group_limit: Option<u32>,
    /// The rate of the queue when it was opened.
    pub(crate) rate: Option<Rate>,
    /// The turns of the groups in the claims of this process.
    pub(crate) turns: Arc<Mutex<Turns>>,
}

impl Place {
    pub(crate) fn new(id: i64, name: impl Into<String>, settings: impl Into<Settings>) -> Self {
        let Settings { readd_policy, parked_add, group_by, group_limit, rate } = settings.into();
        let (meters, outage, on_parked, turns) = Default::default();
        let (worker, generation) = (Arc::from(""), 0);
        let name = name.into();
        Self {
            id,
            name,
            readd_policy,
            parked_add,
            worker,
            keeps_past: true,
            generation,
            meters,
            outage,
            on_parked,
            group_by,
            group_limit,
            rate,
            turns,
        }
    }

    /// Returns true if the add revives a parked key.
    pub(crate) fn revives(&self, add: &Add) -> bool {
        add.revives || self.parked_add == ParkedAdd::Revive
    }
}

/// The settings of a queue. The store keeps them, so that they apply to all processes. The process that creates the
/// queue chooses them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) readd_policy: ReaddPolicy,
    pub(crate) parked_add: ParkedAdd,
    /// The pattern that extracts the group. `None` means that the queue has no groups, and an empty text that each add
    /// names the group.
    pub(crate) group_by: Option<Arc<str>>,
    /// The limit of keys in flight of each group without a separate limit, when the queue is created.
    pub(crate) group_limit: Option<u32>,
    /// The rate of all starts, when the queue is created.
    pub(crate) rate: Option<Rate>,
}

impl Settings {
    /// Returns the settings of a queue. `holds` selects the re-add policy `Hold`, and `revives` the revival of parked
    /// keys by adds.
    pub(crate) const fn from_flags(holds: bool, revives: bool) -> Self {
        Self {
            readd_policy: if holds { ReaddPolicy::Hold } else { ReaddPolicy::Replace },
            parked_add: if revives { ParkedAdd::Revive } else { ParkedAdd::Keep },
            group_by: None,
            group_limit: None,
            rate: None,
        }
    }

    /// Returns the entry for a queue with these settings in the list of queues.
    pub(crate) fn into_info(self, name: String, is_empty: bool, is_paused: bool) -> QueueInfo {
        let Self { readd_policy, parked_add, group_by, group_limit, rate } = self;
        let group_by = group_by.as_deref().map(GroupBy::from_stored);
        QueueInfo {
            name,
            readd_policy,
            parked_add,
            group_by,
            group_limit,
            rate,
            is_empty,
            is_paused,
        }
    }
}

impl From<ReaddPolicy> for Settings {
    fn from(readd_policy: ReaddPolicy) -> Self {
        Self { readd_policy, ..Self::default() }
    }
}

/// An add of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    /// The group for a new key, or `None` if the queue has no groups.
    pub(crate) group: Option<Arc<str>>,
    pub(crate) add: Add,
    /// The number of equal adds that this value combines.
    pub(crate) adds: u32,
    /// The trace context of the add, in one line.
    pub(crate) trace: Option<Arc<str>>,
}

impl Ask {
    /// Creates an add of a key without a group.
    pub(crate) fn new(key: impl Into<Key>, add: Add) -> Self {
        Self { key: key.into(), group: None, add, adds: 1, trace: None }
    }
}

/// The combined parameters of the adds that a run serves. In a completion, 0 adds stand for the parameters that the
/// engine has stored with the delivery, because the process that completes the delivery may not have claimed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) adds: u32,
    pub(crate) flags: u32,
    pub(crate) priority: Priority,
}

/// The parameters of the backoff.
///
/// The delay after the n-th consecutive counted failure (n from 0) is between half of min(base · 2ⁿ, cap) and the whole
/// value. `share` selects the point in that range. A failure during the backoff of the previous failure is not counted.
/// Its delay is the time that remains.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Backoff {
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
    /// The point in the range, from 0.0 (half of the delay) to 1.0 (the whole delay).
    pub(crate) share: f64,
}

impl Failing {
    /// Returns the parameters for the n-th of several keys that fail at the same time, n from 1. Each key receives a
    /// different share, so that the keys do not become ready at the same time. The step between two shares is the
    /// distance from the drawn share to 1.0.
    pub(crate) fn nth(mut self, n: usize) -> Self {
        // A drawn share of 1.0 results in a step of zero. Tests draw this share so that all keys have equal backoffs.
        let step = 1.0 - self.backoff.share.clamp(0.0, 1.0);
        self.backoff.share = 1.0 - (step * n as f64).fract();
        self
    }
}

/// A change of the settings of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupChange {
    /// The limit of keys in flight. With `None`, the limit of the queue applies.
    Limit(Option<u32>),
    /// The number of keys in one turn.
    Weight(u32),
    Paused(bool),
    /// The rate of the group's starts.
    Rate(Option<Rate>),
}

/// A claim of the next keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The maximum number of keys.
    pub(crate) max: usize,
    /// The number of these keys that are chosen by age, the oldest first, regardless of priority.
    pub(crate) oldest: usize,
    pub(crate) lease: Duration,
    /// The rules for keys whose leases have expired.
    pub(crate) expired: Failing,
    /// The longest time until the caller claims again without a wake, if this claim finds no key. Zero if no caller
    /// waits for keys, so that the engine need not send a wake.
    #[allow(dead_code, reason = "only some engines use it")]
    pub(crate) poll: Duration,
}

/// The rules for keys that fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failing {
    pub(crate) backoff: Backoff,
    /// The number of consecutive failures after which a key is parked, or `None` for no limit.
    pub(crate) max_failures: Option<u32>,
}

/// A key that was delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Delivery {
    pub(crate) key: Key,
    pub(crate) epoch: i64,
    pub(crate) asked: Asked,
    pub(crate) failures: u32,
    /// The time for which the key was ready. For a key that was dirty, the time starts with the add that made it dirty.
    pub(crate) queued: Duration,
    /// The group, or `None` if the queue has no groups.
    pub(crate) group: Option<Arc<str>>,
    /// The trace contexts of the adds that the run serves, one per line.
    pub(crate) trace: Option<Arc<str>>,
    /// The time since the failure of the previous run, if the run is a retry and the engine knows the time.
    pub(crate) failed: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) items: Vec<Delivery>,
    /// The time until the next key may become ready or a lease may expire, if the claim returned fewer keys than
    /// requested. The engine estimates the time without a long search. The value is never `None` while a key is ready
    /// or waiting.
    pub(crate) next: Option<Duration>,
    /// Keys that this claim has set aside because their rows are damaged.
    pub(crate) damaged: Vec<Damaged>,
    /// Keys that this claim has parked, because the expiry of their leases was their last permitted failure.
    pub(crate) parked: Vec<ParkedKey>,
    /// True if the queue is paused, so that the claim delivers no key. `items` is then empty.
    pub(crate) is_paused: bool,
    /// The time until a schedule is due, or `None` if the answering shard has no schedule.
    pub(crate) schedule_in: Option<Duration>,
    /// True if the queue or one of its groups has a rate. Then keys are not claimed ahead, because each claim counts as
    /// a start.
    pub(crate) is_rated: bool,
}

/// The completion of one delivery.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) key: Key,
    pub(crate) epoch: i64,
    pub(crate) how: Finish,
}

/// The way to complete a delivery: a [`Completion`](requeue::Completion) with the settings of its queue, or
/// the return of a key that no worker received.
#[derive(Clone, Debug)]
pub(crate) enum Finish {
    /// The run succeeded. The key's failures are forgotten.
    Succeed,
    /// The run succeeded, as with `Succeed`. The key is added again after this delay, with this priority.
    RequeueAfter(Duration, Priority),
    /// The run failed. The key runs again after the backoff, or is parked at the limit.
    Retry(Failing, Failure),
    /// The run failed. The key runs again after this delay, or is parked after this number of failures.
    RetryAfter(Duration, Option<u32>, Failure),
    /// The run failed, and the key is parked.
    GiveUp(Failure),
    /// The delivery is undone, and the key becomes the last of the ready keys.
    Release(Asked),
    /// The run was cancelled, and has stopped. The number of failures does not change. If the key has no pending run,
    /// its row is removed.
    Cancelled,
    /// No run was started. The key returns to its place before the claim. The duration is the time for which the key
    /// had been ready before the claim. If the run was cancelled meanwhile, the effect is that of `Cancelled`.
    Unclaim(Asked, Duration),
}

/// A run that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) asked: Asked,
    pub(crate) error: String,
    /// The duration of the run, or `None` for the time since the claim.
    pub(crate) took: Option<Duration>,
    pub(crate) exit_status: Option<i32>,
    /// The last part of the output.
    pub(crate) output: String,
}

impl Failure {
    /// Returns a failure with this error.
    pub(crate) fn new(asked: Asked, error: impl Into<String>) -> Self {
        let (error, output) = (error.into(), String::new());
        Self { asked, error, took: None, exit_status: None, output }
    }
}

impl Finish {
    pub(crate) const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Retry(_, failure) | Self::RetryAfter(_, _, failure) | Self::GiveUp(failure) => {
                Some(failure)
            }
            Self::Succeed
            | Self::RequeueAfter(..)
            | Self::Release(_)
            | Self::Cancelled
            | Self::Unclaim(..) => None,
        }
    }

    /// Returns true if this failure, the `failures`-th consecutive failure, parks the key. A key that was added during
    /// the run is not parked, even if the result is true.
    pub(crate) fn parks(&self, failures: u32) -> bool {
        match self {
            Self::Retry(Failing { max_failures: most, .. }, _) | Self::RetryAfter(_, most, _) => {
                most.is_some_and(|most| failures >= most)
            }
            Self::GiveUp(_) => true,
            Self::Succeed
            | Self::RequeueAfter(..)
            | Self::Release(_)
            | Self::Cancelled
            | Self::Unclaim(..) => false,
        }
    }
}

/// Distinguishes batches that wait for locked keys from batches that skip locked keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tried {
    No,
    /// An earlier attempt has found locked keys, so this attempt skips them.
    InVain,
}

/// The outcome of a lease renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    /// The lease was extended by its full duration.
    Yes,
    /// The lease was extended, but the run was cancelled. The holder should stop the run.
    Cancelled,
    /// The lease was lost.
    Lost,
    /// The lease was not extended, because another transaction holds the row lock.
    #[allow(dead_code, reason = "only some engines use it")]
    Busy,
}

/// The outcome of a drop of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dropped {
    /// The queue was dropped. The counts are from before the drop.
    Yes(StateCounts),
    /// The queue was not dropped, because it has keys or schedules. The number is that of the schedules.
    Kept(StateCounts, u64),
    Missing,
}

impl Dropped {
    /// Returns true if a drop must not remove a queue with these keys and schedules.
    pub(crate) const fn keeps(counts: &StateCounts, schedules: u64, keys_too: bool) -> bool {
        let StateCounts { ready, waiting, in_flight, parked, damaged, .. } = *counts;
        !keys_too && ready + waiting + in_flight + parked + damaged + schedules > 0
    }
}

/// The position at which a walk over the keys continues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cursor {
    pub(crate) shard: usize,
    /// The position within the shard, in the engine's own encoding.
    pub(crate) at: Vec<u8>,
}

/// A step of a walk over the keys.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub(crate) keys: Vec<Key>,
    /// `None` after the last step.
    pub(crate) next: Option<Cursor>,
}

/// A step of a scan: the entries of some keys, and the next position, which is `None` after the last step.
pub(crate) type Scanned = (Vec<Entry>, Option<Cursor>);

/// The answers for the keys of a batch, in the order of the keys. `None` means that the key was not changed, because
/// another transaction has [locked](crate::types::error::Kind::Locked) it.
pub(crate) type Answers<T> = Answer<Vec<Option<T>>>;

/// The error of an engine without groups.
const NO_GROUPS: &str = "this kind of store has no groups";
/// The error of an engine without scans.
const NO_SCANS: &str = "this kind of store reads its keys in order";
/// The error of an engine without schedules.
const NO_SCHEDULES: &str = "this kind of store has no schedules";
/// The error of an engine without activity.
const NO_ACTIVITY: &str = "this kind of store keeps no numbers per minute";
/// The error of an engine that records no actions.
const NO_ACTIONS: &str = "this kind of store records no actions";
/// The error of an engine without rates.
pub(crate) const NO_RATES: &str = "this kind of store has no rates";

/// The operations of a storage engine.
///
/// Each batch is atomic. A batch of adds contains no key twice. The keys of a batch of adds, completions or
/// renewals belong to one [shard](Self::shard_of).
#[async_trait]
pub(crate) trait Engine: Debug + Send + Sync {
    /// Creates the schema, or upgrades it to the version of this program.
    async fn migrate_schema(&self) -> Answer<()>;

    /// Closes the files that the exit of the process does not close cleanly. No operation can follow.
    async fn close_files(&self) {}

    /// Opens the queue. Creates it with these settings if it does not exist.
    async fn open_queue(&self, name: &str, settings: Settings) -> Answer<Place>;

    /// Opens the queue if it exists.
    async fn find_queue(&self, name: &str) -> Answer<Option<Place>>;

    /// Removes the queue with its settings and keys. A queue that has keys or schedules is removed only with
    /// `keys_too`. After the drop, each operation on a place that was opened before the drop changes nothing and fails
    /// with [dropped](crate::types::error::Kind::Dropped), even if a queue of the same name exists again.
    async fn drop_queue(&self, name: &str, keys_too: bool) -> Answer<Dropped>;

    /// Lists all queues, in no particular order. The cost does not depend on the number of keys.
    async fn list_queues(&self) -> Answer<Vec<QueueInfo>>;

    /// Returns the number of shards of the queue. Shards fail independently.
    fn shard_count(&self, _queue: &Place) -> usize {
        1
    }

    /// Returns the number of the key's shard.
    fn shard_of(&self, _queue: &Place, _key: &Key) -> usize {
        0
    }

    /// Adds keys. Skips locked keys only with [`Tried::InVain`].
    ///
    /// The batch may be sent several times. An engine that recognizes a repeated batch adds its keys once, and gives
    /// the same answers to each attempt.
    async fn send_adds(
        &self,
        queue: &Place,
        asks: Vec<Ask>,
        attempts: &mut Attempts,
        tried: Tried,
    ) -> Answers<Added>;

    /// Claims keys. If the queue is [paused](Self::set_paused), handles only the expired leases.
    async fn claim_keys(&self, queue: &Place, claim: Claim) -> Answer<Claimed>;

    /// Pauses or resumes the deliveries of the queue, in all processes. A resume wakes waiting processes. A pause does
    /// not affect other operations.
    async fn set_paused(&self, queue: &Place, paused: bool) -> Answer<()>;

    async fn is_paused(&self, queue: &Place) -> Answer<bool>;

    /// Returns the rate of all starts of the queue, with the time until the next start.
    async fn read_rate(&self, _queue: &Place) -> Answer<Option<Throttle>> {
        Ok(None)
    }

    /// Sets the rate of all starts of the queue, in all processes, and wakes waiting processes. Earlier starts count.
    async fn set_rate(&self, _queue: &Place, _rate: Option<Rate>) -> Answer<()> {
        Err(EngineError::refused(NO_RATES))
    }

    /// Sets the rate as [`set_rate`](Self::set_rate) does, if the queue has no rate. Returns the resulting rate of the
    /// queue.
    async fn set_first_rate(&self, _queue: &Place, _rate: Rate) -> Answer<Rate> {
        Err(EngineError::refused(NO_RATES))
    }

    /// Changes a setting of a group, in all processes, and wakes waiting processes. Runs in flight continue.
    async fn change_group(&self, _queue: &Place, _group: &str, _change: GroupChange) -> Answer<()> {
        Err(EngineError::refused(NO_GROUPS))
    }

    /// Sets the limit of keys in flight for each group without a separate limit, as
    /// [`change_group`](Self::change_group) does for one group.
    async fn set_group_limit(&self, _queue: &Place, _limit: Option<u32>) -> Answer<()> {
        Err(EngineError::refused(NO_GROUPS))
    }

    /// Returns up to `limit` groups that have keys or settings, in the order of their names, starting after `after`. The
    /// engine reads all keys of these groups.
    async fn list_groups(
        &self,
        _queue: &Place,
        _after: Option<&str>,
        _limit: usize,
    ) -> Answer<Vec<GroupInfo>> {
        Err(EngineError::refused(NO_GROUPS))
    }

    /// Stores the schedule of a key, and wakes waiting processes. Replaces an earlier schedule of the key, but does not
    /// end its pause. If the expression and the time zone are the same, only the priority and the group change.
    /// Otherwise, `next_at` becomes the engine's current time. Returns the schedule as it is stored.
    async fn put_schedule(&self, _queue: &Place, _schedule: Scheduled) -> Answer<Agenda> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Removes the schedule of a key. Returns false if the key has no schedule.
    async fn remove_schedule(&self, _queue: &Place, _key: &Key) -> Answer<bool> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Pauses or resumes the schedule of a key, and wakes waiting processes. Times that have passed during a pause are
    /// skipped. Returns false if the key has no schedule.
    async fn pause_schedule(&self, _queue: &Place, _key: &Key, _paused: bool) -> Answer<bool> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Returns the schedule of a key, if it has one.
    async fn look_up_schedule(&self, _queue: &Place, _key: &Key) -> Answer<Agenda> {
        Ok(Agenda::default())
    }

    /// Returns up to `limit` schedules of each shard in the order of their keys, starting after `after`.
    async fn list_schedules(
        &self,
        _queue: &Place,
        _after: Option<&Key>,
        _limit: usize,
    ) -> Answer<Vec<Agenda>> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Returns up to `limit` schedules of a shard, in the order in which they are due.
    async fn next_schedules(&self, _queue: &Place, _shard: usize, _limit: usize) -> Answer<Agenda> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Changes a schedule by `firing`, and adds its key if its time has come. Returns false, and changes nothing, if
    /// the schedule no longer equals `was`.
    async fn fire_schedule(
        &self,
        _queue: &Place,
        _was: &Scheduled,
        _firing: Firing,
    ) -> Answer<bool> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Writes the row of a process for a minute, if that minute is still [writable](activity::is_writable). Replaces
    /// the previous row.
    async fn record_activity(&self, _queue: &Place, _record: Record) -> Answer<Recorded> {
        Err(EngineError::refused(NO_ACTIVITY))
    }

    /// Returns rows in no particular order.
    async fn read_activity(&self, _queue: &Place, _which: Which) -> Answer<Parts> {
        Err(EngineError::refused(NO_ACTIVITY))
    }

    /// Replaces rows of a minute with a merged row, or with no row if the merged row would be empty. Returns false, and
    /// changes nothing, if one of the rows was written after it was read, or the minute has another merged row. Also
    /// removes the rows that are older than [`KEPT`](activity::KEPT).
    async fn merge_activity(&self, _queue: &Place, _merging: Merging) -> Answer<bool> {
        Err(EngineError::refused(NO_ACTIVITY))
    }

    /// Records an action of an operator. The store keeps the last [`KEPT`](crate::types::action::KEPT) of each queue.
    async fn record_action(&self, _queue: &Place, _action: ActionRecord) -> Answer<()> {
        Err(EngineError::refused(NO_ACTIONS))
    }

    /// Returns the recorded actions, the newest first.
    async fn last_actions(&self, _queue: &Place) -> Answer<Vec<ActionRecord>> {
        Ok(Vec::new())
    }

    /// Completes deliveries. For each delivery, the answer is true if the holder still had its lease. Skips locked keys
    /// only with [`Tried::InVain`].
    async fn send_completions(&self, queue: &Place, ends: Vec<End>, tried: Tried) -> Answers<bool>;

    /// Extends the lease of each delivery whose lease has not expired, to `lease` from now.
    async fn renew_leases(
        &self,
        queue: &Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<Vec<Renewed>>;

    /// Cancels keys in the given state, or in any state. All keys are distinct and belong to one
    /// [shard](Self::shard_of).
    ///
    /// For each key, the answer is true if the key was ready, dirty, waiting, parked or damaged. Several keys: skips
    /// the locked keys. A single key: waits for its lock.
    async fn cancel_keys(
        &self,
        queue: &Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answers<bool>;

    /// Cancels the run of a key in flight. The next renewal informs the holder of the key. A later delivery of the key
    /// is not affected. If another transaction has locked the key, waits for the lock.
    async fn cancel_running(&self, queue: &Place, key: &Key) -> Answer<CancelledRun>;

    /// Returns a number that changes when a run of the queue may have been cancelled. A process that holds keys reads
    /// this number often, and renews its leases immediately when the number changes. The number may also change without
    /// a cancelled run. It may stay the same although a run was cancelled: then the next regular renewal reports the
    /// cancellation.
    async fn cancel_signal(&self, _queue: &Place) -> Answer<u64> {
        Ok(0)
    }

    /// Makes parked or waiting keys, as `from` selects, ready, and resets their failures. The requirements for the
    /// keys, and the treatment of locked keys, are the same as for [`cancel_keys`](Self::cancel_keys). For each key,
    /// the answer is true if the key was in that state.
    async fn make_ready(&self, queue: &Place, keys: Vec<Key>, from: State) -> Answers<bool>;

    /// Takes the next step of a walk over the keys in the given state, or in any state. The walk returns a
    /// key at least once if the key is in that state throughout the walk. It may miss a key that enters the
    /// state during the walk.
    async fn walk_keys(
        &self,
        queue: &Place,
        state: Option<State>,
        from: Option<Cursor>,
        limit: usize,
    ) -> Answer<Walked> {
        let after = from.map(|Cursor { at, .. }| Key::from(at));
        let page = self.read_page(queue, state, after.as_ref(), limit).await?;
        let is_full = page.len() >= limit;
        let keys: Vec<Key> = page.into_iter().map(|entry| entry.key).collect();
        let last = keys.last().filter(|_| is_full);
        let next = last.map(|last| Cursor { shard: 0, at: last.to_vec() });
        Ok(Walked { keys, next })
    }

    /// Returns true if a sorted page costs a read of all keys. Long lists should then use
    /// [`scan_entries`](Self::scan_entries).
    fn scans(&self) -> bool {
        false
    }

    /// Walks over keys that are not parked, as [`walk_keys`](Self::walk_keys) does, and returns their entries.
    async fn scan_entries(
        &self,
        _queue: &Place,
        _state: Option<State>,
        _from: Option<Cursor>,
    ) -> Answer<Scanned> {
        Err(EngineError::refused(NO_SCANS))
    }

    async fn look_up(&self, queue: &Place, key: &Key) -> Answer<Option<Entry>>;

    /// Returns the last consecutive failures of a key, the newest first.
    async fn read_attempts(&self, _queue: &Place, _key: &Key) -> Answer<Vec<Attempt>> {
        Ok(Vec::new())
    }

    /// Returns up to `limit` keys in this state, or in any state, in the order of the keys, starting after
    /// `after`.
    async fn read_page(
        &self,
        queue: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Entry>>;

    async fn count_keys(&self, queue: &Place) -> Answer<StateCounts>;

    /// Returns true if no key is ready, waiting or in flight. The cost does not depend on the number of
    /// keys.
    async fn is_idle(&self, queue: &Place) -> Answer<bool> {
        let StateCounts { ready, waiting, in_flight, .. } = self.count_keys(queue).await?;
        Ok(ready + waiting + in_flight == 0)
    }

    /// Returns a counter that changes when a key may have become ready. The counter may change although no key is
    /// ready, and may stay the same although a key is ready. Therefore, callers must also poll.
    fn subscribe_wakes(&self, queue: &Place) -> watch::Receiver<u64>;

    /// Passes the last wake on to another process, because this process needs no keys. Most engines do nothing here,
    /// because they wake all processes.
    fn pass_wake_on(&self, _queue: &Place) {}

    /// Returns the number of batches that the engine can process concurrently.
    fn max_batches(&self) -> usize;
}

/// Returns the steps that upgrade a schema of version `found` to `wanted`, the last of `steps`. Returns `None` if no
/// steps lead there.
pub(crate) fn missing_steps<T>(found: i32, wanted: i32, steps: &[T]) -> Option<&[T]> {
    let count = usize::try_from(wanted.checked_sub(found)?).ok().filter(|&count| count > 0)?;
    steps.get(steps.len().checked_sub(count)?..)
}

/// The largest number of keys that an engine that [scans](Engine::scans) sorts for a page.
pub(crate) const SORTED_KEYS: u64 = 10_000;

/// Locks a mutex. A poisoned mutex is used like any other: no holder calls code of the user, so a panic leaves no data
/// half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Splits a batch into one part per shard. Omits empty parts.
pub(crate) fn by_shard<T>(
    engine: &dyn Engine,
    queue: &Place,
    batch: Vec<T>,
    key: impl Fn(&T) -> &Key,
) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = (0..engine.shard_count(queue)).map(|_| Vec::new()).collect();
    for what in batch {
        parts[engine.shard_of(queue, key(&what))].push(what);
    }
    parts.retain(|part| !part.is_empty());
    parts
}
