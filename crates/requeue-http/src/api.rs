//! The types of the JSON of the API. The server writes them, and the program reads them as a
//! client.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that requests and responses represent by a name.
pub trait Named: Copy + PartialEq + 'static {
    /// The values that a request can name, with their names.
    const NAMES: &'static [(&'static str, Self)];

    /// Returns the value with this name, or `None` if there is none.
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Returns the name of the value, or an empty text if a request cannot name it.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    /// Returns the names of all values that a request can name.
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
    /// The key waits because its last run failed. Only queues in memory have this state. A queue in
    /// a store counts such a key as waiting.
    BackingOff,
    Parked,
    /// The store cannot decode the row of the key.
    Damaged,
    Waiting,
    Ready,
    /// The queue does not have the key. Only its past is known.
    #[default]
    Idle,
}

/// Requests can restrict a list of keys to each of these states.
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

/// A key of a list, with the properties that the API shows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    pub key: String,
    /// The bytes of the key in base64, or `None` if the key is too long.
    pub key_base64: Option<String>,
    pub state: State,
    /// True if the key was added again during its run.
    pub again: bool,
    /// The time for which the key has been in its state, in seconds.
    pub age: Option<f64>,
    /// The time until the key is due, in seconds, or `None` if it has no due time in the future.
    pub due_in: Option<f64>,
    /// The time until the lease of the key expires without a renewal, in seconds. Only claimed keys
    /// of a queue in a store have a lease.
    pub lease_in: Option<f64>,
    /// The number of the current attempt if the key is running, or else of the next attempt.
    pub attempt: u32,
    pub failures: u32,
    pub adds: u32,
    pub priority: i32,
    pub why: String,
    /// The error of the last failed run. It is `None` if the error is unknown, or if a later run
    /// has succeeded.
    pub error: Option<String>,
    /// The time since the end of the last failed run, in seconds.
    pub last_failure: Option<f64>,
    /// The additional properties that the program returns for the key.
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

/// A key with its last runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyPage {
    #[serde(flatten)]
    pub row: Row,
    /// The last known runs, the newest first. For a key in a store, these are at most three
    /// consecutive failures.
    pub runs: Vec<PastRun>,
    /// A sentence that names a missing part of the page and the reason why it is missing.
    pub missing: Option<String>,
}

/// A run that has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastRun {
    /// The end of the run, in seconds since 1970.
    pub at: f64,
    pub outcome: Outcome,
    pub attempt: u32,
    /// The duration of the run, in seconds.
    pub took: Option<f64>,
    /// The name of the worker, if the queue is in a store.
    pub worker: Option<String>,
    /// The exit status, if the run failed and its worker has reported one.
    pub exit_status: Option<i32>,
    pub error: Option<String>,
    /// The last part of the run's output, if the run failed. A queue in memory keeps only the
    /// output of the last failure.
    pub output: Option<String>,
}

/// The result of a run, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    Failed,
    GivenUp,
    /// The run neither succeeded nor failed: it was cancelled, restarted or released. Only a
    /// [`Timeline`] contains runs with this outcome.
    Stopped,
}

impl Outcome {
    /// Returns the outcome in words that can follow a subject, such as `failed for the last time`.
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
    /// The time of the response, in seconds since 1970. All times of this struct have this unit.
    pub now: f64,
    /// True if the events were recorded, so that they are complete. Otherwise, only the last runs
    /// are known, and the waits are computed from them.
    pub recorded: bool,
    /// The time of the oldest recorded event, if older events were dropped. Otherwise, `None`.
    pub begin: Option<f64>,
    /// A text that says which part of the past is known. If there are many events, a summary of
    /// them precedes this text.
    pub note: String,
    /// The text of the event that ended last, even if the request's `since` excludes this event.
    /// Actions of operators are ignored.
    #[serde(default)]
    pub last: Option<String>,
    /// The events, the oldest first.
    pub events: Vec<PastEvent>,
}

/// An event in the past of a key. A wait or a run has a beginning and an end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PastEvent {
    /// The time of the event, or the beginning of the wait or the run.
    pub at: f64,
    /// The end of the wait or the run, or `None` if the end is unknown. If a waiting key is due in
    /// the future, the end is its due time, which is after `now`.
    pub until: Option<f64>,
    pub kind: EventKind,
    /// The cause of the wait, or `None` if the event is not a wait.
    pub cause: Option<WaitCause>,
    /// The outcome of the run, or `None` if the event is not a completed run.
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
    /// An event of another kind, such as a cancellation or an action of an operator. Also
    /// represents a kind that this version of the client does not know.
    #[serde(other)]
    Other,
}

/// The reason why a key waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitCause {
    /// The key waits for the due time of an add.
    Delay,
    Backoff,
    Pace,
    /// The key is ready, and waits for a worker.
    Ready,
    GroupLimit,
    GroupPaused,
    QueuePaused,
    /// The key waits because the rate of the queue or of its group permits no start. Only a queue
    /// in a store has rates.
    Rate,
    /// A cause that this version of the client does not know.
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
    /// The cursor of the next page, or `None` after the last page.
    pub next: Option<String>,
    pub looked_at: usize,
    /// True if more keys match than the response contains, or if some keys were not read.
    pub more: bool,
}

// --- Summary -----------------------------------------------------------------------------------

/// The response of `/api/v1/summary`, and the data of each event `tick`. The field names are those
/// of the JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct Summary {
    pub title: String,
    pub queue: Option<String>,
    pub status: Status,
    pub started: f64,
    pub now: Sample,
    pub rates: Rates,
    /// The operator who paused the queue, the operator's note, and the time since the pause in
    /// seconds. These fields are `None` if the queue is not paused, or if the pause was not
    /// recorded.
    #[serde(default)]
    pub paused_by: Option<String>,
    #[serde(default)]
    pub paused_note: Option<String>,
    #[serde(default)]
    pub paused_for: Option<f64>,
    /// The limit on the rate of starts, or `None`. Only a queue in a store can have one.
    #[serde(default)]
    pub rate: Option<StartRate>,
    /// True if the rate currently permits no start.
    #[serde(default)]
    pub at_rate: bool,
    pub given_up: u64,
    pub panics: u64,
    /// True if the queue keeps times. Otherwise, `oldest_ready` and `longest_running` are `None`.
    pub times: bool,
    /// The time for which the oldest ready key has been ready, in seconds. Keys of groups that are
    /// paused or at their limit are ignored.
    pub oldest_ready: Option<f64>,
    /// The longest time for which a key should wait for a worker, in seconds: see
    /// `Builder::target`.
    #[serde(default)]
    pub target: Option<f64>,
    pub longest_running: Option<f64>,
    /// The keys that have run the longest, the longest running key first.
    pub longest: Vec<Row>,
    /// The number of busy workers of the program, or `None` if the program does not provide it.
    pub jobs: Option<Busy>,
    /// The work of all processes in the last hour, and the workers that are alive. These fields are
    /// `None` if the queue is in memory, or if the store has not answered.
    #[serde(default)]
    pub hour: Option<Tally>,
    #[serde(default)]
    pub workers: Option<Vec<Worker>>,
}

/// A recorded action of an operator on a queue.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PastAction {
    /// The time since the action, in seconds.
    pub ago: f64,
    /// The name of the action, which is the last part of the path of the request.
    pub action: String,
    /// The name of the operator. If the request did not contain one, the IP address of the client.
    pub by: String,
    /// The changed object as text: a key, a number of keys, a group, or a new rate. It is `None` if
    /// the action applies to the whole queue.
    pub target: Option<String>,
    pub note: Option<String>,
}

/// The response of `/api/v1/actions`.
#[derive(Debug, Serialize, Deserialize)]
pub struct PastActions {
    /// The past actions, the newest first.
    pub actions: Vec<PastAction>,
}

/// The number of workers of a program, and the number of busy ones.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Busy {
    pub busy: usize,
    pub total: usize,
}

/// The status of a queue or of its site.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Open,
    Paused,
    /// The queue refuses new keys. Its known keys still run.
    Closed,
    ShutDown,
    /// The last request to the store failed, or was not answered in time.
    Unreachable,
    /// The site was shut down.
    Ended,
}

/// The numbers of a queue at one point in time. The counters begin at 0 when the queue is created.
/// The dashboard can plot each field.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The time of the sample, in seconds since 1970.
    pub t: f64,
    /// The number of keys in all states.
    pub keys: usize,
    pub ready: usize,
    pub waiting: usize,
    pub backing_off: Option<usize>,
    pub running: usize,
    /// The number of running keys that were added again, and will therefore run once more.
    pub dirty: usize,
    pub parked: Option<usize>,
    pub damaged: Option<usize>,
    /// The age of the numbers of keys, in seconds. It is 0 if the queue is in memory, and `None`
    /// until the store has counted the keys for the first time.
    pub counts_age: Option<f64>,
    pub adds: u64,
    pub coalesced: u64,
    pub runs: u64,
    pub failures: u64,
    /// The number of deliveries, and the sum of the times, in seconds, for which the delivered keys
    /// had been ready.
    pub queued: u64,
    pub queued_seconds: f64,
    /// The number of completed runs, and the sum of their durations in seconds.
    pub worked: u64,
    pub worked_seconds: f64,
    #[serde(flatten)]
    pub last_minute: LastMinute,
}

/// The times for which keys were ready (`queued`) and the durations of runs (`worked`), in seconds.
/// The period is the last minute, or another period that the containing type names. The fields are
/// `None` if there were no runs.
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

/// The response of `/api/v1/activity`: the numbers of adds, starts and results of all processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Activity {
    /// The length of the period before the response that the numbers cover, in seconds.
    pub period: f64,
    pub total: Tally,
    /// The length of the period of each entry of `minutes`, in seconds.
    #[serde(default = "one_minute")]
    pub step: f64,
    /// The numbers of each part of the period, the oldest part first. Parts without work are
    /// omitted.
    pub minutes: Vec<Minute>,
    /// The workers that are alive, sorted by name.
    pub workers: Vec<Worker>,
}

const fn one_minute() -> f64 {
    60.0
}

/// The numbers of adds, starts and results in a period.
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

/// The numbers of adds, starts and results in one part of a period.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Minute {
    /// The time since the beginning of this part, in seconds.
    pub ago: f64,
    #[serde(flatten)]
    pub tally: Tally,
}

/// A worker that is alive, and the keys that it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Worker {
    pub name: String,
    /// The time since the worker last reported to the store, in seconds.
    pub seen: f64,
    pub running: Vec<Row>,
}

/// The numbers of events per second.
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
    /// The groups of failing keys, the group with the most keys first.
    pub failures: Vec<FailureGroup>,
    /// The number of failing keys that were read.
    pub keys: usize,
    /// The number of the read failing keys that wait for their backoff.
    pub waiting: usize,
    /// The number of keys that were read, including those that do not fail.
    pub looked_at: usize,
    /// True if there are more groups than the response contains.
    pub more: bool,
    /// True if some failing keys were not read. The numbers of keys are then too low.
    pub cut: bool,
}

/// The failing keys whose errors are equal, apart from numbers and quoted parts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FailureGroup {
    /// The name of the group. It is the value of the parameter `error` for the keys of the group.
    pub error: String,
    pub keys: usize,
    /// The number of parked keys in the group. They can be revived.
    pub parked: usize,
    /// The total number of consecutive failures of the keys.
    pub failures: u64,
    /// One key of the group, as an example.
    pub key: String,
    pub key_base64: Option<String>,
    pub sample: Option<String>,
    /// The times since the first and the last failure of the group's keys, in seconds. `first` is
    /// `None` if the first failure of any key is unknown. `last` is `None` if the last failure of
    /// all keys is unknown.
    pub first: Option<f64>,
    pub last: Option<f64>,
    /// The time since the oldest known failure of the group's keys, in seconds. If `first` is
    /// `None`, there may have been an earlier failure.
    #[serde(default)]
    pub oldest: Option<f64>,
}

// --- Changes -----------------------------------------------------------------------------------

/// A change of existing keys, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Removes the pending run of a key. A run in flight continues.
    Cancel,
    /// Cancels the run in flight of a key. Its pending run remains.
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
    /// Returns true if the action would change a key in this state. `runs_again` is true if the key
    /// is in flight and also has a pending run.
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

/// Returns true if the path belongs to an action: an [`Action`], a [`GroupAction`], a
/// [`ScheduleAction`], a [`WorkAction`], or one of the actions without an enum.
pub(crate) fn is_action(path: &str) -> bool {
    let Some(name) = path.strip_prefix("/api/v1/") else { return false };
    ["add", "authenticate", "pause", "rate", "resume"].contains(&name)
        || Action::named(name).is_some()
        || GroupAction::named(name).is_some()
        || ScheduleAction::named(name).is_some()
        || WorkAction::named(name).is_some()
}

/// The body of an action on keys. It contains either `keys` or `matching`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The names of the keys to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<NamedKey>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// The number of keys that the user expects to change. The field is required with `matching`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<usize>,
}

/// A key in a request: either `key` as text, or `key_base64`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedKey {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
}

/// The conditions on the keys that an action changes. A key must meet all of them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matching {
    /// The name of the state, or an empty text for all states.
    pub state: Option<String>,
    pub q: Option<String>,
    #[serde(default)]
    pub failed: bool,
    /// The name of a group of `/api/v1/failures`, or an empty text for all keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The body of `/api/v1/add`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adds {
    pub keys: Vec<AddedKey>,
}

/// A key that the request adds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedKey {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The delay before the key is due, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
    #[serde(default)]
    pub priority: i32,
    /// True if the add also revives a parked key that the queue would otherwise leave parked.
    #[serde(default)]
    pub revive: bool,
    /// The group of the key. Only a queue in a store whose adds name the groups accepts this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The response to an action on keys.
#[derive(Debug, Serialize, Deserialize)]
pub struct Changed {
    /// The number of keys that the action changed.
    pub changed: usize,
    /// The number of keys that met the conditions of `matching`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<usize>,
    /// The result for each named key: true if the action changed the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<Vec<bool>>,
}

/// The response of `/api/v1/add`.
#[derive(Debug, Serialize, Deserialize)]
pub struct AddResults {
    pub results: Vec<AddResult>,
}

/// The result of the add of one key.
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
    /// The result is unknown, because the connection to the store failed before the answer arrived.
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
    /// The new rate. `None`, in JSON `null`, removes the rate. A request must contain the field.
    #[serde(deserialize_with = "Option::deserialize")]
    pub rate: Option<StartRate>,
}

/// A limit on the rate of starts: at most `starts` starts in each period of `per` seconds, after a
/// burst.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRate {
    pub starts: u32,
    /// The length of the period, in seconds.
    pub per: f64,
    /// The number of starts that may follow each other without a delay. In a request, the default
    /// is the number of starts in 200 ms.
    pub burst: Option<u32>,
}

// --- Queues ------------------------------------------------------------------------------------

/// A queue in the table of all queues of a store. Its numbers are `None` until they are read for
/// the first time, and after a failed read.
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
    /// The time for which the oldest ready key has been ready, in seconds, or `None` if no key is
    /// ready.
    pub oldest: Option<f64>,
    /// The age of the numbers of keys, in seconds.
    pub counts_age: Option<f64>,
    /// The number of runs per second, averaged over the last 5 minutes.
    pub runs: Option<f64>,
    /// The number of failures per second, averaged over the last 5 minutes.
    pub failures: Option<f64>,
    /// The number of failures in the last hour.
    pub failed: Option<u64>,
    /// The number of keys that were given up in the last hour.
    pub given_up: Option<u64>,
    /// The number of workers that are alive.
    pub workers: Option<usize>,
    /// The reason why the last read of the numbers failed, or `None` if it succeeded.
    pub error: Option<String>,
}

/// The response of `/api/v1/queues`.
#[derive(Debug, Serialize, Deserialize)]
pub struct QueueList {
    pub now: f64,
    pub queues: Vec<QueueRow>,
    /// The number of queues in the store.
    pub looked_at: usize,
    /// True if more queues match than the response contains.
    pub more: bool,
    /// The time since the list of queues was read from the store, in seconds.
    pub age: f64,
    /// The reason why the last read of the list failed, or `None` if it succeeded.
    pub error: Option<String>,
}

// --- Groups ------------------------------------------------------------------------------------

/// A group of a queue in a store, with its settings.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// The name of the group. It is empty for the keys that have no group.
    pub name: String,
    pub ready: u64,
    pub waiting: u64,
    pub running: u64,
    /// The number of running keys that were added again, and will therefore run once more.
    pub dirty: u64,
    pub parked: u64,
    /// The time for which the oldest ready key has been ready, in seconds, or `None` if no key is
    /// ready.
    pub oldest: Option<f64>,
    /// The maximum number of running keys of the group, or `None` if there is no limit.
    pub limit: Option<u32>,
    pub rate: Option<StartRate>,
    pub weight: u32,
    pub paused: bool,
    /// The reason why the group's ready keys cannot be delivered, or `None` if they can.
    #[serde(skip)]
    pub hold: Option<WaitCause>,
}

/// The response of `/api/v1/groups`.
#[derive(Debug, Serialize, Deserialize)]
pub struct GroupList {
    pub groups: Vec<Group>,
    /// The numbers of ready keys that must wait for their groups, by cause. All groups that were
    /// read are included.
    #[serde(default)]
    pub held: Held,
    /// The number of groups that were read.
    pub looked_at: usize,
    /// True if more groups match than the response contains, or if some groups were not read.
    pub more: bool,
}

/// The ready keys that must wait for their groups, by the cause of the wait.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    pub paused: Wait,
    pub limit: Wait,
    pub rate: Wait,
}

/// The ready keys that must wait for their groups for one cause.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Wait {
    pub keys: u64,
    /// The time for which the oldest of these keys has been ready, in seconds, or `None` if there
    /// are no keys.
    pub oldest: Option<f64>,
    /// The number of groups that these keys belong to, and the name of the group of the oldest key.
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
    /// Sets the limit of a group. Without a group, sets the limit of all groups that have no separate
    /// limit.
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
    /// The name of the group. Only `group-limit` permits `None`, which stands for all groups
    /// without a separate limit.
    pub group: Option<String>,
    /// The new limit, which only `group-limit` requires. `Some(None)`, in JSON `null`, removes the
    /// limit.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub limit: Option<Option<u32>>,
    /// The new weight, which only `group-weight` requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The new rate, which only `group-rate` requires. `Some(None)`, in JSON `null`, removes the
    /// rate.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Option<StartRate>>,
    /// The state of the keys that `group-cancel` cancels. `None` stands for all states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
}

/// Deserializes a field that the request contains, so that `null` becomes `Some(None)`. A missing
/// field becomes `None` by default.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    field: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(field).map(Some)
}

/// The response to an action on a group.
#[derive(Debug, Serialize, Deserialize)]
pub struct GroupChanged {
    /// The number of keys that `group-cancel` cancelled. It is 0 for other actions.
    pub cancelled: u64,
}

// --- Schedules ---------------------------------------------------------------------------------

/// A key of a queue in a store, with its schedule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    pub key: String,
    pub key_base64: Option<String>,
    /// The cron expression, or the word `every` and a period.
    pub spec: String,
    /// The name of the time zone of the cron expression.
    pub zone: Option<String>,
    /// The time until the schedule adds the key again, in seconds. It is 0 if the add is overdue.
    /// It is `None` if the time is unknown, or if the schedule adds the key no more.
    pub due_in: Option<f64>,
    /// The time at which the schedule adds the key again, by the clock of the store, in seconds
    /// since 1970.
    pub next_at: Option<f64>,
    /// True if an operator has paused the schedule, or a worker has refused it.
    pub paused: bool,
    /// The reason why a worker has refused the schedule, or `None` if none has.
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
    /// True if more schedules match than the response contains, or if some schedules were not read.
    pub more: bool,
}

/// A change of a schedule, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleAction {
    /// Stores a new schedule of a key, and replaces an existing one.
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

/// The body of an action on a schedule. Only `schedule-add` permits fields other than `key` and
/// `key_base64`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// The name of the time zone of the cron expression. The default is UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The group of the key. Only a queue whose adds name the groups accepts this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The response to an action on a schedule.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScheduleChanged {
    /// True if the schedule was changed, false if the key has no schedule.
    pub changed: bool,
}

// --- Work ----------------------------------------------------------------------------------------

/// A request of a worker, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkAction {
    /// Claims ready keys, each with a lease.
    Claim,
    /// Renews the leases of claims.
    Renew,
    Complete,
    Fail,
    /// Makes the keys of claims ready again. The runs do not count as failures.
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

/// The body of `/api/v1/claim`. All times are in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewClaim {
    /// The name of the worker, which the dashboard and the API show.
    pub worker: String,
    /// The maximum number of keys to claim. The default is 1.
    #[serde(default = "one")]
    pub max: usize,
    /// The maximum time to wait for a ready key.
    #[serde(default = "default_wait")]
    pub wait: f64,
    /// The time until the leases of the claimed keys expire.
    #[serde(default = "default_lease")]
    pub lease: f64,
    /// True if the response must say whether the queue is empty when it contains no claims.
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
    /// The claimed keys. The list is empty if no key became ready while the request waited.
    pub claims: Vec<ClaimedKey>,
    /// True if the queue has no ready or waiting key, and no key in flight. The field is false
    /// unless the request contained `until_empty`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub empty: bool,
}

/// A claimed key. If the key is UTF-8, only `key` is `Some`. Otherwise, only `key_base64` is
/// `Some`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClaimedKey {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The fencing token of the claim, as a decimal number.
    pub token: String,
    pub attempt: u32,
    /// The number of adds that the run serves, and the bitwise or of the flags of these adds.
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
    /// The time from now until the renewed leases expire, in seconds.
    #[serde(default = "default_lease")]
    pub lease: f64,
}

/// The body of `/api/v1/complete`, `fail` and `release`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endings {
    pub claims: Vec<NamedClaim>,
}

/// A claim that a request renews or ends. In a request of `fail`, it also describes the failure.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedClaim {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The fencing token of the claim, as a decimal number.
    pub token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// The last part of the output of the failed run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The delay before the next attempt, in seconds. If it is missing, the queue computes the
    /// backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
    /// True if the key must be given up, so that it is parked.
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
    /// The error of the first claim that was not changed, and the number of further errors. It is
    /// `None` if the status is 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The results of the claims, in the order of the request.
    pub results: Vec<ClaimResult>,
}

/// The result of a request for one claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClaimResult {
    pub result: ClaimOutcome,
    /// The cause and the next step, if the request did not change the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The outcome of a request for one claim, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimOutcome {
    Renewed,
    Completed,
    Failed,
    /// The run failed, and the key was parked: the worker gave it up, or it has failed too often.
    Parked,
    Released,
    /// An operator has cancelled the run. If this is the result of `renew`, the worker should stop
    /// the run.
    Cancelled,
    /// The queue no longer has this claim, or never had it.
    Lost,
    /// Another transaction or request has locked the row of the key, so the claim was not changed.
    Locked,
    /// The store did not answer, so the state of the claim is unknown.
    Unknown,
}

// --- Errors ------------------------------------------------------------------------------------

/// The body of a response with an error status.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Failure {
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The number of keys that match, if it differs too much from the number that the user has
    /// confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<usize>,
    /// The result for each key of an add that failed. The result is `None` if the key was not
    /// added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<Option<AddResult>>,
}

/// The error for the path of a single queue, if the site shows all queues of a store.
pub const SEVERAL_QUEUES: &str =
    "no such path; / lists the queues, and the paths of a queue are below /queues/NAME/";

/// The error for a key that the queue does not have.
pub const NOT_IN_QUEUE: &str = "not in the queue";
