//! The trait `Source`: a queue of any kind, which a site shows as rows.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::StatusCode;
use requeue::history::Recording;

use crate::api::{
    Action, Activity, AddResult, ClaimOutcome, ClaimResult, ClaimedKey, Group, GroupAction,
    GroupChange, KeyPage, Named, PastAction, Row, Sample, Schedule, ScheduleAction, ScheduleChange,
    StartRate, State, Status, Tally, Timeline, Worker,
};
use crate::control::{Control, FailedRun};
use crate::failures::{Failures, group_of};
use crate::history::History;
use crate::keys::{escape_key, to_base64};
use crate::params::{Params, Problem};
use crate::rows::Detail;

pub(crate) type Show<K> = Box<dyn Fn(&K) -> Cow<'_, [u8]> + Send + Sync>;
pub(crate) type Read<K> = Box<dyn Fn(&[u8]) -> Option<K> + Send + Sync>;
pub(crate) type DetailOf<K> = Box<dyn Fn(&K) -> Detail + Send + Sync>;

/// A queue as its site uses it. Only methods that may wait for a store or for many keys are
/// asynchronous.
#[async_trait]
pub(crate) trait Source: Send + Sync {
    fn name(&self) -> Option<&str>;
    fn status(&self) -> Status;
    fn read_gauges(&self) -> Gauges;
    /// Returns up to `limit` running keys, the longest running key first. Returns no keys if the
    /// queue does not keep times.
    fn longest_running(&self, limit: usize) -> Vec<Row>;
    async fn read_page(&self, walk: &Walk) -> Result<Walked, Problem>;
    async fn find_key(&self, key: &[u8]) -> Result<Found, Problem>;
    /// Returns the past of a key, or `None` if no key of the queue can have these bytes.
    async fn read_timeline(&self, key: &[u8]) -> Result<Option<Timeline>, Problem>;
    /// Returns true if the queue may have recorded many events of a key, so that reading its past
    /// is expensive.
    fn may_record(&self) -> bool {
        false
    }
    /// Returns the recorded events: of the whole queue, or of one key. `key` contains the
    /// request's parameter that names the key, and the bytes of the key, which may no longer be
    /// in the queue. If `hash_keys` is true, the recording contains hashes instead of keys. The
    /// call blocks the thread.
    fn read_recording(
        &self,
        _key: Option<(&'static str, &[u8])>,
        _hash_keys: bool,
    ) -> Result<Recording, Problem> {
        let error = "a queue in a store has no recording; `requeue why KEY` shows the past that the \
                     store keeps";
        Err(Problem::new(StatusCode::NOT_FOUND, error))
    }
    /// Passes all failing keys to `failures`, the parked keys first, until `failures` is full.
    async fn read_failures(&self, failures: &mut Failures) -> Result<(), Problem>;
    /// Returns up to `most` keys that `selection` selects and that `action` would change.
    async fn matching_keys(
        &self,
        action: Action,
        selection: &Selection,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, Problem>;
    /// Applies `action` to keys. The result of each key is true if the key was changed. An error
    /// contains the number of keys that are known to be changed.
    async fn change_keys(&self, action: Action, keys: Vec<Vec<u8>>) -> Result<Vec<bool>, Problem>;
    /// Adds keys. Returns the result of each add. If only some of the keys were added, the error
    /// contains their results.
    async fn add_keys(&self, keys: Vec<NewKey>) -> Result<Vec<AddResult>, Problem>;
    /// Waits until a key is ready, and claims ready keys for a worker. If the future is dropped,
    /// the claimed keys return to the queue.
    async fn claim_keys(&self, claim: &Claim) -> Result<Claimed, Problem>;
    /// Returns true if no key of the queue is ready, waiting or in flight.
    async fn is_empty(&self) -> Result<bool, Problem>;
    /// Renews the leases of claims, so that they expire after `lease` from now. Returns the
    /// result for each claim.
    async fn renew_claims(
        &self,
        claims: Vec<Ticket>,
        lease: Duration,
    ) -> Result<Vec<ClaimResult>, Problem>;
    /// Ends a claim with a success, a failure or a release. The caller must poll the future to
    /// its end, because a dropped item counts as a failure.
    async fn end_claim(&self, claim: Ticket, ending: Ending) -> ClaimResult;
    /// Pauses the deliveries of the queue, or resumes them.
    async fn set_paused(&self, paused: bool) -> Result<(), Problem>;
    /// Adds an action of an operator to the list of past actions.
    async fn record_action(&self, action: PastAction) -> Result<(), Problem>;
    /// Returns the last actions of operators, the newest first.
    async fn last_actions(&self) -> Result<Vec<PastAction>, Problem>;
    /// Returns the action that paused the queue, as of the last read of the state, if this action
    /// was recorded.
    fn last_pause(&self) -> Option<PastAction>;
    /// Returns true if operators can limit the rate of starts of this queue. The value is
    /// constant.
    fn has_rate(&self) -> bool {
        false
    }
    /// Returns the last rate that was read, and true if it permitted no start at that time.
    fn rate(&self) -> Option<(StartRate, bool)> {
        None
    }
    async fn set_rate(&self, _: Option<StartRate>) -> Result<(), Problem> {
        let error = "this queue has no rate that can be changed; only a queue in a store has one";
        Err(Problem::new(StatusCode::NOT_FOUND, error))
    }
    /// Returns true if the site can list the groups of the queue's keys. The value is constant.
    fn has_groups(&self) -> bool {
        false
    }
    /// Returns up to `most` groups that have keys or settings, sorted by name.
    async fn read_groups(&self, _most: usize) -> Result<Vec<Group>, Problem> {
        Err(no_groups())
    }
    /// Returns the work of all processes in the last hour, and the workers that are alive, as of
    /// the last read. Returns `None` if the queue is in memory, or if the last read failed.
    fn recent_activity(&self) -> Option<(Tally, Vec<Worker>)> {
        None
    }
    /// Returns true if the queue keeps the numbers of adds, starts and results per minute. The
    /// value is constant.
    fn has_activity(&self) -> bool {
        false
    }
    /// Returns the work of all processes since `since` ago. The period is divided into at most
    /// `most + 1` parts.
    async fn read_activity(&self, _since: Duration, _most: usize) -> Result<Activity, Problem> {
        Err(no_activity())
    }
    /// Changes a setting of a group: its limit, its rate, its weight or its pause.
    async fn change_group(&self, _: GroupAction, _: GroupChange) -> Result<(), Problem> {
        Err(no_groups())
    }
    /// Cancels the pending runs of a group's keys in the given state, or in all states. Increases
    /// `changed` by the number of cancelled keys after each step.
    async fn cancel_group(
        &self,
        _group: String,
        _state: Option<State>,
        _changed: &mut usize,
    ) -> Result<(), Problem> {
        Err(no_groups())
    }
    /// Returns true if keys of this queue can have schedules. The value is constant.
    fn has_schedules(&self) -> bool {
        false
    }
    /// Returns up to `most` schedules, sorted by key.
    async fn read_schedules(&self, _most: usize) -> Result<Vec<Schedule>, Problem> {
        Err(no_schedules())
    }
    /// Changes the schedule of a key. Returns false if the key has no schedule.
    async fn change_schedule(
        &self,
        _: ScheduleAction,
        _key: Vec<u8>,
        _: ScheduleChange,
    ) -> Result<bool, Problem> {
        Err(no_schedules())
    }
}

/// Returns the error of a queue in memory, which has no schedules.
fn no_schedules() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "this queue has no schedules; only a queue in a store has them",
    )
}

/// Returns the error of a queue without groups. It is also the error of a queue in memory, which
/// does not keep the names of its groups.
pub(crate) fn no_groups() -> Problem {
    let error = "this queue has no groups; only a queue in a store that was created with groups has a list of them";
    Problem::new(StatusCode::NOT_FOUND, error)
}

/// Returns the error of a queue that does not keep numbers per minute.
pub(crate) fn no_activity() -> Problem {
    let error = "only a queue in a store keeps numbers per minute";
    Problem::new(StatusCode::NOT_FOUND, error)
}

/// A key that a request adds.
pub(crate) struct NewKey {
    pub(crate) key: Vec<u8>,
    pub(crate) delay: Option<Duration>,
    pub(crate) priority: i32,
    /// True if the add also revives a parked key. Without this flag, a queue in a store may leave
    /// the key parked.
    #[cfg_attr(
        not(feature = "store"),
        expect(dead_code, reason = "a queue in memory revives by any add")
    )]
    pub(crate) revive: bool,
    pub(crate) group: Option<String>,
}

/// A worker's request to claim keys.
pub(crate) struct Claim {
    pub(crate) worker: String,
    pub(crate) max: usize,
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
}

/// The claimed keys of a response. If the value is dropped before [`HandOver::hand_over`] is
/// called, the keys return to the queue.
pub(crate) struct Claimed {
    pub(crate) keys: Vec<ClaimedKey>,
    pub(crate) held: Box<dyn HandOver>,
}

/// Claimed keys whose response has not been written yet.
pub(crate) trait HandOver: Send {
    /// Leaves the keys to the client that claimed them. Their leases begin at this time or
    /// earlier.
    fn hand_over(self: Box<Self>);
}

/// The key and the fencing token of a claim that a request names.
#[derive(Clone)]
pub(crate) struct Ticket {
    pub(crate) key: Vec<u8>,
    pub(crate) token: u64,
}

/// The result of a run, with which a worker ends its claim.
pub(crate) enum Ending {
    Complete,
    Fail(FailedRun),
    Release,
}

impl ClaimedKey {
    /// Returns a claimed key with its fencing token. The other properties are empty.
    pub(crate) fn new(key: &[u8], token: u64) -> Self {
        let text = std::str::from_utf8(key).ok();
        Self {
            key: text.map(str::to_owned),
            key_base64: text.is_none().then(|| to_base64(key)),
            token: token.to_string(),
            ..Self::default()
        }
    }
}

impl ClaimResult {
    pub(crate) const fn new(result: ClaimOutcome) -> Self {
        Self { result, error: None }
    }

    /// Returns the result for a claim that the request did not change. The error contains the
    /// cause and the next step.
    pub(crate) fn refused(result: ClaimOutcome, claim: &Ticket, why: &str) -> Self {
        let next = match result {
            ClaimOutcome::Lost => "; stop the run and discard its result",
            _ => "; send the request again",
        };
        let Ticket { key, token } = claim;
        let error = format!("{}, token {token}: {why}{next}", escape_key(key));
        Self { result, error: Some(error) }
    }

    /// Returns the result for a claim that the queue no longer has, without a more precise cause.
    pub(crate) fn lost(claim: &Ticket) -> Self {
        let why = "the claim is over: its lease has expired, or the claim was ended before";
        Self::refused(ClaimOutcome::Lost, claim, why)
    }
}

/// The parts of a source that the user sets with the builder.
pub(crate) struct Parts<K> {
    pub(crate) detail: DetailOf<K>,
    pub(crate) history: Option<History>,
    pub(crate) control: Option<Arc<dyn Control<K>>>,
}

/// The result of a search for one key.
pub(crate) enum Found {
    Page(Box<KeyPage>),
    /// The queue does not have the key.
    Nothing,
    /// No key of the queue can have these bytes.
    NoKey,
}

/// The conditions on the keys of a list or of an action. A key must meet all of them.
#[derive(Default)]
pub(crate) struct Selection {
    pub(crate) state: Option<State>,
    pub(crate) part: Option<Part>,
    /// If true, only keys whose last run failed are selected.
    pub(crate) failed: bool,
    /// If set, only failing keys are selected whose error is in this group.
    pub(crate) error: Option<String>,
}

impl Selection {
    /// Reads the parameters `state`, `q`, `failed` and `error` from a query string.
    pub(crate) fn from_params(params: &Params) -> Result<Self, Problem> {
        Ok(Self {
            state: params.named_value("state")?,
            part: params.text_of("q")?.map(Part::new),
            failed: params.flag("failed")?,
            error: params.text_of("error")?.map(str::to_owned),
        })
    }

    /// Returns true if a key with these properties is selected. `text` returns the key as it is
    /// shown, and `error` returns its last error.
    pub(crate) fn selects<'a>(
        &self,
        state: State,
        failures: u32,
        text: impl Fn() -> Cow<'a, str>,
        error: impl FnOnce() -> Option<Cow<'a, str>>,
    ) -> bool {
        state != State::Idle
            && self.state.is_none_or(|wanted| wanted == state)
            && (!self.failed || failures > 0)
            && self.part.as_ref().is_none_or(|part| part.is_in(&text()))
            && self
                .error
                .as_ref()
                .is_none_or(|group| failures > 0 && group_of(error().as_deref(), &text()) == *group)
    }
}

/// A request for a page of keys.
pub(crate) struct Walk {
    pub(crate) selection: Selection,
    pub(crate) limit: usize,
    pub(crate) begin: Begin,
}

/// The keys with which a page begins.
pub(crate) enum Begin {
    Start,
    /// The page begins at this cursor, which is the `next` of the previous page.
    Cursor(String),
    /// The page contains the first keys in this order. Only the keys that one request reads are
    /// sorted.
    Sorted(Sort),
}

impl Walk {
    /// Returns the error for an invalid cursor.
    pub(crate) fn bad_cursor() -> Problem {
        let error = "not the `next` of an earlier page; start again without a cursor";
        Problem::parameter("cursor", error)
    }
}

/// A page of keys.
#[derive(Default)]
pub(crate) struct Walked {
    pub(crate) rows: Vec<Row>,
    /// The cursor of the next page, or `None` after the last page.
    pub(crate) next: Option<String>,
    /// The number of keys that were read, rounded up to whole reads of the queue.
    pub(crate) looked_at: usize,
    /// True if more keys may be selected: some of them are not in `rows`, or some keys were not
    /// read.
    pub(crate) more: bool,
}

/// The maximum number of keys that one request for keys reads.
pub(crate) const LOOKS: usize = 100_000;

// --- Sorting ---------------------------------------------------------------------------------

/// An order of rows: a column and a direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sort {
    pub(crate) by: Column,
    pub(crate) descends: bool,
}

/// A column by which keys can be sorted, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Column {
    Key,
    State,
    Age,
    Attempt,
    DueIn,
}

impl Named for Column {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("key", Self::Key),
        ("state", Self::State),
        ("age", Self::Age),
        ("attempt", Self::Attempt),
        ("due_in", Self::DueIn),
    ];
}

/// The value of a key in the column by which keys are sorted.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Key(Vec<u8>),
    State(State),
    Number(u128),
    /// The value is unknown. It is last in both directions.
    Unknown,
}

impl Rank {
    pub(crate) fn of_time(time: Option<Duration>) -> Self {
        time.map_or(Self::Unknown, |time| Self::Number(time.as_nanos()))
    }
}

/// Collects keys, and keeps only the first `limit` keys in an order.
pub(crate) struct First<T> {
    sort: Sort,
    limit: usize,
    kept: Vec<(Rank, T)>,
    seen: usize,
}

impl<T> First<T> {
    pub(crate) const fn new(sort: Sort, limit: usize) -> Self {
        Self { sort, limit, kept: Vec::new(), seen: 0 }
    }

    pub(crate) fn push(&mut self, rank: Rank, key: T) {
        self.seen += 1;
        self.kept.push((rank, key));
        // The list is sorted only after it has doubled. The average time for each key is
        // therefore independent of the number of keys.
        if self.kept.len() >= 2 * self.limit + 256 {
            self.sort_and_truncate();
        }
    }

    fn sort_and_truncate(&mut self) {
        let descends = self.sort.descends;
        // The sort is stable, so that keys with equal ranks have the same order in each response.
        self.kept.sort_by(|(a, _), (b, _)| match (a, b) {
            (Rank::Unknown, _) | (_, Rank::Unknown) => a.cmp(b),
            _ if descends => b.cmp(a),
            _ => a.cmp(b),
        });
        self.kept.truncate(self.limit);
    }

    /// Returns the first keys. Also returns true if other keys were pushed.
    pub(crate) fn into_first(mut self) -> (Vec<T>, bool) {
        self.sort_and_truncate();
        let more = self.seen > self.kept.len();
        (self.kept.into_iter().map(|(_, key)| key).collect(), more)
    }
}

// --- Numbers ---------------------------------------------------------------------------------

/// The numbers of a queue at one point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// The numbers of keys by state, and the age of these numbers. The other fields have their
    /// default values.
    pub(crate) counts: Sample,
    /// The counters and times of this process. If the queue is in a store, the source replaces
    /// most of them with those of all processes after it has read these.
    pub(crate) process: requeue::metrics::Sample,
    pub(crate) keeps_times: bool,
}

/// A text that a search looks for in keys as they are shown. Upper and lower case of ASCII
/// letters are equal.
pub(crate) struct Part(Vec<u8>);

impl Part {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.as_bytes().to_ascii_lowercase())
    }

    pub(crate) fn is_in(&self, text: &str) -> bool {
        let first = self.0.first().map_or(0, |&byte| byte);
        text.as_bytes().windows(self.0.len()).any(|window| {
            // Most windows differ in the first byte. The comparison of this byte is faster than
            // that of the whole window.
            window[0].to_ascii_lowercase() == first && window.eq_ignore_ascii_case(&self.0)
        })
    }
}

/// A request for a table of a queue in a store. `C` is the type of the columns by which the table
/// can be sorted.
pub(crate) struct TableQuery<C> {
    limit: usize,
    sort: Option<(C, bool)>,
    part: Option<Part>,
}

/// The rows of a table that a request has selected.
pub(crate) struct Selected<T> {
    pub(crate) rows: Vec<T>,
    /// The number of rows that were read before the selection.
    pub(crate) looked_at: usize,
    /// True if more rows match than are returned, or if some rows were not read.
    pub(crate) more: bool,
}

impl<C: Named> TableQuery<C> {
    /// Reads the parameters `q`, `limit`, `sort` and `order` from a query string. `most` is the
    /// largest value of `limit`.
    pub(crate) fn parse(query: Option<&str>, most: usize) -> Result<Self, Problem> {
        let params = Params::parse(query, &["q", "limit", "sort", "order"])?;
        let (limit, sort) = (params.limit_of(most)?, params.sort_of::<C>()?);
        Ok(Self { limit, sort, part: params.text_of("q")?.map(Part::new) })
    }

    /// Selects from the rows that were read. `rows` must be sorted by name. If it has `most`
    /// rows, there may be more rows that were not read. `compare` compares two rows by a column.
    pub(crate) fn select<T>(
        self,
        mut rows: Vec<T>,
        most: usize,
        name: impl Fn(&T) -> &str,
        compare: impl Fn(&C, &T, &T) -> Ordering,
    ) -> Selected<T> {
        let looked_at = rows.len();
        rows.retain(|row| self.part.as_ref().is_none_or(|part| part.is_in(name(row))));
        if let Some((column, descends)) = self.sort {
            rows.sort_by(|a, b| {
                let order = compare(&column, a, b);
                let order = if descends { order.reverse() } else { order };
                order.then_with(|| name(a).cmp(name(b)))
            });
        }
        let more = looked_at == most || rows.len() > self.limit;
        rows.truncate(self.limit);
        Selected { rows, looked_at, more }
    }
}

/// Returns the number of keys that an action has changed.
pub(crate) fn count_of(results: &[bool]) -> usize {
    results.iter().filter(|&&changed| changed).count()
}

/// Returns the additional properties of a key. If the user's function panics, returns none, so
/// that the other keys are still shown.
pub(crate) fn detail_of<K>(detail: &DetailOf<K>, key: &K) -> Detail {
    catch_unwind(AssertUnwindSafe(|| detail(key))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_keys_of_many_are_kept_and_unknown_values_are_last() {
        let numbers = || (0..10_000_u128).map(|n| n * 7919 % 10_000);
        for (descends, first) in [(false, [0, 1, 2]), (true, [9_999, 9_998, 9_997])] {
            let mut kept = First::new(Sort { by: Column::Age, descends }, 3);
            kept.push(Rank::Unknown, u128::MAX);
            numbers().for_each(|n| kept.push(Rank::Number(n), n));
            assert_eq!(kept.into_first(), (first.to_vec(), true));
            let mut kept = First::new(Sort { by: Column::Age, descends }, 3);
            kept.push(Rank::Unknown, 0);
            kept.push(Rank::Number(1), 1);
            assert_eq!(kept.into_first(), (vec![1, 0], false));
        }
    }
}
