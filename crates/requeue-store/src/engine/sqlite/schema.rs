//! Creates and upgrades the tables of a file, and checks their version.

use rusqlite::{Connection, Error, ffi};

use super::rows::COLUMNS;
use crate::engine::missing_steps;

/// The `application_id` in the files of requeue: "rque".
pub(super) const OURS: i32 = 0x7271_7565;
/// The version of the schema that this program creates and uses.
pub(super) const VERSION: i32 = 2;
/// Creates the tables of version 1. The [`STEPS`] then change these tables, even in a new file. Therefore, new and
/// upgraded files have the same tables.
pub(super) const TABLES: &str = include_str!("schema.sql");
/// The statements that change the tables from each version to the next one, up to [`VERSION`].
pub(super) const STEPS: Steps = &[include_str!("upgrades/2.sql")];
/// The columns of the table `queues`.
const QUEUES: &str = "id, name, readd_policy, parked_add, paused, group_by, group_limit, rate, next_at, \
                      has_group_rates, schedule_at";

pub(super) type Steps = &'static [&'static str];

/// The program to which a file belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// The file belongs to requeue. The value is the version of its schema.
    Ours(i32),
    Foreign,
}

impl Found {
    /// Returns the steps that upgrade the file to this version, or `None` if `steps` does not lead to this version.
    pub(super) fn missing_steps(self, steps: Steps) -> Option<Steps> {
        let Self::Ours(version) = self else { return None };
        missing_steps(version, VERSION, steps)
    }
}

/// Reads the program and the version that a file names. The function reads several values, so `connection` should be in
/// a transaction.
pub(super) fn found(connection: &Connection) -> rusqlite::Result<Found> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (id, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables = "select count(*) from sqlite_schema";
    let tables: i64 = connection.query_row(tables, [], |row| row.get(0))?;
    Ok(match (id, version, tables) {
        (OURS, version, _) => Found::Ours(version),
        (0, 0, 0) => Found::Nothing,
        _ => Found::Foreign,
    })
}

/// Creates the tables, or upgrades them. Does nothing if the file belongs to another program, or if `steps` does not
/// upgrade its version.
///
/// The caller runs this function in a transaction, and rolls the transaction back after an error. Therefore, the tables
/// and the version change together or not at all.
pub(super) fn migrate(transaction: &Connection, steps: Steps) -> rusqlite::Result<()> {
    // Another process may have upgraded the file after the caller read its version.
    let found = found(transaction)?;
    if found == Found::Nothing {
        transaction.execute_batch(&[&[TABLES], STEPS].concat().concat())?;
        transaction.pragma_update(None, "application_id", OURS)?;
    } else if let Some(missing) = found.missing_steps(steps) {
        for step in missing {
            transaction.execute_batch(step)?;
        }
        verify_columns(transaction)?;
        tracing::info!(to = VERSION, "the schema was upgraded");
    } else {
        return Ok(());
    }
    // The version is written in the transaction that changes the tables, so that a crash leaves both changed or
    // neither.
    transaction.pragma_update(None, "user_version", VERSION)
}

/// Returns an error if a table lacks a column of this version. The version of a file implies its columns, but another
/// program may have changed the tables.
pub(super) fn verify_columns(connection: &Connection) -> rusqlite::Result<()> {
    let mut has =
        connection.prepare_cached("select 1 from pragma_table_info(?1) where name = ?2")?;
    for (table, columns) in [("queues", QUEUES), ("keys", &**COLUMNS)] {
        for column in columns.split(", ") {
            if !has.exists([table, column])? {
                let said = format!(
                    "version {VERSION} of the schema needs the column {table}.{column}, which is missing: \
                     another program has changed the tables; restore a backup"
                );
                return Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_ERROR), Some(said)));
            }
        }
    }
    Ok(())
}
