//! The columns of a row in the table of keys. Queries, decoders and the statements that write rows share the list
//! [`Columns`].

use std::borrow::Cow;
use std::sync::Arc;

use crate::engine::Asked;
use crate::engine::row::{Row, Run};
use crate::engine::time::Micros;
use crate::types::inspect::StateCounts;

/// The value of a column, as it is written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Value<'a> {
    Number(Option<i64>),
    Text(Option<&'a str>),
    Bytes(Option<&'a [u8]>),
}

/// The type of a column's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ColumnType {
    Number,
    Text,
    Bytes,
}

/// A row of a query. The first columns of the query are [`Columns::ALL`].
pub(crate) trait Source {
    type Error;

    fn read_number(&self, position: usize) -> Result<Option<i64>, Self::Error>;
    fn read_text(&self, position: usize) -> Result<Option<Cow<'_, str>>, Self::Error>;
    fn read_bytes(&self, position: usize) -> Result<Option<&[u8]>, Self::Error>;
}

/// A Rust type that a column can have.
trait Kind: Sized {
    const TYPE: ColumnType = ColumnType::Number;

    fn read<S: Source>(source: &S, position: usize) -> Result<Self, S::Error>;
    fn to_value(&self) -> Value<'_>;
}

/// A column of this type is never null.
impl Kind for i64 {
    fn read<S: Source>(source: &S, position: usize) -> Result<Self, S::Error> {
        Ok(source.read_number(position)?.unwrap_or_default())
    }

    fn to_value(&self) -> Value<'_> {
        Value::Number(Some(*self))
    }
}

impl Kind for Option<i64> {
    fn read<S: Source>(source: &S, position: usize) -> Result<Self, S::Error> {
        source.read_number(position)
    }

    fn to_value(&self) -> Value<'_> {
        Value::Number(*self)
    }
}

impl Kind for Option<Arc<str>> {
    const TYPE: ColumnType = ColumnType::Text;

    fn read<S: Source>(source: &S, position: usize) -> Result<Self, S::Error> {
        Ok(source.read_text(position)?.as_deref().map(Arc::from))
    }

    fn to_value(&self) -> Value<'_> {
        Value::Text(self.as_deref())
    }
}

impl Kind for Option<Arc<[u8]>> {
    const TYPE: ColumnType = ColumnType::Bytes;

    fn read<S: Source>(source: &S, position: usize) -> Result<Self, S::Error> {
        Ok(source.read_bytes(position)?.map(Arc::from))
    }

    fn to_value(&self) -> Value<'_> {
        Value::Bytes(self.as_deref())
    }
}

/// A column and the type of its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) column_type: ColumnType,
}

macro_rules! columns {
    (
        key { $($(#[$key_doc:meta])* $key:ident: $key_kind:ty,)* }
        run { $($(#[$run_doc:meta])* $run:ident: $run_kind:ty,)* }
    ) => {
        /// The columns of a key, except the queue and the key itself. The schemas contain the constraints on the
        /// values.
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        pub(crate) struct Columns {
            $($(#[$key_doc])* pub(crate) $key: $key_kind,)*
            $($(#[$run_doc])* pub(crate) $run: $run_kind,)*
        }

        impl Columns {
            /// All columns, in the order in which queries list them.
            pub(crate) const ALL: &[Column] = &[
                $(Column { name: stringify!($key), column_type: <$key_kind as Kind>::TYPE },)*
                $(Column { name: stringify!($run), column_type: <$run_kind as Kind>::TYPE },)*
            ];
            /// The columns that have a value only while the key is in flight.
            pub(crate) const RUN: &[&str] = &[$(stringify!($run)),*];

            pub(crate) fn read<S: Source>(source: &S) -> Result<Self, S::Error> {
                // The query lists its columns in the order of `ALL`.
                let mut positions = 0..Self::ALL.len();
                let mut next = || positions.next().unwrap_or_default();
                Ok(Self {
                    $($key: Kind::read(source, next())?,)*
                    $($run: Kind::read(source, next())?,)*
                })
            }

            /// Returns the values in the order of [`ALL`](Self::ALL).
            pub(crate) fn values(&self) -> [Value<'_>; Self::ALL.len()] {
                [$(self.$key.to_value(),)* $(self.$run.to_value(),)*]
            }
        }
    };
}

columns! {
    key {
        /// The state: 0 if the key is ready or waiting, 1 if it is in flight, and 2 if it is parked.
        state: i64,
        at: Option<Micros>,
        priority: i64,
        adds: i64,
        flags: i64,
        failures: i64,
        steps: i64,
        until: Micros,
        not_before: Micros,
        since: Micros,
        bound: Option<Micros>,
        error: Option<Arc<str>>,
        /// The time of the last failure. It has no meaning if the key has no failures.
        failed_at: Option<Micros>,
        /// The name of the group. It is `None` if the queue has no groups, and empty if the add names no group or the
        /// pattern does not match the key.
        grp: Option<Arc<str>>,
        /// The trace contexts of the pending run's adds, one per line.
        trace: Option<Arc<str>>,
        /// The last completed runs: see `engine/past.rs`.
        past: Option<Arc<[u8]>>,
    }
    run {
        epoch: Option<i64>,
        lease_until: Option<Micros>,
        run_since: Option<Micros>,
        run_priority: Option<i64>,
        run_adds: Option<i64>,
        run_flags: Option<i64>,
        /// The name of the worker that has the key in flight.
        worker: Option<Arc<str>>,
        /// The fencing token of the delivery whose run was cancelled. If the key's present delivery has another token,
        /// its run was not cancelled.
        cancel_epoch: Option<i64>,
        /// The trace contexts of the run in flight.
        run_trace: Option<Arc<str>>,
    }
}

impl StateCounts {
    /// Returns the columns of a query that counts keys for [`read`](Self::read). `now` is the SQL expression for the
    /// time.
    pub(crate) fn columns(now: &str) -> String {
        format!(
            "count(*) filter (where state = 0 and at <= {now}), \
             count(*) filter (where state = 0 and at > {now}), \
             count(*) filter (where state = 1), \
             count(*) filter (where state = 1 and at <= {now}), \
             count(*) filter (where state = 2)"
        )
    }

    /// Reads the numbers of keys from the first columns of a row. The column after them contains the age of the oldest
    /// ready key.
    pub(crate) fn read<S: Source>(source: &S) -> Result<Self, S::Error> {
        let number = |position| {
            let number = source.read_number(position)?.unwrap_or_default();
            Ok(number.try_into().unwrap_or(0))
        };
        let (ready, waiting, in_flight) = (number(0)?, number(1)?, number(2)?);
        let (dirty, parked) = (number(3)?, number(4)?);
        Ok(Self { ready, waiting, in_flight, dirty, parked, ..Self::default() })
    }
}

const PENDING: i64 = 0;
const IN_FLIGHT: i64 = 1;
const PARKED: i64 = 2;

impl Columns {
    /// Returns the names of all columns, separated by commas. `form` writes each of them.
    pub(crate) fn join_names(form: impl Fn(&Column) -> String) -> String {
        Self::ALL.iter().map(form).collect::<Vec<_>>().join(", ")
    }
}

impl From<Columns> for Row {
    fn from(stored: Columns) -> Self {
        let run = stored.epoch.filter(|_| stored.state == IN_FLIGHT).map(|epoch| Run {
            epoch,
            lease_until: stored.lease_until.unwrap_or_default(),
            since: stored.run_since.unwrap_or_default(),
            is_cancelled: stored.cancel_epoch == Some(epoch),
            asked: asked(
                stored.run_adds.unwrap_or_default(),
                stored.run_flags.unwrap_or_default(),
                stored.run_priority.unwrap_or_default(),
            ),
        });
        Self {
            at: stored.at,
            // Without a pending run, the stored bound has no meaning.
            bound: stored.bound.filter(|_| stored.at.is_some()),
            // Without a run in flight, the stored name of the worker has no meaning.
            worker: stored.worker.filter(|name| run.is_some() && !name.is_empty()),
            run,
            parked: stored.state == PARKED,
            failures: to_count(stored.failures),
            steps: to_count(stored.steps),
            until: stored.until,
            not_before: stored.not_before,
            asked: asked(stored.adds, stored.flags, stored.priority),
            since: stored.since,
            error: stored.error.as_deref().map(str::to_owned),
            failed_at: stored.failed_at.filter(|_| stored.failures > 0),
            group: stored.grp,
            trace: stored.trace,
            past: stored.past,
            run_trace: stored.run_trace.filter(|_| run.is_some()),
        }
    }
}

impl From<&Row> for Columns {
    fn from(row: &Row) -> Self {
        let run = row.run;
        Self {
            state: match run {
                _ if row.parked => PARKED,
                Some(_) => IN_FLIGHT,
                None => PENDING,
            },
            at: row.at,
            priority: row.asked.priority.number().into(),
            adds: row.asked.adds.into(),
            flags: row.asked.flags.into(),
            failures: row.failures.into(),
            steps: row.steps.into(),
            until: row.until,
            not_before: row.not_before,
            since: row.since,
            bound: row.bound,
            error: row.error.as_deref().map(Arc::from),
            failed_at: row.failed_at,
            grp: row.group.clone(),
            trace: row.trace.clone(),
            past: row.past.clone(),
            epoch: run.map(|run| run.epoch),
            lease_until: run.map(|run| run.lease_until),
            run_since: run.map(|run| run.since),
            run_priority: run.map(|run| run.asked.priority.number().into()),
            run_adds: run.map(|run| run.asked.adds.into()),
            run_flags: run.map(|run| run.asked.flags.into()),
            worker: row.worker.clone(),
            cancel_epoch: run.filter(|run| run.is_cancelled).map(|run| run.epoch),
            run_trace: row.run_trace.clone(),
        }
    }
}

/// Converts a count. The constraints of the schemas accept only values in the range of `u32`.
fn to_count(number: i64) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

fn asked(adds: i64, flags: i64, priority: i64) -> Asked {
    Asked {
        adds: to_count(adds),
        // PostgreSQL stores the 32 bits as a signed number.
        flags: flags as u32,
        priority: i32::try_from(priority).unwrap_or_default().into(),
    }
}
