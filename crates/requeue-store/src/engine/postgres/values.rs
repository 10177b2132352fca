//! Converts the values of operations to SQL, and results from SQL.

use std::borrow::Cow;
use std::sync::Arc;

use tokio_postgres::Row as SqlRow;

use super::faults;
use crate::engine::attempts::Failed;
use crate::engine::columns::{ColumnType, Columns, Source};
use crate::engine::row::Row;
use crate::engine::time::micros;
use crate::engine::{Asked, Backoff, Failing, Finish, Place, Settings};
use crate::types::add::{Add, Merge, ReaddPolicy};
use crate::types::error::Answer;
use crate::types::inspect::{Entry, State};
use crate::types::rate::Rate;

/// The columns that [`read_entry`] reads: first the columns of a row, then the key and the time.
///
/// The library writes at most 4096 characters of an error. Other programs may write longer errors. The query cuts them,
/// so that they do not fill the memory of a reader.
pub(super) fn entry_columns() -> String {
    let columns = Columns::join_names(|column| match column.name {
        "lease_until" => "greatest(k.lease_until, \
             (select r.lease_until from requeue.renewals r where r.epoch = k.epoch))"
            .to_owned(),
        name @ ("error" | "trace" | "run_trace") => format!("left(k.{name}, 4096)"),
        // (The constraints of the table limit the length of the other texts.)
        name if column.column_type != ColumnType::Number => format!("k.{name}"),
        // All numbers are read as one type. Therefore, the decoder need not know the type of each column.
        name => format!("k.{name}::bigint"),
    });
    format!("{columns}, k.key, n.t")
}

impl Source for SqlRow {
    type Error = tokio_postgres::Error;

    fn read_number(&self, position: usize) -> Result<Option<i64>, Self::Error> {
        self.try_get(position)
    }

    fn read_text(&self, position: usize) -> Result<Option<Cow<'_, str>>, Self::Error> {
        Ok(self.try_get::<_, Option<&str>>(position)?.map(Cow::from))
    }

    fn read_bytes(&self, position: usize) -> Result<Option<&[u8]>, Self::Error> {
        self.try_get(position)
    }
}

/// The parameters of a batch of completions, except the kind of each completion.
#[derive(Default)]
pub(super) struct Rest<'a> {
    pub(super) delays: Vec<Option<i64>>,
    pub(super) priorities: Vec<i16>,
    pub(super) adds: Vec<i32>,
    pub(super) flags: Vec<i32>,
    pub(super) errors: Vec<Option<Cow<'a, str>>>,
    pub(super) bases: Vec<Option<i64>>,
    pub(super) caps: Vec<Option<i64>>,
    pub(super) shares: Vec<Option<f64>>,
    pub(super) mosts: Vec<Option<i32>>,
    // The following fields are the parameters of failures.
    pub(super) tooks: Vec<Option<i64>>,
    pub(super) statuses: Vec<Option<i32>>,
    pub(super) outputs: Vec<Option<Cow<'a, str>>>,
}

impl<'a> Rest<'a> {
    pub(super) fn push(&mut self, how: &'a Finish) {
        let none = (None, None, None, None);
        let (delay, (base, cap, share, most)) = match how {
            Finish::Succeed | Finish::GiveUp(_) | Finish::Release(_) | Finish::Cancelled => {
                (None, none)
            }
            Finish::RequeueAfter(delay, _) | Finish::Unclaim(_, delay) => (Some(*delay), none),
            Finish::Retry(how, _) => {
                let (base, cap, share, most) = failing_params(how);
                (None, (Some(base), Some(cap), Some(share), most))
            }
            Finish::RetryAfter(delay, most, _) => {
                (Some(*delay), (None, None, None, most.map(count)))
            }
        };
        let asked = match how {
            Finish::Succeed | Finish::Cancelled => Asked::default(),
            // The completion itself is the add of the next run.
            Finish::RequeueAfter(_, priority) => Asked { adds: 1, flags: 0, priority: *priority },
            Finish::Release(asked) | Finish::Unclaim(asked, _) => *asked,
            Finish::Retry(_, failure)
            | Finish::RetryAfter(_, _, failure)
            | Finish::GiveUp(failure) => failure.asked,
        };
        let failure = how.failure();
        let error = failure.map(|failure| clean_text(&failure.error));
        self.delays.push(delay.map(micros));
        self.priorities.push(asked.priority.number().into());
        self.adds.push(count(asked.adds));
        self.flags.push(asked.flags.cast_signed());
        self.errors.push(error);
        self.bases.push(base);
        self.caps.push(cap);
        self.shares.push(share);
        self.mosts.push(most);
        self.tooks.push(failure.and_then(|failure| failure.took).map(micros));
        self.statuses.push(failure.and_then(|failure| failure.exit_status));
        self.outputs.push(failure.map(|failure| clean_text(&failure.output)));
    }
}

/// Reads a queue from a row. The columns are the id of the queue, whether re-adds are held, whether adds revive parked
/// keys, the rule that assigns keys to groups, the limit of the groups, and the rate.
pub(super) fn read_place(name: &str, row: &SqlRow) -> Place {
    Place::new(row.get::<_, i32>(0).into(), name, read_settings(row))
}

/// Reads the settings of a queue from a row that has the columns of [`read_place`].
pub(super) fn read_settings(row: &SqlRow) -> Settings {
    let group_by: Option<&str> = row.get(3);
    let group_limit: Option<i32> = row.get(4);
    Settings {
        group_by: group_by.map(Arc::from),
        group_limit: group_limit.map(from_count),
        rate: read_rate(row, 5),
        ..Settings::from_flags(row.get(1), row.get(2))
    }
}

/// Returns the parts of a rate, for a parameter. The list is empty if there is no rate.
pub(super) fn rate_parts(rate: Option<Rate>) -> Vec<i64> {
    rate.map(Rate::parts).into_iter().flatten().collect()
}

/// Reads a rate from a column. Returns `None` if there is no rate, or it is invalid.
pub(super) fn read_rate(row: &SqlRow, column: usize) -> Option<Rate> {
    let parts: Option<Vec<i64>> = row.get(column);
    parts.as_deref().and_then(Rate::from_parts)
}

/// Returns the number of a state in the parameters of `requeue.cancel`.
pub(super) const fn number_of(state: State) -> i32 {
    match state {
        State::Ready => 0,
        State::Waiting => 1,
        State::InFlight => 2,
        State::Parked => 3,
        // PostgreSQL has no damaged keys.
        State::Damaged => 4,
    }
}

pub(super) const fn is_hold(readd_policy: ReaddPolicy) -> bool {
    matches!(readd_policy, ReaddPolicy::Hold)
}

pub(super) fn number(queue: &Place) -> i32 {
    // The id was an `i32` when it was read, so the conversion cannot fail.
    queue.id.try_into().unwrap_or(0)
}

pub(super) fn how_to_add(add: Add) -> i16 {
    let merge = match add.merge {
        Merge::Earliest => 0,
        Merge::Latest => 1,
        Merge::Exactly => 2,
    };
    if add.revives { merge + 4 } else { merge }
}

pub(super) const fn how_to_end(how: &Finish) -> i16 {
    match how {
        Finish::Succeed => 0,
        Finish::RequeueAfter(..) => 1,
        Finish::Retry(..) => 2,
        Finish::RetryAfter(..) => 3,
        Finish::GiveUp(_) => 4,
        Finish::Release(_) => 5,
        Finish::Unclaim(..) => 6,
        Finish::Cancelled => 7,
    }
}

pub(super) fn failing_params(failing: &Failing) -> (i64, i64, f64, Option<i32>) {
    let Backoff { base, cap, share } = failing.backoff;
    (micros(base), micros(cap), share.clamp(0.0, 1.0), failing.max_failures.map(count))
}

/// Converts a count to the server's type. A count above 2³¹ - 1 becomes 2³¹ - 1.
pub(super) fn count(number: u32) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

pub(super) fn from_count(count: i32) -> u32 {
    count.try_into().unwrap_or(0)
}

/// Replaces NUL characters, because the server does not accept them in texts.
pub(super) fn clean_text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// Reads a column of positions. The server counts them from 1, and the result contains indexes from 0.
pub(super) fn read_indexes(row: &SqlRow, column: usize) -> Vec<usize> {
    let numbers: Vec<i32> = row.get(column);
    numbers.into_iter().filter_map(|n| usize::try_from(n).ok()?.checked_sub(1)).collect()
}

/// Reads a failed run from a row of `attempts`. Its columns begin at the third column.
pub(super) fn read_failed(row: &SqlRow) -> Failed {
    let worker: Option<&str> = row.get(5);
    Failed {
        number: from_count(row.get(2)),
        at: row.get(3),
        took: row.get(4),
        worker: worker.map(Arc::from),
        exit_status: row.get(6),
        error: row.get(7),
        output: row.get(8),
    }
}

/// Reads an entry from a row that has the columns [`entry_columns`].
pub(super) fn read_entry(row: &SqlRow) -> Answer<Entry> {
    let columns = Columns::read(row).map_err(|error| faults::of_statement(&error))?;
    Ok(Row::from(columns).to_entry(row.get::<_, &[u8]>("key").into(), row.get("t")))
}
