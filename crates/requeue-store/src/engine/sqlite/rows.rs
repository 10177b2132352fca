//! Reads and writes the rows of the table of keys.

use std::borrow::Cow;
use std::sync::LazyLock;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, ToSql, params, params_from_iter};

use crate::engine::columns::{Columns, Source, Value};
use crate::engine::row::Row;
use crate::engine::time::Micros;
use crate::types::key::Key;

/// The columns that [`read_row`] reads: first [`Columns::ALL`], then the key.
pub(super) static COLUMNS: LazyLock<String> =
    LazyLock::new(|| format!("{}, key", Columns::join_names(|column| column.name.to_owned())));

static LOAD: LazyLock<String> =
    LazyLock::new(|| format!("select {} from keys where queue = ?1 and key = ?2", *COLUMNS));

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let values = vec!["?"; Columns::ALL.len() + 3].join(", ");
    format!("insert or replace into keys ({}, queue, is_due) values ({values})", *COLUMNS)
});

impl Source for SqlRow<'_> {
    type Error = rusqlite::Error;

    fn read_number(&self, position: usize) -> rusqlite::Result<Option<i64>> {
        self.get(position)
    }

    /// Another program may have written text that is not UTF-8. The key must remain readable nevertheless.
    fn read_text(&self, position: usize) -> rusqlite::Result<Option<Cow<'_, str>>> {
        Ok(match self.get_ref(position)? {
            ValueRef::Text(text) => Some(String::from_utf8_lossy(text)),
            _ => None,
        })
    }

    fn read_bytes(&self, position: usize) -> rusqlite::Result<Option<&[u8]>> {
        Ok(self.get_ref(position)?.as_bytes_or_null().unwrap_or_default())
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Number(number) => number.to_sql(),
            Self::Text(text) => text.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
        }
    }
}

/// Reads a row that has the columns [`COLUMNS`].
pub(super) fn read_row(row: &SqlRow<'_>) -> rusqlite::Result<(Key, Row)> {
    let key = row.get_ref(Columns::ALL.len())?.as_bytes()?;
    Ok((Key::from(key), Columns::read(row)?.into()))
}

pub(super) fn load_row(
    connection: &Connection,
    queue: i64,
    key: &Key,
) -> rusqlite::Result<Option<Row>> {
    let mut statement = connection.prepare_cached(&LOAD)?;
    let found = statement.query_row(params![queue, &**key], read_row).optional()?;
    Ok(found.map(|(_, row)| row))
}

/// Stores the record of a key at the time `now`, or deletes it if `row` is `None`.
pub(super) fn keep_row(
    connection: &Connection,
    queue: i64,
    key: &Key,
    row: Option<&Row>,
    now: Micros,
) -> rusqlite::Result<()> {
    let Some(row) = row else {
        let sql = "delete from keys where queue = ?1 and key = ?2";
        connection.prepare_cached(sql)?.execute(params![queue, &**key])?;
        return Ok(());
    };
    let (columns, key) = (Columns::from(row), &**key);
    let is_due = row.group.is_some() && row.is_ready(now);
    let values = columns.values();
    let values = values.iter().map(|value| value as &dyn ToSql);
    let values = values.chain([&key as &dyn ToSql, &queue, &is_due]);
    connection.prepare_cached(&INSERT)?.execute(params_from_iter(values))?;
    Ok(())
}
