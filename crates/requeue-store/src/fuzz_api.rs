//! Gives fuzz targets the rows of stores as plain values, so that the types of this crate stay private.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use crate::engine::columns::{ColumnType, Columns, Source, Value};
use crate::engine::row;
use crate::engine::{Ask, Asked, Backoff, Failing, Failure, Finish, Place};
use crate::types::add::{Add, Merge, Priority, ReaddPolicy};
use crate::types::inspect::State;

/// A row that was read without an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row(row::Row);

/// The numbers of a row, in the order of the columns. `None` is SQL's null.
pub type Fields = [Option<i64>; 19];

/// The texts of a row, in the order of the columns: the error, the group, the trace contexts of the pending run, the
/// worker, and the trace contexts of the run in flight.
pub type Texts = [Option<String>; 5];

/// The last completed runs of a key, as a row stores them.
pub type Past = Option<Vec<u8>>;

/// Reads a row of a table in SQLite or PostgreSQL. The constraints of the table must have accepted the row.
#[must_use]
pub fn table_row(fields: Fields, texts: Texts, past: Past) -> Row {
    let Ok(columns) = Columns::read(&Stored { fields, texts, past });
    Row(columns.into())
}

struct Stored {
    fields: Fields,
    texts: Texts,
    past: Past,
}

/// Returns the number of columns of the type `wanted` before `position`.
fn count_before(position: usize, wanted: ColumnType) -> usize {
    Columns::ALL[..position].iter().filter(|column| column.column_type == wanted).count()
}

impl Source for Stored {
    type Error = Infallible;

    fn read_number(&self, position: usize) -> Result<Option<i64>, Infallible> {
        Ok(self.fields[count_before(position, ColumnType::Number)])
    }

    fn read_text(&self, position: usize) -> Result<Option<Cow<'_, str>>, Infallible> {
        Ok(self.texts[count_before(position, ColumnType::Text)].as_deref().map(Cow::from))
    }

    fn read_bytes(&self, _: usize) -> Result<Option<&[u8]>, Infallible> {
        Ok(self.past.as_deref())
    }
}

/// Reads a row in the packed format of Redis.
///
/// # Errors
///
/// Returns a message about the invalid part.
#[cfg(feature = "redis")]
pub fn packed_row(packed: &[u8]) -> Result<Row, String> {
    crate::engine::redis::read_row(packed).map(Row)
}

/// An operation that an engine performs on a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Add { after: u64, exactly: bool },
    Debounce { quiet: u64, at_most: u64 },
    Claim { lease: u64 },
    Succeed,
    RequeueAfter { delay: u64 },
    Retry { base: u64, cap: u64 },
    RetryAfter { delay: u64 },
    GiveUp,
    Release,
    Unclaim { queued: u64 },
    Expire,
    Cancel,
    Revive,
}

impl Row {
    /// Returns the numbers, the texts and the past of the row.
    #[must_use]
    pub fn fields(&self) -> (Fields, Texts, Past) {
        let (mut fields, mut texts, mut past) = (Fields::default(), Texts::default(), None);
        let (mut next_field, mut next_text) = (fields.iter_mut(), texts.iter_mut());
        for value in Columns::from(&self.0).values() {
            match value {
                Value::Number(number) => {
                    next_field.next().into_iter().for_each(|field| *field = number)
                }
                Value::Text(text) => {
                    next_text.next().into_iter().for_each(|field| *field = text.map(str::to_owned));
                }
                Value::Bytes(bytes) => past = bytes.map(<[u8]>::to_vec),
            }
        }
        (fields, texts, past)
    }

    /// Returns [`Entry::explain`](crate::Entry::explain) of the row's key, at the time `now`.
    #[must_use]
    pub fn explain(&self, now: i64) -> String {
        self.0.to_entry("key".into(), now).explain()
    }

    /// Returns the row after an operation, or `None` if the operation removes the row. An operation that is not valid
    /// for the row changes nothing.
    #[must_use]
    pub fn after(self, operation: Operation, holds: bool, now: i64) -> Option<Self> {
        let Self(mut row) = self;
        let readd_policy = if holds { ReaddPolicy::Hold } else { ReaddPolicy::Replace };
        let micros = Duration::from_micros;
        let asked = Asked { adds: u32::MAX, flags: u32::MAX, priority: Priority::High };
        let failure = Failure::new(asked, "no");
        let failing = |base: u64, cap: u64| Failing {
            backoff: Backoff { base: micros(base), cap: micros(cap), share: 0.5 },
            max_failures: Some(3),
        };
        let place = Place::new(1, "q", readd_policy);
        let add = |row, add: Add, adds| {
            let key = crate::Key::from("key");
            Some(Self(row::Row::add(Some(row), &Ask { adds, ..Ask::new(key, add) }, &place, now).0))
        };
        let how = match operation {
            Operation::Add { after, exactly } => {
                let merge = if exactly { Merge::Exactly } else { Merge::Earliest };
                return add(row, Add::after(micros(after)).merge(merge), u32::MAX);
            }
            Operation::Debounce { quiet, at_most } => {
                return add(row, Add::debounce(micros(quiet)).at_most(micros(at_most)), 1);
            }
            Operation::Claim { lease } => {
                if row.is_ready(now) {
                    let _ = row.claim(&"key".into(), 1, &"w".into(), micros(lease), now);
                }
                return Some(Self(row));
            }
            Operation::Cancel => return row.cancel().0.map(Self),
            Operation::Revive => {
                row.make_ready(State::Parked, now);
                return Some(Self(row));
            }
            _ if row.run.is_none() => return Some(Self(row)),
            Operation::Expire => {
                let how = row.lease_expiry(failing(1, 1));
                return row.finish(how, &place, now).map(Self);
            }
            Operation::Succeed => Finish::Succeed,
            Operation::RequeueAfter { delay } => Finish::RequeueAfter(micros(delay), Priority::Low),
            Operation::Retry { base, cap } => Finish::Retry(failing(base, cap), failure),
            Operation::RetryAfter { delay } => Finish::RetryAfter(micros(delay), None, failure),
            Operation::GiveUp => Finish::GiveUp(failure),
            Operation::Release => Finish::Release(asked),
            Operation::Unclaim { queued } => Finish::Unclaim(asked, micros(queued)),
        };
        row.finish(how, &place, now).map(Self)
    }
}
