//! Rows of the table, as values and back.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Result, Row as SqlRow, params};

use crate::add::Priority;
use crate::engine::Asked;
use crate::key::Key;
use crate::row::{Row, Run};

pub(super) const COLUMNS: &str = "state, at, epoch, lease_until, run_since, run_priority, run_adds, \
     run_reasons, priority, adds, reasons, failures, steps, until, not_before, since, error, key";

/// The columns, in that order.
pub(super) fn read(row: &SqlRow<'_>) -> Result<(Key, Row)> {
    let asked = |first: usize| -> Result<Asked> {
        let priority = Priority::of(row.get(first)?);
        Ok(Asked { adds: row.get(first + 1)?, reasons: row.get(first + 2)?, priority })
    };
    let state: i64 = row.get(0)?;
    let run = match row.get(2)? {
        Some(epoch) if state == 1 => {
            let (lease_until, since) = (row.get(3)?, row.get(4)?);
            Some(Run { epoch, lease_until, since, asked: asked(5)? })
        }
        _ if state == 1 => {
            let said = "a key with a worker has no number of its hand-out";
            return Err(rusqlite::Error::FromSqlConversionFailure(2, Type::Null, said.into()));
        }
        _ => None,
    };
    let key: Vec<u8> = row.get(17)?;
    let row = Row {
        at: row.get(1)?,
        run,
        parked: state == 2,
        asked: asked(8)?,
        failures: row.get(11)?,
        steps: row.get(12)?,
        until: row.get(13)?,
        not_before: row.get(14)?,
        since: row.get(15)?,
        error: row.get(16)?,
    };
    Ok((key.into(), row))
}

pub(super) fn load(connection: &Connection, queue: i64, key: &Key) -> Result<Option<Row>> {
    let sql = format!("select {COLUMNS} from keys where queue = ?1 and key = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row(params![queue, &**key], read).optional()?;
    Ok(found.map(|(_, row)| row))
}

/// Keeps what is known of a key; nothing of one of which there is none.
pub(super) fn keep(
    connection: &Connection,
    queue: i64,
    key: &Key,
    row: Option<&Row>,
) -> Result<()> {
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
         (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)"
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
        row.error,
        &**key,
        queue,
    ])?;
    Ok(())
}
