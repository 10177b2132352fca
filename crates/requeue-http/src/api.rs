//! The JSON of the API. Server and clients use the same types.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value with a name in the API.
pub trait Named: Copy + PartialEq + 'static {
    /// The values that a request can name, with their names.
    const NAMES: &'static [(&'static str, Self)];

    /// Returns the value with this name.
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Returns the name of the value, or an empty text if a request cannot name it.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    /// Returns all names.
    fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(name, _)| *name)
    }
}

// --- Keys --------------------------------------------------------------------------------------

/// The state of a key, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    /// The key waits because its last run failed. Queues in a store count it as waiting.
    BackingOff,
    Parked,
    /// The row in the store cannot be read.
    Damaged,
    Waiting,
    Ready,
    /// The key is not in the queue, and only its past is known.
    #[default]
    Idle,
}

/// The states that a list of keys can be restricted to.
impl Named for State {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("ready", Self::Ready),
        ("waiting", Self::Waiting),
        ("backing_off", Self::BackingOff),
        ("running", Self::Running),
        ("parked", Self::Parked),
        ("damaged", Self::Damaged),
    ];
}

/// One key. The struct has a field for each property of the JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    pub key: String,
    /// The bytes of the key in base64, or `None` for a too long key.
    pub key_base64: Option<String>,
    pub state: State,
    /// True if the key was re-added during its run.
    pub again: bool,
    /// The time for which the key has been in its state, in seconds.
    pub age: Option<f64>,
    /// The time until the key is due, in seconds, or `None` if it is not due in the future or never due.
    pub due_in: Option<f64>,
    /// The time until the lease expires if it is not renewed, in seconds. Only queues in a store have leases.
    pub lease_in: Option<f64>,
    /// The number of the current attempt, or of the next attempt.
    pub attempt: u32,
    pub failures: u32,
    pub adds: u32,
    pub priority: i32,
    pub why: String,
    /// The error of the last failed run, if it is known and no later run has succeeded.
    pub error: Option<String>,
    /// The time since the end of that run, in seconds.
    pub last_failure: Option<f64>,
    /// The additional properties.
    #[serde(serialize_with = "as_map", deserialize_with = "from_map", default)]
    pub detail: Vec<(Cow<'static, str>, String)>,
}

fn from_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(Cow<'static, str>, String)>, D::Error> {
    let fields = BTreeMap::<String, String>::deserialize(deserializer)?;
    Ok(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

fn as_map<S: Serializer>(
    fields: &[(Cow<'static, str>, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
}

/// One key, with its past.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyPage {
    #[serde(flatten)]
    pub row: Row,
    /// The last known runs, the newest first. A store keeps the last three consecutive failures.
    pub runs: Vec<PastRun>,
    /// A sentence about a part that could not be read and is missing here.
    pub missing: Option<String>,
}

/// A run that has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastRun {
    /// The end of the run, in seconds since 1970.
    pub at: f64,
    pub outcome: Outcome,
    pub attempt: u32,
    /// The duration in seconds.
    pub took: Option<f64>,
    /// The name of the worker, in queues in a store.
    pub worker: Option<String>,
    /// The exit status, if the run has failed and its worker has set it.
    pub exit_status: Option<i32>,
    pub error: Option<String>,
    /// The last part of the output, if the run has failed. In memory, only the output of the last failure is kept.
    pub output: Option<String>,
}

/// The end of a run, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    Failed,
    GivenUp,
    /// The run was neither a success nor a failure: it was cancelled, stopped for an add, or released. Only a
    /// [`Timeline`] contains such runs.
    Stopped,
}

impl Outcome {
    /// Returns the outcome in words, as in `failed for the last time`.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::GivenUp => "failed for the last time",
            Self::Stopped => "stopped",
        }
    }
}

/// The response of `/api/v1/timeline`: the past of a key.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// The time of the response, in seconds since 1970, like all times in this struct.
    pub now: f64,
    /// True if the events are complete. Otherwise, only the last runs are known, and the waits are derived from them.
    pub recorded: bool,
    /// The time of the oldest stored event, if older events were dropped.
    pub begin: Option<f64>,
    /// The part of the past that is known. If there are many events, a summary of them precedes it.
    pub note: String,
    /// The text of the event that ended last, even if `since` excludes it. Actions of operators are ignored.
    #[serde(default)]
    pub last: Option<String>,
    /// The events, the oldest first.
    pub events: Vec<PastEvent>,
}

/// An event, a wait or a run in the past of a key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PastEvent {
    /// The beginning of a wait or of a run.
    pub at: f64,
    /// The end of a wait or of a run, or `None` if it is unknown. If it is the due time of a wait, it is after `now`.
    pub until: Option<f64>,
    pub kind: EventKind,
    /// The cause of a wait, or `None` for other events.
    pub cause: Option<WaitCause>,
    /// The outcome of a completed run, or `None` for other events.
    pub outcome: Option<Outcome>,
    pub text: String,
}

/// The kind of an event in the past of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    Add,
    Wait,
    Run,
    /// Another event, such as a cancellation or an action of an operator, or a kind that this version does not know.
    #[serde(other)]
    Other,
}

/// The cause of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitCause {
    /// The due time of an add.
    Delay,
    Backoff,
    Pace,
    /// No worker has taken the key.
    Ready,
    GroupLimit,
    GroupPaused,
    QueuePaused,
    /// The rate of the queue or of the group permits no start. Only a queue in a store has rates.
    Rate,
    /// A cause that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Named for WaitCause {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("delay", Self::Delay),
        ("backoff", Self::Backoff),
        ("pace", Self::Pace),
        ("ready", Self::Ready),
        ("group_limit", Self::GroupLimit),
        ("group_paused", Self::GroupPaused),
        ("queue_paused", Self::QueuePaused),
        ("rate", Self::Rate),
        ("unknown", Self::Unknown),
    ];
}

/// The response of `/api/v1/keys`.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeyList {
    pub now: f64,
    pub keys: Vec<Row>,
    /// The cursor of the next page, or `None` at the end.
    pub next: Option<String>,
    pub looked_at: usize,
    /// True if there are more keys, or the request has not read all keys.
    pub more: bool,
}

// --- Summary -----------------------------------------------------------------------------------

/// The response of `/api/v1/summary`, and the data of each tick. The struct has a field for each property of the JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct Summary {
    pub title: String,
    pub queue: Option<String>,
    pub status: Status,
    pub started: f64,
    pub now: Sample,
    pub rates: Rates,
    /// The operator who paused the queue, the reason, and the time since then in seconds. `None` if the queue is not
    /// paused, or the pause was not recorded.
    #[serde(default)]
    pub paused_by: Option<String>,
    #[serde(default)]
    pub paused_note: Option<String>,
    #[serde(default)]
    pub paused_for: Option<f64>,
    /// The limit on the rate of starts. Only queues in a store can have such a limit.
    #[serde(default)]
    pub rate: Option<StartRate>,
    /// True if the rate permits no start now.
    #[serde(default)]
    pub at_rate: bool,
    pub given_up: u64,
    pub panics: u64,
    /// True if the queue keeps times. Otherwise, the next two fields are `None`.
    pub times: bool,
    /// The time for which the oldest ready key has been ready. Keys that their group holds back are left out.
    pub oldest_ready: Option<f64>,
    /// The longest time for which a key should be ready before a run: `Builder::target`.
    #[serde(default)]
    pub target: Option<f64>,
    pub longest_running: Option<f64>,
    /// The keys that have run the longest.
    pub longest: Vec<Row>,
    /// The workers, or `None` if the site does not know them.
    pub jobs: Option<Busy>,
    /// The work of all processes in the last hour, and the workers that are alive. `None` for a queue in memory, or if the
    /// store has not answered.
    #[serde(default)]
    pub hour: Option<Tally>,
    #[serde(default)]
    pub workers: Option<Vec<Worker>>,
}

/// An action of an operator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PastAction {
    /// The time since the action, in seconds.
    pub ago: f64,
    /// The last part of the path of the action.
    pub action: String,
    /// The operator, or the address of the client.
    pub by: String,
    /// The key, the group or the number of keys, or `None` for the queue.
    pub target: Option<String>,
    pub note: Option<String>,
}

/// The response of `/api/v1/actions`.
#[derive(Debug, Serialize, Deserialize)]
pub struct PastActions {
    /// The actions, the newest first.
    pub actions: Vec<PastAction>,
}

/// The workers of a program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Busy {
    pub busy: usize,
    pub total: usize,
}

/// The status of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Open,
    Paused,
    /// The queue refuses new keys, but known keys still run.
    Closed,
    ShutDown,
    /// The store cannot be reached.
    Unreachable,
    /// The site was shut down.
    Ended,
}

/// The counts at a point in time. Counters start at the creation of the queue. Each field can be a curve of the
/// dashboard.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The time, in seconds since 1970.
    pub t: f64,
    /// The number of all keys.
    pub keys: usize,
    pub ready: usize,
    pub waiting: usize,
    pub backing_off: Option<usize>,
    pub running: usize,
    /// The number of running keys that will run once more.
    pub dirty: usize,
    pub parked: Option<usize>,
    pub damaged: Option<usize>,
    /// The age of these numbers of keys, in seconds: 0 for a queue in memory, and `None` before the first count of a
    /// store.
    pub counts_age: Option<f64>,
    pub adds: u64,
    pub coalesced: u64,
    pub runs: u64,
    pub failures: u64,
    /// The number of deliveries, and the sum of the times for which their keys had been ready.
    pub queued: u64,
    pub queued_seconds: f64,
    /// The number of completed runs, and the sum of their durations.
    pub worked: u64,
    pub worked_seconds: f64,
    #[serde(flatten)]
    pub last_minute: LastMinute,
}

/// The durations in the last minute or in another period, in seconds, or `None` without runs.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LastMinute {
    pub queued_mean: Option<f64>,
    pub queued_p50: Option<f64>,
    pub queued_p95: Option<f64>,
    pub queued_p99: Option<f64>,
    pub worked_mean: Option<f64>,
    pub worked_p50: Option<f64>,
    pub worked_p95: Option<f64>,
    pub worked_p99: Option<f64>,
}

/// The response of `/api/v1/activity`: the work of all processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Activity {
    /// The period that the numbers cover, in seconds.
    pub period: f64,
    pub total: Tally,
    /// The period of each entry of `minutes`, in seconds.
    #[serde(default = "one_minute")]
    pub step: f64,
    /// The entries, the oldest first. Periods without work are omitted.
    pub minutes: Vec<Minute>,
    /// The workers that are alive, by name.
    pub workers: Vec<Worker>,
}

const fn one_minute() -> f64 {
    60.0
}

/// The work in a period.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    pub adds: u64,
    pub coalesced: u64,
    /// The number of deliveries.
    pub runs: u64,
    pub successes: u64,
    pub failures: u64,
    pub given_up: u64,
    #[serde(flatten)]
    pub durations: LastMinute,
}

/// The work in one or several minutes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Minute {
    /// The time since the beginning of the period, in seconds.
    pub ago: f64,
    #[serde(flatten)]
    pub tally: Tally,
}

/// A worker that is alive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Worker {
    pub name: String,
    /// The time since the worker's last sign of life, in seconds.
    pub seen: f64,
    pub running: Vec<Row>,
}

/// Events per second.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    pub adds: f64,
    pub coalesced: f64,
    pub runs: f64,
    pub failures: f64,
}

// --- Failures ------------------------------------------------------------------------------------

/// The response of `/api/v1/failures`.
#[derive(Debug, Serialize, Deserialize)]
pub struct FailureList {
    /// The groups, those with the most keys first.
    pub failures: Vec<FailureGroup>,
    /// The number of failing keys that were read.
    pub keys: usize,
    /// The number of these keys that wait for their backoff.
    pub waiting: usize,
    /// The number of keys that were read.
    pub looked_at: usize,
    /// True if there are more groups.
    pub more: bool,
    /// True if not all failing keys were read, so that the numbers are too low.
    pub cut: bool,
}

/// Failing keys with the same error, apart from numbers and quoted parts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FailureGroup {
    /// The name of the group, for the parameter `error`.
    pub error: String,
    pub keys: usize,
    /// The number of parked keys, which can be revived.
    pub parked: usize,
    /// The sum of the consecutive failures of the keys.
    pub failures: u64,
    /// One of the keys.
    pub key: String,
    pub key_base64: Option<String>,
    pub sample: Option<String>,
    /// The times since the first and the last failure, in seconds. `first` is `None` if the time is not known for all
    /// keys. `last` is `None` if it is known for no key.
    pub first: Option<f64>,
    pub last: Option<f64>,
    /// The time since the oldest failure that is known. If `first` is `None`, the first failure may be older.
    #[serde(default)]
    pub oldest: Option<f64>,
}

// --- Changes -----------------------------------------------------------------------------------

/// A change of existing keys, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Removes the pending run. A run in flight continues.
    Cancel,
    /// Cancels the run in flight. A pending run remains.
    CancelRun,
    /// Makes a waiting key ready.
    RunNow,
    /// Makes a parked key ready.
    Revive,
}

impl Named for Action {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("cancel", Self::Cancel),
        ("cancel-run", Self::CancelRun),
        ("run-now", Self::RunNow),
        ("revive", Self::Revive),
    ];
}

impl Action {
    /// Returns true if the action has an effect on a key in this state. `runs_again` is true for a key in flight with a
    /// pending run.
    pub(crate) const fn applies(self, state: State, runs_again: bool) -> bool {
        match self {
            Self::Cancel => match state {
                State::Running => runs_again,
                State::Idle => false,
                _ => true,
            },
            Self::CancelRun => matches!(state, State::Running),
            Self::RunNow => matches!(state, State::Waiting | State::BackingOff),
            Self::Revive => matches!(state, State::Parked),
        }
    }
}

/// Returns true if the path is that of an action: an [`Action`], a [`GroupAction`], a [`ScheduleAction`], a
/// [`WorkAction`], or another action.
pub(crate) fn is_action(path: &str) -> bool {
    let Some(name) = path.strip_prefix("/api/v1/") else { return false };
    ["add", "authenticate", "pause", "rate", "resume"].contains(&name)
        || Action::named(name).is_some()
        || GroupAction::named(name).is_some()
        || ScheduleAction::named(name).is_some()
        || WorkAction::named(name).is_some()
}

/// The body of an action on keys.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The keys by name. Alternatively, `matching` selects the keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<NamedKey>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// The number of matching keys that the user has confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<usize>,
}

/// A key, as text or in base64.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedKey {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
}

/// The keys in a state whose text contains a given text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matching {
    /// The state, or an empty text for all states.
    pub state: Option<String>,
    pub q: Option<String>,
    #[serde(default)]
    pub failed: bool,
    /// A group of `/api/v1/failures`, or an empty text for all keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The body of `/api/v1/add`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adds {
    pub keys: Vec<AddedKey>,
}

/// A key to add.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedKey {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The delay, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
    #[serde(default)]
    pub priority: i32,
    /// Revives a parked key even if the queue keeps it parked.
    #[serde(default)]
    pub revive: bool,
    /// The group of the key, in a queue of a store whose adds name the groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The response to an action on keys.
#[derive(Debug, Serialize, Deserialize)]
pub struct Changed {
    /// The number of keys that were changed.
    pub changed: usize,
    /// The number of matching keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<usize>,
    /// For each named key, true if it was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<Vec<bool>>,
}

/// The response of `/api/v1/add`.
#[derive(Debug, Serialize, Deserialize)]
pub struct AddResults {
    pub results: Vec<AddResult>,
}

/// The result of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddResult {
    New,
    Coalesced,
    Dirty,
    BackingOff,
    Revived,
    Parked,
    Refused,
    /// The answer of the store was lost.
    Unknown,
}

/// The response of `/api/v1/count`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Matched {
    pub matched: usize,
}

/// The response of `/api/v1/pause` and `/api/v1/resume`.
#[derive(Debug, Serialize, Deserialize)]
pub struct NewStatus {
    pub status: Status,
}

/// The body and the response of `/api/v1/rate`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRate {
    /// The rate. `None` removes it. The field is required in a request.
    #[serde(deserialize_with = "Option::deserialize")]
    pub rate: Option<StartRate>,
}

/// A limit on the rate of starts: at most `starts` in each period `per`, and a burst.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRate {
    pub starts: u32,
    /// The period, in seconds.
    pub per: f64,
    /// The number of starts that may follow each other immediately. In a request, `None` selects the number of starts
    /// in 200 ms.
    pub burst: Option<u32>,
}

// --- Queues ------------------------------------------------------------------------------------

/// A queue of a store, in the list of all queues. Numbers are `None` until they are read, and if the last read failed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct QueueRow {
    pub name: String,
    /// The path of the queue's dashboard, relative to the page of all queues.
    pub path: String,
    pub paused: bool,
    pub ready: Option<u64>,
    pub waiting: Option<u64>,
    pub running: Option<u64>,
    pub parked: Option<u64>,
    pub damaged: Option<u64>,
    /// The time for which the oldest ready key has been ready, in seconds, or `None` if no key is ready.
    pub oldest: Option<f64>,
    /// The age of the numbers of keys, in seconds.
    pub counts_age: Option<f64>,
    /// Runs per second in the last 5 minutes.
    pub runs: Option<f64>,
    /// Failures per second in the last 5 minutes.
    pub failures: Option<f64>,
    /// The number of failures in the last hour.
    pub failed: Option<u64>,
    /// The number of keys that were given up in the last hour.
    pub given_up: Option<u64>,
    /// The number of workers that are alive.
    pub workers: Option<usize>,
    /// The reason why the last read of the numbers failed.
    pub error: Option<String>,
}

/// The response of `/api/v1/queues`.
#[derive(Debug, Serialize, Deserialize)]
pub struct QueueList {
    pub now: f64,
    pub queues: Vec<QueueRow>,
    /// The number of queues in the store.
    pub looked_at: usize,
    /// True if more queues match.
    pub more: bool,
    /// The age of the list, in seconds.
    pub age: f64,
    /// The reason why the last read of the list failed.
    pub error: Option<String>,
}

// --- Groups ------------------------------------------------------------------------------------

/// A group of a queue in a store, with its settings.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// The name, which is empty for keys without a group.
    pub name: String,
    pub ready: u64,
    pub waiting: u64,
    pub running: u64,
    /// The number of running keys that will run once more.
    pub dirty: u64,
    pub parked: u64,
    /// The time for which the oldest ready key has been ready, in seconds, or `None` if no key is ready.
    pub oldest: Option<f64>,
    /// The maximum number of running keys, or `None` if there is no limit.
    pub limit: Option<u32>,
    pub rate: Option<StartRate>,
    pub weight: u32,
    pub paused: bool,
    /// The cause for which the ready keys wait, if the group holds them back.
    #[serde(skip)]
    pub hold: Option<WaitCause>,
}

/// The response of `/api/v1/groups`.
#[derive(Debug, Serialize, Deserialize)]
pub struct GroupList {
    pub groups: Vec<Group>,
    /// The numbers of ready keys that are held back, in all groups that were read, by cause.
    #[serde(default)]
    pub held: Held,
    /// The number of groups that were read.
    pub looked_at: usize,
    /// True if there are more groups, or the request has not read all groups.
    pub more: bool,
}

/// The ready keys that their groups hold back.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    pub paused: Wait,
    pub limit: Wait,
    pub rate: Wait,
}

/// Ready keys that wait for the same cause.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Wait {
    pub keys: u64,
    /// The time for which the oldest of these keys has been ready, in seconds, or `None` without keys.
    pub oldest: Option<f64>,
    /// The number of groups of these keys, and the group of the oldest key.
    #[serde(default)]
    pub groups: u64,
    #[serde(default)]
    pub group: Option<String>,
}

/// A change of a group, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupAction {
    Pause,
    Resume,
    /// Sets the limit of the group, or of all groups without a separate limit.
    Limit,
    Rate,
    Weight,
    /// Removes the pending runs of the group's keys. Runs in flight continue.
    Cancel,
}

impl Named for GroupAction {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("group-pause", Self::Pause),
        ("group-resume", Self::Resume),
        ("group-limit", Self::Limit),
        ("group-rate", Self::Rate),
        ("group-weight", Self::Weight),
        ("group-cancel", Self::Cancel),
    ];
}

/// The body of an action on a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupChange {
    /// The name of the group, or `None` for the limit of all groups without a separate limit.
    pub group: Option<String>,
    /// The limit, which `group-limit` requires. `Some(None)`, in JSON `null`, removes the limit.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub limit: Option<Option<u32>>,
    /// The weight, which `group-weight` requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The rate, which `group-rate` requires. `Some(None)`, in JSON `null`, removes the rate.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Option<StartRate>>,
    /// The state of the keys that `group-cancel` cancels, or `None` for all states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
}

/// Reads a field that is present, even if it is `null`.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    field: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(field).map(Some)
}

/// The response to an action on a group.
#[derive(Debug, Serialize, Deserialize)]
pub struct GroupChanged {
    /// The number of cancelled keys; 0 for other actions.
    pub cancelled: u64,
}

// --- Schedules ---------------------------------------------------------------------------------

/// A key of a queue in a store, with its schedule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    pub key: String,
    pub key_base64: Option<String>,
    /// The cron expression, or `every` and a period.
    pub spec: String,
    /// The time zone of the expression.
    pub zone: Option<String>,
    /// The time until the next add, in seconds. It is 0 if the add is overdue, and `None` if the time is unknown or no
    /// add follows.
    pub due_in: Option<f64>,
    /// The time of the next add by the clock of the store, in seconds since 1970.
    pub next_at: Option<f64>,
    /// True if the schedule is paused, or was refused.
    pub paused: bool,
    /// The reason why a worker has refused the schedule.
    pub error: Option<String>,
    pub priority: i32,
    pub group: Option<String>,
}

/// The response of `/api/v1/schedules`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScheduleList {
    pub schedules: Vec<Schedule>,
    /// The number of schedules that were read.
    pub looked_at: usize,
    /// True if there are more schedules, or the request has not read all schedules.
    pub more: bool,
}

/// A change of a schedule, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleAction {
    /// Stores the schedule, or replaces the existing schedule of the key.
    Add,
    Remove,
    Pause,
    Resume,
}

impl Named for ScheduleAction {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("schedule-add", Self::Add),
        ("schedule-remove", Self::Remove),
        ("schedule-pause", Self::Pause),
        ("schedule-resume", Self::Resume),
    ];
}

/// The body of an action on a schedule. Only `schedule-add` uses the fields other than the key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// The time zone. The default is UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The group of the key, if adds name the groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The response to an action on a schedule.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScheduleChanged {
    /// False if the key has no schedule.
    pub changed: bool,
}

// --- Work ----------------------------------------------------------------------------------------

/// A request of a worker, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkAction {
    /// Takes ready keys, each with a lease.
    Claim,
    /// Extends leases.
    Renew,
    Complete,
    Fail,
    /// Makes the keys ready again, without a failure.
    Release,
}

impl Named for WorkAction {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("claim", Self::Claim),
        ("renew", Self::Renew),
        ("complete", Self::Complete),
        ("fail", Self::Fail),
        ("release", Self::Release),
    ];
}

/// The body of `/api/v1/claim`. Times are in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewClaim {
    /// The name of the worker, which the site shows.
    pub worker: String,
    /// The maximum number of keys, 1 by default.
    #[serde(default = "one")]
    pub max: usize,
    /// The time to wait for a ready key.
    #[serde(default = "default_wait")]
    pub wait: f64,
    /// The duration of the leases.
    #[serde(default = "default_lease")]
    pub lease: f64,
    /// True to learn from an empty response whether the queue is empty.
    #[serde(default, skip_serializing_if = "is_false")]
    pub until_empty: bool,
}

const fn one() -> usize {
    1
}

const fn default_wait() -> f64 {
    30.0
}

const fn default_lease() -> f64 {
    30.0
}

/// The response of `/api/v1/claim`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ClaimList {
    /// The claimed keys. The list is empty if no key was ready in time.
    pub claims: Vec<ClaimedKey>,
    /// True if no key is ready, waiting or in flight. Only the response to `until_empty` says so.
    #[serde(default, skip_serializing_if = "is_false")]
    pub empty: bool,
}

/// A claimed key. Only one of `key` and `key_base64` is `Some`: `key` if the key is UTF-8.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClaimedKey {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The fencing token.
    pub token: String,
    pub attempt: u32,
    /// The number of adds that the run serves, and the bitwise or of their flags.
    pub adds: u32,
    pub flags: u32,
    pub priority: i32,
    pub group: Option<String>,
}

/// The body of `/api/v1/renew`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renewals {
    pub claims: Vec<NamedClaim>,
    /// The duration of the leases from now, in seconds.
    #[serde(default = "default_lease")]
    pub lease: f64,
}

/// The body of `/api/v1/complete`, `fail` and `release`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endings {
    pub claims: Vec<NamedClaim>,
}

/// A claim, and for `fail` the failure.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedClaim {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The fencing token.
    pub token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// The end of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The delay of the next attempt in seconds, instead of the backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
    /// True to park the key.
    #[serde(default, skip_serializing_if = "is_false")]
    pub give_up: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// The response of `/api/v1/renew`, `complete`, `fail` and `release`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ClaimResults {
    /// The first error and the number of further errors, if the status is not 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The results, in the order of the claims.
    pub results: Vec<ClaimResult>,
}

/// The result of a request for one claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClaimResult {
    pub result: ClaimOutcome,
    /// The cause and the next step, if the request has not changed the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The outcome of a request for one claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimOutcome {
    Renewed,
    Completed,
    Failed,
    /// The key was given up, or has failed too often.
    Parked,
    Released,
    /// An operator has cancelled the run. In response to `renew`, the worker should stop the run.
    Cancelled,
    /// The claim is over, or never existed.
    Lost,
    /// Another transaction or request holds the key now.
    Locked,
    /// The store has not answered.
    Unknown,
}

// --- Errors ------------------------------------------------------------------------------------

/// The body of an error response.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Failure {
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The number of keys that match, if another number was confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<usize>,
    /// The results of the keys of a failed add. The result is `None` for a key that was not added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<Option<AddResult>>,
}

/// The error for a path of a queue, if the site has several queues.
pub const SEVERAL_QUEUES: &str =
    "no such path; / lists the queues, and the paths of a queue are below /queues/NAME/";

/// The error for a key that is not in the queue.
pub const NOT_IN_QUEUE: &str = "not in the queue";
