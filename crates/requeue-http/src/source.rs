//! The trait of sources. A source shows a queue of any kind as rows.

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

/// The interface of a queue for the site. Only methods that can take long are asynchronous.
#[async_trait]
pub(crate) trait Source: Send + Sync {
    fn name(&self) -> Option<&str>;
    fn status(&self) -> Status;
    fn read_gauges(&self) -> Gauges;
    /// Returns up to `limit` running keys, the longest running key first. Returns no keys if the queue does not keep
    /// times.
    fn longest_running(&self, limit: usize) -> Vec<Row>;
    async fn read_page(&self, walk: &Walk) -> Result<Walked, Problem>;
    async fn find_key(&self, key: &[u8]) -> Result<Found, Problem>;
    /// Returns the past of a key, or `None` if no key can have these bytes.
    async fn read_timeline(&self, key: &[u8]) -> Result<Option<Timeline>, Problem>;
    /// Returns true if the past of a key can contain many events.
    fn may_record(&self) -> bool {
        false
    }
    /// Returns the recorded events. `key` is a key that the queue may no longer have, and the parameter that names it. With
    /// `hash_keys`, the recording has no part of a key. The call blocks.
    fn read_recording(
        &self,
        _key: Option<(&'static str, &[u8])>,
        _hash_keys: bool,
    ) -> Result<Recording, Problem> {
        let error = "a queue in a store has no recording; `requeue why KEY` shows the past that the \
                     store keeps";
        Err(Problem::new(StatusCode::NOT_FOUND, error))
    }
    /// Reads the failing keys, the parked keys first.
    async fn read_failures(&self, failures: &mut Failures) -> Result<(), Problem>;
    /// Returns up to `most` selected keys on which `action` has an effect.
    async fn matching_keys(
        &self,
        action: Action,
        selection: &Selection,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, Problem>;
    /// Changes keys. For each key, the result is true if the key was changed. An error contains the number of keys that
    /// were certainly changed before it.
    async fn change_keys(&self, action: Action, keys: Vec<Vec<u8>>) -> Result<Vec<bool>, Problem>;
    /// Adds keys. Returns the result of each add. If only some keys were added, the error contains the results.
    async fn add_keys(&self, keys: Vec<NewKey>) -> Result<Vec<AddResult>, Problem>;
    /// Waits until a key is ready, and claims keys for a worker. If the future is dropped, the keys return to the queue.
    async fn claim_keys(&self, claim: &Claim) -> Result<Claimed, Problem>;
    /// Returns true if no key is ready, waiting or in flight.
    async fn is_empty(&self) -> Result<bool, Problem>;
    /// Extends leases to `lease` from now.
    async fn renew_claims(
        &self,
        claims: Vec<Ticket>,
        lease: Duration,
    ) -> Result<Vec<ClaimResult>, Problem>;
    /// Ends a claim. The call must not be dropped.
    async fn end_claim(&self, claim: Ticket, ending: Ending) -> ClaimResult;
    /// Pauses or resumes deliveries.
    async fn set_paused(&self, paused: bool) -> Result<(), Problem>;
    /// Records an action of an operator.
    async fn record_action(&self, action: PastAction) -> Result<(), Problem>;
    /// Returns the last actions, the newest first.
    async fn last_actions(&self) -> Result<Vec<PastAction>, Problem>;
    /// Returns the recorded action that paused the queue, at the time of the last read.
    fn last_pause(&self) -> Option<PastAction>;
    /// Returns true if the queue can have a rate. This does not change after the source is built.
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
    /// Returns true if the keys have groups that can be listed. This does not change after the source is built.
    fn has_groups(&self) -> bool {
        false
    }
    /// Returns up to `most` groups that have keys or settings, in the order of their names.
    async fn read_groups(&self, _most: usize) -> Result<Vec<Group>, Problem> {
        Err(no_groups())
    }
    /// Returns the work of all processes in the last hour, and the workers that are alive, at the time of the last
    /// read. Returns `None` if the source has no other processes, or has not read their work.
    fn recent_activity(&self) -> Option<(Tally, Vec<Worker>)> {
        None
    }
    /// Returns true if the work of all processes is kept. This does not change after the source is built.
    fn has_activity(&self) -> bool {
        false
    }
    /// Returns the work of all processes in this period, in at most `most + 1` parts.
    async fn read_activity(&self, _since: Duration, _most: usize) -> Result<Activity, Problem> {
        Err(no_activity())
    }
    /// Changes the settings of a group.
    async fn change_group(&self, _: GroupAction, _: GroupChange) -> Result<(), Problem> {
        Err(no_groups())
    }
    /// Cancels the keys of a group in this state. `changed` is their number so far.
    async fn cancel_group(
        &self,
        _group: String,
        _state: Option<State>,
        _changed: &mut usize,
    ) -> Result<(), Problem> {
        Err(no_groups())
    }
    /// Returns true if keys can have schedules. This does not change after the source is built.
    fn has_schedules(&self) -> bool {
        false
    }
    /// Returns up to `most` schedules, in the order of their keys.
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

/// The error for a queue in memory.
fn no_schedules() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "this queue has no schedules; only a queue in a store has them",
    )
}

/// The error for a queue without groups, or in memory, where the names of groups are not kept.
pub(crate) fn no_groups() -> Problem {
    let error = "this queue has no groups; only a queue in a store that was created with groups has a list of them";
    Problem::new(StatusCode::NOT_FOUND, error)
}

/// Returns the error of a source without activity.
pub(crate) fn no_activity() -> Problem {
    let error = "only a queue in a store keeps numbers per minute";
    Problem::new(StatusCode::NOT_FOUND, error)
}

/// A key to add.
pub(crate) struct NewKey {
    pub(crate) key: Vec<u8>,
    pub(crate) delay: Option<Duration>,
    pub(crate) priority: i32,
    /// True to revive a parked key. Only stores can keep a key parked after an add.
    #[cfg_attr(
        not(feature = "store"),
        expect(dead_code, reason = "a queue in memory revives by any add")
    )]
    pub(crate) revive: bool,
    pub(crate) group: Option<String>,
}

/// A request for keys.
pub(crate) struct Claim {
    pub(crate) worker: String,
    pub(crate) max: usize,
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
}

/// The keys of a claim. They return to the queue if the value is dropped before they are handed over.
pub(crate) struct Claimed {
    pub(crate) keys: Vec<ClaimedKey>,
    pub(crate) held: Box<dyn HandOver>,
}

/// Keys that a client will hold.
pub(crate) trait HandOver: Send {
    /// Leaves the keys to the client, whose leases begin now at the latest.
    fn hand_over(self: Box<Self>);
}

/// A claim that a request names.
#[derive(Clone)]
pub(crate) struct Ticket {
    pub(crate) key: Vec<u8>,
    pub(crate) token: u64,
}

/// The end of a claim.
pub(crate) enum Ending {
    Complete,
    Fail(FailedRun),
    Release,
}

impl ClaimedKey {
    /// Returns a claimed key without further properties.
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

    /// Returns the result of a request that has not changed the claim.
    pub(crate) fn refused(result: ClaimOutcome, claim: &Ticket, why: &str) -> Self {
        let next = match result {
            ClaimOutcome::Lost => "; stop the run and discard its result",
            _ => "; send the request again",
        };
        let Ticket { key, token } = claim;
        let error = format!("{}, token {token}: {why}{next}", escape_key(key));
        Self { result, error: Some(error) }
    }

    /// Returns the result for a claim that is over, as far as the queue knows.
    pub(crate) fn lost(claim: &Ticket) -> Self {
        let why = "the claim is over: its lease has expired, or the claim was ended before";
        Self::refused(ClaimOutcome::Lost, claim, why)
    }
}

/// The parts of a source that the user of the builder sets.
pub(crate) struct Parts<K> {
    pub(crate) detail: DetailOf<K>,
    pub(crate) history: Option<History>,
    pub(crate) control: Option<Arc<dyn Control<K>>>,
}

/// The result of a search for one key.
pub(crate) enum Found {
    Page(Box<KeyPage>),
    /// The key is not in the queue.
    Nothing,
    /// No key can have these bytes.
    NoKey,
}

/// The keys that a request selects.
#[derive(Default)]
pub(crate) struct Selection {
    pub(crate) state: Option<State>,
    pub(crate) part: Option<Part>,
    /// Only keys whose last run failed.
    pub(crate) failed: bool,
    /// Only failing keys of this group of errors.
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

    /// Returns true if a key is selected. `text` is the key as it is shown, and `error` is its last error.
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

/// The beginning of a page.
pub(crate) enum Begin {
    Start,
    /// The page begins at the `next` of the previous page.
    Cursor(String),
    /// The page has the first keys in this order, of all keys that are read for one request.
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
    /// The cursor of the next page, or `None` at the end.
    pub(crate) next: Option<String>,
    /// The approximate number of keys that were read.
    pub(crate) looked_at: usize,
    /// True if some selected keys are not in `rows`, or some keys were not read.
    pub(crate) more: bool,
}

/// The maximum number of keys that are read for one request.
pub(crate) const LOOKS: usize = 100_000;

// --- Sorting ---------------------------------------------------------------------------------

/// An order of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sort {
    pub(crate) by: Column,
    pub(crate) descends: bool,
}

/// A column of the table, with its name in the API.
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

/// The value by which a key is sorted.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Key(Vec<u8>),
    State(State),
    Number(u128),
    /// The value is unknown. It sorts last in both directions.
    Unknown,
}

impl Rank {
    pub(crate) fn of_time(time: Option<Duration>) -> Self {
        time.map_or(Self::Unknown, |time| Self::Number(time.as_nanos()))
    }
}

/// Keeps the first keys in an order.
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
        // The keys are sorted rarely, so that each key costs a constant time on average.
        if self.kept.len() >= 2 * self.limit + 256 {
            self.sort_and_truncate();
        }
    }

    fn sort_and_truncate(&mut self) {
        let descends = self.sort.descends;
        // The sort is stable, so that equal keys have the same order in each request.
        self.kept.sort_by(|(a, _), (b, _)| match (a, b) {
            (Rank::Unknown, _) | (_, Rank::Unknown) => a.cmp(b),
            _ if descends => b.cmp(a),
            _ => a.cmp(b),
        });
        self.kept.truncate(self.limit);
    }

    /// Returns the first keys, and true if there are more.
    pub(crate) fn into_first(mut self) -> (Vec<T>, bool) {
        self.sort_and_truncate();
        let more = self.seen > self.kept.len();
        (self.kept.into_iter().map(|(_, key)| key).collect(), more)
    }
}

// --- Numbers ---------------------------------------------------------------------------------

/// The numbers at a point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// The numbers of keys by state, and their age. The other fields are empty.
    pub(crate) counts: Sample,
    /// The numbers of this process. In a queue of a store, the longest running key can belong to another process.
    pub(crate) process: requeue::metrics::Sample,
    pub(crate) keeps_times: bool,
}

/// A text to search for in keys as they are shown. ASCII letters match in upper and lower case.
pub(crate) struct Part(Vec<u8>);

impl Part {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.as_bytes().to_ascii_lowercase())
    }

    pub(crate) fn is_in(&self, text: &str) -> bool {
        let first = self.0.first().map_or(0, |&byte| byte);
        text.as_bytes().windows(self.0.len()).any(|window| {
            // The first byte excludes most windows without a comparison of the other bytes.
            window[0].to_ascii_lowercase() == first && window.eq_ignore_ascii_case(&self.0)
        })
    }
}

/// A request for a table of a queue in a store, which can be sorted by the columns `C`.
pub(crate) struct TableQuery<C> {
    limit: usize,
    sort: Option<(C, bool)>,
    part: Option<Part>,
}

/// The rows of a table that a request selects.
pub(crate) struct Selected<T> {
    pub(crate) rows: Vec<T>,
    /// The number of rows that were read.
    pub(crate) looked_at: usize,
    /// True if further rows may match.
    pub(crate) more: bool,
}

impl<C: Named> TableQuery<C> {
    /// Reads the parameters `q`, `limit`, `sort` and `order` from a query string. `most` is the largest limit.
    pub(crate) fn parse(query: Option<&str>, most: usize) -> Result<Self, Problem> {
        let params = Params::parse(query, &["q", "limit", "sort", "order"])?;
        let (limit, sort) = (params.limit_of(most)?, params.sort_of::<C>()?);
        Ok(Self { limit, sort, part: params.text_of("q")?.map(Part::new) })
    }

    /// Selects from rows that are sorted by name, of which up to `most` were read. `compare` compares two rows by a
    /// column.
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

/// Returns the detail of a key. If the function panics, the detail is empty, so that other keys are still shown.
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
