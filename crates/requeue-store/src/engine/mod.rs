//! The interface of a storage engine. Most of its operations apply to a batch of keys.

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

/// An open queue, with the data that its engine needs for operations on it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) readd_policy: ReaddPolicy,
    pub(crate) parked_add: ParkedAdd,
    /// The name of this process. The store keeps it with each key that this process claims.
    pub(crate) worker: Arc<str>,
    /// True if this process adds completed runs to the past of a key that stays in the store.
    pub(crate) keeps_past: bool,
    /// Distinguishes successive queues of the same name, for engines in which `id` does not.
    pub(crate) generation: u64,
    /// Counts the activity of this process.
    pub(crate) meters: Arc<Counters>,
    /// The outages that this process has detected.
    pub(crate) outage: Arc<Outage>,
    /// The function of the user that this process calls for each parked key.
    pub(crate) on_parked: OnParked,
    /// The rule that assigns keys to groups, in the form in which engines store it. It is `None` if the queue has no
    /// groups.
    pub(crate) group_by: Option<Arc<str>>,
    /// The limit for groups without a separate limit, read when the queue was opened.
    pub(crate) group_limit: Option<u32>,
    /// The rate of the queue, read when the queue was opened.
    pub(crate) rate: Option<Rate>,
    /// The turns that the groups take in the claims of this process.
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

    /// Returns true if `add` revives a parked key of this queue.
    pub(crate) fn revives(&self, add: &Add) -> bool {
        add.revives || self.parked_add == ParkedAdd::Revive
    }
}

/// The settings of a queue. The process that creates the queue chooses them. The store keeps them, because they apply
/// to all processes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) readd_policy: ReaddPolicy,
    pub(crate) parked_add: ParkedAdd,
    /// The pattern that extracts the group from a key. With an empty text, each add names the group. It is `None` if
    /// the queue has no groups.
    pub(crate) group_by: Option<Arc<str>>,
    /// The limit of keys in flight for groups without a separate limit, which the new queue receives.
    pub(crate) group_limit: Option<u32>,
    /// The rate of all starts, which the new queue receives.
    pub(crate) rate: Option<Rate>,
}

impl Settings {
    /// Returns the settings of a queue without groups and rate. `holds` selects the re-add policy `Hold`. `revives`
    /// means that an add revives a parked key.
    pub(crate) const fn from_flags(holds: bool, revives: bool) -> Self {
        Self {
            readd_policy: if holds { ReaddPolicy::Hold } else { ReaddPolicy::Replace },
            parked_add: if revives { ParkedAdd::Revive } else { ParkedAdd::Keep },
            group_by: None,
            group_limit: None,
            rate: None,
        }
    }

    /// Returns the description of a queue with these settings, for the list of queues.
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

/// A request to add a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    /// The group that the key receives if it is new, or `None` if the queue has no groups.
    pub(crate) group: Option<Arc<str>>,
    pub(crate) add: Add,
    /// The number of equal adds that this request combines.
    pub(crate) adds: u32,
    /// The trace context of the add, in one line.
    pub(crate) trace: Option<Arc<str>>,
}

impl Ask {
    /// Creates a request for a key without a group.
    pub(crate) fn new(key: impl Into<Key>, add: Add) -> Self {
        Self { key: key.into(), group: None, add, adds: 1, trace: None }
    }
}

/// The combined parameters of the adds that a run serves. A completion with 0 adds stands for the parameters that the
/// engine has stored with the delivery. The process that completes the delivery may not know them, because it may not
/// have claimed the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) adds: u32,
    pub(crate) flags: u32,
    pub(crate) priority: Priority,
}

/// The parameters that determine the backoff of a key.
///
/// The maximum delay after the n-th consecutive counted failure (n from 0) is min(base · 2ⁿ, cap). The delay is between
/// half of the maximum and the maximum. `share` selects the point in that range. A failure during the backoff of the
/// previous failure is not counted, and its delay is the time that remains.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Backoff {
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
    /// The point in the range, from 0.0 (half of the maximum) to 1.0 (the maximum).
    pub(crate) share: f64,
}

impl Failing {
    /// Returns the rules for the n-th of several keys that fail at the same time, n from 1. Each key receives a
    /// different share, so that the keys do not become ready at the same time. Consecutive shares differ by the
    /// distance from the drawn share to 1.0.
    pub(crate) fn nth(mut self, n: usize) -> Self {
        // If the drawn share is 1.0, this distance is zero. Tests draw 1.0, so that all keys have equal backoffs.
        let step = 1.0 - self.backoff.share.clamp(0.0, 1.0);
        self.backoff.share = 1.0 - (step * n as f64).fract();
        self
    }
}

/// A change of the settings of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupChange {
    /// Sets the limit of the group's keys in flight. With `None`, the limit of the queue applies.
    Limit(Option<u32>),
    /// Sets the number of keys that are delivered in one turn.
    Weight(u32),
    Paused(bool),
    /// Sets the rate of the group's starts.
    Rate(Option<Rate>),
}

/// A request to claim the next keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The maximum number of keys that the claim returns.
    pub(crate) max: usize,
    /// The number of these keys that are chosen by their age, the oldest first, regardless of their priority.
    pub(crate) oldest: usize,
    pub(crate) lease: Duration,
    /// The rules for keys whose expired leases the claim finds.
    pub(crate) expired: Failing,
    /// The maximum time until the caller claims again without a wake, if this claim finds no key. It is zero if no
    /// caller waits for keys, so that the engine need not send a wake.
    #[allow(dead_code, reason = "only some engines use it")]
    pub(crate) poll: Duration,
}

/// The rules for a key whose run has failed.
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
    /// The time for which the key was ready. If the key was dirty, the time begins with the add that made it dirty.
    pub(crate) queued: Duration,
    /// The name of the key's group, or `None` if the queue has no groups.
    pub(crate) group: Option<Arc<str>>,
    /// The trace contexts of the adds that the run serves, one per line.
    pub(crate) trace: Option<Arc<str>>,
    /// The time since the failure of the previous run. It is `None` if the run is not a retry, or the engine does not
    /// know the time.
    pub(crate) failed: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) items: Vec<Delivery>,
    /// The time until a further key may become ready, or a lease may expire. It is set if the claim returned fewer keys
    /// than requested. The engine estimates it without a long search. It is never `None` while a key is ready or
    /// waiting.
    pub(crate) next: Option<Duration>,
    /// The keys that this claim has set aside, because their rows are damaged.
    pub(crate) damaged: Vec<Damaged>,
    /// The keys that this claim has parked, because the expiry of their leases was their last permitted failure.
    pub(crate) parked: Vec<ParkedKey>,
    /// True if the queue is paused. The claim then delivers no key, and `items` is empty.
    pub(crate) is_paused: bool,
    /// The time until a schedule is due. It is `None` if the shard that answered has no schedule.
    pub(crate) schedule_in: Option<Duration>,
    /// True if the queue or one of its groups has a rate. The process then claims no keys ahead, because each claimed
    /// key counts as a start.
    pub(crate) is_rated: bool,
}

/// A request to complete one delivery.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) key: Key,
    pub(crate) epoch: i64,
    pub(crate) how: Finish,
}

/// The way to complete a delivery. It is either a [`Completion`](requeue::Completion) with the settings of its queue,
/// or the return of a key that no worker received.
#[derive(Clone, Debug)]
pub(crate) enum Finish {
    /// The run succeeded. The store forgets the key's failures.
    Succeed,
    /// The run succeeded, as with `Succeed`. The key is added again, with the given delay and priority.
    RequeueAfter(Duration, Priority),
    /// The run failed. The key runs again after its backoff, or is parked if it has reached the limit of failures.
    Retry(Failing, Failure),
    /// The run failed. The key runs again after the given delay, or is parked after the given number of failures.
    RetryAfter(Duration, Option<u32>, Failure),
    /// The run failed, and the key is parked.
    GiveUp(Failure),
    /// The delivery is undone. The key becomes the last of the ready keys.
    Release(Asked),
    /// The run was cancelled, and has stopped. The number of failures does not change. If the key has no pending run,
    /// the store removes its row.
    Cancelled,
    /// No run was started, and the key returns to its place in the order. The duration is the time for which the key
    /// had been ready before the claim. If the run was cancelled in the meantime, the effect is the same as with
    /// `Cancelled`.
    Unclaim(Asked, Duration),
}

/// The failure of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) asked: Asked,
    pub(crate) error: String,
    /// The duration of the run. With `None`, the engine uses the time since the claim.
    pub(crate) took: Option<Duration>,
    pub(crate) exit_status: Option<i32>,
    /// The last part of the run's output.
    pub(crate) output: String,
}

impl Failure {
    /// Returns a failure with this error and no output.
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

    /// Returns true if this failure parks the key, where `failures` is the number of consecutive failures including
    /// this one. Even if the result is true, a key that was added during the run is not parked.
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

/// Says how a batch treats locked keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tried {
    No,
    /// An earlier attempt has found locked keys. Therefore, this attempt skips locked keys.
    InVain,
}

/// The answer to the renewal of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    /// The lease lasts for its full duration from now.
    Yes,
    /// The lease was renewed, but the run was cancelled. The worker should stop the run.
    Cancelled,
    /// The lease no longer exists.
    Lost,
    /// The lease was not renewed, because another transaction has locked the row.
    #[allow(dead_code, reason = "only some engines use it")]
    Busy,
}

/// The answer to a drop of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dropped {
    /// The queue was dropped. The value has the numbers of its keys before the drop.
    Yes(StateCounts),
    /// The queue was not dropped, because it has keys or schedules. The second value is the number of its schedules.
    Kept(StateCounts, u64),
    Missing,
}

impl Dropped {
    /// Returns true if a drop must keep a queue with these keys and schedules.
    pub(crate) const fn keeps(counts: &StateCounts, schedules: u64, keys_too: bool) -> bool {
        let StateCounts { ready, waiting, in_flight, parked, damaged, .. } = *counts;
        !keys_too && ready + waiting + in_flight + parked + damaged + schedules > 0
    }
}

/// The position from which a walk over the keys continues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cursor {
    pub(crate) shard: usize,
    /// The position within the shard, in an encoding that only the engine interprets.
    pub(crate) at: Vec<u8>,
}

/// The keys of one step of a walk.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub(crate) keys: Vec<Key>,
    /// The position of the next step, or `None` after the last step.
    pub(crate) next: Option<Cursor>,
}

/// The entries of one step of a scan, and the position of the next step. The position is `None` after the last step.
pub(crate) type Scanned = (Vec<Entry>, Option<Cursor>);

/// The answers for the keys of a batch, in the order of the keys. `None` means that the engine did not change the key,
/// because another transaction has [locked](crate::types::error::Kind::Locked) it.
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
/// An engine applies each batch as a whole or not at all. A batch of adds contains no key twice. All keys of a batch of
/// adds, completions or renewals belong to one [shard](Self::shard_of).
#[async_trait]
pub(crate) trait Engine: Debug + Send + Sync {
    /// Creates the schema, or upgrades it to the version that this program needs.
    async fn migrate_schema(&self) -> Answer<()>;

    /// Closes files that would not be closed cleanly when the process exits. No operation can follow.
    async fn close_files(&self) {}

    /// Opens the queue, or creates it with these settings if it does not exist.
    async fn open_queue(&self, name: &str, settings: Settings) -> Answer<Place>;

    /// Opens the queue if it exists.
    async fn find_queue(&self, name: &str) -> Answer<Option<Place>>;

    /// Removes the queue with its settings and keys. If the queue has keys or schedules, it is removed only with
    /// `keys_too`. Operations on a place that was opened before the drop then change nothing. They fail with
    /// [dropped](crate::types::error::Kind::Dropped), even if a queue of the same name exists again.
    async fn drop_queue(&self, name: &str, keys_too: bool) -> Answer<Dropped>;

    /// Returns all queues, in no particular order. The duration does not depend on the number of keys.
    async fn list_queues(&self) -> Answer<Vec<QueueInfo>>;

    /// Returns the number of the queue's shards. Each shard can fail independently of the others.
    fn shard_count(&self, _queue: &Place) -> usize {
        1
    }

    /// Returns the number of the key's shard.
    fn shard_of(&self, _queue: &Place, _key: &Key) -> usize {
        0
    }

    /// Adds keys. Waits for the locks of locked keys, or skips these keys if `tried` is [`Tried::InVain`].
    ///
    /// The caller may send the batch several times. An engine that recognizes a repeated batch adds its keys once, and
    /// gives the same answers to each attempt.
    async fn send_adds(
        &self,
        queue: &Place,
        asks: Vec<Ask>,
        attempts: &mut Attempts,
        tried: Tried,
    ) -> Answers<Added>;

    /// Claims keys. A claim of a [paused](Self::set_paused) queue only handles the expired leases.
    async fn claim_keys(&self, queue: &Place, claim: Claim) -> Answer<Claimed>;

    /// Pauses or resumes the deliveries of the queue, in all processes. A resume wakes the waiting processes. A pause
    /// does not affect operations other than claims.
    async fn set_paused(&self, queue: &Place, paused: bool) -> Answer<()>;

    async fn is_paused(&self, queue: &Place) -> Answer<bool>;

    /// Returns the rate of all starts of the queue, and the time until the next permitted start.
    async fn read_rate(&self, _queue: &Place) -> Answer<Option<Throttle>> {
        Ok(None)
    }

    /// Sets the rate of all starts of the queue, in all processes, and wakes waiting processes. Earlier starts also
    /// count towards the new rate.
    async fn set_rate(&self, _queue: &Place, _rate: Option<Rate>) -> Answer<()> {
        Err(EngineError::refused(NO_RATES))
    }

    /// Sets the rate as [`set_rate`](Self::set_rate) does, but only if the queue has no rate. Returns the rate that the
    /// queue has after the call.
    async fn set_first_rate(&self, _queue: &Place, _rate: Rate) -> Answer<Rate> {
        Err(EngineError::refused(NO_RATES))
    }

    /// Changes a setting of a group, for all processes, and wakes waiting processes. Runs in flight continue.
    async fn change_group(&self, _queue: &Place, _group: &str, _change: GroupChange) -> Answer<()> {
        Err(EngineError::refused(NO_GROUPS))
    }

    /// Sets the limit of keys in flight for groups without a separate limit, for all processes, and wakes waiting
    /// processes.
    async fn set_group_limit(&self, _queue: &Place, _limit: Option<u32>) -> Answer<()> {
        Err(EngineError::refused(NO_GROUPS))
    }

    /// Returns up to `limit` groups that have keys or settings, sorted by name. The list begins after the group
    /// `after`. The engine reads all keys of these groups.
    async fn list_groups(
        &self,
        _queue: &Place,
        _after: Option<&str>,
        _limit: usize,
    ) -> Answer<Vec<GroupInfo>> {
        Err(EngineError::refused(NO_GROUPS))
    }

    /// Stores the schedule of a key, and wakes waiting processes. The schedule replaces an earlier schedule of the key,
    /// but stays paused if the earlier one was paused. If the expression and the time zone are the same, only the
    /// priority and the group change. Otherwise, `next_at` becomes the engine's current time. Returns the schedule as
    /// it is stored.
    async fn put_schedule(&self, _queue: &Place, _schedule: Scheduled) -> Answer<Agenda> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Removes the schedule of a key. Returns false if the key has no schedule.
    async fn remove_schedule(&self, _queue: &Place, _key: &Key) -> Answer<bool> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Pauses or resumes the schedule of a key, and wakes waiting processes. A resumed schedule skips the times that
    /// have passed during the pause. Returns false if the key has no schedule.
    async fn pause_schedule(&self, _queue: &Place, _key: &Key, _paused: bool) -> Answer<bool> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Returns the schedule of a key, or an agenda without schedules if the key has none.
    async fn look_up_schedule(&self, _queue: &Place, _key: &Key) -> Answer<Agenda> {
        Ok(Agenda::default())
    }

    /// Returns up to `limit` schedules of each shard, sorted by key. The list begins after the key `after`.
    async fn list_schedules(
        &self,
        _queue: &Place,
        _after: Option<&Key>,
        _limit: usize,
    ) -> Answer<Vec<Agenda>> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Returns up to `limit` schedules of a shard, in the order of their due times.
    async fn next_schedules(&self, _queue: &Place, _shard: usize, _limit: usize) -> Answer<Agenda> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Changes a schedule by `firing`. Adds its key if the schedule is due. Returns false, and changes nothing, if the
    /// schedule no longer equals `was`.
    async fn fire_schedule(
        &self,
        _queue: &Place,
        _was: &Scheduled,
        _firing: Firing,
    ) -> Answer<bool> {
        Err(EngineError::refused(NO_SCHEDULES))
    }

    /// Writes the row of a process for a minute, and thereby replaces the earlier row. Writes nothing if the minute is
    /// no longer [writable](activity::is_writable).
    async fn record_activity(&self, _queue: &Place, _record: Record) -> Answer<Recorded> {
        Err(EngineError::refused(NO_ACTIVITY))
    }

    /// Returns the selected rows, in no particular order.
    async fn read_activity(&self, _queue: &Place, _which: Which) -> Answer<Parts> {
        Err(EngineError::refused(NO_ACTIVITY))
    }

    /// Replaces rows of a minute with a merged row, or only removes them if the merged row would be empty. Returns
    /// false, and changes nothing, if one of the rows was written after the read, or the minute has another merged row.
    /// Also removes all rows that are older than [`KEPT`](activity::KEPT).
    async fn merge_activity(&self, _queue: &Place, _merging: Merging) -> Answer<bool> {
        Err(EngineError::refused(NO_ACTIVITY))
    }

    /// Records an action of an operator. The store keeps the last [`KEPT`](crate::types::action::KEPT) actions of each
    /// queue.
    async fn record_action(&self, _queue: &Place, _action: ActionRecord) -> Answer<()> {
        Err(EngineError::refused(NO_ACTIONS))
    }

    /// Returns the recorded actions of the queue, the newest first.
    async fn last_actions(&self, _queue: &Place) -> Answer<Vec<ActionRecord>> {
        Ok(Vec::new())
    }

    /// Completes deliveries. The answer for a delivery is true if its lease had not expired. Waits for the locks of
    /// locked keys, or skips these keys if `tried` is [`Tried::InVain`].
    async fn send_completions(&self, queue: &Place, ends: Vec<End>, tried: Tried) -> Answers<bool>;

    /// Renews the lease of each delivery whose lease has not expired, so that it expires `lease` from now.
    async fn renew_leases(
        &self,
        queue: &Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<Vec<Renewed>>;

    /// Cancels keys in the state `only`, or in any state if it is `None`. All keys are distinct and belong to one
    /// [shard](Self::shard_of).
    ///
    /// The answer for a key is true if the key was ready, dirty, waiting, parked or damaged. If there are several keys,
    /// the engine skips locked keys. If there is a single key, the engine waits for its lock.
    async fn cancel_keys(
        &self,
        queue: &Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answers<bool>;

    /// Cancels the run of a key in flight. The next renewal of the lease reports the cancellation to the worker's
    /// process. A later delivery of the key is not affected. If another transaction has locked the key, the engine
    /// waits for the lock.
    async fn cancel_running(&self, queue: &Place, key: &Key) -> Answer<CancelledRun>;

    /// Returns a number that changes when a run of the queue may have been cancelled. A process that holds keys reads
    /// this number often, and renews its leases immediately when the number has changed. The number may change although
    /// no run was cancelled. It may also stay the same although a run was cancelled. The next regular renewal then
    /// reports the cancellation.
    async fn cancel_signal(&self, _queue: &Place) -> Answer<u64> {
        Ok(0)
    }

    /// Makes keys ready that are in the state `from`, and resets their failures. `from` is parked or waiting. The
    /// conditions for the keys, and the treatment of locked keys, are the same as in
    /// [`cancel_keys`](Self::cancel_keys). The answer for a key is true if the key was in that state.
    async fn make_ready(&self, queue: &Place, keys: Vec<Key>, from: State) -> Answers<bool>;

    /// Takes the next step of a walk over the keys in `state`, or in any state if it is `None`. The walk returns a key
    /// at least once if the key is in that state throughout the walk. It may miss a key that enters the state during
    /// the walk.
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

    /// Returns true if the engine reads all keys to return a sorted page. Long lists should then use
    /// [`scan_entries`](Self::scan_entries).
    fn scans(&self) -> bool {
        false
    }

    /// Takes the next step of a walk over keys that are not parked, as [`walk_keys`](Self::walk_keys) does, and returns
    /// their entries.
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

    /// Returns up to `limit` keys in `state`, or in any state if it is `None`, sorted by key. The page begins after the
    /// key `after`.
    async fn read_page(
        &self,
        queue: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Entry>>;

    async fn count_keys(&self, queue: &Place) -> Answer<StateCounts>;

    /// Returns true if no key is ready, waiting or in flight. The duration does not depend on the number of keys.
    async fn is_idle(&self, queue: &Place) -> Answer<bool> {
        let StateCounts { ready, waiting, in_flight, .. } = self.count_keys(queue).await?;
        Ok(ready + waiting + in_flight == 0)
    }

    /// Returns a counter that changes when a key may have become ready. It may change although no key is ready, and may
    /// stay the same although a key is ready. Therefore, callers must also poll.
    fn subscribe_wakes(&self, queue: &Place) -> watch::Receiver<u64>;

    /// Passes the last wake on to another process, because this process needs no keys. An engine that wakes all
    /// processes does nothing.
    fn pass_wake_on(&self, _queue: &Place) {}

    /// Returns the number of batches that the engine can process at the same time.
    fn max_batches(&self) -> usize;
}

/// Returns the steps that upgrade a schema from the version `found` to `wanted`. The last of `steps` leads to `wanted`.
/// Returns `None` if `steps` does not begin at `found` or an earlier version, or no step is needed.
pub(crate) fn missing_steps<T>(found: i32, wanted: i32, steps: &[T]) -> Option<&[T]> {
    let count = usize::try_from(wanted.checked_sub(found)?).ok().filter(|&count| count > 0)?;
    steps.get(steps.len().checked_sub(count)?..)
}

/// The maximum number of keys that an engine which [scans](Engine::scans) sorts for a page.
pub(crate) const SORTED_KEYS: u64 = 10_000;

/// Locks a mutex. A poisoned mutex is used like any other. No holder of a lock calls code of the user, so a panic
/// cannot leave data half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Splits a batch into one part for each shard. Omits empty parts.
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
