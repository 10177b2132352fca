//! Converts rows of the table to values and back.

use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use crate::engine::damage::{Damage, Damaged, Raw, check_length};
use crate::engine::row::Row;
use crate::engine::time::Micros;
use crate::types::inspect::Entry;
use crate::types::key::Key;
use crate::types::text::prefix;

pub(super) const COLUMNS: &str = "state, at, epoch, lease_until, run_since, run_priority, run_adds, \
     run_reasons, priority, adds, reasons, failures, steps, until, not_before, since, bound, \
     cancel_epoch, error, worker, key";

/// An SQL expression that is true if the row can be read. [`define_readable`] defines its function. No
/// value of `error` makes a row unreadable.
pub(super) const READABLE: &str = "readable(state, at, epoch, lease_until, run_since, run_priority, \
     run_adds, run_reasons, priority, adds, reasons, failures, steps, until, not_before, since, bound, \
     cancel_epoch, null, worker, key)";
/// The number of these columns, and the positions of those that are not numbers.
const COUNT: usize = 21;
const ERROR: usize = 18;
const WORKER: usize = 19;
const KEY: usize = 20;

/// The part of the rules that SQL can express, for a constraint that also applies to other programs. It
/// accepts each readable row, and rejects all others except those with an invalid worker.
pub(super) const CHECK: &str = include_str!("check.sql");
/// As [`CHECK`], for the columns that an upgrade has added: each has its own constraint.
pub(super) const BOUND_CHECK: &str = "bound is null or typeof(bound) = 'integer' and bound >= 0";
pub(super) const CANCEL_EPOCH_CHECK: &str =
    "cancel_epoch is null or typeof(cancel_epoch) = 'integer' and cancel_epoch > 0";

/// The maximum length of the text that is kept of a damaged row, in bytes.
const LONGEST_TEXT: usize = 2_000;

/// A row of the table.
pub(super) struct Found {
    pub(super) key: Key,
    /// The key as it is stored, if it is not a blob.
    odd_key: Option<Value>,
    pub(super) row: Result<Row, Damage>,
}

impl Found {
    pub(super) fn seen(self, now: Micros) -> Entry {
        match self.row {
            Ok(row) => row.seen(self.key, now),
            Err(damage) => Damaged { key: self.key, damage }.seen(),
        }
    }
}

/// Reads a row of [`COLUMNS`].
pub(super) fn read(row: &SqlRow<'_>) -> rusqlite::Result<Found> {
    let stored = row.get_ref(KEY)?;
    let (key, odd_key) = match stored {
        ValueRef::Blob(key) => (Key::from(key), None),
        ValueRef::Text(text) => {
            (Key::from(text), Some(Value::Text(String::from_utf8_lossy(text).into_owned())))
        }
        ValueRef::Integer(number) => (Key::from(shown(stored)), Some(Value::Integer(number))),
        ValueRef::Real(number) => (Key::from(shown(stored)), Some(Value::Real(number))),
        ValueRef::Null => (Key::from(shown(stored)), Some(Value::Null)),
    };
    Ok(Found { key, odd_key, row: decoded(|column| row.get_ref(column))? })
}

/// Defines the function in [`READABLE`], which decodes rows in the same way as the operations do.
pub(super) fn define_readable(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_DIRECTONLY;
    connection.create_scalar_function("readable", COUNT as i32, flags, |row| {
        Ok(decoded(|column| Ok(row.get_raw(column)))?.is_ok())
    })
}

/// Decodes a row of [`COLUMNS`].
fn decoded<'a>(
    column: impl Fn(usize) -> rusqlite::Result<ValueRef<'a>>,
) -> rusqlite::Result<Result<Row, Damage>> {
    let checked = match column(KEY)? {
        ValueRef::Blob(key) => check_length(key),
        _ => Err(Damage::new("the key is not a blob")),
    };
    Ok(raw(column)?.and_then(Raw::read).and_then(|row| checked.map(|()| row)))
}

fn raw<'a>(
    value: impl Fn(usize) -> rusqlite::Result<ValueRef<'a>>,
) -> rusqlite::Result<Result<Raw, Damage>> {
    let mut raw = Raw::default();
    let fields = [
        &mut raw.state,
        &mut raw.at,
        &mut raw.epoch,
        &mut raw.lease_until,
        &mut raw.run_since,
        &mut raw.run_priority,
        &mut raw.run_adds,
        &mut raw.run_reasons,
        &mut raw.priority,
        &mut raw.adds,
        &mut raw.reasons,
        &mut raw.failures,
        &mut raw.steps,
        &mut raw.until,
        &mut raw.not_before,
        &mut raw.since,
        &mut raw.bound,
        &mut raw.cancel_epoch,
    ];
    for (column, field) in fields.into_iter().enumerate() {
        *field = match value(column)? {
            ValueRef::Null => None,
            ValueRef::Integer(number) => Some(number),
            other => {
                let name = COLUMNS.split(", ").nth(column).unwrap_or_default();
                return Ok(Err(Damage::new(format!("{name} is {}", shown(other)))));
            }
        };
    }
    raw.error = match value(ERROR)? {
        ValueRef::Null => None,
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        other => Some(shown(other)),
    };
    let worker = value(WORKER)?;
    raw.worker = match worker.as_str_or_null() {
        Ok(text) => text.map(str::to_owned),
        // Without a run in flight, the worker's name has no meaning.
        Err(_) if raw.state != Some(1) => None,
        Err(_) => return Ok(Err(Damage::new(format!("worker is {}", shown(worker))))),
    };
    Ok(Ok(raw))
}

/// Formats the value as in SQL.
fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "null".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => format!("{number:?}"),
        ValueRef::Text(text) => format!("'{}'", text.escape_ascii()),
        ValueRef::Blob(bytes) => format!("x'{}'", bytes.escape_ascii()),
    }
}

/// Reads a time from a query result, whose row may be damaged.
pub(super) fn time(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<Option<Micros>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Integer(time) => Some(time),
        // A claim at this time finds the row and sets it aside.
        ValueRef::Real(time) => Some(time as Micros),
        _ => None,
    })
}

pub(super) fn load(
    connection: &Connection,
    queue: i64,
    key: &Key,
) -> rusqlite::Result<Option<Result<Row, Damage>>> {
    let sql = format!("select {COLUMNS} from keys where queue = ?1 and key = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row(params![queue, &**key], read).optional()?;
    Ok(found.map(|found| found.row))
}

/// Sets aside a row that cannot be read, and keeps it as text.
pub(super) fn set_aside(
    connection: &Connection,
    queue: i64,
    now: Micros,
    found: Found,
    damage: Damage,
) -> rusqlite::Result<Damaged> {
    let Found { key, odd_key, .. } = found;
    let stored = odd_key.unwrap_or_else(|| Value::Blob(key.to_vec()));
    let sql = format!("select {COLUMNS} from keys where queue = ?1 and key is ?2");
    let text = connection.query_row(&sql, params![queue, stored], text).optional()?;
    // Delete instead of update: an update would check the types of the row, which may be wrong.
    connection
        .prepare_cached("delete from keys where queue = ?1 and key is ?2")?
        .execute(params![queue, stored])?;
    let sql = format!(
        "insert into keys ({COLUMNS}, queue) values \
         (3, null, null, null, null, null, null, null, 0, 0, 0, 0, 0, 0, 0, ?1, null, null, ?2, null, \
         ?3, ?4) \
         on conflict do nothing"
    );
    let error = format!("{}; the row was {}", damage.said, text.unwrap_or_default());
    connection.prepare_cached(&sql)?.execute(params![now, error, &*key, queue])?;
    Ok(Damaged { key, damage })
}

/// Formats the row's values, without the key.
fn text(row: &SqlRow<'_>) -> rusqlite::Result<String> {
    let mut text = String::new();
    for (column, name) in COLUMNS.split(", ").enumerate().take(KEY) {
        let value = shown(row.get_ref(column)?);
        text += &format!("{}{name}={value}", if column == 0 { "" } else { " " });
    }
    Ok(prefix(&text, LONGEST_TEXT).to_owned())
}

/// Stores the record of a key, or deletes it if `row` is `None`.
pub(super) fn keep(
    connection: &Connection,
    queue: i64,
    key: &Key,
    row: Option<&Row>,
) -> rusqlite::Result<()> {
    let Some(row) = row else {
        let sql = "delete from keys where queue = ?1 and key = ?2";
        connection.prepare_cached(sql)?.execute(params![queue, &**key])?;
        return Ok(());
    };
    let state = match (row.parked, row.run) {
        (true, _) => 2,
        (false, Some(_)) => 1,
        (false, None) => 0,
    };
    let sql = format!(
        "insert or replace into keys ({COLUMNS}, queue) values \
         (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, \
         ?21, ?22)"
    );
    let run = row.run;
    connection.prepare_cached(&sql)?.execute(params![
        state,
        row.at,
        run.map(|run| run.epoch),
        run.map(|run| run.lease_until),
        run.map(|run| run.since),
        run.map(|run| run.asked.priority.number()),
        run.map(|run| run.asked.adds),
        run.map(|run| run.asked.reasons),
        row.asked.priority.number(),
        row.asked.adds,
        row.asked.reasons,
        row.failures,
        row.steps,
        row.until,
        row.not_before,
        row.since,
        row.bound,
        run.filter(|run| run.is_cancelled).map(|run| run.epoch),
        row.error,
        row.worker,
        &**key,
        queue,
    ])?;
    Ok(())
}
